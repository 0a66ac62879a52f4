// CPython 3.13. The instruction pointer is the current or next instruction; frames can be popped by an exported
// function.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030D0000 || PY_VERSION_HEX >= 0x030E0000
#error "py313.c is for CPython 3.13"
#endif
#define Py_BUILD_CORE
#include <internal/pycore_ceval.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_intrinsics.h>
#include <internal/pycore_object.h>
#include <internal/pycore_pystate.h>
#include <internal/pycore_range.h>
#undef Py_BUILD_CORE
#define CODE(f) ((PyCodeObject*)((_PyInterpreterFrame*)(f))->f_executable)
#define STACK_END(f) (FR(f)->localsplus + FR(f)->stacktop)
#define SET_STACK_END(f, end) (FR(f)->stacktop = (int)((PyObject**)(end) - FR(f)->localsplus))
#define HAS_MONITORING
#include "frame/py_common.h"
#include "frame/room.h"

PyObject* fj_function(FjFrame* f) {
  return FR(f)->f_funcobj;
}
int fj_next(FjFrame* f) {
  return (int)(FR(f)->instr_ptr - _PyCode_CODE(CODE(f)));
}
void fj_set_next(FjFrame* f, int index) {
  FR(f)->instr_ptr = _PyCode_CODE(CODE(f)) + index;
}
void fj_set_current(FjFrame* f, int index) {
  FR(f)->instr_ptr = _PyCode_CODE(CODE(f)) + index;
}
int fj_current(FjFrame* f) {
  return fj_next(f);
}

int fj_link(PyThreadState* ts, FjFrame* f, FjLink* link) {
  if (ts->py_recursion_remaining <= 1) return -1;
  if (Py_EnterRecursiveCall("")) {
    PyErr_Clear();
    return -1;
  }
  ts->py_recursion_remaining--;
  link->opaque[0] = ts->current_frame;
  FR(f)->previous = ts->current_frame;
  ts->current_frame = FR(f);
  return 0;
}

int fj_room(PyThreadState* ts) {
  return ts->py_recursion_remaining > 1 && ts->c_recursion_remaining > 8;
}

void fj_unlink(PyThreadState* ts, FjFrame* f, FjLink* link) {
  ts->current_frame = link->opaque[0];
  ts->py_recursion_remaining++;
  Py_LeaveRecursiveCall();
}

// A hand-over with throwflag looks for the handler one unit before the line it reports (CPython's loop has already
// moved on when it gets there): not usable, so the interpreter unwinds and the frame is popped here.
PyObject* fj_end_raise(PyThreadState* ts, FjFrame* f) {
  _PyEval_FrameClearAndPop(ts, FR(f));
  return NULL;
}

int fj_interrupts(PyThreadState* ts, FjFrame* f) {
  int r = (ts->eval_breaker & _PY_EVAL_EVENTS_MASK) ? FJ_BREAKER : 0;
  if (fj_watched(ts, CODE(f))) r |= FJ_TRACING;
  return r;
}

const void* fj_breaker(PyThreadState* ts, uint32_t* bits) {
  *bits = (uint32_t)_PY_EVAL_EVENTS_MASK;
  return &ts->eval_breaker;
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
  return Py_IsFinalizing();
}

int fj_poll(PyThreadState* ts) {
  return _Py_HandlePending(ts) ? -1 : 0;
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
void fj_widen_recursion(PyThreadState* ts, int by) {}  // 10,000 units, two a call, are enough

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
  const _Py_DebugOffsets* is = &_PyRuntime.debug_offsets;
  return is->interpreter_state.size == sizeof(PyInterpreterState) && is->thread_state.size == sizeof(PyThreadState) &&
         is->interpreter_frame.size == sizeof(_PyInterpreterFrame);
}
