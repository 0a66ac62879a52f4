// torch.autograd.Function.apply: forward and, where gradients are wanted, backward are captured with a context of ours.
// What this does not model ends the segment before the call, which torch then makes itself.
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/reach.h"
#include "capture/semantics.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

PyObject* Part(const char* name) {  // of framejit._functions, kept for ever
  SuspendScope off;
  Ref module(tensor::Import("framejit._functions"));
  return module ? PyObject_GetAttrString(module.get(), name) : nullptr;
}

// An attribute of torch's base class, as the function that it is.
PyObject* OfBase(const char* name) {
  SuspendScope off;
  Ref base(tensor::ResolveCallee("torch.autograd.Function"));
  Ref value(base ? PyObject_GetAttrString(base.get(), name) : nullptr);
  if (value && PyMethod_Check(value.get())) return Py_NewRef(PyMethod_GET_FUNCTION(value.get()));
  if (!value) PyErr_Clear();
  return value.release();
}

class GradOff {
 public:
  explicit GradOff(Session& s) : s_(s), before_(s.mode) {
    s.mode.grad = false;
    ++s.in_custom;
  }
  ~GradOff() {
    s_.mode = before_;
    --s_.in_custom;
  }
  GradOff(const GradOff&) = delete;

 private:
  Session& s_;
  const ModeState before_;
};

}  // namespace

bool IsFunctionApply(PyObject* function) {
  static PyObject* apply = nullptr;
  if (!apply && tensor::TorchLoaded()) apply = OfBase("apply");
  return apply && function == apply;
}

