#include "runtime/interpret_node.h"

#include "diag/no_kernel.h"
#include "runtime/copy.h"

namespace framejit::runtime {
namespace {

Ints Numbers(const Ints& list, std::span<const int64_t> symbols) {
  Ints out;
  for (Int e : list) out.push_back(e.Eval(symbols));
  return out;
}

Buffer AsBuffer(const HostTensor& t) {
  Buffer b;
  b.data = t.data();
  b.sizes = t.sizes.data();
  b.strides = t.strides.data();
  b.rank = static_cast<int32_t>(t.sizes.size());
  b.dtype = t.dtype;
  return b;
}

}  // namespace

void InterpretNode(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                   const Buffer& out) {
  if (!reference_steps) throw diag::NoKernel(*step.name, "no library takes it");
  // A graph of this one node, its symbols replaced by their values.
  Graph g;
  std::vector<HostTensor> inputs;
  Node node;
  node.op = step.operation->op;
  node.attrs = step.operation->attrs;
  node.type = step.operation->type;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Buffer& from = operands[i];
    Node input;
    input.op = Op::kInput;
    input.attrs.name = "x" + std::to_string(i);
    input.type = {from.dtype, Ints(from.sizes, from.sizes + from.rank), from.device};
    HostTensor t = HostTensor::Empty(from.dtype, std::vector<int64_t>(from.sizes, from.sizes + from.rank));
    StridedCopy(host, from, AsBuffer(t));
    input.strides = Ints(t.strides.begin(), t.strides.end());
    inputs.push_back(std::move(t));
    node.operands.push_back(g.nodes.size());
    g.inputs.push_back(g.nodes.size());
    g.nodes.push_back(std::move(input));
  }
  node.attrs.syms = Numbers(node.attrs.syms, symbols);
  if (node.attrs.sym_scalar) node.attrs.sym_scalar = Int(node.attrs.sym_scalar->Eval(symbols));
  node.type.shape = Numbers(node.type.shape, symbols);
  g.outputs.push_back(g.nodes.size());
  g.nodes.push_back(std::move(node));
  std::vector<HostTensor> results = Interpret(g, inputs);
  StridedCopy(host, AsBuffer(results.at(0)), out);
}

}  // namespace framejit::runtime
