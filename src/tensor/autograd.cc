// Results of a segment's run are hung on its node, and what its backward pass will want is kept there.
#include "tensor/autograd.h"

#include <absl/container/fixed_array.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tensor/call_step.h"
#include "tensor/numpy_api.h"
#include "tensor/own_reference.h"
#include "tensor/segment_node.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

// A NumPy array is saved as a copy: nobody counts its versions.
PyObject* CopyOfArray(PyObject* o) {
  Ref copy(PyObject_CallMethod(Numpy()->module, "array", "O", o));
  return copy ? PyObject_CallMethod(Torch()->module, "from_numpy", "O", copy.get()) : nullptr;
}

// What a call made as a view of memory of its own is the program's as a tensor that views nothing, which may be
// written.
bool ViewsNothing(PyObject** made) {
  if (const TorchApi& t = *bound_torch; t.at.autograd >= 0 && !Field<void*>(ImplOf(*made), t.at.autograd)) return true;
  Ref view(PyObject_CallMethod(*made, "_is_view", nullptr));
  if (!view) return false;
  if (view.get() != Py_True) return true;
  PyObject* plain = PyObject_GetAttrString(*made, "data");
  if (plain) Py_SETREF(*made, plain);
  return plain;
}

// Inputs that were overwritten are from now on the outputs that they became; as_before: all inputs, with those as they
// were. It is false with an exception set.
bool BecomeResults(const Training& t, PyObject* const* given, PyObject* before, PyObject** made,
                   std::vector<PyObject*>* as_before) {
  if (!before) return PyErr_SetString(PyExc_RuntimeError, "framejit: an input could not be copied"), false;
  as_before->assign(given, given + t.wanted.size());
  for (const auto& [input, output] : t.overwritten) {
    (*as_before)[input] = PyList_GET_ITEM(before, 1 + input);
    if (!Ref(PyObject_CallMethod(given[input], "detach_", nullptr))) return false;
    Py_SETREF(made[output], Py_NewRef(given[input]));
  }
  return true;
}

}  // namespace

// Nodes for the later parts of the backward pass hang on each other by scalars that nobody sees. They lie where the
// graph's values do: that decides on which of its threads and streams the framework runs a node.
PyObject* SegmentHook::Link(PyObject* head, int part, PyObject* link, PyObject* const* inputs) {
  auto* s = NewState(shared_from_this(), part, head);
  if (!s) return nullptr;
  Ref state(reinterpret_cast<PyObject*>(s)), fresh(HiddenScalar("empty", t_.device));
  s->outputs = fresh ? PyTuple_Pack(1, fresh.get()) : nullptr;
  s->saved = PyTuple_New(0);
  s->opaque = PyTuple_New(0);
  PyObject_GC_Track(state.get());
  if (!s->outputs || !s->saved || !s->opaque) return nullptr;
  std::vector<PyObject*> call = {state.get()};
  if (link) call.push_back(link);
  for (int i : edges_[part]) call.push_back(inputs[i]);
  Ref result(PyObject_Vectorcall(ApplyNode(), call.data(), call.size(), nullptr));
  return result ? Py_NewRef(PyTuple_GET_ITEM(result.get(), 0)) : nullptr;
}

