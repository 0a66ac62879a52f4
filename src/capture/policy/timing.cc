// See the header.
#include "capture/policy/timing.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "capture/events.h"
#include "capture/now.h"
#include "capture/policy/policy.h"
#include "capture/scalar/loops.h"
#include "diag/diag.h"
#include "runtime/arena.h"
#include "tensor/contractions.h"
#include "tensor/segment_node.h"

namespace framejit::capture {
namespace {

constexpr size_t kClasses = 16;
// Calls until arguments are looked at again where all that was seen is kept, and until it is asked again whether there
// is anything to measure.
constexpr long kRest = 32, kAsk = 512, kAskFirst = 4;
// Calls that wait for their backward passes, and those that are not measured since so many wait until it is given up.
constexpr int kWaiting = kMostSamples, kMissed = 4096;
constexpr double kLong = 20e-3;  // seconds of a call that is measured a few times only

// Of the time since the first one, calls in frames may cost this share where they find nothing. Each of the first two,
// in which much is set up, counts as so many seconds at most.
constexpr double kVain = 0.03, kVainMost = 30e-3;

// What decides how long a call takes, roughly: kinds of arguments, sizes to a factor of two, switches and, with more
// detail, ints (1) and strings (2).
uint64_t SizeOf(PyObject* o, int detail) {
  if (PyBool_Check(o) || o == Py_None) return reinterpret_cast<uint64_t>(o);
  if (PyLong_CheckExact(o)) {
    if (!detail) return 0;
    int overflow;
    const long long v = PyLong_AsLongLongAndOverflow(o, &overflow);
    return overflow ? 64 : std::bit_width(static_cast<uint64_t>(std::llabs(v)));
  }
  if (PyUnicode_CheckExact(o)) return detail > 1 ? static_cast<uint64_t>(PyObject_Hash(o)) : 0;
  if (PyList_CheckExact(o)) return std::bit_width(static_cast<uint64_t>(PyList_GET_SIZE(o)));
  if (PyTuple_CheckExact(o)) return std::bit_width(static_cast<uint64_t>(PyTuple_GET_SIZE(o)));
  tensor::Meta m;
  if (tensor::Classify(o) == tensor::Class::kNone || !tensor::ReadMeta(o, &m)) return 0;
  uint64_t count = 1;
  for (int i = 0; i < m.rank; ++i) count *= static_cast<uint64_t>(m.sizes[i]);
  return std::bit_width(count) * 64 + static_cast<uint64_t>(m.dtype) * 2 + m.requires_grad;
}

}  // namespace

// May a backward pass begin with it? Of what may hold anything that is not known.
static bool LeadsGradients(PyObject* o, int depth = 3) {
  if (tensor::Classify(o) != tensor::Class::kNone) {
    tensor::Meta m;
    return !tensor::ReadMeta(o, &m) ? (PyErr_Clear(), true) : m.requires_grad;
  }
  if (o == Py_None || PyLong_Check(o) || PyFloat_Check(o) || PyUnicode_Check(o) || PyBytes_Check(o)) return false;
  if (!depth) return true;
  if (PyTuple_Check(o) || PyList_Check(o))
    return std::any_of(PySequence_Fast_ITEMS(o), PySequence_Fast_ITEMS(o) + PySequence_Fast_GET_SIZE(o),
                       [&](PyObject* item) { return LeadsGradients(item, depth - 1); });
  if (!PyDict_Check(o)) return true;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);)
    if (LeadsGradients(value, depth - 1)) return true;
  return false;
}

bool Timing::Measurable(const Compiled& compiled, bool whole) {
  tensor::LookForProcesses();
  if (compiled.backend != "llvm" || GetStance() != Stance::kDefault || !diag::OptionOn("leave") ||
      tensor::NothingByTheClock())
    return false;
  for (const auto& graph : compiled.graphs)
    if (!graph->on_cpu) return false;
  for (const auto& [code, state] : compiled.codes)
    for (const auto& [at, place] : state->places)
      for (const auto& segment : place.segments)
        if (segment->compiling() || (!whole && segment->graph_runner && segment->trace_runner) ||
            (segment->executable && !segment->executable->settled()))
          return false;
  return true;
}

