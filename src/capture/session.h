// One capture in progress. The session runs the user's function for real in framejit's interpreter, on private Python
// objects and with proxies in place of tensors, and writes down three things: the framework calls (Trace and Graph, by
// surface::Lowering), what was read from outside (guards), and what must be stored outside (pending stores).
//
// Invariants. (1) Nothing outside changes: a write to an outside object is either kept in the overlay or a Break. (2)
// Every object that code can reach is a primitive, *fresh* (made during this capture), or *outside* with a source from
// which a guard was derived for whatever was read. (3) After a Break no handler runs: the whole capture unwinds.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/cached_inputs.h"
#include "capture/kernel_reads.h"
#include "capture/modes.h"
#include "capture/numbers/data_sizes.h"
#include "capture/numbers/draws.h"
#include "capture/numbers/guess.h"
#include "capture/numbers/numbers.h"
#include "capture/origins.h"
#include "capture/pending.h"
#include "capture/ref.h"
#include "capture/types.h"
#include "capture/vmap/vmap.h"
#include "diag/diag.h"
#include "frame/semantics.h"
#include "framejit/call.h"
#include "graph/effects.h"
#include "guard/guard.h"
#include "surface/surface.h"
#include "tensor/autograd.h"
#include "tensor/tensor.h"

namespace framejit::capture {

using diag::BreakId;
using guard::Source;
using guard::SourceKind;

bool IsPrimitive(PyObject* o);  // compared and guarded by value: int, float, bool, str, bytes, None, ... (exact types)
bool IsTupleOfPrimitives(PyObject* o);
bool OfSteadyModule(PyObject* globals);
bool IsSteady(PyTypeObject* t);
// May an equal one in another call be another object, as far as programs look? Interned texts are one object, as are
// short ones of one character and small ints.
bool IsOneOfEquals(PyObject* primitive);

struct CaptureOptions {
  int dynamic = -1;                                    // 1: every size a symbol; 0: none, marked ones neither
  std::set<std::pair<std::string, int>> dynamic_dims;  // (source text of the tensor, dim) learned from misses
  std::set<std::string> dynamic_ints;                  // The source text of Python's ints and floats, likewise.
  bool given_ints =
      false;  // ints that the call is given are symbols, too: sizes have changed, and these are often some
  bool dynamic_floats = true;
  long stop_after = -1;              // outermost instructions to run; -1: as far as possible
  int broke_at = -1;                 // where an attempt before this one ended: loops around that may be code
  bool settles = true;               // a list that grows may be read behind that, which guards its length
  bool compiling = true;             // what torch.compiler.is_compiling() answers
  std::shared_ptr<Guesses> guesses;  // Null: nothing is guessed.
  bool whole = false;                // Is it fullgraph=True?
  bool derivatives = true;           // torch.func.grad, torch.autograd.grad are modelled
  bool uses_leaves = true;           // else the graph ends where something is computed of a leaf made inside
  bool checkpoints = true;           // torch.utils.checkpoint is modelled
  const std::vector<Ref>* as_they_are = nullptr;  // backward functions that cannot be captured
  bool RunsAsItIs(PyObject* backward) const {
    return as_they_are &&
           std::any_of(as_they_are->begin(), as_they_are->end(), [&](const Ref& f) { return f.get() == backward; });
  }
};

// A decimal.Decimal: what is computed of it depends on the thread's decimal.getcontext(), and shows there.
bool UsesContext(PyObject* o);
// Has the type a function in Python under this name? It is borrowed; null: it has none.
PyObject* PythonFunctionIn(PyTypeObject* type, PyObject* name);
// Does a dict of this type say by methods of its own what it holds, wherever C code asks for it as any object?
bool AnswersItself(PyTypeObject* type);
PyObject* DictOfView(PyObject* o);  // the dict of which `o` is a view of keys, values or items, or null; borrowed

// Whose tensors a capture has met.
enum class Library : uint8_t { kNone, kTorch, kNumpy, kCupy };
struct Libraries {
  Library last = Library::kNone;
  bool torch = false, numpy = false;
  bool Use(Session& s, Library l);  // false (Break): CuPy is beside no other one
};

struct Checkpointed;  // checkpoint.h

class Session {
 public:
  Session(FjFrame* root, CaptureOptions options);
  ~Session();
  Session(const Session&) = delete;
  static Session* Current();  // The capture of this thread, or null.

