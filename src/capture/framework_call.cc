#include "capture/framework_call.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "bytecode/lines.h"
#include "capture/callees.h"
#include "capture/foreach.h"
#include "capture/gradients.h"
#include "capture/leaf_casts.h"
#include "capture/numbers/unseen.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/tensor_state.h"
#include "capture/warned_calls.h"
#include "capture/wrappers/overrides.h"
#include "capture/wrappers/tape.h"
#include "graph/arguments.h"
#include "graph/opaque.h"
#include "tensor/import.h"
#include "tensor/infer.h"
#include "tensor/opaque.h"

namespace framejit::capture {

PyObject* TensorQuery(Session& s, PyObject* proxy, const std::string& method, PyObject* const* args, Py_ssize_t nargs,
                      PyObject* kwnames, bool* handled);

namespace {

bool LeavesUnwritten(Callee callee) {
  static constexpr std::string_view kUnwritten[] = {"empty", "empty_like", "new_empty"};
  return std::find(std::begin(kUnwritten), std::end(kUnwritten), callee.last()) != std::end(kUnwritten);
}

// It is guarded, as all of that state.
bool IsDeterministic() {
  return tensor::ReadTorchState().words[5] & 1;
}

// What deterministic algorithms write into memory that nothing was written into. Null: a Break or an exception.
Ref Filled(Session& s, Ref made) {
  if (!IsTensor(made.get()) || !IsDeterministic()) return made;
  static const Callee asked{"torch._C._get_deterministic_fill_uninitialized_memory"}, full{"torch.full_like"};
  const Answered fills = s.modes.switches.Answer(s, asked, nullptr, 0);
  Ref answer(*fills);
  if (answer.get() != Py_True) return answer ? std::move(made) : Ref();
  const DType t = s.meta(AsTensor(made.get())->id).dtype;
  Ref most(IsBool(t)      ? Py_NewRef(Py_True)
           : IsInteger(t) ? PyLong_FromUnsignedLongLong(~uint64_t{0} >> (64 - 8 * DTypeSize(t) + IsSigned(t)))
                          : PyFloat_FromDouble(std::numeric_limits<double>::quiet_NaN()));
  PyObject* args[] = {made.get(), most.get()};
  return most ? Ref(s.CallFramework(full, args, 2, nullptr)) : Ref();
}

// Is it a function of numbers without effects? Those are the ufuncs, of which not all have a row.
bool IsNumpyFunction(Callee callee) {
  Ref function(callees::IsNumpys(callee) ? tensor::ResolveCallee(callee) : nullptr);
  if (!function) PyErr_Clear();
  return function && OfType(function.get(), CType::kUfunc);
}

// Numbers, and lists and tuples of numbers.
bool AllNumbers(const Call& call) {
  const auto list = [](const Arg& a) {
    return (a.is(Arg::Kind::kTuple) || a.is(Arg::Kind::kList)) && a.s.empty() &&
           std::all_of(a.items.begin(), a.items.end(), [](const Arg& x) { return x.is_number(); });
  };
  return call.kwargs.empty() &&
         std::all_of(call.args.begin(), call.args.end(), [&](const Arg& a) { return a.is_number() || list(a); });
}

// With the values of symbols, which are guarded.
PyObject* PlainNumber(PyObject* o) {
  return IsSymInt(o) ? PyNumber_Long(o) : IsSymFloat(o) ? PyNumber_Float(o) : Py_NewRef(o);
}

PyObject* PlainList(Session& s, const Arg& list) {
  Ref items(PyList_New(0));
  for (const Arg& a : list.items) {
    Ref o(s.FromArg(a)), plain(o ? PlainNumber(o.get()) : nullptr);
    if (!plain || PyList_Append(items.get(), plain.get()) < 0) return nullptr;
  }
  return list.is(Arg::Kind::kTuple) ? PyList_AsTuple(items.get()) : items.release();
}

// Makes the list of the numbers that a short tensor holds. Null without an exception: it is no such tensor.
PyObject* ListOf(Session& s, PyObject* proxy) {
  constexpr int64_t kMost = 64;
  const TensorMeta m = s.meta(AsTensor(proxy)->id);
  const bool torch = m.framework == Framework::kTorch;
  if ((!torch && !s.libraries.torch) || m.sizes.size() != 1 || !m.sizes[0].is_const() || m.sizes[0].value() > kMost ||
      !(IsInteger(m.dtype) || IsFloat(m.dtype)) || IsBool(m.dtype))
    return nullptr;
  Ref list(PyList_New(0));
  for (int64_t i = 0; list && i < m.sizes[0].value(); ++i) {
    Ref index(PyLong_FromLongLong(i));
    PyObject* args[] = {proxy, index.get()};
    static const Callee numpys("numpy.ndarray.__getitem__");
    Ref one(s.CallFramework(torch ? callees::kTensorGetItem : numpys, args, 2, nullptr));
    if (!one || !IsTensor(one.get())) return nullptr;
    Ref number(!torch             ? (IsFloat(m.dtype) ? FloatOf(one.get()) : IntOf(one.get()))
               : IsFloat(m.dtype) ? NewItemFloat(s, one.get())
                                  : s.data_sizes().ItemOf(AsTensor(one.get())->id, false));
    if (!number || PyList_Append(list.get(), number.get()) < 0) return nullptr;
  }
  return s.MarkFresh(list.release());
}

// Shapes as tensors, as exporters write them: a tensor of sizes, and a reshape to what such a tensor holds. Null
// without an error: the call is neither, or no graph holds it.
PyObject* ByShapeTensor(Session& s, Callee callee, PyObject* const* args, Py_ssize_t total) {
  static const Callee shape_of("torch._shape_as_tensor"), by_shape("torch._reshape_from_tensor"),
      tensor("torch.tensor"), reshape("torch.reshape");
  if (callee == shape_of && total == 1 && IsTensor(args[0])) {
    static PyObject *const names = Py_BuildValue("(ss)", "dtype", "device"), *const cpu = PyUnicode_FromString("cpu"),
                           *const dtype = tensor::ResolveCallee("torch.int64");
    Ref sizes(s.MarkFresh(PyList_New(0)));
    for (const shape::Int& n : shape::Ints(s.meta(AsTensor(args[0])->id).sizes)) {
      Ref size(s.SymIntObject(n));
      if (!size || PyList_Append(sizes.get(), size.get()) < 0) return nullptr;
    }
    PyObject* with[] = {sizes.get(), dtype, cpu};
    return names && cpu && dtype ? s.CallFramework(tensor, with, 1, names) : nullptr;
  }
  if (callee != by_shape || total != 2 || !IsTensor(args[0]) || !IsTensor(args[1])) return nullptr;
  const TensorMeta& m = s.meta(AsTensor(args[1])->id);
  if (m.dtype != DType::kInt64 || m.device.kind != DeviceKind::kCpu) return nullptr;
  Ref known(s.guessing().Constant(AsTensor(args[1])->id, "tolist"));
  Ref sizes(known ? s.Adopt(known.release()) : ListOf(s, args[1]));
  PyObject* with[] = {args[0], sizes.get()};
  return sizes ? s.CallFramework(reshape, with, 2, nullptr) : nullptr;
}

// The type of what torch.tensor makes of nested lists of numbers of which one is NumPy's, whose types count, unlike
// those of Python's integers. False: they hold something else, or torch and NumPy make different tensors of them.
bool NumbersOfNumpy(Session& s, PyObject* list, std::optional<DType>* type, bool* floats) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
    PyObject* o = s.Resolve(PySequence_Fast_GET_ITEM(list, i));
    int overflow = 0;
    if (o && IsTensor(o) && s.meta(AsTensor(o)->id).is_scalar) {
      const DType t = s.meta(AsTensor(o)->id).dtype;
      if (t != DType::kFloat64 && t != DType::kInt64) return false;
      if (!*type || t == DType::kFloat64) *type = t;
    } else if (o && (PyList_CheckExact(o) || PyTuple_CheckExact(o)) && !s.IsOutside(o)) {
      if (!NumbersOfNumpy(s, o, type, floats)) return false;
    } else if (o && PyFloat_CheckExact(o)) {
      *floats = true;
    } else if (!o || !PyLong_CheckExact(o) || (PyLong_AsLongLongAndOverflow(o, &overflow), overflow)) {
      return false;
    }
  }
  return true;
}

