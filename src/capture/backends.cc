// Registered back ends, and the runner around their callables.
#include "capture/backends.h"

#include <unordered_map>

#include "capture/graph_object.h"

namespace framejit::capture {
namespace {

std::unordered_map<std::string, Ref>& Registered() {
  static auto* m = new std::unordered_map<std::string, Ref>;
  return *m;
}

}  // namespace

void RegisterBackend(const std::string& name, PyObject* callable) {
  Registered()[name] = Borrow(callable);
}

PyObject* FindBackend(const std::string& name) {
  auto it = Registered().find(name);
  return it == Registered().end() ? nullptr : it->second.get();
}

std::unique_ptr<BackendRunner> BackendRunner::Make(PyObject* backend, const Trace& trace,
                                                   const std::vector<PyObject*>& constants,
                                                   const std::vector<PyObject*>& examples) {
  auto r = std::make_unique<BackendRunner>();
  r->graph_ = MakeGraphObject(trace, constants);
  if (!r->graph_) return nullptr;
  r->num_inputs_ = trace.inputs.size();
  r->num_outputs_ = trace.outputs.size();
  Ref list(PyList_New(0));
  for (PyObject* o : examples) PyList_Append(list.get(), o);
  r->callable_ = Ref(PyObject_CallFunctionObjArgs(backend, r->graph_.get(), list.get(), nullptr));
  if (!r->callable_) return nullptr;
  return r;
}

tensor::RunEnd BackendRunner::Run(PyObject* const* inputs, int64_t* symbols, PyObject** outputs) {
  SetGraphSymbols(graph_.get(), symbols);
  Ref result(PyObject_Vectorcall(callable_.get(), inputs, num_inputs_, nullptr));
  Ref items(result ? PySequence_Tuple(result.get()) : nullptr);
  if (!items) return tensor::EndOfCall();
  if (PyTuple_GET_SIZE(items.get()) != static_cast<Py_ssize_t>(num_outputs_)) {
    PyErr_Format(PyExc_RuntimeError, "the backend returned %zd outputs, the graph has %zu",
                 PyTuple_GET_SIZE(items.get()), num_outputs_);
    return tensor::RunEnd::kRefused;
  }
  for (size_t i = 0; i < num_outputs_; ++i) outputs[i] = Py_NewRef(PyTuple_GET_ITEM(items.get(), i));
  return tensor::RunEnd::kOk;
}

}  // namespace framejit::capture
