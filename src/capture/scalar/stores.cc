// This file has the loops over elements that compute arrays of a loop's code, and what they store.
#include <opcode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "capture/scalar/translator.h"
#include "surface/promote.h"

namespace framejit::capture::scalar {

namespace {

constexpr int kMostBuffers = 6, kMostAxes = 3;
constexpr double kMostly = .5;  // Stores of so large a share of an array, by all rounds, may have to be undone.

// Gives memory of this thread while code runs. The program's next write makes its contents useless.
char* Scratch(int64_t buffer, int64_t bytes) {
  struct Free {
    void operator()(char* p) const { free(p); }
  };
  struct Held {
    std::unique_ptr<char, Free> memory;
    int64_t bytes = 0;
  };
  thread_local Held held[kMostBuffers];
  Held& h = held[buffer];
  if (h.bytes < bytes) {
    const int64_t wanted = (2 * bytes + 127) / 64 * 64;
    h.memory.reset(static_cast<char*>(aligned_alloc(64, wanted)));
    h.bytes = h.memory ? wanted : 0;
  }
  return h.memory.get();
}

}  // namespace

bool Stores(DType from, DType to) {
  if (from == to || IsComplex(to)) return true;
  return !IsComplex(from) && to != DType::kBool && (Float(to) || !Float(from));
}

void Translator::Store(State& s, int i, Val v) {
  Val& old = s.top().locals[i];
  if (old.is == Is::kFrame) throw Unsupported{"a local of an unknown kind is dropped"};
  if (old.is == Is::kObject && !out_.objects[old.object].array && !out_.objects[old.object].fixed &&
      out_.objects[old.object].object.get() != Py_None)
    throw Unsupported{"an object is dropped"};
  if (v.iterator() || v.is == Is::kFrame) throw Unsupported{"an iterator is kept"};
  if (s.frames.size() == 1) NoteOrigin(i, v), Give(v, false);
  if (v.is == Is::kLiteral) throw Unsupported{"a list is kept"};
  if (old.is == Is::kDeferred) Lose(s, old.node, v);
  if (v.is == Is::kDeferred && s.frames.size() > 1 && Weight(v.node) > kMostWeight) v = Compute(s, v.node);
  if (v.is == Is::kDeferred) WantComputable(v.node);
  if (s.frames.size() == 1) Copied(v);
  old = std::move(v);
  if (s.frames.size() == 1) stored_[i] = true;
}

void Translator::Give(Val& v, bool given) {
  v.given = given;
  v.origin = -1;
  for (Val& item : v.items) Give(item, given);
}

// One number, whatever it consists of.
static bool IsNumber(const Val& v) {
  return v.scalar() || v.is == Is::kEither || v.is == Is::kComplex;
}

void Translator::GiveLocal(Val& v, int i) {
  Give(v, true);
  const auto named = named_given_.find(i);
  if (!IsNumber(v) || (named != named_given_.end() && !named->second)) return;
  if (changed_[i] < 0)
    v.origin = Int(i + 1);
  else if (origins_[i] >= 0)
    v.origin = Emit({.op = ScalarOp::kGet, .type = ScalarType::kInt, .imm = origins_[i], .id = -2});
}

// A local gets another value.
void Translator::NoteOrigin(int i, const Val& v) {
  const bool given = IsGiven(v), known = IsNumber(v) && v.origin >= 0;
  if (given) named_given_.try_emplace(i, true).first->second &= known;
  if (origins_[i] >= 0) Emit({.op = ScalarOp::kSet, .a = given && known ? v.origin : Int(0), .imm = origins_[i]});
}

bool Translator::IsGiven(const Val& v) {
  return v.given || std::any_of(v.items.begin(), v.items.end(), IsGiven);
}

// An exit takes the first local that is the result from the frame, if it was not written, and makes it anew if it was.
// Of others it must be known which object they are.
void Translator::WantKnownResult(const Frame& f, Val& v) const {
  if (!IsGiven(v)) return;
  const auto local = std::ranges::find_if(f.locals, [&](const Val& l) { return OneObject(l, v); });
  if (local != f.locals.end() && !named_given_.contains(local - f.locals.begin())) return Give(v, true);
  const auto known = [](const auto& self, const Val& x) -> bool {
    if (!IsGiven(x) || x.origin >= 0) return true;
    return x.is == Is::kTuple && std::ranges::all_of(x.items, [&](const Val& item) { return self(self, item); });
  };
  if (!known(known, v)) throw Unsupported{"a number that the function was called with is kept"};
}

// --- loops
//
// Emits `body` for every number below `count`. If this is the innermost loop, what its rounds read and write does not
// meet.
void Translator::ForEach(int count, bool innermost, absl::FunctionRef<void(int)> body) {
  const int variable = Variable(ScalarType::kInt), loop = innermost ? ++parallels_ : 0;
  const int head = static_cast<int>(code.blocks.size()), round = head + 1, behind = head + 2;
  Emit({.op = ScalarOp::kSet, .a = Int(0), .imm = variable});
  Emit({.op = ScalarOp::kJump, .imm = head});
  code.blocks.resize(head + 3);
  extra_blocks_ += 3;
  block = head;
  const int i = Emit({.op = ScalarOp::kGet, .imm = variable, .id = -2});
  Emit({.op = ScalarOp::kBranch, .a = Compare(ScalarOp::kLt, i, count), .other = behind, .imm = round});
  block = round;
  parallel_ = loop;
  body(i);
  parallel_ = 0;
  Emit({.op = ScalarOp::kSet, .a = Op(ScalarOp::kNext, ScalarType::kInt, i), .imm = variable});
  Emit({.op = ScalarOp::kJump, .imm = head, .parallel = loop});
  block = behind;
}

// `body` for every element of an array of these sizes: its index, and how many stand before it.
void Translator::ForAll(const std::vector<int>& sizes, absl::FunctionRef<void(const std::vector<int>&, int)> body) {
  std::vector<int> at;
  const std::function<void(int)> axis = [&](int before) {
    const size_t k = at.size();
    ForEach(sizes[k], k + 1 == sizes.size(), [&](int i) {
      const int place =
          k ? Op(ScalarOp::kAdd, ScalarType::kInt, Op(ScalarOp::kMul, ScalarType::kInt, before, sizes[k]), i) : i;
      at.push_back(i);
      k + 1 == sizes.size() ? body(at, place) : axis(place);
      at.pop_back();
    });
  };
  axis(-1);
  elements_.push_back(Count(sizes));
}

int Translator::Count(const std::vector<int>& sizes) {
  int n = sizes[0];
  for (size_t i = 1; i < sizes.size(); ++i) n = Op(ScalarOp::kMul, ScalarType::kInt, n, sizes[i]);
  return n;
}

int Translator::Buffer(int count, DType t) {
  if (buffers_ == kMostBuffers) throw Unsupported{"many arrays at once"};
  const int bytes = Op(ScalarOp::kMul, ScalarType::kInt, count, Int(DTypeSize(t)));
  const int memory = CallForMemory(reinterpret_cast<void*>(Scratch), {Int(buffers_++), bytes});
  const int null = Emit({.op = ScalarOp::kConst, .type = ScalarType::kPtr, .imm = 0, .id = -2});
  ExitIf(Compare(ScalarOp::kEq, memory, null));
  return memory;
}

// All that was written since the code was entered is put back, and Python goes on where it was entered.
int Translator::UndoExit() {
  if (undo_exit_ < 0) {
    undo_exit_ = static_cast<int>(out_.exits.size());
    code.exits.push_back({.undo = true});
    out_.exits.push_back({.undo = true});
    out_.undoes = true;
    out_.undo = undo_exit_;
  }
  return undo_exit_;
}

// The node's elements as `t`, in `to` or one behind the other in a buffer, whose address is returned. What NumPy may
// tell of is left for before that is used, or behind it with `undo`.
int Translator::Fill(int node, const std::vector<int>& sizes, DType t, const Part* to, bool undo) {
  std::vector<Filled> targets{{node, t, to}};
  FillAll(targets, sizes, undo);
  return targets[0].memory;
}

// All of these in one nest of loops, so each element that several of them read is read once. None of them reads at
// other places what another one writes.
void Translator::FillAll(std::vector<Filled>& targets, const std::vector<int>& sizes, bool undo) {
  const int count = Count(sizes);
  for (Filled& target : targets)
    if (!target.to || target.buffered) target.memory = Buffer(count, target.type);
  bad_ = Variable(ScalarType::kBool);
  Emit({.op = ScalarOp::kSet, .a = Flag(false), .imm = bad_});
  ForAll(sizes, [&](const std::vector<int>& at, int place) {
    evaluated_.clear();
    std::vector<Element> elements;
    for (const Filled& target : targets) {
      under_ = target.mask < 0 ? -1 : Eval(masks_.at(target.mask), at, true).value;
      elements.push_back(EvalAs(target.node, at, target.type, false));
    }
    for (size_t k = 0; k < targets.size(); ++k) {
      const Filled& to = targets[k];
      if (to.memory < 0)
        StoreUnder(*to.to, at, elements[k], to.type, under_);
      else
        StoreElement(to.memory, Op(ScalarOp::kMul, ScalarType::kInt, place, Int(DTypeSize(to.type))), elements[k],
                     to.type, kMadeArrays);
    }
  });
  evaluated_.clear();
  under_ = -1;
  for (const Filled& target : targets) filled_.push_back(target.node);
  if (std::ranges::none_of(targets, [&](const Filled& target) { return SpecialAs(target.node, target.type); })) return;
  const int bad = Emit({.op = ScalarOp::kGet, .type = ScalarType::kBool, .imm = bad_, .id = -2});
  Emit({.op = ScalarOp::kExitIf, .a = bad, .exit = undo ? UndoExit() : Exit()});
}

int Translator::AddressOf(const Part& p) {
  return p.offset < 0 ? BaseOf(p) : Op(ScalarOp::kAt, ScalarType::kPtr, BaseOf(p), p.offset);
}

// Along one axis NumPy copies without a look at what it overwrites: it begins at the end where that is right for equal
// strides. Where they differ and the two parts meet, it reads what it has just written, which is left to it.
void Translator::WantNotSpoiled(const Part& to, const Node& from) {
  if (from.kind != Node::kPart || to.rank() != 1 || from.sizes.size() != 1 || from.ones & 1) return;
  const auto stride = [&](const Part& p) { return p.unit ? Int(DTypeSize(p.dtype)) : p.strides[0]; };
  const int mine = stride(to), its = stride(from.part);
  if ((to.unit && from.part.unit) || mine == its) return;
  int spoiled = Compare(ScalarOp::kNe, mine, its);
  if (to.object == from.part.object && to.base == from.part.base) {  // else they may lie anywhere
    const auto select = [&](ScalarOp op, int a, int b) {
      return Op(ScalarOp::kSelect, ScalarType::kInt, Compare(op, a, b), a, b);
    };
    const auto ends = [&](const Part& p, int step) {
      const int first = p.offset < 0 ? Int(0) : p.offset;
      const int steps = Op(ScalarOp::kSub, ScalarType::kInt, to.sizes[0], Int(1));
      const int last = Op(ScalarOp::kAdd, ScalarType::kInt, first, Op(ScalarOp::kMul, ScalarType::kInt, steps, step));
      return std::pair(select(ScalarOp::kLt, first, last), select(ScalarOp::kGt, first, last));
    };
    const auto [low, high] = ends(to, mine);
    const auto [its_low, its_high] = ends(from.part, its);
    const int meet = Op(ScalarOp::kAnd, ScalarType::kBool, Compare(ScalarOp::kLe, low, its_high),
                        Compare(ScalarOp::kLe, its_low, high));
    spoiled = Op(ScalarOp::kAnd, ScalarType::kBool, spoiled, meet);
  }
  ExitIf(spoiled);
}

int Translator::StoredNode(const Val& value, DType t) {
  if (!value.scalar() && value.is != Is::kComplex) return ElementsOf(value);
  const Element number = IsComplex(t) ? NumberAs(value, t) : Element{Stored(*this, value, t)};
  return Deferred({.kind = Node::kNumber, .dtype = t, .value = number}).node;
}

void Translator::WantStorable(const Part& to, int node) const {
  if (to.rank() > kMostAxes || !Stores(nodes_[node].dtype, to.dtype) || (to.rank() > 1 && Large(to.object)))
    throw Unsupported{"a store of many elements"};
}

void Translator::Assign(State& s, const Part& to, const Val& value) {
  const DType t = to.dtype;
  int node = StoredNode(value, t);
  const size_t rank = nodes_[node].sizes.size();
  if (rank > to.sizes.size()) throw Unsupported{"a store of many elements"};
  WantStorable(to, node);
  const size_t lead = to.sizes.size() - rank;
  for (size_t i = 0; i < rank; ++i)
    if (!(nodes_[node].ones >> i & 1)) WantSame(to.sizes[lead + i], nodes_[node].sizes[i]);
  if (value.is == Is::kDeferred && Waiting(s) && !SameSizes(nodes_[node].sizes, to.sizes)) {
    Val stored = value;  // not computed again for each of the places that it goes to
    ComputeAll(s, &stored);
    node = NodeOf(stored);
  }
  AssignNode(s, to, node);
}

// Stores what has the sizes of `to`, or is broadcast to them; under a mask (Node::mask) where that holds.
void Translator::AssignNode(State& s, const Part& to, int node, int mask) {
  const DType t = to.dtype;
  Settle();
  // Arrays that can be put back lie in one piece: no two of their elements are one.
  const bool whole = to.share * static_cast<double>(hopes_.rounds) >= kMostly;
  const bool undo = hopes_.finite && to.object >= 0 && whole && SpecialAs(node, t) && !Fresh(to);
  const bool alone =
      nodes_[node].kind == Node::kNumber || ((hopes_.apart || to.base >= 0) && !Reads(node, to, undo || mask >= 0));
  if (!alone && mask < 0) WantNotSpoiled(to, nodes_[node]);
  const bool direct = alone && (Fresh(to) || !SpecialAs(node, t) || undo);
  if (direct && undo) {
    out_.objects[to.object].mostly = true;
    out_.undo_rounds = std::max(out_.undo_rounds, static_cast<int64_t>(std::ceil(kMostly / to.share)));
  }
  Filled store{.node = node, .type = t, .to = &to, .buffered = !direct, .mask = mask};
  if (mask < 0) {
    ComputeAll(s, nullptr, &store, undo);
  } else {
    ComputeAll(s);
    std::vector<Filled> alone_under{store};
    FillAll(alone_under, to.sizes, undo);
    store = alone_under[0];
  }
  if (!direct) {
    const int size = Int(DTypeSize(t));
    ForAll(to.sizes, [&](const std::vector<int>& at, int place) {
      evaluated_.clear();
      const Element v = ElementAt(store.memory, Op(ScalarOp::kMul, ScalarType::kInt, place, size), t, kMadeArrays);
      StoreUnder(to, at, v, t, mask < 0 ? -1 : Eval(masks_.at(mask), at, true).value);
    });
    evaluated_.clear();
  }
  Wrote(s, to);
}

// Makes code for an operator with an array. Where it is in place, what the program does next is to store it where it
// was.
void Translator::ArrayBinary(State& s, const Instr& i, const Val& left, const Val& y) {
  const bool updates = i.arg >= NB_INPLACE_ADD && IsArray(left);
  const bool under = left.is == Is::kDeferred && nodes_[left.node].mask >= 0;
  Val x = updates && !under ? Computed(s, left) : left, by = y;
  RowsOrOne(s, x, by);
  const int op = i.arg >= NB_INPLACE_ADD ? i.arg - NB_INPLACE_ADD : i.arg;
  if (op == NB_MATRIX_MULTIPLY) {
    if (updates) throw Unsupported{"a product in place"};
    const std::vector<Val> operands = Named(s, {Rows(s, x), Rows(s, by)});
    Push(s, Product(operands[0], operands[1], false));
    return Next(s, i);
  }
  const Val result = DeferBinary(op, x, by);
  if (!updates) {
    Push(s, result);
    return Next(s, i);
  }
  const Node& n = nodes_[result.node];
  if (under) {  // the row is nobody's but the program stores it where it was
    const bool stores = s.top().code->At(s.top().pc + i.length).op == Op::kSwap;
    if (!stores || x.is != Is::kDeferred || n.mask < 0 || n.dtype != nodes_[x.node].dtype)
      throw Unsupported{"an operator in place"};
    Push(s, result);
    return Next(s, i);
  }
  const Part to = PartOf(x);
  if (!surface::NumpyCanCastSameKind(n.dtype, to.dtype) || static_cast<int>(n.sizes.size()) != to.rank())
    throw Unsupported{"an operator in place"};
  const bytecode::Code& c = *s.top().code;
  int next = s.top().pc + i.length;
  const bool swaps = c.At(next).op == Op::kSwap;
  while (c.At(next).op == Op::kSwap) next += c.At(next).length;
  if (swaps && (c.At(next).op == Op::kSetItem || c.At(next).op == Op::kSetSlice)) {
    nodes_[n.a].updated = true;
    Push(s, result);
  } else if (!swaps && c.At(next).op == Op::kStoreFast) {
    Assign(s, to, result);
    Push(s, x);
  } else {
    throw Unsupported{"an operator in place"};
  }
  Next(s, i);
}

}  // namespace framejit::capture::scalar
