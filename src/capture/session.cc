// The session: where objects come from, and the guards that follow from looking at them. See session.h.
#include "capture/session.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "bytecode/code.h"
#include "bytecode/lines.h"
#include "capture/builtins.h"
#include "capture/checkpoint.h"
#include "capture/class_attributes.h"
#include "capture/identity.h"
#include "capture/late_reads.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/wrappers/overrides.h"
#include "capture/wrappers/wrappers.h"
#include "graph/arguments.h"
#include "guard/program.h"
#include "guard/source.h"
#include "shape/typical.h"
#include "tensor/autograd.h"
#include "tensor/import.h"
#include "tensor/numpy_api.h"
#include "tensor/ones.h"

namespace framejit::capture {
namespace {

thread_local Session* current = nullptr;

std::string Text(PyObject* o) {
  Ref s(PyObject_Str(o));
  const char* c = s ? PyUnicode_AsUTF8(s.get()) : nullptr;
  if (!c) PyErr_Clear();
  return c ? c : "?";
}

}  // namespace

bool IsPrimitive(PyObject* o) {
  PyTypeObject* t = Py_TYPE(o);
  return t == &PyLong_Type || t == &PyUnicode_Type || t == &PyFloat_Type || t == &PyBool_Type || o == Py_None ||
         t == &PyBytes_Type || t == &PyComplex_Type || o == Py_Ellipsis || o == Py_NotImplemented || PyCode_Check(o) ||
         t == &SymIntType || t == &SymFloatType;
}

// What makes two sizes equal to who asks for them: themselves, or, where that equality says nothing of what either is
// computed of (`n // 8 == m // 8`), the symbols in them.
static std::vector<std::pair<shape::Int, shape::Int>> MakesEqual(const shape::Env& env, shape::Int a, shape::Int b) {
  const auto enough = [&](const std::vector<std::pair<shape::Int, shape::Int>>& equal) {
    shape::Env assumed = env;
    for (const auto& [x, y] : equal) assumed.Eq(x, y);
    return assumed.Simplify(a) == assumed.Simplify(b);
  };
  std::vector<std::pair<shape::Int, shape::Int>> symbols;
  if (enough({{a, b}})) return {{a, b}};
  a.ForEachSymbol([&](uint32_t i) {
    b.ForEachSymbol([&](uint32_t j) {
      const shape::Int x = shape::Int::Symbol(i), y = shape::Int::Symbol(j);
      if (i != j && !env.AtRun(x) && !env.AtRun(y) && env.Hint(x) == env.Hint(y)) symbols.emplace_back(x, y);
    });
  });
  if (enough(symbols)) return symbols;
  return {{a, b}};
}

// Of a call that the framework refuses, or that follows no rule, for other sizes than those of now: which of its sizes
// are equal to another one, or to a number, and must be, since it takes any that keep to that. Of what is equal only by
// chance nothing is said.
static std::vector<std::pair<shape::Int, shape::Int>> DemandedEqual(const Call& call,
                                                                    const std::vector<TensorMeta>& operands,
                                                                    const shape::Env& env,
                                                                    const std::vector<PyObject*>& constants) {
  using Pairs = std::vector<std::pair<shape::Int, shape::Int>>;
  shape::Ints sizes;
  const auto note = [&](shape::Int size) {
    size = env.Simplify(size);
    if (!env.AtRun(size) && std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
  };
  for (const TensorMeta& m : operands) std::for_each(m.sizes.begin(), m.sizes.end(), note);
  Call copy = call;
  EachArg(copy, [&](Arg& a) {
    if (a.is(Arg::Kind::kInt)) note(a.i);
  });
  Pairs pairs;
  for (size_t i = 0; i < sizes.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (!(sizes[i].is_const() && sizes[j].is_const()) && env.Hint(sizes[i]) == env.Hint(sizes[j]))
        for (const auto& pair : MakesEqual(env, sizes[j], sizes[i]))
          if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) pairs.push_back(pair);
  const auto enough = [&](const Pairs& equal) {
    shape::Env assumed = env;
    for (const auto& [a, b] : equal) assumed.Eq(a, b);
    Call asked = call;
    tensor::Refusal why;
    const bool found = tensor::InferSymbolic(asked, operands, assumed, constants, &why).has_value();
    if (!found) PyErr_Clear();
    return found;
  };
  if (pairs.empty() || !enough(pairs)) return {};
  // Fewest first: where three are equal, two equalities imply the third, which may be all that is demanded.
  for (const auto& pair : pairs)
    if (enough({pair})) return {pair};
  for (size_t i = 0; i < pairs.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (enough({pairs[j], pairs[i]})) return {pairs[j], pairs[i]};
  for (size_t i = pairs.size(); i-- > 0;) {
    Pairs fewer = pairs;
    fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(i));
    if (enough(fewer)) pairs = std::move(fewer);
  }
  return pairs;
}

// What a call gives, of symbolic sizes. That one is 1 is asked for only where it means something else to the call than
// any other size.
static std::optional<Inferred> InferOfAnySize(Call& call, const std::vector<TensorMeta>& operands, shape::Env& env,
                                              const std::vector<PyObject*>& constants, tensor::Refusal* why) {
  auto found = tensor::InferSymbolic(call, operands, env, constants, why);
  if (!found) {
    PyErr_Clear();
    const auto equal = DemandedEqual(call, operands, env, constants);
    for (const auto& [a, b] : equal) env.Eq(a, b);
    if (!equal.empty()) found = tensor::InferSymbolic(call, operands, env, constants, why);
    if (!found) found = tensor::InferLikeFirst(call, operands, env, constants, why);
  }
  bool asked = false;
  const auto ask = [&](shape::Int size) {
    if (!size.is_const() && !env.AtRun(size)) asked = true, env.Eq(size, 1);
  };
  if (!found) {
    for (const TensorMeta& m : operands) std::for_each(m.sizes.begin(), m.sizes.end(), ask);
  } else {
    const tensor::Ones ones = tensor::OnesMatter(*found, call, operands, env, constants);
    std::for_each(ones.sizes.begin(), ones.sizes.end(), ask);
    for (shape::Int size : ones.strides) {
      if (env.Hint(size) > 1)
        shape::TakeForGranted(size);
      else
        ask(size);
    }
  }
  return asked ? tensor::InferSymbolic(call, operands, env, constants, why) : found;
}

PyObject* CaptureBreakType() {
  static PyObject* type = PyErr_NewException("framejit._CaptureBreak", PyExc_BaseException, nullptr);
  return type;
}

Session* Session::Current() {
  return current;
}

Session::Session(FjFrame* root, CaptureOptions options) : root_(root), options_(std::move(options)), outer_(current) {
  guards_ = std::make_unique<guard::GuardBuilder>();
  guards_->SetWhere([this] { return Where(); });
  env_.set_location_provider([this] { return guard::Text(Where()); });
  numbers_ = std::make_unique<Numbers>(env_, graph_, *guards_);
  lowering_ = std::make_unique<surface::Lowering>(
      trace_, graph_, env_,
      [this](Call& call, const std::vector<TensorMeta>& operands, std::string* reason) -> std::optional<Inferred> {
        tensor::Refusal why;
        SuspendScope off;
        if (auto sized = data_sizes_.Infer(call, operands)) return sized;
        auto r = tensor::InferByFramework(call, operands, constants_, &why);
        if (!r && why.symbolic) r = InferOfAnySize(call, operands, env_, constants_, &why);
        if (!r && PyErr_Occurred()) PyErr_Clear();
        if (!r) *reason = std::move(why.text);
        return r;
      },
      [this](const Call& call, const std::vector<TensorMeta>& operands) {
        SuspendScope off;
        Call now = call;  // sizes decide nothing here
        std::vector<TensorMeta> metas = operands;
        EachArg(now, [&](Arg& a) {
          if (a.is(Arg::Kind::kInt)) a.i = a.i.Eval(env_.hints());
        });
        for (TensorMeta& m : metas)
          for (shape::IntList* all : {&m.sizes, &m.strides})
            all->Each([&](shape::Int i) { return shape::Int(i.Eval(env_.hints())); });
        return tensor::WithoutGradient(now, metas, constants_);
      });
  current = this;
}

Session::~Session() {
  modes.numpy.Leave();
  current = outer_;
  for (PyObject* o : constants_) Py_DECREF(o);
}

guard::Line Session::Where() const {
  PyFrameObject* f = PyEval_GetFrame();
  if (!f) return {};
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
  guard::Line& line = lines_[{code.get(), PyFrame_GetLasti(f)}];
  if (!line) {
    lines_kept_.push_back(code);
    line = std::make_shared<std::string>(
        Text(reinterpret_cast<PyCodeObject*>(code.get())->co_filename) + ":" +
        std::to_string(bytecode::LineOf(reinterpret_cast<PyCodeObject*>(code.get()), PyFrame_GetLasti(f))));
  }
  return line;
}

std::nullptr_t Session::Break(BreakId id, const std::string& detail) {
  if (!broken_) {
    broken_ = true;
    reason_.id = id;
    reason_.detail = detail;
    if (PyErr_Occurred()) PyErr_Clear();
    if (PyFrameObject* f = PyEval_GetFrame()) {
      Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(f)));
      auto* co = reinterpret_cast<PyCodeObject*>(code.get());
      reason_.file = Text(co->co_filename);
      reason_.function = Text(co->co_qualname);
      reason_.line = PyFrame_GetLineNumber(f);
      int line, end_line, column, end_column;
      if (PyCode_Addr2Location(co, PyFrame_GetLasti(f), &line, &column, &end_line, &end_column)) {
        reason_.column = column;
        reason_.end_column = end_line == line ? end_column : 0;
      }
    }
  }
  PyErr_SetNone(CaptureBreakType());
  return nullptr;
}

