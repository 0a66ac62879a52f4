#include "capture/numbers/numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

namespace framejit::capture {

std::optional<double> FloatOp::Eval(std::span<const int64_t> symbols) const {
  const double l = a < 0 ? x : std::bit_cast<double>(symbols[a]), r = b < 0 ? y : std::bit_cast<double>(symbols[b]);
  double result;
  switch (op) {
    case '+': return l + r;
    case '-': return l - r;
    case '*': return l * r;
    case '/': return r == 0 ? std::nullopt : std::optional(l / r);
    case 'n': return -l;
    case 'a': return std::fabs(l);
    case 'i': return static_cast<double>(integer.Eval(symbols));
    case '^': result = std::pow(l, r); break;
    default: result = function(l);
  }
  // Where there is an error (ValueError, OverflowError, ZeroDivisionError) or a complex number, this is what C has.
  if ((std::isnan(result) && !std::isnan(l) && !std::isnan(r)) ||
      (std::isinf(result) && std::isfinite(l) && std::isfinite(r)))
    return std::nullopt;
  return result;
}

bool FloatCheck::Holds(std::span<const int64_t> symbols) const {
  return guard::Compare(std::bit_cast<double>(symbols[symbol]), c, op) == answer;
}

std::optional<shape::Int> Numbers::Int(const Source* s) const {
  auto at = ints_.find(s);
  return at == ints_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<uint32_t> Numbers::Float(const Source* s) const {
  auto at = floats_.find(s);
  return at == floats_.end() ? std::nullopt : std::optional(at->second);
}

uint32_t Numbers::NewSymbol(shape::SymbolInfo info) {
  const uint32_t id = *env_.NewSymbol(std::move(info)).as_symbol();
  graph_.symbol_sources.resize(id + 1);
  graph_.symbol_sources[id] = {scalars_++, -1};
  return id;
}

uint32_t Numbers::NewFloatSymbol(std::string name, double value) {
  shape::SymbolInfo info;
  info.name = std::move(name);
  info.hint = std::bit_cast<int64_t>(value);
  info.min = INT64_MIN;
  return NewSymbol(std::move(info));
}

shape::Int Numbers::NewInt(const Source* s, int64_t value, std::string name, int64_t min) {
  shape::SymbolInfo info;
  info.name = std::move(name);
  info.hint = value;
  info.min = min;
  info.number = true;
  guard::Row row{guard::Kind::kIntSymbol, s};
  row.number = NewSymbol(std::move(info));
  row.here = true;
  const shape::Int symbol = shape::Int::Symbol(static_cast<uint32_t>(row.number));
  guards_.Add(std::move(row));
  ints_.emplace(s, symbol);
  return symbol;
}

uint32_t Numbers::NewFloat(const Source* s, PyObject* number, std::string name) {
  const uint32_t id = NewFloatSymbol(std::move(name), PyFloat_AS_DOUBLE(number));
  guard::Row row{guard::Kind::kFloatSymbol, s};
  row.number = id;
  row.here = true;
  guards_.Add(std::move(row));
  floats_.emplace(s, id);
  known_[id] = {s, Borrow(number), 0};
  return id;
}

std::optional<uint32_t> Numbers::Computed(FloatOp op) {
  const std::optional<double> now = op.Eval(env_.hints());
  if (!now) return std::nullopt;
  op.result = NewFloatSymbol("float", *now);
  known_[op.result] = {nullptr, {}, ops_.size()};
  ops_.push_back(op);
  return op.result;
}

std::optional<uint32_t> Numbers::OfInt(shape::Int i) {
  constexpr int64_t kExact = int64_t{1} << 53;
  if (env_.AtRun(i) || !env_.Le(-kExact, i) || !env_.Le(i, kExact)) return std::nullopt;
  FloatOp op;
  op.op = 'i';
  op.integer = i;
  return Computed(op);
}

// n * (m / 2^k) is exact below 2^53, and a quotient of integers below 2^53 is never rounded to an integer that it is
// not.
std::optional<shape::Int> Numbers::Rounded(uint32_t symbol, bool up) {
  constexpr int64_t kExact = int64_t{1} << 53;
  constexpr int kMostBits = 30;
  auto made = [&](int64_t s) {
    const Known* k = s < 0 ? nullptr : &known_.at(static_cast<uint32_t>(s));
    return k && !k->source ? &ops_[k->op] : nullptr;
  };
  const FloatOp* op = made(symbol);
  if (op && op->op == 'i') return op->integer;
  if (!op || (op->op != '*' && op->op != '/')) return {};
  const bool right = op->op == '*' && op->a < 0;
  const FloatOp* of = made(right ? op->b : op->a);
  if (!of || of->op != 'i' || (right ? op->a : op->b) >= 0) return {};
  double factor = right ? op->x : op->y;
  shape::Int n = of->integer, by = 1;
  if (!(factor > 0) || factor >= int64_t{1} << kMostBits || !env_.Le(0, n)) return {};
  if (op->op == '/') {
    if (factor != std::floor(factor)) return {};
    by = static_cast<int64_t>(factor);
  } else {
    int bits = 0;
    while (factor != std::floor(factor) && bits < kMostBits) factor *= 2, ++bits;
    if (factor != std::floor(factor) || factor >= int64_t{1} << kMostBits) return {};
    if (!env_.Le(n, kExact / static_cast<int64_t>(factor))) return {};
    n = n * static_cast<int64_t>(factor);
    by = int64_t{1} << bits;
  }
  return FloorDiv(up ? n + by - 1 : n, by);
}

double Numbers::Specialize(uint32_t symbol) {
  const Known& f = known_.at(symbol);
  if (f.source) {
    guard::Row row{guard::Kind::kEqual, f.source};
    row.object = f.value.get();
    row.here = true;
    guards_.Add(std::move(row));
  } else {
    const FloatOp op = ops_[f.op];
    if (op.op == 'i') env_.Specialize(op.integer);
    if (op.a >= 0) Specialize(static_cast<uint32_t>(op.a));
    if (op.b >= 0) Specialize(static_cast<uint32_t>(op.b));
  }
  return std::bit_cast<double>(env_.hints()[symbol]);
}

bool Numbers::Compare(uint32_t symbol, double c, int op) {
  const double now = std::bit_cast<double>(env_.hints()[symbol]);
  const Known& f = known_.at(symbol);
  const bool holds = guard::Compare(now, c, op);
  if (!f.source) {
    const FloatCheck check{symbol, c, op, holds};
    if (std::find(checks_.begin(), checks_.end(), check) == checks_.end()) checks_.push_back(check);
    return holds;
  }
  Ref with(PyFloat_FromDouble(c));
  guard::Row row{guard::Kind::kFloatCompare, f.source};
  row.number = op | holds << 3;
  row.object = with.get();
  row.here = true;
  guards_.Add(std::move(row));
  return holds;
}

bool FloatProgram::Compute(std::span<int64_t> symbols) {
  for (const FloatOp& op : ops_) {
    const std::optional<double> value = op.Eval(symbols);
    if (!value) return raises_ = true, false;
    symbols[op.result] = std::bit_cast<int64_t>(*value);
  }
  for (const FloatCheck& check : checks_)
    if (!check.Holds(symbols)) return wrong_ = &check, false;
  return true;
}

std::string FloatProgram::WhyMissed() const {
  if (raises_) return "a float that is computed from numbers that change: Python raises an error now";
  static constexpr const char* kCompare[] = {"<", "<=", "==", "!=", ">", ">="};
  return std::string("a float that is computed from numbers that change: expected ") + (wrong_->answer ? "" : "not ") +
         kCompare[wrong_->op] + " " + std::to_string(wrong_->c);
}

}  // namespace framejit::capture
