// How the translation goes through the program: what the frame holds at the entry, blocks of code and the ways between
// them, exits.
#include <cmath>
#include <functional>
#include <limits>

#include "capture/scalar/made.h"
#include "capture/scalar/translator.h"
#include "capture/scalar/undo.h"
#include "frame/slot.h"

namespace framejit::capture::scalar {

State Translator::Entry() {
  Frame f;
  f.co = fj_code(frame_);
  f.code = bytecode::Code::Of(f.co);
  f.globals = fj_globals(frame_), f.builtins = fj_builtins(frame_);
  f.pc = from_;
  const int n = fj_nlocalsplus(frame_);
  f.locals.resize(n, Unknown());
  stored_.resize(n), changed_.resize(n, -1), touched_.resize(n), given_.resize(n), origins_.resize(n, -1);
  Scan(*f.code);
  const std::vector<bool> live = LiveAt(*f.code, loop_.start, n);
  frame::Slot* slots = fj_localsplus(frame_);
  for (int i = 0; i < n; ++i) {
    if (!touched_[i]) continue;
    PyObject* o = slots[i];
    if (o && IsLazy(o)) o = reinterpret_cast<Lazy*>(o)->value;
    if (o && PyCell_Check(o)) o = PyCell_GET(o);
    Val v = Describe(slots[i] && IsLazy(slots[i]) && !PyCell_Check(o ? o : Py_None) ? slots[i] : o, out_.objects);
    if (v.is == Is::kInt && v.small && changed_[i] < 0 && o && PyLong_CheckExact(o))
      v.natural = PyLong_AsLongLong(o) >= 0;
    if (const auto merged = merged_.find({from_, i}); merged != merged_.end() && merged->second.is == Is::kEither &&
                                                      live[i] && EitherType(v) == EitherType(merged->second))
      v = merged->second;
    given_[i] = hopes_.whole && ((v.scalar() && v.is != Is::kBool) || v.is == Is::kEither || v.is == Is::kComplex ||
                                 v.is == Is::kTuple);
    const bool number = given_[i];
    given_[i] = given_[i] || named_given_.contains(i);
    if (given_[i] && changed_[i] >= 0) {
      origins_[i] = Variable(ScalarType::kInt);
      Emit({.op = ScalarOp::kSet, .a = Int(number ? i + 1 : 0), .imm = origins_[i]});
    }
    f.locals[i] = Receive(v, out_.locals, i, i);
    out_.locals.back().live = live[i];
    // Nobody asks what was in it: an exit leaves it as it is, or writes what the code has put there.
    if (Val& local = f.locals[i]; !live[i] && local.scalar())
      local.value = Emit({.op = ScalarOp::kConst, .type = local.type(), .id = -2});
  }
  for (int i = 0; i < fj_stack_depth(frame_); ++i)
    Hold(f.stack.emplace_back(Receive(Describe(slots[n + i], out_.objects), out_.stack, i, n + i)));
  for (ObjectSpec& o : out_.objects)
    if (const auto it = kinds_.find(o.object.get()); o.list && o.item.is == Is::kNull && it != kinds_.end())
      o.item = it->second;
  State s;
  s.frames.push_back(std::move(f));
  return s;
}

void Translator::Scan(const bytecode::Code& c) {
  for (int at = loop_.start; at < loop_.end; ++at) {
    const Instr& i = c.At(at);
    if (!i.length) continue;
    switch (i.op) {
      case Op::kStoreFast: changed_[i.arg] = 0; [[fallthrough]];
      case Op::kLoadFast:
      case Op::kLoadDeref: touched_[i.arg] = true; break;
      case Op::kStoreFastPair:
        changed_[i.arg] = changed_[i.target] = 0;
        touched_[i.arg] = touched_[i.target] = true;
        break;
      case Op::kStoreFastLoadFast: changed_[i.arg] = 0; [[fallthrough]];
      case Op::kLoadFastPair: touched_[i.arg] = touched_[i.target] = true; break;
      default: break;
    }
  }
  for (int& variable : changed_)
    if (variable == 0) variable = Variable(ScalarType::kBool);
}

void Translator::UnitSteps(Val& v) {
  if (v.is == Is::kRangeIter && v.unit) v.items[1] = IntConstant(*this, 1);
  for (Val& item : v.items) UnitSteps(item);
}

Val Translator::Receive(Val v, std::vector<Slot>& slots, int slot, int position) {
  v.natural &= hopes_.natural;
  Leaves(v, [&](Val& x) { x.small &= hopes_.natural; });
  Slot s{.slot = slot, .val = v};
  int leaf = 0;
  Leaves(v, [&](Val& x) {
    const int cell = CellOf(position, leaf++);
    s.cells.push_back(cell);
    const bool natural = v.natural && leaf == 1;
    x.value = Emit({.op = ScalarOp::kCell,
                    .type = x.type(),
                    .imm = cell,
                    .id = -2,
                    .natural = natural,
                    .small = natural || x.small});
  });
  UnitSteps(v);
  if (v.is == Is::kInt) v.natural = false;  // the value's range tells
  slots.push_back(std::move(s));
  return v;
}

Val Translator::Fixed(PyObject* o) {
  if (!o) return {};
  Val known = Constant(o);
  if (known.is != Is::kNull) return known;
  for (size_t i = 0; i < out_.objects.size(); ++i)
    if (out_.objects[i].fixed && out_.objects[i].object.get() == o) return Object(static_cast<int>(i));
  ObjectSpec spec{.object = Borrow(o), .fixed = true};
  std::vector<ObjectSpec> one;
  if (Val v = Describe(o, one); v.is == Is::kObject && (one[v.object].array || one[v.object].letters())) {
    spec = one[v.object];
    spec.fixed = true;
  }
  out_.objects.push_back(std::move(spec));
  return Object(static_cast<int>(out_.objects.size()) - 1);
}

Val Translator::Constant(PyObject* o) {
  if (PyBool_Check(o)) return New(Is::kBool, Flag(o == Py_True));
  if (PyFloat_CheckExact(o)) {
    Val v = New(Is::kFloat, Number(PyFloat_AS_DOUBLE(o)));
    v.held = std::isnan(PyFloat_AS_DOUBLE(o));  // somebody has it: a global, an attribute
    return v;
  }
  if (PyComplex_CheckExact(o)) {
    const Py_complex c = PyComplex_AsCComplex(o);
    return Complex(New(Is::kFloat, Number(c.real)), New(Is::kFloat, Number(c.imag)), false);
  }
  if (PyLong_CheckExact(o)) {
    int overflow;
    const int64_t v = PyLong_AsLongLongAndOverflow(o, &overflow);
    return overflow ? Val() : IntConstant(*this, v);
  }
  if (!PyTuple_CheckExact(o) || PyTuple_GET_SIZE(o) == 0 || PyTuple_GET_SIZE(o) > 8) return {};
  std::vector<Val> items;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) {
    items.push_back(Constant(PyTuple_GET_ITEM(o, i)));
    if (items.back().is == Is::kNull) return {};
  }
  return Tuple(std::move(items));
}

