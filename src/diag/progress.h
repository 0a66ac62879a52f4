// A line on the terminal while something takes longer than a second; nothing where standard error is no terminal.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace framejit::diag {

// Shows the line while it is alive. Where one is alive inside another on the same thread, the inner one shows nothing.
class Progress {
 public:
  explicit Progress(const std::string& what, int fd = 2, std::chrono::milliseconds patience = std::chrono::seconds(1));
  ~Progress();
  Progress(const Progress&) = delete;

 private:
  struct Ticker;
  std::unique_ptr<Ticker> ticker_;
  bool outermost_;
};

}  // namespace framejit::diag
