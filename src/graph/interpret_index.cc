// This file computes indexing and views. Reads and views move bytes, so they work for every dtype. The modes of scatter
// compute.
#include <algorithm>
#include <cstring>

#include "graph/interpret.h"

namespace framejit::interpret {
namespace {

// A row-major tensor seen as [outer, sizes[axis], inner].
struct Split {
  int64_t outer = 1, length = 1, inner = 1;
  Split(const Sizes& sizes, int64_t axis) {
    for (int64_t d = 0; d < std::ssize(sizes); ++d) (d < axis ? outer : d == axis ? length : inner) *= sizes[d];
  }
};

int64_t Clamp(int64_t index, int64_t length) {
  return std::clamp<int64_t>(index, 0, length - 1);
}

void RequireData(int64_t length, const HostTensor& out) {
  if (length == 0 && Count(out.sizes) > 0) throw std::runtime_error("indexing into an empty axis");
}

// Gives for every element of `index` the offset of the element of `data` at the same coordinates, but 0 on the axis.
std::vector<int64_t> BaseOffsets(const HostTensor& data, const HostTensor& index, int64_t axis) {
  HostTensor map = index;
  map.offset = 0;
  map.strides = RowMajor(data.sizes);
  map.strides[axis] = 0;
  std::vector<int64_t> base;
  ForEachOffset(map, [&](int64_t offset) { base.push_back(offset); });
  return base;
}

HostTensor Pad(const Node& n, const HostTensor& x, const Sizes& syms) {
  int rank = static_cast<int>(x.sizes.size());
  Sizes sizes = x.sizes;
  for (int d = 0; d < rank; ++d) sizes[d] += syms[2 * d] + syms[2 * d + 1];
  HostTensor out = Filled(x.dtype, sizes, n.attrs.scalar);
  HostTensor from = x, to = out;  // Both are narrowed to the part that they have in common.
  for (int d = 0; d < rank; ++d) {
    int64_t lo = syms[2 * d], begin = std::max<int64_t>(0, -lo), end = std::min(x.sizes[d], sizes[d] - lo);
    from.sizes[d] = to.sizes[d] = std::max<int64_t>(0, end - begin);
    from.offset += begin * from.strides[d];
    to.offset += (begin + lo) * to.strides[d];
  }
  std::vector<int64_t> target;
  ForEachOffset(to, [&](int64_t offset) { target.push_back(offset); });
  int64_t size = DTypeSize(x.dtype);
  size_t k = 0;
  ForEachOffset(from, [&](int64_t offset) {
    std::memcpy(out.storage->data() + target[k++] * size, from.storage->data() + offset * size, size);
  });
  return out;
}

HostTensor Cat(const Node& n, const std::vector<HostTensor>& in) {
  int64_t axis = n.attrs.axes.at(0), size = DTypeSize(in[0].dtype), at = 0;
  Sizes sizes = in[0].sizes;
  sizes[axis] = 0;
  for (const HostTensor& x : in) sizes[axis] += x.sizes.at(axis);
  HostTensor out = HostTensor::Empty(in[0].dtype, sizes);
  Split whole(sizes, axis);
  for (const HostTensor& operand : in) {
    HostTensor x = Contiguous(operand);
    Split part(x.sizes, axis);
    int64_t bytes = part.length * part.inner * size;
    for (int64_t o = 0; o < whole.outer && bytes > 0; ++o)
      std::memcpy(out.data() + (o * whole.length + at) * whole.inner * size, x.data() + o * bytes, bytes);
    at += part.length;
  }
  return out;
}

}  // namespace

HostTensor View(const Node& n, const std::vector<HostTensor>& in, const Sizes& syms) {
  HostTensor out = in.at(0);
  const std::vector<int64_t>& axes = n.attrs.axes;
  switch (n.op) {
    case Op::kBroadcast:
      out.sizes = syms;
      out.strides.assign(syms.size(), 0);
      for (size_t i = 0; i < axes.size(); ++i)
        if (in[0].sizes[i] != 1) {
          if (in[0].sizes[i] != syms[axes[i]]) throw std::runtime_error("broadcast: sizes differ");
          out.strides[axes[i]] = in[0].strides[i];
        }
      return out;
    case Op::kReshape:
      if (Count(syms) != Count(out.sizes)) throw std::runtime_error("reshape: element counts differ");
      out = Contiguous(out);
      out.sizes = syms;
      out.strides = RowMajor(syms);
      return out;
    case Op::kPermute:
      for (size_t i = 0; i < axes.size(); ++i) {
        out.sizes[i] = in[0].sizes[axes[i]];
        out.strides[i] = in[0].strides[axes[i]];
      }
      return out;
    case Op::kSlice: {
      int64_t axis = axes.at(0), start = syms[0], length = syms[1], step = syms[2];
      int64_t last = start + (length - 1) * step, size = in[0].sizes[axis];
      if (length > 0 && (std::min(start, last) < 0 || std::max(start, last) >= size))
        throw std::runtime_error("slice: outside of the operand");
      out.offset += length > 0 ? start * out.strides[axis] : 0;
      out.sizes[axis] = length;
      out.strides[axis] *= step;
      return out;
    }
    case Op::kFlip:
      for (int64_t a : axes) {
        if (out.sizes[a] > 0) out.offset += (out.sizes[a] - 1) * out.strides[a];
        out.strides[a] = -out.strides[a];
      }
      return out;
    case Op::kPad: return Pad(n, out, syms);
    default: return Cat(n, in);
  }
}

static void RequireInRange(const Lanes<int64_t>& indices, int64_t size) {
  for (int64_t i : indices) {
    if (i < 0 || i >= size) throw std::out_of_range("index out of range");
  }
}

HostTensor Take(const Node& n, const HostTensor& operand, const HostTensor& index) {
  HostTensor data = Contiguous(operand);
  int64_t axis = n.attrs.axes.at(0), size = DTypeSize(data.dtype);
  Lanes<int64_t> indices = LoadAll<int64_t>(index);
  Sizes sizes = data.sizes;
  sizes.erase(sizes.begin() + axis);
  sizes.insert(sizes.begin() + axis, index.sizes.begin(), index.sizes.end());
  HostTensor out = HostTensor::Empty(data.dtype, sizes);
  Split s(data.sizes, axis);
  RequireData(s.length, out);
  if (n.attrs.flag) RequireInRange(indices, s.length);
  std::byte* to = out.data();
  for (int64_t o = 0; o < s.outer; ++o) {
    for (int64_t i : indices) {
      std::memcpy(to, data.data() + (o * s.length + Clamp(i, s.length)) * s.inner * size, s.inner * size);
      to += s.inner * size;
    }
  }
  return out;
}

HostTensor Gather(const Node& n, const HostTensor& operand, const HostTensor& index) {
  HostTensor data = Contiguous(operand);
  int64_t axis = n.attrs.axes.at(0), size = DTypeSize(data.dtype), length = data.sizes.at(axis);
  Lanes<int64_t> indices = LoadAll<int64_t>(index);
  std::vector<int64_t> base = BaseOffsets(data, index, axis);
  HostTensor out = HostTensor::Empty(data.dtype, index.sizes);
  RequireData(length, out);
  if (n.attrs.flag) RequireInRange(indices, length);
  int64_t step = RowMajor(data.sizes)[axis];
  for (size_t k = 0; k < indices.size(); ++k)
    std::memcpy(out.data() + k * size, data.data() + (base[k] + Clamp(indices[k], length) * step) * size, size);
  return out;
}

HostTensor Scatter(const Node& n, const HostTensor& data, const HostTensor& index, const HostTensor& source) {
  if (index.sizes != source.sizes) throw std::runtime_error("scatter: index and source sizes differ");
  int64_t axis = n.attrs.axes.at(0), length = data.sizes.at(axis), step = RowMajor(data.sizes)[axis];
  Lanes<int64_t> indices = LoadAll<int64_t>(index);
  std::vector<int64_t> base = BaseOffsets(data, index, axis);
  const std::string& mode = n.attrs.name;
  Op op = mode == "add" ? Op::kAdd : mode == "mul" ? Op::kMul : mode == "max" ? Op::kMaximum : Op::kMinimum;
  return Visit(data.dtype, [&](auto tag) {
    using C = ComputeOf<decltype(tag)>;
    // Many 16-bit numbers may be added to one place, so they are summed in a wider type: none must get lost on the way.
    using A = std::conditional_t<std::is_floating_point_v<C>, double, C>;
    Lanes<A> out = LoadAll<A>(data);
    Lanes<A> values = LoadAll<A>(source);
    for (size_t k = 0; k < indices.size(); ++k) {
      if (indices[k] < 0 || indices[k] >= length) continue;
      auto& place = out[base[k] + indices[k] * step];
      place = mode == "set" ? values[k] : Binary<A>(op, place, values[k]);
    }
    return StoreAll(data.dtype, data.sizes, out);
  });
}

}  // namespace framejit::interpret
