// Strides exactly as the frameworks give them: contiguity questions, the iterators' choice of an output layout, views.
// All questions about symbolic sizes go through shape::Env and so become guards only when algebra cannot tell.
#pragma once

#include <optional>
#include <span>

#include "framejit/call.h"

namespace framejit::surface {

bool IsRowMajor(const TensorMeta& m);                     // strides are the default ones, by algebra alone
bool IsContiguous(shape::Env& env, const TensorMeta& m);  // the framework's question: size-1 dimensions do not count
bool IsDense(shape::Env& env, const TensorMeta& m);       // covers its memory once, in some order of dimensions
bool Overlaps(shape::Env& env, const TensorMeta& m);      // an element may be reachable by two indices
bool LikesChannelsLast(shape::Env& env, const TensorMeta& m);  // torch's suggest_memory_format, rank 4 and 5
bool IsEmpty(shape::Env& env, const shape::Ints& sizes);
bool IsChannelsLast(shape::Env& env, const TensorMeta& m);  // is_contiguous(memory_format=channels_last)
shape::Ints ChannelsLast(const shape::Ints& sizes);

// torch's TensorIterator without its shortcuts: output strides for operands that were already stretched to `shape`.
shape::Ints TorchIterator(shape::Env& env, const shape::Ints& shape, const std::vector<shape::Ints>& strides);
// Output of torch's TensorIterator for these tensors (0-dimensional ones included) and broadcast shape. `scalars`: a
// Python number took part, which switches its shortcuts off.
shape::Ints TorchPointwise(shape::Env& env, const shape::Ints& shape, std::span<const TensorMeta* const> tensors,
                           bool scalars);
// Output of a NumPy ufunc in 'K' order.
shape::Ints NumpyPointwise(shape::Env& env, const shape::Ints& shape, std::span<const TensorMeta* const> tensors);
// empty_like, clone, to with preserve_format.
shape::Ints PreserveFormat(shape::Env& env, const TensorMeta& m);
// Strides of m seen with other sizes (same number of elements); nothing if that needs a copy.
std::optional<shape::Ints> ViewStrides(shape::Env& env, const TensorMeta& m, const shape::Ints& sizes);

}  // namespace framejit::surface
