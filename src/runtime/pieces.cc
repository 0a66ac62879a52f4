#include "runtime/pieces.h"

#include <algorithm>

#include "diag/diag.h"
#include "runtime/copy.h"
#include "runtime/estimate.h"

namespace framejit::runtime {
namespace {

class PiecesExecutable : public Executable, public Estimated {
 public:
  explicit PiecesExecutable(Pieces p) : p_(std::move(p)) {
    for (const Pieces::Part& part : p_.parts) {
      stats_.externs += static_cast<int>(part.calls.size());
      if (!part.run) continue;
      const CompileStats& s = part.run->stats();
      stats_.kernels += s.kernels;
      stats_.kernels_compiled += s.kernels_compiled;
      stats_.kernels_reused += s.kernels_reused;
      stats_.library_calls += s.library_calls;
      stats_.externs += s.externs;
      stats_.interpreted += s.interpreted;
      stats_.seconds += s.seconds;
    }
  }

  void Run(Host& host, std::span<const Buffer> inputs, std::span<const int64_t> scalars,
           std::span<Buffer> outputs) override {
    FRAMEJIT_CHECK(!host.TakesInputs());  // a part numbers its inputs otherwise, and a later one may read them too
    OneRun(p_, host).Run(inputs, scalars, outputs);
  }
  const CompileStats& stats() const override { return stats_; }
  int64_t ScratchBytes(std::span<const int64_t> symbols) const override {
    int64_t most = 0;
    for (const Pieces::Part& part : p_.parts)
      if (part.run) most = std::max(most, part.run->ScratchBytes(symbols));
    return most;
  }
  bool settled() const override {
    return std::ranges::all_of(p_.parts, [](const Pieces::Part& part) { return !part.run || part.run->settled(); });
  }
  void AddCost(std::span<const int64_t> symbols, PlanCost* cost) const override {
    for (const Pieces::Part& part : p_.parts) {
      if (part.run) runtime::AddCost(*part.run, symbols, cost);
      for (const Pieces::Call& c : part.calls) cost->steps.push_back({c.call->callee.name(), "extern"});
    }
  }
  std::string str() const override {
    std::string s;
    for (const Pieces::Part& part : p_.parts) {
      if (part.run) s += part.run->str();
      for (const Pieces::Call& c : part.calls) s += "-- " + c.call->str() + "\n";
      for (const Pieces::Symbol& x : part.symbols) s += "-- s" + std::to_string(x.symbol) + " is known\n";
      for (const shape::Guard& g : part.conditions) s += "-- where " + g.str() + "\n";
    }
    return s;
  }

 private:
  struct Held {
    Buffer buffer;
    std::vector<int64_t> sizes, strides;
    bool owned = false;
  };

  class OneRun {
   public:
    OneRun(const Pieces& p, Host& host) : p_(p), host_(host), held_(p.values.size()), symbols_(p.sources.size()) {}
    ~OneRun() {
      for (Held& h : held_) Drop(h);
    }
    OneRun(const OneRun&) = delete;

    void Run(std::span<const Buffer> inputs, std::span<const int64_t> scalars, std::span<Buffer> outputs) {
      for (size_t i = 0; i < symbols_.size(); ++i) {
        const Graph::SymbolSource& s = p_.sources[i];
        if (s.input >= 0) symbols_[i] = s.dim < 0 ? scalars[s.input] : inputs[s.input].sizes[s.dim];
      }
      for (size_t i = 0; i < inputs.size(); ++i) held_[i].buffer = inputs[i];
      for (size_t k = 0; k < p_.parts.size(); ++k) {
        const Pieces::Part& part = p_.parts[k];
        if (part.run) Compute(part);
        DropLast(2 * k);
        for (const Pieces::Call& c : part.calls) Call(c);
        for (const Pieces::Symbol& s : part.symbols) {
          symbols_[s.symbol] = held_[s.value].sizes[s.dim];
          host_.SetSymbol(s.symbol, symbols_[s.symbol]);
        }
        for (const shape::Guard& g : part.conditions)
          if (!g.Holds(symbols_)) throw ConditionMissed{g.str()};
        for (const Pieces::Call& c : part.calls)
          for (int v : c.results) Fit(v);
        DropLast(2 * k + 1);
      }
      for (size_t o = 0; o < outputs.size(); ++o) {
        Held& h = held_[p_.outputs[o]];
        FRAMEJIT_CHECK(h.owned);
        outputs[o] = h.buffer;
        outputs[o].sizes = outputs[o].strides = nullptr;
        h.owned = false;
      }
    }

