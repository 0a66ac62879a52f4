// This file runs an Executable on Python tensors. The hot path, once per call of a compiled function, is: fill buffers
// from the inputs' fields, run, wrap what came out. Small graphs keep the GIL. Long ones give it up and hold references
// to all that they read.
#include <absl/container/fixed_array.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "graph/arguments.h"
#include "graph/effects.h"
#include "graph/opaque.h"
#include "tensor/autograd.h"
#include "tensor/cupy_api.h"
#include "tensor/import.h"
#include "tensor/numpy_api.h"
#include "tensor/run_context.h"
#include "tensor/segment_node.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"
#include "tensor/torch_host.h"
#include "tensor/undo.h"

namespace framejit::tensor {

namespace {

// In NumPy's words.
std::string FloatingPointText(int status) {
  std::string text;
  for (auto [bit, words] : {std::pair{kDivide, "divide by zero"},
                            {kOverflow, "overflow"},
                            {kUnderflow, "underflow"},
                            {kInvalid, "invalid value"}})
    if (status & bit) text.append(text.empty() ? "" : ", ").append(words);
  return text;
}

constexpr int kMaxRank = 16;
constexpr size_t kFew = 32;                     // Up to so many inputs and outputs lie on the stack.
constexpr int64_t kReleaseGilFrom = 256 << 10;  // bytes of input

// How often the program's calls that write to the memory of this base count as writes to it, and how often they do not,
// since they write through tensor.data, which has a version of its own, or are batch norms, whose statistics torch
// writes without counting (those of an instance norm it counts).
std::pair<int, int> CountWrites(const Trace& trace, TraceId base) {
  static const Callee data("torch.Tensor.data.__get__");
  const auto through_data = [&](TraceId t) {
    while (trace.tensors[t].view_call >= 0) {
      const Call& view = trace.calls[trace.tensors[t].view_call];
      if (view.callee == data) return true;
      if (view.args.empty() || !view.args[0].is(Arg::Kind::kTensor)) return false;
      t = view.args[0].t;
    }
    return false;
  };
  int counted = 0, silent = 0;
  for (const Call& c : trace.calls) {
    for (const auto& [name, a] : c.kwargs)
      if (name == "out" && a.is(Arg::Kind::kTensor) && trace.tensors[a.t].base == base) ++counted;
    if (c.callee.Has(kWritesInSilence) && c.callee.last() != "instance_norm")
      for (size_t i = 1; i < c.args.size(); ++i)
        if (c.args[i].is(Arg::Kind::kTensor) && trace.tensors[c.args[i].t].base == base) ++silent;
    if (!ChangesFirst(c.callee) || c.args.empty() || !c.args[0].is(Arg::Kind::kTensor)) continue;
    if (trace.tensors[c.args[0].t].base == base) ++(through_data(c.args[0].t) ? silent : counted);
  }
  return {counted, silent};
}

// Of an input that is written: at least once, but where all writes are silent.
int WritesTo(const Trace& trace, int input) {
  const auto [counted, silent] = CountWrites(trace, trace.inputs[input]);
  return counted || silent ? counted : 1;
}

class Runner : public GraphRunner {
 public:
  bool Init(std::shared_ptr<Executable> exe, const Graph& g, const Trace& trace, std::vector<OutputPlan> plans,
            const std::vector<PyObject*>& constants, std::shared_ptr<OutputHook> hook, RunCheck check) {
    hook_ = std::move(hook);
    check_ = std::move(check);
    exe_ = std::move(exe);
    num_inputs_ = g.inputs.size();
    num_graph_outputs_ = g.outputs.size();
    if (HasOpaque(g))
      for (ValueId v : g.inputs) opaque_.push_back(g.nodes[v].type);
    for (const TraceTensor& t : trace.tensors) torch_ |= t.meta.framework == Framework::kTorch;
    bool gpu = false, cupy = false;
    for (const Node& n : g.nodes) gpu |= n.type.device.kind == DeviceKind::kCuda;
    for (const TraceTensor& t : trace.tensors) cupy |= t.meta.device.kind == DeviceKind::kCuda;
    torch_ |= gpu && !cupy;  // NumPy's arrays, computed with there
    for (TraceId t : trace.inputs) array_input_.push_back(trace.tensors[t].meta.framework == Framework::kNumpy);
    for (size_t i = 0; i < trace.inputs.size(); ++i)
      if (trace.tensors[trace.inputs[i]].meta.lazy()) lazy_.push_back(i);
    array_input_.resize(num_inputs_);
    if (torch_) {
      const TorchApi* t = Torch();
      if (!t || !t->delete_tensor || !t->empty_strided || !t->get_data_ptr || !t->new_tensor_handle ||
          !(t->wrap_move || t->wrap_value || t->wrap_copy)) {
        PyErr_SetString(PyExc_RuntimeError, "framejit: this torch lacks the functions to make tensors natively");
        return false;
      }
    }
    with_host_ = torch_ ? WithTorchHost : gpu ? WithCupyHost : WithNumpyHost;
    for (size_t i = 0; i < g.symbol_sources.size(); ++i) {
      auto& s = g.symbol_sources[i];
      if (s.dim >= 0 || s.input < 0) continue;
      if (scalars_.size() <= static_cast<size_t>(s.input)) scalars_.resize(s.input + 1, 0);
      scalars_[s.input] = static_cast<int>(i);
    }
    for (const Write& w : g.writes) {
      written_.push_back(w.input);
      bumps_.push_back(WritesTo(trace, w.input));
    }
    for (const auto& [input, output] : check_.writes) counted_.push_back(WritesTo(trace, input));
    inference_ = torch_ && !trace.calls.empty() && trace.calls[0].mode.inference;
    for (const Node& n : g.nodes) {
      if (n.op != Op::kExtern || !n.attrs.call || n.attrs.call->callee == kTangent) continue;  // stand-ins never run
      has_externs_ = true;
      calls_.push_back(n.attrs.call);                                     // keeps the address, which is the key
      const auto [step, fresh] = steps_.try_emplace(n.attrs.call.get());  // a view that is read again has the same call
      if (fresh &&
          !step->second.Init(*n.attrs.call, constants, [](TraceId position) { return static_cast<int>(position); }))
        return false;
    }
    plans_ = std::move(plans);
    InitArrays(trace);
    return InitReplays(trace, constants);
  }

