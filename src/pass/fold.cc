// One walk in execution order. Operands are simplified before their users, so a chain folds in one go. A value may only
// stand for another one if it does not lose a layout that was asked for (Node::strides).
#include "pass/fold.h"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>

#include "graph/raises.h"
#include "graph/rewrite.h"
#include "graph/views.h"
#include "loop/order.h"

namespace framejit::pass {
namespace {

bool IsConstant(const Node& n) {
  return n.op == Op::kConstant && !n.attrs.sym_scalar;
}

bool Computable(DType t) {
  return !IsComplex(t) && DTypeClass(t) != 'p' && !(IsFloat(t) && DTypeSize(t) == 1);
}

// The number a constant node holds in every element, as its dtype rounds it.
Scalar ReadElement(const HostTensor& t) {
  switch (DTypeClass(t.dtype)) {
    case 'b': return GetElement(t, 0) != 0;
    case 'f': return GetElement(t, 0);
    default: {  // a double does not hold every 64-bit integer
      int64_t v = 0;
      for (int i = DTypeSize(t.dtype); i-- > 0;) v = v << 8 | static_cast<uint8_t>(t.data()[i]);
      int unused = 64 - 8 * DTypeSize(t.dtype);
      if (IsSigned(t.dtype)) v = static_cast<int64_t>(static_cast<uint64_t>(v) << unused) >> unused;
      return v;
    }
  }
}

// The node evaluated on constants by the reference interpreter: pointwise, so one element tells all.
std::optional<Scalar> Evaluate(const Rewriter& r, const Node& n) {
  Graph g;
  if (!Computable(n.type.dtype)) return std::nullopt;
  Node scalar = n;
  scalar.type.shape.clear();
  scalar.strides.clear();
  for (ValueId& o : scalar.operands) {
    if (!Computable(r.node(o).type.dtype)) return std::nullopt;
    g.nodes.push_back(r.node(o));
    g.nodes.back().type.shape.clear();
    g.nodes.back().attrs.syms.clear();
    g.nodes.back().strides.clear();
    o = static_cast<ValueId>(g.nodes.size() - 1);
  }
  g.outputs.push_back(static_cast<ValueId>(g.nodes.size()));
  g.nodes.push_back(std::move(scalar));
  std::feclearexcept(FE_ALL_EXCEPT);
  Scalar value = ReadElement(Interpret(g, {})[0]);
  // What raises an IEEE exception does so at run time, where NumPy's users hear of it.
  if (std::fetestexcept(FE_DIVBYZERO | FE_OVERFLOW | FE_INVALID)) return std::nullopt;
  return value;
}

void BecomeConstant(Node& n, Scalar value) {
  n.op = Op::kConstant;
  n.operands.clear();
  n.attrs = {};
  n.attrs.scalar = value;
  n.attrs.dtype = n.type.dtype;
  n.attrs.syms = n.type.shape;
}

// Does every value of `from` survive a trip through `to`?
bool Lossless(DType from, DType to) {
  if (from == to || from == DType::kBool) return Computable(to);
  if (!Computable(from) || !Computable(to) || to == DType::kBool) return false;
  auto mantissa = [](DType t) {
    return t == DType::kFloat64 ? 53 : t == DType::kFloat32 ? 24 : t == DType::kFloat16 ? 11 : 8;
  };
  int from_bits = 8 * DTypeSize(from), to_bits = 8 * DTypeSize(to);
  if (IsFloat(from)) return IsFloat(to) && to_bits > from_bits;  // both 16-bit formats widen into f32
  if (IsFloat(to)) {
    bool in_range = to != DType::kFloat16 || from_bits <= 8;
    return in_range && from_bits - IsSigned(from) <= mantissa(to);
  }
  if (IsSigned(from)) return IsSigned(to) && to_bits > from_bits;
  return to_bits > from_bits;
}

class Folder {
 public:
  explicit Folder(Graph& g) : g_(g), r_(g) {}

  int Run() {
    Node n;
    NoteSeen();
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      if (!MayFold(g_.nodes[v])) {
        r_.Keep(v);
        continue;
      }
      at_ = v;
      r_.Remap(v, &n);
      ValueId same = kNoValue;
      const int count = count_;
      for (int round = 0; round < 8; ++round) {  // a rewritten node may fold again
        changed_ = false;
        same = Simplify(n);
        if (same != kNoValue || changed_) ++count_;
        if (same != kNoValue || !changed_) break;
      }
      if (count == count_) {
        r_.Keep(v);
      } else {
        r_.Set(v, same != kNoValue && !HandsOver(v, same) ? same : r_.Append(n));
      }
    }
    r_.Finish();
    return count_;
  }

