// A call of a framework function as the user's program made it: callee by name, arguments by value. Holds no Python
// object and no address, so that it prints, caches and replays. `extern` nodes carry one; a whole captured program is
// also kept as a list of them (Trace), which the framework itself can run: that is the "eager" backend, the path for
// programs that want gradients, and the oracle.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "framejit/dtype.h"
#include "framejit/shape.h"

namespace framejit {

using TraceId = uint32_t;  // a tensor object of the captured program (identity, not value: an in-place op keeps the id)

struct Arg {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kSymFloat,  // a float known when the run begins: the symbol `i` has its bits
    kComplex,
    kString,
    kDType,
    kDevice,
    kLayout,
    kMemoryFormat,
    kTensor,
    kTuple,
    kList,
    kSlice,
    kEllipsis,
    kDict,
    kObject,  // something opaque: index into the constant table of the side that captured (rejected by export)
  };
  Kind kind = Kind::kNone;
  bool b = false;          // kBool; kTensor of an extern: a NumPy scalar, of which the graph has an array
  double f = 0, imag = 0;  // The values of kFloat and kComplex.
  shape::Int i;            // kInt (possibly symbolic), kObject (index)
  std::string s;           // kString; kDType/kLayout/kMemoryFormat/kDevice: the framework's own text ("float32", "cpu")
  TraceId t = 0;           // kTensor
  std::vector<Arg> items;  // kTuple, kList, kSlice (start, stop, step), kDict (key, value, key, value, ...)

  static Arg None() { return {}; }
  static Arg Bool(bool v) {
    Arg a;
    a.kind = Kind::kBool;
    a.b = v;
    return a;
  }
  static Arg Int(shape::Int v) {
    Arg a;
    a.kind = Kind::kInt;
    a.i = v;
    return a;
  }
  static Arg Float(double v) {
    Arg a;
    a.kind = Kind::kFloat;
    a.f = v;
    return a;
  }
  static Arg Str(std::string v) {
    Arg a;
    a.kind = Kind::kString;
    a.s = std::move(v);
    return a;
  }
  static Arg Tensor(TraceId v) {
    Arg a;
    a.kind = Kind::kTensor;
    a.t = v;
    return a;
  }
  static Arg Seq(Kind k, std::vector<Arg> v) {
    Arg a;
    a.kind = k;
    a.items = std::move(v);
    return a;
  }

  bool is(Kind k) const { return kind == k; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_number() const { return kind == Kind::kBool || kind == Kind::kInt || kind == Kind::kFloat; }
  std::string str() const;
};

enum class Framework : uint8_t { kTorch, kNumpy };

struct Effects;  // graph/effects.h

// The name of a file of the program. Names are interned: all nodes of a graph hold that of the line which made them.
class FileName {
 public:
  FileName() = default;             // No file.
  FileName(std::string_view name);  // NOLINT(google-explicit-constructor): names are given as text
  FileName(const std::string& name) : FileName(std::string_view(name)) {}  // NOLINT
  FileName(const char* name) : FileName(std::string_view(name)) {}         // NOLINT
  const std::string& str() const;
  std::string_view last() const;  // What stands behind its last slash.
  bool empty() const { return !entry_; }
  friend bool operator==(FileName, FileName) = default;

  struct Entry;

 private:
  const Entry* entry_ = nullptr;
};

// A function of a framework, by its name: "torch.nn.functional.linear", "torch.Tensor.add_", "numpy.exp",
// "torch.Tensor.__getitem__". Names are interned: a callee is copied and compared like a number, and what is known of
// the function is looked up when its name is first seen.
class Callee {
 public:
  Callee() = default;  // Names no function.
  explicit Callee(std::string_view name);
  Callee& operator=(std::string_view name) { return *this = Callee(name); }
  const std::string& name() const;
  operator const std::string&() const { return name(); }  // NOLINT(google-explicit-constructor): it is its name
  std::string_view last() const;                          // What stands behind the last dot: "add_".
  std::string_view space() const;                         // What stands before the last dot: "torch.Tensor".
  Framework framework() const;  // whose tensors it takes and makes; CuPy's and SciPy's are NumPy's kind
  bool of_cupy() const;
  const Effects& effects() const;
  bool Has(uint32_t flags) const;  // Has it any of these flags?
  bool empty() const { return !entry_; }
  const void* id() const { return entry_; }
  friend bool operator==(Callee, Callee) = default;
  friend std::string operator+(Callee a, std::string_view b) { return a.name() + std::string(b); }
  friend std::string operator+(std::string_view a, Callee b) { return std::string(a) + b.name(); }

