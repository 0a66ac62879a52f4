// torch.autograd.Function.apply: forward and, where gradients are wanted, backward are captured with a context of ours.
// What this does not model ends the segment before the call, which torch then makes itself.
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <map>

#include "capture/callees.h"
#include "capture/class_attributes.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/reach.h"
#include "capture/semantics.h"
#include "capture/wrappers/tape.h"

namespace framejit::capture {
namespace {

// An attribute of torch's base class, as the function that it is.
PyObject* OfBase(const char* name) {
  SuspendScope off;
  Ref base(tensor::ResolveCallee(callees::kFunction));
  Ref value(base ? PyObject_GetAttrString(base.get(), name) : nullptr);
  if (value && PyMethod_Check(value.get())) return Py_NewRef(PyMethod_GET_FUNCTION(value.get()));
  if (!value) PyErr_Clear();
  return value.release();
}

// What a subclass of torch.autograd.Function is compared with.
struct Parts {
  PyObject *context = FromModule("framejit._functions", "Context"), *setup = OfBase("setup_context"),
           *backward = OfBase("backward"), *vjp = OfBase("vjp");
};
const Parts& TorchParts() {
  static const Parts parts;
  return parts;
}

// `custom`: what happens is part of a call that the trace will keep as one.
class GradOff {
 public:
  GradOff(Session& s, bool custom) : s_(s), custom_(custom), before_(s.modes.now) {
    s.modes.now.grad = false;
    s.in_custom += custom;
  }
  ~GradOff() {
    s_.modes.now = before_;
    s_.in_custom -= custom_;
  }
  GradOff(const GradOff&) = delete;

 private:
  Session& s_;
  const bool custom_;
  const ModeState before_;
};

}  // namespace

bool IsFunctionApply(PyObject* function) {
  static PyObject* apply = nullptr;
  if (!apply && tensor::TorchLoaded()) apply = OfBase("apply");
  if (!apply || !PyCFunction_Check(apply)) return apply && function == apply;
  const auto method = [](PyObject* f) { return reinterpret_cast<PyCFunctionObject*>(f)->m_ml; };
  return PyCFunction_Check(function) && method(function) == method(apply);
}

namespace {

// One call of Function.apply: its forward is captured, then its backward, with stand-ins for the gradients.
class CustomCall {
 public:
  CustomCall(CaptureSemantics& sem, Session& s, PyObject* cls, PyObject* const* args, Py_ssize_t nargs)
      : sem_(sem), s_(s), cls_(cls), args_(args), nargs_(nargs) {}
  PyObject* Run();

 private:
  // The phases follow in the order in which they run. It is false after a Break or with an exception set.
  bool MakeContext();
  bool Forward();
  bool LookAtOutputs();
  bool AsResult(PyObject** output);
  PyObject* WithGradients();  // throws Decline
  PyObject* RowMajorZeros(PyObject* like);
  bool MayRunLater(const std::vector<PyObject*>& roots);
  std::vector<PyObject*> Given();
  using Memory = std::map<TraceId, ValueId>;
  Memory MemoryOf(const Reach& objects);
  bool Backward(PyObject* backward);
  bool TakeGradients();
  bool StateOf(Ref* names, Ref* values, Ref* held);
  PyObject* Wanting(PyObject* o);
  PyObject* MadeThere(PyObject* values);
  bool AsItIs(PyObject* backward);
  PyObject* Reduced(PyObject* gradient, const shape::Ints& sizes);  // borrowed; null: Break or an exception
  bool Bind();

  std::nullptr_t Refuse(const std::string& why) {
    return s_.Break(BreakId::kAutogradCall, "a torch.autograd.Function: " + why);
  }
  Ref Attribute(PyObject* o, const char* name) {
    Ref text(PyUnicode_InternFromString(name));
    return Ref(sem_.LoadAttr(o, text.get()));
  }

