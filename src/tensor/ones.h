// What a size of 1 means to a call whose result was found for symbolic sizes, and results that are like an operand
// (infer_symbolic.cc).
#pragma once

#include "tensor/tensor.h"

namespace framejit::tensor {

// Symbols whose being 1 gives results of other sizes than were found, or of other strides along dimensions of size 1.
struct Ones {
  shape::Ints sizes, strides;
};
Ones OnesMatter(const Inferred& found, const Call& call, const std::vector<TensorMeta>& operands, const shape::Env& env,
                const std::vector<PyObject*>& constants);

// Of a call whose result is like its first operand: it is asked with the sizes of now, where made-up ones of several
// operands would not fit one another.
std::optional<Inferred> InferLikeFirst(Call& call, const std::vector<TensorMeta>& operands, const shape::Env& env,
                                       const std::vector<PyObject*>& constants, Refusal* why);

}  // namespace framejit::tensor
