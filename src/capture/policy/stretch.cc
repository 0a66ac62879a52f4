// See the header.
#include "capture/policy/stretch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "bytecode/code.h"
#include "capture/scalar/loops.h"

namespace framejit::capture {
namespace {

struct Skips {
  FjFrame* frame = nullptr;
  long steps = 0;
};
thread_local std::vector<Skips> skips;  // one for each frame

std::vector<Skips>::iterator SkipsOf(FjFrame* frame) {  // those of the newest frames come last
  const auto it = std::find_if(skips.rbegin(), skips.rend(), [&](const Skips& s) { return s.frame == frame; });
  return it == skips.rend() ? skips.end() : std::next(it).base();
}

// Runs instructions in a row that nothing is asked at: up to `most`, a jump back or the next one that is busy. With 0
// they are those that loops leave to Python.
class Quietly : public frame::ConcreteSemantics {
 public:
  Quietly(std::shared_ptr<const std::vector<bool>> busy, std::shared_ptr<CodeLoops> loops, long most, bool (*goes_on)())
      : busy_(std::move(busy)), loops_(std::move(loops)), most_(most), goes_on_(goes_on) {}
  bool Before(FjFrame*, int index) override {
    if (ran_ && (ran_ == most_ || index <= last_ || (*busy_)[index] || !InLoops(index) || !goes_on_())) return false;
    last_ = index;
    ++ran_;
    return true;
  }
  Stretch ran() const { return {ran_, last_}; }
  CodeLoops* loops() const { return loops_.get(); }

 private:
  bool InLoops(int index) const {
    const CodeLoops::Asked asked = loops_ ? loops_->AskedAt(index) : CodeLoops::Asked::kOutside;
    return asked == CodeLoops::Asked::kPythons || (asked == CodeLoops::Asked::kOutside && most_ > 0);
  }

  std::shared_ptr<const std::vector<bool>> busy_;
  std::shared_ptr<CodeLoops> loops_;  // The state may be dropped meanwhile.
  long most_, ran_ = 0;
  bool (*goes_on_)();
  int last_ = -1;
};

const std::shared_ptr<const std::vector<bool>>& BusyIn(const Compiled& compiled, CodeState& state,
                                                       const bytecode::Code& code) {
  if (std::exchange(state.busy_since, compiled.captures) == compiled.captures) return state.busy;
  auto busy = std::make_shared<std::vector<bool>>(code.size() + 1);
  for (auto& [at, place] : state.places)
    if (!place.segments.empty() || place.give_up) (*busy)[at.first] = true;
  for (auto& [at, reason] : state.stopped) (*busy)[at] = true;
  for (int at : state.cut) (*busy)[at] = true;
  return state.busy = std::move(busy);
}

}  // namespace

void SkipNext(FjFrame* frame, long instructions) {
  if (const auto it = SkipsOf(frame); it != skips.end()) {
    it->steps = instructions;
    return;
  }
  if (skips.size() > 4096) skips.erase(skips.begin(), skips.begin() + 2048);
  skips.push_back({frame, instructions});
}

bool IsSkipping(FjFrame* frame) {
  const auto it = SkipsOf(frame);
  if (it == skips.end()) return false;
  if (--it->steps > 0) return true;
  skips.erase(it);
  return false;
}

long LeftToSkip(FjFrame* frame) {
  const auto it = SkipsOf(frame);
  return it == skips.end() ? 0 : it->steps;
}

void ForgetSkips(FjFrame* frame) {
  std::erase_if(skips, [&](const Skips& s) { return s.frame == frame; });
}

std::optional<frame::Action> RunStretch(Compiled& compiled, CodeState& state, FjFrame* frame, bool (*goes_on)(),
                                        Stretch* ran, PyObject** result) {
  const long most = LeftToSkip(frame);
  if (state.loops) state.loops->Look();
  const bool in_loops = state.loops && state.loops->AskedAt(fj_next(frame)) == CodeLoops::Asked::kPythons;
  const bytecode::Code* code = bytecode::Code::Of(fj_code(frame));
  if (!code) PyErr_Clear();
  if (!code || (most < 2 && !in_loops) || compiled.fullgraph || !compiled.options.empty() || fj_is_generator(frame))
    return frame::Action::kStep;
  Quietly semantics(BusyIn(compiled, state, *code), state.loops, in_loops ? 0 : most, goes_on);
  int index;
  switch (frame::RunLinked(frame, semantics, -1, &index, result)) {
    case frame::Outcome::kReturned: return frame::Action::kReturn;
    case frame::Outcome::kRaised: return frame::Action::kUnwound;
    case frame::Outcome::kHandOver: return frame::Action::kHandOver;
    case frame::Outcome::kStopped: break;
  }
  *ran = semantics.ran();
  if (const auto it = SkipsOf(frame); it != skips.end()) it->steps = std::max(it->steps - ran->steps + 1, 1L);
  if (CodeLoops* loops = semantics.loops()) loops->Stepped(ran->steps - 1);
  return {};
}

}  // namespace framejit::capture
