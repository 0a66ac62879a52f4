// Every derivative against central differences in float64, by the reference interpreter; the joint graph against its
// two halves; what is saved.
#include "autodiff/autodiff.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "autodiff/tape.h"
#include "host_tensors.h"
#include "rules/decompose.h"

namespace framejit::autodiff {
namespace {

using namespace test;
using shape::Int;
using shape::Ints;

struct Problem {
  Graph g;
  shape::Env env;
  Builder b{g, env};
  std::vector<HostTensor> inputs;
  std::mt19937 rng{7};

  ValueId In(std::vector<int64_t> sizes, double lo = -1, double hi = 1) {
    HostTensor t = HostTensor::Empty(DType::kFloat64, sizes);
    std::uniform_real_distribution<double> d(lo, hi);
    for (int64_t k = 0; k < Elements(t); ++k) SetElement(t, k, d(rng));
    return In(t);
  }
  ValueId In(HostTensor t) {
    inputs.push_back(t);
    return b.Input(TypeOf(t), Ints(t.strides.begin(), t.strides.end()), "");
  }
  ValueId Index(std::vector<int64_t> sizes, std::vector<double> v) { return In(Make(DType::kInt64, sizes, v)); }
};

// What the host runs for gathers and takes (framejit/_gradients.py).
std::vector<HostTensor> Scatter(const Node& n, const std::vector<HostTensor>& in) {
  const Call& c = *n.attrs.call;
  const int64_t axis = c.args.at(3).i.value();
  Graph g;
  shape::Env env;
  Builder b{g, env};
  auto input = [&](const HostTensor& t) { return b.Input(TypeOf(t), Ints(t.strides.begin(), t.strides.end()), ""); };
  ValueId grad = input(in[0]), index = input(in[1]);
  if (c.callee.name() == "framejit._gradients.take") index = b.BroadcastInDim(index, b.type(grad).shape, {axis});
  Attrs attrs;
  attrs.axes = {axis};
  attrs.name = "add";
  g.outputs = {b.Add(Op::kScatter, {b.Constant(Scalar(0), n.type.dtype, n.type.shape), index, grad}, attrs)};
  return Interpret(g, in);
}

// Rules that some Check has gone through: names, or names of primitives.
std::set<std::string>& Checked() {
  static std::set<std::string> checked;
  return checked;
}

// The gradient of sum(outputs * c) for random c, four ways.
void Check(Problem& p, double tolerance = 1e-6) {
  ASSERT_EQ(Verify(p.g), "");
  std::vector<bool> wanted;
  for (const HostTensor& t : p.inputs) wanted.push_back(t.dtype == DType::kFloat64);
  Joint j = Differentiate(p.g, wanted, std::vector<bool>(p.g.outputs.size(), true));
  ASSERT_EQ(Verify(j.graph), "") << j.graph.str();
  std::vector<bool> reached(p.g.nodes.size());
  for (ValueId v : p.g.outputs) reached[v] = true;
  for (ValueId v = static_cast<ValueId>(reached.size()); v-- > 0;) {
    if (!reached[v]) continue;
    const Node& n = p.g.node(v);
    Checked().insert(n.derivative ? n.derivative->rule : Info(n.op).name);
    for (ValueId o : n.derivative ? n.derivative->operands : n.operands) reached[o] = true;
  }
  std::vector<HostTensor> weights, present;
  std::vector<HostTensor> values = Interpret(p.g, p.inputs);
  for (size_t i = 0; i < values.size(); ++i) {
    HostTensor w = HostTensor::Empty(values[i].dtype, values[i].sizes);
    std::uniform_real_distribution<double> d(-1, 1);
    for (int64_t k = 0; k < Elements(w); ++k) SetElement(w, k, d(p.rng));
    weights.push_back(w);
    if (j.tangents[i] != kNoValue) present.push_back(w);
  }
  auto objective = [&] {
    std::vector<HostTensor> out = Interpret(p.g, p.inputs);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i)
      for (int64_t k = 0; k < Elements(out[i]); ++k)
        if (out[i].dtype == DType::kFloat64) sum += GetElement(out[i], k) * GetElement(weights[i], k);
    return sum;
  };
  // the joint graph as a whole
  Graph whole = j.graph;
  whole.outputs.clear();
  std::vector<size_t> inputs;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    if (j.grads[i] == kNoValue) continue;
    whole.outputs.push_back(j.grads[i]);
    inputs.push_back(i);
  }
  std::vector<HostTensor> all = p.inputs;
  all.insert(all.end(), present.begin(), present.end());
  std::vector<HostTensor> grads = Interpret(whole, all, Scatter);
  for (size_t n = 0; n < inputs.size(); ++n) {
    HostTensor& x = p.inputs[inputs[n]];
    ASSERT_EQ(grads[n].sizes, x.sizes);
    for (int64_t k = 0; k < Elements(x); ++k) {
      constexpr double kStep = 1e-5;
      double at = GetElement(x, k);
      SetElement(x, k, at + kStep);
      double up = objective();
      SetElement(x, k, at - kStep);
      double down = objective();
      SetElement(x, k, at);
      double expected = (up - down) / (2 * kStep), got = GetElement(grads[n], k);
      EXPECT_NEAR(got, expected, tolerance * std::fmax(1, std::fabs(expected)))
          << "input " << inputs[n] << " element " << k << "\n"
          << whole.str();
      if (testing::Test::HasFailure()) return;
    }
  }
  // cut in two
  std::vector<ValueId> saved = ChooseSaved(j);
  std::vector<SavedValue> where;
  std::vector<GradSource> sources;
  Graph forward = ForwardGraph(j, saved, &where), backward = BackwardGraph(j, saved, &sources);
  ASSERT_EQ(Verify(forward), "") << forward.str();
  ASSERT_EQ(Verify(backward), "") << backward.str();
  std::vector<HostTensor> made = Interpret(forward, p.inputs, Scatter), feed;
  for (const SavedValue& s : where) feed.push_back(s.input >= 0 ? p.inputs[s.input] : made.at(s.output));
  feed.insert(feed.end(), present.begin(), present.end());
  std::vector<HostTensor> out = Interpret(backward, feed, Scatter, std::vector<int64_t>(p.g.symbols.size()));
  for (size_t n = 0; n < inputs.size(); ++n) {
    const GradSource& s = sources[inputs[n]];
    ASSERT_NE(s.kind, GradSource::kNone);
    const HostTensor& got = s.kind == GradSource::kTangent ? present.at(s.index) : out.at(s.index);
    EXPECT_EQ(Difference(got, grads[n]), "");
  }
  // in parts, one an input
  std::vector<int> part(p.inputs.size(), 0);
  for (size_t n = 0; n < inputs.size(); ++n) part[inputs[n]] = static_cast<int>(inputs.size() - 1 - n);
  BackwardParts parts = SplitBackward(backward, sources, part, static_cast<int>(saved.size()));
  std::vector<HostTensor> numbers = feed;
  numbers.resize(parts.count);
  for (const BackwardPart& b : parts.parts) {
    ASSERT_EQ(Verify(b.graph), "") << b.graph.str();
    std::vector<HostTensor> in;
    for (int i : b.inputs) in.push_back(numbers.at(i));
    std::vector<HostTensor> made = Interpret(b.graph, in, Scatter, std::vector<int64_t>(p.g.symbols.size()));
    for (size_t i = 0; i < made.size(); ++i) numbers.at(b.outputs[i]) = made[i];
  }
  for (size_t n = 0; n < inputs.size(); ++n) EXPECT_EQ(Difference(numbers.at(parts.grads[inputs[n]]), grads[n]), "");
}