  CaptureSemantics& sem_;
  Session& s_;
  PyObject* const cls_;
  PyObject* const* const args_;
  const Py_ssize_t nargs_;
  bool tracked_ = false, materialize_ = true;
  size_t Effects();
  size_t effects_ = 0;  // that waited before forward
  Ref context_, forward_, set_up_, out_;
  framejit::Call call_;  // that the trace keeps
  Reach before_;
  surface::Lowering::Custom custom_;
  std::vector<PyObject*> outputs_;
  std::vector<TraceId> differentiable_, others_, tangents_;  // others: tensors without gradients
  // By output: which of the differentiable ones it is, or, counted on behind these, which of the others. It is -1 for
  // what is no tensor.
  std::vector<int> number_;
  std::vector<Ref> held_;
  Ref result_;  // of the backward
  std::vector<std::optional<TraceId>> inputs_, grads_;
};

bool CustomCall::MakeContext() {
  std::vector<PyObject*> flags;
  for (Py_ssize_t i = 0; i < nargs_; ++i) {
    const bool wants = IsTensor(args_[i]) && s_.meta(AsTensor(args_[i])->id).requires_grad;
    flags.push_back(wants ? Py_True : Py_False);
    tracked_ |= wants && s_.modes.now.grad && !s_.modes.now.inference;
  }
  Ref needs(sem_.BuildTuple(flags.data(), nargs_));
  PyObject* one = needs.get();
  context_ = Ref(needs ? sem_.Call(TorchParts().context, &one, 1, nullptr) : nullptr);
  forward_ = context_ ? Attribute(cls_, "forward") : Ref();
  set_up_ = forward_ ? Attribute(cls_, "setup_context") : Ref();
  return static_cast<bool>(set_up_);
}

// What waits for the exit, but for changes of arguments: a replay has its own ones of these.
size_t CustomCall::Effects() {
  const auto given = [&](PyObject* o) { return std::find(args_, args_ + nargs_, o) != args_ + nargs_; };
  const PendingEffects& p = s_.pending();
  size_t count = p.cells().size();
  for (const PendingStore& store : p.stores()) count += !given(store.dict.get());
  for (const PendingCall& call : p.calls()) count += call.args.empty() || !given(call.args[0].get());
  for (PyObject* list : p.lists()) count += !given(list);
  return count;
}

bool CustomCall::Forward() {
  call_.args.resize(static_cast<size_t>(nargs_) + 1);  // forward may write to lists among them
  for (Py_ssize_t i = 0; tracked_ && i <= nargs_; ++i)
    if (!s_.ToArg(i ? args_[i - 1] : cls_, &call_.args[i])) return false;
  std::vector<PyObject*> roots(args_, args_ + nargs_);
  roots.push_back(forward_.get());
  before_ = ReachFrom(s_, roots);
  effects_ = Effects();
  s_.lowering().BeginCustom(&custom_);
  GradOff off(s_, tracked_);
  std::vector<PyObject*> all(args_, args_ + nargs_);
  if (set_up_.get() == TorchParts().setup) {
    all.insert(all.begin(), context_.get());
    out_ = Ref(sem_.Call(forward_.get(), all.data(), all.size(), nullptr));
    return static_cast<bool>(out_);
  }
  if (PyFunction_Check(forward_.get()) && reinterpret_cast<PyFunctionObject*>(forward_.get())->func_defaults)
    return Refuse("setup_context beside a forward with defaults"), false;
  out_ = Ref(sem_.Call(forward_.get(), all.data(), all.size(), nullptr));
  Ref inputs(out_ ? sem_.BuildTuple(all.data(), nargs_) : nullptr);
  PyObject* three[] = {context_.get(), inputs.get(), out_.get()};
  Ref r(inputs ? sem_.Call(set_up_.get(), three, 3, nullptr) : nullptr);
  return static_cast<bool>(r);
}

// Without gradients an argument that is returned is another object with its memory: a view, or detached.
bool CustomCall::AsResult(PyObject** output) {
  if (std::find(args_, args_ + nargs_, *output) == args_ + nargs_) return true;
  GradOff off(s_, tracked_);
  PyObject* both[] = {*output, *output};
  const bool wants = s_.meta(AsTensor(*output)->id).requires_grad;
  held_.emplace_back(wants ? s_.CallFramework(callees::kTensorDetach, both, 1, nullptr)
                           : s_.CallFramework(callees::kTensorViewAs, both, 2, nullptr));
  *output = held_.back().get();
  return *output != nullptr;
}

bool CustomCall::LookAtOutputs() {
  const bool several = PyTuple_Check(out_.get());
  if (!several && !IsTensor(out_.get())) return Refuse("a result that is no tensor"), false;
  for (Py_ssize_t i = 0; i < (several ? PyTuple_GET_SIZE(out_.get()) : 1); ++i)
    outputs_.push_back(s_.Resolve(several ? PyTuple_GET_ITEM(out_.get(), i) : out_.get()));
  Ref opaque(Attribute(context_.get(), "_opaque")), obstacle(opaque ? Attribute(context_.get(), "_obstacle") : Ref());
  if (!obstacle) return false;
  if (obstacle.get() != Py_None) return Refuse(PyUnicode_AsUTF8(obstacle.get())), false;
  number_.assign(outputs_.size(), -1);
  std::vector<size_t> without;  // gradients
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!outputs_[i]) return false;
    if (!IsTensor(outputs_[i])) continue;
    const TraceId id = AsTensor(outputs_[i])->id;
    if (!tracked_) {
      if (!AsResult(&outputs_[i])) return false;
      continue;
    }
    const bool argument = std::find(args_, args_ + nargs_, outputs_[i]) != args_ + nargs_;
    if (id < custom_.tensors && !argument) return Refuse("a result that comes from outside"), false;
    bool plain = IsFloat(s_.meta(id).dtype) || IsComplex(s_.meta(id).dtype);
    for (Py_ssize_t k = 0; PyTuple_Check(opaque.get()) && k < PyTuple_GET_SIZE(opaque.get()); ++k)
      plain &= s_.Resolve(PyTuple_GET_ITEM(opaque.get(), k)) != outputs_[i];
    for (const std::vector<TraceId>* known : {&differentiable_, &others_})
      if (std::find(known->begin(), known->end(), id) != known->end())
        return Refuse("a result that appears twice"), false;
    if (!plain && s_.trace().tensors[id].base < custom_.tensors) return Refuse("a view without gradients"), false;
    std::vector<TraceId>& kind = plain ? differentiable_ : others_;
    number_[i] = static_cast<int>(kind.size());
    kind.push_back(id);
    if (!plain) without.push_back(i);
  }
  for (size_t i : without) number_[i] += static_cast<int>(differentiable_.size());
  // One result has a gradient when the backward runs.
  Ref materialize(Attribute(context_.get(), "_materialize"));
  if (!materialize) return false;
  materialize_ = materialize.get() == Py_True;
  return materialize_ || differentiable_.size() < 2 || (Refuse("set_materialize_grads(False)"), false);
}

