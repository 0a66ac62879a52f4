#include "capture/kernel_watch.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture/session.h"
#include "guard/source.h"
#include "guard/versions.h"
#include "tensor/tensor.h"

namespace framejit::capture {
namespace {

constexpr int kPatience = 3;  // captures that a place may cost which leads to something new again and again

// An object, or another one that lives no longer than it: weak where that may be.
class Held {
 public:
  explicit Held(PyObject* o) : ref_(PyType_SUPPORTS_WEAKREFS(Py_TYPE(o)) ? PyWeakref_NewRef(o, nullptr) : nullptr) {
    weak_ = !!ref_;
    if (!ref_) PyErr_Clear(), ref_ = Borrow(o);
  }
  bool dead() const { return weak_ && PyWeakref_GET_OBJECT(ref_.get()) == Py_None; }
  PyObject* get() const { return weak_ ? PyWeakref_GET_OBJECT(ref_.get()) : ref_.get(); }  // None if it is dead
  PyObject* strong() const { return weak_ ? nullptr : ref_.get(); }

 private:
  Ref ref_;
  bool weak_;
};

struct Place {
  std::string kind;
  Held owner;
  Ref name;
};

struct Reach {
  Ref op;
  std::vector<Place> places;
  std::unordered_map<PyObject*, Held> known;
  std::vector<Held> tensors;
  bool writes, memory = false, failed = false;  // memory: what lies in tensors must stay apart from inputs
};

struct Watch {
  PyObject_HEAD Reach* reach;
};

std::unordered_map<PyObject*, int>& Failures() {
  static auto* const failures = new std::unordered_map<PyObject*, int>();  // of operators, which live on
  return *failures;
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  const Reach* r = reinterpret_cast<Watch*>(self)->reach;
  for (const Place& p : r->places) Py_VISIT(p.owner.strong());
  for (const auto& [o, held] : r->known) Py_VISIT(held.strong());
  for (const Held& t : r->tensors) Py_VISIT(t.strong());
  return 0;
}

int Clear(PyObject* self) {
  Reach* r = reinterpret_cast<Watch*>(self)->reach;
  const auto places = std::exchange(r->places, {});
  const auto known = std::exchange(r->known, {});
  const auto tensors = std::exchange(r->tensors, {});
  return 0;
}

void Dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  delete reinterpret_cast<Watch*>(self)->reach;
  PyObject_GC_Del(self);
}

PyTypeObject* WatchType() {
  static PyTypeObject type = [] {
    PyTypeObject t{PyVarObject_HEAD_INIT(nullptr, 0)};
    t.tp_name = "framejit.KernelWatch";
    t.tp_basicsize = sizeof(Watch);
    t.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
    t.tp_traverse = Traverse;
    t.tp_clear = Clear;
    t.tp_dealloc = Dealloc;
    return t;
  }();
  static const int ready = PyType_Ready(&type);
  return ready == 0 ? &type : nullptr;
}

// Does it lead to nothing that the kernel did not reach when the graph was captured?
bool Known(const Reach* r, PyObject* o) {
  if (!o || o == Py_None || PyBool_Check(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) ||
      PyComplex_CheckExact(o) || PyUnicode_CheckExact(o) || PyBytes_CheckExact(o))
    return true;
  if (const auto at = r->known.find(o); at != r->known.end() && !at->second.dead()) return true;
  if (PyTuple_CheckExact(o)) {
    PyObject** items = reinterpret_cast<PyTupleObject*>(o)->ob_item;
    return std::all_of(items, items + PyTuple_GET_SIZE(o), [&](PyObject* x) { return Known(r, x); });
  }
  if (r->writes || r->memory || tensor::Classify(o) == tensor::Class::kNone) return false;
  PyObject** dict = _PyObject_GetDictPtr(o);
  return !dict || !*dict || PyDict_GET_SIZE(*dict) == 0;
}

bool AllKnown(const Reach* r, PyObject* dict) {
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &value);)
    if (!Known(r, key) || !Known(r, value)) return false;
  return true;
}

int Visit(PyObject* o, void* reach) {
  return PyType_Check(o) || Known(static_cast<const Reach*>(reach), o) ? 0 : 1;
}

// Is all known that is at this place now?
bool SamePlace(const Reach* r, std::string_view kind, PyObject* owner, PyObject* name) {
  if (kind == "item") return Known(r, guard::DictLookup(owner, name));
  if (kind == "cell") return Known(r, PyCell_GET(owner));
  if (kind == "class") return AllKnown(r, guard::TypeDict(reinterpret_cast<PyTypeObject*>(owner)));
  if (kind == "function") {
    auto* f = reinterpret_cast<PyFunctionObject*>(owner);
    return Known(r, f->func_code) && Known(r, f->func_defaults) && Known(r, f->func_kwdefaults);
  }
  if (PyDict_Check(owner)) return AllKnown(r, owner);
  if (kind == "object") {
    PyObject** dict = _PyObject_GetDictPtr(owner);
    Ref made(dict ? nullptr : PyObject_GenericGetDict(owner, nullptr));
    if (!dict && !made) PyErr_Clear();
    PyObject* of = dict ? *dict : made.get();
    return Known(r, reinterpret_cast<PyObject*>(Py_TYPE(owner))) && (!of || AllKnown(r, of));
  }
  const auto traverse = Py_TYPE(owner)->tp_traverse;
  return !traverse || traverse(owner, Visit, const_cast<Reach*>(r)) == 0;
}

