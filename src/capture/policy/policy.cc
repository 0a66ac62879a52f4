// This file has the frame policy. At every instruction boundary of a wanted frame a segment runs if its guards hold.
// Otherwise a capture is tried where it may pay, and else the instruction is stepped.
#include "capture/policy/policy.h"

#include <algorithm>
#include <optional>

#include "capture/backward_hooks.h"
#include "capture/estimate.h"
#include "capture/events.h"
#include "capture/meter.h"
#include "capture/named_code.h"
#include "capture/now.h"
#include "capture/outcomes.h"
#include "capture/override.h"
#include "capture/policy/generators.h"
#include "capture/policy/loops.h"
#include "capture/policy/rounds.h"
#include "capture/policy/skipped.h"
#include "capture/policy/stretch.h"
#include "capture/policy/timing.h"
#include "capture/scalar/loops.h"
#include "capture/special_calls.h"
#include "capture/wrappers/overrides.h"
#include "diag/diag.h"
#include "frame/hook.h"
#include "tensor/contractions.h"

namespace framejit::capture {
namespace {

thread_local std::shared_ptr<Compiled> active;
thread_local frame::Semantics* override_semantics = nullptr;
Stance stance = Stance::kDefault;

// How a frame of this thread that has cut loops, or instructions that are stepped, gets on.
struct Progress {
  FjFrame* frame = nullptr;
  int last = -1;         // instruction
  bool looped = false;   // it has jumped back
  bool ran = true;       // a segment, since it last did
  int dull = 0;          // rounds in a row without one
  int loop = -1;         // the last instruction that it jumped back to, and rounds of that loop
  int64_t captures = 0;  // when it did
  double then = 0, best = 0;
  int rounds = 0;
  int at_once = 1;  // rounds that were one run
};
thread_local std::vector<Progress> progress;
constexpr int kDull = 24;  // after so many rounds the frame goes on in CPython
// Rounds with segments that are timed, then some that our interpreter runs, which is slower than CPython.
constexpr int kTimed = 8, kPlain = 3;
// Versions of a place in a loop that frames see one after the other.
constexpr size_t kLoopVersions = 8;
// Captures in the middle of loops may take this long, and beyond that a part of the time since the first.
constexpr double kLoopSeconds = 0.3, kLoopShare = 0.25;
constexpr double kPlainShare = 0.03;  // Likewise, of code without tensors for values that are new in each call.
constexpr int kPlainOnce = 4;         // versions that ran once at most, or died early; fewer values may come again
constexpr int64_t kFewRuns = 4;       // by one call, with an object of its own: they save less than a capture costs
constexpr int kSpread = 3;            // versions with so few runs that one place may have where ...
constexpr unsigned kUnserved = 8;     // ... so many calls found none at the beginning of the function

std::string Where(PyCodeObject* code) {
  return std::string(PyUnicode_AsUTF8(code->co_qualname)) + " (" + PyUnicode_AsUTF8(code->co_filename) + ":" +
         std::to_string(code->co_firstlineno) + ")";
}

class Policy : public frame::FramePolicy {
 public:
  bool Wants(FjFrame* frame) override {
    if (override_semantics) return true;
    if (!active || ending) return false;
    if (GoesOn::Waits() && GoesOn::In(frame)) {
      ForgetProgress(frame);
      return true;
    }
    // This call imports, say, and the next one is compiled.
    if ((active->fullgraph || active->first_calls) && active->Awaits()) return false;
    CodeState& c = StateOf(*active, CodeOf(frame));
    const bool root = active->root_code.get() == reinterpret_cast<PyObject*>(fj_code(frame));
    const bool plain = c.skip || IsBarren(c, frame);
    if (plain && !root && !c.instead && !active->fullgraph) return false;  // most frames that a call runs in a library
    if (!tensor::CaptureObstacle().empty()) {  // for all of this frame: what it is called under does not end in it
      if (active->fullgraph || !c.skip) RememberObstacle(*active, frame);
      return active->fullgraph;
    }
    if (HasHooksOfOldKind(frame)) return false;
    if (IsDisabled(fj_function(frame))) {  // of another one the break of its caller tells
      if (root) RememberDisabled(*active, frame);
      return root && active->fullgraph;
    }
    const bool wanted = !plain && !(c.idle && Idle(c));
    if (!wanted && root) active->outcomes->Add(diag::RunBy::kPython);
    return wanted || c.instead;
  }

