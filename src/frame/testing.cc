// This policy has no opinion but where to stop. Frames of one code object run n instructions here and then in CPython.
// With a seed, three quarters of all frames do, and n is random. The modes: "step" asks before every instruction, "run"
// uses RunLinked, "raise" raises ValueError at the n-th instruction, "override" takes the Override path (generators
// included), "abandon" breaks out of everything at the n-th global.
#include "frame/testing.h"

#include <cstring>
#include <unordered_map>
#include <utility>

#include "bytecode/code.h"
#include "frame/driver.h"
#include "frame/recorder.h"

namespace framejit::frame {
namespace {

enum class Mode { kStep, kRun, kRaise, kOverride, kAbandon };

class Sweep : public FramePolicy, private ConcreteSemantics {
 public:
  Sweep(PyObject* code, long n, Mode mode, unsigned long long seed)
      : code_(Py_NewRef(code)),
        n_(n),
        mode_(mode),
        seed_(seed),
        random_(88172645463325252ULL * (2 * seed + 1)),
        unlimited_(mode == Mode::kAbandon || (n >= 1000000000 && !seed)) {}
  ~Sweep() override { Py_DECREF(code_); }

  bool Wants(FjFrame* frame) override {
    if (mode_ >= Mode::kOverride || !Selected(frame)) return false;
    left_[frame] = Length();
    return true;
  }

  Semantics* Override(FjFrame* frame) override {
    if (mode_ < Mode::kOverride || !Selected(frame)) return nullptr;
    left_[frame] = Length();
    return this;
  }

  Action At(FjFrame* frame, PyObject** result) override {
    if (mode_ == Mode::kStep) {
      ++steps;
      return unlimited_ || left_[frame]-- > 0 ? Action::kStep : Action::kHandOver;
    }
    if (mode_ == Mode::kRaise) {
      ++steps;
      if (n_-- != 0) return Action::kStep;
      PyErr_SetString(PyExc_ValueError, "swept");
      return Action::kRaise;
    }
    int index;
    switch (RunLinked(frame, *this, -1, &index, result)) {
      case Outcome::kReturned: return Action::kReturn;
      case Outcome::kRaised: return Action::kUnwound;
      default: return Action::kHandOver;
    }
  }

  long steps = 0;

 private:
  bool Before(FjFrame* frame, int) override {
    ++steps;
    return unlimited_ || left_[frame]-- > 0;
  }
  bool MayHandle() override { return !broken_; }
  bool MayHandOver(FjFrame*, int) override { return !broken_; }
  PyObject* LoadGlobal(PyObject* globals, PyObject* builtins, PyObject* name) override {
    if (mode_ == Mode::kAbandon && n_-- == 0) {
      broken_ = true;
      PyErr_SetString(PyExc_BaseException, "abandoned");
      return nullptr;
    }
    return ConcreteSemantics::LoadGlobal(globals, builtins, name);
  }

  bool Selected(FjFrame* frame) {
    if (seed_) return (Random() & 3) != 0;
    return code_ == Py_None || reinterpret_cast<PyObject*>(fj_code(frame)) == code_;
  }
  long Length() { return seed_ ? Random() % 60 : n_; }
  unsigned Random() {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    return static_cast<unsigned>(random_ >> 11);
  }

