// What C functions may do, as far as capture is concerned. A function without a row is unknown: calling it is a Break.
#pragma once

#include <string_view>

#include "capture/ref.h"

namespace framejit::capture {

class Session;

enum class Effect : uint8_t {
  kUnknown,
  kPure,  // reads its arguments, changes nothing, returns something new, primitive or one of its arguments' parts
  kMutatesSelf,  // changes its first argument, which must be fresh
  kItself,       // the scope of a profiler: it returns itself, and does nothing while no profiler is on
  kNothing,      // no effect that matters, returns None
  kOutput,       // prints, reads the clock, ...
  kRandom,
  kSpecial,     // It has a handler of its own in calls.cc.
  kStateQuery,  // a framework switch that the torch-state guard covers: answer is a constant
  kAsks,        // reads state of the process or the thread and has no effect: its answer is asked for again
  kNoScope,     // makes a context manager that does nothing here
  kMemo,        // fills a cache of its own: it is called for real once, so that its body then only reads
  kThreadState,
  kErrorState,  // numpy.errstate: one made here, before any call on NumPy's arrays in another state
  kHeldNumber,  // the number that a tensor holds, of a library that goes on with the tensor while compiling
  kAliases,     // which results of an operation on wrappers are arguments, or views of them
  kWarnings,    // what is done with warnings, in a scope: nothing that warns is captured
};

// What is known of a builtin function or type, by its identity.
Effect EffectOfFunction(PyObject* function);
// What is known of a library's Python function that must not be captured like others.
Effect EffectOfPython(PyFunctionObject* function);
// What is known of a method of a builtin type, by the type that defines it.
Effect EffectOfMethod(PyTypeObject* owner, const char* name);
// Which arguments a C function or method may compare with other objects: none, the key (the second), or all.
enum class Compares { kNone, kKey, kAll };
Compares WhatCompares(PyTypeObject* owner, std::string_view name);
// The descriptor that a bound C method (`log.append`, `log.__len__`) was made from, and the object it is bound to. Both
// null: `o` is something else.
struct Bound {
  Ref descriptor, self;
};
Bound UnbindBuiltin(PyObject* o);
// An iterator that gives the items of lists and tuples and looks into nothing.
inline bool GoesOver(PyObject* o) {
  return Py_IS_TYPE(o, &PyListIter_Type) || Py_IS_TYPE(o, &PyTupleIter_Type) || Py_IS_TYPE(o, &PyZip_Type) ||
         Py_IS_TYPE(o, &PyEnum_Type);
}
// The C type whose memory layout an instance of `t` has: `t` itself, or the base that its class statements began with.
PyTypeObject* LayoutOf(PyTypeObject* t);
// A tuple or a named tuple: its class answers for its items as tuple does.
bool ReadsAsTuple(PyObject* o);
// May instances of this C type be made during capture (their constructor only looks at its arguments)?
bool IsPureType(PyTypeObject* type);

// What `**other` puts into a dict. Where names lead to the items of a dict from outside, the program goes on with each
// as if it had read it by its name. New reference.
PyObject* Spread(Session& s, PyObject* other);

}  // namespace framejit::capture
