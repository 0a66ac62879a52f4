// This file has the rows between the frameworks: a torch tensor on the CPU seen as a NumPy array, and the other way
// round. Both share the memory, so each is a view of the other, unless the result is a copy.
#include <algorithm>

#include "graph/rewrite.h"
#include "surface/views.h"

namespace framejit::surface {
namespace {

// What the other framework sees of it. Arrays are not written through: torch does not count such writes.
Out Shared(Scope& s, const Operand& x, bool writable) {
  ViewChain v(s, x);
  v.Expand(v.sizes());
  Out out = v.Done();
  if (!writable) out.view.inverse = nullptr;
  out.differentiable = false;
  return out;
}

Outs AsArray(Scope& s, bool force) {
  Operand x = s.tensor(0);
  const TensorMeta& m = *x.meta;
  if (m.framework != Framework::kTorch) Scope::Skip();
  if (m.requires_grad && !force) Scope::Fail("NumPy arrays have no gradients");
  if (m.device.kind != DeviceKind::kCpu) Scope::Fail("NumPy arrays are in the CPU's memory");
  if (m.dtype == DType::kBFloat16 || IsComplex(m.dtype) || DTypeClass(m.dtype) == 'p')
    Scope::Fail("NumPy has no such type, or a part of it");
  Out out = Shared(s, x, false);
  s.framework = Framework::kNumpy;
  return out;
}
Outs ToNumpy(Scope& s) {
  return AsArray(s, s.flag(1));
}
DType Wanted(Scope& s, const Operand& x) {
  return s.dtype(1).value_or(x.meta->dtype);
}
Outs NumpyAsArray(Scope& s) {  // (input, dtype)
  Operand x = s.tensor(0);
  if (Wanted(s, x) != x.meta->dtype) Scope::Skip();
  if (x.meta->framework == Framework::kTorch) return AsArray(s, false);
  if (x.meta->is_scalar) Scope::Skip();
  return Same(x);
}

Outs Contiguous(Scope& s) {  // (input, dtype)
  Operand x = s.tensor(0);
  if (x.meta->framework != Framework::kNumpy || x.rank() == 0 || !IsRowMajor(*x.meta)) Scope::Skip();
  return NumpyAsArray(s);
}

Operand Array(Scope& s) {
  Operand x = s.tensor(0);
  const TensorMeta& m = *x.meta;
  if (m.framework != Framework::kNumpy || m.is_scalar) Scope::Skip();
  if (m.device.kind != DeviceKind::kCpu) Scope::Skip();
  for (const shape::Int& stride : m.strides)
    if (s.env.Lt(stride, 0)) Scope::Fail("torch's tensors have no negative strides");
  return x;
}
Outs FromNumpy(Scope& s) {
  Operand x = Array(s);
  if (x.meta->read_only) Scope::Fail("torch warns of arrays that cannot be written");
  if (s.mode.inference) Scope::Fail("a tensor of inference mode");
  return Shared(s, x, true);
}
void OnCpu(Scope& s, int device) {
  if (s.has(device) && s.arg(device).s != "cpu") Scope::Fail("a copy of an array on another device");
}
Outs Copied(Scope& s, const Operand& x) {
  Out out;
  out.value = s.b.Cast(x.value, Wanted(s, x));
  out.differentiable = false;
  return out;
}
Outs AsTensor(Scope& s) {  // (data, dtype, device)
  Operand x = Array(s);
  OnCpu(s, 2);
  if (Wanted(s, x) == x.meta->dtype) return FromNumpy(s);
  Outs out = Copied(s, x);
  out.items[0].strides = PreserveFormat(s.env, *x.meta);
  return out;
}
// torch.FloatTensor(array), as torch.as_tensor with that type.
Outs Typed(Scope& s, DType t) {
  Operand x = Array(s);
  if (x.rank() == 0 || IsComplex(x.meta->dtype)) Scope::Skip();
  if (t == x.meta->dtype) return FromNumpy(s);
  Out out;
  out.value = s.b.Cast(x.value, t);
  out.strides = PreserveFormat(s.env, *x.meta);
  out.differentiable = false;
  return out;
}
template <DType T>
Outs OfType(Scope& s) {
  return Typed(s, T);
}
Outs OfDefaultType(Scope& s) {
  return Typed(s, s.mode.default_float);
}
Outs TensorOfArray(Scope& s) {  // (data, dtype, device, requires_grad)
  Operand x = Array(s);
  OnCpu(s, 2);
  if (s.flag(3)) Scope::Fail("a leaf is made");
  return Copied(s, x);
}

constexpr uint32_t kFlags = kAnyDType | kAnyFramework;
// clang-format off: a table
constexpr Row kRows[] = {
    {"m:numpy", "(Tensor input, *, bool force=False)", &ToNumpy, Op::kInput, kFlags},
    {"mM:__array__ N:asarray N:asanyarray", "(Tensor input, ScalarType? dtype=None)", &NumpyAsArray, Op::kInput, kFlags},
    {"N:ascontiguousarray", "(Tensor input, ScalarType? dtype=None)", &Contiguous, Op::kInput, kFlags},
    {"t:from_numpy", "(Tensor input)", &FromNumpy, Op::kInput, kFlags},
    {"t:as_tensor", "(Tensor data, ScalarType? dtype=None, Device? device=None)", &AsTensor, Op::kInput, kFlags},
    {"t:tensor", "(Tensor data, *, ScalarType? dtype=None, Device? device=None, bool requires_grad=False)", &TensorOfArray,
     Op::kInput, kFlags},
    {"t:Tensor", "(Tensor data)", &OfDefaultType, Op::kInput, kFlags},
    {"t:FloatTensor", "(Tensor data)", &OfType<DType::kFloat32>, Op::kInput, kFlags},
    {"t:DoubleTensor", "(Tensor data)", &OfType<DType::kFloat64>, Op::kInput, kFlags},
    {"t:LongTensor", "(Tensor data)", &OfType<DType::kInt64>, Op::kInput, kFlags},
    {"t:IntTensor", "(Tensor data)", &OfType<DType::kInt32>, Op::kInput, kFlags},
    {"t:BoolTensor", "(Tensor data)", &OfType<DType::kBool>, Op::kInput, kFlags},
};
// clang-format on

// This is x.to(device).
Node CopyTo(ValueId x, TensorType type, Device device, const char* format, shape::Ints strides) {
  Arg place, layout;
  place.kind = Arg::Kind::kDevice;
  place.s = device.kind == DeviceKind::kCpu ? "cpu" : "cuda:" + std::to_string(device.index);
  layout.kind = Arg::Kind::kMemoryFormat;
  layout.s = format;
  auto call = std::make_shared<Call>();
  call->callee = "torch.Tensor.to";
  call->args = {Arg::Tensor(0), place};
  call->kwargs = {{"memory_format", layout}};
  type.device = device;
  Attrs attrs;
  attrs.call = std::move(call);
  attrs.result_types = {type};
  return {Op::kExtern, {x}, std::move(attrs), type, std::move(strides)};
}

}  // namespace

void MoveTo(Graph& g, Device device) {
  Rewriter r(g);
  std::vector<ValueId> inputs(g.nodes.size());
  for (ValueId v = 0; v < g.nodes.size(); ++v) {
    Node n = r.Remapped(v);
    const TensorType type = n.type;
    if (n.op != Op::kInput) n.type.device = device;
    const bool input = n.op == Op::kInput;
    ValueId now = r.Append(std::move(n));
    inputs[v] = now;
    if (input) now = r.Append(CopyTo(now, type, device, "contiguous_format", RowMajor(type.shape)));
    r.Set(v, now);
  }
  std::vector<ValueId> asked = g.outputs, starts = g.inputs;
  for (const Write& w : g.writes) asked.push_back(w.value);
  std::sort(asked.begin(), asked.end());
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  for (ValueId v : asked) {
    const Node& n = r.node(r[v]);
    const shape::Ints strides = n.strides.empty() ? RowMajor(n.type.shape) : n.strides.list();
    r.Set(v, r.Append(CopyTo(r[v], n.type, Device{}, "preserve_format", strides)));
  }
  r.Finish();
  for (size_t i = 0; i < starts.size(); ++i) g.inputs[i] = inputs[starts[i]];
}

std::span<const Row> BridgeRows() {
  return kRows;
}

}  // namespace framejit::surface