  bool Resumes(PyThreadState* ts, FjFrame* frame, absl::FunctionRef<PyObject*()> drive, PyObject** result) override {
    const std::shared_ptr<Compiled> compiled = MakerOf(frame);
    if (!compiled || ending || RunsDisabled(fj_code(frame)) || stance == Stance::kForceEager) return false;
    return Resumed(compiled, ts, frame, [&] { return Wants(frame); }, drive, result);
  }

  PyObject* Continue(PyThreadState* ts, FjFrame* frame, int throwflag) override {
    std::optional<SuspendScope> off;  // of what is disabled nothing is captured, nor of what it calls
    if (!active) return fj_pass_on(ts, frame, throwflag);
    PyObject* function = fj_function(frame);
    const bool disabled = IsDisabled(function);
    if (disabled || HasHooksOfOldKind(frame) || (fj_is_generator(frame) && RunsDisabled(fj_code(frame)))) off.emplace();
    PyObject* behind = disabled ? BehindDisabled(function) : nullptr;
    if (behind && PyFunction_Check(behind)) NoteGenerator(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(behind)));
    return fj_pass_on(ts, frame, throwflag);
  }

  frame::Semantics* Override(FjFrame*) override { return override_semantics; }

  frame::Action At(FjFrame* frame, PyObject** result) override {
    if (!active || ending || override_semantics) return frame::Action::kHandOver;
    if (const Leaving leaving = LeavesAt(frame, fj_next(frame)); leaving != Leaving::kNo)
      return leaving == Leaving::kYields ? frame::Action::kHandOver /* up to there */ : frame::Action::kStep;
    PyCodeObject* code = fj_code(frame);
    std::shared_ptr<Compiled> compiled = active;
    diag::OptionScope options(compiled->options.empty() ? nullptr : &compiled->options);
    if (compiled->fullgraph && IsDisabled(fj_function(frame))) return NotFull(*compiled);
    CodeState& state = StateOf(*compiled, CodeOf(frame));
    if (Estimate* estimate = Estimate::Current()) return LookedAt(*estimate, *compiled, state, frame);
    if (state.instead) return RunInstead(frame, state.instead.get(), result);
    Place& place = state.places[{fj_next(frame), fj_stack_depth(frame)}];
    if (!state.entry && fj_stack_depth(frame) == 0) state.entry = &place;
    // A frame that begins lies where another one lay: what that one skipped is no concern of it.
    if (&place == state.entry) {
      ForgetSkips(frame);
      ForgetProgress(frame);
    }
    CodeLoops* loops = LoopsOf(*compiled, state, code);
    bool ran = false;
    if (auto action = loops ? loops->At(*compiled, frame, &ran) : std::nullopt) {
      for (const auto& [start, end] : loops->TakeMade()) EndAtLoop(state, start, end);
      if (ran) ProgressOf(frame).ran = true, ProgressOf(frame).last = -1;
      return *action == frame::Action::kStep ? StepOn(*compiled, state, frame, result, false) : *action;
    }
    if (auto action = Advance(*compiled, state, frame, result)) return *action;
    if (Place* rounds = RoundsAt(*compiled, state, place, frame))
      if (auto action = RunRounds(*compiled, state, place, *rounds, frame, result)) return *action;
    for (size_t i = 0; i < place.segments.size(); ++i) {  // by index: a run may re-enter and add versions
      Segment* seg = place.segments[i].get();
      if (seg->cause.guards && seg->cause.Outdated(frame::PointersOf(frame)) && !compiled->fullgraph) [[unlikely]] {
        seg = Revised(*compiled, state, place, i, frame);
        if (PyErr_Occurred()) return frame::Action::kRaise;
      }
      if (auto action = Ran(frame, *seg, result)) return *action;
    }
    ++place.passed;
    const auto may_leave = [&] { return !compiled->fullgraph && diag::OptionOn("leave"); };
    if (&place == state.entry && place.passed >= kUntaken && may_leave() && AllPlain(state)) return ToIdle(state);
    if (IsSkipping(frame)) return StepOn(*compiled, state, frame, result);
    if (place.give_up && ++place.misses == Place::kUseless) DropSingle(place);
    if (const Segment* last = place.give_up ? LastOf(place) : nullptr) MissEvent(frame, *last, place.misses);
    if (place.give_up && (&place == state.entry || ProgressOf(frame).looped)) {
      ++place.lost;
      return frame::Action::kHandOver;
    }
    if (place.give_up || state.skip) return StepOver(frame, place);
    if (!compiled->fullgraph)
      if (const auto action = Skipped(*compiled, state, place, frame, result)) return *action;
    BindFrameworks();
    if (!tensor::CaptureObstacle().empty()) {
      RememberObstacle(*compiled, frame);
      return compiled->fullgraph ? NotFull(*compiled) : frame::Action::kStep;
    }
    if (const auto action = Skipped(*compiled, state, place, frame, result)) return *action;
    const bool looping = ProgressOf(frame).looped;
    if (!state.first_seen) state.first_seen = Now();
    if (looping && state.loop_seconds > kLoopSeconds + kLoopShare * (Now() - state.first_seen) && may_leave() &&
        !tensor::NothingByTheClock())
      return frame::Action::kHandOver;
    if (const Segment* last = LastOf(place)) {
      if (may_leave() && Scattered(*compiled, state, place))
        return &place == state.entry ? InPython(*compiled) : StepOver(frame, place);
      const Sizes differ = last->guards->DynamicCandidates(frame::PointersOf(frame));
      if (!compiled->fullgraph && Emptied(differ)) return AsWritten(*compiled, frame, kEmpty, result);
      if (Refuses(place, frame)) return AsWritten(*compiled, frame, kRefused, result);
      if (!Missed(*compiled, place, frame, differ))
        return PyErr_Occurred() ? frame::Action::kRaise : StepOver(frame, place);
    } else if (stance == Stance::kFailOnRecompile) {
      PyErr_SetString(ErrorType("RecompileError"), (Where(NamedCode(frame)) + " was not compiled yet").c_str());
      return frame::Action::kRaise;
    } else if (stance != Stance::kDefault) {
      return frame::Action::kStep;
    }
    if (loops && loops->Considered(frame)) return StepOn(*compiled, state, frame, result);
    const double before = compiled->seconds;
    const auto raising = place.raising.empty() ? nullptr : place.raising.back();
    Segment* seg = CaptureAt(*compiled, state, place, frame);
    if (!place.raising.empty() && place.raising.back() != raising) return AsWritten(*compiled, frame, kRefused, result);
    if (looping) state.loop_seconds += compiled->seconds - before;
    if (seg && seg->calls == 0) state.plain_seconds += compiled->seconds - before;
    ProgressOf(frame).ran = true;
    if (PyErr_Occurred()) return frame::Action::kRaise;
    if (!seg || !seg->exit.returns) {
      if ((compiled->fullgraph || compiled->first_calls) && compiled->Awaits()) return InPython(*compiled);
      if (compiled->fullgraph && !compiled->breaks.empty()) return NotFull(*compiled);
    }
    if (!seg) {
      if (&place == state.entry) ++state.trivial;
      place.revised += place.revised > 0;
      Skip(frame, place.skip);
      return frame::Action::kStep;
    }
    state.idle = state.trivial = 0;
    return Ran(frame, *seg, result).value_or(frame::Action::kStep);
  }

