// What LLVM's libraries want of a C library that is newer than many machines': defined here, so that a wheel that is
// built with it runs on those, too (tools/dev wheel; glibc has arc4random since 2.36).
#include <sys/random.h>

#include <cstdint>

extern "C" uint32_t arc4random() noexcept {  // for names of temporary files
  uint32_t drawn = 0;
  while (getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) {
  }
  return drawn;
}
