// See the header.
#include "capture/scalar/loops.h"

#include <absl/container/inlined_vector.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>

#include "capture/now.h"
#include "capture/policy/policy.h"
#include "capture/policy/stretch.h"
#include "capture/scalar/iterators.h"
#include "capture/scalar/objects.h"
#include "capture/scalar/rows_ahead.h"
#include "capture/scalar/undo.h"
#include "diag/diag.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"

namespace framejit::capture {

using scalar::ExitState;
using scalar::ObjectSpec;
using scalar::Translation;

namespace {

// A loop becomes code when it is come to again. One in another that does waits for that, but where so many instructions
// run before, of this round of the other one where it is known to go round.
constexpr int kVisits = 2;
constexpr int64_t kInnerWork = 500'000;
// Code that takes long to compile must be worth it: for each block the loop must have run, or be about to run, so many
// instructions, which Python runs in about a fourth of the time that the block takes to compile. Otherwise the question
// is asked again after more visits.
constexpr int kSmallCode = 64;
constexpr int64_t kWorkForBlock = 750;
constexpr int64_t kSoon = 2;  // so many times what it gains now would be enough
constexpr int kPatience = 8, kPatienceWithLarge = 2, kMostPatience = 1 << 24;
constexpr int64_t kWorkOfRound = 16;  // in code
constexpr int64_t kWorkOfEntry = 32;  // into code
constexpr int kVersions = 4;
// After so many runs it must have gone round so often in each.
constexpr int64_t kRuns = 64, kRounds = 3;
constexpr int64_t kWorthIt = 16;  // rounds, where it usually ends after few
// So many instructions run in Python while code is entered and left to it: where runs seldom reach the loop's end.
constexpr int64_t kWorthEntry = 120;
constexpr int64_t kMostOthers = 4;  // so often may kinds change until a loop ends
// Bytes of arrays of ints that are looked at before code is entered, and instructions of Python that are worth one.
constexpr int64_t kSeenAnyway = 256, kForSeen = 2;
// How much a nest of loops runs is often not known when it becomes code, as its first rounds are short: it is hoped to
// be this many instructions, and after so many runs it is known.
constexpr int64_t kHoped = 1 << 17, kHopedRuns = 4;
constexpr int64_t kWorthUndo = 8;  // rounds: then a copy of what is written costs less than buffers
// Where all loops of a function are code and its calls have no more rounds than this, much of their time goes by around
// the loops. After so many calls for each block of the loops all of the function becomes one code, and sooner where the
// loops have run so many instructions for each: that takes Python thirty times as long as the compile. It is asked
// first after a few calls.
constexpr int64_t kShortCall = 1 << 15;
constexpr int64_t kCallsForBlock = 64, kCodedForBlock = 100'000, kFewCalls = 16;
// Bytes of arrays that it makes: those that it returns are copied.
constexpr int64_t kShortArray = 1 << 16, kAnyArray = std::numeric_limits<int64_t>::max();

}  // namespace

// What the processor has noted of floats: an invalid operation, a division by zero, an overflow.
#if defined(__x86_64__)
constexpr bool kHasStatus = true;
// Of operations while it lives; afterwards what was noted before is there again, for who called the function
// (np.vectorize looks behind its calls).
class Status {
 public:
  Status() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~kAllNoted); }
  ~Status() { _mm_setcsr(before_); }
  Status(const Status&) = delete;
  static bool tells() { return (_mm_getcsr() & kToldOf) != 0; }

 private:
  static constexpr unsigned kAllNoted = 0x3f, kToldOf = _MM_EXCEPT_INVALID | _MM_EXCEPT_DIV_ZERO | _MM_EXCEPT_OVERFLOW;
  const unsigned before_;
};
#else
constexpr bool kHasStatus = false;
struct Status {
  ~Status() {}
  static bool tells() { return false; }
};
#endif

// Is there an array whose rows are so long that an inner loop over one of them would be no brief one?
static bool HasLongRows(FjFrame* frame) {
  const tensor::NumpyApi* api = tensor::Numpy();
  for (int i = 0; i < fj_nlocalsplus(frame); ++i) {
    PyObject* o = fj_localsplus(frame)[i];
    if (!o || !api || Py_TYPE(o) != api->array) continue;
    const tensor::NumpyArray* a = tensor::AsArray(o);
    if (a->nd > 1 && a->dims[a->nd - 1] > scalar::kServed) return true;
  }
  return false;
}

