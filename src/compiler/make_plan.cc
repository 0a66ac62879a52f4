#include "compiler/make_plan.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "codegen/codegen.h"
#include "compiler/in_place.h"
#include "compiler/target.h"
#include "diag/diag.h"
#include "diag/no_kernel.h"
#include "graph/hints.h"
#include "graph/raises.h"
#include "graph/views.h"
#include "pass/alias.h"
#include "runtime/interpret_node.h"

namespace framejit::compiler {
namespace {

using loop::Layout;
using pass::Group;
using runtime::Plan;
using runtime::Step;
using runtime::Storage;
using runtime::Value;
using shape::Int;

std::string At(const Node& n) {
  if (n.file.empty()) return "";
  return "@" + std::string(n.file.last()) + ":" + std::to_string(n.line);
}

// "sub_exp_sum_div@model.py:31": the operations that say most about a kernel, in order, and the line of its result.
std::string KernelName(const Graph& g, const Group& group) {
  absl::InlinedVector<std::string_view, 16> names;
  const Node* last = nullptr;
  for (ValueId v : group.nodes) {
    const Node& n = g.nodes[v];
    if (!n.file.empty()) last = &n;
    if (IsView(n.op) || Info(n.op).kind == 'C' || n.op == Op::kCast) continue;
    if (std::find(names.begin(), names.end(), Info(n.op).name) == names.end()) names.push_back(Info(n.op).name);
  }
  if (names.empty()) names.push_back(Info(g.nodes[group.nodes.back()].op).name);
  if (names.size() > 5) names.erase(names.begin() + 2, names.end() - 3);
  std::string text;
  for (std::string_view n : names) text.append(text.empty() ? "" : "_").append(n);
  return last ? text.append(At(*last)) : text;
}

bool IsZero(const Node& n) {  // all its bits
  if (n.op != Op::kConstant || n.attrs.sym_scalar || IsComplex(n.type.dtype)) return false;
  const double value = n.attrs.scalar.AsDouble();
  return value == 0 && !std::signbit(value);
}

// A kernel that was made of a group.
struct MadeKernel {
  loop::Pattern pattern;
  size_t members = 0;
  std::shared_ptr<const loop::Kernel> kernel;
  std::shared_ptr<const runtime::KernelWork> work;
  std::vector<int> buffers;  // by place in the pattern's values
};

class Planner {
 public:
  Planner(const Graph& g, const pass::Grouping& grouping, const CompileOptions& options, Device device,
          CompileStats& stats)
      : g_(g),
        grouping_(grouping),
        options_(options),
        device_(device),
        stats_(stats),
        layouts_(grouping.layouts),
        uses_(Uses(g, grouping)),
        patterns_(g),
        kernel_layouts_(g.nodes.size()),
        part_(g.nodes.size()),
        value_of_(g.nodes.size(), -1) {}

  Plan Run() {
    plan_.name = g_.name;
    plan_.device = device_;
    plan_.machine = TargetOf(device_).machine(device_);
    plan_.graphs = options_.gpu_graphs;
    plan_.symbol_sources = g_.symbol_sources;
    for (ValueId v = 0; v < g_.nodes.size() && options_.traps & ~kBadIndex; ++v) {
      if (MayRaise(g_, v)) plan_.traps = options_.traps;
    }
    for (size_t i = 0; i < g_.inputs.size(); ++i) {
      const int storage = NewStorage(Storage::Kind::kInput, i);
      plan_.inputs.push_back(NewValue(g_.inputs[i], storage, true));
    }
    NoteNothings();
    FindFed();
    LayoutsForDirectWrites(g_, grouping_, uses_, layouts_);
    AssignOutputs();
    PlaceParts();
    for (const Group& group : grouping_.groups) {
      if (group.kind == Group::Kind::kKernel)
        LowerKernel(group);
      else if (group.kind == Group::Kind::kExtern)
        LowerExtern(group);
      else if (group.kind == Group::Kind::kJoin)
        Join(group.nodes[0]);
      else
        LowerLibrary(group.nodes[0]);
    }
    CopyOutputs();
    LowerWrites();
    kernels_.resize(plan_.steps.size());
    WriteDirectly(plan_, kernels_);
    FeedProducts(plan_, kernels_);
    PairProducts(plan_, kernels_);
    LendOperands(plan_);
    ReuseOperands(plan_, kernels_);
    plan_.storages.shrink_to_fit();  // A plan is kept as long as its code.
    plan_.values.shrink_to_fit();
    plan_.inputs.shrink_to_fit();
    return std::move(plan_);
  }

