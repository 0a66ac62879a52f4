// This file has the operators and attributes of tensor proxies: each becomes a framework call, or an answer from the
// metadata.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "capture/callees.h"
#include "capture/checkpoint.h"
#include "capture/framework_call.h"
#include "capture/gradients.h"
#include "capture/override.h"
#include "capture/own_attributes.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/wrappers/overrides.h"
#include "graph/opaque.h"
#include "shape/typical.h"
#include "tensor/numpy_api.h"
#include "tensor/overrides.h"

namespace framejit::capture {
namespace {

// These are the NB_* of opcode.h, in their order.
constexpr const char* kOperatorNames[] = {"add", "and", "floordiv", "lshift", "matmul",  "mul", "mod",
                                          "or",  "pow", "rshift",   "sub",    "truediv", "xor"};
constexpr int kInPlace = 13;

bool ToBool(PyObject** out, bool b) {
  *out = PyBool_FromLong(b);
  return true;
}

PyTypeObject* SizeType() {
  static tensor::Named type(callees::kSize);
  return reinterpret_cast<PyTypeObject*>(type.Get());
}

// torch.Size's own constructor takes ints alone, a tuple's does not look.
PyObject* AsSize(Session& s, PyObject* tuple) {
  if (!SizeType()) return s.MarkFresh(Borrow(tuple).release());
  Ref args(PyTuple_Pack(1, tuple));
  return args ? s.MarkFresh(PyTuple_Type.tp_new(SizeType(), args.get(), nullptr)) : nullptr;
}

PyObject* SizeTuple(Session& s, const shape::Ints& sizes, bool torch) {
  Ref t(PyTuple_New(sizes.size()));
  if (!t) return nullptr;
  for (size_t i = 0; i < sizes.size(); ++i) {
    PyObject* n = s.SymIntObject(sizes[i]);
    if (!n) return nullptr;
    PyTuple_SET_ITEM(t.get(), i, n);
  }
  return torch ? AsSize(s, t.get()) : s.MarkFresh(t.release());
}

PyObject* DeviceObject(Session& s, const Device& d) {
  const char* kind = d.kind == DeviceKind::kCpu ? "cpu" : d.kind == DeviceKind::kCuda ? "cuda" : "meta";
  static std::map<std::pair<int, int>, PyObject*> cache;
  PyObject*& o = cache[{static_cast<int>(d.kind), d.kind == DeviceKind::kCpu ? -1 : d.index}];
  if (!o) {
    Ref type(tensor::ResolveCallee(callees::kDevice));
    if (!type) return nullptr;
    o = d.kind == DeviceKind::kCpu || d.index < 0 ? PyObject_CallFunction(type.get(), "s", kind)
                                                  : PyObject_CallFunction(type.get(), "si", kind, d.index);
    if (!o) return nullptr;
  }
  Py_INCREF(o);
  return o;
}

shape::Int NumElements(const TensorMeta& m) {
  return shape::Product(m.sizes);
}

// Is it a leaf that was made here, and no view of one?
bool IsMadeLeaf(Session& s, TraceId id) {
  const TraceTensor& t = s.trace().tensors[id];
  return s.lowering().IsTracked(id) || (t.input < 0 && t.base == id && s.lowering().IsLeaf(id));
}

// Of a tensor with gradients: is it a leaf, or did an operation make it? Nothing: that is not known, or it is another
// one for a derivative in the program.
std::optional<bool> IsLeaf(Session& s, TraceId id) {
  if (s.vmap.open() || s.in_custom || s.later || s.lowering().IsHidden(id)) return {};
  const int input = s.trace().tensors[s.pending().Original(id)].input;
  if (input < 0) return IsMadeLeaf(s, id);
  SuspendScope off;
  if (tensor::HasHistory(s.input_tensors()[input])) return {};
  guard::Row row{guard::Kind::kLeaf, s.input_sources()[input]};
  row.here = true;
  if (!s.meta(id).is_parameter) s.guards().Add(std::move(row));
  return true;
}

// array.flags: an object of Python that answers from sizes and strides.
PyObject* FlagsOf(Session& s, PyObject* array) {
  PyObject* type = FlagsType();
  return type && s.SourceOf(type) ? CurrentSemantics()->Call(type, &array, 1, nullptr) : nullptr;
}

// The program sees how t lies. Strides of what is empty, or has one element, follow other rules.
void ShowStrides(Session& s, TraceId t) {
  s.lowering().Show(t);
  const TensorMeta& m = s.meta(t);
  const bool plain = m.strides == shape::RowMajor(m.sizes);
  for (shape::Int e : m.sizes)
    if (s.env().AtRun(e) || (!plain && !e.is_const() && (s.env().Hint(e) > 1 || shape::OnesAsAny::On())))
      shape::NoteShown(s.env(), e);
}

PyObject* OwnsItsMemory(PyObject*, PyObject* o) {
  return PyBool_FromLong(tensor::Classify(o) == tensor::Class::kNumpyArray && !tensor::AsArray(o)->base);
}

// The `base` of an array from outside: None, or an object of which the program may ask whether it is None. Either is
// guarded. Null: it is an array that was made here, which has a base where the call that made it says so.
PyObject* BaseOf(Session& s, PyObject* proxy) {
  static PyMethodDef owns = {"owns_its_memory", OwnsItsMemory, METH_O, nullptr};
  static PyObject* const ask = PyCFunction_New(&owns, nullptr);
  const int input = s.trace().tensors[AsTensor(proxy)->id].input;
  Ref none(ask && input >= 0 ? OwnsItsMemory(nullptr, s.input_tensors()[input]) : nullptr);
  if (!none) return nullptr;
  s.guards().Equal(s.guards().Child(SourceKind::kMember, s.input_sources()[input], 0, ask), none.get());
  return none.get() == Py_True ? Py_NewRef(Py_None) : NewUnseen(s, "ndarray.base");
}

// Attributes that are answered from the metadata. False: not one of them.
bool MetaAttr(Session& s, PyObject* proxy, const TensorMeta& m, std::string_view n, PyObject** out) {
  if (IsOpaque(m)) {
    static constexpr std::string_view kOfAny[] = {
        "shape", "ndim",           "__class__", "requires_grad", "is_leaf",   "grad_fn",        "retains_grad",
        "grad",  "_typed_storage", "names",     "_version",      "output_nr", "_backward_hooks"};
    if (std::find(std::begin(kOfAny), std::end(kOfAny), n) == std::end(kOfAny))
      return (*out = FactOf(s, proxy, n, false)) != nullptr;
  }
  bool torch = m.framework == Framework::kTorch;
  if (n == "shape") return *out = SizeTuple(s, m.sizes, torch), true;
  if (n == "dtype") return *out = tensor::DTypeObject(m.framework, m.dtype), true;
  if (n == "ndim") return *out = PyLong_FromSize_t(m.sizes.size()), true;
  if (n == "itemsize") return *out = PyLong_FromLong(DTypeSize(m.dtype)), true;
  if (n == "nbytes") return *out = s.SymIntObject(NumElements(m) * shape::Int(DTypeSize(m.dtype))), true;
  if (n == "__class__") return *out = TensorClass(s, proxy), true;
  if (!torch) {
    if (n == "size") return *out = s.SymIntObject(NumElements(m)), true;
    if (n == "strides") {
      for (const auto& size : m.sizes)
        if (s.env().Eq(size, 0)) return false;  // of nothing: NumPy has rules of its own
      ShowStrides(s, AsTensor(proxy)->id);
      shape::Ints bytes;
      for (auto& e : m.strides) bytes.push_back(e * shape::Int(DTypeSize(m.dtype)));
      return *out = SizeTuple(s, bytes, false), true;
    }
    const bool array = !m.is_scalar && m.device.kind == DeviceKind::kCpu;
    if (n == "base" && array && (*out = BaseOf(s, proxy))) return true;
    if (n == "flags" && array) return *out = FlagsOf(s, proxy), true;
    static PyObject* const device = Interned("device");  // from NumPy 2 on
    if (n == "device" && array) {
      Ref type(TensorClass(s, proxy));
      if (type && _PyType_Lookup(reinterpret_cast<PyTypeObject*>(type.get()), device))
        return *out = PyUnicode_InternFromString("cpu"), true;
    }
    return false;
  }
  if (n == "device") return *out = DeviceObject(s, m.device), true;
  if ((n == "requires_grad" || n == "is_leaf" || n == "grad_fn") && WantsGradient(s, proxy))
    NoteAskedOfGradients(&AsTensor(proxy)->id);
  if (n == "requires_grad")
    return ToBool(out, WantsGradient(s, proxy) || s.lowering().ViewedWithoutGradients(AsTensor(proxy)->id));
  if (n == "is_cpu") return ToBool(out, m.device.kind == DeviceKind::kCpu);
  if (n == "is_cuda") return ToBool(out, m.device.kind == DeviceKind::kCuda);
  if (n == "is_meta") return ToBool(out, m.device.kind == DeviceKind::kMeta);
  for (const char* no : {"is_sparse", "is_sparse_csr", "is_quantized", "is_nested", "is_mkldnn", "is_mps", "is_xpu",
                         "is_xla", "is_hpu", "is_ipu", "is_vulkan", "is_maia", "is_mtia"})
    if (n == no) return ToBool(out, false);
  if (n == "layout") return *out = tensor::ResolveCallee(callees::kStrided), true;
  const bool made_leaf = !s.vmap.open() && IsMadeLeaf(s, AsTensor(proxy)->id);  // no backward pass has come by it
  if ((n == "grad_fn" || n == "grad") && (!WantsGradient(s, proxy) || made_leaf)) {
    Py_INCREF(Py_None);
    return *out = Py_None, true;
  }
  if (n == "is_leaf" && !WantsGradient(s, proxy)) return ToBool(out, true);
  if (n == "is_leaf" || n == "grad_fn") {
    const TraceTensor& t = s.trace().tensors[AsTensor(proxy)->id];
    // To read the node of a view whose base was written makes it anew, from what the base is now.
    const bool stale = n == "grad_fn" && t.base != t.id && s.trace().tensors[t.base].mutated;
    const std::optional<bool> leaf = stale ? std::nullopt : IsLeaf(s, t.id);
    if (leaf && n == "is_leaf") return ToBool(out, *leaf);
    if (leaf) return *out = *leaf ? Py_NewRef(Py_None) : NewUnseen(s, "tensor.grad_fn"), true;
  }
  if (n == "retains_grad" && s.trace().tensors[AsTensor(proxy)->id].input < 0)
    return ToBool(out, s.pending().retains.contains(AsTensor(proxy)->id));
  if (n == "_typed_storage" || n == "grad" || n == "grad_fn" || n == "is_leaf" || n == "_version" || n == "names" ||
      n == "retains_grad" || n == "output_nr" || n == "_backward_hooks")
    return *out = s.Break(BreakId::kAutogradCall, "tensor." + std::string(n)), true;
  return false;
}

// Views of a tensor are what it is.
bool IsInference(Session& s, TraceId id) {
  return s.trace().tensors[s.trace().tensors[id].base].meta.is_inference;
}

// Answers methods that only read metadata, called with the proxy bound. It is null without an error where the method is
// none of them.
PyObject* QueryMethod(Session& s, PyObject* proxy, std::string_view n, PyObject* const* args, Py_ssize_t nargs,
                      PyObject* kw, bool* handled) {
  *handled = true;
  const TensorMeta& m = s.meta(AsTensor(proxy)->id);
  int rank = static_cast<int>(m.sizes.size());
  auto dim = [&](PyObject* o, int* d) {
    Ref num(PyNumber_Index(o));
    if (!num) return false;
    long v = PyLong_AsLong(num.get());
    if (v < 0) v += rank;
    if (v < 0 || v >= rank) return s.Break(BreakId::kFrameworkError, "dimension out of range"), false;
    return *d = static_cast<int>(v), true;
  };
  int d;
  if (n == "size" || n == "stride") {
    const shape::IntList v = n == "size" ? m.sizes : m.strides;
    if (n == "stride") ShowStrides(s, AsTensor(proxy)->id);
    Py_ssize_t total = nargs + (kw ? PyTuple_GET_SIZE(kw) : 0);
    if (total == 0) return SizeTuple(s, v, n == "size");
    if (total == 1 && args[0] != Py_None) return dim(args[0], &d) ? s.SymIntObject(v[d]) : nullptr;
  } else if (n == "requires_grad_" && nargs <= 1 && !kw) {
    const bool as_it_is =
        (nargs == 0 || args[0] == Py_True) ? m.requires_grad : args[0] == Py_False && !m.requires_grad;
    if (as_it_is && !s.vmap.wrapped.contains(AsTensor(proxy)->id)) return Py_NewRef(proxy);
    if (nargs == 0 || args[0] == Py_True) {
      if (PyObject* leaf = MakeLeaf(s, proxy)) return leaf;
      if (s.broken() || PyErr_Occurred()) return nullptr;
    }
  } else if (n == "is_contiguous" && nargs + (kw ? PyTuple_GET_SIZE(kw) : 0) == 1 && m.framework == Framework::kTorch) {
    Ref format(PyObject_Str(args[0]));
    const std::string_view last = format ? PyUnicode_AsUTF8(format.get()) : "";
    if (last == "torch.contiguous_format") return QueryMethod(s, proxy, n, nullptr, 0, nullptr, handled);
    if (last == "torch.channels_last" || last == "torch.channels_last_3d") {
      if (rank != (last.ends_with("3d") ? 5 : 4)) return PyBool_FromLong(0);
      shape::Int expect = 1;
      for (int i = 0; i < rank; ++i) {  // channels, then the last dimension up to the second, then the batch
        const int at = i == 0 ? 1 : i == rank - 1 ? 0 : rank - i;
        if (s.env().Eq(m.sizes[at], 1)) continue;
        if (!s.env().Eq(m.strides[at], expect)) return PyBool_FromLong(0);
        expect = expect * m.sizes[at];
      }
      return PyBool_FromLong(1);
    }
  } else if (n == "_has_compatible_shallow_copy_type" && nargs == 1 && IsTensor(args[0])) {
    const TensorMeta& other = s.meta(AsTensor(args[0])->id);  // both are dense
    if (m.framework == Framework::kTorch && other.framework == Framework::kTorch &&
        m.device.kind != DeviceKind::kMeta && other.device.kind != DeviceKind::kMeta)
      return PyBool_FromLong(1);
  } else if (nargs == 0 && !kw) {
    if (n == "dim" || n == "ndimension") return PyLong_FromLong(rank);
    if (n == "numel" || n == "nelement") return s.SymIntObject(NumElements(m));
    if (n == "element_size") return PyLong_FromLong(DTypeSize(m.dtype));
    if (n == "type" && m.framework == Framework::kTorch) {
      static const std::map<DType, const char*> kNames = {{DType::kFloat32, "Float"},
                                                          {DType::kFloat64, "Double"},
                                                          {DType::kFloat16, "Half"},
                                                          {DType::kInt64, "Long"},
                                                          {DType::kInt32, "Int"},
                                                          {DType::kBFloat16, "BFloat16"},
                                                          {DType::kInt16, "Short"},
                                                          {DType::kInt8, "Char"},
                                                          {DType::kUInt8, "Byte"},
                                                          {DType::kBool, "Bool"},
                                                          {DType::kComplex64, "ComplexFloat"},
                                                          {DType::kComplex128, "ComplexDouble"}};
      const auto name = kNames.find(m.dtype);
      if (name != kNames.end() && m.device.kind != DeviceKind::kMeta)
        return PyUnicode_FromFormat("torch.%s%sTensor", m.device.kind == DeviceKind::kCpu ? "" : "cuda.", name->second);
    }
    if (n == "is_floating_point") return PyBool_FromLong(IsFloat(m.dtype));
    if (n == "is_complex") return PyBool_FromLong(IsComplex(m.dtype));
    if (n == "is_signed") return PyBool_FromLong(!IsBool(m.dtype) && DTypeClass(m.dtype) != 'u');
    if (n == "get_device") return PyLong_FromLong(m.device.kind == DeviceKind::kCpu ? -1 : m.device.index);
    if (n == "is_inference") return PyBool_FromLong(IsInference(s, AsTensor(proxy)->id));
    if (n == "is_conj" || n == "is_neg") return PyBool_FromLong(n == "is_conj" ? m.conj : m.neg);
    if (n == "is_contiguous") {
      shape::Int expect = 1;
      bool empty = false, plain = true;
      for (int i = rank - 1; i >= 0; --i) {
        plain = plain && m.strides[i] == expect;
        expect = expect * m.sizes[i];
      }
      if (plain) return PyBool_FromLong(1);
      expect = 1;
      for (auto& e : m.sizes) empty = empty || s.env().Eq(e, 0);
      if (empty) return PyBool_FromLong(1);
      for (int i = rank - 1; i >= 0; --i) {
        if (s.env().Eq(m.sizes[i], 1)) continue;
        if (!s.env().Eq(m.strides[i], expect)) return PyBool_FromLong(0);
        expect = expect * m.sizes[i];
      }
      return PyBool_FromLong(1);
    }
  }
  *handled = false;
  return nullptr;
}

}  // namespace

PyObject* FlagsType() {
  static PyObject* const type = FromModule("framejit._functions", "ArrayFlags");
  return type;
}

std::string_view FrameworkPrefix(Session& s, PyObject* proxy) {
  const TensorMeta& m = s.meta(AsTensor(proxy)->id);
  return m.framework == Framework::kTorch     ? callees::kTensor
         : m.device.kind == DeviceKind::kCuda ? callees::kCupyArray
                                              : callees::kArray;
}

Callee MethodOf(Session& s, PyObject* proxy, std::string_view name) {
  return Callee(std::string(FrameworkPrefix(s, proxy)).append(".").append(name));
}

PyObject* PlainTensorClass(bool parameter) {
  static tensor::Named plain{std::string(callees::kTensor)}, parameters(callees::kParameter);
  return (parameter ? parameters : plain).Get();
}

PyObject* TensorClass(Session& s, PyObject* proxy) {
  const TensorMeta& m = s.meta(AsTensor(proxy)->id);
  if (m.framework == Framework::kTorch) {
    const int input = s.trace().tensors[AsTensor(proxy)->id].input;
    if (PyObject* o = input < 0 ? nullptr : s.input_tensors()[input]; o && tensor::IsQuiet(tensor::Classify(o)))
      return Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(o)));
    if (PyTypeObject* made = MadeClass(s, AsTensor(proxy)->id)) return Py_NewRef(reinterpret_cast<PyObject*>(made));
    return Py_NewRef(PlainTensorClass(m.is_parameter));
  }
  if (!m.is_scalar) return tensor::ResolveCallee(std::string(FrameworkPrefix(s, proxy)));
  Ref dtype(tensor::DTypeObject(Framework::kNumpy, m.dtype));
  return dtype ? PyObject_GetAttrString(dtype.get(), "type") : nullptr;
}

