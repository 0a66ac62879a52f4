#include "capture/numbers/draws.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "capture/builtins.h"
#include "capture/numbers/number_slots.h"
#include "capture/override.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/types.h"
#include "surface/numpy_transforms.h"

namespace framejit::capture {
namespace {

// NumPy's generators draw from a bit generator of their own. Borrowed: the generator holds it. Null: there is none.
PyObject* BitsOf(PyObject* generator) {
  static PyObject* const name = PyUnicode_InternFromString("_bit_generator");
  Ref bits(PyObject_GetAttr(generator, name));
  if (!bits) PyErr_Clear();
  return bits.get();
}

// The class of C of which this one is or derives. Null: it draws nothing.
PyTypeObject* ClassOf(PyTypeObject* t) {
  while (t && !FactsOf(t).Has(TypeFacts::kDraws)) t = t->tp_base;
  return t;
}

// What in an object of C is its state: all of it behind the head, since draws change numbers there and no reference.
std::pair<char*, size_t> StateIn(PyObject* o) {
  PyTypeObject* type = ClassOf(Py_TYPE(o));
  return {reinterpret_cast<char*>(o) + sizeof(PyObject), (type ? type : Py_TYPE(o))->tp_basicsize - sizeof(PyObject)};
}

// A class of the library that draws, no class of the program's.
bool IsLibrarys(PyObject* type) {
  static tensor::Named numpys("numpy.random.RandomState"), pythons("random.Random");
  // To look for NumPy's would import it: there is no such class yet.
  const bool loaded = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy.random");
  return type == (loaded ? numpys.Get() : nullptr) || type == pythons.Get();
}

// Methods that draw or seed and do nothing else. Those that set a state are not among them, nor is `shuffle` (Arrange).
bool OnlyDraws(std::string_view name) {
  static constexpr std::string_view kNames[] = {"beta",
                                                "binomial",
                                                "chisquare",
                                                "choice",
                                                "dirichlet",
                                                "exponential",
                                                "f",
                                                "gamma",
                                                "geometric",
                                                "getrandbits",
                                                "gumbel",
                                                "hypergeometric",
                                                "integers",
                                                "laplace",
                                                "logistic",
                                                "lognormal",
                                                "logseries",
                                                "multinomial",
                                                "normal",
                                                "pareto",
                                                "permutation",
                                                "poisson",
                                                "power",
                                                "rand",
                                                "randint",
                                                "randn",
                                                "random",
                                                "random_sample",
                                                "rayleigh",
                                                "seed",
                                                "standard_cauchy",
                                                "standard_exponential",
                                                "standard_gamma",
                                                "standard_normal",
                                                "standard_t",
                                                "triangular",
                                                "uniform",
                                                "vonmises",
                                                "wald",
                                                "weibull",
                                                "zipf"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// What the object owns of others.
std::vector<Ref> ReferencesOf(PyObject* o) {
  std::vector<Ref> all;
  const auto note = [](PyObject* held, void* to) {
    static_cast<std::vector<Ref>*>(to)->push_back(Borrow(held));
    return 0;
  };
  if (PyTypeObject* type = ClassOf(Py_TYPE(o)) ? ClassOf(Py_TYPE(o)) : Py_TYPE(o); type->tp_traverse)
    type->tp_traverse(o, note, &all);
  return all;
}

// An argument that is the same in every run. New reference, null: it may be another one, or a Break.
PyObject* Fixed(Session& s, PyObject* o) {
  o = s.Resolve(o);
  if (!o) return nullptr;
  if (IsSymInt(o) || IsSymFloat(o)) return Concrete(o);
  if (IsPrimitive(o) || (IsConstantKind(o) && s.SourceOf(o))) return Py_NewRef(o);
  if (IsTensor(o)) {  // np.random.choice(np.arange(9), 3)
    const TensorMeta& m = s.meta(AsTensor(o)->id);
    return m.framework == Framework::kNumpy ? s.guessing().Known(AsTensor(o)->id, true).release() : nullptr;
  }
  const bool list = PyList_CheckExact(o);
  if ((!list && !PyTuple_Check(o)) || !s.NoteContents(o)) return nullptr;
  Ref all(list ? PyList_New(0) : PyTuple_New(PyTuple_GET_SIZE(o)));
  for (Py_ssize_t i = 0; all && i < PySequence_Fast_GET_SIZE(o); ++i) {
    Ref item(Fixed(s, PySequence_Fast_GET_ITEM(o, i)));
    if (!item) return nullptr;
    if (!list)
      PyTuple_SET_ITEM(all.get(), i, item.release());
    else if (PyList_Append(all.get(), item.get()) < 0)
      return nullptr;
  }
  return all.release();
}

}  // namespace

bool IsGenerator(PyObject* o) {
  PyTypeObject* type = ClassOf(Py_TYPE(o));
  if (!type) return false;
  const std::string_view name = type->tp_name;
  if (name == "_random.Random") return true;
  PyObject* bits = name.starts_with("numpy.random.") ? BitsOf(o) : nullptr;
  return bits && std::string_view(Py_TYPE(bits)->tp_name).starts_with("numpy.random._");
}

void GeneratorStates::Save(PyObject* generator) {
  const bool numpys = std::string_view(ClassOf(Py_TYPE(generator))->tp_name).starts_with("numpy.");
  for (PyObject* o : {generator, numpys ? BitsOf(generator) : nullptr}) {
    if (!o || std::any_of(parts_.begin(), parts_.end(), [&](const Part& p) { return p.object.get() == o; })) continue;
    const auto [at, size] = StateIn(o);
    parts_.push_back({Borrow(o), std::vector<char>(at, at + size), ReferencesOf(o)});
  }
}

void GeneratorStates::Restore() const {
  for (const Part& p : parts_) {
    const std::vector<Ref> now = ReferencesOf(p.object.get());
    std::memcpy(StateIn(p.object.get()).first, p.bytes.data(), p.bytes.size());
    for (const Ref& held : p.held) Py_INCREF(held.get());
    for (const Ref& held : now) Py_DECREF(held.get());
  }
}

PyObject* DrawProgram::Made::Call(const std::vector<Ref>& given, const std::vector<Ref>& drawn) const {
  if (of >= 0) {
    Ref one(args.empty() ? Borrow(drawn[of].get()) : Ref(PyObject_GetItem(drawn[of].get(), args[0].value.get())));
    if (one && function) return PyObject_CallOneArg(function.get(), one.get());
    return one ? PyObject_CallMethod(one.get(), "item", nullptr) : nullptr;
  }
  std::vector<PyObject*> raw;
  for (const Ref& a : given) raw.push_back(a.get());
  const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames.get()) : 0;
  return PyObject_Vectorcall(function.get(), raw.data(), raw.size() - keywords, kwnames.get());
}

// Another generator of the same type, which draws in the same way, or another number.
static bool Alike(PyObject* a, PyObject* b) {
  if (!Py_IS_TYPE(a, Py_TYPE(b))) return false;
  PyObject *x = IsPrimitive(a) ? nullptr : BitsOf(a), *y = x ? BitsOf(b) : nullptr;
  return !x || (y && Py_IS_TYPE(x, Py_TYPE(y)));
}

bool DrawProgram::Run(const guard::GuardSet& guards, PyObject* const* slots, GeneratorStates* before) const {
  std::vector<Ref> drawn;  // other threads may run meanwhile, and draw for the same segment
  for (const Made& d : draws_) {
    std::vector<Ref> given;
    for (const Given& a : d.args) {
      given.push_back(a.source      ? Ref(guards.Resolve(a.source, slots))
                      : a.drawn < 0 ? Borrow(a.value.get())
                                    : Borrow(drawn[a.drawn].get()));
      if (!given.back() || !Alike(given.back().get(), a.value.get())) return false;
    }
    if (d.draws) before->Save(given[0].get());
    drawn.emplace_back(d.Call(given, drawn));
    if (!drawn.back()) return false;
  }
  for (size_t i = 0; i < drawn.size(); ++i)
    PyList_SetItem(values_.get(), static_cast<Py_ssize_t>(i), drawn[i].release());
  return true;
}

bool DrawProgram::IsDrawn(const guard::Source* source) const {
  return values_ && source && source->base && source->base->kind == SourceKind::kConst &&
         source->base->object == values_.get();
}

// Where the number is found as it is. Null: it is computed.
static const Source* FoundAt(Session& s, PyObject* values, const SymInt* n) {
  if (n->source) return n->source;
  for (Py_ssize_t i = 0; values && i < PyList_GET_SIZE(values); ++i) {  // randint adds 0 to what is drawn
    const Source* drawn = s.guards().Child(SourceKind::kItem, s.guards().Const(values), static_cast<int>(i));
    if (s.numbers().Int(drawn) == n->expr) return drawn;
  }
  return nullptr;
}

bool DrawProgram::Give(Session& s, PyObject* o, Given* to) const {
  o = s.Resolve(o);
  if (!o) return false;
  to->source = IsSymInt(o) ? FoundAt(s, values_.get(), reinterpret_cast<SymInt*>(o)) : nullptr;
  if (to->source)
    to->value = Ref(PyLong_FromLongLong(s.env().Hint(reinterpret_cast<SymInt*>(o)->expr)));
  else
    to->value = Ref(Fixed(s, o));
  if (IsDrawn(to->source)) to->drawn = std::exchange(to->source, nullptr)->index;
  return bool(to->value);
}

void DrawProgram::Drop() const {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values_.get()); ++i)
    if (!IsPrimitive(PyList_GET_ITEM(values_.get(), i))) PyList_SetItem(values_.get(), i, Py_NewRef(Py_None));
}

