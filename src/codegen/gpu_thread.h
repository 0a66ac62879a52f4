// What one thread of a GPU kernel computes at its sites: control flow, addresses, accesses, instructions. How sites are
// laid over a kernel is gpu_emit.cc's.
#pragma once

#include <absl/functional/function_ref.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "codegen/codegen.h"
#include "codegen/emit_scalar.h"
#include "codegen/gpu_rough.h"
#include "codegen/gpu_schedule.h"
#include "codegen/math.h"

namespace framejit::codegen {

using llvm::Value;
using loop::IKind;
using loop::Inst;
using loop::Kernel;
using loop::Stage;
using shape::Int;
using Values = std::vector<Value*>;

inline constexpr int kGlobal = 1, kShared = 3;

class GpuThread {
 protected:
  GpuThread(llvm::Module& m, const Kernel& k, const Isa& isa, const GpuSchedule& schedule)
      : m_(m),
        k_(k),
        s_(schedule),
        b_(m.getContext()),
        ops_(b_, isa),
        rough_isa_(Rough(isa)),
        rough_ops_(b_, rough_isa_),
        vector_(schedule.vector) {
    index_ = schedule.narrow ? b_.getInt32Ty() : b_.getInt64Ty();
    uniform_ = GpuUniform(k, vector_);
    Number();
    places_ = FindRough(k, number_, schedule.mode != GpuSchedule::kRow || schedule.resident);
  }

  virtual ~GpuThread() = default;
  // Of the layouts: a scan's values at a site; does the access go through shared memory? Is the row held there?
  struct Site {
    Value* i = nullptr;       // The inner index of lane 0.
    Value* active = nullptr;  // Null: always.
    Values outer, red;
    std::vector<Values> values;  // by value number: lanes, or one for all
    Value* chunk = nullptr;      // row kernels: the vector of the row at which its step begins,
    int number = 0;              // and which of the step's sites it is
  };

  virtual Values Scan(int n, const Inst& inst, const Site& site) = 0;
  virtual bool Staged(int n) const = 0;
  virtual bool Held(int n, const Site& site) const = 0;
  virtual Values HeldWords(int n, const Site& site) = 0;

  // --- small things
  void Annotate(const char* what, int value) {
    llvm::LLVMContext& c = m_.getContext();
    llvm::Metadata* operands[] = {llvm::ConstantAsMetadata::get(f_), llvm::MDString::get(c, what),
                                  llvm::ConstantAsMetadata::get(b_.getInt32(value))};
    m_.getOrInsertNamedMetadata("nvvm.annotations")->addOperand(llvm::MDNode::get(c, operands));
  }
  llvm::BasicBlock* Block(const char* name) { return llvm::BasicBlock::Create(m_.getContext(), name, f_); }
  Value* Register(llvm::Intrinsic::ID id) {
    Value* v = b_.CreateIntrinsic(id, {}, {});
    return s_.narrow ? v : b_.CreateZExt(v, index_);
  }
  Value* I(int64_t v) { return llvm::ConstantInt::get(index_, static_cast<uint64_t>(v), true); }
  Value* IntOf(Int e) { return e.is_const() ? I(e.value()) : symbols_[*e.as_symbol()]; }
  Value* IntOf64(Int e) { return e.is_const() ? b_.getInt64(e.value()) : symbols64_[*e.as_symbol()]; }
  static bool Is(Value* v, int64_t n) {
    auto* c = llvm::dyn_cast<llvm::ConstantInt>(v);
    return c && c->getSExtValue() == n;
  }
  Value* Add(Value* a, Value* b) {
    if (Is(a, 0)) return b;
    if (Is(b, 0)) return a;
    return b_.CreateAdd(a, b, "", false, true);
  }
  Value* Mul(Value* a, Value* b) {
    if (Is(a, 0) || Is(b, 0)) return I(0);
    if (Is(a, 1)) return b;
    if (Is(b, 1)) return a;
    return b_.CreateMul(a, b, "", false, true);
  }
  Value* Min(Value* a, Value* b) { return b_.CreateSelect(b_.CreateICmpSLT(a, b), a, b); }
  Value* And(Value* a, Value* b) { return !a ? b : !b ? a : b_.CreateAnd(a, b); }
  llvm::AllocaInst* Slot(llvm::Type* t, Value* initial) {
    llvm::IRBuilder<> entry(entry_, entry_->begin());
    auto* slot = entry.CreateAlloca(t);
    slots_.push_back(slot);
    Set(slot, initial);
    return slot;
  }
  Value* Get(llvm::AllocaInst* slot) { return b_.CreateLoad(slot->getAllocatedType(), slot); }
  void Set(llvm::AllocaInst* slot, Value* v) { b_.CreateStore(v, slot); }

