// How a call of the framework is bound: what its arguments are to the graph.
#include <algorithm>
#include <cstring>
#include <limits>

#include "bytecode/lines.h"
#include "capture/callees.h"
#include "capture/framework_call.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "graph/arguments.h"
#include "tensor/import.h"
#include "tensor/infer.h"

namespace framejit::capture {

// NumPy's type of that name, if it is one of ours.
static void NameDType(Arg* a) {
  if (!a->is(Arg::Kind::kString)) return;
  static tensor::Named type(callees::kNumpyDType);
  Ref dtype(type.Get() ? PyObject_CallFunction(type.Get(), "s", a->s.c_str()) : nullptr);
  auto d = dtype ? tensor::DTypeOf(dtype.get()) : std::nullopt;
  PyErr_Clear();
  if (!d) return;
  *a = Arg::Str(NameOfDType(*d));
  a->kind = Arg::Kind::kDType;
}

// The number that a tensor holds, beside another tensor. Null: it may not stay in the graph.
Ref FrameworkCall::HeldNumber(PyObject* item, size_t position, bool factor) {
  if (!torch_ || !IsTensorAt(0)) return {};
  const TensorMeta beside = s_.meta(AsTensor(args_[0])->id);
  // As a factor it is read by the framework, which refuses those that its floats cannot hold.
  if (factor) return Ref(beside.device.kind == DeviceKind::kCpu ? ItemAsFactor(s_, item, beside) : nullptr);
  const size_t last = total() - 1;
  const bool takes = callee_.Has(kTakesHeldNumber) || callee_ == callees::kTensorSetItem;
  if (!takes || kwnames_ || position != last) return {};
  if (last == 1) return Ref(callee_.Has(kInPlace) && !IsFloat(beside.dtype) ? nullptr : ItemFor(s_, item, beside));
  // Behind two tensors it is a weight, which is of their type.
  TensorMeta weight = beside;
  weight.sizes.clear();
  if (last != 2 || !(weight.dtype == DType::kFloat32 || weight.dtype == DType::kFloat64)) return {};
  return Ref(Ref(ItemAsFactor(s_, item, weight)) ? ItemFor(s_, item, weight) : nullptr);
}

// A number of NumPy's, an element of an array say, beside torch's tensors: it is a float of Python's, too. Null: it is
// none of these, or there was a Break.
static Ref NumberOfNumpy(Session& s, PyObject* o) {
  if (IsLazy(o) || !IsTensor(o)) return {};
  const TensorMeta& m = s.meta(AsTensor(o)->id);
  if (m.framework != Framework::kNumpy || !m.is_scalar || m.dtype != DType::kFloat64) return {};
  static const Callee array("numpy.array");
  Ref held(s.CallFramework(array, &o, 1, nullptr));
  PyObject* one = held.get();
  Ref tensor(held ? s.CallFramework(callees::kFromNumpy, &one, 1, nullptr) : nullptr);
  return tensor ? Ref(NewItemFloat(s, tensor.get())) : Ref();
}

// Binds one argument of the call. A float that is a symbol stays one where the graph may hold the call with others.
bool FrameworkCall::BindOne(PyObject* o, Arg* a, size_t position, std::string_view keyword) {
  const bool factor = torch_ && callee_.Has(kTakesFactor) && (keyword == "alpha" || keyword == "value");
  Ref made;
  PyObject* item = !IsLazy(o) && IsItemFloat(o) ? o : nullptr;
  // A tensor as a factor is read like one, where what it holds may be guessed to fit.
  if (factor && s_.options().guesses && IsTensor(o) && IsTensorAt(0) &&
      s_.meta(AsTensor(o)->id).dtype == DType::kFloat64 && s_.meta(AsTensor(args_[0])->id).dtype != DType::kFloat64) {
    made = Ref(NewItemFloat(s_, o));
    if (!made && (s_.broken() || PyErr_Occurred())) return false;
    item = made.get();
  } else if (torch_ && position > 0 &&
             (callee_.Has(kTakesHeldNumber) || (position == 2 && callee_ == callees::kTensorSetItem)) &&
             (made = NumberOfNumpy(s_, o))) {
    Ref tensor = HeldNumber(made.get(), position, false);
    if (tensor) return *a = Arg::Tensor(AsTensor(tensor.get())->id), true;
  }
  if (s_.broken() || PyErr_Occurred()) return false;
  if (item) {
    Ref tensor = HeldNumber(item, position, factor);
    if (tensor) return *a = Arg::Tensor(AsTensor(tensor.get())->id), true;
    if (!s_.broken() && !PyErr_Occurred()) s_.Break(BreakId::kTensorItem, callee_ + " of a number that a tensor holds");
    return false;
  }
  const bool takes = torch_ ? callee_.Has(kTakesFloatSymbols)
                            : callee_.Has(kTakesFloatSymbols | kSizedByShapes) && !s_.libraries.torch && !cupy_;
  PyObject* seen = takes ? s_.Resolve(o) : nullptr;
  if (takes && !seen) return false;
  if (!takes || !IsSymFloat(seen)) {
    if (!reader_.Read(o, a)) return false;
    // torch takes no dtypes of NumPy.
    PyObject* type = torch_ && a->is(Arg::Kind::kDType) ? s_.Resolve(o) : nullptr;
    const bool foreign =
        type && (PyType_Check(type) ? FactsOf(reinterpret_cast<PyTypeObject*>(type)).Has(TypeFacts::kOfNumpy)
                                    : !OfType(type, CType::kTorchDType));
    return !foreign || (s_.Break(BreakId::kFrameworkError, callee_ + ": a dtype of NumPy"), false);
  }
  const uint32_t symbol = reinterpret_cast<SymFloat*>(seen)->symbol;
  // torch refuses factors that its floats cannot hold: what stands behind the operands (add(x, y, alpha), alpha=), and
  // what is no operand of arithmetic. NumPy warns of some.
  constexpr double kMost = std::numeric_limits<float>::max();
  if ((factor || position > 1 || !callee_.Has(kTakesHeldNumber)) &&
      !(s_.numbers().Compare(symbol, kMost, Py_LE) && s_.numbers().Compare(symbol, -kMost, Py_GE)))
    return reader_.Read(o, a);
  a->kind = Arg::Kind::kSymFloat;
  a->i = shape::Int::Symbol(symbol);
  return changing_ = true;
}

// There a tuple is data, but a torch.Size is the size of the result.
bool FrameworkCall::SpreadSize() {
  PyObject* shape = s_.Resolve(args_[nargs_ - 1]);
  if (!shape) return false;
  if (!IsSymbolicSize(shape) && !OfType(shape, CType::kTorchSize)) return true;
  const std::vector<Arg> sizes = call_.args.back().items;
  if (sizes.empty()) return s_.Break(BreakId::kUnknownCall, callee_), false;
  call_.args.pop_back();
  call_.args.insert(call_.args.end(), sizes.begin(), sizes.end());
  return true;
}

// Names the element types that are given as text ("float32", "f4"), and those that NumPy's numbers have.
void FrameworkCall::NameDTypes() {
  if (!torch_) {
    if (callee_.last() == "astype" && call_.args.size() > 1) NameDType(&call_.args[1]);
    for (auto& [name, a] : call_.kwargs)
      if (name == "dtype") NameDType(&a);
    auto own = [](Arg& a) {  // not torch's of that name
      if (a.is(Arg::Kind::kDType) && !a.s.starts_with("numpy.")) a.s = "numpy." + a.s;
    };
    for (Arg& a : call_.args) own(a);
    for (auto& [name, a] : call_.kwargs) own(a);
  }
  const bool told = std::any_of(call_.kwargs.begin(), call_.kwargs.end(), [](auto& k) { return k.first == "dtype"; });
  if (!reader_.numpy_number() || !callee_.Has(kReadsDType) || call_.args.size() >= 2 || told) return;
  Arg type;  // This is what these calls make of a NumPy number. Other calls take it for any number.
  type.kind = Arg::Kind::kDType;
  type.s = "float64";
  call_.kwargs.emplace_back("dtype", std::move(type));
}

void FrameworkCall::PlaceOnDefaultDevice() {
  const std::string device = NumberedDevice(s_, s_.modes.default_devices.back());
  if (!torch_ && !cupy_) s_.modes.numpy_devices.insert(device);
  if (device.empty() || !callee_.Has(kOnDefaultDevice)) return;
  auto at = std::find_if(call_.kwargs.begin(), call_.kwargs.end(), [](auto& k) { return k.first == "device"; });
  if (at == call_.kwargs.end()) at = call_.kwargs.emplace(at, "device", Arg::None());
  if (!at->second.is(Arg::Kind::kNone)) return;
  at->second = Arg::Str(device);
  at->second.kind = Arg::Kind::kDevice;
}

// Gives "cuda" its number, whether it is given as a device or as a name.
void FrameworkCall::NumberDevices() {
  auto number = [&](Arg& a) {
    if (a.is(Arg::Kind::kDevice) || (a.is(Arg::Kind::kString) && a.s == "cuda")) a.s = NumberedDevice(s_, a.s);
  };
  for (Arg& a : call_.args) number(a);
  for (auto& [name, a] : call_.kwargs) number(a);
}

void FrameworkCall::Locate() {
  PyFrameObject* f = PyEval_GetFrame();
  if (!f) return;
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
  if (const char* c = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.get())->co_filename)) call_.file = c;
  call_.line = bytecode::LineOf(reinterpret_cast<PyCodeObject*>(code.get()), PyFrame_GetLasti(f));
}

