#include "compiler/in_place.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <numeric>

#include "graph/effects.h"
#include "graph/opaque.h"

namespace framejit::compiler {
namespace {

using runtime::Plan;
using runtime::Step;
using runtime::Storage;
using shape::Int;

bool Contains(std::span<const int> list, int x) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

// Does it call what may keep its operands?
bool IsForeign(const Plan& plan, const Step& step) {
  const auto opaque = [&](int v) { return IsOpaque(plan.values[v].device); };
  return step.kind == Step::Kind::kExtern && (step.operation->attrs.call->callee.Has(kForeign) ||
                                              std::any_of(step.results.begin(), step.results.end(), opaque));
}

// Is it dense up to a permutation, and forwards? Then no two elements have one address, and none lies before the first.
bool Injective(const shape::Ints& sizes, const shape::Ints& strides) {
  std::vector<int> order;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == Int(1)) continue;
    if (strides[i] == Int(0) || (strides[i].is_const() && strides[i].value() < 0)) return false;
    order.push_back(static_cast<int>(i));
  }
  // Constant strides: sorted, each must step over the extent of the smaller ones. Symbolic ones: row-major order only.
  const bool constant =
      std::all_of(order.begin(), order.end(), [&](int i) { return sizes[i].is_const() && strides[i].is_const(); });
  if (!constant && !strides[order.back()].is_const()) return false;
  if (constant)
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return strides[a].value() > strides[b].value(); });
  for (size_t k = 0; k + 1 < order.size(); ++k) {
    const Int extent = strides[order[k + 1]] * sizes[order[k + 1]];
    if (strides[order[k]] == extent) continue;
    if (!constant || strides[order[k]].value() < extent.value()) return false;
  }
  return true;
}

// Does the kernel read every element of the storage before it writes it through buffer argument `written`?
bool ReadsBeforeWriting(const Plan& plan, const Step& step, const loop::Kernel& k, int written, int storage) {
  std::vector<int> stage_of(k.insts.size(), 0);
  for (size_t s = 0; s < k.stages.size(); ++s) {
    for (int i : k.stages[s].insts) stage_of[i] = static_cast<int>(s);
  }
  const loop::Inst* store = nullptr;
  int store_at = -1;
  for (size_t i = 0; i < k.insts.size(); ++i) {
    if (k.insts[i].buffer != written) continue;
    if (k.insts[i].kind != loop::IKind::kStore || store) return false;
    store = &k.insts[i];
    store_at = static_cast<int>(i);
  }
  if (!store || k.column) return false;
  for (size_t i = 0; i < k.insts.size(); ++i) {
    const loop::Inst& inst = k.insts[i];
    if (inst.buffer < 0 || inst.buffer >= static_cast<int>(k.buffers.size()) || inst.buffer == written) continue;
    const runtime::Value& value = plan.values[step.operands[inst.buffer]];
    if (value.storage != storage) continue;
    if (inst.kind != loop::IKind::kLoad || value.offset != Int(0) || !(inst.index == store->index)) return false;
    if (std::pair(stage_of[i], static_cast<int>(i)) > std::pair(stage_of[store_at], store_at)) return false;
  }
  return true;
}

// May the kernel run once more than it must, with the stores to argument `written` kept in a piece of memory that holds
// a few rows?
bool Rehearsable(const loop::Kernel& k, int written) {
  constexpr int kCheap = 16;
  if (k.column || k.tiled || !k.red.empty() || !k.scratch.empty()) return false;
  if (std::count_if(k.stages.begin(), k.stages.end(), [](const loop::Stage& s) { return s.loop; }) != 1) return false;
  int cost = 0;
  for (const loop::Inst& inst : k.insts) {
    if (inst.kind == loop::IKind::kOp) cost += Info(inst.op).cost;
    if (inst.kind == loop::IKind::kReduce || inst.kind == loop::IKind::kScan || inst.kind == loop::IKind::kLoadAt ||
        inst.kind == loop::IKind::kCheck)
      return false;
    if (inst.kind != loop::IKind::kStore || inst.buffer != written) continue;
    Int stride = k.inner;
    if (!(inst.index.offset == Int(0)) || !(inst.index.inner == Int(1))) return false;
    for (size_t d = k.outer.size(); d-- > 0;) {
      if (!(inst.index.outer[d] == stride)) return false;
      stride = stride * k.outer[d];
    }
  }
  return cost <= kCheap;
}

}  // namespace

