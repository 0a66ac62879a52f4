#include "capture/vmap/vmap_call.h"

#include <algorithm>

#include "capture/callees.h"

namespace framejit::capture {

namespace {

// A tensor, or a list or tuple with one in it, as framejit._functions.batched looks for them.
bool HoldsTensor(PyObject* o) {
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return IsTensor(o);
  PyObject** items = PySequence_Fast_ITEMS(o);
  return std::any_of(items, items + PySequence_Fast_GET_SIZE(o), HoldsTensor);
}

}  // namespace

BatchedCall::BatchedCall(Session& s, int level, Callee callee, PyObject* const* args, Py_ssize_t nargs,
                         PyObject* kwnames)
    : s_(s), level_(level), callee_(callee), args_(args, args + nargs), positional_(nargs), kwnames_(kwnames) {
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) args_.push_back(args[nargs + i]);
  given_ = args_;
}

// Norms with running statistics, all of which have these at the same places.
bool BatchedCall::ReadsStatistics() const {
  constexpr size_t kMean = 3, kTraining = 5;
  return positional_ > static_cast<Py_ssize_t>(kTraining) && (args_[kTraining] == Py_False || args_[kMean] == Py_None);
}

PyObject* BatchedCall::Refuse() {
  static const Callee batched("framejit._functions.batched");
  if (callee_.Has(kOutside | kForeign | kDraws | kWritesFirst) || ChangesFirst(callee_) ||
      (callee_.Has(kWritesInSilence) && !ReadsStatistics()) || callee_.effects().refused() ||
      callee_.last() == "__set__")
    return Break();
  for (size_t i = 0; i < given_.size(); ++i)
    if (Name(i) == "out") return Break();
  std::vector<Ref> kept;
  Ref dims(PyList_New(0)), name(PyUnicode_FromString(callee_.name().c_str()));
  if (!dims || !name) return nullptr;
  for (PyObject* o : given_) {
    kept.push_back(Inner(o, dims.get()));
    if (!kept.back()) return nullptr;
  }
  Ref in(PyList_AsTuple(dims.get()));
  std::vector<PyObject*> call = {name.get(), s_.MarkFresh(in.get())};
  for (const Ref& r : kept) call.push_back(r.get());
  Ref r(in ? s_.CallFramework(batched, call.data(), positional_ + 2, kwnames_) : nullptr);
  return r ? Wrap(r.get(), 0) : nullptr;
}

Ref BatchedCall::Inner(PyObject* o, PyObject* dims) {
  if (IsTensor(o)) {
    const Vmap::Batched* b = At(o);
    Ref dim(b ? PyLong_FromLong(b->dim) : Py_NewRef(Py_None));
    if (!dim || PyList_Append(dims, dim.get()) < 0) return {};
    return Borrow(b ? b->inner : o);
  }
  if (!HoldsTensor(o)) return Borrow(o);
  Ref list(PySequence_List(o));
  for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list.get()); ++i) {
    Ref item = Inner(PyList_GET_ITEM(list.get(), i), dims);
    if (!item || PyList_SetItem(list.get(), i, item.release()) < 0) return {};
  }
  return Borrow(s_.MarkFresh(PyTuple_CheckExact(o) ? Ref(PyList_AsTuple(list.get())).get() : list.get()));
}

std::string_view BatchedCall::Name(size_t i) const {
  const Py_ssize_t k = static_cast<Py_ssize_t>(i) - positional_;
  return k < 0 ? "" : PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames_, k));
}

const Vmap::Batched* BatchedCall::At(PyObject* o) const {
  if (!IsTensor(o)) return nullptr;
  auto at = s_.vmap.tensors.find(AsTensor(o)->id);
  return at == s_.vmap.tensors.end() || at->second.level != level_ ? nullptr : &at->second;
}

Ref BatchedCall::Call(Callee callee, std::vector<PyObject*> args) {
  return Ref(s_.CallFramework(callee, args.data(), static_cast<Py_ssize_t>(args.size()), nullptr));
}

Ref BatchedCall::Sizes(const std::vector<PyObject*>& first, std::span<const shape::Int> rest) {
  Ref sizes(PyTuple_New(static_cast<Py_ssize_t>(first.size() + rest.size())));
  for (size_t i = 0; sizes && i < first.size() + rest.size(); ++i) {
    PyObject* n = i < first.size() ? Py_NewRef(first[i]) : s_.SymIntObject(rest[i - first.size()]);
    if (!n) return {};
    PyTuple_SET_ITEM(sizes.get(), static_cast<Py_ssize_t>(i), n);
  }
  return Ref(s_.MarkFresh(sizes.release()));
}

Ref BatchedCall::Front(PyObject* o, int rank, bool viewed) {
  const Vmap::Batched b = *At(o);
  Ref r = Borrow(b.inner);
  if (b.dim) {
    Ref from(PyLong_FromLong(b.dim)), to(PyLong_FromLong(0));
    r = Call(callees::kTensorMoveDim, {r.get(), from.get(), to.get()});
  }
  const int missing = std::max(0, rank - Rank(o));
  if (!r || (!missing && !viewed)) return r;
  const shape::Ints all = Meta(r.get()).sizes;
  Ref size(s_.SymIntObject(all[0])), one(PyLong_FromLong(1));
  std::vector<PyObject*> first(1 + missing, one.get());
  first[0] = size.get();
  Ref sizes = size && one ? Sizes(first, std::span(all).subspan(1)) : Ref();
  static const Callee view("torch.Tensor.view");
  return sizes ? Call(view, {r.get(), sizes.get()}) : Ref();
}

PyObject* BatchedCall::Wrap(PyObject* result, int dim) {
  if (IsTensor(result)) {
    TensorMeta m = Meta(result);
    if (m.lazy()) return Break();
    m.sizes.Erase(dim);
    m.strides.Erase(dim);
    m.is_parameter = m.requires_grad = false;
    const TraceId id = s_.lowering().AddHidden(std::move(m));
    s_.Keep(Py_NewRef(result));
    s_.vmap.tensors[id] = {result, dim, level_, s_.vmap.differentiates(level_)};
    return s_.NewProxy(id);
  }
  if (!PyTuple_Check(result) && !PyList_CheckExact(result)) return Break();
  Ref list(PySequence_List(result));
  for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list.get()); ++i) {
    PyObject* item = Wrap(PyList_GET_ITEM(list.get(), i), dim);
    if (!item || PyList_SetItem(list.get(), i, item) < 0) return nullptr;
  }
  if (!list || PyList_CheckExact(result)) return s_.MarkFresh(list.release());
  if (!PyTuple_CheckExact(result))
    return s_.MarkFresh(PyObject_CallOneArg(reinterpret_cast<PyObject*>(Py_TYPE(result)), list.get()));
  return s_.MarkFresh(PyList_AsTuple(list.get()));
}

}  // namespace framejit::capture