struct UnaryCase {
  Op op;
  double lo, hi;
};
TEST(Derivatives, PointwiseOfOne) {
  const UnaryCase cases[] = {
      {Op::kNeg, -1, 1},        {Op::kAbs, 0.1, 1},   {Op::kAbs, -1, -0.1}, {Op::kSign, 0.1, 1},  {Op::kCeil, 0.1, 0.9},
      {Op::kFloor, .1, .9},     {Op::kTrunc, .1, .9}, {Op::kRound, .1, .4}, {Op::kSqrt, .2, 2},   {Op::kRsqrt, .2, 2},
      {Op::kReciprocal, .3, 2}, {Op::kExp, -1, 1},    {Op::kExp2, -1, 1},   {Op::kExpm1, -1, 1},  {Op::kLog, .2, 2},
      {Op::kLog2, .2, 2},       {Op::kLog10, .2, 2},  {Op::kLog1p, -.5, 2}, {Op::kSin, -2, 2},    {Op::kCos, -2, 2},
      {Op::kTan, -1, 1},        {Op::kAsin, -.8, .8}, {Op::kAcos, -.8, .8}, {Op::kAtan, -2, 2},   {Op::kSinh, -1, 1},
      {Op::kCosh, -1, 1},       {Op::kTanh, -1, 1},   {Op::kAsinh, -2, 2},  {Op::kAcosh, 1.3, 3}, {Op::kAtanh, -.8, .8},
      {Op::kErf, -1, 1},        {Op::kErfc, -1, 1}};
  for (const UnaryCase& c : cases) {
    for (std::vector<int64_t> sizes : {std::vector<int64_t>{}, {3}, {2, 0}, {2, 3}}) {
      SCOPED_TRACE(Info(c.op).name);
      Problem p;
      p.g.outputs = {p.b.Unary(c.op, p.In(sizes, c.lo, c.hi))};
      Check(p);
    }
  }
}

