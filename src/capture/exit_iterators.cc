// The recipes of iterators, and of other builtin objects that know how to rebuild themselves (exit.h).
#include <cstring>
#include <string>
#include <utility>

#include "capture/called.h"
#include "capture/exit.h"
#include "capture/no_warnings.h"
#include "capture/session.h"
#include "capture/types.h"

namespace framejit::capture {
namespace {

struct OrderedIterator {  // CPython's own type (Objects/odictobject.c), which no header has.
  PyObject_HEAD int kind;
  PyObject* dict;  // Null at its end.
};

}  // namespace

// A file in memory: what is in it, and where it is read and written.
static bool IsFileInMemory(PyTypeObject* t) {
  return OfType(t, CType::kStringIO) || !strcmp(t->tp_name, "_io.BytesIO");
}

int Recipe::AddBuiltin(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  if (IsFileInMemory(t)) {
    Ref state(PyObject_CallMethod(o, "__getstate__", nullptr)), nothing(PyTuple_New(0));
    PyObject* parts[] = {reinterpret_cast<PyObject*>(t), nothing.get(), state.get()};
    RecipeNode n{RecipeNode::kReduce};
    if (!state || !nothing) return PyErr_Clear(), Fail("a closed file in memory");
    const bool ok = AddAll(parts, 3, &n.children);
    for (Ref* part : {&nothing, &state}) s_->Keep(part->release());  // their addresses are in the memo
    return ok ? Push(std::move(n)) : -1;
  }
  PyObject* container = nullptr;  // of an iterator that notices when what it iterates over changes
  if (t == &PyDictIterKey_Type || t == &PyDictIterValue_Type || t == &PyDictIterItem_Type || t == &PySetIter_Type)
    t->tp_traverse(
        o,
        [](PyObject* x, void* out) {
          if (PyDict_Check(x) || PyAnySet_Check(x)) *static_cast<PyObject**>(out) = x;
          return 0;
        },
        &container);
  if (container) return AddIterator(o, container);
  if (t == &PyODictIter_Type && reinterpret_cast<OrderedIterator*>(o)->dict) return AddOrderedIterator(o);
  if (FactsOf(t).Has(TypeFacts::kReduced) || (PyIter_Check(o) && !PyGen_Check(o))) {
    NoWarnings quiet;
    Ref reduced = ReducedAsGiven(o);
    if (reduced && PyTuple_Check(reduced.get()) && PyTuple_GET_SIZE(reduced.get()) >= 2) {
      RecipeNode n{RecipeNode::kReduce};
      n.iterates = PyIter_Check(o);
      n.notices = FactsOf(t).Has(TypeFacts::kNotices);
      PyObject* state = PyTuple_GET_SIZE(reduced.get()) > 2 ? PyTuple_GET_ITEM(reduced.get(), 2) : Py_None;
      PyObject* parts[] = {PyTuple_GET_ITEM(reduced.get(), 0), PyTuple_GET_ITEM(reduced.get(), 1), state};
      bool ok = AddAll(parts, 3, &n.children);
      s_->Keep(reduced.release());  // its parts' addresses are in the memo
      return ok ? Push(std::move(n)) : -1;
    }
    PyErr_Clear();
  }
  return Fail(std::string("a ") + t->tp_name);
}

int Recipe::AddIterator(PyObject* iterator, PyObject* container) {
  struct Iterator {  // Objects/dictobject.c and Objects/setobject.c begin so.
    PyObject_HEAD PyObject* container;
    Py_ssize_t used;
  };
  Py_ssize_t left = PyObject_LengthHint(iterator, -1);
  Py_ssize_t all = PyDict_Check(container) ? PyDict_GET_SIZE(container) : PySet_GET_SIZE(container);
  if (left < 0 || left > all || reinterpret_cast<Iterator*>(iterator)->used != all)  // It changed behind the iterator.
    return PyErr_Clear(), Fail(std::string("a ") + Py_TYPE(iterator)->tp_name);
  const char* method = Py_TYPE(iterator) == &PyDictIterValue_Type  ? "values"
                       : Py_TYPE(iterator) == &PyDictIterItem_Type ? "items"
                                                                   : nullptr;
  return PushIterator(container, all - left, method);
}

int Recipe::PushIterator(PyObject* container, Py_ssize_t taken, const char* method) {
  RecipeNode n{RecipeNode::kIterator};
  n.iterates = true;
  n.index = static_cast<int>(taken);
  n.object = method ? Ref(PyUnicode_InternFromString(method)) : Borrow(Py_None);
  return AddAll(&container, 1, &n.children) ? Push(std::move(n)) : -1;
}

// It notices when its OrderedDict changes, and tells only by __reduce__ how much it has left: as a list.
int Recipe::AddOrderedIterator(PyObject* iterator) {
  constexpr int kReversed = 1, kKeys = 2, kValues = 4;
  const auto* it = reinterpret_cast<OrderedIterator*>(iterator);
  const char* method = nullptr;
  switch (it->kind) {
    case kKeys: break;
    case kKeys | kReversed: method = "__reversed__"; break;
    case kValues: method = "values"; break;
    case kKeys | kValues: method = "items"; break;
    default: return Fail("an iterator over an OrderedDict");
  }
  Ref reduced(PyObject_CallMethod(iterator, "__reduce__", nullptr));
  PyObject* args = reduced ? PyTuple_GetItem(reduced.get(), 1) : nullptr;
  PyObject* rest = args ? PyTuple_GetItem(args, 0) : nullptr;
  const Py_ssize_t left = rest ? PyObject_Size(rest) : -1, all = PyODict_Size(it->dict);
  if (left < 0 || left > all) return PyErr_Clear(), Fail("an iterator over an OrderedDict");
  return PushIterator(it->dict, all - left, method);
}

}  // namespace framejit::capture
