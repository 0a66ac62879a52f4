// Modules whose callables have names (see names.cc).
#pragma once

#include <Python.h>

namespace framejit::tensor {

// Imports the submodule of that name if callables in it have names and the framework would import it now, as it is
// read for the first time. It may fail, in silence.
void ImportNamed(PyObject* module, PyObject* name);

}  // namespace framejit::tensor
