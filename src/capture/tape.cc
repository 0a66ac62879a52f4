#include "capture/tape.h"

#include <algorithm>

#include "capture/builtins.h"
#include "capture/override.h"
#include "capture/overrides.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

PyObject* TapePart(const char* name) {  // of framejit._tape, kept for ever
  SuspendScope off;
  Ref module(tensor::Import("framejit._tape"));
  return module ? PyObject_GetAttrString(module.get(), name) : nullptr;
}

bool Wants(PyObject* stand_in) {
  SuspendScope off;
  Ref wants(stand_in ? PyObject_GetAttrString(stand_in, "requires_grad") : nullptr);
  PyErr_Clear();
  return wants.get() == Py_True;
}

}  // namespace

namespace {

// Of a guard: is the wrapper made as this form says? self: the form.
PyObject* SameForm(PyObject* self, PyObject* wrapper) {
  SuspendScope off;
  return PyObject_CallOneArg(self, wrapper);
}
PyMethodDef same_form = {"wrapper_form", SameForm, METH_O, nullptr};

}  // namespace

bool IsPull(PyObject* function) {
  static PyObject* pull = nullptr;
  if (!pull && Wrappers::seen) pull = TapePart("pull");
  PyErr_Clear();
  return pull && function == pull;
}

PyObject* Tape::Leave() {
  static PyObject* const leave = TapePart("leave");
  return leave;
}

thread_local Tape* Tape::now = nullptr;
thread_local const Session* Tape::asked = nullptr;

Tape::Tape(Session& s) : s_(s) {
  static PyObject* const make = TapePart("Tape");
  SuspendScope off;
  tape_ = Ref(make ? PyObject_CallNoArgs(make) : nullptr);
  if (!tape_) s.Break(BreakId::kSubclass, tensor::TakeErrorText());
}

namespace {

// Where captures have asked for a tape. The code lives on.
std::set<std::pair<PyObject*, int>>& Places() {
  static auto& places = *new std::set<std::pair<PyObject*, int>>;
  return places;
}

}  // namespace

TapeScope::TapeScope(Session& s, FjFrame* frame)
    : s_(s), place_(reinterpret_cast<PyObject*>(fj_code(frame)), fj_next(frame)), before_(Tape::now) {
  Tape::asked = nullptr;
  if (!Places().contains(place_)) return;
  tape_.emplace(s);
  Tape::now = &*tape_;
}

TapeScope::~TapeScope() {
  Tape::now = before_;
}

bool TapeScope::Again() {
  if (Tape::asked != &s_ || tape_) return false;
  if (Places().insert(place_).second) Py_INCREF(place_.first);
  return true;
}

bool Tape::Takes(PyObject* const* args, Py_ssize_t n) const {
  return std::any_of(args, args + n, [&](PyObject* o) {
    if (PyTuple_CheckExact(o)) return Takes(&PyTuple_GET_ITEM(o, 0), PyTuple_GET_SIZE(o));
    if (PyList_CheckExact(o)) return PyList_GET_SIZE(o) && Takes(&PyList_GET_ITEM(o, 0), PyList_GET_SIZE(o));
    return IsWrapper(o) || (IsTensor(o) && s_.meta(AsTensor(o)->id).framework == Framework::kTorch);
  });
}

PyObject* Tape::Call(PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  frame::Semantics* semantics = CurrentSemantics();
  const Modes& modes = s_.modes;
  if (!semantics || s_.vmap.open() || s_.later || s_.in_custom || modes.now.autocast.any())
    return s_.Break(BreakId::kSubclass, "gradients of wrappers under another mode");
  wrapping::Asking asking(s_, semantics);
  auto [all, named] = wrapping::Arguments(args, nargs, kwnames, [&](PyObject* o) { return asking.ToTorch(o); });
  if (!named) return s_.broken() || PyErr_Occurred() ? nullptr : s_.Break(BreakId::kSubclass, "an argument");
  Ref result;
  {
    SuspendScope off;
    result = Ref(PyObject_CallMethod(tape_.get(), "perform", "OOOOO", function, all.get(), named.get(),
                                     modes.now.grad ? Py_True : Py_False, modes.now.inference ? Py_True : Py_False));
  }
  if (s_.broken()) return PyErr_Clear(), s_.Break(s_.reason().id);
  if (!result) {
    std::string why = "an operation on wrappers that raises: " + tensor::TakeErrorText();
    return s_.Break(BreakId::kFrameworkError, why);
  }
  return asking.FromTorch(result.get(), true);
}

