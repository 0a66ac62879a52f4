// What the files share that go through containers from outside.
#pragma once

#include "capture/session.h"

namespace framejit::capture {

// The keys of a dict, in the order in which the program goes through them, which an OrderedDict keeps apart from its
// dict. Null: an error.
Ref KeysOf(PyObject* dict);
// dict[key] = value, of an OrderedDict in its own order. Null deletes the item.
int SetIn(PyObject* dict, PyObject* key, PyObject* value);
bool IsPlainDict(PyObject* o);  // a dict, OrderedDict or defaultdict, and no subclass's
// What the program sees of a container that is asked how many items it has. Null after a Break.
PyObject* Counted(Session& s, PyObject* o);
// Is this an index of what an outside list held before all that is appended to it at the exit? It is there as it was.
bool WasThere(Session& s, PyObject* list, PyObject* index);

// Goes one level deeper into nested containers, whose depth is limited because a container may hold itself.
struct Session::Descent {
  explicit Descent(Session& s) : s(s) {
    if (++s.descent_ > 100) s.Break(BreakId::kUnknownOrigin, "containers nested more than 100 deep");
  }
  ~Descent() { --s.descent_; }
  Session& s;
};

}  // namespace framejit::capture
