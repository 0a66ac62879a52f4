// A compiled stretch of one code object: guards, something that runs, and the frame state it leaves behind.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/backends.h"
#include "capture/code_in.h"
#include "capture/exit.h"
#include "capture/policy/background.h"
#include "capture/policy/barren.h"
#include "capture/segment_check.h"
#include "codegen/packed_text.h"
#include "diag/outcome.h"
#include "frame/driver.h"
#include "guard/guard.h"
#include "runtime/step_times.h"
#include "tensor/undo.h"

namespace framejit::capture {

class Timing;     // capture/policy/timing.h
class CodeLoops;  // capture/scalar/loops.h

// What is left of a captured graph once it is compiled.
struct ShownGraph {
  explicit ShownGraph(const Trace& trace);
  codegen::PackedText text;
  bool on_cpu = true;  // Are all of its tensors on the CPU?
};

struct CodeState;
using CodeStates = std::unordered_map<CodeIn, std::unique_ptr<CodeState>, CodeInHash>;

// Runs from one place that ended early in one way: they were thrown away, or not begun, and Python did what they were
// for.
struct EarlyEnds {
  diag::RunEnd end;
  std::string place, why;  // why the last one did, where that is known
  int64_t times = 0;
  int64_t told = 0;  // of these, before the call that is explained
};

struct Outcomes : diag::Outcomes {
  std::vector<EarlyEnds> early;
};

// Options of one framejit.compile call, and everything compiled under them. Shared by equal calls.
struct Compiled : std::enable_shared_from_this<Compiled> {
  std::string key;
  uint64_t used = 0;  // When framejit.compile last returned it.
  std::string backend = "llvm";
  Ref root_code;
  std::string place;  // PlaceName of what the user wrote
  int dynamic = -1;   // -1 auto, 0 never, 1 from the start
  bool fullgraph = false;
  bool compiling = true;                                     // What torch.compiler.is_compiling() answers.
  std::vector<std::pair<std::string, std::string>> options;  // Options of framejit.config for this function alone.
  int Dynamic() const;                                       // `dynamic`, or where that is -1 what the option says
  CodeStates codes;
  CodeState* Known(const CodeIn& code) {  // It is null where nothing is known of the code.
    if (code == last_code) return last_state;
    const auto at = codes.find(code);
    if (at == codes.end() || !at->second) return nullptr;
    last_code = code;
    return last_state = at->second.get();
  }
  void Forget() { last_code = {}; }  // Called before something is taken out of `codes`.
  CodeIn last_code;
  CodeState* last_state = nullptr;
  int64_t captures = 0, recompiles = 0, graph_count = 0, op_count = 0;
  std::vector<diag::Break> breaks;  // One for each place, in the order in which they first came.
  // Of these, in whose code those are that captures of a library came to before any call for graphs. Once the library
  // is known to have none, no graph ends at them.
  std::map<size_t, std::shared_ptr<InstalledLibrary>> before_calls;
  bool EndsGraph(size_t i) const {
    const auto at = before_calls.find(i);
    return at == before_calls.end() || !at->second->barren() || at->second->calls;
  }
  // Of those that captures of the program's own code came to in the code of a library: the program's lines that led
  // there. Where the library's frames are left to Python, graphs end at these.
  struct InLibrary {
    std::shared_ptr<InstalledLibrary> library;
    std::vector<diag::Break> seen;  // at the program's lines
  };
  std::map<size_t, InLibrary> in_libraries;
  // Those at which graphs end; null: all of them. What a library that is left to Python came to is told once a line of
  // the program.
  std::vector<diag::Break> Shown(const std::vector<bool>* which) const;
  std::vector<bool> met;                                  // Which of these the call that is explained has met.
  std::vector<std::shared_ptr<const ShownGraph>> graphs;  // All graphs that were compiled.
  std::vector<Ref> as_they_are;                           // Backward functions that cannot be captured.
  std::vector<std::string> notes;                         // Why segments run through the framework.
  std::shared_ptr<Outcomes> outcomes = std::make_shared<Outcomes>();
  CompileStats kernels;  // The sums over all graphs.
  double seconds = 0;
  int64_t scalar_loops = 0, scalar_runs = 0;  // Loops that became machine code, and their runs.
  std::shared_ptr<Guesses> guesses = std::make_shared<Guesses>();
  std::shared_ptr<Timing> timing;  // The times of whole calls, compiled and as written.
  // In the call that runs, segments whose results want gradients make the framework's calls (Timing::Turn).
  std::shared_ptr<bool> as_calls = std::make_shared<bool>(false);
  InstalledLibraries libraries;
  struct Elsewhere {
    int64_t times = 0;
    double seconds = 0;
  };
  std::map<int, Elsewhere> elsewhere;  // in Python, by the break before it (of `breaks`, or -1), since last told
  bool metered = false;                // capture/meter.h knows its segments
  bool imports = false;                // in this call a capture came to a module that nobody has imported yet
  int after_imports = 0;               // how often everything was forgotten for that
  bool import_fails = false;           // such a module cannot be imported: it is not waited for again
  bool first_calls = false;            // likewise, to a lazy module, or, of fullgraph=True, to what a cache must learn
  bool Awaits() const;                 // Does this call of the function do what the next ones need not do?
  void TakeBack(int64_t operations) {  // The graph that was noted last, of so many operations, is none.
    graphs.pop_back();
    op_count -= operations;
    --graph_count;
  }
};

// What data was taken to say: guessed branches, and conditions on the sizes that it decides.
struct Assumed {
  std::vector<std::pair<int, Guess>> guesses;  // The guesses, by the number of the output that each is about.
  struct Where {
    Ref code;
    int at;
    bool cheap;  // Is a break at this place cheap?
  };
  std::vector<Where> sizes;  // Where the sizes came from that conditions are on.
  std::shared_ptr<Guesses> book;
  // Was a guess wrong once? The segment never runs again then.
  std::shared_ptr<bool> wrong = std::make_shared<bool>(false);
  bool missed = false;       // Did a condition fail in the last run?
  tensor::RunCheck Check();  // The check of a run's outputs that the guesses hold.
  diag::RunEnd Accept(const Guess& guess, PyObject* value);
  // To be called where one of the guesses was wrong, and it is not known which; also when the segment is no more.
  std::function<void()> Refutation() const;
  int Versions() const;                // how many such segments there may be at one place
  void SizesMissed(int64_t versions);  // data decided others in all of so many segments
};

// What is counted of a segment.
struct Tally {
  int64_t runs = 0;          // Runs that finished.
  int64_t told = 0;          // of these, before the call that is explained
  int64_t runs_told_of = 0;  // Of `runs`, those that the event stream was told of.
  double seconds = 0;        // of the others, as far as `timed`
  int64_t timed = 0;
  double in_steps = 0;       // The part of `seconds` that steps took.
  runtime::Sampler sampler;  // Samples runs that were whole calls.
  int64_t missed_guards = 0;
};

// What was read up to the break that ended a capture. Where that is no longer so, the next capture may get further: a
// module has been initialized, a cache filled.
struct Cause {
  std::shared_ptr<guard::GuardSet> guards;       // null: it is not looked at any more
  std::vector<size_t> ends;                      // the breaks: indices into Compiled::breaks
  std::vector<std::pair<int, PyObject*>> whose;  // objects in slots, of other ones it says nothing; addresses alone
  unsigned passed = 0;
  // Are some of these other than they were? It is asked of the first frames that come here, then ever more rarely.
  bool Outdated(PyObject* const* slots);
};

struct Segment {
  std::shared_ptr<guard::GuardSet> guards;
  std::unique_ptr<tensor::TraceRunner> trace_runner;  // exactly one of these, or none (no tensor operations)
  std::unique_ptr<tensor::GraphRunner> graph_runner;  // with gradients there is a trace_runner beside it
  std::shared_ptr<Executable> executable;
  struct Pending {  // mode="background": the framework makes the calls until the graph_runner is there
    std::shared_ptr<Compilation> compilation;
    // With the GIL held: the runner of what was compiled. Null: that is done.
    std::function<std::unique_ptr<tensor::GraphRunner>(std::shared_ptr<Executable>)> finish;
    std::weak_ptr<Compiled> compiled;
    bool gradients = false;
    std::unique_ptr<tensor::TraceRunner> past;  // other threads may still be in it
  };
  std::unique_ptr<Pending> pending;
  std::unique_ptr<BackendRunner> backend_runner;  // The callable of a registered back end.
  std::shared_ptr<const ShownGraph> shown;        // It is null where there are no tensor operations.
  std::vector<shape::Guard> conditions;           // The conditions on sizes that data decides.
  int64_t calls = 0;                              // The number of the framework's calls.
  std::vector<int> passed_on;                     // Where there are no calls: the input that each output is.
  tensor::UndoPlan undo, undo_calls;              // undo_calls: of the framework's calls, where there is another runner
  std::shared_ptr<const bool> as_calls;           // Compiled::as_calls; null: it makes no calls once it is compiled
  DrawProgram draws;                              // The draws that are made before each run.
  CachedInputs cached;                            // What is asked of caches before each run.
  FloatProgram floats;
  bool calls_operators = false;  // whose kernels may be the user's: capture/operator_runs.h
  bool changes = false;          // a run that got to its end has written inputs or drawn random numbers
  Exit exit;
  int num_tensor_inputs = 0, num_inputs = 0, num_symbols = 0;
  long instructions = 0;  // The number of the outermost frame's instructions that it stands for.
  // Runs that failed in a row: from kFailures on, Python does the work at once, but for every kRetry'th time.
  static constexpr int kFailures = 4, kRetry = 64;
  int failures = 0;
  unsigned passed = 0;
  Tally tally;
  int64_t op_count = 0;
  std::vector<size_t> ends;    // Why it goes no further: indices into Compiled::breaks.
  Cause cause;                 // What ended the first of these captures.
  int64_t registrations = -1;  // of abstract classes, that it is good for; -1: any number
  Assumed assumed;
  diag::Leave left = diag::Leave::kNone;  // a whole function that its framework runs as fast by itself
  std::shared_ptr<Outcomes> outcomes;
  mutable bool looked_at = false;  // The framework refused a run: was it looked at whether Python raises, too?
  std::string place;               // As PlaceName writes it.
  std::string WhyMissed(FjFrame* frame) const;  // Why its guards failed the last time.
  Ref code;
  int advance = 0;         // The numbers that it takes from its loop's iterator (capture/policy/rounds.h).
  int begins = 0;          // The unit of its first instruction.
  bool has_event = false;  // Was its capture told to the event stream?
  int line = 0;
  std::unique_ptr<SegmentCheck> check;  // null: nobody looks at its runs
  explicit Segment(Recipe r) : exit{std::move(r)} {}
  ~Segment();

