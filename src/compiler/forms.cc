#include "compiler/forms.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>

#include "diag/cache_folder.h"
#include "diag/choice.h"
#include "diag/diag.h"
#include "runtime/estimate.h"

namespace framejit::compiler {
namespace {

constexpr int kWarm = 2;   // Runs that are not timed: weights are packed in the second one.
constexpr int kTimed = 6;  // The timed runs of each form, by turns.
// The best of several forms is partly the luckiest of them. So it runs by turns with the default once more, and what
// was timed before does not count.
constexpr int kConfirmed = 8;
// By its best time, and then by best and median, a form must be so much faster. Of 3,240 pairs of one and the same
// function (x * x + 1 on 16 floats, beside other programs) 0.1% differ so by the best of six, none by all of it.
constexpr double kGain = 1.05;
constexpr double kHopeless = 1.5;  // A form whose best time is so much longer than the default's leaves at once.
constexpr double kFarTooSlow = 4;  // Times the default in the slowest of its runs: not even warm runs are finished.
// The default's median over its best time. Above that other programs take the machine's time, and the verdict holds in
// this process alone. On one thread it is below 1.08 in 99% of the pairs above; where other programs want all cores,
// softmax of 256x256 floats has 1.5, and a product of 256x256 matrices 1.6.
constexpr double kQuiet = 1.3;
// After so many runs of other sizes in a row, those of the first run are not waited for.
constexpr int kOthers = 100;
// Seconds after which no more forms of a graph are made. There are at most seven, and most of their kernels are those
// of the default: all of ResNet-50 take 0.15 s of a core, all of BERT-base 0.11 s. Only much larger graphs come to
// this.
constexpr double kMostMaking = 10.0;

// What was found out, by the hash of the graph, its default plan and the number of threads: the pass to do without.
class Verdicts {
 public:
  std::optional<std::string> Find(uint64_t key) {
    std::lock_guard lock(mu_);
    Read();
    auto at = known_.find(key);
    return at == known_.end() ? std::nullopt : std::optional(at->second);
  }
  void Note(uint64_t key, const std::string& pass, bool quiet) {
    std::lock_guard lock(mu_);
    Read();
    known_[key] = pass;
    if (!quiet || file_.empty()) return;
    if (FILE* f = std::fopen(file_.c_str(), "a")) {  // one write: lines of several processes do not mix
      std::fprintf(f, "%016llx %s .\n", static_cast<unsigned long long>(key), pass.empty() ? "-" : pass.c_str());
      std::fclose(f);
    }
  }

 private:
  void Read() {
    if (std::exchange(read_, true)) return;
    const std::string folder = diag::CacheFolder();
    if (folder.empty()) return;
    char name[32];
    std::snprintf(name, sizeof name, "/forms-%016llx", static_cast<unsigned long long>(diag::Hash(diag::Processor())));
    file_ = folder + name;
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      uint64_t key;
      std::string pass, end;
      if (words >> std::hex >> key >> pass >> end && end == ".") known_[key] = pass == "-" ? "" : pass;
    }
  }

  std::mutex mu_;
  bool read_ = false;
  std::string file_;
  std::map<uint64_t, std::string> known_;
};

Verdicts& TheVerdicts() {
  static auto* verdicts = new Verdicts;
  return *verdicts;
}

class Forms : public Executable, public runtime::Estimated {
 public:
  Forms(const Graph& graph, const CompileOptions& options, std::vector<std::string_view> passes, MakeForm make)
      : options_(options),
        passes_(std::move(passes)),
        make_(std::move(make)),
        name_(graph.name),
        symbolic_(!graph.symbols.empty()) {
    std::string text = graph.str();
    for (bool weight : options.weights) text += weight ? 'w' : '-';
    forms_.push_back({"", make_(options_)});
    current_ = forms_[0].run;
    stats_ = current_->stats();
    text_ = text + current_->str();
  }

  const CompileStats& stats() const override { return stats_; }
  std::string str() const override { return Current()->str(); }  // Of the form that is chosen.
  bool settled() const override { return settled_.load(std::memory_order_acquire); }
  int64_t ScratchBytes(std::span<const int64_t> symbols) const override { return Current()->ScratchBytes(symbols); }
  void AddCost(std::span<const int64_t> symbols, runtime::PlanCost* cost) const override {
    runtime::AddCost(*Current(), symbols, cost);
  }

