#include "capture/graph_object.h"

#include <bit>
#include <memory>
#include <new>
#include <string>

#include "tensor/call_step.h"

namespace framejit::capture {
namespace {

struct Contents {
  Trace trace;
  std::unique_ptr<tensor::TraceRunner> runner;
  std::vector<Ref> held;
  std::vector<PyObject*> constants;  // those
  int64_t* symbols = nullptr;        // of the call in progress
};

struct GraphObject {
  PyObject_HEAD Contents* contents;
};

Contents& Of(PyObject* o) {
  return *reinterpret_cast<GraphObject*>(o)->contents;
}

void Dealloc(PyObject* o) {
  delete reinterpret_cast<GraphObject*>(o)->contents;
  PyObject_Free(o);
}

PyObject* Str(PyObject* o) {
  std::string s = Of(o).trace.str();
  return PyUnicode_DecodeUTF8(s.data(), s.size(), "replace");
}

PyObject* CallGraph(PyObject* o, PyObject* args, PyObject*) {
  Contents& g = Of(o);
  if (PyTuple_GET_SIZE(args) != static_cast<Py_ssize_t>(g.trace.inputs.size()))
    return PyErr_Format(PyExc_TypeError, "the graph takes %zu inputs, not %zd", g.trace.inputs.size(),
                        PyTuple_GET_SIZE(args));
  std::vector<PyObject*> out(g.trace.outputs.size());
  int failed;
  if (g.runner->Run(&PyTuple_GET_ITEM(args, 0), g.symbols, out.data(), &failed) != tensor::RunEnd::kOk) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a condition on what data decides does not hold");
    return nullptr;
  }
  PyObject* t = PyTuple_New(out.size());
  for (size_t i = 0; t && i < out.size(); ++i) PyTuple_SET_ITEM(t, i, out[i]);
  return t;
}

PyObject* Nodes(PyObject* o, void*) {
  PyObject* list = PyList_New(0);
  for (auto& c : Of(o).trace.calls) {
    Ref s(PyUnicode_FromString(c.str().c_str()));
    if (!list || !s || PyList_Append(list, s.get()) < 0) return nullptr;
  }
  return list;
}

// --- taken apart
//
// Gives the argument as a Python object, with value(id) in the place of each tensor and the numbers of this call for
// symbols.
PyObject* Object(const Contents& g, const Arg& a, PyObject* value) {
  using K = Arg::Kind;
  const auto number = [&] { return a.i.Eval({g.symbols, g.symbols ? size_t{1} << 20 : 0}); };
  if (a.is(K::kTensor)) return PyObject_CallFunction(value, "I", a.t);
  if (a.is(K::kInt) && !a.i.is_const()) return PyLong_FromLongLong(number());
  if (a.is(K::kSymFloat)) return PyFloat_FromDouble(std::bit_cast<double>(number()));
  if (a.items.empty()) return tensor::MakeConstant(a, g.constants);
  std::vector<Ref> items;
  for (const Arg& x : a.items) {
    items.emplace_back(Object(g, x, value));
    if (!items.back()) return nullptr;
  }
  if (a.is(K::kSlice)) return PySlice_New(items[0].get(), items[1].get(), items[2].get());
  if (a.is(K::kDict)) {
    Ref dict(PyDict_New());
    for (size_t i = 0; dict && i + 1 < items.size(); i += 2)
      if (PyDict_SetItem(dict.get(), items[i].get(), items[i + 1].get()) < 0) return nullptr;
    return dict.release();
  }
  PyObject* sequence = a.is(K::kTuple) ? PyTuple_New(items.size()) : PyList_New(items.size());
  for (size_t i = 0; sequence && i < items.size(); ++i)
    a.is(K::kTuple) ? PyTuple_SET_ITEM(sequence, i, items[i].release())
                    : PyList_SET_ITEM(sequence, i, items[i].release());
  return sequence;
}

PyObject* Ids(const std::vector<TraceId>& ids) {
  PyObject* list = PyList_New(ids.size());
  for (size_t i = 0; list && i < ids.size(); ++i) PyList_SET_ITEM(list, i, PyLong_FromUnsignedLong(ids[i]));
  return list;
}

PyObject* CallParts(const Contents& g, const Call& c, PyObject* value) {
  Ref args(PyList_New(0)), kwargs(PyDict_New());
  if (!args || !kwargs) return nullptr;
  for (const Arg& a : c.args) {
    Ref x(Object(g, a, value));
    if (!x || PyList_Append(args.get(), x.get()) < 0) return nullptr;
  }
  for (const auto& [name, a] : c.kwargs) {
    Ref x(Object(g, a, value));
    if (!x || PyDict_SetItemString(kwargs.get(), name.c_str(), x.get()) < 0) return nullptr;
  }
  Arg result = c.result;
  if (c.results.size() == 1 && result.is_none()) result = Arg::Tensor(c.results[0]);
  Ref structure(Object(g, result, value)), ids(Ids(c.results));
  if (!structure || !ids) return nullptr;
  return Py_BuildValue("{s:s,s:O,s:O,s:O,s:O,s:O,s:O,s:s,s:i}", "callee", c.callee.name().c_str(), "args", args.get(),
                       "kwargs", kwargs.get(), "result", structure.get(), "results", ids.get(), "grad",
                       c.mode.grad ? Py_True : Py_False, "inference", c.mode.inference ? Py_True : Py_False, "file",
                       c.file.str().c_str(), "line", c.line);
}

PyObject* Parts(PyObject* o, PyObject* value) {
  const Contents& g = Of(o);
  Ref calls(PyList_New(0)), inputs(Ids(g.trace.inputs)), outputs(Ids(g.trace.outputs)), written(PyList_New(0));
  if (!calls || !inputs || !outputs || !written) return nullptr;
  for (const Call& c : g.trace.calls) {
    Ref parts(CallParts(g, c, value));
    if (!parts || PyList_Append(calls.get(), parts.get()) < 0) return nullptr;
  }
  for (TraceId id : g.trace.inputs) {
    Ref is(PyBool_FromLong(g.trace.tensors[id].mutated));
    if (PyList_Append(written.get(), is.get()) < 0) return nullptr;
  }
  return Py_BuildValue("{s:O,s:O,s:O,s:O}", "calls", calls.get(), "inputs", inputs.get(), "outputs", outputs.get(),
                       "written", written.get());
}

PyMethodDef methods[] = {
    {"parts", Parts, METH_O,
     "parts(value): the graph as dictionaries and lists, with value(id) in the place of each tensor."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef getset[] = {
    {"nodes", Nodes, nullptr, "The framework calls of the graph, one text each, in order.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject GraphType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.Graph",
    .tp_basicsize = sizeof(GraphObject),
    .tp_dealloc = Dealloc,
    .tp_call = CallGraph,
    .tp_str = Str,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc =
        "A captured graph. Call it with tensors like the example inputs to run it by the framework; returns a tuple.",
    .tp_methods = methods,
    .tp_getset = getset,
};

}  // namespace

bool ReadyGraphObject() {
  return PyType_Ready(&GraphType) == 0;
}

Ref MakeGraphObject(const Trace& trace, const std::vector<PyObject*>& constants) {
  auto contents = std::make_unique<Contents>(Contents{trace, tensor::MakeTraceRunner(trace, constants), {}, constants});
  for (PyObject* o : constants) contents->held.push_back(Borrow(o));
  auto* g = PyObject_New(GraphObject, &GraphType);
  if (g) g->contents = contents.release();
  return Ref(reinterpret_cast<PyObject*>(g));
}

void SetGraphSymbols(PyObject* graph, int64_t* symbols) {
  Of(graph).symbols = symbols;
}

}  // namespace framejit::capture
