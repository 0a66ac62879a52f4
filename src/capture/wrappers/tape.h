// Gradients of wrappers (wrappers.h). What a class does to gradients only torch knows, so torch differentiates: in a
// capture with a tape every call on tensors is made by torch itself, on stand-ins for plain tensors and on real
// wrappers around these. Their classes run as they are. What reaches a stand-in becomes a node of the graph, without
// gradients. torch notes meanwhile how the results were made, and what derivatives need; a run keeps that, hands its
// results on by a torch.autograd.Function, and the backward pass is captured like any function when it is first called
// (framejit._tape).
//
//   y = w * x  (w a wrapper)   torch: Mul(double of w, stand-in of x) -> the class's code -> Mul(stand-in, stand-in)
//                              graph: %2 = mul %0 %1       %0: the tensor in w
//   exit                       y' = a wrapper of %2;  y = Results(y', kept %0 %1, leaves w)
//
// What the class's code reads is looked through before it runs, and guarded; where it changes any of that, or reads
// what cannot be compared, the graph ends before the call (framejit._reads). Torch's own classes read what the wrappers
// say of themselves (__tensor_flatten__). Sizes are numbers, but where a wrapper makes its own of the tensors in it
// (torch.nested).
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capture/asking.h"
#include "capture/exit.h"

namespace framejit::capture {

class Tape {
 public:
  explicit Tape(Session& s);
  // The tape of this capture, or null.
  static Tape* Of(const Session& s) { return now && &now->s_ == &s ? now : nullptr; }
  // The capture has met what only one with a tape can take: it is made once more. Always true.
  static bool Ask(const Session& s, bool symbolic = false) {
    asked = &s;
    keeps_sizes = symbolic;
    return true;
  }
  static bool KeepsSizes() { return keeps_sizes; }  // What was last asked for is a tape with symbols for sizes.

  // A call that torch makes. New reference; null: Break, or an error.
  PyObject* Call(PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  bool inside() const { return inside_; }  // an operation of such a call is captured
  // Does torch make the call, since there are tensors among these?
  bool Takes(PyObject* const* args, Py_ssize_t n) const;
  // Is it a wrapper that torch made around stand-ins?
  bool Made(PyObject* o) const { return made_.contains(o); }
  bool Tracked(PyObject* o);  // made by what is differentiated; or (proxies) a leaf of it
  bool IsLeaf(PyObject* o);
  // What a wrapper that torch made has under a name. *found = false: it is to be looked for elsewhere.
  PyObject* Attribute(PyObject* wrapper, PyObject* name, bool* found);

  // Sizes stay symbols, since a class has been met that makes its own of the tensors in it.
  bool symbolic = false;

  // --- for Asking
  Ref Symbol(PyObject* number);  // The torch.SymInt for a symbol, which the backward pass finds again.
  wrapping::Known known;
  Ref DoubleOf(wrapping::Asking& asking, PyObject* wrapper);  // The double of a wrapper from outside.
  void AddLeaf(PyObject* stand_in, PyObject* o);
  PyObject* Take(PyObject* wrapper);  // that torch made: what stands for it. New reference
  struct Inside {                     // One is alive while an operation is captured.
    explicit Inside(Tape* t) : tape(t), before(t && std::exchange(t->inside_, true)) {}
    ~Inside() {
      if (tape) tape->inside_ = before;
    }
    Inside(const Inside&) = delete;
    Tape* tape;
    bool before;
  };

  // --- for the exit
  bool gathering = false;          // results that have gradients are being looked for
  std::vector<PyObject*> results;  // The results that were found so.
  std::string Seal();              // Called before the recipe is written. It says why not, or nothing.
  int leaving_node = -1;           // The node of the recipe that calls it.
  const Ref& leaving() const {
    return leaving_;
  }  // arguments of framejit._tape.leave, with results. Null: there are none
  // Of one that torch made: what makes it again, and of what.
  std::pair<Ref, Ref> FormOf(PyObject* wrapper);
  static PyObject* Leave();  // framejit._tape.leave
  void End();                // The symbols of this capture mean nothing any more.

 private:
  Ref FormFor(PyObject* wrapper);
  // Before torch runs the code of classes, which is looked through. False: Break, or an error.
  bool Prepare(PyObject* function, PyObject* args, PyObject* kwargs);
  bool GuardReads();              // Guards for what the code reads.
  bool Refuse(const char* what);  // A Break with the error's text, or what the tape says of it. Always false.
  std::vector<PyObject*> Watched(const std::vector<PyObject*>& kept);

  Session& s_;
  Ref tape_;  // Is a framejit._tape.Tape.
  std::set<PyObject*> made_;
  std::vector<std::pair<PyObject*, Ref>> doubles_;  // of wrappers from outside, with their forms
  std::vector<Ref> leaves_;                         // The leaves as the program has them.
  Ref leaving_;
  bool inside_ = false;
  Py_ssize_t guarded_ = 0;  // So much of what the code reads has guards.

  friend class TapeScope;
  static thread_local Tape* now;
  static thread_local const Session* asked;
  static thread_local bool keeps_sizes;
};

inline Tape* TapeOf(const Session& s) {
  return Tape::Of(s);
}

// A capture, with a tape if one from the same place has asked for that before. `wanted` is where that is noted.
class TapeScope {
 public:
  TapeScope(Session& s, bool* wanted);
  ~TapeScope();
  TapeScope(const TapeScope&) = delete;
  bool Again();  // Does the capture have to be made once more, with a tape?

 private:
  const Session& s_;
  bool* const wanted_;
  std::optional<Tape> tape_;
  Tape* const before_;
};

void AddLeaving(Recipe& recipe, Session& s);  // what makes the results that have gradients; before any other

// Is it a class of wrappers that C code makes, and dispatches to? Only torch can make its calls.
bool MadeInC(PyTypeObject* type);
// Is it a method of such a class, in Python, or torch's own code around them?
bool IsMethodOfC(PyObject* function);
// Is it framejit._tape.pull, which torch calls as a whole?
bool IsPull(PyObject* function);
bool HasSymbols(PyObject* tape);  // Are there symbols for sizes in what this framejit._tape.Tape noted?

}  // namespace framejit::capture

namespace framejit::tensor {
bool ReadAnyWrapper(PyObject* o, Meta* out, const char** why);  // also one whose class is asked for device or layout
}  // namespace framejit::tensor
