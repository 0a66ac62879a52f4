#include "capture/wrappers/tape.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "capture/builtins.h"
#include "capture/override.h"
#include "capture/policy/skipped.h"
#include "capture/wrappers/overrides.h"
#include "guard/versions.h"

namespace framejit::capture {
namespace {

bool Wants(PyObject* stand_in) {
  SuspendScope off;
  Ref wants(stand_in ? PyObject_GetAttrString(stand_in, "requires_grad") : nullptr);
  PyErr_Clear();
  return wants.get() == Py_True;
}

}  // namespace

namespace {

// Of a guard: is the wrapper made as this form says? self: a framejit._tape.Form.
PyObject* SameForm(PyObject* self, PyObject* wrapper) {
  SuspendScope off;
  return PyObject_CallOneArg(self, wrapper);
}
PyMethodDef same_form = {"wrapper_form", SameForm, METH_O, nullptr};

}  // namespace

bool MadeInC(PyTypeObject* type) {
  static PyObject* const name = PyUnicode_InternFromString("__new__");
  if (!tensor::IsWrapperClass(type)) return false;
  PyObject* make = _PyType_Lookup(type, name);
  return make && !Py_IS_TYPE(make, &PyStaticMethod_Type) && !PyFunction_Check(make);
}

bool IsMethodOfC(PyObject* function) {
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  if (RunsAroundWrappers(reinterpret_cast<PyCodeObject*>(f->func_code))) return true;
  struct Known {  // the names of functions that were asked for last
    Ref name, first;
  };
  static auto& known = *new std::array<Known, 64>;  // it must outlive the interpreter
  Known& k = known[reinterpret_cast<uintptr_t>(f->func_qualname) / sizeof(PyObject) % known.size()];
  if (k.name.get() != f->func_qualname) {
    const char* name = PyUnicode_AsUTF8(f->func_qualname);
    const char* end = name ? strchr(name, '.') : nullptr;
    Ref first(end ? PyUnicode_FromStringAndSize(name, end - name) : nullptr);
    if (end && !first) return PyErr_Clear(), false;
    PyErr_Clear();
    const Known before = std::exchange(k, {Borrow(f->func_qualname), std::move(first)});
  }
  PyObject* type = k.first ? PyDict_GetItemWithError(f->func_globals, k.first.get()) : nullptr;
  return type && PyType_Check(type) && MadeInC(reinterpret_cast<PyTypeObject*>(type));
}

bool IsPull(PyObject* function) {
  static PyObject* pull = nullptr;
  if (!pull && Wrappers::seen) pull = FromModule("framejit._tape", "pull");
  PyErr_Clear();
  return pull && function == pull;
}

bool HasSymbols(PyObject* tape) {
  SuspendScope off;
  Ref symbolic(PyObject_GetAttrString(tape, "symbolic"));
  PyErr_Clear();
  return symbolic.get() == Py_True;
}

PyObject* Tape::Leave() {
  static PyObject* const leave = FromModule("framejit._tape", "leave");
  return leave;
}

thread_local Tape* Tape::now = nullptr;
thread_local const Session* Tape::asked = nullptr;
thread_local bool Tape::keeps_sizes = false;

Tape::Tape(Session& s) : s_(s) {
  static PyObject* const make = FromModule("framejit._tape", "Tape");
  PyObject* knows = wrapping::Part("knows_its_sizes");  // which forms ask
  SuspendScope off;
  tape_ = Ref(make && knows ? PyObject_CallNoArgs(make) : nullptr);
  if (!tape_) s.Break(BreakId::kSubclass, tensor::TakeErrorText());
}

TapeScope::TapeScope(Session& s, bool* wanted) : s_(s), wanted_(wanted), before_(Tape::now) {
  Tape::asked = nullptr;
  if (!*wanted) return;
  tape_.emplace(s);
  Tape::now = &*tape_;
}

TapeScope::~TapeScope() {
  if (tape_) tape_->End();
  Tape::now = before_;
}

bool TapeScope::Again() {
  if (Tape::asked != &s_ || tape_) return false;
  return *wanted_ = true;
}

bool Tape::Takes(PyObject* const* args, Py_ssize_t n) const {
  return std::any_of(args, args + n, [&](PyObject* o) {
    if (PyTuple_CheckExact(o)) return Takes(&PyTuple_GET_ITEM(o, 0), PyTuple_GET_SIZE(o));
    if (PyList_CheckExact(o)) return PyList_GET_SIZE(o) && Takes(&PyList_GET_ITEM(o, 0), PyList_GET_SIZE(o));
    return IsWrapper(o) || (IsTensor(o) && s_.meta(AsTensor(o)->id).framework == Framework::kTorch);
  });
}

bool Tape::Refuse(const char* what) {
  Ref refused(PyObject_GetAttrString(tape_.get(), "refused"));
  const bool effect = refused && PyTuple_Check(refused.get());
  PyObject* text = effect ? PyTuple_GET_ITEM(refused.get(), 0) : refused.get();
  std::string why = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : "";
  const std::string error = tensor::TakeErrorText();
  if (effect) return s_.Break(BreakId::kSideEffect, why), false;
  if (!why.empty()) return s_.Break(BreakId::kSubclass, why), false;
  return s_.Break(BreakId::kFrameworkError, std::string(what) + ": " + error), false;
}

bool Tape::Prepare(PyObject* function, PyObject* args, PyObject* kwargs) {
  Ref owners;
  {
    SuspendScope off;
    owners = Ref(PyObject_CallMethod(tape_.get(), "prepare", "OOO", function, args, kwargs));
  }
  if (!owners) return Refuse("the code of a class of wrappers");
  const PendingEffects& pending = s_.pending();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(owners.get()); ++i) {
    PyObject* o = PyTuple_GET_ITEM(owners.get(), i);
    PyObject* dict = PyType_Check(o) ? guard::TypeDict(reinterpret_cast<PyTypeObject*>(o)) : o;
    if (pending.Writes(o) || pending.Writes(dict))
      return s_.Break(BreakId::kSideEffect, "what a class of wrappers reads is written before"), false;
  }
  return true;
}

