// This file has the lists of numbers in a loop's code, which reads them, writes them, and makes them longer and
// shorter. Their items are objects of Python, which functions here take apart and make. A list's length is read where
// it is wanted, since the program may change it.
#include <cstddef>

#include "capture/scalar/objects.h"
#include "capture/scalar/translator.h"
#include "guard/int_layout.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"

namespace framejit::capture::scalar {

namespace {

// True: *out has the number of that object.
int64_t NumberOfInt(PyObject* o, int64_t* out) {
  int overflow;
  *out = PyLong_AsLongLongAndOverflow(o, &overflow);
  return !overflow;
}
int64_t NumberOfBool(PyObject* o, int64_t* out) {
  *out = o == Py_True;
  return PyBool_Check(o);
}
int64_t NumberOfNumpy(PyObject* o, int64_t* out, int64_t type) {
  return Py_TYPE(o) == tensor::Numpy()->scalar[type] && NumberOfScalar(static_cast<DType>(type), o, out);
}

enum : int64_t { kOfPython = -1, kBoolOfPython = -2 };  // Another kind is the type of a NumPy scalar.

PyObject* Boxed(int64_t v, int64_t kind) {
  if (kind == kOfPython) return PyLong_FromLongLong(v);
  if (kind == kBoolOfPython) return PyBool_FromLong(v != 0);
  return tensor::Numpy()->make_scalar(&v, tensor::Numpy()->descr[kind], nullptr);
}
template <typename T>
PyObject* Boxed(T v, int64_t kind) {
  if (kind == kOfPython) return PyFloat_FromDouble(v);
  return tensor::Numpy()->make_scalar(&v, tensor::Numpy()->descr[kind], nullptr);
}

// False: nothing was done, and Python does it. A not-a-number is left to it, too: it is equal to itself alone as an
// object, so that which object it is shows in comparisons of lists.
template <typename T>
int64_t StoreItem(PyObject* list, int64_t index, T v, int64_t kind) {
  if (v != v) return 0;
  PyObject* old = PyList_GET_ITEM(list, index);
  if (!DiesUnseen(old)) return 0;
  PyObject* made = Boxed(v, kind);
  if (!made) return PyErr_Clear(), 0;
  PyList_SET_ITEM(list, index, made);
  Py_DECREF(old);
  return 1;
}
template <typename T>
int64_t AppendItem(PyObject* list, T v, int64_t kind) {
  if (v != v) return 0;
  const Ref made(Boxed(v, kind));
  if (made && PyList_Append(list, made.get()) == 0) return 1;
  return PyErr_Clear(), 0;
}
int64_t DropItem(PyObject* list, int64_t index) {
  return PyList_SetSlice(list, index, index + 1, nullptr) == 0 ? 1 : (PyErr_Clear(), 0);
}

}  // namespace

int Translator::LoadField(int address, int64_t offset, ScalarType t) {
  return Emit({.op = ScalarOp::kLoad,
               .type = t,
               .a = address,
               .b = Int(offset),
               .dtype = t == ScalarType::kF64 ? DType::kFloat64 : DType::kInt64,
               .id = -2,
               .array = kLists});
}

// Of an int of Python: those of one digit are read here, longer ones by a function.
int Translator::IntAt(int object) {
  const guard::IntLayout layout = guard::LayoutOfInts();
  const int said = LoadField(object, layout.sign, ScalarType::kInt);
  const auto op = [&](ScalarOp o, int a, int b) { return Op(o, ScalarType::kInt, a, b); };
  const int one = layout.tagged ? Compare(ScalarOp::kBelow, said, Int(16))
                                : Compare(ScalarOp::kBelow, op(ScalarOp::kAdd, said, Int(1)), Int(3));
  const int sign = layout.tagged ? op(ScalarOp::kSub, Int(1), op(ScalarOp::kAnd, said, Int(3))) : said;
  const int exit = Exit(), number = Variable(ScalarType::kInt);
  const int near = static_cast<int>(code.blocks.size()), far = near + 1, behind = near + 2;
  Emit({.op = ScalarOp::kBranch, .a = one, .other = far, .imm = near});
  code.blocks.resize(near + 3);
  extra_blocks_ += 3;
  block = near;
  const int digit = Emit(
      {.op = ScalarOp::kLoad, .a = object, .b = Int(layout.digit), .dtype = DType::kUInt32, .id = -2, .array = kLists});
  Emit({.op = ScalarOp::kSet, .a = Op(ScalarOp::kMul, ScalarType::kInt, sign, digit), .imm = number});
  Emit({.op = ScalarOp::kJump, .imm = behind});
  block = far;
  const int to = Emit({.op = ScalarOp::kAddress, .type = ScalarType::kPtr, .imm = scratch, .id = -2});
  const int known = CallComputes(reinterpret_cast<void*>(NumberOfInt), ScalarType::kBool, {object, to});
  code.blocks[block].back().looks = true;
  Emit({.op = ScalarOp::kExitIf, .a = Op(ScalarOp::kNot, ScalarType::kBool, known), .exit = exit});
  const int read = Emit({.op = ScalarOp::kCell, .type = ScalarType::kInt, .imm = scratch, .id = -2});
  Emit({.op = ScalarOp::kSet, .a = read, .imm = number});
  Emit({.op = ScalarOp::kJump, .imm = behind});
  block = behind;
  return Emit({.op = ScalarOp::kGet, .type = ScalarType::kInt, .imm = number, .id = -2});
}

// The number of the object at an address, or an exit where it is none of this kind.
Val Translator::NumberAt(int object, const Val& kind) {
  const auto check_type = [&](PyTypeObject* type) {
    const int found = LoadField(object, offsetof(PyObject, ob_type), ScalarType::kPtr);
    ExitIf(Compare(ScalarOp::kNe, found, Pointer(type)));
  };
  if (kind.is == Is::kTuple) {
    check_type(&PyTuple_Type);
    const int size = LoadField(object, offsetof(PyVarObject, ob_size), ScalarType::kInt);
    ExitIf(Compare(ScalarOp::kNe, size, Int(static_cast<int64_t>(kind.items.size()))));
    std::vector<Val> items;
    for (size_t i = 0; i < kind.items.size(); ++i) {
      const auto at = static_cast<int64_t>(offsetof(PyTupleObject, ob_item) + i * sizeof(PyObject*));
      items.push_back(NumberAt(LoadField(object, at, ScalarType::kPtr), kind.items[i]));
    }
    return Tuple(std::move(items));
  }
  if (kind.is == Is::kFloat) {
    check_type(&PyFloat_Type);
    const int number = LoadField(object, offsetof(PyFloatObject, ob_fval), ScalarType::kF64);
    ExitIf(Compare(ScalarOp::kNe, number, number));  // which object it is may be asked for later
    return New(Is::kFloat, number);
  }
  if (kind.is == Is::kInt) {
    check_type(&PyLong_Type);
    return New(Is::kInt, IntAt(object));
  }
  const int to = Emit({.op = ScalarOp::kAddress, .type = ScalarType::kPtr, .imm = scratch, .id = -2});
  std::vector<int> args{object, to};
  const void* f = reinterpret_cast<void*>(NumberOfBool);
  Val v = New(kind.is, -1);
  if (kind.is == Is::kNumpy) {
    f = reinterpret_cast<void*>(NumberOfNumpy);
    args.push_back(Int(static_cast<int64_t>(kind.dtype)));
    v.dtype = kind.dtype;
  }
  ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, Call(f, ScalarType::kBool, args)));
  v.value = Emit({.op = ScalarOp::kCell, .type = v.type(), .imm = scratch, .id = -2});
  if (kind.is == Is::kNumpy && Float(kind.dtype)) ExitIf(Compare(ScalarOp::kNe, v.value, v.value));
  return v;
}