void Session::Abandon() {
  modes.numpy.Leave();
  origins_.Clear();
  pending_.Clear();
  modes.context_vars.clear();
  generators_.clear();
  std::vector<Ref> dying = std::move(keep_);
  dying.clear();
  PyErr_Clear();
}

// Does a generator that is dropped where it waits run code: its own, inside a `try` or a `with`, or that of something
// else than a generator of `made`, to which it delegates and which it closes then?
bool EndRunsCode(PyObject* generator, const std::vector<PyObject*>& made) {
  Ref from(PyObject_GetAttrString(generator, "gi_yieldfrom"));
  if (!from) return PyErr_Clear(), true;
  if (PyGen_CheckExact(from.get()) ? std::find(made.begin(), made.end(), from.get()) == made.end()
                                   : PyObject_HasAttrString(from.get(), "close"))
    return true;
  Ref held(PyObject_GetAttrString(generator, "gi_frame"));
  if (!held || held.get() == Py_None) return PyErr_Clear(), false;
  auto* frame = reinterpret_cast<PyFrameObject*>(held.get());
  Ref code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const bytecode::Code* decoded = bytecode::Code::Of(reinterpret_cast<PyCodeObject*>(code.get()));
  int at = PyFrame_GetLasti(frame) / 2;
  if (!decoded) return PyErr_Clear(), true;
  const bytecode::Handler* handler = at < 0 ? nullptr : decoded->FindHandler(at);
  // From 3.12 on a delegating `yield` lies in a handler that takes the delegate away and raises what it was given
  // again, and all of a generator lies in one that only turns StopIteration into RuntimeError.
  while (handler && decoded->At(handler->target).op == bytecode::Op::kCleanupThrow)
    handler = decoded->FindHandler(handler->target);
  return handler && decoded->At(handler->target).op != bytecode::Op::kIntrinsic1;
}

