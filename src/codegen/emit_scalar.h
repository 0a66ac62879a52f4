// One pointwise graph op on values in registers: scalars, or vectors of any width (NVPTX: scalars). In registers bool
// is i1 and 16-bit floats are f32, not always rounded (Result16); memory holds bytes and 16-bit patterns, FromStorage
// and ToStorage convert.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include <span>

#include "codegen/isa.h"
#include "framejit/graph.h"

namespace framejit::codegen {

class OpEmitter {
 public:
  // `ieee`: functions raise the IEEE exceptions of their results.
  OpEmitter(llvm::IRBuilder<>& b, const Isa& isa, bool ieee = false) : b_(b), isa_(isa), ieee_(ieee) {}

  // Lanes 1 is a scalar.
  llvm::Type* RegisterType(DType t, int lanes) const;
  llvm::Type* StorageType(DType t, int lanes) const;
  llvm::Value* FromStorage(llvm::Value* v, DType t);
  llvm::Value* ToStorage(llvm::Value* v, DType t);
  llvm::Value* Unrounded(llvm::Value* v, DType t);  // what Round16 made it of, if it did
  llvm::Constant* Constant(const Scalar& s, DType t, int lanes) const;

  // `from`: type of the operands (where: of the branches). Throws CodegenUnsupported.
  llvm::Value* Emit(Op op, DType result, DType from, std::span<llvm::Value* const> v);
  llvm::Value* Cast(llvm::Value* v, DType from, DType to);
  // a combined with b as reduction `op` (sum, prod, max, min, any, all) does it.
  llvm::Value* Combine(Op op, DType t, llvm::Value* a, llvm::Value* b);
  llvm::Constant* Identity(Op op, DType t, int lanes) const;
  // Is a a better extremum than b? (argmax, argmin; the first of equals and of nans is the best)
  llvm::Value* Better(Op op, DType t, llvm::Value* a, llvm::Value* a_position, llvm::Value* b, llvm::Value* b_position);

  llvm::Value* Opaque(llvm::Value* v);

 private:
  llvm::Value* Compute(Op op, DType result, DType from, std::span<llvm::Value* const> v);
  llvm::Value* Float(Op op, std::span<llvm::Value* const> v);
  llvm::Value* Complex(Op op, std::span<llvm::Value* const> v);
  llvm::Value* Quotient(llvm::Value* a, llvm::Value* b);
  llvm::Value* Integer(Op op, DType t, std::span<llvm::Value* const> v);
  llvm::Value* Bool(Op op, std::span<llvm::Value* const> v);
  llvm::Value* Divide(Op op, DType t, llvm::Value* a, llvm::Value* b);
  llvm::Value* Result16(Op op, DType t, llvm::Value* v);
  bool IsRounded(llvm::Value* v, DType t) const;  // As far as the instructions show it.
  // What `t` holds of an f32, as one. any_nan: it may be a nan that did not come from 16 bits.
  llvm::Value* Round16(llvm::Value* v, DType t, bool any_nan = false);
  llvm::Value* Narrow(llvm::Value* f32);  // Gives the bits of bfloat16.
  llvm::Value* Like(llvm::Value* v, int64_t c) const;
  llvm::Value* Like(llvm::Value* v, double c) const;

  llvm::IRBuilder<>& b_;
  const Isa& isa_;
  bool ieee_;
};

int LanesOf(llvm::Value* v);

}  // namespace framejit::codegen
