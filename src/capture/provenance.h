// Where the symbols of a capture came from, what was made of them at which line, and what is asked of them: the event
// `symbols` (docs/trace.md).
#pragma once

#include <string>
#include <vector>

#include "frame/driver.h"
#include "framejit/graph.h"

namespace framejit::capture {

class Provenance {
 public:
  void Note(const Graph& g);                               // Notes the graph as it was captured.
  void Tell(FjFrame* frame, const shape::Env& env) const;  // Writes the event, once all questions were asked.

 private:
  struct Made {
    shape::Int value;
    std::string by, file;  // the first operation whose result has it as a size, or that reads it
    int line;
  };
  std::vector<Made> made_;
};

}  // namespace framejit::capture
