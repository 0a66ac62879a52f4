#include "codegen/gpu_schedule.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>

namespace framejit::codegen {

using loop::IKind;
using loop::Inst;
using loop::Kernel;
using runtime::cuda::Chip;
using shape::Int;

namespace {

constexpr int kAccess = 16;    // bytes of the widest access
constexpr int kResident = 16;  // elements of a row that a thread keeps
constexpr int kMostThreads = 1024;
constexpr int kManyLoads = 16;
constexpr int64_t kClusterRow = 128 << 10;  // elements

bool Memory(const Inst& inst) {
  return inst.kind == IKind::kLoad || inst.kind == IKind::kLoadAt || inst.kind == IKind::kStore;
}

// Is `e` a multiple of n, as far as can be told now? What sizes must say is left to the launch.
bool MayDivide(Int e, int n, std::vector<Int>* later) {
  if (e.is_const()) return e.value() % n == 0;
  if (later) later->push_back(e);
  return true;
}

// Does the access (or position) step over whole vectors, so that lane 0 is always at a multiple of n?
bool Aligned(const Inst& inst, int n, std::vector<Int>* later) {
  std::vector<Int> asked;
  bool ok = MayDivide(inst.index.offset, n, &asked);
  for (Int c : inst.index.outer) ok = ok && MayDivide(c, n, &asked);
  for (Int c : inst.index.red) ok = ok && MayDivide(c, n, &asked);
  for (Int c : inst.strides) ok = ok && MayDivide(c, n, &asked);
  if (ok && later) later->insert(later->end(), asked.begin(), asked.end());
  return ok;
}

int64_t Const(Int e, int64_t otherwise) {
  return e.is_const() ? e.value() : otherwise;
}

constexpr int kTile = 32, kMostStaged = 5, kMostGroup = 64;
constexpr int kStagedBytes = 48 << 10;  // shared memory that every block can have

// Gives the accesses of a tiled kernel that are contiguous along the last outer axis alone. Without any there are no
// tiles.
std::vector<bool> Staged(const Kernel& k) {
  std::vector<bool> staged(k.insts.size(), false);
  auto small = [](Int e) { return e.is_const() && e.value() < kTile / 2; };
  if (!k.tiled || k.outer.empty() || small(k.inner) || small(k.outer.back())) return {};
  int count = 0;
  for (int n = 0; n < k.insts.size(); ++n) {
    const Inst& inst = k.insts[n];
    if ((inst.kind != IKind::kLoad && inst.kind != IKind::kStore) || inst.predicate >= 0) continue;
    const Int c = inst.index.inner;
    staged[n] = c != Int(0) && c != Int(1) && inst.index.outer.back() == Int(1);
    count += staged[n];
  }
  return count && count <= kMostStaged ? staged : std::vector<bool>();
}

// Does it read what is also read (perhaps the same memory) the other way round?
bool Turned(const Kernel& k, const std::vector<bool>& staged) {
  bool along = false, across = false;
  for (int n = 0; n < k.insts.size(); ++n) {
    if (k.insts[n].kind == IKind::kLoad) (staged[n] ? across : along) |= staged[n] || k.insts[n].index.inner == Int(1);
  }
  return along && across;
}

// As Aligned, of an access that is contiguous along the last outer axis.
bool AlignedAcross(const Inst& inst, int n, std::vector<Int>* later) {
  Inst turned = inst;
  turned.index.outer.back() = inst.index.inner;
  return Aligned(turned, n, later);
}

int TileOf(int vector) {
  return vector >= 4 ? 2 * kTile : kTile;
}

int64_t TileBytes(const Kernel& k, const GpuSchedule& s, int vector) {
  int64_t bytes = 0;
  for (int n = 0; n < k.insts.size(); ++n) {
    if (s.staged[n]) bytes += DTypeSize(k.buffers[k.insts[n].buffer].dtype);
  }
  return bytes * TileOf(vector) * GpuSchedule::Pitch(TileOf(vector));
}

bool InLoop(const Kernel& k, int inst) {
  for (const auto& stage : k.stages) {
    if (stage.loop && std::find(stage.insts.begin(), stage.insts.end(), inst) != stage.insts.end()) return true;
  }
  return false;
}

}  // namespace

int64_t SizeOf(Int e, const int64_t* symbols) {
  return e.is_const() ? e.value() : symbols[*e.as_symbol()];
}

std::vector<int> GpuHeldLoads(const Kernel& k, const GpuSchedule& s) {
  std::vector<int> out;
  for (const auto& stage : k.stages) {
    for (int n : stage.insts) {
      const Inst& inst = k.insts[n];
      if (!stage.loop || inst.kind != IKind::kLoad || inst.predicate >= 0 || !s.wide_access[n] || s.vector == 1 ||
          k.buffers[inst.buffer].written || s.vector * DTypeSize(k.buffers[inst.buffer].dtype) < 4)
        continue;
      if (std::all_of(inst.index.outer.begin(), inst.index.outer.end(), [](Int c) { return c == Int(0); })) continue;
      auto same = [&](int m) { return k.insts[m].buffer == inst.buffer && k.insts[m].index == inst.index; };
      if (std::none_of(out.begin(), out.end(), same)) out.push_back(n);
    }
  }
  return out;
}

std::vector<bool> GpuUniform(const Kernel& k, int vector) {
  std::vector<bool> uniform(k.insts.size(), false);
  for (const auto& stage : k.stages) {
    for (int n : stage.insts) {
      const Inst& inst = k.insts[n];
      bool u = inst.index.inner == Int(0);
      // A bound that falls between two vectors.
      if (inst.kind == IKind::kInBounds && !u && inst.index.inner.is_const() && inst.sym.is_const() && vector > 1) {
        std::vector<Int> asked;
        u = inst.index.inner == Int(1) && inst.sym.value() % vector == 0 && Aligned(inst, vector, &asked) &&
            asked.empty();
      }
      for (int o : inst.operands) u = u && uniform[o];
      if (inst.predicate >= 0) u = u && uniform[inst.predicate];
      if (inst.kind == IKind::kReduce) u = !k.column;
      if (inst.kind == IKind::kScan) u = false;
      if (inst.kind == IKind::kStore) u = inst.index.inner == Int(0);
      uniform[n] = u;
    }
  }
  return uniform;
}

namespace {

// These are the phases of MakeGpuSchedule, in their order.
class Scheduler {
 public:
  Scheduler(const Kernel& k, const Chip& chip, bool vectors, bool narrow, int most_cluster)
      : k_(k), chip_(chip), vectors_(vectors), most_cluster_(most_cluster) {
    s_.narrow = narrow;
    s_.pairs = chip.converts_pairs();
    s_.dependent = chip.has_clusters();
  }

