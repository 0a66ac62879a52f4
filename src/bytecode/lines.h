// The line of an instruction, for code of any length: Python's own answer goes through the table from its beginning.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace framejit::bytecode {

int LineOf(PyCodeObject* code, int offset);  // in bytes; as PyCode_Addr2Line

}  // namespace framejit::bytecode
