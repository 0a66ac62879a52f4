// Names of framework callables. A table of namespaces, walked once when the framework is first seen, fills a map from
// object to the places that it was found in. Objects that go by several names (torch.nn.functional.linear is
// torch._C._nn.linear) get the first name that has a row in surface/, else the first of all: the table lists public
// places first.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "graph/effects.h"
#include "surface/surface.h"
#include "tensor/autograd.h"
#include "tensor/cupy_api.h"
#include "tensor/import.h"
#include "tensor/named_modules.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

namespace {

// A place whose callables have names. `known`: it was walked.
struct Space {
  const char* path;
  bool known = false;
};
// To make the callables of another module known: a row here.
// clang-format off: tables
Space torch_spaces[] = {
  {"torch.Tensor"}, {"torch"}, {"torch.nn.functional"}, {"torch.special"}, {"torch.linalg"}, {"torch.fft"},
  {"torch.autograd.grad_mode"}, {"torch.nn.init"}, {"torch.nn.parameter"}, {"torch.nn.utils"}, {"torch.amp"},
  {"torch.backends.cudnn"}, {"torch.functional"}, {"torch.compiler"}, {"torch.jit"}, {"torch.overrides"},
  {"torch.random"}, {"torch.cuda"}, {"torch.autograd"}, {"torch._C._nn"}, {"torch._C._linalg"}, {"torch._C._fft"},
  {"torch._C._special"}, {"torch._C._VariableFunctionsClass"}, {"torch._C"}, {"torch._C._functions"},
  {"torch._C.TensorBase"}, {"torch._C._functorch"}, {"torch._C._sparse"}};
Space numpy_spaces[] = {
  {"numpy.ndarray"}, {"numpy"}, {"numpy.linalg"}, {"numpy.fft"}, {"numpy.random"}, {"numpy.generic"}, {"numpy.float64"},
  {"numpy.float32"}, {"numpy.int64"}, {"numpy.bool_"}, {"numpy.lib.stride_tricks"}, {"scipy.special"},
  {"scipy.fft"}, {"scipy.linalg"}, {"scipy.signal"}, {"scipy.signal.windows"}, {"scipy.ndimage"}, {"scipy.integrate"},
  {"scipy.spatial.distance"},
  {"framejit._arrays"}};
Space cupy_spaces[] = {{"cupy.ndarray"}, {"cupy"}};
// clang-format on

// An object and the places that it was found in, in the order of the tables. Its name is made when it is asked for: a
// program calls a hundred of the thousands that there are.
struct Named {
  PyObject* object;  // held, and with it the address
  int32_t first, last;
};
struct Found {
  PyObject* key;  // held
  uint16_t path;
  bool type;  // the place is a class
  int32_t next = -1;
};

class NameTable {
 public:
  NameTable() {
    named_.reserve(8000);  // of torch
    found_.reserve(8000);
  }
  // Gives the number of the first place, or -1.
  int32_t Find(PyObject* o) const {
    const int32_t at = slots_.empty() ? -1 : slots_[At(o)];
    return at < 0 ? -1 : named_[at].first;
  }
  uint16_t Path(const char* path) {
    for (size_t i = 0; i < paths_.size(); ++i)
      if (paths_[i] == path) return static_cast<uint16_t>(i);
    paths_.emplace_back(path);
    return static_cast<uint16_t>(paths_.size() - 1);
  }
  // True: the object was not there.
  bool Enter(PyObject* o, uint16_t path, PyObject* key, bool type) {
    if (2 * (named_.size() + 1) > slots_.size()) Grow();
    const auto place = static_cast<int32_t>(found_.size());
    int32_t& at = slots_[At(o)];
    const bool fresh = at < 0;
    if (fresh) {
      at = static_cast<int32_t>(named_.size());
      named_.push_back({Py_NewRef(o), place, place});
    } else {
      Named& n = named_[at];
      for (int32_t i = n.first; i >= 0; i = found_[i].next)
        if (found_[i].key == key && found_[i].path == path) return false;
      found_[std::exchange(n.last, place)].next = place;
      names.erase(o);
    }
    found_.push_back({Py_NewRef(key), path, type});
    return fresh;
  }
  void Prefetch(PyObject* o) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[Hash(o)]);
  }
  const Found& Known(int32_t i) const { return found_[i]; }
  const std::string& PathOf(const Found& f) const { return paths_[f.path]; }
  // These are the attributes that were asked for, without those that it does not have.
  std::unordered_map<PyObject*, Callee> names;

 private:
  size_t Hash(PyObject* o) const {
    return reinterpret_cast<size_t>(o) / 16 * 0x9E3779B97F4A7C15u >> 32 & (slots_.size() - 1);
  }
  size_t At(PyObject* o) const {
    const size_t mask = slots_.size() - 1;
    size_t at = Hash(o);
    while (slots_[at] >= 0 && named_[slots_[at]].object != o) at = (at + 1) & mask;
    return at;
  }
  void Grow() {
    slots_.assign(slots_.empty() ? 1 << 14 : 2 * slots_.size(), -1);
    for (size_t i = 0; i < named_.size(); ++i) slots_[At(named_[i].object)] = static_cast<int32_t>(i);
  }
  std::vector<int32_t> slots_;  // a power of two of them
  std::vector<Named> named_;
  std::vector<Found> found_;
  std::vector<std::string> paths_;
};
NameTable& Names() {
  static auto* names = new NameTable();  // outlives every user
  return *names;
}

