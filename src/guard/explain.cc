// What is said about guards: the first failing one, which sizes could become symbols, and the list of all. Runs only on
// a miss or on request, walks the sources afresh (no tags, no remembered values), and runs no Python code.
#include <algorithm>

#include "graph/device.h"
#include "guard/own_values.h"
#include "guard/program.h"
#include "tensor/opaque.h"
#include "tensor/overrides.h"
#include "tensor/torch_api.h"

namespace framejit::guard {

namespace {

const char* KindText(Kind k) {
  static constexpr const char* names[] = {
#define X(e, n) n,
      FRAMEJIT_GUARDS(X)
#undef X
  };
  return names[static_cast<int>(k)];
}

// Of an item of what `dict` leads to.
std::string EntryText(const Source& dict, PyObject* key, PyObject* varnames) {
  return Source{&dict, key, 0, 0, SourceKind::kDictItem}.str(varnames);
}

std::string Num(int64_t v) {
  return std::to_string(v);
}

std::string Hex(uint64_t v) {
  char text[20];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

const char* ClassText(tensor::Class c) {
  switch (c) {
    case tensor::Class::kTorch: return "torch.Tensor";
    case tensor::Class::kTorchParameter: return "torch.nn.Parameter";
    case tensor::Class::kQuietTensor:
    case tensor::Class::kQuietParameter:
    case tensor::Class::kTorchSubclass: return "a subclass of torch.Tensor";
    case tensor::Class::kNumpyArray: return "numpy.ndarray";
    case tensor::Class::kNumpyScalar: return "a NumPy scalar";
    case tensor::Class::kCupyArray: return "cupy.ndarray";
    case tensor::Class::kNone: break;
  }
  return "no tensor";
}

std::string DimText(const TensorTest& t, int i) {
  for (const auto& [at, dim] : t.symbolic)
    if (at == i) return dim.symbol >= 0 ? "s" + Num(dim.symbol) : dim.expression.str();
  return Num(t.expected[i]);
}

std::string DimsText(const TensorTest& t, int from) {
  std::string out = "[";
  for (int i = 0; i < t.rank; ++i) out += (i ? ", " : "") + DimText(t, from + i);
  return out + "]";
}

std::string KeysText(PyObject* container) {
  std::string out = "[";
  PyObject *key, *value;
  Py_ssize_t at = 0;
  Py_hash_t hash;
  int n = 0;
  bool dict = PyDict_Check(container);
  if (!dict && !PyAnySet_Check(container)) return "";
  while (dict ? PyDict_Next(container, &at, &key, &value) : SetNext(container, &at, &key, &hash)) {
    if (++n > 8) return out + ", ...]";
    out += (n > 1 ? ", " : "") + ValueText(key);
  }
  return out + "]";
}

}  // namespace

class Explainer {
 public:
  struct Failure {
    std::string text;  // "" : nothing failed
    std::string where, hint;
    bool size = false;     // a tensor size that could be a symbol
    bool integer = false;  // an int or a float compared by value
    const Source* source = nullptr;
    bool symbol = false;  // a tensor size that is a symbol, outside of its range
  };

  Explainer(Program& p, PyObject* const* slots, PyObject* varnames)
      : p_(p), slots_(slots), names_(varnames), values_(p.nodes.size()), symbols_(p.symbol_info.size()) {}

  Failure First() {
    if (p_.torch_state) {
      tensor::TorchState now = tensor::ReadTorchState();
      if (!(now == *p_.torch_state))
        return {"torch state: expected " + tensor::DescribeTorchState(*p_.torch_state) + ", got " +
                    tensor::DescribeTorchState(now),
                Text(p_.torch_state_where), "call the function in the same mode as before"};
    }
    for (size_t i = 0; i < p_.nodes.size(); ++i)
      if (Failure f = AtNode(p_.nodes[i], i); !f.text.empty()) return f;
    if (Failure f = Relations(); !f.text.empty()) return f;
    if (p_.numpy_state && ReadNumpyState() != p_.numpy_state)
      return {"NumPy error state: numpy.seterr / numpy.errstate differs", Text(p_.numpy_state_where), ""};
    return {};
  }

  // Numbers that differ, up to the first thing that does and is neither a number nor a size: numbers and sizes that
  // change together cost one recompile.
  std::vector<std::string> Numbers() {
    std::vector<std::string> out;
    if (const Failure f = First(); !f.integer && !f.size) return out;
    for (size_t i = 0; i < p_.nodes.size(); ++i) {
      Failure f = AtNode(p_.nodes[i], i);
      if (f.text.empty() || f.size) continue;
      if (!f.integer) break;
      out.push_back(f.source->str());
    }
    return out;
  }