// Makes zeros of the same sizes that lie row by row. It is a new reference.
PyObject* CustomCall::RowMajorZeros(PyObject* like) {
  static PyObject* const names = Py_BuildValue("(s)", "memory_format");
  static PyObject* const format = tensor::ResolveCallee("torch.contiguous_format");
  PyObject* args[] = {like, format};
  return names && format ? s_.CallFramework(callees::kZerosLike, args, 1, names) : nullptr;
}

// What the backward reads is the context's alone: nothing changes it until then.
bool CustomCall::MayRunLater(const std::vector<PyObject*>& roots) {
  const Reach objects = ReachFrom(s_, roots);
  bool shared =
      objects.outside || objects.hidden || StoresFunctions(s_.pending());  // the classes may get others until then
  for (PyObject* o : objects.changeable) {
    PyObject* held = PyCell_Check(o) ? PyCell_GET(o) : nullptr;
    shared |= PyCell_Check(o)
                  ? held && !IsConstantKind(held)
                  : std::find(before_.changeable.begin(), before_.changeable.end(), o) != before_.changeable.end();
  }
  return !shared || (Refuse("its backward reads what may have changed until then"), false);
}

// What the backward is called with, by result: a stand-in for its gradient. It is empty after a Break or with an error.
std::vector<PyObject*> CustomCall::Given() {
  tangents_ = s_.lowering().Tangents(&custom_, differentiable_);
  custom_.outputs.insert(custom_.outputs.end(), others_.begin(), others_.end());
  std::vector<PyObject*> given;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const bool other = number_[i] >= static_cast<int>(tangents_.size());  // the backward gets zeros for it, or None
    held_.emplace_back(number_[i] < 0 || (other && !materialize_) ? Py_NewRef(Py_None)
                       : other                                    ? RowMajorZeros(outputs_[i])
                                                                  : s_.NewProxy(tangents_[number_[i]]));
    if (!held_.back()) return {};
    given.push_back(held_.back().get());
  }
  return given;
}

