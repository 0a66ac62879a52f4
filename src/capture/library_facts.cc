#include "surface/library_facts.h"

#include <cstdio>
#include <map>

#include "capture/override.h"
#include "capture/ref.h"
#include "tensor/import.h"
#include "tensor/tensor.h"

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

[[maybe_unused]] const bool registered = (surface::AskLibraryGelu(AskGelu), surface::AskNumpyKeepsIntegers(AskFloor),
                                          surface::AskTorchSharesTies(AskTies), true);

}  // namespace
}  // namespace framejit::capture
