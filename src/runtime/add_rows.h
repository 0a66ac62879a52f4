// The gradient of a table of which rows were taken.
#pragma once

#include "framejit/compile.h"

namespace framejit::runtime {

// table[index[i]] += rows[i], in order, for all i whose index is not `without`. table [n, k], rows [m, k], both with
// elements of a row side by side and of one float type of 4 or 8 bytes; index [m], int32 or int64. False, and nothing
// done, if an index is outside.
bool AddRows(Host& host, const Buffer& table, const Buffer& rows, const Buffer& index, int64_t without);

}  // namespace framejit::runtime
