#include "tensor/contractions.h"

#include <sys/mman.h>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <optional>
#include <vector>

#include "diag/diag.h"
#include "tensor/run_context.h"
#include "tensor/tensor.h"
#include "tensor/torch_host.h"

namespace framejit::tensor {

namespace {

std::atomic<bool> among_processes = false;  // when it was looked for last

}  // namespace

void LookForProcesses() {
  static PyObject* const names[] = {PyUnicode_InternFromString("torch.distributed.distributed_c10d"),
                                    PyUnicode_InternFromString("_world"), PyUnicode_InternFromString("_default_pg")};
  PyObject* module = PyDict_GetItemWithError(PyImport_GetModuleDict(), names[0]);
  if (!module || !PyModule_Check(module)) return;
  SavedError saved;
  PyObject* world = PyDict_GetItemWithError(PyModule_GetDict(module), names[1]);
  Ref group(world ? PyObject_GetAttr(world, names[2]) : nullptr);
  Ref size(group && group.get() != Py_None ? PyObject_CallMethod(group.get(), "size", nullptr) : nullptr);
  among_processes = size && PyLong_Check(size.get()) && PyLong_AsLong(size.get()) > 1;
  PyErr_Clear();
}

bool NothingByTheClock() {
  if (among_processes) return true;
  const TorchApi* t = bound_torch;
  if (t && t->context && t->deterministic && t->deterministic(t->context)) return true;
  static const bool in_group = std::getenv("WORLD_SIZE") && std::atoi(std::getenv("WORLD_SIZE")) > 1;
  return in_group;
}

namespace {

constexpr int kSamples = 64;
constexpr uint32_t kBias = 16;  // of ProductShape::layout
// Multiplications of a product that is small: three tensors and a call of torch take 2 us, as long as 64x32x64 does.
constexpr int64_t kSmallProduct = 1 << 20;

constexpr int kRowMajor = 101, kNoTrans = 111, kTrans = 112, kPacked = 151, kMatrixB = 162;  // of CBLAS

// --- matrices
struct Matrix {  // [batch, rows, cols]
  void* data;
  int64_t sizes[3], strides[3];
};

// Leading dimensions merged into one, if memory allows.
bool Merge(const Buffer& b, int keep, int64_t* size, int64_t* stride) {
  *size = 1;
  *stride = 0;
  for (int i = b.rank - keep - 1; i >= 0; --i) {
    if (b.sizes[i] == 1) continue;
    if (*size == 1) {
      *size = b.sizes[i];
      *stride = b.strides[i];
    } else if (b.strides[i] == *size * *stride) {
      *size *= b.sizes[i];
    } else {
      return false;
    }
  }
  return true;
}
bool AsBatch(const Buffer& b, Matrix* m) {
  if (b.rank < 2 || !Merge(b, 2, &m->sizes[0], &m->strides[0])) return false;
  m->data = b.data;
  for (int i = 1; i <= 2; ++i) {
    m->sizes[i] = b.sizes[b.rank - 3 + i];
    m->strides[i] = b.strides[b.rank - 3 + i];
  }
  return true;
}
bool AsRows(const Buffer& b, Matrix* m) {  // [..., K] -> [1, M, K]
  if (b.rank < 1) return false;
  m->data = b.data;
  m->sizes[0] = 1;
  m->strides[0] = 0;
  m->sizes[2] = b.sizes[b.rank - 1];
  m->strides[2] = b.strides[b.rank - 1];
  return Merge(b, 1, &m->sizes[1], &m->strides[1]);
}
// Strides of dimensions of size 1 as a contiguous tensor has them: BLAS interfaces look at them.
void Tidy(Matrix* m) {
  if (m->sizes[2] == 1) m->strides[2] = m->strides[1] == 1 ? m->sizes[1] : 1;
  if (m->sizes[1] == 1) m->strides[1] = m->strides[2] == 1 ? m->sizes[2] : 1;
  if (m->sizes[0] == 1) m->strides[0] = m->sizes[1] * m->sizes[2];
}
uint32_t LayoutOf(const Matrix& m) {
  return m.strides[2] == 1 ? 0 : m.strides[1] == 1 ? 1 : 2;
}

struct Product {
  const TorchApi& t;
  Matrix a, b, out;  // [B, M, K], [B, K, N], [B, M, N]
  const Buffer* bias = nullptr;
  DType dtype;
  Device device;
  const float* packed = nullptr;  // b as MKL has packed it

