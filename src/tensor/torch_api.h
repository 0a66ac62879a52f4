// Torch as seen by framejit: functions found by dlsym in the libraries the user's `import torch` has loaded, and the
// offsets of the few fields we read directly, found and checked by a self-test. No torch header, no link. Everything
// may be missing; whoever uses an entry tests it first.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framejit/dtype.h"
#include "tensor/ref.h"

namespace framejit::tensor {

// What the C++ ABI passes for the torch types in the signatures below.
struct ArrayRef {
  const int64_t* data;
  size_t size;
};  // It is a c10::IntArrayRef.
struct TensorValue {  // at::Tensor: one pointer, returned through memory
  void* impl = nullptr;
  TensorValue() {}
  ~TensorValue() {}  // It is not trivial on purpose, and owns nothing.
};
struct OptionalDevice {  // It is a std::optional<c10::Device>.
  int8_t type = 0, index = 0;
  bool given = false;
};
using Impl =
    void*;  // c10::TensorImpl*. Buffer::handle of a torch tensor; the address of such a variable is an at::Tensor*
using Handle = void*;  // AtenTensorHandle = at::Tensor*

// X(field, library, symbol, result type, argument types). library: t libtorch_cpu, c libc10, p libtorch_python,
// g libtorch_cuda (not there in every build)
#define FRAMEJIT_TORCH_SYMBOLS(X)                                                                                      \
  X(get_dtype, 't', "aoti_torch_get_dtype", int32_t, (Handle, int32_t*))                                               \
  X(get_data_ptr, 't', "aoti_torch_get_data_ptr", int32_t, (Handle, void**))                                           \
  X(delete_tensor, 't', "aoti_torch_delete_tensor_object", int32_t, (Handle))                                          \
  X(new_tensor_handle, 't', "aoti_torch_new_tensor_handle", int32_t, (Handle, Handle*))                                \
  X(empty_strided, 't', "aoti_torch_empty_strided", int32_t,                                                           \
    (int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*))                                     \
  X(from_blob, 't', "aoti_torch_create_tensor_from_blob", int32_t,                                                     \
    (void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, Handle*))                     \
  X(copy, 't', "aoti_torch_copy_", int32_t, (Handle, Handle, int32_t))                                                 \
  X(mm_out, 't', "aoti_torch_cpu_mm_out", int32_t, (Handle, Handle, Handle))                                           \
  X(bmm_out, 't', "aoti_torch_cpu_bmm_out", int32_t, (Handle, Handle, Handle))                                         \
  X(addmm_out, 't', "aoti_torch_cpu_addmm_out", int32_t, (Handle, Handle, Handle, Handle, double, double))             \
  X(linear_pointwise, 't', "aoti_torch_cpu__linear_pointwise", int32_t,                                                \
    (Handle, Handle, Handle*, const char*, const double**, int64_t, const char**, Handle*))                            \
  X(sgemm, 't', "sgemm_", void,                                                                                        \
    (const char*, const char*, const int64_t*, const int64_t*, const int64_t*, const float*, const float*,             \
     const int64_t*, const float*, const int64_t*, const float*, float*, const int64_t*))                              \
  X(dgemm, 't', "dgemm_", void,                                                                                        \
    (const char*, const char*, const int64_t*, const int64_t*, const int64_t*, const double*, const double*,           \
     const int64_t*, const double*, const int64_t*, const double*, double*, const int64_t*))                           \
  X(sgemm_pack_get_size, 't', "cblas_sgemm_pack_get_size", size_t, (int, int, int, int))                               \
  X(sgemm_pack, 't', "cblas_sgemm_pack", void, (int, int, int, int, int, int, float, const float*, int, float*))       \
  X(sgemm_compute, 't', "cblas_sgemm_compute", void,                                                                   \
    (int, int, int, int, int, int, const float*, int, const float*, int, float, float*, int))                          \
  X(mkldnn_matmul, 't', "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff", void,                                    \
    (Handle, Handle, Handle, float, float))                                                                            \
  X(convolution, 't', "aoti_torch_cpu_convolution", int32_t,                                                           \
    (Handle, Handle, Handle*, const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*, int64_t, int32_t,      \
     const int64_t*, int64_t, int64_t, Handle*))                                                                       \
  X(convolution_backward, 't', "aoti_torch_cpu_convolution_backward", int32_t,                                         \
    (Handle, Handle, Handle, const int64_t**, int64_t, const int64_t*, int64_t, const int64_t*, int64_t,               \
     const int64_t*, int64_t, int32_t, const int64_t*, int64_t, int64_t, const int32_t*, int64_t, Handle*, Handle*,    \
     Handle*))                                                                                                         \
  X(packed_convolution, 't', "aoti_torch_cpu_mkldnn__convolution_pointwise", int32_t,                                  \
    (Handle, Handle, Handle*, const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*, int64_t, int64_t,      \
     const char*, const double**, int64_t, const char**, Handle*))                                                     \
  X(lift, 't', "_ZN2at4_ops4lift4callERKNS_6TensorE", TensorValue, (Handle))                                           \
  X(version, 't', "_ZNK2at10TensorBase8_versionEv", int64_t, (Handle))                                                 \
  X(nodes_of_pass, 't', "_ZN5torch8autograd32get_current_graph_task_exec_infoEv", const void*, ())                     \
  X(flash_attention, 't', "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu", int32_t,                       \
    (Handle, Handle, Handle, double, int32_t, Handle*, double*, Handle*, Handle*))                                     \
  X(cuda_stream, 'g', "aoti_torch_get_current_cuda_stream", int32_t, (int32_t, void**))                                \
  X(cuda_stream_guard, 'g', "aoti_torch_create_cuda_stream_guard", int32_t, (void*, int32_t, void**))                  \
  X(cuda_drop_stream_guard, 'g', "aoti_torch_delete_cuda_stream_guard", int32_t, (void*))                              \
  X(cuda_mm_out, 'g', "aoti_torch_cuda_mm_out", int32_t, (Handle, Handle, Handle))                                     \
  X(cuda_bmm_out, 'g', "aoti_torch_cuda_bmm_out", int32_t, (Handle, Handle, Handle))                                   \
  X(cuda_addmm_out, 'g', "aoti_torch_cuda_addmm_out", int32_t, (Handle, Handle, Handle, Handle, double, double))       \
  X(cuda_addmm_activation, 'g', "aoti_torch_cuda__addmm_activation", int32_t,                                          \
    (Handle, Handle, Handle, double, double, int32_t, Handle*))                                                        \
  X(reinterpret, 't', "aoti_torch__reinterpret_tensor", int32_t,                                                       \
    (Handle, int64_t, const int64_t*, const int64_t*, int64_t, Handle*))                                               \
  X(cuda_convolution, 'g', "aoti_torch_cuda_convolution", int32_t,                                                     \
    (Handle, Handle, Handle*, const int64_t*, int64_t, const int64_t*, int64_t, const int64_t*, int64_t, int32_t,      \
     const int64_t*, int64_t, int64_t, Handle*))                                                                       \
  X(cuda_flash_attention, 'g', "aoti_torch_cuda__scaled_dot_product_flash_attention", int32_t,                         \
    (Handle, Handle, Handle, double, int32_t, int32_t, double*, Handle*, Handle*, Handle*, Handle*, int64_t*,          \
     int64_t*, Handle*, Handle*, Handle*))                                                                             \
  X(cuda_efficient_attention, 'g', "aoti_torch_cuda__scaled_dot_product_efficient_attention", int32_t,                 \
    (Handle, Handle, Handle, Handle*, int32_t, double, int32_t, double*, Handle*, Handle*, Handle*, Handle*))          \
  X(cuda_cudnn_attention, 'g', "aoti_torch_cuda__scaled_dot_product_cudnn_attention", int32_t,                         \
    (Handle, Handle, Handle, Handle*, int32_t, double, int32_t, int32_t, double*, Handle*, Handle*, Handle*, Handle*,  \
     int64_t*, int64_t*, Handle*, Handle*, Handle*))                                                                   \
  X(cuda_flash_attention_backward, 'g', "aoti_torch_cuda__scaled_dot_product_flash_attention_backward", int32_t,       \
    (Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, int64_t, int64_t, double, int32_t, Handle,        \
     Handle, double*, Handle*, Handle*, Handle*))                                                                      \
  X(cuda_efficient_attention_backward, 'g', "aoti_torch_cuda__scaled_dot_product_efficient_attention_backward",        \
    int32_t,                                                                                                           \
    (Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, double, const int32_t*, int64_t, int32_t, \
     double*, Handle*, Handle*, Handle*, Handle*))                                                                     \
  X(cuda_cudnn_attention_backward, 'g', "aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward", int32_t,       \
    (Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, Handle, int64_t, int64_t, double, \
     int32_t, double*, Handle*, Handle*, Handle*))                                                                     \
  X(cuda_dropout, 'g', "aoti_torch_cuda_native_dropout", int32_t, (Handle, double, int32_t*, Handle*, Handle*))        \
  X(flash_sdp, 't', "_ZNK2at7Context19userEnabledFlashSDPEv", bool, (void*))                                           \
  X(efficient_sdp, 't', "_ZNK2at7Context26userEnabledMemEfficientSDPEv", bool, (void*))                                \
  X(math_sdp, 't', "_ZNK2at7Context18userEnabledMathSDPEv", bool, (void*))                                             \
  X(float32_precision, 't', "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE", int32_t,           \
    (void*, int32_t, int32_t))                                                                                         \
  X(tf32_cublas, 't', "_ZNK2at7Context15allowTF32CuBLASEv", bool, (void*))                                             \
  X(cudnn_enabled, 't', "_ZNK2at7Context16userEnabledCuDNNEv", bool, (void*))                                          \
  X(cudnn_benchmark, 't', "_ZNK2at7Context14benchmarkCuDNNEv", bool, (void*))                                          \
  X(cudnn_deterministic, 't', "_ZNK2at7Context18deterministicCuDNNEv", bool, (void*))                                  \
  X(fp16_reduction, 't', "_ZNK2at7Context24allowFP16ReductionCuBLASEv", uint8_t, (void*))                              \
  X(bf16_reduction, 't', "_ZNK2at7Context24allowBF16ReductionCuBLASEv", uint8_t, (void*))                              \
  X(fp16_accumulation, 't', "_ZNK2at7Context27allowFP16AccumulationCuBLASEv", bool, (void*))                           \
  X(cudnn_sdp, 't', "_ZNK2at7Context19userEnabledCuDNNSDPEv", bool, (void*))                                           \
  X(parallel_for, 't', "torch_parallel_for", int32_t,                                                                  \
    (int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void*), void*))                                             \
  X(num_threads, 't', "torch_get_num_threads", int32_t, (uint32_t*))                                                   \
  X(observed, 't', "_ZN2at23hasThreadLocalCallbacksEv", bool, ())                                                      \
  X(observed_everywhere, 't', "_ZN2at18hasGlobalCallbacksEv", bool, ())                                                \
  X(start_range, 't', "aoti_record_function_start", int32_t, (const char*, void*, const void*, uint64_t, void**))      \
  X(end_range, 't', "aoti_record_function_end", int32_t, (void*))                                                      \
  X(empty_strided_cpu, 't', "_ZN2at6detail17empty_strided_cpuEN3c108ArrayRefIlEES3_NS1_10ScalarTypeEb", TensorValue,   \
    (ArrayRef, ArrayRef, int8_t, bool))                                                                                \
  X(empty_strided_cuda, 'g',                                                                                           \
    "_ZN2at6detail18empty_strided_cudaEN3c108ArrayRefIlEES3_NS1_10ScalarTypeESt8optionalINS1_6DeviceEE", TensorValue,  \
    (ArrayRef, ArrayRef, int8_t, OptionalDevice))                                                                      \
  X(bump_version, 't', "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE", void, (Handle))                         \
  X(grad_fn, 't', "_ZNK2at10TensorBase7grad_fnEv", void**, (Handle))                                                   \
  X(fw_grad, 'c', "_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE", Impl*, (Impl, uint64_t, Handle))               \
  X(requires_grad, 'c', "_ZNK3c1010TensorImpl13requires_gradEv", bool, (Impl))                                         \
  X(grad_enabled, 'c', "_ZN3c108GradMode10is_enabledEv", bool, ())                                                     \
  X(set_grad_enabled, 'c', "_ZN3c108GradMode11set_enabledEb", void, (bool))                                            \
  X(inference_enabled, 'c', "_ZN3c1013InferenceMode10is_enabledEv", bool, ())                                          \
  X(autograd_state, 'c', "_ZN3c1013AutogradState13get_tls_stateEv", uint8_t*, ())                                      \
  X(dispatch_modes, 'c', "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", int64_t, ())                                \
  X(function_modes, 't', "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", int64_t, ())                               \
  X(dispatch_mode_at, 'c', "_ZN3c104impl20TorchDispatchModeTLS12get_stack_atEl", void**, (int64_t))                    \
  X(function_mode_at, 't', "_ZN2at4impl22PythonTorchFunctionTLS12get_stack_atEl", void**, (int64_t))                   \
  X(function_disabled, 't', "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv", int32_t, ())                  \
  X(default_dtype, 'c', "_ZN3c1031get_default_dtype_as_scalartypeEv", int8_t, ())                                      \
  X(autocast_dtype, 't', "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE", int8_t, (int8_t))                   \
  X(autocast_cache, 't', "_ZN2at8autocast25is_autocast_cache_enabledEv", bool, ())                                     \
  X(global_context, 't', "_ZN2at13globalContextEv", void*, ())                                                         \
  X(deterministic, 't', "_ZNK2at7Context23deterministicAlgorithmsEv", bool, (void*))                                   \
  X(deterministic_warn, 't', "_ZNK2at7Context31deterministicAlgorithmsWarnOnlyEv", bool, (void*))                      \
  X(wrap_move, 'p', "_Z16THPVariable_WrapON2at10TensorBaseE", PyObject*, (Handle))                                     \
  X(wrap_copy, 'p', "_Z16THPVariable_WrapRKN2at10TensorBaseE", PyObject*, (Handle))                                    \
  X(wrap_value, 'p', "_Z16THPVariable_WrapN2at10TensorBaseE", PyObject*, (Handle))

