// tensor.storage_offset() of ordinary tensors, which classes of wrappers ask for: of inputs it is guarded, of views it
// follows from the calls that made them.
#include <algorithm>
#include <optional>

#include "capture/override.h"
#include "capture/wrappers/wrappers.h"

namespace framejit::capture {
namespace {

// How far behind the beginning of its operand a view begins, in elements. Nothing: that is not known.
std::optional<int64_t> ShiftOf(Session& s, const Call& call, TraceId result) {
  constexpr std::string_view kKeep =
      " t transpose view permute expand unsqueeze squeeze alias detach view_as reshape __get__ _unsafe_view expand_as ";
  std::string_view last = call.callee.last();
  const auto& args = call.args;
  if (args.empty() || !args[0].is(Arg::Kind::kTensor) || !call.kwargs.empty()) return {};
  if (kKeep.find(" " + std::string(last) + " ") != kKeep.npos) return 0;
  const TensorMeta of = s.meta(args[0].t);
  auto number = [&](size_t i, int64_t otherwise) {
    if (i >= args.size() || args[i].is(Arg::Kind::kNone)) return otherwise;
    return args[i].is(Arg::Kind::kInt) ? s.env().Specialize(args[i].i) : INT64_MIN;
  };
  const bool parts = last == "unbind" || last == "split" || last == "chunk";
  int64_t dim = number(last == "split" || last == "chunk" ? 2 : 1, 0);
  if (dim < 0) dim += static_cast<int64_t>(of.sizes.size());
  if (dim < 0 || dim >= static_cast<int64_t>(of.sizes.size())) return {};
  const int64_t size = s.env().Specialize(of.sizes[dim]), stride = s.env().Specialize(of.strides[dim]);
  if (parts) {
    int64_t before = 0;
    for (TraceId other : call.results) {
      if (other == result) return before * stride;
      before += last == "unbind" ? 1 : s.env().Specialize(s.meta(other).sizes[dim]);
    }
    return {};
  }
  int64_t at = number(2, last == "slice" ? 0 : INT64_MIN);
  if (at == INT64_MIN || (last != "select" && last != "slice" && last != "narrow")) return {};
  if (at < 0) at += size;
  return std::clamp<int64_t>(at, 0, size) * stride;
}

}  // namespace

PyObject* StorageOffset(Session& s, PyObject* proxy) {
  static PyObject* const name = Interned("storage_offset");
  if (IsWrapper(proxy)) {
    SuspendScope off;
    if (tensor::OverridesFunctions(Py_TYPE(proxy))) return s.Break(BreakId::kSubclass, "tensor.storage_offset");
    Ref its(PyObject_CallMethodNoArgs(proxy, name));
    if (its && s.IsOutside(proxy))
      s.guards().Equal(s.guards().Child(SourceKind::kMember, s.SourceOf(proxy), 0, name), its.get());
    s.Keep(Py_XNewRef(its.get()));
    return its.release();
  }
  int64_t offset = 0;
  for (TraceId id = AsTensor(proxy)->id;;) {
    const TraceTensor& t = s.trace().tensors[id];
    if (t.input >= 0) {
      const Source* source = s.guards().Child(SourceKind::kMember, s.input_sources()[t.input], 0, name);
      PyObject* real = s.input_tensors()[t.input];
      if (tensor::Overrides(Py_TYPE(real))) break;
      SuspendScope off;
      Ref its(PyObject_CallMethodNoArgs(real, name));
      if (!its) return nullptr;
      s.guards().Equal(source, its.get());
      s.Keep(Py_NewRef(its.get()));
      return PyLong_FromLongLong(offset + PyLong_AsLongLong(its.get()));
    }
    if (t.base == id) return PyLong_FromLongLong(offset);
    const Call* call = t.view_call < 0 ? nullptr : &s.trace().calls[t.view_call];
    const std::optional<int64_t> shift = call ? ShiftOf(s, *call, id) : std::nullopt;
    if (!shift) break;
    offset += *shift;
    id = call->args[0].t;
  }
  return s.Break(BreakId::kTensorProtocol, "tensor.storage_offset of a view");
}

}  // namespace framejit::capture