// What the rows know of an operator or a fact is what the class had at first. It is false after a Break: it has another
// one now.
bool AsEver(Session& s, PyObject* proxy, const std::string& name) {
  for (const char* direct : {"__bool__", "__int__", "__len__", "__iter__"})  // answered here, and not by a call
    if (name == direct && Asked(s, proxy)) return s.Break(BreakId::kSubclass, "its own " + name), false;
  Ref type(TensorClass(s, proxy)), key(PyUnicode_InternFromString(name.c_str()));
  if (!type || !key) return false;
  const TensorMeta& m = s.meta(AsTensor(proxy)->id);  // a subclass that came in overrides nothing (NoteQuiet)
  if (m.framework == Framework::kTorch) type = Ref(Py_NewRef(PlainTensorClass(m.is_parameter)));
  auto* t = reinterpret_cast<PyTypeObject*>(type.get());
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE)) return true;
  static auto* first = new std::map<std::pair<PyTypeObject*, PyObject*>, PyObject*>;
  PyObject* found = s.NoteLookup(t, key.get());
  auto [known, added] = first->try_emplace({t, key.get()}, found);
  if (added) Py_INCREF(key.get()), Py_XINCREF(found);
  if (known->second == found) return true;
  return s.Break(BreakId::kTensorProtocol, "a new " + name + " of the tensor class"), false;
}

