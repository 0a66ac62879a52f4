// This file has the check, which is one pass over the nodes (program.h explains the shape of the program).
//
// On the way to a hit a slot or list item costs a load, and an instance dict a load from the object. A dict with a
// fresh tag costs two compares, whatever hangs on it. A tensor of torch costs a compare of the fields of its object.
// Other tensors are read into a tensor::Meta first.
#include <absl/cleanup/cleanup.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "guard/own_values.h"
#include "guard/program.h"
#include "tensor/opaque.h"
#include "tensor/overrides.h"
#include "tensor/torch_api.h"

namespace framejit::guard {

namespace {

// Are sizes and strides the expected ones? Binds the symbols among them.
[[gnu::always_inline]] inline bool LayoutHolds(const TensorTest& t, const int64_t* sizes, const int64_t* strides,
                                               const std::vector<shape::SymbolInfo>& info, int64_t* symbols) {
  const int64_t* expected = t.expected.data();
  if (!t.symbolic_mask) [[likely]] {
    for (int i = 0; i < t.rank; ++i)
      if (sizes[i] != expected[i] || strides[i] != expected[t.rank + i]) return false;
    return true;
  }
  for (int i = 0; i < 2 * t.rank; ++i)
    if (!(t.symbolic_mask >> i & 1) && (i < t.rank ? sizes[i] : strides[i - t.rank]) != expected[i]) return false;
  for (const auto& [i, dim] : t.symbolic) {
    if (dim.symbol < 0) continue;  // an expression: it is compared when all symbols are bound
    if (!BindSymbol(info[dim.symbol], dim.binds, i < t.rank ? sizes[i] : strides[i - t.rank], &symbols[dim.symbol]))
      return false;
  }
  return true;
}

// Of a tensor of torch whose fields can be read. The key set says whether it is a plain one, and of which back end.
[[gnu::always_inline]] inline bool FieldsHold(const tensor::TorchApi& api, const TensorTest& t, PyObject* v,
                                              const std::vector<shape::SymbolInfo>& info, int64_t* symbols) {
  using tensor::Field;
  const tensor::Impl impl = tensor::ImplOf(v);
  const auto dtype = tensor::FromScalarType(Field<uint16_t>(impl, api.at.dtype));
  if (Field<uint64_t>(impl, api.at.key_set) != t.key_set || !dtype || *dtype != t.dtype) return false;
  const int8_t* at = &Field<int8_t>(impl, api.at.device);
  if (at[0] ? t.device != Device{at[0] == 1 ? DeviceKind::kCuda : DeviceKind::kMeta, at[1]} : t.device != Device{})
    return false;
  const tensor::TorchDims dims = tensor::DimsOf(api, impl);
  if (dims.rank != t.rank) return false;
  if (t.requires_grad != (Field<void*>(impl, api.at.autograd) && api.requires_grad(impl))) return false;
  return LayoutHolds(t, dims.sizes, dims.strides, info, symbols);
}

[[gnu::hot]] bool TensorHolds(TensorTest& t, PyObject* v, const std::vector<shape::SymbolInfo>& info,
                              int64_t* symbols) {
  if (Py_TYPE(v) != t.seen) {
    if (tensor::Classify(v) != t.klass) return false;
    t.seen = Py_TYPE(v);
  }
  if (const tensor::TorchApi* api = tensor::bound_torch;
      tensor::IsPlainTorch(t.klass) && api && api->at.all() && api->requires_grad && !IsOpaque(t.device)) [[likely]]
    return FieldsHold(*api, t, v, info, symbols);
  tensor::Meta m;
  if (!(IsOpaque(t.device) ? tensor::ReadOpaque(v, &m) : tensor::ReadForGuard(v, &m))) return false;
  if (m.rank != t.rank || m.dtype != t.dtype || m.key_set != t.key_set || m.requires_grad != t.requires_grad ||
      !(m.device == t.device) || (t.klass == tensor::Class::kTorchSubclass && tensor::AsksItsClass(v)))
    return false;
  return LayoutHolds(t, m.sizes, m.strides, info, symbols);
}

}  // namespace

[[gnu::always_inline]] static inline bool IsEmptyDict(PyObject* v) {
  return v && (PyDict_CheckExact(v) || PyODict_CheckExact(v)) && PyDict_GET_SIZE(v) == 0;
}

bool HasNoItems(PyObject* v) {
  return IsEmptyDict(v);
}

bool Compare(double a, double b, int op) {
  return op == Py_LT   ? a < b
         : op == Py_LE ? a <= b
         : op == Py_EQ ? a == b
         : op == Py_NE ? a != b
         : op == Py_GT ? a > b
                       : a >= b;
}

[[gnu::hot]] bool Program::Holds(Test& t, PyObject* v, int64_t* symbols) {
  switch (t.kind) {
    case Kind::kIs: return t.expected.Is(v);
    case Kind::kTypeIs: return v && t.expected.Is(reinterpret_cast<PyObject*>(Py_TYPE(v)));
    case Kind::kEqual: {
      if (!v) return false;
      if (t.extra >= 0) {
        PyTypeObject* type = Py_TYPE(v);
        return (type == &PyFrozenSet_Type || type == &PySet_Type) && EqualSet(v, sets[t.extra]);
      }
      PyObject* e = t.expected.get();
      return e && EqualValues(v, e);
    }
    case Kind::kAbsent: return v == nullptr;
    case Kind::kLength: return (v && PyDict_Check(v) ? PyDict_GET_SIZE(v) : LengthOf(v)) == t.number;
    case Kind::kLeaf: return v && (t.number ? tensor::HasHistory(v) && !tensor::IsView(v) : !tensor::HasHistory(v));
    case Kind::kNoHooks: return v && !tensor::HasHooks(v);
    case Kind::kNoItems: return IsEmptyDict(v);
    case Kind::kKeys:  // of a dict: by its group; but an OrderedDict can be reordered behind its dict's back
      if (!v || Py_IS_TYPE(v, &PyDict_Type)) return true;
      if (PyODict_Check(v))
        return PyDict_GET_SIZE(v) == PyTuple_GET_SIZE(t.expected.get()) && OrderedKeysMatch(v, t.expected.get());
      return PyDict_Check(v) || (KeysMatch(v, t.expected.get()) && (!PyAnySet_Check(v) || PlacesOfCopy(v) == t.number));
    case Kind::kTypeVersion: return t.expected.Is(v) && types[t.extra].Holds(reinterpret_cast<PyTypeObject*>(v));
    case Kind::kFunction:
      return v && PyFunction_Check(v) && functions[t.extra]->Holds(reinterpret_cast<PyFunctionObject*>(v));
    case Kind::kTensor: return v && TensorHolds(tensors[t.extra], v, symbol_info, symbols);
    case Kind::kIntSymbol: {
      if (!v || !PyLong_CheckExact(v)) return false;
      int overflow;
      int64_t value = PyLong_AsLongLongAndOverflow(v, &overflow);
      return !overflow && BindSymbol(symbol_info[t.number], t.covered, value, &symbols[t.number]);
    }
    case Kind::kFloatSymbol:
      return v && PyFloat_CheckExact(v) &&
             BindSymbol(symbol_info[t.number], t.covered, std::bit_cast<int64_t>(PyFloat_AS_DOUBLE(v)),
                        &symbols[t.number]);
    case Kind::kFloatCompare:
      return v && PyFloat_CheckExact(v) &&
             Compare(PyFloat_AS_DOUBLE(v), PyFloat_AS_DOUBLE(t.expected.get()), t.number & 7) == (t.number >> 3 != 0);
    default: return true;  // not about one value
  }
}

// A source that leads nowhere: only tests that expect it may stand there.
bool Program::Nothing(const Node& node) const {
  if (node.required || (node.group >= 0 && !MissingIsEmpty(node.kind))) return false;
  for (int32_t i = node.first; i < node.last; ++i) {
    const Test& t = tests[i];
    bool empty = MissingIsEmpty(node.kind) && (t.kind == Kind::kKeys || (t.kind == Kind::kLength && t.number == 0));
    if (t.kind != Kind::kAbsent && !empty) return false;
  }
  return true;
}

// Looks up everything that hangs on the dict (null: an empty one) and runs the tests that the tag will vouch for.
bool Program::Refresh(Group& g, PyObject* dict, bool may_miss, int64_t* symbols) {
  bool real = dict && PyDict_Check(dict);
  if (!real && !may_miss && g.first < g.last) return false;
  if (real)
    g.tag.Stamp(dict);
  else
    g.tag.Invalidate();
  auto fail = [&] {
    g.tag.Invalidate();
    return false;
  };
  int32_t next_empty = g.empties_first;
  for (int32_t i = g.keys_first; i < g.keys_last; ++i) {
    PyObject* expected = tests[i].expected.get();
    if (tests[i].kind == Kind::kEntries) {
      if (!real && !may_miss) return fail();
      for (PyObject* name : EntryNames(expected, false))
        if (real && DictLookup(dict, name)) return fail();
      for (PyObject* name : EntryNames(expected, true)) empties[next_empty++] = real ? DictLookup(dict, name) : nullptr;
    } else if ((real ? !PyODict_Check(dict) : !dict) && !KeysMatch(dict, expected)) {
      return fail();
    }
  }
  for (int32_t l = g.first; l < g.last; ++l) {
    const Lookup& at = lookups[l];
    PyObject* v = real ? DictLookup(dict, SourceOf(at).object) : nullptr;
    for (int32_t i = at.first; i < at.last; ++i)
      if (!Holds(tests[i], v, symbols)) return fail();
    if (at.has_node()) nodes[at.node].value = v;
    if (at.empty()) empties[next_empty++] = v;
  }
  return true;
}

// The same of an object that holds its attributes itself. No tag knows of them: each check looks them up.
bool Program::InObject(const Node& node, const FjOwn& own, int64_t* symbols) {
  for (int32_t i = node.first; i < node.last; ++i)  // of its type
    if (!tests[i].expected.Is(reinterpret_cast<PyObject*>(&PyDict_Type))) return false;
  if (node.group < 0) return true;
  Group& g = groups[node.group];
  g.tag.Invalidate();
  for (int32_t i = g.keys_first; i < g.keys_last; ++i) {  // kEntries
    PyObject* expected = tests[i].expected.get();
    for (PyObject* name : EntryNames(expected, false))
      if (fj_own_value(&own, name)) return false;
    for (PyObject* name : EntryNames(expected, true))
      if (!IsEmptyDict(fj_own_value(&own, name))) return false;
  }
  for (int32_t l = g.first; l < g.last; ++l) {
    const Lookup& at = lookups[l];
    PyObject* v = fj_own_value(&own, SourceOf(at).object);
    for (int32_t i = at.first; i < at.last; ++i)
      if (!Holds(tests[i], v, symbols)) return false;
    if (at.has_node()) nodes[at.node].value = v;
  }
  return true;
}

[[gnu::hot]] bool Program::Run(PyObject* const* slots, PyObject** out, int64_t* symbols) {
  if (torch_state && !(tensor::ReadTorchState() == *torch_state)) return false;
  Node* const base = nodes.data();
  MemberCache* const member = members.data();
  const size_t n = nodes.size(), sizes = sizes_at;
  KeyList keys;
  for (size_t i = 0; i < n; ++i) {
    if (i == sizes && !SizesHold(symbols)) [[unlikely]]
      return false;
    Node& node = base[i];
    if (!node.looked_up) {
      PyObject* from = node.parent >= 0 ? base[node.parent].value : nullptr;
      if (!from && node.parent >= 0) [[unlikely]]
        return false;
      if (FjOwn own; node.in_object && fj_own_view(from, &own) && !IsThreadLocal(Py_TYPE(from))) {
        if (!InObject(node, own, symbols)) return false;
        node.value = from;  // which no other node has, as it would its dict
        continue;
      }
      node.value = node.kind == SourceKind::kSlot ? slots[node.index]
                   : node.kind == SourceKind::kConst && !node.index
                       ? node.value
                       : Step(node.kind, node.index, node.source->object, from, slots,
                              node.kind == SourceKind::kMember ? &member[node.index] : nullptr, &keys);
    }
    if (!node.value) [[unlikely]] {
      if (!Nothing(node)) return false;
    } else {
      for (int32_t t = node.first; t < node.last; ++t)
        if (!Holds(tests[t], node.value, symbols)) return false;
    }
    if (node.group >= 0) {
      Group& g = groups[node.group];
      if (!g.tag.Fresh(node.value) && !Refresh(g, node.value, !node.value, symbols)) return false;
      for (int32_t e = g.empties_first; e < g.empties_last; ++e)
        if (!IsEmptyDict(empties[e])) return false;
    }
  }
  if (sizes == n && !SizesHold(symbols)) return false;
  if ((expressions || !relations.empty()) && !Relations(symbols)) return false;
  if ((!distinct.empty() && !Distinct()) || (!apart.empty() && !Apart())) return false;
  if (numpy_state && ReadNumpyState() != numpy_state) return false;
  for (size_t i = 0; i < inputs.size(); ++i) out[i] = base[inputs[i]].value;
  return true;
}

bool Program::SizesHold(const int64_t* symbols) const {
  const std::span values(symbols, symbol_info.size());
  return std::all_of(shape_guards.begin(), shape_guards.end(), [&](const shape::Guard& g) { return g.Holds(values); });
}

bool Program::Relations(int64_t* symbols) {
  if (expressions) {
    std::span<const int64_t> values(symbols, symbol_info.size());
    for (const Node& node : nodes) {
      for (int32_t i = node.first; i < node.last; ++i) {
        if (tests[i].kind != Kind::kTensor) continue;
        const TensorTest& t = tensors[tests[i].extra];
        if (!t.symbolic_mask) continue;
        tensor::Meta m;
        if (!tensor::ReadForGuard(node.value, &m)) return false;
        for (const auto& [at, dim] : t.symbolic)
          if (dim.symbol == TensorTest::kExpression &&
              dim.expression.Eval(values) != (at < t.rank ? m.sizes[at] : m.strides[at - t.rank]))
            return false;
      }
    }
  }
  for (const Relation& r : relations) {
    PyObject *a = nodes[r.a].value, *b = nodes[r.b].value;
    if (r.kind == Kind::kSameObject ? a != b : a == b) return false;
  }
  return true;
}

bool Program::Apart() {
  extents_.clear();
  for (const Written& w : apart) extents_.push_back(ExtentOf(nodes[w.node].value, w.written));
  return !ShareWritten(extents_);
}

bool Program::Distinct() {
  objects_.clear();
  for (int32_t node : distinct) objects_.push_back(nodes[node].value);
  std::sort(objects_.begin(), objects_.end());
  return std::adjacent_find(objects_.begin(), objects_.end()) == objects_.end();
}

[[gnu::hot]] bool Program::Check(PyObject* const* slots, PyObject** out, int64_t* symbols) {
  // Nothing below is meant to run Python code, but frameworks' getters are not ours to vouch for. An inner check
  // misses.
  if (busy_) return false;
  busy_ = true;
  absl::Cleanup done = [this] { busy_ = false; };
  return Run(slots, out, symbols);
}

bool Program::Dead() const {
  for (const Test& t : tests)
    if (t.expected.dead()) return true;
  for (const TypeTest& t : types)
    if (t.type.dead()) return true;
  for (const Source& s : pool->sources())
    if (s.kind == SourceKind::kConst && !Step(s, nullptr, nullptr, nullptr, nullptr)) return true;
  return false;
}

PyObject* Program::Resolve(const Source* s, PyObject* const* slots) const {
  MemberCache none;
  KeyList keys;
  Ref base;
  if (s->base) {
    base = Ref(Resolve(s->base, slots));
    if (!base) return nullptr;
  }
  return Py_XNewRef(Step(*s, base.get(), slots, &none, &keys));
}

int Program::Traverse(visitproc visit, void* arg) {
  for (const Source& s : pool->sources()) Py_VISIT(s.object);
  for (const Test& t : tests) Py_VISIT(t.expected.held());
  for (const TypeTest& t : types) {  // snapshots of whole types are shared between sets: not ours alone to report
    Py_VISIT(t.type.held());
    for (const auto& item : t.attributes) {
      Py_VISIT(item.name.get());
      Py_VISIT(item.value.held());
    }
  }
  for (const auto& f : functions) {
    Py_VISIT(f->code.get());
    for (const Expected& e : f->defaults) Py_VISIT(e.held());
    for (const auto& [name, e] : f->kwitems) {
      Py_VISIT(name.get());
      Py_VISIT(e.held());
    }
  }
  for (const SetTest& s : sets)
    for (const SetTest::Item& i : s.items) Py_VISIT(i.key.get());
  return 0;
}

}  // namespace framejit::guard