 private:
  static void ForgetProgress(FjFrame* frame) {
    std::erase_if(progress, [&](const Progress& p) { return p.frame == frame; });
  }

  static frame::Action InPython(Compiled& compiled) {
    compiled.outcomes->Add(diag::RunBy::kPython);
    return frame::Action::kHandOver;
  }

  // Were versions made for numbers and texts that came once, and too many for what they are worth? Or does the program
  // change in every few calls (a hook is registered)? It may come to an end with that, so captures are made again after
  // twice as many calls without a version.
  static bool Scattered(const Compiled& compiled, const CodeState& state, const Place& place) {
    const auto once = [](const auto& s) { return s->calls == 0 && s->tally.runs <= 1; };
    const auto rare = [](const auto& s) { return s->tally.runs <= kFewRuns; };
    const auto count = [&](auto which) {
      return std::count_if(place.segments.begin(), place.segments.end(), which) + place.wasted;
    };
    if (count(rare) >= kSpread) {
      unsigned calls = 0;
      for (const auto& [code, known] : compiled.codes)
        if (reinterpret_cast<PyObject*>(code.code) == compiled.root_code.get() && known && known->entry)
          calls += known->entry->passed;
      if (calls > kUnserved && calls & (calls - 1)) return true;
    }
    return count(once) > kPlainOnce && state.plain_seconds > kPlainShare * (Now() - state.first_seen);
  }

