// The surface without Python: calls are built by hand, lowered, and the graph is run by the interpreter.
#include "surface/surface.h"

#include <gtest/gtest.h>

#include "host_tensors.h"
#include "surface/layout.h"
#include "surface/promote.h"
#include "surface/rows.h"
#include "surface/signature.h"

namespace framejit::surface {
namespace {

using shape::Int;
using shape::Ints;
using Kind = Arg::Kind;

Arg I(int64_t v) {
  return Arg::Int(v);
}
Arg T(TraceId v) {
  return Arg::Tensor(v);
}
Arg Tuple(std::vector<Arg> v) {
  return Arg::Seq(Kind::kTuple, std::move(v));
}
Arg Slice(Arg a, Arg b, Arg c = Arg::None()) {
  return Arg::Seq(Kind::kSlice, {a, b, c});
}
Arg Type(const char* name) {
  Arg a = Arg::Str(name);
  a.kind = Kind::kDType;
  return a;
}
Arg Ellipsis() {
  Arg a;
  a.kind = Kind::kEllipsis;
  return a;
}

// A program under construction; inputs hold 0, 1, 2, ...
struct Program {
  Trace trace;
  Graph graph;
  shape::Env env;
  std::vector<std::vector<TensorMeta>> inferred;  // what the framework would answer, call by call
  std::vector<Call> asked;
  Lowering lowering{trace, graph, env,
                    [this](Call& c, const std::vector<TensorMeta>&, std::string*) -> std::optional<Inferred> {
                      asked.push_back(c);
                      if (inferred.empty()) return std::nullopt;
                      auto first = inferred.front();
                      inferred.erase(inferred.begin());
                      std::vector<Inferred::Alias> aliases(first.size());
                      return Inferred{std::move(first), std::move(aliases)};
                    }};
  std::vector<HostTensor> inputs;

