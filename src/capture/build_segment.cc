#include "capture/build_segment.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "bytecode/code.h"
#include "capture/checkpoint.h"
#include "capture/drops.h"
#include "capture/estimate.h"
#include "capture/events.h"
#include "capture/named_code.h"
#include "capture/now.h"
#include "capture/numbers/provenance.h"
#include "capture/outcomes.h"
#include "capture/override.h"
#include "capture/own_attributes.h"
#include "capture/policy/leave.h"
#include "capture/policy/loops.h"
#include "capture/policy/policy.h"
#include "capture/proxy.h"
#include "capture/runner_choice.h"
#include "capture/semantics.h"
#include "capture/tensor_state.h"
#include "capture/training.h"
#include "capture/wrappers/overrides.h"
#include "capture/wrappers/tape.h"
#include "diag/diag.h"
#include "diag/no_kernel.h"
#include "diag/option_values.h"
#include "graph/hints.h"
#include "guard/source.h"
#include "shape/typical.h"
#include "surface/numpy_transforms.h"
#include "tensor/import.h"
#include "tensor/no_collection.h"
#include "tensor/own_reference.h"

namespace framejit::capture {
namespace {

using diag::Again;
using diag::CompileEnd;
using tensor::TakeErrorText;

// What was guessed is read after every run.
std::vector<std::pair<int, Guess>> KeepGuesses(Session& s, std::vector<TraceId>& outputs) {
  std::vector<std::pair<int, Guess>> kept;
  for (const Guess& g : s.guessing().made()) {
    auto at = std::find(outputs.begin(), outputs.end(), g.tensor);
    if (at == outputs.end()) at = outputs.insert(at, g.tensor);
    kept.emplace_back(at - outputs.begin(), Guess{g.tensor, Borrow(g.value.get()), Borrow(g.code.get()), g.at});
  }
  return kept;
}

// By input: is it a parameter or a buffer of a module?
std::vector<bool> WeightsOf(const Trace& trace, const Graph& graph) {
  std::vector<bool> weights;
  for (size_t i = 0; i < trace.inputs.size(); ++i) {
    const TensorMeta& m = trace.tensors[trace.inputs[i]].meta;
    const std::string& name = graph.nodes[graph.inputs[i]].attrs.name;
    weights.push_back(m.framework == Framework::kTorch &&
                      (m.is_parameter || name.find("._buffers[") != std::string::npos));
  }
  return weights;
}

// Can what tensors hold make a call of the framework raise?
bool MayFail(Session& s) {
  if (s.libraries.numpy || !s.lowering().graph_unusable().empty()) return true;
  return std::any_of(s.graph().nodes.begin(), s.graph().nodes.end(), [](const Node& n) {
    return n.op == Op::kExtern || n.op == Op::kTake || n.op == Op::kGather || n.op == Op::kScatter;
  });
}

// With derivatives inside: do gradients flow from the results to the program's inputs? A leaf made inside has no graph
// here, and a result that hangs on nothing but such leaves none either. A leaf that ends with the program gets a
// gradient that nobody can see.
bool TrackedAsInEager(Session& s, const std::vector<TraceId>& outputs) {
  for (TraceId t : outputs) {
    if (s.lowering().IsLeaf(t)) return false;
    if (!s.meta(t).requires_grad) continue;
    if (s.lowering().IsFreed(t) || !s.lowering().Depends(t, s.lowering().TrackedInputs())) return false;
  }
  return true;
}

bool Reported(const std::string& text, Problem* problem) {  // Report, where no exception may be set yet
  const bool go_on = Report(text);
  if (!go_on) problem->internal = TakeErrorText();
  return go_on;
}

CompileOptions OptionsOf(int ieee) {
  CompileOptions options;
  options.cpu = diag::GetOption("cpu");
  options.verify = diag::OptionOn("verify");
  options.fuse = diag::OptionOn("fuse");
  options.tune = diag::OptionOn("tune");
  options.traps |= ieee;
  const std::string graphs = diag::GetOption("cuda_graphs");
  options.gpu_graphs = graphs == "true" ? GpuGraphs::kAlways : graphs == "false" ? GpuGraphs::kNever : GpuGraphs::kAuto;
  options.fuel = std::stoll(diag::GetOption("fuel"));
  options.disabled_passes = diag::OptionList("disabled_passes");
  return options;
}

// The phases follow in the order in which they run. Each may find a problem: then there is no segment.
class SegmentBuilder {
 public:
  SegmentBuilder(Compiled& compiled, Session& s, FjFrame* frame, const FrameImage& before, Problem* problem)
      : compiled_(compiled), s_(s), frame_(frame), problem_(problem), seg_(std::make_unique<Segment>(Recipe(s))) {
    seg_->assumed.book = compiled.guesses;
    seg_->outcomes = compiled.outcomes;
    PyObject* self = before.size() ? before[0] : nullptr;
    named_ = NamedCode(fj_code(frame), self);
    seg_->place = PlaceName(named_);
    seg_->line = NamedLine(fj_code(frame), self, before.next());
  }
  std::unique_ptr<Segment> Build(CaptureSemantics& sem, const FrameImage& before, frame::Outcome outcome, int index,
                                 PyObject* result) {
    seg_->exit.returns = outcome == frame::Outcome::kReturned;
    seg_->exit.next = index;
    seg_->exit.depth = fj_stack_depth(frame_);
    seg_->instructions = sem.root_instructions();
    KeepsWhatDies(before);
    if (*problem_) return nullptr;
    if (TapeOf(s_)) LeaveTape(before, result);
    if (*problem_) return nullptr;
    FrameState(before, result);
    Effects();
    if (std::string why = MakeRecipes(s_, seg_->exit); !why.empty()) {
      Note("a checkpoint runs as written: " + why);
      return problem_->again = Again::kCheckpoints, nullptr;
    }
    CannotBeRebuilt();
    if (*problem_) return nullptr;
    Reconsider();
    if (*problem_) return nullptr;
    s_.SeparateWrites();
    Finish();
    if (shape::OnesAsAny::Shown()) return nullptr;
    AddGuards();
    if (*problem_) return nullptr;
    Provenance provenance;
    if (diag::EventsOn()) provenance.Note(s_.graph());
    TakeTrace();
    const bool writes = !s_.graph().writes.empty();
    if (!trace_->calls.empty()) MakeRunner(ChooseRunner({compiled_, s_, *trace_, seg_->exit.returns, shares_, ieee_}));
    if (*problem_) return nullptr;
    const bool fails = shares_ || seg_->backend_runner || !seg_->assumed.guesses.empty() || MayFail(s_);
    seg_->undo = tensor::PlanUndo(*trace_, !seg_->graph_runner && !seg_->pending, fails);
    if (seg_->pending || seg_->as_calls) seg_->undo_calls = tensor::PlanUndo(*trace_, true, fails);
    seg_->draws = std::move(s_.draws);
    seg_->cached = std::move(s_.cached);
    seg_->cached.Seal();
    seg_->floats = s_.numbers().Program();
    for (const Call& c : trace_->calls) seg_->calls_operators |= c.callee.Has(kForeign) || c.callee == kCustomCall;
    seg_->changes = seg_->undo.random || writes;
    seg_->guards = s_.TakeGuards()->Finish(s_.env(), inputs_);
    provenance.Tell(seg_->place, s_.env(), s_.numbers());
    seg_->exit.recipe.Seal();
    return std::move(seg_);
  }

