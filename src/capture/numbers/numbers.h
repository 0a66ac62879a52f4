// Python numbers that are symbols of the graph: ints and floats that came from outside and are known to change, and
// what Python's arithmetic made of such floats. A float's symbol has its bits.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/ref.h"
#include "framejit/graph.h"
#include "guard/guard.h"

namespace framejit::capture {

using guard::Source;

// One step of Python's arithmetic on floats, before a run. A symbol below 0: the number.
struct FloatOp {
  char op = '+';  // + - * / ^ (power) and n (negative), a (absolute), i (of an integer), f (a function of `math`)
  int64_t a = -1, b = -1;
  double x = 0, y = 0;
  shape::Int integer;
  double (*function)(double) = nullptr;
  uint32_t result = 0;
  // Nothing: Python may raise an error, or answer by something else than a float.
  std::optional<double> Eval(std::span<const int64_t> symbols) const;
};

// A comparison that the program has asked of a computed float.
struct FloatCheck {
  uint32_t symbol;
  double c;
  int op;  // One of Py_LT and the others.
  bool answer;
  bool Holds(std::span<const int64_t> symbols) const;
  bool operator==(const FloatCheck&) const = default;
};

// What is computed of floats before a run, and what the program asked of the results.
class FloatProgram {
 public:
  FloatProgram() = default;
  FloatProgram(std::vector<FloatOp> ops, std::vector<FloatCheck> checks)
      : ops_(std::move(ops)), checks_(std::move(checks)) {}
  // It is false where the program would take another way than in the capture.
  bool Run(std::span<int64_t> symbols) { return (ops_.empty() && checks_.empty()) || Compute(symbols); }
  bool missed() const { return raises_ || wrong_; }
  void Forget() { raises_ = false, wrong_ = nullptr; }
  std::string WhyMissed() const;

 private:
  bool Compute(std::span<int64_t> symbols);
  std::vector<FloatOp> ops_;
  std::vector<FloatCheck> checks_;
  bool raises_ = false;                // Did an operation of the last run raise?
  const FloatCheck* wrong_ = nullptr;  // The first check that failed in the last run.
};

class Numbers {
 public:
  Numbers(shape::Env& env, Graph& graph, guard::GuardBuilder& guards) : env_(env), graph_(graph), guards_(guards) {}
  // The symbol for what is found at a source, or nothing where that was not met yet.
  std::optional<shape::Int> Int(const Source* s) const;
  std::optional<uint32_t> Float(const Source* s) const;
  // Guards for it are taken. `name`: for reports.
  // It is never less than `min`; what may be 0 or less says so.
  shape::Int NewInt(const Source* s, int64_t value, std::string name, int64_t min = 1);
  uint32_t NewFloat(const Source* s, PyObject* number, std::string name);
  std::optional<uint32_t> Computed(FloatOp op);  // A new symbol, computed before a run.
  std::optional<uint32_t> OfInt(shape::Int i);   // Likewise. Nothing: only the run knows it, or it may not fit.
  // The integer below, or above, a float that was computed of an integer in one step; nothing: it is another float, or
  // its arithmetic may have rounded.
  std::optional<shape::Int> Rounded(uint32_t symbol, bool up);
  double Specialize(uint32_t symbol);               // The number itself, which is guarded.
  bool Compare(uint32_t symbol, double c, int op);  // The answer is guarded, or checked before a run.
  bool IsFloat(uint32_t symbol) const { return known_.contains(symbol); }
  FloatProgram Program() const { return {ops_, checks_}; }

 private:
  struct Known {
    const Source* source;  // Where it was found; null: ops_[op] makes it.
    Ref value;
    size_t op;
  };
  uint32_t NewSymbol(shape::SymbolInfo info);
  uint32_t NewFloatSymbol(std::string name, double value);

  shape::Env& env_;
  Graph& graph_;
  guard::GuardBuilder& guards_;
  std::unordered_map<const Source*, shape::Int> ints_;
  std::unordered_map<const Source*, uint32_t> floats_;
  std::unordered_map<uint32_t, Known> known_;  // What is known of each float, by its symbol.
  std::vector<FloatOp> ops_;
  std::vector<FloatCheck> checks_;
  int scalars_ = 0;
};

}  // namespace framejit::capture
