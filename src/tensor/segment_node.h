// The node that stands for a segment in torch's graph: an instance of a subclass of torch.autograd.Function made here,
// once. A call of the segment runs the forward executable first; `apply` then only takes its results in (forward hands
// them over), so that torch's rules about versions, hooks on saved tensors, freed graphs and threads hold as for any
// function of a user.
#pragma once

#include <absl/functional/function_ref.h>

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/shared_list.h"
#include "tensor/autograd.h"
#include "tensor/pass_clock.h"
#include "tensor/ref.h"

namespace framejit::tensor {

struct CallState;

// Those that have begun at nodes of segments, of all threads, but for those within a call that is timed: what they save
// is in its time.
int64_t BackwardPasses();
inline int timed_calls = 0;  // of all threads; the GIL protects it

class SegmentHook : public OutputHook, public std::enable_shared_from_this<SegmentHook> {
 public:
  explicit SegmentHook(Training t);
  PyObject* Before(PyObject* const* inputs) override;
  int Attach(PyObject* const* given, PyObject** made, const int64_t* symbols, PyObject* before,
             MakeResult result) override;
  auto quietly() const { return t_.quietly; }
  PyObject* CallOfCheckpoint(CallState* s, size_t number, PyObject* const* tensors) const;
  PyObject* Backward(CallState* s, PyObject* ctx, PyObject* const* grads, Py_ssize_t n);
  int AddHooks(CallState* s, long output, PyObject* hooks, PyObject* own);
  // The result `tensor` of this node has got the hooks in `own`: those of results made before it come behind them.
  int PutInOrder(CallState* s, PyObject* node, long output, PyObject* tensor, PyObject* own);

  // Its place among the results of the segment's node. The framework looks for what a tensor keeps of its gradient
  // under its place at the new node, once it was written, and finds it only where that was the first one, too. So one
  // result hangs on the segment's node, and each other one has a node of its own. That of a result of which none is
  // made does no more than to hand its gradient on, and is the framework's (IsAlone).
  size_t PlaceOf(size_t output) const { return output == first_ ? 0 : output == 0 ? first_ : output; }

  struct Part {
    std::vector<int> inputs, outputs;  // The numbers of values.
    std::vector<int> last, done;       // What no later part reads: inputs, and gradients that it hands on.
    runtime::SharedList<std::pair<TensorType, shape::IntList>> types;  // The types of its inputs, with strides.
    std::unique_ptr<GraphRunner> runner;
  };
  struct Compiled {
    std::vector<int> grads;     // By input: the number of its gradient, or -1.
    std::vector<int> tangents;  // The numbers of the tangents of outputs.
    std::vector<bool> read;     // By output: does the backward pass read it?
    std::vector<int> part;      // By gradient: the part that makes it.
    int count = 0;              // How many numbers there are.
    bool spends = false;        // every gradient comes through one operation that reads what was saved
    std::vector<Part> parts;
  };
  // One backward pass through the nodes of a segment: what was saved and what arrived, then what parts make for others,
  // by number; or the gradients, made all at once.
  struct Pass {
    Compiled* compiled = nullptr;
    std::vector<Ref> values;
    std::vector<Ref> grads;  // By input. Of stops they are by result.
    // Where several nodes hand them on: what has arrived at outputs, and whether it is in `grads`.
    std::vector<Ref> given;
    std::vector<bool> taken;
    std::vector<bool> unanswered;  // by input: the pass comes by it, with no gradient for it
    bool ends = false;             // Will it be forgotten when it ends (ForgetAtEnd)?
  };

