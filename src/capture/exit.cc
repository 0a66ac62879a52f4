// This file has the recipes of exit.h. Objects that are shared stay shared, as each has one node. A list, dict, cell or
// instance that contains itself is made empty, where it is first needed, and filled behind all that it holds.
#include "capture/exit.h"

#include <algorithm>
#include <bit>
#include <functional>

#include "capture/builtins.h"
#include "capture/called.h"
#include "capture/identity.h"
#include "capture/no_warnings.h"
#include "capture/numbers/unseen.h"
#include "capture/object_arrays.h"
#include "capture/override.h"
#include "capture/own_attributes.h"
#include "capture/proxy.h"
#include "capture/unread_text.h"
#include "capture/wrappers/tape.h"
#include "capture/wrappers/wrappers.h"
#include "guard/annotate.h"
#include "guard/own_values.h"
#include "guard/versions.h"
#include "tensor/import.h"
#include "tensor/numpy_api.h"

namespace framejit::capture {
namespace {

// All of whose fields are items.
bool IsStructSequence(PyTypeObject* t) {
  PyObject* dict = t->tp_base == &PyTuple_Type ? guard::TypeDict(t) : nullptr;
  if (!dict) return false;
  PyObject *visible = PyDict_GetItemString(dict, "n_sequence_fields"), *all = PyDict_GetItemString(dict, "n_fields");
  return visible && all && PyLong_CheckExact(all) && PyObject_RichCompareBool(visible, all, Py_EQ) == 1;
}

}  // namespace

bool Recipe::AddAll(PyObject* const* items, Py_ssize_t n, std::vector<int>* out) {
  for (Py_ssize_t i = 0; i < n; ++i) {
    int k = Add(items[i]);
    if (k < 0) return false;
    out->push_back(k);
  }
  return true;
}

int Recipe::AddInput(const Source* source) {
  if (source->kind == SourceKind::kInstanceDict) {  // made for what happens behind the run alone (Take)
    RecipeNode n{RecipeNode::kOwnDict};
    n.children.push_back(AddInput(source->base));
    return Push(std::move(n));
  }
  auto [it, added] = input_index_.try_emplace(source, static_cast<int>(object_sources.size()));
  if (added) object_sources.push_back(source);
  RecipeNode n{RecipeNode::kInput};
  n.index = it->second;
  return Push(std::move(n));
}

namespace {

// Of an instance that is made again by its type's base in C, without its __init__, which has a __dict__ at most.
bool HoldsNothing(PyTypeObject* base) {
  static PyObject* const simple = FromModule("types", "SimpleNamespace");
  return base == &PyBaseObject_Type || reinterpret_cast<PyObject*>(base) == simple;
}

// An empty one of what can be filled later.
std::optional<RecipeNode> EmptyOf(PyObject* o) {
  PyTypeObject *t = Py_TYPE(o), *base = LayoutOf(t);
  if (t == &PyList_Type) return RecipeNode{RecipeNode::kList};
  if (t == &PyDict_Type) return RecipeNode{RecipeNode::kDict};
  if (PyCell_Check(o)) return RecipeNode{RecipeNode::kCell};
  const bool ordered = OfType(base, CType::kOrderedDict);
  if (IsWrapper(o) || (base == t && !ordered && !HoldsNothing(t))) return {};
  if (!HoldsNothing(base) && base != &PyDict_Type && base != &PyList_Type && !ordered) return {};
  RecipeNode n{RecipeNode::kInstance};
  n.object = Borrow(reinterpret_cast<PyObject*>(t));
  return n;
}

// Does what makes this node ask objects for more than which they are? They may be empty yet.
bool LooksInto(const std::vector<RecipeNode>& nodes, const RecipeNode& n) {
  const auto asks = [&](int child) {  // its hash
    const RecipeNode::Kind kind = nodes[child].kind;
    return kind == RecipeNode::kTuple || kind == RecipeNode::kInstance || kind == RecipeNode::kReduce;
  };
  switch (n.kind) {
    case RecipeNode::kSet:
    case RecipeNode::kFrozenSet: {
      const std::vector<int>& items = nodes[n.items].children;
      return std::any_of(items.begin(), items.end(), asks);
    }
    case RecipeNode::kDict:
      for (size_t i = 0; i < n.children.size(); i += 2)
        if (asks(n.children[i])) return true;
      return false;
    case RecipeNode::kReduce: {
      PyObject* make = nodes[n.children[0]].object.get();
      return !make || !PyType_Check(make) || reinterpret_cast<PyTypeObject*>(make)->tp_flags & Py_TPFLAGS_HEAPTYPE;
    }
    case RecipeNode::kIterator:
    case RecipeNode::kBound: return true;
    default: return false;
  }
}

int AddConst(Recipe& r, PyObject* o) {
  RecipeNode n{RecipeNode::kConst};
  n.object = Borrow(o);
  return r.Push(std::move(n));
}

int AddCallNode(Recipe& r, PyObject* callable, RecipeNode args) {
  RecipeNode n{RecipeNode::kReduce};
  const int with = r.Push(std::move(args));
  n.children = {AddConst(r, callable), with, AddConst(r, Py_None)};
  return r.Push(std::move(n));
}

// A tensor or a wrapper as what the run computed, which torch knows nothing of yet. -1: it cannot be made again.
int AddUntracked(Recipe& r, Session& s, PyObject* o) {
  if (IsTensor(o)) {
    RecipeNode n{RecipeNode::kOutput};
    n.index = static_cast<int>(r.outputs.size());
    r.outputs.push_back(s.pending().Original(AsTensor(o)->id));
    return r.Push(std::move(n));
  }
  auto [make, inner] = TapeOf(s)->FormOf(o);
  if (!inner) return PyErr_Clear(), -1;
  RecipeNode args{RecipeNode::kTuple};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inner.get()); ++i)
    args.children.push_back(AddUntracked(r, s, PyTuple_GET_ITEM(inner.get(), i)));
  if (std::count(args.children.begin(), args.children.end(), -1)) return -1;
  return AddCallNode(r, make.get(), std::move(args));
}