bool OneObject(const Val& a, const Val& b) {
  if (a.is != b.is || a.dtype != b.dtype) return false;
  if (a.scalar()) return a.value >= 0 || b.value >= 0 ? a.value == b.value : a.home >= 0 && a.home == b.home;
  return (a.is == Is::kTuple || a.is == Is::kComplex || a.is == Is::kEither) &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), OneObject);
}

static bool AsksOrigin(const Val& v) {
  return v.origin >= 0 || std::any_of(v.items.begin(), v.items.end(), AsksOrigin);
}

int Translator::MakeExit(const State& s, const std::vector<bool>& stored, const std::string& why, bool usual) {
  if (s.frames.size() > 1 && s.effects) throw NotInline{s.frames[0].pc};
  const Frame& f = s.frames[0];
  ExitState e{.next = f.pc, .usual = usual, .why = why};
  e.returns = f.code->At(f.pc).op == Op::kReturnValue || f.code->At(f.pc).op == Op::kReturnConst;
  codegen::ScalarExit cells;
  const auto give = [&](Val v, std::vector<Slot>& slots, int slot, int position) {
    Slot to{.slot = slot};
    const bool asked = e.returns && position >= f.nlocals() && AsksOrigin(v);
    for (int i = 0; i < std::min(position, f.nlocals()) && to.twin < 0 && !asked; ++i)
      if (OneObject(f.locals[i], v)) to.twin = i;
    const std::function<void(Val&)> origin = [&](Val& x) {
      if (asked && x.origin >= 0)
        cells.cells.emplace_back(out_.cells, x.origin), x.origin = out_.cells++;
      else
        x.origin = -1;
      for (Val& item : x.items) origin(item);
    };
    origin(v);
    int leaf = 0;
    Leaves(v, [&](Val& x) {
      const int cell = CellOf(position, leaf++);
      to.cells.push_back(cell);
      cells.cells.emplace_back(cell, Value(x));
    });
    to.val = std::move(v);
    slots.push_back(std::move(to));
  };
  for (size_t i = 0; i < f.stack.size(); ++i)
    give(f.stack[i], e.stack, static_cast<int>(i), f.nlocals() + static_cast<int>(i));
  for (int i = 0; i < f.nlocals(); ++i) {
    const bool result = std::ranges::any_of(e.stack, [&](const Slot& s) { return s.twin == i; });
    if (changed_[i] < 0 || (e.returns && hopes_.whole && !result)) continue;
    give(f.locals[i], e.locals, i, i);
    e.locals.back().result = result;
    e.locals.back().changed = CellOf(i, -1);
    cells.cells.emplace_back(
        e.locals.back().changed,
        stored[i] ? Flag(true) : Emit({.op = ScalarOp::kGet, .type = ScalarType::kBool, .imm = changed_[i], .id = -2}));
  }
  cells.cells.emplace_back(0, Op(ScalarOp::kAdd, ScalarType::kInt, Count(rounds_), Count(others_)));
  code.exits.push_back(std::move(cells));
  out_.exits.push_back(std::move(e));
  return static_cast<int>(out_.exits.size()) - 1;
}

