// Symbolic integers. An Int is an immutable, interned (hash-consed) canonical expression over symbols s0, s1, ...;
// equal expressions are the same pointer, so comparing and hashing cost nothing. Interned nodes live for the process.
// What an expression *means* for one capture (hints, ranges, which questions were asked) is kept by Env.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace framejit::shape {

struct Node;

class Int {
 public:
  Int() : Int(int64_t{0}) {}
  Int(int64_t constant);                         // NOLINT: sizes are written as plain numbers everywhere
  Int(int constant) : Int(int64_t{constant}) {}  // NOLINT
  static Int Symbol(uint32_t id);

  bool is_const() const;
  std::optional<int64_t> as_const() const;
  int64_t value() const;  // Asked only where is_const().
  std::optional<uint32_t> as_symbol() const;

  // Value under symbol_values[id] for every symbol id that occurs. Division by zero yields 0.
  int64_t Eval(std::span<const int64_t> symbol_values) const;
  // The same, or false where a number on the way does not fit 64 bits.
  bool EvalExact(std::span<const int64_t> symbol_values, int64_t* value) const;
  // The same expression with symbol i replaced by replacement[i] (symbols past the end stay).
  Int Substitute(std::span<const Int> replacement) const;
  // Calls f(id) for every symbol that occurs, possibly more than once.
  void ForEachSymbol(const std::function<void(uint32_t)>& f) const;
  std::string str() const;                            // "4", "s0", "(s0*12 + 3)", "(s0 // 2)"
  static std::optional<Int> Parse(std::string_view);  // Reads what str() writes.

  friend bool operator==(Int a, Int b) { return a.node_ == b.node_; }
  const Node* node() const { return node_; }

 private:
  explicit Int(const Node* n) : node_(n) {}
  friend struct Interner;
  const Node* node_;
};

// Canonical form: sums of integer-coefficient products; like terms are merged.
Int operator+(Int a, Int b);
Int operator-(Int a, Int b);
Int operator*(Int a, Int b);
inline Int operator-(Int a) {
  return Int(0) - a;
}
Int FloorDiv(Int a, Int b);  // As Python's //. An exact division is simplified.
Int Mod(Int a, Int b);       // As Python's %.
Int Min(Int a, Int b);
Int Max(Int a, Int b);
inline Int CeilDiv(Int a, Int b) {
  return FloorDiv(a + b - Int(1), b);
}

}  // namespace framejit::shape

template <>
struct std::hash<framejit::shape::Int> {
  size_t operator()(framejit::shape::Int v) const { return std::hash<const void*>()(v.node()); }
};

namespace framejit::shape {

using Ints = std::vector<Int>;

// Ints that do not change, interned for the process as Int is: sizes and strides, which thousands of nodes share.
class IntList {
 public:
  IntList();
  IntList(const Ints& v) : IntList(std::span<const Int>(v)) {}                                   // NOLINT
  IntList(std::initializer_list<Int> v) : IntList(std::span<const Int>(v.begin(), v.size())) {}  // NOLINT
  explicit IntList(std::span<const Int> v);

  operator const Ints&() const { return *list_; }  // NOLINT(google-explicit-constructor): it is such a list
  const Ints& list() const { return *list_; }
  bool empty() const { return list_->empty(); }
  size_t size() const { return list_->size(); }
  const Int* data() const { return list_->data(); }
  const Int& operator[](size_t i) const { return (*list_)[i]; }
  const Int& at(size_t i) const { return list_->at(i); }
  const Int& front() const { return list_->front(); }
  const Int& back() const { return list_->back(); }
  auto begin() const { return list_->begin(); }
  auto end() const { return list_->end(); }
  auto rbegin() const { return list_->rbegin(); }
  auto rend() const { return list_->rend(); }

  // What follows makes it another list.
  void clear() { *this = IntList(); }
  void Set(size_t i, Int value);
  void Insert(size_t i, Int value);
  void Erase(size_t i);
  template <class Map>  // Int(Int)
  void Each(Map map) {
    Ints made;
    for (size_t i = 0; i < size(); ++i) {
      const Int value = map((*this)[i]);
      if (made.empty() && value == (*this)[i]) continue;
      if (made.empty()) made = *list_;
      made[i] = value;
    }
    if (!made.empty()) *this = made;
  }

  friend bool operator==(IntList a, IntList b) { return a.list_ == b.list_; }
  friend bool operator==(IntList a, const Ints& b) { return *a.list_ == b; }