TEST(Derivatives, PointwiseOfTwo) {
  for (Op op : {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kRem, Op::kFmod, Op::kPow, Op::kAtan2, Op::kHypot,
                Op::kCopysign, Op::kMaximum, Op::kMinimum}) {
    for (auto& [a, c] : std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>>{
             {{3}, {3}}, {{2, 3}, {3}}, {{2, 1}, {1, 3}}, {{}, {2}}, {{0, 2}, {2}}, {{}, {}}}) {
      SCOPED_TRACE(Info(op).name);
      Problem p;
      ValueId x = p.In(a, 0.3, 2), y = p.In(c, 0.4, 1.5);
      p.g.outputs = {p.b.Binary(op, x, y)};
      Check(p);
    }
  }
  Problem p;  // the same operand twice, and a value that is used twice
  ValueId x = p.In({3}, .5, 1), y = p.b.Binary(Op::kMul, x, x);
  p.g.outputs = {p.b.Binary(Op::kAdd, y, p.b.Unary(Op::kExp, y)), x};
  Check(p);
}

TEST(Derivatives, WhereAndCasts) {
  Problem p;
  ValueId x = p.In({2, 3}), y = p.In({3});
  ValueId c = p.b.Binary(Op::kLt, x, p.b.Broadcast(y, {2, 3}));
  p.g.outputs = {p.b.Where(c, x, y), p.b.Cast(c, DType::kInt64)};
  Check(p);
}

TEST(Derivatives, Views) {
  Problem p;
  ValueId x = p.In({2, 3, 4}), y = p.In({2, 1, 4});
  Attrs flip, pad, cat;
  flip.axes = {0, 2};
  pad.syms = {1, 0, -1, 2, 0, -2};
  pad.scalar = 5.0;
  cat.axes = {1};
  p.g.outputs = {p.b.Permute(x, {2, 0, 1}),
                 p.b.Reshape(x, {6, 4}),
                 p.b.Slice(x, 2, 1, 2),
                 p.b.Slice(x, 2, 0, 2, 3),
                 p.b.Slice(x, 1, 0, 2, 2),
                 p.b.Add(Op::kFlip, {x}, flip),
                 p.b.Add(Op::kPad, {x}, pad),
                 p.b.Add(Op::kCat, {x, y, x}, cat),
                 p.b.BroadcastInDim(y, {2, 5, 4}, {0, 1, 2}),
                 p.b.BroadcastInDim(p.b.Reshape(y, {2, 4}), {3, 2, 2, 4}, {1, 3})};
  Check(p);
}

TEST(Derivatives, Indexing) {
  Problem p;
  ValueId x = p.In({4, 3}), src = p.In({2, 3});
  ValueId rows = p.Index({2, 2}, {0, 2, 2, 3}), at = p.Index({2, 3}, {0, 1, 3, 2, 0, 1}),
          one = p.Index({4, 1}, {0, 2, 2, 1});
  Attrs axis0, axis1, add, set;
  axis0.axes = add.axes = set.axes = {0};
  axis1.axes = {1};
  add.name = "add";
  set.name = "set";
  Attrs scan;
  scan.axes = {1};
  scan.dtype = DType::kFloat64;
  p.g.outputs = {p.b.Add(Op::kTake, {x, rows}, axis0),
                 p.b.Add(Op::kTake, {x, p.b.Reshape(p.b.Slice(rows, 1, 0, 1), {2})}, axis1),
                 p.b.Add(Op::kGather, {x, at}, axis0),
                 p.b.Add(Op::kGather, {x, one}, axis1),
                 p.b.Add(Op::kScatter, {x, at, src}, add),
                 p.b.Add(Op::kScatter, {x, at, src}, set),
                 p.b.Add(Op::kCumSum, {x}, scan)};
  Check(p);
}

