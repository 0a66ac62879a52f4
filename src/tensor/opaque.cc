#include "tensor/opaque.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "tensor/import.h"
#include "tensor/infer.h"
#include "tensor/overrides.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

// All forms that were seen, by number. The GIL is held where one is added.
struct Forms {
  std::vector<std::string> texts;
  std::vector<Device> devices;
  std::unordered_map<std::string, int16_t> numbers;
};
Forms& All() {
  static auto* forms = new Forms;
  return *forms;
}
constexpr size_t kMostForms = 20000;

std::optional<Device> FormOf(const std::string& text, Device real) {
  Forms& all = All();
  if (auto known = all.numbers.find(text); known != all.numbers.end()) return Device{DeviceKind::kMeta, known->second};
  if (all.texts.size() >= kMostForms) return std::nullopt;
  const auto number = static_cast<int16_t>(kFirstForm + all.texts.size());
  all.texts.push_back(text);
  all.devices.push_back(real);
  all.numbers.emplace(text, number);
  return Device{DeviceKind::kMeta, number};
}

std::string TextOf(const Ref& o) {
  Ref text(o ? PyObject_Str(o.get()) : nullptr);
  const char* c = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (!c) return PyErr_Clear(), "";
  constexpr std::string_view kModule = "torch.";
  return std::string_view(c).starts_with(kModule) ? c + kModule.size() : c;
}
std::string Asked(PyObject* o, const char* method) {
  return TextOf(Ref(PyObject_CallMethod(o, method, nullptr)));
}

// Is it inside of a transform, a conjugate view or another thing that no key of these layouts says?
bool Strange(const TorchApi& t, uint64_t keys) {
  static const uint64_t refused = [&] {
    uint64_t bits = t.conj_key | t.neg_key | t.python_keys;
    for (const char* name : {"ZeroTensor", "NestedTensor", "FuncTorchBatched", "FuncTorchGradWrapper", "Functionalize",
                             "Python", "PythonTLSSnapshot"}) {
      Ref key(PyObject_CallMethod(t.c_module, "_parse_dispatch_key", "s", name));
      Ref set(key ? PyObject_CallMethod(t.c_module, "DispatchKeySet", "O", key.get()) : nullptr);
      Ref raw(set ? PyObject_CallMethod(set.get(), "raw_repr", nullptr) : nullptr);
      if (raw) bits |= PyLong_AsUnsignedLongLongMask(raw.get());
      PyErr_Clear();
    }
    return bits & ~t.plain_mask & ~t.plain_keys;
  }();
  return keys & refused;
}

// The numbers of a form of quantised tensors, and their sizes. Null: not followed.
const char* ReadQuantised(PyObject* o, bool exact, std::string* form, Meta* out) {
  const std::string scheme = Asked(o, "qscheme");
  const std::string dtype = TextOf(Ref(Attr(o, "dtype")));
  out->dtype = dtype == "quint8" ? DType::kUInt8 : dtype == "qint8" ? DType::kInt8 : DType::kInt32;
  if (dtype != "quint8" && dtype != "qint8" && dtype != "qint32") return "a quantised tensor of packed numbers";
  *form = "quantized " + dtype + " " + scheme;
  if (scheme == "per_tensor_affine") {
    *form += exact ? " " + Asked(o, "q_scale") + " " + Asked(o, "q_zero_point") : " ? ?";
  } else if (scheme == "per_channel_affine") {
    *form += " " + Asked(o, "q_per_channel_axis") + " 0";
  } else {
    return "a quantised tensor of another scheme";
  }
  return nullptr;
}

// few: may it have hardly any elements? The framework takes such an input for coalesced, whatever it says.
const char* ReadSparse(PyObject* o, const std::string& layout, bool few, std::string* form) {
  *form = layout + " " + TextOf(Ref(Attr(o, "dtype")));
  if (layout == "sparse_coo") {
    const std::string stored = Asked(o, "_nnz");
    if (!few && (stored == "0" || stored == "1")) return "a sparse tensor with less than two elements";
    *form += " " + Asked(o, "sparse_dim") + " " + Asked(o, "dense_dim") + " " + Asked(o, "is_coalesced");
    return nullptr;
  }
  const bool rows = layout == "sparse_csr", columns = layout == "sparse_csc";
  if (!rows && !columns) return "a sparse tensor of blocks";
  Ref offsets(PyObject_CallMethod(o, rows ? "crow_indices" : "ccol_indices", nullptr));
  if (Asked(o, "dim") != "2" || Asked(o, "dense_dim") != "0") return "a batch of sparse tensors";
  *form += " " + TextOf(Ref(Attr(offsets.get(), "dtype")));
  return nullptr;
}