struct CodeLoops::Version {
  Translation t;
  scalar::Names names;
  codegen::CompiledScalar code;
  std::optional<runtime::ArenaPool::User> user;  // of memory for what may be undone
  bool hoped = false;                            // a transaction that was made as more was hoped than is known
  int64_t runs = 0, rounds = 0;                  // then
};

struct CodeLoops::Head {
  scalar::Loop loop;
  int unit = 0;            // of its first instruction
  bool innermost = false;  // no loop is in it
  bool function = false;   // all of it, and no loop
  bool candidate = false;  // a capture wants it, or it was translated
  bool whole = false;      // nothing of it was left to Python when that was asked
  bool declined = false;   // to a capture, which does not know all that the frame will hold
  bool off = false;
  int visits = 0;
  int again = 0;                                       // if not 0, nothing is compiled before so many visits
  bool soon = false;                                   // then it is worth it, by what it gained until now
  int64_t last = 0, work = 0, round = 0;               // when it was last come to; that frames ran in it; in one round
  int64_t last_coded = 0, coded = 0, coded_round = 0;  // likewise, of what ran as code
  int64_t last_backs = 0;                              // of all loops when it was last come to
  int64_t each = 0;                                    // instructions from jump back to jump back, before it was code
  int64_t runs = 0, rounds = 0, ended = 0;             // of the runs, those that went on to the loop's end
  bool seldom = false;                                 // it pays only where many rounds are left
  bool differ = false;                                 // numbers that were alike when code was made no longer are
  bool undone = false;                                 // A run was undone.
  bool told = false;                                   // One was that the processor told of: numbers are looked at.
  bool vain = false;                                   // What was hoped of a transaction did not come.
  int64_t others = 0;                                  // Of the runs that ended where other kinds came.
  bool together = false;                               // Hopes::together: kinds come and go
  std::set<int> longs;                                 // Hopes::longs
  std::vector<std::unique_ptr<Version>> versions;
};

CodeLoops::CodeLoops(PyCodeObject* code) : code_(Borrow(reinterpret_cast<PyObject*>(code))) {
  const bytecode::Code* decoded = bytecode::Code::Of(code);
  if (!decoded) {
    PyErr_Clear();
    return;
  }
  starts_.resize(decoded->size() + 1);
  const std::vector<scalar::Loop> loops = scalar::LoopsOf(*decoded);
  for (const scalar::Loop& loop : loops) {
    heads_.push_back(std::make_unique<Head>());
    heads_.back()->loop = loop;
    heads_.back()->innermost = scalar::HasNoLoops(loops, loop.start);
    heads_.back()->unit = decoded->At(loop.start).unit;
    starts_[loop.start] = true;
  }
  const int first = decoded->first_resume() + 1;
  if (heads_.empty() || decoded->first_resume() < 0 || starts_[first]) return;
  whole_ = std::make_unique<Head>();
  whole_->loop = {.start = first, .end = decoded->size(), .enter = first};
  whole_->function = true;
}
CodeLoops::~CodeLoops() = default;

void CodeLoops::Missed(int64_t calls) {
  if (whole_) whole_->visits = static_cast<int>(std::min<int64_t>(whole_->visits + calls, kMostPatience));
}

// No segments are made in such loops, but where something in them is not understood.
bool CodeLoops::Waits(const Head& head) {
  return head.candidate && !head.off && (head.versions.empty() || head.versions.back()->t.why.empty());
}

CodeLoops::Head* CodeLoops::Find(int index) {
  for (auto& p : heads_)
    if (p->loop.start == index) return p.get();
  return nullptr;
}

