// Text of a kernel. SignatureText is the key of the kernel cache, so everything that shapes code must be in it.
#include <cstring>

#include "framejit/compile.h"
#include "loop/kernel.h"

namespace framejit::loop {
namespace {

std::string ScalarText(const Scalar& s) {
  if (auto b = std::get_if<bool>(&s.v)) return *b ? "true" : "false";
  if (auto i = std::get_if<int64_t>(&s.v)) return std::to_string(*i);
  char text[64];
  const double d = std::get<double>(s.v);
  uint64_t bits;
  std::memcpy(&bits, &d, sizeof bits);
  if (d != d)
    std::snprintf(text, sizeof text, "nan:%llx", static_cast<unsigned long long>(bits));
  else
    std::snprintf(text, sizeof text, "%a", d);  // This form loses no digit.
  return text;
}

bool IsZero(Int v) {
  return v == Int(0);
}

void Append(std::string& out, Int coefficient, const std::string& variable, bool& first) {
  if (IsZero(coefficient)) return;
  if (!first) out += " + ";
  first = false;
  if (coefficient == Int(1))
    out += variable;
  else
    out += variable + "*" + coefficient.str();
}

std::string IndexText(const Index& index) {
  std::string out;
  bool first = true;
  if (!IsZero(index.offset)) {
    out += index.offset.str();
    first = false;
  }
  for (size_t k = 0; k < index.outer.size(); ++k) Append(out, index.outer[k], "o" + std::to_string(k), first);
  for (size_t k = 0; k < index.red.size(); ++k) Append(out, index.red[k], "r" + std::to_string(k), first);
  Append(out, index.inner, "i", first);
  return first ? "0" : out;
}

std::string Ref(int inst) {
  return "%" + std::to_string(inst);
}

std::string BufferText(const Kernel& k, int buffer) {
  const int n = static_cast<int>(k.buffers.size());
  return buffer < n ? "b" + std::to_string(buffer) : "scratch" + std::to_string(buffer - n);
}

std::string InstText(const Kernel& k, int number) {
  const Inst& inst = k.insts[number];
  std::string out;
  if (inst.kind != IKind::kStore && inst.kind != IKind::kCheck)
    out += Ref(number) + ":" + std::string(DTypeName(inst.dtype)) + " = ";
  auto operands = [&](size_t from) {
    for (size_t i = from; i < inst.operands.size(); ++i) out += (i > from ? ", " : " ") + Ref(inst.operands[i]);
  };
  switch (inst.kind) {
    case IKind::kOp:
      out += Info(inst.op).name;
      operands(0);
      break;
    case IKind::kConst: out += "const " + ScalarText(inst.scalar); break;
    case IKind::kSym: out += "sym " + inst.sym.str(); break;
    case IKind::kIota: out += "iota [" + IndexText(inst.index) + "]"; break;
    case IKind::kLoad: out += "load " + BufferText(k, inst.buffer) + "[" + IndexText(inst.index) + "]"; break;
    case IKind::kLoadAt:
      out += "load " + BufferText(k, inst.buffer) + "[" + IndexText(inst.index);
      for (size_t i = 0; i < inst.operands.size(); ++i)
        out += " + " + Ref(inst.operands[i]) + "*" + inst.strides[i].str();
      out += "]";
      break;
    case IKind::kStore:
      out += "store " + BufferText(k, inst.buffer) + "[" + IndexText(inst.index) + "],";
      operands(0);
      break;
    case IKind::kReduce:
      out += std::string("reduce ") + Info(inst.op).name + (inst.numpys ? " numpy" : "");
      operands(0);
      break;
    case IKind::kScan:
      out += std::string("scan") + (inst.numpys ? " numpy" : "");
      operands(0);
      break;
    case IKind::kCheck:
      out += "check";
      operands(0);
      if (inst.scalar.AsInt() != kBadIndex) out += " notes " + std::to_string(inst.scalar.AsInt());
      break;
    case IKind::kInBounds: out += "inbounds [" + IndexText(inst.index) + "] < " + inst.sym.str(); break;
  }
  if (inst.predicate >= 0) out += " if " + Ref(inst.predicate);
  return out;
}

}  // namespace

std::string Kernel::SignatureText() const {
  std::string out = column ? "column(" : "kernel(";
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (i) out += ", ";
    out += (buffers[i].written ? "out " : "") + std::string(DTypeName(buffers[i].dtype));
  }
  out += ") outer " + shape::ToString(outer) + " red " + shape::ToString(red) + " inner " + inner.str();
  if (block) out += (tiled ? " tile " : " block ") + std::to_string(block);
  if (stream) out += " stream";
  if (contract) out += " contract";
  if (ieee) out += " ieee";
  for (DType t : scratch) out += " scratch " + std::string(DTypeName(t));
  out += "\n";
  for (const Stage& stage : stages) {
    out += stage.loop ? "  loop:\n" : "  row:\n";
    for (int i : stage.insts) out += "    " + InstText(*this, i) + "\n";
  }
  return out;
}

std::string Kernel::str() const {
  return name + " " + SignatureText();
}

uint64_t Kernel::Signature() const {  // This hash is FNV-1a, which is the same in every process.
  uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : SignatureText()) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

}  // namespace framejit::loop
