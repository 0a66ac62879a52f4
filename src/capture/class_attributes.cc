// Stores to attributes of classes.
#include "capture/class_attributes.h"

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

// May a store to an attribute of a class wait for the exit? Neither what it replaces nor what is stored is bound or
// asked when it is read, and capture itself asks a class of the framework for nothing that has no underscores around
// it, but for a class of tensors.
bool MayWait(Session& s, PyTypeObject* type, PyObject* name, PyObject* value) {
  auto* o = reinterpret_cast<PyObject*>(type);
  auto plain = [](PyObject* x) { return !x || (!Py_TYPE(x)->tp_descr_get && !Py_TYPE(x)->tp_descr_set); };
  const bool of_program = type->tp_flags & Py_TPFLAGS_HEAPTYPE && !(type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE);
  auto* tensors = reinterpret_cast<PyTypeObject*>(tensor::TorchLoaded() ? PlainTensorClass(false) : nullptr);
  if (!value || !of_program || s.IsFresh(o) || !s.SourceOf(o) || s.later || s.InLookup() || IsBookkeeping(type) ||
      !PyUnicode_CheckExact(name) || (tensors && PyType_IsSubtype(type, tensors)))
    return false;
  if (const Origin* g = s.Find(o); g && g->viewed) return false;  // It was read as a whole, and that shows writes.
  const char* text = PyUnicode_AsUTF8(name);
  PyTypeObject* metatype = Py_TYPE(type);
  PyObject* meta = _PyType_Lookup(metatype, name);
  return text && strncmp(text, "__", 2) && metatype->tp_setattro == PyType_Type.tp_setattro &&
         !(meta && IsDataDescr(meta)) && plain(_PyType_Lookup(type, name)) && plain(value);
}

// A class that a program changes in each call is another one to the guards each time: counters do that. Has an earlier
// capture of this code found another number there?
bool ChangesEachTime(Session& s, PyTypeObject* type, PyObject* name, PyObject* real) {
  constexpr size_t kMostPlaces = 4096;
  struct Seen {
    Ref value;
    bool changes = false;
  };
  static auto& seen = *new std::map<std::tuple<void*, PyTypeObject*, PyObject*>, Seen>;
  if (!real || !PyLong_CheckExact(real) || s.options().whole) return false;
  if (seen.size() > kMostPlaces) seen.clear();
  Seen& here = seen[{fj_code(s.root()), type, name}];
  if (here.value && PyObject_RichCompareBool(here.value.get(), real, Py_NE) == 1) here.changes = true;
  here.value = Borrow(real);
  return here.changes;
}

}  // namespace

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
  if (!MayWait(s_, type, name, value)) return s_.Break(BreakId::kSideEffect, "attribute of a type"), -1;
  s_.NoteType(type);
  s_.NoteType(Py_TYPE(type));
  PyObject* real = PyDict_GetItemWithError(guard::TypeDict(type), name);
  if (!real && PyErr_Occurred()) return -1;
  if (real != value && !DropsQuietly(real)) return s_.Break(BreakId::kSideEffect, kSeenToDie), -1;
  if (ChangesEachTime(s_, type, name, real))
    return s_.Break(BreakId::kSideEffect, "an attribute of a class that is another number in each call"), -1;
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