  // Nothing of it is compiled. Does Advance know of the instruction, and so of those behind it?
  static frame::Action StepOn(Compiled& compiled, CodeState& state, FjFrame* frame, PyObject** result,
                              bool advances = true) {
    Stretch ran;
    const auto goes_on = [] { return active && !ending && !override_semantics; };
    if (auto action = RunStretch(compiled, state, frame, goes_on, &ran, result)) return *action;
    if (advances) ProgressOf(frame).last = ran.last;
    return frame::Action::kAgain;
  }

  // Was it found that nothing is to be compiled in the place?
  static std::optional<frame::Action> Skipped(Compiled& compiled, CodeState& state, Place& place, FjFrame* frame,
                                              PyObject** result) {
    if (place.skip && place.cause.Outdated(frame::PointersOf(frame)))
      Revise(compiled, state, place, frame, place.cause);
    if (!place.skip) return {};
    if (&place == state.entry && ++state.trivial >= 3 && !compiled.fullgraph && AllTrivial(state)) return ToIdle(state);
    Skip(frame, place.skip);
    return StepOn(compiled, state, frame, result);
  }

  // The call's first frame, at its first instruction: nothing of it runs.
  static frame::Action LookedAt(Estimate& estimate, Compiled& compiled, CodeState& state, FjFrame* frame) {
    BindFrameworks();
    if (const std::string& why = tensor::CaptureObstacle(); !why.empty()) RememberObstacle(compiled, frame);
    Place& place = state.places[{fj_next(frame), fj_stack_depth(frame)}];
    const bool can = tensor::CaptureObstacle().empty();
    estimate.End(compiled, can ? CaptureAt(compiled, state, place, frame) : nullptr);
    return frame::Action::kRaise;
  }

  static void BindFrameworks() {
    SuspendScope off;  // binding a framework for the first time may run Python code
    tensor::TorchLoaded();
    tensor::NumpyLoaded();
    tensor::CalleeOf(Py_None);
    tensor::CaptureObstacle();
  }

  using Sizes = std::vector<std::pair<int, int>>;  // what GuardSet::DynamicCandidates answers
  static bool Emptied(const Sizes& sizes) { return !sizes.empty() && sizes[0].first < 0; }

  // A call with something empty, of code that has versions for what is not: what is empty follows rules of its own (of
  // strides, of errors) and has next to nothing to compute.
  static constexpr auto kEmpty = "a size is 0 that was not: such calls run as written";
  static constexpr auto kRefused = "the program raises an exception: such calls run as written";
  // Of such a call, for which there is no version, is it known that the program ends it by an exception?
  static bool Refuses(const Place& place, FjFrame* frame) {
    PyObject* no_input;
    return std::any_of(place.raising.begin(), place.raising.end(), [&](const auto& guards) {
      return guards->Check(frame::PointersOf(frame), &no_input, std::vector<int64_t>(guards->num_symbols() + 1).data());
    });
  }

  static frame::Action AsWritten(Compiled& compiled, FjFrame* frame, const char* note, PyObject** result) {
    if (std::find(compiled.notes.begin(), compiled.notes.end(), note) == compiled.notes.end())
      compiled.notes.push_back(note);
    compiled.outcomes->Add(diag::RunBy::kPython);
    SuspendScope off;
    frame::ConcreteSemantics semantics;
    int index;
    switch (frame::RunLinked(frame, semantics, -1, &index, result)) {
      case frame::Outcome::kReturned: return frame::Action::kReturn;
      case frame::Outcome::kRaised: return frame::Action::kUnwound;
      default: return frame::Action::kHandOver;
    }
  }

  static frame::Action NotFull(Compiled& compiled) {
    PyErr_SetString(ErrorType("BreakError"), ("fullgraph=True, but:\n" + diag::Render(compiled.breaks.back())).c_str());
    compiled.breaks.clear();
    DropSegments(compiled);
    return frame::Action::kRaise;
  }

