// This file translates the instructions, one by one.
#include <opcode.h>

#include <limits>

#include "capture/policy/compiled_function.h"
#include "capture/scalar/translator.h"
#include "guard/versions.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"

namespace framejit::capture::scalar {

using bytecode::Op;

namespace {

constexpr int kMostDepth = 3;

std::string FunctionName(PyObject* f) {  // "module.name" of a function of C
  if (!PyCFunction_CheckExact(f)) return "";
  PyObject* self = PyCFunction_GET_SELF(f);
  if (!self || !PyModule_CheckExact(self)) return "";
  const char* module = PyModule_GetName(self);
  if (!module) return PyErr_Clear(), "";
  return std::string(module) + "." + reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name;
}

}  // namespace

void Translator::Step(State& s, const Instr& i) {
  switch (i.op) {
    case Op::kNop:
    case Op::kResume: return Next(s, i);
    case Op::kLoadConst: {
      PyObject* c = PyTuple_GET_ITEM(s.top().co->co_consts, i.arg);
      Push(s, Fixed(c));
      return Next(s, i);
    }
    case Op::kLoadCommon: Push(s, Fixed(fj_common_constant(i.arg))); return Next(s, i);
    case Op::kLoadSmallInt: Push(s, Fixed(Ref(PyLong_FromLong(i.arg)).get())); return Next(s, i);
    case Op::kLoadFast:
    case Op::kLoadDeref: Push(s, Twice(Local(s, i.arg))); return Next(s, i);
    case Op::kLoadFastPair:
      Push(s, Twice(Local(s, i.arg)));
      Push(s, Twice(Local(s, i.target)));
      return Next(s, i);
    case Op::kStoreFast: Store(s, i.arg, Pop(s)); return Next(s, i);
    case Op::kStoreFastPair:
      Store(s, i.arg, Pop(s));
      Store(s, i.target, Pop(s));
      return Next(s, i);
    case Op::kStoreFastLoadFast:
      Store(s, i.arg, Pop(s));
      Push(s, Twice(Local(s, i.target)));
      return Next(s, i);
    case Op::kPushNull: Push(s, {}); return Next(s, i);
    case Op::kPopTop:
      if (s.top().stack.back().is == Is::kFrame) throw Unsupported{"an unknown value is dropped"};
      Pop(s);
      return Next(s, i);
    case Op::kCopy: Push(s, Twice(s.top().stack[s.top().stack.size() - i.arg])); return Next(s, i);
    case Op::kSwap: {
      std::vector<Val>& stack = s.top().stack;
      Val& other = stack[stack.size() - i.arg];
      if (other.is == Is::kFrame || stack.back().is == Is::kFrame) throw Unsupported{"a value of an unknown kind"};
      std::swap(stack.back(), other);
      return Next(s, i);
    }
    case Op::kLoadGlobal: {
      Val v = Global(s, PyTuple_GET_ITEM(s.top().co->co_names, i.arg));
      if (i.flag && !bytecode::kNullAfterCallable) Push(s, {});
      Push(s, std::move(v));
      if (i.flag && bytecode::kNullAfterCallable) Push(s, {});
      return Next(s, i);
    }
    case Op::kLoadAttr: {
      const Val of = Pop(s);
      Push(s, Attribute(s, of, PyTuple_GET_ITEM(s.top().co->co_names, i.arg)));
      return Next(s, i);
    }
    case Op::kLoadMethod: {
      const Val owner = Pop(s);
      PyObject* name = PyTuple_GET_ITEM(s.top().co->co_names, i.arg);
      const bool list = owner.is == Is::kObject && out_.objects[owner.object].list;
      if (list || IsArray(owner)) {
        PyTypeObject* type = list ? &PyList_Type : tensor::Numpy()->array;
        PyObject* method = PyDict_GetItemWithError(guard::TypeDict(type), name);
        if (!method) throw Unsupported{"a method"};
        Push(s, Fixed(method));
        Push(s, owner);
        return Next(s, i);
      }
      if (owner.is != Is::kObject || !PyModule_CheckExact(Use(owner.object).object.get()))
        throw Unsupported{"a method"};
      Val v = Attribute(s, owner, name);
      if (!bytecode::kNullAfterCallable) Push(s, {});
      Push(s, std::move(v));
      if (bytecode::kNullAfterCallable) Push(s, {});
      return Next(s, i);
    }
    case Op::kBuildTuple: {
      std::vector<Val>& stack = s.top().stack;
      std::vector<Val> items(stack.end() - i.arg, stack.end());
      for (Val& v : items) {
        Twice(v);
        if (s.frames.size() == 1) Copied(v);
      }
      if (items.empty()) throw Unsupported{"an empty tuple"};
      stack.resize(stack.size() - i.arg);
      Push(s, Tuple(std::move(items)));
      return Next(s, i);
    }
    case Op::kBuildList: return WriteDown(s, i);
    case Op::kUnpackSequence: {
      const Val v = Computed(s, Pop(s));
      std::vector<Val> items = v.is == Is::kTuple ? v.items
                               : IsArray(v)       ? RowsOf(PartOf(v), i.arg)
                                                  : std::vector<Val>();
      if (static_cast<int>(items.size()) != i.arg) throw Unsupported{"unpacking"};
      for (int k = i.arg; k-- > 0;) Push(s, std::move(items[k]));
      return Next(s, i);
    }
    default: return StepValue(s, i);
  }
}

// A list of numbers whose elements np.array, which was named before, reads at once.
void Translator::WriteDown(State& s, const Instr& i) {
  std::vector<Val>& stack = s.top().stack;
  const bool read = std::any_of(stack.begin(), stack.end(), [&](const Val& v) {
    return v.is == Is::kObject && tensor::CalleeOf(out_.objects[v.object].object.get()).name() == "numpy.array";
  });
  Val list;
  list.is = Is::kLiteral;
  list.items.assign(stack.end() - i.arg, stack.end());
  const bool numbers = std::all_of(list.items.begin(), list.items.end(), [](const Val& v) {
    return v.scalar() || v.is == Is::kComplex || v.is == Is::kLiteral;
  });
  if (list.items.empty() || !numbers || !read) throw Unsupported{"a list"};
  stack.resize(stack.size() - i.arg);
  Push(s, std::move(list));
  Next(s, i);
}

void Translator::StepValue(State& s, const Instr& i) {
  switch (i.op) {
    case Op::kBuildSlice: {
      const Val step = i.arg == 3 ? Pop(s) : Fixed(Py_None), stop = Pop(s), start = Pop(s);
      Push(s, Slice(start, stop, step));
      return Next(s, i);
    }
    case Op::kGetSlice: {
      const Val stop = Pop(s), start = Pop(s), container = Pop(s);
      Push(s, GetItem(s, container, Slice(start, stop, Fixed(Py_None))));
      return Next(s, i);
    }
    case Op::kSetSlice: {
      const Val stop = Pop(s), start = Pop(s), container = Pop(s), value = Pop(s);
      SetItem(s, container, Slice(start, stop, Fixed(Py_None)), value);
      return Next(s, i);
    }
    case Op::kBinary: {
      const Val y = Pop(s), x = Pop(s);
      if (IsArray(x) || IsArray(y)) return ArrayBinary(s, i, x, y);
      if (x.is == Is::kEither || y.is == Is::kEither) {
        Push(s, BinaryOfEither(i.arg, x, y));
        return Next(s, i);
      }
      out_.floats |= !x.python() || !y.python();
      Push(s, Binary(*this, i.arg, x, y));
      return Next(s, i);
    }
    case Op::kCompare: {
      const Val y = Pop(s), x = Pop(s);
      if (x.is == Is::kEither || y.is == Is::kEither) return CompareEither(s, i, x, y);
      if (IsArray(x) || IsArray(y)) {
        if (i.flag) throw Unsupported{"the truth of an array"};
        Val p = x, q = y;
        if (IsArray(x) && IsArray(y)) RowsOrOne(s, p, q);
        Push(s, DeferCompare(s, i.arg, p, q));
        return Next(s, i);
      }
      Val r = scalar::Compare(*this, i.arg, AsLetter(x), AsLetter(y));
      Push(s, i.flag ? New(Is::kBool, Value(r)) : r);
      return Next(s, i);
    }
    case Op::kNegative: {
      const Val x = Rows(s, Pop(s));
      Push(s, IsArray(x) ? DeferUnary(ScalarOp::kNeg, x) : Negative(*this, x));
      return Next(s, i);
    }
    case Op::kInvert: {
      const Val x = Pop(s);
      Push(s, IsMask(x) ? DeferUnary(ScalarOp::kNot, x) : Invert(*this, x));
      return Next(s, i);
    }
    case Op::kNot: {
      const Val v = Pop(s);
      Val r = New(Is::kBool, Op(ScalarOp::kNot, ScalarType::kBool, TruthOf(v)));
      if (v.constant) r.constant = *v.constant == 0;
      Push(s, std::move(r));
      return Next(s, i);
    }
    case Op::kToBool: {
      const Val v = Pop(s);
      Val r = New(Is::kBool, TruthOf(v));
      if (v.constant) r.constant = *v.constant != 0;
      Push(s, std::move(r));
      return Next(s, i);
    }
    case Op::kIs: {
      const Val y = Pop(s), x = Pop(s);
      const std::optional<bool> a = IsNone(x), b = IsNone(y);
      if (!a || !b || (!*a && !*b)) throw Unsupported{"is"};
      Push(s, New(Is::kBool, Flag((*a == *b) != (i.arg != 0))));
      return Next(s, i);
    }
    case Op::kContains: {
      const Val all = Pop(s), v = Pop(s);
      std::optional<Val> in = IsIn(v, all);
      if (!in) throw Unsupported{"in"};
      Push(s, i.arg ? New(Is::kBool, Op(ScalarOp::kNot, ScalarType::kBool, Value(*in))) : std::move(*in));
      return Next(s, i);
    }
    case Op::kGetItem: {
      const Val index = Pop(s), container = Pop(s);
      Push(s, GetItem(s, container, index));
      return Next(s, i);
    }
    case Op::kSetItem: {
      const Val index = Pop(s), container = Pop(s), value = Pop(s);
      SetItem(s, container, index, value);
      return Next(s, i);
    }
    case Op::kCall: return Call(s, i);
    case Op::kCallConstNames:
    case Op::kCallStackNames: return CallNamed(s, i);
    default: return StepFlow(s, i);
  }
}

// Are the two, one of which is of either kind, computed with as if that were NumPy's?
static bool GoTogether(const Val& x, const Val& y) {
  const auto goes = [](const Val& v, const Val& with) {
    if (v.is != Is::kNumpy || v.dtype == DType::kFloat64) return v.is == Is::kInt || EitherType(v).has_value();
    return v.integral() && !v.truth() && v.dtype != DType::kUInt64 &&
           (v.dtype == DType::kInt64 || EitherType(with) != DType::kInt64);
  };
  return goes(x, y) && goes(y, x);
}

// Which operators give the same number, whether it is an int or a numpy.int64, if they stay in 64 bits?
static bool SameForInts(int op) {
  return op == NB_ADD || op == NB_SUBTRACT || op == NB_MULTIPLY || op == NB_FLOOR_DIVIDE || op == NB_REMAINDER ||
         op == NB_AND || op == NB_OR || op == NB_XOR;
}

// As NumPy computes: where Python would raise an error or NumPy tell of something, the code is left.
Val Translator::BinaryOfEither(int op, const Val& x, const Val& y) {
  if (op >= NB_INPLACE_ADD) op -= NB_INPLACE_ADD;
  const bool ints = x.number().integral() && y.number().integral();
  const bool floats = op == NB_ADD || op == NB_SUBTRACT || op == NB_MULTIPLY || op == NB_TRUE_DIVIDE;
  if (!(ints ? SameForInts(op) : floats) || !GoTogether(x, y))
    throw Unsupported{"an operator on a number of Python or NumPy"};
  out_.floats = true;
  if (op == NB_TRUE_DIVIDE) ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, Truth(*this, y.number())));
  Val number = Binary(*this, op, x.number(), y.number());
  if (x.is == Is::kNumpy || y.is == Is::kNumpy) return number;
  Val flag = x.is == Is::kEither ? x.items[1] : y.items[1];
  if (x.is == Is::kEither && y.is == Is::kEither)
    flag = New(Is::kBool, Op(ScalarOp::kOr, ScalarType::kBool, Value(flag), Value(y.items[1])));
  return Either(std::move(number), std::move(flag));
}

