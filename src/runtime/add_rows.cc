// Threads share the columns: each adds all rows in order, so that sums do not depend on their number.
#include "runtime/add_rows.h"

#include <algorithm>

namespace framejit::runtime {
namespace {

constexpr int64_t kColumns = 64;        // of one piece: whole cache lines
constexpr int64_t kElements = 1 << 15;  // worth a thread

struct Work {
  const Buffer *table, *rows, *index;
  int64_t without;
};

int64_t IndexAt(const Buffer& b, int64_t i) {
  i *= b.strides[0];
  return b.dtype == DType::kInt64 ? static_cast<const int64_t*>(b.data)[i] : static_cast<const int32_t*>(b.data)[i];
}

template <typename T>
void AddColumns(void* context, int64_t begin, int64_t end) {
  const Work& w = *static_cast<const Work*>(context);
  const int64_t first = begin * kColumns, count = std::min(end * kColumns, w.table->sizes[1]) - first;
  for (int64_t i = 0; i < w.index->sizes[0]; ++i) {
    const int64_t row = IndexAt(*w.index, i);
    if (row == w.without) continue;
    T* to = static_cast<T*>(w.table->data) + row * w.table->strides[0] + first;
    const T* from = static_cast<const T*>(w.rows->data) + i * w.rows->strides[0] + first;
    for (int64_t k = 0; k < count; ++k) to[k] += from[k];
  }
}

}  // namespace

bool AddRows(Host& host, const Buffer& table, const Buffer& rows, const Buffer& index, int64_t without) {
  for (int64_t i = 0; i < index.sizes[0]; ++i) {
    const int64_t row = IndexAt(index, i);
    if (row < 0 || row >= table.sizes[0]) return false;
  }
  Work w{&table, &rows, &index, without};
  const int64_t pieces = (table.sizes[1] + kColumns - 1) / kColumns;
  const int64_t grain = std::max<int64_t>(1, kElements / std::max<int64_t>(1, kColumns * index.sizes[0]));
  auto* run = table.dtype == DType::kFloat64 ? AddColumns<double> : AddColumns<float>;
  if (grain < pieces && host.NumThreads() > 1)
    host.ParallelFor(pieces, grain, run, &w);
  else
    run(&w, 0, pieces);
  return true;
}

}  // namespace framejit::runtime
