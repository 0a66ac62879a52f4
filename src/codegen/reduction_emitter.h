// The accumulators of a kernel's reductions. They are vectors, one for each of the bodies that run side by side.
//
// Float sums have two levels: f32 accumulators run over a bounded number of steps and are then added to f64 ones, so
// that long rows keep the error of short ones. Rows of NumPy's floats are summed in the order of its add.reduce, so
// that a sum is the same number in a kernel and in Python: parts of up to 128 elements in eight accumulators, halves
// added to each other.
#pragma once

#include <absl/functional/function_ref.h>

#include <vector>

#include "codegen/instruction_emitter.h"

namespace framejit::codegen {

// Does a stage sum floats along rows of NumPy's?
bool SumsInPairs(const Kernel& k, const Stage& stage);

class ReductionEmitter : protected InstructionEmitter {
 protected:
  using InstructionEmitter::InstructionEmitter;

  // The accumulators of one reduce instruction, one for each body.
  struct State {
    int inst;
    Op op;
    DType type;  // the type that arithmetic on the value happens in
    bool arg;
    bool pairs = false, ordered = false;  // NumPy's sum along a row, and its product
    std::vector<llvm::AllocaInst*> low, high, position;
  };

  std::vector<State> MakeStates(const Stage& stage, int copies);
  // Has it an upper level?
  bool Sums(const State& s) const { return s.op == Op::kSum && IsFloat(s.type) && !k_.insts[s.inst].numpys; }
  void MakeHigh(std::vector<State>& states);  // makes the upper level of float sums
  void Flush(std::vector<State>& states);     // adds the lower level to the upper one
  void Accumulate(State& s, int u, const Copy& copy);
  // Reduces the bodies [from, to) to a scalar, or to a vector in column kernels.
  Value* Finish(const State& s, size_t from, size_t to);

  static constexpr int kAccumulators = 8;
  // A stage with such sums along [from, from + size). rows: emits it for all rows. fetch: asks early for what will be
  // read behind the place i.
  void PairwiseLoopStage(const Stage& stage, Value* from, Value* size,
                         absl::FunctionRef<void(absl::FunctionRef<void()>)> rows,
                         absl::FunctionRef<void(Value* i)> fetch);
  void SetMask(Copy& copy, Value* i, Value* end);

 private:
  // Cuts [from, from + size) as NumPy's pairwise summation does. part: puts the sums of a part into `sums`, as scalars.
  void Pairwise(Value* from, Value* size, const std::vector<llvm::AllocaInst*>& sums,
                absl::FunctionRef<void(Value* at, Value* count)> part);
  void SumPart(const Stage& stage, std::vector<State>& states, const std::vector<llvm::AllocaInst*>& sums, Value* at,
               Value* count, absl::FunctionRef<void(Value* i)> fetch);
  int Vectors() const { return std::max(1, kAccumulators / lanes_); }  // that hold the accumulators
  Value* Eight(Value* x, int from);                                    // eight lanes of a vector
  // Takes one lane after the other into a number.
  void OneByOne(llvm::AllocaInst* all, const State& s, Value* x);
  Value* Neighbours(const State& s);  // Gives the sum of the eight accumulators, neighbours first.
  // Reduces the lanes of a vector to one, by halves.
  Value* Horizontal(const State& s, DType t, Value* v, Value* position);
};

}  // namespace framejit::codegen