 private:
  int num_parts() const { return t_.part.empty() ? 1 : *std::max_element(t_.part.begin(), t_.part.end()) + 1; }
  Compiled* For(const std::vector<bool>& tangents, const std::vector<bool>& stops = {},
                const std::vector<bool>& skipped = {});
  size_t num_outputs() const { return t_.differentiable.size(); }
  size_t num_results() const { return num_outputs() + t_.views.size(); }
  bool HasInner(size_t result) const { return has_inner_[result]; }  // Are outputs made of this result?
  // The results that it is made of along a way that comes by no other: its node has edges to theirs.
  const std::vector<int>& InnerOf(size_t output) const { return inner_[output]; }
  std::vector<int> GroupsOf(size_t output) const;  // of inputs that its gradient reaches
  bool IsRouted(size_t output) const { return how_[output] == How::kRouted; }
  bool IsAlone(size_t output) const { return how_[output] == How::kAlone; }
  // The node that hands on an input's gradient: that of a part of the backward pass or, behind these, of a group.
  int NodeOf(int input) const {
    const bool grouped = !t_.group.empty() && t_.group[input] >= 0;
    return grouped ? num_parts() + t_.group[input] : t_.part.empty() ? 0 : t_.part[input];
  }
  PyObject* InGroups(CallState* s, CallState* head, PyObject* ctx, PyObject* const* grads, int64_t number);
  void NoteUnanswered(size_t output, Pass* pass) const;
  int Stash(CallState* s, PyObject* saved);
  bool ReadsStashed(CallState* s, const Compiled& c);
  Pass TakePass(CallState* head, int64_t number);
  int KeepPass(CallState* head, int64_t number, Pass pass);
  int ForgetAtEnd(CallState* head, int64_t number);
  int HangResults(PyObject* state, PyObject* const* outputs, const std::vector<Ref>& routed,
                  const std::vector<Ref>& groups, PyObject** made, MakeResult result);
  int Retained(CallState* s, size_t result, PyObject* tensor);
  int WatchView(CallState* s, size_t result, PyObject* view);
  bool HasHooks(CallState* s, int number);
  bool ViewsWatched(CallState* s);
  Ref Route(PyObject* head, size_t output, PyObject* own, PyObject* on_segment, PyObject* const* results,
            const std::vector<Ref>& groups);
  bool HoldsInnerNode(CallState* head, PyObject* ctx);
  bool LooksForNoInner(CallState* head, PyObject* ctx);
  PyObject* Routed(CallState* head, size_t output, PyObject* ctx, PyObject* grad);
  std::set<int> FarthestGradients(const std::vector<int>& grads) const;
  int Spent(size_t output, PyObject* ctx);
  bool SpentBetween(const CallState& head, size_t output) const;
  using Given = std::map<int, Ref>;  // gradients by result
  using Begun = std::vector<Ref>;    // gradients by input
  int ToInner(CallState* head, size_t output, PyObject* segment, PyObject* grad, Given* inner, Begun* begun);
  int StageAgain(CallState* s, const std::vector<bool>& left, const std::vector<Ref>& grads, Pass* part);
  int ToInnerAgain(CallState* head, size_t output, const std::vector<bool>& standing, PyObject* grad, bool create,
                   Given* inner, Begun* begun);
  int AddBegun(const std::vector<Begun>& begun, Pass* pass) const;
  int Along(CallState* head, size_t output, Given* inner);
  Ref Alive(CallState* head, int output);
  bool OwnNodeRuns(CallState* s, int output);
  Ref Unwritten(CallState* head, int output);
  Ref AsMade(CallState* head, int output);
  std::vector<bool> Standing(CallState* head);
  int AnswerHooks(CallState* s, size_t output, Ref* grad);
  int Inner(CallState* s, const std::vector<bool>& tangents, std::vector<Ref>* grads, std::vector<bool>* stops);
  int Prepare(CallState* s, PyObject* saved, Compiled* c, const std::vector<Ref>& grads, Pass* pass);
  int InStages(CallState* s, PyObject* saved, const std::vector<bool>& stops, std::vector<Ref> grads, bool routed,
               Pass* pass);
  // Is it read by functions of checkpoints alone, and not what one was given? They read what it holds in the pass.
  bool ReadAsItIs(int input) const {
    return input >= 0 && t_.read_again[input] && !t_.copied[input] && !t_.rebound.contains(input) &&
           !t_.versioned[num_outputs() + input];
  }
  Ref SavedOf(CallState* s, PyObject* ctx) const;
  bool LateChanged(CallState* s) const;
  bool CheckpointsChanged(CallState* s) const;
  bool CallsAgain(CallState* s) const;
  bool MustReplay(CallState* s);
  bool IsDetached(CallState* s, int output);
  bool ReadsNone(CallState* s, const std::vector<bool>& tangents);
  bool GoesAround() const;
  int LookAtReentrant(CallState* head, const std::vector<bool>& tangents);
  bool GoesEverywhere(CallState* s, const std::vector<bool>& tangents);
  std::vector<bool> Skipped(CallState* s) const;
  int Spend(CallState* s, PyObject* ctx, const std::vector<bool>& tangents);
  int Begin(CallState* s, PyObject* ctx, std::vector<Ref>* grads, Pass* pass);
  int BeginRest(CallState* s, PyObject* ctx, const std::vector<bool>& tangents, bool routed, std::vector<bool> standing,
                std::vector<Ref>* grads, Pass* pass);
  int Go(CallState* s, int part, Pass* pass);
  int BeginAndGo(CallState* s, PyObject* ctx, PyObject* const* given, Py_ssize_t n, Pass* pass);
  PyObject* Answer(CallState* s, int part, Pass pass, int64_t number);
  Ref Hang(CallState* s, size_t output, PyObject* tensor, PyObject* own = nullptr);
  int Retain(CallState* s, size_t output, PyObject* total, PyObject* given);
  bool Reads(size_t k, int i) const;
  int Written(CallState* s, const std::vector<bool>* tangents);
  std::vector<bool> AllInner() const;
  std::vector<bool> CutAt(std::vector<bool> results) const;
  // A run of the program with the framework's own records.
  struct Rerun {
    std::vector<Ref> inputs;    // aliases of those that want gradients, copies of those that are written
    std::vector<Ref> standing;  // by result: an alias of what stands for it
    Ref own;  // if its gradients are differentiated: framejit._gradients.Own of the results that they are made of
    std::vector<int> own_results;
    std::vector<Ref> results;
    Ref checkpoints;      // framejit._gradients.Checkpoints, if their functions are called again
    bool leaves = false;  // what the run begins with are leaves: gradients are added up there, and where else they lead
  };
  int Again(CallState* s, const std::vector<bool>& standing, bool create, Rerun* run);
  int BeginOwn(CallState* s, Rerun* run);
  Ref GradientsOf(const Rerun& run, const std::vector<Ref>& grads, const std::vector<Ref>& wanted, bool create);
  int Follow(CallState* s, const Rerun& run, const Ref& gradients, const std::vector<Ref>& grads);
  int NoteNone(const Rerun& run, const std::vector<Ref>& grads, const std::vector<Ref>& wanted,
               const std::vector<bool>& looked_for, Pass* pass);
  int Replay(CallState* s, const std::vector<Ref>& grads, const std::vector<bool>& stops,
             const std::vector<bool>& standing, Pass* pass);
  bool HasTwin(CallState* s, size_t i) const;
  int NoteVersions(CallState* s, PyObject* const* inputs, PyObject* const* made);
  int LookAtWatched(CallState* s, const std::vector<bool>& tangents);
  PyObject* Link(PyObject* state, int part, PyObject* link, PyObject* const* inputs);

