// This is the attribute protocol: CPython's own lookup order (data descriptor, instance dict, class attribute,
// __getattr__), with a guard for every place that was looked at. Python-level hooks (__getattribute__, properties,
// descriptors) are called, so they are captured like any other function.
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <array>
#include <optional>

#include "capture/arg_vector.h"
#include "capture/callees.h"
#include "capture/class_attributes.h"
#include "capture/late_reads.h"
#include "capture/override.h"
#include "capture/own_attributes.h"
#include "capture/proxy.h"
#include "capture/read_module.h"
#include "capture/semantics.h"
#include "capture/tensor_state.h"
#include "capture/wrappers/tape.h"
#include "capture/wrappers/wrappers.h"
#include "guard/annotate.h"
#include "guard/own_values.h"
#include "guard/versions.h"
#include "tensor/numpy_api.h"

namespace framejit::capture {
namespace {

bool IsMemberDescr(PyObject* d) {
  return Py_IS_TYPE(d, &PyMemberDescr_Type);
}
bool IsGetSetDescr(PyObject* d) {
  return Py_IS_TYPE(d, &PyGetSetDescr_Type);
}

// Reading them needs no guard: the object is private, or what they say is fixed by a guard on its identity or value.
bool Facts(Session& s, PyObject* o) {
  const Origin* origin = s.Find(o);  // type hints hold what they were made of
  const bool hint = OfType(o, CType::kUnionType) || OfType(o, CType::kGenericAlias);
  if (hint && origin && origin->kind == Origin::kConst) return true;
  return s.IsFresh(o) || (IsPlainData(o) && (!s.IsOutside(o) || IsValue(o)));
}

PyObject* AdoptFact(Session& s, PyObject* of, PyObject* fact) {
  return of && s.IsFresh(of) ? s.Adopt(fact) : s.AdoptHeld(fact);
}

// Are attributes looked up as object does it, but for methods in Python? Types of C may have a way of their own.
bool LooksUpPlainly(PyTypeObject* t) {
  static PyObject* const name = Interned("__getattribute__");
  static PyObject *const plain = _PyType_Lookup(&PyBaseObject_Type, name), *const module =
                                                                               _PyType_Lookup(&PyModule_Type, name);
  if (t->tp_getattro == PyObject_GenericGetAttr) return true;
  PyObject* own = _PyType_Lookup(t, name);
  if (own == plain || own == module) return true;
  // dict and others of C have a slot of their own with the same in it.
  return own && Py_TYPE(own) == &PyWrapperDescr_Type &&
         reinterpret_cast<PyWrapperDescrObject*>(own)->d_wrapped == reinterpret_cast<void*>(PyObject_GenericGetAttr);
}

struct Names {
  PyObject *get = Interned("__get__"), *getattr = Interned("__getattr__"), *getattribute = Interned("__getattribute__");
};
const Names& N() {
  static const Names names;
  return names;
}

}  // namespace

// torch.ops and what is in it look for an operator when it is first named, and keep it: nobody sees when.
static void FindOperator(PyObject* o, PyObject* name) {
  static auto* const spaces = new tensor::Named("torch._ops._OpNamespace");
  static auto* const all = new tensor::Named("torch._ops._Ops");
  const char* type = Py_TYPE(o)->tp_name;
  const bool space = !strcmp(type, "_OpNamespace");
  if (!space && strcmp(type, "_Ops")) return;
  if ((space ? spaces : all)->Get() != reinterpret_cast<PyObject*>(Py_TYPE(o))) return;
  if (PyDict_Contains(PyModule_GetDict(o), name)) return;
  SuspendScope off;
  Ref found(PyObject_GetAttr(o, name));
  PyErr_Clear();
}

bool IsSlot(PyObject* d) {
  if (!IsMemberDescr(d) || !(PyDescr_TYPE(d)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(d)->d_member;
  return member->type == T_OBJECT_EX && !(member->flags & READONLY);
}

std::nullptr_t NoAttribute(PyObject* o, PyObject* name) {
  PyErr_Format(PyExc_AttributeError, "'%.100s' object has no attribute '%U'", Py_TYPE(o)->tp_name, name);
  return nullptr;
}

PyObject* CaptureSemantics::ModuleAttr(PyObject* module, PyObject* name) {
  ReadModule(module, name);
  if (const Source* s = s_.SourceOf(module)) s_.guards().TypeIs(s, &PyModule_Type);  // it may become a subclass's
  PyObject* dict = PyModule_GetDict(module);
  static PyObject* const framejit = PyImport_AddModule("framejit");
  if (module == framejit && !PyDict_Contains(dict, name)) {
    const SuspendScope off;  // The package imports most of its names when they are asked for.
    if (!Ref(PyObject_GetAttr(module, name))) PyErr_Clear();
  }
  const Source* source = s_.guards().Const(dict);
  bool found;
  PyObject* v = s_.ReadDictItem(dict, source, name, &found);
  if (found || s_.broken() || PyErr_Occurred()) return v;
  Ref hook(s_.ReadDictItem(dict, source, N().getattr, &found));
  if (s_.broken() || PyErr_Occurred()) return nullptr;
  if (found && !_PyType_Lookup(&PyModule_Type, name)) {
    PyObject* args[] = {name};
    return Call(hook.get(), args, 1, nullptr);
  }
  // It answers __dict__ and its like, or raises the real AttributeError.
  return s_.AdoptHeld(PyObject_GetAttr(module, name));
}

std::string_view ModuleOf(PyTypeObject* type) {
  PyObject* module = PyDict_GetItemString(guard::TypeDict(type), "__module__");
  const char* text = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  return text ? text : (PyErr_Clear(), "");
}

bool IsBookkeeping(PyTypeObject* type) {
  return Py_TYPE(type) == &PyType_Type && ModuleOf(type).starts_with(callees::kDynamo);
}

// The value of a class attribute as seen through `object` (null: through the class itself).
PyObject* CaptureSemantics::ClassValue(PyObject* d, PyObject* object, PyTypeObject* type) {
  if (PyFunction_Check(d)) {
    s_.SourceOf(d);
    if (object) return PyMethod_New(d, object);
    Py_INCREF(d);
    return d;
  }
  if (Py_TYPE(d) == &PyStaticMethod_Type || Py_TYPE(d) == &PyClassMethod_Type) {
    Ref f(PyObject_GetAttrString(d, "__func__"));
    if (!f) return nullptr;
    s_.SourceOf(f.get());
    if (object || !IsBookkeeping(type)) s_.NoteType(type);
    if (Py_TYPE(d) == &PyStaticMethod_Type) return f.release();
    return PyMethod_New(f.get(), reinterpret_cast<PyObject*>(type));
  }
  if (PyObject_TypeCheck(d, &PyProperty_Type)) {
    if (!object) {
      Py_INCREF(d);
      return d;
    }
    Ref getter(PyObject_GetAttrString(d, "fget"));
    if (!getter) return nullptr;
    if (getter.get() == Py_None) {
      PyErr_Format(PyExc_AttributeError, "property of '%.100s' object has no getter", type->tp_name);
      return nullptr;
    }
    s_.SourceOf(getter.get());
    PyObject* args[] = {object};
    return Call(getter.get(), args, 1, nullptr);
  }
  descrgetfunc get = Py_TYPE(d)->tp_descr_get;
  const bool private_class = s_.IsFresh(reinterpret_cast<PyObject*>(type));
  if (!get && private_class && (IsTensor(d) || s_.Find(d))) return Py_NewRef(d);
  if (!get) {
    Py_INCREF(d);
    Ref held(d);
    if (s_.IsFresh(d) || IsPrimitive(d)) {
      const bool user = s_.later && type->tp_flags & Py_TPFLAGS_HEAPTYPE;
      if (user && !s_.ReadLater(d, s_.guards().Const(reinterpret_cast<PyObject*>(type)))) return nullptr;
      return s_.Adopt(held.release());
    }
    return s_.FromOutside(d, s_.guards().Const(d));  // bound by the class, whose version is guarded
  }
  if (PyObject* python_get = PythonFunctionIn(Py_TYPE(d), N().get)) {
    s_.NoteType(Py_TYPE(d));
    if (!s_.Find(d)) {
      Ref seen(s_.FromOutside(d, s_.guards().Const(d)));
      if (!seen) return nullptr;
    }
    PyObject* args[] = {d, object ? object : Py_None, reinterpret_cast<PyObject*>(type)};
    return Call(python_get, args, 3, nullptr);
  }
  // C descriptors: methods bind; others are read when they are facts about the object.
  PyTypeObject* kind = Py_TYPE(d);
  if (object && IsWrapper(object) && (kind == &PyMethodDescr_Type || kind == &PyWrapperDescr_Type))
    return PyMethod_New(d, object);
  if (kind == &PyMethodDescr_Type || kind == &PyWrapperDescr_Type || kind == &PyClassMethodDescr_Type ||
      kind == &PyCFunction_Type || OfType(kind, CType::kLruCache) || !object ||
      (FactsOf(type).Has(TypeFacts::kDraws) && std::string_view(kind->tp_name).ends_with("cython_function_or_method")))
    return get(d, object, reinterpret_cast<PyObject*>(type));
  if (std::string_view(kind->tp_name).ends_with("collections._tuplegetter") && object &&
      PyTuple_Check(object)) {  // A field of a named tuple is an item. (Versions name the module in two ways.)
    Ref state(PyObject_CallMethod(d, "__reduce__", nullptr));
    PyObject* arguments = state ? PyTuple_GetItem(state.get(), 1) : nullptr;
    PyObject* index = arguments ? PyTuple_GetItem(arguments, 0) : nullptr;
    return index ? GetItem(object, index) : nullptr;
  }
  if (object && PyExceptionInstance_Check(object) && !s_.IsOutside(object)) {
    if (IsGetSetDescr(d) && !PyUnicode_CompareWithASCIIString(PyDescr_NAME(d), "args"))
      return NoteNames(), s_.Adopt(get(d, object, reinterpret_cast<PyObject*>(type)));
  }
  if (object && s_.IsNumpyNumber(object)) return s_.Adopt(get(d, object, reinterpret_cast<PyObject*>(type)));
  if (!object || Facts(s_, object)) return AdoptFact(s_, object, get(d, object, reinterpret_cast<PyObject*>(type)));
  return s_.Break(BreakId::kUnknownCall, std::string("descriptor of type ") + kind->tp_name);
}

// What was stored to a class here, which a backward pass may find changed again, as seen through `object` (null:
// through the class itself).
static PyObject* WaitingValue(Session& s, PyObject* value, PyObject* object, PyTypeObject* type) {
  const Source* source = s.guards().Const(reinterpret_cast<PyObject*>(type));
  if (s.later && !s.ReadLater(value, source)) return nullptr;
  return object && PyFunction_Check(value) ? PyMethod_New(value, object) : Py_NewRef(value);
}

PyObject* CaptureSemantics::InstanceDict(PyObject* object, const Source** source) {
  *source = nullptr;
  if (guard::IsThreadLocal(Py_TYPE(object)) && s_.IsFresh(object)) {  // this thread has made it, and with it a dict
    static PyObject* const dict_name = Interned("__dict__");
    return Ref(PyObject_GetAttr(object, dict_name)).get();  // the thread holds it
  }
  if (guard::IsThreadLocal(Py_TYPE(object))) {
    PyObject* dict = guard::InstanceDict(object);
    if (const Source* s = dict ? s_.SourceOf(object) : nullptr)
      *source = s_.guards().Child(SourceKind::kInstanceDict, s);
    return *source ? dict : s_.Break(BreakId::kThreadState, "a threading.local with an __init__");
  }
  if (!Py_TYPE(object)->tp_dictoffset && !(Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT)) return nullptr;
  // This is a new reference, and values that lie inside of the object move into the dict, until the capture ends.
  const bool moves = fj_own_values(object) && s_.IsOutside(object);
  PyObject* dict = PyObject_GenericGetDict(object, nullptr);
  if (moves) guard::LentDicts::Note(object, dict);
  if (!dict) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(dict);  // the object keeps it
  if (const Source* s = s_.SourceOf(object))
    *source = s_.guards().Child(SourceKind::kInstanceDict, s);
  else if (HasOutsideDict(s_, object))
    *source = s_.SourceOf(dict);
  return dict;
}

bool HasOutsideDict(Session& s, PyObject* made) {
  if (!s.IsFresh(made) || fj_own_values(made) || guard::IsThreadLocal(Py_TYPE(made))) return false;
  PyObject* dict = guard::InstanceDict(made);
  Origin* g = dict ? s.Find(dict) : nullptr;
  return g && g->kind != Origin::kFresh;
}

bool IsDataDescr(PyObject* d) {
  return Py_TYPE(d)->tp_descr_set ? Py_TYPE(d)->tp_descr_get != nullptr : IsMemberDescr(d);
}

PyObject* CaptureSemantics::GenericGetAttr(PyObject* object, PyObject* name) {
  bool missing;
  PyObject* v = FindAttr(object, name, &missing);
  return missing ? NoAttribute(object, name) : v;
}

PyObject* CaptureSemantics::FindAttr(PyObject* object, PyObject* name, bool* missing) {
  PyTypeObject* type = Py_TYPE(object);
  *missing = false;
  s_.NoteType(type);
  const bool of_program = type->tp_flags & Py_TPFLAGS_HEAPTYPE && !(type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE);
  if (of_program && !s_.SourceOf(object) && !s_.Find(object) && !s_.IsPrivate(object))
    return s_.Break(BreakId::kUnknownOrigin, std::string("a ") + type->tp_name + " that C code brought");
  bool waits;
  PyObject* d = s_.pending().InClass(type, name, &waits);
  if (guard::IsThreadLocal(type) && !PyUnicode_CompareWithASCIIString(name, "__dict__")) {
    const Source* source;
    PyObject* dict = InstanceDict(object, &source);
    if (dict && !source) return s_.Adopt(Py_NewRef(dict));
    return dict ? s_.FromOutside(dict, source) : nullptr;
  }
  if (d) s_.NoteType(Py_TYPE(d));  // is it a descriptor?
  if (d && IsDataDescr(d)) {
    const Source* s = s_.SourceOf(object);
    const char* text = PyUnicode_AsUTF8(name);
    if (IsGetSetDescr(d) && !strcmp(text, "__dict__")) {
      const Source* ds;
      PyObject* dict = InstanceDict(object, &ds);
      if (dict) {
        if (ds) return s_.FromOutside(dict, ds);
        Py_INCREF(dict);
        return s_.Adopt(dict);
      }
    }
    if (IsGetSetDescr(d) && !strcmp(text, "__class__")) {
      Py_INCREF(type);
      s_.SourceOf(reinterpret_cast<PyObject*>(type));
      return reinterpret_cast<PyObject*>(type);
    }
    if (PyObject* stored = nullptr; const int waits = IsMemberDescr(d) ? s_.pending().Find(object, d, &stored) : 0) {
      if (waits > 0 && !stored) *missing = true;
      return waits > 0 ? Py_XNewRef(stored) : nullptr;
    }
    if (IsMemberDescr(d) && s && !tensor::DTypeOf(object)) {  // dtypes never change
      const Source* member = s_.guards().Child(SourceKind::kMember, s, 0, name);
      if (IsSlot(d) && !s_.Reads(object, d, s)) return nullptr;
      Ref v(PyObject_GenericGetAttr(object, name));
      if (!v) s_.guards().Absent(member);
      return v ? s_.FromOutside(v.get(), member, true) : nullptr;
    }
    if (tensor::IsObjectArray(object)) {  // no flags, and nothing through which it is written
      static constexpr std::string_view kFacts = " T dtype itemsize nbytes ndim shape size strides ";
      if (kFacts.find(" " + std::string(text) + " ") == kFacts.npos)
        return s_.Break(BreakId::kUnknownCall, std::string(text) + " of an array of objects");
      return s_.Adopt(PyObject_GenericGetAttr(object, name));
    }
    if (PyCell_Check(object) && PyCell_GET(object) && !strcmp(text, "cell_contents")) return LoadCell(object);
    if (IsMemberDescr(d) || (IsGetSetDescr(d) && Facts(s_, object)))
      return AdoptFact(s_, object, PyObject_GenericGetAttr(object, name));
    return ClassValue(d, object, type);
  }
  const Source* ds;
  PyObject* dict = InstanceDict(object, &ds);
  if (s_.broken()) return nullptr;
  if (dict) {
    if (ds) {
      bool found;
      PyObject* v = s_.ReadDictItem(dict, ds, name, &found);
      if (found || s_.broken() || PyErr_Occurred()) return v;
    } else if (PyObject* v = PyDict_GetItemWithError(dict, name)) {
      Py_INCREF(v);
      return s_.Adopt(v);
    }
  }
  if (!waits && !s_.UnchangedClass(type, name)) return nullptr;
  if ((*missing = !d)) return nullptr;
  if (!waits) NoteClassNumber(s_, type, name, d);
  return waits ? WaitingValue(s_, d, object, type) : ClassValue(d, object, type);
}

bool CaptureSemantics::NoteFunction(PyFunctionObject* fn) {
  const Source* src = s_.SourceOf(reinterpret_cast<PyObject*>(fn));
  if (!src) return false;
  s_.guards().Function(src, fn);
  // Defaults flow into the callee's locals: they are read from the function.
  for (PyObject* d : {fn->func_defaults, fn->func_kwdefaults}) {
    if (!d) continue;
    SourceKind k = d == fn->func_defaults ? SourceKind::kDefaults : SourceKind::kKwDefaults;
    Ref seen(s_.FromOutside(d, s_.guards().Child(k, src)));
    if (!seen || !s_.NoteContents(d)) return false;
  }
  if (fn->func_closure)
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fn->func_closure); ++i) {
      PyObject* cell = PyTuple_GET_ITEM(fn->func_closure, i);
      if (s_.IsFresh(cell)) continue;
      Ref seen(s_.FromOutside(cell, s_.guards().Child(SourceKind::kClosure, src, static_cast<int>(i))));
      if (!seen) return false;
    }
  return true;
}

// functools.update_wrapper reads a function's __dict__, and writes to that of another one.
static bool OfUpdateWrapper(PyFrameObject* frame) {
  Ref code(frame ? reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)) : nullptr);
  return code &&
         !PyUnicode_CompareWithASCIIString(reinterpret_cast<PyCodeObject*>(code.get())->co_name, "update_wrapper");
}

