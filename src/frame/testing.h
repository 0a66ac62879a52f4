// Test hooks of the frame driver: sweeps (run n instructions of a function ourselves, then hand over), fuzzing,
// counters.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace framejit::frame {

// Adds frame_sweep(code_or_None, n, mode, seed), frame_sweep_off(), frame_record(list), frame_unavailable(),
// frame_decode(code), frame_location(code, unit) to `module`. Returns 0, or -1 with an exception set.
int AddFrameTestFunctions(PyObject* module);

}  // namespace framejit::frame
