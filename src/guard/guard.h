// Guards: what a compiled segment relies on, and the native check of it.
//
// A Source says how to reach an object from the frame again; sources form a tree so that a shared prefix is walked
// once. A guard is a row (kind, source, expected). GuardBuilder collects rows while capturing; Finish() freezes them
// into a flat program that Check() runs over the frame's slots with no Python call and no allocation. Attribute
// prefixes are checked by dict version (3.11) or watcher (3.12+), so that a module with 200 parameters costs near
// nothing; when a version moved, the slow path re-checks the items and re-stamps.
//
// What a set holds: keys, values, code and plain containers strongly; objects that can be referenced weakly (modules,
// tensors, functions, classes, instances) weakly, so that a compiled entry keeps no model alive. An entry whose object
// died is Dead().
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "framejit/call.h"
#include "framejit/shape.h"

namespace framejit::guard {

// To add a source kind: a row here, its walk in source.cc.
#define FRAMEJIT_SOURCES(X)                                                                             \
  X(kSlot, "slot")             /* localsplus[index] (arguments, locals, stack) */                       \
  X(kConst, "const")           /* a held object: globals dict, module, type */                          \
  X(kInstanceDict, "__dict__") /* base.__dict__, as _PyObject_GetDictPtr */                             \
  X(kDictItem, "dict_item")    /* base[key], base an exact dict (or dict subclass: the dict part) */    \
  X(kItem, "item")             /* base[index], base a list, tuple (subclasses: the C storage), deque */ \
  X(kCell, "cell")             /* contents of a cell */                                                 \
  X(kClosure, "closure")       /* function.__closure__[index] */                                        \
  X(kDefaults, "defaults")     /* function.__defaults__ */                                              \
  X(kKwDefaults, "kwdefaults") /* function.__kwdefaults__ */                                            \
  X(kFuncDict, "func_dict")    /* function's own __dict__ */                                            \
  X(kBoundSelf, "__self__")    /* method.__self__ */                                                    \
  X(kBoundFunc, "__func__")    /* method.__func__ */                                                    \
  X(kMember, "member")         /* base.name by a C member/slot descriptor (__slots__); of a class: */   \
                               /* what its metaclass's C getters say (__name__, __bases__) */           \
  X(kType, "type")             /* type(base) */                                                         \
  X(kGrad, "grad")             /* tensor.grad */                                                        \
  X(kContextVar, "contextvar") /* value of a ContextVar in the current context, or absent */            \
  X(kAnswer, "answer")         /* base(*object), a C function without effects; a number or string */    \
  X(kReferent, "referent")     /* what a weak reference refers to, or absent */                         \
  X(kKey, "key")               /* list(base)[index], base a dict or set (subclasses: the C part) */

enum class SourceKind : uint8_t {
#define X(e, n) e,
  FRAMEJIT_SOURCES(X)
#undef X
};

struct Source;
using Texts = std::unordered_map<const Source*, std::string>;

struct Source {
  const Source* base = nullptr;
  // kConst: the object; kDictItem, kMember: the key or name. The builder holds it, then the set.
  PyObject* object = nullptr;
  int index = 0;    // The slot or item. kConst: 1 once `object` is a weak reference to the object (after Finish).
  uint32_t id = 0;  // Its number in the pool.
  SourceKind kind;
  // "L['self'].layers[3]._parameters['weight']". bases: texts of what others hang on, kept from one call to the next.
  std::string str(PyObject* varnames_or_null = nullptr, Texts* bases = nullptr) const;
};

// To add a guard kind: a row here, its check in check.cc, its text in explain.cc. A source that leads nowhere (no such
// key, an empty cell, an unbound local) fails every kind but kAbsent, kLength 0 and kKeys of nothing.
#define FRAMEJIT_GUARDS(X)                                                                                             \
  X(kIs, "is")            /* same object */                                                                            \
  X(kTypeIs, "type is")   /* exact type */                                                                             \
  X(kEqual, "equals")     /* same exact type and equal value: int, float (bits), bool, str, bytes, None, tuples and */ \
                          /* frozensets of such, C-implemented values. A set is compared with a frozenset. */          \
  X(kAbsent, "absent")    /* dict has no such key (source: kDictItem), empty cell, ContextVar unset */                 \
  X(kLength, "len")       /* list, tuple, dict, set, deque: that many items */                                         \
  X(kNoItems, "no items") /* an exact dict or OrderedDict, empty */                                                    \
  X(kEntries,                                                                                                          \
    "entries") /* object: two tuples of strings; a dict, that has none of the first, and has an exact dict or */       \
               /* OrderedDict, empty, at each of the second: what many objects of one class are asked alike */         \
  X(kKeys,                                                                                                             \
    "keys") /* dict, set: exactly these keys (object: list or tuple), in this order (identity, then equality) */       \
  X(kTypeVersion,                                                                                                      \
    "type version") /* nothing along the MRO of the type `object` changed (source: the type); with `name`: */          \
                    /* only the lookup of this attribute must give the same object as when the row was added; */       \
                    /* such rows of one type share a test */                                                           \
  X(kFunction,                                                                                                         \
    "function")        /* same __code__, defaults, kwdefaults as `object`, a function, has when the row is added, */   \
                       /* and as disabled (function identity guarded apart) */                                         \
  X(kTensor, "tensor") /* dtype, device, rank, sizes, strides, key set, requires_grad: TensorExpect */                 \
  X(kLeaf, "leaf")     /* a tensor that no operation with gradients made; number 1: that one made, and no view */      \
  X(kNoHooks, "no hooks") /* a tensor whose gradient no hook of its own sees */                                        \
  X(kApart, "apart") /* shares no memory with another tensor that has such a row, if either is written: `number` */    \
  X(kDistinct, "distinct")      /* another object than all that have such a row */                                     \
  X(kSameObject, "same object") /* two sources reach one object */                                                     \
  X(kDifferentObject, "different objects")                                                                             \
  X(kIntSymbol, "int")         /* exact int; its value becomes the symbol `number` */                                  \
  X(kFloatSymbol, "float")     /* exact float; its bits become the symbol `number` */                                  \
  X(kFloatCompare, "compares") /* float: `number` & 7 (Py_LT, ...) with the float `object` gives `number` >> 3 */      \
  X(kShape, "shape")           /* a relation between symbols (shape::Guard) */                                         \
  X(kTorchState,                                                                                                       \
    "torch state") /* grad mode, inference mode, autocast, default dtype/device, mode stacks, ..., as they */          \
                   /* stood when the builder was made */                                                               \
  X(kNumpyState, "numpy state") /* errstate, likewise */

enum class Kind : uint8_t {
#define X(e, n) e,
  FRAMEJIT_GUARDS(X)
#undef X
};

struct TensorExpect {
  TensorMeta meta;       // symbolic sizes/strides mean: bind or compare
  uint64_t key_set = 0;  // torch: dispatch key set; 0 for NumPy
  bool quiet = false;    // of a subclass that torch treats as a plain tensor; another row says which
  bool wrapper = false;  // Likewise, is its class one with a __torch_dispatch__?
};

using Line = std::shared_ptr<const std::string>;  // "file:line", or null: rows of one line share the text
std::string Text(const Line& line);

struct Row {
  Kind kind;
  const Source* source = nullptr;
  const Source* other = nullptr;
  PyObject* object = nullptr;  // expected object / value (held)
  int64_t number = 0;
  std::shared_ptr<const TensorExpect> tensor;  // kTensor
  std::shared_ptr<const shape::Guard> shape;   // kShape
  Line where;                                  // The user's line that caused it.
  PyObject* name = nullptr;                    // kTypeVersion: the attribute (a str), or null
  bool here = false;                           // `where` is asked of the builder's SetWhere, if the row is a new one
};

bool Compare(double a, double b, int op);  // Py_LT, ...

class GuardSet;

class GuardBuilder {
 public:
  GuardBuilder();
  ~GuardBuilder();
  const Source* Slot(int index);
  const Source* Const(PyObject* object);
  std::vector<PyObject*> Constants() const;  // the types, functions, code and dicts among these, borrowed
  const Source* Child(SourceKind kind, const Source* base, int index = 0,
                      PyObject* object = nullptr);  // Equal sources are one object.
  void Add(Row row);                                // A row that is there already is dropped.
  void SetWhere(std::function<Line()> where);
  void Is(const Source* s, PyObject* o) {
    Row r{Kind::kIs, s};
    r.object = o;
    Add(std::move(r));
  }
  void TypeIs(const Source* s, PyTypeObject* t) {
    Row r{Kind::kTypeIs, s};
    r.object = (PyObject*)t;
    Add(std::move(r));
  }
  void Equal(const Source* s, PyObject* o) {
    Row r{Kind::kEqual, s};
    r.object = o;
    Add(std::move(r));
  }
  void Function(const Source* s, PyFunctionObject* f) {
    Row r{Kind::kFunction, s};
    r.object = (PyObject*)f;
    Add(std::move(r));
  }
  void Absent(const Source* s) { Add(Row{Kind::kAbsent, s}); }
  // inputs[i]: where graph input i comes from. Symbols are bound by the first tensor or int guard that has them as a
  // plain size or stride, and held to their range; env.guards() are part of the set. Throws diag::InternalError if a
  // relation needs a symbol that nothing binds. The caller must Check() the result once on the frame that was captured
  // and drop it if it does not hold (something was read that cannot be reached again). Sources stay valid as long as
  // the set.
  std::shared_ptr<GuardSet> Finish(shape::Env& env, const std::vector<const Source*>& inputs);

