// What is gathered out of pointwise results is computed for the gathered elements alone. Picking the target's element
// of a log_softmax then reads one element of each row beside the row's maximum and sum.
//
//   before: %3 = sub %0, %2 (broadcast of rows)     after: %4 = gather %0, %1
//           %4 = gather %3, %1                              %5 = sub %4, (the rows' values)
//
// One element along the axis at a time: that is less work even where the whole result is computed, too. Returns the
// number of gathers that moved.
#pragma once

#include "framejit/graph.h"

namespace framejit::pass {

int SinkGather(Graph& g);

}  // namespace framejit::pass
