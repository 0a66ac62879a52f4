#include "runtime/estimate.h"

#include "runtime/instance.h"
#include "runtime/plan.h"

namespace framejit::runtime {

bool AddCost(const Executable& executable, std::span<const int64_t> symbols, PlanCost* cost) {
  const auto* estimated = dynamic_cast<const Estimated*>(&executable);
  if (estimated) estimated->AddCost(symbols, cost);
  return estimated;
}

StepCost CostOfStep(const Plan& plan, const Instance& instance, size_t i) {
  const Step& step = plan.steps[i];
  StepCost cost{*step.name, KindName(step.kind)};
  auto elements = [&](int value, bool broadcast) {
    const Instance::ValueInfo& info = instance.values[value];
    double n = 1;
    for (size_t d = 0; d < plan.values[value].sizes.size(); ++d)
      if (broadcast || info.strides[d]) n *= static_cast<double>(info.sizes[d]);
    return n;
  };
  auto add_bytes = [&](int value) { cost.bytes += elements(value, false) * DTypeSize(plan.values[value].dtype); };
  for (int v : step.operands) add_bytes(v);
  if (step.kind != Step::Kind::kKernel)  // whose buffers are all operands
    for (int v : step.results) add_bytes(v);
  if (step.kind == Step::Kind::kMatMul || step.kind == Step::Kind::kLinear) {
    const int x = step.operands[0];
    const size_t rank = plan.values[x].sizes.size();
    if (rank) cost.flops = 2 * elements(step.results[0], true) * instance.values[x].sizes[rank - 1];
  }
  return cost;
}

}  // namespace framejit::runtime
