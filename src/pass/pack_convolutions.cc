// Which convolutions: oneDNN's kernels for channels-last sum a long chain (input channels times window) in one go,
// those that eager uses on row-major data do not, so that large windows over many channels lose accuracy (measured: 3
// times eager's error for 3x3 over 64 channels, 9 times over 512; 1.7 times for 1x1 over 1,024; none for depthwise).
// Results must be at most twice as far from the truth as eager's; so the errors of all convolutions that lead to a
// result are estimated, as variances, and convolutions join, short chains first, while each result stays within a
// budget.
#include <algorithm>
#include <optional>
#include <string_view>

#include "graph/effects.h"
#include "graph/hints.h"
#include "graph/rewrite.h"
#include "pass/cse.h"
#include "pass/fixed.h"
#include "pass/weights.h"

namespace framejit::pass {
namespace {

using shape::Int;
using shape::Ints;

constexpr int64_t kEagerChain = 64;        // as far as eager's kernels for windows sum in one go
constexpr int64_t kEagerProducts = 384;    // those for 1x1, which are its library's matrix products
constexpr int64_t kPackedProducts = 1024;  // oneDNN's for 1x1
constexpr double kBudget = 0.8;            // of eager's own variance: 1.35 times its error
// A call of a packed convolution costs about 17 us more than one of the framework's other kernels (16 convolutions of a
// ResNet of 16 to 64 channels, one thread: 377 us packed, 100 us otherwise), which is what so many products take. Five
// vision models at 64 and 224 pixels take the same time with twice the number.
constexpr int64_t kCallProducts = 1 << 19;

Ints ChannelsLast(const Ints& s) {
  return {s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]};
}

// Framework calls whose results lie as their first operand does, and do not depend on how that lies.
bool FollowsLayout(const Node& n) {
  if (n.op != Op::kExtern || n.attrs.result_types.size() != 1 || n.operands.size() != 1 || n.type.rank() != 4)
    return false;
  return n.attrs.call->callee.Has(kLayoutFollows);
}

// Rows and channels-last are the same order then, and only strides of dimensions of 1 tell one from the other.
bool EitherWay(const Node& n) {
  const Ints& s = n.type.shape;
  return s[1] == Int(1) || (s[2] == Int(1) && s[3] == Int(1));
}

class Packer {
 public:
  Packer(Graph& g, const std::vector<bool>& weights) : g_(g), fixed_(FixedValues(g, weights)), hints_(Hints(g)) {}

  int Run() {
    FindReaders();
    Choose();
    if (std::find(chosen_.begin(), chosen_.end(), true) == chosen_.end()) return 0;
    Rewrite();
    FindReaders();
    chosen_known_ = true;
    return LayOut();
  }

 private:
  struct Fold {  // of the normalisation behind a convolution: y * scale + shift
    ValueId mul = kNoValue, add = kNoValue;
    ValueId scale = kNoValue, shift = kNoValue;  // of as many elements as there are channels
  };

  void FindReaders() {
    readers_.assign(g_.nodes.size(), {});
    promised_.assign(g_.nodes.size(), false);
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      for (ValueId o : g_.nodes[v].operands) readers_[o].push_back(v);
    }
    for (ValueId v : g_.outputs) promised_[v] = true;
    for (const Write& w : g_.writes) promised_[w.value] = true;
  }

  // Does something read v, or a view of it, that looks at how it lies?
  bool LayoutMatters(ValueId v) const {
    for (ValueId r : readers_[v]) {
      const Node& n = g_.nodes[r];
      const char kind = Info(n.op).kind;
      if (kind == 'X' && !FollowsLayout(n)) return true;
      if (kind == 'X' && EitherWay(n) && (promised_[r] || LayoutMatters(r))) return true;  // its strides would differ
      if (kind == 'M' && (n.op != Op::kConv || (chosen_known_ && !Packs(n)))) return true;
      const bool channels_inside = n.op == Op::kPermute && n.attrs.axes.back() == 1;
      if (kind == 'V' && n.op != Op::kCat && n.op != Op::kPad && !channels_inside && LayoutMatters(r)) return true;
    }
    return false;
  }

  bool Packs(const Node& conv) const { return g_.nodes[conv.operands[1]].op == Op::kPack; }

  bool Candidate(const Node& n, ValueId v) const {
    if (n.op != Op::kConv || n.attrs.flag || n.type.rank() != 4 || n.type.dtype != DType::kFloat32) return false;
    if (!fixed_[n.operands[1]]) return false;
    if (n.operands.size() > 2 && !fixed_[n.operands[2]]) return false;
    const TensorType& w = g_.nodes[n.operands[1]].type;
    const int64_t chain = w.numel().Eval(hints_) / std::max<int64_t>(1, w.shape[0].Eval(hints_));
    const bool depthwise = w.shape[1] == Int(1);  // The framework has no fast one besides.
    if (!depthwise && n.type.numel().Eval(hints_) * chain < kCallProducts) return false;
    const bool already = n.strides == ChannelsLast(n.type.shape);
    return already || (n.strides.empty() && !promised_[v] && !LayoutMatters(v));
  }

