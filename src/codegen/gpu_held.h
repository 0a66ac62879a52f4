// Rows that a block, or a cluster of them, holds in shared memory while loops go over them. A thread asks for its own
// vectors of the row and for nobody else's: no barrier is needed. The steps of the loops come as groups of copies, so
// that the first loop begins when its first step is there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "codegen/gpu_thread.h"

namespace framejit::codegen {

class GpuHeld : public GpuThread {
 protected:
  using GpuThread::GpuThread;

  int64_t RowThreads() const { return int64_t{s_.row_threads} * s_.cluster; }
  int HeldSteps() const { return steps_; }
  bool AllHere() const { return here_ == steps_; }
  bool Held(int n, const Site& site) const override { return site.chunk && !from_.empty() && from_[number_[n]] >= 0; }

  // sites: of a step of the loops, all of which have so many.
  void Hold(int steps, const std::function<std::vector<Site>(int step)>& sites) {
    steps_ = steps;
    memory_ =
        new llvm::GlobalVariable(m_, llvm::ArrayType::get(b_.getInt8Ty(), 0), false, llvm::GlobalValue::ExternalLinkage,
                                 nullptr, "held", nullptr, llvm::GlobalValue::NotThreadLocal, kShared);
    memory_->setAlignment(llvm::Align(16));
    from_.assign(k_.insts.size(), -1);
    const std::vector<int> loads = GpuHeldLoads(k_, s_);
    int from = 0;
    for (int n : loads) {
      from_[number_[n]] = from;
      from += steps * s_.unroll * BytesOfVectors(n);
    }
    for (int i = 0; i < steps; ++i) {
      for (const Site& site : sites(i)) {
        for (int n : loads) {
          const Inst& inst = k_.insts[n];
          Value* p = Address(inst, site, 0);
          if (site.active) p = b_.CreateSelect(site.active, p, buffers_[inst.buffer]);
          const Words w = WordsOf(k_.buffers[inst.buffer].dtype);
          for (int a = 0; a < w.count / w.per_access; ++a) Copy(w, p, a, At(n, w, site, a), site.active);
        }
      }
      Asm("cp.async.commit_group;");
    }
  }
  // Until step `i` is there; asked in order.
  void Await(int i) {
    Asm(("cp.async.wait_group " + std::to_string(steps_ - 1 - i) + ";").c_str());
    here_ = i + 1;
  }
  Values HeldWords(int n, const Site& site) override {
    const Words w = WordsOf(k_.buffers[k_.insts[n].buffer].dtype);
    Values words;
    for (int a = 0; a < w.count / w.per_access; ++a) {
      for (Value* word : LoadAccess(w, At(n, w, site, a))) words.push_back(word);
    }
    return words;
  }

 private:
  int BytesOfVectors(int n) const {  // One vector of every thread.
    return s_.threads * vector_ * DTypeSize(k_.buffers[k_.insts[n].buffer].dtype);
  }
  // Of access `a` of the thread's vector.
  Value* At(int n, const Words& w, const Site& site, int a) {
    const int bytes = w.per_access * w.size;
    Value* before = b_.CreateUDiv(site.chunk, I(RowThreads()));  // How many vectors lie before it.
    Value* at = Add(Mul(thread_, I(bytes)), Mul(before, I(BytesOfVectors(n))));
    at = Add(at, I(from_[number_[n]] + site.number * BytesOfVectors(n) + a * s_.threads * bytes));
    return b_.CreateGEP(b_.getInt8Ty(), memory_, Wide(at));
  }
  // Where there is nothing to read it leaves zeros, and reads nothing: one address for all who have nothing is slow.
  void Copy(const Words& w, Value* p, int a, Value* to, Value* active) {
    const int bytes = w.per_access * w.size;
    const std::string code = std::string("cp.async.") + (bytes == 16 ? "cg" : "ca") + ".shared.global [$0], [$1], " +
                             std::to_string(bytes) + (active ? ", $2;" : ";");
    Value* at = a ? b_.CreateConstGEP1_64(b_.getInt8Ty(), p, a * bytes) : p;
    Values operands = {b_.CreateTrunc(b_.CreatePtrToInt(to, b_.getInt64Ty()), b_.getInt32Ty()), at};
    if (active) operands.push_back(b_.CreateSelect(active, b_.getInt32(bytes), b_.getInt32(0)));
    std::vector<llvm::Type*> types;
    for (Value* v : operands) types.push_back(v->getType());
    auto* f = llvm::FunctionType::get(b_.getVoidTy(), types, false);
    b_.CreateCall(llvm::InlineAsm::get(f, code, active ? "r,l,r,~{memory}" : "r,l,~{memory}", /*hasSideEffects=*/true),
                  operands);
  }

  llvm::GlobalVariable* memory_ = nullptr;
  std::vector<int> from_;  // by value number: bytes; -1: not held
  int steps_ = 0, here_ = 0;
};

}  // namespace framejit::codegen
