// Decides, for every intercepted frame, what runs where: compiled segments, concrete steps, captures. One per process.
#pragma once

#include "capture/made_ahead.h"
#include "capture/segment.h"

namespace framejit::capture {

PyObject* ErrorType(const char* name);  // An exception of framejit.errors, borrowed.
void InstallPolicy();                   // Called once, at module initialisation.

// The state under this key, made where there is none. With an empty key it is always a new one.
std::shared_ptr<Compiled> MakeCompiled(const std::string& key);
void DropSegments(Compiled& compiled);
void Retire(std::unique_ptr<Segment> segment);  // It is dropped once no thread can be in it.
void ResetCompiled(Compiled& compiled);         // Drops its segments and its counters.
void ResetAll();
// The interpreter is about to end: from now on everything runs as written, and what segments hold (the program's own
// objects, of which destructors are still to run) is let go.
void EndAll();
std::vector<std::shared_ptr<Compiled>> AllCompiled();

// While alive, dropped segments stay: this thread may be in one. Others run while a kernel has let go of the GIL.
class InUse {
 public:
  InUse() { ++users_; }
  ~InUse() {
    if (!--users_ && dropped) [[unlikely]]
      FreeDropped();
  }
  InUse(const InUse&) = delete;
  static inline bool dropped = false;  // Are there dropped segments?

 private:
  static void FreeDropped();
  static inline int users_ = 0;
};

CodeState& StateOf(Compiled& compiled, const CodeIn& code);
inline CodeIn CodeOf(FjFrame* frame) {
  return {fj_code(frame), fj_globals(frame)};
}

// While alive, frames of this thread are candidates under `compiled`.
class ActiveScope {
 public:
  explicit ActiveScope(std::shared_ptr<Compiled> compiled);
  ~ActiveScope();

 private:
  const MadeAhead made_ahead_;
  std::shared_ptr<Compiled> before_;
  frame::HookScope hook_;
};
bool Capturing();

enum class Stance : uint8_t { kDefault, kForceEager, kEagerOnRecompile, kFailOnRecompile };
void SetStance(Stance s);
Stance GetStance();
inline bool ending = false;  // Is the interpreter about to end (EndAll)?
bool DisabledByOption();     // Is FRAMEJIT_DISABLE=1 set?
inline bool DisabledEverywhere() {
  static const bool off = DisabledByOption();
  return off || ending;
}

}  // namespace framejit::capture
