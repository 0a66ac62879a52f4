#include "tensor/undo.h"

#include <algorithm>
#include <optional>

#include "graph/arguments.h"
#include "surface/rows.h"
#include "tensor/call_step.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

bool IsOff(const Arg* a) {
  return a && ((a->is(Arg::Kind::kBool) && !a->b) || (a->is(Arg::Kind::kFloat) && a->f == 0) ||
               (a->is(Arg::Kind::kInt) && a->i == shape::Int(0)));
}

// Draws numbers: by its name, or as one of the things that drop out inside.
bool Draws(const Call& c) {
  const bool torch = c.callee.name().starts_with("torch");
  auto has = [&](const char* part) { return torch && c.callee.name().find(part) != std::string::npos; };
  if (has("dropout")) return !IsOff(GivenArg(c, 1, {"p"})) && !IsOff(GivenArg(c, 2, {"train", "training"}));
  if (framejit::Draws(c.callee)) return true;
  if (has("scaled_dot_product_attention")) {
    const Arg* p = GivenArg(c, 4, {"dropout_p"});
    return p && !IsOff(p);
  }
  if (has("lstm") || has("gru") || has("rnn"))
    return !(c.args.size() > 6 && c.args[6].is(Arg::Kind::kBool) && IsOff(&c.args[6]));
  return has("attention") && !has("_native_multi_head_attention");
}

PyObject* Generator(int gpu) {  // -1: the CPU's
  const TorchApi* t = Torch();
  if (gpu < 0) return PyObject_GetAttrString(t->module, "default_generator");
  Ref cuda(PyObject_GetAttrString(t->module, "cuda"));
  Ref all(cuda ? PyObject_GetAttrString(cuda.get(), "default_generators") : nullptr);
  return all ? PySequence_GetItem(all.get(), gpu) : nullptr;
}

bool IsTorch(PyObject* o) {
  return Classify(o) <= Class::kTorchSubclass;  // what is written is a tensor
}

// Gives a mode without gradients. It is inference mode for what was made in that, which may not be written outside of
// it.
ModeState Quiet(PyObject* o) {
  ModeState mode = ReadMode();
  Meta m;
  mode.grad = false;
  mode.inference |= ReadMeta(o, &m) && m.is_inference;
  return mode;
}

}  // namespace

bool Overwrite(PyObject* target, PyObject* value, bool counted) {
  if (!IsTorch(target)) return PyObject_SetItem(target, Py_Ellipsis, value) == 0;
  ModeSwitch mode;
  mode.Set(Quiet(target));
  Ref to = counted ? Ref::Borrow(target) : Ref(PyObject_GetAttrString(target, "data"));
  Ref r(to ? PyObject_CallMethod(to.get(), "copy_", "O", value) : nullptr);
  return bool(r);
}

UndoPlan PlanUndo(const Trace& trace, bool direct, bool fails) {
  UndoPlan plan;
  for (const TraceTensor& t : trace.tensors) {
    plan.torch |= t.meta.framework == Framework::kTorch;
    if (direct && fails && t.mutated && t.input >= 0) plan.written.push_back(t.input);
    if (t.meta.device.kind == DeviceKind::kCuda &&
        std::find(plan.gpus.begin(), plan.gpus.end(), t.meta.device.index) == plan.gpus.end())
      plan.gpus.push_back(t.meta.device.index);
  }
  if (plan.torch && fails) plan.random = std::any_of(trace.calls.begin(), trace.calls.end(), Draws);
  return plan;
}

Undo::Undo(const UndoPlan& plan, PyObject* const* inputs) : torch_(plan.torch) {
  std::optional<ModeSwitch> mode;
  if (torch_) mode.emplace();
  for (int i : plan.written) {
    if (mode) mode->Set(Quiet(inputs[i]));
    const bool torch = IsTorch(inputs[i]);
    bool tracked = torch && RequiresGrad(inputs[i]);
    written_.push_back({inputs[i], tracked, Ref(PyObject_CallMethod(inputs[i], torch ? "clone" : "copy", nullptr))});
    ok_ = ok_ && written_.back().copy;
  }
  for (int k = 0; plan.random && k <= static_cast<int>(plan.gpus.size()); ++k) {
    Ref g(Generator(k ? plan.gpus[k - 1] : -1));
    Ref state(g ? PyObject_CallMethod(g.get(), "get_state", nullptr) : nullptr);
    ok_ = ok_ && state;
    generators_.emplace_back(std::move(g), std::move(state));
  }
  PyErr_Clear();
}

bool Undo::Restore() {
  if (!ok_) return false;
  SavedError saved;
  bool ok = true;
  std::optional<ModeSwitch> mode;
  if (torch_) mode.emplace();
  for (const Written& w : written_) {
    if (mode) mode->Set(Quiet(w.input));
    Ref r;
    if (IsTorch(w.input)) {
      // Written with gradients it belongs to the graph now. It did not before: inputs that do are not written.
      if (!w.tracked && RequiresGrad(w.input)) r = Ref(PyObject_CallMethod(w.input, "detach_", nullptr)), ok = ok && r;
    }
    ok = ok && Overwrite(w.input, w.copy.get());
  }
  for (auto& [generator, state] : generators_) {
    Ref r(PyObject_CallMethod(generator.get(), "set_state", "O", state.get()));
    ok = ok && r;
  }
  PyErr_Clear();
  return ok;
}

}  // namespace framejit::tensor
