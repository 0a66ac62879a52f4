// What capture knows of types that are written in C, by their name: a row each in types.cc.
#pragma once

#include <Python.h>

#include <cstdint>

namespace framejit::capture {

// The types that some place treats in a way of its own.
enum class CType : uint8_t {
  kOther,
  kTorchSize,
  kTorchDevice,
  kTorchDType,
  kTorchLayout,
  kTorchMemoryFormat,
  kTorchTensorType,  // the metaclass of torch.FloatTensor
  kUfunc,
  kNumpyFunction,  // dispatches on the types of its arguments
  kNumpyDType,
  kNumpyInt64,
  kNumpyBool,
  kUnionType,
  kGenericAlias,
  kMethodWrapper,
  kLruCache,
  kPartial,
  kAttrGetter,
  kMethodCaller,
  kContextVar,
  kDecimal,
  kDeque,
  kDefaultDict,
  kOrderedDict,
  kTextFile,
  kStringIO,
};

struct TypeFacts {
  enum Flag : uint16_t {
    kValue = 1u << 0,     // immutable: guarded by value where it is found
    kConstant = 1u << 1,  // It is guarded by identity.
    kPlain = 1u << 2,  // its attributes are facts about the object: reading them has no effect, and asks nothing else
    kPureMethods = 1u << 3,  // every method reads its arguments and changes nothing
    kDraws = 1u << 4,        // its methods draw random numbers
    kMadeFreely = 1u << 5,   // its constructor only looks at its arguments
    kStays = 1u << 6,        // the very object may be a result again
    kReduced = 1u << 7,      // as a result it is made again of what its __reduce__ says
    kOfNumpy = 1u << 8,
    kNotices = 1u << 9,  // an iterator that refuses to go on once what it iterates over was written
  };
  uint16_t flags = 0;
  CType type = CType::kOther;
  bool Has(Flag flag) const { return flags & flag; }
};

TypeFacts FactsOf(PyTypeObject* t);
inline bool OfType(PyTypeObject* t, CType type) {
  return FactsOf(t).type == type;
}
inline bool OfType(PyObject* o, CType type) {
  return OfType(Py_TYPE(o), type);
}

bool IsValue(PyObject* o);         // an immutable object of a C type (torch.device, range, slice, ...)
bool IsPlainData(PyObject* o);     // Has its type TypeFacts::kPlain?
bool IsConstantKind(PyObject* o);  // constant by identity: type, function, module, builtin, dtype, ...

}  // namespace framejit::capture