// From 1 on, as they stand in the state: two states are alike if the same views are one.
void Translator::NumberViews(State& s) {
  std::map<int, int> numbers;
  const std::function<void(Val&)> number = [&](Val& v) {
    if (v.is == Is::kView) v.same = numbers.try_emplace(v.same, static_cast<int>(numbers.size()) + 1).first->second;
    for (Val& item : v.items) number(item);
  };
  for (Frame& f : s.frames) {
    for (Val& v : f.locals) number(v);
    for (Val& v : f.stack) number(v);
  }
}

// Is the code in a loop over numbers that are constants of its rounds? Outside of those they are numbers like others.
static bool UnrollsNow(const State& s) {
  return std::any_of(s.frames.begin(), s.frames.end(), [](const Frame& f) {
    return std::any_of(f.stack.begin(), f.stack.end(), [](const Val& v) { return v.is == Is::kTupleIter; });
  });
}
static void ForgetConstants(State& s) {
  for (Frame& f : s.frames)
    for (std::vector<Val>* values : {&f.locals, &f.stack})
      for (Val& v : *values)
        if (v.scalar() || v.is == Is::kTuple) Leaves(v, [](Val& x) { x.few = false; });
}

// Where a loop over numbers begins, or goes on, with so many rounds `left`. Signals and other threads are looked for
// every kServed rounds of all such loops: if all that are left may run before that, this gives `whole`; else they are
// looked for now, and it gives `part`, which is computed there.
int Translator::ServeSometimes(const State& s, int left, int whole, absl::FunctionRef<int()> part) {
  if (hopes_.transaction) {
    if (!Outermost(s)) ExitIfLong(s, left);
    return whole;
  }
  const int all = Op(ScalarOp::kAdd, ScalarType::kInt, Count(rounds_), Count(others_));
  const int before = Op(ScalarOp::kSub, ScalarType::kInt, Count(serve_), all);
  Emit({.op = ScalarOp::kSet, .a = whole, .imm = until_});
  const int now = Compare(ScalarOp::kGt, left, before);
  const int on = static_cast<int>(code.blocks.size());
  code.blocks.emplace_back();
  const int serve = Way([&] {
    ServeOthers();
    Emit({.op = ScalarOp::kSet, .a = Op(ScalarOp::kAdd, ScalarType::kInt, all, Int(kServed)), .imm = serve_});
    Emit({.op = ScalarOp::kSet, .a = part(), .imm = until_});
    Emit({.op = ScalarOp::kJump, .imm = on});
  });
  Emit({.op = ScalarOp::kBranch, .a = now, .other = on, .imm = serve, .seldom = true});
  joins_.insert({on, serve});
  block = on;
  extra_blocks_ += 2;
  return Count(until_);
}

// Does a loop go round that knows how many rounds it has?
bool Translator::OverNumbers(const State& s) {
  const Frame& f = s.frames.back();
  if (f.stack.empty()) return false;
  const Val& it = f.stack.back();
  return it.is == Is::kChunk || (f.code->At(f.pc).op == Op::kForIter && it.is == Is::kRangeIter && (it.unit || it.few));
}