  GpuSchedule Make() {
    Survey();
    ChooseVector();
    Alignments();
    switch (s_.mode) {
      case GpuSchedule::kPoint: Point(); break;
      case GpuSchedule::kTile: Tile(); break;
      case GpuSchedule::kColumn: Column(); break;
      case GpuSchedule::kRow: Row(); break;
    }
    s_.first_blocks = chip_.multiprocessors * (s_.held ? s_.blocks : chip_.threads / s_.threads);
    return std::move(s_);
  }

 private:
  bool tiles() const { return s_.mode == GpuSchedule::kTile; }
  int Size(const Inst& inst) const { return DTypeSize(k_.buffers[inst.buffer].dtype); }

  void Contiguous(const Inst& inst) {
    smallest_ = smallest_ ? std::min(smallest_, Size(inst)) : Size(inst);
    largest_ = std::max(largest_, Size(inst));
  }

  // What the kernel reads and writes, and the mode that this asks for.
  void Survey() {
    bool reduces = false;
    for (int n = 0; n < k_.insts.size(); ++n) {
      const Inst& inst = k_.insts[n];
      reduces = reduces || inst.kind == IKind::kReduce;
      scans_ = scans_ || inst.kind == IKind::kScan;
      if (!Memory(inst)) continue;
      loads64_ = loads64_ || Size(inst) == 8;
      const bool in_loop = InLoop(k_, n);
      if (inst.kind != IKind::kStore && in_loop) {
        ++loads_;
        read_.insert(inst.buffer);
      }
      s_.stores = s_.stores || (inst.kind == IKind::kStore && in_loop);
      if (inst.index.inner == Int(1)) Contiguous(inst);
    }
    s_.mode = k_.column ? GpuSchedule::kColumn : reduces || scans_ ? GpuSchedule::kRow : GpuSchedule::kPoint;
    if (s_.mode != GpuSchedule::kPoint) return;
    s_.staged = Staged(k_);
    if (s_.staged.empty()) return;
    s_.mode = GpuSchedule::kTile;
    for (int n = 0; n < k_.insts.size(); ++n) {
      if (s_.staged[n]) Contiguous(k_.insts[n]);
    }
  }

