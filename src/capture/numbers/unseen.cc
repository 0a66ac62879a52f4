// This file has the object of the framework that is there and of which a capture knows nothing else: the node behind a
// tensor's grad_fn, the address of its first element. A program may ask whether it is None, and whether two addresses
// are equal. Whatever else it asks, or does with it, ends the capture.
#include "capture/numbers/unseen.h"

#include <new>
#include <optional>

#include "capture/proxy.h"
#include "capture/session.h"

namespace framejit::capture {
namespace {

struct Unseen {
  PyObject_HEAD Session* session;
  const char* what;
  std::optional<TraceId> at;  // whose address it is
};

std::nullptr_t Ask(PyObject* o) {
  auto* u = reinterpret_cast<Unseen*>(o);
  Session* s = Live(u->session, u->what);
  return s ? s->Break(u->at ? BreakId::kTensorItem : BreakId::kAutogradCall, u->what) : nullptr;
}
// What is made in the graph lies where nothing else lies, but for what is empty. Of two inputs nothing is known.
std::optional<bool> LieTogether(Session& s, TraceId a, TraceId b) {
  if (a == b) return true;
  const std::vector<TraceTensor>& all = s.trace().tensors;
  const TraceId x = all[a].base, y = all[b].base;
  if (x == y || (all[x].input >= 0 && all[y].input >= 0)) return {};
  for (TraceId t : {a, b})
    if (s.env().Lt(shape::Int(0), shape::Product(s.meta(t).sizes))) return false;
  return {};
}
PyObject* Compare(PyObject* a, PyObject* b, int op) {
  if (IsUnseen(a) && IsUnseen(b) && (op == Py_EQ || op == Py_NE)) {
    const auto *u = reinterpret_cast<Unseen*>(a), *v = reinterpret_cast<Unseen*>(b);
    if (u->session == Session::Current() && v->session == u->session && u->at && v->at)
      if (const std::optional<bool> same = LieTogether(*u->session, *u->at, *v->at))
        return PyBool_FromLong(*same == (op == Py_EQ));
  }
  if (b == Py_None && (op == Py_EQ || op == Py_NE)) return PyBool_FromLong(op == Py_NE);
  return Ask(IsUnseen(a) ? a : b);
}

}  // namespace

PyTypeObject UnseenType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.Unseen",
    .tp_basicsize = sizeof(Unseen),
    .tp_dealloc = FreeStandIn,
    .tp_repr = Asks<Ask>::Unary,
    .tp_hash = Asks<Ask>::Hash,
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
  new (&u->at) std::optional<TraceId>();
  return s.MarkFresh(reinterpret_cast<PyObject*>(u));
}

PyObject* NewAddress(Session& s, TraceId tensor) {
  PyObject* address = NewUnseen(s, "the address of a tensor");
  if (address) reinterpret_cast<Unseen*>(address)->at = tensor;
  return address;
}

std::nullptr_t AskUnseen(PyObject* unseen) {
  return Ask(unseen);
}

}  // namespace framejit::capture
