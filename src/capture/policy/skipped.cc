#include "capture/policy/skipped.h"

#include <array>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "capture/override.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

// Parts of torch whose frames are plumbing around the user's program. What they call may be the user's.
constexpr std::string_view kPlumbing =
    " _dynamo/ _inductor/ distributed/fsdp/ distributed/tensor/ _functorch/_aot_autograd/ _subclasses/ "
    "_higher_order_ops/ _library/ fx/ nested/_internal/ autograd/ optim/ profiler/ amp/ accelerator/ utils/data/ mtia/ "
    "xpu/ cuda/__init__.py cuda/random.py __init__.py _tensor.py _tensor_str.py overrides.py _ops.py _utils.py "
    "_guards.py _compile.py storage.py utils/_device.py utils/_foreach_utils.py utils/_contextlib.py "
    "utils/_python_dispatch.py random.py utils/_config_module.py utils/weak.py "
    "utils/hooks.py nn/utils/clip_grad.py ";

// Parts of torch that no graph can follow in the middle of a program, and what is done where a capture comes to one.
enum class Instead : uint8_t {
  kNothing,
  kEndsGraph,   // The graph ends before the call: it takes memory from tensors and gives it back, behind their backs.
  kOnWrappers,  // Torch makes the call as a whole, on the tape (capture/wrappers/tape.h): it is code around C wrappers.
  kUpdates,     // framejit._updates, which knows torch's optimizers, is asked.
};
struct Part {
  std::string_view folder;
  Instead instead;
};
constexpr Part kParts[] = {
    {"distributed/fsdp/", Instead::kEndsGraph},
    {"distributed/tensor/parallel/", Instead::kOnWrappers},
    {"optim/", Instead::kUpdates},
};

Instead InsteadOfPart(PyCodeObject* code) {
  struct Known {  // the names of files that were asked for last
    Ref file;
    Instead instead = Instead::kNothing;
  };
  static auto& known = *new std::array<Known, 64>;  // it must outlive the interpreter
  Known& k = known[reinterpret_cast<uintptr_t>(code->co_filename) / sizeof(PyObject) % known.size()];
  if (k.file.get() == code->co_filename) return k.instead;
  const std::string_view path = PathIn(code, "torch");
  Instead instead = Instead::kNothing;
  for (const Part& part : kParts)
    if (path.starts_with(part.folder)) instead = part.instead;
  const Ref before = std::exchange(k.file, Borrow(code->co_filename));
  return k.instead = instead;
}

}  // namespace

// Does a folder of sys.path hold what an installer put there (`pip install --target`)? It notes that beside it.
static bool IsTarget(const std::string& folder) {
  static auto& known = *new std::map<std::string, bool, std::less<>>;
  if (const auto it = known.find(folder); it != known.end()) return it->second;
  std::error_code failed;
  bool target = false;
  for (std::filesystem::directory_iterator i(folder, failed), end; !failed && i != end && !target; i.increment(failed))
    target = i->path().extension() == ".dist-info";
  return known[folder] = target;
}

// How much of the path is the folder that packages are installed in, with its slash; 0: none is.
static size_t FolderOfPackages(std::string_view file) {
  constexpr std::string_view kFolder = "-packages/";  // site-packages; Debian's is dist-packages
  if (const size_t at = file.rfind(kFolder); at != file.npos) return at + kFolder.size();
  PyObject* path = PySys_GetObject("path");
  for (Py_ssize_t i = 0; path && PyList_Check(path) && i < PyList_GET_SIZE(path); ++i) {
    PyObject* entry = PyList_GET_ITEM(path, i);
    const char* text = PyUnicode_Check(entry) ? PyUnicode_AsUTF8(entry) : nullptr;
    if (!text) {
      PyErr_Clear();
      continue;
    }
    const std::string folder = std::string(text) + (std::string_view(text).ends_with('/') ? "" : "/");
    if (folder.size() > 1 && file.starts_with(folder) && IsTarget(folder)) return folder.size();
  }
  return 0;
}

static Installed FindInstalled(PyObject* file) {
  constexpr std::string_view kModule = ".py";
  const char* text = PyUnicode_AsUTF8(file);
  if (!text) return PyErr_Clear(), Installed();
  std::string_view rest = text;
  const size_t folder = FolderOfPackages(rest);
  if (!folder) return {};
  rest.remove_prefix(folder);
  if (const size_t slash = rest.find('/'); slash != rest.npos) return {rest.substr(0, slash), rest.substr(slash + 1)};
  if (rest.ends_with(kModule)) rest.remove_suffix(kModule.size());
  return {rest, {}};
}

