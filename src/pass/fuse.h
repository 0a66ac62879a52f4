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
  // kJoin: parts that are put together where they are made; nothing computes the whole.
  enum class Kind : uint8_t { kKernel, kLibrary, kExtern, kJoin };
  Kind kind = Kind::kKernel;
  // In the order of the graph. A kernel's nodes include the constants that it reads; those of a framework call are the
  // call, then its results.
  std::vector<ValueId> nodes;
  std::vector<ValueId> stored;  // members that must exist in memory
};

// A view that is only another way to read `base`, which is no alias itself.
struct Alias {
  ValueId base = kNoValue;
  loop::Layout layout;
};

// Two groups that stayed two, though one reads what the other makes.
struct Boundary {
  int producer, consumer;  // positions in Grouping::groups
  std::string why;
};

struct Grouping {
  std::vector<Group> groups;                  // in an order in which they can run
  std::vector<Boundary> boundaries;           // if FuseOptions asks for them
  std::vector<std::optional<Alias>> aliases;  // There is one for each value.
  std::vector<loop::Layout> layouts;          // for each value that is an input, stored or an alias
  // For each write: the part of the input that is written (store_regions.h). Empty: all inputs are written whole.
  std::vector<std::optional<loop::Layout>> regions;
};

struct FuseOptions {
  bool fuse = true;         // false: every node is a group
  int max_nodes = 80;       // that one kernel may have: its code and the time to compile it grow with them
  bool boundaries = false;  // say why groups stayed apart
  bool parts_apart = true;  // of the target's costs
  bool feeds = false;       // products with vectors may read a matrix as it is made (runtime/row_products.h)
};

Grouping Fuse(const Graph& g, const FuseOptions& options = {});

// Splits the group of one kernel into a kernel for each node, where code generation cannot do the whole.
std::vector<Group> Split(const Graph& g, const Group& group);

// The types of a product that may read its matrix as that is made.
bool FeedsProduct(DType dtype, const shape::Ints& matrix, const shape::Ints& vector);

// Is it better to store the value than to compute it again for every reader?
bool IsExpensive(const Node& n);

}  // namespace framejit::pass
