// This file makes the text of calls and traces. Arguments look like Python. What Python has no literal for is written
// as a call: dtype("float32"), device("cuda:0"), complex(1.0, 2.0), object(3).
#include "framejit/call.h"

#include "graph/text.h"

namespace framejit {
namespace {

std::string Join(const std::vector<Arg>& items) {
  std::string s;
  for (size_t i = 0; i < items.size(); ++i) s += (i ? ", " : "") + items[i].str();
  return s;
}

}  // namespace

std::string Arg::str() const {
  switch (kind) {
    case Kind::kNone: return "None";
    case Kind::kBool: return b ? "True" : "False";
    case Kind::kInt: return i.str();
    case Kind::kFloat: return text::FloatText(f);
    case Kind::kSymFloat: return "float(" + i.str() + ")";
    case Kind::kComplex: return "complex(" + text::FloatText(f) + ", " + text::FloatText(imag) + ")";
    case Kind::kString: return text::Quote(s);
    case Kind::kDType: return "dtype(" + text::Quote(s) + ")";
    case Kind::kDevice: return "device(" + text::Quote(s) + ")";
    case Kind::kLayout: return "layout(" + text::Quote(s) + ")";
    case Kind::kMemoryFormat: return "memory_format(" + text::Quote(s) + ")";
    case Kind::kTensor: return b ? "scalar(%" + std::to_string(t) + ")" : "%" + std::to_string(t);
    case Kind::kTuple: return "(" + Join(items) + (items.size() == 1 ? ",)" : ")");
    case Kind::kList: return "[" + Join(items) + "]";
    case Kind::kSlice: return "slice(" + Join(items) + ")";
    case Kind::kEllipsis: return "...";
    case Kind::kDict: {
      std::string s = "{";
      for (size_t k = 0; k + 1 < items.size(); k += 2)
        s += (k ? ", " : "") + items[k].str() + ": " + items[k + 1].str();
      return s + "}";
    }
    case Kind::kObject: return "object(" + i.str() + ")";
  }
  return "";
}

std::string Call::str() const {
  std::string s;
  Arg implied;  // The structure that the results have where the call says nothing of it.
  if (results.size() == 1) implied = Arg::Tensor(results[0]);
  if (results.size() > 1) implied.kind = Arg::Kind::kTuple;
  for (size_t i = 0; i < results.size(); ++i) {
    s += (i ? ", %" : "%") + std::to_string(results[i]);
    if (results.size() > 1) implied.items.push_back(Arg::Tensor(results[i]));
  }
  s += (results.empty() ? "" : " = ") + callee.name() + "(" + Join(args);
  for (size_t i = 0; i < kwargs.size(); ++i)
    s += (i || !args.empty() ? ", " : "") + kwargs[i].first + "=" + kwargs[i].second.str();
  s += ")";
  if (result.str() != implied.str()) s += " -> " + result.str();
  if (!mode.grad) s += " nograd";
  if (mode.inference) s += " inference";
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

std::string Trace::str() const {
  std::string s;
  for (TraceId id : inputs) {
    s += "input %" + std::to_string(id) + " : " + tensors[id].meta.str();
    s += tensors[id].mutated ? " mutated\n" : "\n";
  }
  for (const Call& c : calls) {
    s += c.str();
    if (!c.file.empty()) s += "  # " + c.file + ":" + std::to_string(c.line);
    s += "\n";
  }
  s += "return ";
  for (size_t i = 0; i < outputs.size(); ++i) s += (i ? ", %" : "%") + std::to_string(outputs[i]);
  return s + "\n";
}

}  // namespace framejit
