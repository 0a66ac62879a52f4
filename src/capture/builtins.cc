// The tables behind builtins.h. To add a function: a row in kFunctions (dotted name), nothing else.
#include "capture/builtins.h"

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "capture/modes.h"
#include "capture/override.h"
#include "capture/persistent.h"
#include "capture/types.h"
#include "capture/wrappers/overrides.h"
#include "guard/versions.h"
#include "tensor/import.h"

namespace framejit::capture {
namespace {

struct Row {
  const char* module;
  const char* names;  // space-separated; "*": every builtin function of the module
  Effect effect;
};

constexpr Row kFunctions[] = {
    {"builtins", "abs ascii bin callable chr divmod format hash hex max min oct ord pow repr round sorted sum",
     Effect::kPure},
    {"builtins",
     "all any len getattr hasattr setattr delattr isinstance issubclass iter next id vars dir "
     "__build_class__",
     Effect::kSpecial},
    {"sys", "exc_info", Effect::kSpecial},
    {"builtins", "print input open breakpoint", Effect::kOutput},
    {"math", "sumprod", Effect::kUnknown},  // of floats it rounds once, and a stand-in is no float to it
    {"math", "*", Effect::kPure},
    {"cmath", "*", Effect::kPure},
    {"_operator",
     "add and_ contains delitem eq floordiv ge getitem gt iadd iand ifloordiv ilshift imatmul imod imul inv invert ior "
     "ipow irshift is_ is_not isub itruediv ixor le lshift lt matmul mod mul ne neg not_ or_ pos pow rshift setitem "
     "sub "
     "truediv truth xor",
     Effect::kSpecial},
    {"_operator", "abs concat countOf index indexOf length_hint _compare_digest", Effect::kPure},
    {"_functools", "reduce cmp_to_key", Effect::kPure},
    {"itertools", "tee", Effect::kPure},
    {"_bisect", "bisect_left bisect_right", Effect::kPure},
    {"_abc", "_abc_instancecheck _abc_subclasscheck", Effect::kPure},
    {"_collections", "_count_elements", Effect::kMutatesSelf},
    {"_heapq", "heapify heappop heappush heappushpop heapreplace", Effect::kMutatesSelf},
    {"_bisect", "insort_left insort_right", Effect::kMutatesSelf},
    {"_struct", "pack unpack calcsize", Effect::kPure},
    {"_hashlib",
     "openssl_md5 openssl_sha1 openssl_sha224 openssl_sha256 openssl_sha384 openssl_sha512 openssl_sha3_224 "
     "openssl_sha3_256 openssl_sha3_384 openssl_sha3_512 hmac_digest",
     Effect::kPure},
    {"_json", "encode_basestring encode_basestring_ascii", Effect::kPure},
    {"zlib", "adler32 crc32", Effect::kPure},
    {"binascii", "a2b_base64 a2b_hex b2a_base64 b2a_hex crc32 hexlify unhexlify", Effect::kPure},
    {"sys", "intern getdefaultencoding getfilesystemencoding", Effect::kPure},
    {"sys", "getrecursionlimit getswitchinterval get_int_max_str_digits is_finalizing", Effect::kAsks},
    {"posix", "getpid getcwd cpu_count", Effect::kAsks},
    {"_thread", "get_ident get_native_id", Effect::kAsks},
    {"_thread", "allocate_lock", Effect::kPure},
    {"gc", "isenabled get_debug", Effect::kAsks},
    {"posix", "fspath", Effect::kPure},
    {"time", "time perf_counter monotonic time_ns perf_counter_ns monotonic_ns sleep process_time", Effect::kOutput},
    {"_warnings", "warn warn_explicit", Effect::kOutput},
    {"framejit._framejit", "is_compiling", Effect::kPure},
    {"numpy.lib.array_utils", "normalize_axis_index", Effect::kPure},
};

constexpr struct PythonRow {
  const char *module, *name;
  Effect effect;
} kPythonFunctions[] = {
    {"logging", "Logger.isEnabledFor", Effect::kMemo},
    {"logging", "Logger._log", Effect::kOutput},
    {"logging", "Filterer.addFilter", Effect::kOutput},
    {"logging", "Filterer.removeFilter", Effect::kOutput},
    {"re", "_compile", Effect::kPure},
    {"torch._dynamo.compiled_autograd", "_disable", Effect::kNoScope},
    {"torch._functorch.predispatch", "lazy_load_decompositions", Effect::kNothing},  // torch.vmap is not run
    {"torch.nn.modules.lazy", "LazyModuleMixin._infer_parameters", Effect::kSpecial},
    {"torch._dynamo.mutation_guard", "GenerationTracker.tag", Effect::kNothing},  // by Module.__init__
    {"torch.autograd.profiler", "record_function.__enter__", Effect::kItself},
    {"torch.autograd.profiler", "record_function.__exit__", Effect::kNothing},
    {"torch.optim.optimizer", "_get_value", Effect::kHeldNumber},
    {"torch.utils._python_dispatch", "return_and_correct_aliasing", Effect::kAliases},
    {"warnings", "catch_warnings.__enter__", Effect::kWarnings},
    {"warnings", "catch_warnings.__exit__", Effect::kWarnings},
    {"warnings", "simplefilter", Effect::kWarnings},
    {"warnings", "filterwarnings", Effect::kWarnings},
    {"warnings", "resetwarnings", Effect::kWarnings},
    {"numpy._core._ufunc_config", "errstate.__enter__", Effect::kErrorState},
    {"numpy._core._ufunc_config", "seterr", Effect::kThreadState},
};

// Methods of mutable builtin containers that only read.
const std::unordered_set<std::string_view>& Readers() {
  static const std::unordered_set<std::string_view> set = {"__getitem__",
                                                           "__contains__",
                                                           "__len__",
                                                           "__iter__",
                                                           "__eq__",
                                                           "__ne__",
                                                           "__lt__",
                                                           "__le__",
                                                           "__gt__",
                                                           "__ge__",
                                                           "__add__",
                                                           "__mul__",
                                                           "__rmul__",
                                                           "__or__",
                                                           "__ror__",
                                                           "__and__",
                                                           "__sub__",
                                                           "__xor__",
                                                           "__repr__",
                                                           "__reversed__",
                                                           "__hash__",
                                                           "__sizeof__",
                                                           "__getattribute__",
                                                           "__rand__",
                                                           "__rsub__",
                                                           "__format__",
                                                           "__str__",
                                                           "__class_getitem__",
                                                           "copy",
                                                           "index",
                                                           "count",
                                                           "get",
                                                           "items",
                                                           "keys",
                                                           "values",
                                                           "union",
                                                           "difference",
                                                           "intersection",
                                                           "isdisjoint",
                                                           "issubset",
                                                           "issuperset",
                                                           "symmetric_difference",
                                                           "digest",
                                                           "hexdigest",
                                                           "__reduce__",
                                                           "fromkeys"};
  return set;
}

PyTypeObject* TypeIn(const char* module, const char* name) {
  Ref t(FromModule(module, name));
  if (!t) PyErr_Clear();
  return t && PyType_Check(t.get()) ? reinterpret_cast<PyTypeObject*>(t.release()) : nullptr;
}

struct Tables {
  std::unordered_map<PyObject*, Effect> functions;
  std::unordered_set<PyTypeObject*> immutable;   // every method is pure
  std::unordered_set<PyTypeObject*> containers;  // readers are pure, the rest changes self
  std::unordered_set<PyTypeObject*> iterators;   // private when fresh
  std::unordered_set<PyTypeObject*> pure_types;