// Does it call what may change what the processor has noted of numbers?
static bool CallsOthers(const codegen::ScalarCode& code) {
  return std::ranges::any_of(code.blocks, [](const auto& block) {
    return std::ranges::any_of(block, [](const codegen::ScalarInst& i) { return i.foreign; });
  });
}

// Leaves a transaction that would have too many rounds with so many more. A few, of a loop in the outermost frame, are
// let through: loops that hold loops with loops in them ask in each round.
void Translator::ExitIfLong(const State& s, int more) {
  if (s.frames.size() > 1)
    return ExitIf(Compare(ScalarOp::kGt, more, Op(ScalarOp::kSub, ScalarType::kInt, Int(kMostUndone), Count(rounds_))));
  Emit({.op = ScalarOp::kExitIfLong, .a = more, .b = Count(rounds_), .exit = Exit(), .imm = kMostUndone});
}

// Does a loop in this one hold another?
static bool HoldsNests(const bytecode::Code& code, int start) {
  const std::vector<Loop> loops = LoopsOf(code);
  const auto it = std::ranges::find(loops, start, &Loop::start);
  return it != loops.end() && std::ranges::any_of(loops, [&](const Loop& l) {
           return l.start > start && l.end <= it->end && !HasNoLoops(loops, l.start);
         });
}

// Nobody else gets a turn but where the outermost loop goes round after many rounds: the code is left there, and
// entered again.
void Translator::RoundOfTransaction(State s) {
  const int all = CountOne(rounds_);
  if (Outermost(s)) {
    const int exit = RegionExit();
    out_.exits[exit].breaker = true;
    Emit({.op = ScalarOp::kExitIf, .a = Compare(ScalarOp::kGe, all, Int(kCommitted)), .exit = exit});
  } else if (!OverNumbers(s) || (s.frames.size() == 1 && HoldsNests(*s.top().code, s.top().pc))) {
    ExitIf(Compare(ScalarOp::kGe, all, Int(kMostUndone)));
  }
  GoTo(std::move(s));
}

// A round that has computed very many elements of arrays at once is the last one before others are looked for: where
// the innermost loop goes round, whatever its kind.
void Translator::ServeAfterMany(State& s) {
  constexpr int64_t kMany = 1024;
  constexpr int kOfRound = 3;  // elements take as long as a round: 2 to the power of
  int many = -1;
  if (hopes_.transaction) {
    if (hopes_.at_once && !elements_.empty()) throw NotUndone{};  // rounds may be long
    for (int count : std::set<int>(elements_.begin(), elements_.end())) {
      const int rounds = Op(ScalarOp::kShr, ScalarType::kInt, count, Int(kOfRound));
      ExitIfLong(s, rounds);
      Emit({.op = ScalarOp::kSet, .a = Op(ScalarOp::kAdd, ScalarType::kInt, Count(rounds_), rounds), .imm = rounds_});
    }
    return;
  }
  for (int count : std::set<int>(elements_.begin(), elements_.end())) {
    const int more = Compare(ScalarOp::kGe, count, Int(kMany));
    many = many < 0 ? more : Op(ScalarOp::kOr, ScalarType::kBool, many, more);
  }
  if (many < 0) return;
  const auto pick = [&](int yes, int no) { return Op(ScalarOp::kSelect, ScalarType::kInt, many, yes, no); };
  Emit({.op = ScalarOp::kSet, .a = pick(Int(0), Count(serve_)), .imm = serve_});
  const int last = Op(ScalarOp::kOr, ScalarType::kInt, Count(others_), Int(kOthersServed - 1));
  Emit({.op = ScalarOp::kSet, .a = pick(last, Count(others_)), .imm = others_});
  for (auto f = s.frames.rbegin(); f != s.frames.rend(); ++f)
    for (auto v = f->stack.rbegin(); v != f->stack.rend(); ++v) {
      if (v->brief) throw NotBrief{};
      const bool numbers = v->is == Is::kRangeIter && v->items.size() == 4 && !v->few;
      if (!numbers && v->is != Is::kChunk) continue;
      Val& limit = v->items[numbers ? 3 : 1];
      limit = New(Is::kInt, pick(Int(std::numeric_limits<int64_t>::min()), Value(limit)));
      return;
    }
}

static void ForgetOrigin(Val& v) {
  v.origin = -1;
  for (Val& item : v.items) ForgetOrigin(item);
}