  Training t_;
  std::vector<std::vector<int>> edges_;  // by part: the inputs of its node, in the order of its edges
  std::vector<std::vector<int>> inner_;  // by output
  int called_again_ = 0;                 // passes in which functions of checkpoints were called
  bool without_ = false;                 // A function of the program's gave None for a gradient: passes are replays.
  std::vector<bool> has_inner_;          // by result
  enum class How : uint8_t { kOnSegment, kAlone, kRouted };
  std::vector<How> how_;  // by output
  size_t first_ = 0;      // the output that has the first place
  Ref link_;              // the gradient of every hidden scalar
  std::mutex mu_;
  std::map<std::vector<bool>, Compiled> compiled_;
};

bool ArePlain(const std::vector<Ref>& grads);

// Takes the exception of a function of the program's that gives no gradient where one was expected. While this lives,
// replays have what it gave.
class Answering {
 public:
  Answering();
  ~Answering();
  Answering(const Answering&) = delete;
  bool gave_none() const { return bool(before_); }  // false: it is another exception, which stays

 private:
  Ref before_;
};

// While this lives, functions of the program's that are called as they are find what passes of this call have left.
class OfCall {
 public:
  explicit OfCall(PyObject* own) {
    if (own) before_ = Tell(own);
  }
  ~OfCall();
  OfCall(const OfCall&) = delete;

