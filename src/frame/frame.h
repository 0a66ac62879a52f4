// Everything that knows a CPython struct, behind a plain C interface: one implementation per minor version
// (py311.c to py314.c). A `Frame` is the _PyInterpreterFrame the hook was handed. Offsets are instruction
// indices in code units.
//
// Life of an intercepted frame: the hook gets it unlinked; fj_link makes it the thread's current frame while we run it;
// fj_unlink undoes that; then exactly one of fj_continue and fj_end_raise ends our part and yields the hook's result.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#ifdef __cplusplus
namespace framejit::frame {
class Slot;  // slot.h
}
typedef framejit::frame::Slot FjSlot;
extern "C" {
#else
typedef struct FjSlot FjSlot;
#endif

typedef struct FjFrame FjFrame;  // It is CPython's _PyInterpreterFrame, of which nothing is known here.

PyCodeObject* fj_code(FjFrame*);  // borrowed
PyObject* fj_function(FjFrame*);  // Borrowed; may be NULL.
PyObject* fj_globals(FjFrame*);   // borrowed
PyObject* fj_builtins(FjFrame*);  // borrowed
PyObject* fj_locals(FjFrame*);    // borrowed; the mapping of a class body or exec, else NULL
FjSlot* fj_localsplus(FjFrame*);  // The locals, cells and free variables, then the value stack.
int fj_nlocalsplus(FjFrame*);
int fj_stack_depth(FjFrame*);                  // valid while the frame is not running in CPython's loop
void fj_set_stack_depth(FjFrame*, int depth);  // Store it before anything that can run other code.
int fj_next(FjFrame*);                         // The index of the next instruction.
void fj_set_next(FjFrame*, int index);
void fj_set_current(FjFrame*, int index);   // Tracebacks report this while `index` runs.
int fj_current(FjFrame*);                   // What f_lasti reports.
int fj_is_generator(FjFrame*);              // Is it the code of a generator, coroutine or async generator?
int fj_is_suspended_generator(FjFrame*);    // the frame belongs to a generator object (it is being resumed)
FjFrame* fj_frame_of(PyObject* generator);  // or of a coroutine or an async generator, which has not ended
int fj_is_complete(FjFrame*);               // visible to tracebacks: its current instruction is past the prologue

// Stores the current instruction and the stack pointer in one call.
void fj_sync(FjFrame*, int current, FjSlot* stack_pointer);

typedef struct FjLink {
  void* opaque[4];
} FjLink;
// Makes an unlinked frame the current one and counts it against the recursion limit. -1: the limit is reached; nothing
// changed and no exception is set (CPython's evaluator, given the frame, raises it).
int fj_link(PyThreadState*, FjFrame*, FjLink*);
void fj_unlink(PyThreadState*, FjFrame*, FjLink*);

// CPython's evaluator from fj_next on. throwflag: an exception is set, to be raised at the suspended yield.
PyObject* fj_continue(PyThreadState*, FjFrame*, int throwflag);
// Leaves the frame with the exception that is set; no handler runs, no traceback entry is added. Returns NULL.
PyObject* fj_end_raise(PyThreadState*, FjFrame*);
// A call that returns is ended by fj_continue at a RETURN instruction.

enum { FJ_TRACING = 1, FJ_BREAKER = 2 };
int fj_interrupts(PyThreadState*, FjFrame*);  // It is 0, or what asks for attention.
// Somebody watches what this thread runs, function by function or line by line: sys.settrace, sys.setprofile, a tool of
// sys.monitoring (also of this code alone). Profilers written in C (cProfile, torch.profiler) measure, they do not
// watch.
int fj_watched(PyThreadState*, PyCodeObject*);
int fj_profiled(PyThreadState*);  // Is such a profiler told of calls and returns?
void fj_learn_profile(void);      // Finds out once which C function stands for sys.setprofile.
// The word with a bit of these set when the eval breaker asks for attention, for code that looks at it often.
const void* fj_breaker(PyThreadState*, uint32_t* bits);
// The state of an iterator over a range of C longs. 0: it is none.
int fj_range_state(PyObject* iterator, long* next, long* step, long* left);
// Serves signals, pending calls, GIL requests, scheduled gc. -1: exception set; 1: something only CPython's loop can
// serve.
int fj_poll(PyThreadState*);
// Python's handlers of signals wait, whatever looks for them; and no longer. Done on the main thread, where that is
// something new: 1.
int fj_hold_signals(void);
int fj_release_signals(void);
unsigned long fj_thread_switches(void);  // How often the interpreter's lock went from one thread to another.

PyObject* fj_exchange_handled(PyThreadState*,
                              PyObject* value);  // the exception being handled; steals, returns the old one
PyObject* fj_take_raised(void);                  // normalised, its traceback attached; clears the error indicator
void fj_set_raised(PyObject* exception);         // steals; the traceback is the exception's own

int fj_get_method(PyObject* object, PyObject* name, PyObject** method);  // 1: unbound function; 0: attribute or NULL

enum { FJ_INTRINSIC_OTHER, FJ_INTRINSIC_STOP_ITERATION, FJ_INTRINSIC_POSITIVE, FJ_INTRINSIC_LIST_TO_TUPLE };
int fj_intrinsic(int number);  // What the argument of CALL_INTRINSIC_1 means.
// What those of LOAD_SPECIAL and LOAD_COMMON_CONSTANT (from 3.14 on) mean; borrowed.
PyObject* fj_special_name(int number);
PyObject* fj_common_constant(int number);

// 3.12 bounds the C stack by a count (1,500) that a Python-to-Python call takes two of when a hook is installed.
void fj_widen_recursion(PyThreadState*, int by);

// --- the hook --------------------------------------------------------------------------------------------------------
typedef PyObject* (*FjEvaluator)(PyThreadState*, FjFrame*, int throwflag);
enum { FJ_HOOK_FREE, FJ_HOOK_OURS, FJ_HOOK_FOREIGN };
int fj_hook_state(void);
void fj_install_hook(FjEvaluator);
void fj_uninstall_hook(void);

#ifdef __cplusplus
}
#endif