  static diag::Break BreakHere(FjFrame* frame, diag::BreakId id, const std::string& detail) {
    PyCodeObject* code = NamedCode(frame);
    diag::Break b;
    b.id = id;
    b.detail = detail;
    b.file = PyUnicode_AsUTF8(code->co_filename);
    b.function = PyUnicode_AsUTF8(code->co_qualname);
    b.line = NamedLine(frame);
    return b;
  }

  static void RememberObstacle(Compiled& compiled, FjFrame* frame) {
    const std::string& why = tensor::CaptureObstacle();
    for (auto& b : compiled.breaks)
      if (b.id == diag::BreakId::kThreadState && b.detail == why) return;
    RememberBreak(compiled, BreakHere(frame, diag::BreakId::kThreadState, why));
  }

  static void RememberDisabled(Compiled& compiled, FjFrame* frame) {
    compiled.outcomes->Add(diag::RunBy::kPython);
    PyObject* function = fj_function(frame);
    diag::Break b = BreakHere(frame, diag::BreakId::kUnknownCall, WhyDisabled(function));
    if (PyObject* behind = BehindDisabled(function); PyFunction_Check(behind)) {
      auto* code = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(behind));
      b.file = PyUnicode_AsUTF8(code->co_filename);
      b.function = PyUnicode_AsUTF8(code->co_qualname);
      b.line = code->co_firstlineno;
    }
    RememberBreak(compiled, b);
  }

  static Progress& ProgressOf(FjFrame* frame) {
    for (auto it = progress.rbegin(); it != progress.rend(); ++it)
      if (it->frame == frame) {
        progress.erase(it.base(), progress.end());  // of frames that it called
        return progress.back();
      }
    if (progress.size() > 4096) progress.erase(progress.begin(), progress.begin() + 2048);
    progress.push_back({frame});
    return progress.back();
  }

  // A frame has come to an instruction. Nothing: segments are looked for.
  static std::optional<frame::Action> Advance(Compiled& compiled, CodeState& state, FjFrame* frame, PyObject** result) {
    Progress& p = ProgressOf(frame);
    const int at = fj_next(frame);
    const bool back = at <= p.last;
    p.last = at;
    if (!back) return {};
    if (compiled.fullgraph) return {};
    p.looped = true;
    const bool ran = std::exchange(p.ran, false);
    p.dull = ran ? 0 : p.dull + 1;
    // A loop in which no segment runs is faster there.
    if (p.dull > kDull || std::count(state.plain_loops.begin(), state.plain_loops.end(), at))
      return frame::Action::kHandOver;
    if (std::count(state.good_loops.begin(), state.good_loops.end(), at)) return {};
    if (fj_is_generator(frame)) return {};  // what it is resumed by takes its time, too
    const double now = Now();
    if (at != p.loop || compiled.captures != p.captures) {
      p.rounds = 0;
      p.best = 1e9;
    } else {
      p.best = std::min(p.best, (now - p.then) / p.at_once);
      ++p.rounds;
    }
    p.at_once = 1;
    p.loop = at;
    p.captures = compiled.captures;
    p.then = now;
    if (p.rounds < kTimed) return {};
    return PlainRounds(compiled, state, frame, p.best, result);
  }

  // Are rounds of this loop with their segments slower than as written? The interpreter at hand takes longer than
  // CPython for each instruction: 14 ns where that took 6.
  static std::optional<frame::Action> PlainRounds(Compiled& compiled, CodeState& state, FjFrame* frame, double ours,
                                                  PyObject** result) {
    const int at = fj_next(frame);
    if (!Timing::Measurable(compiled)) return {};
    constexpr double kLonger = 8e-9;
    double best = 1e9;
    for (int i = 0; i < kPlain; ++i) {
      SuspendScope off;
      OneRound semantics(frame, at);
      int index;
      const double start = Now();
      switch (frame::RunLinked(frame, semantics, -1, &index, result)) {
        case frame::Outcome::kStopped: break;
        case frame::Outcome::kReturned: return frame::Action::kReturn;
        case frame::Outcome::kRaised: return frame::Action::kUnwound;
        case frame::Outcome::kHandOver: return frame::Action::kHandOver;
      }
      const double taken = Now() - start;
      best = std::min(best, std::max(taken - kLonger * semantics.steps, taken / 3));
    }
    const bool slower = ours > best;
    (slower ? state.plain_loops : state.good_loops).push_back(at);
    if (!slower) return {};
    compiled.notes.push_back("a loop is slower with compiled rounds: left to Python");
    LeftEvent(compiled, compiled.notes.back(), ours, best);
    diag::Log(diag::Channel::perf_, compiled.notes.back() + " (" + std::to_string(ours * 1e6) + " us against " +
                                        std::to_string(best * 1e6) + ")  [" + Where(NamedCode(frame)) + "]");
    return frame::Action::kHandOver;
  }

