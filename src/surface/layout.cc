#include "surface/layout.h"

#include <algorithm>
#include <numeric>

#include "shape/typical.h"

namespace framejit::surface {

using shape::Env;
using shape::Int;
using shape::Ints;

bool IsRowMajor(const TensorMeta& m) {
  return m.strides == RowMajor(m.sizes);
}

bool IsEmpty(Env& env, const Ints& sizes) {
  return std::any_of(sizes.begin(), sizes.end(), [&](Int s) { return env.Eq(s, 0); });
}

bool IsContiguous(Env& env, const TensorMeta& m) {
  if (IsRowMajor(m) || IsEmpty(env, m.sizes)) return true;
  Int expect = 1;
  for (size_t i = m.sizes.size(); i-- > 0;) {
    // Whether the size is 1 is asked only where that decides.
    const bool fits = env.Prove(shape::Cmp::kEq, m.strides[i], expect) == true;
    if (!fits && env.Eq(m.sizes[i], 1)) continue;
    if (!fits && !env.Eq(m.strides[i], expect)) return false;
    expect = expect * m.sizes[i];
  }
  return true;
}

// Dense whatever the sizes are: in some order, each stride is the product of the sizes before it.
static bool IsChain(const TensorMeta& m) {
  std::vector<bool> used(m.sizes.size());
  Int expect = 1;
  for (size_t n = 0; n < m.sizes.size(); ++n) {
    size_t next = m.sizes.size();
    for (size_t i = 0; i < m.sizes.size(); ++i)  // Of several that fit, one of size 1 comes first.
      if (!used[i] && m.strides[i] == expect && (next == m.sizes.size() || m.sizes[i] == Int(1))) next = i;
    if (next == m.sizes.size()) return false;
    used[next] = true;
    expect = expect * m.sizes[next];
  }
  return true;
}

bool IsDense(Env& env, const TensorMeta& m) {
  if (IsChain(m) || IsEmpty(env, m.sizes)) return true;
  std::vector<int> order;
  for (size_t i = 0; i < m.sizes.size(); ++i) {
    if (!env.Eq(m.sizes[i], 1)) order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return env.Lt(m.strides[a], m.strides[b]); });
  Int expect = 1;
  for (int i : order) {
    if (!env.Eq(m.strides[i], expect)) return false;
    expect = expect * m.sizes[i];
  }
  return true;
}

bool Overlaps(Env& env, const TensorMeta& m) {
  if (IsChain(m) || IsEmpty(env, m.sizes)) return false;
  // A pair is a size and its stride without the sign. The smallest stride comes first.
  std::vector<std::pair<Int, Int>> steps;
  for (size_t i = 0; i < m.sizes.size(); ++i)
    if (!env.Le(m.sizes[i], 1))
      steps.emplace_back(m.sizes[i], env.Hint(m.strides[i]) < 0 ? -m.strides[i] : m.strides[i]);
  std::stable_sort(steps.begin(), steps.end(),
                   [&](const auto& a, const auto& b) { return env.Hint(a.second) < env.Hint(b.second); });
  Int reach = 0;  // how far the smaller steps go: a larger one has to leave them behind
  for (auto& [size, stride] : steps) {
    if (!env.Lt(reach, stride)) return true;
    reach = reach + (size - 1) * stride;
  }
  return false;
}

bool IsChannelsLast(Env& env, const TensorMeta& m) {
  size_t rank = m.sizes.size();
  if (rank != 4 && rank != 5) return false;
  Int expect = 1;
  auto fits = [&](size_t d) {
    const bool known = env.Prove(shape::Cmp::kEq, m.strides[d], expect) == true;
    if (!known && env.Eq(m.sizes[d], 1)) return true;
    const bool ok = known || env.Eq(m.strides[d], expect);
    expect = expect * m.sizes[d];
    return ok;
  };
  bool ok = fits(1);
  for (size_t d = rank; d-- > 2;) ok = ok && fits(d);
  return ok && fits(0);
}

Ints ChannelsLast(const Ints& sizes) {
  Ints strides(sizes.size());
  Int next = 1;
  auto give = [&](size_t d) {
    strides[d] = next;
    if (sizes[d] != Int(0)) next = next * sizes[d];
  };
  give(1);
  for (size_t d = sizes.size(); d-- > 2;) give(d);
  give(0);
  return strides;
}