  PyObject* code_;
  long n_;
  Mode mode_;
  unsigned long long seed_, random_;
  bool unlimited_;
  bool broken_ = false;
  std::unordered_map<FjFrame*, long> left_;
};

Sweep* sweep = nullptr;  // never freed: frames of a finished sweep may still be running, and Python may be gone at exit
HookScope* scope = nullptr;
FramePolicy* previous = nullptr;  // whose place the sweep took
DriverStats before;

PyObject* Install(FramePolicy* policy) {
  bool running = scope != nullptr;
  if (!scope) scope = new HookScope();
  if (!scope->active()) {
    delete std::exchange(scope, nullptr);
    return PyErr_Format(PyExc_RuntimeError, "%s", HookUnavailable());
  }
  FramePolicy* replaced = SetPolicy(policy);
  if (!running) previous = replaced;
  Py_RETURN_NONE;
}

PyObject* StartSweep(PyObject*, PyObject* args) {
  PyObject* code;
  long n;
  const char* mode;
  unsigned long long seed = 0;
  if (!PyArg_ParseTuple(args, "Ols|K", &code, &n, &mode, &seed)) return nullptr;
  static const char* const kModes[] = {"step", "run", "raise", "override", "abandon"};
  int m = 0;
  while (m < 5 && std::strcmp(kModes[m], mode)) ++m;
  if (m == 5 || (code != Py_None && !PyCode_Check(code))) return PyErr_Format(PyExc_ValueError, "code, n, mode, seed");
  sweep = new Sweep(code, n, static_cast<Mode>(m), seed);
  before = Stats();
  return Install(sweep);
}

// Never freed either.
PyObject* StartRecord(PyObject*, PyObject* list) {
  if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "a list is needed");
  return Install(NewRecorder(list));
}

PyObject* StopSweep(PyObject*, PyObject*) {
  if (scope) SetPolicy(std::exchange(previous, nullptr));
  delete std::exchange(scope, nullptr);
  const DriverStats& s = Stats();
  return Py_BuildValue("{s:l,s:l,s:l,s:l,s:l}", "frames", s.frames - before.frames, "hand_overs",
                       s.hand_overs - before.hand_overs, "raised", s.raised - before.raised, "returned",
                       s.returned - before.returned, "steps", sweep ? sweep->steps : 0L);
}

PyObject* Unavailable(PyObject*, PyObject*) {
  const char* why = HookUnavailable();
  return why ? PyUnicode_FromString(why) : Py_NewRef(Py_None);
}

PyObject* Decode(PyObject*, PyObject* object) {
  if (!PyCode_Check(object)) return PyErr_Format(PyExc_TypeError, "a code object is needed");
  const bytecode::Code* code = bytecode::Code::Of(reinterpret_cast<PyCodeObject*>(object));
  PyObject* list = code ? PyList_New(0) : nullptr;
  for (int at = 0; list && at < code->size(); at += code->At(at).length) {
    const bytecode::Instr& i = code->At(at);
    const bytecode::Handler* h = code->FindHandler(i.unit);
    PyObject* row = Py_BuildValue("(isiiiiii)", at, bytecode::Name(i.op), i.arg, int(i.flag), i.target, int(i.length),
                                  i.unit, h ? h->target : -1);
    if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}

PyObject* GetLocation(PyObject*, PyObject* args) {
  PyObject* code;
  int unit;
  if (!PyArg_ParseTuple(args, "O!i", &PyCode_Type, &code, &unit)) return nullptr;
  bytecode::Location at = bytecode::LocationOf(reinterpret_cast<PyCodeObject*>(code), unit);
  return Py_BuildValue("(iiii)", at.line, at.end_line, at.column, at.end_column);
}

PyMethodDef kFunctions[] = {
    {"frame_sweep", StartSweep, METH_VARARGS, "frame_sweep(code_or_None, n, mode, seed=0)"},
    {"frame_sweep_off", StopSweep, METH_NOARGS, "counters since frame_sweep"},
    {"frame_record", StartRecord, METH_O, "appends what frames read to a list, until frame_sweep_off"},
    {"frame_unavailable", Unavailable, METH_NOARGS, "None, or why frames cannot be intercepted"},
    {"frame_decode", Decode, METH_O,
     "(unit, name, arg, flag, target, length, reporting unit, handler) of every instruction"},
    {"frame_location", GetLocation, METH_VARARGS, "(line, end line, column, end column) of an instruction"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int AddFrameTestFunctions(PyObject* module) {
  return PyModule_AddFunctions(module, kFunctions);
}

}  // namespace framejit::frame
