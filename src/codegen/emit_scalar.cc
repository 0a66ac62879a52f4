#include "codegen/emit_scalar.h"

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/Module.h>
#include <llvm/IR/PatternMatch.h>

#include <algorithm>
#include <limits>

#include "codegen/codegen.h"
#include "codegen/math.h"
#include "graph/raises.h"

namespace framejit::codegen {

using llvm::Value;
using llvm::Intrinsic::ID;

int LanesOf(Value* v) {
  auto* t = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
  return t ? static_cast<int>(t->getNumElements()) : 1;
}

namespace {

using llvm::PatternMatch::match, llvm::PatternMatch::m_Add, llvm::PatternMatch::m_And, llvm::PatternMatch::m_AnyZeroFP,
    llvm::PatternMatch::m_BitCast, llvm::PatternMatch::m_ExtractElt, llvm::PatternMatch::m_FAbs,
    llvm::PatternMatch::m_FNeg, llvm::PatternMatch::m_FPExt, llvm::PatternMatch::m_FPTrunc,
    llvm::PatternMatch::m_Intrinsic, llvm::PatternMatch::m_Shl, llvm::PatternMatch::m_SpecificInt,
    llvm::PatternMatch::m_Value, llvm::PatternMatch::m_ZExt, llvm::PatternMatch::m_Zero;

[[noreturn]] void Unsupported(Op op, DType t) {
  throw CodegenUnsupported(std::string(Info(op).name) + " of " + std::string(DTypeName(t)));
}

llvm::Type* Wide(llvm::Type* t, int lanes) {
  return lanes == 1 ? t : llvm::FixedVectorType::get(t, lanes);
}

// Results of these jump: an operand that is still wide is rounded before, so that comparisons and integer parts see
// what the framework would have seen.
bool Discontinuous(Op op) {
  switch (op) {
    case Op::kEq:
    case Op::kNe:
    case Op::kLt:
    case Op::kLe:
    case Op::kFloor:
    case Op::kCeil:
    case Op::kTrunc:
    case Op::kRound:
    case Op::kFloorDiv:
    case Op::kRem:
    case Op::kFmod:
    case Op::kIsInf:
    case Op::kSign: return true;
    default: return false;
  }
}

// Is the result always a number of the operands' own type?
bool Representable(Op op) {
  switch (op) {
    case Op::kNeg:
    case Op::kAbs:
    case Op::kSign:
    case Op::kCeil:
    case Op::kFloor:
    case Op::kTrunc:
    case Op::kRound:
    case Op::kCopysign:
    case Op::kMaximum:
    case Op::kMinimum:
    case Op::kFmod:
    case Op::kWhere: return true;
    default: return false;
  }
}

constexpr int64_t kHighHalf = 0xFFFF0000;

}  // namespace

llvm::Type* OpEmitter::RegisterType(DType t, int lanes) const {
  switch (ComputeType(t)) {
    case DType::kBool: return Wide(b_.getInt1Ty(), lanes);
    case DType::kFloat32: return Wide(b_.getFloatTy(), lanes);
    case DType::kFloat64: return Wide(b_.getDoubleTy(), lanes);
    case DType::kComplex128: return StorageType(t, lanes);
    default:
      if (!IsInteger(t)) throw CodegenUnsupported("type " + std::string(DTypeName(t)));
      return Wide(b_.getIntNTy(DTypeSize(t) * 8), lanes);
  }
}

llvm::Type* OpEmitter::StorageType(DType t, int lanes) const {
  if (t == DType::kFloat32) return Wide(b_.getFloatTy(), lanes);
  if (t == DType::kFloat64) return Wide(b_.getDoubleTy(), lanes);
  if (t == DType::kComplex128) {  // its two parts: one at a time
    if (lanes != 1) throw CodegenUnsupported("vectors of type c128");
    return llvm::FixedVectorType::get(b_.getDoubleTy(), 2);
  }
  return Wide(b_.getIntNTy(DTypeSize(t) * 8), lanes);
}

Value* OpEmitter::Like(Value* v, int64_t c) const {
  return llvm::ConstantInt::get(v->getType(), static_cast<uint64_t>(c), true);
}
Value* OpEmitter::Like(Value* v, double c) const {
  return llvm::ConstantFP::get(v->getType(), c);
}

Value* OpEmitter::FromStorage(Value* v, DType t) {
  const int lanes = LanesOf(v);
  switch (t) {
    case DType::kBool: return b_.CreateICmpNE(v, Like(v, int64_t{0}));
    case DType::kBFloat16: {
      Value* wide = b_.CreateZExt(v, Wide(b_.getInt32Ty(), lanes));
      return b_.CreateBitCast(b_.CreateShl(wide, Like(wide, int64_t{16})), Wide(b_.getFloatTy(), lanes));
    }
    case DType::kFloat16:
      return b_.CreateFPExt(b_.CreateBitCast(v, Wide(b_.getHalfTy(), lanes)), Wide(b_.getFloatTy(), lanes));
    default: return v;
  }
}

Value* OpEmitter::Narrow(Value* v) {
  const int lanes = LanesOf(v);
  Value* bits = b_.CreateBitCast(v, Wide(b_.getInt32Ty(), lanes));
  Value* high = b_.CreateLShr(bits, Like(bits, int64_t{16}));
  Value* odd = b_.CreateAnd(high, Like(bits, int64_t{1}));
  Value* rounded =
      b_.CreateLShr(b_.CreateAdd(bits, b_.CreateAdd(odd, Like(bits, int64_t{0x7FFF}))), Like(bits, int64_t{16}));
  Value* quiet = b_.CreateOr(high, Like(bits, int64_t{0x40}));
  return b_.CreateTrunc(b_.CreateSelect(b_.CreateFCmpUNO(v, v), quiet, rounded), Wide(b_.getInt16Ty(), lanes));
}

Value* OpEmitter::ToStorage(Value* v, DType t) {
  const int lanes = LanesOf(v);
  switch (t) {
    case DType::kBool: return b_.CreateZExt(v, Wide(b_.getInt8Ty(), lanes));
    case DType::kBFloat16:
      v = Unrounded(v, t);
      if (isa_.rounds_to_16) return b_.CreateBitCast(b_.CreateFPTrunc(v, b_.getBFloatTy()), b_.getInt16Ty());
      return Narrow(v);
    case DType::kFloat16:
      v = Unrounded(v, t);
      return b_.CreateBitCast(b_.CreateFPTrunc(v, Wide(b_.getHalfTy(), lanes)), Wide(b_.getInt16Ty(), lanes));
    default: return v;
  }
}

Value* OpEmitter::Round16(Value* v, DType t, bool any_nan) {
  if (IsRounded(v, t)) return v;
  const int lanes = LanesOf(v);
  if (isa_.pairs) {  // one of a pair: single numbers are converted slowly
    if (t == DType::kBFloat16) {
      Value* pair = b_.CreateIntrinsic(llvm::Intrinsic::nvvm_ff2bf16x2_rn, {}, {v, Like(v, 0.0)});
      return b_.CreateBitCast(pair, v->getType());
    }
    Value* pair = b_.CreateIntrinsic(llvm::Intrinsic::nvvm_ff2f16x2_rn, {}, {Like(v, 0.0), v});
    return b_.CreateFPExt(b_.CreateExtractElement(pair, uint64_t{0}), v->getType());
  }
  if (t == DType::kFloat16) return b_.CreateFPExt(b_.CreateFPTrunc(v, Wide(b_.getHalfTy(), lanes)), v->getType());
  if (isa_.rounds_to_16 || any_nan) return FromStorage(ToStorage(v, t), t);
  // A nan that arithmetic has made of 16-bit numbers ends in zeros: adding to it does no harm.
  Value* bits = b_.CreateBitCast(v, Wide(b_.getInt32Ty(), lanes));
  Value* odd = b_.CreateAnd(b_.CreateLShr(bits, Like(bits, int64_t{16})), Like(bits, int64_t{1}));
  Value* rounded = b_.CreateAdd(bits, b_.CreateAdd(odd, Like(bits, int64_t{0x7FFF})));
  return b_.CreateBitCast(b_.CreateAnd(rounded, Like(bits, kHighHalf)), v->getType());
}

Value* OpEmitter::Unrounded(Value* v, DType t) {
  Value* before = nullptr;
  if (t == DType::kFloat16) {
    Value* half = nullptr;
    if (!match(v, m_FPExt(m_Value(half))) || !half->getType()->getScalarType()->isHalfTy()) return v;
    auto pair = m_Intrinsic<llvm::Intrinsic::nvvm_ff2f16x2_rn>(m_AnyZeroFP(), m_Value(before));
    const bool made = match(half, m_FPTrunc(m_Value(before))) || match(half, m_ExtractElt(pair, m_Zero()));
    return made && before->getType() == v->getType() ? before : v;
  }
  Value* word = nullptr;
  if (!match(v, m_BitCast(m_Value(word)))) return v;
  if (match(word, m_Intrinsic<llvm::Intrinsic::nvvm_ff2bf16x2_rn>(m_Value(before), m_AnyZeroFP()))) return before;
  Value* bits = nullptr;
  Value* up = nullptr;
  const bool made = match(word, m_And(m_Add(m_Value(bits), m_Value(up)), m_SpecificInt(uint32_t{kHighHalf}))) &&
                    match(up, m_Add(m_Value(), m_SpecificInt(0x7FFF))) && match(bits, m_BitCast(m_Value(before)));
  return made && before->getType() == v->getType() ? before : v;
}

bool OpEmitter::IsRounded(Value* v, DType t) const {
  if (Value* of = nullptr; match(v, m_FNeg(m_Value(of))) || match(v, m_FAbs(m_Value(of)))) return IsRounded(of, t);
  Value* from = nullptr;
  if (t == DType::kFloat16) return match(v, m_FPExt(m_Value(from))) && from->getType()->getScalarType()->isHalfTy();
  if (!match(v, m_BitCast(m_Value(from)))) return false;
  return match(from, m_Shl(m_ZExt(m_Value()), m_SpecificInt(16))) ||
         match(from, m_And(m_Value(), m_SpecificInt(uint32_t{kHighHalf}))) ||
         match(from, m_Intrinsic<llvm::Intrinsic::nvvm_ff2bf16x2_rn>(m_Value(), m_AnyZeroFP()));
}

// A 16-bit result of an operation. Where rounding is slow a bfloat16, which has the range of a float, stays wide until
// it is stored, converted or compared. What a float16 cannot hold is infinite at once.
Value* OpEmitter::Result16(Op op, DType t, Value* v) {
  const bool wide = t == DType::kBFloat16 && !isa_.rounds_to_16 && !ieee_;
  return wide || Representable(op) ? v : Round16(v, t);
}

llvm::Constant* OpEmitter::Constant(const Scalar& s, DType t, int lanes) const {
  llvm::Type* type = RegisterType(t, lanes);
  if (IsComplex(t)) {  // a real number
    if (lanes != 1 || t != DType::kComplex128) return llvm::Constant::getNullValue(type);
    return llvm::ConstantVector::get(
        {llvm::ConstantFP::get(b_.getDoubleTy(), s.AsDouble()), llvm::ConstantFP::get(b_.getDoubleTy(), 0.0)});
  }
  if (IsFloat(t)) {
    double d = s.AsDouble();
    if (t == DType::kFloat32) d = static_cast<float>(d);
    auto* scalar = llvm::ConstantFP::get(type->getScalarType(), d);
    if (t == DType::kFloat16 || t == DType::kBFloat16) {  // the graph's constant is of that type
      llvm::APFloat f(d);
      bool lost;
      f.convert(t == DType::kFloat16 ? llvm::APFloat::IEEEhalf() : llvm::APFloat::BFloat(),
                llvm::APFloat::rmNearestTiesToEven, &lost);
      f.convert(llvm::APFloat::IEEEsingle(), llvm::APFloat::rmNearestTiesToEven, &lost);
      scalar = llvm::ConstantFP::get(b_.getContext(), f);
    }
    return lanes == 1 ? scalar : llvm::ConstantVector::getSplat(llvm::ElementCount::getFixed(lanes), scalar);
  }
  if (IsBool(t)) return llvm::ConstantInt::get(type, s.AsDouble() != 0);
  return llvm::ConstantInt::get(type, static_cast<uint64_t>(s.AsInt()), true);
}

Value* OpEmitter::Cast(Value* v, DType from, DType to) {
  if (IsFloat(from) && DTypeSize(from) == 2) v = Round16(v, from);
  if (from == to) return v;
  if (to == DType::kComplex128) {
    Value* zero = llvm::Constant::getNullValue(RegisterType(to, 1));
    return b_.CreateInsertElement(zero, Cast(v, from, DType::kFloat64), uint64_t{0});
  }
  const int lanes = LanesOf(v);
  llvm::Type* type = RegisterType(to, lanes);
  if (IsFloat(from)) {
    if (IsFloat(to)) {
      if (v->getType() != type)
        v = type->getScalarType()->isDoubleTy() ? b_.CreateFPExt(v, type) : b_.CreateFPTrunc(v, type);
      return DTypeSize(to) == 2 ? Round16(v, to, true) : v;
    }
    if (IsBool(to)) return b_.CreateFCmpUNE(v, Like(v, 0.0));
    // Out of range as x86 does it, which is what the frameworks' static_cast compiles to: through i32 for small types,
    // through i64 for u32; the indefinite value for the rest. u64 past 2^63 by its own instruction sequence.
    if (to == DType::kUInt64) {
      Value* limit = Like(v, 9223372036854775808.0);
      Value* big = b_.CreateFCmpOGE(v, limit);
      Value* reduced = b_.CreateSelect(big, b_.CreateFSub(v, limit), v);
      Value* whole = b_.CreateFPToSI(reduced, type);
      return b_.CreateSelect(big, b_.CreateXor(whole, Like(whole, std::numeric_limits<int64_t>::min())), whole);
    }
    const int bits = to == DType::kUInt32 || DTypeSize(to) == 8 ? 64 : 32;
    Value* whole = b_.CreateFPToSI(v, Wide(b_.getIntNTy(bits), lanes));
    return bits == DTypeSize(to) * 8 ? whole : b_.CreateTrunc(whole, type);
  }
  if (IsBool(to)) return b_.CreateICmpNE(v, Like(v, int64_t{0}));
  const bool is_signed = IsSigned(from);
  if (IsFloat(to)) {
    v = is_signed ? b_.CreateSIToFP(v, type) : b_.CreateUIToFP(v, type);
    return DTypeSize(to) == 2 && !IsBool(from) ? Round16(v, to) : v;
  }
  return b_.CreateIntCast(v, type, is_signed);
}

Value* OpEmitter::Bool(Op op, std::span<Value* const> v) {
  switch (op) {
    case Op::kNot: return b_.CreateNot(v[0]);
    case Op::kAdd:
    case Op::kOr:
    case Op::kMaximum: return b_.CreateOr(v[0], v[1]);
    case Op::kMul:
    case Op::kAnd:
    case Op::kMinimum: return b_.CreateAnd(v[0], v[1]);
    case Op::kXor:
    case Op::kNe:
    case Op::kSub: return b_.CreateXor(v[0], v[1]);
    case Op::kEq: return b_.CreateNot(b_.CreateXor(v[0], v[1]));
    case Op::kLt: return b_.CreateAnd(b_.CreateNot(v[0]), v[1]);
    case Op::kLe: return b_.CreateOr(b_.CreateNot(v[0]), v[1]);
    case Op::kSign:
    case Op::kAbs:
    case Op::kNeg:
    case Op::kCeil:
    case Op::kFloor:
    case Op::kTrunc:
    case Op::kRound: return v[0];
    case Op::kSignbit:
    case Op::kIsNan:
    case Op::kIsInf: return llvm::Constant::getNullValue(v[0]->getType());
    default: Unsupported(op, DType::kBool);
  }
}

// Integer division never traps: a zero divisor gives zero, the most negative number over -1 wraps.
Value* OpEmitter::Divide(Op op, DType t, Value* a, Value* b) {
  Value* zero = Like(b, int64_t{0});
  Value* by_zero = b_.CreateICmpEQ(b, zero);
  if (ieee_) Note(b_, by_zero, kDivide);
  Value* quotient;
  Value* rest;
  Value* minus_one = nullptr;
  if (DTypeSize(t) <= 4) {  // exact in double, and vectorised
    llvm::Type* f64 = Wide(b_.getDoubleTy(), LanesOf(a));
    Value* safe = b_.CreateSelect(by_zero, Like(b, int64_t{1}), b);
    auto widen = [&](Value* x) { return IsSigned(t) ? b_.CreateSIToFP(x, f64) : b_.CreateUIToFP(x, f64); };
    Value* q = b_.CreateFDiv(widen(a), widen(safe));
    if (DTypeSize(t) < 4) {
      quotient = b_.CreateTrunc(b_.CreateFPToSI(q, Wide(b_.getInt32Ty(), LanesOf(a))), a->getType());
    } else if (IsSigned(t)) {
      minus_one = b_.CreateICmpEQ(b, Like(b, int64_t{-1}));
      quotient = b_.CreateSelect(minus_one, b_.CreateNeg(a), b_.CreateFPToSI(q, a->getType()));
    } else {
      quotient = b_.CreateTrunc(b_.CreateFPToSI(q, Wide(b_.getInt64Ty(), LanesOf(a))), a->getType());
    }
  } else {
    Value* safe = b_.CreateSelect(by_zero, Like(b, int64_t{1}), b);
    if (IsSigned(t)) {
      minus_one = b_.CreateICmpEQ(b, Like(b, int64_t{-1}));
      safe = b_.CreateSelect(minus_one, Like(b, int64_t{1}), safe);
      quotient = b_.CreateSelect(minus_one, b_.CreateNeg(a), b_.CreateSDiv(a, safe));
    } else {
      quotient = b_.CreateUDiv(a, safe);
    }
  }
  rest = b_.CreateSub(a, b_.CreateMul(quotient, b));
  Value* out;
  if (op == Op::kTruncDiv) {
    out = quotient;
  } else if (op == Op::kFmod) {
    out = rest;
  } else {
    Value* adjust = nullptr;  // signs differ and something is left
    if (IsSigned(t)) {
      Value* differ = b_.CreateICmpSLT(b_.CreateXor(a, b), zero);
      adjust = b_.CreateAnd(differ, b_.CreateICmpNE(rest, zero));
    }
    if (op == Op::kFloorDiv)
      out = adjust ? b_.CreateAdd(quotient, b_.CreateSExt(adjust, a->getType())) : quotient;
    else
      out = adjust ? b_.CreateSelect(adjust, b_.CreateAdd(rest, b), rest) : rest;
  }
  return b_.CreateSelect(by_zero, zero, out);
}

Value* OpEmitter::Integer(Op op, DType t, std::span<Value* const> v) {
  const bool is_signed = IsSigned(t);
  Value* a = v[0];
  Value* b = v.size() > 1 ? v[1] : nullptr;
  Value* zero = Like(a, int64_t{0});
  switch (op) {
    case Op::kNeg: return b_.CreateNeg(a);
    case Op::kAbs: return is_signed ? b_.CreateSelect(b_.CreateICmpSLT(a, zero), b_.CreateNeg(a), a) : a;
    case Op::kSign: {
      Value* positive = b_.CreateZExt(
          b_.CreateICmp(is_signed ? llvm::CmpInst::ICMP_SGT : llvm::CmpInst::ICMP_UGT, a, zero), a->getType());
      return is_signed ? b_.CreateOr(positive, b_.CreateAShr(a, Like(a, int64_t{DTypeSize(t) * 8 - 1}))) : positive;
    }
    case Op::kCeil:
    case Op::kFloor:
    case Op::kTrunc:
    case Op::kRound: return a;
    case Op::kNot: return b_.CreateNot(a);
    case Op::kIsNan:
    case Op::kIsInf: return llvm::Constant::getNullValue(Wide(b_.getInt1Ty(), LanesOf(a)));
    case Op::kSignbit:
      return is_signed ? b_.CreateICmpSLT(a, zero) : llvm::Constant::getNullValue(Wide(b_.getInt1Ty(), LanesOf(a)));
    case Op::kAdd: return b_.CreateAdd(a, b);
    case Op::kSub: return b_.CreateSub(a, b);
    case Op::kMul: return b_.CreateMul(a, b);
    case Op::kFloorDiv:
    case Op::kTruncDiv:
    case Op::kRem:
    case Op::kFmod: return Divide(op, t, a, b);
    case Op::kPow: {
      llvm::Type* wide = Wide(b_.getInt64Ty(), LanesOf(a));
      Value* base = b_.CreateIntCast(a, wide, is_signed);
      Value* power = b_.CreateIntCast(b, wide, is_signed);
      return b_.CreateTrunc(CallHelper(b_, isa_, "fj_ipow", {base, power}), a->getType());
    }
    case Op::kMaximum: return b_.CreateSelect(is_signed ? b_.CreateICmpSGT(a, b) : b_.CreateICmpUGT(a, b), a, b);
    case Op::kMinimum: return b_.CreateSelect(is_signed ? b_.CreateICmpSLT(a, b) : b_.CreateICmpULT(a, b), a, b);
    case Op::kAnd: return b_.CreateAnd(a, b);
    case Op::kOr: return b_.CreateOr(a, b);
    case Op::kXor: return b_.CreateXor(a, b);
    case Op::kShl:
    case Op::kShr: {
      const int bits = DTypeSize(t) * 8;
      Value* fits = b_.CreateICmpULT(b, Like(b, int64_t{bits}));
      if (op == Op::kShl) return b_.CreateSelect(fits, b_.CreateShl(a, b_.CreateSelect(fits, b, zero)), zero);
      Value* most = b_.CreateSelect(fits, b, Like(b, int64_t{bits - 1}));
      if (is_signed) return b_.CreateAShr(a, most);
      return b_.CreateSelect(fits, b_.CreateLShr(a, most), zero);
    }
    case Op::kEq: return b_.CreateICmpEQ(a, b);
    case Op::kNe: return b_.CreateICmpNE(a, b);
    case Op::kLt: return is_signed ? b_.CreateICmpSLT(a, b) : b_.CreateICmpULT(a, b);
    case Op::kLe: return is_signed ? b_.CreateICmpSLE(a, b) : b_.CreateICmpULE(a, b);
    default: Unsupported(op, t);
  }
}

Value* OpEmitter::Float(Op op, std::span<Value* const> v) {
  Value* a = v[0];
  Value* b = v.size() > 1 ? v[1] : nullptr;
  auto unary = [&](ID id) { return b_.CreateUnaryIntrinsic(id, a); };
  switch (op) {
    case Op::kNeg: return b_.CreateFNeg(a);
    case Op::kAbs: return unary(llvm::Intrinsic::fabs);
    case Op::kSign: {
      Value* zero = Like(a, 0.0);
      Value* low =
          b_.CreateSelect(b_.CreateFCmpOLT(a, zero), Like(a, -1.0), b_.CreateFAdd(a, zero));  // -0 -> 0, nan stays
      return b_.CreateSelect(b_.CreateFCmpOGT(a, zero), Like(a, 1.0), low);
    }
    case Op::kCeil: return unary(llvm::Intrinsic::ceil);
    case Op::kFloor: return unary(llvm::Intrinsic::floor);
    case Op::kTrunc: return unary(llvm::Intrinsic::trunc);
    case Op::kRound: return unary(llvm::Intrinsic::roundeven);
    case Op::kSqrt: return unary(llvm::Intrinsic::sqrt);
    case Op::kRsqrt:
      if (isa_.function_instructions && a->getType()->isFloatTy())  // as the framework's kernels
        return b_.CreateIntrinsic(llvm::Intrinsic::nvvm_rsqrt_approx_f, {}, {a});
      return b_.CreateFDiv(Like(a, 1.0), unary(llvm::Intrinsic::sqrt));
    case Op::kReciprocal:
      if (isa_.function_instructions) return DivideOnGpu(b_, isa_, Like(a, 1.0), a);
      return b_.CreateFDiv(Like(a, 1.0), a);
    case Op::kIsNan: return b_.CreateFCmpUNO(a, a);
    case Op::kIsInf:
      return b_.CreateFCmpOEQ(unary(llvm::Intrinsic::fabs), Like(a, std::numeric_limits<double>::infinity()));
    case Op::kSignbit: {
      const int bits = a->getType()->getScalarSizeInBits();
      Value* i = b_.CreateBitCast(a, Wide(b_.getIntNTy(bits), LanesOf(a)));
      return b_.CreateICmpSLT(i, Like(i, int64_t{0}));
    }
    case Op::kAdd:
      return isa_.function_instructions && a->getType()->isFloatTy() ? AddOnGpu(b_, isa_, a, b) : b_.CreateFAdd(a, b);
    case Op::kSub: return b_.CreateFSub(a, b);
    case Op::kMul: return b_.CreateFMul(a, b);
    case Op::kDiv: return isa_.function_instructions ? DivideOnGpu(b_, isa_, a, b) : b_.CreateFDiv(a, b);
    case Op::kCopysign: return b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, a, b);
    // One machine instruction, which gives `a` for equal ones and if either is nan; a nan in `b` wins by the second
    // select.
    case Op::kMaximum:
      if (isa_.function_instructions && a->getType()->isFloatTy())
        return b_.CreateBinaryIntrinsic(llvm::Intrinsic::maximum, a, b);
      return b_.CreateSelect(b_.CreateFCmpUNO(b, b), b, b_.CreateSelect(b_.CreateFCmpOLT(a, b), b, a));
    case Op::kMinimum:
      if (isa_.function_instructions && a->getType()->isFloatTy())
        return b_.CreateBinaryIntrinsic(llvm::Intrinsic::minimum, a, b);
      return b_.CreateSelect(b_.CreateFCmpUNO(b, b), b, b_.CreateSelect(b_.CreateFCmpOLT(b, a), b, a));
    case Op::kEq: return b_.CreateFCmpOEQ(a, b);
    case Op::kNe: return b_.CreateFCmpUNE(a, b);
    case Op::kLt: return b_.CreateFCmpOLT(a, b);
    case Op::kLe: return b_.CreateFCmpOLE(a, b);
    case Op::kRem: {
      Value* mod = EmitMath(b_, isa_, Op::kFmod, v);
      Value* zero = Like(mod, 0.0);
      Value* differ = b_.CreateXor(b_.CreateFCmpOLT(b, zero), b_.CreateFCmpOLT(mod, zero));
      Value* adjust = b_.CreateAnd(b_.CreateFCmpUNE(mod, zero), differ);
      return b_.CreateSelect(adjust, b_.CreateFAdd(mod, b), mod);
    }
    case Op::kFloorDiv: {
      Value* zero = Like(a, 0.0);
      Value* mod = EmitMath(b_, isa_, Op::kFmod, v);
      Value* ratio = b_.CreateFDiv(a, b);
      Value* div = b_.CreateFDiv(b_.CreateFSub(a, mod), b);
      Value* differ = b_.CreateXor(b_.CreateFCmpOLT(b, zero), b_.CreateFCmpOLT(mod, zero));
      Value* adjust = b_.CreateAnd(b_.CreateFCmpUNE(mod, zero), differ);
      div = b_.CreateSelect(adjust, b_.CreateFSub(div, Like(a, 1.0)), div);
      Value* floor = b_.CreateUnaryIntrinsic(llvm::Intrinsic::floor, div);
      Value* up = b_.CreateFCmpOGT(b_.CreateFSub(div, floor), Like(a, 0.5));
      floor = b_.CreateSelect(up, b_.CreateFAdd(floor, Like(a, 1.0)), floor);
      Value* signed_zero = b_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, zero, ratio);
      floor = b_.CreateSelect(b_.CreateFCmpOEQ(div, zero), signed_zero, floor);
      return b_.CreateSelect(b_.CreateFCmpOEQ(b, zero), ratio, floor);
    }
    default:
      if (ieee_) NoteExceptions(b_, op, v);
      return EmitMath(b_, isa_, op, v);
  }
}