Timing::Class* Timing::Find(uint64_t key) {
  auto it = std::find_if(classes_.begin(), classes_.end(), [&](const Class& c) { return c.key == key; });
  return it == classes_.end() ? nullptr : &*it;
}

Timing::Turn Timing::Choose(Compiled& compiled, PyObject* const* args, Py_ssize_t n, uint64_t at) {
  const long calls = std::max<long>(1, span_);
  ask_ -= calls;
  Rest(0);
  if (ask_ <= 0 || looked_ != compiled.captures) {
    ask_ = kAsk;
    if (looked_ != compiled.captures) soon_ = kAskFirst;
    looked_ = compiled.captures;
    diag::OptionScope options(compiled.options.empty() ? nullptr : &compiled.options);
    if (!Measurable(compiled, true)) {
      Forget();
      Rest(ask_ = std::exchange(soon_, std::min(kAsk, 2 * soon_)));
      return {};
    }
  }
  if (GetStance() != Stance::kDefault) return {};
  uint64_t key = at;
  for (Py_ssize_t i = 0; i < n; ++i)
    key = (key ^ reinterpret_cast<uint64_t>(Py_TYPE(args[i])) / 16 ^ SizeOf(args[i], detail_) << 20) *
          0x9E3779B97F4A7C15ull;
  if (PyErr_Occurred()) PyErr_Clear();
  Class* c = Find(key);
  if (!c) {
    if (classes_.size() >= kClasses) {
      if (!detail_) return Rest(kAsk), Turn();
      --detail_;
      Forget();
      return Choose(compiled, args, n, at);
    }
    c = &classes_.emplace_back();
    c->key = key;
    c->passes = tensor::BackwardPasses();
    ++measuring_;
  }
  Turn turn;
  turn.key = key;
  if (c->state == State::kKept && c->until > 0 && (c->until -= calls) <= 0) Again(*c);
  turn.calls = c->calls;
  if (c->state == State::kKept) {
    if (turn.calls) return turn;
    // What is still to be measured may not come for long. How far apart the looks are changes, as calls come in turns.
    Rest(measuring_ ? 1 + ++look_ % 4 : kRest);
    return turn;
  }
  if (c->state == State::kLeft) {
    turn.python = --c->until > 0;
    if (turn.python && AllLeft() && Best(c->seconds.plain) < kShortCall) {
      const long most = HoldsNone(args, n) ? kUnasked : kUnaskedTensors;
      Seen(args, n);
      LeaveUnasked(std::min(most, c->until));
      c->until -= unasked_;
    }
    if (turn.python) return turn;
    for (const auto& [code, state] : compiled.codes)  // the calls since then count as calls of what may become code
      if (state->loops && reinterpret_cast<PyObject*>(code.code) == compiled.root_code.get())
        state->loops->Missed(c->pause);
    --left_;
    Again(*c);
  }
  turn.timed = true;
  turn.python = c->waiting < kWaiting && c->seconds.plain.size() < c->seconds.compiled.size();
  turn.captures = compiled.captures;
  turn.loops = compiled.scalar_loops;
  turn.mapped = runtime::ArenaPool::Get().mapped();
  // What other programs have kept this thread from is not the call's time.
  if (!c->seconds.compiled.empty() && Best(c->seconds.compiled) >= kShortCall) {
    turn.before = Now();
    turn.waited = Waited();
  }
  if (!tensor::measured_call) turn.call = tensor::measured_call = std::make_shared<tensor::MeasuredCall>();
  ++tensor::timed_calls;
  turn.start = Now();
  return turn;
}

