#include "capture/numbers/counted.h"

#include <algorithm>

#include "capture/callees.h"
#include "graph/arguments.h"
#include "surface/masked_update.h"

namespace framejit::capture {

bool IsWhole(const Arg& a) {
  return a.is(Arg::Kind::kSlice) &&
         std::all_of(a.items.begin(), a.items.end(), [](const Arg& i) { return i.is_none(); });
}

std::optional<Counted> CountedOf(const Call& call) {
  const std::string_view last = call.callee.last();
  const bool numpy = call.callee.framework() == Framework::kNumpy;
  const size_t given = call.args.size() + call.kwargs.size();
  const auto tensor = [](const Arg* a, size_t dim) {
    return a && a->is(Arg::Kind::kTensor) ? std::optional(Counted{a->t, dim}) : std::nullopt;
  };
  if (given == 1 && (last == "nonzero" || last == "argwhere" || (numpy && last == "where")))
    return tensor(GivenArg(call, 0, {"a", "input"}), 0);
  if (given == 2 && numpy && last == "compress")
    return tensor(GivenArg(call, callees::IsArrayMethod(call.callee) ? 1 : 0, {"condition"}), 0);
  if (call.args.size() != 2 || given != 2 || !numpy || last != "__getitem__") return {};
  const Arg& key = call.args[1];
  if (!key.is(Arg::Kind::kTuple)) return tensor(&key, 0);
  const auto mask = std::find_if_not(key.items.begin(), key.items.end(), IsWhole);
  if (mask == key.items.end() || !std::all_of(mask + 1, key.items.end(), IsWhole)) return {};
  return tensor(&*mask, mask - key.items.begin());
}

std::optional<uint32_t> KnownNumber(const Graph& g, ValueId mask) {
  for (const Node& n : g.nodes) {
    const auto counted = n.op == Op::kExtern ? CountedOf(*n.attrs.call) : std::nullopt;
    if (!counted || !n.attrs.call->callee.Has(kSizedByData) || n.attrs.result_types.empty()) continue;
    const ValueId of = n.operands.at(counted->tensor);
    if (n.attrs.call->callee.last() == "__getitem__" && !IsBool(g.nodes[of].type.dtype)) continue;
    const shape::Ints& sizes = n.attrs.result_types[0].shape;
    const auto symbol = counted->dim < sizes.size() ? sizes[counted->dim].as_symbol() : std::nullopt;
    if (symbol && surface::SameValue(g, of, mask)) return symbol;
  }
  return {};
}

}  // namespace framejit::capture
