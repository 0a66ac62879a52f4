// One row per meaning: all names under which users reach it, its signature, its lowering. The names are written with
// prefix letters, so that function, method, operator, reflected, in-place and NumPy forms share the row:
//
// clang-format off: a table
//   t torch.X                          m torch.Tensor.X              g torch.Tensor.X.__get__
//   o torch.Tensor.__X__               r torch.Tensor.__rX__ (first two operands swapped)   A torch.Tensor.__iX__
//   I in-place: torch.X_, torch.Tensor.X_                            J in-place: torch._C._nn.X_
//   n torch._C._nn.X                   f torch.nn.functional.X (builtins)
//   s torch.special.X                  l torch.linalg.X
//   N numpy.X                          M numpy.ndarray.X             G numpy.ndarray.X.__get__
//   O numpy.ndarray.__X__              R numpy.ndarray.__rX__        B numpy.ndarray.__iX__
//   S scipy.special.X                  H numpy.generic.X               F framejit._arrays.X
// clang-format on
//
// To add an operation: add a row to the table of its family (torch_*.cc, numpy.cc) and a sample to the tests; what a
// call does beside computing (draws, keeps, writes) is a row of graph/effects.cc. A
// lowering describes its results (Outs); it never changes the trace. In-place forms are derived: the functional result
// is cast to the target's dtype and written to it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framejit/graph.h"
#include "graph/effects.h"
#include "surface/layout.h"
#include "surface/promote.h"
#include "surface/signature.h"
#include "surface/surface.h"

namespace framejit::surface {

struct NotThisRow {
};  // thrown by a lowering: the call has this form but not this meaning; try the next row, then extern

struct Unmodelled {
  std::string why;
};  // thrown likewise: the framework may replay it, but no graph can express it

// How a view sees its parent. Both directions are pure graph functions; without `inverse` it cannot be written through.
struct View {
  std::function<ValueId(Builder&, ValueId)> forward;
  std::function<ValueId(Builder&, ValueId parent, ValueId replacement)> inverse;
  std::optional<shape::Int> offset = {};  // how many elements behind its parent it begins; nothing: it is not known
};

struct Out {
  enum Kind : uint8_t { kFresh, kSame, kView } kind = kFresh;
  ValueId value = kNoValue;
  shape::Ints strides;  // for kFresh; empty means row-major
  TraceId of = 0;       // for kSame that object, for kView the parent
  View view;
  bool differentiable = true;
  bool array = false;  // for NumPy: it stays an array when it has no dimension, and becomes no scalar
  // For kFresh: who owns the memory. A result of NumPy may be a view of an array that the program gets as its `base`
  // only: reshaped, of a copy of the first operand, or of one that the call itself makes.
  enum Owner : uint8_t { kItself, kCopy, kHidden } owner = kItself;
};

// Where elements of a tensor lie: behind the first element of `of`, counted in elements of it.
struct Region {
  TraceId of = 0;
  shape::Int offset;
  shape::Ints sizes, strides;
};

// A tensor that is written besides, its new value, and, where the framework looks whether operands meet it, what of
// the tensor is written.
struct Overwrite {
  TraceId id;
  ValueId value;
  std::optional<Region> region = {};
  bool by_index = false;  // at places that only the run knows: no operand may meet it, not even as a whole
};

struct Outs {
  std::vector<Out> items;
  Arg::Kind structure = Arg::Kind::kTensor;  // kTensor (items[0] is the result), kTuple, kList or kNone
  std::string type_name;                     // the class of a tuple, if it has one: "torch.return_types.max"
  std::shared_ptr<Call> recorded;            // what the trace keeps in place of the call as it was made
  std::vector<Overwrite> writes;
  bool writes_differentiable = true;
  Outs() = default;
  Outs(Out one) { items.push_back(std::move(one)); }   // NOLINT: lowerings return one result
  Outs(ValueId v) { items.emplace_back().value = v; }  // NOLINT: fresh, row-major
};

struct Operand {
  TraceId id = 0;
  ValueId value = kNoValue;
  const TensorMeta* meta = nullptr;  // null: it is a Python number
  Arg number;
  bool is_tensor() const { return meta != nullptr; }
  int rank() const { return meta ? static_cast<int>(meta->sizes.size()) : 0; }
};

// The result is the operand itself, the very object.
inline Out Same(const Operand& x) {
  Out out;
  out.kind = Out::kSame;
  out.of = x.id;
  return out;
}

struct Row;

// One bound call, as a lowering sees it. Positions are those of the row's signature.
class Scope {
 public:
  Scope(Builder& builder, const Row& r, Framework fw, ModeState m, std::vector<Arg> args,
        std::function<Operand(TraceId)> read)
      : b(builder),
        env(builder.env()),
        row(r),
        framework(fw),
        mode(m),
        args_(std::move(args)),
        read_(std::move(read)) {}

