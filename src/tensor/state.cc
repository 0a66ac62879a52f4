// The thread state that a compiled torch program depends on, and dtype objects. Words of TorchState:
//   0, 1  local dispatch keys included, excluded (raw thread-local words; autocast, functorch, dispatch modes show
//   here) 2     flags, see Flag 3     function-mode stack length (torch.device(...) contexts are such modes),
//   dispatch-mode stack length 4     default dtype, autocast dtypes of CPU and CUDA 5
//   deterministic algorithms 6, 7  which mode objects: function modes, dispatch modes (a hash; 0: none). Capture
//   declines while there are any, but for the default device alone: it counts as no mode, word 6 says which device.
// Not seen: float32 matmul precision, TF32 and cuDNN switches: they change digits, not meaning, and the library calls
// of a compiled graph read them when they run (asking torch for the precision alone costs 46 ns).
#include <absl/cleanup/cleanup.h>
#include <dlfcn.h>

#include <bit>
#include <cstdio>

#include "tensor/autocast.h"
#include "tensor/import.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

enum Flag : uint64_t {
  kGrad = 1,
  kInference = 2,
  kForwardLevel = 4,
  kFunctionsDisabled = 8,
  kAutocastCacheOff = 16,
  kUnreadable = 32,
  kAnomaly = 64,
  kAutocastEntered = 128,
};

// Calls into torch._C for what has no symbol.
bool PythonFlag(const TorchApi& t, const char* name) {
  SavedError saved;
  Ref r(PyObject_CallMethod(t.c_module, name, nullptr));
  if (!r) PyErr_Clear();
  return r && r.get() == Py_True;
}

// Is the thread inside of torch.vmap, torch.func.grad and the like?
bool FunctorchLevel(const TorchApi& t) {
  SavedError saved;
  Ref functorch(PyObject_GetAttrString(t.c_module, "_functorch"));
  Ref level(functorch ? PyObject_CallMethod(functorch.get(), "maybe_current_level", nullptr) : nullptr);
  if (!level) PyErr_Clear();
  return level && level.get() != Py_None;
}

// torch.autograd.detect_anomaly(): each operation remembers its line, and is asked for not-a-numbers.
bool AnomalyMode() {
  static const bool* on = [] {
    void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library ? static_cast<const bool*>(dlsym(library, "_ZN5torch8autograd11AnomalyMode8_enabledE")) : nullptr;
  }();
  return on && *on;
}

// What only regions of autocast want of torch.
struct AutocastCalls {
  int32_t (*enter)() = nullptr;
  int32_t (*leave)() = nullptr;
  void (*set_dtype)(int8_t device, int8_t type) = nullptr;
  void (*set_cache)(bool) = nullptr;
  TensorValue (*cast)(int8_t type, Handle tensor, int8_t device) = nullptr;
  bool all() const { return enter && leave && set_dtype && set_cache && cast; }
};
const AutocastCalls& Autocasts() {
  static const AutocastCalls calls = [] {
    AutocastCalls c;
    void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    const auto find = [&]<class F>(F& f, const char* name) {
      f = library ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
    };
    find(c.enter, "_ZN2at8autocast17increment_nestingEv");
    find(c.leave, "_ZN2at8autocast17decrement_nestingEv");
    find(c.set_dtype, "_ZN2at8autocast18set_autocast_dtypeEN3c1010DeviceTypeENS1_10ScalarTypeE");
    find(c.set_cache, "_ZN2at8autocast26set_autocast_cache_enabledEb");
    find(c.cast, "_ZN2at8autocast11cached_castEN3c1010ScalarTypeERKNS_6TensorENS1_10DeviceTypeE");
    return c;
  }();
  return calls;
}

constexpr int8_t kCpu = 0, kCuda = 1;

