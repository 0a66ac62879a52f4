// This file makes segments.
#include "capture/segment.h"

#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "bytecode/code.h"
#include "capture/build_segment.h"
#include "capture/drops.h"
#include "capture/events.h"
#include "capture/meter.h"
#include "capture/named_code.h"
#include "capture/now.h"
#include "capture/outcomes.h"
#include "capture/override.h"
#include "capture/policy/leave.h"
#include "capture/policy/loops.h"
#include "capture/policy/policy.h"
#include "capture/policy/rounds.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/training.h"
#include "capture/wrappers/tape.h"
#include "diag/diag.h"
#include "diag/no_kernel.h"
#include "frame/hook.h"
#include "graph/hints.h"
#include "graph/opaque.h"
#include "guard/own_values.h"
#include "shape/typical.h"
#include "tensor/contractions.h"
#include "tensor/no_collection.h"

namespace framejit::capture {
namespace {

using diag::Again;

struct Captured {
  std::unique_ptr<Segment> segment;
  diag::Break reason;
  bool broke = false;
  bool worthwhile = false;  // it holds tensor operations
  bool at_return = false;   // it is the result that cannot be made again
  int stopped_at = 0;       // an instruction
  long instructions = 0;
  long clean_instructions =
      0;                // of these, up to the last place where no other exception was being handled than at the start
  bool raises = false;  // what eager refuses because of casts that a graph in front of it would keep for itself
  std::shared_ptr<guard::GuardSet> cause;  // what was read up to the break; it is null where that cannot be told
  // Says why the framework must differentiate what stands in front of the break. It is empty if it need not.
  std::string left;
  Ref loop;  // the code of a loop that repeats too often, and where it begins
  const PyObject* loop_globals = nullptr;
  int loop_at = 0;
  Problem problem;
};

bool IsTupleOfNames(PyObject* o) {
  if (!PyTuple_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(o, i))) return false;
  return true;
}

diag::Break BreakAt(FjFrame* frame, int next, BreakId id, std::string detail) {
  PyCodeObject* code = fj_code(frame);
  bytecode::Location at = bytecode::LocationOf(code, bytecode::Code::Of(code)->At(next).unit);
  diag::Break b;
  b.id = id;
  b.detail = std::move(detail);
  b.file = PyUnicode_AsUTF8(code->co_filename);
  b.function = PyUnicode_AsUTF8(code->co_qualname);
  b.line = std::max(0, at.line);
  b.column = std::max(0, at.column);
  b.end_column = at.end_line == at.line ? std::max(0, at.end_column) : 0;
  return b;
}

CaptureOptions OptionsFor(const Compiled& compiled, const Place& place, long stop_after, int broke_at) {
  CaptureOptions options;
  options.dynamic = compiled.Dynamic();
  options.dynamic_dims = place.dynamic_dims;
  options.dynamic_ints = place.dynamic_ints;
  options.given_ints = !place.dynamic_dims.empty() && !place.given_numbers;
  options.dynamic_floats = compiled.backend == "llvm" || compiled.backend == "eager";
  options.stop_after = stop_after;
  options.broke_at = broke_at;
  options.settles = place.segments.size() < 2;
  options.compiling = compiled.compiling;
  options.whole = compiled.fullgraph;
  options.as_they_are = &compiled.as_they_are;
  options.derivatives =
      !place.derivatives_in_python && (compiled.backend == "llvm" || compiled.backend == "interpreter");
  options.uses_leaves = !place.leaves_end;
  options.checkpoints = !place.checkpoints_in_python && !compiled.guesses->checkpoints_change &&
                        (compiled.backend == "llvm" || compiled.backend == "interpreter");
  if (!compiled.fullgraph && !FindBackend(compiled.backend) && diag::OptionOn("guess"))
    options.guesses = compiled.guesses;  // a reset may come meanwhile
  return options;
}

// Stand-ins for what the frame's slots hold: nothing is guarded before it is used. It is false after a Break.
bool HideSlots(Session& s, FjFrame* frame, int count) {
  frame::Slot* p = fj_localsplus(frame);
  Counting& counting = *Counting::now;
  PyObject* const iterator = counting.step ? p[count - 2].get() : nullptr;
  for (int i = 0; i < count; ++i) {
    if (!p[i]) {  // On the stack a method and its object lie where otherwise nothing and a bound method do.
      if (i >= fj_nlocalsplus(frame)) s.guards().Absent(s.guards().Slot(i));
      continue;
    }
    // Exceptions that are being handled lie on the stack, and the instructions that restore them put them into the
    // thread as they are. What the instructions themselves take apart (code, keywords) cannot be hidden, either.
    if (i >= fj_nlocalsplus(frame) && (PyExceptionInstance_Check(p[i]) || p[i] == Py_None || PyCode_Check(p[i]) ||
                                       IsTupleOfNames(p[i]) || PyDict_CheckExact(p[i]))) {
      Ref seen(s.FromOutside(p[i], s.guards().Slot(i)));
      if (!seen) return false;
      continue;
    }
    constexpr int kCellVariable = 0x40;  // This is CPython's CO_FAST_CELL. A local variable may hold some other cell.
    const bool own_cell = PyCell_Check(p[i]) && i < fj_nlocalsplus(frame) - fj_code(frame)->co_nfreevars &&
                          PyBytes_AS_STRING(fj_code(frame)->co_localspluskinds)[i] & kCellVariable;
    PyObject* content = own_cell ? PyCell_GET(p[i].get()) : p[i].get();
    const Source* source = s.guards().Slot(i);
    if (own_cell) source = s.guards().Child(SourceKind::kCell, source);
    Ref stand_in(content ? NewLazy(&s, content, source) : nullptr);
    if (content && !stand_in) return false;
    if (stand_in) s.Keep(Py_NewRef(stand_in.get()));
    if (i == count - 1 && iterator) {
      counting.iterator = iterator;
      counting.number = stand_in.get();
      counting.source = source;
    }
    if (own_cell) {
      PyObject* lazy = stand_in.get();
      stand_in = Ref(s.MarkFresh(PyCell_New(lazy)));
      s.root_cells[stand_in.get()] = {i, lazy, p[i]};
    }
    Ref(std::exchange(p[i], frame::Slot::Of(stand_in.release())).Take());
  }
  return true;
}

// Whose program is it? Beside torch's tensors NumPy's functions of numbers give numbers, also before one was met.
void MeetTensors(Session& s, const FrameImage& slots) {
  bool torch = false, numpy = false;
  for (int i = 0; i < slots.size(); ++i) {
    PyObject* const o = slots[i] && PyCell_Check(slots[i]) ? PyCell_GET(slots[i]) : slots[i];
    const tensor::Class c = o ? tensor::Classify(o) : tensor::Class::kNone;
    torch |= tensor::IsPlainTorch(c);
    numpy |= c == tensor::Class::kNumpyArray;
  }
  s.libraries.torch = torch && !numpy;
}

// Clears the pending exception and gives its text, which is empty if there is none.
std::string TakeException() {
  PyObject *t, *v, *tb;
  PyErr_Fetch(&t, &v, &tb);
  std::string what = t ? reinterpret_cast<PyTypeObject*>(t)->tp_name : "";
  Ref text(v ? PyObject_Str(v) : nullptr);
  if (const char* c = text ? PyUnicode_AsUTF8(text.get()) : nullptr) what += std::string(": ") + c;
  PyErr_Clear();
  Py_XDECREF(t), Py_XDECREF(v), Py_XDECREF(tb);
  return what;
}

// Conditions on sizes that the graph makes cannot be asked again.
std::shared_ptr<guard::GuardSet> CauseOf(Session& s) {
  try {
    return s.TakeGuards()->Finish(s.env(), {});
  } catch (const diag::InternalError&) {
    return nullptr;
  }
}

// The capture ended at a break: where, and why.
void NoteBreak(const Compiled& compiled, Session& s, const CaptureSemantics& sem, bool raised, Captured* out) {
  bool raises = s.shapes_refused;
  if (!s.broken()) {
    raises = raised && PyErr_Occurred();
    raises ? s.Break(BreakId::kException, TakeException()) : s.Break(BreakId::kInstruction);
  }
  if (raises && compiled.compiling && s.asked_compiling()) out->problem.again = Again::kNotCompiling;
  // A size that data decides was made up: the program may raise, or the framework refuse a call, for such a one alone.
  const bool refused = s.reason().id == BreakId::kException || s.reason().id == BreakId::kFrameworkError;
  if (refused && out->problem.again == Again::kNone && s.options().guesses && !s.data_sizes().all().empty() &&
      !std::exchange(s.options().guesses->measured, true))
    out->problem.again = Again::kDataSizes;
  PyErr_Clear();
  if (s.leaf_refused && s.options().derivatives && out->problem.again == Again::kNone)
    out->problem.again = Again::kDerivatives;
  if (s.guessed_symbols) out->problem.again = Again::kGivenNumbers;
  if (s.symbols_refused && !s.guessed_symbols && !s.options().dynamic_dims.empty())
    out->problem.again = Again::kFixedSizes;
  out->broke = true;
  out->stopped_at = sem.root_index();
  out->raises = s.mixes_casts;
  out->left = s.lowering().undifferentiable();
  out->loop = Borrow(reinterpret_cast<PyObject*>(sem.loops().code().code));
  out->loop_globals = sem.loops().code().globals;
  out->loop_at = sem.loops().at();
  out->reason = s.reason();
  // The failing instruction was counted by Before(): what stands is everything in front of it.
  out->instructions = std::max(0L, sem.root_instructions() - 1);
}

// Nothing is computed but a few single numbers, elements and parts of arrays among them, and arrays of one number, in
// front of a loop that is cut: NumPy makes them sooner than a graph.
bool OnlyMakes(Session& s, const Compiled& compiled, FjFrame* frame, int index) {
  constexpr int64_t kFew = 64;
  const auto known = compiled.codes.find(CodeOf(frame));
  if (s.libraries.torch || compiled.fullgraph || known == compiled.codes.end()) return false;
  const CodeState& state = *known->second;
  if (!state.loops || !std::count(state.cut.begin(), state.cut.end(), index)) return false;
  const auto& nodes = s.graph().nodes;
  const auto cheap = [&](const Node& n) {
    const auto read = [&](ValueId v) { return nodes[v].op == Op::kInput; };
    const char kind = Info(n.op).kind;
    const bool part = n.op == Op::kSlice || n.op == Op::kPermute || n.op == Op::kFlip,
               one = std::ranges::all_of(n.type.shape, [](shape::Int e) { return e.is_const() && e.value() == 1; });
    return kind == 'C' || (kind == 'P' && one) ||
           (kind == 'V' && (part || one || std::ranges::none_of(n.operands, read)));
  };
  const auto made = [](const Node& n) { return Info(n.op).kind == 'C'; };
  return std::ranges::all_of(nodes, cheap) && std::ranges::ssize(nodes) - std::ranges::count_if(nodes, made) <= kFew;
}

// Runs the frame's code under capture until it returns, breaks, or `stop_after` outermost instructions. broke_at, left:
// as an earlier capture of the same instructions says.
Captured CaptureOnce(Compiled& compiled, Place& place, FjFrame* frame, long stop_after, int broke_at,
                     const std::string& left) {
  Captured out;
  guard::LentDicts lent;
  tensor::LookForProcesses();
  FrameImage before(frame);
  CaptureOptions options = OptionsFor(compiled, place, stop_after, broke_at);
  Counting counting(place);
  Session s(frame, std::move(options));
  TapeScope tape(s, &place.needs_tape);
  CaptureSemantics sem(s, compiled);
  if (!left.empty()) s.lowering().LeaveDerivatives(left);
  // Whatever the outcome, the private objects die while the session still says that nothing may run: a generator
  // suspended in a `with` must not execute its `finally` for real.
  tensor::NoCollection pause;  // a collection would run finalizers of strangers under capture
  absl::Cleanup cleanup = [&] {
    OverrideScope scope(&sem);
    s.MarkBroken();
    before.Restore();
    s.Abandon();
  };
  MeetTensors(s, before);
  if (!HideSlots(s, frame, before.size())) return out;
  int index = fj_next(frame);
  PyObject* raw = nullptr;
  frame::Outcome outcome;
  // Which exception is being handled is thread state that instructions push and pop.
  Ref handled(PyErr_GetHandledException());
  {
    OverrideScope scope(&sem);
    tensor::AutocastOff plain;  // the session knows what it was
    outcome = frame::Interpret(frame, sem, -1, &index, &raw);
  }
  s.draws.Undo();
  Ref result(raw);
  Ref handled_after(PyErr_GetHandledException());
  bool same_handled = handled.get() == handled_after.get();
  PyErr_SetHandledException(handled.get());
  out.instructions = sem.root_instructions();
  out.clean_instructions = sem.clean_instructions();
  out.worthwhile = s.op_count > 0;
  if (outcome == frame::Outcome::kRaised || outcome == frame::Outcome::kHandOver || s.broken()) {
    NoteBreak(compiled, s, sem, outcome == frame::Outcome::kRaised, &out);
    if (s.not_captured && out.problem.again == Again::kNone) {
      compiled.as_they_are.push_back(Borrow(s.not_captured));
      out.problem.again = Again::kBackward;
    }
    if (tape.Again() && !s.guessed_symbols) out.problem.again = Tape::KeepsSizes() ? Again::kTape : Again::kFixedSizes;
    if (stop_after < 0 && place.revised < Place::kMostRevised && out.problem.again == Again::kNone)
      out.cause = CauseOf(s);
    return out;
  }
  const bool returns = outcome == frame::Outcome::kReturned;
  if (out.worthwhile && !returns && OnlyMakes(s, compiled, frame, index)) out.worthwhile = false;
  if (!out.worthwhile && !returns) return out;
  if (s.HoldsSuspendedGenerator()) {
    out.problem.state = "a suspended generator";
  } else if (!same_handled) {
    out.problem.state = "an exception being handled";
    out.instructions = out.clean_instructions + 1;
  } else {
    SuspendScope off;
    out.segment = BuildSegment(compiled, s, sem, frame, before, outcome, index, result.get(), &out.problem);
    if (out.segment) out.segment->advance = counting.taken;
    if (s.guessed_symbols && out.problem.again == Again::kFixedSizes) out.problem.again = Again::kGivenNumbers;
  }
  if (!out.problem.state.empty()) {
    out.at_return = returns;
    out.stopped_at = returns ? fj_next(frame) : index;
    out.reason = BreakAt(frame, out.stopped_at, BreakId::kIteratorState, out.problem.state);
  }
  return out;
}

diag::CaptureEnd EndOf(const Captured& c) {
  return c.segment                         ? diag::CaptureEnd::kSegment
         : c.problem.again != Again::kNone ? diag::CaptureEnd::kAgain
         : c.problem.leave                 ? diag::CaptureEnd::kLeave
         : c.broke || c.problem            ? diag::CaptureEnd::kBreak
                                           : diag::CaptureEnd::kNothing;
}

// What the next capture of this place does otherwise.
void Decide(Again again, Compiled& compiled, Place& place) {
  switch (again) {
    case Again::kNone:
    case Again::kTape:              // place.needs_tape does
    case Again::kBackward:          // compiled.as_they_are does
    case Again::kDataSizes: break;  // compiled.guesses knows
    case Again::kFixedSizes:
      place.fixed_sizes = true;
      place.dynamic_dims.clear();
      break;
    case Again::kGivenNumbers: place.given_numbers = true; break;
    case Again::kCheckpoints: place.checkpoints_in_python = true; break;
    case Again::kDerivatives: place.derivatives_in_python = true; break;
    case Again::kLeaves: place.leaves_end = true; break;
    case Again::kNotCompiling:
      compiled.compiling = false;
      compiled.notes.push_back(Text(again));
      diag::Log(diag::Channel::perf_, compiled.notes.back());
  }
}

}  // namespace