 private:
  void NoteNothings() {
    std::vector<bool> raises(g_.nodes.size());  // or what it is made of
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& n = g_.nodes[v];
      raises[v] = MayRaise(g_, v);
      for (ValueId o : n.operands) raises[v] = raises[v] || raises[o];
      const bool indexes = n.op == Op::kTake || n.op == Op::kGather;
      if (!indexes && !(n.op == Op::kBroadcast && (plan_.traps & ~kBadIndex) && raises[v])) continue;
      const Int size = indexes ? g_.nodes[n.operands[0]].type.shape[n.attrs.axes[0]] : n.type.numel();
      if (size.is_const() && (size.value() != 0 || !indexes)) continue;  // KeepRaising sees to what is read by nothing
      plan_.nothings.push_back({size, g_.nodes[n.operands[indexes]].type.numel(), indexes ? kBadIndex : kInvalid});
    }
  }

  int NewStorage(Storage::Kind kind, int index = -1) {
    Storage s;
    s.kind = kind;
    s.index = index;
    plan_.storages.push_back(s);
    return static_cast<int>(plan_.storages.size()) - 1;
  }

  int NewValue(ValueId v, int storage, bool whole) {
    const int value = AddValue(v, storage, layouts_[v], whole);
    value_of_[v] = value;
    return value;
  }

  int AddValue(ValueId v, int storage, const Layout& layout, bool whole) {
    const TensorType& t = g_.nodes[v].type;
    Value value;
    value.storage = storage;
    value.dtype = t.dtype;
    value.device = t.device;
    if (t.device.kind != DeviceKind::kCpu) plan_.storages[storage].on_device = true;
    value.sizes = t.shape;
    value.strides = layout.strides;
    value.offset = layout.offset;
    value.node = v;
    value.whole = whole;
    FRAMEJIT_CHECK(value.strides.size() == value.sizes.size());
    plan_.values.push_back(std::move(value));
    return static_cast<int>(plan_.values.size()) - 1;
  }

  // Which outputs are written in place by the step that makes them.
  void AssignOutputs() {
    plan_.outputs.resize(g_.outputs.size());
    for (size_t o = 0; o < g_.outputs.size(); ++o) {
      const ValueId v = g_.outputs[o];
      const ValueId base = grouping_.aliases[v] ? grouping_.aliases[v]->base : v;
      if (g_.nodes[base].op == Op::kInput || storage_of_.count(base)) continue;
      const bool updates = g_.nodes[base].op == Op::kExtern && g_.nodes[base].attrs.flag;
      if (!updates && (Info(g_.nodes[base].op).kind == 'X' || g_.nodes[base].op == Op::kPack)) {
        if (base != v || handed_over_.count(v)) continue;
        handed_over_[v] = static_cast<int>(o);
        plan_.outputs[o].handed_over = true;
        continue;
      }
      if (!pass::CoversAsOutput(g_, base, v, grouping_.layouts[v])) continue;
      const int storage = NewStorage(Storage::Kind::kOutput, o);
      storage_of_[base] = storage;
      for (ValueId u = base; UpdatesOperand(g_, grouping_, uses_, u);)
        storage_of_[u = g_.nodes[u].operands[0]] = storage;
      plan_.outputs[o].value = base == v ? kBaseValue : NewValue(v, storage, false);
    }
  }

  // Where the parts of this lie in it.
  std::vector<Layout> Places(ValueId join) const {
    const Node& n = g_.nodes[join];
    const int64_t axis = n.attrs.axes[0];
    std::vector<Layout> places;
    Layout at = layouts_[join];
    for (ValueId o : n.operands) {
      places.push_back(at);
      at.offset = at.offset + g_.nodes[o].type.shape[axis] * at.strides[axis];
    }
    return places;
  }

