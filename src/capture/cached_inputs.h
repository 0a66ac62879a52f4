// Calls of functions behind functools.lru_cache with integers that change from run to run, also in tuples. A tensor
// that the cache has for such a call is an input of the graph. Numbers, and lists, tuples and dicts of them, are what
// the function's code makes of the integers. Once the guards hold the cache is asked, which is the program's call. No
// code of the program runs then. A call that the cache does not know is the program's to make.
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
class Recipe;
class Session;

// What a cache is asked for or gives: an object, a number that is known before each run, or a container of these.
struct Form {
  enum Kind : uint8_t { kObject, kNumber, kItems } kind = kObject;
  Ref object;  // Of a container its type.
  shape::Int number = shape::Int(0);
  std::vector<Form> items;  // of a dict its keys and values by turns
  // What captured code has, with guards on which objects from outside these are. Keys hold no lists and dicts. False:
  // it is something else.
  static bool Read(Session& s, PyObject* o, bool key, Form* out);
  // These containers are the cache's own: which objects they are nobody may ask.
  void Mark(Session& s, PyObject* shown, const guard::Source* cache) const;
  Ref Make(std::span<const int64_t> symbols) const;  // a new object, where it holds no lists and dicts
  // Is `o` that, for these numbers? Without any: as captured code has it.
  bool Is(PyObject* o, const std::span<const int64_t>* symbols) const;
};

bool operator==(const Form& a, const Form& b);

// Says what an argument is as a key of a cache: a value (also an object that stands for itself), an object that was
// made here, so that no cache has it yet, or anything else.
enum class KeyKind : uint8_t { kValue, kNew, kOther };
KeyKind KeyOf(Session& s, PyObject* o);
bool HoldsNumber(PyObject* o);  // Is it an integer that changes, or a tuple with one in it?

class CachedInputs {
 public:
  bool empty() const { return calls_.empty(); }
  bool GivesTensors() const;
  // Containers are the cache's own: none may be changed, or be there behind the exit.
  bool Exposes(const Recipe& recipe) const;
  bool looks() const { return looks_; }
  void Seal() { proxies_.clear(); }  // The capture has ended.
  // A call in a capture. Null without an error: it is none of these. Null after a Break.
  PyObject* Capture(CaptureSemantics& sem, Session& s, PyObject* cached, PyObject* const* args, Py_ssize_t nargs,
                    PyObject* kwnames);
  // Fills in the inputs before a run. False: a cache does not know its call, or it has something of another kind.
  bool Ask(PyObject** inputs, std::span<const int64_t> symbols, std::vector<Ref>* held) const;

 private:
  struct Call {
    Ref cache, function, kwnames;
    std::vector<Form> args;
    bool bounded;    // Does the cache drop what is oldest?
    int input = -1;  // -1: it gives numbers.
    TensorMeta meta = {};
    uint64_t key_set = 0;
    Form given = {};
    bool Same(const Call& other) const;
    bool Fits(PyObject* result, std::span<const int64_t> symbols) const;
    // The arguments of a run, or of the capture.
    std::vector<Ref> Arguments(std::span<const int64_t> symbols) const;
  };
  // The phases of Capture. `real` is what the cache has for the numbers of now, or is to have; it is taken.
  bool Ask(CaptureSemantics& sem, Session& s, Call* call, bool quiet, PyObject* const* args, Py_ssize_t nargs,
           Ref* real) const;
  bool TakeWaiting(Session& s, const Call& next);
  PyObject* TakeTensor(Session& s, Call call, PyObject* real, PyObject* shown);
  const guard::Source* Place(Session& s);  // where the next input is looked for: nothing is there

  std::vector<Call> calls_;
  bool looks_ = false;        // Is code captured for nothing but what it gives? It makes no calls.
  std::vector<Ref> proxies_;  // what captured code got for each
  Ref places_;
};

}  // namespace framejit::capture