  TraceId Input(std::vector<int64_t> sizes, DType t = DType::kFloat32, Framework fw = Framework::kTorch,
                Ints strides = {}) {
    TensorMeta m;
    m.framework = fw;
    m.dtype = t;
    m.sizes = Ints(sizes.begin(), sizes.end());
    m.strides = strides.empty() ? RowMajor(m.sizes) : strides;
    int64_t n = 1;
    for (int64_t s : sizes) n *= s;
    std::vector<double> values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<double>(i);
    inputs.push_back(test::Make(t, sizes, values));
    return lowering.AddInput(m, "x" + std::to_string(inputs.size()));
  }
  TraceId Symbolic(std::vector<int64_t> sizes) {  // every size a symbol
    TensorMeta m;
    Ints symbols;
    for (int64_t s : sizes) {
      shape::SymbolInfo info;
      info.hint = s;
      info.min = 2;
      symbols.push_back(env.NewSymbol(info));
    }
    m.sizes = symbols;
    m.strides = RowMajor(m.sizes);
    int64_t n = 1;
    for (int64_t s : sizes) n *= s;
    std::vector<double> values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<double>(i);
    inputs.push_back(test::Make(DType::kFloat32, sizes, values));
    return lowering.AddInput(m, "x" + std::to_string(inputs.size()));
  }
  Call Do(const std::string& callee, std::vector<Arg> args, std::vector<std::pair<std::string, Arg>> kwargs = {}) {
    Call c;
    c.callee = callee;
    c.args = std::move(args);
    c.kwargs = std::move(kwargs);
    lowering.Apply(c);
    return c;
  }
  TraceId Get(const std::string& callee, std::vector<Arg> args, std::vector<std::pair<std::string, Arg>> kwargs = {}) {
    return Do(callee, std::move(args), std::move(kwargs)).results.at(0);
  }
  const TensorMeta& meta(TraceId t) { return lowering.meta(t); }
  std::vector<int64_t> Strides(TraceId t) {
    std::vector<int64_t> out;
    for (const Int& s : meta(t).strides) out.push_back(env.Hint(s));
    return out;
  }
  // Values of the outputs (which must be bases); inputs are written in place.
  std::vector<std::vector<double>> Run(const std::vector<TraceId>& outputs) {
    auto made = lowering.Finish(outputs);
    EXPECT_EQ(Verify(graph), "");
    std::vector<HostTensor> results = Interpret(graph, inputs);
    std::vector<std::vector<double>> values;
    for (const auto& m : made) {
      EXPECT_EQ(m.kind, Lowering::Made::kGraphOutput);
      values.push_back(test::Values(results.at(m.index)));
    }
    return values;
  }
};

using Doubles = std::vector<double>;

// --- signatures -----------------------------------------------------------------------------------------------------

Call Plain(std::vector<Arg> args, std::vector<std::pair<std::string, Arg>> kwargs = {}) {
  Call c;
  c.args = std::move(args);
  c.kwargs = std::move(kwargs);
  return c;
}

TEST(Signature, PositionalKeywordDefault) {
  Signature s = Signature::Parse("(Tensor input, int dim=-1, *, bool keepdim=False, float eps=1e-05, str mode='none')");
  auto a = s.Bind(Plain({T(3)}));
  ASSERT_TRUE(a);
  EXPECT_EQ((*a)[1].i, Int(-1));
  EXPECT_FALSE((*a)[2].b);
  EXPECT_EQ((*a)[3].f, 1e-5);
  EXPECT_EQ((*a)[4].s, "none");
  EXPECT_TRUE(s.Bind(Plain({T(0), I(1)}, {{"keepdim", Arg::Bool(true)}})));
  EXPECT_TRUE(s.Bind(Plain({T(0)}, {{"axis", I(1)}, {"keepdims", Arg::Bool(true)}})));  // NumPy's words
  EXPECT_FALSE(s.Bind(Plain({T(0), I(1), Arg::Bool(true)})));                           // keyword only
  EXPECT_FALSE(s.Bind(Plain({T(0), I(1)}, {{"dim", I(2)}})));                           // twice
  EXPECT_FALSE(s.Bind(Plain({T(0)}, {{"unknown", I(2)}})));
  EXPECT_FALSE(s.Bind(Plain({I(0)})));                 // a number is no tensor
  EXPECT_FALSE(s.Bind(Plain({T(0), Arg::Float(1)})));  // a float is no int
  EXPECT_FALSE(s.Bind(Plain({})));
}

TEST(Signature, ListsAndVariadics) {
  Signature s = Signature::Parse("(Tensor input, int[]... size)");
  for (auto args : {std::vector<Arg>{T(0), I(2), I(-1)}, std::vector<Arg>{T(0), Tuple({I(2), I(-1)})}}) {
    auto a = s.Bind(Plain(args));
    ASSERT_TRUE(a);
    ASSERT_EQ((*a)[1].items.size(), 2u);
    EXPECT_EQ((*a)[1].items[1].i, Int(-1));
  }
  EXPECT_EQ((*s.Bind(Plain({T(0), Tuple({})})))[1].items.size(), 0u);
  EXPECT_FALSE(s.Bind(Plain({T(0)})));  // as torch
  EXPECT_FALSE(s.Bind(Plain({T(0), I(2), Arg::Float(1)})));
  Signature one = Signature::Parse("(Tensor input, int[] dim)");
  EXPECT_EQ((*one.Bind(Plain({T(0), I(1)})))[1].items.size(), 1u);
  EXPECT_FALSE(one.Bind(Plain({T(0), I(1), I(2)})));
  Signature list = Signature::Parse("(Tensor[] tensors, int dim=0)");
  EXPECT_TRUE(list.Bind(Plain({Arg::Seq(Kind::kList, {T(0), T(1)})})));
  EXPECT_FALSE(list.Bind(Plain({Arg::Seq(Kind::kList, {T(0), I(1)})})));
}

TEST(Signature, OptionalAndNone) {
  Signature s = Signature::Parse("(Tensor input, ScalarType? dtype=None)");
  EXPECT_TRUE(s.Bind(Plain({T(0), Arg::None()})));
  EXPECT_TRUE(s.Bind(Plain({T(0)}, {{"dtype", Type("float64")}, {"out", Arg::None()}})));
  EXPECT_FALSE(s.Bind(Plain({T(0), Type("no such dtype")})));
  EXPECT_THROW(Signature::Parse("(Tensr x)"), std::logic_error);
}

TEST(Rows, EveryTableParses) {
  EXPECT_GT(AllRows().size(), 800u);
  for (const std::string& name : AllRows()) EXPECT_TRUE(HasRow(Callee(name))) << name;
  for (const char* name : {"torch.add", "torch.Tensor.add_", "torch.Tensor.__radd__", "torch.Tensor.__iadd__",
                           "torch._C._nn.gelu", "torch.special.expit", "torch.linalg.vector_norm", "numpy.exp",
                           "numpy.ndarray.__rsub__", "numpy.ndarray.T.__get__", "scipy.special.erf"}) {
    EXPECT_TRUE(HasRow(Callee(name))) << name;
  }
  EXPECT_FALSE(HasRow(Callee("torch.no_such_function")));
}

// --- promotion ------------------------------------------------------------------------------------------------------

TEST(Rows, OneFunctionForSignaturesOfSeveralLengths) {  // it asks for arguments that this signature does not have
  Program p;
  for (int i = 0; i < 8; ++i) {
    TraceId x = p.Input({2, 3});
    EXPECT_EQ(p.Strides(p.Get("torch._C._nn.leaky_relu", {T(x), Arg::Float(0.1)})), std::vector<int64_t>({3, 1}));
    EXPECT_EQ(p.Strides(p.Get("torch.celu", {T(x)})), std::vector<int64_t>({3, 1}));
  }
}

TEST(Promotion, TorchCategories) {
  TensorMeta f32, f16, i64, u8, b, zero_f64;
  f16.dtype = DType::kFloat16;
  i64.dtype = DType::kInt64;
  u8.dtype = DType::kUInt8;
  b.dtype = DType::kBool;
  zero_f64.dtype = DType::kFloat64;
  for (TensorMeta* m : {&f32, &f16, &i64, &u8, &b}) m->sizes = m->strides = {1};
  auto type = [](std::vector<TypeOperand> v) { return TorchResultType(v, DType::kFloat32); };
  auto t = [](const TensorMeta& m) { return TypeOperand{&m, Kind::kNone}; };
  auto n = [](Kind k) { return TypeOperand{nullptr, k}; };
  EXPECT_EQ(type({t(f16), n(Kind::kFloat)}), DType::kFloat16);
  EXPECT_EQ(type({t(i64), n(Kind::kFloat)}), DType::kFloat32);
  EXPECT_EQ(type({t(u8), n(Kind::kInt)}), DType::kUInt8);
  EXPECT_EQ(type({t(b), n(Kind::kInt)}), DType::kInt64);
  EXPECT_EQ(type({t(f32), t(zero_f64)}), DType::kFloat32);  // a 0-dimensional tensor does not widen its category
  EXPECT_EQ(type({t(i64), t(zero_f64)}), DType::kFloat64);
  EXPECT_EQ(type({t(f16), t(i64)}), DType::kFloat16);
  EXPECT_EQ(PromoteTypes(DType::kFloat16, DType::kBFloat16), DType::kFloat32);
  EXPECT_EQ(PromoteTypes(DType::kUInt8, DType::kInt8), DType::kInt16);
}

TEST(Promotion, NumpyWeakNumbers) {
  TensorMeta f32, i8, b, scalar;
  i8.dtype = DType::kInt8;
  b.dtype = DType::kBool;
  scalar.dtype = DType::kFloat64;  // np.float64(1): strong
  auto t = [](const TensorMeta& m) { return TypeOperand{&m, Kind::kNone}; };
  auto n = [](Kind k) { return TypeOperand{nullptr, k}; };
  auto type = [](std::vector<TypeOperand> v) { return NumpyResultType(v); };
  EXPECT_EQ(type({t(f32), n(Kind::kFloat)}), DType::kFloat32);
  EXPECT_EQ(type({t(f32), t(scalar)}), DType::kFloat64);
  EXPECT_EQ(type({t(i8), n(Kind::kInt)}), DType::kInt8);
  EXPECT_EQ(type({t(i8), n(Kind::kFloat)}), DType::kFloat64);
  EXPECT_EQ(type({t(b), n(Kind::kInt)}), DType::kInt64);
  EXPECT_EQ(NumpyPromoteTypes(DType::kInt64, DType::kFloat32), DType::kFloat64);
  EXPECT_EQ(NumpyPromoteTypes(DType::kInt16, DType::kFloat16), DType::kFloat32);
  EXPECT_EQ(NumpyPromoteTypes(DType::kInt64, DType::kUInt64), DType::kFloat64);
  EXPECT_EQ(NumpyFloatFor(DType::kInt8), DType::kFloat16);
}

// --- values and aliasing --------------------------------------------------------------------------------------------

TEST(Functionalise, WriteThroughASlice) {  // x[1:] += 1
  Program p;
  TraceId x = p.Input({4});
  TraceId y = p.Get("torch.Tensor.__getitem__", {T(x), Slice(I(1), Arg::None())});
  EXPECT_EQ(p.Get("torch.Tensor.__iadd__", {T(y), I(1)}), y);
  TraceId z = p.Get("torch.mul", {T(x), I(2)});
  EXPECT_EQ(p.Run({z})[0], Doubles({0, 4, 6, 8}));
  EXPECT_EQ(test::Values(p.inputs[0]), Doubles({0, 2, 3, 4}));
  ASSERT_EQ(p.graph.writes.size(), 1u);
  EXPECT_TRUE(p.trace.tensors[x].mutated);
}

TEST(Functionalise, ViewsOfViewsSeeWrites) {
  Program p;
  TraceId x = p.Input({2, 3});
  TraceId t = p.Get("torch.Tensor.t", {T(x)});
  TraceId row = p.Get("torch.Tensor.select", {T(t), I(0), I(1)});  // column 1 of x
  TraceId flat = p.Get("torch.Tensor.view", {T(x), I(-1)});
  p.Do("torch.Tensor.fill_", {T(flat), I(7)});
  p.Do("torch.Tensor.__setitem__", {T(row), I(0), I(9)});
  TraceId a = p.Get("torch.clone", {T(t)}), b = p.Get("torch.clone", {T(x)}), c = p.Get("torch.clone", {T(flat)});
  auto v = p.Run({a, b, c});
  EXPECT_EQ(v[0], Doubles({7, 7, 9, 7, 7, 7}));
  EXPECT_EQ(v[1], Doubles({7, 9, 7, 7, 7, 7}));
  EXPECT_EQ(v[2], v[1]);
}

TEST(Functionalise, SteppedAndReversedSlices) {
  Program p;
  TraceId x = p.Input({6}, DType::kFloat64, Framework::kNumpy);
  TraceId back = p.Get("numpy.ndarray.__getitem__", {T(x), Slice(Arg::None(), Arg::None(), I(-2))});  // 5, 3, 1
  EXPECT_EQ(p.Strides(back), std::vector<int64_t>({-2}));
  p.Do("numpy.ndarray.__imul__", {T(back), I(10)});
  p.Do("numpy.ndarray.__setitem__", {T(x), Slice(Arg::None(), Arg::None(), I(3)), I(-1)});
  TraceId y = p.Get("numpy.ndarray.copy", {T(back)});
  p.Run({});
  EXPECT_EQ(test::Values(p.inputs[0]), Doubles({-1, 10, 2, -1, 4, 50}));
  (void)y;
}

TEST(Functionalise, CopiesDoNotAlias) {
  Program p;
  TraceId x = p.Input({2, 3});
  TraceId t = p.Get("torch.Tensor.t", {T(x)});
  TraceId same = p.Get("torch.Tensor.contiguous", {T(x)}), copy = p.Get("torch.Tensor.contiguous", {T(t)});
  EXPECT_EQ(same, x);
  EXPECT_NE(copy, t);
  EXPECT_EQ(p.Get("torch.Tensor.to", {T(x), Type("float32")}), x);
  EXPECT_EQ(p.Get("torch.dropout", {T(x), Arg::Float(0.5), Arg::Bool(false)}), x);
  p.Do("torch.Tensor.zero_", {T(x)});
  EXPECT_EQ(p.Run({copy})[0], Doubles({0, 3, 1, 4, 2, 5}));
}

TEST(Functionalise, MaskedAssignment) {
  Program p;
  TraceId x = p.Input({4});
  TraceId m = p.Get("torch.Tensor.__gt__", {T(x), I(1)});
  p.Do("torch.Tensor.__setitem__", {T(x), T(m), Arg::Float(-1)});
  p.Run({});
  EXPECT_EQ(test::Values(p.inputs[0]), Doubles({0, 1, -1, -1}));
}

TEST(Functionalise, SymbolicSizes) {
  Program p;
  TraceId x = p.Symbolic({3, 4});
  TraceId y = p.Get("torch.Tensor.__getitem__", {T(x), Tuple({Ellipsis(), Slice(I(1), Arg::None())})});
  p.Do("torch.Tensor.add_", {T(y), I(100)});
  TraceId z = p.Get("torch.sum", {T(x), I(0)});
  EXPECT_EQ(p.Run({z})[0], Doubles({12, 315, 318, 321}));
  EXPECT_FALSE(p.meta(y).sizes[1].is_const());
  ASSERT_EQ(p.graph.symbol_sources.size(), 2u);
  EXPECT_EQ(p.graph.symbol_sources[1].input, 0);
  EXPECT_EQ(p.graph.symbol_sources[1].dim, 1);
}

TEST(Functionalise, WritesThatCannotBe) {
  Program p;
  TraceId x = p.Input({3, 1});
  TraceId e = p.Get("torch.Tensor.expand", {T(x), I(3), I(4)});
  size_t nodes = p.graph.nodes.size(), calls = p.trace.calls.size();
  EXPECT_THROW(p.Do("torch.Tensor.add_", {T(e), I(1)}), Decline);  // elements share memory
  TraceId i = p.Input({3}, DType::kInt64);
  EXPECT_THROW(p.Do("torch.Tensor.add_", {T(i), Arg::Float(1.5)}), Decline);  // float into int
  EXPECT_THROW(p.Do("torch.Tensor.add_", {T(i), T(p.Input({2, 3}, DType::kInt64))}), Decline);
  EXPECT_EQ(p.graph.nodes.size(), nodes + 2) << "a declined call must leave nothing behind";
  EXPECT_EQ(p.trace.calls.size(), calls);
  EXPECT_EQ(p.lowering.graph_unusable(), "");
}

TEST(Functionalise, BatchNormUpdatesStatistics) {
  Program p;
  TraceId x = p.Input({2, 2}), mean = p.Input({2}), var = p.Input({2});
  p.Do("torch.batch_norm", {T(x), Arg::None(), Arg::None(), T(mean), T(var), Arg::Bool(true), Arg::Float(0.5),
                            Arg::Float(0), Arg::Bool(true)});
  p.Run({});
  EXPECT_EQ(test::Values(p.inputs[1]), Doubles({0.5, 1.5}));  // (0 + 1)/2, (1 + 2)/2
  EXPECT_EQ(test::Values(p.inputs[2]), Doubles({1, 1.5}));    // (0 + 2)/2, (1 + 2)/2
}

// --- layouts --------------------------------------------------------------------------------------------------------

TEST(Layout, PointwiseFollowsTheIterator) {
  Program p;
  TraceId perm = p.Input({4, 2, 3}, DType::kFloat32, Framework::kTorch, {1, 12, 4});
  EXPECT_EQ(p.Strides(p.Get("torch.exp", {T(perm)})), std::vector<int64_t>({1, 12, 4}));
  EXPECT_EQ(p.Strides(p.Get("torch.add", {T(perm), I(1)})), std::vector<int64_t>({1, 12, 4}));
  TraceId odd = p.Input({4, 1, 3}, DType::kFloat32, Framework::kTorch, {3, 100, 1});
  EXPECT_EQ(p.Strides(p.Get("torch.exp", {T(odd)})), std::vector<int64_t>({3, 3, 1}));  // the contiguous shortcut
  EXPECT_EQ(p.Strides(p.Get("torch.add", {T(odd), I(1)})),
            std::vector<int64_t>({3, 12, 1}));  // a number switches it off
  TraceId stretched = p.Input({3, 4}, DType::kFloat32, Framework::kTorch, {1, 0});
  EXPECT_EQ(p.Strides(p.Get("torch.exp", {T(stretched)})), std::vector<int64_t>({4, 1}));
  EXPECT_EQ(p.Strides(p.Get("torch.softmax", {T(perm), I(-1)})), std::vector<int64_t>({6, 3, 1}));
}

TEST(Layout, ChannelsLast) {
  Program p;
  TraceId x = p.Input({2, 3, 4, 5}, DType::kFloat32, Framework::kTorch, {60, 1, 15, 3});
  TraceId w = p.Input({6, 3, 1, 1});
  EXPECT_EQ(p.Strides(p.Get("torch.conv2d", {T(x), T(w)})), std::vector<int64_t>({120, 1, 30, 6}));
  EXPECT_EQ(p.Strides(p.Get("torch.relu", {T(x)})), std::vector<int64_t>({60, 1, 15, 3}));
  EXPECT_EQ(p.Strides(p.Get("torch.Tensor.contiguous", {T(x)})), std::vector<int64_t>({60, 20, 5, 1}));
}

TEST(Layout, ViewsOrCopies) {
  Program p;
  TraceId x = p.Input({2, 3, 4});
  TraceId t = p.Get("torch.Tensor.transpose", {T(x), I(0), I(1)});
  TraceId copy = p.Get("torch.Tensor.reshape", {T(t), I(3), I(8)});
  EXPECT_EQ(p.trace.tensors[copy].base, copy);
  EXPECT_THROW(p.Do("torch.Tensor.view", {T(t), I(3), I(8)}), Decline);
  TraceId view = p.Get("torch.Tensor.view", {T(t), I(3), I(2), I(2), I(2)});
  EXPECT_EQ(p.Strides(view), std::vector<int64_t>({4, 12, 2, 1}));
  EXPECT_EQ(p.trace.tensors[view].base, x);
  EXPECT_EQ(p.trace.tensors[view].view_call, static_cast<int>(p.trace.calls.size()) - 1);
}

TEST(Layout, OutputsKeepTheirStrides) {
  Program p;
  TraceId x = p.Input({3, 2}, DType::kFloat32, Framework::kTorch, {1, 3});
  TraceId a = p.Get("torch.exp", {T(x)}), b = p.Get("torch.clone", {T(a)}), c = p.Get("torch.clone", {T(x)});
  p.lowering.Finish({a, b, c});
  std::set<ValueId> distinct(p.graph.outputs.begin(), p.graph.outputs.end());
  EXPECT_EQ(distinct.size(), 3u);  // results never share a buffer
  for (ValueId v : p.graph.outputs) {
    EXPECT_EQ(p.graph.node(v).strides, Ints({1, 3}));
    EXPECT_NE(p.graph.node(v).op, Op::kInput);
  }
}

// --- outputs, externs, the rest -------------------------------------------------------------------------------------

TEST(Finish, HowOutputsAreMade) {
  Program p;
  TraceId x = p.Input({2, 3});
  TraceId y = p.Get("torch.neg", {T(x)});
  TraceId t = p.Get("torch.Tensor.t", {T(y)}), s = p.Get("torch.Tensor.select", {T(t), I(0), I(0)});
  TraceId as = p.Get("torch.Tensor.view_as", {T(x), T(y)});
  auto made = p.lowering.Finish({x, s, y, as});
  EXPECT_EQ(made[0].kind, Lowering::Made::kInput);
  EXPECT_EQ(made[1].kind, Lowering::Made::kReplay);
  EXPECT_EQ(made[1].index, 0);
  EXPECT_EQ(made[1].calls, std::vector<int>({1, 2}));
  EXPECT_EQ(made[2].kind, Lowering::Made::kGraphOutput);
  EXPECT_EQ(made[3].kind, Lowering::Made::kReplay);
  EXPECT_EQ(made[3].index, ~0);
  EXPECT_EQ(p.trace.calls[3].callee.name(), "torch.Tensor.view");  // replayable without y
  EXPECT_EQ(p.graph.outputs.size(), 1u);
}

TEST(Extern, UnknownCallsAskTheFramework) {
  Program p;
  TraceId x = p.Input({2, 3}), y = p.Input({3});
  TensorMeta out = p.meta(y);
  p.inferred.push_back({out});
  Call c = p.Do("torch.some_new_function", {T(y), T(x), T(y), Arg::Float(2)});
  ASSERT_EQ(p.asked.size(), 1u);
  EXPECT_EQ(p.asked[0].args[0].t, 0u);  // positions of the distinct operands
  EXPECT_EQ(p.asked[0].args[1].t, 1u);
  EXPECT_EQ(p.asked[0].args[2].t, 0u);
  const Node& n = p.graph.nodes.back();
  EXPECT_EQ(n.op, Op::kExtern);
  EXPECT_EQ(n.operands, std::vector<ValueId>({1, 0}));
  EXPECT_EQ(p.trace.calls[0].args[0].t, y);  // the trace keeps the program's own tensors
}

TEST(Extern, InPlaceRunsTheFunctionalForm) {
  Program p;
  TraceId x = p.Input({3}), i = p.Input({3}, DType::kInt64);
  p.inferred.push_back({p.meta(x)});
  TraceId v = p.Get("torch.Tensor.view", {T(x), I(3), I(1)});
  Call c = p.Do("torch.Tensor.scatter_", {T(x), I(0), T(i), Arg::Float(1)});
  EXPECT_EQ(c.results, std::vector<TraceId>({x}));
  EXPECT_EQ(p.asked[0].callee.name(), "torch.Tensor.scatter");
  auto made = p.lowering.Finish({v});
  ASSERT_EQ(p.graph.writes.size(), 1u);
  EXPECT_EQ(p.graph.node(p.graph.writes[0].value).op, Op::kExtern);
}

TEST(Extern, RandomNumbersAreCalls) {
  Program p;
  TraceId x = p.Input({3});
  p.Do("torch.rand_like", {T(x)});
  EXPECT_EQ(p.lowering.graph_unusable(), "");
  EXPECT_EQ(p.trace.calls.size(), 1u);
  EXPECT_EQ(p.graph.nodes.back().op, Op::kExtern);
  EXPECT_EQ(p.graph.nodes.back().attrs.call->callee.name(), "torch.rand");
}

TEST(Extern, RandomNumbersInPlaceKeepTheTrace) {
  Program p;
  TraceId x = p.Input({3});
  p.inferred.push_back({p.meta(x)});
  p.Do("torch.feature_dropout_", {T(x), Arg::Float(.5), Arg::Bool(true)});
  EXPECT_NE(p.lowering.graph_unusable(), "");
}

TEST(Declines, DataDecides) {
  Program p;
  TraceId x = p.Input({3}), i = p.Input({}, DType::kInt64);
  for (const char* name :
       {"torch.nonzero", "torch.Tensor.item", "torch.unique", "torch.masked_select", "numpy.random.rand"}) {
    EXPECT_THROW(p.Do(name, {T(x)}), Decline) << name;
  }
  EXPECT_THROW(p.Do("torch.Tensor.__getitem__", {T(x), T(i)}), Decline);
  TraceId m = p.Get("torch.gt", {T(x), I(0)});
  EXPECT_THROW(p.Do("torch.Tensor.__getitem__", {T(x), T(m)}), Decline);
  EXPECT_NO_THROW(p.Do("torch.add", {T(x), T(x)}, {{"out", T(x)}}));  // element by element
  EXPECT_THROW(p.Do("torch.cumsum", {T(x), I(0)}, {{"out", T(x)}}), Decline);
  EXPECT_THROW(p.Do("torch.add", {T(x), T(p.Input({4}))}), Decline);
}

TEST(Numpy, FullReductionsAreScalars) {
  Program p;
  TraceId x = p.Input({2, 3}, DType::kFloat64, Framework::kNumpy);
  TraceId sum = p.Get("numpy.sum", {T(x)}), kept = p.Get("numpy.ndarray.sum", {T(x)}, {{"keepdims", Arg::Bool(true)}});
  EXPECT_TRUE(p.meta(sum).is_scalar);
  EXPECT_FALSE(p.meta(kept).is_scalar);
  EXPECT_TRUE(p.meta(p.Get("numpy.ndarray.__getitem__", {T(x), Tuple({I(0), I(1)})})).is_scalar);
  EXPECT_TRUE(p.meta(p.Get("numpy.add", {T(sum), T(sum)})).is_scalar);
  EXPECT_EQ(p.meta(p.Get("numpy.divide", {T(p.Input({2}, DType::kInt32, Framework::kNumpy)), I(2)})).dtype,
            DType::kFloat64);
}

TEST(Grad, RequiresGradPropagates) {
  Program p;
  TensorMeta m;
  m.sizes = m.strides = {2};
  m.strides = {1};
  m.requires_grad = m.is_parameter = true;
  TraceId w = p.lowering.AddInput(m, "w", false);
  TraceId y = p.Get("torch.mul", {T(w), I(2)});
  EXPECT_TRUE(p.meta(y).requires_grad);
  EXPECT_FALSE(p.meta(y).is_parameter);
  EXPECT_FALSE(p.meta(p.Get("torch.Tensor.detach", {T(y)})).requires_grad);
  EXPECT_FALSE(p.meta(p.Get("torch.gt", {T(y), I(0)})).requires_grad);
  Call c;
  c.callee = "torch.mul";
  c.args = {T(w), I(2)};
  c.mode.grad = false;
  p.lowering.Apply(c);
  EXPECT_FALSE(p.meta(c.results[0]).requires_grad);
  EXPECT_THROW(p.Do("torch.Tensor.add_", {T(w), I(1)}), Decline);  // a leaf that requires grad
}

TEST(Bridge, GraphOnAnotherDevice) {
  Graph g = Graph::Parse(R"(graph "t" {
  %0 = input name="a" : f32[8, 16] strides [1, 8]
  %1 = input name="b" : f32[8]
  %2 = tanh %0 : f32[8, 16]
  %3 = sum %2, axes=[1] : f32[8]
  %4 = add %3, %1 : f32[8]
  write 1 <- %4
  return %3, %3, %1
})");
  MoveTo(g, Device{DeviceKind::kCuda, 1});
  EXPECT_EQ(Verify(g), "");
  ASSERT_EQ(g.inputs.size(), 2u);
  for (ValueId v : g.inputs) EXPECT_EQ(g.nodes[v].op, Op::kInput);
  int to = 0, back = 0;
  for (const Node& n : g.nodes) {
    const bool gpu = n.type.device.kind == DeviceKind::kCuda;
    if (n.op == Op::kExtern) {
      ++(gpu ? to : back);
      EXPECT_EQ(n.attrs.call->args[1].s, gpu ? "cuda:1" : "cpu");
    } else {
      EXPECT_EQ(gpu, n.op != Op::kInput);
    }
  }
  EXPECT_EQ(to, 2);
  EXPECT_EQ(back, 3);
  EXPECT_EQ(g.outputs[0], g.outputs[1]);
  for (ValueId v : {g.outputs[0], g.outputs[2], g.writes[0].value}) EXPECT_EQ(g.nodes[v].type.device, Device{});
}

}  // namespace
}  // namespace framejit::surface