  // for (i = from; i < to; i += step) body(i)
  void For(Value* from, Value* to, Value* step, absl::FunctionRef<void(Value*)> body) {
    ForOn(Slot(index_, from), to, step, body);
  }
  void ForOn(llvm::AllocaInst* counter, Value* to, Value* step, absl::FunctionRef<void(Value*)> body) {
    auto* head = Block("head");
    auto* loop = Block("loop");
    auto* after = Block("after");
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    Value* i = Get(counter);
    b_.CreateCondBr(b_.CreateICmpSLT(i, to), loop, after);
    b_.SetInsertPoint(loop);
    body(i);
    Set(counter, Add(i, step));
    b_.CreateBr(head);
    b_.SetInsertPoint(after);
  }
  void If(Value* condition, absl::FunctionRef<void()> body) {
    if (!condition) return body();
    auto* yes = Block("yes");
    auto* after = Block("after");
    b_.CreateCondBr(condition, yes, after);
    b_.SetInsertPoint(yes);
    body();
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
  }
  void Asm(const char* code) {
    auto* f = llvm::FunctionType::get(b_.getVoidTy(), false);
    b_.CreateCall(llvm::InlineAsm::get(f, code, "~{memory}", /*hasSideEffects=*/true));
  }
  void Barrier() { b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {}); }

  // coordinates of a flat position, last extent fastest
  Values Unflatten(Value* flat, const std::vector<Int>& extents) {
    Values out(extents.size());
    for (size_t d = extents.size(); d-- > 0;) {
      if (d == 0) {
        out[0] = flat;
      } else {
        out[d] = b_.CreateURem(flat, IntOf(extents[d]));
        flat = b_.CreateUDiv(flat, IntOf(extents[d]));
      }
    }
    return out;
  }
  Value* Product(const std::vector<Int>& extents) {
    Value* v = I(1);
    for (Int e : extents) v = Mul(v, IntOf(e));
    return v;
  }
  Value* NumVectors() {  // How many vectors the inner axis has.
    if (k_.inner.is_const()) return I((k_.inner.value() + vector_ - 1) / vector_);
    Value* n = IntOf(k_.inner);
    return vector_ == 1 ? n : b_.CreateUDiv(Add(n, I(vector_ - 1)), I(vector_));
  }
  static std::optional<int64_t> Const(Value* v) {
    if (auto* c = llvm::dyn_cast<llvm::ConstantInt>(v)) return c->getSExtValue();
    return std::nullopt;
  }

