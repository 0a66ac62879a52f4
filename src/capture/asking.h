// A call that torch makes on stand-ins while its operations are captured (wrappers.h). asking.cc: what goes in and out
// of torch; wrapper_gradients.cc: what gradients go through.
#pragma once

#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capture/override.h"
#include "capture/wrappers.h"

namespace framejit::capture::wrapping {

PyObject* Part(const char* name);  // of framejit._wrappers; borrowed, null with an error
MadeWrapper* Made(Session& s, PyObject* o);
bool Tracked(const MadeWrapper* made);  // made with gradients

// Which parts of the dispatcher are on for the thread.
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

  // The object as torch may have it. Null: Break, or an error.
  Ref ToTorch(PyObject* o);
  // What stands for what torch has. New reference; result: of the whole call.
  PyObject* FromTorch(PyObject* o, bool result);
  // An operation that reaches the classes, or is one on tensors beside them.
  PyObject* Operation(PyObject* func, PyObject* args, PyObject* kwargs);
  bool NoteWrites();  // to wrappers from outside. False: an error
  // Of an operation, as torch may have it. New reference.
  PyObject* Answer(PyObject* func, PyObject* o);
  // A call with tensors that gradients go to is captured like a torch.autograd.Function. Its backward is what torch
  // does with the stand-ins of its results.
  bool tracks() const { return !leaves_.empty(); }
  void Begin() { s_.lowering().BeginCustom(&custom_); }
  // An argument, as framejit._wrappers.Again makes it again where torch replays the call. Null: Break, or an error.
  Ref Recipe(PyObject* o);
  bool Differentiate(PyObject* result,
                     PyObject* again);  // the results stand for others then. False: Break, or an error
  Session& session() { return s_; }
  frame::Semantics* semantics() { return semantics_; }
  const Keys before = Keys::Now();  // the call: so what is captured is looked at
  Keys within;                      // an operation of it: so a call inside of that is made
  bool symbolic = false;            // torch was given symbols
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
  Known& known_;                                       // of the tape, if there is one
  std::vector<std::pair<PyObject*, TraceId>> leaves_;  // stand-ins of tensors that gradients go to
  std::vector<Arg> slots_;                             // tensors and symbols of the recipes
  surface::Lowering::Custom custom_;
  bool answering_ = false;
};

// The arguments of a call as torch may have them: (positional, keywords). Empty: Break, or an error.
std::pair<Ref, Ref> ForTorch(Asking& asking, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
// A call that torch breaks down into operations, on stand-ins. New reference; null: Break, or an error.
PyObject* CallDispatch(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
// How torch makes a call again: framejit._wrappers.Again. Null: Break, or an error.
Ref HowAgain(Asking& asking, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace framejit::capture::wrapping
