// Functions that emitted code calls by name: the C library's, a vector at a time through memory.
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>

#include "runtime/status.h"

namespace framejit::codegen {
namespace {

int64_t IntegerPower(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t result = 1, square = static_cast<uint64_t>(base);
  for (uint64_t e = static_cast<uint64_t>(exponent); e; e >>= 1, square *= square) {
    if (e & 1) result *= square;
  }
  return static_cast<int64_t>(result);
}

template <typename T, T (*F)(T)>
void Each(T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = F(x[i]);
}
template <typename T, T (*F)(T, T)>
void Each2(T* x, int64_t n) {  // x[i] = F(x[i], x[n + i])
  for (int64_t i = 0; i < n; ++i) x[i] = F(x[i], x[n + i]);
}

template <auto F>
void* Address() {
  return reinterpret_cast<void*>(F);
}

#define ONE(name) {#name "f", Address<&Each<float, &::name##f>>()}, {#name, Address<&Each<double, &::name>>()},
#define TWO(name) {#name "f", Address<&Each2<float, &::name##f>>()}, {#name, Address<&Each2<double, &::name>>()},

const std::unordered_map<std::string_view, void*>& Table() {
  static const std::unordered_map<std::string_view, void*> table = {
      ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sin) ONE(cos) ONE(tan) ONE(asin)
          ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh) ONE(asinh) ONE(acosh) ONE(atanh) ONE(erf) ONE(erfc) TWO(pow)
              TWO(atan2) TWO(hypot) TWO(fmod){"fj_ipow", Address<&Each2<int64_t, &IntegerPower>>()},
      {"fj_note", reinterpret_cast<void*>(static_cast<void (*)(int64_t)>([](int64_t s) { runtime::NoteStatus(s); }))},
      {"memcpy", reinterpret_cast<void*>(static_cast<void* (*)(void*, const void*, size_t)>(&::memcpy))},
      {"memset", reinterpret_cast<void*>(static_cast<void* (*)(void*, int, size_t)>(&::memset))},
      {"malloc", reinterpret_cast<void*>(static_cast<void* (*)(size_t)>(&::malloc))},
      {"free", reinterpret_cast<void*>(static_cast<void (*)(void*)>(&::free))},
  };
  return table;
}

}  // namespace

void* HelperAddress(std::string_view name) {
#ifdef FRAMEJIT_SANITIZE_CODE
  if (name.starts_with("__asan_")) return dlsym(RTLD_DEFAULT, std::string(name).c_str());
#endif
  auto it = Table().find(name);
  return it == Table().end() ? nullptr : it->second;
}

}  // namespace framejit::codegen
