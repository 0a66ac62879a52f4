// Decompositions against values that the framework computed (torch 2.13, float32, nine digits).
#include <gtest/gtest.h>

#include "host_tensors.h"
#include "rules/decompose.h"

namespace framejit::rules {
namespace {

using namespace test;

constexpr double kInf = INFINITY;

// One graph under construction with named inputs; Expect runs it as it stands.
class Rules : public testing::Test {
 protected:
  Graph g;
  shape::Env env;
  Builder b{g, env};
  std::vector<HostTensor> values;

  ValueId In(HostTensor t) {
    values.push_back(t);
    return b.Input(TypeOf(t), shape::Ints(t.strides.begin(), t.strides.end()), "");
  }
  ValueId In(std::vector<double> v) { return In(F(v)); }
  HostTensor Run(ValueId v) {
    g.outputs = {v};
    EXPECT_EQ(Verify(g), "");
    return Interpret(g, values).at(0);
  }
  void Expect(const char* what, ValueId v, std::vector<double> expected, double tolerance = 2e-6) {
    SCOPED_TRACE(what);
    HostTensor got = Run(v);
    ASSERT_EQ(Elements(got), std::ssize(expected));
    std::vector<double> x = Values(got);
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(expected[i])) {
        EXPECT_TRUE(std::isnan(x[i])) << i;
      } else if (std::isinf(expected[i])) {
        EXPECT_EQ(x[i], expected[i]) << i;
      } else {
        EXPECT_LE(std::fabs(x[i] - expected[i]), tolerance * std::fmax(1, std::fabs(expected[i]))) << i << ": " << x[i];
      }
    }
  }
};

struct Activation {
  const char* name;
  ValueId (*build)(Builder& b, ValueId x);
  std::vector<double> expected;
};

std::vector<Activation> Activations() {
  return {
      {"Relu",
       [](Builder& b, ValueId x) { return Relu(b, x); },
       {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 2.0, 6.5, 25.0, INFINITY, NAN}},
      {"Relu6",
       [](Builder& b, ValueId x) { return Relu6(b, x); },
       {0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 2.0, 6.0, 6.0, 6.0, NAN}},
      {"LeakyRelu",
       [](Builder& b, ValueId x) { return LeakyRelu(b, x, 0.1); },
       {-INFINITY, -3.0, -0.400000006, -0.150000006, -0.0250000004, 0.0, 0.5, 2.0, 6.5, 25.0, INFINITY, NAN}},
      {"Elu",
       [](Builder& b, ValueId x) { return Elu(b, x, 1.5); },
       {-1.5, -1.5, -1.47252655, -1.16530478, -0.331798822, 0.0, 0.5, 2.0, 6.5, 25.0, INFINITY, NAN}},
      {"Selu",
       [](Builder& b, ValueId x) { return Selu(b, x); },
       {-1.75809932, -1.75809932, -1.72589862, -1.36581433, -0.388890177, 0.0, 0.525350511, 2.10140204, 6.82955647,
        26.2675247, INFINITY, NAN}},
      {"Celu",
       [](Builder& b, ValueId x) { return Celu(b, x, 2); },
       {-2.0, -1.9999994, -1.72932947, -1.05526686, -0.235006198, 0.0, 0.5, 2.0, 6.5, 25.0, INFINITY, NAN}},
      {"Sigmoid",
       [](Builder& b, ValueId x) { return Sigmoid(b, x); },
       {0.0, 9.35762359e-14, 0.0179862101, 0.182425529, 0.437823504, 0.5, 0.622459352, 0.880797029, 0.998498797, 1.0,
        1.0, NAN}},
      {"LogSigmoid",
       [](Builder& b, ValueId x) { return LogSigmoid(b, x); },
       {-INFINITY, -30.0, -4.01814985, -1.70141327, -0.825939417, -0.693147182, -0.474076986, -0.126928017,
        -0.00150231016, -1.38879437e-11, 0.0, NAN}},
      {"Silu",
       [](Builder& b, ValueId x) { return Silu(b, x); },
       {NAN, -2.80728695e-12, -0.0719448403, -0.273638278, -0.109455876, 0.0, 0.311229676, 1.76159406, 6.490242, 25.0,
        INFINITY, NAN}},
      {"Mish",
       [](Builder& b, ValueId x) { return Mish(b, x); },
       {NAN, -2.80728695e-12, -0.0725917518, -0.298099756, -0.129926965, 0.0, 0.375245243, 1.943959, 6.49997044, 25.0,
        INFINITY, NAN}},
      {"Softplus",
       [](Builder& b, ValueId x) { return Softplus(b, x, 2, 20); },
       {0.0, 4.37825545e-27, 0.000167703183, 0.024293676, 0.237038493, 0.346573591, 0.656630814, 2.00907493, 6.50000095,
        25.0, INFINITY, NAN}},
      {"GeluErf",
       [](Builder& b, ValueId x) { return GeluErf(b, x); },
       {NAN, 0.0, -0.000126719475, -0.10021086, -0.100323431, 0.0, 0.345731199, 1.95449996, 6.5, 25.0, INFINITY, NAN}},
      {"GeluTanh",
       [](Builder& b, ValueId x) { return GeluTanh(b, x); },
       {NAN, -0.0, -7.02142715e-05, -0.100428432, -0.100324646, 0.0, 0.345714003, 1.95459771, 6.5, 25.0, INFINITY,
        NAN}},
      {"HardSigmoid",
       [](Builder& b, ValueId x) { return HardSigmoid(b, x); },
       {0.0, 0.0, 0.0, 0.25, 0.458333343, 0.5, 0.583333313, 0.833333313, 1.0, 1.0, 1.0, NAN}},
      {"HardSwish",
       [](Builder& b, ValueId x) { return HardSwish(b, x); },
       {NAN, -0.0, -0.0, -0.375, -0.114583336, 0.0, 0.291666657, 1.66666663, 6.5, 25.0, INFINITY, NAN}},
      {"HardTanh",
       [](Builder& b, ValueId x) { return HardTanh(b, x, -2, 3); },
       {-2.0, -2.0, -2.0, -1.5, -0.25, 0.0, 0.5, 2.0, 3.0, 3.0, 3.0, NAN}},
      {"SoftSign",
       [](Builder& b, ValueId x) { return SoftSign(b, x); },
       {NAN, -0.967741907, -0.800000012, -0.600000024, -0.200000003, 0.0, 0.333333343, 0.666666687, 0.866666675,
        0.961538434, NAN, NAN}},
      {"Frac",
       [](Builder& b, ValueId x) { return Frac(b, x); },
       {NAN, 0.0, 0.0, -0.5, -0.25, 0.0, 0.5, 0.0, 0.5, 0.0, NAN, NAN}},
      {"SignOrZero",
       [](Builder& b, ValueId x) { return SignOrZero(b, x); },
       {-1.0, -1.0, -1.0, -1.0, -1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0}},
      {"NanToNum",
       [](Builder& b, ValueId x) { return NanToNum(b, x, 1, 2, 3); },
       {3.0, -30.0, -4.0, -1.5, -0.25, 0.0, 0.5, 2.0, 6.5, 25.0, 2.0, 1.0}},
  };
}