// The types of the named objects: most objects that are asked for are of others.
struct TypeSet {
  PyTypeObject* slots[256] = {};
  int used = 0;
  PyTypeObject*& At(PyTypeObject* t) {
    size_t at = reinterpret_cast<size_t>(t) / 16;
    while (slots[at % 256] && slots[at % 256] != t) ++at;
    return slots[at % 256];
  }
  void Add(PyTypeObject* t) {
    if (used < 128 && !std::exchange(At(t), t)) ++used;
  }
  bool Has(PyTypeObject* t) { return used == 128 || At(t); }
};
TypeSet named_types;

PyObject* Walk(const std::string& path) {
  size_t dot = path.find('.');
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), path.substr(0, dot).c_str());
  Ref at = Ref::Borrow(module);
  std::string seen = path.substr(0, dot);
  while (at && dot != std::string::npos) {
    size_t next = path.find('.', dot + 1);
    std::string part = path.substr(dot + 1, next == std::string::npos ? next : next - dot - 1);
    seen += "." + part;
    PyObject* sub = PyDict_GetItemString(PyImport_GetModuleDict(), seen.c_str());  // a module not (yet) an attribute
    Ref value(PyObject_GetAttrString(at.get(), part.c_str()));
    if (!value && sub) {
      PyErr_Clear();
      value = Ref::Borrow(sub);
    }
    at = std::move(value);
    dot = next;
  }
  if (!module) PyErr_Format(PyExc_ModuleNotFoundError, "framejit: %s is not imported", path.c_str());
  return at.release();
}

// What stands at that path, if it is there: a framework imports some of its modules only when they are first read, and
// most programs never read them.
Ref Loaded(const char* path) {
  const char* dot = strchr(path, '.');
  PyObject* modules = PyImport_GetModuleDict();
  Ref at = Ref::Borrow(PyDict_GetItemString(modules, std::string(path, dot ? dot - path : strlen(path)).c_str()));
  while (at && dot) {
    const char* next = strchr(dot + 1, '.');
    const std::string part = next ? std::string(dot + 1, next - dot - 1) : std::string(dot + 1);
    dot = next;
    at = PyModule_Check(at.get()) ? Ref::Borrow(PyDict_GetItemString(PyModule_GetDict(at.get()), part.c_str()))
                                  : Ref(PyObject_GetAttrString(at.get(), part.c_str()));
  }
  return at;
}

bool Known(const std::string& name) {
  const Callee callee(name);
  return surface::HasRow(callee) || callee.effects().answer != Answer::kNone;
}

bool Callable(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return t->tp_call || t == &PyGetSetDescr_Type || t == &PyProperty_Type;
}

// Belongs to the framework: `import math` inside torch must not rename math.floor.
bool Owned(PyObject* o, std::string_view root) {
  if (PyCFunction_Check(o)) {
    PyObject* self = PyCFunction_GET_SELF(o);
    if (self && PyType_Check(self)) return true;  // torch's own: static methods of a type of its
    if (self && PyModule_Check(self)) {
      const char* name = PyModule_GetName(self);
      if (!name) PyErr_Clear();
      return name && !strncmp(name, root.data(), root.size());
    }
  }
  Ref module(PyObject_GetAttrString(o, "__module__"));
  if (!module) PyErr_Clear();
  const char* name = module && PyUnicode_Check(module.get()) ? PyUnicode_AsUTF8(module.get()) : nullptr;
  if (!name) return true;  // descriptors, builtins without a module, ufuncs
  return !strncmp(name, root.data(), root.size());
}

