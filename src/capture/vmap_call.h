// A call with batched tensors, at one level: what all rules of torch.vmap need (vmap_rules.cc).
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/vmap.h"

namespace framejit::capture {

class BatchedCall {
 public:
  BatchedCall(Session& s, int level, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames)
      : s_(s), level_(level), callee_(callee), args_(args, args + nargs), positional_(nargs), kwnames_(kwnames) {
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) args_.push_back(args[nargs + i]);
    given_ = args_;
  }

 protected:
  std::nullptr_t Break() { return s_.Break(BreakId::kUnsupportedTensor, callee_ + " under torch.vmap"); }

  // No rule of ours: a call of torch.vmap of that function alone, which has torch's own rules (framejit._functions).
  PyObject* Refuse() {
    static const Callee batched("framejit._functions.batched");
    if (callee_.Has(kInPlace | kOutside | kForeign | kWritesInSilence | kWritesFirst) || callee_.effects().refused() ||
        callee_.last() == "__setitem__" || callee_.last() == "__set__")
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

  static bool HoldsTensor(PyObject* o) {  // a list or tuple of some, as framejit._functions.batched looks for them
    if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return IsTensor(o);
    PyObject** items = PySequence_Fast_ITEMS(o);
    return std::any_of(items, items + PySequence_Fast_GET_SIZE(o), HoldsTensor);
  }

  // An argument with the inner tensors in place of the batched ones; the hidden dimension of each tensor in it.
  Ref Inner(PyObject* o, PyObject* dims) {
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

  std::string_view Name(size_t i) const {
    const Py_ssize_t k = static_cast<Py_ssize_t>(i) - positional_;
    return k < 0 ? "" : PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames_, k));
  }
  const Vmap::Batched* At(PyObject* o) const {  // batched at this level
    if (!IsTensor(o)) return nullptr;
    auto at = s_.vmap.tensors.find(AsTensor(o)->id);
    return at == s_.vmap.tensors.end() || at->second.level != level_ ? nullptr : &at->second;
  }
  const TensorMeta& Meta(PyObject* o) const { return s_.meta(AsTensor(o)->id); }
  int Rank(PyObject* o) const { return static_cast<int>(Meta(o).sizes.size()); }  // as the program sees it

  PyObject* Call() { return s_.CallFramework(callee_, args_.data(), positional_, kwnames_); }
  Ref Call(Callee callee, std::vector<PyObject*> args) {
    return Ref(s_.CallFramework(callee, args.data(), static_cast<Py_ssize_t>(args.size()), nullptr));
  }

  // The inner tensor with the hidden dimension first and the others padded to `rank` on their left.
  Ref Front(PyObject* o, int rank = 0) {
    const Vmap::Batched b = *At(o);
    Ref r = Borrow(b.inner);
    if (b.dim) {
      Ref from(PyLong_FromLong(b.dim)), to(PyLong_FromLong(0));
      r = Call(callees::kTensorMoveDim, {r.get(), from.get(), to.get()});
    }
    for (int missing = rank - Rank(o); r && missing > 0; --missing) {
      Ref one(PyLong_FromLong(1));
      r = Call(callees::kTensorUnsqueeze, {r.get(), one.get()});
    }
    return r;
  }

  // What the program sees of a result.
  PyObject* Wrap(PyObject* result, int dim) {
    if (IsTensor(result)) {
      TensorMeta m = Meta(result);
      m.sizes.erase(m.sizes.begin() + dim);
      m.strides.erase(m.strides.begin() + dim);
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

  Session& s_;
  const int level_;
  const Callee callee_;
  std::vector<PyObject*> args_, given_;  // the second stays as it is
  Py_ssize_t positional_;
  PyObject* kwnames_;
};

}  // namespace framejit::capture
