// The translation of one loop (translate.h) at work.
#pragma once

#include <absl/functional/function_ref.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <set>
#include <stdexcept>

#include "capture/proxy.h"
#include "capture/scalar/translate.h"

namespace framejit::capture::scalar {

using bytecode::Instr;
using bytecode::Op;

inline constexpr int kMostBlocks = 260, kMostOfRounds = 420;  // the latter where rounds are code each
inline constexpr int kMostWeight = 6;                         // of what is computed again wherever it is used

bool IsJump(Op op);
// Locals that are read before they are written from `start` on; whatever may raise may go to its handler.
std::vector<bool> LiveAt(const bytecode::Code& code, int start, int num_locals);
Val Numbers(Is is, int n);  // Has n ints in it.
Val Unknown();
bool OneObject(const Val& a, const Val& b);  // Is the one a copy of the other, in one block?
inline bool Float(DType t) {
  return t == DType::kFloat32 || t == DType::kFloat64;
}
Val Slice(const Val& start, const Val& stop, const Val& step);
int IndexWithin(Builder& b, const Val& index, int size);  // A number in [0, size), or the code is left.

// For each number in it.
template <typename F>
void Leaves(Val& v, F f) {
  if (v.scalar()) return f(v);
  for (Val& item : v.items) Leaves(item, f);
}

struct Frame {
  PyCodeObject* co = nullptr;
  const bytecode::Code* code = nullptr;
  PyObject *globals = nullptr, *builtins = nullptr;
  int pc = 0;
  std::vector<Val> locals, stack;
  int nlocals() const { return static_cast<int>(locals.size()); }
};

struct State {
  std::vector<Frame> frames;  // outermost first; the others are of functions that became part of the code
  bool effects = false;       // of the innermost frames, since their call
  Frame& top() { return frames.back(); }
  std::string key() const {
    std::string s(1, effects ? 'E' : 'e');
    for (const Frame& f : frames) {
      s += '|' + std::to_string(reinterpret_cast<uintptr_t>(f.co)) + ':' + std::to_string(f.pc) + ':';
      for (const Val& v : f.locals) s += v.key();
      s += '/';
      for (const Val& v : f.stack) s += v.key();
    }
    return s;
  }
};

// An array in memory, with values of this block: of an object, or else what code made at the address `base`. Axes that
// None made are `ones`.
struct Part {
  int object = -1, base = -1;
  DType dtype{};
  uint8_t born = 0;
  int offset = -1;  // bytes behind the object's data; -1: none
  std::vector<int> sizes, strides;
  uint32_t ones = 0;
  bool unit = false;
  bool sure = false;  // all that was indexed are constants within constant sizes
  double share = 0;   // Of the object's elements, if that is known: as large as the object is while this is translated.
  int rank() const { return static_cast<int>(sizes.size()); }
};

// An array of one axis at an address.
struct Vector {
  int address, stride;
};
// Likewise of two: bytes from row to row, and from column to column.
struct Matrix {
  int address, row, column;
};

// An array that is computed where it is wanted, element by element; until then nothing is written that it reads.
struct Node {
  enum Kind { kPart, kNumber, kBinary, kUnary, kCompare, kGather, kMagnitude } kind;
  DType dtype{};
  std::vector<int> sizes{};
  uint32_t ones = 0;
  Part part{};           // also what kGather takes from
  Element value{};       // Of kNumber: its value, as `dtype`.
  ScalarOp op{};         // Its operands become `dtype` first, those of kCompare `with`.
  int a = -1, b = -1;    // The nodes of its operands.
  bool updated = false;  // Of kPart: what the node that reads it is stored to, element by element.
  DType with{};
  // The elements under a mask alone (Translator::ObjectOf), in a row. `sizes` are those of the mask, and each is
  // computed where it lies until somebody asks for the row.
  int mask = -1;
  int view = -1;  // Of kPart under a mask: ObjectOf the array that they are taken from.
};

// May an array of `from` be stored as elements of `to` without a look at its values?
bool Stores(DType from, DType to);

// What one nest of loops computes beside other nodes of the same sizes: a node's elements as `type`, in the part `to`
// or else in a buffer, whose address is `memory`.
struct Filled {
  int node;
  DType type;
  const Part* to = nullptr;
  bool buffered = false;  // What is for `to` goes to a buffer first.
  int memory = -1;
  int mask = -1;  // Elements elsewhere than under this mask (Node::mask) stay, and nothing is told of them.
};

struct TooMuch {};
// What is known of empty lists once the program has put something into them.
using ItemKinds = std::map<PyObject*, Val>;
// As what a local is taken where a loop begins: its first instruction, and the local's index.
using MergedKinds = std::map<std::pair<int, int>, Val>;
// Locals that get numbers as another name with which the function was called. Is Val::origin of each of these known?
using GivenNames = std::map<int, bool>;
// As what it came there; `either`: always as a float of Python or NumPy. `mixes`: a round of an innermost loop may make
// one of either kind, so which one it is would have to be computed in each round.
struct KindsSeen {
  std::vector<Val> kinds;
  bool unbound = false, other = false, either = true, mixes = false;
};
struct NotBrief {};   // A round of a brief loop computes very many elements.
struct NotUndone {};  // What the code does is not put back by copies of arrays.
struct NotInline {    // what was called must be left to Python as a whole
  int pc;
};

class Translator final : public Builder {
 public:
  Translator(FjFrame* frame, const Loop& loop, int from, const Hopes& hopes, const std::set<int>& not_inline,
             const ItemKinds& kinds, const MergedKinds& merged, const GivenNames& given)
      : frame_(frame),
        loop_(loop),
        from_(from),
        hopes_(hopes),
        not_inline_(not_inline),
        kinds_(kinds),
        merged_(merged),
        named_given_(given) {
    code.apart = hopes.apart;
  }