void CodeLoops::Look() {
  const auto waits = [](const Head& h) { return Waits(h) || (h.candidate && !h.off && !h.declined); };
  uint64_t now = 0;
  for (auto& p : heads_) now = (now << 1 | now >> 62) + waits(*p);
  if (std::exchange(looked_, now) == now) return;
  asked_.assign(starts_.size(), Asked::kOutside);
  for (auto& p : heads_)
    if (waits(*p)) std::fill(asked_.begin() + p->loop.enter, asked_.begin() + p->loop.end, Asked::kPythons);
  for (auto& p : heads_) asked_[p->loop.start] = Asked::kAll;
}

bool CodeLoops::any() const {
  return std::any_of(heads_.begin(), heads_.end(),
                     [](auto& p) { return !p->off && (p->candidate || !p->versions.empty()); });
}

bool CodeLoops::Promising(FjFrame* frame, int index) {
  Head* head = Find(index);
  return head && Try(*head, frame, index);
}

bool CodeLoops::Begins(FjFrame* frame, int index, int at) {
  Head* head = Find(index);
  return head && head->loop.Holds(at) && Try(*head, frame, index) && head->whole;
}

bool CodeLoops::Enters(FjFrame* frame, int index) {
  for (auto& p : heads_)
    if (p->loop.enter == index && index != p->loop.start) return Try(*p, frame, index);
  return false;
}

bool CodeLoops::Considered(FjFrame* frame) {
  const int at = fj_next(frame);
  for (auto& p : heads_)
    if (p->loop.Holds(at) && Try(*p, frame, at)) return true;
  return false;
}

bool CodeLoops::Try(Head& head, FjFrame* frame, int from) {
  if (head.off || head.declined) return false;
  if (head.candidate) return true;
  const Translation t = scalar::Translate(frame, head.loop, from, {});
  if (!t.loops) {
    (Capturing() || from != head.loop.start ? head.declined : head.off) = true;
    diag::Log(diag::Channel::loop_, "no scalar code: " + t.why);
    return false;
  }
  head.whole = t.why.empty();
  for (auto& p : heads_)  // and those around it
    if (p->loop.start <= head.loop.start && p->loop.end >= head.loop.end) p->candidate = true;
  return true;
}

// Gives how often it will still go round, or -1 where that is not known.
int64_t CodeLoops::RoundsLeft(const Head& head, FjFrame* frame) {
  const int depth = fj_stack_depth(frame);
  PyObject* it = head.loop.iterates && depth ? fj_localsplus(frame)[fj_nlocalsplus(frame) + depth - 1].get() : nullptr;
  const tensor::NumpyApi* api = tensor::Numpy();
  long next, step, left;
  if (it && Py_TYPE(it) == &PyEnum_Type) it = reinterpret_cast<scalar::EnumerateIter*>(it)->iterator;
  if (it && Py_TYPE(it) == &PyZip_Type) it = PyTuple_GET_ITEM(reinterpret_cast<scalar::ZipIter*>(it)->iterators, 0);
  if (!it) return -1;
  if (!fj_range_state(it, &next, &step, &left)) {
    if (!scalar::IsSequenceIterator(it)) return -1;
    const auto* s = reinterpret_cast<scalar::SeqIter*>(it);
    const bool array = s->seq && api && Py_TYPE(s->seq) == api->array;
    if (!s->seq ||
        (array ? tensor::AsArray(s->seq)->nd < 1 : !PyList_CheckExact(s->seq) && !scalar::HoldsLetters(s->seq)))
      return -1;
    left = PyObject_Size(s->seq) - s->index;
  }
  return std::clamp<int64_t>(left, 0, int64_t{1} << 32);
}

// Gives how many instructions the frame will run until this loop ends. Where that is not known, it is as many as it has
// run in the loop.
int64_t CodeLoops::Expected(const Head& head, FjFrame* frame) {
  const int64_t left = RoundsLeft(head, frame);
  return left < 0 ? head.work : left * std::min(head.round, int64_t{1} << 24);
}

// Likewise of what is no code yet, with what it has run.
int64_t CodeLoops::Gain(const Head& head, FjFrame* frame) {
  const int64_t left = RoundsLeft(head, frame), run = head.work - head.coded;
  return run + (left < 0 ? run : left * std::clamp<int64_t>(head.round - head.coded_round, 0, 1 << 24));
}

