// This file says what a tensor object is: Classify, ReadMeta, ReadForGuard. The hot path reads fields (torch_api.h).
// With a field missing the same answers come from Python attributes.
#include "tensor/cupy_api.h"
#include "tensor/import.h"
#include "tensor/numpy_api.h"
#include "tensor/overrides.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

constexpr int kMaxRank = 16;

bool No(const char** why, const char* text) {
  if (why) *why = text;
  return false;
}

// Address range that the elements cover.
inline void SetExtent(Meta* m) {
  int64_t low = 0, high = 0;
  bool empty = false;
  for (int i = 0; i < m->rank; ++i) {
    int64_t reach = (m->sizes[i] - 1) * m->strides[i];
    (reach < 0 ? low : high) += reach;
    empty |= m->sizes[i] == 0;
  }
  int64_t size = DTypeSize(m->dtype);
  char* data = static_cast<char*>(m->data);
  m->low = empty ? data : data + low * size;
  m->nbytes_extent = empty ? 0 : (high + 1) * size;
}

std::optional<DeviceKind> KindOf(int torch_device) {
  switch (torch_device) {
    case 0: return DeviceKind::kCpu;
    case 1: return DeviceKind::kCuda;
    case 14: return DeviceKind::kMeta;
    default: return std::nullopt;
  }
}

const char* WhyNotPlain(const TorchApi& t, uint64_t keys) {
  static constexpr std::pair<const char*, const char*> kReasons[] = {
      {"Conjugate", "a conjugate view"},
      {"Negative", "a negated view"},
      {"ZeroTensor", "a zero tensor"},
      {"Sparse", "a sparse tensor"},
      {"SparseCsr", "a sparse (compressed) tensor"},
      {"Quantized", "a quantized tensor"},
      {"NestedTensor", "a nested tensor"},
      {"FuncTorchBatched", "inside vmap"},
      {"FuncTorchGradWrapper", "inside a functorch transform"},
      {"Functionalize", "a functionalised tensor"},
      {"Python", "a tensor with __torch_dispatch__"},
  };
  for (auto& [name, text] : kReasons) {
    Ref key(PyObject_CallMethod(t.c_module, "_parse_dispatch_key", "s", name));
    Ref set(key ? PyObject_CallMethod(t.c_module, "DispatchKeySet", "O", key.get()) : nullptr);
    Ref raw(set ? PyObject_CallMethod(set.get(), "raw_repr", nullptr) : nullptr);
    if (raw && (keys & PyLong_AsUnsignedLongLongMask(raw.get()))) return text;
    PyErr_Clear();
  }
  return "a special kind of tensor (dispatch keys)";
}

inline void NoteLazy(const TorchApi& t, Meta* m) {
  m->conj = m->key_set & t.conj_key;
  m->neg = m->key_set & t.neg_key;
}

// --- torch, by Python attributes: slow, any version
bool Int(const Ref& r, int64_t* out) {
  if (!r) return false;
  *out = static_cast<int64_t>(PyLong_AsUnsignedLongLongMask(r.get()));
  return !PyErr_Occurred();
}
bool Dims(const Ref& seq, int64_t* out, int* rank) {
  if (!seq || !PyTuple_Check(seq.get()) || PyTuple_GET_SIZE(seq.get()) > kMaxRank) return false;
  *rank = static_cast<int>(PyTuple_GET_SIZE(seq.get()));
  for (int i = 0; i < *rank; ++i) out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(seq.get(), i));
  return !PyErr_Occurred();
}