// Hangs a tensor on a node of its own that hands its gradient on, in place.
static Ref GiveNode(PyObject* tensor) {
  const TorchApi& t = *bound_torch;
  Impl impl = ImplOf(tensor);
  try {
    const TensorValue lifted = t.lift(&impl);
    ReleaseImpl(t, lifted.impl);
    if (lifted.impl == impl) return Ref::Borrow(tensor);
    PyErr_SetString(PyExc_SystemError, "framejit: a result was given another memory with its node");
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return Ref();
}

// [states of the generators or None, for each input a copy or None]; null: a replay needs neither.
PyObject* SegmentHook::Before(PyObject* const* inputs) {
  std::optional<ModeSwitch> mode;
  if (!t_.overwritten.empty()) mode.emplace().Set({true, false});  // such a copy leads gradients to what the input was
  const bool copies = std::find(t_.before.begin(), t_.before.end(), true) != t_.before.end();
  if (!t_.draws && !copies) return nullptr;
  Ref states(t_.draws ? Generators(t_.device) : Py_NewRef(Py_None));
  Ref all(states ? PyList_New(1 + t_.before.size()) : nullptr);
  for (size_t i = 0; all && i < t_.before.size(); ++i) {
    PyObject* copy = !t_.before[i]                                 ? Py_NewRef(Py_None)
                     : Classify(inputs[i]) > Class::kTorchSubclass ? CopyOfArray(inputs[i])
                                                                   : PyObject_CallMethod(inputs[i], "clone", nullptr);
    if (!copy) {
      all = Ref();
    } else {
      PyList_SET_ITEM(all.get(), 1 + i, copy);
    }
  }
  if (all) PyList_SET_ITEM(all.get(), 0, states.release());
  if (PyErr_Occurred()) PyErr_Clear();
  return all.release();
}

// An inference tensor has none.
static PyObject* VersionOf(PyObject* tensor) {
  PyObject* version = PyObject_GetAttr(tensor, Interned(kVersion));
  if (!version) PyErr_Clear();
  return version ? version : Py_NewRef(Py_None);
}

// Is a tensor without memory watched in the place of this result, or of this input, of which a copy of what it was is
// at hand?
bool SegmentHook::HasTwin(CallState* s, size_t i) const {
  if (!t_.versioned[i] || i < num_outputs()) return t_.versioned[i];
  i -= num_outputs();
  return t_.before[i] && PyTuple_GET_ITEM(s->versions, i) == Py_None;
}

// What these constants hold weakly (framejit._functions.holder), as a list.
static PyObject* OwnOf(const std::vector<Ref>& constants) {
  Ref all(PyList_New(0));
  for (const Ref& o : constants) {
    PyObject* dict = PyFunction_Check(o.get()) ? reinterpret_cast<PyFunctionObject*>(o.get())->func_dict : nullptr;
    PyObject* alive = dict ? PyDict_GetItem(dict, Interned("_framejit_alive")) : nullptr;
    Ref own(alive ? PyObject_CallNoArgs(alive) : nullptr);
    if (!all || (alive && (!own || PyList_Append(all.get(), own.get()) < 0))) return nullptr;
  }
  return all.release();
}

// What checkpoints have of the run's inputs, a tuple.
static PyObject* KeptOf(const Training::Checkpoints& checkpoints, PyObject* const* inputs) {
  PyObject* kept = PyTuple_New(static_cast<Py_ssize_t>(checkpoints.count));
  for (size_t i = 0; kept && i < checkpoints.count; ++i)
    PyTuple_SET_ITEM(kept, i, Py_NewRef(inputs[checkpoints.first + i]));
  return kept;
}

static PyObject* TupleOf(const std::vector<PyObject*>& all) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(all.size()));
  for (size_t i = 0; tuple && i < all.size(); ++i) PyTuple_SET_ITEM(tuple, i, Py_NewRef(all[i]));
  return tuple;
}