  // Sources that are asked for from now on are marked; so is what Mark is called for.
  void SetMarking(bool on);
  void Mark(const Source* s);
  // What is guarded of marked sources, as a set of its own that is checked later. To be called before Finish.
  struct Part {
    std::shared_ptr<GuardSet> set;  // its slots: what stood in `roots`; its inputs: `tensors`, then `numbers`
    std::vector<const Source*> roots;
    std::vector<int> tensors;                       // of those that were given: tensors of which no more is asked here
    std::vector<std::pair<int64_t, bool>> numbers;  // symbols: of a float?
  };
  Part TakeMarked(const std::vector<const Source*>& tensors) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class GuardSet {
 public:
  virtual ~GuardSet() = default;
  // slots: the frame's localsplus (or bound arguments laid out the same way); every slot that a source names must
  // exist, null means unbound. On success fills inputs[num_inputs()] (borrowed: alive as long as the slots' objects are
  // not changed) and symbols[num_symbols()]. Never raises, never runs Python code. Needs the GIL; may be called while
  // another Check of the same set is suspended (it then reports a miss).
  virtual bool Check(PyObject* const* slots, PyObject** inputs, int64_t* symbols) = 0;
  virtual int num_inputs() const = 0;
  virtual int num_symbols() const = 0;
  // An object that a guard expects has died: Check will never hold again.
  virtual bool Dead() const = 0;
  // Why Check would fail now: first failing guard, expected and found value, where it came from. "" if it holds.
  virtual std::string Explain(PyObject* const* slots, PyObject* varnames) = 0;
  // Where the first failing guard is of a size or number that could be a symbol: (input, dim) pairs to be symbols next
  // time. Or {(-1, -1)}: a tensor is empty along a dimension where those seen are not. Of every input but parameters
  // where a dimension differs, it is that one and all that are neither 0 nor 1: batch and length cost one recompile
  // together.
  virtual std::vector<std::pair<int, int>> DynamicCandidates(PyObject* const* slots) = 0;
  // Source::str() of an input.
  virtual std::string InputName(int input, PyObject* varnames) const = 0;
  // As DynamicCandidates for ints that were guarded by value: Source::str() of the ints to make symbols next time.
  virtual std::vector<std::string> DynamicInts(PyObject* const* slots) = 0;
  virtual std::vector<std::string> Describe(PyObject* varnames) const = 0;  // every guard, one line each, as a tree
  // For tests: appends what the set covers of the objects that it reaches now to `cover_list`, if there is one.
  virtual void Cover(PyObject* const* slots) const = 0;
  // The object that a source of this set leads to now: new reference, or null (no error set) if there is none.
  virtual PyObject* Resolve(const Source* source, PyObject* const* slots) const = 0;
  // For the one owner that takes part in garbage collection: visits every strong reference.
  virtual int Traverse(visitproc visit, void* arg) = 0;
};

// The list to which every set that is taken into use says what it covers: (kind of source, what it is read from, key,
// value, [(kind of guard, expected)]). Null: nobody wants to know. guard_testing.cover sets it.
extern PyObject* cover_list;

bool MemoryOverlaps(PyObject* a, PyObject* b);
// Tensors, and whether they are written: does one that is written share memory with another one? Loses their order.
struct Extent {
  const char *low, *high;
  bool written;
};
Extent ExtentOf(PyObject* tensor, bool written);
bool ShareWritten(std::vector<Extent>& all);

}  // namespace framejit::guard
