// Framework functions whose answer is fixed while a program is being captured: as the peer answers them.
#include <unordered_map>

#include "surface/surface.h"

namespace framejit::surface {

std::optional<Arg> ConstantAnswer(const std::string& callee) {
  static const std::unordered_map<std::string, Arg> answers = [] {
    std::unordered_map<std::string, Arg> m;
    for (const char* yes :
         {"torch.compiler.is_compiling", "torch.compiler.is_dynamo_compiling", "torch._dynamo.is_compiling",
          "torch._dynamo.external_utils.is_compiling", "torch._utils.is_compiling"}) {
      m.emplace(yes, Arg::Bool(true));
    }
    for (const char* no :
         {"torch.compiler.is_exporting", "torch.jit.is_tracing", "torch.jit.is_scripting",
          "torch._jit_internal.is_scripting", "torch._C._is_tracing", "torch._C._jit_is_tracing",
          "torch.overrides.has_torch_function", "torch.overrides.has_torch_function_unary",
          "torch.overrides.has_torch_function_variadic", "torch._C._has_torch_function",
          "torch._C._has_torch_function_unary", "torch._C._has_torch_function_variadic", "torch.onnx.is_in_onnx_export",
          "torch._C._are_functorch_transforms_active", "torch.cuda.is_current_stream_capturing",
          "torch.cuda.graphs.is_current_stream_capturing", "torch._C._cuda_isCurrentStreamCapturing",
          "torch.xpu.is_current_stream_capturing", "torch.xpu.graphs.is_current_stream_capturing"}) {
      m.emplace(no, Arg::Bool(false));
    }
    for (const char* none : {"torch._C._get_tracing_state", "torch._C._log_api_usage_once"})
      m.emplace(none, Arg::None());
    return m;
  }();
  auto it = answers.find(callee);
  return it == answers.end() ? std::nullopt : std::optional<Arg>(it->second);
}

}  // namespace framejit::surface
