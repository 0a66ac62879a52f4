#include "diag/progress.h"

#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

namespace framejit::diag {
namespace {

thread_local bool shown = false;

void Write(int fd, const std::string& text) {
  if (write(fd, text.data(), text.size()) < 0) return;  // the terminal is gone: nobody looks
}

}  // namespace

struct Progress::Ticker {
  Ticker(std::string what, int fd, std::chrono::milliseconds patience)
      : thread([this, what = std::move(what), fd, patience] { Tick(what, fd, patience); }) {}
  ~Ticker() {
    {
      std::lock_guard lock(mutex);
      over = true;
    }
    changed.notify_one();
    thread.join();
  }
  void Tick(const std::string& what, int fd, std::chrono::milliseconds patience) {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex);
    if (changed.wait_for(lock, patience, [this] { return over; })) return;
    do {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, " %.0f s",
                    std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      Write(fd, "\r\033[Kframejit: " + what + seconds);
    } while (!changed.wait_for(lock, std::chrono::milliseconds(500), [this] { return over; }));
    Write(fd, "\r\033[K");
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool over = false;
  std::thread thread;  // last: it uses the others
};

Progress::Progress(const std::string& what, int fd, std::chrono::milliseconds patience) : outermost_(!shown) {
  if (!outermost_) return;
  shown = true;
  if (isatty(fd)) ticker_ = std::make_unique<Ticker>(what, fd, patience);
}

Progress::~Progress() {
  if (outermost_) shown = false;
}

}  // namespace framejit::diag
