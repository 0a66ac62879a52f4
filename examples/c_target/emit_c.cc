// Loop IR to C (loop/kernel.h says what a kernel means). One loop nest: rows, then the inner axis or the axes of
// reductions; every instruction is one variable.
#include <cmath>
#include <map>
#include <sstream>

#include "c_target.h"
#include "codegen/codegen.h"

namespace framejit::c_target {
namespace {

using codegen::CodegenUnsupported;
using loop::IKind;
using loop::Index;
using loop::Inst;
using loop::Kernel;
using shape::Int;

constexpr const char* kPrelude = R"(#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tgmath.h>
typedef uint8_t bool; typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef int8_t i8; typedef int16_t i16; typedef int32_t i32; typedef int64_t i64; typedef float f32; typedef double f64;
static f32 from_bf16(u16 bits) { u32 u = (u32)bits << 16; f32 x; memcpy(&x, &u, 4); return x; }
static u16 to_bf16(f32 x) {
  u32 u; memcpy(&u, &x, 4);
  return x != x ? 0x7fc0 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
)";

// $0 $1 $2: the operands; T: the type of the result. By class of the first operand: f float, i integer, b bool.
const std::map<std::pair<Op, char>, const char*>& Rows() {
  static const std::map<std::pair<Op, char>, const char*> rows = {
#define SAME(op, text)                    \
  {{op, 'f'}, text}, {{op, 'i'}, text}, { \
    {op, 'b'}, text                       \
  }
#define CALL(op, name) {{op, 'f'}, name "($0)"}
      {{Op::kNeg, 'f'}, "-$0"},
      {{Op::kNeg, 'i'}, "-$0"},
      CALL(Op::kAbs, "fabs"),
      {{Op::kAbs, 'i'}, "$0 < 0 ? -$0 : $0"},
      {{Op::kSign, 'f'}, "$0 != $0 ? $0 : ($0 > 0) - ($0 < 0)"},
      {{Op::kSign, 'i'}, "($0 > 0) - ($0 < 0)"},
      {{Op::kSign, 'b'}, "$0"},
      {{Op::kAbs, 'b'}, "$0"},
      CALL(Op::kCeil, "ceil"),
      CALL(Op::kFloor, "floor"),
      CALL(Op::kTrunc, "trunc"),
      CALL(Op::kRound, "nearbyint"),
      CALL(Op::kSqrt, "sqrt"),
      {{Op::kRsqrt, 'f'}, "1 / sqrt($0)"},
      {{Op::kReciprocal, 'f'}, "1 / $0"},
      CALL(Op::kExp, "exp"),
      CALL(Op::kExp2, "exp2"),
      CALL(Op::kExpm1, "expm1"),
      CALL(Op::kLog, "log"),
      CALL(Op::kLog2, "log2"),
      CALL(Op::kLog10, "log10"),
      CALL(Op::kLog1p, "log1p"),
      CALL(Op::kSin, "sin"),
      CALL(Op::kCos, "cos"),
      CALL(Op::kTan, "tan"),
      CALL(Op::kAsin, "asin"),
      CALL(Op::kAcos, "acos"),
      CALL(Op::kAtan, "atan"),
      CALL(Op::kSinh, "sinh"),
      CALL(Op::kCosh, "cosh"),
      CALL(Op::kTanh, "tanh"),
      CALL(Op::kAsinh, "asinh"),
      CALL(Op::kAcosh, "acosh"),
      CALL(Op::kAtanh, "atanh"),
      CALL(Op::kErf, "erf"),
      CALL(Op::kErfc, "erfc"),
      CALL(Op::kIsNan, "0 != isnan"),
      CALL(Op::kIsInf, "0 != isinf"),
      CALL(Op::kSignbit, "0 != signbit"),
      {{Op::kNot, 'b'}, "!$0"},
      {{Op::kNot, 'i'}, "~$0"},
      {{Op::kAdd, 'f'}, "$0 + $1"},
      {{Op::kAdd, 'i'}, "$0 + $1"},
      {{Op::kAdd, 'b'}, "$0 | $1"},
      {{Op::kSub, 'f'}, "$0 - $1"},
      {{Op::kSub, 'i'}, "$0 - $1"},
      {{Op::kMul, 'f'}, "$0 * $1"},
      {{Op::kMul, 'i'}, "$0 * $1"},
      {{Op::kMul, 'b'}, "$0 & $1"},
      {{Op::kDiv, 'f'}, "$0 / $1"},
      {{Op::kFmod, 'f'}, "fmod($0, $1)"},
      {{Op::kPow, 'f'}, "pow($0, $1)"},
      {{Op::kAtan2, 'f'}, "atan2($0, $1)"},
      {{Op::kHypot, 'f'}, "hypot($0, $1)"},
      {{Op::kCopysign, 'f'}, "copysign($0, $1)"},
      {{Op::kMaximum, 'f'}, "$0 != $0 ? $0 : $1 != $1 ? $1 : $0 < $1 ? $1 : $0"},
      {{Op::kMinimum, 'f'}, "$0 != $0 ? $0 : $1 != $1 ? $1 : $1 < $0 ? $1 : $0"},
      {{Op::kMaximum, 'i'}, "$0 < $1 ? $1 : $0"},
      {{Op::kMinimum, 'i'}, "$1 < $0 ? $1 : $0"},
      {{Op::kMaximum, 'b'}, "$0 | $1"},
      {{Op::kMinimum, 'b'}, "$0 & $1"},
      {{Op::kAnd, 'i'}, "$0 & $1"},
      {{Op::kOr, 'i'}, "$0 | $1"},
      {{Op::kXor, 'i'}, "$0 ^ $1"},
      {{Op::kAnd, 'b'}, "$0 & $1"},
      {{Op::kOr, 'b'}, "$0 | $1"},
      {{Op::kXor, 'b'}, "$0 ^ $1"},
      SAME(Op::kEq, "$0 == $1"),
      SAME(Op::kNe, "$0 != $1"),
      SAME(Op::kLt, "$0 < $1"),
      SAME(Op::kLe, "$0 <= $1"),
      {{Op::kWhere, 'b'}, "$0 ? $1 : $2"},
#undef SAME
#undef CALL
  };
  return rows;
}

class Emitter {
 public:
  explicit Emitter(const Kernel& k) : k_(k) {}

