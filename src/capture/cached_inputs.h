// Calls of functions behind functools.lru_cache with integers that change from run to run. What the cache has for such
// a call is an input of the graph: once the guards hold it is asked for it, which is the program's call. No code of the
// program runs then. A call that the cache does not know is the program's to make.
#pragma once

#include <span>
#include <vector>

#include "capture/ref.h"
#include "framejit/call.h"

namespace framejit::guard {
struct Source;
}

namespace framejit::capture {

class CaptureSemantics;
class Session;

class CachedInputs {
 public:
  bool empty() const { return calls_.empty(); }
  // A call in a capture. Null without an error: it is none of these. Null after a Break.
  PyObject* Capture(CaptureSemantics& sem, Session& s, PyObject* cached, PyObject* const* args, Py_ssize_t nargs,
                    PyObject* kwnames);
  // Fills in the inputs before a run. False: a cache does not know its call, or it has something of another kind.
  bool Ask(PyObject** inputs, std::span<const int64_t> symbols, std::vector<Ref>* held) const;

 private:
  struct Call {
    Ref cache, function, kwnames;
    std::vector<Ref> args;            // Null: a number.
    std::vector<shape::Int> numbers;  // for each argument
    bool bounded;                     // Does the cache drop what is oldest?
    mutable bool made;                // The capture made it, so that the first run does not.
    int input = -1;
    TensorMeta meta = {};
    uint64_t key_set = 0;
    bool Same(const Call& other) const;
    // The arguments of a run, or of the capture.
    std::vector<Ref> Arguments(std::span<const int64_t> symbols) const;
  };
  const guard::Source* Place(Session& s);  // where the next input is looked for: nothing is there

  std::vector<Call> calls_;
  std::vector<Ref> proxies_;  // what captured code got for each
  Ref places_;
};

}  // namespace framejit::capture