ShownGraph::ShownGraph(const Trace& trace) : text(trace.str()) {
  const auto here = [](const TraceTensor& t) { return t.meta.device.kind == DeviceKind::kCpu; };
  // Of sparse and quantised tensors it is not known: they are where the others are.
  const auto elsewhere = [&](const TraceTensor& t) { return !here(t) && !IsOpaque(t.meta); };
  on_cpu = std::ranges::none_of(trace.tensors, elsewhere) &&
           (trace.tensors.empty() || std::ranges::any_of(trace.tensors, here));
}

size_t RememberBreak(Compiled& compiled, const diag::Break& reason) {
  compiled.met.resize(compiled.breaks.size());
  for (size_t i = 0; i < compiled.breaks.size(); ++i) {
    const diag::Break& b = compiled.breaks[i];
    if (b.id != reason.id || b.file != reason.file || b.line != reason.line) continue;
    compiled.met[i] = true;
    return i;
  }
  compiled.breaks.push_back(reason);
  compiled.met.push_back(true);
  if (reason.id == BreakId::kInternal) Report(diag::Render(reason));
  diag::Log(diag::Channel::breaks_, diag::Render(reason));
  BreakEvent(reason);
  return compiled.breaks.size() - 1;
}

bool Compiled::Awaits() const {
  constexpr int kMost = 8;
  return (first_calls || (imports && !import_fails)) && after_imports < kMost;
}