  void Run(Host& host, std::span<const Buffer> inputs, std::span<const int64_t> scalars,
           std::span<Buffer> outputs) override {
    if (Executable* settled = settled_.load(std::memory_order_acquire)) {
      Executable* run = symbolic_ && !AreTimed(inputs, scalars) ? default_.get() : settled;
      return run->Run(host, inputs, scalars, outputs);
    }
    const auto [run, form] = Next(host, inputs, scalars);
    if (form < 0) return run->Run(host, inputs, scalars, outputs);
    const auto start = std::chrono::steady_clock::now();
    try {
      run->Run(host, inputs, scalars, outputs);
    } catch (...) {
      std::lock_guard lock(mu_);
      timing_ = false;
      throw;
    }
    Note(form, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }

 private:
  struct Form {
    std::string without;  // this pass; empty: the default
    std::shared_ptr<Executable> run;
    int runs = 0;
    std::vector<double> seconds = {};
    double best() const {
      return seconds.empty() ? std::numeric_limits<double>::infinity()
                             : *std::min_element(seconds.begin(), seconds.end());
    }
    double median() const {
      std::vector<double> all = seconds;
      std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
      return all[all.size() / 2];
    }
  };

  // Are these the sizes that the forms were timed with?
  bool AreTimed(std::span<const Buffer> inputs, std::span<const int64_t> scalars) const {
    const int64_t* at = sizes_->data();
    const auto same = [&](const int64_t* first, size_t count) {
      at += count;
      return std::equal(first, first + count, at - count);
    };
    size_t count = scalars.size();
    for (const Buffer& b : inputs) count += b.rank;
    return count == sizes_->size() && same(scalars.data(), scalars.size()) &&
           std::all_of(inputs.begin(), inputs.end(), [&](const Buffer& b) { return same(b.sizes, b.rank); });
  }

  std::shared_ptr<Executable> Current() const {
    std::lock_guard lock(mu_);
    return current_;
  }

  // What this run executes, and the form to be timed with it: -1 for none.
  std::pair<std::shared_ptr<Executable>, int> Next(Host& host, std::span<const Buffer> inputs,
                                                   std::span<const int64_t> scalars) {
    std::vector<Form> gone;  // freed behind the lock: that may take the GIL, whose owner may want the lock
    std::lock_guard lock(mu_);
    if (decided_) return {current_, -1};
    if (!sizes_) {
      sizes_.emplace(scalars.begin(), scalars.end());
      for (const Buffer& b : inputs) sizes_->insert(sizes_->end(), b.sizes, b.sizes + b.rank);
      Begin(host.NumThreads(), &gone);
      if (decided_) return {current_, -1};
    }
    if (timing_) return {current_, -1};  // two at once say nothing
    if (!AreTimed(inputs, scalars)) {
      if (++others_ == kOthers) Choose(forms_[0], "the sizes that were timed are no longer used", &gone);
      return {current_, -1};
    }
    others_ = 0;
    timing_ = true;
    // The default first: what is kept of weights has a bound, and it must have its part.
    if (forms_[0].runs < kWarm) return {current_, 0};
    const auto least =
        std::min_element(forms_.begin(), forms_.end(), [](const Form& a, const Form& b) { return a.runs < b.runs; });
    return {least->run, static_cast<int>(least - forms_.begin())};
  }

  void Begin(int threads, std::vector<Form>* gone) {
    key_ = diag::Hash(text_ + std::to_string(threads));
    text_.clear();
    const std::optional<std::string> known = TheVerdicts().Find(key_);
    const auto start = std::chrono::steady_clock::now();
    for (std::string_view pass : passes_) {
      if (known && *known != pass) continue;
      if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > kMostMaking) break;
      CompileOptions options = options_;
      options.disabled_passes.emplace_back(pass);
      auto form = Made(options);
      if (!form || form->str() == current_->str()) continue;
      forms_.push_back({std::string(pass), std::move(form)});
    }
    if (known || forms_.size() == 1)
      Choose(forms_.back(), known ? "known from before" : "there is no other form", gone);
  }

