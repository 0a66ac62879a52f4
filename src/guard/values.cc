// Tests of single values, shared by the check and by its explanation. None of them runs Python code.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "guard/program.h"

namespace framejit::guard {

namespace {

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool SameBuffer(PyObject* a,
                PyObject* b) {  // NumPy scalars: by bytes, so that NaN and the signed zeros are what they are
  Py_buffer x, y;
  if (PyObject_GetBuffer(a, &x, PyBUF_SIMPLE) < 0) return PyErr_Clear(), false;
  if (PyObject_GetBuffer(b, &y, PyBUF_SIMPLE) < 0) return PyErr_Clear(), PyBuffer_Release(&x), false;
  bool same = x.len == y.len && std::memcmp(x.buf, y.buf, x.len) == 0;
  PyBuffer_Release(&x);
  PyBuffer_Release(&y);
  return same;
}

// Is the type implemented in C as a whole, so that comparing its instances runs no Python code?
bool ComparesInC(PyTypeObject* t) {
  return !(t->tp_flags & Py_TPFLAGS_HEAPTYPE) && t->tp_richcompare;
}

}  // namespace

bool EqualValues(PyObject* a, PyObject* b) {
  if (a == b) return true;
  PyTypeObject* t = Py_TYPE(a);
  if (t != Py_TYPE(b)) return false;
  if (t == &PyFloat_Type) return SameBits(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
  if (t == &PyUnicode_Type) return PyUnicode_GET_LENGTH(a) == PyUnicode_GET_LENGTH(b) && PyUnicode_Compare(a, b) == 0;
  if (t == &PyComplex_Type) {
    Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
    return SameBits(x.real, y.real) && SameBits(x.imag, y.imag);
  }
  if (PyTuple_Check(a)) {  // torch.Size and named tuples, too: their C storage is what they are
    if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); ++i)
      if (!EqualValues(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) return false;
    return true;
  }
  if (t == &PySlice_Type) {
    auto *x = reinterpret_cast<PySliceObject*>(a), *y = reinterpret_cast<PySliceObject*>(b);
    return EqualValues(x->start, y->start) && EqualValues(x->stop, y->stop) && EqualValues(x->step, y->step);
  }
  if (tensor::Classify(a) == tensor::Class::kNumpyScalar) return SameBuffer(a, b);
  // int, bytes, range, and C types of frameworks (device, dtype). Containers could hold anything: their identity
  // decides.
  if (!ComparesInC(t) || PyAnySet_Check(a) || PyList_Check(a) || PyDict_Check(a) || PyFloat_Check(a)) return false;
  if (t->tp_flags & Py_TPFLAGS_HAVE_GC) return false;
  int r = PyObject_RichCompareBool(a, b, Py_EQ);
  if (r < 0) PyErr_Clear();
  return r == 1;
}

bool IsNan(PyObject* o) {
  if (PyUnicode_CheckExact(o) || PyLong_CheckExact(o)) return false;  // most are
  if (PyFloat_Check(o) || PyComplex_Check(o)) {                       // NumPy's, too
    const Py_complex x =
        PyComplex_Check(o) ? reinterpret_cast<PyComplexObject*>(o)->cval : Py_complex{PyFloat_AS_DOUBLE(o), 0};
    return std::isnan(x.real) || std::isnan(x.imag);
  }
  if (tensor::Classify(o) != tensor::Class::kNumpyScalar) return false;
  Ref equal(PyObject_RichCompare(o, o, Py_EQ));
  const int yes = equal ? PyObject_IsTrue(equal.get()) : -1;
  if (yes < 0) PyErr_Clear();
  return yes != 1;
}

bool SameKey(PyObject* found, PyObject* key) {
  if (found == key) return true;
  if (!PyTuple_Check(key) || Py_TYPE(found) != Py_TYPE(key)) return EqualValues(found, key) && !IsNan(key);
  if (PyTuple_GET_SIZE(found) != PyTuple_GET_SIZE(key)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i)
    if (!SameKey(PyTuple_GET_ITEM(found, i), PyTuple_GET_ITEM(key, i))) return false;
  return true;
}

bool EqualSet(PyObject* found, const SetTest& t) {
  if (!PyAnySet_Check(found) || PySet_GET_SIZE(found) != static_cast<Py_ssize_t>(t.items.size())) return false;
  Py_ssize_t at = 0;
  PyObject* key;
  Py_hash_t hash;
  while (SetNext(found, &at, &key, &hash)) {
    auto [low, high] = std::equal_range(t.items.begin(), t.items.end(), SetTest::Item{hash, Ref()},
                                        [](const SetTest::Item& a, const SetTest::Item& b) { return a.hash < b.hash; });
    if (std::none_of(low, high, [&](const SetTest::Item& i) { return SameKey(key, i.key.get()); })) return false;
  }
  return true;
}

bool KeysMatch(PyObject* container, PyObject* keys) {
  Py_ssize_t n = PyTuple_GET_SIZE(keys), at = 0, i = 0;
  if (!container) return n == 0;
  PyObject *key, *value;
  Py_hash_t hash;
  bool dict = PyDict_Check(container);
  if (!dict && !PyAnySet_Check(container)) return false;
  if (n != (dict ? PyDict_GET_SIZE(container) : PySet_GET_SIZE(container))) return false;
  for (; dict ? PyDict_Next(container, &at, &key, &value) : SetNext(container, &at, &key, &hash); ++i)
    if (i >= n || !SameKey(key, PyTuple_GET_ITEM(keys, i))) return false;
  return i == n;
}

bool OrderedKeysMatch(PyObject* odict, PyObject* keys) {
  Ref it(PyODict_Type.tp_iter(odict));
  if (!it) return PyErr_Clear(), false;
  Py_ssize_t i = 0, n = PyTuple_GET_SIZE(keys);
  while (Ref key{Py_TYPE(it.get())->tp_iternext(it.get())}) {
    if (i >= n || !SameKey(key.get(), PyTuple_GET_ITEM(keys, i))) return false;
    ++i;
  }
  PyErr_Clear();
  return i == n;
}

Py_ssize_t LengthOf(PyObject* o) {
  if (!o) return 0;
  if (PyDict_Check(o)) return PyDict_GET_SIZE(o);
  if (PyList_Check(o)) return PyList_GET_SIZE(o);
  if (PyTuple_Check(o)) return PyTuple_GET_SIZE(o);
  if (PyAnySet_Check(o)) return PySet_GET_SIZE(o);
  if (PyUnicode_Check(o)) return PyUnicode_GET_LENGTH(o);
  if (PyBytes_Check(o)) return PyBytes_GET_SIZE(o);
  return IsDeque(o) ? PySequence_Size(o) : -1;
}

bool BindSymbol(const shape::SymbolInfo& info, bool binds, int64_t value, int64_t* slot) {
  if (!binds) return *slot == value;
  *slot = value;
  return info.min <= value && value <= info.max;
}

bool MemoryOverlaps(PyObject* a, PyObject* b) {
  if (a == b) return true;
  tensor::Meta x, y;
  if (!tensor::ReadForGuard(a, &x) || !tensor::ReadForGuard(b, &y)) return true;  // cannot tell
  if (x.nbytes_extent == 0 || y.nbytes_extent == 0) return false;
  return x.low < static_cast<char*>(y.data) + y.nbytes_extent && y.low < static_cast<char*>(x.data) + x.nbytes_extent;
}

// One without memory is told from others by where its object lies; of one that cannot be read nothing is known.
Extent ExtentOf(PyObject* tensor, bool written) {
  tensor::Meta m;
  if (!tensor::ReadForGuard(tensor, &m)) return {nullptr, reinterpret_cast<const char*>(UINTPTR_MAX), true};
  if (m.nbytes_extent) return {m.low, static_cast<const char*>(m.data) + m.nbytes_extent, written};
  const auto* object = reinterpret_cast<const char*>(tensor);
  return {object, object + 1, written};
}

bool ShareWritten(std::vector<Extent>& all) {
  std::sort(all.begin(), all.end(), [](const Extent& a, const Extent& b) { return a.low < b.low; });
  const char *end = nullptr, *end_of_written = nullptr;  // of what begins before
  for (const Extent& e : all) {
    if (e.low < (e.written ? end : end_of_written)) return true;
    end = std::max(end, e.high);
    if (e.written) end_of_written = std::max(end_of_written, e.high);
  }
  return false;
}

// --- types and functions --------------------------------------------------------------------------------------------

namespace {

// The definition of a descriptor that `t` was made with: of its __dict__, its weak references or a slot. Null: another.
const void* MadeWith(PyTypeObject* t, PyObject* o) {
  if (!o || (Py_TYPE(o) != &PyGetSetDescr_Type && Py_TYPE(o) != &PyMemberDescr_Type) || PyDescr_TYPE(o) != t)
    return nullptr;
  return Py_TYPE(o) == &PyGetSetDescr_Type
             ? static_cast<const void*>(reinterpret_cast<PyGetSetDescrObject*>(o)->d_getset)
             : reinterpret_cast<PyMemberDescrObject*>(o)->d_member;
}

std::vector<TypeTest::Level> Snapshot(PyTypeObject* t) {
  std::vector<TypeTest::Level> levels;
  for (Py_ssize_t i = 0; t->tp_mro && i < PyTuple_GET_SIZE(t->tp_mro); ++i) {
    PyObject* c = PyTuple_GET_ITEM(t->tp_mro, i);
    TypeTest::Level& level = levels.emplace_back();
    level.type = Expected(c);
    // Static types cannot change; only heap types need their items remembered.
    if (!PyType_HasFeature(reinterpret_cast<PyTypeObject*>(c), Py_TPFLAGS_HEAPTYPE)) continue;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    PyObject* dict = TypeDict(reinterpret_cast<PyTypeObject*>(c));
    while (dict && PyDict_Next(dict, &at, &key, &value))
      level.items.push_back(TypeTest::ItemOf(reinterpret_cast<PyTypeObject*>(c), key, value));
  }
  return levels;
}

bool Matches(PyTypeObject* t, const std::vector<TypeTest::Level>& levels) {
  PyObject* mro = t->tp_mro;
  if (!mro || PyTuple_GET_SIZE(mro) != static_cast<Py_ssize_t>(levels.size())) return false;
  for (size_t i = 0; i < levels.size(); ++i) {
    auto* c = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    if (!levels[i].type.Is(reinterpret_cast<PyObject*>(c))) return false;
    if (!PyType_HasFeature(c, Py_TPFLAGS_HEAPTYPE)) continue;
    PyObject* dict = TypeDict(c);
    if (PyDict_GET_SIZE(dict) != static_cast<Py_ssize_t>(levels[i].items.size())) return false;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    for (const auto& item : levels[i].items) {  // in the same order, which a program may go through
      PyObject* const known = item.name.get();
      if (!PyDict_Next(dict, &at, &key, &value) || !item.Is(c, value)) return false;
      const bool texts = PyUnicode_CheckExact(key) && PyUnicode_CheckExact(known);
      if (key != known && !(texts && PyUnicode_Compare(key, known) == 0)) return false;
    }
  }
  return true;
}

// These are snapshots of the types in use, which all guard sets share. One is replaced when the type's tag has moved
// on.
std::shared_ptr<const std::vector<TypeTest::Level>> SharedSnapshot(PyTypeObject* t, uint32_t tag) {
  struct Entry {
    uint32_t tag;
    std::weak_ptr<const std::vector<TypeTest::Level>> levels;
  };
  static auto* cache = new std::unordered_map<PyTypeObject*, Entry>;
  Entry& e = (*cache)[t];
  if (auto levels = e.levels.lock(); levels && tag && e.tag == tag) return levels;
  auto levels = std::make_shared<const std::vector<TypeTest::Level>>(Snapshot(t));
  e = {tag, levels};
  return levels;
}

bool SameDefault(PyObject* found, const Expected& expected) {
  return expected.Is(found) || (expected.get() && EqualValues(found, expected.get()));
}

}  // namespace

TypeTest::Item TypeTest::ItemOf(PyTypeObject* t, PyObject* name, PyObject* value) {
  if (const void* definition = MadeWith(t, value)) return {Ref::Borrow(name), {}, definition};
  const bool closes = value && PyFunction_Check(value) && PyFunction_GET_CLOSURE(value);
  const bool weakly = closes || (value && PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE));
  return {Ref::Borrow(name), Expected(value, weakly)};
}

