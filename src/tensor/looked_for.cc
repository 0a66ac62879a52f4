// What a pass may look for, where it looks for some gradients only (torch.autograd.grad): the framework's engine does
// not tell, but nobody can ask for the gradient of a result that nobody holds.
#include <algorithm>
#include <map>
#include <set>

#include "tensor/segment_node.h"

namespace framejit::tensor {

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
