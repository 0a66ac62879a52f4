#include "loop/depthwise.h"

#include <algorithm>
#include <map>

namespace framejit::loop {
namespace {

constexpr int64_t kMostTaps = 25, kMostPixels = 2;

bool Known(const Ints& sizes, size_t from) {
  return std::all_of(sizes.begin() + from, sizes.end(), [](Int d) { return d.is_const(); });
}

}  // namespace

bool IsDepthwise(const Graph& g, const Node& n) {
  if (n.op != Op::kConv || n.attrs.flag || n.type.rank() != 4 || n.type.device.kind != DeviceKind::kCuda) return false;
  const DType t = n.type.dtype;
  if (t != DType::kFloat32 && t != DType::kBFloat16 && t != DType::kFloat16) return false;
  const Ints &x = g.nodes[n.operands[0]].type.shape, &w = g.nodes[n.operands[1]].type.shape;
  const Int batch = n.type.shape[0];
  if (!Known(x, 1) || !Known(w, 0) || !Known(n.type.shape, 1) || !(batch.is_const() || batch.as_symbol())) return false;
  return w[0] == x[1] && w[1] == Int(1) && x[1].value() > 1 && n.attrs.axes[8] == x[1].value() &&
         w[2].value() * w[3].value() <= kMostTaps;
}

Ints DepthwiseFilterStrides(const Ints& w) {
  return {Int(1), w[0], w[3] * w[0], w[0]};
}

std::optional<BuiltKernel> BuildDepthwise(const Graph& g, ValueId conv, const std::vector<Layout>& layouts) {
  const Node& n = g.nodes[conv];
  if (!IsDepthwise(g, n)) return std::nullopt;
  const ValueId x = n.operands[0], w = n.operands[1];
  const Ints &sizes = g.nodes[x].type.shape, &filter = g.nodes[w].type.shape, &out = n.type.shape;
  for (ValueId v : {x, w, conv}) {
    if (layouts[v].strides.at(1 - (v == w)) != Int(1) || !Known(layouts[v].strides, 0)) return std::nullopt;
  }
  const int64_t *stride = n.attrs.axes.data(), *padding = stride + 2, *dilation = stride + 4;
  const DType t = n.type.dtype;
  BuiltKernel built;
  Kernel& k = built.kernel;
  int64_t pixels = kMostPixels;  // of a row, side by side, by one thread: they share filters and most of what they read
  while (out[3].value() % pixels) --pixels;
  k.outer = {out[0], out[2], Int(out[3].value() / pixels)};
  if (!out[0].is_const()) {
    k.outer[0] = Int::Symbol(0);
    k.num_symbols = 1;
    built.symbols = {out[0]};
  }
  k.inner = out[1];
  auto buffer = [&](ValueId v, bool written = false) {
    built.buffers.push_back(v);
    k.buffers.push_back({t, written});
    return static_cast<int>(k.buffers.size()) - 1;
  };
  auto add = [&](Inst inst) {
    inst.index.outer.resize(3, Int(0));
    k.insts.push_back(std::move(inst));
    return static_cast<int>(k.insts.size()) - 1;
  };
  auto op = [&](Op o, DType type, std::vector<int> operands) {
    return add({.kind = IKind::kOp, .op = o, .dtype = type, .operands = std::move(operands)});
  };
  auto load = [&](int b, Index index, int predicate) {
    const int v =
        add({.kind = IKind::kLoad, .dtype = t, .buffer = b, .index = std::move(index), .predicate = predicate});
    return t == DType::kFloat32 ? v : op(Op::kCast, DType::kFloat32, {v});
  };
  const int from = buffer(x), by = buffer(w), bias = n.operands.size() > 2 ? buffer(n.operands[2]) : -1;
  // Along axis d (0: rows), what lies `first` before or behind the place of the thread: is it there for all threads?
  auto inside = [&](int d, int64_t first) {
    const Int threads = k.outer[1 + d];
    const int64_t step = stride[d] * (d ? pixels : 1), last = first + step * (threads.value() - 1);
    const int64_t size = sizes[2 + d].value();
    if (first >= 0 && last < size) return -1;
    Inst in{.kind = IKind::kInBounds, .dtype = DType::kBool, .sym = Int(size)};
    in.index.offset = Int(first);
    in.index.outer.assign(3, Int(0));
    in.index.outer[1 + d] = Int(step);
    return add(std::move(in));
  };
  auto both = [&](int a, int b) { return a < 0 ? b : b < 0 ? a : op(Op::kAnd, DType::kBool, {a, b}); };
  const Ints &at = layouts[x].strides, &of = layouts[w].strides, &to = layouts[conv].strides;
  std::map<int64_t, int> columns;  // by place
  std::vector<int> sums(pixels, -1);
  for (int64_t i = 0; i < filter[2].value(); ++i) {
    const int64_t down = i * dilation[0] - padding[0];
    const int row = inside(0, down);
    std::map<int64_t, int> values;
    for (int64_t j = 0; j < filter[3].value(); ++j) {
      Index weight;
      weight.offset = Int(i) * of[2] + Int(j) * of[3];
      weight.inner = Int(1);
      const int factor = load(by, weight, -1);
      for (int64_t p = 0; p < pixels; ++p) {
        const int64_t right = j * dilation[1] - padding[1] + p * stride[1];
        if (!columns.contains(right)) columns[right] = inside(1, right);
        if (!values.contains(right)) {
          Index tap;
          tap.offset = Int(down) * at[2] + Int(right) * at[3];
          tap.outer = {at[0], Int(stride[0]) * at[2], Int(stride[1] * pixels) * at[3]};
          tap.inner = Int(1);
          values[right] = load(from, tap, both(row, columns[right]));
        }
        const int product = op(Op::kMul, DType::kFloat32, {values[right], factor});
        sums[p] = sums[p] < 0 ? product : op(Op::kAdd, DType::kFloat32, {sums[p], product});
      }
    }
  }
  int extra = -1;
  if (bias >= 0) {
    Index each;
    each.inner = Int(1);
    extra = load(bias, each, -1);
  }
  const int result = buffer(conv, true);
  for (int64_t p = 0; p < pixels; ++p) {
    int sum = extra < 0 ? sums[p] : op(Op::kAdd, DType::kFloat32, {sums[p], extra});
    if (t != DType::kFloat32) sum = op(Op::kCast, t, {sum});
    Inst store{.kind = IKind::kStore, .dtype = t, .operands = {sum}, .buffer = result};
    store.index.offset = Int(p) * to[3];
    store.index.outer = {to[0], to[2], Int(pixels) * to[3]};
    store.index.inner = Int(1);
    add(std::move(store));
  }
  k.contract = true;
  Stage stage;
  for (int v = 0; v < k.insts.size(); ++v) stage.insts.push_back(v);
  k.stages.push_back(std::move(stage));
  return built;
}

}  // namespace framejit::loop