  std::string Run() {
    out_ << kPrelude << "void kernel(void** a) {\n";
    for (size_t b = 0; b < k_.buffers.size(); ++b)
      out_ << Storage(k_.buffers[b].dtype) << "* b" << b << " = *(void**)a[" << b << "];\n";
    for (int s = 0; s < k_.num_symbols; ++s) out_ << "i64 s" << s << " = *(i64*)a[" << k_.buffers.size() + s << "];\n";
    for (size_t o = 0; o < k_.outer.size(); ++o) Loop("o" + std::to_string(o), k_.outer[o]);
    for (size_t s = 0; s < k_.scratch.size(); ++s)  // a row of what later loops need again
      out_ << Storage(k_.scratch[s]) << " b" << k_.buffers.size() + s << "[" << Text(k_.inner) << "];\n";
    if (k_.column) Loop("i", k_.inner);
    for (size_t n = 0; n < k_.insts.size(); ++n)
      if (k_.insts[n].kind != IKind::kStore && k_.insts[n].kind != IKind::kCheck)
        out_ << Type(k_.insts[n].dtype) << " v" << n << ";\n";
    for (const loop::Stage& stage : k_.stages) EmitStage(stage);
    out_ << std::string(k_.outer.size() + k_.column + 1, '}') << "\n";
    return out_.str();
  }

