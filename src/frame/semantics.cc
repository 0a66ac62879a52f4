// This file has CPython's data model through its C API. Error messages are those of CPython where a C function makes
// them. Where the bytecode loop itself makes them, we answer "CPython shall run this" (semantics.h) before anything has
// changed.
#include "frame/semantics.h"

#include <opcode.h>

#include <vector>

#include "bytecode/messages.h"

namespace framejit::frame {
namespace {

bool IsIterable(PyObject* o) {
  return Py_TYPE(o)->tp_iter || PySequence_Check(o);
}

// A method of a builtin type, looked up once: the loop's own helpers are not exported by every version.
PyObject* CallMethodOf(PyObject** method, PyTypeObject* type, const char* name, PyObject* self, PyObject* arg) {
  if (!*method) *method = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), name);
  if (!*method) return nullptr;
  PyObject* args[3] = {nullptr, self, arg};
  return PyObject_Vectorcall(*method, args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

int IntOf(PyObject* result) {
  Py_XDECREF(result);
  return result ? 0 : -1;
}

using BinaryFunction = PyObject* (*)(PyObject*, PyObject*);
PyObject* Power(PyObject* a, PyObject* b) {
  return PyNumber_Power(a, b, Py_None);
}
PyObject* InPlacePower(PyObject* a, PyObject* b) {
  return PyNumber_InPlacePower(a, b, Py_None);
}

struct BinaryTable {
  BinaryFunction f[NB_INPLACE_XOR + 1] = {};
  BinaryTable() {
    // clang-format off
#define B(nb, name) f[NB_##nb] = PyNumber_##name, f[NB_INPLACE_##nb] = PyNumber_InPlace##name;
    B(ADD, Add) B(AND, And) B(FLOOR_DIVIDE, FloorDivide) B(LSHIFT, Lshift) B(MATRIX_MULTIPLY, MatrixMultiply)
    B(MULTIPLY, Multiply) B(REMAINDER, Remainder) B(OR, Or) B(RSHIFT, Rshift) B(SUBTRACT, Subtract)
    B(TRUE_DIVIDE, TrueDivide) B(XOR, Xor)
#undef B
        // clang-format on
        f[NB_POWER] = Power,
        f[NB_INPLACE_POWER] = InPlacePower;
  }
};
const BinaryTable kBinary;

}  // namespace

PyObject* Semantics::Call(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  return PyObject_Vectorcall(callable, args, nargsf, kwnames);
}

PyObject* Semantics::CallEx(PyObject* callable, PyObject* args, PyObject* kwargs) {
  if (PyTuple_CheckExact(args)) return PyObject_Call(callable, args, kwargs);
  if (!IsIterable(args)) return nullptr;
  PyObject* tuple = PySequence_Tuple(args);
  if (!tuple) return nullptr;
  PyObject* r = PyObject_Call(callable, tuple, kwargs);
  Py_DECREF(tuple);
  return r;
}

PyObject* Semantics::LoadAttr(PyObject* object, PyObject* name) {
  return PyObject_GetAttr(object, name);
}

int Semantics::LoadMethod(PyObject* object, PyObject* name, PyObject** method) {
  *method = LoadAttr(object, name);
  return *method ? 0 : -1;
}

int ConcreteSemantics::LoadMethod(PyObject* object, PyObject* name, PyObject** method) {
  int unbound = fj_get_method(object, name, method);
  return *method ? unbound : -1;
}

int Semantics::StoreAttr(PyObject* object, PyObject* name, PyObject* value) {
  return PyObject_SetAttr(object, name, value);
}

PyObject* Semantics::LoadGlobal(PyObject* globals, PyObject* builtins, PyObject* name) {
  if (!PyDict_CheckExact(globals) || !PyDict_CheckExact(builtins)) return nullptr;
  PyObject* v = PyDict_GetItemWithError(globals, name);
  if (!v && !PyErr_Occurred()) v = PyDict_GetItemWithError(builtins, name);
  return Py_XNewRef(v);
}

int Semantics::StoreGlobal(PyObject* globals, PyObject* name, PyObject* value) {
  if (value) return PyDict_SetItem(globals, name, value);
  int found = PyDict_Contains(globals, name);
  return found > 0 ? PyDict_DelItem(globals, name) : -1;
}

PyObject* Semantics::LoadCell(PyObject* cell) {
  return Py_XNewRef(PyCell_GET(cell));
}

int Semantics::StoreCell(PyObject* cell, PyObject* value) {
  PyObject* old = PyCell_GET(cell);
  PyCell_SET(cell, Py_XNewRef(value));
  Py_XDECREF(old);
  return 0;
}

PyObject* Semantics::Binary(int nb_op, PyObject* a, PyObject* b) {
  return kBinary.f[nb_op](a, b);
}

PyObject* Semantics::Unary(int kind, PyObject* a) {
  return kind == '-' ? PyNumber_Negative(a) : kind == '+' ? PyNumber_Positive(a) : PyNumber_Invert(a);
}

PyObject* Semantics::Compare(PyObject* a, PyObject* b, int op) {
  return PyObject_RichCompare(a, b, op);
}
int Semantics::Is(PyObject* a, PyObject* b) {
  return a == b;
}
int Semantics::IsInstance(PyObject* object, PyObject* type) {
  return PyObject_IsInstance(object, type);
}
PyObject* Semantics::Length(PyObject* object) {
  const Py_ssize_t length = PyObject_Size(object);
  return length < 0 ? nullptr : PyLong_FromSsize_t(length);
}
int Semantics::HasTypeFlag(PyObject* object, unsigned long flag) {
  return PyType_HasFeature(Py_TYPE(object), flag);
}
int Semantics::Contains(PyObject* container, PyObject* value) {
  return PySequence_Contains(container, value);
}
int Semantics::Truth(PyObject* a) {
  return PyObject_IsTrue(a);
}
PyObject* Semantics::GetItem(PyObject* object, PyObject* key) {
  return PyObject_GetItem(object, key);
}

int Semantics::SetItem(PyObject* object, PyObject* key, PyObject* value) {
  return value ? PyObject_SetItem(object, key, value) : PyObject_DelItem(object, key);
}

PyObject* Semantics::Iter(PyObject* object) {
  return PyObject_GetIter(object);
}

PyObject* Semantics::Next(PyObject* iterator) {
  PyObject* v = Py_TYPE(iterator)->tp_iternext(iterator);
  if (!v && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_StopIteration)) PyErr_Clear();
  return v;
}

