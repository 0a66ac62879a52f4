// Which library runs a float32 matrix product: torch carries two, MKL (what eager calls) and oneDNN, and either may be
// twice as fast as the other on a machine; MKL may also have been given the weight packed (a second copy of it).
// Choose() answers for a class of shapes, measuring once on a machine (library_choice.cc).
#pragma once

#include <cstdint>
#include <functional>

namespace framejit::tensor {

enum class Library : uint8_t { kMkl, kOneDnn, kPacked };

struct ProductShape {
  int64_t batch, m, n, k;
  uint32_t layout = 0;  // which operands are transposed, whether there is a bias: they change the answer
  enum class Packed : uint8_t { kNo, kCouldBe, kIs } packed = Packed::kNo;  // the second operand
};

// A product to measure on, which may be smaller.
struct Probe {
  std::function<bool(Library, int64_t m)> run;  // its first m rows (all batches); false if that library cannot
  // Of the last run, a sum of squares. A library must not be worse than MKL by more than results may be worse than
  // eager's.
  std::function<double(int64_t m)> error;
  int64_t m;                           // rows
  double flops;                        // of a row
  std::function<void()> cool = [] {};  // before each run that is timed: takes the operands out of the caches
};

constexpr double kProbeFlops = 1e8;      // a larger product is measured on a part of it
constexpr double kCopyFlops = 1e6;       // a smaller product that no library takes as it lies is done by our own loop
constexpr int64_t kPackedRows = 16;      // with fewer, packed products sum longer chains than eager's
constexpr int64_t kMaxPackedSize = 1e9;  // of m, n, k and strides: MKL takes 32-bit numbers

// MKL unless oneDNN is faster by more than a tenth or the packed form by a twentieth, so that results stay eager's own
// where nothing is won.
Library Choose(const ProductShape& shape, const Probe& probe);
// Deterministic algorithms are asked for, or this is one of several processes that must do the same: what is measured
// decides nothing.
bool NothingByTheClock();
void ForceLibrary(int library);  // for tests: this one wherever it can; -1: as measured

}  // namespace framejit::tensor
