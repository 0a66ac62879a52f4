// From the bytecode of a loop to scalar code, for a frame as it stands at the loop's first instruction.
//
// The translation follows the program's flow. A block of code belongs to an instruction and to the kinds of all locals
// and of the stack there: the same instruction reached with others becomes another block. What is not understood
// becomes an exit before that instruction. So does whatever Python would answer by an exception: Python does it then.
#pragma once

#include <set>

#include "bytecode/code.h"
#include "capture/scalar/values.h"
#include "frame/frame.h"

namespace framejit::capture::scalar {

struct Loop {  // the instructions [start, end), start being what its back edges lead to
  int start = 0, end = 0;
  int enter = 0;  // where its iterator is made, if that is right before it
  bool iterates = false;
  bool Holds(int at) const { return enter <= at && at < end; }
};
// All loops of the code, the innermost ones first.
std::vector<Loop> LoopsOf(const bytecode::Code& code);
// The loop that begins at `start`, in itself.
bool HasNoLoops(const std::vector<Loop>& loops, int start);

// What a local or a place on the stack holds when the code is entered, or left.
struct Slot {
  int slot = 0;  // The index in localsplus, or from the bottom of the stack.
  Val val;
  std::vector<int> cells;  // The cells of the numbers in it, in order.
  bool live = true;        // Asked at the entry: what is dead may be anything.
  int changed = -1;        // at an exit, of locals: the cell that tells whether it was written to
  bool result = false;     // likewise, where the function ends: something on the stack may be its object
  int twin = -1;           // likewise, of what may be copied: the first local that holds the same object
};

struct ExitState {
  int next = 0;          // The instruction at which Python goes on.
  bool usual = false;    // Has the loop ended?
  bool breaker = false;  // signals and other threads wait, where the loop goes round
  bool others = false;   // the loop goes on with other kinds of numbers, for which there is or will be other code
  int many = -1;         // the loop of Hopes::longs that has begun
  bool returns = false;  // the function ends there: of its locals nobody asks but where a result is one of them
  bool undo = false;     // Nothing of the run is to remain: what it wrote is put back, and the frame stays as it was.
  std::vector<Slot> locals, stack;
  std::string why;  // Why the instruction is left to Python, if it is not understood.
};

struct NameGuard {                  // Holds while a name means what it meant.
  Ref dict, builtins, name, value;  // builtins: null for an attribute of a module
};

inline constexpr int64_t kServed = 1024, kOthersServed = 64;  // rounds before others get their turn
// Of a transaction: it ends where the outermost loop goes round after so many rounds, and is undone after so many.
inline constexpr int64_t kCommitted = 1 << 16, kMostUndone = 1 << 18;
inline constexpr int kBreakerCell = 2;  // its address: of the thread that runs the code
inline constexpr int kMadeCell = 3;     // made.h: of the run, if the code makes arrays
inline constexpr int kAheadCell = 4;    // rows_ahead.h: of the run, if the code has one
inline constexpr int kFirstCell = 5;    // behind them, what counts rounds and what helpers write to

inline constexpr int64_t kSmallSize = 4;
// A number of the entry that is taken to be what another one is, or a constant.
struct AlikeNumber {
  int cell, as;  // as: -1 for the constant
  int64_t constant;
};

struct Translation {
  codegen::ScalarCode code;
  std::vector<ObjectSpec> objects;
  std::vector<Slot> locals, stack;  // What the frame holds at the entry.
  std::vector<ExitState> exits;
  std::vector<NameGuard> guards;
  std::vector<AlikeNumber> alike;
  int blocks = 0;             // of the code, without those of loops over elements and of looking for signals
  int cells = 0, rounds = 0;  // how many; the one that counts jumps back
  bool floats = false;        // Floats of NumPy: its error state matters.
  bool apart = false;         // what is written lies in one array alone
  bool makes = false;         // Does the code make arrays?
  bool undoes = false;        // Some exit is to put back what was written (undo.h).
  bool transaction = false;   // Hopes::transaction
  bool at_once = false;       // Hopes::at_once
  bool status = false;        // ScalarCode::status
  int undo = -1;              // The exit that undoes the run, if there is one.
  int64_t undo_rounds = 0;    // So many rounds write most of each array whose copy is made for that.
  int64_t seen = 0;           // how many bytes of arrays are looked at before it is entered (ObjectSpec::seen)
  int64_t kept = 0;           // How many bytes of arrays a copy of what is written took then.
  bool lists = false;         // Does the code write to lists?
  bool dots = false;          // Has it products that ProductsAhead may know?
  bool ahead = false;         // It asks ProductsAhead for them, and tells it of what is written.
  bool loops = false;         // some loop is closed without leaving the code
  std::string why;            // What was not understood first, if something was not.
};

// What a place of the frame holds, as the translation sees it: `objects` grows. A capture's stand-ins are understood.
Val Describe(PyObject* o, std::vector<ObjectSpec>& objects);

// What may be taken for granted of a frame, and is looked at when the code is entered.
struct Hopes {
  bool natural = true;  // The positions of iterators are not negative.
  bool apart = true;    // What the code writes lies in one array alone.
  bool sizes = false;   // Small sizes of arrays are what they are now.
  bool unrolls = true;  // Loops over very few numbers may become code for each of them.
  // Rounds of an outer loop that begin with other kinds are part of this code, too. LLVM makes less of them: they are
  // come to from the middle of a loop inside.
  bool together = false;
  // Innermost loops over numbers that are come to again and again have at most kServed rounds, but for these: their
  // first instructions, the outermost loop's code alone.
  bool brief = false;
  // It is the code of a function: no loop in it goes round with other kinds, and no number that the function was called
  // with gets another name or is its result, since that is one object.
  bool whole = false;
  std::set<int> longs;
  // What a loop carries on may be now of Python, now of NumPy: each round computes which (Is::kEither).
  bool mixes = false;
  // NumPy will tell of nothing that so many rounds store in most of an array: if it would, the run is undone.
  bool finite = false;
  int64_t rounds = 0;
  bool ahead = false;  // Products are asked of ProductsAhead.
  // The run is undone where Python would answer with an exception, a warning or an int of more bits, and where it would
  // go round for long: so nothing that the frame would have to be told there is kept in the rounds.
  bool transaction = false;
  // What NumPy would tell of is asked of the processor behind the run (ScalarCode::status). Some operations run that
  // the program does not come to, so it may say yes in vain.
  bool status = false;
  bool at_once = false;  // The loop has at most kCommitted rounds: a transaction does not end where it goes round.
  int64_t seen = 0;      // So many bytes of arrays of ints may be looked at before the code is entered.
};

// From the frame's place in the loop, which is `loop.start` but where nothing is to run.
// Nothing is kept of what fails but `why`.
Translation Translate(FjFrame* frame, const Loop& loop, int from, const Hopes& hopes);

}  // namespace framejit::capture::scalar
