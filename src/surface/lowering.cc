// Functionalisation. Tensors of the program are objects that share storage; graph values are immutable. Each storage
// has a root object and a version; every object remembers the value it had at some version and, if it is a view, how to
// get it from its parent and how to put a replacement back:
//
//   y = x[1:]      y: parent x, forward slice, inverse cat(x[:1], new)
//   y += 1         y's value is new at version 1; x's value is inverse(old x, new y) at version 1
//   x * 2          reads x: up to date
//   z = x.t()...   another view made before: its version is 0, so its value is forward(value of its parent) again
//
// Invariant: an object whose version equals its storage's version holds the right value. A write costs one node per
// ancestor; reading a stale view re-derives its chain. Every call is all or nothing: changes are journaled until it
// ends.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "graph/raises.h"
#include "surface/autocast.h"
#include "surface/rows.h"

namespace framejit::surface {

struct Lowering::Impl {
  struct Object {
    ValueId value = kNoValue;
    int version = 0;
    TraceId root = 0, parent = 0;
    View view;
  };

  Trace& trace;
  Builder builder;
  InferFn infer;
  std::vector<Object> objects;  // by TraceId
  std::vector<int> versions;    // by root's TraceId
  std::string unusable;
  std::set<TraceId> read_only;       // inputs
  std::string undifferentiable;      // why the graph's derivative is not the program's
  std::set<TraceId> kept;            // roots whose memory the framework may keep for a derivative
  std::set<ValueId> claimed;         // nodes that are a graph output already
  std::map<TraceId, TraceId> casts;  // autocast's, of leaves

  struct Undo {
    TraceId id;
    ValueId value;
    int version;
  };
  std::vector<Undo> journal;

  Impl(Trace& t, Graph& g, shape::Env& env, InferFn f) : trace(t), builder(g, env), infer(std::move(f)) {}

  shape::Env& env() { return builder.env(); }
  TensorMeta& meta(TraceId t) { return trace.tensors[t].meta; }

  void Set(TraceId t, ValueId v, int version) {
    journal.push_back({t, objects[t].value, objects[t].version});
    objects[t].value = v;
    objects[t].version = version;
  }
  void RollBack(size_t nodes) {
    for (; !journal.empty(); journal.pop_back()) {
      const Undo& u = journal.back();
      objects[u.id].value = u.value;
      objects[u.id].version = u.version;
    }
    builder.graph().nodes.resize(nodes);
  }

  ValueId Value(TraceId t) {
    Object& o = objects[t];
    int now = versions[o.root];
    if (o.version != now) Set(t, o.view.forward(builder, Value(o.parent)), now);
    return objects[t].value;
  }

  Operand Read(TraceId t) {
    Operand o;
    o.id = t;
    o.value = Value(t);
    o.meta = &meta(t);
    return o;
  }

  TraceId NewObject(TensorMeta m, ValueId v) {
    TraceTensor t;
    t.id = static_cast<TraceId>(trace.tensors.size());
    t.base = t.id;
    t.meta = std::move(m);
    trace.tensors.push_back(t);
    Object o;
    o.value = v;
    o.root = o.parent = t.id;
    objects.push_back(std::move(o));
    versions.push_back(0);
    return t.id;
  }

  // The framework keeps operands and results of calls for their derivatives, and refuses a backward pass once one of
  // them was written. The graph would give the gradient instead: such programs are left to the framework. These keep no
  // results.
  static bool KeepsResult(std::string_view callee) {
    static constexpr std::string_view plain =
        " add radd iadd sub rsub isub mul rmul imul div truediv rtruediv itruediv neg linear matmul mm "
        "bmm addmm baddbmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d batch_norm layer_norm "
        "group_norm cat stack embedding clone contiguous zeros ones empty full zeros_like ones_like "
        "empty_like full_like new_zeros new_ones to float setitem copy masked_fill where dropout gelu "
        "silu sum mean ";
    callee = callee.substr(callee.rfind('.') + 1);
    while (callee.starts_with('_')) callee.remove_prefix(1);
    while (callee.ends_with('_')) callee.remove_suffix(1);
    return plain.find(" " + std::string(callee) + " ") == std::string_view::npos;
  }