  Translation Run();
  // Of lists of which nothing was known when they were read, and is now.
  ItemKinds Learned(const Translation& made) const;
  MergedKinds Mixed() const;
  // Locals that numbers have as another name with which the function was called (Hopes::whole).
  const GivenNames& named_given() const { return named_given_; }

 private:
  // --- the entry
  // -------------------------------------------------------------------------------------------------------
  State Entry();

  void Scan(const bytecode::Code& c);

  // A value of the frame: its numbers come in cells.
  Val Receive(Val v, std::vector<Slot>& slots, int slot, int position);
  void UnitSteps(Val& v);

  int Variable(ScalarType t) {
    code.variables.push_back(t);
    return static_cast<int>(code.variables.size()) - 1;
  }
  int CellOf(int position, int leaf) {
    auto [it, made] = cells_.try_emplace({position, leaf}, out_.cells);
    out_.cells += made;
    return it->second;
  }

  // --- objects
  const ObjectSpec& Use(int k) {
    out_.objects[k].used = true;
    return out_.objects[k];
  }
  const ObjectSpec& UseArray(int k) {
    ObjectSpec& o = out_.objects[k];
    o.used = true;
    if (o.cells < 0) {
      o.cells = out_.cells;
      out_.cells += 2 * o.rank + 2;
    }
    return o;
  }
  int Data(int k) { return Input(UseArray(k).cells, ScalarType::kPtr); }
  int Size(int k, int axis) {
    const ObjectSpec& o = UseArray(k);
    if (o.list) return LoadField(Data(k), offsetof(PyVarObject, ob_size), ScalarType::kInt);
    if (const std::optional<int64_t> known = SmallSize(k, axis)) {
      const int size = Int(*known);
      small_sizes_[size] = *known;
      return size;
    }
    return Input(o.cells + 1 + axis, ScalarType::kInt, /*natural=*/true);
  }
  std::optional<int64_t> SmallSize(int object, int axis);  // Hopes::sizes
  Val SizeOf(int size) const {
    Val v = New(Is::kInt, size);
    if (const auto it = small_sizes_.find(size); it != small_sizes_.end()) v.constant = it->second;
    return v;
  }
  int Stride(int k, int axis) {
    const ObjectSpec& o = UseArray(k);
    if (o.unit && axis == o.rank - 1) return Int(DTypeSize(o.dtype));
    return Input(o.cells + 1 + o.rank + axis, ScalarType::kInt);
  }
  int Load(int address, int offset, DType t, int array, bool sure = false) {
    return Emit({.op = ScalarOp::kLoad,
                 .type = NewNumpy(t, -1).type(),
                 .a = address,
                 .b = offset,
                 .dtype = t,
                 .id = -2,
                 .sure = sure,
                 .parallel = parallel_,
                 .array = array});
  }
  void StoreAt(int address, int offset, int value, DType t, int array) {
    Emit({.op = ScalarOp::kStore,
          .a = address,
          .b = offset,
          .c = value,
          .dtype = t,
          .parallel = parallel_,
          .array = array});
  }
  Val Fixed(PyObject* o);
  Val Constant(PyObject* o);  // numbers and tuples of them; else nothing