  // Gives the first m rows.
  bool Run(Library library, int64_t m) const {
    return library == Library::kMkl ? RunMkl(m) : library == Library::kOneDnn ? RunOneDnn(m) : RunPacked(m);
  }

  TempTensor Tensor(Matrix x) const {
    int skip = a.sizes[0] == 1 ? 1 : 0;
    return TempTensor(t, x.data, 3 - skip, x.sizes + skip, x.strides + skip, dtype, device);
  }
  static Matrix Rows(Matrix x, int64_t m) {
    x.sizes[1] = m;
    return x;
  }

  // cuBLAS has slow kernels only for 16-bit results whose rows do not begin at multiples of 16 bytes (a vocabulary of
  // 50257). Every 8th row begins alike: eight products, each of every 8th row and of the columns from where these
  // rows are aligned, and the few columns at both ends by themselves. On an H200 (torch 2.11, called one by one, so
  // that ten launches take about 160 us) 4096x768x50257 takes 546 us so and 3329 as one product, 4096x768x4097 (26
  // GFLOP) 175 and 285, 4096x2048x1030 (17 GFLOP) 94 and 114, but 1024x1024x2049 (4.3 GFLOP) 163 and 72.
  bool RunUnaligned() const {
    constexpr int64_t kVector = 8;
    const int64_t ld = out.strides[1], columns = out.sizes[2], rows = out.sizes[1], k = a.sizes[2];
    const auto aligned = [](const Matrix& x, int64_t stride) {
      return stride % kVector == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
    };
    if (DTypeSize(dtype) != 2 || bias || a.sizes[0] != 1 || out.strides[2] != 1 || ld % kVector == 0) return false;
    if (rows < 32 * kVector || columns < 1024 || 2.0 * rows * columns * k < 1e10) return false;
    if (a.strides[2] != 1 || !aligned(a, a.strides[1]) || b.strides[1] != 1 || !aligned(b, b.strides[2])) return false;
    auto run = [&](int64_t row, int64_t step, int64_t column, int64_t count) {
      Product p{t, a, b, out, nullptr, dtype, device};
      auto advance = [](Matrix& x, int64_t by) { x.data = static_cast<uint16_t*>(x.data) + by; };
      advance(p.a, row * a.strides[1]);
      advance(p.b, column * b.strides[2]);
      advance(p.out, row * ld + column);
      p.a.sizes[1] = p.out.sizes[1] = (rows - row + step - 1) / step;
      p.a.strides[1] *= step;
      p.out.strides[1] *= step;
      p.b.sizes[2] = p.out.sizes[2] = count;
      return p.Call(p.out.sizes[1]);
    };
    if (!run(0, 1, 0, kVector) || !run(0, 1, columns - kVector, kVector)) return false;
    const int64_t phases = kVector / std::gcd(ld, kVector), at = reinterpret_cast<uintptr_t>(out.data) / 2;
    for (int64_t phase = 0; phase < phases; ++phase) {
      const int64_t first = (kVector - (at + phase * ld) % kVector) % kVector;
      if (!run(phase, phases, first, (columns - first) / kVector * kVector)) return false;
    }
    return true;
  }

  // The leading dimension of a matrix that BLAS takes, and whether BLAS, which goes by columns, is to transpose it; or
  // 0.
  static int64_t LeadingOf(const Matrix& x, bool* transposed) {
    for (const int unit : {2, 1}) {
      const int64_t leading = x.strides[3 - unit];
      *transposed = unit == 1;
      if (x.strides[unit] == 1 && leading >= std::max<int64_t>(1, x.sizes[unit]) && leading < kMaxPackedSize)
        return leading;
    }
    return 0;
  }
  template <typename T, typename Gemm>
  bool Multiply(Gemm gemm, int64_t m) const {
    bool ta, tb, tc;
    const int64_t lda = LeadingOf(Rows(a, m), &ta), ldb = LeadingOf(b, &tb), ldc = LeadingOf(Rows(out, m), &tc);
    if (!gemm || !lda || !ldb || !ldc || tc) return false;
    const int64_t n = out.sizes[2], k = a.sizes[2];
    T* const to = static_cast<T*>(out.data);
    if (bias) {
      const T* from = static_cast<const T*>(bias->data);
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) to[i * ldc + j] = from[j * bias->strides[0]];
    }
    const T one = 1, beta = bias ? 1 : 0;  // columns of the transposed result are rows of the result
    gemm(tb ? "T" : "N", ta ? "T" : "N", &n, &m, &k, &one, static_cast<const T*>(b.data), &ldb,
         static_cast<const T*>(a.data), &lda, &beta, to, &ldc);
    return true;
  }
  // A small product costs less than the tensors for a call of torch: this is what that call ends in. The numbers are of
  // 64 bits for a BLAS that reads 64 or, on machines whose lower half comes first, 32.
  bool RunSmall(int64_t m) const {
    if (std::endian::native != std::endian::little || a.sizes[0] != 1 ||
        static_cast<double>(m) * out.sizes[2] * a.sizes[2] > kSmallProduct)
      return false;
    return dtype == DType::kFloat32   ? Multiply<float>(t.sgemm, m)
           : dtype == DType::kFloat64 ? Multiply<double>(t.dgemm, m)
                                      : false;
  }

