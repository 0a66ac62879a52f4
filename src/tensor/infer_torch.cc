// Torch, two ways. Small operands: the call runs for real on stand-ins full of zeros, observed op by op from a dispatch
// mode: an op that torch tags as depending on data, or as random, ends it. That is exact about strides and costs
// microseconds. Else, or if zeros were not to its taste: on meta tensors, which have shapes and no data. Their first
// use may cost 1.5 s, since torch's Python meta functions import torch._dynamo (measured in 2.13): hence the first way.
#include <algorithm>
#include <functional>
#include <optional>

#include "diag/diag.h"
#include "graph/arguments.h"
#include "graph/kept.h"
#include "runtime/cuda/driver.h"
#include "surface/rows.h"
#include "tensor/import.h"
#include "tensor/infer.h"
#include "tensor/opaque.h"
#include "tensor/overrides.h"
#include "tensor/run_context.h"
#include "tensor/told_once.h"
#include "tensor/undo.h"

namespace framejit::tensor {

namespace {

enum class Way { kReal, kMeta };

bool MaySize(DType t) {
  return IsInteger(t) || IsBool(t);
}

// What an operand holds. kOnes: where it may decide a size. kOther: everywhere.
enum class Filled { kZeros, kOnes, kOther };

PyObject* StandIn(const TorchApi& t, const TensorMeta& m, Way way, Filled filled = Filled::kZeros) {
  if (IsOpaque(m)) return OpaqueStandIn(m, filled != Filled::kZeros);
  Ref sizes(Tuple(Values(m.sizes))), strides(Tuple(Values(m.strides))), dtype(DTypeObject(Framework::kTorch, m.dtype));
  if (!sizes || !strides || !dtype) return nullptr;
  bool cuda = way == Way::kReal && m.device.kind == DeviceKind::kCuda;
  std::string device = way == Way::kMeta ? "meta"
                       : cuda            ? "cuda:" + std::to_string(std::max<int>(0, m.device.index))
                                         : "cpu";
  Ref fn(PyObject_GetAttrString(t.module, "empty_strided")), args(PyTuple_Pack(2, sizes.get(), strides.get()));
  Ref kwargs(Py_BuildValue("{s:O,s:s}", "dtype", dtype.get(), "device", device.c_str()));
  Ref made(fn && args && kwargs ? PyObject_Call(fn.get(), args.get(), kwargs.get()) : nullptr);
  if (made && way != Way::kMeta) {
    const bool other = filled == Filled::kOther && !MaySize(m.dtype);
    const int number = other ? 2 : filled != Filled::kZeros && MaySize(m.dtype);
    Ref zeroed(number ? PyObject_CallMethod(made.get(), "fill_", "i", number)
                      : PyObject_CallMethod(made.get(), "zero_", nullptr));
    size_t rank = m.sizes.size();
    if (zeroed && IsFloat(m.dtype) && DTypeSize(m.dtype) >= 4 && rank >= 2 && m.sizes[rank - 1] == m.sizes[rank - 2]) {
      Ref diagonal(PyObject_CallMethod(made.get(), "diagonal", "iii", 0, -2, -1));  // a unit matrix, for solvers
      zeroed = Ref(diagonal ? PyObject_CallMethod(diagonal.get(), "fill_", "i", number + 1) : nullptr);
    }
    if (!zeroed) return nullptr;
  }
  if (made && m.conj) made = Ref(PyObject_CallMethod(made.get(), "conj", nullptr));
  if (made && m.neg) made = Ref(PyObject_CallMethod(t.module, "_neg_view", "O", made.get()));
  return made.release();
}

// Of the call that is being observed on this thread.
struct Seen {
  bool refuses = false;  // what depends on data or on chance is not run
  bool draws = false;    // random numbers
};
thread_local Seen seen;

// aten.index is said to depend on data, as it does where an index is a mask. Are all of this call's numbers?
bool IndexesByNumbers(PyObject* op, PyObject* args) {
  Ref name(PyObject_Str(op));
  if (!name || PyUnicode_CompareWithASCIIString(name.get(), "aten.index.Tensor") || PyTuple_GET_SIZE(args) != 2)
    return PyErr_Clear(), false;
  Ref indices(PySequence_Fast(PyTuple_GET_ITEM(args, 1), ""));
  bool numbers = static_cast<bool>(indices);
  for (Py_ssize_t i = 0; numbers && i < PySequence_Fast_GET_SIZE(indices.get()); ++i) {
    PyObject* index = PySequence_Fast_GET_ITEM(indices.get(), i);
    Meta m;
    numbers = index == Py_None || (ReadAny(index, &m) && (m.dtype == DType::kInt64 || m.dtype == DType::kInt32));
  }
  return PyErr_Clear(), numbers;
}

// An object with __torch_dispatch__: notes what torch says of every op, and runs it unless that is refused.
PyObject* Observe(PyObject*, PyObject* const* args, Py_ssize_t n, PyObject*) {
  const TorchApi& t = *Torch();
  if (n < 3) return PyErr_Format(PyExc_TypeError, "__torch_dispatch__(func, types, args, kwargs)");
  PyObject* kwargs = n > 3 && args[3] != Py_None ? args[3] : nullptr;
  Ref tags(PyObject_GetAttrString(args[0], "tags")), kinds(PyObject_GetAttrString(t.module, "Tag"));
  static constexpr const char *kData = "data_dependent_output", *kShape = "dynamic_output_shape",
                              *kRandom = "nondeterministic_seeded";
  for (const char* name : {kData, kShape, kRandom}) {
    Ref kind(kinds ? PyObject_GetAttrString(kinds.get(), name) : nullptr);
    int has = kind && tags ? PySequence_Contains(tags.get(), kind.get()) : -1;
    if (has < 0) return nullptr;
    if (!has || (name == kRandom && DropsNothing(args[0], args[2], kwargs))) continue;
    if (name == kShape && IndexesByNumbers(args[0], args[2])) continue;
    seen.draws |= name == kRandom;
    if (seen.refuses) return PyErr_Format(PyExc_LookupError, "%S: %s", args[0], name);
  }
  return PyObject_Call(args[0], args[2], kwargs);
}
PyMethodDef observe_methods[] = {
    {"__torch_dispatch__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Observe)),
     METH_FASTCALL | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

class Observing {  // for its life, every op of this thread goes through Observe
 public:
  Observing(const TorchApi& t, bool refuses) : t_(t), before_(std::exchange(seen, {refuses, false})) {
    static PyObject* observer = [] {
      static PyType_Slot slots[] = {{Py_tp_methods, observe_methods}, {0, nullptr}};
      static PyType_Spec spec = {"framejit.Observer", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};
      Ref type(PyType_FromSpec(&spec));
      return type ? PyObject_CallNoArgs(type.get()) : nullptr;
    }();
    Ref r(observer ? PyObject_CallMethod(t.c_module, "_push_on_torch_dispatch_stack", "O", observer) : nullptr);
    on_ = static_cast<bool>(r);
    if (!on_) PyErr_Clear();
  }
  ~Observing() {
    seen = before_;
    if (!on_) return;
    SavedError saved;
    Ref r(PyObject_CallMethod(t_.c_module, "_pop_torch_dispatch_stack", "O", Py_None));
    if (!r) diag::Warn("a dispatch mode could not be left: " + TakeErrorText());
  }
  Observing(const Observing&) = delete;
  bool on() const { return on_; }
  bool draws() const { return seen.draws; }

 private:
  const TorchApi& t_;
  const Seen before_;
  bool on_;
};

PyObject* NoteWarning(PyObject* self, PyObject* message) {
  PyList_Append(self, message);
  Py_RETURN_NONE;
}
PyMethodDef note_warning = {"_showwarnmsg", NoteWarning, METH_O, nullptr};

// For its life, warnings of this thread are kept and not shown, whatever the filters say. `always`: none counts as
// shown, since an op that warns each time must run for real. Nothing that the user could see is touched
// (warnings.catch_warnings would make the interpreter forget which warnings were shown).
class Listening {
 public:
  explicit Listening(const TorchApi& t, bool always_warns = true) : t_(t) {
    Ref module(Import("warnings"));
    heard_ = Ref(PyList_New(0));
    static PyObject* always = Py_BuildValue("[(sOOOi)]", "always", Py_None, PyExc_Warning, Py_None, 0);
    Ref show(PyCFunction_New(&note_warning, heard_.get()));
    if (!module || !always || !show) {
      PyErr_Clear();
      return;
    }
    dict_ = PyModule_GetDict(module.get());
    Exchange(0, always);
    Exchange(1, show.get());
    Ref before(PyObject_CallMethod(t.c_module, "_get_warnAlways", nullptr));
    if (always_warns && before && before.get() == Py_False) once_ = Always(true);
    PyErr_Clear();
  }
  ~Listening() {
    if (!dict_) return;
    SavedError saved;
    for (int i : {0, 1}) Exchange(i, before_[i].get());
    if (once_) Always(false);
  }
  Listening(const Listening&) = delete;
  bool heard() const { return PyList_GET_SIZE(heard_.get()) > 0; }
  const Ref& messages() const { return heard_; }

 private:
  void Exchange(int i, PyObject* value) {
    static constexpr const char* kNames[] = {"filters", "_showwarnmsg"};
    Ref now = Ref::Borrow(PyDict_GetItemString(dict_, kNames[i]));
    if (!value)
      PyDict_DelItemString(dict_, kNames[i]);
    else
      PyDict_SetItemString(dict_, kNames[i], value);
    before_[i] = std::move(now);
    PyErr_Clear();
  }
  bool Always(bool on) {
    Ref r(PyObject_CallMethod(t_.c_module, "_set_warnAlways", "O", on ? Py_True : Py_False));
    PyErr_Clear();
    return static_cast<bool>(r);
  }

  const TorchApi& t_;
  PyObject* dict_ = nullptr;
  Ref heard_, before_[2];
  bool once_ = false;
};

void TakeDevice(Arg& a, Inference* in) {
  if (a.is(Arg::Kind::kDevice)) {
    auto device = runtime::cuda::ParseDevice(a.s);
    if (device)
      in->device = *device;
    else
      in->Fail("the device " + a.s + " is not known without guards");
    a.s = "meta";
  }
  for (Arg& x : a.items) TakeDevice(x, in);
}

int64_t Number(const Ref& r) {
  int64_t v = r ? PyLong_AsLongLong(r.get()) : -1;
  PyErr_Clear();
  return v;
}
int64_t StorageId(PyObject* tensor) {
  Ref s(PyObject_CallMethod(tensor, "untyped_storage", nullptr));
  return s ? Number(Ref(PyObject_GetAttrString(s.get(), "_cdata"))) : -1;
}

// Nothing on a meta tensor shows that an operand is written.
bool WritesInSilence(const Call& call) {
  if (call.callee.Has(kWritesInSilence)) return true;
  if (!call.callee.Has(kMayRenormalise)) return false;
  for (auto& [name, a] : call.kwargs) {
    if (name == "max_norm" && !a.is_none()) return true;
  }
  return call.args.size() > 3 && call.args[3].is(Arg::Kind::kFloat);
}

// With include_last_offset=True torch's kernels trust the last offset to be the number of indices, which the stand-in
// for the offsets is given here. Gives false where that is not possible.
bool GiveLastOffset(const Call& call, const std::vector<Ref>& operands, Way way) {
  const Arg* asked = call.callee.Has(kTrustsLastOffset) ? GivenArg(call, 7, {"include_last_offset"}) : nullptr;
  if (!asked || !asked->b || way == Way::kMeta) return true;
  const Arg *indices = GivenArg(call, 1, {"input"}), *offsets = GivenArg(call, 2, {"offsets"});
  if (!indices || !offsets || !indices->is(Arg::Kind::kTensor) || !offsets->is(Arg::Kind::kTensor)) return false;
  Ref numel(PyObject_CallMethod(operands[indices->t].get(), "numel", nullptr)), last(PyLong_FromLong(-1));
  return numel && last && PyObject_SetItem(operands[offsets->t].get(), last.get(), numel.get()) == 0;
}

enum class Verdict { kDone, kNo, kTryMeta };

Verdict Try(const TorchApi& t, Call& call, const std::vector<PyObject*>& constants, Way way, Inference* in,
            Filled filled = Filled::kZeros) {
  auto no = [&](bool) { return Verdict::kNo; };
  in->operands.clear();
  in->results.clear();
  in->aliases.clear();
  in->on_meta = way == Way::kMeta || in->metas.empty();
  for (const TensorMeta& m : in->metas) {
    in->operands.emplace_back(StandIn(t, m, way, filled));
    if (!in->operands.back())
      return way == Way::kReal ? (PyErr_Clear(), Verdict::kTryMeta) : no(in->FailWithError(call.callee));
    if (in->requires_grad && m.requires_grad) {  // some results may not: the call says which
      Ref leaf(PyObject_CallMethod(in->operands.back().get(), "requires_grad_", nullptr));
      if (!leaf) return no(in->FailWithError(call.callee));
    }
  }
  if (!GiveLastOffset(call, in->operands, way)) return no(in->FailWithError(call.callee));
  Call plain = call;
  if (way == Way::kMeta) {
    for (Arg& a : plain.args) TakeDevice(a, in);
    for (auto& [name, a] : plain.kwargs) TakeDevice(a, in);
    if (!in->why.text.empty()) return Verdict::kNo;
  }
  plain.result = Arg::None();
  plain.results.clear();
  CallStep step;
  if (!step.Init(plain, constants, [](TraceId id) { return static_cast<int>(id); }))
    return no(in->FailWithError(call.callee));
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
    if (!entered) return no(in->FailWithError(call.callee));
  }
  Ref r;
  bool observed = true;
  std::optional<Undo> generators;  // what it draws is the program's
  if (Draws(call.callee)) {
    UndoPlan plan;
    plan.torch = plan.random = true;
    for (const TensorMeta& m : in->metas)
      if (m.device.kind == DeviceKind::kCuda) plan.gpus.push_back(m.device.index);
    generators.emplace(plan, nullptr);
  }
  {
    ModeSwitch modes;
    modes.Set({in->requires_grad, false});
    Observing observing(t, way == Way::kReal);
    observed = observing.on();
    if (observed || way == Way::kMeta) r = Ref(step.Invoke(slots.data(), nullptr));
    in->draws |= observing.draws();
  }
  if (generators && !generators->Restore()) return no(in->Fail("draws random numbers"));
  if (entered) {
    SavedError saved;
    Ref left(PyObject_CallMethod(device_mode.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    PyErr_Clear();
  }
  if (!r && way == Way::kReal) {
    bool depends = observed && PyErr_ExceptionMatches(PyExc_LookupError) && !PyErr_ExceptionMatches(PyExc_IndexError) &&
                   !PyErr_ExceptionMatches(PyExc_KeyError);
    std::string text = PyErr_Occurred() ? TakeErrorText() : "";
    if (!depends || text.find("nondeterministic_seeded") != std::string::npos) return Verdict::kTryMeta;
    return no(in->Fail("depends on data: " + text));
  }
  if (!r) return no(in->FailWithError(call.callee));
  Arg shape;
  if (!Flatten(r.get(), &shape, in)) return Verdict::kNo;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (Number(Ref(PyObject_GetAttrString(slots[i], "_version"))) != versions[i])
      return no(in->Fail("writes an operand"));
  }
  call.result = std::move(shape);
  return Verdict::kDone;
}

// Can it be tried on stand-ins of at most so many elements? (Pivots of zeros made LAPACK write before its operand.)
bool SmallAndPlain(const Call& call, const Inference& in, int64_t most) {
  if (call.callee.Has(kTrustsIntegers)) return false;
  int64_t numel = 0;
  for (const TensorMeta& m : in.metas) {
    int64_t n = 1;
    for (shape::Int s : m.sizes) n *= s.value();
    numel += n;
    const Device device = RealDevice(m.device);
    if (!(device == RealDevice(in.metas[0].device)) || device.kind == DeviceKind::kMeta) return false;
  }
  // On a GPU a list of indices that is too large for the stand-in would end the process's context.
  const bool lists = in.device.kind == DeviceKind::kCuda && call.callee.last() == "__getitem__";
  bool refused = in.metas.empty();
  EachArg(call, [&](const Arg& a) { refused |= a.is(Arg::Kind::kDevice) || (lists && a.is(Arg::Kind::kList)); });
  return !refused && numel <= most;
}

Inference Another(const Inference& in) {
  Inference other{in.metas};
  other.requires_grad = in.requires_grad;
  other.device = in.device;
  return other;
}
bool TryAgain(const TorchApi& t, Call call, const std::vector<PyObject*>& constants, Way way, Inference* in,
              Filled filled) {
  return Try(t, call, constants, way, in, filled) == Verdict::kDone;
}

// Not every operator whose integers decide a size is tagged (torch._pad_packed_sequence is not): what ones for them
// give must be as large as what zeros gave. On a GPU an index that is too large would end the process's context.
bool SizedByIntegers(const TorchApi& t, const Call& call, const std::vector<PyObject*>& constants,
                     const Inference& in) {
  const bool asks = std::any_of(in.metas.begin(), in.metas.end(), [](const TensorMeta& m) { return MaySize(m.dtype); });
  if (!asks || in.metas[0].device.kind != DeviceKind::kCpu) return false;
  Inference ones = Another(in);
  const bool done = TryAgain(t, call, constants, Way::kReal, &ones, Filled::kOnes);
  PyErr_Clear();
  auto same = [](const TensorMeta& a, const TensorMeta& b) { return a.dtype == b.dtype && a.sizes == b.sizes; };
  return done && !std::equal(in.results.begin(), in.results.end(), ones.results.begin(), ones.results.end(), same);
}

// Two calls with stand-ins that differ in all that no form says: what they agree about is known of the results. Gives
// false if that is not enough.
bool SameForms(const TorchApi& t, const Call& call, const std::vector<PyObject*>& constants, Inference* in) {
  Inference other = Another(*in);
  if (!TryAgain(t, call, constants, Way::kReal, &other, Filled::kOther)) return PyErr_Clear(), false;
  if (in->results.size() != other.results.size()) return false;
  const bool counted = !AnyOpaque(in->metas) && !in->sizes_made_up;
  for (size_t i = 0; i < in->results.size(); ++i) {
    TensorMeta &a = in->results[i], &b = other.results[i];
    if (IsOpaque(a) && IsOpaque(b)) {
      const auto known = WhatBothTell(a.device, b.device, counted);
      if (known) a.device = b.device = *known;
    }
    if (!(a.device == b.device) || a.dtype != b.dtype || a.sizes != b.sizes || a.strides != b.strides ||
        a.requires_grad != b.requires_grad)
      return false;
    Inferred::Alias &one = in->aliases[i], &two = other.aliases[i];
    if (one.same != two.same || (one.same && one.operand != two.operand)) return false;
    if (one.operand != two.operand) one.operand = kSharesOpaque;
  }
  return true;
}

// None is an empty vector on the meta device.
bool MayLackResults(const Inference& in) {
  const auto empty = [](const TensorMeta& m) { return m.sizes.size() == 1 && m.sizes[0] == shape::Int(0); };
  return std::any_of(in.results.begin(), in.results.end(), empty) &&
         std::none_of(in.metas.begin(), in.metas.end(), empty);
}

}  // namespace

bool AddTorchResult(PyObject* o, Arg* shape, Inference* in) {
  Meta m;
  const char* why = "";
  const bool opaque = !ReadAny(o, &m, &why);
  if (opaque && (in->on_meta || !ReadOpaque(o, &m, nullptr, true))) return in->Fail(std::string("returns ") + why);
  const bool beside = opaque || AnyOpaque(in->metas);
  Inferred::Alias alias;
  for (size_t i = 0; i < in->operands.size(); ++i) {
    if (beside) {
      const bool one = opaque || IsOpaque(in->metas[i]);
      if (o == in->operands[i].get()) alias = {static_cast<int>(i), true};
      if (!alias.same && one && ShareMemory(o, in->operands[i].get())) alias.operand = kSharesOpaque;
      if (one) continue;
    }
    // A copy to another device, which on the meta device is no copy.
    if (in->on_meta && m.device.kind == DeviceKind::kMeta && !(in->device == in->metas[i].device)) continue;
    if (StorageId(o) == StorageId(in->operands[i].get())) alias = {static_cast<int>(i), o == in->operands[i].get()};
  }
  if (Classify(o) != Class::kTorch) return in->Fail("returns a subclass of Tensor");
  if (m.neg && IsBool(m.dtype)) return in->Fail("returns negated bools");  // nothing can be done with them
  in->aliases.resize(in->results.size());
  in->aliases.push_back(alias);
  TensorMeta meta = FromMeta(m, Framework::kTorch);
  if (in->on_meta && m.device.kind == DeviceKind::kMeta) meta.device = in->device;
  meta.requires_grad = in->requires_grad && m.requires_grad && (IsFloat(m.dtype) || IsComplex(m.dtype));
  *shape = Arg::Tensor(static_cast<TraceId>(in->results.size()));
  in->results.push_back(std::move(meta));
  return true;
}

// An operator that writes to its arguments, on copies of these.
static const Callee kWritten{"framejit._functions.written"};
// The user's backward as it is, which says of stand-ins what it will give.
static const Callee kOwnBackward{"framejit._functions.own_backward"};

// May a warning be shown here without an exception of the user's filters?
bool MayWarn(const TorchApi& t) {
  Ref always(PyObject_CallMethod(t.c_module, "_get_warnAlways", nullptr)), module(Import("warnings"));
  Ref filters(module ? PyObject_GetAttrString(module.get(), "filters") : nullptr);
  bool may = always.get() == Py_False && filters && PyList_Check(filters.get());
  for (Py_ssize_t i = 0; may && i < PyList_GET_SIZE(filters.get()); ++i) {
    PyObject* filter = PyList_GET_ITEM(filters.get(), i);
    PyObject* action = PyTuple_Check(filter) && PyTuple_GET_SIZE(filter) ? PyTuple_GET_ITEM(filter, 0) : nullptr;
    may = action && PyUnicode_Check(action) && PyUnicode_CompareWithASCIIString(action, "error");
  }
  PyErr_Clear();
  return may;
}

// `ask` makes a call that warned; false: it failed. Is that a warning that torch gives once in a process? If nobody has
// seen it yet, it is given now, in the line of the program that makes the call.
template <typename Ask>
bool WarnsOnce(const TorchApi& t, Ask&& ask) {
  if (!MayWarn(t)) return false;
  Ref messages;
  {
    Listening first(t, false);
    if (!ask()) return false;
    if (!first.heard()) return true;
    messages = first.messages();
  }
  {
    Listening second(t, false);
    if (!ask() || second.heard()) return false;
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(messages.get()); ++i) {
    PyObject* one = PyList_GET_ITEM(messages.get(), i);
    Ref category(PyObject_GetAttrString(one, "category")), message(PyObject_GetAttrString(one, "message"));
    Ref text(message ? PyObject_Str(message.get()) : nullptr);
    if (text && category) PyErr_WarnEx(category.get(), PyUnicode_AsUTF8(text.get()), 1);
    PyErr_Clear();
  }
  return true;
}

// The kernel that torch takes in the run is not the one that answers here.
static bool LiesDense(const Call& call, const Inference& in) {
  return call.callee.Has(kDenseWhenBare) && !in.requires_grad && in.device.kind == DeviceKind::kCpu &&
         in.results.size() == 1;
}

bool FloatsAreTold() {
  OverridesOff own;
  const TorchApi* t = Torch();
  Ref module(t ? Import("framejit._functions") : nullptr);
  if (!module) return PyErr_Clear(), false;
  const auto ask = [&] {
    Ref made(PyObject_CallMethod(module.get(), "float_of_leaf", nullptr));
    return made ? true : (PyErr_Clear(), false);
  };
  {
    Listening always(*t);
    if (!ask()) return false;
    if (!always.heard()) return true;
  }
  return WarnsOnce(*t, ask);
}

bool InferTorch(const TorchApi& t, Call& call, const std::vector<PyObject*>& constants, Inference* in) {
  if (WritesInSilence(call) || WritesBySchema(call.callee)) return in->Fail("writes an operand");
  const bool foreign = call.callee.Has(kForeign);
  Callee op = call.callee;
  if (op == kWritten) op = CalleeOf(constants[call.args[0].i.value()]);
  const bool silent = call.callee == kWritten && call.args[2].i.value() == 0;  // it has no results to speak of
  if (foreign && !silent && call.callee != kOwnBackward && RunsPython(op))
    return in->Fail("only its own code says what it returns");
  if (!in->metas.empty()) in->device = RealDevice(in->metas[0].device);
  bool found = false;
  for (const TensorMeta& m : in->metas) {
    in->requires_grad |= m.requires_grad && call.mode.grad;
    if (!found && !m.sizes.empty())
      in->device = RealDevice(m.device), found = true;  // a 0-d CPU tensor may stand beside a GPU tensor
  }
  if (foreign && in->requires_grad) return in->Fail("its gradient is code of its own, which a graph would run twice");
  std::optional<Listening> listening(std::in_place, t);
  Verdict v = Verdict::kTryMeta;
  // Bare operators may take sizes on trust, also those of stand-ins that do not fit each other. A user's operators may
  // do anything.
  const std::string& name = call.callee.name();
  const bool ours = name.starts_with("torch.ops.aten.") || name.starts_with("torch.ops.quantized.");
  const bool safe = !foreign && (!name.starts_with("torch.ops.") || (ours && !in->sizes_made_up));
  if (safe && SmallAndPlain(call, *in, 4 * kMaxStandIn)) {
    v = Try(t, call, constants, Way::kReal, in);
    if (v == Verdict::kTryMeta && in->real_only) return in->Fail("the framework refuses such sizes");
  }
  if (v == Verdict::kDone && SizedByIntegers(t, call, constants, *in))
    return in->Fail("depends on data: its integers decide the size of a result");
  const bool opaque = AnyOpaque(in->metas);
  if (v == Verdict::kDone && (opaque || AnyOpaque(in->results)) && !SameForms(t, call, constants, in))
    return in->Fail("depends on data: what a tensor of this form gives is not known");
  if (v == Verdict::kTryMeta && opaque) return in->Fail("returns what is not known of such a tensor");
  if (v == Verdict::kTryMeta) {
    v = Try(t, call, constants, Way::kMeta, in);
    if (safe && v == Verdict::kDone && MayLackResults(*in) && SmallAndPlain(call, *in, 64 * kMaxStandIn)) {
      in->results.clear();
      in->aliases.clear();
      v = Try(t, call, constants, Way::kReal, in);
    }
  }
  const bool heard = v == Verdict::kDone && listening->heard();
  listening.reset();
  const auto again = [&] {  // what is known by now stays
    Inference scratch = Another(*in);
    return TryAgain(t, call, constants, in->on_meta ? Way::kMeta : Way::kReal, &scratch, Filled::kZeros);
  };
  if (heard && (foreign || !WarnsOnce(t, again))) return in->Fail("warns");
  if (v == Verdict::kDone && LiesDense(call, *in)) in->results[0].strides = shape::RowMajor(in->results[0].sizes);
  if (v == Verdict::kDone && in->draws && !Draws(call.callee)) return in->Fail("draws random numbers");
  return v == Verdict::kDone;
}

namespace {

// Is it made of an extreme of what the call made inside? Its derivative compares the two, so that both are made again.
bool HasExtreme(PyObject* result) {
  Ref module(Import("framejit._gradients"));
  Ref found(module ? PyObject_CallMethod(module.get(), "has_extreme", "O", result) : nullptr);
  return found ? found.get() == Py_True : (PyErr_Clear(), true);
}

// kept: a list of tensors. result: of a call with these operands.
KeptMemory WhatIsKept(PyObject* kept, const std::vector<Ref>& operands, PyObject* result) {
  KeptMemory found;
  std::vector<int64_t> from, made;
  bool extremes = false;
  for (const Ref& r : operands) from.push_back(StorageId(r.get()));
  const bool several = PyTuple_Check(result) || PyList_Check(result);
  for (Py_ssize_t i = 0; i < (several ? PySequence_Fast_GET_SIZE(result) : 1); ++i) {
    PyObject* o = several ? PySequence_Fast_GET_ITEM(result, i) : result;
    if (Classify(o) != Class::kTorch) return {};
    made.push_back(StorageId(o));
    extremes |= HasExtreme(o);
  }
  found.known = true;
  found.operands.resize(from.size());
  found.results.resize(made.size());
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(kept); ++k) {
    const int64_t storage = StorageId(PyList_GET_ITEM(kept, k));
    bool other = true;
    for (size_t i = 0; i < from.size(); ++i)
      if (from[i] == storage) found.operands[i] = true, other = false;
    for (size_t i = 0; i < made.size(); ++i)
      if (made[i] == storage) found.results[i] = true, other = false;
    found.others |= other;
  }
  if (extremes && found.others) found.results.assign(made.size(), false);
  return found;
}

bool AreAlike(PyObject* a, PyObject* b) {
  std::vector<PyObject*> first, second;
  if (!FlattenResults(a, &first) || !FlattenResults(b, &second)) return false;
  return std::equal(first.begin(), first.end(), second.begin(), second.end(), [](PyObject* x, PyObject* y) {
    Meta m, n;
    return ReadMeta(x, &m) && ReadMeta(y, &n) && m.dtype == n.dtype &&
           std::equal(m.sizes, m.sizes + m.rank, n.sizes, n.sizes + n.rank);
  });
}

// Has it results like `made` where nobody wants gradients, as in what runs forward? Some calls do not, but for the one
// that all want.
bool GivesTheSame(CallStep& step, const std::vector<Ref>& operands, PyObject* made) {
  std::vector<Ref> detached;
  std::vector<PyObject*> slots;
  for (const Ref& r : operands) {
    detached.emplace_back(PyObject_CallMethod(r.get(), "detach", nullptr));
    slots.push_back(detached.back().get());
    if (!slots.back()) return PyErr_Clear(), false;
  }
  Ref without(step.Invoke(slots.data(), nullptr));
  return without ? AreAlike(made, without.get()) : (PyErr_Clear(), false);
}

// Null: that cannot be asked.
Ref GradientsOnStandIns(const TorchApi& t, const Call& call, const std::vector<TensorMeta>& metas, Way way,
                        const std::vector<PyObject*>& constants, KeptMemory* kept) {
  std::vector<Ref> operands;
  std::vector<PyObject*> slots;
  Ref wanted(PyList_New(0)), outputs(PyList_New(0)), grads(PyList_New(0));
  for (TensorMeta m : metas) {
    m.strides = shape::RowMajor(m.sizes);  // no layout decides who has a gradient, and some crash torch's kernels
    operands.emplace_back(StandIn(t, m, way));
    if (!operands.back()) return {};
    slots.push_back(operands.back().get());
    if (!m.requires_grad) continue;
    Ref leaf(PyObject_CallMethod(slots.back(), "requires_grad_", nullptr));
    if (!leaf || PyList_Append(wanted.get(), slots.back()) < 0) return {};
  }
  if (!GiveLastOffset(call, operands, way)) return {};
  Call plain = call;
  plain.result = Arg::None();
  plain.results.clear();
  CallStep step;
  if (!step.Init(plain, constants, [](TraceId id) { return static_cast<int>(id); })) return {};
  ModeSwitch modes;
  modes.Set({true, false});
  Ref made;
  {
    std::optional<Observing> observing;
    if (way == Way::kReal && !observing.emplace(t, true).on()) return {};
    Ref list(PyList_New(0)), module(Import("framejit._gradients"));
    Ref keeping(list && module ? PyObject_CallMethod(module.get(), "keeping", "O", list.get()) : nullptr);
    Ref entered(keeping ? PyObject_CallMethod(keeping.get(), "__enter__", nullptr) : nullptr);
    PyErr_Clear();  // there are places where torch takes no hooks
    made = Ref(step.Invoke(slots.data(), nullptr));
    if (entered) {
      SavedError error;
      Ref left(PyObject_CallMethod(keeping.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    }
    if (made && entered) *kept = WhatIsKept(list.get(), operands, made.get());
    if (kept->known && !GivesTheSame(step, operands, made.get())) *kept = {};
  }
  Ref all(!made                                                   ? nullptr
          : PyTuple_Check(made.get()) || PyList_Check(made.get()) ? PySequence_List(made.get())
                                                                  : nullptr);
  if (made && !all) all = Ref(Py_BuildValue("[O]", made.get()));
  for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all.get()); ++i) {
    Meta m;
    PyObject* o = PyList_GET_ITEM(all.get(), i);
    if (Classify(o) != Class::kTorch || !ReadAny(o, &m) || !m.requires_grad) continue;
    Ref like(PyObject_CallMethod(t.module, "zeros_like", "O", o));
    if (!like || PyList_Append(outputs.get(), o) < 0 || PyList_Append(grads.get(), like.get()) < 0) return {};
  }
  if (!all || !PyList_GET_SIZE(outputs.get())) return {};
  Ref autograd(Import("torch.autograd")), f(PyObject_GetAttrString(autograd.get(), "grad"));
  Ref args(PyTuple_Pack(3, outputs.get(), wanted.get(), grads.get())),
      kwargs(Py_BuildValue("{s:O}", "allow_unused", Py_True));
  return f && args && kwargs ? Ref(PyObject_Call(f.get(), args.get(), kwargs.get())) : Ref();
}

}  // namespace

std::vector<bool> WithoutGradient(const Call& call, const std::vector<TensorMeta>& operands,
                                  const std::vector<PyObject*>& constants) {
  std::vector<bool> none(operands.size());
  KeptMemory kept;
  const TorchApi* t = Torch();
  if (!t || !call.callee.name().starts_with("torch.")) return none;
  SavedError saved;
  Listening listening(*t);
  Inference in{operands};
  const Way way = SmallAndPlain(call, in, kMaxStandIn) ? Way::kReal : Way::kMeta;
  Ref grads = GradientsOnStandIns(*t, call, operands, way, constants, &kept);
  PyErr_Clear();
  if (!grads || !PyTuple_Check(grads.get())) return none;
  Py_ssize_t at = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].requires_grad) continue;
    PyObject* grad = PyTuple_GET_ITEM(grads.get(), at++);
    none[i] = grad == Py_None;
    Ref sparse(none[i] ? nullptr : PyObject_GetAttrString(grad, "is_sparse"));
    if (sparse.get() == Py_True) throw surface::Decline(call.callee + " has a sparse gradient");
  }
  PyErr_Clear();
  kept.AddTo(&none);
  return none;
}

}  // namespace framejit::tensor