// Adds what torch made, or what leads gradients to such an object. It gives nothing where the object is neither, and -1
// where it cannot be made again.
std::optional<int> AddFromTape(Recipe& r, Session& s, PyObject* o) {
  static PyObject* const item = [] {
    Ref module(tensor::Import("operator"));
    return module ? PyObject_GetAttrString(module.get(), "getitem") : nullptr;
  }();
  Tape& tape = *TapeOf(s);
  if (!tape.Tracked(o) || tape.IsLeaf(o)) return tape.Made(o) ? std::optional(AddUntracked(r, s, o)) : std::nullopt;
  auto at = std::find(tape.results.begin(), tape.results.end(), o);
  if (tape.gathering) {
    if (at == tape.results.end()) tape.results.push_back(o);
    return AddConst(r, Py_None);
  }
  if (at == tape.results.end() || !item) return -1;
  Ref index(PyLong_FromSsize_t(at - tape.results.begin()));
  RecipeNode args{RecipeNode::kTuple};
  args.children = {tape.leaving_node, AddConst(r, index.get())};
  return AddCallNode(r, item, std::move(args));
}

}  // namespace

void AddLeaving(Recipe& r, Session& s) {
  Tape& tape = *TapeOf(s);
  PyObject* parts = tape.leaving().get();
  if (!parts) return;
  RecipeNode all{RecipeNode::kTuple};
  all.children.push_back(AddConst(r, PyTuple_GET_ITEM(parts, 0)));
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(parts); ++i) {
    PyObject* items = PyTuple_GET_ITEM(parts, i);
    RecipeNode tuple{RecipeNode::kTuple};
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(items); ++k) {
      PyObject* o = PyTuple_GET_ITEM(items, k);
      const bool made = (IsTensor(o) || IsWrapper(o)) && !s.IsOutside(o);
      tuple.children.push_back(made ? AddUntracked(r, s, o) : r.Add(o));
      if (tuple.children.back() < 0) return;  // results say so
    }
    all.children.push_back(r.Push(std::move(tuple)));
  }
  tape.leaving_node = AddCallNode(r, Tape::Leave(), std::move(all));
}