// torch.tensor of such lists copies what NumPy makes of them. Null without an error: the call is another one.
PyObject* OfNumpyNumbers(Session& s, Callee callee, PyObject* const* args, Py_ssize_t total) {
  static const Callee tensor_of("torch.tensor"), array_of("numpy.array");
  if (callee != tensor_of || total != 1 || !s.libraries.numpy) return nullptr;
  PyObject* list = s.Resolve(args[0]);
  if (!list || !PyList_CheckExact(list) || s.IsOutside(list)) return nullptr;
  std::optional<DType> type;
  bool floats = false;
  if (!NumbersOfNumpy(s, list, &type, &floats) || !type || (floats && type == DType::kInt64)) return nullptr;
  Ref array(s.CallFramework(array_of, &list, 1, nullptr));
  PyObject* one = array.get();
  return one ? s.CallFramework(tensor_of, &one, 1, nullptr) : nullptr;
}

// A float of NumPy's beside an array, whose type counts, as an operand of the graph. Null: it is none, or an error.
Ref AsScalar(Session& s, Callee callee, PyObject* const* args, Py_ssize_t total, Py_ssize_t at) {
  static const Callee array_of("numpy.array");
  PyObject* o =
      total == 2 && callee.space() == "numpy.ndarray" && IsTensor(args[1 - at]) ? s.Resolve(args[at]) : nullptr;
  if (!o || IsTensor(o) || !s.IsNumpyNumber(o) || !PyFloat_Check(o)) return {};
  Ref number(PyFloat_FromDouble(PyFloat_AS_DOUBLE(o)));
  PyObject* one = number.get();
  return one ? Ref(s.CallFramework(array_of, &one, 1, nullptr)) : Ref();
}

