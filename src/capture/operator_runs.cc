#include "capture/operator_runs.h"

#include "capture/override.h"
#include "capture/ref.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

struct Answers {
  bool there = false;
  Retry* owner = nullptr;
};
thread_local Answers answers;

// A function of framejit._operators, called while an exception may be set. Is its answer true?
bool Tell(const char* name, PyObject* argument) {
  tensor::SavedError error;
  SuspendScope off;
  static PyObject* const module = tensor::Import("framejit._operators");
  Ref function(module ? PyObject_GetAttrString(module, name) : nullptr);
  Ref answer(!function  ? nullptr
             : argument ? PyObject_CallOneArg(function.get(), argument)
                        : PyObject_CallNoArgs(function.get()));
  if (!answer) PyErr_WriteUnraisable(module);
  return answer.get() == Py_True;
}

}  // namespace

OperatorRun::OperatorRun(bool copies) : open_(true) {
  Tell("begin", copies ? Py_True : Py_False);
}

OperatorRun::~OperatorRun() {
  if (open_) End(false, nullptr);
}

void OperatorRun::End(bool again, Retry* within) {
  open_ = false;
  const bool there = Tell("end", again ? Py_True : Py_False);
  answers = there ? Answers{true, again ? within : answers.owner} : Answers{};
}

void OperatorRun::Adopt(Retry* r) {
  if (Waits()) answers.owner = r;
}

void OperatorRun::Dropped(Retry* r) {
  if (!answers.there || answers.owner != r) return;
  answers = {};
  Tell("drop", nullptr);
}

bool OperatorRun::Waits() {
  return answers.there && !answers.owner;
}

}  // namespace framejit::capture
