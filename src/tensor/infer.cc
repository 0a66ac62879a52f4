// What an unknown framework call returns: ask the framework. Torch runs it on meta tensors, which have shapes and no data;
// NumPy on small real stand-ins, and only functions whose result shape follows from shapes. A call that writes one of
// its operands, or returns a view of one, is declined: the caller's bookkeeping of memory would be wrong.
#include <algorithm>
#include <cstring>
#include <functional>

#include "tensor/call_step.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

// Result shapes of these follow from operand shapes; besides, every ufunc. By last part of the name.
constexpr const char* kShapeOnly[] = {
    "sort", "argsort", "partition", "argpartition", "lexsort", "cumsum", "cumprod", "nancumsum", "nancumprod", "diff", "gradient",
    "inv", "pinv", "solve", "lstsq", "det", "slogdet", "cholesky", "qr", "svd", "eigh", "eigvalsh", "norm", "cond", "matrix_power",
    "matrix_rank", "multi_dot", "fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn",
    "irfftn", "hfft", "ihfft", "fftshift", "ifftshift", "median", "nanmedian", "percentile", "nanpercentile", "quantile",
    "nanquantile", "convolve", "correlate", "interp", "einsum", "tensordot", "kron", "outer", "inner", "cross", "dot", "vdot", "matmul",
    "trace", "roll", "rot90", "take", "take_along_axis", "searchsorted", "digitize", "clip", "nansum", "nanprod", "nanmean",
    "nanstd", "nanvar", "nanmin", "nanmax", "nanargmin", "nanargmax", "cov", "corrcoef", "polyval", "average", "ptp", "std",
    "var", "mean", "sum", "prod", "min", "max", "amin", "amax", "argmin", "argmax", "all", "any", "where", "tile", "stack", "concatenate",
    "vstack", "hstack", "dstack", "column_stack", "pad", "isin", "isclose", "allclose", "array_equal", "nan_to_num", "round", "around",
    "sinc", "i0", "unwrap", "angle", "real_if_close", "select", "piecewise", "tril", "triu", "heaviside", "count_nonzero", "softmax", "log_softmax", "logsumexp",
    "copy", "astype", "zeros_like", "ones_like", "full_like", "conj", "conjugate", "choose", "fix", "trapezoid", "trapz",
};
// These write operands without saying so (running statistics, renormalised rows): nothing on a meta tensor shows it.
constexpr const char* kWritesInSilence[] = {"batch_norm", "native_batch_norm", "_native_batch_norm_legit", "instance_norm", "cudnn_batch_norm",
                                            "miopen_batch_norm", "batch_norm_update_stats", "rrelu", "rrelu_with_noise"};
constexpr int64_t kMaxStandIn = 1 << 20;  // elements: stand-ins are really computed

struct Inference {
  const std::vector<TensorMeta>& metas;
  std::vector<Ref> operands;
  std::vector<TensorMeta> results;
  Device device;
  bool requires_grad = false;
  std::string why;

  bool Fail(std::string text) {
    if (why.empty()) why = std::move(text);
    PyErr_Clear();
    return false;
  }
  bool FailWithError(const std::string& callee) {
    std::string message = TakeErrorText();
    if (message.size() > 200) message = message.substr(0, 200) + "...";
    return Fail(callee + " on stand-in tensors: " + message);
  }
};

void VisitTensors(Arg& a, const std::function<void(Arg&)>& f) {
  if (a.is(Arg::Kind::kTensor)) f(a);
  for (Arg& x : a.items) VisitTensors(x, f);
}

// Tensor arguments get their operand's number: operands come one per appearance, or one per distinct tensor in order.
bool NumberOperands(Call& call, size_t operands) {
  std::vector<TraceId> distinct;
  size_t appearances = 0;
  auto visit = [&](auto& f) {
    for (Arg& a : call.args) VisitTensors(a, f);
    for (auto& [name, a] : call.kwargs) VisitTensors(a, f);
  };
  std::function<void(Arg&)> count = [&](Arg& a) {
    ++appearances;
    if (std::find(distinct.begin(), distinct.end(), a.t) == distinct.end()) distinct.push_back(a.t);
  };
  visit(count);
  if (operands != appearances && operands != distinct.size()) return false;
  bool by_appearance = operands == appearances;
  size_t next = 0;
  std::function<void(Arg&)> number = [&](Arg& a) {
    size_t first = std::find(distinct.begin(), distinct.end(), a.t) - distinct.begin();
    a.t = static_cast<TraceId>(by_appearance ? next : first);
    ++next;
  };
  visit(number);
  return true;
}

