// What a loop's code has of NumPy's functions: products and functions of one number are NumPy's own inner loops, sums
// over axes go in its order.
#include "capture/scalar/products.h"

#include <opcode.h>
#include <xmmintrin.h>

#include <cmath>
#include <complex>
#include <cstring>
#include <map>

#include "capture/scalar/known_products.h"
#include "capture/scalar/rows_ahead.h"
#include "capture/scalar/translator.h"
#include "tensor/numpy_api.h"
#include "tensor/openblas.h"
#include "tensor/ufunc_loops.h"

namespace framejit::capture::scalar {

using tensor::FindLoop;
using tensor::LoopOf;
using tensor::UfuncLoop;

int64_t OfAll(UfuncLoop loop, void* data, char* from, int64_t from_next, char* to, int64_t to_next, int64_t n) {
  constexpr unsigned kTold = _MM_EXCEPT_INVALID | _MM_EXCEPT_DIV_ZERO | _MM_EXCEPT_OVERFLOW;
  char* args[] = {from, to};
  const intptr_t count = n, strides[] = {from_next, to_next};
  return tensor::RunsSilently(loop, data, args, &count, strides, kTold);
}

namespace {

UfuncLoop ProductLoop(DType t) {
  return FindLoop("matmul", 2, t).run;
}

// A ufunc of one number, as NumPy computes it. False: it may tell of something.
template <typename T>
int64_t OfNumber(UfuncLoop loop, void* data, T x, T* out) {
  char* args[] = {reinterpret_cast<char*>(&x), reinterpret_cast<char*>(out)};
  const intptr_t count = 1, strides[] = {sizeof(T), sizeof(T)};
  loop(args, &count, strides, data);
  return std::isfinite(*out);
}

// All elements of a vector become one, by the ufunc's own loop, as its `reduce` does. `first`: it begins with the first
// element, not with 0.
template <typename T>
int64_t Reduction(UfuncLoop loop, void* data, char* from, int64_t next, int64_t n, int64_t first, T* out) {
  if (n < 1) return 0;
  *out = first ? *reinterpret_cast<T*>(from) : T{0};
  char* result = reinterpret_cast<char*>(out);
  char* args[] = {result, from + (first ? next : 0), result};
  const intptr_t count = n - first, strides[] = {0, next, 0};
  if (count > 0) loop(args, &count, strides, data);
  if constexpr (std::is_integral_v<T>) return 1;
  return std::isfinite(*out);
}

// Says how np.add.reduce begins: 1 with the first element, 0 with zero, -1 in another way.
int SumsBeginWithTheFirst() {
  static const int known = [] {
    const LoopOf loop = FindLoop("add", 2, DType::kFloat64);
    const tensor::NumpyApi* api = tensor::Numpy();
    const int64_t size = 300;
    const Ref array(api ? tensor::NewArray(*api, DType::kFloat64, 1, &size, nullptr) : nullptr);
    if (!loop.run || !array) return PyErr_Clear(), -1;
    auto* x = reinterpret_cast<double*>(tensor::AsArray(array.get())->data);
    for (int i = 0; i < size; ++i) x[i] = std::sin(i * i) / (i % 7 + 1);
    const Ref add(tensor::Attr(api->module, "add"));  // its method has no Python code, which might be captured
    const Ref sum(add ? PyObject_CallMethod(add.get(), "reduce", "O", array.get()) : nullptr);
    const double wanted = sum ? PyFloat_AsDouble(sum.get()) : 0;
    if (PyErr_Occurred()) return PyErr_Clear(), -1;
    for (int first : {0, 1}) {
      double out;
      Reduction<double>(loop.run, loop.data, reinterpret_cast<char*>(x), sizeof(double), size, first, &out);
      if (out == wanted) return first;
    }
    return -1;
  }();
  return known;
}

constexpr const char* kOfNumbers[] = {"exp",    "exp2",   "expm1", "log",   "log2", "log10", "log1p",
                                      "sin",    "cos",    "tan",   "tanh",  "sinh", "cosh",  "arcsin",
                                      "arccos", "arctan", "cbrt",  "floor", "ceil"};

// This is NumPy's own product, to the last bit. False: it may tell of something.
int64_t Multiply(UfuncLoop loop, char* a, int64_t a_row, int64_t a_next, char* b, int64_t b_next, int64_t b_column,
                 char* out, int64_t rows, int64_t n, int64_t columns, int64_t size) {
  constexpr unsigned kTold = _MM_EXCEPT_INVALID | _MM_EXCEPT_DIV_ZERO | _MM_EXCEPT_OVERFLOW;
  char* args[] = {a, b, out};
  const intptr_t sizes[] = {1, rows, n, columns};
  const intptr_t strides[] = {0, 0, 0, a_row, a_next, b_next, b_column, size * columns, size};
  return tensor::RunsSilently(loop, nullptr, args, sizes, strides, kTold);
}

// The BLAS's own product of vectors, which NumPy calls for those whose elements lie upwards; null where that is not to
// be seen. Integers of 32 bits, which some have, are the lower halves.
using BlasDot = double (*)(int64_t n, const char* a, int64_t a_next, const char* b, int64_t b_next);
BlasDot blas_dot = nullptr;

template <typename T>
int64_t Inner(UfuncLoop loop, char* a, int64_t a_next, char* b, int64_t b_next, T* out, int64_t n);

void FindBlasDot(UfuncLoop loop) {
  static bool looked = false;
  if (std::exchange(looked, true)) return;
  const std::vector<void*> found =
      tensor::OfBlas({"scipy_cblas_ddot64_", "cblas_ddot64_", "scipy_cblas_ddot", "cblas_ddot"}, "numpy");
  if (found.size() != 1) return;
  const auto dot = reinterpret_cast<BlasDot>(found[0]);
  constexpr int kItem = sizeof(double), kMost = 3000, kStep = 5;
  std::vector<double> x(kMost * kStep), y(kMost * kStep);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(i * i) / (i % 7 + 1), y[i] = std::cos(i * i) * (i % 5 + 1);
  char *a = reinterpret_cast<char*>(x.data()), *b = reinterpret_cast<char*>(y.data());
  for (int n = 1; n <= kMost; n += 1 + n / 40)
    for (const auto& [p, q] : {std::pair(1, 1), {1, kStep}, {kStep, 1}, {3, kStep}}) {
      double wanted;
      Inner<double>(loop, a, p * kItem, b, q * kItem, &wanted, n);
      if (wanted != 0.0 + dot(n, a, p, b, q)) return;
    }
  blas_dot = dot;
}

// Of vectors: the sum shows whether there is something to tell of.
template <typename T>
int64_t Inner(UfuncLoop loop, char* a, int64_t a_next, char* b, int64_t b_next, T* out, int64_t n) {
  if constexpr (std::is_same_v<T, double>) {
    constexpr int64_t kItem = sizeof(double), kMost = int64_t{1} << 31;
    const auto upwards = [](int64_t next) { return next > 0 && next % kItem == 0 && next < kMost; };
    if (blas_dot && n > 0 && n < kMost && upwards(a_next) && upwards(b_next)) {
      *out = 0.0 + blas_dot(n, a, a_next / kItem, b, b_next / kItem);
      return std::isfinite(*out);
    }
  }
  char* args[] = {a, b, reinterpret_cast<char*>(out)};
  const intptr_t sizes[] = {1, 1, n, 1};
  const intptr_t strides[] = {0, 0, 0, 0, a_next, b_next, 0, sizeof(T), sizeof(T)};
  loop(args, sizes, strides, nullptr);
  if constexpr (std::is_same_v<T, std::complex<double>>)
    return std::isfinite(out->real()) && std::isfinite(out->imag());
  else
    return std::is_integral_v<T> || std::isfinite(*out);
}

// np.dot copies vectors first whose elements do not lie one behind the other upwards. Of one element each it gives the
// product, which may be -0.0, and no sum.
template <typename T>
int64_t Dot(UfuncLoop loop, char* a, int64_t a_next, char* b, int64_t b_next, T* out, int64_t n) {
  if constexpr (std::is_floating_point_v<T>) {
    if (n == 1) return std::isfinite(*out = *reinterpret_cast<T*>(a) * *reinterpret_cast<T*>(b));
  }
  thread_local std::vector<T> copies[2];
  const auto plain = [&](std::vector<T>& copy, char*& from, int64_t& stride) {
    if (stride > 0 || n <= 1) return;
    copy.resize(n);
    for (int64_t i = 0; i < n; ++i) copy[i] = *reinterpret_cast<T*>(from + i * stride);
    from = reinterpret_cast<char*>(copy.data()), stride = sizeof(T);
  };
  plain(copies[0], a, a_next);
  plain(copies[1], b, b_next);
  return Inner(loop, a, a_next, b, b_next, out, n);
}

// The same of float64, which may be known already.
template <bool dot>
int64_t DotAhead(UfuncLoop loop, char* a, int64_t a_next, char* b, int64_t b_next, double* out, int64_t n,
                 KnownDots* known, char* a_end, char* b_end) {
  auto* ahead = static_cast<ProductsAhead*>(known);
  if (!(dot && n == 1) && ahead->dots.Find({a, a_next, a_end}, {b, b_next, b_end}, n, out)) return std::isfinite(*out);
  return (dot ? Dot<double> : Inner<double>)(loop, a, a_next, b, b_next, out, n);
}

// Are the sums of RowsAhead, of so many terms, to the last bit those of the BLAS?
bool AddsLikeBlas(UfuncLoop loop, int64_t n, int64_t columns, int64_t next, int lost, int shares) {
  constexpr int64_t kItem = sizeof(double), kLanes = RowsAhead::kFew;
  const int64_t width = columns + kLanes;
  std::vector<double> x(n * next + kLanes), y(n * width), out(kLanes * columns), wanted(columns);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(i * i) / (i % 7 + 1);
  for (size_t i = 0; i < y.size(); ++i) y[i] = static_cast<double>(i * i % 10007) / 3 - 1000;
  const auto* a = reinterpret_cast<char*>(x.data());
  auto* b = reinterpret_cast<char*>(y.data());
  RowsAhead::Several({a, b, next * kItem, width * kItem, n, columns}, kItem, lost, kLanes, shares, out.data());
  for (int r = 0; r < kLanes; ++r) {
    const int64_t left = columns - r * lost;
    Multiply(loop, reinterpret_cast<char*>(x.data() + r), 0, next * kItem, b + r * lost * kItem, width * kItem, kItem,
             reinterpret_cast<char*>(wanted.data()), 1, n, left, kItem);
    const auto row = out.begin() + (r + 1) * columns;
    if (!std::equal(row - left, row, wanted.begin())) return false;
  }
  return true;
}

// Likewise, of as many as a BLAS might share between its threads or take in blocks, and does with `shares`.
bool LargeRowsLikeBlas(UfuncLoop loop, int shares) {
  constexpr std::pair<int, int> kOfOne[] = {{2000, 46}, {3000, 117}, {600, 563}, {9, 9001}},
                                kOfMore[] = {{1031, 537}, {40, 13001}, {5003, 119}, {7999, 85}};
  return std::ranges::all_of(shares == 1 ? kOfOne : kOfMore,
                             [&](auto& s) { return AddsLikeBlas(loop, s.first, s.second, 1, 1, shares); });
}

// What RowsAhead wants to know.
int SharesOfRows(UfuncLoop loop, int64_t n, int64_t fewest, int64_t most) {
  static std::map<int, bool> known;  // by shares; the program may change the number of threads
  const int shares = tensor::SharesOfBlas(n * fewest, n * most);
  if (!shares) return 0;
  const auto [at, is_new] = known.emplace(shares, false);
  if (is_new) at->second = LargeRowsLikeBlas(loop, shares);
  return at->second ? shares : 0;
}

// Likewise of a vector and a matrix of float64.
int64_t RowAhead(UfuncLoop loop, char* a, int64_t a_next, char* b, int64_t b_next, int64_t b_column, char* out,
                 int64_t n, int64_t columns, KnownDots* known, char* a_end) {
  auto* ahead = static_cast<ProductsAhead*>(known);
  ahead->others = 1;
  const auto shares = [loop](int64_t terms, int64_t fewest, int64_t most) {
    return SharesOfRows(loop, terms, fewest, most);
  };
  if (b_column == sizeof(double) && a_next > 0 &&
      ahead->rows.Find({a, b, a_next, b_next, n, columns}, a_end, shares, reinterpret_cast<double*>(out)))
    return 1;
  return Multiply(loop, a, 0, a_next, b, b_next, b_column, out, 1, n, columns, sizeof(double));
}

int64_t WroteAt(KnownDots* known, const char* at, int64_t bytes) {
  static_cast<ProductsAhead*>(known)->Wrote(at, at + bytes);
  return 0;
}

// Likewise a vector whose last element lies so many bytes behind its first, and each `step` behind the one before.
int64_t WroteAlong(KnownDots* known, const char* at, int64_t bytes, int64_t along, int64_t step) {
  const char *low = along < 0 ? at + along : at, *high = (along < 0 ? at : at + along) + bytes;
  static_cast<ProductsAhead*>(known)->Wrote(low, high, bytes, std::abs(step));
  return 0;
}

// Likewise an array whose last element along each axis lies so many bytes behind its first.
int64_t WroteAll(KnownDots* known, const char* at, int64_t bytes, int64_t x, int64_t y, int64_t z) {
  const char *low = at, *high = at + bytes;
  for (int64_t along : {x, y, z}) (along < 0 ? low : high) += along;
  static_cast<ProductsAhead*>(known)->Wrote(low, high);
  return 0;
}

// Is NumPy's product of vectors that are not dense DotsAhead's, to the last bit?
bool AddsLikeDots(UfuncLoop loop) {
  constexpr int kMost = 70, kStep = 5, kItem = sizeof(double);
  std::vector<double> x(kMost * kStep), y(kMost * kStep + DotsAhead::kLanes);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(i * i) / (i % 7 + 1);
  for (size_t i = 0; i < y.size(); ++i) y[i] = std::cos(i * i) * (i % 5 + 1);
  char *a = reinterpret_cast<char*>(x.data()), *b = reinterpret_cast<char*>(y.data());
  for (int n = 1; n <= kMost; ++n)
    for (const auto& [p, q] : {std::pair(1, kStep), {kStep, 1}, {3, kStep}})
      for (int wanted_lanes = 2; wanted_lanes <= DotsAhead::kLanes; wanted_lanes += 5) {
        const int lanes = DotsAhead::LanesUpTo(DotsAhead::kLanes, wanted_lanes);
        double out[DotsAhead::kLanes], wanted;
        DotsAhead::Several(a, p * kItem, b, q * kItem, n, lanes, out);
        for (int lane = 0; lane < lanes; ++lane) {
          Inner<double>(loop, a, p * kItem, b + lane * kItem, q * kItem, &wanted, n);
          if (wanted != out[lane]) return false;
          Inner<double>(loop, b + lane * kItem, q * kItem, a, p * kItem, &wanted, n);
          if (wanted != out[lane]) return false;
        }
      }
  return true;
}

// Likewise in one of the ways that DotsAhead has, which it goes from now on.
bool SumsLikeBlas(UfuncLoop loop) {
  static const bool known = DotsAhead::Runs() && [loop] {
    for (bool fuse : {true, false}) {
      DotsAhead::FuseLast(fuse);
      if (AddsLikeDots(loop)) return true;
    }
    return false;
  }();
  return known;
}

// Likewise of products of vectors and matrices, and RowsAhead.
bool RowsLikeBlas(UfuncLoop loop) {
  static const bool known = [loop] {
    if (!RowsAhead::Runs()) return false;
    for (int n = 1; n <= 40; n += 1 + n / 12)
      for (int columns = RowsAhead::kFewestColumns + RowsAhead::kFew - 1; columns < 48; columns += 3)
        for (const auto& [next, lost] : {std::pair(1, 0), {1, 1}, {3, 0}, {3, 1}})
          if (!AddsLikeBlas(loop, n, columns, next, lost, 1)) return false;
    return SharesOfRows(loop, 1, 1, 1) == 1;
  }();
  return known;
}

const void* InnerProduct(DType t, bool dot) {
  const auto pick = [&]<typename T>(T) {
    return dot ? reinterpret_cast<const void*>(Dot<T>) : reinterpret_cast<const void*>(Inner<T>);
  };
  if (t == DType::kComplex128) return pick(std::complex<double>());
  return t == DType::kFloat64 ? pick(double()) : t == DType::kFloat32 ? pick(float()) : pick(int64_t());
}

}  // namespace

// --- products
//
// Gives a part with elements of `t` as it lies. Anything else is computed into a buffer.
Vector Translator::VectorOf(int node, DType t) {
  const Node& n = nodes_[node];
  if (n.kind == Node::kPart && n.dtype == t && !n.ones) return {AddressOf(n.part), n.part.strides[0]};
  return {Fill(node, n.sizes, t, nullptr), Int(DTypeSize(t))};
}

// Likewise of two axes.
Matrix Translator::MatrixOf(int node, DType t) {
  const Node& n = nodes_[node];
  if (n.kind == Node::kPart && n.dtype == t && !n.ones)
    return {AddressOf(n.part), n.part.strides[0], n.part.strides[1]};
  if (n.ones) throw Unsupported{"a product"};
  WantOrdered(node);
  const int memory = Fill(node, n.sizes, t, nullptr), size = Int(DTypeSize(t));
  return {memory, Op(ScalarOp::kMul, ScalarType::kInt, n.sizes[1], size), size};
}

// May this product be one of several that are known ahead? Both operands lie in arrays of the frame, one of them, with
// `apart`, not densely.
bool Translator::MayBeAhead(int a, int b, DType t, bool apart) const {
  const auto lies = [&](int node) {
    const Node& n = nodes_[node];
    return n.kind == Node::kPart && n.part.object >= 0 && n.part.base < 0 && n.dtype == t && !n.ones;
  };
  return t == DType::kFloat64 && lies(a) && lies(b) && !(apart && nodes_[a].part.unit && nodes_[b].part.unit);
}

// What lies between the array's first element and this address is its memory. With negative strides there is more.
int Translator::EndOf(int object) {
  int bytes = Int(DTypeSize(out_.objects[object].dtype));
  for (int axis = 0; axis < UseArray(object).rank; ++axis) {
    const int last = Op(ScalarOp::kSub, ScalarType::kInt, Size(object, axis), Int(1));
    bytes =
        Op(ScalarOp::kAdd, ScalarType::kInt, bytes, Op(ScalarOp::kMul, ScalarType::kInt, last, Stride(object, axis)));
  }
  return Op(ScalarOp::kAt, ScalarType::kPtr, Data(object), bytes);
}

void Translator::TellOfWrite(const Part& to) {
  constexpr size_t kMost = 6;  // arguments of WroteAll
  std::vector<int> args{Input(kAheadCell, ScalarType::kPtr), AddressOf(to), Int(DTypeSize(to.dtype))};
  for (int axis = 0; axis < to.rank(); ++axis)
    args.push_back(Op(ScalarOp::kMul, ScalarType::kInt, Op(ScalarOp::kSub, ScalarType::kInt, to.sizes[axis], Int(1)),
                      to.strides[axis]));
  if (args.size() > kMost) throw Unsupported{"an array of many axes"};
  const void* function = reinterpret_cast<const void*>(WroteAt);
  if (to.rank() == 1) {
    args.push_back(to.strides[0]);
    function = reinterpret_cast<const void*>(WroteAlong);
  } else if (to.rank()) {
    while (args.size() < kMost) args.push_back(Int(0));
    function = reinterpret_cast<const void*>(WroteAll);
  }
  if (to.rank())
    Call(function, ScalarType::kBool, args);
  else
    CallUnless(LiesApart(*this, args[0], args[1], args[2]), Flag(true), function, ScalarType::kBool, args);
}

// An array of these sizes, one element behind the other.
Val Translator::Packed(int memory, DType t, const std::vector<int>& sizes) {
  Node made{.kind = Node::kPart, .dtype = t, .sizes = sizes};
  made.part.base = memory, made.part.dtype = t;
  made.part.sizes = sizes;
  made.part.strides.assign(sizes.size(), Int(DTypeSize(t)));
  for (int k = static_cast<int>(sizes.size()) - 2; k >= 0; --k)
    made.part.strides[k] = Op(ScalarOp::kMul, ScalarType::kInt, made.part.strides[k + 1], sizes[k + 1]);
  made.part.unit = true;
  return Deferred(std::move(made));
}

Val Translator::Product(const Val& x, const Val& y, bool dot) {
  if (!IsArray(x) || !IsArray(y)) throw Unsupported{"a product"};
  const int a = NodeOf(x), b = NodeOf(y);
  const Node &m = nodes_[a], &n = nodes_[b];
  const size_t ranks[] = {m.sizes.size(), n.sizes.size()};
  const DType t = m.dtype;
  UfuncLoop loop = t == n.dtype && (Float(t) || IsComplex(t) || t == DType::kInt64) ? ProductLoop(t) : nullptr;
  if (!loop || ranks[0] > 2 || ranks[1] > 2 || !ranks[0] || !ranks[1]) throw Unsupported{"a product"};
  if (ranks[0] == 2 && ranks[1] == 2 && (ReadsLarge(a) || ReadsLarge(b))) throw Unsupported{"large arrays"};
  out_.floats = true;
  const int inner = m.sizes.back();
  if (inner != n.sizes[0]) ExitIf(Compare(ScalarOp::kNe, inner, n.sizes[0]));
  const int one = Int(1), zero = Int(0);
  const auto operand = [&](int node, size_t rank, bool left) {
    if (rank == 2) return MatrixOf(node, t);
    const Vector v = VectorOf(node, t);
    return left ? Matrix{v.address, zero, v.stride} : Matrix{v.address, v.stride, zero};
  };
  const Matrix left = operand(a, ranks[0], true), right = operand(b, ranks[1], false);
  const int function = Pointer(reinterpret_cast<const void*>(loop));
  std::vector<int> sizes;
  if (ranks[0] == 2) sizes.push_back(m.sizes[0]);
  if (ranks[1] == 2) sizes.push_back(n.sizes[1]);
  if (sizes.empty()) {
    const int out = IsComplex(t) ? Buffer(one, t)
                                 : Emit({.op = ScalarOp::kAddress, .type = ScalarType::kPtr, .imm = scratch, .id = -2});
    std::vector<int> args{function, left.address, left.column, right.address, right.row, out, inner};
    const void* product = InnerProduct(t, dot);
    int value = -1, known = -1;
    if (t == DType::kFloat64) FindBlasDot(loop);
    if (MayBeAhead(a, b, t, true) && SumsLikeBlas(loop)) {
      (hopes_.ahead ? out_.ahead : out_.dots) = true;
      if (hopes_.ahead) {
        product = dot ? reinterpret_cast<const void*>(DotAhead<true>) : reinterpret_cast<const void*>(DotAhead<false>);
        known = Input(kAheadCell, ScalarType::kPtr);
        args.insert(args.end(), {known, EndOf(m.part.object), EndOf(n.part.object)});
      }
    }
    const int good = known < 0 ? Call(product, ScalarType::kBool, args) : AskKnown(*this, product, args, known, &value);
    ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, good));
    elements_.push_back(inner);
    if (IsComplex(t)) {
      const Element z = ElementAt(out, zero, t, kMadeArrays);
      return Complex(New(Is::kFloat, z.value), New(Is::kFloat, z.imag), true);
    }
    if (value < 0) value = Emit({.op = ScalarOp::kCell, .type = NewNumpy(t, -1).type(), .imm = scratch, .id = -2});
    return NewNumpy(t, value);
  }
  const int out = Buffer(Count(sizes), t);
  const bool may = ranks[0] == 1 && ranks[1] == 2 && MayBeAhead(a, b, t, false) && RowsLikeBlas(loop);
  if (may) (hopes_.ahead ? out_.ahead : out_.dots) = true;
  const int good =
      may && hopes_.ahead
          ? Call(reinterpret_cast<void*>(RowAhead), ScalarType::kBool,
                 {function, left.address, left.column, right.address, right.row, right.column, out, inner, n.sizes[1],
                  Input(kAheadCell, ScalarType::kPtr), EndOf(m.part.object)})
          : Call(reinterpret_cast<void*>(Multiply), ScalarType::kBool,
                 {function, left.address, left.row, left.column, right.address, right.row, right.column, out,
                  ranks[0] == 2 ? m.sizes[0] : one, inner, ranks[1] == 2 ? n.sizes[1] : one, Int(DTypeSize(t))});
  ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, good));
  sizes.push_back(inner);
  elements_.push_back(Count(sizes));
  sizes.pop_back();
  return Packed(out, t, sizes);
}

