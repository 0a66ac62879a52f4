#include "tensor/ufunc_loops.h"

#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/copy.h"
#include "tensor/numpy_api.h"
#include "tensor/openblas.h"
#include "tensor/run_context.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

namespace {

// The struct is that of ufuncobject.h, the same in NumPy 1.x and 2.x.
struct Ufunc {
  PyObject_HEAD int nin, nout, nargs, identity;
  UfuncLoop* functions;
  void* const* data;
  int ntypes, reserved;
  const char *name, *types;
};

// A call of the ufunc costs as much as this many multiplications.
constexpr double kSmall = 1 << 18;

// NumPy's number of the type.
char NumberOf(DType t) {
  return t == DType::kComplex128 ? 15 : t == DType::kFloat64 ? 12 : t == DType::kFloat32 ? 11 : 7;
}

constexpr unsigned kTold = _MM_EXCEPT_INVALID | _MM_EXCEPT_DIV_ZERO | _MM_EXCEPT_OVERFLOW | _MM_EXCEPT_UNDERFLOW;

struct Bytes {
  uintptr_t low, high;
  explicit Bytes(const Buffer& b) {
    const runtime::Extent reach = runtime::ExtentOf(b);
    low = reinterpret_cast<uintptr_t>(b.data) + reach.low * DTypeSize(b.dtype);
    high = reinterpret_cast<uintptr_t>(b.data) + reach.high * DTypeSize(b.dtype);
  }
  bool Meets(const Bytes& o) const { return low < o.high && o.low < high; }
};

using runtime::MakeRows;

// The product of a matrix, some rows at a time, and a vector. A BLAS takes four rows at once and the last ones of a
// share otherwise, so no block but the last of a share ends within four.
class Blocks {
 public:
  static constexpr int64_t kRows = 16;

  Blocks(UfuncLoop loop, int64_t inner, const char* vector, int64_t next, char* out, int64_t out_next, MakeRows rows,
         void* ctx)
      : loop_(loop),
        inner_(inner),
        vector_(vector),
        next_(next),
        out_(out),
        out_next_(out_next),
        rows_(rows),
        ctx_(ctx) {}

  // False: a block would be shared between threads, or there is something to tell of.
  bool Run(framejit::Host& host, int64_t count, int shares, int64_t elements = kElements) const {
    const int64_t step = std::max<int64_t>(1, elements / inner_ / kRows) * kRows;
    if ((step + 1) * inner_ > kMost) return false;
    std::vector<std::pair<int64_t, int64_t>> blocks;
    bool alone = false;  // is there a row by itself? NumPy has its product by another function
    EachShare(count, shares, [&](int64_t end, int64_t width) {
      alone = alone || (width == 1 && count > 1);
      for (int64_t begin = end - width, next; begin < end; begin = next) {
        next = end - begin <= step + 1 ? end : begin + step;
        blocks.emplace_back(begin, next);
      }
    });
    if (alone) return false;
    struct Work {
      const Blocks& of;
      const std::vector<std::pair<int64_t, int64_t>>& blocks;
      std::atomic<bool> told = false;
    } work{*this, blocks};
    const auto run = [](void* context, int64_t begin, int64_t end) {
      Work& w = *static_cast<Work*>(context);
      for (int64_t i = begin; i < end && !w.told.load(std::memory_order_relaxed); ++i)
        if (!w.of.Multiply(w.blocks[i].first, w.blocks[i].second)) w.told = true;
    };
    host.ParallelFor(static_cast<int64_t>(blocks.size()), 1, run, &work);
    return !work.told;
  }

 private:
  // As much as a core's own cache holds beside what it is made of, and what one thread surely multiplies.
  static constexpr int64_t kElements = 1 << 15, kMost = 400'000;

  bool Multiply(int64_t begin, int64_t end) const {
    constexpr int64_t kItem = sizeof(double);
    const void* from = rows_(ctx_, begin, end);
    if (!from) return false;
    char* args[] = {static_cast<char*>(const_cast<void*>(from)), const_cast<char*>(vector_),
                    out_ + begin * out_next_ * kItem};
    const intptr_t sizes[] = {1, end - begin, inner_, 1};
    const intptr_t strides[] = {0, 0, 0, inner_ * kItem, kItem, next_ * kItem, 0, out_next_ * kItem, 0};
    return RunsSilently(loop_, nullptr, args, sizes, strides, kTold);
  }

