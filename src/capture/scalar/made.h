// Memory of the arrays that a run of a loop's code makes. Code knows at each place which of them the program can still
// reach; these are kept when it asks for another one, and all others may be written over. No reference counts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "capture/ref.h"

namespace framejit::codegen {
struct ScalarCode;
}

namespace framejit::capture::scalar {

class Made {
 public:
  static constexpr int kMostAxes = 3;
  struct alignas(64) Head {  // This lies right before an array's memory.
    int64_t bytes = 0;
    uint64_t kept = 0;  // The request at which it was last kept.
    int64_t sizes[kMostAxes] = {};
    int16_t dtype = 0, rank = 0;
    PyObject* object = nullptr;  // The array's object, while the frame is being written.
  };
  static_assert(sizeof(Head) == 64);

  // Called by the code for memory. It is null where there is none, or where too much is asked for.
  static char* New(Made* made, int64_t type, int64_t rank, int64_t size0, int64_t size1, int64_t size2);
  static void Keep(Made* made, char* a, char* b, char* c, char* d);

  // As an array of Python of its own, the same one as long as the frame is being written. Borrowed; null with an
  // exception set.
  PyObject* ArrayAt(char* memory);
  void Allow(int64_t most_bytes) { most_bytes_ = most_bytes; }
  void Forget();  // Lets go of these arrays and of large memory.

 private:
  struct Free {
    void operator()(char* p) const;
  };
  static Head& HeadOf(char* memory) { return *(reinterpret_cast<Head*>(memory) - 1); }

  std::vector<std::unique_ptr<char, Free>> all_;
  uint64_t now_ = 1;
  int64_t most_bytes_ = 0;
  size_t next_ = 0;
};

// The memory for one run, which goes back to the thread afterwards.
class MadeOfRun {
 public:
  explicit MadeOfRun(int64_t most_bytes);  // of one array
  ~MadeOfRun();
  Made* get() const { return made_.get(); }

 private:
  std::unique_ptr<Made> made_;
};

// Which of the arrays that finished code makes are apart goes to ScalarInst::array.
void SplitMade(codegen::ScalarCode& code);

}  // namespace framejit::capture::scalar
