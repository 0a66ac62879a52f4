// This file has the hook's evaluator. A frame arrives unlinked. While we own it, it is the thread's current frame.
// Every end goes through CPython (a hand-over at a RETURN, or fj_end_raise), which clears and pops the frame as always.
#include "frame/driver.h"

#include <pthread.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "bytecode/code.h"
#include "diag/diag.h"
#include "frame/hook.h"
#include "frame/room.h"
#include "frame/self_test.h"
#include "frame/slot.h"
#include "tensor/peer.h"

namespace framejit::frame {
namespace {

// Installing the hook costs every Python call some 20 ns, installing and removing it costs more: it stays for a while
// after the last scope ended.
constexpr long kIdleFramesBeforeRemoval = 20000;
// A hook makes each Python call use C stack, which 3.12 bounds by a count below the recursion limit, and 3.11 not at
// all. We measure the real thing (StackLow) and may widen the former.
constexpr int kExtraRecursion = 4000;

FramePolicy* policy = nullptr;
int scopes = 0;
long idle_frames = 0;
DriverStats stats;
ConcreteSemantics concrete;
thread_local int scopes_here = 0;

// Less than an eighth of this thread's C stack, or 192 KiB, is left.
bool StackLow() {
  static thread_local const char* floor = [] {
    // For the main thread pthread_getattr_np reads the map of all memory, which is long where torch is loaded. Its
    // stack begins at the program's name.
    const char* top = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
    const char* here = reinterpret_cast<const char*>(__builtin_frame_address(0));
    rlimit limit;
    if (top && gettid() == getpid() && getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < size_t{1} << 40 &&
        here < top && here > top - limit.rlim_cur)  // a forked thread has a stack of its own
      return top - limit.rlim_cur + std::max<size_t>(limit.rlim_cur / 8, 192 << 10);
    pthread_attr_t attributes;
    void* bottom = nullptr;
    size_t size = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      pthread_attr_getstack(&attributes, &bottom, &size);
      pthread_attr_destroy(&attributes);
    }
    return static_cast<const char*>(bottom) + (bottom ? std::max<size_t>(size / 8, 192 << 10) : 0);
  }();
  return reinterpret_cast<const char*>(__builtin_frame_address(0)) < floor;
}

bool IsPeers() {
  return tensor::IsPeers(fj_hook_function());
}

class Link {
 public:
  Link(PyThreadState* ts, FjFrame* frame) : ts_(ts), frame_(frame), linked_(fj_link(ts, frame, &link_) == 0) {}
  ~Link() { Unlink(); }
  Link(const Link&) = delete;
  explicit operator bool() const { return linked_; }
  void Unlink() {
    if (linked_) fj_unlink(ts_, frame_, &link_);
    linked_ = false;
  }

 private:
  PyThreadState* ts_;
  FjFrame* frame_;
  FjLink link_;
  bool linked_;
};

void ClearStack(FjFrame* frame) {
  Slot* base = fj_localsplus(frame) + fj_nlocalsplus(frame);
  for (int depth = fj_stack_depth(frame); depth > 0;) {
    PyObject* v = base[--depth].Take();
    fj_set_stack_depth(frame, depth);
    Py_XDECREF(v);
  }
}

// This runs one intercepted frame, which is linked.
class Drive {
 public:
  Drive(PyThreadState* ts, FjFrame* frame, Link& link) : ts_(ts), frame_(frame), link_(link) { ++stats.frames; }

  PyObject* HandOver() {
    ++stats.hand_overs;
    return Continue();
  }

  // A profiler written in C was not told that the frame began, and must not be told that it ends: a frame that has done
  // nothing yet begins anew, any other is driven to its end.
  PyObject* HandOverProfiled(const bytecode::Code& code) {
    if (fj_next(frame_) == code.first_resume() + 1 && !fj_stack_depth(frame_)) {
      fj_set_next(frame_, code.first_resume());
      return HandOver();
    }
    int index;
    PyObject* result = nullptr;
    const Outcome outcome = Interpret(frame_, concrete, -1, &index, &result);
    return End(outcome, result);
  }

  PyObject* Raise() {
    ++stats.raised;
    ClearStack(frame_);
    link_.Unlink();
    return fj_end_raise(ts_, frame_);
  }