// Of complex128, as NumPy's loop has it, which divides by the part of the divisor that lies further from 0.
Value* OpEmitter::Quotient(Value* a, Value* b) {
  if (ieee_) b = Opaque(b);  // 0 / 0 of what is constant would raise nothing
  const auto part = [&](Value* x, uint64_t which) { return b_.CreateExtractElement(x, which); };
  const auto size = [&](Value* x) { return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x); };
  // NumPy's comparison tells of a not-a-number. With AVX-512, LLVM would choose one that does not.
  constexpr auto kCompare = llvm::Intrinsic::experimental_constrained_fcmps;
  Value *x = size(part(b, 0)), *y = size(part(b, 1));
  Value* real = ieee_ ? b_.CreateConstrainedFPCmp(kCompare, llvm::CmpInst::FCMP_OGE, x, y, "", llvm::fp::ebStrict)
                      : b_.CreateFCmpOGE(x, y);
  const auto pick = [&](Value* yes, Value* no) { return b_.CreateSelect(real, yes, no); };
  Value *most = pick(part(b, 0), part(b, 1)), *least = pick(part(b, 1), part(b, 0));
  Value *first = pick(part(a, 0), part(a, 1)), *second = pick(part(a, 1), part(a, 0));
  Value* ratio = b_.CreateFDiv(least, most);
  Value* scale = b_.CreateFDiv(Like(ratio, 1.0), b_.CreateFAdd(most, b_.CreateFMul(least, ratio)));
  Value* turned = b_.CreateFMul(first, ratio);
  Value* parts[] = {b_.CreateFAdd(first, b_.CreateFMul(second, ratio)),
                    b_.CreateFSub(pick(second, turned), pick(turned, second))};
  Value* out = llvm::PoisonValue::get(a->getType());
  for (uint64_t k : {0, 1}) out = b_.CreateInsertElement(out, b_.CreateFMul(parts[k], scale), k);
  if (ieee_) return out;  // a division by 0 is told of, and NumPy has it again
  Value* by_zero = b_.CreateFDiv(a, b_.CreateVectorSplat(2, size(part(b, 0))));
  return b_.CreateSelect(b_.CreateFCmpOEQ(most, Like(most, 0.0)), by_zero, out);
}

