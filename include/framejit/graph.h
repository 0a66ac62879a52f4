// The graph: SSA over tensors, purely functional (views and writes were resolved by whoever built it; a write to an
// input is an entry of `writes`). Nodes are stored in execution order; a ValueId is the index of the node that makes
// it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "framejit/call.h"
#include "framejit/dtype.h"
#include "framejit/shape.h"

namespace framejit {

enum class Op : uint8_t {
#define X(e, name, arity, kind, type, attrs, accepts, cost, approximate, raises, twice) e,
#include "framejit/ops.def"
#undef X
};

struct OpInfo {
  const char* name;
  int arity;
  char kind;         // P R V C I M X W, see ops.def
  const char* type;  // "same", "bool", "attr", "index", "rule"
  const char* attrs;
  const char* accepts;  // The types it takes, as class letters of dtype.h.
  int cost;             // Of one element, in additions.
  bool approximate;
  char raises;  // IEEE exceptions: of what operands, see ops.def
  bool twice;   // May its derivative be differentiated?
};
const OpInfo& Info(Op op);
std::optional<Op> ParseOp(std::string_view name);
inline bool IsPointwise(Op op) {
  return Info(op).kind == 'P';
}
inline bool IsReduction(Op op) {
  return Info(op).kind == 'R';
}
inline bool IsView(Op op) {
  return Info(op).kind == 'V';
}

using ValueId = uint32_t;
inline constexpr ValueId kNoValue = ~ValueId{0};

struct Scalar {  // a compile-time number, exact for every dtype
  std::variant<bool, int64_t, double> v = int64_t{0};
  Scalar() = default;
  Scalar(bool b) : v(b) {}          // NOLINT
  Scalar(int64_t i) : v(i) {}       // NOLINT
  Scalar(int i) : v(int64_t{i}) {}  // NOLINT
  Scalar(double d) : v(d) {}        // NOLINT
  double AsDouble() const;
  int64_t AsInt() const;
  friend bool operator==(const Scalar&, const Scalar&) = default;  // note: nan != nan; hashing uses bits
};

struct TensorType {
  DType dtype = DType::kFloat32;
  shape::IntList shape;
  Device device;
  int rank() const { return static_cast<int>(shape.size()); }
  shape::Int numel() const { return shape::Product(shape); }
  friend bool operator==(const TensorType&, const TensorType&) = default;
  std::string str() const;  // "f32[4, s0]"
};

struct Attrs {
  std::vector<int64_t> axes;
  shape::IntList syms;
  Scalar scalar;
  std::optional<shape::Int> sym_scalar;  // a constant whose value is a size expression (overrides scalar)
  DType dtype = DType::kFloat32;
  bool flag = false;
  std::string name;
  std::shared_ptr<const Call> call;      // extern: kTensor args hold operand positions 0..n-1, not TraceIds
  std::vector<TensorType> result_types;  // extern with several results; `result` nodes pick one
};

// How gradients pass a node that means more than its primitive: the node is the value of a formula (softmax, relu) of
// `operands`, and `rule` (a row of src/autodiff/rules.cc) knows its derivative as the framework defines and computes
// it. Rules "stop" (nothing passes: detached, computed without gradients) and "unknown" (must not be asked) take none.
// Only automatic differentiation reads this, of graphs as they were built: passes drop it.
struct Derivative {
  std::string rule;
  std::vector<ValueId> operands;
  std::vector<double> numbers;
  std::vector<int64_t> axes;
};

struct Node {
  Op op;
  std::vector<ValueId> operands;
  Attrs attrs;
  TensorType type;  // extern with several results: the first one's
  // Layout the value must have when it is materialised, in elements; empty: the compiler may choose (row-major).
  shape::IntList strides;
  FileName file;  // user's line, for symbols, reports
  int line = 0;
  std::shared_ptr<const Derivative> derivative;
};

struct Write {  // at the end, and only if everything before succeeded: inputs[input] <- value
  int input;
  ValueId value;
};

struct Graph {
  std::string name = "graph";
  std::vector<Node> nodes;
  std::vector<ValueId> inputs;  // `input` nodes in order; node.strides hold the real (symbolic) strides
  std::vector<ValueId> outputs;
  std::vector<Write> writes;
  std::vector<shape::SymbolInfo> symbols;
  // Where the runtime reads symbol i: size of dimension `dim` of input `input`, or scalar input number `input` if dim <
  // 0.
  struct SymbolSource {
    int input = -1;
    int dim = 0;
  };
  std::vector<SymbolSource> symbol_sources;
  // Symbols that appear while it runs (SymbolKind::kRuntime) are sizes of the results of calls: each of the first one
  // whose result type has it as a size. What the rest of the graph takes for granted of them:
  std::vector<shape::Guard> conditions;
  std::vector<ValueId> ordered;  // calls that must run in this order: they draw random numbers

