// One call of a framework function on its way into the graph: answered without one, refused, or bound and applied.
#pragma once

#include "capture/arg_reader.h"
#include "capture/session.h"

namespace framejit::capture {

class FrameworkCall {
 public:
  // declined: as in Session::CallFramework.
  FrameworkCall(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames, bool* declined);
  PyObject* Run();

 private:
  // The phases, in their order. Each tells whether the call is over with it: then *out is its result, or null after a
  // Break or an exception.
  PyObject* AskedOfArray();
  PyObject* Seeded();
  bool AnsweredByMode(PyObject** out);     // fixed answers, derivatives, questions to the tensor, torch.vmap
  bool AnsweredByForm(PyObject** out);     // the same of sparse and quantised tensors
  bool AnsweredByValue(PyObject** out);    // What needs data is guessed, or no graph holds the call.
  bool ReplacedByTensors(PyObject** out);  // NumPy's arrays among the indices of a tensor of torch
  bool ComputedByNumpy(PyObject** out);    // of numbers alone, beside torch's tensors
  // The call as it is recorded. False after a Break or an exception.
  bool Bind();
  bool BindOne(PyObject* o, Arg* a, size_t position, std::string_view keyword = {});
  Ref HeldNumber(PyObject* item, size_t position, bool factor);
  bool SpreadSize();  // torch.Tensor.new(torch.Size)
  void NameDTypes();
  void PlaceOnDefaultDevice();
  void NumberDevices();
  void Locate();   // Notes the user's line.
  bool Allowed();  // by the framework's switches, and beside the libraries that were used
  // Puts the call into the trace and the graph.
  PyObject* Apply();
  void ApplyOrFix();  // Throws Decline.
  bool Applied();

  bool alone() const { return nargs_ == 1 && !kwnames_ && IsTensorAt(0); }
  bool IsTensorAt(Py_ssize_t i) const;
  bool IsOpaqueAt(Py_ssize_t i) const;
  Py_ssize_t total() const { return nargs_ + (kwnames_ ? PyTuple_GET_SIZE(kwnames_) : 0); }

  Session& s_;
  const Callee callee_;
  PyObject* const* const args_;
  const Py_ssize_t nargs_;
  PyObject* const kwnames_;
  bool* const declined_;
  const bool torch_;
  bool cupy_;
  bool changing_ = false;  // it has floats that may be others in the next run
  ArgReader reader_;
  Call call_;
};

// What every sparse or quantised tensor of that form answers. Null without an exception: that is not known.
PyObject* FactOf(Session& s, PyObject* opaque, std::string_view name, bool method);

}  // namespace framejit::capture