void Timing::Ended(Compiled& compiled, const Turn& turn, PyObject* const* args, Py_ssize_t n, PyObject* result) {
  double seconds = Now() - turn.start;
  --tensor::timed_calls;
  if (turn.call) tensor::measured_call = nullptr;
  if (turn.waited >= 0) {  // What was waited may have been so while that was asked.
    const double waited = Waited() - turn.waited, outside = Now() - turn.before - seconds;
    seconds -= std::max(0.0, waited - outside);
  }
  Class* c = Find(turn.key);
  if (!c || c->state != State::kMeasuring || !result) return;
  if (turn.calls != c->calls) return;  // that was measured meanwhile, in a call inside of this one
  if (!turn.python) {
    // First runs compile, choose and pack. What goes on compiling call after call costs that, too.
    constexpr int kTries = 4;
    const bool captured = compiled.captures != turn.captures && ++c->tries < kTries;
    if (captured || compiled.scalar_loops != turn.loops) {  // of a loop there are only few versions
      c->warm = 0;
      return;
    }
    if (c->warm++ < (seconds > kLong ? 1 : 2) && c->tries < kTries) return;
    // Fresh pages cost more than most kernels do, until there are as many as the program keeps results.
    constexpr int kMaps = 8;
    if (runtime::ArenaPool::Get().mapped() != turn.mapped && ++c->maps < kMaps) return;
  }
  // The framework's own calls leave the pass as it is: what they save is in the call.
  if (!c->calls && LeadsGradients(result) && !Measurable(compiled) && tensor::BackwardPasses() != c->passes)
    Await(compiled, *c, turn, args, n, result, seconds);
  else
    Take(compiled, *c, turn.python, seconds);
}

void Timing::Forget() {
  classes_.clear();
  left_ = measuring_ = calling_ = 0;
}

void Timing::Again(Class& c) {
  if (c.state == State::kKept && c.calls) --calling_;
  c.calls = false;
  Restart(c);
  ++measuring_;
}

void Timing::Restart(Class& c) {
  c.state = State::kMeasuring;
  c.with_pass = false;
  c.seconds = c.whole = {};
  c.warm = c.tries = c.maps = c.waiting = c.missed = 0;
}

// What the verdict goes by.
const Samples& Timing::Class::judged() const {
  constexpr double kMost = 0.5;
  return with_pass && !whole.plain.empty() && Best(seconds.plain) > kMost * Best(whole.plain) ? whole : seconds;
}

void Timing::Take(Compiled& compiled, Class& c, bool python, double seconds, double whole) {
  if (!python) {
    c.seconds.compiled.push_back(seconds);
    c.whole.compiled.push_back(whole);
    return;
  }
  // Calls that this one made, of the same function, may have come to a verdict, and begun again, before it ended.
  if (c.seconds.plain.size() >= c.seconds.compiled.size()) return;
  if (IsCold(c.seconds, written_++)) return;
  c.seconds.plain.push_back(seconds);
  c.whole.plain.push_back(whole);
  if (const Verdict verdict = Judge(c.judged()); verdict != Verdict::kMore)
    Decide(compiled, c, verdict == Verdict::kLeave);
}

static Timing::Turn WithoutCall(Timing::Turn turn) {  // which holds what is done with the turn
  turn.call = nullptr;
  return turn;
}

// The sample comes with the pass. Calls of which none comes are kept as they are.
void Timing::Await(Compiled& compiled, Class& c, const Turn& turn, PyObject* const* args, Py_ssize_t n,
                   PyObject* result, double seconds) {
  if (!turn.call) return;
  if (!std::exchange(c.with_pass, true)) c.seconds = c.whole = {};
  bool follows = true;
  if (c.waiting < kWaiting) {
    const double ended = Now();
    turn.call->done = [of = compiled.weak_from_this(), call = turn.call.get(), turn = WithoutCall(turn),
                       seconds](double pass) {
      const auto compiled = of.lock();
      if (!compiled) return;
      double whole = Now() - turn.start - call->aside;
      if (turn.waited >= 0) whole -= std::max(0.0, Waited() - turn.waited - (turn.start - turn.before) - call->aside);
      compiled->timing->Passed(*compiled, turn, seconds + pass, whole);
    };
    follows = tensor::WatchPass(turn.call, result, args, n);
    turn.call->aside = Now() - ended;
    if (PyErr_Occurred()) PyErr_Clear();
    ++c.waiting;
  } else {
    follows = ++c.missed < kMissed;
  }
  if (!follows) Decide(compiled, c, false);
}

void Timing::Passed(Compiled& compiled, const Turn& turn, double seconds, double whole) {
  Class* c = Find(turn.key);
  if (!c || c->state != State::kMeasuring || !c->with_pass) return;
  c->waiting = std::max(0, c->waiting - 1);
  if (turn.calls == c->calls) Take(compiled, *c, turn.python, seconds, whole);
}

