#include "capture/gradients.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include "autodiff/autodiff.h"
#include "capture/callees.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/wrappers/overrides.h"
#include "capture/wrappers/tape.h"
#include "surface/rows.h"
#include "tensor/overrides.h"

namespace framejit::capture {
namespace {

using Objects = std::vector<PyObject*>;  // borrowed: the session keeps proxies

const Vmap::Batched* BatchedOf(Session& s, PyObject* o) {
  auto at = s.vmap.tensors.find(AsTensor(o)->id);
  return at == s.vmap.tensors.end() ? nullptr : &at->second;
}

// What a batched tensor stands for in the end.
PyObject* Plain(Session& s, PyObject* o) {
  while (const Vmap::Batched* b = BatchedOf(s, o)) o = b->inner;
  return o;
}

}  // namespace

bool DifferentiatesTangents(Session& s) {
  const auto& levels = s.vmap.levels;
  const auto forward = std::count_if(levels.begin(), levels.end(), [](const auto& l) { return l.forward; });
  const auto wants = [&](PyObject* o) { return s.meta(AsTensor(Plain(s, o))->id).requires_grad; };
  return forward > 1 || std::any_of(s.vmap.duals.begin(), s.vmap.duals.end(),
                                    [&](const auto& d) { return wants(d.original) || wants(d.tangent); });
}

namespace {

PyObject* Kept(Session& s, PyObject* o) {  // steals, gives a borrowed one
  if (o) s.Keep(o);
  return o;
}

PyObject* Made(Session& s, Callee callee, const Objects& args) {
  return Kept(s, s.CallFramework(callee, args.data(), static_cast<Py_ssize_t>(args.size()), nullptr));
}

// A tensor that stands for another one, seen without its dimension `dim`.
PyObject* Stand(Session& s, PyObject* inner, int dim, int level, bool tracks) {
  TensorMeta m = s.meta(AsTensor(inner)->id);
  m.sizes.Erase(dim);
  m.strides.Erase(dim);
  m.is_parameter = m.requires_grad = false;
  const TraceId id = s.lowering().AddHidden(std::move(m));
  s.vmap.tensors[id] = {inner, dim, level, tracks};
  return Kept(s, s.NewProxy(id));
}

PyObject* Expanded(Session& s, PyObject* o, PyObject* size) {
  const shape::Ints sizes = s.meta(AsTensor(o)->id).sizes;
  Ref shape(PyTuple_New(static_cast<Py_ssize_t>(sizes.size()) + 1));
  if (!shape) return nullptr;
  PyTuple_SET_ITEM(shape.get(), 0, Py_NewRef(size));
  for (size_t i = 0; i < sizes.size(); ++i) {
    PyObject* n = s.SymIntObject(sizes[i]);
    if (!n) return nullptr;
    PyTuple_SET_ITEM(shape.get(), i + 1, n);
  }
  s.MarkFresh(shape.get());
  return Made(s, callees::kTensorExpand, {o, shape.get()});
}

// Makes another object for the same tensor.
PyObject* Alias(Session& s, PyObject* o) {
  if (const Vmap::Batched* b = BatchedOf(s, o)) return Stand(s, b->inner, b->dim, b->level, b->tracks);
  return Made(s, callees::kTensorViewAs, {o, o});
}

// Makes the tensor a leaf in every sample of the levels up to `level`.
PyObject* LeafAt(Session& s, PyObject* o, size_t level) {
  if (level == 0) {
    try {
      const TraceId id = s.lowering().Leaf(AsTensor(o)->id);
      s.vmap.leaves.emplace_back(id, static_cast<int>(s.vmap.levels.size()));
      return Kept(s, s.NewProxy(id));
    } catch (const surface::Decline& d) {
      s.leaf_refused |= !s.vmap.open();
      return s.Break(BreakId::kAutogradCall, std::string("requires_grad_: ") + d.what());
    }
  }
  PyObject* size = s.vmap.levels[level - 1].size.get();
  if (!size) return LeafAt(s, o, level - 1);
  int dim = 0;
  if (const Vmap::Batched* b = BatchedOf(s, o); b && b->level == static_cast<int>(level)) {
    o = b->inner;
    dim = b->dim;
  } else {
    o = Expanded(s, o, size);
  }
  PyObject* inner = o ? LeafAt(s, o, level - 1) : nullptr;
  return inner ? Stand(s, inner, dim, static_cast<int>(level), s.vmap.differentiates(level)) : nullptr;
}

// Gives the same tensor without gradients.
PyObject* Untracked(Session& s, PyObject* o) {
  if (const Vmap::Batched* b = BatchedOf(s, o)) {
    const Vmap::Batched was = *b;
    PyObject* inner = Untracked(s, was.inner);
    return !inner || inner == was.inner ? o : Stand(s, inner, was.dim, was.level, false);
  }
  return s.meta(AsTensor(o)->id).requires_grad ? Made(s, callees::kTensorDetach, {o}) : o;
}

std::vector<TraceId> LeavesBelow(Session& s, int level) {
  std::vector<TraceId> live;
  for (const auto& [t, at] : s.vmap.leaves)
    if (at < level) live.push_back(t);
  return live;
}

PyObject* Unwrapped(Session& s, PyObject* o, int level) {
  if (auto at = s.vmap.wrapped.find(AsTensor(o)->id); at != s.vmap.wrapped.end() && at->second.level == level)
    return Py_NewRef(at->second.original);
  for (const Vmap::Dual& d : s.vmap.duals)
    if (AsTensor(d.leaf)->id == AsTensor(o)->id && d.level == static_cast<size_t>(level))
      return Py_XNewRef(Alias(s, d.original));
  PyObject* plain = Plain(s, o);
  const TraceId id = AsTensor(plain)->id;
  if (!s.meta(id).requires_grad) return Py_NewRef(o);
  if (s.vmap.levels[level - 1].grad_before) {
    std::vector<TraceId> below = LeavesBelow(s, level);
    for (TraceId t : s.lowering().TrackedInputs()) below.push_back(t);
    if (!below.empty() && s.lowering().Depends(id, below)) return Py_NewRef(o);
  }
  return Py_XNewRef(Untracked(s, o));
}

void Shut(Session& s) {  // the innermost level
  Vmap& v = s.vmap;
  const auto level = static_cast<int>(v.levels.size());
  std::erase_if(v.leaves, [&](const auto& leaf) { return leaf.second >= level; });
  std::erase_if(v.duals, [&](const auto& dual) { return dual.level >= v.levels.size(); });
  if (v.levels.back().forward) s.modes.now.grad = v.levels.back().grad_before;
  v.levels.pop_back();
  size_t first = 0;
  for (const Vmap::Level& l : v.levels)
    if (!l.size) first = l.first + 1;
  s.lowering().Captured(first);
}

struct Problem {
  Objects outputs, seeds, inputs;  // null seed: ones
  bool create, retain, zeros;
};

// torch's own code, which takes nothing for zeros.
bool AskedByTorchFunc() {
  PyFrameObject* f = PyEval_GetFrame();
  Ref globals(f ? PyFrame_GetGlobals(f) : nullptr);
  PyObject* name = globals ? PyDict_GetItemString(globals.get(), "__name__") : nullptr;
  return name && PyUnicode_Check(name) && !PyUnicode_CompareWithASCIIString(name, callees::kFunctorch);
}

// Hooks that the program has registered outside would see these gradients, and may change them.
bool NoHooks(Session& s, const std::vector<TraceId>& inputs) {
  for (TraceId t : inputs) {
    const int input = s.trace().tensors[s.pending().Original(t)].input;
    if (input < 0) continue;
    {
      SuspendScope off;
      if (tensor::HasHooks(s.input_tensors()[input])) return false;
    }
    guard::Row row{guard::Kind::kNoHooks, s.input_sources()[input]};
    row.here = true;
    s.guards().Add(std::move(row));
  }
  return true;
}

// What operations before this graph made leads further, perhaps to one of the inputs.
bool NoHistory(Session& s, const std::vector<TraceId>& outputs, const std::vector<TraceId>& inputs) {
  std::vector<TraceId> tracked;
  for (TraceId t : s.lowering().TrackedInputs()) {
    const bool used = std::any_of(outputs.begin(), outputs.end(), [&](TraceId y) -> bool {
      if (s.lowering().Depends(y, {t})) return true;
      // A function of the program's leads to what it was given, of which its results are not made.
      const ValueId from = s.lowering().ValueOf(y), to = s.lowering().ValueOf(t);
      return autodiff::DependsOn(s.graph(), {to})[from];
    });
    if (used && !(inputs.size() == 1 && inputs[0] == t)) tracked.push_back(t);
  }
  if (std::all_of(inputs.begin(), inputs.end(), [&](TraceId t) { return s.lowering().IsLeaf(t); })) return true;
  for (TraceId t : tracked) {
    const int input = s.trace().tensors[t].input;
    {
      SuspendScope off;
      if (tensor::HasHistory(s.input_tensors()[input])) return false;
    }
    guard::Row row{guard::Kind::kLeaf, s.input_sources()[input]};
    row.here = true;
    if (!s.meta(t).is_parameter) s.guards().Add(std::move(row));
  }
  return true;
}

std::nullptr_t Refuse(Session& s, const std::string& why) {
  return s.Break(BreakId::kAutogradCall, callees::kAutogradGrad + ": " + why);
}

// Those and kept gradients would see these gradients, too.
bool HooksWait(Session& s) {
  const std::vector<PendingCall>& calls = s.pending().calls();
  return !s.pending().retains.empty() ||
         std::any_of(calls.begin(), calls.end(), [](const PendingCall& c) { return c.hooks; });
}

bool Solve(Session& s, Problem p, Objects* grads);

// The samples differ by their seeds alone, as the rows of a Jacobian do: one pass for each of them.
bool SolveEach(Session& s, const Problem& p, int level, Objects* grads) {
  constexpr long kMost = 64;
  PyObject* size = s.vmap.levels[level - 1].size.get();
  const long rows = PyLong_CheckExact(size) ? PyLong_AsLong(size) : 0;
  if (rows < 1 || rows > kMost) return Refuse(s, "of many samples that differ by their seeds"), false;
  std::vector<Ref> found;
  for (size_t k = 0; k < p.inputs.size(); ++k) found.emplace_back(PyList_New(0));
  for (long i = 0; i < rows; ++i) {
    Problem row = p;
    row.retain = true;
    for (PyObject*& seed : row.seeds) {
      const Vmap::Batched* b = seed ? BatchedOf(s, seed) : nullptr;
      if (!b || b->level != level) continue;
      Ref dim(PyLong_FromLong(b->dim)), index(PyLong_FromLong(i));
      if (!(seed = Made(s, Callee("torch.Tensor.select"), {b->inner, dim.get(), index.get()}))) return false;
    }
    Objects grads_of_row;
    if (!Solve(s, row, &grads_of_row)) return false;
    for (size_t k = 0; k < grads_of_row.size(); ++k)
      if (grads_of_row[k] && PyList_Append(found[k].get(), grads_of_row[k]) < 0) return false;
  }
  for (Ref& all : found) {
    const bool none = PyList_GET_SIZE(all.get()) == 0;
    PyObject* stacked = none ? nullptr : Made(s, Callee("torch.stack"), {s.MarkFresh(all.get())});
    if (!none && !stacked) return false;
    grads->push_back(none ? nullptr : Stand(s, stacked, 0, level, s.vmap.differentiates(level)));
  }
  return true;
}

// The gradients by input, null for none. It is false after a Break.
bool Solve(Session& s, Problem p, Objects* grads) {
  int level = 0;
  for (const Objects* all : {&p.outputs, &p.seeds, &p.inputs})
    for (PyObject* o : *all)
      if (const Vmap::Batched* b = o ? BatchedOf(s, o) : nullptr) level = std::max(level, b->level);
  if (!level) {
    surface::Lowering::Question q{.create = p.create, .retain = p.retain};
    for (size_t i = 0; i < p.outputs.size(); ++i) {
      q.outputs.push_back(AsTensor(p.outputs[i])->id);
      q.seeds.push_back(p.seeds[i] ? std::optional<TraceId>(AsTensor(p.seeds[i])->id) : std::nullopt);
    }
    for (PyObject* o : p.inputs) q.inputs.push_back(AsTensor(o)->id);
    q.zeros = p.zeros;
    if (!NoHistory(s, q.outputs, q.inputs)) return Refuse(s, "of what was made before this graph"), false;
    if (!NoHooks(s, q.inputs)) return Refuse(s, "by a tensor with hooks"), false;
    q.live = LeavesBelow(s, static_cast<int>(s.vmap.levels.size()) + 1);
    framejit::Call call;
    call.mode = s.modes.now;
    call.mode.autocast = {};
    if (PyFrameObject* f = PyEval_GetFrame()) {
      Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
      if (const char* c = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.get())->co_filename)) call.file = c;
      call.line = PyFrame_GetLineNumber(f);
    }
    try {
      for (const auto& t : s.lowering().Gradients(q, std::move(call)))
        grads->push_back(t ? Kept(s, s.NewProxy(*t)) : nullptr);
    } catch (const surface::Decline& d) {
      return Refuse(s, d.what()), false;
    }
    ++s.op_count;
    return true;
  }
  if (level > static_cast<int>(s.vmap.levels.size()) || !s.vmap.levels[level - 1].size)
    return Refuse(s, "of tensors of a torch.vmap that has ended"), false;
  const auto at_level = [&](PyObject* o) {
    const Vmap::Batched* b = o ? BatchedOf(s, o) : nullptr;
    return b && b->level == level;
  };
  if (std::none_of(p.inputs.begin(), p.inputs.end(), at_level) &&
      std::none_of(p.outputs.begin(), p.outputs.end(), at_level))
    return SolveEach(s, p, level, grads);
  std::vector<int> dims;
  Problem inner{.create = p.create, .retain = p.retain, .zeros = p.zeros};
  for (PyObject* o : p.inputs) {
    const Vmap::Batched* b = BatchedOf(s, o);
    if (!b || b->level != level) return Refuse(s, "by tensors that are no leaves in the innermost torch.vmap"), false;
    dims.push_back(b->dim);
    inner.inputs.push_back(b->inner);
  }
  auto front = [&](PyObject* o) -> PyObject* {
    const Vmap::Batched* b = BatchedOf(s, o);
    if (!b || b->level != level) return Expanded(s, o, s.vmap.levels[level - 1].size.get());
    if (!b->dim) return b->inner;
    Ref from(PyLong_FromLong(b->dim)), to(PyLong_FromLong(0));
    return Made(s, callees::kTensorMoveDim, {b->inner, from.get(), to.get()});
  };
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    const Vmap::Batched* b = BatchedOf(s, p.outputs[i]);
    if (!b || b->level != level) continue;  // no input is behind it
    inner.outputs.push_back(front(p.outputs[i]));
    inner.seeds.push_back(p.seeds[i] ? front(p.seeds[i]) : nullptr);
    if (!inner.outputs.back() || (p.seeds[i] && !inner.seeds.back())) return false;
  }
  Objects found;
  if (!Solve(s, inner, &found)) return false;
  for (size_t i = 0; i < found.size(); ++i) {
    grads->push_back(found[i] ? Stand(s, found[i], dims[i], level, s.vmap.differentiates(level)) : nullptr);
    if (found[i] && !grads->back()) return false;
  }
  return true;
}