int SegmentHook::Attach(PyObject* const* given, PyObject** made, const int64_t* symbols, PyObject* before,
                        MakeResult result_of) {
  std::vector<PyObject*> as_before;
  if (!t_.overwritten.empty() && !BecomeResults(t_, given, before, made, &as_before)) return -1;
  PyObject* const* const inputs = as_before.empty() ? given : as_before.data();
  WatchTensors();
  PyObject* apply = ApplyNode();
  auto* s = apply ? NewState(shared_from_this(), 0, nullptr) : nullptr;
  if (!s) return -1;
  Ref state(reinterpret_cast<PyObject*>(s));
  s->symbols = new std::vector<int64_t>(symbols, symbols + t_.num_symbols);
  s->spent = new std::vector<bool>(t_.keepers.all.size());
  s->passes = new std::map<int64_t, Pass>();
  if (before && t_.draws) s->drawn = Py_NewRef(PyList_GET_ITEM(before, 0));
  size_t n = t_.differentiable.size(), num_inputs = t_.wanted.size();
  s->outputs = PyTuple_New(n);
  s->saved = PyTuple_New(t_.saved.size());
  if (!s->outputs || !s->saved || (t_.calls_own && !(s->own = OwnOf(t_.constants)))) return -1;
  std::vector<PyObject*> opaque, args = {nullptr, state.get()};
  std::vector<Ref> routed(n);  // results that are made of others, and go through another node
  for (size_t i = 0; i < n; ++i) {
    if (!ViewsNothing(&made[i])) return -1;
    PyObject* output = Py_NewRef(made[i]);
    if (IsRouted(i)) {
      routed[i] = Ref(std::exchange(output, PyObject_CallMethodNoArgs(made[i], Interned(kDetach))));
      if (!output) return -1;
    }
    PyTuple_SET_ITEM(s->outputs, PlaceOf(i), output);
    if (!t_.differentiable[i]) opaque.push_back(made[i]);
  }
  for (size_t i = 0; i < t_.saved.size(); ++i) {
    const autodiff::SavedValue& v = t_.saved[i];
    PyObject* kept = ReadAsItIs(v.input) ? Py_None : v.input >= 0 ? inputs[v.input] : made[v.output];
    // What the node itself hands out: a tensor that hangs on another node would hold this one for ever.
    if (v.input < 0 && static_cast<size_t>(v.output) < n) kept = PyTuple_GET_ITEM(s->outputs, PlaceOf(v.output));
    const bool array = v.input >= 0 && kept != Py_None && Classify(kept) > Class::kTorchSubclass;
    PyObject* own = array ? CopyOfArray(kept) : Py_NewRef(kept);
    const size_t place = v.input >= 0 ? n + v.input : v.output;
    const bool shown = v.input >= 0 || place < n;  // else nobody but the backward pass has it
    if (auto by = t_.got.find(place); shown && by != t_.got.end() && !array) {
      Py_SETREF(own, PyObject_CallMethodNoArgs(given[by->second], Interned(kDetach)));
      if (own && GiveData(own, kept) < 0) Py_CLEAR(own);
    }
    PyTuple_SET_ITEM(s->saved, i, own);
    if (!own) return -1;
  }
  if (!(s->opaque = TupleOf(opaque))) return -1;
  s->inputs = PyTuple_New(num_inputs);
  s->versions = PyTuple_New(num_inputs);
  if (!s->inputs || !s->versions) return -1;
  for (size_t i = 0; i < num_inputs; ++i) {
    const bool copy = before && t_.before[i];
    PyTuple_SET_ITEM(s->inputs, i, Py_NewRef(copy ? PyList_GET_ITEM(before, 1 + i) : inputs[i]));
    PyTuple_SET_ITEM(s->versions, i, copy ? Py_NewRef(Py_None) : VersionOf(inputs[i]));
  }
  if (t_.checkpoints && !(s->kept = KeptOf(*t_.checkpoints, given))) return -1;
  for (const auto& [input, times] : t_.rebound) {
    if (!s->rebound) s->rebound = new std::map<int, CallState::Rebound>();
    s->rebound->emplace(input, CallState::Rebound{Ref::Borrow(given[input]), times});
  }
  if (NoteVersions(s, inputs, made) < 0) return -1;
  PyObject_GC_Track(state.get());
  ModeSwitch mode;
  ModeState grad = ReadMode();
  grad.grad = true;
  mode.Set(grad);
  Ref link;
  for (int part = num_parts() - 1; part > 0; --part) {
    link = Ref(Link(state.get(), part, link.get(), inputs));
    if (!link) return -1;
  }
  if (link) args.push_back(link.get());
  std::vector<Ref> groups, nodes;
  for (size_t g = 0; g < t_.reached_by.size(); ++g) {
    groups.emplace_back(Link(state.get(), num_parts() + static_cast<int>(g), nullptr, inputs));
    nodes.emplace_back(groups[g] ? PyObject_GetAttrString(groups[g].get(), "grad_fn") : nullptr);
    if (!nodes[g]) return -1;
  }
  for (int i : edges_[0]) args.push_back(inputs[i]);
  if (edges_[0].empty()) {
    PyObject* node;
    args.push_back(Nobody(&node));
    if (!args.back()) return -1;
  }
  Ref result(PyObject_Vectorcall(apply, args.data() + 1, (args.size() - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!result) return -1;
  if (!PyTuple_Check(result.get()) || PyTuple_GET_SIZE(result.get()) != static_cast<Py_ssize_t>(n)) {
    PyErr_SetString(PyExc_SystemError, "framejit: autograd changed the number of results");
    return -1;
  }
  for (const Ref& node : nodes) {
    const size_t any = std::find(t_.differentiable.begin(), t_.differentiable.end(), true) - t_.differentiable.begin();
    Ref own(PyObject_GetAttr(node.get(), Interned(kState)));
    auto* of_group = reinterpret_cast<CallState*>(own.get());
    if (of_group) of_group->segment = PyObject_GetAttrString(PyTuple_GET_ITEM(result.get(), PlaceOf(any)), "grad_fn");
    if (!of_group || !of_group->segment) return -1;
  }
  return HangResults(state.get(), PySequence_Fast_ITEMS(result.get()), routed, groups, made, result_of);
}

// Results of which others are made: the tensor as it is now, without holding it.
int SegmentHook::Retained(CallState* s, size_t result, PyObject* tensor) {
  Ref weak = OwnReference(tensor), version(PyObject_GetAttr(tensor, Interned(kVersion)));
  if (!weak || !version) return -1;
  s->retained->emplace(static_cast<int>(result), CallState::Inner{std::move(weak), PyLong_AsLongLong(version.get())});
  return 0;
}

// outputs: what the segment's node handed out. Views get nodes of the framework's when what they are views
// of has its own, and what is made of them comes behind them.
int SegmentHook::HangResults(PyObject* state, PyObject* const* outputs, const std::vector<Ref>& routed,
                             const std::vector<Ref>& groups, PyObject** made, MakeResult result) {
  auto* s = reinterpret_cast<CallState*>(state);
  const size_t n = num_outputs();
  std::vector<size_t> order(num_results());  // of the program: what a result is made of comes first
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return t_.seen[a] < t_.seen[b]; });
  absl::FixedArray<PyObject*, 32> results(order.size(), nullptr);
  std::copy_n(made, n, results.begin());
  for (size_t i : order) {
    if (i >= n) {
      results[i] = result(t_.views[i - n].plan);
      if (!results[i] || WatchView(s, i, results[i]) < 0) return -1;
      continue;
    }
    PyObject* handed_out = outputs[PlaceOf(i)];
    Ref own = routed[i]    ? Route(state, i, routed[i].get(), handed_out, results.data(), groups)
              : IsAlone(i) ? GiveNode(handed_out)
                           : Ref::Borrow(handed_out);
    if (!own) return -1;
    Py_SETREF(made[i], own.release());
    results[i] = made[i];
    if ((HasInner(i) || t_.kept[i]) && Retained(s, i, made[i]) < 0) return -1;
  }
  return 0;
}

