// Sizes that data decides (data_sizes.cc says how they are found), in one capture.
#pragma once

#include <optional>
#include <vector>

#include "capture/ref.h"
#include "framejit/call.h"
#include "surface/surface.h"

namespace framejit::capture {

class Session;

struct DataSize {
  Trace::DataSymbol symbol;  // of a call that is being made: the number of its result
  Ref code;                  // where
  int at;
  bool outermost;
  bool number;                      // of the program, not a size of what is in memory
  bool exact;                       // of a result whose strides are as written, also where it is empty
  std::optional<shape::Int> usual;  // what it is as a rule: taken for granted until it was something else
};

class DataSizes {
 public:
  explicit DataSizes(Session& s) : s_(s) {}
  const std::vector<DataSize>& all() const { return all_; }
  // What the program is told that a tensor says: a guess, or a symbol. As Guessing::Value.
  PyObject* ItemOf(TraceId t, bool truth);
  // What the integer tensor says, as a symbol; nothing: it cannot be one.
  std::optional<shape::Int> CountOf(TraceId t);
  void Apply(Call& call);  // lowering's Apply, where sizes that data decides are symbols; throws Decline
  // The results of a call that Apply is making, where data decides their sizes; nothing: it decides none.
  std::optional<Inferred> Infer(Call& call, const std::vector<TensorMeta>& operands);
  // At the end of a capture: it is to be made again, since what was asked of such sizes cannot be answered so.
  bool Reconsider(const std::vector<TraceId>& outputs);
  std::vector<shape::Guard> Conditions(const std::vector<TraceId>& outputs);  // what is taken for granted of them

 private:
  bool AsIndices(Call& call);  // masks in x[...] become the indices of what they hold; where(mask), nonzero(..., True)
  std::vector<TraceId> IndicesOf(const Call& like, TraceId mask);
  void Lower(Call& call);
  void Simplify(const std::vector<TraceId>& tensors, size_t first);  // and nodes: what is known of their sizes by now
  std::optional<shape::Int> New(int result, int dim, const shape::Int* most);

  Session& s_;
  std::vector<DataSize> all_, fresh_;  // fresh: of the call that is being made
  bool naming_ = false;                // Apply is making one
};

}  // namespace framejit::capture