  // What a kernel makes as a part of something is made in its place there, be it seen through one view or none.
  void PlaceParts() {
    std::vector<bool> made(g_.nodes.size()), written(g_.nodes.size());  // by a kernel; written to inputs
    std::vector<std::vector<ValueId>> views(g_.nodes.size());           // by base
    for (ValueId v = 0; v < g_.nodes.size(); ++v)
      if (grouping_.aliases[v]) views[grouping_.aliases[v]->base].push_back(v);
    for (const Write& w : g_.writes) written[w.value] = true;
    for (const Group& group : grouping_.groups)
      for (ValueId v : group.stored) made[v] = group.kind == Group::Kind::kKernel || group.kind == Group::Kind::kJoin;
    for (size_t i = grouping_.groups.size(); i-- > 0;) {  // what is a part of another before its own parts
      if (grouping_.groups[i].kind != Group::Kind::kJoin) continue;
      const ValueId join = grouping_.groups[i].nodes[0];
      SetLayout(join);
      const int storage = storage_of_.try_emplace(join, -1).first->second;
      if (storage < 0) storage_of_[join] = NewStorage(Storage::Kind::kScratch);
      const std::vector<Layout> places = Places(join);
      for (size_t k = 0; k < places.size(); ++k) {
        const ValueId o = g_.nodes[join].operands[k], base = grouping_.aliases[o] ? grouping_.aliases[o]->base : o;
        if (!made[base] || written[base] || storage_of_.count(base) || views[base].size() > (base == o ? 0 : 1))
          continue;
        Layout place = places[k];
        if (base != o) {
          Node view;
          view.op = Op::kReshape;
          view.type = g_.nodes[base].type;
          view.attrs.syms = view.type.shape;
          const Node& n = g_.nodes[o];
          const auto seen =
              n.op == Op::kReshape && n.operands[0] == base ? ViewLayout(view, n.type, place) : std::nullopt;
          if (!seen) continue;
          layouts_[o] = place;
          place = *seen;
        }
        layouts_[base] = place;
        part_[base] = true;
        storage_of_[base] = storage_of_[join];
      }
    }
  }

  // Parts that were not made in their places are copied there.
  void Join(ValueId join) {
    const std::vector<Layout> places = Places(join);
    const int storage = storage_of_.at(join);
    for (size_t k = 0; k < places.size(); ++k) {
      const ValueId o = g_.nodes[join].operands[k];
      const int from = ValueOf(o);
      if (plan_.values[from].storage == storage && plan_.values[from].offset == places[k].offset) continue;
      AddCopy(from, AddValue(o, storage, places[k], false));
    }
    NewValue(join, storage, !part_[join]);
  }

  // Gives the plan's value for a graph value that exists by now.
  int ValueOf(ValueId v) {
    if (value_of_[v] >= 0) return value_of_[v];
    const auto& alias = grouping_.aliases[v];
    FRAMEJIT_CHECK(alias.has_value());
    return NewValue(v, plan_.values[ValueOf(alias->base)].storage, false);
  }

  // An element seen through an alias has no strides either, but an offset: the rank tells what has no layout yet.
  void SetLayout(ValueId v) {
    if (layouts_[v].strides.size() != g_.nodes[v].type.shape.size()) layouts_[v] = pass::StoredLayout(g_, v);
  }

  // A fresh value that the next step makes.
  int Make(ValueId v, Storage::Kind kind = Storage::Kind::kScratch) {
    auto it = storage_of_.find(v);
    SetLayout(v);
    return NewValue(v, it != storage_of_.end() ? it->second : NewStorage(kind), !part_[v]);
  }

