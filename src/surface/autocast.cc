#include "surface/autocast.h"

#include <cctype>
#include <string>

namespace framejit::surface {
namespace {

// A composite on the CPU: matrix products where two operands share what the result lacks, else sums and products.
CastRule EinsumRule(const std::string& text) {
  std::string left, right, result;
  int commas = 0;
  bool arrow = false;
  for (char c : text) {
    commas += c == ',';
    arrow |= c == '>';
    if (std::isalpha(static_cast<unsigned char>(c))) (arrow ? result : commas ? right : left) += c;
  }
  if (commas == 0) return CastRule::kNone;
  if (commas > 1) return CastRule::kRefused;
  bool product = false;
  for (const std::string* labels : {&left, &right})
    for (char c : *labels) {
      const bool both = (labels == &left ? right : left).find(c) != std::string::npos;
      const bool kept = arrow ? result.find(c) != std::string::npos : !both;
      if (!both && !kept) return CastRule::kRefused;  // summed first, in the operand's type
      product |= both && !kept;
    }
  return product ? CastRule::kLower : CastRule::kNone;
}

}  // namespace

bool CastsViews(const Call& call, bool cuda) {
  return call.callee.last() == "einsum" && !cuda;
}

CastRule AutocastRule(const Call& call, bool cuda) {
  if (call.callee.last() == "pad") {  // reflection_pad and replication_pad are listed
    const Arg* mode = call.args.size() > 2 ? &call.args[2] : nullptr;
    for (const auto& [key, value] : call.kwargs)
      if (key == "mode") mode = &value;
    const bool listed = !cuda && mode && (mode->s == "reflect" || mode->s == "replicate");
    return listed ? CastRule::kFloat32 : CastRule::kNone;
  }
  if (CastsViews(call, cuda)) return call.args.empty() ? CastRule::kRefused : EinsumRule(call.args[0].s);
  const CastRule rule = cuda ? call.callee.effects().cuda : call.callee.effects().cpu;
  bool told = false;  // what to compute in
  for (const Arg& a : call.args) told |= a.is(Arg::Kind::kDType);
  for (const auto& [key, value] : call.kwargs) told |= key == "dtype" && !value.is_none();
  return told && rule == CastRule::kFloat32 ? CastRule::kNone : rule;
}

}  // namespace framejit::surface