  // --- failing -------------------------------------------------------------------------------------------------------
  // Ends the capture: remembers the first reason and where, sets the unwinding exception. Returns null.
  std::nullptr_t Break(BreakId id, const std::string& detail = {});
  bool broken() const { return broken_; }
  void MarkBroken() { broken_ = true; }
  void Abandon();                        // Drops every private object of a broken capture.
  bool HoldsSuspendedGenerator() const;  // Is there one whose end would run the program's code?
  const diag::Break& reason() const { return reason_; }

  // --- objects -------------------------------------------------------------------------------------------------------
  // What `o`, found outside at `s`, is for the captured code: guards for it are taken. New reference (a proxy for a
  // tensor).
  // used: the caller goes on with the result alone, so that an int may come as a symbol.
  PyObject* FromOutside(PyObject* o, const Source* s, bool used = false);
  // Where this number or text, or this tuple of them, was found; null: it was made here, or any equal one will do.
  const Source* WhereFound(PyObject* o) const {
    auto at = found_.find(o);
    return at == found_.end() ? nullptr : at->second;
  }
  // Which object it is bears on something: in all places where it was found, and is found from now on, guards ask for
  // the same one.
  void PinFound(PyObject* o);
  // An object that came out of C code: known, primitive, constant or fresh. Steals, returns a new reference.
  PyObject* Adopt(PyObject* o);
  // One that C code found in an object that was not made here: if somebody else holds it, too, it was not made here.
  PyObject* AdoptHeld(PyObject* o);
  // Slots of the outermost frame are lazy: nothing is guarded before it is used. Borrowed result, null on Break.
  PyObject* Resolve(PyObject* o);
  bool ResolveAll(PyObject** items, Py_ssize_t n);
  PyObject* MarkFresh(PyObject* o);  // It steals `o` and returns it; null is passed on.
  Origin* Find(PyObject* o);
  bool IsOutside(PyObject* o) {
    Origin* g = Find(o);
    return g && g->kind == Origin::kOutside;
  }
  bool IsFresh(PyObject* o) {
    Origin* g = Find(o);
    return g && g->kind == Origin::kFresh;
  }
  // Made during this capture. Unseen tuples, dicts and cells are: CPython's call machinery makes *args and **kwargs.
  // Any other unseen object may have come through C from outside.
  bool IsPrivate(PyObject* o) {
    if (!Find(o) && (PyTuple_CheckExact(o) || PyDict_CheckExact(o) || PyCell_Check(o) || PyGen_CheckExact(o)))
      MarkFresh(o);
    return IsFresh(o);
  }
  // Source of an outside or constant object; constants get one on demand. Null: fresh or primitive.
  const Source* SourceOf(PyObject* o);
  // Guards on everything directly inside an outside container; `deep`: recursively. False on Break.
  bool NoteContents(PyObject* o, bool deep = false);
  void NoteFound(PyObject* o, const Source* s);
  // Called for a key, by its number, of a dict or set whose keys are guarded.
  bool NoteKey(PyObject* key, const Source* container, int number);
  bool NoteLength(PyObject* o);
  // An outside container is read, at `key` or as a whole. False (Break): it has pending calls, or see Unchanged.
  bool Reads(PyObject* container, PyObject* key = nullptr, const Source* source = nullptr);
  // False (Break): an operator in Python may have changed it by now.
  bool Unchanged(PyObject* owner, PyObject* key = nullptr);
  bool UnchangedClass(PyTypeObject* type, PyObject* name);
  void NoteLate(PyTypeObject* t);
  bool NoteType(PyTypeObject* t);  // Called when attributes of the type were looked up.
  // One attribute of a class of the framework, which programs add to: what a lookup finds (borrowed, may be null),
  // guarded by itself.
  PyObject* NoteLookup(PyTypeObject* t, PyObject* name);
  // C code may ask whether this is the same object as another one (by ==, as a key, in a list): objects from outside,
  // in tuples, lists and dicts, too, are guarded by identity. False on Break.
  bool Pin(PyObject* o);
  // What to hand to C code in place of `o`: itself, or of a container that holds tensors a private copy with proxies.
  // Guards are taken for all that C code can read of it; null (Break): it can read what no guard covers. Borrowed.
  // asked_nothing: the code calls no method of it that a subclass may have, but moves it, or is its base's.
  PyObject* ForC(PyObject* o, bool asked_nothing = false);
  // What the program goes through, item by item, in place of a list or tuple from outside; by_c: C code does, which may
  // read what is in them. Borrowed, null: Break.
  PyObject* ItemsOf(PyObject* o, bool by_c = false);

