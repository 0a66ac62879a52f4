#include "capture/late_reads.h"

#include "capture/session.h"

namespace framejit::capture {

void NoteLate(const Session& s, tensor::Training* t) {
  for (const auto& [source, value] : s.late)
    t->late.push_back({Ref::Borrow(source->base->object), Ref::Borrow(source->object), Ref::Borrow(value)});
  for (PyTypeObject* type : s.late_classes)
    t->late_classes.push_back(
        {Ref::Borrow(reinterpret_cast<PyObject*>(type)), tensor::Training::FunctionsOf(type), type->tp_version_tag});
}

}  // namespace framejit::capture