  static frame::Action Done(FjFrame* frame, PyObject* result) {
    if (result) return frame::Action::kReturn;
    if (const auto ends = ServeBreaker(frame)) return *ends;
    ProgressOf(frame).ran = true;
    return frame::Action::kAgain;
  }

  // Nothing: the guards do not hold, or a condition.
  static std::optional<frame::Action> Ran(FjFrame* frame, Segment& seg, PyObject** result) {
    switch (const diag::RunEnd end = seg.Try(frame::PointersOf(frame), frame, result)) {
      case diag::RunEnd::kMiss:
      case diag::RunEnd::kCondition: return {};
      case diag::RunEnd::kLeft: return frame::Action::kHandOver;
      case diag::RunEnd::kOk: return Done(frame, *result);
      case diag::RunEnd::kRaised: return frame::Action::kRaise;
      default:  // all is as before: the same instructions are run for real
        if (!Retry::Ended(seg, end)) return frame::Action::kRaise;
        PyErr_Clear();
        Skip(frame, Span(seg));
        return frame::Action::kStep;
    }
  }

  // Does what At does, for segments of several rounds. Nothing: those of one round are looked at.
  static std::optional<frame::Action> RunRounds(Compiled& compiled, CodeState& state, const Place& once, Place& rounds,
                                                FjFrame* frame, PyObject** result) {
    RangeInUse range(frame);
    const auto run = [&](Segment& seg) -> std::optional<frame::Action> {
      if (!range.Has(seg)) return {};
      const int64_t runs = seg.tally.runs;
      const auto action = Ran(frame, seg, result);
      if (seg.tally.runs == runs) return action;
      range.Advance(seg);
      rounds.seen = std::min(rounds.seen, 0);
      ProgressOf(frame).at_once = rounds.rounds;
      return action;
    };
    for (size_t i = 0; i < rounds.segments.size(); ++i)  // by index, as in At
      if (auto action = run(*rounds.segments[i])) return action;
    if (LeftToSkip(frame) > 1) return {};
    if (stance != Stance::kDefault || !tensor::CaptureObstacle().empty() || !Due(rounds, once)) return {};
    const Segment* last = LastOf(rounds);
    if (last && !Missed(compiled, rounds, frame, last->guards->DynamicCandidates(frame::PointersOf(frame)))) {
      rounds.one_by_one = true;
      return PyErr_Occurred() ? std::optional(frame::Action::kRaise) : std::nullopt;
    }
    const double before = compiled.seconds;
    Segment* seg = CaptureAt(compiled, state, rounds, frame);
    state.loop_seconds += compiled.seconds - before;
    if (PyErr_Occurred()) return frame::Action::kRaise;
    if (Serves(rounds, seg)) return run(*seg);
    if (seg) Retire(std::move(rounds.segments.back())), rounds.segments.pop_back();
    return {};
  }

  // What was read up to the break behind this place is other than it was: the next capture may get further.
  static void Revise(Compiled& compiled, CodeState& state, Place& place, FjFrame* frame, Cause& cause) {
    const std::string why = cause.guards->Explain(frame::PointersOf(frame), fj_code(frame)->co_localsplusnames);
    diag::Log(diag::Channel::recompiles_,
              "capturing " + Where(NamedCode(frame)) + " again, it may not break now: " + why);
    std::erase_if(state.stopped, [&](const auto& at) {
      return std::count(cause.ends.begin(), cause.ends.end(), at.second) && at.first >= fj_next(frame);
    });
    cause = {};
    ++place.revised;
    place.skip = 0;
  }

