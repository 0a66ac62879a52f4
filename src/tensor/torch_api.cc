// Binding to a torch that the user has imported, and the self-test that finds the fields we read directly.
//
// A guard on a tensor must cost a few nanoseconds, so the hot path reads TensorImpl fields instead of calling torch.
// Nothing promises their places. The self-test makes a handful of tensors with odd sizes, asks *Python* what they are
// (the public answer), and looks for the one offset at which every tensor holds the expected value. No such offset, or
// two: the field is not used and everything built on it goes another way; Doctor() says so.
#include "tensor/torch_api.h"

#include <absl/functional/function_ref.h>
#include <dlfcn.h>
#include <link.h>
#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tensor/tensor.h"

namespace framejit::tensor {

const TorchApi* bound_torch = nullptr;

namespace {

constexpr const char* kDispatchKeys = "_ZN3c104impl26raw_local_dispatch_key_setE";  // a thread-local variable
constexpr int kImplBytes = 192;  // TensorImpl is at least this long in every version
constexpr int kStorageBytes = 64;

struct Probe {
  Ref tensor;
  Impl impl = nullptr;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0, numel = 0, storage = 0, data = 0;
  uint64_t keys = 0;
  int scalar_type = 0, device = 0;
  int autograd = 0;  // AutogradMeta: 0 none, 1 has it, 2 unknown (views may)
};

bool Long(PyObject* o, int64_t* out) {
  Ref r(o);
  if (!r) return false;
  *out = static_cast<int64_t>(PyLong_AsUnsignedLongLongMask(r.get()));
  return !PyErr_Occurred();
}
bool Longs(PyObject* o, std::vector<int64_t>* out) {
  Ref seq(o);
  if (!seq || !PyTuple_Check(seq.get())) return false;
  out->clear();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(seq.get()); ++i) {
    out->push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(seq.get(), i)));
  }
  return !PyErr_Occurred();
}

// These are the public answers about one tensor.
bool Describe(PyObject* dispatch_keys, Probe* p) {
  PyObject* t = p->tensor.get();
  if (!t) return false;
  p->impl = ImplOf(t);
  Ref storage(PyObject_CallMethod(t, "untyped_storage", nullptr)), keys(PyObject_CallOneArg(dispatch_keys, t));
  if (!storage || !keys) return false;
  int64_t raw = 0;
  bool ok = Longs(PyObject_CallMethod(t, "size", nullptr), &p->sizes) &&
            Longs(PyObject_CallMethod(t, "stride", nullptr), &p->strides) &&
            Long(PyObject_CallMethod(t, "storage_offset", nullptr), &p->offset) &&
            Long(PyObject_CallMethod(t, "numel", nullptr), &p->numel) &&
            Long(PyObject_GetAttrString(storage.get(), "_cdata"), &p->storage) &&
            Long(PyObject_CallMethod(storage.get(), "data_ptr", nullptr), &p->data) &&
            Long(PyObject_CallMethod(keys.get(), "raw_repr", nullptr), &raw);
  p->keys = static_cast<uint64_t>(raw);
  return ok;
}

struct Recipe {
  std::vector<int64_t> sizes, strides;
  const char *dtype, *device;
  int scalar_type, device_type, autograd;
  enum Then : uint8_t { kNothing, kSlice, kConjugate } then = kNothing;
  int from = 0, to = 0;  // kSlice; to 0: the end
};

