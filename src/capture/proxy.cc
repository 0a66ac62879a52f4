// This file has the protocol slots of the proxies. Every slot asks the session, and none computes anything itself.
#include "capture/proxy.h"

#include <structmember.h>

#include "capture/called.h"
#include "capture/modes.h"
#include "capture/session.h"
#include "capture/unread_text.h"

namespace framejit::capture {
namespace {

Session* Live(Session* s) {
  return Live(s, "tensor");
}

// Gives the session of the operand that is a proxy. Python calls binary slots with the proxy on either side.
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
constexpr const char* kFloat = "__float__";
constexpr const char* kIndex = "__index__";

int TBool(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  if (!s || !AsEver(*s, a, "__bool__")) return -1;
  if (auto known = s->lowering().KnownTruth(AsTensor(a)->id)) return *known;
  if (Ref known(s->guessing().Constant(AsTensor(a)->id, "__bool__")); known) return known.get() == Py_True;
  if (Ref guess(s->guessing().Value(AsTensor(a)->id, true)); guess) return guess.get() == Py_True;
  s->Break(BreakId::kTensorBool);
  return -1;
}
PyObject* TInt(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  if (!s || !AsEver(*s, a, "__int__")) return nullptr;
  if (PyObject* known = s->guessing().Constant(AsTensor(a)->id, "__int__")) return known;
  Ref guess(s->data_sizes().ItemOf(AsTensor(a)->id, false));
  return guess ? PyNumber_Long(guess.get()) : s->Break(BreakId::kTensorItem);
}
template <const char* const* kName>
PyObject* TNumber(PyObject* a) {
  Session* s = Live(AsTensor(a)->session);
  if (!s || !AsEver(*s, a, *kName)) return nullptr;
  PyObject* known = s->guessing().Constant(AsTensor(a)->id, *kName);
  if (!known && kName == &kIndex) known = s->guessing().Value(AsTensor(a)->id, false);  // it counts, or is a place
  if (known && PyBool_Check(known)) known = (Py_DECREF(known), nullptr);
  return known ? known : s->Break(BreakId::kTensorItem);
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
  // torch asks the object itself, which has the class method below.
  if (!PyUnicode_CompareWithASCIIString(name, "__torch_function__")) return PyObject_GenericGetAttr(a, name);
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

// torch's argument parser asks any non-Tensor argument for __torch_function__: so torch functions called from C code
// (map, reduce, partial) reach the session too.
PyObject* TorchFunction(PyObject*, PyObject* args) {
  PyObject *func, *types, *fargs, *fkwargs = nullptr;
  if (!PyArg_ParseTuple(args, "OOO|O", &func, &types, &fargs, &fkwargs)) return nullptr;
  Session* s = Live(Session::Current());
  if (!s) return nullptr;
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

// What C code looks for on the type, and where `object` would answer, or nobody.
template <const char* const* kName>
PyObject* TProtocol(PyObject* a, PyObject*) {
  Session* s = Live(AsTensor(a)->session);
  return s ? s->Break(BreakId::kTensorProtocol, *kName) : nullptr;
}
constexpr const char *kFormat = "__format__", *kRound = "__round__", *kTrunc = "__trunc__", *kFloor = "__floor__",
                     *kCeil = "__ceil__", *kComplex = "__complex__", *kReversed = "__reversed__",
                     *kReduce = "__reduce_ex__", *kSize = "__sizeof__", *kDir = "__dir__", *kBytes = "__bytes__";

PyMethodDef tensor_methods[] = {
    {"__torch_function__", TorchFunction, METH_VARARGS | METH_CLASS, nullptr},
    {kFormat, TProtocol<&kFormat>, METH_VARARGS, nullptr},
    {kRound, TProtocol<&kRound>, METH_VARARGS, nullptr},
    {kTrunc, TProtocol<&kTrunc>, METH_VARARGS, nullptr},
    {kFloor, TProtocol<&kFloor>, METH_VARARGS, nullptr},
    {kCeil, TProtocol<&kCeil>, METH_VARARGS, nullptr},
    {kComplex, TProtocol<&kComplex>, METH_VARARGS, nullptr},
    {kReversed, TProtocol<&kReversed>, METH_VARARGS, nullptr},
    {kReduce, TProtocol<&kReduce>, METH_VARARGS, nullptr},
    {kSize, TProtocol<&kSize>, METH_VARARGS, nullptr},
    {kDir, TProtocol<&kDir>, METH_VARARGS, nullptr},
    {kBytes, TProtocol<&kBytes>, METH_VARARGS, nullptr},
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
    .nb_float = TNumber<&kFloat>,
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
    .nb_index = TNumber<&kIndex>,
    .nb_matrix_multiply = TBinary<4>,
    .nb_inplace_matrix_multiply = TBinary<17>,
};
// An array has a buffer, and so has a number of NumPy's.
int TBuffer(PyObject* a, Py_buffer* view, int) {
  view->obj = nullptr;
  if (Session* s = Live(AsTensor(a)->session)) s->Break(BreakId::kTensorProtocol, "the buffer of a tensor");
  return -1;
}
PyBufferProcs tensor_buffer = {.bf_getbuffer = TBuffer};
PySequenceMethods tensor_sequence = {.sq_length = TLen, .sq_item = TItem, .sq_contains = TContains};
PyMappingMethods tensor_mapping = {.mp_length = TLen, .mp_subscript = TGetItem, .mp_ass_subscript = TSetItem};

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
    .tp_dealloc = FreeStandIn,
    .tp_repr = TRepr,
    .tp_as_number = &tensor_number,
    .tp_as_sequence = &tensor_sequence,
    .tp_as_mapping = &tensor_mapping,
    .tp_hash = THash,
    .tp_str = TRepr,
    .tp_getattro = TGetAttr,
    .tp_setattro = TSetAttr,
    .tp_as_buffer = &tensor_buffer,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_richcompare = TCompare,
    .tp_iter = TIter,
    .tp_methods = tensor_methods,
};

PyTypeObject LazyType = {
    .ob_base = {PyObject_HEAD_INIT(nullptr) 0},
    .tp_name = "framejit.Lazy",
    .tp_basicsize = sizeof(Lazy),
    .tp_dealloc = LDealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

Session* Live(Session* session, const char* what) {
  if (session && session == Session::Current()) return session;
  PyErr_Format(PyExc_RuntimeError, "framejit: a %s of a finished capture was used", what);
  return nullptr;
}

void FreeStandIn(PyObject* o) {
  PyObject_Free(o);
}

bool ReadyProxies() {
  return PyType_Ready(&TensorProxyType) == 0 && ReadyNumbers() && PyType_Ready(&UnseenType) == 0 &&
         PyType_Ready(&CalledType) == 0 && PyType_Ready(&UnreadTextType) == 0 && PyType_Ready(&UnreadMapType) == 0 &&
         PyType_Ready(&ItemFloatType) == 0 && PyType_Ready(&LazyType) == 0 && ReadyModes();
}

PyObject* NewTensorProxy(Session* s, TraceId id) {
  auto* p = PyObject_New(TensorProxy, &TensorProxyType);
  if (p) p->session = s, p->id = id;
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
