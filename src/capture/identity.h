// Which object a number, a string or a weak reference from outside is.
#pragma once

#include <optional>

#include "capture/session.h"

namespace framejit::capture {

// Where a number that became a symbol was found. Null: it was computed, or is no such number.
const Source* FoundAt(PyObject* symbol);

// Are two of these one object? They are guarded by value otherwise: two equal ones may be two. Nothing: they are no
// such ones. -1: a Break, at two equal numbers of which one is a symbol.
std::optional<int> IsOfValues(Session& s, PyObject* a, PyObject* b);

// Does a key run nothing of the program's when it is looked up? It is a primitive, a text, a type, or a tuple of such.
bool ComparesAsItIs(PyObject* key);
// A number that is none is found, and equal in containers, by what object it is: guards for that.
void PinNan(Session& s, PyObject* o);
// What a lookup asks of a key, of its class; of a tuple, of its items.
void NoteComparison(Session& s, PyObject* key);

// Such a tuple with Session::AsKey of its items. Null: an error.
Ref TupleAsKey(Session& s, PyObject* key);

// Where it is from outside a private one may stand for it (Session::WriteList).
bool IsListOrDeque(PyObject* o);

// weakref.ref of an object from outside: the one that the object has by then, in each run. Null without an error: it
// was made here.
PyObject* WeakReference(Session& s, PyObject* o);

// Does code that was run here have this very object as a literal? Then it stands for both, what was found and what is
// written there.
bool IsLiteral(Session& s, PyObject* o);

}  // namespace framejit::capture
