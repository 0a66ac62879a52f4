// A run that ends early is run again in Python from its start: what it has written and drawn by then is taken back.
#pragma once

#include <vector>

#include "tensor/ref.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

struct UndoPlan {
  std::vector<int> written;  // inputs that the run writes before something of it can fail
  bool random = false;       // it draws from torch's own generators
  bool torch = false;
  std::vector<int> gpus;  // whose generators
  bool needed() const { return random || !written.empty(); }
};

// direct: the framework's calls write the inputs as they come (else writes are committed last). fails: calls may fail
// for what tensors hold.
UndoPlan PlanUndo(const Trace& trace, bool direct, bool fails);

// target[...] = value, without gradients. False with the exception.
// counted: its version tells of it.
bool Overwrite(PyObject* target, PyObject* value, bool counted = true);

class Undo {
 public:
  Undo(const UndoPlan& plan, PyObject* const* inputs);  // takes copies; without an exception set if that fails
  // Everything is as it was at the beginning. False: not possible. Keeps the pending exception.
  bool Restore();

 private:
  struct Written {
    PyObject* input;
    bool tracked;
    Ref copy;
  };
  std::vector<Written> written_;
  std::vector<std::pair<Ref, Ref>> generators_;  // generator, its state
  bool torch_, ok_ = true;
};

}  // namespace framejit::tensor
