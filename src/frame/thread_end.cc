// A thread that asks for the GIL while the interpreter ends never gets it. CPython before 3.14 ends such a thread where
// it asks: its stack is unwound, and our destructors would let go of Python's objects without the GIL, beside the
// thread that ends the interpreter. So the unwinding stops at the innermost frame of ours, and the thread stays there
// until the process is gone, as it does in CPython 3.14.
#include <unistd.h>
#include <unwind.h>

// The linker gives our frames __wrap_ for C++'s personality routine, which the unwinder asks in each frame that has
// something to clean up (--wrap in CMakeLists.txt).
extern "C" {
int fj_finalizing(void);  // does the interpreter end? (py31*.c)
_Unwind_Reason_Code __real___gxx_personality_v0(int, _Unwind_Action, _Unwind_Exception_Class, _Unwind_Exception*,
                                                _Unwind_Context*);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class type,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
  while ((actions & _UA_FORCE_UNWIND) && fj_finalizing()) pause();
  return __real___gxx_personality_v0(version, actions, type, exception, context);
}
}