 private:
  // Does the program compute its result `v`, and would it get `by` instead, a result of the framework's own? That may
  // be one that cannot be written (NumPy's `imag` of integers).
  bool HandsOver(ValueId v, ValueId by) const {
    const auto own = [](const Node& n) { return n.op == Op::kExtern || n.op == Op::kResult; };
    if (!own(r_.node(by)) || std::find(g_.outputs.begin(), g_.outputs.end(), v) == g_.outputs.end()) return false;
    while (g_.nodes[v].op == Op::kCast || Info(g_.nodes[v].op).kind == 'V') v = g_.nodes[v].operands[0];
    return !own(g_.nodes[v]);
  }

  void NoteSeen() {
    seen_.resize(g_.nodes.size());
    for (ValueId v = static_cast<ValueId>(g_.nodes.size()); v-- > 0;) {
      const Node& n = g_.nodes[v];
      if (n.op == Op::kExtern || (seen_[v] && Info(n.op).kind == 'V'))
        for (ValueId o : n.operands) seen_[o] = true;
    }
  }

  const Node& In(const Node& n, int i) const { return r_.node(n.operands[i]); }

  // Does a call that sees `n`, itself or through views, see strides that `by` has not?
  bool LiesElse(const Node& n, const Node& by) const {
    if (!seen_[at_] || !n.strides.empty() || Info(n.op).kind == 'V') return false;
    return Info(by.op).kind == 'V' || !(by.strides.empty() || IsRowMajor(by.type.shape, by.strides));
  }

  // The value that may stand for `n`, if its layout and place allow it.
  ValueId Use(const Node& n, ValueId v) const {
    const Node& by = r_.node(v);
    const bool same = by.type == n.type && (n.strides.empty() || n.strides == by.strides);
    return same && !LiesElse(n, by) ? v : kNoValue;
  }

  bool IsNumber(ValueId v, double value) const {
    const Node& n = r_.node(v);
    if (!IsConstant(n) || IsComplex(n.type.dtype)) return false;
    double x = n.attrs.scalar.AsDouble();
    return x == value && std::signbit(x) == std::signbit(value);
  }

  // May nobody compute `v`? Not if something that it is made of is noticed.
  bool Silent(ValueId v) {
    for (ValueId u = static_cast<ValueId>(silent_.size()); u <= v; ++u) {
      const Node& n = r_.node(u);
      const DType operand = n.operands.empty() ? DType::kBool : r_.node(n.operands[0]).type.dtype;
      silent_.push_back(!IsNoticed(n, operand, true) &&
                        std::all_of(n.operands.begin(), n.operands.end(), [&](ValueId o) { return silent_[o]; }));
    }
    return silent_[v];
  }

  ValueId ToConstant(Node& n, Scalar value) {
    BecomeConstant(n, value);
    changed_ = true;
    return kNoValue;
  }

  static bool MayFold(const Node& n) {
    const char kind = Info(n.op).kind;
    return kind == 'P' || kind == 'V' || kind == 'R';
  }
  ValueId Simplify(Node& n) {
    switch (Info(n.op).kind) {
      case 'P': return FoldPointwise(n);
      case 'V': return FoldView(n);
      case 'R': return CopyForNumpy(n);
      default: return kNoValue;
    }
  }

  ValueId FoldPointwise(Node& n) {
    if (n.op == Op::kCast && n.attrs.name == loop::kNumpys) RoundOnce(n);
    bool constant = true;
    for (ValueId o : n.operands) constant &= IsConstant(r_.node(o));
    if (constant) {
      if (std::optional<Scalar> v = Evaluate(r_, n)) return ToConstant(n, *v);
      return kNoValue;
    }
    if (n.op == Op::kCast) return FoldCast(n);
    if (n.op == Op::kWhere) {
      if (n.operands[1] == n.operands[2]) return Use(n, n.operands[1]);
      if (IsConstant(In(n, 0))) return Use(n, n.operands[In(n, 0).attrs.scalar.AsDouble() != 0 ? 1 : 2]);
      return kNoValue;
    }
    if (n.operands.size() == 1) {
      const Node& in = In(n, 0);
      bool twice = in.op == n.op && (n.op == Op::kNeg || n.op == Op::kNot);
      if (twice) return Use(n, in.operands[0]);
      if (n.op == Op::kAbs && in.op == Op::kAbs) return Use(n, n.operands[0]);
      return kNoValue;
    }
    return FoldBinary(n);
  }

