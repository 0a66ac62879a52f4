// This file has the derivative of every primitive, one row each. A primitive without a row is not differentiable here.
// One that passes zeros (floor, sign) says so, since zeros are not nothing. Formulas are the framework's own where
// there is a choice.
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "autodiff/tape.h"

namespace framejit::autodiff {
namespace {

using rules::Apply;
using rules::Expr;
using rules::Where;
using shape::Int;
using shape::Ints;

Expr Square(Expr x) {
  return x * x;
}
Expr OneMinus(Expr x) {
  return x.Number(1) - x;
}
void Zero(At& t) {
  for (size_t i = 0; i < t.operands.size(); ++i) t.Give(i, t.Zeros(t.g));
}

void Pow(
    At& t) {  // 0 where the exponent is 0; with respect to the exponent 0 where 0 is raised to something not negative
  Expr x = t.in(0), e = t.in(1), zero = t.Zeros(t.g);
  if (t.needs(0)) {
    Expr none = Apply(Op::kEq, e, zero);
    t.Give(0, Where(none, zero, t.g * e * Apply(Op::kPow, x, e - e.Number(1))));
  }
  if (t.needs(1)) {
    Expr none = Apply(Op::kAnd, Apply(Op::kEq, x, zero), Le(zero, e));
    t.Give(1, t.g * Where(none, zero, t.y * Apply(Op::kLog, x)));
  }
}

// Is v seen outside, where it may be written before the backward pass?
bool Leaves(const Graph& g, ValueId v) {
  for (;; v = g.node(v).operands[0]) {
    const Op op = g.node(v).op;
    if (op == Op::kInput || std::find(g.outputs.begin(), g.outputs.end(), v) != g.outputs.end()) return true;
    if (op != Op::kReshape && op != Op::kPermute && op != Op::kBroadcast && op != Op::kSlice) return false;
  }
}

// 1 - y^2, as the framework has it, where y may be written, or x, which it does not keep; else without the cancellation
// where y is nearly 1: 4 e / (1 + e)^2.
void Tanh(At& t) {
  if (Leaves(t.b.graph(), t.operands[0]) || Leaves(t.b.graph(), t.id)) return t.Give(0, t.g * (t.y * t.y * -1 + 1));
  Expr e = Apply(Op::kExp, Apply(Op::kAbs, t.in(0)) * -2), slope = e * 4 / Square(e + 1);
  t.b.SetDerivative(slope, {"tanh_slope", {t.operands[0], t.id}, {}, {}});
  t.Give(0, t.g * slope);
}

void Atan2(At& t) {  // zeros at the origin
  Expr x = t.in(0), y = t.in(1), zero = t.Zeros(t.g), square = Square(x) + Square(y);
  Expr r = Where(Apply(Op::kEq, square, zero), zero, Apply(Op::kReciprocal, square));
  t.Give(0, t.g * y * r);
  t.Give(1, t.g * -x * r);
}

void Extreme(At& t) {  // maximum, minimum: halves where both are equal
  Expr x = t.in(0), y = t.in(1), zero = t.Zeros(t.g);
  Expr share = Where(Apply(Op::kEq, x, y), t.g / 2, t.g);
  Expr less = Apply(Op::kLt, x, y), more = Apply(Op::kLt, y, x);
  bool max = t.n.op == Op::kMaximum;
  t.Give(0, Where(max ? less : more, zero, share));
  t.Give(1, Where(max ? more : less, zero, share));
}

void Broadcast(At& t) {
  const TensorType in = t.type(0);
  const std::vector<int64_t>& axes = t.n.attrs.axes;
  if (!std::is_sorted(axes.begin(), axes.end())) throw Undifferentiable("a broadcast that reorders dimensions");
  std::vector<int64_t> over;
  for (int64_t d = 0; d < t.n.type.rank(); ++d) {
    auto at = std::find(axes.begin(), axes.end(), d);
    bool stretched = at != axes.end() && in.shape[at - axes.begin()] == Int(1) && !(t.n.type.shape[d] == Int(1));
    if (at == axes.end() || stretched) over.push_back(d);
  }
  ValueId sum = rules::Sum(t.b, t.g, over, false, in.dtype);
  t.Give(0, t.b.Reshape(sum, in.shape));
}

void Permute(At& t) {
  std::vector<int64_t> inverse(t.n.attrs.axes.size());
  for (size_t i = 0; i < inverse.size(); ++i) inverse[t.n.attrs.axes[i]] = static_cast<int64_t>(i);
  t.Give(0, t.b.Permute(t.g, inverse));
}

ValueId PadAxis(Builder& b, ValueId v, int axis, Int lo, Int hi) {
  Attrs attrs;
  attrs.scalar = 0;
  Ints padding(2 * b.type(v).rank());
  padding[2 * axis] = lo;
  padding[2 * axis + 1] = hi;
  attrs.syms = padding;
  return b.Add(Op::kPad, {v}, attrs);
}

void Slice(At& t) {
  int axis = static_cast<int>(t.n.attrs.axes[0]);
  Int start = t.n.attrs.syms[0], length = t.n.attrs.syms[1], step = t.n.attrs.syms[2], size = t.type(0).shape[axis];
  ValueId g = t.g;
  if (!(step == Int(1))) {  // every element with step - 1 zeros behind it
    Ints apart = t.n.type.shape, together = apart;
    apart.insert(apart.begin() + axis + 1, Int(1));
    together[axis] = length * step;
    g = t.b.Reshape(PadAxis(t.b, t.b.Reshape(g, apart), axis + 1, 0, step - Int(1)), together);
  }
  t.Give(0, PadAxis(t.b, g, axis, start, size - start - length * step));
}

void Pad(At& t) {
  Attrs attrs = t.n.attrs;
  attrs.scalar = 0;
  Ints padding = attrs.syms;
  for (Int& s : padding) s = -s;
  attrs.syms = padding;
  t.Give(0, t.b.Add(Op::kPad, {t.g}, attrs));
}

void Cat(At& t) {
  int axis = static_cast<int>(t.n.attrs.axes[0]);
  Int at = 0;
  for (size_t i = 0; i < t.operands.size(); ++i) {
    Int size = t.type(i).shape[axis];
    if (t.needs(i)) t.Give(i, t.b.Slice(t.g, axis, at, size));
    at = at + size;
  }
}

void Take(At& t) {
  if (!t.needs(0)) return;
  const int64_t axis = t.n.attrs.axes[0];
  const Int count = t.type(1).numel();
  Ints shape = t.type(0).shape;
  shape[axis] = count;
  ValueId index = t.b.Reshape(t.operands[1], {count});
  t.Give(0, ScatterAdd(t.b, "take", t.type(0), index, t.b.Reshape(t.g, shape), axis));
}

void Gather(At& t) {
  if (!t.needs(0)) return;
  int axis = static_cast<int>(t.n.attrs.axes[0]);
  const TensorType data = t.type(0), index = t.type(1);
  Ints others = data.shape;
  others[axis] = index.shape[axis];
  if (index.shape[axis] == Int(1) && others == index.shape) {  // one element a row: no scatter is needed
    Expr at{t.b, t.b.Broadcast(t.operands[1], data.shape)}, iota{t.b, t.b.Iota(DType::kInt64, data.shape, axis)};
    Expr g{t.b, t.b.Broadcast(t.g, data.shape)};
    t.Give(0, Where(Apply(Op::kEq, iota, at), g, t.Zeros(g)));
    return;
  }
  t.Give(0, ScatterAdd(t.b, "gather", data, t.operands[1], t.g, axis));
}

void Scatter(At& t) {
  Attrs gather;
  gather.axes = t.n.attrs.axes;
  if (t.n.attrs.name != "add" && t.n.attrs.name != "set") throw Undifferentiable("scatter by " + t.n.attrs.name);
  if (t.needs(2)) t.Give(2, t.b.Add(Op::kGather, {t.g, t.operands[1]}, gather));
  if (!t.needs(0)) return;
  if (t.n.attrs.name == "add") return t.Give(0, t.g);
  t.Give(0, t.b.Add(Op::kScatter, {t.g, t.operands[1], rules::Like(t.b, t.operands[2], 0)}, t.n.attrs));
}

void Sum(At& t) {
  t.Give(0, t.Spread(t.g, t.n.attrs.axes, t.type(0).shape));
}

// The product of the others: of a slice with one zero that is zero but for the zero's own. Where the tensor has no zero
// at all the framework divides the product by the element. It does not look for what is not finite among several zeros
// if the whole tensor is multiplied.
void Prod(At& t) {
  const Ints shape = t.type(0).shape;
  const std::vector<int64_t>& axes = t.n.attrs.axes;
  std::vector<int64_t> all(shape.size());
  std::iota(all.begin(), all.end(), 0);
  Expr x = t.in(0), none = x.Number(0), one = x.Number(1), nan = x.Number(std::numeric_limits<double>::quiet_NaN());
  auto over = [&](Op op, Expr v, const std::vector<int64_t>& of) {
    return t.Spread(t.b.Reduce(op, v, of, true), of, shape);
  };
  Expr zero = Apply(Op::kEq, x, none), odd = Apply(Op::kOr, Apply(Op::kIsInf, x), Apply(Op::kIsNan, x));
  Expr rest = Where(zero, one, x), product = over(Op::kProd, rest, axes);
  Expr finite = over(Op::kProd, Where(odd, one, rest), axes), is_odd = Where(odd, one, none);
  Expr zeros = over(Op::kSum, Where(zero, one, none), axes);
  Expr odd_others = Apply(Op::kLt, none, over(Op::kSum, is_odd, axes) - is_odd);
  Expr sign{t.b, rules::SignOrZero(t.b, x)};
  Expr others = Where(odd, Where(odd_others, product * sign, finite), product / rest);
  const Expr known = t.Moves(t.operands[0]) ? Expr{t.b, t.Spread(t.id, axes, shape)} : product;
  others = Where(Apply(Op::kEq, over(Op::kSum, Where(zero, one, none), all), none), known / rest, others);
  Expr nothing = Where(odd_others, nan, none), several = axes.size() == shape.size() ? none : nothing;
  Expr alone = Where(Apply(Op::kEq, zeros, one), Where(zero, product, nothing), several);
  t.Give(0, t.Spread(t.g, axes, shape) * Where(Apply(Op::kEq, zeros, none), others, alone));
}

void CumSum(At& t) {
  Attrs flip;
  flip.axes = t.n.attrs.axes;
  ValueId v = t.b.Add(Op::kCumSum, {t.b.Add(Op::kFlip, {t.g}, flip)}, t.n.attrs);
  t.Give(0, t.b.Add(Op::kFlip, {v}, flip));
}

ValueId Swap(Builder& b, ValueId v) {  // the last two dimensions
  std::vector<int64_t> perm(b.type(v).rank());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return b.Permute(v, perm);
}

void MatMul(At& t) {
  if (t.needs(0)) t.Give(0, t.b.Add(Op::kMatMul, {t.g, Swap(t.b, t.operands[1])}));
  if (t.needs(1)) t.Give(1, t.b.Add(Op::kMatMul, {Swap(t.b, t.operands[0]), t.g}));
}

void Linear(At& t) {
  if (!t.n.attrs.name.empty()) throw Undifferentiable("a linear layer with a fused activation");
  const Ints x = t.type(0).shape, w = t.type(1).shape;
  Int rows = shape::Product(std::span(x).first(x.size() - 1));
  ValueId g = t.b.Reshape(t.g, {rows, w[0]});
  if (t.needs(0)) t.Give(0, t.b.Reshape(t.b.Add(Op::kMatMul, {g, t.operands[1]}), x));
  if (t.needs(1)) t.Give(1, t.b.Add(Op::kMatMul, {Swap(t.b, g), t.b.Reshape(t.operands[0], {rows, w[1]})}));
  if (t.operands.size() > 2 && t.needs(2)) t.Give(2, rules::Sum(t.b, g, {0}, false, t.type(2).dtype));
}

struct Row {
  Op op;
  Rule rule;
};
#define R(op, ...) {Op::op, [](At& t) { __VA_ARGS__; }}
// clang-format off: a table
const Row kRows[] = {
    R(kNeg, t.Give(0, -t.g)),
    R(kAbs, t.Give(0, t.g * Expr{t.b, rules::SignOrZero(t.b, t.in(0))})),
    {Op::kSign, Zero}, {Op::kCeil, Zero}, {Op::kFloor, Zero}, {Op::kTrunc, Zero}, {Op::kRound, Zero},
    R(kSqrt, t.Give(0, t.g / (t.y * 2))),
    R(kRsqrt, t.Give(0, t.g * -0.5 * (t.y * t.y * t.y))),
    R(kReciprocal, t.Give(0, -t.g * Square(t.y))),
    R(kExp, t.Give(0, t.g * t.y)),
    R(kExp2, t.Give(0, t.g * t.y * std::numbers::ln2)),
    R(kExpm1, t.Give(0, t.g * (t.y + 1))),
    R(kLog, t.Give(0, t.g / t.in(0))),
    R(kLog2, t.Give(0, t.g / (t.in(0) * std::numbers::ln2))),
    R(kLog10, t.Give(0, t.g / (t.in(0) * std::numbers::ln10))),
    R(kLog1p, t.Give(0, t.g / (t.in(0) + 1))),
    R(kSin, t.Give(0, t.g * Apply(Op::kCos, t.in(0)))),
    R(kCos, t.Give(0, t.g * -Apply(Op::kSin, t.in(0)))),
    R(kTan, t.Give(0, t.g * (Square(t.y) + 1))),
    R(kAsin, t.Give(0, t.g * Apply(Op::kRsqrt, OneMinus(Square(t.in(0)))))),
    R(kAcos, t.Give(0, t.g * -Apply(Op::kRsqrt, OneMinus(Square(t.in(0)))))),
    R(kAtan, t.Give(0, t.g / (Square(t.in(0)) + 1))),
    R(kSinh, t.Give(0, t.g * Apply(Op::kCosh, t.in(0)))),
    R(kCosh, t.Give(0, t.g * Apply(Op::kSinh, t.in(0)))),
    {Op::kTanh, Tanh},
    R(kAsinh, t.Give(0, t.g * Apply(Op::kRsqrt, Square(t.in(0)) + 1))),
    R(kAcosh, t.Give(0, t.g * Apply(Op::kRsqrt, Square(t.in(0)) + -1))),
    R(kAtanh, t.Give(0, t.g / OneMinus(Square(t.in(0))))),
    R(kErf, t.Give(0, t.g * Apply(Op::kExp, -Square(t.in(0))) * (2 * std::numbers::inv_sqrtpi))),
    R(kErfc, t.Give(0, t.g * Apply(Op::kExp, -Square(t.in(0))) * (-2 * std::numbers::inv_sqrtpi))),
    R(kCast, t.Give(0, t.g)),

    R(kAdd, t.Give(0, t.g); t.Give(1, t.g)),
    R(kSub, t.Give(0, t.g); if (t.needs(1)) t.Give(1, -t.g)),
    R(kMul, if (t.needs(0)) t.Give(0, t.g * t.in(1)); if (t.needs(1)) t.Give(1, t.g * t.in(0))),
    R(kDiv, if (t.needs(0)) t.Give(0, t.g / t.in(1)); if (t.needs(1)) t.Give(1, -t.g * (t.in(0) / t.in(1) / t.in(1)))),
    R(kRem, t.Give(0, t.g); if (t.needs(1)) t.Give(1, -t.g * Apply(Op::kFloorDiv, t.in(0), t.in(1)))),
    R(kFmod, t.Give(0, t.g); if (t.needs(1)) t.Give(1, -t.g * Apply(Op::kTrunc, t.in(0) / t.in(1)))),
    {Op::kPow, Pow},
    {Op::kAtan2, Atan2},
    R(kHypot, t.Give(0, t.g * (t.in(0) / t.y)); t.Give(1, t.g * (t.in(1) / t.y))),
    R(kCopysign, Expr x = t.in(0); Expr zero = t.Zeros(t.g);
      t.Give(0, t.g * Where(Apply(Op::kEq, x, zero), zero, t.y / x)); t.Give(1, zero)),
    {Op::kMaximum, Extreme}, {Op::kMinimum, Extreme},
    R(kWhere, Expr c{t.b, t.operands[0]};
      if (t.needs(1)) t.Give(1, Where(c, t.g, t.Zeros(t.g))); if (t.needs(2)) t.Give(2, Where(c, t.Zeros(t.g), t.g))),

    {Op::kBroadcast, Broadcast},
    R(kReshape, t.Give(0, t.b.Reshape(t.g, t.type(0).shape))),
    {Op::kPermute, Permute}, {Op::kSlice, Slice},
    R(kFlip, t.Give(0, t.b.Add(Op::kFlip, {t.g}, t.n.attrs))),
    {Op::kPad, Pad}, {Op::kCat, Cat}, {Op::kTake, Take}, {Op::kGather, Gather}, {Op::kScatter, Scatter},
    {Op::kSum, Sum}, {Op::kMax, ExtremeRule}, {Op::kMin, ExtremeRule}, {Op::kCumSum, CumSum}, {Op::kProd, Prod},
    {Op::kMatMul, MatMul}, {Op::kLinear, Linear}, {Op::kConv, ConvRule}, {Op::kAttention, AttentionRule},
    {Op::kExtern, ExternRule},
};
// clang-format on
#undef R

}  // namespace

Rule PrimitiveRule(Op op) {
  static const auto* table = [] {
    auto* t = new std::map<Op, Rule>();
    for (const Row& r : kRows) t->emplace(r.op, r.rule);
    return t;
  }();
  auto at = table->find(op);
  return at == table->end() ? nullptr : at->second;
}

// Zeros of the data's type, with grad added where take read. The index is flat along the axis.
}  // namespace framejit::autodiff
