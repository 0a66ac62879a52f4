// Events, logs and the break table. The only place that knows spdlog. Nothing here includes Python.h.
#pragma once

#include <cstdint>
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
struct BreakInfo { const char* id; const char* message; const char* explanation; const char* hint; };
const BreakInfo& Info(BreakId id);
std::vector<BreakInfo> AllBreaks();

struct Break {
  BreakId id;
  std::string detail;      // appended to the message
  std::string file, function;
  int line = 0, column = 0, end_column = 0, first_line = 0;  // first_line: where the segment began
};
std::string Render(const Break& b);        // the compiler-style report with source and caret

// Channels of FRAMEJIT_LOG.
#define FRAMEJIT_CHANNELS(X) X(breaks) X(recompiles) X(guards) X(graph) X(loop) X(llvm) X(asm) X(ptx) X(perf)
enum class Channel : uint8_t {
#define X(n) n##_,
  FRAMEJIT_CHANNELS(X)
#undef X
};
bool Enabled(Channel c);
void Log(Channel c, const std::string& text);     // to stderr
void Warn(const std::string& text);               // always shown

// FRAMEJIT_TRACE: one JSON object a line. kind: see docs/trace.md. Values are JSON text already (use Quote for strings).
bool TraceEnabled();
void Event(std::string_view kind, const std::vector<std::pair<std::string_view, std::string>>& fields);
std::string Quote(std::string_view s);

// Options: one table (options.def) binds config field, environment variable, default, help.
// X(field, env, type b/i/s, default text, help)
std::string GetOption(std::string_view field);                // current text value; throws std::out_of_range
void SetOption(std::string_view field, std::string_view value); // throws std::invalid_argument naming the valid ones
bool OptionOn(std::string_view field);
struct OptionInfo { const char* field; const char* env; char type; const char* default_value; const char* help; };
const std::vector<OptionInfo>& Options();
// Empty, or a message about an environment variable with an unknown value, naming the valid ones.
std::string CheckEnvironment();

struct InternalError : std::logic_error { using std::logic_error::logic_error; };
#define FRAMEJIT_CHECK(cond)                                                                                   \
  do {                                                                                                         \
    if (!(cond)) throw ::framejit::diag::InternalError(std::string(__FILE__) + ":" + std::to_string(__LINE__) + ": " #cond); \
  } while (0)

}  // namespace framejit::diag
