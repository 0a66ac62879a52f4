// A call that torch makes on stand-ins while its operations are captured (wrappers.h). asking.cc: what goes in and out
// of torch; wrapper_gradients.cc: what gradients go through.
#pragma once

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "capture/override.h"
#include "capture/wrappers/wrappers.h"

namespace framejit::capture::wrapping {

PyObject* Part(const char* name);  // The object of this name in framejit._wrappers: borrowed, null with an error.
// The arguments of a call as a tuple and a dict, each as `convert` gives it. Where it gives null for one, both are
// null.
std::pair<Ref, Ref> Arguments(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                              absl::FunctionRef<Ref(PyObject*)> convert);
MadeWrapper* Made(Session& s, PyObject* o);
bool Tracked(const MadeWrapper* made);  // Was it made with requires_grad=True?

// Which dispatch keys of torch the thread includes and excludes.
struct Keys {
  Ref include, exclude;
  static Keys Now() {
    static PyObject* const include = tensor::ResolveCallee("torch._C._dispatch_tls_local_include_set");
    static PyObject* const exclude = tensor::ResolveCallee("torch._C._dispatch_tls_local_exclude_set");
    return {Ref(include ? PyObject_CallNoArgs(include) : nullptr),
            Ref(exclude ? PyObject_CallNoArgs(exclude) : nullptr)};
  }
  bool known() const { return include && exclude; }
};

class KeyScope {
 public:
  explicit KeyScope(const Keys& keys) {
    static PyObject* const type = tensor::ResolveCallee("torch._C._ForceDispatchKeyGuard");
    scope_ =
        Ref(type && keys.known() ? PyObject_CallFunctionObjArgs(type, keys.include.get(), keys.exclude.get(), nullptr)
                                 : nullptr);
    Ref entered(scope_ ? PyObject_CallMethod(scope_.get(), "__enter__", nullptr) : nullptr);
    if (!entered) scope_ = Ref();
  }
  ~KeyScope() {
    if (!scope_) return;
    tensor::SavedError saved;
    Ref left(PyObject_CallMethod(scope_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    PyErr_Clear();
  }
  KeyScope(const KeyScope&) = delete;
  bool on() const { return static_cast<bool>(scope_); }

 private:
  Ref scope_;
};

// What stands for what: stand-ins, or wrappers around them, and objects of the program. The first of several stand-ins
// is what torch is given.
class Known {
 public:
  void Add(Ref stand_in, Ref o) {
    behind_[stand_in.get()] = pairs_.size();
    stands_.try_emplace(o.get(), pairs_.size());
    pairs_.emplace_back(std::move(stand_in), std::move(o));
  }
  PyObject* Behind(PyObject* stand_in) const {
    const auto at = behind_.find(stand_in);
    return at == behind_.end() ? nullptr : pairs_[at->second].second.get();
  }
  PyObject* StandIn(PyObject* o) const {
    const auto at = stands_.find(o);
    return at == stands_.end() ? nullptr : pairs_[at->second].first.get();
  }
  void Show(PyObject* stand_in, Ref now) {  // from now on it stands for that
    stands_.try_emplace(now.get(), behind_.at(stand_in));
    pairs_[behind_.at(stand_in)].second = std::move(now);
  }
  const std::vector<std::pair<Ref, Ref>>& pairs() const { return pairs_; }

 private:
  std::vector<std::pair<Ref, Ref>> pairs_;
  std::unordered_map<PyObject*, size_t> behind_, stands_;
};

// A call that torch makes on stand-ins while its operations are captured.
class Asking {
 public:
  Asking(Session& s, frame::Semantics* semantics);
  ~Asking() { current = outer_; }
  Asking(const Asking&) = delete;
  static thread_local Asking* current;

  // Gives what torch may be handed in place of the object. It is null after a Break or with an error.
  Ref ToTorch(PyObject* o);
  // Gives what captured code has for an object of torch, as a new reference. `result`: it is the whole call's result.
  PyObject* FromTorch(PyObject* o, bool result);
  // Captures an operation that torch hands to the classes, or one on ordinary tensors beside wrappers.
  PyObject* Operation(PyObject* func, PyObject* args, PyObject* kwargs);
  bool NoteWrites();  // Notes what the call wrote to wrappers from outside. False: an error.
  PyObject* Answer(PyObject* func, PyObject* o);  // An operation's result, as torch may have it: a new reference.
  // A call with tensors that gradients go to is captured like a torch.autograd.Function. Its backward is what torch
  // does with the stand-ins of its results.
  bool tracks() const { return !leaves_.empty(); }
  void Begin() { s_.lowering().BeginCustom(&custom_); }
  // Gives what framejit._wrappers.Again makes the argument of where torch replays the call. Null: Break, or an error.
  Ref Recipe(PyObject* o);
  bool Differentiate(PyObject* result,
                     PyObject* again);  // Afterwards the results stand for other tensors. False: Break or an error.
  Session& session() { return s_; }
  frame::Semantics* semantics() { return semantics_; }
  const Keys before = Keys::Now();  // The dispatch keys before the call: captured code runs under these.
  Keys within;                      // The keys inside of an operation: calls that it makes run under these.
  bool symbolic = false;            // Has torch been given a size that is a symbol?
  Asking* outer() { return outer_; }

 private:
  Ref StandInOf(PyObject* o);
  Ref Items(PyObject* o);
  PyObject* ViewOf(PyObject* stand_in, PyObject* o);
  PyObject* Distinct(PyObject* func, PyObject* o);
  PyObject* NumberTensor(PyObject* o);
  Ref Number(shape::Int n);
  Ref MadeAgain(PyObject* wrapper);
  Ref NamedRecipes(PyObject* dict);
  bool Differentiable(PyObject* o, std::vector<PyObject*>* stand_ins, std::vector<TraceId>* results);
  Ref Derivative(const std::vector<PyObject*>& stand_ins, const std::vector<TraceId>& results);

  Session& s_;
  frame::Semantics* const semantics_;
  Asking* const outer_;
  Known own_;
  Known& known_;                                       // The tape's, if there is one.
  std::vector<std::pair<PyObject*, TraceId>> leaves_;  // The stand-ins of tensors that gradients go to.
  std::vector<Arg> slots_;                             // The tensors and symbols that the recipes name.
  surface::Lowering::Custom custom_;
  bool answering_ = false;
};

// A call that torch breaks down into operations, on stand-ins: a new reference. It is null after a Break or with an
// error.
PyObject* CallDispatch(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
// An object of framejit._wrappers.Again, which makes this call once more. It is null after a Break or with an error.
Ref HowAgain(Asking& asking, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace framejit::capture::wrapping
