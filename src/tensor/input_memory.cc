// Memory that inputs of calls get from the program (`x.data = u`), in a call or behind it: what passes must know of it.
#include <algorithm>

#include "tensor/overrides.h"
#include "tensor/segment_node.h"
#include "tensor/torch_api.h"
#include "tensor/undo.h"

namespace framejit::tensor {

// Calls that this is an input of, through which a pass may come, each with its number there.
static void EachCall(PyObject* tensor, absl::FunctionRef<void(CallState*, int)> f) {
  for (CallState* s = NewestCall(); s; s = s->older) {
    if (!s->inputs || (s->freed && std::find(s->spent->begin(), s->spent->end(), false) == s->spent->end())) continue;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(s->inputs); ++i)
      if (PyTuple_GET_ITEM(s->inputs, i) == tensor) f(s, static_cast<int>(i));
  }
}
static bool IsAwaited(PyObject* tensor) {
  bool any = false;
  EachCall(tensor, [&](CallState*, int) { any = true; });
  return any;
}

void KeepContent(PyObject* tensor) {
  if (!IsAwaited(tensor)) return;
  SavedError error;
  OverridesOff own;
  static PyObject* const shown = ResolveCallee("framejit._gradients.shown");
  Ref content, before;
  EachCall(tensor, [&](CallState* s, int i) {
    if (!before && s->shown && s->shown->contains(i)) before = s->shown->at(i);
  });
  EachCall(tensor, [&](CallState* s, int i) {
    if ((s->former && s->former->contains(i)) || (s->shown && s->shown->contains(i))) return;
    PyObject* const args[] = {tensor, before ? before.get() : Py_None};
    if (!content) content = Ref(shown ? PyObject_Vectorcall(shown, args, 2, nullptr) : nullptr);
    if (!content) return PyErr_Clear();
    if (!s->shown) s->shown = new std::map<int, Ref>();
    s->shown->emplace(i, content);
  });
}

void KeepMemory(PyObject* tensor) {
  for (CallState* s = NewestCall(); s; s = s->older) {
    if (!s->rebound) continue;
    for (auto& [input, own] : *s->rebound) {
      if (own.object.get() != tensor || own.times-- > 0 || own.former) continue;
      SavedError error;
      OverridesOff as_it_is;
      own.former = Ref(PyObject_CallMethodNoArgs(tensor, Interned(kDetach)));
      PyErr_Clear();
    }
  }
  if (!IsAwaited(tensor)) return;
  SavedError error;
  OverridesOff own;
  const Ref former(PyObject_CallMethodNoArgs(tensor, Interned(kDetach)));
  if (!former) return PyErr_Clear();
  EachCall(tensor, [&](CallState* s, int i) {
    if (!s->former) s->former = new std::map<int, Ref>();
    s->former->emplace(i, former);
  });
}

void EachInput(absl::FunctionRef<void(PyObject*)> take) {
  for (CallState* s = NewestCall(); s; s = s->older)
    for (Py_ssize_t i = 0; s->inputs && i < PyTuple_GET_SIZE(s->inputs); ++i) take(PyTuple_GET_ITEM(s->inputs, i));
}

PyObject* GivesMemory::Give(PyObject* tensor, PyObject* value) {
  Ref had(PyObject_CallMethodNoArgs(tensor, Interned(kDetach)));
  auto at = expected_.find(tensor);
  if (at != expected_.end() && --at->second.first == 0) {
    PyObject* memory = at->second.second.get();
    Ref same(PyObject_CallMethod(Torch()->module, "equal", "OO", memory, value));
    if (!same) return nullptr;
    if (same.get() != Py_True) {  // what is computed of it here was computed before that
      written_.emplace_back(Ref::Borrow(memory), Ref(PyObject_CallMethod(memory, "clone", nullptr)));
      if (!written_.back().second || !Overwrite(memory, value, false)) return nullptr;
    }
    value = memory;
  }
  if (!had || PyObject_SetAttr(tensor, Interned(kData), value) < 0) return nullptr;
  had_.emplace_back(Ref::Borrow(tensor), std::move(had));
  return Py_NewRef(tensor);
}

bool GivesMemory::PutBack() {
  for (auto& [memory, content] : written_)
    if (!Overwrite(memory.get(), content.get(), false)) return false;
  written_.clear();
  return true;
}

void GivesMemory::TakeBack() {
  SavedError error;
  for (auto h = had_.rbegin(); h != had_.rend(); ++h)
    if (GiveData(h->first.get(), h->second.get()) < 0) PyErr_Clear();
}

void NoteDetached(PyObject* tensor) {
  for (CallState* s = NewestCall(); s; s = s->older)
    for (auto& [result, inner] : *s->retained)
      if (Ref(PyObject_CallNoArgs(inner.weak.get())).get() == tensor) inner.detached = true;
}

}  // namespace framejit::tensor