// The answer's kind does not show where it is asked for its truth alone.
void Translator::CompareEither(State& s, const Instr& i, const Val& x, const Val& y) {
  const auto next = s.top().code->At(s.top().pc + i.length).op;
  const bool asked = i.flag || next == Op::kPopJumpIfFalse || next == Op::kPopJumpIfTrue;
  if (!asked) throw Unsupported{"a comparison of a number of Python or NumPy"};
  Push(s, New(Is::kBool, IsTrue(i.arg, x, y)));
  Next(s, i);
}

// Does the comparison hold? Of ints of either kind as Python compares them, which is exact.
int Translator::IsTrue(int py_op, const Val& x, const Val& y) {
  if ((x.is == Is::kEither || y.is == Is::kEither) && !GoTogether(x, y))
    throw Unsupported{"a comparison of a number of Python or NumPy"};
  const auto number = [](const Val& v) {
    Val n = v.number();
    if (v.is == Is::kEither && n.integral()) n.is = Is::kInt, n.dtype = DType{};
    return n;
  };
  return Value(scalar::Compare(*this, py_op, number(x), number(y)));
}

void Translator::StepFlow(State& s, const Instr& i) {
  switch (i.op) {
    case Op::kJump: return Jump(s, i, i.target);
    case Op::kPopJumpIfFalse:
    case Op::kPopJumpIfTrue: {
      const bool if_true = i.op == Op::kPopJumpIfTrue;
      const Val v = Pop(s);
      if (v.constant) return Decided(s, i, (*v.constant != 0) == if_true);
      return ConditionalJump(s, i, TruthOf(v), if_true);
    }
    case Op::kPopJumpIfNone:
    case Op::kPopJumpIfNotNone: {
      const std::optional<bool> none = IsNone(Pop(s));
      if (!none) throw Unsupported{"is None"};
      return Decided(s, i, *none == (i.op == Op::kPopJumpIfNone));
    }
    case Op::kJumpIfFalseOrPop:
    case Op::kJumpIfTrueOrPop: {
      const int truth = TruthOf(s.top().stack.back());
      State jumps = s, goes_on = s;
      jumps.top().pc = i.target;
      Pop(goes_on);
      goes_on.top().pc += i.length;
      ended_ = true;
      return i.op == Op::kJumpIfTrueOrPop ? Branch(truth, jumps, goes_on) : Branch(truth, goes_on, jumps);
    }
    case Op::kGetIter: return GetIter(s, i);
    case Op::kForIter: return ForIter(s, i);
    case Op::kReturnValue:
    case Op::kReturnConst: {
      if (s.frames.size() == 1) {
        ended_ = true;
        if (Waiting(s)) return LeaveBefore(s, "an array that is not computed is returned");
        if (i.op == Op::kReturnValue) WantKnownResult(s.top(), s.top().stack.back());
        return Leave(s, "", true);
      }
      Val v = i.op == Op::kReturnConst ? Fixed(PyTuple_GET_ITEM(s.top().co->co_consts, i.arg)) : Pop(s);
      for (const Val& local : s.top().locals)
        if (local.is == Is::kDeferred && HeldAt(s, local.node) == static_cast<int>(s.frames.size()))
          Lose(s, local.node, v);
      s.frames.pop_back();
      if (s.frames.size() == 1) {
        wrote_ |= std::exchange(s.effects, false);
        Return(v);
      }
      const Instr& call = s.top().code->At(s.top().pc);
      s.top().stack.resize(s.top().stack.size() - call.arg - 2);
      Push(s, std::move(v));
      return Next(s, call);
    }
    default: throw Unsupported{std::string(bytecode::Name(i.op))};
  }
}

