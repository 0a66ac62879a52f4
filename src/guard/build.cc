// GuardBuilder and Finish: rows become nodes, tests and groups (program.h).
//
// Order matters for misses: with several compiled entries for one place, most checks are misses. Trees that hang on a
// slot are ordered by size, so tensor arguments are compared before a module with hundreds of parameters is walked.
#include <algorithm>
#include <deque>
#include <memory_resource>
#include <tuple>
#include <unordered_map>

#include "diag/diag.h"
#include "guard/index_table.h"
#include "guard/program.h"

namespace framejit::guard {

namespace {

// Objects whose value never changes: the same pointer says it all.
bool Immutable(PyObject* o) {
  if (o == Py_None || o == Py_Ellipsis || o == Py_NotImplemented || PyBool_Check(o) || PyLong_CheckExact(o) ||
      PyFloat_CheckExact(o) || PyComplex_CheckExact(o) || PyUnicode_CheckExact(o) || PyBytes_CheckExact(o) ||
      Py_IS_TYPE(o, &PyRange_Type))
    return true;
  if (PyTuple_CheckExact(o)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i)
      if (!Immutable(PyTuple_GET_ITEM(o, i))) return false;
    return true;
  }
  return false;
}

// Can the outcome of this test of a value only change if the value is another object?
bool DecidedByIdentity(Kind kind, PyObject* expected) {
  switch (kind) {
    case Kind::kIs:
    case Kind::kAbsent: return true;
    case Kind::kEqual: return Immutable(expected);
    case Kind::kTypeIs: {  // __class__ can be assigned for instances of heap types, and for modules
      auto* t = reinterpret_cast<PyTypeObject*>(expected);
      return !(t->tp_flags & Py_TPFLAGS_HEAPTYPE) && t != &PyModule_Type;
    }
    default: return false;
  }
}

// A row, one cache line of it: a model has thousands.
struct HeldRow {
  Kind kind;
  int32_t extra = -1;  // index into types, functions, tensors, shapes
  int32_t next = -1;   // row of the same source
  const Source* source = nullptr;
  const void* second = nullptr;  // the other source; kTypeVersion: the name (held by its test)
  Ref object;
  int64_t number = 0;
  Line where;
  const Source* other() const { return kind == Kind::kTypeVersion ? nullptr : static_cast<const Source*>(second); }
};

// What rows of some kinds have besides.
struct Extras {
  std::vector<TypeTest> types;
  std::vector<std::unique_ptr<FunctionTest>> functions;
  std::vector<std::shared_ptr<const TensorExpect>> tensors;
  std::vector<std::shared_ptr<const shape::Guard>> shapes;
};

using Rows = std::pmr::deque<HeldRow>;

// Are the tests of these the same one? Not where sizes are symbols, since the first test of a symbol binds it.
bool SameTensor(const TensorExpect& a, const TensorExpect& b) {
  const TensorMeta &m = a.meta, &n = b.meta;
  const auto plain = [](shape::Int size) { return size.is_const(); };
  return m.sizes == n.sizes && m.strides == n.strides && a.key_set == b.key_set && a.quiet == b.quiet &&
         a.wrapper == b.wrapper && m.framework == n.framework && m.dtype == n.dtype && m.device == n.device &&
         m.is_scalar == n.is_scalar && m.requires_grad == n.requires_grad && m.is_parameter == n.is_parameter &&
         m.is_inference == n.is_inference && m.read_only == n.read_only && m.conj == n.conj && m.neg == n.neg &&
         std::all_of(m.sizes.begin(), m.sizes.end(), plain) && std::all_of(m.strides.begin(), m.strides.end(), plain);
}

template <typename T, typename V>
int32_t Append(std::vector<T>& to, V&& value) {
  to.push_back(std::forward<V>(value));
  return static_cast<int32_t>(to.size()) - 1;
}

}  // namespace

