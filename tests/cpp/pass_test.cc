// Passes: the text cases of tests/ir/*.fjt, and the law that no pass changes what a graph computes.
//
// A .fjt file holds cases:  === name / passes: fold, cse / graph text / --- / expected graph text (or error message).
// FRAMEJIT_BLESS=1 rewrites the expected part of every case that differs.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "host_tensors.h"
#include "pass/channels_last.h"
#include "pass/conv_products.h"
#include "pass/cse.h"
#include "pass/dce.h"
#include "pass/epilogue.h"
#include "pass/fold.h"
#include "pass/pad_products.h"
#include "pass/parts.h"
#include "pass/sink_gather.h"
#include "pass/split_bias.h"
#include "pass/split_reduce.h"
#include "pass/weights.h"

namespace framejit {
namespace {

using namespace test;

template <int (*pass)(Graph&, Device)>
int OnGpu(Graph& g) {
  return pass(g, {DeviceKind::kCuda, 0});
}

int PadProducts(Graph& g) {  // of more than 30,000 operations, so that small graphs show it
  return pass::PadProducts(g, {DeviceKind::kCuda, 0}, 3e4);
}

const std::map<std::string, int (*)(Graph&)> kPasses = {
    {"fold", pass::Fold},
    {"cse", pass::Cse},
    {"dce", pass::Dce},
    {"sink_gather", pass::SinkGather},
    {"parts", pass::ForwardParts},
    {"channels_last", OnGpu<pass::ChannelsLast>},
    {"split_reduce", [](Graph& g) { return pass::SplitReduce(g, {}); }},
    {"split_bias", OnGpu<pass::SplitBias>},
    {"pad_products", PadProducts},
    {"epilogues", OnGpu<pass::Epilogues>},
    {"pack_products", [](Graph& g) {
       std::vector<bool> weights;  // inputs named w...
       for (ValueId v : g.inputs) weights.push_back(g.nodes[v].attrs.name[0] == 'w');
       return pass::PackProducts(g, weights);
     }}};

struct Case {
  std::string name, passes, input, expected;
};

std::vector<Case> ReadCases(const std::filesystem::path& path, std::string& header) {
  std::vector<Case> cases;
  std::ifstream in(path);
  std::string* part = &header;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("=== ", 0) == 0) {
      cases.push_back({line.substr(4), "", "", ""});
      part = &cases.back().input;
    } else if (!cases.empty() && part == &cases.back().input && line.rfind("passes:", 0) == 0) {
      cases.back().passes = line.substr(7);
    } else if (!cases.empty() && line == "---") {
      part = &cases.back().expected;
    } else {
      *part += line + "\n";
    }
  }
  return cases;
}

std::string RunCase(const Case& c) {
  try {
    Graph g = Graph::Parse(c.input);
    if (std::string problem = Verify(g); !problem.empty()) return "invalid: " + problem + "\n";
    std::stringstream names(c.passes);
    for (std::string name; std::getline(names, name, ',');) {
      std::erase(name, ' ');
      if (name.empty()) continue;
      if (!kPasses.count(name)) return "no pass '" + name + "'\n";
      kPasses.at(name)(g);
      if (std::string problem = Verify(g); !problem.empty()) return "invalid after " + name + ": " + problem + "\n";
    }
    return g.str();
  } catch (const std::runtime_error& e) {
    return std::string("error: ") + e.what() + "\n";
  }
}

std::string Trimmed(const std::string& s) {
  return s.substr(0, s.find_last_not_of(" \n") + 1);
}

TEST(PassText, CasesOfTestsIr) {
  bool bless = std::getenv("FRAMEJIT_BLESS") != nullptr;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(FRAMEJIT_TEST_DIR "/ir")) {
    if (entry.path().extension() != ".fjt") continue;
    std::string header, text;
    std::vector<Case> cases = ReadCases(entry.path(), header);
    EXPECT_FALSE(cases.empty()) << entry.path();
    text = header;
    for (const Case& c : cases) {
      SCOPED_TRACE(entry.path().filename().string() + ": " + c.name);
      std::string got = RunCase(c);
      if (!bless) {
        EXPECT_EQ(Trimmed(got), Trimmed(c.expected));
      }
      text += "=== " + c.name + "\n" + Trimmed("passes:" + c.passes) + "\n" + Trimmed(c.input) + "\n---\n" +
              Trimmed(got) + "\n\n";
      ++count;
    }
    if (bless) std::ofstream(entry.path()) << Trimmed(text) << "\n";
  }
  EXPECT_GE(count, 20);
}

