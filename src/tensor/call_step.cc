#include "tensor/call_step.h"

#include <bit>
#include <cstring>

#include "tensor/import.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

RunEnd EndOfCall() {
  if (PyErr_ExceptionMatches(PyExc_FloatingPointError) || PyErr_ExceptionMatches(PyExc_Warning)) return RunEnd::kTold;
  if (PyErr_ExceptionMatches(PyExc_MemoryError)) return RunEnd::kMemory;
  PyObject* type = PyErr_Occurred();
  const bool torchs = type && PyType_Check(type) &&
                      std::string_view(reinterpret_cast<PyTypeObject*>(type)->tp_name).ends_with("OutOfMemoryError");
  return torchs ? RunEnd::kMemory : RunEnd::kRefused;
}

namespace {

constexpr size_t kMaxArgs = 64;  // bits of a word

PyObject* TorchObject(const std::string& name) {
  const TorchApi* t = Torch();
  if (!t) return PyErr_Format(PyExc_RuntimeError, "framejit: torch is not loaded");
  return PyObject_GetAttrString(t->module, name.c_str());
}

PyObject* DTypeByText(const std::string& text) {
  constexpr std::string_view kNumpy = "numpy.";  // of a call of NumPy's
  const TorchApi* t = text.starts_with(kNumpy) ? nullptr : Torch();
  if (t) {
    if (PyObject* o = PyObject_GetAttrString(t->module, text.c_str())) return o;
    PyErr_Clear();
  }
  if (auto d = ParseDType(text)) return DTypeObject(t ? Framework::kTorch : Framework::kNumpy, *d);
  Ref np(Import("numpy"));
  const char* name = text.c_str() + (text.starts_with(kNumpy) ? kNumpy.size() : 0);
  return np ? PyObject_CallMethod(np.get(), "dtype", "s", name) : nullptr;
}

}  // namespace

PyObject* MakeConstant(const Arg& a, const std::vector<PyObject*>& constants) {
  using K = Arg::Kind;
  switch (a.kind) {
    case K::kNone: return Py_NewRef(Py_None);
    case K::kBool: return PyBool_FromLong(a.b);
    case K::kInt: return PyLong_FromLongLong(a.i.value());
    case K::kFloat: return PyFloat_FromDouble(a.f);
    case K::kComplex: return PyComplex_FromDoubles(a.f, a.imag);
    case K::kString: return PyUnicode_FromStringAndSize(a.s.data(), a.s.size());
    case K::kDType: return DTypeByText(a.s);
    case K::kDevice: {
      Ref type(TorchObject("device"));
      return type ? PyObject_CallFunction(type.get(), "s", a.s.c_str()) : nullptr;
    }
    case K::kLayout:
    case K::kMemoryFormat: return TorchObject(a.s);
    case K::kEllipsis: return Py_NewRef(Py_Ellipsis);
    case K::kTuple:
    case K::kList: {
      Ref seq(a.is(K::kTuple) ? PyTuple_New(a.items.size()) : PyList_New(a.items.size()));
      for (size_t i = 0; seq && i < a.items.size(); ++i) {
        PyObject* x = MakeConstant(a.items[i], constants);
        if (!x) return nullptr;
        if (a.is(K::kTuple))
          PyTuple_SET_ITEM(seq.get(), i, x);
        else
          PyList_SET_ITEM(seq.get(), i, x);
      }
      return seq.release();
    }
    case K::kSlice: {
      Ref s(MakeConstant(a.items[0], constants)), e(s ? MakeConstant(a.items[1], constants) : nullptr),
          t(e ? MakeConstant(a.items[2], constants) : nullptr);
      return t ? PySlice_New(s.get(), e.get(), t.get()) : nullptr;
    }
    case K::kDict: {
      Ref d(PyDict_New());
      for (size_t i = 0; d && i + 1 < a.items.size(); i += 2) {
        Ref k(MakeConstant(a.items[i], constants)), v(k ? MakeConstant(a.items[i + 1], constants) : nullptr);
        if (!v || PyDict_SetItem(d.get(), k.get(), v.get()) < 0) return nullptr;
      }
      return d.release();
    }
    case K::kObject: {
      auto i = static_cast<size_t>(a.i.value());
      if (i >= constants.size())
        return PyErr_Format(PyExc_SystemError, "framejit: constant %zu of %zu", i, constants.size());
      return Py_NewRef(constants[i]);
    }
    case K::kSymFloat:
    case K::kTensor: break;
  }
  return PyErr_Format(PyExc_SystemError, "framejit: a tensor is no constant");
}

