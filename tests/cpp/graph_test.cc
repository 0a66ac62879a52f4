// Builder, text form, verifier.
#include "framejit/graph.h"

#include <gtest/gtest.h>

#include <cmath>

#include "graph/packed.h"
#include "graph/raises.h"

namespace framejit {
namespace {

using shape::Int;
using shape::Ints;

const char* const kEverything = R"fjt(graph "every \"thing\"" {
  symbol s0 = input 0 dim 0 hint 8 range 2..100 name "L['x'].size(0)"
  symbol s1 = scalar 1 hint 3 range 0..inf
  symbol s2 = unbound runtime hint 5 range 0..inf name "nonzero"
  %0 = input name="x" : f32[s0, 4] strides [s1, 1]
  %1 = input name="y" : bf16[]@cuda:1
  %2 = constant value=-0.0 : f64[s0]
  %3 = constant size=(s0*2 + 1) : i64[] loc "m.py":7
  %4 = constant value=true, syms=[2] : bool[2]
  %5 = iota axes=[1] : i32[2, (s0 // 2)]
  %6 = sum %0, axes=[1], dtype=f32, flag : f32[s0, 1] loc "m.py":8
  %7 = slice %0, axes=[0], syms=[1, (s0 - 1), 1] : f32[(s0 - 1), 4] strides [1, (s0 - 1)]
  %8 = pad %7, value=1e-05, syms=[1, 0, 0, 0] : f32[s0, 4]
  %9 = scatter %0, %0, %0, axes=[0], name="add" : f32[s0, 4]
  %10 = extern %0, %1, call={%1, %2 = torch.topk(%0, (s0 // 2), 2.0, -inf, "a\x01\n", None, True, (1,), (), [s0, (s0 + 1)], slice(None, 3, -1), ..., {"k": 1}, dtype("float32"), device("cuda:0"), layout("strided"), memory_format("preserve"), complex(1.0, -2.0), object(3), dim=-1, largest=False) -> [%1, (%2, None)] nograd inference loc "n.py":9}, results=[f32[s2], i64[s2]] : f32[s2]
  %11 = result %10, axes=[1] : i64[s2]
  %12 = extern call={torch.manual_seed(0)}, results=[] : f32[]
  write 0 <- %8
  require s2 < (s0 + 1)
  require 1 <= s2
  return %6, %11, %6
}
)fjt";

TEST(GraphText, RoundTripIsTheIdentity) {
  std::string once = Graph::Parse(kEverything).str();
  EXPECT_EQ(Graph::Parse(once).str(), once);
  std::string expected = kEverything;  // what the type says is not printed
  for (const char* redundant : {", syms=[2]", ", dtype=f32"}) {
    size_t at = expected.find(redundant);
    ASSERT_NE(at, std::string::npos);
    expected.erase(at, std::string_view(redundant).size());
  }
  EXPECT_EQ(once, expected);
}

TEST(PackedGraph, IsTheGraph) {
  const Graph everything = Graph::Parse(kEverything);
  EXPECT_EQ(PackedGraph(everything).Unpack().str(), everything.str());
}

TEST(PackedGraph, AlikeNodesKeepWhatIsTheirs) {
  Graph g = Graph::Parse(R"(graph "g" {
    %0 = input name="x" : f32[4]
    %1 = input name="y" : f32[4]
    %2 = constant value=0.0 : f32[4] loc "m.py":1
    %3 = constant value=-0.0 : f32[4] loc "m.py":2
    %4 = add %0, %2 : f32[4] loc "m.py":3
    %5 = add %1, %3 : f32[4] loc "m.py":4
    %6 = add %4, %5 : f32[4] loc "n.py":4
    %7 = add %4, %5 : f32[4] strides [2] loc "m.py":4
    %8 = exp %6 : f32[4]
    %9 = exp %7 : f32[4]
    %10 = exp %9 : f32[4]
    %11 = exp %9 : f32[4]
    return %8, %11
  })");
  const auto derivative = [&](ValueId v, Derivative d) { g.nodes[v].derivative = std::make_shared<Derivative>(d); };
  derivative(8, {"relu", {0, 6}, {0.0}, {}});
  derivative(9, {"relu", {1, 7}, {0.0}, {}});
  derivative(10, {"relu", {1, 7}, {-0.0}, {}});
  derivative(11, {"stop", {}, {}, {2}});
  const Graph again = PackedGraph(g).Unpack();
  EXPECT_EQ(again.str(), g.str());
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Derivative *was = g.nodes[v].derivative.get(), *now = again.nodes[v].derivative.get();
    ASSERT_EQ(!was, !now);
    if (!was) continue;
    EXPECT_EQ(now->rule, was->rule);
    EXPECT_EQ(now->operands, was->operands);
    EXPECT_EQ(now->axes, was->axes);
    ASSERT_EQ(now->numbers.size(), was->numbers.size());
    for (size_t i = 0; i < was->numbers.size(); ++i)
      EXPECT_EQ(std::signbit(now->numbers[i]), std::signbit(was->numbers[i]));
  }
}

TEST(GraphText, ParseKeepsEveryField) {
  Graph g = Graph::Parse(kEverything);
  EXPECT_EQ(g.name, "every \"thing\"");
  EXPECT_EQ(g.symbols[0].max, 100);
  EXPECT_EQ(g.symbols[2].kind, shape::SymbolKind::kRuntime);
  EXPECT_EQ(g.symbol_sources[1].input, 1);
  EXPECT_EQ(g.symbol_sources[1].dim, -1);
  EXPECT_EQ(g.inputs, (std::vector<ValueId>{0, 1}));
  ASSERT_EQ(g.conditions.size(), 2u);
  EXPECT_EQ(g.conditions[0].cmp, shape::Cmp::kLt);
  EXPECT_EQ(g.conditions[1].rhs, Int::Symbol(2));
  EXPECT_EQ(g.node(1).type.device, (Device{DeviceKind::kCuda, 1}));
  EXPECT_EQ(g.node(4).attrs.syms, Ints{2});
  EXPECT_EQ(g.node(6).attrs.dtype, DType::kFloat32);
  EXPECT_TRUE(g.node(6).attrs.flag);
  EXPECT_EQ(g.node(3).attrs.sym_scalar, Int::Symbol(0) * 2 + 1);
  const Call& call = *g.node(10).attrs.call;
  EXPECT_EQ(call.args.size(), 19);
  EXPECT_EQ(call.args[1].i, FloorDiv(Int::Symbol(0), 2));
  EXPECT_EQ(call.args[4].s, "a\x01\n");
  EXPECT_EQ(call.args[9].items[1].i, Int::Symbol(0) + 1);
  EXPECT_EQ(call.kwargs[1].first, "largest");
  EXPECT_EQ(call.file, "n.py");
  EXPECT_FALSE(call.mode.grad);
  EXPECT_TRUE(call.mode.inference);
  EXPECT_EQ(g.node(12).attrs.call->result.kind, Arg::Kind::kNone);
  EXPECT_EQ(g.writes[0].value, 8);
  EXPECT_EQ(g.outputs, (std::vector<ValueId>{6, 11, 6}));
}

TEST(GraphText, ErrorsHaveAPlace) {
  auto message = [](const std::string& body) -> std::string {
    try {
      Graph::Parse("graph \"g\" {\n" + body + "\n}");
      return "parsed";
    } catch (const std::runtime_error& e) {
      return e.what();
    }
  };
  EXPECT_EQ(message("  %0 = inptu : f32[]"), "line 2, column 7: unknown operation 'inptu'");
  EXPECT_EQ(message("  %1 = input : f32[]"), "line 2, column 5: expected value %0");
  EXPECT_EQ(message("  %0 = input : f31[]"), "line 2, column 16: unknown dtype");
  EXPECT_EQ(message("  %0 = input : f32[2, ]"), "line 2, column 23: expected a size expression");
  EXPECT_EQ(message("  %0 = input : f32[2"), "line 3, column 1: expected ']'");
  EXPECT_EQ(message("  %0 = neg %0 : f32[]"), "line 2, column 12: operand is not defined before its use");
  EXPECT_EQ(message("  %0 = input, color=3 : f32[]"), "line 2, column 13: expected an attribute");
  EXPECT_EQ(message("  %0 = input name=\"x : f32[]"), "line 3, column 2: unterminated string");
  EXPECT_EQ(message("  return %0"), "line 2, column 10: undefined value %0");
  EXPECT_EQ(message("  # only a comment"), "line 3, column 1: expected 'return'");
  EXPECT_EQ(message("  return\n} x"), "line 3, column 3: text after the end of the graph");
  EXPECT_EQ(message("  symbol s1 = unbound"), "line 2, column 10: expected symbol s0");
  EXPECT_EQ(message("  %0 = extern call={torch.f(a=1, 2)} : f32[]"),
            "line 2, column 34: positional argument after a keyword");
  EXPECT_EQ(message("  return"), "parsed");
}

TEST(Verifier, FindsTheFirstViolation) {
  auto verdict = [](const std::string& body) { return Verify(Graph::Parse("graph \"g\" {" + body + "}")); };
  const std::string x = "%0 = input : f32[4, 2]\n";
  EXPECT_EQ(verdict(x + "%1 = exp %0 : f32[4, 2] return %1"), "");
  EXPECT_EQ(verdict(x + "%1 = exp %0 : f32[4, 3] return"), "type should be f32[4, 2]: %1 = exp %0 : f32[4, 3]");
  EXPECT_EQ(verdict(x + "%1 = exp %0 : f64[4, 2] return"), "type should be f32[4, 2]: %1 = exp %0 : f64[4, 2]");
  EXPECT_EQ(verdict(x + "%1 = exp %0 : f32[s0, 2] return"), "symbol s0 is not declared: %1 = exp %0 : f32[s0, 2]");
  EXPECT_EQ(verdict(x + "%1 = exp %0 : f32[4, 2] strides [1] return"),
            "needs a stride per dim: %1 = exp %0 : f32[4, 2] strides [1]");
  EXPECT_EQ(verdict(x + "%1 = add %0 : f32[4, 2] return"), "add: takes 2 operands, got 1: %1 = add %0 : f32[4, 2]");
  EXPECT_EQ(verdict(x + "%1 = extern %0 : f32[4, 2] return"), "extern without a call: %1 = extern %0 : f32[4, 2]");
  EXPECT_EQ(verdict(x + "%1 = result %0, axes=[0] : f32[4, 2] return"),
            "result of something else than a call: %1 = result %0, axes=[0] : f32[4, 2]");
  EXPECT_EQ(verdict(x + "write 1 <- %0 return"), "write to an input that is not there");
  EXPECT_EQ(verdict(x + "%1 = constant value=0 : f32[4] write 0 <- %1 return"),
            "write of f32[4] to input 0 of type f32[4, 2]");
  EXPECT_EQ(verdict("symbol s0 = input 0 dim 2 " + x + "return"), "a symbol's source is not there");
  // A graph does not carry its guards: sizes that the hints call equal are taken to be.
  EXPECT_EQ(verdict("symbol s0 = input 0 dim 0 hint 4 symbol s1 = input 1 dim 0 hint 4 %0 = input : f32[s0] "
                    "%1 = input : f32[s1] %2 = add %0, %1 : f32[s1] return %2"),
            "");
}

TEST(Verifier, UndefinedNumbersInHandMadeGraphs) {
  Graph g = Graph::Parse("graph \"g\" { %0 = input : f32[] %1 = exp %0 : f32[] return %1 }");
  Graph bad = g;
  bad.nodes[1].operands[0] = 1;
  EXPECT_EQ(Verify(bad), "operand %1 is not defined before its use: %1 = exp %1 : f32[]");
  bad = g;
  bad.outputs[0] = 9;
  EXPECT_EQ(Verify(bad), "output %9 is not defined");
  bad = g;
  bad.inputs.clear();
  EXPECT_EQ(Verify(bad), "input is not listed once: %0 = input : f32[]");
}

class BuilderTest : public testing::Test {
 protected:
  Graph g;
  shape::Env env;
  Builder b{g, env};
  ValueId Input(Ints shape, DType t = DType::kFloat32) { return b.Input({t, shape, {}}, Ints(shape.size()), "x"); }
};

TEST_F(BuilderTest, TrivialNodesAreNotMade) {
  ValueId x = Input({2, 3});
  EXPECT_EQ(b.Cast(x, DType::kFloat32), x);
  EXPECT_EQ(b.Reshape(x, {2, 3}), x);
  EXPECT_EQ(b.Permute(x, {0, 1}), x);
  EXPECT_EQ(b.Broadcast(x, {2, 3}), x);
  EXPECT_EQ(b.Slice(x, 1, 0, 3), x);
  EXPECT_EQ(b.Reduce(Op::kSum, x, {}, false), x);
  EXPECT_EQ(b.Reduce(Op::kMax, x, {}, true), x);
  EXPECT_EQ(g.nodes.size(), 1);
  EXPECT_NE(b.Permute(x, {1, 0}), x);
  EXPECT_NE(b.Slice(x, 1, 1, 2), x);
  ValueId square = Input({2, 2});
  EXPECT_NE(b.Permute(square, {1, 0}), square);  // same type, other value
  EXPECT_NE(b.BroadcastInDim(square, {2, 2}, {1, 0}), square);
  EXPECT_NE(b.Slice(square, 0, 1, 2, -1), square);
}

TEST_F(BuilderTest, NegativeAxesAndReductions) {
  ValueId x = Input({2, 3, 4});
  EXPECT_EQ(b.type(b.Reduce(Op::kSum, x, {-1, 0}, false)).str(), "f32[3]");
  EXPECT_EQ(b.type(b.Reduce(Op::kSum, x, {-1}, true, DType::kFloat64)).str(), "f64[2, 3, 1]");
  EXPECT_EQ(b.type(b.Reduce(Op::kArgMax, x, {1}, false)).str(), "i64[2, 4]");
  EXPECT_EQ(b.type(b.Reduce(Op::kAny, x, {1}, false)).str(), "bool[2, 4]");
  EXPECT_EQ(b.type(b.Permute(x, {-1, 0, 1})).str(), "f32[4, 2, 3]");
  EXPECT_THROW(b.Reduce(Op::kSum, x, {3}, false), ShapeError);
  EXPECT_THROW(b.Reduce(Op::kSum, x, {1, -2}, false), ShapeError);
}

TEST_F(BuilderTest, BroadcastingAsksOnlyWhatItMust) {
  Int n = env.NewSymbol({"n", 8, 2}), m = env.NewSymbol({"m", 8, 2}), one = env.NewSymbol({"one", 1});
  EXPECT_EQ(BroadcastShapes({n, 1}, {4}, env), (Ints{n, 4}));
  EXPECT_EQ(BroadcastShapes({1}, {3, n}, env), (Ints{3, n}));
  EXPECT_TRUE(env.guards().empty());
  EXPECT_EQ(BroadcastShapes({n}, {m}, env), Ints{n});
  ASSERT_EQ(env.guards().size(), 1);
  EXPECT_EQ(env.guards()[0].str(), "s0 == s1");
  EXPECT_EQ(BroadcastShapes({one}, {n}, env), Ints{n});  // s2 != s0 follows from no range: both are asked
  EXPECT_EQ(env.Simplify(one), Int(1));
  EXPECT_EQ(BroadcastShapes({n}, {8}, env), Ints{8});
  EXPECT_EQ(env.Simplify(m), Int(8));
  EXPECT_THROW(BroadcastShapes({3}, {4}, env), ShapeError);
}

TEST_F(BuilderTest, ASizeThatIsOneBecomesTheNumber) {
  Int one = env.NewSymbol({"one", 1});
  ValueId v = b.Broadcast(Input({one}), {5});
  EXPECT_EQ(g.node(v).op, Op::kBroadcast);
  EXPECT_EQ(b.type(g.node(v).operands[0]).shape, Ints{1});
}

TEST_F(BuilderTest, ManyResultsFollowTheirCall) {
  auto call = std::make_shared<Call>();
  call->callee = "torch.max";
  ValueId x = Input({2, 3});
  ValueId v = b.Extern(call, {x}, {{DType::kFloat32, {2}, {}}, {DType::kInt64, {2}, {}}}, {{1}, {2}});
  EXPECT_EQ(g.node(v + 2).op, Op::kResult);
  EXPECT_EQ(b.type(v + 2).str(), "i64[2]");
  EXPECT_EQ(g.node(v + 2).strides, Ints{2});
  g.outputs = {v + 1, v + 2};
  EXPECT_EQ(Verify(g), "");
}

TEST_F(BuilderTest, SizesThatTurnedOutEqualBecomeOneExpression) {
  Int n = env.NewSymbol({"n", 8}), m = env.NewSymbol({"m", 8}), k = env.NewSymbol({"k", 4});
  ValueId x = Input({n}), y = Input({m}), count = b.SymConstant(k, DType::kFloat32);
  ValueId sum = b.Binary(Op::kAdd, b.Unary(Op::kExp, x), b.Unary(Op::kExp, y));
  env.Specialize(k);
  g.symbols = {env.symbol(0), env.symbol(1), env.symbol(2)};
  g.symbol_sources = {{0, 0}, {1, 0}, {-1, 0}};
  EXPECT_EQ(b.type(y).shape, Ints{m});
  SimplifySizes(g, env);
  for (ValueId v : {x, y, sum}) EXPECT_EQ(b.type(v).shape, Ints{n});
  EXPECT_EQ(g.node(count).attrs.scalar, Scalar(4));
  EXPECT_FALSE(g.node(count).attrs.sym_scalar);
  EXPECT_EQ(Verify(g), "");
}

TEST_F(BuilderTest, SizesOfOneValueBecomeNumbers) {
  Int n = env.NewSymbol({"n", 64, 1, INT64_MAX}), m = env.NewSymbol({"m", 5, 1, INT64_MAX});
  const Int half = n - FloorDiv(n + Int(1), 2);  // of chunk(2, -1)[1]; 64 and 65 have the same
  ValueId x = Input({m, half});
  EXPECT_TRUE(env.Eq(m * 32, m * half));
  g.symbols = {env.symbol(0), env.symbol(1)};
  g.symbol_sources = {{-1, 0}, {0, 0}};
  SimplifySizes(g, env);
  EXPECT_EQ(b.type(x).shape, (Ints{m, 32}));
}

TEST(GraphHash, DependsOnMeaningOnly) {
  auto hash = [](const std::string& s) { return Graph::Parse(s).Hash(); };
  uint64_t h = hash(
      "graph \"a\" { symbol s0 = input 0 dim 0 hint 3 name \"n\" %0 = input name=\"x\" : f32[s0] %1 = exp %0 : f32[s0] "
      "loc \"f\":1 return %1 }");
  EXPECT_EQ(
      h, hash("graph \"b\" { symbol s0 = input 0 dim 0 hint 9 %0 = input : f32[s0] %1 = exp %0 : f32[s0] return %1 }"));
  EXPECT_NE(
      h, hash("graph \"b\" { symbol s0 = input 0 dim 0 hint 9 %0 = input : f32[s0] %1 = log %0 : f32[s0] return %1 }"));
  EXPECT_NE(
      h, hash("graph \"b\" { symbol s0 = input 0 dim 0 hint 9 %0 = input : f32[s0] %1 = exp %0 : f32[s0] return %0 }"));
  EXPECT_NE(h,
            hash("graph \"b\" { symbol s0 = scalar 0 hint 9 %0 = input : f32[s0] %1 = exp %0 : f32[s0] return %1 }"));
}

TEST(CallText, Prints) {
  Call c;
  c.callee = "torch.Tensor.transpose";
  c.args = {Arg::Tensor(2), Arg::Int(1), Arg::Int(2)};
  c.results = {3};
  c.result = Arg::Tensor(3);
  EXPECT_EQ(c.str(), "%3 = torch.Tensor.transpose(%2, 1, 2)");
  c.mode.grad = false;
  EXPECT_EQ(c.str(), "%3 = torch.Tensor.transpose(%2, 1, 2) nograd");
}

// What is stored into a part of an array, and read back in parts, is computed as far as those parts reach.
TEST(Raises, PartsOfWhatIsPutTogetherAreFollowed) {
  const auto outputs = [](const std::string& last) {
    Graph g = Graph::Parse(R"(graph "g" {
      %0 = input : f64[6, 6] strides [6, 1]
      %1 = slice %0, axes=[1], syms=[1, 4, 1] : f64[6, 4]
      %2 = mul %1, %1 : f64[6, 4]
      %3 = slice %0, axes=[1], syms=[0, 1, 1] : f64[6, 1]
      %4 = slice %0, axes=[1], syms=[5, 1, 1] : f64[6, 1]
      %5 = cat %3, %2, %4, axes=[1] : f64[6, 6]
      %6 = slice %5, axes=[1], syms=[0, 4, 1] : f64[6, 4]
      %7 = slice %5, axes=[1], syms=)" +
                           last +
                           R"( : f64[6, 1]
      %8 = reshape %7 : f64[6]
      return %6, %8
    })");
    KeepRaising(g, true);
    return g.outputs;
  };
  EXPECT_EQ(outputs("[4, 1, 1]"), (std::vector<ValueId>{6, 8}));
  EXPECT_EQ(outputs("[5, 1, 1]"), (std::vector<ValueId>{6, 8, 2}));  // the last column of %2 is read by nobody

  Graph moving = Graph::Parse(R"(graph "g" {
    symbol s0 = scalar 0 hint 2 range 1..4 name "n"
    %0 = input : f64[6] strides [1]
    %1 = slice %0, axes=[0], syms=[0, s0, 1] : f64[s0]
    %2 = slice %0, axes=[0], syms=[s0, (-s0 + 6), 1] : f64[(-s0 + 6)]
    %3 = exp %1 : f64[s0]
    %4 = exp %2 : f64[(-s0 + 6)]
    %5 = cat %3, %4, axes=[0] : f64[6]
    %6 = slice %5, axes=[0], syms=[1, 2, 1] : f64[2]
    return %6
  })");
  KeepRaising(moving, true);
  EXPECT_EQ(moving.outputs, (std::vector<ValueId>{6, 4, 3}));
}

// Of a large value only the elements that nobody reads become outputs: here two corners.
TEST(Raises, PiecesOfLargeValues) {
  Graph g = Graph::Parse(R"(graph "g" {
    %0 = input : f64[200, 100] strides [100, 1]
    %1 = exp %0 : f64[200, 100]
    %2 = slice %1, axes=[0], syms=[1, 198, 1] : f64[198, 100]
    %3 = slice %1, axes=[1], syms=[0, 99, 1] : f64[200, 99]
    return %2, %3
  })");
  KeepRaising(g, true);
  EXPECT_EQ(Verify(g), "");
  ASSERT_EQ(g.outputs.size(), 4u);
  for (size_t i : {2, 3}) {  // each is computed of what it needs, so that nothing has to hold the whole
    const Node& piece = g.nodes[g.outputs[i]];
    EXPECT_EQ(piece.op, Op::kExp);
    EXPECT_EQ(piece.type.shape, (shape::Ints{shape::Int(1), shape::Int(1)}));
  }
  Graph plain = g;
  plain.outputs.resize(2);
  KeepRaising(plain, false);
  EXPECT_EQ(plain.outputs.size(), 2u);
}

}  // namespace
}  // namespace framejit