// Numbers and attribute names of torch's ScalarType. The numbers are a stable ABI; the self-test checks some.
struct ScalarTypeRow {
  DType dtype;
  int8_t number;
  const char* name;
};
inline constexpr ScalarTypeRow kScalarTypes[] = {
    {DType::kBool, 11, "bool"},
    {DType::kUInt8, 0, "uint8"},
    {DType::kInt8, 1, "int8"},
    {DType::kInt16, 2, "int16"},
    {DType::kInt32, 3, "int32"},
    {DType::kInt64, 4, "int64"},
    {DType::kUInt16, 27, "uint16"},
    {DType::kUInt32, 28, "uint32"},
    {DType::kUInt64, 29, "uint64"},
    {DType::kFloat16, 5, "float16"},
    {DType::kBFloat16, 15, "bfloat16"},
    {DType::kFloat32, 6, "float32"},
    {DType::kFloat64, 7, "float64"},
    {DType::kComplex64, 9, "complex64"},
    {DType::kComplex128, 10, "complex128"},
    {DType::kFloat8E4M3, 24, "float8_e4m3fn"},
    {DType::kFloat8E5M2, 23, "float8_e5m2"},
};
inline constexpr auto kDTypeOfScalarType = [] {
  std::array<int8_t, 64> a{};
  for (int8_t& x : a) x = -1;
  for (const ScalarTypeRow& r : kScalarTypes) a[r.number] = static_cast<int8_t>(r.dtype);
  return a;
}();
// ScalarType number -> DType; nullopt: framejit has no such type.
inline std::optional<DType> FromScalarType(unsigned number) {
  if (number >= kDTypeOfScalarType.size() || kDTypeOfScalarType[number] < 0) return std::nullopt;
  return static_cast<DType>(kDTypeOfScalarType[number]);
}
struct TorchDType {
  int8_t number = -1;
  PyObject* object = nullptr;
};