  // Guards hold: runs. kOk: *result is set if it returns; else the frame's slots were written. kLeft: call the
  // function, with nothing captured in it. kRaised: the exception goes to the program. Of the others kMiss and
  // kCondition have no exception, and the next segment is asked.
  diag::RunEnd Try(PyObject** slots_in, FjFrame* frame, PyObject** result);
  diag::RunBy runner() const {
    return graph_runner     ? MakesCalls() ? diag::RunBy::kTrace : diag::RunBy::kGraph
           : backend_runner ? diag::RunBy::kCallable
           : trace_runner   ? diag::RunBy::kTrace
                            : diag::RunBy::kNone;
  }
  bool compiling() const { return pending && pending->finish; }
  bool MakesCalls() const { return as_calls && *as_calls; }  // though it is compiled

 private:
  diag::RunEnd TryDrawn(PyObject** slots_in, FjFrame* frame, PyObject** result);  // Called once what is drawn is there.
  [[gnu::cold]] diag::RunEnd TryNoted(PyObject** slots_in, FjFrame* frame, PyObject** result);
  diag::RunEnd TryMeasured(PyObject** slots_in, FjFrame* frame, PyObject** result);
  diag::RunEnd TryTimed(int weight, PyObject** slots_in, FjFrame* frame, PyObject** result);
  diag::RunEnd TryOnce(PyObject** slots_in, FjFrame* frame, PyObject** result);
  bool Publish();  // what was compiled in the background, once it is there; false: a bug of ours, raised (strict)
  diag::RunEnd Run(PyObject* const* inputs, int64_t* symbols, PyObject** out);  // Called by Try.
  diag::RunEnd RunOnce(diag::RunBy by, PyObject* const* inputs, int64_t* symbols, PyObject** out);
  [[gnu::cold]] diag::RunEnd RunChecked(diag::RunBy by, PyObject* const* inputs, int64_t* symbols, PyObject** out);
  const char* RangeName();
  std::string range_name;  // in torch's profiler, from the first run there on
};

struct Place {  // What is known of one offset of an instruction and one depth of the stack.
  std::vector<std::unique_ptr<Segment>> segments;
  // Several rounds of the loop whose back edges lead to `loop` are captured from here (capture/policy/rounds.h). Such a
  // place lies in CodeState::places beside that of one round, by the complement of the depth.
  int rounds = 1, loop = -1;
  int seen = 0;             // rounds in a row that none of its segments was there for
  bool one_by_one = false;  // No segment of several rounds will be made.
  long step = 0;            // The step of the range that the loop goes through.
  long skip = 0;            // nothing to capture here: step this many instructions before asking again
  Cause cause;              // What ended that capture.
  // What was read in calls that the program ends by an exception, of code that has a version for others.
  std::vector<std::shared_ptr<guard::GuardSet>> raising;
  static constexpr size_t kMostRaising = 8;
  int revised = 0;  // captures that were made because a cause was outdated; those in vain count twice
  static constexpr int kMostRevised = 4;
  int misses = 0;
  int wasted = 0;  // Versions with a guard on an object that died after one run.
  bool give_up = false;
  static constexpr int kUseless = 128;  // misses after which what ran once is dropped
  unsigned lost = 0;                    // The calls in a row for which none of too many versions was right.
  unsigned passed = 0, told = 0;        // frames that no segment took up here; before the call that is explained
  std::set<std::pair<std::string, int>> dynamic_dims;
  std::set<std::string> dynamic_ints;
  bool checkpoints_in_python = false;  // their gradients have no compiled form, and a replay would keep everything
  bool derivatives_in_python = false;  // The graph cannot hold the derivatives that the program takes.
  bool leaves_end = false;             // Much is computed of leaves made inside: the graph ends before that.
  bool needs_tape = false;             // A capture from here has asked for a tape (capture/wrappers/tape.h).
  bool given_numbers =
      false;                 // Ints that a call is given stay numbers until they change: as symbols they ended a graph.
  bool fixed_sizes = false;  // those of tensors stay numbers, though they change: gradients have no kernels for others
};

struct CodeState {
  Ref code;
  std::shared_ptr<InstalledLibrary> library;  // null: not one that may be left to Python
  int without_calls = 0;  // Captures of such code, while none has recorded a call of a framework; then -1.
  std::map<std::pair<int, int>, Place> places;
  bool hot = true;         // arguments map to slots one to one, so calls need no frame
  Place* entry = nullptr;  // The place right after RESUME, once it is known.
  int trivial = 0;         // calls that began with a capture that found nothing, or after one
  unsigned idle = 0;       // calls since it is CPython's, nothing being there to compile; 0: it is not
  bool skip = false;
  uint64_t used = 0;  // When a frame last asked for it.
  uint64_t told = 0;  // Those before the call that is explained.
  // Where captures stopped that made no segment: the instruction, and of Compiled::breaks why.
  std::set<std::pair<int, size_t>> stopped;
  // Loops that are not unrolled, by the instruction that their back edges lead to: segments end there.
  std::vector<int> cut;
  std::vector<int> plain_loops, good_loops;  // measured: faster in Python, and not
  double loop_seconds = 0;                   // The time that captures in the middle of such loops took.
  double plain_seconds = 0;                  // The time that captures of code without tensors took.
  double first_seen = 0;                     // When the first capture was made.
  // Instructions at which more is to be asked than how many are to be skipped, and after which capture that was found.
  std::shared_ptr<const std::vector<bool>> busy;
  int64_t busy_since = -1;
  std::shared_ptr<CodeLoops> loops;  // with scalar code for them; null: none was met
  Ref instead;  // called in its place; it may decline (an optimizer's update: framejit/_updates.py)
};

// A graph was compiled: told to the event stream, counted for the function.
void NoteCompiled(Compiled& compiled, const std::string& place, const CompileStats& stats, double seconds);

// Adds it to compiled.breaks, logged, unless that place is known for it.
size_t RememberBreak(Compiled& compiled, const diag::Break& reason);  // It returns the index in compiled.breaks.

// Captures from the frame's current place. On success the segment is installed in `place`; null: nothing worth
// compiling (place->skip is set) or an exception (fullgraph).
Segment* CaptureAt(Compiled& compiled, CodeState& code, Place& place, FjFrame* frame);

}  // namespace framejit::capture