// x[key] = x[of]: torch's kernel writes what it reads where the two meet, in its order, so it is called on a copy of x
// that lies like x. Null without an error: the call is another one.
PyObject* StoredWithin(Session& s, PyObject* const* args, Py_ssize_t total) {
  static const Callee stored("framejit._functions.stored_within"), copy("torch.Tensor.copy_");
  if (total != 3 || !IsTensor(args[0]) || !IsTensor(args[2])) return nullptr;
  const TraceId target = AsTensor(args[0])->id;
  const TraceTensor& part = s.trace().tensors[AsTensor(args[2])->id];
  const Call* made = part.view_call < 0 ? nullptr : &s.trace().calls[part.view_call];
  if (!made || made->callee != callees::kTensorGetItem || made->args.size() != 2 || !(made->args[0].t == target))
    return nullptr;
  bool declined = false;
  Arg lies;
  lies.kind = Arg::Kind::kTuple;
  for (shape::Int stride : s.meta(target).strides) lies.items.push_back(Arg::Int(stride));
  Ref of(s.FromArg(made->args[1])), strides(s.FromArg(lies));
  PyObject* with[] = {args[0], args[1], of.get(), strides.get()};
  Ref whole(of && strides ? s.CallFramework(stored, with, 4, nullptr, &declined) : nullptr);
  if (!whole || !IsTensor(whole.get())) return nullptr;
  PyObject* write[] = {args[0], whole.get()};
  return Ref(s.CallFramework(copy, write, 2, nullptr)) ? Py_NewRef(Py_None) : nullptr;
}

// NumPy's arrays among the indices of torch's tensors become tensors of their numbers. It is a new reference: `key`
// itself if it holds no arrays, and null without an exception if it is of another kind.
PyObject* TorchIndex(Session& s, PyObject* key, bool alone = true) {
  if (PyTuple_CheckExact(key) && alone && !s.IsOutside(key)) {
    Ref all(PyTuple_New(PyTuple_GET_SIZE(key)));
    bool same = true;
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(key); ++i) {
      PyObject* one = TorchIndex(s, PyTuple_GET_ITEM(key, i), false);
      if (!one) return nullptr;
      same &= one == PyTuple_GET_ITEM(key, i);
      PyTuple_SET_ITEM(all.get(), i, one);
    }
    return same ? Py_NewRef(key) : s.MarkFresh(all.release());
  }
  key = s.Resolve(key);
  if (key && PySlice_Check(key) && !s.IsOutside(key)) {
    auto* slice = reinterpret_cast<PySliceObject*>(key);
    PyObject* const bounds[] = {slice->start, slice->stop, slice->step};
    if (std::none_of(std::begin(bounds), std::end(bounds), [](PyObject* b) { return IsTensor(b); }))
      return Py_NewRef(key);
    Ref made[3];
    for (int i = 0; i < 3; ++i)
      if (!(made[i] = Ref(TorchIndex(s, bounds[i], false)))) return nullptr;
    return s.MarkFresh(PySlice_New(made[0].get(), made[1].get(), made[2].get()));
  }
  if (!key || !IsTensor(key) || s.meta(AsTensor(key)->id).framework == Framework::kTorch) return Py_XNewRef(key);
  const TensorMeta m = s.meta(AsTensor(key)->id);
  if (m.is_scalar && m.dtype == DType::kInt64) return IntOf(key);
  const bool mask = IsBool(m.dtype), rows = alone && m.sizes.size() > 1;  // those would be a tuple
  if (rows || m.sizes.empty() || m.read_only || !(mask || IsInteger(m.dtype)) || m.dtype == DType::kUInt8)
    return nullptr;
  Ref tensor(s.CallFramework(callees::kFromNumpy, &key, 1, nullptr));
  PyObject* of = tensor.get();
  return of && !mask && m.dtype != DType::kInt64 ? s.CallFramework(callees::kTensorLong, &of, 1, nullptr)
                                                 : tensor.release();
}

// Some versions of torch.equal take the same memory for equal, whatever is in it.
bool LooksAtSameMemory() {
  static const bool looks = [] {
    SuspendScope off;
    Ref torch(tensor::Import("torch"));
    Ref nan(torch ? PyObject_CallMethod(torch.get(), "full", "(i)d", 1, std::numeric_limits<double>::quiet_NaN())
                  : nullptr);
    Ref equal(nan ? PyObject_CallMethod(torch.get(), "equal", "OO", nan.get(), nan.get()) : nullptr);
    PyErr_Clear();
    return equal.get() == Py_False;
  }();
  return looks;
}

bool EqualsItself(const TensorMeta& m) {  // whatever is in it
  return (!IsFloat(m.dtype) && !IsComplex(m.dtype)) || (m.device.kind == DeviceKind::kCpu && !LooksAtSameMemory());
}
bool LooksAtElements(const TensorMeta& m) {
  if (!IsFloat(m.dtype) && !IsComplex(m.dtype)) return true;
  return m.device.kind == DeviceKind::kCpu && LooksAtSameMemory();
}