  // By the library that eager calls.
  bool RunMkl(int64_t m) const {
    return (device.kind == DeviceKind::kCuda && m == a.sizes[1] && RunUnaligned()) || Call(m);
  }
  bool Call(int64_t m) const {
    const bool cuda = device.kind == DeviceKind::kCuda;
    if (!cuda && RunSmall(m)) return true;
    TempTensor ta = Tensor(Rows(a, m)), tb = Tensor(b), tz = Tensor(Rows(out, m));
    if (!ta.ok() || !tb.ok() || !tz.ok()) return false;
    if (!bias)
      return !(a.sizes[0] == 1 ? (cuda ? t.cuda_mm_out : t.mm_out)
               : cuda          ? t.cuda_bmm_out
                               : t.bmm_out)(tz.handle(), ta.handle(), tb.handle());
    TempTensor tbias(t, *bias);
    return tbias.ok() &&
           !(cuda ? t.cuda_addmm_out : t.addmm_out)(tz.handle(), tbias.handle(), ta.handle(), tb.handle(), 1.0, 1.0);
  }

  // Puts the bias into every row. The product adds to it.
  bool FillWithBias(int64_t m, TempTensor& result) const {
    int64_t sizes[2] = {m, out.sizes[2]}, strides[2] = {0, bias->strides[0]};
    TempTensor rows(t, bias->data, 2, sizes, strides, dtype, device);
    return rows.ok() && !t.copy(result.handle(), rows.handle(), 0);
  }

  bool CanBePacked() const {
    const int64_t m = a.sizes[1], n = out.sizes[2], k = a.sizes[2];
    return t.sgemm_pack_get_size && t.sgemm_pack && t.sgemm_compute && dtype == DType::kFloat32 &&
           device.kind == DeviceKind::kCpu && a.sizes[0] == 1 && m >= kPackedRows && a.strides[2] == 1 &&
           a.strides[1] >= k && out.strides[2] == 1 && out.strides[1] >= n &&
           std::max({m, n, k, a.strides[1], out.strides[1]}) < kMaxPackedSize;
  }
  bool RunPacked(int64_t m) const {
    if (!packed || !CanBePacked()) return false;
    if (bias) {
      TempTensor tz = Tensor(Rows(out, m));
      if (!tz.ok() || !FillWithBias(m, tz)) return false;
    }
    const int n = static_cast<int>(out.sizes[2]), k = static_cast<int>(a.sizes[2]);
    t.sgemm_compute(kRowMajor, kNoTrans, kPacked, static_cast<int>(m), n, k, static_cast<const float*>(a.data),
                    static_cast<int>(a.strides[1]), packed, k, bias ? 1.f : 0.f, static_cast<float*>(out.data),
                    static_cast<int>(out.strides[1]));
    return true;
  }

  // oneDNN straight into the result, where torch lets it (it refuses CPUs without AVX-512); else through a result of
  // its own. One row added to a bias is never done in place: oneDNN's kernel for that writes past its buffers
  // (torch 2.13, AVX-512, 1x2048x1024).
  bool RunOneDnn(int64_t m) const {
    static std::atomic<bool> in_place{true};
    TempTensor ta = Tensor(Rows(a, m)), tz = Tensor(Rows(out, m));
    if (!ta.ok() || !tz.ok()) return false;
    if (in_place && t.mkldnn_matmul && !(bias && m == 1)) {
      TempTensor tb = Tensor(b);
      if (!tb.ok()) return false;
      if (bias && !FillWithBias(m, tz)) return false;
      try {
        t.mkldnn_matmul(ta.handle(), tb.handle(), tz.handle(), bias ? 1.f : 0.f, 1.f);
        return true;
      } catch (const std::exception&) {
        in_place = false;
      }
    }
    if (!t.linear_pointwise || a.sizes[0] != 1 || b.strides[1] != 1) return false;  // takes weights as [N, K] rows
    Matrix w = b;
    std::swap(w.sizes[1], w.sizes[2]);
    std::swap(w.strides[1], w.strides[2]);
    TempTensor tw = Tensor(w);
    std::optional<TempTensor> tbias;
    if (bias) tbias.emplace(t, *bias);
    if (!tw.ok() || (tbias && !tbias->ok())) return false;
    Handle bias_handle = tbias ? tbias->handle() : nullptr, result = nullptr;
    const char* algorithm = "";
    if (t.linear_pointwise(ta.handle(), tw.handle(), bias ? &bias_handle : nullptr, "none", nullptr, 0, &algorithm,
                           &result))
      return false;
    bool ok = !t.copy(tz.handle(), result, 0);
    t.delete_tensor(result);
    return ok;
  }