   private:
    void Drop(Held& h) {
      if (h.owned) host_.Release(&h.buffer);
      h.owned = false;
    }

    void DropLast(size_t time) {
      for (size_t v = p_.num_inputs; v < held_.size(); ++v)
        if (p_.values[v].last == static_cast<int>(time)) Drop(held_[v]);
    }

    std::vector<int64_t> Numbers(const shape::Ints& v) const {
      std::vector<int64_t> out;
      for (shape::Int e : v) out.push_back(e.Eval(symbols_));
      return out;
    }

    void Point(Held& h) {
      h.buffer.sizes = h.sizes.data();
      h.buffer.strides = h.strides.data();
      h.buffer.rank = static_cast<int32_t>(h.sizes.size());
    }

    void Compute(const Pieces::Part& part) {
      std::vector<Buffer> in, out(part.outputs.size());
      for (int v : part.inputs) in.push_back(held_[v].buffer);
      part.run->Run(host_, in, symbols_, out);
      for (size_t o = 0; o < out.size(); ++o) {
        const Pieces::Value& v = p_.values[part.outputs[o]];
        Held& h = held_[part.outputs[o]];
        h.buffer = out[o];
        h.buffer.dtype = v.dtype;
        h.buffer.device = v.device;
        h.owned = true;
        h.sizes = Numbers(v.sizes);
        h.strides = Numbers(v.strides);
        Point(h);
      }
    }

    void Call(const Pieces::Call& c) {
      std::vector<Buffer> operands, results(c.results.size());
      for (int v : c.operands) operands.push_back(held_[v].buffer);
      host_.RunExtern(*c.call, operands, results);
      for (size_t r = 0; r < results.size(); ++r) {
        Held& h = held_[c.results[r]];
        h.buffer = results[r];
        h.owned = true;
      }
      for (int r : c.results) {
        Held& h = held_[r];
        const Buffer& b = h.buffer;
        h.sizes.assign(b.sizes, b.sizes + b.rank);
        h.strides.assign(b.strides, b.strides + b.rank);
        Point(h);
        const Pieces::Value& v = p_.values[r];
        // NumPy answers some calls with another dtype where there is nothing to look at.
        if (h.sizes.size() != v.sizes.size() || b.dtype != v.dtype)
          throw ConditionMissed{"the result of " + c.call->callee};
      }
    }

    // The result of a call as the next parts take it to be: they rely on its sizes and on how it lies in memory.
    void Fit(int value) {
      Held& h = held_[value];
      const Pieces::Value& v = p_.values[value];
      if (h.sizes != Numbers(v.sizes)) throw ConditionMissed{"the sizes of a result"};
      const std::vector<int64_t> strides = Numbers(v.strides);
      const bool empty = std::count(h.sizes.begin(), h.sizes.end(), 0) > 0;
      bool fits = true;
      for (size_t d = 0; !empty && d < strides.size(); ++d)
        fits = fits && (h.sizes[d] == 1 || strides[d] == h.strides[d]);
      if (fits) return;
      Buffer copy = h.buffer;
      copy.strides = strides.data();
      host_.AllocateOutput(v.dtype, h.sizes, strides, h.buffer.device, &copy);
      Held fresh;
      fresh.buffer = copy;
      fresh.owned = true;
      fresh.sizes = h.sizes;
      fresh.strides = strides;
      Point(fresh);
      try {
        StridedCopy(host_, h.buffer, fresh.buffer);
      } catch (...) {
        Drop(fresh);
        throw;
      }
      Drop(h);
      h = std::move(fresh);
      Point(h);
    }

    const Pieces& p_;
    Host& host_;
    std::vector<Held> held_;
    std::vector<int64_t> symbols_;
  };

  const Pieces p_;
  CompileStats stats_;
};

}  // namespace

std::shared_ptr<Executable> MakePieces(Pieces p) {
  return std::make_shared<PiecesExecutable>(std::move(p));
}

}  // namespace framejit::runtime
