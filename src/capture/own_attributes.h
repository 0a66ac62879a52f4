// The attributes that tensors were given in a capture (PendingEffects::attributes). Where the program has asked for the
// __dict__ of one that has none yet, all of them but its class are in a private dict, which stands under that name.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

PyObject* DictMade(const PendingEffects& pending, TraceId id);  // that dict, borrowed, or null
// The __dict__ of a tensor, a new reference. That of an input is the real one, whose writes wait.
PyObject* TensorDict(Session& s, PyObject* proxy);

// Was an object that the capture made given a __dict__ from outside? Its attributes are then read with guards, and
// stores to them wait.
bool HasOutsideDict(Session& s, PyObject* made);

// Calls f(tensor, name, value) for each attribute.
template <typename F>
void EachAttribute(const PendingEffects& pending, F&& f) {
  for (const auto& [id, own] : pending.attributes)
    for (const auto& [name, value] : own) {
      PyObject *key, *item;
      if (PyUnicode_CompareWithASCIIString(name.get(), "__dict__"))
        f(id, name.get(), value.get());
      else
        for (Py_ssize_t at = 0; PyDict_Next(value.get(), &at, &key, &item);) f(id, key, item);
    }
}

}  // namespace framejit::capture
