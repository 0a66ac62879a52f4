#include "capture/guess.h"

#include <algorithm>

#include "capture/override.h"
#include "capture/session.h"
#include "capture/training.h"
#include "diag/diag.h"
#include "tensor/undo.h"

namespace framejit::capture {
namespace {

constexpr int kMost = 16;  // guesses at one place of a graph

// What `tensor` says: True or False, or as an int. Null with an exception.
Ref Ask(PyObject* tensor, bool truth) {
  if (truth) {
    const int r = PyObject_IsTrue(tensor);
    return r < 0 ? Ref() : Borrow(r ? Py_True : Py_False);
  }
  return Ref(PyObject_CallMethod(tensor, "item", nullptr));
}

}  // namespace

int Holds(const Guess& g, PyObject* tensor) {
  Ref now = Ask(tensor, PyBool_Check(g.value.get()));
  return now ? PyObject_RichCompareBool(now.get(), g.value.get(), Py_EQ) : -1;
}

PyObject* Session::GuessValue(TraceId t, bool truth) {
  PyFrameObject* f = PyEval_GetFrame();
  if (!options_.guesses || depth == 0 || broken_ || !f) return nullptr;
  const TensorMeta& m = meta(t);
  truth = truth || IsBool(m.dtype);
  if (!truth && !IsInteger(m.dtype)) return nullptr;
  const bool one = std::all_of(m.sizes.begin(), m.sizes.end(), [](shape::Int n) { return n == shape::Int(1); });
  if (!one || Unguessable()) return nullptr;
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
  const Guesses::Where where{code.get(), PyFrame_GetLasti(f)};
  if (options_.guesses->wrong.contains(where)) return nullptr;
  const auto here = [&](const Guess& g) { return g.code.get() == where.first && g.at == where.second; };
  const int before = static_cast<int>(std::count_if(guesses_.begin(), guesses_.end(), here));
  if (before == kMost) return nullptr;
  auto known = options_.guesses->taken.find({where, before});
  if (known == options_.guesses->taken.end()) {
    Ref value = RunUpTo(t, truth);
    if (!value || !(PyBool_Check(value.get()) || PyLong_CheckExact(value.get()))) return PyErr_Clear(), nullptr;
    known = options_.guesses->taken.emplace(std::pair{where, before}, std::move(value)).first;
    options_.guesses->codes.push_back(Borrow(code.get()));
    Ref text(PyObject_Repr(known->second.get()));
    diag::Log(diag::Channel::perf_, "what data says at " + Where() + " is taken to be " +
                                        (text ? PyUnicode_AsUTF8(text.get()) : "?") + ", and checked after every run");
  }
  guesses_.push_back({t, Borrow(known->second.get()), std::move(code), where.second});
  return Py_NewRef(known->second.get());
}

bool Session::Unguessable() const {
  return WantsGrad(trace_) || tensor::PlanUndo(trace_, true, true).needed();
}

Ref Session::RunUpTo(TraceId t, bool truth) {
  SuspendScope off;
  Trace prefix = trace_;
  prefix.outputs = {t};
  PyObject* out = nullptr;
  int failed = 0;
  try {
    auto runner = tensor::MakeTraceRunner(prefix, constants_);
    if (runner->Run(input_tensors_.data(), env_.hints().data(), &out, &failed) < 0) return {};
  } catch (const std::exception&) {
    return {};
  }
  Ref held(out);
  return Ask(out, truth);
}

}  // namespace framejit::capture
