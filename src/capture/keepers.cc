#include "capture/keepers.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "capture/callees.h"
#include "graph/arguments.h"
#include "graph/effects.h"

namespace framejit::capture {
namespace {

// Does the framework's node of this call keep something? What is not known of a function is not sure.
enum class Keeps { kNothing, kUnknown, kSurely };

// Is this what is stored to a part of the target by, or to a view of it that the framework makes first? `dim`: which of
// its dimensions the index is of.
Keeps TakesPart(const TensorMeta& target, const Arg& index, size_t dim) {
  switch (index.kind) {
    case Arg::Kind::kInt:
    case Arg::Kind::kNone:
    case Arg::Kind::kBool: return Keeps::kSurely;
    case Arg::Kind::kTuple: {
      Keeps all = Keeps::kNothing;
      for (size_t i = 0; i < index.items.size(); ++i) {
        const bool behind = i > 0 && index.items[i - 1].is(Arg::Kind::kEllipsis);
        all =
            std::max(all, TakesPart(target, index.items[i], behind ? target.sizes.size() - index.items.size() + i : i));
      }
      return all;
    }
    case Arg::Kind::kSlice: {
      const Arg &start = index.items[0], &stop = index.items[1], &step = index.items[2];
      const auto is = [](const Arg& a, int64_t v) {
        return a.is(Arg::Kind::kNone) || (a.is(Arg::Kind::kInt) && a.i == v);
      };
      if (!is(start, 0) || !is(step, 1)) return Keeps::kSurely;
      if (stop.is(Arg::Kind::kNone)) return Keeps::kNothing;
      if (!stop.is(Arg::Kind::kInt) || dim >= target.sizes.size()) return Keeps::kUnknown;
      if (stop.i == target.sizes[dim]) return Keeps::kNothing;
      if (!stop.i.is_const() || !target.sizes[dim].is_const()) return Keeps::kUnknown;
      return stop.i.value() >= target.sizes[dim].value() ? Keeps::kNothing : Keeps::kSurely;
    }
    default: return Keeps::kNothing;  // tensors and lists: the target itself is written
  }
}

// A write to a view of a tensor, or to a part of it, is a node (CopySlices) of which a pass leaves nothing.
Keeps WritesPart(const Trace& t, const Call& c) {
  if (!ChangesFirst(c.callee) || c.args.empty() || !c.args[0].is(Arg::Kind::kTensor)) return Keeps::kNothing;
  const TraceTensor& target = t.tensors[c.args[0].t];
  const Callee view = target.view_call < 0 ? Callee() : t.calls[target.view_call].callee;
  if (target.view_call >= 0 && view != callees::kTensorDetach && view != callees::kTensorData) return Keeps::kSurely;
  const bool store = c.callee.last() == "__setitem__" && c.args.size() == 3;
  return store ? TakesPart(target.meta, c.args[1], 0) : Keeps::kNothing;
}

Keeps WhatItKeeps(const Trace& t, const Call& c, int number) {
  bool gradients = false, view = false, indices = false;
  int tensors = 0;
  EachTensor(c, [&](TraceId id) {
    gradients |= t.tensors[id].meta.requires_grad;
    indices |= !IsFloat(t.tensors[id].meta.dtype);
    ++tensors;
  });
  for (TraceId id : c.results) {
    view |= t.tensors[id].view_call == number;
    indices |= !IsFloat(t.tensors[id].meta.dtype);
  }
  if (!gradients || !c.mode.grad || c.mode.inference) return Keeps::kNothing;
  const Keeps part = WritesPart(t, c);
  if (view || part == Keeps::kSurely) return part;
  const bool operand = !c.callee.Has(kKeepsNoOperand), result = !c.callee.Has(kKeepsNoResult);
  if (!operand && !result && !indices) return part;
  // The last operand is kept for the sake of others (lerp), or these for the sake of the last one.
  constexpr std::string_view kByLast[] = {"lerp", "lerp_"};
  constexpr std::string_view kForLast[] = {"fmod", "fmod_", "remainder", "remainder_", "__mod__", "__imod__"};
  const auto listed = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), c.callee.last()) != std::end(names);
  };
  if (c.kwargs.empty() && !c.args.empty() && (listed(kByLast) || listed(kForLast))) {
    const Arg& last = c.args.back();
    const bool number = !last.is(Arg::Kind::kTensor);
    if (number || (listed(kForLast) && !t.tensors[last.t].meta.requires_grad)) return Keeps::kNothing;
    if (listed(kByLast)) return Keeps::kSurely;
  }
  if (c.callee.effects().batch == Batch::kEinsum && tensors == 1) return Keeps::kNothing;  // sums, and views
  // One of three operands may be a summand, and it may be the only one that wants a gradient.
  const bool product = operand && !result && tensors < 3 && !c.results.empty() && !c.callee.Has(kDraws);
  return c.callee.effects().keeps || product ? Keeps::kSurely : Keeps::kUnknown;
}

