#include "capture/numbers/guess.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "bytecode/code.h"
#include "capture/asking.h"
#include "capture/callees.h"
#include "capture/checkpoint.h"
#include "capture/override.h"
#include "capture/session.h"
#include "capture/training.h"
#include "diag/diag.h"
#include "graph/arguments.h"
#include "tensor/import.h"
#include "tensor/overrides.h"
#include "tensor/undo.h"

namespace framejit::capture {
namespace {

constexpr int kMostTruths = 64, kMostNumbers = 128;  // guesses at one place of a graph: a loop asks for truths

// What `tensor` says: True or False, or as an int. Null with an exception.
Ref Ask(PyObject* tensor, bool truth) {
  if (truth) {
    const int r = PyObject_IsTrue(tensor);
    return r < 0 ? Ref() : Borrow(r ? Py_True : Py_False);
  }
  return Ref(PyObject_CallMethod(tensor, "item", nullptr));
}

// Those that sizes are read from, too.
template <typename F>
void EachTensorRead(const Trace& trace, const Call& call, F&& f) {
  EachArg(call, [&](const Arg& a) {
    if (a.is(Arg::Kind::kTensor)) f(a.t);
    if (!a.is(Arg::Kind::kInt)) return;
    a.i.ForEachSymbol([&](uint32_t id) {
      for (const Trace::DataSymbol& d : trace.data_symbols)
        if (d.symbol == id) f(d.tensor);
    });
  });
}

// Gives the calls that `t` is made by, or all of them where some write what others have made or draw random numbers.
Trace WhatLeadsTo(const Trace& trace, TraceId t) {
  Trace prefix = trace;
  prefix.outputs = {t};
  if (std::any_of(trace.tensors.begin(), trace.tensors.end(), [](auto& x) { return x.mutated; })) return prefix;
  std::vector<bool> needed(trace.tensors.size());
  needed[t] = true;
  std::vector<Call> calls;
  for (auto c = trace.calls.rbegin(); c != trace.calls.rend(); ++c) {
    if (std::none_of(c->results.begin(), c->results.end(), [&](TraceId r) { return needed[r]; })) continue;
    EachTensorRead(trace, *c, [&](TraceId o) { needed[o] = true; });
    calls.push_back(*c);
  }
  std::reverse(calls.begin(), calls.end());
  std::swap(prefix.calls, calls);
  if (tensor::PlanUndo(prefix, true, true).random) std::swap(prefix.calls, calls);
  return prefix;
}

// Is the truth that the frame asks for what keeps it from raising: an assert, or an `if` with a `raise` alone in it? On
// the way there nothing is stored and nothing branches.
bool KeepsFromRaising(PyFrameObject* f, bool* expected) {
  using bytecode::Op;
  constexpr int kMost = 64;  // instructions that make the exception
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
  const bytecode::Code* all = bytecode::Code::Of(reinterpret_cast<PyCodeObject*>(code.get()));
  int at = PyFrame_GetLasti(f) / 2;
  if (!all) return PyErr_Clear(), false;
  while (at < all->size() && !all->At(at).length) ++at;
  auto jumps = [&](int i) {
    const Op op = all->At(i).op;
    return op == Op::kPopJumpIfFalse || op == Op::kPopJumpIfTrue;
  };
  if (at < all->size() && all->At(at).op == Op::kToBool) at += all->At(at).length;
  if (at >= all->size() || !jumps(at)) return false;
  const bytecode::Instr& jump = all->At(at);
  auto raises = [&](int i) {
    for (int n = 0; n < kMost && i < all->size(); ++n, i += all->At(i).length) {
      const bytecode::Instr& in = all->At(i);
      switch (in.op) {
        case Op::kRaise: return true;
        case Op::kNop:
        case Op::kPushNull:
        case Op::kLoadConst:
        case Op::kLoadSmallInt:
        case Op::kLoadCommon:
        case Op::kLoadFast:
        case Op::kLoadFastPair:
        case Op::kLoadDeref:
        case Op::kLoadGlobal:
        case Op::kLoadAttr:
        case Op::kLoadMethod:
        case Op::kGetItem:
        case Op::kLoadAssertionError:
        case Op::kFormatValue:
        case Op::kConvertValue:
        case Op::kFormatSimple:
        case Op::kFormatWithSpec:
        case Op::kBuildString:
        case Op::kBuildTuple:
        case Op::kCall:
        case Op::kCallConstNames:
        case Op::kCallStackNames:
        case Op::kBinary:
        case Op::kCompare: break;
        default: return false;
      }
      if (!in.length) return false;
    }
    return false;
  };
  const bool through = raises(at + jump.length), there = raises(jump.target);
  *expected = (jump.op == Op::kPopJumpIfTrue) == through;
  return through != there;
}

}  // namespace

int Holds(const Guess& g, PyObject* tensor) {
  Ref now = Ask(tensor, PyBool_Check(g.value.get()));
  return now ? PyObject_RichCompareBool(now.get(), g.value.get(), Py_EQ) : -1;
}

PyObject* Guessing::Value(TraceId t, bool truth, bool raises) {
  PyFrameObject* f = PyEval_GetFrame();
  if (!s_.options().guesses || s_.broken() || !f || s_.lowering().IsHidden(t)) return nullptr;
  if (s_.in_custom && (s_.later || wrapping::Asking::current)) return nullptr;  // in a forward the calls stay
  // In the outermost function a break is cheap, and a guess may be wrong. A test behind which the program would raise
  // seldom goes the other way, so it is guessed all the same.
  bool expected = false;
  if (s_.depth == 0 && !raises && !(truth && KeepsFromRaising(f, &expected))) return nullptr;
  const TensorMeta& m = s_.meta(t);
  truth = truth || IsBool(m.dtype);
  if (!truth && !IsInteger(m.dtype)) return nullptr;
  const bool one = std::all_of(m.sizes.begin(), m.sizes.end(), [](shape::Int n) { return n == shape::Int(1); });
  if (!one) return nullptr;
  for (const Call& c : s_.trace().calls)  // to find out would run the program's own code twice
    if (c.callee == kCustomCall) return nullptr;
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
  // What an instruction is kept from raising by is another place than the number that it gives.
  const Guesses::Where where{code.get(), raises ? ~PyFrame_GetLasti(f) : PyFrame_GetLasti(f)};
  if (s_.options().guesses->wrong.contains(where) || s_.options().guesses->changing.contains(where)) return nullptr;
  const auto here = [&](const Guess& g) { return g.code.get() == where.first && g.at == where.second; };
  const int before = static_cast<int>(std::count_if(made_.begin(), made_.end(), here));
  if (before == (truth ? kMostTruths : kMostNumbers)) return nullptr;
  auto& taken = s_.options().guesses->taken;  // of all threads: what is found in it is held at once
  auto known = taken.find({where, before});
  Ref value = known == taken.end() ? Ref() : Borrow(known->second.get());
  if (!value) {
    Ref tensor = RunUpTo(t);
    if (tensor) value = Ask(tensor.get(), truth);
    if (!value || !(PyBool_Check(value.get()) || PyLong_CheckExact(value.get()))) return PyErr_Clear(), nullptr;
    value = Borrow(taken.emplace(std::pair{where, before}, std::move(value)).first->second.get());
    s_.options().guesses->codes.push_back(Borrow(code.get()));
    Ref text(PyObject_Repr(value.get()));
    diag::Log(diag::Channel::perf_, "what data says at " + guard::Text(s_.Where()) + " is taken to be " +
                                        (text ? PyUnicode_AsUTF8(text.get()) : "?") + ", and checked after every run");
  }
  if (raises && value.get() != Py_True) return nullptr;
  if (s_.depth == 0 && !raises && PyObject_IsTrue(value.get()) != expected) return nullptr;  // it is about to raise
  if (s_.libraries.torch &&
      s_.meta(t).framework == Framework::kNumpy) {  // a pair of graphs gives torch's tensors alone
    static const Callee steps[] = {Callee("numpy.array"), callees::kFromNumpy, Callee("torch.Tensor.clone")};
    Ref made(s_.NewProxy(t));
    for (const Callee& step : steps) {
      PyObject* one = made.get();
      if (one) made = Ref(s_.CallFramework(step, &one, 1, nullptr));
    }
    if (!made) return nullptr;
    t = AsTensor(made.get())->id;
  }
  NoteBranch(t);
  made_.push_back({t, Borrow(value.get()), std::move(code), where.second, s_.lowering().ValueOf(t)});
  return value.release();
}

bool Guessing::Reconsider() {
  bool found = false;
  for (const Guess& g : made_) {
    if (s_.lowering().ValueOf(g.tensor) == g.asked) continue;
    s_.options().guesses->Refuse(g.code.get(), g.at, /*number=*/!PyBool_Check(g.value.get()));
    found = true;
  }
  return found;
}

namespace {

// Is `t` made of numbers of the program alone, by calls that draw nothing? So must be whatever is given memory that
// leads to it and that somebody writes to.
bool IsConstant(const Trace& trace, TraceId t) {
  std::vector<bool> needed(trace.tensors.size()), shared(trace.tensors.size());
  auto need = [&](TraceId i) { needed[i] = shared[trace.tensors[i].base] = true; };
  auto written = [&](TraceId i) { return trace.tensors[i].mutated || trace.tensors[trace.tensors[i].base].mutated; };
  need(t);
  bool constant = true;
  for (auto c = trace.calls.rbegin(); c != trace.calls.rend() && constant; ++c) {
    bool leads = std::any_of(c->results.begin(), c->results.end(), [&](TraceId r) { return needed[r]; });
    EachTensor(*c, [&](TraceId i) { leads = leads || (shared[trace.tensors[i].base] && written(i)); });
    if (!leads) continue;
    constant = !Draws(c->callee) && c->callee != kCustomCall;
    EachArg(*c, [&](const Arg& a) {
      constant = constant && !a.is(Arg::Kind::kSymFloat) && !a.is(Arg::Kind::kObject) &&
                 !(a.is(Arg::Kind::kInt) && !a.i.as_const());
      if (a.is(Arg::Kind::kTensor)) need(a.t);
    });
  }
  for (TraceId i = 0; i < needed.size() && constant; ++i)
    if (needed[i]) {
      const TraceTensor &x = trace.tensors[i], &base = trace.tensors[x.base];
      constant = x.input < 0 && base.input < 0 && x.meta.device.kind == DeviceKind::kCpu && !x.meta.requires_grad;
    }
  return constant;
}

// Numbers, and lists of them.
bool AreNumbers(PyObject* o) {
  if (!PyList_CheckExact(o)) return PyBool_Check(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(o); ++i)
    if (!AreNumbers(PyList_GET_ITEM(o, i))) return false;
  return true;
}

// NumPy raises where it would warn: what warns does so in each run.
class NothingToWarnOf {
 public:
  NothingToWarnOf() {
    static PyObject *const numpy = tensor::Import("numpy"), *const none = PyTuple_New(0);
    Ref how(Py_BuildValue("{ss}", "all", "raise")), make(numpy ? PyObject_GetAttrString(numpy, "errstate") : nullptr);
    state_ = Ref(make && how ? PyObject_Call(make.get(), none, how.get()) : nullptr);
    if (!state_ || !Ref(PyObject_CallMethod(state_.get(), "__enter__", nullptr))) PyErr_Clear(), state_ = Ref();
  }
  ~NothingToWarnOf() {
    if (state_ && !Ref(PyObject_CallMethod(state_.get(), "__exit__", "OOO", Py_None, Py_None, Py_None))) PyErr_Clear();
  }

