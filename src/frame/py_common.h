// The part of the shims that reads the same in every version, given CODE, STACK_END and SET_STACK_END of a frame.
// Included by one C file per version after CPython's internal headers; nothing else includes it.
#include <string.h>

#include "frame/hook.h"

#define FR(f) ((_PyInterpreterFrame*)(f))

PyCodeObject* fj_code(FjFrame* f) {
  return CODE(f);
}
PyObject* fj_globals(FjFrame* f) {
  return FR(f)->f_globals;
}
PyObject* fj_builtins(FjFrame* f) {
  return FR(f)->f_builtins;
}
PyObject* fj_locals(FjFrame* f) {
  return FR(f)->f_locals;
}
FjSlot* fj_localsplus(FjFrame* f) {
  return (FjSlot*)FR(f)->localsplus;
}
int fj_nlocalsplus(FjFrame* f) {
  return CODE(f)->co_nlocalsplus;
}
int fj_stack_depth(FjFrame* f) {
  return (int)(STACK_END(f) - FR(f)->localsplus) - CODE(f)->co_nlocalsplus;
}
void fj_set_stack_depth(FjFrame* f, int depth) {
  SET_STACK_END(f, FR(f)->localsplus + CODE(f)->co_nlocalsplus + depth);
}
int fj_is_generator(FjFrame* f) {
  return (CODE(f)->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0;
}
int fj_is_suspended_generator(FjFrame* f) {
  return FR(f)->owner == FRAME_OWNED_BY_GENERATOR;
}
FjFrame* fj_frame_of(PyObject* generator) {  // coroutines and async generators begin with the same fields
  return (FjFrame*)&((PyGenObject*)generator)->gi_iframe;
}
int fj_is_complete(FjFrame* f) {
  return FR(f)->owner == FRAME_OWNED_BY_GENERATOR || fj_current(f) >= CODE(f)->_co_firsttraceable;
}
void fj_sync(FjFrame* f, int current, FjSlot* stack_pointer) {
  fj_set_current(f, current);
  SET_STACK_END(f, (void*)stack_pointer);
}

// Signals are the main thread's to serve, so none are while there is none.
static unsigned long holder;
int fj_hold_signals(void) {
  const unsigned long here = PyThread_get_thread_ident();
  if (_PyRuntime.main_thread != here) return 0;
  holder = here;
  _PyRuntime.main_thread = 0;
  return 1;
}
int fj_release_signals(void) {
  if (_PyRuntime.main_thread != 0 || holder != PyThread_get_thread_ident()) return 0;
  _PyRuntime.main_thread = holder;
#ifdef SIGNALS_PENDING  // else the thread asks again by itself
  if (_Py_atomic_load_relaxed(&SIGNALS_PENDING))
    _Py_atomic_store_relaxed(&PyInterpreterState_Main()->ceval.eval_breaker, 1);
#endif
  return 1;
}

PyObject* fj_continue(PyThreadState* ts, FjFrame* f, int throwflag) {
  return _PyEval_EvalFrameDefault(ts, FR(f), throwflag);
}

PyObject* fj_exchange_handled(PyThreadState* ts, PyObject* value) {
  PyObject* old = ts->exc_info->exc_value;
  ts->exc_info->exc_value = value;
  return old;
}

int fj_get_method(PyObject* object, PyObject* name, PyObject** method) {
  return _PyObject_GetMethod(object, name, method);
}

// The C function that sys.setprofile installs for the program's own one; null: not known.
static Py_tracefunc python_profile;

void fj_learn_profile(void) {
  PyThreadState* ts = PyThreadState_Get();
  PyObject* set = PySys_GetObject("setprofile");
  if (ts->c_profilefunc || !set) return;
  PyObject* done = PyObject_CallOneArg(set, set);
  if (!done) PyErr_Clear();
  Py_XDECREF(done);
  python_profile = ts->c_profilefunc;
  PyEval_SetProfile(NULL, NULL);
}

static int traced(PyThreadState* ts) {
  return ts->c_tracefunc || (ts->c_profilefunc && (!python_profile || ts->c_profilefunc == python_profile));
}

#ifdef HAS_MONITORING  // sys.monitoring, which the versions with it define
// The tools, a bit each, that want any event. Every call asks, so it looks at eight events at a time.
static int any_tool(const void* tools, size_t events) {
  uint64_t any = 0, eight;
  for (size_t i = 0; i < events; i += sizeof(eight)) {
    const size_t at = i + sizeof(eight) <= events ? i : events - sizeof(eight);
    memcpy(&eight, (const char*)tools + at, sizeof(eight));
    any |= eight;
  }
  for (int half = 32; half >= 8; half /= 2) any |= any >> half;
  return any & 0xff;
}
_Static_assert(_PY_MONITORING_LOCAL_EVENTS >= 8, "eight events at a time");
#define ANY(monitors) any_tool(&(monitors), sizeof(monitors))

// Of those, the ones that do not watch: cProfile, profilers written in C, what sys.settrace and sys.setprofile are made
// of (another thread may have called them; for this one see traced).
static int measuring_tools(PyThreadState* ts) {
  PyObject* name = ts->interp->monitoring_tool_names[PY_MONITORING_PROFILER_ID];
  const int c_profile = name && PyUnicode_Check(name) && !PyUnicode_CompareWithASCIIString(name, "cProfile");
  return 1 << PY_MONITORING_SYS_PROFILE_ID | 1 << PY_MONITORING_SYS_TRACE_ID | c_profile << PY_MONITORING_PROFILER_ID;
}

int fj_watched(PyThreadState* ts, PyCodeObject* code) {
  if (ts->tracing || traced(ts)) return 1;
  _PyCoMonitoringData* local = code->_co_monitoring;
  const int all = ANY(ts->interp->monitors) | (local ? ANY(local->local_monitors) : 0);
  return all && all & ~measuring_tools(ts);
}

int fj_profiled(PyThreadState* ts) {
  return !ts->tracing && !traced(ts) && ANY(ts->interp->monitors) & measuring_tools(ts);
}
#endif

static FjEvaluator evaluator;
static _PyFrameEvalFunction below;     // What was installed when ours was.
static _Thread_local FjFrame* passed;  // the frame that it was given

static PyObject* hook(PyThreadState* ts, _PyInterpreterFrame* f, int throwflag) {
  // The one below was installed above ours before, and hands back what it does not want.
  if (below && passed == (FjFrame*)f) return fj_continue(ts, passed, throwflag);
  return evaluator(ts, (FjFrame*)f, throwflag);
}

int fj_hook_state(void) {
  _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
  return now == hook ? FJ_HOOK_OURS : now == _PyEval_EvalFrameDefault ? FJ_HOOK_FREE : FJ_HOOK_FOREIGN;
}

void* fj_hook_function(void) {
  return (void*)_PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
}

PyObject* fj_pass_on(PyThreadState* ts, FjFrame* frame, int throwflag) {
  if (!below || fj_hook_state() != FJ_HOOK_OURS) return fj_continue(ts, frame, throwflag);
  FjFrame* before = passed;
  passed = frame;
  PyObject* result = below(ts, (_PyInterpreterFrame*)frame, throwflag);
  passed = before;
  return result;
}

void fj_install_hook(FjEvaluator e) {
  evaluator = e;
  const int state = fj_hook_state();
  if (state != FJ_HOOK_OURS) below = state == FJ_HOOK_FREE ? NULL : (_PyFrameEvalFunction)fj_hook_function();
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), hook);
}

void fj_uninstall_hook(void) {
  if (fj_hook_state() != FJ_HOOK_OURS) return;
  // The one below installs itself when it next wants frames, and may have been taken out since.
  below = NULL;
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), _PyEval_EvalFrameDefault);
}