  // The value takes the place of what a RETURN instruction, any one, would give.
  PyObject* Return(PyObject* value) {
    const bytecode::Code& code = *bytecode::Code::Of(fj_code(frame_));  // decoded when it was linked
    int at = code.some_return();
    if (at < 0) {
      Py_XDECREF(value);
      PyErr_SetString(PyExc_SystemError, "framejit: returning from a function that has no return instruction");
      return Raise();
    }
    ++stats.returned;
    ClearStack(frame_);
    if (code.At(at).op == bytecode::Op::kReturnValue) {
      fj_localsplus(frame_)[fj_nlocalsplus(frame_)] = Slot::New(Py_None);
      fj_set_stack_depth(frame_, 1);
    }
    fj_set_next(frame_, at);
    PyObject* none = Leave();
    if (!none) {
      Py_XDECREF(value);
      return nullptr;
    }
    Py_DECREF(none);
    return value;
  }

  PyObject* End(Outcome outcome, PyObject* result) {
    switch (outcome) {
      case Outcome::kReturned:  // at its RETURN, the value still in place
        Py_XDECREF(result);
        ++stats.returned;
        return Leave();
      case Outcome::kRaised: return Raise();
      case Outcome::kStopped:
      case Outcome::kHandOver: break;
    }
    return HandOver();
  }

  PyObject* Overridden(Semantics& semantics, int throwflag) {
    int index;
    PyObject* result = nullptr;
    PyObject* handled = fj_is_generator(frame_) ? nullptr : PyErr_GetHandledException();
    Outcome outcome = Outcome::kStopped;
    if (throwflag) outcome = Unwind(frame_, semantics, fj_next(frame_) - 1, &index);
    if (outcome == Outcome::kStopped) outcome = Interpret(frame_, semantics, -1, &index, &result);
    // A frame left without its handlers has not popped the exceptions it was handling.
    if (outcome == Outcome::kRaised && !semantics.MayHandle() && !fj_is_generator(frame_)) {
      PyObject *type, *value, *traceback;
      PyErr_Fetch(&type, &value, &traceback);
      PyErr_SetHandledException(handled);
      PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(handled);
    return End(outcome, result);
  }

  PyObject* ByPolicy() {
    const bytecode::Code* code = bytecode::Code::Of(fj_code(frame_));
    if (!code || code->first_resume() < 0) {
      PyErr_Clear();
      return HandOver();
    }
    int index;
    PyObject* result = nullptr;
    while (fj_next(frame_) <= code->first_resume()) {  // cells and free variables are made by instructions
      Outcome outcome = Interpret(frame_, concrete, 1, &index, &result);
      if (outcome != Outcome::kStopped) return End(outcome, result);
    }
    for (;;) {
      if (fj_interrupts(ts_, frame_) & FJ_TRACING) return HandOver();
      Outcome outcome = Outcome::kStopped;
      result = nullptr;
      switch (HoldsPosition() ? Action::kStep : policy ? policy->At(frame_, &result) : Action::kHandOver) {
        case Action::kStep: outcome = Interpret(frame_, concrete, 1, &index, &result); break;
        case Action::kAgain: break;
        case Action::kReturn: return Return(result);
        case Action::kRaise: outcome = Unwind(frame_, concrete, code->At(fj_next(frame_)).unit, &index); break;
        case Action::kUnwound: return Raise();
        case Action::kHandOver: return fj_profiled(ts_) ? HandOverProfiled(*code) : HandOver();
      }
      if (outcome != Outcome::kStopped) return End(outcome, result);
    }
  }

 private:
  // In front of the clean-up behind an exception: what lies on the stack there is not for a segment.
  bool HoldsPosition() const {
    const Slot* base = fj_localsplus(frame_) + fj_nlocalsplus(frame_);
    return kTaggedSlots && std::any_of(base, base + fj_stack_depth(frame_), [](Slot s) { return s.is_integer(); });
  }

  PyObject* Continue() {
    link_.Unlink();
    return fj_continue(ts_, frame_, 0);
  }

  // The frame is at a RETURN instruction.
  PyObject* Leave() {
    if (!fj_profiled(ts_)) return Continue();
    link_.Unlink();
    PyThreadState_EnterTracing(ts_);
    PyObject* result = fj_continue(ts_, frame_, 0);
    PyThreadState_LeaveTracing(ts_);
    return result;
  }

  PyThreadState* ts_;
  FjFrame* frame_;
  Link& link_;
};

PyObject* Idle(PyThreadState* ts, FjFrame* frame, int throwflag) {
  if (scopes == 0 && ++idle_frames > kIdleFramesBeforeRemoval) fj_uninstall_hook();
  return fj_pass_on(ts, frame, throwflag);
}

PyObject* Driven(PyThreadState* ts, FjFrame* frame, Semantics* semantics, int throwflag) {
  Link link(ts, frame);
  if (!link) return fj_continue(ts, frame, throwflag);  // CPython raises the RecursionError
  Drive drive(ts, frame, link);
  // Our own bugs must not unwind C frames of CPython: the rest of the call runs there if the frame is at a boundary.
  try {
    return semantics ? drive.Overridden(*semantics, throwflag) : drive.ByPolicy();
  } catch (const std::exception& e) {
    diag::Warn(std::string("internal error, running on in Python: ") + e.what());
    if (!link) throw;  // cannot happen: nothing throws after the frame was given away
    if (PyErr_Occurred()) return drive.Raise();
    if (!semantics) return drive.HandOver();
    PyErr_SetString(PyExc_SystemError, e.what());
    return drive.Raise();
  }
}

PyObject* Evaluate(PyThreadState* ts, FjFrame* frame, int throwflag) {
  if (scopes == 0 || !policy) return Idle(ts, frame, throwflag);
  if (StackLow() && !throwflag) {
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded: the C stack is used up");
    return fj_end_raise(ts, frame);
  }
  if (fj_interrupts(ts, frame) & FJ_TRACING) return fj_continue(ts, frame, throwflag);
  if (Semantics* semantics = policy->Override(frame)) return Driven(ts, frame, semantics, throwflag);
  // Where another hook hands its frames on to ours, the tool behind it is at work: what it runs is its own business.
  if (!throwflag && fj_hook_state() == FJ_HOOK_OURS) {
    const auto drive = [&] { return Driven(ts, frame, nullptr, 0); };
    PyObject* result;
    if (!fj_is_generator(frame)) {
      if (policy->Wants(frame)) return drive();
    } else if (policy->Resumes(ts, frame, drive, &result)) {
      return result;
    }
  }
  return policy->Continue(ts, frame, throwflag);
}

}  // namespace

FramePolicy* SetPolicy(FramePolicy* p) {
  return std::exchange(policy, p);
}
const DriverStats& Stats() {
  return stats;
}

const char* HookUnavailable() {
#ifdef Py_GIL_DISABLED
  return "free-threaded builds of Python are not supported";
#endif
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) return "sub-interpreters are not supported";
  if (fj_hook_state() == FJ_HOOK_FOREIGN && !IsPeers())
    return "another tool (a debugger, ...) has installed a frame hook";
  static const char* const failed = SelfTest();
  return failed;
}

