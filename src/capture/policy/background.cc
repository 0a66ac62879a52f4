#include "capture/policy/background.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

namespace framejit::capture {
namespace {

struct Worker {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::weak_ptr<Compilation>> waiting;
  pid_t process = 0;  // that the thread is of
  bool started = false, running = false, paused = false, ended = false;
};

Worker& TheWorker() {
  static auto* worker = new Worker;  // never destroyed: its thread never ends
  return *worker;
}

thread_local bool is_worker = false;

void Loop() {
  sigset_t all;  // signals are for the program's threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  is_worker = true;
  Worker& w = TheWorker();
  std::unique_lock lock(w.mutex);
  for (;;) {
    w.changed.wait(lock, [&] { return !w.waiting.empty() && !w.paused && !w.ended; });
    std::shared_ptr<Compilation> next = w.waiting.front().lock();
    w.waiting.pop_front();
    w.running = true;
    lock.unlock();
    if (next) next->Do();
    next.reset();
    lock.lock();
    w.running = false;
    w.changed.notify_all();
  }
}

// The mutex is held.
void Start(Worker& w) {
  if (w.started || w.ended) return;
  static const bool registered = std::atexit(EndCompilations) == 0;
  (void)registered;
  w.started = true;
  w.process = getpid();
  std::thread(Loop).detach();
}

}  // namespace

std::shared_ptr<Compilation> Compilation::Begin(Work work) {
  auto made = std::make_shared<Compilation>();
  made->work_ = std::move(work);
  Worker& w = TheWorker();
  std::lock_guard lock(w.mutex);
  w.waiting.push_back(made);
  Start(w);
  w.changed.notify_all();
  return made;
}

void Compilation::Do() {
  try {
    made_ = work_();
  } catch (...) {
    error_ = std::current_exception();
  }
  work_ = nullptr;
  done_.store(true, std::memory_order_release);
}

bool Compilation::done() const {
  return done_.load(std::memory_order_acquire);
}

std::shared_ptr<Executable> Compilation::Take() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::move(made_);
}

bool WaitForCompilations(double seconds) {
  Worker& w = TheWorker();
  std::unique_lock lock(w.mutex);
  if (!w.waiting.empty()) Start(w);
  return w.changed.wait_for(lock, std::chrono::duration<double>(seconds),
                            [&] { return (w.waiting.empty() && !w.running) || w.ended; });
}

void EndCompilations() {
  Worker& w = TheWorker();
  if (is_worker || w.process != getpid()) return;  // a child of a fork() that nobody told us of has no such thread
  std::unique_lock lock(w.mutex);
  w.ended = true;
  w.waiting.clear();
  w.changed.wait(lock, [&] { return !w.running; });
}

void PauseCompilations() {
  Worker& w = TheWorker();
  std::unique_lock lock(w.mutex);
  w.paused = true;
  w.changed.wait(lock, [&] { return !w.running; });
}

void ResumeCompilations() {
  Worker& w = TheWorker();
  std::lock_guard lock(w.mutex);
  w.paused = false;
  w.changed.notify_all();
}

void RestartCompilations() {
  Worker& w = TheWorker();
  new (&w.mutex) std::mutex;  // threads that are gone may have held them
  new (&w.changed) std::condition_variable;
  w.started = w.paused = false;
  if (!w.waiting.empty()) Start(w);
}

}  // namespace framejit::capture