struct GuardBuilder::Impl {
  std::shared_ptr<SourcePool> pool = std::make_shared<SourcePool>();
  std::vector<PyObject*> constants;
  std::pmr::monotonic_buffer_resource memory{1 << 15};
  Rows rows{&memory};
  Extras extras;
  std::function<Line()> here;
  std::optional<tensor::TorchState> torch_state;
  std::optional<std::pair<uint64_t, uint64_t>> numpy_state;

  std::unordered_map<const Source*, int32_t> lookups;  // of single attributes of a type: they share one test
  // Duplicates are found among the rows of the source, or by a table where a row is about two things.
  std::vector<int32_t> last;  // row, by source
  IndexTable pairs;
  bool marking = false;
  std::vector<bool> marked;  // by source

  const Source* Mark(const Source* s) {
    if (!marking || !s) return s;
    if (s->id >= marked.size()) marked.resize(std::max<size_t>(256, 2 * pool->size()));
    marked[s->id] = true;
    return s;
  }
  bool Marked(const Source* s) const { return s->id < marked.size() && marked[s->id]; }

  bool Known(const Row& row, const void* second) {
    auto same = [&](uint32_t i) {
      const HeldRow& h = rows[i];
      return h.kind == row.kind && h.source == row.source && h.second == second && h.object.get() == row.object &&
             h.number == row.number;
    };
    if (second) {
      size_t h = static_cast<size_t>(row.kind) + static_cast<size_t>(row.number) * 31;
      for (const void* p : {static_cast<const void*>(row.source), second, static_cast<const void*>(row.object)})
        h = (h ^ reinterpret_cast<size_t>(p) / 8) * 0x9E3779B97F4A7C15u;
      const auto next = static_cast<uint32_t>(rows.size());
      return pairs.FindOrEnter(h ^ h >> 29, next, same) != next;
    }
    if (!row.source) {
      for (uint32_t i = 0; i < rows.size(); ++i)
        if (same(i)) return true;
      return false;
    }
    if (row.source->id >= last.size()) last.resize(std::max<size_t>(256, 2 * pool->size()), -1);
    int patience = 32;  // a row too many does no harm
    for (int32_t i = last[row.source->id]; i >= 0 && patience-- > 0; i = rows[i].next)
      if (same(i)) return true;
    return false;
  }

  void ReadStates() {
    if (!torch_state && tensor::TorchLoaded()) torch_state = tensor::ReadTorchState();
    if (!numpy_state && tensor::NumpyLoaded()) numpy_state = ReadNumpyState();
  }
};

GuardBuilder::GuardBuilder() : impl_(std::make_unique<Impl>()) {
  impl_->ReadStates();
}
GuardBuilder::~GuardBuilder() = default;

const Source* GuardBuilder::Slot(int index) {
  return impl_->Mark(impl_->pool->Intern(SourceKind::kSlot, nullptr, index, nullptr));
}
const Source* GuardBuilder::Const(PyObject* object) {
  FRAMEJIT_CHECK(object);
  const size_t before = impl_->pool->size();
  const Source* source = impl_->pool->Intern(SourceKind::kConst, nullptr, 0, object);
  const bool names = PyType_Check(object) || PyFunction_Check(object) || PyCode_Check(object) || PyDict_Check(object);
  if (impl_->pool->size() > before && names) impl_->constants.push_back(object);
  return impl_->Mark(source);
}
std::vector<PyObject*> GuardBuilder::Constants() const {
  return impl_->constants;
}
const Source* GuardBuilder::Child(SourceKind kind, const Source* base, int index, PyObject* object) {
  FRAMEJIT_CHECK(base && index >= 0);
  FRAMEJIT_CHECK(object || (kind != SourceKind::kDictItem && kind != SourceKind::kMember));
  return impl_->Mark(impl_->pool->Intern(kind, base, index, object));
}

void GuardBuilder::SetMarking(bool on) {
  impl_->marking = on;
}
void GuardBuilder::Mark(const Source* s) {
  impl_->Mark(s);
}

