// Events, logs and the break table. The only place that knows spdlog. Nothing here includes Python.h.
// Everything may be called from any thread, with or without the GIL, and after fork.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace framejit::diag {

// Every reason capture stops, one row each: breaks.def holds X(enumerator, id, message, explanation, hint).
enum class BreakId : uint16_t {
#define X(e, id, msg, explanation, hint) e,
#include "diag/breaks.def"
#undef X
};
struct BreakInfo {
  const char* id;
  const char* message;
  const char* explanation;
  const char* hint;
};
const BreakInfo& Info(BreakId id);
std::vector<BreakInfo> AllBreaks();

// Lines count from 1 (0: unknown). Columns are CPython's (co_positions): UTF-8 bytes from 0, end exclusive;
// end_column <= column: the range goes on to a later line, or (both 0) is unknown.
struct Break {
  BreakId id;
  std::string detail;  // Is appended to the message.
  std::string file, function;
  int line = 0, column = 0, end_column = 0, first_line = 0;  // first_line: where the segment began (0: no graph ended)
};
std::string Render(const Break& b);  // the compiler-style report with source and caret

// Where Render() gets source lines that no file holds (notebooks, stdin, zipped packages): asked when the file does not
// open. Returns "" if it does not know either. Called on the thread that renders.
void SetSourceReader(std::function<std::string(const std::string& file, int line)> reader);

// Channels of FRAMEJIT_LOG.
#define FRAMEJIT_CHANNELS(X) X(breaks) X(recompiles) X(guards) X(graph) X(fusion) X(loop) X(llvm) X(asm) X(ptx) X(perf)
enum class Channel : uint8_t {
#define X(n) n##_,
  FRAMEJIT_CHANNELS(X)
#undef X
};
bool Enabled(Channel c);                       // one or two loads: may stand on a hot path
void Log(Channel c, const std::string& text);  // to stderr or the event stream, if enabled
void Warn(const std::string& text);            // Is always shown.

// FRAMEJIT_EVENTS: one JSON object a line. kind: see docs/events.md. Values are JSON text already (use Quote and Json).
bool EventsOn();  // Costs one or two loads.
void Event(std::string_view kind, const std::vector<std::pair<std::string_view, std::string>>& fields);
std::string Quote(std::string_view s);  // a JSON string; bytes that are not UTF-8 become U+FFFD
std::string Json(double v);             // "null" for what JSON has no number for
inline std::string Json(int64_t v) {
  return std::to_string(v);
}
inline std::string Json(int v) {
  return std::to_string(v);
}
inline std::string Json(uint64_t v) {
  return std::to_string(v);
}
inline std::string Json(bool v) {
  return v ? "true" : "false";
}
std::string JsonStrings(const std::vector<std::string>& v);  // Gives an array of strings.

// Options: one table (options.def) binds config field, environment variable, type, default, valid values, help.
// The environment is read once, on the first use; SetOption overrides it.
std::string GetOption(std::string_view field);  // current text value; throws std::out_of_range
int64_t OptionInt(std::string_view field);      // Of options of the kinds 'b' and 'i'.
bool OptionOn(std::string_view field);
void SetOption(std::string_view field, std::string_view value);  // throws std::invalid_argument naming the valid ones
std::string NormalOption(std::string_view field,
                         std::string_view value);  // The text that would be set. Throws likewise.
// While alive, GetOption on this thread gives these values (field, normal form): options of one compiled function.
// Logs, events and what threads share are not read under it.
class OptionScope {
 public:
  explicit OptionScope(const std::vector<std::pair<std::string, std::string>>* values);
  ~OptionScope();
  OptionScope(const OptionScope&) = delete;

 private:
  const std::vector<std::pair<std::string, std::string>>* before_;
};
uint64_t OptionsGeneration();  // steps with every change: cache what you read behind it
// Where what may be used again by later processes is kept: the option cache_dir (FRAMEJIT_CACHE_DIR), else framejit in
// the user's cache folder. Made if it is not there; empty where that fails or where somebody else owns it.
std::string CacheFolder();
struct OptionInfo {
  const char* field;
  const char* env;
  char type;
  const char* default_value;
  const char* choices;
  const char* help;
};
const std::vector<OptionInfo>& Options();
// Empty, or a message about environment variables with an unknown value or a misspelled name, naming the valid ones.
std::string CheckEnvironment();
// The candidate closest to `word`, or "" if none is close.
std::string Closest(std::string_view word, const std::vector<std::string>& candidates);

struct InternalError : std::logic_error {
  using std::logic_error::logic_error;
};
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
#define FRAMEJIT_CHECK(cond)                                    \
  do {                                                          \
    if (!(cond)) [[unlikely]]                                   \
      ::framejit::diag::CheckFailed(__FILE__, __LINE__, #cond); \
  } while (0)

}  // namespace framejit::diag
