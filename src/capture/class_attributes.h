#pragma once

#include <Python.h>

#include <cstddef>
#include <string_view>

namespace framejit::capture {

class CaptureSemantics;
class PendingEffects;
class Session;

std::string_view ModuleOf(PyTypeObject* type);  // by its dict, without asking the metaclass; empty: it names none

// torch.compile writes to classes of its own at every call: of them only what was read counts, not each change.
bool IsBookkeeping(PyTypeObject* type);

// One that is asked before the object's own dict: what can only be written (no __get__) is not.
bool IsDataDescr(PyObject* d);

bool IsSlot(PyObject* d);  // an attribute of a class with __slots__ that may be written

// May C code that reads a class or an instance of it see that stores of functions, or of what it is called, wait?
bool ShowsToC(const PendingEffects& pending, PyObject* o);
bool StoresFunctions(const PendingEffects& pending);  // Do stores of functions to classes wait?
bool NamesClasses(const PendingEffects& pending);     // Is a class called otherwise from the exit on?

// Is it a class of the module logging, or of one below it, or has it such a base? Records read its objects at the exit.
bool IsOfLogging(PyTypeObject* type);

bool MakesPlainClasses(PyTypeObject* metatype);  // type or abc.ABCMeta
// Answers builtins.__build_class__(body, name, *bases).
PyObject* BuildClass(CaptureSemantics& c, Session& s, PyObject* const* args, Py_ssize_t n);

std::nullptr_t NoAttribute(PyObject* o, PyObject* name);  // Sets the AttributeError.

}  // namespace framejit::capture
