// This file has the sizes that data decides: how many elements a mask selects, how many values are distinct, what an
// integer tensor says. The framework makes the call that decides one between two parts of the graph
// (compiler/pieces.h), and its result has a new symbol as a size. While capturing nothing is known of that symbol but a
// made-up hint, at which most programs never look. Where one asks (a branch on the size, sizes that must be equal), the
// capture is made again and the sizes are found out, as guesses are. What was answered becomes a condition that every
// run looks at before anything depends on it. Where it does not hold the next version is tried, or a few are captured.
#include "capture/numbers/data_sizes.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "capture/callees.h"
#include "capture/numbers/counted.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "diag/diag.h"
#include "graph/arguments.h"
#include "graph/opaque.h"
#include "surface/layout.h"
#include "tensor/opaque.h"

namespace framejit::capture {
namespace {

constexpr size_t kMostSizes = 1024;  // of one graph

bool IsTrue(const Arg* a) {
  return a && a->is(Arg::Kind::kBool) && a->b;
}

// What data decided of a tensor: a size, or a stride.
int64_t Decided(const tensor::Meta& m, int dim) {
  return dim < m.rank ? m.sizes[dim] : m.strides[dim - m.rank];
}

}  // namespace

PyObject* DataSizes::ItemOf(TraceId t, bool truth) {
  if (PyObject* guess = s_.guessing().Value(t, truth)) return guess;
  if (truth || PyErr_Occurred()) return nullptr;
  auto count = CountOf(t);
  return count ? s_.SymIntObject(*count) : nullptr;
}

std::optional<shape::Int> DataSizes::CountOf(TraceId t) {
  PyFrameObject* f = PyEval_GetFrame();
  const TensorMeta m = s_.meta(t);
  if (!s_.options().guesses || s_.broken() || !f || s_.in_custom || s_.vmap.open() || m.framework != Framework::kTorch)
    return {};
  if (!IsInteger(m.dtype) || IsBool(m.dtype)) return {};
  if (std::any_of(m.sizes.begin(), m.sizes.end(), [](shape::Int n) { return n != shape::Int(1); })) return {};
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
  const Guesses::Where where{code.get(), PyFrame_GetLasti(f)};
  if (s_.depth > 0 && !s_.options().guesses->changing.contains(where)) return {};
  Call call;
  call.callee = callees::kCountOf;
  call.args = {Arg::Tensor(t)};
  call.mode = s_.modes.now;
  try {
    Apply(call);
  } catch (const surface::Decline&) {
    return {};
  }
  return s_.meta(call.results[0]).sizes[0];
}

// What a call asks of sizes that data decides has to be so in eager, too. It may end with Decline.
void DataSizes::Apply(Call& call) {
  const size_t before = s_.env().guards().size();
  absl::Cleanup note = [&] {
    const auto& asked = s_.env().guards();
    for (size_t i = std::min(before, asked.size()); !all_.empty() && i < asked.size(); ++i)
      if (asked[i].cmp == shape::Cmp::kEq) needed_.push_back(asked[i]);
  };
  Make(call);
}

void DataSizes::Make(Call& call) {
  const std::string_view last = call.callee.last();
  const bool torch = call.callee.framework() == Framework::kTorch, sized = call.callee.Has(kSizedByData);
  const bool may = torch ? sized || last == "__getitem__" || last == "__setitem__" || last == "where" : sized;
  if (!may || !s_.options().guesses || s_.in_custom || s_.vmap.open()) return s_.lowering().Apply(call);
  if (torch && AsIndices(call)) return;
  Lower(call);
}

void DataSizes::Lower(Call& call) {
  fresh_.clear();
  const size_t first = s_.graph().nodes.size();
  const auto counted = call.callee.Has(kSizedByData) ? CountedOf(call) : std::nullopt;
  naming_ = true;
  asked_ = !call.args.empty() && call.args[0].is(Arg::Kind::kTensor) ? call.args[0].t : ~TraceId{0};
  if (counted) {
    asked_ = counted->tensor;
    const auto symbol = KnownNumber(s_.graph(), s_.lowering().ValueOf(asked_));
    const shape::Int number = symbol ? shape::Int::Symbol(*symbol) : 0;
    // One that is known by now says nothing of what must be found out before the call is made again.
    if (symbol && s_.env().Simplify(number) == number) counts_.emplace(asked_, number);
  }
  absl::Cleanup forget = [&] {  // what a mask holds may change
    if (counted) counts_.erase(counted->tensor);
  };
  try {
    s_.lowering().Apply(call);
  } catch (...) {
    naming_ = false;
    counts_.erase(asked_);
    throw;
  }
  naming_ = false;
  for (DataSize& s : fresh_) {
    s.symbol.tensor = call.results.at(s.symbol.tensor);
    if (std::any_of(all_.begin(), all_.end(), [&](auto& o) { return o.symbol.symbol == s.symbol.symbol; })) {
      all_.push_back(std::move(s));  // found out already
      continue;
    }
    s_.trace().data_symbols.push_back(s.symbol);
    const bool count = call.callee == callees::kCountOf;
    const bool custom = std::any_of(s_.trace().calls.begin(), s_.trace().calls.end(),
                                    [](const Call& c) { return c.callee == kCustomCall; });
    const shape::Int symbol = shape::Int::Symbol(s.symbol.symbol);
    tensor::Meta constant;
    if (Ref known = s_.guessing().Known(s.symbol.tensor); known && tensor::ReadMeta(known.get(), &constant)) {
      const int64_t number = Decided(constant, s.symbol.dim);
      s_.env().SetHint(s.symbol.symbol, number);
      s_.env().Ask(shape::Cmp::kEq, symbol, number);
      Simplify(call.results, first);
    } else if (s.usual && !s_.options().guesses->measured) {
      s_.env().Ask(shape::Cmp::kEq, symbol, *s.usual);
      Simplify(call.results, first);
    } else if ((count || s_.options().guesses->measured) && !custom) {
      Ref made = s_.guessing().RunUpTo(s.symbol.tensor);
      tensor::Meta m;
      const size_t rank = s_.meta(s.symbol.tensor).sizes.size();
      if (!made || !tensor::ReadMeta(made.get(), &m) || static_cast<size_t>(m.rank) != rank) {
        PyErr_Clear();
        s_.options().guesses->Refuse(s.code.get(), s.at);
        throw surface::Decline("data decides a size that cannot be found out", surface::Decline::Cause::kData);
      }
      const int64_t number = Decided(m, s.symbol.dim);
      s_.env().SetHint(s.symbol.symbol, number);
      // What is empty, or is one, follows other rules.
      const bool usual = s.usual && number == s_.env().Hint(*s.usual);
      if (usual || (!count && number < 2)) {
        s_.env().Ask(shape::Cmp::kEq, symbol, usual ? *s.usual : shape::Int(number));
        Simplify(call.results, first);
      }
    } else if (count) {
      throw surface::Decline("data decides a number that cannot be found out", surface::Decline::Cause::kData);
    }
    s.number = count;
    all_.push_back(std::move(s));
  }
  fresh_.clear();
}

void DataSizes::Simplify(const std::vector<TraceId>& tensors, size_t first) {
  auto simple = [&](shape::Ints v) {
    for (shape::Int& e : v) e = s_.env().Simplify(e);
    return v;
  };
  auto strides = [&](const shape::Ints& sizes, const shape::Ints& old) {
    return old == shape::RowMajor(sizes) ? shape::RowMajor(simple(sizes)) : simple(old);
  };
  for (TraceId t : tensors) {
    TensorMeta& m = s_.trace().tensors[t].meta;
    m.strides = strides(m.sizes, m.strides);
    m.sizes = simple(m.sizes);
  }
  for (size_t v = first; v < s_.graph().nodes.size(); ++v) {  // the call itself names the symbol still
    Node& n = s_.graph().nodes[v];
    n.strides = strides(n.type.shape, n.strides);
    n.type.shape = simple(n.type.shape);
  }
}

// A size at this place, whose symbol is still to be said; nothing where data must not decide one.
static std::optional<DataSize> Sizes(Session& s, int result, int dim) {
  PyFrameObject* f = PyEval_GetFrame();
  if (!f) return {};
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
  const Guesses::Where where{code.get(), PyFrame_GetLasti(f)};
  if (s.options().guesses->wrong.contains(where)) return {};
  return DataSize{{0, static_cast<TraceId>(result), dim}, std::move(code), where.second, s.depth == 0, false, false};
}

std::optional<shape::Int> DataSizes::New(int result, int dim, const shape::Int* most) {
  auto made = all_.size() < kMostSizes ? Sizes(s_, result, dim) : std::nullopt;
  if (!made) return {};
  shape::SymbolInfo info;
  info.name = "data at " + guard::Text(s_.Where());
  info.kind = shape::SymbolKind::kRuntime;
  info.hint = most ? std::max<int64_t>(2, s_.env().Hint(*most) / 2) : 7;
  if (most && most->is_const()) info.max = most->value();
  if (most) info.hint = std::min(info.hint, std::max<int64_t>(0, s_.env().Hint(*most)));
  const shape::Int size = s_.env().NewSymbol(std::move(info));
  s_.graph().symbol_sources.resize(s_.env().num_symbols());
  made->symbol.symbol = *size.as_symbol();
  fresh_.push_back(std::move(*made));
  return size;
}

namespace {

// One call that decides a size, and what it returns. Operands are numbers into `operands`.
struct Sized {
  Call& call;
  const std::vector<TensorMeta>& operands;
  shape::Env& env;
  std::vector<DataSize>& fresh;
  std::function<std::optional<shape::Int>(int result, int dim, const shape::Int* most)> make;
  std::function<std::optional<DataSize>(int dim)> again;  // of the first result, as `count` says
  const TensorMeta* x = nullptr;                          // what is asked
  std::optional<shape::Int> count;                        // how many elements it has, as far as that was named before
  Inferred out;

