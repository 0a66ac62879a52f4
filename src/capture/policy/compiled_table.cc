// What is compiled, by function and by code: found, kept while threads are in it, dropped.
#include <algorithm>

#include "capture/events.h"
#include "capture/outcomes.h"
#include "capture/policy/policy.h"
#include "capture/policy/skipped.h"
#include "capture/policy/timing.h"

namespace framejit::capture {
namespace {

// What is compiled for a function is found again by equal calls of framejit.compile: also when nothing refers to it any
// more, since a function that is made and compiled in a loop has one code object. Of those, the last few are kept.
constexpr size_t kKeptUnused = 128;

struct CompiledTable {
  std::unordered_map<std::string, std::shared_ptr<Compiled>> by_key;
  std::vector<std::weak_ptr<Compiled>> all;
  size_t sweep_at = 2 * kKeptUnused;
  uint64_t clock = 0;
};

CompiledTable& Table() {
  static auto* table = new CompiledTable;
  return *table;
}

void Sweep(CompiledTable& table) {
  std::vector<std::shared_ptr<Compiled>> unused;
  for (auto& [key, c] : table.by_key)
    if (c.use_count() == 1) unused.push_back(c);
  std::sort(unused.begin(), unused.end(), [](auto& a, auto& b) { return a->used > b->used; });
  for (size_t i = kKeptUnused; i < unused.size(); ++i) table.by_key.erase(unused[i]->key);
  std::erase_if(table.all, [](auto& weak) { return weak.expired(); });
  table.sweep_at = table.all.size() + kKeptUnused;
}

// Segments that were dropped while some thread was in one, or in a capture for one.
struct Dropped {
  std::vector<CodeStates> codes;
  std::vector<std::unique_ptr<Segment>> segments;
};
Dropped& Retired() {  // to drop something else
  static auto* retired = new Dropped;
  InUse::dropped = true;
  return *retired;
}

}  // namespace

void Retire(std::unique_ptr<Segment> segment) {
  Retired().segments.push_back(std::move(segment));
}

std::shared_ptr<Compiled> MakeCompiled(const std::string& key) {
  CompiledTable& table = Table();
  std::shared_ptr<Compiled> c;
  if (auto it = table.by_key.find(key); !key.empty() && it != table.by_key.end()) c = it->second;
  if (!c) {
    if (table.all.size() >= table.sweep_at) Sweep(table);
    c = std::make_shared<Compiled>();
    c->timing = std::make_shared<Timing>();
    c->key = key;
    table.all.push_back(c);
    if (!key.empty()) table.by_key.emplace(key, c);
  }
  c->used = ++table.clock;
  return c;
}

void InUse::FreeDropped() {
  PyObject *type, *value, *traceback;  // of the call that ends
  PyErr_Fetch(&type, &value, &traceback);
  {
    Dropped dying = std::exchange(Retired(), {});
    dropped = false;  // before their destructors, which may drop more
  }
  PyErr_Restore(type, value, traceback);
}

void DropSegments(Compiled& c) {
  InUse now;
  c.Forget();
  Retired().codes.push_back(std::move(c.codes));
  c.codes.clear();
  c.graphs.clear();
}

void ResetCompiled(Compiled& c) {
  PythonEvents(c);
  DropSegments(c);
  c.breaks.clear();
  c.before_calls.clear();
  c.in_libraries.clear();
  c.met.clear();
  c.notes.clear();
  c.libraries = {};
  c.guesses = std::make_shared<Guesses>();
  c.timing = std::make_shared<Timing>();
  c.outcomes = std::make_shared<Outcomes>();
  c.kernels = {};
  c.scalar_loops = c.scalar_runs = 0;
  c.captures = c.recompiles = c.graph_count = c.op_count = c.after_imports = 0;
  c.import_fails = false;
  c.seconds = 0;
}

std::vector<std::shared_ptr<Compiled>> AllCompiled() {
  std::vector<std::shared_ptr<Compiled>> live;
  for (auto& weak : Table().all)
    if (std::shared_ptr<Compiled> c = weak.lock()) live.push_back(std::move(c));
  return live;
}

void ResetAll() {
  for (const auto& c : AllCompiled()) ResetCompiled(*c);
}

// Code that is made anew all the time (exec, a class made in a function) is equal, but never the same; or it is the
// same with new globals. Of so many equal ones those that were asked for last stay: each holds what its function held.
// Returns how many have the very same code.
static size_t RetireEqual(Compiled& compiled, PyCodeObject* code) {
  constexpr size_t kEqual = 64;
  std::vector<std::pair<uint64_t, CodeIn>> equal;
  size_t identical = 0;
  for (auto& [other, state] : compiled.codes) {
    if (other.code->co_firstlineno != code->co_firstlineno || !state) continue;
    const int same =
        PyObject_RichCompareBool(reinterpret_cast<PyObject*>(other.code), reinterpret_cast<PyObject*>(code), Py_EQ);
    if (same < 0) PyErr_Clear();
    if (same == 1) equal.emplace_back(state->used, other);
    identical += other.code == code;
  }
  if (equal.size() < kEqual) return identical;
  InUse now;
  std::sort(equal.begin(), equal.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  compiled.Forget();
  auto& codes = Retired().codes.emplace_back();
  for (size_t i = 0; i < equal.size() / 2; ++i) codes.insert(compiled.codes.extract(equal[i].second));
  return identical;
}

CodeState& StateOf(Compiled& compiled, const CodeIn& key) {
  constexpr size_t kNamespaces = 16;  // of one code; it runs in Python with more
  static uint64_t clock = 0;
  PyCodeObject* const code = key.code;
  if (auto known = compiled.codes.find(key); known != compiled.codes.end() && known->second) {
    known->second->used = ++clock;
    return *known->second;
  }
  const size_t namespaces = RetireEqual(compiled, code);
  auto& s = compiled.codes[key];
  if (!s) {
    s = std::make_unique<CodeState>();
    s->code = Borrow(reinterpret_cast<PyObject*>(code));
    s->skip = SkippedFile(code) || !(code->co_flags & CO_OPTIMIZED) ||  // module and class bodies
              namespaces >= kNamespaces;
    s->library = compiled.libraries.Of(code, reinterpret_cast<PyCodeObject*>(compiled.root_code.get()));
    s->hot = !(code->co_ncellvars);
    s->instead = InsteadOf(code);
    s->used = ++clock;
  }
  return *s;
}

}  // namespace framejit::capture