// The framework's rule: what a derivative reads must be as it was. Memory is not held for that.
int SegmentHook::NoteVersions(CallState* s, PyObject* const* inputs, PyObject* const* made) {
  static PyObject* nothing = nullptr;
  std::vector<PyObject*> watched;
  for (size_t i = 0; i < t_.versioned.size(); ++i)
    if (HasTwin(s, i)) watched.push_back(i < num_outputs() ? made[i] : inputs[i - num_outputs()]);
  if (watched.empty()) return 0;
  if (!nothing) nothing = HiddenScalar("empty", Device{});
  s->versioned = PyTuple_New(static_cast<Py_ssize_t>(2 * watched.size()));
  if (!nothing || !s->versioned) return -1;
  Py_ssize_t at = 0;
  for (PyObject* tensor : watched) {
    if (Classify(tensor) > Class::kTorchSubclass) {  // an array has no version
      for (int k = 0; k < 2; ++k) PyTuple_SET_ITEM(s->versioned, at++, Py_NewRef(Py_None));
      continue;
    }
    PyObject* twin = PyObject_CallMethodNoArgs(tensor, Interned(kDetach));
    if (!twin) return -1;
    PyTuple_SET_ITEM(s->versioned, at++, twin);
    Ref own(t_.device.kind == DeviceKind::kCuda ? PyObject_CallMethod(tensor, "new_empty", "i", 0)
                                                : Py_NewRef(nothing));
    if (!own || GiveData(twin, own.get()) < 0) return -1;
    PyObject* version = VersionOf(twin);
    PyTuple_SET_ITEM(s->versioned, at++, version);
  }
  return 0;
}

PyTypeObject* DataParallelType() {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch.nn.parallel.distributed");
  PyObject* type = module ? PyDict_GetItemString(PyModule_GetDict(module), "DistributedDataParallel") : nullptr;
  return type && PyType_Check(type) ? reinterpret_cast<PyTypeObject*>(type) : nullptr;
}

std::vector<int64_t> BucketBytes(PyObject* module) {
  SavedError saved;
  std::vector<int64_t> caps;
  auto add = [&](PyObject* o) {
    const double bytes = o ? PyFloat_AsDouble(o) : -1;
    PyErr_Clear();
    if (bytes > 0) caps.push_back(static_cast<int64_t>(bytes));
  };
  Ref config(PyObject_GetAttrString(module, "_bucket_config"));  // of newer versions
  Ref each(config ? PyObject_GetAttrString(config.get(), "per_bucket_bytes_caps") : nullptr);
  for (Py_ssize_t i = 0; each && PyTuple_Check(each.get()) && i < PyTuple_GET_SIZE(each.get()); ++i)
    add(PyTuple_GET_ITEM(each.get(), i));
  if (!caps.empty()) return caps;
  add(Ref(config ? PyObject_GetAttrString(config.get(), "first_bucket_bytes_cap") : nullptr).get());
  add(Ref(PyObject_GetAttrString(module, "bucket_bytes_cap")).get());
  return caps;
}

std::shared_ptr<OutputHook> MakeTrainingHook(Training training) {
  return std::make_shared<SegmentHook>(std::move(training));
}

}  // namespace framejit::tensor
