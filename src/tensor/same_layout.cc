#include <algorithm>

#include "tensor/overrides.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

namespace {

bool Dense(const Meta& m) {
  int order[16], n = 0;
  for (int d = 0; d < m.rank; ++d)
    if (m.sizes[d] != 1) order[n++] = d;
  std::sort(order, order + n, [&](int a, int b) { return m.strides[a] < m.strides[b]; });
  int64_t step = 1;
  for (int i = 0; i < n; ++i) {
    if (m.strides[order[i]] != step) return false;
    step *= m.sizes[order[i]];
  }
  return true;
}

}  // namespace

bool SameLayout(PyObject* columns) {
  if (!TorchLoaded() || !PyTuple_Check(columns) || PyTuple_GET_SIZE(columns) == 0) return false;
  PyObject* first = PyTuple_GET_ITEM(columns, 0);
  for (Py_ssize_t c = 0; c < PyTuple_GET_SIZE(columns); ++c) {
    PyObject* column = PyTuple_GET_ITEM(columns, c);
    if (!PyList_Check(column) || PyList_GET_SIZE(column) != PyList_GET_SIZE(first)) return false;
  }
  Meta all{}, row{}, m{};
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(first); ++i)
    for (Py_ssize_t c = 0; c < PyTuple_GET_SIZE(columns); ++c) {
      PyObject* o = PyList_GET_ITEM(PyTuple_GET_ITEM(columns, c), i);
      const Class kind = Classify(o);
      if (!IsPlainTorch(kind) || Overrides(Py_TYPE(o)) || !ReadForGuard(o, &m) || m.is_inference || m.conj || m.neg)
        return false;
      if (i == 0 && c == 0) all = m;
      if (m.dtype != all.dtype || !(m.device == all.device) || !IsFloat(m.dtype) || m.device.kind == DeviceKind::kMeta)
        return false;
      if (c == 0) {
        row = m;
        if (!Dense(m)) return false;
        continue;
      }
      if (m.rank != row.rank || !std::equal(m.sizes, m.sizes + m.rank, row.sizes) ||
          !std::equal(m.strides, m.strides + m.rank, row.strides))
        return false;
    }
  return true;
}

}  // namespace framejit::tensor
