// Making segments.
#include "capture/segment.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "bytecode/code.h"
#include "capture/events.h"
#include "capture/loops.h"
#include "capture/override.h"
#include "capture/policy.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/training.h"
#include "diag/diag.h"
#include "graph/hints.h"
#include "graph/raises.h"
#include "runtime/cuda/driver.h"
#include "runtime/thread_pool.h"
#include "tensor/no_collection.h"

namespace framejit::capture {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool HasDestructor(PyObject* o) {
  static PyObject* del_name = PyUnicode_InternFromString("__del__");
  return o && (Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) && _PyType_Lookup(Py_TYPE(o), del_name);
}

bool HasWeakReferences(PyObject* o) {
  static PyObject* module = PyImport_ImportModule("_weakref");
  static PyObject* count = module ? PyObject_GetAttrString(module, "getweakrefcount") : nullptr;
  Ref n(count ? PyObject_CallOneArg(count, o) : nullptr);
  if (!n) PyErr_Clear();
  return n && PyObject_IsTrue(n.get()) == 1;
}

// The frame's slots and stack, saved while capture runs in the frame itself, and put back whatever happens.
class FrameImage {
 public:
  explicit FrameImage(FjFrame* f) : f_(f), next_(fj_next(f)), depth_(fj_stack_depth(f)) {
    int n = fj_nlocalsplus(f) + depth_;
    PyObject** p = fj_localsplus(f);
    for (int i = 0; i < n; ++i) {
      seen_to_die_.push_back(HasDestructor(p[i]) || (p[i] && Py_REFCNT(p[i]) == 1 && HasWeakReferences(p[i])));
      saved_.push_back(Borrow(p[i]));
    }
  }
  ~FrameImage() { Restore(); }
  void Restore() {
    if (std::exchange(restored_, true)) return;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    PyObject** p = fj_localsplus(f_);
    int now = fj_nlocalsplus(f_) + fj_stack_depth(f_);
    for (int i = 0; i < std::max(now, static_cast<int>(saved_.size())); ++i) {
      PyObject* old = i < now ? p[i] : nullptr;
      p[i] = i < static_cast<int>(saved_.size()) ? saved_[i].release() : nullptr;
      Py_XDECREF(old);
    }
    fj_set_stack_depth(f_, depth_);
    fj_set_next(f_, next_);
    PyErr_Restore(type, value, tb);
  }
  PyObject* operator[](int i) const { return saved_[i].get(); }
  int size() const { return static_cast<int>(saved_.size()); }
  // A destructor, or a weak reference to what nobody else holds, tells when the frame lets go of it.
  bool SeenToDie(int i) const { return seen_to_die_[i]; }

 private:
  FjFrame* f_;
  int next_, depth_;
  bool restored_ = false;
  std::vector<Ref> saved_;
  std::vector<bool> seen_to_die_;
};

constexpr char kAgain[] = "sizes that data decides", kFixedSizes[] = "sizes that must be numbers",
               kCheckpoints[] = "torch.utils.checkpoint without a compiled backward pass",
               kDerivatives[] = "derivatives inside that the graph does not hold";

struct Captured {
  std::unique_ptr<Segment> segment;
  diag::Break reason;
  bool broke = false;
  bool worthwhile = false;  // it holds tensor operations
  long instructions = 0;
  long clean_instructions =
      0;                // of these, up to the last place where no other exception was being handled than at the start
  bool again = false;   // more is known now
  bool raises = false;  // what eager refuses because of casts that a graph in front of it would keep for itself
  bool raised_for_compiling = false;  // the program raised, and had been told that it is being compiled
  Ref loop;                           // the code of a loop that repeats too often, and where it begins
  int loop_at = 0;
  std::string state_problem;  // the state at the end cannot be rebuilt: try to end earlier
};

bool IsTupleOfNames(PyObject* o) {
  if (!PyTuple_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(o, i))) return false;
  return true;
}

