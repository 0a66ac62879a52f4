// _framejit.tensor_testing: this stage's functions for tests and measurements, and traces written down as Python data.
//   trace: {"inputs": [ids], "outputs": [ids], "calls": [(callee, args, kwargs, result, grad)]}
//   a tensor in args or result is T(id), a size symbol S(index), an opaque object O(object): see Marked.
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>

#include "framejit/graph.h"
#include "graph/effects.h"
#include "tensor/call_step.h"
#include "tensor/contractions.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

void AddTensorTestFunctions(PyObject* module);

namespace {

// ("T", id), ("S", index), ("O", object)
bool Marked(PyObject* o, char mark) {
  if (!PyTuple_CheckExact(o) || PyTuple_GET_SIZE(o) != 2 || !PyUnicode_Check(PyTuple_GET_ITEM(o, 0))) return false;
  const char* s = PyUnicode_AsUTF8(PyTuple_GET_ITEM(o, 0));
  return s && s[0] == mark && !s[1];
}

bool ToArg(PyObject* o, std::vector<PyObject*>* constants, Arg* out) {
  using K = Arg::Kind;
  if (Marked(o, 'T')) return *out = Arg::Tensor(PyLong_AsLong(PyTuple_GET_ITEM(o, 1))), true;
  if (Marked(o, 'S')) return *out = Arg::Int(shape::Int::Symbol(PyLong_AsLong(PyTuple_GET_ITEM(o, 1)))), true;
  if (o == Py_None) return *out = Arg::None(), true;
  if (PyBool_Check(o)) return *out = Arg::Bool(o == Py_True), true;
  if (PyLong_CheckExact(o)) return *out = Arg::Int(int64_t{PyLong_AsLongLong(o)}), true;
  if (PyFloat_CheckExact(o)) return *out = Arg::Float(PyFloat_AS_DOUBLE(o)), true;
  if (PyUnicode_CheckExact(o)) return *out = Arg::Str(PyUnicode_AsUTF8(o)), true;
  if (o == Py_Ellipsis) return out->kind = K::kEllipsis, true;
  if (DTypeOf(o) && !PyType_Check(o)) {
    Ref text(PyObject_Str(o));
    std::string s = PyUnicode_AsUTF8(text.get());
    *out = Arg::Str(s.substr(0, 6) == "torch." ? s.substr(6) : s);
    out->kind = K::kDType;
    return true;
  }
  if (!Marked(o, 'O') && (PyTuple_CheckExact(o) || PyList_CheckExact(o))) {
    *out = Arg::Seq(PyTuple_Check(o) ? K::kTuple : K::kList, std::vector<Arg>(PySequence_Fast_GET_SIZE(o)));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
      if (!ToArg(PySequence_Fast_GET_ITEM(o, i), constants, &out->items[i])) return false;
    }
    return true;
  }
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    *out = Arg::Seq(K::kSlice, std::vector<Arg>(3));
    return ToArg(s->start, constants, &out->items[0]) && ToArg(s->stop, constants, &out->items[1]) &&
           ToArg(s->step, constants, &out->items[2]);
  }
  *out = {};
  out->kind = K::kObject;
  out->i = shape::Int(static_cast<int64_t>(constants->size()));
  constants->push_back(Marked(o, 'O') ? PyTuple_GET_ITEM(o, 1) : o);
  return true;
}

void Results(const Arg& a, std::vector<TraceId>* out) {
  if (a.is(Arg::Kind::kTensor)) out->push_back(a.t);
  for (const Arg& x : a.items) Results(x, out);
}

bool ToCall(PyObject* o, std::vector<PyObject*>* constants, Call* call) {
  const char* callee;
  PyObject *args, *kwargs, *result;
  int grad = 1;
  if (!PyArg_ParseTuple(o, "sO!O!O|p", &callee, &PyTuple_Type, &args, &PyDict_Type, &kwargs, &result, &grad))
    return false;
  call->callee = callee;
  call->mode.grad = grad;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
    call->args.emplace_back();
    if (!ToArg(PyTuple_GET_ITEM(args, i), constants, &call->args.back())) return false;
  }
  PyObject *k, *v;
  for (Py_ssize_t pos = 0; PyDict_Next(kwargs, &pos, &k, &v);) {
    call->kwargs.emplace_back(PyUnicode_AsUTF8(k), Arg());
    if (!ToArg(v, constants, &call->kwargs.back().second)) return false;
  }
  if (!ToArg(result, constants, &call->result)) return false;
  Results(call->result, &call->results);
  return !PyErr_Occurred();
}