bool Concrete(const TensorMeta& m) {
  for (auto& v : {&m.sizes, &m.strides}) {
    for (shape::Int i : *v) {
      if (!i.is_const()) return false;
    }
  }
  return true;
}
bool Concrete(const Arg& a) {
  if (a.is(Arg::Kind::kInt) && !a.i.is_const()) return false;
  for (const Arg& x : a.items) {
    if (!Concrete(x)) return false;
  }
  return true;
}

std::vector<int64_t> Values(const shape::Ints& v) {
  std::vector<int64_t> out;
  for (shape::Int i : v) out.push_back(i.value());
  return out;
}
PyObject* Tuple(const std::vector<int64_t>& v) {
  PyObject* t = PyTuple_New(v.size());
  for (size_t i = 0; t && i < v.size(); ++i) PyTuple_SET_ITEM(t, i, PyLong_FromLongLong(v[i]));
  return t;
}

// --- torch ------------------------------------------------------------------------------------------------------------------
PyObject* MetaTensor(const TorchApi& t, const TensorMeta& m) {
  Ref sizes(Tuple(Values(m.sizes))), strides(Tuple(Values(m.strides))), dtype(DTypeObject(Framework::kTorch, m.dtype));
  if (!sizes || !strides || !dtype) return nullptr;
  Ref fn(PyObject_GetAttrString(t.module, "empty_strided")), args(PyTuple_Pack(2, sizes.get(), strides.get()));
  Ref kwargs(Py_BuildValue("{s:O,s:s}", "dtype", dtype.get(), "device", "meta"));
  return fn && args && kwargs ? PyObject_Call(fn.get(), args.get(), kwargs.get()) : nullptr;
}

Device ParseDevice(const std::string& text) {
  Device d;
  size_t colon = text.find(':');
  std::string kind = text.substr(0, colon);
  d.kind = kind == "cuda" ? DeviceKind::kCuda : kind == "meta" ? DeviceKind::kMeta : DeviceKind::kCpu;
  if (colon != std::string::npos) d.index = static_cast<int16_t>(std::atoi(text.c_str() + colon + 1));
  return d;
}

void TakeDevice(Arg& a, Inference* in) {
  if (a.is(Arg::Kind::kDevice)) {
    in->device = ParseDevice(a.s);
    a.s = "meta";
  }
  for (Arg& x : a.items) TakeDevice(x, in);
}

int64_t Number(Ref r) {
  int64_t v = r ? PyLong_AsLongLong(r.get()) : -1;
  PyErr_Clear();
  return v;
}
int64_t StorageId(PyObject* tensor) {
  Ref s(PyObject_CallMethod(tensor, "untyped_storage", nullptr));
  return s ? Number(Ref(PyObject_GetAttrString(s.get(), "_cdata"))) : -1;
}

TensorMeta FromMeta(const Meta& m, Framework f) {
  TensorMeta out;
  out.framework = f;
  out.dtype = m.dtype;
  out.device = m.device;
  for (int i = 0; i < m.rank; ++i) {
    out.sizes.push_back(m.sizes[i]);
    out.strides.push_back(m.strides[i]);
  }
  return out;
}