void GuardBuilder::SetWhere(std::function<Line()> where) {
  impl_->here = std::move(where);
}

void GuardBuilder::Add(Row row) {
  bool state = row.kind == Kind::kTorchState || row.kind == Kind::kNumpyState || row.kind == Kind::kShape;
  FRAMEJIT_CHECK(row.source || state);
  impl_->Mark(row.source);
  Extras& extras = impl_->extras;
  if (row.kind == Kind::kTypeVersion && row.name) {
    if (auto known = impl_->lookups.find(row.source); known != impl_->lookups.end())
      return AddLookup(extras.types[known->second], row.name);
    impl_->lookups.emplace(row.source, static_cast<int32_t>(extras.types.size()));
  }
  const void* second = row.kind == Kind::kTypeVersion ? static_cast<const void*>(row.name) : row.other;
  if (row.kind == Kind::kShape) {
    for (const auto& g : extras.shapes)
      if (g->cmp == row.shape->cmp && g->lhs == row.shape->lhs && g->rhs == row.shape->rhs) return;
  } else if (impl_->Known(row, second)) {
    return;
  }
  HeldRow held{row.kind};
  held.source = row.source;
  held.second = second;
  held.number = row.number;
  held.object = Ref::Borrow(row.object);
  switch (row.kind) {
    case Kind::kTypeVersion:
      FRAMEJIT_CHECK(row.object && PyType_Check(row.object));
      held.extra = Append(extras.types, MakeTypeTest(reinterpret_cast<PyTypeObject*>(row.object), row.name));
      break;
    case Kind::kFunction:
      FRAMEJIT_CHECK(row.object && PyFunction_Check(row.object));
      held.extra = Append(extras.functions, MakeFunctionTest(reinterpret_cast<PyFunctionObject*>(row.object)));
      break;
    case Kind::kTensor:
      if (extras.tensors.empty() || !SameTensor(*extras.tensors.back(), *row.tensor))
        extras.tensors.push_back(std::move(row.tensor));
      held.extra = static_cast<int32_t>(extras.tensors.size()) - 1;
      break;
    case Kind::kShape: held.extra = Append(extras.shapes, std::move(row.shape)); break;
    case Kind::kKeys:
      FRAMEJIT_CHECK(row.object);
      held.object = Ref(PySequence_Tuple(row.object));
      FRAMEJIT_CHECK(held.object);
      break;
    case Kind::kEntries:
      FRAMEJIT_CHECK(row.object && PyTuple_Check(row.object) && PyTuple_GET_SIZE(row.object) == 2);
      break;
    case Kind::kIs:
    case Kind::kTypeIs:
    case Kind::kEqual: FRAMEJIT_CHECK(row.object); break;
    default: break;
  }
  held.where = row.here && impl_->here ? impl_->here() : std::move(row.where);
  if (row.source && !second)
    held.next = std::exchange(impl_->last[row.source->id], static_cast<int32_t>(impl_->rows.size()));
  impl_->rows.push_back(std::move(held));
}

namespace {

// Assembles a Program: first a temporary tree (one Branch a source), which then goes depth-first into nodes.
class Assembler {
 public:
  Assembler(Program& p, Rows& rows, Extras& extras, shape::Env& env) : p_(p), rows_(rows), extras_(extras), env_(env) {}

