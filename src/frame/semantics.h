// The operations of CPython's data model that bytecode needs, as one virtual table. The interpreter (interpreter.cc)
// decodes instructions, moves stack values and unwinds exceptions; every operation that can observe or change an object
// goes through here. The base class *is* CPython: each default calls the C API, so an interpreter with a plain
// Semantics executes a frame exactly as CPython would (the "concrete step"). Capture overrides operations to record
// them.
//
// Operands are borrowed; results are new references, or null / -1 with a Python exception set. Null / -1 *without* an
// exception means "CPython shall run this instruction" (it knows the exact error message): a hand-over in front of it,
// so an implementation may only answer that while nothing has changed. Next and LoadSpecial give null its own meaning.
#pragma once

#include "frame/frame.h"
#include "frame/slot.h"

namespace framejit::frame {

class Semantics {
 public:
  virtual ~Semantics() = default;

  // args[0..nargs) positional, then keyword values; args[-1] may be overwritten (PY_VECTORCALL_ARGUMENTS_OFFSET is
  // set).
  virtual PyObject* Call(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames);
  virtual PyObject* CallEx(PyObject* callable, PyObject* args /*any iterable*/, PyObject* kwargs /*dict or null*/);
  virtual PyObject* LoadAttr(PyObject* object, PyObject* name);
  // The attribute that is called next. 1: *method is a function to be called with `object` prepended; 0: *method is the
  // bound attribute; -1 as above. Here: LoadAttr. (ConcreteSemantics saves the bound method.)
  virtual int LoadMethod(PyObject* object, PyObject* name, PyObject** method);
  virtual int StoreAttr(PyObject* object, PyObject* name, PyObject* value /*null: delete*/);
  virtual PyObject* LoadGlobal(PyObject* globals, PyObject* builtins, PyObject* name);  // Null, no error: not found.
  virtual int StoreGlobal(PyObject* globals, PyObject* name, PyObject* value /*null: delete*/);
  virtual PyObject* LoadCell(PyObject* cell);  // Null without an error means that it is empty.
  virtual int StoreCell(PyObject* cell, PyObject* value /*null: delete*/);
  virtual PyObject* Binary(int nb_op, PyObject* a, PyObject* b);  // NB_ADD ... NB_INPLACE_XOR (opcode.h)
  virtual PyObject* Unary(int kind, PyObject* a);                 // The kind is '-', '+' or '~'.
  virtual PyObject* Compare(PyObject* a, PyObject* b, int op);    // Py_LT ...
  virtual int Is(PyObject* a, PyObject* b);
  virtual bool Raises(PyObject*) { return true; }   // `raise` of this exception, which notes where. False: an exception
  virtual bool Catches(PyObject*) { return true; }  // an `except` clause looks at these classes. False: an exception
  virtual int Contains(PyObject* container, PyObject* value);
  virtual int Truth(PyObject* a);  // It is never asked of True and False.
  virtual PyObject* GetItem(PyObject* object, PyObject* key);
  virtual int SetItem(PyObject* object, PyObject* key, PyObject* value /*null: delete*/);
  virtual PyObject* Iter(PyObject* object);
  virtual PyObject* Next(PyObject* iterator);  // Null without an error means that it is exhausted.
  virtual PyObject* Format(PyObject* value, int conversion /*0,1 str,2 repr,3 ascii*/, PyObject* spec /*or null*/);
  virtual PyObject* Import(PyObject* name, PyObject* globals, PyObject* locals, PyObject* fromlist, PyObject* level);
  virtual PyObject* ImportFrom(PyObject* module, PyObject* name);
  // count/first are as for UNPACK_SEQUENCE and UNPACK_EX; fills items[] (new references) in order.
  virtual int Unpack(PyObject* sequence, int before, int after /*-1: no star*/, PyObject** items);
  virtual PyObject* BuildTuple(PyObject* const* items, Py_ssize_t n);
  virtual PyObject* BuildList(PyObject* const* items, Py_ssize_t n);
  virtual PyObject* BuildSet(PyObject* const* items, Py_ssize_t n);
  // Key i is keys_values[i * stride], its value follows it. (stride is 2)
  virtual PyObject* BuildMap(PyObject* const* keys_values, Py_ssize_t n, Py_ssize_t stride);
  virtual PyObject* BuildSlice(PyObject* start, PyObject* stop, PyObject* step /*or null*/);
  virtual PyObject* BuildString(PyObject* const* parts, Py_ssize_t n);
  virtual int ListAppend(PyObject* list, PyObject* value);
  virtual int ListExtend(PyObject* list, PyObject* iterable);
  virtual int SetAdd(PyObject* set, PyObject* value);
  virtual int SetUpdate(PyObject* set, PyObject* iterable);
  virtual int MapAdd(PyObject* dict, PyObject* key, PyObject* value);
  virtual int DictUpdate(PyObject* dict, PyObject* other);
  virtual int DictMerge(PyObject* dict, PyObject* other, PyObject* callee /*for the message*/);
  virtual PyObject* ListToTuple(PyObject* list);
  virtual PyObject* MakeFunction(PyObject* code, PyObject* globals);  // closure, defaults are set by SetFunctionField
  virtual int SetFunctionField(PyObject* function, int which /*1 defaults 2 kwdefaults 4 annotations 8 closure*/,
                               PyObject* value);
  virtual PyObject* MakeCell(PyObject* value /*or null*/);
  virtual PyObject* LoadSuperAttr(PyObject* super, PyObject* cls, PyObject* self, PyObject* name);  // 3.12+
  virtual PyObject* LoadBuildClass(PyObject* builtins);
  // Looks `name` up on the type, bound to object (with statements). Null without error: missing.
  virtual PyObject* LoadSpecial(PyObject* object, PyObject* name);
  // What a match statement asks of its subject: isinstance, len, and a flag of its type (Py_TPFLAGS_MAPPING,
  // ..._SEQUENCE).
  virtual int IsInstance(PyObject* object, PyObject* type);
  virtual PyObject* Length(PyObject* object);
  virtual int HasTypeFlag(PyObject* object, unsigned long flag);
  // One step of `yield from` / await: *result is what was yielded (1) or the sub-iterator's return value (0).
  virtual int Send(PyObject* iterator, PyObject* value, PyObject** result);

