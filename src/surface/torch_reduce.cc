#include <algorithm>
#include <cmath>
#include <limits>

#include "rules/decompose.h"
#include "surface/reduce.h"

namespace framejit::surface {

DType SumType(const Scope& s, DType t) {
  if (IsFloat(t)) return t;
  if (s.torch() || IsBool(t) || IsSigned(t)) return DType::kInt64;
  return DType::kUInt64;
}

void RefuseFew(Scope& s, const Operand& x, const std::vector<int64_t>& axes, double correction) {
  shape::Int count = 1, results = 1;
  for (int d = 0; d < x.rank(); ++d) {
    shape::Int& product = std::find(axes.begin(), axes.end(), d) != axes.end() ? count : results;
    product = product * x.meta->sizes[d];
  }
  if (s.torch() && s.env.Eq(results, 0)) count = 0;  // as torch counts
  if (!s.env.Lt(static_cast<int64_t>(std::floor(correction)), count)) Scope::Fail("no degrees of freedom: it warns");
}

void RefuseEmpty(Scope& s, ValueId x, const std::vector<int64_t>& axes) {
  for (int64_t a : axes) {
    if (s.env.Eq(s.b.type(x).shape[a], 0)) Scope::Fail("reduction of an empty axis");
  }
}

ValueId ArgExtreme(Scope& s, Op op, ValueId x, std::optional<int> axis, bool keep) {
  TensorType t = s.b.type(x);
  if (IsBool(t.dtype)) Scope::Skip();
  if (t.rank() == 0) return s.b.Constant(Scalar(0), DType::kInt64);
  if (axis) {
    RefuseEmpty(s, x, {*axis});
    return s.b.Reduce(op, x, {*axis}, keep);
  }
  ValueId flat = s.b.Reshape(x, {t.numel()});
  RefuseEmpty(s, flat, {0});
  ValueId v = s.b.Reduce(op, flat, {0}, false);
  return keep ? s.b.Reshape(v, shape::Ints(t.rank(), shape::Int(1))) : v;
}

namespace {

// `dim=()` means all axes too, in torch's older reductions.
std::vector<int64_t> AllIfEmpty(Scope& s, int i, int rank) {
  if (s.has(i) && s.ints(i).empty()) {
    std::vector<int64_t> all;
    for (int d = 0; d < rank; ++d) all.push_back(d);
    return all;
  }
  return s.Dims(i, rank);
}

Outs SumAll(Scope& s) {
  Operand x = s.tensor(0);
  return rules::Sum(s.b, x.value, s.Dims(1, x.rank()), false, s.dtype(2).value_or(SumType(s, x.meta->dtype)));
}

Outs Sum(Scope& s) {
  Operand x = s.tensor(0);
  return rules::Sum(s.b, x.value, AllIfEmpty(s, 1, x.rank()), s.flag(2),
                    s.dtype(3).value_or(SumType(s, x.meta->dtype)));
}

Outs Mean(Scope& s) {
  Operand x = s.tensor(0);
  DType t = s.dtype(3).value_or(x.meta->dtype);
  if (!IsFloat(t)) Scope::Fail("mean needs a floating dtype");
  return rules::Mean(s.b, s.b.Cast(x.value, t), AllIfEmpty(s, 1, x.rank()), s.flag(2));
}

Outs Prod(Scope& s) {  // (input, dim?, keepdim, dtype)
  Operand x = s.tensor(0);
  DType t = s.dtype(3).value_or(SumType(s, x.meta->dtype));
  DType wide = IsFloat(t) ? DType::kFloat64 : ComputeType(t);  // every factor rounds once more
  ValueId v = s.b.Cast(x.value, wide);
  if (x.rank() != 1 || !s.has(1)) return s.b.Cast(s.b.Reduce(Op::kProd, v, s.Dims(1, x.rank()), s.flag(2), wide), t);
  // One row of several, as it were: derivatives of the product of a whole tensor are others.
  v = s.b.Reduce(Op::kProd, s.b.Reshape(v, {1, x.meta->sizes[0]}), {1}, false, wide);
  return s.b.Cast(s.flag(2) ? v : s.b.Reshape(v, {}), t);
}

Outs Extreme(Scope& s) {
  Operand x = s.tensor(0);
  if (IsBool(x.meta->dtype)) Scope::Skip();
  std::vector<int64_t> axes = AllIfEmpty(s, 1, x.rank());
  RefuseEmpty(s, x.value, axes);
  return s.b.Reduce(s.row.op, x.value, axes, s.flag(2));
}

Outs ExtremeAlong(Scope& s) {
  Operand x = s.tensor(0);
  if (x.rank() > 0 || !IsFloat(x.meta->dtype)) return Extreme(s);
  s.Dims(1, 0);
  // A row of one, whose gradient is not a number where that is none: a number alone would be the result itself.
  return s.b.Reduce(s.row.op, s.b.Reshape(x.value, {1}), {0}, false);
}

Outs ExtremeOfAll(Scope& s) {  // its gradient goes to not-a-numbers, where there are any; amax's is one
  Outs outs = Extreme(s);
  Operand x = s.tensor(0);
  const ValueId v = outs.items[0].value;
  if (v != x.value) s.b.SetDerivative(v, {"extreme", {x.value}, {}, AllIfEmpty(s, 1, x.rank())});
  return outs;
}

Outs ExtremeAndIndex(Scope& s) {  // max(dim), min(dim): values and indices
  Operand x = s.tensor(0);
  if (IsBool(x.meta->dtype)) Scope::Skip();
  bool max = s.row.op == Op::kMax, keep = s.flag(2);
  int axis = s.dim(1, x.rank());
  Outs outs;
  outs.structure = Arg::Kind::kTuple;
  outs.type_name = max ? "torch.return_types.max" : "torch.return_types.min";
  Out& values = outs.items.emplace_back();
  Out index;
  if (x.rank() == 0) {
    values.value = x.value;
    index.value = s.b.Constant(Scalar(0), DType::kInt64);
  } else {
    RefuseEmpty(s, x.value, {axis});
    index.value = s.b.Reduce(max ? Op::kArgMax : Op::kArgMin, x.value, {axis}, keep);
    values.value = s.b.Reduce(s.row.op, x.value, {axis}, keep);
    s.b.SetDerivative(values.value, {"pick", {x.value, index.value}, {}, {axis}});
  }
  index.differentiable = false;
  outs.items.push_back(std::move(index));
  return outs;
}

Outs ArgMaxMin(Scope& s) {
  Operand x = s.tensor(0);
  std::optional<int> axis;
  if (s.has(1)) axis = s.dim(1, x.rank());
  return ArgExtreme(s, s.row.op, x.value, axis, s.flag(2));
}

Outs AnyAll(Scope& s) {
  Operand x = s.tensor(0);
  if (x.meta->dtype == DType::kUInt8) Scope::Skip();                             // answers in uint8
  if (s.has(1) && !s.arg(1).is_none() && s.arg(1).items.empty()) Scope::Skip();  // no dimension at all
  return s.b.Reduce(s.row.op, s.b.Cast(x.value, DType::kBool), AllIfEmpty(s, 1, x.rank()), s.flag(2));
}

double Correction(Scope& s, int i) {
  return !s.has(i) ? 1 : s.number(i);
}

// On the CPU torch computes these in double. Equal numbers have no spread: the derivative of std is 0 there, and large
// beside. In a wider type their mean is not rounded.
rules::Moments MomentsOf(Scope& s, const Operand& x, const std::vector<int64_t>& axes, double correction, bool keep) {
  const bool cpu = x.meta->device.kind == DeviceKind::kCpu, root = s.row.op == Op::kSqrt;
  const bool equals = root && (x.meta->dtype == DType::kFloat64 || (!cpu && x.meta->dtype == DType::kFloat32));
  return rules::VarMean(s.b, cpu ? s.b.Cast(x.value, DType::kFloat64) : x.value, axes, correction, keep, equals);
}

// op: kSqrt takes the root (std), anything else is var.
Outs Spread(Scope& s, bool both) {  // (input, dim?, correction, keepdim)
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) Scope::Fail("var needs a floating dtype");
  const std::vector<int64_t> axes = AllIfEmpty(s, 1, x.rank());
  RefuseFew(s, x, axes, Correction(s, 2));
  auto [v, mean] = MomentsOf(s, x, axes, Correction(s, 2), s.flag(3));
  if (s.row.op == Op::kSqrt) v = rules::Root(s.b, v);
  Outs outs(s.b.Cast(v, x.meta->dtype));
  if (both) {
    outs.items.emplace_back().value = s.b.Cast(mean, x.meta->dtype);
    outs.structure = Arg::Kind::kTuple;
  }
  return outs;
}
Outs Var(Scope& s) {
  return Spread(s, false);
}
Outs VarMean(Scope& s) {
  return Spread(s, true);
}
Outs VarAll(Scope& s) {  // (input, bool unbiased)
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) Scope::Fail("var needs a floating dtype");
  std::vector<int64_t> axes;
  for (int d = 0; d < x.rank(); ++d) axes.push_back(d);
  RefuseFew(s, x, axes, Correction(s, 1));
  ValueId v = MomentsOf(s, x, axes, Correction(s, 1), false).variance;
  if (s.row.op == Op::kSqrt) v = rules::Root(s.b, v);
  return s.b.Cast(v, x.meta->dtype);
}

