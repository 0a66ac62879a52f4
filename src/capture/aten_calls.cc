#include "capture/aten_calls.h"

#include <map>

#include "capture/callees.h"
#include "capture/override.h"
#include "surface/surface.h"

namespace framejit::capture {
namespace {

struct Meaning {
  std::string function;  // The name of torch's function, which is empty where there is none.
  bool list = false;     // its results are a list
};

Meaning MeaningOf(PyObject* op, std::string_view name) {
  constexpr std::string_view kAten = "torch.ops.aten.";
  if (!name.starts_with(kAten) || strcmp(Py_TYPE(op)->tp_name, "OpOverload")) return {};
  name.remove_prefix(kAten.size());
  const std::string base(name.substr(0, name.find('.'))), overload(name.substr(std::min(name.size(), base.size() + 1)));
  if (overload.starts_with("out") || overload.ends_with("out")) return {};
  Meaning m;
  const bool in_place = base.ends_with('_') && !base.ends_with("__");
  for (std::string_view space : {"torch.ops.aten.", "torch.", "torch.Tensor.", "torch._C._nn."}) {
    if (in_place && space != "torch.Tensor.") continue;
    if (m.function.empty() && surface::HasRow(Callee(std::string(space) + base)))
      m.function = std::string(space) + base;
  }
  if (m.function.empty()) return {};
  SuspendScope off;
  Ref schema(PyObject_GetAttrString(op, "_schema"));
  Ref results(schema ? PyObject_GetAttrString(schema.get(), "returns") : nullptr);
  Ref one(results && PySequence_Size(results.get()) == 1 ? PySequence_GetItem(results.get(), 0) : nullptr);
  Ref type(one ? PyObject_GetAttrString(one.get(), "type") : nullptr), text(type ? PyObject_Str(type.get()) : nullptr);
  PyErr_Clear();
  m.list = text && PyUnicode_Check(text.get()) && std::string_view(PyUnicode_AsUTF8(text.get())).starts_with("List");
  return m;
}

const Callee kIndex{"torch.ops.aten.index.Tensor"};

// The indices of that operator, where None is all of a dimension, as Python has them. New reference.
PyObject* KeyOf(PyObject* indices) {
  Ref key(PyTuple_New(PyList_GET_SIZE(indices))), all(PySlice_New(nullptr, nullptr, nullptr));
  for (Py_ssize_t i = 0; key && all && i < PyList_GET_SIZE(indices); ++i) {
    PyObject* one = PyList_GET_ITEM(indices, i);
    PyTuple_SET_ITEM(key.get(), i, Py_NewRef(one == Py_None ? all.get() : one));
  }
  return all ? key.release() : nullptr;
}

}  // namespace

PyObject* CallAten(Session& s, PyObject* op, Callee name, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                   bool* mapped) {
  static auto* known = new std::map<std::string, Meaning>;
  auto at = known->find(name.name());
  if (at == known->end()) at = known->emplace(name.name(), MeaningOf(op, name.name())).first;
  const Meaning& meaning = at->second;
  *mapped = false;
  if (name == kIndex && nargs == 2 && !kwnames && PyList_CheckExact(args[1]) && !s.IsOutside(args[1])) {
    Ref key(KeyOf(args[1]));
    PyObject* with[] = {args[0], s.MarkFresh(key.get())};
    *mapped = true;
    return key ? s.CallFramework(callees::kTensorGetItem, with, 2, nullptr) : nullptr;
  }
  if (meaning.function.empty()) return nullptr;
  bool declined = false;
  Ref result(s.CallFramework(Callee(meaning.function), args, nargs, kwnames, &declined));
  *mapped = !declined;
  if (!result || !PyTuple_Check(result.get()) || FactsOf(Py_TYPE(result.get())).type == CType::kTorchSize)
    return result.release();
  // Operators give plain tuples, and lists.
  return s.MarkFresh(meaning.list ? PySequence_List(result.get())
                                  : PyTuple_GetSlice(result.get(), 0, PyTuple_GET_SIZE(result.get())));
}

}  // namespace framejit::capture