bool Tensors(Session& s, PyObject* o, bool none, Objects* out) {  // Collects a tensor, or those of a sequence.
  if (IsTensor(o)) {
    out->push_back(o);
    return true;
  }
  if (!PyTuple_Check(o) && !PyList_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i) {
    PyObject* item = s.Resolve(PySequence_Fast_GET_ITEM(o, i));
    if (!item || (!IsTensor(item) && (!none || item != Py_None))) return false;
    out->push_back(item == Py_None ? nullptr : item);
  }
  return true;
}

Answered AllowInPlace(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 1) return {};
  s.vmap.inplace_allowed = args[0] == Py_True;
  return Py_NewRef(Py_None);
}

Answered AllowsInPlace(Session& s, Callee, PyObject* const*, Py_ssize_t n) {
  if (n) return {};
  return PyBool_FromLong(s.vmap.inplace_allowed);
}

Answered OpenLevel(Session& s, Callee callee, PyObject* const*, Py_ssize_t n) {
  if (n || !s.options().derivatives) return {};
  if (s.modes.now.inference || s.modes.autocast_depth) return s.Break(BreakId::kThreadState, callee);
  const size_t first = s.trace().tensors.size();
  s.vmap.levels.push_back({Ref(), s.modes.now.grad, first});
  s.lowering().Captured(first + 1);
  return PyLong_FromSize_t(s.vmap.levels.size());
}

