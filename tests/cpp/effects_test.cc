// The effects table: how names find their rows.
#include "graph/effects.h"

#include <thread>

#include "gtest/gtest.h"

namespace framejit {
namespace {

const Effects& Of(const char* name) {
  return Callee(name).effects();
}

TEST(Callee, IsOneForOneName) {
  const Callee a("torch.Tensor.add_"), b(std::string("torch.Tensor.") + "add_");
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.id(), b.id());
  EXPECT_NE(a, Callee("torch.Tensor.add"));
  EXPECT_EQ(a.last(), "add_");
  EXPECT_EQ(a.space(), "torch.Tensor");
  EXPECT_TRUE(Callee().empty());
  EXPECT_EQ(Callee(""), Callee());
  EXPECT_EQ(Callee().name(), "");
}

TEST(Callee, IsOneForAllThreads) {
  constexpr int kThreads = 8, kNames = 2000;
  std::vector<std::vector<Callee>> made(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&made, t] {
      for (int i = 0; i < kNames; ++i) made[t].emplace_back("thread.test" + std::to_string(i));
    });
  for (std::thread& t : threads) t.join();
  for (int t = 1; t < kThreads; ++t) EXPECT_EQ(made[t], made[0]);
}

TEST(Callee, KnowsItsFramework) {
  for (const char* name : {"numpy.exp", "cupy.exp", "scipy.special.erf", "framejit._arrays.written"})
    EXPECT_EQ(Callee(name).framework(), Framework::kNumpy) << name;
  for (const char* name : {"torch.exp", "framejit._functions.count_of", ""})
    EXPECT_EQ(Callee(name).framework(), Framework::kTorch) << name;
  EXPECT_TRUE(Callee("cupy.exp").of_cupy());
  EXPECT_FALSE(Callee("numpy.exp").of_cupy());
}

TEST(Effects, DerivativesOfDerivatives) {
  for (const char* name :
       {"framejit.vjp(torch.nn.functional.batch_norm)", "framejit.vjp(torch.max_pool2d)", "framejit._gradients.take",
        "framejit._gradients.gather", "torch.ops.aten.convolution_backward", "torch.ops.aten.embedding_dense_backward"})
    EXPECT_TRUE(Callee(name).Has(kDerivedAgain)) << name;
  for (const char* name : {"torch.take", "torch.gather", "framejit._gradients.attention_backward"})
    EXPECT_FALSE(Callee(name).Has(kDerivedAgain)) << name;
  EXPECT_TRUE(Callee("framejit._gradients.gather").Has(kKeepsNoOperand));
}

TEST(Effects, FormsOfOneOperation) {
  for (const char* name : {"torch.add", "torch.Tensor.add_", "torch.Tensor.__add__", "torch.Tensor.__radd__",
                           "torch.Tensor.__iadd__", "torch.ops.aten.add"})
    EXPECT_TRUE(Of(name).flags & kTakesFloatSymbols) << name;
  EXPECT_TRUE(Callee("torch.Tensor.add_").Has(kInPlace));
  EXPECT_TRUE(Callee("torch.Tensor.__iadd__").Has(kInPlace));
  EXPECT_TRUE(Callee("torch.Tensor.__radd__").Has(kReflected));
  for (const char* name : {"torch.Tensor.__invert__", "torch.Tensor.__int__", "torch.Tensor.__iter__", "numpy.bool_",
                           "torch.Tensor.__repr__"})
    EXPECT_FALSE(Callee(name).Has(kInPlace | kReflected)) << name;
  EXPECT_EQ(FunctionalForm(Callee("torch.Tensor.add_")), Callee("torch.Tensor.add"));
  EXPECT_EQ(FunctionalForm(Callee("numpy.ndarray.__imatmul__")), Callee("numpy.ndarray.__matmul__"));
  EXPECT_EQ(FunctionalForm(Callee("torch.exp")), Callee("torch.exp"));
}

TEST(Effects, InPlaceFormsAreNotCast) {
  EXPECT_EQ(Of("torch.exp").cuda, CastRule::kFloat32);
  EXPECT_EQ(Of("torch.exp_").cuda, CastRule::kNone);
  EXPECT_EQ(Of("torch.Tensor.__matmul__").cpu, CastRule::kLower);
  EXPECT_EQ(Of("torch.Tensor.__rmatmul__").cpu, CastRule::kLower);
}

TEST(Effects, SpacesComeFirst) {
  EXPECT_EQ(Of("torch.linalg.solve").cpu, CastRule::kRefused);
  EXPECT_EQ(Of("torch._C._linalg.linalg_solve").cpu, CastRule::kRefused);
  EXPECT_EQ(Of("torch.solve").cpu, CastRule::kNone);
  EXPECT_TRUE(Of("numpy.sort").flags & kSizedByShapes);
  EXPECT_FALSE(Of("numpy.sort").flags & kWritesFirst);
  EXPECT_TRUE(Of("numpy.ndarray.sort").flags & kWritesFirst);
}

