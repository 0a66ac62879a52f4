// What code of a loop writes to arrays, put back: as it was when the code was entered. Code that may be undone stores
// where it computes, and looks behind the store whether NumPy would have told of something. Other code has to look
// before it, so the elements go to a buffer first.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "capture/scalar/translate.h"

namespace framejit::capture::scalar {

// Does it pay? Nothing but arrays is written, and most of what would be copied is stored without a buffer.
bool WorthUndoing(Translation& t, PyObject* const* objects);

class Undo {
 public:
  // False: an array that the code writes does not lie in one piece, or they are much larger than when it was made.
  bool Keep(const Translation& t, PyObject* const* objects);
  void PutBack() const;

 private:
  struct Kept {
    char* data;
    size_t bytes;
    std::unique_ptr<char[]> copy;
  };
  std::vector<Kept> all_;
};

}  // namespace framejit::capture::scalar