  // --- value numbers
  void Number() {
    std::map<std::string, int> seen;
    for (int n = 0; n < k_.insts.size(); ++n) {
      const Inst& inst = k_.insts[n];
      number_.push_back(n);
      if (inst.kind == IKind::kReduce || inst.kind == IKind::kScan || inst.kind == IKind::kStore) continue;
      if (inst.buffer >= 0 && k_.buffers[inst.buffer].written) continue;
      std::string key = std::to_string(static_cast<int>(inst.kind)) + "," +
                        std::to_string(inst.kind == IKind::kOp ? static_cast<int>(inst.op) : 0) + "," +
                        std::to_string(static_cast<int>(inst.dtype)) + "," + std::to_string(inst.buffer) + ",";
      if (inst.kind == IKind::kConst) {
        const double d = inst.scalar.AsDouble();
        uint64_t bits;
        std::memcpy(&bits, &d, sizeof bits);
        key += std::to_string(bits) + ":" + std::to_string(IsFloat(inst.dtype) ? 0 : inst.scalar.AsInt());
      }
      auto put = [&](Int e) { key += e.str() + " "; };
      put(inst.sym);
      put(inst.index.offset);
      for (Int e : inst.index.outer) put(e);
      for (Int e : inst.index.red) put(e);
      put(inst.index.inner);
      for (Int e : inst.strides) put(e);
      for (int o : inst.operands) key += "%" + std::to_string(number_[o]);
      if (inst.predicate >= 0) key += "?" + std::to_string(number_[inst.predicate]);
      number_[n] = seen.emplace(key, n).first->second;
    }
  }

  static Isa Rough(Isa isa) {
    isa.approximate = true;
    return isa;
  }

  const Values& Lanes(const Site& site, int inst) const {
    const int n = number_[inst];
    return row_[n].empty() ? site.values[n] : row_[n];
  }
  Value* Lane(const Site& site, int inst, int lane) const {
    const Values& v = Lanes(site, inst);
    return v[v.size() == 1 ? 0 : lane];
  }

  // --- instructions
  Value* Position(const Inst& inst, const Site& site) {
    Value* v = IntOf(inst.index.offset);
    for (size_t d = 0; d < site.outer.size(); ++d) v = Add(v, Mul(site.outer[d], IntOf(inst.index.outer[d])));
    for (size_t d = 0; d < site.red.size(); ++d) v = Add(v, Mul(site.red[d], IntOf(inst.index.red[d])));
    if (site.i) v = Add(v, Mul(site.i, IntOf(inst.index.inner)));
    return v;
  }
  Value* Wide(Value* v) { return b_.CreateSExt(v, b_.getInt64Ty()); }
  // Address of lane `lane`.
  Value* Address(const Inst& inst, const Site& site, int lane) {
    Value* at = Position(inst, site);
    if (lane) at = Add(at, Mul(I(lane), IntOf(inst.index.inner)));
    Value* wide = Wide(at);
    if (inst.kind == IKind::kLoadAt) {
      for (size_t o = 0; o < inst.operands.size(); ++o) {
        wide = b_.CreateAdd(wide, b_.CreateMul(Lane(site, inst.operands[o], lane), IntOf64(inst.strides[o])));
      }
    }
    return b_.CreateGEP(ops_.StorageType(k_.buffers[inst.buffer].dtype, 1), buffers_[inst.buffer], wide);
  }
  Value* OrZeros(Value* pointer, Value* condition) {
    if (!condition) return pointer;
    if (!zeros_) {
      auto* type = llvm::ArrayType::get(b_.getInt8Ty(), 64);
      zeros_ = new llvm::GlobalVariable(m_, type, true, llvm::GlobalValue::InternalLinkage,
                                        llvm::ConstantAggregateZero::get(type), "zeros", nullptr,
                                        llvm::GlobalValue::NotThreadLocal, kGlobal);
      zeros_->setAlignment(llvm::Align(64));
    }
    return b_.CreateSelect(condition, pointer, zeros_);
  }