bool HasRoom(PyThreadState* ts) {
  return fj_room(ts) && !StackLow() && !HookUnavailable();
}

void KeepHook() {
  ++scopes;
  idle_frames = 0;
  TakeHook();
}

unsigned long TakeHook() {
  static unsigned long taken = 0;
  const int state = fj_hook_state();
  if (state == FJ_HOOK_OURS || (state == FJ_HOOK_FOREIGN && !IsPeers())) return taken;
  fj_install_hook(Evaluate);
  return ++taken;
}

void LetGoOfHook() {
  --scopes;
}

void HookIsForNothing(bool at_once) {
  const long worth = kIdleFramesBeforeRemoval / (at_once ? 1 : 16) + 1;
  if (scopes || idle_frames > kIdleFramesBeforeRemoval || (idle_frames += worth) <= kIdleFramesBeforeRemoval) return;
  if (fj_hook_state() == FJ_HOOK_OURS) fj_uninstall_hook();
}

[[gnu::hot]] bool HookIsGone() {
  return !scopes && idle_frames > kIdleFramesBeforeRemoval;
}

HookScope::HookScope() : active_(HookUnavailable() == nullptr) {
  if (!active_) return;
  KeepHook();
  if (scopes_here++ == 0) fj_widen_recursion(PyThreadState_Get(), kExtraRecursion);
}

HookScope::~HookScope() {
  if (!active_) return;
  LetGoOfHook();
  if (--scopes_here == 0) fj_widen_recursion(PyThreadState_Get(), -kExtraRecursion);
}

}  // namespace framejit::frame
