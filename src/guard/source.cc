#include "guard/source.h"

#include <structmember.h>

#include <algorithm>

#include "diag/diag.h"
#include "guard/own_values.h"
#include "guard/program.h"
#include "guard/versions.h"
#include "tensor/import.h"
#include "tensor/numpy_api.h"
#include "tensor/overrides.h"
#include "tensor/tensor.h"

namespace framejit::guard {

Expected::Expected(PyObject* o, bool weakly) : object_(o) {
  if (o && weakly && PyType_SUPPORTS_WEAKREFS(Py_TYPE(o))) {
    ref_ = Ref(PyWeakref_NewRef(o, nullptr));
    weak_ = static_cast<bool>(ref_);
    if (!weak_) PyErr_Clear();
  }
  if (!ref_) ref_ = Ref::Borrow(o);
}

SourcePool::~SourcePool() {
  for (Source& s : sources_) Py_XDECREF(s.object);
}

const Source* SourcePool::Intern(SourceKind kind, const Source* base, int index, PyObject* object) {
  size_t hash = reinterpret_cast<size_t>(base) * 31 + reinterpret_cast<size_t>(object) / 16;
  hash = (hash ^ hash >> 17 ^ static_cast<size_t>(kind) << 40 ^ static_cast<size_t>(index) << 20) * 0x9E3779B97F4A7C15u;
  const auto next = static_cast<uint32_t>(sources_.size());
  const uint32_t id = index_.FindOrEnter(hash ^ hash >> 29, next, [&](uint32_t i) {
    const Source& s = sources_[i];
    return s.kind == kind && s.base == base && s.index == index && s.object == object;
  });
  if (id != next) return &sources_[id];
  Py_XINCREF(object);
  return &sources_.emplace_back(Source{base, object, index, next, kind});
}

void SourcePool::Weaken() {
  index_.Clear();  // addresses of objects that may die are no keys
  for (Source& s : sources_) {
    if (s.kind != SourceKind::kConst || s.index == 1) continue;
    Expected e(s.object);
    if (!e.weak()) continue;
    PyObject* weak = Py_NewRef(e.held());
    s.index = 1;
    Py_DECREF(std::exchange(s.object, weak));
  }
}

static bool IsTensorObject(PyObject* o) {
  return tensor::IsPlainTorch(tensor::Classify(o));
}

// Is it a number, say, of a class of C that holds nothing else?
static bool ComparesInCAlone(PyObject* o) {
  return !(Py_TYPE(o)->tp_flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_HAVE_GC));
}

// Are both such, or tuples of such (named ones perhaps), so that C decides whether they are equal although they may be
// of other types (1 and 1.0)?
static bool DecidedInC(PyObject* a, PyObject* b) {
  const auto plain = [](PyObject* o) {
    if (!PyTuple_Check(o)) return ComparesInCAlone(o);
    PyObject* const* items = reinterpret_cast<PyTupleObject*>(o)->ob_item;
    return Py_TYPE(o)->tp_richcompare == PyTuple_Type.tp_richcompare &&
           std::all_of(items, items + PyTuple_GET_SIZE(o), ComparesInCAlone);
  };
  return plain(a) && plain(b);
}

int64_t PlacesOfCopy(PyObject* set) {
  const auto* so = reinterpret_cast<PySetObject*>(set);
  return so->used > 1 && so->fill == so->used ? so->mask + 1 : 0;
}

bool HashesInC(PyObject* o) {
  if (!PyTuple_Check(o)) return ComparesInCAlone(o) || IsText(o) || (PyType_Check(o) && ComparesByIdentity(o));
  PyObject* const* items = reinterpret_cast<PyTupleObject*>(o)->ob_item;
  return Py_TYPE(o)->tp_hash == PyTuple_Type.tp_hash && std::all_of(items, items + PyTuple_GET_SIZE(o), HashesInC);
}

