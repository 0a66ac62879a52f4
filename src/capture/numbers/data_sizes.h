// Sizes that data decides (data_sizes.cc says how they are found), in one capture.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "capture/ref.h"
#include "framejit/call.h"
#include "surface/surface.h"

namespace framejit::capture {

class Session;

struct DataSize {
  Trace::DataSymbol symbol;  // While its call is being made, this names the result by its number.
  Ref code;                  // The code object of the instruction that asked.
  int at;
  bool outermost;
  bool number;                      // Is it a number of the program, and not the size of something in memory?
  bool exact;                       // Are the strides of the result as written, also where it is empty?
  std::optional<shape::Int> usual;  // What it usually is; this is taken for granted until a run finds another.
};

class DataSizes {
 public:
  explicit DataSizes(Session& s) : s_(s) {}
  const std::vector<DataSize>& all() const { return all_; }
  // What the program is told that a tensor holds: a guess or a symbol. The answer is that of Guessing::Value.
  PyObject* ItemOf(TraceId t, bool truth);
  // The symbol for what a tensor of one integer holds, or nothing where it cannot be a symbol.
  std::optional<shape::Int> CountOf(TraceId t);
  void Apply(Call& call);  // Lowering's Apply, with symbols for sizes that data decides; throws Decline.
  // The results of the call that Apply is making. It is nothing where data decides no size of them.
  std::optional<Inferred> Infer(Call& call, const std::vector<TensorMeta>& operands);
  // Asked at the end of a capture: must it be made again, since these symbols cannot answer what was asked of them?
  bool Reconsider(const std::vector<TraceId>& outputs);
  std::vector<shape::Guard> Conditions(const std::vector<TraceId>& outputs);  // What is taken as true of them.

 private:
  bool AsIndices(Call& call);  // Masks in x[...], where(mask), nonzero(..., True) become indices.
  std::vector<TraceId> IndicesOf(const Call& like, TraceId mask);
  void Make(Call& call);
  void Lower(Call& call);
  void Simplify(const std::vector<TraceId>& tensors, size_t first);  // By what is known now; of nodes, too.
  std::optional<shape::Int> New(int result, int dim, const shape::Int* most);

  Session& s_;
  std::vector<DataSize> all_, fresh_;     // `fresh_` belongs to the call that is being made.
  std::vector<shape::Guard> needed_;      // asked by calls, which eager refuses where it is otherwise
  std::map<TraceId, shape::Int> counts_;  // of elements of sparse tensors
  TraceId asked_ = 0;                     // the first operand of the call that is being made
  bool naming_ = false;                   // Is Apply making a call?
};

}  // namespace framejit::capture