bool LikesChannelsLast(Env& env, const TensorMeta& m) {
  size_t rank = m.sizes.size();
  if ((rank != 4 && rank != 5) || IsRowMajor(m)) return false;
  const Env::Typical typical(env);
  if (env.Eq(m.strides[1], 0)) return false;
  Int min = 0;
  std::vector<size_t> order = rank == 4 ? std::vector<size_t>{1, 3, 2, 0} : std::vector<size_t>{1, 4, 3, 2, 0};
  for (size_t d : order) {
    if (env.Eq(m.sizes[d], 0)) return false;
    if (env.Lt(m.strides[d], min)) return false;
    if (d == 0 && env.Eq(min, m.strides[1])) return false;
    min = m.strides[d];
    min = min * m.sizes[d];
  }
  return true;
}

namespace {

// Strides of m as an operand that was broadcast to `shape`: new and stretched dimensions do not move.
Ints Stretch(Env& env, const TensorMeta& m, const Ints& shape, bool ones_do_not_move) {
  Ints out(shape.size(), Int(0));
  size_t shift = shape.size() - m.sizes.size();
  for (size_t i = 0; i < m.sizes.size(); ++i) {
    const bool ask = ones_do_not_move || !(m.sizes[i] == shape[i + shift]);
    const bool one = ask ? env.Eq(m.sizes[i], 1) : m.sizes[i] == Int(1);
    if (one && (ones_do_not_move || !env.Eq(shape[i + shift], 1))) continue;
    out[i + shift] = m.strides[i];
  }
  return out;
}

Ints FromOrder(const Ints& shape, const std::vector<int>& fastest_first) {
  Ints strides(shape.size());
  Int next = 1;
  for (int d : fastest_first) {
    strides[d] = next;
    next = next * shape[d];
  }
  return strides;
}

bool IsReversed(const std::vector<int>& order) {
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != static_cast<int>(order.size() - 1 - i)) return false;
  }
  return true;
}

}  // namespace

// Gives f of sizes and strides while sizes are taken to be at least 2, unless f is the same for ones.
template <typename F>
static Ints AtTypicalSizes(Env& env, const std::vector<Ints>& parts, F f) {
  const Env::Typical typical(env);
  const Ints before = shape::TakenForGranted();
  const Ints out = f(parts), taken = shape::TakenForGranted();
  constexpr size_t kMost = 3;
  Ints asked = taken;  // and what f asks where some of them are 1
  const auto few = [&] {
    return asked.size() <= kMost && std::all_of(asked.begin(), asked.end(), [](Int e) { return e.as_symbol(); });
  };
  bool same = few();
  for (size_t which = 1; same && which < size_t{1} << asked.size(); ++which) {
    Ints ones;
    for (size_t i = 0; i < asked.size(); ++i) {
      const uint32_t id = *asked[i].as_symbol();
      for (auto next = static_cast<uint32_t>(ones.size()); next <= id; ++next) ones.push_back(Int::Symbol(next));
      if (which >> i & 1) ones[id] = 1;
    }
    const auto put = [&](Ints part) {
      for (Int& e : part) e = env.Simplify(e).Substitute(ones);
      return part;
    };
    std::vector<Ints> at;
    for (const Ints& part : parts) at.push_back(put(part));
    const shape::Trial trial;
    same = f(at) == put(out) && trial.proven();
    for (Int e : shape::TakenForGranted())
      if (std::find(asked.begin(), asked.end(), e) == asked.end()) asked.push_back(e);
    same = same && few();
  }
  shape::TakenForGranted();
  std::for_each(before.begin(), before.end(), shape::TakeForGranted);
  if (!same) std::for_each(taken.begin(), taken.end(), shape::TakeForGranted);
  return out;
}

