// What happens behind a run: stores, calls, and what the frame holds.
#include <algorithm>

#include "capture/containers.h"
#include "capture/drops.h"
#include "capture/exit.h"
#include "guard/own_values.h"

namespace framejit::capture {

using diag::RunEnd;

static bool IsOutside(const RecipeNode& n) {
  return n.kind == RecipeNode::kInput || n.kind == RecipeNode::kOwnDict;
}

RunEnd Exit::Take(PyObject** inputs, PyObject** out, const int64_t* symbols, size_t num_symbols, bool changed,
                  FjFrame* frame, PyObject** result) {
  const guard::LentDicts lent;
  std::vector<Ref> held, values;
  for (size_t i = 0; i < recipe.outputs.size(); ++i) held.emplace_back(out[i]);
  if (recipe.Build(inputs, out, symbols, num_symbols, false, &values) < 0)
    return changed ? RunEnd::kRaised : tensor::EndOfCall();
  if (!Effects(values, false)) return RunEnd::kRaised;
  if (!recipe.late.empty() &&
      (recipe.Build(inputs, out, symbols, num_symbols, true, &values) < 0 || !Effects(values, true)))
    return RunEnd::kRaised;
  *result = returns ? Py_NewRef(values[return_node].get()) : nullptr;
  if (!returns) Land(values, frame);
  return RunEnd::kOk;
}

bool Exit::IsLate(const Store& store) const {
  return IsLate(store.dict) || IsLate(store.key) || IsLate(store.value);
}

bool Exit::IsLate(const Call& call) const {
  return std::any_of(call.args.begin(), call.args.end(), [&](int node) { return IsLate(node); });
}

bool Exit::PutInOrder() {
  const std::vector<RecipeNode>& nodes = recipe.nodes;
  // Where a node leads to what is written, by all writes or by those that are late as far as is known by now.
  const auto writes = [&](bool all) {
    std::vector<bool> written(nodes.size());
    const auto mark = [&](int node) { written[node] = written[node] || IsOutside(nodes[node]); };
    for (const Store& st : stores)
      if (all || IsLate(st)) mark(st.dict);
    for (const Call& c : calls)
      if (all || IsLate(c)) std::for_each(c.args.begin(), c.args.end(), mark);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const RecipeNode& n = nodes[i];
      for (int child : n.children) written[i] = written[i] || written[child];
      for (int child : {n.dict, n.items}) written[i] = written[i] || (child >= 0 && written[child]);
    }
    return written;
  };
  const std::vector<bool> changed = writes(true);
  std::vector<bool>& late = recipe.late;
  late.resize(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    const RecipeNode& n = nodes[i];
    if (n.notices && changed[i]) return false;
    late[i] = (n.iterates && changed[i]) || IsLate(n.dict) || IsLate(n.items) ||
              std::any_of(n.children.begin(), n.children.end(), [&](int child) { return IsLate(child); });
  }
  if (std::find(late.begin(), late.end(), true) == late.end()) return late.clear(), true;
  const std::vector<bool> again = writes(false);
  for (size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].iterates && again[i]) return false;
  return true;
}

bool Exit::Effects(const std::vector<Ref>& values, bool late) {
  for (const Store& st : stores) {
    if (IsLate(st) != late) continue;
    PyObject* d = values[st.dict].get();
    PyObject *key = values[st.key].get(), *value = st.value < 0 ? nullptr : values[st.value].get();
    const bool item = PyDict_Check(d) && !IsSlotOf(d, key);
    const bool attribute = PyType_Check(d) && PyUnicode_Check(key);
    const int bad = attribute ? PyObject_SetAttr(d, key, value)
                    : item    ? SetIn(d, key, value)
                              : Py_TYPE(key)->tp_descr_set(key, d, value);
    if (bad < 0) return false;
  }
  for (Call& c : calls) {
    if (IsLate(c) != late) continue;
    std::vector<PyObject*> args;
    for (int node : c.args) args.push_back(values[node].get());
    Ref r(PyObject_Vectorcall(c.method.get(), args.data(), args.size(), nullptr));
    if (!r) return false;
  }
  for (auto [cell, value] : cells)
    if ((IsLate(cell) || IsLate(value)) == late &&
        PyCell_Set(values[cell].get(), value < 0 ? nullptr : values[value].get()) < 0)
      return false;
  if (!late && grad_after >= 0) tensor::SetGradMode(grad_after);
  return true;
}

void Exit::Land(const std::vector<Ref>& values, FjFrame* frame) const {
  frame::Slot* p = fj_localsplus(frame);
  int nlocals = fj_nlocalsplus(frame), old_depth = fj_stack_depth(frame);
  std::vector<Ref> dropped;  // destructors run when the frame is whole again
  for (auto [slot, node] : slots) {
    dropped.emplace_back(p[slot].Take());
    p[slot] = frame::Slot::New(node < 0 ? nullptr : values[node].get());
  }
  for (int i = 0; i < old_depth; ++i) dropped.emplace_back(p[nlocals + i].Take());
  for (int i = 0; i < depth; ++i)
    p[nlocals + i] = stack[i] < kNothing ? frame::Slot::Position(kNothing - 1 - stack[i])
                                         : frame::Slot::New(stack[i] < 0 ? nullptr : values[stack[i]].get());
  fj_set_stack_depth(frame, depth);
  fj_set_next(frame, next);
}

}  // namespace framejit::capture