void Translator::GoTo(State s, bool round) {
  Frame& outer = s.frames[0];
  ComputeAll(s);
  if (s.frames.size() == 1 && !loop_.Holds(outer.pc)) return Leave(s, "", true);
  ServeAfterMany(s);
  if (!UnrollsNow(s)) ForgetConstants(s);
  if (s.frames.size() == 1 && heads_.contains(outer.pc)) MergeKinds(outer, round);
  for (Frame& f : s.frames)
    for (Val& v : f.stack) {
      if (v.is == Is::kTupleIter || v.is == Is::kZip) continue;  // their items are what was given
      if (v.iterator() || v.is == Is::kRange) Give(v, false);
    }
  for (Frame& f : s.frames)  // all states behind this block are alike
    for (Val& v : f.stack) s.frames.size() == 1 ? Copied(v) : Hold(v);
  Settle();
  std::vector<std::pair<int, int>> sets;  // variable, value
  for (size_t depth = 0; depth < s.frames.size(); ++depth) {
    Frame& f = s.frames[depth];
    const auto settle = [&](Val& v, int position) {
      int leaf = 0;
      ForgetOrigin(v);
      Leaves(v, [&](Val& x) {
        const int home = Home(static_cast<int>(depth), position, leaf++, x.type());
        if (x.home != home || x.value >= 0) sets.emplace_back(home, Value(x));
        x.home = home, x.value = -1;
        if (!x.few) x.constant.reset();
      });
    };
    for (int i = 0; i < f.nlocals(); ++i) settle(f.locals[i], i);
    // What an expression chooses (`x if a else y`) is no other one's: what is known of a variable is so wherever it is.
    constexpr int kMostStack = 1 << 10;
    for (size_t i = 0; i < f.stack.size(); ++i)
      settle(f.stack[i], f.nlocals() + static_cast<int>(i) + (f.stack[i].scalar() ? kMostStack * (f.pc + 1) : 0));
  }
  for (size_t i = 0; i < stored_.size(); ++i)
    if (stored_[i]) sets.emplace_back(changed_[i], Flag(true));
  for (auto [variable, value] : sets) Emit({.op = ScalarOp::kSet, .a = value, .imm = variable});
  NumberViews(s);
  const std::string key = (round ? "r" : "") + s.key();
  if (!round && OthersCome(s)) {
    Leave(s, hopes_.whole ? "a loop goes round with other kinds" : "", false);
    out_.exits.back().others = true;
    return;
  }
  auto [it, made] = versions_.try_emplace(key, static_cast<int>(code.blocks.size()));
  Emit({.op = ScalarOp::kJump, .imm = it->second});
  leads_to_[current_].push_back(it->second);
  if (!made) return;
  if (static_cast<int>(code.blocks.size()) - extra_blocks_ > (unrolled_ ? kMostOfRounds : kMostBlocks)) throw TooMuch{};
  code.blocks.emplace_back();
  extra_blocks_ += round;
  work_.push_back({it->second, std::move(s), round});
}

// Does an outer loop go round with numbers of other kinds than the code is entered with, and all else alike? Whether it
// is in a chunk is nothing else.
bool Translator::OthersCome(const State& s) {
  const Frame& f = s.frames[0];
  const bool head = hopes_.whole ? heads_.contains(f.pc) : f.pc == loop_.start;
  if (s.frames.size() > 1 || !head || Innermost(*f.code, f.pc) || hopes_.together) return false;
  State plain = s;
  if (f.code->At(f.pc).op == Op::kForIter) {
    Val& it = plain.top().stack.back();
    if (it.few || it.is == Is::kTupleIter) return false;
    if (it.is == Is::kChunk) it = Val(it.items[0]);
    if (it.is == Is::kRangeIter && it.items.size() == 4) it.items.pop_back(), it.brief = false;
  }
  const State& entered = entered_.try_emplace(f.pc, plain).first->second;
  const auto number = [](const Val& v) { return v.scalar() || v.is == Is::kEither || v.is == Is::kNull; };
  bool others = false;
  const auto compare = [&](const std::vector<Val>& then, const std::vector<Val>& now) {
    for (size_t i = 0; i < then.size(); ++i) {
      if (then[i].key() == now[i].key()) continue;
      if (!number(then[i]) || !number(now[i])) return false;
      others = true;
    }
    return true;
  };
  const Frame &then = entered.frames[0], &now = plain.frames[0];
  return compare(then.locals, now.locals) && compare(then.stack, now.stack) && others;
}