bool ReadDims(PyObject* o, const char* method, int64_t* out, int* rank) {
  Ref all(PyObject_CallMethod(o, method, nullptr));
  if (!all || !PyTuple_Check(all.get()) || PyTuple_GET_SIZE(all.get()) > 16) return PyErr_Clear(), false;
  *rank = static_cast<int>(PyTuple_GET_SIZE(all.get()));
  for (int i = 0; i < *rank; ++i) out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(all.get(), i));
  return true;
}

}  // namespace

bool ReadOpaque(PyObject* o, Meta* out, const char** why, bool result) {
  const TorchApi* t = Torch();
  const auto no = [&](const char* text) {
    PyErr_Clear();
    if (why && text) *why = text;
    return false;
  };
  if (!t || !t->at.all()) return no(nullptr);
  const Class c = Classify(o);
  if (c != Class::kTorch && c != Class::kTorchParameter) return no(nullptr);
  out->key_set = Field<uint64_t>(ImplOf(o), t->at.key_set);
  if (Strange(*t, out->key_set)) return no(nullptr);
  SavedError saved;
  const OverridesOff off;
  const std::string layout = TextOf(Ref(Attr(o, "layout"))), device = TextOf(Ref(Attr(o, "device")));
  const bool quantised = Ref(Attr(o, "is_quantized")).get() == Py_True;
  if (device != "cpu" || (layout == "strided" && !quantised) || (!quantised && !layout.starts_with("sparse_")))
    return no(nullptr);
  std::string form;
  if (const char* refused = quantised ? ReadQuantised(o, result, &form, out) : ReadSparse(o, layout, result, &form))
    return no(refused);
  if (!quantised) {
    Ref dtype(Attr(o, "dtype"));
    const auto known = dtype ? DTypeOf(dtype.get()) : std::nullopt;
    if (!known) return no("a dtype framejit does not have");
    out->dtype = *known;
  }
  const auto number = FormOf(form, Device{});
  if (!number || !ReadDims(o, "size", out->sizes, &out->rank)) return no(nullptr);
  out->device = *number;
  int rank = out->rank;
  if (quantised) {
    if (!ReadDims(o, "stride", out->strides, &rank)) return no(nullptr);
  } else {
    int64_t step = 1;
    for (int i = rank; i-- > 0; step *= std::max<int64_t>(1, out->sizes[i])) out->strides[i] = step;
  }
  out->data = out->low = nullptr;
  out->nbytes_extent = 0;
  out->handle = ImplOf(o);
  out->conj = out->neg = false;
  out->is_inference = Ref(PyObject_CallMethod(o, "is_inference", nullptr)).get() == Py_True;
  out->requires_grad = RequiresGrad(o);
  out->has_grad_fn = out->requires_grad && Ref(Attr(o, "is_leaf")).get() == Py_False;
  return PyErr_Clear(), true;
}

std::string FormText(Device d) {
  return All().texts.at(d.index - kFirstForm);
}

Device RealDevice(Device d) {
  return IsOpaque(d) ? All().devices.at(d.index - kFirstForm) : d;
}

Device OfAnyScale(Device d) {
  const std::string text = FormText(d);
  const size_t at = text.find(" per_tensor_affine ");
  if (at == std::string::npos) return d;
  return FormOf(text.substr(0, at) + " per_tensor_affine ? ?", RealDevice(d)).value_or(d);
}

PyObject* OpaqueStandIn(const TensorMeta& m, int number) {
  Ref module(Import("framejit._opaque")), sizes(Tuple(Values(m.sizes))), strides(Tuple(Values(m.strides)));
  if (!module || !sizes || !strides) return nullptr;
  return PyObject_CallMethod(module.get(), "stand_in", "sOOi", FormText(m.device).c_str(), sizes.get(), strides.get(),
                             number);
}

bool ShareMemory(PyObject* a, PyObject* b) {
  Ref module(Import("framejit._opaque"));
  Ref share(module ? PyObject_CallMethod(module.get(), "share_memory", "OO", a, b) : nullptr);
  PyErr_Clear();
  return share.get() != Py_False;
}

PyObject* OpaqueFact(const TensorMeta& m, std::string_view name, bool method) {
  SavedError saved;
  const OverridesOff off;
  for (const shape::Ints* v : {&m.sizes, &m.strides})
    for (shape::Int i : *v)
      if (!i.is_const()) return nullptr;
  Ref module(Import("framejit._opaque")), one(OpaqueStandIn(m, 0));
  Ref fact(module && one ? PyObject_CallMethod(module.get(), "fact", "Os#sO", one.get(), name.data(),
                                               static_cast<Py_ssize_t>(name.size()), FormText(m.device).c_str(),
                                               method ? Py_True : Py_False)
                         : nullptr);
  PyErr_Clear();
  if (!fact || fact.get() == Py_NotImplemented) return nullptr;
  return fact.release();
}

}  // namespace framejit::tensor
