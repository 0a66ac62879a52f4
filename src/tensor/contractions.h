// Chooses the library that runs a float32 matrix product. Torch carries MKL (which eager calls) and oneDNN, and on a
// machine either may be twice as fast as the other; MKL may also take the weight in a packed form, which is a second
// copy of it. Choose() answers for a class of shapes and measures each class once on a machine (library_choice.cc).
#pragma once

#include <cstdint>
#include <functional>

namespace framejit::tensor {

enum class Library : uint8_t { kMkl, kOneDnn, kPacked };

struct ProductShape {
  int64_t batch, m, n, k;
  uint32_t layout = 0;  // which operands are transposed, whether there is a bias: they change the answer
  enum class Packed : uint8_t { kNo, kCouldBe, kIs } packed = Packed::kNo;  // Is the second operand packed?
};

// A product to measure with. It may be smaller than the one that the choice is for.
struct Probe {
  std::function<bool(Library, int64_t m)> run;  // computes the first m rows of all batches; false: it cannot
  // The error of the last run, as a sum of squares. A library must not be further from the exact result than MKL by a
  // larger factor than results may be further from it than eager's.
  std::function<double(int64_t m)> error;
  int64_t m;                           // The rows of one batch.
  double flops;                        // The operations of one row.
  std::function<void()> cool = [] {};  // called before each timed run: takes the operands out of the caches
};

constexpr double kProbeFlops = 1e8;      // a larger product is measured on a part of it
constexpr double kCopyFlops = 1e6;       // our own loop does smaller products that no library takes as they lie
constexpr int64_t kPackedRows = 16;      // with fewer, packed products sum longer chains than eager's
constexpr int64_t kMaxPackedSize = 1e9;  // bounds m, n, k and strides, which MKL takes as 32-bit numbers

// The answer is MKL unless oneDNN is faster by more than a tenth or the packed form by a twentieth, so that results
// stay eager's own where little is won.
Library Choose(const ProductShape& shape, const Probe& probe);
// True where deterministic algorithms are asked for, or where this is one of several processes that must all compute
// the same: then nothing is measured. Needs no GIL.
bool NothingByTheClock();
// With the GIL: is there a process group of torch.distributed, with several processes in it? NothingByTheClock knows of
// it from then on. It was not told of by the launcher where the program started its processes itself.
void LookForProcesses();
void ForceLibrary(int library);  // for tests: use this library wherever it can be used; -1: as measured

}  // namespace framejit::tensor
