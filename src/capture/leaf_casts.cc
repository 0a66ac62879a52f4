#include "capture/leaf_casts.h"

#include <algorithm>

#include "capture/checkpoint.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/semantics.h"
#include "capture/wrappers/overrides.h"
#include "graph/arguments.h"
#include "surface/autocast.h"
#include "tensor/autocast.h"

namespace framejit::capture {

static bool IsLeafFromOutside(Session& s, TraceId t, int input) {
  if (input < 0 || s.lowering().IsHidden(t)) return false;
  if (s.meta(t).is_parameter) return true;
  SuspendScope off;
  PyObject* const real = s.input_tensors()[input];
  const bool made = tensor::HasHistory(real);
  if (made && tensor::IsView(real)) return false;
  guard::Row row{guard::Kind::kLeaf, s.input_sources()[input]};
  row.number = made;
  row.here = true;
  s.guards().Add(std::move(row));
  return !made;
}

std::optional<LeafCast> LeafCast::Of(Session& s, PyObject* tensor, PyObject* type) {
  const TraceId id = AsTensor(tensor)->id;
  const int input = s.trace().tensors[s.pending().Original(id)].input;
  if (!IsLeafFromOutside(s, id, input)) return {};
  return LeafCast{tensor, input, static_cast<DType>(PyLong_AsLong(type))};
}

// Torch is asked before the run: what the program writes before it casts the leaf must be written by then.
PyObject* LeafCast::Now(Session& s, TensorMeta* meta, uint64_t* key_set) const {
  const TraceTensor& t = s.trace().tensors[AsTensor(leaf)->id];
  const guard::Extent memory = guard::ExtentOf(s.input_tensors()[input], false);
  const auto written = [&](TraceId id) {  // and shows the leaf's memory
    const TraceTensor& u = s.trace().tensors[id];
    if (!u.mutated || u.input < 0 || u.meta.framework != Framework::kTorch) return false;
    const guard::Extent other = guard::ExtentOf(s.input_tensors()[u.input], true);
    return memory.low < other.high && other.low < memory.high;
  };
  if (t.input < 0 || t.mutated || s.trace().tensors[t.base].mutated || std::ranges::any_of(s.trace().inputs, written))
    return s.Break(BreakId::kFrameworkError, "autocast of what was written, in a region that was entered before");
  Ref real(tensor::CastOfRegion(s.input_tensors()[input], to));
  tensor::Meta m;
  if (!real || !tensor::ReadMeta(real.get(), &m))
    return PyErr_Clear(), s.Break(BreakId::kUnsupportedTensor, "a cast of autocast's");
  *meta = t.meta;
  meta->dtype = m.dtype;
  meta->is_parameter = false;
  meta->is_inference = m.is_inference;
  meta->requires_grad = m.requires_grad;
  meta->strides = shape::Ints(m.strides, m.strides + m.rank);
  *key_set = m.key_set;
  return Fits(s, *meta) ? real.release() : nullptr;
}

bool LeafCast::Fits(Session& s, const TensorMeta& cast) const {
  if (cast.dtype == to) return true;
  s.mixes_casts = true;
  return s.Break(BreakId::kFrameworkError, "autocast to another type inside"), false;
}

// Torch may have cast leaves before: of those it has what they were then. A checkpoint casts again what it makes again.
bool TakeCasts(Session& s, Call& call) {
  const Autocast& cast = call.mode.autocast;
  if (!cast.any() || !cast.cache || !tensor::InAutocastRegion()) return true;
  if (InCheckpoint() || s.in_custom || s.later || s.vmap.open()) return true;
  int device = -1;
  const auto device_of = [&](TraceId t) {
    const DeviceKind kind = s.meta(t).device.kind;
    return kind == DeviceKind::kCpu ? 0 : kind == DeviceKind::kCuda ? 1 : -1;
  };
  EachTensor(call, [&](TraceId t) {
    if (const int d = device_of(t); d > device && cast.on[d]) device = d;
  });
  if (device < 0 || surface::AutocastRule(call, device == 1) != CastRule::kLower) return true;
  if (surface::CastsViews(call, device == 1)) return true;
  Ref type(PyLong_FromLong(static_cast<long>(cast.dtype[device])));
  bool good = static_cast<bool>(type);
  EachArg(call, [&](Arg& a) {
    if (!good || !a.is(Arg::Kind::kTensor) || device_of(a.t) != device) return;
    if (s.meta(a.t).dtype != DType::kFloat32 || !s.meta(a.t).requires_grad) return;
    Ref leaf(s.NewProxy(a.t));
    PyObject* args[] = {leaf.get(), type.get()};
    Ref taken(leaf ? s.cached.Capture(*static_cast<CaptureSemantics*>(CurrentSemantics()), s, nullptr, args, 2, nullptr)
                   : nullptr);
    if (taken) a.t = AsTensor(taken.get())->id;
    good = leaf && !s.broken();
  });
  return good;
}

}  // namespace framejit::capture