  const UfuncLoop loop_;
  const int64_t inner_;
  const char* const vector_;
  const int64_t next_;  // elements
  char* const out_;
  const int64_t out_next_;
  const MakeRows rows_;
  void* const ctx_;
};

// Are the sums of blocks, to the last bit, those of the BLAS for the whole, which it shares so?
bool BlocksLikeBlas(UfuncLoop loop, int shares) {
  static std::mutex mu;
  static std::map<int, bool> known;
  std::lock_guard lock(mu);
  const auto [at, is_new] = known.emplace(shares, false);
  if (!is_new) return at->second;
  constexpr std::pair<int64_t, int64_t> kOfOne[] = {{131, 1031}, {517, 259}, {37, 9001}, {17, 2051}},
                                        kOfMore[] = {{1031, 537}, {519, 1103}, {133, 4099}, {63, 9001}};
  struct OneThread : framejit::Host {
    void AllocateOutput(DType, std::span<const int64_t>, std::span<const int64_t>, Device, Buffer*) override {}
    void FreeOutput(Buffer*) override {}
    void RunExtern(const Call&, std::span<const Buffer>, std::span<Buffer>) override {}
    void Release(Buffer*) override {}
  } host;
  for (const auto& [count, inner] : shares == 1 ? kOfOne : kOfMore) {
    constexpr int64_t kItem = sizeof(double);
    std::vector<double> a(count * inner), x(inner), out(count), wanted(count);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i * i % 10007) / 3 - 1000;
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i * i % 1009) / 7 - 50;
    struct Matrix {
      const double* data;
      int64_t inner;
    } matrix{a.data(), inner};
    const auto rows = [](void* context, int64_t begin, int64_t) -> const void* {
      const auto& m = *static_cast<Matrix*>(context);
      return m.data + begin * m.inner;
    };
    const auto* vector = reinterpret_cast<char*>(x.data());
    const Blocks blocks(loop, inner, vector, 1, reinterpret_cast<char*>(out.data()), 1, rows, &matrix);
    char* args[] = {reinterpret_cast<char*>(a.data()), reinterpret_cast<char*>(x.data()),
                    reinterpret_cast<char*>(wanted.data())};
    const intptr_t sizes[] = {1, count, inner, 1}, strides[] = {0, 0, 0, inner * kItem, kItem, kItem, 0, kItem, 0};
    loop(args, sizes, strides, nullptr);
    if (!blocks.Run(host, count, shares, 1) || out != wanted) return false;
  }
  return at->second = true;
}

}  // namespace

LoopOf FindLoop(const char* name, int operands, DType t, std::optional<DType> to) {
  const NumpyApi* api = Numpy();
  Ref object(api ? Attr(api->module, name) : nullptr);
  static PyTypeObject* ufunc = api ? reinterpret_cast<PyTypeObject*>(Attr(api->module, "ufunc")) : nullptr;
  const auto* u = reinterpret_cast<Ufunc*>(object.get());
  if (!u || Py_TYPE(object.get()) != ufunc || u->nargs != operands + 1 || strcmp(u->name, name) != 0) return {};
  const std::string types = std::string(operands, NumberOf(t)) + NumberOf(to.value_or(t));
  for (int i = 0; i < u->ntypes; ++i)
    if (types == std::string_view(u->types + i * u->nargs, u->nargs))
      return {u->functions[i], u->data ? u->data[i] : nullptr};
  return {};
}

UfuncLoop ProductOf(DType t) {
  static std::atomic<UfuncLoop> loops[2];
  std::atomic<UfuncLoop>& loop = loops[t == DType::kFloat64];
  if (!loop.load(std::memory_order_relaxed)) {
    HoldGil gil;
    SavedError saved;
    loop = FindLoop("matmul", 2, t).run;
  }
  return loop.load(std::memory_order_relaxed);
}

bool MultiplySmall(const Buffer& a, const Buffer& b, const Buffer& out) {
  const DType t = out.dtype;
  if ((t != DType::kFloat64 && t != DType::kFloat32) || a.dtype != t || b.dtype != t || !out.data) return false;
  const int rank = out.rank;
  if (rank < 2 || rank > 3 || a.rank != rank || b.rank != rank) return false;
  const int64_t count = rank == 3 ? out.sizes[0] : 1, size = DTypeSize(t);
  const int64_t rows = a.sizes[rank - 2], inner = a.sizes[rank - 1], columns = b.sizes[rank - 1];
  const double work = static_cast<double>(count) * rows * inner * columns;
  if (work < 1 || work > kSmall) return false;
  const Buffer* all[] = {&a, &b, &out};
  intptr_t strides[9];
  for (int k = 0; k < 3; ++k) {
    const Buffer& x = *all[k];
    if ((rank == 3 && x.sizes[0] != count) || reinterpret_cast<uintptr_t>(x.data) % size) return false;
    strides[k] = rank == 3 && count > 1 ? x.strides[0] * size : 0;
    for (int i = 0; i < 2; ++i)  // the ufunc has it so where there is one element
      strides[3 + 2 * k + i] = x.sizes[rank - 2 + i] == 1 ? 0 : x.strides[rank - 2 + i] * size;
  }
  const Bytes to(out);
  if (to.Meets(Bytes(a)) || to.Meets(Bytes(b))) return false;
  const UfuncLoop loop = ProductOf(t);
  if (!loop) return false;
  char* args[] = {static_cast<char*>(a.data), static_cast<char*>(b.data), static_cast<char*>(out.data)};
  const intptr_t sizes[] = {count, rows, inner, columns};
  return RunsSilently(loop, nullptr, args, sizes, strides, kTold);
}

bool MultiplyRows(framejit::Host& host, const Buffer& a, const Buffer& b, const Buffer& out, MakeRows rows, void* ctx) {
  const DType t = DType::kFloat64;
  if (a.dtype != t || b.dtype != t || out.dtype != t || a.rank != 2 || b.rank != 2 || out.rank != 2 || !out.data)
    return false;
  const int64_t count = a.sizes[0], inner = a.sizes[1];
  if (b.sizes[1] != 1 || b.strides[0] <= 0 || out.strides[0] <= 0) return false;
  for (const Buffer* x : {&b, &out})
    if (reinterpret_cast<uintptr_t>(x->data) % sizeof(double)) return false;
  const Bytes to(out);
  const UfuncLoop loop = ProductOf(t);
  const int shares = SharesOfBlas(count * inner, count * inner);
  if (to.Meets(Bytes(b)) || !loop || !shares || !BlocksLikeBlas(loop, shares)) return false;
  const Blocks blocks(loop, inner, static_cast<char*>(b.data), b.strides[0], static_cast<char*>(out.data),
                      out.strides[0], rows, ctx);
  return blocks.Run(host, count, shares);
}

}  // namespace framejit::tensor