  // A vector travels as words of 32 bits (64 and 128 for elements of such a size), 16 bytes an access.
  struct Words {
    llvm::Type* type;
    int size, per_access, count;  // bytes of a word; words of an access, in all
  };
  Words WordsOf(DType t) {
    const int bytes = vector_ * DTypeSize(t), size = DTypeSize(t) >= 8 ? DTypeSize(t) : bytes >= 4 ? 4 : bytes;
    return {b_.getIntNTy(size * 8), size, std::min(16, bytes) / size, bytes / size};
  }
  Values LoadVector(const Inst& inst, Value* p) {
    const DType t = k_.buffers[inst.buffer].dtype;
    Values out = LoadLanes(inst, p);
    for (Value*& v : out) v = ops_.FromStorage(v, t);
    return out;
  }
  // What is read once is not kept in the first cache; only where little is written, or reads evict what was written
  // (measured: loops over long rows lose by it). Not as constant data (ld.global.nc): the assembler moves such a load
  // before the wait for the kernel that writes it.
  bool ReadOnce(const Inst& inst) const {
    if (s_.stores || (s_.mode == GpuSchedule::kRow && !s_.resident) || inst.kind != IKind::kLoad ||
        k_.buffers[inst.buffer].written)
      return false;
    auto moves = [](const shape::Ints& coefs) {
      return std::all_of(coefs.begin(), coefs.end(), [](Int c) { return c != Int(0); });
    };
    return moves(inst.index.outer) && moves(inst.index.red);
  }
  Value* LoadOnce(llvm::Type* word, int count, Value* p) {
    const int bits = word->getIntegerBitWidth();
    const std::string c = bits == 64 ? "l" : bits == 32 ? "r" : "h";
    std::string results, constraints;
    for (int i = 0; i < count; ++i) {
      results += (i ? ", $" : "$") + std::to_string(i);
      constraints += "=" + c + ",";
    }
    if (count > 1) results = "{" + results + "}";
    const std::string code = "ld.global.L1::no_allocate" + (count > 1 ? ".v" + std::to_string(count) : std::string()) +
                             ".b" + std::to_string(bits) + " " + results + ", [$" + std::to_string(count) + "];";
    llvm::Type* type = word;
    if (count > 1) type = llvm::StructType::get(m_.getContext(), std::vector<llvm::Type*>(count, word));
    auto* f = llvm::FunctionType::get(type, {p->getType()}, false);
    return b_.CreateCall(llvm::InlineAsm::get(f, code, constraints + "l,~{memory}", /*hasSideEffects=*/true), {p});
  }
  Values LoadLanes(const Inst& inst, Value* p) {  // as memory has them; wide accesses only
    return LanesOf(k_.buffers[inst.buffer].dtype, LoadWords(inst, p));
  }
  Values LoadWords(const Inst& inst, Value* p) {
    const Words w = WordsOf(k_.buffers[inst.buffer].dtype);
    const bool once = ReadOnce(inst) && w.size > 1 && w.size <= 8;
    Values words;
    for (int first = 0; first < w.count; first += w.per_access) {
      Value* at = first ? b_.CreateConstGEP1_64(b_.getInt8Ty(), p, first * w.size) : p;
      if (once) {
        Value* v = LoadOnce(w.type, w.per_access, at);
        for (unsigned i = 0; i < static_cast<unsigned>(w.per_access); ++i)
          words.push_back(w.per_access > 1 ? b_.CreateExtractValue(v, i) : v);
        continue;
      }
      for (Value* word : LoadAccess(w, at)) words.push_back(word);
    }
    return words;
  }
  Values LoadAccess(const Words& w, Value* at) {
    const llvm::Align align(w.per_access * w.size);
    if (w.per_access == 1) return {b_.CreateAlignedLoad(w.type, at, align)};
    Values words;
    Value* v = b_.CreateAlignedLoad(llvm::FixedVectorType::get(w.type, w.per_access), at, align);
    for (int i = 0; i < w.per_access; ++i) words.push_back(b_.CreateExtractElement(v, uint64_t(i)));
    return words;
  }
  Values LanesOf(DType t, const Values& words) {
    const int size = DTypeSize(t), per_word = WordsOf(t).size / size;
    Values out;
    llvm::Type* element = ops_.StorageType(t, 1);
    for (int lane = 0; lane < vector_; ++lane) {
      Value* word = words[lane / per_word];
      if (const int shift = lane % per_word * size * 8) word = b_.CreateLShr(word, shift);
      word = b_.CreateTrunc(word, b_.getIntNTy(size * 8));
      out.push_back(b_.CreateBitCast(word, element));
    }
    return out;
  }
  void StoreVector(const Inst& inst, Value* p, Values values) {
    const DType t = k_.buffers[inst.buffer].dtype;
    if (DTypeSize(t) == 2 && IsFloat(t) && values.size() % 2 == 0 && s_.pairs)
      return StoreWords(t, p, Pairs(t, values));
    for (Value*& v : values) v = ops_.ToStorage(v, t);
    StoreLanes(t, p, values);
  }
  // Two conversions by one instruction, which is not one of the slow ones.
  Values Pairs(DType t, const Values& values) {
    const auto id = t == DType::kBFloat16 ? llvm::Intrinsic::nvvm_ff2bf16x2_rn : llvm::Intrinsic::nvvm_ff2f16x2_rn;
    Values words;
    for (size_t i = 0; i < values.size(); i += 2) {
      Value* pair = b_.CreateIntrinsic(id, {}, {ops_.Unrounded(values[i + 1], t), ops_.Unrounded(values[i], t)});
      words.push_back(b_.CreateBitCast(pair, b_.getInt32Ty()));
    }
    return words;
  }
  void StoreLanes(DType t, Value* p, const Values& values) {
    const Words w = WordsOf(t);
    const int size = DTypeSize(t), per_word = w.size / size;
    Values words;
    for (int lane = 0; lane < vector_; ++lane) {
      Value* v = b_.CreateBitCast(values[lane], b_.getIntNTy(size * 8));
      v = b_.CreateZExt(v, w.type);
      const int shift = lane % per_word * size * 8;
      if (shift)
        words.back() = b_.CreateOr(words.back(), b_.CreateShl(v, shift));
      else
        words.push_back(v);
    }
    StoreWords(t, p, words);
  }
  void StoreWords(DType t, Value* p, const Values& words) {
    const Words w = WordsOf(t);
    for (int first = 0; first < w.count; first += w.per_access) {
      Value* at = first ? b_.CreateConstGEP1_64(b_.getInt8Ty(), p, first * w.size) : p;
      const llvm::Align align(w.per_access * w.size);
      Value* v = words[first];
      if (w.per_access > 1) {
        v = llvm::PoisonValue::get(llvm::FixedVectorType::get(w.type, w.per_access));
        for (int i = 0; i < w.per_access; ++i) v = b_.CreateInsertElement(v, words[first + i], uint64_t(i));
      }
      b_.CreateAlignedStore(v, at, align);
    }
  }

