// Python ints that change between calls: sums, products, quotients and remainders are expressions of symbols, and
// comparisons of those are guarded by their answer. Anything else happens on the number itself, which is then guarded.
#include <new>
#include <optional>

#include "capture/numbers/number_slots.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "shape/steps.h"

namespace framejit::capture {
namespace {

SymInt* As(PyObject* o) {
  return reinterpret_cast<SymInt*>(o);
}

std::optional<shape::Int> ExprOf(PyObject* o) {
  if (IsSymInt(o)) return As(o)->expr;
  if (PyLong_CheckExact(o) || PyBool_Check(o)) {
    int overflow;
    long long v = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (!overflow) return shape::Int(static_cast<int64_t>(v));
  }
  return std::nullopt;
}

bool IsFloat(PyObject* o) {
  return PyFloat_CheckExact(o) || IsSymFloat(o);
}

// A loop over numbers may double an expression in each round (m = (low + high) // 2). Past this many steps the number
// itself goes on.
constexpr uint64_t kMostSteps = 256;

// About the most steps that the result of an operation can have, known before it is made: a product of two sums is
// expanded, so it has a term for every pair of theirs, and each term has the factors of both.
uint64_t MostSteps(char op, shape::Int a, shape::Int b) {
  const uint64_t x = shape::Steps(a), y = shape::Steps(b);
  return op == '*' ? 2 * x * y : x + y;
}

// `f` on expressions gives the expression, on the numbers of this call what Python gets.
template <char kOp, typename F>
PyObject* Binary(PyObject* a, PyObject* b, PyObject* (*fallback)(PyObject*, PyObject*), F f) {
  if (IsTensor(a) || IsTensor(b) || IsItemFloat(a) || IsItemFloat(b)) Py_RETURN_NOTIMPLEMENTED;
  constexpr bool kFloats = kOp == '+' || kOp == '-' || kOp == '*';
  if (kFloats && (IsFloat(a) || IsFloat(b))) return OnFloats(kOp, a, b, fallback);
  Session* s = LiveNumber(IsSymInt(a) ? a : b);
  if (!s) return nullptr;
  auto x = ExprOf(a), y = ExprOf(b);
  if (!x || !y) return OnNumbers(a, b, fallback);
  if (MostSteps(kOp, *x, *y) > kMostSteps) return OnNumbers(a, b, fallback);
  const shape::Int e = f(*x, *y);
  if (!s->env().Fits(e, f(__int128{s->env().Hint(*x)}, __int128{s->env().Hint(*y)}))) return OnNumbers(a, b, fallback);
  return s->SymIntObject(e);
}
__int128 FloorDiv(__int128 x, __int128 y) {  // y > 0
  return x / y - (x % y < 0);
}
__int128 Mod(__int128 x, __int128 y) {
  return x - FloorDiv(x, y) * y;
}
PyObject* Add(PyObject* a, PyObject* b) {
  return Binary<'+'>(a, b, PyNumber_Add, [](auto x, auto y) { return x + y; });
}
PyObject* Subtract(PyObject* a, PyObject* b) {
  return Binary<'-'>(a, b, PyNumber_Subtract, [](auto x, auto y) { return x - y; });
}
PyObject* Multiply(PyObject* a, PyObject* b) {
  return Binary<'*'>(a, b, PyNumber_Multiply, [](auto x, auto y) { return x * y; });
}
bool NonZero(PyObject* o) {  // a divisor the algebra may use: a positive constant or a size known to be positive
  auto e = ExprOf(o);
  if (!e) return false;
  if (auto c = e->as_const()) return *c > 0;
  Session* s = Session::Current();
  return s && s->env().Lt(shape::Int(0), *e);
}
PyObject* FloorDivide(PyObject* a, PyObject* b) {
  if (!NonZero(b)) return OnNumbers(a, b, PyNumber_FloorDivide);
  return Binary<'/'>(a, b, PyNumber_FloorDivide, [](auto x, auto y) { return FloorDiv(x, y); });
}
PyObject* Remainder(PyObject* a, PyObject* b) {
  if (!NonZero(b)) return OnNumbers(a, b, PyNumber_Remainder);
  return Binary<'%'>(a, b, PyNumber_Remainder, [](auto x, auto y) { return Mod(x, y); });
}
PyObject* TrueDivide(PyObject* a, PyObject* b) {
  if (IsTensor(a) || IsTensor(b) || IsItemFloat(a) || IsItemFloat(b)) Py_RETURN_NOTIMPLEMENTED;
  return OnFloats('/', a, b, PyNumber_TrueDivide);
}
PyObject* Power(PyObject* a, PyObject* b, PyObject* modulus) {
  PyObject* r = modulus == Py_None && (IsFloat(a) || IsFloat(b)) ? FloatBinary('^', a, b) : nullptr;
  if (r || PyErr_Occurred()) return r;
  Ref x(Concrete(a)), y(Concrete(b)), z(Concrete(modulus));
  return x && y && z ? PyNumber_Power(x.get(), y.get(), z.get()) : nullptr;
}
PyObject* Negative(PyObject* a) {
  Session* s = LiveNumber(a);
  if (!s) return nullptr;
  const shape::Int e = shape::Int(0) - As(a)->expr;
  return s->env().Fits(e, -__int128{s->env().Hint(As(a)->expr)}) ? s->SymIntObject(e) : Converted<PyNumber_Negative>(a);
}
PyObject* Positive(PyObject* a) {
  return Py_NewRef(a);
}
PyObject* Absolute(PyObject* a) {
  Session* s = LiveNumber(a);
  if (!s) return nullptr;
  return s->env().Lt(As(a)->expr, shape::Int(0)) ? Negative(a) : Py_NewRef(a);
}
int Bool(PyObject* a) {
  Session* s = LiveNumber(a);
  return s ? !s->env().Eq(As(a)->expr, shape::Int(0)) : -1;
}
PyObject* Compare(PyObject* a, PyObject* b, int op) {
  auto x = ExprOf(a), y = ExprOf(b);
  Session* s = LiveNumber(a);
  if (!s) return nullptr;
  if (IsItemFloat(b)) Py_RETURN_NOTIMPLEMENTED;  // it answers by itself
  if (!y && IsSymFloat(b)) {
    Ref number(Concrete(a));
    return number ? PyObject_RichCompare(number.get(), b, op) : nullptr;
  }
  if (!y) return CompareConcrete(a, b, op);
  shape::Env& e = s->env();
  bool r = op == Py_EQ   ? e.Eq(*x, *y)
           : op == Py_NE ? !e.Eq(*x, *y)
           : op == Py_LT ? e.Lt(*x, *y)
           : op == Py_LE ? e.Le(*x, *y)
           : op == Py_GT ? e.Lt(*y, *x)
                         : e.Le(*y, *x);
  return PyBool_FromLong(r);
}

PyNumberMethods number = {
    .nb_add = Add,
    .nb_subtract = Subtract,
    .nb_multiply = Multiply,
    .nb_remainder = Remainder,
    .nb_divmod = Other<PyNumber_Divmod>,
    .nb_power = Power,
    .nb_negative = Negative,
    .nb_positive = Positive,
    .nb_absolute = Absolute,
    .nb_bool = Bool,
    .nb_invert = Converted<PyNumber_Invert>,
    .nb_lshift = Other<PyNumber_Lshift>,
    .nb_rshift = Other<PyNumber_Rshift>,
    .nb_and = Other<PyNumber_And>,
    .nb_xor = Other<PyNumber_Xor>,
    .nb_or = Other<PyNumber_Or>,
    .nb_int = Concrete,
    .nb_float = Converted<PyNumber_Float>,
    .nb_floor_divide = FloorDivide,
    .nb_true_divide = TrueDivide,
    .nb_index = Concrete,
};

}  // namespace

PyTypeObject SymIntType = NumberType("int", sizeof(SymInt), &number, Compare);

// Which of two symbols is larger is no reason for another version of the code. Of a symbol and a number it mostly is: 0
// and 1 mean something else to programs.
PyObject* Extreme(PyObject* const* args, Py_ssize_t n, bool least) {
  Session* s = nullptr;
  std::optional<shape::Int> best;
  PyObject* which = nullptr;  // Of which it is the number, where that is known.
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (IsSymInt(args[i]) && !(s = LiveNumber(args[i]))) return nullptr;
    if (!IsSymInt(args[i]) && !PyLong_CheckExact(args[i])) return nullptr;
  }
  for (Py_ssize_t i = 0; s && i < n; ++i) {
    const std::optional<shape::Int> x = ExprOf(args[i]);
    if (!x) return nullptr;
    if (!best) {
      best = x, which = args[i];
      continue;
    }
    if (*x == *best) continue;
    shape::Env& env = s->env();
    const auto mine = env.Bounds(*best), its = env.Bounds(*x);
    if (best->is_const() || x->is_const() || mine.hi <= its.lo || its.hi <= mine.lo) {
      if (least ? env.Lt(*x, *best) : env.Lt(*best, *x)) best = x, which = args[i];
      continue;
    }
    if (MostSteps('+', *best, *x) > kMostSteps) return nullptr;
    best = least ? shape::Min(*best, *x) : shape::Max(*best, *x), which = nullptr;
  }
  if (which) return Py_NewRef(which);
  return best ? s->SymIntObject(*best) : nullptr;
}

PyObject* NewSymInt(Session* s, shape::Int e, const guard::Source* source) {
  auto* p = PyObject_New(SymInt, &SymIntType);
  if (p) p->session = s, p->source = source, new (&p->expr) shape::Int(e);
  return reinterpret_cast<PyObject*>(p);
}

}  // namespace framejit::capture
