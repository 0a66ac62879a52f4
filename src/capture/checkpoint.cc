// torch.utils.checkpoint.checkpoint (use_reentrant=False): the function is captured like any other, and what the graph
// makes of it is marked, to be made again in the backward pass instead of being kept (src/autodiff/partition.cc). What
// would be seen to happen twice in eager, then and in the backward pass, is not modelled.
#include "capture/callees.h"
#include "capture/override.h"
#include "capture/reach.h"
#include "capture/semantics.h"

namespace framejit::capture {
namespace {

// Of the module torch.utils.checkpoint, if somebody has imported it; borrowed.
PyObject* Part(const char* name) {
  static PyObject* module = nullptr;
  if (!module) {
    PyObject* loaded = PyDict_GetItemString(PyImport_GetModuleDict(), callees::kCheckpoint);
    if (!loaded) return nullptr;
    module = Py_NewRef(PyModule_GetDict(loaded));
  }
  return PyDict_GetItemString(module, name);
}

// What waits for the end of the segment.
std::vector<PyObject*> Pending(Session& s) {
  std::vector<PyObject*> all;
  for (const PendingStore& p : s.pending().stores()) all.insert(all.end(), {p.dict.get(), p.key.get(), p.value.get()});
  for (const PendingCall& c : s.pending().calls()) all.push_back(c.method.get());
  for (const PendingCell& c : s.pending().cells()) all.insert(all.end(), {c.cell.get(), c.value.get()});
  for (PyObject* list : s.pending().lists()) {
    PyObject* now = s.Find(list)->written;
    all.insert(all.end(), {list, nullptr});
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(now); ++i) all.push_back(PyList_GET_ITEM(now, i));
  }
  for (auto& [id, own] : s.pending().attributes)
    for (auto& [name, value] : own) all.push_back(value.get());
  for (auto& [cell, root] : s.root_cells) all.push_back(PyCell_GET(cell));
  return all;
}

}  // namespace

bool IsCheckpoint(PyObject* function) {
  return tensor::TorchLoaded() && function == Part("checkpoint");
}

PyObject* CaptureSemantics::CallCheckpoint(PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  auto refuse = [&](const std::string& why) {
    return s_.Break(BreakId::kAutogradCall, std::string(callees::kCheckpoint) + ": " + why);
  };
  if (!s_.options().checkpoints) return refuse("its gradients are not compiled here");
  if (nargs < 1) return refuse("an unknown form");
  std::vector<PyObject*> given(args + 1, args + nargs), names;
  bool plain = false;  // use_reentrant=False was said
  for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i) {
    PyObject *name = PyTuple_GET_ITEM(kwnames, i), *value = args[nargs + i];
    auto is = [&](const char* text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; };
    if (is("use_reentrant")) {
      plain = value == Py_False;
    } else if (is("context_fn") ? value != Part("noop_context_fn")
               : is("debug")    ? value != Py_False
                                : is("preserve_rng_state") && value != Py_True) {
      return refuse(std::string("with ") + PyUnicode_AsUTF8(name));
    } else if (!is("context_fn") && !is("debug") && !is("preserve_rng_state") && !is("determinism_check") &&
               !is("early_stop")) {
      names.push_back(name);
      given.push_back(value);
    }
  }
  if (!plain) return refuse("with use_reentrant=True");
  Ref kept(PyTuple_New(names.size()));
  for (size_t i = 0; kept && i < names.size(); ++i) PyTuple_SET_ITEM(kept.get(), i, Py_NewRef(names[i]));
  if (!kept) return nullptr;
  PyObject* keywords = names.empty() ? nullptr : kept.get();
  const size_t positional = given.size() - names.size();
  if (!s_.modes.now.grad || s_.modes.now.inference) return Call(args[0], given.data(), positional, keywords);
  const std::vector<PyObject*> before = Pending(s_);
  const size_t sizes = s_.data_sizes().all().size();
  std::vector<PyObject*> roots = {args[0]};
  roots.insert(roots.end(), given.begin(), given.end());
  const Reach objects = ReachFrom(s_, roots);
  s_.lowering().BeginCheckpoint();
  Ref result(Call(args[0], given.data(), positional, keywords));
  std::string why;
  try {
    s_.lowering().EndCheckpoint();
  } catch (const surface::Decline& d) {
    why = d.what();
  }
  if (!result) return nullptr;
  if (!why.empty()) return refuse(why);
  if (Pending(s_) != before) return refuse("something outside is written");
  if (!(ReachFrom(s_, roots) == objects)) return refuse("an object is changed");
  if (s_.data_sizes().all().size() != sizes) return refuse("data decides a size");
  return result.release();
}

}  // namespace framejit::capture