bool AddTorchResult(PyObject* o, Arg* shape, Inference* in) {
  Meta m;
  const char* why = "";
  if (!ReadMeta(o, &m, &why)) return in->Fail(std::string("returns ") + why);
  for (size_t i = 0; i < in->operands.size(); ++i) {
    if (o == in->operands[i].get()) {
      shape->s = "operand";  // this very object comes back
      shape->i = shape::Int(static_cast<int64_t>(i));
    } else if (StorageId(o) == StorageId(in->operands[i].get())) {
      return in->Fail("returns a view of an operand");
    }
  }
  TensorMeta meta = FromMeta(m, Framework::kTorch);
  meta.device = in->device;
  meta.requires_grad = in->requires_grad && (IsFloat(m.dtype) || IsComplex(m.dtype));
  *shape = [&] { Arg a = Arg::Tensor(static_cast<TraceId>(in->results.size())); a.s = shape->s; a.i = shape->i; return a; }();
  in->results.push_back(std::move(meta));
  return true;
}

// --- NumPy ------------------------------------------------------------------------------------------------------------------
// Ones (a unit matrix where that fits, so that solvers are happy); zeros for integers, which may be indices. Read-only.
PyObject* StandIn(const NumpyApi& n, const TensorMeta& m) {
  std::vector<int64_t> sizes = Values(m.sizes), strides = Values(m.strides);
  int64_t item = DTypeSize(m.dtype), numel = 1;
  bool usual = true;  // only positive strides without overlap can be allocated as they are
  for (int64_t& s : strides) s *= item, usual = usual && s > 0;
  for (int64_t s : sizes) numel *= s;
  if (numel > kMaxStandIn) return PyErr_Format(PyExc_ValueError, "too large");
  int rank = static_cast<int>(sizes.size());
  Ref a;
  if (m.is_scalar || rank == 0 || numel == 0) {
    a = Ref(NewArray(n, m.dtype, rank, sizes.data(), nullptr));
  } else {
    int64_t extent = 1;
    for (int i = 0; i < rank; ++i) extent += (sizes[i] - 1) * strides[i] / item;
    if (!usual || extent > 4 * kMaxStandIn) return PyErr_Format(PyExc_ValueError, "unusual strides");
    Ref flat(NewArray(n, m.dtype, 1, &extent, nullptr));
    Ref lib(PyImport_ImportModule("numpy.lib.stride_tricks")), st(Tuple(strides)), sz(Tuple(sizes));
    a = Ref(flat && lib ? PyObject_CallMethod(lib.get(), "as_strided", "OOO", flat.get(), sz.get(), st.get()) : nullptr);
  }
  if (!a) return nullptr;
  bool unit = !IsInteger(m.dtype) && rank >= 2 && sizes[rank - 1] == sizes[rank - 2];
  Ref filled(PyObject_CallMethod(a.get(), "fill", "i", IsInteger(m.dtype) || unit ? 0 : 1));
  if (unit) {
    Ref range(PyObject_CallMethod(n.module, "arange", "L", static_cast<long long>(sizes[rank - 1]))), one(PyLong_FromLong(1));
    Ref key(range ? PyTuple_Pack(3, Py_Ellipsis, range.get(), range.get()) : nullptr);
    if (!key || PyObject_SetItem(a.get(), key.get(), one.get()) < 0) return nullptr;
  }
  if (!filled) return nullptr;
  if (m.is_scalar) return n.make_scalar(const_cast<char*>(AsArray(a.get())->data), n.descr[static_cast<int>(m.dtype)], nullptr);
  Ref fixed(PyObject_CallMethod(a.get(), "setflags", "i", 0));
  return fixed ? a.release() : nullptr;
}

bool AddNumpyResult(const NumpyApi& n, PyObject* o, Arg* shape, Inference* in) {
  Meta m;
  const char* why = "";
  if (!ReadMeta(o, &m, &why)) return in->Fail(std::string("returns ") + why);
  for (Ref& operand : in->operands) {
    if (o == operand.get()) return in->Fail("returns its operand");
    Ref shared(PyObject_CallMethod(n.module, "may_share_memory", "OO", o, operand.get()));
    if (!shared || shared.get() == Py_True) return in->Fail("returns a view of an operand");
  }
  TensorMeta meta = FromMeta(m, Framework::kNumpy);
  meta.is_scalar = Classify(o) == Class::kNumpyScalar;
  *shape = Arg::Tensor(static_cast<TraceId>(in->results.size()));
  in->results.push_back(std::move(meta));
  return true;
}