 private:
  const Ints* list_;
};
Int Product(std::span<const Int> v);
Ints RowMajor(std::span<const Int> sizes);     // strides of what lies row by row; an empty dimension counts as one
std::string ToString(std::span<const Int> v);  // "[4, s0, 12]"

enum class SymbolKind : uint8_t { kInput, kRuntime };  // known at entry / appears while the graph runs
enum class Cmp : uint8_t { kEq, kNe, kLt, kLe };

struct SymbolInfo {
  std::string name;  // where it came from, e.g. "L['x'].size(0)"
  int64_t hint = 0;  // The value that the capture saw.
  int64_t min = 0;
  int64_t max = INT64_MAX;
  SymbolKind kind = SymbolKind::kInput;
  bool number = false;  // a number of the program, of any size; others are sizes of what is in memory
};

// A relation that the captured program relied on, with the source line that asked. It does not hold where a side of it
// does not fit 64 bits.
struct Guard {
  Cmp cmp;
  Int lhs, rhs;
  std::string where;  // "file:line", empty if unknown
  bool Holds(std::span<const int64_t> symbol_values) const;
  std::string str() const;
};

// The symbols of one capture and the questions asked of them. Not thread safe.
class Env {
 public:
  Int NewSymbol(SymbolInfo info);
  size_t num_symbols() const { return symbols_.size(); }
  const SymbolInfo& symbol(uint32_t id) const { return symbols_[id]; }
  std::span<const int64_t> hints() const { return hints_; }
  int64_t Hint(Int e) const { return e.Eval(hints_); }
  void SetHint(uint32_t id, int64_t value) { symbols_[id].hint = hints_[id] = value; }
  bool AtRun(Int e) const;  // does it hold a symbol that appears while the graph runs?
  bool AtRun(const Guard& g) const { return AtRun(g.lhs) || AtRun(g.rhs); }

  // Is the relation true? Answered by algebra and ranges when possible; otherwise by the hint, and then recorded as a
  // guard so that the answer stays true for every run of the compiled code.
  bool Ask(Cmp cmp, Int a, Int b);
  bool Eq(Int a, Int b) { return Ask(Cmp::kEq, a, b); }
  bool Lt(Int a, Int b) { return Ask(Cmp::kLt, a, b); }
  bool Le(Int a, Int b) { return Ask(Cmp::kLe, a, b); }
  // As Ask, but never records: nullopt if algebra and ranges cannot tell.
  std::optional<bool> Prove(Cmp cmp, Int a, Int b) const;
  // e with what the recorded equalities say put in: after s1 == s0 every s1 is s0, after s0 == 4 every s0 is 4.
  Int Simplify(Int e) const { return e.Substitute(replacement_); }
  // Bounds that ranges and recorded guards imply, both ends included; INT64_MIN / INT64_MAX: none.
  struct Range {
    int64_t lo, hi;
  };
  Range Bounds(Int e) const;
  // Is e, taken as Python's number, one of 64 bits? Guarded where it depends on the symbols. `exact`: what Python gets
  // for the hints; another value than e's means that coefficients went past 64 bits.
  bool Fits(Int e, __int128 exact);
  // The hint as a number, guarded by equality: the program needed the concrete value.
  int64_t Specialize(Int e);

  // While alive, sizes that appear while the graph runs are taken to be at least 2: of questions whose answers show in
  // nothing but strides of what has one element or none.
  class Typical {
   public:
    explicit Typical(Env& env) : env_(env) { ++env_.typical_; }
    ~Typical() { --env_.typical_; }
    Typical(const Typical&) = delete;

   private:
    Env& env_;
  };

  // What holds in every run, as something else sees to, is known from here on and no guard.
  void Assume(Cmp cmp, Int a, Int b) { Learn(cmp, a, b); }

  const std::vector<Guard>& guards() const { return guards_; }
  void set_location_provider(std::function<std::string()> f) { where_ = std::move(f); }

 private:
  void Learn(Cmp cmp, Int lhs, Int rhs);
  Range Intersect(Range r, Int e) const;

  std::vector<SymbolInfo> symbols_;
  std::vector<int64_t> hints_;
  int typical_ = 0;
  std::vector<Guard> guards_;
  Ints replacement_;                                     // by symbol; the symbol itself if no equality is known
  std::unordered_map<Int, Range> facts_;                 // bounds of expressions learned from guards
  std::unordered_map<Int, std::vector<int64_t>> holes_;  // values an expression is known not to have
  std::function<std::string()> where_;
};

}  // namespace framejit::shape
