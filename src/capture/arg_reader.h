// What a Python object is as the argument of a framework function.
#pragma once

#include <optional>

#include "capture/session.h"

namespace framejit::capture {

// The names that the frameworks have for an element type.
const char* NameOfDType(DType t);

// Reads the arguments of one call. A reader of one kind answers nothing where the object is of another kind, and false
// after a Break.
class ArgReader {
 public:
  explicit ArgReader(Session& s, bool ranges_as_lists = false) : s_(s), ranges_as_lists_(ranges_as_lists) {}
  bool Read(PyObject* o, Arg* out);  // It is false after a Break.
  // Was a NumPy float among what was read, or a NumPy integer or bool?
  bool numpy_number() const { return numpy_number_; }
  bool numpy_integer() const { return numpy_integer_; }
  // Was a bool of NumPy's, or a float32?
  bool numpy_bool() const { return numpy_bool_; }
  bool numpy_single() const { return numpy_single_; }
  // Was an int of a class of its own, which is no weak number to NumPy?
  bool int_of_class() const { return int_of_class_; }

 private:
  std::optional<bool> Number(PyObject* o, Arg* out);
  std::optional<bool> Description(PyObject* o, Arg* out);  // A dtype, a device or a layout.
  std::optional<bool> Container(PyObject* o, Arg* out);
  bool Sequence(PyObject* o, Arg* out);
  bool Dict(PyObject* o, Arg* out);

  Session& s_;
  const bool ranges_as_lists_;
  bool numpy_number_ = false, numpy_integer_ = false, numpy_bool_ = false, numpy_single_ = false, int_of_class_ = false;
};

}  // namespace framejit::capture