  Tables() {
    for (const Row& r : kFunctions) {
      Ref m(tensor::Import(r.module));
      if (!m) {
        PyErr_Clear();
        continue;
      }
      PyObject* dict = PyModule_GetDict(m.get());
      if (!strcmp(r.names, "*")) {
        PyObject *k, *v;
        Py_ssize_t pos = 0;
        while (PyDict_Next(dict, &pos, &k, &v))
          if (PyCFunction_Check(v)) functions.emplace(v, r.effect);
        continue;
      }
      std::string_view rest = r.names;
      while (!rest.empty()) {
        std::string name(rest.substr(0, rest.find(' ')));
        rest.remove_prefix(std::min(rest.size(), name.size() + 1));
        if (PyObject* f = PyDict_GetItemString(dict, name.c_str())) functions.emplace(f, r.effect);
      }
    }
    for (PyTypeObject* t : {&PyLong_Type, &PyFloat_Type, &PyBool_Type, &PyUnicode_Type, &PyBytes_Type, &PyComplex_Type,
                            &PyTuple_Type, &PyFrozenSet_Type, &PyRange_Type, &PySlice_Type, &PyProperty_Type,
                            &PyFunction_Type, &PyDictProxy_Type, &PyMethod_Type, &PyClassMethod_Type,
                            &PyStaticMethod_Type, &PyDictItems_Type, &PyDictKeys_Type, &PyDictValues_Type})
      immutable.insert(t);
    for (auto [m, n] : {std::pair{"re", "Pattern"},
                        {"re", "Match"},
                        {"types", "GenericAlias"},
                        {"types", "UnionType"},
                        {"operator", "attrgetter"},
                        {"operator", "itemgetter"},
                        {"operator", "methodcaller"}})
      if (PyTypeObject* t = TypeIn(m, n)) immutable.insert(t);
    for (PyTypeObject* t : {&PyList_Type, &PyDict_Type, &PySet_Type, &PyByteArray_Type}) containers.insert(t);
    for (auto [m, n] : {std::pair{"collections", "OrderedDict"},
                        {"collections", "deque"},
                        {"collections", "defaultdict"},
                        {"_hashlib", "HASH"},
                        {"_io", "_IOBase"},
                        {"_io", "BytesIO"},
                        {"_io", "StringIO"},
                        {"_thread", "LockType"},
                        {"_thread", "RLock"}})
      if (PyTypeObject* t = TypeIn(m, n)) containers.insert(t);
    for (PyTypeObject* t :
         {&PyEnum_Type, &PyZip_Type, &PyMap_Type, &PyFilter_Type, &PyReversed_Type, &PyGen_Type, &PyListIter_Type,
          &PyTupleIter_Type, &PyRangeIter_Type, &PyDictIterItem_Type, &PyDictIterKey_Type, &PyDictIterValue_Type,
          &PySetIter_Type, &PyCallIter_Type, &PySeqIter_Type})
      iterators.insert(t);
    for (const char* n :
         {"chain",      "product",  "count",     "islice",    "repeat",      "cycle",        "zip_longest",
          "accumulate", "starmap",  "takewhile", "dropwhile", "filterfalse", "permutations", "combinations",
          "groupby",    "_grouper", "_tee",      "pairwise",  "compress",    "batched"})
      if (PyTypeObject* t = TypeIn("itertools", n)) iterators.insert(t);
    pure_types.insert(immutable.begin(), immutable.end());
    pure_types.insert(containers.begin(), containers.end());
    pure_types.insert(iterators.begin(), iterators.end());
    pure_types.insert(&PyBaseObject_Type);
    pure_types.insert(&PySuper_Type);
    pure_types.insert(&PyType_Type);
    if (PyTypeObject* t = TypeIn("functools", "partial")) pure_types.insert(t);
  }
};

// Made on first use. Its imports run Python code, which must not come back here, and may let another thread in: no lock
// is held meanwhile, and tables made twice are the same.
const Tables& T() {
  static const Tables* tables = nullptr;
  if (!tables) {
    SuspendScope off;
    auto* made = new Tables;
    if (!tables) tables = made;
  }
  return *tables;
}

bool Derives(PyTypeObject* t, PyObject* base) {
  return PyType_IsSubtype(t, reinterpret_cast<PyTypeObject*>(base));
}

}  // namespace

Effect EffectOfFunction(PyObject* f) {
  auto it = T().functions.find(f);
  return it == T().functions.end() ? EffectOfPersistent(f) : it->second;
}

Effect EffectOfPython(PyFunctionObject* f) {
  static const auto& by_name = *[] {
    auto* rows = new std::unordered_multimap<std::string_view, const PythonRow*>;
    for (const PythonRow& r : kPythonFunctions) rows->emplace(r.name, &r);
    return rows;
  }();
  if (!f->func_module || !PyUnicode_Check(f->func_module)) return Effect::kUnknown;
  Py_ssize_t size;
  const char* name = PyUnicode_AsUTF8AndSize(f->func_qualname, &size);
  if (!name) return PyErr_Clear(), Effect::kUnknown;
  const auto [first, last] = by_name.equal_range(std::string_view(name, size));
  for (auto at = first; at != last; ++at)
    if (!PyUnicode_CompareWithASCIIString(f->func_module, at->second->module)) return at->second->effect;
  return Effect::kUnknown;
}

Effect EffectOfMethod(PyTypeObject* owner, const char* name) {
  if (IsModeScope(owner)) return Effect::kMutatesSelf;
  const Tables& t = T();
  for (const char* n :
       {"__setstate__", "__init__", "__set_name__", "__setattr__", "__delattr__", "__set__", "__delete__"})
    if (owner != &PyBaseObject_Type && !strcmp(name, n))
      return t.pure_types.contains(owner) || Derives(owner, PyExc_BaseException) ? Effect::kMutatesSelf
                                                                                 : Effect::kUnknown;
  if (t.immutable.contains(owner)) return Effect::kPure;
  if (t.containers.contains(owner)) return Readers().contains(name) ? Effect::kPure : Effect::kMutatesSelf;
  if (t.iterators.contains(owner))
    return !strcmp(name, "throw") || !strcmp(name, "close") ? Effect::kUnknown : Effect::kMutatesSelf;
  if (owner == &PyBaseObject_Type) {
    for (const char* n : {"__init__", "__eq__", "__ne__", "__hash__", "__init_subclass__", "__dir__", "__lt__",
                          "__le__", "__gt__", "__ge__"})
      if (!strcmp(name, n)) return Effect::kPure;
    return Effect::kUnknown;  // __new__, __setattr__, __getattribute__ have handlers
  }
  if (owner == &PyType_Type)
    return !strcmp(name, "mro") || !strcmp(name, "__instancecheck__") || !strcmp(name, "__subclasscheck__") ||
                   !strcmp(name, "__or__") || !strcmp(name, "__ror__")
               ? Effect::kPure
               : Effect::kUnknown;
  if (Derives(owner, PyExc_BaseException)) return Effect::kMutatesSelf;
  const TypeFacts facts = FactsOf(owner);
  if (IsEvolver(owner)) return Readers().contains(name) ? Effect::kPure : Effect::kMutatesSelf;
  return facts.Has(TypeFacts::kPureMethods) ? Effect::kPure
         : facts.Has(TypeFacts::kDraws)     ? Effect::kRandom
                                            : Effect::kUnknown;
}

PyTypeObject* LayoutOf(PyTypeObject* t) {
  static const destructor made_by_class_statement = [] {
    Ref type(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "framejit_probe"));
    return reinterpret_cast<PyTypeObject*>(type.get())->tp_dealloc;
  }();
  while (t->tp_base && t->tp_dealloc == made_by_class_statement) t = t->tp_base;
  return t;
}

