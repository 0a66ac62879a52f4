// Protocol slots of the proxies. Every slot asks the session; none computes anything itself.
#include "capture/proxy.h"

#include <structmember.h>

#include <new>

#include "capture/modes.h"
#include "capture/number_methods.h"
#include "capture/session.h"

namespace framejit::capture {
namespace {

// The session of a proxy, if it is the one capturing on this thread.
Session* Live(Session* s) {
  if (s && s == Session::Current()) return s;
  PyErr_SetString(PyExc_RuntimeError, "framejit: a tensor of a finished capture was used");
  return nullptr;
}

// Operand of a binary slot that is a proxy; slots are called with the proxy on either side.
Session* LiveOf(PyObject* a, PyObject* b) {
  PyObject* p = IsTensor(a) ? a : b;
  return Live(AsTensor(p)->session);
}

template <int kOp>
PyObject* TBinary(PyObject* a, PyObject* b) {
  if (!IsTensor(a) && !IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  Session* s = LiveOf(a, b);
  return s ? TensorBinary(*s, kOp, a, b) : nullptr;
}

PyObject* TPower(PyObject* a, PyObject* b, PyObject* m) {
  if (m != Py_None) Py_RETURN_NOTIMPLEMENTED;
  return TBinary<8>(a, b);
}
PyObject* TIPower(PyObject* a, PyObject* b, PyObject*) {
  return TBinary<21>(a, b);
}

template <const char* const* kName>
PyObject* TUnary(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  return s ? TensorUnary(*s, *kName, a) : nullptr;
}
constexpr const char* kNeg = "__neg__";
constexpr const char* kPos = "__pos__";
constexpr const char* kAbs = "__abs__";
constexpr const char* kInvert = "__invert__";

int TBool(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  if (!s || !AsEver(*s, a, "__bool__")) return -1;
  if (auto known = s->lowering().KnownTruth(AsTensor(a)->id)) return *known;
  if (Ref guess(s->GuessValue(AsTensor(a)->id, true)); guess) return guess.get() == Py_True;
  s->Break(BreakId::kTensorBool);
  return -1;
}
PyObject* TInt(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  if (!s || !AsEver(*s, a, "__int__")) return nullptr;
  Ref guess(s->ItemOf(AsTensor(a)->id, false));
  return guess ? PyNumber_Long(guess.get()) : s->Break(BreakId::kTensorItem);
}
PyObject* TNumber(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  return s ? s->Break(BreakId::kTensorItem) : nullptr;
}
PyObject* TRepr(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  return s ? s->Break(BreakId::kTensorProtocol, "its text") : nullptr;
}
Py_ssize_t TLen(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  if (!s || !AsEver(*s, a, "__len__")) return -1;
  const TensorMeta& m = s->meta(AsTensor(a)->id);
  if (m.sizes.empty()) {
    s->Break(BreakId::kFrameworkError, "len() of a 0-d tensor");
    return -1;
  }
  return s->env().Specialize(m.sizes[0]);
}
PyObject* TGetItem(PyObject* a, PyObject* key) {
  Session* s = Live(AsTensor(a)->session);
  if (!s || !AsEver(*s, a, "__getitem__")) return nullptr;
  PyObject* args[] = {a, key};
  return s->CallFramework(MethodOf(*s, a, "__getitem__"), args, 2, nullptr);
}
int TSetItem(PyObject* a, PyObject* key, PyObject* value) {
  Session* s = Live(AsTensor(a)->session);
  if (!s) return -1;
  if (!value) return s->Break(BreakId::kFrameworkError, "del tensor[...]"), -1;
  if (!AsEver(*s, a, "__setitem__")) return -1;
  PyObject* args[] = {a, key, value};
  PyObject* r = s->CallFramework(MethodOf(*s, a, "__setitem__"), args, 3, nullptr);
  Py_XDECREF(r);
  return r ? 0 : -1;
}
PyObject* TGetAttr(PyObject* a, PyObject* name) {
  Session* s = Live(AsTensor(a)->session);
  return s ? TensorAttr(*s, a, name) : nullptr;
}
int TSetAttr(PyObject* a, PyObject* name, PyObject*) {
  if (Session* s = Live(AsTensor(a)->session)) s->Break(BreakId::kSideEffect, "attribute of a tensor");
  return -1;
}
PyObject* TCompare(PyObject* a, PyObject* b, int op) {
  Session* s = Live(AsTensor(a)->session);
  return s ? TensorCompare(*s, a, b, op) : nullptr;
}
PyObject* TIter(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  return s ? TensorIter(*s, a) : nullptr;
}
PyObject* TItem(PyObject* a, Py_ssize_t i) {
  Session* s = Live(AsTensor(a)->session);
  return s ? TensorItem(*s, a, i) : nullptr;
}
int TContains(PyObject* a, PyObject*) {
  if (Session* s = Live(AsTensor(a)->session)) s->Break(BreakId::kTensorBool, "`in` on a tensor");
  return -1;
}
Py_hash_t THash(PyObject* a) {  // as a key of what is private: that of a torch tensor is where it lies
  Session* s = Live(AsTensor(a)->session);
  if (!s) return -1;
  if (s->meta(AsTensor(a)->id).framework == Framework::kTorch) return _Py_HashPointer(a);
  return s->Break(BreakId::kFrameworkError, "hash of a NumPy value"), -1;
}
void TDealloc(PyObject* a) {
  PyObject_Free(a);
}

// torch's argument parser asks any non-Tensor argument for __torch_function__: so torch functions called from C code
// (map, reduce, partial) reach the session too.
PyObject* TorchFunction(PyObject*, PyObject* args) {
  PyObject *func, *types, *fargs, *fkwargs = nullptr;
  if (!PyArg_ParseTuple(args, "OOO|O", &func, &types, &fargs, &fkwargs)) return nullptr;
  Session* s = Session::Current();
  if (!s) {
    PyErr_SetString(PyExc_RuntimeError, "framejit: a tensor of a finished capture was used");
    return nullptr;
  }
  const Callee name = tensor::CalleeOf(func);
  if (name.empty()) return s->Break(BreakId::kUnknownCall, "a torch function without a name");
  std::vector<PyObject*> flat;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(fargs); ++i) flat.push_back(PyTuple_GET_ITEM(fargs, i));
  Py_ssize_t n = PyTuple_GET_SIZE(fargs);
  Ref names;
  if (fkwargs && PyDict_Check(fkwargs) && PyDict_GET_SIZE(fkwargs)) {
    names = Ref(PyTuple_New(PyDict_GET_SIZE(fkwargs)));
    PyObject *k, *v;
    Py_ssize_t pos = 0, i = 0;
    while (PyDict_Next(fkwargs, &pos, &k, &v)) {
      Py_INCREF(k);
      PyTuple_SET_ITEM(names.get(), i++, k);
      flat.push_back(v);
    }
  }
  return s->CallFramework(name, flat.data(), n, names.get());
}

PyMethodDef tensor_methods[] = {
    {"__torch_function__", TorchFunction, METH_VARARGS | METH_CLASS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* TDivmod(PyObject* a, PyObject* b) {
  PyObject* t = IsTensor(a) ? a : b;
  Session* s = Live(AsTensor(t)->session);
  if (!s) return nullptr;
  PyObject* args[] = {t, t == a ? b : a};
  return s->CallFramework(MethodOf(*s, t, t == a ? "__divmod__" : "__rdivmod__"), args, 2, nullptr);
}

PyNumberMethods tensor_number = {
    .nb_add = TBinary<0>,
    .nb_subtract = TBinary<10>,
    .nb_multiply = TBinary<5>,
    .nb_remainder = TBinary<6>,
    .nb_divmod = TDivmod,
    .nb_power = TPower,
    .nb_negative = TUnary<&kNeg>,
    .nb_positive = TUnary<&kPos>,
    .nb_absolute = TUnary<&kAbs>,
    .nb_bool = TBool,
    .nb_invert = TUnary<&kInvert>,
    .nb_lshift = TBinary<3>,
    .nb_rshift = TBinary<9>,
    .nb_and = TBinary<1>,
    .nb_xor = TBinary<12>,
    .nb_or = TBinary<7>,
    .nb_int = TInt,
    .nb_float = TNumber,
    .nb_inplace_add = TBinary<13>,
    .nb_inplace_subtract = TBinary<23>,
    .nb_inplace_multiply = TBinary<18>,
    .nb_inplace_remainder = TBinary<19>,
    .nb_inplace_power = TIPower,
    .nb_inplace_lshift = TBinary<16>,
    .nb_inplace_rshift = TBinary<22>,
    .nb_inplace_and = TBinary<14>,
    .nb_inplace_xor = TBinary<25>,
    .nb_inplace_or = TBinary<20>,
    .nb_floor_divide = TBinary<2>,
    .nb_true_divide = TBinary<11>,
    .nb_inplace_floor_divide = TBinary<15>,
    .nb_inplace_true_divide = TBinary<24>,
    .nb_index = TNumber,
    .nb_matrix_multiply = TBinary<4>,
    .nb_inplace_matrix_multiply = TBinary<17>,
};
PySequenceMethods tensor_sequence = {.sq_length = TLen, .sq_item = TItem, .sq_contains = TContains};
PyMappingMethods tensor_mapping = {.mp_length = TLen, .mp_subscript = TGetItem, .mp_ass_subscript = TSetItem};

// --- SymInt ---------------------------------------------------------------------------------------------------------

std::optional<shape::Int> ExprOf(PyObject* o) {
  if (IsSymInt(o)) return reinterpret_cast<SymInt*>(o)->expr;
  if (PyLong_CheckExact(o) || PyBool_Check(o)) {
    int overflow;
    long long v = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (!overflow) return shape::Int(static_cast<int64_t>(v));
  }
  return std::nullopt;
}

Session* SessionOf(PyObject* a, PyObject* b) {
  return Live(reinterpret_cast<SymInt*>(IsSymInt(a) ? a : b)->session);
}

PyObject* Concrete(PyObject* o) {  // the number itself, guarded
  if (!IsSymInt(o)) {
    Py_INCREF(o);
    return o;
  }
  auto* i = reinterpret_cast<SymInt*>(o);
  Session* s = Live(i->session);
  return s ? PyLong_FromLongLong(s->env().Specialize(i->expr)) : nullptr;
}

// Anything the algebra does not cover happens on the concrete numbers.
PyObject* OnNumbers(PyObject* a, PyObject* b, PyObject* (*f)(PyObject*, PyObject*)) {
  Ref x(Concrete(a)), y(Concrete(b));
  return x && y ? f(x.get(), y.get()) : nullptr;
}

bool IsFloat(PyObject* o) {
  return PyFloat_CheckExact(o) || IsSymFloat(o);
}

// `f` on expressions gives the expression, on the numbers of this call what Python gets.
template <char kFloats = 0, typename F>
PyObject* SymBinary(PyObject* a, PyObject* b, PyObject* (*fallback)(PyObject*, PyObject*), F f) {
  if (IsTensor(a) || IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  if (kFloats && (IsFloat(a) || IsFloat(b))) return OnFloats(kFloats, a, b, fallback);
  Session* s = SessionOf(a, b);
  if (!s) return nullptr;
  auto x = ExprOf(a), y = ExprOf(b);
  if (!x || !y) return OnNumbers(a, b, fallback);
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
PyObject* SAdd(PyObject* a, PyObject* b) {
  return SymBinary<'+'>(a, b, PyNumber_Add, [](auto x, auto y) { return x + y; });
}
PyObject* SSub(PyObject* a, PyObject* b) {
  return SymBinary<'-'>(a, b, PyNumber_Subtract, [](auto x, auto y) { return x - y; });
}
PyObject* SMul(PyObject* a, PyObject* b) {
  return SymBinary<'*'>(a, b, PyNumber_Multiply, [](auto x, auto y) { return x * y; });
}
bool NonZero(PyObject* o) {  // a divisor the algebra may use: a positive constant or a size known to be positive
  auto e = ExprOf(o);
  if (!e) return false;
  if (auto c = e->as_const()) return *c > 0;
  Session* s = Session::Current();
  return s && s->env().Lt(shape::Int(0), *e);
}
PyObject* SFloorDiv(PyObject* a, PyObject* b) {
  if (!NonZero(b)) return OnNumbers(a, b, PyNumber_FloorDivide);
  return SymBinary(a, b, PyNumber_FloorDivide, [](auto x, auto y) { return FloorDiv(x, y); });
}
PyObject* SMod(PyObject* a, PyObject* b) {
  if (!NonZero(b)) return OnNumbers(a, b, PyNumber_Remainder);
  return SymBinary(a, b, PyNumber_Remainder, [](auto x, auto y) { return Mod(x, y); });
}
PyObject* STrueDiv(PyObject* a, PyObject* b) {
  if (IsTensor(a) || IsTensor(b)) Py_RETURN_NOTIMPLEMENTED;
  return OnFloats('/', a, b, PyNumber_TrueDivide);
}
PyObject* SPow(PyObject* a, PyObject* b, PyObject* modulus) {
  PyObject* r = modulus == Py_None && (IsFloat(a) || IsFloat(b)) ? FloatBinary('^', a, b) : nullptr;
  if (r || PyErr_Occurred()) return r;
  Ref x(Concrete(a)), y(Concrete(b)), z(Concrete(modulus));
  return x && y && z ? PyNumber_Power(x.get(), y.get(), z.get()) : nullptr;
}
template <PyObject* (*kF)(PyObject*, PyObject*)>
PyObject* SOther(PyObject* a, PyObject* b) {
  return OnNumbers(a, b, kF);
}
template <PyObject* (*kF)(PyObject*)>
PyObject* SUnary(PyObject* a) {
  Ref x(Concrete(a));
  return x ? kF(x.get()) : nullptr;
}
PyObject* SNeg(PyObject* a) {
  auto* i = reinterpret_cast<SymInt*>(a);
  Session* s = Live(i->session);
  if (!s) return nullptr;
  const shape::Int e = shape::Int(0) - i->expr;
  return s->env().Fits(e, -__int128{s->env().Hint(i->expr)}) ? s->SymIntObject(e) : SUnary<PyNumber_Negative>(a);
}
PyObject* SInt(PyObject* a) {
  return Concrete(a);
}
PyObject* SFloat(PyObject* a) {
  return SUnary<PyNumber_Float>(a);
}
int SBool(PyObject* a) {
  auto* i = reinterpret_cast<SymInt*>(a);
  Session* s = Live(i->session);
  return s ? !s->env().Eq(i->expr, shape::Int(0)) : -1;
}
PyObject* SCompare(PyObject* a, PyObject* b, int op) {
  auto x = ExprOf(a), y = ExprOf(b);
  Session* s = Live(reinterpret_cast<SymInt*>(a)->session);
  if (!s) return nullptr;
  if (!x || !y) {
    Ref p(Concrete(a)), q(Concrete(b));
    return p && q ? PyObject_RichCompare(p.get(), q.get(), op) : nullptr;
  }
  shape::Env& e = s->env();
  bool r = op == Py_EQ   ? e.Eq(*x, *y)
           : op == Py_NE ? !e.Eq(*x, *y)
           : op == Py_LT ? e.Lt(*x, *y)
           : op == Py_LE ? e.Le(*x, *y)
           : op == Py_GT ? e.Lt(*y, *x)
                         : e.Le(*y, *x);
  return PyBool_FromLong(r);
}
PyObject* SRepr(PyObject* a) {
  Ref x(Concrete(a));
  return x ? PyObject_Repr(x.get()) : nullptr;
}
Py_hash_t SHash(PyObject* a) {
  Ref x(Concrete(a));
  return x ? PyObject_Hash(x.get()) : -1;
}
PyObject* SGetAttr(PyObject* a, PyObject* name) {
  if (PyUnicode_CompareWithASCIIString(name, "__class__") == 0) {
    Py_INCREF(&PyLong_Type);
    return reinterpret_cast<PyObject*>(&PyLong_Type);
  }
  Ref x(Concrete(a));
  return x ? PyObject_GetAttr(x.get(), name) : nullptr;
}

PyNumberMethods symint_number = {
    .nb_add = SAdd,
    .nb_subtract = SSub,
    .nb_multiply = SMul,
    .nb_remainder = SMod,
    .nb_divmod = SOther<PyNumber_Divmod>,
    .nb_power = SPow,
    .nb_negative = SNeg,
    .nb_positive = SInt,
    .nb_absolute = SUnary<PyNumber_Absolute>,
    .nb_bool = SBool,
    .nb_invert = SUnary<PyNumber_Invert>,
    .nb_lshift = SOther<PyNumber_Lshift>,
    .nb_rshift = SOther<PyNumber_Rshift>,
    .nb_and = SOther<PyNumber_And>,
    .nb_xor = SOther<PyNumber_Xor>,
    .nb_or = SOther<PyNumber_Or>,
    .nb_int = SInt,
    .nb_float = SFloat,
    .nb_floor_divide = SFloorDiv,
    .nb_true_divide = STrueDiv,
    .nb_index = SInt,
};

// --- Lazy: nothing may touch it but the session ---------------------------------------------------------------------

void LDealloc(PyObject* a) {
  auto* l = reinterpret_cast<Lazy*>(a);
  Py_XDECREF(l->value);
  Py_XDECREF(l->resolved);
  PyObject_Free(a);
}

}  // namespace

PyTypeObject TensorProxyType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.TensorProxy",
    .tp_basicsize = sizeof(TensorProxy),
    .tp_dealloc = TDealloc,
    .tp_repr = TRepr,
    .tp_as_number = &tensor_number,
    .tp_as_sequence = &tensor_sequence,
    .tp_as_mapping = &tensor_mapping,
    .tp_hash = THash,
    .tp_str = TRepr,
    .tp_getattro = TGetAttr,
    .tp_setattro = TSetAttr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_richcompare = TCompare,
    .tp_iter = TIter,
    .tp_methods = tensor_methods,
};

PyTypeObject SymIntType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.SymInt",
    .tp_basicsize = sizeof(SymInt),
    .tp_dealloc = TDealloc,
    .tp_repr = SRepr,
    .tp_as_number = &symint_number,
    .tp_hash = SHash,
    .tp_str = SRepr,
    .tp_getattro = SGetAttr,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_richcompare = SCompare,
    .tp_methods = NumberMethods<Concrete>::rows,
};

PyTypeObject LazyType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.Lazy",
    .tp_basicsize = sizeof(Lazy),
    .tp_dealloc = LDealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

bool ReadyProxies() {
  return PyType_Ready(&TensorProxyType) == 0 && PyType_Ready(&SymIntType) == 0 && ReadySymFloat() &&
         PyType_Ready(&UnseenType) == 0 && PyType_Ready(&ItemFloatType) == 0 && PyType_Ready(&LazyType) == 0 &&
         ReadyModes();
}

PyObject* NewTensorProxy(Session* s, TraceId id) {
  auto* p = PyObject_New(TensorProxy, &TensorProxyType);
  if (p) p->session = s, p->id = id;
  return reinterpret_cast<PyObject*>(p);
}

PyObject* NewSymInt(Session* s, shape::Int e) {
  auto* p = PyObject_New(SymInt, &SymIntType);
  if (p) p->session = s, new (&p->expr) shape::Int(e);
  return reinterpret_cast<PyObject*>(p);
}

PyObject* NewLazy(Session* s, PyObject* value, const guard::Source* source) {
  auto* p = PyObject_New(Lazy, &LazyType);
  if (!p) return nullptr;
  Py_INCREF(value);
  p->session = s, p->value = value, p->source = source, p->resolved = nullptr;
  return reinterpret_cast<PyObject*>(p);
}

}  // namespace framejit::capture
