// This file has the instructions of items, operators, comparisons and formatting.
#include "frame/activation.h"

namespace framejit::frame::ops {

Flow GetItem(Activation& m, const Instr&) {
  return m.Replace(2, m.sem.GetItem(m.Top(2), m.Top()));
}
Flow SetItem(Activation& m, const Instr&) {
  return m.Done(m.sem.SetItem(m.Top(2), m.Top(), m.Top(3)), 3);
}
Flow DeleteItem(Activation& m, const Instr&) {
  return m.Done(m.sem.SetItem(m.Top(2), m.Top(), nullptr), 2);
}

Flow GetSlice(Activation& m, const Instr&) {
  PyObject* slice = m.sem.BuildSlice(m.Top(2), m.Top(), nullptr);
  if (!slice) return Flow::kError;
  PyObject* v = m.sem.GetItem(m.Top(3), slice);
  Py_DECREF(slice);
  return m.Replace(3, v);
}

Flow SetSlice(Activation& m, const Instr&) {
  PyObject* slice = m.sem.BuildSlice(m.Top(2), m.Top(), nullptr);
  if (!slice) return Flow::kError;
  int status = m.sem.SetItem(m.Top(3), slice, m.Top(4));
  Py_DECREF(slice);
  return m.Done(status, 4);
}

Flow Positive(Activation& m, const Instr&) {
  return m.Replace(1, m.sem.Unary('+', m.Top()));
}
Flow Negative(Activation& m, const Instr&) {
  return m.Replace(1, m.sem.Unary('-', m.Top()));
}
Flow Invert(Activation& m, const Instr&) {
  return m.Replace(1, m.sem.Unary('~', m.Top()));
}

Flow Not(Activation& m, const Instr&) {
  int truth = m.Truth(m.Top());
  return m.ReplaceBool(1, truth < 0 ? truth : !truth);
}

Flow ToBool(Activation& m, const Instr&) {
  return m.ReplaceBool(1, m.Truth(m.Top()));
}

Flow Binary(Activation& m, const Instr& i) {
  return m.Replace(2, m.sem.Binary(i.arg, m.Top(2), m.Top()));
}

Flow Compare(Activation& m, const Instr& i) {
  PyObject* v = m.sem.Compare(m.Top(2), m.Top(), i.arg);
  if (!v || !i.flag) return m.Replace(2, v);
  int truth = m.Truth(v);
  Py_DECREF(v);
  return m.ReplaceBool(2, truth);
}

Flow Is(Activation& m, const Instr& i) {
  int r = m.sem.Is(m.Top(2), m.Top());
  return m.ReplaceBool(2, r < 0 ? r : r ^ i.arg);
}

Flow Contains(Activation& m, const Instr& i) {
  int r = m.sem.Contains(m.Top(), m.Top(2));
  return m.ReplaceBool(2, r < 0 ? r : r ^ i.arg);
}

Flow FormatValue(Activation& m, const Instr& i) {  // until 3.12
  bool has_spec = i.arg & 4;
  PyObject* value = has_spec ? m.Top(2) : m.Top();
  return m.Replace(has_spec ? 2 : 1, m.sem.Format(value, i.arg & 3, has_spec ? m.Top() : nullptr));
}

Flow ConvertValue(Activation& m, const Instr& i) {
  return m.Replace(1, m.sem.Format(m.Top(), i.arg & 3, nullptr));  // a text's own format is the text
}
Flow FormatSimple(Activation& m, const Instr&) {
  return m.Replace(1, m.sem.Format(m.Top(), 0, nullptr));
}
Flow FormatWithSpec(Activation& m, const Instr&) {
  return m.Replace(2, m.sem.Format(m.Top(2), 0, m.Top()));
}

}  // namespace framejit::frame::ops