// Is it time to make code for it?
bool CodeLoops::Wanted(const Head& head, FjFrame* frame) const {
  if (head.versions.size() >= kVersions || head.visits < std::max(kVisits, head.again)) return false;
  const bool expected = Expected(head, frame) > kInnerWork;
  return std::none_of(heads_.begin(), heads_.end(), [&](auto& p) {
    return p.get() != &head && !p->off && (p->visits >= p->again || p->soon) && p->candidate &&
           p->loop.start <= head.loop.start && p->loop.end >= head.loop.end &&
           (p->versions.empty() || p->versions.back()->t.why.empty()) &&
           (p->visits ? work_ - p->last <= kInnerWork : head.work <= kInnerWork && !expected);
  });
}

void CodeLoops::Compile(Compiled& compiled, Head& head, FjFrame* frame) {
  const double start = Now();
  auto made = std::make_unique<Version>();
  scalar::Hopes hopes{.natural = head.versions.size() + 1 < kVersions, .sizes = !head.differ};
  hopes.brief = !HasLongRows(frame), hopes.whole = head.function, hopes.longs = head.longs;
  hopes.together = !head.function && (head.together || !hopes.natural);
  hopes.rounds = RoundsLeft(head, frame);
  hopes.finite = hopes.natural && !head.undone && hopes.rounds >= kWorthUndo;
  hopes.at_once = head.innermost && hopes.rounds >= kWorthUndo && hopes.rounds <= scalar::kCommitted;
  hopes.transaction =
      hopes.natural && !head.undone && !hopes.together && (head.function || !head.innermost || hopes.at_once);
  hopes.status = hopes.transaction && kHasStatus && !head.told;
  const int64_t instructions = head.function   ? coded_ / std::max<int64_t>(calls_, 1)
                               : hopes.at_once ? hopes.rounds * head.each
                                               : Expected(head, frame);
  if (hopes.transaction) hopes.seen = std::max(kSeenAnyway, instructions / kForSeen);
  made->t = scalar::Translate(frame, head.loop, head.loop.start, hopes);
  if (made->t.dots) {
    hopes.ahead = true;
    made->t = scalar::Translate(frame, head.loop, head.loop.start, hopes);
  }
  const auto asked = [&](auto&& of) {
    std::vector<PyObject*> objects;
    for (const ObjectSpec& spec : made->t.objects) objects.push_back(spec.object.get());
    return of(made->t, objects.data());
  };
  const auto worth = [&](Translation& t, PyObject* const* objects) {
    const bool known = head.function || head.vain || t.at_once;
    return scalar::WorthUndoing(t, objects, known ? instructions : std::max(instructions, kHoped));
  };
  if (made->t.apart && !asked(scalar::LieApart)) {
    hopes.apart = false;
    made->t = scalar::Translate(frame, head.loop, head.loop.start, hopes);
  }
  if (made->t.transaction && (!made->t.why.empty() || !asked(worth))) {
    hopes.transaction = false;
    made->t = scalar::Translate(frame, head.loop, head.loop.start, hopes);
  }
  if (made->t.undoes && !made->t.transaction && !asked(worth)) {
    hopes.finite = false;
    made->t = scalar::Translate(frame, head.loop, head.loop.start, hopes);
  }
  made->hoped = made->t.transaction && made->t.kept > scalar::MostKept(instructions);
  if (made->t.at_once) made->t.undo_rounds = scalar::RoundsForKept(made->t.kept, instructions, hopes.rounds);
  const std::string name = PyUnicode_AsUTF8(fj_code(frame)->co_qualname);
  if (head.function && !made->t.why.empty()) made->t.loops = false;
  if (!made->t.loops) {
    if (head.versions.empty()) {
      head.off = true;
    } else {  // as it is now; asked again more and more seldom
      head.again = std::min(kPatience * std::max(head.again, kVisits), kMostPatience);
      head.visits = 0;
    }
    diag::Log(diag::Channel::loop_, "no scalar code: " + made->t.why + "  [" + name + "]");
    return;
  }
  if (!head.differ) {
    absl::InlinedVector<int64_t, 64> cells(made->t.cells);
    absl::InlinedVector<PyObject*, 16> found(made->t.objects.size());
    if (scalar::ReadFrame(made->t, frame, cells.data(), found.data())) scalar::MakeAlike(made->t, cells.data());
  }
  const int blocks = made->t.blocks;
  if (blocks > kSmallCode && !head.together && !head.function && Gain(head, frame) < kWorkForBlock * blocks) {
    head.again = kPatienceWithLarge * head.visits;
    head.soon = kSoon * Gain(head, frame) >= kWorkForBlock * blocks;
    diag::Log(diag::Channel::loop_, "no scalar code yet: " + std::to_string(blocks) + " blocks for " +
                                        std::to_string(Gain(head, frame)) + " instructions  [" + name + "]");
    return;
  }
  try {
    made->code = codegen::CompileScalar(made->t.code);
    if (diag::Enabled(diag::Channel::llvm_)) diag::Log(diag::Channel::llvm_, codegen::ScalarText(made->t.code, false));
    if (diag::Enabled(diag::Channel::asm_)) diag::Log(diag::Channel::asm_, codegen::ScalarText(made->t.code, true));
  } catch (const std::exception& e) {
    head.off = true;
    diag::Warn(std::string("a loop has no code: ") + e.what());
    return;
  }
  compiled.seconds += Now() - start;
  ++compiled.scalar_loops;
  const std::string note = head.function
                               ? name + " is machine code as a whole"
                               : "the loop at line " + std::to_string(PyCode_Addr2Line(fj_code(frame), 2 * head.unit)) +
                                     " of " + name + " is machine code";
  if (std::find(compiled.notes.begin(), compiled.notes.end(), note) == compiled.notes.end())
    compiled.notes.push_back(note);
  if (diag::Enabled(diag::Channel::loop_))
    diag::Log(diag::Channel::loop_,
              "scalar code for instructions " + std::to_string(head.loop.start) + " to " +
                  std::to_string(head.loop.end) + ": " + std::to_string(made->t.code.blocks.size()) + " blocks, " +
                  std::to_string(made->t.exits.size()) + " exits, " + std::to_string((Now() - start) * 1e3) + " ms" +
                  (made->t.why.empty() ? "" : ", but for " + made->t.why) + "  [" + name + "]");
  made->t.code = {};
  for (ObjectSpec& spec : made->t.objects)  // what is found in the frame again is not kept alive
    if (!spec.fixed && (spec.array || spec.sequence() || !spec.used)) spec.object = Ref();
  if (head.versions.empty() && !head.function) made_.emplace_back(head.loop.start, head.loop.end);
  callable_ |= head.function;
  head.versions.push_back(std::move(made));
}