// --- forward mode. It has no rules of its own: with g the gradients of y by x along a vector u, which are linear in u,
// the tangent of y is the gradient of g along the tangents of x, by u.

Answered OpenForward(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n) {
  Answered level = OpenLevel(s, callee, args, n);
  if (level && *level) {
    s.vmap.levels.back().forward = true;
    s.modes.now.grad = true;
  }
  return level;
}

// torch.func.jvp has opened a level, and undoes at its end what makes results duals. The program itself
// (torch.autograd.forward_ad) does neither.
Answered EnterDual(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n) {
  if (n) return {};
  if (s.vmap.levels.empty()) {
    Answered level = OpenForward(s, callee, args, n);
    if (!level || !*level) return level;
    Py_DECREF(*level);
    s.vmap.levels.back().bare = true;
  }
  if (!s.vmap.levels.back().forward) return {};
  return PyLong_FromLong(0);
}

Answered ExitDual(Session& s, Callee, PyObject* const*, Py_ssize_t n) {
  if (n || s.vmap.levels.empty() || !s.vmap.levels.back().forward) return {};
  if (s.vmap.levels.back().bare) Shut(s);
  return Py_NewRef(Py_None);
}

Answered SetForward(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 1 || args[0] != Py_True || !s.options().derivatives) return {};
  return Py_NewRef(Py_None);
}

