// What a host needs to know about the run in progress on this thread: the extern calls made ready by the GraphRunner,
// and whether the GIL was given up.
#pragma once

#include <unordered_map>

#include "framejit/compile.h"
#include "tensor/call_step.h"

namespace framejit::tensor {

// Results that are NumPy's in a graph of both frameworks: what is NULL in `made` and wanted comes from NumPy.
struct ArrayOutputs {
  const Buffer* first;
  const std::vector<bool>* wanted;  // by output
  std::vector<Ref> made;
};

struct RunContext {
  const std::unordered_map<const Call*, CallStep>* steps = nullptr;  // arguments are operand positions
  int64_t* symbols = nullptr;
  bool gil_released = false;
  std::vector<Ref>* taken = nullptr;  // the inputs, where the run is their last user
  ArrayOutputs* arrays = nullptr;
};
inline thread_local RunContext* current_run = nullptr;

Host& CupyHost();

// Holds the GIL while alive, taking it only if the run gave it up.
class HoldGil {
 public:
  HoldGil() : taken_(current_run && current_run->gil_released) {
    if (taken_) state_ = PyGILState_Ensure();
  }
  ~HoldGil() {
    if (taken_) PyGILState_Release(state_);
  }
  HoldGil(const HoldGil&) = delete;

 private:
  bool taken_;
  PyGILState_STATE state_{};
};

// Runs an extern call on Python operands; new reference to its result or null. The step is the prepared one, or made
// now.
PyObject* InvokeExtern(const Call& call, PyObject* const* operands);
// The results of `call` in `value`, flattened in order, borrowed from it. False with a Python exception.
bool FlattenResults(PyObject* value, std::vector<PyObject*>* out);

}  // namespace framejit::tensor
