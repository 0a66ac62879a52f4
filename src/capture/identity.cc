#include "capture/identity.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "capture/proxy.h"
#include "capture/wrappers/wrappers.h"
#include "guard/program.h"
#include "guard/source.h"

namespace framejit::capture {

const Source* FoundAt(PyObject* o) {
  return IsSymInt(o)     ? reinterpret_cast<SymInt*>(o)->source
         : IsSymFloat(o) ? reinterpret_cast<SymFloat*>(o)->source
                         : nullptr;
}

// Sizes and what is computed of symbols are new objects, but Python has the small numbers only once.
static std::optional<int> IsOfNewNumbers(Session& s, PyObject* a, PyObject* b) {
  const auto is_new = [](PyObject* o) { return IsSymInt(o) && !FoundAt(o); };
  if (a == b || (!is_new(a) && !is_new(b))) return {};
  const auto number = [](PyObject* o) -> std::optional<shape::Int> {
    if (IsSymInt(o)) return reinterpret_cast<SymInt*>(o)->expr;
    if (IsLazy(o)) o = reinterpret_cast<Lazy*>(o)->value;
    int overflow = 0;
    const long long value = PyLong_CheckExact(o) ? PyLong_AsLongLongAndOverflow(o, &overflow) : 0;
    return PyLong_CheckExact(o) && !overflow ? std::optional(shape::Int(int64_t{value})) : std::nullopt;
  };
  const std::optional<shape::Int> x = number(a), y = number(b);
  if (!x || !y) return {};
  const bool lazy = IsLazy(a) || IsLazy(b);
  if (!lazy && !s.env().Eq(*x, *y)) return 0;
  if (!lazy && s.env().Le(-5, *x) && s.env().Le(*x, 256)) return 1;
  return s.Break(BreakId::kUnknownCall, "whether two equal numbers that change are one object"), -1;
}

// Of these there may be several that are equal, as far as programs look.
static bool IsValueObject(PyObject* o) {
  return PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyUnicode_CheckExact(o) || PyBytes_CheckExact(o) ||
         PyComplex_CheckExact(o) || PyTuple_CheckExact(o);
}

// Where such an object was read, which a guard compares by value.
static const Source* ReadAt(Session& s, PyObject* o) {
  if (const Source* found = s.WhereFound(o)) return found;
  const Origin* nan = guard::IsNan(o) ? s.Find(o) : nullptr;
  return nan ? nan->source : nullptr;
}

std::optional<int> IsOfValues(Session& s, PyObject* a, PyObject* b) {
  if (const auto answer = IsOfNewNumbers(s, a, b)) return answer;
  struct Found {
    const Source* source;
    Ref value;  // Of a symbol an equal one.
  };
  const auto found = [&](PyObject* o) -> Found {
    if (IsLazy(o)) return {reinterpret_cast<Lazy*>(o)->source, Borrow(reinterpret_cast<Lazy*>(o)->value)};
    const Source* source = FoundAt(o);
    if (!source) return {nullptr, Borrow(o)};
    if (IsSymInt(o)) return {source, Ref(PyLong_FromLongLong(s.env().Hint(reinterpret_cast<SymInt*>(o)->expr)))};
    const int64_t bits = s.env().Hint(shape::Int::Symbol(reinterpret_cast<SymFloat*>(o)->symbol));
    return {source, Ref(PyFloat_FromDouble(std::bit_cast<double>(bits)))};
  };
  Found p = found(a), q = found(b);
  PyObject *x = p.value.get(), *y = q.value.get();
  if (s.later || !IsValueObject(x) || Py_TYPE(x) != Py_TYPE(y)) return {};
  if (!p.source && !q.source) {
    // Values that are not equal are two objects, and what is one object in two places is guarded as that.
    if (!(PyObject_RichCompareBool(x, y, Py_EQ) == 1 || (guard::IsNan(x) && guard::IsNan(y)))) return {};
  }
  for (Found* f : {&p, &q})
    if (!f->source) f->source = ReadAt(s, f->value.get());
  if (!p.source && !q.source) return {};
  for (Found* f : {&p, &q}) {
    s.PinFound(f->value.get());
    if (x == y && f->source && IsLiteral(s, x)) s.guards().Is(f->source, x);
  }
  const bool same = p.source == q.source || x == y;
  if ((FoundAt(a) || FoundAt(b)) && !same && PyObject_RichCompareBool(x, y, Py_EQ) != 0)
    return s.Break(BreakId::kUnknownCall, "whether two equal numbers that change are one object"), -1;
  guard::Row row{same ? guard::Kind::kSameObject : guard::Kind::kDifferentObject,
                 p.source ? p.source : s.guards().Const(x), q.source ? q.source : s.guards().Const(y)};
  row.here = true;
  if (row.source != row.other) s.guards().Add(std::move(row));
  return same;
}

bool ComparesAsItIs(PyObject* key) {
  if (!PyTuple_CheckExact(key))
    return IsPrimitive(key) || guard::IsText(key) || (PyType_Check(key) && guard::ComparesByIdentity(key));
  PyObject* const* items = reinterpret_cast<PyTupleObject*>(key)->ob_item;
  return std::all_of(items, items + PyTuple_GET_SIZE(key), ComparesAsItIs);
}

bool IsListOrDeque(PyObject* o) {
  return PyList_CheckExact(o) || guard::IsDeque(o);
}

void PinNan(Session& s, PyObject* o) {
  if (!guard::IsNan(o)) return;
  if (const Origin* g = s.Find(o); g && g->source) s.guards().Is(g->source, o);
}

void NoteComparison(Session& s, PyObject* key) {
  for (Py_ssize_t i = 0; PyTuple_CheckExact(key) && i < PyTuple_GET_SIZE(key); ++i)
    NoteComparison(s, PyTuple_GET_ITEM(key, i));
  static PyObject* const names[] = {Interned("__eq__"), Interned("__hash__")};
  if (!(Py_TYPE(key)->tp_flags & Py_TPFLAGS_HEAPTYPE) || IsTensor(key)) return;
  for (PyObject* name : names) s.NoteLookup(Py_TYPE(key), name);
}

Ref TupleAsKey(Session& s, PyObject* key) {
  Ref all(PyTuple_New(PyTuple_GET_SIZE(key)));
  bool same = true;
  for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(key); ++i) {
    Ref item = s.AsKey(PyTuple_GET_ITEM(key, i));
    if (!item) return Ref();
    same = same && item.get() == PyTuple_GET_ITEM(key, i);
    PyTuple_SET_ITEM(all.get(), i, item.release());
  }
  return same ? Borrow(key) : std::move(all);
}

