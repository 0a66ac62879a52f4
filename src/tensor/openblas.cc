#include "tensor/openblas.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>

namespace framejit::tensor {

namespace {

// It shares from some number of multiplications in between on.
constexpr int64_t kOfOneThread = 400'000, kOfMore = 500'000;

}  // namespace

std::vector<void*> OfBlas(std::initializer_list<const char*> names, const char* of) {
  struct Search {
    std::initializer_list<const char*> names;
    const char* of;
    std::vector<void*> found{};
  } search{names, of};
  const auto look = [](dl_phdr_info* info, size_t, void* into) {
    auto& s = *static_cast<Search*>(into);
    if (!strstr(info->dlpi_name, "openblas") || !strstr(info->dlpi_name, s.of)) return 0;
    void* library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    for (const char* name : s.names)
      if (void* function = library ? dlsym(library, name) : nullptr) {
        s.found.push_back(function);
        break;
      }
    return 0;
  };
  dl_iterate_phdr(look, &search);
  return search.found;
}

int SharesOfBlas(int64_t fewest, int64_t most) {
  static const std::vector<void*> counts =
      OfBlas({"scipy_openblas_get_num_threads64_", "scipy_openblas_get_num_threads", "openblas_get_num_threads64_",
              "openblas_get_num_threads"},
             "numpy");
  const int threads = counts.size() == 1 ? reinterpret_cast<int (*)()>(counts[0])() : 0;
  if (threads == 1 || most < kOfOneThread) return 1;
  return fewest > kOfMore ? std::max(threads, 0) : 0;
}

}  // namespace framejit::tensor
