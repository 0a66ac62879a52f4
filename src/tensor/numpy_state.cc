// NumPy 2 keeps its error handling in a context variable: a capsule around {int mask; npy_intp bufsize; PyObject*
// function}, three bits of the mask for each of divide, overflow, underflow and invalid, 0 to ignore it. That layout is
// private, so it is believed only after two capsules made for the purpose read as they must.
#include "tensor/import.h"
#include "tensor/no_collection.h"
#include "tensor/ref.h"
#include "tensor/refused_warning.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

namespace {

constexpr const char* kCapsule = "numpy.ufunc.extobj";
constexpr const char* kNames[] = {"divide", "over", "under", "invalid"};

struct State {
  int mask;
  Py_ssize_t buffer_size;
  PyObject* function;
};

struct Access {
  PyObject* variable = nullptr;  // null: not believed
  PyObject* make = nullptr;
  PyObject* unset = nullptr;  // the capsule where nothing is set
};

const State* Read(PyObject* capsule) {
  return static_cast<const State*>(PyCapsule_GetPointer(capsule, kCapsule));
}

PyObject* Make(PyObject* make, int raised, long buffer_size) {
  Ref empty(PyTuple_New(0)), kw(Py_BuildValue("{s:l}", "bufsize", buffer_size));
  for (int i = 0; kw && i < 4; ++i) {
    Ref how(PyUnicode_FromString(raised >> i & 1 ? "raise" : "ignore"));
    if (!how || PyDict_SetItemString(kw.get(), kNames[i], how.get()) < 0) return nullptr;
  }
  return empty && kw ? PyObject_Call(make, empty.get(), kw.get()) : nullptr;
}

// What a variable is in a context of its own.
PyObject* Unset(PyObject* variable) {
  PyObject* value = nullptr;
  Ref context(PyContext_New());
  if (!context || PyContext_Enter(context.get()) < 0) return nullptr;
  if (PyContextVar_Get(variable, nullptr, &value) < 0) value = nullptr;
  PyContext_Exit(context.get());
  return value;
}

const Access& TheAccess() {
  static Access access = [] {
    NoCollection pause;
    SavedError saved;
    Access a;
    Ref m(Import("numpy._core.umath"));
    Ref variable(m ? PyObject_GetAttrString(m.get(), "_extobj_contextvar") : nullptr);
    Ref make(m ? PyObject_GetAttrString(m.get(), "_make_extobj") : nullptr);
    auto mask_of = [&](int raised, long size) {
      Ref capsule(make ? Make(make.get(), raised, size) : nullptr);
      const State* s = capsule ? Read(capsule.get()) : nullptr;
      return s && s->buffer_size == size ? s->mask : -1;
    };
    const bool believed = variable && PyContextVar_CheckExact(variable.get()) && mask_of(0, 8192) == 0 &&
                          mask_of(15, 4096) == 02222 && mask_of(1, 4096) == 2 && mask_of(8, 4096) == 02000;
    PyObject* const unset = believed ? Unset(variable.get()) : nullptr;
    PyErr_Clear();
    if (believed) a = {variable.release(), make.release(), unset};
    return a;
  }();
  return access;
}

// Before 3.12 a collection may come in the middle of a variable's reset, and run code of the program's or a capture of
// it. What is found set there is remembered by the variable, without a reference, as its value from then on. So it
// forgets what it was asked for here. The values of other variables are looked up once more.
void ForgetRead() {
  ++PyThreadState_Get()->context_ver;
}

[[gnu::hot]] std::optional<State> Current() {
  const auto [variable, make, unset] = TheAccess();
  PyObject* capsule = nullptr;
  if (!variable || PyContextVar_Get(variable, nullptr, &capsule) < 0 || !capsule) return PyErr_Clear(), std::nullopt;
  if (capsule != unset) ForgetRead();
  Ref held(capsule);
  // What a capsule holds stays as it is. The last one is kept, unless a function of the program's hangs on it.
  static PyObject* last = nullptr;
  static State known;
  if (capsule == last) return known;
  const State* s = Read(capsule);
  if (!s) return PyErr_Clear(), std::nullopt;
  if (s->function == Py_None) {
    known = *s;
    Py_XSETREF(last, held.release());
  }
  return *s;
}

int Traps(int mask) {
  int traps = 0;
  for (int i = 0; i < 4; ++i) traps |= (mask >> 3 * i & 7 ? 1 : 0) << i;
  return traps;
}

}  // namespace

