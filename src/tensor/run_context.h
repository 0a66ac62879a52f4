// What a host knows of its run: the framework calls that the GraphRunner has made ready, sizes that data decides, and
// inputs that it may let go of. Every run has a host of its own.
#pragma once

#include <absl/functional/function_ref.h>

#include <unordered_map>

#include "framejit/compile.h"
#include "tensor/call_step.h"

namespace framejit::tensor {

// Makes NumPy's results in a graph of both frameworks: those that are wanted and are null in `made`.
struct ArrayOutputs {
  const Buffer* first;
  const std::vector<bool>* wanted;  // for each output: is it NumPy's?
  std::vector<Ref> made;
  std::vector<Ref> called;  // what calls have made, if it is in memory of its own
};

struct RunContext {
  const std::unordered_map<const Call*, CallStep>* steps = nullptr;  // their arguments are positions of operands
  int64_t* symbols = nullptr;
  std::vector<Ref>* taken = nullptr;  // the inputs, where the run is their last user
  ArrayOutputs* arrays = nullptr;
};

using UseHost = absl::FunctionRef<void(Host&)>;
void WithTorchHost(RunContext& run, UseHost use);
void WithNumpyHost(RunContext& run, UseHost use);
void WithCupyHost(RunContext& run, UseHost use);

// Has this thread given up the GIL in a run? It is a fact of the thread and not of the run, since what a run leaves
// behind is freed after its end.
extern constinit thread_local bool gave_up_gil;

// While it is alive, this thread is without the GIL.
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

// Makes a framework call with Python operands. Returns a new reference to its result, or null with an exception set.
// The call was made ready by `run`, or is made ready now; `run` is null outside of a run.
PyObject* InvokeExtern(const RunContext* run, const Call& call, PyObject* const* operands);
// Takes the results of `call` out of `value`, flattened and in order; they are borrowed from it. False with an
// exception set.
bool FlattenResults(PyObject* value, std::vector<PyObject*>* out);

}  // namespace framejit::tensor
