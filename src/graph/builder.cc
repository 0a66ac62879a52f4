#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <numeric>

#include "diag/diag.h"
#include "framejit/graph.h"
#include "graph/infer.h"

namespace framejit {
namespace {

using shape::Int;
using shape::Ints;

std::vector<int64_t> Normalize(std::vector<int64_t> axes, int rank) {
  for (int64_t& a : axes) {
    if (a < -rank || a >= rank)
      throw ShapeError("axis " + std::to_string(a) + " is out of range for rank " + std::to_string(rank));
    if (a < 0) a += rank;
  }
  return axes;
}

bool IsIota(const std::vector<int64_t>& axes) {
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] != i) return false;
  return true;
}

// Does the node give back its only operand unchanged?
bool IsIdentity(Op op, const TensorType& in, const TensorType& out, const Attrs& attrs) {
  if (!(in == out)) return false;
  switch (op) {
    case Op::kCast:
    case Op::kBitcast:
    case Op::kReshape: return true;
    case Op::kBroadcast:
    case Op::kPermute: return IsIota(attrs.axes);
    case Op::kSlice: return attrs.syms[0] == Int(0) && attrs.syms[2] == Int(1);
    case Op::kFlip: return attrs.axes.empty();
    case Op::kPad: return std::all_of(attrs.syms.begin(), attrs.syms.end(), [](Int i) { return i == Int(0); });
    case Op::kCat: return true;  // The types are equal: it has one operand, or the others are empty.
    case Op::kCeil:
    case Op::kFloor:
    case Op::kTrunc:
    case Op::kRound: return !IsFloat(in.dtype);
    case Op::kMax:
    case Op::kMin:
    case Op::kSum:
    case Op::kProd:
    case Op::kAny:
    case Op::kAll: return attrs.axes.empty();
    default: return false;
  }
}

}  // namespace

ValueId Builder::Input(TensorType type, Ints strides, std::string name) {
  ValueId id = static_cast<ValueId>(g_.nodes.size());
  Attrs attrs;
  attrs.name = std::move(name);
  g_.nodes.push_back({Op::kInput, {}, std::move(attrs), std::move(type), std::move(strides), file_, line_});
  g_.inputs.push_back(id);
  return id;
}

ValueId Builder::Add(Op op, std::vector<ValueId> operands, Attrs attrs) {
  absl::InlinedVector<const TensorType*, 4> types;
  for (ValueId v : operands) {
    FRAMEJIT_CHECK(v < g_.nodes.size());
    types.push_back(&g_.nodes[v].type);
  }
  TensorType out = InferAt(op, types, attrs, env_);
  if (operands.size() == 1 && IsIdentity(op, *types[0], out, attrs)) return operands[0];
  g_.nodes.push_back({op, std::move(operands), std::move(attrs), std::move(out), {}, file_, line_});
  return static_cast<ValueId>(g_.nodes.size() - 1);
}

ValueId Builder::Constant(Scalar value, DType dtype, Ints shape) {
  Attrs attrs;
  attrs.scalar = value;
  attrs.dtype = dtype;
  attrs.syms = std::move(shape);
  return Add(Op::kConstant, {}, std::move(attrs));
}

ValueId Builder::SymConstant(Int value, DType dtype, Ints shape) {
  if (auto v = env_.Simplify(value).as_const()) return Constant(*v, dtype, std::move(shape));
  Attrs attrs;
  attrs.sym_scalar = value;
  attrs.dtype = dtype;
  attrs.syms = std::move(shape);
  return Add(Op::kConstant, {}, std::move(attrs));
}

ValueId Builder::Iota(DType dtype, Ints shape, int axis) {
  Attrs attrs;
  attrs.dtype = dtype;
  attrs.axes = Normalize({axis}, static_cast<int>(shape.size()));
  attrs.syms = std::move(shape);
  return Add(Op::kIota, {}, std::move(attrs));
}

ValueId Builder::Cast(ValueId v, DType dtype) {
  if (type(v).dtype == dtype) return v;
  Attrs attrs;
  attrs.dtype = dtype;
  return Add(Op::kCast, {v}, std::move(attrs));
}

ValueId Builder::Broadcast(ValueId v, const Ints& shape) {
  if (type(v).shape == shape) return v;
  int rank = type(v).rank(), lead = static_cast<int>(shape.size()) - rank;
  if (lead < 0) throw ShapeError(type(v).str() + " does not broadcast to " + shape::ToString(shape));
  std::vector<int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), lead);
  return BroadcastInDim(v, shape, std::move(axes));
}

