#include "tensor/run_context.h"

#include <algorithm>

#include "graph/arguments.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

namespace {

// A method of NumPy's scalars takes no array: the scalar that `self`, to a graph an array of one element, stands for.
Ref ScalarSelf(const Call& call, PyObject* const* operands) {
  constexpr const char* kScalars[] = {"numpy.generic.", "numpy.float64.", "numpy.float32.", "numpy.int64.",
                                      "numpy.bool_."};
  if (call.args.empty() || !call.args[0].is(Arg::Kind::kTensor)) return {};
  PyObject* self = operands[call.args[0].t];
  if (Classify(self) != Class::kNumpyArray) return {};
  if (std::none_of(std::begin(kScalars), std::end(kScalars),
                   [&](auto* s) { return call.callee.name().starts_with(s); }))
    return {};
  const NumpyArray* a = AsArray(self);
  return a->nd == 0 ? Ref(Numpy()->make_scalar(a->data, a->descr, nullptr)) : Ref();
}

}  // namespace

PyObject* InvokeExtern(const Call& call, PyObject* const* operands) {
  const CallStep* step = nullptr;
  if (current_run && current_run->steps) {
    auto at = current_run->steps->find(&call);
    if (at != current_run->steps->end()) step = &at->second;
  }
  CallStep made;
  if (!step) {  // a pass rewrote the node: no objects can be among its arguments then
    if (!made.Init(call, {}, [](TraceId position) { return static_cast<int>(position); })) return nullptr;
    step = &made;
  }
  int64_t* symbols = current_run ? current_run->symbols : nullptr;
  Ref scalar = ScalarSelf(call, operands);
  if (!scalar) return step->Invoke(operands, symbols);
  TraceId most = 0;
  EachArg(call, [&](const Arg& a) {
    if (a.is(Arg::Kind::kTensor)) most = std::max(most, a.t);
  });
  std::vector<PyObject*> own(operands, operands + most + 1);
  own[call.args[0].t] = scalar.get();
  return step->Invoke(own.data(), symbols);
}

bool FlattenResults(PyObject* value, std::vector<PyObject*>* out) {
  if (Classify(value) != Class::kNone) {
    out->push_back(value);
    return true;
  }
  if (!PyTuple_Check(value) && !PyList_Check(value)) return true;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
    if (!FlattenResults(PySequence_Fast_GET_ITEM(value, i), out)) return false;
  }
  return true;
}

}  // namespace framejit::tensor