  [[gnu::hot]] RunEnd Run(PyObject* const* inputs, int64_t* symbols, PyObject** outputs) override {
    return Run(inputs, symbols, outputs, nullptr);
  }
  RunEnd RunTaking(std::vector<Ref>* inputs, int64_t* symbols, PyObject** outputs) override {
    std::vector<PyObject*> feed;
    for (const Ref& r : *inputs) feed.push_back(r.get());
    return Run(feed.data(), symbols, outputs, written_.empty() && !hook_ ? inputs : nullptr);
  }

 private:
  [[gnu::hot]] RunEnd Run(PyObject* const* inputs, int64_t* symbols, PyObject** outputs, std::vector<Ref>* taken) {
    std::optional<ModeSwitch> mode;  // the segment may have entered inference mode itself
    if (inference_) mode.emplace().Set({false, true});
    absl::FixedArray<Buffer, kFew> in(num_inputs_), out(num_graph_outputs_);
    absl::FixedArray<int64_t, 64> strides(any_arrays_ ? num_inputs_ * kMaxRank : 0);
    int64_t bytes = 0;
    for (size_t i = 0; i < num_inputs_; ++i) {
      Buffer* b = &in[i];
      if (!opaque_.empty() && IsOpaque(opaque_[i].device)) {
        FillOpaque(inputs[i], opaque_[i], b);
        continue;
      }
      if (!(array_input_[i] ? FillNumpy(inputs[i], b, strides.data() + i * kMaxRank, &bytes)
                            : FillTorch(inputs[i], b, &bytes)))
        return RunEnd::kInternal;
      if (torch_ && array_input_[i]) b->handle = nullptr;  // torch's host takes the memory
    }
    std::vector<Ref> resolved;
    for (size_t i : lazy_) {
      resolved.emplace_back(Resolved(inputs[i]));
      if (!resolved.back()) return EndOfCall();
      if (!FillTorch(resolved.back().get(), &in[i], &bytes)) return RunEnd::kInternal;
    }
    for (size_t w = 0; w < written_.size(); ++w)
      if (!bumps_[w] && !array_input_[written_[w]]) KeepContent(inputs[written_[w]]);
    for (int w : written_)  // a copy-on-write storage (torch._lazy_clone) becomes its own when it is asked for a
                            // It has a writable address.
      if (!array_input_[w]) bound_torch->get_data_ptr(&in[w].handle, &in[w].data);
    absl::FixedArray<int64_t, 16> scalars(scalars_.size());
    for (size_t i = 0; i < scalars_.size(); ++i) scalars[i] = symbols[scalars_[i]];

    std::optional<ArrayOutputs> arrays;
    if (!wants_array_.empty())
      arrays.emplace(ArrayOutputs{out.data(), &wants_array_, std::vector<Ref>(num_graph_outputs_), {}});
    const Ref before(hook_ ? hook_->Before(inputs) : nullptr);
    const bool release_gil = bytes >= kReleaseGilFrom && !has_externs_;
    RunContext context{&steps_, symbols, taken, arrays ? &*arrays : nullptr};
    if (RunEnd end = RunExecutable(inputs, in, scalars, out, release_gil, context); end != RunEnd::kOk) return end;

    // From here on the writes that the executable does are done; what can still fail is making Python objects.
    absl::FixedArray<PyObject*, kFew> made(num_graph_outputs_);
    RunEnd end = RunEnd::kOk;
    for (size_t i = 0; i < num_graph_outputs_; ++i) {
      made[i] = Wrap(out[i], i, arrays ? &*arrays : nullptr);
      if (!made[i]) end = EndOfCall();
    }
    const auto ok = [&] { return end == RunEnd::kOk; };
    for (const auto& [i, times] : versions_)
      for (int n = 0; ok() && n < times; ++n) BumpVersion(made[i]);
    for (size_t w = 0; w < written_.size(); ++w) {
      if (array_input_[written_[w]]) continue;
      PyObject* input = inputs[written_[w]];
      for (int n = 0; n < bumps_[w]; ++n) BumpVersion(input);
      if (!bumps_[w] && !Ref(PyObject_GetAttrString(input, "data"))) PyErr_Clear();  // tells who watches weights
    }
    absl::FixedArray<Ref, kFew> shared(num_shared_);
    auto output = [&](size_t n) {
      const OutputPlan& p = plans_[n];
      return p.kind == OutputPlan::kGraphOutput ? Py_NewRef(made[p.index])
             : p.kind == OutputPlan::kInput     ? Py_NewRef(inputs[p.index])
                                            : Replay(replays_.at(n), p, inputs, made.data(), symbols, shared.data());
    };
    for (size_t k = 0; ok() && k < check_.outputs.size(); ++k) {
      Ref value(output(check_.outputs[k]));
      end = value ? check_.accept(k, value.get()) : EndOfCall();
    }
    for (size_t w = 0; ok() && w < check_.writes.size(); ++w) {
      const auto [input, output] = check_.writes[w];
      if (!Overwrite(inputs[input], made[output], counted_[w] > 0)) end = RunEnd::kRaised;
      for (int n = 1; ok() && !array_input_[input] && n < counted_[w]; ++n) BumpVersion(inputs[input]);
    }
    if (!check_.outputs.empty()) std::fill(shared.begin(), shared.end(), Ref());  // views of what has no node yet
    std::fill_n(outputs, plans_.size(), nullptr);
    const auto early = [&](int n) { return outputs[n] = output(n); };
    if (ok() && hook_ && hook_->Attach(inputs, made.data(), symbols, before.get(), early) < 0) {
      // The framework does not save a tensor of inference mode, say: the program is told where it asks for that.
      const bool refused = check_.writes.empty() && PyErr_ExceptionMatches(PyExc_RuntimeError);
      end = refused ? EndOfCall() : RunEnd::kRaised;
    }
    for (size_t n = 0; ok() && n < plans_.size(); ++n) {
      if (!outputs[n]) outputs[n] = output(n);
      if (!outputs[n]) end = EndOfCall();
    }
    if (!ok()) {
      for (size_t i = 0; i < plans_.size(); ++i) Py_CLEAR(outputs[i]);
      if (!written_.empty()) end = RunEnd::kRaised;
    }
    for (size_t i = 0; i < num_graph_outputs_; ++i) Py_XDECREF(made[i]);
    return end;
  }

