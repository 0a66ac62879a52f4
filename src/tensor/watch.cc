// Did anybody write to a weight since we have made something of it? Torch counts writes through tensors that share a
// version counter. What that does not see is found in other ways:
//   - `p.data` and raw views (numpy(), data_ptr(), storages, DLPack): the entry points of torch's own method tables are
//     replaced by ours, which note the storage and call on. A view that is still alive shows in the storage's reference
//     count, memory that is not torch's own (from_numpy, shared between processes, mapped files) in its deleter: both
//     mean that the weight is not watched at all;
//   - small tensors (statistics, biases) are compared as a whole, of large ones some elements: that finds what C code
//     writes through an address that it has kept.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "diag/diag.h"
#include "tensor/call_step.h"
#include "tensor/no_collection.h"
#include "tensor/run_context.h"
#include "tensor/segment_node.h"
#include "tensor/torch_host.h"

namespace framejit::tensor {
namespace {

constexpr int64_t kWhole = 16 << 10;  // bytes that are compared as a whole
constexpr int kSamples = 32;
constexpr int kStorageCount = 8;  // offset of the reference count in StorageImpl, behind the table of virtual functions
constexpr int kStorageBytes = 112;

// --- storages that somebody watches
struct Exposure {
  std::atomic<uint64_t> times{0};
};
struct Watched {
  std::mutex mu;
  std::unordered_map<void*, std::weak_ptr<Exposure>> storages;
  std::atomic<size_t> size{0};
};
Watched& Storages() {
  static auto* w = new Watched();
  return *w;
}

std::shared_ptr<Exposure> Enroll(void* storage) {
  Watched& w = Storages();
  std::lock_guard lock(w.mu);
  std::weak_ptr<Exposure>& at = w.storages[storage];
  std::shared_ptr<Exposure> e = at.lock();
  if (!e) at = e = std::make_shared<Exposure>();
  w.size = w.storages.size();
  return e;
}
void Leave(void* storage) {
  Watched& w = Storages();
  std::lock_guard lock(w.mu);
  auto it = w.storages.find(storage);
  if (it != w.storages.end() && it->second.expired()) w.storages.erase(it);
  w.size = w.storages.size();
}

void Expose(PyObject* tensor) {
  Watched& w = Storages();
  if (!w.size) return;
  const TorchApi& t = *bound_torch;
  if (!PyObject_TypeCheck(tensor, t.tensor->tp_base) || !ImplOf(tensor)) return;
  void* storage = Field<void*>(ImplOf(tensor), t.at.storage);
  std::lock_guard lock(w.mu);
  auto it = w.storages.find(storage);
  if (it == w.storages.end()) return;
  if (auto e = it->second.lock()) ++e->times;
}

// --- the entry points
bool Writable(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t low = 0, high = 0;
    char dash = 0;
    std::string mode;
    std::istringstream in(line);
    in >> std::hex >> low >> dash >> high >> mode;
    const auto a = reinterpret_cast<uintptr_t>(address);
    if (a >= low && a + sizeof(void*) <= high) return mode.size() > 1 && mode[1] == 'w';
  }
  return false;
}

getter get_data;
setter set_data;
PyObject* GetData(PyObject* self, void* closure) {
  Expose(self);
  KeepContent(self);
  return get_data(self, closure);
}
int SetData(PyObject* self, PyObject* value, void* closure) {
  Expose(self);
  KeepMemory(self);
  return set_data(self, value, closure);
}

PyCFunction detach;
PyObject* Detach(PyObject* self, PyObject* none) {
  PyObject* result = detach(self, none);
  if (result) NoteDetached(self);
  return result;
}
PyCFunctionWithKeywords detach_function;  // torch.detach_
PyObject* DetachFirst(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* result = detach_function(self, args, kwargs);
  if (result) NoteDetached(result);
  return result;
}

// Methods of tensors expose their self, and functions of torch._C that export DLPack their first argument.
struct EntryPoint {
  const char* name;
  bool method;
};
constexpr EntryPoint kEntryPoints[] = {{"numpy", true},
                                       {"data_ptr", true},
                                       {"untyped_storage", true},
                                       {"_to_dlpack", false},
                                       {"_to_dlpack_versioned", false}};
PyCFunction originals[std::size(kEntryPoints)];
template <int I>
void ExposeFor(PyObject* self, PyObject* args) {
  if constexpr (kEntryPoints[I].method)
    Expose(self);
  else
    Expose(PyTuple_Check(args) && PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : args);
}
template <int I>
PyObject* Enter(PyObject* self, PyObject* args) {
  ExposeFor<I>(self, args);
  return originals[I](self, args);
}
template <int I>
PyObject* EnterWithKeywords(PyObject* self, PyObject* args, PyObject* kwargs) {
  ExposeFor<I>(self, args);
  return reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void (*)()>(originals[I]))(self, args, kwargs);
}