  // Called before every instruction (index of its first unit, EXTENDED_ARG included). false: stop in front of it.
  virtual bool Before(FjFrame* frame, int index) { return true; }
  // An exception is set. false: leave the frame at once without looking for handlers (capture unwinding a break).
  virtual bool MayHandle() { return true; }
  // The rest of this frame is about to go to CPython at an instruction we do not run, or because tracing came on (not
  // asked at YIELD_VALUE and RETURN_GENERATOR, which run and leave). false, with an exception set: leave at once
  // instead.
  virtual bool MayHandOver(FjFrame* frame, int index) { return true; }
};

// CPython itself, as fast as we can: what concrete steps use.
class ConcreteSemantics : public Semantics {
 public:
  int LoadMethod(PyObject* object, PyObject* name, PyObject** method) override;
};

enum class Outcome {
  kReturned,  // *result is the value; the frame is untouched at its RETURN instruction: the caller decides how to end
              // it
  kRaised,    // a Python exception is set, traceback entry added; no handler in this frame (*index: the faulting unit)
  kStopped,   // Before() said so, or `max_steps` ran out; the frame is valid at *index
  kHandOver,  // an instruction we do not run (YIELD_VALUE, RETURN_GENERATOR, class bodies, unbound names, ...)
              // or tracing was turned on; the frame is valid at *index: give it to CPython
};

// Runs `frame`, which the caller has linked as current (driver.h), from fj_next(frame) on; max_steps < 0: no limit.
// Locals, cells and stack live in the frame itself. Polls the eval breaker after calls and on back edges.
Outcome Interpret(FjFrame* frame, Semantics& semantics, long max_steps, int* index, PyObject** result);

// The exception that is set was raised by the instruction whose reporting unit is `unit`: adds the traceback entry, and
// either moves the frame to its handler (kStopped) or reports that there is none (kRaised).
Outcome Unwind(FjFrame* frame, Semantics& semantics, int unit, int* index);

}  // namespace framejit::frame
