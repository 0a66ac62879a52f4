#include "capture/named_code.h"

#include "bytecode/code.h"
#include "capture/callees.h"
#include "frame/slot.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

std::string Text(PyObject* o) {
  const char* c = PyUnicode_AsUTF8(o);
  if (!c) PyErr_Clear();
  return c ? c : "?";
}

// What a decorator has wrapped, as functools.wraps notes it.
PyFunctionObject* Innermost(PyObject* f) {
  static PyObject* const wrapped = PyUnicode_InternFromString("__wrapped__");
  constexpr int kDeepest = 32;  // it may wrap itself
  for (int depth = 0; depth < kDeepest && f && PyFunction_Check(f); ++depth) {
    auto* function = reinterpret_cast<PyFunctionObject*>(f);
    PyObject* inner = function->func_dict ? PyDict_GetItemWithError(function->func_dict, wrapped) : nullptr;
    if (!inner || !PyFunction_Check(inner)) return function;
    f = inner;
  }
  return nullptr;
}

bool IsModuleCall(PyCodeObject* code) {
  const std::string name = Text(code->co_qualname);
  return name == callees::kModuleWrappedCall || name == callees::kModuleCall;
}

}  // namespace

PyCodeObject* NamedCode(PyCodeObject* code, PyObject* self) {
  static PyObject* const forward = PyUnicode_InternFromString("forward");
  if (self && PyCell_Check(self)) self = PyCell_GET(self);
  if (!self || !IsModuleCall(code)) return code;
  const PyFunctionObject* f = Innermost(_PyType_Lookup(Py_TYPE(self), forward));
  return f ? reinterpret_cast<PyCodeObject*>(f->func_code) : code;
}

static PyObject* SelfOf(FjFrame* frame) {
  return fj_code(frame)->co_argcount ? fj_localsplus(frame)[0].get() : nullptr;
}

PyCodeObject* NamedCode(FjFrame* frame) {
  return NamedCode(fj_code(frame), SelfOf(frame));
}

int NamedLine(PyCodeObject* code, PyObject* self, int instruction) {
  if (PyCodeObject* named = NamedCode(code, self); named != code) return named->co_firstlineno;
  return bytecode::LocationOf(code, bytecode::Code::Of(code)->At(instruction).unit).line;
}

int NamedLine(FjFrame* frame) {
  return NamedLine(fj_code(frame), SelfOf(frame), fj_next(frame));
}

std::string PlaceName(PyCodeObject* code) {
  return Text(code->co_qualname) + "@" + Text(code->co_filename) + ":" + std::to_string(code->co_firstlineno);
}

}  // namespace framejit::capture
