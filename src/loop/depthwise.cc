#include "loop/depthwise.h"

#include <algorithm>
#include <map>

#include "rules/convolution.h"

namespace framejit::loop {
namespace {

constexpr int64_t kMostTaps = 25, kMostPixels = 2;

bool Known(const Ints& sizes, size_t from) {
  return std::all_of(sizes.begin() + from, sizes.end(), [](Int d) { return d.is_const(); });
}

// Builds a kernel that goes over the batch, the rows and the places in a row; its vectors lie along the channels.
class Depthwise {
 public:
  Depthwise(const Graph& g, ValueId conv, const std::vector<Layout>& layouts)
      : n_(g.nodes[conv]),
        conv_(conv),
        sizes_(g.nodes[n_.operands[0]].type.shape),
        filter_(g.nodes[n_.operands[1]].type.shape),
        at_(layouts[n_.operands[0]].strides),
        of_(layouts[n_.operands[1]].strides),
        to_(layouts[conv].strides) {}

  BuiltKernel Build() {
    Space();
    const int from = Buffer(n_.operands[0]), by = Buffer(n_.operands[1]);
    const int bias = n_.operands.size() > 2 ? Buffer(n_.operands[2]) : -1;
    std::vector<int> sums = Sums(from, by);
    const int extra = bias < 0 ? -1 : Load(bias, Along(Int(0)), -1);
    Stores(sums, extra);
    k_.contract = true;
    Stage stage;
    for (int v = 0; v < k_.insts.size(); ++v) stage.insts.push_back(v);
    k_.stages.push_back(std::move(stage));
    return std::move(built_);
  }

 private:
  void Space() {
    const Ints& out = n_.type.shape;
    while (out[3].value() % pixels_) --pixels_;
    k_.outer = {out[0], out[2], Int(out[3].value() / pixels_)};
    if (!out[0].is_const()) {
      k_.outer[0] = Int::Symbol(0);
      k_.num_symbols = 1;
      built_.symbols = {out[0]};
    }
    k_.inner = out[1];
  }

  int Buffer(ValueId v, bool written = false) {
    built_.buffers.push_back(v);
    k_.buffers.push_back({type_, written});
    return static_cast<int>(k_.buffers.size()) - 1;
  }
  int Add(Inst inst) {
    inst.index.outer.resize(3, Int(0));
    k_.insts.push_back(std::move(inst));
    return static_cast<int>(k_.insts.size()) - 1;
  }
  int Operation(Op o, DType type, std::vector<int> operands) {
    return Add({.kind = IKind::kOp, .op = o, .dtype = type, .operands = std::move(operands)});
  }
  static Index Along(Int offset) {
    Index index;
    index.offset = offset;
    index.inner = Int(1);
    return index;
  }
  int Load(int b, Index index, int predicate) {
    const int v =
        Add({.kind = IKind::kLoad, .dtype = type_, .buffer = b, .index = std::move(index), .predicate = predicate});
    return type_ == DType::kFloat32 ? v : Operation(Op::kCast, DType::kFloat32, {v});
  }

  // Along axis d (0: rows), what lies `first` before or behind the place of the thread: is it there for all threads
  // (-1), or under which condition?
  int Inside(int d, int64_t first) {
    const Int threads = k_.outer[1 + d];
    const int64_t step = stride_[d] * (d ? pixels_ : 1), last = first + step * (threads.value() - 1);
    const int64_t size = sizes_[2 + d].value();
    if (first >= 0 && last < size) return -1;
    Inst in{.kind = IKind::kInBounds, .dtype = DType::kBool, .sym = Int(size)};
    in.index.offset = Int(first);
    in.index.outer.assign(3, Int(0));
    in.index.outer[1 + d] = Int(step);
    return Add(std::move(in));
  }
  int Both(int a, int b) { return a < 0 ? b : b < 0 ? a : Operation(Op::kAnd, DType::kBool, {a, b}); }