  DType OperandType(const Inst& inst) const { return k_.insts[inst.operands[inst.op == Op::kWhere ? 1 : 0]].dtype; }

  Values Load(int n, const Inst& inst, const Site& site) {
    const DType t = k_.buffers[inst.buffer].dtype;
    const bool wide = s_.wide_access[n] && vector_ == s_.vector && vector_ > 1;
    if (wide && Held(n, site)) {
      Values out = LanesOf(t, HeldWords(n, site));
      for (Value*& v : out) v = ops_.FromStorage(v, t);
      return out;
    }
    if (wide) {
      Value* condition = And(site.active, inst.predicate >= 0 ? Lane(site, inst.predicate, 0) : nullptr);
      return LoadVector(inst, OrZeros(Address(inst, site, 0), condition));
    }
    Values out;
    for (int lane = 0; lane < (uniform_[n] ? 1 : vector_); ++lane) {
      Value* condition = And(site.active, inst.predicate >= 0 ? Lane(site, inst.predicate, lane) : nullptr);
      Value* p = OrZeros(Address(inst, site, lane), condition);
      Value* v = b_.CreateAlignedLoad(ops_.StorageType(t, 1), p, llvm::Align(DTypeSize(t)));
      out.push_back(ops_.FromStorage(v, t));
    }
    return out;
  }