// --- both -------------------------------------------------------------------------------------------------------------------
bool Flatten(PyObject* o, Arg* shape, Inference* in) {
  Class c = Classify(o);
  if (c == Class::kTorch || c == Class::kTorchParameter || c == Class::kTorchSubclass) return AddTorchResult(o, shape, in);
  if (c != Class::kNone) return AddNumpyResult(*Numpy(), o, shape, in);
  if (o == Py_None) {
    *shape = Arg::None();
    return true;
  }
  if (PyList_CheckExact(o) || PyTuple_Check(o)) {
    Arg seq = Arg::Seq(PyList_Check(o) ? Arg::Kind::kList : Arg::Kind::kTuple, {});
    if (PyTuple_Check(o) && !PyTuple_CheckExact(o)) {
      // torch.return_types.max and its like are struct sequences, made from one tuple; a Python named tuple is not.
      if (!PyObject_HasAttrString(o, "n_fields")) return in->Fail(std::string("returns a ") + Py_TYPE(o)->tp_name);
      seq.s = Py_TYPE(o)->tp_name;
    }
    Ref items(PySequence_Fast(o, ""));
    for (Py_ssize_t i = 0; items && i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
      seq.items.emplace_back();
      if (!Flatten(PySequence_Fast_GET_ITEM(items.get(), i), &seq.items.back(), in)) return false;
    }
    *shape = std::move(seq);
    return true;
  }
  return in->Fail(std::string("returns a ") + Py_TYPE(o)->tp_name);
}

bool WritesInSilence(const Call& call) {
  std::string_view last = std::string_view(call.callee).substr(call.callee.rfind('.') + 1);
  for (const char* name : kWritesInSilence) {
    if (last == name) return true;
  }
  if (last != "embedding" && last != "embedding_bag") return false;
  for (auto& [name, a] : call.kwargs) {
    if (name == "max_norm" && !a.is_none()) return true;
  }
  return call.args.size() > 3 && call.args[3].is(Arg::Kind::kFloat);
}

