// Accumulators of a kernel's reductions: vectors, a copy for each of the bodies that run side by side.
//
// Float sums have two levels: f32 accumulators run over a bounded number of steps and are then added to f64 ones, so
// that long rows keep the error of short ones.
#pragma once

#include <vector>

#include "codegen/instruction_emitter.h"

namespace framejit::codegen {

class ReductionEmitter : protected InstructionEmitter {
 protected:
  using InstructionEmitter::InstructionEmitter;

  struct State {  // accumulators of one reduce instruction, by copy
    int inst;
    Op op;
    DType type;  // compute type of the value
    bool arg;
    std::vector<llvm::AllocaInst*> low, high, position;
  };

  std::vector<State> MakeStates(const Stage& stage, int copies);
  static bool Sums(const State& s) { return s.op == Op::kSum && IsFloat(s.type); }
  void MakeHigh(std::vector<State>& states);  // the upper level of float sums
  void Flush(std::vector<State>& states);     // the lower level goes there
  void Accumulate(State& s, int u, const Copy& copy);
  Value* Finish(const State& s, size_t from, size_t to);  // of copies [from, to): a scalar; in column kernels a vector

 private:
  Value* Horizontal(const State& s, DType t, Value* v, Value* position);  // halves until one lane is left
};

}  // namespace framejit::codegen
