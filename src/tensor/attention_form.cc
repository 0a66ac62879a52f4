// Which of the framework's attention kernels a program's backward pass will go through, and what its forward part
// gives.
#include "surface/signature.h"
#include "tensor/autograd.h"
#include "tensor/import.h"
#include "tensor/run_context.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

using shape::Int;
using shape::Ints;

using Numbers = std::vector<int64_t>;

PyObject* Tuple(const Numbers& values) {
  PyObject* t = PyTuple_New(values.size());
  for (size_t i = 0; t && i < values.size(); ++i) PyTuple_SET_ITEM(t, i, PyLong_FromLongLong(values[i]));
  return t;
}

bool Read(PyObject* tuple, Numbers* out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
    out->push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  return !PyErr_Occurred();
}

// Numbers that belong to the hints, as sizes of [B, H, L, ...] (L as it is, or rounded up as kernels do).
std::optional<Ints> SizesOf(const Numbers& sizes, const Ints& query, std::span<const int64_t> hints) {
  Ints out;
  for (size_t d = 0; d < sizes.size(); ++d) {
    std::vector<Int> candidates;
    if (d < query.size()) candidates.push_back(query[d]);
    if (d == 2) candidates.push_back(FloorDiv(query[2] + Int(31), 32) * Int(32));
    Int size = sizes[d];
    bool fixed = true;
    for (const Int& c : query) fixed = fixed && c.is_const();
    for (const Int& c : candidates) {
      if (!fixed && c.Eval(hints) == sizes[d]) {
        size = c;
        fixed = true;
      }
    }
    if (!fixed && d < 3) return std::nullopt;
    out.push_back(size);
  }
  return out;
}

}  // namespace

std::optional<autodiff::AttentionForm> FindAttention(const autodiff::AttentionRequest& r,
                                                     std::span<const int64_t> hints) {
  auto numbers = [&](const Ints& all) {
    Numbers out;
    for (const Int& i : all) out.push_back(i.Eval(hints));
    return out;
  };
  SavedError saved;
  AutocastOff plain;
  auto failed = [] {
    PyErr_Clear();
    return std::nullopt;
  };
  const Device device = r.types[0].device;
  if (device.kind == DeviceKind::kMeta) return std::nullopt;
  const std::string place = device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
  bool fixed = true;
  for (const TensorType& type : r.types)
    for (const Int& s : type.shape) fixed = fixed && s.is_const();
  Ref operands(PyTuple_New(r.types.size()));
  for (size_t i = 0; i < r.types.size(); ++i) {
    Ref sizes(Tuple(numbers(r.types[i].shape))), strides(Tuple(numbers(r.strides[i])));
    PyObject* pair = sizes && strides ? PyTuple_Pack(2, sizes.get(), strides.get()) : nullptr;
    if (!pair) return failed();
    PyTuple_SET_ITEM(operands.get(), i, pair);
  }
  Ref module(Import("framejit._gradients"));
  Ref dtype(DTypeObject(Framework::kTorch, r.types[0].dtype));
  Ref answer(module && dtype ? PyObject_CallMethod(module.get(), "attention_form", "sOOdOdO", place.c_str(),
                                                   dtype.get(), operands.get(), r.dropout,
                                                   r.causal ? Py_True : Py_False, r.scale, fixed ? Py_True : Py_False)
                             : nullptr);
  if (!answer || !PyTuple_Check(answer.get())) return failed();
  autodiff::AttentionForm form;
  const char* kernel = PyUnicode_AsUTF8(PyTuple_GET_ITEM(answer.get(), 0));
  if (!kernel) return failed();
  form.kernel = kernel;
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(answer.get()); ++i) {  // (dtype, sizes, strides, on the device?)
    PyObject* result = PyTuple_GET_ITEM(answer.get(), i);
    Numbers sizes, strides;
    const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(result, 0));
    auto type = name ? surface::DTypeFromText(name) : std::nullopt;
    if (!type || !Read(PyTuple_GET_ITEM(result, 1), &sizes) || !Read(PyTuple_GET_ITEM(result, 2), &strides))
      return failed();
    const auto shape = SizesOf(sizes, r.types[0].shape, hints);
    if (!shape) return std::nullopt;
    const bool there = PyTuple_GET_ITEM(result, 3) == Py_True;
    form.types.push_back({*type, *shape, there ? device : Device{}});
    const Ints rows = RowMajor(*shape);
    Ints lies = rows;
    if (shape->size() == 4 && numbers(rows) != strides) {
      const Ints& s = *shape;
      lies = {s[1] * s[2] * s[3], s[3], s[1] * s[3], Int(1)};
    }
    form.strides.push_back(std::move(lies));
  }
  const TensorType &q = r.types[0], &v = r.types[2];
  const Ints expected = {q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  if (form.types.empty() || form.types[0].dtype != q.dtype || numbers(form.types[0].shape) != numbers(expected))
    return std::nullopt;
  form.types[0].shape = expected;
  return form;
}

}  // namespace framejit::tensor