bool FrameworkCall::Bind() {
  call_.args.reserve(nargs_);
  for (Py_ssize_t i = 0; i < nargs_; ++i) {
    Arg a;
    if (!BindOne(args_[i], &a, i)) return false;
    call_.args.push_back(std::move(a));
  }
  for (Py_ssize_t i = 0; kwnames_ && i < PyTuple_GET_SIZE(kwnames_); ++i) {
    Arg a;
    const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(kwnames_, i));
    if (!torch_ && !strcmp(Py_TYPE(args_[nargs_ + i])->tp_name, "_NoValueType")) continue;  // as if it was not given
    if (!name || !BindOne(args_[nargs_ + i], &a, nargs_ + i, name)) return false;
    if (torch_ && a.is(Arg::Kind::kString) && !strcmp(name, "device")) a.kind = Arg::Kind::kDevice;
    call_.kwargs.emplace_back(name, std::move(a));
  }
  const bool sized = callee_ == callees::kTensorNew ? nargs_ == 2 : nargs_ == 1 && callee_.Has(kTypeOfTensors);
  if (sized && !SpreadSize()) return false;
  NameDTypes();
  PlaceOnDefaultDevice();
  if (torch_) NumberDevices();
  Locate();
  return true;
}

}  // namespace framejit::capture