int Recipe::Add(PyObject* o) {
  if (IsLazy(o)) {
    auto* lazy = reinterpret_cast<Lazy*>(o);
    return lazy->resolved ? Add(lazy->resolved) : AddInput(lazy->source);
  }
  if (const Source* found = s_->WhereFound(o)) {
    s_->PinFound(o);
    if (IsLiteral(*s_, o)) s_->guards().Is(found, o);
    return AddInput(found);
  }
  auto [it, added] = memo_.try_emplace(o, -2);
  if (!added && it->second != -2) return it->second;
  constexpr const char* kCycle = "an object that contains itself";
  if (!added) {
    auto empty = EmptyOf(o);
    return empty ? memo_[o] = Push(std::move(*empty)) : Fail(kCycle);
  }
  const int k = AddFresh(o), empty = std::exchange(memo_[o], k);
  if (empty < 0 || k < 0) return k;
  const auto begin = nodes.begin() + empty + 1;
  if (k + 1 != static_cast<int>(nodes.size()) || nodes[k].kind != nodes[empty].kind ||
      std::any_of(begin, nodes.end(), [this](const RecipeNode& n) { return LooksInto(nodes, n); }))
    return memo_[o] = Fail(kCycle);
  nodes[k].index = empty + 1;
  return k;
}

// What the session knows already, and what is the same wherever it is.
std::optional<int> Recipe::AddKnown(PyObject* o) {
  if (IsTensor(o) || IsItemFloat(o)) {
    RecipeNode n{IsTensor(o) ? RecipeNode::kOutput : RecipeNode::kItem};
    n.index = static_cast<int>(outputs.size());
    outputs.push_back(IsTensor(o) ? s_->pending().Original(AsTensor(o)->id) : TensorOfItem(o));
    return Push(std::move(n));
  }
  if (const Source* found = FoundAt(o)) return AddInput(found);
  if (IsSymInt(o)) {
    RecipeNode n{RecipeNode::kSym};
    n.expr = reinterpret_cast<SymInt*>(o)->expr;
    return Push(std::move(n));
  }
  if (IsSymFloat(o)) {
    RecipeNode n{RecipeNode::kSymFloat};
    n.expr = shape::Int::Symbol(reinterpret_cast<SymFloat*>(o)->symbol);
    return Push(std::move(n));
  }
  static PyObject* const getattr = FromModule("builtins", "getattr");
  for (const auto& [id, own] : s_->pending().attributes)
    if (!own.empty() && DictMade(s_->pending(), id) == o) {
      Ref tensor(s_->NewProxy(id));
      return AddCall(getattr, Py_BuildValue("(Os)", tensor.get(), "__dict__"));
    }
  auto cell = s_->root_cells.find(o);
  if (cell != s_->root_cells.end()) return AddInput(s_->guards().Slot(cell->second.slot));
  Origin* g = s_->Find(o);
  if (g && g->kind == Origin::kOutside) return AddInput(g->source);
  if (g && g->real) return Add(g->real);
  if (Bound bound = UnbindBuiltin(o); bound.self) {
    PyObject* self = bound.self.get();
    RecipeNode n{RecipeNode::kBound};
    n.object = std::move(bound.descriptor);
    return AddAll(&self, 1, &n.children) ? Push(std::move(n)) : -1;
  }
  const bool literal = PyTuple_CheckExact(o) && IsLiteral(*s_, o);
  if (IsPrimitive(o) || literal || (g && g->kind == Origin::kConst)) {
    RecipeNode n{IsPrimitive(o) && g && g->kind == Origin::kFresh ? RecipeNode::kNumber : RecipeNode::kConst};
    n.object = Borrow(o);
    return Push(std::move(n));
  }
  return {};
}

std::optional<int> Recipe::AddContainer(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  if (t == &PyTuple_Type || t == &PyList_Type) {
    RecipeNode n{t == &PyTuple_Type ? RecipeNode::kTuple : RecipeNode::kList};
    Ref items(PySequence_Tuple(o));
    if (!AddAll(&PyTuple_GET_ITEM(items.get(), 0), PyTuple_GET_SIZE(items.get()), &n.children)) return -1;
    return Push(std::move(n));
  }
  if (t == &PyDict_Type) {
    RecipeNode n{RecipeNode::kDict};
    PyObject *k, *v;
    Py_ssize_t pos = 0;
    while (PyDict_Next(o, &pos, &k, &v)) {
      PyObject* kv[] = {k, v};
      if (!AddAll(kv, 2, &n.children)) return -1;
    }
    return Push(std::move(n));
  }
  if (t == &PySet_Type || t == &PyFrozenSet_Type) {
    RecipeNode n{t == &PySet_Type ? RecipeNode::kSet : RecipeNode::kFrozenSet};
    Ref items(PySequence_List(o));
    n.table = std::make_shared<SetTable>(o);
    if (!items || (n.items = Add(items.get())) < 0) return -1;
    s_->Keep(items.release());  // its address is in the memo
    return Push(std::move(n));
  }
  if (PySlice_Check(o)) {
    auto* sl = reinterpret_cast<PySliceObject*>(o);
    PyObject* parts[] = {sl->start, sl->stop, sl->step};
    RecipeNode n{RecipeNode::kSlice};
    return AddAll(parts, 3, &n.children) ? Push(std::move(n)) : -1;
  }
  return {};
}

