// Torch is asked once for each type that is used what its gelu makes of special values: which code its library runs
// depends on the CPU and on the environment (ONEDNN_MAX_CPU_ISA).
#include "surface/library_gelu.h"

#include <map>

#include "capture/override.h"
#include "capture/ref.h"
#include "tensor/import.h"
#include "tensor/tensor.h"

namespace framejit::capture {
namespace {

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

surface::LibraryGelu Ask(DType t) {
  static std::map<DType, surface::LibraryGelu> known;  // The GIL protects it. Asking may let another thread in.
  if (const auto at = known.find(t); at != known.end()) return at->second;
  return known.emplace(t, Find(t)).first->second;
}

[[maybe_unused]] const bool registered = (surface::AskLibraryGelu(Ask), true);

}  // namespace
}  // namespace framejit::capture
