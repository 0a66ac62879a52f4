// A Host for tests: malloc for tensors, a function for externs, counters that show leaks. And graphs run both ways.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <random>

#include "framejit/compile.h"
#include "runtime/interpret_node.h"
#include "runtime/thread_pool.h"

namespace framejit::test {

inline const bool reference = runtime::reference_steps = true;  // for what this host has no library

class TestHost : public Host {
 public:
  struct Tensor {
    std::vector<int64_t> sizes, strides;
    std::vector<std::byte> bytes;
  };
  static int64_t Elements(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
    int64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 0) return 0;
      last += (sizes[i] - 1) * strides[i];
    }
    return last + 1;
  }
  void Make(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, Buffer* out) {
    auto* t = new Tensor{{sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}, {}};
    t->bytes.assign(Elements(sizes, strides) * DTypeSize(dtype), std::byte{0xAB});
    out->data = t->bytes.data();
    out->handle = t;
    out->sizes = t->sizes.data();
    out->strides = t->strides.data();
    out->rank = static_cast<int32_t>(sizes.size());
    out->dtype = dtype;
    ++live;
  }
  void AllocateOutput(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, Device,
                      Buffer* out) override {
    Make(dtype, sizes, strides, out);
  }
  void FreeOutput(Buffer* out) override { Delete(out); }
  void RunExtern(const Call& call, std::span<const Buffer> operands, std::span<Buffer> results) override {
    ++externs;
    if (!run_extern) throw ExternError();
    run_extern(*this, call, operands, results);
  }
  void Release(Buffer* b) override { Delete(b); }
  void Delete(Buffer* b) {
    delete static_cast<Tensor*>(b->handle);
    b->handle = nullptr;
    --live;
  }
  int NumThreads() override { return threads; }
  void ParallelFor(int64_t n, int64_t grain, void (*f)(void*, int64_t, int64_t), void* ctx) override {
    ++parallel_regions;
    runtime::ThreadPool::Get().ParallelFor(n, grain, f, ctx);
  }

  std::function<void(TestHost&, const Call&, std::span<const Buffer>, std::span<Buffer>)> run_extern;
  std::atomic<int> live{0}, externs{0}, parallel_regions{0};
  int threads = 1;
};

inline Buffer AsBuffer(const HostTensor& t) {
  Buffer b;
  b.data = t.data();
  b.sizes = t.sizes.data();
  b.strides = t.strides.data();
  b.rank = static_cast<int32_t>(t.sizes.size());
  b.dtype = t.dtype;
  return b;
}

inline int64_t Numel(std::span<const int64_t> sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

// Byte offset of element i (row-major count) of a strided tensor.
inline int64_t Offset(int64_t i, const int64_t* sizes, const int64_t* strides, int rank) {
  int64_t at = 0;
  for (int d = rank - 1; d >= 0; --d) {
    at += i % sizes[d] * strides[d];
    i /= sizes[d];
  }
  return at;
}

inline double Half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double v = exponent == 31  ? (fraction ? NAN : INFINITY)
             : exponent == 0 ? std::ldexp(fraction, -24)
                             : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -v : v;
}

inline double ReadElement(const void* p, DType t) {
  auto as = [&](auto x) {
    std::memcpy(&x, p, sizeof(x));
    return x;
  };
  switch (t) {
    case DType::kFloat32: return as(float{});
    case DType::kFloat64: return as(double{});
    case DType::kInt64: return static_cast<double>(as(int64_t{}));
    case DType::kInt32: return as(int32_t{});
    case DType::kInt16: return as(int16_t{});
    case DType::kInt8: return as(int8_t{});
    case DType::kUInt8: return as(uint8_t{});
    case DType::kBool: return as(uint8_t{});
    case DType::kBFloat16: {
      uint32_t bits = uint32_t{as(uint16_t{})} << 16;
      float f;
      std::memcpy(&f, &bits, 4);
      return f;
    }
    case DType::kFloat16: return Half(as(uint16_t{}));
    default: throw std::logic_error("ReadElement");
  }
}

inline std::vector<double> Values(const Buffer& b) {
  std::vector<double> out;
  const int64_t n = Numel({b.sizes, static_cast<size_t>(b.rank)});
  for (int64_t i = 0; i < n; ++i) {
    out.push_back(ReadElement(
        static_cast<std::byte*>(b.data) + Offset(i, b.sizes, b.strides, b.rank) * DTypeSize(b.dtype), b.dtype));
  }
  return out;
}

