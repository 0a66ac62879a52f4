// Every row of ops.def, with values worked out by hand: through the parser, type inference, the verifier and the
// interpreter. A row without a sample fails the test.
#include <gtest/gtest.h>

#include <set>

#include "host_tensors.h"

namespace framejit {
namespace {

using namespace test;

constexpr double kNan = NAN, kInf = INFINITY;

struct Sample {
  std::string text;  // "add %0, %1": the last node without number and type (earlier ones complete, a line each)
  std::vector<HostTensor> inputs;
  HostTensor expected;
  double tolerance = 0;
};

HostTensor H(DType t, std::vector<double> v) {
  return Make(t, {std::ssize(v)}, v);
}
HostTensor Zero(DType t, double v) {
  return Make(t, {}, {v});
}

constexpr double e = 3e-7;
constexpr DType i8 = DType::kInt8, u8 = DType::kUInt8, i32 = DType::kInt32, f16 = DType::kFloat16,
                bf16 = DType::kBFloat16;

// Creation, and what is computed of one operand.
std::vector<Sample> OfOneOperand() {
  return {
      {"pack %0, name=\"conv\"", {F({1, 2})}, F({1, 2})},
      // creation
      {"add %0, %0", {F({1})}, F({2})},
      {"constant value=1.5", {}, F({2, 2}, {1.5, 1.5, 1.5, 1.5})},
      {"constant value=-1", {}, H(u8, {255})},
      {"constant value=2049", {}, H(f16, {2048})},  // half to even
      {"constant value=true", {}, Zero(DType::kBool, 1)},
      {"iota axes=[1]", {}, I({2, 3}, {0, 1, 2, 0, 1, 2})},
      {"iota axes=[0]", {}, F({2, 2}, {0, 0, 1, 1})},
      {"iota axes=[0]", {}, I({0}, {})},
      // one operand
      {"neg %0", {F({0.0, -2, kNan})}, F({-0.0, 2, kNan})},
      {"neg %0", {H(i8, {-128, 5})}, H(i8, {-128, -5})},
      {"abs %0", {F({-0.0, -2, -kInf})}, F({0.0, 2, kInf})},
      {"abs %0", {H(i8, {-128, -3})}, H(i8, {-128, 3})},
      {"sign %0", {F({-3, -0.0, 2, kNan})}, F({-1, 0, 1, kNan})},
      {"sign %0", {I({-3, 0, 9})}, I({-1, 0, 1})},
      {"ceil %0", {F({-0.5, 1.2})}, F({-0.0, 2})},
      {"floor %0", {F({-0.5, 1.2})}, F({-1, 1})},
      {"floor %0", {I({3})}, I({3})},
      {"trunc %0", {F({-1.7, 1.7})}, F({-1, 1})},
      {"round %0", {F({0.5, 1.5, 2.5, -0.5})}, F({0, 2, 2, -0.0})},
      {"sqrt %0", {F({4, -0.0, -1})}, F({2, -0.0, kNan})},
      {"rsqrt %0", {F({4, 0})}, F({0.5, kInf})},
      {"reciprocal %0", {F({4, -0.0})}, F({0.25, -kInf})},
      {"exp %0", {F({0, 1, -kInf, 100})}, F({1, M_E, 0, kInf}), e},
      {"exp2 %0", {F({3, -1})}, F({8, 0.5}), e},
      {"expm1 %0", {F({1e-6, -0.0})}, F({1.0000005e-6, -0.0}), 1e-12},
      {"log %0", {F({1, 0, -1})}, F({0, -kInf, kNan})},
      {"log2 %0", {F({8})}, F({3}), e},
      {"log10 %0", {F({1000})}, F({3}), e},
      {"log1p %0", {F({1e-6, -1})}, F({9.999995e-7, -kInf}), 1e-12},
      {"sin %0", {F({M_PI / 6, -0.0})}, F({0.5, -0.0}), e},
      {"cos %0", {F({M_PI / 3, kInf})}, F({0.5, kNan}), e},
      {"tan %0", {F({M_PI / 4})}, F({1}), e},
      {"asin %0", {F({0.5, 2})}, F({M_PI / 6, kNan}), e},
      {"acos %0", {F({0.5})}, F({M_PI / 3}), e},
      {"atan %0", {F({1, kInf})}, F({M_PI / 4, M_PI / 2}), e},
      {"sinh %0", {F({1})}, F({1.1752012}), e},
      {"cosh %0", {F({1})}, F({1.5430806}), e},
      {"tanh %0", {F({0.5, kInf})}, F({0.46211716, 1}), e},
      {"asinh %0", {F({1})}, F({0.88137359}), e},
      {"acosh %0", {F({2, 0.5})}, F({1.3169579, kNan}), e},
      {"atanh %0", {F({0.5, 1})}, F({0.54930614, kInf}), e},
      {"erf %0", {F({0.5, kInf})}, F({0.52049988, 1}), e},
      {"erfc %0", {F({0.5})}, F({0.47950012}), e},
      {"not %0", {B({0, 1})}, B({1, 0})},
      {"not %0", {H(u8, {5})}, H(u8, {250})},
      {"isnan %0", {F({1, kNan})}, B({0, 1})},
      {"isnan %0", {I({1})}, B({0})},
      {"isinf %0", {F({-kInf, kNan, 1})}, B({1, 0, 0})},
      {"signbit %0", {F({-0.0, 0.0})}, B({1, 0})},
      {"signbit %0", {I({-1, 1})}, B({1, 0})},
  };
}

// Conversions, and what is computed of two operands.
std::vector<Sample> OfTwoOperands() {
  return {
      // conversions
      {"cast %0", {F({-1.7, 1.7, 300})}, I({-1, 1, 300})},
      {"cast %0", {F({300, -1})}, H(u8, {44, 255})},
      {"cast %0", {F({kNan, 3e9})}, H(i32, {-2147483648., -2147483648.})},
      {"cast %0", {F({0, -0.0, kNan, 0.1})}, B({0, 0, 1, 1})},
      {"cast %0", {I({257, -1})}, H(i8, {1, -1})},
      {"cast %0", {F({65519, 65520, 1e-8, 6e-8, 1 + 1. / 2048})}, H(f16, {65504, kInf, 0, 5.9604644775390625e-8, 1})},
      {"cast %0", {F({1 + 1. / 256, 1 + 3. / 256, kNan})}, H(bf16, {1, 1 + 4. / 256, kNan})},
      {"cast %0", {B({1, 0})}, F({1, 0})},
      {"bitcast %0", {F({1, -0.0})}, H(i32, {1065353216., -2147483648.})},
      // two operands
      {"add %0, %1", {F({1, -0.0, kInf}), F({2, 0.0, -kInf})}, F({3, 0.0, kNan})},
      {"add %0, %1", {H(u8, {200}), H(u8, {100})}, H(u8, {44})},
      {"add %0, %1", {B({0, 1}), B({0, 1})}, B({0, 1})},
      {"add %0, %1", {H(f16, {2048}), H(f16, {1})}, H(f16, {2048})},
      {"sub %0, %1", {H(i8, {-128}), H(i8, {1})}, H(i8, {127})},
      {"mul %0, %1", {B({1, 1}), B({0, 1})}, B({0, 1})},
      {"mul %0, %1", {H(i32, {65536}), H(i32, {65536})}, H(i32, {0})},
      {"mul %0, %1", {F({0, kInf}), F({-1, 0})}, F({-0.0, kNan})},
      {"div %0, %1", {F({1, -1, 0}), F({4, 0, 0})}, F({0.25, -kInf, kNan})},
      {"floordiv %0, %1", {I({-7, 7, -7, 7}), I({2, -2, -2, 2})}, I({-4, -4, 3, 3})},
      {"floordiv %0, %1", {F({-1, 1, -0.0, 5, kInf}), F({kInf, 0, 2, -kInf, 2})}, F({-1, kInf, -0.0, -1, kNan})},
      {"truncdiv %0, %1", {I({-7, 7}), I({2, -2})}, I({-3, -3})},
      {"rem %0, %1", {I({-7, 7, -7}), I({2, -2, -2})}, I({1, -1, -1})},
      {"rem %0, %1", {F({-7, 7, -4}), F({2, -2, 2})}, F({1, -1, -0.0})},
      {"fmod %0, %1", {I({-7, 7}), I({3, -3})}, I({-1, 1})},
      {"fmod %0, %1", {F({-7, 5}), F({3, 0})}, F({-1, kNan})},
      {"pow %0, %1", {F({2, -8, 0, -kInf}), F({10, 1. / 3, 0, 0.5})}, F({1024, kNan, 1, kInf})},
      {"pow %0, %1", {I({2, -1, 2, 0, 3}), I({62, -3, -1, -1, 0})}, I({4611686018427387904., -1, 0, 0, 1})},
      {"atan2 %0, %1", {F({1, -0.0}), F({-1, -1})}, F({3 * M_PI / 4, -M_PI}), e},
      {"hypot %0, %1", {F({3e30, kInf}), F({4e30, kNan})}, F({5e30, kInf}), e},
      {"copysign %0, %1", {F({3, 0}), F({-0.0, -1})}, F({-3, -0.0})},
      {"maximum %0, %1", {F({1, kNan, 1}), F({2, 1, kNan})}, F({2, kNan, kNan})},
      {"minimum %0, %1", {F({1, kNan, 1}), F({2, 1, kNan})}, F({1, kNan, kNan})},
      {"and %0, %1", {I({12}), I({10})}, I({8})},
      {"or %0, %1", {B({0, 1}), B({0, 0})}, B({0, 1})},
      {"xor %0, %1", {B({1, 1}), B({0, 1})}, B({1, 0})},
      {"shl %0, %1", {H(i32, {1, 1, 1}), H(i32, {31, 32, -1})}, H(i32, {-2147483648., 0, 0})},
      {"shr %0, %1", {I({-8, -8, 8}), I({1, 64, 70})}, I({-4, -1, 0})},
      {"shr %0, %1", {H(u8, {255, 255}), H(u8, {4, 8})}, H(u8, {15, 0})},
      {"eq %0, %1", {F({0.0, kNan}), F({-0.0, kNan})}, B({1, 0})},
      {"ne %0, %1", {F({1, kNan}), F({1, kNan})}, B({0, 1})},
      {"lt %0, %1", {F({1, kNan, 2}), F({2, 1, 2})}, B({1, 0, 0})},
      {"le %0, %1", {I({1, 2, 3}), I({2, 2, 2})}, B({1, 1, 0})},
      {"where %0, %1, %2", {B({1, 0}), F({1, 2}), F({-1, -2})}, F({1, -2})},
  };
}

// Views, indexing and reductions.
std::vector<Sample> OfShapes() {
  return {
      // views
      {"broadcast %0, axes=[1]", {F({1, 2})}, F({3, 2}, {1, 2, 1, 2, 1, 2})},
      {"broadcast %0, axes=[0, 1]", {F({2, 1}, {1, 2})}, F({2, 2}, {1, 1, 2, 2})},
      {"broadcast %0", {Zero(DType::kFloat32, 7)}, F({7, 7})},
      {"reshape %0", {F({2, 3}, {1, 2, 3, 4, 5, 6})}, F({3, 2}, {1, 2, 3, 4, 5, 6})},
      {"reshape %0", {F({0, 3}, {})}, F({2, 0}, {})},
      {"permute %0, axes=[1, 0]", {F({2, 3}, {1, 2, 3, 4, 5, 6})}, F({3, 2}, {1, 4, 2, 5, 3, 6})},
      {"slice %0, axes=[0], syms=[1, 2, 2]", {F({1, 2, 3, 4})}, F({2, 4})},
      {"slice %0, axes=[0], syms=[3, 3, -1]", {F({1, 2, 3, 4})}, F({4, 3, 2})},
      {"flip %0, axes=[0]", {F({1, 2, 3})}, F({3, 2, 1})},
      {"pad %0, value=9.0, syms=[1, -1]", {F({1, 2, 3})}, F({9, 1, 2})},
      {"pad %0, value=-1, syms=[0, 0, 1, 0]", {I({2, 1}, {1, 2})}, I({2, 2}, {-1, 1, -1, 2})},
      {"cat %0, %1, axes=[1]", {F({2, 1}, {1, 2}), F({2, 2}, {3, 4, 5, 6})}, F({2, 3}, {1, 3, 4, 2, 5, 6})},
      // indexing
      {"take %0, %1, axes=[0]", {F({3, 2}, {1, 2, 3, 4, 5, 6}), I({2, 0, 9})}, F({3, 2}, {5, 6, 1, 2, 5, 6})},
      {"take %0, %1, axes=[1]", {F({2, 2}, {1, 2, 3, 4}), I({2, 1}, {1, 0})}, F({2, 2, 1}, {2, 1, 4, 3})},
      {"gather %0, %1, axes=[1]", {F({2, 3}, {1, 2, 3, 4, 5, 6}), I({2, 2}, {2, 0, 1, 1})}, F({2, 2}, {3, 1, 5, 5})},
      {"scatter %0, %1, %2, axes=[0], name=\"add\"", {F({1, 1}), I({0, 0, 5}), F({2, 3, 4})}, F({6, 1})},
      {"scatter %0, %1, %2, axes=[0], name=\"set\"", {F({1, 1}), I({1, 1}), F({2, 3})}, F({1, 3})},
      {"scatter %0, %1, %2, axes=[0], name=\"max\"", {F({1, kNan}), I({0, 1}), F({2, 3})}, F({2, kNan})},
      {"cumsum %0, axes=[0]", {F({2, 2}, {1, 2, 3, 4})}, F({2, 2}, {1, 2, 4, 6})},
      {"cumsum %0, axes=[1]", {I({2, 2}, {1, 2, 3, 4})}, I({2, 2}, {1, 3, 3, 7})},
      // reductions
      {"sum %0, axes=[1]", {F({2, 3}, {1, 2, 3, 4, 5, 6})}, F({6, 15})},
      {"sum %0, axes=[0, 1]", {F({2, 3}, {1, 2, 3, 4, 5, 6})}, Zero(DType::kFloat32, 21)},
      {"sum %0, axes=[0], flag", {F({1e8, 1, -1e8})}, F({1}), e},
      {"sum %0, axes=[0]", {B({1, 1, 1})}, Zero(DType::kInt64, 3)},
      {"sum %0, axes=[0]", {F({0, 2}, {})}, F({0, 0})},
      {"sum %0, axes=[0]", {H(f16, {2048, 1, 1, 1, 1})}, Zero(f16, 2052)},
      {"prod %0, axes=[0]", {I({2, 3, 4})}, Zero(DType::kInt64, 24)},
      {"prod %0, axes=[0]", {F({0}, {})}, Zero(DType::kFloat32, 1)},
      {"max %0, axes=[0]", {F({2, 2}, {1, kNan, 3, 2})}, F({3, kNan})},
      {"max %0, axes=[1]", {F({0, 2}, {})}, F({0}, {})},
      {"min %0, axes=[1], flag", {F({2, 2}, {1, 2, -kInf, 2})}, F({2, 1}, {1, -kInf})},
      {"argmax %0, axes=[1]", {F({2, 3}, {1, 3, 3, 1, kNan, 9})}, I({1, 1})},
      {"argmin %0, axes=[0], flag", {F({4, 1, 1})}, I({1}, {1})},
      {"any %0, axes=[1]", {F({2, 2}, {0, kNan, 0, -0.0})}, B({1, 0})},
      {"all %0, axes=[0]", {B({})}, Zero(DType::kBool, 1)},
  };
}

// Contractions and calls.
std::vector<Sample> OfLargeOperations() {
  return {
      // contractions
      {"matmul %0, %1", {F({2, 2}, {1, 2, 3, 4}), F({2, 1}, {5, 6})}, F({2, 1}, {17, 39})},
      {"matmul %0, %1", {F({2, 1, 1}, {2, 3}), F({2, 1, 2}, {1, 2, 3, 4})}, F({2, 1, 2}, {2, 4, 9, 12})},
      {"matmul %0, %1", {F({1, 0}, {}), F({0, 2}, {})}, F({1, 2}, {0, 0})},
      {"linear %0, %1, %2", {F({2}, {1, 2}), F({2, 2}, {1, 0, 3, 4}), F({10, -20})}, F({11, -9})},
      {"linear %0, %1, %2, name=\"packed\"",
       {F({1, 2}, {1, 2}), F({2, 2}, {1, 0, -3, -4}), F({2, 2}, {1, 0, -3, -4})},
       F({1, 2}, {1, -11})},
      {"conv %0, %1, axes=[1, 0, 1, 0, 1]",
       {F({1, 1, 4}, {1, 2, 3, 4}), F({1, 1, 2}, {1, 10})},
       F({1, 1, 3}, {21, 32, 43})},
      {"conv %0, %1, %2, axes=[2, 1, 1, 0, 2]",
       {F({1, 2, 3}, {1, 2, 3, 4, 5, 6}), F({2, 1, 3}, {1, 1, 1, 1, 0, -1}), F({0.5, 0})},
       F({1, 2, 2}, {3.5, 5.5, -5, 5})},
      {"conv %0, %1, axes=[1, 1, 1, 1, 1, 1, 0, 0, 1]",
       {F({1, 1, 2, 2}, {1, 2, 3, 4}), F({1, 1, 3, 3}, {0, 0, 0, 0, 1, 0, 0, 0, 2})},
       F({1, 1, 2, 2}, {9, 2, 3, 4})},
      {"conv %0, %1, axes=[2, 0, 1, 0, 1], flag",
       {F({1, 1, 2}, {1, 2}), F({1, 1, 2}, {1, 10})},
       F({1, 1, 4}, {1, 10, 2, 20})},
      {"conv %0, %1, axes=[1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1]",
       {F({1, 1, 1, 1, 2}, {1, 2}), F({1, 1, 1, 1, 2}, {1, 10})},
       F({1, 1, 1, 1, 1}, {21})},
      {"attention %0, %1, %2, value=1.0",
       {F({1, 1, 1, 1}, {0}), F({1, 1, 2, 1}, {1, 2}), F({1, 1, 2, 1}, {1, 3})},
       F({1, 1, 1, 1}, {2})},
      {"attention %0, %1, %2, value=1.0, flag",
       {F({1, 1, 2, 1}, {0, 0}), F({1, 1, 2, 1}, {1, 2}), F({1, 1, 2, 1}, {1, 3})},
       F({1, 1, 2, 1}, {1, 2})},
      {"attention %0, %1, %2, %3, value=1.0",
       {F({1, 1, 2, 1}, {0, 0}), F({1, 1, 2, 1}, {1, 2}), F({1, 1, 2, 1}, {1, 3}),
        F({1, 1, 2, 2}, {-kInf, 0, -kInf, -kInf})},
       F({1, 1, 2, 1}, {3, 0})},
      {"attention %0, %1, %2, value=2.0",
       {F({1, 1, 1, 1}, {1}), F({1, 1, 2, 1}, {0, std::log(3.) / 2}), F({1, 1, 2, 1}, {0, 4})},
       F({1, 1, 1, 1}, {3}),
       e},
      // calls: see Doubled() below
      {"extern %0, call={%1 = test.double(%0)}", {F({1, 2})}, F({2, 4})},
      {"%1 = extern %0, call={%1, %2 = test.double(%0)}, results=[f32[2], f32[2]] : f32[2]\nresult %1, axes=[1]",
       {F({1, 2})},
       F({4, 8})},
      {"input name=\"x\"", {}, F({3}), 0},  // inputs are what every other sample has: see Run
  };
}

std::vector<Sample> Samples() {
  std::vector<Sample> all;
  for (auto family : {OfOneOperand, OfTwoOperands, OfShapes, OfLargeOperations})
    for (Sample& s : family()) all.push_back(std::move(s));
  return all;
}

std::vector<HostTensor> Doubled(const Node& n, const std::vector<HostTensor>& in) {
  std::vector<HostTensor> out;
  for (size_t i = 0; i < n.attrs.result_types.size(); ++i) {
    HostTensor x = Make(in[0].dtype, in[0].sizes, Values(in[0]));
    for (int64_t k = 0; k < Elements(x); ++k) SetElement(x, k, GetElement(x, k) * (i == 0 ? 2 : 4));
    out.push_back(x);
  }
  return out;
}

Graph Build(const Sample& s) {
  std::string text = "graph \"t\" {\n";
  size_t count = 0;
  for (const HostTensor& x : s.inputs) text += "%" + std::to_string(count++) + " = input : " + TypeOf(x).str() + "\n";
  size_t last = s.text.rfind('\n');
  if (last != std::string::npos) {
    text += s.text.substr(0, last + 1);
    count += 1;
  }
  text += "%" + std::to_string(count) + " = " + s.text.substr(last == std::string::npos ? 0 : last + 1);
  return Graph::Parse(text + " : " + TypeOf(s.expected).str() + "\nreturn %" + std::to_string(count) + "\n}");
}

TEST(Ops, EveryRowDoesWhatItSays) {
  std::set<std::string> covered;
  for (const Sample& s : Samples()) {
    SCOPED_TRACE(s.text);
    Graph g = Build(s);
    covered.insert(Info(g.nodes.back().op).name);
    ASSERT_EQ(Verify(g), "");
    ASSERT_EQ(Graph::Parse(g.str()).str(), g.str());
    std::vector<HostTensor> inputs = s.inputs;
    if (g.nodes.back().op == Op::kInput) inputs.push_back(s.expected);
    EXPECT_EQ(Difference(Interpret(g, inputs, Doubled).at(0), s.expected, s.tolerance), "");
  }
  for (const char* name : {
#define X(e, name, arity, kind, type, attrs, accepts, cost, approximate, raises, twice) name,
#include "framejit/ops.def"
#undef X
       })
    EXPECT_TRUE(covered.count(name)) << "no sample of " << name;
}

// Operands that lie in memory in another order than row-major give the same values.
TEST(Ops, StridesOfInputsDoNotMatter) {
  for (const Sample& s : Samples()) {
    SCOPED_TRACE(s.text);
    if (s.inputs.empty()) continue;
    std::vector<HostTensor> strided;
    for (const HostTensor& x : s.inputs) {  // column-major, every second element, not at the start
      HostTensor y = x;
      int64_t stride = 2;
      for (size_t d = 0; d < x.sizes.size(); ++d) {
        y.strides[d] = stride;
        stride *= std::max<int64_t>(1, x.sizes[d]);
      }
      y.offset = 3;
      y.storage = std::make_shared<std::vector<std::byte>>((stride + 3) * DTypeSize(x.dtype));
      for (int64_t k = 0; k < Elements(x); ++k) SetElement(y, k, GetElement(x, k));
      strided.push_back(y);
    }
    Graph g = Build(s);
    EXPECT_EQ(Difference(Interpret(g, strided, Doubled).at(0), s.expected, s.tolerance), "");
  }
}

TEST(Ops, InferRefusesWhatDoesNotFit) {
  struct Bad {
    Op op;
    std::vector<TensorType> operands;
    Attrs attrs;
    const char* message;
  };
  const TensorType f2{DType::kFloat32, {2}, {}}, f3{DType::kFloat32, {3}, {}}, i2{DType::kInt64, {2}, {}},
      f22{DType::kFloat32, {2, 2}, {}}, empty{DType::kFloat32, {0}, {}}, b2{DType::kBool, {2}, {}};
  auto axes = [](std::vector<int64_t> v) {
    Attrs a;
    a.axes = std::move(v);
    return a;
  };
  auto syms = [](shape::Ints v, std::vector<int64_t> axes = {}) {
    Attrs a;
    a.syms = std::move(v);
    a.axes = std::move(axes);
    return a;
  };
  const Bad cases[] = {
      {Op::kAdd, {f2}, {}, "add: takes 2 operands, got 1"},
      {Op::kAdd, {f2, f3}, {}, "add: shapes [2] and [3] differ"},
      {Op::kAdd, {f2, i2}, {}, "add: dtypes f32 and i64 differ"},
      {Op::kDiv, {i2, i2}, {}, "div: not defined for i64"},
      {Op::kAnd, {f2, f2}, {}, "and: not defined for f32"},
      {Op::kSub, {b2, b2}, {}, "sub: not defined for bool"},
      {Op::kWhere, {f2, f2, f2}, {}, "where: the condition must be bool"},
      {Op::kSum, {f2}, axes({1}), "sum: axis 1 is out of range or repeated"},
      {Op::kSum, {f22}, axes({0, 0}), "sum: axis 0 is out of range or repeated"},
      {Op::kMax, {empty}, axes({0}), "max: an empty axis has no extremum"},
      {Op::kArgMax, {f22}, axes({0, 1}), "argmax: needs one axis"},
      {Op::kReshape, {f2}, syms({3}), "reshape: f32[2] has another number of elements than [3]"},
      {Op::kBroadcast, {f2}, syms({4, 3}, {1}), "broadcast: f32[2] does not broadcast to [4, 3]"},
      {Op::kPermute, {f22}, axes({0}), "permute: needs every axis once"},
      {Op::kSlice, {f2}, syms({1, 2, 1}, {0}), "slice: index 2 is outside of f32[2]"},
      {Op::kPad, {f2}, syms({-1, -2}), "pad: crops more than there is"},
      {Op::kCat, {f2, i2}, axes({0}), "cat: dtypes differ"},
      {Op::kTake, {f2, f2}, axes({0}), "take: indices must be i64"},
      {Op::kMatMul, {f22, {DType::kFloat32, {3, 2}, {}}}, {}, "matmul: contracted sizes: 2 and 3 differ"},
      {Op::kLinear, {f3, f22}, {}, "linear: contracted sizes: 3 and 2 differ"},
  };
  for (const Bad& c : cases) {
    shape::Env env;
    try {
      Infer(c.op, c.operands, c.attrs, env);
      ADD_FAILURE() << c.message;
    } catch (const ShapeError& e) {
      EXPECT_STREQ(e.what(), c.message);
    }
  }
}

TEST(Ops, TablesAgree) {
  for (int i = 0; i <= static_cast<int>(Op::kResult); ++i) {
    Op op = static_cast<Op>(i);
    EXPECT_EQ(ParseOp(Info(op).name), op);
    EXPECT_TRUE(std::string_view("CPVIRMXW").find(Info(op).kind) != std::string_view::npos);
  }
  EXPECT_FALSE(ParseOp("gelu"));
  for (int i = 0; i < kNumDTypes; ++i) EXPECT_EQ(ParseDType(DTypeName(static_cast<DType>(i))), static_cast<DType>(i));
  EXPECT_FALSE(ParseDType("float32"));
}

}  // namespace
}  // namespace framejit
