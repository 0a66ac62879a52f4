#include "capture/got_memory.h"

#include <algorithm>

#include "graph/arguments.h"
#include "tensor/segment_node.h"

namespace framejit::capture {

// Does a derivative read the memory of `base`, which an input got, by another tensor than what the input is from then
// on, `now`?
static bool ReadsBeside(const Trace& t, TraceId now, TraceId base) {
  const auto by_it = [&](TraceId id) {
    while (id != now && t.tensors[id].view_call >= 0) {
      const Call& view = t.calls[t.tensors[id].view_call];
      if (view.callee == tensor::kGiven || view.args.empty() || !view.args[0].is(Arg::Kind::kTensor)) break;
      id = view.args[0].t;
    }
    return id == now;
  };
  return std::any_of(t.calls.begin(), t.calls.end(), [&](const Call& c) {
    const auto derived = [&](TraceId id) { return t.tensors[id].meta.requires_grad; };
    if (c.callee == tensor::kGiven || std::none_of(c.results.begin(), c.results.end(), derived)) return false;
    bool beside = false;
    EachTensor(c, [&](TraceId id) { beside |= t.tensors[id].base == base && !by_it(id); });
    return beside;
  });
}

std::vector<GotMemory> NoteRebound(Session& s, const Trace& trace, const std::vector<TraceId>& outputs,
                                   std::vector<std::vector<ValueId>>* kept, tensor::Training* t) {
  std::vector<GotMemory> rebound;
  for (const Call& c : trace.calls) {
    if (c.callee != tensor::kGiven) continue;
    const int input = trace.tensors[c.args[0].t].input;
    ++t->rebound[input];
    const TraceId now = c.results[0], base = trace.tensors[c.args[1].t].base;
    if (!s.pending().rebound.contains(now)) continue;
    const std::vector<ValueId> more = s.lowering().KeptFor(now);
    if (s.pending().replaced.contains(now)) {
      std::vector<ValueId>& all = (*kept)[outputs.size() + input];
      all.insert(all.end(), more.begin(), more.end());
    }
    const auto result = std::find(outputs.begin(), outputs.end(), base);
    size_t from = result - outputs.begin();
    if (trace.tensors[base].input >= 0)
      from = outputs.size() + trace.tensors[base].input;
    else if (result == outputs.end())
      continue;
    rebound.push_back({from, outputs.size() + input, ReadsBeside(trace, now, base)});
    if (!rebound.back().beside) t->got.emplace(from, input);
  }
  return rebound;
}

}  // namespace framejit::capture
