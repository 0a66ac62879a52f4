// Registered back ends: a Python callable gets the captured graph (an object that can be printed and called) and the
// example inputs, and returns a callable that takes such inputs and returns the graph's outputs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capture/ref.h"
#include "tensor/tensor.h"

namespace framejit::capture {

void RegisterBackend(const std::string& name, PyObject* callable);
PyObject* FindBackend(const std::string& name);  // It is borrowed, or null where no back end has the name.

class BackendRunner {
 public:
  // It is null where the back end raised; its exception is set then.
  static std::unique_ptr<BackendRunner> Make(PyObject* backend, const Trace& trace,
                                             const std::vector<PyObject*>& constants,
                                             const std::vector<PyObject*>& example_inputs);
  tensor::RunEnd Run(PyObject* const* inputs, int64_t* symbols, PyObject** outputs);

 private:
  Ref graph_, callable_;
  size_t num_inputs_ = 0, num_outputs_ = 0;
};

}  // namespace framejit::capture