// Where a loop begins with a float of Python that its rounds make one of NumPy (`s = 0.0`, then `s += x[i]`), or with a
// name that is bound in its rounds alone, the code would be made twice, and the first round would be none of the
// loop's. What comes to a loop's head is noted, and the next translation makes one kind of it: a float of either kind,
// for which all that is usual comes out alike, or, of a name whose value nobody asks for there, whatever its rounds
// leave in it.
void Translator::MergeKinds(Frame& f, bool round) {
  const auto [at, made] = live_.try_emplace(f.pc);
  if (made) at->second = LiveAt(*f.code, f.pc, f.nlocals());
  for (int i = 0; i < f.nlocals(); ++i) {
    Val& v = f.locals[i];
    if (changed_[i] < 0) continue;
    const bool unbound = v.is == Is::kNull && !at->second[i];
    const std::optional<DType> either = EitherType(v);
    Val kind = v.is == Is::kNumpy ? NewNumpy(v.dtype, -1) : New(v.is, -1);
    if (v.is == Is::kEither) kind = Either(NewNumpy(*either, -1), New(Is::kBool, -1));
    KindsSeen& seen = kinds_seen_[{f.pc, i}];
    seen.unbound |= unbound;
    const bool kept = either && v.number().value < 0 && v.number().home == Home(0, i, 0, v.number().type());
    seen.mixes |= round && !kept && either && v.is != Is::kNumpy && Innermost(*f.code, f.pc);
    if (!unbound && !v.scalar() && !either) seen.other = true;
    if (!unbound && std::none_of(seen.kinds.begin(), seen.kinds.end(), [&](auto& k) { return k.key() == kind.key(); }))
      seen.kinds.push_back(kind), seen.either &= either && either == EitherType(seen.kinds[0]);
    const auto merged = merged_.find({f.pc, i});
    if (merged == merged_.end()) continue;
    if (unbound) {
      v = merged->second.number();
      v.value = Emit({.op = ScalarOp::kConst, .type = v.type(), .id = -2});
    }
    if (merged->second.is == Is::kEither && EitherType(v) == EitherType(merged->second))
      v = AsEither(*this, std::move(v));
  }
}

MergedKinds Translator::Mixed() const {
  MergedKinds mixed;
  for (const auto& [place, seen] : kinds_seen_) {
    if (seen.other || seen.kinds.empty()) continue;
    if (seen.kinds.size() > 1 && seen.either && (!seen.mixes || hopes_.mixes))
      mixed[place] = Either(NewNumpy(*EitherType(seen.kinds[0]), -1), New(Is::kBool, -1));
    if (seen.kinds.size() == 1 && (seen.unbound || seen.kinds[0].is == Is::kEither)) mixed[place] = seen.kinds[0];
  }
  return mixed;
}

static const Val* FindEither(const Val& v) {
  if (v.is == Is::kEither) return &v;
  for (const Val& item : v.items)
    if (const Val* found = FindEither(item)) return found;
  return nullptr;
}

// Goes on with each of the two kinds that a float on the stack may be of, if there is one: the instruction must know.
bool Translator::Distinguish(const State& s) {
  const std::vector<Val>& stack = s.frames.back().stack;
  const Val* found = nullptr;
  for (auto v = stack.rbegin(); v != stack.rend() && !found; ++v) found = FindEither(*v);
  if (!found || Waiting(s)) return false;
  const Val one = *found;
  const auto known = [&](bool numpy) {
    State t = s;
    const std::function<void(Val&)> decide = [&](Val& v) {
      if (v.is == Is::kEither && OneObject(v.items[0], one.items[0])) {
        Val number = v.items[0];
        if (!numpy) number.is = number.dtype == DType::kInt64 ? Is::kInt : Is::kFloat, number.dtype = DType{};
        v = std::move(number);
      }
      for (Val& item : v.items) decide(item);
    };
    for (Frame& f : t.frames) {
      for (Val& v : f.locals) decide(v);
      for (Val& v : f.stack) decide(v);
    }
    return t;
  };
  Branch(Value(one.items[1]), known(true), known(false));
  return true;
}

// Do the next instructions make an exception and raise it, whatever comes, and does nothing here catch it?
static bool Raises(const bytecode::Code& code, int at) {
  constexpr int kMost = 40;
  for (int k = 0; k < kMost && at < code.size(); at += code.At(at).length, ++k) {
    const Instr& i = code.At(at);
    if (i.op == Op::kRaise) return !code.FindHandler(i.unit);
    if (code.FindHandler(i.unit) || IsJump(i.op) || i.op == Op::kReturnValue || i.op == Op::kReturnConst) return false;
  }
  return false;
}

