#include "runtime/status.h"

#include <cfenv>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace framejit::runtime {
namespace {

thread_local int noted = 0;
constexpr int kIeee = kDivide | kOverflow | kUnderflow | kInvalid;

#if defined(__SSE2__)  // the flags of vector code alone, a tenth of the cost of fetestexcept
int TakeIeee() {
  const unsigned csr = _mm_getcsr();
  if (!(csr & 0x3f)) return 0;
  _mm_setcsr(csr & ~0x3fu);
  return (csr & 0x04 ? kDivide : 0) | (csr & 0x08 ? kOverflow : 0) | (csr & 0x10 ? kUnderflow : 0) |
         (csr & 0x01 ? kInvalid : 0);
}
#else
int TakeIeee() {
  const int raised = std::fetestexcept(FE_ALL_EXCEPT);
  if (!raised) return 0;
  std::feclearexcept(FE_ALL_EXCEPT);
  return (raised & FE_DIVBYZERO ? kDivide : 0) | (raised & FE_OVERFLOW ? kOverflow : 0) |
         (raised & FE_UNDERFLOW ? kUnderflow : 0) | (raised & FE_INVALID ? kInvalid : 0);
}
#endif

}  // namespace

void NoteStatus(int status) {
  noted |= status;
}

int TakeStatus(int traps) {
  int status = noted;
  noted = 0;
  if (traps & kIeee) status |= TakeIeee();
  return status & traps;
}

}  // namespace framejit::runtime
