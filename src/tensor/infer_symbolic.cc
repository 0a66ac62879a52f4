// Result types of a call whose operands have symbolic sizes: the framework is asked with several sets of numbers in
// their place, and an expression is looked for that fits all the answers. Whether it fits the sizes of a run is looked
// at then, as for all such calls.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include "graph/arguments.h"
#include "graph/effects.h"
#include "tensor/infer.h"
#include "tensor/ones.h"

namespace framejit::tensor {
namespace {

using shape::Int;
using shape::Ints;

// near: numbers beside the sizes stay near those that the program has now, since the framework may ask that they are
// no larger than a size, and since a library may choose a layout by sizes. As many windows fit into all sizes that lie
// near each other: a size that stays the same must be one that the call was given, or larger ones are asked first.
// Windows of more than kSmall elements, or further apart, are told by the numbers beside the sizes (hops of sound).
struct Asking {
  int questions;
  bool near = false, given = false;
};
constexpr int kFew = 3;
constexpr Asking kAskings[] = {{kFew}, {kFew, true, true}, {64}, {kFew, true}};
constexpr int64_t kSmall = 16, kLargest = 2048;
constexpr int kDoubled = 8;  // times that sizes are doubled

template <typename T, typename F>
void EachInt(T& at, F&& f) {
  EachArg(at, [&](Arg& a) {
    if (a.is(Arg::Kind::kInt)) f(a.i);
  });
}

class Fitter {
 public:
  explicit Fitter(std::vector<std::vector<int64_t>> values) : values_(std::move(values)) {}

  void Candidate(Int e) {
    if (!e.is_const() && std::find(known_.begin(), known_.end(), e) == known_.end()) known_.push_back(e);
  }
  // A number beside the sizes, which may be how far windows are apart, and is often part of how they begin.
  void Beside(int64_t number) {
    number = std::abs(number);
    if (number >= 2 && number <= kLargest && std::find(beside_.begin(), beside_.end(), number) == beside_.end())
      beside_.push_back(number);
  }
  // `sizes` are the candidates and the numbers beside them.
  void Combine(const Ints& sizes) {
    const Ints known = known_;
    if (known.size() > 8) return;
    for (size_t i = 0; i < known.size(); ++i)
      for (size_t j = i; j < known.size(); ++j) {
        Candidate(known[i] * known[j]);
        Candidate(known[i] + known[j]);
      }
    for (Int e : known)
      for (Int other : sizes) {
        Candidate(shape::Min(e, other));
        Candidate(shape::Max(e, other));
      }
  }

  std::optional<Int> Fit(const std::vector<int64_t>& answers) const {
    if (std::all_of(answers.begin(), answers.end(), [&](int64_t a) { return a == answers[0]; })) return Int(answers[0]);
    for (Int e : known_) {
      std::vector<int64_t> got;
      for (const auto& v : values_) got.push_back(e.Eval(v));
      // Is it a constant more, or a multiple by a constant? Windows and joined pieces have such sizes.
      const int64_t more = answers[0] - got[0];
      bool sum = true, product = got[0] != 0 && answers[0] % got[0] == 0;
      const int64_t times = product ? answers[0] / got[0] : 0;
      for (size_t i = 0; i < got.size(); ++i) {
        sum = sum && answers[i] == got[i] + more;
        product = product && answers[i] == got[i] * times;
      }
      if (sum) return e + Int(more);
      if (product) return e * Int(times);
    }
    return answers.size() > kFew ? Windows(answers) : std::nullopt;
  }

 private:
  // How many windows there are, so many elements apart. It takes many answers to tell, and where several beginnings fit
  // them, one that is made of the numbers beside the sizes is taken.
  std::optional<Int> Windows(const std::vector<int64_t>& answers) const {
    std::vector<int64_t> steps(kSmall - 1);
    std::iota(steps.begin(), steps.end(), 2);
    for (int64_t n : beside_)
      if (n > kSmall && beside_.size() <= kMostBeside) steps.push_back(n);
    for (Int e : known_)
      for (int64_t apart : steps) {
        std::vector<int64_t> starts;
        if (apart > kSmall) starts = Starts(apart);
        for (int64_t more = 0; more < apart; ++more) starts.push_back(more);
        for (int64_t more : starts) {
          const Int windows = shape::FloorDiv(e + Int(more), Int(apart));
          const int64_t rest = answers[0] - windows.Eval(values_[0]);
          bool fits = true;
          for (size_t i = 0; fits && i < answers.size(); ++i) fits = answers[i] == windows.Eval(values_[i]) + rest;
          if (fits) return windows + Int(rest);
        }
      }
    return std::nullopt;
  }