// Of a first import, which is not there when the instruction is run again. (A lazy one of a library's is looked at
// inside of importlib.)
static bool IsFirstImport(const diag::Break& b) {
  return b.id == BreakId::kImport || b.file.starts_with("<frozen importlib");
}

static void LogCapture(FjFrame* frame, const Captured& c) {
  if (!diag::Enabled(diag::Channel::guards_)) return;
  diag::Log(diag::Channel::guards_,
            "capture of " + std::string(PyUnicode_AsUTF8(NamedCode(frame)->co_qualname)) + " from " +
                std::to_string(fj_next(frame)) + ": " + std::to_string(c.instructions) + " instructions, " +
                (c.segment                         ? "ok"
                 : c.broke                         ? "break " + diag::Render(c.reason)
                 : c.problem.again != Again::kNone ? std::string("again: ") + Text(c.problem.again)
                                                   : "nothing: " + c.problem.state));
}

static bool Holds(const Segment& segment, FjFrame* frame) {
  std::vector<PyObject*> inputs(segment.num_inputs + 1);
  std::vector<int64_t> symbols(segment.num_symbols + 1);
  return segment.guards->Check(frame::PointersOf(frame), inputs.data(), symbols.data());
}

// Was a class registered with an abstract one since the program asked for such a class? What the framework imports when
// it is first asked what a call gives does that. Or has another thread changed what was read?
static bool IsOutdated(const Segment& s, FjFrame* frame, unsigned long switches, unsigned long hook) {
  if (frame::TakeHook() != hook) return true;  // it may have run callees as written
  if (s.calls && s.registrations >= 0 && s.registrations != Session::Registrations()) return true;
  return fj_thread_switches() != switches && !Holds(s, frame);
}

