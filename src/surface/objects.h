// The tensors of the program as objects that share storage, and what each of them is in the graph by now. Graph values
// are immutable. Each storage has a root object and a version; every object remembers the value it had at some version
// and, if it is a view, how to get it from its parent and how to put a replacement back:
//
//   y = x[1:]      y: parent x, forward slice, inverse cat(x[:1], new)
//   y += 1         y's value is new at version 1; x's value is inverse(old x, new y) at version 1
//   x * 2          reads x: up to date
//   z = x.t()...   another view made before: its version is 0, so its value is forward(value of its parent) again
//
// Invariant: an object whose version equals its storage's version holds the right value. A write costs one node per
// ancestor; reading a stale view re-derives its chain. Changes are journaled until they are kept or rolled back.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "surface/rows.h"

namespace framejit::surface {

// A copy of a view that does not lie row by row, else the value itself: for a call that may look at how its operand
// lies, which the program has made a copy of.
ValueId RowByRow(Graph& g, ValueId v);

class Objects {
 public:
  struct Object {
    ValueId value = kNoValue;
    int version = 0;
    TraceId root = 0, parent = 0;
    // The object has gradients when this one has: its root, or the object that was detached on the way from the root.
    TraceId domain = 0;
    bool follows = true;       // false: it is a view made without gradients, in an unknown way, or as one of several
    bool own_version = false;  // writes through it do not count as writes of its root
    View view;
  };

  Objects(Trace& trace, Builder& builder) : trace_(trace), builder_(builder) {}
  size_t size() const { return all_.size(); }
  Object& operator[](TraceId t) { return all_[t]; }
  TensorMeta& meta(TraceId t) { return trace_.tensors[t].meta; }
  const std::vector<int>& versions() const { return versions_; }  // for each root, by its TraceId
  // Why the graph does not say what the program does; empty: it does.
  const std::string& unusable() const { return unusable_; }
  void BecomeUnusable(const std::string& why) {
    if (unusable_.empty()) unusable_ = why;
  }

  TraceId New(TensorMeta meta, ValueId value);
  void BecomeView(TraceId t, TraceId of);  // by the call that is being made
  Region Whole(TraceId t) { return {t, 0, meta(t).sizes, meta(t).strides}; }
  bool Disjoint(const Region& a, const Region& b);  // Have parts of one root no element in common? May guard sizes.
  bool LieAlike(TraceId a, TraceId b);              // Have two tensors the same elements in the same places?
  bool Same(const Region& a, const Region& b);      // Are they one, element for element?
  ValueId Value(TraceId t);
  Operand Read(TraceId t);
  void Write(TraceId t, ValueId value);
  void Renew(TraceId t, ValueId of_root);  // Its root has this node of the same value from now on, of which it is made.
  // The value, or a copy of it, as a node that promises these strides when it is materialised.
  ValueId WithLayout(ValueId v, const shape::Ints& strides);
  // An operand of a framework kernel: kernels choose their output's layout by their operands' order of dimensions.
  ValueId Materialised(TraceId t);

  // What a call appends is kept as a whole or rolled back as a whole.
  struct Mark {
    size_t nodes;
    std::string unusable;
  };
  Mark Begin();
  void Keep() { journal_.clear(); }
  void RollBack(const Mark& mark);
  void Truncate(size_t tensors);  // forgets the tensors behind the first `tensors`

 private:
  ValueId AsItLies(ValueId v, const TensorMeta& m);
  // How far b begins behind a, in elements; nothing: it is not known.
  std::optional<shape::Int> Between(const Region& a, const Region& b);
  void Set(TraceId t, ValueId value, int version);
  void Place(TraceId t, ValueId value);
  struct Undo {
    TraceId id;
    ValueId value;
    int version;
  };

  Trace& trace_;
  Builder& builder_;
  std::vector<Object> all_;    // There is one for each TraceId.
  std::vector<int> versions_;  // There is one for each TraceId that is a root.
  std::vector<Undo> journal_;
  std::set<ValueId> claimed_;  // The nodes that are an output of the graph already.
  std::string unusable_;
};

}  // namespace framejit::surface