// allowed: bits of the key set that it may have or not.
bool ReadByAttributes(const TorchApi& t, PyObject* o, uint64_t allowed, Meta* m, const char** why) {
  SavedError saved;
  auto fail = [&](const char* text) {
    PyErr_Clear();
    return No(why, text);
  };
  Ref keys(PyObject_CallMethod(t.c_module, "_dispatch_keys", "O", o));
  int64_t raw;
  if (!keys || !Int(Ref(PyObject_CallMethod(keys.get(), "raw_repr", nullptr)), &raw))
    return fail("dispatch keys cannot be read");
  m->key_set = static_cast<uint64_t>(raw);
  if ((m->key_set & ~allowed) != t.plain_keys) return fail(WhyNotPlain(t, m->key_set));
  int rank2;
  if (!Dims(Ref(PyObject_CallMethod(o, "size", nullptr)), m->sizes, &m->rank) ||
      !Dims(Ref(PyObject_CallMethod(o, "stride", nullptr)), m->strides, &rank2))
    return fail("more than 16 dimensions");
  Ref dtype(PyObject_GetAttrString(o, "dtype"));
  auto d = dtype ? DTypeOf(dtype.get()) : std::nullopt;
  if (!d) return fail("a dtype framejit does not have");
  m->dtype = *d;
  Ref device(PyObject_GetAttrString(o, "device")),
      index(device ? PyObject_GetAttrString(device.get(), "index") : nullptr);
  Ref type(device ? PyObject_GetAttrString(device.get(), "type") : nullptr);
  const char* name = type ? PyUnicode_AsUTF8(type.get()) : nullptr;
  if (!name || !index) return fail("a device framejit does not have");
  std::string_view kind = name;
  if (kind != "cpu" && kind != "cuda" && kind != "meta") return fail("a device framejit does not have");
  m->device.kind = kind == "cpu" ? DeviceKind::kCpu : kind == "cuda" ? DeviceKind::kCuda : DeviceKind::kMeta;
  m->device.index = index.get() == Py_None ? -1 : static_cast<int16_t>(PyLong_AsLong(index.get()));
  int64_t data;
  if (!Int(Ref(PyObject_CallMethod(o, "data_ptr", nullptr)), &data)) return fail("no storage");
  m->data = reinterpret_cast<void*>(data);
  m->handle = ImplOf(o);
  NoteLazy(t, m);
  m->is_inference = t.inplace_key && !(m->key_set & t.inplace_key);
  Ref grad(PyObject_GetAttrString(o, "requires_grad")), leaf(PyObject_GetAttrString(o, "is_leaf"));
  m->requires_grad = grad && grad.get() == Py_True;
  m->has_grad_fn = m->requires_grad && leaf && leaf.get() == Py_False;
  SetExtent(m);
  PyErr_Clear();
  return true;
}

// --- torch, by fields
[[gnu::hot]] inline bool ReadFields(const TorchApi& t, PyObject* o, uint64_t allowed, Meta* m, const char** why) {
  Impl impl = ImplOf(o);
  m->key_set = Field<uint64_t>(impl, t.at.key_set);
  if ((m->key_set & ~allowed) != t.plain_keys) [[unlikely]]
    return why ? No(why, WhyNotPlain(t, m->key_set)) : false;
  auto dtype = FromScalarType(Field<uint16_t>(impl, t.at.dtype));
  if (!dtype) [[unlikely]]
    return No(why, "a dtype framejit does not have");
  m->dtype = *dtype;
  const int8_t* device = &Field<int8_t>(impl, t.at.device);
  if (device[0] == 0) {
    m->device = Device{};
  } else {
    auto kind = KindOf(device[0]);
    if (!kind) return No(why, "a device framejit does not have");
    m->device = Device{*kind, device[1]};
  }
  TorchDims dims = DimsOf(t, impl);
  if (dims.rank > kMaxRank) [[unlikely]]
    return No(why, "more than 16 dimensions");
  m->rank = static_cast<int>(dims.rank);
  int64_t low = 0, high = 0;
  for (int i = 0; i < m->rank; ++i) {
    m->sizes[i] = dims.sizes[i];
    m->strides[i] = dims.strides[i];
    int64_t reach = (dims.sizes[i] - 1) * dims.strides[i];
    (reach < 0 ? low : high) += reach;
  }
  int64_t size = DTypeSize(m->dtype);
  bool empty = Field<int64_t>(impl, t.at.numel) == 0;
  char* data = Field<char*>(Field<void*>(impl, t.at.storage), t.at.storage_data);
  data = empty || !data ? nullptr : data + Field<int64_t>(impl, t.at.offset) * size;
  m->data = data;
  m->low = data + (data ? low * size : 0);
  m->nbytes_extent = empty ? 0 : (high + 1) * size;
  m->handle = impl;
  NoteLazy(t, m);
  m->is_inference = !(m->key_set & t.inplace_key);
  m->has_grad_fn = false;
  m->requires_grad = Field<void*>(impl, t.at.autograd) ? t.requires_grad(impl) : false;
  return true;
}

