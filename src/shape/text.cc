// This file prints and parses expressions, in Python's syntax with Python's precedence.
#include "shape/text.h"

#include <cctype>
#include <charconv>

namespace framejit::shape {
namespace {

std::string Atom(Int e) {  // as an operand of a tighter operator
  const Node& n = *e.node();
  bool open = n.kind == Kind::kSum ? n.terms.size() == 1 : n.kind == Kind::kConst && n.value < 0;
  return open ? "(" + e.str() + ")" : e.str();
}

std::string TermText(const Term& t, int64_t coefficient) {
  if (t.factors.empty()) return std::to_string(coefficient);
  std::string s;
  for (Int f : t.factors) s += (s.empty() ? "" : "*") + Atom(f);
  if (coefficient == -1) return "-" + s;
  return coefficient == 1 ? s : s + "*" + std::to_string(coefficient);
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}
  size_t pos() const { return pos_; }
  std::optional<Int> Sum() {
    std::optional<Int> a = Product();
    while (a) {
      if (Eat("+")) {
        auto b = Product();
        a = b ? std::optional(*a + *b) : std::nullopt;
      } else if (Eat("-")) {
        auto b = Product();
        a = b ? std::optional(*a - *b) : std::nullopt;
      } else {
        break;
      }
    }
    return a;
  }

 private:
  std::optional<Int> Product() {
    std::optional<Int> a = Unary();
    while (a) {
      auto apply = [&](Int (*f)(Int, Int)) {
        auto b = Unary();
        a = b ? std::optional(f(*a, *b)) : std::nullopt;
      };
      if (Eat("//")) {
        apply(FloorDiv);
      } else if (Eat("*")) {
        apply([](Int x, Int y) { return x * y; });
      } else if (PeekModulo()) {
        Eat("%");
        apply(Mod);
      } else {
        break;
      }
    }
    return a;
  }
  // "%3" is a value of a graph, "% 3" and "% s0" a remainder: where both can follow, remainders are printed with a
  // space.
  bool PeekModulo() {
    size_t p = pos_;
    while (p < text_.size() && text_[p] == ' ') ++p;
    return p + 1 < text_.size() && text_[p] == '%' && text_[p + 1] == ' ';
  }
  std::optional<Int> Unary() {
    if (Eat("-")) {
      auto a = Unary();
      return a ? std::optional(-*a) : std::nullopt;
    }
    if (Eat("(")) {
      auto a = Sum();
      return a && Eat(")") ? a : std::nullopt;
    }
    if (Eat("min(")) return Fold(Min);
    if (Eat("max(")) return Fold(Max);
    SkipBlanks();
    bool symbol = pos_ + 1 < text_.size() && text_[pos_] == 's' && std::isdigit(text_[pos_ + 1]);
    if (symbol) ++pos_;
    uint64_t v = 0;  // the text of INT64_MIN is a minus and a number that does not fit int64
    auto [end, error] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), v);
    if (error != std::errc() || v > (symbol ? uint64_t{UINT32_MAX} : uint64_t{1} << 63)) return std::nullopt;
    pos_ = end - text_.data();
    return symbol ? Int::Symbol(static_cast<uint32_t>(v)) : Int(static_cast<int64_t>(v));
  }
  std::optional<Int> Fold(Int (*f)(Int, Int)) {
    std::optional<Int> a = Sum();
    while (a && Eat(",")) {
      auto b = Sum();
      a = b ? std::optional(f(*a, *b)) : std::nullopt;
    }
    return a && Eat(")") ? a : std::nullopt;
  }
  void SkipBlanks() {
    while (pos_ < text_.size() && text_[pos_] == ' ') ++pos_;
  }
  bool Eat(std::string_view s) {  // leaves blanks unread if the token is not there
    size_t start = pos_;
    SkipBlanks();
    if (text_.substr(pos_, s.size()) == s) {
      pos_ += s.size();
      return true;
    }
    pos_ = start;
    return false;
  }

  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace

std::string Int::str() const {
  const Node& n = *node_;
  switch (n.kind) {
    case Kind::kConst: return std::to_string(n.value);
    case Kind::kSymbol: return "s" + std::to_string(n.value);
    case Kind::kFloorDiv: return "(" + Atom(n.args[0]) + " // " + Atom(n.args[1]) + ")";
    case Kind::kMod: return "(" + Atom(n.args[0]) + " % " + Atom(n.args[1]) + ")";
    case Kind::kMin:
    case Kind::kMax: {
      std::string s = n.kind == Kind::kMin ? "min(" : "max(";
      for (size_t i = 0; i < n.args.size(); ++i) s += (i ? ", " : "") + n.args[i].str();
      return s + ")";
    }
    case Kind::kSum: {
      if (n.terms.size() == 1) return TermText(n.terms[0], n.terms[0].coefficient);
      std::string s = "(";
      for (size_t i = 0; i < n.terms.size(); ++i) {
        const Term& t = n.terms[i];
        bool minus = i > 0 && t.coefficient < 0 && t.coefficient != INT64_MIN;
        if (i > 0) s += minus ? " - " : " + ";
        s += TermText(t, minus ? -t.coefficient : t.coefficient);
      }
      return s + ")";
    }
  }
  return "";
}

std::optional<Int> ParsePrefix(std::string_view text, size_t* length) {
  Parser p(text);
  std::optional<Int> e = p.Sum();
  *length = p.pos();
  return e;
}

std::optional<Int> Int::Parse(std::string_view text) {
  size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  if (begin == std::string_view::npos) return std::nullopt;
  text = text.substr(begin, end - begin + 1);
  size_t length = 0;
  std::optional<Int> e = ParsePrefix(text, &length);
  return e && length == text.size() ? e : std::nullopt;
}

std::string ToString(std::span<const Int> v) {
  std::string s = "[";
  for (size_t i = 0; i < v.size(); ++i) s += (i ? ", " : "") + v[i].str();
  return s + "]";
}

}  // namespace framejit::shape