Answered MakeDual(Session& s, Callee callee, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || !IsTensor(args[0]) || !IsTensor(args[1]) || s.vmap.levels.empty() || !s.vmap.levels.back().forward)
    return {};
  const TensorMeta &x = s.meta(AsTensor(args[0])->id), &t = s.meta(AsTensor(args[1])->id);
  bool fits = x.framework == Framework::kTorch && IsFloat(x.dtype) && x.dtype == t.dtype && x.device == t.device &&
              x.sizes.size() == t.sizes.size();
  for (size_t i = 0; fits && i < x.sizes.size(); ++i) fits = s.env().Eq(x.sizes[i], t.sizes[i]);
  // A tangent is laid as its primal, and no tensor that meets itself can be written.
  for (size_t i = 0; fits && i < x.sizes.size(); ++i) fits = !s.env().Eq(x.strides[i], 0) || s.env().Le(x.sizes[i], 1);
  if (!fits) return s.Break(BreakId::kAutogradCall, callee);
  PyObject* of = Alias(s, args[0]);
  PyObject* leaf = of ? LeafAt(s, of, s.vmap.levels.size()) : nullptr;
  if (!leaf) return nullptr;
  for (int i : {0, 1}) s.Keep(Py_NewRef(args[i]));
  s.vmap.duals.push_back({leaf, args[0], args[1], s.vmap.levels.size()});
  return Py_NewRef(leaf);
}