  // The segment in that place, which ends at such a break, is captured anew where its guards hold.
  static Segment* Revised(Compiled& compiled, CodeState& state, Place& place, size_t at, FjFrame* frame) {
    Segment& old = *place.segments[at];
    std::vector<PyObject*> inputs(old.num_inputs + 1);
    std::vector<int64_t> symbols(old.num_symbols + 1);
    if (stance != Stance::kDefault || diag::OptionOn("error_on_recompile") || !tensor::CaptureObstacle().empty() ||
        !old.guards->Check(frame::PointersOf(frame), inputs.data(), symbols.data()))
      return &old;
    InUse now;
    Revise(compiled, state, place, frame, old.cause);
    Segment* seg = CaptureAt(compiled, state, place, frame);
    if (!seg) return place.segments[at].get();
    place.revised += !seg->exit.returns && seg->instructions <= old.instructions;
    Retire(std::exchange(place.segments[at], std::move(place.segments.back())));
    place.segments.pop_back();
    return place.segments[at].get();
  }

  static Segment* LastOf(const Place& place) {
    for (auto it = place.segments.rbegin(); it != place.segments.rend(); ++it)
      if (!*(*it)->assumed.wrong) return it->get();
    return nullptr;
  }

  static long Span(const Segment& seg) { return seg.exit.returns ? 1L << 40 : seg.instructions; }

  // What the segments of this place would have run is run as written: no other is begun in the middle of it.
  static frame::Action StepOver(FjFrame* frame, const Place& place) {
    Segment* last = LastOf(place);
    if (!last && place.give_up) return frame::Action::kHandOver;
    if (last) Skip(frame, Span(*last));
    return frame::Action::kStep;
  }

  static void Skip(FjFrame* frame, long n) {
    if (active) active->outcomes->Add(diag::RunBy::kPython);
    SkipNext(frame, n);
  }

  // Nothing was found to compile in all of the code, but for stretches of plain Python.
  static bool AllPlain(const CodeState& state) {
    auto plain = [](const std::unique_ptr<Segment>& s) { return s->calls == 0; };
    if (state.loops && state.loops->any()) return false;
    return std::all_of(state.places.begin(), state.places.end(), [&](auto& at) {
      return std::all_of(at.second.segments.begin(), at.second.segments.end(), plain);
    });
  }
  // Likewise, and these lie behind breaks.
  static bool AllTrivial(const CodeState& state) { return state.entry->segments.empty() && AllPlain(state); }

  // So many frames may begin with no such stretch that is for them.
  static constexpr unsigned kUntaken = 256;
  // Such code is CPython's, but for a call now and then, at ever longer intervals, that looks again.
  static constexpr unsigned kIdle = 16;
  static frame::Action ToIdle(CodeState& state) {
    state.idle = kIdle;
    return frame::Action::kHandOver;
  }
  static bool Idle(CodeState& state) {
    ++state.idle;
    if (state.idle & (state.idle - 1)) return true;
    for (auto& [at, place] : state.places) place.skip = 0;
    return false;
  }

  // Guards on what is no more: an object that has died, registrations of abstract classes.
  static void DropDead(Place& place) {
    const int64_t registrations = Session::Registrations();
    auto dead = [&](const std::unique_ptr<Segment>& s) {
      return (s->registrations >= 0 && s->registrations != registrations) || s->guards->Dead();
    };
    const auto from = std::stable_partition(place.segments.begin(), place.segments.end(), std::not_fn(dead));
    for (auto it = from; it != place.segments.end(); ++it) {
      place.wasted += (*it)->guards->Dead() && (*it)->tally.runs <= ((*it)->calls ? 1 : kFewRuns);
      Retire(std::move(*it));
    }
    place.segments.erase(from, place.segments.end());
  }

  // Where no more is tried, what ran once and for long not again holds objects for nothing. The last one says how far
  // to step.
  static void DropSingle(Place& place) {
    InUse now;
    const Segment* last = LastOf(place);
    for (auto& s : place.segments)
      if (s->tally.runs <= 1 && s.get() != last) Retire(std::move(s));
    std::erase(place.segments, nullptr);
  }

  // Is there a graph that ends where no version is right? In stretches of plain Python there is none.
  static bool HasCalls(const Compiled& compiled, const Place& place) {
    return compiled.fullgraph ||
           std::any_of(place.segments.begin(), place.segments.end(), [](auto& s) { return s->calls; });
  }

