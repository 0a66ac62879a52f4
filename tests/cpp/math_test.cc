// Elementary functions: error in units of the last place against the C library in wider precision, and the special
// values. f32: against double; every exponent, both signs, dense. f64: against long double.
#include <cmath>
#include <cstring>

#include "kernel_harness.h"

namespace framejit {
namespace {

template <typename T>
T UlpOf(long double reference) {  // spacing of T at the value
  const T r = static_cast<T>(std::fabs(static_cast<double>(reference)));
  if (!std::isfinite(r)) return std::numeric_limits<T>::max() * std::numeric_limits<T>::epsilon();
  if (r < std::numeric_limits<T>::min()) return std::numeric_limits<T>::denorm_min();
  int e;
  std::frexp(static_cast<double>(r), &e);
  return static_cast<T>(std::ldexp(1.0, e - std::numeric_limits<T>::digits));
}

template <typename T>
bool SameSpecial(T got, T expected) {  // both nan, or equal with the sign
  if (std::isnan(expected)) return std::isnan(got);
  return got == expected && std::signbit(got) == std::signbit(expected);
}

template <typename T>
constexpr DType TypeOf() {
  return sizeof(T) == 4 ? DType::kFloat32 : DType::kFloat64;
}

template <typename T>
std::vector<T> Apply(Op op, const std::vector<T>& x, const std::vector<T>* y, const std::string& cpu) {
  Graph g;
  shape::Env env;
  Builder b(g, env);
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<ValueId> operands = {b.Input({TypeOf<T>(), {n}, {}}, {1}, "x")};
  if (y) operands.push_back(b.Input({TypeOf<T>(), {n}, {}}, {1}, "y"));
  g.outputs = {b.Add(op, operands)};
  auto run = test::BuildWhole(g);
  auto code = codegen::GetKernel(run.built.kernel, cpu, nullptr);
  std::vector<T> out(x.size());
  void* buffers[] = {const_cast<T*>(x.data()), nullptr, nullptr};
  buffers[1] = y ? const_cast<void*>(static_cast<const void*>(y->data())) : out.data();
  if (y) buffers[2] = out.data();
  code->fn(buffers, nullptr, 0, code->rows(nullptr));
  return out;
}

template <typename T>
std::vector<T> Sweep(double low, double high) {  // by exponent and linearly
  std::vector<T> x;
  const double tiny = std::numeric_limits<T>::denorm_min();
  std::mt19937_64 rng(7);
  auto uniform = [&] { return (rng() >> 11) * 0x1p-53; };
  const int per_exponent = sizeof(T) == 4 ? 2000 : 200;
  for (int e = sizeof(T) == 4 ? -149 : -1074; e < (sizeof(T) == 4 ? 128 : 1024); ++e) {
    for (int k = 0; k < per_exponent; ++k) {
      const T v = static_cast<T>(std::ldexp(1 + uniform(), e));
      for (T s : {v, static_cast<T>(-v)}) {
        if (s >= low && s <= high) x.push_back(s);
      }
    }
  }
  const double from = std::max(low, -1000.0), to = std::min(high, 1000.0);
  for (int k = 0; k < 400000; ++k) x.push_back(static_cast<T>(from + (to - from) * uniform()));
  const double narrow_from = std::max(low, -2.0), narrow_to = std::min(high, 2.0);
  for (int k = 0; k < 400000; ++k) x.push_back(static_cast<T>(narrow_from + (narrow_to - narrow_from) * uniform()));
  for (double v : {0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 10.0, 100.0, 1000.0, tiny, -tiny}) {
    if (v >= low && v <= high) x.push_back(static_cast<T>(v));
  }
  return x;
}

struct Function {
  Op op;
  long double (*reference)(long double);
  double (*reference64)(double);
  double low, high;     // domain of the sweep
  double ulp32, ulp64;  // what is promised
};

constexpr double kInf = std::numeric_limits<double>::infinity();

#define F(name) \
  [](long double x) -> long double { return std::name(x); }, [](double x) -> double { return std::name(x); }
const Function kFunctions[] = {
    {Op::kExp, F(exp), -760, 720, 1.1, 1.1},       {Op::kExp2, F(exp2), -1080, 1030, 1.1, 1.1},
    {Op::kExpm1, F(expm1), -760, 720, 1.6, 1.6},   {Op::kLog, F(log), 0, kInf, 1.0, 1.0},
    {Op::kLog2, F(log2), 0, kInf, 0.6, 1.6},       {Op::kLog10, F(log10), 0, kInf, 0.6, 2.0},
    {Op::kLog1p, F(log1p), -1, kInf, 1.6, 1.6},    {Op::kSin, F(sin), -1e6, 1e6, 2.0, 1.1},
    {Op::kCos, F(cos), -1e6, 1e6, 2.0, 1.1},       {Op::kTan, F(tan), -1e6, 1e6, 0.6, 2.5},
    {Op::kAsin, F(asin), -1, 1, 0.6, 2.2},         {Op::kAcos, F(acos), -1, 1, 0.6, 2.0},
    {Op::kAtan, F(atan), -kInf, kInf, 0.6, 1.6},   {Op::kSinh, F(sinh), -720, 720, 0.6, 2.5},
    {Op::kCosh, F(cosh), -720, 720, 0.6, 2.5},     {Op::kTanh, F(tanh), -30, 30, 1.8, 2.5},
    {Op::kAsinh, F(asinh), -kInf, kInf, 0.6, 2.5}, {Op::kAcosh, F(acosh), 1, kInf, 0.6, 2.5},
    {Op::kAtanh, F(atanh), -1, 1, 0.6, 2.5},       {Op::kErf, F(erf), -10, 10, 1.9, 1.5},
    {Op::kErfc, F(erfc), -10, 30, 0.6, 4.0},
};
#undef F

template <typename T>
void CheckUlp(const Function& f, double limit) {
  const std::vector<T> x = Sweep<T>(f.low, f.high);
  for (const std::string& cpu : test::Cpus()) {
    const std::vector<T> got = Apply<T>(f.op, x, nullptr, cpu);
    double worst = 0;
    T at = 0, value = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const long double expected = sizeof(T) == 4 ? static_cast<long double>(f.reference64(x[i])) : f.reference(x[i]);
      const T rounded = static_cast<T>(expected);
      double error;
      if (std::isnan(rounded) || std::isinf(rounded) || std::isnan(got[i]) || std::isinf(got[i])) {
        error = SameSpecial(got[i], rounded) ? 0 : 1e9;
        // The largest finite numbers and infinity are neighbours.
        if (error && !std::isnan(got[i]) && !std::isnan(rounded) &&
            std::fabs(expected) > 0.9999999L * std::numeric_limits<T>::max() &&
            std::fabs(expected) < 1.0000001L * std::numeric_limits<T>::max()) {
          error = 0;
        }
      } else {
        error = static_cast<double>(std::fabs(got[i] - expected) / UlpOf<T>(expected));
        if (rounded == 0 && got[i] == 0 && std::signbit(rounded) != std::signbit(got[i])) error = 1e9;
      }
      if (error > worst) {
        worst = error;
        at = x[i];
        value = got[i];
      }
    }
    std::printf("%-6s %s %-6s max %.3f ulp at %.9g\n", Info(f.op).name, sizeof(T) == 4 ? "f32" : "f64", cpu.c_str(),
                worst, double(at));
    EXPECT_LE(worst, limit) << Info(f.op).name << " of " << std::hexfloat << at << " is " << value << " instead of "
                            << f.reference(at);
  }
}

TEST(Ulp, Float32) {
  for (const Function& f : kFunctions) CheckUlp<float>(f, f.ulp32);
}
TEST(Ulp, Float64) {
  for (const Function& f : kFunctions) CheckUlp<double>(f, f.ulp64);
}

template <typename T>
void CheckSpecial() {
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const T big = std::numeric_limits<T>::max(), tiny = std::numeric_limits<T>::denorm_min();
  const std::vector<T> x = {0,    -T(0), 1, -1, inf,    -inf,   nan,      big,     -big,
                            tiny, -tiny, 2, -2, T(0.5), T(1e5), T(1.1e9), T(-3e15)};
  for (const std::string& cpu : test::Cpus()) {
    for (const Function& f : kFunctions) {
      const std::vector<T> got = Apply<T>(f.op, x, nullptr, cpu);
      for (size_t i = 0; i < x.size(); ++i) {
        const T expected =
            static_cast<T>(sizeof(T) == 4 ? f.reference64(x[i]) : static_cast<double>(f.reference(x[i])));
        if (std::isfinite(expected) && expected != 0) {
          EXPECT_NEAR(got[i], expected, std::fabs(expected) * 3 * std::numeric_limits<T>::epsilon() + tiny)
              << Info(f.op).name << " " << x[i];
        } else {
          EXPECT_TRUE(SameSpecial(got[i], expected))
              << Info(f.op).name << " of " << x[i] << " is " << got[i] << " instead of " << expected;
        }
      }
    }
  }
}
TEST(Special, Float32) {
  CheckSpecial<float>();
}
TEST(Special, Float64) {
  CheckSpecial<double>();
}

template <typename T>
void CheckBinary(Op op, T (*f)(T, T), double (*wide)(double, double), double limit) {
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const T big = std::numeric_limits<T>::max(), tiny = std::numeric_limits<T>::denorm_min();
  std::vector<T> some = {0, -T(0), 1, -1, inf,    -inf,    nan,    big,  -big,    tiny,    -tiny,
                         2, -2,    3, -3, T(0.5), T(-0.5), T(1.5), T(7), T(1e10), T(-1e10)};
  std::vector<T> x, y;
  for (T a : some) {
    for (T b : some) x.push_back(a), y.push_back(b);
  }
  std::mt19937 rng(3);
  for (int k = 0; k < 300000; ++k) {
    auto u = [&] { return (rng() >> 8) * 0x1p-24; };
    x.push_back(static_cast<T>((u() - 0.3) * 20));
    y.push_back(static_cast<T>((u() - 0.5) * 20));
  }
  for (const std::string& cpu : test::Cpus()) {
    const std::vector<T> got = Apply<T>(op, x, &y, cpu);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const T expected = f(x[i], y[i]);
      if (!std::isfinite(expected) || expected == 0 || !std::isfinite(got[i])) {
        ASSERT_TRUE(SameSpecial(got[i], expected))
            << Info(op).name << "(" << x[i] << ", " << y[i] << ") is " << got[i] << " instead of " << expected;
        continue;
      }
      const double exact = sizeof(T) == 4 ? wide(x[i], y[i]) : double(expected);
      worst = std::max(worst, double(std::fabs(got[i] - exact) / UlpOf<T>(exact)));
    }
    std::printf("%-6s %s %-6s max %.3f ulp\n", Info(op).name, sizeof(T) == 4 ? "f32" : "f64", cpu.c_str(), worst);
    EXPECT_LE(worst, limit) << Info(op).name;
  }
}

