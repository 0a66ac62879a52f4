#include "capture/json.h"

#include <algorithm>
#include <string_view>

namespace framejit::capture {

bool IsJsonEncoder(PyObject* o) {
  return std::string_view(Py_TYPE(o)->tp_name) == "_json.Encoder";
}

// Is it made of what the encoder writes by itself?
static bool IsJson(PyObject* o, int depth = 100) {
  if (!depth) return false;
  if (PyDict_CheckExact(o)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);)
      if (!PyUnicode_CheckExact(key) || !IsJson(value, depth - 1)) return false;
    return true;
  }
  if (PyList_CheckExact(o) || PyTuple_CheckExact(o))
    return std::all_of(PySequence_Fast_ITEMS(o), PySequence_Fast_ITEMS(o) + PySequence_Fast_GET_SIZE(o),
                       [&](PyObject* item) { return IsJson(item, depth - 1); });
  return o == Py_None || PyBool_Check(o) || PyUnicode_CheckExact(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o);
}

PyObject* EncodeJson(Session& s, PyObject* encoder, PyObject* const* args, Py_ssize_t nargs) {
  if (!nargs || !IsJson(args[0])) return s.Break(BreakId::kUnknownCall, "json of objects of other types");
  return s.Adopt(PyObject_Vectorcall(encoder, args, nargs, nullptr));
}

}  // namespace framejit::capture
