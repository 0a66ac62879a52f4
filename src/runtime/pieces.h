// An executable made of several that run one after the other, because sizes of results of calls between them are known
// only once they have run. The host makes those calls; then the symbols that are sizes of their results are known, and
// the conditions on them are looked at. Only the last part writes inputs.
#pragma once

#include <memory>
#include <vector>

#include "framejit/compile.h"

namespace framejit::runtime {

struct Pieces {
  struct Value {  // graph inputs first, then what passes between parts
    DType dtype;
    Device device;
    shape::Ints sizes, strides;
    int last = -1;  // the last part that reads it
  };
  struct Call {
    std::shared_ptr<const framejit::Call> call;
    std::vector<int> operands;
    std::vector<int> results;  // values
  };
  struct Symbol {
    uint32_t symbol;
    int value, dim;
  };
  struct Part {
    std::shared_ptr<Executable> run;  // its scalar inputs are all symbols; null: nothing but calls
    std::vector<int> inputs, outputs;
    std::vector<Call> calls;  // behind it
    std::vector<Symbol> symbols;
    std::vector<shape::Guard> conditions;
  };
  size_t num_inputs = 0;
  std::vector<Graph::SymbolSource> sources;  // by symbol
  std::vector<Value> values;
  std::vector<Part> parts;
  std::vector<int> outputs;  // values
};

std::shared_ptr<Executable> MakePieces(Pieces p);

}  // namespace framejit::runtime
