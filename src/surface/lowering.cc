// Functionalisation: calls of the program become primitives of immutable values (objects.h). A call is all or nothing.
#include "surface/lowering.h"

#include <cfloat>
#include <cmath>

#include "graph/opaque.h"
#include "graph/raises.h"
#include "graph/rewrite.h"
#include "loop/order.h"
#include "runtime/cuda/driver.h"
#include "surface/autocast.h"
#include "surface/masked_update.h"
#include "surface/view_results.h"

namespace framejit::surface {

void Lowering::Impl::Record(Call& call, std::vector<TraceId> results, Arg structure) {
  call.results = std::move(results);
  call.result = std::move(structure);
  bool view = false;
  int index = static_cast<int>(trace.calls.size());
  for (TraceId t : call.results) view |= trace.tensors[t].view_call == index;
  derivatives.NoteCall(call, view);
  derivatives.NoteHeld(call, builder.graph().nodes.size());
  trace.calls.push_back(call);
}

// v as another node, as a view of all of it: what builders fold away.
static ValueId Alias(Builder& b, ValueId v) {
  Graph& g = b.graph();
  Node n;
  n.op = Op::kReshape;
  n.operands = {v};
  n.type = g.nodes[v].type;
  n.attrs.syms = n.type.shape;
  g.nodes.push_back(std::move(n));
  return static_cast<ValueId>(g.nodes.size() - 1);
}

// A view of all of a tensor becomes a value of its own: gradients tell one from the other.
static void BecomeAlias(Builder& builder, Out& out) {
  out.value = Alias(builder, out.value);
  out.view.forward = [f = std::move(out.view.forward)](Builder& b, ValueId v) { return Alias(b, f(b, v)); };
}

// What autocast does to the operands of a call, as calls of its own.
void Lowering::Impl::Cast(Call& call) {
  const Autocast cast = std::exchange(call.mode.autocast, Autocast{});
  int device = -1;
  EachTensor(call, [&](TraceId t) {
    const DeviceKind kind = meta(t).device.kind;
    const int d = kind == DeviceKind::kCpu ? 0 : kind == DeviceKind::kCuda ? 1 : -1;
    if (d > device && cast.on[d]) device = d;  // a 0-d CPU tensor may stand beside a GPU tensor
  });
  if (device < 0) return;
  const CastRule rule = AutocastRule(call, device == 1);
  if (rule == CastRule::kNone) return;
  const DeviceKind kind = device ? DeviceKind::kCuda : DeviceKind::kCpu;
  const DType lower = cast.dtype[device];
  auto eligible = [&](TraceId t) {
    const TensorMeta& m = meta(t);
    return m.device.kind == kind && IsFloat(m.dtype) && m.dtype != DType::kFloat64;
  };
  bool any = false, wide = false, odd = false;
  EachTensor(call, [&](TraceId t) {
    if (!eligible(t)) return;
    any = true;
    wide |= meta(t).dtype == DType::kFloat32;
    odd |= meta(t).dtype != DType::kFloat32 && meta(t).dtype != lower;
  });
  if (!any) return;
  if (rule == CastRule::kRefused) throw Decline(call.callee + " under autocast");
  if (rule == CastRule::kPromote && odd) throw Decline(call.callee + " under autocast of other types");
  const DType to = rule == CastRule::kLower || (rule == CastRule::kPromote && !wide) ? lower : DType::kFloat32;
  const bool keeps = cast.cache && to == lower && !CastsViews(call, device == 1);
  EachArg(call, [&](Arg& a) {
    if (!a.is(Arg::Kind::kTensor) || !eligible(a.t) || meta(a.t).dtype == to) return;
    const TensorMeta& m = meta(a.t);
    const bool keep =
        keeps && m.dtype == DType::kFloat32 && m.requires_grad && m.is_parameter && trace.tensors[a.t].input >= 0;
    if (auto known = casts.find(a.t); keep && known != casts.end()) {
      if (meta(known->second).dtype != lower)
        throw Decline("autocast to another type inside", Decline::Cause::kMixedCasts);
      a.t = known->second;
      return;
    }
    Call made;
    made.callee = "torch.Tensor.to";
    made.mode = call.mode;
    if (keep && !made.mode.inference) made.mode.grad = true;  // it leads gradients to the leaf, whoever reads it first
    made.file = call.file;
    made.line = call.line;
    Arg type;
    type.kind = Arg::Kind::kDType;
    type.s = to == DType::kFloat32 ? "float32" : to == DType::kFloat16 ? "float16" : "bfloat16";  // the framework's
    made.args = {a, type};
    Apply(made);
    if (keep) casts.emplace(a.t, made.result.t);
    a.t = made.result.t;
  });
}

// A float that the narrowest dtype at hand cannot hold: many calls of torch raise then, others give infinities.
bool Lowering::Impl::NumberTooLarge(const Call& call) {
  double largest = 0, limit = DBL_MAX;
  bool floats = false;
  EachArg(std::as_const(call), [&](const Arg& a) {
    if (a.is(Arg::Kind::kFloat) && std::isfinite(a.f)) largest = std::max(largest, std::abs(a.f));
  });
  if (largest <= LargestFloat(DType::kFloat16)) return false;
  EachTensor(call, [&](TraceId t) {
    if (!IsFloat(meta(t).dtype)) return;
    floats = true;
    limit = std::min(limit, LargestFloat(meta(t).dtype));
  });
  if (!floats) limit = LargestFloat(call.mode.default_float);
  for (const auto& [name, a] : call.kwargs)
    if (auto type = a.is(Arg::Kind::kDType) ? DTypeFromText(a.s) : std::nullopt; type && IsFloat(*type))
      limit = LargestFloat(*type);
  return largest > limit;
}

void Lowering::Impl::Apply(Call& call) {
  shape::TakenForGranted();  // of what was given up
  bool opaque = false;
  EachTensor(call, [&](TraceId t) { opaque |= IsOpaque(meta(t)); });
  if (opaque && call.mode.autocast.any())
    throw Decline(call.callee + " of a sparse or quantised tensor under autocast");
  derivatives.NoteTarget(call);
  if (call.mode.autocast.any()) Cast(call);
  call.mode.autocast = Autocast{};
  builder.set_location(call.file, call.line);
  bool computable = true;
  std::optional<Device> device;
  const Framework framework = FrameworkOf(call.callee);
  bool foreign = false;
  EachTensor(call, [&](TraceId t) {
    const TensorMeta& m = meta(t);
    if (Hidden(t)) throw Decline("a tensor that a custom function kept");
    if (call.mode.grad && !call.mode.inference && ViewedWithoutGradients(t))
      throw Decline("a view that was made without gradients of a tensor that has them");
    foreign |= m.framework != framework;
    if (m.lazy() && framework != Framework::kTorch) throw Decline("an array of a conjugate or negated view");
    if (device && !(*device == m.device)) computable = false;
    device = m.device;
    if (m.device.kind == DeviceKind::kMeta || IsComplex(m.dtype) || DTypeClass(m.dtype) == 'p') computable = false;
    if (IsFloat(m.dtype) && DTypeSize(m.dtype) < 2) computable = false;
  });
  const Arg* out = nullptr;
  for (const auto& [name, value] : call.kwargs) {
    if (name == "out" && framework == Framework::kNumpy && !OfCupy(call.callee)) {
      const bool one = value.is(Arg::Kind::kTuple) && value.items.size() == 1;
      if (!value.is_none() && !value.is(Arg::Kind::kEllipsis)) out = one ? &value.items[0] : &value;
    } else if (name == "out" &&
               (!value.is_none() || call.callee.space() == "torch.Tensor")) {  // torch's methods have none
      if (!value.is(Arg::Kind::kTensor) || call.callee.space() == "torch.Tensor") throw Decline("out= is not captured");
      out = &value;
    }
  }
  const bool arithmetic = call.callee.Has(kTakesFloatSymbols) && call.callee.Has(kTakesHeldNumber);
  if (framework == Framework::kTorch && !arithmetic && NumberTooLarge(call)) computable = false;
  bool floats = false;
  EachArg(std::as_const(call), [&](const Arg& a) { floats |= a.is(Arg::Kind::kSymFloat); });
  if (floats && !call.callee.Has(kTakesFloatSymbols) && !FindRows(call.callee).empty())
    throw Decline("a float that changes");  // its row may ask which number it is
  const Objects::Mark before = objects.Begin();
  try {
    if (out) {
      if (opaque) throw Decline("out= beside a sparse or quantised tensor");
      if (foreign) throw Decline("a tensor of another library among the arguments");
      Into(call, Arg(*out), computable);  // a copy: the call goes into the trace
    } else if (opaque || !TryRows(call, computable, foreign)) {
      if (foreign) throw Decline("a tensor of another library among the arguments");
      Extern(call, true);
    }
  } catch (const ShapeError& e) {
    objects.RollBack(before);
    throw Decline(e.what(), Decline::Cause::kShapes);
  } catch (...) {
    objects.RollBack(before);
    throw;
  }
  objects.Keep();
}

// numpy.add(x, y, out=z): what it returns is written to z, if that is of its type.
void Lowering::Impl::Into(Call& call, const Arg& target, bool computable) {
  if (OnCupy(call)) throw Decline("out= is not captured");
  const bool torch = call.callee.framework() == Framework::kTorch;
  if (torch) {
    // Element by element an operand may be written over, if it is all of that tensor.
    const bool each = IsPointwise(call.callee.effects().batch) && objects[target.t].root == target.t;
    int shared = 0;
    EachTensor(call,
               [&](TraceId t) { shared += objects[t].root == objects[target.t].root && !(each && t == target.t); });
    if (shared > (each ? 0 : 1) || WantsGrad(trace, call)) throw Decline("out= of an operand, or with gradients");
  }
  const bool partly = std::any_of(call.kwargs.begin(), call.kwargs.end(), [](auto& k) { return k.first == "where"; });
  const size_t calls = trace.calls.size(), tensors = trace.tensors.size();
  if (!partly && target.is(Arg::Kind::kTensor)) {
    Call plain = call;
    std::erase_if(plain.kwargs, [](auto& k) { return k.first == "out"; });
    if (TryRows(plain, computable, false, target.t) && plain.result.is(Arg::Kind::kTensor)) {
      const TraceId made = plain.result.t;
      bool fits = objects[made].root == made && meta(made).dtype == meta(target.t).dtype &&
                  meta(made).sizes.size() == meta(target.t).sizes.size();
      for (size_t d = 0; fits && d < meta(made).sizes.size(); ++d)
        fits = env().Eq(meta(made).sizes[d], meta(target.t).sizes[d]);
      if (fits) {
        const ValueId value = objects.Value(made);
        trace.calls.resize(calls);
        objects.Truncate(tensors);
        CheckWritable(target.t, call.mode);
        derivatives.NoteWrite(target.t, false);
        Store(call, target.t, value, false);
        return Record(call, {target.t}, target);
      }
    }
    trace.calls.resize(calls);
    objects.Truncate(tensors);
  }
  if (torch) throw Decline("out= of another size or type");
  Written(call, &target);
}

bool Lowering::Impl::OnCupy(const Call& call) {
  bool gpu = OfCupy(call.callee);
  EachTensor(call, [&](TraceId t) {
    gpu |= meta(t).framework == Framework::kNumpy && meta(t).device.kind == DeviceKind::kCuda;
  });
  return gpu;
}

// Where its results are made: beside its operands, or where CuPy works now, which no guard knows.
Device Lowering::Impl::CupyDevice(const Call& call) {
  std::optional<Device> device;
  bool numbers = false;
  bool integers = false;
  EachTensor(call, [&](TraceId t) {
    device = meta(t).device;
    integers |= !IsFloat(meta(t).dtype);
  });
  if (integers && call.callee.last() == "reciprocal") throw Decline("reciprocals of integers");
  for (const Arg& a : call.args) numbers |= a.is_number();
  if (device && numbers && (call.callee.last() == "dot" || call.callee.last() == "outer"))
    throw Decline("CuPy wants arrays here");
  if (device) return *device;
  static constexpr std::string_view kMakes[] = {"zeros", "ones", "empty", "full", "arange", "linspace"};
  if (call.callee.space() != "cupy" ||
      std::find(std::begin(kMakes), std::end(kMakes), call.callee.last()) == std::end(kMakes))
    throw Decline("no array among its arguments");
  device = runtime::cuda::ParseDevice("cuda");
  if (!device) throw Decline("several devices");
  return *device;
}

// What is summed along lies in memory before what is kept: where that is one element, NumPy sums what then lies side by
// side in pairs, else one row behind the other. False where nobody knows before the run.
static bool KnowRows(const Node& sum, const Node& of, shape::Env& env) {
  bool summed = false, known = false;
  for (int d = 0; d < of.type.rank(); ++d) {
    const auto& axes = sum.attrs.axes;
    if (std::find(axes.begin(), axes.end(), d) != axes.end()) {
      summed = true;
      known = false;
    } else if (summed && !known) {
      if (env.AtRun(of.type.shape[d]) && !env.Prove(shape::Cmp::kEq, of.type.shape[d], 1)) return false;
      known = !env.Eq(of.type.shape[d], 1);
    }
  }
  return true;
}

// NumPy's sums of floats add up in its order. What is converted it takes in parts of its buffer's size, and rounds
// sums of half precision after each: such calls are its own, unless no order rounds.
static void NameNumpysSums(Graph& g, size_t first, shape::Env& env, bool grad) {
  for (size_t v = first; v < g.nodes.size(); ++v) {
    Node& n = g.nodes[v];
    if ((n.op != Op::kSum && n.op != Op::kProd && n.op != Op::kCumSum) || !IsFloat(n.type.dtype)) continue;
    const auto of = static_cast<size_t>(n.operands[0]);
    const bool cast = of >= first && g.nodes[of].op == Op::kCast;
    const DType from = g.nodes[cast ? g.nodes[of].operands[0] : n.operands[0]].type.dtype, to = n.type.dtype;
    const bool exact = n.op != Op::kProd && to == DType::kFloat64 && !IsFloat(from) && DTypeSize(from) < 8;
    const bool plain = from == to && DTypeSize(to) >= 4;
    if (!plain && !exact && !grad) throw NotThisRow{};
    if (DTypeSize(to) >= 4 && g.nodes[of].type.dtype == to) n.attrs.name = loop::kNumpys;
    if (loop::IsNumpysSum(n) && !KnowRows(n, g.nodes[of], env)) throw NotThisRow{};
  }
}

// NumPy rounds float64 to half precision once, torch goes through float32.
static void NameNumpysCasts(Graph& g, size_t first) {
  for (size_t v = first; v < g.nodes.size(); ++v) {
    Node& n = g.nodes[v];
    if (n.op == Op::kCast && n.type.dtype == DType::kFloat16 && g.nodes[n.operands[0]].type.dtype == DType::kFloat64)
      n.attrs.name = loop::kNumpys;
  }
}

bool Lowering::Impl::TryRows(Call& call, bool computable, bool foreign, std::optional<TraceId> into) {
  for (const Candidate& c : FindRows(call.callee)) {
    const auto to = c.form == Form::kInPlace ? std::optional(call.args.at(0).t) : into;
    if (to && (c.row->flags & kOwnResult) && objects[*to].root != *to) continue;
    if (!computable && !(c.row->flags & kAnyDType)) continue;
    if (foreign && !(c.row->flags & kAnyFramework)) continue;
    Call swapped;
    const Call* bound = &call;
    if (c.form == Form::kReflected) {
      if (call.args.size() < 2) continue;
      swapped.args = call.args;
      swapped.kwargs = call.kwargs;
      std::swap(swapped.args[0], swapped.args[1]);
      bound = &swapped;
    }
    auto args = c.signature->Bind(*bound);
    if (!args) continue;
    const Objects::Mark before = objects.Begin();
    try {
      Scope scope(builder, *c.row, FrameworkOf(call.callee), call.mode, std::move(*args),
                  [this](TraceId t) { return objects.Read(t); });
      scope.cupy = OnCupy(call);
      if (scope.cupy) scope.device = CupyDevice(call);
      const size_t first = builder.graph().nodes.size();
      Outs outs = c.row->lower(scope);
      const bool numpys = scope.framework == Framework::kNumpy && !scope.cupy, grad = WantsGrad(trace, call);
      if (numpys) NameNumpysSums(builder.graph(), first, env(), grad);
      Commit(call, *c.row, c.form, std::move(outs), scope.framework, scope.device);
      if (numpys && !grad) NameNumpysCasts(builder.graph(), first);
      return true;
    } catch (const NotThisRow&) {
      objects.RollBack(before);
    } catch (const Unmodelled& u) {
      objects.RollBack(before);
      Extern(call, false);
      objects.BecomeUnusable(u.why);
      return true;
    }
  }
  return false;
}

// Would a copy have its strides? The framework copies a conjugate view before it computes with it.
bool Lowering::Impl::LiesAsItsCopy(const TensorMeta& m) {
  const shape::Ints before = shape::TakenForGranted();
  const bool same = PreserveFormat(env(), m) == m.strides;
  for (shape::Int size : shape::TakenForGranted()) shape::NoteShown(env(), size);
  std::for_each(before.begin(), before.end(), shape::TakeForGranted);
  return same;
}

// Conjugate and negated views pass through views as they are. Everything else computes with what they say.
void Lowering::Impl::CheckLazy(const Call& call, const Outs& outs, Framework results) {
  const bool views =
      std::all_of(outs.items.begin(), outs.items.end(), [](const Out& o) { return o.kind != Out::kFresh; });
  EachTensor(call, [&](TraceId t) {
    if (!meta(t).lazy()) return;
    if (results != Framework::kTorch) throw Decline("an array of a conjugate or negated view");
    if (!views && !LiesAsItsCopy(meta(t))) throw NotThisRow{};
  });
}

// An operand that lies just as the target does (`p.data.add_(p.data)`) is the target to torch, too.
void Lowering::Impl::RefuseShared(const Call& call, TraceId target, bool apart) {
  if (call.callee.framework() != Framework::kTorch) return;
  int targets = 0;
  EachTensor(call, [&](TraceId t) {
    const bool as = t == target || objects.LieAlike(t, target);
    targets += as;
    if ((!as && objects[t].root == objects[target].root &&
         !objects.Disjoint(objects.Whole(t), objects.Whole(target))) ||
        (apart && targets > 1))
      throw Decline("an operand shares memory with the target of an in-place operation");
  });
}

// The same of a write into a part of the first argument, which must be writable. What is stored where it lies is what
// `y[k] += 1` ends with.
void Lowering::Impl::RefuseShared(const Call& call, const Overwrite& written) {
  CheckWritable(written.id, call.mode);
  if (!written.region) return;
  if (call.callee.framework() != Framework::kTorch) {
    if (const Arg& from = call.args.back(); from.is(Arg::Kind::kTensor) && !written.by_index)
      RefuseSpoiled(from.t, *written.region);
    return;
  }
  for (size_t i = 1; i < call.args.size(); ++i)
    EachTensor(call.args[i], [&](TraceId t) {
      if (objects[t].root != objects[written.id].root || objects.Disjoint(objects.Whole(t), *written.region)) return;
      if (written.by_index || !objects.Same(objects.Whole(t), *written.region))
        throw Decline("what is stored shares memory with where it is stored");
    });
}

void Lowering::Impl::RefuseSpoiled(TraceId from, const Region& to) {
  if (to.sizes.size() != 1 || objects[from].root != objects[to.of].root) return;
  const Region read = objects.Whole(from);
  if (read.sizes.empty() || read.sizes.back() == shape::Int(1)) return;
  if (env().Prove(shape::Cmp::kEq, read.strides.back(), to.strides[0]).value_or(false)) return;
  if (!objects.Disjoint(read, to)) throw Decline("what is copied is overwritten while NumPy reads it");
}

// What lies in memory for the program where v is a view, and v itself otherwise.
static ValueId MemoryOf(const Graph& g, ValueId v) {
  for (;; v = g.nodes[v].operands[0]) {
    const Node& n = g.nodes[v];
    const bool stop = n.op == Op::kCast && n.derivative && n.derivative->rule == "stop";
    if (!stop && n.op != Op::kReshape && n.op != Op::kPermute && n.op != Op::kBroadcast && n.op != Op::kSlice) return v;
  }
}

// A tensor of its own is a value of its own: gradients tell one from the other (the sum of a single number), and what
// shares no memory with an operand in the program (`x.repeat(1)`) must not do so for a derivative that keeps it.
ValueId Lowering::Impl::Distinct(const Call& call, ValueId made) {
  const Graph& g = builder.graph();
  const ValueId memory = MemoryOf(g, made);
  bool shares = false;
  EachTensor(call, [&](TraceId of) { shares |= MemoryOf(g, objects[of].value) == memory; });
  if (!shares || g.nodes[memory].op == Op::kConstant) return made;
  const ValueId v = builder.Barrier(made, "leaf");
  builder.graph().nodes[v].derivative = std::make_shared<const Derivative>(Derivative{"leaf", {made}, {}, {}});
  return v;
}

// No gradients lead through what is written without them, of operands that have some.
void Lowering::Impl::Store(const Call& call, TraceId target, ValueId v, bool tracked) {
  bool operands = false;
  EachTensor(call, [&](TraceId t) { operands |= meta(t).requires_grad || meta(objects[t].root).requires_grad; });
  if (call.callee.framework() == Framework::kTorch) v = Distinct(call, v);
  objects.Write(target, !tracked && operands && IsFloat(builder.type(v).dtype) ? builder.Barrier(v) : v);
  if (tracked) meta(target).requires_grad = true;
}

static Arg StructureOf(const Outs& outs, const std::vector<TraceId>& ids) {
  Arg structure;
  if (outs.structure == Arg::Kind::kTensor) {
    structure = Arg::Tensor(ids.at(0));
  } else if (outs.structure != Arg::Kind::kNone) {
    std::vector<Arg> items;
    for (TraceId t : ids) items.push_back(Arg::Tensor(t));
    structure = Arg::Seq(outs.structure, std::move(items));
    structure.s = outs.type_name;
  }
  return structure;
}

void Lowering::Impl::Commit(Call& call, const Row& row, Form form, Outs outs, Framework fw,
                            std::optional<Device> placed) {
  bool grad = WantsGrad(trace, call) && !(row.flags & kNoGrad);
  if (form == Form::kInPlace) {
    TraceId target = call.args.at(0).t;
    const TensorMeta& m = meta(target);
    const Out& out = outs.items.at(0);
    if (out.kind == Out::kView) throw NotThisRow{};  // t_, unsqueeze_ change the object itself
    ValueId v = out.kind == Out::kSame ? objects.Value(target) : out.value;
    TensorType t = builder.type(v);
    if (m.is_scalar) throw NotThisRow{};
    if (out.kind != Out::kSame || out.of != target) {
      CheckWritable(target, call.mode);
      RefuseShared(call, target, row.flags & kApart);
      if (t.rank() != static_cast<int>(m.sizes.size())) throw Decline("result does not fit the in-place target");
      for (int d = 0; d < t.rank(); ++d) {
        if (!env().Eq(t.shape[d], m.sizes[d])) throw Decline("result does not fit the in-place target");
      }
      if (fw == Framework::kTorch ? !TorchCanCast(t.dtype, m.dtype) : !NumpyCanCastSameKind(t.dtype, m.dtype)) {
        throw Decline("result dtype cannot be stored in place");
      }
      const bool tracked = grad && (IsFloat(m.dtype) || IsComplex(m.dtype));
      derivatives.NoteWrite(target, tracked);
      Store(call, target, builder.Cast(v, m.dtype), tracked);
    }
    Record(call, {target}, Arg::Tensor(target));
    return;
  }
  CheckLazy(call, outs, fw);
  for (const Out& out : outs.items) {
    if (out.kind == Out::kView && meta(out.of).is_scalar) throw NotThisRow{};  // NumPy scalars have no views
  }
  for (const Overwrite& w : outs.writes) RefuseShared(call, w);
  NoteStatistics(call, grad);
  for (const auto& [id, value, region, by_index] : outs.writes) {
    const DType written = meta(id).dtype;
    bool tracked = grad && outs.writes_differentiable && (IsFloat(written) || IsComplex(written));
    const bool part = call.callee.last() == "__setitem__";
    if (outs.writes_differentiable) derivatives.NoteWrite(id, tracked, part);
    if (!outs.writes_differentiable && statistics.contains(objects[id].root))
      objects.BecomeUnusable("statistics that a derivative reads are written");
    Store(call, id, value, tracked);
  }
  if (outs.items.size() == 1 && outs.items[0].owner != Out::kItself) MakeOwner(call, outs.items[0]);
  Device device;
  std::optional<Device> operand_device;
  bool tracked_operand = false;
  const bool cupy = OnCupy(call);
  EachTensor(call, [&](TraceId t) {
    operand_device = meta(t).device;
    tracked_operand |= meta(t).requires_grad || meta(objects[t].root).requires_grad;
  });
  std::vector<TraceId> ids;
  const shape::Ints taken = shape::TakenForGranted();
  for (Out& out : outs.items) {
    if (out.kind == Out::kSame) {
      ids.push_back(out.of);
      continue;
    }
    TensorType t = builder.type(out.value);
    TensorMeta m;
    m.framework = fw;
    m.dtype = t.dtype;
    m.device = placed ? *placed : operand_device.value_or(device);
    m.sizes = t.shape;
    const bool plain = out.strides.empty() && out.kind != Out::kView && taken.empty();
    m.strides = out.strides.empty() ? RowMajor(t.shape) : std::move(out.strides);
    m.is_scalar = fw == Framework::kNumpy && !cupy && out.kind == Out::kFresh && t.rank() == 0 && !out.array;
    m.requires_grad = grad && out.differentiable && (IsFloat(t.dtype) || IsComplex(t.dtype));
    m.is_inference = call.mode.inference && out.kind != Out::kView;
    if (out.kind == Out::kView) m.conj = meta(out.of).conj, m.neg = meta(out.of).neg;
    if (out.kind == Out::kFresh && fw == Framework::kTorch) out.value = Distinct(call, out.value);
    if (out.kind == Out::kView && m.requires_grad && out.value == objects.Value(out.of)) BecomeAlias(builder, out);
    bool stop = tracked_operand && !m.requires_grad && IsFloat(t.dtype);
    if (stop) out.value = builder.Barrier(out.value);
    TraceId id = objects.New(std::move(m), out.value);
    if (!plain) Grant(id, call, taken);
    if (out.kind == Out::kView) {
      objects.BecomeView(id, out.of);
      Objects::Object& o = objects[id];
      if (out.differentiable) o.domain = objects[out.of].domain;
      o.follows = !out.differentiable ||  // as what detach() makes, which is no view for the framework's derivatives
                  (call.mode.grad && objects[out.of].follows && !call.callee.Has(kOneOfSeveral));
      o.own_version = call.callee.Has(kOwnVersions);
      o.view = std::move(out.view);
      if (stop || (!out.differentiable && IsFloat(t.dtype)))
        o.view.forward = [f = std::move(o.view.forward)](Builder& b, ValueId v) { return b.Barrier(f(b, v)); };
    }
    ids.push_back(id);
  }
  Arg structure = StructureOf(outs, ids);
  if (outs.recorded) {  // the same meaning in a form that can be replayed from one tensor
    call.callee = outs.recorded->callee;
    call.args = outs.recorded->args;
    call.kwargs.clear();
  }
  Record(call, std::move(ids), std::move(structure));
}

// The result becomes a view of an array that the program did not ask for: of a copy of the operand that ndarray.reshape
// cannot view (kCopy), or of what the call itself makes (kHidden).
void Lowering::Impl::MakeOwner(Call& call, Out& out) {
  const bool copies = out.owner == Out::kCopy;
  TensorMeta m;
  if (copies) m = meta(call.args.at(0).t);
  const TensorType t = builder.type(out.value);
  if (!copies) m.framework = Framework::kNumpy, m.dtype = t.dtype, m.sizes = t.shape;
  m.strides = RowMajor(m.sizes);
  const shape::Ints from = m.sizes, to = t.shape;
  const TraceId owner = objects.New(std::move(m), copies ? objects.Value(call.args.at(0).t) : out.value);
  Call made = call;
  if (copies) {
    made.callee = OnCupy(call) ? "cupy.ndarray.copy" : "numpy.ndarray.copy";
    made.args.resize(1);
    made.kwargs.clear();
  } else {
    call.callee = "numpy.ndarray.view";
    call.args.assign(1, Arg());
    call.kwargs.clear();
  }
  Record(made, {owner}, Arg::Tensor(owner));
  call.args[0] = Arg::Tensor(owner);
  out.kind = Out::kView;
  out.of = owner;
  out.view.forward = [to](Builder& b, ValueId v) { return b.Reshape(v, to); };
  out.view.inverse = [from](Builder& b, ValueId, ValueId fresh) { return b.Reshape(fresh, from); };
}
const TensorMeta& Lowering::meta(TraceId t) const {
  return impl_->trace.tensors.at(t).meta;
}
const std::string& Lowering::undifferentiable() const {
  return impl_->derivatives.undifferentiable();
}
ValueId Lowering::ValueOf(TraceId t) {
  return impl_->objects.Value(t);
}
const std::string& Lowering::graph_unusable() const {
  return impl_->objects.unusable();
}
bool Lowering::WritesInputWithGradients() const {
  return impl_->derivatives.input_written();
}
std::vector<ValueId> Lowering::KeptFor(TraceId t) const {
  return impl_->derivatives.KeptFor(t);
}
const std::vector<ValueId>& Lowering::held() const {
  return impl_->derivatives.held();
}
bool Lowering::MayBeKept(TraceId t) const {
  return impl_->derivatives.MayKeep(t);
}
const std::vector<Lowering::Range>& Lowering::checkpointed() const {
  return impl_->derivatives.checkpointed();
}
void Lowering::BeginCheckpoint() {
  impl_->derivatives.BeginCheckpoint(impl_->builder.graph().nodes.size());
}
void Lowering::EndCheckpoint() {
  impl_->derivatives.EndCheckpoint(impl_->builder.graph().nodes.size());
}
Lowering::Reentrant Lowering::BeginReentrant(const std::vector<TraceId>& given) {
  Reentrant r;
  for (TraceId id : given) r.given.push_back(impl_->objects.Value(id));
  r.nodes.first = impl_->builder.graph().nodes.size();
  return r;
}
void Lowering::EndReentrant(Reentrant r) {
  r.nodes.second = impl_->builder.graph().nodes.size();
  impl_->derivatives.reentrant.push_back(std::move(r));
}
const std::vector<Lowering::Reentrant>& Lowering::reentrant() const {
  return impl_->derivatives.reentrant;
}
const std::vector<Lowering::Unanswered>& Lowering::unanswered() const {
  return impl_->derivatives.unanswered;
}
void Lowering::EndAutocast() {
  impl_->casts.clear();
}
void Lowering::Apply(Call& call) {
  impl_->Apply(call);
}

void Lowering::Lend(TraceId t) {
  impl_->Lend(t);
}

void Lowering::Impl::Lend(TraceId t) {
  const TraceId root = objects[t].root;
  if (trace.tensors[root].input >= 0) return;
  ValueId v = objects.Value(root);
  if (lent.insert(root).second) {
    const Graph& g = builder.graph();
    ValueId made = v;
    while (g.nodes[made].op == Op::kCast && g.nodes[g.nodes[made].operands[0]].type == g.nodes[made].type)
      made = g.nodes[made].operands[0];
    // The result of a custom function is what its kernel has made, and a barrier.
    const auto& d = g.nodes[v].derivative;
    const bool custom = d && std::string_view(d->rule).starts_with("custom");
    if (Info(g.nodes[made].op).kind != 'X' || (lent_values.contains(made) && !custom)) v = made = InOwnMemory(root);
    lent_values.insert(made);
  }
  objects.Renew(t, v);
}

// A copy of it that no other value is merged with.
ValueId Lowering::Impl::InOwnMemory(TraceId root) {
  const ValueId from = objects.Materialised(root);
  auto copy = std::make_shared<Call>();
  copy->callee = "torch.clone";
  copy->args = {Arg::Tensor(0)};
  copy->mode.grad = false;
  copy->result = Arg::Tensor(0);
  const ValueId v = builder.Extern(copy, {from}, {builder.type(from)}, {meta(root).strides});
  builder.graph().nodes[v].derivative = std::make_shared<const Derivative>(Derivative{"leaf", {from}, {}, {}});
  return v;
}

// Could this be the same value as one that was lent, once identities are folded?
bool Lowering::Impl::MayLieInLent(ValueId v) {
  const Graph& g = builder.graph();
  const auto constant = [&](ValueId o) {
    while (g.nodes[o].op == Op::kCast || (Info(g.nodes[o].op).kind == 'V' && g.nodes[o].operands.size() == 1))
      o = g.nodes[o].operands[0];
    return g.nodes[o].op == Op::kConstant;
  };
  while (!lent_values.contains(v)) {
    const Node& n = g.nodes[v];
    if (n.op != Op::kCast && Info(n.op).kind == 'P' && n.operands.size() == 1) return false;
    std::set<ValueId> of;
    for (ValueId o : n.operands)
      if (!constant(o)) of.insert(o);
    if (of.size() != 1 || (Info(n.op).kind != 'P' && Info(n.op).kind != 'V' && Info(n.op).kind != 'R')) return false;
    v = *of.begin();
  }
  return true;
}

TraceId Lowering::AddInput(TensorMeta m, std::string name, bool writable) {
  TensorType type{m.dtype, m.sizes, m.device};
  if (m.lazy()) {  // a run gets a copy, which lies as the input does
    writable = false;
    if (!IsComplex(m.dtype) || !impl_->LiesAsItsCopy(m))
      impl_->objects.BecomeUnusable("an input is a conjugate or negated view that no copy lies like");
  }
  ValueId v = impl_->builder.Input(type, m.strides, std::move(name));
  TraceId id = impl_->objects.New(std::move(m), v);
  impl_->trace.tensors[id].input = static_cast<int>(impl_->trace.inputs.size());
  if (!writable) impl_->read_only.insert(id);
  impl_->trace.inputs.push_back(id);
  return id;
}

}  // namespace framejit::surface
