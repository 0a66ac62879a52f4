#include "surface/derivatives.h"

#include <algorithm>
#include <string_view>

#include "graph/arguments.h"
#include "graph/effects.h"

namespace framejit::surface {

bool WantsGrad(const Trace& trace, const Call& call) {
  bool any = false;
  EachTensor(call, [&](TraceId t) { any |= trace.tensors[t].meta.requires_grad; });
  return any && call.mode.grad && !call.mode.inference;
}

std::vector<ValueId> Derivatives::KeptFor(TraceId root) const {
  auto at = surely_kept_.find(root);
  return at == surely_kept_.end() ? std::vector<ValueId>() : at->second;
}

void Derivatives::KeepSurely(TraceId root, const std::vector<ValueId>& by) {
  std::vector<ValueId>& all = surely_kept_[root];
  all.insert(all.end(), by.begin(), by.end());
}

// What the framework's derivative surely keeps.
void Derivatives::KeepSurely(const Call& call, const std::set<TraceId>& written) {
  bool all = true;
  size_t tensors = 0, n = 0;
  EachTensor(call, [&](TraceId t) {
    all &= meta(t).requires_grad || !IsFloat(meta(t).dtype);
    ++tensors;
  });
  const bool none = call.callee.effects().keeps & kIfAlone && (tensors > 1 || call.results.size() > 1);
  std::vector<ValueId> made;
  for (TraceId t : call.results) made.push_back(objects_.Value(t));
  const auto keep = [&](TraceId root) { KeepSurely(root, made); };
  for (size_t i = 0; i < call.results.size(); ++i) {
    const TraceId t = call.results[i];
    const bool keeps = !none && framejit::Keeps(call.callee, kResult, i);
    if (t == objects_[t].root && (keeps || meta(t).dtype == DType::kInt64)) keep(t);
  }
  for (const Arg& a : call.args) {
    if (none || !a.is(Arg::Kind::kTensor) || !IsFloat(meta(a.t).dtype)) continue;
    const TraceId root = objects_[a.t].root;
    if (framejit::Keeps(call.callee, kFirst, n) && (n == 0 || all) && !written.contains(root)) keep(root);
    ++n;
  }
}

namespace {

// Products and quotients: of a tensor and a number they keep nothing, of two tensors the first for the second's
// gradient.
bool IsProduct(Callee callee) {
  return callee.Has(kTakesHeldNumber) && callee.Has(kKeepsNoResult) && !callee.Has(kKeepsNoOperand);
}

}  // namespace

void Derivatives::NoteCall(const Call& call, bool view) {
  const bool writes_first = call.callee.Has(kInPlace) || call.callee.last() == "__setitem__";
  const bool reads = call.mode.grad && !call.mode.inference && call.callee.last() != "detach" && !like_leaves_.empty();
  size_t number = 0;
  EachTensor(call, [&](TraceId t) {
    if (number++ > 0 || !writes_first) reads ? like_leaves_.erase(t) : 0;
  });
  bool tracked = call.results.empty();  // what has no gradients keeps nothing for them
  for (TraceId t : call.results) tracked |= meta(t).requires_grad;
  if (view || !tracked || !WantsGrad(trace_, call)) return;
  std::set<TraceId> written;
  const bool keeps_operands = !call.callee.Has(kKeepsNoOperand), keeps_result = !call.callee.Has(kKeepsNoResult);
  for (TraceId t : call.results) {
    written.insert(objects_[t].root);
    if (keeps_result || !IsFloat(meta(t).dtype)) kept_.insert(objects_[t].root);
  }
  KeepSurely(call, written);
  if (call.results.empty() && !call.args.empty() && call.args[0].is(Arg::Kind::kTensor))
    written.insert(objects_[call.args[0].t].root);  // x[...] = v
  std::vector<TraceId> operands;
  EachTensor(call, [&](TraceId t) { operands.push_back(t); });
  for (size_t i = 0; i < operands.size(); ++i) {
    const TraceId t = operands[i];
    bool keeps = keeps_operands;
    if (keeps && IsProduct(call.callee))
      keeps = operands.size() > 2 || (operands.size() == 2 && (i == 1 || meta(operands[1]).requires_grad));
    if (!keeps && IsFloat(meta(t).dtype)) continue;
    if (!written.contains(objects_[t].root))
      kept_.insert(objects_[t].root);
    else if (i > 0 && call.callee.Has(kInPlace))  // the target itself is kept as a copy of what it was
      Leave("a tensor is written by a call whose derivative may need it");
  }
}

// Rows that are several operations to the framework, each of which keeps what it wants.
static bool IsSeveral(Callee callee) {
  static constexpr std::string_view kSeveral[] = {"__rdiv__",
                                                  "__rtruediv__",
                                                  "cosine_embedding_loss",
                                                  "cross_entropy_loss",
                                                  "hinge_embedding_loss",
                                                  "instance_norm",
                                                  "kl_div",
                                                  "l1_loss",
                                                  "margin_ranking_loss",
                                                  "poisson_nll_loss",
                                                  "rms_norm",
                                                  "softsign",
                                                  "tanhshrink",
                                                  "trapezoid",
                                                  "trapz",
                                                  "triplet_margin_loss"};
  return std::find(std::begin(kSeveral), std::end(kSeveral), callee.last()) != std::end(kSeveral);
}

void Derivatives::NoteHeld(const Call& call, size_t nodes) {
  for (TraceId t : call.results)
    if (objects_[t].root == t) held_.push_back(objects_[t].value);  // no view
  if (call.results.empty() && !call.args.empty() && call.args[0].is(Arg::Kind::kTensor))
    held_.push_back(objects_[call.args[0].t].value);
  const bool all = call.callee.Has(kKeepsNoOperand) || IsSeveral(call.callee);
  for (size_t v = noted_; all && v < nodes; ++v) held_.push_back(static_cast<ValueId>(v));
  noted_ = nodes;
}

void Derivatives::NoteTarget(const Call& call) {
  // Through tensors and lists the target itself is written, else a view of it.
  bool writes = call.callee.Has(kInPlace);
  if (call.callee.last() == "__setitem__" && call.args.size() == 3) {
    writes = call.args[1].is(Arg::Kind::kEllipsis) || call.args[1].is(Arg::Kind::kList);
    EachTensor(call.args[1], [&](TraceId) { writes = true; });
  }
  if (like_leaves_.empty() || !writes || !call.mode.grad || call.args.empty()) return;
  if (call.args[0].is(Arg::Kind::kTensor) && like_leaves_.contains(call.args[0].t))
    Leave("a view is written that the framework takes for a leaf");
}

void Derivatives::NoteWrite(TraceId t, bool grad, bool part) {
  TraceId root = objects_[t].root;
  if (grad && part && t != root && !meta(t).requires_grad) like_leaves_.insert(t);
  if (grad && !objects_[t].follows) throw Decline("an in-place write with gradients to a view that forbids it");
  if (undifferentiable_.empty() && kept_.contains(root))
    undifferentiable_ = "a tensor is written that a derivative may need";
  kept_.erase(root);
  surely_kept_.erase(root);
  const TraceId domain = objects_[t].domain;
  bool tracked = meta(t).requires_grad || meta(domain).requires_grad;
  const bool input = grad && trace_.tensors[root].input >= 0, overwrites = meta(root).requires_grad && domain == root;
  input_written_ |= input;
  if (!undifferentiable_.empty()) return;
  if (tracked && !grad) undifferentiable_ = "a tensor that requires gradients is written without them";
  if (input && !overwrites) undifferentiable_ = "an input is written with gradients";
  for (size_t i = 0; i < objects_.size(); ++i) {
    if (objects_[i].root != root || i == t) continue;
    if (objects_[i].domain != domain && meta(i).requires_grad)
      undifferentiable_ = "a tensor that requires gradients is written behind their back";
    if (!grad || objects_[i].domain != domain || (meta(i).requires_grad && objects_[i].follows)) continue;
    if (objects_[i].follows && (IsFloat(meta(i).dtype) || IsComplex(meta(i).dtype))) {
      if (static_cast<TraceId>(i) != root) like_leaves_.insert(static_cast<TraceId>(i));
      meta(i).requires_grad = true;
    } else {
      undifferentiable_ = "a tensor with views is written with gradients";
    }
  }
}

void Derivatives::CheckWritable(TraceId root) const {
  if (captured_ && (trace_.tensors[root].input >= 0 || root + 1 < captured_))
    throw Decline("write to a tensor from outside of a function that is differentiated");
  if (leaves_.contains(root) || frozen_.contains(root))
    throw Decline("write to a tensor with gradients of its own", Decline::Cause::kLeaf);
  for (const auto& [result, of] : shared_)
    if (root == result || root == of) throw Decline("write to what a torch.autograd.Function returned as a view");
}

void Derivatives::Share(TraceId result, TraceId root) {
  shared_[result] = root;
}

void Derivatives::AddLeaf(TraceId leaf, TraceId of) {
  leaves_.insert(leaf);
  frozen_.insert(of);
  differentiates_ = true;
}

void Derivatives::Differentiated(const std::vector<bool>& nodes, bool retained) {
  for (ValueId v = 0; v < nodes.size() && !retained; ++v)
    if (nodes[v]) freed_.insert(v);
  differentiates_ = true;
}

void Derivatives::BeginCheckpoint(size_t nodes) {
  if (depth_++) return;  // one inside another is made again with it
  begin_ = nodes;
  versions_ = objects_.versions();
}

void Derivatives::EndCheckpoint(size_t nodes) {
  if (--depth_) return;
  const size_t known = versions_.size();
  versions_.resize(objects_.versions().size());  // of what was read there first, and of what was made there
  for (size_t t = 0; t < versions_.size(); ++t)
    if (objects_.versions()[t] != versions_[t] && (t < known || trace_.tensors[t].input >= 0))
      throw Decline("a tensor from outside is written");  // and again, later
  checkpointed_.emplace_back(begin_, nodes);
}

}  // namespace framejit::surface