// Torch tensors in forward-mode differentiation carry a tangent outside of the key set.
bool HasTangent(const TorchApi& t, PyObject* o) {
  if (!ForwardLevelOpen(t)) return false;
  Impl impl = ImplOf(o);
  if (t.at.autograd >= 0 && !Field<void*>(impl, t.at.autograd)) return false;
  if (!t.fw_grad) return true;  // cannot tell: assume so
  Impl* tangent = t.fw_grad(impl, 0, reinterpret_cast<char*>(o) + sizeof(PyObject));
  static Impl undefined = nullptr;  // the one implementation of all undefined tensors: a fresh tensor has this tangent
  if (!undefined) {
    Ref fresh(PyObject_CallMethod(t.module, "zeros", "i", 1));
    if (!fresh) {
      PyErr_Clear();
      return true;
    }
    undefined = *t.fw_grad(ImplOf(fresh.get()), 0, reinterpret_cast<char*>(fresh.get()) + sizeof(PyObject));
  }
  return *tangent != undefined;
}

// Of an attribute that is read often. Python's table of lookups in types keeps names, by their address: one that is
// made anew for each read stays there, and takes the place of another.
template <const char* name>
PyObject* Attribute(PyObject* o) {
  static PyObject* const interned = PyUnicode_InternFromString(name);
  return PyObject_GetAttr(o, interned);
}
constexpr char kBase[] = "_base", kRetainsGrad[] = "retains_grad";

// Is this a view, to which gradients come by its base alone? The framework takes it for a leaf until somebody asks for
// its node, which is made then.
bool IsLikeLeaf(const TorchApi& t, PyObject* o) {
  SavedError saved;
  const OverridesOff off;
  Ref base(Attribute<kBase>(o));
  PyErr_Clear();
  if (!base || base.get() == Py_None) return false;
  const auto meta_of = [&](PyObject* tensor) { return Field<char*>(ImplOf(tensor), t.at.autograd); };
  const auto* node = reinterpret_cast<const char*>(t.grad_fn(reinterpret_cast<char*>(base.get()) + sizeof(PyObject)));
  const ptrdiff_t at = node - meta_of(base.get());  // as it lies in the framework's record of any tensor
  constexpr ptrdiff_t kMost = 256;
  return *reinterpret_cast<void* const*>(node) && at > 0 && at < kMost && !Field<void*>(meta_of(o), at);
}

bool ReadTorch(const TorchApi& t, PyObject* o, uint64_t allowed, Meta* m, const char** why) {
  const bool fields = t.at.all() && t.requires_grad;
  if (!(fields ? ReadFields(t, o, allowed, m, why) : ReadByAttributes(t, o, allowed, m, why))) return false;
  if (HasTangent(t, o)) return No(why, "a forward-mode dual tensor");
  if (!m->requires_grad || !t.grad_fn) return true;
  try {
    if (fields && IsLikeLeaf(t, o)) return No(why, "a view that was not asked for its node since its base has one");
    m->has_grad_fn = *t.grad_fn(reinterpret_cast<char*>(o) + sizeof(PyObject)) != nullptr;
  } catch (const std::exception&) {  // the framework makes a view's node anew, or refuses to
    return No(why, "a view that has no node any more: what it is a view of was written");
  }
  return true;
}

