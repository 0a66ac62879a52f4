// This file chooses libraries by measuring. What was measured is kept for the process and, where the machine was quiet,
// in a small file for later ones, with a line for each class of shapes. Measuring takes little of a process's time.
// What comes after that goes with the majority.
#include <absl/functional/function_ref.h>
#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "diag/cache_folder.h"
#include "diag/choice.h"
#include "diag/diag.h"
#include "tensor/contractions.h"
#include "tensor/torch_api.h"

namespace framejit::tensor {
namespace {

constexpr double kBudget[] = {0.05, 0.08};  // seconds of measuring in all, per process; by: can be packed
// Likewise where `measure` is on. A class of shapes takes kPatience at most, so these are some 600 of them; a model has
// 5 to 50.
constexpr double kLongBudget = 20.0;
constexpr double kMinFlops = 2e4;               // below, the call itself dominates: MKL
constexpr double kWorse = 1.9;                  // times eager's error, where the oracle of the tests allows twice
constexpr int kMinRounds = 3, kMaxRounds = 12;  // the first of them run on cold caches and waking threads
constexpr double kEnough = 4e-3;                // seconds
constexpr double kPatience = 30e-3;             // while some library has not been as fast as its best twice
// Times that differ by less are the same: the best ones of six runs of one function differ by 1.028 at most in 95% of
// 3,240 pairs, by 1.038 in 99% (one thread).
constexpr double kTwice = 1.05;
// What a choice must gain follows from how well times are known. Another library than eager's serves all shapes of the
// class from then on: it must be faster by the errors of both times. Packing a weight is paid for once and takes
// memory: the error of one. Where the weight is packed already, nothing is left to pay, and any gain counts.
constexpr double kGain = kTwice * kTwice, kPackGain = kTwice;
constexpr double kQuiet = 1.3;  // The median over the best, as in compiler/forms.cc.
constexpr const char* kNames[] = {"MKL", "oneDNN", "MKL with packed weights"};
constexpr int kLibraries = std::size(kNames);
constexpr double kNever = 1e9;

using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, uint32_t, uint32_t, bool>;
// batch, m (power of two), n, k, layout, threads, can be packed

int64_t PowerOfTwo(int64_t m) {
  int64_t p = 1;
  while (p < m) p *= 2;
  return p;
}

double Seconds(absl::FunctionRef<void()> f) {
  auto t = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

// --- the file
// Of this processor and these libraries; empty: nowhere to keep it.
std::string FileName() {
  const std::string folder = diag::CacheFolder();
  if (folder.empty()) return "";
  std::string about = diag::Processor();
  Dl_info where;
  struct stat s;
  const TorchApi* t = Torch();
  if (!t || !t->mm_out || !dladdr(reinterpret_cast<void*>(t->mm_out), &where) || stat(where.dli_fname, &s)) return "";
  about += std::to_string(s.st_size) + " " + std::to_string(s.st_mtime);
  for (const char* name : {"MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"}) {
    const char* value = std::getenv(name);
    about += std::string("|") + (value ? value : "");
  }
  char text[32];
  std::snprintf(text, sizeof text, "/products-%016llx", static_cast<unsigned long long>(diag::Hash(about)));
  return folder + text;
}

struct Table {
  std::mutex mu;
  bool read = false;
  std::string file;
  std::map<Key, Library> chosen;
  double spent[2] = {};  // by: can be packed
  int votes[2][kLibraries] = {};

  void Note(const Key& key, Library l) {
    if (chosen.emplace(key, l).second) ++votes[std::get<6>(key)][static_cast<int>(l)];
  }
  Library Majority(bool packed) const {
    return static_cast<Library>(std::max_element(votes[packed], votes[packed] + kLibraries) - votes[packed]);
  }
  void Read() {
    if (std::exchange(read, true)) return;
    file = FileName();
    if (file.empty()) return;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      int64_t batch, m, n, k;
      uint32_t layout, threads;
      int packed, library;
      std::string end;
      if (words >> batch >> m >> n >> k >> layout >> threads >> packed >> library >> end && end == "." &&
          library >= 0 && library < kLibraries && (packed || library < static_cast<int>(Library::kPacked)))
        Note({batch, m, n, k, layout, threads, packed != 0}, static_cast<Library>(library));
    }
  }
  void Write(const Key& key, Library l) const {
    if (file.empty()) return;
    std::ostringstream line;
    std::apply([&](auto... part) { ((line << part << ' '), ...); }, key);
    line << static_cast<int>(l) << " .\n";
    if (FILE* f = std::fopen(file.c_str(), "a")) {
      std::fputs(line.str().c_str(), f);  // one write: lines of several processes do not mix
      std::fclose(f);
    }
  }
};
Table& TheTable() {
  static auto* t = new Table();
  return *t;
}

std::atomic<int> forced{-1};

struct Times {
  double best[kLibraries] = {kNever, kNever, kNever};
  bool quiet = false;
};

Times Measure(const Probe& p, bool packed) {
  Times t;
  std::vector<Library> libraries = {Library::kMkl};
  if (!p.run(Library::kMkl, p.m)) return t;  // first runs make primitives and touch memory
  for (Library l : {Library::kOneDnn, Library::kPacked}) {
    if ((l != Library::kPacked || packed) && p.run(l, p.m)) libraries.push_back(l);
  }
  if (libraries.size() == 1) return t;
  std::vector<double> mkl;
  double total = 0, second[kLibraries] = {kNever, kNever, kNever};
  auto confirmed = [&] {
    return std::all_of(libraries.begin(), libraries.end(),
                       [&](Library l) { return second[static_cast<int>(l)] <= kTwice * t.best[static_cast<int>(l)]; });
  };
  auto more = [&](int rounds) {
    return rounds < kMinRounds || (rounds < kMaxRounds && (total < kEnough || (total < kPatience && !confirmed())));
  };
  for (int i = 0; more(i); ++i) {
    for (Library l : libraries) {
      p.cool();
      const double s = Seconds([&] { p.run(l, p.m); });
      double& best = t.best[static_cast<int>(l)];
      second[static_cast<int>(l)] = std::min(second[static_cast<int>(l)], std::max(best, s));
      best = std::min(best, s);
      if (l == Library::kMkl) mkl.push_back(s);
      total += s;
    }
  }
  std::nth_element(mkl.begin(), mkl.begin() + mkl.size() / 2, mkl.end());
  t.quiet = mkl[mkl.size() / 2] < kQuiet * t.best[0];
  return t;
}

// Some shapes are summed in one long chain. The answer is for all numbers of rows of the class.
bool Accurate(const Probe& p, Library l, int64_t least_rows) {
  for (int64_t m : {p.m, std::min(p.m, least_rows)}) {
    if (!p.run(Library::kMkl, m)) return false;
    const double theirs = p.error(m);
    if (!p.run(l, m) || !(p.error(m) <= kWorse * kWorse * theirs)) return false;
  }
  return true;
}

Library Decide(const ProductShape& s, const Probe& p, const Times& t) {
  const int64_t least = PowerOfTwo(s.m) / 2 + 1;
  Library plain = Library::kMkl;
  const double mkl = t.best[0], onednn = t.best[1], packed = t.best[2];
  if (mkl > kGain * onednn && Accurate(p, Library::kOneDnn, least)) plain = Library::kOneDnn;
  // Packing saves a time that does not depend on the number of rows: the more of them, the less it counts.
  const double now = plain == Library::kMkl ? mkl : onednn, whole = now * s.m / p.m, saved = now - packed;
  const double gain = s.packed == ProductShape::Packed::kIs ? 1.0 : kPackGain;
  if (packed < kNever && whole > gain * (whole - saved) && Accurate(p, Library::kPacked, std::max(least, kPackedRows)))
    return Library::kPacked;
  return plain;
}

void Say(const ProductShape& s, const Probe& p, const Times& t, Library chosen) {
  diag::Choice choice;
  choice.what = "matrix product " + std::to_string(s.batch) + "x[" + std::to_string(s.m) + "x" + std::to_string(s.k) +
                "]x[" + std::to_string(s.k) + "x" + std::to_string(s.n) + "]";
  choice.chosen = kNames[static_cast<int>(chosen)];
  for (int i = 0; i < kLibraries; ++i) {
    if (t.best[i] == kNever) continue;
    char number[64];
    std::snprintf(number, sizeof number, "%s %.0f GFLOP/s", kNames[i], p.flops * p.m / t.best[i] * 1e-9);
    choice.why += (choice.why.empty() ? "" : ", ") + std::string(number);
    choice.seconds.emplace_back(kNames[i], t.best[i]);
  }
  diag::Tell(choice, choice.what + ": " + choice.why + ", chosen: " + choice.chosen);
}

}  // namespace

void ForceLibrary(int library) {
  forced = library;
}

Library Choose(const ProductShape& s, const Probe& p) {
  if (forced >= 0) return static_cast<Library>(forced.load());
  if (p.flops * p.m < kMinFlops) return Library::kMkl;
  uint32_t threads = 1;
  if (const TorchApi* t = Torch(); t && t->num_threads) t->num_threads(&threads);
  const bool packed = s.packed != ProductShape::Packed::kNo;
  const Key key{s.batch, PowerOfTwo(s.m), s.n, s.k, s.layout, threads, packed};
  Table& table = TheTable();
  bool unmeasured;
  Library majority = Library::kMkl;
  {
    std::lock_guard lock(table.mu);
    table.Read();
    if (auto at = table.chosen.find(key); at != table.chosen.end()) return at->second;
    unmeasured = table.spent[packed] > (diag::OptionOn("measure") ? kLongBudget : kBudget[packed]);
    if (unmeasured) majority = table.Majority(packed);
  }
  // What is not measured is as accurate as what is.
  if (unmeasured) {
    const int64_t least = PowerOfTwo(s.m) / 2 + 1;
    const int64_t rows = majority == Library::kPacked ? std::max(least, kPackedRows) : least;
    if (majority != Library::kMkl && !Accurate(p, majority, rows)) majority = Library::kMkl;
    std::lock_guard lock(table.mu);
    return table.chosen.emplace(key, majority).first->second;
  }
  Times t;
  Library chosen = Library::kMkl;
  const double spent = Seconds([&] {
    t = Measure(p, packed);
    chosen = Decide(s, p, t);
  });
  std::lock_guard lock(table.mu);
  table.spent[packed] += spent;
  if (t.best[0] < kNever && diag::ChoicesAreTold()) Say(s, p, t, chosen);
  table.Note(key, chosen);
  if (t.quiet) table.Write(key, chosen);
  return table.chosen[key];
}

}  // namespace framejit::tensor