TEST(Derivatives, Reductions) {
  for (bool keep : {false, true}) {
    Problem p;
    ValueId x = p.In({2, 3, 4});
    p.g.outputs = {p.b.Reduce(Op::kSum, x, {0, 2}, keep), p.b.Reduce(Op::kSum, x, {0, 1, 2}, keep),
                   p.b.Reduce(Op::kMax, x, {1}, keep), p.b.Reduce(Op::kMin, x, {0, 1}, keep),
                   p.b.Reduce(Op::kArgMax, x, {1}, keep)};
    Check(p);
  }
  Problem p;  // equal extremes share
  ValueId x = p.In(D({1, 3, 3, 0}));
  p.g.outputs = {p.b.Reduce(Op::kMax, x, {0}, false)};
  Joint j = Differentiate(p.g, {true}, {true});
  j.graph.outputs = {j.grads[0]};
  EXPECT_EQ(Values(Interpret(j.graph, {p.inputs[0], Make(DType::kFloat64, {}, {1})})[0]),
            (std::vector<double>{0, .5, .5, 0}));
}

TEST(Derivatives, Contractions) {
  Problem p;
  ValueId a = p.In({2, 3, 4}), c = p.In({2, 4, 5}), w = p.In({6, 4}), bias = p.In({6}), v = p.In({4});
  p.g.outputs = {p.b.Add(Op::kMatMul, {a, c}), p.b.Add(Op::kLinear, {a, w, bias}), p.b.Add(Op::kLinear, {v, w})};
  Check(p);
}

TEST(Derivatives, Attention) {
  for (bool causal : {false, true}) {
    for (bool mask : {false, true}) {
      if (causal && mask) continue;
      Problem p;
      std::vector<ValueId> in = {p.In({2, 2, 3, 4}), p.In({2, 2, 5, 4}), p.In({2, 2, 5, 3})};
      if (mask) in.push_back(p.In({2, 1, 1, 5}));
      Attrs attrs;
      attrs.flag = causal;
      attrs.scalar = 0.7;
      p.g.outputs = {p.b.Add(Op::kAttention, in, attrs)};
      Check(p);
    }
  }
}

TEST(Derivatives, Activations) {
  using namespace rules;
  std::vector<std::pair<const char*, std::function<ValueId(Builder&, ValueId)>>> all = {
      {"Relu", [](Builder& b, ValueId x) { return Relu(b, x); }},
      {"Relu6", [](Builder& b, ValueId x) { return Relu6(b, x); }},
      {"LeakyRelu", [](Builder& b, ValueId x) { return LeakyRelu(b, x, .1); }},
      {"Elu", [](Builder& b, ValueId x) { return Elu(b, x, 1.5, 1.2, .7); }},
      {"Selu", [](Builder& b, ValueId x) { return Selu(b, x); }},
      {"Celu", [](Builder& b, ValueId x) { return Celu(b, x, 1.3); }},
      {"Sigmoid", [](Builder& b, ValueId x) { return Sigmoid(b, x); }},
      {"LogSigmoid", [](Builder& b, ValueId x) { return LogSigmoid(b, x); }},
      {"Silu", [](Builder& b, ValueId x) { return Silu(b, x); }},
      {"Mish", [](Builder& b, ValueId x) { return Mish(b, x); }},
      {"Softplus", [](Builder& b, ValueId x) { return Softplus(b, x, 2, 3); }},
      {"GeluErf", [](Builder& b, ValueId x) { return GeluErf(b, x); }},
      {"GeluTanh", [](Builder& b, ValueId x) { return GeluTanh(b, x); }},
      {"HardSigmoid", [](Builder& b, ValueId x) { return HardSigmoid(b, x); }},
      {"HardSwish", [](Builder& b, ValueId x) { return HardSwish(b, x); }},
      {"SoftSign", [](Builder& b, ValueId x) { return SoftSign(b, x); }},
      {"Frac", [](Builder& b, ValueId x) { return Frac(b, x); }},
      {"NanToNum", [](Builder& b, ValueId x) { return NanToNum(b, x, 0, 1, -1); }},
      {"Softmax", [](Builder& b, ValueId x) { return Softmax(b, x, -1); }},
      {"LogSoftmax", [](Builder& b, ValueId x) { return LogSoftmax(b, x, 0); }},
      {"LogSumExp", [](Builder& b, ValueId x) { return LogSumExp(b, x, {0}, false); }},
      {"LogSumExp all", [](Builder& b, ValueId x) { return LogSumExp(b, x, {0, 1}, true); }},
      {"NormL2", [](Builder& b, ValueId x) { return NormL2(b, x, {1}, false); }},
      {"Mean", [](Builder& b, ValueId x) { return Mean(b, x, {1}, false); }},
      {"Var", [](Builder& b, ValueId x) { return VarMean(b, x, {1}, 1, false).variance; }},
      {"Std", [](Builder& b, ValueId x) { return Root(b, VarMean(b, x, {0}, 1, true).variance); }},
      {"Clamp", [](Builder& b, ValueId x) { return Clamp(b, x, Like(b, x, -2), Like(b, x, 1)); }},
      {"Logit", [](Builder& b, ValueId x) { return Logit(b, Sigmoid(b, x), 1e-3); }},
      {"Tril", [](Builder& b, ValueId x) { return Tril(b, x, 0); }},
  };
  for (auto& [name, f] : all) {
    SCOPED_TRACE(name);
    Problem p;
    p.g.outputs = {f(p.b, p.In({4, 5}, -4, 5))};
    Check(p);
  }
}