Val Translator::ListItem(int list, int index) {
  if (UseArray(list).letters()) {
    const int letter = Load(Data(list), index, DType::kUInt8, list);
    const Val number = New(Is::kInt, letter);
    return out_.objects[list].bytes ? number : Letter(number);
  }
  const Val kind = UseArray(list).item;
  if (kind.is == Is::kNull) {
    unknown_.insert(list);
    throw Unsupported{"an item of a list of which nothing is known"};
  }
  const int items = LoadField(Data(list), offsetof(PyListObject, ob_item), ScalarType::kPtr);
  const int place = Op(ScalarOp::kMul, ScalarType::kInt, index, Int(sizeof(PyObject*)));
  return NumberAt(LoadField(Op(ScalarOp::kAt, ScalarType::kPtr, items, place), 0, ScalarType::kPtr), kind);
}

// A text of one letter that is known.
Val Translator::AsLetter(const Val& v) {
  if (v.is != Is::kObject || !out_.objects[v.object].fixed) return v;
  const int letter = LetterOf(out_.objects[v.object].object.get());
  return letter < 0 ? v : Letter(IntConstant(*this, letter));
}

// Is the letter or the int one of a few that are known?
std::optional<Val> Translator::IsIn(const Val& v, const Val& all) {
  constexpr Py_ssize_t kMost = 16;
  const Val wanted = AsLetter(v);
  std::vector<Val> known;
  if (all.is == Is::kTuple) {
    known = all.items;
  } else if (all.is == Is::kObject && out_.objects[all.object].fixed) {
    PyObject* o = out_.objects[all.object].object.get();
    if (!PyUnicode_CheckExact(o) && !PyTuple_CheckExact(o) && !PyFrozenSet_CheckExact(o)) return std::nullopt;
    const Ref items(PyObject_Size(o) <= kMost ? PySequence_Tuple(o) : nullptr);
    for (Py_ssize_t i = 0; items && i < PyTuple_GET_SIZE(items.get()); ++i)
      known.push_back(AsLetter(Fixed(PyTuple_GET_ITEM(items.get(), i))));
    if (!items) return PyErr_Clear(), std::nullopt;
  } else {
    return std::nullopt;
  }
  if (known.empty()) return std::nullopt;  // what it is asked of is looked at all the same
  int in = Flag(false);
  for (const Val& one : known) {
    if (one.is != wanted.is || (one.is != Is::kLetter && one.is != Is::kInt)) return std::nullopt;
    in = Op(ScalarOp::kOr, ScalarType::kBool, in, Value(scalar::Compare(*this, Py_EQ, wanted, one)));
  }
  return New(Is::kBool, in);
}

