// Guards: what a compiled segment relies on, and the native check of it.
//
// A Source says how to reach an object from the frame again; sources form a tree so that a shared prefix is walked once.
// A guard is a row (kind, source, expected). GuardBuilder collects rows while capturing; Finish() freezes them into a flat
// program that Check() runs over the frame's slots with no Python call and no allocation. Attribute prefixes are checked
// by dict version (3.11) or watcher (3.12+), so that a module with 200 parameters costs near nothing; when a version
// moved, the slow path re-checks the items and re-stamps.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framejit/call.h"
#include "framejit/shape.h"

namespace framejit::guard {

// To add a source kind: a row here, its walk in source.cc.
#define FRAMEJIT_SOURCES(X)                                                      \
  X(kSlot, "slot")             /* localsplus[index] (arguments, locals, stack) */ \
  X(kConst, "const")           /* a held object: globals dict, module, type */     \
  X(kInstanceDict, "__dict__") /* base.__dict__, as _PyObject_GetDictPtr */        \
  X(kDictItem, "dict_item")    /* base[key], base an exact dict (or dict subclass: the dict part) */ \
  X(kItem, "item")             /* base[index], base a list or tuple (subclasses: the C storage) */ \
  X(kCell, "cell")             /* contents of a cell */                            \
  X(kClosure, "closure")       /* function.__closure__[index] */                   \
  X(kDefaults, "defaults")     /* function.__defaults__ */                         \
  X(kKwDefaults, "kwdefaults") /* function.__kwdefaults__ */                       \
  X(kFuncDict, "func_dict")    /* function's own __dict__ */                       \
  X(kBoundSelf, "__self__")    /* method.__self__ */                               \
  X(kBoundFunc, "__func__")    /* method.__func__ */                               \
  X(kMember, "member")         /* base.name by a C member/slot descriptor (__slots__) */ \
  X(kType, "type")             /* type(base) */                                    \
  X(kGrad, "grad")             /* tensor.grad */                                   \
  X(kContextVar, "contextvar") /* value of a ContextVar in the current context, or absent */ \
  X(kSetItems, "dict_keys")    /* the tuple-like view of a dict's keys in order: only for kKeys guards */

enum class SourceKind : uint8_t {
#define X(e, n) e,
  FRAMEJIT_SOURCES(X)
#undef X
};

struct Source {
  SourceKind kind;
  const Source* base = nullptr;
  int index = 0;              // slot, item
  PyObject* object = nullptr; // kConst: the object; kDictItem, kMember: the key/name. Held by the builder, then the set.
  uint32_t id = 0;
  std::string str(PyObject* varnames_or_null = nullptr) const;  // "L['self'].layers[3]._parameters['weight']"
};

// To add a guard kind: a row here, its check in check.cc, its text in explain.cc.
#define FRAMEJIT_GUARDS(X)                                                        \
  X(kIs, "is")             /* same object */                                      \
  X(kTypeIs, "type is")    /* exact type */                                       \
  X(kEqual, "equals")      /* same exact type and equal value: int, float (bits), bool, str, bytes, None, ... */ \
  X(kAbsent, "absent")     /* dict has no such key (source: kDictItem), empty cell, ContextVar unset */ \
  X(kLength, "len")        /* list, tuple, dict, set: that many items */          \
  X(kKeys, "keys")         /* dict: exactly these keys, in this order (identity, then equality) */ \
  X(kTypeVersion, "type version") /* nothing along the type's MRO changed (source: the type) */ \
  X(kFunction, "function") /* same __code__, defaults, kwdefaults as when captured (function identity guarded apart) */ \
  X(kTensor, "tensor")     /* dtype, device, rank, sizes, strides, key set, requires_grad: TensorExpect */ \
  X(kNotAliased, "not aliased") /* two tensors share no memory; neither is the other */ \
  X(kSameObject, "same object")  /* two sources reach one object */               \
  X(kDifferentObject, "different objects")                                        \
  X(kIntSymbol, "int")     /* exact int; its value becomes a symbol */            \
  X(kShape, "shape")       /* a relation between symbols (shape::Guard) */        \
  X(kTorchState, "torch state")   /* grad mode, inference mode, autocast, default dtype/device, mode stacks, ... */ \
  X(kNumpyState, "numpy state")   /* errstate */

enum class Kind : uint8_t {
#define X(e, n) e,
  FRAMEJIT_GUARDS(X)
#undef X
};

struct TensorExpect {
  TensorMeta meta;      // symbolic sizes/strides mean: bind or compare
  uint64_t key_set = 0; // torch: dispatch key set; 0 for NumPy
};

struct Row {
  Kind kind;
  const Source* source = nullptr;
  const Source* other = nullptr;
  PyObject* object = nullptr;        // expected object / value (held)
  int64_t number = 0;
  TensorExpect tensor;
  shape::Guard shape;
  std::string where;                 // user's line that caused it
};

class GuardSet;

class GuardBuilder {
 public:
  GuardBuilder();
  ~GuardBuilder();
  const Source* Slot(int index);
  const Source* Const(PyObject* object);
  const Source* Child(SourceKind kind, const Source* base, int index = 0, PyObject* object = nullptr);  // interned
  void Add(Row row);                                   // duplicates are dropped
  void Is(const Source* s, PyObject* o) { Row r{Kind::kIs, s}; r.object = o; Add(std::move(r)); }
  void TypeIs(const Source* s, PyTypeObject* t) { Row r{Kind::kTypeIs, s}; r.object = (PyObject*)t; Add(std::move(r)); }
  void Equal(const Source* s, PyObject* o) { Row r{Kind::kEqual, s}; r.object = o; Add(std::move(r)); }
  void Absent(const Source* s) { Add(Row{Kind::kAbsent, s}); }
  size_t size() const;
  // tensor_sources[i]: where graph input i comes from. symbols: sources are read by tensor guards in order.
  std::shared_ptr<GuardSet> Finish(shape::Env& env, const std::vector<const Source*>& inputs);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class GuardSet {
 public:
  virtual ~GuardSet() = default;
  // slots: the frame's localsplus (or bound arguments laid out the same way); depth: entries in use.
  // On success fills inputs[] (borrowed references) and symbol values. Never raises, never runs Python code.
  virtual bool Check(PyObject* const* slots, PyObject** inputs, int64_t* symbols) = 0;
  virtual int num_inputs() const = 0;
  virtual int num_symbols() const = 0;
  // Why Check would fail now: first failing guard, expected and found value, where it came from. "" if it holds.
  virtual std::string Explain(PyObject* const* slots, PyObject* varnames) = 0;
  // The first failing row is a tensor size that could become a symbol: (input, dim) pairs to make dynamic next time.
  virtual std::vector<std::pair<int, int>> DynamicCandidates(PyObject* const* slots) = 0;
  virtual std::vector<std::string> Describe(PyObject* varnames) const = 0;  // every guard, one line each
};

}  // namespace framejit::guard
