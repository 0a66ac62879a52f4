// mode="max-autotune": in which form a graph runs fastest is measured on the program's own runs.
//
// The forms are the graph as it is compiled by default, and without each pass that changes it: other layouts of
// convolutions, products in place of them, unpacked weights, other cuts of reductions, no fusion. Runs take turns until
// every form was timed a few times; a form that is clearly slower leaves at once. The default stays unless another one
// is clearly faster, and is so again when the two alone take turns. It runs wherever sizes are not those that were
// timed. So a graph never becomes slower for good. What measuring costs is bounded: no more forms are made once making
// them took kMostMaking seconds, and none runs more than kWarm + kTimed + kConfirmed times. The verdict is kept for the
// process and, in diag::CacheFolder(), for later ones.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "framejit/compile.h"

namespace framejit::compiler {

using MakeForm = std::function<std::shared_ptr<Executable>(const CompileOptions& options)>;

// passes: which a form may do without. make: compiles the graph with such options.
std::shared_ptr<Executable> MakeForms(const Graph& graph, const CompileOptions& options,
                                      std::vector<std::string_view> passes, MakeForm make);

}  // namespace framejit::compiler