// The bit of a device's autocast in the second word, which torch stores xored with its default (off): found by turning
// it around. 0: not to be had.
uint64_t AutocastBit(const TorchApi& t, int device) {
  static std::array<uint64_t, 2> bits = [&t] {
    std::array<uint64_t, 2> found = {0, 0};
    const uint64_t* keys = Words(t).keys;
    SavedError saved;
    for (int d = 0; keys && d < 2; ++d) {
      const char* name = d ? "cuda" : "cpu";
      Ref was(PyObject_CallMethod(t.module, "is_autocast_enabled", "s", name));
      if (!was) {
        PyErr_Clear();
        continue;
      }
      const bool on = was.get() == Py_True;
      const uint64_t before[] = {keys[0], keys[1]};
      Ref turned(PyObject_CallMethod(t.module, "set_autocast_enabled", "sO", name, on ? Py_False : Py_True));
      const uint64_t bit = keys[1] ^ before[1];
      const bool good = turned && keys[0] == before[0] && std::has_single_bit(bit) && ((before[1] & bit) != 0) == on;
      Ref back(PyObject_CallMethod(t.module, "set_autocast_enabled", "sO", name, on ? Py_True : Py_False));
      PyErr_Clear();
      if (good && back && keys[1] == before[1]) found[d] = bit;
    }
    return found;
  }();
  return bits[device];
}

// Identities of a stack of mode objects: at(i) is a shared_ptr to a struct that begins with the PyObject*.
uint64_t ModeIdentities(int64_t n, void** (*at)(int64_t)) {
  uint64_t h = n;
  for (int64_t i = 0; at && i < n; ++i) {
    void** holder = static_cast<void**>(*at(i));
    h = (h ^ reinterpret_cast<uint64_t>(holder ? *holder : nullptr)) * 0x9E3779B97F4A7C15u;
  }
  return h;
}

// The device object of a mode that is torch's default device (torch.set_default_device, `with torch.device(...)`), or
// null. Borrowed.
PyObject* DefaultDeviceOf(PyObject* mode) {
  static PyTypeObject* context = nullptr;
  static PyObject* const name = PyUnicode_InternFromString("device");
  if (!context) {
    if (strcmp(Py_TYPE(mode)->tp_name, "DeviceContext")) return nullptr;
    SavedError saved;
    Ref module(Import("torch.utils._device"));
    Ref type(module ? PyObject_GetAttrString(module.get(), "DeviceContext") : nullptr);
    if (!type) return PyErr_Clear(), nullptr;
    context = reinterpret_cast<PyTypeObject*>(type.release());
  }
  PyObject** dict = Py_IS_TYPE(mode, context) ? _PyObject_GetDictPtr(mode) : nullptr;
  PyObject* device = dict && *dict ? PyDict_GetItemWithError(*dict, name) : nullptr;
  return device && !strcmp(Py_TYPE(device)->tp_name, "torch.device") ? device : nullptr;
}

// Gives the only function mode if it is a default device, else null. It is borrowed.
PyObject* DefaultDevice(const TorchApi& t, int64_t functions) {
  if (functions != 1 || !t.function_mode_at) return nullptr;
  void** holder = static_cast<void**>(*t.function_mode_at(0));
  return holder && *holder ? DefaultDeviceOf(static_cast<PyObject*>(*holder)) : nullptr;
}

// A key of torch.library's set of kernels, as `aten/add.Tensor/CPU`: is the kernel a function of Python from outside of
// torch, and computes something? Kernels of `Meta` tell sizes alone.
bool ReplacesTorch(const TorchApi& t, std::string_view key) {
  if (!key.starts_with("aten/") || key.ends_with("/Meta")) return false;
  const size_t slash = key.rfind('/');
  const std::string op = "aten::" + std::string(key.substr(5, slash - 5));
  const std::string line = "\n" + std::string(key.substr(slash + 1)) + ": registered at ";
  Ref told(PyObject_CallMethod(t.c_module, "_dispatch_dump", "s", op.c_str()));
  const char* text = told ? PyUnicode_AsUTF8(told.get()) : nullptr;
  const char* at = text ? strstr(text, line.c_str()) : nullptr;
  const std::string_view kernel = at ? std::string_view(at + 1, strcspn(at + 1, "\n")) : std::string_view();
  return kernel.ends_with("(none) [ boxed ]") && kernel.find("/torch/_") == kernel.npos;
}