namespace {

PyObject* ReferenceTo(PyObject*, PyObject* o) {  // self is not used
  return PyWeakref_NewRef(o, nullptr);
}
PyMethodDef reference_to = {"weak_reference", ReferenceTo, METH_O, nullptr};

}  // namespace

PyObject* WeakReference(Session& s, PyObject* o) {
  static PyObject* const make = PyCFunction_New(&reference_to, nullptr);
  const Source* source = nullptr;
  if (IsTensor(o) && !IsWrapper(o)) {
    const int input = s.trace().tensors[s.pending().Original(AsTensor(o)->id)].input;
    o = input < 0 ? nullptr : s.input_tensors()[input];
    if (o) source = s.input_sources()[input];
  } else if (s.IsOutside(o) && !s.Find(o)->real) {
    source = s.SourceOf(o);
  }
  if (!source) return nullptr;
  Ref reference(PyWeakref_NewRef(o, nullptr));
  return reference ? s.FromOutside(reference.get(), s.guards().Child(SourceKind::kMember, source, 0, make)) : nullptr;
}

static bool IsWithin(PyObject* o, PyObject* tuple) {
  PyObject** const first = &PyTuple_GET_ITEM(tuple, 0);
  return std::any_of(first, first + PyTuple_GET_SIZE(tuple),
                     [o](PyObject* item) { return item == o || (PyTuple_CheckExact(item) && IsWithin(o, item)); });
}

bool IsLiteral(Session& s, PyObject* o) {
  const auto* items = PyTuple_CheckExact(o) ? &PyTuple_GET_ITEM(o, 0) : nullptr;
  const auto may = [](PyObject* x) { return IsPrimitive(x) || PyTuple_CheckExact(x); };
  if (items && !std::all_of(items, items + PyTuple_GET_SIZE(o), may)) return false;
  const auto in = [o](PyObject* code) { return IsWithin(o, reinterpret_cast<PyCodeObject*>(code)->co_consts); };
  if (s.root() && in(reinterpret_cast<PyObject*>(fj_code(s.root())))) return true;
  const std::vector<PyObject*> constants = s.guards().Constants();
  return std::any_of(constants.begin(), constants.end(), [&](PyObject* c) {
    return PyFunction_Check(c) ? in(PyFunction_GET_CODE(c)) : PyCode_Check(c) && in(c);
  });
}

}  // namespace framejit::capture
