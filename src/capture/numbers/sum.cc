// This file has sum() as Python 3.12 and later have it: what a sum of floats has lost by rounding is added at its end.
// C's own loop does so where it sees floats, and a stand-in is none to it.
#include "capture/numbers/number_slots.h"
#include "capture/proxy.h"

namespace framejit::capture {
namespace {

bool FitsLong(PyObject* o) {
  int overflow = 0;
  if (!IsSymInt(o)) PyLong_AsLongAndOverflow(o, &overflow);
  return !overflow;
}
bool IsInt(PyObject* o) {
  return (PyLong_CheckExact(o) || PyBool_Check(o) || IsSymInt(o)) && FitsLong(o);
}
bool IsIntOfAnyClass(PyObject* o) {
  return (PyLong_Check(o) || IsSymInt(o)) && FitsLong(o);
}
bool IsFloatLike(PyObject* o) {
  return PyFloat_CheckExact(o) || IsSymFloat(o) || IsItemFloat(o);
}

// A float64 and what its sum has lost. Both are Python's floats or stand-ins.
struct Total {
  Ref sum, lost;

  // Knuth's TwoSum: the error of one addition, exactly, whichever operand is the greater. `lost` has it negated, and is
  // never -0.0: a sum of -0.0 stays one.
  bool Add(PyObject* x) {
    Ref total(PyNumber_Add(sum.get(), x)), back(total ? PyNumber_Subtract(total.get(), sum.get()) : nullptr),
        first(back ? PyNumber_Subtract(total.get(), back.get()) : nullptr),
        left(first ? PyNumber_Subtract(first.get(), sum.get()) : nullptr),
        right(left ? PyNumber_Subtract(back.get(), x) : nullptr),
        error(right ? PyNumber_Add(left.get(), right.get()) : nullptr);
    if (!error || !(lost = Ref(PyNumber_Add(lost.get(), error.get())))) return false;
    sum = std::move(total);
    return true;
  }

  // Nothing is added behind an infinity.
  PyObject* Close() const {
    if (IsItemFloat(lost.get())) {
      Ref known(FiniteOrZero(lost.get()));
      return known ? PyNumber_Subtract(sum.get(), known.get()) : nullptr;
    }
    Ref nothing(PyNumber_Subtract(lost.get(), lost.get())), zero(PyFloat_FromDouble(0)),
        finite(nothing ? PyObject_RichCompare(nothing.get(), zero.get(), Py_EQ) : nullptr);
    const int truth = finite ? PyObject_IsTrue(finite.get()) : -1;
    if (truth < 0) return nullptr;
    return truth ? PyNumber_Subtract(sum.get(), lost.get()) : Py_NewRef(sum.get());
  }
};

}  // namespace

bool SumsFloats(PyObject* start) {
  return Py_Version >= 0x030C0000 && !PyBool_Check(start) && (IsInt(start) || IsFloatLike(start));
}

// As in C, a sum begins with integers, goes on with floats, and whatever follows ends both for good.
PyObject* SumOfFloats(PyObject* items, PyObject* start) {
  enum { kInts, kFloats, kAny } phase = IsFloatLike(start) ? kFloats : kInts;
  Ref each(PyObject_GetIter(items)), zero(PyFloat_FromDouble(0));
  Total total{Ref(Py_NewRef(start)), Ref(Py_XNewRef(zero.get()))};
  if (!each || !zero) return nullptr;
  while (Ref item = Ref(PyIter_Next(each.get()))) {
    if (phase == kFloats && IsFloatLike(item.get())) {
      if (!total.Add(item.get())) return nullptr;
      continue;
    }
    bool stays = phase == kInts ? IsInt(item.get()) : phase == kFloats && IsIntOfAnyClass(item.get());
    if (phase == kFloats && !stays && !(total.sum = Ref(total.Close()))) return nullptr;
    if (!(total.sum = Ref(PyNumber_Add(total.sum.get(), item.get())))) return nullptr;
    if (phase == kInts) stays = stays && FitsLong(total.sum.get());
    if (!stays) phase = phase == kInts && IsFloatLike(total.sum.get()) ? kFloats : kAny;
  }
  if (PyErr_Occurred()) return nullptr;
  return phase == kFloats ? total.Close() : total.sum.release();
}

}  // namespace framejit::capture