namespace {

// Guards for one entry of framejit._reads.Reads: (kind, owner, name, value).
class ReadGuards {
 public:
  ReadGuards(Session& s, PyObject* missing) : s_(s), guards_(s.guards()), missing_(missing) {}

  bool Add(PyObject* entry) {
    const std::string_view kind = PyUnicode_AsUTF8(PyTuple_GET_ITEM(entry, 0));
    PyObject *owner = PyTuple_GET_ITEM(entry, 1), *name = PyTuple_GET_ITEM(entry, 2),
             *value = PyTuple_GET_ITEM(entry, 3);
    if (kind == "abstract") return s_.NoteAbstract();
    const Source* at = guards_.Const(owner);
    if (kind == "item") {
      Value(guards_.Child(SourceKind::kDictItem, at, 0, name), value);
    } else if (kind == "cell") {
      Value(guards_.Child(SourceKind::kCell, at), value);
    } else if (kind == "asked") {  // of a function, and of a class
      Value(guards_.Child(SourceKind::kMember, at, 0, name), value);
    } else if (kind == "function") {
      guards_.Function(at, reinterpret_cast<PyFunctionObject*>(owner));
    } else if (kind == "list") {
      List(at, value);
    } else if (kind == "dict") {
      Dict(at, value);
    } else if (kind == "set") {
      Row(guard::Kind::kKeys, at, Ref(PySequence_Tuple(owner)));
    } else if (kind == "object") {
      Dict(guards_.Child(SourceKind::kInstanceDict, at), value);
    } else {
      if (kind == "class") Row(guard::Kind::kTypeVersion, at, Borrow(owner));
      guards_.TypeIs(at, Py_TYPE(owner));  // of an object, and of a class
    }
    return true;
  }