// Asked of torch without source text: its parser would take longer than all the rest.
PyObject* Make(PyObject* empty_strided, const TorchApi& t, const Recipe& r) {
  auto tuple = [](const std::vector<int64_t>& v) {
    Ref out(PyTuple_New(static_cast<Py_ssize_t>(v.size())));
    for (size_t i = 0; out && i < v.size(); ++i)
      PyTuple_SET_ITEM(out.get(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(v[i]));
    return out;
  };
  Ref sizes = tuple(r.sizes), strides = tuple(r.strides), dtype(PyObject_GetAttrString(t.module, r.dtype));
  Ref args(sizes && strides ? PyTuple_Pack(2, sizes.get(), strides.get()) : nullptr);
  Ref kwargs(args && dtype ? Py_BuildValue("{s:O,s:s,s:O}", "dtype", dtype.get(), "device", r.device, "requires_grad",
                                           r.autograd == 1 ? Py_True : Py_False)
                           : nullptr);
  Ref made(kwargs ? PyObject_Call(empty_strided, args.get(), kwargs.get()) : nullptr);
  if (!made || r.then == Recipe::kNothing) return made.release();
  if (r.then == Recipe::kConjugate) return PyObject_CallMethod(made.get(), "conj", nullptr);
  Ref from(PyLong_FromLong(r.from)), to(r.to ? PyLong_FromLong(r.to) : Py_NewRef(Py_None));
  Ref slice(from && to ? PySlice_New(from.get(), to.get(), nullptr) : nullptr);
  return slice ? PyObject_GetItem(made.get(), slice.get()) : nullptr;
}

std::vector<Probe> MakeProbes(const TorchApi& t, std::string* why) {
  const Recipe recipes[] = {
      {{3, 5, 7}, {71, 11, 1}, "int16", "cpu", 2, 0, 2, Recipe::kSlice, 1},
      {{2, 3, 1, 2, 1, 3, 2}, {151, 49, 47, 23, 19, 5, 2}, "float32", "cpu", 6, 0, 0},
      {{13}, {3}, "bfloat16", "cpu", 15, 0, 2, Recipe::kSlice, 3, 9},
      {{}, {}, "float64", "cpu", 7, 0, 0},
      {{4, 6}, {1, 4}, "float32", "cpu", 6, 0, 1},
      {{9, 2}, {2, 1}, "complex64", "cpu", 9, 0, 2, Recipe::kConjugate},
      {{17}, {1}, "int64", "meta", 4, -1, 0},
  };
  std::vector<Probe> probes;
  Ref make(PyObject_GetAttrString(t.module, "empty_strided")),
      keys(PyObject_GetAttrString(t.c_module, "_dispatch_keys"));
  if (!make || !keys) {
    *why = "torch._C._dispatch_keys is missing";
    return {};
  }
  for (const Recipe& r : recipes) {
    Probe p;
    p.tensor = Ref(Make(make.get(), t, r));
    p.scalar_type = r.scalar_type;
    p.device = r.device_type;
    p.autograd = r.autograd;
    if (!Describe(keys.get(), &p)) {
      *why = "probe " + std::to_string(probes.size()) + " failed";
      return {};
    }
    probes.push_back(std::move(p));
  }
  return probes;
}

// How much of a block that `new` or malloc made may be read.
int Readable(const void* block, int most) {
  return static_cast<int>(std::min<size_t>(most, malloc_usable_size(const_cast<void*>(block))));
}

// Gives the only offset (a multiple of `step`) below `limit` at which every probe agrees, or -1 if there is none or
// several.
int FindOffset(const std::vector<Probe>& probes, int limit, int step,
               absl::FunctionRef<bool(const Probe&, const char* at, int left)> agrees) {
  int found = -1;
  for (const Probe& p : probes) limit = Readable(p.impl, limit);
  for (int o = 8; o + step <= limit; o += step) {
    bool all = true;
    for (const Probe& p : probes) all = all && agrees(p, static_cast<const char*>(p.impl) + o, limit - o);
    if (!all) continue;
    if (found >= 0) return -1;
    found = o;
  }
  return found;
}
template <class T>
bool Is(const char* at, T value) {
  return !std::memcmp(at, &value, sizeof(T));
}

void SelfTest(TorchApi& t) {
  std::string why;
  std::vector<Probe> probes = MakeProbes(t, &why);
  PyErr_Clear();
  if (probes.empty()) {
    t.verdicts.emplace_back("torch.fields", why);
    return;
  }
  Offsets& at = t.at;
  at.sizes = FindOffset(probes, kImplBytes, 8, [](const Probe& p, const char* w, int left) {
    constexpr int kInline = 5;
    int64_t rank = static_cast<int64_t>(p.sizes.size());
    if (left < 8 * (1 + 2 * kInline) || !Is(w, rank)) return false;
    if (rank == 0) return true;  // the other probes decide
    const char *sizes = w + 8, *strides = w + 8 + 8 * kInline;
    if (rank > kInline) {
      auto* p7 = *reinterpret_cast<const char* const*>(w + 8);
      if (reinterpret_cast<uintptr_t>(p7) < 4096 || reinterpret_cast<uintptr_t>(p7) % 8) return false;
      sizes = p7;
      strides = p7 + 8 * rank;
    }
    return !std::memcmp(sizes, p.sizes.data(), 8 * rank) && !std::memcmp(strides, p.strides.data(), 8 * rank);
  });
  // Numbers such as 0 and 1 are everywhere; the fields behind the sizes come in a fixed order, so look only there.
  int after = at.sizes < 0 ? 8 : at.sizes + 88;
  auto behind = [&](const char* w, const Probe& p) { return w - static_cast<const char*>(p.impl) >= after; };
  at.offset = FindOffset(probes, kImplBytes, 8,
                         [&](const Probe& p, const char* w, int) { return behind(w, p) && Is(w, p.offset); });
  at.numel = FindOffset(probes, kImplBytes, 8,
                        [&](const Probe& p, const char* w, int) { return behind(w, p) && Is(w, p.numel); });
  at.key_set = FindOffset(probes, kImplBytes, 8,
                          [&](const Probe& p, const char* w, int) { return behind(w, p) && Is(w, p.keys); });
  at.dtype = FindOffset(probes, kImplBytes, 2, [&](const Probe& p, const char* w, int) {
    return behind(w, p) && Is(w, static_cast<uint16_t>(p.scalar_type));
  });
  at.device = FindOffset(probes, kImplBytes, 1, [&](const Probe& p, const char* w, int left) {
    return behind(w, p) && left >= 3 && (p.device == 0 ? w[0] == 0 : w[0] != 0) && w[1] == -1 && w[2] == 1;
  });
  at.storage = FindOffset(probes, kImplBytes, 8, [](const Probe& p, const char* w, int) { return Is(w, p.storage); });
  if (at.storage >= 0) {
    int found = -1, count = 0, limit = kStorageBytes;
    for (const Probe& p : probes) limit = Readable(reinterpret_cast<const void*>(p.storage), limit);
    for (int o = 8; o + 8 <= limit; o += 8) {
      bool all = true;
      for (const Probe& p : probes) all = all && Is(reinterpret_cast<const char*>(p.storage) + o, p.data);
      if (all) {
        if (!count++) found = o;  // data and the deleter's context are often equal: the first is the data
      }
    }
    at.storage_data = found;
  }
  at.autograd = FindOffset(probes, kImplBytes, 8, [&](const Probe& p, const char* w, int) {
    return w - static_cast<const char*>(p.impl) < at.sizes &&
           (p.autograd == 2 || (*reinterpret_cast<void* const*>(w) != nullptr) == (p.autograd == 1));
  });
  if (at.autograd >= 0 && t.requires_grad) {
    for (const Probe& p : probes) {
      if (t.requires_grad(p.impl) && !Field<void*>(p.impl, at.autograd)) at.autograd = -1;
      if (at.autograd < 0) break;
    }
  }
  auto say = [&](const char* name, int offset) {
    t.verdicts.emplace_back(std::string("torch.field.") + name,
                            offset >= 0 ? "ok, offset " + std::to_string(offset) : "not found");
  };
  say("sizes", at.sizes), say("storage_offset", at.offset), say("numel", at.numel), say("dtype", at.dtype);
  say("device", at.device), say("key_set", at.key_set), say("storage", at.storage);
  say("storage_data", at.storage_data), say("autograd_meta", at.autograd);
}

// Grad and inference mode as bits 0 and 1 of a byte we can read: toggle both and look which byte follows. Its place in
// the thread's state, or -1. The state must lie in libc10's thread-local block, next to the dispatch keys; what a
// version that returns by value leaves in the register would not.
int AutogradByte(const TorchApi& t) {
  constexpr int kStateBytes = 32;
  if (!t.autograd_state || !t.set_grad_enabled || !t.grad_enabled || !t.inference_enabled) return -1;
  uint8_t* state = t.autograd_state();
  auto near = reinterpret_cast<intptr_t>(state) - reinterpret_cast<intptr_t>(dlsym(t.c10, kDispatchKeys));
  if (near > 65536 || near < -65536) return -1;
  bool candidate[kStateBytes];
  std::fill_n(candidate, kStateBytes, true);
  auto look = [&] {
    for (int i = 0; i < kStateBytes; ++i)
      candidate[i] = candidate[i] && (state[i] & 1) == t.grad_enabled() && (state[i] >> 1 & 1) == t.inference_enabled();
  };
  bool grad = t.grad_enabled();
  Ref type(PyObject_GetAttrString(t.c_module, "_InferenceMode"));
  Ref guard(type ? PyObject_CallFunction(type.get(), "O", t.inference_enabled() ? Py_False : Py_True) : nullptr);
  for (bool on : {!grad, grad}) t.set_grad_enabled(on), look();
  Ref entered(guard ? PyObject_CallMethod(guard.get(), "__enter__", nullptr) : nullptr);
  if (!entered) return PyErr_Clear(), -1;
  for (bool on : {!grad, grad}) t.set_grad_enabled(on), look();
  Ref left(PyObject_CallMethod(guard.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
  PyErr_Clear();
  t.set_grad_enabled(grad);
  look();
  int found = -1;
  for (int i = 0; i < kStateBytes; ++i) {
    if (candidate[i]) found = found < 0 ? i : kStateBytes;
  }
  return found < kStateBytes ? found : -1;
}

// Bits of the dispatch key set, by name.
bool KeyBits(const TorchApi& t, const char* name, uint64_t* out) {
  Ref key(PyObject_CallMethod(t.c_module, "_parse_dispatch_key", "s", name)),
      set_type(PyObject_GetAttrString(t.c_module, "DispatchKeySet"));
  Ref set(key && key.get() != Py_None && set_type ? PyObject_CallOneArg(set_type.get(), key.get()) : nullptr);
  int64_t raw = 0;
  bool ok = set && Long(PyObject_CallMethod(set.get(), "raw_repr", nullptr), &raw);
  PyErr_Clear();
  *out = static_cast<uint64_t>(raw);
  return ok;
}

void ReadKeys(TorchApi& t) {
  uint64_t bits = 0;
  static constexpr const char* kMayDiffer[] = {"ADInplaceOrView", "AutogradFunctionality", "AutocastCPU",
                                               "AutocastCUDA"};
  for (const char* name : kMayDiffer) {
    if (KeyBits(t, name, &bits)) t.plain_mask |= bits;
  }
  for (const char* name : {"CPU", "CUDA", "Meta"}) {  // these hold Dense and their backend bit
    uint64_t dense = 0;
    if (KeyBits(t, name, &bits) && KeyBits(t, "Dense", &dense)) t.plain_mask |= bits & ~dense, t.plain_keys = dense;
  }
  KeyBits(t, "ADInplaceOrView", &t.inplace_key), KeyBits(t, "AutogradFunctionality", &t.autograd_key);
  KeyBits(t, "Conjugate", &t.conj_key), KeyBits(t, "Negative", &t.neg_key);
  KeyBits(t, "Named", &t.names_key);
  for (const char* name : {"Python", "PythonTLSSnapshot"})
    if (KeyBits(t, name, &bits)) t.python_keys |= bits;
}

// A library that is loaded. dlopen would look for one that is not in every folder it knows.
void* Library(const char* name) {
  struct Search {
    const char* name;
    std::string path;
  } search{name, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& s = *static_cast<Search*>(data);
        const char* slash = std::strrchr(info->dlpi_name, '/');
        if (std::strcmp(slash ? slash + 1 : info->dlpi_name, s.name)) return 0;
        s.path = info->dlpi_name;
        return 1;
      },
      &search);
  return search.path.empty() ? nullptr : dlopen(search.path.c_str(), RTLD_NOLOAD | RTLD_LAZY);
}

bool Bind(TorchApi& t) {
  t.tensor = reinterpret_cast<PyTypeObject*>(Attr(t.module, "Tensor"));
  t.c_module = Attr(t.module, "_C");
  Ref nn(Attr(t.module, "nn")), autograd(Attr(t.module, "autograd"));
  t.parameter = reinterpret_cast<PyTypeObject*>(Attr(nn.get(), "Parameter"));
  t.nn_module = reinterpret_cast<PyTypeObject*>(Attr(nn.get(), "Module"));
  t.disabled_function = Attr(t.c_module, "_disabled_torch_function_impl");
  Ref forward_ad(Attr(autograd.get(), "forward_ad"));
  if (!t.tensor || !t.c_module || !t.parameter || !t.nn_module || !forward_ad) return false;  // still being imported
  t.forward_ad = Py_NewRef(PyModule_GetDict(forward_ad.get()));

  void* cpu = Library("libtorch_cpu.so");
  void* python = Library("libtorch_python.so");
  void* cuda = Library("libtorch_cuda.so");
  t.c10 = Library("libc10.so");
  std::string missing;
#define X(field, library, symbol, result, args)                                                   \
  if (void* lib = library == 't' ? cpu : library == 'c' ? t.c10 : library == 'g' ? cuda : python) \
    *reinterpret_cast<void**>(&t.field) = dlsym(lib, symbol);                                     \
  if (!t.field && (library != 'g' || cuda) && std::strncmp(#field, "wrap_", 5))                   \
    missing += std::string(missing.empty() ? "" : ", ") + #field;
  FRAMEJIT_TORCH_SYMBOLS(X)
#undef X
  t.verdicts.emplace_back("torch.symbols", missing.empty() ? "ok" : "missing: " + missing);
  t.verdicts.emplace_back("torch.wrap", t.wrap_move    ? "ok"
                                        : t.wrap_value ? "by value"
                                        : t.wrap_copy  ? "by copy"
                                                       : "missing");
  if (t.global_context) t.context = t.global_context();
  t.undefined = t.c10 ? dlsym(t.c10, "_ZN3c1019UndefinedTensorImpl10_singletonE") : nullptr;
  for (const ScalarTypeRow& r : kScalarTypes) {
    TorchDType& d = t.dtypes[static_cast<int>(r.dtype)];
    d.number = r.number;
    d.object = Attr(t.module, r.name);
  }
  ReadKeys(t);
  SelfTest(t);
  t.autograd_byte = AutogradByte(t);
  t.verdicts.emplace_back("torch.thread state",
                          t.autograd_byte >= 0 ? "ok, offset " + std::to_string(t.autograd_byte) : "by calls (slow)");
  return true;
}

// Takes the function modes of this thread off torch's stack for a while.
class FunctionModesAside {
 public:
  explicit FunctionModesAside(PyObject* c) : c_(c) {
    int64_t n = 0;
    Long(PyObject_CallMethod(c_, "_len_torch_function_stack", nullptr), &n);
    while (n-- > 0)
      if (Ref mode(PyObject_CallMethod(c_, "_pop_torch_function_stack", nullptr)); mode)
        modes_.push_back(std::move(mode));
    PyErr_Clear();
  }
  FunctionModesAside(const FunctionModesAside&) = delete;
  ~FunctionModesAside() {
    for (; !modes_.empty(); modes_.pop_back())
      if (!Ref(PyObject_CallMethod(c_, "_push_on_torch_function_stack", "O", modes_.back().get()))) PyErr_Clear();
  }

 private:
  PyObject* c_;
  std::vector<Ref> modes_;  // the innermost first
};

}  // namespace

const TorchApi* BindTorch() {
  static Imported module("torch");
  PyObject* torch = module.Get();
  if (!torch) return nullptr;
  SavedError saved;
  static bool binding = false;
  if (binding) return nullptr;
  binding = true;
  static TorchApi api;
  api = TorchApi();
  api.module = Py_NewRef(torch);
  // Modes would see (or fake) the probes: those of functions, of which a default device is one, are set aside, and
  // while one that dispatches is active nothing is bound.
  Ref c(Attr(torch, "_C"));
  Ref dispatch(c ? PyObject_CallMethod(c.get(), "_len_torch_dispatch_stack", nullptr) : nullptr);
  const bool quiet = dispatch && PyLong_AsLong(dispatch.get()) == 0;
  PyErr_Clear();
  if (quiet) {
    const FunctionModesAside aside(c.get());
    if (Bind(api)) bound_torch = &api;
  }
  PyErr_Clear();
  binding = false;
  return bound_torch;
}

void ReleaseImpl(const TorchApi& t, Impl impl) {
  if (!impl) return;
  auto* h = static_cast<Impl*>(::operator new(sizeof(Impl)));  // what `new at::Tensor` makes; torch deletes it
  *h = impl;
  t.delete_tensor(h);
}

Impl TakeHandle(const TorchApi&, Handle h) {
  Impl impl = *static_cast<Impl*>(h);
  ::operator delete(h, sizeof(Impl));
  return impl;
}

PyObject* WrapTorch(const TorchApi& t, Impl impl) {
  Impl v = impl;  // an at::Tensor on our stack; moved from, it holds the undefined singleton
  PyObject* r = t.wrap_move ? t.wrap_move(&v) : t.wrap_value ? t.wrap_value(&v) : t.wrap_copy(&v);
  if (v == impl) ReleaseImpl(t, impl);
  return r;
}

[[gnu::hot]] const ThreadWords& Words(const TorchApi& t) {
  static thread_local ThreadWords words;
  ThreadWords* own = &words;
  asm("" : "+r"(own));  // the compiler would ask for its address twice, each time by a call
  if (!own->keys && t.c10) [[unlikely]] {
    own->keys = static_cast<uint64_t*>(dlsym(t.c10, kDispatchKeys));
    if (t.autograd_byte >= 0) own->autograd = t.autograd_state() + t.autograd_byte;
  }
  return *own;
}

// Every change of a dict gives it a number that no dict had before. 0: this version of CPython (from 3.14 on) has none.
template <typename Dict>
static uint64_t NumberOf(const Dict* dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"  // CPython 3.12 and 3.13 still number them
  if constexpr (requires { dict->ma_version_tag; }) return dict->ma_version_tag;
#pragma GCC diagnostic pop
  return 0;
}

// While the module's dict has the number that it had when no level was open, none is.
[[gnu::hot]] bool ForwardLevelOpen(const TorchApi& t) {
  static uint64_t closed = 0;
  const uint64_t now = NumberOf(reinterpret_cast<PyDictObject*>(t.forward_ad));
  if (now && now == closed) [[likely]]
    return false;
  static PyObject* const name = PyUnicode_InternFromString("_current_level");
  PyObject* level = PyDict_GetItemWithError(t.forward_ad, name);
  if (level && PyLong_Check(level) && PyLong_AsLong(level) >= 0) return true;
  if (level) closed = now;
  return false;
}

}  // namespace framejit::tensor
