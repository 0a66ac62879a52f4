#include "capture/outcomes.h"

#include <algorithm>
#include <csignal>
#include <unordered_set>

#include "capture/events.h"
#include "capture/operator_runs.h"
#include "capture/override.h"
#include "capture/policy/policy.h"
#include "diag/diag.h"
#include "tensor/import.h"
#include "tensor/refused_warning.h"

namespace framejit::capture {
namespace {

thread_local Retry* innermost = nullptr;

// A segment is looked at once; each time under FRAMEJIT_STRICT, and where guesses may have been wrong.
bool LookedAt(const Segment& segment) {
  return (!std::exchange(segment.looked_at, true) || diag::OptionOn("strict") || !segment.assumed.guesses.empty()) &&
         !segment.backend_runner;
}

// The code of what a program gave to signal.signal: a function, a method, an object that can be called, or one of these
// in a partial.
PyObject* CodeOfHandler(int signal) {
  static PyObject* const get = FromModule("_signal", "getsignal");
  static PyObject* const call = PyUnicode_InternFromString("__call__");
  static PyObject* const partial = FromModule("functools", "partial");
  Ref handler(PyObject_CallFunction(get, "i", signal));
  while (handler && PyObject_TypeCheck(handler.get(), reinterpret_cast<PyTypeObject*>(partial)))
    handler = Ref(PyObject_GetAttrString(handler.get(), "func"));
  PyObject* function = handler.get();
  if (function && PyMethod_Check(function)) function = PyMethod_GET_FUNCTION(function);
  if (function && !PyFunction_Check(function)) function = _PyType_Lookup(Py_TYPE(function), call);
  PyErr_Clear();
  return function && PyFunction_Check(function) ? PyFunction_GET_CODE(function) : nullptr;
}

// Did the handler of a signal raise what is being raised? It came in the middle of a run, and would not come again.
bool OfSignalHandler() {
  SuspendScope off;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  std::unordered_set<PyObject*> codes;
  for (int signal = 1; traceback && signal < NSIG; ++signal) codes.insert(CodeOfHandler(signal));
  bool found = false;
  for (auto* at = reinterpret_cast<PyTracebackObject*>(traceback); at && !found; at = at->tb_next) {
    Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(at->tb_frame)));
    found = codes.contains(code.get());
  }
  PyErr_Restore(type, value, traceback);
  return found;
}

const char* Words(diag::RunEnd end) {
  switch (end) {
    case diag::RunEnd::kTold: return "NumPy may have to tell of what was computed";
    case diag::RunEnd::kRefused: return "a call of the framework raised";
    case diag::RunEnd::kGuessFailed: return "data says something else than was guessed";
    case diag::RunEnd::kMemory: return "there was not enough memory";
    case diag::RunEnd::kFailing: return "it was not begun, since the runs before it had ended early in a row";
    default: return "an internal error of framejit";
  }
}

std::string InWords(const EarlyEnds& e) {
  static constexpr std::string_view kOurs = "framejit: ";
  const std::string why = e.why.starts_with(kOurs) ? e.why.substr(kOurs.size()) : e.why;
  return "compiled code of " + e.place + " ended early, and Python did its work: " + Words(e.end) +
         (why.empty() || why == "a warning" ? "" : " (" + why + ")");
}

}  // namespace

PyObject* ErrorType(const char* name) {
  SuspendScope off;
  Ref m(tensor::Import("framejit.errors"));
  Ref t(m ? PyObject_CallMethod(m.get(), "raised", "s", name) : nullptr);
  if (!t) PyErr_Clear();
  return t ? t.get() : PyExc_RuntimeError;  // the module keeps it alive
}

bool Report(const std::string& problem) {
  if (diag::OptionOn("strict")) {
    PyErr_SetString(ErrorType("InternalError"), problem.c_str());
    return false;
  }
  static auto* told = new std::unordered_set<std::string>;
  if (told->insert(problem).second) diag::Warn(problem + " (please report it; eager goes on)");
  return true;
}