Outs LogSumExp(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) Scope::Skip();
  std::vector<int64_t> axes = s.Dims(1, x.rank());
  if (IsEmpty(s.env, x.meta->sizes)) Scope::Skip();
  return rules::LogSumExp(s.b, x.value, axes, s.flag(2));
}

Outs VectorNorm(Scope& s) {  // (input, ord, dim, keepdim, dtype)
  Operand x = s.tensor(0);
  DType t = s.dtype(4).value_or(x.meta->dtype);
  if (!IsFloat(t) || !IsFloat(x.meta->dtype)) Scope::Skip();
  std::vector<int64_t> axes = AllIfEmpty(s, 2, x.rank());
  double p = s.has(1) ? s.number(1) : 2;
  ValueId v = s.b.Cast(x.value, ComputeType(t)), r;
  if (p == 2) {
    r = s.b.Unary(Op::kSqrt, s.b.Reduce(Op::kSum, rules::Square(s.b, v), axes, s.flag(3)));
    s.b.SetDerivative(r, {"norm", {v}, {}, axes});
  } else if (p == 1) {
    r = s.b.Reduce(Op::kSum, s.b.Unary(Op::kAbs, v), axes, s.flag(3));
  } else if (std::isinf(p)) {
    RefuseEmpty(s, v, axes);
    const ValueId absolute = s.b.Unary(Op::kAbs, v);
    r = s.b.Reduce(p > 0 ? Op::kMax : Op::kMin, absolute, axes, s.flag(3));
    if (r != absolute) s.b.SetDerivative(r, {"largest", {absolute}, {}, axes});
  } else {
    Scope::Skip();
  }
  return s.b.Cast(r, t);
}