template <int I>
bool Replace(PyMethodDef* def) {
  const int kind = def->ml_flags & (METH_VARARGS | METH_KEYWORDS | METH_NOARGS | METH_O | METH_FASTCALL | METH_METHOD);
  const bool known =
      kind == METH_NOARGS || kind == METH_O || kind == METH_VARARGS || kind == (METH_VARARGS | METH_KEYWORDS);
  if (!known || !Writable(&def->ml_meth)) return false;
  originals[I] = def->ml_meth;
  def->ml_meth = kind & METH_KEYWORDS
                     ? reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(EnterWithKeywords<I>))
                     : Enter<I>;
  return true;
}

template <int I>
bool ReplaceEntryPoint(PyObject* dict, PyObject* module) {
  if constexpr (kEntryPoints[I].method) {
    Ref d(PyMapping_GetItemString(dict, kEntryPoints[I].name));
    return d && Py_TYPE(d.get()) == &PyMethodDescr_Type &&
           Replace<I>(reinterpret_cast<PyMethodDescrObject*>(d.get())->d_method);
  } else {
    Ref f(PyObject_GetAttrString(module, kEntryPoints[I].name));
    if (!f) return PyErr_Clear(), true;  // a version that does not have it
    return PyCFunction_Check(f.get()) && Replace<I>(reinterpret_cast<PyCFunctionObject*>(f.get())->m_ml);
  }
}
template <size_t... I>
bool ReplaceEntryPoints(PyObject* dict, PyObject* module, std::index_sequence<I...>) {
  return (ReplaceEntryPoint<I>(dict, module) && ...);
}

// Who holds a storage: its tensors and, once it was asked for, a Python object, which lives as long as the storage does
// and (by version of torch) counts as a holder or not.
struct Holding {
  int object = -1;  // offset of the Python object in StorageImpl
  uint32_t counts = 0;
  Py_ssize_t references = 0;  // of that object, if nobody else has it
};
Holding& HowHeld() {
  static Holding h;
  return h;
}

uint32_t UseCount(const TorchApi& t, Impl impl) {
  return static_cast<uint32_t>(Field<uint64_t>(Field<void*>(impl, t.at.storage), kStorageCount));
}

bool HeldOnce(const TorchApi& t, Impl impl) {
  const Holding& h = HowHeld();
  auto* object = Field<PyObject*>(Field<void*>(impl, t.at.storage), h.object);
  return UseCount(t, impl) == 1 + (object ? h.counts : 0) && (!object || Py_REFCNT(object) == h.references);
}