bool Ids(PyObject* list, std::vector<TraceId>* out) {
  Ref seq(PySequence_Fast(list, "a list of tensor numbers"));
  for (Py_ssize_t i = 0; seq && i < PySequence_Fast_GET_SIZE(seq.get()); ++i)
    out->push_back(PyLong_AsLong(PySequence_Fast_GET_ITEM(seq.get(), i)));
  return seq && !PyErr_Occurred();
}

bool ToTrace(PyObject* spec, std::vector<PyObject*>* constants, Trace* trace) {
  PyObject *inputs = PyDict_GetItemString(spec, "inputs"), *outputs = PyDict_GetItemString(spec, "outputs"),
           *calls = PyDict_GetItemString(spec, "calls"), *scalars = PyDict_GetItemString(spec, "scalars");
  bool numpy = false;
  if (!inputs || !outputs || !calls) return PyErr_SetString(PyExc_KeyError, "inputs, outputs, calls"), false;
  if (!Ids(inputs, &trace->inputs) || !Ids(outputs, &trace->outputs)) return false;
  TraceId top = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(calls); ++i) {
    trace->calls.emplace_back();
    if (!ToCall(PyList_GET_ITEM(calls, i), constants, &trace->calls.back())) return false;
    for (TraceId id : trace->calls.back().results) top = std::max(top, id);
    numpy |= trace->calls.back().callee.framework() == Framework::kNumpy;
  }
  for (auto* v : {&trace->inputs, &trace->outputs}) {
    for (TraceId id : *v) top = std::max(top, id);
  }
  std::vector<TraceId> scalar_ids;
  if (scalars && !Ids(scalars, &scalar_ids)) return false;
  for (TraceId id = 0; id <= top; ++id) {
    TraceTensor t;
    t.id = t.base = id;
    t.meta.framework = numpy ? Framework::kNumpy : Framework::kTorch;
    for (TraceId s : scalar_ids) t.meta.is_scalar |= s == id;
    for (size_t i = 0; i < trace->inputs.size(); ++i) {
      if (trace->inputs[i] == id) t.input = static_cast<int>(i);
    }
    trace->tensors.push_back(t);
  }
  return true;
}

PyObject* Str(std::string_view s) {
  return PyUnicode_FromStringAndSize(s.data(), s.size());
}

PyObject* MetaDict(const Meta& m) {
  Ref sizes(PyTuple_New(m.rank)), strides(PyTuple_New(m.rank));
  for (int i = 0; i < m.rank; ++i) {
    PyTuple_SET_ITEM(sizes.get(), i, PyLong_FromLongLong(m.sizes[i]));
    PyTuple_SET_ITEM(strides.get(), i, PyLong_FromLongLong(m.strides[i]));
  }
  static constexpr const char* kDevices[] = {"cpu", "cuda", "meta"};
  return Py_BuildValue("{s:N,s:O,s:O,s:s,s:i,s:K,s:K,s:K,s:O,s:O,s:O,s:L}", "dtype", Str(DTypeName(m.dtype)), "sizes",
                       sizes.get(), "strides", strides.get(), "device", kDevices[static_cast<int>(m.device.kind)],
                       "index", m.device.index, "data", reinterpret_cast<unsigned long long>(m.data), "low",
                       reinterpret_cast<unsigned long long>(m.low), "keys", static_cast<unsigned long long>(m.key_set),
                       "requires_grad", m.requires_grad ? Py_True : Py_False, "has_grad_fn",
                       m.has_grad_fn ? Py_True : Py_False, "inference", m.is_inference ? Py_True : Py_False, "extent",
                       static_cast<long long>(m.nbytes_extent));
}

PyObject* ClassifyObject(PyObject*, PyObject* o) {
  static constexpr const char* kNames[] = {"none",     "torch", "parameter", "quiet", "quiet parameter",
                                           "subclass", "array", "scalar",    "cupy"};
  return PyUnicode_FromString(kNames[static_cast<int>(Classify(o))]);
}

PyObject* ReadMetaOf(PyObject*, PyObject* o) {
  Meta m;
  const char* why = "";
  return ReadMeta(o, &m, &why) ? MetaDict(m) : PyUnicode_FromString(why);
}

PyObject* ReadGuardOf(PyObject*, PyObject* o) {
  Meta m;
  if (!ReadForGuard(o, &m)) Py_RETURN_NONE;
  return MetaDict(m);
}

