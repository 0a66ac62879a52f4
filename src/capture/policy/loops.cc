// See the header.
#include "capture/policy/loops.h"

#include <algorithm>
#include <utility>

#include "bytecode/code.h"
#include "capture/looked_at.h"
#include "capture/policy/policy.h"
#include "capture/policy/rounds.h"
#include "capture/proxy.h"
#include "capture/scalar/loops.h"
#include "capture/segment.h"
#include "capture/session.h"

namespace framejit::capture {
namespace {

// A loop is cut after so many rounds, or after fewer if there is much in them.
constexpr int kRounds = 40, kFewRounds = 8, kCalls = 240;
// In a called function the cut would tear the graphs of all its callers. The few rounds are those of `for`: how often
// `while` goes round, as over the tokens of a language model, nobody knows.
constexpr int kRoundsInCalls = 300, kFewRoundsInCalls = 24, kCallsInCalls = 720;
// A loop whose body may become scalar code is cut so soon.
constexpr int kScalar = 16;
// Likewise, where a round has computed nothing but single numbers and, as an attempt before has shown, the function
// will not be one graph. There, each store of an element copies an array.
constexpr int kScalarOfNumbers = 4;
// Instructions without a framework call that a loop may run in a capture: some 50 ms.
constexpr long kIdle = 50'000;

template <typename T>
bool Holds(const std::vector<T>& list, T x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

}  // namespace

LoopWatch::LoopWatch(Session& s, Compiled& compiled) : s_(s), compiled_(compiled), root_cut_(nullptr) {
  auto it = compiled.codes.find(CodeOf(s.root()));
  if (it != compiled.codes.end() && !it->second->cut.empty() && !compiled.fullgraph) root_cut_ = &it->second->cut;
}

bool LoopWatch::EndsAt(int index, long steps) {
  if (steps == 0) return false;
  if (EntersScalar(index) || HoldsBreak(index)) return true;
  if (!root_cut_ || !Holds(*root_cut_, index)) return false;
  return !Counting::now || index != Counting::now->loop || ++passes_ >= Counting::now->rounds;
}

bool LoopWatch::GoesOn(int index) const {
  static const std::vector<PyTypeObject*> types = {&PyListIter_Type,    &PyTupleIter_Type,    &PyRangeIter_Type,
                                                   &PyDictIterKey_Type, &PyDictIterItem_Type, &PyDictIterValue_Type,
                                                   &PySetIter_Type,     &PyUnicodeIter_Type,  &PySeqIter_Type,
                                                   &PyEnum_Type,        &PyReversed_Type,     &PyZip_Type};
  FjFrame* frame = s_.root();
  const bytecode::Code* code = bytecode::Code::Of(fj_code(frame));
  if (!code) return PyErr_Clear(), false;
  if (compiled_.fullgraph || code->At(index).op != bytecode::Op::kForIter) return false;
  if (Counting::now && index == Counting::now->loop) return false;
  // What no GET_ITER of this capture gave lies on the stack as the frame had it.
  PyObject* top = fj_localsplus(frame)[fj_nlocalsplus(frame) + fj_stack_depth(frame) - 1];
  if (!top || !IsLazy(top)) return false;
  return Holds(types, Py_TYPE(reinterpret_cast<Lazy*>(top)->value));
}

// A capture would take an array apart that is gone through.
bool LoopWatch::EntersScalar(int index) const {
  PyCodeObject* code = fj_code(s_.root());
  const bytecode::Code* decoded = bytecode::Code::Of(code);
  if (compiled_.fullgraph || !decoded || decoded->At(index).op != bytecode::Op::kGetIter) return false;
  FjFrame* frame = s_.root();
  PyObject* top = fj_localsplus(frame)[fj_nlocalsplus(frame) + fj_stack_depth(frame) - 1];
  if (top && IsLazy(top)) {
    auto* lazy = reinterpret_cast<Lazy*>(top);
    top = lazy->resolved ? lazy->resolved : lazy->value;
  }
  if (!top) return false;
  if (IsTensor(top)) {
    const TensorMeta& m = s_.meta(AsTensor(top)->id);
    if (m.framework != Framework::kNumpy || m.sizes.size() != 1 || !m.sizes[0].is_const() ||
        m.sizes[0].value() < kScalar)
      return false;
  } else if (tensor::Meta m; tensor::Classify(top) != tensor::Class::kNumpyArray || !tensor::ReadMeta(top, &m) ||
                             m.rank != 1 || m.sizes[0] < kScalar) {
    return false;
  }
  CodeLoops* loops = LoopsOf(compiled_, StateOf(compiled_, CodeOf(frame)), code);
  return loops && loops->Enters(frame, index);
}

// A loop begins in which a capture broke, and which will be code as a whole: what was captured of its first round would
// be compiled for nothing.
bool LoopWatch::HoldsBreak(int index) const {
  const int at = s_.options().broke_at;
  if (at < index || compiled_.fullgraph) return false;
  FjFrame* frame = s_.root();
  CodeState& state = StateOf(compiled_, CodeOf(frame));
  CodeLoops* loops = LoopsOf(compiled_, state, fj_code(frame));
  if (!loops || !loops->Begins(frame, index, at)) return false;
  Cut(state, fj_code(frame), index);
  return true;
}

// Has the graph got numbers or elements of arrays since the last jump back, and nothing larger was computed?
bool LoopWatch::MadeNumbers(Loop& loop) const {
  const auto& nodes = s_.graph().nodes;
  bool numbers = false, larger = false;
  for (size_t i = std::exchange(loop.nodes, nodes.size()); i < nodes.size(); ++i) {
    const OpInfo& op = Info(nodes[i].op);
    const bool number = nodes[i].type.shape.empty();
    numbers |= number && op.kind != 'C';
    larger |= !number && op.kind != 'V' && op.kind != 'C';
  }
  return numbers && !larger && s_.libraries.numpy;
}

bool LoopWatch::NewWeights(Loop& loop) const {
  const auto& inputs = s_.trace().inputs;
  bool found = false;
  for (; loop.inputs < inputs.size(); ++loop.inputs)
    found |= s_.meta(inputs[loop.inputs]).is_parameter ||
             s_.graph().nodes[s_.graph().inputs[loop.inputs]].attrs.name.find("._buffers[") != std::string::npos;
  return found;
}

bool LoopWatch::Back(FjFrame* frame, int index, long instructions) {
  instructions += looked_at / kLikeOne;
  if (compiled_.fullgraph || s_.options().whole) return true;
  if (frame == s_.root() && Counting::now && index == Counting::now->loop) return true;
  PyCodeObject* code = fj_code(frame);
  auto [it, first] = loops_.try_emplace(reinterpret_cast<uint64_t>(code) * 31 + index);
  Loop& loop = it->second;
  if (first) {
    auto known = compiled_.codes.find(CodeOf(frame));
    if (known != compiled_.codes.end() && Holds(known->second->cut, index)) return false;
    NewWeights(loop);
    loop.operations = s_.op_count;
    loop.idle_since = instructions;
    return true;
  }
  if (const int call = calls_[code]; std::exchange(loop.call, call) != call) {  // it begins anew
    loop.backs = loop.rounds = 0;
    loop.calls = 0;
    loop.idle_since = instructions;
    loop.operations = s_.op_count;
  }
  ++loop.backs;
  const bool of_numbers = MadeNumbers(loop) && loop.backs == kScalarOfNumbers && s_.options().broke_at >= 0;
  if (of_numbers || loop.backs == kScalar) {
    CodeLoops* loops = LoopsOf(compiled_, StateOf(compiled_, CodeOf(frame)), code);
    if (loops && (of_numbers ? loops->Begins(frame, index, index) : loops->Promising(frame, index))) {
      code_ = Borrow(reinterpret_cast<PyObject*>(code)), globals_ = fj_globals(frame);
      at_ = index;
      return false;
    }
  }
  const int64_t calls = s_.op_count - loop.operations;
  loop.operations = s_.op_count;
  if (NewWeights(loop)) {
    loop.rounds = 0;
    loop.calls = 0;
    loop.idle_since = instructions;
  } else if (calls) {
    ++loop.rounds;
    loop.calls += calls;
    loop.idle_since = instructions;
  }
  // A loop over what was made of many inputs, as over a model's gradients, is no longer than what brought them in.
  const auto inputs = static_cast<int64_t>(s_.trace().inputs.size());
  const bool outermost = frame == s_.root() || s_.libraries.numpy;
  const bytecode::Code* decoded = bytecode::Code::Of(code);
  if (!decoded) PyErr_Clear();
  const bool counted = decoded && decoded->At(index).op == bytecode::Op::kForIter;
  const bool few = loop.rounds <= (outermost ? kRounds : kRoundsInCalls) &&
                   (loop.rounds <= (counted && !outermost ? kFewRoundsInCalls : kFewRounds) ||
                    loop.calls <= (outermost ? kCalls : kCallsInCalls));
  if ((few || (loop.rounds <= inputs && loop.calls <= 2 * inputs)) && instructions - loop.idle_since <= kIdle)
    return true;
  code_ = Borrow(reinterpret_cast<PyObject*>(code)), globals_ = fj_globals(frame);
  at_ = index;
  return false;
}

void Cut(CodeState& state, PyCodeObject* code, int at) {
  const bytecode::Code* decoded = bytecode::Code::Of(code);
  if (!decoded) return PyErr_Clear();
  if (!Holds(state.cut, at)) state.cut.push_back(at);
  for (int i = 0; i < decoded->size(); ++i) {
    const bytecode::Instr& instr = decoded->At(i);
    if (!instr.length || instr.target < 0 || instr.target > at || i < at || instr.target > i) continue;
    if (!Holds(state.cut, instr.target)) state.cut.push_back(instr.target);
  }
}

void EndAtLoop(CodeState& state, int start, int end) {
  InUse now;
  Cut(state, reinterpret_cast<PyCodeObject*>(state.code.get()), start);
  const auto inside = [&](int at) { return start < at && at < end; };
  for (auto& [at, place] : state.places) {
    if (place.give_up || at.first == start || inside(at.first)) continue;
    for (auto& s : place.segments)
      if (!s->exit.returns && inside(s->exit.next)) Retire(std::move(s));
    std::erase(place.segments, nullptr);
  }
}

}  // namespace framejit::capture