  struct ReplayPlan {
    std::vector<CallStep> steps;
    std::vector<std::pair<int, int>> inputs;  // slot, graph input
    int base_slot = -1;                       // slot of the graph output
    int result = 0;
    int num_slots = 0;
    // By step, which of its results other outputs are made of, too, or are: slot, number among all such.
    std::vector<std::vector<std::pair<int, int>>> shared;
  };

  // NumPy's results are arrays, or, where the program saw one, scalars.
  void InitArrays(const Trace& trace) {
    output_.assign(num_graph_outputs_, torch_ ? Made::kTensor : Made::kArray);
    for (size_t i = 0; i < plans_.size() && i < trace.outputs.size(); ++i) {
      const OutputPlan& p = plans_[i];
      if (p.kind == OutputPlan::kInput || p.index < 0) continue;
      const TraceId base = trace.tensors[trace.outputs[i]].base;
      const TensorMeta& m = trace.tensors[base].meta;
      if (m.framework == Framework::kNumpy) output_[p.index] = m.is_scalar ? Made::kScalar : Made::kArray;
      const int writes = m.framework == Framework::kTorch ? CountWrites(trace, base).first : 0;
      if (writes) versions_[p.index] = writes;
    }
    if (torch_ && std::count(output_.begin(), output_.end(), Made::kTensor) < static_cast<long>(output_.size()))
      for (Made m : output_) wants_array_.push_back(m != Made::kTensor);
    any_arrays_ = !torch_ || std::find(array_input_.begin(), array_input_.end(), true) != array_input_.end();
  }

