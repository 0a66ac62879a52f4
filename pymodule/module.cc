// _framejit: what the Python files of the package may call. Contract: pymodule/framejit/_framejit.pyi.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "capture/backends.h"
#include "capture/estimate.h"
#include "capture/events.h"
#include "capture/explain.h"
#include "capture/graph_object.h"
#include "capture/meter.h"
#include "capture/outcomes.h"
#include "capture/override.h"
#include "capture/policy/background.h"
#include "capture/policy/compiled_function.h"
#include "capture/proxy.h"
#include "diag/diag.h"
#include "framejit/compile.h"
#include "interface_name.h"
#include "runtime/step_times.h"
#include "tensor/autograd.h"
#include "tensor/import.h"
#include "tensor/profiler.h"
#include "tensor/tensor.h"

namespace framejit::frame {
void AddFrameTestFunctions(PyObject* module);
}
namespace framejit::guard {
void AddGuardTestFunctions(PyObject* module);
}
namespace framejit::tensor {
void AddTensorTestFunctions(PyObject* module);
}

namespace framejit {

extern const char FRAMEJIT_INTERFACE;

namespace {

// Only its address is wanted: the loader must find it (src/interface.cc).
[[gnu::used]] const char* const kInterface = &FRAMEJIT_INTERFACE;

using capture::Ref;

PyObject* Str(const std::string& s) {
  return PyUnicode_DecodeUTF8(s.data(), s.size(), "replace");
}

PyObject* Strings(const std::vector<std::string>& v) {
  PyObject* list = PyList_New(v.size());
  for (size_t i = 0; list && i < v.size(); ++i) PyList_SET_ITEM(list, i, Str(v[i]));
  return list;
}

PyObject* CompileFunction(PyObject*, PyObject* args) {
  PyObject *fn, *options, *identity = nullptr;
  if (!PyArg_ParseTuple(args, "OO!|O", &fn, &PyDict_Type, &options, &identity)) return nullptr;
  return capture::NewCompiledFunction(fn, options, identity);
}

PyObject* CallEager(PyObject*, PyObject* args) {
  PyObject *fn, *fargs, *fkw;
  if (!PyArg_ParseTuple(args, "OO!O!", &fn, &PyTuple_Type, &fargs, &PyDict_Type, &fkw)) return nullptr;
  capture::SuspendScope off;
  return PyObject_Call(fn, fargs, fkw);
}

PyObject* IsCompiling(PyObject*, PyObject*) {
  return PyBool_FromLong(capture::Capturing());
}

PyObject* Reset(PyObject*, PyObject*) {
  capture::ResetAll();
  ClearKernelCache();
  Py_RETURN_NONE;
}

// NumPy imports what its methods stand on when they are first called. Where compiled code alone was run they never
// were, and destructors that call them at the end can import nothing any more.
void CallNumpysMethods() {
  Ref name(PyUnicode_FromString("numpy")), numpy(name ? PyImport_GetModule(name.get()) : nullptr);
  Ref ones(numpy ? PyObject_CallMethod(numpy.get(), "ones", "i", 1) : nullptr);
  for (const char* method : {"sum", "prod", "max", "min", "any", "all", "mean", "var", "std"})
    if (ones) Ref(PyObject_CallMethod(ones.get(), method, nullptr));
  PyErr_Clear();
}

PyObject* EndAll(PyObject*, PyObject*) {
  capture::EndCompilations();
  CallNumpysMethods();
  capture::EndAll();
  Py_RETURN_NONE;
}

PyObject* Synchronize(PyObject*, PyObject*) {
  for (bool done = false; !done;) {
    constexpr double kSlice = 0.05;  // seconds, then Ctrl-C is heard
    Py_BEGIN_ALLOW_THREADS;
    done = capture::WaitForCompilations(kSlice);
    Py_END_ALLOW_THREADS;
    if (PyErr_CheckSignals() < 0) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* OptionTable(PyObject*, PyObject*) {
  Ref list(PyList_New(0));
  for (auto& o : diag::Options()) {
    Ref row(Py_BuildValue("(ssCss)", o.field, o.env, o.type, o.default_value, o.help));
    if (!row || PyList_Append(list.get(), row.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* GetOption(PyObject*, PyObject* name) {
  const char* field = PyUnicode_AsUTF8(name);
  if (!field) return nullptr;
  try {
    return Str(diag::GetOption(field));
  } catch (const std::exception& e) {
    return PyErr_SetString(PyExc_KeyError, e.what()), nullptr;
  }
}

PyObject* SetOption(PyObject*, PyObject* args) {
  const char *field, *value;
  if (!PyArg_ParseTuple(args, "ss", &field, &value)) return nullptr;
  try {
    diag::SetOption(field, value);
  } catch (const std::exception& e) {
    return PyErr_SetString(PyExc_ValueError, e.what()), nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* NormalOption(PyObject*, PyObject* args) {
  const char *field, *value;
  if (!PyArg_ParseTuple(args, "ss", &field, &value)) return nullptr;
  try {
    return Str(diag::NormalOption(field, value));
  } catch (const std::exception& e) {
    return PyErr_SetString(PyExc_ValueError, e.what()), nullptr;
  }
}

PyObject* CheckEnvironment(PyObject*, PyObject*) {
  return Str(diag::CheckEnvironment());
}

PyObject* Breaks(PyObject*, PyObject*) {
  Ref list(PyList_New(0));
  for (auto& b : diag::AllBreaks()) {
    Ref row(Py_BuildValue("(ssss)", b.id, b.message, b.explanation, b.hint));
    if (!row || PyList_Append(list.get(), row.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* KernelCache(PyObject*, PyObject*) {
  KernelCacheInfo i = GetKernelCacheInfo();
  return Py_BuildValue("{s:L,s:L,s:L,s:d,s:L,s:L}", "kernels", (long long)i.kernels, "hits", (long long)i.hits,
                       "misses", (long long)i.misses, "compile_seconds", i.compile_seconds, "code_bytes",
                       (long long)i.code_bytes, "prepared_bytes", (long long)i.prepared_bytes);
}

capture::Compiled* CompiledOf(PyObject* function) {
  if (Py_TYPE(function) == &capture::CompiledFunctionType) return &capture::CompiledOf(function);
  PyErr_SetString(PyExc_TypeError, "expected a CompiledFunction");
  return nullptr;
}

PyObject* ExplainBegin(PyObject*, PyObject* function) {
  capture::Compiled* c = CompiledOf(function);
  if (!c) return nullptr;
  capture::BeginExplained(*c);
  Py_RETURN_NONE;
}

PyObject* ExplainData(PyObject*, PyObject* function) {
  capture::Compiled* c = CompiledOf(function);
  if (!c) return nullptr;
  const capture::Explained e = capture::Explain(*c);
  return Py_BuildValue("{s:n,s:n,s:L,s:N,s:N,s:N,s:N,s:N}", "graph_count", (Py_ssize_t)e.graphs.size(),
                       "graph_break_count", (Py_ssize_t)e.breaks.size(), "op_count", (long long)e.op_count,
                       "break_reasons", Strings(e.breaks), "graphs", Strings(e.graphs), "guards", Strings(e.guards),
                       "notes", Strings(c->notes), "early_ends", capture::EarlyEndsDict(*c->outcomes, true));
}

PyObject* TimeSteps(PyObject*, PyObject* on) {
  runtime::TimeEveryRun(PyObject_IsTrue(on) == 1);
  Py_RETURN_NONE;
}

PyObject* StepTimes(PyObject*, PyObject*) {
  std::vector<runtime::StepTime> times;
  Py_BEGIN_ALLOW_THREADS;
  times = runtime::TakeStepTimes(true);
  Py_END_ALLOW_THREADS;
  Ref list(PyList_New(0));
  if (!list) return nullptr;
  for (const runtime::StepTime& t : times) {
    Ref row(Py_BuildValue("(NNssdddd)", Str(t.plan), Str(t.step), t.kind.c_str(), t.device.c_str(), t.runs, t.seconds,
                          t.bytes, t.flops));
    if (!row || PyList_Append(list.get(), row.get()) < 0) return nullptr;
  }
  return list.release();
}

// What was measured so far is the parent's alone.
void BeforeFork() {
  capture::ReportTimes();
  capture::PauseCompilations();
}

PyObject* Doctor(PyObject*, PyObject*) {
  Ref list(PyList_New(0));
  auto add = [&](const std::string& k, const std::string& v) {
    Ref row(Py_BuildValue("(NN)", Str(k), Str(v)));
    return row && PyList_Append(list.get(), row.get()) == 0;
  };
  const char* hook = frame::HookUnavailable();
  if (!add("frame hook", hook ? std::string("not usable: ") + hook : "usable")) return nullptr;
  for (auto& [k, v] : tensor::Doctor())
    if (!add(k, v)) return nullptr;
  return list.release();
}

PyObject* SetStance(PyObject*, PyObject* name) {
  const char* n = PyUnicode_AsUTF8(name);
  if (!n) return nullptr;
  static const std::pair<const char*, capture::Stance> names[] = {
      {"default", capture::Stance::kDefault},
      {"force_eager", capture::Stance::kForceEager},
      {"eager_on_recompile", capture::Stance::kEagerOnRecompile},
      {"fail_on_recompile", capture::Stance::kFailOnRecompile}};
  for (auto& [text, s] : names)
    if (!strcmp(n, text)) {
      capture::SetStance(s);
      Py_RETURN_NONE;
    }
  return PyErr_Format(PyExc_ValueError, "unknown stance %R", name);
}

PyObject* RegisterBackend(PyObject*, PyObject* args) {
  const char* name;
  PyObject* fn;
  if (!PyArg_ParseTuple(args, "sO", &name, &fn)) return nullptr;
  capture::RegisterBackend(name, fn);
  Py_RETURN_NONE;
}

PyObject* SameLayout(PyObject*, PyObject* columns) {
  return PyBool_FromLong(tensor::SameLayout(columns));
}

PyObject* TellEvent(PyObject*, PyObject* args) {
  const char* kind;
  PyObject *fields, *name, *value;
  if (!PyArg_ParseTuple(args, "sO!", &kind, &PyDict_Type, &fields)) return nullptr;
  std::vector<std::pair<std::string_view, std::string>> all;
  for (Py_ssize_t at = 0; PyDict_Next(fields, &at, &name, &value);) {
    const char *field = PyUnicode_AsUTF8(name), *text = PyUnicode_AsUTF8(value);
    if (!field || !text) return nullptr;
    all.emplace_back(field, text);
  }
  diag::Event(kind, all);
  Py_RETURN_NONE;
}

template <void (*kDo)()>
PyObject* Call(PyObject*, PyObject*) {
  kDo();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"compile_function", CompileFunction, METH_VARARGS, nullptr},
    {"call_eager", CallEager, METH_VARARGS, nullptr},
    {"same_layout", SameLayout, METH_O, nullptr},
    {"is_compiling", IsCompiling, METH_NOARGS, "False; True in code that is being captured."},
    {"reset", Reset, METH_NOARGS, nullptr},
    {"synchronize", Synchronize, METH_NOARGS, nullptr},
    {"pause_compilations", Call<BeforeFork>, METH_NOARGS, nullptr},
    {"resume_compilations", Call<capture::ResumeCompilations>, METH_NOARGS, nullptr},
    {"restart_compilations", Call<capture::RestartCompilations>, METH_NOARGS, nullptr},
    {"end_all", EndAll, METH_NOARGS, nullptr},
    {"options", OptionTable, METH_NOARGS, nullptr},
    {"get_option", GetOption, METH_O, nullptr},
    {"set_option", SetOption, METH_VARARGS, nullptr},
    {"normal_option", NormalOption, METH_VARARGS, nullptr},
    {"check_environment", CheckEnvironment, METH_NOARGS, nullptr},
    {"breaks", Breaks, METH_NOARGS, nullptr},
    {"kernel_cache_info", KernelCache, METH_NOARGS, nullptr},
    {"explain_begin", ExplainBegin, METH_O, nullptr},
    {"explain_data", ExplainData, METH_O, nullptr},
    {"estimate", capture::EstimateCall, METH_VARARGS, nullptr},
    {"event", TellEvent, METH_VARARGS, nullptr},
    {"time_steps", TimeSteps, METH_O, nullptr},
    {"step_times", StepTimes, METH_NOARGS, nullptr},
    {"doctor", Doctor, METH_NOARGS, nullptr},
    {"set_stance", SetStance, METH_O, nullptr},
    {"tell_of_classes", capture::TellOfClasses, METH_O, nullptr},
    {"set_observer", capture::SetObserver, METH_O, nullptr},
    {"register_backend", RegisterBackend, METH_VARARGS, nullptr},
    {"add_rows", tensor::AddRows, METH_VARARGS, nullptr},
    {"depthwise_weight_gradient", tensor::DepthwiseWeightGradient, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "framejit._framejit", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

// Lines of what no file holds: cells of notebooks, code that is made of text.
std::string LineOf(const std::string& file, int line) {
  const PyGILState_STATE state = PyGILState_Ensure();
  std::string text;
  {
    tensor::SavedError saved;
    capture::SuspendScope off;
    Ref linecache(tensor::Import("linecache"));
    Ref found(linecache ? PyObject_CallMethod(linecache.get(), "getline", "si", file.c_str(), line) : nullptr);
    const char* bytes = found && PyUnicode_Check(found.get()) ? PyUnicode_AsUTF8(found.get()) : nullptr;
    if (bytes) text = bytes;
    PyErr_Clear();
  }
  PyGILState_Release(state);
  return text;
}

bool HandleForks(PyObject* module) {
  Ref os(PyImport_ImportModule("os")), add(os ? PyObject_GetAttrString(os.get(), "register_at_fork") : nullptr);
  Ref before(PyObject_GetAttrString(module, "pause_compilations")),
      parent(PyObject_GetAttrString(module, "resume_compilations")),
      child(PyObject_GetAttrString(module, "restart_compilations"));
  if (!add || !before || !parent || !child) return false;
  Ref functions(Py_BuildValue("{s:O,s:O,s:O}", "before", before.get(), "after_in_parent", parent.get(),
                              "after_in_child", child.get()));
  Ref none(PyTuple_New(0));
  return functions && none && Ref(PyObject_Call(add.get(), none.get(), functions.get()));
}

PyObject* Init() {
  if (!capture::ReadyProxies() || !capture::ReadyCompiledFunction() || !capture::ReadyGraphObject()) return nullptr;
  PyObject* m = PyModule_Create(&module);
  if (!m) return nullptr;
  PyModule_AddObject(m, "CompiledFunction", Py_NewRef(reinterpret_cast<PyObject*>(&capture::CompiledFunctionType)));
  capture::InstallPolicy();
  diag::SetSourceReader(LineOf);
  runtime::step_listener.begin = tensor::BeginRange;
  runtime::step_listener.end = tensor::EndRange;
  Py_AtExit(&capture::ReportRuns);
  Ref atexit(PyImport_ImportModule("atexit")), end(PyObject_GetAttrString(m, "end_all"));
  Ref registered(atexit && end ? PyObject_CallMethod(atexit.get(), "register", "O", end.get()) : nullptr);
  if (!registered || !HandleForks(m)) return nullptr;
  frame::AddFrameTestFunctions(m);
  guard::AddGuardTestFunctions(m);
  tensor::AddTensorTestFunctions(m);
  std::string problem = diag::CheckEnvironment();
  if (!problem.empty()) diag::Warn("framejit: " + problem);
  return m;
}

}  // namespace
}  // namespace framejit

PyMODINIT_FUNC PyInit__framejit() {  // NOLINT(bugprone-reserved-identifier): the name that CPython looks for
  return framejit::Init();
}