// Two names in one place (numpy.double, numpy.float64): the one that the object itself goes by.
bool Nicer(PyObject* o, const std::string& path, const std::string& name, const std::string& other) {
  if (other.compare(0, path.size() + 1, path + ".") || other.find('.', path.size() + 1) != std::string::npos)
    return false;
  Ref own(PyObject_GetAttrString(o, "__name__"));
  if (!own) PyErr_Clear();
  const char* text = own && PyUnicode_Check(own.get()) ? PyUnicode_AsUTF8(own.get()) : nullptr;
  return text && name == path + "." + text;
}

// Empty: it has none.
Callee NameOf(PyObject* o) {
  if (!named_types.Has(Py_TYPE(o))) return {};
  NameTable& table = Names();
  if (auto known = table.names.find(o); known != table.names.end()) return known->second;
  int32_t i = table.Find(o);
  if (i < 0) return {};
  SavedError saved;
  std::string best;
  while (i >= 0) {
    const Found f = table.Known(i);
    i = f.next;
    const std::string path = table.PathOf(f);
    const std::string_view root = std::string_view(path).substr(0, path.find('.'));
    if (!f.type && !Owned(o, root == "scipy" ? "" : root)) continue;  // may run Python code
    std::string name = path + "." + PyUnicode_AsUTF8(f.key);
    if (best.empty() || (!Known(best) && (Known(name) || Nicer(o, path, name, best)))) best = std::move(name);
  }
  return table.names[o] = best;
}

void Enter(Space& row) {
  SavedError saved;
  Ref space = Loaded(row.path);
  if (!space) {
    PyErr_Clear();
    return;
  }
  row.known = true;
  const bool type = PyType_Check(space.get());
  const uint16_t place = Names().Path(row.path);
  auto add = [&](PyObject* key, PyObject* value) {
    if (!PyUnicode_Check(key) || !Callable(value)) return;
    PyTypeObject* vt = Py_TYPE(value);
    if (vt == &PyClassMethod_Type || vt == &PyClassMethodDescr_Type) return;  // bound anew on every access
    Ref held = Ref::Borrow(value);
    if (vt == &PyStaticMethod_Type) held = Ref(PyObject_GetAttr(space.get(), key));
    if (!held) return PyErr_Clear();
    if (Names().Enter(held.get(), place, key, type)) named_types.Add(Py_TYPE(held.get()));
  };
  // The objects lie all over memory, and most were not looked at for long: asked for in time, they come side by side.
  auto add_dict = [&](PyObject* dict) {
    constexpr int kAhead = 16;
    std::pair<PyObject*, PyObject*> items[kAhead];
    Py_ssize_t pos = 0;
    for (int n = kAhead; n == kAhead;) {
      for (n = 0; n < kAhead && PyDict_Next(dict, &pos, &items[n].first, &items[n].second); ++n) {
        __builtin_prefetch(items[n].first);
        __builtin_prefetch(items[n].second);
        Names().Prefetch(items[n].second);
      }
      for (int i = 0; i < n; ++i) add(items[i].first, items[i].second);
    }
  };
  if (!type) {
    Ref dict(PyObject_GenericGetDict(space.get(), nullptr));
    if (!dict) PyErr_Clear();
    if (dict) add_dict(dict.get());
    return;
  }
  // A class: what instances find, nearest first (torch.Tensor inherits most of its methods from torch._C.TensorBase).
  PyObject* mro = reinterpret_cast<PyTypeObject*>(space.get())->tp_mro;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    auto* t = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    if (t == &PyBaseObject_Type || t == &PyFloat_Type || t == &PyLong_Type) break;
    if (t->tp_dict) add_dict(t->tp_dict);
  }
}

template <size_t n>
void EnterLoaded(Space (&spaces)[n]) {
  for (Space& row : spaces)
    if (!row.known) Enter(row);
}

void Fill() {
  static Py_ssize_t modules = -1;  // at the last look
  static bool torch = false;
  const bool bound = !torch && Torch();
  torch |= bound;
  PyObject* imported = PyImport_GetModuleDict();
  if (std::exchange(modules, PyDict_GET_SIZE(imported)) == PyDict_GET_SIZE(imported) && !bound) return;
  if (torch) EnterLoaded(torch_spaces);
  if (Numpy()) EnterLoaded(numpy_spaces);
  if (Cupy()) EnterLoaded(cupy_spaces);
}