  // Sizes differ, and a tensor is empty along a dimension where those that were seen are not.
  bool Emptied() {
    if (const Failure f = First(); !f.size && !f.symbol && !f.integer) return false;
    for (size_t i = 0; i < p_.nodes.size(); ++i) Reach(p_.nodes[i], i);
    return std::any_of(p_.inputs.begin(), p_.inputs.end(), [&](int32_t input) {
      PyObject* v = values_[input];
      const TensorTest* t = TensorOf(p_.nodes[input]);
      tensor::Meta m;
      if (!v || !t || !tensor::ReadForGuard(v, &m) || m.rank != t->rank) return false;
      bool emptied = false;
      for (int d = 0; d < t->rank; ++d) emptied |= !m.sizes[d] && (t->symbolic_mask >> d & 1 || t->expected[d]);
      return emptied;
    });
  }

  // Input tensors whose sizes differ: see GuardSet::DynamicCandidates.
  std::vector<std::pair<int, int>> Candidates() {
    std::vector<std::pair<int, int>> out;
    if (const Failure f = First(); !f.size && !f.integer) return out;
    for (size_t i = 0; i < p_.nodes.size(); ++i) Reach(p_.nodes[i], i);
    for (size_t input = 0; input < p_.inputs.size(); ++input) {
      const Node& node = p_.nodes[p_.inputs[input]];
      PyObject* v = values_[p_.inputs[input]];
      const TensorTest* t = TensorOf(node);
      tensor::Meta m;
      if (!v || !t || t->klass == tensor::Class::kTorchParameter || !tensor::ReadForGuard(v, &m) || m.rank != t->rank)
        continue;
      auto fixed = [&](int d) { return !(t->symbolic_mask >> d & 1); };
      auto differs = [&](int d) { return fixed(d) && m.sizes[d] != t->expected[d]; };
      bool any = false;
      for (int d = 0; d < t->rank; ++d) any |= differs(d);
      for (int d = 0; any && d < t->rank; ++d)
        if (differs(d) || (fixed(d) && m.sizes[d] > 1)) out.emplace_back(static_cast<int>(input), d);
    }
    return out;
  }

 private:
  LentDicts lent_;
  KeyList keys_;
  const TensorTest* TensorOf(const Node& node) const {
    for (int32_t i = node.first; i < node.last; ++i)
      if (p_.tests[i].kind == Kind::kTensor) return &p_.tensors[p_.tests[i].extra];
    return nullptr;
  }

  PyObject* Reach(const Node& node, size_t at) {
    MemberCache none;
    PyObject* from = node.parent >= 0 ? values_[node.parent] : nullptr;
    return values_[at] = Step(*p_.nodes[at].source, from, slots_, &none, &keys_);
  }

  Failure AtNode(const Node& node, size_t at) {
    PyObject* v = Reach(node, at);
    if (!v && !p_.Nothing(node)) return Missing(*p_.nodes[at].source);
    for (int32_t i = node.first; v && i < node.last; ++i)
      if (Failure f = AtTest(i, *p_.nodes[at].source, v); !f.text.empty()) return f;
    if (node.group < 0) return {};
    const Group& g = p_.groups[node.group];
    const auto of_entries = [](const Test& t) { return t.kind == Kind::kEntries; };
    const auto keys = p_.tests.begin();
    if (v && !PyDict_Check(v) && (g.first < g.last || std::any_of(keys + g.keys_first, keys + g.keys_last, of_entries)))
      return {p_.nodes[at].source->str(names_) + ": expected a dict, got " + ValueText(v),
              "",
              "",
              false,
              false,
              p_.nodes[at].source};
    for (int32_t i = g.keys_first; i < g.keys_last; ++i) {
      PyObject* keys = p_.tests[i].expected.get();
      if (p_.tests[i].kind == Kind::kEntries) {
        if (Failure f = AtEntries(i, *p_.nodes[at].source, v); !f.text.empty()) return f;
        continue;
      }
      if ((!v || PyDict_Check(v)) && !(v && PyODict_Check(v)) && !KeysMatch(v, keys))
        return KeysFailure(i, *p_.nodes[at].source, v);
    }
    for (int32_t l = g.first; l < g.last; ++l) {
      const Lookup& look = p_.lookups[l];
      PyObject* item = v ? DictLookup(v, p_.SourceOf(look).object) : nullptr;
      for (int32_t i = look.first; i < look.last; ++i)
        if (Failure f = AtTest(i, p_.SourceOf(look), item); !f.text.empty()) return f;
    }
    return {};
  }