// NumPy lays out what it computes as its operands lie. Here they must lie in the order of their axes.
void Translator::WantOrdered(int node) {
  const Node& n = nodes_[node];
  for (int operand : {n.a, n.b})
    if (operand >= 0) WantOrdered(operand);
  if (n.kind != Node::kPart) return;
  int inner = Int(0);
  for (int axis = static_cast<int>(n.sizes.size()) - 1; axis >= 0; --axis) {
    if (n.ones >> axis & 1) continue;
    ExitIf(Compare(ScalarOp::kLt, n.part.strides[axis], inner));
    inner = n.part.strides[axis];
  }
}

// The sum, the largest or the smallest over axes before the last: NumPy adds one row after the other to a row of zeros.
std::optional<Val> Translator::OverAxes(const std::string& name, const Val& x, const Val& axes) {
  const bool sum = name == "numpy.sum", most = name == "numpy.max" || name == "numpy.amax";
  if (!sum && !most && name != "numpy.min" && name != "numpy.amin") return std::nullopt;
  if (!IsArray(x) || (sum && x.is != Is::kDeferred)) throw Unsupported{"a reduction"};
  const int node = NodeOf(x);
  const Node& n = nodes_[node];
  const int rank = static_cast<int>(n.sizes.size());
  uint32_t reduced = 0;
  for (const Val& axis : axes.is == Is::kTuple ? axes.items : std::vector<Val>{axes}) {
    if (axis.is != Is::kInt || !axis.constant || *axis.constant < -rank || *axis.constant >= rank)
      throw Unsupported{"a reduction over these axes"};
    const int64_t a = *axis.constant < 0 ? *axis.constant + rank : *axis.constant;
    if (a == rank - 1 || reduced >> a & 1) throw Unsupported{"a reduction over these axes"};
    reduced |= 1U << a;
  }
  if (!Float(n.dtype) || n.ones || !reduced || (sum && n.kind == Node::kPart)) throw Unsupported{"a reduction"};
  WantOrdered(node);
  std::vector<int> kept, over;
  for (int i = 0; i < rank; ++i) (reduced >> i & 1 ? over : kept).push_back(n.sizes[i]);
  const int row = kept.back();
  if (sum) ExitIf(Compare(ScalarOp::kLt, row, Int(2)));  // NumPy would join what is left, and add in pairs
  for (int size : over)
    if (!sum) ExitIf(Compare(ScalarOp::kLt, size, Int(1)));  // there is no largest of nothing
  const DType t = n.dtype;
  const int memory = Buffer(Count(kept), t), size = Int(DTypeSize(t));
  const auto place = [&](int at) { return Op(ScalarOp::kMul, ScalarType::kInt, at, size); };
  const double first = sum ? 0 : most ? -INFINITY : INFINITY;
  const int none = t == DType::kFloat64 ? Number(first) : Single(static_cast<float>(first));
  ForEach(Count(kept), true, [&](int i) { StoreAt(memory, place(i), none, t, kMadeArrays); });
  std::vector<int> loops(kept.begin(), kept.end() - 1);
  loops.insert(loops.end(), over.begin(), over.end());
  loops.push_back(row);
  bad_ = Variable(ScalarType::kBool);
  Emit({.op = ScalarOp::kSet, .a = Flag(false), .imm = bad_});
  ForAll(loops, [&](const std::vector<int>& i, int) {
    std::vector<int> at;
    size_t next_kept = 0, next_over = kept.size() - 1;
    for (int axis = 0; axis < rank - 1; ++axis) at.push_back(i[reduced >> axis & 1 ? next_over++ : next_kept++]);
    at.push_back(i.back());
    int to = 0;
    for (size_t k = 0; k + 1 < kept.size(); ++k) {
      const int before = k ? Op(ScalarOp::kMul, ScalarType::kInt, to, kept[k]) : -1;
      to = k ? Op(ScalarOp::kAdd, ScalarType::kInt, before, i[k]) : i[k];
    }
    to = kept.size() > 1 ? Op(ScalarOp::kAdd, ScalarType::kInt, Op(ScalarOp::kMul, ScalarType::kInt, to, row), i.back())
                         : i.back();
    const int old = Load(memory, place(to), t, kMadeArrays), v = Eval(node, at, true).value;
    const ScalarType type = NewNumpy(t, -1).type();
    if (sum)
      return StoreElement(memory, place(to), Finite({Op(ScalarOp::kAdd, type, old, v)}, t, false), t, kMadeArrays);
    // What is not a number stays, whichever of the two it is. Of zeros NumPy keeps the later one, as x86 does.
    const int stays = Op(ScalarOp::kOr, ScalarType::kBool, Compare(most ? ScalarOp::kGt : ScalarOp::kLt, old, v),
                         Compare(ScalarOp::kNe, old, old));
    StoreAt(memory, place(to), Op(ScalarOp::kSelect, type, stays, old, v), t, kMadeArrays);
  });
  ExitIf(Emit({.op = ScalarOp::kGet, .type = ScalarType::kBool, .imm = bad_, .id = -2}));
  return Packed(memory, t, kept);
}