int Translator::TruthOf(const Val& v) {
  return IsSequence(v) ? Compare(ScalarOp::kNe, Length(v), Int(0)) : Truth(*this, v.number());
}

Val Translator::GetItem(State& s, const Val& of, const Val& index) {
  const Val container = Computed(s, of);
  if (container.is == Is::kTuple) {
    if (index.is != Is::kInt || !index.constant) throw Unsupported{"an item of a tuple"};
    const int64_t n = static_cast<int64_t>(container.items.size());
    const int64_t k = *index.constant < 0 ? *index.constant + n : *index.constant;
    if (k < 0 || k >= n) throw Unsupported{"an index"};
    return container.items[k];
  }
  if (IsSequence(container)) {
    if (!index.number().integral()) throw Unsupported{"an index"};
    return ListItem(container.object, IndexWithin(*this, index, Size(container.object, 0)));
  }
  if (IsMask(index)) return Under(s, container, index);
  if (IsArray(index)) return Gather(container, Rows(s, index));
  return ItemOf(Index(PartOf(container), index));
}

void Translator::SetItem(State& s, const Val& of, const Val& index, const Val& value) {
  const Val container = Computed(s, of);
  if (container.is != Is::kView && container.is != Is::kObject) throw Unsupported{"a store"};
  if (IsSequence(container)) return SetListItem(s, container.object, index, value);
  if (IsMask(index)) return AssignUnder(s, container, index, value);
  if (IsArray(index) ||
      (index.is == Is::kTuple && std::ranges::any_of(index.items, [&](auto& v) { return IsArray(v); })))
    return Scatter(s, container, index, value);
  const Part p = Index(PartOf(container), index);
  if (p.rank()) return Assign(s, p, Rows(s, value));
  const bool any = p.dtype == DType::kFloat64 || IsComplex(p.dtype) || value.number().integral();
  const Val& stored = any ? value.number() : value;
  const Element v = IsComplex(p.dtype) ? NumberAs(stored, p.dtype) : Element{Stored(*this, stored, p.dtype)};
  ComputeAll(s);
  Settle();
  StoreElement(BaseOf(p), p.offset, v, p.dtype, Lies(p));
  Wrote(s, p);
}