  // The longest vector with which every contiguous access is a whole one.
  void ChooseVector() {
    int v = 1;
    if (vectors_ && smallest_ && !scans_) {
      v = std::min(kAccess / smallest_, 16);
      while (v > 1 && v * largest_ > 2 * kAccess) v /= 2;
      if (s_.mode == GpuSchedule::kColumn) v = std::min(v, std::max(1, (smallest_ < 4 ? 4 : 8) / smallest_));
      if (tiles()) v = std::min(v, 8);
    }
    // Lanes of a thread that are read one by one lose to threads that read one element each.
    const bool one_row = s_.mode == GpuSchedule::kPoint && k_.outer.empty();
    auto fits = [&] {
      auto odd = [&](Int e) { return e.is_const() && e.value() % v; };
      if (odd(k_.inner) && !(one_row && k_.inner.value() > 4 * v)) return false;
      if (tiles() && (odd(k_.outer.back()) || (v >= 4 && TileBytes(k_, s_, v) > kStagedBytes))) return false;
      return DecideAccesses(v);
    };
    while (v > 1 && !fits()) v /= 2;
    DecideAccesses(v);
    if (v > 1 && !k_.inner.is_const() && !one_row) s_.multiples.push_back(k_.inner);
    if (v > 1 && tiles() && !k_.outer.back().is_const()) s_.multiples.push_back(k_.outer.back());
    s_.tail = v > 1 && one_row && !(k_.inner.is_const() && k_.inner.value() % v == 0);
  }

  // Says which accesses are whole vectors. It is false if some contiguous one cannot be.
  bool DecideAccesses(int v) {
    s_.vector = v;
    s_.wide_access.assign(k_.insts.size(), false);
    s_.multiples.clear();
    const std::vector<bool> uniform = GpuUniform(k_, v);
    bool all = true;
    for (int n = 0; n < k_.insts.size(); ++n) {
      const Inst& inst = k_.insts[n];
      if (v == 1 || !Memory(inst)) continue;
      if (tiles() && s_.staged[n]) {
        s_.wide_access[n] = AlignedAcross(inst, v, &s_.multiples);
        all = all && s_.wide_access[n];
        continue;
      }
      if (inst.index.inner != Int(1)) continue;
      bool wide = inst.predicate < 0 || uniform[inst.predicate];
      if (inst.kind == IKind::kLoadAt) {
        for (int o : inst.operands) wide = wide && uniform[o];
      }
      s_.wide_access[n] = wide && Aligned(inst, v, &s_.multiples);
      all = all && s_.wide_access[n];
    }
    return all;
  }

  void Alignments() {
    s_.alignment.assign(k_.buffers.size(), 1);
    for (int n = 0; n < k_.insts.size(); ++n) {
      if (s_.wide_access[n]) s_.alignment[k_.insts[n].buffer] = std::min(kAccess, s_.vector * Size(k_.insts[n]));
    }
  }

  void Point() {
    s_.threads = 256;
    s_.unroll = 1;
    if (loads_ > kManyLoads) s_.blocks = 3;  // not all of them in registers at once
  }

  void Tile() {
    s_.threads = 256;
    s_.tile = TileOf(s_.vector);
    s_.unroll = s_.tile * s_.tile / s_.vector / s_.threads;
    s_.mirrored = k_.inner == k_.outer.back() && Turned(k_, s_.staged);
    if (s_.mirrored || !k_.inner.is_const() || !k_.outer.back().is_const()) return;
    auto counts = [&](int group) {
      const int64_t side = int64_t{group} * s_.tile;
      return k_.inner.value() % side == 0 && k_.outer.back().value() % side == 0;
    };
    while (s_.group < kMostGroup && counts(2 * s_.group)) s_.group *= 2;
  }

  void Column() {
    int64_t extent = 1;
    for (Int r : k_.red) extent *= Const(r, 64);
    s_.slices = 1;
    int64_t of_slice = 0;  // bytes of shared memory
    for (const Inst& inst : k_.insts) {
      if (inst.kind != IKind::kReduce) continue;
      const bool arg = inst.op == Op::kArgMax || inst.op == Op::kArgMin;
      of_slice += 32 * s_.vector * (arg ? 16 : IsFloat(inst.dtype) && inst.dtype != DType::kFloat64 ? 4 : 8);
    }
    while (s_.slices < 16 && s_.slices * 8 <= extent && 2 * s_.slices * of_slice <= kStagedBytes) s_.slices *= 2;
    if (scans_) s_.slices = 1;
    const int64_t most = scans_ ? 1 : loads_ > 2 ? 2 : s_.stores ? 4 : 8;
    s_.unroll = static_cast<int>(std::clamp<int64_t>(extent / s_.slices, 1, most));
    s_.threads = 32 * s_.slices;
  }