bool CallStep::InitArg(const Arg& a, const std::vector<PyObject*>& constants, absl::FunctionRef<int(TraceId)> slot_of,
                       Hole* out) {
  using K = Arg::Kind;
  if (a.is(K::kTensor)) {
    out->kind = Hole::kSlot;
    out->slot = slot_of(a.t);
    return true;
  }
  if (a.is(K::kInt) && !a.i.is_const()) {
    out->kind = Hole::kInt;
    out->inner = std::make_unique<Inner>(a.i);
    return true;
  }
  if (a.is(K::kSymFloat)) {
    out->kind = Hole::kFloat;
    out->inner = std::make_unique<Inner>(a.i);
    return true;
  }
  const bool changeable = a.is(K::kList) || a.is(K::kDict);  // a fresh one per call, as the program made
  if (changeable || !a.items.empty()) {
    out->inner = std::make_unique<Inner>();
    std::vector<Hole>& items = out->inner->items;
    items.reserve(a.items.size());
    bool fixed = !changeable;
    for (const Arg& x : a.items) {
      items.emplace_back();
      if (!InitArg(x, constants, slot_of, &items.back())) return false;
      fixed = fixed && items.back().kind == Hole::kConst;
    }
    out->kind = a.is(K::kTuple)   ? Hole::kTuple
                : a.is(K::kList)  ? Hole::kList
                : a.is(K::kSlice) ? Hole::kSlice
                                  : Hole::kDict;
    if (!fixed) return true;
    out->inner.reset();
  }
  out->kind = Hole::kConst;
  out->constant = Ref(MakeConstant(a, constants));
  return static_cast<bool>(out->constant);
}

PyObject* CallStep::Build(const Hole& h, PyObject* const* slots, const int64_t* symbols) {
  switch (h.kind) {
    case Hole::kConst: return Py_NewRef(h.constant.get());
    case Hole::kSlot: return Py_NewRef(slots[h.slot]);
    case Hole::kInt: return PyLong_FromLongLong(h.inner->value.Eval({symbols, symbols ? size_t{1} << 20 : 0}));
    case Hole::kFloat:
      return PyFloat_FromDouble(std::bit_cast<double>(h.inner->value.Eval({symbols, symbols ? size_t{1} << 20 : 0})));
    case Hole::kTuple:
    case Hole::kList: {
      Py_ssize_t n = static_cast<Py_ssize_t>(h.inner->items.size());
      PyObject* seq = h.kind == Hole::kTuple ? PyTuple_New(n) : PyList_New(n);
      for (Py_ssize_t i = 0; seq && i < n; ++i) {
        PyObject* x = Build(h.inner->items[i], slots, symbols);
        if (!x) {
          Py_CLEAR(seq);
        } else if (h.kind == Hole::kTuple) {
          PyTuple_SET_ITEM(seq, i, x);
        } else {
          PyList_SET_ITEM(seq, i, x);
        }
      }
      return seq;
    }
    case Hole::kSlice: {
      Ref s(Build(h.inner->items[0], slots, symbols)), e(Build(h.inner->items[1], slots, symbols)),
          t(Build(h.inner->items[2], slots, symbols));
      return s && e && t ? PySlice_New(s.get(), e.get(), t.get()) : nullptr;
    }
    case Hole::kDict: {
      Ref d(PyDict_New());
      for (size_t i = 0; d && i + 1 < h.inner->items.size(); i += 2) {
        Ref k(Build(h.inner->items[i], slots, symbols)), v(Build(h.inner->items[i + 1], slots, symbols));
        if (!k || !v || PyDict_SetItem(d.get(), k.get(), v.get()) < 0) return nullptr;
      }
      return d.release();
    }
  }
  return nullptr;
}