bool TypeTest::Item::Is(PyTypeObject* t, PyObject* found) const {
  return made_with ? MadeWith(t, found) == made_with : value.Is(found);
}

TypeTest MakeTypeTest(PyTypeObject* t, PyObject* name) {
  TypeTest test;
  test.type = Expected(reinterpret_cast<PyObject*>(t));
  test.tag = TypeTag(t);
  if (name)
    test.attributes.push_back(TypeTest::ItemOf(t, name, _PyType_Lookup(t, name)));
  else
    test.all = SharedSnapshot(t, test.tag);
  return test;
}

void AddLookup(TypeTest& test, PyObject* name) {
  for (const auto& item : test.attributes)
    if (item.name.get() == name) return;
  auto* t = reinterpret_cast<PyTypeObject*>(test.type.get());
  test.attributes.push_back(TypeTest::ItemOf(t, name, _PyType_Lookup(t, name)));
}

bool TypeTest::HoldsStill(PyTypeObject* t) {
  // Something along the MRO was stored to, or the tag was lost (cache cleared, numbers used up): look at what matters.
  if (all && !Matches(t, *all)) return false;
  for (const auto& item : attributes)
    if (!item.Is(t, _PyType_Lookup(t, item.name.get()))) return false;
  tag = TypeTag(t);
  return true;
}

