// The boundary to torch and NumPy. No link against either: torch through its C shim found by dlsym in the loaded
// libtorch, self-tested on the first tensor; NumPy through its C API table. Everything works with either missing.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "diag/outcome.h"
#include "framejit/call.h"
#include "framejit/compile.h"
#include "framejit/graph.h"

namespace framejit::tensor {

using diag::RunEnd;

// Is it exactly torch.Tensor / torch.nn.Parameter, a subclass of one of them whose instances torch treats as it treats
// those (kQuiet..: nothing of them is in the dispatcher; a __torch_function__ may say more: tensor/overrides.h),
// another subclass, exactly numpy.ndarray, a NumPy scalar or cupy.ndarray?
enum class Class : uint8_t {
  kNone,
  kTorch,
  kTorchParameter,
  kQuietTensor,
  kQuietParameter,
  kTorchSubclass,
  kNumpyArray,
  kNumpyScalar,
  kCupyArray
};
Class Classify(PyObject* o);  // pointer compares only, but for subclasses
inline bool IsQuiet(Class c) {
  return c == Class::kQuietTensor || c == Class::kQuietParameter;
}
inline bool IsParameter(Class c) {
  return c == Class::kTorchParameter || c == Class::kQuietParameter;
}
inline bool IsPlainTorch(Class c) {  // torch computes with it as with a torch.Tensor
  return c >= Class::kTorch && c <= Class::kQuietParameter;
}
// The user has imported torch, and what we use of it was found there.
bool TorchLoaded();
PyTypeObject* ModuleType();  // torch.nn.Module, borrowed; null where torch is not loaded.
bool NumpyLoaded();

inline constexpr uint64_t kReadOnly = 1;  // NumPy's "key set": 0, or this for an array that cannot be written
// Concrete metadata, no allocation of Python objects, < 50 ns. False: not supported (reason in *why if given).
struct Meta {
  DType dtype;
  Device device;
  int rank = 0;
  int64_t sizes[16];
  int64_t strides[16];  // In elements.
  void* data = nullptr;
  void* handle = nullptr;  // as in Buffer: torch's TensorImpl*, NumPy's PyObject*; borrowed
  uint64_t key_set = 0;
  bool requires_grad = false;
  bool has_grad_fn = false;
  bool is_inference = false;
  bool conj = false, neg = false;  // What lies in memory is conjugated, or negated, when it is read (ReadAny only).
  int64_t nbytes_extent = 0;       // bytes from data to one past the last element reached (negative strides: see low)
  char* low = nullptr;             // The lowest address that is touched.
};
bool ReadMeta(PyObject* o, Meta* out, const char** why = nullptr);
// The same, also of what torch conjugates or negates when it is read: its memory is not what it says.
bool ReadAny(PyObject* o, Meta* out, const char** why = nullptr);
PyObject* Resolved(PyObject* tensor);  // of such a tensor, an ordinary one with what it says; a new reference
bool IsView(PyObject* tensor);         // of torch's; true also where that cannot be known
bool HasHistory(PyObject* o);          // Has an operation with gradients made it? True also where that cannot be known.
bool RequiresGrad(PyObject* o);        // false for what is no torch tensor
// Only what a guard compares (has_grad_fn is not filled), as ReadAny; false if not a plain tensor. Hot: called per
// input per call. A forward-mode tangent is not looked for: ReadTorchState tells that a dual level is open, and capture
// declines then.
bool ReadForGuard(PyObject* o, Meta* out);
// columns: a tuple of lists of equal length. Are they plain torch tensors of one float dtype on one device, those of a
// row (one of each list) dense and of one shape and strides?
bool SameLayout(PyObject* columns);

// The thread state that compiled torch code depends on, as a comparable word vector. Cheap (< 50 ns).
struct TorchState {
  uint64_t words[8];
  friend bool operator==(const TorchState&, const TorchState&) = default;
};
TorchState ReadTorchState();
std::string DescribeTorchState(const TorchState&);
// Why calls cannot be captured on this thread as it stands (function and dispatch modes, functorch levels, a
// forward- mode level are not modelled); empty: they can.
const std::string& CaptureObstacle();
// Does this thread have default hooks for tensors that autograd saves (torch.autograd.graph.saved_tensors_hooks)?
bool SavedTensorHooks();
ModeState ReadMode();            // Reads whether gradients and inference mode are on.
ModeState ReadModeForCapture();  // Reads all of it.
std::string DefaultDevice();     // that a mode has set for this thread, as torch writes it; empty: none
// While alive, autocast is off on this thread: what runs has its casts written out.
class AutocastOff {
 public:
  AutocastOff();
  ~AutocastOff();
  AutocastOff(const AutocastOff&) = delete;

 private:
  uint64_t was_ = 0;
};
void SetGradMode(bool);  // torch._C._set_grad_enabled without Python
// NumPy's error handling (errstate); nullopt if it cannot be read without calling Python.
std::optional<std::pair<uint64_t, uint64_t>> ReadNumpyState();
int NumpyTraps();                       // Status bits that NumPy would tell of under the present error handling
bool ResetNumpyState(PyObject* token);  // of PyContextVar_Set; false with an exception
bool IsNumpyState(PyObject* o);         // the context variable that holds it
// While alive, NumPy raises what it would tell of in any way, warnings of its Python functions too, so that a compiled
// run can end there and start over in Python, which tells it at the right line.
class NumpyRaises {
 public:
  NumpyRaises();
  ~NumpyRaises();
  NumpyRaises(const NumpyRaises&) = delete;

