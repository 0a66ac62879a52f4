// Frames as objects: what sys._getframe gives within a capture, and what a program may read of it.
#include <algorithm>
#include <string>
#include <string_view>

#include "capture/callees.h"
#include "capture/semantics.h"

namespace framejit::capture {

// Captured functions have frames like any others, but for those of torch's that capture leaves out.
PyObject* CaptureSemantics::FrameAbove(PyFrameObject* frame, long up) {
  Ref at = Borrow(reinterpret_cast<PyObject*>(frame));
  for (; up > 0; --up) {
    auto* here = reinterpret_cast<PyFrameObject*>(at.get());
    Ref back(reinterpret_cast<PyObject*>(PyFrame_GetBack(here)));
    const bool hidden = std::any_of(s_.hidden_calls.begin(), s_.hidden_calls.end(), [&](const Session::HiddenCall& c) {
      return reinterpret_cast<PyObject*>(c.caller) == back.get();
    });
    if (here == s_.root_frame || !back || hidden) return s_.Break(BreakId::kUnknownCall, "sys._getframe");
    at = std::move(back);
  }
  if (IsCodeOf(reinterpret_cast<PyFrameObject*>(at.get()), "framejit"))
    return s_.Break(BreakId::kUnknownCall, "sys._getframe");
  return s_.MarkFresh(at.release());
}

// What of a frame of this capture does not change, and where in its code it is.
PyObject* CaptureSemantics::FrameAttr(PyObject* o, PyObject* name) {
  auto* frame = reinterpret_cast<PyFrameObject*>(o);
  const std::string_view text = PyUnicode_AsUTF8(name);
  if (text == "f_code") return reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
  if (text == "f_lineno") return PyLong_FromLong(PyFrame_GetLineNumber(frame));
  if (text == "f_back") return FrameAbove(frame, 1);
  if (text != "f_globals")
    return s_.Break(BreakId::kUnknownCall, std::string("attribute ") + std::string(text) + " of a frame");
  Ref globals(PyFrame_GetGlobals(frame));
  return s_.FromOutside(globals.get(), s_.guards().Const(globals.get()));
}

}  // namespace framejit::capture
