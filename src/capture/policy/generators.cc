#include "capture/policy/generators.h"

#include <absl/container/inlined_vector.h>

#include "bytecode/code.h"
#include "capture/meter.h"
#include "capture/now.h"
#include "capture/outcomes.h"
#include "capture/override.h"
#include "capture/policy/policy.h"
#include "capture/policy/timing.h"
#include "frame/driver.h"
#include "tensor/own_reference.h"

namespace framejit::capture {
namespace {

struct Made {
  std::shared_ptr<Compiled> maker;
  Ref death;  // a weak reference, which takes this entry out
};

// By the frame that lies in the generator.
std::unordered_map<FjFrame*, Made>& Living() {
  static auto* living = new std::unordered_map<FjFrame*, Made>;
  return *living;
}

PyObject* Died(PyObject* frame, PyObject*) {
  const auto at = Living().find(static_cast<FjFrame*>(PyLong_AsVoidPtr(frame)));
  if (at != Living().end()) {
    const Made made = std::move(at->second);  // its end may run code that makes others
    Living().erase(at);
    frame::LetGoOfHook();
  }
  Py_RETURN_NONE;
}

PyMethodDef died = {"died", Died, METH_O, nullptr};

}  // namespace

PyObject* Followed(PyObject* generator, const std::shared_ptr<Compiled>& maker) {
  if (!PyGen_CheckExact(generator) && !PyCoro_CheckExact(generator) && !PyAsyncGen_CheckExact(generator))
    return generator;
  FjFrame* frame = fj_frame_of(generator);
  Ref made(generator), key(PyLong_FromVoidPtr(frame));
  Ref callback(key ? PyCFunction_New(&died, key.get()) : nullptr);
  Ref death(callback ? tensor::OwnReference(generator, callback.get()) : Ref());
  if (!death) return nullptr;
  Living()[frame] = {maker, std::move(death)};
  frame::KeepHook();
  return made.release();
}

std::shared_ptr<Compiled> MakerOf(FjFrame* frame) {
  if (Living().empty() || !fj_is_suspended_generator(frame)) return nullptr;
  const auto at = Living().find(frame);
  return at == Living().end() ? nullptr : at->second.maker;
}

static PyObject* AsWritten(Compiled& compiled, PyThreadState* ts, FjFrame* frame) {
  const Meter meter(compiled, nullptr);
  const SuspendScope off;
  compiled.outcomes->Add(diag::RunBy::kPython);
  return fj_continue(ts, frame, 0);
}

// As Resumed, where nothing has been found.
static bool ResumedInVain(Compiled& compiled, PyThreadState* ts, FjFrame* frame, PyObject* const* values, Py_ssize_t n,
                          PyObject** result) {
  const std::shared_ptr<Timing> timing = compiled.timing;
  if (GetStance() != Stance::kDefault || !timing->VainFrom(fj_next(frame))) return false;
  if (timing->Unasked(values, n)) {
    *result = AsWritten(compiled, ts, frame);
    return true;
  }
  if (!timing->InVain(values, n)) return false;
  timing->Seen(values, n);
  const double start = Now();
  *result = AsWritten(compiled, ts, frame);
  timing->RanInPython(Now() - start);
  return true;
}

bool Resumed(const std::shared_ptr<Compiled>& compiled, PyThreadState* ts, FjFrame* frame,
             absl::FunctionRef<bool()> wants, absl::FunctionRef<PyObject*()> drive, PyObject** result) {
  const InUse use;
  absl::InlinedVector<PyObject*, 32> values;  // as the arguments of a call
  for (int i = 0; i < fj_nlocalsplus(frame) + fj_stack_depth(frame); ++i)
    if (PyObject* value = fj_localsplus(frame)[i]) values.push_back(value);
  const auto n = static_cast<Py_ssize_t>(values.size());
  if (ResumedInVain(*compiled, ts, frame, values.data(), n, result)) return true;
  const int at = fj_next(frame);
  const Timing::Turn turn = compiled->timing->Begin(*compiled, values.data(), n, at);
  if (turn.python) {
    *result = AsWritten(*compiled, ts, frame);
  } else {
    Retry retry;
    const double start = Now();
    {
      const Meter meter(*compiled, compiled->Known(CodeOf(frame)));
      const ActiveScope on(compiled);
      if (!wants()) {
        if (turn.timed) compiled->timing->Ended(*compiled, turn, nullptr, 0, nullptr);
        return false;
      }
      const bool before = std::exchange(*compiled->as_calls, turn.calls);
      *result = drive();
      *compiled->as_calls = before;
    }
    compiled->timing->RanInFrames(*compiled, Now() - start, at);
    *result = retry.Finish(*result);
  }
  if (turn.timed) compiled->timing->Ended(*compiled, turn, nullptr, 0, *result);
  return true;
}

Leaving LeavesAt(FjFrame* frame, int index) {
  if (!fj_is_generator(frame)) return Leaving::kNo;
  const bytecode::Code* code = bytecode::Code::Of(fj_code(frame));
  if (!code) return PyErr_Clear(), Leaving::kNo;
  switch (code->At(index).op) {
    case bytecode::Op::kYieldValue:
    case bytecode::Op::kHandOver: return Leaving::kYields;
    case bytecode::Op::kGetAwaitable:
    case bytecode::Op::kSend: return Leaving::kAwaits;
    default: return Leaving::kNo;
  }
}

}  // namespace framejit::capture