bool Tape::Tracked(PyObject* o) {
  if (!IsTensor(o) && !IsWrapper(o)) return false;
  return Wants(Made(o) ? o : known.StandIn(o));
}

bool Tape::IsLeaf(PyObject* o) {
  return std::any_of(leaves_.begin(), leaves_.end(), [&](const Ref& l) { return l.get() == o; });
}

void Tape::AddLeaf(PyObject* stand_in, PyObject* o) {
  SuspendScope off;
  Ref leaves(PyObject_GetAttrString(tape_.get(), "leaves"));
  if (leaves && PyList_Append(leaves.get(), stand_in) == 0) leaves_.push_back(Borrow(o));
}

Ref Tape::DoubleOf(wrapping::Asking& asking, PyObject* wrapper) {
  static PyObject* const make = TapePart("double");
  Ref form = FormFor(wrapper);
  const Source* source = s_.SourceOf(wrapper);
  if (!form || !make || !source) return PyErr_Clear(), s_.Break(BreakId::kSubclass, Py_TYPE(wrapper)->tp_name), Ref();
  Ref asks(PyCFunction_New(&same_form, form.get()));
  if (!asks) return {};
  s_.guards().Is(s_.guards().Child(SourceKind::kMember, source, 0, asks.get()), Py_True);
  Ref names(PyObject_GetAttrString(form.get(), "names"));
  std::vector<Ref> held;
  std::vector<PyObject*> given = {form.get(), wrapper};
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names.get()); ++i) {
    Ref inner(asking.semantics()->LoadAttr(wrapper, PyTuple_GET_ITEM(names.get(), i)));
    held.push_back(inner ? asking.ToTorch(inner.get()) : Ref());
    if (!held.back()) return {};
    given.push_back(held.back().get());
  }
  Ref made;
  {
    SuspendScope off;
    made = Ref(names ? PyObject_Vectorcall(make, given.data(), given.size(), nullptr) : nullptr);
  }
  if (s_.broken()) return PyErr_Clear(), s_.Break(s_.reason().id), Ref();
  if (!made)
    return s_.Break(BreakId::kSubclass, "a wrapper that cannot be made again: " + tensor::TakeErrorText()), Ref();
  known.Add(made, Borrow(wrapper));
  if (Wants(made.get())) AddLeaf(made.get(), wrapper);
  doubles_.emplace_back(made.get(), std::move(form));
  return made;
}

PyObject* Tape::Take(PyObject* wrapper) {
  Wrappers::seen = true;
  if (!made_.insert(wrapper).second) return Py_NewRef(wrapper);
  s_.Keep(Py_NewRef(wrapper));
  return s_.MarkFresh(Py_NewRef(wrapper));
}

PyObject* Tape::Attribute(PyObject* wrapper, PyObject* name, bool* found) {
  PyObject** dict = _PyObject_GetDictPtr(wrapper);
  PyObject* d = _PyType_Lookup(Py_TYPE(wrapper), name);
  *found = (d && Py_IS_TYPE(d, &PyMemberDescr_Type)) || (dict && *dict && PyDict_GetItemWithError(*dict, name));
  if (!*found) return nullptr;
  s_.NoteType(Py_TYPE(wrapper));
  Ref value;
  {
    SuspendScope off;
    value = Ref(PyObject_GetAttr(wrapper, name));
  }
  if (!value) return nullptr;
  wrapping::Asking asking(s_, CurrentSemantics());
  return asking.FromTorch(value.get(), false);
}

Ref Tape::FormFor(PyObject* wrapper) {
  static PyObject* const make = TapePart("Form");
  SuspendScope off;
  return Ref(make ? PyObject_CallOneArg(make, wrapper) : nullptr);
}