// torch.equal and torch.allclose ask for all elements of a comparison. Null without an error: it is neither, or its
// answer is not to be guessed.
PyObject* Comparison(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const bool equal = callee == callees::kEqual || callee == callees::kTensorEqual;
  const bool close = callee == callees::kAllClose || callee == callees::kTensorAllClose;
  if (!(equal || close) || nargs < 2 || !IsTensor(args[0]) || !IsTensor(args[1])) return nullptr;
  if (equal && !kwnames && AsTensor(args[0])->id == AsTensor(args[1])->id &&
      EqualsItself(s.meta(AsTensor(args[0])->id)))
    return Py_NewRef(Py_True);
  if (s.depth == 0) return nullptr;
  const TraceTensor &a = s.trace().tensors[AsTensor(args[0])->id], &b = s.trace().tensors[AsTensor(args[1])->id];
  if (equal) {
    if ((a.base == b.base || (a.input >= 0 && b.input >= 0)) && !LooksAtElements(a.meta)) return nullptr;
    if (kwnames || a.meta.dtype != b.meta.dtype || a.meta.device != b.meta.device) return nullptr;
    const shape::Ints mine = a.meta.sizes, theirs = b.meta.sizes;
    if (mine.size() != theirs.size()) return Py_NewRef(Py_False);
    for (size_t d = 0; d < mine.size(); ++d)
      if (!s.env().Eq(mine[d], theirs[d])) return Py_NewRef(Py_False);
  }
  Ref same(s.CallFramework(equal ? callees::kEq : callees::kIsClose, args, nargs, kwnames));
  PyObject* one = same.get();
  Ref all(one && IsTensor(one) ? s.CallFramework(callees::kTensorAll, &one, 1, nullptr) : nullptr);
  return all ? s.data_sizes().ItemOf(AsTensor(all.get())->id, true) : nullptr;
}

// Does it change, of a tensor, what gradients go through?
bool ChangesHistory(std::string_view method) {
  for (const char* name : {"requires_grad_", "detach_", "backward", "register_hook", "retain_grad", "set_",
                           "register_post_accumulate_grad_hook"})
    if (method == name) return true;
  return false;
}

struct NotGuessed {};  // It is thrown where sizes are not to be guessed.

}  // namespace

FrameworkCall::FrameworkCall(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                             bool* declined)
    : s_(s),
      callee_(callee),
      args_(args),
      nargs_(nargs),
      kwnames_(kwnames),
      declined_(declined),
      torch_(callee.framework() == Framework::kTorch),
      cupy_(callee.of_cupy()),
      reader_(s, callee.Has(kTakesSequences)) {
  call_.callee = callee;
  call_.mode = s.modes.now;
}

bool FrameworkCall::IsTensorAt(Py_ssize_t i) const {
  return i < total() && IsTensor(args_[i]);
}

bool FrameworkCall::IsOpaqueAt(Py_ssize_t i) const {
  return IsTensorAt(i) && IsOpaque(s_.meta(AsTensor(args_[i])->id));
}

PyObject* FactOf(Session& s, PyObject* opaque, std::string_view name, bool method) {
  Ref fact;
  {
    SuspendScope off;  // torch's own code makes a tensor of that form
    fact = Ref(tensor::OpaqueFact(s.meta(AsTensor(opaque)->id), name, method));
  }
  return fact ? s.Adopt(fact.release()) : nullptr;
}

// What depends on the form alone is known; what changes such a tensor, or asks for its data, no graph holds.
bool FrameworkCall::AnsweredByForm(PyObject** out) {
  if (auto answer = s_.ConstantAnswer(callee_)) return *out = s_.FromArg(*answer), true;
  const auto refuse = [&](BreakId id) {
    return *out = s_.Break(id, callee_ + " of a sparse or quantised tensor"), true;
  };
  if (callee_.effects().refused()) return refuse(callee_.effects().ends);
  if (!torch_ || s_.vmap.open() || TapeOf(s_) || s_.in_custom || s_.later || AnyAsked(s_, args_, total()))
    return refuse(BreakId::kUnsupportedTensor);
  if (!IsOpaqueAt(0)) return false;
  const std::string method(callee_.last());
  if (method == "size" || method == "__len__") {
    bool handled = false;
    *out = TensorQuery(s_, args_[0], method, args_ + 1, nargs_ - 1, kwnames_, &handled);
    if (handled) return true;
  }
  if (alone() && (*out = FactOf(s_, args_[0], method, true))) return true;
  if (method == "_nnz" && alone()) {  // as many as it has values
    static const Callee kCoo("torch.Tensor._values"), kCompressed("torch.Tensor.values");
    const bool coo = tensor::FormText(s_.meta(AsTensor(args_[0])->id).device).starts_with("sparse_coo");
    Ref values(s_.CallFramework(coo ? kCoo : kCompressed, args_, nargs_, nullptr));
    return *out = values ? s_.SymIntObject(s_.meta(AsTensor(values.get())->id).sizes[0]) : nullptr, true;
  }
  const bool writes = method.ends_with("_") && !method.ends_with("__");
  for (const char* changes : {"backward", "register_hook", "retain_grad", "as_subclass", "_make_subclass", "_parse_to"})
    if (writes || method == changes) return refuse(BreakId::kUnsupportedTensor);
  return false;
}