// By its hash, as CPython finds it; but a key of the user's own class with that hash would have its __eq__ called.
PyObject* DictLookup(PyObject* dict, PyObject* key) {
  if (!dict || !PyDict_Check(dict)) return nullptr;
  const bool text = IsText(key);
  if (fj_keys_are_texts(dict)) {
    PyObject* v = text ? PyDict_GetItemWithError(dict, key) : nullptr;
    if (!v && PyErr_Occurred()) PyErr_Clear();
    return v;
  }
  PyObject *found, *value;
  bool foreign = false;
  const auto compares_in_python = [](PyObject* o) {
    return Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE && !ComparesByIdentity(o);
  };
  const bool by_identity = ComparesByIdentity(key), own_hash = Py_TYPE(key)->tp_hash != PyBaseObject_Type.tp_hash;
  const Py_hash_t hash = HashesInC(key) || (by_identity && !own_hash) ? PyObject_Hash(key) : -1;
  if (hash == -1) {
    PyErr_Clear();
    for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &found, &value);) {
      if (SameKey(found, key)) return value;
      foreign = foreign || (by_identity && compares_in_python(found));
    }
    return foreign ? Py_NotImplemented : nullptr;
  }
  for (FjOfHash of{}; fj_next_of_hash(dict, hash, &of, &found, &value);) {
    if (SameKey(found, key) || (text && IsText(found) && PyUnicode_Compare(found, key) == 0)) return value;
    if (foreign) continue;
    if (!by_identity && DecidedInC(found, key)) {
      const int equal = PyObject_RichCompareBool(found, key, Py_EQ);
      if (equal == 1) return value;
      if (equal < 0) PyErr_Clear();
    } else {
      foreign = compares_in_python(found) || (PyTuple_Check(found) && PyTuple_Check(key));
    }
  }
  // One of those may say that it is equal. Neither absent nor anything that is expected there:
  return foreign ? Py_NotImplemented : nullptr;
}

bool IsText(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return PyUnicode_Check(o) && t->tp_hash == PyUnicode_Type.tp_hash &&
         t->tp_richcompare == PyUnicode_Type.tp_richcompare;
}

bool IsDeque(PyObject* o) {
  static PyObject* const type = [] {
    Ref module(tensor::Import("_collections"));
    PyObject* deque = module ? PyObject_GetAttrString(module.get(), "deque") : nullptr;
    if (!deque) PyErr_Clear();
    return deque;
  }();
  return reinterpret_cast<PyObject*>(Py_TYPE(o)) == type;
}

bool ComparesByIdentity(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  if (t->tp_richcompare != PyBaseObject_Type.tp_richcompare) return false;
  return t->tp_hash == PyBaseObject_Type.tp_hash || tensor::IsTorchOperator(o);  // whose hash stays, too
}

namespace {

// What may be made anew for each question, held until it was looked at.
PyObject* Kept(PyObject* value) {
  static thread_local PyObject* kept[32];
  static thread_local unsigned next = 0;
  if (!value) PyErr_Clear();
  PyObject*& slot = kept[next++ % 32];  // the macro may name it twice
  Py_XSETREF(slot, value);
  return value;
}

PyObject* Member(PyObject* base, PyObject* name, MemberCache* cache) {
  PyTypeObject* t = Py_TYPE(base);
  if (!cache->tag || cache->tag != t->tp_version_tag) {
    cache->tag = 0;
    PyObject* d = _PyType_Lookup(t, name);
    if (!d || !Py_IS_TYPE(d, &PyMemberDescr_Type) || !PyType_IsSubtype(t, PyDescr_TYPE(d))) return nullptr;
    PyMemberDef* m = reinterpret_cast<PyMemberDescrObject*>(d)->d_member;
    if (m->type != T_OBJECT && m->type != T_OBJECT_EX)  // a number, say, which is made into an object by asking
      return Kept(PyMember_GetOne(reinterpret_cast<const char*>(base), m));
    *cache = {TypeTag(t), m->offset, m->type == T_OBJECT};
  }
  PyObject* v = *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(base) + cache->offset);
  return v || !cache->object_or_none ? v : Py_None;
}

// What functions show by getters and by descriptors alike.
PyObject* FunctionMember(PyFunctionObject* f, PyObject* name) {
  const std::pair<const char*, PyObject*> members[] = {
      {"__code__", f->func_code},         {"__name__", f->func_name},
      {"__qualname__", f->func_qualname}, {"__module__", f->func_module},
      {"__globals__", f->func_globals},   {"__doc__", f->func_doc},
      {"__closure__", f->func_closure},   {"__annotations__", f->func_annotations}};
  for (auto& [text, value] : members)
    if (!PyUnicode_CompareWithASCIIString(name, text)) return value ? value : Py_None;
  return nullptr;
}

