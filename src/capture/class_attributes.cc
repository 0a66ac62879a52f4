// Stores to attributes of classes.
#include "capture/class_attributes.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "capture/drops.h"
#include "capture/origins.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "guard/versions.h"
#include "tensor/autograd.h"

namespace framejit::capture {

namespace {

// What a class is called lies in itself, not in its dict: its metaclass has a getter and a setter for it.
PyObject* NameOfClasses(PyTypeObject* type, PyObject* name) {
  const bool known =
      !PyUnicode_CompareWithASCIIString(name, "__name__") || !PyUnicode_CompareWithASCIIString(name, "__qualname__");
  PyObject* d = known ? _PyType_Lookup(Py_TYPE(type), name) : nullptr;
  return d && Py_IS_TYPE(d, &PyGetSetDescr_Type) && d == _PyType_Lookup(&PyType_Type, name) ? d : nullptr;
}

// Would its setter take this text?
bool IsName(PyObject* value) {
  return value && PyUnicode_CheckExact(value) && PyUnicode_IS_ASCII(value) &&
         PyUnicode_FindChar(value, 0, 0, PyUnicode_GET_LENGTH(value), 1) < 0;
}

// May a store to an attribute of a class wait for the exit? What it replaces and what is stored is a function, or
// neither bound nor asked when it is read, and capture itself asks a class of the framework for nothing that has no
// underscores around it, but for a class of tensors and, where it looks for functions, for one of custom functions.
// Classes find things in their metaclass, and records of logging are written by classes at the exit.
bool MayWait(Session& s, PyTypeObject* type, PyObject* name, PyObject* value) {
  auto* o = reinterpret_cast<PyObject*>(type);
  if (PyType_IsSubtype(type, &PyType_Type) || IsOfLogging(type)) return false;
  bool custom = false;
  for (PyTypeObject* base = type; base; base = base->tp_base)
    custom |= !strcmp(base->tp_name, "torch._C._FunctionBase") || !strcmp(base->tp_name, "FunctionCtx");
  auto plain = [&](PyObject* x) {
    return !x || (PyFunction_Check(x) ? !custom : !Py_TYPE(x)->tp_descr_get && !Py_TYPE(x)->tp_descr_set);
  };
  const bool of_program = type->tp_flags & Py_TPFLAGS_HEAPTYPE && !(type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE);
  auto* tensors = reinterpret_cast<PyTypeObject*>(tensor::TorchLoaded() ? PlainTensorClass(false) : nullptr);
  if (!value || !of_program || s.IsFresh(o) || !s.SourceOf(o) || s.later || s.InLookup() || IsBookkeeping(type) ||
      !PyUnicode_CheckExact(name) || (tensors && PyType_IsSubtype(type, tensors)))
    return false;
  if (const Origin* g = s.Find(o); g && g->viewed) return false;  // It was read as a whole, and that shows writes.
  const char* text = PyUnicode_AsUTF8(name);
  PyTypeObject* metatype = Py_TYPE(type);
  if (NameOfClasses(type, name)) return metatype->tp_setattro == PyType_Type.tp_setattro && IsName(value);
  PyObject* meta = _PyType_Lookup(metatype, name);
  return text && strncmp(text, "__", 2) && metatype->tp_setattro == PyType_Type.tp_setattro &&
         !(meta && IsDataDescr(meta)) && plain(_PyType_Lookup(type, name)) && plain(value);
}

// A class that a program changes in each call is another one to the guards each time: counters do that, and so do
// functions that are made anew. Has an earlier capture of this code found another number there, or another function?
bool ChangesEachTime(Session& s, PyTypeObject* type, PyObject* name, PyObject* real) {
  constexpr size_t kMostPlaces = 4096;
  struct Seen {
    Ref type;  // a weak reference: another class may lie there by now
    Ref value;
    bool changes = false;
  };
  static auto& seen = *new std::map<std::tuple<void*, PyTypeObject*, PyObject*>, Seen>;
  if (!real || !(PyLong_CheckExact(real) || PyFunction_Check(real)) || s.options().whole) return false;
  if (seen.size() > kMostPlaces) seen.clear();
  Seen& here = seen[{fj_code(s.root()), type, name}];
  if (!here.type || PyWeakref_GET_OBJECT(here.type.get()) != reinterpret_cast<PyObject*>(type))
    here = {Ref(PyWeakref_NewRef(reinterpret_cast<PyObject*>(type), nullptr)), Ref()};
  const bool function = PyFunction_Check(real);  // known weakly, too
  if (here.value && (function ? !PyWeakref_Check(here.value.get()) || PyWeakref_GET_OBJECT(here.value.get()) != real
                              : PyObject_RichCompareBool(here.value.get(), real, Py_NE) == 1))
    here.changes = true;
  here.value = function ? Ref(PyWeakref_NewRef(real, nullptr)) : Borrow(real);
  return here.changes;
}

}  // namespace

bool IsOfLogging(PyTypeObject* type) {
  for (PyTypeObject* base = type; base; base = base->tp_base) {
    const std::string_view module = ModuleOf(base);
    if (module == "logging" || module.starts_with("logging.")) return true;
  }
  return false;
}

static bool IsOfWhatItIsCalled(const PendingStore& st) {
  return PyType_Check(st.dict.get()) && !PyUnicode_Check(st.key.get());
}

bool ShowsToC(const PendingEffects& pending, PyObject* o) {
  PyTypeObject* type = PyType_Check(o) ? reinterpret_cast<PyTypeObject*>(o) : Py_TYPE(o);
  return pending.WritesClass(type) &&
         std::any_of(pending.stores().begin(), pending.stores().end(), [&](const PendingStore& st) {
           return IsOfWhatItIsCalled(st) || !st.value || PyFunction_Check(st.value.get());
         });
}

bool StoresFunctions(const PendingEffects& pending) {
  return std::any_of(pending.stores().begin(), pending.stores().end(), [](const PendingStore& st) {
    return PyType_Check(st.dict.get()) && st.value && PyFunction_Check(st.value.get());
  });
}

bool NamesClasses(const PendingEffects& pending) {
  return std::any_of(pending.stores().begin(), pending.stores().end(), IsOfWhatItIsCalled);
}

// The class of the program's behind one that framejit.compile(module) has made (framejit._module), or the class itself.
static PyTypeObject* Written(PyTypeObject* type) {
  static PyObject* const mark = PyUnicode_InternFromString("_framejit_original");
  PyObject* dict = guard::TypeDict(type);
  const bool made = dict && PyDict_GetItemWithError(dict, mark) && PyTuple_GET_SIZE(type->tp_mro) > 2;
  return made ? reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, 2)) : type;
}

