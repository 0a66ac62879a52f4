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
// Puts our hook above torch.compile's. How often ours was installed: where that is another number later, or the hook is
// not ours, frames may have gone by it.
unsigned long TakeHook();
}  // namespace framejit::frame
#endif