Answered UnpackDual(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  const size_t level = s.vmap.levels.size();
  if (n != 1 || !IsTensor(args[0]) || !level || !s.vmap.levels.back().forward) return {};
  PyObject *y = args[0], *plain = Plain(s, y);
  const bool bare = s.vmap.levels.back().bare;
  const auto pair = [&](PyObject* tangent) -> PyObject* {
    if (!bare) return s.MarkFresh(PyTuple_Pack(2, y, tangent));
    const int at = static_cast<int>(level);
    Ref first(Unwrapped(s, y, at)), second(tangent == Py_None ? Py_NewRef(tangent) : Unwrapped(s, tangent, at));
    return first && second ? s.MarkFresh(PyTuple_Pack(2, first.get(), second.get())) : nullptr;
  };
  Problem down{.create = true, .retain = true, .zeros = !bare}, up = down;
  Objects tangents, grads, tangent;
  for (const Vmap::Dual& d : s.vmap.duals) {
    if (d.level != level || !s.lowering().Depends(AsTensor(plain)->id, {AsTensor(Plain(s, d.leaf))->id})) continue;
    down.inputs.push_back(d.leaf);
    tangents.push_back(d.tangent);
  }
  if (down.inputs.empty() || !s.meta(AsTensor(plain)->id).requires_grad) return pair(Py_None);
  PyObject* ones = Made(s, Callee("torch.ones_like"), {y});  // formulas that are not linear at 0 are there
  PyObject* along = ones ? LeafAt(s, ones, level) : nullptr;
  if (!along) return nullptr;
  down.outputs = {y};
  down.seeds = {along};
  if (!Solve(s, down, &grads)) return nullptr;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i]) continue;
    up.outputs.push_back(grads[i]);
    up.seeds.push_back(tangents[i]);
  }
  up.inputs = {along};
  if (!up.outputs.empty() && !Solve(s, up, &tangent)) return nullptr;
  if (!tangent.empty() && tangent[0]) return pair(tangent[0]);
  PyObject* none = Made(s, Callee("torch.zeros_like"), {y});
  return none ? pair(none) : nullptr;
}

