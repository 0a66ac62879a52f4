// Tensors and numbers of the program as the session sees them: proxies, symbols, the guards of what came from outside.
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "capture/override.h"
#include "capture/policy/rounds.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/wrappers/overrides.h"
#include "graph/opaque.h"
#include "guard/versions.h"
#include "tensor/import.h"
#include "tensor/opaque.h"
#include "tensor/overrides.h"

namespace framejit::capture {
namespace {

// This is what framejit.mark_dynamic and mark_static said of the sizes of a tensor.
struct Mark {
  enum Kind : uint8_t { kNone, kDynamic, kStatic } kind = kNone;
  int64_t min = 0, max = INT64_MAX;
};

std::vector<Mark> MarksOf(PyObject* o, int rank) {
  std::vector<Mark> marks(rank);
  static PyObject* marks_of = nullptr;
  static PyObject* all = nullptr;  // what is marked at all
  if (all && !PyDict_GET_SIZE(all)) return marks;
  SuspendScope off;
  if (!marks_of) {  // no lock is held: the import may let another thread in
    Ref control(tensor::Import("framejit._control"));
    Ref map(control ? PyObject_GetAttrString(control.get(), "_marks") : nullptr);
    Ref entries(map ? PyObject_GetAttrString(map.get(), "_entries") : nullptr);
    if (entries && PyDict_CheckExact(entries.get())) all = entries.release();
    marks_of = control ? PyObject_GetAttrString(control.get(), "marks_of") : nullptr;
    if (!marks_of || !all) PyErr_Clear();
  }
  Ref found(marks_of ? PyObject_CallOneArg(marks_of, o) : nullptr);
  if (!found) PyErr_Clear();
  if (!found || !PyDict_Check(found.get())) return marks;
  PyObject *dim, *mark;  // {dim: ("dynamic", min, max) or ("static",)}
  for (Py_ssize_t at = 0; PyDict_Next(found.get(), &at, &dim, &mark);) {
    long i = PyLong_AsLong(dim);
    if (i < 0 || i >= rank) continue;
    Mark& m = marks[i];
    m.kind = PyTuple_GET_SIZE(mark) == 3 ? Mark::kDynamic : Mark::kStatic;
    if (m.kind == Mark::kStatic) continue;
    if (PyObject* low = PyTuple_GET_ITEM(mark, 1); low != Py_None) m.min = PyLong_AsLongLong(low);
    if (PyObject* high = PyTuple_GET_ITEM(mark, 2); high != Py_None) m.max = PyLong_AsLongLong(high);
  }
  if (PyErr_Occurred()) PyErr_Clear();
  return marks;
}

// Strides that follow from the sizes (that of another dimension times its size: of one to the right, where there is
// one) are written as expressions of them.
shape::Ints StridesBySizes(const shape::Env& env, const shape::Ints& sizes, std::span<const int64_t> strides) {
  const int rank = static_cast<int>(sizes.size());
  if (std::all_of(sizes.begin(), sizes.end(), [](shape::Int e) { return e.is_const(); }))
    return {strides.begin(), strides.end()};
  std::vector<int> order(rank);  // The smallest stride comes first, and of equal ones the last.
  for (int i = 0; i < rank; ++i) order[i] = rank - 1 - i;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return strides[a] < strides[b]; });
  shape::Ints out(strides.begin(), strides.end());
  std::vector<bool> known(rank);
  for (int i : order) {
    const auto follows = [&](int j) {
      if (!known[j]) return false;
      const shape::Int e = out[j] * sizes[j];
      if (e.is_const() || env.Hint(e) != strides[i]) return false;
      out[i] = e;
      return true;
    };
    bool found = false;
    for (int j = i + 1; !found && j < rank; ++j) found = follows(j);
    for (int j = i - 1; !found && j >= 0; --j) found = follows(j);
    known[i] = true;
  }
  return out;
}

// Is it what a call is given, itself or in containers? What objects hold are settings more often than sizes.
bool IsGiven(const Source* s) {
  while (s->base && (s->kind == SourceKind::kItem || s->kind == SourceKind::kDictItem)) s = s->base;
  return s->kind == SourceKind::kSlot;
}

// Is it an argument, itself or in containers?
bool IsArgument(const Source* s, const PyCodeObject* code) {
  while (s->base) s = s->base;
  const int many = (code->co_flags & CO_VARARGS ? 1 : 0) + (code->co_flags & CO_VARKEYWORDS ? 1 : 0);
  return s->index < code->co_argcount + code->co_kwonlyargcount + many;
}

