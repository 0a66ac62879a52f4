// NumPy's BLAS, where that is OpenBLAS: its functions, and how it shares products of matrices and vectors between its
// threads. What is expected here of its sums must have been compared with what it gives before it is relied on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace framejit::tensor {

// The first of these functions that each OpenBLAS of the process has whose path holds `of`.
std::vector<void*> OfBlas(std::initializer_list<const char*> names, const char* of);

// Among how many threads it shares products of so many multiplications, from the fewest to the most. 0: not known.
int SharesOfBlas(int64_t fewest, int64_t most);

// Calls f with the end and the width of each share of n results. Those at the end of a share, up to three, are added up
// in another way than the rest.
void EachShare(int64_t n, int shares, auto&& f) {
  constexpr int64_t kFewest = 4;
  for (int64_t end = 0; end < n; --shares) {
    const int64_t left = n - end, width = std::min(left, std::max(kFewest, (left + shares - 1) / shares));
    f(end += width, width);
  }
}

}  // namespace framejit::tensor