  bool InitReplays(const Trace& trace, const std::vector<PyObject*>& constants) {
    std::unordered_map<int, int> uses;  // by call
    for (const OutputPlan& p : plans_)
      for (int c : p.calls) ++uses[c];
    std::unordered_map<TraceId, int> number;
    for (size_t i = 0; i < plans_.size(); ++i) {
      const OutputPlan& p = plans_[i];
      if (p.kind != OutputPlan::kReplay) continue;
      ReplayPlan& r = replays_[i];
      std::unordered_map<TraceId, int> slots;
      auto slot_of = [&](TraceId id) {
        auto [at, fresh] = slots.emplace(id, r.num_slots);
        if (fresh) ++r.num_slots;
        return at->second;
      };
      std::unordered_map<TraceId, bool> made;
      for (int c : p.calls) {
        const Call& call = trace.calls.at(c);
        auto need = [&](TraceId id) {
          if (made.count(id)) return;
          made[id] = true;
          int input = -1;
          for (const TraceTensor& t : trace.tensors) {
            if (t.id == id) input = t.input;
          }
          if (input >= 0)
            r.inputs.emplace_back(slot_of(id), input);
          else
            r.base_slot = slot_of(id);  // the only thing that is neither made here nor an input
        };
        EachTensor(call, need);
        for (TraceId id : call.results) made[id] = true;
        r.steps.emplace_back();
        if (!r.steps.back().Init(call, constants, slot_of)) return false;
        r.shared.emplace_back();
        for (TraceId id : call.results)
          if (uses[c] > 1) r.shared.back().emplace_back(slot_of(id), number.emplace(id, number.size()).first->second);
      }
      r.result = slot_of(trace.outputs.at(i));
    }
    num_shared_ = number.size();
    return true;
  }

  // A sparse or quantised tensor, which the host alone looks at.
  static void FillOpaque(PyObject* o, const TensorType& type, Buffer* b) {
    const TorchDims d = DimsOf(*bound_torch, ImplOf(o));
    b->handle = ImplOf(o);
    b->sizes = d.sizes;
    b->strides = d.strides;
    b->rank = static_cast<int32_t>(d.rank);
    b->dtype = type.dtype;
    b->device = type.device;
  }