// What protocols between libraries ask of a plain array.
PyObject* FrameworkCall::AskedOfArray() {
  const auto array = [&](Py_ssize_t i) { return IsTensorAt(i) && !s_.meta(AsTensor(args_[i])->id).is_scalar; };
  if (torch_ || cupy_ || kwnames_ || !array(0)) return nullptr;
  if (callee_.last() == "__array_namespace__" && alone()) {
    PyObject* numpy = tensor::Numpy()->module;
    return s_.SourceOf(numpy) ? Py_NewRef(numpy) : nullptr;
  }
  // It makes the class of its array of what is of another one.
  return callee_.last() == "__array_wrap__" && total() == 2 && array(1) ? Py_NewRef(args_[1]) : nullptr;
}

bool FrameworkCall::AnsweredByMode(PyObject** out) {
  if (auto answer = s_.ConstantAnswer(callee_)) return *out = s_.FromArg(*answer), true;
  if ((*out = AskedOfArray()) || s_.broken()) return true;
  if (torch_ && AnyAsked(s_, args_, total())) {
    Ref function(tensor::ResolveCallee(callee_));
    if (!function) return *out = nullptr, true;
    bool asked = PyFunction_Check(function.get());
    *out = asked ? CurrentSemantics()->Call(function.get(), args_, nargs_, kwnames_)
                 : CallOverride(s_, function.get(), args_, nargs_, kwnames_, &asked);
    if (asked || s_.broken() || PyErr_Occurred()) return true;
  }
  if (torch_ && callee_.last() == "_parse_to" && total() == 1 && IsTensorAt(0)) {  // module.to(tensor)
    Ref device(PyObject_GetAttrString(args_[0], "device")), dtype(PyObject_GetAttrString(args_[0], "dtype"));
    *out = device && dtype ? PyTuple_Pack(4, device.get(), dtype.get(), Py_False, Py_None) : nullptr;
    return *out = *out ? s_.MarkFresh(*out) : nullptr, true;
  }
  if (torch_ && callee_.last() == "as_subclass" && total() == 2 && IsTensorAt(0) && PyType_Check(args_[1]))
    return *out = AsClass(s_, args_[0], reinterpret_cast<PyTypeObject*>(args_[1])), true;
  if (torch_ && callee_.last() == "_make_subclass" && (total() == 2 || total() == 3) && !kwnames_)
    return *out = AsParameter(s_, args_[0], args_[1], total() == 3 ? args_[2] : Py_False), true;
  const bool on_tape = torch_ && TapeOf(s_) && !TapeOf(s_)->inside() && TapeOf(s_)->Takes(args_, total());
  if (on_tape && ChangesHistory(callee_.last()))
    return *out = s_.Break(BreakId::kSubclass, callee_ + " beside wrappers with gradients"), true;
  if (torch_ && !on_tape)
    if ((*out = SetByCall(s_, callee_, args_, nargs_, kwnames_)) || s_.broken() || PyErr_Occurred()) return true;
  if (torch_ && !on_tape)
    if ((*out = CopyOfTensor(s_, callee_, args_, nargs_, kwnames_)) || s_.broken() || PyErr_Occurred()) return true;
  if (!torch_ && !kwnames_ && s_.libraries.torch)
    if ((*out = UfuncOfTensors(s_, callee_, args_, nargs_)) || s_.broken() || PyErr_Occurred()) return true;
  if (torch_ && !on_tape && !kwnames_)
    if ((*out = OfNumpyNumbers(s_, callee_, args_, total())) || s_.broken() || PyErr_Occurred()) return true;
  for (Py_ssize_t i = 0; i < 2 && !torch_ && !kwnames_ && s_.libraries.torch && callee_.last().starts_with("__"); ++i)
    if (Ref number = AsScalar(s_, callee_, args_, total(), i); number || s_.broken() || PyErr_Occurred()) {
      PyObject* with[] = {i ? args_[0] : number.get(), i ? number.get() : args_[1]};
      return *out = number ? s_.CallFramework(callee_, with, 2, nullptr, declined_) : nullptr, true;
    }
  if (torch_ && !on_tape && !kwnames_)
    if ((*out = ByShapeTensor(s_, callee_, args_, total())) || s_.broken() || PyErr_Occurred()) return true;
  bool each = false;
  *out = ForEach(s_, callee_, args_, nargs_, kwnames_, &each);
  if (each || s_.broken() || PyErr_Occurred()) return true;
  if (callee_ == callees::kAutogradGrad && !on_tape && s_.options().derivatives)
    return *out = GradientsOf(s_, args_, nargs_, kwnames_), true;
  const int level = s_.vmap.open() ? BatchLevel(s_, args_, total()) : 0;
  const bool layout = level && (callee_.last() == "is_contiguous" || callee_.last() == "stride");
  const bool member = callee_.name().find(".Tensor.") != std::string::npos || callee_.space() == "torch";
  if (nargs_ > 0 && IsTensor(args_[0]) && member && !layout) {  // torch.is_floating_point(x) is x.is_floating_point()
    bool handled = false;
    *out = TensorQuery(s_, args_[0], std::string(callee_.last()), args_ + 1, nargs_ - 1, kwnames_, &handled);
    if (handled) return true;
  }
  if (on_tape && !callee_.effects().refused()) {
    Ref function(tensor::ResolveCallee(callee_));
    return *out = function ? TapeOf(s_)->Call(function.get(), args_, nargs_, kwnames_) : nullptr, true;
  }
  if (callee_.Has(kFixedTangents) && s_.vmap.forward() && DifferentiatesTangents(s_))
    return *out = s_.Break(BreakId::kAutogradCall, "a derivative of tangents of " + callee_.name()), true;
  if (level) return *out = CallBatched(s_, level, callee_, args_, nargs_, kwnames_), true;
  if (s_.vmap.open() && NeedsVmap(s_, callee_, args_, nargs_)) {
    const int innermost = static_cast<int>(s_.vmap.levels.size());
    if (Draws(callee_)) return *out = CallBatched(s_, innermost, callee_, args_, nargs_, kwnames_), true;
    return *out = s_.Break(BreakId::kUnsupportedTensor, callee_ + " under torch.vmap"), true;
  }
  return false;
}

