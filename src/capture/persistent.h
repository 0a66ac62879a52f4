// Immutable containers that libraries write in C (pyrsistent, rpds). One that is made here is a private object, whose
// methods change nothing (types.cc), and which the exit makes again of what its __reduce__ says. One from outside is
// guarded by identity.
#pragma once

#include "capture/builtins.h"
#include "capture/session.h"

namespace framejit::capture {

bool IsPersistent(PyTypeObject* t);
bool IsEvolver(PyTypeObject* t);  // what such a container is changed by: its methods change nothing but the object
Effect EffectOfPersistent(PyObject* function);  // kUnknown: it makes no such container
// C code reads one from outside: what is in it is there as long as it is that very object. It is false after a Break.
bool NotePersistent(Session& s, PyObject* o);

}  // namespace framejit::capture