  // Sums and differences of up to two numbers beside the sizes, of windows so far apart.
  std::vector<int64_t> Starts(int64_t apart) const {
    std::vector<int64_t> starts{0};
    const auto add = [&](int64_t n) { starts.push_back(((n % apart) + apart) % apart); };
    for (int64_t a : beside_) add(-a), add(a), add(-2 * a), add(2 * a);
    for (int64_t a : beside_)
      for (int64_t b : beside_)
        for (int64_t n : {a - b, 2 * a - b, -a - b, a + b}) add(n);
    for (size_t i = 0, n = starts.size(); i < n; ++i) add(starts[i] - 1), add(starts[i] + 1);
    return starts;
  }

  static constexpr size_t kMostBeside = 6;
  const std::vector<std::vector<int64_t>> values_;
  Ints known_;
  std::vector<int64_t> beside_;
};

// What a call gives that no sum, product or count of windows of its sizes is.
struct Formulas {
  Ints sizes, strides;
};

// As many elements as torch counts on and below a diagonal (get_tril_size).
Int BelowDiagonal(Int rows, Int columns, int64_t offset) {
  const Int zero = 0, shifted = rows + Int(offset);
  const Int first = offset > 0 ? shape::Min(columns, Int(1 + offset)) : shape::Min(Int(1), shape::Max(zero, shifted));
  const Int last = shape::Max(zero, shape::Min(columns, shifted));
  const Int growing = last - first + Int(1);
  const Int whole = shape::Max(zero, shape::Min(rows, shifted)) - growing;
  return shape::FloorDiv((first + last) * growing, Int(2)) + shape::Max(zero, whole) * columns;
}

Int Pairs(Int n) {
  return shape::FloorDiv(n * (n - Int(1)), Int(2));
}

void TriangleFormulas(const Call& call, Formulas& of) {
  const Arg *rows = GivenArg(call, 0, {"row"}), *columns = GivenArg(call, 1, {"col"}),
            *shift = GivenArg(call, 2, {"offset"});
  if (!rows || !columns || (shift && !shift->i.is_const())) return;
  const int64_t offset = shift ? shift->i.value() : 0;
  of.sizes.push_back(call.callee.last() == "tril_indices"
                         ? BelowDiagonal(rows->i, columns->i, offset)
                         : rows->i * columns->i - BelowDiagonal(rows->i, columns->i, offset - 1));
}

void UnfoldFormulas(const Call& call, const TensorMeta& x, Formulas& of) {
  const Arg *dim = GivenArg(call, 1, {"dimension"}), *size = GivenArg(call, 2, {"size"}),
            *step = GivenArg(call, 3, {"step"});
  const int64_t rank = static_cast<int64_t>(x.sizes.size());
  if (!dim || !size || !step || !dim->i.is_const() || dim->i.value() >= rank || dim->i.value() < -rank) return;
  const size_t d = static_cast<size_t>(dim->i.value() < 0 ? dim->i.value() + rank : dim->i.value());
  of.sizes.push_back(shape::FloorDiv(x.sizes[d] - size->i, step->i) + Int(1));
  of.strides.push_back(x.strides[d] * step->i);
}

// Blocks of pixels (im2col): (input, kernel_size, dilation, padding, stride).
void BlockFormulas(const Call& call, const TensorMeta& x, Formulas& of) {
  Int all = 1;
  for (size_t d = 0; d < 2; ++d) {
    Int numbers[4];
    for (size_t i = 0; i < 4; ++i) {
      const Arg* a = GivenArg(call, i + 1, {});
      if (!a || a->items.size() != 2 || !a->items[d].is(Arg::Kind::kInt)) return;
      numbers[i] = a->items[d].i;
    }
    const auto [kernel, dilation, padding, stride] = std::tie(numbers[0], numbers[1], numbers[2], numbers[3]);
    const Int room = x.sizes[x.sizes.size() - 2 + d] + Int(2) * padding - dilation * (kernel - Int(1)) - Int(1);
    all = all * (shape::FloorDiv(room, stride) + Int(1));
  }
  of.sizes.push_back(all);
}

// A fraction of small parts that a number is, or is as near to as any of parts up to kLarge: the continued fraction.
std::pair<int64_t, int64_t> FractionOf(double number) {
  constexpr double kLarge = 1 << 20, kExact = 1e-14;
  double above = 1, below = 0, above_before = 0, below_before = 1, rest = number;
  while (below == 0 || std::abs(above / below - number) > kExact * number) {
    const double whole = std::floor(rest);
    const double next_above = whole * above + above_before, next_below = whole * below + below_before;
    if (!(next_above <= kLarge) || !(next_below <= kLarge)) break;
    above_before = std::exchange(above, next_above), below_before = std::exchange(below, next_below);
    rest = 1 / (rest - whole);
  }
  return {static_cast<int64_t>(above), static_cast<int64_t>(below)};
}

// Sizes times a factor, rounded down, as interpolation makes them. The product is one of doubles, which rounds what
// lies beside a whole number to it, as the fraction does.
void ScaledFormulas(const Call& call, const Ints& sizes, Formulas& of) {
  EachArg(call, [&](const Arg& a) {
    if (!a.is(Arg::Kind::kFloat) || !(a.f > 0 && a.f <= kLargest)) return;
    const auto [above, below] = FractionOf(a.f);
    if (!above || !below) return;
    for (Int size : sizes)
      if (!size.is_const()) of.sizes.push_back(shape::FloorDiv(size * Int(above), Int(below)));
  });
}

Formulas FormulasOf(const Call& call, const std::vector<TensorMeta>& operands) {
  const std::string_view name = call.callee.last();
  Formulas of;
  if (name == "tril_indices" || name == "triu_indices") TriangleFormulas(call, of);
  if (operands.empty() || operands[0].sizes.empty()) return of;
  const TensorMeta& x = operands[0];
  if (name == "unfold") UnfoldFormulas(call, x, of);
  if (name == "im2col" && x.sizes.size() > 2) BlockFormulas(call, x, of);
  if (name == "pdist") of.sizes.push_back(Pairs(x.sizes[0]));
  ScaledFormulas(call, Ints(x.sizes.begin(), x.sizes.end()), of);
  return of;
}

// The strides of result r, whose sizes are known: those of what is dense, in the order of all answers, or of a part.
bool FitStrides(const std::vector<Inferred>& answers, size_t r, const std::vector<std::vector<int64_t>>& values,
                const Fitter& fitter, const Fitter& apart, TensorMeta* m) {
  const size_t rank = m->sizes.size();
  const auto all = [&](size_t d) {
    std::vector<int64_t> got;
    for (const Inferred& a : answers) got.push_back(a.metas[r].strides[d].value());
    return got;
  };
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {  // fastest last
    return std::abs(answers[1].metas[r].strides[a].value()) > std::abs(answers[1].metas[r].strides[b].value());
  });
  Int next = 1;
  for (size_t k = rank; k-- > 0;) {
    const int d = order[k];
    const auto back = [&](const Inferred& a) { return a.metas[r].strides[d].value() < 0; };  // NumPy's x[::-1]
    m->strides.Set(d, std::all_of(answers.begin(), answers.end(), back) ? Int(0) - next : next);
    next = next * m->sizes[d];
    if (m->sizes[d] != Int(1)) continue;  // any stride is right there, and results have strides by it
    if (auto stride = fitter.Fit(all(d))) m->strides.Set(d, *stride);
  }
  bool dense = true;
  for (size_t q = 0; q < answers.size(); ++q)
    for (size_t d = 0; d < rank; ++d) {
      const TensorMeta& answer = answers[q].metas[r];
      const bool any = m->sizes[d] == Int(1) || answer.sizes[d] == Int(1);  // stride will do
      dense = dense && (any || m->strides[d].Eval(values[q]) == answer.strides[d].value());
    }
  if (dense) return true;
  // The strides of a view follow from those of what it is a view of. What is a part of an array that the call has made
  // has some that follow from sizes.
  const Fitter& by = answers[0].aliases[r].operand < 0 ? fitter : apart;
  for (size_t d = 0; d < rank; ++d) {
    const auto stride = by.Fit(all(d));
    if (!stride) return false;
    m->strides.Set(d, *stride);
  }
  return true;
}

// What the program sees now, and other sets of numbers: none is 0 or 1, no two symbols are equal in all, and which of
// two is larger differs. Those of many are larger than most windows and leave all kinds of remainders.
std::vector<std::vector<int64_t>> Questions(const Asking& asking, const shape::Env& env, const Ints& sizes,
                                            const std::vector<char>& of_size, int64_t largest) {
  std::vector<std::vector<int64_t>> values;
  const bool many = asking.questions > kFew;
  for (int q = 0; q < asking.questions; ++q) {
    values.emplace_back(env.hints().begin(), env.hints().end());
    for (size_t i = 0; i < values[q].size(); ++i) {
      if (env.symbol(static_cast<uint32_t>(i)).kind != shape::SymbolKind::kRuntime && q == 0) continue;
      const int64_t least = env.symbol(static_cast<uint32_t>(i)).min, now = values[q][i];
      if (asking.near) {
        values[q][i] = of_size[i]    ? std::max(now, least) + q * static_cast<int64_t>(3 + i)
                       : now > q + 1 ? std::max(now - q, least)
                                     : now + q;
        continue;
      }
      const size_t k = q == 2 ? values[q].size() - 1 - i : i;  // in the other order
      if (many && largest > kSmall) {  // steps of the golden section leave all kinds of remainders
        const double part = std::fmod((q + 1) * 0.6180339887498949 + static_cast<double>(i) * 0.4142135623730951, 1.0);
        values[q][i] = std::max(least, 2 * largest) + static_cast<int64_t>(part * 8 * static_cast<double>(largest));
        continue;
      }
      values[q][i] = std::max<int64_t>(many ? 37 + static_cast<int64_t>(q * q * 7 + i * (13 * q + 5)) % 61
                                            : 5 + 2 * q + static_cast<int64_t>(k * (q + 3)) % 29,
                                       least);
    }
    // Sizes that follow from windows want more, so that these have windows of their own.
    const auto small = [&](Int e) { return !e.is_const() && e.Eval(values[q]) < std::max<int64_t>(37, 2 * largest); };
    for (int doubled = 0; many && q && doubled < kDoubled && std::any_of(sizes.begin(), sizes.end(), small); ++doubled)
      for (size_t i = 0; i < values[q].size(); ++i)
        if (of_size[i] && env.symbol(static_cast<uint32_t>(i)).kind != shape::SymbolKind::kRuntime)
          values[q][i] = values[q][i] * 2 + q % 2;
  }
  return values;
}

// Finds the sizes from the answers to the questions.
std::optional<Inferred> Infer(const Asking& asking, Call& call, const std::vector<TensorMeta>& operands,
                              const shape::Env& env, const std::vector<PyObject*>& constants, Refusal* why) {
  auto simple = [&](Int e) { return env.Simplify(e); };
  std::vector<TensorMeta> metas = operands;
  Ints sizes;
  for (TensorMeta& m : metas) {
    m.sizes.Each(simple);
    m.strides.Each(simple);
    sizes.insert(sizes.end(), m.sizes.begin(), m.sizes.end());
  }
  std::vector<char> of_size(env.num_symbols());
  for (Int s : sizes) s.ForEachSymbol([&](uint32_t id) { of_size[id] = true; });
  Call simplified = call;
  EachInt(simplified, [&](Int& i) { sizes.push_back(i = simple(i)); });
  if (asking.near && std::all_of(sizes.begin(), sizes.end(), [](Int e) { return e.is_const(); })) return std::nullopt;

  int64_t largest = 0;
  EachInt(simplified, [&](Int i) {
    if (i.is_const() && std::abs(i.value()) <= kLargest) largest = std::max(largest, std::abs(i.value()));
  });
  const auto values = Questions(asking, env, sizes, of_size, largest);
  Fitter fitter(values), apart(values);
  const Formulas formulas = FormulasOf(simplified, metas);
  for (Int s : sizes) fitter.Candidate(s);
  fitter.Combine(sizes);
  for (Int s : formulas.sizes) fitter.Candidate(s);
  EachInt(simplified, [&](Int i) {
    if (i.is_const()) fitter.Beside(i.value());
  });
  for (const TensorMeta& m : metas)
    for (Int s : m.strides) apart.Candidate(s);
  for (Int s : formulas.strides) apart.Candidate(s);

  std::vector<Inferred> answers;
  Call answered;
  for (const auto& v : values) {
    std::vector<TensorMeta> concrete = metas;
    for (TensorMeta& m : concrete) {
      for (shape::IntList* all : {&m.sizes, &m.strides}) all->Each([&](Int i) { return Int(i.Eval(v)); });
    }
    answered = simplified;
    EachInt(answered, [&](Int& i) { i = Int(i.Eval(v)); });
    auto answer = InferByFramework(answered, concrete, constants, why, true);
    if (!answer) return std::nullopt;
    answers.push_back(std::move(*answer));
  }
  Inferred out = answers[0];
  for (const Inferred& a : answers) {
    if (a.metas.size() != out.metas.size() || a.aliases.size() != out.aliases.size()) return std::nullopt;
    for (size_t r = 0; r < out.aliases.size(); ++r)  // the same memory whatever the sizes are
      if (a.aliases[r].operand != out.aliases[r].operand || a.aliases[r].same != out.aliases[r].same)
        return std::nullopt;
  }
  for (size_t r = 0; r < out.metas.size(); ++r) {
    TensorMeta& m = out.metas[r];
    const size_t rank = m.sizes.size();
    for (const Inferred& a : answers) {
      const TensorMeta& other = a.metas[r];
      if (other.sizes.size() != rank || other.dtype != m.dtype || !(other.device == m.device)) return std::nullopt;
    }
    for (size_t d = 0; d < rank; ++d) {
      std::vector<int64_t> got;
      for (const Inferred& a : answers) got.push_back(a.metas[r].sizes[d].value());
      auto size = fitter.Fit(got);
      if (!size) return std::nullopt;
      if (asking.given && size->is_const() && std::find(sizes.begin(), sizes.end(), *size) == sizes.end())
        return std::nullopt;
      m.sizes.Set(d, *size);
    }
    if (!FitStrides(answers, r, values, fitter, apart, &m)) return std::nullopt;
  }
  call.result = answered.result;
  return out;
}

// Does what was found hold where these symbols are 1? A call that the framework refuses then, a run refuses, too.
enum class AtOne : uint8_t { kHolds, kOtherStrides, kDiffers };

AtOne Holds(const Inferred& found, const std::vector<uint32_t>& ones, const Call& call,
            const std::vector<TensorMeta>& operands, const shape::Env& env, const std::vector<PyObject*>& constants) {
  std::vector<int64_t> v(env.hints().begin(), env.hints().end());
  for (uint32_t i = 0; i < v.size(); ++i)  // The other sizes are large enough for most windows.
    if (env.symbol(i).kind == shape::SymbolKind::kRuntime || v[i] < 2) v[i] = std::max<int64_t>(11, env.symbol(i).min);
  for (uint32_t i : ones) v[i] = 1;
  auto number = [&](Int e) { return Int(env.Simplify(e).Eval(v)); };
  std::vector<TensorMeta> concrete = operands;
  for (TensorMeta& m : concrete)
    for (shape::IntList* all : {&m.sizes, &m.strides}) all->Each(number);
  Call asked = call;
  EachInt(asked, [&](Int& i) { i = number(i); });
  // Meta kernels take empty results that the others refuse, some of them by code that imports much of torch first.
  bool empty = false;
  for (const TensorMeta& m : found.metas)
    for (Int size : m.sizes) empty = empty || number(size).value() <= 0;
  Refusal why;
  const auto answer = InferMadeUp(asked, concrete, constants, &why, empty);
  if (!answer) {
    PyErr_Clear();
    return AtOne::kHolds;
  }
  if (answer->metas.size() != found.metas.size()) return AtOne::kDiffers;
  AtOne result = AtOne::kHolds;
  for (size_t r = 0; r < found.metas.size(); ++r) {
    const TensorMeta &expected = found.metas[r], &m = answer->metas[r];
    const bool same = expected.dtype == m.dtype && expected.sizes.size() == m.sizes.size() &&
                      found.aliases[r].operand == answer->aliases[r].operand &&
                      found.aliases[r].same == answer->aliases[r].same;
    if (!same) return AtOne::kDiffers;
    for (size_t d = 0; d < m.sizes.size(); ++d) {
      if (!(number(expected.sizes[d]) == m.sizes[d])) return AtOne::kDiffers;
      if (number(expected.strides[d]) == m.strides[d]) continue;
      if (!(m.sizes[d] == Int(1))) return AtOne::kDiffers;
      result = AtOne::kOtherStrides;
    }
  }
  return result;
}

}  // namespace

