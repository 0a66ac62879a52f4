// What a loop's scalar code knows of the program's values while it is made: of which kind each is, which decides the
// code, and where its number lies.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "capture/ref.h"
#include "codegen/scalar_code.h"

namespace framejit::capture::scalar {

using codegen::ScalarInst;
using codegen::ScalarOp;
using codegen::ScalarType;

enum class Is : uint8_t {
  kNull,    // nothing: an unbound local, the empty slot of a call
  kFrame,   // whatever the frame holds there: nothing may be done with it
  kObject,  // `object`, one of the code's objects
  kBool,    // Python's numbers are this and the two that follow.
  kInt,
  kFloat,
  kAddress,    // An address in memory, which only views hold.
  kNumpy,      // A NumPy scalar of type `dtype`.
  kComplex,    // a complex number: real and imaginary part, which are of Python; `dtype`: of NumPy, if not kBool
  kLetter,     // A text of one of the first 256 letters, each of which is one object; its item is the letter's number.
  kEither,     // A float of Python or a numpy.float64, or an int or a numpy.int64: the number as the latter, and
               // whether it is one.
  kTuple,      // Its items are those of the tuple.
  kLiteral,    // A list that the program writes down for np.array; its items are those of the list.
  kRange,      // Its items are start, stop and step.
  kRangeIter,  // next, step, left; with the step 1 in place of the last where it stops, and in the loop a limit before
               // that
  kSeqIter,    // index, and the list or array that is gone through
  kBackIter,   // The same, from the end.
  kTupleIter,  // a tuple, of which `node` is the next item
  kEnumerate,  // Its items are the count and the iterator.
  kZip,        // Its items are iterators.
  kChunk,      // in the loop alone: an iterator, and how many of its items are gone through before others get their
               // turn, or where it stands then
  kSlice,      // start, stop, step, which may be None
  kView,       // a part of the array `object`: offset in bytes, sizes, strides in bytes; without object one that the
               // code made, of `dtype`: last the address of its memory
  kDeferred,   // an array that was not computed: the translation's node
};

struct Val {
  Is is = Is::kNull;
  DType dtype{};
  int object = -1;
  int node = -1;
  bool unit = false;     // ranges: the step is 1; views: the last stride is that of neighbours
  uint32_t ones = 0;     // Of views: the axes that None made.
  bool natural = false;  // iterators: the next is small, and none is negative; so ints at the entry that the code keeps
  bool small = false;    // ints at the entry: as IsSmall says
  bool few = false;      // ranges: of a few numbers, whatever is computed
  bool brief = false;    // iterators over ranges: all numbers that were left are gone through at once (Hopes::brief)
  bool whole = false;    // views of what the code made: all of it, the array itself
  uint8_t born = 0;      // and how many frames there were up to the outermost one that held it
  int same = 0;          // views: those of one number are one object
  bool given = false;    // numbers of Hopes::whole: it may be the very object that the function was called with
  int origin = -1;    // of those, in their block: the value that says which local held it at the entry, from 1 on, or
                      // 0: it is another one. At an exit the cell.
  bool held = false;  // floats: the program may have this very object under another name
  std::vector<Val> items;
  // The number of a scalar: its value, or else the variable that holds it.
  int value = -1, home = -1;
  std::optional<int64_t> constant;  // The value of an int that is known.

  bool scalar() const { return is >= Is::kBool && is <= Is::kNumpy; }
  bool integral() const { return is == Is::kBool || is == Is::kInt || (is == Is::kNumpy && dtype < DType::kFloat16); }
  bool truth() const { return is == Is::kBool || (is == Is::kNumpy && dtype == DType::kBool); }
  bool python() const { return is != Is::kNumpy; }
  // What arithmetic sees of a float of either kind.
  const Val& number() const { return is == Is::kEither ? items[0] : *this; }
  bool made() const { return is == Is::kView && object < 0; }
  int rank() const { return static_cast<int>(items.size() - (object < 0 ? 2 : 1)) / 2; }  // The rank of a view.
  bool iterator() const { return is >= Is::kRangeIter && is <= Is::kChunk; }
  ScalarType type() const;
  std::string key() const;  // Names the kind.
};

Val Object(int object);
Val Tuple(std::vector<Val> items);
Val Letter(Val number);

// What is not understood: the instruction is left to Python.
struct Unsupported {
  std::string why;
};

// Something that the code refers to. Those that are `used` are guarded: arrays by what the code takes for granted of
// them, all others by identity.
struct ObjectSpec {
  Ref object;  // The object as it was when the code was made.
  bool array = false, list = false;
  bool bytes = false, text = false;  // the latter of ASCII letters alone
  DType dtype{};
  Val item;  // of a list, its kind; nothing is known of an empty one
  int rank = 0;
  bool unit = false;                   // the last stride is that of neighbours
  bool written = false;                // Are elements of it written?
  bool mostly = false;                 // Most of them at once, in a way that may have to be undone?
  bool seen = false, natural = false;  // are its ints looked at before the code is entered (undo.h); not negative?
  bool used = false;
  int cells = -1;      // data, then sizes, then strides in bytes; of a list the object;
                       // of letters the first one, and how many there are
  bool fixed = false;  // by identity, found through a guard of a name
  Ref code;            // of a function that became part of the code