  // --- exits
  // Where nothing has been written yet, all that was done since the region began is done again by Python.
  int Exit() override { return hopes_.transaction ? UndoExit() : RegionExit(); }
  int RegionExit() {
    if (exit_ < 0) exit_ = MakeExit(region_, region_stored_, "");
    return exit_;
  }
  void NewRegion(const State& s) {
    Settle();
    region_ = s;
    region_stored_ = stored_;
    exit_ = -1;
    buffers_ = 0;
    fresh_.clear();
    computed_.clear();
    filled_.clear();
    same_sizes_.clear();
  }

  int MakeExit(const State& s, const std::vector<bool>& stored, const std::string& why, bool usual = false);

  void Leave(const State& s, const std::string& why, bool usual) {
    if (out_.why.empty() && !usual) out_.why = why;
    Settle();
    Emit({.op = ScalarOp::kExit, .exit = MakeExit(s, stored_, why, usual)});
  }

  // An array that was not computed, or a list that is not there yet, is nothing that Python could go on with: it begins
  // where the region did.
  static bool Waiting(const Val& v) {
    return v.is == Is::kDeferred || v.is == Is::kLiteral ||
           std::any_of(v.items.begin(), v.items.end(), [](const Val& x) { return Waiting(x); });
  }
  static bool Waiting(const State& s) {
    const auto waits = [](const Val& v) { return Waiting(v); };
    return std::any_of(s.frames.begin(), s.frames.end(), [&](const Frame& f) {
      return std::any_of(f.locals.begin(), f.locals.end(), waits) || std::any_of(f.stack.begin(), f.stack.end(), waits);
    });
  }
  void LeaveBefore(State s, const std::string& why);

  // --- flow
  int Home(int depth, int position, int leaf, ScalarType t) {
    auto [it, made] = homes_.try_emplace({depth, position, leaf, t}, 0);
    if (made) it->second = Variable(t);
    return it->second;
  }

  // Ends the block: everything into its variable, and on to the state's own block; `round`: by way of where the loop
  // goes round.
  void GoTo(State s, bool round = false);
  bool OthersCome(const State& s);
  static void NumberViews(State& s);

  // A block of its own that goes on with this state: where a branch leads to.
  int Way(const State& s) {
    return Way([&] { GoTo(s); });
  }
  template <typename F>
    requires std::is_invocable_v<F>
  int Way(F f) {
    Settle();
    const int made = static_cast<int>(code.blocks.size()), here = block, exit = exit_;
    const size_t fresh = fresh_.size(), computed = computed_.size(), elements = elements_.size();
    const size_t filled = filled_.size();
    const std::map<int, int> same = same_sizes_;
    code.blocks.emplace_back();
    block = made;
    f();
    block = here;
    exit_ = exit;  // what was made there is not known here
    fresh_.resize(fresh);
    computed_.resize(computed);
    elements_.resize(elements);
    filled_.resize(filled);
    same_sizes_ = same;
    return made;
  }
  void Branch(int condition, const State& yes, const State& no) {
    const int a = Way(yes), b = Way(no);
    Emit({.op = ScalarOp::kBranch, .a = condition, .other = b, .imm = a});
  }

