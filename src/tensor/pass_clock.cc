// See the header.
#include "tensor/pass_clock.h"

#include <chrono>
#include <utility>
#include <vector>

#include "tensor/segment_node.h"
#include "tensor/tensor.h"

namespace framejit::tensor {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The pass that the engine is at on this thread.
struct Clock {
  int64_t pass = -1;
  Measured call;  // Whose clock is running?
  double since = 0;
  std::vector<Measured> reached;
};
thread_local Clock clock;

void Stop() {
  if (!clock.call) return;
  clock.call->seconds += Now() - clock.since;
  clock.call = nullptr;
}

PyObject* Ended(PyObject*, PyObject*) {
  Stop();
  for (const Measured& call : std::exchange(clock.reached, {}))
    if (auto done = std::exchange(call->done, nullptr)) done(call->seconds);
  clock.pass = -1;
  Py_RETURN_NONE;
}

bool Follow(int64_t pass) {
  static PyMethodDef ended = {"ended", Ended, METH_NOARGS, nullptr};
  static PyObject* const at_end = ResolveCallee("torch.autograd.Variable._execution_engine.queue_callback");
  Ref callback(PyCFunction_New(&ended, nullptr));
  Ref queued(at_end && callback ? PyObject_CallOneArg(at_end, callback.get()) : nullptr);
  if (!queued) return PyErr_Clear(), false;
  clock = {};  // a pass that ended with an exception tells nothing
  clock.pass = pass;
  return true;
}

constexpr const char* kCapsule = "framejit.measured";

Ref Capsule(const Measured& call) {
  return Ref(PyCapsule_New(new Measured(call), kCapsule,
                           [](PyObject* o) { delete static_cast<Measured*>(PyCapsule_GetPointer(o, kCapsule)); }));
}

PyObject* AtResult(PyObject* self, PyObject*) {
  if (auto* call = static_cast<Measured*>(PyCapsule_GetPointer(self, kCapsule))) PassComesTo(*call);
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* AtArgument(PyObject* self, PyObject*) {
  auto* call = static_cast<Measured*>(PyCapsule_GetPointer(self, kCapsule));
  if (!call) return nullptr;
  if (clock.call == *call) Stop();
  Py_RETURN_NONE;
}

PyMethodDef at_result = {"at_result", AtResult, METH_O, nullptr};
PyMethodDef at_argument = {"at_argument", AtArgument, METH_O, nullptr};

bool IsSegments(PyObject* node) {
  return PyObject_HasAttr(node, Interned(kState));
}

// Does it do no more than to hand its gradient on to a segment's? -1: an exception.
int LeadsToSegments(PyObject* node) {
  Ref next(PyObject_GetAttrString(node, "next_functions"));
  if (!next || !PyTuple_Check(next.get())) return -1;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(next.get()); ++i)
    if (IsSegments(PyTuple_GET_ITEM(PyTuple_GET_ITEM(next.get(), i), 0))) return 1;
  return 0;
}

// Calls `hook` whenever the node of this tensor is about to run. A segment's node tells by itself, and late, as the
// engine has prepared its gradients by then: that of a result is watched like those of calls as written, so that
// both cost the same, that of an argument is not. Nor are nodes in front of a segment's, whose hooks lead it another
// way. Returns how many nodes of either kind there are (0 or 1); -1: an exception.
int WatchTensor(PyObject* tensor, PyObject* hook, bool result) {
  Ref node(PyObject_GetAttrString(tensor, "grad_fn"));
  if (!node || node.get() == Py_None) return node ? 0 : -1;
  if (const int other = IsSegments(node.get()) ? !result : LeadsToSegments(node.get())) return other;
  Ref handle(PyObject_CallMethod(node.get(), "register_prehook", "O", hook));
  return handle ? 1 : -1;
}

// Likewise of all tensors in lists, tuples and dicts.
int WatchAll(PyObject* o, PyObject* hook, bool result, int depth) {
  if (Classify(o) != Class::kNone) return IsPlainTorch(Classify(o)) ? WatchTensor(o, hook, result) : 0;
  if (!depth) return 0;
  int nodes = 0;
  auto add = [&](PyObject* item) {
    const int more = WatchAll(item, hook, result, depth - 1);
    nodes = more < 0 ? more : nodes + more;
    return more >= 0;
  };
  if (PyTuple_Check(o) || PyList_Check(o)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      if (!add(PySequence_Fast_GET_ITEM(o, i))) break;
  } else if (PyDict_Check(o)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(o, &at, &key, &value);)
      if (!add(value)) break;
  }
  return nodes;
}

}  // namespace

void PassComesTo(const Measured& call) {
  Stop();
  if (!call || !call->done) return;
  const int64_t pass = NumberOfPass();
  if (pass < 0 || (pass != clock.pass && !Follow(pass))) return;
  if (!std::exchange(call->reached, true)) clock.reached.push_back(call);
  clock.call = call;
  clock.since = Now();
}

bool WatchPass(const Measured& call, PyObject* result, PyObject* const* args, Py_ssize_t n) {
  constexpr int kDepth = 3;
  Ref capsule = Capsule(call);
  Ref begins(capsule ? PyCFunction_New(&at_result, capsule.get()) : nullptr);
  Ref ends(begins ? PyCFunction_New(&at_argument, capsule.get()) : nullptr);
  if (!ends || WatchAll(result, begins.get(), true, kDepth) <= 0) return false;
  for (Py_ssize_t i = 0; i < n; ++i)
    if (WatchAll(args[i], ends.get(), false, 1) < 0) return false;
  return true;
}

}  // namespace framejit::tensor