  std::shared_ptr<Executable> Made(const CompileOptions& options) const {
    try {
      return make_(options);
    } catch (const diag::InternalError&) {
      throw;
    } catch (const std::exception&) {  // no form then
      return nullptr;
    }
  }

  void Note(int number, double seconds) {
    std::vector<Form> gone;  // likewise
    std::lock_guard lock(mu_);
    timing_ = false;
    Form& form = forms_[number];
    if (++form.runs > kWarm) form.seconds.push_back(seconds);
    const double standard = forms_[0].best();
    if (!number) slowest_ = std::max(slowest_, seconds);
    if (number && ((!form.seconds.empty() && form.best() > kHopeless * standard) || seconds > kFarTooSlow * slowest_)) {
      gone.push_back(std::move(form));
      forms_.erase(forms_.begin() + number);
    }
    const size_t wanted = confirming_ ? kConfirmed : kTimed;
    if (std::ranges::any_of(forms_, [&](const Form& f) { return f.seconds.size() < wanted; })) return;
    auto best = std::ranges::min_element(forms_, {}, &Form::best);
    if (standard < kGain * best->best()) best = forms_.begin();
    if (best != forms_.begin() && !confirming_) return Confirm(best, &gone);
    if (forms_[0].median() < kGain * best->median()) best = forms_.begin();
    TheVerdicts().Note(key_, best->without, forms_[0].median() < kQuiet * standard);
    char text[64];
    std::snprintf(text, sizeof text, "%.1f us, the default %.1f us", best->best() * 1e6, standard * 1e6);
    Choose(*best, text, &gone);
  }

  // Times this form and the default anew; all others leave.
  void Confirm(std::vector<Form>::iterator form, std::vector<Form>* gone) {
    std::swap(forms_[1], *form);
    std::move(forms_.begin() + 2, forms_.end(), std::back_inserter(*gone));
    forms_.erase(forms_.begin() + 2, forms_.end());
    for (Form& f : forms_) f.seconds.clear();
    confirming_ = true;
  }

  static std::string NameOf(const Form& form) {
    return form.without.empty() ? "the default form" : "the form without " + form.without;
  }

  void Choose(const Form& form, const std::string& why, std::vector<Form>* gone) {
    if (diag::ChoicesAreTold()) {
      diag::Choice choice{"graph " + name_, NameOf(form), why, {}};
      for (const Form& f : forms_)
        if (!f.seconds.empty()) choice.seconds.emplace_back(NameOf(f), f.best());
      diag::Tell(choice, choice.what + ": " + choice.chosen + " is chosen: " + why);
    }
    current_ = form.run;
    if (symbolic_) default_ = forms_[0].run;
    decided_ = true;
    settled_.store(current_.get(), std::memory_order_release);
    std::move(forms_.begin(), forms_.end(), std::back_inserter(*gone));
    forms_.clear();
  }

  const CompileOptions options_;
  const std::vector<std::string_view> passes_;
  const MakeForm make_;
  const std::string name_;
  const bool symbolic_;  // Runs may have other sizes than those that are timed.
  std::string text_;     // until the number of threads is known
  uint64_t key_ = 0;
  CompileStats stats_;
  mutable std::mutex mu_;
  std::shared_ptr<Executable> current_;  // the default until it is decided
  std::shared_ptr<Executable> default_;  // of symbolic graphs, once it is decided
  bool decided_ = false;
  std::atomic<Executable*> settled_{nullptr};  // current_, once it is decided: nothing changes it or sizes_ then
  double slowest_ = 0;                         // run of the default
  std::vector<Form> forms_;                    // until then; the default is the first
  std::optional<std::vector<int64_t>> sizes_;
  int others_ = 0;           // Runs of other sizes in a row.
  bool timing_ = false;      // by some thread
  bool confirming_ = false;  // Two forms are left, the default and the one that was faster.
};

}  // namespace

std::shared_ptr<Executable> MakeForms(const Graph& graph, const CompileOptions& options,
                                      std::vector<std::string_view> passes, MakeForm make) {
  return std::make_shared<Forms>(graph, options, std::move(passes), std::move(make));
}

}  // namespace framejit::compiler
