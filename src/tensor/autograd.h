// Compiled training at the boundary to torch's autograd: one node of its graph stands for a whole segment.
#pragma once

#include <absl/functional/function_ref.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "autodiff/autodiff.h"
#include "tensor/ref.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

// Puts the results of a run into the framework's own graph of gradients before anybody sees them.
class OutputHook {
 public:
  virtual ~OutputHook() = default;
  // Called before the run: returns what Attach must know of the state then, as a new reference. Null: nothing. No
  // exception is set in either case.
  virtual PyObject* Before(PyObject* const* /*inputs*/) { return nullptr; }
  // Makes the result with this OutputPlan, of the inputs and of what stands in `made` by then. Borrowed, or null with
  // an exception set.
  using MakeResult = absl::FunctionRef<PyObject*(int plan)>;
  // made: owned references to the graph's outputs, which are replaced in place. Returns -1 with an exception set.
  virtual int Attach(PyObject* const* inputs, PyObject** made, const int64_t* symbols, PyObject* before,
                     MakeResult result) = 0;
};

struct Training {
  std::vector<bool> wanted;          // for each input: is its gradient asked for?
  std::vector<bool> differentiable;  // for each output of the program's graph: does it carry gradients?
  std::vector<autodiff::SavedValue> saved;
  std::vector<bool> kept;       // for each output: may a derivative, such as its own, be computed from it?
  std::vector<bool> versioned;  // autodiff::ReadOutputs, for whatever backward pass
  struct Backward {
    autodiff::BackwardParts parts;
    std::vector<std::shared_ptr<Executable>> executables;  // There is one for each part.
    std::vector<int> tangents;                             // the outputs whose gradients it takes, in order
    std::vector<bool> read;                                // autodiff::ReadOutputs, for these tangents
    std::vector<int> part;                                 // for each gradient: the part that computes it
  };
  // For each input: the node of the framework's graph that hands its gradient on. The nodes run one after the other,
  // and each does its part of the backward pass. So whoever waits for the gradients of the first node need not wait for
  // those of the last.
  std::vector<int> part;
  Device device;  // where the graph's values are
  // Results that are views and of which outputs are made, by OutputPlan, and of what outputs or inputs (~input) they
  // are views. They have nodes of the framework's own. Where something is said for each result, they stand behind the
  // outputs.
  struct View {
    int plan, base;
  };
  std::vector<View> views;
  // Called once for every set of outputs that receive gradients together. An input that only outputs without a gradient
  // depend on gets none, which is not the same as zeros. stops: for each result, as autodiff::Differentiate takes them.
  // around: the pass comes through no region in `reentrant`. skipped: inputs whose gradients it does not look for, or
  // nothing.
  std::function<Backward(const std::vector<bool>& tangents, const std::vector<bool>& stops, bool around,
                         const std::vector<bool>& skipped)>
      compile;
  bool calls_own = false;  // Does it call functions of the program's as they are?
  // What the reentrant form of torch.utils.checkpoint made. The framework lets passes come through that go everywhere,
  // refuses those that look for what was given to it, and all others have nothing from there.
  struct Reentrant {
    std::vector<bool> outputs;  // by output: is it made of that?
    std::vector<bool> inputs;   // by input: is what was given made of it?
    std::vector<bool> reads;    // by input: is that made of it?
    std::vector<bool> results;  // by result: likewise
  };
  std::vector<Reentrant> reentrant;
  // By input: only functions of checkpoints read it, which run again in the pass: on the memory that it has then.
  std::vector<bool> read_again;
  // Of these: is a value that is kept made of it? Where it was written, a run of the framework's would make another.
  std::vector<bool> kept_of;
  // By output and input: a gradient that arrives at the output leads to a function of the user's that answers with None
  // for what is made of the input. The framework goes on from there, and calls hooks with None.
  std::vector<std::vector<bool>> unanswered;
  // The program as calls of the framework, with all results: it is replayed for backward passes that are themselves
  // differentiated.
  std::unique_ptr<TraceRunner> replay;
  std::vector<Ref> constants;  // What calls of the backward pass have of the program's: its functions.
  // For each input: it is written, so that a replay works on a copy. before: on what it was before the run, since
  // results depend on that.
  std::vector<bool> copied, before;
  // Inputs that want gradients and are written with them, each with the output that it becomes: once it holds what that
  // holds, it is that result (RunCheck::writes), made of what it was before the run.
  std::vector<std::pair<int, int>> overwritten;
  // Inputs that the program gives other memory, and how often.
  std::map<int, int> rebound;
  // What such inputs get, as `versioned` counts, and the input, where derivatives read it by that alone: the versions
  // of the input count then.
  std::map<size_t, int> got;
  bool draws = false;  // it draws random numbers, and a replay draws the same
  // What a backward of the user's reads of a module, a variable or a class, null for nothing: a pass that finds another
  // object there is made by a replay, to which what was there is put back.
  struct Late {
    Ref owner, key, value;  // the dict of a module, a cell, a function whose code it is (no keys), or a class
    PyObject* Now() const;
    void Put(PyObject* to) const;
  };
  std::vector<Late> late;
  // Of classes: the functions that they have, and what says that nothing has changed since (0: it does not say).
  struct LateClass {
    Ref type;
    std::vector<Late> functions;
    mutable uint32_t tag = 0;
  };
  std::vector<LateClass> late_classes;
  static std::vector<Late> FunctionsOf(PyTypeObject* type);
  std::vector<std::pair<Late, Ref>> Changed() const;  // with what is there now
  // Functions of checkpoints run again in the pass, which reads what it finds by then. Where it finds something else
  // than the call did, the program is run again with the framework's own checkpoints, which call those functions.
  struct Checkpoints {
    size_t first = 0, count = 0;  // the run's inputs that are kept for this
    // Is what they read something else by now? inputs: the tensors of the call.
    std::function<bool(PyObject* const* inputs, PyObject* const* kept, const int64_t* symbols)> changed;
    // Of one of them: (function, arguments, keywords, options, autocast), a new reference.
    std::function<PyObject*(size_t number, PyObject* const* kept, const int64_t* symbols, PyObject* const* tensors)>
        call;
    bool reentrant = false;  // Is one of the reentrant form?
    // Inputs whose data decides by which calls they go: eager's pass asks them again.
    std::vector<int> decide;
    // Called where that is so time and again, for the program is run again for each such pass. Null: it goes on so.
    std::function<void()> often;
  };
  std::shared_ptr<const Checkpoints> checkpoints;  // null: there are none
  // The operations that keep something for their derivatives in the framework. A backward pass frees it, and the
  // framework refuses another pass that comes through the same operation. All others can be passed again.
  struct Keepers {
    struct Keeper {
      int outputs;  // the results that depend on it: a number in `outputs`
      int inputs;   // the inputs that get some gradients through it: a number in `sets`; -1: all that want some
      bool sure;    // it is known to keep something; false: it may
      bool whole() const { return inputs < 0; }
      auto operator<=>(const Keeper&) const = default;
    };
    struct InputSet {  // a model's layers have each the inputs of the one before, and some more
      int before;      // the set that is part of it; -1: none
      uint32_t end;    // where those end, in `inputs`, that it has besides: they begin where those of the last one end
    };
    std::vector<Keeper> all;
    std::vector<std::vector<bool>> outputs;
    std::vector<InputSet> sets;
    std::vector<int> inputs;
    bool LeadsFrom(const Keeper& keeper, size_t output) const { return outputs[keeper.outputs][output]; }
    // By set: is one of these inputs, by number, in it?
    std::vector<bool> Meeting(const std::vector<bool>& some) const {
      std::vector<bool> meets(sets.size());
      uint32_t at = 0;
      for (size_t i = 0; i < sets.size(); ++i) {
        bool met = sets[i].before >= 0 && meets[sets[i].before];
        for (; at < sets[i].end; ++at) met = met || some[inputs[at]];
        meets[i] = met;
      }
      return meets;
    }
  };
  Keepers keepers;
  std::vector<std::vector<bool>>
      saved_for;                           // by saved value: the outputs that depend on it; empty: there is one output
  std::vector<std::vector<bool>> needed;   // for each result: the inputs that its value depends on
  std::vector<std::vector<bool>> made_of;  // for each result: the results that it is computed from
  std::vector<std::vector<bool>> next;     // likewise, those from which a way leads to it that comes by no other output
  std::vector<ValueId> seen;               // for each result: its node in the graph (autodiff::SeenOutputs)
  // The framework runs first the node of what was made last, and the node of a leaf as soon as its gradient is whole.
  std::vector<int> made;   // for each result: the call that made it what it is
  std::vector<int> edges;  // inputs that may get gradients, in the order in which the framework has these
  // Inputs that gradients reach from some outputs only, and that may have been made of something. Those that the same
  // outputs reach are a group, whose gradients a node of its own hands on: so no pass comes by what they were made of
  // that has nothing for them.
  std::vector<int> group;                     // for each input; -1: it is in none
  std::vector<std::vector<bool>> reached_by;  // for each group: the outputs
  std::vector<bool>
      stands;  // by result: what others are made of in a replay may be another tensor than the replay's own
  size_t num_symbols = 0;
  // Runs f(ctx) without looking at frames, since what a backward pass calls is not the program's.
  PyObject* (*quietly)(PyObject* (*f)(void*), void* ctx) = nullptr;
};
std::shared_ptr<OutputHook> MakeTrainingHook(Training training);