  void Store(int n, const Inst& inst, const Site& site, Value* leader) {
    const DType t = k_.buffers[inst.buffer].dtype;
    If(And(site.active, leader), [&] {
      if (s_.wide_access[n] && vector_ == s_.vector && vector_ > 1) {
        Values lanes;
        for (int lane = 0; lane < vector_; ++lane) lanes.push_back(Lane(site, inst.operands[0], lane));
        return StoreVector(inst, Address(inst, site, 0), lanes);
      }
      for (int lane = 0; lane < (uniform_[n] ? 1 : vector_); ++lane) {
        b_.CreateAlignedStore(ops_.ToStorage(Lane(site, inst.operands[0], lane), t), Address(inst, site, lane),
                              llvm::Align(DTypeSize(t)));
      }
    });
  }

  // An index out of range ends the kernel with an error of the device, as the framework's own assertion does.
  void Check(const Inst& inst, const Site& site) {
    for (Value* bad : Lanes(site, inst.operands[0])) {
      If(And(site.active, bad), [&] { b_.CreateIntrinsic(llvm::Intrinsic::trap, {}, {}); });
    }
  }

  Values Evaluate(int n, const Inst& inst, const Site& site) {
    const int lanes = uniform_[n] ? 1 : vector_;
    Values out;
    switch (inst.kind) {
      case IKind::kConst: return {ops_.Constant(inst.scalar, inst.dtype, 1)};
      case IKind::kSym: return {ops_.Cast(IntOf64(inst.sym), DType::kInt64, inst.dtype)};
      case IKind::kIota:
      case IKind::kInBounds: {
        Value* first = Position(inst, site);
        for (int lane = 0; lane < lanes; ++lane) {
          Value* at = lane ? Add(first, Mul(I(lane), IntOf(inst.index.inner))) : first;
          out.push_back(inst.kind == IKind::kIota ? ops_.Cast(Wide(at), DType::kInt64, inst.dtype)
                                                  : b_.CreateICmpULT(at, IntOf(inst.sym)));
        }
        return out;
      }
      case IKind::kOp:
        for (int lane = 0; lane < lanes; ++lane) {
          if (places_.falls[n] && places_.rough[n]) {
            out.push_back(FallingExpOnGpu(b_, Lane(site, inst.operands[0], lane)));
            continue;
          }
          if (places_.gelu[n] >= 0 && s_.pairs) {
            out.push_back(GeluOnGpu(b_, Lane(site, places_.gelu[n], lane), !places_.float16));
            continue;
          }
          Values operands;
          for (int o : inst.operands) operands.push_back(Lane(site, o, lane));
          if (Value* sum = Contracted(inst, operands)) {
            out.push_back(sum);
            continue;
          }
          out.push_back((places_.rough[n] ? rough_ops_ : ops_).Emit(inst.op, inst.dtype, OperandType(inst), operands));
        }
        return out;
      case IKind::kLoad:
      case IKind::kLoadAt: return Load(n, inst, site);
      default: throw CodegenUnsupported("instruction on a GPU");
    }
  }

  // x * y + z, rounded once, where that is as good.
  Value* Contracted(const Inst& inst, const Values& operands) {
    auto* product = k_.contract && inst.op == Op::kAdd ? llvm::dyn_cast<llvm::BinaryOperator>(operands[1]) : nullptr;
    if (!product || product->getOpcode() != llvm::Instruction::FMul) return nullptr;
    return b_.CreateIntrinsic(llvm::Intrinsic::fma, {product->getType()},
                              {product->getOperand(0), product->getOperand(1), operands[0]});
  }