// A clock that is cheap to read and goes on every few milliseconds.
static double RoughNow() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void Timing::LeaveUnasked(long calls) {
  unasked_ = static_cast<int>(calls);
  if (calls) clock_ = RoughNow();
}

void Timing::Seen(PyObject* const* args, Py_ssize_t n) {
  for (Py_ssize_t i = 0; i < n; ++i)
    if (std::find(types_.begin(), types_.end(), Py_TYPE(args[i])) == types_.end())
      types_[next_type_++ % types_.size()] = Py_TYPE(args[i]);
}

bool Timing::SoonAgain() {
  constexpr double kSlow = 20;  // times as long as short calls
  const double now = RoughNow();
  if (now - std::exchange(clock_, now) < kSlow * kLook * kShortCall) return true;
  unasked_ = 0;
  return false;
}

bool Timing::Spent() const {
  return spent_ > kVain * (Now() - first_);
}

bool Timing::HoldsNone(PyObject* const* args, Py_ssize_t n) {
  if (GetStance() != Stance::kDefault) return false;
  return std::none_of(args, args + n, [](PyObject* o) {
    if (PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyUnicode_CheckExact(o)) return false;
    PyTypeObject* module = tensor::ModuleType();
    return tensor::Classify(o) != tensor::Class::kNone || (module && PyObject_TypeCheck(o, module));
  });
}

void Timing::RanInFrames(Compiled& compiled, double seconds, int at) {
  in_vain_ = false;
  unasked_ = 0;
  if (!compiled.graphs.empty() || compiled.fullgraph || compiled.imports) return;
  const auto has_loops = [](const auto& known) { return known.second->loops && known.second->loops->any(); };
  if (std::any_of(compiled.codes.begin(), compiled.codes.end(), has_loops)) return;
  diag::OptionScope options(compiled.options.empty() ? nullptr : &compiled.options);
  if (!Measurable(compiled) || diag::OptionOn("error_on_recompile")) return;
  in_vain_ = ++in_frames_ > 1;
  if (at >= 0) ++resumed_[at];
  const double cost = plain_ < seconds ? seconds - plain_ : seconds;
  spent_ += in_frames_ > 2 ? cost : std::min(cost, kVainMost);
  if (!first_) first_ = Now();
}

// Are there segments that can make the framework's calls in the place of what was compiled?
bool Timing::MayCall(const Compiled& compiled) {
  for (const auto& [code, state] : compiled.codes)
    for (const auto& [at, place] : state->places)
      for (const auto& segment : place.segments)
        if (segment->graph_runner && segment->as_calls) return true;
  return false;
}

void Timing::Decide(Compiled& compiled, Class& c, bool leave) {
  const Samples& s = c.judged();
  const bool measured = !s.plain.empty() && !s.compiled.empty();
  const double ours = measured ? Best(s.compiled) : 0, python = measured ? Best(s.plain) : 0;
  const double ratio = measured ? ours / python : 0;
  if (!c.calls && measured && ratio >= kClear && MayCall(compiled)) {  // that way is measured next
    c.calls = true;
    c.graphs_save = leave ? -1 : python - ours;
    return Restart(c);
  }
  if (c.calls && (leave || !measured || c.graphs_save > python - ours)) {
    c.calls = false;
    leave = c.graphs_save < 0;
  }
  --measuring_;
  c.state = leave ? State::kLeft : State::kKept;
  c.until = 0;
  if (!measured) return;
  if (leave || ratio >= kClear)
    c.until = c.pause = c.pause ? 8 * c.pause : static_cast<long>(500 * std::max(1.0, ratio));
  if (!leave && !c.calls) return;
  ++(leave ? left_ : calling_);
  const std::string note = leave ? "not faster than Python: left to it"
                                 : "the framework's own calls and derivatives are faster than graphs: they run";
  LeftEvent(compiled, note, ours, python);
  if (std::find(compiled.notes.begin(), compiled.notes.end(), note) == compiled.notes.end())
    compiled.notes.push_back(note);
  if (diag::Enabled(diag::Channel::perf_))
    diag::Log(diag::Channel::perf_,
              note + " (" + std::to_string(ours * 1e6) + " us against " + std::to_string(python * 1e6) + ")");
}

}  // namespace framejit::capture
