#include "capture/numbers/provenance.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "capture/events.h"
#include "diag/diag.h"

namespace framejit::capture {
namespace {

using diag::Json;
using diag::Quote;
using shape::Int;

constexpr size_t kMost = 256;  // of expressions and of guards, in one event

class Objects {  // Collects the text of an array of objects.
 public:
  void Add(const std::vector<std::pair<const char*, std::string>>& fields) {
    text_ += text_.size() == 1 ? "{" : ",{";
    for (const auto& [name, value] : fields) text_ += (text_.back() == '{' ? "" : ",") + Quote(name) + ":" + value;
    text_ += "}";
  }
  std::string Done() const { return text_ + "]"; }

 private:
  std::string text_ = "[";
};

std::string Symbols(std::initializer_list<Int> of) {
  std::vector<std::string> names;
  for (Int e : of)
    e.ForEachSymbol([&](uint32_t id) {
      std::string name = "s" + std::to_string(id);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
    });
  return diag::JsonStrings(names);
}

std::string Limit(int64_t limit, bool none) {
  return none ? "null" : Json(limit);
}

}  // namespace

void Provenance::Note(const Graph& g) {
  std::unordered_set<Int> seen;
  for (const Node& n : g.nodes) {
    const auto note = [&](Int e) {
      if (e.is_const() || made_.size() >= kMost || !seen.insert(e).second) return;
      if (n.op == Op::kInput && e.as_symbol()) {
        seen.erase(e);  // where it comes from is told of the symbol itself
        return;
      }
      made_.push_back({e, Info(n.op).name, n.file, n.line});
    };
    for (Int e : n.type.shape) note(e);
    for (Int e : n.attrs.syms) note(e);
    if (n.attrs.sym_scalar) note(*n.attrs.sym_scalar);
  }
}

void Provenance::Tell(const std::string& place, const shape::Env& env, const Numbers& numbers) const {
  if (!env.num_symbols() || !diag::EventsOn()) return;
  Objects symbols, expressions, guards;
  for (uint32_t i = 0; i < env.num_symbols(); ++i) {
    const shape::SymbolInfo& s = env.symbol(i);
    const bool real = numbers.IsFloat(i);
    symbols.Add({{"symbol", Quote("s" + std::to_string(i))},
                 {"source", Quote(s.name)},
                 {"value", real ? Json(std::bit_cast<double>(s.hint)) : Json(s.hint)},
                 {"min", Limit(s.min, real || s.min == INT64_MIN)},
                 {"max", Limit(s.max, real || s.max == INT64_MAX)},
                 {"number", Json(real || s.number)},
                 {"data", Json(s.kind == shape::SymbolKind::kRuntime)}});
  }
  for (const Made& m : made_)
    if (!m.value.as_symbol())
      expressions.Add({{"expression", Quote(m.value.str())},
                       {"symbols", Symbols({m.value})},
                       {"value", Json(env.Hint(m.value))},
                       {"by", Quote(m.by)},
                       {"file", Quote(m.file.str())},
                       {"line", Json(m.line)}});
  for (size_t i = 0; i < env.guards().size() && i < kMost; ++i) {
    const shape::Guard& g = env.guards()[i];
    guards.Add({{"guard", Quote(g.str())}, {"symbols", Symbols({g.lhs, g.rhs})}, {"where", Quote(g.where)}});
  }
  ProvenanceEvent(place, symbols.Done(), expressions.Done(), guards.Done());
}

}  // namespace framejit::capture
