#include "tensor/opaque.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "tensor/import.h"
#include "tensor/infer.h"
#include "tensor/overrides.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

// What is known of such a tensor beside its sizes; `text` says it for Python and for messages.
struct Form {
  PyObject* layout = nullptr;   // torch's own object, which is never given up; null: strided, so it is quantised
  uint16_t type = 0;            // torch's number of the element type
  int64_t a = 0, b = 0, c = 0;  // as the layout or scheme wants them: see Read...
  double scale = 0;             // of the whole tensor; 0: not known
  friend bool operator==(const Form&, const Form&) = default;
};

// All forms that were seen, by number. The GIL is held where one is added.
struct Forms {
  std::vector<Form> forms;
  std::vector<std::string> texts;
};
Forms& All() {
  static auto* forms = new Forms;
  return *forms;
}
constexpr size_t kMostForms = 4000;

std::optional<Device> NumberOf(const Form& form, const std::function<std::string()>& text) {
  Forms& all = All();
  auto at = std::find(all.forms.begin(), all.forms.end(), form) - all.forms.begin();
  if (static_cast<size_t>(at) == all.forms.size()) {
    if (all.forms.size() >= kMostForms) return std::nullopt;
    all.forms.push_back(form);
    all.texts.push_back(text());
  }
  return Device{DeviceKind::kMeta, static_cast<int16_t>(kFirstForm + at)};
}

std::string TextOf(const Ref& o) {
  Ref text(o ? PyObject_Str(o.get()) : nullptr);
  const char* c = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (!c) return PyErr_Clear(), "";
  constexpr std::string_view kModule = "torch.";
  return std::string_view(c).starts_with(kModule) ? c + kModule.size() : c;
}

// The names of torch's methods, made once; o.name() is a number, or -1.
enum Name {
  kNnz,
  kSparseDim,
  kDenseDim,
  kCoalesced,
  kRows,
  kColumns,
  kScheme,
  kScale,
  kZeroPoint,
  kAxis,
  kInference,
  kNames
};
PyObject* NameOf(Name n) {
  static constexpr const char* kTexts[] = {"_nnz",         "sparse_dim",         "dense_dim",   "is_coalesced",
                                           "crow_indices", "ccol_indices",       "qscheme",     "q_scale",
                                           "q_zero_point", "q_per_channel_axis", "is_inference"};
  static const auto names = [] {
    std::array<PyObject*, kNames> all;
    for (int i = 0; i < kNames; ++i) all[i] = PyUnicode_InternFromString(kTexts[i]);
    return all;
  }();
  return names[n];
}
Ref Asked(PyObject* o, Name n) {
  Ref answer(PyObject_CallMethodNoArgs(o, NameOf(n)));
  if (!answer) PyErr_Clear();
  return answer;
}
int64_t Number(PyObject* o, Name n) {
  Ref answer = Asked(o, n);
  return answer && PyLong_Check(answer.get()) ? PyLong_AsLongLong(answer.get()) : -1;
}
// torch.sparse_coo and the like.
PyObject* Known(const char* name) {
  PyObject* o = Torch() ? PyObject_GetAttrString(Torch()->module, name) : nullptr;
  if (!o) PyErr_Clear();
  return o;
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

enum Coalesced : int64_t { kNo, kYes, kUnknown };

// torch's numbers of qint8, quint8 and qint32.
constexpr uint16_t kQInt8 = 12, kQUInt8 = 13, kQInt32 = 14;

// a: the axis of scales, or -1; b: the zero point. Gives why it is not followed, or null.
const char* ReadQuantised(PyObject* o, bool exact, Form* form) {
  static PyObject* const one = Known("per_tensor_affine");
  static PyObject* const each = Known("per_channel_affine");
  const Ref scheme = Asked(o, kScheme);
  form->a = -1;
  if (scheme.get() == each && each) {
    form->a = Number(o, kAxis);
  } else if (scheme.get() != one || !one) {
    return "a quantised tensor of another scheme";
  } else if (exact) {
    const Ref scale = Asked(o, kScale);
    form->scale = scale ? PyFloat_AsDouble(scale.get()) : 0;
    form->b = Number(o, kZeroPoint);
  }
  return nullptr;
}

// COO: a, b are the numbers of sparse and dense dimensions, c tells whether it is coalesced. Else a: the number of the
// element type of the indices. few: may it have hardly any elements? The framework takes such a tensor for coalesced,
// so that it tells nothing.
const char* ReadSparse(PyObject* o, size_t rank, bool few, Form* form) {
  static PyObject* const coo = Known("sparse_coo");
  static PyObject* const csr = Known("sparse_csr");
  static PyObject* const csc = Known("sparse_csc");
  if (form->layout == coo) {
    form->c = Asked(o, kCoalesced).get() == Py_True ? kYes : kNo;
    if (Number(o, kNnz) < 2) {
      if (!few || form->c != kYes) return "a sparse tensor with less than two elements";
      form->c = kUnknown;
    }
    form->a = Number(o, kSparseDim);
    form->b = Number(o, kDenseDim);
    return nullptr;
  }
  if (form->layout != csr && form->layout != csc) return "a sparse tensor of blocks";
  if (rank != 2 || Number(o, kDenseDim) != 0) return "a batch of sparse tensors";
  const Ref offsets = Asked(o, form->layout == csr ? kRows : kColumns);
  if (!offsets) return "a sparse tensor without indices";
  form->a = Field<uint16_t>(ImplOf(offsets.get()), Torch()->at.dtype);
  return nullptr;
}

constexpr const char* kCoalescedTexts[] = {"False", "True", "?"};

std::string Describe(PyObject* o, const Form& f) {
  std::string text = (f.layout ? TextOf(Ref::Borrow(f.layout)) : "quantized") + " " + TextOf(Ref(Attr(o, "dtype")));
  const auto add = [&](const std::string& word) { text += " " + word; };
  if (!f.layout) {
    add(f.a >= 0 ? "per_channel_affine" : "per_tensor_affine");
    Ref scale(PyFloat_FromDouble(f.scale));
    if (f.a >= 0) return add(std::to_string(f.a)), add("0"), text;
    return add(f.scale ? TextOf(scale) : "?"), add(f.scale ? std::to_string(f.b) : "?"), text;
  }
  if (text.starts_with("sparse_coo "))
    return add(std::to_string(f.a)), add(std::to_string(f.b)), add(kCoalescedTexts[f.c]), text;
  Ref offsets = Asked(o, text.starts_with("sparse_csr ") ? kRows : kColumns);
  return add(TextOf(Ref(Attr(offsets.get(), "dtype")))), text;
}

}  // namespace

