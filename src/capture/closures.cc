// Functions that the program makes, and the cells of their variables.
#include "capture/semantics.h"
#include "diag/diag.h"
#include "guard/source.h"

namespace framejit::capture {
namespace {

// Replaces a stand-in by what it stands for. False: Break.
bool Ready(Session& s, PyObject** x) {
  if (s.broken()) s.Break(s.reason().id);
  *x = s.broken() ? nullptr : s.Resolve(*x);
  return *x;
}

}  // namespace

// Functions of the frame hold the frame's own cells. What these would hold by now is in the private ones.
PyObject* CaptureSemantics::OwnCell(PyObject* cell) {
  for (auto& [mine, root] : s_.root_cells) {
    if (root.real != cell) continue;
    if (const Source* s = s_.SourceOf(cell))
      s_.guards().Add(guard::Row{guard::Kind::kSameObject, s, s_.guards().Slot(root.slot)});
    return mine;
  }
  return cell;
}

// The cells of a closure that the frame had put together before the capture began. New reference, null: Break.
PyObject* CaptureSemantics::OwnCells(PyObject* closure) {
  const Source* source = s_.SourceOf(closure);
  if (!s_.NoteLength(closure)) return nullptr;
  Ref cells(PyTuple_New(PyTuple_GET_SIZE(closure)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(closure); ++i) {
    Ref seen(s_.FromOutside(PyTuple_GET_ITEM(closure, i),
                            s_.guards().Child(SourceKind::kItem, source, static_cast<int>(i))));
    if (!seen) return nullptr;
    PyTuple_SET_ITEM(cells.get(), i, Py_NewRef(OwnCell(seen.get())));
  }
  return cells.release();
}

PyObject* CaptureSemantics::LoadCell(PyObject* cell) {
  if (!Ready(s_, &cell)) return nullptr;
  if (!s_.IsFresh(cell)) cell = OwnCell(cell);
  if (const PendingCell* now = s_.pending().Cell(cell)) return Py_XNewRef(now->value.get());
  PyObject* v = PyCell_GET(cell);
  if (s_.IsFresh(cell)) {
    if (!v) return nullptr;
    Py_INCREF(v);
    return s_.Adopt(v);
  }
  const Source* base = s_.SourceOf(cell);
  if (!base || base->kind == SourceKind::kConst ? !s_.Unchanged(cell) : !s_.Reads(cell, nullptr, base)) return nullptr;
  const Source* s = s_.guards().Child(SourceKind::kCell, base ? base : s_.guards().Const(cell));
  if (!v) {
    s_.guards().Absent(s);
    return nullptr;
  }
  if (s_.later && IsConstantKind(v)) {
    s_.Keep(Py_NewRef(v));
    s_.late.emplace(s_.guards().Child(SourceKind::kCell, s_.guards().Const(cell)), v);
  }
  return s_.FromOutside(v, s, true);
}

int CaptureSemantics::StoreCell(PyObject* cell, PyObject* value) {
  if (!Ready(s_, &cell) || (value && !Ready(s_, &value))) return -1;
  if (!s_.IsFresh(cell)) cell = OwnCell(cell);
  if (s_.IsFresh(cell)) return PyCell_Set(cell, value);
  if (!s_.IsOutside(cell)) return s_.Break(BreakId::kSideEffect, "a variable of an enclosing function"), -1;
  return s_.WriteCell(cell, value) ? 0 : -1;
}

int CaptureSemantics::SetFunctionField(PyObject* f, int which, PyObject* v) {
  if (!Ready(s_, &v) || !Ready(s_, &f)) return -1;
  if (s_.IsOutside(f)) return s_.Break(BreakId::kSideEffect, "a function that was begun before this graph"), -1;
  constexpr int kClosure = 8;
  Ref own(which == kClosure && s_.IsOutside(v) ? OwnCells(v) : Py_NewRef(v));
  if (!(v = own.get())) return -1;
  return frame::Semantics::SetFunctionField(f, which, v);
}

PyObject* CaptureSemantics::MakeCell(PyObject* v) {
  if (v && !Ready(s_, &v)) return nullptr;
  return s_.MarkFresh(PyCell_New(v));
}

}  // namespace framejit::capture