// May the graph write to this tensor with gradients? An operation made it, it is no view, and nobody waits for what is
// given to it.
bool MayOverwrite(PyObject* o) {
  SuspendScope off;
  return tensor::HasHistory(o) && !tensor::IsView(o) && !tensor::HasHooks(o);
}

}  // namespace

PyObject* Session::SymbolOf(PyObject* number, const Source* s) {
  const bool is_float = options_.dynamic_floats && PyFloat_CheckExact(number);
  const bool counts = Counting::now && Counting::now->source == s;
  const bool guessed = options_.given_ints && IsGiven(s) && IsArgument(s, fj_code(root_));
  const bool given = (options_.dynamic == 1 || guessed) && !is_float && IsGiven(s);
  const auto& dynamic = options_.dynamic_ints;
  if ((dynamic.empty() && !counts && !given) || !(is_float || PyLong_CheckExact(number))) return nullptr;
  if (is_float && std::isnan(PyFloat_AS_DOUBLE(number))) return nullptr;  // it matters which object it is
  if (auto known = numbers_->Float(s)) return NewSymFloat(this, *known, s);
  if (auto known = numbers_->Int(s)) return NewSymInt(this, *known, s);
  const bool changed = counts || dynamic.contains(s->str());
  if (!changed && !given) return nullptr;
  const std::string name = s->str(fj_code(root_)->co_localsplusnames);
  if (is_float) return NewSymFloat(this, numbers_->NewFloat(s, number, name), s);
  int overflow;
  int64_t value = PyLong_AsLongLongAndOverflow(number, &overflow);
  // 0 means too much to programs to be any number, and so does 1 as long as there was no other one.
  if (overflow || value < 1 + !changed) return nullptr;
  guessed_symbols |= !changed && options_.dynamic != 1;
  return NewSymInt(this, numbers_->NewInt(s, value, name), s);
}

PyObject* Session::SymFloatObject(FloatOp op) {
  const std::optional<uint32_t> symbol = options_.dynamic_floats ? numbers_->Computed(op) : std::nullopt;
  return symbol ? NewSymFloat(this, *symbol) : nullptr;
}

// Torch computes with it as with a plain tensor. But an attribute of the class's own may stand in front of one of
// Tensor's, and the rows know Tensor's.
bool Session::NoteQuiet(PyObject* o, const Source* s) {
  // torch's functions ask the object, not its class.
  static PyObject* const function_name = Interned("__torch_function__");
  if (PyObject* dict = guard::InstanceDict(o); dict && PyDict_Contains(dict, function_name))
    return Break(BreakId::kSubclass, "a __torch_function__ of one tensor"), false;
  guards_->Absent(
      guards_->Child(SourceKind::kDictItem, guards_->Child(SourceKind::kInstanceDict, s), 0, function_name));
  if (tensor::Overrides(Py_TYPE(o))) {
    guards_->TypeIs(s, Py_TYPE(o));
    return tensor::OverridesOff::seen = OverridesFit(*this, Py_TYPE(o));
  }
  PyTypeObject* type = Py_TYPE(o);
  if (!QuietFits(*this, type)) return false;
  guards_->TypeIs(s, type);
  return NoteType(type);
}