TEST(Derivatives, ActivationsFarOut) {  // finite where the value saturates
  using namespace rules;
  for (auto f :
       {+[](Builder& b, ValueId x) { return Sigmoid(b, x); }, +[](Builder& b, ValueId x) { return Silu(b, x); },
        +[](Builder& b, ValueId x) { return Elu(b, x, 1); }, +[](Builder& b, ValueId x) { return LogSigmoid(b, x); },
        +[](Builder& b, ValueId x) { return Softplus(b, x, 1, 20); },
        +[](Builder& b, ValueId x) { return GeluTanh(b, x); }, +[](Builder& b, ValueId x) { return GeluErf(b, x); }}) {
    Problem p;
    p.g.outputs = {f(p.b, p.In(D({-200, -50, 50, 200})))};
    Joint j = Differentiate(p.g, {true}, {true});
    j.graph.outputs = {j.grads[0]};
    for (double v : Values(Interpret(j.graph, {p.inputs[0], D({1, 1, 1, 1})})[0])) EXPECT_TRUE(std::isfinite(v));
  }
}

TEST(Derivatives, Norms) {
  using namespace rules;
  Problem p;
  ValueId x = p.In({3, 4, 2}), w = p.In({4, 2}), v = p.In({4, 2}), c = p.In({4}), d = p.In({4});
  BatchStatistics s = BatchNormStatistics(p.b, x);
  p.g.outputs = {LayerNorm(p.b, x, 2, w, v, 1e-5),
                 LayerNorm(p.b, x, 1, kNone, kNone, 1e-5),
                 RmsNorm(p.b, x, 2, w, 1e-5),
                 GroupNorm(p.b, x, 2, c, d, 1e-5),
                 BatchNormTrain(p.b, x, s.mean, s.variance, c, d, 1e-5),
                 BatchNormEval(p.b, x, p.In({4}), p.In({4}, .5, 1), c, kNone, 1e-5)};
  Check(p, 1e-5);
}

TEST(Derivatives, OfTwo) {
  using namespace rules;
  Problem p;
  ValueId x = p.In({3, 5}), y = p.In({3, 5});
  p.g.outputs = {LogAddExp(p.b, x, y), Lerp(p.b, x, y, p.In({3, 5}))};
  Check(p);
}