// Only if its guards hold on its own frame. While it was captured more was held, so that a write may have dropped less.
static bool Accepted(Compiled& compiled, CodeState& code, Place& place, FjFrame* frame, const Segment& segment) {
  TakeSeenDrop();
  if (!Holds(segment, frame)) {
    const int at = fj_next(frame);
    const auto why = [&] {
      return segment.guards->Explain(frame::PointersOf(frame), fj_code(frame)->co_localsplusnames);
    };
    const diag::Break b =
        TakeSeenDrop() ? BreakAt(frame, at, BreakId::kSideEffect, kSeenToDie)
                       : BreakAt(frame, at, BreakId::kInternal, "guards do not hold on their own frame: " + why());
    code.stopped.emplace(at, RememberBreak(compiled, b));
    place.give_up = true;
    place.skip = 1;
    return false;
  }
  segment.guards->Cover(frame::PointersOf(frame));
  if (diag::Enabled(diag::Channel::guards_))
    for (auto& line : segment.guards->Describe(fj_code(frame)->co_localsplusnames))
      diag::Log(diag::Channel::guards_, line);
  if (diag::Enabled(diag::Channel::guards_))
    for (const shape::Guard& g : segment.conditions)
      diag::Log(diag::Channel::guards_, "data: " + g.str() + "  # " + g.where);
  return true;
}

