// What a program sets of a tensor itself: its memory (`t.data = u`), its gradient, whether it has one, hooks. Inside of
// the graph that makes it another tensor; the object outside is changed at the exit.
#pragma once

#include <string_view>

#include "capture/session.h"

namespace framejit::capture {

// t.data = value, t.grad = value, t.requires_grad = value (null: del). Nothing: another attribute, or it cannot wait.
// False: Break or an exception.
std::optional<bool> SetOfTensor(Session& s, PyObject* tensor, std::string_view name, PyObject* value);
// t.detach_(), t.requires_grad_(), t.retain_grad(), t.register_hook(f), t.unsqueeze_(0) and the like. Null without an
// error: none of them, or it cannot wait.
PyObject* SetByCall(Session& s, Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
// Has a leaf of which these results are made got other memory twice? The framework's derivatives read it with the
// memory that it has last, those of the graph a value for each.
bool ReadsFormerData(Session& s, const std::vector<TraceId>& results);
// Why what waits would not be what the program meant, or these results; empty: it is.
std::string SetTooEarly(Session& s, const std::vector<TraceId>& results);

}  // namespace framejit::capture