const std::vector<double> kPoints = {-kInf, -30, -4, -1.5, -0.25, 0, 0.5, 2, 6.5, 25, kInf, NAN};

TEST_F(Rules, Activations) {
  ValueId x = In(kPoints);
  for (const Activation& a : Activations()) Expect(a.name, a.build(b, x), a.expected);
  Expect("Logit", Logit(b, In({0, 0.1, 0.5, 0.9, 1, NAN}), 1e-3),
         {-6.90675497, -2.19722462, 0.0, 2.19722438, 6.90676785, NAN}, 1e-5);
}

// 16-bit floats: the f32 result rounded once, so at most half a unit in the last place away from it.
TEST_F(Rules, SixteenBitFloatsRoundOnce) {
  for (DType t : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<double> points;
    for (double p = -9; p <= 9; p += 0.173) points.push_back(p);
    HostTensor narrow = Make(t, {std::ssize(points)}, points);
    HostTensor wide = F(Values(narrow));
    ValueId x = In(narrow), y = In(wide);
    for (const Activation& a : Activations()) {
      SCOPED_TRACE(a.name);
      HostTensor expected = Make(t, narrow.sizes, Values(Run(a.build(b, y))));
      EXPECT_EQ(Difference(Run(a.build(b, x)), expected), "");
    }
  }
}