 private:
  static Ref Tell(PyObject* kept);
  Ref before_;
};

// What one call leaves for its backward pass. Not the tensors it reads: those are saved with the framework.
struct CallState {
  PyObject_HEAD std::shared_ptr<SegmentHook>* hook;
  std::vector<int64_t>* symbols;
  std::vector<bool>* spent;                      // by keeper: a backward pass has freed what it kept
  bool freed;                                    // Has there been such a pass?
  int64_t freeing;                               // the number of the last one
  int64_t unseen;                                // that of the last pass found to look for no inner result
  std::map<int64_t, SegmentHook::Pass>* passes;  // on their way through the nodes, by torch's number of the pass
  std::map<int, Ref>* hooks;  // by result of which others are made: its dict of hooks, called with what they
                              // give it; of views, below zero, those of their nodes
  struct Inner {
    Ref weak;
    int64_t version;        // Its version when the call was made.
    bool detached = false;  // in place, by the program (NoteDetached)
  };
  std::map<int, Inner>* retained;  // likewise, and of those that their own derivatives read: a weak reference to it
  struct Hung {
    Ref weak, own;
  };
  std::map<int, Hung>* hung;  // by output: a weak reference to it and the dict that torch's node calls for its hooks
  // A pass in which what results give each other comes from outside (Routed).
  struct Routes {
    std::vector<bool> standing;  // Where it is differentiated, by result: its own tensor stands for it in replays.
    // Gradients on their way to results to which the node that gave them has no edge: those in between, at which
    // replays could not be cut, hand them on.
    std::map<int, Ref> passing;
    // By result that has told its others already: what it gives to each input by no other, which is not computed again.
    std::map<int, std::vector<Ref>> begun;
  };
  std::map<int64_t, Routes>* routed;
  int part;             // this node's (NodeOf); -1 - i: this node routes the gradient of output i
  PyObject* head;       // the state of the node that runs first (null: this one), which holds all the rest
  PyObject* segment;    // Of a group's node: the node that runs first and holds what was saved.
  PyObject* inputs;     // A tuple, for a backward pass that is differentiated.
  PyObject* versions;   // A tuple: the versions of these inputs when the call was made.
  PyObject* own;        // What functions of the program's that passes call need and nobody else holds; null: nothing.
  PyObject* drawn;      // The generators when the call was made: a list of (generator, state), or null.
  PyObject* versioned;  // tuple: (tensor without memory, version) of each, sharing its version
  PyObject* outputs;    // A tuple: the outputs, on their way through `apply`.
  PyObject* saved;      // A tuple: what is saved, on the same way. Behind a pass that freed it: what passes that come
                        // by nothing freed read of it, and None (Stash).
  PyObject* opaque;     // A tuple: outputs without gradients, on the same way.
  PyObject* kept;       // A tuple, Training::Checkpoints have it; null: there are none.

  std::map<int, Ref>* former;  // by input that has other memory by now: what it had in the call
  std::map<int, Ref>* shown;   // by input whose memory somebody may write uncounted: framejit._gradients.shown
  struct Rebound {
    Ref object;
    int times;   // that it may get other memory by this call itself
    Ref former;  // what it had behind the call, if it has other memory since
  };
  std::map<int, Rebound>* rebound;  // by input that the call gives other memory
  Measured* measured;               // Of which call that is measured is it? Null: of none.
  CallState *newer, *older;         // the list of all calls (NewestCall)
};
CallState* NewestCall();  // Null: there is none.
// `tensor.data = value` in a trace, of an input: (tensor, value) -> the tensor as it is from then on.
inline const Callee kGiven{"framejit._data.given"};
// While this lives, such calls do to their tensor what the program does.
// Else they leave it as it is, and give another.
class GivesMemory {
 public:
  GivesMemory() : outer_(std::exchange(now, this)) {}
  ~GivesMemory() { now = outer_; }
  GivesMemory(const GivesMemory&) = delete;
  PyObject* Give(PyObject* tensor, PyObject* value);  // Gives the tensor.
  void TakeBack();                                    // All have again what they had.
  // When the tensor is given something for this last time, it gets this memory, in which the program may have written.
  void Expect(PyObject* tensor, int times, Ref memory) { expected_[tensor] = {times, std::move(memory)}; }
  bool PutBack();  // Such memory holds again what the program has written. It is false with an exception.
  inline static thread_local GivesMemory* now = nullptr;