  // --- tensors -------------------------------------------------------------------------------------------------------
  PyObject* NewProxy(TraceId id);
  void Rebind(PyObject* proxy, TraceId now);  // From now on the object is that tensor.
  const TensorMeta& meta(TraceId id) const { return lowering_->meta(id); }
  // Calls the framework function `callee` symbolically. New reference to its result. kwnames as in vectorcall.
  // declined: instead of a Break, null and true there, if the framework must make this call itself.
  PyObject* CallFramework(Callee callee, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                          bool* declined = nullptr);
  bool ToArg(PyObject* o, Arg* out);  // It is false after a Break.
  PyObject* FromArg(const Arg& a);
  PyObject* SymIntObject(shape::Int e);  // An int if it is constant, else a SymInt.
  PyObject* SymFloatObject(FloatOp op);  // a new one of these; null without an error: only as a number

  // --- overlay of outside dicts ------------------------------------------------------------------------------------
  Ref AsKey(PyObject* key);  // what a guard can look up: of a stand-in for a number that number, guarded
  // Item of an outside dict as the program sees it: pending store, else the real item (guarded). *found tells.
  PyObject* ReadDictItem(PyObject* dict, const Source* s, PyObject* asked, bool* found);
  // Is a lookup of `key` guarded by what the dict has there alone? Keys are numbers, strings, or types and the like.
  bool GuardsKey(PyObject* dict, PyObject* key);
  // C code was given these and made `made` of them, which may go on to read them (a view, an iterator).
  void NoteViewed(PyObject* const* given, Py_ssize_t n, PyObject* made);
  // Reads an item of an outside dict that is a dict itself and stays in our hands: where it is (guarded: of its exact
  // type; empty, if that is asked). Null without an error: it is absent (guarded), *found is false; or it must be read
  // as any other item, *found is true. Only while no store to `dict` is pending.
  const Source* InnerDict(PyObject* dict, const Source* s, PyObject* key, bool empty, PyObject** inner, bool* found);
  // Reads that an outside dict has none of the names `absent`, and an exact dict, empty, at each of the names `empty`.
  // entries: (absent, empty), one tuple for all who ask the same. It is false if that is not so, or something waits
  // for the exit: then nothing was read.
  bool ReadEntries(PyObject* dict, const Source* s, PyObject* entries);
  int WriteDictItem(PyObject* dict, PyObject* key, PyObject* value);  // It waits for the exit. Null deletes.
  // A method that changes an outside list, set or deque, needs nothing from it and cannot fail. True: it is kept for
  // the exit.
  bool Defer(PyTypeObject* owner, const char* name, PyObject* const* args, Py_ssize_t n);
  // Is this a frame of `__hash__` or `__eq__`, or behind one? How often those run is not only the program's business:
  // what captures it asks them, too.
  bool InLookup() const;
  bool WriteCell(PyObject* cell, PyObject* value);  // outside; value null: delete. False: Break
  // An outside list or deque that is changed in place, and a deque that is read, is a private one from then on, with
  // what is known to be in it; the exit puts what has changed into the real one. Borrowed; null: Break.
  PyObject* WriteList(PyObject* list);
  // A deque, or a list with calls that wait for the exit, is about to be read: the private one, if that may be; else
  // itself.
  PyObject* Settled(PyObject* list);
  PyObject* EmptyLike(PyObject* list, const Source* source);  // A private one: of the same kind and bound.
  static constexpr Py_ssize_t kFewItems = 8;
  // list[-k] of what is yet to be appended; borrowed, null: something else.
  PyObject* Appended(PyObject* list, PyObject* index);
  PyObject* recorded = nullptr;  // the list to which warnings go: nobody may read it behind one that waits
  // What is written must not be, under another name, what was read: guards for that. At the end of the capture.
  void SeparateWrites();

