#include "surface/library_facts.h"

#include <cmath>
#include <cstdio>
#include <map>

#include "capture/override.h"
#include "capture/ref.h"
#include "tensor/import.h"
#include "tensor/tensor.h"
#include "tensor/ufunc_loops.h"

namespace framejit::capture {
namespace {

// Torch is asked once for each type that is used what its gelu makes of special values: which code its library runs
// depends on the CPU and on the environment (ONEDNN_MAX_CPU_ISA).
surface::LibraryGelu Find(DType t) {
  surface::LibraryGelu found;
  const SuspendScope off;
  tensor::SavedError saved;
  Ref module(tensor::Import("framejit._functions")), dtype(tensor::DTypeObject(Framework::kTorch, t));
  Ref answer(module && dtype ? PyObject_CallMethod(module.get(), "special_gelu", "O", dtype.get()) : nullptr);
  int nan = 0, zero = 0;
  if (answer && PyArg_ParseTuple(answer.get(), "pp", &nan, &zero)) found = {nan != 0, zero != 0};
  PyErr_Clear();
  return found;
}

surface::LibraryGelu AskGelu(DType t) {
  static std::map<DType, surface::LibraryGelu> known;  // The GIL protects it. Asking may let another thread in.
  if (const auto at = known.find(t); at != known.end()) return at->second;
  return known.emplace(t, Find(t)).first->second;
}

bool AskFloor() {
  static int keeps = -1;  // The GIL protects it.
  if (keeps < 0) {
    const SuspendScope off;
    tensor::SavedError saved;
    Ref module(tensor::Import("numpy")), floor(module ? PyObject_GetAttrString(module.get(), "floor") : nullptr);
    Ref types(floor ? PyObject_GetAttrString(floor.get(), "types") : nullptr), integers(PyUnicode_FromString("l->l"));
    keeps = !types || !integers || PySequence_Contains(types.get(), integers.get());
    PyErr_Clear();
  }
  return keeps != 0;
}

bool AskProducts() {
  static const bool fuses = [] {
    const tensor::LoopOf multiply = tensor::FindLoop("multiply", 2, DType::kComplex128);
    if (!multiply.run) return false;
    constexpr int kCount = 19, kParts = 2 * kCount;
    double x[kParts], y[kParts], z[kParts];
    for (int i = 0; i < kParts; ++i) x[i] = std::sin(i * i) / (i % 7 + 1), y[i] = std::cos(i * i) * (i % 5 + 1);
    for (const intptr_t next : {0, 2}) {  // one number and many, or as many
      char* args[] = {reinterpret_cast<char*>(x), reinterpret_cast<char*>(y), reinterpret_cast<char*>(z)};
      constexpr intptr_t kItem = 2 * sizeof(double);
      const intptr_t count = kCount, strides[] = {next * kItem / 2, kItem, kItem};
      multiply.run(args, &count, strides, multiply.data);
      for (int i = 0; i < kParts; i += 2) {
        const double *a = x + (next ? i : 0), *b = y + i;
        if (z[i] != std::fma(a[0], b[0], -(a[1] * b[1])) || z[i + 1] != std::fma(a[0], b[1], a[1] * b[0])) return false;
      }
    }
    return true;
  }();
  return fuses;
}

bool AskTies() {
  static int shares = -1;  // The GIL protects it.
  if (shares < 0) {
    const SuspendScope off;
    tensor::SavedError saved;
    Ref module(tensor::Import("torch")),
        version(module ? PyObject_GetAttrString(module.get(), "__version__") : nullptr);
    const char* text = version && PyUnicode_Check(version.get()) ? PyUnicode_AsUTF8(version.get()) : nullptr;
    int major = 0, minor = 0;
    shares = text && std::sscanf(text, "%d.%d", &major, &minor) == 2 && (major > 2 || (major == 2 && minor >= 14));
    PyErr_Clear();
  }
  return shares != 0;
}

[[maybe_unused]] const bool registered =
    (surface::AskLibraryGelu(AskGelu), surface::AskNumpyKeepsIntegers(AskFloor), surface::AskTorchSharesTies(AskTies),
     surface::AskNumpyFusesProducts(AskProducts), true);

}  // namespace
}  // namespace framejit::capture
