#include "surface/rows.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace framejit::surface {
namespace {

struct Prefix {
  char letter;
  Form form;
  const char* before;
  const char* after;
};
constexpr Prefix kPrefixes[] = {
    {'t', Form::kPlain, "torch.", ""},
    {'m', Form::kPlain, "torch.Tensor.", ""},
    {'n', Form::kPlain, "torch._C._nn.", ""},
    {'f', Form::kPlain, "torch.nn.functional.", ""},
    {'s', Form::kPlain, "torch.special.", ""},
    {'s', Form::kPlain, "torch._C._special.special_", ""},
    {'l', Form::kPlain, "torch.linalg.", ""},
    {'l', Form::kPlain, "torch._C._linalg.linalg_", ""},
    {'o', Form::kPlain, "torch.Tensor.__", "__"},
    {'r', Form::kReflected, "torch.Tensor.__r", "__"},
    {'I', Form::kInPlace, "torch.Tensor.", "_"},
    {'I', Form::kInPlace, "torch.", "_"},
    {'J', Form::kInPlace, "torch._C._nn.", "_"},
    {'A', Form::kInPlace, "torch.Tensor.__i", "__"},
    {'g', Form::kPlain, "torch.Tensor.", ".__get__"},
    {'a', Form::kPlain, "torch.ops.aten.", ""},
    {'N', Form::kPlain, "numpy.", ""},
    {'M', Form::kPlain, "numpy.ndarray.", ""},
    {'O', Form::kPlain, "numpy.ndarray.__", "__"},
    {'R', Form::kReflected, "numpy.ndarray.__r", "__"},
    {'B', Form::kInPlace, "numpy.ndarray.__i", "__"},
    {'G', Form::kPlain, "numpy.ndarray.", ".__get__"},
    {'S', Form::kPlain, "scipy.special.", ""},
    {'H', Form::kPlain, "numpy.generic.", ""},
    {'F', Form::kPlain, "framejit._arrays.", ""},
    {'D', Form::kPlain, "framejit._random.", ""},
};

// Those of NumPy's, but for a few that mean something else there.
std::string AsNumpy(const std::string& callee) {
  static const std::unordered_set<std::string_view> others = {"cupy.sinc", "cupy.ndarray.real.__get__", "cupy.real"};
  return others.contains(callee) ? "" : "numpy" + callee.substr(4);
}

// Names are put together, and signatures read, when a callee is asked for: a program calls few of them.
class Table {
 public:
  Table() {
    heads_.assign(4096, -1);
    for (auto rows : {PointwiseRows(), ActivationRows(), ReductionRows(), ViewRows(), IndexRows(), CreationRows(),
                      RandomRows(), NnRows(), LossRows(), ContractionRows(), NumpyRows(), BridgeRows()}) {
      for (const Row& r : rows) Add(r);
    }
    for (int i = static_cast<int>(items_.size()); i-- > 0;)  // chains in the order of the tables
      items_[i].next = std::exchange(Head(items_[i].name), i);
  }
  std::span<const Candidate> Find(Callee callee) {
    auto [at, fresh] = known_.try_emplace(callee.id());
    if (fresh) at->second = Look(OfCupy(callee) ? AsNumpy(callee) : callee.name());
    return at->second;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Item& i : items_)
      for (char letter : i.letters)
        for (const Prefix& p : kPrefixes)
          if (p.letter == letter) names.push_back(p.before + std::string(i.name) + p.after);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
  }

 private:
  struct Item {  // "tm:exp" of a row
    std::string_view letters, name;
    const Row* row;
    int next = -1;
  };
  int& Head(std::string_view name) { return heads_[std::hash<std::string_view>()(name) % heads_.size()]; }

  void Add(const Row& r) {
    std::string_view rest = r.names;
    while (!rest.empty()) {
      size_t space = rest.find(' ');
      std::string_view item = rest.substr(0, space);
      rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
      size_t colon = item.find(':');
      if (colon == std::string_view::npos) throw std::logic_error(std::string("row name without prefix: ") + r.names);
      items_.push_back({item.substr(0, colon), item.substr(colon + 1), &r});
    }
  }

  std::vector<Candidate> Look(std::string_view callee) {
    struct Hit {
      int item;
      size_t letter;
      const Prefix* prefix;
      auto operator<=>(const Hit&) const = default;
    };
    std::vector<Hit> hits;
    for (const Prefix& p : kPrefixes) {
      const std::string_view before = p.before, after = p.after;
      if (callee.size() < before.size() + after.size() || !callee.starts_with(before) || !callee.ends_with(after))
        continue;
      const std::string_view name = callee.substr(before.size(), callee.size() - before.size() - after.size());
      for (int i = Head(name); i >= 0; i = items_[i].next) {
        if (items_[i].name != name) continue;
        const size_t letter = items_[i].letters.find(p.letter);
        if (letter != std::string_view::npos) hits.push_back({i, letter, &p});
      }
    }
    std::sort(hits.begin(), hits.end());
    std::vector<Candidate> found;
    for (const Hit& h : hits) {
      const Row* row = items_[h.item].row;
      auto [signature, fresh] = signatures_.try_emplace(row);
      if (fresh) signature->second = Signature::Parse(row->signature);
      found.push_back({row, &signature->second, h.prefix->form});
    }
    return found;
  }

  std::vector<Item> items_;
  std::vector<int> heads_;                                         // by a name's hash
  std::unordered_map<const void*, std::vector<Candidate>> known_;  // by Callee::id
  std::unordered_map<const Row*, Signature> signatures_;
};

