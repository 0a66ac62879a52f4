// One framework call made ready to run many times: the callable resolved, constants built, holes for tensors and sizes.
#pragma once

#include <absl/container/inlined_vector.h>
#include <absl/functional/function_ref.h>

#include <memory>
#include <vector>

#include "framejit/call.h"
#include "tensor/own_calls.h"
#include "tensor/ref.h"

namespace framejit::tensor {

// Makes a Python object of an argument without tensors and symbols. `constants` are the objects that arguments of kind
// kObject name. Null with an exception set.
PyObject* MakeConstant(const Arg& a, const std::vector<PyObject*>& constants);

class CallStep {
 public:
  // slot_of(id) says in which slot Run() finds and puts tensor `id`. `constants` are borrowed during construction only.
  // callable: that of the callee, where it is known. False with a Python exception set if the callable or a constant
  // cannot be made.
  bool Init(const Call& call, const std::vector<PyObject*>& constants, absl::FunctionRef<int(TraceId)> slot_of,
            PyObject* callable = nullptr);
  // Makes the call. Returns a new reference to its result, or null with an exception set.
  PyObject* Invoke(PyObject* const* slots, const int64_t* symbols) const;
  // Invoke(), then puts the results into their slots (owned references; what was there is dropped). Returns -1 with an
  // exception set.
  int Run(PyObject** slots, const int64_t* symbols) const;

  ModeState mode;

 private:
  // An argument that is made anew for each call.
  struct Inner;
  struct Hole {
    enum Kind : uint8_t { kSlot, kInt, kFloat, kTuple, kList, kSlice, kDict, kConst } kind = kConst;
    int slot = 0;
    Ref constant;
    std::unique_ptr<Inner> inner;  // where it is neither a tensor nor a constant
  };
  struct Inner {
    shape::Int value;
    std::vector<Hole> items;
  };
  enum class Form : uint8_t {
    kVectorcall,
    kDescrGet,
    kGetItem,
    kSetItem,
    kUnary,
    kBinary,
    kBinarySwapped,
    kCompare,
    kOwn
  };

  bool InitArg(const Arg& a, const std::vector<PyObject*>& constants, absl::FunctionRef<int(TraceId)> slot_of,
               Hole* out);
  static PyObject* Build(const Hole& h, PyObject* const* slots, const int64_t* symbols);
  void PickForm(Callee callee);
  int Store(PyObject* value, const Arg& shape, PyObject** slots, size_t* next) const;

  Form form_ = Form::kVectorcall;
  union {
    descrgetfunc get;
    unaryfunc unary;
    binaryfunc binary;
    int compare;
    OwnCall own;
  } fn_ = {};
  Ref callable_;
  Ref kwnames_;
  std::vector<Hole> args_;  // The positional arguments, then the values of keywords.
  size_t positional_ = 0;
  std::unique_ptr<const Arg> result_;         // Null: it is one tensor.
  absl::InlinedVector<int, 2> result_slots_;  // In the order of Call::results.
};

// Sets grad and inference mode when they differ from the current ones; puts back what was at the start.
class ModeSwitch {
 public:
  ModeSwitch();
  ~ModeSwitch();
  ModeSwitch(const ModeSwitch&) = delete;
  void Set(ModeState m) {
    if (m.grad != now_.grad || m.inference != now_.inference) [[unlikely]]
      Change(m);
  }

 private:
  void Change(ModeState m);
  ModeState start_, now_;
  Ref inference_;  // torch's guard object, while it is entered
};

}  // namespace framejit::tensor
