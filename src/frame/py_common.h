// The part of the shims that reads the same in every version, given FR (a cast) and CODE of a frame. Included by one C
// file per version after CPython's internal headers; nothing else includes it.
#include <string.h>

#include "frame/frame.h"

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
PyObject** fj_localsplus(FjFrame* f) {
  return FR(f)->localsplus;
}
int fj_nlocalsplus(FjFrame* f) {
  return CODE(f)->co_nlocalsplus;
}
int fj_stack_depth(FjFrame* f) {
  return FR(f)->stacktop - CODE(f)->co_nlocalsplus;
}
void fj_set_stack_depth(FjFrame* f, int depth) {
  FR(f)->stacktop = CODE(f)->co_nlocalsplus + depth;
}
int fj_is_generator(FjFrame* f) {
  return (CODE(f)->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0;
}
int fj_is_suspended_generator(FjFrame* f) {
  return FR(f)->owner == FRAME_OWNED_BY_GENERATOR;
}
int fj_is_complete(FjFrame* f) {
  return FR(f)->owner == FRAME_OWNED_BY_GENERATOR || fj_current(f) >= CODE(f)->_co_firsttraceable;
}
void fj_sync(FjFrame* f, int current, PyObject** stack_pointer) {
  fj_set_current(f, current);
  FR(f)->stacktop = (int)(stack_pointer - FR(f)->localsplus);
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

static FjEvaluator evaluator;

static PyObject* hook(PyThreadState* ts, _PyInterpreterFrame* f, int throwflag) {
  return evaluator(ts, (FjFrame*)f, throwflag);
}

int fj_hook_state(void) {
  _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
  return now == hook ? FJ_HOOK_OURS : now == _PyEval_EvalFrameDefault ? FJ_HOOK_FREE : FJ_HOOK_FOREIGN;
}

void fj_install_hook(FjEvaluator e) {
  evaluator = e;
  _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), hook);
}

void fj_uninstall_hook(void) {
  if (fj_hook_state() == FJ_HOOK_OURS)
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), _PyEval_EvalFrameDefault);
}
