// What kernels in Python of torch.library's operators could read or change of the program (framejit._kernels). They run
// when the graph runs: behind all that was read for it, and before all that waits for its exit.
#pragma once

#include <cstdint>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/ref.h"

namespace framejit::guard {
struct Source;
}

namespace framejit::capture {

class Session;

class KernelReads {
 public:
  // An operator is about to be called, with these tensors. False (Break): its kernel could read what waits for the
  // exit, or change what the program has read and goes on with.
  bool Call(Session& s, PyObject* op, const std::vector<PyObject*>& tensors);
  // Could a kernel that was called have changed this item or attribute of it, or (null) anything of it?
  bool Changed(PyObject* owner, PyObject* key) const {
    asked_ = true;
    return all_changed_ || (!changed_.empty() && MayChange(owner, key));
  }
  bool ChangedClass(PyTypeObject* type, PyObject* name) const;  // the same of an attribute that is looked up there
  bool ChangedMemory(PyObject* tensor) const;                   // the same of what lies in a tensor
  // Guards that what kernels reach then is not what the graph writes, or reads behind them. At the end of the capture:
  // this container is written, or read, at this key or as a whole; then the rest.
  void Separate(Session& s, PyObject* owner, PyObject* key, const guard::Source* source, bool written);
  void AddGuards(Session& s);
  // These tensors were given to an operator, or are its results. Its kernel may have kept them: then what the program
  // writes to them is to be seen there, and the graph ends before that.
  void Lend(Session& s, const std::vector<PyObject*>& tensors) const;
  // Could the kernel of an operator that was called keep what it is given?
  bool Keeps(PyObject* op) const { return keeping_.contains(op); }
  // Could a kernel that was called have drawn random numbers that are not torch's?
  bool draws() const { return draws_; }
  bool changes() const { return !changed_.empty(); }

 private:
  bool Add(Session& s, PyObject* op, const std::vector<PyObject*>& given);
  bool ReadsWhatWaits(Session& s, const std::vector<PyObject*>& tensors) const;
  bool MayKeep() const { return keeps_ && (all_changed_ || !changed_.empty()); }
  bool MayChange(PyObject* owner, PyObject* key) const;

  struct Place {
    PyObject *owner, *name;  // Where the name is null, it is all of it.
  };
  std::vector<Place> places_;
  struct Memory {
    uintptr_t begin, end;
  };
  static Memory MemoryOf(PyObject* tensor);
  static bool Meet(const std::vector<Memory>& all, Memory m);
  std::vector<Memory> read_memory_, changed_memory_;
  std::unordered_map<PyObject*, std::vector<PyObject*>> changed_;  // names (texts); empty: everything
  std::unordered_set<PyObject*> names_;                            // of attributes that are read
  bool all_names_ = false, everything_ = false, all_changed_ = false, draws_ = false;
  bool keeps_ = false;                       // Could one store what it is given or gives?
  std::unordered_set<PyObject*> keeping_;    // The operators whose kernels could do so.
  std::set<std::vector<PyObject*>> called_;  // operators, each with the tensors from outside that have attributes
  std::vector<Ref> kept_, watches_;
  bool behind_ = false, writes_ = false;  // Did a write wait when a kernel was called? Does one write to tensors?
  bool begun_ = false;                    // Was any called?
  mutable bool asked_ = false;            // Was anything read since then?
};

// framejit._kernels.composite_of: a new reference, null with an error.
PyObject* CompositeOf(PyObject* op);

}  // namespace framejit::capture