// The number of torch's own operators for which the program registered kernels in Python (torch.library.Library("aten",
// "IMPL")): no graph knows what they compute. They are counted where a kernel came or went since.
uint64_t ReplacedOperators(const TorchApi& t) {
  static PyObject* const kernels = [] {
    SavedError saved;
    Ref library(Import("torch.library"));
    PyObject* all = library ? PyObject_GetAttrString(library.get(), "_impls") : nullptr;
    PyErr_Clear();
    return all;
  }();
  static PySetObject seen{};  // Its counts and the address of its table: what is put in takes a place that was empty.
  static uint64_t replaced = 0;
  if (!kernels || !PySet_CheckExact(kernels)) return replaced;
  const auto* now = reinterpret_cast<const PySetObject*>(kernels);
  if (now->used == seen.used && now->fill == seen.fill && now->table == seen.table) [[likely]]
    return replaced;
  SavedError saved;
  seen.used = now->used, seen.fill = now->fill, seen.table = now->table;
  replaced = 0;
  Ref all(PySequence_List(kernels));
  for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all.get()); ++i) {
    const char* key = PyUnicode_AsUTF8(PyList_GET_ITEM(all.get(), i));
    replaced += key && ReplacesTorch(t, key);
  }
  PyErr_Clear();
  return replaced;
}

}  // namespace

std::string DefaultDevice() {
  const TorchApi* t = Torch();
  PyObject* device = t && t->function_modes ? DefaultDevice(*t, t->function_modes()) : nullptr;
  SavedError saved;
  Ref text(device ? PyObject_Str(device) : nullptr);
  const char* c = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (!c) PyErr_Clear();
  return c ? c : "";
}

// By this thread's words, for who has them already.
static inline ModeState ModeOf(const TorchApi& t, const ThreadWords& words) {
  ModeState m;
  if (const uint8_t* bits = words.autograd) [[likely]] {
    m.grad = *bits & 1;
    m.inference = *bits >> 1 & 1;
    return m;
  }
  m.grad = t.grad_enabled ? t.grad_enabled() : PythonFlag(t, "is_grad_enabled");
  m.inference = t.inference_enabled ? t.inference_enabled() : PythonFlag(t, "is_inference_mode_enabled");
  return m;
}

ModeState ReadMode() {
  const TorchApi* t = Torch();
  return t ? ModeOf(*t, Words(*t)) : ModeState();
}

ModeState ReadModeForCapture() {
  ModeState m = ReadMode();
  const TorchApi* t = Torch();
  if (!t) return m;
  const TorchState s = ReadTorchState();
  m.default_float = FromScalarType(s.words[4] & 0xff).value_or(m.default_float);
  m.autocast.cache = !(s.words[2] & kAutocastCacheOff);
  for (int d = 0; d < 2; ++d) {
    m.autocast.dtype[d] = FromScalarType(s.words[4] >> (8 + 8 * d) & 0xff).value_or(m.autocast.dtype[d]);
    m.autocast.on[d] = s.words[1] && s.words[1] & AutocastBit(*t, d);
  }
  return m;
}

[[gnu::hot]] AutocastOff::AutocastOff() {
  const TorchApi* t = bound_torch;
  uint64_t* keys = t ? Words(*t).keys : nullptr;
  if (!keys || !keys[1]) [[likely]]
    return;
  was_ = keys[1] & (AutocastBit(*t, 0) | AutocastBit(*t, 1));
  keys[1] &= ~was_;
}

[[gnu::hot]] AutocastOff::~AutocastOff() {
  if (was_) Words(*bound_torch).keys[1] |= was_;
}

bool InAutocastRegion() {
  const AutocastCalls& calls = Autocasts();
  if (!calls.enter || !calls.leave) return false;
  calls.enter();
  return calls.leave() > 0;
}

PyObject* CastOfRegion(PyObject* leaf, DType to) {
  const TorchApi& t = *Torch();
  const AutocastCalls& calls = Autocasts();
  if (!calls.all() || !t.autocast_dtype || !t.autocast_cache || !t.at.all())
    return PyErr_SetString(PyExc_RuntimeError, "framejit: torch's casts are not known"), nullptr;
  Impl impl = ImplOf(leaf);
  const int8_t device = Field<const int8_t>(impl, t.at.device), type = t.dtypes[static_cast<int>(to)].number;
  // The program may have set these for a region inside of this one.
  const int8_t was = t.autocast_dtype(device);
  const bool cached = t.autocast_cache();
  calls.set_dtype(device, type);
  calls.set_cache(true);
  const absl::Cleanup back = [&] {
    calls.set_dtype(device, was);
    calls.set_cache(cached);
  };
  try {
    return WrapTorch(t, calls.cast(type, &impl, device).impl);
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
    return nullptr;
  }
}

