// Shape and dtype of every operation. Sizes are compared through the Env, so a question that only the hint can answer
// becomes a guard of the capture.
#include "graph/infer.h"

#include <algorithm>

namespace framejit {
namespace {

using shape::Int;
using shape::Ints;

// Reads the types of the operands where the graph has them, without a copy.
class Types {
 public:
  explicit Types(std::span<const TensorType* const> at) : at_(at) {}
  size_t size() const { return at_.size(); }
  bool empty() const { return at_.empty(); }
  const TensorType& operator[](size_t i) const { return *at_[i]; }
  const TensorType& back() const { return *at_.back(); }
  struct Iterator {
    const TensorType* const* at;
    const TensorType& operator*() const { return **at; }
    Iterator& operator++() { return ++at, *this; }
    bool operator!=(const Iterator& o) const { return at != o.at; }
  };
  Iterator begin() const { return {at_.data()}; }
  Iterator end() const { return {at_.data() + at_.size()}; }

 private:
  std::span<const TensorType* const> at_;
};

[[noreturn]] void Fail(Op op, const std::string& message) {
  throw ShapeError(std::string(Info(op).name) + ": " + message);
}

void Require(bool ok, Op op, const char* message) {
  if (!ok) Fail(op, message);
}

void RequireSame(Op op, const Ints& a, const Ints& b, shape::Env& env) {
  if (&a == &b) return;  // one interned list
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) same = env.Eq(a[i], b[i]);
  if (!same) Fail(op, "shapes " + shape::ToString(a) + " and " + shape::ToString(b) + " differ");
}

void RequireEqual(Op op, Int a, Int b, const char* what, shape::Env& env) {
  if (!env.Eq(a, b)) Fail(op, std::string(what) + ": " + a.str() + " and " + b.str() + " differ");
}

void RequireAxes(Op op, const std::vector<int64_t>& axes, int rank) {
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i] < 0 || axes[i] >= rank || std::find(axes.begin(), axes.begin() + i, axes[i]) != axes.begin() + i)
      Fail(op, "axis " + std::to_string(axes[i]) + " is out of range or repeated");
}

int64_t TheAxis(Op op, const Attrs& attrs, int rank) {
  Require(attrs.axes.size() == 1, op, "needs one axis");
  RequireAxes(op, attrs.axes, rank);
  return attrs.axes[0];
}

Device CommonDevice(const Types& in) {  // Constants do not count: they have no device of their own.
  for (const TensorType& t : in)
    if (!(t.device == Device{})) return t.device;
  return {};
}

TensorType Pointwise(Op op, const Types& in, const Attrs& attrs, shape::Env& env) {
  TensorType out = in[0];
  if (op == Op::kCast || op == Op::kBitcast) {
    if (op == Op::kBitcast) Require(DTypeSize(in[0].dtype) == DTypeSize(attrs.dtype), op, "element sizes differ");
    out.dtype = attrs.dtype;
    return out;
  }
  for (const TensorType& t : in) RequireSame(op, out.shape, t.shape, env);
  size_t first = 0;
  if (op == Op::kWhere) {
    Require(IsBool(in[0].dtype), op, "the condition must be bool");
    first = 1;
  }
  for (size_t i = first; i < in.size(); ++i) {
    if (in[i].dtype != in[first].dtype)
      Fail(op, "dtypes " + std::string(DTypeName(in[first].dtype)) + " and " + std::string(DTypeName(in[i].dtype)) +
                   " differ");
  }
  if (std::string_view(Info(op).accepts).find(DTypeClass(in[first].dtype)) == std::string_view::npos)
    Fail(op, "not defined for " + std::string(DTypeName(in[first].dtype)));
  out.dtype = std::string_view(Info(op).type) == "bool" ? DType::kBool : in[first].dtype;
  return out;
}