// Likewise, to the last bit: of two products that are added one is rounded.
Value* OpEmitter::Complex(Op op, std::span<Value* const> v) {
  constexpr int kReal[] = {0, 0}, kImag[] = {1, 1}, kTurned[] = {1, 0}, kFirst[] = {2, 1};
  Value* a = v[0];
  Value* b = v.size() > 1 ? v[1] : nullptr;
  switch (op) {
    case Op::kNeg: return b_.CreateFNeg(a);
    case Op::kAdd: return b_.CreateFAdd(a, b);
    case Op::kSub: return b_.CreateFSub(a, b);
    case Op::kMul: {
      Value* rounded = b_.CreateFMul(b_.CreateShuffleVector(a, kImag), b_.CreateShuffleVector(b, kTurned));
      rounded = b_.CreateShuffleVector(rounded, b_.CreateFNeg(rounded), kFirst);
      return b_.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {b_.CreateShuffleVector(a, kReal), b, rounded});
    }
    case Op::kDiv: return Quotient(a, b);
    default: Unsupported(op, DType::kComplex128);
  }
}

// A value that LLVM knows nothing about: it computes with what it can prove constant, and then no exception is raised
// when the kernel runs.
Value* OpEmitter::Opaque(Value* v) {
  llvm::Type* t = v->getType();
  if (isa_.arithmetic_fence && t->isFPOrFPVectorTy()) return b_.CreateArithmeticFence(v, t);  // costs nothing
  llvm::BasicBlock& entry = b_.GetInsertBlock()->getParent()->getEntryBlock();
  auto* memory = llvm::IRBuilder<>(&entry, entry.begin()).CreateAlloca(t);
  b_.CreateStore(v, memory);
  return b_.CreateLoad(t, memory, true);
}

