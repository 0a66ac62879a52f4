#include "runtime/context.h"

#include <algorithm>
#include <numeric>

namespace framejit::runtime {

void StepLists::Fill(size_t steps, std::vector<std::pair<int, int>> numbers) {
  if (numbers.empty()) return;
  std::sort(numbers.begin(), numbers.end());
  begin_.assign(steps + 1, 0);
  for (auto [step, number] : numbers) ++begin_[step + 1];
  for (size_t i = 0; i < steps; ++i) begin_[i + 1] += begin_[i];
  numbers_.reserve(numbers.size());
  for (auto [step, number] : numbers) numbers_.push_back(number);
}

PlanIndex::PlanIndex(const Plan& plan) {
  needs_buffer.assign(plan.values.size(), false);
  std::vector<std::pair<int, int>> lent, released, done;
  output_storage.assign(plan.outputs.size(), -1);
  zero_outputs.assign(plan.outputs.size(), false);
  first_pointer.reserve(plan.steps.size());
  if (plan.machine) first_param.reserve(plan.steps.size());
  for (const Step& s : plan.steps) {
    first_pointer.push_back(static_cast<uint32_t>(num_pointers));
    if (plan.machine) first_param.push_back(static_cast<uint32_t>(num_params));
    if (s.kernel) {
      num_pointers += s.operands.size();
      if (s.on_device()) num_params += s.operands.size() + s.kernel->symbols.size();
      continue;
    }
    for (int v : s.operands) needs_buffer[v] = true;
    for (int v : s.results) needs_buffer[v] = true;
  }
  for (int v : plan.inputs) {
    needs_buffer[v] = true;
    input_storage.push_back(plan.values[v].storage);
  }
  input_storage.shrink_to_fit();
  std::vector<bool> committed(plan.inputs.size(), false);
  for (const auto& c : plan.commits) committed[c.input] = true;
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const Storage& s = plan.storages[input_storage[i]];
    if (s.last >= 0 && !committed[i]) done.emplace_back(s.last, static_cast<int>(i));
  }
  for (const auto& c : plan.commits) {
    needs_buffer[c.value] = true;
    if (c.target >= 0) needs_buffer[c.target] = true;
  }
  for (const auto& o : plan.outputs) needs_buffer[o.value] = true;
  for (size_t i = 0; i < plan.storages.size(); ++i) {
    const Storage& s = plan.storages[i];
    if (s.kind == Storage::Kind::kOutput) output_storage[s.index] = static_cast<int>(i);
    if (s.kind != Storage::Kind::kExtern && s.kind != Storage::Kind::kLent) continue;
    has_externs = true;
    if (s.index < 0) released.emplace_back(s.last, static_cast<int>(i));
  }
  std::vector<bool> found(plan.storages.size(), false);
  for (size_t v = 0; v < plan.values.size(); ++v) {
    const int s = plan.values[v].storage;
    if (plan.storages[s].kind != Storage::Kind::kLent || !plan.values[v].whole || found[s]) continue;
    found[s] = true;
    lent.emplace_back(plan.storages[s].first, static_cast<int>(v));
  }
  lent_before.Fill(plan.steps.size() + 1, std::move(lent));
  release_after.Fill(plan.steps.size() + 1, std::move(released));
  inputs_after.Fill(plan.steps.size() + 1, std::move(done));
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    if (plan.outputs[o].handed_over) continue;
    const int first = output_storage[o] < 0 ? -1 : plan.storages[output_storage[o]].first;
    outputs_by_step.emplace_back(first, o);
    zero_outputs[o] = first >= 0 && plan.steps[first].zeros;
  }
  std::stable_sort(outputs_by_step.begin(), outputs_by_step.end());
}

void Context::Bind(const Plan& plan, const PlanIndex& index, std::shared_ptr<const Instance> i) {
  instance = std::move(i);
  if (patch_begin.empty()) MakePatches(plan, index);
  for (size_t v = 0; v < plan.values.size(); ++v) {
    const Value& value = plan.values[v];
    Buffer& b = buffers[v];
    b = Buffer{};
    b.sizes = instance->values[v].sizes;
    b.strides = instance->values[v].strides;
    b.rank = static_cast<int32_t>(value.sizes.size());
    b.dtype = value.dtype;
    b.device = value.device;
  }
  std::fill(pointers.begin(), pointers.end(), nullptr);
  params.clear();
  for (size_t s = 0; s < plan.steps.size() && index.num_params; ++s) {
    if (!plan.steps[s].on_device()) continue;
    void** slot = pointers.data() + index.first_pointer[s];
    for (size_t i = 0; i < plan.steps[s].operands.size(); ++i) params.push_back(slot + i);
    for (size_t i = 0; i < plan.steps[s].kernel->symbols.size(); ++i)
      params.push_back(const_cast<int64_t*>(instance->steps[s].symbols + i));
  }
  scratch = device_scratch = nullptr;
  if (instance->scratch_bytes > 0 && instance->scratch_bytes <= kOwnScratch) {
    if (static_cast<int64_t>(own.bytes) < instance->scratch_bytes) {
      FreeBlock(own);
      own = {};
      own = AllocateBlock(instance->scratch_bytes);
    }
    SetScratch(plan, own.data);
  }
}

// What is the same for all sizes.
void Context::MakePatches(const Plan& plan, const PlanIndex& index) {
  buffers.resize(plan.values.size());
  pointers.resize(index.num_pointers);
  params.reserve(index.num_params);
  externals.resize(index.has_externs ? plan.storages.size() : 0);
  const auto each = [&](auto&& take) {  // calls take(storage, patch)
    const auto patch = [&](size_t place, int v) {
      take(plan.values[v].storage, Patch{static_cast<uint32_t>(place), static_cast<uint32_t>(v)});
    };
    for (size_t v = 0; v < plan.values.size(); ++v)
      if (index.needs_buffer[v]) patch(pointers.size() + v, static_cast<int>(v));
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      size_t place = index.first_pointer[s];
      for (int v : plan.steps[s].kernel ? std::span<const int>(plan.steps[s].operands) : std::span<const int>())
        patch(place++, v);
    }
  };
  patch_begin.assign(plan.storages.size() + 1, 0);
  each([&](int storage, Patch) { ++patch_begin[storage + 1]; });
  std::partial_sum(patch_begin.begin(), patch_begin.end(), patch_begin.begin());
  patches.resize(patch_begin.back());
  std::vector<uint32_t> next = patch_begin;
  each([&](int storage, Patch p) { patches[next[storage]++] = p; });
}

void Context::SetScratch(const Plan& plan, std::byte* base) {
  if (base == scratch) return;
  scratch = base;
  for (size_t s = 0; s < plan.storages.size(); ++s) {
    if (plan.storages[s].kind == Storage::Kind::kScratch && !plan.storages[s].on_device)
      SetStorage(static_cast<int>(s), base + instance->storages[s].scratch_offset);
  }
}

void Context::SetDeviceScratch(const Plan& plan, std::byte* base) {
  if (base == device_scratch) return;
  device_scratch = base;
  for (size_t s = 0; s < plan.storages.size(); ++s) {
    if (plan.storages[s].kind == Storage::Kind::kScratch && plan.storages[s].on_device)
      SetStorage(static_cast<int>(s), base + instance->storages[s].scratch_offset);
  }
}

}  // namespace framejit::runtime