  void LowerKernel(const Group& group) {
    std::string why = "it cannot be fused";
    try {
      if (MakeAsKnown(group)) return;
      if (loop::CanFuse(g_, group.nodes, group.stored)) {
        CompileKernel(group);
        return;
      }
    } catch (const codegen::CodegenUnsupported& e) {
      why = e.what();
      const std::string text = "kernel " + KernelName(g_, group) + " is not compiled as a whole: " + why;
      if (diag::OptionOn("strict")) throw diag::InternalError(text);
      diag::Log(diag::Channel::perf_, text);
    }
    std::vector<Group> parts = pass::Split(g_, group);
    if (parts.size() > 1) {
      for (const Group& part : parts) LowerKernel(part);
    } else {
      LowerNode(group, why);
    }
  }

  // Says how lie what the group reads and what it stores.
  void SetLayouts(const Group& group, const loop::Pattern& pattern) {
    for (size_t i = group.nodes.size(); i < pattern.values.size(); ++i) SetLayout(pattern.values[i]);
    for (ValueId v : group.stored) SetLayout(v);
  }

  void CompileKernel(const Group& group) {
    loop::Pattern pattern = patterns_.Of(group.nodes, group.stored);
    // Buffers are passed with their offsets added, so that kernels do not depend on them.
    std::vector<Layout>& layouts = kernel_layouts_;  // entries that this kernel does not read may be stale
    SetLayouts(group, pattern);
    const auto pass_on = [&](ValueId v) { layouts[v] = {layouts_[v].strides, 0}; };
    std::for_each(pattern.values.begin() + static_cast<ptrdiff_t>(group.nodes.size()), pattern.values.end(), pass_on);
    std::for_each(group.stored.begin(), group.stored.end(), pass_on);
    const Device device = g_.nodes[group.stored.at(0)].type.device;
    loop::BuiltKernel built = loop::BuildKernel(g_, group.nodes, group.stored, layouts, TargetOf(device).costs());
    const std::vector<ValueId> buffers = built.buffers;
    MadeKernel made = AddKernel(std::move(built), group, device);
    for (ValueId v : buffers)
      made.buffers.push_back(static_cast<int>(std::ranges::find(pattern.values, v) - pattern.values.begin()));
    made.pattern = std::move(pattern);
    made.members = group.nodes.size();
    if (made_.size() == kKnown) made_.erase(made_.begin());
    made_.push_back(std::move(made));
  }

  // Takes the kernel of a group that does the same, if there was one.
  bool MakeAsKnown(const Group& group) {
    if (made_.empty() || diag::Enabled(diag::Channel::loop_)) return false;
    const loop::Pattern pattern = patterns_.Of(group.nodes, group.stored);
    SetLayouts(group, pattern);
    const bool ieee = LooksAtExceptions(group);
    const auto known = std::find_if(made_.rbegin(), made_.rend(), [&](const MadeKernel& made) {
      return made.members == group.nodes.size() && made.kernel->ieee == ieee &&
             !(made.kernel->stream && IsFed(group)) && patterns_.Alike(made.pattern, pattern, made.members, &layouts_);
    });
    if (known == made_.rend()) return false;
    ++stats_.kernels;
    ++stats_.kernels_reused;
    std::vector<ValueId> buffers;
    for (int i : known->buffers) buffers.push_back(pattern.values[i]);
    AddStep(*known, buffers, group, KernelName(g_, group));
    return true;
  }

  bool LooksAtExceptions(const Group& group) const {
    return (options_.traps & ~kBadIndex) &&
           std::any_of(group.nodes.begin(), group.nodes.end(), [&](ValueId v) { return MayRaise(g_, v); });
  }

  MadeKernel AddKernel(loop::BuiltKernel built, const Group& group, Device device) {
    const Target& target = TargetOf(device);
    built.kernel.name = KernelName(g_, group);
    built.kernel.ieee = built.kernel.ieee || LooksAtExceptions(group);
    built.kernel.stream = Streams(group, target.costs()) && !IsFed(group);
    plan_.traps |= options_.traps & built.kernel.Checks();
    if (diag::Enabled(diag::Channel::loop_)) diag::Log(diag::Channel::loop_, built.kernel.str());
    bool reused = false;
    MadeKernel made;
    runtime::KernelWork work;
    work.symbols = built.symbols;
    target.Emit(built.kernel, device, options_, &work, &reused);
    made.work = std::make_shared<const runtime::KernelWork>(std::move(work));
    ++stats_.kernels;
    ++(reused ? stats_.kernels_reused : stats_.kernels_compiled);
    const std::string name = built.kernel.name;
    made.kernel = std::make_shared<const loop::Kernel>(std::move(built.kernel));
    AddStep(made, built.buffers, group, name);
    return made;
  }