template <typename T>
HostTensor Tensor(DType t, std::vector<int64_t> sizes, const std::vector<T>& values) {
  HostTensor h = HostTensor::Empty(t, std::move(sizes));
  std::copy(values.begin(), values.end(), reinterpret_cast<T*>(h.data()));
  return h;
}

inline HostTensor F32(std::vector<int64_t> sizes, const std::vector<float>& values) {
  return Tensor(DType::kFloat32, std::move(sizes), values);
}
inline HostTensor I64(std::vector<int64_t> sizes, const std::vector<int64_t>& values) {
  return Tensor(DType::kInt64, std::move(sizes), values);
}

inline HostTensor RandomF32(std::vector<int64_t> sizes, uint32_t seed, float scale = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(Numel(sizes));
  for (float& v : values) v = normal(rng);
  return F32(std::move(sizes), values);
}

inline HostTensor Copy(const HostTensor& t) {
  HostTensor c = t;
  c.storage = std::make_shared<std::vector<std::byte>>(*t.storage);
  return c;
}

// Results are equal for integers; floats differ by at most `tolerance` times the largest value (at least 1).
inline void ExpectClose(const Buffer& got, const Buffer& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.rank, want.rank) << what;
  ASSERT_EQ(got.dtype, want.dtype) << what;
  for (int d = 0; d < got.rank; ++d) ASSERT_EQ(got.sizes[d], want.sizes[d]) << what;
  const std::vector<double> a = Values(got), b = Values(want);
  double largest = 1;
  for (double v : b) {
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  }
  const bool exact = !IsFloat(got.dtype);
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(b[i])) {
      ASSERT_TRUE(std::isnan(a[i])) << what << " element " << i << " of " << a.size() << ": " << a[i]
                                    << " instead of nan";
    } else if (exact || std::isinf(b[i])) {
      ASSERT_EQ(a[i], b[i]) << what << " element " << i << " of " << a.size();
    } else {
      ASSERT_NEAR(a[i], b[i], tolerance * largest) << what << " element " << i << " of " << a.size();
    }
  }
}

// Runs the executable and the interpreter on the same inputs and compares outputs and written inputs.
inline void Check(Executable& exe, TestHost& host, const Graph& g, const std::vector<HostTensor>& inputs,
                  double tolerance = 1e-5, std::vector<int64_t> scalars = {}, const ExternRunner& run_extern = {}) {
  std::vector<HostTensor> want_inputs, got_inputs;
  for (const HostTensor& t : inputs) {
    want_inputs.push_back(Copy(t));
    got_inputs.push_back(Copy(t));
  }
  Graph reference = g;  // writes are compared as outputs
  for (const Write& w : g.writes) reference.outputs.push_back(w.value);
  reference.writes.clear();
  const std::vector<HostTensor> want = Interpret(reference, want_inputs, run_extern, scalars);
  std::vector<Buffer> in;
  for (const HostTensor& t : got_inputs) in.push_back(AsBuffer(t));
  std::vector<Buffer> out(g.outputs.size());
  const int live = host.live;
  exe.Run(host, in, scalars, out);
  EXPECT_EQ(host.live, live + static_cast<int>(out.size()));
  for (size_t o = 0; o < out.size(); ++o) {
    const Node& n = g.node(g.outputs[o]);
    if (!n.strides.empty()) {
      for (int d = 0; d < out[o].rank; ++d) {
        auto s = n.strides[d].as_const();
        EXPECT_TRUE(!s || out[o].sizes[d] == 1 || out[o].strides[d] == *s) << "stride " << d << " of output " << o;
      }
    }
    ExpectClose(out[o], AsBuffer(want[o]), tolerance, "output " + std::to_string(o) + "\n" + g.str() + exe.str());
    host.Delete(&out[o]);
  }
  for (size_t w = 0; w < g.writes.size(); ++w) {
    ExpectClose(AsBuffer(got_inputs[g.writes[w].input]), AsBuffer(want[g.outputs.size() + w]), tolerance,
                "write\n" + g.str() + exe.str());
  }
}

inline void CompileAndCheck(const Graph& g, const std::vector<HostTensor>& inputs, double tolerance = 1e-5) {
  ASSERT_EQ(Verify(g), "") << g.str();
  for (bool fuse : {true, false}) {
    CompileOptions options;
    options.fuse = fuse;
    options.verify = 1;
    auto exe = Compile(g, options);
    EXPECT_EQ(exe->stats().interpreted, 0) << exe->str();
    TestHost host;
    Check(*exe, host, g, inputs, tolerance);
    Check(*exe, host, g, inputs, tolerance);  // again, with what the first run left behind
    EXPECT_EQ(host.live, 0);
  }
}

}  // namespace framejit::test