// --- NumPy
[[gnu::hot]] inline bool ReadArray(PyObject* o, Meta* m, const char** why) {
  const NumpyArray* a = AsArray(o);
  auto* descr = reinterpret_cast<const NumpyDescr*>(a->descr);
  auto dtype = FromTypeNum(descr->type_num);
  if (!dtype) [[unlikely]]
    return No(why, "a NumPy dtype framejit does not have");
  if (descr->byteorder == '>') [[unlikely]]
    return No(why, "an array in foreign byte order");
  if (!(a->flags & kNpyAligned)) [[unlikely]]
    return No(why, "an unaligned array");
  if (a->nd > kMaxRank) [[unlikely]]
    return No(why, "more than 16 dimensions");
  int64_t size = DTypeSize(*dtype);
  int shift = __builtin_ctzll(size);
  m->dtype = *dtype;
  m->device = Device{};
  m->rank = a->nd;
  int64_t odd = 0, low = 0, high = 0;
  bool empty = false;
  for (int i = 0; i < a->nd; ++i) {
    m->sizes[i] = a->dims[i];
    m->strides[i] = a->strides[i] >> shift;
    empty |= a->dims[i] == 0;
    // The stride of a dimension of size 0 or 1 is never used, and NumPy leaves anything there.
    if (a->dims[i] > 1) odd |= a->strides[i] & (size - 1);
    int64_t reach = (a->dims[i] - 1) * a->strides[i];
    (reach < 0 ? low : high) += reach;
  }
  if (odd) [[unlikely]]
    return No(why, "strides that are no multiple of the element size");
  m->data = a->data;
  m->handle = o;
  m->low = empty ? a->data : a->data + low;
  m->nbytes_extent = empty ? 0 : high + size;
  m->key_set = a->flags & kNpyWriteable ? 0 : kReadOnly;
  m->requires_grad = m->has_grad_fn = m->is_inference = false;
  return true;
}

bool ReadScalar(const NumpyApi& n, PyObject* o, Meta* m) {
  auto dtype = ScalarDType(n, Py_TYPE(o));
  if (!dtype) return false;
  m->dtype = *dtype;
  m->device = Device{};
  m->rank = 0;
  m->data = m->low = reinterpret_cast<char*>(o) + sizeof(PyObject);  // every number scalar holds its value right there
  m->handle = o;
  m->nbytes_extent = DTypeSize(*dtype);
  m->key_set = kReadOnly;
  m->requires_grad = m->has_grad_fn = m->is_inference = false;
  return true;
}

// --- CuPy
inline bool ReadCupy(const CupyApi& c, PyObject* o, Meta* m, const char** why) {
  const CupyFields f = FieldsOf(c, o);
  auto* descr = reinterpret_cast<const NumpyDescr*>(f.dtype);
  auto dtype = FromTypeNum(descr->type_num);
  if (!dtype || descr->byteorder == '>') [[unlikely]]
    return No(why, "a CuPy dtype framejit does not have");
  if (f.shape->size() > kMaxRank || f.strides->size() != f.shape->size()) [[unlikely]]
    return No(why, "more than 16 dimensions");
  if (!OnCurrentDevice(f.device)) [[unlikely]]
    return No(why, "an array on another device than CuPy's current one");
  const int64_t size = DTypeSize(*dtype);
  const int shift = __builtin_ctzll(size);
  m->dtype = *dtype;
  m->device = Device{DeviceKind::kCuda, static_cast<int16_t>(f.device)};
  m->rank = static_cast<int>(f.shape->size());
  int64_t odd = reinterpret_cast<intptr_t>(f.address) & (size - 1);
  for (int i = 0; i < m->rank; ++i) {
    m->sizes[i] = (*f.shape)[i];
    m->strides[i] = (*f.strides)[i] >> shift;
    if (m->sizes[i] > 1) odd |= (*f.strides)[i] & (size - 1);
  }
  if (odd) [[unlikely]]
    return No(why, "an array whose elements are not aligned");
  m->data = f.address;
  m->handle = o;
  m->key_set = 0;
  m->requires_grad = m->has_grad_fn = m->is_inference = false;
  SetExtent(m);
  return true;
}