// The state at the end of what was captured cannot be rebuilt there.
void StateProblem(FjFrame* frame, int next, Captured* out) {
  PyCodeObject* code = fj_code(frame);
  bytecode::Location at = bytecode::LocationOf(code, bytecode::Code::Of(code)->At(next).unit);
  diag::Break& b = out->reason;
  b.id = BreakId::kIteratorState;
  b.detail = out->state_problem;
  b.file = PyUnicode_AsUTF8(code->co_filename);
  b.function = PyUnicode_AsUTF8(code->co_qualname);
  b.line = std::max(0, at.line);
  b.column = std::max(0, at.column);
  b.end_column = at.end_line == at.line ? std::max(0, at.end_column) : 0;
}

// What was guessed is read after every run.
std::vector<std::pair<int, Guess>> KeepGuesses(Session& s, std::vector<TraceId>& outputs) {
  std::vector<std::pair<int, Guess>> kept;
  for (const Guess& g : s.guesses()) {
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

bool MixesInference(const Trace& t) {
  return std::any_of(t.calls.begin(), t.calls.end(),
                     [&](const Call& c) { return c.mode.inference != t.calls[0].mode.inference; });
}

// Floating-point errors must be known before compiled code writes to an argument, so it reads a large array twice.
// NumPy writes first and warns then: one cheap operation, or two where there are no threads, it does faster.
bool LeftToNumpy(const Trace& trace, const Graph& g, int ieee) {
  const size_t threads = runtime::ThreadPool::Get().num_threads();
  if (!ieee || trace.calls.size() + threads > 3 || g.writes.size() != 1 || !MayRaise(g, g.writes[0].value))
    return false;
  const std::vector<int64_t> hints = Hints(g);
  return g.nodes[g.writes[0].value].type.numel().Eval(hints) >= 4096 &&
         std::all_of(g.nodes.begin(), g.nodes.end(), [](const Node& n) { return Info(n.op).cost < 16; });
}

// Calls that NumPy makes itself take a microsecond more in a graph: that pays where there is enough besides to fuse.
bool MostlyNumpys(const Session& s, const Trace& trace, const Graph& g) {
  if (s.uses_torch || !s.uses_numpy || !diag::OptionOn("leave")) return false;
  const auto own = std::count_if(g.nodes.begin(), g.nodes.end(), [](const Node& n) { return n.op == Op::kExtern; });
  const auto views =
      std::count_if(trace.tensors.begin(), trace.tensors.end(), [](const TraceTensor& t) { return t.view_call >= 0; });
  return own > 0 && 2 * (static_cast<std::ptrdiff_t>(trace.calls.size()) - own - views) <= 3 * own;
}

// NumPy's functions under torch's default device run there, where code is made for all of them.
std::optional<Device> NumpyDevice(Session& s) {
  if (s.uses_torch || !tensor::TorchLoaded() || s.numpy_devices.size() != 1 ||
      !s.numpy_devices.begin()->starts_with("cuda"))
    return {};
  for (const Node& n : s.graph().nodes)
    if (n.op == Op::kExtern || std::any_of(n.strides.begin(), n.strides.end(),
                                           [&](shape::Int stride) { return stride.Eval(s.env().hints()) < 0; }))
      return {};
  return runtime::cuda::ParseDevice(*s.numpy_devices.begin());
}

// Can what tensors hold make a call of the framework raise?
bool MayFail(Session& s) {
  if (s.uses_numpy || !s.lowering().graph_unusable().empty()) return true;
  return std::any_of(s.graph().nodes.begin(), s.graph().nodes.end(), [](const Node& n) {
    return n.op == Op::kExtern || n.op == Op::kTake || n.op == Op::kGather || n.op == Op::kScatter;
  });
}

void Forget(Config& config, Session& s) {  // the graph that was just noted
  config.graphs.pop_back();
  config.op_count -= s.op_count;
  --config.graph_count;
}

// With derivatives inside: does gradient flow from the results to the program's inputs alone? A leaf made inside, or
// what hangs on one, is a result that has no graph here.
bool TrackedAsInEager(Session& s, const std::vector<TraceId>& outputs) {
  std::vector<TraceId> leaves;
  for (const auto& [t, level] : s.vmap.leaves)
    if (!level) leaves.push_back(t);
  for (TraceId t : outputs) {
    if (s.lowering().IsLeaf(t)) return false;
    if (!s.meta(t).requires_grad) continue;
    if (s.lowering().Depends(t, leaves) || s.lowering().IsFreed(t) ||
        !s.lowering().Depends(t, s.lowering().TrackedInputs()))
      return false;
  }
  return true;
}

bool AnyTracked(const Trace& trace) {
  auto tracked = [&](TraceId t) {
    const TraceTensor& x = trace.tensors[t];
    return x.input < 0 && (x.meta.requires_grad || trace.tensors[x.base].meta.requires_grad);
  };
  return std::any_of(trace.outputs.begin(), trace.outputs.end(), tracked);
}

std::unique_ptr<Segment> Build(Config& config, Session& s, CaptureSemantics& sem, FjFrame* frame,
                               const FrameImage& before, frame::Outcome outcome, int index, PyObject* result,
                               std::string* problem) {
  Recipe recipe(s);
  int nlocals = fj_nlocalsplus(frame), depth = fj_stack_depth(frame);
  std::vector<std::pair<int, int>> slots;
  std::vector<int> stack;
  int return_node = -1;
  bool returns = outcome == frame::Outcome::kReturned;
  // A segment drops what it drops at its end, but what is seen to die must do so in its place.
  PyObject** now = fj_localsplus(frame);
  for (int i = 0; i < before.size(); ++i) {
    bool kept = !before.SeenToDie(i);
    for (int j = 0; !kept && j < nlocals + depth; ++j)
      kept = now[j] && IsLazy(now[j]) && reinterpret_cast<Lazy*>(now[j])->value == before[i];
    if (!kept) *problem = "an object that is seen to die is dropped";
  }
  if (!problem->empty()) return nullptr;
  if (returns) {
    return_node = recipe.Add(result);
  } else {
    PyObject** p = fj_localsplus(frame);
    for (int i = 0; i < nlocals; ++i) {
      if (p[i] && s.root_cells.contains(p[i])) continue;
      if (p[i] && IsLazy(p[i]) && reinterpret_cast<Lazy*>(p[i])->value == before[i] &&
          reinterpret_cast<Lazy*>(p[i])->source == s.guards().Slot(i))
        continue;  // as it was
      if (!p[i] && !before[i]) continue;
      slots.emplace_back(i, p[i] ? recipe.Add(p[i]) : -1);
      if (p[i] && slots.back().second < 0) break;
    }
    for (int i = 0; i < depth && recipe.why().empty(); ++i)
      stack.push_back(p[nlocals + i] ? recipe.Add(p[nlocals + i]) : -1);
  }
  std::vector<Segment::Store> stores;
  for (auto& st : s.stores()) {
    Segment::Store x{recipe.Add(st.dict.get()), recipe.Add(st.key.get()), st.value ? recipe.Add(st.value.get()) : -1};
    stores.push_back(x);
  }
  std::vector<Segment::PendingCall> calls;
  for (auto& c : s.calls()) {
    Segment::PendingCall x{c.method, {}};
    for (auto& a : c.args) x.args.push_back(recipe.Add(a.get()));
    calls.push_back(std::move(x));
  }
  for (auto& c : s.cache_calls) {
    Segment::PendingCall x{c.call.method, {}, c.made};
    for (auto& a : c.call.args) x.args.push_back(recipe.Add(a.get()));
    calls.push_back(std::move(x));
  }
  for (auto& c : s.SwitchCalls()) {
    Segment::PendingCall x{c.method, {}};
    for (auto& a : c.args) x.args.push_back(recipe.Add(a.get()));
    calls.push_back(std::move(x));
  }
  std::vector<std::pair<int, int>> cells;
  for (auto& [cell, root] : s.root_cells) {
    PyObject* now = PyCell_GET(cell);
    if (now != root.before) cells.emplace_back(recipe.AddInput(s.guards().Slot(root.slot)), now ? recipe.Add(now) : -1);
  }
  for (TraceId t : recipe.outputs)
    if (s.lowering().IsHidden(t)) *problem = "a tensor of a custom function or of torch.vmap";
  if (!s.context_vars.empty()) *problem = "a ContextVar was set";
  if (!s.numpy_states.empty()) *problem = "numpy.errstate was entered";
  if (s.warning_scopes) *problem = "warnings.catch_warnings was entered";
  if (s.mode.inference != s.entry_mode.inference) *problem = "inference mode was entered or left";
  if (s.vmap.open()) *problem = "torch.vmap or a derivative was entered";
  if (s.default_devices.size() != 1) *problem = "a default device was set";
  if (!(s.mode.autocast == s.entry_mode.autocast) || s.autocast_depth != s.entry_mode.autocast.any())
    *problem = "autocast was entered or left";
  if (!recipe.why().empty()) *problem = recipe.why();
  if (!problem->empty()) return nullptr;
  if (s.lowering().differentiates() && !TrackedAsInEager(s, recipe.outputs)) {
    *problem = kDerivatives;
    return nullptr;
  }

  if (s.Reconsider(recipe.outputs)) {
    *problem = kAgain;
    return nullptr;
  }
  s.SeparateWrites();

  // Results that are inputs are handed through; the others are made by the runner.
  const std::optional<Device> gpu = NumpyDevice(s);
  const int ieee =
      s.uses_numpy && !gpu ? s.numpy_watch.value_or(tensor::NumpyWatch()) : 0;  // its error state is guarded
  auto guesses = KeepGuesses(s, recipe.outputs);
  auto made = s.lowering().Finish(recipe.outputs, ieee != 0);
  std::vector<tensor::OutputPlan> plan;
  if (gpu) surface::MoveTo(s.graph(), *gpu);
  for (auto& m : made) plan.push_back({static_cast<tensor::OutputPlan::Kind>(m.kind), m.index, m.calls});

  auto seg = std::make_unique<Segment>(std::move(recipe));
  seg->guesses = std::move(guesses);
  seg->guess_book = config.guesses;
  seg->registrations = s.registrations;
  seg->returns = returns;
  seg->return_node = return_node;
  seg->next = index;
  seg->depth = depth;
  seg->slots = std::move(slots);
  seg->stack = std::move(stack);
  seg->stores = std::move(stores);
  seg->calls = std::move(calls);
  seg->cells = std::move(cells);
  seg->instructions = sem.root_instructions();
  seg->grad_after = s.mode.grad == s.entry_mode.grad ? -1 : s.mode.grad;
  seg->num_tensor_inputs = static_cast<int>(s.input_sources().size());
  std::vector<const Source*> inputs = s.input_sources();
  for (int i = 0; i < seg->num_tensor_inputs; ++i)
    seg->dynamic_names.push_back(s.graph().nodes[s.graph().inputs[i]].attrs.name);
  inputs.insert(inputs.end(), seg->recipe.object_sources.begin(), seg->recipe.object_sources.end());
  seg->num_inputs = static_cast<int>(inputs.size());
  seg->num_symbols = static_cast<int>(s.env().num_symbols());
  if (s.uses_torch || gpu) s.guards().Add(guard::Row{guard::Kind::kTorchState});
  if (s.uses_numpy || s.numpy_entry_watch >= 0) s.guards().Add(guard::Row{guard::Kind::kNumpyState});
  if (s.trace().calls.size() && !s.graph().writes.empty())
    for (size_t i = 0; i < s.input_sources().size(); ++i)
      for (size_t j = i + 1; j < s.input_sources().size(); ++j) {
        bool written = false;
        for (auto& w : s.graph().writes) written |= w.input == static_cast<int>(i) || w.input == static_cast<int>(j);
        if (written) {
          guard::Row row{guard::Kind::kNotAliased, s.input_sources()[i], s.input_sources()[j]};
          s.guards().Add(std::move(row));
        }
      }
  s.trace().outputs = seg->recipe.outputs;
  s.trace().conditions = s.graph().conditions = s.DataConditions(seg->recipe.outputs);
  for (const DataSize& d : s.data_sizes())
    for (const shape::Guard& g : s.graph().conditions) {
      bool asked = false;
      for (shape::Int e : {g.lhs, g.rhs}) e.ForEachSymbol([&](uint32_t id) { asked |= id == d.symbol.symbol; });
      if (!asked) continue;
      seg->data_places.push_back({d.code, d.at, d.outermost && d.number});
      break;
    }
  const Trace& trace = *(seg->trace = std::make_shared<const Trace>(std::move(s.trace())));
  if (LeftToNumpy(trace, s.graph(), ieee)) {
    config.notes.push_back("a cheap operation on a large array in place: left to NumPy, which reads it once");
    diag::Log(diag::Channel::perf_, config.notes.back() + "  [" + PyUnicode_AsUTF8(fj_code(frame)->co_qualname) + "]");
    return nullptr;
  }
  auto constants = s.constants();
  const bool writes = !s.graph().writes.empty();

  if (!trace.calls.empty()) {
    constexpr size_t kGraphsShown = 1024;  // code that is made anew all the time never ends
    if (config.graphs.size() >= kGraphsShown) config.graphs.erase(config.graphs.begin());
    config.graphs.push_back(seg->trace);
    config.op_count += s.op_count;
    ++config.graph_count;
    std::string note;
    seg->left = returns && config.backend == "llvm" && MostlyNumpys(s, trace, s.graph());
    if (seg->left)
      note = "little besides what NumPy does itself: left to NumPy";
    else if (config.backend == "eager")
      note = "backend=\"eager\"";
    else if (MixesInference(trace))
      note = "calls in and out of inference mode: runs through the framework";
    else if (!s.lowering().graph_unusable().empty())
      note = s.lowering().graph_unusable() + ": runs through the framework";
    else if (std::string why = DeviceObstacle(s.graph()); !why.empty())
      note = why + ": runs through the framework";
    if (s.lowering().differentiates() && (!note.empty() || FindBackend(config.backend))) {
      Forget(config, s);
      *problem = kDerivatives;
      return nullptr;
    }
    if (note.empty() && !FindBackend(config.backend)) {
      try {
        CompileOptions options;
        options.cpu = diag::GetOption("cpu");
        options.verify = diag::OptionOn("verify");
        options.fuse = diag::OptionOn("fuse");
        options.watch |= ieee;
        const std::string graphs = diag::GetOption("cuda_graphs");
        options.gpu_graphs = graphs == "true"    ? GpuGraphs::kAlways
                             : graphs == "false" ? GpuGraphs::kNever
                                                 : GpuGraphs::kAuto;
        options.fuel = std::stoll(diag::GetOption("fuel"));
        std::string disabled = diag::GetOption("disabled_passes");
        for (size_t a = 0; a < disabled.size();) {
          size_t b = std::min(disabled.find(',', a), disabled.size());
          options.disabled_passes.push_back(disabled.substr(a, b - a));
          a = b + 1;
        }
        const double start = Now();
        s.graph().name = PyUnicode_AsUTF8(fj_code(frame)->co_qualname);
        if (diag::Enabled(diag::Channel::graph_)) diag::Log(diag::Channel::graph_, s.graph().str());
        bool interpret = config.backend == "interpreter";
        tensor::RunCheck check = seg->Check();
        if (!seg->guesses.empty()) check.writes = DeferWrites(&s.graph());
        if (s.lowering().differentiates() ? AnyTracked(trace) || s.lowering().WritesInputWithGradients()
                                          : WantsGrad(s, trace)) {
          seg->graph_runner =
              MakeTrainingRunner(s, trace, plan, constants, options, interpret, std::move(check), &seg->executable);
          seg->trace_runner = tensor::MakeTraceRunner(trace, constants);
        } else {
          if (diag::OptionOn("pack_weights")) options.weights = WeightsOf(trace, s.graph());
          for (auto& [input, output] : check.writes)
            if (!options.weights.empty()) options.weights[input] = false;
          seg->executable = interpret ? MakeInterpreter(s.graph(), ieee) : Compile(s.graph(), options);
          seg->graph_runner =
              tensor::MakeGraphRunner(seg->executable, s.graph(), trace, plan, constants, nullptr, std::move(check));
        }
        const CompileStats& st = seg->executable->stats();
        CompileEvent(frame, Now() - start, st);
        config.kernels.kernels += st.kernels;
        config.kernels.kernels_compiled += st.kernels_compiled;
        config.kernels.kernels_reused += st.kernels_reused;
        config.kernels.library_calls += st.library_calls;
        config.kernels.externs += st.externs;
      } catch (const autodiff::Undifferentiable& e) {
        const bool sizes = dynamic_cast<const autodiff::WantsFixedSizes*>(&e) && !s.options().dynamic_dims.empty();
        if (sizes || !s.lowering().checkpointed().empty() || s.lowering().differentiates()) {
          Forget(config, s);
          *problem = sizes ? kFixedSizes : s.lowering().differentiates() ? kDerivatives : kCheckpoints;
          return nullptr;
        }
        note = std::string("gradients are wanted and there is no compiled backward (") + e.what() +
               "): runs through the framework";
      } catch (const std::exception& e) {
        note =
            std::string("internal error of framejit (please report it): ") + e.what() + ": runs through the framework";
        diag::Warn("framejit: " + note);
        seg->graph_runner.reset();
        seg->trace_runner.reset();
      }
    }
    if (FindBackend(config.backend) && WantsGrad(s, trace) && note.empty())
      note = "gradients are wanted and backends get none: runs through the framework";
    if (PyObject* backend = FindBackend(config.backend); backend && note.empty()) {
      seg->backend_runner = BackendRunner::Make(backend, trace, constants, s.input_tensors());
      if (!seg->backend_runner) {
        *problem = "backend";
        return nullptr;
      }
    } else if (!seg->graph_runner) {
      seg->trace_runner = tensor::MakeTraceRunner(trace, constants);
      if (!note.empty()) {
        config.notes.push_back(note);
        FallbackEvent(frame, note);
        diag::Log(diag::Channel::perf_, note + "  [" + PyUnicode_AsUTF8(fj_code(frame)->co_qualname) + "]");
      }
    }
  }
  bool direct = !seg->graph_runner;
  seg->undo = tensor::PlanUndo(trace, direct, seg->backend_runner || !seg->guesses.empty() || MayFail(s));
  seg->float_ops = s.float_ops();
  seg->changes = seg->undo.random || writes;
  auto builder = s.TakeGuards();
  seg->guards = builder->Finish(s.env(), inputs);
  seg->recipe.Seal();
  return seg;
}

// Runs the frame's code under capture until it returns, breaks, or `stop_after` outermost instructions.
Captured CaptureOnce(Config& config, Place& place, FjFrame* frame, long stop_after) {
  Captured out;
  FrameImage before(frame);
  CaptureOptions options;
  options.dynamic = config.Dynamic();
  options.dynamic_dims = place.dynamic_dims;
  options.dynamic_ints = place.dynamic_ints;
  options.dynamic_floats = config.backend == "llvm" || config.backend == "eager";
  options.stop_after = stop_after;
  options.compiling = config.compiling;
  options.derivatives = !place.derivatives_in_python && (config.backend == "llvm" || config.backend == "interpreter");
  options.checkpoints = !place.checkpoints_in_python && (config.backend == "llvm" || config.backend == "interpreter");
  if (!config.fullgraph && !FindBackend(config.backend) && diag::OptionOn("guess"))
    options.guesses = config.guesses;  // a reset may come meanwhile
  Session s(frame, options);
  CaptureSemantics sem(s, config);
  // Whatever the outcome, the private objects die while the session still says that nothing may run: a generator
  // suspended in a `with` must not execute its `finally` for real.
  struct Cleanup {
    Session& s;
    CaptureSemantics& sem;
    FrameImage& before;
    tensor::NoCollection pause;  // a collection would run finalizers of strangers under capture
    ~Cleanup() {
      OverrideScope scope(&sem);
      s.MarkBroken();
      before.Restore();
      s.Abandon();
    }
  } cleanup{s, sem, before, {}};
  PyObject** p = fj_localsplus(frame);
  for (int i = 0; i < before.size(); ++i) {
    if (!p[i]) continue;
    // Exceptions being handled lie on the stack; the instructions that restore them put them into the thread as they
    // are. Nor may operands that the instructions themselves take apart be hidden: code, keywords.
    if (i >= fj_nlocalsplus(frame) && (PyExceptionInstance_Check(p[i]) || p[i] == Py_None || PyCode_Check(p[i]) ||
                                       IsTupleOfNames(p[i]) || PyDict_CheckExact(p[i]))) {
      Ref seen(s.FromOutside(p[i], s.guards().Slot(i)));
      if (!seen) return out;
      continue;
    }
    constexpr int kCellVariable = 0x40;  // CO_FAST_CELL; a local may hold some other cell
    const bool own_cell = PyCell_Check(p[i]) && i < fj_nlocalsplus(frame) - fj_code(frame)->co_nfreevars &&
                          PyBytes_AS_STRING(fj_code(frame)->co_localspluskinds)[i] & kCellVariable;
    PyObject* content = own_cell ? PyCell_GET(p[i]) : p[i];
    const Source* source = s.guards().Slot(i);
    if (own_cell) source = s.guards().Child(SourceKind::kCell, source);
    Ref stand_in(content ? NewLazy(&s, content, source) : nullptr);
    if (content && !stand_in) return out;
    if (stand_in) s.Keep(Py_NewRef(stand_in.get()));
    if (own_cell) {
      PyObject* lazy = stand_in.get();
      stand_in = Ref(s.MarkFresh(PyCell_New(lazy)));
      s.root_cells[stand_in.get()] = {i, lazy};
    }
    Py_SETREF(p[i], stand_in.release());
  }
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
  Ref result(raw);
  Ref handled_after(PyErr_GetHandledException());
  bool same_handled = handled.get() == handled_after.get();
  PyErr_SetHandledException(handled.get());
  out.instructions = sem.root_instructions();
  out.clean_instructions = sem.clean_instructions();
  bool failed = outcome == frame::Outcome::kRaised || outcome == frame::Outcome::kHandOver || s.broken();
  if (failed) {
    if (!s.broken()) {
      std::string what;
      if (outcome == frame::Outcome::kRaised && PyErr_Occurred()) {
        PyObject *t, *v, *tb;
        PyErr_Fetch(&t, &v, &tb);
        what = t ? reinterpret_cast<PyTypeObject*>(t)->tp_name : "";
        Ref text(v ? PyObject_Str(v) : nullptr);
        if (const char* c = text ? PyUnicode_AsUTF8(text.get()) : nullptr) what += std::string(": ") + c;
        PyErr_Clear();
        Py_XDECREF(t), Py_XDECREF(v), Py_XDECREF(tb);
        s.Break(BreakId::kException, what);
        out.raised_for_compiling = config.compiling && s.asked_compiling();
      } else {
        s.Break(BreakId::kInstruction);
      }
    }
    PyErr_Clear();
    out.broke = true;
    out.raises = s.mixes_casts;
    if (sem.loops().code()) out.loop = Borrow(reinterpret_cast<PyObject*>(sem.loops().code()));
    out.loop_at = sem.loops().at();
    out.reason = s.reason();
    // The failing instruction was counted by Before(): what stands is everything in front of it.
    out.instructions = std::max(0L, sem.root_instructions() - 1);
    return out;
  }
  out.worthwhile = s.op_count > 0;
  if (!out.worthwhile && outcome != frame::Outcome::kReturned) return out;
  if (s.HoldsSuspendedGenerator()) {
    out.state_problem = "a suspended generator";
  } else if (!same_handled) {
    out.state_problem = "an exception being handled";
    out.instructions = out.clean_instructions + 1;
  } else {
    SuspendScope off;
    out.segment = Build(config, s, sem, frame, before, outcome, index, result.get(), &out.state_problem);
  }
  if (out.state_problem == kFixedSizes) {
    place.fixed_sizes = true;
    place.dynamic_dims.clear();
  }
  place.checkpoints_in_python |= out.state_problem == kCheckpoints;
  place.derivatives_in_python |= out.state_problem == kDerivatives;
  for (const char* problem : {kAgain, kFixedSizes, kCheckpoints, kDerivatives})
    out.again |= out.state_problem == problem;
  if (!out.again && !out.state_problem.empty())
    StateProblem(frame, outcome == frame::Outcome::kReturned ? fj_next(frame) : index, &out);
  return out;
}

}  // namespace

void RememberBreak(Config& config, const diag::Break& reason) {
  for (auto& b : config.breaks)
    if (b.id == reason.id && b.file == reason.file && b.line == reason.line) return;
  config.breaks.push_back(reason);
  diag::Log(diag::Channel::breaks_, diag::Render(reason));
  BreakEvent(reason);
}

Segment* CaptureAt(Config& config, CodeState& code, Place& place, FjFrame* frame) {
  double start = Now();
  ++config.captures;
  std::vector<diag::Break> reasons;  // the break, then what makes the segment end before it; one of a kind
  long stop_after = -1;
  Captured c;
  config.guesses->taken.clear();
  for (int attempt = 0; attempt < 40; ++attempt) {
    c = CaptureOnce(config, place, frame, stop_after);
    if (PyErr_Occurred()) PyErr_Clear();
    if (diag::Enabled(diag::Channel::guards_))
      diag::Log(diag::Channel::guards_, "capture of " + std::string(PyUnicode_AsUTF8(fj_code(frame)->co_qualname)) +
                                            " from " + std::to_string(fj_next(frame)) + ": " +
                                            std::to_string(c.instructions) + " instructions, " +
                                            (c.segment ? "ok"
                                             : c.broke ? "break " + diag::Render(c.reason)
                                                       : "nothing: " + c.state_problem));
    if (c.again) continue;
    if (c.raised_for_compiling) {
      config.compiling = false;
      config.notes.push_back("is_compiling() is answered False: the program raised where it was True");
      diag::Log(diag::Channel::perf_, config.notes.back());
      continue;
    }
    if (c.raises) {
      RememberBreak(config, c.reason);
      code.skip = true;
      place.skip = std::numeric_limits<int>::max();
      return nullptr;
    }
    if (c.loop) {
      auto* looping = reinterpret_cast<PyCodeObject*>(c.loop.get());
      Cut(StateOf(config, looping), looping, c.loop_at);
      if (looping == fj_code(frame)) {
        if (reasons.empty()) reasons.push_back(c.reason);
        continue;
      }
    }
    if (c.segment) break;
    if (!c.broke && c.state_problem.empty()) break;  // nothing worth compiling
    if (std::none_of(reasons.begin(), reasons.end(), [&](auto& b) { return b.id == c.reason.id; }))
      reasons.push_back(c.reason);
    stop_after = c.broke ? c.instructions : c.instructions - 1;
    if (stop_after <= 0) break;
  }
  const double seconds = Now() - start;
  config.seconds += seconds;
  CaptureEvent(frame, seconds, c.instructions, c.segment.get());
  PyCodeObject* co = fj_code(frame);
  for (diag::Break& reason : reasons) {
    if (c.segment && c.worthwhile && reason.function == PyUnicode_AsUTF8(co->co_qualname))
      reason.first_line = PyCode_Addr2Line(co, 2 * fj_next(frame));
    RememberBreak(config, reason);
  }
  if (!c.segment) {
    place.skip = std::max(1L, !reasons.empty() && !c.broke ? stop_after : c.instructions);
    return nullptr;
  }
  if (!reasons.empty() && !c.worthwhile) {
    place.skip = std::max(1L, c.segment->instructions);
    return nullptr;
  }
  // Accepted only if it holds on its own frame.
  std::vector<PyObject*> inputs(c.segment->num_inputs + 1);
  std::vector<int64_t> symbols(c.segment->num_symbols + 1);
  if (!c.segment->guards->Check(fj_localsplus(frame), inputs.data(), symbols.data())) {
    std::string why = c.segment->guards->Explain(fj_localsplus(frame), fj_code(frame)->co_localsplusnames);
    diag::Log(diag::Channel::guards_, "guards do not hold on their own frame: " + why);
    diag::Break b;
    b.id = BreakId::kInternal;
    b.detail = "guards do not hold on their own frame: " + why;
    config.breaks.push_back(b);
    place.give_up = true;
    place.skip = 1;
    return nullptr;
  }
  if (diag::Enabled(diag::Channel::guards_))
    for (auto& line : c.segment->guards->Describe(fj_code(frame)->co_localsplusnames))
      diag::Log(diag::Channel::guards_, line);
  if (diag::Enabled(diag::Channel::guards_))
    for (const shape::Guard& g : c.segment->trace->conditions)
      diag::Log(diag::Channel::guards_, "data: " + g.str() + "  # " + g.where);
  c.segment->code = Borrow(reinterpret_cast<PyObject*>(co));
  c.segment->begins = bytecode::Code::Of(co)->At(fj_next(frame)).unit;
  place.segments.push_back(std::move(c.segment));
  return place.segments.back().get();
}

}  // namespace framejit::capture
