#include "capture/called.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "capture/builtins.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/wrappers/overrides.h"

namespace framejit::capture {
namespace {

struct Called {
  PyObject_HEAD vectorcallfunc call;
  PyObject* function;
  PyObject* sentinel;  // of iter(function, sentinel), or null
};
Called* AsCalled(PyObject* o) {
  return reinterpret_cast<Called*>(o);
}

// 1: what the function gave ends the iteration; -1: an exception.
int Ends(frame::Semantics& sem, PyObject* sentinel, PyObject* given) {
  if (const int same = sem.Is(sentinel, given)) return same;
  Ref equal(sem.Compare(sentinel, given, Py_EQ));
  if (!equal) return -1;
  return equal.get() == Py_True ? 1 : equal.get() == Py_False ? 0 : sem.Truth(equal.get());
}

PyObject* Make(PyObject* o, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Ref held = Borrow(o);  // an iterator that is asked by its own function may let go of it
  const Called& called = *AsCalled(o);
  frame::Semantics* sem = CurrentSemantics();
  if (!sem) return PyObject_Vectorcall(called.function, args, nargsf, kwnames);
  PyObject* given = sem->Call(called.function, args, PyVectorcall_NARGS(nargsf), kwnames);
  if (!given || !called.sentinel) return given;
  const int ends = Ends(*sem, called.sentinel, given);
  if (!ends) return given;
  Py_DECREF(given);
  if (ends > 0) PyErr_SetNone(PyExc_StopIteration);
  return nullptr;
}

// The iterator compares this object, as its sentinel, with what is given: that was done.
PyObject* Compare(PyObject*, PyObject*, int op) {
  return PyBool_FromLong(op == Py_NE);
}

int Traverse(PyObject* o, visitproc visit, void* arg) {
  Py_VISIT(AsCalled(o)->function);
  Py_VISIT(AsCalled(o)->sentinel);
  return 0;
}
int Clear(PyObject* o) {
  Py_CLEAR(AsCalled(o)->function);
  Py_CLEAR(AsCalled(o)->sentinel);
  return 0;
}
void Free(PyObject* o) {
  PyObject_GC_UnTrack(o);
  Clear(o);
  PyObject_GC_Del(o);
}

PyObject* New(PyObject* function, PyObject* sentinel) {
  auto* c = PyObject_GC_New(Called, &CalledType);
  if (!c) return nullptr;
  c->call = Make;
  c->function = Py_NewRef(function);
  c->sentinel = Py_XNewRef(sentinel);
  PyObject_GC_Track(c);
  return reinterpret_cast<PyObject*>(c);
}

// What calls a function that it is given, where it stands among the arguments, and by which name.
struct Caller {
  std::string_view name;
  int place;
  const char* keyword = "";
};
constexpr Caller kTypes[] = {
    {"map", 0},
    {"filter", 0},
    {"itertools.accumulate", 1, "func"},
    {"itertools.dropwhile", 0},
    {"itertools.filterfalse", 0},
    {"itertools.groupby", 1, "key"},
    {"itertools.starmap", 0},
    {"itertools.takewhile", 0},
};
constexpr Caller kFunctions[] = {
    {"max", -1, "key"},
    {"min", -1, "key"},
    {"reduce", 0},
    {"sorted", -1, "key"},
};
constexpr Caller kOfLists[] = {{"sort", -1, "key"}};

}  // namespace

PyTypeObject CalledType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.Called",
    .tp_basicsize = sizeof(Called),
    .tp_dealloc = Free,
    .tp_vectorcall_offset = offsetof(Called, call),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_traverse = Traverse,
    .tp_clear = Clear,
    .tp_richcompare = Compare,
};

bool ReadsAttributes(PyObject* o) {
  if (o == reinterpret_cast<PyObject*>(&PyType_Type)) return true;
  if (OfType(o, CType::kAttrGetter) || OfType(o, CType::kMethodCaller)) return true;
  if (!PyCFunction_Check(o) || EffectOfFunction(o) != Effect::kSpecial) return false;
  const char* name = reinterpret_cast<PyCFunctionObject*>(o)->m_ml->ml_name;
  for (const char* n : {"getattr", "hasattr", "setattr", "delattr", "vars", "id", "next"})
    if (!strcmp(name, n)) return true;
  return false;
}

PyObject* ForCaller(Session& s, PyObject* function) {
  const std::string name = PyCFunction_Check(function) ? tensor::CalleeOf(function).name() : "";
  if (!name.starts_with("torch.") && !name.starts_with("numpy.") && !ReadsAttributes(function)) return nullptr;
  return s.MarkFresh(New(function, nullptr));
}

PyObject** GivenToCall(PyTypeObject* owner, std::string_view name, PyObject** args, Py_ssize_t nargs,
                       PyObject* kwnames) {
  const auto among = [&](const auto& callers) -> PyObject** {
    for (const Caller& c : callers) {
      if (c.name != name) continue;
      if (c.place >= 0 && c.place < nargs) return args + c.place;
      for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); ++i)
        if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), c.keyword)) return args + nargs + i;
    }
    return nullptr;
  };
  return owner == &PyType_Type   ? among(kTypes)
         : owner == &PyList_Type ? among(kOfLists)
         : owner                 ? nullptr
                                 : among(kFunctions);
}

PyObject* IterUntil(Session& s, PyObject* function, PyObject* sentinel) {
  if (!PyCallable_Check(function)) return PyErr_SetString(PyExc_TypeError, "iter(v, w): v must be callable"), nullptr;
  Ref called(New(function, sentinel));
  return called ? s.MarkFresh(PyCallIter_New(called.get(), called.get())) : nullptr;
}

Ref ReducedAsGiven(PyObject* o) {
  static PyObject* const iter = FromModule("builtins", "iter");
  Ref reduced(PyObject_CallMethod(o, "__reduce__", nullptr));
  if (!reduced || !PyTuple_Check(reduced.get()) || PyTuple_GET_SIZE(reduced.get()) < 2) return reduced;
  PyObject* args = PyTuple_GET_ITEM(reduced.get(), 1);
  if (!PyTuple_CheckExact(args)) return reduced;
  PyObject *const *first = &PyTuple_GET_ITEM(args, 0), *const *last = first + PyTuple_GET_SIZE(args);
  PyObject* const* called = std::find_if(first, last, [](PyObject* x) { return Py_TYPE(x) == &CalledType; });
  if (called == last) return Py_IS_TYPE(o, &PyCallIter_Type) ? Ref() : std::move(reduced);
  const Called& c = *AsCalled(*called);
  if (c.sentinel) return Ref(Py_BuildValue("(O(OO))", iter, c.function, c.sentinel));
  Ref all(PySequence_List(args)), whole(PySequence_List(reduced.get()));
  if (!all || !whole || PyList_SetItem(all.get(), called - first, Py_NewRef(c.function)) < 0 ||
      PyList_SetItem(whole.get(), 1, PyList_AsTuple(all.get())) < 0)
    return {};
  return Ref(PyList_AsTuple(whole.get()));
}

}  // namespace framejit::capture
