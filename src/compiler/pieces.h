// Graphs with sizes that data decides: cut where such a size becomes known.
#pragma once

#include <functional>
#include <memory>

#include "framejit/compile.h"

namespace framejit::compiler {

bool HasDataSizes(const Graph& g);

// weights: by input of `graph`; `make` gets those of the part's own inputs.
using MakePart = std::function<std::shared_ptr<Executable>(const Graph& part, const std::vector<bool>& weights)>;
std::shared_ptr<Executable> CompilePieces(const Graph& graph, const std::vector<bool>& weights, const MakePart& make);

}  // namespace framejit::compiler
