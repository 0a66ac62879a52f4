// Numbers from the framework's generator. A draw is a call of the framework inside the graph: calls stay in program
// order, so that a seed gives what it gives in eager.
#include "rules/decompose.h"
#include "runtime/cuda/driver.h"
#include "surface/lowering.h"
#include "surface/reduce.h"
#include "surface/views.h"

namespace framejit::surface {
namespace {

using shape::Ints;

#define OPTIONS                                                                                                        \
  "*, Any? generator=None, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=False, " \
  "bool? requires_grad=False"

// A row-major tensor as this call draws it.
Out Drawn(Scope& s, const char* callee, std::vector<Arg> args, std::vector<ValueId> operands, TensorType type) {
  if (IsEmpty(s.env, type.shape)) Scope::Skip();
  const auto call = s.CallOf(callee, std::move(args), false);
  if (operands.empty()) {
    Arg dtype;
    dtype.kind = Arg::Kind::kDType;
    dtype.s = std::string(DTypeName(type.dtype));
    call->kwargs.emplace_back("dtype", dtype);
    if (type.device.kind != DeviceKind::kCpu) {
      Arg device;
      device.kind = Arg::Kind::kDevice;
      device.s = "cuda:" + std::to_string(type.device.index);
      call->kwargs.emplace_back("device", device);
    }
  }
  const bool barrier = !operands.empty();
  Out out;
  out.value = s.b.Extern(call, std::move(operands), {type}, {RowMajor(type.shape)});
  if (barrier && IsFloat(type.dtype)) out.value = s.b.Barrier(out.value);
  out.differentiable = false;
  return out;
}

// Reads the trailing options, of which the generator is number `first`.
TensorType Options(Scope& s, int first, std::optional<DType> dtype, const Ints& sizes, Device device = {}) {
  if (s.has(first)) Scope::Skip();
  if (s.has(first + 2) && s.arg(first + 2).s.find("strided") == std::string::npos) Scope::Skip();
  if (s.has(first + 3)) {
    s.device = runtime::cuda::ParseDevice(s.arg(first + 3).s);
    if (!s.device || s.device->kind == DeviceKind::kMeta) Scope::Skip();
    if (s.device->kind == DeviceKind::kCuda && s.device->index < 0) Scope::Skip();
    device = *s.device;
  }
  for (int i : {first + 4, first + 5}) {
    if (s.has(i) && s.flag(i)) Scope::Skip();
  }
  const std::optional<DType> t = s.dtype(first + 1) ? s.dtype(first + 1) : dtype;
  if (!t) Scope::Skip();
  RefuseNegative(s, sizes);
  return {*t, sizes, device};
}

Arg Sizes(const Ints& sizes) {
  std::vector<Arg> items;
  for (const shape::Int& n : sizes) items.push_back(Arg::Int(n));
  return Arg::Seq(Arg::Kind::kTuple, std::move(items));
}

const char* Floats(Scope& s) {
  return s.row.op == Op::kMul ? "torch.randn" : "torch.rand";
}

Outs Rand(Scope& s) {  // op kMul: normally distributed
  const TensorType t = Options(s, 1, s.default_float(), s.ints(0));
  if (!IsFloat(t.dtype)) Scope::Skip();
  return Drawn(s, Floats(s), {Sizes(t.shape)}, {}, t);
}

Outs RandLike(Scope& s) {
  Operand x = s.tensor(0);
  if (s.has(7) && !s.arg(7).s.ends_with("preserve_format") && !s.arg(7).s.ends_with("contiguous_format")) Scope::Skip();
  if (!IsRowMajor(*x.meta)) Scope::Skip();
  const TensorType t = Options(s, 1, x.meta->dtype, x.meta->sizes, x.meta->device);
  if (!IsFloat(t.dtype)) Scope::Skip();
  return Drawn(s, Floats(s), {Sizes(t.shape)}, {}, t);
}

Outs RandInt(Scope& s) {
  const int low = s.row.op == Op::kMul ? 0 : -1;  // kMul: it has a lower bound
  const Ints sizes = s.ints(low + 2);
  const TensorType t = Options(s, low + 3, DType::kInt64, sizes);
  return Drawn(s, "torch.randint", {low < 0 ? Arg::Int(0) : s.arg(0), s.arg(low + 1), Sizes(sizes)}, {}, t);
}

Outs RandPerm(Scope& s) {
  const TensorType t = Options(s, 1, DType::kInt64, {s.integer(0)});
  return Drawn(s, "torch.randperm", {s.arg(0)}, {}, t);
}

// Draws in place. What the target held does not matter, but the order in which its elements lie does.
template <const auto& kCallee, int kNumbers>
Outs Fill(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsRowMajor(*x.meta) || s.has(kNumbers + 1)) Scope::Skip();
  std::vector<Arg> args = {Arg::Tensor(0)};
  for (int i = 1; i <= kNumbers; ++i) args.push_back(s.arg(i));
  Out out = Drawn(s, kCallee, std::move(args), {x.value}, {x.meta->dtype, x.meta->sizes, x.meta->device});
  out.value = Overwriting(s, x, out.value);
  return out;
}
constexpr char kBernoulli[] = "torch.bernoulli", kUniform[] = "torch.ops.aten.uniform",
               kNormal[] = "torch.ops.aten.normal_functional", kExponential[] = "torch.ops.aten.exponential",
               kCauchy[] = "torch.ops.aten.cauchy", kLogNormal[] = "torch.ops.aten.log_normal",
               kGeometric[] = "torch.ops.aten.geometric";

// Slopes are drawn below zero only, which the framework's kernel does in its order. Results are row-major.
Outs RRelu(Scope& s) {
  Operand x = s.tensor(0);
  const double lower = s.number(1), upper = s.number(2);
  if (!IsFloat(x.meta->dtype) || s.has(4)) Scope::Skip();
  Out out;
  if (!s.flag(3)) return out.value = rules::LeakyRelu(s.b, x.value, (lower + upper) / 2), out;
  const bool drawn = x.meta->dtype == DType::kFloat32 || x.meta->dtype == DType::kFloat64;
  constexpr double kApart = 1e-6;  // closer to each other they have another derivative
  if (!drawn || !(upper - lower > kApart)) Scope::Skip();
  const Out slopes = Drawn(s, "framejit._random.rrelu", {Arg::Tensor(0), s.arg(1), s.arg(2)}, {x.value},
                           {x.meta->dtype, x.meta->sizes, x.meta->device});
  out.value = s.b.Binary(Op::kMul, x.value, slopes.value);
  return out;
}

// A seed is a call among the draws. What it gives is there so that it is a value of the graph.
Outs Seeded(Scope& s) {
  const Ints one = {shape::Int(1)};
  Out out;
  out.value = s.b.Extern(s.CallOf("framejit._random.seeded", {s.arg(0), s.arg(1)}, false), {}, {{DType::kUInt8, one}},
                         {RowMajor(one)});
  out.differentiable = false;
  return out;
}

// clang-format off: a table
constexpr Row kRows[] = {
    {"D:seeded", "(int seed, str how)", &Seeded},
    {"t:rand", "(int[]... size, " OPTIONS ")", &Rand},
    {"t:randn", "(int[]... size, " OPTIONS ")", &Rand, Op::kMul},
    {"t:rand_like", "(Tensor input, " OPTIONS ", MemoryFormat? memory_format=None)", &RandLike},
    {"t:randn_like", "(Tensor input, " OPTIONS ", MemoryFormat? memory_format=None)", &RandLike, Op::kMul},
    {"t:randint", "(int high, int[] size, " OPTIONS ")", &RandInt},
    {"t:randint", "(int low, int high, int[] size, " OPTIONS ")", &RandInt, Op::kMul},
    {"t:randperm", "(int n, " OPTIONS ")", &RandPerm},
    {"tI:rrelu", "(Tensor input, Scalar lower=0.125, Scalar upper=0.3333333333333333, bool training=False, Any? generator=None)", &RRelu},
    {"I:bernoulli", "(Tensor input, float p=0.5, *, Any? generator=None)", &Fill<kBernoulli, 1>},
    {"I:uniform", "(Tensor input, float from=0.0, float to=1.0, *, Any? generator=None)", &Fill<kUniform, 2>},
    {"I:normal", "(Tensor input, float mean=0.0, float std=1.0, *, Any? generator=None)", &Fill<kNormal, 2>},
    {"I:exponential", "(Tensor input, float lambd=1.0, *, Any? generator=None)", &Fill<kExponential, 1>},
    {"I:cauchy", "(Tensor input, float median=0.0, float sigma=1.0, *, Any? generator=None)", &Fill<kCauchy, 2>},
    {"I:log_normal", "(Tensor input, float mean=1.0, float std=2.0, *, Any? generator=None)", &Fill<kLogNormal, 2>},
    {"I:geometric", "(Tensor input, float p, *, Any? generator=None)", &Fill<kGeometric, 1>},
};
// clang-format on

// Is the value torch.rand's? Then it lies in [0, 1).
bool IsUniform(const Graph& g, ValueId v) {
  const Node& n = g.node(v);
  if (n.type.dtype != DType::kFloat32 && n.type.dtype != DType::kFloat64) return false;
  const bool same = n.op == Op::kReshape || (n.op == Op::kCast && n.type.dtype == g.node(n.operands[0]).type.dtype);
  if (same) return IsUniform(g, n.operands[0]);
  static const Callee rand("torch.rand");
  return n.op == Op::kExtern && n.attrs.call->callee == rand;
}

}  // namespace

std::optional<bool> Lowering::KnownTruth(TraceId t) {
  if (impl_->Hidden(t)) return std::nullopt;
  const Graph& g = impl_->builder.graph();
  const Node& n = g.node(impl_->objects.Value(t));
  if (!(n.type.numel() == shape::Int(1)) || (n.op != Op::kLt && n.op != Op::kLe)) return std::nullopt;
  const ValueId a = n.operands[0], b = n.operands[1];
  auto number = [&](ValueId v) -> std::optional<double> {
    const Node& c = g.node(v);
    if (c.op != Op::kConstant || c.attrs.sym_scalar) return std::nullopt;
    return c.attrs.scalar.AsDouble();
  };
  if (auto c = number(b); c && IsUniform(g, a)) {
    if (*c >= 1) return true;
    if (n.op == Op::kLt && *c <= 0) return false;
  }
  if (auto c = number(a); c && IsUniform(g, b)) {
    if (*c >= 1) return false;
    if (n.op == Op::kLe && *c <= 0) return true;
  }
  return std::nullopt;
}

std::span<const Row> RandomRows() {
  return kRows;
}

}  // namespace framejit::surface