  // Gives the vectors of a row for each of so many threads.
  int64_t Each(int threads) const { return (total_ + threads - 1) / threads; }
  bool half() const { return smallest_ < 4; }

  void Row() {
    if (scans_) {
      s_.row_threads = 32;
      s_.threads = 128;
      return;
    }
    int64_t red = 1;
    known_ = k_.inner.is_const();
    for (Int r : k_.red) {
      known_ = known_ && r.is_const();
      red *= Const(r, 1);
    }
    const int v = s_.vector;
    total_ = known_ ? red * (k_.inner.value() / v) : 0;
    int threads = 1;
    const int few = std::max(8, 2 * v), of_warp = 2 * few;
    while (threads < kMostThreads && Each(threads) * v > (threads == 32 ? of_warp : few)) threads *= 2;
    // One array at a time can be twice as long; the kernel's registers are bounded by its threads. One block fills a
    // multiprocessor then: that many elements take too long to load while nothing else computes, but for 16-bit ones
    // that are needed twice.
    const bool full = threads == kMostThreads && (!half() || !s_.stores);
    const int64_t most = loads_ <= 2 && !loads64_ && !full ? 2 * kResident : kResident;
    s_.resident = known_ && Each(threads) * v <= std::max<int64_t>(most, threads == 32 ? of_warp : 0);
    if (s_.resident) {
      s_.row_threads = threads;
      s_.unroll = static_cast<int>(std::max<int64_t>(1, Each(threads)));
    }
    // Where one block would fill a multiprocessor, rows are better held in shared memory, too.
    const bool hold = !s_.resident || (threads == kMostThreads && (half() || Each(threads) * v > few));
    if (hold && known_ && s_.stores && chip_.has_clusters() && v > 1 && HoldRow()) {
      s_.resident = false;
      s_.threads = s_.row_threads;
      return;
    }
    if (!s_.resident) LongRow();
    s_.threads = std::max(128, s_.row_threads);
  }

  // Puts a row into the shared memory of a block, or of a cluster. There are several blocks a multiprocessor, so that
  // one computes while others load, and small ones where they are many (all measured on an H200).
  bool HoldRow() {
    constexpr int kOneBlock = 64 << 10, kOfMany = 16 << 10, kLeast = 128;  // bytes; threads
    constexpr int kRegisters = 42;                                         // of a thread of such a kernel
    // A tenth is left to what blocks have beside their rows.
    const int most = chip_.shared_of_block / 10 * 9;
    int64_t of_vector = 0;
    for (int n : GpuHeldLoads(k_, s_)) of_vector += s_.vector * Size(k_.insts[n]);
    const int64_t row = total_ * of_vector;
    if (row == 0) return false;
    int cluster = 1, threads = kLeast;
    while (row > kOneBlock && cluster < most_cluster_ && row > int64_t{kOfMany} * cluster) cluster *= 2;
    const int of_thread = cluster > 1 ? 256 : row < kOneBlock ? 128 : 64;
    while (threads < kMostThreads && row > int64_t{of_thread} * threads * cluster) threads *= 2;
    auto steps_of = [&](int unroll) {
      const int64_t at_once = int64_t{unroll} * threads * cluster;
      return (total_ + at_once - 1) / at_once;
    };
    const int unroll = 2 * steps_of(2) > steps_of(1) ? 1 : 2;  // what does not fill a step costs as much as what does
    const int64_t bytes = steps_of(unroll) * unroll * threads * of_vector;
    if (bytes > most) return false;
    s_.cluster = cluster;
    s_.row_threads = threads;
    s_.unroll = unroll;
    s_.held = static_cast<int>(bytes);
    const int at_once = std::min(chip_.threads, chip_.registers / kRegisters);
    s_.blocks = static_cast<int>(std::clamp<int64_t>(most / bytes, 1, std::max(1, at_once / threads)));
    return true;
  }

  // A row that is read again for every loop over it. As few rows at once as keep the memory busy: more of them are
  // slower (measured, rows of 128 KB).
  void LongRow() {
    s_.row_threads = known_ ? kMostThreads : 256;
    s_.unroll = s_.stores ? std::max(1, kResident / s_.vector) : 4;
    if (!known_) return;
    if (!loads64_ && s_.stores && loads_ <= 2 && half()) s_.blocks = 2;
    if (s_.stores && read_.size() <= 2 && !loads64_ && chip_.has_clusters()) Clusters();
    if (!s_.stores && loads_ <= 2) SmallBlocks();
  }

