// An executable that keeps what was made of weights alone. Its main graph takes those values as inputs behind its own;
// another graph makes them, when they are needed first and whenever the host says that a weight has changed.
#pragma once

#include <functional>

#include "framejit/compile.h"

namespace framejit::runtime {

struct Preparation {
  struct Value {
    std::vector<int> sources;  // that it is made of, as numbers of `sources`
    bool optional = false;     // the main executable takes a buffer without memory instead
  };
  std::shared_ptr<Executable> make;  // of the weights; its outputs are the last inputs of the main executable
  std::vector<int> sources;          // which inputs those weights are
  std::vector<Value> values;         // its outputs
  std::function<std::shared_ptr<Executable>()> plain;  // the whole without anything kept: where that does not pay
};

std::shared_ptr<Executable> MakePrepared(std::shared_ptr<Executable> main, Preparation preparation);

int64_t PreparedBytes();  // that are held now, by all executables

}  // namespace framejit::runtime