  // Sums the squared errors of some elements of the first m rows, in float32.
  double Error(int64_t m) const {
    auto at = [](const Matrix& x, int64_t b, int64_t i, int64_t j) {
      const int64_t offset = (x.sizes[0] == 1 ? 0 : b * x.strides[0]) + i * x.strides[1] + j * x.strides[2];
      return static_cast<double>(static_cast<const float*>(x.data)[offset]);
    };
    double sum = 0;
    uint64_t random = 1;
    for (int s = 0; s < kSamples; ++s) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      const int64_t batch = (random >> 33) % out.sizes[0], row = (random >> 40) % m,
                    column = (random >> 22) % out.sizes[2];
      double exact = bias ? static_cast<const float*>(bias->data)[column * bias->strides[0]] : 0;
      for (int64_t k = 0; k < a.sizes[2]; ++k) exact += at(a, batch, row, k) * at(b, batch, k, column);
      const double difference = at(out, batch, row, column) - exact;
      sum += difference * difference;
    }
    return sum;
  }

  // As many columns of the result as so many operations make, if they are enough for a library's blocks.
  int64_t ColumnsFor(double flops) const {
    const double columns = flops / (2.0 * a.sizes[1] * a.sizes[2]);
    return std::min(out.sizes[2], std::max<int64_t>(256, static_cast<int64_t>(columns)));
  }
  Probe ProbeOf(int64_t m) const {
    return {[this](Library l, int64_t rows) { return Run(l, rows); }, [this](int64_t rows) { return Error(rows); }, m,
            2.0 * a.sizes[0] * out.sizes[2] * a.sizes[2]};
  }

  // A packed product is one class with bias and without: it is chosen when the weight is packed.
  ProductShape Shape(ProductShape::Packed is_packed) const {
    uint32_t layout = LayoutOf(a) | LayoutOf(b) << 2;
    if (bias && is_packed == ProductShape::Packed::kNo) layout |= kBias;
    return {a.sizes[0], a.sizes[1], out.sizes[2], a.sizes[2], layout, is_packed};
  }

  bool RunBest() const {
    int64_t m = a.sizes[1];
    Library library = Library::kMkl;
    if (device.kind == DeviceKind::kCpu && dtype == DType::kFloat32 && t.copy && !NothingByTheClock()) {
      const bool can = packed && CanBePacked();
      Product part = *this;
      Buffer part_bias = bias ? *bias : Buffer();
      if (!can && a.sizes[0] == 1) {
        part.out.sizes[2] = part.b.sizes[2] = ColumnsFor(kProbeFlops);
        part_bias.sizes = &part.out.sizes[2];
        if (bias) part.bias = &part_bias;
      }
      const double row_flops = 2.0 * a.sizes[0] * part.out.sizes[2] * a.sizes[2];
      const int64_t rows = std::min<int64_t>(m, std::max<int64_t>(1, static_cast<int64_t>(kProbeFlops / row_flops)));
      library = Choose(Shape(can ? ProductShape::Packed::kIs : ProductShape::Packed::kNo), part.ProbeOf(rows));
    }
    return Run(library, m) || (library != Library::kMkl && RunMkl(m));
  }
};

bool Usable(const TorchApi& t, DType d, Device device) {
  if (device.kind == DeviceKind::kCuda)
    return t.cuda_mm_out && t.cuda_bmm_out && t.cuda_addmm_out && IsFloat(d) && DTypeSize(d) > 1;
  return t.mm_out && t.bmm_out && t.addmm_out && (IsFloat(d) || IsInteger(d)) && DTypeSize(d) > 0;
}
bool Empty(const Matrix& m) {
  return m.sizes[0] * m.sizes[1] * m.sizes[2] == 0;
}

}  // namespace