namespace {

// A function of the same code, globals and names. It holds nothing that the function itself got when it was made.
Ref Bare(const PyFunctionObject* f) {
  Ref bare(PyFunction_NewWithQualName(f->func_code, f->func_globals, f->func_qualname));
  auto* made = reinterpret_cast<PyFunctionObject*>(bare.get());
  if (!made) return bare;
  Py_XSETREF(made->func_module, Py_XNewRef(f->func_module));
  Py_XSETREF(made->func_name, Py_NewRef(f->func_name));
  return bare;
}

}  // namespace

std::optional<int> Recipe::AddCode(PyObject* o) {
  if (PyMethod_Check(o)) {
    PyObject* parts[] = {PyMethod_GET_FUNCTION(o), PyMethod_GET_SELF(o)};
    RecipeNode n{RecipeNode::kMethod};
    return AddAll(parts, 2, &n.children) ? Push(std::move(n)) : -1;
  }
  if (PyCell_Check(o)) {
    RecipeNode n{RecipeNode::kCell};
    PyObject* v = PyCell_GET(o);
    if (v && !AddAll(&v, 1, &n.children)) return -1;
    return Push(std::move(n));
  }
  if (!PyFunction_Check(o)) return {};
  auto* f = reinterpret_cast<PyFunctionObject*>(o);
  PyObject *none = Py_None, **annotate = guard::AnnotateOf(f);
  PyObject* parts[] = {f->func_defaults ? f->func_defaults : none,       f->func_kwdefaults ? f->func_kwdefaults : none,
                       f->func_closure ? f->func_closure : none,         f->func_dict ? f->func_dict : none,
                       f->func_annotations ? f->func_annotations : none, f->func_doc ? f->func_doc : none,
                       annotate && *annotate ? *annotate : none};
  RecipeNode n{RecipeNode::kFunction};
  n.object = Bare(f);
  if (!n.object) return PyErr_Clear(), Fail("a function");
  for (PyObject* p : parts)
    if (p == f->func_closure && p) {  // cells
      Ref items(PySequence_Tuple(p));
      RecipeNode tuple{RecipeNode::kTuple};
      if (!AddAll(&PyTuple_GET_ITEM(items.get(), 0), PyTuple_GET_SIZE(items.get()), &tuple.children)) return -1;
      n.children.push_back(Push(std::move(tuple)));
    } else if (!AddAll(&p, 1, &n.children)) {
      return -1;
    }
  return Push(std::move(n));
}

// Adds a call of `callable` with `args`, which it steals. A null among them is an error.
int Recipe::AddCall(PyObject* callable, PyObject* args) {
  PyObject* parts[] = {callable, args, Py_None};
  RecipeNode n{RecipeNode::kReduce};
  bool ok = args && AddAll(parts, 3, &n.children);
  s_->Keep(args);  // its parts' addresses are in the memo
  return ok ? Push(std::move(n)) : -1;
}

// One that was made in the function: its functions are made again, too.
int Recipe::AddProperty(PyObject* o) {
  Ref parts(PyTuple_New(4));
  int i = 0;
  for (const char* name : {"fget", "fset", "fdel", "__doc__"}) {
    PyObject* part = parts ? PyObject_GetAttrString(o, name) : nullptr;
    if (!part) return PyErr_Clear(), Fail("a property");
    PyTuple_SET_ITEM(parts.get(), i++, part);
  }
  Ref own(PyObject_GetAttrString(PyTuple_GET_ITEM(parts.get(), 0), "__doc__"));  // its getter's, taken from that again
  PyErr_Clear();
  if (own.get() == PyTuple_GET_ITEM(parts.get(), 3)) PyTuple_SetItem(parts.get(), 3, Py_NewRef(Py_None));
  return AddCall(reinterpret_cast<PyObject*>(&PyProperty_Type), parts.release());
}

