// Compiled training at the boundary to torch's autograd: one node of its graph stands for a whole segment.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "autodiff/autodiff.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

// Puts results of a run into the framework's own records before anybody sees them.
class OutputHook {
 public:
  virtual ~OutputHook() = default;
  // What must be known as it is before the run: a new reference, or null, without an exception set.
  virtual PyObject* Before() { return nullptr; }
  // made: owned references to the graph's outputs, replaced in place. -1 with the exception set.
  virtual int Attach(PyObject* const* inputs, PyObject** made, const int64_t* symbols, PyObject* before) = 0;
};

struct Training {
  std::vector<bool> wanted;          // by input: gradients are asked for
  std::vector<bool> differentiable;  // by output of the program's graph: it carries gradients
  std::vector<autodiff::SavedValue> saved;
  std::vector<bool> kept;       // by output: derivatives may be made of it, its own, say
  std::vector<bool> versioned;  // as autodiff::ReadOutputs, of any pass
  struct Backward {
    autodiff::BackwardParts parts;
    std::vector<std::shared_ptr<Executable>> executables;  // by part
    std::vector<int> tangents;                             // of which outputs it takes the gradients, in order
    std::vector<bool> read;                                // as ReadOutputs
    std::vector<int> part;                                 // by gradient
  };
  // By input: which node of the framework's graph hands its gradient on. The nodes run one after the other, each doing
  // its part of the backward pass: who waits for the gradients of the first need not wait for the last.
  std::vector<int> part;
  Device device;  // of the graph's values
  // Called once for every set of outputs that ever receive gradients together: what an output that got none leads to
  // gets none, which is not the same as zeros. stops: as autodiff::Differentiate.
  std::function<Backward(const std::vector<bool>& tangents, const std::vector<bool>& stops)> compile;
  // The program in the framework's own terms, its outputs those of the graph: for backward passes that are themselves
  // differentiated. Null: that is refused, with this reason.
  std::unique_ptr<TraceRunner> replay;
  std::string no_replay;
  std::vector<bool> copied;  // by input: it is written and no result depends on it; a replay has a copy
  bool draws = false;        // random numbers: a replay draws the same
  // Operations that keep something for their derivatives in the framework: a backward pass frees it, and the framework
  // refuses another that comes through the same. All other operations stay differentiable.
  struct Keeper {
    std::vector<bool> outputs;  // the results that are made of it
    bool whole = false;         // every input that wants gradients gets some through it
    bool sure = false;          // it is not only unknown whether it keeps anything
    auto operator<=>(const Keeper&) const = default;
  };
  std::vector<Keeper> keepers;
  std::vector<std::vector<bool>> needed;   // by output: the inputs that its value depends on
  std::vector<std::vector<bool>> made_of;  // by output: the outputs that it is made of
  std::vector<ValueId> seen;               // by output: its place in the program
  std::vector<bool> called;                // by output: a call of the framework made it
  std::vector<bool>
      stands;  // by output: what others are made of in a replay may be another tensor than the replay's own
  size_t num_symbols = 0;
  // Runs f(ctx) where no frame is looked at: what a backward pass calls is not the program's.
  PyObject* (*quietly)(PyObject* (*f)(void*), void* ctx) = nullptr;
};
std::shared_ptr<OutputHook> MakeTrainingHook(Training training);

// framejit._gradients.attention_form's answer. hints: of the graph's symbols.
std::optional<autodiff::AttentionForm> FindAttention(const autodiff::AttentionRequest& r,
                                                     std::span<const int64_t> hints);

// Of torch's DistributedDataParallel, where it is what runs now: bytes of its buckets of gradients, the last
// for all that follow.
std::vector<int64_t> BucketBytes();

// By operand of a call whose results want gradients: the framework has none for it, not even zeros. Sizes are numbers.
std::vector<bool> WithoutGradient(const Call& call, const std::vector<TensorMeta>& operands,
                                  const std::vector<PyObject*>& constants);

// A callable (which, operands, args, kwargs, grads) -> gradients of operands[i] for i in `which`: the framework's own
// derivative of the callee, whose float results (in order) receive grads (None: nothing). New reference.
PyObject* MakeVjp(const std::string& callee);

// (grad, x, weight, bias or None, stride 2x, padding 2x, dilation 2x): runtime/depthwise.h on torch's tensors.
PyObject* DepthwiseWeightGradient(PyObject*, PyObject* args);
// (table, rows, index, without): runtime/add_rows.h, likewise.
PyObject* AddRows(PyObject*, PyObject* args);

}  // namespace framejit::tensor