namespace {

// May LLVM find that this is constant? Constants are, and what is made of integers can be (x - x), not of numbers that
// may be infinite.
bool Folds(Value* v) {
  if (auto* either = llvm::dyn_cast<llvm::SelectInst>(v))
    return Folds(either->getTrueValue()) && Folds(either->getFalseValue());
  if (auto* cast = llvm::dyn_cast<llvm::CastInst>(v))
    return Folds(cast->getOperand(0)) || cast->getSrcTy()->isIntOrIntVectorTy();
  return llvm::isa<llvm::Constant>(v);
}

}  // namespace

Value* OpEmitter::Emit(Op op, DType result, DType from, std::span<Value* const> v) {
  if (!ieee_ || v.empty() || !MayRaise(op, from, result)) return Compute(op, result, from, v);
  if (!v[0]->getType()->isFloatingPointTy() && !std::all_of(v.begin(), v.end(), Folds))
    return Compute(op, result, from, v);
  std::vector<Value*> opaque(v.begin(), v.end());
  opaque[0] = Opaque(v[0]);
  return Compute(op, result, from, opaque);
}

Value* OpEmitter::Compute(Op op, DType result, DType from, std::span<Value* const> v) {
  if (op == Op::kWhere) {
    // A choice may become the mask of the operation whose result it chooses. That raises nothing where it is not
    // chosen.
    const auto apart = [&](Value* x) {
      const bool computed = llvm::isa<llvm::BinaryOperator>(x) || llvm::isa<llvm::CallInst>(x);
      return ieee_ && isa_.arithmetic_fence && computed && x->getType()->isFPOrFPVectorTy() ? Opaque(x) : x;
    };
    return b_.CreateSelect(v[0], apart(v[1]), apart(v[2]));
  }
  if (op == Op::kCast) return Cast(v[0], from, result);
  if (op == Op::kBitcast) {
    if (DTypeSize(from) != DTypeSize(result)) Unsupported(op, from);
    Value* bits = ToStorage(v[0], from);
    return FromStorage(b_.CreateBitCast(bits, StorageType(result, LanesOf(v[0]))), result);
  }
  if (IsBool(from)) return Bool(op, v);
  if (IsInteger(from)) return Integer(op, from, v);
  if (from == DType::kComplex128) return Complex(op, v);
  if (!IsFloat(from)) Unsupported(op, from);
  if (DTypeSize(from) > 2) return Float(op, v);
  std::vector<Value*> operands(v.begin(), v.end());
  if (Discontinuous(op))
    for (Value*& x : operands) x = Round16(x, from);
  Isa approximate = isa_;
  approximate.approximate = isa_.function_instructions;
  Value* out = isa_.function_instructions ? OpEmitter(b_, approximate).Float(op, operands) : Float(op, operands);
  return IsBool(result) ? out : Result16(op, result, out);
}