static Ints Iterated(Env& env, const Ints& shape, std::span<const Ints> strides) {
  std::vector<int> order(shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(order.size() - 1 - i);
  auto compare = [&](int a, int b) {  // > 0: a moves slower than b and belongs after it
    for (const Ints& s : strides) {
      if (env.Eq(s[a], 0) || env.Eq(s[b], 0)) continue;
      if (!(s[a] == s[b])) {
        if (env.Lt(s[a], s[b])) return -1;
        if (env.Lt(s[b], s[a])) return 1;
      }
      if (env.Lt(shape[b], shape[a])) return 1;
    }
    return 0;
  };
  for (int i = 1; i < static_cast<int>(order.size()); ++i) {  // insertion sort that leaves ambiguous pairs alone
    int at = i;
    for (int j = i - 1; j >= 0; --j) {
      int c = compare(order[j], order[at]);
      if (c > 0) {
        std::swap(order[j], order[at]);
        at = j;
      } else if (c < 0) {
        break;
      }
    }
  }
  return IsReversed(order) ? RowMajor(shape) : FromOrder(shape, order);
}

Ints TorchIterator(Env& env, const Ints& shape, const std::vector<Ints>& strides) {
  std::vector<Ints> parts = {shape};
  parts.insert(parts.end(), strides.begin(), strides.end());
  return AtTypicalSizes(env, parts,
                        [&](const std::vector<Ints>& p) { return Iterated(env, p[0], std::span(p).subspan(1)); });
}

static Ints Pointwise(Env& env, const Ints& shape, std::span<const TensorMeta* const> tensors, bool scalars) {
  auto same = [&](const Ints& a, const Ints& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const Int& x, const Int& y) { return env.Eq(x, y); });
  };
  bool same_shape = !scalars;
  for (const TensorMeta* t : tensors) same_shape = same_shape && same(t->sizes, shape);
  if (same_shape) {
    auto all = [&](auto test) {
      return std::all_of(tensors.begin(), tensors.end(), [&](auto* t) { return test(env, *t); });
    };
    if (all(IsContiguous)) return RowMajor(shape);
    if (shape.size() == 4 && all(IsChannelsLast)) {
      return ChannelsLast(shape);
    }
    bool same_strides = all([&](Env&, const TensorMeta& m) { return same(m.strides, tensors[0]->strides); });
    if (same_strides && all(IsDense)) return tensors[0]->strides;
  }
  std::vector<Ints> strides;
  for (const TensorMeta* t : tensors) strides.push_back(Stretch(env, *t, shape, false));
  return Iterated(env, shape, strides);
}

Ints TorchPointwise(Env& env, const Ints& shape, std::span<const TensorMeta* const> tensors, bool scalars) {
  std::vector<Ints> parts = {shape};
  bool all_default = true;
  for (const TensorMeta* t : tensors) {
    all_default &= IsRowMajor(*t);
    parts.push_back(t->sizes);
    parts.push_back(t->strides);
  }
  const bool empty = std::any_of(shape.begin(), shape.end(), [](const Int& n) { return n == Int(0); });
  if (all_default && !empty) return RowMajor(shape);  // beside 0 a size of 1 is the larger one
  return AtTypicalSizes(env, parts, [&](const std::vector<Ints>& p) {
    std::vector<TensorMeta> metas;
    for (size_t i = 0; i < tensors.size(); ++i) {
      metas.push_back(*tensors[i]);
      metas.back().sizes = p[2 * i + 1];
      metas.back().strides = p[2 * i + 2];
    }
    std::vector<const TensorMeta*> at;
    for (const TensorMeta& m : metas) at.push_back(&m);
    return Pointwise(env, p[0], at, scalars);
  });
}

TensorMeta Reversed(TensorMeta m) {
  m.sizes = Ints(m.sizes.rbegin(), m.sizes.rend());
  m.strides = Ints(m.strides.rbegin(), m.strides.rend());
  return m;
}

Ints NumpyPointwise(Env& env, const Ints& shape, std::span<const TensorMeta* const> tensors, bool casts) {
  bool all_default = true;
  for (const TensorMeta* t : tensors) all_default &= IsRowMajor(*t);
  if (all_default || shape.size() < 2) return RowMajor(shape);
  // Where all lie alike NumPy needs no iterator, whose order knows nothing of dimensions of size 1.
  auto columns = [&](const TensorMeta* t) {
    const Ints& sizes = t->sizes;
    return sizes.empty() || (std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end(),
                                        [&](Int a, Int b) { return env.Eq(a, b); }) &&
                             IsContiguous(env, Reversed(*t)));
  };
  const bool ones = std::any_of(shape.begin(), shape.end(), [&](Int i) { return env.Eq(i, 1); });
  if (ones && !casts && std::all_of(tensors.begin(), tensors.end(), columns) &&
      !std::all_of(tensors.begin(), tensors.end(), [&](auto* t) { return IsContiguous(env, *t); })) {
    std::vector<int> all(shape.size());
    std::iota(all.begin(), all.end(), 0);
    return FromOrder(shape, all);
  }
  std::vector<Ints> strides;
  for (const TensorMeta* t : tensors) strides.push_back(Stretch(env, *t, shape, true));
  std::vector<int> order(shape.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(order.size() - 1 - i);
  auto magnitude = [&](Int v) { return env.Lt(v, 0) ? -v : v; };
  for (size_t i = 1; i < order.size(); ++i) {
    size_t at = i;
    int moving = order[i];
    for (size_t j = i; j-- > 0;) {
      bool ambiguous = true, swap = false;
      for (const Ints& s : strides) {
        if (env.Eq(s[moving], 0) || env.Eq(s[order[j]], 0)) continue;
        if (env.Le(magnitude(s[order[j]]), magnitude(s[moving]))) {
          swap = false;
        } else if (ambiguous) {
          swap = true;
        }
        ambiguous = false;
      }
      if (ambiguous) continue;
      if (!swap) break;
      at = j;
    }
    order.erase(order.begin() + i);
    order.insert(order.begin() + at, moving);
  }
  return IsReversed(order) ? RowMajor(shape) : FromOrder(shape, order);
}