  void Name(Step* step, std::string name) { step->name = &*plan_.names.insert(std::move(name)).first; }

  void AddStep(const MadeKernel& made, const std::vector<ValueId>& buffers, const Group& group, std::string name) {
    Step step;
    step.kernel = made.work;
    Name(&step, std::move(name));
    step.zeros =
        made.kernel->stream && !part_[group.stored[0]] && group.nodes.size() == 1 && IsZero(g_.nodes[group.nodes[0]]);
    for (ValueId v : group.stored) step.results.push_back(Make(v));
    for (ValueId v : buffers) step.operands.push_back(ValueOf(v));
    kernels_.resize(plan_.steps.size());
    kernels_.push_back(made.kernel);
    plan_.steps.push_back(std::move(step));
  }

  // What a product may read as it is made.
  void FindFed() {
    fed_.assign(g_.nodes.size(), false);
    for (const Group& group : grouping_.groups) {
      const Node& n = g_.nodes[group.nodes[0]];
      if (n.op != Op::kMatMul || uses_[n.operands[0]] != 1) continue;
      fed_[n.operands[0]] =
          pass::FeedsProduct(n.type.dtype, g_.nodes[n.operands[0]].type.shape, g_.nodes[n.operands[1]].type.shape);
    }
  }
  bool IsFed(const Group& group) const { return group.stored.size() == 1 && fed_[group.stored[0]]; }

  bool Streams(const Group& group, const loop::Costs& costs) const {
    const auto is_result = [&](ValueId v) {
      return uses_[v] == 1 && std::find(g_.outputs.begin(), g_.outputs.end(), v) != g_.outputs.end();
    };
    const bool results = std::all_of(group.stored.begin(), group.stored.end(), is_result);
    return Written(group) >= (results ? costs.streamed_results : costs.streamed_bytes);
  }
  int64_t Written(const Group& group) const {  // bytes, at the sizes that were captured
    const std::vector<int64_t> hints = Hints(g_);
    int64_t bytes = 0;
    for (ValueId v : group.stored) {
      const TensorType& t = g_.nodes[v].type;
      bytes += t.numel().Eval(hints) * DTypeSize(t.dtype);
    }
    return bytes;
  }

  void LowerNode(const Group& group, const std::string& why) {
    if (!runtime::reference_steps) throw diag::NoKernel(KernelName(g_, group), why);
    ++stats_.interpreted;
    LowerOne(group.stored.at(0), Step::Kind::kNode);
  }

  std::shared_ptr<const runtime::Operation> OperationOf(const Node& n, std::span<const runtime::Library> libraries) {
    const auto same = [&](const std::shared_ptr<const runtime::Operation>& known) {
      return SameOperation(known->op, known->attrs, known->type, n) && known->libraries.data() == libraries.data();
    };
    const auto known = std::find_if(operations_.rbegin(), operations_.rend(), same);
    if (known != operations_.rend()) return *known;
    if (operations_.size() == kKnown) operations_.erase(operations_.begin());
    return operations_.emplace_back(std::make_shared<const runtime::Operation>(n.op, n.attrs, n.type, libraries));
  }

  void LowerOne(ValueId v, Step::Kind kind, Storage::Kind result = Storage::Kind::kScratch) {
    const Node& n = g_.nodes[v];
    Step step;
    step.kind = kind;
    Name(&step, std::string(Info(n.op).name) + At(n));
    step.operation = OperationOf(n, TargetOf(n.type.device).libraries());
    for (ValueId o : n.operands) step.operands.push_back(ValueOf(o));
    step.results.push_back(Make(v, result));
    if (auto it = handed_over_.find(v); it != handed_over_.end()) {
      plan_.outputs[it->second].value = step.results[0];
      plan_.storages[plan_.values[step.results[0]].storage].index = it->second;
    }
    plan_.steps.push_back(std::move(step));
  }