  bool method() const { return callees::IsArrayMethod(call.callee); }
  size_t given() const { return call.args.size() + call.kwargs.size(); }
  int rank() const { return static_cast<int>(x->sizes.size()); }
  const TensorMeta* Array(size_t position, std::string_view keyword) const {
    const Arg* a = GivenArg(call, position, {keyword});
    return a && a->is(Arg::Kind::kTensor) && !operands.at(a->t).sizes.empty() ? &operands[a->t] : nullptr;
  }
  bool IsGiven(size_t position, std::string_view keyword) const {
    const Arg* a = GivenArg(call, position, {keyword});
    return a && !a->is_none();
  }
  std::optional<int> Axis(const Arg* dim) const {
    if (!dim || !dim->is(Arg::Kind::kInt) || !dim->i.is_const()) return {};
    const int64_t d = dim->i.value() < 0 ? dim->i.value() + rank() : dim->i.value();
    return d >= 0 && d < rank() ? std::optional<int>(d) : std::nullopt;
  }
  // Gives a size of the first result. exact: as in DataSize.
  std::optional<shape::Int> Size(int dim, const shape::Int* most, bool exact = false) {
    auto n = make(0, dim, most);
    if (n) fresh.back().exact = exact;
    return n;
  }
  // Likewise, where that is how many elements of CountedOf are not zero: one number, however often it is asked.
  std::optional<shape::Int> Trues(int dim, const shape::Int* most, bool exact = false) {
    if (!count) return Size(dim, most, exact);
    auto known = again(dim);
    if (!known) return {};
    known->exact = exact;
    known->symbol.symbol = *count->as_symbol();
    fresh.push_back(std::move(*known));
    return count;
  }
  void Add(DType dtype, shape::Ints sizes, std::optional<shape::Ints> strides = {}) {
    TensorMeta m;
    m.framework = call.callee.framework();
    m.dtype = dtype;
    m.device = x->device;
    m.strides = strides ? *strides : shape::RowMajor(sizes);
    m.sizes = std::move(sizes);
    m.requires_grad = x->requires_grad && IsFloat(dtype);
    out.metas.push_back(std::move(m));
    out.aliases.emplace_back();
  }
  bool One(std::optional<shape::Int> n, DType dtype) {  // a vector
    if (n) Add(dtype, {*n});
    return n.has_value();
  }
  void AsTuple() {
    std::vector<Arg> items;
    for (TraceId r = 0; r < out.metas.size(); ++r) items.push_back(Arg::Tensor(r));
    call.result = Arg::Seq(Arg::Kind::kTuple, std::move(items));
  }
};

// --- NumPy's calls

bool NumpyWhere(Sized& c) {
  c.x = c.Array(0, c.call.callee.last() == "where" ? "condition" : c.method() ? "" : "a");
  if (!c.x || c.given() != 1) return false;
  const shape::Int most = shape::Product(c.x->sizes);
  auto n = c.Trues(0, &most, c.rank() == 1);
  if (!n) return false;
  const shape::Ints strides = {shape::Int(c.rank())};  // columns of one array
  for (int d = 0; d < c.rank(); ++d) c.Add(DType::kInt64, {*n}, strides);
  c.AsTuple();
  return true;
}

bool NumpyGetItem(Sized& c) {  // The index is one mask over the first dimensions, or over the columns of a matrix.
  c.x = c.Array(0, c.method() ? "" : "a");
  if (!c.x || c.given() != 2) return false;
  const Arg& key = c.call.args[1];
  std::vector<Arg> parts = key.is(Arg::Kind::kTuple) ? key.items : std::vector<Arg>{key};
  const size_t before = !parts.empty() && IsWhole(parts[0]) ? 1 : 0;
  if (parts.size() <= before || !parts[before].is(Arg::Kind::kTensor)) return false;
  for (size_t i = before + 1; i < parts.size(); ++i)
    if (!IsWhole(parts[i])) return false;
  const TensorMeta &x = *c.x, &mask = c.operands.at(parts[before].t);
  const size_t rank = mask.sizes.size(), end = before + rank;
  if (!IsBool(mask.dtype) || !rank || end + (parts.size() - before - 1) > x.sizes.size()) return false;
  if (before && x.sizes.size() != 2) return false;
  if (rank != x.sizes.size() && x.strides != shape::RowMajor(x.sizes)) return false;
  for (size_t d = 0; d < rank; ++d)
    if (!c.env.Eq(mask.sizes[d], x.sizes[before + d])) return false;
  auto n = c.Trues(static_cast<int>(before), nullptr, !before && x.sizes.size() == rank);
  if (!n) return false;
  shape::Ints sizes = {*n};
  if (before) {
    c.Add(x.dtype, {x.sizes[0], *n}, shape::Ints{shape::Int(1), x.sizes[0]});
  } else {
    sizes.insert(sizes.end(), x.sizes.begin() + end, x.sizes.end());
    c.Add(x.dtype, std::move(sizes));
  }
  return true;
}

bool NumpyArgWhere(Sized& c) {
  c.x = c.Array(0, "a");
  if (!c.x || c.given() != 1) return false;
  const shape::Int most = shape::Product(c.x->sizes);
  auto n = c.Trues(0, &most);
  if (n) c.Add(DType::kInt64, {*n, shape::Int(c.rank())}, shape::Ints{shape::Int(1), *n});
  return n.has_value();
}

bool NumpyCompress(Sized& c) {
  const TensorMeta* mask = c.Array(c.method() ? 1 : 0, "condition");
  c.x = c.method() ? c.Array(0, "") : c.Array(1, "a");
  if (!c.x || !mask || c.given() != 2 || c.rank() != 1 || mask->sizes.size() != 1) return false;
  const shape::Int most = shape::Product(c.x->sizes);
  return c.One(c.Trues(0, &most, true), c.x->dtype);
}

// How many counts bincount gives.
std::optional<shape::Int> CountedSize(Sized& c, bool array) {
  const Arg* least = GivenArg(c.call, 2, {"minlength"});
  auto n = c.Size(0, nullptr, array);
  if (n && least && least->is(Arg::Kind::kInt) && !(least->i == shape::Int(0))) {  // as a rule there are no more
    c.fresh.back().usual = least->i;
    c.env.SetHint(c.fresh.back().symbol.symbol, c.env.Hint(least->i));
  }
  return n;
}

bool NumpyBinCount(Sized& c) {
  c.x = c.Array(0, "x");
  if (!c.x || c.rank() != 1 || !IsInteger(c.x->dtype)) return false;
  return c.One(CountedSize(c, true), c.IsGiven(1, "weights") ? DType::kFloat64 : DType::kInt64);
}

bool NumpyUnique(Sized& c) {
  c.x = c.Array(0, "ar");
  if (!c.x) return false;
  for (const char* other : {"equal_nan", "sorted"})
    if (GivenArg(c.call, ~size_t{0}, {other})) return false;
  const bool inverse = IsTrue(GivenArg(c.call, 2, {"return_inverse"}));
  std::optional<shape::Int> n;
  if (c.IsGiven(4, "axis")) {
    const auto axis = c.Axis(GivenArg(c.call, 4, {"axis"}));
    if (!axis || (inverse && c.rank() > 1)) return false;  // how the inverse lies is not the same in all versions
    n = c.Size(*axis, c.x->sizes.data() + *axis, true);
    if (!n) return false;
    shape::Ints first = c.x->sizes;  // NumPy finds them as rows of a matrix, and moves the axis back.
    first.erase(first.begin() + *axis);
    first.insert(first.begin(), *n);
    shape::Ints sizes = c.x->sizes, strides = shape::RowMajor(first);
    sizes[*axis] = *n;
    const shape::Int rows = strides[0];
    strides.erase(strides.begin());
    strides.insert(strides.begin() + *axis, rows);
    c.Add(c.x->dtype, std::move(sizes), std::move(strides));
  } else {
    const shape::Int most = shape::Product(c.x->sizes);
    n = c.Size(0, &most, true);
    if (!c.One(n, c.x->dtype)) return false;
  }
  if (IsTrue(GivenArg(c.call, 1, {"return_index"}))) c.Add(DType::kInt64, {*n});
  if (inverse) c.Add(DType::kInt64, c.x->sizes);
  if (IsTrue(GivenArg(c.call, 3, {"return_counts"}))) c.Add(DType::kInt64, {*n});
  if (c.out.metas.size() > 1) c.AsTuple();
  return true;
}

bool NumpyRepeat(Sized& c) {
  c.x = c.Array(0, c.method() ? "" : "a");
  const Arg* repeats = GivenArg(c.call, 1, {"repeats"});
  if (!c.x || !repeats || !repeats->is(Arg::Kind::kTensor) || c.IsGiven(2, "axis")) return false;
  return c.One(c.Size(0, nullptr, true), c.x->dtype);
}

// --- torch's

bool Nonzero(Sized& c) {
  if (c.x->sizes.empty() || IsTrue(GivenArg(c.call, 1, {"as_tuple"}))) return false;
  const shape::Int most = shape::Product(c.x->sizes);
  auto n = c.Trues(0, &most, true);
  if (n) c.Add(DType::kInt64, {*n, shape::Int(c.rank())}, shape::Ints{shape::Int(1), *n});
  return n.has_value();
}

bool CountOfItem(Sized& c) {
  auto n = c.Size(0, nullptr, true);
  if (n) c.Add(c.x->dtype, {*n}, shape::Ints{shape::Int(0)});
  return n.has_value();
}

bool MaskedSelect(Sized& c) {
  return c.One(c.Size(0, nullptr), c.x->dtype);
}

bool BinCount(Sized& c) {
  return !c.IsGiven(1, "weights") && c.One(CountedSize(c, false), DType::kInt64);
}

bool OneHot(Sized& c) {
  auto n = c.Size(c.rank(), nullptr);
  if (!n) return false;
  shape::Ints sizes = c.x->sizes;
  sizes.push_back(*n);
  c.Add(DType::kInt64, std::move(sizes));
  return true;
}

bool RepeatInterleave(Sized& c) {
  const Arg *repeats = GivenArg(c.call, 1, {"repeats"}), *dim = GivenArg(c.call, 2, {"dim"});
  if (c.IsGiven(3, "output_size") || (repeats && !repeats->is(Arg::Kind::kTensor))) return false;
  if (!repeats || !dim || dim->is_none()) return c.One(c.Size(0, nullptr), c.x->dtype);
  const auto d = c.Axis(dim);
  auto n = d ? c.Size(*d, nullptr) : std::nullopt;
  if (!n) return false;
  shape::Ints sizes = c.x->sizes;
  sizes[*d] = *n;
  c.Add(c.x->dtype, std::move(sizes));
  return true;
}

bool UniqueDim(Sized& c) {
  if (c.Axis(GivenArg(c.call, 1, {"dim"})) != 0 || c.rank() > 2) return false;  // elsewhere it is not row by row
  auto n = c.Size(0, c.x->sizes.data());
  if (!n) return false;
  shape::Ints sizes = c.x->sizes;
  sizes[0] = *n;
  c.Add(c.x->dtype, std::move(sizes));
  c.Add(DType::kInt64, {c.x->sizes[0]});  // the inverse and the counts, in any case
  c.Add(DType::kInt64, {*n});
  c.AsTuple();
  return true;
}

bool Unique(Sized& c) {
  const bool consecutive = c.call.callee.last() == "unique_consecutive";
  if (consecutive && c.IsGiven(3, "dim")) return false;
  const bool inverse = IsTrue(GivenArg(c.call, consecutive ? 1 : 2, {"return_inverse"}));
  const bool counts = IsTrue(GivenArg(c.call, consecutive ? 2 : 3, {"return_counts"}));
  const shape::Int most = shape::Product(c.x->sizes);
  auto n = c.Size(0, &most);
  if (!c.One(n, c.x->dtype)) return false;
  c.Add(DType::kInt64, inverse ? c.x->sizes : shape::IntList{shape::Int(0)});
  if (c.call.callee.last() != "_unique") c.Add(DType::kInt64, counts ? shape::Ints{*n} : shape::Ints{shape::Int(0)});
  c.AsTuple();
  return true;
}

// Sequences of several lengths, packed step by step.
bool PackPadded(Sized& c) {
  const Arg *lengths = GivenArg(c.call, 1, {"lengths"}), *first = GivenArg(c.call, 2, {"batch_first"});
  if (!lengths || !lengths->is(Arg::Kind::kTensor) || !first || !first->is(Arg::Kind::kBool) || c.rank() < 2)
    return false;
  const shape::Int steps = c.x->sizes[first->b ? 1 : 0], most = steps * c.x->sizes[first->b ? 0 : 1];
  auto all = c.Size(0, &most, true), longest = c.make(1, 0, &steps);
  if (!all || !longest) return false;
  c.fresh.back().exact = true;
  shape::Ints sizes = {*all};
  sizes.insert(sizes.end(), c.x->sizes.begin() + 2, c.x->sizes.end());
  c.Add(c.x->dtype, std::move(sizes));
  c.Add(DType::kInt64, {*longest});
  c.out.metas.back().device = c.operands.at(lengths->t).device;
  c.AsTuple();
  return true;
}

bool PadPacked(Sized& c) {
  const TensorMeta* counts = c.Array(1, "batch_sizes");
  const Arg *first = GivenArg(c.call, 2, {"batch_first"}), *steps = GivenArg(c.call, 4, {"total_length"});
  if (!counts || !first || !first->is(Arg::Kind::kBool) || !steps || !steps->is(Arg::Kind::kInt) || c.rank() < 1 ||
      (steps->i.is_const() && steps->i.value() < 1))
    return false;
  auto batch = c.Size(first->b ? 0 : 1, nullptr, true);
  if (!batch) return false;
  shape::Ints sizes = {steps->i, *batch};
  sizes.insert(sizes.end(), c.x->sizes.begin() + 1, c.x->sizes.end());
  shape::Ints strides = shape::RowMajor(sizes);
  if (first->b) std::swap(sizes[0], sizes[1]), std::swap(strides[0], strides[1]);
  c.Add(c.x->dtype, std::move(sizes), std::move(strides));
  c.Add(DType::kInt64, {*batch});
  c.out.metas.back().device = counts->device;
  c.AsTuple();
  return true;
}

// Of a packed sequence: its results are as large as what they are made of.
bool PackedRnn(Sized& c) {
  const TensorMeta* counts = c.Array(1, "batch_sizes");
  if (!counts || counts->dtype != DType::kInt64 || c.call.args.size() != 9 || c.rank() != 2) return false;
  const std::vector<Arg>& args = c.call.args;
  const bool dropout = !(args[6].is(Arg::Kind::kFloat) && args[6].f == 0), both = IsTrue(&args[8]);
  const bool layers = !(args[5].is(Arg::Kind::kInt) && args[5].i == shape::Int(1));
  if (dropout && layers && IsTrue(&args[7])) return false;  // it draws between layers
  std::vector<const TensorMeta*> states;
  for (const Arg& a : args[2].is(Arg::Kind::kTensor) ? std::vector<Arg>{args[2]} : args[2].items)
    if (a.is(Arg::Kind::kTensor) && c.operands.at(a.t).sizes.size() == 3) states.push_back(&c.operands[a.t]);
  if (states.size() != (c.call.callee.last() == "lstm" ? 2 : 1)) return false;
  c.Add(c.x->dtype, {c.x->sizes[0], states[0]->sizes[2] * (both ? 2 : 1)});
  for (const TensorMeta* m : states) c.Add(c.x->dtype, m->sizes);
  const bool grad = std::any_of(c.operands.begin(), c.operands.end(), [](auto& m) { return m.requires_grad; });
  for (TensorMeta& m : c.out.metas) m.requires_grad = grad;
  c.AsTuple();
  return true;
}

// Indices or elements of a sparse tensor, in the memory that they have there: how many there are, and how they lie, is
// not known of it.
bool SparseElements(Sized& c) {
  if (c.x->requires_grad || c.given() != 1) return false;
  std::istringstream text(tensor::FormText(c.x->device));
  const std::vector<std::string> form{std::istream_iterator<std::string>(text), std::istream_iterator<std::string>()};
  const std::string_view name = c.call.callee.last();
  const bool coo = form[0] == "sparse_coo", coalesced = !coo || form.back() == "True";
  const bool values = name.ends_with("values"), all = name.starts_with("_");  // those of what is not coalesced, too
  const std::string_view compressed = form[0] == "sparse_csr" ? "col_indices" : "row_indices";
  const std::string_view indices = !coo ? compressed : all ? "_indices" : "indices";
  if (form[0] == "quantized" || (all ? !coo : !coalesced) || !(values || name == indices)) return false;
  const size_t sparse = coo ? std::stoul(form[2]) : 2;
  const shape::Int most = shape::Product(shape::Ints(c.x->sizes.begin(), c.x->sizes.begin() + sparse));
  const bool rows = coo && !values;
  if (!c.count) c.count = c.Size(rows ? 1 : 0, coalesced ? &most : nullptr, true);
  if (!c.count) return false;
  const shape::Int n = c.env.Simplify(*c.count);
  shape::Ints sizes = {n}, strides;
  if (rows) sizes.insert(sizes.begin(), shape::Int(static_cast<int64_t>(sparse)));
  if (coo && values) sizes.insert(sizes.end(), c.x->sizes.begin() + sparse, c.x->sizes.end());
  const shape::Ints dense = shape::RowMajor(sizes);
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto stride = c.make(0, static_cast<int>(sizes.size() + d), nullptr);
    if (!stride) return false;
    c.fresh.back().exact = true;
    if (!rows || d) c.fresh.back().usual = dense[d];  // what is coalesced keeps the stride of all the indices it had
    c.env.SetHint(c.fresh.back().symbol.symbol, c.env.Hint(dense[d]));
    strides.push_back(*stride);
  }
  const DType index = !coo && form[2] == "int32" ? DType::kInt32 : DType::kInt64;
  c.Add(values ? c.x->dtype : index, std::move(sizes), std::move(strides));
  c.out.metas.back().device = Device{};
  c.out.aliases.back().operand = kSharesOpaque;
  return true;
}

struct SizedRow {
  std::string_view name;  // Callee::last
  bool (*numpy)(Sized&);
  bool (*torch)(Sized&);
};
constexpr SizedRow kSized[] = {
    {"nonzero", NumpyWhere, Nonzero},
    {"where", NumpyWhere, nullptr},
    {"__getitem__", NumpyGetItem, nullptr},
    {"argwhere", NumpyArgWhere, Nonzero},
    {"compress", NumpyCompress, nullptr},
    {"bincount", NumpyBinCount, BinCount},
    {"unique", NumpyUnique, nullptr},
    {"repeat", NumpyRepeat, nullptr},
    {"count_of", nullptr, CountOfItem},
    {"masked_select", nullptr, MaskedSelect},
    {"one_hot", nullptr, OneHot},
    {"repeat_interleave", nullptr, RepeatInterleave},
    {"unique_dim", nullptr, UniqueDim},
    {"_unique2", nullptr, Unique},
    {"unique_consecutive", nullptr, Unique},
    {"_unique", nullptr, Unique},
    {"_pack_padded_sequence", nullptr, PackPadded},
    {"_pad_packed_sequence", nullptr, PadPacked},
    {"lstm", nullptr, PackedRnn},
    {"gru", nullptr, PackedRnn},
    {"rnn_tanh", nullptr, PackedRnn},
    {"rnn_relu", nullptr, PackedRnn},
    {"values", nullptr, SparseElements},
    {"indices", nullptr, SparseElements},
    {"_values", nullptr, SparseElements},
    {"_indices", nullptr, SparseElements},
    {"col_indices", nullptr, SparseElements},
    {"row_indices", nullptr, SparseElements},
};

}  // namespace