Val Translator::Attribute(const State& s, const Val& of, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  const Val v = Computed(s, of);
  if (IsArray(v) && v.is != Is::kDeferred) return ArrayAttribute(PartOf(v), text);
  if (v.is == Is::kComplex && (!strcmp(text, "real") || !strcmp(text, "imag"))) {
    const int part = Value(v.items[!strcmp(text, "imag")]);
    return v.dtype == DType::kComplex128 ? NewNumpy(DType::kFloat64, part) : New(Is::kFloat, part);
  }
  if (v.is != Is::kObject) throw Unsupported{"an attribute"};
  PyObject* module = Use(v.object).object.get();
  if (!PyModule_CheckExact(module)) throw Unsupported{std::string("the attribute ") + text};
  PyObject* dict = PyModule_GetDict(module);
  PyObject* value = PyDict_GetItemWithError(dict, name);
  if (!value) throw Unsupported{std::string("the attribute ") + text};
  out_.guards.push_back({Borrow(dict), Ref(), Borrow(name), Borrow(value)});
  return Fixed(value);
}

Val Translator::Global(State& s, PyObject* name) {
  Frame& f = s.top();
  if (!PyDict_CheckExact(f.globals) || !PyDict_CheckExact(f.builtins)) throw Unsupported{"unusual globals"};
  PyObject* value = PyDict_GetItemWithError(f.globals, name);
  if (!value) value = PyDict_GetItemWithError(f.builtins, name);
  if (!value) throw Unsupported{"a name that is not known"};
  for (const NameGuard& g : out_.guards)
    if (g.dict.get() == f.globals && g.name.get() == name) return Fixed(value);
  out_.guards.push_back({Borrow(f.globals), Borrow(f.builtins), Borrow(name), Borrow(value)});
  return Fixed(value);
}

