// _framejit.guard_testing: guard sets made from Python, for tests/python/test_guard*.py and bench/guard_bench.py.
//
//   guards = build_guards(rows, inputs=[path, ...], symbols=[(hint, min, max), ...], varnames=(...))
// A path is a tuple: ("slot", i), ("const", o), else (kind, base path[, index or key]) with the kinds of
// FRAMEJIT_SOURCES. A row is (kind, path, ...) with the kinds of FRAMEJIT_GUARDS, then the operand: an object for is,
// type is, equals, type version (then an attribute name, if wanted), function, entries, keys (of a set, then how many
// places a copy of it has); a number for len and int; for
// tensor an example of which sizes are taken, then {dim: symbol text}, then {dim: symbol text} for strides; a path for
// the relations; ("shape", "lhs", "==", "rhs");
// ("torch state",), ("numpy state",). A dictionary at the end may give {"where": text}.
// The result has check(*slots) -> None or (inputs, symbols), explain(*slots), dynamic(*slots), dynamic_ints(*slots),
// describe(), dead(), resolve(input number, *slots), bench(n, *slots) -> nanoseconds a check.
// cover(list): from now on every guard set of captured code says there what it covers (guard.h); cover(None) ends it.
#include <time.h>

#include "diag/diag.h"
#include "guard/program.h"

namespace framejit::guard {

namespace {

struct Guards {
  PyObject_HEAD std::shared_ptr<GuardSet>* set;
  std::vector<const Source*>* inputs;
  PyObject* varnames;
};

struct Failed {};  // a Python exception is set

void Require(bool ok, const char* message) {
  if (ok) return;
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, message);
  throw Failed{};
}

std::string Text(PyObject* o) {
  const char* s = o && PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : nullptr;
  Require(s, "expected a str");
  return s;
}

int Index(PyObject* o) {
  long v = PyLong_AsLong(o);
  Require(!PyErr_Occurred(), "expected an int");
  return static_cast<int>(v);
}

SourceKind ParseSource(const std::string& name) {
  static constexpr std::pair<const char*, SourceKind> all[] = {
#define X(e, n) {n, SourceKind::e},
      FRAMEJIT_SOURCES(X)
#undef X
  };
  for (auto [n, k] : all)
    if (name == n) return k;
  Require(false, "unknown source kind");
  return {};
}

Kind ParseKind(const std::string& name) {
  static constexpr std::pair<const char*, Kind> all[] = {
#define X(e, n) {n, Kind::e},
      FRAMEJIT_GUARDS(X)
#undef X
  };
  for (auto [n, k] : all)
    if (name == n) return k;
  Require(false, "unknown guard kind");
  return {};
}

PyObject* At(PyObject* tuple, Py_ssize_t i) {
  Require(PyTuple_Check(tuple) && i < PyTuple_GET_SIZE(tuple), "tuple too short");
  return PyTuple_GET_ITEM(tuple, i);
}

const Source* Path(GuardBuilder& b, PyObject* path) {
  SourceKind kind = ParseSource(Text(At(path, 0)));
  if (kind == SourceKind::kSlot) return b.Slot(Index(At(path, 1)));
  if (kind == SourceKind::kConst) return b.Const(At(path, 1));
  const Source* base = Path(b, At(path, 1));
  if (PyTuple_GET_SIZE(path) < 3) return b.Child(kind, base);
  if (kind == SourceKind::kDictItem || kind == SourceKind::kMember) return b.Child(kind, base, 0, At(path, 2));
  return b.Child(kind, base, Index(At(path, 2)));
}

shape::Int ParseInt(PyObject* text) {
  auto e = shape::Int::Parse(Text(text));
  Require(e.has_value(), "not a size expression");
  return *e;
}

void FillTensor(TensorExpect& expect, PyObject* spec, Py_ssize_t size) {
  PyObject* o = At(spec, 2);
  tensor::Meta m;
  const char* why = "not a tensor";
  Require(tensor::ReadMeta(o, &m, &why), why);
  TensorMeta& meta = expect.meta;
  tensor::Class c = tensor::Classify(o);
  meta.framework = c >= tensor::Class::kNumpyArray ? Framework::kNumpy : Framework::kTorch;
  meta.is_parameter = c == tensor::Class::kTorchParameter;
  meta.is_scalar = c == tensor::Class::kNumpyScalar;
  meta.dtype = m.dtype;
  meta.device = m.device;
  meta.requires_grad = m.requires_grad;
  expect.key_set = m.key_set;
  meta.sizes = shape::Ints(m.sizes, m.sizes + m.rank);
  meta.strides = shape::Ints(m.strides, m.strides + m.rank);
  for (Py_ssize_t part = 3; part < size && part < 5; ++part) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(At(spec, part), &at, &key, &value))
      (part == 3 ? meta.sizes : meta.strides).Set(Index(key), ParseInt(value));
  }
}