  void Clusters() {
    if (total_ * s_.vector >= kClusterRow) {  // so few rows at once that the second reading is from the L2 cache
      s_.cluster = std::min(8, most_cluster_);
      s_.row_threads = half() ? 256 : 512;
      s_.unroll = half() ? 4 : 8;
      s_.blocks = 1;
      s_.ahead = half();
    } else if (!half() && total_ * s_.vector <= int64_t{4} * kMostThreads * kResident / 2) {
      s_.cluster = std::min(2, most_cluster_);
      s_.row_threads = kMostThreads / 2;
      s_.resident = true;
      s_.unroll = static_cast<int>(Each(2 * s_.row_threads));
    }
  }

  // What is read and done with: small blocks, where there are enough rows to keep the chip's memory busy.
  void SmallBlocks() {
    const int64_t many = int64_t{chip_.multiprocessors} * kMostThreads;
    int64_t rows = 1;
    for (Int o : k_.outer) rows *= Const(o, many);
    s_.row_threads = 128;
    while (s_.row_threads < kMostThreads && rows * s_.row_threads < many) s_.row_threads *= 2;
    s_.blocks = kMostThreads / s_.row_threads;
    s_.ahead = s_.vector > 1;
  }

  const Kernel& k_;
  const Chip& chip_;
  const bool vectors_;
  const int most_cluster_;
  GpuSchedule s_;
  bool scans_ = false, loads64_ = false;
  int smallest_ = 0, largest_ = 0;  // bytes of the elements that are accessed along the inner axis
  int loads_ = 0;                   // in loops
  std::set<int> read_;              // buffers, in loops
  bool known_ = false;              // the length of a row
  int64_t total_ = 0;               // vectors of a row
};

}  // namespace

GpuSchedule MakeGpuSchedule(const Kernel& k, const Chip& chip, bool vectors, bool narrow, int most_cluster) {
  return Scheduler(k, chip, vectors, narrow, most_cluster).Make();
}

bool FitsNarrow(const Kernel& k, const int64_t* symbols) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 2;
  auto fits = [](__int128 v) { return v < kLimit && v > -kLimit; };
  __int128 space = SizeOf(k.inner, symbols);
  for (Int o : k.outer) space *= std::max<int64_t>(1, SizeOf(o, symbols));
  if (!fits(space)) return false;
  space = SizeOf(k.inner, symbols);
  for (Int r : k.red) space *= std::max<int64_t>(1, SizeOf(r, symbols));
  if (!fits(space)) return false;
  for (const Inst& inst : k.insts) {
    __int128 low = SizeOf(inst.index.offset, symbols), high = low;
    auto add = [&](Int coef, Int extent) {
      const __int128 reach =
          static_cast<__int128>(SizeOf(coef, symbols)) * std::max<int64_t>(0, SizeOf(extent, symbols) - 1);
      (reach < 0 ? low : high) += reach;
    };
    for (size_t d = 0; d < inst.index.outer.size(); ++d) add(inst.index.outer[d], k.outer[d]);
    for (size_t d = 0; d < inst.index.red.size(); ++d) add(inst.index.red[d], k.red[d]);
    add(inst.index.inner, k.inner);
    if (!fits(low) || !fits(high)) return false;
    if (inst.kind == IKind::kInBounds && !fits(SizeOf(inst.sym, symbols))) return false;
  }
  return true;
}

bool MultiplesHold(const GpuSchedule& s, const int64_t* symbols) {
  return std::all_of(s.multiples.begin(), s.multiples.end(), [&](Int e) { return SizeOf(e, symbols) % s.vector == 0; });
}

int64_t GpuBlocks(const Kernel& k, const GpuSchedule& s, const int64_t* symbols) {
  auto ceil = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  int64_t rows = 1;
  for (Int o : k.outer) rows *= SizeOf(o, symbols);
  const int64_t vectors = ceil(SizeOf(k.inner, symbols), s.vector);
  switch (s.mode) {
    case GpuSchedule::kPoint: return ceil(rows * vectors, int64_t{s.threads} * s.unroll);
    case GpuSchedule::kRow: return ceil(rows, s.threads / s.row_threads) * s.cluster;
    case GpuSchedule::kTile: {
      const int64_t last = SizeOf(k.outer.back(), symbols);
      return last ? rows / last * ceil(last, s.tile) * ceil(SizeOf(k.inner, symbols), s.tile) : 0;
    }
    case GpuSchedule::kColumn: return rows * ceil(vectors, 32);
  }
  return 0;
}

}  // namespace framejit::codegen
