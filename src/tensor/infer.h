// One question to the framework: what does this call return? Shared by infer.cc (the question), infer_torch.cc and
// infer_numpy.cc (the two ways to find out).
#pragma once

#include "tensor/call_step.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

inline constexpr int64_t kMaxStandIn = 1 << 20;  // elements: stand-ins are really computed

struct Inference {
  const std::vector<TensorMeta>& metas;
  bool sizes_made_up = false;  // not those of operands that the program has
  std::vector<Ref> operands = {};
  std::vector<TensorMeta> results = {};
  std::vector<Inferred::Alias> aliases = {};  // one a result, as far as one is an alias
  bool on_meta = false;                       // the operands of now are on the meta device
  Device device = {};
  bool requires_grad = false;
  bool draws = false;  // random numbers, on the way
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
    std::string message = TakeErrorText();
    if (message.size() > 200) message = message.substr(0, 200) + "...";
    return Fail(callee + " on stand-in tensors: " + message);
  }
};

std::vector<int64_t> Values(const shape::Ints& v);
PyObject* Tuple(const std::vector<int64_t>& v);
TensorMeta FromMeta(const Meta& m, Framework f);
// Result types and structure of a returned object; false: a kind of result that is not captured.
bool Flatten(PyObject* o, Arg* shape, Inference* in);
bool AddTorchResult(PyObject* o, Arg* shape, Inference* in);
bool AddNumpyResult(const NumpyApi& n, PyObject* o, Arg* shape, Inference* in);

// Tensor arguments of `call` are operand numbers. On success in->results and call.result are filled.
bool InferTorch(const TorchApi& t, Call& call, const std::vector<PyObject*>& constants, Inference* in);
bool InferNumpy(const NumpyApi& n, Call& call, const std::vector<PyObject*>& constants, Inference* in);

}  // namespace framejit::tensor