Installed InstalledAs(PyCodeObject* code) {
  struct Known {  // the names of files that were asked for last
    Ref file;
    Installed at;
  };
  static auto& known = *new std::array<Known, 64>;  // it must outlive the interpreter
  PyObject* file = code->co_filename;
  Known& k = known[reinterpret_cast<uintptr_t>(file) / sizeof(PyObject) % known.size()];
  if (k.file.get() == file) return k.at;
  const Installed at = FindInstalled(file);
  const Ref before = std::exchange(k.file, Borrow(file));
  return k.at = at;
}

// The folder of a module, with its slash. No lock is held: the import may let another thread in.
static std::string FolderOf(const char* name) {
  SuspendScope off;
  Ref module(tensor::Import(name));
  Ref f(module ? PyObject_GetAttrString(module.get(), "__file__") : nullptr);
  if (!f) PyErr_Clear();
  const std::string s = f ? PyUnicode_AsUTF8(f.get()) : "/";
  return s.substr(0, s.rfind('/') + 1);
}

bool SkippedFile(PyCodeObject* code) {
  static std::string stdlib, own;
  if (own.empty()) stdlib = FolderOf("os"), own = FolderOf("framejit");
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) return PyErr_Clear(), true;
  if (file[0] == '<') return strncmp(file, "<frozen", 7) == 0;
  const std::string_view part = PathIn(code, "torch");
  for (size_t end = part.find('/'); !part.empty(); end = part.find('/', end + 1)) {
    if (kPlumbing.find(" " + std::string(part.substr(0, end == part.npos ? end : end + 1)) + " ") != kPlumbing.npos)
      return true;
    if (end == part.npos) break;
  }
  // NumPy's and SciPy's own functions are captured within a graph. Called after its end they run as they are.
  if (!PathIn(code, "numpy").empty() || !PathIn(code, "scipy").empty()) return true;
  // So do hooks of ours, which torch calls in a pass.
  if (own + "_gradients.py" == file) return true;
  return !strncmp(file, stdlib.c_str(), stdlib.size()) && InstalledAs(code).package.empty();
}

// The answer of a function of framejit._updates, which knows the optimizers of torch. Null: it has none.
static Ref AskUpdates(const char* function, PyCodeObject* code) {
  if (InsteadOfPart(code) != Instead::kUpdates) return {};
  SuspendScope off;
  Ref module(tensor::Import("framejit._updates"));
  Ref answer(module ? PyObject_CallMethod(module.get(), function, "O", code) : nullptr);
  if (!answer) PyErr_Clear();
  return answer.get() == Py_None ? Ref() : answer;
}

bool EndsGraph(PyCodeObject* code) {
  return InsteadOfPart(code) == Instead::kEndsGraph || AskUpdates("ends_graph", code).get() == Py_True;
}

bool RunsAroundWrappers(PyCodeObject* code) {
  return InsteadOfPart(code) == Instead::kOnWrappers;
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

frame::Action RunInstead(FjFrame* frame, PyObject* instead, PyObject** result) {
  SuspendScope off;
  PyCodeObject* code = fj_code(frame);
  const int positional = code->co_argcount, keywords = code->co_kwonlyargcount;
  frame::Slot* slots = fj_localsplus(frame);
  Ref names(PyTuple_New(keywords));
  std::vector<PyObject*> args(slots, slots + positional + keywords);
  for (PyObject*& a : args) {
    if (a && PyCell_Check(a)) a = PyCell_GET(a);  // of the frame's own: inner functions read the argument
    if (!a) return frame::Action::kHandOver;
  }
  for (int i = 0; names && i < keywords; ++i)
    PyTuple_SET_ITEM(names.get(), i, Borrow(PyTuple_GET_ITEM(code->co_localsplusnames, positional + i)).release());
  *result = names ? PyObject_Vectorcall(instead, args.data(), positional, names.get()) : nullptr;
  if (!*result) return frame::Action::kRaise;
  if (*result != Py_NotImplemented) return frame::Action::kReturn;
  Py_CLEAR(*result);
  return frame::Action::kHandOver;
}

}  // namespace framejit::capture
