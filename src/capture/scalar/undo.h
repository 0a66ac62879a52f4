// What code of a loop writes to arrays, put back: as it was when the code was entered. Code that may be undone stores
// where it computes, and looks behind the store whether NumPy would have told of something. Other code has to look
// before it, so the elements go to a buffer first.
#pragma once

#include <absl/container/inlined_vector.h>

#include <cstddef>

#include "capture/scalar/translate.h"
#include "runtime/arena.h"

namespace framejit::capture::scalar {

// Does it pay? Nothing but arrays is written, and most of what would be copied is stored without a buffer, or the code
// is a transaction that runs so many instructions.
bool WorthUndoing(Translation& t, PyObject* const* objects, int64_t instructions);
int64_t MostKept(int64_t instructions);  // bytes that such a transaction may copy
// Of a loop whose rounds run so many instructions: how many of them are worth a copy of `kept` bytes.
int64_t RoundsForKept(int64_t kept, int64_t instructions, int64_t rounds);

// Of an array of 64-bit ints that lies in one piece: are all from -kSeenNumber to kSeenNumber, and not negative if
// `natural`? So sums of them need no look at each.
bool AllSeen(PyObject* array, bool natural);
// Is it so of all arrays of which the code takes that for granted? False too if they are much larger than they were.
bool AllSeen(const Translation& t, PyObject* const* objects);
// Bytes of an array that lies in one piece in the order of its axes, else -1.
int64_t BytesOf(PyObject* array, DType t);

class Undo {
 public:
  Undo() = default;
  Undo(const Undo&) = delete;
  Undo& operator=(const Undo&) = delete;
  ~Undo();
  // False: an array that the code writes does not lie in one piece, or they are much larger than when it was made.
  bool Keep(const Translation& t, PyObject* const* objects);
  void PutBack() const;

 private:
  struct Kept {
    char* data;
    size_t bytes;
  };
  absl::InlinedVector<Kept, 4> all_;
  runtime::Block copy_;  // of one behind the other
  bool pooled_ = false;
};

}  // namespace framejit::capture::scalar
