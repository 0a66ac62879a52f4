// Decoding. CPython's opcode numbers come from the opcode.h we are compiled against; a name that version lacks stays
// text when stringified, which is how the table below knows.
#include <opcode.h>

#include <array>
#include <memory>

#include "bytecode/code.h"
#include "bytecode/lines.h"
#include "bytecode/messages.h"

namespace framejit::bytecode {
namespace {

enum class Form : uint8_t {
  Plain,
  Flagged,
  Attribute,
  Super,
  Pair,
  Operator,
  Compare,
  Forward,
  ForwardEnd,
  Backward,
  BackwardQuiet,
  Calls,
  CallsEx
};

struct Encoding {
  Op op = Op::kUnsupported;
  Form form = Form::Plain;
};

constexpr int Number(const char* text) {  // the opcode's number; -1: this version has no such opcode
  int n = 0;
  for (; *text; ++text) {
    if (*text < '0' || *text > '9') return -1;
    n = n * 10 + (*text - '0');
  }
  return n;
}

#define FJ_TEXT_(x) #x
#define FJ_TEXT(x) FJ_TEXT_(x)

constexpr std::array<Encoding, 256> MakeEncodings() {
  std::array<Encoding, 256> table{};
#define ENCODING(cpython, name, form) \
  if (int n = Number(FJ_TEXT(cpython)); n >= 0 && n < 256) table[n] = {Op::k##name, Form::form};
#include "bytecode/opcodes.def"
  return table;
}
constexpr std::array<Encoding, 256> kEncodings = MakeEncodings();

constexpr int kCache = 0, kExtendedArg = Number(FJ_TEXT(EXTENDED_ARG));
constexpr int kPrecall = Number(FJ_TEXT(PRECALL));                                                       // 3.11
constexpr int kKwNames = Number(FJ_TEXT(KW_NAMES));                                                      // 3.11, 3.12
constexpr int kEndFor = Number(FJ_TEXT(END_FOR));                                                        // from 3.12
constexpr bool kHasCallKw = Number(FJ_TEXT(CALL_KW)) >= 0;                                               // from 3.13
constexpr bool kAttributeFlag = Number(FJ_TEXT(LOAD_METHOD)) < 0 || Number(FJ_TEXT(LOAD_METHOD)) > 255;  // from 3.12
constexpr int kSubscript = Number(FJ_TEXT(NB_SUBSCR));                                                   // from 3.14
constexpr int kCompareShift = kHasCallKw ? 5 : kEndFor >= 0 ? 4 : 0;

struct Raw {
  int op, arg, unit, end;
};

class Reader {
 public:
  explicit Reader(PyObject* bytes)
      : p_(reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes))),
        n_(static_cast<int>(PyBytes_GET_SIZE(bytes) / 2)) {}
  int size() const { return n_; }
  Raw At(int start) const {
    int unit = start, arg = 0;
    while (p_[2 * unit] == kExtendedArg && unit + 1 < n_) arg = (arg | p_[2 * unit + 1]) << 8, ++unit;
    arg |= p_[2 * unit + 1];
    int end = unit + 1;
    while (end < n_ && p_[2 * end] == kCache) ++end;  // inline caches are zero in the bytes we were given
    return {p_[2 * unit], arg, unit, end};
  }

 private:
  const unsigned char* p_;
  int n_;
};

// KW_NAMES, PRECALL and CALL leave state in the evaluator's C locals between them: they are one instruction to us.
bool FuseCall(const Reader& code, Raw* r, int* names) {
  *names = -1;
  if (r->op == kKwNames) {
    *names = r->arg;
    if (r->end >= code.size()) return false;
    *r = code.At(r->end);
  }
  if (r->op == kPrecall) {
    if (r->end >= code.size()) return false;
    *r = code.At(r->end);
  }
  return kEncodings[r->op].op == Op::kCall;
}

Instr Decode(const Reader& code, int start) {
  Raw r = code.At(start);
  Instr i;
  int names = -1;
  if ((kKwNames >= 0 && r.op == kKwNames) || (kPrecall >= 0 && r.op == kPrecall)) {
    Raw first = r;
    if (!FuseCall(code, &r, &names)) {
      i.length = static_cast<uint8_t>(first.end - start), i.unit = first.unit;
      return i;
    }
  }
  const Encoding& e = kEncodings[r.op];
  i.op = names >= 0 ? Op::kCallConstNames : e.op;
  i.arg = r.arg;
  i.target = names;
  i.unit = r.unit;
  i.length = static_cast<uint8_t>(r.end - start);
  switch (e.form) {
    case Form::Plain: i.polls = i.op == Op::kResume && r.arg < 2; break;
    case Form::CallsEx:
      if (kSubscript >= 0) i.arg = 1;  // or NULL in their place
      [[fallthrough]];
    case Form::Calls: i.polls = true; break;
    case Form::Attribute:
      if (!kAttributeFlag) break;
      if (r.arg & 1) i.op = Op::kLoadMethod;
      i.arg >>= 1;
      break;
    case Form::Flagged: i.flag = r.arg & 1, i.arg >>= 1; break;
    case Form::Super: i.flag = r.arg & 3, i.arg >>= 2; break;
    case Form::Pair: i.arg = r.arg >> 4, i.target = r.arg & 15; break;
    case Form::Operator:
      if (kSubscript >= 0 && r.arg == kSubscript) i.op = Op::kGetItem;
      break;
    case Form::Compare: i.flag = kHasCallKw && (r.arg & 16) != 0, i.arg >>= kCompareShift; break;
    case Form::Forward: i.target = r.end + r.arg; break;
    case Form::ForwardEnd:
      i.target = r.end + r.arg;
      if (kEndFor >= 0) i.target += kHasCallKw ? 2 : 1;  // FOR_ITER drops the iterator itself
      break;
    case Form::Backward: i.polls = true; [[fallthrough]];
    case Form::BackwardQuiet: i.target = r.end - r.arg; break;
  }
  return i;
}

std::vector<Handler> ParseExceptionTable(PyObject* table) {
  std::vector<Handler> handlers;
  const auto* p = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(table));
  const unsigned char* end = p + PyBytes_GET_SIZE(table);
  auto read = [&] {
    int value = *p & 63;
    bool more = *p++ & 64;
    for (; more && p < end; ++p) {
      value = value << 6 | (*p & 63);
      more = *p & 64;
    }
    return value;
  };
  while (p < end) {
    Handler h;
    h.start = read();
    h.end = h.start + read();
    h.target = read();
    int packed = read();
    h.depth = packed >> 1, h.push_lasti = packed & 1;
    handlers.push_back(h);
  }
  return handlers;
}

