#include "capture/policy/barren.h"

#include <cstring>
#include <string_view>

#include "capture/callees.h"
#include "capture/override.h"
#include "capture/segment.h"
#include "tensor/tensor.h"

namespace framejit::capture {

// The first part of the path behind site-packages or dist-packages, without ".py"; empty: it was not installed.
static std::string_view NameOf(PyCodeObject* code) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) return PyErr_Clear(), std::string_view();
  const char* packages = strstr(file, "-packages/");
  if (!packages) return {};
  std::string_view name = packages + strlen("-packages/");
  name = name.substr(0, name.find('/'));
  if (name.ends_with(".py")) name.remove_suffix(3);
  return name;
}

std::shared_ptr<InstalledLibrary> InstalledLibraries::Of(PyCodeObject* code, PyCodeObject* root) {
  static constexpr std::string_view kFrameworks = " torch numpy cupy framejit ";  // skipped.cc knows their parts
  const std::string_view name = NameOf(code);
  if (name.empty() || (root && NameOf(root) == name)) return nullptr;
  std::string key(name);
  if (kFrameworks.find(" " + key + " ") != kFrameworks.npos) return nullptr;
  auto& library = known_[key];
  if (!library) library = std::make_shared<InstalledLibrary>(InstalledLibrary{std::move(key)});
  return library;
}

void NoteCapture(Compiled& compiled, InstalledLibrary& library, size_t calls) {
  const bool before = library.barren();
  ++library.captures;
  library.calls += static_cast<int64_t>(calls);
  if (before || !library.barren()) return;
  compiled.notes.push_back("code of " + library.name +
                           " is left to Python where it gets no tensors: " + std::to_string(library.captures) +
                           " captures of it found " + std::to_string(library.calls) + " calls for graphs");
  diag::Log(diag::Channel::perf_, compiled.notes.back());
}

static PyTypeObject* ModuleType() {
  static PyObject* type = nullptr;  // kept for ever
  if (!type && tensor::TorchLoaded()) {
    SuspendScope off;
    PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), callees::kModules);
    type = module ? PyObject_GetAttrString(module, "Module") : nullptr;
    if (!type) PyErr_Clear();
  }
  return type && PyType_Check(type) ? reinterpret_cast<PyTypeObject*>(type) : nullptr;
}

bool TakesTensors(FjFrame* frame) {
  const PyCodeObject* code = fj_code(frame);
  const int n = code->co_argcount + code->co_kwonlyargcount;
  PyTypeObject* module = ModuleType();
  for (int i = 0; i < n; ++i) {
    PyObject* o = fj_localsplus(frame)[i];
    if (!o) continue;
    const tensor::Class c = tensor::Classify(o);
    if (c >= tensor::Class::kTorch && c <= tensor::Class::kTorchSubclass) return true;
    if (module && PyObject_TypeCheck(o, module)) return true;
  }
  return false;
}

}  // namespace framejit::capture
