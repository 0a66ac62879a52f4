// Indices of which data decides how many elements they name: masks become the indices of what is true in them, and
// integers that tensors hold are numbers.
#include <algorithm>

#include "absl/functional/function_ref.h"
#include "capture/callees.h"
#include "capture/effects.h"
#include "capture/numbers/data_sizes.h"
#include "capture/override.h"
#include "capture/session.h"
#include "graph/arguments.h"

namespace framejit::capture {
namespace {

constexpr size_t kMostIndices = 32;  // in a list that torch takes for a tuple: so many are none

bool IsTrue(const Arg* a) {
  return a && a->is(Arg::Kind::kBool) && a->b;
}

}  // namespace

std::vector<TraceId> DataSizes::IndicesOf(const Call& like, TraceId mask) {
  Call found = like;
  found.callee = callees::kTensorNonzero;
  found.args = {Arg::Tensor(mask)};
  found.kwargs.clear();
  Lower(found);
  Call columns = like;
  columns.callee = callees::kTensorUnbind;
  columns.args = {Arg::Tensor(found.results.at(0)), Arg::Int(1)};
  columns.kwargs.clear();
  s_.lowering().Apply(columns);
  return columns.results;
}

// The bounds of slices that tensors hold become the integers in them. Were there any? Nothing: one is none.
static std::optional<bool> TakeBounds(std::vector<Arg>& items, absl::FunctionRef<bool(Arg*)> number) {
  bool any = false;
  for (Arg& a : items)
    for (Arg& bound : a.items) {
      if (!a.is(Arg::Kind::kSlice) || !bound.is(Arg::Kind::kTensor)) continue;
      if (!(any = number(&bound))) return {};
    }
  return any;
}

// A sequence of integers, some of them tensors' items, is one index tensor.
static void StackIntegers(Session& s, Call& call, std::vector<Arg>& items, absl::FunctionRef<void(Call&)> lower) {
  auto tensor = [](const Arg& x) { return x.is(Arg::Kind::kTensor); };
  for (Arg& a : items) {
    auto integer = [&](const Arg& x) {
      if (x.is(Arg::Kind::kInt)) return x.i.is_const();
      return tensor(x) && s.meta(x.t).sizes.empty() && s.meta(x.t).dtype == DType::kInt64 &&
             s.meta(x.t).device.kind == DeviceKind::kCpu;
    };
    if (a.is(Arg::Kind::kSlice) || std::none_of(a.items.begin(), a.items.end(), tensor) ||
        !std::all_of(a.items.begin(), a.items.end(), integer))
      continue;
    for (Arg& x : a.items) {
      if (tensor(x)) continue;
      Call made = call;
      made.callee = Callee("torch.scalar_tensor");
      made.args = {x};
      Arg dtype = Arg::Str("int64");
      dtype.kind = Arg::Kind::kDType;
      made.kwargs = {{"dtype", dtype}};
      lower(made);
      x = Arg::Tensor(made.results.at(0));
    }
    Call stack = call;
    stack.callee = callees::kStack;
    stack.args = {Arg::Seq(Arg::Kind::kTuple, a.items)};
    stack.kwargs.clear();
    lower(stack);
    a = Arg::Tensor(stack.results.at(0));
    call.args[1] = Arg::Seq(Arg::Kind::kTuple, items);
  }
}

// torch's own warning, which waits for the exit. False: it cannot.
static bool WarnsOfListIndex(Session& s) {
  PyObject* const told = ToldByTorch("of_list_index");
  return told && told != Py_None && WarnLater(s, PyTuple_GET_ITEM(told, 0), PyExc_UserWarning, 1);
}

bool DataSizes::AsIndices(Call& call) {
  const std::string_view last = call.callee.last();
  auto is_tensor = [&](size_t i) { return call.args.size() > i && call.args[i].is(Arg::Kind::kTensor); };
  if (!is_tensor(0)) return false;
  const bool where = last == "where" && call.args.size() == 1 && call.kwargs.empty();
  const bool tuple = last == "nonzero" && IsTrue(GivenArg(call, 1, {"as_tuple"}));
  if (where || tuple) {
    if (s_.meta(call.args[0].t).sizes.empty()) return false;
    call.results = IndicesOf(call, call.args[0].t);
    std::vector<Arg> items;
    for (TraceId t : call.results) items.push_back(Arg::Tensor(t));
    call.result = Arg::Seq(Arg::Kind::kTuple, std::move(items));
    return true;
  }
  const bool get = last == "__getitem__" && call.args.size() == 2, set = last == "__setitem__" && call.args.size() == 3;
  if (!get && !set) return false;
  std::vector<Arg> items = call.args[1].is(Arg::Kind::kTuple) ? call.args[1].items : std::vector<Arg>{call.args[1]};
  auto tensor = [](const Arg& x) { return x.is(Arg::Kind::kTensor); };
  if (call.args[1].is(Arg::Kind::kList) && std::any_of(items[0].items.begin(), items[0].items.end(), tensor)) {
    if (items[0].items.size() >= kMostIndices || !WarnsOfListIndex(s_))
      throw surface::Decline("a list of tensors as index, which torch takes for a tuple, with a warning");
    items = std::vector<Arg>(items[0].items);
    call.args[1] = Arg::Seq(Arg::Kind::kTuple, items);
    return AsIndices(call) || (Lower(call), true);
  }
  StackIntegers(s_, call, items, [&](Call& made) { Lower(made); });
  const std::optional<bool> bounds = TakeBounds(items, [&](Arg* bound) {
    const TensorMeta& m = s_.meta(bound->t);
    if (!m.sizes.empty() || !IsInteger(m.dtype) || IsBool(m.dtype)) return false;
    Ref number(ItemOf(bound->t, false));
    return number && s_.ToArg(number.get(), bound);
  });
  if (!bounds) return false;
  if (*bounds) {
    call.args[1] = call.args[1].is(Arg::Kind::kTuple) ? Arg::Seq(Arg::Kind::kTuple, items) : items[0];
    return AsIndices(call) || (Lower(call), true);
  }
  // One index of one integer selects a view, as the integer itself does.
  Arg* index = nullptr;
  int indices = 0;
  for (Arg& a : items) {
    if (!a.is(Arg::Kind::kTensor)) continue;
    const TensorMeta& m = s_.meta(a.t);
    ++indices;
    if (m.sizes.empty() && IsInteger(m.dtype) && !IsBool(m.dtype) && m.dtype != DType::kUInt8) index = &a;
  }
  if (index && indices == 1) {
    Ref number(ItemOf(index->t, false));
    if (!number || !s_.ToArg(number.get(), index)) return false;
    call.args[1] = call.args[1].is(Arg::Kind::kTuple) ? Arg::Seq(Arg::Kind::kTuple, items) : items[0];
    Lower(call);
    return true;
  }
  auto is_mask = [&](const Arg& a) {
    return a.is(Arg::Kind::kTensor) && IsBool(s_.meta(a.t).dtype) && !s_.meta(a.t).sizes.empty();
  };
  if (std::none_of(items.begin(), items.end(), is_mask)) return false;
  // One number for all that a mask selects needs no size.
  if (set && (!is_tensor(2) || s_.meta(call.args[2].t).sizes.empty())) return false;
  // The framework refuses a mask that shares memory with what is written; its indices would not.
  const auto root = [&](const Arg& a) { return s_.trace().tensors[a.t].base; };
  const auto shared = [&](const Arg& a) { return is_mask(a) && root(a) == root(call.args[0]); };
  if (set && std::any_of(items.begin(), items.end(), shared)) return false;
  size_t consumed = 0, axis = 0;
  for (const Arg& a : items) {
    if (is_mask(a))
      consumed += s_.meta(a.t).sizes.size();
    else if (!a.is_none() && !a.is(Arg::Kind::kEllipsis))
      ++consumed;
  }
  const shape::Ints sizes = s_.meta(call.args[0].t).sizes;
  if (consumed > sizes.size()) return false;
  std::vector<Arg> key;
  for (const Arg& a : items) {
    if (!is_mask(a)) {
      key.push_back(a);
      axis += a.is_none() ? 0 : a.is(Arg::Kind::kEllipsis) ? sizes.size() - consumed : 1;
      continue;
    }
    const shape::Ints mask = s_.meta(a.t).sizes;
    for (shape::Int n : mask)
      if (!s_.env().Eq(n, sizes[axis++])) return false;
    for (TraceId t : IndicesOf(call, a.t)) key.push_back(Arg::Tensor(t));
  }
  call.args[1] = Arg::Seq(Arg::Kind::kTuple, std::move(key));
  Lower(call);
  return true;
}

}  // namespace framejit::capture
