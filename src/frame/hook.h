// Our frame hook, next to another one.
#pragma once
#include "frame/frame.h"

#ifdef __cplusplus
extern "C" {
#endif
void* fj_hook_function(void);  // what is installed
// A frame that has just come to our hook goes to the one that ours was installed above, which may hand it back, or to
// CPython.
PyObject* fj_pass_on(PyThreadState*, FjFrame*, int throwflag);
#ifdef __cplusplus
}

namespace framejit::frame {
// Puts our hook above torch.compile's, if it is not there. How often that was done: where it is another number later,
// frames may have gone by ours.
unsigned long TakeHook();
}  // namespace framejit::frame
#endif