// Calls a function of NumPy of one float.
std::optional<Val> Translator::CallOfNumber(const std::string& name, const Val& x) {
  const bool known = std::any_of(std::begin(kOfNumbers), std::end(kOfNumbers),
                                 [&](const char* f) { return name == std::string("numpy.") + f; });
  if (!known || !x.scalar() || x.integral()) return std::nullopt;
  const DType t = x.type() == ScalarType::kF32 ? DType::kFloat32 : DType::kFloat64;
  const LoopOf loop = FindLoop(name.c_str() + strlen("numpy."), 1, t);
  if (!loop.run) return std::nullopt;
  const auto constant = [&](const void* p) {
    return Emit({.op = ScalarOp::kConst, .type = ScalarType::kPtr, .imm = reinterpret_cast<int64_t>(p), .id = -2});
  };
  const int out = Emit({.op = ScalarOp::kAddress, .type = ScalarType::kPtr, .imm = scratch, .id = -2});
  const void* helper = t == DType::kFloat64 ? reinterpret_cast<const void*>(OfNumber<double>)
                                            : reinterpret_cast<const void*>(OfNumber<float>);
  const int good = Call(helper, ScalarType::kBool,
                        {constant(reinterpret_cast<const void*>(loop.run)), constant(loop.data), Value(x), out});
  ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, good));
  out_.floats = true;
  return NewNumpy(t, Emit({.op = ScalarOp::kCell, .type = x.type(), .imm = scratch, .id = -2}));
}

