// What a kernel in Python reached when a graph was captured, as guards ask it again: its globals and registries may
// lead to other objects by then.
#pragma once

#include "capture/ref.h"

namespace framejit::guard {
struct Source;
}

namespace framejit::capture {

class Session;

class KernelWatch {
 public:
  // reached: what framejit._kernels.reached gave. It keeps alive only what cannot be referred to weakly.
  struct Reached {
    PyObject *places, *held, *own, *tensors;
    bool writes;  // to tensors
  };
  static Ref Of(PyObject* op, const Reached& reached);
  // Have watches of this operator failed so often that nothing waits behind it any more?
  static bool Moves(PyObject* op);
  // A guard that all that is reached is known.
  static void AddGuard(Session& s, PyObject* watch);
  // A guard that a container is none that is reached; of one that is reached, that it is this one.
  static void AddUnreached(Session& s, PyObject* watch, const guard::Source* source, PyObject* owner);
  // A guard that an input shares no memory with what is reached, unless it does so now.
  static void AddApart(Session& s, PyObject* watch, int input);
};

}  // namespace framejit::capture
