// Raising, handling, with statements. Where CPython would complain about operands (raise 5, except 5), CPython does.
#include "frame/activation.h"

namespace framejit::frame::ops {
namespace {

bool IsExceptionClasses(PyObject* o) {
  if (!PyTuple_Check(o)) return PyExceptionClass_Check(o);
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(o); ++k)
    if (!PyExceptionClass_Check(PyTuple_GET_ITEM(o, k))) return false;
  return true;
}

PyObject* CallNoArgs(Activation& m, PyObject* callable) {
  PyObject* none[1] = {nullptr};
  return m.sem.Call(callable, none + 1, 0 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

PyObject* Instance(Activation& m, PyObject* class_or_instance) {  // new reference
  if (!PyExceptionClass_Check(class_or_instance)) return Py_NewRef(class_or_instance);
  PyObject* made = CallNoArgs(m, class_or_instance);
  if (made && !PyExceptionInstance_Check(made)) {
    PyErr_Format(PyExc_TypeError, "calling %R should have returned an instance of BaseException, not %R",
                 class_or_instance, Py_TYPE(made));
    Py_CLEAR(made);
  }
  return made;
}

bool IsException(PyObject* o) {
  return PyExceptionClass_Check(o) || PyExceptionInstance_Check(o);
}

PyObject* Interned(const char* text) {
  return PyUnicode_InternFromString(text);
}

}  // namespace

Flow Raise(Activation& m, const Instr& i) {
  if (i.arg == 0) {
    PyObject* handled = PyErr_GetHandledException();
    if (!handled || handled == Py_None) {
      Py_XDECREF(handled);
      return Flow::kHandOver;
    }
    if (!m.sem.Raises(handled)) {
      Py_DECREF(handled);
      return Flow::kError;
    }
    fj_set_raised(handled);
    return Flow::kReraise;
  }
  PyObject *what = m.Top(i.arg), *cause = i.arg == 2 ? m.Top() : nullptr;
  if (!IsException(what) || (cause && cause != Py_None && !IsException(cause))) return Flow::kHandOver;
  PyObject* exception = Instance(m, what);
  if (!exception) return Flow::kError;
  if (!m.sem.Raises(exception)) {
    Py_DECREF(exception);
    return Flow::kError;
  }
  if (cause) {
    PyObject* fixed = cause == Py_None ? nullptr : Instance(m, cause);
    if (!fixed && cause != Py_None) {
      Py_DECREF(exception);
      return Flow::kError;
    }
    PyException_SetCause(exception, fixed);
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception);
  Py_DECREF(exception);
  m.Drop(i.arg);
  return Flow::kError;
}

Flow Reraise(Activation& m, const Instr& i) {
  PyObject* exception = m.Pop();
  if (const int at = i.arg ? m.sp[-i.arg].position() : -1; at >= 0) fj_set_current(m.frame, at);
  fj_set_raised(exception);
  return Flow::kReraise;
}

Flow PushExcInfo(Activation& m, const Instr&) {
  PyObject* exception = m.Pop();
  PyObject* outer = fj_exchange_handled(m.ts, Py_NewRef(exception));
  m.Push(outer ? outer : Py_NewRef(Py_None));
  m.Push(exception);
  return Flow::kNext;
}

Flow PopExcept(Activation& m, const Instr&) {
  PyObject* outer = m.Pop();
  if (outer == Py_None) {  // none was being handled in this frame: in a generator, its caller's shows through
    Py_DECREF(outer);
    outer = nullptr;
  }
  m.Release(fj_exchange_handled(m.ts, outer));
  return Flow::kNext;
}

Flow CheckExcMatch(Activation& m, const Instr&) {
  if (!m.sem.Catches(m.Top())) return Flow::kError;
  if (!IsExceptionClasses(m.Top())) return Flow::kHandOver;
  return m.ReplaceBool(1, PyErr_GivenExceptionMatches(m.Top(2), m.Top()));
}

Flow BeforeWith(Activation& m, const Instr&) {
  static PyObject* const kEnter = Interned("__enter__");
  static PyObject* const kExit = Interned("__exit__");
  PyObject* manager = m.Top();
  PyObject* enter = m.sem.LoadSpecial(manager, kEnter);
  if (!enter) return Flow::kError;
  PyObject* exit = m.sem.LoadSpecial(manager, kExit);
  if (!exit) {
    Py_DECREF(enter);
    return Flow::kError;
  }
  PyObject* value = CallNoArgs(m, enter);
  Py_DECREF(enter);
  if (!value) {
    Py_DECREF(exit);
    return Flow::kError;
  }
  m.Release(std::exchange(m.sp[-1], Slot::Of(exit)));
  m.Push(value);
  return Flow::kNext;
}

// On the stack lie the exit function (from 3.14 on with its self, or NULL), lasti, the previous exception, and the
// exception.
Flow WithExceptStart(Activation& m, const Instr&) {
  PyObject* exception = m.Top();
  PyObject* self = bytecode::kExitHasSelf ? m.Top(4) : nullptr;
  PyObject* traceback = PyException_GetTraceback(exception);
  PyObject* args[5] = {nullptr, self, reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception,
                       traceback ? traceback : Py_None};
  PyObject* r = m.sem.Call(m.Top(bytecode::kExitHasSelf ? 5 : 4), args + (self ? 1 : 2),
                           (self ? 4 : 3) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  Py_XDECREF(traceback);
  if (!r) return Flow::kError;
  m.Push(r);
  return Flow::kNext;
}

// The manager becomes a callable without self. What the type lacks CPython complains of.
Flow LoadSpecial(Activation& m, const Instr& i) {
  PyObject* method = m.sem.LoadSpecial(m.Top(), fj_special_name(i.arg));
  if (!method) return Flow::kError;
  m.Release(std::exchange(m.sp[-1], Slot::Of(method)));
  m.Push(nullptr);
  return Flow::kNext;
}

Flow LoadAssertionError(Activation& m, const Instr&) {
  m.PushNew(PyExc_AssertionError);
  return Flow::kNext;
}

}  // namespace framejit::frame::ops