using Keepers = tensor::Training::Keepers;

// Sets of inputs, by number. Each is another one and some more, those of a model's layers would be quadratic else: so
// they are a tree, in which a set holds what the sets on its way to the empty one have more than those before them.
class InputSets {
 public:
  static constexpr int kNone = 0;  // the empty one
  explicit InputSets(size_t inputs) : seen_(inputs, 0), where_(inputs) {}
  int Of(int input) { return Append(kNone, {input}); }
  int size(int set) const { return sets_[set].size; }

  int Union(int a, int b) {
    if (a < b) std::swap(a, b);
    if (b == kNone || a == b || OnTheWay(sets_[b].within, a)) return a;
    const int common = Common(a, b);
    std::vector<int> more;
    size_t places = 0;  // at which to look for these inputs one by one
    for (int s = b; s != common; s = sets_[s].before)
      for (int input : sets_[s].more) more.push_back(input), places += where_[input].size();
    if (places > static_cast<size_t>(sets_[a].depth - sets_[common].depth)) {
      ++stamp_;
      for (int s = a; s != common; s = sets_[s].before)
        for (int input : sets_[s].more) seen_[input] = stamp_;
      std::erase_if(more, [&](int input) { return seen_[input] == stamp_; });
    } else {
      const auto held = [&](int set) { return OnTheWay(set, a); };
      std::erase_if(more, [&](int i) { return std::any_of(where_[i].begin(), where_[i].end(), held); });
    }
    if (!more.empty()) a = Append(a, std::move(more));
    return sets_[b].within = a;
  }

  // What keepers name, with numbers of its own.
  void PutInto(Keepers* keepers) const {
    std::vector<int> number(sets_.size(), -1);
    for (const Keepers::Keeper& k : keepers->all)
      for (int s = k.inputs; s >= 0 && number[s] < 0; s = sets_[s].before) number[s] = 0;
    for (size_t s = 0; s < sets_.size(); ++s) {
      if (number[s] < 0) continue;
      number[s] = static_cast<int>(keepers->sets.size());
      const Set& from = sets_[s];
      keepers->inputs.insert(keepers->inputs.end(), from.more.begin(), from.more.end());
      const int before = from.before < 0 ? -1 : number[from.before];
      keepers->sets.push_back({before, static_cast<uint32_t>(keepers->inputs.size())});
    }
    for (Keepers::Keeper& k : keepers->all)
      if (k.inputs >= 0) k.inputs = number[k.inputs];
    keepers->sets.shrink_to_fit();
    keepers->inputs.shrink_to_fit();
  }

 private:
  struct Set {
    int before = -1;  // always an earlier one
    int far = -1;     // one on the way, so that all are reached in a logarithm of steps
    int depth = 0;    // the length of the way
    int size = 0;
    int within = 0;  // the last set that is known to hold all of this one
    std::vector<int> more;
  };
  int Append(int before, std::vector<int> more) {
    const int number = static_cast<int>(sets_.size());
    for (int input : more) where_[input].push_back(number);
    const Set& last = sets_[before];
    const bool twice = last.far >= 0 && sets_[last.far].far >= 0 &&
                       last.depth - sets_[last.far].depth == sets_[last.far].depth - sets_[sets_[last.far].far].depth;
    const int far = twice ? sets_[last.far].far : before, size = last.size + static_cast<int>(more.size());
    sets_.push_back({before, far, last.depth + 1, size, number, std::move(more)});
    return number;
  }
  bool OnTheWay(int set, int from) const {
    while (from > set) from = sets_[from].far >= set ? sets_[from].far : sets_[from].before;
    return from == set;
  }
  int Common(int a, int b) const {  // the last set on both ways
    while (a != b) {
      if (sets_[a].depth < sets_[b].depth) std::swap(a, b);
      const Set &x = sets_[a], &y = sets_[b];
      if (x.depth == y.depth)
        std::tie(a, b) = x.far != y.far ? std::pair(x.far, y.far) : std::pair(x.before, y.before);
      else
        a = x.far >= 0 && sets_[x.far].depth >= y.depth ? x.far : x.before;
    }
    return a;
  }
  std::vector<Set> sets_ = std::vector<Set>(1);
  std::vector<int> seen_;                // by input: the union that has met it last
  std::vector<std::vector<int>> where_;  // by input: the sets that have it more
  int stamp_ = 0;
};

}  // namespace

