#include "capture/policy/leave.h"

#include <algorithm>

#include "diag/diag.h"
#include "graph/hints.h"
#include "graph/raises.h"
#include "runtime/cuda/driver.h"
#include "runtime/thread_pool.h"
#include "tensor/own_calls.h"

namespace framejit::capture {

bool LeftToNumpy(const Trace& trace, const Graph& g, int ieee) {
  const size_t threads = runtime::ThreadPool::Get().num_threads();
  if (!ieee || trace.calls.size() + threads > 3 || g.writes.size() != 1 || !MayRaise(g, g.writes[0].value))
    return false;
  const std::vector<int64_t> hints = Hints(g);
  return g.nodes[g.writes[0].value].type.numel().Eval(hints) >= 4096 &&
         std::all_of(g.nodes.begin(), g.nodes.end(), [](const Node& n) { return Info(n.op).cost < 16; });
}

bool MostlyNumpys(const Session& s, const Trace& trace, const Graph& g) {
  if (s.libraries.torch || !s.libraries.numpy || !diag::OptionOn("leave")) return false;
  // Of items, masks are ours, and pay where they are not small.
  constexpr int64_t kSmallMask = 4096;
  const auto ours = [&, hints = Hints(g)](const Node& n) {
    const Callee callee = n.attrs.call->callee;
    if (callee.last() != "__getitem__") return tensor::FindOwnCall(callee.name()) != nullptr;
    if (n.operands.size() != 2) return false;
    const TensorType& item = g.nodes[n.operands[1]].type;
    return item.dtype == DType::kBool && item.numel().Eval(hints) >= kSmallMask;
  };
  const auto numpys =
      std::count_if(g.nodes.begin(), g.nodes.end(), [&](const Node& n) { return n.op == Op::kExtern && !ours(n); });
  const auto views =
      std::count_if(trace.tensors.begin(), trace.tensors.end(), [](const TraceTensor& t) { return t.view_call >= 0; });
  return numpys > 0 && 2 * (static_cast<std::ptrdiff_t>(trace.calls.size()) - numpys - views) <= 3 * numpys;
}

std::optional<Device> NumpyDevice(Session& s) {
  if (s.libraries.torch || !tensor::TorchLoaded() || s.modes.numpy_devices.size() != 1 ||
      !s.modes.numpy_devices.begin()->starts_with("cuda"))
    return {};
  for (const Node& n : s.graph().nodes)
    if (n.op == Op::kExtern || std::any_of(n.strides.begin(), n.strides.end(),
                                           [&](shape::Int stride) { return stride.Eval(s.env().hints()) < 0; }))
      return {};
  return runtime::cuda::ParseDevice(*s.modes.numpy_devices.begin());
}

}  // namespace framejit::capture
