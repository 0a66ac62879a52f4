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
void BeginExplained(Compiled& compiled);  // What happens from here on is reported.
Explained Explain(Compiled& compiled);

}  // namespace framejit::capture