shape::Ints DirectStrides(const Graph& g, const Write& w) {
  const Node& input = g.nodes[g.inputs[w.input]];
  const bool fits = !input.strides.empty() && Injective(input.type.shape, input.strides);
  return fits ? input.strides.list() : shape::RowMajor(g.nodes[w.value].type.shape);
}

std::vector<int> Uses(const Graph& g, const pass::Grouping& grouping) {
  std::vector<int> uses(g.nodes.size(), 0);
  auto use = [&](ValueId v) { ++uses[grouping.aliases[v] ? grouping.aliases[v]->base : v]; };
  for (const pass::Group& group : grouping.groups) {
    for (ValueId v : group.nodes) {
      for (ValueId o : g.nodes[v].operands) {
        if (!std::binary_search(group.nodes.begin(), group.nodes.end(), o)) use(o);
      }
    }
  }
  for (ValueId v : g.outputs) use(v);
  for (const Write& w : g.writes) use(w.value);
  return uses;
}

bool UpdatesOperand(const Graph& g, const pass::Grouping& grouping, const std::vector<int>& uses, ValueId v) {
  const Node& n = g.nodes[v];
  if (n.op != Op::kExtern || !n.attrs.flag) return false;
  const ValueId o = n.operands[0];
  if (uses[o] != 1 || grouping.aliases[o] || grouping.aliases[v]) return false;
  for (ValueId u : {o, v}) {
    const shape::Ints& strides = g.nodes[u].strides;
    if (!strides.empty() && strides != shape::RowMajor(g.nodes[u].type.shape)) return false;
  }
  if (g.nodes[o].op == Op::kMatMul || (g.nodes[o].op == Op::kExtern && g.nodes[o].attrs.flag)) return true;
  return std::any_of(grouping.groups.begin(), grouping.groups.end(), [&](const pass::Group& group) {
    return group.kind == pass::Group::Kind::kKernel && std::count(group.stored.begin(), group.stored.end(), o);
  });
}

void LayoutsForDirectWrites(const Graph& g, const pass::Grouping& grouping, const std::vector<int>& uses,
                            std::vector<loop::Layout>& layouts) {
  for (size_t i = 0; i < g.writes.size(); ++i) {
    const Write& w = g.writes[i];
    const Node& input = g.nodes[g.inputs[w.input]];
    if (RegionOf(grouping, i) || uses[w.value] != 1 || grouping.aliases[w.value] || input.strides.empty()) continue;
    const bool stored = std::any_of(grouping.groups.begin(), grouping.groups.end(), [&](const pass::Group& group) {
      return group.kind == pass::Group::Kind::kKernel && std::count(group.stored.begin(), group.stored.end(), w.value);
    });
    if (stored && Injective(input.type.shape, input.strides)) layouts[w.value] = {input.strides, 0};
  }
}

