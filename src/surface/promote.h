// Result dtypes of mixed operands: torch's three categories (tensors, 0-dimensional tensors, Python numbers) and
// NumPy 2's rule (Python numbers are weak, NumPy scalars are not).
#pragma once

#include <optional>
#include <span>

#include "framejit/call.h"

namespace framejit::surface {

struct TypeOperand {  // a tensor, or a Python number
  const TensorMeta* tensor = nullptr;
  Arg::Kind number = Arg::Kind::kNone;
};

DType PromoteTypes(DType a, DType b);  // torch.promote_types
DType NumpyPromoteTypes(DType a, DType b);
DType TorchResultType(std::span<const TypeOperand> operands, DType default_float);
DType NumpyResultType(std::span<const TypeOperand> operands);
DType NumpyFloatFor(DType t);                     // what np.exp and friends compute a dtype in
bool TorchCanCast(DType from, DType to);          // may an in-place result of `from` be stored in `to`?
bool NumpyCanCastSameKind(DType from, DType to);  // the ufuncs' default casting rule for in-place results
// A number as torch stores it among elements of `t`: a float in an integer loses its fraction. Nothing: it does not
// fit, or the framework should say.
std::optional<Arg> Converted(shape::Env& env, const Arg& number, DType t);
bool IsFloatNumber(const Arg& number);  // also one that is known when the run begins
// No overflow when a Python number becomes this integer dtype; asked of the environment where the number is a symbol.
bool FitsIn(shape::Env& env, const Arg& number, DType t);
// Does torch take the number as alpha= of operands of that dtype?
bool FactorFits(shape::Env& env, const Arg& factor, DType t);
double LargestFloat(DType t);  // the largest finite number, for dtypes of floats

}  // namespace framejit::surface
