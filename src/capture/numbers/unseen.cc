// This file has the object of the framework that is there and of which a capture knows nothing else: the node behind a
// tensor's grad_fn, the address of its first element, the number that id() gives. A program may ask whether it is None,
// whether two addresses are equal, and which of the objects that it holds a number belongs to. Whatever else it asks,
// or does with it, ends the capture.
#include "capture/numbers/unseen.h"

#include <algorithm>
#include <new>
#include <optional>
#include <vector>

#include "capture/identity.h"
#include "capture/proxy.h"
#include "capture/session.h"

namespace framejit::capture {
namespace {

struct Unseen {
  PyObject_HEAD Session* session;
  const char* what;
  std::optional<TraceId> at;  // whose address it is
  PyObject* of;               // whose identity it is (the session keeps it), or kOther
};
// What stands for the objects of which capture does not know whether two are one: tensors, tuples.
PyObject* const kOther = reinterpret_cast<PyObject*>(&UnseenType);

std::vector<Unseen*>& Identities() {  // those that are alive
  thread_local std::vector<Unseen*> all;
  return all;
}
void Free(PyObject* o) {
  std::erase(Identities(), reinterpret_cast<Unseen*>(o));
  FreeStandIn(o);
}

std::nullptr_t Ask(PyObject* o) {
  auto* u = reinterpret_cast<Unseen*>(o);
  Session* s = Live(u->session, u->what);
  return s ? s->Break(u->of   ? BreakId::kUnknownOrigin
                      : u->at ? BreakId::kTensorItem
                              : BreakId::kAutogradCall,
                      u->what)
           : nullptr;
}
Py_hash_t Hash(PyObject* o) {
  auto* u = reinterpret_cast<Unseen*>(o);
  if (!u->of) return Ask(o), -1;
  if (!Live(u->session, u->what)) return -1;
  if (u->of == kOther) return 1;
  if (PyUnicode_CheckExact(u->of)) return PyObject_Hash(u->of);
  return IsPrimitive(u->of) ? 2 : static_cast<Py_hash_t>(reinterpret_cast<uintptr_t>(u->of) >> 4);
}
// What is made in the graph lies where nothing else lies, but for what is empty. Of two inputs nothing is known.
std::optional<int> LieTogether(Session& s, TraceId a, TraceId b) {
  if (a == b) return true;
  const std::vector<TraceTensor>& all = s.trace().tensors;
  const TraceId x = all[a].base, y = all[b].base;
  if (x == y || (all[x].input >= 0 && all[y].input >= 0)) return {};
  for (TraceId t : {a, b})
    if (s.env().Lt(shape::Int(0), shape::Product(s.meta(t).sizes))) return false;
  return {};
}
// Do two numbers that id() gave belong to one object? Nothing: that is not known, or -1 (a Break).
std::optional<int> AreOne(Session& s, PyObject* a, PyObject* b) {
  if (a == kOther && b == kOther) return {};
  if (a == kOther || b == kOther || !IsPrimitive(a) || !IsPrimitive(b)) return a == b;
  const std::optional<int> known = IsOfValues(s, a, b);
  return known ? known : a == b;
}
PyObject* Compare(PyObject* a, PyObject* b, int op) {
  if (IsUnseen(a) && IsUnseen(b) && (op == Py_EQ || op == Py_NE)) {
    const auto *u = reinterpret_cast<Unseen*>(a), *v = reinterpret_cast<Unseen*>(b);
    if (u->session == Session::Current() && v->session == u->session) {
      std::optional<int> same;
      if (u->of && v->of) same = AreOne(*u->session, u->of, v->of);
      if (u->at && v->at) same = LieTogether(*u->session, *u->at, *v->at);
      if (same) return *same < 0 ? nullptr : PyBool_FromLong(*same == (op == Py_EQ));
    }
  }
  if (b == Py_None && (op == Py_EQ || op == Py_NE)) return PyBool_FromLong(op == Py_NE);
  return Ask(IsUnseen(a) ? a : b);
}

PyObject* AskEither(PyObject* a, PyObject* b) {
  return Ask(IsUnseen(a) ? a : b);
}
PyObject* AskPower(PyObject* a, PyObject* b, PyObject*) {
  return AskEither(a, b);
}
PyNumberMethods as_number = {
    .nb_add = AskEither,
    .nb_subtract = AskEither,
    .nb_multiply = AskEither,
    .nb_remainder = AskEither,
    .nb_divmod = AskEither,
    .nb_power = AskPower,
    .nb_negative = Asks<Ask>::Unary,
    .nb_positive = Asks<Ask>::Unary,
    .nb_absolute = Asks<Ask>::Unary,
    .nb_invert = Asks<Ask>::Unary,
    .nb_lshift = AskEither,
    .nb_rshift = AskEither,
    .nb_and = AskEither,
    .nb_xor = AskEither,
    .nb_or = AskEither,
    .nb_int = Asks<Ask>::Unary,
    .nb_float = Asks<Ask>::Unary,
    .nb_floor_divide = AskEither,
    .nb_true_divide = AskEither,
    .nb_index = Asks<Ask>::Unary,
};

}  // namespace

PyTypeObject UnseenType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.Unseen",
    .tp_basicsize = sizeof(Unseen),
    .tp_dealloc = Free,
    .tp_repr = Asks<Ask>::Unary,
    .tp_as_number = &as_number,
    .tp_hash = Hash,
    .tp_str = Asks<Ask>::Unary,
    .tp_getattro = Asks<Ask>::Binary,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_richcompare = Compare,
};