// Objects with a state of their own in the frame's variables.
static std::vector<std::pair<int, PyObject*>> ObjectsIn(FjFrame* frame) {
  std::vector<std::pair<int, PyObject*>> objects;
  for (int i = 0; i < fj_nlocalsplus(frame); ++i)
    if (PyObject* o = fj_localsplus(frame)[i];
        o && Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE && tensor::Classify(o) == tensor::Class::kNone)
      objects.emplace_back(i, o);
  return objects;
}

bool Cause::Outdated(PyObject* const* slots) {
  constexpr unsigned kLast = 64;
  if (!guards) return false;
  for (auto [slot, object] : whose)
    if (slots[slot] != object) return false;
  ++passed;
  if (passed & (passed - 1)) return false;
  std::vector<int64_t> symbols(guards->num_symbols() + 1);
  PyObject* no_input;
  if (!guards->Check(slots, &no_input, symbols.data())) return true;
  if (passed >= kLast) guards.reset();
  return false;
}

// The program ends this call by an exception, for its sizes as a rule. A version of what stands in front of that is for
// nothing. Where nothing of a framework was computed, a loop may become machine code.
static bool IsRefusal(Compiled& compiled, Place& place, Captured& c) {
  if (!c.worthwhile || !c.broke || !c.cause || c.reason.id != BreakId::kException || place.segments.empty() ||
      compiled.fullgraph)
    return false;
  if (place.raising.size() >= Place::kMostRaising) place.raising.erase(place.raising.begin());
  place.raising.push_back(std::move(c.cause));
  RememberBreak(compiled, c.reason);
  return true;
}

