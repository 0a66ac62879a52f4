// framejit in a C++ program, without Python: a graph in its text form (docs/graph.md) is compiled and runs on memory of
// the program's own. Built and run by ctest; elsewhere: g++ -std=c++20 -Iinclude embed.cc -Lbuild/python/framejit
// -lframejit.
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "framejit/compile.h"

namespace {

using framejit::Buffer;

// What a run wants of the program: memory for results. Library calls are left to framejit, and this graph makes no call
// of a framework.
class Memory final : public framejit::Host {
 public:
  void AllocateOutput(framejit::DType dtype, std::span<const int64_t> sizes, std::span<const int64_t>, framejit::Device,
                      Buffer* out) override {
    int64_t bytes = framejit::DTypeSize(dtype);
    for (int64_t size : sizes) bytes *= size;
    out->data = out->handle = new std::byte[bytes];
  }
  void FreeOutput(Buffer* out) override { Release(out); }
  void Release(Buffer* b) override {
    delete[] static_cast<std::byte*>(b->handle);
    b->handle = b->data = nullptr;
  }
  void RunExtern(const framejit::Call&, std::span<const Buffer>, std::span<Buffer>) override {
    throw framejit::ExternError();
  }
};

// The softmax of each row; the number of rows may be any.
constexpr const char* kSoftmax = R"(graph "softmax" {
  symbol s0 = input 0 dim 0 hint 8 range 2..inf name "rows"
  %0 = input name="x" : f32[s0, 4] strides [4, 1]
  %1 = max %0, axes=[1], flag : f32[s0, 1]
  %2 = broadcast %1, axes=[0, 1] : f32[s0, 4]
  %3 = sub %0, %2 : f32[s0, 4]
  %4 = exp %3 : f32[s0, 4]
  %5 = sum %4, axes=[1], flag : f32[s0, 1]
  %6 = broadcast %5, axes=[0, 1] : f32[s0, 4]
  %7 = div %4, %6 : f32[s0, 4]
  return %7
})";

// The largest error against a plain loop.
float Softmax(framejit::Executable& executable, Memory& memory, int64_t rows) {
  std::vector<float> x(rows * 4);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  const int64_t sizes[] = {rows, 4}, strides[] = {4, 1};
  const Buffer input{x.data(), nullptr, sizes, strides, 2, framejit::DType::kFloat32, {}};
  Buffer output;
  executable.Run(memory, {&input, 1}, {}, {&output, 1});
  const auto* y = static_cast<const float*>(output.data);
  float worst = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int c = 0; c < 4; ++c) sum += std::exp(static_cast<double>(x[r * 4 + c]));
    for (int c = 0; c < 4; ++c)
      worst = std::max(worst, std::abs(y[r * 4 + c] - static_cast<float>(std::exp(double{x[r * 4 + c]}) / sum)));
  }
  memory.Release(&output);
  return worst;
}

}  // namespace

int main() {
  const framejit::Graph graph = framejit::Graph::Parse(kSoftmax);
  const std::shared_ptr<framejit::Executable> executable = framejit::Compile(graph);
  std::printf("%s%d kernel(s), compiled in %.1f ms\n", executable->str().c_str(), executable->stats().kernels,
              executable->stats().seconds * 1e3);
  Memory memory;
  for (int64_t rows : {8, 1000}) {
    const float worst = Softmax(*executable, memory, rows);
    std::printf("%lld rows: largest error %.2g\n", static_cast<long long>(rows), worst);
    if (!(worst < 1e-6F)) return 1;
  }
  return 0;
}