struct CodeLoops::Running {
  explicit Running(const Translation& t) : cells(t.cells), objects(t.objects.size()) {}
  absl::InlinedVector<int64_t, 64> cells;
  absl::InlinedVector<PyObject*, 16> objects;
  scalar::Undo undo;
  std::optional<scalar::MadeOfRun> made;
  std::optional<scalar::ProductsAhead> ahead;
  bool told = false;  // Has it made a number of which NumPy would have told?
  scalar::Made* memory() { return made ? made->get() : nullptr; }
};

// Runs the version if all is as it takes for granted, and gives the exit by which it was left.
std::optional<int64_t> CodeLoops::Enter(Head& head, Version& version, PyObject* const* locals, PyObject* const* stack,
                                        int depth, Running* run) {
  const Translation& t = version.t;
  if (!version.names.Hold(t)) return {};
  if (!scalar::ReadSlots(t, locals, stack, depth, run->cells.data(), run->objects.data())) return {};
  if (!scalar::IsAlike(t, run->cells.data())) {
    head.differ = true;
    return {};
  }
  if (t.seen && !scalar::AllSeen(t, run->objects.data())) return {};
  if (t.undoes) {
    if (!version.user) version.user.emplace();
    if (!run->undo.Keep(t, run->objects.data())) return {};
  }
  uint32_t bits;
  run->cells[scalar::kBreakerCell] = reinterpret_cast<int64_t>(fj_breaker(PyThreadState_Get(), &bits));
  if (t.makes)
    run->cells[scalar::kMadeCell] =
        reinterpret_cast<int64_t>(run->made.emplace(head.function ? kShortArray : kAnyArray).get());
  if (t.ahead)
    run->cells[scalar::kAheadCell] = reinterpret_cast<int64_t>(static_cast<scalar::KnownDots*>(&run->ahead.emplace()));
  const Status status;
  const int64_t exit = version.code.fn(run->cells.data(), 0);
  run->told = t.status && !t.exits[exit].undo && status.tells();
  return run->told ? t.undo : exit;
}

