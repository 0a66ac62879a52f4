// Views: the graph value, the strides and both directions of each kind of view, composable for x[1:, None, ..., 0].
#pragma once

#include "surface/rows.h"

namespace framejit::surface {

// A chain of view steps over one parent, applied as it is built.
class ViewChain {
 public:
  ViewChain(Scope& s, const Operand& parent);

  void Reshape(const shape::Ints& sizes, shape::Ints strides);
  void Permute(const std::vector<int64_t>& perm);
  void Slice(int axis, shape::Int start, shape::Int length, shape::Int step);  // The step is greater than 0.
  void Flip(int axis);                                                         // What NumPy's negative steps do.
  void Select(int axis, shape::Int index);                                     // index in range, not negative
  void Unsqueeze(int axis, shape::Int stride);
  void Squeeze(int axis);
  void Expand(const shape::Ints& sizes);  // sizes are final; cannot be written through

  const shape::Ints& sizes() const { return meta_.sizes; }
  const shape::Ints& strides() const { return meta_.strides; }
  const TensorMeta& meta() const { return meta_; }
  int rank() const { return static_cast<int>(meta_.sizes.size()); }
  ValueId value() const { return value_; }

  Region region() const { return {parent_, offset_, meta_.sizes, meta_.strides}; }
  Out Done() const;                       // The view as a result.
  ValueId Replaced(ValueId fresh) const;  // the parent with the viewed region replaced

 private:
  void Push(std::function<ValueId(Builder&, ValueId)> forward,
            std::function<ValueId(Builder&, ValueId, ValueId)> inverse);
  Scope& s_;
  TraceId parent_;
  ValueId parent_value_, value_;
  TensorMeta meta_;
  shape::Int offset_ = 0;
  std::vector<View> steps_;
};

// Python's slice rules on one axis: start and length for step > 0 (NumPy: a negative step comes as `flip`).
struct SliceBounds {
  shape::Int start, length, step;
  bool flip = false;
};
SliceBounds NormalizeSlice(Scope& s, const Arg& slice, const shape::Int& size);
shape::Int NormalizeIndex(Scope& s, const shape::Int& index,
                          const shape::Int& size);  // Declines where it is out of range.
// What a tensor of indices means: negative ones count from the end.
ValueId WrapIndex(Scope& s, ValueId index, const shape::Int& size);
// Sizes with one -1 filled in; declines when the counts differ.
shape::Ints FillSizes(Scope& s, const shape::Ints& wanted, const shape::Int& numel);
// `value`, written over all of x: what x was made of gets a gradient still, of zeros, which is not the same as none.
ValueId Overwriting(Scope& s, const Operand& x, ValueId value);

// Does torch's kernel of two operands read this one as a number? A Python number; a tensor of one element on the CPU,
// which kernels of the CPU know as the second operand only.
bool TakenAsNumber(Scope& s, const Operand& o, const Operand& other, bool second);

// v, unless `bad`, of one element: then the run ends before anything is written, and Python does the call.
ValueId Unless(Scope& s, ValueId bad, ValueId v);
// Gives v where NumPy's integer scalars do not overflow. Else the run ends, and NumPy warns. Arrays wrap.
ValueId NoOverflow(Scope& s, Op op, ValueId a, ValueId b, ValueId v);

// A number among elements of `t`. NumPy stores its scalars in signed integers by way of Python's, which must fit.
ValueId Element(Scope& s, const Operand& v, DType t);

// Sizes that a creation function is given.
inline void RefuseNegative(const Scope& s, const shape::Ints& sizes) {
  for (const shape::Int& n : sizes)
    if (s.env.Lt(n, 0)) Scope::Fail("negative size");
}

// The strides of a new array of NumPy's in the order of this one ("K"). Unlike the iterator of ufuncs, this puts
// strides of 0 innermost.
shape::Ints KeepOrder(Scope& s, const TensorMeta& m);

}  // namespace framejit::surface