  bool FillTorch(PyObject* o, Buffer* b, int64_t* bytes) {
    const TorchApi& t = *bound_torch;
    if (t.at.all()) [[likely]] {
      Impl impl = ImplOf(o);
      TorchDims d = DimsOf(t, impl);
      b->dtype = *FromScalarType(Field<uint16_t>(impl, t.at.dtype));
      int64_t item = DTypeSize(b->dtype), numel = Field<int64_t>(impl, t.at.numel);
      char* data = Field<char*>(Field<void*>(impl, t.at.storage), t.at.storage_data);
      b->data = data ? data + Field<int64_t>(impl, t.at.offset) * item : nullptr;
      b->handle = impl;
      b->sizes = d.sizes;
      b->strides = d.strides;
      b->rank = static_cast<int32_t>(d.rank);
      const int8_t* device = &Field<int8_t>(impl, t.at.device);
      if (device[0]) b->device = Device{device[0] == 1 ? DeviceKind::kCuda : DeviceKind::kMeta, device[1]};
      if (!device[0]) *bytes += numel * item;  // On a GPU a run only launches, which is short.
      return true;
    }
    static thread_local std::vector<std::unique_ptr<Meta>>
        slow;  // keeps sizes alive until this thread's next 1024 inputs
    if (slow.size() > 1024) slow.erase(slow.begin(), slow.begin() + 512);
    slow.push_back(std::make_unique<Meta>());
    return FillMeta(o, slow.back().get(), b, bytes);
  }

  bool FillMeta(PyObject* o, Meta* m, Buffer* b, int64_t* bytes) {
    const char* why = "";
    if (!ReadMeta(o, m, &why)) {
      PyErr_Format(PyExc_RuntimeError, "framejit: input cannot be read: %s", why);
      return false;
    }
    b->data = m->data;
    b->handle = m->handle;
    b->sizes = m->sizes;
    b->strides = m->strides;
    b->rank = m->rank;
    b->dtype = m->dtype;
    b->device = m->device;
    *bytes += m->nbytes_extent;
    return true;
  }

  bool FillNumpy(PyObject* o, Buffer* b, int64_t* strides, int64_t* bytes) {
    if (bound_cupy && Py_TYPE(o) == bound_cupy->array) {
      const CupyFields f = FieldsOf(*bound_cupy, o);
      b->dtype = *FromTypeNum(reinterpret_cast<const NumpyDescr*>(f.dtype)->type_num);
      b->device = Device{DeviceKind::kCuda, static_cast<int16_t>(f.device)};
      b->data = f.address;
      b->handle = o;
      b->rank = static_cast<int32_t>(f.shape->size());
      b->sizes = f.shape->data();
      b->strides = strides;
      const int shift = __builtin_ctz(DTypeSize(b->dtype));
      for (int i = 0; i < b->rank; ++i) strides[i] = (*f.strides)[i] >> shift;
      return true;  // only launches: short
    }
    if (Py_TYPE(o) != bound_numpy->array) {
      auto d = ScalarDType(*bound_numpy, Py_TYPE(o));
      if (!d) {
        PyErr_SetString(PyExc_RuntimeError, "framejit: input is no NumPy array or scalar");
        return false;
      }
      b->dtype = *d;
      b->data = reinterpret_cast<char*>(o) + sizeof(PyObject);
      b->handle = o;
      b->sizes = b->strides = strides;
      return true;
    }
    const NumpyArray* a = AsArray(o);
    b->dtype = *FromTypeNum(reinterpret_cast<const NumpyDescr*>(a->descr)->type_num);
    b->data = a->data;
    b->handle = o;
    b->rank = a->nd;
    b->sizes = reinterpret_cast<const int64_t*>(a->dims);
    b->strides = strides;
    int shift = __builtin_ctz(DTypeSize(b->dtype));
    int64_t n = DTypeSize(b->dtype);
    for (int i = 0; i < a->nd; ++i) {
      strides[i] = a->strides[i] >> shift;
      n *= a->dims[i];
    }
    *bytes += n;
    return true;
  }

