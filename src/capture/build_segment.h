// A capture that came to its end, and the segment that is built of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capture/segment.h"
#include "capture/semantics.h"
#include "capture/session.h"

namespace framejit::capture {

// The frame's slots and stack, saved while capture runs in the frame itself, and put back whatever happens.
class FrameImage {
 public:
  explicit FrameImage(FjFrame* f);
  ~FrameImage() { Restore(); }
  void Restore() {
    if (std::exchange(restored_, true)) return;
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    frame::Slot* p = fj_localsplus(f_);
    int now = fj_nlocalsplus(f_) + fj_stack_depth(f_);
    for (int i = 0; i < std::max(now, static_cast<int>(saved_.size())); ++i) {
      PyObject* old = i < now ? p[i].Take() : nullptr;
      p[i] = frame::Slot::Of(i < static_cast<int>(saved_.size()) ? saved_[i].release() : nullptr);
      Py_XDECREF(old);
    }
    fj_set_stack_depth(f_, depth_);
    fj_set_next(f_, next_);
    PyErr_Restore(type, value, tb);
  }
  PyObject* operator[](int i) const { return saved_[i].get(); }
  int size() const { return static_cast<int>(saved_.size()); }
  int next() const { return next_; }
  // A destructor, or a weak reference to what nobody else holds, tells when the frame lets go of it.
  bool SeenToDie(int i) const { return seen_to_die_[i]; }

 private:
  FjFrame* f_;
  int next_, depth_;
  bool restored_ = false;
  std::vector<Ref> saved_;
  std::vector<bool> seen_to_die_;
};

// Why there is no segment although nothing broke: the state at the end cannot be rebuilt (a text: it may be earlier),
// one thing is decided first, the function is left as it is, or a bug of ours was found (strict).
struct Problem {
  std::string state;
  diag::Again again = diag::Again::kNone;
  bool leave = false;
  std::string internal;
  explicit operator bool() const { return !state.empty() || again != diag::Again::kNone || leave || !internal.empty(); }
};

std::unique_ptr<Segment> BuildSegment(Compiled& compiled, Session& s, CaptureSemantics& sem, FjFrame* frame,
                                      const FrameImage& before, frame::Outcome outcome, int index, PyObject* result,
                                      Problem* problem);

}  // namespace framejit::capture