// max and min: the first of those that compare so.
void Translator::Extreme(State s, const std::vector<Val>& args, size_t at, Val best, int py_op) {
  for (; at < args.size(); ++at) {
    const int better = IsTrue(py_op, args[at], best);
    if (args[at].scalar() && args[at].key() == best.key()) {
      Val chosen = best;
      chosen.value = Op(ScalarOp::kSelect, best.type(), better, Value(args[at]), Value(best));
      chosen.home = chosen.origin = -1;
      chosen.held |= args[at].held;
      chosen.constant.reset();
      best = chosen;
      continue;
    }
    // Of what no loop carries on, which one it was is a number, too, and no branch.
    const Val* const both[] = {&args[at], &best};
    const bool here = std::all_of(both, both + 2, [](const Val* v) { return v->number().home < 0; });
    if (const auto type = EitherType(best); here && type && type == EitherType(args[at])) {
      const Val x = AsEither(*this, args[at]), y = AsEither(*this, best);
      const bool given = best.given;
      const auto pick = [&](const Val& a, const Val& b) {
        return Op(ScalarOp::kSelect, a.type(), better, Value(a), Value(b));
      };
      Val number = NewNumpy(*type, pick(x.items[0], y.items[0]));
      number.held = x.items[0].held || y.items[0].held;
      best = Either(std::move(number), New(Is::kBool, pick(x.items[1], y.items[1])));
      Give(best, given);
      continue;
    }
    const int yes = Way([&] { Extreme(s, args, at + 1, args[at], py_op); });
    const int no = Way([&] { Extreme(s, args, at + 1, best, py_op); });
    Emit({.op = ScalarOp::kBranch, .a = better, .other = no, .imm = yes});
    return;
  }
  Push(s, best);
  GoTo(s);
}