// In CodeState::stopped: an instruction at which the frame ended by itself (EndsItself).
constexpr size_t kNoBreak = std::numeric_limits<size_t>::max();

// A capture of the program's own code ended at this break, which a library's code came to.
static void NoteInLibrary(Compiled& compiled, size_t i, PyCodeObject* co, int at, const diag::Break& reason) {
  Ref inner(reinterpret_cast<PyObject*>(PyCode_NewEmpty(reason.file.c_str(), reason.function.c_str(), reason.line)));
  if (!inner) return PyErr_Clear();
  auto* root = reinterpret_cast<PyCodeObject*>(compiled.root_code.get());
  auto library = compiled.libraries.Of(reinterpret_cast<PyCodeObject*>(inner.get()), root);
  if (!library) return;
  diag::Break b = reason;
  b.detail += (b.detail.empty() ? "" : ", ") + std::string("in ") + reason.file + ":" + std::to_string(reason.line);
  b.file = PyUnicode_AsUTF8(co->co_filename);
  b.function = PyUnicode_AsUTF8(co->co_qualname);
  b.line = PyCode_Addr2Line(co, 2 * at);
  b.column = b.end_column = b.first_line = 0;
  Compiled::InLibrary& known = compiled.in_libraries[i];
  known.library = std::move(library);
  if (std::none_of(known.seen.begin(), known.seen.end(), [&](auto& s) { return s.file == b.file && s.line == b.line; }))
    known.seen.push_back(std::move(b));
}