std::unique_ptr<FunctionTest> MakeFunctionTest(PyFunctionObject* f) {
  auto test = std::make_unique<FunctionTest>();
  test->code = Ref::Borrow(f->func_code);
  test->globals = Ref::Borrow(f->func_globals);
  for (Py_ssize_t i = 0; f->func_defaults && i < PyTuple_GET_SIZE(f->func_defaults); ++i)
    test->defaults.emplace_back(PyTuple_GET_ITEM(f->func_defaults, i));
  PyObject *key, *value;
  for (Py_ssize_t at = 0; f->func_kwdefaults && PyDict_Next(f->func_kwdefaults, &at, &key, &value);)
    test->kwitems.emplace_back(Ref::Borrow(key), value);
  test->disabled = SaysDisabled(f);
  return test;
}

bool FunctionTest::Holds(PyFunctionObject* f) {
  if (f->func_code != code.get() || f->func_globals != globals.get()) return false;
  if (SaysDisabled(f) != disabled) return false;
  const auto count = static_cast<size_t>(f->func_defaults ? PyTuple_GET_SIZE(f->func_defaults) : 0);
  if (count != defaults.size()) return false;
  for (size_t i = 0; i < count; ++i)
    if (!SameDefault(PyTuple_GET_ITEM(f->func_defaults, static_cast<Py_ssize_t>(i)), defaults[i])) return false;
  PyObject* d = f->func_kwdefaults;
  if (!d && kwitems.empty()) return true;
  if (!d || !PyDict_Check(d)) return false;
  if (tag.Fresh(d)) return true;
  tag.Stamp(d);
  Py_ssize_t at = 0;
  size_t i = 0;
  PyObject *key, *value;
  bool same = PyDict_GET_SIZE(d) == static_cast<Py_ssize_t>(kwitems.size());
  for (; same && PyDict_Next(d, &at, &key, &value); ++i)
    same = EqualValues(key, kwitems[i].first.get()) && SameDefault(value, kwitems[i].second);
  if (!same) tag.Invalidate();
  return same;
}

}  // namespace framejit::guard
