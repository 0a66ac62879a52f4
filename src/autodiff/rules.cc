// This file has the derivatives of formulas (Derivative in graph.h): what the framework's own backward computes, with
// its choices at kinks and its care for overflow. There is one row each, and operands are those of the Derivative.
#include <cmath>
#include <limits>
#include <numbers>

#include "autodiff/tape.h"
#include "graph/device.h"

namespace framejit::autodiff {
namespace {

using rules::Apply;
using rules::Expr;
using rules::Where;
using shape::Ints;

Expr Both(Expr x, Expr y) {
  return Apply(Op::kAnd, x, y);
}
Expr OneMinus(Expr x) {
  return x.Number(1) - x;
}
Expr SigmoidOf(Expr x) {
  Expr y = Apply(Op::kReciprocal, Apply(Op::kExp, -x) + 1);
  y.b.SetDerivative(y, {"sigmoid", {x}, {}, {}});
  return y;
}
Expr SumOver(At& t, Expr v, const std::vector<int64_t>& axes) {  // spread back
  const Ints shape = t.b.type(v).shape;
  return {t.b, t.b.Broadcast(t.b.Reduce(Op::kSum, v, axes, true), shape)};
}
Expr Count(At& t, Expr v, const std::vector<int64_t>& axes) {
  return {t.b, t.b.SymConstant(rules::CountOver(t.b, v, axes), t.b.type(v).dtype)};
}

void Elu(At& t) {  // alpha, scale, input scale
  Expr x = t.in(0);
  // What is above stays finite: it is differentiated again. Not-a-number stays what it is, as in the framework's
  // vectors.
  Expr above = Apply(Op::kLt, t.Zeros(x), x), low = Where(Le(t.Zeros(x), x), t.Zeros(x), x);
  Expr below = t.g * (t.number(0) * t.number(1) * t.number(2)) * Apply(Op::kExp, low * t.number(2));
  t.Give(0, Where(above, t.g * t.number(1), below));
}

void Silu(At& t) {
  Expr x = t.in(0), s = SigmoidOf(x);
  t.Give(0, t.g * s * (x * OneMinus(s) + 1));
}

void Mish(At& t) {
  Expr x = t.in(0), s = SigmoidOf(x), h = Apply(Op::kTanh, Apply(Op::kLog1p, Apply(Op::kExp, x)));
  t.Give(0, t.g * (h + x * s * OneMinus(h * h)));
}

void Softplus(At& t) {  // beta, threshold
  Expr x = t.in(0), scaled = x * t.number(0);
  t.Give(0, Where(Apply(Op::kLt, scaled.Number(t.number(1)), scaled), t.g, t.g * SigmoidOf(scaled)));
}

void LogSigmoid(At& t) {  // on the CPU the framework keeps x and exp(-|x|)
  Expr x = t.in(0);
  if (!t.Moves(t.operands[0]) || !TraitsOf(t.type(0).device).host_code) return t.Give(0, t.g * SigmoidOf(-x));
  Expr z = Apply(Op::kExp, -Apply(Op::kAbs, t.Before(t.operands[0]))), share = z / (z + 1);
  t.Give(0, t.g * Where(Apply(Op::kLt, x, t.Zeros(x)), OneMinus(share), share));
}

void Gelu(At& t) {
  Expr x = t.in(0), cdf = (Apply(Op::kErf, x * (std::numbers::sqrt2 / 2)) + 1) * 0.5;
  Expr pdf = Apply(Op::kExp, x * x * -0.5) * (std::numbers::inv_sqrtpi * std::numbers::sqrt2 / 2);
  t.Give(0, t.g * (cdf + x * pdf));
}

void GeluTanh(At& t) {
  constexpr double kBeta = std::numbers::sqrt2 * std::numbers::inv_sqrtpi, kKappa = 0.044715;
  Expr x = t.in(0), squared = x * x;
  Expr h = Apply(Op::kTanh, (x + squared * x * kKappa) * kBeta);
  Expr right = x * 0.5 * OneMinus(h * h) * ((squared * (3 * kKappa) + 1) * kBeta);
  t.Give(0, t.g * ((h + 1) * 0.5 + right));
}

void HardTanh(At& t) {
  Expr x = t.in(0);
  Expr beyond = Apply(Op::kOr, Le(x, x.Number(t.number(0))), Le(x.Number(t.number(1)), x));  // not-a-number is not
  t.Give(0, Where(beyond, t.Zeros(t.g), t.g));
}

void Logit(At& t) {  // bounds, and whether there is no gradient beyond them, or not-a-number
  Expr x = t.in(0);
  Expr outside = Apply(Op::kOr, Apply(Op::kLt, x, x.Number(t.number(0))), Apply(Op::kLt, x.Number(t.number(1)), x));
  Expr beyond = t.number(2) != 0 ? t.Zeros(x) : x.Number(std::numeric_limits<double>::quiet_NaN());
  // At both zeros and at one the framework takes infinity times the gradient.
  Expr slope = x * OneMinus(x), end = Apply(Op::kEq, slope, t.Zeros(x));
  t.Give(0, Where(outside, beyond, Where(end, t.g * std::numeric_limits<double>::infinity(), t.g / slope)));
}

void HardSigmoid(At& t) {  // the framework rounds the sixth to a float
  Expr x = t.in(0), inside = Both(Apply(Op::kLt, x.Number(-3), x), Apply(Op::kLt, x, x.Number(3)));
  t.Give(0, Where(inside, t.g * (1.0f / 6.0f), t.Zeros(t.g)));
}

void HardSwish(At& t) {
  Expr x = t.in(0), inner = Where(Le(x.Number(3), x), t.g, t.g * (x / 3 + 0.5));
  t.Give(0, Where(Le(x, x.Number(-3)), t.Zeros(t.g), inner));
}

void InverseSquare(At& t) {  // not by the square, which is 0 or infinite first
  Expr r = Apply(Op::kReciprocal, t.in(0));
  t.Give(0, t.g * (r * r * r * -2));
}

// Of x ** n, where n - 1 is a number of which the framework asks another function than pow: that one's special values.
void HalfPower(At& t) {
  const double n = t.number(0);
  Expr x = t.in(0);
  Expr raised = n == 1.5   ? Apply(Op::kSqrt, x)
                : n == 0.5 ? Apply(Op::kRsqrt, x)
                : n == -1  ? Apply(Op::kReciprocal, x * x)
                           : Apply(Op::kPow, x, x.Number(n - 1));
  t.Give(0, t.g * (raised * n));
}

void Glu(At& t) {  // in the framework's order, in which a large value meets a small slope first
  Expr a = t.in(0), share = SigmoidOf(t.in(1));
  if (t.needs(0)) t.Give(0, t.g * share);
  if (t.needs(1)) t.Give(1, OneMinus(share) * share * a * t.g);
}

// Bounds let gradients through, and where there is a number not even there. They themselves get none here.
void Clamp(At& t) {
  const std::vector<double>& strict = t.n.derivative->numbers;
  const Op within = strict.empty() || !strict[0] ? Op::kLe : Op::kLt;
  bool lo = t.n.derivative->rule != "clamp_max", hi = t.n.derivative->rule != "clamp_min";
  for (size_t i = 1; i < t.operands.size(); ++i)
    if (t.needs(i)) throw Undifferentiable("clamp with bounds that want gradients");
  Expr x = t.in(0), inside{t.b, kNoValue};
  const Ints shape = t.b.type(t.g).shape;
  Expr wide{t.b, t.b.Broadcast(x, shape)};
  if (lo) inside = Apply(within, {t.b, t.b.Broadcast(t.in(1), shape)}, wide);
  if (hi) {
    Expr below = Apply(within, wide, {t.b, t.b.Broadcast(t.in(lo ? 2 : 1), shape)});
    inside = lo ? Both(inside, below) : below;
  }
  t.Give(0, Where(inside, t.g, t.Zeros(t.g)));
}

void LogAddExp(At& t) {
  Expr x = t.in(0), y = t.in(1);
  t.Give(0, t.g * SigmoidOf(x - y));
  t.Give(1, t.g * SigmoidOf(y - x));
}

// fmax, fmin (number: 1, -1): what is equal goes to the first; a nan loses. As maximum and minimum (2, -2): what is
// equal is shared, and both get what comes of a nan.
void FExtreme(At& t) {
  Expr x = t.in(0), y = t.in(1);
  if (const bool max = t.number(0) > 0; std::abs(t.number(0)) == 2) {
    Expr share = Where(Apply(Op::kEq, x, y), t.g / 2, t.g), less = Apply(Op::kLt, x, y), more = Apply(Op::kLt, y, x);
    t.Give(0, Where(max ? less : more, t.Zeros(t.g), share));
    t.Give(1, Where(max ? more : less, t.Zeros(t.g), share));
    return;
  }
  Expr first = t.number(0) > 0 ? Le(y, x) : Le(x, y);
  first = Apply(Op::kOr, first, Apply(Op::kIsNan, y));
  t.Give(0, Where(first, t.g, t.Zeros(t.g)));
  t.Give(1, Where(first, t.Zeros(t.g), t.g));
}

void Flat(At& t) {  // a quotient that was cut off: zeros, also where the quotient is no number
  for (int i = 0; i < 2; ++i)
    if (t.needs(i)) t.Give(i, t.Zeros(t.in(i)));
}

void XLogY(At& t) {
  Expr x = t.in(0), y = t.in(1), zero = t.Zeros(x);
  Expr none = Both(Apply(Op::kEq, x, zero), Le(y, zero));
  if (t.needs(0)) {  // xlogy of what arrives
    Expr nothing = Apply(Op::kOr, none, Both(Apply(Op::kEq, t.g, zero), Apply(Op::kEq, y, y)));
    t.Give(0, Where(nothing, zero, t.g * Apply(Op::kLog, y)));
  }
  if (t.needs(1)) t.Give(1, t.g * x / y);
}

void Sinc(At& t) {
  Expr x = t.in(0), angle = x * std::numbers::pi, square = x * angle;
  Expr slope = (angle * Apply(Op::kCos, angle) - Apply(Op::kSin, angle)) / square;
  t.Give(0, Where(Apply(Op::kEq, square, t.Zeros(x)), t.Zeros(x), t.g * slope));
}

void Softmax(At& t) {
  t.Give(0, (t.g - SumOver(t, t.g * t.y, t.axes())) * t.y);
}

void LogSoftmax(At& t) {
  t.Give(0, t.g - Apply(Op::kExp, t.y) * SumOver(t, t.g, t.axes()));
}

void LogSumExp(At& t) {
  const Ints shape = t.type(0).shape;
  t.Give(0, t.Spread(t.g, t.axes(), shape) * Apply(Op::kExp, t.in(0) - t.Spread(t.y, t.axes(), shape)));
}

void Norm(At& t) {
  const Ints shape = t.type(0).shape;
  Expr y = t.Spread(t.y, t.axes(), shape), unit = t.in(0) / y;
  t.Give(0, t.Spread(t.g, t.axes(), shape) * Where(Apply(Op::kEq, y, t.Zeros(y)), t.Zeros(y), unit));
}

void Variance(At& t) {  // correction
  Expr x = t.in(0), mean = SumOver(t, x, t.axes()) / Count(t, x, t.axes());
  Expr g = t.Spread(t.g, t.axes(), t.type(0).shape);
  t.Give(0, g * (x.Number(2) / (Count(t, x, t.axes()) - x.Number(t.number(0)))) * (x - mean));
}

void Root(At& t) {
  Expr none = Apply(Op::kEq, t.y, t.Zeros(t.y)), twice = t.y * 2;
  if (t.tape.zeros) {  // at 0 a tangent is 0, and a second derivative not-a-number
    t.Give(0, t.g * Where(none, t.Zeros(t.y), Apply(Op::kReciprocal, twice)));
  } else {
    t.Give(0, Where(none, t.Zeros(t.y), t.g / twice));
  }
}

// The value y is (x - centre) * scale, with centre and scale of x itself: scale * (g - mean(g) - y mean(g y)). Of these
// three y is made again, since the framework keeps them and not y.
void Standardize(At& t) {
  const Ints shape = t.b.type(t.g).shape;
  Expr scale{t.b, t.b.Broadcast(t.operands[1], shape)}, centre{t.b, t.b.Broadcast(t.operands[2], shape)};
  Expr n = Count(t, t.g, t.axes()), y = (t.in(0) - centre) * scale;
  Expr mean = SumOver(t, t.g, t.axes()) / n, along = SumOver(t, t.g * y, t.axes()) / n;
  t.Give(0, scale * (t.g - mean - y * along));
}

// operands: x, mean and scale as [1, C, 1, ...], weight and bias [C] (numbers: is there one?)
void BatchNorm(At& t) {
  const Ints shape = t.type(0).shape;
  auto spread = [&](ValueId v) { return Expr{t.b, t.b.Broadcast(v, shape)}; };
  auto row = [&](ValueId v) { return t.b.Reshape(v, t.b.type(t.operands[1]).shape); };
  Expr scale = spread(t.operands[2]), unit = (t.in(0) - spread(t.operands[1])) * scale;
  Expr sum{t.b, t.b.Reduce(Op::kSum, t.g, t.axes(), false)},
      along{t.b, t.b.Reduce(Op::kSum, t.g * unit, t.axes(), false)};
  bool weight = t.number(0) != 0, bias = t.number(1) != 0;
  if (t.needs(0)) {
    Expr n{t.b, t.b.SymConstant(rules::CountOver(t.b, t.operands[0], t.axes()), t.b.type(t.g).dtype)};
    Expr d = scale * (t.g - spread(row(sum / n)) - unit * spread(row(along / n)));
    t.Give(0, weight ? d * spread(row(t.operands[3])) : d);
  }
  if (weight && t.needs(3)) t.Give(3, along);
  if (bias && t.needs(4)) t.Give(4, sum);
}

void Pick(At& t) {  // x at an index along the axis, which is kept as 1 or gone
  const Ints shape = t.type(0).shape;
  Expr at = t.Spread(t.operands[1], t.axes(), shape);
  Expr iota{t.b, t.b.Iota(DType::kInt64, shape, static_cast<int>(t.axes()[0]))};
  Expr g = t.Spread(t.g, t.axes(), shape);
  t.Give(0, Where(Apply(Op::kEq, iota, at), g, t.Zeros(g)));
}

void Finite(At& t) {  // none for what is not finite; it is a product, in which infinities count
  Expr x = t.in(0), infinite = Apply(Op::kOr, Apply(Op::kIsInf, x), Apply(Op::kIsNan, x));
  t.Give(0, t.g * Where(infinite, t.Zeros(t.g), t.g.Number(1)));
}

struct Row {
  const char* name;
  Rule rule;
  bool twice = true;  // the derivative may be differentiated in its turn
};
constexpr bool kOnce = false;
#define R(name, ...) {name, [](At& t) { __VA_ARGS__; }}
const Row kRows[] = {
    R("relu", t.Give(0, Where(Le(t.y, t.Zeros(t.y)), t.Zeros(t.g), t.g))),
    R("sigmoid", t.Give(0, t.g* OneMinus(t.y) * t.y)),
    {"elu", Elu},
    {"silu", Silu},
    {"mish", Mish, kOnce},
    {"softplus", Softplus},
    {"log_sigmoid", LogSigmoid},
    {"gelu", Gelu},
    {"gelu_tanh", GeluTanh},
    {"logit", Logit},
    {"hardtanh", HardTanh},
    {"hardsigmoid", HardSigmoid},
    {"hardswish", HardSwish},
    {"inverse_square", InverseSquare},
    {"half_power", HalfPower},
    {"glu", Glu},
    {"clamp", Clamp},
    {"clamp_min", Clamp},
    {"clamp_max", Clamp},
    {"logaddexp", LogAddExp, kOnce},
    {"fextreme", FExtreme},
    {"flat", Flat},
    {"xlogy", XLogY, kOnce},
    {"sinc", Sinc, kOnce},
    {"softmax", Softmax},
    {"log_softmax", LogSoftmax},
    {"logsumexp", LogSumExp},
    {"norm", Norm},
    {"variance", Variance},
    {"root", Root},
    {"standardize", Standardize},
    {"batch_norm", BatchNorm},
    {"pick", Pick},
    {"extreme", ExtremeRule},
    {"largest", ExtremeRule},
    {"finite", Finite},
    R("dropout", Expr kept{t.b, t.b.Cast(t.operands[1], t.b.type(t.g).dtype)}; t.Give(0, t.g* kept* t.number(0))),
    // The operands are x and tanh(x), which may be narrower.
    R("tanh_slope", Expr y{t.b, t.b.Cast(t.operands[1], t.b.type(t.g).dtype)}; t.Give(0, t.g* y* t.y * -2)),
    R("leaf", t.Give(0, t.g)),
    R("data", t.Give(0, t.g)),  // as leaf, in the memory of its operand
    R("once", throw Undifferentiable("a second derivative whose formula is not known")),
    {"embedding", EmbeddingRule},
    {"custom", CustomRule, kOnce},
    {"custom_result", CustomResultRule, kOnce},
};
#undef R

const Row* Find(const std::string& name) {
  for (const Row& r : kRows)
    if (name == r.name) return &r;
  return nullptr;
}

}  // namespace

// Shared evenly by all that are the extreme. The framework multiplies by who is one, so that a gradient which is not
// finite goes to all; but for `extreme`, where it fills them in.
void ExtremeRule(At& t) {
  const Ints shape = t.type(0).shape;
  Expr x{t.b, t.operands[0]};
  Expr hit = Apply(Op::kEq, x, t.Spread(t.id, t.axes(), shape));
  if (t.n.derivative && IsFloat(t.type(0).dtype)) hit = Apply(Op::kOr, hit, Apply(Op::kIsNan, x));
  Expr g = t.Spread(t.g, t.axes(), shape), hits = Where(hit, g.Number(1), g.Number(0));
  const bool filled = t.n.derivative && t.n.derivative->rule == "extreme";
  const Expr count = SumOver(t, hits, t.axes());
  t.Give(0, filled ? Where(hit, g / count, t.Zeros(g)) : g * hits / count);
}

Rule NamedRule(const std::string& name) {
  const Row* r = Find(name);
  return r ? r->rule : nullptr;
}

bool HoldsTwice(const Node& n) {
  if (!n.derivative) return Info(n.op).twice;
  const Row* r = Find(n.derivative->rule);
  return !r || r->twice;
}

std::vector<std::string> RuleNames() {
  std::vector<std::string> names;
  for (const Row& r : kRows) names.push_back(r.name);
  return names;
}

}  // namespace framejit::autodiff