  void Run(const std::vector<const Source*>& inputs) {
    branches_.resize(p_.pool->size());
    next_child_.resize(branches_.size(), -1);
    next_row_.resize(rows_.size(), -1);
    p_.nodes.reserve(branches_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const HeldRow& r = rows_[i];
      const Source* other = r.other();
      if (r.source) Reach(r.source);
      if (other) Reach(other), branches_[other->id].required = branches_[r.source->id].required = true;
      if (r.kind == Kind::kApart || r.kind == Kind::kDistinct) branches_[r.source->id].required = true;
      if (r.source && !other) branches_[r.source->id].rows.Append(static_cast<int32_t>(i), next_row_);
    }
    for (const Source* s : inputs) Reach(s), branches_[s->id].required = branches_[s->id].taken = true;
    for (size_t id = branches_.size(); id-- > 0;)  // a base was interned before what hangs on it
      if (const Source* s = branches_[id].source; s && s->base) branches_[s->base->id].size += branches_[id].size;
    std::stable_sort(roots_.begin(), roots_.end(),
                     [this](uint32_t a, uint32_t b) { return branches_[a].size < branches_[b].size; });
    bound_.resize(env_.num_symbols());
    for (uint32_t r : roots_) Emit(r, -1);
    for (const Source* s : inputs) p_.inputs.push_back(branches_[s->id].node);
    for (uint32_t i = 0; i < env_.num_symbols(); ++i) p_.symbol_info.push_back(env_.symbol(i));
    for (const HeldRow& h : rows_) Global(h);
    for (const shape::Guard& g : env_.guards())
      if (!env_.AtRun(g)) AddShape(g);
    for (const TensorTest& t : p_.tensors)
      for (const auto& [at, dim] : t.symbolic)
        if (dim.symbol == TensorTest::kExpression) Bound(dim.expression), p_.expressions = true;
    for (const shape::Guard& g : p_.shape_guards)
      for (const shape::Int& e : {g.lhs, g.rhs}) p_.sizes_at = std::max(p_.sizes_at, Bound(e));
    p_.nodes.shrink_to_fit();
    p_.tests.shrink_to_fit();
    p_.where.shrink_to_fit();
    p_.lookups.shrink_to_fit();
    p_.groups.shrink_to_fit();
    p_.empties.shrink_to_fit();
    p_.tensors.shrink_to_fit();
  }

 private:
  // Children and rows are linked lists in the order in which they came: a model has thousands.
  struct List {
    int32_t first = -1, last = -1;
    void Append(int32_t i, std::vector<int32_t>& next) {
      (last < 0 ? first : next[last]) = i;
      last = i;
    }
  };
  struct Branch {
    const Source* source = nullptr;
    List children, rows;
    int size = 1;
    int32_t node = -1;
    bool required = false, taken = false;  // taken: it is an input
  };
  template <typename F>
  void ForEach(const List& list, const std::vector<int32_t>& next, F&& f) const {
    for (int32_t i = list.first; i >= 0; i = next[i]) f(i);
  }
  template <typename F>
  void ForRows(uint32_t id, bool keys, F&& f) const {  // kKeys and kEntries, or all others
    ForEach(branches_[id].rows, next_row_, [&](int32_t i) {
      if ((rows_[i].kind == Kind::kKeys || rows_[i].kind == Kind::kEntries) == keys) f(i);
    });
  }
  template <typename F>
  void ForChildren(uint32_t id, bool items, F&& f) const {  // items of a dict, or all others
    ForEach(branches_[id].children, next_child_, [&](int32_t c) {
      if ((branches_[c].source->kind == SourceKind::kDictItem) == items) f(c);
    });
  }

  void Reach(const Source* s) {
    Branch& b = branches_[s->id];
    if (b.source) return;
    b.source = s;
    if (s->base) {
      Reach(s->base);
      branches_[s->base->id].children.Append(static_cast<int32_t>(s->id), next_child_);
    } else {
      roots_.push_back(s->id);
    }
  }

