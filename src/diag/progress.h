// A line on the terminal while something takes longer than a second; nothing where standard error is no terminal.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace framejit::diag {

class Progress {  // while alive; of one inside another on the same thread nothing is shown
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