 private:
  Recipe& recipe() { return seg_->exit.recipe; }
  void Note(const std::string& note) {
    compiled_.notes.push_back(note);
    diag::Log(diag::Channel::perf_, note + "  [" + PyUnicode_AsUTF8(named_->co_qualname) + "]");
  }

  // A segment drops what it drops at its end, but what is seen to die must do so in its place.
  void KeepsWhatDies(const FrameImage& before) {
    frame::Slot* now = fj_localsplus(frame_);
    const int slots = fj_nlocalsplus(frame_) + fj_stack_depth(frame_);
    for (int i = 0; i < before.size(); ++i) {
      bool kept = !before.SeenToDie(i);
      for (int j = 0; !kept && j < slots; ++j)
        kept = now[j] && IsLazy(now[j]) && reinterpret_cast<Lazy*>(now[j].get())->value == before[i];
      if (!kept) problem_->state = "an object that is seen to die is dropped";
    }
  }

  // What the frame holds at the end: its result, or its slots and stack.
  void FrameState(const FrameImage& before, PyObject* result) {
    if (seg_->exit.returns) {
      seg_->exit.return_node = recipe().Add(result);
      return;
    }
    const int nlocals = fj_nlocalsplus(frame_);
    frame::Slot* p = fj_localsplus(frame_);
    for (int i = 0; i < nlocals; ++i) {
      if (p[i] && s_.root_cells.contains(p[i])) continue;
      if (p[i] && IsLazy(p[i]) && reinterpret_cast<Lazy*>(p[i].get())->value == before[i] &&
          reinterpret_cast<Lazy*>(p[i].get())->source == s_.guards().Slot(i))
        continue;  // as it was
      if (!p[i] && !before[i]) continue;
      seg_->exit.slots.emplace_back(i, p[i] ? recipe().Add(p[i]) : -1);
      if (p[i] && seg_->exit.slots.back().second < 0) break;
    }
    for (int i = 0; i < seg_->exit.depth && recipe().why().empty(); ++i)
      seg_->exit.stack.push_back(p[nlocals + i].is_integer() ? Exit::kNothing - 1 - p[nlocals + i].position()
                                 : p[nlocals + i]            ? recipe().Add(p[nlocals + i])
                                                             : Exit::kNothing);
  }