  void Emit(uint32_t id, int32_t parent) {
    Branch& b = branches_[id];
    auto at = static_cast<int32_t>(p_.nodes.size());
    b.node = at;
    p_.nodes.emplace_back();
    auto node = [&]() -> Node& { return p_.nodes[at]; };
    node().source = b.source;
    node().kind = b.source->kind;
    node().parent = parent;
    node().looked_up = b.source->kind == SourceKind::kDictItem;
    node().required = b.required;
    node().first = static_cast<int32_t>(p_.tests.size());
    for (bool keys : {false, true})  // in the walk, kKeys looks at OrderedDicts only
      ForRows(id, keys, [&](int32_t i) {
        if (rows_[i].kind != Kind::kEntries && (!node().looked_up || !Covered(rows_[i]))) AddTest(i);
      });
    std::tie(node().first, node().last) = Share(node().first);
    EmitGroup(at, id);
    ForChildren(id, true, [&](int32_t c) {
      if (!OnlyCovered(c) && !OnlyEmpty(c)) Emit(c, at);
    });
    ForChildren(id, false, [&](int32_t c) { Emit(c, at); });
    node().in_object = MayLieInObject(id);
    if (node().group < 0) return;
    const Group& g = p_.groups[node().group];  // was emitted before its nodes had numbers
    int32_t l = g.first;
    ForChildren(id, true, [&](int32_t c) {
      if (const int32_t n = branches_[c].node; n >= 0) p_.lookups[l].node = n;
      ++l;
    });
  }

  // Is all that is asked of the dict its type, its items under names, and whether it is that of another object? Names
  // are exactly strings.
  bool MayLieInObject(uint32_t id) const {
    const Branch& b = branches_[id];
    bool may = b.source->kind == SourceKind::kInstanceDict && !b.taken;
    ForEach(b.rows, next_row_,
            [&](int32_t i) { may = may && (rows_[i].kind == Kind::kTypeIs || rows_[i].kind == Kind::kEntries); });
    ForEach(b.children, next_child_, [&](int32_t c) {
      const Source* s = branches_[c].source;
      may = may && s->kind == SourceKind::kDictItem && PyUnicode_CheckExact(s->object);
    });
    return may;
  }

  void EmitGroup(int32_t at, uint32_t id) {
    Group g;
    g.keys_first = static_cast<int32_t>(p_.tests.size());
    g.empties_first = static_cast<int32_t>(p_.empties.size());
    ForRows(id, true, [&](int32_t i) {
      if (rows_[i].kind == Kind::kEntries)
        p_.empties.resize(p_.empties.size() + EntryNames(rows_[i].object.get(), true).size());
      AddTest(i);
    });
    std::tie(g.keys_first, g.keys_last) = Share(g.keys_first);
    g.first = static_cast<int32_t>(p_.lookups.size());
    ForChildren(id, true, [&](int32_t c) {
      const bool empty = OnlyEmpty(c);
      Lookup l{Lookup::Without(branches_[c].source->id, empty), static_cast<int32_t>(p_.tests.size()), 0};
      if (empty) p_.empties.push_back(nullptr);
      ForEach(branches_[c].rows, next_row_, [&](int32_t i) {
        if (empty || Covered(rows_[i])) AddTest(i);
      });
      std::tie(l.first, l.last) = Share(l.first);
      p_.lookups.push_back(l);
    });
    g.empties_last = static_cast<int32_t>(p_.empties.size());
    g.last = static_cast<int32_t>(p_.lookups.size());
    if (g.first == g.last && g.keys_first == g.keys_last) return;
    p_.nodes[at].group = static_cast<int32_t>(p_.groups.size());
    p_.groups.push_back(std::move(g));
  }

  // The tests of one value, from `first` to the last one there is: the same ones if they stand already, without these.
  std::pair<int32_t, int32_t> Share(int32_t first) {
    const auto last = static_cast<int32_t>(p_.tests.size());
    if (first == last) return {first, last};
    size_t hash = last - first;
    for (int32_t i = first; i < last; ++i) {
      const Test& t = p_.tests[i];
      hash = Mix(hash, static_cast<size_t>(t.kind) << 32 ^ static_cast<uint32_t>(t.extra));
      hash = Mix(Mix(hash, static_cast<size_t>(t.number)), reinterpret_cast<size_t>(t.expected.held()));
      hash = Mix(hash, reinterpret_cast<size_t>(p_.where[i].get()));
    }
    const auto next = static_cast<uint32_t>(runs_.size());
    const uint32_t at = run_index_.FindOrEnter(hash, next, [&](uint32_t run) {
      const auto& [begin, end] = runs_[run];
      if (end - begin != last - first) return false;
      for (int32_t i = 0; i < end - begin; ++i)
        if (!p_.tests[begin + i].Same(p_.tests[first + i]) || p_.where[begin + i] != p_.where[first + i]) return false;
      return true;
    });
    if (at == next) return runs_.emplace_back(first, last);
    p_.tests.erase(p_.tests.begin() + first, p_.tests.end());
    p_.where.erase(p_.where.begin() + first, p_.where.end());
    return runs_[at];
  }

