// Loops over single numbers and elements of arrays as machine code. The frame comes to a loop's first instruction; if
// it looks as the code takes for granted, the code runs, and the frame goes on in Python where the code was left:
// behind the loop, or before an instruction that Python must run (translate.h).
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "capture/segment.h"

namespace framejit::capture {

namespace scalar {
struct ExitState;
struct Left;
struct Translation;
}  // namespace scalar

// While alive, a call whose code was left before its end waits for its frame, the function's next one in this thread.
class GoesOn {
 public:
  GoesOn(scalar::Left& left, PyObject* function, bool steps);
  ~GoesOn();
  GoesOn(const GoesOn&) = delete;
  // A frame is about to begin. True: it is that one, and goes on where the code was left.
  static bool In(FjFrame* frame);
  static bool Waits() { return waiting_; }

 private:
  static thread_local inline GoesOn* waiting_ = nullptr;
  scalar::Left& left_;
  PyObject* function_;
  bool steps_;  // Is the next instruction Python's?
};

class CodeLoops {
 public:
  explicit CodeLoops(PyCodeObject* code);
  ~CodeLoops();

  // Asked by a capture that has unrolled some rounds: would the loop that begins at `index` become code?
  bool Promising(FjFrame* frame, int index);
  // Does a loop begin at `index` that holds `at`, and would all of it become code?
  bool Begins(FjFrame* frame, int index, int at);
  // Promising, where the iterator of a loop is about to be made.
  bool Enters(FjFrame* frame, int index);
  // The frame is about to be captured from the middle of a loop: would that become code?
  bool Considered(FjFrame* frame);
  // Called with the frame at an instruction. Nothing: no loop of these begins there. *ran tells whether code ran.
  std::optional<frame::Action> At(Compiled& compiled, FjFrame* frame, bool* ran);
  // A call of the function, with the arguments as its frame would have them, as code of all of it. *result is null
  // where an exception is set; it is not set where the call goes on in a frame, which GoesOn wants to know of.
  enum class Called : uint8_t { kNot, kReturned, kLeft, kLeftAtStep };
  bool MayCall() const { return callable_; }
  Called Call(Compiled& compiled, PyObject* const* locals, PyObject** result, scalar::Left* left);
  // Loops that became code since this was asked: [first instruction, end).
  std::vector<std::pair<int, int>> TakeMade() { return std::exchange(made_, {}); }
  bool any() const;  // Has code been made, or is it about to be?
  bool none() const { return heads_.empty(); }
  // What is to be asked at an instruction: as where there are no loops, all, or nothing, since it is Python's in a loop
  // of which code is made or will be.
  enum class Asked : uint8_t { kOutside, kAll, kPythons };
  Asked AskedAt(int index) const { return asked_[index]; }  // as it was when Look was called
  void Look();
  void Stepped(int64_t instructions) { work_ += instructions; }  // that a frame ran without At
  void Missed(int64_t calls);                                    // of the function, that were left to Python

 private:
  struct Version;
  struct Head;
  struct Running;
  Head* Find(int index);
  bool Try(Head& head, FjFrame* frame, int from);
  static bool Waits(const Head& head);
  static int64_t RoundsLeft(const Head& head, FjFrame* frame);
  static int64_t Expected(const Head& head, FjFrame* frame);
  static int64_t Gain(const Head& head, FjFrame* frame);
  bool Wanted(const Head& head, FjFrame* frame) const;
  void Compile(Compiled& compiled, Head& head, FjFrame* frame);
  std::optional<int64_t> Enter(Head& head, Version& version, PyObject* const* locals, PyObject* const* stack, int depth,
                               Running* run);
  void Drop(Head& head, size_t* version);
  void Undone(Head& head, size_t* version, const Running& run);
  void Ended(Compiled& compiled, Head& head, size_t* version, const scalar::ExitState& e, int64_t rounds);
  std::optional<frame::Action> Run(Compiled& compiled, Head& head, size_t* version, FjFrame* frame, bool* ran);
  bool WantsWhole(Compiled& compiled, FjFrame* frame);
  std::optional<frame::Action> Whole(Compiled& compiled, FjFrame* frame, bool* ran);

  std::vector<std::unique_ptr<Head>> heads_;
  std::unique_ptr<Head> whole_;  // The function from its first instruction on; null where a loop begins there.
  Ref code_;
  bool callable_ = false;                          // Is there code of the whole function?
  std::vector<std::unique_ptr<Version>> dropped_;  // A run of one may be under way. There are few.
  int64_t calls_ = 0;                              // that began there
  std::vector<bool> starts_;                       // Does a loop start at this instruction?
  std::vector<Asked> asked_;
  uint64_t looked_ = ~uint64_t{0};  // which loops were Python's then
  std::vector<std::pair<int, int>> made_;
  int64_t work_ = 0;   // The number of instructions that frames ran.
  int64_t coded_ = 0;  // Of these, what ran as code.
  int64_t backs_ = 0;  // jumps back to loops
};

// A segment may hold the jump of a loop, at which signals and other threads get their turn. Nothing: the frame goes on.
std::optional<frame::Action> ServeBreaker(FjFrame* frame);

// The loops of a function's code. It is null where this machine or the options have no code for loops.
CodeLoops* LoopsOf(Compiled& compiled, CodeState& state, PyCodeObject* code);

}  // namespace framejit::capture