TensorType Reduction(Op op, const Types& in, const Attrs& attrs, shape::Env& env) {
  RequireAxes(op, attrs.axes, in[0].rank());
  bool arg = op == Op::kArgMax || op == Op::kArgMin;
  if (arg) TheAxis(op, attrs, in[0].rank());
  bool extremum = arg || op == Op::kMax || op == Op::kMin;
  if (extremum) Require(!IsComplex(in[0].dtype), op, "not defined for complex numbers");
  TensorType out{in[0].dtype, {}, in[0].device};
  Ints shape;
  for (int i = 0; i < in[0].rank(); ++i) {
    bool reduced = std::find(attrs.axes.begin(), attrs.axes.end(), i) != attrs.axes.end();
    Int size = in[0].shape[i];
    if (reduced && extremum && env.Prove(shape::Cmp::kEq, size, 0) == true) Fail(op, "an empty axis has no extremum");
    if (!reduced) shape.push_back(size);
    if (reduced && attrs.flag) shape.push_back(1);
  }
  out.shape = shape;
  std::string_view type = Info(op).type;
  if (type == "attr") out.dtype = attrs.dtype;
  if (type == "bool") out.dtype = DType::kBool;
  if (type == "index") out.dtype = DType::kInt64;
  return out;
}

TensorType View(Op op, const Types& in, const Attrs& attrs, shape::Env& env) {
  TensorType out = in.empty() ? TensorType{} : in[0];
  int rank = out.rank();
  switch (op) {
    case Op::kBroadcast: {
      Require(attrs.axes.size() == rank, op, "needs the place of every operand dim");
      RequireAxes(op, attrs.axes, static_cast<int>(attrs.syms.size()));
      for (int i = 0; i < rank; ++i) {
        Int from = in[0].shape[i], to = attrs.syms[attrs.axes[i]];
        if (from == Int(1) || env.Eq(from, to)) continue;
        if (!env.Eq(from, 1)) Fail(op, in[0].str() + " does not broadcast to " + shape::ToString(attrs.syms));
      }
      out.shape = attrs.syms;
      return out;
    }
    case Op::kReshape:
      if (!env.Eq(shape::Product(in[0].shape), shape::Product(attrs.syms)))
        Fail(op, in[0].str() + " has another number of elements than " + shape::ToString(attrs.syms));
      out.shape = attrs.syms;
      return out;
    case Op::kPermute: {
      Require(attrs.axes.size() == rank, op, "needs every axis once");
      RequireAxes(op, attrs.axes, rank);
      Ints shape(rank);
      for (int i = 0; i < rank; ++i) shape[i] = in[0].shape[attrs.axes[i]];
      out.shape = shape;
      return out;
    }
    case Op::kSlice: {
      int64_t axis = TheAxis(op, attrs, rank);
      Require(attrs.syms.size() == 3, op, "needs start, length and step");
      Int start = attrs.syms[0], length = attrs.syms[1], last = start + (length - Int(1)) * attrs.syms[2];
      bool empty = env.Prove(shape::Cmp::kLe, length, 0) == true;
      for (Int index : {start, last}) {
        bool outside = env.Prove(shape::Cmp::kLt, index, 0) == true ||
                       env.Prove(shape::Cmp::kLe, in[0].shape[axis], index) == true;
        if (outside && !empty && env.Prove(shape::Cmp::kLt, 0, length) == true)
          Fail(op, "index " + index.str() + " is outside of " + in[0].str());
      }
      out.shape.Set(axis, length);
      return out;
    }
    case Op::kFlip: RequireAxes(op, attrs.axes, rank); return out;
    case Op::kPad: {
      Require(attrs.syms.size() == 2 * rank, op, "needs a low and a high amount per dim");
      Ints shape = out.shape;
      for (int i = 0; i < rank; ++i) {
        shape[i] = shape[i] + attrs.syms[2 * i] + attrs.syms[2 * i + 1];
        if (env.Prove(shape::Cmp::kLt, shape[i], 0) == true) Fail(op, "crops more than there is");
      }
      out.shape = shape;
      return out;
    }
    case Op::kCat: {
      Require(!in.empty(), op, "needs an operand");
      int64_t axis = TheAxis(op, attrs, rank);
      Int total = 0;
      for (const TensorType& t : in) {
        Require(t.dtype == out.dtype, op, "dtypes differ");
        Require(t.rank() == rank, op, "ranks differ");
        for (int i = 0; i < rank; ++i)
          if (i != axis) RequireEqual(op, out.shape[i], t.shape[i], "sizes", env);
        total = total + t.shape[axis];
      }
      out.shape.Set(axis, total);
      return out;
    }
    default: Fail(op, "is no view");
  }
}