  int32_t AddTensor(TensorTest t) {  // its number
    const auto next = static_cast<uint32_t>(p_.tensors.size());
    size_t hash = t.rank + (static_cast<size_t>(t.klass) << 8) + (t.requires_grad << 16);
    for (int64_t v : t.expected) hash = Mix(hash, static_cast<size_t>(v));
    const uint32_t at = t.symbolic_mask ? next : tensor_index_.FindOrEnter(hash, next, [&](uint32_t known) {
      return p_.tensors[known].Same(t);
    });
    if (at == next) p_.tensors.push_back(std::move(t));
    return static_cast<int32_t>(at);
  }

  static size_t Mix(size_t hash, size_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
  }

  static bool Covered(const HeldRow& h) { return DecidedByIdentity(h.kind, h.object.get()); }
  bool OnlyCovered(uint32_t id) const {
    const Branch& b = branches_[id];
    bool covered = b.children.first < 0 && !b.required;
    ForEach(b.rows, next_row_, [&](int32_t i) { covered = covered && Covered(rows_[i]); });
    return covered;
  }

  // Is kNoItems asked of it, and nothing else that its identity does not decide?
  bool OnlyEmpty(uint32_t id) const {
    const Branch& b = branches_[id];
    bool only = b.children.first < 0 && !b.required, asked = false;
    ForEach(b.rows, next_row_, [&](int32_t i) {
      asked = asked || rows_[i].kind == Kind::kNoItems;
      only = only && (rows_[i].kind == Kind::kNoItems || Covered(rows_[i]));
    });
    return only && asked;
  }

  void AddTest(int i) {
    HeldRow& h = rows_[i];
    Test t;
    t.kind = h.kind;
    t.number = h.number;
    t.extra = h.extra;
    switch (t.kind) {
      case Kind::kTensor:
        if (h.extra != last_tensor_.first) last_tensor_ = {h.extra, AddTensor(MakeTensor(*extras_.tensors[h.extra]))};
        t.extra = last_tensor_.second;
        break;
      case Kind::kIntSymbol:
      case Kind::kFloatSymbol:
        FRAMEJIT_CHECK(t.number >= 0 && t.number < static_cast<int64_t>(bound_.size()));
        t.covered = Binds(t.number);
        break;
      case Kind::kTypeVersion:
        // One state of one type is tested once, however many sources lead to it.
        t.expected = extras_.types[t.extra].type;
        break;
      case Kind::kEqual:
        if (PyFrozenSet_CheckExact(h.object.get())) {
          t.extra = static_cast<int32_t>(p_.sets.size());
          p_.sets.push_back(MakeSet(h.object.get()));
        }
        [[fallthrough]];
      default: t.expected = Expected(h.object.get());
    }
    if (t.kind == Kind::kKeys)  // twice: in the walk and in the group
      p_.where.push_back(h.where);
    else
      p_.where.push_back(std::move(h.where));
    p_.tests.push_back(std::move(t));
  }

  static SetTest MakeSet(PyObject* set) {
    SetTest t;
    Py_ssize_t at = 0;
    PyObject* key;
    Py_hash_t hash;
    while (SetNext(set, &at, &key, &hash)) t.items.push_back({hash, Ref::Borrow(key)});
    std::sort(t.items.begin(), t.items.end(), [](const auto& a, const auto& b) { return a.hash < b.hash; });
    return t;
  }

