// What the state of the thread is to captured code: gradients on or off, autocast, default devices, switches of the
// framework, NumPy's error state, context variables. The session keeps it; what lasts becomes real when the segment
// runs.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capture/builtins.h"
#include "capture/pending.h"
#include "capture/ref.h"
#include "framejit/call.h"

namespace framejit::capture {

class Session;

// A function of the framework that reads or sets such state, by the last part of its name in torch. Nothing: with these
// arguments it is a function like any other. Null: an exception.
using Answered = std::optional<PyObject*>;
struct StateFunction {
  std::string_view name;
  Answered (*answer)(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n);
};

// Switches of torch._C that Python code sets for a while (switches.cc).
class Switches {
 public:
  Answered Answer(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n);
  bool Fit(Session& s, Callee callee, bool cuda) const;  // False (Break): a changed one matters.
  std::vector<PendingCall> AtExit() const;

 private:
  struct Row {
    std::string_view get, set;
    bool alone;  // Does setting it change no other switch?
    bool attention = false;
  };
  static const Row kRows[];
  struct Changed {  // What it was at the entry, and what it is for the program.
    const Row* row;
    Ref key, entry, now;
  };
  Ref Now(Session& s, const Row& row, PyObject* key) const;
  bool Set(Session& s, const Row& row, PyObject* const* args, Py_ssize_t n);
  std::vector<Changed> changed_;
  std::vector<PendingCall> calls_;
};

// NumPy's error state, a ContextVar that numpy.errstate sets: it is really set while capturing. All calls on NumPy's
// arrays are made in one state.
class NumpyErrors {
 public:
  bool Note(Session& s);  // Asked before such a call. It is false after a Break: the state is another, or sees more.
  bool Noted() const;     // Was a call made in the state of now?
  int traps() const;      // The traps of the calls made, or those of now if none was.
  PyObject* Call(Session& s, PyObject* var, std::string_view method, PyObject* const* args,
                 Py_ssize_t n);  // Any method but get().
  void Leave();
  bool entered() const { return entry_ >= 0; }    // Has the program set a state?
  bool open() const { return !before_.empty(); }  // Is a state of the program's set now?
 private:
  PyObject* Set(Session& s, PyObject* var, PyObject* state);
  std::vector<Ref> before_;   // The tokens that go back to the states before.
  std::optional<int> traps_;  // The traps under which arrays were computed with.
  int entry_ = -1;            // The state before the program set its first one.
};

struct Modes {
  Modes();  // Reads the modes of this thread.
  ModeState now;
  const ModeState entry;
  int autocast_depth;                        // The number of open regions of autocast.
  std::vector<std::string> default_devices;  // where tensors are made that name no device: the caller's, then scopes
  std::set<std::string> numpy_devices;       // The devices under which NumPy's functions were called.
  Switches switches;
  NumpyErrors numpy;
  std::unordered_map<PyObject*, Ref> context_vars;  // The values that the capture has set ContextVars to.
  int overrides_off = 0;                            // Open scopes in which no __torch_function__ is asked.
  int warning_scopes = 0;                           // Open scopes of warnings.catch_warnings; what warns breaks.
  std::string StillOpen() const;                    // Why no segment may begin behind this place; empty if one may.
};

// What a function that reads or sets a mode answers; nothing for any other function.
Answered ThreadState(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n);
// The device with its number, for torch: "cuda" is the thread's current one, which is asked for again.
std::string NumberedDevice(Session& s, std::string device);
// torch's switches that are read (get/is/has) or only count API usage.
Effect SwitchEffect(Callee name);
// A stand-in for an object of torch whose __enter__ and __exit__ set a mode of the thread: torch._C._InferenceMode(on)
// and the like. Null without an error: `type` is another class.
PyObject* ModeScope(Session& s, PyTypeObject* type, PyObject* const* args, Py_ssize_t n);
bool IsModeScope(PyTypeObject* type);
// Answers var.get(...), var.set(...) and var.reset(...).
PyObject* ContextVarCall(Session& s, PyObject* var, std::string_view method, PyObject* const* args, Py_ssize_t n);
bool IsCodeOf(PyCodeObject* code, std::string_view package);  // Is this the code of one of the package's functions?
bool IsCodeOf(PyFrameObject* frame, std::string_view package);
bool ReadyModes();  // once, at module initialisation

}  // namespace framejit::capture
