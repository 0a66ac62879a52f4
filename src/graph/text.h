// The pieces of text that graphs, calls and scalars share: writing, and a reader that reports line and column.
#pragma once

#include <string>
#include <string_view>

#include "framejit/graph.h"

namespace framejit::text {

std::string Quote(std::string_view s);    // "a\n\"b\""
std::string FloatText(double v);          // shortest that reads back to the same bits; always looks like a float
std::string ScalarText(const Scalar& s);  // Such as true, 3 and 0.5.

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  [[noreturn]] void Fail(const std::string& message) const;  // std::runtime_error "line L, column C: message"
  bool AtEnd();
  bool Peek(std::string_view token);  // tokens of letters match whole words only
  bool Eat(std::string_view token);
  void Expect(std::string_view token);
  std::string_view Word(std::string_view what, std::string_view more = "");  // letters, digits, '_' and those of `more'
  int64_t Integer();
  std::string String();
  shape::Int Size();
  std::optional<shape::Int> TrySize();  // nothing read if there is none, or if it does not end like an argument
  shape::Ints Sizes();                  // "[4, s0]"
  double Float();
  Scalar ReadScalar();
  ValueId Value();  // "%3"
  DType ReadDType();
  TensorType Type();
  Arg ReadArg();
  Call ReadCall();

 private:
  void SkipBlanks();  // blanks, line ends, comments from '#' to the end of the line
  std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace framejit::text