TEST(Derivatives, Formulas) {  // as the lowering of calls names them
  Problem p;
  ValueId x = p.In({2, 3}), y = p.In({2, 3}), positive = p.In({2, 3}, .2, 2), far = p.In({2, 3}, .1, .9);
  auto named = [&](ValueId v, Derivative d) {
    p.b.SetDerivative(v, d);
    return v;
  };
  auto both = [&](Op op) { return p.b.Binary(op, x, y); };
  ValueId angle = p.b.Binary(Op::kMul, far, p.b.Constant(Scalar(3.141592653589793), DType::kFloat64, {2, 3}));
  ValueId bound = p.b.Constant(Scalar(.1), DType::kFloat64, {2, 3});
  ValueId above = p.b.Constant(Scalar(.6), DType::kFloat64, {2, 3}),
          one = p.b.Constant(Scalar(1.), DType::kFloat64, {2, 3});
  ValueId tanh = p.b.Unary(Op::kTanh, y);
  Attrs cast;
  cast.dtype = DType::kFloat64;
  p.g.outputs = {
      named(p.b.Binary(Op::kMaximum, x, bound), {"clamp_min", {x, bound}, {}, {}}),
      named(p.b.Binary(Op::kMinimum, x, bound), {"clamp_max", {x, bound}, {}, {}}),
      named(p.b.Binary(Op::kMinimum, p.b.Binary(Op::kMaximum, x, bound), above), {"clamp", {x, bound, above}, {}, {}}),
      named(p.b.Binary(Op::kSub, one, p.b.Binary(Op::kMul, tanh, tanh)), {"tanh_slope", {y, tanh}, {}, {}}),
      named(p.b.Unary(Op::kNeg, p.b.Unary(Op::kNeg, x)), {"leaf", {x}, {}, {}}),
      named(both(Op::kMaximum), {"fextreme", {x, y}, {1}, {}}),
      named(both(Op::kMinimum), {"fextreme", {x, y}, {-1}, {}}),
      named(p.b.Binary(Op::kMul, x, p.b.Unary(Op::kLog, positive)), {"xlogy", {x, positive}, {}, {}}),
      named(p.b.Binary(Op::kDiv, p.b.Unary(Op::kSin, angle), angle), {"sinc", {far}, {}, {}}),
      named(p.b.Reduce(Op::kMax, x, {1}, false), {"pick", {x, p.b.Reduce(Op::kArgMax, x, {1}, false)}, {}, {1}}),
      named(p.b.Reduce(Op::kMax, y, {0}, false), {"extreme", {y}, {}, {0}}),
      named(p.b.Reduce(Op::kMin, y, {1}, false), {"largest", {y}, {}, {1}}),
      named(p.b.Binary(Op::kAdd, x, one), {"finite", {x}, {}, {}}),
      named(p.b.Unary(Op::kReciprocal, p.b.Binary(Op::kMul, positive, positive)),
            {"inverse_square", {positive}, {}, {}}),
      named(p.b.Binary(Op::kMul, positive, p.b.Unary(Op::kSqrt, positive)), {"half_power", {positive}, {1.5}, {}}),
      named(p.b.Unary(Op::kRsqrt, positive), {"half_power", {positive}, {-.5}, {}}),
      named(p.b.Binary(Op::kMul, x, rules::Sigmoid(p.b, y)), {"glu", {x, y}, {}, {}}),
      named(p.b.Unary(Op::kTrunc, p.b.Binary(Op::kDiv, x, positive)), {"flat", {x, positive}, {}, {}}),
      p.b.Reduce(Op::kProd, x, {1}, false),
      p.b.Reduce(Op::kProd, x, {0}, true),
      p.b.Add(Op::kCast, {x}, cast)};
  Check(p);
}

TEST(Derivatives, OfEveryRule) {  // after all others
  if (testing::GTEST_FLAG(filter) != "*") GTEST_SKIP() << "only where all tests run";
  // Against the framework instead: tests/python/test_training.py, test_custom_functions.py, test_former_memory.py,
  // gpu_training_test.py.
  const std::set<std::string> elsewhere = {"conv",      "extern",  "custom", "custom_result",
                                           "embedding", "dropout", "once",   "data"};
  for (int op = 0; op <= static_cast<int>(Op::kResult); ++op) {
    const std::string name = Info(static_cast<Op>(op)).name;
    EXPECT_TRUE(!PrimitiveRule(static_cast<Op>(op)) || elsewhere.contains(name) || Checked().contains(name)) << name;
  }
  for (const std::string& name : RuleNames()) EXPECT_TRUE(elsewhere.contains(name) || Checked().contains(name)) << name;
}

TEST(Barriers, StopGradients) {
  Problem p;
  ValueId x = p.In({3});
  p.g.outputs = {p.b.Binary(Op::kMul, x, p.b.Barrier(p.b.Unary(Op::kExp, x))), p.b.Barrier(x)};
  Joint j = Differentiate(p.g, {true}, {true, true});
  EXPECT_EQ(j.tangents[1], kNoValue);
  j.graph.outputs = {j.grads[0]};
  std::vector<double> got = Values(Interpret(j.graph, {p.inputs[0], D({1, 1, 1})})[0]);
  for (int k = 0; k < 3; ++k) EXPECT_DOUBLE_EQ(got[k], std::exp(GetElement(p.inputs[0], k)));
}

