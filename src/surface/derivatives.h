// What is known during a capture about derivatives: whether those of the graph are the program's, what the framework
// keeps for its own, and what the program has differentiated itself.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "surface/objects.h"
#include "surface/surface.h"

namespace framejit::surface {

bool WantsGrad(const Trace& trace, const Call& call);

class Derivatives {
 public:
  Derivatives(Trace& trace, Objects& objects) : trace_(trace), objects_(objects) {}
  // Why the graph's derivative is not the program's; empty: it is.
  const std::string& undifferentiable() const { return undifferentiable_; }
  void Leave(const std::string& why) { undifferentiable_ = undifferentiable_.empty() ? why : undifferentiable_; }
  bool input_written() const { return input_written_; }  // an input that wants gradients
  // May the framework keep a root's memory for a derivative? And for the derivatives of which values does it surely?
  bool MayKeep(TraceId root) const { return kept_.contains(root); }
  std::vector<ValueId> KeptFor(TraceId root) const;
  void Keep(TraceId root) { kept_.insert(root); }
  void KeepSurely(TraceId root, const std::vector<ValueId>& by);
  void NoteCall(const Call& call, bool view);  // Is told once the results exist.
  // The values that the framework has in memory of their own: results of calls, and all that is inside of a call that
  // is several to the framework, or keeps no operand from which to compute it once more.
  const std::vector<ValueId>& held() const { return held_; }
  void NoteHeld(const Call& call, size_t nodes);  // of a graph of that many nodes, the last of which the call made
  // A write that gradients do not see, to a tensor that has some; or one that makes an input have some. The framework
  // keeps operands and results of calls for their derivatives, and refuses a backward pass once one of them was
  // written. The graph would give the gradient instead: such programs are left to the framework.
  void NoteWrite(TraceId t, bool grad, bool part = false);  // part: by a view that the call itself makes of it
  void NoteTarget(const Call& call);                        // Is told before anything of the call is done.
  void CheckWritable(TraceId root) const;                   // Throws Decline.
  // A custom function's result, a root, has the memory of that root in the program. To the graph they are two, so
  // neither is written any more.
  void Share(TraceId result, TraceId root);
  bool IsShared(TraceId result) const { return shared_.contains(result); }

  // --- derivatives inside of the program
  bool differentiates() const { return differentiates_; }
  bool IsLeaf(TraceId root) const { return leaves_.contains(root); }
  void AddLeaf(TraceId leaf, TraceId of);  // Both are roots.
  // What Lowering::Track was told.
  void Track(TraceId t, bool on) {
    on ? void(tracked_.insert(t)) : void(tracked_.erase(t));
    tracks_ = true;
  }
  bool IsTracked(TraceId t) const { return tracked_.contains(t); }
  bool tracks() const { return tracks_; }
  // Inside of a function that is differentiated: tensors that were there before must not be written. 0: they may again.
  void Captured(size_t tensors) { captured_ = tensors; }
  // Values whose derivative was taken without retain_graph: it cannot be taken again.
  const std::set<ValueId>& freed() const { return freed_; }
  void Differentiated(const std::vector<bool>& nodes, bool retained);  // `nodes`: those that gradients passed

  // --- checkpoints: parts of the graph that a backward pass makes again
  const std::vector<Lowering::Range>& checkpointed() const { return checkpointed_; }
  bool InCheckpoint() const { return depth_ > 0; }
  void BeginCheckpoint(size_t nodes);
  void EndCheckpoint(size_t nodes);
  std::vector<Lowering::Reentrant> reentrant;
  std::vector<Lowering::Unanswered> unanswered;

 private:
  TensorMeta& meta(TraceId t) { return trace_.tensors[t].meta; }
  void KeepSurely(const Call& call, const std::set<TraceId>& written);

  Trace& trace_;
  Objects& objects_;
  std::string undifferentiable_;
  bool input_written_ = false;
  std::set<TraceId> kept_;
  // Views whose base has gradients by a write to another tensor. Until one is read, the framework has made no node for
  // it, takes it for a leaf and refuses to write it.
  std::set<TraceId> like_leaves_;
  std::map<TraceId, std::vector<ValueId>> surely_kept_;
  std::vector<ValueId> held_;
  size_t noted_ = 0;                   // how many nodes there were behind the last call
  std::set<TraceId> leaves_, frozen_;  // roots that AddLeaf was told of, and what they stand for
  std::set<TraceId> tracked_;
  bool tracks_ = false;
  std::map<TraceId, TraceId> shared_;  // what Share was told
  std::set<ValueId> freed_;
  bool differentiates_ = false;
  size_t captured_ = 0;
  int depth_ = 0;  // how many checkpoints are open
  size_t begin_ = 0;
  std::vector<int> versions_;  // of the storages, when the outermost checkpoint began
  std::vector<Lowering::Range> checkpointed_;
};

}  // namespace framejit::surface
