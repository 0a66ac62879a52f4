// A call with batched tensors, at one level: what all rules of torch.vmap need (vmap_rules.cc).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/vmap/vmap.h"

namespace framejit::capture {

class BatchedCall {
 public:
  BatchedCall(Session& s, int level, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

 protected:
  std::nullptr_t Break() { return s_.Break(BreakId::kUnsupportedTensor, callee_ + " under torch.vmap"); }
  // No rule of ours: a call of torch.vmap of that function alone, which has torch's own rules (framejit._functions).
  bool ReadsStatistics() const;
  PyObject* Refuse();

  std::string_view Name(size_t i) const;       // The name of a keyword; empty for a positional one.
  const Vmap::Batched* At(PyObject* o) const;  // It is null where `o` is not batched at this level.
  const TensorMeta& Meta(PyObject* o) const { return s_.meta(AsTensor(o)->id); }
  int Rank(PyObject* o) const { return static_cast<int>(Meta(o).sizes.size()); }  // As the program sees it.

  PyObject* Call() { return s_.CallFramework(callee_, args_.data(), positional_, kwnames_); }
  Ref Call(Callee callee, std::vector<PyObject*> args);

  // A tuple of `first` and then these sizes, or null with an error.
  Ref Sizes(const std::vector<PyObject*>& first, std::span<const shape::Int> rest);
  // The inner tensor with the hidden dimension first and the others padded to `rank` on their left, by torch's `view`
  // as in torch, since it decides what the strides of dimensions of size 1 are. viewed: also where none are missing.
  Ref Front(PyObject* o, int rank = 0, bool viewed = false);
  // Makes of a result what the program sees.
  PyObject* Wrap(PyObject* result, int dim);

  Session& s_;
  const int level_;
  const Callee callee_;
  std::vector<PyObject*> args_, given_;  // The second one stays as it was given.
  Py_ssize_t positional_;
  PyObject* kwnames_;

 private:
  // An argument with the inner tensors in place of the batched ones; the hidden dimension of each tensor in it.
  Ref Inner(PyObject* o, PyObject* dims);
};

}  // namespace framejit::capture
