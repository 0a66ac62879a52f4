// What became of one call of a compiled function: the segments that ran in it, the breaks that it met.
#pragma once

#include <string>
#include <vector>

#include "capture/segment.h"

namespace framejit::capture {

struct Explained {
  int64_t op_count = 0;
  std::vector<std::string> breaks, graphs, guards;
};
void BeginExplained(Compiled& compiled);  // what comes from here on is told
Explained Explain(Compiled& compiled);

}  // namespace framejit::capture