TensorType Indexing(Op op, const Types& in, const Attrs& attrs, shape::Env& env) {
  TensorType out = in[0];
  int64_t axis = TheAxis(op, attrs, in[0].rank());
  if (op == Op::kCumSum) {
    out.dtype = attrs.dtype;
    return out;
  }
  Require(in[1].dtype == DType::kInt64, op, "indices must be i64");
  if (op == Op::kTake) {
    Ints shape = in[0].shape;
    shape.erase(shape.begin() + axis);
    shape.insert(shape.begin() + axis, in[1].shape.begin(), in[1].shape.end());
    out.shape = shape;
    return out;
  }
  Require(in[1].rank() == in[0].rank(), op, "data and indices need the same rank");
  for (int i = 0; i < in[0].rank(); ++i)
    if (i != axis && env.Prove(shape::Cmp::kLt, in[0].shape[i], in[1].shape[i]) == true)
      Fail(op, "indices " + in[1].str() + " are larger than the data " + in[0].str());
  if (op == Op::kGather) {
    out.shape = in[1].shape;
    return out;
  }
  Require(in[2].dtype == in[0].dtype, op, "data and source dtypes differ");
  RequireSame(op, in[1].shape, in[2].shape, env);
  constexpr const char* kModes[] = {"set", "add", "max", "min", "mul"};
  Require(std::find(std::begin(kModes), std::end(kModes), attrs.name) != std::end(kModes), op, "unknown mode");
  return out;
}

TensorType Conv(const Types& in, const Attrs& attrs, shape::Env& env) {
  const Op op = Op::kConv;
  int n = in[0].rank() - 2;
  Require(in.size() >= 2 && in.size() <= 3, op, "takes input, weight and maybe a bias");
  Require(n >= 1 && in[1].rank() == n + 2, op, "input and weight need two dims more than there are spatial ones");
  Require(attrs.axes.size() == 4 * n + 1, op, "needs stride, padding, dilation, output padding and groups");
  const int64_t *stride = attrs.axes.data(), *padding = stride + n, *dilation = padding + n, *extra = dilation + n;
  int64_t groups = attrs.axes[4 * n];
  Require(groups >= 1, op, "groups must be positive");
  const Ints &x = in[0].shape, &w = in[1].shape;
  Int channels = attrs.flag ? w[0] : w[1] * Int(groups);
  RequireEqual(op, x[1], channels, "channels", env);
  Int features = attrs.flag ? w[1] * Int(groups) : w[0];
  if (in.size() == 3) RequireSame(op, in[2].shape, {features}, env);
  for (const TensorType& t : in) Require(t.dtype == in[0].dtype, op, "dtypes differ");
  Ints shape = {x[0], features};
  for (int i = 0; i < n; ++i) {
    Require(stride[i] >= 1 && dilation[i] >= 1, op, "stride and dilation must be positive");
    Int reach = Int(dilation[i]) * (w[i + 2] - Int(1)), pad = Int(2) * Int(padding[i]);
    Int size = attrs.flag ? (x[i + 2] - Int(1)) * Int(stride[i]) - pad + reach + Int(extra[i]) + Int(1)
                          : FloorDiv(x[i + 2] + pad - reach - Int(1), stride[i]) + Int(1);
    if (env.Prove(shape::Cmp::kLt, size, 0) == true) Fail(op, "the kernel is larger than the padded input");
    shape.push_back(size);
  }
  return {in[0].dtype, shape, in[0].device};
}

