#include "capture/late_reads.h"

#include <algorithm>

#include "capture/checkpoint.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "guard/program.h"
#include "guard/source.h"

namespace framejit::capture {
namespace {

// The way from an object that is held to what was read.
struct Way {
  struct Leg {
    guard::SourceKind kind;
    int index;
    Ref object;
  };
  Ref root, value;
  std::vector<Leg> legs;
  std::string text;

  PyObject* Now() const {
    PyObject* at = root.get();
    for (const Leg& leg : legs) {
      if (at && guard::IsThreadLocal(Py_TYPE(at))) return value.get();  // a pass may run on another thread
      guard::MemberCache member;
      guard::KeyList keys;
      if (at) at = guard::Step(leg.kind, leg.index, leg.object.get(), at, nullptr, &member, &keys);
    }
    return at;
  }
  bool Changed() const {
    PyObject* now = Now();
    if (now == value.get()) return false;
    if (!now || Py_TYPE(now) != Py_TYPE(value.get()) || !IsPrimitive(now)) return true;
    return PyObject_RichCompareBool(now, value.get(), Py_EQ) != 1 && !(guard::IsNan(now) && guard::IsNan(value.get()));
  }
};

Way WayTo(const guard::Source* source, PyObject* value) {
  Way way{.value = Ref::Borrow(value), .text = source->str()};
  for (; source->base; source = source->base)
    way.legs.push_back({source->kind, source->index, Ref::Borrow(source->object)});
  std::reverse(way.legs.begin(), way.legs.end());
  way.root = Ref::Borrow(source->object);
  return way;
}

}  // namespace

void NoteClassNumber(Session& s, PyTypeObject* type, PyObject* name, PyObject* value) {
  if (!s.in_custom || s.later || !IsPrimitive(value)) return;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    if (IsSteady(base) || PyDict_GetItemWithError(guard::TypeDict(base), name) != value) continue;
    for (PyObject* o : {name, value}) s.Keep(Py_NewRef(o));
    s.late_numbers.try_emplace({base, name}, value);
    return;
  }
}

void NoteReadByCheckpoint(Session& s, PyObject* o, const guard::Source* source) {
  if (!InCheckpoint() || s.later || source->kind == SourceKind::kConst) return;
  const guard::Source* root = source;
  for (; root->base; root = root->base)
    if (root->kind == SourceKind::kAnswer || root->kind == SourceKind::kContextVar) return;
  if (root->kind != SourceKind::kConst || !root->object) return;
  if (OfSteadyModule(PyFunction_Check(root->object) ? PyFunction_GET_GLOBALS(root->object) : root->object)) return;
  s.Keep(Py_NewRef(o));
  s.read_by_checkpoints.try_emplace(source, o);
  if (!PyFunction_Check(o)) return;
  static PyObject* const name = Interned("__code__");
  PyObject* code = PyFunction_GET_CODE(o);
  s.Keep(Py_NewRef(code));
  s.read_by_checkpoints.try_emplace(s.guards().Child(SourceKind::kMember, source, 0, name), code);
}

void NoteLate(const Session& s, tensor::Training* t) {
  for (const auto& [source, value] : s.late)
    t->late.push_back({Ref::Borrow(source->base->object), Ref::Borrow(source->object), Ref::Borrow(value)});
  const auto code_of = [&](PyObject* value) {
    if (value && PyFunction_Check(value))
      t->late.push_back({Ref::Borrow(value), Ref(), Ref::Borrow(PyFunction_GET_CODE(value))});
  };
  for (const auto& [source, value] : s.late) code_of(value);
  for (const auto& [at, value] : s.late_numbers)
    t->late.push_back({Ref::Borrow(reinterpret_cast<PyObject*>(at.first)), Ref::Borrow(at.second), Ref::Borrow(value)});
  if (!s.read_by_checkpoints.empty()) {
    auto ways = std::make_shared<std::vector<Way>>();
    for (const auto& [source, value] : s.read_by_checkpoints) ways->push_back(WayTo(source, value));
    t->read_by_checkpoints = [ways]() -> const std::string* {
      const auto at = std::find_if(ways->begin(), ways->end(), [](const Way& way) { return way.Changed(); });
      return at == ways->end() ? nullptr : &at->text;
    };
  }
  for (PyTypeObject* type : s.late_classes)
    t->late_classes.push_back(
        {Ref::Borrow(reinterpret_cast<PyObject*>(type)), tensor::Training::FunctionsOf(type), type->tp_version_tag});
}

}  // namespace framejit::capture