PyObject* TensorQuery(Session& s, PyObject* proxy, const std::string& method, PyObject* const* args, Py_ssize_t nargs,
                      PyObject* kwnames, bool* handled) {
  return QueryMethod(s, proxy, method, args, nargs, kwnames, handled);
}

bool IsSymbolicSize(PyObject* o) {
  if (Py_TYPE(o) != SizeType() || !PyTuple_Check(o)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (IsSymInt(PyTuple_GET_ITEM(o, i))) return true;
  return false;
}

PyObject* SizeItem(Session& s, PyObject* size, PyObject* key) {
  Ref r(PyTuple_Type.tp_as_mapping->mp_subscript(size, key));
  return r && PySlice_Check(key) ? AsSize(s, r.get()) : s.Adopt(r.release());
}

PyObject* SizeConcat(Session& s, PyObject* a, PyObject* b) {
  Ref r(PyTuple_Type.tp_as_sequence->sq_concat(a, b));
  return r ? AsSize(s, r.get()) : nullptr;
}

PyObject* SizeMethod(Session& s, PyObject* size, const char* name, PyObject* const* args, Py_ssize_t nargs) {
  if (!strcmp(name, "numel") && !nargs) {
    Ref product(PyLong_FromLong(1));
    for (Py_ssize_t i = 0; product && i < PyTuple_GET_SIZE(size); ++i)
      product = Ref(PyNumber_Multiply(product.get(), PyTuple_GET_ITEM(size, i)));
    return product.release();
  }
  Ref plain(PySequence_List(size));
  plain = Ref(plain ? PyList_AsTuple(plain.get()) : nullptr);
  Ref method(plain ? PyObject_GetAttrString(plain.get(), name) : nullptr);
  return method ? s.Adopt(PyObject_Vectorcall(method.get(), args, nargs, nullptr)) : nullptr;
}

namespace {

// What backward left in tensor.grad is an input like any other. Torch tells of it where the tensor is a leaf, and warns
// elsewhere. A tensor that wants no gradient may still have one from before. The answer is false where the tensor is
// not from outside.
bool GradOfInput(Session& s, PyObject* proxy, PyObject** out) {
  const TraceId id = s.pending().Original(AsTensor(proxy)->id);
  const int input = s.trace().tensors[id].input;
  if (input < 0 || s.meta(id).framework != Framework::kTorch || s.vmap.open()) return false;
  if (tensor::Overrides(Py_TYPE(s.input_tensors()[input]))) return s.Break(BreakId::kSubclass, "tensor.grad"), true;
  s.guards().Add(guard::Row{guard::Kind::kDistinct, s.input_sources()[input]});
  if (auto set = s.pending().grads.find(id); set != s.pending().grads.end())
    return *out = Py_NewRef(set->second.get()), true;
  Ref grad;
  {
    SuspendScope off;
    if (tensor::HasHistory(s.input_tensors()[input])) return false;
    grad = Ref(PyObject_GetAttrString(s.input_tensors()[input], "grad"));
  }
  const Source* source = s.input_sources()[input];
  if (s.meta(id).requires_grad && !s.meta(id).is_parameter) {
    guard::Row row{guard::Kind::kLeaf, source};
    row.here = true;
    s.guards().Add(std::move(row));
  }
  *out = grad ? s.FromOutside(grad.get(), s.guards().Child(SourceKind::kGrad, source), true) : nullptr;
  return true;
}

}  // namespace

PyObject* TensorAttr(Session& s, PyObject* proxy, PyObject* name) {
  const TensorMeta& m = s.meta(AsTensor(proxy)->id);
  const char* text = PyUnicode_AsUTF8(name);
  if (!text) return nullptr;
  bool found;
  PyObject* out = OwnAttribute(s, proxy, name, &found);
  if (found || s.broken() || PyErr_Occurred()) return out;
  if ((!strcmp(text, "grad") && GradOfInput(s, proxy, &out)) || MetaAttr(s, proxy, m, text, &out)) {
    if (out && !AsEver(s, proxy, text)) Py_CLEAR(out);
    return out;
  }
  Ref type(TensorClass(s, proxy));
  if (!type) return nullptr;
  PyObject* descr = s.NoteLookup(reinterpret_cast<PyTypeObject*>(type.get()), name);
  if (auto own = s.pending().attributes.find(AsTensor(proxy)->id); own != s.pending().attributes.end())
    for (auto& [key, value] : own->second)
      if (PyUnicode_Compare(key.get(), name) == 0) return Py_NewRef(value.get());
  const int input = s.trace().tensors[s.pending().Original(AsTensor(proxy)->id)].input;
  PyObject** dict = input < 0 ? nullptr : _PyObject_GetDictPtr(s.input_tensors()[input]);
  PyObject* made = DictMade(s.pending(), s.pending().Original(AsTensor(proxy)->id));
  if (made && !(descr && Py_TYPE(descr)->tp_descr_set)) {
    PyObject* v = PyDict_GetItemWithError(made, name);
    if (v || PyErr_Occurred()) return Py_XNewRef(v);
  } else if (dict && !(descr && Py_TYPE(descr)->tp_descr_set)) {  // an input may carry attributes of its own
    const Source* own = s.guards().Child(SourceKind::kInstanceDict, s.input_sources()[input]);
    bool found = false;
    PyObject* v = *dict ? s.ReadDictItem(*dict, own, name, &found) : nullptr;
    if (found || s.broken() || PyErr_Occurred()) return v;
    if (!*dict) s.guards().Absent(own);
  }
  static PyObject* const hook_name = PyUnicode_InternFromString("__getattr__");
  if (!descr && s.NoteLookup(reinterpret_cast<PyTypeObject*>(type.get()), hook_name))
    return s.Break(BreakId::kTensorProtocol, "a __getattr__ of the tensor class");
  if (!descr) {
    PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute '%U'",
                 reinterpret_cast<PyTypeObject*>(type.get())->tp_name, name);
    return nullptr;
  }
  PyTypeObject* dt = Py_TYPE(descr);
  if (IsPrimitive(descr)) return Py_NewRef(descr);  // a constant of the class, which the lookup guards
  if (dt == &PyGetSetDescr_Type || PyObject_TypeCheck(descr, &PyProperty_Type)) {
    if (!strcmp(text, "__dict__")) return TensorDict(s, proxy);
    const std::string getter = std::string(text) + ".__get__";
    Callee callee = MethodOf(s, proxy, getter);
    if (m.is_scalar && IsComplex(m.dtype))
      callee = Callee("numpy.generic." + getter);  // a call of NumPy's, of a scalar
    if (PyObject_TypeCheck(descr, &PyProperty_Type)) {
      if (!surface::HasRow(callee)) return s.Break(BreakId::kTensorProtocol, std::string("tensor.") + text);
    }
    return s.CallFramework(callee, &proxy, 1, nullptr);
  }
  if (PyFunction_Check(descr)) s.SourceOf(descr);  // the class's own: none that was made here
  if (PyFunction_Check(descr) || dt == &PyMethodDescr_Type || dt == &PyWrapperDescr_Type)
    return PyMethod_New(descr, proxy);
  return s.Break(BreakId::kTensorProtocol, std::string("tensor.") + text);
}

