// Derivatives and batches of NumPy's functions: framejit.grad, jvp and vmap (framejit/_transforms.py) are Python code
// that is captured like any other. What it cannot say in NumPy are the functions here, which framejit/_arrays.py names:
//
//   leaf(x)                              x as a value of its own, by which a derivative is taken
//   gradients(outputs, seeds, inputs)    of the outputs along the seeds, by the inputs: nodes like any others
//   sample(x, axis)                      one slice of x, which stands for each of them
//   batched(outputs, samples, wholes, axes, size)   what was computed of samples, for all slices at once
//
// Writes are resolved and views are gone in the graph, so derivatives need no record of the program's order.
#include "surface/numpy_transforms.h"

#include <algorithm>

#include "autodiff/autodiff.h"
#include "graph/batch.h"
#include "rules/compose.h"

namespace framejit::surface {
namespace {

constexpr std::string_view kSample = "sample";  // the name of nodes that stand for one of many

// A value of its own, equal to v, that gradients pass.
ValueId OfItsOwn(Builder& b, ValueId v) {
  const ValueId own = b.Barrier(v, "leaf");
  b.SetDerivative(own, {"leaf", {v}, {}, {}});
  return own;
}

Out ArrayOf(Builder& b, ValueId v) {
  Out out;
  out.value = OfItsOwn(b, v);
  out.array = true;
  return out;
}

// Functions of NumPy's that stay calls in the graph and whose derivative framejit/_numpy_derivatives.py has.
constexpr std::string_view kDerived[] = {
    "numpy.add.at",
    "numpy.add.reduce",
    "numpy.amax",
    "numpy.amin",
    "numpy.array",
    "numpy.asarray",
    "numpy.ascontiguousarray",
    "numpy.asfortranarray",
    "numpy.broadcast_to",
    "numpy.cbrt",
    "numpy.concat",
    "numpy.concatenate",
    "numpy.convolve",
    "numpy.copy",
    "numpy.cumprod",
    "numpy.diag",
    "numpy.einsum",
    "numpy.float_power",
    "numpy.heaviside",
    "numpy.inner",
    "numpy.interp",
    "numpy.linalg.cholesky",
    "numpy.linalg.det",
    "numpy.linalg.inv",
    "numpy.linalg.norm",
    "numpy.linalg.slogdet",
    "numpy.linalg.solve",
    "numpy.max",
    "numpy.maximum.reduce",
    "numpy.mean",
    "numpy.min",
    "numpy.minimum.reduce",
    "numpy.multiply.outer",
    "numpy.ndarray.__setitem__",
    "numpy.ndarray.cumprod",
    "numpy.ndarray.max",
    "numpy.ndarray.mean",
    "numpy.ndarray.min",
    "numpy.ndarray.repeat",
    "numpy.ndarray.sum",
    "numpy.ndarray.take",
    "numpy.ndarray.trace",
    "numpy.pad",
    "numpy.put",
    "numpy.repeat",
    "numpy.roll",
    "numpy.sort",
    "numpy.sum",
    "numpy.take",
    "numpy.tensordot",
    "numpy.trace",
    "numpy.vdot",
};

// The framework's kernels for gradients are torch's: in their place come NumPy's, where there is one.
void CallNumpy(Graph& g, ValueId from) {
  for (ValueId v = from; v < g.nodes.size(); ++v) {
    Node& n = g.nodes[v];
    if (n.op != Op::kExtern) continue;
    auto call = std::make_shared<Call>(*n.attrs.call);
    const std::string name(call->callee.name());
    constexpr std::string_view kVjp = "framejit.vjp(", kKernels = "framejit._gradients.";
    if (name.starts_with(kVjp)) {
      std::string of = name.substr(kVjp.size(), name.size() - kVjp.size() - 1);
      if (of == "framejit._arrays.written" && call->args[2].items[0].is(Arg::Kind::kString)) {  // (name, target, ...)
        of = call->args[2].items[0].s;
        call->args[2].items.erase(call->args[2].items.begin());
      }
      if (!HasNumpyDerivative(Callee(of))) throw autodiff::Undifferentiable("no derivative of " + of + LineOf(n));
      call->callee = "framejit._arrays.vjp";
      call->args.insert(call->args.begin(), {Arg::Str(of), Arg::Str(LineOf(n))});
    } else if (name == "framejit._gradients.take" || name == "framejit._gradients.gather") {
      call->callee = "framejit._arrays." + name.substr(kKernels.size());
    } else {
      throw autodiff::Undifferentiable("no derivative of " + name + LineOf(n));
    }
    n.attrs.call = std::move(call);
  }
}

}  // namespace

bool HasNumpyDerivative(Callee callee) {
  return std::find(std::begin(kDerived), std::end(kDerived), callee.name()) != std::end(kDerived);
}

std::optional<TraceId> OpenSample(const Trace& trace) {
  static const Callee sample("framejit._arrays.sample"), batched("framejit._arrays.batched");
  std::vector<TraceId> open;
  for (const Call& c : trace.calls) {
    if (c.callee == sample) open.push_back(c.results.at(0));
    if (c.callee == batched) open.resize(open.size() - std::min(open.size(), c.args.at(1).items.size()));
  }
  return open.empty() ? std::nullopt : std::optional(open.back());
}

std::string EscapedSample(const Graph& g, size_t outputs) {
  std::vector<bool> of_sample(g.nodes.size());
  bool any = false;
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    of_sample[v] = g.nodes[v].attrs.name == kSample && g.nodes[v].op == Op::kCast;
    for (ValueId o : g.nodes[v].operands) of_sample[v] = of_sample[v] || of_sample[o];
    any |= of_sample[v];
  }
  if (!any) return "";
  std::vector<ValueId> seen(g.outputs.begin(), g.outputs.begin() + static_cast<std::ptrdiff_t>(outputs));
  for (const Write& w : g.writes) seen.push_back(w.value);
  for (ValueId v : seen)
    if (of_sample[v]) return "an array of one sample of framejit.vmap" + LineOf(g.nodes[v]) + " is kept outside of it";
  return "";
}