// What a class's getters in C say of it: __name__, __bases__.
PyObject* ClassFact(PyObject* type, PyObject* name) {
  PyObject* d = _PyType_Lookup(Py_TYPE(type), name);
  const bool c = d && (Py_IS_TYPE(d, &PyGetSetDescr_Type) || Py_IS_TYPE(d, &PyMemberDescr_Type));
  return c ? Kept(Py_TYPE(d)->tp_descr_get(d, type, reinterpret_cast<PyObject*>(Py_TYPE(type)))) : nullptr;
}

// The method of tensors that is asked as if it was a member.
bool IsTensorFact(PyObject* base, PyObject* name) {
  static PyObject* const offset = PyUnicode_InternFromString("storage_offset");
  return name == offset && (IsTensorObject(base) || tensor::IsWrapperClass(Py_TYPE(base)));
}

PyObject* TensorFact(PyObject* base, PyObject* name) {
  return tensor::OverridesFunctions(Py_TYPE(base)) ? nullptr : Kept(PyObject_CallMethodNoArgs(base, name));
}

// What a C getter or the current context hands out as a new reference is held by the tensor or the context, too.
PyObject* Unowned(PyObject* o) {
  Py_XDECREF(o);
  return o;
}

}  // namespace

PyObject* KeyList::At(PyObject* container, int index) {
  const bool dict = PyDict_Check(container);
  if (!dict && !PyAnySet_Check(container)) return nullptr;
  if (container != of_) of_ = container, at_ = 0, keys_.clear();
  PyObject *key, *value;
  Py_hash_t hash;
  while (std::ssize(keys_) <= index) {
    if (!(dict ? PyDict_Next(container, &at_, &key, &value) : SetNext(container, &at_, &key, &hash))) return nullptr;
    keys_.push_back(key);
  }
  return keys_[index];
}

PyObject* Step(SourceKind kind, int index, PyObject* object, PyObject* base, PyObject* const* slots,
               MemberCache* member, KeyList* keys) {
  if (kind == SourceKind::kSlot) return slots[index];
  if (kind == SourceKind::kConst) {
    if (index == 0) return object;
    PyObject* o = reinterpret_cast<PyWeakReference*>(object)->wr_object;
    return o == Py_None ? nullptr : o;
  }
  if (!base) return nullptr;
  auto* function = PyFunction_Check(base) ? reinterpret_cast<PyFunctionObject*>(base) : nullptr;
  switch (kind) {
    case SourceKind::kSlot:
    case SourceKind::kConst: break;
    case SourceKind::kInstanceDict: return InstanceDict(base);
    case SourceKind::kDictItem: return DictLookup(base, object);
    case SourceKind::kItem:
      if (PyTuple_Check(base)) return index < PyTuple_GET_SIZE(base) ? PyTuple_GET_ITEM(base, index) : nullptr;
      if (PyList_Check(base)) return index < PyList_GET_SIZE(base) ? PyList_GET_ITEM(base, index) : nullptr;
      if (tensor::IsObjectArray(base)) {
        const bool there = index < tensor::NumElements(base) && tensor::AsArray(base)->flags & tensor::kNpyInOrder;
        return there ? tensor::ObjectAt(base, index) : nullptr;
      }
      return IsDeque(base) && index < PySequence_Size(base) ? Ref(PySequence_GetItem(base, index)).get() : nullptr;
    case SourceKind::kCell: return PyCell_Check(base) ? PyCell_GET(base) : nullptr;
    case SourceKind::kClosure:
      if (!function || !function->func_closure || index >= PyTuple_GET_SIZE(function->func_closure)) return nullptr;
      return PyTuple_GET_ITEM(function->func_closure, index);
    case SourceKind::kDefaults: return function ? function->func_defaults : nullptr;
    case SourceKind::kKwDefaults: return function ? function->func_kwdefaults : nullptr;
    case SourceKind::kFuncDict: return function ? function->func_dict : nullptr;
    case SourceKind::kBoundSelf:
      if (PyMethod_Check(base)) return PyMethod_GET_SELF(base);
      return PyCFunction_Check(base) ? PyCFunction_GET_SELF(base) : nullptr;
    case SourceKind::kBoundFunc: return PyMethod_Check(base) ? PyMethod_GET_FUNCTION(base) : nullptr;
    case SourceKind::kMember:
      if (PyType_Check(base)) return ClassFact(base, object);
      if (!PyUnicode_Check(object)) return Kept(PyObject_CallOneArg(object, base));  // a function that is asked
      if (IsTensorFact(base, object)) return TensorFact(base, object);
      return function ? FunctionMember(function, object) : Member(base, object, member);
    case SourceKind::kType: return reinterpret_cast<PyObject*>(Py_TYPE(base));
    case SourceKind::kGrad: {
      if (!IsTensorObject(base)) return nullptr;
      static PyObject* const name = PyUnicode_InternFromString("grad");
      PyObject* grad = PyObject_GetAttr(base, name);  // a C getter
      if (!grad) PyErr_Clear();
      return Unowned(grad);
    }
    case SourceKind::kContextVar: {
      PyObject* value = nullptr;
      if (!PyContextVar_CheckExact(base) || PyContextVar_Get(base, nullptr, &value) < 0) PyErr_Clear();
      return Unowned(value);
    }
    case SourceKind::kAnswer: return Kept(object ? PyObject_CallObject(base, object) : nullptr);
    case SourceKind::kReferent: {
      PyObject* o = PyWeakref_CheckRef(base) ? PyWeakref_GET_OBJECT(base) : Py_None;
      return o == Py_None ? nullptr : o;
    }
    case SourceKind::kKey: return keys->At(base, index);
  }
  return nullptr;
}

