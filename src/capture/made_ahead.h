// Calls of functions behind functools.lru_cache that captures have made ahead of the program (cached_calls.cc).
#pragma once

#include <cstddef>

namespace framejit::capture {

// Where the program, when this ends, has not come to a call that captures have made meanwhile, it never will: an error
// came before it. Nothing waits for it any longer, as what it gives may be another thing by then.
class MadeAhead {
 public:
  MadeAhead();
  ~MadeAhead();
  MadeAhead(const MadeAhead&) = delete;

 private:
  size_t before_;
};

// Do their caches know all the calls by now that fullgraph=True has left to Python since this was last asked?
bool HaveLearned();

}  // namespace framejit::capture
