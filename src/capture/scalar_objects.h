// Between a frame's objects and the cells of a loop's code.
#pragma once

#include "capture/scalar_made.h"
#include "capture/scalar_translate.h"

namespace framejit::capture::scalar {

// Nothing of the program sees when it dies.
bool DiesUnseen(PyObject* o);
// Of a NumPy scalar of this type, as a cell holds it. False: there is no such number.
bool NumberOfScalar(DType t, PyObject* o, int64_t* cell);

// Does what the code writes lie in one array alone?
bool LieApart(const Translation& t, PyObject* const* objects);
// Do the names mean what they meant?
bool NamesHold(const Translation& t);
// From the frame into cells; false: it does not look as the code takes for granted.
bool ReadFrame(const Translation& t, FjFrame* frame, int64_t* cells, PyObject** objects);
// And back, at an exit. False: an exception is set, and the frame is as it was.
bool WriteFrame(FjFrame* frame, const ExitState& e, const int64_t* cells, PyObject* const* objects, Made* made);

}  // namespace framejit::capture::scalar