// A kernel that is called without the framework's dispatcher may answer with a view of what it has allocated, and has
// counted what it wrote there. The program sees a tensor that is neither a view nor written.
Impl TakeFresh(const TorchApi& t, Handle result) {
  Impl impl = *static_cast<Impl*>(result);
  const TorchDims d = DimsOf(t, impl);
  Handle fresh = nullptr;
  if (!t.reinterpret || t.reinterpret(result, d.rank, d.sizes, d.strides, 0, &fresh)) return TakeHandle(t, result);
  t.delete_tensor(result);
  return TakeHandle(t, fresh);
}

// Hands out a result that the library has allocated, or moves it into the place where the plan wants it.
bool Deliver(const TorchApi& t, Handle result, Buffer& out) {
  if (!out.data) {
    Impl impl = TakeFresh(t, result);
    TorchDims d = DimsOf(t, impl);
    out.handle = impl;
    out.data = Field<char*>(Field<void*>(impl, t.at.storage), t.at.storage_data) +
               Field<int64_t>(impl, t.at.offset) * DTypeSize(out.dtype);
    out.rank = static_cast<int32_t>(d.rank);
    out.sizes = d.sizes;  // live as long as the tensor
    out.strides = d.strides;
    return true;
  }
  TempTensor to(t, out.data, out.rank, out.sizes, out.strides, out.dtype, out.device);  // whose version is its own
  bool ok = to.ok() && t.copy && !t.copy(to.handle(), result, 0);
  t.delete_tensor(result);
  return ok;
}

namespace {

// In place, by torch's own kernel.
bool ApplyTo(const TorchApi& t, const std::string& function, const Buffer& b) {
  HoldGil gil;
  SavedError saved;
  TempTensor temp(t, b);
  Handle shared = nullptr;
  if (!temp.ok() || t.new_tensor_handle(temp.handle(), &shared)) return false;
  Ref tensor(WrapTorch(t, TakeHandle(t, shared)));
  Ref f(ResolveCallee(function == "relu" ? "torch.relu_" : "torch._C._nn.gelu_")), args(PyTuple_Pack(1, tensor.get()));
  Ref kwargs(function == "relu" ? PyDict_New() : Py_BuildValue("{s:s}", "approximate", "tanh"));
  ModeSwitch mode;
  mode.Set({false, false});
  Ref r(f && args && kwargs ? PyObject_Call(f.get(), args.get(), kwargs.get()) : nullptr);
  PyErr_Clear();
  return static_cast<bool>(r);
}

// What the shims do not take as it lies (rows or batches that are no single dimension, other types) by the function
// that eager calls, which copies as it needs.
bool CallFunction(const TorchApi& t, const char* callee, const std::vector<const Buffer*>& operands, Buffer& out,
                  PyObject* kwargs = nullptr) {
  SavedError saved;
  Ref args(PyTuple_New(static_cast<Py_ssize_t>(operands.size())));
  Py_ssize_t count = 0;
  for (const Buffer* b : operands) {
    TempTensor temp(t, *b);
    Handle shared = nullptr;
    if (!args || !temp.ok() || t.new_tensor_handle(temp.handle(), &shared)) return false;
    PyTuple_SET_ITEM(args.get(), count++, WrapTorch(t, TakeHandle(t, shared)));
  }
  Ref function(ResolveCallee(callee)), result;
  {
    ModeSwitch mode;  // not while it is delivered: what the program gets may be of its inference mode
    mode.Set({false, false});
    if (function) result = Ref(PyObject_Call(function.get(), args.get(), kwargs));
  }
  Handle shared = nullptr;
  const bool ok = result && !t.new_tensor_handle(reinterpret_cast<char*>(result.get()) + sizeof(PyObject), &shared) &&
                  Deliver(t, shared, out);
  PyErr_Clear();
  return ok;
}

// Small products of the CPU are for our own loop (fallback_gemm.h), which has them in these types.
bool CallByName(const TorchApi& t, const char* callee, const std::vector<const Buffer*>& operands, Buffer& out) {
  const Buffer& x = *operands.front();
  double flops = x.rank > 0 ? 2.0 * x.sizes[x.rank - 1] : 0;
  for (int i = 0; i < out.rank; ++i) flops *= out.sizes[i];
  const bool own =
      out.device.kind == DeviceKind::kCpu && (out.dtype == DType::kFloat32 || out.dtype == DType::kFloat64);
  if ((own && flops < kCopyFlops) || (!out.data && !t.at.all())) return false;
  HoldGil gil;
  return CallFunction(t, callee, operands, out);
}

bool DirectMatMul(const TorchApi& t, const Buffer& a, const Buffer& b, Buffer& out) {
  Product p{t, {}, {}, {}, nullptr, out.dtype, out.device};
  if (!Usable(t, out.dtype, out.device) || a.dtype != out.dtype || b.dtype != out.dtype) return false;
  if (!AsBatch(a, &p.a) || !AsBatch(b, &p.b) || !AsBatch(out, &p.out)) return false;
  if (Empty(p.out) || p.a.sizes[2] == 0) return false;
  if (p.b.sizes[0] > 1 && p.b.strides[0] == 0 && p.a.strides[0] == p.a.sizes[1] * p.a.strides[1]) {
    // One matrix for all batches: the batches are rows of one product.
    p.a.sizes[1] *= p.a.sizes[0];
    p.out.sizes[1] *= p.out.sizes[0];
    p.a.sizes[0] = p.b.sizes[0] = p.out.sizes[0] = 1;
  }
  for (Matrix* m : {&p.a, &p.b, &p.out}) Tidy(m);
  return p.RunBest();
}

}  // namespace

