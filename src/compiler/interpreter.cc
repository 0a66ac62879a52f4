// backend="interpreter": an Executable that runs the reference semantics. The oracle in the same harness as compiled
// code.
#include <cstring>

#include "compiler/pieces.h"
#include "framejit/compile.h"
#include "runtime/status.h"

namespace framejit {
namespace {

int64_t Extent(const std::vector<int64_t>& sizes, const int64_t* strides, int64_t* low) {
  int64_t high = 0;
  *low = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    int64_t reach = (sizes[i] - 1) * strides[i];
    (reach < 0 ? *low : high) += reach;
  }
  return high - *low + 1;
}

HostTensor FromBuffer(const Buffer& b) {  // a copy
  HostTensor t;
  t.dtype = b.dtype;
  t.sizes.assign(b.sizes, b.sizes + b.rank);
  t.strides.assign(b.strides, b.strides + b.rank);
  int64_t low, n = Extent(t.sizes, b.strides, &low), size = DTypeSize(b.dtype);
  t.storage = std::make_shared<std::vector<std::byte>>(n * size);
  t.offset = -low;
  if (n) memcpy(t.storage->data(), static_cast<const char*>(b.data) + low * size, n * size);
  return t;
}

void CopyElements(const HostTensor& from, void* to, const int64_t* strides, DType dtype) {
  int64_t n = 1;
  for (int64_t s : from.sizes) n *= s;
  int64_t size = DTypeSize(dtype);
  std::vector<int64_t> index(from.sizes.size());
  for (int64_t i = 0; i < n; ++i) {
    int64_t a = 0, b = 0;
    for (size_t d = 0; d < index.size(); ++d) a += index[d] * from.strides[d], b += index[d] * strides[d];
    memcpy(static_cast<char*>(to) + b * size, from.data() + a * size, size);
    for (size_t d = index.size(); d-- > 0;) {
      if (++index[d] < from.sizes[d]) break;
      index[d] = 0;
    }
  }
}

class Interpreter : public Executable {
 public:
  Interpreter(const Graph& g, int traps) : g_(g), traps_(traps) {}

  void Run(Host& host, std::span<const Buffer> inputs, std::span<const int64_t> scalars,
           std::span<Buffer> outputs) override {
    std::vector<HostTensor> in;
    for (auto& b : inputs) in.push_back(FromBuffer(b));
    Graph g = g_;
    for (auto& w : g.writes) g.outputs.push_back(w.value);
    int raised = 0;
    runtime::TakeStatus(traps_);
    std::vector<HostTensor> out = Interpret(
        g, in,
        [&](const Node& n, const std::vector<HostTensor>& args) {
          HostTensor updated;
          std::vector<Buffer> operands(args.size());
          for (size_t i = 0; i < args.size(); ++i)
            operands[i] = {args[i].data(),
                           nullptr,
                           args[i].sizes.data(),
                           args[i].strides.data(),
                           static_cast<int32_t>(args[i].sizes.size()),
                           args[i].dtype,
                           {}};
          if (n.attrs.flag) {  // written
            updated.dtype = args[0].dtype;
            updated.sizes = args[0].sizes;
            updated.strides.assign(updated.sizes.size(), 1);
            for (size_t d = updated.sizes.size(); d-- > 1;)
              updated.strides[d - 1] = updated.strides[d] * std::max<int64_t>(1, updated.sizes[d]);
            int64_t low;
            const int64_t bytes = Extent(updated.sizes, updated.strides.data(), &low) * DTypeSize(updated.dtype);
            updated.storage = std::make_shared<std::vector<std::byte>>(bytes);
            CopyElements(args[0], updated.data(), updated.strides.data(), updated.dtype);
            operands[0].data = updated.data();
            operands[0].strides = updated.strides.data();
          }
          std::vector<Buffer> results(std::max<size_t>(1, n.attrs.result_types.size()));
          raised |= runtime::TakeStatus(traps_);
          host.RunExtern(*n.attrs.call, operands, results);
          runtime::TakeStatus(traps_);
          std::vector<HostTensor> r;
          for (auto& b : results) {
            r.push_back(FromBuffer(b));
            host.Release(&b);
          }
          return r;
        },
        {scalars.begin(), scalars.end()});
    raised |= runtime::TakeStatus(traps_);
    if (raised) throw StatusRaised{raised};
    std::vector<int64_t> symbols(g_.symbols.size());
    for (size_t i = 0; i < g_.symbol_sources.size() && i < symbols.size(); ++i)
      if (auto& s = g_.symbol_sources[i]; s.input >= 0)
        symbols[i] = s.dim < 0 ? scalars[s.input] : inputs[s.input].sizes[s.dim];
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Node& n = g_.node(g_.outputs[i]);
      std::vector<int64_t> strides(out[i].sizes.size(), 1);
      for (size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(1, out[i].sizes[d]);
      if (!n.strides.empty())
        for (size_t d = 0; d < strides.size(); ++d) strides[d] = n.strides[d].Eval(symbols);
      host.AllocateOutput(out[i].dtype, out[i].sizes, strides, n.type.device, &outputs[i]);
      if (outputs[i].data) CopyElements(out[i], outputs[i].data, strides.data(), out[i].dtype);
    }
    for (size_t i = 0; i < g_.writes.size(); ++i) {
      const Buffer& target = inputs[g_.writes[i].input];
      CopyElements(out[outputs.size() + i], target.data, target.strides, target.dtype);
    }
  }
  const CompileStats& stats() const override { return stats_; }
  int64_t ScratchBytes(std::span<const int64_t>) const override { return 0; }
  std::string str() const override { return "interpret\n" + g_.str(); }

 private:
  Graph g_;
  int traps_;
  CompileStats stats_;
};

}  // namespace

std::shared_ptr<Executable> MakeInterpreter(const Graph& g, int traps) {
  if (compiler::HasDataSizes(g))
    return compiler::CompilePieces(
        g, {}, [&](const Graph& part, const std::vector<bool>&) { return MakeInterpreter(part, traps); });
  return std::make_shared<Interpreter>(g, traps);
}

}  // namespace framejit