bool RunTorch(const TorchApi& t, Call& call, const std::vector<PyObject*>& constants, Inference* in) {
  if (WritesInSilence(call)) return in->Fail("writes an operand that it does not return");
  Call meta_call = call;
  for (const TensorMeta& m : in->metas) {
    in->requires_grad |= m.requires_grad && call.mode.grad;
    in->operands.emplace_back(MetaTensor(t, m));
    if (!in->operands.back()) return in->FailWithError(call.callee);
  }
  if (!in->metas.empty()) in->device = in->metas[0].device;
  for (const TensorMeta& m : in->metas) {
    if (!m.sizes.empty()) {  // a 0-d CPU tensor may stand beside a GPU tensor
      in->device = m.device;
      break;
    }
  }
  for (Arg& a : meta_call.args) TakeDevice(a, in);
  for (auto& [name, a] : meta_call.kwargs) TakeDevice(a, in);
  meta_call.result = Arg::None();
  meta_call.results.clear();
  CallStep step;
  if (!step.Init(meta_call, constants, [](TraceId id) { return static_cast<int>(id); })) return in->FailWithError(call.callee);
  std::vector<PyObject*> slots;
  std::vector<int64_t> versions;
  for (Ref& r : in->operands) {
    slots.push_back(r.get());
    versions.push_back(Number(Ref(PyObject_GetAttrString(r.get(), "_version"))));
  }
  Ref device_mode, entered;
  if (in->operands.empty()) {  // a creation function: make its result on the meta device
    Ref type(PyObject_GetAttrString(t.module, "device"));
    device_mode = Ref(type ? PyObject_CallFunction(type.get(), "s", "meta") : nullptr);
    entered = Ref(device_mode ? PyObject_CallMethod(device_mode.get(), "__enter__", nullptr) : nullptr);
    if (!entered) return in->FailWithError(call.callee);
  }
  Ref r;
  {
    ModeSwitch modes;
    modes.Set({false, false});
    r = Ref(step.Invoke(slots.data(), nullptr));
  }
  if (entered) {
    SavedError saved;
    Ref left(PyObject_CallMethod(device_mode.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    PyErr_Clear();
  }
  if (!r) return in->FailWithError(call.callee);
  Arg shape;
  if (!Flatten(r.get(), &shape, in)) return false;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (Number(Ref(PyObject_GetAttrString(slots[i], "_version"))) == versions[i]) continue;
    if (slots[i] != r.get()) return in->Fail("writes an operand that it does not return");
  }
  call.result = std::move(shape);
  return true;
}

bool RunNumpy(const NumpyApi& n, Call& call, const std::vector<PyObject*>& constants, Inference* in) {
  CallStep step;
  Call plain = call;
  plain.result = Arg::None();
  plain.results.clear();
  Ref callee(ResolveCallee(call.callee));
  if (!callee) return in->FailWithError(call.callee);
  std::string_view last = std::string_view(call.callee).substr(call.callee.rfind('.') + 1);
  bool known = !strcmp(Py_TYPE(callee.get())->tp_name, "numpy.ufunc") ||
               (!strcmp(Py_TYPE(callee.get())->tp_name, "wrapper_descriptor") && last != "__getitem__");
  for (const char* name : kShapeOnly) known = known || last == name;
  if (call.callee.find(".random.") != std::string::npos) known = false;
  if (last == "where" && call.args.size() + call.kwargs.size() == 1) known = false;
  if (!known) return in->Fail(call.callee + ": its result shape may depend on data");
  for (const TensorMeta& m : in->metas) {
    in->operands.emplace_back(StandIn(n, m));
    if (!in->operands.back()) return in->FailWithError(call.callee);
  }
  if (!step.Init(plain, constants, [](TraceId id) { return static_cast<int>(id); })) return in->FailWithError(call.callee);
  std::vector<PyObject*> slots;
  for (Ref& r : in->operands) slots.push_back(r.get());
  Ref quiet(PyObject_GetAttrString(n.module, "errstate")), args(PyTuple_New(0)), kw(Py_BuildValue("{s:s}", "all", "ignore"));
  Ref state(quiet ? PyObject_Call(quiet.get(), args.get(), kw.get()) : nullptr);
  Ref entered(state ? PyObject_CallMethod(state.get(), "__enter__", nullptr) : nullptr);
  if (!entered) return in->FailWithError(call.callee);
  Ref r(step.Invoke(slots.data(), nullptr));
  {
    SavedError saved;
    Ref left(PyObject_CallMethod(state.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    PyErr_Clear();
  }
  if (!r) return in->FailWithError(call.callee);
  Arg shape;
  if (!Flatten(r.get(), &shape, in)) return false;
  call.result = std::move(shape);
  return true;
}

}  // namespace

std::optional<std::vector<TensorMeta>> InferByFramework(Call& call, const std::vector<TensorMeta>& operands,
                                                        const std::vector<PyObject*>& constants, std::string* why) {
  SavedError saved;
  Inference in{operands, {}, {}, {}, false, {}};
  Call numbered = call;
  bool ok = NumberOperands(numbered, operands.size());
  if (!ok) in.Fail("operands do not fit the call");
  for (const TensorMeta& m : operands) ok = ok && (Concrete(m) || in.Fail("symbolic sizes"));
  for (const Arg& a : call.args) ok = ok && (Concrete(a) || in.Fail("symbolic sizes"));
  for (auto& [name, a] : call.kwargs) ok = ok && (Concrete(a) || in.Fail("symbolic sizes"));
  bool torch = !call.callee.compare(0, 6, "torch.");
  if (ok) {
    if (torch && Torch()) ok = RunTorch(*Torch(), numbered, constants, &in);
    else if (!torch && Numpy()) ok = RunNumpy(*Numpy(), numbered, constants, &in);
    else ok = in.Fail("the framework is not loaded");
  }
  if (!ok) {
    if (why) *why = in.why;
    return std::nullopt;
  }
  call.result = std::move(numbered.result);
  return std::move(in.results);
}

}  // namespace framejit::tensor
