// What the interpreter does around single operations (those: ops_test.cc): symbols, writes, layouts, calls, failures.
#include <gtest/gtest.h>

#include <bit>

#include "graph/half.h"
#include "host_tensors.h"

namespace framejit {
namespace {

using namespace test;

TEST(Interpreter, SizesComeFromInputsAndScalars) {
  Graph g = Graph::Parse(R"(graph "g" {
    symbol s0 = input 0 dim 0 hint 8
    symbol s1 = scalar 0 hint 8
    %0 = input : f32[s0]
    %1 = sum %0, axes=[0] : f32[]
    %2 = constant size=s0*2 : f32[]
    %3 = div %1, %2 : f32[]
    %4 = broadcast %3 : f32[s1, s0]
    %5 = slice %0, axes=[0], syms=[1, (s0 - 1), 1] : f32[(s0 - 1)]
    return %4, %5
  })");
  ASSERT_EQ(Verify(g), "");
  auto out = Interpret(g, {F({1, 2, 9})}, {}, {2});
  EXPECT_EQ(Difference(out[0], F({2, 3}, {2, 2, 2, 2, 2, 2})), "");
  EXPECT_EQ(Difference(out[1], F({2, 9})), "");
}

TEST(Interpreter, WritesComeLastAndReachTheCallersMemory) {
  Graph g = Graph::Parse(R"(graph "swap" {
    %0 = input : f32[2]
    %1 = input : f32[2]
    %2 = permute %0, axes=[0] : f32[2]
    write 0 <- %1
    write 1 <- %0
    return %2
  })");
  HostTensor a = F({1, 2}), b = F({3, 4});
  auto out = Interpret(g, {a, b});
  EXPECT_EQ(Difference(a, F({3, 4})), "");
  EXPECT_EQ(Difference(b, F({1, 2})), "");
  EXPECT_EQ(Difference(out[0], F({1, 2})), "");  // what it was, not what was written since
}

TEST(Interpreter, WritesToAStridedInput) {
  Graph g = Graph::Parse("graph \"g\" { %0 = input : f32[2, 2] %1 = neg %0 : f32[2, 2] write 0 <- %1 return }");
  HostTensor whole = F({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}), view = whole;
  view.sizes = {2, 2};
  view.strides = {4, 2};
  view.offset = 1;
  Interpret(g, {view});
  EXPECT_EQ(Difference(whole, F({2, 4}, {1, -2, 3, -4, 5, -6, 7, -8})), "");
}

TEST(Interpreter, OutputsHaveTheLayoutAskedFor) {
  Graph g =
      Graph::Parse("graph \"g\" { %0 = input : f32[2, 3] %1 = neg %0 : f32[2, 3] strides [1, 2] return %1, %1, %0 }");
  HostTensor x = F({2, 3}, {1, 2, 3, 4, 5, 6});
  auto out = Interpret(g, {x});
  EXPECT_EQ(out[0].strides, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(Difference(out[0], F({2, 3}, {-1, -2, -3, -4, -5, -6})), "");
  SetElement(out[0], 0, 7);
  EXPECT_EQ(GetElement(out[1], 0), -1);  // every output is memory of its own
  SetElement(out[2], 0, 7);
  EXPECT_EQ(GetElement(x, 0), 1);
}

TEST(Interpreter, RuntimeSymbolsAreReadFromResults) {
  Graph g = Graph::Parse(R"(graph "g" {
    symbol s0 = unbound runtime
    %0 = input : f32[4]
    %1 = extern %0, call={%1 = torch.masked_select(%0)} : f32[s0]
    %2 = constant size=s0 : f32[s0]
    %3 = add %1, %2 : f32[s0]
    return %3
  })");
  auto out = Interpret(g, {F({1, 2, 3, 4})}, [](const Node& n, const std::vector<HostTensor>& in) {
    EXPECT_EQ(n.attrs.call->callee.name(), "torch.masked_select");
    EXPECT_EQ(in.size(), 1);
    return std::vector<HostTensor>{F({5, 6, 7})};
  });
  EXPECT_EQ(Difference(out[0], F({8, 9, 10})), "");
}