// What the tensors among these objects are made of, by the tensor that has the memory.
CustomCall::Memory CustomCall::MemoryOf(const Reach& objects) {
  Memory memory;
  for (const Ref& o : objects.held) {
    if (!IsTensor(o.get())) continue;
    const TraceId base = s_.trace().tensors[AsTensor(o.get())->id].base;
    memory.emplace(base, s_.lowering().ValueOf(base));
  }
  return memory;
}

bool CustomCall::Backward(PyObject* backward) {
  GradOff off(s_, tracked_);
  std::vector<PyObject*> given = Given();
  if (given.empty()) return false;
  given.insert(given.begin(), context_.get());
  s_.modes.now.autocast = {};
  const size_t pending = s_.pending().stores().size() + s_.pending().calls().size();
  const Reach left = ReachFrom(s_, {context_.get()});
  const Memory memory = MemoryOf(left);
  s_.later = true;
  result_ = Ref(sem_.Call(backward, given.data(), given.size(), nullptr));
  s_.later = false;
  if (!result_) return false;
  if (left.hidden || !(ReachFrom(s_, {context_.get()}) == left) || MemoryOf(left) != memory) {
    s_.not_captured = nullptr;  // called as it is, it would find for a second pass what forward left
    return Refuse("its backward changes its context"), false;
  }
  return s_.pending().stores().size() + s_.pending().calls().size() == pending ||
         (Refuse("its backward writes to an object"), false);
}

// torch's engine sums a gradient along what its argument was broadcast along.
PyObject* CustomCall::Reduced(PyObject* gradient, const shape::Ints& sizes) {
  const shape::Ints given = s_.meta(AsTensor(gradient)->id).sizes;
  if (given.size() < sizes.size()) return gradient;
  bool same = given.size() == sizes.size(), fits = true;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool equal = s_.env().Eq(given[given.size() - sizes.size() + i], sizes[i]);
    same &= equal;
    fits &= equal || s_.env().Eq(sizes[i], 1);
  }
  if (same || !fits) return gradient;
  std::vector<PyObject*> numbers;
  for (const shape::Int& n : sizes) {
    held_.emplace_back(s_.SymIntObject(n));
    numbers.push_back(held_.back().get());
  }
  held_.emplace_back(sem_.BuildTuple(numbers.data(), static_cast<Py_ssize_t>(numbers.size())));
  PyObject* args[] = {gradient, held_.back().get()};
  static const Callee sum_to_size{"torch.Tensor.sum_to_size"};
  GradOff off(s_, tracked_);
  held_.emplace_back(s_.CallFramework(sum_to_size, args, 2, nullptr));
  return held_.back().get();
}

// Gives what the backward gave, by argument.
bool CustomCall::TakeGradients() {
  const bool tuple = PyTuple_Check(result_.get());
  const Py_ssize_t n = tuple ? PyTuple_GET_SIZE(result_.get()) : 1;
  inputs_.resize(nargs_);
  grads_.resize(nargs_);
  for (Py_ssize_t i = 0; i < std::max(n, nargs_); ++i) {
    PyObject* g = i >= n ? nullptr : s_.Resolve(tuple ? PyTuple_GET_ITEM(result_.get(), i) : result_.get());
    if (!g) return s_.broken() ? false : (Refuse("too few gradients"), false);
    if (g != Py_None && (i >= nargs_ || !IsTensor(args_[i]) || !IsTensor(g)))
      return Refuse("a gradient too many"), false;
    if (i >= nargs_ || !IsTensor(args_[i])) continue;
    inputs_[i] = AsTensor(args_[i])->id;
    if (g == Py_None) continue;
    if (!(g = Reduced(g, s_.meta(AsTensor(args_[i])->id).sizes))) return false;
    grads_[i] = AsTensor(g)->id;
  }
  return true;
}

