// Outside sets that are asked while calls that change them wait for the exit.
#pragma once

#include <optional>

#include "capture/session.h"

namespace framejit::capture {

// Do the calls that wait for the exit, which add to an outside set and take out of it, say whether `value` is in it?
std::optional<bool> Member(Session& s, PyObject* set, PyObject* value);

// While alive, an outside set is read as it was before such calls, none of which is about `value`.
class AsItWas {
 public:
  AsItWas(Session& s, PyObject* set, PyObject* value);
  ~AsItWas();
  AsItWas(const AsItWas&) = delete;

 private:
  Session& s_;
  PyObject* set_ = nullptr;  // Null where no call waits for it.
};

}  // namespace framejit::capture
