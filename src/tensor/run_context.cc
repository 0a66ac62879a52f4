#include "tensor/run_context.h"

#include <algorithm>
#include <utility>

#include "graph/arguments.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"

namespace framejit::tensor {
namespace {

// An array of one element as the scalar that it stands for.
Ref ScalarOf(PyObject* o) {
  if (Classify(o) != Class::kNumpyArray || AsArray(o)->nd) return Ref(Py_NewRef(o));
  return Ref(Numpy()->make_scalar(AsArray(o)->data, AsArray(o)->descr, nullptr));
}

}  // namespace

constinit thread_local bool gave_up_gil = false;

GiveUpGil::GiveUpGil() : state_(PyEval_SaveThread()), before_(std::exchange(gave_up_gil, true)) {}

GiveUpGil::~GiveUpGil() {
  gave_up_gil = before_;
  PyEval_RestoreThread(state_);
}

void HoldGil::Take() {
  gave_up_gil = false;
  state_ = PyGILState_Ensure();
}

void HoldGil::Release() {
  PyGILState_Release(state_);
  gave_up_gil = true;
}

PyObject* InvokeExtern(const RunContext* run, const Call& call, PyObject* const* operands) {
  const CallStep* step = nullptr;
  if (run && run->steps) {
    auto at = run->steps->find(&call);
    if (at != run->steps->end()) step = &at->second;
  }
  CallStep made;
  if (!step) {  // a pass rewrote the node: no objects can be among its arguments then
    if (!made.Init(call, {}, [](TraceId position) { return static_cast<int>(position); })) return nullptr;
    step = &made;
  }
  int64_t* symbols = run ? run->symbols : nullptr;
  std::vector<PyObject*> all;  // operands, if some of them are scalars
  std::vector<Ref> scalars;
  bool ok = true;
  EachArg(call, [&](const Arg& a) {
    if (!a.is(Arg::Kind::kTensor) || !a.b || !ok) return;
    if (all.empty()) {
      TraceId most = 0;
      EachArg(call, [&](const Arg& x) {
        if (x.is(Arg::Kind::kTensor)) most = std::max(most, x.t);
      });
      all.assign(operands, operands + most + 1);
    }
    scalars.push_back(ScalarOf(operands[a.t]));
    ok = scalars.back().get();
    all[a.t] = scalars.back().get();
  });
  return ok ? step->Invoke(all.empty() ? operands : all.data(), symbols) : nullptr;
}

bool FlattenResults(PyObject* value, std::vector<PyObject*>* out) {
  if (Classify(value) != Class::kNone) {
    out->push_back(value);
    return true;
  }
  if (!PyTuple_Check(value) && !PyList_Check(value)) return true;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
    if (!FlattenResults(PySequence_Fast_GET_ITEM(value, i), out)) return false;
  }
  return true;
}

}  // namespace framejit::tensor