PyObject* CaptureSemantics::FunctionAttr(PyObject* f, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  auto* fn = reinterpret_cast<PyFunctionObject*>(f);
  const Source* s = s_.SourceOf(f);
  auto from = [&](PyObject* v, SourceKind k) -> PyObject* {
    if (!v && s) s_.guards().Absent(s_.guards().Child(k, s));
    if (!v) Py_RETURN_NONE;
    Py_INCREF(v);
    Ref held(v);
    return s ? s_.FromOutside(v, s_.guards().Child(k, s)) : s_.Adopt(held.release());
  };
  if (!strcmp(text, "__defaults__")) return from(fn->func_defaults, SourceKind::kDefaults);
  if (!strcmp(text, "__kwdefaults__")) return from(fn->func_kwdefaults, SourceKind::kKwDefaults);
  for (const char* k : {"__code__", "__name__", "__qualname__", "__module__", "__globals__", "__doc__",
                        "__annotations__", "__closure__"}) {
    if (strcmp(text, k)) continue;
    PyObject** annotate = strcmp(k, "__annotations__") ? nullptr : guard::AnnotateOf(fn);
    if (annotate && *annotate && *annotate != Py_None && !fn->func_annotations)
      return s_.Break(BreakId::kSideEffect, "the annotations of a function, which are made when they are first read");
    Ref value(PyObject_GenericGetAttr(f, name));
    if (!value || !s) return s_.Adopt(value.release());
    const Source* member = s_.guards().Child(SourceKind::kMember, s, 0, name);
    if (strcmp(text, "__globals__")) return s_.FromOutside(value.get(), member);
    s_.guards().Is(member, value.get());
    return s_.FromOutside(value.get(), s_.guards().Const(value.get()));
  }
  for (const char* k : {"__get__", "__call__", "__class__"})
    if (!strcmp(text, k)) return s_.Adopt(PyObject_GenericGetAttr(f, name));
  if (!strcmp(text, "__dict__")) {
    if (s_.IsFresh(f)) return s_.MarkFresh(PyObject_GenericGetAttr(f, name));
    if (fn->func_dict) return from(fn->func_dict, SourceKind::kFuncDict);
    if (!s || !OfUpdateWrapper(PyEval_GetFrame())) return s_.Break(BreakId::kUnknownCall, "function.__dict__");
    s_.guards().Absent(s_.guards().Child(SourceKind::kFuncDict, s));
    return s_.MarkFresh(PyDict_New());
  }
  if (PyObject* dict = s ? fn->func_dict : nullptr) {
    bool found;
    PyObject* v = s_.ReadDictItem(dict, s_.guards().Child(SourceKind::kFuncDict, s), name, &found);
    if (found || s_.broken() || PyErr_Occurred()) return v;
  } else if (s) {
    s_.guards().Absent(s_.guards().Child(SourceKind::kFuncDict, s));
  }
  if (s_.IsOutside(f)) s_.guards().Is(s, f);
  return AdoptFact(s_, f, PyObject_GenericGetAttr(f, name));
}