// Says where a weight [N, K] lies so that MKL takes it, and packs its first n rows.
bool PackRows(const TorchApi& t, const Buffer& w, int64_t m, int64_t n, Impl* packed) {
  const int64_t k = w.sizes[1], ld = w.strides[1] == 1 ? w.strides[0] : w.strides[1];
  const bool rows = w.strides[1] == 1 && ld >= k, columns = w.strides[0] == 1 && ld >= w.sizes[0];
  if ((!rows && !columns) || std::max({m, n, k, ld}) >= kMaxPackedSize) return false;
  const int im = static_cast<int>(m), in = static_cast<int>(n), ik = static_cast<int>(k);
  const int64_t size = static_cast<int64_t>(t.sgemm_pack_get_size(kMatrixB, im, in, ik) / sizeof(float) + 1), one = 1;
  TensorValue v = t.empty_strided_cpu({&size, 1}, {&one, 1}, t.dtypes[static_cast<int>(DType::kFloat32)].number, false);
  auto* data = static_cast<float*>(DataOf(t, v.impl, sizeof(float)));
  // MKL asks for up to five times what it uses: pages behind that are never touched.
  constexpr uintptr_t kHuge = 2 << 20;
  const uintptr_t from = (reinterpret_cast<uintptr_t>(data) + kHuge - 1) / kHuge * kHuge;
  const uintptr_t to = (reinterpret_cast<uintptr_t>(data) + n * k * sizeof(float)) / kHuge * kHuge;
  if (to > from) madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
  t.sgemm_pack(kRowMajor, kMatrixB, rows ? kTrans : kNoTrans, im, in, ik, 1.f, static_cast<const float*>(w.data),
               static_cast<int>(ld), data);
  *packed = v.impl;
  return true;
}

// In a model every weight has left the caches when it is read again.
void Flush(const void* data, int64_t bytes) {
#ifdef __x86_64__
  for (int64_t i = 0; i < bytes; i += 64) _mm_clflush(static_cast<const char*>(data) + i);
#endif
}

// On numbers of our own, for as many columns of the result as the time allows.
bool WorthPacking(const TorchApi& t, const Buffer& w, int64_t hint) {
  const int64_t n = w.sizes[0], k = w.sizes[1];
  Product p{t, {}, {}, {}, nullptr, DType::kFloat32, w.device};
  p.a = {nullptr, {1, hint, k}, {0, k, 1}};
  p.b = {w.data, {1, k, n}, {0, w.strides[1], w.strides[0]}};
  p.out = {nullptr, {1, hint, n}, {0, n, 1}};
  if (!p.CanBePacked()) return false;
  const int64_t columns = p.ColumnsFor(3 * kProbeFlops);
  const int64_t m = std::clamp<int64_t>(static_cast<int64_t>(3 * kProbeFlops / (2.0 * columns * k)), kPackedRows, hint);
  const ProductShape shape = p.Shape(ProductShape::Packed::kCouldBe);
  std::vector<float> numbers, result;
  Impl packed = nullptr;
  p.a.sizes[1] = p.out.sizes[1] = m;
  p.b.sizes[2] = p.out.sizes[2] = p.out.strides[1] = columns;
  Probe probe = p.ProbeOf(m);
  probe.run = [&](Library l, int64_t rows) {
    if (numbers.empty()) {
      numbers.resize(m * k);
      result.resize(m * columns);
      uint32_t random = 1;
      for (float& x : numbers) {
        random = random * 1664525u + 1013904223u;
        x = static_cast<float>(static_cast<int32_t>(random)) * 0x1p-31f;
      }
      p.a.data = numbers.data(), p.out.data = result.data();
      if (PackRows(t, w, m, columns, &packed)) p.packed = static_cast<float*>(DataOf(t, packed, sizeof(float)));
    }
    return p.Run(l, rows);
  };
  probe.cool = [&] {
    const bool rows = w.strides[1] == 1;
    for (int64_t i = 0; i < (rows ? columns : k); ++i)
      Flush(static_cast<const float*>(w.data) + i * w.strides[rows ? 0 : 1], (rows ? k : columns) * sizeof(float));
    if (p.packed) Flush(p.packed, columns * k * sizeof(float));
  };
  const bool worth = Choose(shape, probe) == Library::kPacked;
  if (packed) ReleaseImpl(t, packed);
  return worth;
}