// torch.ops.aten.add and torch.ops.aten.add.Tensor: objects that torch makes on first use and keeps.
std::string OperatorName(PyObject* o) {
  if (!IsTorchOperator(o)) return "";
  const bool packet = !strcmp(Py_TYPE(o)->tp_name, "OpOverloadPacket");
  SavedError saved;
  Ref text(PyObject_GetAttrString(o, packet ? "_qualified_op_name" : "_name"));
  Ref overload(packet ? nullptr : PyObject_GetAttrString(o, "_overloadname"));
  if (!text || !PyUnicode_Check(text.get()) || (!packet && !overload)) return PyErr_Clear(), "";
  const std::string_view qualified = PyUnicode_AsUTF8(text.get());
  const size_t colons = qualified.find("::");
  if (colons == std::string::npos) return "";
  std::string name = "torch.ops.";
  name.append(qualified.substr(0, colons)).append(1, '.').append(qualified.substr(colons + 2));
  if (overload && !PyUnicode_CompareWithASCIIString(overload.get(), "default")) name += ".default";
  return name;
}

bool IsMethodWrapper(PyObject* o) {
  return !strcmp(Py_TYPE(o)->tp_name, "method-wrapper");
}

}  // namespace

PyObject* ResolveCallee(const std::string& name) {
  constexpr std::string_view kVjp = "framejit.vjp(";
  if (name.starts_with(kVjp)) return MakeVjp(name.substr(kVjp.size(), name.size() - kVjp.size() - 1));
  Ref found(Walk(name));
  const Callee wanted(name);
  if (!found || NameOf(found.get()) == wanted) return found.release();
  for (const auto& [object, callee] : Names().names)  // The program has put another in its place.
    if (callee == wanted) return Py_NewRef(object);
  return found.release();
}

void ImportNamed(PyObject* module, PyObject* name) {
  if (PyDict_Contains(PyModule_GetDict(module), name) != 0 || !PyUnicode_Check(name)) return PyErr_Clear();
  SavedError saved;
  const char* of = PyModule_GetName(module);
  if (!of) return PyErr_Clear();
  const std::string path = std::string(of) + "." + PyUnicode_AsUTF8(name);
  const auto is = [&](const Space& row) { return row.path == path; };
  if (std::none_of(std::begin(torch_spaces), std::end(torch_spaces), is) &&
      std::none_of(std::begin(numpy_spaces), std::end(numpy_spaces), is))
    return;
  Ref(Import(path.c_str()));
  PyErr_Clear();
}

bool IsTorchOperator(PyObject* o) {
  const char* type = Py_TYPE(o)->tp_name;
  return !strncmp(type, "OpOverload", 10) && (!type[10] || !strcmp(type + 10, "Packet"));
}

bool HasCalleeName(PyObject* callable) {
  Fill();
  return IsTorchOperator(callable) || !NameOf(callable).empty() ||
         (IsMethodWrapper(callable) && !CalleeOf(callable).empty());
}

Callee CalleeOf(PyObject* callable) {
  Fill();
  if (Callee known = NameOf(callable); !known.empty()) return known;
  if (IsMethodWrapper(callable)) {  // torch.Tensor.T.__get__, made anew on every access
    SavedError saved;
    Ref self(PyObject_GetAttrString(callable, "__self__")), name(PyObject_GetAttrString(callable, "__name__"));
    if (Callee owner = self && name ? NameOf(self.get()) : Callee(); !owner.empty())
      return Callee(owner + "." + PyUnicode_AsUTF8(name.get()));
    PyErr_Clear();
  }
  return Callee(OperatorName(callable));
}

std::vector<std::pair<std::string, std::string>> Doctor() {
  std::vector<std::pair<std::string, std::string>> out;
  const TorchApi* t = Torch();
  if (t) {
    out = t->verdicts;
    out.emplace_back("torch.guard reads", t->at.all() && t->requires_grad ? "fields" : "Python attributes (slow)");
  } else {
    out.emplace_back("torch", "not imported");
  }
  out.emplace_back("numpy", Numpy() ? "ok" : "not imported, or its C API did not answer");
  out.emplace_back("cupy", CupyVerdict());
  return out;
}

}  // namespace framejit::tensor