// What forward left in the context: names, values that a call of the graph can have, and (a function that gives them)
// objects of the program's, which the backward finds as they are then.
bool CustomCall::StateOf(Ref* names, Ref* values, Ref* held) {
  static PyObject* const holder = FromModule("framejit._functions", "holder");
  PyObject** dict = _PyObject_GetDictPtr(context_.get());
  Ref keys(dict && *dict ? PyDict_Keys(*dict) : nullptr), objects(PyDict_New());
  std::vector<PyObject*> named, told;
  for (Py_ssize_t i = 0; keys && i < PyList_GET_SIZE(keys.get()); ++i) {
    PyObject* key = PyList_GET_ITEM(keys.get(), i);
    const char* name = PyUnicode_AsUTF8(key);
    if (!name || !strcmp(name, "_obstacle") || !strcmp(name, "_opaque") || !strcmp(name, "_materialize")) continue;
    held_.emplace_back(sem_.LoadAttr(context_.get(), key));
    PyObject* value = held_.back() ? s_.Resolve(held_.back().get()) : nullptr;
    if (!value) return false;
    const Origin* origin = IsTensor(value) ? nullptr : s_.Find(value);
    const bool function = origin && origin->kind == Origin::kConst && PyFunction_Check(value);
    if (function || (origin && origin->kind == Origin::kOutside)) {
      if (origin->real || origin->written || origin->changes || origin->proxy)
        return Refuse("its backward reads what was written here"), false;
      if ((PyList_Check(value) || PyDict_Check(value)) && std::find(args_, args_ + nargs_, value) != args_ + nargs_)
        return Refuse("its context has a list or dict that it was given"), false;  // of which a replay has a copy
      s_.guards().Is(origin->source, value);
      if (PyDict_SetItem(objects.get(), key, value) < 0) return false;
      continue;
    }
    if (!MayRunLater({value})) return false;
    named.push_back(key);
    told.push_back(value);
  }
  if (!keys || !objects) return false;
  *names = Ref(sem_.BuildTuple(named.data(), static_cast<Py_ssize_t>(named.size())));
  *values = Ref(sem_.BuildTuple(told.data(), static_cast<Py_ssize_t>(told.size())));
  if (PyDict_GET_SIZE(objects.get()) == 0) return *held = Ref::Borrow(Py_None), *names && *values;
  SuspendScope off;
  *held = Ref(holder ? PyObject_CallOneArg(holder, objects.get()) : nullptr);
  return *names && *values && *held;
}

// Which tensors of this want gradients: True for one, a tuple for what holds some, else False. Borrowed.
PyObject* CustomCall::Wanting(PyObject* o) {
  if (!(o = s_.Resolve(o))) return nullptr;
  if (IsTensor(o)) return s_.meta(AsTensor(o)->id).requires_grad ? Py_True : Py_False;
  if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o)) return Py_False;
  std::vector<PyObject*> items;
  bool any = false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
    items.push_back(Wanting(PySequence_Fast_GET_ITEM(o, i)));
    if (!items.back()) return nullptr;
    any |= items.back() != Py_False;
  }
  if (!any) return Py_False;
  held_.emplace_back(sem_.BuildTuple(items.data(), static_cast<Py_ssize_t>(items.size())));
  return held_.back().get();
}

// What a backward that is not captured could do (framejit._kernels.manner).
struct Manner {
  bool asks_facts = true, writes = true, uncounted = true;
};
Manner MannerOf(PyObject* function) {
  static PyObject* const manner = FromModule("framejit._kernels", "manner");
  SuspendScope off;
  Ref answer(manner ? PyObject_CallOneArg(manner, function) : nullptr);
  if (!answer) return PyErr_Clear(), Manner();
  const auto is = [&](int i) { return PyTuple_GET_ITEM(answer.get(), i) == Py_True; };
  return {is(0), is(1), is(2)};
}