void WriteDirectly(Plan& plan, Kernels& kernels) {
  // Steps that only write inputs (and outputs) and whose results nobody reads: they can run last.
  std::vector<bool> last(plan.steps.size(), false);
  for (auto& commit : plan.commits) {
    const runtime::Value& value = plan.values[commit.value];
    const runtime::Value& input = plan.values[plan.inputs[commit.input]];
    if (plan.storages[value.storage].kind != Storage::Kind::kScratch || !value.whole || commit.target >= 0) continue;
    if (value.strides != input.strides || value.sizes != input.sizes || value.dtype != input.dtype) continue;
    int maker = -1;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      if (Contains(plan.steps[i].results, commit.value)) maker = static_cast<int>(i);
    }
    if (maker < 0) continue;
    const Step& step = plan.steps[maker];
    const bool copies = step.kind == Step::Kind::kCopy;
    if (!copies && step.kind != Step::Kind::kKernel) continue;
    bool read_later = false;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      if (static_cast<int>(i) == maker) continue;
      for (int v : plan.steps[i].operands) {
        for (int r : step.results) read_later = read_later || plan.values[v].storage == plan.values[r].storage;
      }
    }
    if (read_later) continue;
    if (copies) {
      if (plan.values[step.operands[0]].storage == input.storage) continue;
    } else {
      const auto at = std::find(step.operands.begin(), step.operands.end(), commit.value);
      const int arg = static_cast<int>(at - step.operands.begin());
      if (at == step.operands.end() || !ReadsBeforeWriting(plan, step, *kernels[maker], arg, input.storage)) continue;
      // What it notices ends the run before anything is written.
      if (kernels[maker]->ieee || kernels[maker]->Checks()) {
        if (step.on_device() || arg >= Step::kRehearsed || !Rehearsable(*kernels[maker], arg)) continue;
        plan.steps[maker].rehearse |= uint64_t{1} << arg;
      }
    }
    commit.direct = true;
    last[maker] = true;
  }
  // A kernel at the end that reads an input which another one at the end has already written makes that write indirect.
  for (auto& commit : plan.commits) {
    if (!commit.direct) continue;
    bool written = false;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      if (!last[i]) continue;
      if (written) {
        for (int v : plan.steps[i].operands) {
          if (plan.values[v].storage == plan.values[plan.inputs[commit.input]].storage) commit.direct = false;
        }
      }
      written = written || Contains(plan.steps[i].results, commit.value);
    }
    // Two writes of one input: the later one wins, so none of them may jump ahead of the other.
    for (const auto& other : plan.commits) {
      if (&other != &commit && other.input == commit.input) commit.direct = false;
    }
  }
  std::vector<Step> ordered;
  Kernels ordered_kernels;
  ordered.reserve(plan.steps.size());
  for (bool at_end : {false, true}) {
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      if (last[i] != at_end) continue;
      ordered.push_back(std::move(plan.steps[i]));
      ordered_kernels.push_back(std::move(kernels[i]));
    }
  }
  plan.checked_steps = static_cast<int>(std::count(last.begin(), last.end(), false));
  plan.steps = std::move(ordered);
  kernels = std::move(ordered_kernels);
}

void FeedProducts(Plan& plan, const Kernels& kernels) {
  std::vector<int> reads(plan.storages.size(), 0);  // by steps, of what they do not make, and at the end
  for (const Step& step : plan.steps)
    for (int v : step.operands) reads[plan.values[v].storage] += !Contains(step.results, v);
  for (const auto& c : plan.commits) ++reads[plan.values[c.value].storage];
  for (const auto& o : plan.outputs)
    if (o.value >= 0) ++reads[plan.values[o.value].storage];
  for (size_t i = 0; i + 1 < plan.steps.size(); ++i) {
    Step& step = plan.steps[i];
    const Step& product = plan.steps[i + 1];
    if (step.kind != Step::Kind::kKernel || step.on_device() || step.results.size() != 1) continue;
    if (product.kind != Step::Kind::kMatMul) continue;
    const runtime::Value &made = plan.values[step.results[0]], &a = plan.values[product.operands[0]];
    if (a.storage != made.storage || a.sizes != made.sizes || a.strides != made.strides || !made.whole) continue;
    if (!pass::FeedsProduct(made.dtype, made.sizes, plan.values[product.operands[1]].sizes)) continue;
    if (reads[made.storage] != 1 || plan.storages[made.storage].kind != Storage::Kind::kScratch) continue;
    if (!(made.offset == Int(0)) || made.strides != shape::RowMajor(made.sizes)) continue;
    const auto at = std::find(step.operands.begin(), step.operands.end(), step.results[0]);
    step.feeds = at != step.operands.end() && Rehearsable(*kernels[i], static_cast<int>(at - step.operands.begin()));
  }
}