void SetGradMode(bool on) {
  const TorchApi* t = Torch();
  if (!t) return;
  if (t->set_grad_enabled) return t->set_grad_enabled(on);
  SavedError saved;
  Ref r(PyObject_CallMethod(t->c_module, "_set_grad_enabled", "O", on ? Py_True : Py_False));
  PyErr_Clear();
}

[[gnu::hot]] TorchState ReadTorchState() {
  TorchState s{};
  const TorchApi* t = Torch();
  if (!t) return s;
  const ThreadWords& words = Words(*t);
  const uint64_t* keys = words.keys;
  uint64_t flags = 0;
  if (keys) {
    s.words[0] = keys[0];
    s.words[1] = keys[1] & ~t->names_key;
  } else {
    flags |= kUnreadable;
  }
  const ModeState mode = ModeOf(*t, words);
  flags |= (mode.grad ? kGrad : 0) | (mode.inference ? kInference : 0) | (ForwardLevelOpen(*t) ? kForwardLevel : 0);
  if (AnomalyMode()) flags |= kAnomaly;
  if (t->function_disabled && t->function_disabled() != 0) flags |= kFunctionsDisabled;
  int64_t functions = t->function_modes ? t->function_modes() : 0, dispatches = 0;
  // A dispatch mode switches dispatch keys on: without any there is none.
  if ((!keys || keys[0]) && t->dispatch_modes) dispatches = t->dispatch_modes();
  if (functions | dispatches) [[unlikely]] {
    PyObject* device = dispatches ? nullptr : DefaultDevice(*t, functions);
    if (device) functions = 0;
    s.words[3] = static_cast<uint64_t>(functions) << 32 | static_cast<uint64_t>(dispatches);
    // c10::Device lies behind the object's head: its type and index, a byte each.
    s.words[6] = device ? 1 + *reinterpret_cast<const uint16_t*>(reinterpret_cast<const PyObject*>(device) + 1)
                        : ModeIdentities(functions, t->function_mode_at);
    s.words[7] = ModeIdentities(dispatches, t->dispatch_mode_at);
  }
  s.words[4] = t->default_dtype ? static_cast<uint8_t>(t->default_dtype()) : 0;
  if (t->autocast_dtype) {  // also while it is off: a program that turns it on may take them as they are
    s.words[4] |= static_cast<uint64_t>(static_cast<uint8_t>(t->autocast_dtype(kCpu))) << 8 |
                  static_cast<uint64_t>(static_cast<uint8_t>(t->autocast_dtype(kCuda))) << 16;
    if (t->autocast_cache && !t->autocast_cache()) flags |= kAutocastCacheOff;
    if (InAutocastRegion()) flags |= kAutocastEntered;
  }
  if (t->context) {
    if (t->deterministic) s.words[5] |= t->deterministic(t->context) ? 1 : 0;
    if (t->deterministic_warn) s.words[5] |= t->deterministic_warn(t->context) ? 2 : 0;
  }
  s.words[5] |= ReplacedOperators(*t) << 8;
  s.words[2] = flags;
  return s;
}

bool SavedTensorHooks() {
  const TorchApi* t = bound_torch;
  if (!t) return false;
  SavedError saved;
  static PyObject* top = [&] {
    Ref autograd(PyObject_GetAttrString(t->c_module, "_autograd"));
    return autograd ? PyObject_GetAttrString(autograd.get(), "_top_saved_tensors_default_hooks") : nullptr;
  }();
  Ref hooks(top ? PyObject_CallOneArg(top, Py_False) : nullptr);
  if (!hooks) PyErr_Clear();
  return hooks && hooks.get() != Py_None;
}

