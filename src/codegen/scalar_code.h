// Code over single numbers with any flow of control: what loops of a program become whose bodies read and write
// elements one at a time. Values are numbered; a value is used in its block alone, and variables carry numbers between
// blocks. An exit writes what it wants kept into cells and returns its number. No LLVM type here, nothing of Python.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framejit/dtype.h"

namespace framejit::codegen {

inline constexpr int64_t kSmallNumber = int64_t{1} << 60;
// Code must be left before it has gone round so often: ints that grow slowly are not looked at in each round.
inline constexpr int64_t kMostRounds = int64_t{1} << 43;
inline constexpr int64_t kSeenNumber = (int64_t{1} << 30) - 1;

enum class ScalarType : uint8_t { kBool, kInt, kF32, kF64, kPtr };  // An int has 64 bits.

// Of instructions `a`, `b`, `c` are values. Those with an exit leave the code where their condition holds.
enum class ScalarOp : uint8_t {
  kConst,    // The constant imm or number.
  kInput,    // the cell imm, which nothing writes: read once, before all else
  kCell,     // The cell imm.
  kAddress,  // The address of the cell imm.
  kGet,      // The variable imm.
  kSet,      // The variable imm becomes a.
  kAdd,
  kSub,
  kMul,
  kDiv,
  kNeg,
  kAbs,
  kSqrt,
  kFma,     // a * b + c of floats, rounded once
  kSquare,  // pow(a, 2) of a double. The function at imm is called where that may not be a * a; it answers -1: exit
  kHypot,   // the distance of (a, b) from 0: the function at imm, which is not called where only its order is asked
  kFloor,   // kAdd, kSub, kMul of ints wrap; kDiv of floats
  kAddOver,
  kSubOver,
  kMulOver,
  kShlOver,  // a * 2^b, 0 <= b < 63. These four are of ints. Overflow: exit.
  kNext,     // a + 1, which is no overflow
  kWithin,   // a, which is known to be in [0, b)
  kIndex,    // a, or a + b if a is negative; not in [0, b): exit
  kDivTrunc,
  kFloorDiv,
  kFloorMod,
  kAnd,
  kOr,
  kXor,
  kNot,
  kShl,
  kShr,  // of ints; the first three want a divisor other than 0, and no quotient that overflows
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,      // signed; of floats ordered, but for kNe
  kBelow,   // a is not negative and less than b, which is not negative
  kSelect,  // Gives b if a is true, else c.
  kIntToF64,
  kIntToF32,
  kF32ToF64,
  kF64ToF32,
  kF64ToInt,  // towards 0; no int of 64 bits: exit
  kBoolToInt,
  kFinite,       // a is neither infinite nor not-a-number
  kWrap,         // the int a as `dtype` holds its lowest bits
  kAt,           // the address b bytes behind the address a
  kLoad,         // the element `dtype`, or the address, that lies b bytes behind a
  kStore,        // that element becomes c, which fits
  kCall,         // the function at address imm of `args`; returns `type`. Where a is true it is not called, but gives b
  kAssume,       // The compiler may take it that a is true.
  kExitIf,       // If a is true: exit.
  kExitIfLong,   // so many rounds `a` after `b` are more than imm: exit. A few of them are not counted.
  kNewSpecial,   // one of the specials imm is: exit, as NumPy tells of that
  kExitAtBreak,  // the word at the address a has one of the bits number: exit
  kJump,         // ends a block: to the block imm
  kBranch,       // if a to the block imm, else to the block other
  kExit,         // Takes the exit `exit`.
};

struct ScalarInst {
  ScalarOp op;
  ScalarType type = ScalarType::kInt;
  int a = -1, b = -1, c = -1;
  int exit = -1, other = -1;
  int64_t imm = 0;
  double number = 0;
  DType dtype = DType::kInt64;
  int id = -1;            // The number of its value.
  bool natural = false;   // Of a cell: it is never negative.
  bool small = false;     // of a cell: from -kSmallNumber to kSmallNumber; of a load: what is known of `array` holds
  bool sure = false;      // of a load: its address, made of constants and kInputs, may be read whenever the code runs
  bool told = false;      // of what may leave: it does so whatever is asked of its value, as NumPy tells of an overflow
  bool foreign = false;   // of a call: of a function that may change what the processor has noted of numbers
  bool fresh = false;     // of a call: it returns memory in which nothing else lies that the code can still reach
  bool looks = false;     // of a call: it changes no element and nothing of a list, only cells
  bool seldom = false;    // of a branch: it hardly ever goes to the block imm
  int parallel = 0;       // of loads, stores and the jump back: of this loop, whose rounds do not meet in memory
  int array = -1;         // of loads and stores: in which array; those are apart if the code says so
  std::vector<int> args;  // The arguments of a call.
};

// Results that may be infinite or not-a-number where what they were made of was not. If the last ones are finite, all
// are.
struct ScalarSpecials {
  struct Made {
    int value, a, b;  // The value was made of a and b (or -1).
  };
  std::vector<Made> all;
  std::vector<int> last;
};

struct ScalarExit {
  // (cell, value): in the block where the exit is taken.
  std::vector<std::pair<int, int>> cells;
  bool undo = false;  // Nothing of the run is to remain: what happens behind a check that leads here does not matter.
};

struct ScalarCode {
  std::string name;
  std::vector<ScalarType> variables;
  std::vector<std::vector<ScalarInst>> blocks;  // each ends with a jump, a branch or an exit
  std::vector<ScalarExit> exits;
  std::vector<ScalarSpecials> specials;
  std::vector<int> entries;  // The blocks at which it is entered.
  int num_values = 0;
  // Whoever runs it asks the processor behind the run whether NumPy would have told of a number (told_numbers.h), and
  // undoes the run then: of operations of its own. What functions return is looked at.
  bool status = false;
  bool apart = false;  // no element of an array that is written lies in another array
  int64_t most_rounds = kMostRounds;
  // Arrays of ints that were looked at before the code is entered: they are from -kSeenNumber - 1, or from 0 if that is
  // true, to kSeenNumber then.
  std::map<int, bool> seen;
};

// Runs from an entry; returns the exit.
using ScalarFn = int64_t (*)(int64_t* cells, int64_t entry);
struct CompiledScalar {
  ScalarFn fn = nullptr;
  std::shared_ptr<const void> code;
};
// Throws std::runtime_error.
[[gnu::visibility("default")]] CompiledScalar CompileScalar(const ScalarCode& code);
[[gnu::visibility("default")]] std::string ScalarText(const ScalarCode& code, bool assembly);

}  // namespace framejit::codegen
