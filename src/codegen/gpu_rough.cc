#include "codegen/gpu_rough.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace framejit::codegen {

using loop::IKind;
using loop::Inst;
using loop::Kernel;

namespace {

struct Finder {
  const Kernel& k;
  const std::vector<int>& number;

  const Inst* Op1(int n, Op op) const {
    const Inst& inst = k.insts[n];
    return inst.kind == IKind::kOp && inst.op == op ? &inst : nullptr;
  }
  bool Half(const Inst& inst) const { return IsFloat(inst.dtype) && DTypeSize(inst.dtype) == 2; }

  bool Falls(int n) const {
    const Inst* exp = Op1(n, Op::kExp);
    const Inst* sub = exp && exp->dtype == DType::kFloat32 ? Op1(exp->operands[0], Op::kSub) : nullptr;
    if (!sub) return false;
    const Inst& maximum = k.insts[sub->operands[1]];
    return maximum.kind == IKind::kReduce && maximum.op == Op::kMax &&
           number[maximum.operands[0]] == number[sub->operands[0]];
  }
  // x where instruction n is x * c.
  int Times(int n, double c) const {
    const Inst* mul = Op1(n, Op::kMul);
    for (int i = 0; mul && i < 2; ++i) {
      const Inst& by = k.insts[mul->operands[i]];
      if (by.kind == IKind::kConst && std::abs(by.scalar.AsDouble() - c) < 1e-6) return mul->operands[1 - i];
    }
    return -1;
  }
  int Gelu(int n) const {
    const Inst* mul = Op1(n, Op::kMul);
    for (int i = 0; mul && i < 2; ++i) {
      const int x = Times(mul->operands[i], 0.5);
      const Inst* add = x >= 0 ? Op1(mul->operands[1 - i], Op::kAdd) : nullptr;
      for (int j = 0; add && j < 2; ++j) {
        const Inst* erf = Op1(add->operands[j], Op::kErf);
        const Inst& one = k.insts[add->operands[1 - j]];
        if (!erf || one.kind != IKind::kConst || one.scalar.AsDouble() != 1) continue;
        const int of = Times(erf->operands[0], std::sqrt(0.5));
        if (of >= 0 && number[of] == number[x]) return x;
      }
    }
    return -1;
  }
};

}  // namespace

RoughPlaces FindRough(const Kernel& k, const std::vector<int>& number, bool kept) {
  const int count = static_cast<int>(k.insts.size());
  const Finder find{k, number};
  RoughPlaces out;
  out.falls.assign(count, false);
  for (int n = 0; n < count; ++n) out.falls[n] = find.Falls(n);
  std::vector<int> stage(count, 0);
  for (size_t s = 0; s < k.stages.size() && !kept; ++s) {
    for (int n : k.stages[s].insts) stage[n] = static_cast<int>(s);
  }
  std::vector<bool> exact(count, false);
  for (bool again = true; again;) {
    std::vector<bool> used(count, false);
    out.rough.assign(count, true);
    for (int n = count; n-- > 0;) {
      const Inst& inst = k.insts[n];
      bool passes = find.Half(inst) && inst.kind == IKind::kOp && inst.op == Op::kCast;
      passes = passes || (inst.kind == IKind::kStore && DTypeSize(k.buffers[inst.buffer].dtype) == 2);
      if (inst.kind == IKind::kOp && out.rough[n] && used[n]) {
        switch (inst.op) {
          case Op::kMul:
          case Op::kDiv:
          case Op::kNeg:
          case Op::kWhere:
          case Op::kReciprocal:
          case Op::kSqrt:
          case Op::kRsqrt: passes = true; break;
          default: break;
        }
      }
      for (int o : inst.operands) {
        used[o] = true;
        const bool term = inst.kind == IKind::kReduce && inst.op == Op::kSum && out.falls[o];
        if (!passes && !term) out.rough[o] = false;
      }
      if (inst.predicate >= 0) out.rough[inst.predicate] = false;
      out.rough[n] = out.rough[n] && used[n] && inst.dtype == DType::kFloat32 && !exact[n];
    }
    // Equal values are computed once: exactly, if one of them must be.
    std::map<std::pair<int, int>, bool> all;
    for (int n = 0; n < count; ++n) {
      auto [at, fresh] = all.try_emplace({number[n], stage[n]}, true);
      at->second = at->second && out.rough[n];
    }
    again = false;
    for (int n = 0; n < count; ++n) {
      if (!out.rough[n] || all[{number[n], stage[n]}]) continue;
      exact[n] = again = true;
    }
  }
  auto is = [](const auto& typed) { return typed.dtype == DType::kFloat16; };
  out.float16 = std::any_of(k.buffers.begin(), k.buffers.end(), is) || std::any_of(k.insts.begin(), k.insts.end(), is);
  out.gelu.assign(count, -1);
  for (int n = 0; n < count; ++n) {
    if (out.rough[n]) out.gelu[n] = find.Gelu(n);
  }
  return out;
}

}  // namespace framejit::codegen