std::string ValueText(PyObject* o) {
  if (!o) return "nothing";
  bool plain = o == Py_None || o == Py_Ellipsis || PyBool_Check(o) || PyLong_CheckExact(o) || PyFloat_CheckExact(o) ||
               PyComplex_CheckExact(o) || PyUnicode_CheckExact(o) || PyBytes_CheckExact(o);
  std::string text;
  if (plain) {
    Ref r(PyObject_Repr(o));
    const char* utf8 = r ? PyUnicode_AsUTF8(r.get()) : nullptr;
    if (!utf8) PyErr_Clear();
    text = utf8 ? utf8 : std::string("<") + Py_TYPE(o)->tp_name + ">";
  } else if (PyTuple_CheckExact(o) && PyTuple_GET_SIZE(o) <= 16) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) text += (i ? ", " : "") + ValueText(PyTuple_GET_ITEM(o, i));
    text = "(" + text + (PyTuple_GET_SIZE(o) == 1 ? ",)" : ")");
  } else if (PyType_Check(o)) {
    text = std::string("class ") + reinterpret_cast<PyTypeObject*>(o)->tp_name;
  } else if (PyFunction_Check(o) || PyModule_CheckExact(o)) {
    PyObject* name = PyFunction_Check(o) ? reinterpret_cast<PyFunctionObject*>(o)->func_qualname : nullptr;
    const char* utf8 = name ? PyUnicode_AsUTF8(name) : PyModule_GetName(o);
    if (!utf8) PyErr_Clear();
    text = std::string(name ? "function " : "module ") + (utf8 ? utf8 : "?");
  } else {
    text = std::string(Py_TYPE(o)->tp_name) + " object";
  }
  if (text.size() > 120) text = text.substr(0, 117) + "...";
  return text;
}