Bound UnbindBuiltin(PyObject* o) {
  if (PyCFunction_Check(o)) {
    PyObject* self = PyCFunction_GET_SELF(o);
    if (!self || PyModule_Check(self)) return {};
    const PyMethodDef* def = reinterpret_cast<PyCFunctionObject*>(o)->m_ml;
    Ref name(PyUnicode_InternFromString(def->ml_name));
    PyObject* mro = Py_TYPE(self)->tp_mro;  // it may come from a base class: super().get
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
      PyObject* d = PyDict_GetItemWithError(guard::TypeDict(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i))),
                                            name.get());
      if (d && Py_IS_TYPE(d, &PyMethodDescr_Type) && reinterpret_cast<PyMethodDescrObject*>(d)->d_method == def)
        return {Borrow(d), Borrow(self)};
    }
    return {};
  }
  if (!OfType(o, CType::kMethodWrapper)) return {};
  Ref owner(PyObject_GetAttrString(o, "__objclass__")), name(PyObject_GetAttrString(o, "__name__")),
      self(PyObject_GetAttrString(o, "__self__"));
  PyObject* d =
      owner && name && self ? _PyType_Lookup(reinterpret_cast<PyTypeObject*>(owner.get()), name.get()) : nullptr;
  if (!d) return PyErr_Clear(), Bound{};
  return {Borrow(d), std::move(self)};
}

