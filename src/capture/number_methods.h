// Methods that C code looks for on the type of a number. Those of numbers that became symbols do them on the number.
#pragma once

#include "capture/ref.h"

namespace framejit::capture {

template <PyObject* (*kConcrete)(PyObject*)>
struct NumberMethods {
  static constexpr const char *kFormat = "__format__", *kRound = "__round__", *kTrunc = "__trunc__",
                              *kFloor = "__floor__", *kCeil = "__ceil__", *kReduce = "__reduce_ex__";
  template <const char* const* kName>
  static PyObject* Call(PyObject* a, PyObject* args) {
    Ref x(kConcrete(a)), m(x ? PyObject_GetAttrString(x.get(), *kName) : nullptr);
    return m ? PyObject_CallObject(m.get(), args) : nullptr;
  }
  static inline PyMethodDef rows[] = {
      {kFormat, Call<&kFormat>, METH_VARARGS, nullptr},
      {kRound, Call<&kRound>, METH_VARARGS, nullptr},
      {kTrunc, Call<&kTrunc>, METH_VARARGS, nullptr},
      {kFloor, Call<&kFloor>, METH_VARARGS, nullptr},
      {kCeil, Call<&kCeil>, METH_VARARGS, nullptr},
      {kReduce, Call<&kReduce>, METH_VARARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
};

}  // namespace framejit::capture
