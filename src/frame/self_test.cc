// Every field the shims read is compared with what the public API says about a known call.
#include "frame/self_test.h"

#include <cstring>
#include <string>

#include "bytecode/code.h"
#include "frame/slot.h"

namespace framejit::frame {
namespace {

PyObject* probe = nullptr;     // the function
PyObject* argument = nullptr;  // its argument
std::string difference = "calling the frame hook";

const char* Compare(PyThreadState* ts, FjFrame* frame) {
  if (!fj_same_structs()) return "the size of its structs (framejit was compiled for another release of this version)";
  auto* function = reinterpret_cast<PyFunctionObject*>(probe);
  auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  if (fj_function(frame) != probe) return "function of a frame";
  if (fj_globals(frame) != function->func_globals || fj_builtins(frame) != function->func_builtins)
    return "globals of a frame";
  if (fj_nlocalsplus(frame) != 3 || fj_localsplus(frame)[0] != argument || fj_localsplus(frame)[1] ||
      fj_localsplus(frame)[2])
    return "locals of a frame";
  if (fj_stack_depth(frame) != 0 || fj_next(frame) != 0) return "position of a frame";
  const bytecode::Code* decoded = bytecode::Code::Of(code);
  if (!decoded || decoded->first_resume() < 0) return "bytecode";
  PyFrameObject* outer = PyEval_GetFrame();
  FjLink link;
  std::memset(&link, 0, sizeof link);
  if (fj_link(ts, frame, &link) != 0) return "linking a frame";
  const char* wrong = nullptr;
  fj_set_current(frame, decoded->first_resume());
  PyFrameObject* inner = PyEval_GetFrame();
  if (!inner || inner == outer || PyFrame_GetLasti(inner) != 2 * decoded->first_resume()) wrong = "the current frame";
  fj_set_next(frame, 0);
  fj_unlink(ts, frame, &link);
  if (PyEval_GetFrame() != outer) wrong = "unlinking a frame";
  return wrong;
}

PyObject* Evaluate(PyThreadState* ts, FjFrame* frame, int throwflag) {
  if (reinterpret_cast<PyObject*>(fj_code(frame)) == reinterpret_cast<PyFunctionObject*>(probe)->func_code &&
      !throwflag)
    difference = Compare(ts, frame) ? Compare(ts, frame) : "";
  return fj_continue(ts, frame, throwflag);
}

}  // namespace

const char* SelfTest() {
  if (fj_hook_state() == FJ_HOOK_OURS) return "the frame hook is in use";
  PyObject* globals = PyDict_New();
  if (globals) PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins());
  PyObject* made =
      globals ? PyRun_String("def probe(a):\n  b = a\n  c = b\n  return (a, c)\n", Py_file_input, globals, globals)
              : nullptr;
  probe = made ? PyDict_GetItemString(globals, "probe") : nullptr;
  argument = PyLong_FromLong(1234567);
  if (probe && argument) {
    fj_install_hook(Evaluate);
    PyObject* r = PyObject_CallOneArg(probe, argument);
    fj_uninstall_hook();
    bool same = r && PyTuple_Check(r) && PyTuple_GET_ITEM(r, 1) == argument;
    if (difference.empty() && !same) difference = "the result of a call";
    Py_XDECREF(r);
  }
  PyErr_Clear();
  Py_XDECREF(argument);
  Py_XDECREF(made);
  Py_XDECREF(globals);
  if (difference.empty()) return nullptr;
  static const std::string message = "this build of Python differs from the one framejit knows in: " + difference;
  return message.c_str();
}

}  // namespace framejit::frame