  Builder& b;
  shape::Env& env;
  const Row& row;
  Framework framework;  // the callee's; a lowering sets it if its results are the other framework's
  ModeState mode;
  std::optional<Device> device;  // a lowering sets it if its results are not where its operands are
  bool torch() const { return framework == Framework::kTorch; }
  bool cupy = false;  // the operands are CuPy's: arrays of NumPy's kind on a GPU

  bool has(int i) const { return i < static_cast<int>(args_.size()) && !args_[i].is_none(); }
  const Arg& arg(int i) const { return args_[i]; }
  Operand tensor(int i) const { return Read(args_[i]); }
  Operand Read(const Arg& a) const;  // Reads a tensor or a number.
  std::vector<Operand> tensors(int i) const;
  shape::Int integer(int i) const { return args_[i].i; }
  bool flag(int i) const { return args_[i].b; }
  double number(int i) const;  // Takes any number of Python.
  std::optional<DType> dtype(int i) const;
  shape::Ints ints(int i) const;
  int Dim(const shape::Int& d, int rank) const;  // the axis that a Python index means; declines if it is out of range
  int dim(int i, int rank) const { return Dim(args_[i].i, rank); }
  std::vector<int64_t> Dims(int i, int rank) const;  // for None every axis; declines duplicates
  DType default_float() const { return torch() ? mode.default_float : DType::kFloat64; }

  // A call of the framework that becomes an extern node and gives one tensor. It is made in the mode of this call, or
  // with gradients off.
  std::shared_ptr<Call> CallOf(const char* callee, std::vector<Arg> args, bool gradients = true) const;
  ValueId Constant(const Arg& number, DType t) const;
  ValueId Factor(int i, DType t) const;  // of a number, or of a tensor beside the first operand that holds one number
  ValueId Up(ValueId v) const { return b.Cast(v, ComputeType(b.type(v).dtype)); }
  // The strides that the framework's iterator gives an elementwise result of these operands.
  shape::Ints Pointwise(ValueId result, std::span<const Operand> operands) const;
  Out Elementwise(ValueId result, std::span<const Operand> operands) const;

  [[noreturn]] static void Skip() { throw NotThisRow{}; }
  [[noreturn]] static void Fail(const std::string& why) { throw Decline(why); }

 private:
  std::vector<Arg> args_;
  std::function<Operand(TraceId)> read_;
};

using LowerFn = Outs (*)(Scope&);

enum RowFlags : uint32_t {
  kNoGrad = 1,        // results never require gradients
  kEmptyLike = 4,     // for Elementwise: torch's kernel writes into an empty_like of its first operand
  kAnyFramework = 8,  // It takes tensors of the other framework, too.
  kApart = 16,        // In place: the target may not be an operand besides.
  kOwnResult = 32,  // Where a part of an array is written, which may lie among the operands, NumPy computes otherwise.
  kAnyDType = 2,    // takes complex and other dtypes that the primitives do not compute with, as views do
};

struct Row {
  const char* names;
  const char* signature;
  LowerFn lower;
  Op op = Op::kInput;  // the primitive that a lowering shared by several rows emits
  uint32_t flags = 0;
};

enum class Form : uint8_t { kPlain, kReflected, kInPlace };

struct Candidate {
  const Row* row;
  const Signature* signature;
  Form form;
};
// The rows that have a name of the callee, in the order of the tables.
std::span<const Candidate> FindRows(Callee callee);

// The tables, one per family.
std::span<const Row> PointwiseRows();
std::span<const Row> ActivationRows();
std::span<const Row> ReductionRows();
std::span<const Row> ViewRows();
std::span<const Row> IndexRows();
std::span<const Row> CreationRows();
std::span<const Row> RandomRows();
std::span<const Row> NnRows();
std::span<const Row> LossRows();
std::span<const Row> ContractionRows();
std::span<const Row> NumpyRows();
std::span<const Row> BridgeRows();

}  // namespace framejit::surface