namespace {

// A str that reads as an attribute name, else "".
std::string Identifier(PyObject* key) {
  if (!PyUnicode_CheckExact(key) || PyUnicode_IsIdentifier(key) != 1) return "";
  const char* utf8 = PyUnicode_AsUTF8(key);
  if (!utf8) PyErr_Clear();
  return utf8 ? utf8 : "";
}

// Gives the __name__ of a module's dict, else "".
std::string ModuleName(PyObject* dict) {
  static PyObject* const key = PyUnicode_InternFromString("__name__");
  PyObject* name = dict && PyDict_CheckExact(dict) ? DictLookup(dict, key) : nullptr;
  const char* utf8 = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr;
  return utf8 ? utf8 : "";
}

std::string ConstText(const Source& s) {
  PyObject* o = Step(s, nullptr, nullptr, nullptr, nullptr);
  if (!o) return "<dead object>";
  if (std::string module = ModuleName(o); !module.empty()) return module;
  std::string text = ValueText(o);
  for (const char* prefix : {"class ", "function ", "module "})
    if (text.starts_with(prefix)) return text.substr(strlen(prefix));
  return "<" + text + ">";
}

// Of what others hang on: texts are long, and the same for all of them.
const std::string& BaseText(const Source& s, PyObject* varnames, Texts* kept) {
  static thread_local std::string made;
  if (!kept || !s.base) return made = s.str(varnames);
  auto at = kept->find(&s);
  if (at == kept->end()) at = kept->emplace(&s, s.str(varnames, kept)).first;
  return at->second;
}

std::string ItemText(const Source& s, PyObject* varnames, Texts* kept) {
  const Source& d = *s.base;
  std::string name = Identifier(s.object);
  if (d.kind == SourceKind::kInstanceDict && !name.empty()) return BaseText(*d.base, varnames, kept) + "." + name;
  if (d.kind == SourceKind::kConst && !name.empty() && !ModuleName(d.object).empty())
    return BaseText(d, varnames, kept) + "." + name;
  // torch.nn keeps submodules in a dict: show them as the user writes them.
  if (d.kind == SourceKind::kDictItem && d.base->kind == SourceKind::kInstanceDict && PyUnicode_CheckExact(d.object) &&
      !PyUnicode_CompareWithASCIIString(d.object, "_modules") && PyUnicode_CheckExact(s.object)) {
    const std::string& owner = BaseText(*d.base->base, varnames, kept);
    if (!name.empty()) return owner + "." + name;
    std::string quoted = ValueText(s.object);
    return owner + "[" + quoted.substr(1, quoted.size() - 2) + "]";
  }
  const std::string& owner = BaseText(d, varnames, kept);
  if (!name.empty() && PyUnicode_IS_ASCII(s.object) && name.size() < 100) {
    std::string text;
    text.reserve(owner.size() + name.size() + 4);
    return text.append(owner).append("['").append(name).append("']");
  }
  return owner + "[" + ValueText(s.object) + "]";
}

}  // namespace

std::string Source::str(PyObject* varnames, Texts* bases) const {
  auto of_base = [&](const char* suffix) { return BaseText(*base, varnames, bases) + suffix; };
  switch (kind) {
    case SourceKind::kSlot: {
      if (varnames && PyTuple_Check(varnames) && index < PyTuple_GET_SIZE(varnames)) {
        const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(varnames, index));
        if (name) return std::string("L['") + name + "']";
        PyErr_Clear();
      }
      return "slot[" + std::to_string(index) + "]";
    }
    case SourceKind::kConst: return ConstText(*this);
    case SourceKind::kInstanceDict: return of_base(".__dict__");
    case SourceKind::kDictItem: return ItemText(*this, varnames, bases);
    case SourceKind::kItem: return of_base("[") + std::to_string(index) + "]";
    case SourceKind::kCell: return base->kind == SourceKind::kSlot ? base->str(varnames) : of_base(".cell_contents");
    case SourceKind::kClosure: return of_base(".__closure__[") + std::to_string(index) + "]";
    case SourceKind::kDefaults: return of_base(".__defaults__");
    case SourceKind::kKwDefaults: return of_base(".__kwdefaults__");
    case SourceKind::kFuncDict: return of_base(".__dict__");
    case SourceKind::kBoundSelf: return of_base(".__self__");
    case SourceKind::kBoundFunc: return of_base(".__func__");
    case SourceKind::kMember:
      if (!PyUnicode_Check(object))
        return std::string(PyCFunction_Check(object) ? reinterpret_cast<PyCFunctionObject*>(object)->m_ml->ml_name
                                                     : "asked") +
               "(" + base->str(varnames) + ")";
      return of_base(".") + Identifier(object);
    case SourceKind::kType: return "type(" + base->str(varnames) + ")";
    case SourceKind::kGrad: return of_base(".grad");
    case SourceKind::kContextVar: return of_base(".get()");
    case SourceKind::kAnswer: return of_base(ValueText(object).c_str());
    case SourceKind::kReferent: return of_base("()");
    case SourceKind::kKey: return "list(" + base->str(varnames) + ")[" + std::to_string(index) + "]";
  }
  return "?";
}

}  // namespace framejit::guard