// Immutable objects of the frameworks, and what calling its type with its items makes again.
std::optional<int> Recipe::AddValue(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  if (IsUnreadText(o)) {
    Ref parts(PartsOf(o));
    return parts ? AddCall(TextMaker(), parts.release()) : Fail("a text of a tensor");
  }
  if (IsUnreadMap(o))
    return AddCall(reinterpret_cast<PyObject*>(&PyDict_Type), PyTuple_Pack(1, Ref(ItemsOfMap(o)).get()));
  if (IsUnseen(o) && IdentifiedBy(o)) {
    static PyObject* const id = FromModule("builtins", "id");
    return AddCall(id, PyTuple_Pack(1, IdentifiedBy(o)));
  }
  auto call_with_items = [&] {
    Ref items(PyTuple_New(PyTuple_GET_SIZE(o)));
    for (Py_ssize_t i = 0; items && i < PyTuple_GET_SIZE(o); ++i)
      PyTuple_SET_ITEM(items.get(), i, Py_NewRef(PyTuple_GET_ITEM(o, i)));
    Ref args(items ? PyTuple_Pack(1, items.get()) : nullptr);
    s_->Keep(items.release());
    return AddCall(reinterpret_cast<PyObject*>(t), args.release());
  };
  if (IsSymbolicSize(o)) return call_with_items();
  if (reinterpret_cast<PyObject*>(t) == FlagsType()) {  // the array's own
    static PyObject* const make = [] {
      Ref module(tensor::Import("operator"));
      return module ? PyObject_CallMethod(module.get(), "attrgetter", "s", "flags") : nullptr;
    }();
    Ref array(PyObject_GetAttrString(o, "_array")), args(array ? PyTuple_Pack(1, array.get()) : nullptr);
    return make ? AddCall(make, args.release()) : -1;
  }
  if (FactsOf(t).Has(TypeFacts::kStays) || t == &PyRange_Type || s_->IsNumpyNumber(o) || IsConstantKind(o)) {
    RecipeNode n{RecipeNode::kConst};  // immutable
    n.object = Borrow(o);
    return Push(std::move(n));
  }
  if (tensor::IsObjectArray(o)) {
    Ref parts = PartsOfObjects(*s_, o);
    return parts ? AddCall(ObjectsMaker(), parts.release()) : (PyErr_Clear(), Fail("a view of an array of objects"));
  }
  if (PyTuple_Check(o) && IsStructSequence(t)) return call_with_items();  // torch.return_types.max, ...
  if (t == &PyProperty_Type) return AddProperty(o);
  if (OfType(t, CType::kDeque)) {
    Ref items(PySequence_List(o)), most(PyObject_GetAttrString(o, "maxlen"));
    Ref args(items && most ? PyTuple_Pack(2, items.get(), most.get()) : nullptr);
    s_->Keep(items.release());
    return AddCall(reinterpret_cast<PyObject*>(t), args.release());
  }
  if (OfType(t, CType::kDefaultDict)) {
    Ref items(PyDict_New()), make(PyObject_GetAttrString(o, "default_factory"));
    Ref args(items && make && !PyDict_Update(items.get(), o) ? PyTuple_Pack(2, make.get(), items.get()) : nullptr);
    s_->Keep(items.release());
    return AddCall(reinterpret_cast<PyObject*>(t), args.release());
  }
  return {};
}