  bool letters() const { return bytes || text; }
  bool sequence() const { return list || letters(); }
};

// In which array elements lie (ScalarInst::array), where that is none of the objects: all lists, all that code made,
// what is known of products.
inline constexpr int kLists = 1 << 20, kMadeArrays = kLists + 1, kKnownDots = kLists + 2;
inline constexpr int kFirstMade = kLists + 3;  // those that are known to be apart, once all code is written

// Writes instructions into the current block. `exit` is asked for the exit of the program's current instruction.
class Builder {
 public:
  virtual ~Builder() = default;
  virtual int Exit() = 0;

  int Emit(ScalarInst i) {
    if (i.id == -2) i.id = code.num_values++;
    code.blocks[block].push_back(i);
    return code.blocks[block].back().id;
  }
  int Op(ScalarOp op, ScalarType type, int a = -1, int b = -1, int c = -1) {
    const int id = Emit({.op = op, .type = type, .a = a, .b = b, .c = c, .id = -2});
    if (type == ScalarType::kF64 || type == ScalarType::kF32) NoteStays(op, id, a, b);
    return id;
  }
  int Over(ScalarOp op, int a, int b, bool told = false) {
    return Emit({.op = op, .type = ScalarType::kInt, .a = a, .b = b, .exit = Exit(), .id = -2, .told = told});
  }
  int Int(int64_t v) { return Emit({.op = ScalarOp::kConst, .type = ScalarType::kInt, .imm = v, .id = -2}); }
  int Flag(bool v) { return Emit({.op = ScalarOp::kConst, .type = ScalarType::kBool, .imm = v, .id = -2}); }
  int Number(double v) { return Emit({.op = ScalarOp::kConst, .type = ScalarType::kF64, .number = v, .id = -2}); }
  int Single(float v) { return Emit({.op = ScalarOp::kConst, .type = ScalarType::kF32, .number = v, .id = -2}); }
  int Pointer(const void* p) {
    return Emit({.op = ScalarOp::kConst, .type = ScalarType::kPtr, .imm = reinterpret_cast<int64_t>(p), .id = -2});
  }
  int Wrap(int v, DType t) { return Emit({.op = ScalarOp::kWrap, .a = v, .dtype = t, .id = -2}); }
  // `natural`: not negative, and small.
  int Input(int cell, ScalarType t, bool natural = false) {
    return Emit({.op = ScalarOp::kInput, .type = t, .imm = cell, .id = -2, .natural = natural, .small = natural});
  }
  int Compare(ScalarOp op, int a, int b) { return Op(op, ScalarType::kBool, a, b); }
  int Call(const void* f, ScalarType t, std::vector<int> args) {
    return Emit({.op = ScalarOp::kCall,
                 .type = t,
                 .imm = reinterpret_cast<int64_t>(f),
                 .id = -2,
                 .foreign = true,
                 .args = std::move(args)});
  }
  // The same, but where the condition is true no call is made, and this is `value`.
  int CallUnless(int condition, int value, const void* f, ScalarType t, std::vector<int> args) {
    const int id = Call(f, t, std::move(args));
    codegen::ScalarInst& call = code.blocks[block].back();
    call.a = condition, call.b = value;
    return id;
  }
  // A call of a function of ours or of libm, which only computes.
  int CallComputes(const void* f, ScalarType t, std::vector<int> args) {
    const int id = Call(f, t, std::move(args));
    code.blocks[block].back().foreign = false;
    return id;
  }
  // A call of a function of ours that returns memory (ScalarInst::fresh).
  int CallForMemory(const void* f, std::vector<int> args) {
    const int id = CallComputes(f, ScalarType::kPtr, std::move(args));
    code.blocks[block].back().fresh = true;
    return id;
  }
  // pow(v, 2), for which `f` is asked where that may not be v * v.
  int Square(const void* f, int v) {
    const int id = Emit({.op = ScalarOp::kSquare,
                         .type = ScalarType::kF64,
                         .a = v,
                         .exit = Exit(),
                         .imm = reinterpret_cast<int64_t>(f),
                         .id = -2});
    NoteStays(ScalarOp::kMul, id, v, v);
    IsFinite(id);
    return id;
  }
  void ExitIf(int condition) { Emit({.op = ScalarOp::kExitIf, .a = condition, .exit = Exit()}); }
  // NumPy tells of it where an operation makes an infinity or a not-a-number of operands that are none. That is looked
  // at before the code writes an element or the block ends: until then nothing is done that Python cannot do again.
  void ExitIfNewSpecial(int v, int a, int b = -1) { specials_.all.push_back({v, a, b}); }
  // The code has left already where v is infinite or not-a-number.
  void IsFinite(int v) { finite_.insert(v); }
  void Settle() {
    const std::set<int> finite = std::exchange(finite_, {});
    if (specials_.all.empty()) return;
    std::set<int> shown = finite;  // Values that results of others show to be finite.
    for (int v : finite) Shown(v, shown);
    for (const auto& made : specials_.all) Shown(made.value, shown);
    for (const auto& made : specials_.all)
      if (!shown.contains(made.value)) specials_.last.push_back(made.value);
    if (specials_.last.empty()) return specials_ = {}, void();
    code.specials.push_back(std::exchange(specials_, {}));
    Emit({.op = ScalarOp::kNewSpecial, .exit = Exit(), .imm = static_cast<int64_t>(code.specials.size()) - 1});
  }
  // The number of a scalar in this block.
  int Value(const Val& v) {
    if (v.value >= 0) return v.value;
    if (v.home < 0) throw Unsupported{"a value without a number"};
    return Emit({.op = ScalarOp::kGet, .type = v.type(), .imm = v.home, .id = -2});
  }

