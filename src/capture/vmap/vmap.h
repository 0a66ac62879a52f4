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
    PyObject* inner;  // Kept by the session. A lower level may batch it, too.
    int dim;          // The dimension of the inner tensor that is hidden.
    int level;
    bool tracks = false;  // Was it made inside of a derivative inside of that level?
  };
  std::unordered_map<TraceId, Batched> tensors;
  struct Level {
    Ref size;                              // The batch's size; empty at the level of a derivative (gradients.h).
    bool grad_before = false;              // Were gradients on outside of the derivative?
    size_t first = 0;                      // The first tensor that was made inside of it.
    bool forward = false;                  // Is it a derivative in forward mode?
    bool bare = false;                     // by torch.autograd.forward_ad itself?
    bool same = false, different = false;  // what is drawn, in all samples; neither: nothing may be
  };
  std::vector<Level> levels;  // The levels that are open, of which the first is number 1.
  struct Wrapped {
    PyObject* original;  // Kept by the session.
    int level;
    bool leaf = false;
  };
  std::unordered_map<TraceId, Wrapped> wrapped;  // Tensors that torch.func's derivatives wrapped.
  struct Dual {
    PyObject *leaf, *original, *tangent;  // Kept by the session.
    size_t level;
  };
  std::vector<Dual> duals;
  std::vector<std::pair<TraceId, int>> leaves;  // Leaves of derivatives, with the level they were made at.
  bool drawing = false;                         // Is a call under way that draws for all samples?
  bool inplace_allowed = false;                 // Is requires_grad_() allowed inside of a derivative?
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
  bool differentiates(size_t above = 0) const {  // Is a level above that one a derivative's?
    for (size_t i = above; i < levels.size(); ++i)
      if (!levels[i].size) return true;
    return false;
  }
};

std::span<const StateFunction> VmapFunctions();  // The functions of C that torch's code calls.
// The highest level of the tensors among these arguments, or in tuples and lists there; 0: none is batched.
int BatchLevel(Session& s, PyObject* const* args, Py_ssize_t n);
// Does this call without batched tensors mean something else while torch.vmap runs?
bool NeedsVmap(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs);
// A framework call with such arguments. New reference to its result, null on Break.
PyObject* CallBatched(Session& s, int level, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace framejit::capture
