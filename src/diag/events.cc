// Structured events (docs/events.md): one file a process, one line an event, one write(2) a line to a descriptor opened
// with O_APPEND, so lines of different threads never mix and a killed process leaves at most one torn line. After fork
// the child drops the descriptor and opens a file of its own with its next event.
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "diag/diag.h"

namespace framejit::diag {
namespace {

// A process keeps its first events and its last ones: part 0, and of those that follow the last two.
struct File {
  std::mutex mutex;
  std::string directory;  // of the open descriptor, or the one that failed
  int fd = -1;
  int part = 0;
  uint64_t bytes = 0;  // in this part
};

File& Get() {
  static File* file = [] {
    auto* f = new File;  // never destroyed: statistics are written while the process ends
    return f;
  }();
  static const bool registered = [] {
    auto lock = [] { Get().mutex.lock(); };
    auto unlock = [] { Get().mutex.unlock(); };
    auto child = [] {
      File& f = Get();
      if (f.fd >= 0) close(f.fd);
      f.fd = -1;
      f.directory.clear();
      f.mutex.unlock();
    };
    return pthread_atfork(lock, unlock, child) == 0;
  }();
  (void)registered;
  return *file;
}

std::atomic<bool> on{false};
std::atomic<uint64_t> on_generation{0};

std::string Line(std::string_view kind, const std::vector<std::pair<std::string_view, std::string>>& fields) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  char head[128];
  std::snprintf(head, sizeof head, ",\"t\":%lld.%06ld,\"pid\":%d,\"tid\":%ld", static_cast<long long>(now.tv_sec),
                now.tv_nsec / 1000, static_cast<int>(getpid()), syscall(SYS_gettid));
  std::string line = "{\"kind\":" + Quote(kind) + head;
  for (const auto& [name, value] : fields) line += "," + Quote(name) + ":" + (value.empty() ? "null" : value);
  for (char& c : line)
    if (c == '\n') c = ' ';  // JSON text of a caller may be indented; a line stays a line
  return line + "}\n";
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(n);
  }
  return true;
}

std::vector<std::string> CommandLine() {
  std::vector<std::string> out;
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  for (std::string word; out.size() < 64 && std::getline(in, word, '\0');) out.push_back(word);
  return out;
}

// Says of a distributed program what its launcher says, and "" where there is none.
std::string Rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* text = std::getenv(name); text && *text) return Json(static_cast<int64_t>(std::atoll(text)));
  return "";
}

std::string PathOf(const File& f, int part) {
  return f.directory + "/framejit-" + std::to_string(getpid()) + (part ? "." + std::to_string(part) : "") + ".jsonl";
}

// The mutex is held. "" or what to tell the user.
std::string Open(File& f, const std::string& directory, int part) {
  if (f.fd >= 0) close(f.fd);
  f.fd = -1;
  f.directory = directory;
  f.part = part;
  f.bytes = 0;
  if (directory.empty()) return "";
  std::error_code ignored;
  std::filesystem::create_directories(directory, ignored);
  if (part > 2) unlink(PathOf(f, part - 2).c_str());
  const std::string path = PathOf(f, part);
  f.fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (f.fd < 0) return "FRAMEJIT_EVENTS: cannot write " + path + ": " + std::strerror(errno);
  WriteAll(f.fd, Line("process", {{"schema", "1"},
                                  {"part", Json(part)},
                                  {"ppid", Json(static_cast<int>(getppid()))},
                                  {"rank", Rank()},
                                  {"command", JsonStrings(CommandLine())},
                                  {"cpus", Json(static_cast<int64_t>(sysconf(_SC_NPROCESSORS_ONLN)))}}));
  return "";
}

}  // namespace

[[gnu::hot]] bool EventsOn() {
  uint64_t now = OptionsGeneration();
  if (on_generation.load(std::memory_order_acquire) != now) {
    on.store(!GetOption("events").empty(), std::memory_order_relaxed);
    on_generation.store(now, std::memory_order_release);
  }
  return on.load(std::memory_order_relaxed);
}

void Event(std::string_view kind, const std::vector<std::pair<std::string_view, std::string>>& fields) {
  if (!EventsOn()) return;
  std::string directory = GetOption("events"), complaint;
  {
    File& f = Get();
    std::lock_guard lock(f.mutex);
    const uint64_t limit = static_cast<uint64_t>(std::max<int64_t>(0, OptionInt("events_limit"))) << 20;
    if (f.directory != directory)
      complaint = Open(f, directory, 0);
    else if (f.fd >= 0 && limit && f.bytes >= limit / 3)
      complaint = Open(f, directory, f.part + 1);
    const std::string line = Line(kind, fields);
    f.bytes += line.size();
    if (f.fd >= 0 && !WriteAll(f.fd, line)) {
      complaint = std::string("FRAMEJIT_EVENTS: write failed: ") + std::strerror(errno) + "; no more events";
      close(f.fd);
      f.fd = -1;
    }
  }
  if (!complaint.empty()) Warn(complaint);  // once: the directory stays the one that failed
}

std::string Json(double v) {
  if (!std::isfinite(v)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", v);
  double short_value;
  char short_text[32];
  std::snprintf(short_text, sizeof short_text, "%.9g", v);
  if (std::sscanf(short_text, "%lf", &short_value) == 1 && short_value == v) return short_text;
  return text;
}

std::string JsonStrings(const std::vector<std::string>& v) {
  std::string out = "[";
  for (const std::string& s : v) out += (out.size() == 1 ? "" : ",") + Quote(s);
  return out + "]";
}

}  // namespace framejit::diag