  // Nothing is gained by rounds in which all loops inside have none.
  static bool Innermost(const bytecode::Code& code, int start) { return HasNoLoops(LoopsOf(code), start); }

  // Does the code come back to where it was? `seen`: 1 on the way, 2 done.
  bool Cycle(int at, std::map<int, int>& seen) {
    int& mark = seen[at];
    if (mark) return mark == 1;
    mark = 1;
    for (int to : leads_to_[at])
      if (Cycle(to, seen)) return true;
    mark = 2;
    return false;
  }

  void CountAnew();
  void ForgetKinds(Frame& f, const std::vector<bool>& live);
  void MergeKinds(Frame& f, bool round);
  bool Distinguish(const State& s);
  bool Brief(const State& s) const;

  // Is something jumped to here?
  bool Target(const Frame& f, int pc) {
    auto [it, made] = targets_.try_emplace(f.co);
    if (made)
      for (int at = 0; at < f.code->size(); ++at)
        if (f.code->At(at).length && IsJump(f.code->At(at).op)) it->second.insert(f.code->At(at).target);
    return it->second.contains(pc);
  }

  void Block(State s);

  // Ways of an instruction that was begun and is left to Python: nothing leads there.
  void Abandon(int from);

  static std::string Line(const State& s) {
    const Frame& f = s.frames.back();
    return ", line " + std::to_string(PyCode_Addr2Line(f.co, 2 * f.code->At(f.pc).unit));
  }

  void Jump(State& s, const Instr& i, int target) {
    const bool back = target <= s.top().pc;
    if (back) innermost_ |= s.frames.size() > 1 || Innermost(*s.top().code, target);
    const Val* it = s.top().code->At(target).op == Op::kForIter ? &s.top().stack.back() : nullptr;
    const bool unrolled = it && it->is == Is::kTupleIter;
    if (back && unrolled) CountOne(rounds_);
    s.top().pc = target;
    GoTo(s, back && !unrolled);
    ended_ = true;
  }

  int Count(int of) { return Emit({.op = ScalarOp::kGet, .type = ScalarType::kInt, .imm = of, .id = -2}); }
  int CountOne(int of) {
    const int more = Op(ScalarOp::kAdd, ScalarType::kInt, Count(of), Int(1));
    Emit({.op = ScalarOp::kSet, .a = more, .imm = of});
    return more;
  }

  // Signals and other threads are looked for; if they wait, it goes on behind them where this region began. A run of
  // very many rounds ends here.
  void ServeOthers() {
    const int all = Op(ScalarOp::kAdd, ScalarType::kInt, Count(rounds_), Count(others_));
    ExitIf(Compare(ScalarOp::kGe, all, Int(codegen::kMostRounds / 2)));
    uint32_t bits;
    fj_breaker(PyThreadState_Get(), &bits);
    const int exit = MakeExit(region_, region_stored_, "");
    out_.exits[exit].breaker = true;
    Emit({.op = ScalarOp::kExitAtBreak,
          .a = Input(kBreakerCell, ScalarType::kPtr),
          .exit = exit,
          .number = static_cast<double>(bits)});
  }

  int ServeSometimes(const State& s, int left, int whole, absl::FunctionRef<int()> part);
  void ServeAfterMany(State& s);

  static bool OverNumbers(const State& s);

  // All jumps back to one state come by here: rounds are counted. Loops over numbers one by one look for others where
  // their limit is reached, all others whenever they have gone round so often.
  void Round(State s) {
    if (hopes_.transaction) return RoundOfTransaction(std::move(s));
    if (OverNumbers(s)) {
      CountOne(rounds_);
      return GoTo(std::move(s));
    }
    const int rest = Op(ScalarOp::kAnd, ScalarType::kInt, CountOne(others_), Int(kOthersServed - 1));
    const int now = Compare(ScalarOp::kEq, rest, Int(0));
    const int serve = Way([&] {
      ServeOthers();
      GoTo(s);
    });
    Emit({.op = ScalarOp::kBranch, .a = now, .other = Way(s), .imm = serve});
    extra_blocks_ += 2;
  }

