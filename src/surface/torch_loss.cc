// This file has the losses over classes, and that of squares.
#include "rules/decompose.h"
#include "surface/reduce.h"

namespace framejit::surface {
namespace {

using shape::Int;
using shape::Ints;

enum Reduction : int64_t { kNone, kMean, kSum };  // torch's numbers

// (input, target, weight, reduction, ignore_index, label_smoothing); op kLog: of logits, else of log-probabilities.
Outs NllLoss(Scope& s) {
  Operand x = s.tensor(0), target = s.tensor(1);
  const DType t = x.meta->dtype;
  if (!IsFloat(t) || target.meta->dtype != DType::kInt64 || x.rank() == 0) Scope::Skip();
  if (s.row.op == Op::kLog && s.number(5) != 0) Scope::Skip();
  const int axis = x.rank() == 1 ? 0 : 1;
  Ints sizes = x.meta->sizes;
  const Int classes = sizes[axis];
  sizes[axis] = 1;
  Ints apart = sizes;
  sizes.erase(sizes.begin() + axis);
  if (IsEmpty(s.env, x.meta->sizes) || target.meta->sizes.size() != sizes.size()) Scope::Skip();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!s.env.Eq(sizes[i], target.meta->sizes[i])) Scope::Skip();
  }
  const int64_t reduction = s.env.Specialize(s.integer(3)), ignored = s.env.Specialize(s.integer(4));
  ValueId logs = s.Up(x.value);
  if (s.row.op == Op::kLog) logs = rules::LogSoftmax(s.b, logs, axis);
  ValueId index = s.b.Reshape(target.value, apart), zero = rules::Like(s.b, index, 0);
  ValueId counts = s.b.Binary(Op::kNe, index, rules::Like(s.b, index, static_cast<double>(ignored)));
  index = s.b.Where(counts, index, zero);
  Attrs attrs;
  attrs.axes = {axis};
  attrs.flag = true;
  ValueId loss = s.b.Unary(Op::kNeg, s.b.Add(Op::kGather, {logs, index}, attrs));
  ValueId weight = rules::Like(s.b, loss, 1);
  if (s.has(2)) {
    Operand w = s.tensor(2);
    if (w.meta->requires_grad) Scope::Fail("torch has no gradients of weights of classes");
    if (w.meta->dtype != t || w.rank() != 1 || !s.env.Eq(w.meta->sizes[0], classes)) Scope::Skip();
    attrs.axes = {0};
    weight = s.Up(s.b.Add(Op::kTake, {w.value, index}, attrs));
    loss = s.b.Binary(Op::kMul, loss, weight);
  }
  ValueId nothing = rules::Like(s.b, loss, 0);
  loss = s.b.Where(counts, loss, nothing);
  if (reduction == kNone) return s.b.Cast(s.b.Reshape(loss, sizes), t);
  std::vector<int64_t> axes;
  for (size_t i = 0; i < apart.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  ValueId sum = s.b.Reduce(Op::kSum, loss, axes, false);
  if (reduction == kMean)
    sum = s.b.Binary(Op::kDiv, sum, s.b.Reduce(Op::kSum, s.b.Where(counts, weight, nothing), axes, false));
  return s.b.Cast(sum, t);
}

Outs SquaredError(Scope& s) {  // (input, target, reduction)
  Operand x = s.tensor(0), target = s.tensor(1);
  const DType t = x.meta->dtype;
  if (!IsFloat(t) || target.meta->dtype != t || x.rank() != target.rank() || IsEmpty(s.env, x.meta->sizes))
    Scope::Skip();
  for (int i = 0; i < x.rank(); ++i)
    if (!s.env.Eq(x.meta->sizes[i], target.meta->sizes[i])) Scope::Skip();
  const ValueId apart = s.b.Binary(Op::kSub, s.Up(x.value), s.Up(target.value));
  const ValueId loss = s.b.Binary(Op::kMul, apart, apart);
  const int64_t reduction = s.env.Specialize(s.integer(2));
  const Operand both[] = {x, target};
  if (reduction == kNone) return s.Elementwise(s.b.Cast(loss, t), both);
  std::vector<int64_t> axes;
  for (int i = 0; i < x.rank(); ++i) axes.push_back(i);
  return s.b.Cast(reduction == kMean ? rules::Mean(s.b, loss, axes, false) : s.b.Reduce(Op::kSum, loss, axes, false),
                  t);
}

// clang-format off: a table
constexpr Row kRows[] = {
    {"n:mse_loss", "(Tensor input, Tensor target, int reduction=1)", &SquaredError},
    {"n:cross_entropy_loss", "(Tensor input, Tensor target, Tensor? weight=None, int reduction=1, int ignore_index=-100, "
     "float label_smoothing=0.0)", &NllLoss, Op::kLog},
    {"n:nll_loss_nd", "(Tensor input, Tensor target, Tensor? weight=None, int reduction=1, int ignore_index=-100)", &NllLoss},
};
// clang-format on

}  // namespace

std::span<const Row> LossRows() {
  return kRows;
}

}  // namespace framejit::surface
