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
using shape::Int;

namespace {

constexpr int kAccess = 16;    // bytes of the widest access
constexpr int kResident = 16;  // elements of a row that a thread keeps
constexpr int kMostThreads = 1024;
constexpr int kManyLoads = 16;
constexpr int64_t kClusterRow = 128 << 10;    // elements
constexpr int64_t kManyThreads = 132 * 1024;  // keep the memory of a large chip busy

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

// The accesses of a tiled kernel that are contiguous along the last outer axis alone; none: no tiles.
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

// A row of so many vectors in the shared memory of a block, or of a cluster. Several blocks a multiprocessor, so that
// one computes while others load; small ones, where they are many (all measured on an H200).
static bool HoldRow(const Kernel& k, int64_t vectors, int capability, int most_cluster, GpuSchedule* s) {
  constexpr int kOneBlock = 64 << 10, kOfMany = 16 << 10, kLeast = 128;           // bytes; threads
  const int most = capability == 90 || capability == 100 ? 200 << 10 : 96 << 10;  // bytes of a multiprocessor
  int64_t of_vector = 0;
  for (int n : GpuHeldLoads(k, *s)) of_vector += s->vector * DTypeSize(k.buffers[k.insts[n].buffer].dtype);
  const int64_t row = vectors * of_vector;
  if (row == 0) return false;
  int cluster = 1, threads = kLeast;
  while (row > kOneBlock && cluster < most_cluster && row > int64_t{kOfMany} * cluster) cluster *= 2;
  const int of_thread = cluster > 1 ? 256 : row < kOneBlock ? 128 : 64;
  while (threads < kMostThreads && row > int64_t{of_thread} * threads * cluster) threads *= 2;
  auto steps_of = [&](int unroll) {
    const int64_t at_once = int64_t{unroll} * threads * cluster;
    return (vectors + at_once - 1) / at_once;
  };
  const int unroll = 2 * steps_of(2) > steps_of(1) ? 1 : 2;  // what does not fill a step costs as much as what does
  const int64_t bytes = steps_of(unroll) * unroll * threads * of_vector;
  if (bytes > most) return false;
  s->cluster = cluster;
  s->row_threads = threads;
  s->unroll = unroll;
  s->held = static_cast<int>(bytes);
  s->blocks = static_cast<int>(std::clamp<int64_t>(most / bytes, 1, 1536 / threads));
  return true;
}

GpuSchedule MakeGpuSchedule(const Kernel& k, int capability, bool vectors, bool narrow, int most_cluster) {
  GpuSchedule s;
  s.narrow = narrow;
  s.pairs = capability >= 80;
  s.dependent = capability >= 90;
  const bool clusters = capability >= 90;
  bool reduces = false, scans = false, loads64 = false;
  int smallest = 0, largest = 0, loads = 0;
  std::set<int> read;  // buffers, in loops
  for (int n = 0; n < k.insts.size(); ++n) {
    const Inst& inst = k.insts[n];
    reduces = reduces || inst.kind == IKind::kReduce;
    scans = scans || inst.kind == IKind::kScan;
    if (!Memory(inst)) continue;
    const int size = DTypeSize(k.buffers[inst.buffer].dtype);
    loads64 = loads64 || size == 8;
    if (inst.kind != IKind::kStore && InLoop(k, n)) {
      ++loads;
      read.insert(inst.buffer);
    }
    s.stores = s.stores || (inst.kind == IKind::kStore && InLoop(k, n));
    if (inst.index.inner != Int(1)) continue;
    smallest = smallest ? std::min(smallest, size) : size;
    largest = std::max(largest, size);
  }
  s.mode = k.column ? GpuSchedule::kColumn : reduces || scans ? GpuSchedule::kRow : GpuSchedule::kPoint;
  if (s.mode == GpuSchedule::kPoint) {
    s.staged = Staged(k);
    if (!s.staged.empty()) s.mode = GpuSchedule::kTile;
  }
  const bool tiles = s.mode == GpuSchedule::kTile;
  if (tiles) {
    for (int n = 0; n < k.insts.size(); ++n) {
      if (!s.staged[n]) continue;
      const int size = DTypeSize(k.buffers[k.insts[n].buffer].dtype);
      smallest = smallest ? std::min(smallest, size) : size;
      largest = std::max(largest, size);
    }
  }
  int v = 1;
  if (vectors && smallest && !scans) {
    v = std::min(kAccess / smallest, 16);
    while (v > 1 && v * largest > 2 * kAccess) v /= 2;
    if (s.mode == GpuSchedule::kColumn) v = std::min(v, std::max(1, (smallest < 4 ? 4 : 8) / smallest));
    if (tiles) v = std::min(v, 8);
  }
  auto decide = [&] {  // which accesses are whole vectors; false: some contiguous one cannot be
    s.vector = v;
    s.wide_access.assign(k.insts.size(), false);
    s.multiples.clear();
    const std::vector<bool> uniform = GpuUniform(k, v);
    bool all = true;
    for (int n = 0; n < k.insts.size(); ++n) {
      const Inst& inst = k.insts[n];
      if (v == 1 || !Memory(inst)) continue;
      if (tiles && s.staged[n]) {
        s.wide_access[n] = AlignedAcross(inst, v, &s.multiples);
        all = all && s.wide_access[n];
        continue;
      }
      if (inst.index.inner != Int(1)) continue;
      bool wide = inst.predicate < 0 || uniform[inst.predicate];
      if (inst.kind == IKind::kLoadAt) {
        for (int o : inst.operands) wide = wide && uniform[o];
      }
      s.wide_access[n] = wide && Aligned(inst, v, &s.multiples);
      all = all && s.wide_access[n];
    }
    return all;
  };
  // Lanes of a thread that are read one by one lose to threads that read one element each.
  const bool one_row = s.mode == GpuSchedule::kPoint && k.outer.empty();
  auto odd = [&](Int e) { return e.is_const() && e.value() % v; };
  while (v > 1 && ((odd(k.inner) && !(one_row && k.inner.value() > 4 * v)) || (tiles && odd(k.outer.back())) ||
                   (tiles && v >= 4 && TileBytes(k, s, v) > kStagedBytes) || !decide())) {
    v /= 2;
  }
  decide();
  if (v > 1 && !k.inner.is_const() && !one_row) s.multiples.push_back(k.inner);
  if (v > 1 && tiles && !k.outer.back().is_const()) s.multiples.push_back(k.outer.back());
  s.tail = v > 1 && one_row && !(k.inner.is_const() && k.inner.value() % v == 0);
  s.alignment.assign(k.buffers.size(), 1);
  for (int n = 0; n < k.insts.size(); ++n) {
    if (!s.wide_access[n]) continue;
    const int buffer = k.insts[n].buffer;
    s.alignment[buffer] = std::min(kAccess, v * DTypeSize(k.buffers[buffer].dtype));
  }
  int64_t red = 1;
  bool known = k.inner.is_const();
  for (Int r : k.red) {
    known = known && r.is_const();
    red *= Const(r, 1);
  }
  switch (s.mode) {
    case GpuSchedule::kPoint:
      s.threads = 256;
      s.unroll = 1;
      if (loads > kManyLoads) s.blocks = 3;  // not all of them in registers at once
      break;
    case GpuSchedule::kTile:
      s.threads = 256;
      s.tile = TileOf(v);
      s.unroll = s.tile * s.tile / v / s.threads;
      s.mirrored = k.inner == k.outer.back() && Turned(k, s.staged);
      if (!s.mirrored && k.inner.is_const() && k.outer.back().is_const()) {
        auto counts = [&](int group) {
          const int64_t side = int64_t{group} * s.tile;
          return k.inner.value() % side == 0 && k.outer.back().value() % side == 0;
        };
        while (s.group < kMostGroup && counts(2 * s.group)) s.group *= 2;
      }
      break;
    case GpuSchedule::kColumn: {
      int64_t extent = 1;
      for (Int r : k.red) extent *= Const(r, 64);
      s.slices = 1;
      int64_t of_slice = 0;  // bytes of shared memory
      for (const Inst& inst : k.insts) {
        if (inst.kind != IKind::kReduce) continue;
        const bool arg = inst.op == Op::kArgMax || inst.op == Op::kArgMin;
        of_slice += 32 * v * (arg ? 16 : IsFloat(inst.dtype) && inst.dtype != DType::kFloat64 ? 4 : 8);
      }
      while (s.slices < 16 && s.slices * 8 <= extent && 2 * s.slices * of_slice <= kStagedBytes) s.slices *= 2;
      if (scans) s.slices = 1;
      s.unroll = static_cast<int>(std::clamp<int64_t>(extent / s.slices, 1,
                                                      scans       ? 1
                                                      : loads > 2 ? 2
                                                      : s.stores  ? 4
                                                                  : 8));
      s.threads = 32 * s.slices;
      break;
    }
    case GpuSchedule::kRow: {
      if (scans) {
        s.row_threads = 32;
        s.threads = 128;
        break;
      }
      const int64_t total = known ? red * (k.inner.value() / v) : 0;  // vectors of a row
      int threads = 1;
      auto each = [&](int t) { return (total + t - 1) / t; };
      const int few = std::max(8, 2 * v), of_warp = 2 * few;
      while (threads < kMostThreads && each(threads) * v > (threads == 32 ? of_warp : few)) threads *= 2;
      // One array at a time can be twice as long; the kernel's registers are bounded by its threads. One block fills a
      // multiprocessor then: that many elements take too long to load while nothing else computes, but for 16-bit ones
      // that are needed twice.
      const bool full = threads == kMostThreads && (smallest >= 4 || !s.stores);
      const int64_t most = loads <= 2 && !loads64 && !full ? 2 * kResident : kResident;
      s.resident = known && each(threads) * v <= std::max<int64_t>(most, threads == 32 ? of_warp : 0);
      if (s.resident) {
        s.row_threads = threads;
        s.unroll = static_cast<int>(std::max<int64_t>(1, each(threads)));
      }
      // Where one block would fill a multiprocessor, rows are better held in shared memory, too.
      const bool hold = !s.resident || (threads == kMostThreads && (smallest < 4 || each(threads) * v > few));
      if (hold && known && s.stores && clusters && v > 1 && HoldRow(k, total, capability, most_cluster, &s)) {
        s.resident = false;
        s.threads = s.row_threads;
        break;
      }
      if (!s.resident) {
        // As few rows at once as keep the memory busy: more of them are slower (measured, rows of 128 KB).
        s.row_threads = known ? kMostThreads : 256;
        s.unroll = s.stores ? std::max(1, kResident / v) : 4;
        if (known && !loads64 && s.stores && loads <= 2 && smallest < 4) s.blocks = 2;
        if (known && s.stores && read.size() <= 2 && !loads64 && clusters) {
          const bool half = smallest < 4;
          if (total * v >= kClusterRow) {  // so few rows at once that the second reading is from the L2 cache
            s.cluster = std::min(8, most_cluster);
            s.row_threads = half ? 256 : 512;
            s.unroll = half ? 4 : 8;
            s.blocks = 1;
            s.ahead = half;
          } else if (!half && total * v <= int64_t{4} * kMostThreads * kResident / 2) {
            s.cluster = std::min(2, most_cluster);
            s.row_threads = kMostThreads / 2;
            s.resident = true;
            s.unroll = static_cast<int>(each(2 * s.row_threads));
          }
        }
        if (known && !s.stores && loads <= 2) {  // read and done with: small blocks, where there are enough rows
          int64_t rows = 1;
          for (Int o : k.outer) rows *= Const(o, kManyThreads);
          s.row_threads = 128;
          while (s.row_threads < kMostThreads && rows * s.row_threads < kManyThreads) s.row_threads *= 2;
          s.blocks = kMostThreads / s.row_threads;
          s.ahead = v > 1;
        }
      }
      s.threads = std::max(128, s.row_threads);
      break;
    }
  }
  return s;
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
