// What custom functions read of the program that may be another when a pass runs.
#pragma once

#include "guard/guard.h"
#include "tensor/autograd.h"

namespace framejit::capture {

class Session;

void NoteLate(const Session& s, tensor::Training* t);

// A number of a class, which forward of a custom function reads, and a replay again.
void NoteClassNumber(Session& s, PyTypeObject* type, PyObject* name, PyObject* value);

// A number: a replay calls forward of a custom function again, which finds that of an object as it is by then. In a
// checkpoint that may be another.
void NoteForwardInCheckpoint(const Session& s, const guard::Source* source);

}  // namespace framejit::capture
