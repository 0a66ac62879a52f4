// This file makes the text of calls and traces. Arguments look like Python. What Python has no literal for is written
// as a call: dtype("float32"), device("cuda:0"), complex(1.0, 2.0), object(3).
#include "framejit/call.h"

#include <algorithm>
#include <charconv>

#include "graph/name_table.h"
#include "graph/text.h"

namespace framejit {

struct FileName::Entry {
  std::string name;
  const Entry* next;
};

FileName::FileName(std::string_view name) {
  static NameTable<Entry, 256> names;
  if (!name.empty()) entry_ = names.Find(name, [name] { return new Entry{std::string(name), nullptr}; });
}

const std::string& FileName::str() const {
  static const auto* none = new std::string;
  return entry_ ? entry_->name : *none;
}

std::string_view FileName::last() const {
  const std::string_view name = str();
  return name.substr(name.rfind('/') + 1);
}

namespace {

void Append(const Arg& a, std::string* s);

void Join(const std::vector<Arg>& items, std::string* s) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i) *s += ", ";
    Append(items[i], s);
  }
}

void AppendNumber(uint64_t n, std::string* s) {
  char digits[24];
  s->append(digits, std::to_chars(digits, digits + sizeof digits, n).ptr);
}

void AppendValue(TraceId t, std::string* s) {
  *s += '%';
  AppendNumber(t, s);
}

void Append(const Arg& a, std::string* s) {
  using Kind = Arg::Kind;
  const auto list = [&](const char* begin, const char* end) {
    *s += begin;
    Join(a.items, s);
    *s += end;
  };
  switch (a.kind) {
    case Kind::kNone: *s += "None"; break;
    case Kind::kBool: *s += a.b ? "True" : "False"; break;
    case Kind::kInt: *s += a.i.str(); break;
    case Kind::kFloat: *s += text::FloatText(a.f); break;
    case Kind::kSymFloat: *s += "float(" + a.i.str() + ")"; break;
    case Kind::kComplex: *s += "complex(" + text::FloatText(a.f) + ", " + text::FloatText(a.imag) + ")"; break;
    case Kind::kString: *s += text::Quote(a.s); break;
    case Kind::kDType: *s += "dtype(" + text::Quote(a.s) + ")"; break;
    case Kind::kDevice: *s += "device(" + text::Quote(a.s) + ")"; break;
    case Kind::kLayout: *s += "layout(" + text::Quote(a.s) + ")"; break;
    case Kind::kMemoryFormat: *s += "memory_format(" + text::Quote(a.s) + ")"; break;
    case Kind::kTensor:
      if (a.b) *s += "scalar(";
      AppendValue(a.t, s);
      if (a.b) *s += ")";
      break;
    case Kind::kTuple: list("(", a.items.size() == 1 ? ",)" : ")"); break;
    case Kind::kList: list("[", "]"); break;
    case Kind::kSlice: list("slice(", ")"); break;
    case Kind::kEllipsis: *s += "..."; break;
    case Kind::kDict:
      *s += "{";
      for (size_t k = 0; k + 1 < a.items.size(); k += 2) {
        if (k) *s += ", ";
        Append(a.items[k], s);
        *s += ": ";
        Append(a.items[k + 1], s);
      }
      *s += "}";
      break;
    case Kind::kObject: *s += "object(" + a.i.str() + ")"; break;
  }
}

bool IsValue(const Arg& a, TraceId t) {
  return a.is(Arg::Kind::kTensor) && !a.b && a.t == t;
}

// Has the Python result the structure that its tensors have where the call says nothing of it?
bool IsImplied(const Call& c) {
  if (c.results.empty()) return c.result.is_none();
  if (c.results.size() == 1) return IsValue(c.result, c.results[0]);
  return c.result.is(Arg::Kind::kTuple) &&
         std::equal(c.result.items.begin(), c.result.items.end(), c.results.begin(), c.results.end(), IsValue);
}

void Append(const Call& c, std::string* s) {
  for (size_t i = 0; i < c.results.size(); ++i) {
    if (i) *s += ", ";
    AppendValue(c.results[i], s);
  }
  if (!c.results.empty()) *s += " = ";
  *s += c.callee.name();
  *s += '(';
  Join(c.args, s);
  for (size_t i = 0; i < c.kwargs.size(); ++i) {
    if (i || !c.args.empty()) *s += ", ";
    *s += c.kwargs[i].first;
    *s += '=';
    Append(c.kwargs[i].second, s);
  }
  *s += ')';
  if (!IsImplied(c)) {
    *s += " -> ";
    Append(c.result, s);
  }
  if (!c.mode.grad) *s += " nograd";
  if (c.mode.inference) *s += " inference";
}

}  // namespace

std::string Arg::str() const {
  std::string s;
  Append(*this, &s);
  return s;
}

std::string Call::str() const {
  std::string s;
  Append(*this, &s);
  return s;
}

std::string TensorMeta::str() const {
  TensorType type{dtype, sizes, device};
  std::string s = (framework == Framework::kTorch ? "torch " : "numpy ") + type.str();
  s += " strides " + shape::ToString(strides);
  if (is_scalar) s += " scalar";
  if (is_parameter) s += " parameter";
  if (requires_grad) s += " requires_grad";
  if (conj) s += " conjugate";
  if (neg) s += " negative";
  return s;
}

static bool SameText(const TensorMeta& a, const TensorMeta& b) {
  return a.framework == b.framework && a.dtype == b.dtype && a.sizes == b.sizes && a.device == b.device &&
         a.strides == b.strides && a.is_scalar == b.is_scalar && a.is_parameter == b.is_parameter &&
         a.requires_grad == b.requires_grad && a.conj == b.conj && a.neg == b.neg;
}

std::string Trace::str() const {
  std::string s, like;  // like: the text of the last input's tensor, which is often that of the next one
  const TensorMeta* last = nullptr;
  s.reserve(64 * (inputs.size() + calls.size()));
  for (TraceId id : inputs) {
    const TensorMeta& meta = tensors[id].meta;
    if (!last || !SameText(*last, meta)) like = meta.str();
    last = &meta;
    s += "input ";
    AppendValue(id, &s);
    s += " : ";
    s += like;
    s += tensors[id].mutated ? " mutated\n" : "\n";
  }
  for (const Call& c : calls) {
    Append(c, &s);
    if (!c.file.empty()) {
      s += "  # ";
      s += c.file.str();
      s += ':';
      AppendNumber(c.line, &s);
    }
    s += '\n';
  }
  s += "return ";
  for (size_t i = 0; i < outputs.size(); ++i) s += (i ? ", %" : "%") + std::to_string(outputs[i]);
  return s + "\n";
}

}  // namespace framejit
