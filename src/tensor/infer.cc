// What an unknown framework call returns: ask the framework. A call that writes one of its operands is declined: the
// caller's bookkeeping of memory would be wrong.
#include "tensor/infer.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "graph/arguments.h"

namespace framejit::tensor {

namespace {

// Tensor arguments get their operand's number: operands come one per appearance, or one per distinct tensor in order.
bool NumberOperands(Call& call, size_t operands) {
  std::vector<TraceId> distinct;
  size_t appearances = 0;
  EachTensor(call, [&](TraceId t) {
    ++appearances;
    if (std::find(distinct.begin(), distinct.end(), t) == distinct.end()) distinct.push_back(t);
  });
  if (operands != appearances && operands != distinct.size()) return false;
  bool by_appearance = operands == appearances;
  size_t next = 0;
  EachArg(call, [&](Arg& a) {
    if (!a.is(Arg::Kind::kTensor)) return;
    size_t first = std::find(distinct.begin(), distinct.end(), a.t) - distinct.begin();
    a.t = static_cast<TraceId>(by_appearance ? next : first);
    ++next;
  });
  return true;
}

bool Concrete(const TensorMeta& m) {
  for (auto& v : {&m.sizes, &m.strides}) {
    for (shape::Int i : *v) {
      if (!i.is_const()) return false;
    }
  }
  return true;
}
bool Concrete(const Arg& a) {
  if (a.is(Arg::Kind::kInt) && !a.i.is_const()) return false;
  for (const Arg& x : a.items) {
    if (!Concrete(x)) return false;
  }
  return true;
}

}  // namespace

std::vector<int64_t> Values(const shape::Ints& v) {
  std::vector<int64_t> out;
  for (shape::Int i : v) out.push_back(i.value());
  return out;
}
PyObject* Tuple(const std::vector<int64_t>& v) {
  PyObject* t = PyTuple_New(v.size());
  for (size_t i = 0; t && i < v.size(); ++i) PyTuple_SET_ITEM(t, i, PyLong_FromLongLong(v[i]));
  return t;
}

TensorMeta FromMeta(const Meta& m, Framework f) {
  TensorMeta out;
  out.framework = f;
  out.dtype = m.dtype;
  out.device = m.device;
  out.conj = m.conj, out.neg = m.neg;
  out.sizes = shape::Ints(m.sizes, m.sizes + m.rank);
  out.strides = shape::Ints(m.strides, m.strides + m.rank);
  return out;
}

bool Flatten(PyObject* o, Arg* shape, Inference* in) {
  Class c = Classify(o);
  if (c == Class::kTorch || c == Class::kTorchParameter || c == Class::kTorchSubclass)
    return AddTorchResult(o, shape, in);
  if (c != Class::kNone) return AddNumpyResult(*Numpy(), o, shape, in);
  if (o == Py_None) {
    *shape = Arg::None();
    return true;
  }
  if (PyList_CheckExact(o) || PyTuple_Check(o)) {
    Arg seq = Arg::Seq(PyList_Check(o) ? Arg::Kind::kList : Arg::Kind::kTuple, {});
    if (PyTuple_Check(o) && !PyTuple_CheckExact(o)) {
      // torch.return_types.max and its like are struct sequences, made from one tuple; a Python named tuple is not.
      // NumPy's are told by their modules.
      if (PyObject_HasAttrString(o, "n_fields")) {
        seq.s = Py_TYPE(o)->tp_name;
      } else {
        Ref module(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "__module__"));
        const char* text = module && PyUnicode_Check(module.get()) ? PyUnicode_AsUTF8(module.get()) : "";
        if (strncmp(text, "numpy.", 6) || !PyObject_HasAttrString(o, "_fields"))
          return in->Fail(std::string("returns a ") + Py_TYPE(o)->tp_name);
        seq.s = std::string(text) + "." + Py_TYPE(o)->tp_name;
      }
    }
    Ref items(PySequence_Fast(o, ""));
    for (Py_ssize_t i = 0; items && i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
      seq.items.emplace_back();
      if (!Flatten(PySequence_Fast_GET_ITEM(items.get(), i), &seq.items.back(), in)) return false;
    }
    *shape = std::move(seq);
    return true;
  }
  return in->Fail(std::string("returns a ") + Py_TYPE(o)->tp_name);
}

namespace {

// Fills in its results and the structure of them, Call::result.
bool Ask(Call& numbered, const std::vector<PyObject*>& constants, Inference* in) {
  bool ok = NumberOperands(numbered, in->metas.size());
  if (!ok) in->Fail("operands do not fit the call");
  for (const TensorMeta& m : in->metas) ok = ok && (Concrete(m) || in->FailSymbolic());
  for (const Arg& a : numbered.args) ok = ok && (Concrete(a) || in->FailSymbolic());
  for (auto& [name, a] : numbered.kwargs) ok = ok && (Concrete(a) || in->FailSymbolic());
  if (!ok) return false;
  const bool torch = numbered.callee.framework() == Framework::kTorch;
  if (torch && Torch()) return InferTorch(*Torch(), numbered, constants, in);
  if (!torch && Numpy()) return InferNumpy(*Numpy(), numbered, constants, in);
  return in->Fail("the framework is not loaded");
}

}  // namespace

bool RaisesOnStandIns(const Call& call, const std::vector<TensorMeta>& operands,
                      const std::vector<PyObject*>& constants) {
  SavedError saved;
  Inference in{operands};
  Call numbered = call;
  return !Ask(numbered, constants, &in) && in.raised;
}

static std::optional<Inferred> Answer(Call& call, const std::vector<PyObject*>& constants, Inference* in,
                                      Refusal* why) {
  SavedError saved;
  Call numbered = call;
  if (!Ask(numbered, constants, in)) {
    if (why) *why = in->why;
    return std::nullopt;
  }
  call.result = std::move(numbered.result);
  in->aliases.resize(in->results.size());
  return Inferred{std::move(in->results), std::move(in->aliases)};
}

std::optional<Inferred> InferByFramework(Call& call, const std::vector<TensorMeta>& operands,
                                         const std::vector<PyObject*>& constants, Refusal* why, bool sizes_made_up) {
  Inference in{operands, sizes_made_up};
  return Answer(call, constants, &in, why);
}

std::optional<Inferred> InferMadeUp(Call& call, const std::vector<TensorMeta>& operands,
                                    const std::vector<PyObject*>& constants, Refusal* why, bool real_only) {
  Inference in{operands, true, real_only};
  return Answer(call, constants, &in, why);
}

}  // namespace framejit::tensor