std::vector<diag::Break> Compiled::Shown(const std::vector<bool>* which) const {
  std::vector<diag::Break> shown;
  const auto show = [&](const diag::Break& b) {
    const auto same = [&](const diag::Break& s) { return s.file == b.file && s.line == b.line; };
    if (std::none_of(shown.begin(), shown.end(), same)) shown.push_back(b);
  };
  for (size_t i = 0; i < breaks.size(); ++i) {
    if (!EndsGraph(i) || (which && !(*which)[i])) continue;
    const auto at = in_libraries.find(i);
    if (at == in_libraries.end() || !at->second.library->barren())
      shown.push_back(breaks[i]);
    else
      std::for_each(at->second.seen.begin(), at->second.seen.end(), show);
  }
  return shown;
}

// Remembers the breaks of a capture, and where they stopped it.
static std::vector<size_t> Remembered(Compiled& compiled, CodeState& code, FjFrame* frame, const Captured& c,
                                      std::vector<diag::Break>& reasons, const std::vector<int>& stopped) {
  PyCodeObject* co = fj_code(frame);
  std::vector<size_t> ends;
  for (size_t k = 0; k < reasons.size(); ++k) {
    diag::Break& reason = reasons[k];
    compiled.imports |= IsFirstImport(reason);
    // An instruction that ended an earlier capture has its break: what the earlier one made, this one finds outside.
    const auto before = code.stopped.lower_bound({stopped[k], 0});
    if (stopped[k] == fj_next(frame) && before != code.stopped.end() && before->first == stopped[k]) {
      if (before->second == kNoBreak) return ends;
      compiled.met.resize(compiled.breaks.size());
      compiled.met[ends.emplace_back(before->second)] = true;
      continue;
    }
    if (c.segment && c.worthwhile && reason.function == PyUnicode_AsUTF8(co->co_qualname))
      reason.first_line = PyCode_Addr2Line(co, 2 * fj_next(frame));
    const size_t known = compiled.breaks.size();
    const size_t i = ends.emplace_back(RememberBreak(compiled, reason));
    if (!code.library) NoteInLibrary(compiled, i, co, stopped[k], reason);
    if (!code.library || (c.segment && c.segment->calls))
      compiled.before_calls.erase(i);
    else if (i == known)
      compiled.before_calls.emplace(i, code.library);
  }
  return ends;
}

// Is it a frame that the program's function has called, in which nothing of a framework was called, and which breaks
// where it ends: by an exception, or with a result that is not made again? No graph ends there, and nothing is left of
// the frame.
static bool EndsItself(const Compiled& compiled, FjFrame* frame, const Captured& c) {
  PyCodeObject* code = fj_code(frame);
  if (c.worthwhile || compiled.root_code.get() == reinterpret_cast<PyObject*>(code)) return false;
  return c.at_return ||
         (c.broke && c.reason.id == BreakId::kException && !bytecode::Code::Of(code)->FindHandler(c.stopped_at));
}

