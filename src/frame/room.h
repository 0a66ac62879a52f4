// What a call needs if it is to go on in a frame later.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif
int fj_room(PyThreadState*);  // Will fj_link take a frame that begins now?
#ifdef __cplusplus
}

namespace framejit::frame {
// Would the frame of a call of this thread come to the policy? Nobody traces it.
bool HasRoom(PyThreadState* ts);
}  // namespace framejit::frame
#endif
