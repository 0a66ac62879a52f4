// This file writes graphs as text and reads them. docs/graph.md describes the format. Parse(str()) gives a well-formed
// graph back.
#include "graph/print.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "graph/text.h"

namespace framejit {
namespace {

using text::Quote;

std::string Values(const std::vector<ValueId>& v) {
  std::string s;
  for (size_t i = 0; i < v.size(); ++i) s += (i ? ", %" : "%") + std::to_string(v[i]);
  return s;
}

std::string Location(const std::string& file, int line) {
  return " loc " + Quote(file) + ":" + std::to_string(line);
}

// Attributes the row of the op declares, in the order of the letters in ops.def. What the type already says is left
// out.
std::string AttributeText(const Node& n, bool locations) {
  std::string s;
  auto add = [&](const std::string& t) { s += (s.empty() && n.operands.empty() ? " " : ", ") + t; };
  const Attrs& a = n.attrs;
  static constexpr Op kNamed[] = {Op::kSum, Op::kProd, Op::kCumSum, Op::kCast};  // loop::kNumpys
  const bool named = std::find(std::begin(kNamed), std::end(kNamed), n.op) != std::end(kNamed);
  const std::string letters = Info(n.op).attrs + std::string(named ? "n" : "");
  for (const char* letter = letters.c_str(); *letter; ++letter) {
    switch (*letter) {
      case 'a': {
        if (a.axes.empty()) break;
        std::string list;
        for (int64_t x : a.axes) list += (list.empty() ? "" : ", ") + std::to_string(x);
        add("axes=[" + list + "]");
        break;
      }
      case 's':
        if (a.syms != n.type.shape) add("syms=" + shape::ToString(a.syms));
        break;
      case 'c':
        if (!a.sym_scalar || !(a.scalar == Scalar())) add("value=" + text::ScalarText(a.scalar));
        if (a.sym_scalar) add("size=" + a.sym_scalar->str());
        break;
      case 'd':
        if (a.dtype != n.type.dtype) add("dtype=" + std::string(DTypeName(a.dtype)));
        break;
      case 'f':
        if (a.flag) add("flag");
        break;
      case 'n':
        if (!a.name.empty()) add("name=" + Quote(a.name));
        break;
      case 'x': {
        if (a.call) {
          std::string call = a.call->str();
          if (locations && (a.call->file != n.file || a.call->line != n.line))
            call += Location(a.call->file.str(), a.call->line);
          add("call={" + call + "}");
        }
        if (a.result_types.size() == 1 && a.result_types[0] == n.type) break;
        std::string list;
        for (const TensorType& t : a.result_types) list += (list.empty() ? "" : ", ") + t.str();
        add("results=[" + list + "]");
        break;
      }
      default: break;
    }
  }
  return s;
}

std::string SymbolText(const Graph& g, size_t i) {
  const shape::SymbolInfo& info = g.symbols[i];
  Graph::SymbolSource source = i < g.symbol_sources.size() ? g.symbol_sources[i] : Graph::SymbolSource{};
  std::string s = "  symbol s" + std::to_string(i) + " = ";
  if (source.input < 0) {
    s += "unbound";
  } else if (source.dim < 0) {
    s += "scalar " + std::to_string(source.input);
  } else {
    s += "input " + std::to_string(source.input) + " dim " + std::to_string(source.dim);
  }
  if (info.kind == shape::SymbolKind::kRuntime) s += " runtime";
  s += " hint " + std::to_string(info.hint) + " range " + std::to_string(info.min) + "..";
  s += info.max == INT64_MAX ? "inf" : std::to_string(info.max);
  return info.name.empty() ? s : s + " name " + Quote(info.name);
}

uint64_t Fnv(std::string_view s) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (char c : s) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return h ^ (h >> 31);
}

}  // namespace

std::string NodeText(const Node& n, bool locations) {
  std::string s = Info(n.op).name;
  if (!n.operands.empty()) s += " " + Values(n.operands);
  s += AttributeText(n, locations) + " : " + n.type.str();
  if (!n.strides.empty()) s += " strides " + shape::ToString(n.strides);
  if (locations && (!n.file.empty() || n.line != 0)) s += Location(n.file.str(), n.line);
  return s;
}

std::string NodeText(const Graph& g, ValueId v, bool locations) {
  return "%" + std::to_string(v) + " = " + NodeText(g.nodes[v], locations);
}

std::string Graph::str() const {
  std::string s = "graph " + Quote(name) + " {\n";
  for (size_t i = 0; i < symbols.size(); ++i) s += SymbolText(*this, i) + "\n";
  for (ValueId v = 0; v < nodes.size(); ++v) s += "  " + NodeText(*this, v, true) + "\n";
  for (const Write& w : writes) s += "  write " + std::to_string(w.input) + " <- %" + std::to_string(w.value) + "\n";
  for (const shape::Guard& c : conditions) s += "  require " + c.str() + "\n";
  s += "  return" + (outputs.empty() ? "" : " " + Values(outputs)) + "\n";
  return s + "}\n";
}

// Prints everything that decides what the graph computes. Names, hints and places in files do not.
uint64_t Graph::Hash() const {
  std::string s;
  for (size_t i = 0; i < symbols.size(); ++i) {
    SymbolSource source = i < symbol_sources.size() ? symbol_sources[i] : SymbolSource{};
    s += std::to_string(source.input) + "," + std::to_string(source.dim) + "," + std::to_string(symbols[i].min) + "," +
         std::to_string(symbols[i].max) + "," + std::to_string(static_cast<int>(symbols[i].kind)) + ";";
  }
  for (ValueId v = 0; v < nodes.size(); ++v) {
    if (nodes[v].op == Op::kInput) {
      s += "input " + nodes[v].type.str() + shape::ToString(nodes[v].strides) + "\n";
    } else {
      s += NodeText(*this, v, false) + "\n";
    }
  }
  for (const Write& w : writes) s += std::to_string(w.input) + "<-" + std::to_string(w.value) + ";";
  return Fnv(s + "return " + Values(outputs));
}

}  // namespace framejit