  Failure AtEntries(int32_t i, const Source& s, PyObject* v) {
    Failure f{"", Text(p_.where[i]), "", false, false, &s};
    for (bool empty : {false, true}) {
      for (PyObject* name : EntryNames(p_.tests[i].expected.get(), empty)) {
        PyObject* item = v ? DictLookup(v, name) : nullptr;
        if (empty ? HasNoItems(item) : !item) continue;
        const std::string text = EntryText(s, name, names_);
        f.text = !empty ? WasAbsent(text, item) : item ? WasEmpty(text, item) : NotThere(text);
        return f;
      }
    }
    return {};
  }

  static std::string NotThere(const std::string& name) { return name + ": not there (any more)"; }
  static std::string WasAbsent(const std::string& name, PyObject* v) {
    return name + ": was not there, now is " + ValueText(v);
  }
  static std::string WasEmpty(const std::string& name, PyObject* v) {
    return name + ": was empty, now is " + ValueText(v) + ", length " + Num(std::max<Py_ssize_t>(0, LengthOf(v)));
  }

  Failure Missing(const Source& s) { return {NotThere(s.str(names_)), "", "", false, false, &s}; }

  Failure KeysFailure(int32_t i, const Source& s, PyObject* v) {
    std::string expected;
    PyObject* keys = p_.tests[i].expected.get();
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(keys) && k < 9; ++k)
      expected += k == 8 ? ", ..." : (k ? ", " : "") + ValueText(PyTuple_GET_ITEM(keys, k));
    return {s.str(names_) + ": expected the keys [" + expected + "] in this order, got " + (v ? KeysText(v) : "none"),
            Text(p_.where[i]),
            "",
            false,
            false,
            &s};
  }

  Failure AtTest(int32_t i, const Source& s, PyObject* v) {
    Test& t = p_.tests[i];
    if (p_.Holds(t, v, symbols_.data())) return {};
    if (!v) return Missing(s);
    std::string name = s.str(names_);
    Failure f{"", Text(p_.where[i]), "", false, false, &s};
    PyObject* e = t.expected.get();
    std::string dead = t.expected.dead() ? "an object that no longer exists" : "";
    auto differ = [&](const std::string& what, const std::string& expected, const std::string& got) {
      f.text = name + what + ": expected " + expected + ", got " + got;
    };
    switch (t.kind) {
      case Kind::kIs:
        differ("", dead.empty() ? ValueText(e) : dead, ValueText(v));
        if (dead.empty() && ValueText(e) == ValueText(v)) f.text += " (another one)";
        break;
      case Kind::kTypeIs:
        differ(": type", dead.empty() ? ValueText(e) : dead, ValueText(reinterpret_cast<PyObject*>(Py_TYPE(v))));
        break;
      case Kind::kEqual:
        if (t.extra >= 0) {
          f.text = name + ": the set has other items";
          break;
        }
        differ("", ValueText(e), ValueText(v));
        if (ValueText(e) == ValueText(v)) f.text += " (of type " + std::string(Py_TYPE(v)->tp_name) + ")";
        f.integer = e && Py_TYPE(e) == Py_TYPE(v) && (PyLong_CheckExact(e) || PyFloat_CheckExact(e));
        if (f.integer) f.hint = "pass a number that changes as a tensor, or set dynamic=True";
        break;
      case Kind::kAbsent: f.text = WasAbsent(name, v); break;
      case Kind::kLength: differ(": length", Num(t.number), Num(LengthOf(v))); break;
      case Kind::kLeaf:
        f.text = name + (t.number ? ": was made by an operation with gradients and no view, now it is otherwise"
                                  : ": was a leaf, now an operation with gradients made it");
        break;
      case Kind::kNoHooks: f.text = name + ": had no hooks on its gradient, now it has"; break;
      case Kind::kNoItems: f.text = WasEmpty(name, v); break;
      case Kind::kKeys: return KeysFailure(i, s, v);
      case Kind::kTypeVersion:
        f.text = name + (t.expected.Is(v) ? ": the class, or one of its bases, was changed" : ": another class");
        f.hint = "change classes before the first call";
        break;
      case Kind::kFunction: {
        auto* function = reinterpret_cast<PyFunctionObject*>(v);
        const FunctionTest& test = *p_.functions[t.extra];
        const bool code = PyFunction_Check(v) && function->func_code == test.code.get();
        f.text = name + (!code                                     ? ": the function's code changed"
                         : SaysDisabled(function) != test.disabled ? ": the function was disabled, or is no longer"
                                                                   : ": the function's defaults changed");
        break;
      }
      case Kind::kTensor: return TensorFailure(std::move(f), name, p_.tensors[t.extra], v);
      case Kind::kIntSymbol: differ("", "an int" + Range(p_.symbol_info[t.number]), ValueText(v)); break;
      case Kind::kFloatSymbol: differ("", "a float", ValueText(v)); break;
      case Kind::kFloatCompare: {
        static constexpr const char* kOps[] = {"<", "<=", "==", "!=", ">", ">="};
        f.text = name + ": expected " + (t.number >> 3 ? "" : "not ") + kOps[t.number & 7] + " " + ValueText(e) +
                 ", got " + ValueText(v);
        break;
      }
      default: f.text = name + ": " + KindText(t.kind);
    }
    return f;
  }