void TorchPackLinear(const TorchApi& t, const Buffer& w, int64_t rows, Buffer& out) {
  Impl packed = nullptr;
  if (!w.data || !t.at.all() || !t.empty_strided_cpu || !t.copy || NothingByTheClock() || !WorthPacking(t, w, rows) ||
      !PackRows(t, w, rows, w.sizes[0], &packed))
    return;
  out.handle = packed;
}

namespace {

bool DirectLinear(const TorchApi& t, const Buffer& x, const Buffer& w, const Buffer* bias, const Buffer* packed,
                  Buffer& out) {
  Product p{t, {}, {}, {}, bias, out.dtype, out.device};
  if (!Usable(t, out.dtype, out.device) || x.dtype != out.dtype || w.dtype != out.dtype) return false;
  if (w.rank != 2 || !AsRows(x, &p.a) || !AsBatch(w, &p.b) || !AsRows(out, &p.out)) return false;
  std::swap(p.b.sizes[1], p.b.sizes[2]);
  std::swap(p.b.strides[1], p.b.strides[2]);
  if (Empty(p.out) || p.a.sizes[2] == 0) return false;
  if (packed) p.packed = static_cast<const float*>(DataOf(t, packed->handle, sizeof(float)));
  for (Matrix* m : {&p.a, &p.b, &p.out}) Tidy(m);
  return p.RunBest();
}

}  // namespace

bool TorchMatMul(const TorchApi& t, const Buffer& a, const Buffer& b, Buffer& out) {
  return DirectMatMul(t, a, b, out) || CallByName(t, "torch.matmul", {&a, &b}, out);
}

bool TorchLinear(const TorchApi& t, const Buffer& x, const Buffer& w, const Buffer* bias, const Buffer* packed,
                 Buffer& out) {
  if (out.data && DirectLinear(t, x, w, bias, packed, out)) return true;
  constexpr const char* kLinear = "torch.nn.functional.linear";
  return bias ? CallByName(t, kLinear, {&x, &w, bias}, out) : CallByName(t, kLinear, {&x, &w}, out);
}

bool TorchLinearThen(const TorchApi& t, const std::string& function, const Buffer& x, const Buffer& w,
                     const Buffer& bias, Buffer& out) {
  Product p{t, {}, {}, {}, &bias, out.dtype, out.device};
  const bool fits = out.device.kind == DeviceKind::kCuda && t.cuda_addmm_activation && t.reinterpret && t.at.all() &&
                    x.dtype == out.dtype && w.dtype == out.dtype && bias.dtype == out.dtype && w.rank == 2 &&
                    AsRows(x, &p.a) && AsBatch(w, &p.b) && AsRows(out, &p.out) && !Empty(p.out) && p.a.sizes[2] > 0;
  if (fits) {
    std::swap(p.b.sizes[1], p.b.sizes[2]);
    std::swap(p.b.strides[1], p.b.strides[2]);
    for (Matrix* m : {&p.a, &p.b}) Tidy(m);
    TempTensor a = p.Tensor(p.a), b = p.Tensor(p.b), c(t, bias);
    Handle result = nullptr;
    if (a.ok() && b.ok() && c.ok() &&
        !t.cuda_addmm_activation(c.handle(), a.handle(), b.handle(), 1.0, 1.0, function == "gelu", &result)) {
      if (out.rank == 2) return Deliver(t, result, out);
      Handle shaped = nullptr;
      const bool ok = !t.reinterpret(result, out.rank, out.sizes, out.strides, 0, &shaped);
      t.delete_tensor(result);
      return ok && Deliver(t, shaped, out);
    }
  }
  return TorchLinear(t, x, w, &bias, nullptr, out) && ApplyTo(t, function, out);
}

