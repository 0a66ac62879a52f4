// Runs a graph as one kernel and compares it with the reference interpreter. For tests of loop and codegen.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "codegen/codegen.h"
#include "host_tensors.h"
#include "loop/kernel.h"

namespace framejit::test {

// Both code shapes; the wide one in AVX2 instructions where the machine has no AVX-512.
inline bool HasAvx512() {
  static const bool has = [] {
    loop::Kernel probe;
    try {
      codegen::GetKernel(probe, "avx512", nullptr);
      return true;
    } catch (const codegen::CodegenUnsupported&) {
      return false;
    }
  }();
  return has;
}
inline std::vector<std::string> Cpus() {
  return {"avx2", HasAvx512() ? "avx512" : "avx512-lowered"};
}

struct GroupRun {
  std::vector<ValueId> group, stored;
  loop::BuiltKernel built;
};

// Everything but inputs in one group, outputs stored.
inline GroupRun BuildWhole(const Graph& g) {
  GroupRun run;
  std::vector<loop::Layout> layouts(g.nodes.size());
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    const Node& n = g.nodes[v];
    layouts[v].strides = n.strides.empty() ? RowMajor(n.type.shape) : n.strides.list();
    if (n.op != Op::kInput) run.group.push_back(v);
  }
  for (ValueId v : g.outputs) {
    if (std::find(run.stored.begin(), run.stored.end(), v) == run.stored.end()) run.stored.push_back(v);
  }
  std::sort(run.stored.begin(), run.stored.end());
  run.built = loop::BuildKernel(g, run.group, run.stored, layouts);
  return run;
}

inline std::byte* DataOf(const HostTensor& t) {
  return t.data();
}

// Runs the kernel in `pieces` calls over its rows. `values`: of the graph's symbols.
inline std::vector<HostTensor> RunGroup(const Graph& g, const GroupRun& run, const std::vector<HostTensor>& inputs,
                                        const std::string& cpu, const std::vector<int64_t>& values, int pieces = 3) {
  auto code = codegen::GetKernel(run.built.kernel, cpu, nullptr);
  std::vector<int64_t> symbols;
  for (shape::Int s : run.built.symbols) symbols.push_back(s.Eval(values));
  symbols.push_back(0);
  std::map<ValueId, HostTensor> made;
  std::vector<void*> buffers;
  for (ValueId v : run.built.buffers) {
    auto input = std::find(g.inputs.begin(), g.inputs.end(), v);
    if (input != g.inputs.end()) {
      buffers.push_back(DataOf(inputs[input - g.inputs.begin()]));
      continue;
    }
    const Node& n = g.node(v);
    std::vector<int64_t> sizes;
    for (shape::Int d : n.type.shape) sizes.push_back(d.Eval(values));
    HostTensor t = HostTensor::Empty(n.type.dtype, sizes);
    if (!n.strides.empty()) {
      for (size_t d = 0; d < sizes.size(); ++d) t.strides[d] = n.strides[d].Eval(values);
    }
    if (run.built.kernel.stream) {  // on a line of the cache
      t.storage->resize(t.storage->size() + 64);
      t.offset +=
          static_cast<int64_t>((64 - reinterpret_cast<uintptr_t>(t.storage->data()) % 64) % 64) / DTypeSize(t.dtype);
    }
    if (!t.storage->empty()) std::memset(t.storage->data(), 0xA5, t.storage->size());
    made[v] = t;
    buffers.push_back(DataOf(t));
  }
  buffers.push_back(nullptr);
  const int64_t rows = code->rows(symbols.data());
  EXPECT_GE(code->work_per_row(symbols.data()), 0);
  const int64_t piece = std::max<int64_t>(1, (rows + pieces - 1) / pieces);
  for (int64_t r = 0; r < rows; r += piece) code->fn(buffers.data(), symbols.data(), r, std::min(rows, r + piece));
  std::vector<HostTensor> out;
  for (ValueId v : g.outputs) out.push_back(made.at(v));
  return out;
}

inline HostTensor Random(DType t, std::vector<int64_t> sizes, unsigned seed, double low = -2, double high = 2) {
  std::mt19937 rng(seed);
  HostTensor x = HostTensor::Empty(t, sizes);
  for (int64_t k = 0; k < Elements(x); ++k) {
    const double u = low + (high - low) * (rng() >> 8) / double(1 << 24);
    SetElement(x, k, IsBool(t) ? double(rng() & 1) : IsFloat(t) ? u : std::floor(u));
  }
  return x;
}

// A tensor of the given strides (in elements, enough storage) with random contents.
inline HostTensor RandomStrided(DType t, std::vector<int64_t> sizes, std::vector<int64_t> strides, unsigned seed,
                                double low = -2, double high = 2) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] ? sizes[d] - 1 : 0) * strides[d];
  HostTensor flat = Random(t, {last + 1}, seed, low, high);
  flat.sizes = std::move(sizes);
  flat.strides = std::move(strides);
  return flat;
}

inline double Tolerance(DType t) {
  switch (t) {
    case DType::kFloat16: return 4e-3;
    case DType::kBFloat16: return 3e-2;
    case DType::kFloat32: return 2e-6;
    case DType::kFloat64: return 1e-14;
    default: return 0;
  }
}

// As one kernel in both code shapes, one of them streaming its results, against the interpreter. Also emits code for
// AVX-512 where it cannot run.
inline void CheckGraph(const Graph& g, const std::vector<HostTensor>& inputs, double tolerance = -1,
                       const std::vector<int64_t>& symbols = {}) {
  ASSERT_EQ(Verify(g), "") << g.str();
  const std::vector<HostTensor> expected = Interpret(g, inputs);
  GroupRun run;
  std::vector<ValueId> group, stored;
  ASSERT_NO_THROW(run = BuildWhole(g)) << g.str();
  EXPECT_TRUE(loop::CanFuse(g, run.group, run.stored)) << g.str();
  for (const std::string& cpu : Cpus()) {
    run.built.kernel.stream = !run.built.kernel.stream;
    const auto got = RunGroup(g, run, inputs, cpu, symbols);
    for (size_t o = 0; o < got.size(); ++o) {
      const double limit = tolerance >= 0 ? tolerance : Tolerance(got[o].dtype);
      EXPECT_EQ(Difference(got[o], expected[o], limit), "") << cpu << " output " << o << "\n"
                                                            << g.str() << run.built.kernel.str();
    }
  }
  if (!HasAvx512()) {
    EXPECT_NE(codegen::EmitText(run.built.kernel, "avx512", "asm"), "");
  }
}

}  // namespace framejit::test