  TensorTest MakeTensor(const TensorExpect& e) {
    TensorTest t;
    const TensorMeta& m = e.meta;
    t.klass = e.wrapper ? tensor::Class::kTorchSubclass
              : m.framework == Framework::kTorch
                  ? (m.is_parameter ? (e.quiet ? tensor::Class::kQuietParameter : tensor::Class::kTorchParameter)
                     : e.quiet      ? tensor::Class::kQuietTensor
                                    : tensor::Class::kTorch)
              : m.is_scalar                        ? tensor::Class::kNumpyScalar
              : m.device.kind == DeviceKind::kCuda ? tensor::Class::kCupyArray
                                                   : tensor::Class::kNumpyArray;
    t.dtype = m.dtype;
    t.device = m.device;
    t.rank = static_cast<int>(m.sizes.size());
    t.key_set = e.key_set;
    t.requires_grad = m.requires_grad;
    FRAMEJIT_CHECK(m.sizes.size() == m.strides.size() && t.rank <= 16);
    for (int i = 0; i < 2 * t.rank; ++i) {
      shape::Int v = i < t.rank ? m.sizes[i] : m.strides[i - t.rank];
      t.expected.push_back(v.is_const() ? v.value() : 0);
      if (v.is_const()) continue;
      TensorTest::Dim d;
      if (auto symbol = v.as_symbol()) {
        FRAMEJIT_CHECK(*symbol < bound_.size());
        d.symbol = static_cast<int32_t>(*symbol);
        d.binds = Binds(*symbol);
      } else {
        d.symbol = TensorTest::kExpression;
        d.expression = v;
      }
      t.symbolic_mask |= uint64_t{1} << i;
      t.symbolic.emplace_back(i, d);
    }
    return t;
  }

  void Global(const HeldRow& r) {
    switch (r.kind) {
      case Kind::kSameObject:
      case Kind::kDifferentObject:
        FRAMEJIT_CHECK(r.other());
        p_.relations.push_back({r.kind, branches_[r.source->id].node, branches_[r.other()->id].node, r.where});
        break;
      case Kind::kApart: p_.apart.push_back({branches_[r.source->id].node, r.number != 0, r.where}); break;
      case Kind::kDistinct: p_.distinct.push_back(branches_[r.source->id].node); break;
      case Kind::kShape: AddShape(*extras_.shapes[r.extra]); break;
      case Kind::kTorchState: p_.torch_state_where = r.where; break;
      case Kind::kNumpyState: p_.numpy_state_where = r.where; break;
      default: break;
    }
  }

  void AddShape(const shape::Guard& g) {
    for (const shape::Guard& have : p_.shape_guards)
      if (have.cmp == g.cmp && have.lhs == g.lhs && have.rhs == g.rhs) return;
    p_.shape_guards.push_back(g);
  }

  // Is this test of the symbol the first one?
  bool Binds(size_t symbol) { return !bound_[symbol] && (bound_[symbol] = static_cast<int32_t>(p_.nodes.size())); }

  // The node in front of which all symbols of e are bound.
  int32_t Bound(const shape::Int& e) {
    int32_t at = 0;
    e.ForEachSymbol([&](uint32_t id) {
      if (id >= bound_.size() || !bound_[id])
        throw diag::InternalError("a guard needs symbol s" + std::to_string(id) + ", which no input binds");
      at = std::max(at, bound_[id]);
    });
    return at;
  }

  Program& p_;
  Rows& rows_;
  Extras& extras_;
  shape::Env& env_;
  std::vector<Branch> branches_;                // by source id
  std::vector<int32_t> next_child_, next_row_;  // by source id, by row
  std::vector<uint32_t> roots_;
  std::vector<int32_t> bound_;                     // by symbol: 0, or the node in front of which it is bound
  std::vector<std::pair<int32_t, int32_t>> runs_;  // of tests
  IndexTable run_index_, tensor_index_;
  std::pair<int32_t, int32_t> last_tensor_{-1, -1};  // of the extras, and its test
};

}  // namespace

