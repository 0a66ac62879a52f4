#include "runtime/cuda/driver.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "runtime/cuda/step_clock.h"

namespace framejit::runtime::cuda {
namespace {

constexpr int kVersion = 12000;  // of the entry points asked for

enum Attribute {  // CU_DEVICE_ATTRIBUTE_*
  kMultiprocessors = 16,
  kThreads = 39,
  kMajor = 75,
  kMinor = 76,
  kRegisters = 82,
  kSharedOfBlock = 97,
};

struct Loaded {
  Driver driver;
  bool usable = false;
  std::string why;
};

Loaded Load() {
  Loaded out;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    out.why = "no CUDA driver: libcuda.so.1 cannot be opened";
    return out;
  }
  using Find2 = Result (*)(const char*, void**, int, uint64_t, int*);
  using Find1 = Result (*)(const char*, void**, int, uint64_t);
  auto find2 = reinterpret_cast<Find2>(dlsym(library, "cuGetProcAddress_v2"));
  auto find1 = reinterpret_cast<Find1>(dlsym(library, "cuGetProcAddress"));
  auto find = [&](const char* name) {
    void* p = nullptr;
    int status = 0;
    if (find2) {
      if (find2(name, &p, kVersion, 0, &status) == 0 && p) return p;
    } else if (find1 && find1(name, &p, kVersion, 0) == 0 && p) {
      return p;
    }
    return dlsym(library, name);
  };
#define X(field, name, args)                                 \
  *reinterpret_cast<void**>(&out.driver.field) = find(name); \
  if (!out.driver.field) out.why += (out.why.empty() ? "" : ", ") + std::string(name);
  FRAMEJIT_CUDA_DRIVER(X)
#undef X
  if (!out.why.empty()) {
    out.why = "the CUDA driver lacks " + out.why;
    return out;
  }
  if (Result r = out.driver.init(0)) {
    out.why = "cuInit failed with error " + std::to_string(r);
    return out;
  }
  out.usable = true;
  return out;
}

const Driver* for_testing = nullptr;
std::mutex device_mutex;
std::map<int, std::unique_ptr<DeviceInfo>>& Devices() {
  static auto* devices = new std::map<int, std::unique_ptr<DeviceInfo>>();
  return *devices;
}

}  // namespace

const Driver* GetDriver(std::string* why) {
  if (for_testing) return for_testing;
  static const Loaded loaded = Load();
  if (why) *why = loaded.why;
  return loaded.usable ? &loaded.driver : nullptr;
}

void SetDriverForTesting(const Driver* driver) {
  ForgetEvents();
  for_testing = driver;
  std::lock_guard lock(device_mutex);
  Devices().clear();
}

bool IsDriverForTesting() {
  return for_testing;
}

void Fail(const Driver& d, Result r, const std::string& what) {
  const char *name = nullptr, *text = nullptr;
  d.error_name(r, &name);
  d.error_text(r, &text);
  throw std::runtime_error("CUDA error in " + what + ": " + (text ? text : "error " + std::to_string(r)) +
                           (name ? std::string(" (") + name + ")" : ""));
}

const DeviceInfo& GetDevice(int ordinal) {
  std::lock_guard lock(device_mutex);
  auto& slot = Devices()[ordinal];
  if (slot) return *slot;
  std::string why;
  const Driver* d = GetDriver(&why);
  if (!d) throw std::runtime_error(why);
  auto info = std::make_unique<DeviceInfo>();
  int device = 0;
  info->ordinal = ordinal;
  Check(*d, d->device_get(&device, ordinal), "cuDeviceGet");
  auto ask = [&](Attribute what) {
    int value = 0;
    Check(*d, d->device_attribute(&value, what, device), "cuDeviceGetAttribute");
    return value;
  };
  info->major = ask(kMajor);
  info->minor = ask(kMinor);
  info->chip = {info->major * 10 + info->minor, ask(kMultiprocessors), ask(kThreads), ask(kRegisters),
                ask(kSharedOfBlock)};
  Check(*d, d->primary_retain(&info->context, device), "cuDevicePrimaryCtxRetain");
  slot = std::move(info);
  return *slot;
}

int DeviceCount() {
  const Driver* d = GetDriver();
  int count = 0;
  return d && d->device_count(&count) == 0 ? count : 0;
}

std::optional<Device> ParseDevice(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  if (kind == "cpu") return Device{};
  if (kind == "meta") return Device{DeviceKind::kMeta};
  if (kind != "cuda") return std::nullopt;
  int index = 0;
  if (colon != std::string_view::npos) {
    for (char c : text.substr(colon + 1)) index = index * 10 + (c - '0');
  } else if (DeviceCount() != 1) {
    return std::nullopt;
  }
  return Device{DeviceKind::kCuda, static_cast<int16_t>(index)};
}

bool PushContext(const Driver& d, const DeviceInfo& device) {
  Context now = nullptr;
  if (d.ctx_current(&now) == 0 && now == device.context) return false;
  Check(d, d.ctx_push(device.context), "cuCtxPushCurrent");
  return now != nullptr;  // a thread without one keeps it, as with the CUDA runtime
}

void PopContext(const Driver& d) {
  Context ignored;
  d.ctx_pop(&ignored);
}

}  // namespace framejit::runtime::cuda