bool Session::HoldsSuspendedGenerator() const {
  return std::any_of(generators_.begin(), generators_.end(),
                     [this](PyObject* generator) { return EndRunsCode(generator, generators_); });
}

Origin* Session::Find(PyObject* o) {
  Origin* g = origins_.Find(o);
  if (g && g->source && InCheckpoint()) guards_->Mark(g->source);
  return g;
}

PyObject* Session::MarkFresh(PyObject* o) {
  if (o && !IsPrimitive(o) && !IsTensor(o)) {
    if (origins_.Enter(o, {}).second) {
      if (PyGen_CheckExact(o)) generators_.push_back(o);
      Py_INCREF(o);
      keep_.emplace_back(o);
    }
  }
  return o;
}

const Source* Session::SourceOf(PyObject* o) {
  Origin* g = Find(o);
  if (g) return g->kind == Origin::kFresh ? nullptr : g->source;
  if (IsPrimitive(o)) return nullptr;
  if (!IsConstantKind(o)) return nullptr;
  Origin n;
  n.kind = Origin::kConst;
  n.source = guards_->Const(o);
  origins_.Enter(o, n);
  Py_INCREF(o);
  keep_.emplace_back(o);
  return n.source;
}

PyObject* Session::Resolve(PyObject* o) {
  if (IsLazy(o)) {
    auto* lazy = reinterpret_cast<Lazy*>(o);
    if (!lazy->resolved) lazy->resolved = FromOutside(lazy->value, lazy->source, true);
    o = lazy->resolved;
  }
  if (pending_.lists().empty() || !o || !IsListOrDeque(o)) return o;
  const Origin* g = Find(o);
  if (!g || !g->written) return o;
  if (InLookup()) return Break(BreakId::kSideEffect, "a list is written to while objects are looked up");
  pending_.Touch();
  return g->written;
}

