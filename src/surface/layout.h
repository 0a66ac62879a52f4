// Strides exactly as the frameworks give them: what is contiguous, which layout the iterators choose for a result,
// views. All questions about symbolic sizes go through shape::Env and so become guards only when algebra cannot tell.
#pragma once

#include <optional>
#include <span>

#include "framejit/call.h"

namespace framejit::surface {

bool IsRowMajor(const TensorMeta& m);                     // are the strides the default ones? By algebra alone.
bool IsContiguous(shape::Env& env, const TensorMeta& m);  // as the framework asks: dimensions of size 1 do not count
bool IsDense(shape::Env& env, const TensorMeta& m);       // does it cover its memory once, in any order of dimensions?
bool Overlaps(shape::Env& env, const TensorMeta& m);      // may two indices lead to the same element?
bool LikesChannelsLast(shape::Env& env, const TensorMeta& m);  // torch's suggest_memory_format, rank 4 and 5
bool IsEmpty(shape::Env& env, const shape::Ints& sizes);
bool IsChannelsLast(shape::Env& env, const TensorMeta& m);  // is_contiguous(memory_format=channels_last)
shape::Ints ChannelsLast(const shape::Ints& sizes);

// The strides that torch's TensorIterator without its shortcuts gives a result of operands that have `shape`.
shape::Ints TorchIterator(shape::Env& env, const shape::Ints& shape, const std::vector<shape::Ints>& strides);
// The strides that torch's TensorIterator gives a result of these tensors (also those without dimensions) in the shape
// that they broadcast to. scalars: a Python number is among the operands, which switches the iterator's shortcuts off.
shape::Ints TorchPointwise(shape::Env& env, const shape::Ints& shape, std::span<const TensorMeta* const> tensors,
                           bool scalars);
// The strides of the result of a ufunc of NumPy, in 'K' order. casts: an operand is computed in another type than its
// own, which NumPy leaves to its iterator.
shape::Ints NumpyPointwise(shape::Env& env, const shape::Ints& shape, std::span<const TensorMeta* const> tensors,
                           bool casts = false);
// The strides that empty_like, clone and to give with preserve_format.
shape::Ints PreserveFormat(shape::Env& env, const TensorMeta& m);
// The strides of m seen with other sizes that have as many elements; nothing if that needs a copy.
std::optional<shape::Ints> ViewStrides(shape::Env& env, const TensorMeta& m, const shape::Ints& sizes);

}  // namespace framejit::surface
