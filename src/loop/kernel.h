// Loop IR of one kernel: an iteration space, a scalar SSA body, reduction axes. Built from a fused group of graph nodes by
// BuildKernel, turned into machine code by codegen.
//
// A kernel runs an outer space (parallel, flattened, dims outermost first) and, for each outer point, a *row*: a list of
// stages. A `loop` stage runs its instructions over the inner (vector) axis; a `row` stage runs once per row on scalars.
// An instruction of a loop stage may reduce over the inner axis; the result is a row scalar, visible to later stages.
//   softmax over f32[N, C]:  outer [N], inner C
//     loop: %0 = load x[o0*C + i]; %1 = reduce max %0
//     loop: %2 = load x; %3 = sub %2, %1; %4 = exp %3; %5 = reduce sum %4
//     loop: %6..%8 = the same again; %9 = div %8, %5; store y[o0*C + i], %9
// With `column` set there is a sequential reduction axis inside: stages run over vectors of the inner axis, and reduce
// instructions accumulate over the `red` axis instead (column sums): inner is then a kept axis.
#pragma once

#include <string>
#include <vector>

#include "framejit/graph.h"

namespace framejit::loop {

using shape::Int;
using shape::Ints;

// Element index of an access: offset + sum(outer[i]*strides[i]) + inner*inner_stride + red*red_stride. All symbolic.
struct Index {
  Int offset;
  Ints outer;      // one per outer dim
  Int inner;
  Int red;         // column kernels only
  friend bool operator==(const Index&, const Index&) = default;
};

enum class IKind : uint8_t {
  kOp,        // a pointwise graph op on operands
  kConst,     // scalar
  kSym,       // value of a size expression, as dtype
  kIota,      // the coordinate `index` evaluates to, as dtype
  kLoad,      // buffers[buffer][index]
  kLoadAt,    // indirect: buffers[buffer][index + sum(clamped operand_k * stride_k)]   (take, gather)
  kStore,     // operand 0
  kReduce,    // combine operand 0 over the inner (or red) axis with `op` (kSum, kMax, ...)
  kInBounds,  // bool: 0 <= index expression < bound (pad)
};

struct Inst {
  IKind kind;
  Op op = Op::kAdd;
  DType dtype = DType::kFloat32;   // of the result
  std::vector<int> operands;       // instruction numbers (kernel-wide); earlier stages' only if row scalars
  Scalar scalar;
  Int sym;                         // kSym; kInBounds: bound
  int buffer = -1;
  Index index;
  Ints strides;                    // kLoadAt: stride of each indirect operand
};

struct Stage {
  bool loop = true;                // false: once per row
  std::vector<int> insts;
};

struct BufferArg {
  DType dtype;
  bool written = false;
};

struct Kernel {
  Ints outer;                      // extents; may be empty
  Int inner = 1;
  Int red = 1;
  bool column = false;
  std::vector<BufferArg> buffers;  // in argument order
  std::vector<Inst> insts;
  std::vector<Stage> stages;
  int num_symbols = 0;             // symbols s0..; kernel-local numbering, see BuiltKernel::symbols
  std::string name;                // for symbols in profilers: "softmax@file.py:12"
  std::string str() const;
  uint64_t Signature() const;      // structural hash: equal kernels (symbols are numbered canonically) share code
  std::string SignatureText() const;
};

// A fused group of graph nodes as a kernel. `group`: nodes computed here, in graph order. Operands outside the group are
// read from buffers with the given strides; members used outside are stored.
struct Layout { Ints strides; Int offset = 0; };   // of a materialised value, in elements
struct BuiltKernel {
  Kernel kernel;
  std::vector<ValueId> buffers;    // which value each BufferArg is (inputs, then outputs)
  std::vector<Int> symbols;        // kernel symbol i = this expression over graph symbols
};

// Can `group` (closed under nothing, in graph order) run as one kernel? The fusion pass asks before it grows a group.
bool CanFuse(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored);
// layouts[v]: for every operand outside of the group and every stored member. Throws std::logic_error if !CanFuse.
BuiltKernel BuildKernel(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored,
                        const std::vector<Layout>& layouts);

}  // namespace framejit::loop
