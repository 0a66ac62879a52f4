// torch.vmap. torch's own Python code is captured like any other; the functions of C that it calls are answered here. A
// batched tensor is an object of the program that no call makes: it stands for an inner tensor, of which it does not
// show one dimension. A call with batched tensors becomes one with the inner tensors, as torch's batching rules would
// make it, level by level; where no rule is known here, one call of torch.vmap.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "capture/modes.h"
#include "capture/ref.h"
#include "framejit/call.h"

namespace framejit::capture {

class Session;

struct Vmap {
  struct Batched {
    PyObject* inner;  // kept by the session; may be batched by a lower level
    int dim;          // of the inner tensor
    int level;
    bool tracks = false;  // made inside of a derivative that is inside of that level
  };
  std::unordered_map<TraceId, Batched> tensors;
  struct Level {
    Ref size;                  // of the batch; none: the level of a derivative (gradients.h)
    bool grad_before = false;  // gradients were on outside of the derivative
    size_t first = 0;          // tensor made inside of it
    bool forward = false;                  // a derivative by torch.func.jvp
    bool same = false, different = false;  // what is drawn, in all samples; neither: nothing may be
  };
  std::vector<Level> levels;  // that are open, the first is number 1
  struct Wrapped {
    PyObject* original;  // kept by the session
    int level;
    bool leaf = false;
  };
  std::unordered_map<TraceId, Wrapped> wrapped;  // by torch.func's derivatives
  struct Dual {
    PyObject *leaf, *tangent;  // kept by the session
    size_t level;
  };
  std::vector<Dual> duals;
  std::vector<std::pair<TraceId, int>> leaves;   // of derivatives: the level they were made at
  bool drawing = false;                          // a call that draws for all samples is under way
  bool inplace_allowed = false;                  // requires_grad_() inside of a derivative
  std::vector<Ref> index_modes;  // torch's TransformGetItemToIndex: x[i] with tensors of one integer is an index, too
  bool open() const { return !levels.empty() || !index_modes.empty(); }
  bool batches() const {
    for (const Level& l : levels)
      if (l.size) return true;
    return false;
  }
  bool forward() const {
    for (const Level& l : levels)
      if (l.forward) return true;
    return false;
  }
  bool differentiates(size_t above = 0) const {  // a level above that one is a derivative's
    for (size_t i = above; i < levels.size(); ++i)
      if (!levels[i].size) return true;
    return false;
  }
};

std::span<const StateFunction> VmapFunctions();  // that torch's code calls
// The highest level of the tensors among these arguments, or in tuples and lists there; 0: none is batched.
int BatchLevel(Session& s, PyObject* const* args, Py_ssize_t n);
// Does this call without batched tensors mean something else while torch.vmap runs?
bool NeedsVmap(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs);
// A framework call with such arguments. New reference to its result, null on Break.
PyObject* CallBatched(Session& s, int level, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace framejit::capture