std::pair<Ref, Ref> Tape::FormOf(PyObject* wrapper) {
  Ref form = FormFor(wrapper), names(form ? PyObject_GetAttrString(form.get(), "names") : nullptr);
  Ref make(names ? PyObject_GetAttrString(form.get(), "make") : nullptr);
  const Py_ssize_t n = make ? PyTuple_GET_SIZE(names.get()) : 0;
  Ref inner(make ? PyTuple_New(n) : nullptr);
  for (Py_ssize_t i = 0; inner && i < n; ++i) {
    SuspendScope off;
    Ref one(PyObject_GetAttr(wrapper, PyTuple_GET_ITEM(names.get(), i)));
    PyObject* o = !one ? nullptr : Made(one.get()) ? one.get() : known.Behind(one.get());
    if (!o && one && tensor::IsWrapperClass(Py_TYPE(one.get()))) o = Ref(Take(one.get())).get();  // kept by the session
    if (!o) return {};
    PyTuple_SET_ITEM(inner.get(), i, Py_NewRef(o));
  }
  return {std::move(make), std::move(inner)};
}

namespace {

// The plain tensors in a result.
bool PlainIn(Tape& tape, PyObject* o, std::vector<PyObject*>* out) {
  if (IsTensor(o)) return out->push_back(o), true;
  auto [make, inner] = tape.FormOf(o);
  if (!inner) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inner.get()); ++i)
    if (!PlainIn(tape, PyTuple_GET_ITEM(inner.get(), i), out)) return false;
  return true;
}

Ref AsTuple(const std::vector<PyObject*>& all) {
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(all.size())));
  for (size_t i = 0; tuple && i < all.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(all[i]));
  return tuple;
}

}  // namespace

std::string Tape::Seal() {
  wrapping::Asking asking(s_, nullptr);
  if (!asking.NoteWrites()) return "a wrapper that is written: " + tensor::TakeErrorText();
  for (auto& [made, form] : doubles_) {
    SuspendScope off;
    Ref same(PyObject_CallOneArg(form.get(), made));
    if (same.get() != Py_True) return PyErr_Clear(), "a wrapper from outside is another one afterwards";
  }
  if (results.empty()) return "";
  // What leaves is no view to torch any more.
  std::vector<TraceId> bases;
  for (PyObject* o : results) {
    std::vector<PyObject*> all;
    if (!PlainIn(*this, o, &all)) return PyErr_Clear(), "a wrapper that cannot be made again";
    std::set<TraceId> own;
    for (PyObject* t : all) own.insert(s_.trace().tensors[AsTensor(t)->id].base);
    for (TraceId base : own) {
      if (s_.trace().tensors[base].input >= 0 || std::find(bases.begin(), bases.end(), base) != bases.end())
        return "a result of wrappers that has gradients and is a view";
      bases.push_back(base);
    }
  }
  Ref list(PyList_New(0));
  for (PyObject* o : results)
    if (!list || PyList_Append(list.get(), Made(o) ? o : known.StandIn(o)) < 0) return tensor::TakeErrorText();
  Ref plain;
  {
    SuspendScope off;
    plain = Ref(PyObject_CallMethod(tape_.get(), "seal", "O", list.get()));
  }
  if (!plain) return tensor::TakeErrorText();
  std::vector<PyObject*> kept, leaves;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(plain.get()); ++i) {
    kept.push_back(known.Behind(PyTuple_GET_ITEM(plain.get(), i)));
    if (!kept.back()) return "what a derivative of wrappers keeps";
  }
  for (const Ref& leaf : leaves_) leaves.push_back(leaf.get());
  Ref all = AsTuple(leaves), made = AsTuple(results), held = AsTuple(kept);
  leaving_ = Ref(all && made && held ? PyTuple_Pack(4, tape_.get(), all.get(), made.get(), held.get()) : nullptr);
  return leaving_ ? "" : tensor::TakeErrorText();
}

}  // namespace framejit::capture