bool IsPureType(PyTypeObject* t) {
  if (T().pure_types.contains(t)) return true;
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE) && Derives(t, PyExc_BaseException)) return true;
  return FactsOf(t).Has(TypeFacts::kMadeFreely);
}

Compares WhatCompares(PyTypeObject* owner, std::string_view name) {
  auto among = [&](std::string_view names) { return names.find(" " + std::string(name) + " ") != names.npos; };
  const bool relation = among(" __eq__ __ne__ __lt__ __le__ __gt__ __ge__ ");
  PyTypeObject* layout = owner ? LayoutOf(owner) : nullptr;
  if (layout == &PyList_Type || layout == &PyTuple_Type || (layout && OfType(layout, CType::kDeque)))
    return relation || among(" index count remove sort __contains__ ") ? Compares::kAll : Compares::kNone;
  if (layout && PyType_IsSubtype(layout, &PyDict_Type)) {
    if (relation) return Compares::kAll;
    return among(" get pop setdefault fromkeys move_to_end __getitem__ __setitem__ __delitem__ __contains__ ")
               ? Compares::kKey
               : Compares::kNone;
  }
  return among(
             " all any callable isinstance _abc_instancecheck _abc_subclasscheck __init__ __init_subclass__ "
             "__instancecheck__ ")
             ? Compares::kNone
             : Compares::kAll;
}

}  // namespace framejit::capture
