// What each symbol of a graph was when it was captured, for choices that only want a typical size.
#pragma once

#include <vector>

#include "framejit/graph.h"

namespace framejit {

inline std::vector<int64_t> Hints(const Graph& g) {
  std::vector<int64_t> hints;
  for (const shape::SymbolInfo& s : g.symbols) hints.push_back(s.hint);
  return hints;
}

}  // namespace framejit