bool Session::ResolveAll(PyObject** items, Py_ssize_t n) {
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!items[i] || !(IsLazy(items[i]) || IsListOrDeque(items[i]))) continue;
    PyObject* r = Resolve(items[i]);
    if (!r) return false;
    items[i] = r;
  }
  return true;
}

// Modules of C, of the framework and of Python itself hold names that stay what they are.
bool OfSteadyModule(PyObject* dict) {
  PyObject* name = dict && PyDict_Check(dict) ? PyDict_GetItemString(dict, "__name__") : nullptr;
  if (!name || !PyUnicode_Check(name)) return false;
  PyObject* of_c = PySys_GetObject("builtin_module_names");
  if (of_c && PySequence_Contains(of_c, name) > 0) return !PyDict_GetItemString(dict, "__file__");
  const std::string text = Text(name);
  for (const char* package : {"torch", "numpy", "cupy", "math", "cmath"})
    if (text == package || text.starts_with(std::string(package) + ".")) return true;
  return false;
}

// Is it among the globals of a module?
bool IsGlobal(const Source* s) {
  if (s->kind != SourceKind::kDictItem || s->base->kind != SourceKind::kConst) return false;
  return PyDict_CheckExact(s->base->object) && PyDict_GetItemString(s->base->object, "__builtins__");
}

// A class of the program's, to which it may give other functions.
bool IsSteady(PyTypeObject* t) {
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE)) return true;
  const std::string_view module = ModuleOf(t);
  const std::string_view top = module.substr(0, module.find('.'));
  return top == "torch" || top == "numpy" || top == "framejit" || top == "abc" || top == "enum";
}

void Session::NoteAbsent(const Source* s) {
  guards_->Absent(s);
  if (later && IsGlobal(s) && !OfSteadyModule(s->base->object)) late.emplace(s, nullptr);
}

