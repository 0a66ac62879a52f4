// Logging: the one file that includes spdlog. The sink is unlocked and our own mutex stands before it, because only our
// own mutex can be taken around fork(): a child must not inherit a lock that a thread of the parent held.
#include <pthread.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <mutex>

#include "diag/diag.h"

namespace framejit::diag {
namespace {

constexpr const char* kNames[] = {
#define X(n) #n,
    FRAMEJIT_CHANNELS(X)
#undef X
};

struct Sink {
  std::mutex mutex;
  spdlog::logger logger{"framejit", std::make_shared<spdlog::sinks::stderr_sink_st>()};
};

Sink& Get() {
  static Sink* sink = [] {
    auto* s = new Sink;  // never destroyed: threads may log while the process ends
    s->logger.set_pattern("%v");
    s->logger.set_level(spdlog::level::trace);
    s->logger.flush_on(spdlog::level::trace);
    return s;
  }();
  static const bool registered = [] {
    auto lock = [] { Get().mutex.lock(); };
    auto unlock = [] { Get().mutex.unlock(); };
    return pthread_atfork(lock, unlock, unlock) == 0;
  }();
  (void)registered;
  return *sink;
}

// Bits of the channels that are on, recomputed when an option changed: for stderr, and from kToEvents on for the event
// stream.
constexpr int kToEvents = 16;
static_assert(std::size(kNames) <= kToEvents);
std::atomic<uint32_t> mask{0};
std::atomic<uint64_t> mask_generation{0};

uint32_t Mask() {
  uint64_t now = OptionsGeneration();
  if (mask_generation.load(std::memory_order_acquire) == now) return mask.load(std::memory_order_relaxed);
  uint32_t bits = 0;
  auto add = [&bits](const std::string& names, int shift) {
    for (size_t i = 0; i < std::size(kNames); ++i)
      if (("," + names + ",").find("," + std::string(kNames[i]) + ",") != std::string::npos) bits |= 1u << (i + shift);
  };
  add(GetOption("log"), 0);
  if (EventsOn()) add(GetOption("events_log"), kToEvents);
  mask.store(bits, std::memory_order_relaxed);
  mask_generation.store(now, std::memory_order_release);
  return bits;
}

void Write(spdlog::level::level_enum level, const std::string& text) {
  Sink& s = Get();
  std::lock_guard lock(s.mutex);
  try {
    s.logger.log(level, spdlog::string_view_t(text.data(), text.size()));
  } catch (...) {  // a closed stderr is not our caller's problem
  }
}

}  // namespace

bool Enabled(Channel c) {
  const uint32_t bits = Mask();
  return (bits | bits >> kToEvents) >> static_cast<int>(c) & 1;
}

void Log(Channel c, const std::string& text) {
  const uint32_t bits = Mask() >> static_cast<int>(c);
  const std::string name = kNames[static_cast<int>(c)];
  if (bits & 1) Write(spdlog::level::info, "framejit " + name + ": " + text);
  if (bits >> kToEvents & 1) Event("log", {{"channel", Quote(name)}, {"text", Quote(text)}});
}

void Warn(const std::string& text) {
  Write(spdlog::level::warn, "framejit: " + text);
}

}  // namespace framejit::diag
