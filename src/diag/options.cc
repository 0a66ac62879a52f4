#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "diag/diag.h"
#include "diag/option_values.h"

extern "C" char** environ;

namespace framejit::diag {
namespace {

std::vector<std::string> Split(std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    size_t comma = list.find(',');
    std::string_view item = list.substr(0, comma);
    while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
    while (!item.empty() && item.back() == ' ') item.remove_suffix(1);
    if (!item.empty()) out.emplace_back(item);
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return out;
}

std::string Join(const std::vector<std::string>& v, const char* separator) {
  std::string out;
  for (const std::string& s : v) out += (out.empty() ? "" : separator) + s;
  return out;
}

std::string Unknown(std::string_view what, std::string_view word, const std::vector<std::string>& valid) {
  std::string text = "unknown " + std::string(what) + " '" + std::string(word) + "'";
  if (std::string near = Closest(word, valid); !near.empty()) text += ": did you mean '" + near + "'?";
  return text + " (valid: " + Join(valid, ", ") + ")";
}

// Values that AllowValue added, by option.
struct Allowed {
  std::mutex mutex;
  std::vector<std::pair<std::string, std::string>> values;
};
Allowed& AllowedValues() {
  static auto* allowed = new Allowed;
  return *allowed;
}

std::vector<std::string> ValidValues(const OptionInfo& o) {
  std::vector<std::string> valid = Split(o.choices);
  Allowed& allowed = AllowedValues();
  std::lock_guard lock(allowed.mutex);
  for (const auto& [field, value] : allowed.values)
    if (field == o.field) valid.push_back(value);
  return valid;
}

// Gives the text in its normal form. It throws std::invalid_argument with a message that names what is valid.
std::string Normalise(const OptionInfo& o, std::string_view text) {
  if (text.empty() && o.type != 's' && o.type != 'l') return o.default_value;  // FRAMEJIT_VERIFY= : as if not set
  switch (o.type) {
    case 'b': {
      std::string low(text);
      std::transform(low.begin(), low.end(), low.begin(), [](unsigned char c) { return std::tolower(c); });
      if (low == "1" || low == "true" || low == "on" || low == "yes") return "1";
      if (low == "0" || low == "false" || low == "off" || low == "no") return "0";
      throw std::invalid_argument("'" + std::string(text) +
                                  "' is not a bool (valid: 0, 1, false, true, off, on, no, yes)");
    }
    case 'i': {
      int64_t value = 0;
      auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size())
        throw std::invalid_argument("'" + std::string(text) + "' is not an integer");
      return std::to_string(value);
    }
    default: {
      const std::vector<std::string> valid = ValidValues(o);
      if (valid.empty()) return std::string(text);
      std::vector<std::string> items = o.type == 'l' ? Split(text) : std::vector<std::string>{std::string(text)};
      for (const std::string& item : items)
        if (!item.empty() && std::find(valid.begin(), valid.end(), item) == valid.end())
          throw std::invalid_argument(Unknown(o.type == 'l' ? "name" : "value", item, valid));
      return Join(items, ",");
    }
  }
}

constexpr std::string_view kPrefix = "FRAMEJIT_";  // of every option's environment variable

int64_t NumberOf(const std::string& value) {
  return std::strtoll(value.c_str(), nullptr, 10);
}

struct State {
  std::mutex mutex;  // held for a few string operations, never across calls out of this file
  std::vector<std::string> values;
  // Of each value: options are asked for at every instruction that a frame comes to, so without a lock.
  std::unique_ptr<std::atomic<int64_t>[]> numbers;
  std::string complaints;
};

State& Get() {
  static State* state = [] {
    auto* s = new State;  // lives for the process: threads may ask while statics are being destroyed
    std::vector<std::string> names;
    for (const OptionInfo& o : Options()) {
      s->values.emplace_back(o.default_value);
      if (!*o.env) continue;
      names.emplace_back(std::string_view(o.env).substr(kPrefix.size()));
      const char* text = std::getenv(o.env);
      if (!text) continue;
      try {
        s->values.back() = Normalise(o, text);
      } catch (const std::invalid_argument& e) {
        s->complaints += (s->complaints.empty() ? "" : "\n") + std::string(o.env) + ": " + e.what();
      }
    }
    s->numbers = std::make_unique<std::atomic<int64_t>[]>(s->values.size());
    for (size_t i = 0; i < s->values.size(); ++i) s->numbers[i] = NumberOf(s->values[i]);
    for (char** e = environ; e && *e; ++e) {  // a misspelled variable would otherwise do nothing, silently
      std::string_view entry = *e;
      if (!entry.starts_with(kPrefix)) continue;
      // The prefix is left out, since with it names that have nothing else in common seem alike.
      const std::string name(entry.substr(kPrefix.size(), entry.find('=') - kPrefix.size()));
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      const std::string near = Closest(name, names);
      if (near.empty()) continue;
      if (!s->complaints.empty()) s->complaints += "\n";
      s->complaints.append("unknown environment variable ").append(kPrefix).append(name);
      s->complaints.append(": did you mean ").append(kPrefix).append(near) += "?";
    }
    return s;
  }();
  static const bool registered = [] {  // a child of fork() must not inherit a lock that another thread held
    auto lock = [] { Get().mutex.lock(); };
    auto unlock = [] { Get().mutex.unlock(); };
    return pthread_atfork(lock, unlock, unlock) == 0;
  }();
  (void)registered;
  return *state;
}

std::atomic<uint64_t> generation{1};
thread_local const std::vector<std::pair<std::string, std::string>>* overlay = nullptr;

std::optional<size_t> Find(std::string_view field) {
  static const auto* places = [] {
    auto* map = new std::unordered_map<std::string_view, size_t>;
    for (const OptionInfo& o : Options()) map->emplace(o.field, map->size());
    return map;
  }();
  const auto it = places->find(field);
  return it == places->end() ? std::nullopt : std::optional(it->second);
}

const std::string* Overlaid(std::string_view field) {
  if (overlay)
    for (const auto& [name, value] : *overlay)
      if (name == field) return &value;
  return nullptr;
}

std::string UnknownOption(std::string_view field) {
  std::vector<std::string> names;
  for (const OptionInfo& o : Options()) names.emplace_back(o.field);
  return Unknown("option", field, names);
}

size_t PlaceOf(std::string_view field) {
  const std::optional<size_t> i = Find(field);
  if (!i) throw std::out_of_range(UnknownOption(field));
  return *i;
}

}  // namespace

