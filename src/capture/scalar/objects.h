// Between a frame's objects and the cells of a loop's code.
#pragma once

#include <absl/container/inlined_vector.h>

#include <optional>
#include <utility>
#include <vector>

#include "capture/scalar/made.h"
#include "capture/scalar/translate.h"
#include "frame/slot.h"
#include "guard/versions.h"

namespace framejit::capture::scalar {

// Can nothing of the program see when the object dies?
bool DiesUnseen(PyObject* o);
// The number of a text that is one of the first 256 letters, each of which Python has once; -1: it is none.
int LetterOf(PyObject* o);
// Is it bytes, or a text whose letters are bytes in a row?
bool HoldsLetters(PyObject* o);
// The number of a NumPy scalar of this type, as a cell holds it. False: the type has no such number.
bool NumberOfScalar(DType t, PyObject* o, int64_t* cell);

// Does what the code writes lie in one array alone?
bool LieApart(const Translation& t, PyObject* const* objects);
// Do the names still mean what they meant when the code was made?
class Names {
 public:
  bool Hold(const Translation& t);  // always the same one

 private:
  std::vector<std::pair<PyObject*, guard::DictTag>> dicts_;  // The translation holds them.
};
// Copies what a frame holds into cells. False: that does not look as the code takes for granted.
bool ReadSlots(const Translation& t, PyObject* const* locals, PyObject* const* stack, int depth, int64_t* cells,
               PyObject** objects);
inline bool ReadFrame(const Translation& t, FjFrame* frame, int64_t* cells, PyObject** objects) {
  frame::Pointers locals = frame::PointersOf(frame);
  return ReadSlots(t, locals, locals + fj_nlocalsplus(frame), fj_stack_depth(frame), cells, objects);
}
// Takes for granted that sizes of arrays, and the ints that bound loops, are equal if they are now, and that small
// sizes stay as they are: then indices are seen to lie in arrays, and short loops are unrolled. `cells`: as ReadFrame
// made them.
void MakeAlike(Translation& t, const int64_t* cells);
// Is all as was taken for granted then?
bool IsAlike(const Translation& t, const int64_t* cells);

// What a frame gets at an exit.
struct Left {
  struct GoesOn {  // an iterator that the frame has already, and nobody else
    PyObject* iterator;
    int64_t next, step, left;  // SeqIter: next alone
  };
  int next = 0;
  absl::InlinedVector<std::pair<int, Ref>, 8> locals;
  absl::InlinedVector<Ref, 4> stack;
  absl::InlinedVector<GoesOn, 1> iterators;
  void Into(FjFrame* frame);
};
// Makes that of cells and of what the frame holds. Nothing: an exception is set.
std::optional<Left> MakeLeft(PyObject* const* locals, PyObject* const* stack, int depth, const ExitState& e,
                             const int64_t* cells, PyObject* const* objects, Made* made);
// Likewise, of a function that returns what lies on top of its stack, that alone. Null: an exception is set.
PyObject* MakeResult(PyObject* const* locals, const ExitState& e, const int64_t* cells, PyObject* const* objects,
                     Made* made);

}  // namespace framejit::capture::scalar