// C code will find them in the class's __dict__.
bool CaptureSemantics::NoteClassValues(PyTypeObject* type) {
  PyObject *key, *value, *dict = guard::TypeDict(type);
  for (Py_ssize_t at = 0; dict && PyDict_Next(dict, &at, &key, &value);) {
    if (IsPrimitive(value) || IsConstantKind(value) || PyTuple_CheckExact(value) || s_.Find(value) ||
        tensor::Classify(value) != tensor::Class::kNone)
      continue;
    if (!Ref(s_.FromOutside(value, s_.guards().Const(value)))) return false;
  }
  return true;
}

PyObject* CaptureSemantics::TypeAttr(PyTypeObject* type, PyObject* name) {
  auto* o = reinterpret_cast<PyObject*>(type);
  PyTypeObject* metatype = Py_TYPE(type);
  s_.SourceOf(o);
  if (IsBookkeeping(type) && !_PyType_Lookup(metatype, name))
    s_.NoteLookup(type, name);
  else
    s_.NoteType(type);
  s_.NoteType(metatype);
  PyObject *args[] = {o, name}, *r = nullptr;
  bool waits;
  if (PyObject* hook = PythonFunctionIn(metatype, N().getattribute)) {
    r = Call(hook, args, 2, nullptr);
  } else if (PyObject* meta = _PyType_Lookup(metatype, name), *own = nullptr; meta && IsDataDescr(meta)) {
    r = IsGetSetDescr(meta) || IsMemberDescr(meta) ? ClassFact(type, name) : ClassValue(meta, o, metatype);
  } else if (own = s_.pending().InClass(type, name, &waits); !waits && !s_.UnchangedClass(type, name)) {
    return nullptr;
  } else if (own) {
    if (!waits) NoteClassNumber(s_, type, name, own);
    return waits ? WaitingValue(s_, own, nullptr, type) : ClassValue(own, nullptr, type);
  } else if (meta) {
    return ClassValue(meta, o, metatype);
  } else {
    PyObject* hook = PythonFunctionIn(metatype, N().getattr);
    return hook ? Call(hook, args, 2, nullptr) : PyObject_GetAttr(o, name);  // the real AttributeError
  }
  if (r || s_.broken() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return r;
  PyObject *error_type, *error, *traceback;
  PyErr_Fetch(&error_type, &error, &traceback);
  PyObject* hook = PythonFunctionIn(metatype, N().getattr);
  if (!hook) return PyErr_Restore(error_type, error, traceback), nullptr;
  for (PyObject* x : {error_type, error, traceback}) Py_XDECREF(x);
  return Call(hook, args, 2, nullptr);
}

// What the metaclass's getters in C say: stores to the class's dict show in its version, its name and bases do not.
PyObject* CaptureSemantics::ClassFact(PyTypeObject* type, PyObject* name) {
  auto* o = reinterpret_cast<PyObject*>(type);
  const char* text = PyUnicode_AsUTF8(name);
  const Source* s = type->tp_flags & Py_TPFLAGS_HEAPTYPE ? s_.SourceOf(o) : nullptr;
  if (PyObject* d = _PyType_Lookup(Py_TYPE(type), name), *stored; d && s_.pending().Find(o, d, &stored) > 0)
    return Py_NewRef(stored);
  if (!strcmp(text, "__dict__") && s_.pending().WritesClass(type))
    return s_.Break(BreakId::kSideEffect, "a class whose attributes were written is read as a whole");
  if (!strcmp(text, "__dict__"))
    if (Origin* g = s_.Find(o)) g->viewed = true;
  if (!strcmp(text, "__dict__"))
    return NoteClassValues(type) ? s_.AdoptHeld(PyObject_GenericGetAttr(o, name)) : nullptr;
  PyObject* held = PyDict_GetItemWithError(guard::TypeDict(type), name);  // __doc__ may be a descriptor
  if (held && Py_TYPE(held)->tp_descr_get && Py_TYPE(held)->tp_flags & Py_TPFLAGS_HEAPTYPE)
    return s_.Break(BreakId::kUnknownCall, std::string(type->tp_name) + "." + text);
  if (!s) return s_.AdoptHeld(PyObject_GenericGetAttr(o, name));
  if (!held && !strcmp(text, "__annotations__"))
    return s_.Break(BreakId::kSideEffect, "the annotations of a class, which are made when they are first read");
  const Source* fact = s_.guards().Child(SourceKind::kMember, s, 0, name);
  Ref value(PyObject_GenericGetAttr(o, name));
  if (!value) s_.guards().Absent(fact);
  return value ? s_.FromOutside(value.get(), fact) : nullptr;
}

// The text of a class or function is made of what it is called.
bool CaptureSemantics::NoteText(PyObject* o) {
  static PyObject *const module = Interned("__module__"), *const name = Interned("__qualname__");
  if (PyTuple_Check(o) || PyList_Check(o)) {
    const int within = Py_ReprEnter(o);  // a list that holds itself
    if (within) return within > 0;
    bool noted = true;
    for (Py_ssize_t i = 0; noted && i < PySequence_Fast_GET_SIZE(o); ++i)
      noted = NoteText(PySequence_Fast_GET_ITEM(o, i));
    Py_ReprLeave(o);
    return noted;
  }
  if (PyExceptionInstance_Check(o)) NoteNames();
  if (s_.IsNumpyNumber(o) || tensor::IsObjectArray(o))
    return s_.Break(BreakId::kThreadState, "text by numpy.set_printoptions"), false;
  if (!(PyType_Check(o) && Py_TYPE(o)->tp_repr == PyType_Type.tp_repr) && !PyFunction_Check(o)) return true;
  if (s_.IsFresh(o)) return true;
  if (PyType_Check(o) && NamesClasses(s_.pending()) && s_.pending().Has(o))
    return s_.Break(BreakId::kSideEffect, "the text of a class whose name was written"), false;
  Ref named(LoadAttr(o, name)), of(PyFunction_Check(o) ? nullptr : LoadAttr(o, module));
  return !s_.broken() && !PyErr_Occurred();
}

// What the classes behind one have under a name, bound to an object. Facts about that object are read as its own are.
PyObject* CaptureSemantics::SuperAttr(PyObject* super, PyObject* name) {
  auto member = [&](const char* text) {
    Ref key(PyUnicode_FromString(text));
    return Ref(key ? PyObject_GenericGetAttr(super, key.get()) : nullptr);
  };
  Ref here = member("__thisclass__"), self = member("__self__"), start = member("__self_class__");
  if (!here || !self || !start) return nullptr;
  if (PyType_Check(start.get()) && PyUnicode_CompareWithASCIIString(name, "__class__") != 0) {
    auto* type = reinterpret_cast<PyTypeObject*>(start.get());
    s_.NoteType(type);
    PyObject* mro = type->tp_mro;
    Py_ssize_t i = 0;
    while (i < PyTuple_GET_SIZE(mro) && PyTuple_GET_ITEM(mro, i) != here.get()) ++i;
    for (++i; i < PyTuple_GET_SIZE(mro); ++i) {
      PyObject *dict = guard::TypeDict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i))), *stored;
      if (s_.pending().Find(PyTuple_GET_ITEM(mro, i), name, &stored) > 0)
        return WaitingValue(s_, stored, self.get() == start.get() ? nullptr : self.get(), type);
      Ref d(Py_XNewRef(dict ? PyDict_GetItemWithError(dict, name) : nullptr));
      if (!d && PyErr_Occurred()) return nullptr;
      if (!d) continue;
      PyObject* object = self.get() == start.get() ? nullptr : self.get();
      if (object && IsTensor(object) && (PyFunction_Check(d.get()) || Py_IS_TYPE(d.get(), &PyMethodDescr_Type))) {
        s_.SourceOf(d.get());
        return PyMethod_New(d.get(), object);
      }
      if (!object || !IsMemberDescr(d.get())) return ClassValue(d.get(), object, type);
      if (_PyType_Lookup(type, name) == d.get()) return GenericGetAttr(object, name);
      if (s_.SourceOf(object)) return s_.Break(BreakId::kUnknownCall, "a slot that is hidden by another attribute");
      return s_.Adopt(Py_TYPE(d.get())->tp_descr_get(d.get(), object, start.get()));
    }
  }
  PyObject* r = PyObject_GetAttr(super, name);  // its own
  return r ? s_.Adopt(r) : nullptr;
}

