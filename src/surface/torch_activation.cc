// This file has the rows of torch's activation functions, which are defined on floating dtypes only.
#include <cmath>
#include <limits>
#include <optional>

#include "rules/decompose.h"
#include "surface/library_facts.h"
#include "surface/rows.h"

namespace framejit::surface {
namespace {

using rules::Like;

LibraryGelu (*ask_library)(DType) = nullptr;

template <ValueId (*F)(Builder&, ValueId)>
Outs Activation(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) Scope::Skip();
  return s.Elementwise(F(s.b, x.value), {&x, 1});
}

Outs Relu(Scope& s) {
  Operand x = s.tensor(0);
  if (IsBool(x.meta->dtype)) Scope::Fail("relu of bool");
  return s.Elementwise(rules::Relu(s.b, x.value), {&x, 1});
}

Outs Relu6(Scope& s) {
  Operand x = s.tensor(0);
  if (IsBool(x.meta->dtype)) Scope::Fail("relu6 of bool");
  return s.Elementwise(rules::Relu6(s.b, x.value), {&x, 1});
}

// Activations with parameters: F(builder, x, p0, p1) in the compute type.
template <ValueId (*F)(Builder&, ValueId, double, double)>
Outs Activation2(Scope& s) {
  Operand x = s.tensor(0);
  DType t = x.meta->dtype;
  if (!IsFloat(t)) Scope::Skip();
  ValueId v = F(s.b, x.value, s.has(1) ? s.number(1) : 0, s.has(2) ? s.number(2) : 0);
  return s.Elementwise(v, {&x, 1});
}

ValueId LeakyReluOf(Builder& b, ValueId x, double slope, double) {
  return rules::LeakyRelu(b, x, slope);
}
ValueId EluOf(Builder& b, ValueId x, double alpha, double scale) {
  return rules::Elu(b, x, alpha, scale);
}
ValueId CeluOf(Builder& b, ValueId x, double alpha, double) {
  return rules::Celu(b, x, alpha);
}
ValueId ThresholdOf(Builder& b, ValueId x, double threshold, double value) {
  return b.Where(b.Binary(Op::kLe, x, Like(b, x, threshold)), Like(b, x, value), x);
}
ValueId HardShrinkOf(Builder& b, ValueId x, double lambda, double) {
  ValueId inside = b.Binary(Op::kLe, b.Unary(Op::kAbs, x), Like(b, x, lambda));
  return b.Where(inside, Like(b, x, 0), x);
}
ValueId TanhShrinkOf(Builder& b, ValueId x) {
  return b.Binary(Op::kSub, x, b.Unary(Op::kTanh, x));
}
Outs Gelu(Scope& s) {
  Operand x = s.tensor(0);
  DType t = x.meta->dtype;
  if (!IsFloat(t)) Scope::Skip();
  const std::string& kind = s.arg(1).s;
  if (kind != "none" && kind != "tanh") Scope::Fail("approximate");
  if (kind == "tanh") return s.Elementwise(rules::GeluTanh(s.b, x.value), {&x, 1});
  ValueId v = rules::GeluErf(s.b, x.value);
  const bool library = x.meta->device.kind == DeviceKind::kCpu && t != DType::kFloat64 && x.rank() > 0 &&
                       IsContiguous(s.env, *x.meta) && !s.env.Eq(s.b.type(x.value).numel(), 1);
  const LibraryGelu special = library && ask_library ? ask_library(t) : LibraryGelu();
  if (special.infinity_is_nan) {
    ValueId infinite = s.b.Binary(Op::kEq, x.value, rules::Like(s.b, x.value, std::numeric_limits<double>::infinity()));
    v = s.b.Where(infinite, rules::Like(s.b, v, std::nan("")), v);
  }
  if (special.no_negative_zero) v = s.b.Binary(Op::kAdd, v, rules::Like(s.b, v, 0));
  return s.Elementwise(v, {&x, 1});
}

Outs LogSigmoidOf(Scope& s) {  // its kernel always returns a row-major result
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) Scope::Skip();
  return rules::LogSigmoid(s.b, x.value);
}

Outs Logit(Scope& s) {
  Operand x = s.tensor(0);
  if (!IsFloat(x.meta->dtype)) Scope::Skip();
  return s.Elementwise(rules::Logit(s.b, x.value, s.has(1) ? std::optional<double>(s.number(1)) : std::nullopt),
                       {&x, 1});
}

// clang-format off: a table
constexpr Row kRows[] = {
    {"tmI:relu", "(Tensor input)", &Relu}, {"nJ:relu6", "(Tensor input)", &Relu6, Op::kInput, kEmptyLike},
    {"nJ:silu", "(Tensor input)", &Activation<&rules::Silu>}, {"nJ:mish", "(Tensor input)", &Activation<&rules::Mish>},
    {"nJ:hardsigmoid", "(Tensor input)", &Activation<&rules::HardSigmoid>}, {"nJ:hardswish", "(Tensor input)", &Activation<&rules::HardSwish>},
    {"n:log_sigmoid f:logsigmoid", "(Tensor input)", &LogSigmoidOf},
    {"nf:gelu", "(Tensor input, *, str approximate='none')", &Gelu}, {"tI:selu", "(Tensor input)", &Activation<&rules::Selu>},
    {"nJ:hardtanh", "(Tensor input, Scalar min_val=-1.0, Scalar max_val=1.0)", &Activation2<&rules::HardTanh>, Op::kInput, kEmptyLike},
    {"nJ:leaky_relu", "(Tensor input, Scalar negative_slope=0.01)", &Activation2<&LeakyReluOf>},
    {"nJ:elu", "(Tensor input, Scalar alpha=1.0, Scalar scale=1.0)", &Activation2<&EluOf>},
    {"tI:celu", "(Tensor input, Scalar alpha=1.0)", &Activation2<&CeluOf>},
    {"nf:softplus", "(Tensor input, Scalar beta=1.0, Scalar threshold=20.0)", &Activation2<&rules::Softplus>},
    {"tI:threshold", "(Tensor input, Scalar threshold, Scalar value)", &Activation2<&ThresholdOf>},
    {"tmf:hardshrink", "(Tensor input, Scalar lambd=0.5)", &Activation2<&HardShrinkOf>},
    {"f:softsign", "(Tensor input)", &Activation<&rules::SoftSign>}, {"f:tanhshrink", "(Tensor input)", &Activation<&TanhShrinkOf>},
    {"tmI:logit s:logit", "(Tensor input, float? eps=None)", &Logit},
    {"tmI:frac", "(Tensor input)", &Activation<&rules::Frac>},
};
// clang-format on

}  // namespace

void AskLibraryGelu(LibraryGelu (*ask)(DType)) {
  ask_library = ask;
}

std::span<const Row> ActivationRows() {
  return kRows;
}

}  // namespace framejit::surface
