#include "capture/policy/barren.h"

#include <algorithm>
#include <string_view>

#include "capture/segment.h"
#include "tensor/tensor.h"

namespace framejit::capture {

std::shared_ptr<InstalledLibrary> InstalledLibraries::Named(const Installed& at, PyCodeObject* root) {
  static constexpr std::string_view kFrameworks = " torch numpy cupy framejit ";  // skipped.cc knows their parts
  const std::string_view name = at.package;
  if (name.empty() || (root && InstalledAs(root).package == name)) return nullptr;
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

namespace {

enum class Arrays : uint8_t { kNo, kCount };  // NumPy's

// Is it a tensor, or a module?
bool IsForGraphs(PyObject* o, Arrays arrays) {
  static PyTypeObject* module = nullptr;
  if (!module) module = tensor::ModuleType();
  const tensor::Class c = tensor::Classify(o);
  if (c == tensor::Class::kNumpyArray) return arrays == Arrays::kCount;
  return (c >= tensor::Class::kTorch && c <= tensor::Class::kTorchSubclass) || (module && PyObject_TypeCheck(o, module));
}

// Likewise, or a list, a tuple or a dict with one among its first items.
bool HoldsForGraphs(PyObject* o) {
  constexpr Py_ssize_t kItems = 8;
  if (IsForGraphs(o, Arrays::kCount)) return true;
  if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
    PyObject** items = PySequence_Fast_ITEMS(o);
    return std::any_of(items, items + std::min(kItems, PySequence_Fast_GET_SIZE(o)),
                       [](PyObject* item) { return IsForGraphs(item, Arrays::kCount); });
  }
  PyObject* item;
  if (PyDict_CheckExact(o))
    for (Py_ssize_t at = 0, n = 0; n < kItems && PyDict_Next(o, &at, nullptr, &item); ++n)
      if (IsForGraphs(item, Arrays::kCount)) return true;
  return false;
}

bool AttributesAreForGraphs(PyObject* o) {
  if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE) || PyType_Check(o)) return false;
  const Ref dict(PyObject_GenericGetDict(o, nullptr));
  if (!dict) return PyErr_Clear(), false;
  PyObject* value;
  for (Py_ssize_t at = 0; PyDict_Next(dict.get(), &at, nullptr, &value);)
    if (HoldsForGraphs(value)) return true;
  return false;
}

}  // namespace

bool IsLeft(const InstalledLibrary& library, FjFrame* frame) {
  const bool barren = library.barren();
  if (!barren && !library.doubtful()) return false;
  const PyCodeObject* code = fj_code(frame);
  const int spread = !!(code->co_flags & CO_VARARGS) + !!(code->co_flags & CO_VARKEYWORDS);
  const int n = code->co_argcount + code->co_kwonlyargcount + spread;
  for (int i = 0; i < n; ++i) {
    PyObject* o = fj_localsplus(frame)[i];
    if (o && PyCell_Check(o)) o = PyCell_GET(o);
    if (!o) continue;
    if (barren ? IsForGraphs(o, Arrays::kNo) : HoldsForGraphs(o) || (i == 0 && AttributesAreForGraphs(o))) return false;
  }
  return true;
}

}  // namespace framejit::capture
