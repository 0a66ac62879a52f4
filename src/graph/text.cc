#include "graph/text.h"

#include <charconv>
#include <cmath>
#include <stdexcept>

#include "shape/text.h"

namespace framejit::text {

std::string Quote(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 32 || c == 127) {
      constexpr char kHex[] = "0123456789abcdef";
      out += "\\x";
      out += kHex[(c >> 4) & 15];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string FloatText(double v) {
  if (std::isnan(v)) return std::signbit(v) ? "-nan" : "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[40];
  std::string s(buffer, std::to_chars(buffer, buffer + sizeof buffer, v).ptr);
  return s.find_first_of(".e") == std::string::npos ? s + ".0" : s;
}

std::string ScalarText(const Scalar& s) {
  if (const bool* b = std::get_if<bool>(&s.v)) return *b ? "true" : "false";
  if (const int64_t* i = std::get_if<int64_t>(&s.v)) return std::to_string(*i);
  return FloatText(std::get<double>(s.v));
}

namespace {
bool IsWord(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}
}  // namespace

void Reader::Fail(const std::string& message) const {
  int line = 1, column = 1;
  for (size_t i = 0; i < pos_ && i < text_.size(); ++i) {
    ++column;
    if (text_[i] == '\n') ++line, column = 1;
  }
  throw std::runtime_error("line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + message);
}

void Reader::SkipBlanks() {
  while (pos_ < text_.size()) {
    if (text_[pos_] == '#') {
      while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
    } else if (text_[pos_] == ' ' || text_[pos_] == '\n' || text_[pos_] == '\t' || text_[pos_] == '\r') {
      ++pos_;
    } else {
      return;
    }
  }
}

bool Reader::AtEnd() {
  SkipBlanks();
  return pos_ == text_.size();
}

bool Reader::Peek(std::string_view token) {
  SkipBlanks();
  if (text_.substr(pos_, token.size()) != token) return false;
  size_t end = pos_ + token.size();
  return !(IsWord(token.back()) && end < text_.size() && IsWord(text_[end]));
}

bool Reader::Eat(std::string_view token) {
  if (!Peek(token)) return false;
  pos_ += token.size();
  return true;
}

void Reader::Expect(std::string_view token) {
  if (!Eat(token)) Fail("expected '" + std::string(token) + "'");
}

std::string_view Reader::Word(std::string_view what, std::string_view more) {
  SkipBlanks();
  size_t end = pos_;
  while (end < text_.size() && (IsWord(text_[end]) || more.find(text_[end]) != std::string_view::npos)) ++end;
  if (end == pos_) Fail("expected " + std::string(what));
  std::string_view word = text_.substr(pos_, end - pos_);
  pos_ = end;
  return word;
}

int64_t Reader::Integer() {
  SkipBlanks();
  int64_t v = 0;
  auto [end, error] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), v);
  if (error != std::errc()) Fail("expected an integer");
  pos_ = end - text_.data();
  return v;
}

std::string Reader::String() {
  Expect("\"");
  std::string out;
  while (pos_ < text_.size() && text_[pos_] != '"') {
    char c = text_[pos_++];
    if (c == '\\' && pos_ < text_.size()) {
      c = text_[pos_++];
      if (c == 'n') c = '\n';
      if (c == 'x') {
        int v = 0;
        if (pos_ + 2 > text_.size() ||
            std::from_chars(text_.data() + pos_, text_.data() + pos_ + 2, v, 16).ptr != text_.data() + pos_ + 2)
          Fail("expected two hexadecimal digits");
        pos_ += 2;
        c = static_cast<char>(v);
      }
    }
    out += c;
  }
  if (pos_ == text_.size()) Fail("unterminated string");
  ++pos_;
  return out;
}

shape::Int Reader::Size() {
  SkipBlanks();
  size_t length = 0;
  std::optional<shape::Int> e = shape::ParsePrefix(text_.substr(pos_), &length);
  if (!e) {
    pos_ += length;
    Fail("expected a size expression");
  }
  pos_ += length;
  return *e;
}

std::optional<shape::Int> Reader::TrySize() {
  SkipBlanks();
  size_t length = 0, start = pos_;
  std::optional<shape::Int> e = shape::ParsePrefix(text_.substr(pos_), &length);
  if (e) {
    pos_ += length;
    SkipBlanks();
    if (pos_ == text_.size() || std::string_view(",)]}:").find(text_[pos_]) != std::string_view::npos) return e;
  }
  pos_ = start;
  return std::nullopt;
}

shape::Ints Reader::Sizes() {
  shape::Ints v;
  Expect("[");
  if (Eat("]")) return v;
  do v.push_back(Size());
  while (Eat(","));
  Expect("]");
  return v;
}

double Reader::Float() {
  SkipBlanks();
  double v = 0;
  auto [end, error] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), v);
  if (error != std::errc()) Fail("expected a number");
  pos_ = end - text_.data();
  return v;
}

Scalar Reader::ReadScalar() {
  if (Eat("true")) return true;
  if (Eat("false")) return false;
  SkipBlanks();
  size_t end = pos_ + (pos_ < text_.size() && text_[pos_] == '-');
  while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end]))) ++end;
  bool integer = end > pos_ && std::isdigit(static_cast<unsigned char>(text_[end - 1])) &&
                 !(end < text_.size() && (text_[end] == '.' || text_[end] == 'e'));
  if (integer) return Integer();
  return Float();
}

