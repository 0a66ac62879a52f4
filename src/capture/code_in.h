// Code with the globals of its function.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <functional>

namespace framejit::capture {

struct CodeIn {
  PyCodeObject* code = nullptr;
  const PyObject* globals = nullptr;  // An address alone: what depends on the dictionary holds it.
  bool operator==(const CodeIn&) const = default;
};

struct CodeInHash {
  size_t operator()(const CodeIn& c) const {
    return std::hash<const void*>()(c.code) * 31 + std::hash<const void*>()(c.globals);
  }
};

}  // namespace framejit::capture
