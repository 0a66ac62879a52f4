// The stand-ins that captured code handles: TensorProxy for tensors and arrays, SymInt and SymFloat for numbers that
// became symbols, Lazy for slots of the outermost frame that nothing has looked at yet. A proxy implements every
// protocol slot by asking the session, so that C code (sum, max, sorted, torch's own dispatch through
// __torch_function__) records like bytecode does.
#pragma once

#include <cstddef>

#include "capture/ref.h"
#include "framejit/call.h"

namespace framejit::guard {
struct Source;
}

namespace framejit::capture {

class Session;

struct TensorProxy {
  PyObject_HEAD Session* session;
  TraceId id;
};

struct SymInt {
  PyObject_HEAD Session* session;
  shape::Int expr;              // It needs no destructor.
  const guard::Source* source;  // Where this very object was found; null: it was computed.
};

struct SymFloat {
  PyObject_HEAD Session* session;
  uint32_t symbol;
  const guard::Source* source;  // As SymInt's.
};

struct Lazy {
  PyObject_HEAD Session* session;
  PyObject* value;  // The real object of the frame.
  const guard::Source* source;
  PyObject* resolved;  // What captured code sees of it, once it was used.
};

// `session`, if it captures on this thread. Else null with an error: `what` is only there while its capture goes on.
Session* Live(Session* session, const char* what);
void FreeStandIn(PyObject* o);  // of those that own nothing
// Slots and methods of what is only there while a capture goes on: each ends it, as `kAsk` says.
template <std::nullptr_t (*kAsk)(PyObject*)>
struct Asks {
  static PyObject* Unary(PyObject* o) { return kAsk(o); }
  static PyObject* Binary(PyObject* o, PyObject*) { return kAsk(o); }
  static Py_hash_t Hash(PyObject* o) { return kAsk(o), -1; }
};

bool ReadyNumbers();
bool ReadyProxies();  // Called once, at module initialisation.
extern PyTypeObject TensorProxyType, SymIntType, SymFloatType, LazyType, UnseenType, ItemFloatType;

inline bool IsTensor(PyObject* o) {
  return Py_TYPE(o) == &TensorProxyType;
}
inline bool IsSymInt(PyObject* o) {
  return Py_TYPE(o) == &SymIntType;
}
inline bool IsSymFloat(PyObject* o) {
  return Py_TYPE(o) == &SymFloatType;
}
inline bool IsLazy(PyObject* o) {
  return Py_TYPE(o) == &LazyType;
}
inline bool IsItemFloat(PyObject* o) {
  return Py_TYPE(o) == &ItemFloatType;
}
inline bool IsUnseen(PyObject* o) {
  return Py_TYPE(o) == &UnseenType;
}
inline TensorProxy* AsTensor(PyObject* o) {
  return reinterpret_cast<TensorProxy*>(o);
}

PyObject* NewTensorProxy(Session* s, TraceId id);
PyObject* NewSymInt(Session* s, shape::Int e, const guard::Source* source = nullptr);
PyObject* NewSymFloat(Session* s, uint32_t symbol, const guard::Source* source = nullptr);
// Of numbers of which one is a symbol; null without an exception: on the numbers themselves, which are guarded then.
PyObject* OnFloats(char kind, PyObject* a, PyObject* b, binaryfunc f);  // As FloatBinary, or `f` of the numbers.
PyObject* FloatBinary(char kind, PyObject* a, PyObject* b);             // The kinds are FloatOp's.
PyObject* FloatOf(PyObject* number);                                    // What float(number) gives.
PyObject* IntOf(PyObject* number);                                      // What int(number) gives.
PyObject* RoundedToInt(PyObject* number, bool up);                   // math.floor or math.ceil; of no negative number
PyObject* FloatFunction(std::string_view name, PyObject* argument);  // Calls a function of the module `math`.
// The float that the one element of a tensor is (item_float.cc); null without an error: it cannot be held so.
PyObject* NewItemFloat(Session& s, PyObject* proxy);
PyObject* FloatOfCount(PyObject* number);  // likewise, of an integer that only the run knows
PyObject* IntOfItem(PyObject* item);       // int(item), a number that data decides
TraceId TensorOfItem(PyObject* item);      // The tensor of one float64 that the number is held in.
// What stands for it in an operation with that tensor, a tensor; null without an error: nothing does.
PyObject* ItemFor(Session& s, PyObject* item, const TensorMeta& beside);
// The tensor of such a number where the floats of that tensor hold it; null: they may not, or an exception.
PyObject* ItemAsFactor(Session& s, PyObject* item, const TensorMeta& beside);
// An object that is there, and of which nothing else is known (unseen.cc). AskUnseen: something is (Break).
PyObject* NewUnseen(Session& s, const char* what);
std::nullptr_t AskUnseen(PyObject* unseen);
PyObject* NewLazy(Session* s, PyObject* value, const guard::Source* source);

// The operations, shared by the slots and by CaptureSemantics.
PyObject* TensorAttr(Session& s, PyObject* proxy, PyObject* name);
// The operator or attribute `name` of the tensor's class is what the rows know. False (Break): it was replaced.
bool AsEver(Session& s, PyObject* proxy, const std::string& name);
PyObject* TensorBinary(Session& s, int nb_op, PyObject* a, PyObject* b);
PyObject* TensorUnary(Session& s, const char* method, PyObject* a);
PyObject* TensorCompare(Session& s, PyObject* a, PyObject* b, int op);
PyObject* TensorIter(Session& s, PyObject* proxy);
PyObject* TensorItem(Session& s, PyObject* proxy, Py_ssize_t i);  // the i-th element or row, or an IndexError
// A torch.Size that holds symbols; torch's own methods would want ints.
bool IsSymbolicSize(PyObject* o);
PyObject* SizeItem(Session& s, PyObject* size, PyObject* key);
PyObject* SizeConcat(Session& s, PyObject* a, PyObject* b);
PyObject* SizeMethod(Session& s, PyObject* size, const char* name, PyObject* const* args, Py_ssize_t nargs);
std::string_view FrameworkPrefix(Session& s, PyObject* proxy);  // The name of the class of such tensors.
Callee MethodOf(Session& s, PyObject* proxy, std::string_view name);
PyObject* FlagsType();                       // The class of what stands for numpy.ndarray.flags in a graph: borrowed
PyObject* PlainTensorClass(bool parameter);  // torch.Tensor or torch.nn.Parameter: borrowed
PyObject* TensorClass(Session& s, PyObject* proxy);  // torch.Tensor, Parameter, ndarray, np.float64: new reference

}  // namespace framejit::capture
