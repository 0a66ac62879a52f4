// The options check_numerics and dump_segments: framejit/_numerics.py sees what compiled segments are given, and what
// they give.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capture/ref.h"
#include "tensor/tensor.h"

namespace framejit::capture {

// Bisecting (option segment_fuel): the number of the next segment to be compiled, from 0; -1: none is any more.
int64_t TakeSegmentFuel();

class SegmentCheck {
 public:
  // Null: nobody wants to see it. It is told before the segment is compiled, which may be what fails. `symbols` are
  // those of the call that is captured.
  static std::unique_ptr<SegmentCheck> Make(const Trace& trace, const std::vector<PyObject*>& constants,
                                            const std::vector<PyObject*>& examples, const std::string& place,
                                            int64_t number, bool gradients, const std::string& backend,
                                            std::vector<int64_t> symbols);
  void NotePlan(const std::string& plan);
  // Called around one run. False: an exception is set, in strict mode since the results are wrong.
  bool Before(PyObject* const* inputs, const int64_t* symbols, size_t num_symbols, Ref* expected);
  bool After(const Ref& expected, PyObject* const* outputs);

 private:
  Ref graph_, checker_;
  size_t num_inputs_ = 0, num_outputs_ = 0;
  std::vector<int64_t> symbols_;
};

}  // namespace framejit::capture
