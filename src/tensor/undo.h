// A run that ends early is run again in Python from its start. So what it has written by then is put back, and so are
// the states of random generators that it has drawn from.
#pragma once

#include <vector>

#include "tensor/ref.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

struct UndoPlan {
  std::vector<int> written;  // inputs that the run writes before something of it can fail
  bool random = false;       // the run draws from torch's own generators
  bool torch = false;
  std::vector<int> gpus;  // the GPUs whose generators it draws from
  bool needed() const { return random || !written.empty(); }
};

// direct: the framework's calls write the inputs as they come; otherwise writes are committed last. fails: calls may
// fail because of the values that tensors hold.
UndoPlan PlanUndo(const Trace& trace, bool direct, bool fails);

// target[...] = value, without gradients. False with an exception set. counted: the target's version counter goes up.
bool Overwrite(PyObject* target, PyObject* value, bool counted = true);

class Undo {
 public:
  // Copies what the plan says. If that fails, no exception is set and Restore returns false.
  Undo(const UndoPlan& plan, PyObject* const* inputs);
  // Puts everything back as it was at the beginning. False: that is not possible. A pending exception stays pending.
  bool Restore();

 private:
  struct Written {
    PyObject* input;
    bool tracked;
    Ref copy;
  };
  std::vector<Written> written_;
  std::vector<std::pair<Ref, Ref>> generators_;  // With each, its state at the beginning.
  bool torch_, ok_ = true;
};

}  // namespace framejit::tensor