PyObject* Session::TensorInput(PyObject* o, const Source* s, tensor::Class c) {
  if (kernels.ChangedMemory(o))
    return Break(BreakId::kSideEffect, "a tensor that an operator in Python may have changed is read behind it");
  tensor::Meta m;
  const char* why = nullptr;
  {  // torch may make a view's node anew now, and ask Python where it is (in anomaly mode)
    SuspendScope off;
    if (!tensor::ReadAny(o, &m, &why) && !tensor::ReadOpaque(o, &m, &why))
      return Break(BreakId::kUnsupportedTensor, why ? why : "");
  }
  if (tensor::IsQuiet(c) && !NoteQuiet(o, s)) return nullptr;
  TensorMeta meta;
  bool torch = tensor::IsPlainTorch(c);
  const bool cupy = c == tensor::Class::kCupyArray;
  if (!libraries.Use(*this, torch ? Library::kTorch : cupy ? Library::kCupy : Library::kNumpy)) return nullptr;
  meta.framework = torch ? Framework::kTorch : Framework::kNumpy;
  meta.dtype = m.dtype;
  meta.device = m.device;
  meta.requires_grad = m.requires_grad;
  meta.is_parameter = tensor::IsParameter(c);
  meta.is_scalar = c == tensor::Class::kNumpyScalar;
  meta.is_inference = m.is_inference;
  meta.conj = m.conj, meta.neg = m.neg;
  meta.read_only = !torch && m.key_set != 0;
  std::string name = s->str(fj_code(root_)->co_localsplusnames, &texts_);
  std::vector<Mark> marks = MarksOf(o, m.rank);
  shape::Ints sizes;
  for (int i = 0; i < m.rank; ++i) {
    bool symbolic = (options_.dynamic == 1 && !meta.is_parameter && m.sizes[i] > 1) ||
                    (!options_.dynamic_dims.empty() && options_.dynamic_dims.contains({name, i}));
    if (IsOpaque(m.device)) symbolic = false, marks[i].kind = Mark::kStatic;
    // A size of 0 or 1 means something else to the program (empty, broadcast) than any other one.
    symbolic = symbolic || (marks[i].kind == Mark::kDynamic && options_.dynamic != 0 && m.sizes[i] > 1);
    symbolic = symbolic && m.sizes[i] && marks[i].kind != Mark::kStatic && m.sizes[i] >= marks[i].min &&
               m.sizes[i] <= marks[i].max;
    if (symbolic) {
      shape::SymbolInfo info;
      info.name = name + ".size(" + std::to_string(i) + ")";
      info.hint = m.sizes[i];
      info.min = std::max<int64_t>(1, marks[i].min);  // strides of what is empty follow other rules
      info.max = marks[i].max;
      sizes.push_back(env_.NewSymbol(info));
    } else {
      sizes.push_back(m.sizes[i]);
    }
  }
  meta.sizes = sizes;
  meta.strides = StridesBySizes(env_, sizes, std::span(m.strides, m.rank));
  const bool writable = IsOpaque(m.device) ? false
                        : torch ? !m.requires_grad || (options_.derivatives && m.has_grad_fn && MayOverwrite(o))
                                : !(m.key_set & tensor::kReadOnly);
  TraceId id = lowering_->AddInput(meta, name, writable);
  guard::Row row{guard::Kind::kTensor, s};
  row.tensor = std::make_shared<guard::TensorExpect>(meta, m.key_set, tensor::IsQuiet(c));
  row.here = true;
  guards_->Add(std::move(row));
  input_sources_.push_back(s);
  input_tensors_.push_back(o);
  PyObject* proxy = NewProxy(id);
  if (!proxy) return nullptr;
  Origin origin;
  origin.kind = Origin::kOutside;
  origin.source = s;
  origin.proxy = proxy;
  origins_.Enter(o, origin);
  Py_INCREF(o);
  keep_.emplace_back(o);
  return proxy;
}

PyObject* Session::AskedInput(PyObject* o, const Source* s, const TensorMeta& meta, const std::string& name) {
  TensorMeta fixed = meta;
  fixed.read_only |= meta.framework == Framework::kTorch;
  const TraceId id = lowering_->AddInput(fixed, name, false);
  input_sources_.push_back(s);
  input_tensors_.push_back(o);
  Py_INCREF(o);
  keep_.emplace_back(o);
  return NewProxy(id);
}

bool Libraries::Use(Session& s, Library l) {
  static constexpr const char* kNames[] = {"", "torch", "NumPy", "CuPy"};
  const bool cupy = l == Library::kCupy || last == Library::kCupy;
  if (cupy && last != Library::kNone && last != l)
    return s.Break(BreakId::kUnsupportedTensor, std::string("tensors of ") + kNames[static_cast<int>(last)] +
                                                    " and of " + kNames[static_cast<int>(l)] + " in one graph"),
           false;
  last = l;
  torch |= l == Library::kTorch;
  numpy |= l == Library::kNumpy;
  return true;
}

PyObject* Session::NewProxy(TraceId id) {
  auto it = proxies_.find(id);
  if (it == proxies_.end()) {
    PyObject* p = NewTensorProxy(this, id);
    if (!p) return nullptr;
    keep_.emplace_back(p);
    it = proxies_.emplace(id, p).first;
  }
  Py_INCREF(it->second);
  return it->second;
}

void Session::Rebind(PyObject* proxy, TraceId now) {
  const TraceId original = pending_.Original(AsTensor(proxy)->id);
  if (trace_.tensors[original].input >= 0) pending_.rebound[now] = original;
  proxies_[now] = proxy;
  AsTensor(proxy)->id = now;
}

PyObject* Session::SymIntObject(shape::Int e) {
  if (auto c = e.as_const()) return PyLong_FromLongLong(*c);
  return NewSymInt(this, e);
}

}  // namespace framejit::capture
