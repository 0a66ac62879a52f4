// What dies where a write that waits for the exit replaces or removes it: an object whose end the program sees must end
// in its place, so that nothing may wait.
#pragma once

#include <vector>

#include "capture/ref.h"

namespace framejit::guard {
class GuardBuilder;
struct Source;
}  // namespace framejit::guard

namespace framejit::capture {

class Session;

inline constexpr const char kSeenToDie[] = "a write that drops an object whose end is seen";

bool HasDestructor(PyObject* o);
// Is the key, of a write to this object, a slot of its class? It may be a dict, too.
bool IsSlotOf(PyObject* o, PyObject* key);
// Does nobody see that a container lets go of this object, nor of what it alone holds: no destructor, no callback?
bool DropsQuietly(PyObject* o);
// Of an item of a dict, an attribute of a class, a slot (by its descriptor), a variable, or (a null key) of all items
// of a list, set or deque.
bool DropsQuietly(PyObject* container, PyObject* key);
// The same as a guard.
void GuardDrop(guard::GuardBuilder& guards, const guard::Source* container, PyObject* key);
bool TakeSeenDrop();  // Has such a guard failed since this was asked, and no other held behind it?
// Of each slot of a frame, whether the program sees that the frame lets go of it: a destructor, a callback, a weak
// reference to what no one but the frame holds. Files are closed where the segment ends.
std::vector<bool> SeenToDie(PyObject* const* slots, int n);

}  // namespace framejit::capture