  bool Outermost(const State& s) const {
    return s.frames.size() == 1 && s.frames[0].pc == loop_.start && !hopes_.whole && !hopes_.at_once;
  }
  void RoundOfTransaction(State s);
  void ExitIfLong(const State& s, int more);
  void KnowElements();
  bool Sees(int object);

  void ConditionalJump(State& s, const Instr& i, int condition, bool if_true);

  void Next(State& s, const Instr& i) { s.top().pc += i.length; }

  Val Pop(State& s) {
    Val v = std::move(s.top().stack.back());
    s.top().stack.pop_back();
    return v;
  }
  void Push(State& s, Val v) { s.top().stack.push_back(std::move(v)); }

  Val Local(State& s, int i) {
    const Val& v = s.top().locals[i];
    if (v.is == Is::kNull) throw Unsupported{"a name that is not bound"};
    if (v.is == Is::kFrame) throw Unsupported{"a local of an unknown kind"};
    Val copy = v;
    if (s.frames.size() == 1 && given_[i]) GiveLocal(copy, i);
    return copy;
  }
  static void Give(Val& v, bool given);
  void GiveLocal(Val& v, int i);
  static bool IsGiven(const Val& v);
  void WantKnownResult(const Frame& f, Val& v) const;
  void NoteOrigin(int i, const Val& v);

  void Store(State& s, int i, Val v);
  static void Hold(Val& v) {
    Leaves(v, [](Val& x) { x.held = true; });
  }
  // A value that is there twice: iterators and what is unknown may not.
  static Val Twice(Val v) {
    if (v.iterator() || v.is == Is::kFrame) throw Unsupported{"a copy"};
    Hold(v);
    return v;
  }
  // A copy goes where it is not known to be one any more. A not-a-number is left to Python then: it is equal to itself
  // alone as an object, so that which object it is shows in comparisons of containers.
  void Copied(Val& v) {
    Leaves(v, [&](Val& x) {
      const bool held = std::exchange(x.held, false);
      if (!held || !(x.is == Is::kFloat || (x.is == Is::kNumpy && Float(x.dtype)))) return;
      const int number = Value(x);
      ExitIf(Compare(ScalarOp::kNe, number, number));
    });
  }

  // None if it is that object, nothing if that is not known.
  std::optional<bool> IsNone(const Val& v) {
    if (v.is != Is::kObject) return v.is == Is::kFrame ? std::nullopt : std::optional(false);
    return Use(v.object).array || Use(v.object).sequence() ? false : Use(v.object).object.get() == Py_None;
  }

  void Decided(State& s, const Instr& i, bool jumps) {
    if (jumps) return Jump(s, i, i.target);
    Next(s, i);
  }