bool ReadOpaque(PyObject* o, Meta* out, const char** why, bool result) {
  static PyObject* const layout_name = PyUnicode_InternFromString("layout");
  static PyObject* const strided = Known("strided");
  const TorchApi* t = Torch();
  const auto no = [&](const char* text) {
    if (why && text) *why = text;
    return false;
  };
  if (!t || !t->at.all() || !t->requires_grad) return no(nullptr);
  const Class c = Classify(o);
  if (c != Class::kTorch && c != Class::kTorchParameter) return no(nullptr);
  const Impl impl = ImplOf(o);
  out->key_set = Field<uint64_t>(impl, t->at.key_set);
  const TorchDims d = DimsOf(*t, impl);
  if (Strange(*t, out->key_set) || Field<int8_t>(impl, t->at.device) != 0 || d.rank > 16) return no(nullptr);
  SavedError saved;
  const OverridesOff off;
  Form form;
  form.type = Field<uint16_t>(impl, t->at.dtype);
  const bool quantised = form.type >= kQInt8 && form.type <= kQInt32;
  Ref layout(PyObject_GetAttr(o, layout_name));
  if (!layout || (layout.get() == strided) != quantised) return PyErr_Clear(), no(nullptr);
  if (!quantised) form.layout = layout.get();
  const auto dtype = FromScalarType(form.type);
  if (!quantised && !dtype) return no("a dtype framejit does not have");
  if (const char* refused = quantised ? ReadQuantised(o, result, &form) : ReadSparse(o, d.rank, result, &form))
    return no(refused);
  const auto number = NumberOf(form, [&] { return Describe(o, form); });
  if (!number) return no(nullptr);
  out->dtype = !quantised             ? *dtype
               : form.type == kQInt8  ? DType::kInt8
               : form.type == kQUInt8 ? DType::kUInt8
                                      : DType::kInt32;
  out->device = *number;
  out->rank = static_cast<int>(d.rank);
  int64_t step = 1;  // of sparse ones no strides are known: as if they lay row by row
  for (int i = out->rank; i-- > 0; step *= std::max<int64_t>(1, d.sizes[i])) {
    out->sizes[i] = d.sizes[i];
    out->strides[i] = quantised ? d.strides[i] : step;
  }
  out->data = out->low = nullptr;
  out->nbytes_extent = 0;
  out->handle = impl;
  out->conj = out->neg = false;
  out->is_inference = t->inplace_key && !(out->key_set & t->inplace_key);
  out->requires_grad = RequiresGrad(o);
  out->has_grad_fn = out->requires_grad && Ref(Attr(o, "is_leaf")).get() == Py_False;
  return true;
}

std::string FormText(Device d) {
  return All().texts.at(d.index - kFirstForm);
}

Device RealDevice(Device d) {
  return IsOpaque(d) ? Device{} : d;
}

std::optional<Device> WhatBothTell(Device a, Device b, bool counted) {
  Form form = All().forms.at(a.index - kFirstForm), other = All().forms.at(b.index - kFirstForm);
  const std::string text = FormText(a);
  std::string known = text;
  if (text.starts_with("sparse_coo ")) {
    const int64_t one = form.c, two = std::exchange(other.c, 0);
    form.c = 0;
    if (!(form == other)) return std::nullopt;
    const bool unlike = one + two == kNo + kYes, yes = one == kYes || two == kYes;
    form.c = unlike ? kUnknown : yes ? kYes : counted && one == kNo && two == kNo ? kNo : kUnknown;
    known = text.substr(0, text.rfind(' ') + 1) + kCoalescedTexts[form.c];
  } else if (!(form == other)) {
    form.scale = other.scale = 0;
    if (form.layout || form.a >= 0) return std::nullopt;
    form.b = other.b = 0;
    if (!(form == other)) return std::nullopt;
    known = text.substr(0, text.find("affine") + 6) + " ? ?";
  }
  return NumberOf(form, [&] { return known; });
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
  for (const shape::IntList* v : {&m.sizes, &m.strides})
    for (shape::Int i : *v)
      if (!i.is_const()) return nullptr;
  Ref module(Import("framejit._opaque")), one(OpaqueStandIn(m, 0));
  Ref text(PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size())));
  Ref fact(module && one && text ? PyObject_CallMethod(module.get(), "fact", "OOsO", one.get(), text.get(),
                                                       FormText(m.device).c_str(), method ? Py_True : Py_False)
                                 : nullptr);
  PyErr_Clear();
  if (!fact || fact.get() == Py_NotImplemented) return nullptr;
  return fact.release();
}

}  // namespace framejit::tensor