// torch.manual_seed(n) is a call in the order of the draws. Null without an exception or a Break: no graph holds it.
PyObject* FrameworkCall::Seeded() {
  if (total() != 1 || s_.vmap.open() || TapeOf(s_) || s_.in_custom || s_.later) return nullptr;
  PyObject* seed = s_.Resolve(args_[0]);
  if (!seed || !(IsSymInt(seed) || PyLong_CheckExact(seed))) return nullptr;
  static const Callee seeded("framejit._random.seeded");
  Ref how(PyUnicode_FromString(callee_.name().c_str()));
  PyObject* args[] = {seed, how.get()};
  if (!how || !Ref(s_.CallFramework(seeded, args, 2, nullptr))) return nullptr;
  if (callee_.space() != "torch") Py_RETURN_NONE;
  Ref torch(tensor::Import("torch"));
  Ref generator(torch ? PyObject_GetAttrString(torch.get(), "default_generator") : nullptr);
  return generator ? s_.FromOutside(generator.get(), s_.guards().Const(generator.get())) : nullptr;
}

bool FrameworkCall::AnsweredByValue(PyObject** out) {
  if (!callee_.effects().refused()) return false;
  const BreakId refusal = callee_.effects().ends;
  static const Callee kSeeds[] = {Callee("torch.manual_seed"), Callee("torch.cuda.manual_seed"),
                                  Callee("torch.cuda.manual_seed_all")};
  if (std::find(std::begin(kSeeds), std::end(kSeeds), callee_) != std::end(kSeeds) &&
      ((*out = Seeded()) || s_.broken() || PyErr_Occurred()))
    return true;
  const bool asks = refusal == BreakId::kTensorItem || refusal == BreakId::kTensorBool;
  const bool truth = callee_.last() == "__bool__";
  if (Ref known(asks && alone() ? s_.guessing().Constant(AsTensor(args_[0])->id, std::string(callee_.last()))
                                : nullptr);
      known)
    return *out = s_.Adopt(known.release()), true;
  if (asks && alone() && !torch_ && callee_.last() == "item")
    if ((*out = s_.draws.ItemOf(s_, args_[0])) || s_.broken() || PyErr_Occurred()) return true;
  if (asks && alone() && (truth || callee_.last() == "item"))
    if ((*out = s_.data_sizes().ItemOf(AsTensor(args_[0])->id, truth))) return true;
  if (asks && alone() && callee_.last() == "item" && !s_.broken() && !PyErr_Occurred() &&
      IsFloat(s_.meta(AsTensor(args_[0])->id).dtype))
    if ((*out = NewItemFloat(s_, args_[0])) || s_.broken()) return true;
  if (asks && alone() && callee_.last() == "data_ptr") return *out = NewAddress(s_, AsTensor(args_[0])->id), true;
  if (asks && alone() && callee_.last() == "tolist")
    if ((*out = ListOf(s_, args_[0])) || s_.broken()) return true;
  if (refusal == BreakId::kTensorBool)
    if ((*out = Comparison(s_, callee_, args_, nargs_, kwnames_)) || s_.broken() || PyErr_Occurred()) return true;
  if (declined_) return *out = nullptr, *declined_ = true;
  return *out = s_.Break(refusal, callee_), true;
}

bool FrameworkCall::ReplacedByTensors(PyObject** out) {
  const bool within = callee_ == callees::kTensorSetItem && nargs_ == 3 && IsTensorAt(2) && !declined_ && torch_;
  if (within && s_.trace().tensors[AsTensor(args_[2])->id].view_call >= 0) {
    bool declined = false;
    *out = s_.CallFramework(callee_, args_, nargs_, kwnames_, &declined);
    if (!declined || (*out = StoredWithin(s_, args_, nargs_))) return true;
    if (s_.broken() || PyErr_Occurred()) return true;
  }
  if (nargs_ < 2 || !s_.libraries.numpy || !(callee_ == callees::kTensorGetItem || callee_ == callees::kTensorSetItem))
    return false;
  Ref key(TorchIndex(s_, args_[1])), number;
  if (!s_.broken() && !PyErr_Occurred() && callee_ == callees::kTensorSetItem && IsTensorAt(2)) {
    const TensorMeta& m = s_.meta(AsTensor(args_[2])->id);  // torch assigns no other integers of NumPy's
    if (m.framework == Framework::kNumpy && m.is_scalar && m.dtype == DType::kInt64) number = Ref(IntOf(args_[2]));
  }
  if (s_.broken() || PyErr_Occurred()) return *out = nullptr, true;
  if (!number && (!key || key.get() == args_[1])) return false;
  if (!key) key = Borrow(args_[1]);
  PyObject* with[] = {args_[0], key.get(), number ? number.get() : nargs_ > 2 ? args_[2] : nullptr};
  return *out = s_.CallFramework(callee_, with, nargs_, kwnames_, declined_), true;
}