  // Results that torch leads gradients to: all have to be known before one is made.
  void LeaveTape(const FrameImage& before, PyObject* result) {
    TapeOf(s_)->gathering = true;
    FrameState(before, result);
    for (auto& st : s_.pending().stores())
      if (st.value) recipe().Add(st.value.get());
    for (auto& c : s_.pending().calls())
      for (auto& a : c.args) recipe().Add(a.get());
    for (auto& c : s_.pending().cells())
      if (c.value) recipe().Add(c.value.get());
    for (PyObject* list : s_.pending().lists()) {
      const Ref now(PySequence_List(s_.Find(list)->written));
      for (Py_ssize_t i = 0; now && i < PyList_GET_SIZE(now.get()); ++i) recipe().Add(PyList_GET_ITEM(now.get(), i));
    }
    EachAttribute(s_.pending(), [&](TraceId, PyObject*, PyObject* value) { recipe().Add(value); });
    for (auto& [cell, root] : s_.root_cells)
      if (PyObject* now = PyCell_GET(cell); now && now != root.before) recipe().Add(now);
    TapeOf(s_)->gathering = false;
    seg_->exit.recipe = Recipe(s_);
    seg_->exit.slots.clear();
    seg_->exit.stack.clear();
    problem_->state = TapeOf(s_)->Seal();
    if (!*problem_) AddLeaving(recipe(), s_);
  }

  template <typename C>
  void AddExitCall(const C& c) {
    Exit::Call call{c.method, {}};
    for (auto& a : c.args) call.args.push_back(recipe().Add(a.get()));
    seg_->exit.calls.push_back(std::move(call));
  }

