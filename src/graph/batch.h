// Makes a graph for one sample into one for a batch of samples (framejit.vmap of NumPy's functions).
//
//   %0 = input x : [8, 3]          %1 = the first row of %0 : [3]     for one sample
//   %2 = mul %1, %1 : [3]
//   %3 = sum %2, axes=[0] : []     Batching.Of(%3): sum (mul %0, %0), axes=[1] : [8]
//
// Every primitive has its rule here. The nodes for one sample stay, and nobody reads them any more.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "framejit/graph.h"

namespace framejit {

struct Unbatchable : std::runtime_error {  // what() names the operation and its line
  using std::runtime_error::runtime_error;
};

class Batching {
 public:
  Batching(Builder& b, shape::Int size) : b_(b), size_(size), whole_(b.graph().nodes.size(), kNoValue) {}
  // `whole` holds all samples, its first dimension is the batch; `sample` is one of them.
  void Stands(ValueId sample, ValueId whole) { whole_[sample] = whole; }
  // The value for all samples, with the batch as its first dimension. A value that does not depend on a sample is
  // repeated. Throws Unbatchable.
  std::vector<ValueId> Of(const std::vector<ValueId>& values);
  // Does the value depend on a sample? Only for values that Of() was asked for.
  bool Varies(ValueId v) const { return v < whole_.size() && whole_[v] != kNoValue; }

 private:
  ValueId Whole(ValueId v);
  ValueId Node(ValueId v);
  ValueId Computed(const framejit::Node& n, Attrs attrs);
  ValueId Take(const framejit::Node& n);
  ValueId MatMul(const framejit::Node& n);
  [[noreturn]] static void Refuse(const framejit::Node& n);

  Builder& b_;
  const shape::Int size_;
  // For each value of one sample: that of all samples. kNoValue: it is not made yet, or depends on no sample.
  std::vector<ValueId> whole_;
};

std::string LineOf(const Node& n);  // " (train.py:12)", or nothing

}  // namespace framejit