// Gives the items of an instance of a subclass of dict, list or tuple, as one of these. It is null after a call of
// Fail.
Ref Recipe::ContentsOf(PyObject* o, PyTypeObject* base) {
  auto fail = [&](const char* why) {
    PyErr_Clear();
    Fail(why);
    return Ref();
  };
  Ref copy;
  if (PyDict_Check(o)) {
    copy = Ref(PyDict_New());
    if (OfType(base, CType::kOrderedDict)) {  // in its own order
      Ref keys(PyObject_CallMethod(reinterpret_cast<PyObject*>(base), "keys", "O", o));
      Ref list(keys ? PySequence_List(keys.get()) : nullptr);
      if (!list || PyList_GET_SIZE(list.get()) != PyDict_GET_SIZE(o)) return fail("an OrderedDict");
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list.get()); ++i) {
        PyObject* k = PyList_GET_ITEM(list.get(), i);
        PyObject* v = PyDict_GetItemWithError(o, k);
        if (!v || PyDict_SetItem(copy.get(), k, v) < 0) return fail("an OrderedDict");
      }
    } else if (PyDict_Update(copy.get(), o) < 0) {
      return fail("a dict");
    }
  } else {
    Ref list(PyList_New(0));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      PyList_Append(list.get(), PySequence_Fast_GET_ITEM(o, i));
    copy = PyTuple_Check(o) ? Ref(PyList_AsTuple(list.get())) : list;
  }
  return copy;
}

// What lies in __slots__: descriptor, value.
bool Recipe::AddSlots(PyObject* o, std::vector<int>* out) {
  PyTypeObject* t = Py_TYPE(o);
  PyObject* mro = t->tp_mro;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); ++i) {
    auto* c = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    if (!(c->tp_flags & Py_TPFLAGS_HEAPTYPE) || !c->tp_dict) continue;
    PyObject *name, *d;
    Py_ssize_t at = 0;
    while (PyDict_Next(c->tp_dict, &at, &name, &d)) {
      if (Py_TYPE(d) != &PyMemberDescr_Type || PyDescr_TYPE(d) != c) continue;
      Ref value(Py_TYPE(d)->tp_descr_get(d, o, reinterpret_cast<PyObject*>(t)));
      if (!value && !PyErr_ExceptionMatches(PyExc_AttributeError)) return PyErr_Clear(), Fail("a slot"), false;
      if (!value) PyErr_Clear();
      PyObject* parts[] = {d, value.get()};
      if (value && !AddAll(parts, 2, out)) return false;
    }
  }
  return true;
}

// For an instance of a Python class, the node has its type, its __dict__, and for subclasses of containers the
// contents.
int Recipe::AddInstance(PyObject* o) {
  PyTypeObject *t = Py_TYPE(o), *base = LayoutOf(t);
  bool ordered = OfType(base, CType::kOrderedDict);
  if (!HoldsNothing(base) && base != &PyDict_Type && base != &PyList_Type && base != &PyTuple_Type && !ordered)
    return Fail(std::string("a ") + t->tp_name);
  RecipeNode n{RecipeNode::kInstance};
  n.object = Borrow(reinterpret_cast<PyObject*>(t));
  if (!HoldsNothing(base)) {
    Ref copy = ContentsOf(o, base);
    n.items = copy ? Add(copy.get()) : -1;
    s_->Keep(copy.release());  // its address is in the memo
    if (n.items < 0) return -1;
  }
  if (t->tp_dictoffset || (t->tp_flags & Py_TPFLAGS_MANAGED_DICT)) {
    Ref dict(PyObject_GenericGetDict(o, nullptr));
    if (!dict) return PyErr_Clear(), Fail("an object without __dict__");
    // It was asked for or set, or somebody beside the object and this reference holds it.
    n.shares = s_->Find(dict.get()) || Py_REFCNT(dict.get()) > 2;
    n.dict = Add(dict.get());
    if (n.dict < 0) return -1;
  }
  return AddSlots(o, &n.children) ? Push(std::move(n)) : -1;
}

int Recipe::AddFresh(PyObject* o) {
  const auto items = PyTuple_Check(o) ? std::span(&PyTuple_GET_ITEM(o, 0), PyTuple_GET_SIZE(o)) : std::span(&o, 1);
  if (std::any_of(items.begin(), items.end(), IsRagged)) return Fail("the size of a ragged dimension");
  if (TapeOf(*s_))
    if (auto node = AddFromTape(*this, *s_, o))
      return *node < 0 ? Fail(std::string("a ") + Py_TYPE(o)->tp_name) : *node;
  if (s_->IsFresh(PyType_Check(o) ? o : reinterpret_cast<PyObject*>(Py_TYPE(o))))
    return Fail("a class that is made in the function");
  if (auto node = AddKnown(o)) return *node;
  if (IsWrapper(o)) {
    auto [make, args] = WrapperRecipe(*s_, o);
    if (!args) return PyErr_Clear(), Fail(std::string("a ") + Py_TYPE(o)->tp_name);
    return AddCall(make, args.release());
  }
  if (auto node = AddContainer(o)) return *node;
  if (auto node = AddCode(o)) return *node;
  if (auto node = AddValue(o)) return *node;
  PyTypeObject* t = Py_TYPE(o);
  return LayoutOf(t) == t && !OfType(t, CType::kOrderedDict) && !HoldsNothing(t) ? AddBuiltin(o) : AddInstance(o);
}