bool Session::ReadLater(PyObject* o, const Source* s) {
  // What torch.library.custom_op makes is as good as a function.
  const bool function = IsConstantKind(o) || !strcmp(Py_TYPE(o)->tp_name, "CustomOpDef");
  if (IsGlobal(s) && !OfSteadyModule(s->base->object) && (function || IsPrimitive(o))) {
    keep_.push_back(Borrow(o));
    late.emplace(s, o);
    return true;
  }
  if (function || PyCell_Check(o)) return true;
  switch (s->kind) {
    case SourceKind::kInstanceDict:
    case SourceKind::kFuncDict:
    case SourceKind::kDefaults:
    case SourceKind::kKwDefaults: return true;
    case SourceKind::kItem:
      if (s->base->kind == SourceKind::kDefaults) return true;
      break;
    case SourceKind::kDictItem:
      if (s->base->kind == SourceKind::kKwDefaults) return true;
      if (s->base->kind == SourceKind::kConst && OfSteadyModule(s->base->object)) return true;
      break;
    case SourceKind::kConst:
      if (PyDict_Check(o) && PyDict_GetItemString(o, "__builtins__")) return true;  // globals: their items are asked
      break;
    default: break;
  }
  return Break(BreakId::kAutogradCall,
               "a torch.autograd.Function: its backward reads what may have changed until then: " + s->str()),
         false;
}

// A function that may be made anew for each call: one in the frame, and what a call has made (a lambda, a closure) and
// put into a container, an object or a variable of another closure. It is known by its code, defaults and variables.
bool MadeAnew(PyObject* o, const Source* s) {
  if (!PyFunction_Check(o)) return false;
  if (s->kind == SourceKind::kSlot) return true;
  if (s->kind == SourceKind::kConst || !s->base || s->base->kind == SourceKind::kConst) return false;
  const std::string name = Text(reinterpret_cast<PyFunctionObject*>(o)->func_qualname);
  return name.find("<locals>") != name.npos || name.ends_with("<lambda>");
}

// A not-a-number is equal as an object alone: where C code compares, it is asked where it comes from (Pin). One that is
// found in two places is that object in both.
static void NoteObject(guard::GuardBuilder& guards, Origins& origins, std::vector<Ref>& keep, PyObject* o,
                       const Source* s) {
  Origin from;
  from.kind = Origin::kOutside;
  from.source = s;
  const auto [known, added] = origins.Enter(o, from);
  if (added) keep.push_back(Borrow(o));
  if (added || !known->source || known->source == s) return;
  guards.Is(known->source, o);
  guards.Is(s, o);
}

bool IsTupleOfPrimitives(PyObject* o) {
  if (!PyTuple_CheckExact(o)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) {
    PyObject* x = PyTuple_GET_ITEM(o, i);
    if (!IsPrimitive(x) && !IsTupleOfPrimitives(x)) return false;
  }
  return true;
}

bool IsOneOfEquals(PyObject* o) {
  if (PyLong_CheckExact(o)) {
    int overflow = 0;
    const long value = PyLong_AsLongAndOverflow(o, &overflow);
    return overflow || value < -5 || value > 256;
  }
  if (PyUnicode_CheckExact(o)) return !PyUnicode_CHECK_INTERNED(o) && PyUnicode_GET_LENGTH(o) > 1;
  if (PyBytes_CheckExact(o)) return PyBytes_GET_SIZE(o) > 1;
  return PyFloat_CheckExact(o) || PyComplex_CheckExact(o);
}

// Where it goes out it is read there again.
void Session::NoteFound(PyObject* o, const Source* s) {
  const auto [first, added] = found_.try_emplace(o, s);
  if (added) return Keep(Py_NewRef(o));
  if (first->second == s) return;
  found_again_[o].push_back(s);
  if (pinned_.contains(o)) PinFound(o);
}

void Session::PinFound(PyObject* o) {
  const auto at = found_.find(o);
  if (at == found_.end()) return;
  pinned_.insert(o);
  const auto again = found_again_.find(o);
  if (again == found_again_.end()) return;
  for (const Source* s : again->second) {
    guard::Row row{guard::Kind::kSameObject, s, at->second};
    row.here = true;
    guards_->Add(std::move(row));
  }
  found_again_.erase(again);
}

