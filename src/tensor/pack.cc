// Weights in oneDNN's own form. Rare (once a weight and version), so through torch's Python functions.
#include "tensor/run_context.h"
#include "tensor/torch_host.h"

namespace framejit::tensor {
namespace {

PyObject* Numbers(const int64_t* p, int64_t n) {
  PyObject* list = PyList_New(n);
  for (int64_t i = 0; list && i < n; ++i) PyList_SET_ITEM(list, i, PyLong_FromLongLong(p[i]));
  return list;
}

}  // namespace

bool TorchPack(const TorchApi& t, const Buffer& w, const Attrs& attrs, Buffer& out) {
  if (attrs.name == "linear") return TorchPackLinear(t, w, attrs.axes.at(0), out), true;
  if (attrs.name != "conv" || !t.packed_convolution || w.rank != 4 || w.dtype != DType::kFloat32) return false;
  HoldGil gil;
  SavedError saved;
  ModeSwitch mode;
  mode.Set({false, false});
  TempTensor temp(t, w);
  if (!temp.ok()) return false;
  Handle shared = nullptr;
  if (t.new_tensor_handle(temp.handle(), &shared)) return false;
  Ref tensor(WrapTorch(t, TakeHandle(t, shared)));
  Ref nn(PyObject_GetAttrString(t.c_module, "_nn"));
  Ref reorder(nn ? PyObject_GetAttrString(nn.get(), "mkldnn_reorder_conv2d_weight") : nullptr);
  Ref opaque(tensor && reorder ? PyObject_CallMethod(tensor.get(), "detach", nullptr) : nullptr);
  if (opaque) opaque = Ref(PyObject_CallMethod(opaque.get(), "to_mkldnn", nullptr));
  const int64_t* axes = attrs.axes.data();  // stride, padding, dilation, output padding (two each), groups, input sizes
  Ref packed(opaque
                 ? PyObject_CallFunction(reorder.get(), "ONNNLN", opaque.get(), Numbers(axes + 2, 2), Numbers(axes, 2),
                                         Numbers(axes + 4, 2), static_cast<long long>(axes[8]), Numbers(axes + 9, 4))
                 : nullptr);
  PyErr_Clear();
  if (!packed || t.new_tensor_handle(reinterpret_cast<char*>(packed.get()) + sizeof(PyObject), &shared)) return false;
  out.handle = TakeHandle(t, shared);
  return true;
}

}  // namespace framejit::tensor