namespace {

struct BinaryRow {
  const char* name;
  binaryfunc fn;
  bool swapped;
};
constexpr BinaryRow kBinary[] = {
    {"__add__", PyNumber_Add, false},
    {"__radd__", PyNumber_Add, true},
    {"__sub__", PyNumber_Subtract, false},
    {"__rsub__", PyNumber_Subtract, true},
    {"__mul__", PyNumber_Multiply, false},
    {"__rmul__", PyNumber_Multiply, true},
    {"__truediv__", PyNumber_TrueDivide, false},
    {"__rtruediv__", PyNumber_TrueDivide, true},
    {"__floordiv__", PyNumber_FloorDivide, false},
    {"__rfloordiv__", PyNumber_FloorDivide, true},
    {"__mod__", PyNumber_Remainder, false},
    {"__rmod__", PyNumber_Remainder, true},
    {"__matmul__", PyNumber_MatrixMultiply, false},
    {"__rmatmul__", PyNumber_MatrixMultiply, true},
    {"__and__", PyNumber_And, false},
    {"__rand__", PyNumber_And, true},
    {"__or__", PyNumber_Or, false},
    {"__ror__", PyNumber_Or, true},
    {"__xor__", PyNumber_Xor, false},
    {"__rxor__", PyNumber_Xor, true},
    {"__lshift__", PyNumber_Lshift, false},
    {"__rlshift__", PyNumber_Lshift, true},
    {"__rshift__", PyNumber_Rshift, false},
    {"__rrshift__", PyNumber_Rshift, true},
    {"__iadd__", PyNumber_InPlaceAdd, false},
    {"__isub__", PyNumber_InPlaceSubtract, false},
    {"__imul__", PyNumber_InPlaceMultiply, false},
    {"__itruediv__", PyNumber_InPlaceTrueDivide, false},
    {"__ifloordiv__", PyNumber_InPlaceFloorDivide, false},
    {"__imod__", PyNumber_InPlaceRemainder, false},
    {"__iand__", PyNumber_InPlaceAnd, false},
    {"__ior__", PyNumber_InPlaceOr, false},
    {"__ixor__", PyNumber_InPlaceXor, false},
    {"__ilshift__", PyNumber_InPlaceLshift, false},
    {"__irshift__", PyNumber_InPlaceRshift, false},
    {"__imatmul__", PyNumber_InPlaceMatrixMultiply, false},
};
struct UnaryRow {
  const char* name;
  unaryfunc fn;
};
constexpr UnaryRow kUnary[] = {
    {"__neg__", PyNumber_Negative},
    {"__pos__", PyNumber_Positive},
    {"__invert__", PyNumber_Invert},
    {"__abs__", PyNumber_Absolute},
};
PyObject* Power(PyObject* a, PyObject* b) {
  return PyNumber_Power(a, b, Py_None);
}
PyObject* InPlacePower(PyObject* a, PyObject* b) {
  return PyNumber_InPlacePower(a, b, Py_None);
}
constexpr BinaryRow kPower[] = {
    {"__pow__", Power, false}, {"__rpow__", Power, true}, {"__ipow__", InPlacePower, false}};
constexpr const char* kCompareNames[] = {"__lt__", "__le__", "__eq__", "__ne__", "__gt__", "__ge__"};  // Py_LT ...

}  // namespace

