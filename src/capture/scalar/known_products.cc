#include "capture/scalar/known_products.h"

#include <cstddef>
#include <iterator>

#include "capture/scalar/dots_ahead.h"

namespace framejit::capture::scalar {

using codegen::ScalarOp;
using codegen::ScalarType;

static int Field(Builder& b, int known, size_t offset, ScalarType t = ScalarType::kInt) {
  return b.Emit({.op = ScalarOp::kLoad,
                 .type = t,
                 .a = known,
                 .b = b.Int(static_cast<int64_t>(offset)),
                 .dtype = t == ScalarType::kF64 ? DType::kFloat64 : DType::kInt64,
                 .id = -2,
                 .array = kKnownDots});
}

int LiesApart(Builder& b, int known, int at, int bytes) {
  const auto both = [&](int x, int y) { return b.Op(ScalarOp::kAnd, ScalarType::kBool, x, y); };
  const int end = b.Op(ScalarOp::kAt, ScalarType::kPtr, at, bytes);
  int apart = b.Compare(ScalarOp::kEq, Field(b, known, offsetof(KnownDots, others)), b.Int(0));
  for (size_t k = 0; k < std::size(KnownDots().reads); ++k) {
    const size_t reads = offsetof(KnownDots, reads) + k * sizeof(KnownDots::Extent);
    const int low = Field(b, known, reads + offsetof(KnownDots::Extent, low), ScalarType::kPtr),
              high = Field(b, known, reads + offsetof(KnownDots::Extent, high), ScalarType::kPtr);
    apart = both(apart, b.Op(ScalarOp::kOr, ScalarType::kBool, b.Compare(ScalarOp::kLe, end, low),
                             b.Compare(ScalarOp::kGe, at, high)));
  }
  return apart;
}

int AskKnown(Builder& b, const void* product, const std::vector<int>& args, int known, int* value) {
  const auto field = [&](size_t offset) { return Field(b, known, offset); };
  const int at = field(offsetof(KnownDots, at));
  int is_known = b.Compare(ScalarOp::kLt, at, field(offsetof(KnownDots, count)));
  const auto wants = [&](int x, int y) {
    is_known = b.Op(ScalarOp::kAnd, ScalarType::kBool, is_known, b.Compare(ScalarOp::kEq, x, y));
  };
  const auto vector = [&](size_t offset, size_t step) {
    const int moved = b.Op(ScalarOp::kMul, ScalarType::kInt, at, field(step));
    return b.Op(ScalarOp::kAt, ScalarType::kPtr, Field(b, known, offset, ScalarType::kPtr), moved);
  };
  wants(args[1], vector(offsetof(KnownDots, a), offsetof(KnownDots, a_step)));
  wants(args[2], field(offsetof(KnownDots, a_next)));
  wants(args[3], vector(offsetof(KnownDots, b), offsetof(KnownDots, b_step)));
  wants(args[4], field(offsetof(KnownDots, b_next)));
  wants(args[6], field(offsetof(KnownDots, n)));
  const int place = b.Op(ScalarOp::kMul, ScalarType::kInt, at, b.Int(sizeof(double)));
  const int known_value =
      Field(b, b.Op(ScalarOp::kAt, ScalarType::kPtr, known, place), offsetof(KnownDots, values), ScalarType::kF64);
  b.Emit({.op = ScalarOp::kStore,
          .a = known,
          .b = b.Int(offsetof(KnownDots, at)),
          .c = b.Op(ScalarOp::kAdd, ScalarType::kInt, at, b.Op(ScalarOp::kBoolToInt, ScalarType::kInt, is_known)),
          .dtype = DType::kInt64,
          .array = kKnownDots});
  const int finite = b.Op(ScalarOp::kFinite, ScalarType::kBool, known_value);
  const int good = b.CallUnless(is_known, finite, product, ScalarType::kBool, args);
  const int made = b.Emit({.op = ScalarOp::kCell, .type = ScalarType::kF64, .imm = b.scratch, .id = -2});
  *value = b.Op(ScalarOp::kSelect, ScalarType::kF64, is_known, known_value, made);
  return good;
}

}  // namespace framejit::capture::scalar
