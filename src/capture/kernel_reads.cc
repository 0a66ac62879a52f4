#include "capture/kernel_reads.h"

#include <algorithm>
#include <utility>

#include "capture/kernel_watch.h"
#include "capture/override.h"
#include "capture/own_attributes.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "guard/versions.h"

namespace framejit::capture {
namespace {

bool SameText(PyObject* a, PyObject* b) {
  return a == b || (PyUnicode_Check(a) && PyUnicode_Check(b) && PyUnicode_Compare(a, b) == 0);
}

// Nothing of the program's watches the calls of this thread for a while: kernels are looked for by sys.setprofile,
// which cannot put back what C code has set.
class Unwatched {
 public:
  Unwatched() : function_(PyThreadState_Get()->c_profilefunc), object_(Borrow(PyThreadState_Get()->c_profileobj)) {
    if (function_) PyEval_SetProfile(nullptr, nullptr);
  }
  ~Unwatched() {
    if (function_) PyEval_SetProfile(function_, object_.get());
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;

 private:
  Py_tracefunc function_;
  Ref object_;
};

}  // namespace

PyObject* CompositeOf(PyObject* op) {
  static PyObject* const composite_of = FromModule("framejit._kernels", "composite_of");
  SuspendScope off;
  Unwatched quiet;
  return composite_of ? PyObject_CallOneArg(composite_of, op) : nullptr;
}

KernelReads::Memory KernelReads::MemoryOf(PyObject* tensor) {
  static PyObject* const memory_of = FromModule("framejit._kernels", "memory_of");
  SuspendScope off;
  Ref told(memory_of ? PyObject_CallOneArg(memory_of, tensor) : nullptr);
  unsigned long long begin = 0, end = 0;
  if (!told || !PyArg_ParseTuple(told.get(), "KK", &begin, &end)) PyErr_Clear();
  return {begin, end};
}

bool KernelReads::Meet(const std::vector<Memory>& all, Memory m) {
  return std::any_of(all.begin(), all.end(), [&](Memory x) { return m.begin < x.end && x.begin < m.end; });
}

bool KernelReads::ChangedMemory(PyObject* tensor) const {
  asked_ = true;
  return !changed_memory_.empty() && Meet(changed_memory_, MemoryOf(tensor));
}

bool KernelReads::Add(Session& s, PyObject* op, const std::vector<PyObject*>& given) {
  static PyObject* const reached = FromModule("framejit._kernels", "reached");
  Ref told;
  {
    SuspendScope off;
    Unwatched quiet;
    Ref tensors(PyTuple_New(static_cast<Py_ssize_t>(given.size())));
    for (size_t i = 0; tensors && i < given.size(); ++i)
      PyTuple_SET_ITEM(tensors.get(), static_cast<Py_ssize_t>(i), Py_NewRef(given[i]));
    told = Ref(reached && tensors ? PyObject_CallFunctionObjArgs(reached, op, tensors.get(), nullptr) : nullptr);
  }
  PyObject *places, *memory, *names;
  KernelWatch::Reached watched;
  int everything, changes, draws, writes, keeps, keeps_given;
  if (!told || !PyArg_ParseTuple(told.get(), "ppppppOOOO!O!O!O!", &everything, &changes, &draws, &writes, &keeps,
                                 &keeps_given, &places, &memory, &names, &PyTuple_Type, &watched.places, &PyTuple_Type,
                                 &watched.held, &PyTuple_Type, &watched.own, &PyTuple_Type, &watched.tensors))
    return false;
  const bool moves = KernelWatch::Moves(op);
  everything |= moves;
  watched.writes = writes != 0;
  writes_ |= watched.writes;
  if (!moves) {
    watches_.push_back(KernelWatch::Of(op, watched));
    if (!watches_.back()) return false;
  }
  kept_.push_back(Borrow(told.get()));
  kept_.push_back(Borrow(op));
  everything_ |= everything != 0;
  all_changed_ |= everything && changes;
  keeps_ |= keeps != 0;
  bool stores = everything && changes;
  all_names_ |= names == Py_None;
  draws_ |= draws != 0;
  if (names != Py_None) {
    Ref all(PySequence_List(names));
    for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all.get()); ++i) names_.insert(PyList_GET_ITEM(all.get(), i));
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(memory); ++i) {
    unsigned long long begin, end;
    int changed;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(memory, i), "KKp", &begin, &end, &changed)) return false;
    read_memory_.push_back({begin, end});
    if (changed) changed_memory_.push_back({begin, end});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); ++i) {
    PyObject *owner, *name, *changed;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(places, i), "OOO", &owner, &name, &changed)) return false;
    places_.push_back({owner, name == Py_None ? nullptr : name});
    if (changed == Py_None) continue;
    stores = true;
    if (const Origin* g = s.Find(owner); g && g->IsGoneThrough())
      return s.Break(BreakId::kSideEffect, "an operator in Python that may change what is gone through"), false;
    auto [at, added] = changed_.try_emplace(owner);
    if (changed == Py_True && name == Py_None) {
      at->second.clear();
    } else if (added || !at->second.empty()) {
      Ref all(changed == Py_True ? PyTuple_Pack(1, name) : PySequence_Tuple(changed));
      if (!all) return false;
      for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(all.get()); ++k) at->second.push_back(PyTuple_GET_ITEM(all.get(), k));
    }
  }
  if (keeps_given && stores) keeping_.insert(op);
  return true;
}