  [[gnu::hot]] RunEnd RunExecutable(PyObject* const* inputs, std::span<const Buffer> in,
                                    std::span<const int64_t> scalars, std::span<Buffer> out, bool release_gil,
                                    RunContext& context) {
    const std::vector<Ref>* taken = context.taken;
    // Other threads may let go of them meanwhile.
    const size_t kept = (release_gil || has_externs_) && !taken ? num_inputs_ : 0;
    for (size_t i = 0; i < kept; ++i) Py_INCREF(inputs[i]);
    std::string failure;
    PyObject* type = PyExc_RuntimeError;
    RunEnd end = RunEnd::kOk;
    bool torchs = false;  // an error of that name
    try {
      std::optional<GiveUpGil> without;
      if (release_gil) without.emplace();
      with_host_(context, [&](Host& host) { exe_->Run(host, in, scalars, out); });
    } catch (const ExternError&) {
      end = RunEnd::kRefused;
    } catch (const ConditionMissed&) {
      end = RunEnd::kCondition;
    } catch (const StatusRaised& s) {  // the framework says it better
      end = s.status & kBadIndex ? RunEnd::kRefused : RunEnd::kTold;
      failure = s.status & kBadIndex ? "an index is out of range" : FloatingPointText(s.status);
    } catch (const DeviceMemoryError& e) {
      end = RunEnd::kMemory;
      torchs = true;
      failure = e.what();
    } catch (const std::bad_alloc&) {
      end = RunEnd::kMemory;
      type = PyExc_MemoryError;
      failure = "no memory for a result";
    } catch (const std::out_of_range& e) {  // of the interpreter
      end = RunEnd::kRefused;
      failure = e.what();
    } catch (const std::exception& e) {
      end = RunEnd::kInternal;
      failure = e.what();
    }
    for (size_t i = 0; i < kept; ++i) Py_DECREF(inputs[i]);
    if (end == RunEnd::kRefused && failure.empty()) return EndOfCall();
    if (!failure.empty()) {
      Ref error(torchs ? PyObject_GetAttrString(bound_torch->module, "OutOfMemoryError") : nullptr);
      if (!error) PyErr_Clear();
      PyErr_SetString(error ? error.get() : type, ("framejit: " + failure).c_str());
    }
    return end;
  }

  // Is `a`, which a call has made, the array of the memory of `b`?
  static bool IsThat(const NumpyArray& a, const NumpyArray& b) {
    if (a.nd != b.nd || a.descr != b.descr || !std::equal(a.dims, a.dims + a.nd, b.dims)) return false;
    const bool empty = std::find(a.dims, a.dims + a.nd, 0) != a.dims + a.nd;
    return a.nd && (empty || (a.data == b.data && LieAlike(a, b)));
  }
  static bool LieAlike(const NumpyArray& a, const NumpyArray& b) {
    for (int d = 0; d < a.nd; ++d)
      if (a.dims[d] > 1 && a.strides[d] != b.strides[d]) return false;
    return true;
  }

  PyObject* Wrap(const Buffer& b, size_t output, ArrayOutputs* arrays) {
    PyObject* array = arrays ? arrays->made[output].release() : nullptr;
    PyObject* o = array ? array : torch_ ? WrapTorch(*bound_torch, b.handle) : static_cast<PyObject*>(b.handle);
    if (torch_ && !array && output_[output] != Made::kTensor) {  // a call has made it
      Ref tensor(o);
      Ref view(o ? PyObject_CallMethod(o, "numpy", nullptr) : nullptr);
      for (const Ref& made : arrays&& view ? arrays->called : std::vector<Ref>())
        if (IsThat(*AsArray(made.get()), *AsArray(view.get()))) return Py_NewRef(made.get());
      o = view ? PyObject_CallMethod(view.get(), "copy", "s", "K") : nullptr;
      if (o && !LieAlike(*AsArray(o), *AsArray(view.get())))  // a column of what np.nonzero makes: a view in NumPy, too
        Py_SETREF(o, PyObject_CallMethod(view.get(), "view", nullptr));
    }
    if (!o || output_[output] != Made::kScalar || Py_TYPE(o) != bound_numpy->array) return o;
    PyObject* s = bound_numpy->make_scalar(AsArray(o)->data, AsArray(o)->descr, nullptr);
    Py_DECREF(o);
    return s;
  }

