// An executable that keeps what depends on weights alone. Its main graph takes such values as inputs behind its own.
// Another graph computes them when they are needed first, and again whenever the host says that a weight has changed.
#pragma once

#include <functional>

#include "framejit/compile.h"

namespace framejit::runtime {

struct Preparation {
  struct Value {
    std::vector<int> sources;  // what it depends on: positions in Preparation::sources
    bool optional = false;     // the main executable also takes a buffer without memory for it
  };
  std::shared_ptr<Executable> make;  // takes the weights; its outputs are the last inputs of the main executable
  std::vector<int> sources;          // which inputs of the program those weights are
  std::vector<Value> values;         // There is one for each output of `make`.
  // Makes an executable of the whole graph that keeps nothing, for weights that change so often that keeping does not
  // pay.
  std::function<std::shared_ptr<Executable>()> plain;
};

std::shared_ptr<Executable> MakePrepared(std::shared_ptr<Executable> main, Preparation preparation);

int64_t PreparedBytes();  // what all executables hold now

}  // namespace framejit::runtime