  // No entry matched, and the last one by these sizes. True: capture another version.
  static bool Missed(Compiled& compiled, Place& place, FjFrame* frame, const Sizes& differ) {
    if (stance == Stance::kEagerOnRecompile) return false;
    Segment& last = *LastOf(place);
    const auto missed = [](auto& s) { return s->assumed.missed && !*s->assumed.wrong; };
    const auto versions = std::count_if(place.segments.begin(), place.segments.end(), missed);
    for (auto& s : place.segments)
      if (missed(s)) s->assumed.SizesMissed(versions);
    std::string why = last.WhyMissed(frame);
    if (stance == Stance::kFailOnRecompile || diag::OptionOn("error_on_recompile")) {
      PyErr_SetString(ErrorType("RecompileError"), why.c_str());
      return false;
    }
    ++compiled.recompiles;
    ++place.misses;
    if (diag::Enabled(diag::Channel::recompiles_))
      diag::Log(diag::Channel::recompiles_, "recompiling " + Where(NamedCode(frame)) + ": " + why);
    RecompileEvent(frame, place.segments.size(), why);
    std::vector<std::string> ints = last.guards->DynamicInts(frame::PointersOf(frame));
    std::vector<std::pair<std::string, int>> found;
    for (auto [input, dim] : differ)
      if (input >= 0 && input < last.num_tensor_inputs)
        found.emplace_back(last.guards->InputName(input, fj_code(frame)->co_localsplusnames), dim);
    const bool graphs = HasCalls(compiled, place);
    DropDead(place);
    // A version that has died after few runs was for objects of one call: the next will be, too.
    constexpr size_t kWaste = 4;
    const size_t most = std::stoul(diag::GetOption("max_entries")),
                 have = place.segments.size() + kWaste * place.wasted;
    const bool looped = ProgressOf(frame).looped && !compiled.fullgraph;
    if (have >= (looped ? std::min(most, kLoopVersions) : most)) {
      if (!place.give_up && have >= most && graphs) {
        diag::Break b = BreakHere(frame, diag::BreakId::kLimit, why);
        b.line = fj_code(frame)->co_firstlineno;
        diag::Warn(diag::Render(b));
        StateOf(compiled, CodeOf(frame)).stopped.emplace(fj_next(frame), RememberBreak(compiled, b));
      }
      place.give_up = true;
      return false;
    }
    if (compiled.Dynamic() != 0) {
      bool grew = false;
      for (std::pair<std::string, int>& d : found)
        grew |= !place.fixed_sizes && place.dynamic_dims.insert(std::move(d)).second;
      for (std::string& text : ints) grew |= place.dynamic_ints.insert(std::move(text)).second;
      if (grew) diag::Log(diag::Channel::recompiles_, "numbers that changed become symbols");
    }
    return true;
  }
};

}  // namespace

OverrideScope::OverrideScope(frame::Semantics* s) : before_(override_semantics) {
  override_semantics = s;
}
OverrideScope::~OverrideScope() {
  override_semantics = before_;
}

SuspendScope::SuspendScope()
    : semantics_(std::exchange(override_semantics, nullptr)),
      active_(active ? new std::shared_ptr<Compiled>(std::move(active)) : nullptr) {
  active = nullptr;
}
SuspendScope::~SuspendScope() {
  override_semantics = semantics_;
  if (auto* a = static_cast<std::shared_ptr<Compiled>*>(active_)) {
    active = std::move(*a);
    delete a;
  }
}

void InstallPolicy() {
  static Policy policy;
  frame::SetPolicy(&policy);
  fj_learn_profile();
}

int Compiled::Dynamic() const {
  if (dynamic >= 0) return dynamic;
  std::string text = diag::GetOption("dynamic");
  return text == "auto" ? -1 : text == "true";
}

void EndAll() {
  ending = true;
  ReportTimes();
  ResetAll();
}

bool DisabledByOption() {
  return diag::OptionOn("disable");
}

ActiveScope::ActiveScope(std::shared_ptr<Compiled> compiled) : before_(std::move(active)) {
  active = std::move(compiled);
}
ActiveScope::~ActiveScope() {
  active = std::move(before_);
}
[[gnu::hot]] frame::Semantics* CurrentSemantics() {
  return override_semantics;
}
[[gnu::hot]] bool Capturing() {
  return CurrentSemantics();
}
void SetStance(Stance s) {
  stance = s;
}
[[gnu::hot]] Stance GetStance() {
  return stance;
}

}  // namespace framejit::capture
