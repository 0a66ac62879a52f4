#include <algorithm>
#include <cstring>

#include "graph/interpret.h"
#include "graph/print.h"

namespace framejit {
namespace interpret {

int64_t Count(const Sizes& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

Sizes RowMajor(const Sizes& sizes) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= std::max<int64_t>(sizes[d], 1)) strides[d] = stride;
  return strides;
}

HostTensor Contiguous(const HostTensor& x) {
  if (x.strides == RowMajor(x.sizes) && x.offset == 0) return x;
  HostTensor out = HostTensor::Empty(x.dtype, x.sizes);
  std::byte* to = out.data();
  int64_t size = DTypeSize(x.dtype);
  ForEachOffset(x, [&](int64_t offset) {
    std::memcpy(to, x.storage->data() + offset * size, size);
    to += size;
  });
  return out;
}

HostTensor Filled(DType t, const Sizes& sizes, const Scalar& value) {
  HostTensor out = HostTensor::Empty(t, sizes);
  int64_t n = Count(sizes);
  if (n == 0) return out;
  int64_t size = DTypeSize(t);
  if (IsComplex(t)) {  // Constants are real, so the imaginary part stays zero.
    double real = value.AsDouble();
    float narrow = static_cast<float>(real);
    for (int64_t k = 0; k < n; ++k)
      std::memcpy(out.data() + k * size, t == DType::kComplex64 ? static_cast<const void*>(&narrow) : &real, size / 2);
    return out;
  }
  std::visit(
      [&](auto v) {
        HostTensor one = StoreAll(t, {}, Lanes<decltype(v)>{v});
        for (int64_t k = 0; k < n; ++k) std::memcpy(out.data() + k * size, one.data(), size);
      },
      value.v);
  return out;
}

namespace {

class Run {
 public:
  Run(const Graph& g, const std::vector<HostTensor>& inputs, const ExternRunner& run_extern,
      const std::vector<int64_t>& scalars)
      : g_(g), inputs_(inputs), run_extern_(run_extern), values_(g.nodes.size()), symbols_(g.symbols.size()) {
    if (inputs.size() != g.inputs.size())
      throw std::runtime_error("the graph takes " + std::to_string(g.inputs.size()) + " inputs, got " +
                               std::to_string(inputs.size()));
    for (size_t i = 0; i < g.symbol_sources.size(); ++i) {
      Graph::SymbolSource s = g.symbol_sources[i];
      if (s.input < 0) continue;
      symbols_[i] = s.dim < 0 ? scalars.at(s.input) : inputs.at(s.input).sizes.at(s.dim);
    }
  }

  std::vector<HostTensor> Execute() {
    size_t next_input = 0;
    for (ValueId v = 0; v < g_.nodes.size(); ++v) {
      const Node& n = g_.nodes[v];
      values_[v] = n.op == Op::kInput ? inputs_[next_input++] : n.op == Op::kExtern ? Extern(v) : Evaluate(n);
      bool none = n.op == Op::kExtern && n.attrs.result_types.empty();
      if (!none && (values_[v].dtype != n.type.dtype || values_[v].sizes != Numbers(n.type.shape)))
        throw std::runtime_error("value does not have the type it should have: " + NodeText(g_, v, true));
    }
    std::vector<HostTensor> outputs, written;
    for (ValueId v : g_.outputs) outputs.push_back(Materialize(v));
    for (const Write& w : g_.writes) written.push_back(Fresh(values_[w.value]));
    for (size_t i = 0; i < written.size(); ++i) Overwrite(inputs_[g_.writes[i].input], written[i]);
    return outputs;
  }

 private:
  Sizes Numbers(const shape::Ints& v) const {
    Sizes out;
    for (shape::Int e : v) out.push_back(e.Eval(symbols_));
    return out;
  }

  HostTensor Evaluate(const Node& n) {
    std::vector<HostTensor> in;
    for (ValueId o : n.operands) in.push_back(values_[o]);
    switch (n.op) {
      case Op::kConstant: {
        Scalar value = n.attrs.sym_scalar ? Scalar(n.attrs.sym_scalar->Eval(symbols_)) : n.attrs.scalar;
        return Filled(n.attrs.dtype, Numbers(n.attrs.syms), value);
      }
      case Op::kIota: {
        Sizes sizes = Numbers(n.attrs.syms), along = sizes;
        std::fill(along.begin(), along.end(), 0);
        along.at(n.attrs.axes.at(0)) = 1;
        std::vector<int64_t> lanes;
        ForEachOffset({DType::kInt64, sizes, along, nullptr, 0}, [&](int64_t i) { lanes.push_back(i); });
        return StoreAll(n.attrs.dtype, sizes, lanes);
      }
      case Op::kTake: return Take(n, in[0], in[1]);
      case Op::kGather: return Gather(n, in[0], in[1]);
      case Op::kScatter: return Scatter(n, in[0], in[1], in[2]);
      case Op::kCumSum: return CumSum(n, in[0]);
      case Op::kResult: return extern_results_.at(n.operands[0]).at(n.attrs.axes.at(0));
      default: break;
    }
    switch (Info(n.op).kind) {
      case 'P': return Pointwise(n, in);
      case 'V': return View(n, in, Numbers(n.attrs.syms));
      case 'R': return Reduce(n, in[0]);
      case 'M': return Contract(n, in);
      default: throw Unsupported(std::string("the interpreter does not know ") + Info(n.op).name);
    }
  }

