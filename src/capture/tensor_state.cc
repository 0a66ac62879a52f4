#include "capture/tensor_state.h"

#include <algorithm>
#include <optional>

#include "capture/callees.h"
#include "capture/gradients.h"
#include "capture/override.h"
#include "capture/own_attributes.h"
#include "capture/proxy.h"
#include "capture/wrappers/overrides.h"
#include "graph/arguments.h"
#include "graph/opaque.h"
#include "tensor/import.h"
#include "tensor/overrides.h"
#include "tensor/segment_node.h"

namespace framejit::capture {
namespace {

TraceId IdOf(PyObject* proxy) {
  return AsTensor(proxy)->id;
}

bool MayWait(Session& s, PyObject* proxy) {
  const TraceId id = IdOf(proxy);
  return s.meta(id).framework == Framework::kTorch && !s.vmap.open() && !s.in_custom && !s.later && !s.InLookup() &&
         !s.lowering().IsHidden(id);
}

int InputOf(Session& s, PyObject* proxy) {  // -1: it was made here
  return s.trace().tensors[s.pending().Original(IdOf(proxy))].input;
}

PyObject* SetAttr() {
  static PyObject* const set = FromModule("builtins", "setattr");
  return set;
}

// The call function(*args) is made at the exit.
void Wait(Session& s, PyObject* function, std::initializer_list<PyObject*> args, bool hooks = false) {
  PendingCall call{.method = Borrow(function), .hooks = hooks};
  for (PyObject* a : args) call.args.push_back(Borrow(a));
  s.pending().Call(std::move(call));
}

// A method of the tensor class, as torch has it. Null without an error: it was replaced.
PyObject* Method(Session& s, PyObject* proxy, const char* name) {
  if (!AsEver(s, proxy, name)) return nullptr;
  Ref text(PyUnicode_InternFromString(name));
  PyObject* found = text ? s.NoteLookup(reinterpret_cast<PyTypeObject*>(PlainTensorClass(false)), text.get()) : nullptr;
  return found;
}

// Is this input known to be one object only? Guards for that.
void Alone(Session& s, int input) {
  s.guards().Add(guard::Row{guard::Kind::kDistinct, s.input_sources()[input]});
}

// Does a hook, kept gradient or other memory wait for it that what it becomes would not have?
bool Waits(Session& s, PyObject* proxy) {
  return s.pending().Waits(IdOf(proxy)) || s.pending().retains.contains(IdOf(proxy));
}

bool WrittenBehind(Session& s, TraceId id) {  // Is it written, or another view of its memory?
  const TraceTensor& t = s.trace().tensors[id];
  return t.mutated || s.trace().tensors[t.base].mutated;
}

// A tensor with gradients that no operation made: guarded of inputs.
bool IsLeafInput(Session& s, int input) {
  SuspendScope off;
  if (tensor::HasHistory(s.input_tensors()[input])) return false;
  guard::Row row{guard::Kind::kLeaf, s.input_sources()[input]};
  row.here = true;
  s.guards().Add(std::move(row));
  return true;
}

bool SameShape(Session& s, const TensorMeta& a, const TensorMeta& b) {
  bool same = a.dtype == b.dtype && a.device == b.device && a.sizes.size() == b.sizes.size();
  for (size_t i = 0; same && i < a.sizes.size(); ++i) same = s.env().Eq(a.sizes[i], b.sizes[i]);
  return same;
}

// What `value` has, as a tensor through which gradients pass to `tensor`.
PyObject* WithData(Session& s, PyObject* tensor, PyObject* value) {
  static PyObject* const apply = [] {
    SuspendScope off;
    Ref type(FromModule("framejit._data", "WithData"));
    return type ? PyObject_GetAttrString(type.get(), "apply") : nullptr;
  }();
  if (!apply) return nullptr;
  const ModeState before = s.modes.now;
  s.modes.now.grad = true;
  PyObject* args[] = {tensor, value};
  PyObject* made = CurrentSemantics()->Call(apply, args, 2, nullptr);
  s.modes.now = before;
  return made;
}

// What WithData gave, the last function of the graph, has the memory of what was given and is no copy of it: a
// derivative that reads it reads what was written there since.
void NoteGiven(Graph& g) {
  for (auto function = g.nodes.rbegin(); function != g.nodes.rend(); ++function) {
    if (!function->derivative || function->derivative->rule != "custom") continue;
    Node& copy = g.nodes[function->operands[0]];
    if (copy.derivative && copy.derivative->rule == "leaf")
      copy.derivative = std::make_shared<const Derivative>(Derivative{"data", copy.derivative->operands, {}, {}});
    return;
  }
}

// Is it what `data` or `detach()` gives of the tensor: all of its memory, as it lies there?
bool IsDataOf(Session& s, TraceId value, TraceId tensor) {
  const Trace& trace = s.trace();
  while (value != tensor && trace.tensors[value].view_call >= 0) {
    const Call& made = trace.calls[trace.tensors[value].view_call];
    if (!(made.callee == callees::kTensorData || made.callee == callees::kTensorDetach)) return false;
    if (made.args.size() != 1 || !made.args[0].is(Arg::Kind::kTensor)) return false;
    value = made.args[0].t;
  }
  return value == tensor;
}

// Is it a view of a constant, which is no memory to the graph?
bool IsOneNumber(Session& s, TraceId t) {
  ValueId v = s.lowering().ValueOf(t);
  const Graph& g = s.graph();
  for (; !g.node(v).operands.empty(); v = g.node(v).operands[0]) {
    const Node& n = g.node(v);
    const bool same = n.op == Op::kCast && g.node(n.operands[0]).type.dtype == n.type.dtype;
    if (Info(n.op).kind != 'V' && !same) break;
  }
  return g.node(v).op == Op::kConstant;
}

// Has a call read a tensor that was made here so that its result goes on to know of it: by its gradients, or as a view
// (but for `t.data`, which is the memory alone)?
bool IsRemembered(Session& s, TraceId id) {
  const Trace& trace = s.trace();
  for (const Call& c : trace.calls) {
    bool reads = false;
    EachTensor(c, [&](TraceId t) { reads = reads || t == id; });
    if (!reads || c.callee == callees::kTensorData) continue;
    for (TraceId r : c.results)
      if (r != id && (s.meta(r).requires_grad || trace.tensors[r].base == trace.tensors[id].base)) return true;
  }
  return false;
}

// `p.data = u` of what was made here and nothing remembers: it is what it would be if it had been made of `u`.
std::optional<bool> SetDataOfMade(Session& s, PyObject* tensor, PyObject* value) {
  static const Callee track("torch.Tensor.requires_grad_");
  const TraceId id = IdOf(tensor);
  const TensorMeta was = s.meta(id), now = s.meta(IdOf(value));
  if (s.modes.now.inference || was.is_inference || now.is_inference || was.lazy() || now.lazy() || Waits(s, tensor) ||
      was.framework != Framework::kTorch || now.framework != Framework::kTorch || was.device != now.device ||
      s.lowering().IsHidden(IdOf(value)) || DictMade(s.pending(), id) ||
      (was.requires_grad && (!s.lowering().IsLeaf(id) || !IsFloat(now.dtype))) || IsRemembered(s, id) ||
      !AsEver(s, tensor, "data"))
    return s.broken() ? std::optional(false) : std::nullopt;
  Ref made(s.CallFramework(callees::kTensorData, &value, 1, nullptr));
  if (made && was.requires_grad) {
    PyObject* leaf = made.get();
    made = Ref(s.CallFramework(track, &leaf, 1, nullptr));
  }
  if (!made || !IsTensor(made.get())) return false;
  auto& attributes = s.pending().attributes;
  if (auto own = attributes.extract(id)) attributes[IdOf(made.get())] = std::move(own.mapped());
  s.trace().tensors[IdOf(made.get())].meta.is_parameter = was.is_parameter;
  s.Rebind(tensor, IdOf(made.get()));
  return true;
}

std::optional<bool> SetData(Session& s, PyObject* tensor, PyObject* value) {
  const int input = InputOf(s, tensor);
  if (value == tensor && !s.modes.now.inference) return true;  // as nn.Module.to does where nothing changes
  // The end of `p.data -= step`: it gets the memory that it has.
  if (value && IsTensor(value) && !s.modes.now.inference && !s.meta(IdOf(tensor)).is_inference &&
      IsDataOf(s, IdOf(value), IdOf(tensor))) {
    if (AsEver(s, tensor, "data")) return true;
    return s.broken() ? std::optional(false) : std::nullopt;
  }
  if (value && IsTensor(value) && value != tensor && input < 0)
    if (auto set = SetDataOfMade(s, tensor, value)) return set;
  // What the framework keeps for a derivative is this object: with the memory that it has when the gradients come.
  if (input < 0 && s.lowering().MayBeKept(s.trace().tensors[IdOf(tensor)].base))
    s.lowering().LeaveDerivatives("a tensor that a derivative may need gets other memory");
  if (!value || !IsTensor(value) || value == tensor || input < 0 || s.modes.now.inference) return {};
  const TensorMeta was = s.meta(IdOf(tensor)), now = s.meta(IdOf(value));
  if (now.framework != Framework::kTorch || s.lowering().IsHidden(IdOf(value)) || was.is_inference ||
      now.is_inference || was.lazy() || now.lazy() || was.dtype != now.dtype || was.device != now.device ||
      !AsEver(s, tensor, "data"))
    return s.broken() ? std::optional(false) : std::nullopt;
  if (WrittenBehind(s, IdOf(value))) return {};  // SetTooEarly does not know what was written first
  Ref data(s.CallFramework(callees::kTensorData, &value, 1, nullptr));
  if (!data || !IsTensor(data.get())) return false;
  Ref made = data;
  if (WantsGradient(s, tensor)) {
    if (!s.options().uses_leaves || !IsLeafInput(s, input) || !SameShape(s, was, now)) return {};
    if (IsOneNumber(s, IdOf(value))) s.lowering().Lend(IdOf(data.get()));  // it is memory, which may be written
    made = Ref(WithData(s, tensor, data.get()));
    if (!made || !IsTensor(made.get())) return false;
    NoteGiven(s.graph());
    s.pending().replaced.insert(s.trace().tensors[IdOf(value)].base);
  }
  static PyObject* const known = [] {
    SuspendScope off;
    return FromModule("framejit._data", "given");
  }();
  if (!known) return {};
  // Where the framework runs the program, its own records have this object, with whatever memory it gets later.
  Call& given = s.trace().calls.back();
  if (given.results != std::vector{IdOf(made.get())}) return {};
  given.callee = tensor::kGiven;
  given.args = {Arg::Tensor(s.pending().Original(IdOf(tensor))), Arg::Tensor(IdOf(value)),
                Arg::Bool(WantsGradient(s, tensor))};
  given.kwargs.clear();
  Alone(s, input);
  s.trace().tensors[IdOf(made.get())].meta.is_parameter = was.is_parameter;
  s.pending().replaced.insert(IdOf(made.get()));
  s.Rebind(tensor, IdOf(made.get()));
  Wait(s, SetAttr(), {tensor, Interned("data"), value});
  return true;
}

std::optional<bool> SetGrad(Session& s, PyObject* tensor, PyObject* value) {
  const bool none = !value || value == Py_None;
  if (!none && (!IsTensor(value) || value == tensor || s.lowering().IsHidden(IdOf(value)))) return {};
  if (!AsEver(s, tensor, "grad")) return false;
  const int input = InputOf(s, tensor);
  if (input < 0) return none ? std::optional(true) : std::nullopt;  // what was made here has none yet
  if (!none &&
      (s.meta(IdOf(value)).framework != Framework::kTorch || !SameShape(s, s.meta(IdOf(tensor)), s.meta(IdOf(value)))))
    return {};
  Alone(s, input);
  PyObject* now = none ? Py_None : value;
  s.pending().grads.insert_or_assign(s.pending().Original(IdOf(tensor)), Borrow(now));
  Wait(s, SetAttr(), {tensor, Interned("grad"), now});
  return true;
}

// The tensor has no gradients from here on.
PyObject* Stop(Session& s, PyObject* tensor, const char* method, bool leaf) {
  const int input = InputOf(s, tensor);
  const TraceId id = IdOf(tensor);
  if (Waits(s, tensor)) return nullptr;
  if (input >= 0) {
    PyObject* real = s.input_tensors()[input];
    if (tensor::IsView(real) || (leaf && s.meta(id).requires_grad && !IsLeafInput(s, input))) return nullptr;
    if (!s.meta(id).requires_grad) return Py_NewRef(tensor);
    Alone(s, input);
  } else if (leaf && s.lowering().IsLeaf(id)) {
    s.leaf_refused |= s.options().derivatives;
    return s.options().derivatives ? nullptr : TrackLeaf(s, tensor, false);
  } else if (leaf || s.trace().tensors[id].base != id || s.lowering().IsLeaf(id)) {
    return nullptr;
  } else if (s.meta(id).requires_grad && s.lowering().MayBeKept(id)) {  // the framework may refuse the backward pass
    s.lowering().LeaveDerivatives("a tensor that a derivative may need loses its gradients");
    return nullptr;
  }
  for (const TraceTensor& t : s.trace().tensors)  // views, whose base is another tensor then
    if (t.id != id && t.base == id) return nullptr;
  PyObject* function = Method(s, tensor, method);
  if (!function) return nullptr;
  if (!s.meta(id).requires_grad) return Py_NewRef(tensor);
  Ref made(s.CallFramework(callees::kTensorDetach, &tensor, 1, nullptr));
  if (!made || !IsTensor(made.get())) return nullptr;
  s.trace().tensors[IdOf(made.get())].meta.is_parameter = input >= 0 && s.meta(id).is_parameter;
  s.Rebind(tensor, IdOf(made.get()));
  if (input < 0) return Py_NewRef(tensor);
  s.pending().stopped.insert({id, IdOf(made.get())});  // a write behind it may want gradients again
  if (leaf)
    Wait(s, function, {tensor, Py_False});
  else
    Wait(s, function, {tensor});
  return Py_NewRef(tensor);
}

PyObject* RetainGrad(Session& s, PyObject* tensor) {
  if (!WantsGradient(s, tensor)) return nullptr;
  const int input = InputOf(s, tensor);
  const TraceId id = IdOf(tensor);
  // The gradient of a view made here does not pass through the object that leaves the graph.
  if (input < 0 && (s.lowering().IsLeaf(id) || s.trace().tensors[id].base != id)) return nullptr;
  PyObject* function = Method(s, tensor, "retain_grad");
  if (!function) return nullptr;
  if (input >= 0)
    Wait(s, function, {tensor}, /*hooks=*/true);
  else
    s.pending().retains.emplace(id, Borrow(function));
  Py_RETURN_NONE;
}

// Of results that is what they are when it is registered: they must not be written later. A leaf made here is handed
// out for it, as what is computed of it hangs on that very object.
PyObject* RegisterHook(Session& s, PyObject* tensor, const char* name, PyObject* hook) {
  const TraceTensor& t = s.trace().tensors[IdOf(tensor)];
  const int input = InputOf(s, tensor);
  const bool leaves = !strcmp(name, "register_post_accumulate_grad_hook");
  if (!WantsGradient(s, tensor) || WrittenBehind(s, t.id) || (input < 0 && t.base != t.id)) return nullptr;
  if (input < 0 && s.lowering().IsLeaf(t.id)) {  // only the object itself has hooks, not a value of the graph
    s.leaf_refused |= s.options().derivatives;
    if (s.options().derivatives) return nullptr;
  } else if (leaves && (input < 0 || !IsLeafInput(s, input))) {
    return nullptr;
  }
  PyObject* function = Method(s, tensor, name);
  if (!function) return nullptr;
  for (TraceId id : {t.id, t.base}) s.pending().hooked.insert(id);
  Wait(s, function, {tensor, hook}, /*hooks=*/true);
  return NewUnseen(s, "the handle of a hook");
}

// The framework counts a write, by which nothing changes: of what was made here to this call, of memory from outside to
// one that waits.
bool CountWrite(Session& s, PyObject* tensor) {
  static const Callee copy("torch.Tensor.copy_");
  static PyObject* const increment = tensor::ResolveCallee("torch.autograd.graph.increment_version");
  Ref root(s.NewProxy(s.trace().tensors[IdOf(tensor)].base));
  PyObject* same[] = {tensor, tensor};
  if (!root || InputOf(s, root.get()) < 0) return root && Ref(s.CallFramework(copy, same, 2, nullptr));
  if (!increment) return false;
  Alone(s, InputOf(s, root.get()));
  PendingCall call{Borrow(increment), {}};
  call.args.push_back(std::move(root));
  s.pending().Call(std::move(call));
  return true;
}

// Is it, or what it is a view of, one of several views that one call gave?
bool IsOneOfSeveral(const Trace& t, TraceId id) {
  while (t.tensors[id].view_call >= 0) {
    const Call& made = t.calls[t.tensors[id].view_call];
    if (made.results.size() > 1) return true;
    if (made.args.empty() || !made.args[0].is(Arg::Kind::kTensor)) return false;
    id = made.args[0].t;
  }
  return false;
}

// Answers t.unsqueeze_(0): the object is a view of what it was.
PyObject* SeenOtherwise(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* tensor = args[0];
  const int input = InputOf(s, tensor);
  if (s.lowering().IsLeaf(IdOf(tensor)) || s.meta(IdOf(tensor)).is_inference || Waits(s, tensor)) return nullptr;
  // The framework counts it as a write: a backward pass that needs what it was is refused.
  if (s.lowering().MayBeKept(s.trace().tensors[IdOf(tensor)].base)) return nullptr;
  // At the exit the modes may be others, and the object must be what the graph's results were made of.
  const bool other_mode = s.modes.now.inference != s.modes.entry.inference;
  if (input >= 0 && (s.meta(IdOf(tensor)).requires_grad || kwnames || other_mode)) return nullptr;
  const std::string name(callee.last());
  PyObject* function = Method(s, tensor, name.c_str());
  if (!function) return nullptr;
  if (input < 0 && !s.meta(IdOf(tensor)).requires_grad && !CountWrite(s, tensor)) return nullptr;
  // A view whose base was written behind it: where the framework takes it for a leaf, it refuses this as a write. So it
  // does with one of several views that a call gave.
  static const Callee copy("torch.Tensor.copy_");
  const TraceTensor& t = s.trace().tensors[IdOf(tensor)];
  PyObject* const same[] = {tensor, tensor};
  const bool stale =
      t.base != t.id && t.meta.requires_grad && (s.trace().tensors[t.base].mutated || IsOneOfSeveral(s.trace(), t.id));
  if (stale && !Ref(s.CallFramework(copy, same, 2, nullptr))) return nullptr;
  Ref made(s.CallFramework(Callee(callee.name().substr(0, callee.name().size() - 1)), args, nargs, kwnames));
  if (!made || !IsTensor(made.get())) return nullptr;
  // What was made here is no view of anything afterwards, as what detach() makes is none.
  Ref root(s.NewProxy(s.trace().tensors[IdOf(tensor)].base));
  if (input < 0 && root.get() == tensor && !s.meta(IdOf(tensor)).requires_grad) {
    PyObject* view = made.get();
    made = Ref(s.CallFramework(callees::kTensorDetach, &view, 1, nullptr));
    if (!made || !IsTensor(made.get())) return nullptr;
  }
  if (input >= 0) {
    Alone(s, input);
    PendingCall call{Borrow(function), {}};
    for (Py_ssize_t i = 0; i < nargs; ++i) call.args.push_back(Borrow(args[i]));
    s.pending().Call(std::move(call));
  }
  if (IdOf(made.get()) != IdOf(tensor)) s.Rebind(tensor, IdOf(made.get()));
  return Py_NewRef(tensor);
}

// x.new().resize_(2, 3) and .resize_as_(y): what is empty and was made here becomes memory that nobody has written to.
// Nothing waits for the exit, so a Function's forward and backward may do so with what they made.
PyObject* Resized(Session& s, PyObject* const* args, Py_ssize_t nargs, bool as_other) {
  PyObject* tensor = args[0];
  const TraceId id = IdOf(tensor);
  const TensorMeta& m = s.meta(id);
  if (m.framework != Framework::kTorch || s.vmap.open() || s.InLookup() || s.lowering().IsHidden(id) ||
      ((s.in_custom || s.later) && (s.made_within == 0 || id < s.made_within)))
    return nullptr;
  if (InputOf(s, tensor) >= 0 || s.trace().tensors[id].base != id || m.sizes != shape::Ints{shape::Int(0)} ||
      m.requires_grad || m.is_inference || s.modes.now.inference || s.lowering().IsLeaf(id) || Waits(s, tensor) ||
      (tensor::ReadTorchState().words[5] & 1))  // deterministic algorithms, which fill it once more
    return nullptr;
  for (const TraceTensor& t : s.trace().tensors)
    if (t.id != id && t.base == id) return nullptr;
  static const Callee empty("torch.Tensor.new_empty"), zero("torch.Tensor.zero_");
  const bool torchs = as_other && IsTensor(args[1]) && s.meta(IdOf(args[1])).framework == Framework::kTorch;
  Ref shape(torchs ? TensorAttr(s, args[1], Interned("shape")) : nullptr);
  if (as_other && !shape) return nullptr;
  PyObject* like[] = {tensor, shape.get()};
  Ref made(s.CallFramework(empty, as_other ? like : args, nargs, nullptr));
  if (!made || !IsTensor(made.get())) return nullptr;
  PyObject* written = made.get();  // A write to the program, which counts as one; what is written over costs nothing.
  if (!Ref(s.CallFramework(zero, &written, 1, nullptr))) return nullptr;
  s.Rebind(tensor, IdOf(made.get()));
  return Py_NewRef(tensor);
}

}  // namespace

std::optional<bool> SetOfTensor(Session& s, PyObject* tensor, std::string_view name, PyObject* value) {
  if (!MayWait(s, tensor) || IsOpaque(s.meta(IdOf(tensor)))) return {};
  if (value && IsTensor(value) && IsOpaque(s.meta(IdOf(value)))) return {};
  if (name == "grad") return SetGrad(s, tensor, value);
  if (name == "data") return SetData(s, tensor, value);
  if (name != "requires_grad" || (value != Py_False && value != Py_True)) return {};
  if (!AsEver(s, tensor, "requires_grad")) return false;
  const int input = InputOf(s, tensor);
  if (s.meta(IdOf(tensor)).requires_grad == (value == Py_True)) {  // of what an operation made the framework refuses it
    const bool leaf = value == Py_False || (input >= 0 ? IsLeafInput(s, input) : s.lowering().IsLeaf(IdOf(tensor)));
    return leaf ? std::optional(true) : std::nullopt;
  }
  if (value == Py_True) {
    Ref leaf(MakeLeaf(s, tensor));
    return leaf ? std::optional(true) : s.broken() || PyErr_Occurred() ? std::optional(false) : std::nullopt;
  }
  Ref done(Stop(s, tensor, "requires_grad_", true));
  return done ? std::optional(true) : s.broken() || PyErr_Occurred() ? std::optional(false) : std::nullopt;
}

PyObject* SetByCall(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  if (!callees::IsTensorMethod(callee) || !nargs || !IsTensor(args[0])) return nullptr;
  const std::string_view name = callee.last();
  for (const char* view : {"squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"})
    if (name == view && MayWait(s, args[0])) return SeenOtherwise(s, callee, args, nargs, kwnames);
  if (kwnames) return nullptr;
  const bool as_other = nargs == 2 && name == "resize_as_";
  if (as_other || (nargs >= 2 && name == "resize_")) return Resized(s, args, nargs, as_other);
  if (nargs == 1 && name == "detach_" && MayWait(s, args[0])) return Stop(s, args[0], "detach_", false);
  if (nargs == 1 && name == "retain_grad" && MayWait(s, args[0])) return RetainGrad(s, args[0]);
  if (nargs == 2 && name == "requires_grad_" && args[1] == Py_False && s.meta(IdOf(args[0])).requires_grad &&
      MayWait(s, args[0]))
    return Stop(s, args[0], "requires_grad_", true);
  for (const char* hook : {"register_hook", "register_post_accumulate_grad_hook"})
    if (nargs == 2 && name == hook && MayWait(s, args[0])) return RegisterHook(s, args[0], hook, args[1]);
  return nullptr;
}

bool ReadsFormerData(Session& s, const std::vector<TraceId>& results) {
  std::vector<TraceId> former;
  for (auto [now, input] : s.pending().rebound) {
    const auto replaces = [&, now = now, input = input](const auto& other) {
      return other.first > now && other.second == input && s.pending().replaced.contains(other.first);
    };
    const bool data = s.pending().replaced.contains(now) && s.lowering().MayBeKept(s.trace().tensors[now].base);
    if (data && std::any_of(s.pending().rebound.begin(), s.pending().rebound.end(), replaces)) former.push_back(now);
  }
  return !former.empty() && std::any_of(results.begin(), results.end(), [&](TraceId t) {
    return s.meta(t).requires_grad && s.trace().tensors[t].input < 0 && !s.lowering().IsFreed(t) &&
           s.lowering().Depends(t, former);
  });
}

std::string SetTooEarly(Session& s, const std::vector<TraceId>& results) {
  const auto& tensors = s.trace().tensors;
  const PendingEffects& waits = s.pending();
  const auto written = [&](TraceId id) { return WrittenBehind(s, id); };
  if (std::any_of(waits.hooked.begin(), waits.hooked.end(), written))
    return "a tensor is written to that was given a hook before";
  if (std::any_of(waits.replaced.begin(), waits.replaced.end(), written))
    return "a tensor is written to that was given other memory before";
  if (std::any_of(waits.stopped.begin(), waits.stopped.end(), written))
    return "a tensor is written to that lost its gradients before";
  if (s.options().whole && ReadsFormerData(s, results)) return "a tensor that a derivative may need gets other memory";
  for (TraceId id : results) {
    const TraceTensor& t = tensors[id];
    for (auto& [now, input] : waits.rebound)
      if (id > now && t.base == tensors[now].base && waits.Waits(now))
        return "a view of a tensor that was given other memory, or lost its gradients, is a result";
    if (t.base == id || tensors[t.base].input >= 0) continue;
    const bool there = std::find(results.begin(), results.end(), t.base) != results.end();
    if (!there && s.pending().retains.contains(t.base)) return "a view of a tensor that keeps its gradient is a result";
    // Outside it would be a view of what the object was before. Only detach() makes no such view.
    Ref base(s.NewProxy(t.base));
    if (base && IdOf(base.get()) != t.base && t.view_call >= 0 &&
        s.trace().calls[t.view_call].callee != callees::kTensorDetach)
      return "a tensor that was made a view of itself is a result";
  }
  return "";
}

}  // namespace framejit::capture
