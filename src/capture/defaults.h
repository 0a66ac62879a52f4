// Defaults of called functions that are tensors or arrays.
#pragma once

#include <vector>

#include "capture/ref.h"

namespace framejit::capture {

class Session;

// They stand for inputs. A call that leaves them out is given these, by their names. Gives the arguments and their
// names, or no names where there are no such defaults. False: a Break, or an error.
bool GiveTensorDefaults(Session& s, PyFunctionObject* fn, PyObject* const* args, size_t nargs, PyObject* kwnames,
                        std::vector<PyObject*>* all, std::vector<Ref>* held, Ref* names);

}  // namespace framejit::capture