TEST_F(Rules, ReductionsNormsAndLosses) {
  std::vector<double> waves(24), cosines(24), shifted(24);
  for (int i = 0; i < 24; ++i) {
    waves[i] = std::sin(static_cast<float>(i));
    cosines[i] = std::cos(2 * waves[i]);
    shifted[i] = waves[i] + 1;
  }
  ValueId m = In(F({3, 4}, {1, -2, 3, 0.5, 0.25, 7, -1, 2, 4, 4, 4, 4})), t = In(F({2, 4, 3}, waves));
  ValueId w = In({1, 2, -1, 0.5}), bias = In({0, 1, 2, -3}), mean = In({.1, .2, .3, .4}),
          variance = In({1, 2, .5, .25});
  ValueId q = In(F({1, 2, 4, 3}, waves)), k = In(F({1, 2, 4, 3}, cosines)), v = In(F({1, 2, 4, 3}, shifted));
  ValueId mask = In(F({4, 4}, {0, 0, 0, 0, -kInf, -kInf, -kInf, -kInf, -kInf, 0, 0, 0, .5, 1, -1, 0}));
  BatchStatistics now = BatchNormStatistics(b, t);
  Expect("softmax", Softmax(b, m, 1),
         {0.110553741, 0.00550414668, 0.816887796, 0.0670542344, 0.00116130547, 0.991823137, 0.000332719588,
          0.00668285182, 0.25, 0.25, 0.25, 0.25});
  Expect("log_softmax 0", LogSoftmax(b, m, 0),
         {-3.07074237, -9.0487051, -1.31817544, -3.65317822, -3.82074237, -0.0487048514, -5.31817532, -2.15317822,
          -0.0707424581, -3.04870486, -0.318175405, -0.153178245});
  Expect("layer_norm", LayerNorm(b, m, 1, w, bias, 1e-5),
         {0.210558385, -1.94781756, 0.666463494, -3.03509307, -0.595568895, 4.24482346, 3.00630617, -3.01026845, 0.0,
          1.0, 2.0, -3.0});
  Expect("rms_norm", RmsNorm(b, m, 1, w, 1e-5),
         {0.529812157, -2.11924863, -1.58943653, 0.132453039, 0.0680020154, 3.80811286, 0.272008061, 0.272008061,
          0.999999762, 1.99999952, -0.999999762, 0.499999881});
  Expect("var corr1", VarMean(b, m, {1}, 1, false).variance, {4.22916651, 12.348958, 0.0});
  Expect("logsumexp", LogSumExp(b, m, {1}, false), {3.20225358, 7.00821066, 5.38629436});
  Expect("group_norm", GroupNorm(b, t, 2, w, bias, 1e-5),
         {-0.0412341617, 1.14054501,  1.23580182,  1.31391537,  -1.20820642,  -1.77593446, 2.4547267,   1.11818361,
          0.643783808,   -2.73384404, -3.41620135, -3.74160767, -0.843133271, 0.541837692, 1.36760366,  2.74991846,
          0.0336786695,  -1.91621339, 3.1663909,   1.85276079,  0.740063727,  -2.42565417, -3.04210854, -3.65262938});
  Expect("bn eval", BatchNormEval(b, t, mean, variance, w, bias, 1e-5),
         {-0.0999995023, 0.741467237,  0.80929333,  0.916731358, -0.353119612, -0.638962269, 2.81940913,  1.49514985,
          1.02511013,    -2.98788166,  -3.94400215, -4.39996243, -0.636569738, 0.320165426,  0.890602946, 1.6368016,
          0.310002297,   -0.642459869, 3.48630548,  2.21230364,  1.13317335,   -2.56335306,  -3.40884304, -4.24619532});
  Expect("bn train", BatchNormEval(b, t, now.mean, now.variance, w, bias, 1e-5),
         {-0.791681767, 0.73102653,   0.853763819, 2.67996216,  -0.316672683, -0.991213322,  2.87712646,  1.40836942,
          0.887040854,  -2.54668021,  -3.26448536, -3.60679603, -1.76265299,  -0.0313562788, 1.00090063,  4.37920713,
          1.24818361,   -0.999467015, 3.61679196,  2.20377612,  1.00689542,   -2.22796655,   -2.86271596, -3.49135613});
  Expect("rm", RunningUpdate(b, Like(b, w, 0), now.mean, 0.1),
         {0.0437494963, -0.0362269953, 0.0279794093, -0.0191718172});
  Expect("rv", RunningUpdate(b, Like(b, w, 1), now.unbiased_variance, 0.1),
         {0.936644733, 0.94309622, 0.948774755, 0.953228116});
  Expect("sdpa causal", Attention(b, q, k, v, kNone, true, 1 / std::sqrt(3.0)),
         {1.0,        1.84147096, 1.90929747,  1.06969285, 1.05215573,  0.986666918, 0.948878527, 1.25244939,
          1.3239193,  1.06065595, 1.06415427,  1.0086695,  0.463427067, 1.42016697,  1.99060738,  1.01609123,
          1.09045255, 1.08165216, 0.773370087, 1.08335626, 1.31670511,  1.00399101,  1.0835067,   1.08624661});
  Expect("sdpa mask", Attention(b, q, k, v, mask, false, 0.7),
         {1.07930529,  1.0247196,  0.947406709, 0.0,         0.0,         0.0,        1.10307372,  0.784651697,
          0.664219677, 1.11346471, 0.840988159, 0.714706302, 1.10813367,  1.05253565, 0.948636532, 0.0,
          0.0,         0.0,        1.26188028,  0.966296315, 0.701699317, 1.19260037, 1.01194632,  0.820308864});
}

