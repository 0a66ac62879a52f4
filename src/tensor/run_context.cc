#include "tensor/run_context.h"

#include "tensor/tensor.h"

namespace framejit::tensor {

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
  return step->Invoke(operands, current_run ? current_run->symbols : nullptr);
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