Ints PreserveFormat(Env& env, const TensorMeta& m) {
  return AtTypicalSizes(env, {m.sizes, m.strides}, [&](const std::vector<Ints>& p) {
    TensorMeta at = m;
    at.sizes = p[0];
    at.strides = p[1];
    return IsDense(env, at) ? at.strides.list() : Iterated(env, at.sizes, std::span(p).subspan(1));
  });
}

static TensorMeta WithoutOnes(Env& env, TensorMeta m) {
  for (size_t d = m.sizes.size(); d-- > 0;) {
    if (!env.Eq(m.sizes[d], 1)) continue;
    m.sizes.Erase(d);
    m.strides.Erase(d);
  }
  return m;
}

// Nothing: the elements of m do not lie so that they can be walked in these sizes.
static std::optional<Ints> Walked(Env& env, const TensorMeta& m, const Ints& sizes) {
  if (IsRowMajor(m)) return RowMajor(sizes);
  // NumPy keeps odd strides of size-1 dimensions where the sizes stay; torch gives such dimensions new ones.
  const bool same = m.sizes == sizes;
  if (same && m.framework == Framework::kNumpy) return m.strides;
  if (IsEmpty(env, m.sizes)) return same ? m.strides.list() : RowMajor(sizes);
  if (m.framework == Framework::kNumpy &&
      std::any_of(m.sizes.begin(), m.sizes.end(), [&](Int e) { return env.Eq(e, 1); }))
    return Walked(env, WithoutOnes(env, m), sizes);  // which NumPy does not look at
  Ints out(sizes.size());
  int view = static_cast<int>(sizes.size()) - 1;
  if (m.sizes.empty()) return Ints(sizes.size(), Int(1));
  // Old dimensions are taken together while they can be walked with one stride; each such chunk must split evenly.
  Int chunk_stride = m.strides.back(), chunk = 1, taken = 1;
  for (int d = static_cast<int>(m.sizes.size()) - 1; d >= 0; --d) {
    chunk = chunk * m.sizes[d];
    const auto goes_on = [&] {  // whether the size is 1 is asked only where that decides
      const Int next = chunk * chunk_stride;
      return env.Prove(shape::Cmp::kEq, m.strides[d - 1], next) == true || env.Eq(m.sizes[d - 1], 1) ||
             env.Eq(m.strides[d - 1], next);
    };
    const bool ends = d == 0 || !goes_on();
    if (!ends) continue;
    const auto fits = [&] {  // what ends the chunk is of it, be it 1 or more
      return taken * sizes[view] == chunk || env.Prove(shape::Cmp::kEq, sizes[view], 1) == true ||
             env.Lt(taken, chunk) || env.Eq(sizes[view], 1);
    };
    while (view >= 0 && fits()) {
      out[view] = taken * chunk_stride;
      taken = taken * sizes[view];
      --view;
    }
    if (!env.Eq(taken, chunk)) return std::nullopt;
    if (d > 0) {
      chunk_stride = m.strides[d - 1];
      chunk = taken = 1;
    }
  }
  if (view != -1) return std::nullopt;
  return out;
}

std::optional<Ints> ViewStrides(Env& env, const TensorMeta& m, const Ints& sizes) {
  if (IsRowMajor(m)) return RowMajor(sizes);
  // What can be viewed with sizes of at least 2 can be with ones, and then its elements lie at the same places.
  const Ints before = shape::TakenForGranted();
  bool found = true;
  Ints out = AtTypicalSizes(env, {sizes, m.sizes, m.strides}, [&](const std::vector<Ints>& p) {
    TensorMeta at = m;
    at.sizes = p[1];
    at.strides = p[2];
    auto strides = Walked(env, at, p[0]);
    found = found && strides;
    return strides.value_or(Ints());
  });
  if (found) {
    std::for_each(before.begin(), before.end(), shape::TakeForGranted);
    return out;
  }
  const bool never = shape::TakenForGranted().empty();  // nor with ones
  std::for_each(before.begin(), before.end(), shape::TakeForGranted);
  return never ? std::nullopt : Walked(env, m, sizes);
}

}  // namespace framejit::surface
