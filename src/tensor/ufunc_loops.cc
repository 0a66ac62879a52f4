#include "tensor/ufunc_loops.h"

#include <xmmintrin.h>

#include <atomic>
#include <cstring>
#include <string>

#include "runtime/copy.h"
#include "tensor/numpy_api.h"
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

// The loop of np.matmul. It is looked for once.
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

struct Bytes {
  uintptr_t low, high;
  explicit Bytes(const Buffer& b) {
    const runtime::Extent reach = runtime::ExtentOf(b);
    low = reinterpret_cast<uintptr_t>(b.data) + reach.low * DTypeSize(b.dtype);
    high = reinterpret_cast<uintptr_t>(b.data) + reach.high * DTypeSize(b.dtype);
  }
  bool Meets(const Bytes& o) const { return low < o.high && o.low < high; }
};

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
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before & ~_MM_EXCEPT_MASK);
  loop(args, sizes, strides, nullptr);
  constexpr unsigned kTold = _MM_EXCEPT_INVALID | _MM_EXCEPT_DIV_ZERO | _MM_EXCEPT_OVERFLOW | _MM_EXCEPT_UNDERFLOW;
  const bool told = _mm_getcsr() & kTold;
  _mm_setcsr(before);
  return !told;
}

}  // namespace framejit::tensor
