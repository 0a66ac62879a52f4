#include "capture/foreach.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capture/arg_vector.h"
#include "capture/callees.h"
#include "capture/override.h"
#include "capture/proxy.h"

namespace framejit::capture {
namespace {

// What torch._foreach_NAME is for each tensor: torch.NAME. Most write in place, too, as torch.Tensor.NAME_.
constexpr std::string_view kEach[] = {
    "abs",    "acos",    "add",   "addcdiv", "addcmul", "asin", "atan",  "ceil",  "clamp_max",  "clamp_min",
    "cos",    "cosh",    "div",   "erf",     "erfc",    "exp",  "expm1", "floor", "frac",       "lerp",
    "lgamma", "log",     "log10", "log1p",   "log2",    "mul",  "neg",   "pow",   "reciprocal", "round",
    "rsqrt",  "sigmoid", "sign",  "sin",     "sinh",    "sqrt", "sub",   "tan",   "tanh",       "trunc"};

// Nothing: it is not one of them.
Callee EachOf(std::string_view name) {
  if (name == "norm") return callees::kVectorNorm;
  if (name == "clone") return callees::kClone;
  const auto in = [&](std::string_view space) { return Callee(std::string(space).append(".").append(name)); };
  if (name == "copy_" || name == "zero_") return in(callees::kTensor);
  const bool in_place = name.ends_with('_');
  const std::string_view base = in_place ? name.substr(0, name.size() - 1) : name;
  if (base == "maximum" || base == "minimum")  // that are in place by other names
    return Callee(base == "maximum" ? in_place ? "torch.Tensor.clamp_min_" : "torch.clamp_min"
                  : in_place        ? "torch.Tensor.clamp_max_"
                                    : "torch.clamp_max");
  if (std::find(std::begin(kEach), std::end(kEach), base) == std::end(kEach)) return {};
  return in(in_place ? callees::kTensor : callees::kTorch);
}

bool IsList(PyObject* o) {
  return PyList_CheckExact(o) || PyTuple_CheckExact(o);
}

// torch has kernels that take all tensors of a list at once.
bool AtOnce(Session& s, PyObject* list) {
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list); ++i) {
    PyObject* o = PySequence_Fast_GET_ITEM(list, i);
    if (IsTensor(o) && s.meta(AsTensor(o)->id).device.kind != DeviceKind::kCpu) return true;
  }
  return false;
}

// Makes a tensor of the same type and device, and with as many dimensions.
Ref StandIn(Session& s, PyObject* tensor) {
  static PyObject* const empty = tensor::ResolveCallee(callees::kEmpty);
  static PyObject* const names = Py_BuildValue("(ss)", "dtype", "device");
  Ref sizes(PyTuple_New(static_cast<Py_ssize_t>(s.meta(AsTensor(tensor)->id).sizes.size())));
  for (Py_ssize_t i = 0; sizes && i < PyTuple_GET_SIZE(sizes.get()); ++i)
    PyTuple_SET_ITEM(sizes.get(), i, PyLong_FromLong(0));
  Ref dtype(TensorAttr(s, tensor, PyTuple_GET_ITEM(names, 0))),
      device(TensorAttr(s, tensor, PyTuple_GET_ITEM(names, 1)));
  PyObject* args[] = {sizes.get(), dtype.get(), device.get()};
  return Ref(empty && sizes && dtype && device ? PyObject_Vectorcall(empty, args, 1, names) : nullptr);
}

// Does a list's call in place write what another one of its calls reads or writes, with gradients? Torch has asked for
// the gradients of all operands before it writes anything.
bool WritesForOthers(Session& s, const std::vector<PyObject*>& lists, Py_ssize_t length) {
  const auto base = [&](PyObject* list, Py_ssize_t i) -> TraceId {
    PyObject* o = PySequence_Fast_GET_ITEM(list, i);
    return IsTensor(o) ? s.trace().tensors[AsTensor(o)->id].base : -1;
  };
  std::map<TraceId, Py_ssize_t> targets;
  bool shared = false, gradients = false;
  for (Py_ssize_t i = 0; i < length; ++i) shared |= !targets.emplace(base(lists[0], i), i).second;
  for (PyObject* list : lists) {
    if (!IsList(list)) continue;
    for (Py_ssize_t i = 0; i < length; ++i) {
      const auto at = targets.find(base(list, i));
      shared |= at != targets.end() && at->second != i;
      PyObject* o = PySequence_Fast_GET_ITEM(list, i);
      gradients |= IsTensor(o) && s.meta(AsTensor(o)->id).requires_grad;
    }
  }
  return shared && gradients;
}

}  // namespace