Answered CloseLevel(Session& s, Callee, PyObject* const*, Py_ssize_t n) {
  const auto& levels = s.vmap.levels;
  if (n || !s.options().derivatives || levels.empty() || levels.back().size) return {};
  PyObject* number = PyLong_FromSize_t(levels.size());
  Shut(s);
  return number;
}

// Reads the arguments (a tensor, the level of a derivative) and gives the level. It gives nothing for other arguments,
// and -1 with an exception.
std::optional<int> TensorAndLevel(Session& s, PyObject* const* args, Py_ssize_t n) {
  if (n != 2 || !IsTensor(args[0]) || !s.options().derivatives) return {};
  const long level = PyLong_AsLong(args[1]);
  if (PyErr_Occurred()) return -1;
  const auto& levels = s.vmap.levels;
  if (level < 1 || level > static_cast<long>(levels.size()) || levels[level - 1].size) return {};
  return static_cast<int>(level);
}

Answered Wrap(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  const auto level = TensorAndLevel(s, args, n);
  if (!level) return {};
  if (*level < 0) return nullptr;
  const TensorMeta& m = s.meta(AsTensor(Plain(s, args[0]))->id);
  if (m.framework != Framework::kTorch || IsComplex(m.dtype)) return {};
  PyObject* o = Alias(s, args[0]);
  if (o) s.vmap.wrapped[AsTensor(o)->id] = {args[0], *level, false};
  s.Keep(Py_NewRef(args[0]));
  return Py_XNewRef(o);
}

Answered Unwrap(Session& s, Callee, PyObject* const* args, Py_ssize_t n) {
  const auto level = TensorAndLevel(s, args, n);
  if (!level) return {};
  return *level < 0 ? nullptr : Unwrapped(s, args[0], *level);
}

