#include "capture/only_computes.h"

#include <algorithm>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "capture/override.h"
#include "capture/policy/skipped.h"
#include "capture/semantics.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

// The sessions around those of this file, innermost first.
struct Around {
  Session& s;
  Around* const before;
  explicit Around(Session& session) : s(session), before(now) { now = this; }
  ~Around() { now = before; }
  Around(const Around&) = delete;
  static thread_local Around* now;
};
thread_local Around* Around::now = nullptr;

bool WritesInputs(Session& s) {
  const auto& all = s.trace().tensors;
  return std::any_of(all.begin(), all.end(), [](const TraceTensor& t) { return t.mutated && t.input >= 0; });
}

bool HasCall(Session& s, uint32_t effects) {
  const auto& calls = s.trace().calls;
  return std::any_of(calls.begin(), calls.end(), [&](const Call& c) { return c.callee.Has(effects); });
}

// May a tensor from outside hold, or be, something else by now for the program than it is for Python?
bool ChangesTensors(Session& s) {
  const PendingEffects& p = s.pending();
  return WritesInputs(s) || HasCall(s, kWritesInSilence | kForeign) || !p.rebound.empty() || !p.replaced.empty() ||
         !p.stopped.empty() || !p.hooked.empty() || !p.grads.empty() || !p.attributes.empty() || !p.retains.empty();
}

// What the state of the thread is for the program and not for Python.
std::string SetState(Session& s) {
  const Modes& modes = s.modes;
  if (std::string open = modes.StillOpen(); !open.empty()) return open;
  if (!(modes.now == modes.entry)) return "a mode of the framework was set";
  if (!modes.switches.AtExit().empty()) return "a switch of the framework was set";
  return {};
}

// What of all that a capture has done is more than to compute. Empty: nothing.
std::string Effects(Session& s) {
  if (std::string state = SetState(s); !state.empty()) return state;
  if (s.pending().count() || ChangesTensors(s)) return "it writes to what lies outside of it";
  if (!s.draws.empty() || HasCall(s, kDraws)) return "it draws random numbers";
  return HasCall(s, kOutside) ? "it asks data or state" : "";
}

// Does a function, or a method, go by its name as it is?
bool GoesByItsName(const PyFunctionObject* f) {
  Ref names(PyObject_CallMethod(f->func_qualname, "split", "s", ".")), at;
  for (Py_ssize_t i = 0; names && i < PyList_GET_SIZE(names.get()); ++i) {
    PyObject* const name = PyList_GET_ITEM(names.get(), i);
    at = i ? Ref(PyObject_GetAttr(at.get(), name)) : Borrow(PyDict_GetItemWithError(f->func_globals, name));
    if (!at) break;
  }
  if (PyErr_Occurred()) PyErr_Clear();
  return at.get() == reinterpret_cast<const PyObject*>(f);
}

// Is it a function that Python's own library (typing), or NumPy, keeps a cache of, and not what a decorator from there
// has made? What those keep is what they compute. One that goes by its name as it is was put into a cache by somebody
// else: `lru_cache(copy.deepcopy)`.
bool IsPythons(PyObject* function) {
  if (!PyFunction_Check(function) || reinterpret_cast<PyFunctionObject*>(function)->func_closure) return false;
  const auto* f = reinterpret_cast<PyFunctionObject*>(function);
  auto* code = reinterpret_cast<PyCodeObject*>(f->func_code);
  return PathIn(code, "torch").empty() && SkippedFile(code) && !GoesByItsName(f);
}

// Does a write wait, also to a variable of the frame itself, which functions see that it made before?
bool WritesWait(Session& s) {
  return s.pending().count() || std::any_of(s.root_cells.begin(), s.root_cells.end(),
                                            [](const auto& own) { return PyCell_GET(own.first) != own.second.before; });
}

}  // namespace

bool OnlyComputes(CaptureSemantics& sem, Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs,
                  PyObject* kwnames, std::string* why) {
  *why = WritesWait(s) ? "something written before waits for the exit" : SetState(s);
  if (!WritesWait(s) && IsPythons(function)) return true;
  if (s.modes.entry.autocast.any()) *why = "autocast is on";
  if (s.vmap.open() || s.in_custom || s.later) *why = "it is called inside of a derivative or of torch.vmap";
  if (!why->empty()) return false;

  Ref handled(PyErr_GetHandledException());
  Around around(s);
  CaptureOptions options;
  options.dynamic = 0;
  options.whole = true;                                // Loops are gone through to their end.
  options.dynamic_floats = options.compiling = false;  // Python makes the call
  Session probe(s.root(), std::move(options));
  probe.depth = s.depth + 1;
  probe.modes.overrides_off = s.modes.overrides_off;  // So it is for the call.
  CaptureSemantics inner(probe, sem.loops().compiled());
  std::vector<Ref> held;
  std::vector<PyObject*> raw;
  absl::Cleanup cleanup = [&] {
    OverrideScope scope(&inner);
    probe.MarkBroken();
    held.clear();
    probe.Abandon();
    PyErr_SetHandledException(handled.get());
  };
  const Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0);
  bool gives = true;
  for (Py_ssize_t i = -1; gives && i < total; ++i) {
    PyObject* const o = i < 0 ? function : args[i];
    raw.push_back(held.emplace_back(probe.FromOutside(o, probe.guards().Const(o))).get());
    gives = raw.back();
  }
  if (gives) {
    OverrideScope scope(&inner);
    gives = static_cast<bool>(held.emplace_back(inner.Call(raw[0], raw.data() + 1, nargs, kwnames)));
  }
  probe.draws.Undo();
  if (probe.broken()) {
    const diag::Break& reason = probe.reason();
    *why = diag::Info(reason.id).message + (reason.detail.empty() ? "" : ": " + reason.detail);
  } else {
    *why = gives ? Effects(probe) : "it raises";
    if (probe.modes.overrides_off != s.modes.overrides_off) *why = "it disables __torch_function__";
    // What is read of tensors is what they hold for Python.
    if (why->empty() && !probe.trace().inputs.empty() && ChangesTensors(s)) *why = "tensors were written before";
  }
  PyErr_Clear();
  return why->empty();
}

bool WaitsAround(PyObject* cached) {
  for (Around* a = Around::now; a; a = a->before) {
    const auto& calls = a->s.pending().cache_calls;
    if (std::any_of(calls.begin(), calls.end(), [&](const CacheCall& c) { return c.cache.get() == cached; }))
      return true;
  }
  return false;
}

}  // namespace framejit::capture
