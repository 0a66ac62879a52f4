// Interning, and the queries that walk an expression.
#include <absl/container/inlined_vector.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <unordered_set>

#include "shape/node.h"

namespace framejit::shape {
namespace {

size_t Mix(size_t h, size_t v) {
  return (h ^ v) * 0x9E3779B97F4A7C15ull + (h >> 29);
}

size_t HashOf(const Node& n) {  // children are interned: their hash is at hand
  size_t h = Mix(static_cast<size_t>(n.kind) + 1, static_cast<size_t>(n.value));
  for (Int a : n.args) h = Mix(h, a.node()->hash);
  for (const Term& t : n.terms) {
    h = Mix(h, static_cast<size_t>(t.coefficient));
    for (Int f : t.factors) h = Mix(h, f.node()->hash);
  }
  return h;
}

uint32_t StepsOf(const Node& n) {
  uint64_t steps = 1;
  for (Int a : n.args) steps += a.node()->steps;
  for (const Term& t : n.terms)
    for (Int f : t.factors) steps += f.node()->steps;
  return static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX));
}

struct ByContent {
  size_t operator()(const Node* n) const { return n->hash; }
  bool operator()(const Node* a, const Node* b) const {
    return a->kind == b->kind && a->value == b->value && a->args == b->args && a->terms == b->terms;
  }
};

struct Table {  // one per process, never destroyed: Ints may live in statics
  std::mutex mutex;
  std::unordered_set<const Node*, ByContent, ByContent> nodes;
  const Node* Intern(Node node) {
    node.hash = HashOf(node);
    node.steps = StepsOf(node);
    std::lock_guard lock(mutex);
    if (auto it = nodes.find(&node); it != nodes.end()) return *it;
    return *nodes.insert(new Node(std::move(node))).first;
  }
};
Table& TheTable() {
  static Table* table = [] {  // fork() waits for it, so that a child finds it unlocked
    pthread_atfork([] { TheTable().mutex.lock(); }, [] { TheTable().mutex.unlock(); },
                   [] { TheTable().mutex.unlock(); });
    return new Table;
  }();
  return *table;
}

// Almost every Int is a small number: those need no lock once they are there.
constexpr int64_t kSmallMin = -64, kSmallMax = 4096;
std::atomic<const Node*> small[kSmallMax - kSmallMin + 1];

const Node* ConstantNode(int64_t value) {
  if (value < kSmallMin || value > kSmallMax) return TheTable().Intern({Kind::kConst, value, {}, {}});
  std::atomic<const Node*>& known = small[value - kSmallMin];
  const Node* node = known.load(std::memory_order_acquire);
  if (!node) [[unlikely]]
    known.store(node = TheTable().Intern({Kind::kConst, value, {}, {}}), std::memory_order_release);
  return node;
}

size_t HashOf(std::span<const Int> v) {
  size_t h = v.size();
  for (Int e : v) h = Mix(h, reinterpret_cast<uintptr_t>(e.node()));
  return h;
}

struct ByItems {
  size_t operator()(const Ints& v) const { return HashOf(v); }
};
std::unordered_set<Ints, ByItems>& Lists() {  // Asked under the table's mutex.
  static auto* lists = new std::unordered_set<Ints, ByItems>;
  return *lists;
}
std::atomic<const Ints*> recent[1024];  // of the lists with a hash, the one that was asked for last: needs no lock

}  // namespace

IntList::IntList() {
  static const Ints* none = new Ints;
  list_ = none;
}

IntList::IntList(std::span<const Int> v) : IntList() {
  if (v.empty()) return;
  const size_t hash = HashOf(v);
  std::atomic<const Ints*>& known = recent[(hash ^ hash >> 32) % std::size(recent)];
  list_ = known.load(std::memory_order_acquire);
  if (list_ && std::ranges::equal(*list_, v)) return;
  Ints made(v.begin(), v.end());
  {
    std::lock_guard lock(TheTable().mutex);
    list_ = &*Lists().insert(std::move(made)).first;
  }
  known.store(list_, std::memory_order_release);
}

void IntList::Set(size_t i, Int value) {
  absl::InlinedVector<Int, 8> made(begin(), end());
  if (i >= made.size()) throw std::out_of_range("shape::IntList::Set");
  made[i] = value;
  *this = IntList(std::span<const Int>(made));
}

void IntList::Insert(size_t i, Int value) {
  Ints made = *list_;
  made.insert(made.begin() + static_cast<ptrdiff_t>(i), value);
  *this = made;
}

void IntList::Erase(size_t i) {
  Ints made = *list_;
  made.erase(made.begin() + static_cast<ptrdiff_t>(i));
  *this = made;
}

Int Interner::Constant(int64_t value) {
  return Int(ConstantNode(value));
}
Int Interner::Make(Node node) {
  return Int(TheTable().Intern(std::move(node)));
}

Int::Int(int64_t constant) : node_(ConstantNode(constant)) {}
Int Int::Symbol(uint32_t id) {
  return Interner::Make({Kind::kSymbol, id, {}, {}});
}

uint32_t Steps(Int e) {
  return e.node()->steps;
}

