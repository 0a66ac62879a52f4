#include "surface/signature.h"

#include <stdexcept>
#include <utility>

namespace framejit::surface {
namespace {

using Kind = Arg::Kind;

struct TypeName {
  std::string_view name;
  ArgType type;
};
constexpr TypeName kTypeNames[] = {
    {"Tensor[]", ArgType::kTensorList},
    {"Tensor", ArgType::kTensor},
    {"Operand", ArgType::kOperand},
    {"Scalar", ArgType::kScalar},
    {"Factor", ArgType::kFactor},
    {"int[]", ArgType::kIntList},
    {"ints", ArgType::kInts},
    {"int", ArgType::kInt},
    {"bool", ArgType::kBool},
    {"float", ArgType::kFloat},
    {"str", ArgType::kString},
    {"ScalarType", ArgType::kDType},
    {"Device", ArgType::kDevice},
    {"Layout", ArgType::kLayout},
    {"MemoryFormat", ArgType::kMemoryFormat},
    {"Any", ArgType::kAny},
};

// Names that the frameworks accept for the same parameter.
struct Alias {
  std::string_view keyword, parameter;
};
constexpr Alias kAliases[] = {
    {"axis", "dim"}, {"keepdims", "keepdim"}, {"x", "input"},  {"a", "input"},
    {"x1", "input"}, {"self", "input"},       {"x2", "other"}, {"dims", "dim"},
};

std::string_view Trim(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

Arg ParseDefault(std::string_view s) {
  if (s == "None") return Arg::None();
  if (s == "True" || s == "False") return Arg::Bool(s == "True");
  if (s == "()") return Arg::Seq(Kind::kTuple, {});
  if (s == "(0,)") return Arg::Seq(Kind::kTuple, {Arg::Int(0)});
  if (s.front() == '\'') return Arg::Str(std::string(s.substr(1, s.size() - 2)));
  std::string text(s);
  if (text.find_first_of(".en") != std::string::npos) return Arg::Float(std::stod(text));
  return Arg::Int(int64_t{std::stoll(text)});
}

bool IsIntList(const Arg& a) {
  if (!a.is(Kind::kTuple) && !a.is(Kind::kList)) return false;
  for (const Arg& i : a.items) {
    if (!i.is(Kind::kInt)) return false;
  }
  return true;
}

bool Accepts(const Param& p, const Arg& a) {
  if (a.is_none()) return p.optional || p.type == ArgType::kAny;
  switch (p.type) {
    case ArgType::kTensor: return a.is(Kind::kTensor);
    case ArgType::kTensorList:
      if (!a.is(Kind::kTuple) && !a.is(Kind::kList)) return false;
      for (const Arg& i : a.items) {
        if (!i.is(Kind::kTensor)) return false;
      }
      return true;
    case ArgType::kFactor:
    case ArgType::kOperand: return a.is(Kind::kTensor) || a.is_number() || a.is(Kind::kSymFloat);
    case ArgType::kScalar: return a.is_number() || a.is(Kind::kSymFloat);
    case ArgType::kInt: return a.is(Kind::kInt);
    case ArgType::kIntList: return a.is(Kind::kInt) || IsIntList(a);
    case ArgType::kInts: return IsIntList(a);
    case ArgType::kBool: return a.is(Kind::kBool);
    case ArgType::kFloat: return a.is_number();
    case ArgType::kString: return a.is(Kind::kString);
    case ArgType::kDType: return a.is(Kind::kDType) && DTypeFromText(a.s).has_value();
    case ArgType::kDevice: return a.is(Kind::kDevice) || a.is(Kind::kString);
    case ArgType::kLayout: return a.is(Kind::kLayout);
    case ArgType::kMemoryFormat: return a.is(Kind::kMemoryFormat);
    case ArgType::kAny: return true;
  }
  return false;
}

Arg Normalise(const Param& p, const Arg& a) {
  if (p.type == ArgType::kIntList && a.is(Kind::kInt)) return Arg::Seq(Kind::kTuple, {a});
  return a;
}

}  // namespace

Signature Signature::Parse(std::string_view text) {
  Signature sig;
  auto fail = [&](const char* why) { throw std::logic_error("signature " + std::string(text) + ": " + why); };
  std::string_view s = Trim(text);
  if (s.size() < 2 || s.front() != '(' || s.back() != ')') fail("no parentheses");
  s = s.substr(1, s.size() - 2);
  bool keyword_only = false;
  while (!(s = Trim(s)).empty()) {
    size_t end = 0;
    for (int depth = 0; end < s.size() && (depth > 0 || s[end] != ','); ++end) {
      depth += s[end] == '(' ? 1 : s[end] == ')' ? -1 : 0;
    }
    std::string_view item = Trim(s.substr(0, end));
    s = end < s.size() ? s.substr(end + 1) : std::string_view();
    if (item == "*") {
      keyword_only = true;
      continue;
    }
    Param p;
    p.keyword_only = keyword_only;
    if (size_t eq = item.find('='); eq != std::string_view::npos) {
      p.has_default = true;
      p.default_value = ParseDefault(Trim(item.substr(eq + 1)));
      item = Trim(item.substr(0, eq));
    }
    size_t space = item.find(' ');
    if (space == std::string_view::npos) fail("a parameter needs type and name");
    std::string_view type = item.substr(0, space);
    p.name = Trim(item.substr(space));
    if (type.ends_with("...")) {
      p.variadic = true;
      type.remove_suffix(3);
    }
    if (type.ends_with("?")) {
      p.optional = true;
      type.remove_suffix(1);
    }
    bool known = false;
    for (const TypeName& t : kTypeNames) {
      if (t.name == type) {
        p.type = t.type;
        known = true;
      }
    }
    if (!known) fail("unknown type");
    sig.params.push_back(std::move(p));
  }
  return sig;
}

std::optional<std::vector<Arg>> Signature::Bind(const Call& call) const {
  std::vector<Arg> bound(params.size());
  std::vector<bool> given(params.size(), false);
  size_t next = 0;
  for (size_t i = 0; i < params.size() && next < call.args.size(); ++i) {
    const Param& p = params[i];
    if (p.keyword_only) break;
    if (p.variadic) {
      bool list = p.type == ArgType::kIntList ? !call.args[next].is(Kind::kInt) : !call.args[next].is(Kind::kTensor);
      if (!list) {
        Arg all = Arg::Seq(Kind::kTuple, {call.args.begin() + next, call.args.end()});
        if (!Accepts(p, all)) return std::nullopt;
        bound[i] = std::move(all);
        given[i] = true;
        next = call.args.size();
        break;
      }
    }
    if (!Accepts(p, call.args[next])) return std::nullopt;
    bound[i] = Normalise(p, call.args[next++]);
    given[i] = true;
  }
  if (next != call.args.size()) return std::nullopt;
  for (const auto& [name, value] : call.kwargs) {
    size_t found = params.size();
    for (size_t i = 0; i < params.size(); ++i) {
      if (params[i].name == name) found = i;
    }
    if (found == params.size()) {
      for (const Alias& alias : kAliases) {
        for (size_t i = 0; alias.keyword == name && i < params.size(); ++i) {
          if (params[i].name == alias.parameter) found = i;
        }
      }
    }
    if (found == params.size()) {
      if (name == "out" && value.is_none()) continue;
      return std::nullopt;
    }
    if (given[found] || !Accepts(params[found], value)) return std::nullopt;
    bound[found] = Normalise(params[found], value);
    given[found] = true;
  }
  for (size_t i = 0; i < params.size(); ++i) {
    if (given[i]) continue;
    if (!params[i].has_default) return std::nullopt;
    bound[i] = params[i].default_value;
  }
  return bound;
}

std::optional<DType> DTypeFromText(std::string_view s) {
  for (std::string_view prefix : {"torch.", "numpy."}) {
    if (s.starts_with(prefix)) s.remove_prefix(prefix.size());
  }
  struct Name {
    std::string_view name;
    DType type;
  };
  static constexpr Name names[] = {
      {"float32", DType::kFloat32},    {"float", DType::kFloat32},
      {"float64", DType::kFloat64},    {"double", DType::kFloat64},
      {"float16", DType::kFloat16},    {"half", DType::kFloat16},
      {"bfloat16", DType::kBFloat16},  {"int64", DType::kInt64},
      {"long", DType::kInt64},         {"int32", DType::kInt32},
      {"int", DType::kInt32},          {"int16", DType::kInt16},
      {"short", DType::kInt16},        {"int8", DType::kInt8},
      {"uint8", DType::kUInt8},        {"uint16", DType::kUInt16},
      {"uint32", DType::kUInt32},      {"uint64", DType::kUInt64},
      {"bool", DType::kBool},          {"complex64", DType::kComplex64},
      {"cfloat", DType::kComplex64},   {"complex128", DType::kComplex128},
      {"cdouble", DType::kComplex128},
  };
  for (const Name& n : names) {
    if (n.name == s) return n.type;
  }
  return std::nullopt;
}

}  // namespace framejit::surface
