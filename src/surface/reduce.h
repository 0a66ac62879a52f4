// Reductions shared by the torch and the NumPy rows. Small floats accumulate in f32 and are rounded once.
#pragma once

#include "surface/rows.h"

namespace framejit::surface {

ValueId SumOver(Scope& s, ValueId x, const std::vector<int64_t>& axes, bool keep, DType result);
ValueId MeanOver(Scope& s, ValueId x, const std::vector<int64_t>& axes, bool keep, DType result);
// Pair of variance and mean, in the compute type.
std::pair<ValueId, ValueId> VarianceOver(Scope& s, ValueId x, const std::vector<int64_t>& axes, bool keep, int64_t correction);
ValueId LogSumExpOver(Scope& s, ValueId x, const std::vector<int64_t>& axes, bool keep);
shape::Int CountOver(Scope& s, ValueId x, const std::vector<int64_t>& axes);
// Declines when an axis is empty: the frameworks refuse extremes of nothing.
void RefuseEmpty(Scope& s, ValueId x, const std::vector<int64_t>& axes);
ValueId ArgExtreme(Scope& s, Op op, ValueId x, std::optional<int> axis, bool keep);
DType SumType(const Scope& s, DType t);

}  // namespace framejit::surface
