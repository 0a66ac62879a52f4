#include "loop/finish.h"

#include <algorithm>

namespace framejit::loop {
namespace {

using shape::Int;
using shape::Ints;

std::vector<bool> Live(const std::vector<Inst>& insts) {
  std::vector<bool> live(insts.size(), false);
  for (size_t i = insts.size(); i-- > 0;) {
    if (insts[i].kind == IKind::kStore || insts[i].kind == IKind::kCheck) live[i] = true;
  }
  for (bool again = true; again;) {  // scratch stores have higher numbers than their readers' stages: iterate
    again = false;
    for (size_t i = insts.size(); i-- > 0;) {
      if (!live[i]) continue;
      auto mark = [&](int o) {
        if (o >= 0 && !live[o]) live[o] = again = true;
      };
      for (int o : insts[i].operands) mark(o);
      mark(insts[i].predicate);
    }
  }
  return live;
}

class Symbols {  // of the kernel, by the expression of the graph's symbols that they stand for
 public:
  explicit Symbols(std::vector<Int>* symbols) : symbols_(*symbols) {}
  Int Local(Int e) {
    if (e.is_const()) return e;
    auto it = std::find(symbols_.begin(), symbols_.end(), e);
    if (it == symbols_.end()) {
      symbols_.push_back(e);
      it = symbols_.end() - 1;
    }
    return Int::Symbol(static_cast<uint32_t>(it - symbols_.begin()));
  }
  void Local(Ints& v) {
    for (Int& e : v) e = Local(e);
  }

 private:
  std::vector<Int>& symbols_;
};

std::string Name(const Node& last) {  // a first name, which a pass that knows a better one replaces
  std::string name = Info(last.op).name;
  if (last.file.empty()) return name;
  return name + "@" + std::string(last.file.last()) + ":" + std::to_string(last.line);
}

// Complex elements are only moved: as bits, which are one integer where there is one of their size.
DType MovedAs(DType t) {
  return t == DType::kComplex64 ? DType::kInt64 : t;
}

}  // namespace

void Finish(const Graph& g, const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs,
            BuiltKernel* built) {
  Kernel& k = built->kernel;
  for (const auto* values : {&inputs, &outputs}) {
    for (ValueId v : *values) {
      k.buffers.push_back({MovedAs(g.nodes[v].type.dtype), values == &outputs});
      built->buffers.push_back(v);
    }
  }
  const int first_output = static_cast<int>(inputs.size()),
            first_scratch = first_output + static_cast<int>(outputs.size());
  const std::vector<bool> live = Live(k.insts);
  std::vector<int> number(k.insts.size(), -1);
  std::vector<Inst> insts;
  for (Stage& stage : k.stages) {
    std::vector<int> kept;
    for (int i : stage.insts) {
      if (!live[i]) continue;
      number[i] = static_cast<int>(insts.size());
      kept.push_back(number[i]);
      insts.push_back(std::move(k.insts[i]));
    }
    stage.insts = std::move(kept);
  }
  std::erase_if(k.stages, [](const Stage& s) { return s.insts.empty(); });
  k.insts = std::move(insts);
  Symbols symbols(&built->symbols);
  symbols.Local(k.outer);
  symbols.Local(k.red);
  k.inner = symbols.Local(k.inner);
  for (DType& t : k.scratch) t = MovedAs(t);
  for (Inst& inst : k.insts) {
    inst.dtype = MovedAs(inst.dtype);
    for (int& o : inst.operands) o = number[o];
    if (inst.predicate >= 0) inst.predicate = number[inst.predicate];
    inst.sym = symbols.Local(inst.sym);
    inst.index.offset = symbols.Local(inst.index.offset);
    symbols.Local(inst.index.outer);
    symbols.Local(inst.index.red);
    inst.index.inner = symbols.Local(inst.index.inner);
    symbols.Local(inst.strides);
    if (inst.buffer >= kScratch)
      inst.buffer += first_scratch - kScratch;
    else if (inst.buffer >= kOutput)
      inst.buffer += first_output - kOutput;
  }
  k.num_symbols = static_cast<int>(built->symbols.size());
  k.name = Name(g.nodes[outputs.back()]);
}

}  // namespace framejit::loop