  // Identities that hold for every bit pattern of x (which nan comes out is nobody's promise).
  ValueId FoldBinary(Node& n) {
    ValueId x = n.operands[0], c = n.operands[1];
    const DType t = r_.node(x).type.dtype;
    if (IsComplex(t)) return kNoValue;  // 0 times what is infinite takes part in their products
    const bool integer = IsInteger(t), is_float = IsFloat(t), is_bool = IsBool(t);
    const double all_ones = is_bool ? 1 : -1;
    bool commutes = n.op == Op::kAdd || n.op == Op::kMul || n.op == Op::kAnd || n.op == Op::kOr || n.op == Op::kXor;
    if (commutes && IsConstant(r_.node(x))) std::swap(x, c);
    switch (n.op) {
      case Op::kAdd:
        if (IsNumber(c, is_float ? -0.0 : 0.0)) return Use(n, x);
        break;
      case Op::kSub:
        if (IsNumber(c, 0.0)) return Use(n, x);
        break;
      case Op::kMul:
        if (IsNumber(c, 1)) return Use(n, x);
        if (!is_float && IsNumber(c, 0) && Silent(x)) return Use(n, c);
        break;
      case Op::kDiv:
        if (IsNumber(c, 1)) return Use(n, x);
        return DivideByPowerOfTwo(n, c);
      case Op::kFloorDiv:
      case Op::kTruncDiv:
        if (integer && IsNumber(c, 1)) return Use(n, x);
        break;
      case Op::kPow:
        if (IsNumber(c, 1)) return Use(n, x);
        break;
      case Op::kMaximum:
      case Op::kMinimum:
        if (x == c) return Use(n, x);
        break;
      case Op::kAnd:
        if (x == c || (IsNumber(c, all_ones) && !(DTypeClass(t) == 'u'))) return Use(n, x);
        if (IsNumber(c, 0) && Silent(x)) return Use(n, c);
        break;
      case Op::kOr:
        if (x == c || IsNumber(c, 0)) return Use(n, x);
        if (IsNumber(c, all_ones) && !(DTypeClass(t) == 'u') && Silent(x)) return Use(n, c);
        break;
      case Op::kXor:
      case Op::kShl:
      case Op::kShr:
        if (IsNumber(c, 0)) return Use(n, x);
        break;
      default: break;
    }
    return kNoValue;
  }

  // x / 2^k rounds exactly as x * 2^-k does, and multiplying is several times cheaper.
  ValueId DivideByPowerOfTwo(Node& n, ValueId c) {
    const Node& divisor = r_.node(c);
    if (!IsConstant(divisor) || !IsFloat(n.type.dtype)) return kNoValue;
    int exponent = 0;
    double value = divisor.attrs.scalar.AsDouble();
    if (std::abs(std::frexp(value, &exponent)) != 0.5 || std::abs(exponent) > 14) return kNoValue;
    Node reciprocal = divisor;
    reciprocal.attrs.scalar = 1 / value;
    n.op = Op::kMul;
    n.operands[1] = r_.Append(std::move(reciprocal));
    changed_ = true;
    return kNoValue;
  }

  // A cast of float64 to half precision goes through float32. It rounds once if that has the last bit set wherever bits
  // are lost: they are in the last bit that float32 keeps, then.
  void RoundOnce(Node& n) {
    n.attrs.name.clear();
    changed_ = true;
    const Node& x = In(n, 0);
    if (x.type.dtype != DType::kFloat64) return;
    static constexpr int64_t kLost = (int64_t{1} << 29) - 1;
    if (IsConstant(x)) {
      Node constant = x;
      const auto bits = std::bit_cast<int64_t>(x.attrs.scalar.AsDouble());
      constant.attrs.scalar = std::bit_cast<double>((((bits & kLost) + kLost) | bits) & ~kLost);
      n.operands[0] = r_.Append(std::move(constant));
      return;
    }
    const auto made = [&](Op op, DType t, std::vector<ValueId> operands) {
      Node node = n;
      node.op = op;
      node.operands = std::move(operands);
      node.type.dtype = t;
      node.attrs = {};
      if (op == Op::kBitcast) node.attrs.dtype = t;
      node.strides.clear();
      return r_.Append(std::move(node));
    };
    const auto number = [&](int64_t value) {
      Node node = n;
      node.type.dtype = DType::kInt64;
      node.strides.clear();
      BecomeConstant(node, value);
      return r_.Append(std::move(node));
    };
    const auto integer = [&](Op op, ValueId a, ValueId b) { return made(op, DType::kInt64, {a, b}); };
    const ValueId bits = made(Op::kBitcast, DType::kInt64, {n.operands[0]}), lost = number(kLost);
    const ValueId some = integer(Op::kAdd, integer(Op::kAnd, bits, lost), lost);
    const ValueId odd = integer(Op::kAnd, integer(Op::kOr, some, bits), number(~kLost));
    n.operands[0] = made(Op::kBitcast, DType::kFloat64, {odd});
  }

