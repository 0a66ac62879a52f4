// What a run of a one-kernel graph costs beyond the kernel and its output: a hand-made plan, a kernel that does
// nothing, a host that hands out the same memory. Also the cost of a parallel region of the own pool.
#include <benchmark/benchmark.h>

#include "runtime/plan.h"
#include "runtime/thread_pool.h"

namespace framejit {
namespace {

struct NullHost : Host {
  float memory[16];
  void AllocateOutput(DType, std::span<const int64_t>, std::span<const int64_t>, Device, Buffer* out) override {
    out->data = memory;
  }
  void FreeOutput(Buffer*) override {}
  void RunExtern(const Call&, std::span<const Buffer>, std::span<Buffer>) override {}
  void Release(Buffer*) override {}
};

void Nothing(void* const* buffers, const int64_t*, int64_t, int64_t) {
  benchmark::DoNotOptimize(buffers[0]);
}

std::shared_ptr<Executable> OneKernel(bool symbolic) {
  runtime::Plan plan;
  const shape::Int size = symbolic ? shape::Int::Symbol(0) : shape::Int(16);
  if (symbolic) plan.symbol_sources = {{0, 0}};
  runtime::Step step;
  for (int i = 0; i < 3; ++i) {
    runtime::Storage s;
    s.kind = i < 2 ? runtime::Storage::Kind::kInput : runtime::Storage::Kind::kOutput;
    s.index = i < 2 ? i : 0;
    plan.storages.push_back(s);
    runtime::Value v;
    v.storage = i;
    v.sizes = {size};
    v.strides = {1};
    v.whole = true;
    plan.values.push_back(v);
    step.operands.push_back(i);
  }
  plan.inputs = {0, 1};
  plan.outputs = {{2, false}};
  step.results = {2};
  step.fn = Nothing;
  step.symbols = plan.symbol_sources.empty() ? shape::Ints{} : shape::Ints{size};
  step.rows = [](const int64_t*) { return int64_t{1}; };
  step.work_per_row = [](const int64_t*) { return int64_t{48}; };
  plan.steps.push_back(step);
  return runtime::MakeExecutable(std::move(plan), {});
}

void Run(benchmark::State& state, bool symbolic) {
  auto exe = OneKernel(symbolic);
  NullHost host;
  float x[16], y[16];
  const int64_t sizes[] = {16}, strides[] = {1};
  Buffer inputs[2], outputs[1];
  for (int i = 0; i < 2; ++i) {
    inputs[i].data = i ? y : x;
    inputs[i].sizes = sizes;
    inputs[i].strides = strides;
    inputs[i].rank = 1;
  }
  for (auto _ : state) exe->Run(host, inputs, {}, outputs);
}
BENCHMARK_CAPTURE(Run, static_sizes, false);
BENCHMARK_CAPTURE(Run, symbolic_sizes, true);

// x * y + 1 on 16 floats, compiled.
void Compiled(benchmark::State& state) {
  auto exe = Compile(Graph::Parse(R"(graph "g" {
  %0 = input name="x" : f32[16]
  %1 = input name="y" : f32[16]
  %2 = mul %0, %1 : f32[16]
  %3 = constant value=1.0 : f32[16]
  %4 = add %2, %3 : f32[16]
  return %4
})"));
  NullHost host;
  float x[16] = {}, y[16] = {};
  const int64_t sizes[] = {16}, strides[] = {1};
  Buffer inputs[2], outputs[1];
  for (int i = 0; i < 2; ++i) {
    inputs[i].data = i ? y : x;
    inputs[i].sizes = sizes;
    inputs[i].strides = strides;
    inputs[i].rank = 1;
  }
  for (auto _ : state) exe->Run(host, inputs, {}, outputs);
}
BENCHMARK(Compiled);

void Region(benchmark::State& state) {
  auto& pool = runtime::ThreadPool::Get();
  for (auto _ : state) pool.ParallelFor(64, 1, [](void*, int64_t, int64_t) {}, nullptr);
}
BENCHMARK(Region);

}  // namespace
}  // namespace framejit

BENCHMARK_MAIN();