  // The error that a convolution adds, in its own unit: as far as one go sums, in eager and packed. Nothing of sizes
  // that change.
  struct Chains {
    double eager = 0, packed = 0;
  };
  Chains ChainsOf(const Node& n) const {
    const Ints& w = g_.nodes[n.operands[1]].type.shape;
    if (n.type.rank() != 4 || !w[1].is_const() || !w[2].is_const() || !w[3].is_const()) return {};
    const int64_t window = w[2].value() * w[3].value(), chain = w[1].value() * window;
    if (window > 1) return {static_cast<double>(std::min(chain, kEagerChain)), static_cast<double>(chain)};
    return {static_cast<double>(std::min(chain, kEagerProducts)),
            static_cast<double>(std::min(chain, kPackedProducts))};
  }

  // Are all results near enough? Errors of what is made of several values are those of one of them, on average.
  bool Near() const {
    std::vector<Chains> of(g_.nodes.size());
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& n = g_.nodes[v];
      const bool conv = n.op == Op::kConv;
      double from = 0;
      for (ValueId o : n.operands) from += of[o].eager > 0;
      for (ValueId o : n.operands) {
        if (from == 0) break;
        of[v].eager += of[o].eager / from;
        of[v].packed += of[o].packed / from;
      }
      if (!conv) continue;
      const Chains own = ChainsOf(n);
      of[v].eager += own.eager;
      of[v].packed += chosen_[v] && n.strides.empty() ? own.packed : own.eager;  // eager's data lies so, too
    }
    for (ValueId v = 0; v < g_.nodes.size(); ++v)
      if (promised_[v] && of[v].packed > (1 + kBudget) * of[v].eager) return false;
    return true;
  }

  void Choose() {
    chosen_.assign(g_.nodes.size(), false);
    struct Choice {
      double cost;
      ValueId v;
    };
    std::vector<Choice> choices;
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& n = g_.nodes[v];
      if (n.op != Op::kConv || ChainsOf(n).eager == 0 || !Candidate(n, v)) continue;
      choices.push_back({n.strides.empty() ? ChainsOf(n).packed - ChainsOf(n).eager : 0, v});
    }
    std::stable_sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) { return a.cost < b.cost; });
    for (const Choice& c : choices) {
      chosen_[c.v] = true;
      if (c.cost > 0 && !Near()) chosen_[c.v] = false;
    }
  }

  // Gives the vector of one number a channel that v repeats over [N, C, H, W], as any shape of C elements.
  ValueId PerChannel(ValueId v, Int channels) const {
    const Node& n = g_.nodes[v];
    if (n.op != Op::kBroadcast || n.type.rank() != 4) return kNoValue;
    const Ints& from = g_.nodes[n.operands[0]].type.shape;
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] != Int(1) && n.attrs.axes[i] != 1) return kNoValue;
    }
    const bool whole = g_.nodes[n.operands[0]].type.numel() == channels;
    return whole && fixed_[n.operands[0]] ? n.operands[0] : kNoValue;
  }

  // The only reader of v if it is `op` with a per-channel vector.
  ValueId Next(ValueId v, Op op, ValueId* vector) const {
    if (promised_[v] || readers_[v].size() != 1) return kNoValue;
    const ValueId r = readers_[v][0];
    const Node& n = g_.nodes[r];
    if (n.op != op || !n.strides.empty()) return kNoValue;
    const ValueId other = n.operands[0] == v ? n.operands[1] : n.operands[0];
    *vector = other == v ? kNoValue : PerChannel(other, g_.nodes[v].type.shape[1]);
    return *vector == kNoValue ? kNoValue : r;
  }

  std::optional<Fold> FindFold(ValueId conv) const {
    Fold f;
    if (!g_.nodes[conv].strides.empty()) return std::nullopt;
    f.mul = Next(conv, Op::kMul, &f.scale);
    if (f.mul == kNoValue) return std::nullopt;
    f.add = Next(f.mul, Op::kAdd, &f.shift);
    if (f.add == kNoValue || promised_[f.add] || LayoutMatters(f.add)) return std::nullopt;
    return f;
  }

  ValueId Make(Rewriter& r, Op op, std::vector<ValueId> operands, TensorType type, const Node& like, Attrs attrs = {}) {
    Node n;
    n.op = op;
    n.operands = std::move(operands);
    n.attrs = std::move(attrs);
    n.type = std::move(type);
    n.file = like.file;
    n.line = like.line;
    return r.Append(std::move(n));
  }
  ValueId Reshaped(Rewriter& r, ValueId v, Ints shape, const Node& like) {
    if (r.node(v).type.shape == shape) return v;
    TensorType type = r.node(v).type;
    type.shape = shape;
    Attrs attrs;
    attrs.syms = std::move(shape);
    return Make(r, Op::kReshape, {v}, type, like, attrs);
  }

  void Rewrite() {
    std::vector<int> end_of(g_.nodes.size(), -1);  // value -> the convolution whose fold ends there
    std::vector<bool> skipped(g_.nodes.size(), false);
    std::vector<std::optional<Fold>> folds(g_.nodes.size());
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      if (!chosen_[v]) continue;
      folds[v] = FindFold(v);
      end_of[folds[v] ? folds[v]->add : v] = static_cast<int>(v);
      if (folds[v]) skipped[v] = skipped[folds[v]->mul] = true;
    }
    Rewriter r(g_);
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      if (end_of[v] >= 0) {
        r.Set(v, Packed(r, end_of[v], folds[end_of[v]]));
      } else if (!skipped[v]) {
        r.Keep(v);
      }
    }
    r.Finish();
  }

  ValueId Packed(Rewriter& r, ValueId conv, const std::optional<Fold>& fold) {
    const Node& n = g_.nodes[conv];
    const TensorType weight = g_.nodes[n.operands[1]].type, vector{n.type.dtype, {weight.shape[0]}, n.type.device};
    const Int channels = weight.shape[0];
    ValueId w = r[n.operands[1]], bias = n.operands.size() > 2 ? r[n.operands[2]] : kNoValue;
    if (fold) {
      Attrs spread;
      spread.axes = {0, 1, 2, 3};
      spread.syms = weight.shape;
      const ValueId column = Reshaped(r, r[fold->scale], {channels, 1, 1, 1}, n);
      w = Make(r, Op::kMul, {w, Make(r, Op::kBroadcast, {column}, weight, n, spread)}, weight, n);
      const ValueId shift = Reshaped(r, r[fold->shift], {channels}, n);
      if (bias != kNoValue) bias = Make(r, Op::kMul, {bias, Reshaped(r, r[fold->scale], {channels}, n)}, vector, n);
      bias = bias == kNoValue ? shift : Make(r, Op::kAdd, {bias, shift}, vector, n);
    }
    Attrs form;
    form.name = "conv";
    form.axes = n.attrs.axes;
    for (Int d : g_.nodes[n.operands[0]].type.shape) form.axes.push_back(d.Eval(hints_));
    std::vector<ValueId> operands = {r[n.operands[0]], Make(r, Op::kPack, {w}, weight, n, form)};
    if (bias != kNoValue) operands.push_back(bias);
    const ValueId v = Make(r, Op::kConv, operands, n.type, n, n.attrs);
    made_.push_back(v);
    return v;
  }

  // Values behind the packed convolutions lie as those do, as far as nobody minds and a kernel makes them anyway.
  int LayOut() {
    std::vector<bool> last(g_.nodes.size(), false);
    std::vector<Ints> strides(g_.nodes.size());
    for (ValueId v : made_) last[v] = !g_.nodes[v].strides.empty() || !LayoutMatters(v);
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      Node& n = g_.nodes[v];
      if (n.type.rank() != 4) continue;
      const auto& ops = n.operands;
      auto lies_so = [&](ValueId o) { return last[o]; };
      const bool pool = FollowsLayout(n) && last[ops[0]] && !promised_[v] && !LayoutMatters(v);
      const bool free = n.strides.empty() && !promised_[v] && !LayoutMatters(v);
      if (Info(n.op).kind == 'P')
        last[v] = free && std::any_of(ops.begin(), ops.end(), lies_so);
      else if (n.op == Op::kCat && n.attrs.axes[0] == 1)
        last[v] = free && std::all_of(ops.begin(), ops.end(), lies_so);
      else
        last[v] = last[v] || pool;
      if (last[v]) n.strides = ChannelsLast(n.type.shape);
    }
    return static_cast<int>(made_.size());
  }

  Graph& g_;
  const std::vector<bool> fixed_;
  const std::vector<int64_t> hints_;
  std::vector<std::vector<ValueId>> readers_;
  std::vector<bool> promised_;  // an output, or written to an input: its layout is not ours
  std::vector<bool> chosen_;
  bool chosen_known_ = false;  // convolutions that were not chosen read row-major data, as eager's do
  std::vector<ValueId> made_;
};

}  // namespace

int PackConvolutions(Graph& g, const std::vector<bool>& weights) {
  const int packed = Packer(g, weights).Run();
  if (packed) Cse(g);  // one packed form of a weight that is used twice: it cannot be copied
  return packed;
}

}  // namespace framejit::pass
