// What caches are asked for and give, with numbers that change.
#include "capture/cached_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "capture/exit.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/types.h"

namespace framejit::capture {

// An object that is nothing but itself as a key: of a Python class, without an equality of its own.
static bool LooksByIdentity(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return LayoutOf(t) == &PyBaseObject_Type && t->tp_flags & Py_TPFLAGS_HEAPTYPE &&
         t->tp_hash == PyBaseObject_Type.tp_hash && t->tp_richcompare == PyBaseObject_Type.tp_richcompare;
}

// As a key it is found by being the same object.
static bool IsNotANumber(PyObject* o) {
  if (PyFloat_Check(o)) return std::isnan(PyFloat_AS_DOUBLE(o));
  if (!PyComplex_Check(o)) return false;
  const Py_complex c = PyComplex_AsCComplex(o);
  return std::isnan(c.real) || std::isnan(c.imag);
}

KeyKind KeyOf(Session& s, PyObject* o) {
  if (IsSymInt(o) || IsSymFloat(o)) return KeyKind::kOther;  // what was cached is not what is computed now
  if (IsNotANumber(o)) return KeyKind::kOther;
  if (IsPrimitive(o)) return KeyKind::kValue;
  if (IsTensor(o)) return s.trace().tensors[AsTensor(o)->id].input >= 0 ? KeyKind::kOther : KeyKind::kNew;
  if (IsConstantKind(o)) return s.SourceOf(o) || !s.IsOutside(o) ? KeyKind::kValue : KeyKind::kOther;
  if (PySlice_Check(o)) return KeyKind::kOther;  // its bounds may be symbols
  const hashfunc hash = Py_TYPE(o)->tp_hash;     // Equal devices have equal hashes, and each torch.finfo has its own.
  if (IsValue(o) && hash != PyBaseObject_Type.tp_hash && hash != PyObject_HashNotImplemented) return KeyKind::kValue;
  if (LooksByIdentity(o)) return s.IsOutside(o) ? KeyKind::kValue : KeyKind::kNew;
  if (!PyTuple_Check(o)) return KeyKind::kOther;
  KeyKind kind = KeyKind::kValue;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) kind = std::max(kind, KeyOf(s, PyTuple_GET_ITEM(o, i)));
  return kind;
}

bool HoldsNumber(PyObject* o) {
  if (!PyTuple_Check(o)) return IsSymInt(o);
  PyObject* const* items = &PyTuple_GET_ITEM(o, 0);
  return std::any_of(items, items + PyTuple_GET_SIZE(o), HoldsNumber);
}

namespace {

bool IsContainer(PyObject* o, bool key) {
  return PyTuple_CheckExact(o) || OfType(o, CType::kTorchSize) ||
         (!key && (PyList_CheckExact(o) || PyDict_CheckExact(o)));
}

// Its items; of a dict keys and values by turns.
std::vector<PyObject*> PartsOf(PyObject* o) {
  std::vector<PyObject*> parts;
  PyObject *k, *v;
  if (PyDict_CheckExact(o)) {
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &k, &v);) parts.insert(parts.end(), {k, v});
  } else {
    parts.assign(PySequence_Fast_ITEMS(o), PySequence_Fast_ITEMS(o) + PySequence_Fast_GET_SIZE(o));
  }
  return parts;
}

bool SameConstant(PyObject* a, PyObject* b) {
  if (a == b) return true;
  if (!IsPrimitive(a) || Py_TYPE(a) != Py_TYPE(b)) return false;
  if (!PyFloat_CheckExact(a))
    return !PyComplex_CheckExact(a) && !PyCode_Check(a) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
  const double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
  return x == x && !std::memcmp(&x, &y, sizeof(double));
}

// Is one of the containers of a form, as captured code has it, there behind the exit?
bool StaysIn(const Recipe& recipe, const Form& form, PyObject* shown) {
  if (form.kind != Form::kItems) return false;
  if (recipe.Holds(shown)) return true;
  const std::vector<PyObject*> parts = PartsOf(shown);
  for (size_t i = 0; i < parts.size(); ++i)
    if (StaysIn(recipe, form.items[i], parts[i])) return true;
  return false;
}

}  // namespace