TEST_F(Rules, AttentionAgreesWithThePrimitive) {
  std::vector<double> v(48);
  for (size_t i = 0; i < v.size(); ++i) v[i] = std::cos(1.7 * i);
  ValueId q = In(F({2, 2, 4, 3}, v)), k = In(F({2, 2, 4, 3}, v)), value = In(F({2, 2, 4, 3}, v));
  ValueId mask = In(F({1, 1, 4, 4}, {0, 1, -kInf, 2, -kInf, -kInf, -kInf, -kInf, 0, 0, 0, 0, 1, 2, 3, 4}));
  Attrs attrs;
  attrs.scalar = 0.3;
  Expect("mask", Attention(b, q, k, value, mask, false, 0.3),
         Values(Run(b.Add(Op::kAttention, {q, k, value, mask}, attrs))));
  attrs.flag = true;
  Expect("causal", Attention(b, q, k, value, kNone, true, 0.3),
         Values(Run(b.Add(Op::kAttention, {q, k, value}, attrs))));
}

TEST_F(Rules, Elementwise) {
  ValueId start = In({0, 1, 2}), end = In({10, 20, 30});
  Expect("lerp", Lerp(b, start, end, In({0, .75, 1})), {0, 15.25, 30});
  Expect("logaddexp", LogAddExp(b, In({1, -kInf, kInf, 100}), In({2, -kInf, kInf, NAN})),
         {2.31326175, -kInf, kInf, NAN});
  Expect("clamp", Clamp(b, In({-5, 0.5, 5, NAN}), In({-1, -1, -1, -1}), In({1, 1, -2, 1})), {-1, 0.5, -2, NAN});
  Expect("trunc", DivTrunc(b, In({-7, 7}), In({2, 2})), {-3, 3});
  Expect("trunc", DivTrunc(b, In(I({-7, 7})), In(I({2, 2}))), {-3, 3});
}

TEST_F(Rules, Structure) {
  EXPECT_EQ(Difference(Run(OneHot(b, In(I({2, 0})), 3, DType::kInt64)), I({2, 3}, {0, 0, 1, 1, 0, 0})), "");
  ValueId x = In(F({2, 3}, {1, 2, 3, 4, 5, NAN}));
  EXPECT_EQ(Difference(Run(Tril(b, x, 0)), F({2, 3}, {1, 0, 0, 4, 5, 0})), "");
  EXPECT_EQ(Difference(Run(Triu(b, x, 1)), F({2, 3}, {0, 2, 3, 0, 0, NAN})), "");
  EXPECT_EQ(Difference(Run(Tril(b, x, -1)), F({2, 3}, {0, 0, 0, 4, 0, 0})), "");
}

TEST_F(Rules, ReductionsOfSixteenBitFloatsAccumulateWide) {
  ValueId x = In(Make(DType::kFloat16, {4000}, std::vector<double>(4000, 1)));
  Expect("sum", Sum(b, x, {0}, false, DType::kFloat16), {4000});
  Expect("mean", Mean(b, In(Make(DType::kFloat16, {2}, {60000, 60000})), {0}, false),
         {60000});  // the sum overflows f16
}

TEST_F(Rules, EmptyAndTooFew) {
  Expect("mean", Mean(b, In(F({0}, {})), {0}, false), {NAN});
  Expect("variance", VarMean(b, In({3}), {0}, 1, false).variance, {NAN});
  Expect("logsumexp", LogSumExp(b, In(F({2, 2}, {-kInf, -kInf, kInf, 1})), {1}, false), {-kInf, kInf});
}

TEST_F(Rules, SymbolicSizes) {
  shape::Int n = env.NewSymbol({"n", 3, 2});
  g.symbols = {env.symbol(0)};
  g.symbol_sources = {{0, 1}};
  values.push_back(F({2, 3}, {1, 2, 3, 4, 5, 9}));
  ValueId x = b.Input({DType::kFloat32, {2, n}, {}}, {n, 1}, "x");
  Expect("mean", Mean(b, x, {1}, false), {2, 6});
  Expect("layer_norm", LayerNorm(b, x, 1, kNone, kNone, 0),
         {-1.2247449, 0, 1.2247449, -0.9258201, -0.4629100, 1.3887301});
  EXPECT_TRUE(env.guards().empty());
}

}  // namespace
}  // namespace framejit::rules
