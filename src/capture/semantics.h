// CaptureSemantics: the data model as the captured code sees it. Reads of outside objects take guards, tensor
// operations go to the session, writes outside are kept or break, the rest is CPython itself on private objects.
#pragma once

#include "capture/policy/loops.h"
#include "capture/session.h"

namespace framejit::capture {

class CaptureSemantics : public frame::Semantics {
 public:
  CaptureSemantics(Session& s, Compiled& compiled) : s_(s), loops_(s, compiled) {}

  PyObject* Call(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames) override;
  PyObject* CallEx(PyObject* callable, PyObject* args, PyObject* kwargs) override;
  PyObject* LoadAttr(PyObject* object, PyObject* name) override;
  int StoreAttr(PyObject* object, PyObject* name, PyObject* value) override;
  PyObject* LoadGlobal(PyObject* globals, PyObject* builtins, PyObject* name) override;
  int StoreGlobal(PyObject* globals, PyObject* name, PyObject* value) override;
  PyObject* LoadCell(PyObject* cell) override;
  int StoreCell(PyObject* cell, PyObject* value) override;
  PyObject* Binary(int nb_op, PyObject* a, PyObject* b) override;
  PyObject* Unary(int kind, PyObject* a) override;
  PyObject* Compare(PyObject* a, PyObject* b, int op) override;
  int Is(PyObject* a, PyObject* b) override;
  bool Raises(PyObject* exception) override;
  bool Catches(PyObject* classes) override;
  int Contains(PyObject* container, PyObject* value) override;
  int Truth(PyObject* a) override;
  PyObject* GetItem(PyObject* object, PyObject* key) override;
  int SetItem(PyObject* object, PyObject* key, PyObject* value) override;
  PyObject* Iter(PyObject* object) override;
  PyObject* Next(PyObject* iterator) override;
  // As Next, but the StopIteration with which the iterator ended, if it set one, stays: it holds what a generator
  // returned.
  PyObject* NextOrEnd(PyObject* iterator);
  PyObject* Format(PyObject* value, int conversion, PyObject* spec) override;
  PyObject* Import(PyObject* name, PyObject* globals, PyObject* locals, PyObject* fromlist, PyObject* level) override;
  int Send(PyObject* receiver, PyObject* value, PyObject** result) override;
  PyObject* ImportFrom(PyObject* module, PyObject* name) override;
  int Unpack(PyObject* sequence, int before, int after, PyObject** items) override;
  PyObject* BuildTuple(PyObject* const* items, Py_ssize_t n) override;
  PyObject* BuildList(PyObject* const* items, Py_ssize_t n) override;
  PyObject* BuildSet(PyObject* const* items, Py_ssize_t n) override;
  PyObject* BuildMap(PyObject* const* keys_values, Py_ssize_t n, Py_ssize_t stride) override;
  PyObject* BuildSlice(PyObject* start, PyObject* stop, PyObject* step) override;
  PyObject* BuildString(PyObject* const* parts, Py_ssize_t n) override;
  int ListAppend(PyObject* list, PyObject* value) override;
  int ListExtend(PyObject* list, PyObject* iterable) override;
  int SetAdd(PyObject* set, PyObject* value) override;
  int SetUpdate(PyObject* set, PyObject* iterable) override;
  int MapAdd(PyObject* dict, PyObject* key, PyObject* value) override;
  int DictUpdate(PyObject* dict, PyObject* other) override;
  int DictMerge(PyObject* dict, PyObject* other, PyObject* callee) override;
  PyObject* ListToTuple(PyObject* list) override;
  PyObject* MakeFunction(PyObject* code, PyObject* globals) override;
  int SetFunctionField(PyObject* function, int which, PyObject* value) override;
  PyObject* MakeCell(PyObject* value) override;
  PyObject* LoadSuperAttr(PyObject* super, PyObject* cls, PyObject* self, PyObject* name) override;
  PyObject* LoadBuildClass(PyObject* builtins) override;
  PyObject* LoadSpecial(PyObject* object, PyObject* name) override;
  int IsInstance(PyObject* object, PyObject* type) override;
  PyObject* Length(PyObject* object) override;
  int HasTypeFlag(PyObject* object, unsigned long flag) override;
  bool Before(FjFrame* frame, int index) override;
  bool MayHandle() override;
  bool MayHandOver(FjFrame* frame, int index) override;

  long root_instructions() const { return root_instructions_; }
  int root_index() const { return root_index_; }  // The index of the last instruction that was begun.
  const LoopWatch& loops() const { return loops_; }
  long clean_instructions() const { return clean_instructions_; }  // run when last no new exception was being handled
  // The default attribute protocol (object.__getattribute__ / __setattr__), guards included.
  PyObject* GenericGetAttr(PyObject* object, PyObject* name);
  PyObject* FindAttr(PyObject* object, PyObject* name, bool* missing);  // Where it is missing: null without an error.
  int GenericSetAttr(PyObject* object, PyObject* name, PyObject* value);