  // --- its parts -----------------------------------------------------------------------------------------------------
  // Each part keeps one kind of knowledge, in a file of its own.
  const CaptureOptions& options() const { return options_; }
  guard::GuardBuilder& guards() { return *guards_; }
  std::unique_ptr<guard::GuardBuilder> TakeGuards() { return std::move(guards_); }
  shape::Env& env() { return env_; }
  Trace& trace() { return trace_; }
  Graph& graph() { return graph_; }
  surface::Lowering& lowering() const { return *lowering_; }
  Numbers& numbers() { return *numbers_; }  // Those that are symbols.
  Guessing& guessing() { return guessing_; }
  DataSizes& data_sizes() { return data_sizes_; }
  PendingEffects& pending() { return pending_; }  // What waits for the exit.
  Modes modes;                                    // The state of the thread, for the program.
  Vmap vmap;                                      // The open levels of torch.vmap and of derivatives.
  KernelReads kernels;                            // What operators in Python may read and change.
  Libraries libraries;                            // The libraries whose tensors were met.
  DrawProgram draws;                              // The draws of random numbers that are not torch's.
  CachedInputs cached;                            // What is asked of caches before each run.

  // --- frames --------------------------------------------------------------------------------------------------------
  // The outermost frame is the one whose code is captured; calls that are captured have frames of their own.
  FjFrame* root() const { return root_; }
  PyFrameObject* root_frame = nullptr;  // The object of the frame that Python sees.
  // The outermost frame's own cells, replaced by private ones: private cell -> slot, and what it held at the start.
  struct RootCell {
    int slot;
    PyObject* before;
    PyObject* real;  // The cell itself, which functions of the frame hold.
  };
  std::unordered_map<PyObject*, RootCell> root_cells;
  guard::Line Where() const;  // The line of the program that is being captured.
  int depth = 0;              // The depth of captured calls.
  // Calls of modules that are done without the frames of Module.__call__: those frames, and who made the call.
  struct HiddenCall {
    PyFrameObject* caller;
    PyFunctionObject *inner, *outer;
    int inner_at, outer_at;
  };
  std::vector<HiddenCall> hidden_calls;

  // --- what is kept --------------------------------------------------------------------------------------------------
  // These objects live as long as the session.
  std::vector<PyObject*>& constants() { return constants_; }
  const std::vector<const Source*>& input_sources() const { return input_sources_; }
  const std::vector<PyObject*>& input_tensors() const { return input_tensors_; }  // The real tensors.
  // An input that is looked for nowhere: `o` is what it is now. A new reference.
  PyObject* AskedInput(PyObject* o, const Source* s, const TensorMeta& meta, const std::string& name);
  void Keep(PyObject* o) { keep_.emplace_back(o); }  // It steals the reference.
  int64_t op_count = 0;

  // --- questions -----------------------------------------------------------------------------------------------------
  // What a function of a framework answers while a program is captured. It is nothing for functions that are captured
  // as calls.
  std::optional<Arg> ConstantAnswer(Callee callee);
  bool asked_compiling() const { return asked_compiling_; }
  // numpy.float64, int64 and bool: beside torch's tensors numbers like any other, not arrays of the graph.
  bool IsNumpyNumber(PyObject* o) const;
  // An abstract class said no: it may say yes once a class was registered. The number of registrations then, or -1.
  bool NoteAbstract();
  int64_t registrations = -1;
  static int64_t Registrations();  // The number of registrations in this process by now.

  // --- functions with gradients of their own -------------------------------------------------------------------------
  // These are torch.autograd.Function and what torch builds on it.
  int in_custom = 0;        // The number of those that are being captured.
  TraceId made_within = 0;  // The first tensor that the innermost of them can have made; 0 outside of all.
  // A backward pass of the user's is captured, which runs later: of what is outside it may read what never changes,
  // and what is looked at again when it runs: numbers, texts, functions and classes among the globals of modules and
  // among the variables of functions (late: each with what it is now, and names that are not there, so that a builtin
  // is meant), and what classes are asked for (late_classes). Where it is another by then, the framework runs the
  // program again, with what it was, and the user's own backward, with what it is.
  bool later = false;
  std::set<PyTypeObject*> late_classes;
  PyObject* not_captured = nullptr;  // The user's backward function that the capture stands in; borrowed.
  std::map<const Source*, PyObject*> late;
  std::map<std::pair<PyTypeObject*, PyObject*>, PyObject*> late_numbers;  // of classes, by name
  std::vector<std::shared_ptr<Checkpointed>> checkpoints;                 // in the order in which they end
  std::shared_ptr<tensor::Training::Checkpoints> read_by_checkpoints;
  bool ReadLater(PyObject* o, const Source* s);  // It is false after a Break: that may be another by then.
  PyObject* data_parallel = nullptr;             // The DistributedDataParallel that this capture entered last.
  bool leaf_refused = false;     // Does it end where the graph would have to hold what a leaf made inside becomes?
  bool shapes_refused = false;   // Does it end in a call that raises for the shapes of its tensors?
  bool mixes_casts = false;      // Does it end in casts of two regions of autocast, which eager refuses?
  bool symbols_refused = false;  // a call that torch makes does not take them for sizes; numbers may do
  bool guessed_symbols = false;  // for CaptureOptions::given_ints alone