bool KernelReads::ReadsWhatWaits(Session& s, const std::vector<PyObject*>& tensors) const {
  const PendingEffects& pending = s.pending();
  if (everything_ && !pending.Empty()) return true;
  for (const TraceTensor& t : s.trace().tensors)
    if (t.mutated && t.input >= 0 && (everything_ || Meet(read_memory_, MemoryOf(s.input_tensors()[t.input]))))
      return true;
  for (const auto& [id, attributes] : pending.attributes) {
    const int input = s.trace().tensors[pending.Original(id)].input;
    if (input >= 0 && Meet(read_memory_, MemoryOf(s.input_tensors()[input]))) return true;
  }
  for (PyObject* t : tensors) {
    const TraceId id = AsTensor(t)->id;
    const int input = s.trace().tensors[pending.Original(id)].input;
    const TraceTensor& base = s.trace().tensors[s.trace().tensors[id].base];
    if (MayKeep() && base.mutated && base.input >= 0) return true;
    PyObject** dict = input < 0 ? nullptr : _PyObject_GetDictPtr(s.input_tensors()[input]);
    const bool written = pending.attributes.contains(id) || (dict && *dict && pending.Has(*dict));
    if (!written) continue;
    if (all_names_) return true;
    auto read = [&](PyObject* name) {
      return std::any_of(names_.begin(), names_.end(), [&](PyObject* n) { return SameText(n, name); });
    };
    bool named = false;
    EachAttribute(pending, [&](TraceId of, PyObject* name, PyObject*) { named |= of == id && read(name); });
    if (named) return true;
    for (const PendingStore& st : pending.stores())
      if (dict && st.dict.get() == *dict && read(st.key.get())) return true;
  }
  if (pending.Empty()) return false;
  return std::any_of(places_.begin(), places_.end(), [&](const Place& p) {
    PyObject* value;
    if (p.name) return pending.Find(p.owner, p.name, &value) > 0;
    PyObject* dict = PyType_Check(p.owner) ? guard::TypeDict(reinterpret_cast<PyTypeObject*>(p.owner)) : nullptr;
    return pending.Writes(p.owner) || (dict && pending.Writes(dict));
  });
}