TEST(Binary, PowAtan2HypotFmod) {
  CheckBinary<float>(
      Op::kPow, [](float a, float b) { return std::pow(a, b); }, [](double a, double b) { return std::pow(a, b); },
      0.6);
  CheckBinary<double>(Op::kPow, [](double a, double b) { return std::pow(a, b); }, nullptr, 1.0);
  CheckBinary<float>(
      Op::kAtan2, [](float a, float b) { return std::atan2(a, b); },
      [](double a, double b) { return std::atan2(a, b); }, 0.6);
  CheckBinary<double>(Op::kAtan2, [](double a, double b) { return std::atan2(a, b); }, nullptr, 2.0);
  CheckBinary<float>(
      Op::kHypot, [](float a, float b) { return std::hypot(a, b); },
      [](double a, double b) { return std::hypot(a, b); }, 0.6);
  CheckBinary<double>(Op::kHypot, [](double a, double b) { return std::hypot(a, b); }, nullptr, 1.0);
  CheckBinary<float>(
      Op::kFmod, [](float a, float b) { return std::fmod(a, b); }, [](double a, double b) { return std::fmod(a, b); },
      0);
  CheckBinary<double>(Op::kFmod, [](double a, double b) { return std::fmod(a, b); }, nullptr, 0);
}

}  // namespace
}  // namespace framejit