 private:
  static std::string Type(DType t) {  // in registers
    if (!(IsFloat(t) && DTypeSize(t) > 1) && !IsInteger(t) && !IsBool(t))
      throw CodegenUnsupported("a type that C has not");
    return std::string(DTypeName(ComputeType(t)));
  }
  static std::string Storage(DType t) {
    return t == DType::kBFloat16 ? "u16" : t == DType::kFloat16 ? "_Float16" : Type(t);
  }
  static char Class(DType t) { return IsBool(t) ? 'b' : IsInteger(t) ? 'i' : 'f'; }
  static std::string Text(Int e) { return e.str(); }  // a number or a plain symbol
  static std::string V(int n) { return "v" + std::to_string(n); }

  void Loop(const std::string& variable, Int extent) {
    out_ << "for (i64 " << variable << " = 0; " << variable << " < " << Text(extent) << "; ++" << variable << ") {\n";
  }
  static std::string At(const Index& index) {
    std::string text = Text(index.offset);
    auto add = [&](Int by, const std::string& variable) {
      if (!(by == Int(0))) text += " + " + Text(by) + " * " + variable;
    };
    for (size_t d = 0; d < index.outer.size(); ++d) add(index.outer[d], "o" + std::to_string(d));
    for (size_t d = 0; d < index.red.size(); ++d) add(index.red[d], "r" + std::to_string(d));
    add(index.inner, "i");
    return "(" + text + ")";
  }

  void EmitStage(const loop::Stage& stage) {
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind == IKind::kScan) out_ << V(n) << " = 0;\n";
      if (inst.kind != IKind::kReduce) continue;
      const DType t = inst.op == Op::kArgMax || inst.op == Op::kArgMin ? k_.insts[inst.operands[0]].dtype : inst.dtype;
      const bool wide = inst.op == Op::kSum && IsFloat(t);
      out_ << (wide ? "f64" : Type(t)) << " a" << n << " = " << (inst.op == Op::kProd || inst.op == Op::kAll) << "; "
           << "i64 p" << n << " = 0, n" << n << " = 0;\n";
    }
    if (stage.loop) {
      for (size_t r = 0; r < k_.red.size(); ++r) Loop("r" + std::to_string(r), k_.red[r]);
      if (!k_.column) Loop("i", k_.inner);
    }
    for (int n : stage.insts) EmitInst(n);
    if (stage.loop) out_ << std::string(k_.red.size() + !k_.column, '}') << "\n";
    for (int n : stage.insts) {
      const Inst& inst = k_.insts[n];
      if (inst.kind == IKind::kReduce)
        out_ << V(n) << " = " << (inst.op == Op::kArgMax || inst.op == Op::kArgMin ? "p" : "a") << n << ";\n";
    }
  }

  void EmitInst(int n) {
    const Inst& inst = k_.insts[n];
    const std::string v = V(n) + " = ";
    std::string at = At(inst.index);
    switch (inst.kind) {
      case IKind::kOp: out_ << v << Operation(inst) << ";\n"; return;
      case IKind::kConst: out_ << v << Constant(inst) << ";\n"; return;
      case IKind::kSym: out_ << v << Text(inst.sym) << ";\n"; return;
      case IKind::kIota: out_ << v << at << ";\n"; return;
      case IKind::kInBounds: out_ << v << at << " >= 0 && " << at << " < " << Text(inst.sym) << ";\n"; return;
      case IKind::kLoadAt:
        for (size_t k = 0; k < inst.operands.size(); ++k)
          at += " + " + V(inst.operands[k]) + " * " + Text(inst.strides[k]);
        [[fallthrough]];
      case IKind::kLoad: {
        const std::string element = "b" + std::to_string(inst.buffer) + "[" + at + "]";
        out_ << v << (inst.predicate >= 0 ? "!" + V(inst.predicate) + " ? 0 : " : "")
             << (inst.dtype == DType::kBFloat16 ? "from_bf16(" + element + ")" : element) << ";\n";
        return;
      }
      case IKind::kStore: {
        const DType t = TypeOf(inst.buffer);
        out_ << "b" << inst.buffer << "[" << at << "] = " << (t == DType::kBFloat16 ? "to_bf16" : "") << "("
             << V(inst.operands[0]) << ");\n";
        return;
      }
      case IKind::kReduce: return Reduce(n, inst);
      case IKind::kScan: out_ << V(n) << " += " << V(inst.operands[0]) << ";\n"; return;
      case IKind::kCheck: throw CodegenUnsupported("what has to be told by a status");
    }
  }

