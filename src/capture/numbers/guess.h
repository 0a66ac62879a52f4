// Guessed branches. A branch on data in a called function would end the graphs of all of its callers, which are then
// run piece by piece. So what the branch was told in the call that is being captured is found out (the operations so
// far are run by the framework) and taken for granted; the tensor that it reads becomes a result of the graph, and a
// run where it says something else counts for nothing (no input is written, nothing drawn and no gradient's node made
// until it is looked at): Python does that call, and the place is not guessed again. Not in the outermost function (to
// break there is cheap), nor more than a few times at one place of a graph (a loop until something converges).
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "capture/ref.h"
#include "framejit/call.h"
#include "framejit/graph.h"

namespace framejit::capture {

class Session;

inline const Callee kCustomCall{"framejit._functions.call"};  // A call of a torch.autograd.Function in a trace.

struct Guess {
  TraceId tensor;
  Ref value;  // It is True, False or an int.
  Ref code;
  int at;                    // The offset of the instruction.
  ValueId asked = kNoValue;  // what the tensor was in the graph when it was asked
};

// The guesses of one compiled function, over all of its captures.
struct Guesses {
  using Where = std::pair<PyObject*, int>;  // The code object and the instruction's offset in it.
  // In the captures of one place, which begin anew after each break; by how often that was asked there before.
  std::map<std::pair<Where, int>, Ref> taken;
  std::set<Where> wrong;            // Places that said two things, or whose sizes did not do as symbols.
  std::set<Where> changing;         // Places whose integers said two things: these are symbols from now on.
  std::vector<Ref> codes;           // The code objects of all places, kept alive.
  bool checkpoints_change = false;  // Do passes find time and again that what checkpoints read has changed?
  bool measured = false;            // Are sizes that data decides computed while capturing (data_sizes.cc)?
  void Refuse(PyObject* code, int at, bool number = false) {
    if (number && changing.emplace(code, at).second) return codes.push_back(Borrow(code));
    if (wrong.emplace(code, at).second) codes.push_back(Borrow(code));
  }
};

// The guesses of one capture.
class Guessing {
 public:
  explicit Guessing(Session& s) : s_(s) {}
  const std::vector<Guess>& made() const { return made_; }
  // What a tensor said is read behind the run: of one that is written meanwhile nothing is guessed from now on, and its
  // integer is a symbol. False: there was none.
  bool Reconsider();
  // What the tensor says in the call that is being captured, as from now on taken for granted: True or False (`truth`,
  // or a bool tensor), or an int. New reference; null without an exception: that is not to be guessed. `raises`: Python
  // raises where it is otherwise, which is seldom.
  PyObject* Value(TraceId t, bool truth, bool raises = false);
  // Lists of sizes that hold tensors of one integer, which the framework reads: what they say is guessed. False:
  // nothing of that kind, or it is not to be guessed.
  bool Sizes(Call* call);
  std::vector<Arg*> SizesAmong(Call& call);
  // What a method without arguments says of a tensor that nothing from outside leads to, so that it says the same in
  // each run. New reference; null without an exception: something does, or it is not for this method to say.
  PyObject* Constant(TraceId t, const std::string& method);
  // A tensor that nothing from outside leads to, so that it is the same in each run; null: something does. A number
  // that was drawn may have become one of the program's, which would be a version for each: that is for `beside_draws`.
  Ref Known(TraceId t, bool beside_draws = false);
  // Is each of the call's tensors one that nothing from outside leads to?
  bool OfConstants(const Call& call) const;
  Ref RunUpTo(TraceId t);  // The tensor, computed from the real inputs; null if that fails.

 private:
  Session& s_;
  std::vector<Guess> made_;
  size_t run_ = 0;  // How many calls `Known` has run.
};

// The graph's writes become outputs of it, which are written when the run is known to count: input <- output.
std::vector<std::pair<int, int>> DeferWrites(Graph* g);

// Does the tensor, as a run has made it, say what was guessed? -1: an exception.
int Holds(const Guess& g, PyObject* tensor);

}  // namespace framejit::capture
