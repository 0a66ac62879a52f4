#include "capture/warned_calls.h"

#include <algorithm>
#include <vector>

#include "capture/callees.h"
#include "capture/effects.h"
#include "capture/proxy.h"
#include "capture/types.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

bool IsTorchs(Session& s, PyObject* o) {
  return IsTensor(o) && s.meta(AsTensor(o)->id).framework == Framework::kTorch;
}

// The warning waits for the exit, as from this line. False: it cannot.
bool WarnsLater(Session& s, const char* function, PyObject* category) {
  PyObject* const told = ToldByTorch(function);
  return told && (told == Py_None || WarnLater(s, PyTuple_GET_ITEM(told, 0), category, 1));
}

}  // namespace

PyObject* CopyOfTensor(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static const Callee made("torch.tensor"), detach("torch.Tensor.detach"), copied("torch.Tensor.to");
  if (callee != made || nargs != 1 || !IsTorchs(s, args[0]) || !s.modes.default_devices.back().empty()) return nullptr;
  std::vector<PyObject*> with = {nullptr}, names;
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject *name = PyTuple_GET_ITEM(kwnames, i), *value = args[nargs + i];
    const bool kept =
        !PyUnicode_CompareWithASCIIString(name, "dtype") || !PyUnicode_CompareWithASCIIString(name, "device");
    if (!kept && value != Py_False) return nullptr;
    if (!kept || value == Py_None) continue;
    with.push_back(value);
    names.push_back(name);
  }
  static PyObject* const copy = PyUnicode_InternFromString("copy");
  with.push_back(Py_True);
  names.push_back(copy);
  Ref told_names(PyTuple_New(static_cast<Py_ssize_t>(names.size())));
  for (size_t i = 0; told_names && i < names.size(); ++i)
    PyTuple_SET_ITEM(told_names.get(), static_cast<Py_ssize_t>(i), Py_NewRef(names[i]));
  if (!told_names || !WarnsLater(s, "of_tensor_of_tensor", PyExc_UserWarning)) return nullptr;
  Ref apart(s.CallFramework(detach, args, 1, nullptr));
  with[0] = apart.get();
  return apart ? s.CallFramework(copied, with.data(), 1, told_names.get()) : nullptr;
}

PyObject* UfuncOfTensors(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs) {
  static const Callee of_tensor("torch.Tensor.numpy"), array("numpy.asarray");
  if (!callees::IsNumpys(callee) || nargs < 1 || nargs > 2) return nullptr;
  if (!std::any_of(args, args + nargs, [&](PyObject* o) { return IsTorchs(s, o); })) return nullptr;
  Ref function(tensor::ResolveCallee(callee));
  if (!function) PyErr_Clear();
  if (!function || !OfType(function.get(), CType::kUfunc)) return nullptr;
  for (const auto& [name, wanted] : {std::pair("nin", nargs), std::pair("nout", Py_ssize_t{1})}) {
    Ref n(PyObject_GetAttrString(function.get(), name));
    if (!n || PyLong_AsSsize_t(n.get()) != wanted) return PyErr_Clear(), nullptr;
  }
  std::vector<Ref> arrays;
  std::vector<PyObject*> with;
  for (Py_ssize_t i = 0; i < nargs; ++i) {
    PyObject* o = args[i];
    const bool torchs = IsTorchs(s, o);
    if (torchs && s.meta(AsTensor(o)->id).requires_grad) return nullptr;  // torch raises
    if (!torchs && !IsTensor(o) && !PyFloat_CheckExact(o) && !PyLong_CheckExact(o)) return nullptr;
    if (torchs) arrays.emplace_back(s.CallFramework(of_tensor, &o, 1, nullptr));
    with.push_back(torchs ? arrays.back().get() : o);
    if (!with.back()) return nullptr;
  }
  if (!WarnsLater(s, "of_ufunc_of_tensor", PyExc_DeprecationWarning)) return nullptr;
  Ref result(s.CallFramework(callee, with.data(), nargs, nullptr));
  if (!result || !IsTensor(result.get())) return result ? s.Break(BreakId::kFrameworkError, callee) : nullptr;
  PyObject* of = result.get();
  if (s.meta(AsTensor(of)->id).is_scalar) {
    result = Ref(s.CallFramework(array, &of, 1, nullptr));
    of = result.get();
  }
  if (of && IsBool(s.meta(AsTensor(of)->id).dtype)) {  // Tensor.__array_wrap__
    static const Callee as_type("numpy.ndarray.astype");
    Ref uint8(PyUnicode_FromString("uint8"));
    PyObject* two[] = {of, uint8.get()};
    result = Ref(uint8 ? s.CallFramework(as_type, two, 2, nullptr) : nullptr);
    of = result.get();
  }
  return of ? s.CallFramework(callees::kFromNumpy, &of, 1, nullptr) : nullptr;
}

}  // namespace framejit::capture
