// Products of vectors that a loop asks for one after the other, each with a vector that lies one element behind that of
// the last one: `np.dot(a[i + 1:, i], b[i + 1:, j])` for all j. Where the loop has done so twice, several are computed
// at once, side by side in registers, and handed out when they are asked for. Behind such a row another one is taken to
// follow, of as many. What they were made of must not have been
// written since: the code tells of all that it writes, and one of these lives no longer than a run of the code. The
// sums are those of a BLAS for vectors that are not dense, to the last bit; who asks must have found that out
// (SumsLikeBlas), and which of two ways that BLAS goes (FuseLast).
#pragma once

#include <cstdint>

namespace framejit::capture::scalar {

// The products that are known. The code looks here before it asks.
struct KnownDots {
  struct Extent {
    const char *low = nullptr, *high = nullptr;
  };
  static constexpr int kMost = 32;

  const char *a = nullptr, *b = nullptr;  // the vectors of the first one
  int64_t a_next = 0, b_next = 0, n = 0;  // bytes from element to element, and how many there are
  int64_t a_step = 0, b_step = 0;         // bytes from vector to vector
  int64_t at = 0, count = 0;              // of `values`: those from `at` on are known
  Extent reads[2];                        // what they were made of
  int64_t others = 0;                     // Is there other memory of which it counts who writes to it?
  double values[kMost + 1];               // one may be looked at behind the last
};

class DotsAhead {
 public:
  explicit DotsAhead(KnownDots& known) : known_(known) {}

  struct Operand {
    char* at;
    int64_t next;  // bytes from element to element
    char* end;     // of the memory that it lies in
  };
  // True with the product of `n` elements of each, which KnownDots had not, if that is known now, since further ones
  // are likely to follow.
  bool Find(const Operand& a, const Operand& b, int64_t n, double* out);
  // Something has been written in [low, high): all of it, or so many bytes of each `step`, from low on. Such a column
  // meets neither other columns nor those that have been handed out.
  void Wrote(const char* low, const char* high, int64_t bytes = 0, int64_t step = 0) {
    const auto meets = [&](const KnownDots::Extent& e, int64_t next, int64_t from, int64_t to) {
      if (low >= e.high || high <= e.low) return false;
      if (step != next || bytes > step || to > step) return true;
      const int64_t apart = (low - e.low) % step, column = apart < 0 ? apart + step : apart;
      return (column < to && column + bytes > from) || column + bytes - step > from;
    };
    if (known_.at < known_.count &&
        (meets(known_.reads[0], first_.moving_next, known_.at * kItem, known_.count * kItem) ||
         meets(known_.reads[1], first_.still_next, 0, kItem)))
      Drop();
  }

  static constexpr int64_t kItem = sizeof(double);
  static constexpr int kFewestLanes = 4, kLanes = KnownDots::kMost;
  // How many can be computed at once on this processor, at most so many, if so many are wanted.
  static int LanesUpTo(int64_t most, int64_t wanted);
  // Products of one vector with `lanes` others, a number that LanesUpTo gives, each of which lies an element behind the
  // one before.
  static void Several(const char* still, int64_t still_next, const char* moving, int64_t moving_next, int64_t n,
                      int lanes, double* out);
  static bool Runs();  // Has this processor what Several needs?
  // Are the products of the last few terms, which make no four, added without being rounded? It is so until this says
  // something else.
  static void FuseLast(bool fuse);

 private:
  struct Call {
    char *still = nullptr, *moving = nullptr;
    int64_t still_next = 0, moving_next = 0, n = 0;
    friend bool operator==(const Call&, const Call&) = default;
  };
  bool Begin(const Call& call, bool b_moves, const char* end, int64_t wanted);
  Call Next() const;
  void Forget();
  void Drop();

  KnownDots& known_;
  Call last_[2], first_;  // the last call that was not known, either way round, and the first of known_.values
  bool b_moves_ = true;   // first_ has b for what moves
  int64_t row_ = 0;       // how many the last row of such calls had, if that is known
  int64_t in_row_ = 0;    // how many this one had before known_.values
  int vain_ = 0;          // how often what was computed was written before it was asked for
};

}  // namespace framejit::capture::scalar