  // Sums the taps of each pixel one by one. What two pixels read is loaded once.
  std::vector<int> Sums(int from, int by) {
    const int64_t *padding = stride_ + 2, *dilation = stride_ + 4;
    std::map<int64_t, int> columns;  // by place
    std::vector<int> sums(pixels_, -1);
    for (int64_t i = 0; i < filter_[2].value(); ++i) {
      const int64_t down = i * dilation[0] - padding[0];
      const int row = Inside(0, down);
      std::map<int64_t, int> values;
      for (int64_t j = 0; j < filter_[3].value(); ++j) {
        const int factor = Load(by, Along(Int(i) * of_[2] + Int(j) * of_[3]), -1);
        for (int64_t p = 0; p < pixels_; ++p) {
          const int64_t right = j * dilation[1] - padding[1] + p * stride_[1];
          if (!columns.contains(right)) columns[right] = Inside(1, right);
          if (!values.contains(right)) {
            Index tap = Along(Int(down) * at_[2] + Int(right) * at_[3]);
            tap.outer = {at_[0], Int(stride_[0]) * at_[2], Int(stride_[1] * pixels_) * at_[3]};
            values[right] = Load(from, tap, Both(row, columns[right]));
          }
          const int product = Operation(Op::kMul, DType::kFloat32, {values[right], factor});
          sums[p] = sums[p] < 0 ? product : Operation(Op::kAdd, DType::kFloat32, {sums[p], product});
        }
      }
    }
    return sums;
  }

  void Stores(const std::vector<int>& sums, int extra) {
    const int result = Buffer(conv_, true);
    for (int64_t p = 0; p < pixels_; ++p) {
      int sum = extra < 0 ? sums[p] : Operation(Op::kAdd, DType::kFloat32, {sums[p], extra});
      if (type_ != DType::kFloat32) sum = Operation(Op::kCast, type_, {sum});
      Inst store{.kind = IKind::kStore, .dtype = type_, .operands = {sum}, .buffer = result};
      store.index = Along(Int(p) * to_[3]);
      store.index.outer = {to_[0], to_[2], Int(pixels_) * to_[3]};
      Add(std::move(store));
    }
  }

  const Node& n_;
  const ValueId conv_;
  const Ints &sizes_, &filter_;  // what is read, and the weight
  const Ints &at_, &of_, &to_;   // strides: of what is read, the weight, the result
  const int64_t* const stride_ = n_.attrs.axes.data();
  const DType type_ = n_.type.dtype;
  int64_t pixels_ =
      kMostPixels;  // of a row, side by side, by one thread: they share filters and most of what they read
  BuiltKernel built_;
  Kernel& k_ = built_.kernel;
};

}  // namespace

bool HasDepthwiseKernel(const Graph& g, const Node& n) {
  if (n.attrs.flag || !rules::IsDepthwise(g, n)) return false;
  const DType t = n.type.dtype;
  if (t != DType::kFloat32 && t != DType::kBFloat16 && t != DType::kFloat16) return false;
  const Ints &x = g.nodes[n.operands[0]].type.shape, &w = g.nodes[n.operands[1]].type.shape;
  const Int batch = n.type.shape[0];
  return Known(x, 1) && Known(n.type.shape, 1) && (batch.is_const() || batch.as_symbol()) &&
         w[2].value() * w[3].value() <= kMostTaps;
}

Ints DepthwiseFilterStrides(const Ints& w) {
  return {Int(1), w[0], w[3] * w[0], w[0]};
}

std::optional<BuiltKernel> BuildDepthwise(const Graph& g, ValueId conv, const std::vector<Layout>& layouts) {
  const Node& n = g.nodes[conv];
  if (!HasDepthwiseKernel(g, n)) return std::nullopt;
  const ValueId x = n.operands[0], w = n.operands[1];
  for (ValueId v : {x, w, conv}) {
    if (layouts[v].strides.at(1 - (v == w)) != Int(1) || !Known(layouts[v].strides, 0)) return std::nullopt;
  }
  return Depthwise(g, conv, layouts).Build();
}

}  // namespace framejit::loop