constexpr StateFunction kFunctions[] = {
    {"set_inplace_requires_grad_allowed", AllowInPlace},
    {"get_inplace_requires_grad_allowed", AllowsInPlace},
    {"_grad_increment_nesting", OpenLevel},
    {"_grad_decrement_nesting", CloseLevel},
    {"_jvp_increment_nesting", OpenForward},
    {"_jvp_decrement_nesting", CloseLevel},
    {"_enter_dual_level", EnterDual},
    {"_exit_dual_level", ExitDual},
    {"_set_fwd_grad_enabled", SetForward},
    {"_make_dual", MakeDual},
    {"_unpack_dual", UnpackDual},
    {"_wrap_for_grad", Wrap},
    {"_unwrap_for_grad", Unwrap},
};

}  // namespace

std::span<const StateFunction> GradientFunctions() {
  return kFunctions;
}

bool WantsGradient(Session& s, PyObject* proxy) {
  if (TapeOf(s) && TapeOf(s)->Tracked(proxy)) return true;
  const Vmap::Batched* b = BatchedOf(s, proxy);
  if (b && !b->tracks) return false;
  return s.meta(AsTensor(Plain(s, proxy))->id).requires_grad;
}

PyObject* TrackLeaf(Session& s, PyObject* proxy, bool on) {
  if (s.modes.now.inference || s.in_custom || s.later || s.vmap.open()) return nullptr;
  try {
    s.lowering().Track(AsTensor(proxy)->id, on);
    return Py_NewRef(proxy);
  } catch (const surface::Decline&) {
    return nullptr;
  }
}

PyObject* MakeLeaf(Session& s, PyObject* proxy) {
  const TraceId id = AsTensor(proxy)->id;
  // The object outside must become one, too, also where it stands for another tensor by now (t.detach_()).
  if (s.trace().tensors[s.pending().Original(id)].input >= 0) return nullptr;
  if (!s.options().derivatives) return TrackLeaf(s, proxy, true);
  const TensorMeta& m = s.meta(id);
  const auto wrapped = s.vmap.wrapped.find(id);
  const bool inside = wrapped != s.vmap.wrapped.end();
  if (m.framework != Framework::kTorch || !IsFloat(m.dtype) || s.modes.now.inference || s.in_custom) return nullptr;
  if (inside != !s.vmap.levels.empty() || (inside && !s.vmap.inplace_allowed)) return nullptr;
  if (inside && wrapped->second.leaf) return Py_NewRef(proxy);
  if (inside && wrapped->second.level != static_cast<int>(s.vmap.levels.size())) return nullptr;
  if (!inside && s.lowering().IsHidden(id)) return nullptr;
  for (const TraceTensor& t : s.trace().tensors)  // views, which have gradients with their base
    if (!inside && t.id != id && t.base == id) return nullptr;
  PyObject* leaf = LeafAt(s, proxy, s.vmap.levels.size());
  if (!leaf) return nullptr;
  // The object is another tensor of the program from now on.
  AsTensor(proxy)->id = AsTensor(leaf)->id;
  if (inside) {
    Vmap::Wrapped as = s.vmap.wrapped.at(id);
    as.leaf = true;
    s.vmap.wrapped.insert_or_assign(AsTensor(leaf)->id, as);
  }
  return Py_NewRef(proxy);
}

