// An owning reference to a Python object.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>
#include <utility>

namespace framejit::tensor {

class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : o_(owned) {}
  static Ref Borrow(PyObject* o) { return Ref(Py_XNewRef(o)); }
  Ref(const Ref& r) : o_(Py_XNewRef(r.o_)) {}
  Ref(Ref&& r) noexcept : o_(std::exchange(r.o_, nullptr)) {}
  Ref& operator=(Ref r) noexcept {
    std::swap(o_, r.o_);
    return *this;
  }
  ~Ref() { Py_XDECREF(o_); }
  PyObject* get() const { return o_; }
  PyObject* release() { return std::exchange(o_, nullptr); }
  explicit operator bool() const { return o_ != nullptr; }

 private:
  PyObject* o_ = nullptr;
};

// Keeps the pending Python exception away while other Python code runs.
class SavedError {
 public:
  SavedError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~SavedError() { PyErr_Restore(type_, value_, traceback_); }
  SavedError(const SavedError&) = delete;

 private:
  PyObject *type_, *value_, *traceback_;
};

// o.name, or null without an exception. A new reference.
inline PyObject* Attr(PyObject* o, const char* name) {
  PyObject* r = o ? PyObject_GetAttrString(o, name) : nullptr;
  if (!r) PyErr_Clear();
  return r;
}

// A module that the user may import: null until then, and looked for again only after others have come.
class Imported {
 public:
  explicit Imported(const char* name) : name_(name) {}
  PyObject* Get() {
    PyObject* all = PyImport_GetModuleDict();
    if (!all || PyDict_GET_SIZE(all) == looked_at_) return nullptr;
    PyObject* module = PyDict_GetItemString(all, name_);
    if (!module) looked_at_ = PyDict_GET_SIZE(all);
    return module;
  }

 private:
  const char* name_;
  Py_ssize_t looked_at_ = -1;  // How many there were when they were last looked at.
};

// Text of the pending Python exception, which is cleared.
inline std::string TakeErrorText() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Ref t(type), v(value), tb(traceback), text(v ? PyObject_Str(v.get()) : nullptr);
  const char* c = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (!c) PyErr_Clear();
  return c ? c : "unknown error";
}

}  // namespace framejit::tensor