// Are the bounds of a slice ints and None?
static bool HasPlainBounds(PyObject* o) {
  auto* s = reinterpret_cast<PySliceObject*>(o);
  const auto plain = [](PyObject* p) { return p == Py_None || PyLong_CheckExact(p); };
  return plain(s->start) && plain(s->stop) && plain(s->step);
}

// A slice by value, bound by bound: those that change are symbols. Null without an error: none is.
static PyObject* SliceSeen(Session& s, std::unordered_map<PyObject*, const Source*>& found, PyObject* o,
                           const Source* source, bool used) {
  if (const Source* known = s.WhereFound(o)) {
    if (known != source) return s.Break(BreakId::kUnknownOrigin, "a slice in two places whose bounds change");
    for (const auto& [shown, at] : found)
      if (at == source && shown != o && PySlice_Check(shown)) return Py_NewRef(shown);
  }
  static PyObject* const names[] = {Interned("start"), Interned("stop"), Interned("step")};
  auto* slice = reinterpret_cast<PySliceObject*>(o);
  PyObject* const bounds[] = {slice->start, slice->stop, slice->step};
  Ref seen[3];
  s.guards().TypeIs(source, &PySlice_Type);
  for (int i = 0; i < 3; ++i) {
    seen[i] = Ref(s.FromOutside(bounds[i], s.guards().Child(SourceKind::kMember, source, 0, names[i]), used));
    if (!seen[i]) return nullptr;
  }
  if (std::equal(seen, seen + 3, bounds, [](const Ref& a, PyObject* b) { return a.get() == b; })) return nullptr;
  Ref shown(PySlice_New(seen[0].get(), seen[1].get(), seen[2].get()));
  if (!shown) return nullptr;
  for (PyObject* one : {o, shown.get()}) {  // where it goes out it is that object
    found[one] = source;
    s.Keep(Py_NewRef(one));
  }
  return s.MarkFresh(shown.release());
}

// What forward of a custom function reads among globals, and a replay reads there again. It gives true.
static bool NoteForward(Session& s, PyObject* o, const Source* source) {
  if (!s.in_custom || s.later || !IsGlobal(source) || OfSteadyModule(source->base->object)) return true;
  s.Keep(Py_NewRef(o));
  s.late.emplace(source, o);
  return true;
}

