// What framejit/_gradients.py leaves to C++.
#include "runtime/depthwise.h"
#include "tensor/autograd.h"
#include "tensor/torch_api.h"
#include "tensor/torch_host.h"

namespace framejit::tensor {

PyObject* DepthwiseWeightGradient(PyObject*, PyObject* args) {
  PyObject* tensors[4];
  runtime::DepthwiseWindow w;
  if (!PyArg_ParseTuple(args, "OOOOLLLLLL", &tensors[0], &tensors[1], &tensors[2], &tensors[3], &w.stride[0],
                        &w.stride[1], &w.padding[0], &w.padding[1], &w.dilation[0], &w.dilation[1]))
    return nullptr;
  Meta metas[4];
  Buffer buffers[4];
  for (int i = 0; i < 4; ++i) {
    if (i == 3 && tensors[i] == Py_None) continue;
    if (Classify(tensors[i]) != Class::kTorch || !ReadMeta(tensors[i], &metas[i]) ||
        metas[i].dtype != DType::kFloat32 || metas[i].device.kind != DeviceKind::kCpu ||
        metas[i].rank != (i < 3 ? 4 : 1))
      return PyErr_Format(PyExc_TypeError, "framejit: depthwise_weight_gradient takes float32 tensors of torch");
    buffers[i].data = metas[i].data;
    buffers[i].sizes = metas[i].sizes;
    buffers[i].strides = metas[i].strides;
    buffers[i].rank = metas[i].rank;
  }
  const auto &grad = metas[0], &x = metas[1], &weight = metas[2];
  bool fits = grad.sizes[0] == x.sizes[0] && grad.sizes[1] == x.sizes[1] && weight.sizes[0] == x.sizes[1];
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

}  // namespace framejit::tensor