ValueId Reader::Value() {
  Expect("%");
  int64_t v = Integer();
  if (v < 0 || v >= kNoValue) Fail("value number out of range");
  return static_cast<ValueId>(v);
}

DType Reader::ReadDType() {
  SkipBlanks();
  size_t start = pos_;
  std::optional<DType> t = ParseDType(Word("a dtype"));
  if (!t) {
    pos_ = start;
    Fail("unknown dtype");
  }
  return *t;
}

TensorType Reader::Type() {
  TensorType t;
  t.dtype = ReadDType();
  t.shape = Sizes();
  if (!Eat("@")) return t;
  if (Eat("cuda")) {
    t.device.kind = DeviceKind::kCuda;
  } else if (Eat("meta")) {
    t.device.kind = DeviceKind::kMeta;
  } else if (Eat("private")) {
    t.device.kind = DeviceKind::kPrivate;
  } else if (!Eat("cpu")) {
    Fail("expected cpu, cuda, meta or private");
  }
  if (pos_ < text_.size() && text_[pos_] == ':' && pos_ + 1 < text_.size() && std::isdigit(text_[pos_ + 1])) {
    Expect(":");
    t.device.index = static_cast<int16_t>(Integer());
  }
  return t;
}

Arg Reader::ReadArg() {
  using Kind = Arg::Kind;
  auto items_until = [&](std::string_view close) {
    std::vector<Arg> items;
    while (!Eat(close)) {
      items.push_back(ReadArg());
      if (!Eat(",")) {
        Expect(close);
        break;
      }
    }
    return items;
  };
  auto text_of = [&](Kind kind) {
    Expect("(");
    Arg a = Arg::Str(String());
    a.kind = kind;
    Expect(")");
    return a;
  };
  if (Eat("None")) return Arg::None();
  if (Eat("True")) return Arg::Bool(true);
  if (Eat("False")) return Arg::Bool(false);
  if (Eat("...")) return Arg::Seq(Kind::kEllipsis, {});
  if (Peek("\"")) return Arg::Str(String());
  if (Peek("%")) return Arg::Tensor(Value());
  if (Eat("scalar")) {
    Expect("(");
    Arg a = Arg::Tensor(Value());
    a.b = true;
    Expect(")");
    return a;
  }
  if (Eat("[")) return Arg::Seq(Kind::kList, items_until("]"));
  if (Eat("dtype")) return text_of(Kind::kDType);
  if (Eat("device")) return text_of(Kind::kDevice);
  if (Eat("layout")) return text_of(Kind::kLayout);
  if (Eat("memory_format")) return text_of(Kind::kMemoryFormat);
  if (Eat("slice")) {
    Expect("(");
    return Arg::Seq(Kind::kSlice, items_until(")"));
  }
  if (Eat("complex")) {
    Arg a;
    a.kind = Kind::kComplex;
    Expect("(");
    a.f = Float();
    Expect(",");
    a.imag = Float();
    Expect(")");
    return a;
  }
  if (Eat("object")) {
    Arg a;
    a.kind = Kind::kObject;
    Expect("(");
    a.i = Size();
    Expect(")");
    return a;
  }
  if (Eat("{")) {
    Arg a = Arg::Seq(Kind::kDict, {});
    while (!Eat("}")) {
      a.items.push_back(ReadArg());
      Expect(":");
      a.items.push_back(ReadArg());
      if (!Eat(",")) {
        Expect("}");
        break;
      }
    }
    return a;
  }
  if (std::optional<shape::Int> i = TrySize()) return Arg::Int(*i);  // before tuples: "(s0 + 1)" is a number
  if (Eat("(")) return Arg::Seq(Kind::kTuple, items_until(")"));
  return Arg::Float(Float());
}

Call Reader::ReadCall() {
  Call c;
  if (Peek("%")) {
    do c.results.push_back(Value());
    while (Eat(","));
    Expect("=");
  }
  c.callee = Word("the name of a function", ".:");
  Expect("(");
  while (!Eat(")")) {
    size_t start = pos_;
    SkipBlanks();
    size_t end = pos_;
    while (end < text_.size() && IsWord(text_[end])) ++end;
    if (end > pos_ && end < text_.size() && text_[end] == '=') {
      std::string key(text_.substr(pos_, end - pos_));
      pos_ = end + 1;
      c.kwargs.emplace_back(std::move(key), ReadArg());
    } else {
      pos_ = start;
      if (!c.kwargs.empty()) Fail("positional argument after a keyword");
      c.args.push_back(ReadArg());
    }
    if (!Eat(",")) {
      Expect(")");
      break;
    }
  }
  if (Eat("->")) {
    c.result = ReadArg();
  } else if (c.results.size() == 1) {
    c.result = Arg::Tensor(c.results[0]);
  } else if (c.results.size() > 1) {
    c.result.kind = Arg::Kind::kTuple;
    for (TraceId t : c.results) c.result.items.push_back(Arg::Tensor(t));
  }
  c.mode.grad = !Eat("nograd");
  c.mode.inference = Eat("inference");
  return c;
}

}  // namespace framejit::text