TensorType Contraction(Op op, const Types& in, const Attrs& attrs, shape::Env& env) {
  if (op == Op::kConv) return Conv(in, attrs, env);
  if (op == Op::kPack) return in[0];
  Require(in.size() >= 2, op, "needs more operands");
  TensorType out = in[0];
  for (const TensorType& t : in) Require(t.dtype == out.dtype, op, "dtypes differ");
  int rank = out.rank();
  switch (op) {
    case Op::kMatMul:
      Require(rank >= 2 && in[1].rank() == rank, op, "operands need the same rank, two at least");
      for (int i = 0; i < rank - 2; ++i) RequireEqual(op, in[0].shape[i], in[1].shape[i], "batch sizes", env);
      RequireEqual(op, in[0].shape[rank - 1], in[1].shape[rank - 2], "contracted sizes", env);
      out.shape.Set(rank - 1, in[1].shape[rank - 1]);
      return out;
    case Op::kLinear:
      Require(in.size() <= (attrs.name == "packed" ? 4 : 3) && rank >= 1 && in[1].rank() == 2, op,
              "takes x[..., K], w[N, K] and maybe b[N]");
      RequireEqual(op, in[0].shape[rank - 1], in[1].shape[1], "contracted sizes", env);
      if (attrs.name == "packed") RequireSame(op, in.back().shape, in[1].shape, env);
      if (in.size() == (attrs.name == "packed" ? 4 : 3)) RequireSame(op, in[2].shape, {in[1].shape[0]}, env);
      out.shape.Set(rank - 1, in[1].shape[0]);
      return out;
    default: break;
  }
  Require(in.size() == 3 || in.size() == 4, op, "takes query, key, value and maybe a mask");
  for (int k = 0; k < 3; ++k) Require(in[k].rank() == 4, op, "operands need four dims");
  const Ints &q = in[0].shape, &k = in[1].shape, &v = in[2].shape;
  for (int i = 0; i < 2; ++i) {
    RequireEqual(op, q[i], k[i], "batch sizes", env);
    RequireEqual(op, k[i], v[i], "batch sizes", env);
  }
  RequireEqual(op, q[3], k[3], "embedding sizes of query and key", env);
  RequireEqual(op, k[2], v[2], "lengths of key and value", env);
  out.shape = {q[0], q[1], q[2], v[3]};
  if (in.size() == 4) {
    Require(in[3].rank() == 4, op, "the mask needs four dims");
    Int scores[] = {q[0], q[1], q[2], k[2]};
    for (int i = 0; i < 4; ++i) {
      Int m = in[3].shape[i];
      if (m != Int(1) && !env.Eq(m, scores[i]) && !env.Eq(m, 1)) Fail(op, "mask " + in[3].str() + " does not fit");
    }
  }
  return out;
}

}  // namespace

Ints BroadcastShapes(const Ints& a, const Ints& b, shape::Env& env) {
  if (a.size() < b.size()) return BroadcastShapes(b, a, env);
  Ints out = a;
  size_t lead = a.size() - b.size();
  for (size_t i = 0; i < b.size(); ++i) {
    Int x = a[lead + i], y = b[i];
    if (x == y || y == Int(1)) continue;
    const bool one = x == Int(1);
    if (!one && env.Eq(x, y)) {
      if (y.is_const()) out[lead + i] = y;
    } else if (one || env.Eq(x, 1)) {
      out[lead + i] = y;
    } else if (!env.Eq(y, 1)) {
      throw ShapeError("shapes " + shape::ToString(a) + " and " + shape::ToString(b) + " do not broadcast");
    }
  }
  return out;
}

TensorType Infer(Op op, const std::vector<TensorType>& operands, const Attrs& attrs, shape::Env& env) {
  std::vector<const TensorType*> at;
  for (const TensorType& t : operands) at.push_back(&t);
  return InferAt(op, at, attrs, env);
}

TensorType InferAt(Op op, std::span<const TensorType* const> operands, const Attrs& attrs, shape::Env& env) {
  const Types in(operands);
  const OpInfo& info = Info(op);
  if (info.arity >= 0 && in.size() != info.arity)
    Fail(op, "takes " + std::to_string(info.arity) + " operands, got " + std::to_string(in.size()));
  TensorType out;
  switch (info.kind) {
    case 'C':
      Require(op != Op::kInput, op, "inputs have no rule");
      out = {attrs.dtype, attrs.syms, {}};
      if (op == Op::kIota) TheAxis(op, attrs, out.rank());
      return out;
    case 'P': out = Pointwise(op, in, attrs, env); break;
    case 'R': out = Reduction(op, in, attrs, env); break;
    case 'V': out = View(op, in, attrs, env); break;
    case 'I': out = Indexing(op, in, attrs, env); break;
    case 'M': out = Contraction(op, in, attrs, env); break;
    default:
      Require(op == Op::kExtern, op, "needs its call to be known");
      return attrs.result_types.empty() ? TensorType{} : attrs.result_types[0];
  }
  if (!in.empty()) out.device = CommonDevice(in);
  return out;
}

}  // namespace framejit