const std::string& CaptureObstacle() {
  thread_local TorchState last{{~0ull}};
  thread_local std::string obstacle;
  if (!bound_torch) return obstacle;  // binding may run Python code
  static const std::string hooks = "there are hooks on saved tensors";
  if (SavedTensorHooks()) return hooks;
  TorchState s = ReadTorchState();
  if (s == last) return obstacle;
  last = s;
  obstacle.clear();
  const TorchApi* t = bound_torch;
  uint64_t keys = s.words[0] | s.words[1];
  if (s.words[3])
    obstacle = "a function or dispatch mode of torch is active";
  else if (s.words[2] & kForwardLevel)
    obstacle = "forward-mode differentiation is active";
  else if (s.words[2] & kAnomaly)
    obstacle = "anomalies of gradients are looked for";
  else if (s.words[5] >> 8)
    obstacle = "an operator of torch's own has a kernel in Python";
  else if (s.words[2] & kFunctionsDisabled)
    obstacle = "__torch_function__ is disabled";
  else if (keys || s.words[2] & kUnreadable) {  // inference mode shows here too
    if (s.words[1]) keys = s.words[0] | (s.words[1] & ~(AutocastBit(*t, 0) | AutocastBit(*t, 1)));
    if (s.words[2] & kUnreadable && PythonFlag(*t, "_is_any_autocast_enabled"))
      obstacle = "autocast is active";
    else if (keys && !(s.words[2] & kInference))
      obstacle = "dispatch is changed on this thread (" + DescribeTorchState(s) + ")";
    else if (FunctorchLevel(*t))
      obstacle = "a functorch transform is active";
  }
  return obstacle;
}

std::string DescribeTorchState(const TorchState& s) {
  char buffer[64];
  std::string out;
  auto add = [&](const std::string& text) { out += (out.empty() ? "" : ", ") + text; };
  uint64_t f = s.words[2];
  add(f & kGrad ? "grad" : "no_grad");
  if (f & kInference) add("inference_mode");
  if (f & kForwardLevel) add("forward-mode AD level open");
  if (f & kFunctionsDisabled) add("__torch_function__ disabled");
  if (f & kAnomaly) add("anomaly detection");
  if (f & kAutocastCacheOff) add("autocast cache off");
  if (f & kAutocastEntered) add("in a region of autocast");
  if (s.words[0] || s.words[1]) {
    std::snprintf(buffer, sizeof buffer, "dispatch keys +%llx -%llx", static_cast<unsigned long long>(s.words[0]),
                  static_cast<unsigned long long>(s.words[1]));
    add(buffer);
  }
  if (uint64_t n = s.words[3] >> 32) add("function modes: " + std::to_string(n));
  if (s.words[6] && !(s.words[3] >> 32)) add("a default device (" + std::to_string(s.words[6]) + ")");
  if (uint64_t n = s.words[3] & 0xffffffff) add("dispatch modes: " + std::to_string(n));
  const TorchApi* t = Torch();
  auto dtype = [&](int shift) {
    auto d = t ? FromScalarType(s.words[4] >> shift & 0xff) : std::nullopt;
    return d ? std::string(DTypeName(*d)) : std::string("?");
  };
  add("default dtype " + dtype(0));
  if (s.words[4] >> 8) add("autocast dtypes cpu " + dtype(8) + ", cuda " + dtype(16));
  if (s.words[5] >> 8) add("kernels in Python for " + std::to_string(s.words[5] >> 8) + " operators of torch");
  if (s.words[5] & 1) add(s.words[5] & 2 ? "deterministic algorithms (warn only)" : "deterministic algorithms");
  return out;
}

PyObject* DTypeObject(Framework f, DType d) {
  int i = static_cast<int>(d);
  PyObject* o = nullptr;
  if (f == Framework::kTorch) {
    if (const TorchApi* t = Torch()) o = t->dtypes[i].object;
  } else if (const NumpyApi* n = Numpy()) {
    o = n->descr[i];
  }
  if (!o)
    return PyErr_Format(PyExc_TypeError, "framejit: %s is no dtype of the framework",
                        std::string(DTypeName(d)).c_str());
  return Py_NewRef(o);
}

std::optional<DType> DTypeOf(PyObject* o) {
  if (const TorchApi* t = Torch()) {
    for (int i = 0; i < kNumDTypes; ++i) {
      if (t->dtypes[i].object == o) return static_cast<DType>(i);
    }
  }
  if (const NumpyApi* n = Numpy()) {
    for (int i = 0; i < kNumDTypes; ++i) {
      if (!n->descr[i]) continue;
      if (n->descr[i] == o || reinterpret_cast<PyObject*>(n->scalar[i]) == o) return static_cast<DType>(i);
      if (Py_TYPE(o) == n->descr_types[i]) {  // another object of the same type, perhaps in foreign byte order
        auto* d = reinterpret_cast<NumpyDescr*>(o);
        return d->byteorder == '>' ? std::nullopt : FromTypeNum(d->type_num);
      }
    }
  }
  return std::nullopt;
}

}  // namespace framejit::tensor
