// Torch is asked once, for each type, what its gelu makes of special values: which code its library runs depends on the
// CPU and on the environment (ONEDNN_MAX_CPU_ISA).
#include "surface/library_gelu.h"

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
  static const surface::LibraryGelu single = Find(DType::kFloat32), brief = Find(DType::kBFloat16),
                                    half = Find(DType::kFloat16);
  return t == DType::kFloat32 ? single : t == DType::kBFloat16 ? brief : half;
}

[[maybe_unused]] const bool registered = (surface::AskLibraryGelu(Ask), true);

}  // namespace
}  // namespace framejit::capture
