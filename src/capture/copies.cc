// What copy.copy and copy.deepcopy ask an object for.
#include <Python.h>

#include "capture/builtins.h"
#include "capture/override.h"
#include "capture/semantics.h"
#include "guard/versions.h"

namespace framejit::capture {

// What object.__getstate__ says of an object: its __dict__, where anything is in that, and what is in its slots.
static Ref StateOf(CaptureSemantics& c, Session& s, PyObject* o) {
  static PyObject *const dict_name = Interned("__dict__"), *const slots_of =
                                                               FromModule("framejit._classes", "slot_names");
  Ref names, dict, held(PyDict_New()), state = Borrow(Py_None);
  {
    SuspendScope off;
    names = Ref(slots_of ? PyObject_CallOneArg(slots_of, reinterpret_cast<PyObject*>(Py_TYPE(o))) : nullptr);
  }
  if (!names || !held || !PyList_Check(names.get())) return {};
  PyTypeObject* type = Py_TYPE(o);
  const Py_ssize_t known = (type->tp_dictoffset != 0) + (type->tp_weaklistoffset > 0) + PyList_GET_SIZE(names.get());
  if (type->tp_basicsize > PyBaseObject_Type.tp_basicsize + known * static_cast<Py_ssize_t>(sizeof(PyObject*)))
    return s.Break(BreakId::kUnknownCall, std::string(type->tp_name) + ".__reduce_ex__"), Ref();  // C has more in it
  if (Py_TYPE(o)->tp_dictoffset || PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_MANAGED_DICT)) {
    dict = Ref(c.LoadAttr(o, dict_name));
    const int any = dict ? c.Truth(dict.get()) : -1;
    if (any < 0) return {};
    if (any) state = std::move(dict);
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(names.get()); ++i) {
    PyObject* name = PyList_GET_ITEM(names.get(), i);
    Ref value(c.LoadAttr(o, name));
    if (!value && (s.broken() || !PyErr_ExceptionMatches(PyExc_AttributeError))) return {};
    if (!value)
      PyErr_Clear();
    else if (PyDict_SetItem(held.get(), name, value.get()) < 0)
      return {};
  }
  if (!PyDict_GET_SIZE(held.get())) return state;
  PyObject* slots = s.MarkFresh(held.release());
  Ref both(s.MarkFresh(PyTuple_Pack(2, state.get(), slots)));
  Py_DECREF(slots);
  return both;
}

// object.__reduce_ex__ of an object that is made of its class and its state, as copy.copy asks for it.
PyObject* CaptureSemantics::Reduced(PyObject* o, PyObject* protocol) {
  PyTypeObject* type = Py_TYPE(o);
  auto own = [&](const char* name) -> PyObject* {
    Ref text(PyUnicode_InternFromString(name));
    PyObject* found = _PyType_Lookup(type, text.get());
    return found && found != PyDict_GetItem(guard::TypeDict(&PyBaseObject_Type), text.get()) ? found : nullptr;
  };
  static PyObject* const reduce = Interned("__reduce__");
  if (LayoutOf(type) == type && own("__reduce__") && FactsOf(type).type != CType::kOther) {  // of C's containers
    Ref bound(LoadAttr(o, reduce));
    return bound ? Call(bound.get(), nullptr, 0, nullptr) : nullptr;
  }
  if (type == &PySet_Type || type == &PyFrozenSet_Type) {
    Ref items(CallType(&PyList_Type, &o, 1, nullptr));
    Ref args(items ? s_.MarkFresh(PyTuple_Pack(1, items.get())) : nullptr);
    return args ? s_.MarkFresh(PyTuple_Pack(3, type, args.get(), Py_None)) : nullptr;
  }
  PyTypeObject* base = type;
  while (base->tp_flags & Py_TPFLAGS_HEAPTYPE && base->tp_base) base = base->tp_base;
  PyObject* says = own("__getstate__");
  bool plain = PyLong_CheckExact(protocol) && PyLong_AsLong(protocol) >= 2 && base == &PyBaseObject_Type &&
               base != type && (!says || PyFunction_Check(says));
  for (const char* n : {"__reduce__", "__getnewargs__", "__getnewargs_ex__"}) plain = plain && !own(n);
  if (!plain) return s_.Break(BreakId::kUnknownCall, std::string(type->tp_name) + ".__reduce_ex__");
  static PyObject* const new_object = FromModule("copyreg", "__newobj__");
  Ref make(new_object ? s_.FromOutside(new_object, s_.guards().Const(new_object)) : nullptr);
  if (!make) return nullptr;
  s_.NoteType(type);
  Ref args(PyTuple_Pack(1, type)), state = says ? Ref(Call(says, &o, 1, nullptr)) : StateOf(*this, s_, o);
  if (!state || !args) return nullptr;
  s_.MarkFresh(args.get());
  return s_.MarkFresh(PyTuple_Pack(5, make.get(), args.get(), state.get(), Py_None, Py_None));
}

}  // namespace framejit::capture