PyObject* GradientsOf(Session& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr const char* kNames[] = {"outputs",      "inputs",           "grad_outputs",
                                           "retain_graph", "create_graph",     "only_inputs",
                                           "allow_unused", "is_grads_batched", "materialize_grads"};
  enum { kOutputs, kInputs, kSeeds, kRetain, kCreate, kOnly, kUnused, kBatched, kMaterialize, kCount };
  PyObject* given[kCount] = {};
  if (nargs > kCount) return Refuse(s, "an unknown form");
  for (Py_ssize_t i = 0; i < nargs; ++i) given[i] = s.Resolve(args[i]);
  for (Py_ssize_t k = 0; kwnames && k < PyTuple_GET_SIZE(kwnames); ++k) {
    int at = 0;
    while (at < kCount && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, k), kNames[at])) ++at;
    if (at == kCount) return Refuse(s, "an unknown form");
    given[at] = s.Resolve(args[nargs + k]);
  }
  Ref lists[kCount];  // torch makes tuples of other things that have tensors, net.parameters() say
  for (int at : {kOutputs, kInputs, kSeeds}) {
    PyObject* o = given[at];
    if (!o || IsTensor(o) || PyTuple_Check(o) || PyList_CheckExact(o) || PyDict_Check(o) || !Py_TYPE(o)->tp_iter)
      continue;
    lists[at] = Ref(CurrentSemantics()->Call(reinterpret_cast<PyObject*>(&PyTuple_Type), &o, 1, nullptr));
    if (!lists[at]) return nullptr;
    given[at] = lists[at].get();
  }
  auto flag = [&](int at) { return given[at] == Py_True; };
  for (int at : {kRetain, kCreate, kOnly, kUnused, kBatched, kMaterialize})
    if (given[at] && given[at] != Py_None && !PyBool_Check(given[at])) return Refuse(s, "an unknown form");
  Problem p{.create = flag(kCreate),
            .retain = given[kRetain] && given[kRetain] != Py_None ? flag(kRetain) : flag(kCreate),
            .zeros = flag(kMaterialize)};
  if (AskedByTorchFunc()) p.retain = p.zeros = true;  // each level has records of its own
  if (!given[kOutputs] || !given[kInputs] || flag(kBatched) || given[kOnly] == Py_False || s.modes.now.inference ||
      s.in_custom)
    return Refuse(s, "an unknown form");
  if (!Tensors(s, given[kOutputs], false, &p.outputs) || !Tensors(s, given[kInputs], false, &p.inputs) ||
      (given[kSeeds] && given[kSeeds] != Py_None && !Tensors(s, given[kSeeds], true, &p.seeds)))
    return Refuse(s, "an unknown form");
  if (p.seeds.empty()) p.seeds.resize(p.outputs.size());
  if (p.seeds.size() != p.outputs.size() || p.outputs.empty() || p.inputs.empty()) return Refuse(s, "an unknown form");
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    const shape::Ints sizes = s.meta(AsTensor(p.outputs[i])->id).sizes;
    if (!WantsGradient(s, p.outputs[i])) return Refuse(s, "of a tensor without gradients");
    if (p.seeds[i]) {
      const shape::Ints seed = s.meta(AsTensor(p.seeds[i])->id).sizes;
      bool fits = seed.size() == sizes.size();
      for (size_t d = 0; fits && d < sizes.size(); ++d) fits = s.env().Eq(sizes[d], seed[d]);
      if (!fits) return Refuse(s, "a gradient of another shape");
    } else {
      for (shape::Int d : sizes)
        if (!s.env().Eq(d, 1)) return Refuse(s, "of more than a number");
    }
  }
  for (PyObject* o : p.inputs)
    if (!WantsGradient(s, o)) return Refuse(s, "by a tensor without gradients");
  if (HooksWait(s)) return Refuse(s, "of tensors with hooks that wait for the end of the graph");
  Objects grads;
  if (!Solve(s, p, &grads)) return nullptr;
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(grads.size())));
  for (size_t i = 0; tuple && i < grads.size(); ++i) {
    PyObject* g = grads[i];
    if (!g && flag(kMaterialize)) g = Made(s, callees::kZerosLike, {p.inputs[i]});
    if (!g && s.broken()) return nullptr;
    if (!g && !flag(kUnused) && !flag(kMaterialize)) return Refuse(s, "by a tensor that was not used");
    PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(g ? g : Py_None));
  }
  return s.MarkFresh(tuple.release());
}

}  // namespace framejit::capture
