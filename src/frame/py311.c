// CPython 3.11. The instruction pointer is stored as the unit before the next instruction; the caller of the hook pops
// the frame.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030C0000
#error "py311.c is for CPython 3.11"
#endif
#define Py_BUILD_CORE
#undef _PyGC_FINALIZED  // defined twice by CPython's own headers
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_pystate.h>
#undef Py_BUILD_CORE
#define CODE(f) (((_PyInterpreterFrame*)(f))->f_code)
#define STACK_END(f) (FR(f)->localsplus + FR(f)->stacktop)
#define SET_STACK_END(f, end) (FR(f)->stacktop = (int)((PyObject**)(end) - FR(f)->localsplus))
#define SIGNALS_PENDING _PyRuntime.ceval.signals_pending
#include "frame/py_common.h"
#include "frame/room.h"

PyObject* fj_function(FjFrame* f) {
  return (PyObject*)FR(f)->f_func;
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

// The current frame hangs off a _PyCFrame that lives on the C stack of whoever runs it.
_Static_assert(sizeof(_PyCFrame) <= sizeof(FjLink), "FjLink is too small");

int fj_link(PyThreadState* ts, FjFrame* f, FjLink* link) {
  if (Py_EnterRecursiveCall("")) {
    PyErr_Clear();
    return -1;
  }
  _PyCFrame* mine = (_PyCFrame*)link;
  mine->use_tracing = ts->cframe->use_tracing;
  mine->previous = ts->cframe;
  mine->current_frame = FR(f);
  FR(f)->previous = ts->cframe->current_frame;
  FR(f)->is_entry = true;
  ts->cframe = mine;
  return 0;
}

int fj_room(PyThreadState* ts) {
  return ts->recursion_remaining > 1;
}

void fj_unlink(PyThreadState* ts, FjFrame* f, FjLink* link) {
  _PyCFrame* mine = (_PyCFrame*)link;
  mine->previous->use_tracing = mine->use_tracing;  // settrace() while linked must outlive us
  ts->cframe = mine->previous;
  Py_LeaveRecursiveCall();
}

PyObject* fj_end_raise(PyThreadState* ts, FjFrame* f) {
  return NULL;
}

int fj_watched(PyThreadState* ts, PyCodeObject* code) {
  return ts->cframe->use_tracing && traced(ts);
}

int fj_profiled(PyThreadState* ts) {
  return ts->cframe->use_tracing && !traced(ts);
}

int fj_interrupts(PyThreadState* ts, FjFrame* f) {
  return (fj_watched(ts, NULL) ? FJ_TRACING : 0) |
         (_Py_atomic_load_relaxed(&ts->interp->ceval.eval_breaker) ? FJ_BREAKER : 0);
}

const void* fj_breaker(PyThreadState* ts, uint32_t* bits) {
  *bits = ~0u;
  return &ts->interp->ceval.eval_breaker;
}

typedef struct {  // Objects/rangeobject.c
  PyObject_HEAD long index, start, step, len;
} RangeIterator;

int fj_range_state(PyObject* iterator, long* next, long* step, long* left) {
  if (Py_TYPE(iterator) != &PyRangeIter_Type) return 0;
  const RangeIterator* r = (const RangeIterator*)iterator;
  *next = (long)(r->start + (unsigned long)r->index * r->step);
  *step = r->step;
  *left = r->len - r->index;
  return 1;
}

int fj_finalizing(void) {
  return _Py_IsFinalizing();
}

int fj_poll(PyThreadState* ts) {
  if (PyErr_CheckSignals() < 0 || Py_MakePendingCalls() < 0) return -1;
  if (_Py_atomic_load_relaxed(&ts->interp->ceval.gil_drop_request)) PyEval_RestoreThread(PyEval_SaveThread());
  return ts->async_exc != NULL;
}

unsigned long fj_thread_switches(void) {
  return _PyRuntime.ceval.gil.switch_number;
}

PyObject* fj_take_raised(void) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (!type) return NULL;
  PyErr_NormalizeException(&type, &value, &traceback);
  PyException_SetTraceback(value, traceback ? traceback : Py_None);
  Py_DECREF(type);
  Py_XDECREF(traceback);
  return value;
}

void fj_set_raised(PyObject* exception) {
  PyErr_Restore(Py_NewRef((PyObject*)Py_TYPE(exception)), exception, PyException_GetTraceback(exception));
}

void fj_widen_recursion(PyThreadState* ts, int by) {}
int fj_intrinsic(int number) {
  return FJ_INTRINSIC_OTHER;
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