Outs Leaf(Scope& s) {
  return ArrayOf(s.b, s.tensor(0).value);
}

Outs Gradients(Scope& s) {
  std::vector<ValueId> outputs, seeds, inputs;
  for (const Operand& y : s.tensors(0)) outputs.push_back(y.value);
  for (const Operand& seed : s.tensors(1)) seeds.push_back(seed.value);
  const std::vector<Operand> by = s.tensors(2);
  for (const Operand& x : by) inputs.push_back(x.value);
  std::vector<bool> passed;
  const auto before = static_cast<ValueId>(s.b.graph().nodes.size());
  std::vector<ValueId> grads;
  try {
    grads = autodiff::GradientsWithin(s.b, outputs, seeds, inputs, &passed);
    CallNumpy(s.b.graph(), before);
  } catch (const autodiff::Undifferentiable& e) {
    Scope::Fail(e.what());
  }
  Outs outs;
  outs.structure = Arg::Kind::kList;
  for (size_t i = 0; i < grads.size(); ++i) {
    const TensorMeta& m = *by[i].meta;
    outs.items.push_back(ArrayOf(s.b, grads[i] == kNoValue ? s.b.Constant(0.0, m.dtype, m.sizes) : grads[i]));
  }
  return outs;
}

Outs Sample(Scope& s) {
  const Operand x = s.tensor(0);
  const int axis = s.dim(1, x.rank());
  shape::Ints sizes = x.meta->sizes;
  sizes.erase(sizes.begin() + axis);
  Out out = ArrayOf(s.b, s.b.Reshape(s.b.Slice(x.value, axis, 0, 1), sizes));
  s.b.graph().nodes[out.value].attrs.name = kSample;
  return out;
}

Outs Batched(Scope& s) {
  const std::vector<Operand> outputs = s.tensors(0), samples = s.tensors(1), wholes = s.tensors(2);
  const shape::Ints axes = s.ints(3);
  const shape::Ints same = s.ints(5);  // outputs that must be the same for all samples
  std::vector<ValueId> values, fronts;
  for (const Operand& y : outputs) values.push_back(y.value);
  for (size_t i = 0; i < samples.size(); ++i) {
    std::vector<int64_t> perm(wholes[i].rank());
    for (size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<int64_t>(d);
    const int axis = s.Dim(axes[i], wholes[i].rank());
    std::rotate(perm.begin(), perm.begin() + axis, perm.begin() + axis + 1);
    fronts.push_back(s.b.Permute(wholes[i].value, perm));
  }
  Batching batch(s.b, s.integer(4));
  for (size_t i = 0; i < samples.size(); ++i) batch.Stands(samples[i].value, fronts[i]);
  Outs outs;
  outs.structure = Arg::Kind::kList;
  try {
    for (ValueId v : batch.Of(values)) outs.items.push_back(ArrayOf(s.b, v));
    for (const shape::Int& i : same)
      if (batch.Varies(values[i.value()]))
        throw Unbatchable("out_axes=None of a result that differs from sample to sample");
  } catch (const Unbatchable& e) {
    Scope::Fail(e.what());
  }
  return outs;
}

}  // namespace framejit::surface
