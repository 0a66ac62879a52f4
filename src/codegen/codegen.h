// Machine code for loop-IR kernels on the CPU: explicit vectors of LLVM IR, no optimisation pipeline, linked in memory.
// Kernels are cached by signature and target for the life of the process. Thread safe. No LLVM type leaves this folder.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "framejit/compile.h"
#include "loop/kernel.h"
#include "runtime/plan.h"

namespace framejit::codegen {

// Runs rows [begin, end) of the flattened outer space. Column kernels and kernels with `block`: times the number of
// blocks of the inner axis, blocks fastest (tiled kernels: the last outer dim fastest). buffers: data pointers in
// BufferArg order; symbols: values of the kernel's symbols.
using runtime::KernelFn;

struct CompiledKernel final : runtime::KernelCode {
  KernelFn fn = nullptr;
  std::string symbol;
  int64_t work_per_row(const int64_t* symbols) const override;
  int64_t rows(const int64_t* symbols) const override;
  std::pair<int64_t, int64_t> line_and_row(const int64_t* symbols) const override;
  loop::Kernel kernel;
  int64_t block = 0;  // elements of the inner axis in one row; 0: all
  int64_t code_bytes = 0;
  std::shared_ptr<const void> code;  // Keeps `fn` alive.
};

struct CodegenUnsupported : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The kernel, compiled now or found in the cache; *reused tells which. `cpu` names the instructions that may be used:
// "" is the best that this machine has, "avx2" and "avx512" are these (throws CodegenUnsupported where the machine
// cannot run them). "avx512-lowered" is what would be emitted for AVX-512, turned into AVX2 instructions: it is slow,
// and lets tests run on smaller machines. Throws std::runtime_error where the system refuses memory.
std::shared_ptr<const CompiledKernel> GetKernel(const loop::Kernel& kernel, const std::string& cpu, bool* reused);
// The kernel's code as text; what: "llvm" or "asm". `cpu` may name instructions that this machine does not have.
std::string EmitText(const loop::Kernel& kernel, const std::string& cpu, std::string_view what);

}  // namespace framejit::codegen