std::string Text(const Line& line) {
  return line ? *line : std::string();
}

GuardBuilder::Part GuardBuilder::TakeMarked(const std::vector<const Source*>& tensors) const {
  Part part;
  GuardBuilder own;
  std::unordered_map<const Source*, const Source*> here;
  const std::function<const Source*(const Source*)> in_part = [&](const Source* s) {
    if (auto known = here.find(s); known != here.end()) return known->second;
    const Source* now = nullptr;
    if (s->base) {
      now = own.Child(s->kind, in_part(s->base), s->index, s->object);
    } else if (s->kind == SourceKind::kConst) {
      now = own.Const(s->object);
    } else {
      now = own.Slot(static_cast<int>(part.roots.size()));
      part.roots.push_back(s);
    }
    return here[s] = now;
  };
  std::vector<const Source*> inputs;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i]->base || !impl_->Marked(tensors[i])) continue;
    part.tensors.push_back(static_cast<int>(i));
    inputs.push_back(in_part(tensors[i]));
  }
  for (const HeldRow& h : impl_->rows) {
    if (!h.source || !impl_->Marked(h.source)) continue;
    Row row{h.kind};
    row.object = h.object.get();
    row.number = h.number;
    row.where = h.where;
    switch (h.kind) {
      case Kind::kTensor:
      case Kind::kLeaf:
      case Kind::kNoHooks:
      case Kind::kApart:
      case Kind::kDistinct:
      case Kind::kFloatCompare: break;  // of tensors it is asked which they are, of numbers what they are
      case Kind::kIntSymbol:
      case Kind::kFloatSymbol:
        if (!h.source->base) break;
        part.numbers.emplace_back(h.number, h.kind == Kind::kFloatSymbol);
        inputs.push_back(in_part(h.source));
        break;
      case Kind::kTypeVersion:
        row.source = in_part(h.source);
        if (h.second) {
          for (const auto& item : impl_->extras.types[h.extra].attributes) {
            row.name = item.name.get();
            own.Add(row);
          }
          break;
        }
        own.Add(std::move(row));
        break;
      default:
        // Slots are what they were: they are kept.
        if (!h.source->base && h.source->kind == SourceKind::kSlot &&
            (h.other() ? !h.other()->base : DecidedByIdentity(h.kind, h.object.get())))
          break;
        row.source = in_part(h.source);
        if (h.other()) row.other = in_part(h.other());
        own.Add(std::move(row));
    }
  }
  shape::Env none;
  part.set = own.Finish(none, inputs);
  return part;
}

std::shared_ptr<GuardSet> GuardBuilder::Finish(shape::Env& env, const std::vector<const Source*>& inputs) {
  impl_->ReadStates();  // for a framework that was imported since
  auto p = std::make_shared<Program>();
  p->pool = impl_->pool;
  for (const HeldRow& h : impl_->rows) {
    if (h.kind == Kind::kTorchState) p->torch_state = impl_->torch_state.value_or(tensor::TorchState{});
    if (h.kind == Kind::kNumpyState) p->numpy_state = impl_->numpy_state.value_or(std::pair<uint64_t, uint64_t>{});
  }
  Assembler(*p, impl_->rows, impl_->extras, env).Run(inputs);
  p->types = std::move(impl_->extras.types);
  p->functions = std::move(impl_->extras.functions);
  p->pool->Weaken();
  for (size_t i = 0; i < p->nodes.size(); ++i) {
    Node& node = p->nodes[i];
    node.index = node.source->index;
    if (node.kind == SourceKind::kConst && !node.index) node.value = node.source->object;
    if (node.kind == SourceKind::kMember) node.index = Append(p->members, MemberCache{});
  }
  impl_->rows.clear();
  impl_->lookups.clear();
  impl_->last.clear();
  impl_->pairs.Clear();
  return p;
}

}  // namespace framejit::guard