bool FrameworkCall::ComputedByNumpy(PyObject** out) {
  if (torch_ || !s_.libraries.torch || !AllNumbers(call_) || callee_.effects().refused() ||
      !(surface::HasRow(callee_) || IsNumpyFunction(callee_)))
    return false;
  *out = nullptr;
  Ref function(tensor::ResolveCallee(callee_));
  std::vector<Ref> numbers;
  std::vector<PyObject*> raw;
  for (Py_ssize_t i = 0; i < nargs_; ++i) {
    PyObject* o = s_.Resolve(args_[i]);
    if (!o) return true;
    numbers.emplace_back(call_.args[i].is_number() ? PlainNumber(o) : PlainList(s_, call_.args[i]));
    if (!numbers.back()) return true;
    raw.push_back(numbers.back().get());
  }
  Ref value;
  {
    SuspendScope off;
    if (function) value = Ref(PyObject_Vectorcall(function.get(), raw.data(), nargs_, nullptr));
  }
  if (value && tensor::Classify(value.get()) == tensor::Class::kNumpyArray) return false;
  return *out = s_.Adopt(value.release()), true;
}

// Does torch take bools and float32s of NumPy's as the graph does? Such a bool is the float 1.0 or 0.0 to it, or an
// error, where it is no tensor's only element, and no such number is made an integer.
static bool TakesNumpyNumbers(const Callee& callee, const Call& call, const ArgReader& reader) {
  const bool data = callee.Has(kReadsDType);
  const auto given = std::find_if(call.kwargs.begin(), call.kwargs.end(), [](auto& k) { return k.first == "dtype"; });
  const bool told = given != call.kwargs.end() && !given->second.is(Arg::Kind::kNone);
  if (reader.numpy_bool()) return data && !told && call.args.size() == 1 && call.args[0].is(Arg::Kind::kBool);
  if (!reader.numpy_single()) return true;
  if (callee.last() == "new_tensor" || callee.Has(kTypeOfTensors)) return false;
  return !data || !told || given->second.s.find("float") != std::string::npos;
}

// Is there an int of Python's that an array of float16 makes infinite?
static bool Overflows(Session& s, const Call& call) {
  bool half = false, large = false;
  EachTensor(call, [&](TraceId t) { half |= s.meta(t).dtype == DType::kFloat16; });
  EachArg(call, [&](const Arg& a) {
    const auto i = a.is(Arg::Kind::kInt) ? a.i.as_const() : std::nullopt;
    large |= i && (*i >= 65520 || *i <= -65520);
  });
  return half && large;
}

bool FrameworkCall::Allowed() {
  if (!torch_ && !cupy_)  // NumPy's functions hand CuPy's arrays to CuPy
    EachTensor(call_, [&](TraceId t) { cupy_ |= s_.meta(t).device.kind == DeviceKind::kCuda; });
  // A value and not a tensor here, but one whose type counts for NumPy.
  if (!torch_ && (reader_.numpy_number() || reader_.numpy_integer()))
    return s_.Break(BreakId::kUnsupportedTensor, "a number of NumPy's and arrays beside torch's tensors"), false;
  if (!torch_ && Overflows(s_, call_))
    return s_.Break(BreakId::kUnsupportedTensor, "an int beyond float16, of which NumPy warns"), false;
  if (!torch_ && reader_.int_of_class())
    return s_.Break(BreakId::kUnknownCall, "an int of a class of its own beside arrays"), false;
  if (torch_ && !TakesNumpyNumbers(callee_, call_, reader_))
    return s_.Break(BreakId::kUnsupportedTensor, "a bool or float32 of NumPy's that is no such number to torch"), false;
  bool leaf = false;
  if (!s_.options().uses_leaves && call_.mode.grad && !call_.mode.inference)
    EachTensor(call_, [&](TraceId t) { leaf |= s_.lowering().IsTracked(t); });
  if (leaf && callee_ != callees::kTensorDetach && callee_ != callees::kTensorData)
    return s_.Break(BreakId::kAutogradCall, callee_ + " of a leaf that was made inside"), false;
  const bool placed = std::any_of(call_.kwargs.begin(), call_.kwargs.end(),
                                  [](auto& k) { return k.first == "out" || k.first == "requires_grad"; });
  if (placed && torch_ && LeavesUnwritten(callee_) && IsDeterministic())
    return s_.Break(BreakId::kThreadState, callee_ + " beside deterministic algorithms, which fill what is given"),
           false;
  if (PyObject* value = torch_ && nargs_ == 3 && callee_.last() == "__setitem__" ? s_.Resolve(args_[2]) : nullptr;
      value && s_.IsNumpyNumber(value) && !PyFloat_Check(value) && !OfType(value, CType::kNumpyInt64))
    return s_.Break(BreakId::kFrameworkError, "a number of NumPy's that torch does not assign to items"), false;
  const bool one = torch_ && reader_.numpy_integer() && callee_.last() == "split" && call_.args.size() > 1 &&
                   call_.args[1].is(Arg::Kind::kInt);
  if (PyObject* size = one ? s_.Resolve(args_[1]) : nullptr; size && s_.IsNumpyNumber(size))
    return s_.Break(BreakId::kFrameworkError, "a size of pieces that is an integer of NumPy's"), false;
  const bool cuda = torch_ && std::any_of(call_.args.begin(), call_.args.end(), [&](const Arg& a) {
                      return a.is(Arg::Kind::kTensor) && s_.meta(a.t).device.kind == DeviceKind::kCuda;
                    });
  if (torch_ ? !s_.modes.switches.Fit(s_, callee_, cuda) : !cupy_ && !s_.modes.numpy.Note(s_)) return false;
  return s_.libraries.Use(s_, torch_ ? Library::kTorch : cupy_ ? Library::kCupy : Library::kNumpy);
}

