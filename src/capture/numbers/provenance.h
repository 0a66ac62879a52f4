// Where the symbols of a capture came from, what was made of them at which line, and what is asked of them: the event
// `symbols` (docs/events.md).
#pragma once

#include <string>
#include <vector>

#include "capture/numbers/numbers.h"
#include "frame/driver.h"
#include "framejit/graph.h"

namespace framejit::capture {

class Provenance {
 public:
  void Note(const Graph& g);  // Notes the graph as it was captured.
  void Tell(const std::string& place, const shape::Env& env,
            const Numbers& numbers) const;  // Called once all is asked.

 private:
  struct Made {
    shape::Int value;
    std::string by;  // the first operation whose result has it as a size, or that reads it
    FileName file;
    int line;
  };
  std::vector<Made> made_;
};

}  // namespace framejit::capture
