// One question to the framework: what does this call return? Shared by infer.cc (the question), infer_torch.cc and
// infer_numpy.cc (the two ways to find out).
#pragma once

#include "tensor/call_step.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

inline constexpr int64_t kMaxStandIn = 1 << 20;  // elements of a stand-in: the call is really computed on it

struct Inference {
  const std::vector<TensorMeta>& metas;
  bool sizes_made_up = false;  // the sizes are not those of operands of the program
  bool real_only = false;      // what refuses on real stand-ins is not asked on the meta device
  std::vector<Ref> operands = {};
  std::vector<TensorMeta> results = {};
  std::vector<Inferred::Alias> aliases = {};  // for each result, as far as results are aliases
  bool on_meta = false;                       // the operands that it is asked with are on the meta device
  Device device = {};
  bool requires_grad = false;
  bool draws = false;   // the call drew random numbers
  bool raised = false;  // the framework refused it on stand-ins, other than for want of a kernel
  Refusal why = {};

  bool Fail(std::string text) {
    if (why.text.empty()) why.text = std::move(text);
    PyErr_Clear();
    return false;
  }
  bool FailSymbolic() {
    why.symbolic = true;
    return Fail("symbolic sizes");
  }
  bool FailWithError(const std::string& callee) {
    raised = PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_NotImplementedError);
    std::string message = TakeErrorText();
    if (message.size() > 200) message = message.substr(0, 200) + "...";
    return Fail(callee + " on stand-in tensors: " + message);
  }
};

// What the framework says of a call with made-up sizes (InferByFramework).
std::optional<Inferred> InferMadeUp(Call& call, const std::vector<TensorMeta>& operands,
                                    const std::vector<PyObject*>& constants, Refusal* why, bool real_only);

// Does the framework raise for a call with such tensors, whatever they hold? Sizes are numbers.
bool RaisesOnStandIns(const Call& call, const std::vector<TensorMeta>& operands,
                      const std::vector<PyObject*>& constants);

std::vector<int64_t> Values(const shape::Ints& v);
PyObject* Tuple(const std::vector<int64_t>& v);
TensorMeta FromMeta(const Meta& m, Framework f);
// Reads types and structure of the result from the object that was returned. False: such results are not captured.
bool Flatten(PyObject* o, Arg* shape, Inference* in);
bool AddTorchResult(PyObject* o, Arg* shape, Inference* in);
bool AddNumpyResult(const NumpyApi& n, PyObject* o, Arg* shape, Inference* in);

// The tensor arguments of `call` are numbers of operands. On success in->results and call.result are filled in.
bool InferTorch(const TorchApi& t, Call& call, const std::vector<PyObject*>& constants, Inference* in);
bool RunsPython(const std::string& callee);      // (infer_operators.cc)
bool WritesBySchema(const std::string& callee);  // likewise
// An op that torch calls random drops nothing out if it was told so (infer_operators.cc).
bool DropsNothing(PyObject* op, PyObject* args, PyObject* kwargs);
bool InferNumpy(const NumpyApi& n, Call& call, const std::vector<PyObject*>& constants, Inference* in);

}  // namespace framejit::tensor