Outs Norm(Scope& s) {  // torch.norm's C form: (input, p, dim, keepdim, dtype)
  return VectorNorm(s);
}

Outs CountNonzero(Scope& s) {
  Operand x = s.tensor(0);
  ValueId v = s.b.Cast(s.b.Cast(x.value, DType::kBool), DType::kInt64);
  return s.b.Reduce(Op::kSum, v, AllIfEmpty(s, 1, x.rank()), false, DType::kInt64);
}

Outs CumSum(Scope& s) {
  Operand x = s.tensor(0);
  DType t = s.dtype(2).value_or(SumType(s, x.meta->dtype));
  int axis = s.dim(1, x.rank());
  ValueId v = s.b.Cast(x.value, ComputeType(t));
  if (x.rank() > 0) {
    Attrs attrs;
    attrs.axes = {axis};
    attrs.dtype = ComputeType(t);
    v = s.b.Add(Op::kCumSum, {v}, attrs);
  }
  return s.b.Cast(v, t);
}

#define DIMS "int[]? dim=None, bool keepdim=False"
// clang-format off: a table
constexpr Row kRows[] = {
    {"tm:sum", "(Tensor input, *, int[]? axes=None, ScalarType? dtype=None)", &SumAll},
    {"tm:sum", "(Tensor input, int[]? dim, bool keepdim=False, *, ScalarType? dtype=None)", &Sum},
    {"tm:mean", "(Tensor input, " DIMS ", *, ScalarType? dtype=None)", &Mean},
    {"tm:prod", "(Tensor input, int? dim=None, bool keepdim=False, *, ScalarType? dtype=None)", &Prod},
    {"tm:amax", "(Tensor input, int[] dim=(), bool keepdim=False)", &ExtremeAlong, Op::kMax},
    {"tm:amin", "(Tensor input, int[] dim=(), bool keepdim=False)", &ExtremeAlong, Op::kMin},
    {"tm:max", "(Tensor input, *, int[]? axes=None, bool keep=False)", &ExtremeOfAll, Op::kMax},
    {"tm:min", "(Tensor input, *, int[]? axes=None, bool keep=False)", &ExtremeOfAll, Op::kMin},
    {"tm:max", "(Tensor input, int dim, bool keepdim=False)", &ExtremeAndIndex, Op::kMax},
    {"tm:min", "(Tensor input, int dim, bool keepdim=False)", &ExtremeAndIndex, Op::kMin},
    {"tm:argmax", "(Tensor input, int? dim=None, bool keepdim=False)", &ArgMaxMin, Op::kArgMax},
    {"tm:argmin", "(Tensor input, int? dim=None, bool keepdim=False)", &ArgMaxMin, Op::kArgMin},
    {"tm:any", "(Tensor input, " DIMS ")", &AnyAll, Op::kAny},
    {"tm:all", "(Tensor input, " DIMS ")", &AnyAll, Op::kAll},
    {"tm:var", "(Tensor input, int[]? dim=None, *, Scalar? correction=1, bool keepdim=False)", &Var},
    {"tm:var", "(Tensor input, int[]? dim, bool unbiased=True, bool keepdim=False)", &Var},
    {"tm:var", "(Tensor input, bool unbiased)", &VarAll},
    {"tm:std", "(Tensor input, int[]? dim=None, *, Scalar? correction=1, bool keepdim=False)", &Var, Op::kSqrt},
    {"tm:std", "(Tensor input, int[]? dim, bool unbiased=True, bool keepdim=False)", &Var, Op::kSqrt},
    {"tm:std", "(Tensor input, bool unbiased)", &VarAll, Op::kSqrt},
    {"t:var_mean", "(Tensor input, int[]? dim=None, *, Scalar? correction=1, bool keepdim=False)", &VarMean},
    {"t:var_mean", "(Tensor input, int[]? dim, bool unbiased=True, bool keepdim=False)", &VarMean},
    {"t:std_mean", "(Tensor input, int[]? dim=None, *, Scalar? correction=1, bool keepdim=False)", &VarMean, Op::kSqrt},
    {"tms:logsumexp", "(Tensor input, int[] dim, bool keepdim=False)", &LogSumExp},
    {"l:vector_norm", "(Tensor input, Scalar ord=2, int[]? dim=None, bool keepdim=False, *, ScalarType? dtype=None)", &VectorNorm},
    {"tm:norm", "(Tensor input, Scalar? p, int[]? dim=None, bool keepdim=False, *, ScalarType? dtype=None)", &Norm},
    {"tm:count_nonzero", "(Tensor input, int[]? dim=None)", &CountNonzero},
    {"tm:cumsum", "(Tensor input, int dim, *, ScalarType? dtype=None)", &CumSum},
};
// clang-format on
#undef DIMS

}  // namespace

std::span<const Row> ReductionRows() {
  return kRows;
}

}  // namespace framejit::surface