// *version is that of the one before then.
void CodeLoops::Drop(Head& head, size_t* version) {
  const auto at = head.versions.begin() + static_cast<ptrdiff_t>((*version)--);
  dropped_.push_back(std::move(*at));
  head.versions.erase(at);
}

void CodeLoops::Undone(Head& head, size_t* version, const Running& run) {
  run.undo.PutBack();
  (run.told ? head.told : head.undone) = true;
  Drop(head, version);
  if (head.function) head.visits = head.again - 2;  // made anew in the next call, which may be less unusual
}

// What is counted of a run, and what follows from it. The version may be no more then.
void CodeLoops::Ended(Compiled& compiled, Head& head, size_t* version, const ExitState& e, int64_t rounds) {
  ++compiled.scalar_runs;
  Version& v = *head.versions[*version];
  head.rounds += rounds;
  v.runs += v.hoped;
  v.rounds += v.hoped ? rounds : 0;
  backs_ += rounds;
  work_ += kWorkOfRound * rounds + kWorkOfEntry;
  coded_ += kWorkOfRound * rounds;
  head.runs += !e.others;
  head.others += e.others;
  head.ended += e.usual;
  const bool few = head.rounds < kRounds * head.runs,
             torn = !head.function && 2 * head.ended <= head.runs && head.rounds * head.each < kWorthEntry * head.runs;
  if (head.runs >= kRuns && (few || torn))
    (2 * head.ended > head.runs && head.loop.iterates ? head.seldom : head.off) = true;
  if (head.function && head.runs >= kRuns && 2 * head.ended < head.runs) head.off = true;
  if (e.many >= 0) {
    head.longs.insert(e.many);
    Drop(head, version);
    if (head.function) head.visits = head.again;  // it is made anew at once
  } else if (e.others && head.others > kMostOthers * (head.ended + kVersions) && !head.together) {
    head.together = true;
    std::ranges::move(head.versions, std::back_inserter(dropped_));
    head.versions.clear();
  } else if (v.runs == kHopedRuns) {
    v.hoped = false;
    v.runs = 0;
    head.vain = v.t.kept > scalar::MostKept(kWorkOfRound * v.rounds / kHopedRuns);
    if (head.vain) Drop(head, version);
  }
}

static bool IsPythons(const ExitState& e) {
  return e.many >= 0 || !(e.usual || e.breaker || e.others);
}

// Nothing: the frame is as it was, and does not look as the version takes for granted, or that is no more.
std::optional<frame::Action> CodeLoops::Run(Compiled& compiled, Head& head, size_t* version, FjFrame* frame,
                                            bool* ran) {
  Version& v = *head.versions[*version];
  if (head.function && fj_profiled(PyThreadState_Get())) return {};  // it is shown all locals at the end
  if (v.t.undoes && (!v.t.transaction || v.t.at_once)) {
    const int64_t left = RoundsLeft(head, frame), fewest = v.t.at_once ? 0 : kWorthUndo;
    if (left < std::max(fewest, v.t.undo_rounds) || (v.t.at_once && left > scalar::kCommitted)) return {};
  }
  frame::Pointers locals = frame::PointersOf(frame);
  PyObject** stack = locals + fj_nlocalsplus(frame);
  Running run(v.t);
  const std::optional<int64_t> exit = Enter(head, v, locals, stack, fj_stack_depth(frame), &run);
  if (!exit) return {};
  const ExitState& e = v.t.exits[*exit];
  if (e.undo) {
    Undone(head, version, run);
    return {};
  }
  *ran = true;
  Ended(compiled, head, version, e, run.cells[0]);
  auto left =
      scalar::MakeLeft(locals, stack, fj_stack_depth(frame), e, run.cells.data(), run.objects.data(), run.memory());
  if (!left) return frame::Action::kRaise;
  left->Into(frame);
  if (e.breaker)
    if (const auto ends = ServeBreaker(frame)) return *ends;
  return IsPythons(e) ? frame::Action::kStep : frame::Action::kAgain;
}