std::optional<Inferred> InferSymbolic(Call& call, const std::vector<TensorMeta>& operands, const shape::Env& env,
                                      const std::vector<PyObject*>& constants, Refusal* why) {
  for (const Asking& asking : kAskings)
    if (auto found = Infer(asking, call, operands, env, constants, why)) return found;
  return std::nullopt;
}

std::optional<Inferred> InferLikeFirst(Call& call, const std::vector<TensorMeta>& operands, const shape::Env& env,
                                       const std::vector<PyObject*>& constants, Refusal* why) {
  if (!call.callee.Has(kLikeFirst) || call.args.empty() || !call.args[0].is(Arg::Kind::kTensor)) return std::nullopt;
  const std::vector<int64_t> now(env.hints().begin(), env.hints().end());
  const auto number = [&](Int e) { return Int(env.Simplify(e).Eval(now)); };
  std::vector<TensorMeta> concrete = operands;
  for (TensorMeta& m : concrete)
    for (shape::IntList* all : {&m.sizes, &m.strides}) all->Each(number);
  Call asked = call;
  EachInt(asked, [&](Int& i) { i = number(i); });
  auto found = InferByFramework(asked, concrete, constants, why, true);
  const size_t first = call.args[0].t;
  if (!found || found->metas.size() != 1 || found->aliases[0].operand >= 0 || first >= operands.size())
    return std::nullopt;
  TensorMeta& m = found->metas[0];
  if (m.sizes != concrete[first].sizes || m.strides != shape::RowMajor(m.sizes)) return std::nullopt;
  m.sizes = operands[first].sizes;
  m.sizes.Each([&](Int s) { return env.Simplify(s); });
  m.strides = shape::RowMajor(m.sizes);
  call.result = asked.result;
  return found;
}