std::optional<Inferred> DataSizes::Infer(Call& call, const std::vector<TensorMeta>& operands) {
  if (!naming_ || !call.callee.Has(kSizedByData)) return {};
  const auto row = std::find_if(std::begin(kSized), std::end(kSized),
                                [&](const SizedRow& r) { return r.name == call.callee.last(); });
  if (row == std::end(kSized)) return {};
  const bool numpy = call.callee.framework() == Framework::kNumpy;
  Sized c{call,
          operands,
          s_.env(),
          fresh_,
          [this](int result, int dim, const shape::Int* most) { return New(result, dim, most); },
          [this](int dim) { return Sizes(s_, 0, dim); }};
  const auto counted = counts_.find(asked_);
  if (counted != counts_.end()) c.count = counted->second;
  if (numpy) {
    for (const TensorMeta& m : operands)
      if (m.framework != Framework::kNumpy || m.device.kind != DeviceKind::kCpu) return {};
  } else {
    const Arg* first = GivenArg(call, 0, {"input"});
    if (!first || !first->is(Arg::Kind::kTensor)) return {};
    c.x = &operands.at(first->t);
    if (IsOpaque(*c.x) != (row->torch == SparseElements) || c.x->framework != Framework::kTorch) return {};
    if (c.x->device.kind == DeviceKind::kMeta && !IsOpaque(*c.x)) return {};
    // A run that ends at a condition is made again, and memory of a sparse tensor cannot be put back before.
    const auto& tensors = s_.trace().tensors;
    if (IsOpaque(*c.x) && std::any_of(tensors.begin(), tensors.end(), [](auto& t) { return t.mutated; })) return {};
  }
  const auto infer = numpy ? row->numpy : row->torch;
  if (!infer || !infer(c)) return {};
  if (c.count) counts_.emplace(asked_, *c.count);
  return std::move(c.out);
}

