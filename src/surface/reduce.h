// What the reductions of torch and NumPy share beyond rules/: dtypes and refusals.
#pragma once

#include "surface/rows.h"

namespace framejit::surface {

DType SumType(const Scope& s, DType t);  // The type of a sum or product over `t`.
// Declines when an axis is empty: the frameworks refuse extremes of nothing.
void RefuseEmpty(Scope& s, ValueId x, const std::vector<int64_t>& axes);
// Declines where fewer numbers are reduced than a variance with this correction needs: the frameworks warn.
void RefuseFew(Scope& s, const Operand& x, const std::vector<int64_t>& axes, double correction);
// argmax, argmin over one axis or (none given) the flattened tensor.
ValueId ArgExtreme(Scope& s, Op op, ValueId x, std::optional<int> axis, bool keep);

// 0 with probability p, else 1/(1-p): what the framework's dropout multiplies a tensor like this one with (row-major,
// or with these strides), drawn from its generator in program order.
ValueId DropoutNoise(Scope& s, ValueId like, double p, const shape::Ints& strides = {});

}  // namespace framejit::surface
