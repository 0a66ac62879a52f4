// A policy that runs every frame as CPython does and writes down what the frames read. tests/python/reads.py changes
// each of these places and asks whether compiled code notices.
#pragma once

#include "frame/driver.h"

namespace framejit::frame {

// Appends (kind, object, key, code) to `list` for each read. The list holds the objects, so that no two of them have
// one address.
FramePolicy* NewRecorder(PyObject* list);

}  // namespace framejit::frame