std::vector<shape::Guard> DataSizes::Conditions(const std::vector<TraceId>& outputs) {
  std::vector<shape::Guard> out;
  if (all_.empty()) return out;
  for (const shape::Guard& g : s_.env().guards())
    if (s_.env().AtRun(g)) out.push_back(g);
  auto more_than = [&](int64_t least, shape::Int e) {
    if (!s_.env().AtRun(e) || s_.env().Simplify(e).is_const() || s_.env().Prove(shape::Cmp::kLt, least, e) == true)
      return;
    const shape::Guard g{shape::Cmp::kLt, least, e, "strides"};
    if (std::none_of(out.begin(), out.end(),
                     [&](auto& o) { return o.cmp == g.cmp && o.lhs == g.lhs && o.rhs == g.rhs; }))
      out.push_back(g);
  };
  // What the program sees of strides: those of what is empty, or has one element, are not what its sizes give.
  for (TraceId output : outputs) {
    const TraceTensor& t = s_.trace().tensors[s_.trace().tensors[output].base];
    if (t.input >= 0 ||
        std::any_of(all_.begin(), all_.end(), [&](const DataSize& s) { return s.exact && s.symbol.tensor == t.id; }))
      continue;
    const bool plain = t.meta.strides == shape::RowMajor(t.meta.sizes);
    for (shape::Int e : plain ? t.meta.strides : t.meta.sizes)
      e.ForEachSymbol([&](uint32_t id) { more_than(plain ? 0 : 1, shape::Int::Symbol(id)); });
  }
  for (const Node& n : s_.graph().nodes) {  // nothing has no largest element
    if (n.op != Op::kMax && n.op != Op::kMin && n.op != Op::kArgMax && n.op != Op::kArgMin) continue;
    for (int64_t a : n.attrs.axes) more_than(0, s_.graph().nodes[n.operands[0]].type.shape[a]);
  }
  return out;
}