  void BumpVersion(PyObject* o) {
    const TorchApi& t = *bound_torch;
    if (t.at.key_set >= 0 && t.inplace_key && !(Field<uint64_t>(ImplOf(o), t.at.key_set) & t.inplace_key))
      return;  // inference
    if (t.bump_version) return t.bump_version(reinterpret_cast<char*>(o) + sizeof(PyObject));
    SavedError saved;
    Ref graph(Import("torch.autograd.graph"));
    Ref r(graph ? PyObject_CallMethod(graph.get(), "increment_version", "O", o) : nullptr);
    PyErr_Clear();
  }

  // A call is made once for all outputs that it leads to: views of one object know it as their base.
  PyObject* Replay(const ReplayPlan& r, const OutputPlan& p, PyObject* const* inputs, PyObject* const* made,
                   const int64_t* symbols, Ref* shared) {
    absl::FixedArray<PyObject*, 16> slots(r.num_slots, nullptr);
    for (auto [slot, input] : r.inputs) slots[slot] = Py_NewRef(inputs[input]);
    if (r.base_slot >= 0) slots[r.base_slot] = Py_NewRef(made[p.index]);
    bool ok = true;
    {
      std::optional<ModeSwitch> modes;
      if (torch_) modes.emplace();
      for (size_t i = 0; ok && i < r.steps.size(); ++i) {
        const auto& results = r.shared[i];
        if (!results.empty() && shared[results[0].second]) {
          for (auto [slot, number] : results) slots[slot] = Py_XNewRef(shared[number].get());
          continue;
        }
        if (modes) modes->Set(r.steps[i].mode);
        ok = r.steps[i].Run(slots.data(), symbols) == 0;
        for (auto [slot, number] : results) shared[number] = Ref::Borrow(slots[slot]);
      }
    }
    PyObject* result = ok ? Py_XNewRef(slots[r.result]) : nullptr;
    if (ok && !result) PyErr_SetString(PyExc_SystemError, "framejit: a replayed view was never made");
    for (int i = 0; i < r.num_slots; ++i) Py_XDECREF(slots[i]);
    return result;
  }

  std::shared_ptr<Executable> exe_;
  std::shared_ptr<OutputHook> hook_;  // null: nobody wants gradients
  RunCheck check_;
  void (*with_host_)(RunContext&, UseHost) = nullptr;
  size_t num_inputs_ = 0, num_graph_outputs_ = 0;
  bool torch_ = false, has_externs_ = false;
  bool inference_ = false;    // all calls were made in inference mode
  std::vector<int> scalars_;  // by scalar input: symbol
  std::vector<int> written_;
  std::map<int, int> versions_;  // graph outputs that the program has written: how often
  std::vector<int> bumps_;       // by those: how often the program writes it
  std::vector<int> counted_;     // by check_.writes: how many of them its version tells of
  enum class Made : uint8_t { kTensor, kArray, kScalar };
  std::vector<Made> output_;
  std::vector<bool> array_input_;
  std::vector<TensorType> opaque_;  // of all inputs, if there are sparse or quantised tensors
  std::vector<size_t> lazy_;        // inputs that are conjugate views: a run gets what they say
  std::vector<bool> wants_array_;   // by output; empty: torch makes all, or none
  bool any_arrays_ = false;
  std::vector<std::shared_ptr<const Call>> calls_;
  std::unordered_map<const Call*, CallStep> steps_;
  std::vector<OutputPlan> plans_;
  std::map<size_t, ReplayPlan> replays_;  // by plan
  size_t num_shared_ = 0;                 // views that several of them need
};

}  // namespace

std::unique_ptr<GraphRunner> MakeGraphRunner(std::shared_ptr<Executable> exe, const Graph& graph, const Trace& trace,
                                             std::vector<OutputPlan> outputs, const std::vector<PyObject*>& constants,
                                             std::shared_ptr<OutputHook> hook, RunCheck check) {
  auto r = std::make_unique<Runner>();
  if (!r->Init(std::move(exe), graph, trace, std::move(outputs), constants, std::move(hook), std::move(check)))
    throw std::runtime_error(TakeErrorText());
  return r;
}

}  // namespace framejit::tensor