  // One of our own instead of the library's?
  bool LowerOwn(ValueId v) {
    const Device device = g_.nodes[v].type.device;
    const Target& target = TargetOf(device);
    if (!target.HasOwnKernel(g_, v)) return false;
    for (ValueId o : g_.nodes[v].operands) ValueOf(o);
    SetLayout(v);
    std::optional<loop::BuiltKernel> built = target.OwnKernel(g_, v, layouts_);
    if (!built) return false;
    Group group;
    group.nodes = group.stored = {v};
    AddKernel(std::move(*built), group, device);
    return true;
  }

  void LowerLibrary(ValueId v) {
    if (LowerOwn(v)) return;
    static const std::map<Op, Step::Kind> kinds = {{Op::kMatMul, Step::Kind::kMatMul},
                                                   {Op::kLinear, Step::Kind::kLinear},
                                                   {Op::kConv, Step::Kind::kConv},
                                                   {Op::kAttention, Step::Kind::kAttention},
                                                   {Op::kPack, Step::Kind::kPack}};
    const Node& n = g_.nodes[v];
    const auto kind = kinds.find(n.op);
    if (kind == kinds.end()) throw diag::NoKernel(Info(n.op).name, "no library");
    ++stats_.library_calls;
    const bool lends = TargetOf(n.type.device).LibraryLends(g_, v);
    LowerOne(v, kind->second, lends ? Storage::Kind::kExtern : Storage::Kind::kScratch);
  }

  void LowerExtern(const Group& group) {
    ++stats_.externs;
    const ValueId v = group.nodes[0];
    const Node& n = g_.nodes[v];
    Step step;
    step.kind = Step::Kind::kExtern;
    Name(&step, (n.attrs.call ? n.attrs.call->callee.name() : "extern") + At(n));
    step.operation = OperationOf(n, {});
    for (ValueId o : n.operands) step.operands.push_back(ValueOf(o));
    if (n.attrs.flag) {
      int& updated = step.operands[0];
      if (UpdatesOperand(g_, grouping_, uses_, v)) {
        SetLayout(v);
        updated = NewValue(v, plan_.values[updated].storage, true);
      } else {
        const int from = updated;
        AddCopy(from, updated = Make(v));
      }
      step.results = {updated};
      step.updates = true;
      plan_.steps.push_back(std::move(step));
      return;
    }
    const size_t num_results = std::max<size_t>(1, n.attrs.result_types.size());
    for (size_t r = 0; r < num_results; ++r) {
      // Gives the graph values that are this result. The first result is the extern node's own value, too.
      std::vector<ValueId> same;
      if (r == 0) same.push_back(v);
      for (ValueId u : group.nodes) {
        if (g_.nodes[u].op == Op::kResult && g_.nodes[u].attrs.axes.at(0) == static_cast<int64_t>(r)) same.push_back(u);
      }
      int output = -1;
      ValueId owner = same.empty() ? v : same.back();
      for (ValueId u : same) {
        if (auto it = handed_over_.find(u); it != handed_over_.end() && output < 0) {
          output = it->second;
          owner = u;
        }
      }
      const int storage = NewStorage(Storage::Kind::kExtern, output);
      int value;
      if (same.empty()) {
        value = AddValue(v, storage, pass::StoredLayout(g_, v), true);
        const TensorType& t = n.attrs.result_types[r];
        plan_.values[value].sizes = t.shape;
        plan_.values[value].strides = shape::RowMajor(t.shape);
        plan_.values[value].dtype = t.dtype;
        plan_.values[value].device = t.device;
        plan_.storages[storage].on_device = t.device.kind != DeviceKind::kCpu;
      } else {
        value = NewValue(owner, storage, true);
        for (ValueId u : same) value_of_[u] = value;
      }
      if (output >= 0) plan_.outputs[output].value = value;
      step.results.push_back(value);
    }
    plan_.steps.push_back(std::move(step));
  }