  DType TypeOf(int buffer) const {
    const int n = static_cast<int>(k_.buffers.size());
    return buffer < n ? k_.buffers[buffer].dtype : k_.scratch[buffer - n];
  }

  void Reduce(int n, const Inst& inst) {
    const std::string a = "a" + std::to_string(n), x = V(inst.operands[0]), p = "p" + std::to_string(n);
    const std::string first = "!n" + std::to_string(n) + "++";
    switch (inst.op) {
      case Op::kSum: out_ << a << (IsBool(inst.dtype) ? " |= " : " += ") << x << ";\n"; return;
      case Op::kProd: out_ << a << (IsBool(inst.dtype) ? " &= " : " *= ") << x << ";\n"; return;
      case Op::kAny: out_ << a << " |= " << x << " != 0;\n"; return;
      case Op::kAll: out_ << a << " &= " << x << " != 0;\n"; return;
      case Op::kMax:
      case Op::kMin:
        out_ << "if (" << first << " || (" << a << " == " << a << " && (" << x << " != " << x << " || " << x
             << (inst.op == Op::kMax ? " > " : " < ") << a << "))) " << a << " = " << x << ";\n";
        return;
      case Op::kArgMax:
      case Op::kArgMin: {  // the first of equals; not-a-number wins
        const std::string at = V(inst.operands[1]), nan_a = a + " != " + a, nan_x = x + " != " + x;
        const std::string better = x + (inst.op == Op::kArgMax ? " > " : " < ") + a, sooner = at + " < " + p;
        out_ << "if (" << first << " || (" << nan_a << " ? " << nan_x << " && " << sooner << " : " << nan_x << " || "
             << better << " || (" << x << " == " << a << " && " << sooner << "))) { " << a << " = " << x << "; " << p
             << " = " << at << "; }\n";
        return;
      }
      default: throw CodegenUnsupported(std::string("reduce ") + Info(inst.op).name);
    }
  }

  static std::string Constant(const Inst& inst) {
    if (!IsFloat(inst.dtype)) return "(" + Type(inst.dtype) + ")" + std::to_string(inst.scalar.AsInt()) + "ll";
    const double value = inst.scalar.AsDouble();
    if (value != value) return "NAN";
    if (std::isinf(value)) return value < 0 ? "-INFINITY" : "INFINITY";
    char text[64];
    std::snprintf(text, sizeof text, "%a", value);
    return text;
  }

  std::string Operation(const Inst& inst) const {
    const DType from = k_.insts[inst.operands[0]].dtype;
    const std::string x = V(inst.operands[0]);
    if (inst.op == Op::kCast) {
      if (IsBool(inst.dtype)) return x + " != 0";
      if (inst.dtype == DType::kBFloat16) return "from_bf16(to_bf16(" + x + "))";
      if (inst.dtype == DType::kFloat16) return "(_Float16)" + x;
      return "(" + Type(inst.dtype) + ")" + x;
    }
    const auto row = Rows().find({inst.op, Class(from)});
    if (row == Rows().end()) throw CodegenUnsupported(std::string(Info(inst.op).name) + " in C");
    std::string text;
    for (const char* c = row->second; *c; ++c) {
      if (*c == '$')
        text += V(inst.operands[*++c - '0']);
      else
        text += *c;
    }
    return text;
  }

  const Kernel& k_;
  std::ostringstream out_;
};

}  // namespace

std::string EmitC(const Kernel& kernel) {
  return Emitter(kernel).Run();
}

}  // namespace framejit::c_target