// Byte offsets inside c10 objects; -1: not found, use the calls instead.
struct Offsets {
  int sizes = -1;   // TensorImpl: c10::impl::SizesAndStrides (count, then 5+5 inline numbers or a pointer to all)
  int offset = -1;  // storage offset, elements
  int numel = -1;
  int dtype = -1;   // uint16 ScalarType
  int device = -1;  // bytes type, index, present
  int key_set = -1;
  int storage = -1;       // StorageImpl*
  int storage_data = -1;  // StorageImpl: data address
  int autograd = -1;      // AutogradMeta*, null if there is none
  bool all() const {
    return (sizes | offset | numel | dtype | device | key_set | storage | storage_data | autograd) >= 0;
  }
};

struct TorchApi {
#define X(field, library, symbol, result, args) result(*field) args = nullptr;
  FRAMEJIT_TORCH_SYMBOLS(X)
#undef X
  PyTypeObject* tensor = nullptr;         // torch.Tensor
  PyTypeObject* parameter = nullptr;      // torch.nn.Parameter
  PyTypeObject* nn_module = nullptr;      // torch.nn.Module
  PyObject* disabled_function = nullptr;  // what __torch_function__ of Parameter is
  PyObject* module = nullptr;             // torch
  PyObject* c_module = nullptr;           // torch._C
  PyObject* forward_ad = nullptr;         // namespace of torch.autograd.forward_ad
  void* c10 = nullptr;                    // library, for thread-local addresses
  void* context = nullptr;                // at::Context
  Impl undefined = nullptr;               // what a tensor that is none points to
  TorchDType dtypes[kNumDTypes];
  Offsets at;
  uint64_t plain_mask = 0;   // key-set bits that may differ between plain tensors: backends, autograd, autocast
  uint64_t plain_keys = 0;   // ... and what must be left: Dense
  uint64_t names_key = 0;    // of tensors whose dimensions have names, before torch 2.13; backward functions exclude it
  uint64_t python_keys = 0;  // what a class with a __torch_dispatch__ adds
  uint64_t inplace_key = 0;  // absent on inference tensors
  uint64_t autograd_key = 0;
  int autograd_byte = -1;  // of *autograd_state(): grad mode in bit 0, inference mode in bit 1
  std::vector<std::pair<std::string, std::string>> verdicts;
  uint64_t conj_key = 0, neg_key = 0;  // what a conjugate view adds, and a negated one
};

