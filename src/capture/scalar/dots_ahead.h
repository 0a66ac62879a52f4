// Products of vectors that a loop asks for one after the other, each with a vector that lies one element behind that of
// the last one: `np.dot(a[i + 1:, i], b[i + 1:, j])` for all j. Where the loop has done so twice, several are computed
// at once, side by side in registers, and handed out when they are asked for. Behind such a row another one is taken to
// follow, of as many. What they were made of must not have been
// written since: the code tells of all that it writes, and one of these lives no longer than a run of the code. The
// sums are those of a BLAS for vectors that are not dense, to the last bit; who asks must have found that out
// (SumsLikeBlas).
#pragma once

#include <cstdint>

namespace framejit::capture::scalar {

class DotsAhead {
 public:
  struct Operand {
    char* at;
    int64_t next;  // bytes from element to element
    char* end;     // of the memory that it lies in
  };
  // True with the product of `n` elements of each if that is known, or is now, since further ones are likely to follow.
  bool Find(const Operand& a, const Operand& b, int64_t n, double* out) {
    const Operand &still = b_moves_ ? a : b, &moving = b_moves_ ? b : a;
    if (at_ == known_ || moving.at != next_.moving || still.at != next_.still || n != next_.n ||
        moving.next != next_.moving_next || still.next != next_.still_next)
      return FindNew(a, b, n, out);
    *out = Take();
    return true;
  }
  // Something has been written in [low, high): all of it, or so many bytes of each `step`, from low on. Such a column
  // meets neither other columns nor those that have been handed out.
  void Wrote(const char* low, const char* high, int64_t bytes = 0, int64_t step = 0) {
    const auto meets = [&](const Extent& e, int64_t next, int64_t from, int64_t to) {
      if (low >= e.high || high <= e.low) return false;
      if (step != next || bytes > step || to > step) return true;
      const int64_t apart = (low - e.low) % step, column = apart < 0 ? apart + step : apart;
      return (column < to && column + bytes > from) || column + bytes - step > from;
    };
    if (at_ < known_ && (meets(reads_[0], next_.moving_next, at_ * kItem, known_ * kItem) ||
                         meets(reads_[1], next_.still_next, 0, kItem)))
      Drop();
  }

  static constexpr int64_t kItem = sizeof(double);
  static constexpr int kFewestLanes = 4, kLanes = 32;
  // How many can be computed at once on this processor, at most so many, if so many are wanted.
  static int LanesUpTo(int64_t most, int64_t wanted);
  // Products of one vector with `lanes` others, a number that LanesUpTo gives, each of which lies an element behind the
  // one before.
  static void Several(const char* still, int64_t still_next, const char* moving, int64_t moving_next, int64_t n,
                      int lanes, double* out);
  static bool Runs();  // Has this processor what Several needs?

 private:
  struct Call {
    char *still = nullptr, *moving = nullptr;
    int64_t still_next = 0, moving_next = 0, n = 0;
    friend bool operator==(const Call&, const Call&) = default;
  };
  struct Extent {
    const char *low = nullptr, *high = nullptr;
  };
  bool FindNew(const Operand& a, const Operand& b, int64_t n, double* out);
  bool Begin(const Call& call, const char* end, int64_t wanted);
  double Take() {
    next_.moving += kItem;
    return values_[at_++];
  }
  void Drop();

  Call last_[2], next_;     // the last call that was not known, either way round, and the one that is known next
  int at_ = 0, known_ = 0;  // Of values_: those from at_ on are known.
  bool b_moves_ = true;     // next_ has b for what moves
  int64_t row_ = 0;         // how many the last row of such calls had, if that is known
  int64_t in_row_ = 0;      // how many this one had before values_
  int vain_ = 0;            // how often what was computed was written before it was asked for
  double values_[kLanes];
  Extent reads_[2];
};

}  // namespace framejit::capture::scalar