 private:
  Ref state_;
};

}  // namespace

bool Guessing::OfConstants(const Call& call) const {
  bool all = true;
  EachTensor(call, [&](TraceId t) { all = all && !s_.lowering().IsHidden(t) && IsConstant(s_.trace(), t); });
  return all && s_.draws.empty();
}

Ref Guessing::Known(TraceId t, bool beside_draws) {
  if (s_.broken() || s_.vmap.open() || s_.in_custom || s_.lowering().IsHidden(t) || !IsConstant(s_.trace(), t))
    return {};
  if (!s_.draws.empty() && !beside_draws) return {};
  // A loop that is unrolled asks in each round, and all rounds before are run each time.
  constexpr size_t kMostCalls = 256;
  const size_t calls = WhatLeadsTo(s_.trace(), t).calls.size();
  if (run_ + calls > kMostCalls && run_ > 0) return {};
  run_ += calls;
  SuspendScope off;
  NothingToWarnOf quiet;
  return RunUpTo(t);
}

PyObject* Guessing::Constant(TraceId t, const std::string& method) {
  static constexpr std::string_view kMethods[] = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__"};
  if (std::find(std::begin(kMethods), std::end(kMethods), method) == std::end(kMethods)) return nullptr;
  SuspendScope off;
  Ref tensor = Known(t);
  NothingToWarnOf quiet;
  Ref said(tensor ? PyObject_CallMethod(tensor.get(), method.c_str(), nullptr) : nullptr);
  if (!said) PyErr_Clear();
  return said && AreNumbers(said.get()) ? said.release() : nullptr;
}

bool Guessing::Sizes(Call* call) {
  bool any = false;
  for (Arg* x : SizesAmong(*call)) {
    const TensorMeta& m = s_.meta(x->t);  // NumPy's other integers decide the dtype of what is made of them
    Ref value(m.framework == Framework::kTorch || m.dtype == DType::kInt64 ? Constant(x->t, "__int__") : nullptr);
    if (!value) value = Ref(Value(x->t, false));
    if (value && PyLong_CheckExact(value.get())) {
      *x = Arg::Int(static_cast<int64_t>(PyLong_AsLongLong(value.get())));
    } else {
      auto count = s_.data_sizes().CountOf(x->t);
      if (!count) return false;
      *x = Arg::Int(*count);
    }
    any = true;
  }
  return any;
}

// The arguments of a torch operator that are numbers in all of its overloads (framejit._functions.number_arguments).
// Borrowed.
static PyObject* NumberArguments(Callee callee) {
  static auto& known = *new std::map<std::string, Ref, std::less<>>;  // it must outlive the interpreter
  const std::string_view name = callee.last();
  auto at = known.find(name);
  if (at == known.end()) {
    SuspendScope off;
    Ref module(tensor::Import("framejit._functions"));
    Ref found(module ? PyObject_CallMethod(module.get(), "number_arguments", "s#", name.data(),
                                           static_cast<Py_ssize_t>(name.size()))
                     : nullptr);
    PyErr_Clear();
    at = known.emplace(name, found ? std::move(found) : Ref(PyDict_New())).first;
  }
  return at->second.get();
}

// Borrowed: what is known of the argument at a position or of a name; null: it may be something else than a number.
template <typename Key>
static PyObject* NumberArgument(Callee callee, const Key& key) {
  if (!(callees::IsTensorMethod(callee) || callee.space() == callees::kTorch)) return nullptr;
  Ref name;
  if constexpr (std::is_same_v<Key, size_t>)
    name = Ref(PyLong_FromSize_t(key));
  else
    name = Ref(PyUnicode_FromString(key.c_str()));
  return PyDict_GetItem(NumberArguments(callee), name.get());
}

std::vector<Arg*> Guessing::SizesAmong(Call& call) {
  std::vector<Arg*> found;
  if (call.callee.last() == "__getitem__" || call.callee.last() == "__setitem__") return found;
  auto size = [&](const Arg& x) {
    if (!x.is(Arg::Kind::kTensor)) return x.is(Arg::Kind::kInt);
    const TensorMeta& m = s_.meta(x.t);
    const bool one = std::all_of(m.sizes.begin(), m.sizes.end(), [](shape::Int n) { return n == shape::Int(1); });
    return one && IsInteger(m.dtype) && !IsBool(m.dtype);
  };
  auto look = [&](std::span<Arg> list) {
    if (!std::all_of(list.begin(), list.end(), size)) return;
    for (Arg& x : list)
      if (x.is(Arg::Kind::kTensor)) found.push_back(&x);
  };
  // torch.topk(x, k), torch.arange(start=0, end=n): a tensor where torch takes a number alone is read.
  auto number = [&](Arg& a, const auto& key) {
    if (!a.is(Arg::Kind::kTensor) || !size(a)) return;
    const TensorMeta& m = s_.meta(a.t);
    PyObject* kind = NumberArgument(call.callee, key);
    const bool torch = m.framework == Framework::kTorch;
    if (torch ? kind == Py_True || (kind == Py_False && m.sizes.empty()) : kind && PyBool_Check(kind) && m.is_scalar)
      found.push_back(&a);
  };
  for (size_t i = 0; i < call.args.size(); ++i)
    if (i > 0 || (!call.args[0].items.empty() && NumberArgument(call.callee, i))) look(call.args[i].items);
  for (auto& [name, a] : call.kwargs) look(a.items);
  if (call.callee.framework() == Framework::kNumpy && call.callee.Has(kSizedByNumbers)) {
    const auto other = [&](const Arg& x) { return x.is(Arg::Kind::kTensor) && s_.meta(x.t).dtype != DType::kInt64; };
    if (std::none_of(call.args.begin(), call.args.end(), other)) look(call.args);
    return found;
  }
  if (!call.callee.Has(kSizesInArguments)) {
    for (size_t i = 0; i < call.args.size(); ++i) number(call.args[i], i);
    for (auto& [name, a] : call.kwargs) number(a, name);
    return found;
  }
  const size_t first = callees::IsTensorMethod(call.callee) ? 1 : 0;
  if (call.args.size() > first) look(std::span(call.args).subspan(first));
  return found;
}

Ref Guessing::RunUpTo(TraceId t) {
  SuspendScope off;
  tensor::OverridesOff own;
  Trace prefix = WhatLeadsTo(s_.trace(), t);
  // What the calls write are copies, and what they draw is drawn again later.
  tensor::UndoPlan plan = tensor::PlanUndo(prefix, true, true);
  std::vector<PyObject*> inputs = s_.input_tensors();
  std::vector<Ref> copies;
  for (int i : std::exchange(plan.written, {})) {
    Ref own = plan.torch ? Ref(PyObject_CallMethod(inputs[i], "detach", nullptr)) : Borrow(inputs[i]);
    copies.emplace_back(own ? PyObject_CallMethod(own.get(), plan.torch ? "clone" : "copy", nullptr) : nullptr);
    if (!copies.back()) return {};
    inputs[i] = copies.back().get();
  }
  tensor::Undo before(plan, inputs.data());
  PyObject* out = nullptr;
  int failed = 0;
  try {
    auto runner = tensor::MakeTraceRunner(prefix, s_.constants());
    std::vector<int64_t> symbols(s_.env().hints().begin(), s_.env().hints().end());
    if (runner->Run(inputs.data(), symbols.data(), &out, &failed) != tensor::RunEnd::kOk) PyErr_Clear(), out = nullptr;
  } catch (const std::exception&) {
  }
  Ref made(out);
  if (!before.Restore()) return {};
  return made;
}

std::vector<std::pair<int, int>> DeferWrites(Graph* g) {
  std::vector<std::pair<int, int>> deferred;
  for (const Write& w : std::exchange(g->writes, {})) {
    auto at = std::find(g->outputs.begin(), g->outputs.end(), w.value);
    deferred.emplace_back(w.input, at - g->outputs.begin());
    if (at != g->outputs.end()) continue;
    ValueId value = w.value;
    if (g->node(value).op == Op::kInput) {  // results never share memory with inputs
      Node copy;
      copy.op = Op::kCast;
      copy.operands = {value};
      copy.type = g->node(value).type;
      copy.attrs.dtype = copy.type.dtype;
      g->nodes.push_back(std::move(copy));
      value = static_cast<ValueId>(g->nodes.size() - 1);
    }
    g->outputs.push_back(value);
  }
  return deferred;
}

}  // namespace framejit::capture