// An attribute that tensors had once: False, with a warning.
PyObject* CaptureSemantics::Volatile(PyObject* tensor, PyObject* name) {
  static PyObject* const text = PyUnicode_FromString("volatile was removed (Variable.volatile is always False)");
  PyObject* d = _PyType_Lookup(reinterpret_cast<PyTypeObject*>(PlainTensorClass(false)), name);
  if (!d || !IsGetSetDescr(d)) return TensorAttr(s_, tensor, name);
  Ref warned(s_.InLookup() ? nullptr : Warn(&text, 1, nullptr));
  if (s_.broken() || PyErr_Occurred()) return nullptr;
  return warned ? Py_NewRef(Py_False) : s_.Break(BreakId::kOutput, "tensor.volatile");
}

namespace {

// What a types.MappingProxyType is a view of; self is not used. New reference.
PyObject* MappingBehind(PyObject*, PyObject* proxy) {
  struct View {
    PyObject_HEAD PyObject* mapping;
  };
  return Py_IS_TYPE(proxy, &PyDictProxy_Type) ? Py_NewRef(reinterpret_cast<View*>(proxy)->mapping) : Py_NewRef(Py_None);
}
bool AsksMapping(PyObject* o, PyObject* name) {  // by a method of the view that is its mapping's
  return Py_IS_TYPE(o, &PyDictProxy_Type) &&
         std::ranges::any_of(std::array{"get", "keys", "items", "values", "copy"},
                             [&](const char* method) { return !PyUnicode_CompareWithASCIIString(name, method); });
}
PyMethodDef mapping_behind = {"mapping_behind", MappingBehind, METH_O, nullptr};

}  // namespace