TEST(Interpreter, RefusesWhatItCannotDo) {
  auto run = [](const std::string& body, std::vector<HostTensor> in) -> std::string {
    try {
      Interpret(Graph::Parse("graph \"g\" {" + body + "}"), in);
      return "ran";
    } catch (const std::exception& e) {
      return e.what();
    }
  };
  EXPECT_EQ(run("%0 = input : f32[2] return %0", {}), "the graph takes 1 inputs, got 0");
  EXPECT_EQ(run("%0 = input : f32[2] return %0", {F({1})}),
            "value does not have the type it should have: %0 = input : f32[2]");
  EXPECT_EQ(run("%0 = extern call={%0 = torch.f()} : f32[] return %0", {}), "nobody runs the call %0 = torch.f()");
  EXPECT_EQ(run("%0 = constant value=1 : c64[] %1 = add %0, %0 : c64[] return %1", {}),
            "the interpreter does not compute c64");
  EXPECT_EQ(run("%0 = constant value=1 : c64[2] %1 = flip %0, axes=[0] : c64[2] return", {}), "ran");  // moving is fine
  EXPECT_EQ(run("symbol s0 = input 0 dim 0 %0 = input : f32[s0] %1 = max %0, axes=[0] : f32[] return %1", {F({0}, {})}),
            "max: an empty axis has no extremum");
  EXPECT_EQ(
      run("symbol s0 = input 0 dim 0 %0 = input : f32[s0] %1 = slice %0, axes=[0], syms=[2, 2, 1] : f32[2] return %1",
          {F({1, 2, 3})}),
      "slice: outside of the operand");
}

TEST(Interpreter, BigIntegersKeepEveryBit) {
  Graph g = Graph::Parse(R"(graph "g" {
    %0 = constant value=9223372036854775807 : i64[]
    %1 = constant value=1 : i64[]
    %2 = add %0, %1 : i64[]
    %3 = sub %0, %1 : i64[]
    return %2, %3
  })");
  auto out = Interpret(g, {});
  EXPECT_EQ(std::bit_cast<int64_t>(*reinterpret_cast<const std::array<char, 8>*>(out[0].data())), INT64_MIN);
  EXPECT_EQ(std::bit_cast<int64_t>(*reinterpret_cast<const std::array<char, 8>*>(out[1].data())), INT64_MAX - 1);
}

// The nearest representable value, ties to the one with an even last bit, found by looking at all of them.
template <class T, T (*Narrow)(float)>
void CheckRounding(uint16_t largest_finite) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    T h{static_cast<uint16_t>(bits)};
    float wide = Widen(h);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(Widen(Narrow(wide))));
    } else {
      ASSERT_EQ(Narrow(wide).bits, bits);
    }
  }
  for (uint16_t low = 0; low < largest_finite; ++low) {  // neighbours and what lies between
    uint16_t high = low + 1;
    double a = Widen(T{low}), b = Widen(T{high}), middle = (a + b) / 2;
    if (static_cast<double>(static_cast<float>(middle)) != middle) continue;  // no float there
    float m = static_cast<float>(middle);
    ASSERT_EQ(Narrow(m).bits, low % 2 == 0 ? low : high);
    ASSERT_EQ(Narrow(std::nextafter(m, 0.0f)).bits, low);
    ASSERT_EQ(Narrow(std::nextafter(m, INFINITY)).bits, high);
    ASSERT_EQ(Narrow(-m).bits, 0x8000 | (low % 2 == 0 ? low : high));
  }
}
TEST(Half, RoundsToNearestEven) {
  CheckRounding<Half, NarrowHalf>(0x7BFF);
}
TEST(BFloat16, RoundsToNearestEven) {
  CheckRounding<BFloat16, NarrowBFloat16>(0x7F7F);
}

TEST(Half, Overflow) {
  EXPECT_EQ(NarrowHalf(65504.0f).bits, 0x7BFF);
  EXPECT_EQ(NarrowHalf(65519.99f).bits, 0x7BFF);
  EXPECT_EQ(NarrowHalf(65520.0f).bits, 0x7C00);
  EXPECT_EQ(NarrowHalf(-INFINITY).bits, 0xFC00);
  EXPECT_EQ(NarrowBFloat16(3.4e38f).bits, 0x7F80);
}

}  // namespace
}  // namespace framejit