// Those tensors among these that forward has made, to which the backward may write: others read them, too, and what is
// equal is one value of the graph: where two may be, this is a break. So it is where two lie in the same memory and are
// not the same: a run may have them in two places.
PyObject* CustomCall::MadeThere(PyObject* values) {
  std::map<TraceId, TraceId> first;  // by what has the memory
  std::vector<PyObject*> made;
  const Reach objects = ReachFrom(s_, {values});
  for (const Ref& o : objects.held) {
    if (!IsTensor(o.get())) continue;
    const TraceId id = AsTensor(o.get())->id, base = s_.trace().tensors[id].base;
    const auto [at, is_first] = first.try_emplace(base, id);
    if (at->second != id) return Refuse("a backward that is not captured and may write to tensors that share memory");
    if (!is_first || base < custom_.tensors) continue;
    const auto alike = [&](PyObject* other) {
      const TensorMeta &x = s_.meta(id), &y = s_.meta(AsTensor(other)->id);
      return x.dtype == y.dtype && x.sizes.size() == y.sizes.size();
    };
    if (std::any_of(made.begin(), made.end(), alike))
      return Refuse("a backward that is not captured and may write to one of several tensors, which may be equal");
    made.push_back(o.get());
  }
  return sem_.BuildTuple(made.data(), static_cast<Py_ssize_t>(made.size()));
}

// The backward is not captured: a call of the graph runs it as it is, when the pass does, and gives the gradients.
bool CustomCall::AsItIs(PyObject* backward) {
  const Origin* origin = s_.Find(backward);
  if (origin && origin->kind == Origin::kFresh) return Refuse("a backward that was made here"), false;
  const Manner manner = MannerOf(backward);
  if (manner.asks_facts) return Refuse("a backward that is not captured and asks how its tensors were made"), false;
  GradOff off(s_, tracked_);
  Ref names, values, held;
  std::vector<PyObject*> wanted;
  if (!StateOf(&names, &values, &held)) return false;
  Ref made(manner.writes ? MadeThere(values.get()) : sem_.BuildTuple(nullptr, 0));
  if (!made) return false;
  for (Py_ssize_t i = 0; i < nargs_; ++i) {
    if (!IsTensor(args_[i]) || !s_.meta(AsTensor(args_[i])->id).requires_grad) continue;
    Ref shape(Attribute(args_[i], "shape")), dtype(Attribute(args_[i], "dtype"));
    Ref number(PyLong_FromSsize_t(i));
    PyObject* three[] = {number.get(), shape.get(), dtype.get()};
    held_.emplace_back(shape && dtype && number ? sem_.BuildTuple(three, 3) : nullptr);
    if (!held_.back()) return false;
    wanted.push_back(held_.back().get());
  }
  PyObject* wanting = Wanting(values.get());
  if (!wanting) return false;
  Ref likes(sem_.BuildTuple(wanted.data(), static_cast<Py_ssize_t>(wanted.size()))), count(PyLong_FromSsize_t(nargs_));
  Ref number(PyLong_FromSize_t(custom_.tensors));  // as the trace's call has it (EndCustom)
  std::vector<PyObject*> given = Given();
  if (!likes || !count || !number || given.empty()) return false;
  s_.modes.now.autocast = {};
  PyObject* uncounted = manner.uncounted ? Py_True : Py_False;
  PyObject* first[] = {backward, number.get(), count.get(), names.get(), values.get(),
                       wanting,  made.get(),   held.get(),  uncounted,   likes.get()};
  given.insert(given.begin(), std::begin(first), std::end(first));
  result_ = Ref(s_.CallFramework(callees::kOwnBackward, given.data(), static_cast<Py_ssize_t>(given.size()), nullptr));
  if (!result_) return false;
  if (!PyTuple_Check(result_.get())) return Refuse("an unknown form"), false;
  custom_.as_it_is = true;
  inputs_.resize(nargs_);
  grads_.resize(nargs_);
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; i < nargs_; ++i) {
    if (!IsTensor(args_[i])) continue;
    inputs_[i] = AsTensor(args_[i])->id;
    if (s_.meta(*inputs_[i]).requires_grad) grads_[i] = AsTensor(PyTuple_GET_ITEM(result_.get(), at++))->id;
  }
  return true;
}

// The call that the trace keeps. Results are numbered from here on: EndCustom makes them in this order. The keywords
// are for EndCustom alone: torch refuses the backward pass where one of those saved has been written, and what was
// guessed of those asked is read after every run.
bool CustomCall::Bind() {
  call_.callee = kCustomCall;
  call_.mode = s_.modes.now;
  Ref saved(Attribute(context_.get(), "saved_tensors"));
  if (!saved || !s_.ToArg(saved.get(), &call_.kwargs.emplace_back("saved", Arg::None()).second)) return false;
  std::vector<Arg> structure, asked;
  for (const Guess& g : s_.guessing().made())
    if (g.tensor >= custom_.tensors) asked.push_back(Arg::Tensor(g.tensor));
  if (!asked.empty()) call_.kwargs.emplace_back("asked", Arg::Seq(Arg::Kind::kTuple, std::move(asked)));
  const auto next = static_cast<TraceId>(s_.trace().tensors.size());
  for (int k : number_) structure.push_back(k < 0 ? Arg::None() : Arg::Tensor(next + static_cast<TraceId>(k)));
  call_.result = PyTuple_Check(out_.get()) ? Arg::Seq(Arg::Kind::kTuple, structure) : structure[0];
  return true;
}

