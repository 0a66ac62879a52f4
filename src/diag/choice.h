// Verdicts of measurements: which of several ways of doing the same is taken.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace framejit::diag {

struct Choice {
  std::string what, chosen, why;  // "graph f"; the name of the way that is taken; what decided, in words
  std::vector<std::pair<std::string, double>> seconds;  // of one run, by way, as far as they were measured
};
// Is told by the event `choice` (docs/events.md), and on the channel perf as `text`.
bool ChoicesAreTold();
void Tell(const Choice& choice, const std::string& text);

}  // namespace framejit::diag