 private:
  void Row(guard::Kind kind, const Source* at, const Ref& object) {
    guard::Row row{kind, at};
    row.object = object.get();
    guards_.Add(std::move(row));
  }
  void Value(const Source* at, PyObject* value) {
    if (value == missing_) return guards_.Absent(at);
    const bool plain = PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value) ||
                       PyBytes_CheckExact(value);
    plain ? guards_.Equal(at, value) : guards_.Is(at, value);
  }
  void List(const Source* at, PyObject* items) {
    guard::Row row{guard::Kind::kLength, at};
    row.number = PyList_GET_SIZE(items);
    guards_.Add(std::move(row));
    for (int i = 0; i < PyList_GET_SIZE(items); ++i)
      Value(guards_.Child(SourceKind::kItem, at, i), PyList_GET_ITEM(items, i));
  }
  void Dict(const Source* at, PyObject* dict) {
    Row(guard::Kind::kKeys, at, Ref(PySequence_Tuple(dict)));
    PyObject *key, *value;
    for (Py_ssize_t i = 0; PyDict_Next(dict, &i, &key, &value);)
      Value(guards_.Child(SourceKind::kDictItem, at, 0, key), value);
  }

  Session& s_;
  guard::GuardBuilder& guards_;
  PyObject* const missing_;
};

}  // namespace

bool Tape::GuardReads() {
  static PyObject* const missing = FromModule("framejit._reads", "MISSING");
  Ref reads(PyObject_GetAttrString(tape_.get(), "reads")),
      entries(reads && missing ? PyObject_GetAttrString(reads.get(), "entries") : nullptr);
  if (!entries) return false;
  ReadGuards all(s_, missing);
  for (; guarded_ < PyList_GET_SIZE(entries.get()); ++guarded_)
    if (!all.Add(PyList_GET_ITEM(entries.get(), guarded_))) return false;
  return true;
}

PyObject* Tape::Call(PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  frame::Semantics* semantics = CurrentSemantics();
  const Modes& modes = s_.modes;
  if (!semantics || s_.vmap.open() || s_.later || s_.in_custom || modes.now.autocast.any())
    return s_.Break(BreakId::kSubclass, "gradients of wrappers under another mode");
  wrapping::Asking asking(s_, semantics);
  auto [all, named] = wrapping::Arguments(args, nargs, kwnames, [&](PyObject* o) { return asking.ToTorch(o); });
  if (!named) return s_.broken() || PyErr_Occurred() ? nullptr : s_.Break(BreakId::kSubclass, "an argument");
  if (!Prepare(function, all.get(), named.get())) return nullptr;
  Ref result;
  {
    SuspendScope off;
    result = Ref(PyObject_CallMethod(tape_.get(), "perform", "OOOOO", function, all.get(), named.get(),
                                     modes.now.grad ? Py_True : Py_False, modes.now.inference ? Py_True : Py_False));
  }
  if (s_.broken()) return PyErr_Clear(), s_.Break(s_.reason().id);
  if (!result) s_.symbols_refused |= asking.symbolic;
  if (!result) return Refuse("an operation on wrappers that raises"), nullptr;
  if (!GuardReads()) return nullptr;
  return asking.FromTorch(result.get(), true);
}

Ref Tape::Symbol(PyObject* number) {
  SuspendScope off;
  return Ref(PyObject_CallMethod(tape_.get(), "symbol", "O", number));
}