  HostTensor Extern(ValueId v) {
    const Node& n = g_.nodes[v];
    if (!run_extern_) throw Unsupported("nobody runs the call " + n.attrs.call->str());
    std::vector<HostTensor> in;
    for (ValueId o : n.operands) in.push_back(values_[o]);
    std::vector<HostTensor> results = run_extern_(n, in);
    if (results.size() != n.attrs.result_types.size()) throw std::runtime_error("wrong number of results of a call");
    for (size_t i = 0; i < results.size(); ++i) {  // Some sizes are only known from the result: they are bound here.
      const shape::Ints& shape = n.attrs.result_types[i].shape;
      for (size_t d = 0; d < shape.size() && d < results[i].sizes.size(); ++d) {
        auto id = shape[d].as_symbol();
        if (id && *id < g_.symbols.size() && g_.symbols[*id].kind == shape::SymbolKind::kRuntime)
          symbols_[*id] = results[i].sizes[d];
      }
    }
    HostTensor first = results.empty() ? HostTensor{} : results[0];
    extern_results_[v] = std::move(results);
    return first;
  }

  static HostTensor Fresh(const HostTensor& x) {  // a copy that shares no memory with `x`
    HostTensor out = HostTensor::Empty(x.dtype, x.sizes);
    Overwrite(out, x);
    return out;
  }

  static void Overwrite(const HostTensor& to, const HostTensor& from) {
    int64_t size = DTypeSize(from.dtype);
    std::vector<int64_t> source;
    ForEachOffset(from, [&](int64_t offset) { source.push_back(offset); });
    size_t k = 0;
    ForEachOffset(to, [&](int64_t offset) {
      std::memcpy(to.storage->data() + offset * size, from.storage->data() + source[k++] * size, size);
    });
  }

  HostTensor Materialize(ValueId v) {  // The result has the strides that the graph asks for.
    const HostTensor& x = values_[v];
    const Node& n = g_.nodes[v];
    if (n.op == Op::kInput || n.strides.empty()) return Fresh(x);
    HostTensor out{x.dtype, x.sizes, Numbers(n.strides), nullptr, 0};
    int64_t end = Count(x.sizes) > 0 ? 1 : 0;
    for (size_t d = 0; d < x.sizes.size() && end > 0; ++d) end += (x.sizes[d] - 1) * out.strides[d];
    out.storage = std::make_shared<std::vector<std::byte>>(end * DTypeSize(x.dtype));
    Overwrite(out, x);
    return out;
  }

  const Graph& g_;
  const std::vector<HostTensor>& inputs_;
  const ExternRunner& run_extern_;
  std::vector<HostTensor> values_;
  std::vector<int64_t> symbols_;
  std::map<ValueId, std::vector<HostTensor>> extern_results_;
};

}  // namespace
}  // namespace interpret

HostTensor HostTensor::Empty(DType t, std::vector<int64_t> sizes) {
  HostTensor x;
  x.dtype = t;
  x.strides = interpret::RowMajor(sizes);
  x.storage = std::make_shared<std::vector<std::byte>>(interpret::Count(sizes) * DTypeSize(t));
  x.sizes = std::move(sizes);
  return x;
}

std::byte* HostTensor::data() const {
  return storage->data() + offset * DTypeSize(dtype);
}

namespace {
int64_t OffsetOf(const HostTensor& t, int64_t k) {
  int64_t offset = t.offset;
  for (size_t d = t.sizes.size(); d-- > 0; k /= t.sizes[d]) offset += k % t.sizes[d] * t.strides[d];
  return offset;
}
}  // namespace

double GetElement(const HostTensor& t, int64_t k) {
  return interpret::Visit(
      t.dtype, [&](auto tag) { return static_cast<double>(interpret::Load<decltype(tag)>(t, OffsetOf(t, k))); });
}

void SetElement(HostTensor& t, int64_t k, double value) {
  interpret::Visit(t.dtype, [&](auto tag) {
    using T = decltype(tag);
    reinterpret_cast<T*>(t.storage->data())[OffsetOf(t, k)] = interpret::Convert<T>(value);
  });
}

std::vector<HostTensor> Interpret(const Graph& g, const std::vector<HostTensor>& inputs, const ExternRunner& run_extern,
                                  const std::vector<int64_t>& scalars) {
  return interpret::Run(g, inputs, run_extern, scalars).Execute();
}

}  // namespace framejit