PyObject* CustomCall::WithGradients() {
  Ref backward(Attribute(cls_, "backward")), other(backward ? Attribute(cls_, "vjp") : Ref());
  if (!other) return nullptr;
  if (backward.get() == TorchParts().backward || (TorchParts().vjp && other.get() != TorchParts().vjp))
    return Refuse("no backward of its own");
  s_.later = true;  // the engine looks for it when it runs
  s_.NoteLate(reinterpret_cast<PyTypeObject*>(cls_));
  s_.later = false;
  if (s_.options().RunsAsItIs(backward.get())) {
    if (!AsItIs(backward.get())) return nullptr;
  } else {
    s_.not_captured = backward.get();  // if this ends here
    if (!MayRunLater({context_.get(), backward.get()}) || !Backward(backward.get()) || !TakeGradients()) return nullptr;
  }
  if (!Bind()) return nullptr;
  std::vector<TraceId> made = s_.lowering().EndCustom(&custom_, std::move(call_), inputs_, grads_);
  s_.not_captured = nullptr;
  ++s_.op_count;
  std::vector<PyObject*> seen;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    held_.emplace_back(number_[i] < 0 ? Py_NewRef(outputs_[i]) : s_.NewProxy(made[number_[i]]));
    if (!held_.back()) return nullptr;
    seen.push_back(held_.back().get());
  }
  return PyTuple_Check(out_.get()) ? sem_.BuildTuple(seen.data(), static_cast<Py_ssize_t>(seen.size()))
                                   : Py_NewRef(seen[0]);
}

PyObject* CustomCall::Run() {
  const absl::Cleanup back = [&, outer = s_.made_within] { s_.made_within = outer; };
  s_.made_within = static_cast<TraceId>(s_.trace().tensors.size());
  if (!MakeContext() || !Forward() || !LookAtOutputs()) return nullptr;
  if (tracked_ && Effects() != effects_) return Refuse("its forward does what a replay would do again");
  if (!tracked_)
    return PyTuple_Check(out_.get()) ? sem_.BuildTuple(outputs_.data(), static_cast<Py_ssize_t>(outputs_.size()))
                                     : Py_NewRef(outputs_[0]);
  if (differentiable_.empty()) return out_.release();
  try {
    return WithGradients();
  } catch (const surface::Decline& d) {
    return Refuse(d.what());
  }
}

}  // namespace

// torch calls it, on stand-ins. What it remembers must be what torch keeps.
static PyObject* CallOnTape(Session& s, PyObject* const* args, Py_ssize_t nargs) {
  Ref apply;
  {
    SuspendScope off;
    apply = Ref(PyObject_GetAttrString(args[0], "apply"));
  }
  return apply ? TapeOf(s)->Call(apply.get(), args + 1, nargs - 1, nullptr) : nullptr;
}

PyObject* CaptureSemantics::CallCustom(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto refuse = [&](const std::string& why) {
    return s_.Break(BreakId::kAutogradCall, "a torch.autograd.Function: " + why);
  };
  const Parts& parts = TorchParts();
  if (!parts.context || !parts.setup || !parts.backward || nargs < 1 || !PyType_Check(args[0]))
    return refuse("an unknown form");
  if (kwnames && PyTuple_GET_SIZE(kwnames)) return refuse("keyword arguments");
  if (TapeOf(s_) && !TapeOf(s_)->inside()) return nargs ? CallOnTape(s_, args, nargs) : refuse("an unknown form");
  if (s_.vmap.open()) return refuse("under torch.vmap or a derivative");
  return CustomCall(*this, s_, args[0], args + 1, nargs - 1).Run();
}

}  // namespace framejit::capture
