// What generators of random numbers beside torch's give (`random`, `numpy.random`). A capture notes each draw. Before
// every run of the segment they are made in the program's order, and their values are guarded, bound to symbols or read
// as inputs like anything else from outside: sources find them in a list. Where the segment does not run after all, the
// generators are put back. A seed that the program sets, and a generator that it makes, are such steps, too.
#pragma once

#include <cstdint>
#include <vector>

#include "capture/ref.h"
#include "guard/guard.h"

namespace framejit::capture {

class Session;

// The states of generators, byte by byte.
class GeneratorStates {
 public:
  void Save(PyObject* generator);  // Its state is what it is when it is first named.
  void Restore() const;

 private:
  struct Part {
    Ref object;
    std::vector<char> bytes;
    std::vector<Ref> held;  // what it refers to, which a seed may let go of
  };
  std::vector<Part> parts_;
};

// Does the object draw random numbers from a state that can be put back?
bool IsGenerator(PyObject* o);

class DrawProgram {
 public:
  bool empty() const { return draws_.empty(); }
  size_t size() const { return draws_.size(); }
  // A draw in a capture; args begin with the generator, which Undo() puts back. A new reference, or null after a Break.
  PyObject* Draw(Session& s, PyObject* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  // What array.item() says of a drawn array of one element that nobody has written to: a number that is found where the
  // draws are. A new reference; null: it is no such array, or a Break.
  PyObject* ItemOf(Session& s, PyObject* array);
  // A generator made in the program, by a call of its class, or the seed of NumPy's own generator. A new reference;
  // null without an exception or a Break: it is neither.
  PyObject* MakeOrSeed(Session& s, PyObject* callable, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);
  bool IsDrawn(const guard::Source* source) const;  // Is it where what was drawn is found?
  void Undo() {
    before_.Restore();
    before_ = {};
  }
  // Makes the draws before a run. It is false where a draw raised, with that exception set, or where something of
  // another kind than in the capture was found.
  bool Run(const guard::GuardSet& guards, PyObject* const* slots, GeneratorStates* before) const;
  void Drop() const;  // Lets go of drawn values that take much memory.

 private:
  // An argument of a draw, or its generator.
  struct Given {
    Ref value;                              // the same in every run; as in the capture where it is one of the others
    const guard::Source* source = nullptr;  // found there before each run, and of the same type
    int drawn = -1;                         // what that draw gave
  };
  struct Made {
    Ref function, kwnames;
    bool draws = false;  // its first argument is a generator that is there before
    std::vector<Given> args;
    int64_t tensor = -1;  // the array that it is to the capture
    int of = -1;          // no draw, but what item() says of what this one gave
    PyObject* Call(const std::vector<Ref>& given, const std::vector<Ref>& drawn) const;
  };
  // What the program gives a draw. False: it may be another one in each run, or a Break.
  bool Give(Session& s, PyObject* o, Given* to) const;
  PyObject* Append(Session& s, Made made, PyObject* const* args, Py_ssize_t nargs, const char* name);
  PyObject* Seen(Session& s, PyObject* value, const char* name);  // What captured code gets for a drawn value.

  std::vector<Made> draws_;
  Ref values_;  // A list of what the draws gave the last time.
  GeneratorStates before_;
};

}  // namespace framejit::capture
