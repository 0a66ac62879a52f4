// Stores to attributes: those of outside objects wait for the exit.
#include <Python.h>

#include <algorithm>
#include <optional>
#include <string>

#include "capture/arg_vector.h"
#include "capture/builtins.h"
#include "capture/class_attributes.h"
#include "capture/drops.h"
#include "capture/own_attributes.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/tensor_state.h"
#include "capture/wrappers/tape.h"
#include "capture/wrappers/wrappers.h"
#include "guard/versions.h"
#include "tensor/numpy_api.h"

namespace framejit::capture {
namespace {

struct Names {
  PyObject *set = Interned("__set__"), *delete_ = Interned("__delete__"), *setattr = Interned("__setattr__"),
           *delattr = Interned("__delattr__");
};
const Names& N() {
  static const Names names;
  return names;
}

}  // namespace

// The slot `d` of an outside object: it is written at the exit.
int CaptureSemantics::StoreSlot(PyObject* o, PyObject* name, PyObject* d, PyObject* value) {
  if (s_.InLookup() || !s_.SourceOf(o)) return s_.Break(BreakId::kSideEffect, "a slot of an outside object"), -1;
  if (!value) {
    bool missing;
    Ref old(FindAttr(o, name, &missing));
    if (!old)
      return s_.broken() || PyErr_Occurred() ? -1 : (PyErr_SetObject(PyExc_AttributeError, PyDescr_NAME(d)), -1);
  }
  if (!DropsQuietly(o, d)) return s_.Break(BreakId::kSideEffect, kSeenToDie), -1;
  Ref descriptor(s_.FromOutside(d, s_.guards().Const(d)));
  if (!descriptor) return -1;
  s_.pending().Store(o, d, value);
  return 0;
}

// What a class has as __setattr__ or __delattr__ that is neither a function of Python nor the way of a type written in
// C.
static PyObject* OtherHook(PyTypeObject* type, PyObject* name) {
  if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return nullptr;
  PyObject* hook = _PyType_Lookup(type, name);
  const bool way = hook && Py_IS_TYPE(hook, &PyWrapperDescr_Type) && PyUnicode_Compare(PyDescr_NAME(hook), name) == 0;
  return way ? nullptr : hook;
}

int CaptureSemantics::GenericSetAttr(PyObject* o, PyObject* name, PyObject* value) {
  PyTypeObject* type = Py_TYPE(o);
  s_.NoteType(type);
  PyObject* d = _PyType_Lookup(type, name);
  if (d && PyObject_TypeCheck(d, &PyProperty_Type)) {
    Ref f(PyObject_GetAttrString(d, value ? "fset" : "fdel"));
    if (!f) return -1;
    if (f.get() != Py_None) {
      PyObject* args[] = {o, value};
      Ref r(Call(f.get(), args, value ? 2 : 1, nullptr));
      return r ? 0 : -1;
    }
  }
  PyObject* python_set = d ? PythonFunctionIn(Py_TYPE(d), value ? N().set : N().delete_) : nullptr;
  if (python_set) {
    PyObject* args[] = {d, o, value};
    Ref r(Call(python_set, args, value ? 3 : 2, nullptr));
    return r ? 0 : -1;
  }
  if (tensor::IsObjectArray(o)) return s_.Break(BreakId::kSideEffect, "an attribute of an array of objects"), -1;
  const bool of_class = d && Py_TYPE(d)->tp_descr_set;
  if (s_.IsPrivate(o) && guard::IsThreadLocal(type)) return LayoutOf(type)->tp_setattro(o, name, value);
  if (s_.IsPrivate(o) && (of_class || !HasOutsideDict(s_, o))) return PyObject_GenericSetAttr(o, name, value);
  if (d && IsSlot(d)) return StoreSlot(o, name, d, value);
  if (of_class) return s_.Break(BreakId::kSideEffect, "a slot of an outside object"), -1;
  if (IsOfLogging(type) && !s_.IsPrivate(o)) return s_.Break(BreakId::kSideEffect, "what records of logging read"), -1;
  const Source* ds;
  PyObject* dict = InstanceDict(o, &ds);
  if (s_.broken()) return -1;
  if (!dict || !ds || PyODict_Check(dict))  // an attribute goes past the order of an OrderedDict
    return s_.Break(BreakId::kSideEffect, std::string("attribute of a ") + type->tp_name), -1;
  Ref seen(s_.FromOutside(dict, ds));
  if (!seen) return -1;
  if (!value) {
    bool found;
    Ref old(s_.ReadDictItem(dict, ds, name, &found));
    if (s_.broken() || PyErr_Occurred()) return -1;
    if (!found) return NoAttribute(o, name), -1;
  }
  return s_.WriteDictItem(dict, name, value);
}

// An attribute of a tensor's own, which its class knows nothing of. One that was made here gets it at the exit, if it
// is still there.
int CaptureSemantics::StoreTensorAttr(PyObject* o, PyObject* name, PyObject* value) {
  auto refuse = [&] { return s_.Break(BreakId::kSideEffect, "attribute of a tensor"), -1; };
  const TraceId id = s_.pending().Original(AsTensor(o)->id);
  Ref type(TensorClass(s_, o));
  if (!type) return -1;
  auto* t = reinterpret_cast<PyTypeObject*>(type.get());
  PyObject *descr = s_.NoteLookup(t, name), *hook = s_.NoteLookup(t, value ? N().setattr : N().delattr);
  const bool plain = s_.meta(id).framework == Framework::kTorch && !(hook && PyFunction_Check(hook));
  if (const char* text = plain ? PyUnicode_AsUTF8(name) : nullptr)
    if (const std::optional<bool> set = SetOfTensor(s_, o, text, value)) return *set ? 0 : -1;
  if (s_.broken() || PyErr_Occurred()) return -1;
  if (plain && descr && PyObject_TypeCheck(descr, &PyProperty_Type)) {  // of a subclass
    Ref setter(PyObject_GetAttrString(descr, value ? "fset" : "fdel"));
    if (setter && PyFunction_Check(setter.get()) && s_.SourceOf(setter.get())) {
      PyObject* args[] = {o, value};
      return Ref(Call(setter.get(), args, value ? 2 : 1, nullptr)) ? 0 : -1;
    }
    PyErr_Clear();
  }
  if (s_.meta(id).framework != Framework::kTorch || (descr && Py_TYPE(descr)->tp_descr_set) ||
      (hook && PyFunction_Check(hook)) || s_.lowering().IsHidden(id))
    return refuse();
  const int input = s_.trace().tensors[id].input;
  PyObject** dict = input < 0 ? nullptr : _PyObject_GetDictPtr(s_.input_tensors()[input]);
  if (input >= 0 && !dict) return refuse();
  if (input < 0 || !*dict) {  // an input that has none yet gets them at the exit, too
    if (input >= 0) {
      if (s_.later || s_.InLookup()) return refuse();
      s_.guards().Absent(s_.guards().Child(SourceKind::kInstanceDict, s_.input_sources()[input]));
    }
    if (PyObject* made = DictMade(s_.pending(), id)) {
      if (value) return PyDict_SetItem(made, name, value);
      return PyDict_Contains(made, name) == 1 ? PyDict_DelItem(made, name) : refuse();
    }
    auto& own = s_.pending().attributes[id];
    auto at =
        std::find_if(own.begin(), own.end(), [&](auto& a) { return PyUnicode_Compare(a.first.get(), name) == 0; });
    if (at != own.end()) own.erase(at);
    if (value) own.emplace_back(Borrow(name), Borrow(value));
    return value || at != own.end() ? 0 : refuse();
  }
  const Source* source = s_.guards().Child(SourceKind::kInstanceDict, s_.input_sources()[input]);
  Ref seen(s_.FromOutside(*dict, source));
  if (!seen) return -1;
  if (!value) {
    bool found;
    Ref old(s_.ReadDictItem(*dict, source, name, &found));
    if (s_.broken() || PyErr_Occurred()) return -1;
    if (!found) return refuse();  // the framework has words of its own for that
  }
  return s_.WriteDictItem(*dict, name, value);
}

PyObject* DictMade(const PendingEffects& pending, TraceId id) {
  const auto own = pending.attributes.find(id);
  if (own == pending.attributes.end()) return nullptr;
  for (const auto& [name, value] : own->second)
    if (!PyUnicode_CompareWithASCIIString(name.get(), "__dict__")) return value.get();
  return nullptr;
}

PyObject* TensorDict(Session& s, PyObject* proxy) {
  PendingEffects& pending = s.pending();
  const TraceId id = pending.Original(AsTensor(proxy)->id);
  if (PyObject* made = DictMade(pending, id)) return Py_NewRef(made);
  const auto refuse = [&] { return s.Break(BreakId::kTensorProtocol, "tensor.__dict__"); };
  if (s.meta(id).framework != Framework::kTorch || s.lowering().IsHidden(id) || s.vmap.open() || s.in_custom ||
      s.later || s.InLookup() || TapeOf(s))
    return refuse();
  const int input = s.trace().tensors[id].input;
  if (input >= 0) {
    PyObject** dict = _PyObject_GetDictPtr(s.input_tensors()[input]);
    if (!dict) return refuse();
    const Source* source = s.guards().Child(SourceKind::kInstanceDict, s.input_sources()[input]);
    if (*dict && pending.attributes[id].empty()) return s.FromOutside(*dict, source);
    if (*dict) return refuse();
    s.guards().Absent(source);
  }
  Ref made(s.MarkFresh(PyDict_New()));
  auto& own = pending.attributes[id];
  for (auto at = own.begin(); made && at != own.end();) {
    if (!PyUnicode_CompareWithASCIIString(at->first.get(), "__class__")) {
      ++at;
      continue;
    }
    if (PyDict_SetItem(made.get(), at->first.get(), at->second.get()) < 0) return nullptr;
    at = own.erase(at);
  }
  if (made) own.emplace_back(Ref(PyUnicode_InternFromString("__dict__")), Borrow(made.get()));
  return made.release();
}

int CaptureSemantics::StoreAttr(PyObject* o, PyObject* name, PyObject* value) {
  o = s_.Resolve(o);
  if (value) value = s_.Resolve(value);
  if (!o || s_.broken()) return -1;
  if (IsTensor(o)) return StoreTensorAttr(o, name, value);
  if (IsWrapper(o) && !WrapperTakes(s_, o, name)) return -1;
  if (PyType_Check(o)) return StoreClassAttr(reinterpret_cast<PyTypeObject*>(o), name, value);
  if (PyModule_Check(o) || PyFunction_Check(o)) {
    const bool takes_dict = !PyUnicode_CompareWithASCIIString(name, "__dict__") && value && s_.SourceOf(value);
    if (PyFunction_Check(o) && s_.IsFresh(o) && !takes_dict) return PyObject_SetAttr(o, name, value);
    return s_.Break(BreakId::kSideEffect, std::string("attribute of a ") + Py_TYPE(o)->tp_name), -1;
  }
  if (PyObject* hook = PythonFunctionIn(Py_TYPE(o), value ? N().setattr : N().delattr)) {
    s_.NoteType(Py_TYPE(o));
    PyObject* args[] = {o, name, value};
    Ref r(Call(hook, args, value ? 3 : 2, nullptr));
    return r ? 0 : -1;
  }
  if (PyObject* hook = OtherHook(Py_TYPE(o), value ? N().setattr : N().delattr)) {  // __setattr__ = dict.__setitem__
    s_.NoteType(Py_TYPE(o));
    if (!Py_IS_TYPE(hook, &PyWrapperDescr_Type) && !Py_IS_TYPE(hook, &PyMethodDescr_Type))
      return s_.Break(BreakId::kUnknownCall, std::string(Py_TYPE(o)->tp_name) + ".__setattr__"), -1;
    PyObject* args[] = {o, name, value};
    return Ref(Call(hook, args, value ? 3 : 2, nullptr)) ? 0 : -1;
  }
  return GenericSetAttr(o, name, value);
}
}  // namespace framejit::capture