CodeLoops::Called CodeLoops::Call(Compiled& compiled, PyObject* const* locals, PyObject** result, scalar::Left* left) {
  Head& head = *whole_;
  if (head.off) return callable_ = false, Called::kNot;
  for (size_t i = 0; i < head.versions.size(); ++i) {
    Version& v = *head.versions[i];
    Running run(v.t);
    const std::optional<int64_t> exit = Enter(head, v, locals, nullptr, 0, &run);
    if (!exit) continue;
    const ExitState& e = v.t.exits[*exit];
    if (e.undo) {
      Undone(head, &i, run);
      continue;
    }
    ++calls_;
    Ended(compiled, head, &i, e, run.cells[0]);
    if (e.returns) {
      auto* code = reinterpret_cast<PyCodeObject*>(code_.get());
      const bytecode::Instr& at = bytecode::Code::Of(code)->At(e.next);
      *result = at.op == bytecode::Op::kReturnConst
                    ? Py_NewRef(PyTuple_GET_ITEM(code->co_consts, at.arg))
                    : scalar::MakeResult(locals, e, run.cells.data(), run.objects.data(), run.memory());
      return Called::kReturned;
    }
    auto made = scalar::MakeLeft(locals, nullptr, 0, e, run.cells.data(), run.objects.data(), run.memory());
    *result = nullptr;
    if (!made) return Called::kReturned;
    *left = std::move(*made);
    return IsPythons(e) ? Called::kLeftAtStep : Called::kLeft;
  }
  return Called::kNot;
}

GoesOn::GoesOn(scalar::Left& left, PyObject* function, bool steps) : left_(left), function_(function), steps_(steps) {
  waiting_ = this;
}
GoesOn::~GoesOn() {
  if (waiting_ == this) waiting_ = nullptr;
}

bool GoesOn::In(FjFrame* frame) {
  if (!waiting_ || fj_function(frame) != waiting_->function_) return false;
  GoesOn* const self = std::exchange(waiting_, nullptr);
  // The instructions that bring in what encloses the function do not run.
  PyCodeObject* code = fj_code(frame);
  PyObject* closure = PyFunction_GET_CLOSURE(fj_function(frame));
  for (int i = 0; i < code->co_nfreevars; ++i)
    self->left_.locals.emplace_back(code->co_nlocalsplus - code->co_nfreevars + i,
                                    Borrow(PyTuple_GET_ITEM(closure, i)));
  self->left_.Into(frame);
  ForgetSkips(frame);
  if (self->steps_) SkipNext(frame, 2);  // it and what comes behind it
  return true;
}

// Is it time to make code of the whole function, for calls that no version of that is there for? Nothing is captured of
// it then that would be worth more.
bool CodeLoops::WantsWhole(Compiled& compiled, FjFrame* frame) {
  Head& head = *whole_;
  const auto later = [&] { return head.again = std::min(kPatience * head.visits, kMostPatience), false; };
  if (head.versions.size() >= kVersions || head.visits < std::max<int64_t>(head.again, kFewCalls)) return false;
  int64_t blocks = 0;
  for (auto& p : heads_) {
    const bool inside = std::any_of(heads_.begin(), heads_.end(), [&](auto& q) {
      return q.get() != p.get() && q->visits && q->loop.start <= p->loop.start && q->loop.end >= p->loop.end;
    });
    if (!p->visits || inside) continue;
    const Translation* t = p->versions.empty() ? nullptr : &p->versions.back()->t;
    const bool code = !p->off && t && t->why.empty() && (!t->undoes || t->transaction);
    if (!code && !head.undone) return later();
    if (t) blocks += t->blocks;
  }
  if (!blocks || coded_ > kWorkOfRound * kShortCall * calls_) return later();
  head.again = static_cast<int>(std::min<int64_t>(kCallsForBlock * blocks, kMostPatience));
  if (head.visits < head.again && coded_ < kCodedForBlock * blocks) {
    head.again = std::min<int>(head.again, 2 * head.visits);
    return false;
  }
  for (auto& [place, what] : StateOf(compiled, CodeOf(frame)).places)
    if (place.first == head.loop.start && !what.segments.empty()) return head.off = true, false;
  return true;
}