  // A write that gradients do not see, to a tensor that has some; or one that makes an input have some.
  void NoteWrite(TraceId t, bool grad) {
    TraceId root = objects[t].root;
    if (undifferentiable.empty() && kept.contains(root))
      undifferentiable = "a tensor is written that a derivative may need";
    kept.erase(root);
    bool tracked = meta(t).requires_grad || meta(root).requires_grad;
    if (!undifferentiable.empty()) return;
    if (tracked && !grad) undifferentiable = "a tensor that requires gradients is written without them";
    if (grad && trace.tensors[root].input >= 0) undifferentiable = "an input is written with gradients";
    for (size_t i = 0; grad && i < objects.size();
         ++i)  // they have gradients from now on, and their metas do not say so
      if (objects[i].root == root && i != t && !meta(i).requires_grad)
        undifferentiable = "a tensor with views is written with gradients";
  }

  void CheckWritable(TraceId t, const ModeState& mode) {
    if (Overlaps(env(), meta(t))) throw Decline("write to a tensor whose elements share memory");
    const TraceTensor& root = trace.tensors[objects[t].root];
    if (mode.grad && root.input >= 0 && root.meta.requires_grad)
      throw Decline("in-place write to an input that requires grad");
    if (root.meta.read_only || (root.meta.is_inference && !mode.inference))
      throw Decline("write to a tensor that must not be written");
    if (meta(t).is_scalar) throw Decline("write to a scalar");
    if (read_only.contains(objects[t].root)) throw Decline("write to a read-only array");
  }

  // torch refuses operands that overlap the target in part: it knows where they lie.
  void RefuseShared(const Call& call, TraceId target) {
    if (!call.callee.starts_with("torch")) return;
    ForEachTensor(call, [&](TraceId t) {
      if (t != target && objects[t].root == objects[target].root)
        throw Decline("an operand shares memory with the target of an in-place operation");
    });
  }

  void Write(TraceId t, ValueId v) {
    TraceId root = objects[t].root;
    int next = versions[root] + 1;
    trace.tensors[t].mutated = trace.tensors[root].mutated = true;
    for (TraceId at = t;; at = objects[at].parent) {
      Set(at, v, next);
      if (at == root) break;
      TraceId parent = objects[at].parent;
      ValueId old = Value(parent);
      if (objects[at].view.inverse) {
        v = objects[at].view.inverse(builder, old, v);
      } else {
        if (unusable.empty()) unusable = "a write through a view that has no functional form";
        v = old;
      }
    }
    versions[root] = next;
  }

  // v, or a copy of it, as a node that promises these strides when it is materialised.
  ValueId WithLayout(ValueId v, const shape::Ints& strides) {
    Graph& g = builder.graph();
    Node& n = g.nodes[v];
    if (n.op != Op::kInput && (n.strides.empty() || n.strides == strides) && !claimed.contains(v)) {
      n.strides = strides;
      claimed.insert(v);
      return v;
    }
    Node copy;  // an identity that no builder folds away: two results never share a buffer, nor a result an input's
    copy.op = Op::kCast;
    copy.operands = {v};
    copy.type = n.type;
    copy.attrs.dtype = n.type.dtype;
    copy.strides = strides;
    g.nodes.push_back(std::move(copy));
    return static_cast<ValueId>(g.nodes.size() - 1);
  }
  // An operand of a framework kernel: kernels choose their output's layout by their operands' order of dimensions.
  ValueId Materialised(TraceId t) {
    ValueId v = Value(t);
    Node& n = builder.graph().nodes[v];
    const TensorMeta& m = meta(t);
    if (n.op != Op::kInput && n.strides.empty() && !IsContiguous(env(), m)) n.strides = PreserveFormat(env(), m);
    return v;
  }

