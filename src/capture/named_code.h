// What reports, logs and profilers call the code of a frame.
#pragma once

#include <Python.h>

#include <string>

#include "frame/frame.h"

namespace framejit::capture {

// The code itself. For a call of a module through torch.nn.Module's own functions: the `forward` of the module's class,
// which is what the user wrote. self: the first argument, may be null. Borrowed.
PyCodeObject* NamedCode(PyCodeObject* code, PyObject* self);
PyCodeObject* NamedCode(FjFrame* frame);
// The line of an instruction of the code; where the code is not named itself, the first one of what is.
int NamedLine(PyCodeObject* code, PyObject* self, int instruction);
int NamedLine(FjFrame* frame);  // The line of the frame's next instruction.

std::string PlaceName(PyCodeObject* code);  // Written as function@file:line.

}  // namespace framejit::capture