namespace {

using At = std::function<PyObject*(int node)>;  // Gives what was made for a node, as a borrowed reference.

PyObject* MakeFunction(const RecipeNode& n, const At& at) {
  PyObject* r = Bare(reinterpret_cast<PyFunctionObject*>(n.object.get())).release();
  if (!r) return nullptr;
  auto none = [&](int k) { return at(n.children[k]) == Py_None; };
  if ((!none(0) && PyFunction_SetDefaults(r, at(n.children[0])) < 0) ||
      (!none(1) && PyFunction_SetKwDefaults(r, at(n.children[1])) < 0) ||
      (!none(2) && PyFunction_SetClosure(r, at(n.children[2])) < 0))
    return Py_DECREF(r), nullptr;
  auto* made = reinterpret_cast<PyFunctionObject*>(r);
  if (!none(3)) made->func_dict = Borrow(at(n.children[3])).release();
  if (PyObject** annotate = guard::AnnotateOf(made); annotate && !none(6))
    Py_XSETREF(*annotate, Py_NewRef(at(n.children[6])));
  if (!none(4)) made->func_annotations = Borrow(at(n.children[4])).release();
  Py_XSETREF(made->func_doc, Py_NewRef(at(n.children[5])));
  return r;
}

// empty_one: the one that was made before, if there is one; it is taken.
PyObject* MakeInstance(const RecipeNode& n, const At& at, PyObject* empty_one) {
  PyObject* r = empty_one;
  const size_t m = n.children.size();
  auto* t = reinterpret_cast<PyTypeObject*>(n.object.get());
  static PyObject* empty = PyTuple_New(0);
  PyTypeObject* base = LayoutOf(t);
  if (base == &PyTuple_Type) {
    Ref args(PyTuple_Pack(1, at(n.items)));
    r = args ? PyTuple_Type.tp_new(t, args.get(), nullptr) : nullptr;
  } else {
    if (!r) r = base->tp_new(t, empty, nullptr);
    if (r && base == &PyList_Type && n.items >= 0 && PyList_SetSlice(r, 0, 0, at(n.items)) < 0)
      return Py_DECREF(r), nullptr;
    if (r && PyDict_Check(r) && n.items >= 0) {
      PyObject *k, *v;
      Py_ssize_t pos = 0;
      while (PyDict_Next(at(n.items), &pos, &k, &v)) {
        // This is the base class's own __setitem__: an OrderedDict keeps its order, a subclass's hook does not run
        // again.
        int bad = base->tp_as_mapping->mp_ass_subscript(r, k, v);
        if (bad < 0) return Py_DECREF(r), nullptr;
      }
    }
  }
  if (r && n.dict >= 0 &&
      (n.shares ? PyObject_GenericSetDict(r, at(n.dict), nullptr) < 0 : !guard::SetOwn(r, at(n.dict))))
    return Py_DECREF(r), nullptr;
  for (size_t k = 0; r && k < m; k += 2)
    if (Py_TYPE(at(n.children[k]))->tp_descr_set(at(n.children[k]), r, at(n.children[k + 1])) < 0)
      return Py_DECREF(r), nullptr;
  return r;
}

}  // namespace

