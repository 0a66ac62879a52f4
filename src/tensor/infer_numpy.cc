// NumPy: the call runs on stand-ins of the real sizes, if its result shape is known to follow from shapes alone.
#include <algorithm>
#include <cstring>
#include <span>

#include "graph/arguments.h"
#include "graph/effects.h"
#include "runtime/copy.h"
#include "tensor/import.h"
#include "tensor/infer.h"

namespace framejit::tensor {

namespace {

constexpr std::string_view kArrays = "framejit._arrays.";  // how functions that write are called

bool HoldsTensor(const Arg& a) {
  return a.is(Arg::Kind::kTensor) || std::any_of(a.items.begin(), a.items.end(), HoldsTensor);
}

// x[key]: a mask decides a size, and so may what is no list of integers.
bool SelectsByPlace(const Call& call, const std::vector<TensorMeta>& metas) {
  if (call.args.size() != 2) return false;
  const Arg& key = call.args[1];
  for (const Arg& a : key.is(Arg::Kind::kTuple) ? key.items : std::vector<Arg>{key}) {
    if (a.is(Arg::Kind::kTensor) ? IsBool(metas.at(a.t).dtype) : a.is(Arg::Kind::kBool)) return false;
    if (a.is(Arg::Kind::kSlice) && HoldsTensor(a)) return false;
    if (!a.is(Arg::Kind::kList) && !a.is(Arg::Kind::kTuple)) continue;
    for (const Arg& i : a.items)
      if (!i.is(Arg::Kind::kInt)) return false;
  }
  return true;
}

// Are its results as large whatever its operands' sizes are? Then smaller stand-ins tell the same.
bool CountsAnyNumber(const Call& call) {
  const Arg* bins = GivenArg(call, 1, {"bins"});
  return call.callee.last() == "histogram" && (!bins || bins->is(Arg::Kind::kInt));
}

// Does the shape of the result follow from the shapes of the operands?
bool ShapesDecide(const Call& call, PyObject* callee, const std::vector<TensorMeta>& metas) {
  const std::string_view last = call.callee.last();
  if (call.callee.name().starts_with(kArrays)) return true;
  if (call.callee.name().find(".random.") != std::string::npos) return false;
  if (last == "__getitem__") return SelectsByPlace(call, metas);
  const char* type = Py_TYPE(callee)->tp_name;
  if (!strcmp(type, "numpy.ufunc") || !strcmp(type, "wrapper_descriptor")) return true;
  if (last == "__get__") return call.callee.space().ends_with(".real") || call.callee.space().ends_with(".imag");
  if (metas.empty() && call.callee.Has(kSizedByNumbers)) return true;
  if (!call.callee.Has(kSizedByShapes)) return false;
  auto given = [&](size_t position, std::string_view name) { return GivenArg(call, position, {name}); };
  if (last == "where") return call.args.size() + call.kwargs.size() != 1;
  // What says how often, or where, is data if it is an array.
  if (last == "repeat" || last == "insert" || last == "delete") {
    const Arg* a = given(1, last == "repeat" ? "repeats" : "obj");
    return a && !HoldsTensor(*a);
  }
  if (last == "linspace" || last == "logspace" || last == "geomspace") {
    const Arg* number = given(2, "num");
    return !number || !HoldsTensor(*number);
  }
  if (last == "histogram") {
    const Arg* bins = given(1, "bins");
    return !bins || bins->is(Arg::Kind::kInt) || bins->is(Arg::Kind::kTensor) || bins->is(Arg::Kind::kList);
  }
  if (last == "broadcast_to" || last == "ravel_multi_index" || last == "unravel_index" || last == "vander") {
    const Arg* a = given(1, "shape");
    return !a || !HoldsTensor(*a);
  }
  return true;
}

// Gives ones (a unit matrix where that fits, so that solvers are content), and zeros for integers, which may be
// indices. They are read-only, unless `writable`: then they are given to what is known to write into none of them.
PyObject* StandIn(const NumpyApi& n, const TensorMeta& m, bool writable) {
  std::vector<int64_t> sizes = Values(m.sizes), strides = Values(m.strides);
  int64_t item = DTypeSize(m.dtype), numel = 1;
  const runtime::Extent reach = runtime::ExtentOf(sizes, strides);
  bool overlaps = false;  // one element is many: that may be read
  for (size_t i = 0; i < strides.size(); ++i) {
    strides[i] *= item;
    overlaps = overlaps || (strides[i] == 0 && sizes[i] > 1);
  }
  for (int64_t s : sizes) numel *= s;
  if (numel > kMaxStandIn) return PyErr_Format(PyExc_ValueError, "too large");
  int rank = static_cast<int>(sizes.size());
  Ref a;
  if (m.is_scalar || rank == 0 || numel == 0) {
    a = Ref(NewArray(n, m.dtype, rank, sizes.data(), nullptr));
  } else {
    const int64_t extent = reach.high - reach.low;
    if ((overlaps && writable) || extent > 4 * kMaxStandIn) return PyErr_Format(PyExc_ValueError, "unusual strides");
    Ref flat(NewArray(n, m.dtype, 1, &extent, nullptr));
    if (!flat) return nullptr;
    a = Ref(ViewOf(n, m.dtype, rank, sizes.data(), strides.data(), AsArray(flat.get())->data - reach.low * item,
                   flat.get()));
  }
  if (!a) return nullptr;
  bool unit = !IsInteger(m.dtype) && rank >= 2 && sizes[rank - 1] == sizes[rank - 2];
  Ref filled(PyObject_CallMethod(a.get(), "fill", "i", IsInteger(m.dtype) || unit ? 0 : 1));
  if (unit) {
    Ref range(PyObject_CallMethod(n.module, "arange", "L", static_cast<long long>(sizes[rank - 1]))),
        one(PyLong_FromLong(1));
    Ref key(range ? PyTuple_Pack(3, Py_Ellipsis, range.get(), range.get()) : nullptr);
    if (!key || PyObject_SetItem(a.get(), key.get(), one.get()) < 0) return nullptr;
  }
  if (!filled) return nullptr;
  if (m.is_scalar)
    return n.make_scalar(const_cast<char*>(AsArray(a.get())->data), n.descr[static_cast<int>(m.dtype)], nullptr);
  if (writable) return a.release();
  Ref fixed(PyObject_CallMethod(a.get(), "setflags", "i", 0));
  return fixed ? a.release() : nullptr;
}

}  // namespace

bool AddNumpyResult(const NumpyApi& n, PyObject* o, Arg* shape, Inference* in) {
  Meta m;
  const char* why = "";
  if (!ReadMeta(o, &m, &why)) return in->Fail(std::string("returns ") + why);
  Inferred::Alias alias;
  for (size_t i = 0; i < in->operands.size(); ++i) {
    PyObject* operand = in->operands[i].get();
    Ref shared(PyObject_CallMethod(n.module, "may_share_memory", "OO", o, operand));
    if (!shared) return in->Fail("returns memory of an unknown kind");
    if (o != operand && (shared.get() != Py_True || Classify(o) == Class::kNumpyScalar)) continue;
    if (alias.operand >= 0) return in->Fail("returns a view of two operands");
    alias = {static_cast<int>(i), o == operand};
  }
  TensorMeta meta = FromMeta(m, Framework::kNumpy);
  meta.is_scalar = Classify(o) == Class::kNumpyScalar;
  meta.read_only = alias.operand < 0 && !meta.is_scalar && (m.key_set & kReadOnly);  // operands cannot be written here
  *shape = Arg::Tensor(static_cast<TraceId>(in->results.size()));
  in->aliases.resize(in->results.size());
  in->aliases.push_back(alias);
  in->results.push_back(std::move(meta));
  return true;
}

bool InferNumpy(const NumpyApi& n, Call& call, const std::vector<PyObject*>& constants, Inference* in) {
  for (const TensorMeta& m : in->metas) {
    if (m.device.kind == DeviceKind::kCuda) return in->Fail(call.callee + " is not known on CuPy's arrays");
  }
  if (call.callee.of_cupy()) return in->Fail(call.callee + " is not known");
  CallStep step;
  Call plain = call;
  plain.result = Arg::None();
  plain.results.clear();
  Ref callee(ResolveCallee(call.callee));
  if (!callee) return in->FailWithError(call.callee);
  if (!ShapesDecide(call, callee.get(), in->metas))
    return in->Fail(call.callee + ": its result shape may depend on data");
  const bool any_number = CountsAnyNumber(call);
  // Of SciPy, functions with a row (CaptureSemantics::ScipyCall). Some of their C code takes nothing that is read-only.
  const bool computes = call.callee.framework() == Framework::kNumpy && call.callee.name().starts_with("scipy.") &&
                        !call.callee.name().starts_with("scipy.special.");
  for (TensorMeta m : in->metas) {
    if (any_number) m.sizes = shape::Ints(m.sizes.size(), shape::Int(1));
    in->operands.emplace_back(StandIn(n, m, computes));
    if (!in->operands.back()) return in->FailWithError(call.callee);
  }
  if (call.callee.name().starts_with(kArrays)) {
    PyObject* target = in->operands.at(0).get();
    Ref copy(Py_TYPE(target) == n.array ? PyObject_CallMethod(target, "copy", nullptr) : nullptr);
    if (!copy) return in->FailWithError(call.callee);
    in->operands[0] = std::move(copy);
  }
  if (!step.Init(plain, constants, [](TraceId id) { return static_cast<int>(id); }))
    return in->FailWithError(call.callee);
  std::vector<PyObject*> slots;
  for (Ref& r : in->operands) slots.push_back(r.get());
  Ref quiet(PyObject_GetAttrString(n.module, "errstate")), args(PyTuple_New(0)),
      kw(Py_BuildValue("{s:s}", "all", "ignore"));
  Ref state(quiet ? PyObject_Call(quiet.get(), args.get(), kw.get()) : nullptr);
  Ref entered(state ? PyObject_CallMethod(state.get(), "__enter__", nullptr) : nullptr);
  // What warns is left to the framework, which tells it at the user's line.
  Ref warnings(Import("warnings")), record(Py_BuildValue("{s:O}", "record", Py_True));
  Ref type(warnings ? PyObject_GetAttrString(warnings.get(), "catch_warnings") : nullptr);
  Ref catcher(type && record ? PyObject_Call(type.get(), args.get(), record.get()) : nullptr);
  if (!entered || !catcher) return in->FailWithError(call.callee);
  Ref caught(PyObject_CallMethod(catcher.get(), "__enter__", nullptr));
  Ref always(PyObject_CallMethod(warnings.get(), "simplefilter", "s", "always"));
  Ref r(step.Invoke(slots.data(), nullptr));
  {
    SavedError saved;
    for (Ref* context : {&catcher, &state})
      Ref left(PyObject_CallMethod(context->get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    PyErr_Clear();
  }
  if (r && caught && PyList_Check(caught.get()) && PyList_GET_SIZE(caught.get()))
    return in->Fail(call.callee + ": warns");
  if (!r) return in->FailWithError(call.callee);
  Arg shape;
  if (!Flatten(r.get(), &shape, in)) return false;
  if (call.callee.name().starts_with(kArrays)) in->aliases.assign(in->results.size(), {});  // a new value of its target
  call.result = std::move(shape);
  return true;
}

}  // namespace framejit::tensor