// A random graph over f32, f64, f16, i32 and bool values of shape [3, 4] and views of them.
class RandomGraph {
 public:
  explicit RandomGraph(uint32_t seed) : rng_(seed) {
    for (DType t : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kInt32, DType::kBool})
      b_.Input({t, {3, 4}, {}}, {4, 1}, "");
    for (int i = 0; i < 40; ++i) Step();
    for (int i = 0; i < 6; ++i) g.outputs.push_back(static_cast<ValueId>(g.nodes.size() - 1 - Pick(12)));
  }
  Graph g;

 private:
  int Pick(int n) { return static_cast<int>(rng_() % n); }
  ValueId Any() { return static_cast<ValueId>(Pick(3) ? g.nodes.size() - 1 - Pick(8) % g.nodes.size() : Pick(5)); }
  ValueId Number(ValueId like) {
    constexpr double kNumbers[] = {0.0, -0.0, 1, 2, -1, 4, 0.5, INFINITY};
    TensorType t = g.node(like).type;
    double v = kNumbers[Pick(8)];
    Scalar s = IsFloat(t.dtype) ? Scalar(v) : Scalar(int64_t(std::isinf(v) ? 3 : v));
    return b_.Constant(IsBool(t.dtype) ? Scalar(v != 0) : s, t.dtype, t.shape);
  }
  void Step() {
    constexpr Op kUnary[] = {Op::kNeg, Op::kAbs, Op::kSqrt, Op::kNot, Op::kFloor, Op::kSign, Op::kIsNan};
    constexpr Op kBinary[] = {Op::kAdd, Op::kSub, Op::kMul, Op::kDiv, Op::kMaximum, Op::kMinimum, Op::kAnd,     Op::kOr,
                              Op::kXor, Op::kPow, Op::kEq,  Op::kLt,  Op::kShl,     Op::kShr,     Op::kFloorDiv};
    constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kInt32,
                                DType::kBool,    DType::kInt64,   DType::kInt8,    DType::kBFloat16};
    ValueId x = Any();
    TensorType t = g.node(x).type;
    try {
      switch (Pick(8)) {
        case 0: b_.Unary(kUnary[Pick(7)], x); break;
        case 1:
        case 2: b_.Add(kBinary[Pick(15)], Pick(2) ? std::vector{x, Number(x)} : std::vector{Number(x), x}); break;
        case 3: {
          ValueId y = Any();
          b_.Add(kBinary[Pick(15)], {x, b_.Reshape(b_.Cast(y, t.dtype), t.shape)});
          break;
        }
        case 4: b_.Cast(b_.Cast(x, kTypes[Pick(8)]), kTypes[Pick(8)]); break;
        case 5: b_.Permute(x, t.rank() == 2 ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{}); break;
        case 6: b_.Reshape(x, Pick(2) ? shape::Ints{12} : shape::Ints{3, 4}); break;
        default: b_.Where(b_.Cast(Number(x), DType::kBool), x, Number(x)); break;
      }
    } catch (const ShapeError&) {  // does not fit: another one will
    }
  }
  std::mt19937 rng_;
  shape::Env env_;
  Builder b_{g, env_};
};

TEST(PadProducts, ValuesStay) {
  Graph g = Graph::Parse(R"(graph "t" {
  %0 = input : bf16[5, 1027]@cuda:0 strides [1027, 1]
  %1 = input : bf16[1027, 4]@cuda:0 strides [4, 1]
  %2 = input : bf16[5, 4]@cuda:0 strides [4, 1]
  %3 = matmul %0, %1 : bf16[5, 4]@cuda:0
  %4 = permute %0, axes=[1, 0] : bf16[1027, 5]@cuda:0
  %5 = matmul %4, %2 : bf16[1027, 4]@cuda:0
  return %3, %5
})");
  std::vector<HostTensor> inputs;
  for (ValueId v : g.inputs) {
    std::vector<int64_t> sizes;
    for (const shape::Int& s : g.nodes[v].type.shape) sizes.push_back(s.value());
    inputs.push_back(HostTensor::Empty(DType::kBFloat16, sizes));
    for (int64_t k = 0; k < sizes[0] * sizes[1]; ++k) SetElement(inputs.back(), k, (k * 37 % 19 - 9) / 8.0);
  }
  const std::vector<HostTensor> expected = Interpret(g, inputs);
  EXPECT_EQ(PadProducts(g), 2);
  EXPECT_EQ(Verify(g), "");
  const std::vector<HostTensor> got = Interpret(g, inputs);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(got[i].sizes, expected[i].sizes);
    for (int64_t k = 0; k < expected[i].sizes[0] * expected[i].sizes[1]; ++k)
      EXPECT_EQ(GetElement(got[i], k), GetElement(expected[i], k));
  }
}