  // Items of a deque were replaced, at most. Iterators go on then, which all other changes end with an error, also one
  // that leaves the items as they were.
  bool PutInPlace(PyObject* deque, PyObject* read, PyObject* items) {
    const Ref next(PyIter_Next(PyTuple_GET_ITEM(read, 1)));
    if (PyErr_Occurred()) return PyErr_Clear(), false;
    static PyObject* const assign = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(deque)), "__setitem__");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); ++i) {
      PyObject* item = PyList_GET_ITEM(items, i);
      if (item == PyList_GET_ITEM(PyTuple_GET_ITEM(read, 0), i)) continue;
      Ref at(PyLong_FromSsize_t(i));
      AddExitCall(PendingCall{Borrow(assign), {}});
      seg_->exit.calls.back().args = {recipe().Add(deque), recipe().Add(at.get()), recipe().Add(item)};
      s_.Keep(at.release());
    }
    return true;
  }

  // list[:] = what is in it by now; a deque is emptied and filled.
  void AddList(PyObject* list) {
    static PyObject* const assign = PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyList_Type), "__setitem__");
    Ref all(PySlice_New(nullptr, nullptr, nullptr)), items(PySequence_List(s_.Find(list)->written));
    if (guard::IsDeque(list)) {
      if (const auto read = s_.pending().as_read.find(list); read != s_.pending().as_read.end())
        if (PutInPlace(list, read->second.get(), items.get())) return;
      for (const char* name : {"clear", "extend"}) {
        Ref method(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(list)), name));
        AddExitCall(PendingCall{std::move(method), {}});
        seg_->exit.calls.back().args = {recipe().Add(list)};
      }
      seg_->exit.calls.back().args.push_back(recipe().Add(items.get()));
      s_.Keep(items.release());
      return;
    }
    AddExitCall(PendingCall{Borrow(assign), {}});
    seg_->exit.calls.back().args = {recipe().Add(list), recipe().Add(all.get()), recipe().Add(items.get())};
    s_.Keep(all.release());  // their addresses are in the memo
    s_.Keep(items.release());
  }

  // Of one tensor that comes from outside, or is there at the exit, and was given attributes. False: there is none.
  bool AddAttributes() {
    static PyObject *const set = FromModule("builtins", "setattr"), *const give = FromModule("framejit._functions",
                                                                                             "give_attributes");
    for (auto& [id, own] : s_.pending().attributes) {
      const std::vector<TraceId>& there = recipe().outputs;
      const bool outside = s_.trace().tensors[id].input >= 0;
      if (own.empty() || (!outside && std::find(there.begin(), there.end(), id) == there.end())) continue;
      Ref proxy(s_.NewProxy(id));
      PyObject* made = DictMade(s_.pending(), id);
      if (made) recipe().Add(made), s_.Keep(Py_NewRef(made));  // while it is known whose it is
      for (auto& [name, value] : std::exchange(own, {})) {
        const bool whole = value.get() == made;
        Ref items(whole ? s_.MarkFresh(PyDict_Copy(made)) : Py_NewRef(value.get()));
        AddExitCall(PendingCall{Borrow(whole ? give : set), {}});
        std::vector<int>& args = seg_->exit.calls.back().args;
        args = {recipe().Add(proxy.get())};
        if (!whole) args.push_back(recipe().Add(name.get()));
        args.push_back(recipe().Add(items.get()));
        s_.Keep(items.release());  // its address is in the memo
      }
      return true;
    }
    return false;
  }

  void AddRetains() {
    const std::vector<TraceId> there = recipe().outputs;
    for (auto& [id, method] : s_.pending().retains) {
      if (std::find(there.begin(), there.end(), id) == there.end()) continue;
      PendingCall call{method, {}};
      call.args.emplace_back(s_.NewProxy(id));
      AddExitCall(call);
    }
  }

  // What is written and called at the exit.
  void Effects() {
    for (auto& st : s_.pending().stores()) {
      const Origin* tensor = tensor::Classify(st.key.get()) == tensor::Class::kNone ? nullptr : s_.Find(st.key.get());
      PyObject* key = tensor && tensor->proxy ? tensor->proxy : st.key.get();
      seg_->exit.stores.push_back(
          {recipe().Add(st.dict.get()), recipe().Add(key), st.value ? recipe().Add(st.value.get()) : -1});
    }
    for (auto& c : s_.pending().calls()) AddExitCall(c);
    for (PyObject* list : s_.pending().lists()) AddList(list);
    for (auto& c : s_.pending().cells())
      seg_->exit.cells.emplace_back(recipe().Add(c.cell.get()), c.value ? recipe().Add(c.value.get()) : -1);
    for (auto& c : s_.pending().cache_calls)
      if (c.call.method) AddExitCall(c.call);
    for (auto& c : s_.modes.switches.AtExit()) AddExitCall(c);
    for (auto& [cell, root] : s_.root_cells) {
      PyObject* now = PyCell_GET(cell);
      if (now != root.before)
        seg_->exit.cells.emplace_back(recipe().AddInput(s_.guards().Slot(root.slot)), now ? recipe().Add(now) : -1);
    }
    while (AddAttributes()) continue;
    AddRetains();
    seg_->exit.grad_after = s_.modes.now.grad == s_.modes.entry.grad ? -1 : s_.modes.now.grad;
  }

  // Scopes that are open where the capture ended.
  void CannotBeRebuilt() {
    std::string& why = problem_->state;
    for (TraceId t : recipe().outputs)
      if (s_.lowering().IsHidden(t)) why = "a tensor of a custom function or of torch.vmap";
    if (s_.modes.overrides_off) why = "__torch_function__ was disabled";
    if (s_.vmap.open()) why = "torch.vmap or a derivative was entered";
    if (std::string open = s_.modes.StillOpen(); !open.empty()) why = std::move(open);
    if (std::string early = SetTooEarly(s_, recipe().outputs); !early.empty()) why = std::move(early);
    if (!recipe().why().empty()) why = recipe().why();
    if (why.empty() && !seg_->exit.PutInOrder()) why = "an iterator over what is written, to which its place is lost";
  }

  void Reconsider() {
    if (s_.options().uses_leaves && !s_.options().whole && ReadsFormerData(s_, recipe().outputs))
      problem_->again = Again::kLeaves;
    else if (s_.lowering().differentiates() && !TrackedAsInEager(s_, recipe().outputs))
      problem_->again = Again::kDerivatives;
    else if (s_.options().uses_leaves && !s_.options().whole && MuchOfLeaves(s_, recipe().outputs))
      problem_->again = Again::kLeaves;
    else if (s_.guessing().Reconsider() || s_.data_sizes().Reconsider(recipe().outputs))
      problem_->again = Again::kDataSizes;
  }

  // Is this framejit.grad or the like, and not a function that calls it?
  bool IsTransform() const {
    PyObject* globals = reinterpret_cast<PyFunctionObject*>(fj_function(frame_))->func_globals;
    PyObject* name = PyDict_GetItemString(globals, "__name__");
    return name && PyUnicode_Check(name) && !PyUnicode_CompareWithASCIIString(name, "framejit._transforms");
  }

  // Makes the plan of the results. Those that are inputs are handed through, and the runner makes the others.
  void Finish() {
    const std::optional<Device> gpu = NumpyDevice(s_);
    // Its error state is guarded. Where a derivative is asked for NumPy says nothing: what it would warn of may be the
    // derivative's alone, of which Python, which cannot run it, would not know.
    if (s_.libraries.numpy && !gpu && !IsTransform()) ieee_ = s_.modes.numpy.traps();
    seg_->assumed.guesses = KeepGuesses(s_, recipe().outputs);
    std::vector<shape::Guard>& asked = s_.trace().conditions;
    for (const RecipeNode& n : recipe().nodes)  // a number of the program's that data decides must be counted
      if (n.kind == RecipeNode::kSym || n.kind == RecipeNode::kSymFloat)
        asked.push_back({shape::Cmp::kLe, 0, n.expr, {}});
    int made = 0;  // Counts the outputs of the graph. Those behind them are there only for what they may raise.
    for (auto& m : s_.lowering().Finish(recipe().outputs, ieee_ != 0)) {
      if (m.kind != surface::Lowering::Made::kInput) made = std::max(made, m.index + 1);
      plan_.push_back({static_cast<tensor::OutputPlan::Kind>(m.kind), m.index, m.calls});
    }
    views_ = TakeViews(s_, recipe().outputs, plan_);
    // Where it ends at a break, that is the error: nothing then makes a batch of the samples.
    if (seg_->exit.returns) problem_->state = surface::EscapedSample(s_.graph(), made);
    if (gpu) surface::MoveTo(s_.graph(), *gpu);
    uses_torch_ = s_.libraries.torch || gpu;
  }

  void AddGuards() {
    seg_->registrations = s_.registrations;
    inputs_ = s_.input_sources();
    seg_->num_tensor_inputs = static_cast<int>(inputs_.size());
    inputs_.insert(inputs_.end(), recipe().object_sources.begin(), recipe().object_sources.end());
    for (const Source* s : InputsOfCheckpoints(s_, inputs_.size(), seg_->assumed.wrong)) inputs_.push_back(s);
    seg_->num_inputs = static_cast<int>(inputs_.size());
    seg_->num_symbols = static_cast<int>(s_.env().num_symbols());
    if (uses_torch_) s_.guards().Add(guard::Row{guard::Kind::kTorchState});
    if (s_.libraries.numpy || s_.modes.numpy.entered()) s_.guards().Add(guard::Row{guard::Kind::kNumpyState});
    std::vector<bool> written(s_.input_sources().size());
    for (auto& w : s_.graph().writes) written[w.input] = !s_.trace().calls.empty();
    for (int input : Overwritten()) {
      guard::Row made{guard::Kind::kLeaf, s_.input_sources()[input]};
      made.number = 1;  // not a leaf: MayOverwrite
      s_.guards().Add(std::move(made));
      s_.guards().Add(guard::Row{guard::Kind::kNoHooks, s_.input_sources()[input]});
    }
    for (TraceId id : s_.pending().stopped)  // what a view of it has of gradients changes with it
      if (const int input = s_.trace().tensors[s_.pending().Original(id)].input; input >= 0) written[input] = true;
    const bool writes = std::find(written.begin(), written.end(), true) != written.end();
    const char* cached = nullptr;
    if (s_.cached.Exposes(recipe())) cached = "a list, tuple or dict of a functools.lru_cache is changed or kept";
    if (writes && s_.cached.GivesTensors())  // what a cache keeps may share memory with what is written
      cached = "tensors are written beside what a functools.lru_cache has";
    if (cached && s_.options().whole && !s_.options().dynamic_dims.empty())
      problem_->again = diag::Again::kFixedSizes;
    else if (cached)
      problem_->state = cached;
    if (!writes || *problem_) return;
    std::vector<guard::Row> apart;
    std::vector<guard::Extent> extents;
    for (size_t i = 0; i < written.size(); ++i) {
      const TensorMeta& m = s_.trace().tensors[s_.trace().inputs[i]].meta;
      if (m.framework == Framework::kTorch && m.read_only) continue;  // autocast's: nobody else has its memory
      apart.emplace_back(guard::Row{guard::Kind::kApart, s_.input_sources()[i]}).number = written[i];
      extents.push_back(guard::ExtentOf(s_.input_tensors()[i], written[i]));
    }
    if ((shares_ = guard::ShareWritten(extents)) && !FollowsCalls(s_, recipe().outputs))
      problem_->state = "two inputs share memory, and one of them is written to or loses its gradients";
    for (guard::Row& row : apart)
      if (!shares_) s_.guards().Add(std::move(row));
  }

  // The inputs that want gradients and are written with them.
  std::vector<int> Overwritten() const {
    std::vector<int> all;
    for (const Write& w : s_.graph().writes)
      if (s_.options().derivatives && s_.lowering().WritesInputWithGradients() &&
          tensor::RequiresGrad(s_.input_tensors()[w.input]))
        all.push_back(w.input);
    return all;
  }

  void TakeTrace() {
    s_.trace().outputs = recipe().outputs;
    s_.trace().conditions = s_.graph().conditions = s_.data_sizes().Conditions(recipe().outputs);
    for (const DataSize& d : s_.data_sizes().all())
      for (const shape::Guard& g : s_.graph().conditions) {
        bool asked = false;
        for (shape::Int e : {g.lhs, g.rhs}) e.ForEachSymbol([&](uint32_t id) { asked |= id == d.symbol.symbol; });
        if (!asked) continue;
        seg_->assumed.sizes.push_back({d.code, d.at, d.outermost && d.number});
        break;
      }
    seg_->conditions = s_.trace().conditions;
    seg_->calls = static_cast<int64_t>(s_.trace().calls.size());
    trace_ = std::make_shared<const Trace>(std::move(s_.trace()));
    for (TraceId t : recipe().outputs)
      if (trace_->calls.empty()) seg_->passed_on.push_back(trace_->tensors[t].input);
  }

  // Makes what the choice says, and the framework's own calls where compiling fails.
  void MakeRunner(const RunnerChoice& choice) {
    if (choice.runner == Runner::kPython) {
      problem_->leave = true;
      return Note(choice.note);
    }
    constexpr size_t kGraphsShown = 1024;  // code that is made anew all the time never ends
    if (compiled_.graphs.size() >= kGraphsShown) compiled_.graphs.erase(compiled_.graphs.begin());
    seg_->shown = std::make_shared<const ShownGraph>(*trace_);
    compiled_.graphs.push_back(seg_->shown);
    seg_->op_count = s_.op_count;
    compiled_.op_count += s_.op_count;
    ++compiled_.graph_count;
    seg_->left = choice.left;
    const bool overwrites = !Overwritten().empty();  // Nothing takes that back: no run may be refused behind it.
    const bool made_again = !s_.lowering().checkpointed().empty();  // by eager, of what the input is by then
    if (choice.again || (overwrites && (made_again || choice.runner != Runner::kPair)))
      return Again(Again::kDerivatives);
    std::string note = choice.note;
    CompileEnd end = choice.runner == Runner::kReplay ? CompileEnd::kFramework : CompileEnd::kOk;
    if (choice.number >= 0)
      seg_->check = SegmentCheck::Make(*trace_, s_.constants(), s_.input_tensors(), seg_->place, choice.number,
                                       choice.runner == Runner::kPair, compiled_.backend,
                                       {s_.env().hints().begin(), s_.env().hints().end()});
    if (choice.runner == Runner::kCallable && !MakeCallable()) return;
    if (choice.runner == Runner::kPair || choice.runner == Runner::kCompiled)
      end = CompileGraph(choice.runner == Runner::kPair, &note);
    if (*problem_) return;
    if (overwrites && !seg_->graph_runner) return Again(Again::kDerivatives);
    if (choice.calls && !overwrites && !made_again) seg_->as_calls = compiled_.as_calls;
    if (!seg_->graph_runner && !seg_->backend_runner && !seg_->pending) {
      seg_->trace_runner = tensor::MakeTraceRunner(*trace_, s_.constants());
      FallbackEvent(*seg_, note);
      Note(note);
    }
    if (!seg_->pending) compiled_.outcomes->Add(end);
  }

  bool MakeCallable() {
    seg_->backend_runner =
        BackendRunner::Make(FindBackend(compiled_.backend), *trace_, s_.constants(), s_.input_tensors());
    if (seg_->backend_runner) return true;
    compiled_.outcomes->Add(CompileEnd::kBackendFailed);
    problem_->leave = Reported("the backend failed, " + seg_->place + " runs as written: " + TakeErrorText(), problem_);
    return false;
  }

  void Again(diag::Again what) {
    compiled_.TakeBack(s_.op_count);
    problem_->again = what;
  }

  CompileEnd CompileGraph(bool pair, std::string* note) {
    try {
      MakeGraphRunner(pair);
      return CompileEnd::kOk;
    } catch (const autodiff::Undifferentiable& e) {
      const bool sizes = dynamic_cast<const autodiff::WantsFixedSizes*>(&e) && !s_.options().dynamic_dims.empty();
      if (sizes)
        Again(Again::kFixedSizes);
      else if (s_.lowering().differentiates())
        Again(Again::kDerivatives);
      else if (!s_.lowering().checkpointed().empty())
        Again(Again::kCheckpoints);
      *note = std::string("gradients are wanted and there is no compiled backward (") + e.what() +
              "): runs through the framework";
      return CompileEnd::kFramework;
    } catch (const std::exception& e) {
      const bool none = dynamic_cast<const diag::NoKernel*>(&e);
      *note = std::string(none ? "" : "internal error of framejit: ") + e.what() + ": runs through the framework";
      Reported(*note + "  [" + seg_->place + "]", problem_);
      seg_->graph_runner.reset();
      seg_->trace_runner.reset();
      seg_->pending.reset();
      return none ? CompileEnd::kNoKernel : CompileEnd::kInternal;
    }
  }

  // What is compiled, without Python, and the runner that is then made of it, with the GIL held.
  struct Job {
    Compilation::Work compile;
    std::function<std::unique_ptr<tensor::GraphRunner>(std::shared_ptr<Executable>)> finish;
  };

  void MakeGraphRunner(bool pair) {
    const double start = Now();
    s_.graph().name = PyUnicode_AsUTF8(named_->co_qualname);
    SimplifySizes(s_.graph(), s_.env());
    if (diag::Enabled(diag::Channel::graph_)) diag::Log(diag::Channel::graph_, s_.graph().str());
    Estimate* const estimate = Estimate::Current();
    if (estimate) estimate->NoteProgram(s_.graph());
    const bool interpret = compiled_.backend == "interpreter",
               later = !interpret && !estimate && !seg_->check && Overwritten().empty() && diag::OptionOn("background");
    tensor::RunCheck check = seg_->assumed.Check();
    if (!seg_->assumed.guesses.empty()) check.writes = DeferWrites(&s_.graph());
    if (pair || later) seg_->trace_runner = tensor::MakeTraceRunner(*trace_, s_.constants());
    Job job = pair ? TrainingJob(std::move(check), interpret, later) : PlainJob(std::move(check), interpret, later);
    if (later) {
      seg_->pending = std::make_unique<Segment::Pending>();
      seg_->pending->compilation = Compilation::Begin([compile = std::move(job.compile), options = compiled_.options] {
        diag::OptionScope scope(options.empty() ? nullptr : &options);
        return compile();
      });
      seg_->pending->finish = std::move(job.finish);
      seg_->pending->compiled = compiled_.weak_from_this();
      seg_->pending->gradients = pair;
      return;
    }
    seg_->executable = job.compile();
    seg_->graph_runner = job.finish(seg_->executable);
    if (seg_->check) seg_->check->NotePlan(seg_->executable->str());
    NoteCompiled(compiled_, seg_->place, seg_->executable->stats(), Now() - start);
  }

  // Gives the session's graph, or a copy of it where it is needed when the session is no more.
  std::shared_ptr<const Graph> TheGraph(bool later) {
    if (later) return std::make_shared<Graph>(s_.graph());
    return {std::shared_ptr<void>(), &s_.graph()};
  }

  // Its constants, held.
  std::shared_ptr<const std::vector<Ref>> Constants() {
    auto held = std::make_shared<std::vector<Ref>>();
    for (PyObject* o : s_.constants()) held->push_back(Borrow(o));
    return held;
  }
  static std::vector<PyObject*> Borrowed(const std::vector<Ref>& held) {
    std::vector<PyObject*> all;
    for (const Ref& r : held) all.push_back(r.get());
    return all;
  }

  Job PlainJob(tensor::RunCheck check, bool interpret, bool later) {
    CompileOptions options = OptionsOf(ieee_);
    if (diag::OptionOn("pack_weights")) options.weights = WeightsOf(*trace_, s_.graph());
    for (auto& [input, output] : check.writes)
      if (!options.weights.empty()) options.weights[input] = false;
    std::shared_ptr<const Graph> graph = TheGraph(later);
    Job job;
    job.compile = [graph, options = std::move(options), interpret, ieee = ieee_] {
      std::shared_ptr<Executable> made = interpret ? MakeInterpreter(*graph, ieee) : Compile(*graph, options);
      if (Estimate* e = Estimate::Current()) e->Note(*graph, *made);
      return made;
    };
    job.finish = [graph, trace = trace_, plan = plan_, constants = Constants(),
                  check = std::move(check)](std::shared_ptr<Executable> made) {
      return tensor::MakeGraphRunner(std::move(made), *graph, *trace, plan, Borrowed(*constants), nullptr, check);
    };
    return job;
  }

  Job TrainingJob(tensor::RunCheck check, bool interpret, bool later) {
    const CompileOptions options = OptionsOf(ieee_);
    auto plan = std::make_shared<TrainingPlan>(PlanTraining(s_, *trace_, *seg_->trace_runner, plan_, views_,
                                                            s_.constants(), options, interpret, check.writes));
    auto forward = std::make_shared<const Graph>(std::move(plan->forward));
    tensor::Training& t = plan->training;
    for (const auto& write : t.overwritten)
      if (std::find(check.writes.begin(), check.writes.end(), write) == check.writes.end())
        check.writes.push_back(write);
    Job job;
    if (later) {  // the backward pass that is the likely one, too
      auto backward = std::make_shared<std::optional<tensor::Training::Backward>>();
      job.compile = [forward, options, backward, likely = t.differentiable, compile = t.compile] {
        auto made = MakeExecutableOf(*forward, options, false);
        try {
          *backward = compile(likely, {}, false, {});
        } catch (const std::exception&) {  // whoever wants it is told
        }
        return made;
      };
      t.compile = [backward, likely = t.differentiable, compile = t.compile](
                      const std::vector<bool>& tangents, const std::vector<bool>& stops, bool around,
                      const std::vector<bool>& skipped) {
        if (*backward && tangents == likely && stops.empty() && !around && skipped.empty())
          return *std::exchange(*backward, std::nullopt);
        return compile(tangents, stops, around, skipped);
      };
    } else {
      job.compile = [forward, options, interpret, plan] {
        auto made = MakeExecutableOf(*forward, options, interpret);
        const tensor::Training& t = plan->training;
        if (Estimate::Current()) t.compile(t.differentiable, {}, false, {});
        return made;
      };
    }
    job.finish = [forward, plan, trace = trace_, outputs = plan_, constants = Constants(),
                  check = std::move(check)](std::shared_ptr<Executable> made) {
      return tensor::MakeGraphRunner(std::move(made), *forward, *trace, outputs, Borrowed(*constants),
                                     tensor::MakeTrainingHook(std::move(plan->training)), check);
    };
    return job;
  }

  Compiled& compiled_;
  Session& s_;
  FjFrame* frame_;
  PyCodeObject* named_;  // what reports call its code
  Problem* problem_;
  std::unique_ptr<Segment> seg_;
  std::shared_ptr<const Trace> trace_;
  std::vector<tensor::OutputPlan> plan_;
  std::vector<ViewResult> views_;
  std::vector<const Source*> inputs_;
  int ieee_ = 0;         // the floating-point errors that NumPy would tell of
  bool shares_ = false;  // an input that is written shares memory with another one
  bool uses_torch_ = false;
};

}  // namespace