PyObject* State(PyObject*, PyObject*) {
  TorchState s = ReadTorchState();
  Ref words(PyTuple_New(8));
  for (int i = 0; i < 8; ++i) PyTuple_SET_ITEM(words.get(), i, PyLong_FromUnsignedLongLong(s.words[i]));
  return Py_BuildValue("(ON)", words.get(), Str(DescribeTorchState(s)));
}

PyObject* NameOf(PyObject*, PyObject* o) {
  return Str(CalleeOf(o).name());
}
// What is known of the function of that name: "draws cpu=lower".
PyObject* EffectsOfName(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  return text ? Str(Callee(text).effects().str()) : nullptr;
}
PyObject* Resolve(PyObject*, PyObject* name) {
  return ResolveCallee(PyUnicode_AsUTF8(name));
}
PyObject* DTypeText(PyObject*, PyObject* o) {
  auto d = DTypeOf(o);
  if (!d) Py_RETURN_NONE;
  return Str(DTypeName(*d));
}

// --- runners
struct Runners {
  std::unique_ptr<TraceRunner> trace;
  std::unique_ptr<GraphRunner> graph;
  size_t inputs = 0, outputs = 0;
};
void FreeRunners(PyObject* capsule) {
  delete static_cast<Runners*>(PyCapsule_GetPointer(capsule, "runner"));
}

PyObject* MakeTrace(PyObject*, PyObject* spec) {
  Trace trace;
  std::vector<PyObject*> constants;
  if (!ToTrace(spec, &constants, &trace)) return nullptr;
  auto r = std::make_unique<Runners>();
  r->inputs = trace.inputs.size();
  r->outputs = trace.outputs.size();
  try {
    r->trace = MakeTraceRunner(trace, constants);
  } catch (const std::exception& e) {
    return PyErr_Format(PyExc_RuntimeError, "%s", e.what());
  }
  return PyCapsule_New(r.release(), "runner", FreeRunners);
}

PyObject* MakeGraph(PyObject*, PyObject* args) {  // (graph text, trace, plans [(kind, index, [calls])])
  const char* text;
  PyObject *spec, *plans;
  if (!PyArg_ParseTuple(args, "sO!O!", &text, &PyDict_Type, &spec, &PyList_Type, &plans)) return nullptr;
  Trace trace;
  std::vector<PyObject*> constants;
  if (!ToTrace(spec, &constants, &trace)) return nullptr;
  std::vector<OutputPlan> plan;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(plans); ++i) {
    int kind, index;
    PyObject* calls;
    std::vector<TraceId> ids;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(plans, i), "iiO", &kind, &index, &calls) || !Ids(calls, &ids)) return nullptr;
    plan.push_back({static_cast<OutputPlan::Kind>(kind), index, {ids.begin(), ids.end()}});
  }
  auto r = std::make_unique<Runners>();
  try {
    Graph g = Graph::Parse(text);
    r->inputs = g.inputs.size();
    r->outputs = plan.size();
    r->graph = MakeGraphRunner(Compile(g), g, trace, plan, constants);
  } catch (const std::exception& e) {
    return PyErr_Format(PyExc_RuntimeError, "%s", e.what());
  }
  return PyCapsule_New(r.release(), "runner", FreeRunners);
}

PyObject* RunRunner(PyObject*, PyObject* args) {  // (runner, inputs, symbols) -> list of outputs
  PyObject *capsule, *inputs, *symbols = nullptr;
  if (!PyArg_ParseTuple(args, "OO!|O!", &capsule, &PyTuple_Type, &inputs, &PyTuple_Type, &symbols)) return nullptr;
  auto* r = static_cast<Runners*>(PyCapsule_GetPointer(capsule, "runner"));
  if (!r) return nullptr;
  if (PyTuple_GET_SIZE(inputs) < static_cast<Py_ssize_t>(r->inputs)) return PyErr_Format(PyExc_TypeError, "inputs");
  std::vector<int64_t> values;
  for (Py_ssize_t i = 0; symbols && i < PyTuple_GET_SIZE(symbols); ++i)
    values.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(symbols, i)));
  std::vector<PyObject*> out(r->outputs);
  int failed = -1;
  RunEnd status = r->trace ? r->trace->Run(&PyTuple_GET_ITEM(inputs, 0), values.data(), out.data(), &failed)
                           : r->graph->Run(&PyTuple_GET_ITEM(inputs, 0), values.data(), out.data());
  if (status != RunEnd::kOk && PyErr_Occurred()) {
    if (r->trace) {  // tell the test which call it was
      PyObject *type, *value, *trace;
      PyErr_Fetch(&type, &value, &trace);
      PyErr_NormalizeException(&type, &value, &trace);
      Ref number(PyLong_FromLong(failed));
      PyObject_SetAttrString(value, "failed_call", number.get());
      PyErr_Restore(type, value, trace);
    }
    return nullptr;
  }
  PyObject* list = PyList_New(r->outputs);
  for (size_t i = 0; i < r->outputs; ++i) PyList_SET_ITEM(list, i, out[i]);
  return list;
}