PyObject* ForEach(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                  bool* handled) {
  constexpr std::string_view kPrefix = "_foreach_";
  const std::string_view name = callee.last();
  const Callee each =
      callee.space() == callees::kTorch && name.starts_with(kPrefix) ? EachOf(name.substr(kPrefix.size())) : Callee();
  const Py_ssize_t total = nargs + KwCount(kwnames);
  *handled = false;
  if (each.empty() || !nargs) return nullptr;
  std::vector<PyObject*> seen(args, args + total);
  Py_ssize_t length = -1;
  for (PyObject*& o : seen) {
    if (!(o = s.Resolve(o))) return *handled = true, nullptr;
    if (!IsList(o)) continue;
    if (!(o = s.ForC(o, true))) return *handled = true, nullptr;
    if (AtOnce(s, o)) return nullptr;
    const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
    if (n == 0 || (length >= 0 && n != length)) return nullptr;  // which torch refuses
    length = n;
  }
  if (!IsList(seen[0])) return nullptr;
  // The fourth of these is a number, or a list or tensor of them: the others' `value`.
  const bool value = each.last().starts_with("addc") && nargs == 4;
  if ((value && kwnames) || (each.last() == "vector_norm" && nargs > 2)) return nullptr;
  static PyObject* const value_name = Py_BuildValue("(s)", "value");
  if (value && IsTensor(seen[3])) {
    const TensorMeta& numbers = s.meta(AsTensor(seen[3])->id);
    if (numbers.sizes.size() != 1 || !(numbers.sizes[0] == shape::Int(length))) return nullptr;
  }
  *handled = true;
  const bool in_place = each.last().ends_with('_');
  if (in_place && WritesForOthers(s, seen, length))
    return s.Break(BreakId::kFrameworkError, std::string(name) + " writes what another of its calls reads");
  Ref all(in_place ? nullptr : PyTuple_New(length));
  for (Py_ssize_t i = 0; i < length; ++i) {
    std::vector<PyObject*> one = seen;
    for (PyObject*& o : one)
      if (IsList(o)) o = PySequence_Fast_GET_ITEM(o, i);
    Ref number;
    if (value && IsTensor(seen[3])) {
      Ref at(s.MarkFresh(PyLong_FromSsize_t(i)));
      PyObject* item[] = {seen[3], at.get()};
      if (!at || !(number = Ref(s.CallFramework(callees::kTensorGetItem, item, 2, nullptr)))) return nullptr;
      one[3] = number.get();
    }
    Ref result(s.CallFramework(each, one.data(), value ? 3 : nargs, value ? value_name : kwnames));
    if (!result) return nullptr;
    if (!in_place) PyTuple_SET_ITEM(all.get(), i, result.release());
  }
  return in_place ? Py_NewRef(args[0]) : s.MarkFresh(all.release());
}

// It is asked about tensors like these.
PyObject* GroupTensors(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const auto refuse = [&] { return s.Break(BreakId::kUnknownCall, callees::kGroupTensors); };
  const Py_ssize_t total = nargs + KwCount(kwnames);
  PyObject* lists = nargs ? s.Resolve(args[0]) : nullptr;
  if (!lists || !IsList(lists)) return refuse();
  if (s.IsOutside(lists) && !(lists = s.ForC(lists, true))) return nullptr;
  SuspendScope off;
  std::unordered_map<PyObject*, PyObject*> tensors;  // stand-in: proxy
  Ref asked(PyList_New(0));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(lists); ++i) {
    PyObject* list = s.Resolve(PySequence_Fast_GET_ITEM(lists, i));
    if (!list || !IsList(list)) return refuse();
    list = s.ForC(list, true);
    Ref same(list ? PyList_New(0) : nullptr);
    if (!same) return nullptr;
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(list); ++k) {
      PyObject* o = PySequence_Fast_GET_ITEM(list, k);
      if (o != Py_None && !(IsTensor(o) && s.meta(AsTensor(o)->id).framework == Framework::kTorch)) return refuse();
      Ref one = IsTensor(o) ? StandIn(s, o) : Borrow(o);
      if (!one || PyList_Append(same.get(), one.get()) < 0) return nullptr;
      if (IsTensor(o)) tensors[one.get()] = o;
    }
    if (PyList_Append(asked.get(), same.get()) < 0) return nullptr;
  }
  std::vector<PyObject*> with(args, args + total);
  with[0] = asked.get();
  for (Py_ssize_t i = 1; i < total; ++i)
    if (!IsPrimitive(with[i])) return refuse();
  Ref groups(PyObject_Vectorcall(function, with.data(), nargs, kwnames));
  if (!groups) return PyErr_Clear(), refuse();
  PyObject *key, *group;
  for (Py_ssize_t at = 0; PyDict_Next(groups.get(), &at, &key, &group);) {
    PyObject* parts = PyTuple_GET_ITEM(group, 0);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parts); ++i) {
      PyObject* list = PyList_GET_ITEM(parts, i);
      for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); ++k) {
        const auto known = tensors.find(PyList_GET_ITEM(list, k));
        if (known != tensors.end()) PyList_SetItem(list, k, Py_NewRef(known->second));
      }
    }
  }
  return s.MarkFresh(groups.release());
}

}  // namespace framejit::capture