void NoteCompiled(Compiled& compiled, const std::string& place, const CompileStats& stats, double seconds) {
  CompileEvent(place, seconds, stats);
  compiled.kernels.kernels += stats.kernels;
  compiled.kernels.kernels_compiled += stats.kernels_compiled;
  compiled.kernels.kernels_reused += stats.kernels_reused;
  compiled.kernels.library_calls += stats.library_calls;
  compiled.kernels.externs += stats.externs;
}

FrameImage::FrameImage(FjFrame* f) : f_(f), next_(fj_next(f)), depth_(fj_stack_depth(f)) {
  const int n = fj_nlocalsplus(f) + depth_;
  frame::Slot* p = fj_localsplus(f);
  seen_to_die_ = capture::SeenToDie(frame::PointersOf(f), n);
  for (int i = 0; i < n; ++i) saved_.push_back(Borrow(p[i]));
}

std::unique_ptr<Segment> BuildSegment(Compiled& compiled, Session& s, CaptureSemantics& sem, FjFrame* frame,
                                      const FrameImage& before, frame::Outcome outcome, int index, PyObject* result,
                                      Problem* problem) {
  return SegmentBuilder(compiled, s, frame, before, problem).Build(sem, before, outcome, index, result);
}

}  // namespace framejit::capture