// Calls such a function for all elements.
std::optional<Val> Translator::CallOfArray(const State& s, const std::string& name, const Val& x) {
  if (!IsArray(x)) return std::nullopt;
  const int node = NodeOf(x);
  const Node& n = nodes_[node];
  const bool of_complex = IsComplex(n.dtype) && name == "numpy.absolute";
  const bool known = std::any_of(std::begin(kOfNumbers), std::end(kOfNumbers),
                                 [&](const char* f) { return name == std::string("numpy.") + f; });
  if ((!known && !of_complex) || (!Float(n.dtype) && !IsComplex(n.dtype))) return std::nullopt;
  const DType result = of_complex ? DType::kFloat64 : n.dtype;
  const LoopOf loop = FindLoop(name.c_str() + strlen("numpy."), 1, n.dtype, result);
  if (!loop.run) return std::nullopt;
  if (n.sizes.size() > 1) WantOrdered(node);
  if (ReadsLarge(node)) throw Unsupported{"large arrays"};
  const Vector from = n.sizes.size() == 1 ? VectorOf(node, n.dtype)
                                          : Vector{Fill(node, n.sizes, n.dtype, nullptr), Int(DTypeSize(n.dtype))};
  const Part to = NewArray(result, n.sizes, static_cast<int>(s.frames.size()));
  const int good = Call(reinterpret_cast<void*>(OfAll), ScalarType::kBool,
                        {Pointer(reinterpret_cast<const void*>(loop.run)), Pointer(loop.data), from.address,
                         from.stride, to.base, Int(DTypeSize(result)), Count(n.sizes)});
  elements_.push_back(Count(n.sizes));
  ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, good));
  out_.floats = true;
  Val v = View(to);
  v.whole = true;
  return v;
}