void AddRow(GuardBuilder& b, PyObject* spec) {
  Row row{ParseKind(Text(At(spec, 0)))};
  Py_ssize_t size = PyTuple_GET_SIZE(spec);
  if (PyObject* last = At(spec, size - 1); PyDict_Check(last) && PyDict_GetItemString(last, "where")) {
    row.where = std::make_shared<std::string>(Text(PyDict_GetItemString(last, "where")));
    --size;
  }
  switch (row.kind) {
    case Kind::kTorchState:
    case Kind::kNumpyState: break;
    case Kind::kShape: {
      std::string cmp = Text(At(spec, 2));
      shape::Guard g;
      g.cmp = cmp == "=="   ? shape::Cmp::kEq
              : cmp == "!=" ? shape::Cmp::kNe
              : cmp == "<"  ? shape::Cmp::kLt
                            : shape::Cmp::kLe;
      g.lhs = ParseInt(At(spec, 1));
      g.rhs = ParseInt(At(spec, 3));
      g.where = guard::Text(row.where);
      row.shape = std::make_shared<shape::Guard>(std::move(g));
      break;
    }
    case Kind::kSameObject:
    case Kind::kDifferentObject:
      row.source = Path(b, At(spec, 1));
      row.other = Path(b, At(spec, 2));
      break;
    default:
      row.source = Path(b, At(spec, 1));
      if (row.kind == Kind::kAbsent || row.kind == Kind::kNoItems || row.kind == Kind::kDistinct) break;
      if (row.kind == Kind::kTensor) {
        auto expect = std::make_shared<TensorExpect>();
        FillTensor(*expect, spec, size);
        row.tensor = std::move(expect);
      } else if (row.kind == Kind::kLength || row.kind == Kind::kApart || row.kind == Kind::kIntSymbol ||
                 row.kind == Kind::kFloatSymbol) {
        row.number = Index(At(spec, 2));
      } else {
        row.object = At(spec, 2);
        if (size > 3 && row.kind == Kind::kKeys)
          row.number = Index(At(spec, 3));
        else if (size > 3)
          row.name = At(spec, 3);
      }
  }
  b.Add(std::move(row));
}

template <class F>
PyObject* Translate(F f) {
  try {
    return f();
  } catch (const Failed&) {
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  return nullptr;
}

extern PyTypeObject GuardsType;

PyObject* Build(PyObject*, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"rows", "inputs", "symbols", "varnames", nullptr};
  PyObject *rows, *inputs = nullptr, *symbols = nullptr, *varnames = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOO", const_cast<char**>(names), &rows, &inputs, &symbols,
                                   &varnames))
    return nullptr;
  return Translate([&]() -> PyObject* {
    GuardBuilder b;
    shape::Env env;
    Ref symbol_list(symbols ? PySequence_List(symbols) : PyList_New(0)), row_list(PySequence_List(rows)),
        input_list(inputs ? PySequence_List(inputs) : PyList_New(0));
    Require(symbol_list && row_list && input_list, "expected sequences");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(symbol_list.get()); ++i) {
      long long hint, low, high;
      Require(PyArg_ParseTuple(PyList_GET_ITEM(symbol_list.get(), i), "LLL", &hint, &low, &high), "");
      env.NewSymbol({"symbol", hint, low, high, shape::SymbolKind::kInput});
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(row_list.get()); ++i) AddRow(b, PyList_GET_ITEM(row_list.get(), i));
    std::vector<const Source*> in;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(input_list.get()); ++i)
      in.push_back(Path(b, PyList_GET_ITEM(input_list.get(), i)));
    auto set = b.Finish(env, in);
    auto* g = PyObject_New(Guards, &GuardsType);
    if (!g) return nullptr;
    g->set = new std::shared_ptr<GuardSet>(std::move(set));
    g->varnames = Py_XNewRef(varnames);
    g->inputs = new std::vector<const Source*>(std::move(in));
    return reinterpret_cast<PyObject*>(g);
  });
}

void Dealloc(PyObject* self) {
  auto* g = reinterpret_cast<Guards*>(self);
  delete g->set;
  delete g->inputs;
  Py_XDECREF(g->varnames);
  PyObject_Free(self);
}

GuardSet& Of(PyObject* self) {
  return **reinterpret_cast<Guards*>(self)->set;
}
PyObject* NamesOf(PyObject* self) {
  return reinterpret_cast<Guards*>(self)->varnames;
}

std::vector<PyObject*> Slots(PyObject* const* args, Py_ssize_t n) {
  std::vector<PyObject*> slots(args, args + n);
  for (PyObject*& s : slots)
    if (s == Py_NotImplemented) s = nullptr;  // how tests write an unbound slot
  return slots;
}