bool KernelReads::Call(Session& s, PyObject* op, const std::vector<PyObject*>& tensors) {
  std::vector<PyObject*> given;  // what hangs on these is reached, too
  for (PyObject* t : tensors) {
    const int input = s.trace().tensors[s.pending().Original(AsTensor(t)->id)].input;
    PyObject** dict = input < 0 ? nullptr : _PyObject_GetDictPtr(s.input_tensors()[input]);
    if (dict && *dict && PyDict_GET_SIZE(*dict) > 0) given.push_back(s.input_tensors()[input]);
  }
  std::vector<PyObject*> call = given;
  call.push_back(op);
  if (called_.insert(std::move(call)).second && !Add(s, op, given)) return false;
  asked_ &= std::exchange(begun_, true);
  if (ReadsWhatWaits(s, tensors))
    return s.Break(BreakId::kSideEffect, "an operator in Python behind a write that it may read"), false;
  behind_ |= !s.pending().Empty() || !s.pending().attributes.empty() ||
             std::any_of(s.trace().tensors.begin(), s.trace().tensors.end(),
                         [](const TraceTensor& t) { return t.mutated && t.input >= 0; });
  if (draws_ && !s.draws.empty())
    return s.Break(BreakId::kSideEffect, "an operator in Python that draws behind random numbers of the program's"),
           false;
  for (PyObject* input : s.input_tensors())
    if (!changed_memory_.empty() && Meet(changed_memory_, MemoryOf(input)))
      return s.Break(BreakId::kSideEffect, "an operator in Python that may write to a tensor that was read"), false;
  return true;
}

void KernelReads::Lend(Session& s, const std::vector<PyObject*>& tensors) const {
  for (PyObject* t : tensors)
    if (MayKeep()) s.lowering().Lend(AsTensor(t)->id);
}

void KernelReads::Separate(Session& s, PyObject* owner, PyObject* key, const Source* source, bool written) {
  if (!source || source->kind == SourceKind::kConst || !(written ? behind_ : !changed_.empty())) return;
  const bool meets =
      written ? std::any_of(places_.begin(), places_.end(),
                            [&](const Place& p) { return !p.name || !key || SameText(p.name, key); })
              : std::any_of(changed_.begin(), changed_.end(), [&](const auto& c) { return MayChange(c.first, key); });
  for (const Ref& watch : watches_)
    if (meets) KernelWatch::AddUnreached(s, watch.get(), source, owner);
}

void KernelReads::AddGuards(Session& s) {
  if (!behind_ && !(asked_ && (!changed_.empty() || writes_))) return;
  for (const Ref& watch : watches_) {
    KernelWatch::AddGuard(s, watch.get());
    for (const TraceTensor& t : s.trace().tensors)
      if (t.input >= 0 && (t.mutated || writes_)) KernelWatch::AddApart(s, watch.get(), t.input);
  }
}

bool KernelReads::MayChange(PyObject* owner, PyObject* key) const {
  const auto at = changed_.find(owner);
  if (at == changed_.end()) return false;
  return at->second.empty() || !key ||
         std::any_of(at->second.begin(), at->second.end(), [&](PyObject* name) { return SameText(name, key); });
}

bool KernelReads::ChangedClass(PyTypeObject* type, PyObject* name) const {
  asked_ = true;
  if (all_changed_) return true;
  for (Py_ssize_t i = 0; !changed_.empty() && i < PyTuple_GET_SIZE(type->tp_mro); ++i)
    if (MayChange(PyTuple_GET_ITEM(type->tp_mro, i), name)) return true;
  return false;
}

static constexpr const char kChanged[] = "what an operator in Python may have changed is read behind it";

bool Session::Unchanged(PyObject* owner, PyObject* key) {
  return !kernels.Changed(owner, key) || (Break(BreakId::kSideEffect, kChanged), false);
}

bool Session::UnchangedClass(PyTypeObject* type, PyObject* name) {
  return !kernels.ChangedClass(type, name) || (Break(BreakId::kSideEffect, kChanged), false);
}

}  // namespace framejit::capture
