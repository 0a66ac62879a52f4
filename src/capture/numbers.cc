#include "capture/numbers.h"

#include <bit>
#include <cmath>
#include <optional>

namespace framejit::capture {

double FloatOp::Eval(const int64_t* symbols) const {
  const double l = a < 0 ? x : std::bit_cast<double>(symbols[a]), r = b < 0 ? y : std::bit_cast<double>(symbols[b]);
  switch (op) {
    case '+': return l + r;
    case '-': return l - r;
    case '*': return l * r;
    case '/': return l / r;
    case 'n': return -l;
    default: return std::fabs(l);
  }
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

shape::Int Numbers::NewInt(const Source* s, int64_t value, std::string name) {
  shape::SymbolInfo info;
  info.name = std::move(name);
  info.hint = value;
  info.min = 2;
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

uint32_t Numbers::Computed(FloatOp op) {
  op.result = NewFloatSymbol("float", op.Eval(env_.hints().data()));
  known_[op.result] = {nullptr, {}, ops_.size()};
  ops_.push_back(op);
  return op.result;
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
    if (op.a >= 0) Specialize(static_cast<uint32_t>(op.a));
    if (op.b >= 0) Specialize(static_cast<uint32_t>(op.b));
  }
  return std::bit_cast<double>(env_.hints()[symbol]);
}

bool Numbers::Compare(uint32_t symbol, double c, int op) {
  const double now = std::bit_cast<double>(env_.hints()[symbol]);
  const Known& f = known_.at(symbol);
  const bool holds = guard::Compare(now, c, op);
  if (!f.source && ops_[f.op].op == 'n') {
    constexpr int kMirrored[] = {Py_GT, Py_GE, Py_EQ, Py_NE, Py_LT, Py_LE};  // -a < c: a > -c
    return Compare(static_cast<uint32_t>(ops_[f.op].a), -c, kMirrored[op]);
  }
  if (!f.source) return Specialize(symbol), holds;
  Ref with(PyFloat_FromDouble(c));
  guard::Row row{guard::Kind::kFloatCompare, f.source};
  row.number = op | holds << 3;
  row.object = with.get();
  row.here = true;
  guards_.Add(std::move(row));
  return holds;
}

}  // namespace framejit::capture
