// This file has the tables behind Op, DType and TensorType.
#include <stdexcept>
#include <unordered_map>

#include "framejit/graph.h"
#include "graph/device.h"

namespace framejit {
namespace {

constexpr OpInfo kOps[] = {
#define X(e, name, arity, kind, type, attrs, accepts, cost, approximate, raises, twice) \
  {name, arity, kind, #type, attrs, accepts, cost, approximate, raises, twice},
#include "framejit/ops.def"
#undef X
};

}  // namespace

const OpInfo& Info(Op op) {
  return kOps[static_cast<int>(op)];
}

std::optional<Op> ParseOp(std::string_view name) {
  static const auto* by_name = [] {
    auto* m = new std::unordered_map<std::string_view, Op>;
    for (int i = 0; i < std::size(kOps); ++i) m->emplace(kOps[i].name, static_cast<Op>(i));
    return m;
  }();
  auto it = by_name->find(name);
  return it == by_name->end() ? std::nullopt : std::optional(it->second);
}

std::optional<DType> ParseDType(std::string_view name) {
  for (int i = 0; i < kNumDTypes; ++i)
    if (DTypeName(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  return std::nullopt;
}

double Scalar::AsDouble() const {
  return std::visit([](auto x) { return static_cast<double>(x); }, v);
}

int64_t Scalar::AsInt() const {
  if (const double* d = std::get_if<double>(&v)) {
    if (!(*d >= -9223372036854775808.0 && *d < 9223372036854775808.0)) return INT64_MIN;  // as the hardware converts
    return static_cast<int64_t>(*d);
  }
  return std::visit([](auto x) { return static_cast<int64_t>(x); }, v);
}

std::string DeviceName(Device device) {
  constexpr const char* kinds[] = {"cpu", "cuda", "meta", "private"};
  const std::string kind = kinds[static_cast<int>(device.kind)];
  return device.index < 0 ? kind : kind + ":" + std::to_string(device.index);
}

std::string TensorType::str() const {
  const std::string s = std::string(DTypeName(dtype)) + shape::ToString(shape);
  return device == Device{} ? s : s + "@" + DeviceName(device);
}

}  // namespace framejit
