// What a run says that ended because the framework was about to warn in it: Python makes the call, and warns.
#pragma once

namespace framejit::tensor {

inline constexpr char kRefusedWarning[] = "framejit: a warning";

}  // namespace framejit::tensor
