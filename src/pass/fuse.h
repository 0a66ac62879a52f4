// Partitions a graph into what one step of the plan computes: fused kernels, library calls, externs.
//
//   before: %3 = mul %0, %1     after:  kernel {%3, %4, %5}   (one pass over %0 and %1)
//           %4 = add %3, %2             linear {%6}
//           %5 = tanh %4                view of %6: {%7}      (belongs to no group, costs nothing)
//           %6 = linear %5, %w
//           %7 = permute %6
//
// Views of values that exist in memory anyway (inputs, results of library calls and externs) stay outside of groups:
// they are the same storage with other strides. Constants and iotas belong to every group that reads them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "framejit/graph.h"
#include "loop/kernel.h"

namespace framejit::pass {

struct Group {
  enum class Kind : uint8_t { kKernel, kLibrary, kExtern };
  Kind kind = Kind::kKernel;
  std::vector<ValueId> nodes;  // graph order; kernels: with the constants they read; extern: the node, then its results
  std::vector<ValueId> stored;  // members that must exist in memory
};

struct Alias {  // a view that is only another way to read `base` (which is no alias itself)
  ValueId base = kNoValue;
  loop::Layout layout;
};

struct Boundary {          // two groups, of which one reads what the other makes, that stayed two
  int producer, consumer;  // in Grouping::groups
  std::string why;
};

struct Grouping {
  std::vector<Group> groups;                         // an order in which they can run
  std::vector<Boundary> boundaries;                  // if they were asked for
  std::vector<std::optional<Alias>> aliases;         // by ValueId
  std::vector<loop::Layout> layouts;                 // by ValueId: of inputs, stored members and aliases
  std::vector<std::optional<loop::Layout>> regions;  // by write: store_regions.h; empty: all whole
};

struct FuseOptions {
  bool fuse = true;         // false: a group a node
  int max_nodes = 80;       // of one kernel: code size and compile time grow with it
  loop::Costs costs;        // of the device that most values are on
  bool boundaries = false;  // say why groups stayed apart
};

Grouping Fuse(const Graph& g, const FuseOptions& options = {});

// The group of one kernel split into one kernel a node (for what code generation cannot do as a whole).
std::vector<Group> Split(const Graph& g, const Group& group);

// Is the value worth a buffer rather than computing it again for every reader?
bool IsExpensive(const Node& n);

}  // namespace framejit::pass
