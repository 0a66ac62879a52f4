#include "runtime/plan.h"

#include <algorithm>

namespace framejit::runtime {
namespace {

std::string Describe(const Plan& p, int value) {
  const Value& v = p.values[value];
  const Storage& s = p.storages[v.storage];
  static constexpr const char* kKinds[] = {"in", "out", "scratch", "extern", "lent"};
  std::string text = "%" + std::to_string(v.node) + ":" + kKinds[static_cast<int>(s.kind)];
  text += std::to_string(s.kind == Storage::Kind::kInput || s.kind == Storage::Kind::kOutput ? s.index : v.storage);
  if (!v.whole) text += "+" + v.offset.str() + shape::ToString(v.strides);  // a view
  return text;
}

std::string List(const Plan& p, std::span<const int> values) {
  std::string text;
  for (int v : values) text += (text.empty() ? "" : ", ") + Describe(p, v);
  return text;
}

}  // namespace

const char* KindName(Step::Kind kind) {
  static constexpr const char* kNames[] = {"kernel", "matmul", "linear",    "conv", "attention",
                                           "pack",   "extern", "interpret", "copy"};
  return kNames[static_cast<size_t>(kind)];
}

std::string Plan::str() const {
  std::string text = "plan " + name + "\n";
  for (const Step& s : steps) {
    std::vector<int> reads(s.operands.begin(), s.operands.end());
    for (int r : s.results) std::erase(reads, r);
    text += "  ";
    text += s.on_device() ? "gpu " : "";
    text += KindName(s.kind);
    if (!s.name->empty()) text += " " + *s.name;
    text += " (" + List(*this, reads) + ") -> " + List(*this, s.results);
    for (int r : s.results) {
      text += " " + std::string(DTypeName(values[r].dtype)) + shape::ToString(values[r].sizes);
    }
    text += s.feeds ? ", as the product reads it\n" : s.pairs ? ", with the product behind it\n" : "\n";
  }
  for (const Commit& c : commits)
    text += std::string(c.direct ? "  written by its kernel: " : "  write ") +
            (c.target < 0 ? "in" + std::to_string(c.input) : Describe(*this, c.target)) + " <- " +
            Describe(*this, c.value) + "\n";
  return text;
}

void ComputeLifetimes(Plan& plan) {
  auto touch = [&](int value, int step, bool longer = false) {
    Storage& s = plan.storages[plan.values[value].storage];
    if (s.first < 0) s.first = step;
    s.last = std::max(s.last, step + longer);
  };
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const bool longer = plan.steps[i].feeds || plan.steps[i].pairs;  // read while the product behind it is written
    for (int v : plan.steps[i].operands) touch(v, i, longer);
    for (int v : plan.steps[i].results) touch(v, i);
  }
  for (const auto& c : plan.commits) touch(c.value, plan.steps.size());
}

}  // namespace framejit::runtime
