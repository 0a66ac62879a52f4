// What ends a capture, a compilation and a run. Each family is one enumeration with a name for every value, by which it
// is counted (framejit.cache_info(f)["outcomes"]) and written to the event stream.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>

namespace framejit::diag {

// clang-format off
// X(enumerator, name). How a capture ends: it made a segment (kSegment); it stopped before an instruction for a reason
// of breaks.def (kBreak); it found nothing worth compiling (kNothing); it is made once more with one thing decided
// (kAgain and FRAMEJIT_AGAINS); or the function is left to the framework (kLeave and FRAMEJIT_LEAVES).
#define FRAMEJIT_CAPTURE_ENDS(X) \
  X(kSegment, "segment") X(kBreak, "break") X(kNothing, "nothing") X(kAgain, "again") X(kLeave, "leave")

// What is decided for the capture that follows. Each of these happens at most once for a place; kBackward, once for each
// such function.
#define FRAMEJIT_AGAINS(X)                                                   \
  X(kNone, "nothing")                                                        \
  X(kDataSizes, "sizes that data decides")                                   \
  X(kFixedSizes, "sizes that must be numbers")                               \
  X(kCheckpoints, "torch.utils.checkpoint without a compiled backward pass") \
  X(kDerivatives, "derivatives inside that the graph does not hold")         \
  X(kLeaves, "much is computed of a leaf that was made inside")              \
  X(kBackward, "a backward function that runs as it is")                     \
  X(kTape, "a call that torch itself makes")                                 \
  X(kGivenNumbers, "ints that the call is given, as numbers")                \
  X(kNotCompiling, "is_compiling() is answered False: the program raised where it was True")

// Why a function is left to the framework.
#define FRAMEJIT_LEAVES(X)                                                                            \
  X(kNone, "it is not")                                                                               \
  X(kCheapInPlace, "a cheap operation on a large array in place: left to NumPy, which reads it once") \
  X(kMostlyNumpys, "little besides what NumPy does itself: left to NumPy")

// How a compilation ends: there are kernels for all that is computed (kOk); a step that no kernel serves became the
// framework's own call (kNoKernel); the whole segment runs through the framework (kFramework); the backend that the user
// named failed (kBackendFailed); there is a bug of ours (kInternal).
#define FRAMEJIT_COMPILE_ENDS(X) \
  X(kOk, "ok")                   \
  X(kNoKernel, "no_kernel") X(kFramework, "framework") X(kBackendFailed, "backend_failed") X(kInternal, "internal")

// How a run ends.
//   kOk           it is done
//   kMiss         it was not begun, since a guard does not hold
//   kLeft         it was not begun, since the plain function is faster
//   kCondition    a condition on sizes that data decides does not hold
//   kGuessFailed  data says something else than was guessed
//   kFailing      it was not begun, since it failed several times in a row
//   kMemory       there is not enough memory
//   kRefused      the framework raised; Python runs the call again, and it raises at the user's line
//   kTold         NumPy would tell of a floating-point error, or warn
//   kRaised       the exception is for the program, and what was done stays done
//   kInternal     a bug of ours
// After all but kOk and kRaised everything is as it was before the run.
#define FRAMEJIT_RUN_ENDS(X)                                                                               \
  X(kOk, "ok")                                                                                             \
  X(kMiss, "miss")                                                                                         \
  X(kLeft, "left")                                                                                         \
  X(kCondition, "condition")                                                                               \
  X(kGuessFailed, "guess_failed")                                                                          \
  X(kFailing, "failing") X(kMemory, "memory") X(kRefused, "refused") X(kTold, "told") X(kRaised, "raised") \
      X(kInternal, "internal")

// What a run ran: kernels, the framework call by call, the user's backend, nothing, or the function in Python.
#define FRAMEJIT_RUNNERS(X) \
  X(kGraph, "graph") X(kTrace, "framework") X(kCallable, "callable") X(kNone, "nothing") X(kPython, "python")

// clang-format on

#define FRAMEJIT_FAMILY(Name, LIST)                                      \
  enum class Name : uint8_t { LIST(FRAMEJIT_ENUMERATOR) };               \
  inline constexpr const char* k##Name##Names[] = {LIST(FRAMEJIT_NAME)}; \
  inline const char* Text(Name e) {                                      \
    return k##Name##Names[static_cast<size_t>(e)];                       \
  }                                                                      \
  using Name##Counts = std::array<int64_t, std::size(k##Name##Names)>;
#define FRAMEJIT_ENUMERATOR(e, name) e,
#define FRAMEJIT_NAME(e, name) name,
FRAMEJIT_FAMILY(CaptureEnd, FRAMEJIT_CAPTURE_ENDS)
FRAMEJIT_FAMILY(Again, FRAMEJIT_AGAINS)
FRAMEJIT_FAMILY(Leave, FRAMEJIT_LEAVES)
FRAMEJIT_FAMILY(CompileEnd, FRAMEJIT_COMPILE_ENDS)
FRAMEJIT_FAMILY(RunEnd, FRAMEJIT_RUN_ENDS)
FRAMEJIT_FAMILY(RunBy, FRAMEJIT_RUNNERS)
#undef FRAMEJIT_FAMILY
#undef FRAMEJIT_ENUMERATOR
#undef FRAMEJIT_NAME

// The counts of one compiled function. Whoever reads or changes them holds the GIL.
struct Outcomes {
  CaptureEndCounts capture{};
  CompileEndCounts compile{};
  RunEndCounts run{};  // The first two are not counted here.
  RunByCounts by{};
  void Add(CaptureEnd e) { ++capture[static_cast<size_t>(e)]; }
  void Add(CompileEnd e) { ++compile[static_cast<size_t>(e)]; }
  void Add(RunEnd e, int64_t n = 1) { run[static_cast<size_t>(e)] += n; }
  void Add(RunBy e) { ++by[static_cast<size_t>(e)]; }
};

}  // namespace framejit::diag