// A slot wrapper called as a function packs a tuple; the slot itself is what the user's operator ran, and faster.
void CallStep::PickForm(Callee callee) {
  const std::string_view name = callee.last();
  size_t n = args_.size();
  bool plain = !kwnames_;
  if (OwnCall own = FindOwnCall(callee.name())) {
    form_ = Form::kOwn;
    fn_.own = own;
    return;
  }
  const char* type = Py_TYPE(callable_.get())->tp_name;
  if (name == "__get__" && n == 1 && plain && !strcmp(type, "method-wrapper")) {
    Ref self(PyObject_GetAttrString(callable_.get(), "__self__"));
    if (self && Py_TYPE(self.get())->tp_descr_get) {
      form_ = Form::kDescrGet;
      fn_.get = Py_TYPE(self.get())->tp_descr_get;
      callable_ = self;
    }
    PyErr_Clear();
    return;
  }
  if (!plain || strcmp(type, "wrapper_descriptor")) return;
  if (name == "__getitem__" && n == 2) form_ = Form::kGetItem;
  if (name == "__setitem__" && n == 3) form_ = Form::kSetItem;
  auto binary = [&](const BinaryRow& r) {
    if (n != 2 || name != r.name) return;
    form_ = r.swapped ? Form::kBinarySwapped : Form::kBinary;
    fn_.binary = r.fn;
  };
  for (const BinaryRow& r : kBinary) binary(r);
  for (const BinaryRow& r : kPower) binary(r);
  for (const UnaryRow& r : kUnary) {
    if (n == 1 && name == r.name) form_ = Form::kUnary, fn_.unary = r.fn;
  }
  for (int op = 0; op < 6; ++op) {
    if (n == 2 && name == kCompareNames[op]) form_ = Form::kCompare, fn_.compare = op;
  }
}

bool CallStep::Init(const Call& call, const std::vector<PyObject*>& constants, absl::FunctionRef<int(TraceId)> slot_of,
                    PyObject* callable) {
  mode = call.mode;
  callable_ = Ref(callable ? Py_NewRef(callable) : ResolveCallee(call.callee));
  if (!callable_) return false;
  positional_ = call.args.size();
  args_.reserve(call.args.size() + call.kwargs.size());
  for (const Arg& a : call.args) {
    args_.emplace_back();
    if (!InitArg(a, constants, slot_of, &args_.back())) return false;
  }
  if (!call.kwargs.empty()) {
    kwnames_ = Ref(PyTuple_New(call.kwargs.size()));
    for (size_t i = 0; kwnames_ && i < call.kwargs.size(); ++i) {
      PyObject* name = PyUnicode_InternFromString(call.kwargs[i].first.c_str());
      if (!name) return false;
      PyTuple_SET_ITEM(kwnames_.get(), i, name);
      args_.emplace_back();
      if (!InitArg(call.kwargs[i].second, constants, slot_of, &args_.back())) return false;
    }
  }
  if (args_.size() > kMaxArgs) {
    PyErr_Format(PyExc_SystemError, "framejit: %zu arguments in one call", args_.size());
    return false;
  }
  for (TraceId id : call.results) result_slots_.push_back(slot_of(id));
  const bool one = result_slots_.size() == 1 && (call.result.is(Arg::Kind::kTensor) || call.result.is_none());
  if (!one) result_ = std::make_unique<const Arg>(call.result);
  PickForm(call.callee);
  return true;
}

