// Leaves that torch.autocast casts in a region that was entered outside of what is compiled.
#pragma once

#include <optional>

#include "capture/session.h"

namespace framejit::capture {

struct LeafCast {
  PyObject* leaf;  // borrowed
  int input;
  DType to;
  // Nothing: torch keeps no cast of it, since it is no leaf from outside (which is guarded), or none is known.
  static std::optional<LeafCast> Of(Session& s, PyObject* tensor, PyObject* type);
  // What torch has for it, and what that is. Null after a Break.
  PyObject* Now(Session& s, TensorMeta* meta, uint64_t* key_set) const;
  bool Fits(Session& s, const TensorMeta& cast) const;  // False (Break): torch has cast it to another type.
};

// Takes the casts of leaves for the operands of a call. False after a Break.
bool TakeCasts(Session& s, Call& call);

}  // namespace framejit::capture