ValueId Builder::BroadcastInDim(ValueId v, const Ints& shape, std::vector<int64_t> axes) {
  axes = Normalize(std::move(axes), static_cast<int>(shape.size()));
  Attrs attrs;
  attrs.axes = axes;
  attrs.syms = shape;
  Ints known = type(v).shape;
  const TensorType* const operand[] = {&type(v)};
  if (InferAt(Op::kBroadcast, operand, attrs, env_).shape == known && IsIota(axes)) return v;
  // A size that turned out to be 1 (Infer asked, so it is guarded): later stages must see the number, or they would
  // take the size for an equal one.
  for (size_t i = 0; i < known.size(); ++i) {
    if (known[i].is_const() || known[i] == shape[axes[i]]) continue;
    if (env_.Hint(known[i]) == 1 && env_.Hint(shape[axes[i]]) != 1) v = Slice(v, static_cast<int>(i), 0, 1);
  }
  return Add(Op::kBroadcast, {v}, std::move(attrs));
}

ValueId Builder::Reshape(ValueId v, Ints shape) {
  if (type(v).shape == shape) return v;
  Attrs attrs;
  attrs.syms = std::move(shape);
  return Add(Op::kReshape, {v}, std::move(attrs));
}

ValueId Builder::Permute(ValueId v, std::vector<int64_t> perm) {
  Attrs attrs;
  attrs.axes = Normalize(std::move(perm), type(v).rank());
  return Add(Op::kPermute, {v}, std::move(attrs));
}

ValueId Builder::Slice(ValueId v, int axis, Int start, Int length, Int step) {
  Attrs attrs;
  attrs.axes = Normalize({axis}, type(v).rank());
  attrs.syms = {start, length, step};
  return Add(Op::kSlice, {v}, std::move(attrs));
}

ValueId Builder::Reduce(Op op, ValueId v, std::vector<int64_t> axes, bool keepdims, std::optional<DType> dtype) {
  Attrs attrs;
  attrs.axes = Normalize(std::move(axes), type(v).rank());
  std::sort(attrs.axes.begin(), attrs.axes.end());
  attrs.flag = keepdims;
  if (std::string_view(Info(op).type) == "attr") {
    attrs.dtype = dtype.value_or(type(v).dtype);
  } else if (dtype) {
    v = Cast(v, *dtype);
  }
  if (attrs.axes.empty() && (op == Op::kArgMax || op == Op::kArgMin)) return Constant(0, DType::kInt64, type(v).shape);
  return Add(op, {v}, std::move(attrs));
}

ValueId Builder::Binary(Op op, ValueId a, ValueId b) {
  Ints shape = BroadcastShapes(type(a).shape, type(b).shape, env_);
  a = Broadcast(a, shape);
  return Add(op, {a, Broadcast(b, shape)});
}

ValueId Builder::Where(ValueId c, ValueId a, ValueId b) {
  Ints shape = BroadcastShapes(type(c).shape, BroadcastShapes(type(a).shape, type(b).shape, env_), env_);
  c = Broadcast(c, shape);
  a = Broadcast(a, shape);
  return Add(Op::kWhere, {c, a, Broadcast(b, shape)});
}

ValueId Builder::Barrier(ValueId v, const char* rule) {
  Node copy;  // An identity which, unlike others, no builder may fold away.
  copy.op = Op::kCast;
  copy.operands = {v};
  copy.type = type(v);
  copy.attrs.dtype = copy.type.dtype;
  copy.file = file_;
  copy.line = line_;
  copy.derivative = std::make_shared<const Derivative>(Derivative{rule, {}, {}, {}});
  g_.nodes.push_back(std::move(copy));
  return static_cast<ValueId>(g_.nodes.size() - 1);
}

ValueId Builder::Extern(std::shared_ptr<const Call> call, std::vector<ValueId> operands,
                        std::vector<TensorType> results, std::vector<Ints> strides) {
  Attrs attrs;
  attrs.call = std::move(call);
  attrs.result_types = results;
  size_t count = results.size();
  ValueId id = static_cast<ValueId>(g_.nodes.size());
  g_.nodes.push_back({Op::kExtern, std::move(operands), std::move(attrs), count ? results[0] : TensorType{},
                      strides.empty() ? Ints{} : strides[0], file_, line_});
  for (size_t i = 0; count > 1 && i < count; ++i) {
    Attrs pick;
    pick.axes = {static_cast<int64_t>(i)};
    g_.nodes.push_back(
        {Op::kResult, {id}, std::move(pick), results[i], i < strides.size() ? strides[i] : Ints{}, file_, line_});
  }
  return id;
}

}  // namespace framejit
