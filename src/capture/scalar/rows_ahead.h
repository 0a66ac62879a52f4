// Products of vectors and matrices that a loop asks for one after the other, each of a vector that lies further on by
// the same step than that of the last one, and of the same matrix, or of that matrix without its first column:
// `x[:, i] @ x[:, i:]` for all i. Where the loop has done so twice, several are computed at once, so that the matrix is
// read once for all of them. The sums are those of a BLAS whose matrix has columns that lie apart, to the last bit;
// who asks must have found that out (RowsLikeBlas).
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>
#include <vector>

#include "capture/scalar/dots_ahead.h"

namespace framejit::capture::scalar {

class RowsAhead {
 public:
  struct Call {
    const char *vector = nullptr, *matrix = nullptr;
    int64_t vector_next = 0, matrix_row = 0;  // bytes from element to element, and from row to row
    int64_t n = 0, columns = 0;
    friend bool operator==(const Call&, const Call&) = default;
  };
  // Among how many threads the BLAS shares the columns of products of so many terms with so many columns, from the
  // fewest to the most: those at the end of a share are added in another way. 0: not known.
  using SharesOf = absl::FunctionRef<int(int64_t n, int64_t fewest, int64_t most)>;
  // True with the product if that is known, or is now, since further ones are likely to follow. `end`: of the memory
  // that the vector lies in.
  bool Find(const Call& call, const char* end, SharesOf shares, double* out);
  // Something has been written in [low, high).
  void Wrote(const char* low, const char* high) {
    if (at_ < known_ &&
        ((low < reads_[0].high && high > reads_[0].low) || (low < reads_[1].high && high > reads_[1].low)))
      Drop();
  }

  static constexpr int kRows = 32, kFew = 16;  // at most; of what shows how a BLAS adds
  static constexpr int64_t kFewestColumns = 16;
  // The products of `rows` vectors, a multiple of 8, each `step` bytes behind the one before, with the matrix, which
  // loses `lost` (0 or 1) columns from row to row. A row of `out` has call.columns places, the first of which stay
  // undefined then. False: NumPy may have something to tell of.
  static bool Several(const Call& call, int64_t step, int lost, int rows, int shares, double* out);
  static bool Runs();  // Has this processor what Several needs?

 private:
  struct Extent {
    const char *low = nullptr, *high = nullptr;
  };
  bool Begin(const Call& call, const char* end, SharesOf shares);
  void Take(double* out);
  void Drop();

  Call last_, next_;  // the last call, and the one after it if the loop goes on as it has
  int64_t step_ = 0;  // of the vector
  int lost_ = -1;     // columns, from call to call; -1 where the last two calls are nothing of the kind
  int at_ = 0, known_ = 0, vain_ = 0;
  int64_t width_ = 0;
  std::vector<double> values_;
  Extent reads_[2];
};

// What a run of a loop's code has of both.
struct ProductsAhead : KnownDots {
  DotsAhead dots{*this};
  RowsAhead rows;
  void Wrote(const char* low, const char* high, int64_t bytes = 0, int64_t step = 0) {  // as DotsAhead's
    dots.Wrote(low, high, bytes, step);
    rows.Wrote(low, high);
  }
};

}  // namespace framejit::capture::scalar