// What framejit._gradients.attention_form answers. `hints` are the hints of the graph's symbols.
std::optional<autodiff::AttentionForm> FindAttention(const autodiff::AttentionRequest& r,
                                                     std::span<const int64_t> hints);

// torch's class DistributedDataParallel, borrowed; null: it was not imported.
PyTypeObject* DataParallelType();
// The bytes of the buckets of gradients of such a module. The last number holds for all buckets that follow.
std::vector<int64_t> BucketBytes(PyObject* module);

// For each operand of a call whose results want gradients: does the framework give it none, not even zeros? Then what
// it keeps for the derivative, as numbers of KeptMemory, if that is known. The sizes must be numbers.
std::vector<bool> WithoutGradient(const Call& call, const std::vector<TensorMeta>& operands,
                                  const std::vector<PyObject*>& constants);

// A callable (which, operands, args, kwargs, grads) -> gradients of operands[i] for i in `which`: the framework's own
// derivative of the callee, whose float results (in order) receive grads (None: nothing). Two arguments may follow: for
// each operand and for each result None, or the tensor that is read where the framework kept this one. New reference.
PyObject* MakeVjp(const std::string& callee);

// (grad, x, weight, bias or None, stride 2x, padding 2x, dilation 2x): runtime/depthwise.h on torch's tensors.
PyObject* DepthwiseWeightGradient(PyObject*, PyObject* args);
// (table, rows, index, without): runtime/add_rows.h, likewise.
PyObject* AddRows(PyObject*, PyObject* args);

}  // namespace framejit::tensor