 private:
  friend struct BuiltinTable;
  friend class CCall;
  // The parts of Call, in the order in which they are asked.
  PyObject* CallMethod(PyObject* method, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallNamed(PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallObject(PyObject* callable, PyObject** args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallPartial(PyObject* partial, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* Referent(PyObject* reference);
  PyObject* CallPython(PyObject* function, PyObject* const* args, size_t nargs, PyObject* kwnames);
  PyObject* BehindSwitch(PyFunctionObject* function);
  bool NoteFunction(PyFunctionObject* function);  // guards for what a call of it depends on; false on Break
  PyObject* ModulePlumbing(PyFunctionObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                           bool* handled);
  PyObject* ModuleItem(PyObject* self, PyObject* name, bool* handled);
  PyObject* CallModule(PyFunctionObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                       bool* handled);
  bool NoGlobalHooks(PyFunctionObject* call);
  bool NoOwnHooks(PyObject* self, PyObject* dict, const Source* source, bool read);
  PyFunctionObject* MethodBehind(PyObject* self, PyObject* dict, const Source* source, PyObject* name, bool read);
  PyObject* CallLru(PyObject* cached, PyObject** args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* Asked(PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallAttrGetter(PyObject* getter, PyObject* object);
  PyObject* MissingItem(PyObject* dict, PyObject* key);
  PyObject* OwnCell(PyObject* cell);
  PyObject* OwnCells(PyObject* closure);
  int StoreClassAttr(PyTypeObject* type, PyObject* name, PyObject* value);
  int StoreTensorAttr(PyObject* tensor, PyObject* name, PyObject* value);
  int StoreSlot(PyObject* o, PyObject* name, PyObject* descriptor, PyObject* value);
  // Output that the segment's exit makes (effects.cc). Null without an error: it must be made at its place.
  PyObject* Output(PyObject* function, const char* name, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* Print(PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* Warn(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* Log(PyFunctionObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* ProfilerRange(PyObject* scope);
  // As Call, of functions that belong to NumPy. Null without an error: to be called as any other.
  PyObject* ScipyCall(const Callee& name, PyObject* callable, PyObject* const* args, Py_ssize_t nargs,
                      PyObject* kwnames);
  PyObject* NumpyCall(PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallOfObjects(PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* Ended(PyObject* result);
  PyObject* TypeQuestion(PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* UfuncMethod(PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* Outer(const Callee& ufunc, PyObject* a, PyObject* b);
  PyObject* NewArray(PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  // An operator of torch.library. Null without an error: to be called as any other function of the framework.
  PyObject* CallOperator(PyObject* op, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* LendResults(PyObject* results);  // of an operator (KernelReads::Lend); may be null
  PyObject* CallComposite(PyObject* composite, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallCustom(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallCheckpoint(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  // Null without an error: to be called as any other.
  PyObject* CallHigherOrder(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallLinearize(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallBackwardHook(PyObject* function, PyObject* const* args, Py_ssize_t nargs);
  // plain: by type.__call__ itself, whatever the metaclass has.
  PyObject* CallType(PyTypeObject* type, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                     bool plain = false);
  PyObject* CallPureType(PyTypeObject* type, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* Volatile(PyObject* tensor, PyObject* name);
  PyObject* LegacyVariable(PyObject* type, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  PyObject* CallC(PyObject* callable, PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  bool ForC(PyObject** args, Py_ssize_t n, Py_ssize_t asked_nothing = 0);
  PyObject* Reduced(PyObject* o, PyObject* protocol);
  PyObject* UpdateDict(PyObject* dict, PyObject* with);
  PyObject* ImplicitSuper();
  PyObject* ModuleAttr(PyObject* module, PyObject* name);
  PyObject* TypeAttr(PyTypeObject* type, PyObject* name);
  bool NoteClassValues(PyTypeObject* type);
  PyObject* ClassFact(PyTypeObject* type, PyObject* name);
  bool NoteText(PyObject* o);  // str, repr or format is asked of it. False on Break
  void NoteNames();            // The text of an exception is read.
  PyObject* SuperAttr(PyObject* super, PyObject* name);
  PyObject* FrameAbove(PyFrameObject* frame, long up);  // Among the frames of this capture.
  PyObject* FrameAttr(PyObject* frame, PyObject* name);
  PyObject* FunctionAttr(PyObject* function, PyObject* name);
  PyObject* ClassValue(PyObject* descriptor, PyObject* object, PyTypeObject* type);
  PyObject* InstanceDict(PyObject* object, const Source** source);

  Session& s_;
  int root_index_ = 0;
  long root_instructions_ = 0, clean_instructions_ = 0;
  PyObject* const handled_ = Ref(PyErr_GetHandledException()).get();  // alive while capture runs: its handler is below
  PyFunctionObject* no_global_hooks_ = nullptr;                       // The last function whose globals were looked at.
  size_t writes_then_ = 0;                                            // The number of writes at that time.
  FjFrame* current_ = nullptr;                                        // The frame whose instruction is being run.
  int index_ = 0;                                                     // The index of that instruction.
  LoopWatch loops_;
  long instructions_ = 0;
  const long max_instructions_ = std::stol(diag::GetOption("max_unroll"));
  const int max_depth_ = std::stoi(diag::GetOption("max_depth"));
};

// Is it torch.autograd.Function.apply, which is an unbound function of Python's, or from torch 2.14 on a bound one of
// C's?
bool IsFunctionApply(PyObject* function);
bool IsCheckpoint(PyObject* function);    // Is it torch.utils.checkpoint.checkpoint?
bool IsLinearize(PyObject* function);     // Is it torch.func.linearize?
bool IsHigherOrder(PyObject* function);   // Is it torch._ops.HigherOrderOperator.__call__?
bool IsBackwardHook(PyObject* function);  // Is it what torch does before or behind a module with hooks of its backward?

}  // namespace framejit::capture