  void ForEachTensor(const Arg& a, const std::function<void(TraceId)>& f) {
    if (a.is(Arg::Kind::kTensor)) f(a.t);
    for (const Arg& i : a.items) ForEachTensor(i, f);
  }
  void ForEachTensor(const Call& c, const std::function<void(TraceId)>& f) {
    for (const Arg& a : c.args) ForEachTensor(a, f);
    for (const auto& [name, a] : c.kwargs) ForEachTensor(a, f);
  }

  void Apply(Call& call);
  void Cast(Call& call);
  bool TryRows(Call& call, bool computable);
  void Extern(Call& call, bool model);
  void Commit(Call& call, const Row& row, Form form, Outs outs, std::optional<Device> device);
  void Place(ValueId v, Device device);
  void Record(Call& call, std::vector<TraceId> results, Arg structure);
  void CopyFirst(Call& call, Out& out);
  bool WantsGrad(const Call& call);
};

bool Lowering::Impl::WantsGrad(const Call& call) {
  bool any = false;
  ForEachTensor(call, [&](TraceId t) { any |= meta(t).requires_grad; });
  return any && call.mode.grad && !call.mode.inference;
}

void Lowering::Impl::Record(Call& call, std::vector<TraceId> results, Arg structure) {
  call.results = std::move(results);
  call.result = std::move(structure);
  bool view = false;
  int index = static_cast<int>(trace.calls.size());
  for (TraceId t : call.results) view |= trace.tensors[t].view_call == index;
  if (!view && WantsGrad(call)) {
    std::set<TraceId> written;
    for (TraceId t : call.results) written.insert(objects[t].root);
    if (call.results.empty() && !call.args.empty() && call.args[0].is(Arg::Kind::kTensor))
      written.insert(objects[call.args[0].t].root);  // x[...] = v
    ForEachTensor(call, [&](TraceId t) {
      if (!written.contains(objects[t].root)) kept.insert(objects[t].root);
    });
    if (KeepsResult(call.callee)) kept.insert(written.begin(), written.end());
  }
  trace.calls.push_back(call);
}

// What autocast does to the operands of a call, as calls of its own.
void Lowering::Impl::Cast(Call& call) {
  const Autocast cast = std::exchange(call.mode.autocast, Autocast{});
  int device = -1;
  ForEachTensor(call, [&](TraceId t) {
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
  ForEachTensor(call, [&](TraceId t) {
    if (!eligible(t)) return;
    any = true;
    wide |= meta(t).dtype == DType::kFloat32;
    odd |= meta(t).dtype != DType::kFloat32 && meta(t).dtype != lower;
  });
  if (!any) return;
  if (rule == CastRule::kRefused) throw Decline(call.callee + " under autocast");
  if (rule == CastRule::kPromote && odd) throw Decline(call.callee + " under autocast of other types");
  const DType to = rule == CastRule::kLower || (rule == CastRule::kPromote && !wide) ? lower : DType::kFloat32;
  std::function<void(Arg&)> change = [&](Arg& a) {
    for (Arg& i : a.items) change(i);
    if (!a.is(Arg::Kind::kTensor) || !eligible(a.t) || meta(a.t).dtype == to) return;
    const TensorMeta& m = meta(a.t);
    const bool keep = cast.cache && to == lower && m.dtype == DType::kFloat32 && m.requires_grad && m.is_parameter &&
                      trace.tensors[a.t].input >= 0;
    if (auto known = casts.find(a.t); keep && known != casts.end()) {
      a.t = known->second;
      return;
    }
    Call made;
    made.callee = "torch.Tensor.to";
    made.mode = call.mode;
    made.file = call.file;
    made.line = call.line;
    Arg type;
    type.kind = Arg::Kind::kDType;
    type.s = std::string(DTypeName(to));
    made.args = {a, type};
    Apply(made);
    if (keep) casts.emplace(a.t, made.result.t);
    a.t = made.result.t;
  };
  for (Arg& a : call.args) change(a);
  for (auto& [name, a] : call.kwargs) change(a);
}

void Lowering::Impl::Apply(Call& call) {
  if (call.mode.autocast.any()) Cast(call);
  call.mode.autocast = Autocast{};
  builder.set_location(call.file, call.line);
  bool computable = true;
  std::optional<Device> device;
  std::optional<Framework> framework;
  ForEachTensor(call, [&](TraceId t) {
    const TensorMeta& m = meta(t);
    if (framework && *framework != m.framework) throw Decline("tensors of two frameworks in one call");
    framework = m.framework;
    if (device && !(*device == m.device)) computable = false;
    device = m.device;
    if (m.device.kind == DeviceKind::kMeta || IsComplex(m.dtype) || DTypeClass(m.dtype) == 'p') computable = false;
    if (IsFloat(m.dtype) && DTypeSize(m.dtype) < 2) computable = false;
  });
  for (const auto& [name, value] : call.kwargs) {
    if (name == "out" && !value.is_none()) throw Decline("out= is not captured");
  }
  size_t nodes = builder.graph().nodes.size();
  std::string unusable_before = unusable;
  journal.clear();
  try {
    if (!TryRows(call, computable)) Extern(call, true);
  } catch (const ShapeError& e) {
    RollBack(nodes);
    unusable = unusable_before;
    throw Decline(e.what());
  } catch (...) {
    RollBack(nodes);
    unusable = unusable_before;
    throw;
  }
  journal.clear();
}

bool Lowering::Impl::TryRows(Call& call, bool computable) {
  for (const Candidate& c : FindRows(call.callee)) {
    if (!computable && !(c.row->flags & kAnyDType)) continue;
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
    size_t nodes = builder.graph().nodes.size();
    try {
      Framework fw = call.callee.starts_with("torch") ? Framework::kTorch : Framework::kNumpy;
      Scope scope(builder, *c.row, fw, call.mode, std::move(*args), [this](TraceId t) { return Read(t); });
      Outs outs = c.row->lower(scope);
      Commit(call, *c.row, c.form, std::move(outs), scope.device);
      return true;
    } catch (const NotThisRow&) {
      RollBack(nodes);
    } catch (const Unmodelled& u) {
      RollBack(nodes);
      Extern(call, false);
      if (unusable.empty()) unusable = u.why;
      return true;
    }
  }
  return false;
}

// Constants and what is made of them alone have no place of their own: they are where they are needed.
void Lowering::Impl::Place(ValueId v, Device device) {
  Node& n = builder.graph().nodes[v];
  if (n.type.device == device || !(n.type.device == Device{}) || n.op == Op::kInput || Info(n.op).kind == 'X') return;
  n.type.device = device;
  for (ValueId o : std::vector<ValueId>(n.operands)) Place(o, device);
}

void Lowering::Impl::Commit(Call& call, const Row& row, Form form, Outs outs, std::optional<Device> placed) {
  Framework fw = call.callee.starts_with("torch") ? Framework::kTorch : Framework::kNumpy;
  bool grad = WantsGrad(call) && !(row.flags & kNoGrad);
  if (form == Form::kInPlace) {
    TraceId target = call.args.at(0).t;
    const TensorMeta& m = meta(target);
    const Out& out = outs.items.at(0);
    if (out.kind == Out::kView) throw NotThisRow{};  // t_, unsqueeze_ change the object itself
    ValueId v = out.kind == Out::kSame ? Value(target) : out.value;
    TensorType t = builder.type(v);
    if (m.is_scalar) throw NotThisRow{};
    if (out.kind != Out::kSame || out.of != target) {
      CheckWritable(target, call.mode);
      RefuseShared(call, target);
      if (t.rank() != static_cast<int>(m.sizes.size())) throw Decline("result does not fit the in-place target");
      for (int d = 0; d < t.rank(); ++d) {
        if (!env().Eq(t.shape[d], m.sizes[d])) throw Decline("result does not fit the in-place target");
      }
      if (fw == Framework::kTorch ? !TorchCanCast(t.dtype, m.dtype) : !NumpyCanCastSameKind(t.dtype, m.dtype)) {
        throw Decline("result dtype cannot be stored in place");
      }
      NoteWrite(target, grad && IsFloat(m.dtype));
      Write(target, builder.Cast(v, m.dtype));
      if (grad && IsFloat(m.dtype)) meta(target).requires_grad = true;
    }
    Record(call, {target}, Arg::Tensor(target));
    return;
  }
  for (const Out& out : outs.items) {
    if (out.kind == Out::kView && meta(out.of).is_scalar) throw NotThisRow{};  // NumPy scalars have no views
  }
  for (const auto& [id, value] : outs.writes) CheckWritable(id, call.mode);
  for (const auto& [id, value] : outs.writes) {
    bool tracked = grad && outs.writes_differentiable && IsFloat(meta(id).dtype);
    if (outs.writes_differentiable) NoteWrite(id, tracked);
    Write(id, value);
    if (tracked) meta(id).requires_grad = true;
  }
  if (outs.items.size() == 1 && outs.items[0].of_copy) CopyFirst(call, outs.items[0]);
  int call_index = static_cast<int>(trace.calls.size());
  Device device;
  std::optional<Device> operand_device;
  bool tracked_operand = false;
  ForEachTensor(call, [&](TraceId t) {
    operand_device = meta(t).device;
    tracked_operand |= meta(t).requires_grad || meta(objects[t].root).requires_grad;
  });
  std::vector<TraceId> ids;
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
    Place(out.value, m.device);
    m.sizes = t.shape;
    m.strides = out.strides.empty() ? RowMajor(t.shape) : std::move(out.strides);
    m.is_scalar = fw == Framework::kNumpy && out.kind == Out::kFresh && t.rank() == 0 && !out.array;
    m.requires_grad = grad && out.differentiable && (IsFloat(t.dtype) || IsComplex(t.dtype));
    m.is_inference = call.mode.inference && out.kind != Out::kView;
    bool stop = tracked_operand && !m.requires_grad && IsFloat(t.dtype);
    if (stop) out.value = builder.Barrier(out.value);
    TraceId id = NewObject(std::move(m), out.value);
    if (out.kind == Out::kView) {
      Object& o = objects[id];
      o.parent = out.of;
      o.root = objects[out.of].root;
      o.version = versions[o.root];
      o.view = std::move(out.view);
      if (stop) o.view.forward = [f = std::move(o.view.forward)](Builder& b, ValueId v) { return b.Barrier(f(b, v)); };
      trace.tensors[id].base = o.root;
      trace.tensors[id].view_call = call_index;
    }
    ids.push_back(id);
  }
  Arg structure;
  if (outs.structure == Arg::Kind::kTensor) {
    structure = Arg::Tensor(ids.at(0));
  } else if (outs.structure != Arg::Kind::kNone) {
    std::vector<Arg> items;
    for (TraceId t : ids) items.push_back(Arg::Tensor(t));
    structure = Arg::Seq(outs.structure, std::move(items));
    structure.s = outs.type_name;
  }
  if (outs.recorded) {  // the same meaning in a form that can be replayed from one tensor
    call.callee = outs.recorded->callee;
    call.args = outs.recorded->args;
    call.kwargs.clear();
  }
  Record(call, std::move(ids), std::move(structure));
}

// ndarray.reshape of what cannot be viewed so: copies the operand and views the copy, which is not the result.
void Lowering::Impl::CopyFirst(Call& call, Out& out) {
  const TraceId source = call.args.at(0).t;
  TensorMeta m = meta(source);
  m.strides = RowMajor(m.sizes);
  const shape::Ints from = m.sizes, to = builder.type(out.value).shape;
  const TraceId copy = NewObject(std::move(m), Value(source));
  Call made = call;
  made.callee = "numpy.ndarray.copy";
  made.args = {Arg::Tensor(source)};
  made.kwargs.clear();
  Record(made, {copy}, Arg::Tensor(copy));
  call.args[0] = Arg::Tensor(copy);
  out.kind = Out::kView;
  out.of = copy;
  out.view.forward = [to](Builder& b, ValueId v) { return b.Reshape(v, to); };
  out.view.inverse = [from](Builder& b, ValueId, ValueId fresh) { return b.Reshape(fresh, from); };
}

// A framework kernel inside the graph. In-place callees run as their functional namesake, then write.
void Lowering::Impl::Extern(Call& call, bool model) {
  for (const Arg& a : call.args)
    if (a.is(Arg::Kind::kSymFloat)) throw Decline("a float that changes");
  for (const auto& [name, a] : call.kwargs)
    if (a.is(Arg::Kind::kSymFloat)) throw Decline("a float that changes");
  if (NeverCaptured(call.callee)) throw Decline(call.callee + " depends on data or on state outside the graph");
  auto request = std::make_shared<Call>(call);
  std::optional<TraceId> target;
  std::string& name = request->callee;
  bool dunder = name.ends_with("__");
  if (name == "torch.Tensor.__setitem__" || name == "numpy.ndarray.__setitem__" || name.ends_with(".__set__")) {
    throw Decline("this form of item assignment is not captured");
  }
  size_t augmented = name.rfind(".__i");
  static constexpr std::string_view kAugmented[] = {"add", "sub", "mul", "truediv", "floordiv", "mod",   "pow",
                                                    "and", "or",  "xor", "lshift",  "rshift",   "matmul"};
  if (dunder && augmented != std::string::npos) {
    std::string_view op = std::string_view(name).substr(augmented + 4);
    op.remove_suffix(2);
    if (std::find(std::begin(kAugmented), std::end(kAugmented), op) != std::end(kAugmented)) {
      target = call.args.at(0).t;
      name = name.substr(0, augmented + 3) + std::string(op) + "__";
    }
  } else if (!dunder && name.ends_with("_") && name.starts_with("torch")) {
    if (call.args.empty() || !call.args[0].is(Arg::Kind::kTensor)) throw Decline("in-place call without a target");
    target = call.args[0].t;
    name.pop_back();
  }
  if (target) {
    CheckWritable(*target, call.mode);
    RefuseShared(call, *target);
  }

  std::vector<TraceId> ids;
  std::function<void(Arg&)> number = [&](Arg& a) {
    if (a.is(Arg::Kind::kTensor)) {
      auto it = std::find(ids.begin(), ids.end(), a.t);
      if (it == ids.end()) it = ids.insert(ids.end(), a.t);
      a.t = static_cast<TraceId>(it - ids.begin());
    }
    for (Arg& i : a.items) number(i);
  };
  for (Arg& a : request->args) number(a);
  for (auto& [k, a] : request->kwargs) number(a);
  std::vector<TensorMeta> operands;
  for (TraceId t : ids) operands.push_back(meta(t));
  auto inferred = infer(*request, operands);
  std::vector<TensorMeta>* metas = inferred ? &inferred->metas : nullptr;
  if (!metas || metas->empty()) throw Decline("the result types of " + call.callee + " are not known before it runs");
  bool aliases =
      std::any_of(inferred->aliases.begin(), inferred->aliases.end(), [](auto& a) { return a.operand >= 0; });
  // A view is copied where the graph reads it, so it must follow from the one tensor that it is a view of.
  if (aliases && (target || ids.size() != 1))
    throw Decline(call.callee + " returns a view, in a form that is not captured");
  std::string why;
  if (!model) why = "not modelled";
  if (IsRandom(call.callee)) why = call.callee + " draws random numbers";

  bool grad = WantsGrad(call);
  for (auto& [k, a] : call.kwargs) grad |= k == "requires_grad" && a.is(Arg::Kind::kBool) && a.b;  // in any mode
  std::vector<TensorType> types;
  std::vector<shape::Ints> strides;
  for (TensorMeta& m : *metas) {
    m.requires_grad = grad && (IsFloat(m.dtype) || IsComplex(m.dtype));
    m.is_parameter = false;
    types.push_back({m.dtype, m.sizes, m.device});
    strides.push_back(m.strides);
  }
  std::vector<ValueId> values;
  if (why.empty()) {
    std::vector<ValueId> operand_values;
    for (TraceId t : ids) operand_values.push_back(Materialised(t));
    ValueId node = builder.Extern(request, operand_values, types, strides);
    for (size_t i = 0; i < types.size(); ++i)
      values.push_back(types.size() == 1 ? node : static_cast<ValueId>(node + 1 + i));
  } else {
    for (const TensorType& t : types) values.push_back(builder.Constant(Scalar(0), t.dtype, t.shape));
    if (unusable.empty()) unusable = why;
  }
  if (target) {
    if (types.size() != 1 || types[0].dtype != meta(*target).dtype || types[0].shape != meta(*target).sizes) {
      throw Decline("the in-place form of " + name + " does not fit its target");
    }
    NoteWrite(*target, grad && IsFloat(types[0].dtype));
    Write(*target, values[0]);
    if (grad && IsFloat(types[0].dtype)) meta(*target).requires_grad = true;
    Record(call, {*target}, Arg::Tensor(*target));
    return;
  }
  bool tracked_operand = false;
  ForEachTensor(call, [&](TraceId t) { tracked_operand |= meta(t).requires_grad; });
  for (size_t i = 0; i < types.size(); ++i)
    if (tracked_operand && !(*metas)[i].requires_grad && IsFloat(types[i].dtype))
      values[i] = builder.Barrier(values[i]);
  std::vector<TraceId> results;
  for (size_t i = 0; i < types.size(); ++i) {
    const Inferred::Alias& alias = inferred->aliases[i];
    if (alias.same) {
      results.push_back(ids[alias.operand]);
      continue;
    }
    (*metas)[i].is_inference = call.mode.inference && alias.operand < 0;
    TraceId id = NewObject((*metas)[i], values[i]);
    results.push_back(id);
    if (alias.operand < 0) continue;
    Object& o = objects[id];
    o.parent = ids[alias.operand];
    o.root = objects[o.parent].root;
    o.version = versions[o.root];
    o.view.forward = [request, types, strides, i](Builder& b, ValueId parent) {
      ValueId node = b.Extern(request, {parent}, types, strides);
      return types.size() == 1 ? node : static_cast<ValueId>(node + 1 + i);
    };
    trace.tensors[id].base = o.root;
    trace.tensors[id].view_call = static_cast<int>(trace.calls.size());
  }
  Arg structure = request->result;
  std::function<void(Arg&)> rename = [&](Arg& a) {
    if (a.is(Arg::Kind::kTensor)) a.t = results.at(a.t);
    for (Arg& i : a.items) rename(i);
  };
  rename(structure);
  if (structure.is_none()) {
    if (results.size() != 1) throw Decline("unknown result structure of " + call.callee);
    structure = Arg::Tensor(results[0]);
  }
  Record(call, std::move(results), std::move(structure));
}

Lowering::Lowering(Trace& trace, Graph& graph, shape::Env& env, InferFn infer)
    : impl_(std::make_unique<Impl>(trace, graph, env, std::move(infer))) {}
Lowering::~Lowering() = default;
Builder& Lowering::builder() {
  return impl_->builder;
}
const TensorMeta& Lowering::meta(TraceId t) const {
  return impl_->trace.tensors.at(t).meta;
}
const std::string& Lowering::undifferentiable() const {
  return impl_->undifferentiable;
}
const std::string& Lowering::graph_unusable() const {
  return impl_->unusable;
}
void Lowering::EndAutocast() {
  impl_->casts.clear();
}
void Lowering::Apply(Call& call) {
  impl_->Apply(call);
}

TraceId Lowering::AddInput(TensorMeta m, std::string name, bool writable) {
  TensorType type{m.dtype, m.sizes, m.device};
  ValueId v = impl_->builder.Input(type, m.strides, std::move(name));
  TraceId id = impl_->NewObject(std::move(m), v);
  impl_->trace.tensors[id].input = static_cast<int>(impl_->trace.inputs.size());
  if (!writable) impl_->read_only.insert(id);
  impl_->trace.inputs.push_back(id);
  return id;
}

// The graph's own declaration of its symbols. A symbol is read from the first input size that it is; who makes symbols
// of other things (scalar inputs) has entered their sources already.
static void DeclareSymbols(const shape::Env& env, Graph* g) {
  size_t declared = g->symbols.size();
  for (size_t i = declared; i < env.num_symbols(); ++i) g->symbols.push_back(env.symbol(static_cast<uint32_t>(i)));
  g->symbol_sources.resize(g->symbols.size());
  for (size_t i = 0; i < g->inputs.size(); ++i) {
    const shape::Ints& sizes = g->node(g->inputs[i]).type.shape;
    for (size_t d = 0; d < sizes.size(); ++d) {
      auto id = sizes[d].as_symbol();
      if (id && g->symbol_sources.at(*id).input < 0)
        g->symbol_sources[*id] = {static_cast<int>(i), static_cast<int>(d)};
    }
  }
}

std::vector<Lowering::Made> Lowering::Finish(const std::vector<TraceId>& outputs, bool ieee) {
  Impl& s = *impl_;
  Graph& g = s.builder.graph();
  DeclareSymbols(s.env(), &g);
  s.trace.outputs = outputs;
  std::map<TraceId, int> graph_output;
  std::vector<Made> made;
  for (TraceId t : outputs) {
    TraceId root = s.objects[t].root;
    int input = s.trace.tensors[root].input;
    Made m{Made::kReplay, 0, {}};
    if (input < 0) {
      auto [it, fresh] = graph_output.emplace(root, static_cast<int>(g.outputs.size()));
      if (fresh) g.outputs.push_back(s.WithLayout(s.Value(root), s.meta(root).strides));
      m.index = it->second;
    } else {
      m.index = ~input;
    }
    if (t == root) {
      m.kind = input < 0 ? Made::kGraphOutput : Made::kInput;
      if (input >= 0) m.index = input;
    }
    for (TraceId at = t; at != root; at = s.objects[at].parent)
      m.calls.insert(m.calls.begin(), s.trace.tensors[at].view_call);
    for (int c : m.calls) {
      int tensors = 0;
      s.ForEachTensor(s.trace.calls[c], [&](TraceId) { ++tensors; });
      if (tensors > 1 && s.unusable.empty())
        s.unusable = s.trace.calls[c].callee + ": a view that needs more than its base";
    }
    made.push_back(std::move(m));
  }
  for (size_t i = 0; i < s.trace.inputs.size(); ++i) {
    TraceId t = s.trace.inputs[i];
    if (s.trace.tensors[t].mutated) g.writes.push_back({static_cast<int>(i), s.Value(t)});
  }
  KeepRaising(g, ieee);
  for (const Write& w : g.writes) s.Place(w.value, g.nodes[g.inputs[w.input]].type.device);
  for (ValueId v = static_cast<ValueId>(g.nodes.size()); v-- > 0;) {
    if (Info(g.nodes[v].op).kind == 'X') continue;
    for (ValueId o : std::vector<ValueId>(g.nodes[v].operands)) s.Place(o, g.nodes[v].type.device);
  }
  return made;
}

}  // namespace framejit::surface