std::optional<frame::Action> CodeLoops::Whole(Compiled& compiled, FjFrame* frame, bool* ran) {
  Head& head = *whole_;
  ++calls_;
  if (head.off) return {};
  for (size_t i = 0; i < head.versions.size(); ++i)
    if (auto action = Run(compiled, head, &i, frame, ran)) return action;
  ++head.visits;
  if (!WantsWhole(compiled, frame)) return {};
  head.visits = 0;
  Compile(compiled, head, frame);
  size_t last = head.versions.size() - 1;
  return head.off || head.versions.empty() ? std::nullopt : Run(compiled, head, &last, frame, ran);
}

std::optional<frame::Action> CodeLoops::At(Compiled& compiled, FjFrame* frame, bool* ran) {
  const int at = fj_next(frame);
  ++work_;
  if (whole_ && at == whole_->loop.start && fj_stack_depth(frame) == 0)
    if (auto action = Whole(compiled, frame, ran)) return action;
  Head* head = at < static_cast<int>(starts_.size()) && starts_[at] ? Find(at) : nullptr;
  const auto waits = [&]() -> std::optional<frame::Action> {
    for (auto& p : heads_)
      if (p->loop.Holds(at) && Waits(*p)) return frame::Action::kStep;
    return {};
  };
  if (!head) return waits();
  ++backs_;
  if (head->visits++) {
    head->round = work_ - head->last;
    if (head->versions.empty()) head->each = head->round / (backs_ - head->last_backs);
    head->work += head->round;
    head->coded_round = coded_ - head->last_coded;
    head->coded += head->coded_round;
  }
  head->last = work_;
  head->last_coded = coded_;
  head->last_backs = backs_;
  if (head->off) return waits();
  if (head->versions.empty() && !head->candidate && head->visits == kVisits) {
    head->declined = false;
    Promising(frame, at);
  }
  if (head->off) return {};
  if (head->seldom && RoundsLeft(*head, frame) < kWorthIt) return waits();
  bool tried = false;
  for (size_t i = 0;; ++i) {
    if (i == head->versions.size()) {
      if (tried || !head->candidate || !Wanted(*head, frame)) return waits();
      Compile(compiled, *head, frame);
      tried = true;
      if (i == head->versions.size()) return waits();
    }
    if (auto action = Run(compiled, *head, &i, frame, ran)) return action;
  }
}

std::optional<frame::Action> ServeBreaker(FjFrame* frame) {
  PyThreadState* ts = PyThreadState_Get();
  const int polled = fj_interrupts(ts, frame) & FJ_BREAKER ? fj_poll(ts) : 0;
  if (polled == 0) return {};
  return polled < 0 ? frame::Action::kRaise : frame::Action::kHandOver;
}

// Asked at each instruction that a frame comes to.
static bool Allowed(const Compiled& compiled) {
  static std::atomic<uint64_t> known = 0;  // twice the generation of the options, and whether they have it on
  if (!compiled.options.empty()) return diag::OptionOn("scalar_loops");
  const uint64_t now = diag::OptionsGeneration(), then = known.load(std::memory_order_acquire);
  if (then / 2 == now) return then & 1;
  const bool on = diag::OptionOn("scalar_loops");
  known.store(2 * now + on, std::memory_order_release);
  return on;
}

CodeLoops* LoopsOf(Compiled& compiled, CodeState& state, PyCodeObject* code) {
  if (!Allowed(compiled)) return nullptr;
  if (!state.loops) {
    if (state.skip || compiled.fullgraph || compiled.backend != "llvm" || !scalar::IteratorsAreKnown()) return nullptr;
    state.loops = std::make_shared<CodeLoops>(code);
  }
  return state.loops->none() ? nullptr : state.loops.get();
}

}  // namespace framejit::capture