PyObject* NewUnseen(Session& s, const char* what) {
  auto* u = PyObject_New(Unseen, &UnseenType);
  if (!u) return nullptr;
  u->session = &s;
  u->what = what;
  u->of = nullptr;
  new (&u->at) std::optional<TraceId>();
  return s.MarkFresh(reinterpret_cast<PyObject*>(u));
}

PyObject* NewAddress(Session& s, TraceId tensor) {
  PyObject* address = NewUnseen(s, "the address of a tensor");
  if (address) reinterpret_cast<Unseen*>(address)->at = tensor;
  return address;
}

PyObject* NewIdentity(Session& s, PyObject* o) {
  constexpr size_t kMost = 4096;
  std::vector<Unseen*>& all = Identities();
  const bool kept = PyList_Check(o) || PyDict_Check(o) || PyAnySet_Check(o) || PyFunction_Check(o) ||
                    (PyType_HasFeature(Py_TYPE(o), Py_TPFLAGS_HEAPTYPE) && !PyType_Check(o) && !PyTuple_Check(o));
  if (all.size() >= kMost) return nullptr;
  if (kept) {
    const Origin* origin = s.IsPrivate(o) ? s.Find(o) : nullptr;
    if (!origin || origin->source || origin->real) return nullptr;  // it stands for one from outside, or is a cache's
  } else if (!IsPrimitive(o)) {
    o = kOther;
  } else if (!PyUnicode_CheckExact(o) && !PyBytes_CheckExact(o) && !PyLong_CheckExact(o) && !PyFloat_CheckExact(o) &&
             o != Py_None && !PyBool_Check(o)) {
    return nullptr;  // numbers that change
  }
  Unseen* known = nullptr;
  for (Unseen* u : all) {
    if (u->session != &s) continue;
    if (!u->of || u->of == kOther) continue;
    if (u->of == o) known = u;
    // The session has one reference to each. An object that nobody else has is gone, and the new one may lie there.
    if (u->of != o && Py_REFCNT(u) > 1 && Py_REFCNT(u->of) == 1) return nullptr;
  }
  if (known) return Py_NewRef(reinterpret_cast<PyObject*>(known));
  PyObject* identity = NewUnseen(s, "id() of an object made here");
  if (!identity) return nullptr;
  if (!kept && o != kOther) s.Keep(Py_NewRef(o));
  reinterpret_cast<Unseen*>(identity)->of = o;
  all.push_back(reinterpret_cast<Unseen*>(identity));
  return identity;
}

PyObject* IdentifiedBy(PyObject* unseen) {
  PyObject* of = reinterpret_cast<Unseen*>(unseen)->of;
  return of && of != kOther && Py_REFCNT(of) > 1 ? of : nullptr;
}

std::nullptr_t AskUnseen(PyObject* unseen) {
  return Ask(unseen);
}

}  // namespace framejit::capture