// The functions for an item that is such a number, with their last arguments.
std::pair<ScalarType, std::vector<int>> Translator::ItemArguments(int object, const Val& v) {
  if (!v.scalar()) throw Unsupported{"something else than a number in a list"};
  ObjectSpec& o = out_.objects[object];
  if (o.item.is == Is::kNull) o.item = New(v.is, -1), o.item.dtype = v.dtype;
  const ScalarType t = v.type();
  const int number = t == ScalarType::kBool ? Op(ScalarOp::kBoolToInt, ScalarType::kInt, Value(v)) : Value(v);
  const int64_t kind = v.is == Is::kBool ? kBoolOfPython : v.python() ? kOfPython : static_cast<int64_t>(v.dtype);
  return {t == ScalarType::kBool ? ScalarType::kInt : t, {number, Int(kind)}};
}

ItemKinds Translator::Learned(const Translation& made) const {
  ItemKinds kinds;
  for (int k : unknown_)
    if (const ObjectSpec& o = made.objects[k]; o.item.is != Is::kNull) kinds[o.object.get()] = o.item;
  return kinds;
}

void Translator::WritesLists() {
  if (hopes_.transaction) throw NotUndone{};
  out_.lists = true;
}

void Translator::SetListItem(State& s, int object, const Val& index, const Val& value) {
  if (out_.objects[object].letters()) throw Unsupported{"a store into a text"};
  const int at = IndexWithin(*this, index, Size(object, 0));
  auto [t, args] = ItemArguments(object, value);
  ComputeAll(s);
  Settle();
  const void* f = t == ScalarType::kInt   ? reinterpret_cast<void*>(StoreItem<int64_t>)
                  : t == ScalarType::kF64 ? reinterpret_cast<void*>(StoreItem<double>)
                                          : reinterpret_cast<void*>(StoreItem<float>);
  args.insert(args.begin(), {Data(object), at});
  ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, Call(f, ScalarType::kBool, args)));
  WritesLists();
  Wrote(s);
}

// Translates list.append and list.pop, and gives nothing for other methods.
std::optional<Val> Translator::ListMethod(State& s, const std::string& name, int object, const std::vector<Val>& args) {
  if (name == "append" && args.size() == 1) {
    auto [t, given] = ItemArguments(object, args[0]);
    ComputeAll(s);
    Settle();
    const void* f = t == ScalarType::kInt   ? reinterpret_cast<void*>(AppendItem<int64_t>)
                    : t == ScalarType::kF64 ? reinterpret_cast<void*>(AppendItem<double>)
                                            : reinterpret_cast<void*>(AppendItem<float>);
    given.insert(given.begin(), Data(object));
    ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, Call(f, ScalarType::kBool, given)));
    WritesLists();
    Wrote(s);
    return Fixed(Py_None);
  }
  if (name == "pop" && args.size() <= 1) {
    const int size = Size(object, 0);
    int at = Op(ScalarOp::kSub, ScalarType::kInt, size, Int(1));
    ExitIf(Compare(ScalarOp::kLt, at, Int(0)));
    if (!args.empty()) at = IndexWithin(*this, args[0], size);
    Val v = ListItem(object, at);
    ComputeAll(s);
    Settle();
    ExitIf(Op(ScalarOp::kNot, ScalarType::kBool,
              Call(reinterpret_cast<void*>(DropItem), ScalarType::kBool, {Data(object), at})));
    WritesLists();
    Wrote(s);
    return v;
  }
  return std::nullopt;
}

}  // namespace framejit::capture::scalar
