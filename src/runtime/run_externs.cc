// Results that a library or the framework makes, in memory of its own: taken as they are, or copied where they are not
// what the plan relies on.
#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "graph/arguments.h"
#include "graph/effects.h"
#include "graph/opaque.h"
#include "runtime/copy.h"
#include "runtime/library.h"
#include "runtime/run_state.h"

namespace framejit::runtime {
namespace {

// Whether the address lies in the memory of an operand, which may be scratch, or go before the result does.
bool InMemoryOf(const Buffer& operand, const void* data) {
  const Extent reach = ExtentOf(operand);
  const int64_t item = DTypeSize(operand.dtype);
  const int64_t at = static_cast<const std::byte*>(data) - static_cast<const std::byte*>(operand.data);
  return operand.data && at >= reach.low * item && at < reach.high * item;
}

}  // namespace

// Whether the shape of its result was told by other sizes than those of this run (tensor::InferSymbolic).
bool RunState::Extrapolated(const Step& step) const {
  const auto fixed = [](Int e) { return e.is_const(); };
  for (const Step::Numbers* values : {&step.operands, &step.results})
    for (int v : *values)
      if (!std::all_of(plan_.values[v].sizes.begin(), plan_.values[v].sizes.end(), fixed)) return true;
  bool symbolic = false;
  if (const auto& call = step.operation->attrs.call)
    EachArg(*call, [&](const Arg& a) { symbolic |= a.is(Arg::Kind::kInt) && !a.i.is_const(); });
  return symbolic;
}

// A library call whose result is the library's own tensor, if it gives one.
void RunState::RunLending(const Step& step, std::span<const Buffer> operands) {
  const int value = step.results[0], storage = plan_.values[value].storage;
  Context::External& x = c_->externals[storage];
  Buffer got = c_->buffers[value];
  got.data = got.handle = nullptr;
  if (AskLibraries(host_, step, c_->instance->symbols, operands, got)) {
    x.buffer = got;
    x.live = got.handle != nullptr;
    if (step.kind != Step::Kind::kPack) return Accept(step, value);
    c_->buffers[value].data = nullptr;  // nobody but the library knows how it lies
    c_->buffers[value].handle = got.handle;
    return;
  }
  if (step.kind == Step::Kind::kPack) throw std::runtime_error("no packed form of a weight");
  x.copy = AllocateFor(c_->buffers[value], x);
  c_->SetStorage(storage, x.copy);
  RunLibrary(host_, step, c_->instance->symbols, operands, c_->buffers[value]);
  OutputFromCopy(storage, value);
}

// A result of the graph that has been made in memory of the run.
void RunState::OutputFromCopy(int storage, int value) {
  const int output = plan_.storages[storage].index;
  if (output < 0) return;
  AllocateOutput(output);
  c_->externals[storage].output_allocated = true;
  StridedCopy(host_, c_->buffers[value], outputs_[output]);
}

void RunState::AllocateLent(size_t step) {
  for (int value : index_.lent_before[step]) {
    const int storage = plan_.values[value].storage;
    Context::External& x = c_->externals[storage];
    x.buffer = c_->buffers[value];
    Allocate(x.buffer, false);
    x.live = x.buffer.handle != nullptr;
    c_->SetStorage(storage, x.buffer.data);
  }
}

// The tensor whose memory this is, if the framework knows it.
void* RunState::OwnerOf(int storage) const {
  const Storage& s = plan_.storages[storage];
  switch (s.kind) {
    case Storage::Kind::kInput: return c_->buffers[plan_.inputs[s.index]].handle;
    case Storage::Kind::kOutput: return outputs_[s.index].handle;
    case Storage::Kind::kScratch: return nullptr;
    case Storage::Kind::kExtern: return c_->externals[storage].copy ? nullptr : c_->externals[storage].buffer.handle;
    case Storage::Kind::kLent: return c_->externals[storage].buffer.handle;
  }
  return nullptr;
}

void RunState::RunExtern(const Step& step) {
  const bool foreign = step.operation->attrs.call->callee.Has(kForeign);
  // An operator of the user's is not called behind what raises in the program.
  if (plan_.traps && foreign) CheckStatus();
  std::vector<Buffer> operands, results;
  const bool keeps = foreign || std::any_of(step.results.begin(), step.results.end(),
                                            [&](int v) { return IsOpaque(c_->buffers[v].device); });
  for (int v : step.operands) {
    operands.push_back(c_->buffers[v]);
    if (keeps && !IsOpaque(operands.back().device))
      operands.back().handle = OwnerOf(plan_.values[v].storage);  // it may keep a view of its memory
  }
  for (int v : step.results) {
    results.push_back(c_->buffers[v]);
    results.back().data = results.back().handle = nullptr;
  }
  host_.RunExtern(*step.operation->attrs.call, operands, results);
  if (step.updates) return host_.Release(&results[0]);
  for (size_t r = 0; r < results.size(); ++r) {
    Context::External& x = c_->externals[plan_.values[step.results[r]].storage];
    x.buffer = results[r];
    x.live = true;
  }
  const auto read = [&](int value) {
    const Storage& s = plan_.storages[plan_.values[value].storage];
    return s.index >= 0 || s.first != s.last;
  };
  for (size_t r = 0; r < results.size(); ++r)
    if (read(step.results[r])) Accept(step, step.results[r], operands);
}

// The rest of the plan relies on the layout that was predicted, and on the memory staying as it is: a framework may
// answer with other strides, or with a view of an operand. Then a copy is used.
void RunState::Accept(const Step& step, int value, std::span<const Buffer> operands) {
  const int storage = plan_.values[value].storage;
  Context::External& x = c_->externals[storage];
  Buffer& expected = c_->buffers[value];
  const Buffer& got = x.buffer;
  bool fits = got.rank == expected.rank && got.dtype == expected.dtype;
  for (int d = 0; fits && d < got.rank; ++d) fits = got.sizes[d] == expected.sizes[d];
  if (!fits) {
    const std::string what = "extern " + *step.name + ": the result has another shape or dtype than captured";
    if (Extrapolated(step)) throw ConditionMissed{what};
    throw std::runtime_error(what);
  }
  int64_t numel = 1;
  for (int d = 0; d < got.rank; ++d) {
    if (got.sizes[d] != 1 && got.strides[d] != expected.strides[d]) fits = false;
    numel *= got.sizes[d];
  }
  for (const Buffer& operand : operands) fits = fits && !InMemoryOf(operand, got.data);
  if (!fits && numel > 0) {
    x.copy = AllocateFor(expected, x);
    Buffer to = expected;
    to.data = x.copy;
    StridedCopy(host_, got, to);
  }
  c_->SetStorage(storage, x.copy ? x.copy : got.data);
  c_->buffers[value].handle = x.copy ? nullptr : got.handle;
  if (x.copy) OutputFromCopy(storage, value);
}

std::byte* RunState::AllocateFor(const Buffer& b, Context::External& x) {
  if (b.device.kind != DeviceKind::kCpu) {
    const size_t rank = b.rank;
    host_.AllocateOutput(b.dtype, {b.sizes, rank}, {b.strides, rank}, b.device, &x.device_copy);
    return static_cast<std::byte*>(x.device_copy.data);
  }
  const Extent reach = ExtentOf(b);
  const int64_t item = DTypeSize(b.dtype);
  x.block = AllocateBlock(std::max<int64_t>(item, (reach.high - reach.low) * item));
  return x.block.data - reach.low * item;
}

void RunState::HandOver(size_t o) {
  Context::External& x = c_->externals[plan_.values[plan_.outputs[o].value].storage];
  if (x.output_allocated) return;
  outputs_[o] = x.buffer;
  x.live = false;
}

}  // namespace framejit::runtime
