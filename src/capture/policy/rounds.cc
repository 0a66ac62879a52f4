#include "capture/policy/rounds.h"

#include <algorithm>

#include "bytecode/code.h"

namespace framejit::capture {
namespace {

// Rounds in a row before several of them are captured, again where guards fail for as many.
constexpr int kSeen = 4;
// Rounds after which that is tried again where a capture ended before them, more each time.
constexpr int kSeldom = 256;
// What such a segment holds: so many framework calls, in at most so many rounds; more where a loop goes on for long. Of
// rounds of many calls (a token of a small language model) a segment of one is faster than one of two; not so where
// gradients are recorded, of which each segment has a node and a pass.
constexpr int kCalls = 256, kCallsOfLarge = 128, kLarge = 16, kRounds = 16, kManyRounds = 32, kLong = 2 * kManyRounds;
constexpr int kCallsInTraining = 512;

struct Counter {
  PyObject* iterator = nullptr;
  long step = 0, left = 0;
};

// The range that a `for` loop goes through, in the first instruction of its body: on the stack are its iterator and the
// number that it gave last. Nobody else has the iterator.
Counter CounterOf(FjFrame* frame) {
  const int depth = fj_stack_depth(frame);
  frame::Slot* top = fj_localsplus(frame) + fj_nlocalsplus(frame) + depth;
  Counter c;
  long next;
  if (depth < 2 || !top[-1] || !top[-2] || !PyLong_CheckExact(top[-1]) || Py_REFCNT(top[-2]) != 1 ||
      !fj_range_state(top[-2], &next, &c.step, &c.left))
    return {};
  int overflow;
  const long long last = PyLong_AsLongLongAndOverflow(top[-1], &overflow);
  if (overflow || last < 2 || last + c.step != next) return {};  // 0 and 1 are no symbols
  c.iterator = top[-2];
  return c;
}

// The frame is in the first instruction of a loop's body. Gives the place that the loop's back edge leads to, or -1 if
// it is in no loop that is cut.
int LoopAt(const CodeState& state, FjFrame* frame, bool* counted) {
  const bytecode::Code* code = bytecode::Code::Of(fj_code(frame));
  const auto cut = [&](int at) { return std::count(state.cut.begin(), state.cut.end(), at) != 0; };
  const int here = fj_next(frame);
  int before = here - 1;
  while (code && before > 0 && !code->At(before).length) --before;
  *counted = code && before >= 0 && code->At(before).op == bytecode::Op::kForIter && cut(before);
  if (*counted) return before;
  return code && cut(here) && code->At(here).op != bytecode::Op::kForIter ? here : -1;
}

}  // namespace

Place* RoundsAt(const Compiled& compiled, CodeState& state, const Place& once, FjFrame* frame) {
  if (once.segments.empty() || state.cut.empty() || compiled.fullgraph || compiled.Dynamic() == 0) return nullptr;
  bool counted;
  const int loop = LoopAt(state, frame, &counted);
  const auto whole = std::find_if(once.segments.begin(), once.segments.end(), [&](auto& s) {
    return !s->exit.returns && s->exit.next == loop && s->tally.runs && s->op_count;
  });
  if (loop < 0 || whole == once.segments.end()) return nullptr;
  Place& rounds = state.places[{fj_next(frame), ~fj_stack_depth(frame)}];
  if (rounds.one_by_one) return nullptr;
  const Counter c = counted ? CounterOf(frame) : Counter();
  if (counted && !c.iterator) return nullptr;
  if (rounds.loop < 0) {
    rounds.loop = loop;
    const int64_t each = (*whole)->op_count;
    const bool trains = (*whole)->graph_runner && (*whole)->trace_runner;
    const int64_t calls = trains ? kCallsInTraining : each > kLarge ? kCallsOfLarge : kCalls;
    rounds.rounds = static_cast<int>(std::min<int64_t>(c.left >= kLong ? kManyRounds : kRounds, calls / each));
    rounds.one_by_one = rounds.rounds < 2;
    if (rounds.one_by_one) return nullptr;
  }
  if (!counted) return &rounds;
  if (!rounds.step) rounds.step = c.step;
  return c.step == rounds.step && c.left + 1 >= rounds.rounds ? &rounds : nullptr;
}

bool Due(Place& rounds, const Place& once) {
  if (++rounds.seen < kSeen) return false;
  rounds.seen = 0;
  // What has changed from round to round is no number any more.
  rounds.dynamic_ints.insert(once.dynamic_ints.begin(), once.dynamic_ints.end());
  rounds.dynamic_dims.insert(once.dynamic_dims.begin(), once.dynamic_dims.end());
  rounds.fixed_sizes |= once.fixed_sizes;
  return true;
}

bool Serves(Place& rounds, const Segment* segment) {
  const bool whole = segment && !segment->exit.returns && segment->exit.next == rounds.loop &&
                     (rounds.step == 0 || segment->advance == rounds.rounds - 1);
  if (whole) return true;
  // The last rounds of a `while` loop are fewer. If others were captured once, it is seldom asked again.
  const size_t mine = segment ? 1 : 0;
  rounds.one_by_one |= rounds.segments.size() == mine;
  rounds.seen = -(kSeldom << std::min(rounds.misses, 16));
  return false;
}

RangeInUse::RangeInUse(FjFrame* frame) {
  const Counter c = CounterOf(frame);
  iterator_ = Ref(Py_XNewRef(c.iterator));
  left_ = c.left;
}

void RangeInUse::Advance(const Segment& segment) {
  for (int i = 0; i < segment.advance; ++i) Py_XDECREF(Py_TYPE(iterator_.get())->tp_iternext(iterator_.get()));
}

}  // namespace framejit::capture