// Computes the sum, the mean, the largest or the smallest of a vector's elements.
std::optional<Val> Translator::Reduce(const std::string& name, const Val& x) {
  static constexpr std::pair<const char*, const char*> kRows[] = {
      {"sum", "add"}, {"max", "maximum"}, {"min", "minimum"}, {"mean", "add"}};
  const auto* row = std::find_if(std::begin(kRows), std::end(kRows), [&](const auto& r) { return name == r.first; });
  if (row == std::end(kRows) || !IsArray(x)) return std::nullopt;
  const int node = NodeOf(x);
  const Node& n = nodes_[node];
  const DType t = n.dtype;
  const bool mean = name == "mean";
  if (n.sizes.size() != 1 || (t != DType::kFloat64 && (mean || (t != DType::kFloat32 && t != DType::kInt64))))
    return std::nullopt;
  const LoopOf loop = FindLoop(row->second, 2, t);
  const int first = !strcmp(row->second, "add") ? SumsBeginWithTheFirst() : 1;
  if (!loop.run || first < 0) return std::nullopt;
  const Vector from = VectorOf(node, t);
  const int out = Emit({.op = ScalarOp::kAddress, .type = ScalarType::kPtr, .imm = scratch, .id = -2});
  const void* f = t == DType::kFloat64   ? reinterpret_cast<void*>(Reduction<double>)
                  : t == DType::kFloat32 ? reinterpret_cast<void*>(Reduction<float>)
                                         : reinterpret_cast<void*>(Reduction<int64_t>);
  const int good = Call(f, ScalarType::kBool,
                        {Pointer(reinterpret_cast<const void*>(loop.run)), Pointer(loop.data), from.address,
                         from.stride, n.sizes[0], Int(first), out});
  elements_.push_back(n.sizes[0]);
  ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, good));
  out_.floats = true;
  Val v = NewNumpy(t, Emit({.op = ScalarOp::kCell, .type = NewNumpy(t, -1).type(), .imm = scratch, .id = -2}));
  if (!mean) return v;
  return Binary(*this, NB_TRUE_DIVIDE, v, New(Is::kInt, n.sizes[0]));
}

