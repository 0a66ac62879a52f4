#include "capture/estimate.h"

#include <utility>

#include "capture/outcomes.h"
#include "capture/policy/compiled_function.h"
#include "capture/policy/policy.h"
#include "diag/diag.h"
#include "graph/hints.h"

namespace framejit::capture {
namespace {

thread_local Estimate* current = nullptr;

PyObject* Text(const std::string& s) {
  return PyUnicode_DecodeUTF8(s.data(), s.size(), "replace");
}

}  // namespace

Estimate* Estimate::Current() {
  return current;
}

void Estimate::NoteProgram(const Graph& g) {
  program_ = CostOf(g);
  passes_.clear();  // of a capture that was begun again
}

void Estimate::Note(const Graph& g, const Executable& executable) {
  Pass pass{g.name, CostOf(g), {}};
  runtime::AddCost(executable, Hints(g), &pass.plan);
  passes_.push_back(std::move(pass));
}

void Estimate::End(const Compiled& compiled, const Segment* segment) {
  captured_ = true;
  if (PyErr_Occurred()) return;
  done_ = segment && segment->exit.returns && segment->executable;
  if (done_) {
    PyErr_SetString(PyExc_RuntimeError, "framejit: the call is not run, only looked at");
  } else if (!compiled.breaks.empty()) {
    PyErr_SetString(ErrorType("BreakError"),
                    ("only what is one graph can be estimated, but:\n" + diag::Render(compiled.breaks.back())).c_str());
  } else {
    const std::string why = compiled.notes.empty() ? "nothing of the call is compiled" : compiled.notes.back();
    PyErr_SetString(ErrorType("FramejitError"), ("the call cannot be estimated: " + why).c_str());
  }
}

PyObject* Estimate::Answer() const {
  Ref passes(PyList_New(0)), unknown(PyList_New(0));
  for (const std::string& name : program_.unknown)
    if (Ref text(Text(name)); !unknown || !text || PyList_Append(unknown.get(), text.get()) < 0) return nullptr;
  for (const Pass& p : passes_) {
    Ref steps(PyList_New(0));
    for (const runtime::StepCost& s : p.plan.steps) {
      Ref row(Py_BuildValue("NNdd", Text(s.name), Text(s.kind), s.bytes, s.flops));
      if (!steps || !row || PyList_Append(steps.get(), row.get()) < 0) return nullptr;
    }
    Ref row(Py_BuildValue("{s:N,s:d,s:L,s:L,s:L,s:O}", "name", Text(p.name), "flops", p.graph.flops, "input_bytes",
                          (long long)p.graph.input_bytes, "output_bytes", (long long)p.graph.output_bytes,
                          "scratch_bytes", (long long)p.plan.scratch_bytes, "steps", steps.get()));
    if (!passes || !row || PyList_Append(passes.get(), row.get()) < 0) return nullptr;
  }
  return Py_BuildValue("{s:d,s:L,s:L,s:O,s:O}", "flops", program_.flops, "input_bytes", (long long)program_.input_bytes,
                       "output_bytes", (long long)program_.output_bytes, "unknown", unknown.get(), "passes",
                       passes.get());
}

PyObject* EstimateCall(PyObject*, PyObject* args) {
  PyObject *fn, *positional, *keywords;
  if (!PyArg_ParseTuple(args, "OO!O!", &fn, &PyTuple_Type, &positional, &PyDict_Type, &keywords)) return nullptr;
  if (GetStance() != Stance::kDefault || DisabledEverywhere() || Capturing())
    return PyErr_Format(ErrorType("FramejitError"),
                        "nothing can be estimated here: framejit is switched off, or inside of a capture");
  Estimate estimate;
  Estimate* const outer = std::exchange(current, &estimate);
  Ref result(PyObject_Call(fn, positional, keywords));
  current = outer;
  if (estimate.done_) {
    PyErr_Clear();
    return estimate.Answer();
  }
  if (!result) return nullptr;
  return PyErr_Format(ErrorType("FramejitError"),
                      "the call was not looked at by framejit and ran as written: a debugger, a "
                      "generator, or a module's forward that is something else");
}

}  // namespace framejit::capture
