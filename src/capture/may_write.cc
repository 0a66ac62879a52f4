#include "capture/may_write.h"

#include <opcode.h>

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "bytecode/code.h"
#include "capture/policy/skipped.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "guard/source.h"
#include "guard/versions.h"

namespace framejit::capture {
namespace {

using bytecode::Op;

// Is it what methods that write into their object, or functions that write into another, are called? Those of tensors
// end in one underscore.
bool Mutates(std::string_view name) {
  constexpr std::string_view kNames[] = {"add",
                                         "append",
                                         "appendleft",
                                         "clear",
                                         "copyto",
                                         "difference_update",
                                         "discard",
                                         "extend",
                                         "extendleft",
                                         "fill",
                                         "heapify",
                                         "heappop",
                                         "heappush",
                                         "heappushpop",
                                         "heapreplace",
                                         "iadd",
                                         "iand",
                                         "ior",
                                         "insert",
                                         "insort",
                                         "insort_left",
                                         "insort_right",
                                         "intersection_update",
                                         "isub",
                                         "itemset",
                                         "ixor",
                                         "move_to_end",
                                         "pop",
                                         "popitem",
                                         "popleft",
                                         "put",
                                         "remove",
                                         "resize",
                                         "reverse",
                                         "rotate",
                                         "setattr",
                                         "setdefault",
                                         "setflags",
                                         "setitem",
                                         "delitem",
                                         "shuffle",
                                         "sort",
                                         "subtract",
                                         "symmetric_difference_update",
                                         "update",
                                         "__setitem__",
                                         "__delitem__",
                                         "__setattr__",
                                         "__iadd__",
                                         "__ior__",
                                         "__iand__",
                                         "__isub__",
                                         "__imul__"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         (name.ends_with('_') && !name.ends_with("__"));
}

// Does an instruction store into an object, or is it the look for what does?
bool IsStore(PyCodeObject* code, const bytecode::Instr& at) {
  switch (at.op) {
    case Op::kStoreAttr:
    case Op::kDeleteAttr:
    case Op::kSetItem:
    case Op::kDeleteItem:
    case Op::kSetSlice: return true;
    case Op::kBinary: return at.arg >= NB_INPLACE_ADD;
    case Op::kLoadMethod:
    case Op::kLoadAttr:
    case Op::kLoadGlobal: return Mutates(PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_names, at.arg)));
    default: return false;
  }
}

// Does code store into an object that it has not made? The object begins where the whole expression begins; it is its
// own if that is a variable that holds nothing but containers, numbers and results of calls.
bool StoresOutside(PyCodeObject* code, const bytecode::Code& all) {
  std::unordered_set<int> others;  // the variables that may hold something else
  const int variadic = !!(code->co_flags & CO_VARARGS) + !!(code->co_flags & CO_VARKEYWORDS);
  const bool makes = !PyUnicode_CompareWithASCIIString(code->co_name, "__init__");  // what it is given first is new
  for (int i = makes; i < code->co_argcount + code->co_kwonlyargcount + variadic; ++i) others.insert(i);
  const bytecode::Instr* last = nullptr;
  for (int i = 0; i < all.size(); ++i) {
    const bytecode::Instr& at = all.At(i);
    if (!at.length) continue;
    const bool made =
        last && (last->op == Op::kBuildList || last->op == Op::kBuildMap || last->op == Op::kBuildSet ||
                 last->op == Op::kListExtend || last->op == Op::kCall || last->op == Op::kCallConstNames ||
                 last->op == Op::kCallStackNames || last->op == Op::kLoadConst || last->op == Op::kBinary);
    if (at.op == Op::kStoreFast && !made) others.insert(at.arg);
    last = &at;
  }
  const auto begins = [&](int i) {
    const bytecode::Location l = bytecode::LocationOf(code, i);
    return std::pair(l.line, l.column);
  };
  for (int i = 0; i < all.size(); ++i) {
    if (!all.At(i).length || !IsStore(code, all.At(i))) continue;
    int root = i;
    do --root;
    while (root >= 0 && !(all.At(root).length && all.At(root).op == Op::kLoadFast && begins(root) == begins(i)));
    if (root < 0 || others.contains(all.At(root).arg)) return true;
  }
  return false;
}

// Goes to everything that code names or an object holds. Functions that were installed, but for the first, are taken to
// write what belongs to their library.
class WriteWalk {
 public:
  explicit WriteWalk(Session& s) : s_(s) {}

  // Does a call bind outside variables, or reach what the capture has looked at? More objects than anybody wants to go
  // through may hold it. What is only given to it, or what it may only call, is reached where its code stores into
  // objects.
  bool Finds(PyObject* function, PyObject* args, PyObject* keywords) {
    if (From(function) || FromMethods()) return true;
    only_given_ = true;
    From(args);
    From(keywords);
    return FromMethods() || (held_ && stores_);
  }

 private:
  static constexpr size_t kMost = 1000;

  static int Visit(PyObject* o, void* walk) { return static_cast<WriteWalk*>(walk)->From(o); }