TEST(Barriers, UnknownIsRefused) {
  Problem p;
  ValueId x = p.In({3}), y = p.b.Unary(Op::kExp, x);
  p.b.SetDerivative(y, {"unknown", {}, {}, {}});
  p.g.outputs = {y};
  EXPECT_THROW(Differentiate(p.g, {true}, {true}), Undifferentiable);
  p.b.SetDerivative(y, {"once", {x}, {}, {}});  // of a formula that is no derivative's
  EXPECT_THROW(Differentiate(p.g, {true}, {true}), Undifferentiable);
}

TEST(Partition, NothingReachedGetsNothing) {
  Problem p;
  ValueId x = p.In({3}), y = p.In({3});
  p.g.outputs = {p.b.Unary(Op::kExp, x), p.b.Unary(Op::kExp, y)};
  Joint j = Differentiate(p.g, {true, true}, {true, false});
  EXPECT_NE(j.grads[0], kNoValue);
  EXPECT_EQ(j.grads[1], kNoValue);
}

TEST(Partition, CheapThingsAreComputedAgain) {
  // gelu(x W): the linear's result is saved, erf and exp are not; the weight and x are inputs.
  Problem p;
  ValueId x = p.In({8, 4}), w = p.In({16, 4});
  ValueId h = p.b.Add(Op::kLinear, {x, w});
  p.g.outputs = {p.b.Reduce(Op::kSum, rules::GeluErf(p.b, h), {0, 1}, false)};
  Joint j = Differentiate(p.g, {true, true}, {true});
  std::vector<SavedValue> where;
  Graph forward = ForwardGraph(j, ChooseSaved(j), &where);
  int made = 0;
  for (const SavedValue& s : where) made += s.output >= 0;
  EXPECT_EQ(made, 1);
  EXPECT_EQ(forward.outputs.size(), 2);
  EXPECT_EQ(forward.node(forward.outputs[1]).op, Op::kLinear);
}

TEST(Partition, OfAViewWhatItShowsIsSaved) {
  Problem p;
  ValueId x = p.In({8, 4}), w = p.In({16, 4});
  ValueId heads = p.b.Permute(p.b.Reshape(p.b.Add(Op::kLinear, {x, w}), {8, 2, 8}), {1, 0, 2});
  p.g.outputs = {p.b.Reduce(Op::kSum, p.b.Add(Op::kMatMul, {heads, p.b.Permute(heads, {0, 2, 1})}), {0, 1, 2}, false)};
  std::vector<ValueId> saved = ChooseSaved(Differentiate(p.g, {true, true}, {true}));
  for (ValueId v : saved) EXPECT_TRUE(p.g.node(v).op == Op::kInput || p.g.node(v).op == Op::kLinear);
  Check(p);
}

TEST(Partition, SubsetsOfTangentsShareTheSavedValues) {
  Problem p;
  ValueId x = p.In({3}, .5, 1);
  ValueId a = p.b.Add(Op::kMatMul, {p.b.Reshape(x, {3, 1}), p.b.Reshape(x, {1, 3})});
  p.g.outputs = {p.b.Unary(Op::kExp, a), p.b.Unary(Op::kLog, a)};
  std::vector<ValueId> saved = ChooseSaved(Differentiate(p.g, {true}, {true, true}));
  for (bool first : {true, false}) {
    Joint j = Differentiate(p.g, {true}, {first, !first});
    std::vector<GradSource> sources;
    EXPECT_EQ(Verify(BackwardGraph(j, saved, &sources)), "");
  }
}

TEST(Partition, OnAGpuAResidualStreamIsSaved) {
  for (DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    Problem p;
    auto in = [&](Ints shape) {
      const Ints strides = {shape[1], Int(1)};
      return p.b.Input(
          {DType::kFloat32, std::move(shape), Device{kind, static_cast<int16_t>(kind == DeviceKind::kCpu ? -1 : 0)}},
          strides, "");
    };
    ValueId x = in({64, 32});
    std::vector<bool> wanted = {true};
    std::set<ValueId> stream;
    for (int layer = 0; layer < 3; ++layer) {
      ValueId w = in({32, 32});
      wanted.push_back(true);
      ValueId y =
          p.b.Add(Op::kLinear, {p.b.Cast(p.b.Unary(Op::kTanh, x), DType::kBFloat16), p.b.Cast(w, DType::kBFloat16)});
      y = p.b.Cast(y, DType::kFloat32);  // what is added is half as wide as the stream
      x = p.b.Binary(Op::kAdd, x, y);
      if (layer < 2) stream.insert(x);
    }
    p.g.outputs = {p.b.Reduce(Op::kSum, p.b.Unary(Op::kTanh, x), {0, 1}, false)};
    size_t saved = 0;
    for (ValueId v : ChooseSaved(Differentiate(p.g, wanted, {true}))) saved += stream.contains(v);
    EXPECT_EQ(saved == stream.size(), kind == DeviceKind::kCuda);
  }
}

