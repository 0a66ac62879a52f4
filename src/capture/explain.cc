#include "capture/explain.h"

#include <unordered_set>

#include "diag/diag.h"

namespace framejit::capture {
void BeginExplained(Compiled& compiled) {
  compiled.met.assign(compiled.breaks.size(), false);
  for (EarlyEnds& e : compiled.outcomes->early) e.told = e.times;
  for (auto& [code, state] : compiled.codes) {
    state->told = state->used;
    for (auto& [at, place] : state->places) {
      place.told = place.passed;
      for (auto& segment : place.segments) segment->tally.told = segment->tally.runs;
    }
  }
}

Explained Explain(Compiled& compiled) {
  Explained e;
  std::unordered_set<const ShownGraph*> ran;
  compiled.met.resize(compiled.breaks.size());
  for (auto& [code, state] : compiled.codes) {
    std::unordered_set<int> passed;
    for (auto& [at, place] : state->places) {
      if (place.passed != place.told) passed.insert(at.first);
      for (auto& segment : place.segments) {
        if (segment->tally.runs == segment->tally.told) continue;
        passed.insert(at.first);
        for (size_t i : segment->ends) compiled.met[i] = true;
        for (auto& g : segment->guards->Describe(code.code->co_localsplusnames)) e.guards.push_back(g);
        if (segment->runner() == diag::RunBy::kNone) continue;
        e.op_count += segment->op_count;
        ran.insert(segment->shown.get());
      }
    }
    // Code that is left to Python comes to no place of its own.
    const bool left =
        (state->skip || state->idle || (state->library && state->library->barren())) && state->used != state->told;
    for (auto& [at, reason] : state->stopped)
      if (reason < compiled.met.size() && (left || passed.contains(at))) compiled.met[reason] = true;
  }
  for (const diag::Break& b : compiled.Shown(&compiled.met)) e.breaks.push_back(diag::Render(b));
  for (auto& graph : compiled.graphs)  // in the order of capture
    if (ran.contains(graph.get())) e.graphs.push_back(graph->text.str());
  return e;
}

}  // namespace framejit::capture