Class ClassifySubclass(const TorchApi& t, PyTypeObject* type) {
  return !IsQuietClass(type)                   ? Class::kTorchSubclass
         : PyType_IsSubtype(type, t.parameter) ? Class::kQuietParameter
                                               : Class::kQuietTensor;
}

}  // namespace

Class Classify(PyObject* o) {
  PyTypeObject* type = Py_TYPE(o);
  if (const TorchApi* t = Torch()) {
    if (type == t->tensor) return Class::kTorch;
    if (type == t->parameter) return Class::kTorchParameter;
    if (PyType_IsSubtype(type, t->tensor)) return ClassifySubclass(*t, type);
  }
  if (const NumpyApi* n = Numpy()) {
    if (type == n->array) return Class::kNumpyArray;
    if (ScalarDType(*n, type)) return Class::kNumpyScalar;
  }
  if (const CupyApi* c = Cupy(); c && type == c->array) return Class::kCupyArray;
  return Class::kNone;
}

bool TorchLoaded() {
  return Torch() != nullptr;
}
PyTypeObject* ModuleType() {
  const TorchApi* t = Torch();
  return t ? t->nn_module : nullptr;
}
bool NumpyLoaded() {
  return Numpy() != nullptr;
}

static bool Read(PyObject* o, bool lazy, Meta* out, const char** why) {
  switch (Classify(o)) {
    case Class::kTorch:
    case Class::kTorchParameter:
    case Class::kQuietTensor:
    case Class::kQuietParameter: {
      const TorchApi& t = *Torch();
      return ReadTorch(t, o, t.plain_mask | (lazy ? t.conj_key | t.neg_key : 0), out, why);
    }
    case Class::kTorchSubclass: return No(why, "a tensor subclass");
    case Class::kNumpyArray: return ReadArray(o, out, why);
    case Class::kNumpyScalar: return ReadScalar(*Numpy(), o, out);
    case Class::kCupyArray: return ReadCupy(*Cupy(), o, out, why);
    case Class::kNone: break;
  }
  return No(why, "not a tensor");
}

bool ReadMeta(PyObject* o, Meta* out, const char** why) {
  return Read(o, false, out, why);
}
bool ReadAny(PyObject* o, Meta* out, const char** why) {
  return Read(o, true, out, why);
}

PyObject* Resolved(PyObject* tensor) {
  const OverridesOff off;
  Ref conj(PyObject_CallMethod(tensor, "resolve_conj", nullptr));
  return conj ? PyObject_CallMethod(conj.get(), "resolve_neg", nullptr) : nullptr;
}

namespace {

// The bits in front of a tensor's key set by which torch asks its class, learned from tensors that were made so.
uint64_t asking_bits = 0, size_bits = 0;  // for anything; for sizes or strides

uint64_t BitsOf(const TorchApi& t, PyObject* o) {
  return Field<uint64_t>(ImplOf(o), t.at.key_set - 8);
}

bool LearnAskingBits(const TorchApi& t) {
  if (asking_bits || !t.at.all()) return true;
  SavedError saved;
  Ref module(Import("framejit._wrappers"));
  Ref probes(module ? PyObject_CallMethod(module.get(), "that_ask", nullptr) : nullptr);
  // Some bits are nobody's and hold anything: only what all of a kind have counts, and none of the first kind.
  uint64_t bits = 0, plain = 0;
  bool found = probes && PyTuple_Check(probes.get());
  for (Py_ssize_t i = 0; found && i < PyTuple_GET_SIZE(probes.get()); ++i) {
    PyObject* kind = PyTuple_GET_ITEM(probes.get(), i);
    uint64_t all = ~uint64_t{0};
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(kind); ++k) {
      const uint64_t one = BitsOf(t, PyTuple_GET_ITEM(kind, k));
      all &= one;
      if (i == 0) plain |= one;
    }
    if (i == 0) continue;
    found = (all & ~plain) != 0;
    bits |= all & ~plain;
    if (i <= 2) size_bits |= all & ~plain;
  }
  PyErr_Clear();
  if (found) asking_bits = bits;
  return found;
}

}  // namespace