bool Form::Read(Session& s, PyObject* o, bool key, Form* out) {
  if (IsSymInt(o)) {
    out->kind = kNumber;
    out->number = reinterpret_cast<SymInt*>(o)->expr;
    return !s.env().AtRun(out->number);
  }
  if (IsContainer(o, key) && !s.IsOutside(o)) {
    out->kind = kItems;
    out->object = Borrow(reinterpret_cast<PyObject*>(Py_TYPE(o)));
    const std::vector<PyObject*> parts = PartsOf(o);
    out->items.resize(parts.size());
    for (size_t i = 0; i < parts.size(); ++i)
      if (!Read(s, parts[i], key || (PyDict_CheckExact(o) && i % 2 == 0), &out->items[i])) return false;
    return true;
  }
  out->object = Borrow(o);
  if (key) return KeyOf(s, o) == KeyKind::kValue && (IsValue(o) || s.Pin(o));
  if (IsSymFloat(o) || IsTensor(o)) return false;
  const Origin* origin = s.Find(o);
  if (origin && origin->kind == Origin::kOutside && !origin->written) s.guards().Is(origin->source, o);
  return IsPrimitive(o) || (origin && origin->kind != Origin::kFresh && !origin->written) || IsConstantKind(o);
}

void Form::Mark(Session& s, PyObject* shown, const guard::Source* cache) const {
  if (kind != kItems) return;
  s.MarkFresh(shown);
  if (Origin* g = s.Find(shown); g && g->kind == Origin::kFresh) g->source = cache;
  const std::vector<PyObject*> parts = PartsOf(shown);
  for (size_t i = 0; i < parts.size(); ++i) items[i].Mark(s, parts[i], cache);
}

Ref Form::Make(std::span<const int64_t> symbols) const {
  if (kind == kNumber) return Ref(PyLong_FromLongLong(number.Eval(symbols)));
  if (kind == kObject) return Borrow(object.get());
  Ref all(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; all && i < items.size(); ++i) {
    PyObject* item = items[i].Make(symbols).release();
    PyTuple_SET_ITEM(all.get(), i, item);
    if (!item) return {};
  }
  if (!all || object.get() == reinterpret_cast<PyObject*>(&PyTuple_Type)) return all;
  return Ref(PyObject_CallOneArg(object.get(), all.get()));
}

bool Form::Is(PyObject* o, const std::span<const int64_t>* symbols) const {
  if (kind == kObject) return SameConstant(o, object.get());
  if (kind == kNumber && !symbols) return IsSymInt(o) && reinterpret_cast<SymInt*>(o)->expr == number;
  if (kind == kNumber) {
    int overflow = 0;
    return PyLong_CheckExact(o) && PyLong_AsLongLongAndOverflow(o, &overflow) == number.Eval(*symbols) && !overflow;
  }
  if (reinterpret_cast<PyObject*>(Py_TYPE(o)) != object.get()) return false;
  const std::vector<PyObject*> parts = PartsOf(o);
  if (parts.size() != items.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i)
    if (!items[i].Is(parts[i], symbols)) return false;
  return true;
}

bool operator==(const Form& a, const Form& b) {
  if (a.kind != b.kind) return false;
  if (a.kind == Form::kNumber) return a.number == b.number;
  return (a.kind == Form::kObject ? SameConstant(a.object.get(), b.object.get()) : a.object.get() == b.object.get()) &&
         a.items == b.items;
}

bool CachedInputs::Call::Same(const Call& other) const {
  if (cache.get() != other.cache.get() || args != other.args) return false;
  return kwnames.get() == other.kwnames.get() ||
         (kwnames && other.kwnames && PyObject_RichCompareBool(kwnames.get(), other.kwnames.get(), Py_EQ) == 1);
}

std::vector<Ref> CachedInputs::Call::Arguments(std::span<const int64_t> symbols) const {
  std::vector<Ref> all;
  for (const Form& a : args) all.push_back(a.Make(symbols));
  return all;
}

bool CachedInputs::GivesTensors() const {
  return std::any_of(calls_.begin(), calls_.end(), [](const Call& c) { return c.cache && c.input >= 0; });
}

bool CachedInputs::Exposes(const Recipe& recipe) const {
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Form& given = calls_[i].given;
    if (given.kind != Form::kItems) continue;
    if (!given.Is(proxies_[i].get(), nullptr) || StaysIn(recipe, given, proxies_[i].get())) return true;
  }
  return false;
}

}  // namespace framejit::capture