PyObject* DrawProgram::Seen(Session& s, PyObject* value, const char* name) {
  auto at = static_cast<int>(PyList_GET_SIZE(values_.get()));
  if (PyList_Append(values_.get(), value) < 0) return nullptr;
  if (value == Py_None) Py_RETURN_NONE;
  const Source* source = s.guards().Child(SourceKind::kItem, s.guards().Const(values_.get()), at);
  if (PyFloat_CheckExact(value) && s.options().dynamic_floats)
    return NewSymFloat(&s, s.numbers().NewFloat(source, value, name));
  int overflow = 1;
  const int64_t number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
  if (!overflow) return s.SymIntObject(s.numbers().NewInt(source, number, name, INT64_MIN));
  const tensor::Class c = tensor::Classify(value);
  const bool array = c == tensor::Class::kNumpyArray || (c == tensor::Class::kNumpyScalar && !s.IsNumpyNumber(value));
  return array || IsGenerator(value) ? s.FromOutside(value, source) : s.Break(BreakId::kRandom, name);
}

// What puts the elements of an array that only a run knows in another order, or picks some. NumPy draws places along
// one axis, of which the size alone counts: the same ones as for that number. The graph moves the elements. New
// reference; null without an exception or a Break: it is no such call.
static PyObject* Arrange(Session& s, const char* name, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  const bool picks = !strcmp(name, "choice"), in_place = !strcmp(name, "shuffle");
  if (!(picks || in_place || !strcmp(name, "permutation")) || nargs < 2) return nullptr;
  const bool legacy = strstr(ClassOf(Py_TYPE(args[0]))->tp_name, "RandomState");
  PyObject* x = s.Resolve(args[1]);
  if (!x || !IsTensor(x)) return nullptr;
  const TensorMeta m = s.meta(AsTensor(x)->id);
  const auto rank = static_cast<Py_ssize_t>(m.sizes.size());
  const auto none = [](shape::Int n) { return n == shape::Int(0); };
  if (m.framework != Framework::kNumpy || !rank || std::any_of(m.sizes.begin(), m.sizes.end(), none)) return nullptr;
  const Py_ssize_t keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  Ref zero(PyLong_FromLong(0));
  PyObject* along = !picks && nargs == 3 ? args[2] : zero.get();
  for (Py_ssize_t i = 0; i < keywords; ++i)
    if (!PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "axis")) along = args[nargs + i];
  Ref fixed(Fixed(s, along));
  Py_ssize_t axis = fixed && PyLong_CheckExact(fixed.get()) ? PyLong_AsSsize_t(fixed.get()) : rank;
  if (axis < 0) axis += rank;
  const bool others = picks ? nargs > 5 : nargs > 3 || keywords > (along != zero.get() && nargs == 2);
  if (PyErr_Occurred() || others || axis < 0 || axis >= rank || (legacy && (axis || (picks && rank > 1))))
    return PyErr_Clear(), nullptr;
  auto* own =
      reinterpret_cast<PyObject*>(ClassOf(Py_TYPE(args[0])));  // a class of the program's may have another method
  Ref drawing(PyObject_GetAttrString(own, picks ? "choice" : "permutation"));
  Ref size(s.SymIntObject(m.sizes[axis]));
  if (!drawing || !size) return nullptr;
  std::vector<PyObject*> with(args, args + (picks ? nargs + keywords : 2));
  with[1] = size.get();
  Ref places(s.draws.Draw(s, drawing.get(), with.data(), picks ? nargs : 2, picks ? kwnames : nullptr));
  if (!places) return nullptr;
  static const Callee item("numpy.ndarray.__getitem__"), store("numpy.ndarray.__setitem__");
  Ref all(PySlice_New(nullptr, nullptr, nullptr)), key(axis ? PyTuple_New(axis + 1) : Py_NewRef(places.get()));
  if (!all || !key) return nullptr;
  for (Py_ssize_t i = 0; axis && i <= axis; ++i)
    PyTuple_SET_ITEM(key.get(), i, Py_NewRef(i < axis ? all.get() : places.get()));
  static const Callee take("numpy.take");
  PyObject *of[] = {x, key.get()}, *from[] = {x, places.get(), fixed.get()};
  Ref arranged(picks && rank > 1 ? s.CallFramework(take, from, 3, nullptr) : s.CallFramework(item, of, 2, nullptr));
  if (!arranged || !in_place) return arranged.release();
  PyObject* into[] = {x, Py_Ellipsis, arranged.get()};
  return s.CallFramework(store, into, 3, nullptr);
}

