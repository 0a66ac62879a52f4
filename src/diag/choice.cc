#include "diag/choice.h"

#include "diag/diag.h"

namespace framejit::diag {

bool ChoicesAreTold() {
  return Enabled(Channel::perf_) || EventsOn();
}

void Tell(const Choice& choice, const std::string& text) {
  Log(Channel::perf_, text);
  if (!EventsOn()) return;
  std::string ways = "[";
  for (const auto& [name, seconds] : choice.seconds)
    ways += std::string(ways.size() == 1 ? "" : ",") + "[" + Quote(name) + "," + Json(seconds) + "]";
  Event("choice", {{"what", Quote(choice.what)},
                   {"chosen", Quote(choice.chosen)},
                   {"why", Quote(choice.why)},
                   {"ways", ways + "]"}});
}

}  // namespace framejit::diag