  static std::string Range(const shape::SymbolInfo& info) {
    std::string out;
    if (info.min > INT64_MIN && info.min != 0) out += " >= " + Num(info.min);
    if (info.max < INT64_MAX) out += (out.empty() ? " <= " : " and <= ") + Num(info.max);
    return out;
  }

  Failure TensorFailure(Failure f, const std::string& name, const TensorTest& t, PyObject* v) {
    auto differ = [&](const std::string& what, const std::string& expected, const std::string& got) {
      f.text = name + what + ": expected " + expected + ", got " + got;
      return f;
    };
    tensor::Class c = tensor::Classify(v);
    if (c != t.klass) return differ("", ClassText(t.klass), c == tensor::Class::kNone ? ValueText(v) : ClassText(c));
    tensor::Meta m;
    const char* why = "an unsupported kind of tensor";
    if (!tensor::ReadForGuard(v, &m) && !tensor::ReadOpaque(v, &m, &why)) return differ("", "a plain tensor", why);
    if (IsOpaque(t.device) || IsOpaque(m.device)) {
      const auto form = [](Device d) { return IsOpaque(d) ? tensor::FormText(d) : std::string("a dense tensor"); };
      if (!(m.device == t.device)) return differ("", form(t.device), form(m.device));
    }
    if (m.dtype != t.dtype) return differ(".dtype", std::string(DTypeName(t.dtype)), std::string(DTypeName(m.dtype)));
    if (!(m.device == t.device)) return differ(".device", DeviceName(t.device), DeviceName(m.device));
    if (m.rank != t.rank) return differ(".dim()", Num(t.rank), Num(m.rank));
    if (m.requires_grad != t.requires_grad)
      return differ(".requires_grad", t.requires_grad ? "True" : "False", m.requires_grad ? "True" : "False");
    if (const tensor::TorchApi* api = tensor::bound_torch)
      for (const auto& [key, what] : {std::pair(api->conj_key, ".is_conj()"), std::pair(api->neg_key, ".is_neg()")})
        if ((m.key_set ^ t.key_set) & key)
          return differ(what, t.key_set & key ? "True" : "False", m.key_set & key ? "True" : "False");
    if (m.key_set != t.key_set) {
      f.hint = "inference-mode tensors, views made under functorch and the like are compiled apart";
      return differ(": dispatch keys", Hex(t.key_set), Hex(m.key_set));
    }
    if (t.klass == tensor::Class::kTorchSubclass && tensor::AsksItsClass(v))
      return differ("", "a wrapper that has sizes", "one whose class is asked for them");
    // Symbols were bound as far as Holds() got. They are bound again in order to name the dimension.
    std::vector<int64_t> bound(symbols_);
    for (int i = 0; i < 2 * t.rank; ++i) {
      int64_t found = i < t.rank ? m.sizes[i] : m.strides[i - t.rank];
      int d = i % t.rank;
      const TensorTest::Dim* dim = nullptr;
      for (const auto& [at, x] : t.symbolic)
        if (at == i) dim = &x;
      if (dim && dim->symbol < 0) continue;
      int64_t expected = dim ? bound[dim->symbol] : t.expected[i];
      std::string text = Num(expected);
      if (dim) {
        const shape::SymbolInfo& info = p_.symbol_info[dim->symbol];
        if (BindSymbol(info, dim->binds, found, &bound[dim->symbol])) continue;
        if (dim->binds)
          text = "a size" + Range(info);
        else
          text.insert(0, "s" + Num(dim->symbol) + " = ");
      } else if (found == expected) {
        continue;
      }
      f.symbol = i < t.rank && dim && dim->binds;
      f.size = i < t.rank && !dim && t.klass != tensor::Class::kTorchParameter;
      if (f.size && expected > 1 && found > 1) {
        const bool nameless = name.starts_with("slot[");  // a value on the stack: the program has no name for it
        f.hint = nameless ? "dynamic=True" : "framejit.mark_dynamic(" + name + ", " + Num(d) + ") or dynamic=True";
      }
      const bool numpy = t.klass == tensor::Class::kNumpyArray || t.klass == tensor::Class::kNumpyScalar ||
                         t.klass == tensor::Class::kCupyArray;
      const char* size = numpy ? ".shape[" : ".size(";
      const char* stride = numpy ? ".strides[" : ".stride(";
      if (i >= t.rank && f.hint.empty()) f.hint = "pass tensors of one memory layout, for example .contiguous()";
      return differ((i < t.rank ? size : stride) + Num(d) + (numpy ? "]" : ")"), text, Num(found));
    }
    return differ("", "the tensor as it was", "another");
  }

