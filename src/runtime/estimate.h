// What a run of an executable would read, write and hold, from its plan alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "framejit/compile.h"

namespace framejit::runtime {

struct Instance;
struct Plan;

struct StepCost {
  std::string name, kind;       // "what@file:line"; "kernel", "matmul" ...
  double bytes = 0, flops = 0;  // read and written once; of library calls whose number is known, else 0
};
struct PlanCost {
  std::vector<StepCost> steps;
  int64_t scratch_bytes = 0;  // that intermediate values need at once
};

// An executable that can tell.
class Estimated {
 public:
  virtual ~Estimated() = default;
  virtual void AddCost(std::span<const int64_t> symbols, PlanCost* cost) const = 0;
};
// For these values of its symbols. False: it cannot tell (the reference interpreter has no plan).
bool AddCost(const Executable& executable, std::span<const int64_t> symbols, PlanCost* cost);

StepCost CostOfStep(const Plan& plan, const Instance& instance, size_t step);

}  // namespace framejit::runtime