PyObject* DrawProgram::Draw(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs,
                            PyObject* kwnames) {
  Ref text(PyObject_GetAttrString(function, "__name__"));
  const char* name = text && PyUnicode_Check(text.get()) ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (!name) return PyErr_Clear(), s.Break(BreakId::kRandom);
  if (surface::OpenSample(s.trace()))
    return s.Break(BreakId::kRandom, "a draw in framejit.vmap, which all samples would share");
  if (s.kernels.draws()) return s.Break(BreakId::kSideEffect, "a draw behind an operator in Python that draws, too");
  PyObject* generator = args[0];
  // One that nobody has seen is part of a method that is a constant (numpy.random.rand).
  const Source* source = s.IsFresh(generator) ? nullptr
                         : s.Find(generator)  ? s.SourceOf(generator)
                                              : s.guards().Const(generator);
  if (!source || !IsGenerator(generator) || s.later || s.in_custom || s.InLookup())
    return s.Break(BreakId::kRandom, name);
  PyObject* arranged = Arrange(s, name, args, nargs, kwnames);
  if (arranged || s.broken() || PyErr_Occurred()) return arranged;
  if (!OnlyDraws(name)) return s.Break(BreakId::kRandom, name);
  s.NoteType(Py_TYPE(generator));
  Made made{Borrow(function), Borrow(kwnames), true, {}};
  if (PyCFunction_Check(function)) made.function = UnbindBuiltin(function).descriptor;  // another one may draw later
  made.args.push_back({Borrow(generator), source});
  if (IsDrawn(source)) {
    made.draws = false;  // it is made anew before
    made.args[0].drawn = std::exchange(made.args[0].source, nullptr)->index;
  }
  return made.function ? Append(s, std::move(made), args + 1, nargs - 1, name) : s.Break(BreakId::kRandom, name);
}