std::optional<Val> Translator::CallBuiltin(const State& s, const std::string& name, const std::vector<Val>& args) {
  if (name == "builtins.abs" && args.size() == 1)
    return IsArray(args[0]) ? MagnitudeOf(args[0]) : Absolute(*this, args[0]);
  if (name == "builtins.len" && args.size() == 1) {
    if (args[0].is == Is::kTuple) return IntConstant(*this, static_cast<int64_t>(args[0].items.size()));
    if (IsSequence(args[0])) return New(Is::kInt, Size(args[0].object, 0));
    if (IsArray(args[0]))
      if (const std::vector<int> sizes = nodes_[NodeOf(args[0])].sizes; !sizes.empty()) return SizeOf(sizes[0]);
  }
  if (name == "builtins.ord" && args.size() == 1 && AsLetter(args[0]).is == Is::kLetter)
    return AsLetter(args[0]).items[0];
  if (name == "builtins.chr" && args.size() == 1 && args[0].number().integral())
    return LetterAt(*this, args[0].number());
  if (name == "builtins.round" && args.size() == 1) return Rounded(*this, args[0].number());
  const auto all = [&](auto&& of) { return args.size() == 2 && of(args[0]) && of(args[1]); };
  if (name == "builtins.divmod" && (all([](const Val& v) { return v.scalar() && v.integral() && !v.truth(); }) ||
                                    all([](const Val& v) { return v.is == Is::kFloat; })))
    return Tuple({Binary(*this, NB_FLOOR_DIVIDE, args[0], args[1]), Binary(*this, NB_REMAINDER, args[0], args[1])});
  if (name.starts_with("math.")) return MathCall(*this, name.substr(5), args);
  return std::nullopt;
}

Val Translator::CallType(const State& s, PyObject* callee, std::vector<Val>& args, bool* known) {
  *known = true;
  auto* type = reinterpret_cast<PyTypeObject*>(callee);
  if (type == &PyRange_Type) return Range(args);
  args = Named(s, args);
  if (std::optional<Val> it = CallIterator(type, args)) return *it;
  if (type == &PyComplex_Type && (args.size() == 1 || (args.size() == 2 && args[0].scalar() && args[1].scalar())))
    return Complex(ToComplex(*this, args[0], false).items[0],
                   args.size() == 2 ? ToFloat(*this, args[1]) : ToComplex(*this, args[0], false).items[1], false);
  if (args.size() == 1) {
    if (type == &PyLong_Type) return ToInt(*this, args[0]);
    if (type == &PyFloat_Type) return args[0].is == Is::kFloat ? args[0] : ToFloat(*this, args[0]);
    if (type == &PyBool_Type) return New(Is::kBool, Truth(*this, args[0]));
    const tensor::NumpyApi* api = tensor::Numpy();
    if (const auto t = api ? tensor::ScalarDType(*api, type) : std::nullopt; t && HoldsNumbers(*t))
      return ToNumpy(*this, args[0], *t);
  }
  if (std::optional<Val> v = CallNumpy(s, tensor::CalleeOf(callee).name(), args)) return *v;
  *known = false;
  return {};
}

void Translator::Inline(State& s, int object, std::vector<Val> args) {
  const ObjectSpec& o = Use(object);
  auto* function = reinterpret_cast<PyFunctionObject*>(BehindCompiled(o.object.get()));
  auto* co = reinterpret_cast<PyCodeObject*>(function->func_code);
  const bytecode::Code* c = bytecode::Code::Of(co);
  if (!c) PyErr_Clear();
  constexpr int kNo = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
  if (!c || (co->co_flags & kNo) || co->co_ncellvars || co->co_nfreevars || co->co_kwonlyargcount ||
      co->co_argcount != static_cast<int>(args.size()) || s.frames.size() > kMostDepth || c->first_resume() < 0 ||
      not_inline_.contains(s.frames[0].pc))
    throw Unsupported{"a call of " + std::string(PyUnicode_AsUTF8(co->co_qualname))};
  out_.objects[object].code = Borrow(function->func_code);
  Frame f;
  f.co = co;
  f.code = c;
  f.globals = function->func_globals, f.builtins = function->func_builtins;
  f.pc = c->first_resume();
  f.locals = std::move(args);
  f.locals.resize(co->co_nlocalsplus);
  s.frames.push_back(std::move(f));
}