Value* OpEmitter::Combine(Op op, DType t, Value* a, Value* b) {
  switch (op) {
    case Op::kSum: return IsFloat(t) ? b_.CreateFAdd(a, b) : IsBool(t) ? b_.CreateOr(a, b) : b_.CreateAdd(a, b);
    case Op::kProd: return IsFloat(t) ? b_.CreateFMul(a, b) : IsBool(t) ? b_.CreateAnd(a, b) : b_.CreateMul(a, b);
    case Op::kMax: {
      Value* v[] = {a, b};
      return Emit(Op::kMaximum, t, ComputeType(t), v);
    }
    case Op::kMin: {
      Value* v[] = {a, b};
      return Emit(Op::kMinimum, t, ComputeType(t), v);
    }
    case Op::kAny: return b_.CreateOr(a, b);
    case Op::kAll: return b_.CreateAnd(a, b);
    default: Unsupported(op, t);
  }
}

llvm::Constant* OpEmitter::Identity(Op op, DType t, int lanes) const {
  const double inf = std::numeric_limits<double>::infinity();
  llvm::Type* type = RegisterType(t, lanes);
  const bool largest = op == Op::kMin || op == Op::kArgMin;
  switch (op) {
    case Op::kSum:
    case Op::kAny: return llvm::Constant::getNullValue(type);
    case Op::kProd: return IsBool(t) ? Constant(true, t, lanes) : Constant(1, t, lanes);
    case Op::kAll: return Constant(true, DType::kBool, lanes);
    default: break;
  }
  if (IsFloat(t)) return Constant(largest ? inf : -inf, ComputeType(t), lanes);
  if (IsBool(t)) return Constant(largest, t, lanes);
  const int bits = DTypeSize(t) * 8;
  llvm::APInt value = IsSigned(t)
                          ? (largest ? llvm::APInt::getSignedMaxValue(bits) : llvm::APInt::getSignedMinValue(bits))
                          : (largest ? llvm::APInt::getMaxValue(bits) : llvm::APInt::getMinValue(bits));
  return llvm::ConstantInt::get(type, value);
}