bool DataSizes::Reconsider(const std::vector<TraceId>& outputs) {
  const std::vector<shape::Guard> conditions = Conditions(outputs);
  auto asks = [](const shape::Guard& g, const DataSize& s) {
    bool asked = false;
    for (shape::Int e : {g.lhs, g.rhs}) e.ForEachSymbol([&](uint32_t id) { asked |= id == s.symbol.symbol; });
    return asked;
  };
  auto as_usual = [&](const shape::Guard& g) {
    return std::any_of(all_.begin(), all_.end(), [&](auto& s) { return s.usual && asks(g, s); });
  };
  const auto needed = [&](const shape::Guard& g) {
    return std::any_of(needed_.begin(), needed_.end(),
                       [&](auto& n) { return n.cmp == g.cmp && n.lhs == g.lhs && n.rhs == g.rhs; });
  };
  if (std::all_of(conditions.begin(), conditions.end(), as_usual)) return false;
  if (diag::Enabled(diag::Channel::guards_))
    for (const shape::Guard& g : conditions)
      diag::Log(diag::Channel::guards_, "asked of what data decides: " + g.str() + "  # " + g.where);
  if (!std::exchange(s_.options().guesses->measured, true)) return true;
  bool again = false;
  for (const shape::Guard& g : conditions) {
    if (g.cmp != shape::Cmp::kEq || !(g.lhs.is_const() || g.rhs.is_const()) || needed(g)) continue;
    const int64_t number = g.lhs.is_const() ? g.lhs.value() : g.rhs.value();
    for (const DataSize& s : all_) {
      // To break there is cheap. That there is nothing, or one of it, is worth a version.
      if (!asks(g, s) || s.usual || !s.outermost || (!s.number && number >= 0 && number < 2)) continue;
      s_.options().guesses->Refuse(s.code.get(), s.at);
      again = true;
    }
  }
  return again;
}

}  // namespace framejit::capture
