// What a host knows of its run: the extern calls that the GraphRunner has made ready, sizes that data decides, inputs
// to let go of. Every run has a host of its own.
#pragma once

#include <absl/functional/function_ref.h>

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
  std::vector<Ref>* taken = nullptr;  // the inputs, where the run is their last user
  ArrayOutputs* arrays = nullptr;
};

using UseHost = absl::FunctionRef<void(Host&)>;
void WithTorchHost(RunContext& run, UseHost use);
void WithNumpyHost(RunContext& run, UseHost use);
void WithCupyHost(RunContext& run, UseHost use);

// Whether this thread has given up the GIL in a run: a fact of the thread, for what a run leaves is freed after it too.
extern constinit thread_local bool gave_up_gil;

// This thread goes without the GIL while this is alive.
class GiveUpGil {
 public:
  GiveUpGil();
  ~GiveUpGil();
  GiveUpGil(const GiveUpGil&) = delete;

 private:
  PyThreadState* state_;
  bool before_;
};

// Holds the GIL while alive, taking it only if this thread has given it up.
class HoldGil {
 public:
  HoldGil() : taken_(gave_up_gil) {
    if (taken_) [[unlikely]]
      Take();
  }
  ~HoldGil() {
    if (taken_) [[unlikely]]
      Release();
  }
  HoldGil(const HoldGil&) = delete;

 private:
  void Take();
  void Release();
  const bool taken_;
  PyGILState_STATE state_{};
};

// Runs an extern call on Python operands; new reference to its result or null. The step is the run's prepared one, or
// made now. run: null outside of one.
PyObject* InvokeExtern(const RunContext* run, const Call& call, PyObject* const* operands);
// The results of `call` in `value`, flattened in order, borrowed from it. False with a Python exception.
bool FlattenResults(PyObject* value, std::vector<PyObject*>* out);

}  // namespace framejit::tensor
