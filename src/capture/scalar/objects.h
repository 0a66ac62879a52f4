// Between a frame's objects and the cells of a loop's code.
#pragma once

#include "capture/scalar/made.h"
#include "capture/scalar/translate.h"

namespace framejit::capture::scalar {

// Can nothing of the program see when the object dies?
bool DiesUnseen(PyObject* o);
// The number of a NumPy scalar of this type, as a cell holds it. False: the type has no such number.
bool NumberOfScalar(DType t, PyObject* o, int64_t* cell);

// Does what the code writes lie in one array alone?
bool LieApart(const Translation& t, PyObject* const* objects);
// Do the names still mean what they meant when the code was made?
bool NamesHold(const Translation& t);
// Copies the frame into cells. False: the frame does not look as the code takes for granted.
bool ReadFrame(const Translation& t, FjFrame* frame, int64_t* cells, PyObject** objects);
// Takes for granted that sizes of arrays, and the ints that bound loops, are equal if they are now, and that small
// sizes stay as they are: then indices are seen to lie in arrays, and short loops are unrolled. `cells`: as ReadFrame
// made them.
void MakeAlike(Translation& t, const int64_t* cells);
// Is all as was taken for granted then?
bool IsAlike(const Translation& t, const int64_t* cells);
// Copies cells back into the frame at an exit. False: an exception is set, and the frame is as it was.
bool WriteFrame(FjFrame* frame, const ExitState& e, const int64_t* cells, PyObject* const* objects, Made* made);

}  // namespace framejit::capture::scalar