bool CountsUses(const TorchApi& t) {
  Ref a(PyObject_CallMethod(t.module, "empty", "i", 8));
  if (!a || UseCount(t, ImplOf(a.get())) != 1) return false;
  Ref b(PyObject_CallMethod(a.get(), "detach", nullptr));
  if (!b || UseCount(t, ImplOf(a.get())) != 2) return false;
  b = Ref();
  if (UseCount(t, ImplOf(a.get())) != 1) return false;
  void* storage = Field<void*>(ImplOf(a.get()), t.at.storage);
  Holding& h = HowHeld();
  Ref object(PyObject_CallMethod(a.get(), "untyped_storage", nullptr));
  const int end = static_cast<int>(std::min<size_t>(kStorageBytes, malloc_usable_size(storage)));
  for (int o = 8; object && o + 8 <= end; o += 8) {
    if (Field<PyObject*>(storage, o) == object.get()) h.object = o;
  }
  if (h.object < 0) return false;
  PyObject* seen = object.get();
  object = Ref();
  if (Field<PyObject*>(storage, h.object) != seen) return false;
  h.counts = UseCount(t, ImplOf(a.get())) - 1;
  h.references = Py_REFCNT(seen);
  Ref fresh(PyObject_CallMethod(t.module, "empty", "i", 8));
  if (!fresh || !HeldOnce(t, ImplOf(fresh.get())) || !HeldOnce(t, ImplOf(a.get())) || h.counts > 1) return false;
  object = Ref(PyObject_CallMethod(a.get(), "untyped_storage", nullptr));
  return object && !HeldOnce(t, ImplOf(a.get()));
}

// These run once, with the GIL.
bool SeesData(const TorchApi& t) {
  static const bool installed = [&] {
    NoCollection pause;
    SavedError saved;
    Ref dict(PyObject_GetAttrString(reinterpret_cast<PyObject*>(t.tensor->tp_base), "__dict__"));
    Ref data(dict ? PyMapping_GetItemString(dict.get(), "data") : nullptr);
    Ref method(data ? PyMapping_GetItemString(dict.get(), "detach_") : nullptr);
    PyErr_Clear();
    if (method && Py_TYPE(method.get()) == &PyMethodDescr_Type) {
      PyMethodDef* def = reinterpret_cast<PyMethodDescrObject*>(method.get())->d_method;
      if (def->ml_flags == METH_NOARGS && Writable(&def->ml_meth)) detach = std::exchange(def->ml_meth, Detach);
    }
    Ref function(ResolveCallee("torch.detach_"));
    PyErr_Clear();
    if (function && PyCFunction_Check(function.get())) {
      PyMethodDef* def = reinterpret_cast<PyCFunctionObject*>(function.get())->m_ml;
      if ((def->ml_flags & ~METH_STATIC) == (METH_VARARGS | METH_KEYWORDS) && Writable(&def->ml_meth)) {
        const auto own = reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(DetachFirst));
        const auto was = reinterpret_cast<void (*)()>(std::exchange(def->ml_meth, own));
        detach_function = reinterpret_cast<PyCFunctionWithKeywords>(was);
      }
    }
    if (!data || Py_TYPE(data.get()) != &PyGetSetDescr_Type) return false;
    PyGetSetDef* def = reinterpret_cast<PyGetSetDescrObject*>(data.get())->d_getset;
    if (!def->get || !def->set || !Writable(&def->get)) return false;
    get_data = std::exchange(def->get, GetData);
    set_data = std::exchange(def->set, SetData);
    return true;
  }();
  return installed;
}

bool SeesExposures(const TorchApi& t) {
  static const bool installed = [&] {
    NoCollection pause;
    SavedError saved;
    if (!t.at.all() || !t.version || !t.inplace_key || !CountsUses(t)) return PyErr_Clear(), false;
    Ref dict(PyObject_GetAttrString(reinterpret_cast<PyObject*>(t.tensor->tp_base), "__dict__"));
    const bool ok = dict && SeesData(t) &&
                    ReplaceEntryPoints(dict.get(), t.c_module, std::make_index_sequence<std::size(kEntryPoints)>());
    PyErr_Clear();
    return ok;
  }();
  return installed;
}

