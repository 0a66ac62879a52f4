// A code object in our vocabulary (opcodes.def), the same for every CPython version: decoded once, kept with the code
// object and freed with it. Instructions are addressed by the index of their first code unit, EXTENDED_ARG included.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

namespace framejit::bytecode {

enum class Op : uint8_t {
#define OP(name, family) k##name,
#include "bytecode/opcodes.def"
};
const char* Name(Op op);

struct Instr {
  Op op = Op::kUnsupported;
  uint8_t flag = 0;    // see the forms in opcodes.def
  bool polls = false;  // CPython looks at signals, GIL requests and gc after it
  uint8_t length = 0;  // code units from the first to the next instruction; 0: no instruction begins here
  int32_t arg = 0;
  int32_t target = -1;  // jumps: first unit of the target; CallConstNames: index of the names in co_consts
  int32_t unit = 0;     // the unit that tracebacks and f_lasti report (after EXTENDED_ARG)
};

struct Handler {
  int start, end;  // units covered: [start, end)
  int target;
  int depth;  // The depth down to which the stack is popped.
  bool push_lasti;
};

struct Location {
  int line = 0, column = 0, end_line = 0, end_column = 0;  // lines from 1, columns from 0 in bytes; -1: unknown
};

class Code {
 public:
  // Borrowed, valid as long as `code` lives. Null with an exception set: out of memory.
  static const Code* Of(PyCodeObject* code);

  const Instr& At(int unit) const { return instrs_[unit]; }
  int size() const { return static_cast<int>(instrs_.size()); }
  const Handler* FindHandler(int unit) const;
  // First unit of the first RESUME (the frame is invisible to tracebacks before), or of some RETURN_VALUE (else
  // of some RETURN_CONST); -1: none.
  int first_resume() const { return first_resume_; }
  int some_return() const { return return_value_ >= 0 ? return_value_ : return_const_; }

 private:
  explicit Code(PyCodeObject* code, PyObject* bytes);
  std::vector<Instr> instrs_;
  std::vector<Handler> handlers_;
  int first_resume_ = -1;
  int return_value_ = -1;
  int return_const_ = -1;
};

Location LocationOf(PyCodeObject* code, int unit);

// What differs between versions in the meaning of the vocabulary.
extern const bool
    kNullAfterCallable;        // 3.13: callable, NULL or self, arguments; before: NULL or method, callable or self
extern const int kEndForPops;  // How many values END_FOR removes.
extern const bool
    kPollsBeforeJump;            // 3.13: JUMP_BACKWARD serves signals before it jumps, earlier versions at the target
extern const bool kExitHasSelf;  // from 3.14 two slots of the stack are for __exit__
extern const bool kSendKeepsIterator;  // from 3.12 END_SEND removes it

}  // namespace framejit::bytecode