void Translator::LeaveBefore(State s, const std::string& why) {
  const bool named = std::none_of(s.top().stack.begin(), s.top().stack.end(), [](const Val& v) { return Waiting(v); });
  if (s.frames.size() == 1 && named) ComputeAll(s);
  if (!Waiting(s)) return Leave(s, why, false);
  if (out_.why.empty()) out_.why = why;
  specials_ = {};  // all of the region is done again
  Emit({.op = ScalarOp::kExit, .exit = RegionExit()});
}

void Translator::Abandon(int from) {
  for (int b = from; b < static_cast<int>(code.blocks.size()); ++b) {
    const bool waits = std::any_of(work_.begin(), work_.end(), [&](const Work& w) { return w.block == b; });
    if (!waits) code.blocks[b] = {{.op = ScalarOp::kJump, .imm = b}};  // it may name values that are gone
  }
}

void Translator::ConditionalJump(State& s, const Instr& i, int condition, bool if_true) {
  State jumps = s, goes_on = s;
  goes_on.top().pc += i.length;
  const bool back = i.target <= s.top().pc;
  const int to = Way([&] {
    if (!back) {
      jumps.top().pc = i.target;
      return GoTo(jumps);
    }
    Jump(jumps, i, i.target);
  });
  const int on = Way(goes_on);
  Emit({.op = ScalarOp::kBranch, .a = condition, .other = if_true ? on : to, .imm = if_true ? to : on});
  ended_ = true;
}

void Translator::Block(State s) {
  masks_.clear();
  for (bool first = true;; first = false) {
    Frame& f = s.top();
    const bool branches = !first && (Target(f, f.pc) || (s.frames.size() == 1 && !loop_.Holds(f.pc)));
    const State before = s;
    const codegen::ScalarSpecials specials = specials_;
    const std::set<int> finite = finite_;
    const std::map<int, int> same = same_sizes_;
    ended_ = wrote_ = false;
    const int here = block, blocks = static_cast<int>(code.blocks.size()), exit = exit_;
    const size_t written = code.blocks[here].size(), fresh = fresh_.size(), computed = computed_.size(),
                 elements = elements_.size(), filled = filled_.size();
    try {
      if (branches) return GoTo(s);
      Step(s, f.code->At(f.pc));
    } catch (const Unsupported& u) {
      block = here;
      exit_ = exit;
      specials_ = specials;
      finite_ = finite;
      fresh_.resize(fresh);
      computed_.resize(computed);
      elements_.resize(elements);
      filled_.resize(filled);
      same_sizes_ = same;
      under_ = -1;
      code.blocks[here].resize(written);
      Abandon(blocks);
      if (Distinguish(before)) return;
      if (hopes_.transaction && Raises(*f.code, f.pc)) return void(Emit({.op = ScalarOp::kExit, .exit = UndoExit()}));
      return LeaveBefore(before, u.why + Line(before));
    }
    if (ended_) return;
    if (wrote_) NewRegion(s);
  }
}

// What a loop carries on may change its kind in the middle of a chunk: the rest is another loop then, of the other
// kind. That counts its rounds anew, so that a loop over a chunk is come to from before it alone, as LLVM wants loops.
void Translator::CountAnew() {
  const auto successors = [&](int b) {
    const ScalarInst& end = code.blocks[b].back();
    std::vector<int> to;
    if (end.op == ScalarOp::kJump || end.op == ScalarOp::kBranch) to.push_back(static_cast<int>(end.imm));
    if (end.op == ScalarOp::kBranch) to.push_back(end.other);
    return to;
  };
  for (auto [begins, counts] : chunks_) {
    std::vector<bool> inside(code.blocks.size());
    std::vector<int> todo = {begins};
    inside[counts] = true;
    while (!todo.empty()) {
      const int b = todo.back();
      todo.pop_back();
      if (inside[b]) continue;
      inside[b] = true;
      for (int to : successors(b)) todo.push_back(to);
    }
    for (int to : successors(counts)) {  // the ways from there
      inside[to] = true;
      for (int on : successors(to)) inside[on] = inside[on] || joins_.contains(on);
    }
    const auto redirect = [&](int from, int to) {
      bool any = false;
      for (size_t b = 0; b < inside.size(); ++b)
        if (ScalarInst& end = code.blocks[b].back(); !inside[b] && end.op == ScalarOp::kJump && end.imm == from)
          end.imm = to, any = true;
      return any;
    };
    redirect(begins, counts);
    for (size_t b = 0; b < inside.size(); ++b) {  // what adds a round before, and is common to both
      if (!inside[b] || code.blocks[b].back().op != ScalarOp::kJump || code.blocks[b].back().imm != begins) continue;
      if (b == static_cast<size_t>(counts) || !redirect(static_cast<int>(b), static_cast<int>(code.blocks.size())))
        continue;
      code.blocks.push_back(code.blocks[b]);
      code.blocks.back().back().imm = counts;
    }
  }
}