std::optional<Val> Translator::ArrayMethod(const State& s, const std::string& name, const Val& of,
                                           const std::vector<Val>& args) {
  const Val self = Named(s, {of})[0];
  if (name == "copy" && args.empty()) {
    const int node = NodeOf(self);
    if (nodes_[node].sizes.size() > 1 && ReadsLarge(node)) throw Unsupported{"large arrays"};
    const Part to = NewArray(nodes_[node].dtype, nodes_[node].sizes, static_cast<int>(s.frames.size()));
    Fill(node, nodes_[node].sizes, nodes_[node].dtype, &to);
    Val v = View(to);
    v.whole = true;
    return v;
  }
  if (name == "dot" && args.size() == 1) return CallNumpy(s, "numpy.dot", {self, args[0]});
  return args.empty() ? Reduce(name, self) : std::nullopt;
}

std::optional<Val> Translator::CallNumpy(const State& s, const std::string& name, const std::vector<Val>& given) {
  if (!name.starts_with("numpy.")) return std::nullopt;
  const bool of_elements = name == "numpy.sqrt" || name == "numpy.abs" || name == "numpy.absolute";
  const std::vector<Val> args = of_elements ? given : Named(s, given);
  const auto rank = [&](const Val& v) { return nodes_[NodeOf(v)].sizes.size(); };
  if (name == "numpy.sqrt" && args.size() == 1) {
    if (IsArray(args[0])) return DeferUnary(ScalarOp::kSqrt, args[0]);
    out_.floats = true;
    return SquareRoot(*this, args[0]);
  }
  if (args.size() == 1 && (name == "numpy.abs" || name == "numpy.absolute")) {
    if (IsArray(args[0])) return MagnitudeOf(args[0]);
    if (args[0].is == Is::kFloat) return Absolute(*this, ToNumpy(*this, args[0], DType::kFloat64));
    if (args[0].is == Is::kNumpy && Float(args[0].dtype)) return Absolute(*this, args[0]);
  }
  if (args.size() == 1) {
    if (std::optional<Val> v = CallOfNumber(name, args[0])) return v;
    if (std::optional<Val> v = CallOfArray(s, name, args[0])) return v;
    if (std::optional<Val> v = Reduce(name.substr(strlen("numpy.")), args[0])) return v;
  }
  if (name == "numpy.arange" && args.size() == 1 && args[0].is == Is::kInt) return CountedUp(s, args[0]);
  if (name == "numpy.array" && args.size() == 1) return NewOfNumbers(s, args[0], nullptr);
  if (std::optional<Val> v = NewFilled(s, name, args, nullptr)) return v;
  if (name == "numpy.dot" && args.size() == 2 && IsArray(args[0]) && IsArray(args[1]) && rank(args[0]) == 1 &&
      rank(args[1]) == 1)
    return Product(args[0], args[1], true);
  if (name == "numpy.flip" && args.size() == 1 && IsArray(args[0]) && args[0].is != Is::kDeferred) {
    const Val none = Fixed(Py_None);
    return View(Index(PartOf(args[0]),
                      Tuple(std::vector<Val>(PartOf(args[0]).rank(), Slice(none, none, IntConstant(*this, -1))))));
  }
  return std::nullopt;
}

}  // namespace framejit::capture::scalar
