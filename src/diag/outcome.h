// What ends a capture, a compilation and a run. Each family is one enumeration with a name for every value, by which it
// is counted (framejit.cache_info(f)["outcomes"]) and written to the event stream.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>

namespace framejit::diag {

// clang-format off
// X(enumerator, name). A capture: made a segment; stopped before an instruction (a row of breaks.def); held nothing
// worth compiling; is made again with one thing decided (below); or the plain function is left as it is.
#define FRAMEJIT_CAPTURE_ENDS(X) \
  X(kSegment, "segment") X(kBreak, "break") X(kNothing, "nothing") X(kAgain, "again") X(kLeave, "leave")

// What is decided for the capture that follows, once each.
#define FRAMEJIT_AGAINS(X)                                                   \
  X(kNone, "nothing")                                                        \
  X(kDataSizes, "sizes that data decides")                                   \
  X(kFixedSizes, "sizes that must be numbers")                               \
  X(kCheckpoints, "torch.utils.checkpoint without a compiled backward pass") \
  X(kDerivatives, "derivatives inside that the graph does not hold")         \
  X(kNotCompiling, "is_compiling() is answered False: the program raised where it was True")

// Why a function is left to the framework.
#define FRAMEJIT_LEAVES(X)                                                                            \
  X(kNone, "it is not")                                                                               \
  X(kCheapInPlace, "a cheap operation on a large array in place: left to NumPy, which reads it once") \
  X(kMostlyNumpys, "little besides what NumPy does itself: left to NumPy")

// A compilation: has kernels for all that it computes; some step became the framework's own call, since no kernel
// serves it; the whole segment runs through the framework; the user's backend failed; a bug of ours.
#define FRAMEJIT_COMPILE_ENDS(X) \
  X(kOk, "ok")                   \
  X(kNoKernel, "no_kernel") X(kFramework, "framework") X(kBackendFailed, "backend_failed") X(kInternal, "internal")

// A run: done; not begun, as guards do not hold, or as the plain function is faster; data says something else than was
// guessed, or than a condition on sizes wants; not begun, as it failed several times in a row; no memory; the framework
// refuses (and raises the same at the user's line, when Python runs it again); NumPy would tell of floating-point
// errors or warn; what was done stays done and the exception is for the program; a bug of ours. After all but the first
// three and kRaised everything is as before.
#define FRAMEJIT_RUN_ENDS(X)                                                                               \
  X(kOk, "ok")                                                                                             \
  X(kMiss, "miss")                                                                                         \
  X(kLeft, "left")                                                                                         \
  X(kCondition, "condition")                                                                               \
  X(kGuessFailed, "guess_failed")                                                                          \
  X(kFailing, "failing") X(kMemory, "memory") X(kRefused, "refused") X(kTold, "told") X(kRaised, "raised") \
      X(kInternal, "internal")

// What ran, where it is done.
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

// Of one compiled function. The GIL is held.
struct Outcomes {
  CaptureEndCounts capture{};
  CompileEndCounts compile{};
  RunEndCounts run{};  // but for the first two
  RunByCounts by{};
  void Add(CaptureEnd e) { ++capture[static_cast<size_t>(e)]; }
  void Add(CompileEnd e) { ++compile[static_cast<size_t>(e)]; }
  void Add(RunEnd e, int64_t n = 1) { run[static_cast<size_t>(e)] += n; }
  void Add(RunBy e) { ++by[static_cast<size_t>(e)]; }
};

}  // namespace framejit::diag
