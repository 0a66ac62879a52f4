// Kernels that write where they read.
//
// Writes to inputs without a copy: the kernel that computes the new value stores it into the input itself.
//
//   before: kernel (in0) -> scratch; write in0 <- scratch     after: kernel (in0) -> in0
//
// That is legal for a kernel that runs after everything that can fail, that nothing runs after which reads the old
// value, and that itself reads an element of the input only before it writes the same element. Inputs that overlap in
// memory are a matter of the run: it falls back to scratch then.
//
// A cheap kernel that may itself end the run (floating-point exceptions of NumPy) runs twice: first a rehearsal whose
// results stay in the cache and are forgotten. That costs reading the operands, where scratch would cost writing and
// reading the result.
#pragma once

#include <memory>
#include <vector>

#include "loop/kernel.h"
#include "pass/fuse.h"
#include "runtime/plan.h"

namespace framejit::compiler {

// The part of the input that this write goes to. Null: all of it.
inline const loop::Layout* RegionOf(const pass::Grouping& grouping, size_t write) {
  return grouping.regions.empty() || !grouping.regions[write] ? nullptr : &*grouping.regions[write];
}

// How a copy lies that is made to be written to an input: as the input, if that has one element an address.
shape::Ints DirectStrides(const Graph& g, const Write& w);

// How often a value's memory is looked at by other groups, results and writes.
std::vector<int> Uses(const Graph& g, const pass::Grouping& grouping);

// An extern with attrs.flag writes its result into its first operand. May it have that operand's own memory, because
// nobody else looks at it?
bool UpdatesOperand(const Graph& g, const pass::Grouping& grouping, const std::vector<int>& uses, ValueId v);

// Values that are written to an input and read by nobody else are stored with the input's layout.
void LayoutsForDirectWrites(const Graph& g, const pass::Grouping& grouping, const std::vector<int>& uses,
                            std::vector<loop::Layout>& layouts);

using Kernels = std::vector<std::shared_ptr<const loop::Kernel>>;  // by step (null for other steps)

// Marks commits as direct and moves their kernels to the end.
void WriteDirectly(runtime::Plan& plan, Kernels& kernels);

// Marks kernels right before a product with a vector, which alone reads what they make: the run need not store that
// (runtime/row_products.h).
void FeedProducts(runtime::Plan& plan, const Kernels& kernels);

// Two products of one matrix with vectors from its two sides become neighbours, which a run may compute together
// (runtime/row_products.h).
void PairProducts(runtime::Plan& plan, Kernels& kernels);

// What an operator of another library is given, it may keep: that does not lie in memory of ours.
void LendOperands(runtime::Plan& plan);

// A result takes the memory of an operand that nobody reads any more (scratch, or what a library has returned), if the
// kernel reads each element before it writes it: half of the cache for a chain of kernels and library calls.
void ReuseOperands(runtime::Plan& plan, const Kernels& kernels);

}  // namespace framejit::compiler
