// Which loops a capture unrolls. A loop whose iterations read new weights (the layers of a model) is unrolled as a
// whole. One that repeats the same framework calls is cut where the repetition is seen: segments end at the
// instruction that its back edge leads to, so that its body becomes a segment of its own. With fullgraph=True all
// loops are unrolled.
#pragma once

#include <unordered_map>
#include <vector>

#include "capture/code_in.h"
#include "capture/ref.h"
#include "frame/semantics.h"

namespace framejit::capture {

class Session;
struct CodeState;
struct Compiled;

class LoopWatch {
 public:
  LoopWatch(Session& s, Compiled& compiled);

  // The outermost frame is about to run its instruction `index`; `steps` were run before.
  bool EndsAt(int index, long steps);
  // Does the outermost frame come, at `index`, to the head of a loop that it was in when the capture began? Python goes
  // on with that loop's iterator; each round is a segment of its own.
  bool GoesOn(int index) const;
  // A frame has jumped back to `index`; `instructions` are captured so far. False: it does so too often.
  bool Back(FjFrame* frame, int index, long instructions);
  // A function is called: its loops begin anew.
  void Called(PyCodeObject* code) { ++calls_[code]; }

  // The loop that was found to repeat, to be cut from now on. No code: none.
  CodeIn code() const { return {reinterpret_cast<PyCodeObject*>(code_.get()), globals_}; }
  int at() const { return at_; }
  Compiled& compiled() const { return compiled_; }

 private:
  struct Loop {
    int64_t operations = 0, calls = 0;  // At the last jump back; in its body since a weight was read.
    int rounds = 0;                     // Rounds with framework calls since a weight was last read.
    size_t inputs = 0;
    long idle_since = 0;  // Instructions that ran by then.
    int backs = 0;        // Jumps back to it in this call of its function.
    int call = 0;         // The number of that call.
    size_t nodes = 0;     // Of the graph, at the last jump back.
  };
  bool NewWeights(Loop& loop) const;
  bool EntersScalar(int index) const;
  bool HoldsBreak(int index) const;
  bool MadeNumbers(Loop& loop) const;

  Session& s_;
  Compiled& compiled_;
  const std::vector<int>* root_cut_;
  int passes_ = 0;  // Jumps back of the loop whose several rounds are captured as one.
  std::unordered_map<uint64_t, Loop> loops_;
  std::unordered_map<PyCodeObject*, int> calls_;
  Ref code_;
  const PyObject* globals_ = nullptr;
  int at_ = 0;
};

// From now on this loop is cut, and so are those around it in the same code.
void Cut(CodeState& state, PyCodeObject* code, int at);

// A loop has become code, which begins where the loop does: a segment that ran a part of its first round, and left
// the rest of that to Python, gives way to one that ends at the loop.
void EndAtLoop(CodeState& state, int start, int end);

}  // namespace framejit::capture
