// A Python module for tests (lookups.py): breakpoints on the functions by which CPython looks something up, so that
// reads are seen whoever makes them, C code too. Linux on x86-64.
//
// A breakpoint is an int3 over the first byte of a function. The handler of SIGTRAP notes the arguments if they concern
// a watched object, puts the byte back, and lets the processor run one instruction; the trap behind that one sets the
// breakpoint again. Other threads may pass a breakpoint unseen in that moment.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <signal.h>
#include <structmember.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <unordered_set>
#include <vector>

namespace {

constexpr greg_t kTrapFlag = 0x100;
constexpr uint8_t kInt3 = 0xCC;
constexpr int kArguments[] = {REG_RDI, REG_RSI, REG_RDX, REG_RCX};
constexpr size_t kMost = 1 << 16;

enum class KeyKind { kNone, kObject, kMember };  // what the key argument is: nothing, an object, a PyMemberDef

struct Breakpoint {
  uint8_t* at;
  uint8_t original;
  int subject, key;  // numbers of arguments
  KeyKind kind;
};

struct Event {
  int breakpoint;
  uintptr_t subject;
  void* key;
  uintptr_t caller;
  bool operator==(const Event&) const = default;
};

std::vector<Breakpoint> breakpoints;
std::unordered_set<uintptr_t> watched;
Event events[kMost];
size_t count = 0, lost = 0;
size_t seen[4096];  // 1 + the number of an event, by its hash: most reads are made again and again
struct sigaction before;
thread_local const Breakpoint* stepping = nullptr;  // whose first instruction runs now

void Note(const Breakpoint& b, const greg_t* registers) {
  const auto subject = static_cast<uintptr_t>(registers[kArguments[b.subject]]);
  if (!watched.contains(subject)) return;
  void* key = b.kind == KeyKind::kNone ? nullptr : reinterpret_cast<void*>(registers[kArguments[b.key]]);
  const Event event{static_cast<int>(&b - breakpoints.data()), subject, key,
                    *reinterpret_cast<const uintptr_t*>(registers[REG_RSP])};
  size_t& last =
      seen[(subject / 16 * 31 + reinterpret_cast<uintptr_t>(key) / 8 * 7 + event.breakpoint + event.caller) % 4096];
  if (last && events[last - 1] == event) return;
  if (count == kMost) {
    ++lost;
    return;
  }
  if (b.kind == KeyKind::kObject && key) Py_INCREF(reinterpret_cast<PyObject*>(key));
  events[count++] = event;
  last = count;
}

void OnTrap(int number, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (stepping) {
    *stepping->at = kInt3;
    stepping = nullptr;
    registers[REG_EFL] &= ~kTrapFlag;
    return;
  }
  auto* at = reinterpret_cast<uint8_t*>(registers[REG_RIP] - 1);
  auto b = std::find_if(breakpoints.begin(), breakpoints.end(), [&](const Breakpoint& b) { return b.at == at; });
  if (b == breakpoints.end()) {  // somebody else's
    sigaction(number, &before, nullptr);
    return;
  }
  for (auto same = b; same != breakpoints.end(); ++same)
    if (same->at == at) Note(*same, registers);
  *at = b->original;
  stepping = &*b;
  registers[REG_RIP] -= 1;
  registers[REG_EFL] |= kTrapFlag;
}

bool Protect(const Breakpoint& b, int how) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return !mprotect(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(b.at) / page * page), page, how);
}

void Remove() {
  for (const Breakpoint& b : breakpoints) *b.at = b.original;
  for (const Breakpoint& b : breakpoints) Protect(b, PROT_READ | PROT_EXEC);
  sigaction(SIGTRAP, &before, nullptr);
}

// arm([(address, subject, key, kind of key)], [id of a watched object])
PyObject* Arm(PyObject*, PyObject* args) {
  PyObject *rows, *ids;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &rows, &PyList_Type, &ids)) return nullptr;
  if (!breakpoints.empty()) return PyErr_Format(PyExc_RuntimeError, "breakpoints are set already");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ids); ++i) watched.insert(PyLong_AsSize_t(PyList_GET_ITEM(ids, i)));
  std::vector<Breakpoint> wanted;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(rows); ++i) {
    unsigned long long address;
    int subject, key, kind;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(rows, i), "Kiii", &address, &subject, &key, &kind)) return nullptr;
    auto* at = reinterpret_cast<uint8_t*>(address);
    wanted.push_back({at, *at, subject, key, static_cast<KeyKind>(kind)});
  }
  if (PyErr_Occurred()) return nullptr;
  for (const Breakpoint& b : wanted)
    if (!Protect(b, PROT_READ | PROT_WRITE | PROT_EXEC)) return PyErr_SetFromErrno(PyExc_OSError);
  breakpoints = std::move(wanted);
  struct sigaction action = {};
  action.sa_sigaction = OnTrap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, &before);
  for (const Breakpoint& b : breakpoints) *b.at = kInt3;
  Py_RETURN_NONE;
}

// disarm() -> ([(number of the row, id, key, address of the caller)], how many found no place)
PyObject* Disarm(PyObject*, PyObject*) {
  if (breakpoints.empty()) return PyErr_Format(PyExc_RuntimeError, "no breakpoints are set");
  Remove();
  PyObject* list = PyList_New(0);
  for (size_t i = 0; i < count; ++i) {
    const Event& e = events[i];
    const KeyKind kind = breakpoints[e.breakpoint].kind;
    PyObject* key = kind == KeyKind::kObject && e.key ? reinterpret_cast<PyObject*>(e.key)
                    : kind == KeyKind::kMember        ? PyUnicode_FromString(static_cast<PyMemberDef*>(e.key)->name)
                                                      : Py_NewRef(Py_None);
    PyObject* row = key ? Py_BuildValue("(iKNK)", e.breakpoint, static_cast<unsigned long long>(e.subject), key,
                                        static_cast<unsigned long long>(e.caller))
                        : nullptr;
    if (!row || !list || PyList_Append(list, row) < 0) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  const size_t without_place = lost;
  breakpoints.clear();
  watched.clear();
  count = lost = 0;
  std::fill(std::begin(seen), std::end(seen), 0);
  return list ? Py_BuildValue("(Nn)", list, static_cast<Py_ssize_t>(without_place)) : nullptr;
}

// image() -> (file of the interpreter's code, where it lies in memory)
PyObject* Image(PyObject*, PyObject*) {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&PyType_IsSubtype), &info)) return PyErr_Format(PyExc_OSError, "no such image");
  return Py_BuildValue("(sK)", info.dli_fname, reinterpret_cast<unsigned long long>(info.dli_fbase));
}

PyMethodDef functions[] = {{"arm", Arm, METH_VARARGS, nullptr},
                           {"disarm", Disarm, METH_NOARGS, nullptr},
                           {"image", Image, METH_NOARGS, nullptr},
                           {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "breakpoints", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_breakpoints() {
  return PyModule_Create(&module);
}