bool AsksItsClass(PyObject* o) {
  const TorchApi* t = bound_torch;
  return t && size_bits && (BitsOf(*t, o) & size_bits);
}

bool ReadAnyWrapper(PyObject* o, Meta* out, const char** why) {
  const TorchApi& t = *Torch();
  if (!LearnAskingBits(t) || AsksItsClass(o)) return No(why, "whose class is asked for sizes");
  if (!ReadTorch(t, o, t.plain_mask | t.python_keys, out, why)) return false;
  return out->data ? No(why, "a tensor of a class with __torch_dispatch__ that has memory of its own") : true;
}

bool ReadWrapper(PyObject* o, Meta* out, const char** why) {
  if (!LearnAskingBits(*Torch()) || (BitsOf(*Torch(), o) & asking_bits))
    return No(why, "whose class is asked for sizes, device or layout");
  return ReadAnyWrapper(o, out, why);
}

bool HasHistory(PyObject* o) {
  Meta m;
  return !ReadAny(o, &m) || m.has_grad_fn;
}

bool IsView(PyObject* tensor) {
  SavedError saved;
  const OverridesOff off;
  Ref base(Attribute<kBase>(tensor));
  PyErr_Clear();
  return base.get() != Py_None;
}

bool RequiresGrad(PyObject* o) {
  const TorchApi* t = bound_torch;
  if (!t || !PyType_IsSubtype(Py_TYPE(o), t->tensor)) return false;
  if (t->at.all() && t->requires_grad) {
    const Impl impl = ImplOf(o);
    return Field<void*>(impl, t->at.autograd) && t->requires_grad(impl);
  }
  Ref wants(PyObject_GetAttrString(o, "requires_grad"));
  if (!wants) PyErr_Clear();
  return wants.get() == Py_True;
}

bool HasHooks(PyObject* o) {
  static PyObject* const getter = [] {
    Ref base(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Torch()->tensor), "_backward_hooks"));
    return base ? PyObject_GetAttrString(base.get(), "__get__") : nullptr;
  }();
  const Class c = Classify(o);
  if (!IsPlainTorch(c)) return true;
  SavedError saved;
  const OverridesOff off;
  Ref hooks(getter ? PyObject_CallOneArg(getter, o) : nullptr);
  PyErr_Clear();
  Ref kept(Attribute<kRetainsGrad>(o));  // retain_grad() is a hook of the framework's own
  PyErr_Clear();
  if (kept.get() != Py_False) return true;
  if (!hooks || hooks.get() == Py_None) return !hooks;
  // The dict of hooks that were removed stays with the node of what made the tensor, and takes later ones.
  return !PyDict_Check(hooks.get()) || PyDict_GET_SIZE(hooks.get()) > 0 || HasHistory(o);
}

[[gnu::hot]] bool ReadForGuard(PyObject* o, Meta* out) {
  PyTypeObject* type = Py_TYPE(o);
  if (const TorchApi* t = bound_torch;
      t && (type == t->tensor || type == t->parameter || PyType_IsSubtype(type, t->tensor))) {
    // What is expected says which.
    const uint64_t allowed = t->plain_mask | t->python_keys | t->conj_key | t->neg_key;
    if (t->at.all() && t->requires_grad) return ReadFields(*t, o, allowed, out, nullptr);
    return ReadByAttributes(*t, o, allowed, out, nullptr);
  }
  if (const CupyApi* c = bound_cupy; c && type == c->array) return ReadCupy(*c, o, out, nullptr);
  if (const NumpyApi* n = bound_numpy) {
    if (type == n->array) return ReadArray(o, out, nullptr);
    return ReadScalar(*n, o, out);
  }
  return false;
}

}  // namespace framejit::tensor
