// CPython 3.12. As 3.11, but the evaluator pops the frame, and nothing that would do so is exported: every end of a
// frame goes through the evaluator.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030C0000 || PY_VERSION_HEX >= 0x030D0000
#error "py312.c is for CPython 3.12"
#endif
#define Py_BUILD_CORE
#undef _PyGC_FINALIZED  // defined twice by CPython's own headers
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_intrinsics.h>
#include <internal/pycore_pystate.h>
#include <internal/pycore_range.h>
#undef Py_BUILD_CORE
#define CODE(f) (((_PyInterpreterFrame*)(f))->f_code)
#define STACK_END(f) (FR(f)->localsplus + FR(f)->stacktop)
#define SET_STACK_END(f, end) (FR(f)->stacktop = (int)((PyObject**)(end) - FR(f)->localsplus))
#define HAS_MONITORING
#define SIGNALS_PENDING _PyRuntime.ceval.signals_pending
#include "frame/py_common.h"
#include "frame/room.h"

PyObject* fj_function(FjFrame* f) {
  return FR(f)->f_funcobj;
}
int fj_next(FjFrame* f) {
  return (int)(FR(f)->prev_instr - _PyCode_CODE(CODE(f))) + 1;
}
void fj_set_next(FjFrame* f, int index) {
  FR(f)->prev_instr = _PyCode_CODE(CODE(f)) + index - 1;
}
void fj_set_current(FjFrame* f, int index) {
  FR(f)->prev_instr = _PyCode_CODE(CODE(f)) + index;
}
int fj_current(FjFrame* f) {
  return (int)(FR(f)->prev_instr - _PyCode_CODE(CODE(f)));
}

_Static_assert(sizeof(_PyCFrame) <= sizeof(FjLink), "FjLink is too small");

int fj_link(PyThreadState* ts, FjFrame* f, FjLink* link) {
  if (ts->py_recursion_remaining <= 1) return -1;
  if (Py_EnterRecursiveCall("")) {
    PyErr_Clear();
    return -1;
  }
  ts->py_recursion_remaining--;
  _PyCFrame* mine = (_PyCFrame*)link;
  mine->previous = ts->cframe;
  mine->current_frame = FR(f);
  FR(f)->previous = ts->cframe->current_frame;
  ts->cframe = mine;
  return 0;
}

int fj_room(PyThreadState* ts) {
  return ts->py_recursion_remaining > 1 && ts->c_recursion_remaining > 8;
}

void fj_unlink(PyThreadState* ts, FjFrame* f, FjLink* link) {
  ts->cframe = ((_PyCFrame*)link)->previous;
  ts->py_recursion_remaining++;
  Py_LeaveRecursiveCall();
}

// The evaluator looks for a handler and adds a traceback entry. In front of the first instruction it finds no handler,
// and an ordinary frame gets no entry there (a generator's does: it is taken off again). What outlives the frame then
// shows the place where it was left.
PyObject* fj_end_raise(PyThreadState* ts, FjFrame* f) {
  _Py_CODEUNIT* left_at = FR(f)->prev_instr;
  PyFrameObject* object = FR(f)->frame_obj;
  PyObject* raised = ts->current_exception;
  PyObject* traceback = raised ? PyException_GetTraceback(raised) : NULL;
  Py_XINCREF(object);
  Py_XINCREF(raised);
  fj_set_next(f, 0);
  _PyEval_EvalFrameDefault(ts, FR(f), 1);
  if (raised && ts->current_exception == raised) PyException_SetTraceback(raised, traceback ? traceback : Py_None);
  if (object && object->f_frame->owner == FRAME_OWNED_BY_FRAME_OBJECT) object->f_frame->prev_instr = left_at;
  Py_XDECREF(traceback);
  Py_XDECREF(raised);
  Py_XDECREF(object);
  return NULL;
}

int fj_interrupts(PyThreadState* ts, FjFrame* f) {
  int r = _Py_atomic_load_relaxed(&ts->interp->ceval.eval_breaker) ? FJ_BREAKER : 0;
  if (fj_watched(ts, CODE(f))) r |= FJ_TRACING;
  return r;
}

const void* fj_breaker(PyThreadState* ts, uint32_t* bits) {
  *bits = ~0u;
  return &ts->interp->ceval.eval_breaker;
}

int fj_range_state(PyObject* iterator, long* next, long* step, long* left) {
  if (Py_TYPE(iterator) != &PyRangeIter_Type) return 0;
  const _PyRangeIterObject* r = (const _PyRangeIterObject*)iterator;
  *next = r->start;
  *step = r->step;
  *left = r->len;
  return 1;
}

int fj_finalizing(void) {
  return _Py_IsFinalizing();
}

int fj_poll(PyThreadState* ts) {
  if (PyErr_CheckSignals() < 0 || Py_MakePendingCalls() < 0) return -1;  // scheduled gc runs in the former
  if (_Py_atomic_load_relaxed(&ts->interp->ceval.gil_drop_request)) PyEval_RestoreThread(PyEval_SaveThread());
  return ts->async_exc != NULL;
}

unsigned long fj_thread_switches(void) {
  return PyInterpreterState_Get()->ceval.gil->switch_number;
}

PyObject* fj_take_raised(void) {
  return PyErr_GetRaisedException();
}
void fj_set_raised(PyObject* exception) {
  PyErr_SetRaisedException(exception);
}
void fj_widen_recursion(PyThreadState* ts, int by) {
  ts->c_recursion_remaining += by;
}

int fj_intrinsic(int number) {
  switch (number) {
    case INTRINSIC_STOPITERATION_ERROR: return FJ_INTRINSIC_STOP_ITERATION;
    case INTRINSIC_UNARY_POSITIVE: return FJ_INTRINSIC_POSITIVE;
    case INTRINSIC_LIST_TO_TUPLE: return FJ_INTRINSIC_LIST_TO_TUPLE;
    default: return FJ_INTRINSIC_OTHER;
  }
}

PyObject* fj_special_name(int number) {
  return NULL;
}
PyObject* fj_common_constant(int number) {
  return NULL;
}

int fj_same_structs(void) {
  return 1;
}