  const Node& node(ValueId v) const { return nodes[v]; }
  std::string str() const;                    // text form; Parse(str()) is the identity
  static Graph Parse(std::string_view text);  // throws std::runtime_error with line and column
  uint64_t Hash() const;
};

// Shape and dtype of a node from its operands. Throws ShapeError with a plain message when the operands do not fit.
struct ShapeError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
TensorType Infer(Op op, const std::vector<TensorType>& operands, const Attrs& attrs, shape::Env& env);

// NumPy's broadcasting of shapes (trailing dims align). Sizes that are not provably equal or 1 are asked of env; a size
// that was found to be 1 or another's equal is the other one in the result. Throws ShapeError.
shape::Ints BroadcastShapes(const shape::Ints& a, const shape::Ints& b, shape::Env& env);

// Puts what env learned while the graph was built (s1 == s0, s0 == 8) into every size, so that equal sizes are one
// expression for the stages that compare them. Once, when the graph is complete.
void SimplifySizes(Graph& g, const shape::Env& env);

// Empty string if the graph is well formed, else the first violation with the printed node.
std::string Verify(const Graph& g);

// Builds a graph node by node; infers types; folds trivial nodes (cast to same type, reshape to same shape, ...). Axes
// given to the named helpers may be negative; those of Add may not.
class Builder {
 public:
  Builder(Graph& g, shape::Env& env) : g_(g), env_(env) {}
  Graph& graph() { return g_; }
  shape::Env& env() { return env_; }
  const TensorType& type(ValueId v) const { return g_.nodes[v].type; }

  ValueId Input(TensorType type, shape::Ints strides, std::string name);
  ValueId Add(Op op, std::vector<ValueId> operands, Attrs attrs = {});
  ValueId Constant(Scalar value, DType dtype, shape::Ints shape = {});
  ValueId SymConstant(shape::Int value, DType dtype, shape::Ints shape = {});
  ValueId Iota(DType dtype, shape::Ints shape, int axis);
  ValueId Cast(ValueId v, DType dtype);
  ValueId Broadcast(ValueId v, const shape::Ints& shape);  // Aligns dimensions as NumPy does, from the last one.
  ValueId BroadcastInDim(ValueId v, const shape::Ints& shape, std::vector<int64_t> axes);
  ValueId Reshape(ValueId v, shape::Ints shape);
  ValueId Permute(ValueId v, std::vector<int64_t> perm);
  ValueId Slice(ValueId v, int axis, shape::Int start, shape::Int length, shape::Int step = 1);
  ValueId Reduce(Op op, ValueId v, std::vector<int64_t> axes, bool keepdims, std::optional<DType> dtype = {});
  ValueId Unary(Op op, ValueId a) { return Add(op, {a}); }
  ValueId Binary(Op op, ValueId a, ValueId b);     // broadcasts shapes; dtypes must agree
  ValueId Where(ValueId c, ValueId a, ValueId b);  // Broadcasts the shapes.
  // The value of the call; with several results the `result` nodes follow it: ids returned + 1, returned + 2, ...
  ValueId Extern(std::shared_ptr<const Call> call, std::vector<ValueId> operands, std::vector<TensorType> results,
                 std::vector<shape::Ints> strides);
  // Says how v is differentiated. v must be the newest node: if building it folded to an older one, nothing is said.
  void SetDerivative(ValueId v, Derivative d) {
    if (v + 1 == g_.nodes.size()) g_.nodes[v].derivative = std::make_shared<const Derivative>(std::move(d));
  }
  // v as a value of its own through which no gradient passes.
  ValueId Barrier(ValueId v, const char* rule = "stop");
  void set_location(FileName file, int line) {
    file_ = file;
    line_ = line;
  }

 private:
  Graph& g_;
  shape::Env& env_;
  FileName file_;
  int line_ = 0;
};

// Reference semantics, one element at a time, no fusion, no framework: the oracle of every pass and of code generation.
// Contractions are naive loops; sums of floats are accumulated in f64. `extern` nodes are passed to `run_extern` (may
// be empty: then they throw) and give one tensor per result. Complex, fp8 and int4 can be moved, not computed: those
// throw. Writes change `inputs` in place, last. scalars: values of scalar inputs.
struct HostTensor {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // in elements
  std::shared_ptr<std::vector<std::byte>> storage;
  int64_t offset = 0;  // in elements
  static HostTensor Empty(DType t, std::vector<int64_t> sizes);
  std::byte* data() const;
};
// Element k (row-major) as a number; only for dtypes the interpreter computes (no complex, fp8, int4).
double GetElement(const HostTensor& t, int64_t k);
void SetElement(HostTensor& t, int64_t k, double value);
using ExternRunner = std::function<std::vector<HostTensor>(const Node&, const std::vector<HostTensor>&)>;
std::vector<HostTensor> Interpret(const Graph& g, const std::vector<HostTensor>& inputs,
                                  const ExternRunner& run_extern = {}, const std::vector<int64_t>& scalars = {});

}  // namespace framejit