PyObject* CaptureSemantics::LoadAttr(PyObject* o, PyObject* name) {
  o = s_.Resolve(o);
  if (!o || s_.broken()) return s_.broken() ? s_.Break(s_.reason().id) : nullptr;
  if (IsTensor(o) && !PyUnicode_CompareWithASCIIString(name, "volatile")) return Volatile(o, name);
  if (IsTensor(o)) return TensorAttr(s_, o, name);
  if (IsWrapper(o)) {
    bool found = false;
    PyObject* own = TapeOf(s_) && TapeOf(s_)->Made(o) ? TapeOf(s_)->Attribute(o, name, &found) : nullptr;
    if (found || s_.broken() || PyErr_Occurred()) return own;
    PyObject* r = WrapperAttr(s_, o, name, &found);
    if (found || s_.broken() || PyErr_Occurred()) return r;
  }
  if (IsSymInt(o) || IsSymFloat(o)) return PyObject_GetAttr(o, name);
  if (PyFrame_Check(o) && s_.IsFresh(o)) return FrameAttr(o, name);
  if (PyModule_CheckExact(o)) return ModuleAttr(o, name);
  if (PyType_Check(o)) return TypeAttr(reinterpret_cast<PyTypeObject*>(o), name);
  if (PyFunction_Check(o)) return FunctionAttr(o, name);
  PyTypeObject* type = Py_TYPE(o);
  if (PyMethod_Check(o)) {
    const char* text = PyUnicode_AsUTF8(name);
    const Source* source = s_.IsOutside(o) ? s_.SourceOf(o) : nullptr;
    auto part = [&](PyObject* p, SourceKind kind) {
      return source ? s_.FromOutside(p, s_.guards().Child(kind, source)) : s_.Adopt(Py_NewRef(p));
    };
    if (!strcmp(text, "__self__")) return part(PyMethod_GET_SELF(o), SourceKind::kBoundSelf);
    Ref function(part(PyMethod_GET_FUNCTION(o), SourceKind::kBoundFunc));
    if (!function || !strcmp(text, "__func__")) return function.release();
    return LoadAttr(function.get(), name);
  }
  if (type == &PySuper_Type) {
    s_.NoteType(type);
    return SuperAttr(o, name);
  }
  if (const Source* source = AsksMapping(o, name) && s_.IsOutside(o) ? s_.SourceOf(o) : nullptr) {
    static PyObject* const behind = PyCFunction_New(&mapping_behind, nullptr);
    Ref mapping(MappingBehind(nullptr, o));
    if (PyDict_CheckExact(mapping.get()) || PyODict_CheckExact(mapping.get())) {  // its methods are the mapping's
      Ref seen(s_.FromOutside(mapping.get(), s_.guards().Child(SourceKind::kMember, source, 0, behind)));
      return seen ? LoadAttr(seen.get(), name) : nullptr;
    }
  }
  if (type->tp_getattro == PyObject_GenericGetAttr && !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
    // Builtin types are asked for their methods and facts.
    if (IsPrimitive(o) || Facts(s_, o) || PyList_Check(o) || PyTuple_Check(o) || PyDict_Check(o) || PyAnySet_Check(o) ||
        PyCFunction_Check(o))
      return GenericGetAttr(o, name);
  }
  bool missing = false;
  if (PyModule_Check(o)) {  // It may get another class.
    FindOperator(o, name);
    if (const Source* source = s_.SourceOf(o)) s_.guards().TypeIs(source, type);
  }
  if (PyObject* hook = PythonFunctionIn(type, N().getattribute)) {
    s_.NoteType(type);
    PyObject* args[] = {o, name};
    PyObject* r = Call(hook, args, 2, nullptr);
    if (r || s_.broken() || !PyErr_ExceptionMatches(PyExc_AttributeError)) return r;
  } else if (LooksUpPlainly(type) || guard::IsThreadLocal(type)) {
    PyObject* r = FindAttr(o, name, &missing);
    if (missing && PyModule_Check(o)) {  // of a class of its own: its dict may have a hook, too
      PyObject* dict = PyModule_GetDict(o);
      bool found;
      Ref own(s_.ReadDictItem(dict, s_.guards().Const(dict), N().getattr, &found));
      if (s_.broken() || PyErr_Occurred()) return nullptr;
      if (found) missing = false, r = Call(own.get(), &name, 1, nullptr);
    }
    if (!missing && (r || s_.broken() || !PyErr_ExceptionMatches(PyExc_AttributeError))) return r;
  } else if (Facts(s_, o)) {
    return AdoptFact(s_, o, PyObject_GetAttr(o, name));
  } else {
    return s_.Break(BreakId::kUnknownCall, std::string("attribute of a ") + type->tp_name);
  }
  PyObject *error_type, *error, *traceback;
  PyErr_Fetch(&error_type, &error, &traceback);  // a type lookup may clear it
  PyObject* fallback = _PyType_Lookup(type, N().getattr);
  if (!fallback || !(PyFunction_Check(fallback) || IsMethodDescriptor(fallback))) {
    if (missing) return NoAttribute(o, name);
    PyErr_Restore(error_type, error, traceback);
    return nullptr;
  }
  Py_XDECREF(error_type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
  PyObject* args[] = {o, name};
  return Call(fallback, args, 2, nullptr);
}

}  // namespace framejit::capture
