// Class statements. A body that makes functions, constants and names, and does nothing else, runs as it is while it is
// captured, once for each capture: the class is a private object. At the exit no class is made again, so nothing that
// leads to it may leave the graph.
#include <Python.h>

#include <string_view>

#include "capture/class_attributes.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/special_calls.h"

namespace framejit::capture {
namespace {

// May the program ask it for its subclasses? Python makes one in each call, and a capture makes one once.
bool IsAskedForSubclasses(PyTypeObject* type) {
  const std::string_view module = ModuleOf(type), root = module.substr(0, module.find('.'));
  return type->tp_flags & Py_TPFLAGS_HEAPTYPE && root != "torch" && root != "abc";
}

// A base of which `type`, or what makes abstract classes, makes a class without running code of the program's.
bool IsPlainBase(Session& s, PyObject* base) {
  static PyObject* const hook = Interned("__init_subclass__");
  if (!PyType_Check(base) || !MakesPlainClasses(Py_TYPE(base))) return false;
  auto* type = reinterpret_cast<PyTypeObject*>(base);
  if (!s.IsFresh(base) && (IsAskedForSubclasses(type) || (type->tp_flags & Py_TPFLAGS_HEAPTYPE && !s.SourceOf(base))))
    return false;
  s.NoteType(type);  // what the class inherits is bound by the versions of its bases
  return !s.pending().WritesClass(type) && _PyType_Lookup(type, hook) == _PyType_Lookup(&PyBaseObject_Type, hook);
}

// Has the program something of its own under the name of a built-in descriptor, which the body may call?
bool IsAnother(PyObject* name, PyObject* value) {
  for (PyTypeObject* type : {&PyProperty_Type, &PyStaticMethod_Type, &PyClassMethod_Type})
    if (!PyUnicode_CompareWithASCIIString(name, type->tp_name)) return value != reinterpret_cast<PyObject*>(type);
  return false;
}

// What only this statement has made: functions, descriptors, and the cell in which functions find the class.
void MarkMade(Session& s, PyObject* type, PyObject* o) {
  if (!o || s.Find(o)) return;
  if (PyFunction_Check(o)) {
    Py_DECREF(s.MarkFresh(Py_NewRef(o)));
    PyObject* closure = PyFunction_GET_CLOSURE(o);
    for (Py_ssize_t i = 0; closure && i < PyTuple_GET_SIZE(closure); ++i)
      if (PyObject* cell = PyTuple_GET_ITEM(closure, i); PyCell_GET(cell) == type)
        Py_DECREF(s.MarkFresh(Py_NewRef(cell)));
    return;
  }
  const bool descriptor = PyObject_TypeCheck(o, &PyProperty_Type) || Py_IS_TYPE(o, &PyStaticMethod_Type) ||
                          Py_IS_TYPE(o, &PyClassMethod_Type);
  if (!descriptor) return;
  Py_DECREF(s.MarkFresh(Py_NewRef(o)));
  for (const char* part : {"fget", "fset", "fdel", "__func__"}) {
    Ref f(PyObject_GetAttrString(o, part));
    if (!f) PyErr_Clear();
    MarkMade(s, type, f.get());
  }
}

}  // namespace

bool MakesPlainClasses(PyTypeObject* metatype) {
  static PyObject* const abstract = FromModule("abc", "ABCMeta");
  return metatype == &PyType_Type || reinterpret_cast<PyObject*>(metatype) == abstract;
}

PyObject* BuildClass(CaptureSemantics& c, Session& s, PyObject* const* args, Py_ssize_t n) {
  const auto refuse = [&] { return s.Break(BreakId::kInstruction, "class statement"); };
  static PyObject* const names_of = FromModule("framejit._classes", "names_of");
  if (n < 2 || !names_of || !PyFunction_Check(args[0]) || !s.IsFresh(args[0]) || !PyUnicode_CheckExact(args[1]))
    return refuse();
  for (Py_ssize_t i = 2; i < n; ++i)
    if (!IsPlainBase(s, args[i])) return refuse();
  auto* body = reinterpret_cast<PyFunctionObject*>(args[0]);
  Ref names;
  {
    SuspendScope off;
    names = Ref(PyObject_CallOneArg(names_of, body->func_code));
  }
  if (!names) return nullptr;
  if (!PyTuple_CheckExact(names.get())) return refuse();
  static PyObject* const set_name = Interned("__set_name__");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names.get()); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names.get(), i);
    Ref value(c.LoadGlobal(body->func_globals, body->func_builtins, name));
    PyObject* seen = value ? s.Resolve(value.get()) : nullptr;
    if (!seen) return s.broken() ? nullptr : (PyErr_Clear(), refuse());
    PyObject* real = PyDict_GetItemWithError(body->func_globals, name);
    if (!real && !PyErr_Occurred()) real = PyDict_GetItemWithError(body->func_builtins, name);
    if (PyErr_Occurred()) return nullptr;
    if (seen != real || _PyType_Lookup(Py_TYPE(seen), set_name) || IsAnother(name, seen)) return refuse();
  }
  static PyObject* const build = FromModule("builtins", "__build_class__");
  Ref made;
  {
    SuspendScope off;
    made = Ref(build ? PyObject_Vectorcall(build, args, static_cast<size_t>(n), nullptr) : nullptr);
  }
  if (!made) return PyErr_Clear(), refuse();
  PyObject *key, *value, *space = reinterpret_cast<PyTypeObject*>(made.get())->tp_dict;
  for (Py_ssize_t at = 0; PyDict_Next(space, &at, &key, &value);) MarkMade(s, made.get(), value);
  return s.MarkFresh(made.release());
}

}  // namespace framejit::capture