  Failure Relations() {
    std::span<const int64_t> values(symbols_);
    auto bindings = [&] {
      std::string out;
      for (size_t i = 0; i < symbols_.size(); ++i)
        out += (i ? ", " : "") + ("s" + Num(i)) + " = " + Num(symbols_[i]) + " (" + p_.symbol_info[i].name + ")";
      return out;
    };
    for (const shape::Guard& g : p_.shape_guards)
      if (!g.Holds(values)) return {"sizes: " + g.str() + " does not hold for " + bindings(), g.where, ""};
    for (size_t n = 0; n < p_.nodes.size(); ++n) {
      const TensorTest* t = TensorOf(p_.nodes[n]);
      tensor::Meta m;
      if (!t || !t->symbolic_mask || !values_[n] || !tensor::ReadForGuard(values_[n], &m)) continue;
      for (const auto& [at, dim] : t->symbolic) {
        int64_t found = at < t->rank ? m.sizes[at] : m.strides[at - t->rank];
        if (dim.symbol == TensorTest::kExpression && dim.expression.Eval(values) != found)
          return {p_.nodes[n].source->str(names_) + (at < t->rank ? ".size(" : ".stride(") + Num(at % t->rank) +
                      "): expected " + dim.expression.str() + " = " + Num(dim.expression.Eval(values)) + ", got " +
                      Num(found),
                  "", at < t->rank ? "" : "pass tensors of one memory layout, for example .contiguous()"};
      }
    }
    for (const Relation& r : p_.relations) {
      PyObject *a = values_[r.a], *b = values_[r.b];
      std::string pair = Pair(r.a, r.b);
      if (r.kind == Kind::kSameObject && a != b) return {pair + ": were one object, now are two", Text(r.where), ""};
      if (r.kind == Kind::kDifferentObject && a == b)
        return {pair + ": were two objects, now are one", Text(r.where), ""};
    }
    for (size_t i = 0; i < p_.distinct.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (values_[p_.distinct[i]] == values_[p_.distinct[j]])
          return {Pair(p_.distinct[j], p_.distinct[i]) + ": were two objects, now are one", "", ""};
    for (size_t i = 0; i < p_.apart.size(); ++i)
      for (size_t j = 0; j < i; ++j) {
        const auto &a = p_.apart[j], &b = p_.apart[i];
        if ((a.written || b.written) && MemoryOverlaps(values_[a.node], values_[b.node]))
          return {Pair(a.node, b.node) + ": share memory, and one of them is written to", Text(b.where),
                  "pass a copy of one of them"};
      }
    return {};
  }

  std::string Pair(int32_t a, int32_t b) const {
    return p_.nodes[a].source->str(names_) + " and " + p_.nodes[b].source->str(names_);
  }

  Program& p_;
  PyObject* const* slots_;
  PyObject* names_;
  std::vector<PyObject*> values_;
  std::vector<int64_t> symbols_;
};

std::string Program::Explain(PyObject* const* slots, PyObject* varnames) {
  Explainer::Failure f = Explainer(*this, slots, varnames).First();
  if (!f.text.empty() && !f.where.empty()) f.text += " (" + f.where + ")";
  if (!f.hint.empty()) f.text += "; to avoid it: " + f.hint;
  return f.text;
}

std::vector<std::pair<int, int>> Program::DynamicCandidates(PyObject* const* slots) {
  Explainer explainer(*this, slots, nullptr);
  if (explainer.Emptied()) return {{-1, -1}};
  return explainer.Candidates();
}

std::vector<std::string> Program::DynamicInts(PyObject* const* slots) {
  return Explainer(*this, slots, nullptr).Numbers();
}

std::vector<std::string> Program::Describe(PyObject* varnames) const {
  std::vector<std::string> out;
  auto where = [](const std::string& w) { return w.empty() ? "" : "  # " + w; };
  auto test_text = [&](int32_t i) -> std::string {
    const Test& t = tests[i];
    std::string text = KindText(t.kind);
    switch (t.kind) {
      case Kind::kIs:
      case Kind::kTypeIs:
      case Kind::kEqual: text += " " + (t.expected.get() ? ValueText(t.expected.get()) : "<dead object>"); break;
      case Kind::kLength: text += " " + Num(t.number); break;
      case Kind::kApart: text += t.number ? ", written" : ""; break;
      case Kind::kKeys: text += " " + ValueText(t.expected.get()); break;
      case Kind::kIntSymbol:
      case Kind::kFloatSymbol: text += " s" + Num(t.number); break;
      case Kind::kTypeVersion:
        for (const auto& item : types[t.extra].attributes) text += " ." + ValueText(item.name.get());
        break;
      case Kind::kTensor: {
        const TensorTest& x = tensors[t.extra];
        text += std::string(" ") + ClassText(x.klass) + " " + std::string(DTypeName(x.dtype)) + DimsText(x, 0) +
                " strides " + DimsText(x, x.rank) + " " + DeviceName(x.device) +
                (x.requires_grad ? " requires_grad" : "");
        break;
      }
      default: break;
    }
    return text + where(Text(this->where[i]));
  };
  if (torch_state)
    out.push_back("torch state: " + tensor::DescribeTorchState(*torch_state) + where(Text(torch_state_where)));
  if (numpy_state) out.push_back("numpy state" + where(Text(numpy_state_where)));
  std::vector<int> depth(nodes.size());
  std::vector<const Lookup*> found_by(nodes.size());
  for (const Lookup& l : lookups)
    if (l.has_node()) found_by[l.node] = &l;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const Node& node = nodes[n];
    depth[n] = node.parent >= 0 ? depth[node.parent] + 1 : 0;
    std::string indent(2 * depth[n], ' '), name = nodes[n].source->str(varnames);
    std::vector<int32_t> mine;
    for (int32_t i = node.first; i < node.last; ++i) mine.push_back(i);
    if (const Lookup* l = found_by[n])
      for (int32_t i = l->first; i < l->last; ++i) mine.push_back(i);
    for (int32_t i : mine) out.push_back(indent + name + ": " + test_text(i));
    if (mine.empty()) out.push_back(indent + name);
    if (node.group < 0) continue;
    const Group& g = groups[node.group];
    for (int32_t i = g.keys_first; i < g.keys_last; ++i)
      for (bool empty : {false, true})
        if (tests[i].kind == Kind::kEntries)
          for (PyObject* entry : EntryNames(tests[i].expected.get(), empty))
            out.push_back(indent + "  " + EntryText(*node.source, entry, varnames) + ": " +
                          KindText(empty ? Kind::kNoItems : Kind::kAbsent) + where(Text(this->where[i])));
    for (int32_t l = g.first; l < g.last; ++l)
      for (int32_t i = lookups[l].first; !lookups[l].has_node() && i < lookups[l].last; ++i)
        out.push_back(indent + "  " + SourceOf(lookups[l]).str(varnames) + ": " + test_text(i));
  }
  for (const Relation& r : relations)
    out.push_back(nodes[r.a].source->str(varnames) + ", " + nodes[r.b].source->str(varnames) + ": " + KindText(r.kind) +
                  where(Text(r.where)));
  for (const shape::Guard& g : shape_guards) out.push_back("sizes: " + g.str() + where(g.where));
  return out;
}

}  // namespace framejit::guard
