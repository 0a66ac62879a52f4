// The frozen form of a guard set. Nodes are the sources in depth-first order, so a base always stands before what hangs
// on it, and each node has the tests of its value. The items of a dict are looked up together, as a group. While the
// dict's tag is fresh the lookups are skipped, and so is every "covered" test: one whose outcome cannot change as long
// as the dict holds the same object (identity, values of immutable objects, absence). So a call checks of a module its
// type, the tags of its dicts, and its tensors. Values of which the same is asked share their tests, so
// that a model's program is little besides its sources and nodes.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "guard/guard.h"
#include "guard/source.h"
#include "guard/versions.h"
#include "tensor/tensor.h"

struct FjOwn;  // own_values.h

namespace framejit::guard {

// --- expectations ---------------------------------------------------------------------------------------------------

struct TensorTest {
  // What Dim::symbol may be beside the number of a symbol, which is bound or compared with.
  static constexpr int32_t kCompare = -1, kExpression = -2;
  tensor::Class klass = tensor::Class::kTorch;
  PyTypeObject* seen = nullptr;  // a type that classified as `klass` (framework types never die)
  DType dtype;
  Device device;
  int rank = 0;
  uint64_t key_set = 0;
  bool requires_grad = false;
  bool Same(const TensorTest& o) const {  // Compares tests without symbols.
    return klass == o.klass && dtype == o.dtype && device == o.device && rank == o.rank && key_set == o.key_set &&
           requires_grad == o.requires_grad && expected == o.expected && !symbolic_mask && !o.symbolic_mask;
  }
  struct Dim {
    int64_t value = 0;  // for kCompare: the expected size or stride
    int32_t symbol = kCompare;
    bool binds = false;     // the symbol occurs here first, and takes the value
    shape::Int expression;  // for kExpression: compared once all symbols are bound
  };
  std::vector<int64_t> expected;              // Sizes, then strides. Those that are symbols mean nothing here.
  std::vector<std::pair<int, Dim>> symbolic;  // with their places in `expected`
  uint64_t symbolic_mask = 0;
};

// A test of kTypeVersion.
struct TypeTest {
  Expected type;
  uint32_t tag = 0;  // a state of the type in which the test is known to hold
  // An attribute, and what it was (null: nothing). Objects of the program's classes are not kept alive, nor are
  // functions that close over any.
  struct Item {
    Ref name;
    Expected value;
    const void* made_with = nullptr;  // of a descriptor that the class was made with, which holds it: its definition
    bool Is(PyTypeObject* t, PyObject* found) const;
  };
  static Item ItemOf(PyTypeObject* t, PyObject* name, PyObject* value);
  std::vector<Item> attributes;  // what lookups gave
  // One class of the method resolution order, and what its dict held.
  struct Level {
    Expected type;
    std::vector<Item> items;
  };
  std::shared_ptr<const std::vector<Level>> all;  // null: only `attributes` matter
  // The type of `t` is `type`.
  bool Holds(PyTypeObject* t) { return (tag && t->tp_version_tag == tag) || HoldsStill(t); }

 private:
  bool HoldsStill(PyTypeObject* t);
};

struct FunctionTest {
  Ref code, globals;
  // Objects of the program's classes are not kept alive.
  std::vector<Expected> defaults;
  std::vector<std::pair<Ref, Expected>> kwitems;  // the items of __kwdefaults__, in order
  DictTag tag;
  bool disabled;
  bool Holds(PyFunctionObject* f);
};

// A test of kEqual between a set or frozenset and the frozenset that is expected.
struct SetTest {
  struct Item {
    Py_hash_t hash;
    Ref key;
  };
  std::vector<Item> items;  // in the order of their hashes
};

// --- the program ----------------------------------------------------------------------------------------------------

struct Test {
  Kind kind;
  bool covered = false;  // the identity of the value decides it (see above)
  int32_t extra = -1;    // index into Program's tensors, types, functions or sets, as the kind wants
  Expected expected;     // for kIs, kTypeIs, kEqual, and kKeys (a tuple)
  int64_t number = 0;
  bool Same(const Test& o) const {
    return kind == o.kind && covered == o.covered && extra == o.extra && expected.held() == o.expected.held() &&
           number == o.number;
  }
};

struct Node {
  int32_t parent = -1;
  int32_t group = -1;
  int32_t first = 0, last = 0;  // tests, shared with nodes that have the same ones
  int32_t index = 0;            // as in Source; kMember: of its MemberCache
  SourceKind kind = SourceKind::kSlot;
  bool looked_up = false;  // it is an item of a dict, and its group sets `value`
  bool required = false;   // it must exist, being an input or part of a relation
  bool in_object = false;  // the dict of an object: as good, for all that is asked, are attributes that lie in it
  const Source* source = nullptr;
  PyObject* value = nullptr;  // found by the check in progress, or still true while the group is fresh, or ever
};

struct Lookup {
  int32_t node;         // the node; else, from -1 on downwards, twice the number of its source in the pool, and whether
                        // it is one of Program::empties
  int32_t first, last;  // covered tests, shared like those of nodes; of `empties` all that there are
  static int32_t Without(uint32_t source, bool empty) { return ~static_cast<int32_t>(source << 1 | empty); }
  bool has_node() const { return node >= 0; }
  bool empty() const { return node < 0 && (~node & 1); }
};

struct Group {
  DictTag tag;
  int32_t first = 0, last = 0;            // The lookups that belong to it.
  int32_t keys_first = 0, keys_last = 0;  // the tests of kinds kKeys and kEntries of the dict itself
  int32_t empties_first = 0, empties_last = 0;
};

// The names of a test of kEntries: of what is not there, and of what is empty.
inline std::span<PyObject* const> EntryNames(PyObject* entries, bool empty) {
  PyObject* names = PyTuple_GET_ITEM(entries, empty);
  return {reinterpret_cast<PyTupleObject*>(names)->ob_item, static_cast<size_t>(PyTuple_GET_SIZE(names))};
}

// A test of kSameObject or kDifferentObject.
struct Relation {
  Kind kind;
  int32_t a, b;
  Line where;
};

// A missing dict of these kinds is an empty one (objects and functions get theirs on demand).
constexpr bool MissingIsEmpty(SourceKind k) {
  return k == SourceKind::kInstanceDict || k == SourceKind::kFuncDict || k == SourceKind::kKwDefaults;
}

class Program final : public GuardSet {
 public:
  bool Check(PyObject* const* slots, PyObject** inputs, int64_t* symbols) override;
  int num_inputs() const override { return static_cast<int>(inputs.size()); }
  int num_symbols() const override { return static_cast<int>(symbol_info.size()); }
  bool Dead() const override;
  std::string Explain(PyObject* const* slots, PyObject* varnames) override;
  std::vector<std::pair<int, int>> DynamicCandidates(PyObject* const* slots) override;
  std::string InputName(int input, PyObject* varnames) const override {
    return nodes[inputs[input]].source->str(varnames);
  }
  std::vector<std::string> DynamicInts(PyObject* const* slots) override;
  std::vector<std::string> Describe(PyObject* varnames) const override;
  PyObject* Resolve(const Source* source, PyObject* const* slots) const override;
  void Cover(PyObject* const* slots) const override;
  int Traverse(visitproc visit, void* arg) override;