constexpr char kMade[] = "a generator made here";

PyObject* DrawProgram::Append(Session& s, Made made, PyObject* const* args, Py_ssize_t nargs, const char* name) {
  const Py_ssize_t total = nargs + (made.kwnames ? PyTuple_GET_SIZE(made.kwnames.get()) : 0);
  const bool seeds = !strcmp(name, kMade) || !strcmp(name, "seed");
  for (Py_ssize_t i = 0; i < total; ++i) {
    PyObject* number = s.Resolve(args[i]);
    if (!number) return nullptr;
    if (seeds && IsSymInt(number) &&
        !FoundAt(s, values_.get(), reinterpret_cast<SymInt*>(number)))  // each would be a version
      return s.Break(BreakId::kRandom, "a seed that is computed of a number that changes");
    made.args.emplace_back();
    if (!Give(s, args[i], &made.args.back()))
      return s.broken() || PyErr_Occurred() ? nullptr : s.Break(BreakId::kRandom, name);
  }
  if (!values_) values_ = Ref(PyList_New(0));
  if (made.draws) before_.Save(made.args[0].value.get());
  std::vector<Ref> given;
  for (const Given& a : made.args) given.push_back(Borrow(a.value.get()));
  SuspendScope off;
  Ref value(values_ ? made.Call(given, {}) : nullptr);
  if (!value && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;  // KeyboardInterrupt
  if (!value) return PyErr_Clear(), s.Break(BreakId::kRandom, name);
  draws_.push_back(std::move(made));
  // A number of NumPy's (`np.random.choice([1, 2])`) is the element of an array that is made of it.
  const bool number = tensor::Classify(value.get()) == tensor::Class::kNumpyScalar && s.IsNumpyNumber(value.get());
  if (number) {
    static PyObject* const array = tensor::ResolveCallee("numpy.asarray");
    if (!array || PyList_Append(values_.get(), value.get()) < 0) return nullptr;
    Made held;
    held.function = Borrow(array);
    held.of = static_cast<int>(draws_.size()) - 1;
    value = Ref(PyObject_CallOneArg(array, value.get()));
    draws_.push_back(std::move(held));
    if (!value) return nullptr;
  }
  PyObject* seen = Seen(s, value.get(), name);
  if (seen && IsTensor(seen)) draws_.back().tensor = AsTensor(seen)->id;
  if (!number || !seen) return seen;
  static const Callee item("numpy.ndarray.__getitem__");
  Ref whole(seen), none(PyTuple_New(0));
  PyObject* both[] = {seen, none.get()};
  return none ? s.CallFramework(item, both, 2, nullptr) : nullptr;
}

PyObject* DrawProgram::MakeOrSeed(Session& s, PyObject* callable, PyObject* const* args, Py_ssize_t nargs,
                                  PyObject* kwnames) {
  static const Callee kMakes("numpy.random.default_rng"), kSeeds("numpy.random.seed");
  const bool type = PyType_Check(callable);
  bool makes = type && ClassOf(reinterpret_cast<PyTypeObject*>(callable)) && IsLibrarys(callable);
  Callee name;
  if (!type && !PyFunction_Check(callable)) {
    name = tensor::CalleeOf(callable);
    makes = name == kMakes;
  }
  if (!makes && !(name == kSeeds)) return nullptr;
  if (s.later || s.in_custom || s.InLookup() || surface::OpenSample(s.trace())) return nullptr;
  if (makes) {
    if (type) s.NoteType(reinterpret_cast<PyTypeObject*>(callable));
    return Append(s, {Borrow(callable), Borrow(kwnames)}, args, nargs, kMade);
  }
  static PyObject* const own = tensor::ResolveCallee("numpy.random.mtrand._rand");
  static PyObject* const seed = tensor::ResolveCallee("numpy.random.mtrand.RandomState.seed");
  if (!own || !seed || !IsGenerator(own)) return PyErr_Clear(), nullptr;
  std::vector<PyObject*> with{own};
  with.insert(with.end(), args, args + nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0));
  return Draw(s, seed, with.data(), nargs + 1, kwnames);
}