TEST(ConvProducts, ValuesStay) {
  Graph g = Graph::Parse(R"(graph "t" {
  %0 = input : f32[1, 2, 3, 5] strides [30, 15, 5, 1]
  %1 = input : f32[4, 2, 1, 1] strides [2, 1, 1, 1]
  %2 = input : f32[18, 2, 3, 2] strides [12, 6, 2, 1]
  %3 = input : f32[4] strides [1]
  %4 = conv %0, %1, %3, axes=[1, 2, 0, 0, 1, 1, 0, 0, 1] : f32[1, 4, 3, 3]
  %5 = conv %0, %1, axes=[1, 1, 0, 0, 1, 1, 0, 0, 1] : f32[1, 4, 3, 5]
  %6 = conv %0, %2, axes=[1, 1, 1, 1, 1, 1, 0, 0, 1] : f32[1, 18, 3, 6]
  return %4, %5, %6
})");
  std::vector<HostTensor> inputs;
  for (ValueId v : g.inputs) {
    std::vector<int64_t> sizes;
    for (const shape::Int& s : g.nodes[v].type.shape) sizes.push_back(s.value());
    inputs.push_back(HostTensor::Empty(DType::kFloat32, sizes));
    for (int64_t k = 0; k < g.nodes[v].type.numel().value(); ++k)
      SetElement(inputs.back(), k, (k * 37 % 19 - 9) / 8.0);  // sums are exact
  }
  const std::vector<HostTensor> expected = Interpret(g, inputs);
  EXPECT_EQ(pass::ConvProducts(g), 2);  // the last one has larger windows
  EXPECT_EQ(Verify(g), "");
  const std::vector<HostTensor> got = Interpret(g, inputs);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(got[i].sizes, expected[i].sizes);
    int64_t count = 1;
    for (int64_t d : expected[i].sizes) count *= d;
    for (int64_t k = 0; k < count; ++k) EXPECT_EQ(GetElement(got[i], k), GetElement(expected[i], k));
  }
}

TEST(PassProperty, ValuesStayTheSameBitForBit) {
  int changed = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    RandomGraph random(seed);
    Graph g = random.g;
    ASSERT_EQ(Verify(g), "") << g.str();
    std::vector<HostTensor> inputs;
    std::mt19937 rng(seed);
    constexpr double kValues[] = {0.0, -0.0, 1.5, -2, INFINITY, NAN, 7, 1e-3};
    for (ValueId v : g.inputs) {
      HostTensor x = HostTensor::Empty(g.node(v).type.dtype, {3, 4});
      for (int k = 0; k < 12; ++k) SetElement(x, k, kValues[rng() % (IsFloat(x.dtype) ? 8 : 4)]);
      inputs.push_back(x);
    }
    std::vector<HostTensor> expected = Interpret(g, inputs);
    for (const auto& [name, run] : kPasses) {
      Graph after = random.g;
      changed += run(after) > 0;
      ASSERT_EQ(Verify(after), "") << name << "\n" << after.str();
      std::vector<HostTensor> got = Interpret(after, inputs);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(Difference(got[i], expected[i]), "") << name << "\n" << random.g.str() << after.str();
      ASSERT_EQ(run(after), 0) << name << " is not done after one run\n" << random.g.str() << after.str();
    }
    pass::Fold(g);
    pass::Cse(g);
    pass::Dce(g);
    std::vector<HostTensor> got = Interpret(g, inputs);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(Difference(got[i], expected[i]), "") << g.str();
  }
  EXPECT_GT(changed, 800);
}

}  // namespace
}  // namespace framejit
