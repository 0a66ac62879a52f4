#include "capture/late_reads.h"

#include <algorithm>
#include <initializer_list>

#include "capture/checkpoint.h"
#include "capture/session.h"
#include "guard/source.h"
#include "guard/versions.h"

namespace framejit::capture {

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

void NoteForwardInCheckpoint(const Session& s, const guard::Source* source) {
  using guard::SourceKind;
  const auto is = [](const guard::Source* at, std::initializer_list<SourceKind> kinds) {
    return std::find(kinds.begin(), kinds.end(), at->kind) != kinds.end();
  };
  if (s.later || !InCheckpoint() || !is(source, {SourceKind::kDictItem, SourceKind::kItem, SourceKind::kMember}) ||
      is(source->base, {SourceKind::kDefaults, SourceKind::kKwDefaults, SourceKind::kConst}))
    return;  // what is read of a module is put back
  LeaveCheckpoints("a function with a gradient of its own reads a number of an object");
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
  for (PyTypeObject* type : s.late_classes)
    t->late_classes.push_back(
        {Ref::Borrow(reinterpret_cast<PyObject*>(type)), tensor::Training::FunctionsOf(type), type->tp_version_tag});
}

}  // namespace framejit::capture