 private:
  GivesMemory* outer_;
  std::vector<std::pair<Ref, Ref>> had_;  // tensors, and what they had
  std::map<PyObject*, std::pair<int, Ref>> expected_;
  std::vector<std::pair<Ref, Ref>> written_;  // such memory, and what the program has written there
};

// The memory of this tensor is about to become another (`x.data = u`): calls that it is an input of keep what it had,
// as far as a pass may come through them.
void KeepMemory(PyObject* tensor);
// Its memory is about to be shown to somebody who may write there in a way that its version does not count (`x.data`):
// likewise, what it holds.
void KeepContent(PyObject* tensor);
void EachInput(absl::FunctionRef<void(PyObject*)> take);  // of all calls to which a pass may come, borrowed
void NoteDetached(PyObject* tensor);                      // Likewise behind tensor.detach_(), of a result.
void WatchTensors();                                      // From now on (watch.cc).
int GiveData(PyObject* tensor, PyObject* value);          // tensor.data = value, of one that is no input of any call

// A new reference that the collector does not track yet. head: null for the first part's.
CallState* NewState(const std::shared_ptr<SegmentHook>& hook, int part, PyObject* head);
// Is this node of the call with this state?
bool MadeBy(PyObject* node, CallState* head);
// Of the pass that the framework's engine is at on this thread; -1: none.
int64_t NumberOfPass();
// Is this node of the framework's part of the pass that its engine is at? -1: an exception; of leaves it is not said
// where only some gradients are looked for.
int WillRun(PyObject* node);
// Does this pass come to the tensor's node, or look for its gradient? of_leaf: NodeOfLeaf, where it is known.
bool ComesTo(PyObject* tensor, PyObject* of_leaf = nullptr);
// A leaf that nobody asks for: the framework comes to its node where it goes everywhere, not where it looks for some
// gradients only (torch.autograd.grad, backward(inputs=...)). Borrowed, as the node is; null: an exception.
PyObject* Nobody(PyObject** node);
// The node that adds up the gradients of a leaf. Null: an exception.
Ref NodeOfLeaf(PyObject* leaf);
// Of the CPU and of this device: a new list of (generator, state). SetGenerators goes back to it.
PyObject* Generators(Device device);
int SetGenerators(PyObject* states);
// The framework calls the hooks of an input also where the segment's node has no gradient for it, with None: from now
// on they are called with gradients only. -1: an exception.
int KeepNoneFromHooks(PyObject* input);
PyObject* ApplyNode();                 // `apply` of the class, bound; borrowed
PyObject* Interned(const char* text);  // Kept for ever, by the address of the text; borrowed.

inline constexpr const char *kSave = "to_save", *kState = "_segment", *kSaved = "saved_tensors",
                            *kMaterialize = "materialize_grads", *kClear = "maybe_clear_saved_tensors",
                            *kOpaque = "non_differentiable", *kVersion = "_version", *kHooks = "_backward_hooks",
                            *kDetach = "detach", *kData = "data";
inline constexpr const char* kModified =
    "one of the variables needed for gradient computation has been modified by an inplace operation";
inline constexpr const char* kReentrant =
    "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad() or passing an `inputs` parameter to "
    ".backward(). To resolve this error, you can either set use_reentrant=False, or call .backward() without passing "
    "the "
    "`inputs` argument.";
inline constexpr const char* kDrawsAgain =
    "trying to differentiate twice a function compiled by framejit: it draws random numbers";
inline constexpr const char* kReentrantAgain =
    "framejit: a pass around a checkpoint with use_reentrant=True cannot be differentiated";
inline constexpr const char* kFreed =
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward.";

// A scalar that nobody reads.
PyObject* HiddenScalar(const char* made_by, Device device);

}  // namespace framejit::tensor
