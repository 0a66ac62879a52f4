#include "capture/skipped.h"

#include <cstring>
#include <string>
#include <string_view>

#include "capture/override.h"
#include "tensor/import.h"

namespace framejit::capture {

// (Python's packages lie in site-packages, Debian's in dist-packages.) Parts of torch whose frames are plumbing around
// the user's program. What they call may be the user's.
static constexpr std::string_view kPlumbing =
    " _dynamo/ _inductor/ distributed/fsdp/ distributed/tensor/ _functorch/_aot_autograd/ _subclasses/ "
    "_higher_order_ops/ _library/ fx/ "
    "autograd/ optim/ profiler/ amp/ accelerator/ __init__.py _tensor.py _ops.py _utils.py _guards.py _compile.py "
    "storage.py utils/_device.py utils/_foreach_utils.py utils/_contextlib.py utils/_python_dispatch.py "
    "utils/_config_module.py utils/weak.py nn/utils/clip_grad.py ";

bool SkippedFile(PyCodeObject* code) {
  static std::string stdlib;
  if (stdlib.empty()) {  // no lock is held: the import may let another thread in
    SuspendScope off;
    Ref os(tensor::Import("os"));
    Ref f(os ? PyObject_GetAttrString(os.get(), "__file__") : nullptr);
    if (!f) PyErr_Clear();
    std::string s = f ? PyUnicode_AsUTF8(f.get()) : "/";
    stdlib = s.substr(0, s.rfind('/') + 1);
  }
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) return PyErr_Clear(), true;
  if (file[0] == '<') return strncmp(file, "<frozen", 7) == 0;
  if (const char* torch = strstr(file, "-packages/torch/")) {
    std::string_view part = torch + strlen("-packages/torch/");
    for (size_t end = part.find('/'); !part.empty(); end = part.find('/', end + 1)) {
      if (kPlumbing.find(" " + std::string(part.substr(0, end == part.npos ? end : end + 1)) + " ") != kPlumbing.npos)
        return true;
      if (end == part.npos) break;
    }
  }
  // NumPy's own functions are captured within a graph. Where they are called after its end, they run as they are.
  if (strstr(file, "-packages/numpy/")) return true;
  return !strncmp(file, stdlib.c_str(), stdlib.size()) && !strstr(file, "-packages/");
}

// The answer of a function of framejit._updates, which knows the optimizers of torch. Null: it has none.
static Ref AskUpdates(const char* function, PyCodeObject* code) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file || !strstr(file, "/torch/optim/")) return PyErr_Clear(), Ref();
  SuspendScope off;
  Ref module(tensor::Import("framejit._updates"));
  Ref answer(module ? PyObject_CallMethod(module.get(), function, "O", code) : nullptr);
  if (!answer) PyErr_Clear();
  return answer.get() == Py_None ? Ref() : answer;
}

bool EndsGraph(PyCodeObject* code) {
  // It takes memory from tensors and gives it back, behind their backs.
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file && strstr(file, "-packages/torch/distributed/fsdp/")) return true;
  return AskUpdates("ends_graph", code).get() == Py_True;
}

Ref InsteadOf(PyCodeObject* code) {
  SuspendScope off;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (file && !strcmp(file, "<frozen importlib._bootstrap>") &&
      !PyUnicode_CompareWithASCIIString(code->co_name, "_find_and_load")) {
    PyObject* importlib = PyDict_GetItemString(PyImport_GetModuleDict(), "_frozen_importlib");
    Ref found(importlib ? PyObject_GetAttr(importlib, code->co_name) : nullptr);
    if (!found) PyErr_Clear();
    return found;
  }
  return AskUpdates("instead_of", code);
}

}  // namespace framejit::capture