  codegen::ScalarCode code;
  int block = 0;
  int scratch = 0;  // The cell that helpers write to.

 protected:
  codegen::ScalarSpecials specials_;  // Those of this block that are still to be looked at.
  std::set<int> finite_;              // Values of this block that are known to be finite.

 private:
  // What is not finite in these operands is not finite in the result.
  void NoteStays(ScalarOp op, int id, int a, int b) {
    switch (op) {
      case ScalarOp::kAdd:
      case ScalarOp::kSub:
      case ScalarOp::kMul: stays_[id] = {a, b}; break;
      case ScalarOp::kDiv:
      case ScalarOp::kNeg:
      case ScalarOp::kAbs:
      case ScalarOp::kSqrt:
      case ScalarOp::kF32ToF64: stays_[id] = {a, -1}; break;
      default: break;
    }
  }
  void Shown(int value, std::set<int>& shown) const {
    const auto it = stays_.find(value);
    if (it == stays_.end()) return;
    for (int operand : {it->second.first, it->second.second})
      if (operand >= 0 && shown.insert(operand).second) Shown(operand, shown);
  }

  std::map<int, std::pair<int, int>> stays_;
};

// What ScalarInst::small says of a number at the entry.
inline bool IsSmall(int64_t number) {
  return number >= -codegen::kSmallNumber && number <= codegen::kSmallNumber;
}
// Is the next number of such a range small, and none that it has left negative?
inline bool GivesNaturals(int64_t next, int64_t step, int64_t left) {
  if (next < 0 || !IsSmall(next)) return false;
  return step >= 0 || left <= 1 || static_cast<uint64_t>(left - 1) <= next / (0 - static_cast<uint64_t>(step));
}

Val New(Is is, int value);
Val Either(Val number, Val numpy);
// The type of NumPy that, with numbers of Python like this one, makes one kind (Is::kEither), if there is one.
std::optional<DType> EitherType(const Val& v);
Val AsEither(Builder& b, Val v);  // a number that has an EitherType
Val NewNumpy(DType dtype, int value);
Val IntConstant(Builder& b, int64_t v);

// Python's operators on scalars, with NumPy 2's rules where NumPy's scalars take part.
Val Binary(Builder& b, int nb_op, const Val& x, const Val& y);
Val Compare(Builder& b, int py_op, const Val& x, const Val& y);
Val Negative(Builder& b, const Val& x);
Val Invert(Builder& b, const Val& x);
Val Absolute(Builder& b, const Val& x);
int Truth(Builder& b, const Val& x);    // Gives a bool.
int AsIndex(Builder& b, const Val& x);  // Gives an int.
Val Complex(const Val& re, const Val& im, bool numpy);
// An element of an array: a number, or the two floats of a complex one.
struct Element {
  int value = -1, imag = -1;
};
// As NumPy computes with arrays. *good: -1, or a flag that is false where it may tell of something.
Element ComplexArithmetic(Builder& b, ScalarOp op, Element x, Element y, int* good);
Val ToComplex(Builder& b, const Val& x, bool numpy);
Val ComplexBinary(Builder& b, int nb_op, const Val& x, const Val& y);
Val ComplexAbsolute(Builder& b, const Val& x);
Val ComplexCompare(Builder& b, int py_op, const Val& x, const Val& y);
int Whole(Builder& b, const Val& x);
int Double(Builder& b, const Val& x);
Val ToInt(Builder& b, const Val& x);                                              // As int(x).
Val LetterAt(Builder& b, const Val& number);                                      // As chr(number).
Val ToFloat(Builder& b, const Val& x);                                            // As float(x).
bool HoldsNumbers(DType t);                                                       // Does ToNumpy know it?
Val ToNumpy(Builder& b, const Val& x, DType t);                                   // As np.float64(x).
Val MathCall(Builder& b, const std::string& name, const std::vector<Val>& args);  // math.name
Val Rounded(Builder& b, const Val& x);                                            // As round(x).
Val SquareRoot(Builder& b, const Val& x);                                         // np.sqrt
int Stored(Builder& b, const Val& x, DType t);                                    // The number as an element of `t`.

// In which type NumPy computes; numbers of Python are weak.
DType CommonType(const Val& x, const Val& y);
// A number as one of `t` that an array's elements meet.
int NumberFor(Builder& b, const Val& x, DType t);

}  // namespace framejit::capture::scalar