void Translator::Call(State& s, const Instr& i) {
  std::vector<Val>& stack = s.top().stack;
  const size_t base = stack.size() - i.arg - 2;
  const Val& callee = bytecode::kNullAfterCallable || stack[base].is != Is::kNull ? stack[base] : stack[base + 1];
  const bool method = !bytecode::kNullAfterCallable && stack[base].is != Is::kNull;
  const Val self = bytecode::kNullAfterCallable || method ? stack[base + 1] : Val();
  if (callee.is != Is::kObject) throw Unsupported{"a call"};
  const int object = callee.object;
  PyObject* o = BehindCompiled(Use(object).object.get());
  if (out_.objects[object].array || out_.objects[object].sequence()) throw Unsupported{"a call"};
  std::vector<Val> args(stack.end() - i.arg, stack.end());
  if (!PyType_Check(o) && self.is == Is::kNull && std::ranges::any_of(args, [&](const Val& v) { return IsArray(v); })) {
    const State before = s;
    stack.resize(base);
    if (std::optional<Val> v = CallUfunc(s, tensor::CalleeOf(o).name(), args)) {
      Push(s, std::move(*v));
      return Next(s, i);
    }
    s = before;
  }
  for (Val& a : args) a = Rows(s, a);
  if (self.is != Is::kNull) return CallMethod(s, i, o, self, args);
  if (!PyType_Check(o))
    for (const Val& a : args) Twice(a);
  if (PyFunction_Check(o)) {
    const std::string name(tensor::CalleeOf(o).name());
    std::optional<Val> result = name.empty() ? std::nullopt : CallNumpy(s, name, args);
    if (!result) return Inline(s, object, std::move(args));
    stack.resize(base);
    Push(s, std::move(*result));
    return Next(s, i);
  }
  const std::string name = FunctionName(o);
  if ((name == "builtins.max" || name == "builtins.min") && args.size() >= 2 && args.size() <= 4) {
    stack.resize(base);
    s.top().pc += i.length;
    ended_ = true;
    const bool given = std::any_of(args.begin(), args.end(), [](const Val& a) { return a.given; });
    for (Val& a : args) a.few = false, a.given = given;  // one of them, which is no constant then
    return Extreme(s, args, 1, args[0], name == "builtins.max" ? Py_GT : Py_LT);
  }
  if (name.starts_with("math.") || o == reinterpret_cast<PyObject*>(&PyFloat_Type) ||
      o == reinterpret_cast<PyObject*>(&PyLong_Type))
    for (Val& a : args) a = Val(a.number());
  std::optional<Val> result = CallBuiltin(s, name, args);
  if (!result) {
    bool known;
    result = CallType(s, o, args, &known);
    if (!known) throw Unsupported{"a call of " + (name.empty() ? std::string(Py_TYPE(o)->tp_name) : name)};
  }
  stack.resize(base);
  Push(s, std::move(*result));
  Next(s, i);
}

// This is what LOAD_METHOD found in the type of `self`.
void Translator::CallMethod(State& s, const Instr& i, PyObject* method, const Val& self, const std::vector<Val>& args) {
  if (Py_TYPE(method) != &PyMethodDescr_Type || (!IsSequence(self) && !IsArray(self))) throw Unsupported{"a method"};
  const std::string name = reinterpret_cast<PyMethodDescrObject*>(method)->d_method->ml_name;
  s.top().stack.resize(s.top().stack.size() - i.arg - 2);
  const Val of = Rows(s, self);
  std::optional<Val> result =
      IsSequence(self) ? ListMethod(s, name, self.object, args) : ArrayMethod(s, name, of, args);
  if (!result) throw Unsupported{"the method " + name};
  Push(s, std::move(*result));
  Next(s, i);
}

