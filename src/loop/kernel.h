// Loop IR of one kernel: an iteration space, a scalar SSA body, reduction axes. Built from a fused group of graph nodes
// by BuildKernel, turned into machine code by codegen.
//
// A kernel runs an outer space (parallel, flattened, dims outermost first) and, for each outer point, a *row*: a list
// of stages. A `loop` stage runs its instructions over the red axes (sequential) and the inner axis (vectorised); a row
// stage runs once per row on scalars. A reduce instruction of a loop stage combines over red and inner axes; its result
// is a row scalar, visible to later stages.
//   softmax over f32[N, C]:  outer [N], inner C
//     loop: %0 = load x[o0*C + i]; %1 = reduce max %0
//     loop: %2 = load x; %3 = sub %2, %1; %4 = exp %3; %5 = reduce sum %4; store scratch0[i], %4
//     loop: %6 = load scratch0[i]; %7 = div %6, %5; store y[o0*C + i], %7
// In a `column` kernel the inner axis is a kept one: all stages run for one vector of it, a loop stage runs over the
// red axes only, reduce combines over those, and what was a row scalar is a vector. (softmax over f32[N, C], axis 0:
// inner C, red [N].) Every Int of a kernel is a number or a plain symbol: the runtime evaluates BuiltKernel::symbols
// once per tuple of sizes.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "framejit/graph.h"
#include "graph/views.h"

namespace framejit::loop {

using shape::Int;
using shape::Ints;

// The index of the element that an access means is offset + sum(outer[i]*o_i) + sum(red[i]*r_i) + inner*i.
struct Index {
  Int offset;
  Ints outer;  // One for each outer dimension.
  Ints red;    // One for each reduced axis.
  Int inner;
  friend bool operator==(const Index&, const Index&) = default;
};

enum class IKind : uint8_t {
  kOp,        // a pointwise graph op on operands
  kConst,     // The constant `scalar`.
  kSym,       // value of a size expression, as dtype
  kIota,      // the number `index` evaluates to, as dtype
  kLoad,      // Reads buffers[buffer][index].
  kLoadAt,    // indirect: buffers[buffer][index + sum(operand_k * stride_k)], operands i64 and in range (take, gather)
  kStore,     // buffers[buffer][index] = operand 0
  kReduce,    // combine operand 0 over the red and inner axes with `op`; argmax, argmin: operand 1 is its i64 position
  kScan,      // the sum of operand 0 so far along the (only) axis that reductions would run over
  kInBounds,  // Is 0 <= index expression < sym? For pad and cat.
  kCheck,     // notes `scalar`, a Status, where operand 0, a bool, is true
};

struct Inst {
  IKind kind;
  Op op = Op::kAdd;
  DType dtype = DType::kFloat32;  // of the result; 16-bit floats are f32 in registers
  std::vector<int> operands;      // instruction numbers (kernel-wide); earlier stages' only if row scalars
  Scalar scalar;
  Int sym;          // Of kSym; of kInBounds it is the bound.
  int buffer = -1;  // Numbers from buffers.size() on are scratch rows.
  Index index;
  Ints strides;         // kLoadAt: stride of each indirect operand
  int predicate = -1;   // loads: bool instruction; where it is false memory is not touched and the value is 0
  bool numpys = false;  // kReduce, kScan: a sum or product whose order is that of NumPy
};

struct Stage {
  bool loop = true;  // Runs it for each element, or once for each row?
  std::vector<int> insts;
};

struct BufferArg {
  DType dtype;
  bool written = false;
};

struct Kernel {
  Ints outer;  // The extents of the outer loops; there may be none.
  Ints red;    // sequential reduction axes inside a row
  Int inner = 1;
  bool column = false;
  int64_t block = 0;   // no reductions: the inner axis is split in parallel blocks of so many elements
  bool tiled = false;  // some access is contiguous along the last outer dim: that one runs inside of a block
  std::vector<BufferArg> buffers;  // In the order of the arguments.
  std::vector<DType> scratch;      // row buffers private to the kernel, `inner` elements each: buffers.size() + k
  std::vector<Inst> insts;
  std::vector<Stage> stages;
  bool stream = false;    // Is so much written that no cache keeps it?
  bool contract = false;  // Need a product not be rounded before it is added?
  bool ieee = false;      // IEEE exceptions are looked at: functions raise theirs, lanes that do not exist raise none
  int Checks() const {    // the bits of Status that it may note
    int all = 0;
    for (const Inst& inst : insts)
      if (inst.kind == IKind::kCheck) all |= static_cast<int>(inst.scalar.AsInt());
    return all;
  }
  int num_symbols = 0;  // symbols s0..; kernel-local, numbered in order of appearance: BuiltKernel::symbols
  std::string name;     // for symbols in profilers: "softmax@file.py:12"
  std::string str() const;
  uint64_t Signature() const;         // hash of SignatureText: equal kernels share code
  std::string SignatureText() const;  // It has everything but the name.
};

// The name of a sum of float32 or float64 that adds up in the order of NumPy's add.reduce, whose operand is taken to
// lie row by row: the rows of what lies side by side in pairs (ReductionEmitter::Pairwise), one behind the other. That
// of a product, and of a sum of all so far, goes from one element to the next, as they lie.
constexpr const char* kNumpys = "numpy";

// A fused group of graph nodes as a kernel. `group`: nodes computed here, in graph order. Operands outside the group
// are read from buffers with the given strides; members used outside are stored.
using framejit::Layout;
// What a device's memory, steps and arithmetic cost (compiler::Target::costs).
struct Costs {
  bool parts_apart = true;  // a further kernel costs less than computing small parts of an array for all its elements
  bool keeps_rows = true;   // a kernel may keep a row of what a later loop of it needs again; else it computes it again
  // Elements of a row that are computed at once. Twelve kernels of short rows and transposes on an H100: 1 took as long
  // as 8, and 32 took up to thirteen times as long.
  int64_t lanes = 8;
  int64_t streamed_bytes = std::numeric_limits<int64_t>::max();    // what writes so much need not leave it in a cache
  int64_t streamed_results = std::numeric_limits<int64_t>::max();  // nor what writes so much that no step reads
};

struct BuiltKernel {
  Kernel kernel;
  std::vector<ValueId> buffers;  // The value of each BufferArg, inputs before outputs.
  std::vector<Int> symbols;      // kernel symbol i = this expression over graph symbols
};

// Can `group` (closed under nothing, in graph order) run as one kernel? The fusion pass asks before it grows a group.
// True for every single pointwise, view, reduction, creation, take, gather or cumsum node of a supported type (no fp8;
// complex numbers are moved, and those of 128 bits computed with by + - * / on the CPU). why: where it cannot, the
// reason.
bool CanFuse(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored,
             std::string* why = nullptr);
// Would one kernel of what CanFuse allows add up in the order of NumPy what is NumPy's (kNumpys)? Not so where what
// NumPy sums along as one axis is several to the kernel: all of `np.outer(a, b)`.
bool SumsInOrder(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored,
                 const std::vector<Layout>& layouts);
// Does the node compute each element of its result from those at the same place? Connected ones of one shape can always
// be one kernel, if they read no values that the kernel makes itself (constants, positions), but for plain constants.
bool IsElementwise(const Graph& g, ValueId v);
// layouts[v]: for every operand outside of the group and every stored member. Throws std::logic_error if !CanFuse.
BuiltKernel BuildKernel(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored,
                        const std::vector<Layout>& layouts, const Costs& costs = {});

}  // namespace framejit::loop
