// The interface of targets is whole: one that emits C for memory of its own (examples/c_target) runs what the CPU runs.
#include "c_target.h"

#include "compiler/target.h"
#include "random_graph.h"

namespace framejit {
namespace {

using shape::Int;
using test::RandomF32;
using test::RandomGraph;

constexpr Device kDevice{DeviceKind::kPrivate, 0};

// Tensors of the device. Whoever reads or writes one without c_target::Open crashes.
class DeviceHost : public test::TestHost {
 public:
  void AllocateOutput(DType dtype, std::span<const int64_t> sizes, std::span<const int64_t> strides, Device device,
                      Buffer* out) override {
    Make(dtype, sizes, strides, out);
    out->device = device;
    if (device == kDevice) out->data = c_target::Allocate(static_cast<Tensor*>(out->handle)->bytes.size());
  }
  void FreeOutput(Buffer* out) override { Release(out); }
  void Release(Buffer* b) override {
    if (b->device == kDevice) c_target::Free(b->data);
    Delete(b);
  }
  void Copy(const Buffer& from, const Buffer& to) override {
    const c_target::Open open;
    ++copies;
    const int64_t size = DTypeSize(from.dtype), n = test::Numel({from.sizes, static_cast<size_t>(from.rank)});
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(static_cast<std::byte*>(to.data) + test::Offset(i, to.sizes, to.strides, to.rank) * size,
                  static_cast<std::byte*>(from.data) + test::Offset(i, from.sizes, from.strides, from.rank) * size,
                  size);
  }
  int copies = 0;
};

Graph OnDevice(Graph g) {
  for (Node& n : g.nodes) n.type.device = kDevice;
  return g;
}

// As test::Check, with everything on the device. Returns the kernels that were made or found.
int CheckOnDevice(const Graph& g, const std::vector<HostTensor>& inputs, double tolerance = 2e-5, bool fuse = true) {
  Graph reference = g;
  for (const Write& w : g.writes) reference.outputs.push_back(w.value);
  reference.writes.clear();
  const std::vector<HostTensor> want = Interpret(reference, inputs);
  CompileOptions options;
  options.fuse = fuse;
  options.verify = 1;
  auto exe = Compile(OnDevice(g), options);
  EXPECT_EQ(exe->stats().interpreted, 0) << exe->str();
  DeviceHost host;
  std::vector<Buffer> in(inputs.size()), out(g.outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Buffer from = test::AsBuffer(inputs[i]);
    host.AllocateOutput(from.dtype, {from.sizes, size_t(from.rank)}, {from.strides, size_t(from.rank)}, kDevice,
                        &in[i]);
    host.Copy(from, in[i]);
  }
  exe->Run(host, in, {}, out);
  const c_target::Open open;
  for (size_t o = 0; o < out.size(); ++o)
    test::ExpectClose(out[o], test::AsBuffer(want[o]), tolerance,
                      "output " + std::to_string(o) + "\n" + g.str() + exe->str());
  for (size_t w = 0; w < g.writes.size(); ++w)
    test::ExpectClose(in[g.writes[w].input], test::AsBuffer(want[g.outputs.size() + w]), tolerance,
                      "write\n" + g.str());
  for (Buffer& b : out) host.Release(&b);
  for (Buffer& b : in) host.Release(&b);
  EXPECT_EQ(host.live, 0);
  return exe->stats().kernels;
}

class CTarget : public ::testing::Test {
 protected:
  void SetUp() override { c_target::Register(); }
};

TEST_F(CTarget, RandomGraphs) {  // FRAMEJIT_TEST_GRAPHS=n: so many
  const char* count = std::getenv("FRAMEJIT_TEST_GRAPHS");
  const uint32_t end = count ? std::atoi(count) : 12;
  int kernels = 0;
  for (uint32_t seed = 0; seed < end && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    for (bool symbolic : {false, true}) {
      RandomGraph random(seed, symbolic);
      kernels += CheckOnDevice(random.g, random.inputs, 2e-5, seed % 2 == 0);
    }
  }
  EXPECT_GT(kernels, static_cast<int>(end));
}

struct Fixture : CTarget, test::CompileFixture {};

TEST_F(Fixture, LayerNormSoftmaxAndAProduct) {
  ValueId x = In({Int(5), Int(48)}), w = In({Int(48)}), bias = In({Int(48)}), m = In({Int(48), Int(33)});
  ValueId y = b.Add(Op::kMatMul, {Gelu(LayerNorm(x, w, bias)), m});
  g.outputs = {Softmax(y, 1), Softmax(y, 0), b.Reduce(Op::kSum, y, {0}, false)};
  CheckOnDevice(g, {RandomF32({5, 48}, 1), RandomF32({48}, 2), RandomF32({48}, 3), RandomF32({48, 33}, 4)});
}

TEST_F(Fixture, SixteenBits) {
  ValueId x = In({Int(7), Int(20)}, DType::kFloat32);
  g.outputs = {b.Cast(b.Unary(Op::kExp, b.Cast(x, DType::kBFloat16)), DType::kFloat32),
               b.Cast(b.Unary(Op::kTanh, b.Cast(x, DType::kFloat16)), DType::kFloat32)};
  CheckOnDevice(g, {RandomF32({7, 20}, 1)}, 1e-2);
}

TEST_F(Fixture, AKernelThatItDoesNotHaveIsNamed) {
  ValueId x = In({Int(4)}, DType::kInt64), y = In({Int(4)}, DType::kInt64);
  g.outputs = {b.Binary(Op::kFloorDiv, x, y)};
  auto exe = Compile(OnDevice(g));  // tests may run such a node by the reference semantics
  EXPECT_EQ(exe->stats().interpreted, 1);
  runtime::reference_steps = false;
  EXPECT_ANY_THROW(Compile(OnDevice(g)));
  runtime::reference_steps = true;
}

TEST(NoTarget, IsTold) {
  RandomGraph random(1);
  compiler::RegisterTarget(nullptr);
  EXPECT_EQ(DeviceObstacle(OnDevice(random.g)), "no code generation for this device");
  EXPECT_THROW(Compile(OnDevice(random.g)), std::runtime_error);
  c_target::Register();
  EXPECT_EQ(DeviceObstacle(OnDevice(random.g)), "");
}

}  // namespace
}  // namespace framejit