PyObject* TensorBinary(Session& s, int nb_op, PyObject* a, PyObject* b) {
  bool inplace = nb_op >= kInPlace;
  std::string op = kOperatorNames[inplace ? nb_op - kInPlace : nb_op];
  bool left = IsTensor(a);
  // For a NumPy scalar beside an array, or a 0-dimensional NumPy value, the array's class answers, and the rows know
  // the promotion rules.
  if (inplace && left && s.meta(AsTensor(a)->id).is_scalar) inplace = false;
  if (inplace && !left) inplace = false;
  PyObject* args[] = {left ? a : b, left ? b : a};
  std::string method = std::string("__") + (inplace ? "i" : left ? "" : "r") + op + "__";
  if (!AsEver(s, args[0], method)) return nullptr;
  return s.CallFramework(MethodOf(s, args[0], method), args, 2, nullptr);
}

PyObject* TensorUnary(Session& s, const char* method, PyObject* a) {
  if (!AsEver(s, a, method)) return nullptr;
  return s.CallFramework(MethodOf(s, a, method), &a, 1, nullptr);
}

PyObject* TensorCompare(Session& s, PyObject* a, PyObject* b, int op) {
  static const char* const kNames[] = {"__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"};
  static const int kSwapped[] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};
  auto first = [&] {  // Python asks the right operand first where its class is a subclass of the left one's
    if (!IsTensor(a) || !IsTensor(b)) return IsTensor(a);
    Ref mine(TensorClass(s, a)), theirs(TensorClass(s, b));
    return mine.get() == theirs.get() || !Asked(s, b) ||
           !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(theirs.get()),
                             reinterpret_cast<PyTypeObject*>(mine.get()));
  };
  if (!first()) {
    std::swap(a, b);
    op = kSwapped[op];
  }
  if (b == Py_None && (op == Py_EQ || op == Py_NE)) {
    if (s.meta(AsTensor(a)->id).framework == Framework::kTorch) return PyBool_FromLong(op == Py_NE);
  }
  if (!AsEver(s, a, kNames[op])) return nullptr;
  PyObject* args[] = {a, b};
  return s.CallFramework(MethodOf(s, a, kNames[op]), args, 2, nullptr);
}

