// The accumulators of a kernel's reductions. They are vectors, one for each of the bodies that run side by side.
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

  // The accumulators of one reduce instruction, one for each body.
  struct State {
    int inst;
    Op op;
    DType type;  // the type that arithmetic on the value happens in
    bool arg;
    std::vector<llvm::AllocaInst*> low, high, position;
  };

  std::vector<State> MakeStates(const Stage& stage, int copies);
  static bool Sums(const State& s) { return s.op == Op::kSum && IsFloat(s.type); }
  void MakeHigh(std::vector<State>& states);  // makes the upper level of float sums
  void Flush(std::vector<State>& states);     // adds the lower level to the upper one
  void Accumulate(State& s, int u, const Copy& copy);
  // Reduces the bodies [from, to) to a scalar, or to a vector in column kernels.
  Value* Finish(const State& s, size_t from, size_t to);

 private:
  // Reduces the lanes of a vector to one, by halves.
  Value* Horizontal(const State& s, DType t, Value* v, Value* position);
};

}  // namespace framejit::codegen