Segment* CaptureAt(Compiled& compiled, CodeState& code, Place& place, FjFrame* frame) {
  const Meter::Pause pause;
  const SignalsWait wait;
  double start = Now();
  ++compiled.captures;
  std::vector<diag::Break> reasons;  // the break, then what makes the segment end before it; one of a kind
  std::vector<int> stopped;          // where
  long stop_after = -1;
  int broke_at = -1;
  bool ends_itself = false;
  Captured c;
  std::string left;
  std::shared_ptr<guard::GuardSet> cause;
  compiled.guesses->taken.clear();
  for (int attempt = 0; attempt < 40; ++attempt) {
    const unsigned long switches = fj_thread_switches(), hook = frame::TakeHook();
    for (const bool any : {true, false}) {
      const shape::OnesAsAny ones(any);
      c = CaptureOnce(compiled, place, frame, stop_after, broke_at, left);
      if (!shape::OnesAsAny::Shown()) break;
    }
    if (!c.left.empty()) left = c.left;
    if (PyErr_Occurred()) PyErr_Clear();
    const Problem& problem = c.problem;
    compiled.outcomes->Add(EndOf(c));
    LogCapture(frame, c);
    if (!problem.internal.empty()) {
      PyErr_SetString(ErrorType("InternalError"), problem.internal.c_str());
      return nullptr;
    }
    if (problem.again != Again::kNone) {
      Decide(problem.again, compiled, place);
      continue;
    }
    if (attempt == 0 && &place == code.entry && IsRefusal(compiled, place, c)) {
      compiled.seconds += Now() - start;
      return nullptr;
    }
    if (c.raises) {
      code.stopped.emplace(c.stopped_at, RememberBreak(compiled, c.reason));
      code.skip = true;
      place.skip = std::numeric_limits<int>::max();
      return nullptr;
    }
    if (c.loop) {
      auto* looping = reinterpret_cast<PyCodeObject*>(c.loop.get());
      Cut(StateOf(compiled, {looping, c.loop_globals}), looping, c.loop_at);
      if (looping == fj_code(frame)) {
        if (reasons.empty()) {
          reasons.push_back(c.reason);
          stopped.push_back(c.stopped_at);
        }
        continue;
      }
    }
    if (c.segment && attempt < 8 && IsOutdated(*c.segment, frame, switches, hook)) {
      compiled.TakeBack(c.segment->op_count);
      continue;
    }
    if (c.segment) break;
    if (!c.broke && problem.state.empty()) break;  // nothing worth compiling
    if (std::none_of(reasons.begin(), reasons.end(), [&](auto& b) { return b.id == c.reason.id; })) {
      ends_itself = reasons.empty() && EndsItself(compiled, frame, c);
      if (reasons.empty()) cause = std::move(c.cause);
      reasons.push_back(c.reason);
      stopped.push_back(c.stopped_at);
    }
    stop_after = c.broke ? c.instructions : c.instructions - 1;
    if (c.broke) broke_at = c.stopped_at;
    if (stop_after <= 0) break;
  }
  const double seconds = Now() - start;
  compiled.seconds += seconds;
  CaptureEvent(frame, seconds, c.instructions, c.segment.get(), reasons);
  if (c.segment && !c.segment->has_event) compiled.metered = false;
  if (code.library && !compiled.fullgraph && diag::OptionOn("leave")) NoteCapture(compiled, code, c.segment.get());
  if (ends_itself && !c.worthwhile && stopped[0] != fj_next(frame)) code.stopped.emplace(stopped[0], kNoBreak);
  std::vector<size_t> ends;
  if (!ends_itself || c.worthwhile) ends = Remembered(compiled, code, frame, c, reasons, stopped);
  PyCodeObject* co = fj_code(frame);
  if (!c.segment || (!reasons.empty() && !c.worthwhile))
    for (size_t i = 0; i < ends.size(); ++i) code.stopped.emplace(stopped[i], ends[i]);
  if (PyErr_Occurred()) return nullptr;
  place.cause = {std::move(cause), ends, ObjectsIn(frame)};
  if (!c.segment) {
    place.skip = std::max(1L, !reasons.empty() && !c.broke ? std::min(stop_after, c.instructions) : c.instructions);
    return nullptr;
  }
  if (!reasons.empty() && !c.worthwhile) {
    place.skip = std::max(1L, c.segment->instructions);
    return nullptr;
  }
  if (!Accepted(compiled, code, place, frame, *c.segment)) return nullptr;
  c.segment->code = Borrow(reinterpret_cast<PyObject*>(co));
  c.segment->ends = std::move(ends);
  c.segment->cause = std::exchange(place.cause, {});
  c.segment->begins = bytecode::Code::Of(co)->At(fj_next(frame)).unit;
  place.segments.push_back(std::move(c.segment));
  return place.segments.back().get();
}

}  // namespace framejit::capture
