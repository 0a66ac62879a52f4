// The graph object of registered back ends, and the runner around their callables.
#include "capture/backends.h"

#include <new>
#include <unordered_map>

#include "diag/diag.h"

namespace framejit::capture {
namespace {

struct GraphObject {
  PyObject_HEAD Trace* trace;
  tensor::TraceRunner* runner;
  int64_t* symbols;  // of the call in progress
};

std::unordered_map<std::string, Ref>& Registered() {
  static auto* m = new std::unordered_map<std::string, Ref>;
  return *m;
}

void Dealloc(PyObject* o) {
  auto* g = reinterpret_cast<GraphObject*>(o);
  delete g->runner;
  delete g->trace;
  PyObject_Free(o);
}

PyObject* Str(PyObject* o) {
  std::string s = reinterpret_cast<GraphObject*>(o)->trace->str();
  return PyUnicode_DecodeUTF8(s.data(), s.size(), "replace");
}

PyObject* Call(PyObject* o, PyObject* args, PyObject*) {
  auto* g = reinterpret_cast<GraphObject*>(o);
  if (PyTuple_GET_SIZE(args) != static_cast<Py_ssize_t>(g->trace->inputs.size()))
    return PyErr_Format(PyExc_TypeError, "the graph takes %zu inputs, not %zd", g->trace->inputs.size(),
                        PyTuple_GET_SIZE(args));
  std::vector<PyObject*> out(g->trace->outputs.size());
  int failed;
  if (g->runner->Run(&PyTuple_GET_ITEM(args, 0), g->symbols, out.data(), &failed) != tensor::RunEnd::kOk) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a condition on what data decides does not hold");
    return nullptr;
  }
  PyObject* t = PyTuple_New(out.size());
  for (size_t i = 0; t && i < out.size(); ++i) PyTuple_SET_ITEM(t, i, out[i]);
  return t;
}

PyObject* Nodes(PyObject* o, void*) {
  auto* g = reinterpret_cast<GraphObject*>(o);
  PyObject* list = PyList_New(0);
  for (auto& c : g->trace->calls) {
    Ref s(PyUnicode_FromString(c.str().c_str()));
    if (!list || !s || PyList_Append(list, s.get()) < 0) return nullptr;
  }
  return list;
}

PyGetSetDef getset[] = {
    {"nodes", Nodes, nullptr, "The framework calls of the graph, one text each, in order.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject GraphType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.Graph",
    .tp_basicsize = sizeof(GraphObject),
    .tp_dealloc = Dealloc,
    .tp_call = Call,
    .tp_str = Str,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc =
        "A captured graph. Call it with tensors like the example inputs to run it by the framework; returns a tuple.",
    .tp_getset = getset,
};

}  // namespace

bool ReadyGraphObject() {
  return PyType_Ready(&GraphType) == 0;
}

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
  auto* g = PyObject_New(GraphObject, &GraphType);
  if (!g) return nullptr;
  g->trace = new Trace(trace);
  g->runner = tensor::MakeTraceRunner(trace, constants).release();
  g->symbols = nullptr;
  auto r = std::make_unique<BackendRunner>();
  r->graph_ = Ref(reinterpret_cast<PyObject*>(g));
  r->num_inputs_ = trace.inputs.size();
  r->num_outputs_ = trace.outputs.size();
  Ref list(PyList_New(0));
  for (PyObject* o : examples) PyList_Append(list.get(), o);
  r->callable_ = Ref(PyObject_CallFunctionObjArgs(backend, r->graph_.get(), list.get(), nullptr));
  if (!r->callable_) return nullptr;
  return r;
}

tensor::RunEnd BackendRunner::Run(PyObject* const* inputs, int64_t* symbols, PyObject** outputs) {
  reinterpret_cast<GraphObject*>(graph_.get())->symbols = symbols;
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