Value* OpEmitter::Better(Op op, DType t, Value* a, Value* a_position, Value* b, Value* b_position) {
  const bool max = op == Op::kArgMax;
  Value* before = b_.CreateICmpSLT(a_position, b_position);
  if (IsBool(t)) {
    Value* wins = max ? b_.CreateAnd(a, b_.CreateNot(b)) : b_.CreateAnd(b, b_.CreateNot(a));
    return b_.CreateOr(wins, b_.CreateAnd(b_.CreateICmpEQ(a, b), before));
  }
  if (IsInteger(t)) {
    Value* v[] = {max ? b : a, max ? a : b};
    return b_.CreateOr(Integer(Op::kLt, t, v), b_.CreateAnd(b_.CreateICmpEQ(a, b), before));
  }
  Value* a_nan = b_.CreateFCmpUNO(a, a);
  Value* b_nan = b_.CreateFCmpUNO(b, b);
  Value* wins = max ? b_.CreateFCmpOGT(a, b) : b_.CreateFCmpOLT(a, b);
  wins = b_.CreateOr(wins, b_.CreateAnd(a_nan, b_.CreateNot(b_nan)));
  Value* same = b_.CreateOr(b_.CreateFCmpOEQ(a, b), b_.CreateAnd(a_nan, b_nan));
  return b_.CreateOr(wins, b_.CreateAnd(same, before));
}

}  // namespace framejit::codegen