// --- inference
PyObject* FromArg(const Arg& a) {
  if (a.is(Arg::Kind::kTensor)) return Py_BuildValue("(si)", "T", static_cast<int>(a.t));
  if (a.is(Arg::Kind::kTuple) || a.is(Arg::Kind::kList)) {
    PyObject* l = PyList_New(a.items.size());
    for (size_t i = 0; i < a.items.size(); ++i) PyList_SET_ITEM(l, i, FromArg(a.items[i]));
    return a.s.empty() ? l : Py_BuildValue("(NN)", Str(a.s), l);
  }
  Py_RETURN_NONE;
}

PyObject* Infer(PyObject*,
                PyObject* args) {  // (call, operand tensors) -> (structure, [(dtype, sizes, strides, scalar)]) or why
  PyObject *spec, *operands;
  if (!PyArg_ParseTuple(args, "OO!", &spec, &PyTuple_Type, &operands)) return nullptr;
  Call call;
  std::vector<PyObject*> constants;
  if (!ToCall(spec, &constants, &call)) return nullptr;
  std::vector<TensorMeta> metas;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operands); ++i) {
    PyObject* o = PyTuple_GET_ITEM(operands, i);
    Meta m;
    const char* why = "";
    if (!ReadMeta(o, &m, &why)) return PyErr_Format(PyExc_ValueError, "%s", why);
    Class c = Classify(o);
    TensorMeta t;
    t.framework = c >= Class::kNumpyArray ? Framework::kNumpy : Framework::kTorch;
    t.is_scalar = c == Class::kNumpyScalar;
    t.dtype = m.dtype;
    t.device = m.device;
    t.sizes = shape::Ints(m.sizes, m.sizes + m.rank);
    t.strides = shape::Ints(m.strides, m.strides + m.rank);
    t.requires_grad = m.requires_grad;
    metas.push_back(t);
  }
  Refusal why;
  auto result = InferByFramework(call, metas, constants, &why);
  if (!result) return Str(why.text);
  Ref list(PyList_New(0));
  for (size_t i = 0; i < result->metas.size(); ++i) {
    const TensorMeta& m = result->metas[i];
    if (result->aliases[i].operand >= 0)
      return Str(result->aliases[i].same ? "returns its operand" : "returns a view of an operand");
    auto tuple = [](const shape::Ints& v) {
      PyObject* t = PyTuple_New(v.size());
      for (size_t i = 0; i < v.size(); ++i) PyTuple_SET_ITEM(t, i, PyLong_FromLongLong(v[i].value()));
      return t;
    };
    Ref row(Py_BuildValue("(NNNO)", Str(DTypeName(m.dtype)), tuple(m.sizes), tuple(m.strides),
                          m.is_scalar ? Py_True : Py_False));
    PyList_Append(list.get(), row.get());
  }
  return Py_BuildValue("(NO)", FromArg(call.result), list.get());
}

