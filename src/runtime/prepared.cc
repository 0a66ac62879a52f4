#include "runtime/prepared.h"

#include <unistd.h>

#include <atomic>
#include <mutex>

#include "diag/diag.h"
#include "runtime/estimate.h"

namespace framejit::runtime {
namespace {

std::atomic<int64_t> g_bytes{0};

int64_t Limit() {  // The limit is a quarter of the machine's memory.
  static const int64_t limit = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / 4;
  return limit;
}

// Immutable once made; runs share it, so that one that is replaced lives until the last of them is done.
struct Made {
  explicit Made(Host& host) : host(host) {}
  ~Made() {
    for (Buffer& b : values) {
      if (b.handle) host.Release(&b);
    }
    g_bytes -= bytes;
  }
  Made(const Made&) = delete;

  Host& host;
  std::vector<std::unique_ptr<MemoryWatch>> watches;  // by source
  std::vector<Buffer> values;
  int64_t bytes = 0;
};

class PreparedExecutable : public Executable, public Estimated {
 public:
  PreparedExecutable(std::shared_ptr<Executable> main, Preparation p) : main_(std::move(main)), p_(std::move(p)) {
    stats_ = main_->stats();
    const CompileStats& more = p_.make->stats();
    stats_.kernels += more.kernels;
    stats_.kernels_compiled += more.kernels_compiled;
    stats_.kernels_reused += more.kernels_reused;
    stats_.seconds += more.seconds;
    for (const Preparation::Value& v : p_.values) optional_ = optional_ && v.optional;
  }

  const CompileStats& stats() const override { return stats_; }
  std::string str() const override { return "of weights, once: " + p_.make->str() + main_->str(); }
  int64_t ScratchBytes(std::span<const int64_t> symbols) const override { return main_->ScratchBytes(symbols); }
  void AddCost(std::span<const int64_t> symbols, PlanCost* cost) const override {
    runtime::AddCost(*main_, symbols, cost);
  }

  void Run(Host& host, std::span<const Buffer> inputs, std::span<const int64_t> scalars,
           std::span<Buffer> outputs) override {
    std::shared_ptr<const Made> made = Current(host, inputs);
    if (!made && !optional_) return Plain()->Run(host, inputs, scalars, outputs);
    std::vector<Buffer> all;
    all.reserve(inputs.size() + p_.values.size());
    all.assign(inputs.begin(), inputs.end());
    if (made)
      all.insert(all.end(), made->values.begin(), made->values.end());
    else
      all.resize(inputs.size() + p_.values.size());
    main_->Run(host, all, scalars, outputs);
  }

 private:
  // No lock is held while something is made or freed: that may take the GIL, whose owner may want the lock.
  std::shared_ptr<const Made> Current(Host& host, std::span<const Buffer> inputs) {
    std::shared_ptr<const Made> made, old;
    {
      std::lock_guard lock(mu_);
      if (given_up_) return nullptr;
      if (made_ && &made_->host == &host.BeyondRun() && Unchanged(*made_, inputs)) {
        ++hits_;
        return made_;
      }
      if (optional_ && std::exchange(first_run_, false)) return nullptr;  // what runs once need not be prepared for
      // A weight that is written all the time (training, averaged models): making it anew costs more than it wins.
      if (makes_ > kMakes + hits_ / kHitsPerMake) {
        old = std::move(made_);
        if (++plain_runs_ % kRetry) return nullptr;
      }
      ++makes_;
    }
    made = Make(host, inputs);
    std::lock_guard lock(mu_);
    if (!made) given_up_ = true;
    old = std::exchange(made_, made);
    return made;
  }

  bool Unchanged(const Made& made, std::span<const Buffer> inputs) const {
    for (size_t i = 0; i < p_.sources.size(); ++i) {
      if (made.watches[i] && !made.watches[i]->Unchanged(inputs[p_.sources[i]])) return false;
    }
    return true;
  }

  static int64_t Bytes(const Buffer& b) {
    int64_t n = DTypeSize(b.dtype);
    for (int d = 0; d < b.rank; ++d) n *= b.sizes[d];
    return n;
  }

  std::shared_ptr<const Made> Make(Host& host, std::span<const Buffer> inputs) const {
    auto made = std::make_shared<Made>(host.BeyondRun());
    std::vector<Buffer> sources;
    std::vector<bool> required(p_.sources.size(), false), kept(p_.sources.size(), false);
    for (const Preparation::Value& v : p_.values) {
      for (int s : v.sources) required[s] = required[s] || !v.optional;
    }
    int64_t planned = g_bytes;
    for (size_t i = 0; i < p_.sources.size(); ++i) {
      sources.push_back(inputs[p_.sources[i]]);
      made->watches.push_back(host.WatchMemory(sources[i]));  // before it is read
      planned += Bytes(sources[i]);
      if (made->watches[i] && (required[i] || planned <= Limit())) continue;
      if (required[i]) return Say("the memory of a weight cannot be watched");
      sources[i].data = nullptr;  // nothing is made of it
    }
    made->values.resize(p_.values.size());
    try {
      p_.make->Run(host, sources, {}, made->values);
    } catch (const std::exception& e) {
      made->values.clear();
      return Say(e.what());
    }
    for (size_t i = 0; i < p_.values.size(); ++i) {
      if (!made->values[i].handle && p_.values[i].optional) continue;
      made->bytes += Bytes(made->values[i]);
      for (int s : p_.values[i].sources) kept[s] = true;
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      if (!kept[i]) made->watches[i].reset();
    }
    if ((g_bytes += made->bytes) > Limit()) return Say("prepared weights take more than a quarter of the memory");
    if (made->bytes && diag::Enabled(diag::Channel::perf_)) {
      const std::string mib = std::to_string(made->bytes >> 20);
      diag::Log(diag::Channel::perf_, "what is made of weights is kept: " + mib + " MiB (pack_weights=0 turns it off)");
    }
    return made;
  }

  static std::shared_ptr<const Made> Say(const std::string& why) {
    if (diag::Enabled(diag::Channel::perf_)) diag::Log(diag::Channel::perf_, "weights are used as they are: " + why);
    return nullptr;
  }

  std::shared_ptr<Executable> Plain() {
    std::shared_ptr<Executable> fresh;
    {
      std::lock_guard lock(mu_);
      if (plain_) return plain_;
    }
    fresh = p_.plain();
    std::lock_guard lock(mu_);
    if (!plain_) plain_ = fresh;
    return plain_;
  }

  static constexpr int64_t kMakes = 3, kHitsPerMake = 4, kRetry = 64;

  const std::shared_ptr<Executable> main_;
  const Preparation p_;
  CompileStats stats_;
  std::mutex mu_;
  std::shared_ptr<const Made> made_;
  std::shared_ptr<Executable> plain_;
  int64_t hits_ = 0, makes_ = 0, plain_runs_ = 0;
  bool optional_ = true;  // all of it: the main executable runs without
  bool first_run_ = true, given_up_ = false;
};

}  // namespace

std::shared_ptr<Executable> MakePrepared(std::shared_ptr<Executable> main, Preparation preparation) {
  return std::make_shared<PreparedExecutable>(std::move(main), std::move(preparation));
}

int64_t PreparedBytes() {
  return g_bytes;
}

}  // namespace framejit::runtime