PyObject* Session::FromOutside(PyObject* o, const Source* s, bool used) {
  if (in_custom && IsPrimitive(o)) NoteForwardInCheckpoint(*this, s);
  if (later ? !ReadLater(o, s) : IsConstantKind(o) && !NoteForward(*this, o, s)) return nullptr;
  if (IsPrimitive(o) || IsTupleOfPrimitives(o)) {
    if (PyTuple_CheckExact(o)) {  // by value, item by item: tuples are rebuilt by callers
      Ref seen(PyTuple_New(PyTuple_GET_SIZE(o)));
      bool symbols = false;
      if (!seen) return nullptr;
      guards_->TypeIs(s, &PyTuple_Type);
      guard::Row row{guard::Kind::kLength, s};
      row.number = PyTuple_GET_SIZE(o);
      row.here = true;
      guards_->Add(std::move(row));
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) {
        PyObject* item = PyTuple_GET_ITEM(o, i);
        PyObject* x = FromOutside(item, guards_->Child(SourceKind::kItem, s, static_cast<int>(i)), used);
        if (!x) return nullptr;
        PyTuple_SET_ITEM(seen.get(), i, x);
        symbols |= x != item;
      }
      PyObject* as_seen = symbols ? seen.get() : o;
      if (s->kind != SourceKind::kConst) NoteFound(as_seen, s);
      if (symbols) return MarkFresh(seen.release());
    } else {
      if (PyObject* symbol = used && !late.contains(s) ? SymbolOf(o, s) : nullptr) return symbol;
      if (broken_) return nullptr;
      NoteForward(*this, o, s);
      guard::Row row{guard::Kind::kEqual, s};
      row.object = o;
      row.here = true;
      guards_->Add(std::move(row));
      if (guard::IsNan(o))
        NoteObject(*guards_, origins_, keep_, o, s);
      else if (IsOneOfEquals(o) && s->kind != SourceKind::kConst && !late.contains(s))
        NoteFound(o, s);
    }
    return Py_NewRef(o);
  }
  if (Origin* g = Find(o)) {
    if (g->kind == Origin::kFresh) return Break(BreakId::kUnknownOrigin, "an object made here turned up outside");
    if (g->source != s && g->kind == Origin::kOutside) {
      guard::Row row{guard::Kind::kSameObject, s, g->source};
      row.here = true;
      guards_->Add(std::move(row));
    } else if (g->kind == Origin::kConst && s->kind != SourceKind::kConst) {
      guards_->Is(s, o);
    }
    PyObject* r = g->proxy ? g->proxy : o;
    return Py_NewRef(r);
  }
  if (tensor::IsObjectArray(o)) return ObjectsInput(o, s);
  tensor::Class c = tensor::Classify(o);
  const bool wrapper = c == tensor::Class::kTorchSubclass;
  if (wrapper && !NoteWrapper(*this, o, s)) return nullptr;
  const bool number = c == tensor::Class::kNumpyScalar && IsNumpyNumber(o);
  if (c != tensor::Class::kNone && !number && !wrapper) return TensorInput(o, s, c);
  // The frame has made a bound builtin (`log.append`) anew for this call. One that is kept somewhere is a constant, and
  // so is its object.
  if (Ref bound = UnbindBuiltin(o).self; bound && !PyType_Check(bound.get())) {
    if (s->kind == SourceKind::kSlot)
      return Break(BreakId::kUnknownOrigin, std::string("a bound method of a ") + Py_TYPE(bound.get())->tp_name);
    Ref seen(FromOutside(bound.get(), guards_->Const(bound.get())));
    if (!seen) return nullptr;
  }
  // It is read by C code without another question.
  if (PySlice_Check(o) && !IsValue(o)) return Break(BreakId::kUnknownOrigin, "a slice whose bounds are no numbers");
  const bool apart = PySlice_Check(o) && s->kind != SourceKind::kConst && !later && HasPlainBounds(o);
  if (apart)
    if (PyObject* shown = SliceSeen(*this, found_, o, s, used); shown || broken_ || PyErr_Occurred()) return shown;
  Origin origin;
  if (!MadeAnew(o, s) && IsConstantKind(o)) {
    if (s->kind != SourceKind::kConst) guards_->Is(s, o);
    origin.kind = Origin::kConst;
    origin.source = guards_->Const(o);
  } else {
    guards_->TypeIs(s, Py_TYPE(o));
    origin.kind = Origin::kOutside;
    origin.source = s;
    if (number || (IsValue(o) && !apart)) {
      guard::Row row{guard::Kind::kEqual, s};
      row.object = o;
      row.here = true;
      guards_->Add(std::move(row));
    }
  }
  origins_.Enter(o, origin);
  keep_.emplace_back(Py_NewRef(o));
  return Py_NewRef(o);
}

PyObject* Session::Adopt(PyObject* o) {
  if (!o) return nullptr;
  if ((PyFloat_CheckExact(o) || PyComplex_CheckExact(o)) && Py_REFCNT(o) == 1) {
    // Made just now, as each run makes it: nan is found, and equal in containers, by what object it is.
    if (origins_.Enter(o, {}).second) keep_.emplace_back(Py_NewRef(o));
    return o;
  }
  if (IsPrimitive(o) || IsTensor(o)) return o;
  if (IsLazy(o)) {
    PyObject* r = Resolve(o);
    Py_XINCREF(r);
    Py_DECREF(o);
    return r;
  }
  if (Origin* g = Find(o)) {
    PyObject* seen = g->proxy ? g->proxy : g->real ? g->real : o;
    Py_INCREF(seen);
    Py_DECREF(o);
    return seen;
  }
  if (tensor::IsObjectArray(o)) return AdoptObjects(o);
  if (tensor::Classify(o) != tensor::Class::kNone && !IsNumpyNumber(o)) {
    Py_DECREF(o);
    return Break(BreakId::kUnknownOrigin, "a tensor that framejit did not see being made");
  }
  if (IsConstantKind(o) && !(PyFunction_Check(o) || PyCFunction_Check(o))) {
    SourceOf(o);
    return o;
  }
  return MarkFresh(o);
}