void Tape::End() {
  tensor::SavedError saved;
  SuspendScope off;
  Ref ended(tape_ ? PyObject_CallMethod(tape_.get(), "end", nullptr) : nullptr);
  PyErr_Clear();
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
  Ref none(PyTuple_New(0)), unnamed(PyDict_New());
  if (!none || !unnamed) return {};
  if (!Prepare(reinterpret_cast<PyObject*>(Py_TYPE(wrapper)), none.get(), unnamed.get())) return {};
  Ref form = FormFor(wrapper);
  const Source* source = s_.SourceOf(wrapper);
  if (!form || !source) return PyErr_Clear(), s_.Break(BreakId::kSubclass, Py_TYPE(wrapper)->tp_name), Ref();
  Ref asks(PyCFunction_New(&same_form, form.get()));
  if (!asks) return {};
  s_.guards().Is(s_.guards().Child(SourceKind::kMember, source, 0, asks.get()), Py_True);
  Ref names(PyObject_GetAttrString(form.get(), "names"));
  if (symbolic) {
    SuspendScope off;
    Ref opened(PyObject_CallMethod(tape_.get(), "open", "O", wrapper));
    if (!opened) return Refuse("a wrapper that cannot be made again"), Ref();
  }
  std::vector<Ref> held;
  static PyObject* const make = PyUnicode_InternFromString("double");
  std::vector<PyObject*> given = {tape_.get(), form.get(), wrapper};
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names.get()); ++i) {
    Ref inner(asking.semantics()->LoadAttr(wrapper, PyTuple_GET_ITEM(names.get(), i)));
    held.push_back(inner ? asking.ToTorch(inner.get()) : Ref());
    if (!held.back()) return {};
    given.push_back(held.back().get());
  }
  Ref made;
  {
    SuspendScope off;
    made = Ref(names ? PyObject_VectorcallMethod(make, given.data(), given.size(), nullptr) : nullptr);
  }
  if (s_.broken()) return PyErr_Clear(), s_.Break(s_.reason().id), Ref();
  if (!made) return Refuse("a wrapper that cannot be made again"), Ref();
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
  static PyObject* const make = FromModule("framejit._tape", "Form");
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

// May torch call a result of this kind a view? What has no elements, or none that gradients go to, is none.
bool MayBeView(const TensorMeta& m) {
  return (IsFloat(m.dtype) || IsComplex(m.dtype)) &&
         std::none_of(m.sizes.begin(), m.sizes.end(), [](const shape::Int& n) { return n == shape::Int(0); });
}

// Collects the plain tensors in a result.
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

// A wrapper or a result whose memory is kept: torch refuses the backward pass if it is written until then. Of results
// the tape is told the numbers.
std::vector<PyObject*> Tape::Watched(const std::vector<PyObject*>& kept) {
  std::set<TraceId> bases;
  for (PyObject* t : kept) bases.insert(s_.trace().tensors[AsTensor(t)->id].base);
  const auto holds = [&](PyObject* o) {
    std::vector<PyObject*> all;
    PlainIn(*this, o, &all);
    return std::any_of(all.begin(), all.end(),
                       [&](PyObject* t) { return bases.contains(s_.trace().tensors[AsTensor(t)->id].base); });
  };
  std::vector<PyObject*> watched;
  for (auto& [made, form] : doubles_)
    if (PyObject* o = known.Behind(made); o && holds(made)) watched.push_back(o);
  Ref numbers(PyList_New(0));
  for (size_t i = 0; numbers && i < results.size(); ++i) {
    Ref number(holds(results[i]) ? PyLong_FromSize_t(i) : nullptr);
    if (number) PyList_Append(numbers.get(), number.get());
  }
  SuspendScope off;
  if (numbers) PyObject_SetAttrString(tape_.get(), "watched", numbers.get());
  return watched;
}

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
    for (PyObject* t : all)
      if (MayBeView(s_.meta(AsTensor(t)->id))) own.insert(s_.trace().tensors[AsTensor(t)->id].base);
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
  const std::vector<PyObject*> watched = Watched(kept);
  Ref all = AsTuple(leaves), made = AsTuple(results), held = AsTuple(kept), seen = AsTuple(watched), numbers;
  {
    SuspendScope off;
    numbers = Ref(PyObject_GetAttrString(tape_.get(), "values"));
  }
  leaving_ = Ref(all && made && held && seen && numbers
                     ? PyTuple_Pack(6, tape_.get(), all.get(), made.get(), held.get(), seen.get(), numbers.get())
                     : nullptr);
  return leaving_ ? "" : tensor::TakeErrorText();
}

}  // namespace framejit::capture