void AllowValue(std::string_view field, std::string_view value) {
  Allowed& allowed = AllowedValues();
  std::lock_guard lock(allowed.mutex);
  const std::pair<std::string, std::string> added(field, value);
  if (std::find(allowed.values.begin(), allowed.values.end(), added) == allowed.values.end())
    allowed.values.push_back(added);
}

const std::vector<OptionInfo>& Options() {
  static const auto* table = new std::vector<OptionInfo>{
#define X(field, env, type, def, choices, help) {field, env, type, def, choices, help},
#include "diag/options.def"
#undef X
  };
  return *table;
}

OptionScope::OptionScope(const std::vector<std::pair<std::string, std::string>>* values)
    : before_(std::exchange(overlay, values)) {}
OptionScope::~OptionScope() {
  overlay = before_;
}

std::string GetOption(std::string_view field) {
  if (const std::string* value = Overlaid(field)) return *value;
  const size_t place = PlaceOf(field);
  State& s = Get();
  std::lock_guard lock(s.mutex);
  return s.values[place];
}

int64_t OptionInt(std::string_view field) {
  if (const std::string* value = Overlaid(field)) return NumberOf(*value);
  return Get().numbers[PlaceOf(field)].load(std::memory_order_acquire);
}
std::vector<std::string> OptionList(std::string_view field) {
  return Split(GetOption(field));
}

bool OptionOn(std::string_view field) {
  return OptionInt(field) != 0;
}

std::string NormalOption(std::string_view field, std::string_view value) {
  std::optional<size_t> i = Find(field);
  if (!i) throw std::invalid_argument(UnknownOption(field));
  try {
    return Normalise(Options()[*i], value);
  } catch (const std::invalid_argument& e) {
    throw std::invalid_argument("option '" + std::string(field) + "': " + e.what());
  }
}

void SetOption(std::string_view field, std::string_view value) {
  std::string text = NormalOption(field, value);
  State& s = Get();
  std::lock_guard lock(s.mutex);
  const size_t place = *Find(field);
  s.numbers[place].store(NumberOf(text), std::memory_order_release);
  s.values[place] = std::move(text);
  generation.fetch_add(1, std::memory_order_release);
}

[[gnu::hot]] uint64_t OptionsGeneration() {
  return generation.load(std::memory_order_acquire);
}

std::string CheckEnvironment() {
  return Get().complaints;
}

std::string Closest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& c : candidates) {
    // Computes the edit distance with transpositions, in three rolling rows.
    std::vector<size_t> before(c.size() + 1), last(c.size() + 1), row(c.size() + 1);
    for (size_t j = 0; j <= c.size(); ++j) last[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      row[0] = i;
      for (size_t j = 1; j <= c.size(); ++j) {
        row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (word[i - 1] != c[j - 1])});
        if (i > 1 && j > 1 && word[i - 1] == c[j - 2] && word[i - 2] == c[j - 1])
          row[j] = std::min(row[j], before[j - 2] + 1);
      }
      before.swap(last);
      last.swap(row);
    }
    if (last[c.size()] < best_distance) best_distance = last[c.size()], best = c;
  }
  return best;
}

}  // namespace framejit::diag
