// What a pass looks for. Where it looks for some gradients only (torch.autograd.grad), the framework's engine does not
// tell for which, but nobody can ask for the gradient of a result that nobody holds.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "tensor/segment_node.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {

// Does the pass that the engine is at go to all that its gradients lead to? Where it looks for some only, it has a
// table of nodes (torch::autograd::GraphTask::exec_info_), of which nothing but its length is read. Empty: nobody
// knows.
static std::optional<bool> GoesToAll() {
  const void* nodes = Torch()->nodes_of_pass ? Torch()->nodes_of_pass() : nullptr;
  if (!nodes) return {};
  return static_cast<const std::unordered_map<void*, void*>*>(nodes)->empty();
}

// Are all gradients of the inputs computed? Of leaves the framework says so in passes that go everywhere, or where they
// are told by backward(inputs=...).
bool SegmentHook::GoesEverywhere(CallState* s, const std::vector<bool>& tangents) {
  SavedError error;
  const std::optional<bool> all = GoesToAll();
  if (all && *all) return s->inputs;
  for (int i : t_.edges) {
    if (!s->inputs) break;
    bool reached = NodeOf(i) < num_parts();
    for (size_t k = 0; !reached && k < tangents.size(); ++k) reached = tangents[k] && t_.reached_by[t_.group[i]][k];
    if (!reached) continue;
    PyObject* input = PyTuple_GET_ITEM(s->inputs, i);
    Ref node(PyObject_GetAttrString(input, "grad_fn"));
    const bool leaf = node && node.get() == Py_None;
    if (leaf) node = NodeOfLeaf(input);
    const int runs = node ? WillRun(node.get()) : -1;
    PyErr_Clear();
    if (runs <= 0) return false;
    if (leaf && !all) return true;
  }
  return s->inputs;
}

// The inputs whose gradients a pass does not look for, where it calls functions of the program's: eager comes by none
// that leads to such inputs alone. Empty: all are looked for, or nobody would see it.
std::vector<bool> SegmentHook::Skipped(CallState* s) const {
  const void* nodes = t_.calls_own && s->inputs && Torch()->nodes_of_pass ? Torch()->nodes_of_pass() : nullptr;
  struct Runs {  // torch::autograd::GraphTask::ExecInfo
    bool needed;
    void* captures;
  };
  const auto* known = static_cast<const std::unordered_map<void*, Runs>*>(nodes);
  if (!known || known->empty()) return {};
  SavedError error;
  std::vector<bool> skipped(t_.wanted.size());
  for (int i : t_.edges) {
    PyObject* input = PyTuple_GET_ITEM(s->inputs, i);
    Ref node(PyObject_GetAttrString(input, "grad_fn"));
    if (node.get() == Py_None) {  // the framework does not say it of leaves
      node = NodeOfLeaf(input);
      struct OfFramework {  // THPCppFunction, whose pointer to the node may count by itself or beside
        PyObject_HEAD void* node;
      };
      const Py_ssize_t size = node ? Py_TYPE(node.get())->tp_basicsize - sizeof(OfFramework) : -1;
      if (size != 0 && size != sizeof(void*)) continue;
      const auto at = known->find(reinterpret_cast<OfFramework*>(node.get())->node);
      skipped[i] = at == known->end() || !(at->second.needed || at->second.captures);
    } else {
      skipped[i] = node && WillRun(node.get()) == 0;
    }
    PyErr_Clear();
  }
  return skipped;
}

// Does somebody hold the node of a result of which others are made, to which a pass comes from this one, as
// torch.autograd.graph.GradientEdge does? The graph holds a node of Python's once, and one of its own as no object.
bool SegmentHook::HoldsInnerNode(CallState* head, PyObject* ctx) {
  std::vector<Ref> from;
  std::set<PyObject*> seen;
  from.push_back(Ref::Borrow(ctx));
  while (!from.empty()) {
    const Ref node = std::move(from.back());
    from.pop_back();
    Ref state(PyObject_GetAttr(node.get(), Interned(kState))),
        next(PyObject_GetAttrString(node.get(), "next_functions"));
    if (!state || !next) return true;
    const int output = -1 - reinterpret_cast<CallState*>(state.get())->part;
    const size_t edges = output < 0 ? 0 : InnerOf(output).size();
    const auto node_of = [&](size_t edge) {
      return PyTuple_GET_ITEM(PyTuple_GET_ITEM(next.get(), static_cast<Py_ssize_t>(edge)), 0);
    };
    PyObject* const segment = edges ? node_of(0) : nullptr;
    for (size_t k = 1; k <= edges; ++k) {
      Ref to = Ref::Borrow(node_of(k));
      if (to.get() == Py_None || !seen.insert(to.get()).second) continue;
      const bool own = MadeBy(to.get(), head);
      Py_ssize_t known = 2 + own;  // `to` and its edge
      if (to.get() == segment)
        known += 1 + static_cast<Py_ssize_t>(t_.reached_by.size());  // edge 0, the groups' states
      if (Py_REFCNT(to.get()) > known) return true;
      if (own) from.push_back(std::move(to));
    }
  }
  return false;
}

// Does somebody hold one of these results, besides the calls that it is an input of?
static bool HoldsAny(const std::vector<Ref>& results) {
  std::map<PyObject*, Py_ssize_t> known;
  for (const Ref& result : results) known.emplace(result.get(), 1);
  EachInput([&](PyObject* input) {
    if (auto at = known.find(input); at != known.end()) ++at->second;
  });
  return std::any_of(known.begin(), known.end(), [](const auto& k) { return Py_REFCNT(k.first) > k.second; });
}

// Where a pass looks for some gradients only: surely for none of a result of which others are made, since nobody holds
// such a result? What the first node of the pass has found holds for all.
bool SegmentHook::LooksForNoInner(CallState* head, PyObject* ctx) {
  const int64_t number = NumberOfPass();
  if (number < 0 || ReadMode().grad || head->routed->contains(number)) return false;
  if (head->unseen == number) return true;
  SavedError error;
  std::vector<Ref> alive;
  for (auto& [i, inner] : *head->retained)
    if (Ref own = HasInner(i) ? Alive(head, i) : Ref()) alive.push_back(std::move(own));
  const bool held = HoldsAny(alive) || HoldsInnerNode(head, ctx);
  PyErr_Clear();
  if (!held) head->unseen = number;
  return !held;
}

}  // namespace framejit::tensor