// Integers in the arrays that the code makes are what its stores have put there, and ScalarInst::small says so of
// reading them: but where a function that is called gets the address of one.
void Translator::KnowElements() {
  std::vector<bool> address(code.num_values);
  for (const auto& instructions : code.blocks)
    for (const ScalarInst& i : instructions)
      if (i.id >= 0) address[i.id] = i.type == ScalarType::kPtr && i.op != ScalarOp::kAddress;
  for (const auto& instructions : code.blocks)
    for (const ScalarInst& i : instructions) {
      const bool own = i.imm == reinterpret_cast<int64_t>(Made::New) || i.imm == reinterpret_cast<int64_t>(Made::Keep);
      if (i.op == ScalarOp::kCall && !own && std::ranges::any_of(i.args, [&](int v) { return address[v]; })) return;
    }
  for (auto& instructions : code.blocks)
    for (ScalarInst& i : instructions)
      if (i.op == ScalarOp::kLoad && i.dtype == DType::kInt64) i.small = i.array == kMadeArrays || Sees(i.array);
}

// Are the ints of this object such as AllSeen says, now, and worth a look whenever the code is entered?
bool Translator::Sees(int object) {
  if (!hopes_.seen || !code.apart || object < 0 || object >= static_cast<int>(out_.objects.size())) return false;
  ObjectSpec& spec = out_.objects[object];
  if (spec.seen || code.seen.contains(object)) return spec.seen;
  PyObject* array = spec.object.get();
  const int64_t bytes = spec.array && spec.cells >= 0 && array ? BytesOf(array, spec.dtype) : -1;
  if (bytes <= 0 || bytes > hopes_.seen - out_.seen) return false;  // one without elements tells nothing
  spec.natural = AllSeen(array, true);
  if (!spec.natural && !AllSeen(array, false)) return false;
  out_.seen += bytes;
  code.seen[object] = spec.natural;
  return spec.seen = true;
}

Translation Translator::Run() {
  out_.cells = kFirstCell;
  scratch = 1;
  rounds_ = Variable(ScalarType::kInt), others_ = Variable(ScalarType::kInt), serve_ = Variable(ScalarType::kInt);
  until_ = Variable(ScalarType::kInt);
  code.blocks.emplace_back();
  code.entries.push_back(0);
  State s = Entry();
  for (const Loop& loop : LoopsOf(*s.top().code)) heads_.insert(loop.start);
  block = 0;
  NewRegion(s);
  GoTo(s);
  while (!work_.empty()) {
    Work w = std::move(work_.front());
    work_.pop_front();
    block = current_ = w.block;
    stored_.assign(stored_.size(), false);
    elements_.clear();
    NewRegion(w.state);
    w.round ? Round(std::move(w.state)) : Block(std::move(w.state));
  }
  CountAnew();
  KnowElements();
  SplitMade(code);
  constexpr int64_t kForFew = 32;  // times as many rounds: of each loop a few that were not asked for, and elements
  if (hopes_.transaction) code.most_rounds = kForFew * kMostUndone * static_cast<int64_t>(1 + heads_.size());
  std::map<int, int> seen;
  out_.loops = innermost_ && Cycle(code.entries[0], seen);
  out_.apart = code.apart;
  out_.transaction = hopes_.transaction;
  out_.at_once = hopes_.transaction && hopes_.at_once;
  out_.status = code.status = hopes_.status && hopes_.transaction && !code.specials.empty() && !CallsOthers(code);
  out_.blocks = static_cast<int>(code.blocks.size()) - extra_blocks_;
  out_.code = std::move(code);
  out_.code.name = PyUnicode_AsUTF8(fj_code(frame_)->co_qualname);
  return std::move(out_);
}

}  // namespace framejit::capture::scalar
