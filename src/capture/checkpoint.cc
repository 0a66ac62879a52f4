// torch.utils.checkpoint.checkpoint: the function is captured like any other, and what the graph
// makes of it is marked, to be made again in the backward pass instead of being kept (src/autodiff/partition.cc). What
// would be seen to happen twice in eager, then and in the backward pass, is not modelled.
#include "capture/checkpoint.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "capture/callees.h"
#include "capture/effects.h"
#include "capture/gradients.h"
#include "capture/override.h"
#include "capture/own_attributes.h"
#include "capture/proxy.h"
#include "capture/reach.h"
#include "capture/semantics.h"
#include "guard/source.h"

namespace framejit::capture {
namespace {

// The dict of torch.utils.checkpoint. It is null before somebody has imported that.
PyObject* Parts() {
  static PyObject* module = nullptr;
  if (!module) {
    PyObject* loaded = PyDict_GetItemString(PyImport_GetModuleDict(), callees::kCheckpoint);
    if (!loaded) return nullptr;
    module = Py_NewRef(PyModule_GetDict(loaded));
  }
  return module;
}

// Gives an object of that module, if somebody has imported it. It is borrowed.
PyObject* Part(const char* name) {
  PyObject* parts = Parts();
  return parts ? PyDict_GetItemString(parts, name) : nullptr;
}

// What waits for the end of the segment.
std::vector<PyObject*> Pending(Session& s) {
  std::vector<PyObject*> all;
  for (const PendingStore& p : s.pending().stores()) all.insert(all.end(), {p.dict.get(), p.key.get(), p.value.get()});
  for (const PendingCall& c : s.pending().calls()) all.push_back(c.method.get());
  for (const PendingCell& c : s.pending().cells()) all.insert(all.end(), {c.cell.get(), c.value.get()});
  for (PyObject* list : s.pending().lists()) {
    const Ref now(PySequence_List(s.Find(list)->written));
    all.insert(all.end(), {list, nullptr});
    for (Py_ssize_t i = 0; now && i < PyList_GET_SIZE(now.get()); ++i) all.push_back(PyList_GET_ITEM(now.get(), i));
  }
  EachAttribute(s.pending(), [&](TraceId, PyObject*, PyObject* value) { all.push_back(value); });
  for (auto& [cell, root] : s.root_cells) all.push_back(PyCell_GET(cell));
  return all;
}

// functools.partial(create_selective_checkpoint_contexts, ...): what is kept is another matter than what is computed.
bool SelectsAlone(Session& s, PyObject* context) {
  if (!OfType(context, CType::kPartial)) return false;
  if (s.IsOutside(context)) s.guards().Is(s.SourceOf(context), context);
  Ref function(PyObject_GetAttrString(context, "func"));
  if (!function) PyErr_Clear();
  return function && function.get() == Part("create_selective_checkpoint_contexts");
}

// Results of torch's reentrant form where it records nothing: they want no gradients, and are none of what it was
// given.
bool NoneTracked(Session& s, PyObject* o, const std::vector<PyObject*>& given) {
  if (!PyTuple_CheckExact(o))
    return std::find(given.begin(), given.end(), o) == given.end() && !(IsTensor(o) && WantsGradient(s, o));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (!NoneTracked(s, PyTuple_GET_ITEM(o, i), given)) return false;
  return true;
}

// What torch warns of: that `use_reentrant` was not given, or (`given`) that no input wants gradients. False: it cannot
// wait.
bool Warns(Session& s, bool given) {
  PyObject* const told = ToldByTorch(given ? "of_checkpoint_without_gradients" : "of_checkpoint_without_form");
  if (!told || told == Py_None) return told;
  const auto part = [&](int i) { return PyTuple_GET_ITEM(told, i); };
  return WarnLater(s, part(0), PyExc_UserWarning, part(1), part(2), static_cast<int>(PyLong_AsLong(part(3))));
}

// The results of torch's reentrant form all want gradients, and are none of what it was given.
bool AllTracked(Session& s, PyObject* o, const std::vector<PyObject*>& given) {
  if (IsTensor(o)) return WantsGradient(s, o) && std::find(given.begin(), given.end(), o) == given.end();
  if (!PyTuple_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
    if (!AllTracked(s, PyTuple_GET_ITEM(o, i), given)) return false;
  return true;
}

}  // namespace

static thread_local int open_checkpoints = 0;

bool InCheckpoint() {
  return open_checkpoints > 0;
}

bool IsCheckpoint(PyObject* function) {
  static PyObject* const name = PyUnicode_InternFromString("checkpoint");
  PyObject* parts = tensor::TorchLoaded() ? Parts() : nullptr;
  return parts && function == PyDict_GetItemWithError(parts, name);
}

PyObject* CaptureSemantics::CallCheckpoint(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto refuse = [&](const std::string& why) {
    return s_.Break(BreakId::kAutogradCall, std::string(callees::kCheckpoint) + ": " + why);
  };
  if (!s_.options().checkpoints) return refuse("its gradients are not compiled here");
  if (nargs < 1) return refuse("an unknown form");
  std::vector<PyObject*> given(args + 1, args + nargs), names;
  // The arguments say whether use_reentrant was given, and whether the random generator is put back for the second
  // time.
  bool plain = false, reentrant = false, chosen = false, restores = true;
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject *name = PyTuple_GET_ITEM(kwnames, i), *value = args[nargs + i];
    auto is = [&](const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; };
    if (is("use_reentrant")) {
      plain = value == Py_False;
      reentrant = value == Py_True;
      chosen = value != Py_None;
    } else if (is("preserve_rng_state")) {
      restores = value == Py_True;
    } else if (is("context_fn") ? value != Part("noop_context_fn") && !SelectsAlone(s_, value)
                                : is("debug") && value != Py_False) {
      return refuse(std::string("with ") + PyUnicode_AsUTF8(name));
    } else if (!is("context_fn") && !is("debug") && !is("determinism_check") && !is("early_stop")) {
      names.push_back(name);
      given.push_back(value);
    }
  }
  reentrant = reentrant || !chosen;
  if (!plain && !(reentrant && names.empty())) return refuse("without use_reentrant");
  if (!chosen && !Warns(s_, false)) return refuse("a warning that cannot wait");
  Ref kept(PyTuple_New(names.size()));
  for (size_t i = 0; kept && i < names.size(); ++i) PyTuple_SET_ITEM(kept.get(), i, Py_NewRef(names[i]));
  if (!kept) return nullptr;
  PyObject* keywords = names.empty() ? nullptr : kept.get();
  const size_t positional = given.size() - names.size();
  const auto wants = [&](PyObject* o) { return IsTensor(o) && WantsGradient(s_, o); };
  const bool without = reentrant && std::none_of(given.begin(), given.end(), wants);
  if (without && !Warns(s_, true)) return refuse("a warning that cannot wait");
  if (without || !s_.modes.now.grad || s_.modes.now.inference) {
    absl::Cleanup back = [&, grad = s_.modes.now.grad] { s_.modes.now.grad = grad; };
    s_.modes.now.grad &= !without;  // so torch calls the function there
    Ref result(Call(args[0], given.data(), positional, keywords));
    if (result && reentrant && !NoneTracked(s_, result.get(), given))
      return refuse("a result that is an input or wants gradients");
    return result.release();
  }
  const std::vector<PyObject*> before = Pending(s_);
  const size_t calls = s_.trace().calls.size(), drawn = s_.draws.size();
  const size_t sizes = s_.data_sizes().all().size();
  std::vector<PyObject*> roots = {args[0]};
  roots.insert(roots.end(), given.begin(), given.end());
  const Reach objects = ReachFrom(s_, roots);
  std::vector<TraceId> wanting;
  for (PyObject* o : given)
    if (reentrant && wants(o)) wanting.push_back(AsTensor(o)->id);
  surface::Lowering::Reentrant region = s_.lowering().BeginReentrant(wanting);
  s_.lowering().BeginCheckpoint();
  ++open_checkpoints;
  Ref result(Call(args[0], given.data(), positional, keywords));
  --open_checkpoints;
  std::string why;
  try {
    s_.lowering().EndCheckpoint();
  } catch (const surface::Decline& d) {
    why = d.what();
  }
  if (!result) return nullptr;
  if (!why.empty()) return refuse(why);
  if (Pending(s_) != before) return refuse("something outside is written");
  if (objects.hidden || !(ReachFrom(s_, roots) == objects)) return refuse("an object is changed");
  if (s_.data_sizes().all().size() != sizes) return refuse("data decides a size");
  if (s_.draws.size() != drawn) return refuse("other random numbers the second time");
  for (size_t i = calls; i < s_.trace().calls.size(); ++i)
    if (!restores && Draws(s_.trace().calls[i].callee)) return refuse("other random numbers the second time");
  if (reentrant && !AllTracked(s_, result.get(), given)) return refuse("a result without gradients");
  if (reentrant) s_.lowering().EndReentrant(std::move(region));
  return result.release();
}

}  // namespace framejit::capture