bool Int::is_const() const {
  return node_->kind == Kind::kConst;
}
std::optional<int64_t> Int::as_const() const {
  return is_const() ? std::optional(node_->value) : std::nullopt;
}
int64_t Int::value() const {
  if (!is_const()) throw std::logic_error("shape::Int::value() of the symbolic " + str());
  return node_->value;
}
std::optional<uint32_t> Int::as_symbol() const {
  return node_->kind == Kind::kSymbol ? std::optional(static_cast<uint32_t>(node_->value)) : std::nullopt;
}

int64_t Int::Eval(std::span<const int64_t> values) const {
  const Node& n = *node_;
  switch (n.kind) {
    case Kind::kConst: return n.value;
    case Kind::kSymbol:
      if (n.value >= std::ssize(values)) throw std::logic_error("no value for symbol " + str());
      return values[n.value];
    case Kind::kFloorDiv: return PyFloorDiv(n.args[0].Eval(values), n.args[1].Eval(values));
    case Kind::kMod: return PyMod(n.args[0].Eval(values), n.args[1].Eval(values));
    case Kind::kMin:
    case Kind::kMax: {
      int64_t best = n.args[0].Eval(values);
      for (Int a : n.args) {
        int64_t v = a.Eval(values);
        if (n.kind == Kind::kMin ? v < best : v > best) best = v;
      }
      return best;
    }
    case Kind::kSum: {
      int64_t sum = 0;
      for (const Term& t : n.terms) {
        int64_t product = t.coefficient;
        for (Int f : t.factors) product = WrapMul(product, f.Eval(values));
        sum = WrapAdd(sum, product);
      }
      return sum;
    }
  }
  return 0;
}

bool Int::EvalExact(std::span<const int64_t> values, int64_t* value) const {
  const Node& n = *node_;
  for (Int a : n.args)
    if (int64_t v; !a.EvalExact(values, &v)) return false;
  if (n.kind != Kind::kSum) return *value = Eval(values), true;
  *value = 0;
  for (const Term& t : n.terms) {
    int64_t product = t.coefficient, v;
    for (Int f : t.factors)
      if (!f.EvalExact(values, &v) || __builtin_mul_overflow(product, v, &product)) return false;
    if (__builtin_add_overflow(*value, product, value)) return false;
  }
  return true;
}

Int Int::Substitute(std::span<const Int> replacement) const {
  const Node& n = *node_;
  switch (n.kind) {
    case Kind::kConst: return *this;
    case Kind::kSymbol: return n.value < std::ssize(replacement) ? replacement[n.value] : *this;
    case Kind::kFloorDiv: return FloorDiv(n.args[0].Substitute(replacement), n.args[1].Substitute(replacement));
    case Kind::kMod: return Mod(n.args[0].Substitute(replacement), n.args[1].Substitute(replacement));
    case Kind::kMin:
    case Kind::kMax: {
      Int best = n.args[0].Substitute(replacement);
      for (size_t i = 1; i < n.args.size(); ++i) {
        Int v = n.args[i].Substitute(replacement);
        best = n.kind == Kind::kMin ? Min(best, v) : Max(best, v);
      }
      return best;
    }
    case Kind::kSum: {
      Int sum = 0;
      for (const Term& t : n.terms) {
        Int product = t.coefficient;
        for (Int f : t.factors) product = product * f.Substitute(replacement);
        sum = sum + product;
      }
      return sum;
    }
  }
  return *this;
}

void Int::ForEachSymbol(const std::function<void(uint32_t)>& f) const {
  if (node_->kind == Kind::kSymbol) f(static_cast<uint32_t>(node_->value));
  for (Int a : node_->args) a.ForEachSymbol(f);
  for (const Term& t : node_->terms)
    for (Int x : t.factors) x.ForEachSymbol(f);
}

std::strong_ordering Compare(Int a, Int b) {
  if (a == b) return std::strong_ordering::equal;
  const Node &x = *a.node(), &y = *b.node();
  if (auto c = x.kind <=> y.kind; c != 0) return c;
  if (auto c = x.value <=> y.value; c != 0) return c;
  if (auto c = x.args.size() <=> y.args.size(); c != 0) return c;
  for (size_t i = 0; i < x.args.size(); ++i)
    if (auto c = Compare(x.args[i], y.args[i]); c != 0) return c;
  if (auto c = x.terms.size() <=> y.terms.size(); c != 0) return c;
  for (size_t i = 0; i < x.terms.size(); ++i) {
    const Term &s = x.terms[i], &t = y.terms[i];
    if (auto c = s.factors.size() <=> t.factors.size(); c != 0) return c;
    for (size_t k = 0; k < s.factors.size(); ++k)
      if (auto c = Compare(s.factors[k], t.factors[k]); c != 0) return c;
    if (auto c = s.coefficient <=> t.coefficient; c != 0) return c;
  }
  return std::strong_ordering::equal;
}

Ints RowMajor(std::span<const Int> sizes) {
  Ints strides(sizes.size(), Int(1));
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = sizes[i] == Int(0) ? strides[i] : strides[i] * sizes[i];
  return strides;
}

Int Product(std::span<const Int> v) {
  Int p = 1;
  for (Int x : v) p = p * x;
  return p;
}

}  // namespace framejit::shape