// A run ended early, and Python goes on; why: the error's text, if it had one.
static void NoteEarlyEnd(const Segment& segment, diag::RunEnd end, const std::string& why) {
  OutcomeEvent(segment, end, why);
  std::vector<EarlyEnds>& all = segment.outcomes->early;
  auto at = std::find_if(all.begin(), all.end(),
                         [&](const EarlyEnds& e) { return e.end == end && e.place == segment.place; });
  if (at == all.end()) at = all.insert(at, {.end = end, .place = segment.place});
  at->why = why;
  ++at->times;
}

PyObject* EarlyEndsDict(const Outcomes& outcomes, bool since_told) {
  Ref all(PyDict_New());
  for (const EarlyEnds& e : outcomes.early) {
    const int64_t times = since_told ? e.times - e.told : e.times;
    const std::string text = InWords(e);
    Ref words(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
    Ref n(PyLong_FromLongLong(times));
    if (!all || !words || !n || (times && PyDict_SetItem(all.get(), words.get(), n.get()) < 0)) return nullptr;
  }
  return all.release();
}

Retry::Retry() : outer_(std::exchange(innermost, this)) {
  OperatorRun::Adopt(this);
}

Retry::~Retry() {
  OperatorRun::Dropped(this);
  StopWatching();
  innermost = outer_;
}

Retry* Retry::Current() {
  return innermost;
}

bool Retry::Ended(const Segment& segment, diag::RunEnd end) {
  if (innermost) return innermost->Begin(segment, end);
  NoteEarlyEnd(segment, end, "");
  return true;
}

bool Retry::Begin(const Segment& segment, diag::RunEnd end) {
  if (PyErr_Occurred() && (!PyErr_ExceptionMatches(PyExc_Exception) || OfSignalHandler())) return false;
  const std::string why = PyErr_Occurred() ? tensor::TakeErrorText() : "";
  NoteEarlyEnd(segment, end, why);
  const std::string where = "a run of " + segment.place + " ended early (" + diag::Text(end) + "): " + why;
  diag::Log(diag::Channel::perf_, where + "; Python does it");
  if (end == diag::RunEnd::kInternal) return Report("internal error of framejit: " + where);
  const bool warns = why == tensor::kRefusedWarning;
  if (end != diag::RunEnd::kRefused || warns || PyThreadState_Get()->c_tracefunc || !LookedAt(segment)) return true;
  what_ = "internal error of framejit: " + where + "; in Python nothing was raised";
  outcomes_ = segment.outcomes;
  refute_ = segment.assumed.guesses.empty() ? nullptr : segment.assumed.Refutation();
  raised_ = false;
  tracing_ = true;
  PyEval_SetTrace(Trace, nullptr);
  return true;
}

int Retry::Trace(PyObject*, PyFrameObject*, int what, PyObject* arg) {
  if (what != PyTrace_EXCEPTION || !PyTuple_Check(arg)) return 0;
  PyObject* type = PyTuple_GET_ITEM(arg, 0);
  for (PyObject* end : {PyExc_StopIteration, PyExc_StopAsyncIteration, PyExc_GeneratorExit})
    if (PyErr_GivenExceptionMatches(type, end)) return 0;
  for (Retry* r = innermost; r; r = r->outer_) r->raised_ = true;
  return 0;
}

void Retry::StopWatching() {
  if (!std::exchange(tracing_, false) || PyThreadState_Get()->c_tracefunc != Trace) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyEval_SetTrace(nullptr, nullptr);
  PyErr_Restore(type, value, traceback);
}

PyObject* Retry::Finish(PyObject* result) {
  if (!tracing_) return result;
  StopWatching();
  if (!result || raised_) return result;
  outcomes_->Add(diag::RunEnd::kRefused, -1);
  outcomes_->Add(refute_ ? diag::RunEnd::kGuessFailed : diag::RunEnd::kInternal);
  if (refute_) return refute_(), result;
  if (Report(what_)) return result;
  Py_DECREF(result);
  return nullptr;
}

}  // namespace framejit::capture
