// What derivatives see of a capture: whether those of the graph are the program's, what the framework keeps for its
// own, and what the program has differentiated itself.
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
  bool input_written() const { return input_written_; }  // with gradients
  // Does the framework perhaps keep a root's memory for a derivative? For those of which values does it surely?
  bool MayKeep(TraceId root) const { return kept_.contains(root); }
  std::vector<ValueId> KeptFor(TraceId root) const;
  void Keep(TraceId root) { kept_.insert(root); }
  void NoteCall(const Call& call, bool view);  // its results are there
  // A write that gradients do not see, to a tensor that has some; or one that makes an input have some. The framework
  // keeps operands and results of calls for their derivatives, and refuses a backward pass once one of them was
  // written. The graph would give the gradient instead: such programs are left to the framework.
  void NoteWrite(TraceId t, bool grad);
  void CheckWritable(TraceId root) const;  // throws Decline

  // --- derivatives inside of the program
  bool differentiates() const { return differentiates_; }
  bool IsLeaf(TraceId root) const { return leaves_.contains(root); }
  void AddLeaf(TraceId leaf, TraceId of);                              // roots
  void Captured(size_t tensors) { captured_ = tensors; }               // outside of a function that is differentiated
  const std::set<ValueId>& freed() const { return freed_; }            // differentiated, and nothing was kept
  void Differentiated(const std::vector<bool>& nodes, bool retained);  // those that were passed

  // --- checkpoints: parts of the graph that a backward pass makes again
  const std::vector<Lowering::Range>& checkpointed() const { return checkpointed_; }
  bool InCheckpoint() const { return depth_ > 0; }
  void BeginCheckpoint(size_t nodes);
  void EndCheckpoint(size_t nodes);

 private:
  TensorMeta& meta(TraceId t) { return trace_.tensors[t].meta; }
  void KeepSurely(const Call& call, const std::set<TraceId>& written);

  Trace& trace_;
  Objects& objects_;
  std::string undifferentiable_;
  bool input_written_ = false;
  std::set<TraceId> kept_;
  std::map<TraceId, std::vector<ValueId>> surely_kept_;
  std::set<TraceId> leaves_, frozen_;  // roots: made by Leaf; what these stood for
  std::set<ValueId> freed_;
  bool differentiates_ = false;
  size_t captured_ = 0;
  int depth_ = 0;  // of checkpoints
  size_t begin_ = 0;
  std::vector<int> versions_;  // when the outermost began
  std::vector<Lowering::Range> checkpointed_;
};

}  // namespace framejit::surface