PyObject* DrawProgram::ItemOf(Session& s, PyObject* array) {
  TraceId id = AsTensor(array)->id;
  Made made;
  const auto is_drawn = [&](const Made& d) { return d.tensor == id; };
  auto draw = std::find_if(draws_.begin(), draws_.end(), is_drawn);
  const auto& calls = s.trace().calls;
  if (draw == draws_.end() && !draws_.empty()) {  // an element of what was drawn?
    static const Callee item("numpy.ndarray.__getitem__");
    const auto of = std::find_if(calls.rbegin(), calls.rend(), [&](const framejit::Call& c) {
      return c.callee == item && c.results.size() == 1 && c.results[0] == id;
    });
    if (of == calls.rend() || !of->args[0].is(Arg::Kind::kTensor) || !s.meta(id).is_scalar) return nullptr;
    const Arg& index = of->args[1];
    if (index.is(Arg::Kind::kInt) && index.i.is_const())
      made.args.push_back({Ref(PyLong_FromLongLong(index.i.value()))});
    else if (!index.is(Arg::Kind::kTuple) || !index.items.empty())
      return nullptr;
    id = of->args[0].t;
    draw = std::find_if(draws_.begin(), draws_.end(), is_drawn);
  }
  if (draw == draws_.end() || s.trace().tensors[id].mutated || s.later || s.in_custom || s.InLookup()) return nullptr;
  made.of = static_cast<int>(draw - draws_.begin());
  SuspendScope off;
  std::vector<Ref> drawn;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values_.get()); ++i)
    drawn.push_back(Borrow(PyList_GET_ITEM(values_.get(), i)));
  Ref value(made.Call({}, drawn));
  if (!value || !(PyFloat_CheckExact(value.get()) || PyLong_CheckExact(value.get()))) return PyErr_Clear(), nullptr;
  draws_.push_back(std::move(made));
  return Seen(s, value.get(), "item");
}

}  // namespace framejit::capture