PyObject* Semantics::Format(PyObject* value, int conversion, PyObject* spec) {
  static PyObject* (*const kConversions[])(PyObject*) = {Py_NewRef, PyObject_Str, PyObject_Repr, PyObject_ASCII};
  PyObject* v = kConversions[conversion](value);
  if (!v || (PyUnicode_CheckExact(v) && !spec)) return v;
  PyObject* r = PyObject_Format(v, spec);
  Py_DECREF(v);
  return r;
}

PyObject* Semantics::Import(PyObject* name, PyObject* globals, PyObject* locals, PyObject* fromlist, PyObject* level) {
  static PyObject* const kImport = PyUnicode_InternFromString("__import__");
  PyObject* builtins = PyEval_GetBuiltins();  // the linked frame's
  PyObject* import = builtins && PyDict_Check(builtins) ? PyDict_GetItemWithError(builtins, kImport) : nullptr;
  if (!import) return nullptr;
  PyObject* args[6] = {nullptr, name, globals, locals ? locals : Py_None, fromlist, level};
  Py_INCREF(import);
  PyObject* r = PyObject_Vectorcall(import, args + 1, 5 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  Py_DECREF(import);
  return r;
}

PyObject* Semantics::ImportFrom(PyObject* module, PyObject* name) {
  PyObject* v = PyObject_GetAttr(module, name);
  // Gives a submodule in sys.modules, or raises with the message.
  if (!v && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
  return v;
}

int Semantics::Unpack(PyObject* sequence, int before, int after, PyObject** items) {
  if (after < 0 && (PyTuple_CheckExact(sequence) || PyList_CheckExact(sequence)) && Py_SIZE(sequence) == before) {
    for (int i = 0; i < before; ++i) items[i] = Py_NewRef(PySequence_Fast_ITEMS(sequence)[i]);
    return 0;
  }
  int have = 0;
  auto fail = [&] {
    while (have > 0) Py_DECREF(items[--have]);
    return -1;
  };
  if (!IsIterable(sequence)) {
    PyErr_Format(PyExc_TypeError, "cannot unpack non-iterable %.200s object", Py_TYPE(sequence)->tp_name);
    return -1;
  }
  PyObject* iterator = PyObject_GetIter(sequence);
  if (!iterator) return -1;
  int status = 0;
  for (; have < before; ++have) {
    items[have] = PyIter_Next(iterator);
    if (items[have]) continue;
    if (!PyErr_Occurred())
      PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected %s%d, got %d)",
                   after < 0 ? "" : "at least ", before + (after < 0 ? 0 : after), have);
    status = fail();
    break;
  }
  if (!status && after < 0) {
    if (PyObject* extra = PyIter_Next(iterator)) {
      Py_DECREF(extra);
      const Py_ssize_t there = bytecode::kTellsHowMany && (PyList_CheckExact(sequence) ||
                                                           PyTuple_CheckExact(sequence) || PyDict_CheckExact(sequence))
                                   ? PyObject_Size(sequence)
                                   : 0;
      if (there > before)
        PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d, got %zd)", before, there);
      else
        PyErr_Format(PyExc_ValueError, "too many values to unpack (expected %d)", before);
    }
    if (PyErr_Occurred()) status = fail();
  } else if (!status) {
    PyObject* rest = PySequence_List(iterator);
    Py_ssize_t n = rest ? PyList_GET_SIZE(rest) : 0;
    if (rest && n < after) {
      PyErr_Format(PyExc_ValueError, "not enough values to unpack (expected at least %d, got %zd)", before + after,
                   before + n);
      Py_CLEAR(rest);
    }
    if (!rest) {
      status = fail();
    } else {
      for (int k = 0; k < after; ++k) items[before + 1 + k] = Py_NewRef(PyList_GET_ITEM(rest, n - after + k));
      if (PyList_SetSlice(rest, n - after, n, nullptr) < 0) {  // shrinking
        have = before + after + 1, items[before] = rest;
        status = fail();
      }
      items[before] = rest;
    }
  }
  Py_DECREF(iterator);
  return status;
}