void PairProducts(Plan& plan, Kernels& kernels) {
  const auto product = [&](size_t i) { return i < plan.steps.size() && plan.steps[i].kind == Step::Kind::kMatMul; };
  // The number of the operand that is a matrix, where the other one is a vector; -1: there is none.
  const auto matrix_of = [&](const Step& s) {
    const runtime::Value &a = plan.values[s.operands[0]], &b = plan.values[s.operands[1]];
    if (a.dtype != DType::kFloat64 || a.sizes.size() != 2 || b.sizes.size() != 2) return -1;
    if (a.device.kind != DeviceKind::kCpu || plan.storages[a.storage].on_device) return -1;
    const bool first = b.sizes[1] == Int(1), second = a.sizes[0] == Int(1);
    return first == second ? -1 : static_cast<int>(second);
  };
  const auto same = [&](const runtime::Value& a, const runtime::Value& b) {
    const auto turned = [](const shape::IntList& x, const shape::IntList& y) { return x[0] == y[1] && x[1] == y[0]; };
    if (a.storage != b.storage || !(a.offset == b.offset)) return false;
    return (a.sizes == b.sizes && a.strides == b.strides) || (turned(a.sizes, b.sizes) && turned(a.strides, b.strides));
  };
  for (size_t i = 0; i + 1 < plan.steps.size() && static_cast<int>(i) < plan.checked_steps; ++i) {
    const int of = product(i) ? matrix_of(plan.steps[i]) : -1;
    if (of < 0 || plan.steps[i].feeds || (i > 0 && (plan.steps[i - 1].feeds || plan.steps[i - 1].pairs))) continue;
    std::vector<bool> made(plan.storages.size(), false);  // between the two
    for (size_t j = i + 1; static_cast<int>(j) < plan.checked_steps; ++j) {
      const Step& other = plan.steps[j];
      const int its = product(j) && !plan.steps[j - 1].feeds ? matrix_of(other) : -1;
      const auto in = [&](int operand) { return plan.values[other.operands[operand]]; };
      if (its >= 0 && same(plan.values[plan.steps[i].operands[of]], in(its)) && !made[in(1 - its).storage]) {
        std::rotate(plan.steps.begin() + i + 1, plan.steps.begin() + j, plan.steps.begin() + j + 1);
        std::rotate(kernels.begin() + i + 1, kernels.begin() + j, kernels.begin() + j + 1);
        plan.steps[i].pairs = true;
        break;
      }
      for (int v : other.results) made[plan.values[v].storage] = true;
    }
  }
}

void LendOperands(Plan& plan) {
  for (const Step& step : plan.steps) {
    if (!IsForeign(plan, step)) continue;
    for (int v : step.operands) {
      Storage& s = plan.storages[plan.values[v].storage];
      if (s.kind == Storage::Kind::kScratch) s.kind = Storage::Kind::kLent;
    }
  }
}

void ReuseOperands(Plan& plan, const Kernels& kernels) {
  constexpr int kNever = 1 << 30;
  std::vector<int> last(plan.storages.size(), -1);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    for (int v : plan.steps[i].operands) last[plan.values[v].storage] = static_cast<int>(i);
    for (int v : plan.steps[i].results) last[plan.values[v].storage] = static_cast<int>(i);
  }
  std::vector<bool> committed(plan.storages.size(), false);
  for (const auto& c : plan.commits) committed[plan.values[c.value].storage] = true;
  for (const auto& o : plan.outputs) last[plan.values[o.value].storage] = kNever;
  std::vector<bool> ours(plan.storages.size(), false);  // what nobody else may see: not what externs return
  for (size_t s = 0; s < plan.storages.size(); ++s) ours[s] = plan.storages[s].kind == Storage::Kind::kScratch;
  for (const Step& step : plan.steps) {
    if (step.kind != Step::Kind::kConv && step.kind != Step::Kind::kAttention && step.kind != Step::Kind::kLinear)
      continue;
    for (int v : step.results) ours[plan.values[v].storage] = true;
  }
  for (const Step& step : plan.steps)
    for (int v : step.operands)
      if (IsForeign(plan, step)) ours[plan.values[v].storage] = false;
  std::vector<absl::InlinedVector<int, 4>> ways(plan.storages.size());  // the values of each
  for (size_t v = 0; v < plan.values.size(); ++v) ways[plan.values[v].storage].push_back(static_cast<int>(v));
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.kind != Step::Kind::kKernel) continue;
    for (size_t a = 0; a < step.operands.size(); ++a) {
      const runtime::Value& result = plan.values[step.operands[a]];
      const int from = result.storage;
      if (!Contains(step.results, step.operands[a]) || plan.storages[from].kind != Storage::Kind::kScratch ||
          !result.whole || committed[from]) {
        continue;
      }
      for (int v : step.operands) {
        const runtime::Value& operand = plan.values[v];
        const int to = operand.storage;
        if (Contains(step.results, v) || !ours[to] || !operand.whole) continue;
        if (committed[to] || last[to] != static_cast<int>(i) || operand.sizes != result.sizes) continue;
        if (operand.strides != result.strides || DTypeSize(operand.dtype) != DTypeSize(result.dtype)) continue;
        if (!ReadsBeforeWriting(plan, step, *kernels[i], static_cast<int>(a), to)) continue;
        for (int r : ways[from]) plan.values[r].storage = to;
        ways[to].insert(ways[to].end(), ways[from].begin(), ways[from].end());
        ways[from].clear();
        last[to] = last[from];
        break;
      }
    }
  }
}

}  // namespace framejit::compiler
