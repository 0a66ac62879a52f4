// The signature language of surface rows and its one binder: positional, keyword and variadic arguments, defaults,
// optional arguments and type-directed overload choice. A call that does not fit is simply not that row.
//
//   (Tensor input, int[]... dims, *, float p=0.5, ScalarType? dtype=None)
//
// Types: Tensor, Tensor[], Operand (tensor or number), Scalar, Factor (a number, or a tensor of one), int, int[], bool,
// float, str, ScalarType, Device, Layout, MemoryFormat, Any. `?` admits None, `...` lets the remaining positional
// numbers form the list, `int[]` takes one int too.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "framejit/call.h"

namespace framejit::surface {

enum class ArgType : uint8_t {
  kTensor,
  kTensorList,
  kOperand,
  kScalar,
  kFactor,  // a number, or a tensor that holds one
  kInt,
  kIntList,
  kInts,  // A single int is not taken.
  kBool,
  kFloat,
  kString,
  kDType,
  kDevice,
  kLayout,
  kMemoryFormat,
  kAny,
};

struct Param {
  std::string name;
  ArgType type = ArgType::kAny;
  bool optional = false;  // May it be None?
  bool variadic = false;
  bool keyword_only = false;
  bool has_default = false;
  Arg default_value;
};

struct Signature {
  std::vector<Param> params;
  static Signature Parse(std::string_view text);  // throws std::logic_error: a row is wrong
  // One Arg per parameter, or nothing if the call has another form.
  std::optional<std::vector<Arg>> Bind(const Call& call) const;
};

std::optional<DType> DTypeFromText(std::string_view framework_name);  // "float32", "torch.half", "int64", "<f4"-free

}  // namespace framejit::surface