 private:
  PyObject* token_ = nullptr;
  bool warns_ = false;
};
PyObject* DTypeObject(Framework f, DType t);           // new ref: torch.float32 / numpy dtype
std::optional<DType> DTypeOf(PyObject* dtype_object);  // torch.dtype or numpy dtype / scalar type

// Runs a captured trace with the framework itself, call by call: same functions, same arguments, gradients intact.
// constants: objects of kObject args. resolve: callee name -> callable is looked up once.
class TraceRunner {
 public:
  virtual ~TraceRunner() = default;
  // inputs borrowed; outputs filled with new references. symbols: values of the shape symbols; those that data decides
  // are filled in. What is neither kOk nor kCondition has an exception set; *failed_call then is the number of the call
  // that raised. What was done by then was done.
  virtual RunEnd Run(PyObject* const* inputs, int64_t* symbols, PyObject** outputs, int* failed_call) = 0;
  // The same calls, which both have in common, with these results.
  virtual std::unique_ptr<TraceRunner> With(const std::vector<TraceId>& outputs) const = 0;
};
// Throws std::runtime_error if a callable or a constant cannot be made.
std::unique_ptr<TraceRunner> MakeTraceRunner(const Trace& trace, const std::vector<PyObject*>& constants /*held*/);

// Runs a compiled graph on Python tensors: wraps inputs, allocates outputs with the framework, commits writes last and
// bumps version counters, replays outputs that are views (view_calls of the trace) with the framework's own view
// functions.
//   graph outputs = base tensors of trace outputs; the rest is replayed.
class OutputHook;  // autograd.h
class Ref;         // ref.h
class GraphRunner {
 public:
  virtual ~GraphRunner() = default;
  // What is neither kOk nor kCondition has an exception set; but for kRaised nothing was written. Symbols that data
  // decides are filled in.
  virtual RunEnd Run(PyObject* const* inputs, int64_t* symbols, PyObject** outputs) = 0;
  // Lets go of each input when it was read for the last time.
  virtual RunEnd RunTaking(std::vector<Ref>* inputs, int64_t* symbols, PyObject** outputs) = 0;
};
struct OutputPlan {  // Says how an output of the trace is made.
  enum Kind { kGraphOutput, kInput, kReplay } kind;
  int index = 0;  // graph output / graph input; kReplay: graph output of the base, or ~input
  std::vector<int>
      calls;  // kReplay: trace calls to run, in order, from a base (a graph output or an input) to the output
};
// What a run must show before it counts: no autograd node is made and no input is written until it has.
struct RunCheck {
  std::vector<int> outputs;  // The outputs of the trace that are checked.
  // Told each of them, by its place in the list. Anything but kOk, with the exception: the run counts for nothing.
  std::function<RunEnd(size_t which, PyObject* value)> accept;
  std::vector<std::pair<int, int>> writes;  // Pairs of an input and the graph output that is written to it.
};
// Throws std::runtime_error, as MakeTraceRunner. Calls exe->Run without the GIL if that pays.
std::unique_ptr<GraphRunner> MakeGraphRunner(std::shared_ptr<Executable> exe, const Graph& graph, const Trace& trace,
                                             std::vector<OutputPlan> outputs, const std::vector<PyObject*>& constants,
                                             std::shared_ptr<OutputHook> hook = nullptr, RunCheck check = {});

// Why it is not known what a call returns.
struct Refusal {
  bool symbolic = false;  // Are there sizes that are no numbers?
  std::string text;
};

// What the pending exception of a framework call says of the run.
RunEnd EndOfCall();

// Calls one framework function on meta tensors (torch) or tiny stand-ins to learn result types; sizes concrete.
// nullopt with *why: data-dependent or unsupported. Results follow Call::result's structure, which it fills in.
// sizes_made_up: they need not fit each other.
std::optional<Inferred> InferByFramework(Call& call, const std::vector<TensorMeta>& operands,
                                         const std::vector<PyObject*>& constants, Refusal* why,
                                         bool sizes_made_up = false);

// The same where sizes are symbolic (infer_symbolic.cc).
std::optional<Inferred> InferSymbolic(Call& call, const std::vector<TensorMeta>& operands, const shape::Env& env,
                                      const std::vector<PyObject*>& constants, Refusal* why);

Host& TorchHost();  // for what is done outside of a run; process-wide
Host& NumpyHost();

// callee name <-> object. "torch.Tensor.add_" -> the method descriptor; new reference or null.
PyObject* ResolveCallee(const std::string& name);
// The same, kept once it is there: a framework may be imported later than it is asked for.
class Named {
 public:
  explicit Named(std::string name) : name_(std::move(name)) {}
  PyObject* Get() {  // borrowed; null without an exception
    if (!object_ && !(object_ = ResolveCallee(name_))) PyErr_Clear();
    return object_;
  }

 private:
  std::string name_;
  PyObject* object_ = nullptr;
};
// Name of a framework callable (torch builtin, Tensor method, numpy ufunc/function), "" if it is none.
Callee CalleeOf(PyObject* callable);     // Empty where it has no name.
bool HasCalleeName(PyObject* callable);  // The same question without the name, which is cheaper.
bool IsTorchOperator(PyObject* o);       // torch.ops.aten.add and the like, which torch makes once

// The self-test's verdict per fast path, for doctor.
std::vector<std::pair<std::string, std::string>> Doctor();

}  // namespace framejit::tensor