 private:
  // ForC in its parts.
  PyObject* LeafForC(PyObject* o, bool asked_nothing);
  void NoteAbsent(const Source* s);
  bool IteratedByC(PyObject* iterator);
  PyObject* PrivateForC(PyObject* o, bool asked_nothing);
  PyObject* PendingForC(PyObject* o, bool asked_nothing);
  bool CopyForC(PyObject* o, PyObject* copy, bool asked_nothing, bool* differs, bool* hides);
  PyObject* SymbolOf(PyObject* number,
                     const Source* s);  // of an int that is known to change; null without error: it is not
  struct Descent;
  struct Instruction {
    PyObject* code;
    int at;
    friend bool operator==(const Instruction&, const Instruction&) = default;
    struct Hash {
      size_t operator()(const Instruction& p) const { return reinterpret_cast<size_t>(p.code) / 16 * 31 + p.at; }
    };
  };
  mutable std::unordered_map<Instruction, guard::Line, Instruction::Hash> lines_;  // What Where() has answered.
  mutable std::vector<Ref> lines_kept_;
  PyObject* TensorInput(PyObject* o, const Source* s, tensor::Class c);
  PyObject* ObjectsInput(PyObject* array, const Source* s);  // object_arrays.h
  PyObject* AdoptObjects(PyObject* array);                   // of Adopt
  bool NoteQuiet(PyObject* o, const Source* s);

  FjFrame* root_;
  CaptureOptions options_;
  bool asked_compiling_ = false;
  Session* outer_;
  int descent_ = 0;
  bool broken_ = false;
  diag::Break reason_;
  std::unique_ptr<guard::GuardBuilder> guards_;
  shape::Env env_;
  Trace trace_;
  Graph graph_;
  std::unique_ptr<Numbers> numbers_;
  std::unique_ptr<surface::Lowering> lowering_;
  Guessing guessing_{*this};
  DataSizes data_sizes_{*this};
  Origins origins_;
  std::unordered_map<TraceId, PyObject*> proxies_;
  std::vector<Ref> keep_;
  std::unordered_map<PyObject*, const Source*> found_;  // WhereFound; kept
  std::unordered_map<PyObject*, std::vector<const Source*>> found_again_;
  std::unordered_set<PyObject*> pinned_;  // PinFound
  std::vector<PyObject*> generators_;     // The generators that were made here.
  PendingEffects pending_;
  struct Read {
    PyObject *container, *key;
    const Source* source;
    bool typed = false;        // Is its type guarded?
    PyObject* item = nullptr;  // the source is that of a dict which has the container here
  };  // Where the key is null, it was read as a whole.
  const Source* SourceOf(const Read& r);
  std::pmr::monotonic_buffer_resource reads_memory_{1 << 15};
  std::pmr::deque<Read> reads_{&reads_memory_};
  std::vector<PyObject*> constants_;
  std::vector<const Source*> input_sources_;
  guard::Texts texts_;  // The texts of sources, made once.
  std::vector<PyObject*> input_tensors_;
  std::unordered_set<PyTypeObject*> types_noted_;
  PyTypeObject* type_noted_ = nullptr;  // The last type that was noted.
  std::set<std::pair<PyTypeObject*, PyObject*>> lookups_noted_;
};

PyObject* CaptureBreakType();  // The exception that unwinds a capture, a BaseException.

}  // namespace framejit::capture
