// This file has the parts of arrays in a loop's code, and arithmetic on them. An array that the program computes is a
// node until it is stored or multiplied. Then one loop over its elements computes it. Buffers hold what must not be
// written yet.
#include <opcode.h>

#include <cmath>

#include "capture/scalar/translator.h"
#include "surface/promote.h"
#include "tensor/numpy_api.h"

namespace framejit::capture::scalar {

namespace {

constexpr int64_t kLarge = 1 << 18;

}  // namespace

Val Slice(const Val& start, const Val& stop, const Val& step) {
  Val v;
  v.is = Is::kSlice;
  v.items = {start, stop, step};
  return v;
}

int IndexWithin(Builder& b, const Val& index, int size) {
  return b.Emit({.op = ScalarOp::kIndex, .a = AsIndex(b, index), .b = size, .exit = b.Exit(), .id = -2});
}

// --- parts
// -----------------------------------------------------------------------------------------------------------
bool Translator::IsArray(const Val& v) const {
  return v.is == Is::kView || v.is == Is::kDeferred || (v.is == Is::kObject && out_.objects[v.object].array);
}

Part Translator::PartOf(const Val& v) {
  Part p;
  p.object = v.object;
  p.dtype = v.dtype;
  p.born = v.born;
  if (v.is == Is::kView) {
    const int rank = v.rank();
    if (v.made())
      p.base = Value(v.items.back());
    else
      p.dtype = out_.objects[v.object].dtype;
    p.unit = v.unit;
    p.ones = v.ones;
    p.offset = Value(v.items[0]);
    for (int i = 0; i < rank; ++i) p.sizes.push_back(Value(v.items[1 + i]));
    for (int i = 0; i < rank; ++i) p.strides.push_back(Value(v.items[1 + rank + i]));
    return p;
  }
  if (v.is != Is::kObject || !out_.objects[v.object].array)
    throw Unsupported{"an item of something else than an array"};
  p.dtype = out_.objects[v.object].dtype;
  const int rank = UseArray(v.object).rank;
  p.unit = UseArray(v.object).unit;
  p.share = 1;
  for (int i = 0; i < rank; ++i) p.sizes.push_back(Size(v.object, i));
  for (int i = 0; i < rank; ++i) p.strides.push_back(Stride(v.object, i));
  return p;
}

Val Translator::View(const Part& p) {
  Val v;
  v.is = Is::kView;
  v.same = ++views_;
  v.object = p.object;
  v.unit = p.unit;
  v.ones = p.ones;
  v.items.push_back(New(Is::kInt, p.offset < 0 ? Int(0) : p.offset));
  for (int size : p.sizes) v.items.push_back(New(Is::kInt, size));
  for (int stride : p.strides) v.items.push_back(New(Is::kInt, stride));
  if (p.object >= 0) return v;
  v.dtype = p.dtype;
  v.born = p.born;
  v.items.push_back(New(Is::kAddress, p.base));
  return v;
}

// As PySlice_AdjustIndices has it: where it starts, and how many there are.
std::pair<int, int> Translator::SliceBounds(const Val& slice, int size, int64_t step) {
  const auto whole = [&](ScalarOp op, int a, int b) { return Op(op, ScalarType::kInt, a, b); };
  const auto pick = [&](ScalarOp op, int a, int b) {
    return Op(ScalarOp::kSelect, ScalarType::kInt, Compare(op, a, b), a, b);
  };
  const int least = Int(step > 0 ? 0 : -1), most = step > 0 ? size : whole(ScalarOp::kSub, size, Int(1));
  const auto bound = [&](const Val& v, int none) {
    if (IsNone(v) == true) return none;
    const int at = AsIndex(*this, v);
    const auto from_end = [&] { return pick(ScalarOp::kGt, whole(ScalarOp::kAdd, at, size), least); };
    const auto from_start = [&] { return pick(ScalarOp::kLt, at, most); };
    if (v.constant) return *v.constant < 0 ? from_end() : from_start();
    return Op(ScalarOp::kSelect, ScalarType::kInt, Compare(ScalarOp::kLt, at, Int(0)), from_end(), from_start());
  };
  const int start = bound(slice.items[0], step > 0 ? least : most);
  const int stop = bound(slice.items[1], step > 0 ? most : least);
  const int distance = step > 0 ? whole(ScalarOp::kSub, stop, start) : whole(ScalarOp::kSub, start, stop);
  int count = pick(ScalarOp::kGt, distance, Int(0));
  const int64_t stride = step > 0 ? step : -step;
  if (stride != 1) count = whole(ScalarOp::kDivTrunc, whole(ScalarOp::kAdd, count, Int(stride - 1)), Int(stride));
  return {start, count};
}

// One index, for this axis, added to what is known of the result.
void Translator::IndexAxis(const Part& p, int axis, const Val& index, bool within, Part& out) {
  const bool last = axis == p.rank() - 1;
  int start;
  if (index.is != Is::kSlice) {
    const auto known = small_sizes_.find(p.sizes[axis]);
    const int64_t size = known != small_sizes_.end() ? known->second : 0, at = index.constant.value_or(size);
    const bool sure = !within && at >= -size && at < size;
    out.sure &= sure;
    start = within ? Value(index) : sure ? Int(at < 0 ? at + size : at) : IndexWithin(*this, index, p.sizes[axis]);
  } else {
    out.sure = false;
    const Val& by = index.items[2];
    const bool none = IsNone(by) == true;
    if (!none && (!by.constant || *by.constant == 0 || std::abs(*by.constant) > 1 << 20))
      throw Unsupported{"a slice with a step that varies"};
    const int64_t step = none ? 1 : *by.constant;
    const bool all = step == 1 && IsNone(index.items[0]) == true && IsNone(index.items[1]) == true;
    const auto [from, count] = all ? std::pair(-1, p.sizes[axis]) : SliceBounds(index, p.sizes[axis], step);
    if (all && (p.ones >> axis & 1)) out.ones |= 1U << out.rank();
    // Of nothing NumPy takes steps of one, from the first on.
    const auto if_any = [&](int value, int64_t none_left) {
      return Op(ScalarOp::kSelect, ScalarType::kInt, Compare(ScalarOp::kGt, count, Int(0)), value, Int(none_left));
    };
    out.sizes.push_back(count);
    out.strides.push_back(step == 1 ? p.strides[axis]
                                    : Op(ScalarOp::kMul, ScalarType::kInt, p.strides[axis], if_any(Int(step), 1)));
    out.unit = last && p.unit && step == 1;
    start = step == 1 ? from : if_any(from, 0);
  }
  if (start < 0) return;
  // Of an array without elements there is no item: its last stride may be 0 for all that (NewArray).
  const bool unit = last && p.unit && index.is != Is::kSlice;
  const int stride = unit ? Int(DTypeSize(p.dtype)) : p.strides[axis];
  const int bytes = Op(ScalarOp::kMul, ScalarType::kInt, start, stride);
  out.offset = out.offset < 0 ? bytes : Op(ScalarOp::kAdd, ScalarType::kInt, out.offset, bytes);
}

// Which share of a whole array do these indices take, if the program says so itself?
double Translator::ShareOf(const Part& p, const std::vector<Val>& indices) const {
  const tensor::NumpyApi* api = tensor::Numpy();
  PyObject* o = p.object < 0 ? nullptr : out_.objects[p.object].object.get();
  if (p.share != 1 || !api || !o || Py_TYPE(o) != api->array) return 0;
  double share = 1;
  for (size_t axis = 0; axis < indices.size(); ++axis) {
    const Val& index = indices[axis];
    if (static_cast<int>(axis) >= tensor::AsArray(o)->nd || index.is == Is::kObject) return 0;
    const Py_ssize_t size = tensor::AsArray(o)->dims[axis];
    if (size == 0) return 0;
    Py_ssize_t start = 0, stop = size, step = 1;
    if (index.is != Is::kSlice) {
      share /= static_cast<double>(size);
      continue;
    }
    for (auto [bound, given] : {std::pair(&start, 0), {&stop, 1}, {&step, 2}}) {
      const Val& v = index.items[given];
      if (v.constant) *bound = *v.constant;
      if (!v.constant && !(v.is == Is::kObject && out_.objects[v.object].object.get() == Py_None)) return 0;
    }
    if (step <= 0) return 0;
    share *= static_cast<double>(PySlice_AdjustIndices(size, &start, &stop, step)) / static_cast<double>(size);
  }
  return share;
}

Part Translator::Index(const Part& p, const Val& index, bool within) {
  const std::vector<Val> one{index};
  const std::vector<Val>& all = index.is == Is::kTuple ? index.items : one;
  Part out;
  out.object = p.object;
  out.base = p.base;
  out.dtype = p.dtype;
  out.born = p.born;
  out.offset = p.offset;
  out.sure = p.object >= 0 && (p.sure || p.offset < 0);
  out.share = ShareOf(p, all);
  int axis = 0;
  for (const Val& v : all) {
    if (IsArray(v) || v.is == Is::kTuple) throw Unsupported{"an index that is an array"};
    if (IsNone(v) == true) {
      out.ones |= 1U << out.rank();
      out.sizes.push_back(Int(1)), out.strides.push_back(Int(0));
      out.unit = false;
      continue;
    }
    if (axis == p.rank()) throw Unsupported{"too many indices"};
    IndexAxis(p, axis++, v, within, out);
  }
  for (; axis < p.rank(); ++axis) {
    if (p.ones >> axis & 1) out.ones |= 1U << out.rank();
    out.sizes.push_back(p.sizes[axis]), out.strides.push_back(p.strides[axis]);
    out.unit = axis == p.rank() - 1 && p.unit;
  }
  if (out.rank() > 8) throw Unsupported{"many axes"};
  return out;
}

// An element, or what is left of several.
Val Translator::ItemOf(const Part& p) {
  if (p.rank()) return View(p);
  const int base = BaseOf(p);
  const Element v = ElementAt(base, p.offset, p.dtype, Lies(p), p.sure);
  if (!IsComplex(p.dtype)) return NewNumpy(p.dtype, v.value);
  return Complex(New(Is::kFloat, v.value), New(Is::kFloat, v.imag), true);
}

// All `n` that it has, one by one. Python tells of another number.
std::vector<Val> Translator::RowsOf(const Part& p, int n) {
  if (!p.rank()) throw Unsupported{"unpacking"};
  ExitIf(Compare(ScalarOp::kNe, p.sizes[0], Int(n)));
  std::vector<Val> rows;
  for (int k = 0; k < n; ++k) rows.push_back(ItemOf(Index(p, IntConstant(*this, k), /*within=*/true)));
  return rows;
}

Val Translator::ArrayAttribute(const Part& p, const std::string& name) {
  if (name == "ndim") return IntConstant(*this, p.rank());
  if (name == "T") {
    Part turned = p;
    std::reverse(turned.sizes.begin(), turned.sizes.end());
    std::reverse(turned.strides.begin(), turned.strides.end());
    turned.ones = 0;
    for (int i = 0; i < p.rank(); ++i) turned.ones |= (p.ones >> i & 1) << (p.rank() - 1 - i);
    turned.unit = p.unit && p.rank() == 1;
    return View(turned);
  }
  if (name == "shape") {
    std::vector<Val> sizes;
    for (int size : p.sizes) sizes.push_back(SizeOf(size));
    return Tuple(std::move(sizes));
  }
  if (name == "dtype") return Fixed(tensor::Numpy()->descr[static_cast<int>(p.dtype)]);
  if (name != "size") throw Unsupported{"an attribute of an array"};
  return New(Is::kInt, Count(p.sizes));
}

// Small sizes are constants of the code: loops over so few places have a known number of rounds.
std::optional<int64_t> Translator::SmallSize(int object, int axis) {
  const ObjectSpec& o = out_.objects[object];
  const tensor::NumpyApi* api = tensor::Numpy();
  if (!hopes_.sizes || !api || !o.object || Py_TYPE(o.object.get()) != api->array) return std::nullopt;
  const int64_t size = tensor::AsArray(o.object.get())->dims[axis];
  if (size < 1 || size > kSmallSize) return std::nullopt;
  const int cell = o.cells + 1 + axis;
  if (std::none_of(out_.alike.begin(), out_.alike.end(), [&](const AlikeNumber& a) { return a.cell == cell; }))
    out_.alike.push_back({cell, -1, size});
  return size;
}

// --- nodes
// -----------------------------------------------------------------------------------------------------------
Val Translator::Deferred(Node n) {
  nodes_.push_back(std::move(n));
  Val v;
  v.is = Is::kDeferred;
  v.node = static_cast<int>(nodes_.size()) - 1;
  return v;
}

int Translator::NodeOf(const Val& v) {
  const int node = ElementsOf(v);
  if (nodes_[node].mask >= 0) throw Unsupported{"elements under a mask"};
  return node;
}

int Translator::ElementsOf(const Val& v) {
  if (v.is == Is::kDeferred) return v.node;
  Part p = PartOf(v);
  Node n{.kind = Node::kPart, .dtype = p.dtype, .sizes = p.sizes, .ones = p.ones};
  n.part = std::move(p);
  return Deferred(std::move(n)).node;
}

int Translator::NodeOf(const Val& v, DType t) {  // a number becomes one of `t`
  if (!v.scalar() && v.is != Is::kComplex) return ElementsOf(v);
  return Deferred({.kind = Node::kNumber, .dtype = t, .value = NumberAs(v, t)}).node;
}

Element Translator::NumberAs(const Val& v, DType t) {
  if (!IsComplex(t)) return {NumberFor(*this, v, t)};
  const Val z = ToComplex(*this, v, true);
  return {Value(z.items[0]), Value(z.items[1])};
}

// In which type NumPy computes with these two, one of which is an array.
DType Translator::TypeOfBoth(const Val& x, const Val& y) {
  const auto kind = [&](const Val& v) {
    if (v.scalar() || v.is == Is::kComplex) return v;
    if (!IsArray(v)) throw Unsupported{"an operator on an array and something else"};
    return NewNumpy(TypeOf(v), -1);
  };
  const Val a = kind(x), b = kind(y);
  if (a.is != Is::kComplex && b.is != Is::kComplex) return CommonType(a, b);
  const Val &z = a.is == Is::kComplex ? a : b, &other = a.is == Is::kComplex ? b : a;
  if (!IsComplex(z.dtype) && other.dtype == DType::kFloat32) throw Unsupported{"an operator on arrays"};
  return DType::kComplex128;
}

// Sizes of what two nodes make together: axes from the last. Sizes that differ are left to NumPy.
void Translator::Broadcast(Node& n) {
  const Node &x = nodes_[n.a], &y = nodes_[n.b];
  const int rank = static_cast<int>(std::max(x.sizes.size(), y.sizes.size()));
  n.mask = std::max(x.mask, y.mask);  // the other one is a number, or under the same mask
  n.sizes.resize(rank);
  for (int back = 1; back <= rank; ++back) {
    const auto axis = [&](const Node& m) { return static_cast<int>(m.sizes.size()) - back; };
    const auto many = [&](const Node& m) { return axis(m) >= 0 && !(m.ones >> axis(m) & 1); };
    const Node& from = many(x) || axis(y) < 0 ? x : y;
    n.sizes[rank - back] = from.sizes[axis(from)];
    if (!many(x) && !many(y)) n.ones |= 1U << (rank - back);
    if (many(x) && many(y)) WantSame(x.sizes[axis(x)], y.sizes[axis(y)]);
  }
}

// The code is left where they differ.
void Translator::WantSame(int size, int other) {
  const auto known = [&](int v) { return same_sizes_.contains(v) ? same_sizes_.at(v) : v; };
  const int a = known(size), b = known(other);
  if (a == b) return;
  ExitIf(Compare(ScalarOp::kNe, a, b));
  for (auto& [v, as] : same_sizes_)
    if (as == b) as = a;
  same_sizes_[b] = a;
}

bool Translator::SameSizes(const std::vector<int>& a, const std::vector<int>& b) const {
  const auto known = [&](int v) { return same_sizes_.contains(v) ? same_sizes_.at(v) : v; };
  return std::ranges::equal(a, b, [&](int x, int y) { return known(x) == known(y); });
}

Val Translator::DeferBinary(int op, const Val& x, const Val& y) {
  out_.floats = true;
  if (op == NB_POWER) {
    if (!IsArray(x) || y.is != Is::kInt || y.constant != 2) throw Unsupported{"a power of an array"};
    const Val kept = x.is == Is::kDeferred ? x : Deferred(nodes_[NodeOf(x)]);
    return DeferBinary(NB_MULTIPLY, kept, kept);
  }
  DType t = TypeOfBoth(x, y);
  static constexpr std::pair<int, ScalarOp> kOps[] = {{NB_ADD, ScalarOp::kAdd},      {NB_SUBTRACT, ScalarOp::kSub},
                                                      {NB_MULTIPLY, ScalarOp::kMul}, {NB_TRUE_DIVIDE, ScalarOp::kDiv},
                                                      {NB_AND, ScalarOp::kAnd},      {NB_OR, ScalarOp::kOr},
                                                      {NB_XOR, ScalarOp::kXor}};
  const auto* row = std::find_if(std::begin(kOps), std::end(kOps), [&](const auto& r) { return r.first == op; });
  const bool bits = op == NB_AND || op == NB_OR || op == NB_XOR;
  if (row == std::end(kOps) || (bits ? Float(t) || IsComplex(t) : t == DType::kBool) || t == DType::kUInt64 ||
      t == DType::kFloat16 || t == DType::kComplex64)
    throw Unsupported{"an operator on arrays"};
  if (op == NB_TRUE_DIVIDE && !Float(t) && !IsComplex(t)) {
    for (const Val& v : {x, y})
      if (v.is == Is::kInt) NumberFor(*this, v, t);  // it must fit
    t = DType::kFloat64;
  }
  Node n{.kind = Node::kBinary, .dtype = t, .op = row->second};
  n.a = NodeOf(x, t);
  n.b = NodeOf(y, t);
  Broadcast(n);
  return Deferred(std::move(n));
}

Val Translator::DeferCompare(const State& s, int py_op, const Val& left, const Val& right) {
  const auto magnitude = [&](const Val& v) { return v.is == Is::kDeferred && nodes_[v.node].kind == Node::kMagnitude; };
  if (magnitude(left))
    if (std::optional<Val> v = CompareMagnitude(s, py_op, left, right)) return *v;
  const Val x = magnitude(left) ? Rows(s, left) : left, y = magnitude(right) ? Rows(s, right) : right;
  static constexpr ScalarOp kOps[] = {ScalarOp::kLt, ScalarOp::kLe, ScalarOp::kEq,
                                      ScalarOp::kNe, ScalarOp::kGt, ScalarOp::kGe};
  static_assert(Py_LT == 0 && Py_LE == 1 && Py_EQ == 2 && Py_NE == 3 && Py_GT == 4 && Py_GE == 5);
  const DType t = TypeOfBoth(x, y);
  const bool known = Float(t) || (t < DType::kFloat16 && t != DType::kUInt64 && t != DType::kBool);
  if (!known) throw Unsupported{"a comparison of arrays"};
  Node n{.kind = Node::kCompare, .dtype = DType::kBool, .op = kOps[py_op], .with = t};
  n.a = NodeOf(x, t);
  n.b = NodeOf(y, t);
  Broadcast(n);
  return Deferred(std::move(n));
}

Val Translator::DeferUnary(ScalarOp op, const Val& x) {
  const int a = ElementsOf(x);
  DType t = nodes_[a].dtype;
  const int mask = nodes_[a].mask;
  out_.floats = true;
  if (IsComplex(t) && op != ScalarOp::kNeg) throw Unsupported{"a function of complex numbers"};
  if (op == ScalarOp::kSqrt && !Float(t)) {
    if (DTypeSize(t) < 4) throw Unsupported{"a square root"};  // NumPy computes in a smaller float
    t = DType::kFloat64;
  }
  if ((t == DType::kBool) != (op == ScalarOp::kNot)) throw Unsupported{"a sign"};
  Node n{.kind = Node::kUnary, .dtype = t, .sizes = nodes_[a].sizes, .ones = nodes_[a].ones, .op = op, .a = a};
  n.mask = mask;
  return Deferred(std::move(n));
}

Val Translator::Gather(const Val& container, const Val& index) {
  const Part from = PartOf(container);
  const int at = NodeOf(index);
  if (from.rank() != 1 || Float(nodes_[at].dtype) || IsComplex(nodes_[at].dtype) || nodes_[at].dtype == DType::kBool)
    throw Unsupported{"an index that is an array"};
  ExitIf(Compare(ScalarOp::kEq, from.sizes[0], Int(0)));
  Node n{.kind = Node::kGather,
         .dtype = from.dtype,
         .sizes = nodes_[at].sizes,
         .ones = nodes_[at].ones,
         .part = from,
         .a = at};
  return Deferred(std::move(n));
}

// Does it read the array? elsewhere: at other places than the one that is stored.
bool Translator::Reads(int node, const Part& to, bool elsewhere) const {
  const Node& n = nodes_[node];
  const bool there = (n.kind == Node::kPart || n.kind == Node::kGather) && !(elsewhere && n.updated);
  return (there && (to.base >= 0 ? n.part.base >= 0 : n.part.object == to.object)) ||
         (n.a >= 0 && Reads(n.a, to, elsewhere)) || (n.b >= 0 && Reads(n.b, to, elsewhere));
}

// May something come out that the code leaves for?
bool Translator::Special(int node) const {
  const Node& n = nodes_[node];
  if (n.kind == Node::kGather || (n.kind >= Node::kBinary && (Float(n.dtype) || IsComplex(n.dtype)))) return true;
  return (n.a >= 0 && Special(n.a)) || (n.b >= 0 && Special(n.b));
}

bool Translator::SpecialAs(int node, DType t) const {
  return Special(node) || (nodes_[node].dtype == DType::kFloat64 && t == DType::kFloat32);
}

// Graphs over so many elements run on several threads.
bool Translator::Large(int object) const {
  if (object < 0) return false;
  const tensor::NumpyApi* api = tensor::Numpy();
  PyObject* o = out_.objects[object].object.get();
  if (!api || !o || Py_TYPE(o) != api->array) return false;
  int64_t n = 1;
  for (int i = 0; i < tensor::AsArray(o)->nd; ++i) n *= tensor::AsArray(o)->dims[i];
  return n > kLarge;
}

// --- elements
// --------------------------------------------------------------------------------------------------------
int Translator::Cast(int v, DType from, DType to) {
  if (from == to) return v;
  if (from == DType::kBool) v = Op(ScalarOp::kBoolToInt, ScalarType::kInt, v);
  if (to == DType::kFloat64)
    return Float(from) ? Op(ScalarOp::kF32ToF64, ScalarType::kF64, v) : Op(ScalarOp::kIntToF64, ScalarType::kF64, v);
  if (to == DType::kFloat32)
    return Float(from) ? Op(ScalarOp::kF64ToF32, ScalarType::kF32, v) : Op(ScalarOp::kIntToF32, ScalarType::kF32, v);
  return to == DType::kInt64 ? v : Wrap(v, to);
}

Element Translator::Cast(Element v, DType from, DType to) {
  if (from == to) return v;
  return IsComplex(to) ? Element{Cast(v.value, from, DType::kFloat64), Number(0)} : Element{Cast(v.value, from, to)};
}

Element Translator::ElementAt(int address, int offset, DType t, int array, bool sure) {
  if (!IsComplex(t)) return {Load(address, offset, t, array, sure)};
  const int behind = Op(ScalarOp::kAdd, ScalarType::kInt, offset, Int(sizeof(double)));
  const int value = Load(address, offset, DType::kFloat64, array);
  return {value, Load(address, behind, DType::kFloat64, array)};
}

void Translator::StoreElement(int address, int offset, Element v, DType t, int array) {
  if (!IsComplex(t)) return StoreAt(address, offset, v.value, t, array);
  StoreAt(address, offset, v.value, DType::kFloat64, array);
  StoreAt(address, Op(ScalarOp::kAdd, ScalarType::kInt, offset, Int(sizeof(double))), v.imag, DType::kFloat64, array);
}

void Translator::Bad(int condition) {
  if (under_ >= 0) condition = Op(ScalarOp::kAnd, ScalarType::kBool, condition, under_);
  const int known = Emit({.op = ScalarOp::kGet, .type = ScalarType::kBool, .imm = bad_, .id = -2});
  Emit({.op = ScalarOp::kSet, .a = Op(ScalarOp::kOr, ScalarType::kBool, known, condition), .imm = bad_});
}

// A float that may be special where nothing was before. `shown`: then what is made of it is, too.
Element Translator::Finite(Element v, DType t, bool shown) {
  if (shown || (!Float(t) && !IsComplex(t))) return v;
  for (int part : {v.value, v.imag})
    if (part >= 0) Bad(Op(ScalarOp::kNot, ScalarType::kBool, Op(ScalarOp::kFinite, ScalarType::kBool, part)));
  return v;
}

Element Translator::EvalAs(int node, const std::vector<int>& at, DType t, bool shown) {
  const DType from = nodes_[node].dtype;
  if (from == DType::kFloat64 && t == DType::kFloat32) return Finite(Cast(Eval(node, at, true), from, t), t, shown);
  return Cast(Eval(node, at, shown), from, t);
}

int Translator::OffsetOf(const Part& p, const std::vector<int>& at, DType t) {
  int offset = p.offset;
  for (int i = 0; i < p.rank(); ++i) {
    if (p.ones >> i & 1) continue;
    const int stride = p.unit && i == p.rank() - 1 ? Int(DTypeSize(t)) : p.strides[i];
    const int bytes = Op(ScalarOp::kMul, ScalarType::kInt, at[at.size() - p.rank() + i], stride);
    offset = offset < 0 ? bytes : Op(ScalarOp::kAdd, ScalarType::kInt, offset, bytes);
  }
  return offset < 0 ? Int(0) : offset;
}

Element Translator::Eval(int node, const std::vector<int>& at, bool shown) {
  const auto known = std::ranges::find(evaluated_, node, [](const auto& e) { return e.first; });
  Element v;
  if (known != evaluated_.end())
    v = known->second;
  else
    evaluated_.emplace_back(node, v = Evaluate(node, at));
  const Node& n = nodes_[node];
  return n.kind == Node::kBinary || n.kind == Node::kUnary ? Finite(v, n.dtype, shown) : v;
}

// The place that an index of NumPy's means; any if there is none.
int Translator::PlaceWithin(int index, int size) {
  const int within = Op(ScalarOp::kSelect, ScalarType::kInt, Compare(ScalarOp::kLt, index, Int(0)),
                        Op(ScalarOp::kAdd, ScalarType::kInt, index, size), index);
  const int good = Compare(ScalarOp::kBelow, within, size);
  Bad(Op(ScalarOp::kNot, ScalarType::kBool, good));
  return Op(ScalarOp::kSelect, ScalarType::kInt, good, within, Int(0));
}

Element Translator::Evaluate(int node, const std::vector<int>& at) {
  const Node& n = nodes_[node];
  const DType t = n.dtype;
  const ScalarType type = NewNumpy(t, -1).type();
  switch (n.kind) {
    case Node::kPart: return ElementAt(BaseOf(n.part), OffsetOf(n.part, at, t), t, Lies(n.part));
    case Node::kNumber: return n.value;
    case Node::kGather: {
      const int safe = PlaceWithin(EvalAs(n.a, at, DType::kInt64, false).value, n.part.sizes[0]);
      return ElementAt(BaseOf(n.part), OffsetOf(n.part, {safe}, t), t, Lies(n.part));
    }
    case Node::kCompare: {
      const int x = EvalAs(n.a, at, n.with, false).value, y = EvalAs(n.b, at, n.with, false).value;
      return {Compare(n.op, x, y)};
    }
    case Node::kUnary: {
      const Element x = EvalAs(n.a, at, t, true);
      if (IsComplex(t)) return {Op(n.op, type, x.value), Op(n.op, type, x.imag)};
      const int v = Op(n.op, type, x.value);
      return {Float(t) || t == DType::kBool ? v : Wrap(v, t)};
    }
    case Node::kMagnitude: throw Unsupported{"the magnitude of complex numbers"};
    case Node::kBinary: break;
  }
  const Element x = EvalAs(n.a, at, t, true), y = n.b == n.a ? x : EvalAs(n.b, at, t, n.op != ScalarOp::kDiv);
  if (IsComplex(t)) {
    int good;
    const Element z = ComplexArithmetic(*this, n.op, x, y, &good);
    if (good >= 0) Bad(Op(ScalarOp::kNot, ScalarType::kBool, good));
    return z;
  }
  const int v = Op(n.op, type, x.value, y.value);
  if (Float(t)) return {v};
  const bool grows = n.op == ScalarOp::kAdd || n.op == ScalarOp::kSub || n.op == ScalarOp::kMul;
  return {grows && t != DType::kInt64 ? Wrap(v, t) : v};
}

}  // namespace framejit::capture::scalar