  // A sum that is made next may take in the products among its operands.
  void AllowContract(const Values& operands) {
    llvm::FastMathFlags flags = b_.getFastMathFlags();
    flags.setAllowContract();
    b_.setFastMathFlags(flags);
    for (Value* v : operands) {
      auto* product = llvm::dyn_cast<llvm::BinaryOperator>(v);
      if (product && product->getOpcode() == llvm::Instruction::FMul) product->setHasAllowContract(true);
    }
  }

  // LLVM would start with all loads of a long kernel and end with one sum after the other: more than registers hold.
  // Sums that go on past instruction `now` are made before anything that follows.
  static constexpr int kSettle = 12;
  void Settle(const Stage& stage, int now, std::vector<Site>& sites) {
    std::vector<bool> open(k_.insts.size(), false);
    for (int n : stage.insts) {
      if (n < now) continue;
      for (int o : k_.insts[n].operands) open[o] = open[o] || (o < now && k_.insts[o].op == Op::kAdd);
    }
    for (int n : stage.insts) {
      if (!open[n] || k_.insts[n].dtype != DType::kFloat32) continue;
      for (Site& site : sites) {
        for (Value*& v : site.values[number_[n]]) {
          auto* f = llvm::FunctionType::get(v->getType(), {v->getType()}, false);
          v = b_.CreateCall(llvm::InlineAsm::get(f, "", "=f,0,~{memory}", /*hasSideEffects=*/true), {v});
        }
      }
    }
  }

  // All instructions of the stage on the sites; sites side by side, so that their loads are in flight together.
  void Emit(const Stage& stage, std::vector<Site>& sites) {
    for (Site& site : sites) site.values.resize(k_.insts.size());
    int emitted = 0;
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (k_.contract && ++emitted % kSettle == 0) Settle(stage, n, sites);
      if (inst.kind == IKind::kReduce || inst.kind == IKind::kStore) continue;
      for (Site& site : sites) {
        if (inst.kind == IKind::kCheck) {
          Check(inst, site);
          continue;
        }
        if (!row_[number_[n]].empty() || !site.values[number_[n]].empty()) continue;
        site.values[number_[n]] = inst.kind == IKind::kScan ? Scan(n, inst, site) : Evaluate(n, inst, site);
      }
    }
    for (int n : stage.insts) {
      if (k_.insts[n].kind != IKind::kStore || Staged(n)) continue;
      for (Site& site : sites) Store(n, k_.insts[n], site, nullptr);
    }
  }

  // Once per row, by every thread that has it; the leader stores.
  void EmitRow(const Stage& stage, const Site& at, Value* leader) {
    Site site = at;
    site.active = nullptr;  // positions are in range for every thread
    site.values.assign(k_.insts.size(), {});
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind == IKind::kStore)
        Store(n, inst, site, And(at.active, leader));
      else if (inst.kind == IKind::kCheck)
        Check(inst, site);
      else if (row_[number_[n]].empty())
        row_[number_[n]] = Evaluate(n, inst, site);
    }
  }

  llvm::Module& m_;
  const Kernel& k_;
  const GpuSchedule& s_;
  llvm::IRBuilder<> b_;
  OpEmitter ops_;
  Isa rough_isa_;
  OpEmitter rough_ops_;
  RoughPlaces places_;
  int vector_;  // 1 in the tail
  llvm::Type* index_;
  llvm::Function* f_ = nullptr;
  llvm::BasicBlock* entry_ = nullptr;
  std::vector<llvm::AllocaInst*> slots_;
  Values buffers_, symbols_, symbols64_;
  Value *thread_ = nullptr, *block_ = nullptr, *lane_in_row_ = nullptr;
  llvm::GlobalVariable* zeros_ = nullptr;
  std::vector<bool> uniform_;
  std::vector<int> number_;
  std::vector<Values> row_;  // by value number: what was computed once per row
};

}  // namespace framejit::codegen