// --- hosts
// One library call on Python tensors into a fresh result. None: the host declined.
PyObject* RunLibrary(PyObject*, PyObject* args) {  // (kind, operands, result sizes, axes, flag, scale)
  const char* kind;
  PyObject *operands, *sizes, *axes = nullptr;
  int flag = 0;
  double scale = 1;
  if (!PyArg_ParseTuple(args, "sO!O!|O!pd", &kind, &PyTuple_Type, &operands, &PyTuple_Type, &sizes, &PyTuple_Type,
                        &axes, &flag, &scale))
    return nullptr;
  size_t n = PyTuple_GET_SIZE(operands);
  std::vector<Meta> metas(n);
  std::vector<Buffer> b(n);
  bool torch = true;
  for (size_t i = 0; i < n; ++i) {
    PyObject* o = PyTuple_GET_ITEM(operands, i);
    const char* why = "";
    if (!ReadMeta(o, &metas[i], &why)) return PyErr_Format(PyExc_ValueError, "%s", why);
    torch = Classify(o) == Class::kTorch || Classify(o) == Class::kTorchParameter;
    b[i] = Buffer{metas[i].data, metas[i].handle, metas[i].sizes, metas[i].strides,
                  metas[i].rank, metas[i].dtype,  metas[i].device};
  }
  std::vector<int64_t> out_sizes, strides(PyTuple_GET_SIZE(sizes), 1);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sizes); ++i)
    out_sizes.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i)));
  for (int i = static_cast<int>(out_sizes.size()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<int64_t>(1, out_sizes[i + 1]);
  Attrs attrs;
  for (Py_ssize_t i = 0; axes && i < PyTuple_GET_SIZE(axes); ++i)
    attrs.axes.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(axes, i)));
  attrs.flag = flag;
  Host& host = torch ? TorchHost() : NumpyHost();
  Buffer out;
  out.sizes = out_sizes.data();
  out.strides = strides.data();
  out.rank = static_cast<int>(out_sizes.size());
  out.dtype = b[0].dtype;
  host.AllocateOutput(out.dtype, out_sizes, strides, Device{}, &out);
  const Buffer* third = n > 2 ? &b[2] : nullptr;
  bool done = false;
  if (!strcmp(kind, "matmul")) done = host.MatMul(b[0], b[1], out);
  if (!strcmp(kind, "linear")) done = host.Linear(b[0], b[1], third, nullptr, out);
  if (!strcmp(kind, "conv")) done = host.Conv(b[0], b[1], third, attrs, out);
  if (!strcmp(kind, "attention")) done = host.Attention(b[0], b[1], b[2], n > 3 ? &b[3] : nullptr, flag, scale, out);
  if (!done) {
    host.FreeOutput(&out);
    Py_RETURN_NONE;
  }
  return torch ? WrapTorch(*Torch(), out.handle) : static_cast<PyObject*>(out.handle);
}

