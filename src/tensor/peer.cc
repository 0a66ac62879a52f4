#include "tensor/peer.h"

#include <dlfcn.h>

#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

// Its set_eval_frame, borrowed. Null: it is not there.
PyObject* Setter() {
  static PyObject* set = nullptr;
  if (set) return set;
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch._C._dynamo.eval_frame");
  return set = module ? Attr(module, "set_eval_frame") : nullptr;
}

// Sets what torch.compile does with the frames of this thread, where None is nothing, and gives what it did before.
Ref SetCallback(PyObject* callback) {
  PyObject* set = Setter();
  Ref before(set ? PyObject_CallOneArg(set, callback) : nullptr);
  if (!before) PyErr_Clear();
  return before;
}

}  // namespace

PeerAside::PeerAside() {
  SavedError saved;
  callback_ = SetCallback(Py_None);
}

PeerAside::~PeerAside() {
  if (!callback_ || callback_.get() == Py_None) return;
  SavedError saved;
  SetCallback(callback_.get());
}

bool IsPeers(void* function) {
  SavedError saved;
  PyObject* set = Setter();
  Dl_info its, torchs;
  return set && PyCFunction_Check(set) && dladdr(function, &its) &&
         dladdr(reinterpret_cast<void*>(PyCFunction_GetFunction(set)), &torchs) && its.dli_fbase == torchs.dli_fbase;
}

}  // namespace framejit::tensor
