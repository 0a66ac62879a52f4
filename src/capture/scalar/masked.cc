// Elements under a mask in a loop's code (`z[m] = z[m] ** 2 + c[m]`), and arrays of indices that say what is written.
// What is taken under a mask is computed where it lies, with nothing told of the other elements, while all that is done
// with it is arithmetic and a store under the same mask. Whatever else asks for it gets a new array, with what the mask
// chooses in a row.
#include <opcode.h>

#include <algorithm>
#include <functional>

#include "capture/scalar/products.h"
#include "capture/scalar/translator.h"
#include "surface/promote.h"
#include "tensor/own_calls.h"

namespace framejit::capture::scalar {

namespace {

int64_t Choose(const char* from, const char* mask, int64_t count, int64_t item, char* to, int64_t chosen) {
  return tensor::ChooseItems(from, reinterpret_cast<const uint8_t*>(mask), count, item, to, chosen);
}

// |z| as NumPy has it, compared with a number: all rows of complex numbers, if that is asked for.
int64_t Magnitudes(int64_t asked, tensor::UfuncLoop loop, void* data, char* from, int64_t rows, int64_t next_row,
                   int64_t n, int64_t next, double limit, int64_t py_op, bool* to) {
  if (!asked) return 1;
  constexpr int64_t kAtOnce = 512;
  double of[kAtOnce];
  for (int64_t row = 0; row < rows; ++row, from += next_row)
    for (int64_t at = 0; at < n; at += kAtOnce) {
      const int64_t many = std::min(kAtOnce, n - at);
      if (!OfAll(loop, data, from + at * next, next, reinterpret_cast<char*>(of), sizeof(double), many)) return 0;
      for (int64_t k = 0; k < many; ++k, ++to)
        *to = py_op == Py_LT   ? of[k] < limit
              : py_op == Py_LE ? of[k] <= limit
              : py_op == Py_GT ? of[k] > limit
                               : of[k] >= limit;
    }
  return 1;
}

// Squares whose quotient is further from 1 say on which side of a number the root lies, if that is no extreme one.
constexpr double kNear = 1e-12, kFar = 1e100;

}  // namespace

// One number for each array of this block, and parts are arrays of their own.
int Translator::ObjectOf(const Val& v) {
  constexpr int kViews = 1 << 20;
  return v.is == Is::kView ? kViews + v.same : v.object;
}

DType Translator::TypeOf(const Val& v) const {
  if (v.is == Is::kDeferred) return nodes_[v.node].dtype;
  return v.object >= 0 ? out_.objects[v.object].dtype : v.dtype;
}

// `mask` is an array that is there; it must have these sizes.
int Translator::UseMask(const Val& mask, const std::vector<int>& sizes) {
  const int node = NodeOf(mask);
  const Node& n = nodes_[node];
  if (n.sizes.size() != sizes.size() || n.ones || sizes.empty()) throw Unsupported{"a mask of other sizes"};
  for (size_t i = 0; i < sizes.size(); ++i) WantSame(sizes[i], n.sizes[i]);
  const int object = ObjectOf(mask);
  masks_.try_emplace(object, node);
  return object;
}

Val Translator::Under(State& s, const Val& of, const Val& index) {
  const Val mask = Computed(s, Rows(s, index));
  Node n = nodes_[NodeOf(of)];
  if (n.ones) throw Unsupported{"a mask of other sizes"};
  n.mask = UseMask(mask, n.sizes);
  n.view = ObjectOf(of);
  return Deferred(std::move(n));
}

// Is it something that no loop over elements computes?
bool Translator::Pends(const Val& v) const {
  return v.is == Is::kDeferred && (nodes_[v.node].mask >= 0 || nodes_[v.node].kind == Node::kMagnitude);
}

// An array that stands for itself: what is known under a mask becomes a row.
Val Translator::Rows(const State& s, const Val& v) {
  return Pends(v) ? Compute(s, v.node) : v;
}

// Two operands are under one mask, or neither is under any.
void Translator::RowsOrOne(const State& s, Val& x, Val& y) {
  const auto mask = [&](const Val& v) { return v.is == Is::kDeferred ? nodes_[v.node].mask : -1; };
  for (Val* v : {&x, &y})
    if (mask(*v) < 0) *v = Rows(s, *v);
  if (mask(x) == mask(y) || (!IsArray(x) && mask(y) >= 0) || (!IsArray(y) && mask(x) >= 0)) return;
  x = Rows(s, x), y = Rows(s, y);
}

// The elements that the mask chooses, in a new array.
Val Translator::Chosen(const State& s, int node) {
  WantComputable(node);
  const Node n = nodes_[node];
  const int by = masks_.at(n.mask), count = Count(n.sizes);
  const auto address = [&](int of, int mask, bool whole) {
    const Node& m = nodes_[of];
    if (m.kind == Node::kPart && whole) return AddressOf(m.part);
    std::vector<Filled> targets{{.node = of, .type = m.dtype, .mask = mask}};
    FillAll(targets, m.sizes, false);
    return targets[0].memory;
  };
  const auto whole = [&](int of) { return nodes_[of].part.unit && nodes_[of].sizes.size() == 1; };
  const int chooses = address(by, -1, whole(by)), from = address(node, n.mask, whole(node));
  const int chosen = Call(reinterpret_cast<void*>(tensor::CountChosen), ScalarType::kInt, {chooses, count});
  const Part to = NewArray(n.dtype, {chosen}, HeldAt(s, node));
  Call(reinterpret_cast<void*>(Choose), ScalarType::kBool,
       {from, chooses, count, Int(DTypeSize(n.dtype)), to.base, chosen});
  elements_.push_back(count);
  Val v = View(to);
  v.whole = true;
  return v;
}

// Stores an element if `under` (or -1) holds; else it stays.
void Translator::StoreUnder(const Part& to, const std::vector<int>& at, Element v, DType t, int under) {
  const int base = BaseOf(to), offset = OffsetOf(to, at, t);
  if (under >= 0) {
    const Element old = ElementAt(base, offset, t, Lies(to));
    const auto pick = [&](int now, int was) {
      const ScalarType type = IsComplex(t) ? ScalarType::kF64 : NewNumpy(t, -1).type();
      return now < 0 ? -1 : Op(ScalarOp::kSelect, type, under, now, was);
    };
    v = {pick(v.value, old.value), pick(v.imag, old.imag)};
  }
  StoreElement(base, offset, v, t, Lies(to));
}

// Of an array of the frame no two elements may be one, since those elsewhere than under the mask are written back.
void Translator::WantApart(const Part& to) {
  if (to.base >= 0) return;
  int next = Int(DTypeSize(to.dtype));
  for (int axis = to.rank() - 1; axis >= 0; --axis) {
    const int many = Compare(ScalarOp::kGt, to.sizes[axis], Int(1));
    const int meets = Compare(ScalarOp::kLt, to.strides[axis], next);
    ExitIf(Op(ScalarOp::kAnd, ScalarType::kBool, many, meets));
    next = Op(ScalarOp::kMul, ScalarType::kInt, to.sizes[axis], to.strides[axis]);
  }
}

void Translator::AssignUnder(State& s, const Val& of, const Val& index, const Val& value) {
  const Val mask = Computed(s, Rows(s, index));
  const Part to = PartOf(of);
  if (to.ones) throw Unsupported{"a mask of other sizes"};
  const int by = UseMask(mask, to.sizes), itself = ObjectOf(of);
  const int node = StoredNode(value, to.dtype);
  if (nodes_[node].kind != Node::kNumber && nodes_[node].mask != by)
    throw Unsupported{"a row for what is under a mask"};
  WantStorable(to, node);
  // The mask is read while the store goes on.
  const bool meet = itself != by && to.dtype == DType::kBool && Reads(masks_.at(by), to, false);
  if (meet || (!hopes_.apart && to.base < 0)) throw Unsupported{"a mask that may be written"};
  WantApart(to);
  const std::function<void(int)> look = [&](int k) {
    Node& n = nodes_[k];
    n.updated |= n.kind == Node::kPart && n.view == itself;
    for (int operand : {n.a, n.b})
      if (operand >= 0) look(operand);
  };
  look(node);
  AssignNode(s, to, node, by);
}

// a[i, j] = v, i and j being arrays: one element after the other, since several may go to one place.
void Translator::Scatter(State& s, const Val& of, const Val& index, const Val& value) {
  const Part to = PartOf(of);
  const DType t = to.dtype;
  const std::vector<Val> one{index};
  std::vector<int> indices;
  for (const Val& v : index.is == Is::kTuple ? index.items : one) {
    if (!IsArray(v)) throw Unsupported{"an index that is an array"};
    indices.push_back(NodeOf(Rows(s, v)));
    const Node& n = nodes_[indices.back()];
    const bool whole = n.dtype < DType::kFloat16 && n.dtype != DType::kBool && n.dtype != DType::kUInt64;
    if (!whole || n.sizes.size() != 1 || n.ones) throw Unsupported{"an index that is an array"};
    WantSame(nodes_[indices[0]].sizes[0], n.sizes[0]);
  }
  if (to.ones || to.rank() != static_cast<int>(indices.size())) throw Unsupported{"an index that is an array"};
  const std::vector<int> sizes = nodes_[indices[0]].sizes;
  const int node = StoredNode(Rows(s, value), t);
  const Node& stored = nodes_[node];
  const bool number = stored.kind == Node::kNumber;
  if (!number && (stored.sizes.size() != 1 || stored.ones)) throw Unsupported{"an index that is an array"};
  if (!number) WantSame(sizes[0], stored.sizes[0]);
  if (!Stores(stored.dtype, t)) throw Unsupported{"a store of many elements"};
  Settle();
  // All that may be left for comes before the first write, and so does all that is read.
  const int memory = number ? -1 : Fill(node, sizes, t, nullptr), places = Buffer(sizes[0], DType::kInt64);
  const auto nth = [&](int i, DType of_type) {
    return Op(ScalarOp::kMul, ScalarType::kInt, i, Int(DTypeSize(of_type)));
  };
  bad_ = Variable(ScalarType::kBool);
  Emit({.op = ScalarOp::kSet, .a = Flag(false), .imm = bad_});
  ForAll(sizes, [&](const std::vector<int>& at, int place) {
    evaluated_.clear();
    std::vector<int> element;
    for (size_t axis = 0; axis < indices.size(); ++axis)
      element.push_back(PlaceWithin(EvalAs(indices[axis], at, DType::kInt64, false).value, to.sizes[axis]));
    StoreAt(places, nth(place, DType::kInt64), OffsetOf(to, element, t), DType::kInt64, kMadeArrays);
  });
  evaluated_.clear();
  ExitIf(Emit({.op = ScalarOp::kGet, .type = ScalarType::kBool, .imm = bad_, .id = -2}));
  ComputeAll(s);
  ForEach(sizes[0], /*innermost=*/false, [&](int i) {
    const Element v = number ? nodes_[node].value : ElementAt(memory, nth(i, t), t, kMadeArrays);
    StoreElement(BaseOf(to), Load(places, nth(i, DType::kInt64), DType::kInt64, kMadeArrays), v, t, Lies(to));
  });
  elements_.push_back(sizes[0]);
  Wrote(s, to);
}

// A ufunc of elements that are written down, perhaps with the array that the result goes to. The stack holds none of
// its arguments any more.
std::optional<Val> Translator::CallUfunc(State& s, std::string_view name, const std::vector<Val>& given) {
  enum Kind { kCompares, kComputes, kOfTruth };
  struct Row {
    const char* name;
    size_t inputs;
    Kind kind;
    int op;
  };
  static constexpr Row kRows[] = {
      {"numpy.less", 2, kCompares, Py_LT},           {"numpy.less_equal", 2, kCompares, Py_LE},
      {"numpy.equal", 2, kCompares, Py_EQ},          {"numpy.not_equal", 2, kCompares, Py_NE},
      {"numpy.greater", 2, kCompares, Py_GT},        {"numpy.greater_equal", 2, kCompares, Py_GE},
      {"numpy.add", 2, kComputes, NB_ADD},           {"numpy.subtract", 2, kComputes, NB_SUBTRACT},
      {"numpy.multiply", 2, kComputes, NB_MULTIPLY}, {"numpy.divide", 2, kComputes, NB_TRUE_DIVIDE},
      {"numpy.logical_and", 2, kOfTruth, NB_AND},    {"numpy.logical_or", 2, kOfTruth, NB_OR},
      {"numpy.logical_xor", 2, kOfTruth, NB_XOR},    {"numpy.logical_not", 1, kOfTruth, 0},
  };
  const auto* row = std::ranges::find_if(kRows, [&](const Row& r) { return name == r.name; });
  if (row == std::end(kRows) || given.size() < row->inputs || given.size() > row->inputs + 1) return std::nullopt;
  Val x = given[0], y = row->inputs == 2 ? given[1] : Val();
  if (!IsArray(x) && !IsArray(y)) return std::nullopt;
  if (row->kind == kOfTruth && (!IsMask(x) || (row->inputs == 2 && !IsMask(y)))) return std::nullopt;
  if (row->inputs == 2 && !(row->kind == kCompares && !IsArray(y))) RowsOrOne(s, x, y);
  Val result = row->kind == kCompares ? DeferCompare(s, row->op, x, y)
               : row->inputs == 2     ? DeferBinary(row->op, x, y)
                                      : DeferUnary(ScalarOp::kNot, x);
  if (given.size() == row->inputs) return result;
  result = Rows(s, result);
  const Val out = Computed(s, given.back());
  if (!IsArray(out)) throw Unsupported{"an array that a function writes to"};
  const Part to = PartOf(out);
  if (!surface::NumpyCanCastSameKind(TypeOf(result), to.dtype)) throw Unsupported{"an array that a function writes to"};
  Assign(s, to, result);
  return out;
}

// Of complex numbers it is NumPy's own function, unless nothing is asked but how it compares.
Val Translator::MagnitudeOf(const Val& x) {
  if (!IsComplex(TypeOf(x))) return DeferUnary(ScalarOp::kAbs, x);
  const int a = NodeOf(x);
  if (nodes_[a].dtype != DType::kComplex128) throw Unsupported{"the magnitude of complex numbers"};
  Node n{.kind = Node::kMagnitude, .dtype = DType::kFloat64, .sizes = nodes_[a].sizes, .ones = nodes_[a].ones, .a = a};
  return Deferred(std::move(n));
}

// x is the magnitude of complex numbers: on which side of y it lies is said by squares, but where these are almost
// equal. Then NumPy says it of all.
std::optional<Val> Translator::CompareMagnitude(const State& s, int py_op, const Val& x, const Val& y) {
  const bool less = py_op == Py_LT || py_op == Py_LE;
  if (y.is != Is::kFloat && !(y.is == Is::kNumpy && y.dtype == DType::kFloat64) && y.is != Is::kInt)
    return std::nullopt;
  if (!less && py_op != Py_GT && py_op != Py_GE) return std::nullopt;
  const Node n = nodes_[x.node];
  const tensor::LoopOf loop = tensor::FindLoop("absolute", 1, DType::kComplex128, DType::kFloat64);
  if (!loop.run || n.sizes.empty()) return std::nullopt;
  WantComputable(x.node);
  if (n.sizes.size() > 1) WantOrdered(n.a);
  const int limit = NumberFor(*this, y, DType::kFloat64);
  const bool lies = nodes_[n.a].kind == Node::kPart && n.sizes.size() <= 2 && !n.ones;
  const int node =
      lies ? n.a : Packed(Fill(n.a, n.sizes, DType::kComplex128, nullptr), DType::kComplex128, n.sizes).node;
  const auto real = [&](ScalarOp op, int a, int b) { return Op(op, ScalarType::kF64, a, b); };
  const auto both = [&](ScalarOp op, int a, int b) { return Op(op, ScalarType::kBool, a, b); };
  const auto no = [&](int v) { return Op(ScalarOp::kNot, ScalarType::kBool, v); };
  const int square = real(ScalarOp::kMul, limit, limit);
  const int least = real(ScalarOp::kMul, square, Number(1 - kNear)),
            most = real(ScalarOp::kMul, square, Number(1 + kNear));
  const int known = both(ScalarOp::kAnd, Compare(ScalarOp::kGt, limit, Number(1 / kFar)),
                         Compare(ScalarOp::kLt, limit, Number(kFar)));
  const int unsure = Variable(ScalarType::kBool);
  const Part to = NewArray(DType::kBool, n.sizes, static_cast<int>(s.frames.size()));
  Emit({.op = ScalarOp::kSet, .a = no(known), .imm = unsure});
  ForAll(n.sizes, [&](const std::vector<int>& at, int) {
    evaluated_.clear();
    const Element z = Eval(node, at, true);
    const int sum = real(ScalarOp::kAdd, real(ScalarOp::kMul, z.value, z.value), real(ScalarOp::kMul, z.imag, z.imag));
    const int below = Compare(ScalarOp::kLt, sum, least), above = Compare(ScalarOp::kGt, sum, most);
    const int sure =
        both(ScalarOp::kOr, below, both(ScalarOp::kAnd, above, Op(ScalarOp::kFinite, ScalarType::kBool, sum)));
    const int before = Emit({.op = ScalarOp::kGet, .type = ScalarType::kBool, .imm = unsure, .id = -2});
    Emit({.op = ScalarOp::kSet, .a = both(ScalarOp::kOr, before, no(sure)), .imm = unsure});
    StoreElement(to.base, OffsetOf(to, at, DType::kBool), {less ? below : above}, DType::kBool, kMadeArrays);
  });
  evaluated_.clear();
  const Part& from = nodes_[node].part;
  const bool rows = n.sizes.size() == 2;
  const int zero = Int(0), size = Int(DTypeSize(DType::kComplex128));
  const int ask = Emit({.op = ScalarOp::kGet, .type = ScalarType::kBool, .imm = unsure, .id = -2});
  const int good = rows || n.sizes.size() == 1
                       ? Call(reinterpret_cast<void*>(Magnitudes), ScalarType::kBool,
                              {ask, Pointer(reinterpret_cast<const void*>(loop.run)), Pointer(loop.data),
                               AddressOf(from), rows ? n.sizes[0] : Int(1), rows ? from.strides[0] : zero,
                               n.sizes.back(), from.strides.back(), limit, Int(py_op), to.base})
                       : Call(reinterpret_cast<void*>(Magnitudes), ScalarType::kBool,
                              {ask, Pointer(reinterpret_cast<const void*>(loop.run)), Pointer(loop.data),
                               AddressOf(from), Int(1), zero, Count(n.sizes), size, limit, Int(py_op), to.base});
  ExitIf(no(good));
  out_.floats = true;
  Val v = View(to);
  v.whole = true;
  return v;
}

}  // namespace framejit::capture::scalar