PyObject* Force(PyObject*, PyObject* library) {  // of matrix products, by number; -1: as measured
  ForceLibrary(static_cast<int>(PyLong_AsLong(library)));
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

// What Choose says where a run of a library takes so long, and errs by so much: by number of the library. The second
// number is how many runs it looked at.
PyObject* ChooseFor(PyObject*, PyObject* args) {
  ProductShape shape{1, 0, 0, 0};
  double seconds[2], errors[2];
  long long m, n, k;
  if (!PyArg_ParseTuple(args, "LLL(dd)(dd)", &m, &n, &k, &seconds[0], &seconds[1], &errors[0], &errors[1]))
    return nullptr;
  shape.m = m, shape.n = n, shape.k = k;
  int last = 0, runs = 0;
  Probe probe{[&](Library l, int64_t) {
                last = static_cast<int>(l);
                if (last > 1) return false;
                ++runs;
                std::this_thread::sleep_for(std::chrono::duration<double>(seconds[last]));
                return true;
              },
              [&](int64_t) { return errors[last]; }, m, 2.0 * static_cast<double>(n * k)};
  const Library chosen = Choose(shape, probe);
  return Py_BuildValue("(ii)", static_cast<int>(chosen), runs);
}

PyObject* Parallel(PyObject*, PyObject* args) {  // Sums [0, n) by the torch team, in pieces.
  long long n, grain;
  if (!PyArg_ParseTuple(args, "LL", &n, &grain)) return nullptr;
  std::atomic<int64_t> sum{0};
  TorchHost().ParallelFor(
      n, grain,
      [](void* p, int64_t a, int64_t b) {
        int64_t s = 0;
        for (; a < b; ++a) s += a;
        *static_cast<std::atomic<int64_t>*>(p) += s;
      },
      &sum);
  return Py_BuildValue("(Li)", static_cast<long long>(sum), TorchHost().NumThreads());
}

// --- measurements: nanoseconds a call
PyObject* Bench(PyObject*, PyObject* args) {
  const char* what;
  PyObject *o, *inputs = nullptr;
  int n = 200000;
  if (!PyArg_ParseTuple(args, "sO|O!i", &what, &o, &PyTuple_Type, &inputs, &n)) return nullptr;
  std::function<void()> f;
  Meta m;
  TorchState s;
  volatile bool sink = false;
  if (!strcmp(what, "classify")) f = [&] { sink = Classify(o) == Class::kTorch; };
  if (!strcmp(what, "guard")) f = [&] { sink = ReadForGuard(o, &m); };
  if (!strcmp(what, "meta")) f = [&] { sink = ReadMeta(o, &m); };
  if (!strcmp(what, "state"))
    f = [&] {
      s = ReadTorchState();
      sink = s.words[0];
    };
  if (!strcmp(what, "name")) f = [&] { sink = CalleeOf(o).empty(); };
  if (!strcmp(what, "run")) {
    auto* r = static_cast<Runners*>(PyCapsule_GetPointer(o, "runner"));
    if (!r) return nullptr;
    f = [r, inputs] {
      PyObject* out[8];
      int failed;
      int64_t symbols[8] = {};
      RunEnd status = r->trace ? r->trace->Run(&PyTuple_GET_ITEM(inputs, 0), symbols, out, &failed)
                               : r->graph->Run(&PyTuple_GET_ITEM(inputs, 0), symbols, out);
      for (size_t i = 0; status == RunEnd::kOk && i < r->outputs; ++i) Py_DECREF(out[i]);
    };
  }
  if (!strcmp(what, "allocate")) {
    f = [] {
      int64_t size = 16, stride = 1;
      Buffer b;
      TorchHost().AllocateOutput(DType::kFloat32, {&size, 1}, {&stride, 1}, Device{}, &b);
      TorchHost().Release(&b);
    };
  }
  if (!strcmp(what, "allocate_wrap")) {
    f = [] {
      int64_t size = 16, stride = 1;
      Buffer b;
      TorchHost().AllocateOutput(DType::kFloat32, {&size, 1}, {&stride, 1}, Device{}, &b);
      Py_DECREF(WrapTorch(*Torch(), b.handle));
    };
  }
  if (!f) return PyErr_Format(PyExc_ValueError, "%s", what);
  const int each = n / 10;
  double best = 1e9;  // of this thread's processor time: other processes may be busy
  for (int round = 0; round < 10; ++round) {
    timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    for (int i = 0; i < each; ++i) f();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    best = std::min(best, ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / each);
  }
  (void)sink;
  return PyFloat_FromDouble(best);
}

PyObject* Verdicts(PyObject*, PyObject*) {
  Ref d(PyDict_New());
  for (auto& [k, v] : Doctor()) {
    Ref value(Str(v));
    PyDict_SetItemString(d.get(), k.c_str(), value.get());
  }
  return d.release();
}

// Runs the same code as if the fields had not been found (an older or newer torch).
PyObject* SetFields(PyObject*, PyObject* on) {
  static Offsets kept;
  auto* t = const_cast<TorchApi*>(Torch());
  if (!t) Py_RETURN_NONE;
  if (t->at.all()) kept = t->at;
  t->at = PyObject_IsTrue(on) ? kept : Offsets();
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"classify", ClassifyObject, METH_O, nullptr},
    {"read_meta", ReadMetaOf, METH_O, nullptr},
    {"read_for_guard", ReadGuardOf, METH_O, nullptr},
    {"torch_state", State, METH_NOARGS, nullptr},
    {"callee_name", NameOf, METH_O, nullptr},
    {"effects", EffectsOfName, METH_O, nullptr},
    {"resolve", Resolve, METH_O, nullptr},
    {"dtype_of", DTypeText, METH_O, nullptr},
    {"make_trace", MakeTrace, METH_O, nullptr},
    {"make_graph", MakeGraph, METH_VARARGS, nullptr},
    {"run", RunRunner, METH_VARARGS, nullptr},
    {"infer", Infer, METH_VARARGS, nullptr},
    {"library", RunLibrary, METH_VARARGS, nullptr},
    {"force_library", Force, METH_O, nullptr},
    {"choose_library", ChooseFor, METH_VARARGS, nullptr},
    {"parallel", Parallel, METH_VARARGS, nullptr},
    {"bench", Bench, METH_VARARGS, nullptr},
    {"doctor", Verdicts, METH_NOARGS, nullptr},
    {"set_fields", SetFields, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void AddTensorTestFunctions(PyObject* module) {
  PyObject* sub = PyModule_New("framejit._framejit.tensor_testing");
  if (!sub || PyModule_AddFunctions(sub, functions) < 0 || PyModule_AddObject(module, "tensor_testing", sub) < 0) {
    Py_XDECREF(sub);
    PyErr_Clear();
  }
}

}  // namespace framejit::tensor