// np.sum and np.max(x, axis=...), functions with dtype=..., enumerate with start=... alone.
void Translator::CallNamed(State& s, const Instr& i) {
  std::vector<Val>& stack = s.top().stack;
  // The names are a constant of the code, and CALL_KW finds them on the stack.
  const bool on_stack = i.op == Op::kCallStackNames;
  if (on_stack && stack.back().is != Is::kObject) throw Unsupported{"a call with names"};
  PyObject* names =
      on_stack ? out_.objects[Pop(s).object].object.get() : PyTuple_GET_ITEM(s.top().co->co_consts, i.target);
  const size_t base = stack.size() - i.arg - 2;
  const Val& callee = bytecode::kNullAfterCallable || stack[base].is != Is::kNull ? stack[base] : stack[base + 1];
  const Val& self = bytecode::kNullAfterCallable ? stack[base + 1] : stack[base];
  if (i.arg < 2 || i.arg > 3 || PyTuple_GET_SIZE(names) != 1 || callee.is != Is::kObject || self.is != Is::kNull)
    throw Unsupported{"a call with names"};
  PyObject* o = Use(callee.object).object.get();
  const auto named = [&](const char* name) {
    return PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), name) == 0;
  };
  const std::string name(tensor::CalleeOf(o).name());
  const Val last = Pop(s);
  const std::vector<Val> args(stack.end() - (i.arg - 1), stack.end());
  const Val x = args[0];
  std::optional<Val> result;
  if (named("dtype") && name != "numpy.array")
    result = NewFilled(s, name, args, &last);
  else if (args.size() > 1)
    throw Unsupported{"a call with names"};
  else if (named("axis"))
    result = OverAxes(name, x, last);
  else if (named("dtype"))
    result = NewOfNumbers(s, x, &last);
  else if (named("start") && o == reinterpret_cast<PyObject*>(&PyEnum_Type))
    result = CallIterator(&PyEnum_Type, {x, last});
  if (!result) throw Unsupported{"a call with names"};
  stack.resize(base);
  Push(s, std::move(*result));
  Next(s, i);
}

Translation Translate(FjFrame* frame, const Loop& loop, int from, const Hopes& hopes) {
  std::set<int> not_inline;
  ItemKinds kinds;
  MergedKinds merged;
  GivenNames given;
  constexpr int kMostTries = 8;
  int tries = 0;
  const auto merge = [&](const Translator& translator) {
    bool changed = false;
    for (auto& [place, kind] : translator.Mixed()) {
      const auto [it, added] = merged.try_emplace(place, kind);
      changed |= added || it->second.key() != kind.key();
      it->second = kind;
    }
    return changed;
  };
  for (;;) {
    Translator translator(frame, loop, from, hopes, not_inline, kinds, merged, given);
    try {
      Translation made = translator.Run();
      const size_t known = kinds.size();
      kinds.merge(translator.Learned(made));
      bool changed = kinds.size() != known;
      changed |= merge(translator);
      changed |= given != translator.named_given();
      given = translator.named_given();
      if (changed && ++tries < kMostTries) continue;
      const bool others = std::any_of(made.exits.begin(), made.exits.end(), [](auto& e) { return e.others; });
      if (!others || (hopes.whole ? hopes.mixes : made.loops)) return made;
      Hopes less = hopes;
      (hopes.whole ? less.mixes : less.together) = true;
      return Translate(frame, loop, from, less);
    } catch (const NotInline& call) {
      if (!not_inline.insert(call.pc).second) throw std::runtime_error("scalar code: a call cannot be left to Python");
    } catch (const NotBrief&) {
      Hopes less = hopes;
      less.brief = false;
      return Translate(frame, loop, from, less);
    } catch (const NotUndone&) {
      Hopes less = hopes;
      less.transaction = false;
      return Translate(frame, loop, from, less);
    } catch (const TooMuch&) {  // it may be less where kinds are merged
      if (merge(translator) && ++tries < kMostTries) continue;
      if (hopes.unrolls) {
        Hopes less = hopes;
        less.unrolls = false;
        return Translate(frame, loop, from, less);
      }
      Translation failed;
      failed.why = "too much code";
      return failed;
    } catch (const Unsupported& u) {
      Translation failed;
      failed.why = u.why;
      return failed;
    }
  }
}

}  // namespace framejit::capture::scalar
