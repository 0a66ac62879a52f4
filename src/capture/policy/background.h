// mode="background": a thread that compiles what segments ask for, while the framework goes on making their calls. It
// never touches Python and needs no GIL.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>

#include "framejit/compile.h"

namespace framejit::capture {

class Compilation {
 public:
  using Work = std::function<std::shared_ptr<Executable>()>;
  // Work is done in the order in which it was begun. What nobody holds any more when its turn comes is left out.
  static std::shared_ptr<Compilation> Begin(Work work);
  bool done() const;
  std::shared_ptr<Executable> Take();  // It may be asked for once the work is done, and throws what that threw.

  void Do();  // Called by the thread that compiles.

 private:
  Work work_;
  std::shared_ptr<Executable> made_;
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
};

// Waits until all that was begun is done, or for so many seconds. False: some of it is not done.
bool WaitForCompilations(double seconds);
// Lets the one that is being done end and begins no other: what runs later (destructors of statics) would meet it.
void EndCompilations();
// Around os.fork(): it waits for the one that is being done. The child goes on with what waits.
void PauseCompilations();
void ResumeCompilations();
void RestartCompilations();

}  // namespace framejit::capture