void FreeCode(void* code) {
  delete static_cast<const Code*>(code);
}

}  // namespace

const bool kNullAfterCallable = kHasCallKw;
const int kEndForPops = kHasCallKw ? 1 : 2;
const bool kPollsBeforeJump = kHasCallKw;
const bool kExitHasSelf = Number(FJ_TEXT(LOAD_SPECIAL)) >= 0;
const bool kTellsHowMany = kSubscript >= 0;
const bool kSendKeepsIterator = Number(FJ_TEXT(END_SEND)) >= 0;

const char* Name(Op op) {
  static const char* const kNames[] = {
#define OP(name, family) #name,
#include "bytecode/opcodes.def"
  };
  return kNames[static_cast<int>(op)];
}

Code::Code(PyCodeObject* code, PyObject* bytes) : handlers_(ParseExceptionTable(code->co_exceptiontable)) {
  Reader reader(bytes);
  instrs_.resize(reader.size());
  for (int at = 0; at < reader.size(); at += instrs_[at].length) {
    Instr& i = instrs_[at] = Decode(reader, at);
    if (i.op == Op::kResume && first_resume_ < 0) first_resume_ = at;
    if (i.op == Op::kReturnValue) return_value_ = at;
    if (i.op == Op::kReturnConst) return_const_ = at;
  }
}

// The extra slot of a code object is freed with it, so that a new code object at the same address cannot be mistaken
// for it.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
const Code* Code::Of(PyCodeObject* code) {
  static const Py_ssize_t slot = _PyEval_RequestCodeExtraIndex(FreeCode);
  auto* object = reinterpret_cast<PyObject*>(code);
  void* known = nullptr;
  if (_PyCode_GetExtra(object, slot, &known) < 0) return nullptr;
  if (known) return static_cast<const Code*>(known);
  PyObject* bytes = PyCode_GetCode(code);
  if (!bytes) return nullptr;
  const Code* made = new Code(code, bytes);
  Py_DECREF(bytes);
  // The allocation above may have run other code.
  if (_PyCode_GetExtra(object, slot, &known) < 0 || known ||
      _PyCode_SetExtra(object, slot, const_cast<Code*>(made)) < 0) {
    delete made;
    return static_cast<const Code*>(known);
  }
  return made;
}

// Lines of long code, by unit, kept as long as the code: one walk through its table in place of one for each question.
int LineOf(PyCodeObject* code, int offset) {
  constexpr Py_ssize_t kLong = 2048;
  if (Py_SIZE(code) < kLong) return PyCode_Addr2Line(code, offset);
  static const Py_ssize_t slot =
      _PyEval_RequestCodeExtraIndex([](void* lines) { delete static_cast<std::vector<int>*>(lines); });
  auto* object = reinterpret_cast<PyObject*>(code);
  void* known = nullptr;
  if (_PyCode_GetExtra(object, slot, &known) < 0 || !known) {
    auto lines = std::make_unique<std::vector<int>>(Py_SIZE(code), -1);
    PyObject *ranges = PyObject_CallMethod(object, "co_lines", nullptr), *range;
    while (ranges && (range = PyIter_Next(ranges))) {
      int from = 0, to = 0;
      PyObject* line;
      if (PyArg_ParseTuple(range, "iiO", &from, &to, &line) && PyLong_Check(line))
        for (int unit = from / 2; unit < to / 2 && unit < Py_SIZE(code); ++unit)
          (*lines)[unit] = static_cast<int>(PyLong_AsLong(line));
      Py_DECREF(range);
    }
    Py_XDECREF(ranges);
    if (PyErr_Occurred() || _PyCode_SetExtra(object, slot, lines.get()) < 0)
      return PyErr_Clear(), PyCode_Addr2Line(code, offset);
    known = lines.release();
  }
  const auto& lines = *static_cast<std::vector<int>*>(known);
  return offset < 0 || offset / 2 >= static_cast<int>(lines.size()) ? code->co_firstlineno : lines[offset / 2];
}
#pragma GCC diagnostic pop

const Handler* Code::FindHandler(int unit) const {
  const Handler* found = nullptr;
  for (const Handler& h : handlers_) {  // sorted, disjoint
    if (h.start > unit) break;
    if (unit < h.end) found = &h;
  }
  return found;
}

Location LocationOf(PyCodeObject* code, int unit) {
  Location at;
  if (!PyCode_Addr2Location(code, unit * 2, &at.line, &at.column, &at.end_line, &at.end_column)) at = {0, -1, 0, -1};
  return at;
}

}  // namespace framejit::bytecode
