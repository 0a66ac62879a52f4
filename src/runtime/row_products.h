// What a host may have besides: products of matrices that are made as they are read, and two products in one pass.
#pragma once

#include "framejit/compile.h"

namespace framejit::runtime {

// Gives rows [begin, end) of a matrix, one behind the other, in memory that stays as it is until the same thread asks
// again; null: the product is not wanted any more.
using MakeRows = const void* (*)(void* ctx, int64_t begin, int64_t end);

class RowProducts {
 public:
  // The product of such a matrix `a`, whose data is not read, and of a matrix of one column, as Host::MatMul gives it.
  // `rows` is called on any thread. False, which may come late: somebody else has to compute it.
  virtual bool MultiplyRows(const Buffer& a, const Buffer& b, Buffer& out, MakeRows rows, void* ctx) = 0;
  // A product of matrices, as Host::MatMul is given it.
  struct Product {
    const Buffer &a, &b, &out;
  };
  // Two products of one matrix, which is read once, with vectors from its two sides. The second one's may be the first
  // result. False, as above.
  virtual bool MultiplyBoth(const Product& first, const Product& second) = 0;

 protected:
  ~RowProducts() = default;
};

}  // namespace framejit::runtime
