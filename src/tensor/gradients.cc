// What framejit/_gradients.py leaves to C++.
#include "runtime/add_rows.h"
#include "runtime/depthwise.h"
#include "tensor/autograd.h"
#include "tensor/torch_api.h"
#include "tensor/torch_host.h"

namespace framejit::tensor {

namespace {

// Makes buffers of tensors of torch on the CPU. Null stays empty. It is false with an exception set.
template <size_t n>
bool Fill(PyObject* const (&tensors)[n], Meta (&metas)[n], Buffer (&buffers)[n]) {
  for (size_t i = 0; i < n; ++i) {
    if (tensors[i] == Py_None) continue;
    const Class kind = Classify(tensors[i]);
    if (!IsPlainTorch(kind) || !ReadMeta(tensors[i], &metas[i]) || metas[i].device.kind != DeviceKind::kCpu) {
      PyErr_Format(PyExc_TypeError, "framejit: argument %zu is no tensor on the CPU", i);
      return false;
    }
    buffers[i].data = metas[i].data;
    buffers[i].sizes = metas[i].sizes;
    buffers[i].strides = metas[i].strides;
    buffers[i].rank = metas[i].rank;
    buffers[i].dtype = metas[i].dtype;
  }
  return true;
}

}  // namespace

PyObject* DepthwiseWeightGradient(PyObject*, PyObject* args) {
  PyObject* tensors[4];
  runtime::DepthwiseWindow w;
  if (!PyArg_ParseTuple(args, "OOOOLLLLLL", &tensors[0], &tensors[1], &tensors[2], &tensors[3], &w.stride[0],
                        &w.stride[1], &w.padding[0], &w.padding[1], &w.dilation[0], &w.dilation[1]))
    return nullptr;
  Meta metas[4];
  Buffer buffers[4];
  if (!Fill(tensors, metas, buffers)) return nullptr;
  const auto &grad = metas[0], &x = metas[1], &weight = metas[2];
  bool fits = grad.rank == 4 && x.rank == 4 && weight.rank == 4;
  for (int i = 0; i < 4; ++i) fits = fits && (tensors[i] == Py_None || metas[i].dtype == DType::kFloat32);
  fits = fits && grad.sizes[0] == x.sizes[0] && grad.sizes[1] == x.sizes[1] && weight.sizes[0] == x.sizes[1];
  fits = fits && (tensors[3] == Py_None || metas[3].sizes[0] == x.sizes[1]);
  for (int d = 0; d < 2; ++d) {
    const int64_t reach = (weight.sizes[2 + d] - 1) * w.dilation[d];
    fits = fits && w.stride[d] > 0 &&
           grad.sizes[2 + d] == (x.sizes[2 + d] + 2 * w.padding[d] - reach - 1) / w.stride[d] + 1;
  }
  if (!fits) return PyErr_Format(PyExc_ValueError, "framejit: depthwise_weight_gradient: sizes that do not fit");
  runtime::DepthwiseWeightGradient(TorchHost(), buffers[0], buffers[1], w, buffers[2],
                                   tensors[3] == Py_None ? nullptr : static_cast<float*>(metas[3].data));
  Py_RETURN_NONE;
}

PyObject* AddRows(PyObject*, PyObject* args) {
  PyObject* tensors[3];
  long long without;
  if (!PyArg_ParseTuple(args, "OOOL", &tensors[0], &tensors[1], &tensors[2], &without)) return nullptr;
  Meta metas[3];
  Buffer buffers[3];
  if (!Fill(tensors, metas, buffers)) return nullptr;
  const auto &table = metas[0], &rows = metas[1], &index = metas[2];
  const bool fits = table.rank == 2 && rows.rank == 2 && index.rank == 1 && table.dtype == rows.dtype &&
                    (table.dtype == DType::kFloat32 || table.dtype == DType::kFloat64) &&
                    (index.dtype == DType::kInt64 || index.dtype == DType::kInt32) && rows.sizes[0] == index.sizes[0] &&
                    rows.sizes[1] == table.sizes[1] &&
                    (table.sizes[1] <= 1 || (table.strides[1] == 1 && rows.strides[1] == 1));
  if (!fits) return PyErr_Format(PyExc_ValueError, "framejit: add_rows: tensors that do not fit");
  if (!runtime::AddRows(TorchHost(), buffers[0], buffers[1], buffers[2], without))
    return PyErr_Format(PyExc_IndexError, "framejit: add_rows: an index is out of range");
  Py_RETURN_NONE;
}

}  // namespace framejit::tensor