  void AddCopy(int from, int to) {
    Step step;
    step.kind = Step::Kind::kCopy;
    step.operands = {from};
    step.results = {to};
    plan_.steps.push_back(std::move(step));
  }

  void CopyOutputs() {
    for (size_t o = 0; o < g_.outputs.size(); ++o) {
      auto& out = plan_.outputs[o];
      const ValueId v = g_.outputs[o];
      // Two graph values of one extern result (the node and its `result` 0): only one could be handed over.
      if (out.handed_over && out.value < 0) out.handed_over = false;
      if (out.handed_over) continue;
      if (out.value == kBaseValue) out.value = ValueOf(v);
      if (out.value >= 0) continue;
      FRAMEJIT_CHECK(g_.nodes[v].op != Op::kPack);  // only its library knows how it lies
      out.value = AddValue(v, NewStorage(Storage::Kind::kOutput, o), {pass::OutputStrides(g_, v), 0}, true);
      AddCopy(ValueOf(v), out.value);
    }
  }

  // A write of what is (a view of) an input goes through scratch: another write may change that input first.
  void LowerWrites() {
    for (size_t i = 0; i < g_.writes.size(); ++i) {
      const Write& w = g_.writes[i];
      const Layout* region = RegionOf(grouping_, i);
      int value = ValueOf(w.value);
      if (plan_.storages[plan_.values[value].storage].kind == Storage::Kind::kInput) {
        if (!region && value == plan_.inputs[w.input]) continue;  // x[...] = x
        const shape::Ints strides = region ? shape::RowMajor(g_.nodes[w.value].type.shape) : DirectStrides(g_, w);
        const int copy = AddValue(w.value, NewStorage(Storage::Kind::kScratch), {strides, 0}, true);
        AddCopy(value, copy);
        value = copy;
      }
      plan_.commits.push_back({w.input, value});
      if (region)
        plan_.commits.back().target = AddValue(w.value, plan_.values[plan_.inputs[w.input]].storage, *region, false);
    }
  }

  static constexpr size_t kKnown = 16;   // of the last operations and kernels
  static constexpr int kBaseValue = -2;  // of an output: the value that its maker will get

  const Graph& g_;
  const pass::Grouping& grouping_;
  const CompileOptions& options_;
  const Device device_;
  CompileStats& stats_;
  std::vector<Layout> layouts_;
  std::vector<std::shared_ptr<const runtime::Operation>> operations_;  // The last ones.
  const std::vector<int> uses_;                                        // in_place.h
  loop::Patterns patterns_;
  std::vector<MadeKernel> made_;  // The last ones.
  std::vector<Layout> kernel_layouts_;
  std::vector<bool> part_;             // by graph value: it is made in the memory of what it is a part of
  std::vector<bool> fed_;              // by graph value: a product may read it as it is made
  std::vector<int> value_of_;          // by graph value
  std::map<ValueId, int> storage_of_;  // values made directly in an output
  std::map<ValueId, int> handed_over_;
  Kernels kernels_;  // by step
  Plan plan_;
};

}  // namespace

runtime::Plan MakePlan(const Graph& g, const pass::Grouping& grouping, const CompileOptions& options, Device device,
                       CompileStats& stats) {
  return Planner(g, grouping, options, device, stats).Run();
}

std::string FusionText(const Graph& g, const pass::Grouping& grouping) {
  const char* const kinds[] = {"kernel", "library", "framework", "parts of"};  // by Group::Kind
  size_t step = 0;
  std::string text = "fusion of " + g.name + "\n";
  for (const Group& group : grouping.groups) {
    const Node& n = g.nodes[group.nodes[0]];
    const std::string name = n.attrs.call ? n.attrs.call->callee.name() + At(n) : KernelName(g, group);
    text += "  step " + std::to_string(++step) + ": " + kinds[static_cast<int>(group.kind)] + " " + name + "\n";
  }
  for (const pass::Boundary& b : grouping.boundaries)
    text += "  steps " + std::to_string(b.producer + 1) + " and " + std::to_string(b.consumer + 1) +
            " stay apart: " + b.why + "\n";
  text.pop_back();
  return text;
}

}  // namespace framejit::compiler