PyObject* Check(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  GuardSet& set = Of(self);
  std::vector<PyObject*> slots = Slots(args, n), inputs(set.num_inputs());
  std::vector<int64_t> symbols(set.num_symbols());
  if (!set.Check(slots.data(), inputs.data(), symbols.data())) {
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
  }
  Ref in(PyTuple_New(static_cast<Py_ssize_t>(inputs.size()))),
      sym(PyTuple_New(static_cast<Py_ssize_t>(symbols.size())));
  for (size_t i = 0; i < inputs.size(); ++i) PyTuple_SET_ITEM(in.get(), i, Py_NewRef(inputs[i]));
  for (size_t i = 0; i < symbols.size(); ++i) PyTuple_SET_ITEM(sym.get(), i, PyLong_FromLongLong(symbols[i]));
  return PyTuple_Pack(2, in.get(), sym.get());
}

PyObject* Explain(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  return PyUnicode_FromString(Of(self).Explain(Slots(args, n).data(), NamesOf(self)).c_str());
}

PyObject* Dynamic(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  Ref out(PyList_New(0));
  for (auto [input, dim] : Of(self).DynamicCandidates(Slots(args, n).data()))
    PyList_Append(out.get(), Ref(Py_BuildValue("(ii)", input, dim)).get());
  return Py_NewRef(out.get());
}

PyObject* Strings(const std::vector<std::string>& v) {
  PyObject* out = PyList_New(0);
  for (const std::string& s : v) PyList_Append(out, Ref(PyUnicode_FromString(s.c_str())).get());
  return out;
}

PyObject* DynamicInts(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  return Strings(Of(self).DynamicInts(Slots(args, n).data()));
}

PyObject* Describe(PyObject* self, PyObject*) {
  return Strings(Of(self).Describe(NamesOf(self)));
}
PyObject* Dead(PyObject* self, PyObject*) {
  return PyBool_FromLong(Of(self).Dead());
}

PyObject* ResolveInput(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  const Source* s = reinterpret_cast<Guards*>(self)->inputs->at(PyLong_AsLong(args[0]));
  PyObject* o = Of(self).Resolve(s, Slots(args + 1, n - 1).data());
  return o ? o : Py_NewRef(Py_NotImplemented);
}

PyObject* Referents(PyObject* self, PyObject*) {
  PyObject* out = PyList_New(0);
  Of(self).Traverse([](PyObject* o, void* list) { return PyList_Append(static_cast<PyObject*>(list), o); }, out);
  return out;
}

PyObject* Bench(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  GuardSet& set = Of(self);
  long count = PyLong_AsLong(args[0]);
  std::vector<PyObject*> slots = Slots(args + 1, n - 1), inputs(set.num_inputs());
  std::vector<int64_t> symbols(set.num_symbols());
  timespec a, b;
  long hits = 0;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (long i = 0; i < count; ++i) hits += set.Check(slots.data(), inputs.data(), symbols.data());
  clock_gettime(CLOCK_MONOTONIC, &b);
  double ns = ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / count;
  return Py_BuildValue("(dl)", ns, hits);
}

PyMethodDef kMethods[] = {
    {"check", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Check)), METH_FASTCALL, nullptr},
    {"explain", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Explain)), METH_FASTCALL, nullptr},
    {"dynamic", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Dynamic)), METH_FASTCALL, nullptr},
    {"dynamic_ints", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(DynamicInts)), METH_FASTCALL, nullptr},
    {"describe", Describe, METH_NOARGS, nullptr},
    {"referents", Referents, METH_NOARGS, nullptr},
    {"dead", Dead, METH_NOARGS, nullptr},
    {"resolve", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(ResolveInput)), METH_FASTCALL, nullptr},
    {"bench", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Bench)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject MakeType() {
  PyTypeObject t = {PyVarObject_HEAD_INIT(nullptr, 0)};
  t.tp_name = "_framejit.TestGuards";
  t.tp_basicsize = sizeof(Guards);
  t.tp_flags = Py_TPFLAGS_DEFAULT;
  t.tp_dealloc = Dealloc;
  t.tp_methods = kMethods;
  return t;
}
PyTypeObject GuardsType = MakeType();

PyObject* CoverTo(PyObject*, PyObject* list) {
  if (list != Py_None && !PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "a list or None is needed");
  Py_XSETREF(cover_list, list == Py_None ? nullptr : Py_NewRef(list));
  Py_RETURN_NONE;
}

PyMethodDef kFunctions[] = {{"cover", CoverTo, METH_O, nullptr},
                            {"build_guards", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Build)),
                             METH_VARARGS | METH_KEYWORDS, nullptr},
                            {nullptr, nullptr, 0, nullptr}};

}  // namespace

void AddGuardTestFunctions(PyObject* module) {
  if (PyType_Ready(&GuardsType) < 0) return;
  PyObject* sub = PyModule_New("framejit._framejit.guard_testing");
  if (!sub || PyModule_AddFunctions(sub, kFunctions) < 0 || PyModule_AddObject(module, "guard_testing", sub) < 0) {
    Py_XDECREF(sub);
    PyErr_Clear();
  }
}

}  // namespace framejit::guard