TEST(Effects, WhatNoGraphHolds) {
  EXPECT_EQ(Of("torch.Tensor.item").ends, diag::BreakId::kTensorItem);
  EXPECT_EQ(Of("numpy.ndarray.item").ends, diag::BreakId::kTensorItem);
  EXPECT_EQ(Of("torch.Tensor.__bool__").ends, diag::BreakId::kTensorBool);
  EXPECT_EQ(Of("torch.autograd.grad").ends, diag::BreakId::kAutogradCall);
  EXPECT_FALSE(Of("torch.Tensor.grad.__get__").refused());
  EXPECT_TRUE(NeverCaptured(Callee("torch.Tensor.grad.__get__")));
  EXPECT_TRUE(Of("torch.Tensor.detach_").refused());
  EXPECT_FALSE(Of("torch.Tensor.detach").refused());
  EXPECT_TRUE(NeverCaptured(Callee("numpy.random.permutation")));
  EXPECT_FALSE(NeverCaptured(Callee("torch.nonzero")));  // data decides its size, which capture may name
  EXPECT_TRUE(NeverCaptured(Callee("cupy.nonzero")));
}

TEST(Effects, DrawsAndWrites) {
  for (const char* name :
       {"torch.rand", "torch.Tensor.normal_", "torch.ops.mine.anything", "framejit._random.attention"})
    EXPECT_TRUE(Draws(Callee(name))) << name;
  for (const char* name : {"torch.relu", "framejit._gradients.attention", "numpy.random.rand", "torch.ops.aten.relu"})
    EXPECT_FALSE(Draws(Callee(name))) << name;
  EXPECT_TRUE(Callee("torch.native_batch_norm").Has(kWritesInSilence));
  EXPECT_TRUE(Callee("torch.batch_norm").Has(kWritesInSilence));
  EXPECT_TRUE(Callee("numpy.add.at").Has(kWritesFirst));
  EXPECT_FALSE(Callee("cupy.add.at").Has(kWritesFirst));
  EXPECT_TRUE(ChangesFirst(Callee("torch.Tensor.__setitem__")));
  EXPECT_TRUE(ChangesFirst(Callee("torch.Tensor.clamp_")));
  EXPECT_FALSE(ChangesFirst(Callee("torch.Tensor.__getitem__")));
}

TEST(Effects, RulesOfVmap) {
  // One row for all names of an operation, and none for forms that torch does not batch like it.
  for (const char* name : {"torch.matmul", "torch.Tensor.matmul", "torch.Tensor.__matmul__"})
    EXPECT_EQ(Of(name).batch, Batch::kProduct) << name;
  EXPECT_EQ(Of("torch.Tensor.__rmatmul__").batch, Batch::kNone);
  EXPECT_EQ(Of("torch._C._nn.linear").batch, Batch::kLinear);
  EXPECT_EQ(Of("torch.conv2d").batch, Batch::kConvolution);
  EXPECT_EQ(Of("torch.Tensor.fill_").batch, Batch::kFill);
  EXPECT_EQ(Of("torch.fill").batch, Batch::kNone);
  EXPECT_EQ(Of("torch.Tensor.copy_").batch, Batch::kCopy);
  EXPECT_TRUE(Callee("torch.Tensor.copy_").Has(kInPlace));
  EXPECT_EQ(Of("torch.Tensor.squeeze_").batch, Batch::kNone);
  EXPECT_EQ(Of("torch.bernoulli").batch, Batch::kDrawnInRows);
  EXPECT_EQ(Of("torch.Tensor.bernoulli_").batch, Batch::kNone);
  EXPECT_EQ(Of("torch.linalg.diagonal").batch, Batch::kNone);
  EXPECT_EQ(Of("numpy.matmul").batch, Batch::kNone);
  for (Batch rule : {Batch::kUnary, Batch::kPointwise, Batch::kPointwiseOfOne, Batch::kPointwiseOfTwo})
    EXPECT_TRUE(IsPointwise(rule));
  for (Batch rule : {Batch::kNone, Batch::kReduce, Batch::kDrawn}) EXPECT_FALSE(IsPointwise(rule));
}

TEST(Effects, NumbersThatTensorsHold) {
  for (const char* name : {"torch.add", "torch.Tensor.__rsub__", "torch.Tensor.__itruediv__", "torch.Tensor.__eq__",
                           "torch.greater", "torch.lerp", "torch.Tensor.lerp_", "numpy.add"})
    EXPECT_TRUE(Callee(name).Has(kTakesHeldNumber)) << name;
  for (const char* name : {"torch.pow", "torch.Tensor.__rpow__", "torch.floor_divide", "torch.clamp"})
    EXPECT_FALSE(Callee(name).Has(kTakesHeldNumber)) << name;
  for (const char* name : {"torch.add", "torch.Tensor.sub_", "torch.Tensor.addcdiv_", "torch.masked_fill"})
    EXPECT_TRUE(Callee(name).Has(kTakesFactor)) << name;
  for (const char* name : {"torch.mul", "torch.lerp", "torch.full", "torch.addmm"})
    EXPECT_FALSE(Callee(name).Has(kTakesFactor)) << name;
}

TEST(Effects, Answers) {
  EXPECT_EQ(Of("torch.compiler.is_compiling").answer, Answer::kYes);
  EXPECT_EQ(Of("torch.jit.is_tracing").answer, Answer::kNo);
  EXPECT_EQ(Of("torch._C._get_tracing_state").answer, Answer::kNothing);
  EXPECT_EQ(Of("torch.add").answer, Answer::kNone);
}

TEST(Effects, AreReadable) {
  EXPECT_EQ(Of("torch.softmax").str(), "keeps_no_operand keeps=result cuda=float32 batch=dim");
  EXPECT_EQ(Of("torch.Tensor.item").str(), "outside ends=FJ0002");
  EXPECT_EQ(Of("torch.no_such_function").str(), "");
}

}  // namespace
}  // namespace framejit