  struct Entry;

 private:
  const Entry* entry_ = nullptr;
};

inline Framework FrameworkOf(Callee c) {
  return c.framework();
}
inline bool OfCupy(Callee c) {
  return c.of_cupy();
}

struct TensorMeta {  // what the program can ask of a tensor object
  Framework framework = Framework::kTorch;
  DType dtype = DType::kFloat32;
  Device device;
  shape::IntList sizes;
  shape::IntList
      strides;  // in elements, exactly the framework's; NumPy's byte strides are divided (others are not captured)
  bool is_scalar = false;  // NumPy: np.float64 and friends, not an array
  bool requires_grad = false;
  bool is_parameter = false;  // It is a torch.nn.Parameter.
  bool is_inference = false;  // It was made in inference mode.
  bool read_only = false;     // writes to it are refused: an array without WRITEABLE
  // torch: what its memory holds is conjugated, or negated, when it is read. Its value in the graph is what is read.
  bool conj = false, neg = false;
  bool lazy() const { return conj || neg; }
  std::string str() const;
};

// What a call that the graph has no rule for returns.
struct Inferred {
  struct Alias {
    int operand = -1;   // whose memory the result shares; -1: its own
    bool same = false;  // It is that operand, the very object.
  };
  std::vector<TensorMeta> metas;
  std::vector<Alias> aliases;  // There is one for each result.
};

// torch.autocast, for the devices it is modelled on (CPU, CUDA).
struct Autocast {
  std::array<bool, 2> on = {false, false};
  std::array<DType, 2> dtype = {DType::kBFloat16, DType::kFloat16};
  bool cache = true;  // the casts of leaves are kept until the outermost region ends
  bool any() const { return on[0] || on[1]; }
  friend bool operator==(const Autocast&, const Autocast&) = default;
};

// How the thread stood at a program point; replays run under it.
struct ModeState {
  bool grad = true;
  bool inference = false;
  DType default_float = DType::kFloat32;  // What torch.get_default_dtype() says.
  Autocast autocast;                      // of calls in a trace: none, the casts are calls of their own
  friend bool operator==(const ModeState&, const ModeState&) = default;
};

// The callee of a call that stands for a gradient: it never runs.
inline const Callee kTangent{"framejit.tangent"};

struct Call {
  Callee callee;
  std::vector<Arg> args;
  std::vector<std::pair<std::string, Arg>> kwargs;
  std::vector<TraceId> results;  // tensors made (or returned: an in-place op returns its first operand's id), flattened
  Arg result;                    // structure of the Python result: kTensor, or kTuple/kList of them, or None
  ModeState mode;
  FileName file;  // user's line that made the call
  int line = 0;
  std::string str() const;  // "%3 = torch.Tensor.transpose(%2, 1, 2)"
};

struct TraceTensor {
  TraceId id = 0;
  TensorMeta meta;
  int input = -1;        // index of the graph input, or -1
  TraceId base = 0;      // the tensor whose storage this one shares (itself if it owns its storage)
  int view_call = -1;    // the call that made this view of another tensor, or -1
  bool mutated = false;  // written in place at some point of the trace
};

struct Trace {
  std::vector<Call> calls;
  std::vector<TraceTensor> tensors;  // Found by TraceId.
  std::vector<TraceId> inputs;
  std::vector<TraceId> outputs;
  struct DataSymbol {  // the size `dim` of `tensor`, or its stride `dim` - rank, which data decides
    uint32_t symbol;
    TraceId tensor;
    int dim;
  };
  std::vector<DataSymbol> data_symbols;
  std::vector<shape::Guard> conditions;  // Conditions on these sizes.
  std::string str() const;
};

}  // namespace framejit
