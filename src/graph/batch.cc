#include "graph/batch.h"

#include <algorithm>
#include <numeric>

namespace framejit {

using shape::Int;
using shape::Ints;

namespace {

// Gives the place of each axis behind that of the batch.
std::vector<int64_t> Behind(std::vector<int64_t> axes) {
  for (int64_t& a : axes) ++a;
  return axes;
}

std::vector<int64_t> Counted(int64_t from, int64_t n) {
  std::vector<int64_t> all(n);
  std::iota(all.begin(), all.end(), from);
  return all;
}

}  // namespace

std::string LineOf(const Node& n) {
  return n.line > 0 ? " (" + n.file.str() + ":" + std::to_string(n.line) + ")" : "";
}

void Batching::Refuse(const framejit::Node& n) {
  const bool call = n.op == Op::kExtern && n.attrs.call;
  const std::string name = call ? std::string(n.attrs.call->callee.name()) : Info(n.op).name;
  throw Unbatchable("no rule for batches of " + name + LineOf(n));
}

// Gives the value for all samples, and repeats it where it is the same for each.
ValueId Batching::Whole(ValueId v) {
  if (Varies(v)) return whole_[v];
  Ints shape = b_.type(v).shape;
  const auto rank = static_cast<int64_t>(shape.size());
  shape.insert(shape.begin(), size_);
  return b_.BroadcastInDim(v, shape, Counted(1, rank));
}

std::vector<ValueId> Batching::Of(const std::vector<ValueId>& values) {
  const auto end = static_cast<ValueId>(whole_.size());
  std::vector<bool> needed(end), varies(end);
  for (ValueId v = 0; v < end; ++v) {
    varies[v] = whole_[v] != kNoValue;
    for (ValueId o : b_.graph().node(v).operands) varies[v] = varies[v] || varies[o];
  }
  for (ValueId v : values) needed[v] = true;
  for (ValueId v = end; v-- > 0;) {
    if (!needed[v] || whole_[v] != kNoValue) continue;
    for (ValueId o : b_.graph().node(v).operands) needed[o] = true;
    if (const auto& d = b_.graph().node(v).derivative)
      for (ValueId o : d->operands) needed[o] = true;
  }
  for (ValueId v = 0; v < end; ++v)
    if (needed[v] && varies[v] && whole_[v] == kNoValue) whole_[v] = Node(v);
  std::vector<ValueId> all;
  for (ValueId v : values) all.push_back(Whole(v));
  return all;
}

ValueId Batching::Node(ValueId v) {
  const framejit::Node n = b_.graph().node(v);  // a copy: building moves the nodes
  b_.set_location(n.file, n.line);
  std::optional<Derivative> derivative;
  if (n.derivative) {
    derivative = *n.derivative;
    for (ValueId& o : derivative->operands) o = Whole(o);
    derivative->axes = Behind(derivative->axes);
  }
  // An identity through which gradients pass in a way of its own is no identity.
  if (derivative && n.op == Op::kCast && n.type == b_.type(n.operands[0])) {
    const ValueId made = b_.Barrier(Whole(n.operands[0]));
    b_.SetDerivative(made, *derivative);
    return made;
  }
  const ValueId made = Computed(n, n.attrs);
  if (derivative) b_.SetDerivative(made, *derivative);
  return made;
}

ValueId Batching::Computed(const framejit::Node& n, Attrs attrs) {
  const auto before = [&attrs](size_t count, Int e) {
    Ints syms = attrs.syms;
    syms.insert(syms.begin(), count, e);
    attrs.syms = syms;
  };
  switch (n.op) {
    case Op::kTake: return Take(n);
    case Op::kMatMul: return MatMul(n);
    case Op::kBroadcast:
      attrs.axes = Behind(attrs.axes);
      attrs.axes.insert(attrs.axes.begin(), 0);
      before(1, size_);
      break;
    case Op::kPermute:
      attrs.axes = Behind(attrs.axes);
      attrs.axes.insert(attrs.axes.begin(), 0);
      break;
    case Op::kReshape: before(1, size_); break;
    case Op::kPad: before(2, 0); break;
    case Op::kSlice:
    case Op::kFlip:
    case Op::kCat:
    case Op::kGather:
    case Op::kScatter:
    case Op::kCumSum: attrs.axes = Behind(attrs.axes); break;
    case Op::kLinear: {  // its rows may have any number of dimensions
      std::vector<ValueId> operands = n.operands;
      if (std::any_of(operands.begin() + 1, operands.end(), [&](ValueId o) { return Varies(o); })) Refuse(n);
      operands[0] = whole_[operands[0]];
      return b_.Add(n.op, std::move(operands), attrs);
    }
    default:
      if (IsReduction(n.op))
        attrs.axes = Behind(attrs.axes);
      else if (!IsPointwise(n.op))
        Refuse(n);
  }
  std::vector<ValueId> operands;
  for (ValueId o : n.operands) operands.push_back(Whole(o));
  return b_.Add(n.op, std::move(operands), std::move(attrs));
}

ValueId Batching::Take(const framejit::Node& n) {
  const ValueId data = n.operands[0], index = n.operands[1];
  const int64_t axis = n.attrs.axes[0], indices = b_.type(index).rank(), rank = b_.type(data).rank();
  Attrs attrs = n.attrs;
  if (!Varies(index)) {
    attrs.axes = {axis + 1};
    return b_.Add(Op::kTake, {whole_[data], index}, attrs);
  }
  ValueId from = data, at = whole_[index];
  if (Varies(data)) {  // one table of all rows, in which each sample has its own
    std::vector<int64_t> perm = Counted(0, rank + 1);
    perm.erase(perm.begin() + axis + 1);
    perm.insert(perm.begin() + 1, axis + 1);
    from = b_.Permute(whole_[data], perm);
    Ints shape = b_.type(from).shape;
    const Int rows = shape[1];
    shape.erase(shape.begin());
    shape[0] = size_ * rows;
    from = b_.Reshape(from, shape);
    const Ints all = b_.type(at).shape;
    const ValueId number = b_.SymConstant(rows, DType::kInt64, all), zero = b_.Constant(0, DType::kInt64, all);
    const ValueId first = b_.Binary(Op::kMul, b_.Iota(DType::kInt64, all, 0), number);
    const ValueId last = b_.Binary(Op::kSub, number, b_.Constant(1, DType::kInt64, all));
    const ValueId bounded = b_.Binary(Op::kMinimum, b_.Binary(Op::kMaximum, at, zero), last);
    ValueId place = b_.Binary(Op::kAdd, first, bounded);
    if (n.attrs.flag)  // what is out of range of its sample is out of range of all
      place = b_.Where(b_.Binary(Op::kEq, at, bounded), place, b_.SymConstant(size_ * rows, DType::kInt64, all));
    at = place;
    attrs.axes = {0};
    const ValueId made = b_.Add(Op::kTake, {from, at}, attrs);  // [batch, indices..., others...]
    std::vector<int64_t> back = {0};
    for (int64_t d = 0; d < axis; ++d) back.push_back(1 + indices + d);
    for (int64_t d = 0; d < indices; ++d) back.push_back(1 + d);
    for (int64_t d = axis; d + 1 < rank; ++d) back.push_back(1 + indices + d);
    return b_.Permute(made, back);
  }
  const ValueId made = b_.Add(Op::kTake, {from, at}, attrs);  // the batch is where the indices are
  std::vector<int64_t> front = Counted(0, b_.type(made).rank());
  front.erase(front.begin() + axis);
  front.insert(front.begin(), axis);
  return b_.Permute(made, front);
}

ValueId Batching::MatMul(const framejit::Node& n) {
  const ValueId x = n.operands[0], y = n.operands[1];
  const Ints a = b_.type(x).shape, c = b_.type(y).shape;
  if (a.size() == 2 && !Varies(y)) {  // This has the rows of all samples at once.
    const ValueId rows = b_.Reshape(whole_[x], {size_ * a[0], a[1]});
    return b_.Reshape(b_.Add(Op::kMatMul, {rows, y}), {size_, a[0], c[1]});
  }
  if (a.size() == 2 && !Varies(x)) {  // likewise the columns, as rows
    const ValueId rows = b_.Reshape(b_.Permute(whole_[y], {0, 2, 1}), {size_ * c[1], c[0]});
    const ValueId made = b_.Add(Op::kMatMul, {rows, b_.Permute(x, {1, 0})});
    return b_.Permute(b_.Reshape(made, {size_, c[1], a[0]}), {0, 2, 1});
  }
  return b_.Add(Op::kMatMul, {Whole(x), Whole(y)});
}

}  // namespace framejit
