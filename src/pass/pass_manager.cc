#include "pass/pass_manager.h"

#include <algorithm>
#include <chrono>

#include "diag/diag.h"

namespace framejit::pass {

bool PassManager::Disabled(std::string_view name) const {
  const auto& off = options.disabled_passes;
  return std::find(off.begin(), off.end(), name) != off.end();
}

bool RunPass(PassManager& pm, std::string_view name, Graph& g, const std::function<void(Graph&)>& apply) {
  if (pm.Disabled(name) || pm.fuel == 0) return false;
  if (pm.fuel > 0) --pm.fuel;
  const bool dump = diag::Enabled(diag::Channel::graph_);
  const bool trace = diag::EventsOn();
  const size_t nodes_before = g.nodes.size();
  const std::string before = dump ? g.str() : std::string();
  const auto start = std::chrono::steady_clock::now();
  apply(g);
  const double us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  if (pm.options.verify) {
    if (std::string error = Verify(g); !error.empty()) {
      throw diag::InternalError("after pass '" + std::string(name) + "': " + error);
    }
  }
  if (trace) {
    diag::Event("pass", {{"name", diag::Quote(name)},
                         {"us", std::to_string(us)},
                         {"nodes_before", std::to_string(nodes_before)},
                         {"nodes_after", std::to_string(g.nodes.size())}});
  }
  if (dump) {
    std::string after = g.str();
    std::string head = "pass " + std::string(name) + " (" + std::to_string(us) + " us)";
    diag::Log(diag::Channel::graph_, after == before ? head + ": no change" : head + "\n" + after);
  }
  return true;
}

}  // namespace framejit::pass