bool TorchConv(const TorchApi& t, const Buffer& x, const Buffer& w, const Buffer* bias, const Attrs& attrs,
               Buffer& out) {
  if (!out.data && !t.at.all()) return false;
  auto convolution = out.device.kind == DeviceKind::kCuda ? t.cuda_convolution : t.convolution;
  if (!convolution || !IsFloat(out.dtype)) return false;
  int n = x.rank - 2;
  if (n < 1 || static_cast<int>(attrs.axes.size()) != 4 * n + 1) return false;
  const int64_t *stride = attrs.axes.data(), *padding = stride + n, *dilation = padding + n, *extra = dilation + n;
  TempTensor tx(t, x);
  std::optional<TempTensor> tw, tb;
  if (bias) tb.emplace(t, *bias);
  if (!w.data) {  // packed: nobody else can read it
    Handle weight = const_cast<void**>(&w.handle), bias_handle = tb ? tb->handle() : nullptr, result = nullptr;
    const char* algorithm = "";
    if (!tx.ok() || (tb && !tb->ok()) ||
        t.packed_convolution(tx.handle(), weight, bias ? &bias_handle : nullptr, padding, n, stride, n, dilation, n,
                             attrs.axes[4 * n], "none", nullptr, 0, &algorithm, &result) ||
        !Deliver(t, result, out))
      throw std::runtime_error("a convolution with a packed weight failed");
    return true;
  }
  tw.emplace(t, w);
  if (!tx.ok() || !tw->ok() || (tb && !tb->ok())) return false;
  Handle bias_handle = tb ? tb->handle() : nullptr, result = nullptr;
  if (convolution(tx.handle(), tw->handle(), bias ? &bias_handle : nullptr, stride, n, padding, n, dilation, n,
                  attrs.flag, extra, n, attrs.axes[4 * n], &result))
    return false;
  return Deliver(t, result, out);
}

bool TorchAttention(const TorchApi& t, const Buffer& q, const Buffer& k, const Buffer& v, const Buffer* mask,
                    bool causal, double scale, Buffer& out) {
  if (!out.data && !t.at.all()) return false;
  if (out.device.kind == DeviceKind::kCuda) return CudaAttention(t, q, k, v, mask, causal, scale, out);
  if (!t.flash_attention || out.device.kind != DeviceKind::kCpu || q.rank != 4) return false;
  if (!IsFloat(q.dtype) || DTypeSize(q.dtype) < 2 || k.dtype != q.dtype || v.dtype != q.dtype) return false;
  if (q.sizes[3] != v.sizes[3] || q.sizes[1] != k.sizes[1] || (mask && causal)) return false;
  bool whole = true;
  for (const Buffer* b : {&q, &k, &v}) {
    for (int i = 0; i < 4; ++i) {
      if (b->sizes[i] == 0) return false;
    }
    whole &= b->strides[3] == 1 || b->sizes[3] == 1;
  }
  if (!whole) {  // the kernel wants its last dimension in one piece
    HoldGil gil;
    Ref kwargs(Py_BuildValue("{sOsd}", "is_causal", causal ? Py_True : Py_False, "scale", scale));
    std::vector<const Buffer*> operands = {&q, &k, &v};
    if (mask) operands.push_back(mask);
    return kwargs && CallFunction(t, "torch.nn.functional.scaled_dot_product_attention", operands, out, kwargs.get());
  }
  if (mask && (mask->dtype != q.dtype || (mask->rank != 2 && mask->rank != 4))) return false;
  TempTensor tq(t, q), tk(t, k), tv(t, v);
  std::optional<TempTensor> tm;
  if (mask) tm.emplace(t, *mask);
  if (!tq.ok() || !tk.ok() || !tv.ok() || (tm && !tm->ok())) return false;
  Handle mask_handle = tm ? tm->handle() : nullptr, result = nullptr, sums = nullptr;
  if (t.flash_attention(tq.handle(), tk.handle(), tv.handle(), 0.0, causal, mask ? &mask_handle : nullptr, &scale,
                        &result, &sums))
    return false;
  t.delete_tensor(sums);
  return Deliver(t, result, out);
}

}  // namespace framejit::tensor
