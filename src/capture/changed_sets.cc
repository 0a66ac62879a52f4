#include "capture/changed_sets.h"

#include <cmath>
#include <string_view>
#include <vector>

#include "capture/proxy.h"

namespace framejit::capture {
namespace {

// A number or string, of which it is known whether it is equal to another one. A not-a-number is equal as an object
// alone, and which object it is is not known here.
bool IsPlainKey(PyObject* o) {
  if (PyFloat_CheckExact(o) && std::isnan(PyFloat_AS_DOUBLE(o))) return false;
  return IsPrimitive(o) && !IsSymInt(o) && !IsSymFloat(o);
}

}  // namespace

std::optional<bool> Member(Session& s, PyObject* set, PyObject* value) {
  if (!PySet_CheckExact(set) || !IsPlainKey(value)) return {};
  const std::vector<PendingCall>& calls = s.pending().calls();
  for (auto c = calls.rbegin(); c != calls.rend(); ++c) {
    if (c->args.empty() || c->args[0].get() != set) continue;
    const std::string_view name = PyUnicode_AsUTF8(PyDescr_NAME(c->method.get()));
    if (name == "clear") return false;
    const int same = PyObject_RichCompareBool(c->args[1].get(), value, Py_EQ);
    if (same < 0) return PyErr_Clear(), std::nullopt;
    if (same) return name == "add";
  }
  return {};
}

AsItWas::AsItWas(Session& s, PyObject* set, PyObject* value) : s_(s) {
  Origin* g = PySet_CheckExact(set) && IsPlainKey(value) ? s.Find(set) : nullptr;
  if (!g || !g->changes) return;
  set_ = set;
  g->changes = false;
}

AsItWas::~AsItWas() {
  if (set_) s_.Find(set_)->changes = true;
}

}  // namespace framejit::capture
