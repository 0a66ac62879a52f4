// Which values are only another way to read memory that exists anyway. Used by fusion, before and after it merges.
#pragma once

#include <optional>
#include <vector>

#include "loop/alike.h"
#include "pass/fuse.h"

namespace framejit::pass {

// Does the value exist in memory whatever fusion decides? Inputs, results of library calls and of externs.
bool IsHard(const Graph& g, ValueId v);

// Layout of a value when it is stored by the step that makes it.
loop::Layout StoredLayout(const Graph& g, ValueId v);

// Views (and views of views) of hard values whose strides can be expressed.
std::vector<std::optional<Alias>> HardAliases(const Graph& g, const std::vector<bool>& live);

// A view at the end of a kernel is better not stored: the kernel stores what is viewed, and the view becomes an alias.
//   before: kernel {%3 = add, %4 = permute %3} stores %4     after: kernel {%3 = add} stores %3; %4 aliases %3
void AliasStoredViews(const Graph& g, loop::Fusing& fusing, Grouping& grouping);

// Fills grouping.layouts.
void SetLayouts(const Graph& g, Grouping& grouping);

// Strides the graph asks of this output: the node's, or row-major.
shape::Ints OutputStrides(const Graph& g, ValueId v);

// Can the base's buffer be the output itself? It is if the alias covers the base exactly, laid out as the output must
// be.
bool CoversAsOutput(const Graph& g, ValueId base, ValueId output, const loop::Layout& layout);

}  // namespace framejit::pass
