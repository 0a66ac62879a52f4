// The CUDA driver, found by dlopen at the first use: no link, no CUDA header. Machines without it lose nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "framejit/dtype.h"
#include "runtime/cuda/chip.h"

namespace framejit::runtime::cuda {

using Result = int;     // As CUresult: 0 is success.
using Context = void*;  // CUcontext
using Module = void*;
using Function = void*;
using Stream = void*;
using Graph = void*;
using GraphExec = void*;
using GraphNode = void*;
using Event = void*;

struct KernelNodeParams {  // CUDA_KERNEL_NODE_PARAMS_v2
  Function function = nullptr;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared_bytes = 0;
  void** params = nullptr;
  void** extra = nullptr;
  void* kernel = nullptr;
  Context context = nullptr;
};

struct LaunchAttribute {  // CUlaunchAttribute
  int id;
  int pad = 0;
  int value[16] = {};
};
struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1}, shared_bytes = 0;
  Stream stream = nullptr;
  const LaunchAttribute* attributes = nullptr;
  unsigned count = 0;
};

// X(field, name for cuGetProcAddress, argument types)
#define FRAMEJIT_CUDA_DRIVER(X)                                                                               \
  X(init, "cuInit", (unsigned))                                                                               \
  X(device_count, "cuDeviceGetCount", (int*))                                                                 \
  X(device_get, "cuDeviceGet", (int*, int))                                                                   \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, int))                                               \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (Context*, int))                                              \
  X(ctx_current, "cuCtxGetCurrent", (Context*))                                                               \
  X(ctx_push, "cuCtxPushCurrent", (Context))                                                                  \
  X(ctx_pop, "cuCtxPopCurrent", (Context*))                                                                   \
  X(driver_version, "cuDriverGetVersion", (int*))                                                             \
  X(module_load, "cuModuleLoadDataEx", (Module*, const void*, unsigned, int*, void**))                        \
  X(module_unload, "cuModuleUnload", (Module))                                                                \
  X(module_function, "cuModuleGetFunction", (Function*, Module, const char*))                                 \
  X(function_set, "cuFuncSetAttribute", (Function, int, int))                                                 \
  X(clusters_at_once, "cuOccupancyMaxActiveClusters", (int*, Function, const LaunchConfig*))                  \
  X(launch, "cuLaunchKernel",                                                                                 \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, void**)) \
  X(launch_ex, "cuLaunchKernelEx", (const LaunchConfig*, Function, void**, void**))                           \
  X(stream_capturing, "cuStreamIsCapturing", (Stream, int*))                                                  \
  X(stream_id, "cuStreamGetId", (Stream, uint64_t*))                                                          \
  X(stream_create, "cuStreamCreate", (Stream*, unsigned))                                                     \
  X(capture_begin, "cuStreamBeginCapture", (Stream, int))                                                     \
  X(capture_end, "cuStreamEndCapture", (Stream, Graph*))                                                      \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int*))                                                \
  X(event_create, "cuEventCreate", (Event*, unsigned))                                                        \
  X(event_record, "cuEventRecord", (Event, Stream))                                                           \
  X(event_query, "cuEventQuery", (Event))                                                                     \
  X(event_wait, "cuEventSynchronize", (Event))                                                                \
  X(event_elapsed, "cuEventElapsedTime", (float*, Event, Event))                                              \
  X(capture_info, "cuStreamGetCaptureInfo", (Stream, int*, uint64_t*, Graph*, const GraphNode**, size_t*))    \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", (GraphExec*, Graph, uint64_t))                          \
  X(graph_destroy, "cuGraphDestroy", (Graph))                                                                 \
  X(graph_launch, "cuGraphLaunch", (GraphExec, Stream))                                                       \
  X(graph_exec_destroy, "cuGraphExecDestroy", (GraphExec))                                                    \
  X(graph_set_kernel, "cuGraphExecKernelNodeSetParams", (GraphExec, GraphNode, const KernelNodeParams*))      \
  X(error_name, "cuGetErrorName", (Result, const char**))                                                     \
  X(error_text, "cuGetErrorString", (Result, const char**))

struct Driver {
#define X(field, name, args) Result(*field) args = nullptr;
  FRAMEJIT_CUDA_DRIVER(X)
#undef X
};

// Null where there is no usable driver; *why says so. Asked once.
const Driver* GetDriver(std::string* why = nullptr);
// Tests put a fake in its place; null: the real one again.
void SetDriverForTesting(const Driver* driver);
bool IsDriverForTesting();

// Throws std::runtime_error with the driver's own text.
[[noreturn]] void Fail(const Driver& d, Result r, const std::string& what);
inline void Check(const Driver& d, Result r, const char* what) {
  if (r) Fail(d, r, what);
}

struct DeviceInfo {
  int ordinal = 0;
  Context context = nullptr;  // the primary one, which is the framework's
  int major = 0, minor = 0;   // The compute capability.
  Chip chip;
};
const DeviceInfo& GetDevice(int ordinal);  // Throws std::runtime_error.

int DeviceCount();  // 0 without a driver
// "cpu", "cuda:1", "meta". "cuda" means the thread's current device: here only where there is just one (capture names
// the others by number, NumberedDevice).
std::optional<Device> ParseDevice(std::string_view text);

// The device's primary context becomes current. True: PopContext brings the thread's own back.
bool PushContext(const Driver& d, const DeviceInfo& device);
void PopContext(const Driver& d);
class Scope {
 public:
  Scope(const Driver& d, const DeviceInfo& device) : d_(d), pushed_(PushContext(d, device)) {}
  ~Scope() {
    if (pushed_) PopContext(d_);
  }
  Scope(const Scope&) = delete;

 private:
  const Driver& d_;
  const bool pushed_;
};

}  // namespace framejit::runtime::cuda
