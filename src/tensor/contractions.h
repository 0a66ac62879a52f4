// Which library runs a float32 matrix product: torch carries two, MKL (what eager calls) and oneDNN, and either may be
// twice as fast as the other on a machine. Choose() answers for a class of shapes, measuring once.
#pragma once

#include <cstdint>
#include <functional>

namespace framejit::tensor {

enum class Library : uint8_t { kMkl, kOneDnn };

struct ProductShape {
  int64_t batch, m, n, k;
  uint32_t layout = 0;  // which operands are transposed, whether there is a bias: they change the answer
};

// run(library, m): runs the product's first `m` rows (all batches), false if that library cannot; called only while
// measuring. MKL unless oneDNN is faster by more than a tenth, so that results stay eager's own where nothing is won.
// Fixed to MKL under deterministic algorithms and where a process group exists: ranks must agree.
// error(m): how far the result of the last run is from the truth; oneDNN must not be worse than MKL by more than
// results may be worse than eager's.
Library Choose(const ProductShape& shape, const std::function<bool(Library, int64_t m)>& run,
               const std::function<double(int64_t m)>& error);

}  // namespace framejit::tensor