  void Step(State& s, const Instr& i);
  void StepFlow(State& s, const Instr& i);
  void StepValue(State& s, const Instr& i);
  void WriteDown(State& s, const Instr& i);
  void ForIter(State& s, const Instr& i);
  void NextNumber(State& s, const Instr& i, const State& done);
  void GetIter(State& s, const Instr& i);
  Val RangeIterator(const Val& v, bool alone);
  Val IteratorOf(const Val& v, bool alone);
  std::optional<Val> CallIterator(PyTypeObject* type, const std::vector<Val>& args);
  static bool Ended(const Val& it);
  int More(const Val& it);
  int Left(const Val& it);
  int Least(int a, int b);
  bool Counted(const Val& it) const;
  void NextOfChunk(State& s, const Instr& i, const State& done);
  Val Take(Val& it);
  Val ItemAt(const Val& of, int index);
  bool IsSequence(const Val& v) const;  // a list, or letters
  Val AsLetter(const Val& v);
  std::optional<Val> IsIn(const Val& v, const Val& all);
  int Length(const Val& v);
  int LoadField(int address, int64_t offset, ScalarType t);
  int IntAt(int object);
  Val NumberAt(int object, const Val& kind);
  Val ListItem(int list, int index);
  std::pair<ScalarType, std::vector<int>> ItemArguments(int object, const Val& v);
  void SetListItem(State& s, int object, const Val& index, const Val& value);
  std::optional<Val> ListMethod(State& s, const std::string& name, int object, const std::vector<Val>& args);
  Val BinaryOfEither(int op, const Val& x, const Val& y);
  void CompareEither(State& s, const Instr& i, const Val& x, const Val& y);
  int IsTrue(int py_op, const Val& x, const Val& y);
  Val GetItem(State& s, const Val& container, const Val& index);
  void SetItem(State& s, const Val& container, const Val& index, const Val& value);
  Val Attribute(const State& s, const Val& of, PyObject* name);
  Val Global(State& s, PyObject* name);
  void Call(State& s, const Instr& i);
  void CallNamed(State& s, const Instr& i);
  void CallMethod(State& s, const Instr& i, PyObject* method, const Val& self, const std::vector<Val>& args);
  int TruthOf(const Val& v);
  std::optional<Val> CallBuiltin(const State& s, const std::string& name, const std::vector<Val>& args);
  Val CallType(const State& s, PyObject* callee, std::vector<Val>& args, bool* known);
  void Inline(State& s, int object, std::vector<Val> args);
  void Extreme(State s, const std::vector<Val>& args, size_t at, Val best, int py_op);
  Val Range(const std::vector<Val>& args);
  using Builder::Call;