PyObject* Semantics::BuildTuple(PyObject* const* items, Py_ssize_t n) {
  PyObject* t = PyTuple_New(n);
  for (Py_ssize_t i = 0; t && i < n; ++i) PyTuple_SET_ITEM(t, i, Py_NewRef(items[i]));
  return t;
}

PyObject* Semantics::BuildList(PyObject* const* items, Py_ssize_t n) {
  PyObject* l = PyList_New(n);
  for (Py_ssize_t i = 0; l && i < n; ++i) PyList_SET_ITEM(l, i, Py_NewRef(items[i]));
  return l;
}

PyObject* Semantics::BuildSet(PyObject* const* items, Py_ssize_t n) {
  PyObject* s = PySet_New(nullptr);
  for (Py_ssize_t i = 0; s && i < n; ++i)
    if (PySet_Add(s, items[i]) < 0) Py_CLEAR(s);
  return s;
}

PyObject* Semantics::BuildMap(PyObject* const* keys_values, Py_ssize_t n, Py_ssize_t stride) {
  PyObject* d = PyDict_New();
  for (Py_ssize_t i = 0; d && i < n; ++i)
    if (PyDict_SetItem(d, keys_values[i * stride], keys_values[i * stride + 1]) < 0) Py_CLEAR(d);
  return d;
}

PyObject* Semantics::BuildSlice(PyObject* start, PyObject* stop, PyObject* step) {
  return PySlice_New(start, stop, step);
}

PyObject* Semantics::BuildString(PyObject* const* parts, Py_ssize_t n) {
  static PyObject* const kEmpty = PyUnicode_InternFromString("");
  PyObject* tuple = Semantics::BuildTuple(parts, n);
  PyObject* s = tuple ? PyUnicode_Join(kEmpty, tuple) : nullptr;
  Py_XDECREF(tuple);
  return s;
}

int Semantics::ListAppend(PyObject* list, PyObject* value) {
  return PyList_Append(list, value);
}