PyObject* TensorIter(Session& s, PyObject* proxy) {
  if (!AsEver(s, proxy, "__iter__")) return nullptr;
  const TensorMeta& m = s.meta(AsTensor(proxy)->id);
  if (m.sizes.empty()) return s.Break(BreakId::kFrameworkError, "iteration over a 0-d tensor");
  int64_t n = s.env().Specialize(m.sizes[0]);
  constexpr int64_t kFew = 64;  // each that leaves the graph is made by a call of its own
  const bool together =
      m.framework == Framework::kTorch && s.modes.now.grad && IsFloat(m.dtype) && (m.requires_grad || n <= kFew);
  if (together) {  // as torch does it, which has rules for writes to such views
    Ref zero(PyLong_FromLong(0));
    PyObject* args[] = {proxy, zero.get()};
    Ref parts(s.CallFramework(callees::kTensorUnbind, args, 2, nullptr));
    return parts ? s.MarkFresh(PyObject_GetIter(parts.get())) : nullptr;
  }
  if (m.framework == Framework::kNumpy) return s.MarkFresh(PySeqIter_New(proxy));  // elements are read in their turn
  Ref list(PyList_New(0));
  for (int64_t i = 0; list && i < n; ++i) {
    Ref item(TensorItem(s, proxy, i));
    if (!item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  if (!list) return nullptr;
  s.MarkFresh(list.get());
  return s.MarkFresh(PyObject_GetIter(list.get()));
}

PyObject* TensorItem(Session& s, PyObject* proxy, Py_ssize_t i) {
  const TensorMeta& m = s.meta(AsTensor(proxy)->id);
  if (m.sizes.empty()) return s.Break(BreakId::kFrameworkError, "an element of a 0-d tensor");
  if (i < 0 || i >= s.env().Specialize(m.sizes[0])) {
    PyErr_SetNone(PyExc_IndexError);
    return nullptr;
  }
  Ref index(PyLong_FromSsize_t(i));
  PyObject* args[] = {proxy, index.get()};
  return index ? s.CallFramework(MethodOf(s, proxy, "__getitem__"), args, 2, nullptr) : nullptr;
}

}  // namespace framejit::capture
