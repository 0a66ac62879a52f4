// Everything that knows a CPython struct, behind a plain C interface: one implementation per minor version
// (py311.c, py312.c, py313.c). A `Frame` is the _PyInterpreterFrame the hook was handed. Offsets are instruction indices
// in code units.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct FjFrame FjFrame;  // opaque: _PyInterpreterFrame

PyCodeObject* fj_code(FjFrame*);               // borrowed
PyObject* fj_function(FjFrame*);               // borrowed, may be NULL
PyObject* fj_globals(FjFrame*);                // borrowed
PyObject* fj_builtins(FjFrame*);               // borrowed
PyObject** fj_localsplus(FjFrame*);            // locals, cells, frees; then the value stack
int fj_nlocalsplus(FjFrame*);
int fj_stack_depth(FjFrame*);                  // valid while the frame is not running in CPython's loop
void fj_set_stack_depth(FjFrame*, int depth);  // store before anything that can run other code
int fj_next(FjFrame*);                         // index of the next instruction
void fj_set_next(FjFrame*, int index);
void fj_set_current(FjFrame*, int index);      // while the driver runs `index`: what tracebacks report
int fj_is_generator(FjFrame*);                 // generator, coroutine or async generator code

#ifdef __cplusplus
}
#endif
