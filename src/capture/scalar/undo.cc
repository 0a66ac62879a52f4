// See the header.
#include "capture/scalar/undo.h"

#include <cstring>

#include "tensor/numpy_api.h"

namespace framejit::capture::scalar {

namespace {

constexpr int64_t kLargerThan = 4;
constexpr int64_t kPooled = int64_t{64} << 10;  // bytes: malloc would ask the system for them in each run
// Of a transaction: bytes that are copied in no time, and instructions of Python that are worth a byte.
constexpr int64_t kLittle = 4096, kForByte = 2;
}  // namespace

int64_t BytesOf(PyObject* o, DType t) {
  const tensor::NumpyArray* a = tensor::AsArray(o);
  int64_t bytes = DTypeSize(t);
  for (int i = a->nd; i-- > 0;) {
    if (a->dims[i] != 1 && a->strides[i] != bytes) return -1;
    bytes *= a->dims[i];
  }
  return bytes;
}

namespace {

// All bits of the numbers, to each of which `more` is added.
[[gnu::always_inline]] inline uint64_t AllBits(const uint64_t* data, int64_t n, uint64_t more) {
  constexpr int kAtOnce = 16;
  uint64_t all[kAtOnce] = {}, bits = 0;
  int64_t i = 0;
  for (; i + kAtOnce <= n; i += kAtOnce)
    for (int k = 0; k < kAtOnce; ++k) all[k] |= data[i + k] + more;
  for (; i < n; ++i) bits |= data[i] + more;
  for (uint64_t some : all) bits |= some;
  return bits;
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t AllBitsAvx2(const uint64_t* data, int64_t n, uint64_t more) {
  return AllBits(data, n, more);
}
#endif

}  // namespace

bool AllSeen(PyObject* array, bool natural) {
  const int64_t bytes = BytesOf(array, DType::kInt64), n = bytes / DTypeSize(DType::kInt64);
  if (bytes < 0) return false;
  const auto* data = reinterpret_cast<const uint64_t*>(tensor::AsArray(array)->data);
  const uint64_t more = natural ? 0 : codegen::kSeenNumber + 1;
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return AllBitsAvx2(data, n, more) <= codegen::kSeenNumber + more;
#endif
  return AllBits(data, n, more) <= codegen::kSeenNumber + more;
}

bool AllSeen(const Translation& t, PyObject* const* objects) {
  int64_t left = kLargerThan * t.seen;
  for (size_t k = 0; k < t.objects.size(); ++k) {
    const ObjectSpec& spec = t.objects[k];
    if (!spec.seen || !objects[k]) continue;
    left -= BytesOf(objects[k], spec.dtype);
    if (left < 0 || !AllSeen(objects[k], spec.natural)) return false;
  }
  return true;
}

int64_t MostKept(int64_t instructions) {
  return std::max(kLittle, instructions / kForByte);
}

int64_t RoundsForKept(int64_t kept, int64_t instructions, int64_t rounds) {
  if (kept <= kLittle) return 0;
  return std::min(rounds, kForByte * kept / std::max<int64_t>(instructions / std::max<int64_t>(rounds, 1), 1));
}

bool WorthUndoing(Translation& t, PyObject* const* objects, int64_t instructions) {
  if (t.lists || !t.undoes) return false;
  int64_t all = 0, mostly = 0;
  for (size_t k = 0; k < t.objects.size(); ++k) {
    const ObjectSpec& spec = t.objects[k];
    if (!spec.array || !spec.written || !objects[k]) continue;
    const int64_t bytes = BytesOf(objects[k], spec.dtype);
    if (bytes < 0) return false;
    all += bytes;
    if (spec.mostly) mostly += bytes;
  }
  t.kept = std::max(all, kLittle);
  return all <= 2 * mostly || (t.transaction && all <= MostKept(instructions));
}

bool Undo::Keep(const Translation& t, PyObject* const* objects) {
  int64_t all = 0;
  for (size_t k = 0; k < t.objects.size(); ++k) {
    const ObjectSpec& spec = t.objects[k];
    if (!spec.array || !spec.written || !objects[k]) continue;
    const int64_t bytes = BytesOf(objects[k], spec.dtype);
    all += bytes;
    if (bytes < 0 || all > kLargerThan * t.kept) return false;
    all_.push_back({tensor::AsArray(objects[k])->data, static_cast<size_t>(bytes)});
  }
  if (!all) return true;
  pooled_ = all >= kPooled;
  copy_ = pooled_ ? runtime::ArenaPool::Get().Acquire(all) : runtime::AllocateBlock(all);
  std::byte* to = copy_.data;
  for (const Kept& kept : all_) {
    memcpy(to, kept.data, kept.bytes);
    to += kept.bytes;
  }
  return true;
}

Undo::~Undo() {
  if (!copy_.data) return;
  pooled_ ? runtime::ArenaPool::Get().Release(copy_) : runtime::FreeBlock(copy_);
}

void Undo::PutBack() const {
  const std::byte* from = copy_.data;
  for (const Kept& kept : all_) {
    memcpy(kept.data, from, kept.bytes);
    from += kept.bytes;
  }
}

}  // namespace framejit::capture::scalar