int Semantics::ListExtend(PyObject* list, PyObject* iterable) {
  static PyObject* extend = nullptr;
  if (!IsIterable(iterable)) return -1;
  return IntOf(CallMethodOf(&extend, &PyList_Type, "extend", list, iterable));
}

int Semantics::SetAdd(PyObject* set, PyObject* value) {
  return PySet_Add(set, value);
}

int Semantics::SetUpdate(PyObject* set, PyObject* iterable) {
  static PyObject* update = nullptr;
  return IntOf(CallMethodOf(&update, &PySet_Type, "update", set, iterable));
}

int Semantics::MapAdd(PyObject* dict, PyObject* key, PyObject* value) {
  return PyDict_SetItem(dict, key, value);
}

int Semantics::DictUpdate(PyObject* dict, PyObject* other) {
  int status = PyDict_Update(dict, other);
  if (status < 0 && PyErr_ExceptionMatches(PyExc_AttributeError))
    PyErr_Format(PyExc_TypeError, "'%.200s' object is not a mapping", Py_TYPE(other)->tp_name);
  return status;
}

int Semantics::DictMerge(PyObject* dict, PyObject* other, PyObject* callee) {
  PyObject* incoming = Py_NewRef(other);
  if (!PyDict_Check(other)) {  // read it once, and fail before `dict` changes
    Py_SETREF(incoming, PyDict_New());
    if (!incoming || PyDict_Update(incoming, other) < 0) {
      Py_XDECREF(incoming);
      if (PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
      return -1;
    }
  }
  PyObject *key, *value;
  int status = 0;
  for (Py_ssize_t at = 0; PyDict_GET_SIZE(dict) && !status && PyDict_Next(incoming, &at, &key, &value);)
    if (PyDict_Contains(dict, key)) status = -1;  // "multiple values for keyword argument", or an error
  if (!status) status = PyDict_Update(dict, incoming);
  Py_DECREF(incoming);
  return status;
}

PyObject* Semantics::ListToTuple(PyObject* list) {
  return PyList_AsTuple(list);
}
PyObject* Semantics::MakeFunction(PyObject* code, PyObject* globals) {
  return PyFunction_New(code, globals);
}

int Semantics::SetFunctionField(PyObject* function, int which, PyObject* value) {
  if (which == 16) return PyObject_SetAttrString(function, "__annotate__", value);
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  PyObject** field = which == 1   ? &f->func_defaults
                     : which == 2 ? &f->func_kwdefaults
                     : which == 4 ? &f->func_annotations
                                  : &f->func_closure;
  Py_XSETREF(*field, Py_NewRef(value));
  return 0;
}

PyObject* Semantics::MakeCell(PyObject* value) {
  return PyCell_New(value);
}

PyObject* Semantics::LoadSuperAttr(PyObject* super, PyObject* cls, PyObject* self, PyObject* name) {
  PyObject* args[3] = {nullptr, cls, self};
  PyObject* proxy = PyObject_Vectorcall(super, args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!proxy) return nullptr;
  PyObject* v = PyObject_GetAttr(proxy, name);
  Py_DECREF(proxy);
  return v;
}

PyObject* Semantics::LoadBuildClass(PyObject* builtins) {
  static PyObject* const kName = PyUnicode_InternFromString("__build_class__");
  return PyDict_CheckExact(builtins) ? Py_XNewRef(PyDict_GetItemWithError(builtins, kName)) : nullptr;
}

PyObject* Semantics::LoadSpecial(PyObject* object, PyObject* name) {
  PyObject* found = _PyType_Lookup(Py_TYPE(object), name);
  if (!found) return nullptr;
  Py_INCREF(found);
  descrgetfunc get = Py_TYPE(found)->tp_descr_get;
  if (!get) return found;
  PyObject* bound = get(found, object, reinterpret_cast<PyObject*>(Py_TYPE(object)));
  Py_DECREF(found);
  return bound;
}

int Semantics::Send(PyObject* iterator, PyObject* value, PyObject** result) {
  switch (PyIter_Send(iterator, value, result)) {
    case PYGEN_NEXT: return 1;
    case PYGEN_RETURN: return 0;
    default: return -1;
  }
}

}  // namespace framejit::frame