Keepers KeepersOf(const Trace& t, const std::vector<bool>& wanted) {
  Keepers keepers;
  InputSets sets(wanted.size());
  std::vector<int> inputs(t.tensors.size(), InputSets::kNone);  // by memory: what it is made of
  std::vector<int> outputs(t.tensors.size(), 0);                // what is made of it: a number in keepers.outputs
  std::map<std::vector<bool>, int> known;                       // these numbers
  const auto enter = [&](std::vector<bool> some) {
    const auto [at, fresh] = known.try_emplace(std::move(some), static_cast<int>(keepers.outputs.size()));
    if (fresh) keepers.outputs.push_back(at->first);
    return at->second;
  };
  enter(std::vector<bool>(t.outputs.size()));  // none has the number 0
  const auto join = [&](int a, int b) {
    if (a == b || !a || !b) return std::max(a, b);
    std::vector<bool> both = keepers.outputs[a];
    for (size_t k = 0; k < both.size(); ++k) both[k] = both[k] || keepers.outputs[b][k];
    return enter(std::move(both));
  };
  auto made = [&](const Call& c, auto&& f) {
    for (TraceId id : c.results) f(t.tensors[id].base);
    if ((c.results.empty() || ChangesFirst(c.callee)) && !c.args.empty() && c.args[0].is(Arg::Kind::kTensor))
      f(t.tensors[c.args[0].t].base);
  };
  for (size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i]) inputs[t.inputs[i]] = sets.Union(inputs[t.inputs[i]], sets.Of(static_cast<int>(i)));
  auto leading = [&](const Call& c, auto&& f) {  // what has been detached shares its memory, and leads nowhere
    EachTensor(c, [&](TraceId id) {
      if (c.mode.grad && t.tensors[id].meta.requires_grad) f(t.tensors[id].base);
    });
  };
  std::vector<int> through;  // by call
  for (const Call& c : t.calls) {
    int all = InputSets::kNone;
    leading(c, [&](TraceId base) { all = sets.Union(all, inputs[base]); });
    made(c, [&](TraceId base) { inputs[base] = sets.Union(inputs[base], all); });
    through.push_back(all);
  }
  int used = InputSets::kNone;  // what the program only holds gets no gradient
  for (TraceId id : t.outputs) used = sets.Union(used, inputs[t.tensors[id].base]);
  for (size_t k = 0; k < t.outputs.size(); ++k) {
    std::vector<bool> one(t.outputs.size());
    one[k] = true;
    outputs[t.outputs[k]] = join(outputs[t.outputs[k]], enter(std::move(one)));
  }
  for (size_t i = t.calls.size(); i-- > 0;) {
    const Call& c = t.calls[i];
    int reached = 0;
    made(c, [&](TraceId base) { reached = join(reached, outputs[base]); });
    leading(c, [&](TraceId base) { outputs[base] = join(outputs[base], reached); });
    const Keeps keeps = reached ? WhatItKeeps(t, c, static_cast<int>(i)) : Keeps::kNothing;
    if (keeps == Keeps::kNothing) continue;
    const bool whole = sets.size(through[i]) == sets.size(used) && sets.Union(used, through[i]) == used;
    keepers.all.push_back({reached, whole ? -1 : through[i], keeps == Keeps::kSurely});
  }
  std::sort(keepers.all.begin(), keepers.all.end());
  keepers.all.erase(std::unique(keepers.all.begin(), keepers.all.end()), keepers.all.end());
  keepers.all.shrink_to_fit();
  sets.PutInto(&keepers);
  return keepers;
}

}  // namespace framejit::capture
