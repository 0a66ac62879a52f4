#include "capture/policy/barren.h"

#include <string_view>

#include "capture/policy/skipped.h"
#include "capture/segment.h"
#include "tensor/tensor.h"

namespace framejit::capture {

std::shared_ptr<InstalledLibrary> InstalledLibraries::Of(PyCodeObject* code, PyCodeObject* root) {
  static constexpr std::string_view kFrameworks = " torch numpy cupy framejit ";  // skipped.cc knows their parts
  const std::string_view name = InstalledAs(code).package;
  if (name.empty() || (root && InstalledAs(root).package == name)) return nullptr;
  std::string key(name);
  if (kFrameworks.find(" " + key + " ") != kFrameworks.npos) return nullptr;
  auto& library = known_[key];
  if (!library) library = std::make_shared<InstalledLibrary>(InstalledLibrary{std::move(key)});
  return library;
}

void NoteCapture(Compiled& compiled, CodeState& code, const Segment* made) {
  InstalledLibrary& library = *code.library;
  const bool before = library.barren();
  ++library.captures;
  if (made) library.calls += made->calls;
  if (made && made->calls) code.without_calls = -1;
  if (code.without_calls >= 0) ++code.without_calls;
  if (before || !library.barren()) return;
  compiled.notes.push_back("code of " + library.name +
                           " is left to Python where it gets no tensors: " + std::to_string(library.captures) +
                           " captures of it found " + std::to_string(library.calls) + " calls for graphs");
  diag::Log(diag::Channel::perf_, compiled.notes.back());
}

static bool TakesTensors(FjFrame* frame) {
  const PyCodeObject* code = fj_code(frame);
  const int n = code->co_argcount + code->co_kwonlyargcount;
  PyTypeObject* module = tensor::ModuleType();
  for (int i = 0; i < n; ++i) {
    PyObject* o = fj_localsplus(frame)[i];
    if (!o) continue;
    const tensor::Class c = tensor::Classify(o);
    if (c >= tensor::Class::kTorch && c <= tensor::Class::kTorchSubclass) return true;
    if (module && PyObject_TypeCheck(o, module)) return true;
  }
  return false;
}

bool IsBarren(const CodeState& code, FjFrame* frame) {
  constexpr int kWithoutCalls = 4;
  return code.library && code.library->barren() && (code.without_calls >= kWithoutCalls || !TakesTensors(frame));
}

}  // namespace framejit::capture