int CaptureSemantics::StoreClassAttr(PyTypeObject* type, PyObject* name, PyObject* value) {
  type = Written(type);
  s_.SourceOf(reinterpret_cast<PyObject*>(type));
  auto* o = reinterpret_cast<PyObject*>(type);
  if (s_.IsFresh(o) && MakesPlainClasses(Py_TYPE(type))) return PyObject_SetAttr(o, name, value);
  if (!MayWait(s_, type, name, value)) return s_.Break(BreakId::kSideEffect, "attribute of a type"), -1;
  s_.NoteType(type);
  s_.NoteType(Py_TYPE(type));
  if (PyObject* d = NameOfClasses(type, name)) return s_.pending().Store(o, d, value), 0;
  PyObject* real = PyDict_GetItemWithError(guard::TypeDict(type), name);
  if (!real && PyErr_Occurred()) return -1;
  if (real != value && !DropsQuietly(real)) return s_.Break(BreakId::kSideEffect, kSeenToDie), -1;
  if (ChangesEachTime(s_, type, name, real))
    return s_.Break(BreakId::kSideEffect, "an attribute of a class that is another one in each call"), -1;
  if (type == tensor::DataParallelType() && value != Py_None &&
      !PyUnicode_CompareWithASCIIString(name, "_active_ddp_module"))
    s_.data_parallel = value;
  if (real == value && !s_.kernels.ChangedClass(type, name))
    s_.pending().Forget(o, name);
  else
    s_.pending().Store(o, name, value);
  return 0;
}

}  // namespace framejit::capture
