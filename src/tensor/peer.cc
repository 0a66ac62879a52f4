#include "tensor/peer.h"

#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

// Sets what torch.compile does with the frames of this thread, where None is nothing, and gives what it did before.
Ref SetCallback(const TorchApi& t, PyObject* callback) {
  static PyObject* const set = [&t]() -> PyObject* {
    Ref dynamo(Attr(t.c_module, "_dynamo"));
    Ref frames(Attr(dynamo.get(), "eval_frame"));
    return Attr(frames.get(), "set_eval_frame");
  }();
  Ref before(set ? PyObject_CallOneArg(set, callback) : nullptr);
  if (!before) PyErr_Clear();
  return before;
}

}  // namespace

PeerAside::PeerAside() {
  if (!bound_torch) return;
  SavedError saved;
  callback_ = SetCallback(*bound_torch, Py_None);
}

PeerAside::~PeerAside() {
  if (!callback_ || callback_.get() == Py_None) return;
  SavedError saved;
  SetCallback(*bound_torch, callback_.get());
}

}  // namespace framejit::tensor
