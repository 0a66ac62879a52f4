// What Python code that runs again later, or only then, would find in objects of the program that may have changed.
#pragma once

#include <vector>

#include "capture/session.h"

namespace framejit::capture {

// Objects made during the capture that can change (containers, instances, cells) and can be reached from `roots`
// through variables of functions, bound objects, items and attributes, with what they hold, in a fixed order: another
// list later says that one of them was changed. Objects from outside are not entered.
struct Reach {
  std::vector<Ref> held;              // Everything that was seen, in order.
  std::vector<PyObject*> changeable;  // Those among them that can change.
  bool outside = false;               // Is a list, dict or set from outside among them?
  bool hidden = false;  // And what holds something that is not looked at: an iterator, a file, an array of objects?
};
Reach ReachFrom(Session& s, const std::vector<PyObject*>& roots);
bool operator==(const Reach& a, const Reach& b);

}  // namespace framejit::capture
