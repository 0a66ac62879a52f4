#include "capture/keepers.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "graph/arguments.h"
#include "graph/effects.h"

namespace framejit::capture {
namespace {

// Does the framework's node of this call keep something? What is not known of a function is not sure.
enum class Keeps { kNothing, kUnknown, kSurely };
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
  if (!gradients || view || !c.mode.grad || c.mode.inference) return Keeps::kNothing;
  const bool operand = !c.callee.Has(kKeepsNoOperand), result = !c.callee.Has(kKeepsNoResult);
  if (!operand && !result && !indices) return Keeps::kNothing;
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

}  // namespace

std::vector<tensor::Training::Keeper> KeepersOf(const Trace& t, const std::vector<bool>& wanted) {
  using Bits = std::vector<uint64_t>;            // the parameters of a model may be thousands
  std::map<TraceId, Bits> inputs;                // by memory: what it is made of
  std::map<TraceId, std::vector<bool>> outputs;  // what is made of it
  const size_t words = (wanted.size() + 63) / 64;
  auto add = [](auto& to, const auto& more) {
    to.resize(std::max(to.size(), more.size()));
    for (size_t i = 0; i < more.size(); ++i) to[i] = to[i] | more[i];
  };
  auto made = [&](const Call& c, auto&& f) {
    for (TraceId id : c.results) f(t.tensors[id].base);
    if ((c.results.empty() || ChangesFirst(c.callee)) && !c.args.empty() && c.args[0].is(Arg::Kind::kTensor))
      f(t.tensors[c.args[0].t].base);
  };
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    Bits& one = inputs[t.inputs[i]];
    one.resize(words);
    one[i / 64] |= uint64_t{1} << i % 64;
  }
  auto leading = [&](const Call& c, auto&& f) {  // what has been detached shares its memory, and leads nowhere
    EachTensor(c, [&](TraceId id) {
      if (c.mode.grad && t.tensors[id].meta.requires_grad) f(t.tensors[id].base);
    });
  };
  std::vector<Bits> through;  // by call
  for (const Call& c : t.calls) {
    Bits& all = through.emplace_back(words);
    leading(c, [&](TraceId base) { add(all, inputs[base]); });
    made(c, [&](TraceId base) { add(inputs[base], all); });
  }
  Bits used(words);  // what the program only holds gets no gradient
  for (TraceId id : t.outputs) add(used, inputs[t.tensors[id].base]);
  for (size_t k = 0; k < t.outputs.size(); ++k) {
    std::vector<bool>& one = outputs[t.outputs[k]];
    one.resize(t.outputs.size());
    one[k] = true;
  }
  struct Found {
    std::vector<bool> outputs;
    bool whole = false;
    Bits inputs;
    bool sure = false;
    auto operator<=>(const Found&) const = default;
  };
  std::set<Found> found;
  for (size_t i = t.calls.size(); i-- > 0;) {
    const Call& c = t.calls[i];
    Found keeper{std::vector<bool>(t.outputs.size())};
    made(c, [&](TraceId base) { add(keeper.outputs, outputs[base]); });
    leading(c, [&](TraceId base) { add(outputs[base], keeper.outputs); });
    const Keeps keeps = WhatItKeeps(t, c, static_cast<int>(i));
    if (keeps == Keeps::kNothing) continue;
    keeper.whole = through[i] == used;
    if (!keeper.whole) keeper.inputs = through[i];
    keeper.sure = keeps == Keeps::kSurely;
    found.insert(std::move(keeper));
  }
  // What is made of more inputs stands behind what is made of some of these, along a way through a model the next one.
  std::vector<tensor::Training::Keeper> keepers;
  keepers.reserve(found.size());
  const Bits* last = nullptr;
  int before = -1;
  for (const Found& f : found) {
    tensor::Training::Keeper& keeper = keepers.emplace_back(f.outputs, f.whole);
    keeper.sure = f.sure;
    if (f.whole) continue;
    bool more = last;
    for (size_t k = 0; k < words && more; ++k) more = !((*last)[k] & ~f.inputs[k]);
    if (more) keeper.before = before;
    for (size_t k = 0; k < words; ++k)
      for (uint64_t bits = f.inputs[k] & ~(more ? (*last)[k] : 0); bits; bits &= bits - 1)
        keeper.inputs.push_back(static_cast<int>(k * 64 + std::countr_zero(bits)));
    keeper.inputs.shrink_to_fit();
    last = &f.inputs;
    before = static_cast<int>(keepers.size()) - 1;
  }
  return keepers;
}

}  // namespace framejit::capture