Table& TheTable() {
  static Table table;
  return table;
}

}  // namespace

std::span<const Candidate> FindRows(Callee callee) {
  return TheTable().Find(callee);
}
bool HasRow(Callee callee) {
  return !FindRows(callee).empty();
}
std::vector<std::string> AllRows() {
  return TheTable().Names();
}

Operand Scope::Read(const Arg& a) const {
  if (a.is(Arg::Kind::kTensor)) return read_(a.t);
  Operand o;
  o.number = a;
  return o;
}

std::vector<Operand> Scope::tensors(int i) const {
  std::vector<Operand> out;
  for (const Arg& a : args_[i].items) out.push_back(Read(a));
  return out;
}

double Scope::number(int i) const {
  const Arg& a = args_[i];
  if (a.is(Arg::Kind::kBool)) return a.b;
  if (a.is(Arg::Kind::kInt)) return static_cast<double>(env.Specialize(a.i));
  return a.f;
}

std::optional<DType> Scope::dtype(int i) const {
  if (!has(i)) return std::nullopt;
  DType t = *DTypeFromText(args_[i].s);
  if (IsComplex(t)) Skip();
  return t;
}

shape::Ints Scope::ints(int i) const {
  shape::Ints out;
  if (args_[i].is(Arg::Kind::kInt)) return {args_[i].i};
  for (const Arg& a : args_[i].items) out.push_back(a.i);
  return out;
}

int Scope::Dim(const shape::Int& d, int rank) const {
  if (!torch() && rank == 0) Skip();  // NumPy's functions disagree about axes of 0-dimensional arrays
  int64_t v = env.Specialize(d), n = torch() ? std::max(rank, 1) : rank;
  if (v < -n || v >= n) Fail("dimension out of range");
  return static_cast<int>(v < 0 ? v + n : v);
}

std::vector<int64_t> Scope::Dims(int i, int rank) const {
  std::vector<int64_t> out;
  if (!has(i)) {
    for (int d = 0; d < rank; ++d) out.push_back(d);
    return out;
  }
  for (const shape::Int& d : ints(i)) {
    int axis = Dim(d, rank);
    if (std::find(out.begin(), out.end(), axis) != out.end()) Fail("a dimension appears twice");
    out.push_back(axis);
  }
  if (rank == 0) out.clear();
  std::sort(out.begin(), out.end());
  return out;
}

std::shared_ptr<Call> Scope::CallOf(const char* callee, std::vector<Arg> args, bool gradients) const {
  auto call = std::make_shared<Call>();
  call->callee = callee;
  call->args = std::move(args);
  call->result = Arg::Tensor(0);
  call->mode = mode;
  call->mode.grad &= gradients;
  return call;
}

ValueId Scope::Constant(const Arg& n, DType t) const {
  if (n.is(Arg::Kind::kBool)) return b.Constant(Scalar(n.b), t);
  if (n.is(Arg::Kind::kFloat)) {
    if (!torch() && IsFloat(t) && std::isfinite(n.f) && std::abs(n.f) > LargestFloat(t))
      throw Decline("a number that its floats cannot hold: NumPy warns");
    return b.Constant(Scalar(n.f), t);
  }
  if (n.is(Arg::Kind::kSymFloat)) {
    if (t != DType::kFloat32 && t != DType::kFloat64) throw Decline("a float that changes, as a narrow number");
    Attrs bits;
    bits.dtype = DType::kFloat64;
    return b.Cast(b.Add(Op::kBitcast, {b.SymConstant(n.i, DType::kInt64)}, bits), t);
  }
  return n.i.is_const() ? b.Constant(Scalar(n.i.value()), t) : b.SymConstant(n.i, t);
}

ValueId Scope::Factor(int i, DType t) const {
  const Arg& n = arg(i);
  if (!n.is(Arg::Kind::kTensor)) return Constant(n, t);
  const Operand factor = Read(n), beside = Read(arg(0));
  const TensorMeta& m = *factor.meta;
  if (!torch() || !m.sizes.empty() || m.requires_grad || IsBool(m.dtype) || IsComplex(m.dtype) || !beside.is_tensor() ||
      m.device != beside.meta->device)
    Skip();
  return b.Cast(factor.value, t);
}

shape::Ints Scope::Pointwise(ValueId result, std::span<const Operand> operands) const {
  shape::Ints shape = b.type(result).shape;
  std::vector<const TensorMeta*> tensors;
  bool scalars = false;
  for (const Operand& o : operands) {
    if (o.is_tensor()) tensors.push_back(o.meta);
    scalars |= !o.is_tensor();
  }
  if (cupy) return RowMajor(shape);
  if (torch()) return TorchPointwise(env, shape, tensors, scalars);
  DType in = b.type(result).dtype;
  if (IsBool(in)) {  // of what is compared
    std::vector<TypeOperand> typed;
    for (const Operand& o : operands) typed.push_back({o.meta, o.number.kind});
    in = NumpyResultType(typed);
  }
  const bool casts = std::any_of(tensors.begin(), tensors.end(), [&](const TensorMeta* t) {
    return t->sizes.size() > 1 && t->dtype != in && !(IsComplex(t->dtype) && !IsComplex(in));
  });
  return NumpyPointwise(env, shape, tensors, casts);
}

Out Scope::Elementwise(ValueId result, std::span<const Operand> operands) const {
  Out out;
  out.value = result;
  out.strides =
      (row.flags & kEmptyLike) && torch() ? PreserveFormat(env, *operands[0].meta) : Pointwise(result, operands);
  return out;
}

}  // namespace framejit::surface