PyObject* AllAsKnown(PyObject* self, PyObject*) {
  Reach* r = reinterpret_cast<Watch*>(self)->reach;
  for (const Place& p : r->places) {
    if (p.owner.dead() || SamePlace(r, p.kind, p.owner.get(), p.name.get())) continue;
    if (!std::exchange(r->failed, true)) ++Failures()[r->op.get()];
    Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

bool Meets(const Reach* r, PyObject* tensor) {
  tensor::Meta a, b;
  if (!tensor::ReadForGuard(tensor, &a)) return true;
  const auto end = [](const tensor::Meta& m) { return static_cast<const char*>(m.data) + m.nbytes_extent; };
  return std::any_of(r->tensors.begin(), r->tensors.end(), [&](const Held& t) {
    return !t.dead() && tensor::ReadForGuard(t.get(), &b) && a.low < end(b) && b.low < end(a);
  });
}

PyObject* IsApart(PyObject* self, PyObject* tensor) {
  return PyBool_FromLong(!Meets(reinterpret_cast<Watch*>(self)->reach, tensor));
}

PyObject* IsUnreached(PyObject* self, PyObject* o) {
  const Reach* r = reinterpret_cast<Watch*>(self)->reach;
  const auto at = r->known.find(o);
  return PyBool_FromLong(at == r->known.end() || at->second.dead());
}

PyMethodDef is_unreached = {"not_reached_by_kernel", IsUnreached, METH_O, nullptr};
PyMethodDef all_as_known = {"kernel_reaches_the_same", AllAsKnown, METH_O, nullptr};
PyMethodDef is_apart = {"apart_from_kernel", IsApart, METH_O, nullptr};

}  // namespace

Ref KernelWatch::Of(PyObject* op, const Reached& reached) {
  PyTypeObject* type = WatchType();
  Watch* w = type ? PyObject_GC_New(Watch, type) : nullptr;
  if (!w) return {};
  auto* r = w->reach = new Reach{.op = Borrow(op), .writes = reached.writes};
  const auto items = [](PyObject* tuple) {
    PyObject** begin = reinterpret_cast<PyTupleObject*>(tuple)->ob_item;
    return std::span<PyObject*>(begin, PyTuple_GET_SIZE(tuple));
  };
  for (PyObject* p : items(reached.places)) {
    PyObject* const* place = items(p).data();
    r->places.push_back({PyUnicode_AsUTF8(place[0]), Held(place[1]), Borrow(place[2])});
  }
  for (PyObject* o : items(reached.held)) r->known.try_emplace(o, o);
  for (size_t i = 0; i + 1 < items(reached.own).size(); i += 2)
    r->known.try_emplace(items(reached.own)[i], items(reached.own)[i + 1]);
  for (PyObject* t : items(reached.tensors)) r->tensors.emplace_back(t);
  PyObject_GC_Track(reinterpret_cast<PyObject*>(w));
  return Ref(reinterpret_cast<PyObject*>(w));
}

bool KernelWatch::Moves(PyObject* op) {
  const auto at = Failures().find(op);
  return at != Failures().end() && at->second >= kPatience;
}

void KernelWatch::AddGuard(Session& s, PyObject* watch) {
  Ref asks(PyCFunction_New(&all_as_known, watch));
  if (asks) s.guards().Is(s.guards().Child(SourceKind::kMember, s.guards().Const(watch), 0, asks.get()), Py_True);
}

void KernelWatch::AddUnreached(Session& s, PyObject* watch, const Source* source, PyObject* owner) {
  if (reinterpret_cast<Watch*>(watch)->reach->known.contains(owner)) return s.guards().Is(source, owner);
  Ref asks(PyCFunction_New(&is_unreached, watch));
  if (asks) s.guards().Is(s.guards().Child(SourceKind::kMember, source, 0, asks.get()), Py_True);
}

void KernelWatch::AddApart(Session& s, PyObject* watch, int input) {
  Ref asks(PyCFunction_New(&is_apart, watch));
  Reach* r = reinterpret_cast<Watch*>(watch)->reach;
  r->memory = true;
  if (!asks || r->tensors.empty() || Meets(r, s.input_tensors()[input])) return;
  s.guards().Is(s.guards().Child(SourceKind::kMember, s.input_sources()[input], 0, asks.get()), Py_True);
}

}  // namespace framejit::capture