PyObject* CaptureSemantics::CallCustom(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto refuse = [&](const std::string& why) {
    return s_.Break(BreakId::kAutogradCall, "a torch.autograd.Function: " + why);
  };
  static PyObject *const context_type = Part("Context"), *const setup = OfBase("setup_context"),
                         *const no_backward = OfBase("backward"), *const vjp = OfBase("vjp");
  if (!context_type || !setup || !no_backward || nargs < 1 || !PyType_Check(args[0])) return refuse("an unknown form");
  if (kwnames && PyTuple_GET_SIZE(kwnames)) return refuse("keyword arguments");
  if (s_.vmap.open()) return refuse("under torch.vmap or a derivative");
  PyObject* cls = args[0];
  ++args, --nargs;
  auto attribute = [&](PyObject* o, const char* name) {
    Ref text(PyUnicode_InternFromString(name));
    return Ref(LoadAttr(o, text.get()));
  };

  std::vector<PyObject*> flags;
  bool tracked = false;
  for (Py_ssize_t i = 0; i < nargs; ++i) {
    const bool wants = IsTensor(args[i]) && s_.meta(AsTensor(args[i])->id).requires_grad;
    flags.push_back(wants ? Py_True : Py_False);
    tracked |= wants && s_.mode.grad && !s_.mode.inference;
  }
  Ref needs(BuildTuple(flags.data(), nargs));
  PyObject* one = needs.get();
  Ref context(needs ? Call(context_type, &one, 1, nullptr) : nullptr);
  Ref forward(context ? attribute(cls, "forward") : Ref()), set_up(forward ? attribute(cls, "setup_context") : Ref());
  if (!set_up) return nullptr;

  std::vector<PyObject*> roots(args, args + nargs);
  roots.push_back(forward.get());
  const Reach before = ReachFrom(s_, roots);
  surface::Lowering::Custom custom;
  s_.lowering().BeginCustom(&custom);
  Ref out;
  {
    GradOff off(s_);
    std::vector<PyObject*> all(args, args + nargs);
    if (set_up.get() == setup) {
      all.insert(all.begin(), context.get());
      out = Ref(Call(forward.get(), all.data(), all.size(), nullptr));
    } else {
      if (PyFunction_Check(forward.get()) && reinterpret_cast<PyFunctionObject*>(forward.get())->func_defaults)
        return refuse("setup_context beside a forward with defaults");
      out = Ref(Call(forward.get(), all.data(), all.size(), nullptr));
      Ref inputs(out ? BuildTuple(all.data(), nargs) : nullptr);
      PyObject* three[] = {context.get(), inputs.get(), out.get()};
      Ref r(inputs ? Call(set_up.get(), three, 3, nullptr) : nullptr);
      if (!r) return nullptr;
    }
    if (!out) return nullptr;
  }
  const bool several = PyTuple_Check(out.get());
  if (!several && !IsTensor(out.get())) return refuse("a result that is no tensor");
  std::vector<PyObject*> outputs;
  for (Py_ssize_t i = 0; i < (several ? PyTuple_GET_SIZE(out.get()) : 1); ++i)
    outputs.push_back(s_.Resolve(several ? PyTuple_GET_ITEM(out.get(), i) : out.get()));
  Ref opaque(attribute(context.get(), "_opaque")), obstacle(opaque ? attribute(context.get(), "_obstacle") : Ref());
  if (!obstacle) return nullptr;
  if (obstacle.get() != Py_None) return refuse(PyUnicode_AsUTF8(obstacle.get()));

  std::vector<TraceId> differentiable;
  std::vector<int> number(outputs.size(), -1);  // among these
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i]) return nullptr;
    if (!IsTensor(outputs[i])) continue;
    const TraceId id = AsTensor(outputs[i])->id;
    if (id < custom.tensors) return refuse("a result that is an argument, or comes from outside");
    if (!tracked) continue;
    if (s_.trace().tensors[id].base < custom.tensors) return refuse("a result that is a view");
    bool plain = IsFloat(s_.meta(id).dtype) || IsComplex(s_.meta(id).dtype);
    for (Py_ssize_t k = 0; PyTuple_Check(opaque.get()) && k < PyTuple_GET_SIZE(opaque.get()); ++k)
      plain &= s_.Resolve(PyTuple_GET_ITEM(opaque.get(), k)) != outputs[i];
    if (std::find(differentiable.begin(), differentiable.end(), id) != differentiable.end())
      return refuse("a result that appears twice");
    if (!plain) return refuse("a result without gradients");
    number[i] = static_cast<int>(differentiable.size());
    differentiable.push_back(id);
  }
  if (!tracked || differentiable.empty()) return out.release();

  try {
    Ref backward(attribute(cls, "backward")), other(backward ? attribute(cls, "vjp") : Ref());
    if (!other) return nullptr;
    if (backward.get() == no_backward || (vjp && other.get() != vjp)) return refuse("no backward of its own");
    {  // what is not the context's alone
      const Reach objects = ReachFrom(s_, {context.get(), backward.get()});
      bool shared = objects.outside;
      for (PyObject* o : objects.changeable) {
        PyObject* held = PyCell_Check(o) ? PyCell_GET(o) : nullptr;
        shared |= PyCell_Check(o)
                      ? held && !IsConstantKind(held)
                      : std::find(before.changeable.begin(), before.changeable.end(), o) != before.changeable.end();
      }
      if (shared) return refuse("its backward reads what may have changed until then");
    }
    std::vector<TraceId> tangents = s_.lowering().Tangents(&custom, differentiable);
    std::vector<Ref> held;
    std::vector<PyObject*> given = {context.get()};
    for (size_t i = 0; i < outputs.size(); ++i) {
      held.emplace_back(number[i] < 0 ? Py_NewRef(Py_None) : s_.NewProxy(tangents[number[i]]));
      if (!held.back()) return nullptr;
      given.push_back(held.back().get());
    }
    Ref result;
    {
      GradOff off(s_);
      s_.mode.autocast = {};
      const size_t pending = s_.stores().size() + s_.calls().size();
      s_.later = true;
      result = Ref(Call(backward.get(), given.data(), given.size(), nullptr));
      s_.later = false;
      if (!result) return nullptr;
      if (s_.stores().size() + s_.calls().size() != pending) return refuse("its backward writes to an object");
    }
    const bool tuple = PyTuple_Check(result.get());
    const Py_ssize_t n = tuple ? PyTuple_GET_SIZE(result.get()) : 1;
    std::vector<std::optional<TraceId>> inputs(nargs), grads(nargs);
    for (Py_ssize_t i = 0; i < std::max(n, nargs); ++i) {
      PyObject* g = i >= n ? nullptr : s_.Resolve(tuple ? PyTuple_GET_ITEM(result.get(), i) : result.get());
      if (!g) return s_.broken() ? nullptr : refuse("too few gradients");
      if (g != Py_None && (i >= nargs || !IsTensor(args[i]) || !IsTensor(g))) return refuse("a gradient too many");
      if (i >= nargs || !IsTensor(args[i])) continue;
      inputs[i] = AsTensor(args[i])->id;
      if (g != Py_None) grads[i] = AsTensor(g)->id;
    }
    framejit::Call call;
    call.callee = kCustomCall;
    call.mode = s_.mode;
    call.args.emplace_back();
    if (!s_.ToArg(cls, &call.args[0])) return nullptr;
    for (Py_ssize_t i = 0; i < nargs; ++i) {
      call.args.emplace_back();
      if (!s_.ToArg(args[i], &call.args.back())) return nullptr;
    }
    // results are numbered from here on: EndCustom makes them in this order
    std::vector<Arg> structure;
    const auto next = static_cast<TraceId>(s_.trace().tensors.size());
    for (int k : number) structure.push_back(k < 0 ? Arg::None() : Arg::Tensor(next + static_cast<TraceId>(k)));
    call.result = several ? Arg::Seq(Arg::Kind::kTuple, structure) : structure[0];
    std::vector<TraceId> made = s_.lowering().EndCustom(&custom, std::move(call), inputs, grads);
    ++s_.op_count;
    std::vector<PyObject*> seen;
    for (size_t i = 0; i < outputs.size(); ++i) {
      held.emplace_back(number[i] < 0 ? Py_NewRef(outputs[i]) : s_.NewProxy(made[number[i]]));
      if (!held.back()) return nullptr;
      seen.push_back(held.back().get());
    }
    return several ? BuildTuple(seen.data(), static_cast<Py_ssize_t>(seen.size())) : Py_NewRef(seen[0]);
  } catch (const surface::Decline& d) {
    return refuse(d.what());
  }
}

}  // namespace framejit::capture