Ones OnesMatter(const Inferred& found, const Call& call, const std::vector<TensorMeta>& operands, const shape::Env& env,
                const std::vector<PyObject*>& constants) {
  std::vector<uint32_t> symbols;
  const auto note = [&](Int e) {
    env.Simplify(e).ForEachSymbol([&](uint32_t id) {
      const bool may = env.symbol(id).kind != shape::SymbolKind::kRuntime && env.Bounds(Int::Symbol(id)).lo <= 1;
      if (may && std::find(symbols.begin(), symbols.end(), id) == symbols.end()) symbols.push_back(id);
    });
  };
  for (const TensorMeta& m : operands) std::for_each(m.sizes.begin(), m.sizes.end(), note);
  Call copy = call;
  EachInt(copy, note);
  Ones ones;
  const auto ask = [&](const std::vector<uint32_t>& which) {
    const AtOne at = Holds(found, which, call, operands, env, constants);
    Ints& to = at == AtOne::kDiffers ? ones.sizes : ones.strides;
    if (at != AtOne::kHolds)
      for (uint32_t id : which) to.push_back(Int::Symbol(id));
  };
  for (uint32_t id : symbols) ask({id});
  if (symbols.size() > 1 && ones.sizes.empty()) ask(symbols);
  return ones;
}

}  // namespace framejit::tensor