  // --- parts of arrays, and arithmetic on them: arrays.cc, stores.cc, products.cc
  bool IsArray(const Val& v) const;
  Part PartOf(const Val& v);
  Val View(const Part& p);
  std::pair<int, int> SliceBounds(const Val& slice, int size, int64_t step);
  void IndexAxis(const Part& p, int axis, const Val& index, bool within, Part& out);
  Part Index(const Part& p, const Val& index, bool within = false);
  Val ItemOf(const Part& p);
  std::vector<Val> RowsOf(const Part& p, int n);
  int BaseOf(const Part& p);
  static int Lies(const Part& p) { return p.base >= 0 ? kMadeArrays : p.object; }
  int Memory(DType t, const std::vector<int>& sizes);
  Part NewArray(DType t, const std::vector<int>& sizes, int frames);
  static int HeldAt(const State& s, int node);
  Val Compute(const State& s, int node);
  void WantComputable(int node) const;
  void ComputeTogether(const State& s, const std::vector<int>& nodes, Filled* also = nullptr, bool undo = false);
  std::vector<Val> Named(const State& s, const std::vector<Val>& values);
  Val Computed(const State& s, const Val& v) { return v.is == Is::kDeferred ? Compute(s, v.node) : v; }
  void ComputeAll(State& s, Val* also = nullptr, Filled* store = nullptr, bool undo = false);
  bool SameSizes(const std::vector<int>& a, const std::vector<int>& b) const;
  void WantSame(int size, int other);
  bool ReadsLarge(int node) const;
  bool Within(int node, int of) const;
  void Lose(const State& s, int node, const Val& left);
  int Weight(int node) const;
  bool Fresh(const Part& p) const;
  void Wrote(State& s, const Part& to);
  void TellOfWrite(const Part& to);
  bool MayBeAhead(int a, int b, DType t, bool apart) const;
  int EndOf(int object);
  void Wrote(State& s);
  static void Return(Val& v);
  Val ArrayAttribute(const Part& p, const std::string& name);
  Val Deferred(Node n);
  int NodeOf(const Val& v);
  int NodeOf(const Val& v, DType t);
  int ElementsOf(const Val& v);
  static int ObjectOf(const Val& v);
  DType TypeOf(const Val& v) const;
  bool IsMask(const Val& v) const { return IsArray(v) && TypeOf(v) == DType::kBool; }
  int UseMask(const Val& mask, const std::vector<int>& sizes);
  Val Under(State& s, const Val& of, const Val& index);
  void AssignUnder(State& s, const Val& of, const Val& index, const Val& value);
  Val Rows(const State& s, const Val& v);
  void RowsOrOne(const State& s, Val& x, Val& y);
  Val Chosen(const State& s, int node);
  void Scatter(State& s, const Val& of, const Val& index, const Val& value);
  int PlaceWithin(int index, int size);
  void WantApart(const Part& to);
  void StoreUnder(const Part& to, const std::vector<int>& at, Element v, DType t, int mask);
  Val DeferCompare(const State& s, int py_op, const Val& x, const Val& y);
  std::optional<Val> CompareMagnitude(const State& s, int py_op, const Val& x, const Val& y);
  bool Pends(const Val& v) const;
  std::optional<Val> CallUfunc(State& s, std::string_view name, const std::vector<Val>& given);
  void Broadcast(Node& n);
  Val DeferBinary(int op, const Val& x, const Val& y);
  Val DeferUnary(ScalarOp op, const Val& x);
  Val Gather(const Val& container, const Val& index);
  bool Reads(int node, const Part& to, bool elsewhere) const;
  bool Special(int node) const;
  bool SpecialAs(int node, DType t) const;
  bool Large(int object) const;
  int Cast(int v, DType from, DType to);
  Element Cast(Element v, DType from, DType to);
  Element ElementAt(int address, int offset, DType t, int array, bool sure = false);
  void StoreElement(int address, int offset, Element v, DType t, int array);
  Element NumberAs(const Val& v, DType t);
  DType TypeOfBoth(const Val& x, const Val& y);
  void Bad(int condition);
  Element Finite(Element v, DType t, bool shown);
  Element EvalAs(int node, const std::vector<int>& at, DType t, bool shown);
  int OffsetOf(const Part& p, const std::vector<int>& at, DType t);
  Element Eval(int node, const std::vector<int>& at, bool shown);
  Element Evaluate(int node, const std::vector<int>& at);
  void ForEach(int count, bool innermost, absl::FunctionRef<void(int)> body);
  void ForAll(const std::vector<int>& sizes, absl::FunctionRef<void(const std::vector<int>&, int)> body);
  int Count(const std::vector<int>& sizes);
  int Buffer(int count, DType t);
  int Fill(int node, const std::vector<int>& sizes, DType t, const Part* to, bool undo = false);
  void FillAll(std::vector<Filled>& targets, const std::vector<int>& sizes, bool undo);
  double ShareOf(const Part& p, const std::vector<Val>& indices) const;
  int UndoExit();
  int AddressOf(const Part& p);
  void WantNotSpoiled(const Part& to, const Node& from);
  int StoredNode(const Val& value, DType t);
  void Assign(State& s, const Part& to, const Val& value);
  void WantStorable(const Part& to, int node) const;
  void AssignNode(State& s, const Part& to, int node, int mask = -1);
  void ArrayBinary(State& s, const Instr& i, const Val& left, const Val& y);
  Vector VectorOf(int node, DType t);
  Matrix MatrixOf(int node, DType t);
  Val Packed(int memory, DType t, const std::vector<int>& sizes);
  Val Product(const Val& x, const Val& y, bool dot);
  void WantOrdered(int node);
  std::optional<Val> OverAxes(const std::string& name, const Val& x, const Val& axes);
  std::optional<Val> CallOfNumber(const std::string& name, const Val& x);
  std::optional<Val> CallNumpy(const State& s, const std::string& name, const std::vector<Val>& given);
  Val MagnitudeOf(const Val& x);
  std::optional<Val> CallOfArray(const State& s, const std::string& name, const Val& x);
  std::optional<Val> Reduce(const std::string& name, const Val& x);
  std::optional<Val> ArrayMethod(const State& s, const std::string& name, const Val& of, const std::vector<Val>& args);
  std::optional<DType> TypeNamed(const Val& v);
  Val NewOfNumbers(const State& s, const Val& of, const Val* dtype);
  Val CountedUp(const State& s, const Val& stop);
  std::optional<Val> NewFilled(const State& s, const std::string& name, const std::vector<Val>& args, const Val* dtype);

