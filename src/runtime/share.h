// The tasks of one call, divided among the host's threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "framejit/compile.h"

namespace framejit::runtime {

// w.Run(begin, end) for all tasks, in pieces of at least `piece` operations; a task has `operations`.
template <class Work>
void Share(Host& host, const Work& w, int64_t tasks, int64_t operations, int64_t piece) {
  auto run = [](void* context, int64_t begin, int64_t end) { static_cast<const Work*>(context)->Run(begin, end); };
  const int64_t grain = std::max<int64_t>(1, piece / std::max<int64_t>(1, operations));
  if (grain < tasks && host.NumThreads() > 1)
    host.ParallelFor(tasks, grain, run, const_cast<Work*>(&w));
  else
    w.Run(0, tasks);
}

}  // namespace framejit::runtime
