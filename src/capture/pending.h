// What captured code does to objects from outside: nothing happens to them before the segment's exit.
#pragma once

#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "capture/ref.h"
#include "framejit/call.h"

namespace framejit::capture {

// A store to an outside dict (instance __dict__, globals, dict), or to a slot of an outside object, that replays at the
// segment's exit.
struct PendingStore {
  Ref dict;   // The dict; the object that has the slot; the class that has the attribute.
  Ref key;    // The slot's descriptor, for one.
  Ref value;  // The item is deleted where it is empty.
};

// A call of a C method that changes an outside container and is not looked at again: it is made at the segment's exit.
struct PendingCall {
  Ref method;             // The method's descriptor.
  std::vector<Ref> args;  // The arguments, of which the container is the first.
  bool hooks = false;     // Does the call register something that sees gradients?
};

// A store to a variable of an enclosing function, likewise. Its last one counts.
struct PendingCell {
  Ref cell;
  Ref value;  // Empty where the variable is deleted.
};

// A call that a functools.lru_cache answered, made at the exit.
struct CacheCall {
  PendingCall call;
  Ref cache;
  Ref result;  // what the call gives
};

// A wrapper that was made here (wrappers.h).
struct MadeWrapper {
  Ref args, kwargs;             // The arguments of Tensor._make_wrapper_subclass behind the class.
  PyObject* view_of = nullptr;  // its base: a wrapper, alive like all that is made here
  PyObject* shares = nullptr;   // The tensor whose memory it was said to share.
};

class PendingEffects {
 public:
  // All that waits, and uses of what waits: a number that grows with each.
  size_t count() const { return stores_.size() + calls_.size() + cells_.size() + lists_.size() + touched_; }
  void Clear();
  // Something may be dropped at the exit: what is replaced is no number or string.
  bool MayDrop() const;

  // --- outside dicts
  const std::vector<PendingStore>& stores() const { return stores_; }
  bool Has(PyObject* dict) const;
  // The last store to dict[key]: 1 with *value (borrowed; null: it was deleted); 0: there is none; -1: an error.
  int Find(PyObject* dict, PyObject* key, PyObject** value) const;
  size_t answers() const { return answers_ + touched_; }  // how often a read has found what waits
  void Answered() const { ++answers_; }
  void Store(PyObject* dict, PyObject* key, PyObject* value);  // Null deletes the item.
  void Forget(PyObject* dict, PyObject* key);                  // of a string: what was stored there is there already
  bool Deletes(PyObject* dict, PyObject* key) const;           // of a string: it has another place in the dict by now

  // --- attributes of classes
  // What a class or a base of it has under a name by now; borrowed, null: nothing. *waits: it is a store that waits.
  PyObject* InClass(PyTypeObject* type, PyObject* name, bool* waits) const;
  bool WritesClass(PyTypeObject* type) const;  // Does a store to it, or to a base of it, wait?

  // --- calls of methods that change a container
  const std::vector<PendingCall>& calls() const { return calls_; }
  void Call(PendingCall call) { calls_.push_back(std::move(call)); }
  std::vector<PendingCall> TakeCalls(PyObject* container);  // In the order in which they were made.
  // container[-back] of what calls with one argument put in; null: another call came between, or too few.
  PyObject* PutIn(PyObject* container, long back) const;

  // --- cells
  const std::vector<PendingCell>& cells() const { return cells_; }
  const PendingCell* Cell(PyObject* cell) const;
  void WriteCell(PyObject* cell, PyObject* value);  // A null value deletes the variable.

  // --- lists and deques for which a private one stands
  const std::vector<PyObject*>& lists() const { return lists_; }  // Those from outside.
  void WriteList(PyObject* list) { lists_.push_back(list); }
  std::unordered_map<PyObject*, Ref> as_read;  // Of such a deque, which may only have been read: what was in it.
  void Touch() { ++touched_; }                 // Notes that one of them is used.

  // --- what no later read can miss
  std::vector<CacheCall> cache_calls;
  std::map<TraceId, std::vector<std::pair<Ref, Ref>>> attributes;  // Attributes that tensors made here got.
  std::unordered_map<PyObject*, MadeWrapper> wrappers;             // The wrappers that were made here.
  std::map<TraceId, Ref> grads;                                    // The gradients, or None, that inputs were given.
  std::map<TraceId, Ref> retains;  // retain_grad, which tensors made here get where they are results
  // Must not be written, for what waits would see it: what is given a hook, what is given other memory and whose it is,
  // what has no gradients any more.
  std::set<TraceId> hooked, replaced, stopped;
  bool Waits(TraceId id) const { return hooked.contains(id) || replaced.contains(id) || stopped.contains(id); }
  // Is it nothing that is written? Does a write to this dict, list, cell or class wait?
  bool Empty() const { return stores_.empty() && calls_.empty() && cells_.empty() && lists_.empty(); }
  bool Writes(PyObject* owner) const;
  // Of tensors that became others: the input that the program has there.
  std::map<TraceId, TraceId> rebound;
  TraceId Original(TraceId id) const {
    const auto at = rebound.find(id);
    return at == rebound.end() ? id : at->second;
  }

 private:
  std::vector<PendingStore> stores_;
  std::vector<PendingCall> calls_;
  std::vector<PendingCell> cells_;
  std::vector<PyObject*> lists_;
  size_t touched_ = 0;
  mutable size_t answers_ = 0;
  bool classes_ = false;  // Has a store to a class ever waited?
};

}  // namespace framejit::capture