[[gnu::hot]] std::optional<std::pair<uint64_t, uint64_t>> ReadNumpyState() {
  std::optional<State> s = Current();
  if (!s) return std::nullopt;
  return std::pair{static_cast<uint64_t>(s->mask) << 32 | static_cast<uint64_t>(s->buffer_size),
                   static_cast<uint64_t>(reinterpret_cast<uintptr_t>(s->function))};
}

int NumpyTraps() {
  std::optional<State> s = Current();
  return s ? Traps(s->mask) : kDivide | kOverflow | kInvalid;
}

bool ResetNumpyState(PyObject* token) {
  const bool good = PyContextVar_Reset(TheAccess().variable, token) == 0;
  ForgetRead();
  return good;
}

bool IsNumpyState(PyObject* o) {
  return NumpyLoaded() && o == TheAccess().variable;
}

// Stands in for warnings.warn while some thread is in a compiled run; for all others it is what it was.
namespace warn {

PyObject *module_dict = nullptr, *name = nullptr, *own = nullptr, *original = nullptr;
int users = 0;                // runs in progress, of all threads
thread_local int inside = 0;  // of this one

PyObject* Warn(PyObject*, PyObject* const* args, Py_ssize_t n, PyObject* kwnames) {
  if (!inside) return PyObject_Vectorcall(original, args, n, kwnames);
  PyErr_SetString(PyExc_RuntimeError, kRefusedWarning);
  return nullptr;
}
PyMethodDef method = {"warn", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Warn)),
                      METH_FASTCALL | METH_KEYWORDS, nullptr};

bool Enter() {
  if (!own) {
    Ref m(Import("warnings"));
    name = PyUnicode_InternFromString("warn");
    module_dict = m ? Py_XNewRef(PyModule_GetDict(m.get())) : nullptr;
    own = module_dict && name ? PyCFunction_New(&method, nullptr) : nullptr;
  }
  PyObject* now = own ? PyDict_GetItem(module_dict, name) : nullptr;
  if (!now) return false;
  if (now != own) {
    Py_XSETREF(original, Py_NewRef(now));
    if (PyDict_SetItem(module_dict, name, own) < 0) return false;
  }
  ++users;
  ++inside;
  return true;
}

void Leave() {
  --inside;
  if (--users || PyDict_GetItem(module_dict, name) != own) return;
  PyDict_SetItem(module_dict, name, original);
}

}  // namespace warn

NumpyRaises::NumpyRaises() {
  warns_ = warn::Enter();
  if (!warns_) PyErr_Clear();
  std::optional<State> s = Current();
  const int traps = s ? Traps(s->mask) : 0;
  if (!traps || s->buffer_size != 8192) return;
  static PyObject* capsules[16];
  PyObject*& capsule = capsules[traps];
  if (!capsule) capsule = Make(TheAccess().make, traps, 8192);
  if (capsule) token_ = PyContextVar_Set(TheAccess().variable, capsule);
  if (!token_) PyErr_Clear();
}

NumpyRaises::~NumpyRaises() {
  if (!token_ && !warns_) return;
  SavedError saved;
  if (warns_) warn::Leave();
  if (!token_) return;
  if (!ResetNumpyState(token_)) PyErr_Clear();
  Py_DECREF(token_);
}

}  // namespace framejit::tensor