TEST(Attention, WhatTheBackwardKernelWantsIsKept) {
  Problem p;
  std::vector<ValueId> in;
  for (int i = 0; i < 3; ++i) in.push_back(p.b.Input({DType::kFloat32, {2, 3, 5, 4}, {}}, {60, 20, 4, 1}, ""));
  Attrs attrs;
  attrs.scalar = 0.5;
  attrs.flag = true;
  p.g.outputs = {p.b.Unary(Op::kExp, p.b.Add(Op::kAttention, in, attrs))};
  const std::vector<bool> wanted(3, true);
  auto find = [](const AttentionRequest& r) -> std::optional<AttentionForm> {
    EXPECT_EQ(r.scale, 0.5);
    EXPECT_TRUE(r.causal);
    return AttentionForm{"kernel",
                         {r.types[0], {DType::kFloat32, {2, 3, 5}, {}}, {DType::kUInt64, {2}, {}}},
                         {r.strides[0], {15, 5, 1}, {1}}};
  };
  const Graph g = KeepAttention(p.g, wanted, find);
  EXPECT_EQ(Verify(g), "");
  const Joint j = Differentiate(g, wanted, {true});
  const std::vector<ValueId> saved = ChooseSaved(j);
  std::vector<SavedValue> where;
  std::vector<GradSource> sources;
  auto calls = [](const Graph& g, const std::string& callee) {
    return std::count_if(g.nodes.begin(), g.nodes.end(),
                         [&](const Node& n) { return n.op == Op::kExtern && n.attrs.call->callee.name() == callee; });
  };
  const Graph forward = ForwardGraph(j, saved, &where), backward = BackwardGraph(j, saved, &sources);
  EXPECT_EQ(calls(forward, "framejit._gradients.attention"), 1);
  EXPECT_EQ(calls(backward, "framejit._gradients.attention"), 0);
  EXPECT_EQ(calls(backward, "framejit._gradients.attention_backward"), 1);
  EXPECT_EQ(Verify(backward), "");
  // nobody has such a kernel: the scores are computed again
  const Graph same = KeepAttention(p.g, wanted, [](auto&) { return std::nullopt; });
  EXPECT_EQ(same.str(), p.g.str());
}

// [B, L, H, E] seen as [B, H, L, E]: what is computed of it lies as it does.
TEST(Attention, OperandsLieAsInEager) {
  Problem p;
  std::vector<ValueId> in;
  for (int i = 0; i < 3; ++i) {
    ValueId x = p.b.Permute(p.b.Input({DType::kFloat32, {2, 5, 3, 4}, {}}, {60, 12, 4, 1}, ""), {0, 2, 1, 3});
    in.push_back(i == 2 ? x : p.b.Unary(Op::kExp, x));
  }
  const ValueId plain = p.b.Unary(Op::kExp, p.b.Input({DType::kFloat32, {2, 3, 5, 4}, {}}, {60, 20, 4, 1}, ""));
  std::vector<Ints> seen;
  auto find = [&](const AttentionRequest& r) -> std::optional<AttentionForm> {
    seen = r.strides;
    return std::nullopt;
  };
  Attrs attrs;
  attrs.scalar = 0.5;
  p.g.outputs = {p.b.Add(Op::kAttention, {in[0], plain, in[2]}, attrs)};
  const Graph g = KeepAttention(p.g, std::vector<bool>(4, true), find);
  const Ints inside = {60, 4, 12, 1}, rows = {60, 20, 4, 1};
  EXPECT_EQ(seen, (std::vector<Ints>{inside, rows, inside}));
  EXPECT_EQ(g.nodes[in[0]].strides, inside);
  EXPECT_TRUE(g.nodes[plain].strides.empty());
  EXPECT_EQ(Verify(g), "");
}

}  // namespace
}  // namespace framejit::autodiff
