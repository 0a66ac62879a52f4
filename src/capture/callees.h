// The functions of frameworks that capture itself calls, or treats in a way of its own.
#pragma once

#include <string_view>

#include "graph/effects.h"

namespace framejit::capture::callees {

// Namespaces that mean something to capture.
inline constexpr std::string_view kTorch = "torch", kTorchC = "torch._C", kTensor = "torch.Tensor",
                                  kArray = "numpy.ndarray", kCupyArray = "cupy.ndarray";
inline bool IsTorchs(Callee c) {
  return c.name().starts_with("torch.");
}
inline bool IsNumpys(Callee c) {
  return c.name().starts_with("numpy.");
}
inline bool IsTensorMethod(Callee c) {
  return c.space() == kTensor;
}
inline bool IsArrayMethod(Callee c) {
  return c.space() == kArray;
}

// Parts of torch that capture uses, or whose calls it treats in a way of its own, by their module.
inline constexpr const char *kCheckpoint = "torch.utils.checkpoint", *kFunctorch = "torch._functorch.eager_transforms",
                            *kHigherOrder = "torch._dynamo._trace_wrapped_higher_order_op", *kDynamo = "torch._dynamo.";
// What a call of a module runs before its forward.
inline constexpr const char *kModuleWrappedCall = "Module._wrapped_call_impl", *kModuleCall = "Module._call_impl";

// Objects of the frameworks that are no functions.
inline const Callee kDevice{"torch.device"};
inline const Callee kCurrentDevice{"torch._C._cuda_getDevice"};
inline const Callee kErrState{"numpy.errstate"};
inline const Callee kFunction{"torch.autograd.Function"};
inline const Callee kInferenceScope{"torch._C._InferenceMode"}, kOverridesOff{"torch._C.DisableTorchFunctionSubclass"};
inline const Callee kNumpyDType{"numpy.dtype"};
inline const Callee kParameter{"torch.nn.Parameter"};
inline const Callee kSize{"torch.Size"};
inline const Callee kStrided{"torch.strided"};
inline const Callee kVmap{"torch.vmap"};

inline const Callee kAllClose{"torch.allclose"};
inline const Callee kArange{"torch.arange"};
inline const Callee kAutogradGrad{"torch.autograd.grad"};
inline const Callee kCanCast{"numpy.can_cast"};
inline const Callee kClone{"torch.clone"};
inline const Callee kCountOf{"framejit._functions.count_of"};
inline const Callee kEmpty{"torch.empty"};
inline const Callee kEqual{"torch.equal"};
inline const Callee kEq{"torch.eq"};
inline const Callee kFromNumpy{"torch.from_numpy"};
inline const Callee kTensorDouble{"torch.Tensor.double"};
inline const Callee kGroupTensors{"torch._C._group_tensors_by_device_and_dtype"};
inline const Callee kIsClose{"torch.isclose"};
inline const Callee kPromoteTypes{"numpy.promote_types"};
inline const Callee kProfilerOn{"torch._C._autograd._profiler_enabled"};
inline const Callee kResultType{"numpy.result_type"};
inline const Callee kStack{"torch.stack"};
inline const Callee kVectorNorm{"torch.linalg.vector_norm"};
inline const Callee kWhere{"torch.where"};
inline const Callee kZerosLike{"torch.zeros_like"};
inline const Callee kOwnBackward{"framejit._functions.own_backward"};

inline const Callee kTensorAllClose{"torch.Tensor.allclose"};
inline const Callee kTensorEqual{"torch.Tensor.equal"};
inline const Callee kTensorAll{"torch.Tensor.all"};
inline const Callee kTensorClone{"torch.Tensor.clone"};
inline const Callee kTensorData{"torch.Tensor.data.__get__"};
inline const Callee kTensorDetach{"torch.Tensor.detach"};
inline const Callee kTensorExpand{"torch.Tensor.expand"};
inline const Callee kTensorGetItem{"torch.Tensor.__getitem__"};
inline const Callee kTensorLong{"torch.Tensor.long"};
inline const Callee kTensorMoveDim{"torch.Tensor.movedim"};
inline const Callee kTensorNew{"torch.Tensor.new"};
inline const Callee kTensorNonzero{"torch.Tensor.nonzero"};
inline const Callee kTensorRequiresGrad{"torch.Tensor.requires_grad_"};
inline const Callee kTensorSetItem{"torch.Tensor.__setitem__"};
inline const Callee kTensorTo{"torch.Tensor.to"};
inline const Callee kTensorToList{"torch.Tensor.tolist"};
inline const Callee kTensorUnbind{"torch.Tensor.unbind"};
inline const Callee kTensorUnsqueeze{"torch.Tensor.unsqueeze"};
inline const Callee kTensorViewAs{"torch.Tensor.view_as"};

}  // namespace framejit::capture::callees
