// The frame's state at the end of a segment, as a recipe: which objects come from outside, which are results of the
// graph, and how to build the private Python objects that hold them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/session.h"
#include "capture/set_order.h"

namespace framejit::capture {

struct RecipeNode {
  enum Kind : uint8_t {
    kConst,
    kNumber,  // A float or a complex number as `object`, made anew.
    kInput,
    kOwnDict,  // the dict of an object from outside: children
    kOutput,
    kItem,  // The number that an output of the runner holds.
    kSym,
    kSymFloat,
    kTuple,
    kList,
    kDict,
    kSet,
    kFrozenSet,
    kSlice,
    kMethod,
    kBound,
    kCell,
    kFunction,
    kInstance,
    kIterator,  // children: dict or set; object: its method that is iterated, or None; index: items taken so far
    kReduce,    // children: callable, args tuple, [state]
  } kind;
  // kConst, kNumber; kBound: the descriptor; kFunction: code, globals and names, as a function; kInstance: the type
  Ref object;
  int index = 0;              // Of kInput, kOutput and kItem. Of what was made empty before: that node + 1.
  shape::Int expr;            // Of kSym and kSymFloat.
  std::vector<int> children;  // kInstance: the descriptors of slots, each with its value
  int dict = -1;              // kInstance: node of its __dict__, -1 none
  int items = -1;             // The node of the contents: of a kInstance of a dict/list/tuple subclass, of a set.
  std::shared_ptr<const SetTable> table;  // of a set
  bool shares = false;                    // kInstance: does the program have its __dict__ itself, too?
  bool iterates = false;                  // Is it an iterator?
  bool notices = false;                   // Does it refuse to go on once what it iterates over was written?
};

class Recipe {
 public:
  explicit Recipe(Session& s) : s_(&s) {}
  // The node for `o` as captured code sees it, or -1 where it cannot be rebuilt, as why() tells.
  int Add(PyObject* o);
  int AddInput(const Source* source);
  bool Holds(PyObject* o) const { return memo_.contains(o); }
  const std::string& why() const { return why_; }
  // The sources of outside objects that nodes name; these come after the tensors among the inputs.
  std::vector<const Source*> object_sources;
  std::vector<TraceId> outputs;
  std::vector<RecipeNode> nodes;
  std::vector<bool> late;  // Which nodes are made behind the writes of the exit (PutInOrder); empty: none.
  bool IsLate(size_t node) const { return node < late.size() && late[node]; }
  int Push(RecipeNode n) {
    nodes.push_back(std::move(n));
    return static_cast<int>(nodes.size()) - 1;
  }
  // Builds every node, those that are late or the others, into values[i], a new reference each. It returns 0, or -1
  // with an exception set.
  int Build(PyObject* const* inputs, PyObject* const* outputs_in, const int64_t* symbols, size_t num_symbols, bool late,
            std::vector<Ref>* values) const;
  void Seal() {
    s_ = nullptr;
    memo_.clear();
  }

 private:
  int Fail(const std::string& why) {
    if (why_.empty()) why_ = why;
    return -1;
  }
  bool AddAll(PyObject* const* items, Py_ssize_t n, std::vector<int>* out);
  // The parts of AddFresh. Each answers nothing for an object of another kind, and -1 where it cannot be rebuilt.
  int AddFresh(PyObject* o);
  std::optional<int> AddKnown(PyObject* o);
  std::optional<int> AddContainer(PyObject* o);
  std::optional<int> AddCode(PyObject* o);
  std::optional<int> AddValue(PyObject* o);
  int AddProperty(PyObject* o);
  int AddCall(PyObject* callable, PyObject* args);
  int AddBuiltin(PyObject* o);
  int AddInstance(PyObject* o);
  Ref ContentsOf(PyObject* o, PyTypeObject* base);
  bool AddSlots(PyObject* o, std::vector<int>* out);
  int AddIterator(PyObject* iterator, PyObject* container);
  int AddOrderedIterator(PyObject* iterator);
  int PushIterator(PyObject* container, Py_ssize_t taken, const char* method);

  Session* s_;
  std::unordered_map<PyObject*, int> memo_;  // A node is -2 while it is being made.
  std::unordered_map<const Source*, int> input_index_;
  std::string why_;
};

// How a segment ends: what it stores and calls outside, and its result, or what it leaves in the frame. Objects are
// nodes of the recipe.
struct Exit {
  Recipe recipe;
  bool returns = false;
  int return_node = -1;
  int next = 0, depth = 0;                 // Where the frame goes on: instruction and depth of its stack.
  std::vector<std::pair<int, int>> slots;  // (slot, node), node -1: empty
  static constexpr int kNothing = -1;
  std::vector<int> stack;  // nodes, kNothing, or a position that a handler notes: kNothing - 1 - position
  struct Store {
    int dict, key, value;  // The value is -1 where the key is deleted.
  };
  std::vector<Store> stores;
  struct Call {
    Ref method;
    std::vector<int> args;
  };
  std::vector<Call> calls;
  std::vector<std::pair<int, int>> cells;  // (node of the cell, node of its new contents or -1)
  int grad_after = -1;                     // The grad mode to leave behind; -1 leaves it as it is.
  // Is one tensor returned, and nothing else done?
  bool ReturnsOutput() const {
    return returns && recipe.outputs.size() == 1 && recipe.nodes.size() == 1 &&
           recipe.nodes[0].kind == RecipeNode::kOutput && stores.empty() && calls.empty() && cells.empty() &&
           grad_after < 0;
  }
  // The objects are made of the inputs (behind the tensors), the runner's results (which are taken) and the numbers;
  // then all of it happens. changed: the run has written before, so that it cannot be done again.
  diag::RunEnd Take(PyObject** inputs, PyObject** out, const int64_t* symbols, size_t num_symbols, bool changed,
                    FjFrame* frame, PyObject** result);
  // Iterators over what is written here are made behind the writes: they notice changes, and go no further than what
  // they iterate over reaches. False: there is no such order.
  bool PutInOrder();

 private:
  bool IsLate(const Store& store) const;
  bool IsLate(const Call& call) const;
  bool IsLate(int node) const { return node >= 0 && recipe.IsLate(node); }
  // What is late or the rest of it; false with an exception set.
  bool Effects(const std::vector<Ref>& values, bool late);
  void Land(const std::vector<Ref>& values, FjFrame* frame) const;
};

}  // namespace framejit::capture