  std::shared_ptr<SourcePool> pool;
  std::vector<Node> nodes;
  std::vector<Test> tests;
  std::vector<Line> where;  // by test: the user's line that caused it; where lines differ, tests are not shared
  const Source& SourceOf(const Lookup& l) const {
    return l.has_node() ? *nodes[l.node].source : pool->sources()[~l.node >> 1];
  }
  std::vector<Lookup> lookups;
  std::vector<Group> groups;
  // Of items of which nothing is asked but that they are empty (kNoItems, kEntries), as of the dicts of a module's
  // hooks, the values that a group has found: first those of kEntries. They need no nodes.
  std::vector<PyObject*> empties;
  std::vector<TensorTest> tensors;
  std::vector<TypeTest> types;
  std::vector<std::unique_ptr<FunctionTest>> functions;
  std::vector<SetTest> sets;
  std::vector<MemberCache> members;  // Of nodes of this kind.
  std::vector<Relation> relations;
  struct Written {
    int32_t node;
    bool written;
    Line where;
  };
  std::vector<Written> apart;     // kApart
  std::vector<int32_t> distinct;  // The nodes of a kDistinct.
  std::vector<shape::Guard> shape_guards;
  std::vector<int32_t> inputs;  // The nodes that are inputs.
  std::vector<shape::SymbolInfo> symbol_info;
  std::optional<tensor::TorchState> torch_state;
  Line torch_state_where;
  std::optional<std::pair<uint64_t, uint64_t>> numpy_state;
  Line numpy_state_where;
  bool expressions = false;  // some tensor has kExpression dimensions, and is read again at the end
  // In front of this node all symbols that shape_guards name are bound: a version for other sizes is told from this one
  // before the nodes of a model are walked. -1: there are none.
  int32_t sizes_at = -1;

 private:
  friend class Explainer;
  bool Run(PyObject* const* slots, PyObject** out, int64_t* symbols);
  bool Refresh(Group& g, PyObject* dict, bool may_miss, int64_t* symbols);
  bool InObject(const Node& node, const FjOwn& own, int64_t* symbols);
  bool Nothing(const Node& node) const;
  bool Holds(Test& t, PyObject* v, int64_t* symbols);
  bool SizesHold(const int64_t* symbols) const;
  bool Relations(int64_t* symbols);
  bool Apart();
  bool Distinct();
  bool busy_ = false;
  std::vector<Extent> extents_;  // Those of one check.
  std::vector<PyObject*> objects_;
};

bool HasNoItems(PyObject* v);  // as kNoItems asks
// Shared by check and explain.
bool EqualValues(PyObject* found, PyObject* expected);
bool IsNan(PyObject* o);  // a float or complex number that is none, of Python or NumPy
// The same of keys and items of sets, where a number that is none equals itself alone.
bool SameKey(PyObject* found, PyObject* key);
bool EqualSet(PyObject* found, const SetTest& t);
bool KeysMatch(PyObject* container, PyObject* keys /*tuple*/);  // dict order; a set's iteration order
bool OrderedKeysMatch(PyObject* odict, PyObject* keys);         // In the order that an OrderedDict keeps.
Py_ssize_t LengthOf(PyObject* o);                               // -1: not a container kLength knows
bool BindSymbol(const shape::SymbolInfo& info, bool binds, int64_t value, int64_t* slot);

using tensor::ReadNumpyState;

TypeTest MakeTypeTest(PyTypeObject* t, PyObject* name_or_null);
void AddLookup(TypeTest& test, PyObject* name);  // makes it test one more attribute
std::unique_ptr<FunctionTest> MakeFunctionTest(PyFunctionObject* f);

}  // namespace framejit::guard