// Null until torch has been imported and answered. Cheap when bound; else looks at sys.modules when that has grown.
extern const TorchApi* bound_torch;
const TorchApi* BindTorch();
inline const TorchApi* Torch() {
  return bound_torch ? bound_torch : BindTorch();
}

inline Impl ImplOf(PyObject* tensor) {
  return *reinterpret_cast<Impl*>(reinterpret_cast<char*>(tensor) + sizeof(PyObject));
}
template <class T>
inline T& Field(void* object, int offset) {
  return *reinterpret_cast<T*>(static_cast<char*>(object) + offset);
}
struct TorchDims {
  int64_t rank;
  const int64_t* sizes;
  const int64_t* strides;
};
inline TorchDims DimsOf(const TorchApi& t, Impl impl) {
  constexpr int kInline = 5;
  auto* w = &Field<const int64_t>(impl, t.at.sizes);
  int64_t rank = w[0];
  if (rank <= kInline) return {rank, w + 1, w + 1 + kInline};
  auto* p = reinterpret_cast<const int64_t*>(w[1]);
  return {rank, p, p + rank};
}

// Steals the implementation reference; new tensor object.
PyObject* WrapTorch(const TorchApi& t, Impl impl);
void ReleaseImpl(const TorchApi& t, Impl impl);  // Drops one reference.
// Takes the reference out of a handle the shim has returned.
Impl TakeHandle(const TorchApi& t, Handle h);
// This thread's words: local dispatch keys (included, excluded; raw) and autograd state. Null where not to be had.
struct ThreadWords {
  uint64_t* keys = nullptr;
  uint8_t* autograd = nullptr;
};
const ThreadWords& Words(const TorchApi& t);
bool ForwardLevelOpen(const TorchApi& t);  // torch.autograd.forward_ad.dual_level is active

}  // namespace framejit::tensor
