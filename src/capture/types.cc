#include "capture/types.h"

#include <cstring>
#include <string_view>
#include <unordered_map>

#include "capture/override.h"
#include "capture/session.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"

namespace framejit::capture {
namespace {

using F = TypeFacts;

struct Row {
  std::string_view name;  // tp_name
  TypeFacts facts;
};

constexpr Row kRows[] = {
    {"torch.Size", {F::kPlain | F::kPureMethods | F::kMadeFreely | F::kStays, CType::kTorchSize}},
    {"torch.device", {F::kValue | F::kPlain | F::kPureMethods | F::kMadeFreely | F::kStays, CType::kTorchDevice}},
    {"torch.finfo", {F::kValue | F::kPlain | F::kPureMethods | F::kMadeFreely | F::kStays}},
    {"torch.iinfo", {F::kValue | F::kPlain | F::kPureMethods | F::kMadeFreely | F::kStays}},
    {"torch.dtype", {F::kConstant | F::kPlain | F::kPureMethods, CType::kTorchDType}},
    {"torch.layout", {F::kConstant | F::kPlain, CType::kTorchLayout}},
    {"torch.memory_format", {F::kConstant, CType::kTorchMemoryFormat}},
    {"torch.qscheme", {F::kConstant}},
    {"torch.tensortype", {0, CType::kTorchTensorType}},
    {"torch._C._FunctionBase", {F::kMadeFreely}},
    {"torch._C.Generator", {F::kDraws}},
    {"numpy.ufunc", {F::kConstant | F::kPlain, CType::kUfunc}},
    {"cupy._core._kernel.ufunc", {F::kConstant | F::kPlain}},
    {"numpy._ArrayFunctionDispatcher", {0, CType::kNumpyFunction}},
    {"numpy.dtype", {F::kPureMethods | F::kMadeFreely, CType::kNumpyDType}},
    {"numpy.generic", {F::kPureMethods}},
    {"numpy.float64", {F::kPureMethods}},
    {"numpy.float32", {F::kPureMethods}},
    {"numpy.int64", {F::kPureMethods, CType::kNumpyInt64}},
    {"numpy.bool", {F::kPureMethods, CType::kNumpyBool}},
    {"numpy.random.mtrand.RandomState", {F::kDraws}},
    {"numpy.random._generator.Generator", {F::kDraws}},
    {"_random.Random", {F::kDraws}},
    {"re.Pattern", {F::kValue | F::kPlain | F::kStays}},
    {"re.Match", {F::kPlain}},
    {"datetime.timedelta", {F::kValue}},
    {"datetime.date", {F::kValue}},
    {"datetime.datetime", {F::kValue}},
    {"decimal.Decimal", {F::kValue, CType::kDecimal}},
    {"method_descriptor", {F::kConstant | F::kPlain}},
    {"wrapper_descriptor", {F::kConstant | F::kPlain}},
    {"getset_descriptor", {F::kConstant | F::kPlain}},
    {"member_descriptor", {F::kConstant | F::kPlain}},
    {"classmethod_descriptor", {F::kConstant}},
    {"builtin_function_or_method", {F::kConstant | F::kPlain}},
    {"types.SimpleNamespace", {F::kMadeFreely}},
    {"_thread._local", {F::kMadeFreely}},
    {"types.UnionType", {F::kConstant | F::kPlain, CType::kUnionType}},
    {"types.GenericAlias", {F::kConstant | F::kPlain, CType::kGenericAlias}},
    {"method-wrapper", {F::kPlain, CType::kMethodWrapper}},
    {"functools._lru_cache_wrapper", {0, CType::kLruCache}},
    {"functools.partial", {F::kPlain | F::kPureMethods | F::kReduced, CType::kPartial}},
    {"operator.attrgetter", {F::kReduced, CType::kAttrGetter}},
    {"operator.itemgetter", {F::kReduced}},
    {"operator.methodcaller", {F::kReduced, CType::kMethodCaller}},
    {"_contextvars.ContextVar", {0, CType::kContextVar}},
    {"ContextVar", {0, CType::kContextVar}},  // before 3.12
    {"collections.deque", {0, CType::kDeque}},
    {"_collections._deque_iterator", {F::kNotices}},
    {"_collections._deque_reverse_iterator", {F::kNotices}},
    {"collections._deque_iterator", {F::kNotices}},  // since 3.12
    {"collections._deque_reverse_iterator", {F::kNotices}},
    {"collections.defaultdict", {0, CType::kDefaultDict}},
    {"collections.OrderedDict", {0, CType::kOrderedDict}},
    {"_hashlib.HASH", {F::kPlain}},
    {"pvectorc.PVector", {F::kPureMethods | F::kReduced}},  // these are immutable containers (persistent.cc)
    {"rpds.HashTrieMap", {F::kPureMethods | F::kReduced | F::kMadeFreely}},
    {"rpds.HashTrieSet", {F::kPureMethods | F::kReduced | F::kMadeFreely}},
    {"rpds.List", {F::kPureMethods | F::kReduced | F::kMadeFreely}},
    {"_json.Encoder", {F::kPlain | F::kMadeFreely}},
    {"_io.TextIOWrapper", {0, CType::kTextFile}},
    {"_io.StringIO", {0, CType::kStringIO}},
    {"code", {F::kPlain}},
    {"property", {F::kPlain}},
    {"staticmethod", {F::kPlain}},
    {"classmethod", {F::kPlain}},
    {"super", {F::kPlain}},
    {"method", {F::kPlain}},
    {"cell", {F::kPlain}},
    {"slice", {F::kPlain}},
    {"range", {F::kPlain}},
    {"mappingproxy", {F::kPlain}},
    {"generator", {F::kPlain}},
    {"traceback", {F::kPlain}},
    {"frame", {F::kPlain}},
    {"weakref.ReferenceType", {F::kPlain}},
    {"weakref", {F::kPlain}},  // before 3.12
};

TypeFacts Look(std::string_view name) {
  static const auto* table = [] {
    auto* all = new std::unordered_map<std::string_view, TypeFacts>;
    for (const Row& r : kRows) all->emplace(r.name, r.facts);
    return all;
  }();
  const auto at = table->find(name);
  TypeFacts facts = at == table->end() ? TypeFacts() : at->second;
  if (!name.starts_with("numpy.")) return facts;
  facts.flags |= F::kOfNumpy;
  if (name.starts_with("numpy.dtype")) {  // there is a class for each, in numpy.dtypes
    facts.flags |= F::kPlain;
    facts.type = CType::kNumpyDType;
  }
  return facts;
}

// A class of Python's may have any name, a dotted one, too.
bool ByClassStatement(PyTypeObject* t) {
  return t->tp_name == PyUnicode_AsUTF8(reinterpret_cast<PyHeapTypeObject*>(t)->ht_name);
}

}  // namespace

TypeFacts FactsOf(PyTypeObject* t) {
  if (t->tp_flags & Py_TPFLAGS_HEAPTYPE) return ByClassStatement(t) ? TypeFacts() : Look(t->tp_name);
  static auto* known = new std::unordered_map<PyTypeObject*, TypeFacts>;  // static types stay
  static PyTypeObject* last_type = nullptr;
  static TypeFacts last;
  if (t != last_type) {
    auto at = known->find(t);
    if (at == known->end()) at = known->emplace(t, Look(t->tp_name)).first;
    last = at->second;
    last_type = t;
  }
  return last;
}

bool IsValue(PyObject* o) {
  if (Py_TYPE(o) == &PyRange_Type) return true;
  if (PySlice_Check(o)) {
    auto* s = reinterpret_cast<PySliceObject*>(o);
    const auto plain = [](PyObject* p) { return IsPrimitive(p) || tensor::Classify(p) == tensor::Class::kNumpyScalar; };
    return plain(s->start) && plain(s->stop) && plain(s->step);
  }
  return FactsOf(Py_TYPE(o)).Has(F::kValue);
}

bool IsPlainData(PyObject* o) {
  return FactsOf(Py_TYPE(o)).Has(F::kPlain) || (PyType_Check(o) && tensor::DTypeOf(o).has_value());
}

// Weights that torch has packed for its quantised kernels: nothing changes such an object.
static bool IsPackedWeight(PyObject* o) {
  if (strcmp(Py_TYPE(o)->tp_name, "torch._C.ScriptObject") && strcmp(Py_TYPE(o)->tp_name, "torch.ScriptObject"))
    return false;
  SuspendScope off;
  Ref type(PyObject_CallMethod(o, "_type", nullptr));
  Ref name(type ? PyObject_CallMethod(type.get(), "qualified_name", nullptr) : nullptr);
  const char* text = name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : nullptr;
  PyErr_Clear();
  return text && std::string_view(text).starts_with("__torch__.torch.classes.quantized.");
}

bool IsConstantKind(PyObject* o) {
  if (PyType_Check(o) || PyModule_Check(o) || PyFunction_Check(o) || PyCFunction_Check(o)) return true;
  const TypeFacts facts = FactsOf(Py_TYPE(o));
  return facts.Has(F::kConstant) ||
         (facts.type == CType::kNumpyDType &&
          (tensor::DTypeOf(o) || (tensor::bound_numpy && o == tensor::bound_numpy->object_descr))) ||
         tensor::HasCalleeName(o) || IsPackedWeight(o);
}

}  // namespace framejit::capture