PyObject* CallStep::Invoke(PyObject* const* slots, const int64_t* symbols) const {
  constexpr size_t kFew = 12;
  PyObject* few[kFew + 1];
  std::vector<PyObject*> many;
  PyObject** args = few + 1;
  size_t n = args_.size();
  if (n > kFew) {
    many.resize(n + 1);
    args = many.data() + 1;
  }
  uint64_t owned = 0;  // bit i: args[i] was made for this call
  bool ok = true;
  size_t i = 0;
  for (; i < n; ++i) {
    const Hole& h = args_[i];
    if (h.kind == Hole::kSlot) {
      args[i] = slots[h.slot];
    } else if (h.kind == Hole::kConst) {
      args[i] = h.constant.get();
    } else {
      args[i] = Build(h, slots, symbols);
      if (!args[i]) {
        ok = false;
        break;
      }
      owned |= uint64_t{1} << i;
    }
  }
  PyObject* r = nullptr;
  if (ok) {
    switch (form_) {
      case Form::kOwn:
        r = fn_.own(args, positional_, kwnames_.get());
        if (r || PyErr_Occurred()) break;
        [[fallthrough]];
      case Form::kVectorcall:
        r = PyObject_Vectorcall(callable_.get(), args, positional_ | PY_VECTORCALL_ARGUMENTS_OFFSET, kwnames_.get());
        break;
      case Form::kDescrGet: r = fn_.get(callable_.get(), args[0], reinterpret_cast<PyObject*>(Py_TYPE(args[0]))); break;
      case Form::kGetItem: r = PyObject_GetItem(args[0], args[1]); break;
      case Form::kSetItem: r = PyObject_SetItem(args[0], args[1], args[2]) < 0 ? nullptr : Py_NewRef(Py_None); break;
      case Form::kUnary: r = fn_.unary(args[0]); break;
      case Form::kBinary: r = fn_.binary(args[0], args[1]); break;
      case Form::kBinarySwapped: r = fn_.binary(args[1], args[0]); break;
      case Form::kCompare: r = PyObject_RichCompare(args[0], args[1], fn_.compare); break;
    }
  }
  for (size_t j = 0; owned; ++j, owned >>= 1) {
    if (owned & 1) Py_DECREF(args[j]);
  }
  return r;
}

// Follows the structure of the captured result; tensors go to their slots in order.
int CallStep::Store(PyObject* value, const Arg& shape, PyObject** slots, size_t* next) const {
  using K = Arg::Kind;
  if (shape.is(K::kTensor)) {
    if (*next >= result_slots_.size()) return 0;
    PyObject*& slot = slots[result_slots_[(*next)++]];
    Py_INCREF(value);
    Py_XSETREF(slot, value);
    return 0;
  }
  if (!shape.is(K::kTuple) && !shape.is(K::kList)) return 0;
  Ref seq(PySequence_Fast(value, "framejit: the call returned another structure than when it was captured"));
  if (!seq) return -1;
  if (PySequence_Fast_GET_SIZE(seq.get()) != static_cast<Py_ssize_t>(shape.items.size())) {
    PyErr_SetString(PyExc_RuntimeError,
                    "framejit: the call returned another number of results than when it was captured");
    return -1;
  }
  for (size_t i = 0; i < shape.items.size(); ++i) {
    if (Store(PySequence_Fast_GET_ITEM(seq.get(), i), shape.items[i], slots, next) < 0) return -1;
  }
  return 0;
}

int CallStep::Run(PyObject** slots, const int64_t* symbols) const {
  PyObject* r = Invoke(slots, symbols);
  if (!r) return -1;
  if (!result_) {
    Py_XSETREF(slots[result_slots_[0]], r);
    return 0;
  }
  size_t next = 0;
  int status = result_slots_.empty() ? 0 : Store(r, *result_, slots, &next);
  Py_DECREF(r);
  return status;
}

ModeSwitch::ModeSwitch() : start_(ReadMode()), now_(start_) {}

ModeSwitch::~ModeSwitch() {
  if (now_ == start_ && !inference_) return;
  SavedError saved;
  if (inference_) {
    Ref r(PyObject_CallMethod(inference_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
    if (!r) PyErr_WriteUnraisable(nullptr);
  }
  SetGradMode(start_.grad);
}

void ModeSwitch::Change(ModeState m) {
  if (m.inference != now_.inference) {
    SavedError saved;
    if (inference_) {
      Ref r(PyObject_CallMethod(inference_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None));
      inference_ = Ref();
      PyErr_Clear();
    }
    if (m.inference != start_.inference) {
      const TorchApi* t = Torch();
      Ref type(PyObject_GetAttrString(t->c_module, "_InferenceMode"));
      inference_ = Ref(type ? PyObject_CallFunction(type.get(), "O", m.inference ? Py_True : Py_False) : nullptr);
      Ref entered(inference_ ? PyObject_CallMethod(inference_.get(), "__enter__", nullptr) : nullptr);
      PyErr_Clear();
    }
  }
  SetGradMode(m.grad);
  now_ = m;
}

}  // namespace framejit::tensor
