// Classes of tensors that say by a __torch_function__ what torch's functions do with them.
#pragma once

#include <optional>

#include "tensor/ref.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

// Is it such a class? Its __torch_function__ is torch.Tensor's own or a class method in Python, and nothing of it is in
// the dispatcher.
bool Overrides(PyTypeObject* type);
// Is it that, or one whose __torch_function__ is disabled: to the dispatcher its tensors are plain ones.
bool IsQuietClass(PyTypeObject* type);
// Is its __torch_function__ one that torch asks, whatever it does in the dispatcher?
bool OverridesFunctions(PyTypeObject* type);

// Is it a class of wrappers: with a __torch_dispatch__ and a __tensor_flatten__ in Python? Its tensors have sizes, and
// other tensors as attributes, but no memory.
bool IsWrapperClass(PyTypeObject* type);
// Does torch ask the class of this tensor for its sizes, device or layout, whatever it was made with?
bool AsksItsClass(PyObject* o);
// What a wrapper says of itself. False: it is none, or one of another kind.
bool ReadWrapper(PyObject* o, Meta* out, const char** why = nullptr);

// Do hooks of the program see the gradient of this tensor? Also if that cannot be known.
bool HasHooks(PyObject* o);

// While alive, torch's functions ask no class on this thread: what runs has been captured with what they do.
class OverridesOff {
 public:
  explicit OverridesOff(bool off = seen) {
    if (off) [[unlikely]]
      Enter();
  }
  ~OverridesOff() {
    if (scope_) [[unlikely]]
      Leave();
  }
  OverridesOff(const OverridesOff&) = delete;
  static inline bool seen = false;  // a tensor of such a class, by any capture

 private:
  void Enter();
  void Leave();
  Ref scope_;
};

}  // namespace framejit::tensor