  bool From(PyObject* o) {
    if (!o || IsPrimitive(o) || !known_.insert(o).second) return false;
    if (PyFunction_Check(o)) return FromFunction(reinterpret_cast<PyFunctionObject*>(o));
    if (PyType_Check(o)) return FromClass(reinterpret_cast<PyTypeObject*>(o));
    if (PyCFunction_Check(o)) {
      stores_ |= Mutates(reinterpret_cast<PyCFunctionObject*>(o)->m_ml->ml_name);
      PyObject* self = PyCFunction_GET_SELF(o);  // null of a static method
      return self && !PyModule_Check(self) && From(self);
    }
    if (IsConstantKind(o) || IsValue(o)) return false;
    if (++objects_ > kMost) return held_ = true, !only_given_;
    if (!PyTuple_CheckExact(o) && !PyCell_Check(o) && s_.SourceOf(o)) {
      if (!PyCallable_Check(o) && !only_given_) return true;
      held_ = true;
    }
    return Py_TYPE(o)->tp_traverse && Py_TYPE(o)->tp_traverse(o, Visit, this);
  }

  bool FromClass(PyTypeObject* type) {
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
    classes_.push_back(type);
    held_ = true;  // It is not known whether its attributes were read.
    return false;
  }

  // Of the classes: those that the code names, and those that Python calls.
  bool FromMethods() {
    for (size_t known = 0; known != known_.size();) {
      known = known_.size();
      for (size_t i = 0; i < classes_.size(); ++i)
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(classes_[i]->tp_mro); ++k)
          if (FromMethodsOf(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(classes_[i]->tp_mro, k)))) return true;
    }
    return false;
  }
  bool FromMethodsOf(PyTypeObject* type) {
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) return false;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(guard::TypeDict(type), &at, &key, &value);) {
      const char* name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : nullptr;
      if (!name) PyErr_Clear();
      if ((!name || names_.contains(name) || IsCalled(name)) && From(value)) return true;
    }
    return false;
  }
  static bool IsCalled(std::string_view name) {
    return name.starts_with("__") && name.ends_with("__") && name != "__setattr__" && name != "__dict__" &&
           name != "__weakref__";
  }

  bool FromFunction(PyFunctionObject* f) {
    auto* code = reinterpret_cast<PyCodeObject*>(f->func_code);
    if (known_.size() > 1 && (SkippedFile(code) || !InstalledAs(code).package.empty())) return false;
    for (PyObject* part : {f->func_closure, f->func_defaults, f->func_kwdefaults, f->func_dict})
      if (part && Visit(part, this)) return true;
    Ref free(PyCode_GetFreevars(code));
    return !free || FromCode(code, f->func_globals, free.get());
  }

  // free: the variables of an enclosing function that the function as a whole names.
  bool FromCode(PyCodeObject* code, PyObject* globals, PyObject* free) {
    const bytecode::Code* all = bytecode::Code::Of(code);
    Ref names(PyCode_GetFreevars(code));
    if (!all || !names) return PyErr_Clear(), true;
    stores_ |= StoresOutside(code, *all);
    const int own = code->co_nlocalsplus - code->co_nfreevars;
    for (int i = 0; i < all->size(); ++i) {
      const bytecode::Instr& at = all->At(i);
      const bool binds = at.op == Op::kStoreDeref || at.op == Op::kDeleteDeref;
      if (at.op == Op::kStoreGlobal || at.op == Op::kDeleteGlobal) return true;
      if (binds && at.arg >= own && PySequence_Contains(free, PyTuple_GET_ITEM(names.get(), at.arg - own))) return true;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i) {
      PyObject* name = PyTuple_GET_ITEM(code->co_names, i);
      names_.insert(PyUnicode_AsUTF8(name));
      if (FromName(code, globals, name)) return true;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); ++i)
      if (PyObject* inner = PyTuple_GET_ITEM(code->co_consts, i); PyCode_Check(inner))
        if (FromCode(reinterpret_cast<PyCodeObject*>(inner), globals, free)) return true;
    return false;
  }

  bool FromName(PyCodeObject* code, PyObject* globals, PyObject* name) {
    PyObject* named = guard::DictLookup(globals, name);
    if (!named || !PyModule_Check(named)) return From(named);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_names); ++i)  // of these, some are attributes
      if (From(guard::DictLookup(PyModule_GetDict(named), PyTuple_GET_ITEM(code->co_names, i)))) return true;
    return false;
  }

  Session& s_;
  std::unordered_set<PyObject*> known_;
  size_t objects_ = 0;  // of these, but for functions and classes
  std::vector<PyTypeObject*> classes_;
  std::unordered_set<std::string_view> names_;  // of all code
  bool only_given_ = false;
  bool held_ = false;    // Does it reach an object, looked at, that is given to it or that it may only call?
  bool stores_ = false;  // Does any of the code store into objects that it has not made?
};

}  // namespace

bool MayWriteWhatWasRead(Session& s, PyObject* function, PyObject* args, PyObject* keywords) {
  return WriteWalk(s).Finds(function, args, keywords);
}

}  // namespace framejit::capture
