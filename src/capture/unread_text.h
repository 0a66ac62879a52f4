// Texts of values that only a run knows (f"{n} tokens" with a tensor n): a message that nobody reads costs no graph.
// Such a text may be handed on, joined with others and dropped. One that leaves the graph is made behind the run, of
// what the values were at its place; whoever reads it ends the capture.
#pragma once

#include "capture/semantics.h"

namespace framejit::capture {

extern PyTypeObject UnreadTextType;
inline bool IsUnreadText(PyObject* o) {
  return Py_TYPE(o) == &UnreadTextType;
}

// A dict some of whose keys are such texts: one that leaves the graph is made behind the run, of its items in their
// order. Whoever reads it or stores to it ends the capture, since only a run may say which keys are equal.
extern PyTypeObject UnreadMapType;
inline bool IsUnreadMap(PyObject* o) {
  return Py_TYPE(o) == &UnreadMapType;
}
// A new reference; null without an error: no key is one.
PyObject* UnreadMap(Session& s, PyObject* const* keys_values, Py_ssize_t n, Py_ssize_t stride);
PyObject* ItemsOfMap(PyObject* map);  // a new reference to a tuple of (key, value)

// New references. They are null without an error where only a run may tell whether Python raises, and where all of the
// text is known by now. `conversion` is FORMAT_VALUE's.
PyObject* UnreadFormat(Session& s, PyObject* value, int conversion, PyObject* spec);
PyObject* UnreadJoined(Session& s, PyObject* const* parts, Py_ssize_t n);
// The operators + and %, of which `f` is one.
PyObject* UnreadOperator(CaptureSemantics& c, Session& s, binaryfunc f, PyObject* a, PyObject* b);
// str.format: the format is the first argument.
PyObject* UnreadFields(CaptureSemantics& c, Session& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

std::nullptr_t AskUnreadText(PyObject* text);  // It is read: Break.
// The text, where it is asked whether it is the very object that another text is: those of one character are kept.
PyObject* WhichTextIs(PyObject* a, PyObject* b);
bool IsAscii(PyObject* text);
// A tensor whose text is that of `o` now, as a new reference. Null without an error: there is none.
PyObject* CopyForText(Session& s, PyObject* o);
// The arguments with which TextMaker() gives the text, as a new reference; null without an error: it is made no more.
PyObject* PartsOf(PyObject* text);
PyObject* TextMaker();

}  // namespace framejit::capture