int Recipe::Build(PyObject* const* inputs, PyObject* const* outs, const int64_t* symbols, size_t num_symbols, bool late,
                  std::vector<Ref>* values) const {
  values->resize(nodes.size());
  auto at = [&](int i) { return (*values)[i].get(); };
  for (size_t i = 0; i < nodes.size(); ++i) {
    const RecipeNode& n = nodes[i];
    if (IsLate(i) != late) continue;
    bool fills = n.index && (n.kind == RecipeNode::kList || n.kind == RecipeNode::kDict ||
                             n.kind == RecipeNode::kCell || n.kind == RecipeNode::kInstance);
    PyObject* r = fills ? Borrow(at(n.index - 1)).release() : nullptr;
    size_t m = n.children.size();
    switch (n.kind) {
      case RecipeNode::kConst: r = Borrow(n.object.get()).release(); break;
      case RecipeNode::kNumber:
        r = PyFloat_Check(n.object.get()) ? PyFloat_FromDouble(PyFloat_AS_DOUBLE(n.object.get()))
                                          : PyComplex_FromCComplex(PyComplex_AsCComplex(n.object.get()));
        break;
      case RecipeNode::kInput: r = Borrow(inputs[n.index]).release(); break;
      case RecipeNode::kOwnDict: r = guard::OwnDict(at(n.children[0])).release(); break;
      case RecipeNode::kOutput: r = Borrow(outs[n.index]).release(); break;
      case RecipeNode::kItem: r = PyObject_CallMethod(outs[n.index], "item", nullptr); break;
      case RecipeNode::kSym: r = PyLong_FromLongLong(n.expr.Eval({symbols, num_symbols})); break;
      case RecipeNode::kSymFloat:
        r = PyFloat_FromDouble(std::bit_cast<double>(n.expr.Eval({symbols, num_symbols})));
        break;
      case RecipeNode::kTuple:
        r = PyTuple_New(m);
        for (size_t k = 0; r && k < m; ++k) PyTuple_SET_ITEM(r, k, Borrow(at(n.children[k])).release());
        break;
      case RecipeNode::kList:
        if (!r) r = PyList_New(m), fills = false;
        for (size_t k = 0; r && k < m; ++k)
          if (!fills)
            PyList_SET_ITEM(r, k, Borrow(at(n.children[k])).release());
          else if (PyList_Append(r, at(n.children[k])) < 0)
            return Py_DECREF(r), -1;
        break;
      case RecipeNode::kDict:
        if (!r) r = PyDict_New();
        for (size_t k = 0; r && k + 1 < m; k += 2)
          if (PyDict_SetItem(r, at(n.children[k]), at(n.children[k + 1])) < 0) return Py_DECREF(r), -1;
        break;
      case RecipeNode::kSet:
      case RecipeNode::kFrozenSet: r = n.table->Make(at(n.items), n.kind == RecipeNode::kFrozenSet); break;
      case RecipeNode::kSlice: r = PySlice_New(at(n.children[0]), at(n.children[1]), at(n.children[2])); break;
      case RecipeNode::kMethod: r = PyMethod_New(at(n.children[0]), at(n.children[1])); break;
      case RecipeNode::kBound: {
        PyObject* self = at(n.children[0]);
        r = Py_TYPE(n.object.get())->tp_descr_get(n.object.get(), self, reinterpret_cast<PyObject*>(Py_TYPE(self)));
        break;
      }
      case RecipeNode::kCell:
        if (!r) r = PyCell_New(nullptr);
        if (r && m) PyCell_SET(r, Py_NewRef(at(n.children[0])));
        break;
      case RecipeNode::kFunction: r = MakeFunction(n, at); break;
      case RecipeNode::kInstance: r = MakeInstance(n, at, r); break;
      case RecipeNode::kIterator: {
        Ref view(n.object.get() == Py_None ? Borrow(at(n.children[0]))
                                           : Ref(PyObject_CallMethodNoArgs(at(n.children[0]), n.object.get())));
        r = view ? PyObject_GetIter(view.get()) : nullptr;
        for (int k = 0; r && k < n.index; ++k) Py_XDECREF(Py_TYPE(r)->tp_iternext(r));
        break;
      }
      case RecipeNode::kReduce: {
        const SuspendScope off;  // what makes an object is not the program's
        r = PyObject_CallObject(at(n.children[0]), at(n.children[1]));
        if (r && at(n.children[2]) != Py_None) {
          NoWarnings quiet;
          Ref name(PyUnicode_InternFromString("__setstate__"));  // the state is one argument, also where it is a tuple
          Ref done(name ? PyObject_CallMethodOneArg(r, name.get(), at(n.children[2])) : nullptr);
          if (!done) return Py_DECREF(r), -1;
        }
        break;
      }
    }
    if (!r) return -1;
    (*values)[i] = Ref(r);
  }
  return 0;
}

}  // namespace framejit::capture
