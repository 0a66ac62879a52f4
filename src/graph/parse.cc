#include "framejit/graph.h"
#include "graph/text.h"

namespace framejit {
namespace {

using text::Reader;

void ReadSymbol(Reader& r, Graph& g) {
  std::string expected = "s" + std::to_string(g.symbols.size());
  if (!r.Eat(expected)) r.Fail("expected symbol " + expected);
  r.Expect("=");
  shape::SymbolInfo info;
  Graph::SymbolSource source;
  if (r.Eat("input")) {
    source.input = static_cast<int>(r.Integer());
    r.Expect("dim");
    source.dim = static_cast<int>(r.Integer());
  } else if (r.Eat("scalar")) {
    source = {static_cast<int>(r.Integer()), -1};
  } else {
    r.Expect("unbound");
  }
  if (r.Eat("runtime")) info.kind = shape::SymbolKind::kRuntime;
  if (r.Eat("hint")) info.hint = r.Integer();
  if (r.Eat("range")) {
    info.min = r.Integer();
    r.Expect("..");
    if (!r.Eat("inf")) info.max = r.Integer();
  }
  if (r.Eat("name")) info.name = r.String();
  g.symbols.push_back(std::move(info));
  g.symbol_sources.push_back(source);
}

struct Seen {  // It says which of these attributes the text gave. The others follow from the type.
  bool syms = false, dtype = false, results = false, call_location = false;
};

void ReadAttribute(Reader& r, Attrs& a, std::shared_ptr<Call>& call, Seen& seen) {
  if (r.Eat("axes")) {
    r.Expect("=");
    for (shape::Int i : r.Sizes()) {
      if (!i.is_const()) r.Fail("axes are numbers");
      a.axes.push_back(i.value());
    }
  } else if (r.Eat("syms")) {
    r.Expect("=");
    a.syms = r.Sizes();
    seen.syms = true;
  } else if (r.Eat("value")) {
    r.Expect("=");
    a.scalar = r.ReadScalar();
  } else if (r.Eat("size")) {
    r.Expect("=");
    a.sym_scalar = r.Size();
  } else if (r.Eat("dtype")) {
    r.Expect("=");
    a.dtype = r.ReadDType();
    seen.dtype = true;
  } else if (r.Eat("flag")) {
    a.flag = true;
  } else if (r.Eat("name")) {
    r.Expect("=");
    a.name = r.String();
  } else if (r.Eat("call")) {
    r.Expect("=");
    r.Expect("{");
    call = std::make_shared<Call>(r.ReadCall());
    if (r.Eat("loc")) {
      call->file = r.String();
      r.Expect(":");
      call->line = static_cast<int>(r.Integer());
      seen.call_location = true;
    }
    r.Expect("}");
  } else if (r.Eat("results")) {
    r.Expect("=");
    r.Expect("[");
    seen.results = true;
    while (!r.Eat("]")) {
      a.result_types.push_back(r.Type());
      if (!r.Eat(",")) {
        r.Expect("]");
        break;
      }
    }
  } else {
    r.Fail("expected an attribute");
  }
}

void ReadNode(Reader& r, Graph& g) {
  ValueId id = r.Value();
  if (id != g.nodes.size()) r.Fail("expected value %" + std::to_string(g.nodes.size()));
  r.Expect("=");
  Reader before = r;
  std::string name(r.Word("an operation"));
  std::optional<Op> op = ParseOp(name);
  if (!op) before.Fail("unknown operation '" + name + "'");
  Node n{*op, {}, {}, {}, {}, {}, 0};
  Seen seen;
  std::shared_ptr<Call> call;
  for (bool first = true; !r.Eat(":"); first = false) {
    if (!first) r.Expect(",");
    if (r.Peek("%")) {
      Reader at = r;
      n.operands.push_back(r.Value());
      if (n.operands.back() >= id) at.Fail("operand is not defined before its use");
    } else {
      ReadAttribute(r, n.attrs, call, seen);
    }
  }
  n.type = r.Type();
  if (r.Eat("strides")) n.strides = r.Sizes();
  if (r.Eat("loc")) {
    n.file = r.String();
    r.Expect(":");
    n.line = static_cast<int>(r.Integer());
  }
  std::string_view letters = Info(n.op).attrs;
  auto uses = [&](char c) { return letters.find(c) != std::string_view::npos; };
  if (uses('s') && !seen.syms) n.attrs.syms = n.type.shape;
  if (uses('d') && !seen.dtype) n.attrs.dtype = n.type.dtype;
  if (uses('x') && !seen.results) n.attrs.result_types = {n.type};
  if (call && !seen.call_location) {
    call->file = n.file;
    call->line = n.line;
  }
  n.attrs.call = std::move(call);
  if (n.op == Op::kInput) g.inputs.push_back(id);
  g.nodes.push_back(std::move(n));
}

ValueId Defined(Reader& r, const Graph& g) {
  Reader at = r;
  ValueId v = r.Value();
  if (v >= g.nodes.size()) at.Fail("undefined value %" + std::to_string(v));
  return v;
}

shape::Guard ReadCondition(Reader& r) {
  const shape::Int left = r.Size();
  const std::pair<const char*, shape::Cmp> relations[] = {
      {"==", shape::Cmp::kEq}, {"!=", shape::Cmp::kNe}, {"<=", shape::Cmp::kLe}, {"<", shape::Cmp::kLt}};
  for (auto& [text, relation] : relations)
    if (r.Eat(text)) return {relation, left, r.Size(), ""};
  r.Fail("expected ==, !=, < or <=");
}

}  // namespace

Graph Graph::Parse(std::string_view text) {
  Reader r(text);
  Graph g;
  r.Expect("graph");
  g.name = r.String();
  r.Expect("{");
  while (r.Eat("symbol")) ReadSymbol(r, g);
  while (r.Peek("%")) ReadNode(r, g);
  while (r.Eat("write")) {
    int input = static_cast<int>(r.Integer());
    r.Expect("<-");
    g.writes.push_back({input, Defined(r, g)});
  }
  while (r.Eat("require")) g.conditions.push_back(ReadCondition(r));
  r.Expect("return");
  if (r.Peek("%")) {
    do g.outputs.push_back(Defined(r, g));
    while (r.Eat(","));
  }
  r.Expect("}");
  if (!r.AtEnd()) r.Fail("text after the end of the graph");
  return g;
}

}  // namespace framejit
