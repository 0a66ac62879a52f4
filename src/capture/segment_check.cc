#include "capture/segment_check.h"

#include "capture/graph_object.h"
#include "capture/override.h"
#include "capture/policy/policy.h"
#include "diag/diag.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

Ref Tuple(PyObject* const* items, size_t n) {
  Ref tuple(PyTuple_New(n));
  for (size_t i = 0; tuple && i < n; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(items[i]));
  return tuple;
}

// What it finds wrong is an InternalError. Anything else it raises is its own fault, and changes nothing.
bool Told(const Ref& answer) {
  if (answer) return true;
  PyObject* internal;
  {
    tensor::SavedError saved;
    internal = ErrorType("InternalError");
  }
  if (PyErr_ExceptionMatches(internal)) return false;
  PyErr_WriteUnraisable(nullptr);
  return true;
}

}  // namespace

int64_t TakeSegmentFuel() {
  static int64_t taken = 0;
  const int64_t fuel = std::stoll(diag::GetOption("segment_fuel"));
  return fuel >= 0 && taken >= fuel ? -1 : taken++;
}

std::unique_ptr<SegmentCheck> SegmentCheck::Make(const Trace& trace, const std::vector<PyObject*>& constants,
                                                 const std::vector<PyObject*>& examples, const std::string& place,
                                                 int64_t number, bool gradients, const std::string& backend,
                                                 std::vector<int64_t> symbols) {
  if (!diag::OptionOn("check_numerics") && diag::GetOption("dump_segments").empty()) return nullptr;
  SuspendScope off;
  auto check = std::make_unique<SegmentCheck>();
  check->graph_ = MakeGraphObject(trace, constants);
  check->num_inputs_ = trace.inputs.size();
  check->num_outputs_ = trace.outputs.size();
  check->symbols_ = std::move(symbols);
  if (check->graph_) SetGraphSymbols(check->graph_.get(), check->symbols_.data());
  Ref module(tensor::Import("framejit._numerics")), given(Tuple(examples.data(), check->num_inputs_));
  if (module && check->graph_ && given)
    check->checker_ =
        Ref(PyObject_CallMethod(module.get(), "Checker", "OOsLOs", check->graph_.get(), given.get(), place.c_str(),
                                (long long)number, gradients ? Py_True : Py_False, backend.c_str()));
  if (check->checker_) return check;
  PyErr_WriteUnraisable(nullptr);
  return nullptr;
}

void SegmentCheck::NotePlan(const std::string& plan) {
  SuspendScope off;
  Told(Ref(PyObject_CallMethod(checker_.get(), "compiled", "s", plan.c_str())));
}

bool SegmentCheck::Before(PyObject* const* inputs, const int64_t* symbols, size_t num_symbols, Ref* expected) {
  SuspendScope off;
  symbols_.assign(symbols, symbols + num_symbols);
  SetGraphSymbols(graph_.get(), symbols_.data());
  const Ref given(Tuple(inputs, num_inputs_));
  *expected = Ref(given ? PyObject_CallMethod(checker_.get(), "before", "(O)", given.get()) : nullptr);
  return Told(*expected);
}

bool SegmentCheck::After(const Ref& expected, PyObject* const* outputs) {
  if (!expected) return true;
  SuspendScope off;
  const Ref made(Tuple(outputs, num_outputs_));
  return Told(Ref(made ? PyObject_CallMethod(checker_.get(), "after", "OO", expected.get(), made.get()) : nullptr));
}

}  // namespace framejit::capture