  FjFrame* frame_;
  Loop loop_;
  int from_;
  Hopes hopes_;
  std::set<int> unknown_;  // lists that were read when nothing was known of them
  const std::set<int>& not_inline_;
  const ItemKinds& kinds_;
  const MergedKinds& merged_;
  GivenNames named_given_;
  std::map<std::pair<int, int>, KindsSeen> kinds_seen_;
  std::set<int> heads_;                    // first instructions of loops
  std::map<int, std::vector<bool>> live_;  // locals there
  Translation out_;
  std::map<std::pair<int, int>, int> cells_;  // (position, part): the flag that it was written is part -1
  std::map<std::tuple<int, int, int, ScalarType>, int> homes_;
  std::map<int, State> entered_;  // by the first instruction of a loop: the state with which it was come to first
  std::map<std::string, int> versions_;
  std::map<PyCodeObject*, std::set<int>> targets_;
  void WritesLists();

  struct Work {
    int block;
    State state;
    bool round;
  };
  std::deque<Work> work_;
  int current_ = 0;  // the block that a version begins with
  std::map<int, std::vector<int>> leads_to_;
  std::map<int, int> chunks_;  // of loops over so many at once: the block that begins a round, and that which counts
  std::vector<bool> given_;    // those that hold numbers at the entry, or may get one as another name (Hopes::whole)
  std::vector<int> origins_;   // of those that it writes: the variable of their Val::origin
  std::vector<int> changed_;   // those that it writes: the variable that tells whether it did
  std::vector<bool> touched_;  // the locals that the loop names
  std::vector<bool> stored_, region_stored_;  // those that this block, and this region, have stored
  int rounds_ = -1, others_ = -1;             // variables: rounds of loops over numbers, and of all others
  int serve_ = -1;                            // variable: after how many of both others are looked for
  int until_ = -1;                            // variable: to where a loop over numbers goes before that
  std::set<int> joins_;                       // the way that looks for them, and where it ends
  std::map<int, int64_t> small_sizes_;        // values that are constants because arrays have these sizes now
  State region_;                              // Nothing was written in this block since this state.
  std::deque<Node> nodes_;
  int buffers_ = 0;                                 // How many buffers this region has.
  std::vector<int> fresh_;                          // The addresses of arrays that were made in this region.
  std::vector<int> elements_;                       // of arrays, that this block has computed at once: how many
  std::vector<std::pair<int, Val>> computed_;       // The nodes that this region has computed, and what became of them.
  std::vector<int> filled_;                         // The nodes all of whose elements this region has computed.
  std::vector<std::pair<int, Element>> evaluated_;  // The nodes of which the element that is being computed is there.
  std::map<int, int> same_sizes_;                   // Sizes that this block has found to be equal to others.
  int parallel_ = 0, parallels_ = 0;                // the loop over elements that is being written; how many there are
  int extra_blocks_ = 0, views_ = 1 << 16;          // behind the numbers that views have at the beginning of a block
  std::map<int, int> masks_;                        // By Node::mask, the node that is the mask itself; of this block.
  int under_ = -1;                                  // Is the element that is being computed under its mask?
  int bad_ = -1;                                    // A variable: has a number come out that NumPy may tell of?
  int exit_ = -1, undo_exit_ = -1;                  // The exit to where this instruction began, and that which undoes.
  bool ended_ = false, wrote_ = false;              // Has this instruction ended the block? Has it written anything?
  bool innermost_ = false, unrolled_ = false;  // A loop without others in it goes round; some rounds are code each.
};

}  // namespace framejit::capture::scalar