PyObject* Session::AdoptHeld(PyObject* o) {
  if (!o || Py_REFCNT(o) == 1 || IsPrimitive(o) || IsTensor(o) || IsLazy(o) || Find(o) || PyTuple_CheckExact(o))
    return Adopt(o);
  Ref held(o);
  return FromOutside(o, guards_->Const(o));
}

namespace {

PyObject* RegistrationCounter() {  // kept for ever
  static PyObject* counter = nullptr;
  if (!counter) {
    SuspendScope off;
    Ref module(tensor::Import("_abc"));
    counter = module ? PyObject_GetAttrString(module.get(), "get_cache_token") : nullptr;
  }
  return counter;
}

}  // namespace

int64_t Session::Registrations() {
  Ref number(PyObject_CallNoArgs(RegistrationCounter()));
  return number ? PyLong_AsLongLong(number.get()) : -1;
}

bool Session::NoteAbstract() {
  PyObject* counter = RegistrationCounter();
  Ref number(counter ? PyObject_CallNoArgs(counter) : nullptr), nothing(PyTuple_New(0));
  if (!number || !nothing) return false;
  guards_->Equal(guards_->Child(SourceKind::kAnswer, guards_->Const(counter), 0, nothing.get()), number.get());
  registrations = PyLong_AsLongLong(number.get());
  return true;
}

void Session::NoteLate(PyTypeObject* t) {
  PyObject* mro =
      (later || in_custom) && !IsSteady(t) && !IsFresh(reinterpret_cast<PyObject*>(t)) ? t->tp_mro : nullptr;
  for (Py_ssize_t i = 0; mro && i < PyTuple_GET_SIZE(mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(mro, i));
    if (!IsSteady(base)) late_classes.insert(base);
  }
}

bool Session::NoteType(PyTypeObject* t) {
  NoteLate(t);
  // Static builtin types cannot change.
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE)) return true;
  auto* o = reinterpret_cast<PyObject*>(t);
  if (t == type_noted_ || types_noted_.contains(t)) {
    if (InCheckpoint()) SourceOf(o);
    return true;
  }
  types_noted_.insert(type_noted_ = t);
  const Source* s = SourceOf(o);
  if (!s) return true;  // a class made during this capture
  guard::Row row{guard::Kind::kTypeVersion, s};
  row.object = o;
  guards_->Add(std::move(row));
  if (Py_TYPE(t)->tp_flags & Py_TPFLAGS_HEAPTYPE) guards_->TypeIs(s, Py_TYPE(t));  // K.__class__ = ...
  return true;
}

PyObject* Session::NoteLookup(PyTypeObject* t, PyObject* name) {
  NoteLate(t);
  PyObject* found = _PyType_Lookup(t, name);
  if (InCheckpoint()) SourceOf(reinterpret_cast<PyObject*>(t));
  if (!(t->tp_flags & Py_TPFLAGS_HEAPTYPE) || !lookups_noted_.insert({t, name}).second) return found;
  if (const Source* s = SourceOf(reinterpret_cast<PyObject*>(t))) {
    guard::Row row{guard::Kind::kTypeVersion, s};
    row.object = reinterpret_cast<PyObject*>(t);
    row.name = name;
    guards_->Add(std::move(row));
  }
  return found;
}

}  // namespace framejit::capture
