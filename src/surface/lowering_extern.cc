// Calls that no row describes: the framework runs them, the graph has a node with the types it answered beforehand.
#include <algorithm>
#include <bit>

#include "graph/opaque.h"
#include "surface/lowering.h"
#include "surface/masked_update.h"

namespace framejit::surface {

namespace {

// This describes a pooling function of torch, which has windows over the last dimensions.
struct Pooling {
  Callee callee;
  size_t dims;
  bool averages;
};

// One of its windows, as all of them take it.
struct Window {
  int64_t kernel, stride, padding, dilation;
};

std::optional<Window> WindowOf(const std::vector<Arg>& args, size_t d, const Pooling& pooling) {
  auto at = [&](size_t i, int64_t missing) -> std::optional<int64_t> {
    const std::vector<Arg>& items = args[i].items;
    if (items.empty()) return missing;
    if (items.size() > pooling.dims || !items[std::min(d, items.size() - 1)].i.is_const()) return std::nullopt;
    return items[std::min(d, items.size() - 1)].i.value();
  };
  auto kernel = at(1, 0), stride = at(2, kernel.value_or(0)), padding = at(3, 0);
  auto dilation = pooling.averages ? std::optional<int64_t>(1) : at(4, 1);
  if (!kernel || !stride || !padding || !dilation || *kernel < 1 || *stride < 1 || *dilation < 1 || *padding < 0 ||
      2 * *padding > *kernel)
    return std::nullopt;
  return Window{*kernel, *stride, *padding, *dilation};
}

// The losses of sequences, or what they come to: one for each of the batch. Stand-ins do not tell, since lengths that
// are tensors decide how large what the framework keeps for the derivative is.
std::optional<Inferred> LossOfSequences(const Call& call, const std::vector<TensorMeta>& operands) {
  static const Signature signature = Signature::Parse(
      "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank=0, int reduction=1, "
      "bool zero_infinity=False)");
  const auto args = signature.Bind(call);
  TensorMeta m = operands[0];
  if (!args || m.lazy() || m.device.kind != DeviceKind::kCpu || (m.sizes.size() != 2 && m.sizes.size() != 3) ||
      !(m.dtype == DType::kFloat32 || m.dtype == DType::kFloat64) || !(*args)[5].i.is_const())
    return std::nullopt;
  for (const TensorMeta& o : operands)
    if (o.framework != Framework::kTorch || !(o.device == m.device)) return std::nullopt;
  const bool each = (*args)[5].i.value() == 0 && m.sizes.size() == 3;
  const shape::Int batch = m.sizes[m.sizes.size() - 2];
  m.is_parameter = false;
  m.sizes = each ? shape::Ints{batch} : shape::Ints{};
  m.strides = RowMajor(m.sizes);
  Inferred known;
  known.metas.push_back(std::move(m));
  known.aliases.emplace_back();
  return known;
}

// Gives what is known of a result without asking the framework, which would compute it to find out. It gives nothing
// where the framework must be asked. Networks for pictures call pooling on more elements than are computed for an
// answer. Without this rule their first compile would be the one that makes torch import what its meta tensors need
// (486 modules, 0.3 s of a first call of 0.4 s).
std::optional<Inferred> KnownResult(shape::Env& env, const Call& call, const std::vector<TensorMeta>& operands) {
  static const Signature most = Signature::Parse(
      "(Tensor input, int[] kernel_size, int[]? stride=(), int[] padding=0, int[] dilation=1, bool ceil_mode=False)");
  static const Signature average = Signature::Parse(
      "(Tensor input, int[] kernel_size, int[]? stride=(), int[] padding=0, bool ceil_mode=False, "
      "bool count_include_pad=True, int? divisor_override=None)");
  static const Pooling poolings[] = {{Callee("torch.max_pool2d"), 2, false},
                                     {Callee("torch.max_pool3d"), 3, false},
                                     {Callee("torch._C._nn.avg_pool2d"), 2, true},
                                     {Callee("torch._C._nn.avg_pool3d"), 3, true}};
  static const Callee sequences("torch.ctc_loss");
  if (call.callee == sequences && !operands.empty()) return LossOfSequences(call, operands);
  const Pooling* pooling =
      std::find_if(std::begin(poolings), std::end(poolings), [&](const Pooling& p) { return p.callee == call.callee; });
  if (pooling == std::end(poolings) || operands.size() != 1 || operands[0].lazy()) return std::nullopt;
  const auto args = (pooling->averages ? average : most).Bind(call);
  TensorMeta m = operands[0];
  if (!args || m.framework != Framework::kTorch || m.sizes.size() != 2 + pooling->dims || !IsFloat(m.dtype) ||
      DTypeSize(m.dtype) < 2 || m.device.kind == DeviceKind::kMeta)
    return std::nullopt;
  const Arg& ceil = (*args)[pooling->averages ? 4 : 5];
  if (ceil.b || (pooling->averages && !(*args)[6].is_none())) return std::nullopt;
  for (const shape::IntList* v : {&m.sizes, &m.strides})
    for (shape::Int i : *v)
      if (!i.is_const() || i.value() < 1) return std::nullopt;
  const bool channels_last = LikesChannelsLast(env, m);
  if (channels_last && pooling->dims == 3) return std::nullopt;  // some keep it, some do not
  for (size_t d = 0; d < pooling->dims; ++d) {
    const auto w = WindowOf(*args, d, *pooling);
    if (!w) return std::nullopt;
    const int64_t room = m.sizes[2 + d].value() + 2 * w->padding - w->dilation * (w->kernel - 1) - 1;
    if (room < 0) return std::nullopt;
    m.sizes.Set(2 + d, room / w->stride + 1);
  }
  m.strides = channels_last ? ChannelsLast(m.sizes) : RowMajor(m.sizes);
  Inferred known;
  known.metas.push_back(std::move(m));
  known.aliases.emplace_back();
  return known;
}

}  // namespace

// Its tensors become positions among `ids`. NumPy's scalars stay scalars: np.bool_(True) ** 2 is an int64, the square
// of an array an int8.
template <typename Meta>
static void Number(Call& request, const Meta& meta, std::vector<TraceId>* ids) {
  EachArg(request, [&](Arg& a) {
    if (!a.is(Arg::Kind::kTensor)) return;
    auto it = std::find(ids->begin(), ids->end(), a.t);
    if (it == ids->end()) it = ids->insert(ids->end(), a.t);
    a.b = meta(a.t).is_scalar;
    a.t = static_cast<TraceId>(it - ids->begin());
  });
}

// Gives what the framework says of a call's results. It throws Decline where the framework cannot know, or the graph
// cannot follow.
Inferred Lowering::Impl::Ask(Callee callee, Call& request, const std::vector<TraceId>& ids, bool in_place) {
  std::vector<TensorMeta> operands;
  for (TraceId t : ids) operands.push_back(meta(t));
  // NumPy tells views that are empty from arrays that are: those have steps, and results lie by them.
  for (const TensorMeta& m : operands) {
    if (m.framework != Framework::kNumpy || IsRowMajor(m)) continue;
    for (shape::Int n : m.sizes)
      if (!env().AtRun(n) && env().Eq(n, 0)) throw Decline("how an empty array lies, which " + callee + " looks at");
  }
  auto inferred = KnownResult(env(), request, operands);
  std::string why;
  if (!inferred) inferred = infer(request, operands, &why);
  // A number that changes may be an axis, which the framework refuses unless it knows the number.
  const auto changes = [&](const Arg& a) { return a.is(Arg::Kind::kInt) && !a.i.is_const() && !env().AtRun(a.i); };
  bool any = false;
  Call fixed = request;
  EachArg(fixed, [&](Arg& a) {
    if (changes(a)) any = true, a.i = env().Hint(a.i);
  });
  if (!inferred && any && !callee.Has(kSizedByData) && (inferred = infer(fixed, operands, &why))) {
    EachArg(request, [&](const Arg& a) {
      if (changes(a)) env().Specialize(a.i);
    });
    request = std::move(fixed);
  }
  if (!inferred && callee.Has(kSizedByData))
    throw Decline("data decides the size of the result of " + callee, Decline::Cause::kData);
  if (!inferred || inferred->metas.empty())
    throw Decline("the result types of " + callee + " are not known before it runs" + (why.empty() ? why : ": " + why));
  const bool aliases =
      std::any_of(inferred->aliases.begin(), inferred->aliases.end(), [](auto& a) { return a.operand >= 0; });
  // A view is copied where the graph reads it, so it must follow from the one tensor that it is a view of.
  if (aliases && (in_place || ids.size() != 1))
    throw Decline(callee + " returns a view, in a form that is not captured");
  return *inferred;
}

// Makes the extern node and gives the values of its results.
std::vector<ValueId> Lowering::Impl::ExternValues(const std::shared_ptr<Call>& request, const std::vector<TraceId>& ids,
                                                  const ExternTypes& results, bool grad) {
  std::vector<TensorMeta> operands;
  for (TraceId t : ids) operands.push_back(meta(t));
  const auto told = grad && without_gradient ? without_gradient(*request, operands) : std::vector<bool>();
  std::vector<ValueId> from, values;
  for (TraceId t : ids) from.push_back(objects.Materialised(t));
  for (size_t i = 0; i < from.size() && i < told.size(); ++i)
    if (told[i]) from[i] = builder.Barrier(from[i]);
  const ValueId node = results.Make(builder, request, from);
  if (told.size() > from.size())  // KeptMemory
    builder.graph().nodes[node].attrs.axes.assign(told.begin() + static_cast<std::ptrdiff_t>(from.size()), told.end());
  for (size_t i = 0; i < results.types.size(); ++i) values.push_back(results.ValueOf(node, i));
  return values;
}

// The target of an in-place call takes the value of its functional namesake.
void Lowering::Impl::WriteBack(Call& call, const Call& request, TraceId target, const ExternTypes& results,
                               ValueId value, bool grad) {
  const std::vector<TensorType>& types = results.types;
  if (types.size() != 1 || types[0].dtype != meta(target).dtype || types[0].shape != meta(target).sizes)
    throw Decline("the in-place form of " + request.callee + " does not fit its target");
  const bool tracked = grad && (IsFloat(types[0].dtype) || IsComplex(types[0].dtype));
  derivatives.NoteWrite(target, tracked);
  Store(call, target, value, tracked);
  Record(call, {target}, Arg::Tensor(target));
}

// A result that is the view `from` (a tensor) of a call's first operand.
void Lowering::Impl::FollowView(TraceId id, TraceId from, const std::shared_ptr<Call>& request,
                                const ExternTypes& results, size_t i) {
  objects.BecomeView(id, from);
  Objects::Object& o = objects[id];
  o.domain = objects[o.parent].domain;
  o.follows = false;
  const shape::Env::Typical typical(env());
  const bool contiguous = IsContiguous(env(), meta(o.parent));
  o.view.forward = [request, results, i, contiguous](Builder& b, ValueId parent) {
    if (contiguous) parent = RowByRow(b.graph(), parent);
    return results.ValueOf(results.Make(b, request, {parent}), i);
  };
}

// Notes a call with sparse or quantised tensors among its operands or results. What cannot run in a graph: gradients of
// such tensors, and writes. Empty: it can.
std::string Lowering::Impl::NoteOpaque(const Inferred& inferred, const std::vector<TraceId>& ids, bool grad,
                                       bool writes) {
  bool tracked = AnyOpaque(inferred.metas);
  const bool shares =
      std::any_of(inferred.aliases.begin(), inferred.aliases.end(), [](auto& a) { return a.operand == kSharesOpaque; });
  for (TraceId t : ids) {
    tracked |= IsOpaque(meta(t)) && meta(t).requires_grad;
    if (shares) beside_opaque.insert(t);
  }
  return writes            ? "a write beside a sparse or quantised tensor"
         : grad && tracked ? "a sparse or quantised tensor with gradients"
                           : "";
}

// A framework kernel inside the graph. In-place callees run as their functional namesake, then write.
void Lowering::Impl::Extern(Call& call, bool model) {
  const bool by_shapes = call.callee.framework() == Framework::kNumpy && call.callee.Has(kSizedByShapes);
  EachArg(std::as_const(call), [&](const Arg& a) {
    if (a.is(Arg::Kind::kSymFloat) && !by_shapes) throw Decline("a float that changes");
  });
  if (call.callee.Has(kWritesFirst)) return Written(call, nullptr);
  if (NeverCaptured(call.callee))
    throw Decline(call.callee + " depends on data or on state outside the graph", Decline::Cause::kData);
  if (call.callee.last() == "__setitem__" || call.callee.last() == "__set__")
    throw Decline("this form of item assignment is not captured");
  auto request = std::make_shared<Call>(call);
  request->callee = FunctionalForm(call.callee);
  std::optional<TraceId> target;
  if (request->callee != call.callee) {
    if (call.args.empty() || !call.args[0].is(Arg::Kind::kTensor)) throw Decline("in-place call without a target");
    target = call.args[0].t;
    CheckWritable(*target, call.mode);
    RefuseShared(call, *target, true);
  }
  std::vector<TraceId> ids;
  Number(*request, [&](TraceId t) -> const TensorMeta& { return meta(t); }, &ids);
  std::vector<bool> changes;  // floats that change decide no size: it is asked with those of now
  EachArg(*request, [&](Arg& a) {
    changes.push_back(a.is(Arg::Kind::kSymFloat));
    if (changes.back()) a.kind = Arg::Kind::kFloat, a.f = std::bit_cast<double>(env().Hint(a.i));
  });
  Inferred inferred = Ask(call.callee, *request, ids, target.has_value());
  size_t next = 0;
  EachArg(*request, [&](Arg& a) {
    if (changes[next++]) a.kind = Arg::Kind::kSymFloat;
  });
  const bool draws = Draws(call.callee);
  // What is drawn in the likeness of a tensor, or as indices, has no derivative.
  const bool tracks =
      std::any_of(inferred.metas.begin(), inferred.metas.end(), [](const TensorMeta& m) { return m.requires_grad; });
  const bool grad = (!draws || tracks) && WantsGrad(trace, call);
  if (draws && grad) throw Decline(call.callee + " draws random numbers, and its derivative others");
  std::string why = model ? "" : call.callee + " is not modelled";
  if (draws && target) why = call.callee + " draws random numbers";
  bool beside = AnyOpaque(inferred.metas);
  for (TraceId t : ids) beside |= IsOpaque(meta(t));
  if (beside && target && IsOpaque(meta(*target))) throw Decline("a write to a sparse or quantised tensor");
  if (beside && why.empty()) why = NoteOpaque(inferred, ids, grad, target.has_value());
  bool asked = false;  // in any mode
  for (auto& [k, a] : call.kwargs) asked |= k == "requires_grad" && a.is(Arg::Kind::kBool) && a.b;
  if (asked && beside) throw Decline("a sparse or quantised tensor that is made to want gradients");
  ExternTypes results;
  for (TensorMeta& m : inferred.metas) {
    m.requires_grad = (asked || (grad && m.requires_grad)) && (IsFloat(m.dtype) || IsComplex(m.dtype));
    m.is_parameter = false;
    results.types.push_back({m.dtype, m.sizes, m.device});
    results.strides.push_back(m.strides);
  }
  const auto all = [&](auto&& is) {
    return !inferred.aliases.empty() && std::all_of(inferred.aliases.begin(), inferred.aliases.end(), is);
  };
  const bool nothing = all([](const Inferred::Alias& a) { return a.same; });
  results.views = all([](const Inferred::Alias& a) { return a.operand >= 0; });
  std::vector<ValueId> values;
  if (nothing) {  // it returns what it was given
    values.assign(results.types.size(), kNoValue);
  } else if (why.empty()) {
    values = ExternValues(request, ids, results, grad);
  } else {
    for (const TensorType& t : results.types) values.push_back(builder.Constant(Scalar(0), t.dtype, t.shape));
    objects.BecomeUnusable(why);
  }
  if (target) return WriteBack(call, *request, *target, results, values[0], grad);
  bool tracked_operand = false;
  EachTensor(call, [&](TraceId t) { tracked_operand |= meta(t).requires_grad; });
  std::vector<TraceId> made;
  const shape::Ints taken = shape::TakenForGranted();
  for (size_t i = 0; i < values.size(); ++i) {
    TensorMeta& m = inferred.metas[i];
    const Inferred::Alias& alias = inferred.aliases[i];
    if (tracked_operand && !nothing && !m.requires_grad && IsFloat(m.dtype) && !IsOpaque(m))
      values[i] = builder.Barrier(values[i]);
    if (!alias.same) m.is_inference = call.mode.inference && alias.operand < 0;
    made.push_back(alias.same ? ids[alias.operand] : objects.New(m, values[i]));
    if (alias.operand == kSharesOpaque) beside_opaque.insert(made.back());
    if (!alias.same) Grant(made.back(), call, taken);
    if (!alias.same && alias.operand >= 0) FollowView(made.back(), ids[alias.operand], request, results, i);
    if (asked && alias.operand < 0 && m.requires_grad) derivatives.Track(made.back(), true);  // no operation made it
  }
  Arg structure = request->result;
  EachArg(structure, [&](Arg& a) {
    if (a.is(Arg::Kind::kTensor)) a.t = made.at(a.t);
  });
  if (structure.is_none()) {
    if (made.size() != 1) throw Decline("unknown result structure of " + call.callee);
    structure = Arg::Tensor(made[0]);
  }
  Record(call, std::move(made), std::move(structure));
}

// A call of NumPy's that writes into its first argument, or (out) where it was told to: on a copy of that, unless
// nobody else reads it, which is then its new value.
void Lowering::Impl::Written(Call& call, const Arg* out) {
  const Arg target = out ? *out : call.args.empty() ? Arg::None() : call.args[0];
  if (!target.is(Arg::Kind::kTensor)) throw Decline(call.callee + " writes to what is no array");
  bool cpu = true;
  EachTensor(call, [&](TraceId t) {
    cpu &= meta(t).framework == Framework::kNumpy && meta(t).device.kind == DeviceKind::kCpu;
  });
  if (!cpu) throw Decline(call.callee + " of arrays of another library");
  CheckWritable(target.t, call.mode);
  if (call.callee.last() == "copyto" && call.args.size() == 2 && call.args[1].is(Arg::Kind::kTensor))
    RefuseSpoiled(call.args[1].t, objects.Whole(target.t));
  if (const auto plain = [&](size_t i) { return call.args[i].is(Arg::Kind::kTensor); };
      call.callee.name() == "numpy.ndarray.__setitem__" && call.args.size() == 3 && plain(1) && plain(2)) {
    const ValueId base = objects.Value(target.t), mask = objects.Value(call.args[1].t);
    if (const auto now = MaskedUpdate(builder, base, mask, objects.Value(call.args[2].t), replaced)) {
      objects.Write(target.t, *now);
      return Record(call, {}, Arg::None());
    }
  }
  // A few elements of a large argument are not worth a copy of it, which a run that can fail needs.
  constexpr int64_t kLarge = 4096;
  const TensorMeta& root = meta(objects[target.t].root);
  if (trace.tensors[objects[target.t].root].input >= 0 && env().Hint(shape::Product(root.sizes)) > kLarge)
    throw Decline(call.callee + " writes a part of a large argument");
  auto request = std::make_shared<Call>(call);
  request->callee = out ? "framejit._arrays.filled" : "framejit._arrays.written";
  if (out) {
    std::erase_if(request->kwargs, [](auto& k) { return k.first == "out"; });
    request->args.insert(request->args.begin(), target);
  }
  request->args.insert(request->args.begin(), Arg::Str(call.callee.name()));
  std::vector<TraceId> ids;
  Number(*request, [&](TraceId t) -> const TensorMeta& { return meta(t); }, &ids);
  std::vector<TensorMeta> operands;
  for (TraceId t : ids) operands.push_back(meta(t));
  operands[0].strides = RowMajor(operands[0].sizes);  // where it is written
  // How many elements a mask holds is not known to stand-ins.
  bool by_data = false, plain = true;
  for (const TensorMeta& m : operands) {
    by_data |=
        IsBool(m.dtype) || std::any_of(m.sizes.begin(), m.sizes.end(), [&](shape::Int n) { return env().AtRun(n); });
    plain &= !IsComplex(m.dtype) || IsComplex(operands[0].dtype);  // NumPy warns of the others
  }
  if (std::string why; !(by_data && plain) && !infer(*request, operands, &why))
    throw Decline("what " + call.callee + " writes is not known before it runs" + (why.empty() ? why : ": " + why));
  std::vector<ValueId> values;
  for (TraceId t : ids) values.push_back(objects.Materialised(t));
  const TensorType type{operands[0].dtype, operands[0].sizes, operands[0].device};
  const ValueId node = builder.Extern(std::move(request), std::move(values), {type}, {operands[0].strides});
  builder.graph().nodes[node].attrs.flag = true;
  objects.Write(target.t, node);
  if (out)
    Record(call, {target.t}, target);
  else
    Record(call, {}, Arg::None());
}

Lowering::Lowering(Trace& trace, Graph& graph, shape::Env& env, InferFn infer, WithoutGradientFn without)
    : impl_(std::make_unique<Impl>(trace, graph, env, std::move(infer), std::move(without))) {}
Lowering::~Lowering() = default;

}  // namespace framejit::surface