// --- the watch
class Watch : public MemoryWatch {
 public:
  // pin: keeps the address of the tensor's implementation (not its memory) from being used again.
  Watch(const TorchApi& t, const Buffer& b, int64_t bytes, Ref pin)
      : t_(t),
        impl_(b.handle),
        storage_(Field<void*>(impl_, t.at.storage)),
        data_(b.data),
        bytes_(bytes),
        pin_(std::move(pin)) {
    exposure_ = Enroll(storage_);
    times_ = exposure_->times;
    version_ = t.version(&impl_);
    content_.resize(bytes_ <= kWhole ? bytes_ : kSamples * sizeof(uint32_t));
    Sample(content_.data());
  }
  ~Watch() override {
    exposure_.reset();
    Leave(storage_);
    if (!Py_IsInitialized()) {
      pin_.release();
      return;
    }
    const PyGILState_STATE state = PyGILState_Ensure();
    pin_ = Ref();
    PyGILState_Release(state);
  }

  bool Unchanged(const Buffer& b) override {
    if (b.handle != impl_ || b.data != data_ || Field<void*>(impl_, t_.at.storage) != storage_) return false;
    if (exposure_->times.load(std::memory_order_relaxed) != times_ || !HeldOnce(t_, impl_)) return false;
    if (t_.version(&impl_) != version_) return false;
    if (bytes_ <= kWhole) return !std::memcmp(data_, content_.data(), bytes_);
    std::byte now[kSamples * sizeof(uint32_t)];
    Sample(now);
    return !std::memcmp(now, content_.data(), sizeof now);
  }

 private:
  void Sample(std::byte* to) const {
    const auto* from = static_cast<const std::byte*>(data_);
    if (bytes_ <= kWhole) {
      std::memcpy(to, from, bytes_);
      return;
    }
    uint64_t x = bytes_;
    for (int i = 0; i < kSamples; ++i) {
      x = x * 6364136223846793005ull + 1442695040888963407ull;
      const int64_t word = static_cast<int64_t>((x >> 33) % (bytes_ / sizeof(uint32_t)));
      std::memcpy(to + i * sizeof(uint32_t), from + word * sizeof(uint32_t), sizeof(uint32_t));
    }
  }

  const TorchApi& t_;
  Impl impl_;
  void* storage_;
  void* data_;
  int64_t bytes_;
  Ref pin_;
  std::shared_ptr<Exposure> exposure_;
  uint64_t times_ = 0;
  int64_t version_ = 0;
  std::vector<std::byte> content_;
};

}  // namespace

int GiveData(PyObject* tensor, PyObject* value) {
  return set_data ? set_data(tensor, value, nullptr) : PyObject_SetAttr(tensor, Interned(kData), value);
}

void WatchTensors() {
  SeesData(*bound_torch);
}

std::unique_ptr<MemoryWatch> WatchTorch(const TorchApi& t, const Buffer& b) {
  HoldGil gil;
  auto no = [](const char* why) {
    if (diag::Enabled(diag::Channel::perf_)) diag::Log(diag::Channel::perf_, std::string("a weight ") + why);
    return nullptr;
  };
  if (!SeesExposures(t) || !b.handle || !b.data || b.device.kind != DeviceKind::kCpu)
    return no("cannot be watched: this torch is built in another way than expected");
  if (!(Field<uint64_t>(b.handle, t.at.key_set) & t.inplace_key)) return no("is an inference tensor: has no version");
  if (!HasOrdinaryMemory(t, b.handle)) return no("lies in memory that is not torch's own");
  if (!HeldOnce(t, b.handle)) return no("shares its memory with another tensor");
  int64_t numel = 1, last = 0;
  for (int d = 0; d < b.rank; ++d) {
    numel *= b.sizes[d];
    last += (b.sizes[d] - 1) * b.strides[d];
  }
  if (numel == 0 || last + 1 != numel) return no("does not fill its memory");
  SavedError saved;
  Handle shared = nullptr;
  if (t.new_tensor_handle(const_cast<void**>(&b.handle), &shared)) return nullptr;
  Ref tensor(WrapTorch(t, TakeHandle(t, shared)));
  Ref pin(tensor ? PyObject_CallMethod(t.c_module, "_WeakTensorRef", "O", tensor.get()) : nullptr);
  PyErr_Clear();
  if (!pin) return no("cannot be referenced weakly");
  return std::make_unique<Watch>(t, b, numel * DTypeSize(b.dtype), std::move(pin));
}

}  // namespace framejit::tensor