// False: it was declined, and the call is as it was.
bool FrameworkCall::Applied() {
  Call as_made = call_;
  try {
    s_.data_sizes().Apply(call_);
    return true;
  } catch (const surface::Decline&) {
    call_ = std::move(as_made);
    return false;
  }
}

// Where the graph cannot hold the call with symbols, it holds the numbers that they are now, and sizes as guessed.
void FrameworkCall::ApplyOrFix() {
  if (changing_) {
    if (Applied()) return;
    auto fix = [&](Arg& a) {
      if (a.is(Arg::Kind::kSymFloat)) a = Arg::Float(s_.numbers().Specialize(*a.i.as_symbol()));
    };
    for (Arg& a : call_.args) fix(a);
    for (auto& [name, a] : call_.kwargs) fix(a);
  }
  if (!s_.guessing().SizesAmong(call_).empty()) {
    if (Applied()) return;
    if (!s_.guessing().Sizes(&call_)) throw NotGuessed{};
  }
  s_.data_sizes().Apply(call_);
}

// Does torch raise for the call, as it was made, at the sizes that its tensors have in this run?
static bool Raises(Session& s, Call made) {
  const auto now = [&](shape::Int i) { return shape::Int(i.Eval(s.env().hints())); };
  std::vector<TensorMeta> metas;
  EachTensor(made, [&](TraceId t) { metas.push_back(s.meta(t)); });
  for (TensorMeta& m : metas)
    for (shape::IntList* all : {&m.sizes, &m.strides}) all->Each(now);
  EachArg(made, [&](Arg& a) {
    if (a.is(Arg::Kind::kInt)) a.i = now(a.i);
  });
  made.callee = FunctionalForm(made.callee);
  SuspendScope off;
  return tensor::RaisesOnStandIns(made, metas, s.constants());
}

PyObject* FrameworkCall::Apply() {
  if (torch_ && !TakeCasts(s_, call_)) return nullptr;
  // A program that was told that it is compiled may be refused for that alone.
  std::optional<Call> as_made;
  if (torch_ && !declined_ && s_.asked_compiling()) as_made = call_;
  try {
    ApplyOrFix();
  } catch (const NotGuessed&) {
    return s_.Break(BreakId::kTensorItem, callee_);
  } catch (const surface::Decline& d) {
    if (declined_) {
      *declined_ = true;
      return nullptr;
    }
    s_.mixes_casts |= d.cause == surface::Decline::Cause::kMixedCasts;
    s_.leaf_refused |= d.cause == surface::Decline::Cause::kLeaf && !s_.vmap.open();
    s_.shapes_refused |= d.cause == surface::Decline::Cause::kShapes ||
                         (as_made && d.cause == surface::Decline::Cause::kRefused && Raises(s_, std::move(*as_made)));
    const bool data = d.cause == surface::Decline::Cause::kData;
    return s_.Break(data ? BreakId::kDataDependent : BreakId::kFrameworkError, callee_ + ": " + d.what());
  } catch (const std::exception& e) {
    return s_.Break(BreakId::kInternal, callee_ + ": " + e.what());
  }
  ++s_.op_count;
  Ref made(s_.FromArg(call_.result));
  return torch_ && made && LeavesUnwritten(callee_) ? Filled(s_, std::move(made)).release() : made.release();
}

PyObject* FrameworkCall::Run() {
  PyObject* out = nullptr;
  if (s_.broken()) return s_.Break(s_.reason().id);
  bool opaque = false;
  for (Py_ssize_t i = 0; i < total() && !opaque; ++i) opaque = IsOpaqueAt(i);
  if (opaque ? AnsweredByForm(&out) : AnsweredByMode(&out)) return out;
  if (AnsweredByValue(&out) || ReplacedByTensors(&out)) return out;
  if (!Bind() || ComputedByNumpy(&out)) return out;
  return Allowed() ? Apply() : nullptr;
}

PyObject* Session::CallFramework(Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                                 bool* declined) {
  return FrameworkCall(*this, callee, args, nargs, kwnames, declined).Run();
}

}  // namespace framejit::capture
