// An executable made of parts that run one after the other. Between them the host makes calls of the framework whose
// results have sizes that only the call itself decides. Such sizes are symbols of the parts behind; after the calls
// they are read, and the conditions on them are checked. Only the last part writes inputs.
#pragma once

#include <memory>
#include <vector>

#include "framejit/compile.h"

namespace framejit::runtime {

struct Pieces {
  // An input of the graph, or what one part hands to another; inputs come first.
  struct Value {
    DType dtype;
    Device device;
    shape::Ints sizes, strides;
    int last = -1;  // When it is last read: 2 * part, or one more where that is by a call behind the part.
  };
  struct Call {
    std::shared_ptr<const framejit::Call> call;
    std::vector<int> operands;  // numbers of values, as all that follow
    std::vector<int> results;
  };
  struct Symbol {
    uint32_t symbol;
    int value, dim;
  };
  struct Part {
    std::shared_ptr<Executable> run;  // takes all symbols as scalar inputs; null: the part is calls alone
    std::vector<int> inputs, outputs;
    std::vector<Call> calls;  // They are made after `run`.
    std::vector<Symbol> symbols;
    std::vector<shape::Guard> conditions;
  };
  size_t num_inputs = 0;
  std::vector<Graph::SymbolSource> sources;  // There is one for each symbol.
  std::vector<Value> values;
  std::vector<Part> parts;
  std::vector<int> outputs;  // The numbers of values.
};

std::shared_ptr<Executable> MakePieces(Pieces p);

}  // namespace framejit::runtime
