// Which frames run as they are, and which have something else run in their place.
#pragma once

#include <string_view>

#include "capture/ref.h"
#include "frame/driver.h"

namespace framejit::capture {

// What was installed and holds this code: a package or a module by its name, and the path in the package. Both are
// empty for code that was not installed, the path also for that of a module. They live as long as the code.
struct Installed {
  std::string_view package, path;
};
Installed InstalledAs(PyCodeObject* code);
// Where code lies in the package of this name. It is empty for code of others.
inline std::string_view PathIn(PyCodeObject* code, std::string_view package) {
  const Installed at = InstalledAs(code);
  return at.package == package ? at.path : std::string_view();
}

// Frames that never hold tensor programs: the standard library's own, NumPy's, and torch's plumbing.
bool SkippedFile(PyCodeObject* code);
// What is called in place of this code, with nothing captured in it; null: nothing. An import is itself; for optimizers
// it is framejit._updates.instead_of(code).
Ref InsteadOf(PyCodeObject* code);
// Calls it with the frame's arguments; the frame is at its first instruction. It may decline: then the frame goes on.
frame::Action RunInstead(FjFrame* frame, PyObject* instead, PyObject** result);
// Such a replacement is better than what a graph makes of the code: what is captured ends before a call of it.
bool EndsGraph(PyCodeObject* code);
// It is torch's code around wrappers that C code makes: only torch itself can make the call (capture/wrappers/tape.h).
bool RunsAroundWrappers(PyCodeObject* code);

}  // namespace framejit::capture