  ValueId FoldCast(Node& n) {
    const Node& in = In(n, 0);
    if (in.type.dtype == n.type.dtype) {
      // What is promised of a view holds for a result alone: calls see it as it lies in what it views.
      if (Info(in.op).kind == 'V' && !n.strides.empty()) return kNoValue;
      // A product is written row-major anyhow.
      const bool product = (in.op == Op::kMatMul || in.op == Op::kLinear) && in.strides.empty();
      return product && n.strides == RowMajor(n.type.shape) ? n.operands[0] : Use(n, n.operands[0]);
    }
    if (in.op != Op::kCast || !Lossless(r_.node(in.operands[0]).type.dtype, in.type.dtype)) return kNoValue;
    n.operands[0] = in.operands[0];
    changed_ = true;
    return kNoValue;
  }

  // NumPy sums a copy, whose order is its own. What was left out of that lies otherwise.
  ValueId CopyForNumpy(Node& n) {
    const Node& in = In(n, 0);
    if (!loop::IsNumpys(n) || in.strides.empty() || IsRowMajor(in.type.shape, in.strides)) return kNoValue;
    Node copy = in;
    copy.op = Op::kCast;
    copy.operands = {n.operands[0]};
    copy.attrs = {};
    copy.attrs.dtype = in.type.dtype;
    copy.strides.clear();
    n.operands[0] = r_.Append(std::move(copy));
    changed_ = true;
    return kNoValue;
  }

  // Each element of it looks for its own operand among all: of so many, some are put together first.
  void CatInParts(Node& n) {
    constexpr size_t kMost = 64, kPart = 16;
    while (n.operands.size() > kMost) {
      std::vector<ValueId> parts;
      for (size_t i = 0; i < n.operands.size(); i += kPart) {
        Node part = n;
        part.strides.clear();
        part.operands = {n.operands.begin() + static_cast<ptrdiff_t>(i),
                         n.operands.begin() + static_cast<ptrdiff_t>(std::min(i + kPart, n.operands.size()))};
        shape::Int size = 0;
        for (ValueId o : part.operands) size = size + r_.node(o).type.shape[n.attrs.axes[0]];
        part.type.shape.Set(n.attrs.axes[0], size);
        parts.push_back(part.operands.size() == 1 ? part.operands[0] : r_.Append(std::move(part)));
      }
      n.operands = std::move(parts);
      changed_ = true;
    }
  }

  ValueId FoldView(Node& n) {
    const Node& in = In(n, 0);
    std::vector<int64_t>& axes = n.attrs.axes;
    if (n.op == Op::kCat) {
      CatInParts(n);
      return n.operands.size() == 1 ? Use(n, n.operands[0]) : kNoValue;
    }
    if (n.op == Op::kPad) {
      bool nothing =
          std::all_of(n.attrs.syms.begin(), n.attrs.syms.end(), [](shape::Int i) { return i == shape::Int(0); });
      return nothing ? Use(n, n.operands[0]) : kNoValue;
    }
    if (in.op == Op::kConstant) {  // the same number everywhere, of another shape
      Node constant = in;
      constant.type = n.type;
      constant.attrs.syms = n.type.shape;
      constant.strides = n.strides;
      constant.file = n.file;
      constant.line = n.line;
      n = std::move(constant);
      changed_ = true;
      return kNoValue;
    }
    if (n.op == Op::kReshape && in.type.shape == n.type.shape) return Use(n, n.operands[0]);
    bool in_order = true;
    for (size_t i = 0; i < axes.size(); ++i) in_order &= axes[i] == i;
    if (n.op == Op::kPermute && in_order) return Use(n, n.operands[0]);
    if (n.op == Op::kBroadcast && in_order && in.type.shape == n.type.shape) return Use(n, n.operands[0]);
    if (n.op == Op::kFlip && axes.empty()) return Use(n, n.operands[0]);
    if (n.op == Op::kReshape && seen_[at_]) return kNoValue;  // the other may be what copies it
    if (in.op != n.op || (n.op != Op::kReshape && n.op != Op::kPermute && n.op != Op::kBroadcast)) return kNoValue;
    if (n.op == Op::kPermute) {
      for (int64_t& a : axes) a = in.attrs.axes[a];
    } else if (n.op == Op::kBroadcast) {
      std::vector<int64_t> through;
      for (int64_t a : in.attrs.axes) through.push_back(axes[a]);
      axes = std::move(through);
    }
    n.operands[0] = in.operands[0];
    changed_ = true;
    return kNoValue;
  }

  Graph& g_;
  Rewriter r_;
  ValueId at_ = 0;  // the node that is folded
  int count_ = 0;
  std::vector<bool> seen_;    // by node, by a call
  std::vector<bool> silent_;  // by value of r_, as far as somebody has asked
  bool changed_ = false;
};

}  // namespace

int Fold(Graph& g) {
  return Folder(g).Run();
}

}  // namespace framejit::pass
