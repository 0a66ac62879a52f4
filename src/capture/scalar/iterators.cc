// This file has the iterators: those over ranges, lists, arrays (also their rows) and tuples, and enumerate, zip and
// reversed of them.
#include "capture/scalar/iterators.h"

#include <algorithm>
#include <limits>

#include "capture/scalar/translator.h"
#include "frame/frame.h"

namespace framejit::capture::scalar {

namespace {

constexpr size_t kMostUnrolled = 8;
// Numbers of so short tuples and ranges are constants of their rounds; so often code stands in loops in such loops.
constexpr size_t kMostKept = 3, kMostCopies = 9;

Val Iterator(Is is, std::vector<Val> items) {
  Val it;
  it.is = is;
  it.items = std::move(items);
  return it;
}

}  // namespace

PyTypeObject* ListReverseIterator() {
  static PyTypeObject* type = [] {
    Ref list(PyList_New(0));
    Ref it(list ? PyObject_CallMethod(list.get(), "__reversed__", nullptr) : nullptr);
    return it ? Py_TYPE(it.get()) : (PyErr_Clear(), nullptr);
  }();
  return type;
}

static PyTypeObject* IteratorTypeOf(const Ref& letters) {
  const Ref it(letters ? PyObject_GetIter(letters.get()) : nullptr);
  return it ? Py_TYPE(it.get()) : (PyErr_Clear(), nullptr);
}

bool IsSequenceIterator(PyObject* o) {
  static PyTypeObject* const types[] = {&PySeqIter_Type, &PyListIter_Type,
                                        IteratorTypeOf(Ref(PyBytes_FromString("ab"))),
                                        IteratorTypeOf(Ref(PyUnicode_FromString("ab")))};
  return std::ranges::find(types, Py_TYPE(o)) != std::end(types);
}

void SetRange(PyObject* iterator, long next, long step, long left) {
  // Objects/rangeobject.c: these come last. Before them 3.11 has how many numbers were given.
  long* const numbers =
      reinterpret_cast<long*>(reinterpret_cast<char*>(iterator) + Py_TYPE(iterator)->tp_basicsize) - 3;
  for (long* given = numbers; given-- != reinterpret_cast<long*>(iterator + 1);) *given = 0;
  numbers[0] = next, numbers[1] = step, numbers[2] = left;
}

bool IteratorsAreKnown() {
  static const bool known = [] {
    const auto call = [](PyTypeObject* type, PyObject* of) {
      return Ref(of ? PyObject_CallOneArg(reinterpret_cast<PyObject*>(type), of) : nullptr);
    };
    const Ref range(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyRange_Type), "iii", 3, 20, 4));
    const Ref it(range ? PyObject_GetIter(range.get()) : nullptr);
    const Ref list(Py_BuildValue("[i,i,i,i,i]", 1, 2, 3, 4, 5));
    const Ref items(list ? PyObject_GetIter(list.get()) : nullptr);
    const Ref others(list ? PySeqIter_New(list.get()) : nullptr);
    const Ref tuple(list ? PyList_AsTuple(list.get()) : nullptr);
    const Ref of_tuple(tuple ? PyObject_GetIter(tuple.get()) : nullptr);
    const Ref bytes(PyBytes_FromString("abcd")), text(PyUnicode_FromString("abcd"));
    const Ref of_bytes(bytes ? PyObject_GetIter(bytes.get()) : nullptr);
    const Ref of_text(text ? PyObject_GetIter(text.get()) : nullptr);
    const Ref back = call(&PyReversed_Type, list.get()), back_of_tuple = call(&PyReversed_Type, tuple.get());
    const Ref count = call(&PyEnum_Type, list.get()), zip = call(&PyZip_Type, list.get());
    for (int i = 0; i < 2; ++i)
      for (const Ref* r : {&it, &items, &others, &of_tuple, &of_bytes, &of_text, &back, &back_of_tuple, &count, &zip})
        if (!*r || !Ref(PyIter_Next(r->get()))) return PyErr_Clear(), false;
    long next, step, left;
    bool good = fj_range_state(it.get(), &next, &step, &left) && next == 11 && step == 4 && left == 3;
    const Py_ssize_t given =
        PyRangeIter_Type.tp_basicsize - static_cast<Py_ssize_t>(sizeof(PyObject) + 3 * sizeof(long));
    if (!good || given % sizeof(long) || given < 0 || given > static_cast<Py_ssize_t>(sizeof(long))) return false;
    SetRange(it.get(), 7, -2, 5);
    good = Ref(PyIter_Next(it.get())) && fj_range_state(it.get(), &next, &step, &left) && next == 5 && step == -2 &&
           left == 4;
    const auto at = [](PyObject* o, Py_ssize_t index, PyObject* seq) {
      const auto* s = reinterpret_cast<SeqIter*>(o);
      return s->index == index && s->seq == seq;
    };
    good &= at(items.get(), 2, list.get()) && at(others.get(), 2, list.get()) && at(of_tuple.get(), 2, tuple.get());
    good &= at(of_bytes.get(), 2, bytes.get()) && at(of_text.get(), 2, text.get());
    good &= at(back.get(), 2, list.get()) && at(back_of_tuple.get(), 2, tuple.get());
    good &= Py_TYPE(back.get()) == ListReverseIterator() && Py_TYPE(back_of_tuple.get()) == &PyReversed_Type;
    const auto* e = reinterpret_cast<EnumerateIter*>(count.get());
    good &= e->index == 2 && !e->longindex && Py_TYPE(e->iterator) == &PyListIter_Type;
    if (!good) return false;
    const auto* z = reinterpret_cast<ZipIter*>(zip.get());
    return at(e->iterator, 2, list.get()) && z->size == 1 && PyTuple_CheckExact(z->iterators) &&
           PyTuple_GET_SIZE(z->iterators) == 1 && at(PyTuple_GET_ITEM(z->iterators, 0), 2, list.get()) && !z->strict;
  }();
  return known;
}

// --- made
// ------------------------------------------------------------------------------------------------------------
Val Translator::Range(const std::vector<Val>& args) {
  if (args.empty() || args.size() > 3) throw Unsupported{"range"};
  Val v = Numbers(Is::kRange, 3);
  for (const Val& a : args)
    if (!a.number().integral() || (a.truth() && !a.python())) throw Unsupported{"range"};
  v.items[0] = args.size() == 1 ? IntConstant(*this, 0) : ToInt(*this, args[0].number());
  v.items[1] = ToInt(*this, args[args.size() == 1 ? 0 : 1].number());
  v.items[2] = args.size() == 3 ? ToInt(*this, args[2].number()) : IntConstant(*this, 1);
  v.unit = args.size() < 3 || args[2].constant == 1;
  const auto small = [](const Val& x) {
    constexpr int64_t kFew = 8;
    return x.constant && *x.constant >= -kFew && *x.constant <= kFew;
  };
  v.few = small(v.items[0]) && small(v.items[1]) && small(v.items[2]);
  if (!v.unit) ExitIf(Compare(ScalarOp::kEq, Value(v.items[2]), Int(0)));
  return v;
}

// `alone`: no other iterator goes on together with it.
Val Translator::RangeIterator(const Val& v, bool alone) {
  Val it = Numbers(Is::kRangeIter, 3);
  it.unit = v.unit;
  it.few = v.few && alone;
  const int start = Value(v.items[0]), stop = Value(v.items[1]), step = Value(v.items[2]);
  const int up = Compare(ScalarOp::kGt, step, Int(0));
  const int any = Op(ScalarOp::kSelect, ScalarType::kBool, up, Compare(ScalarOp::kLt, start, stop),
                     Compare(ScalarOp::kGt, start, stop));
  int distance = Over(ScalarOp::kSubOver, stop, start);
  if (!v.unit) {
    const int one = Op(ScalarOp::kSelect, ScalarType::kInt, up, Int(1), Int(-1));
    ExitIf(Compare(ScalarOp::kEq, step, Int(0)));
    ExitIf(Compare(ScalarOp::kEq, step, Int(std::numeric_limits<int64_t>::min())));
    const int last = Op(ScalarOp::kSub, ScalarType::kInt, distance, one);
    distance = Op(ScalarOp::kAdd, ScalarType::kInt, Op(ScalarOp::kDivTrunc, ScalarType::kInt, last, step), Int(1));
  }
  it.items[0] = New(Is::kInt, start);
  it.items[1] = v.unit ? IntConstant(*this, 1) : New(Is::kInt, step);
  it.items[2] = New(Is::kInt, v.unit ? stop : Op(ScalarOp::kSelect, ScalarType::kInt, any, distance, Int(0)));
  if (!alone) return it;
  if (v.unit && v.few) it.items.push_back(it.items[2]);
  if (!v.items[2].constant) return it;
  const bool rises = *v.items[2].constant > 0;
  const Val& end = v.items[rises ? 0 : 1];  // none of its numbers is less, or as little
  const int64_t least = rises ? 0 : -1;
  it.natural = end.constant ? *end.constant >= least : hopes_.natural;
  if (it.natural && !end.constant) ExitIf(Compare(ScalarOp::kLt, Value(end), Int(least)));
  return it;
}

// A range of very few numbers that are known, as a tuple of them: each round is code of its own, in which its number is
// a constant.
static std::optional<Val> Unrolled(Builder& b, const State& s, const Val& v) {
  if (v.is != Is::kRange || !v.few) return std::nullopt;
  for (const Val& x : v.items)
    if (!x.constant) return std::nullopt;
  size_t copies = 1;
  for (const Frame& f : s.frames)
    for (const Val& it : f.stack)
      if (it.is == Is::kTupleIter) copies *= it.items[0].items.size();
  const int64_t start = *v.items[0].constant, stop = *v.items[1].constant, step = *v.items[2].constant;
  std::vector<Val> numbers;
  for (int64_t k = start; step != 0 && (step > 0 ? k < stop : k > stop); k += step) {
    if (numbers.size() == kMostKept) return std::nullopt;
    numbers.push_back(IntConstant(b, k));
    numbers.back().few = true;
  }
  if (numbers.empty() || copies * numbers.size() > kMostCopies) return std::nullopt;
  Val it = Iterator(Is::kTupleIter, {Tuple(std::move(numbers))});
  it.node = 0;
  it.few = true;
  return it;
}

Val Translator::IteratorOf(const Val& v, bool alone) {
  if (v.iterator()) return v;
  if (v.is == Is::kRange) return RangeIterator(v, alone);
  if (v.is == Is::kTuple) {
    if (v.items.size() > kMostUnrolled) throw Unsupported{"an iteration over a large tuple"};
    Val it = Iterator(Is::kTupleIter, {v});
    it.node = 0;
    if (std::all_of(v.items.begin(), v.items.end(), [](const Val& x) { return x.is == Is::kInt && x.constant; }))
      for (Val& item : it.items[0].items) item.few = hopes_.unrolls && v.items.size() <= kMostKept;
    return it;
  }
  if (!IsSequence(v) && (!IsArray(v) || v.is == Is::kDeferred)) throw Unsupported{"an iteration"};
  if (v.is == Is::kObject) UseArray(v.object);
  Val it = Iterator(Is::kSeqIter, {IntConstant(*this, 0), v});
  it.natural = true;
  return it;
}

void Translator::GetIter(State& s, const Instr& i) {
  if (s.top().stack.back().is == Is::kDeferred) ComputeAll(s);
  const Val v = Pop(s);
  const std::optional<Val> unrolled = hopes_.unrolls ? Unrolled(*this, s, v) : std::nullopt;
  unrolled_ |= unrolled.has_value();
  Push(s, unrolled ? *unrolled : IteratorOf(v, true));
  Next(s, i);
}

std::optional<Val> Translator::CallIterator(PyTypeObject* type, const std::vector<Val>& args) {
  if (type == &PyEnum_Type && (args.size() == 1 || (args.size() == 2 && args[1].is == Is::kInt))) {
    const Val start = args.size() == 2 ? args[1] : IntConstant(*this, 0);
    Val it = Iterator(Is::kEnumerate, {start, IteratorOf(args[0], false)});
    it.natural = start.constant && *start.constant >= 0 && *start.constant < int64_t{1} << 32;
    return it;
  }
  if (type == &PyZip_Type && !args.empty() && args.size() <= 4) {
    std::vector<Val> all;
    for (const Val& v : args) all.push_back(IteratorOf(v, false));
    return Iterator(Is::kZip, std::move(all));
  }
  if (type != &PyReversed_Type || args.size() != 1) return std::nullopt;
  if (args[0].is == Is::kRange) {
    const Val it = RangeIterator(args[0], false);
    const int start = Value(it.items[0]), step = Value(it.items[1]);
    int left = Value(it.items[2]);
    if (it.unit) {
      left = Op(ScalarOp::kSub, ScalarType::kInt, left, start);
      left = Op(ScalarOp::kSelect, ScalarType::kInt, Compare(ScalarOp::kGt, left, Int(0)), left, Int(0));
    }
    const int last = Op(ScalarOp::kMul, ScalarType::kInt, Op(ScalarOp::kSub, ScalarType::kInt, left, Int(1)), step);
    Val back = Numbers(Is::kRangeIter, 3);
    back.items[0] = New(Is::kInt, Op(ScalarOp::kAdd, ScalarType::kInt, start, last));
    back.items[1] = New(Is::kInt, Op(ScalarOp::kSub, ScalarType::kInt, Int(0), step));
    back.items[2] = New(Is::kInt, left);
    return back;
  }
  if (!IsSequence(args[0]) && (!IsArray(args[0]) || args[0].is == Is::kDeferred)) throw Unsupported{"an iteration"};
  const int last = Op(ScalarOp::kSub, ScalarType::kInt, Length(args[0]), Int(1));
  return Iterator(Is::kBackIter, {New(Is::kInt, last), args[0]});
}

// --- gone through
// ------------------------------------------------------------------------------------------------------------
bool Translator::IsSequence(const Val& v) const {
  return v.is == Is::kObject && out_.objects[v.object].sequence();
}

int Translator::Length(const Val& v) {
  if (IsSequence(v)) return Size(v.object, 0);
  return PartOf(v).sizes[0];
}

Val Translator::ItemAt(const Val& of, int index) {
  if (IsSequence(of)) return ListItem(of.object, index);
  return ItemOf(Index(PartOf(of), New(Is::kInt, index), /*within=*/true));
}

// Is there another item?
int Translator::More(const Val& it) {
  switch (it.is) {
    case Is::kRangeIter:
      return it.unit ? Compare(ScalarOp::kLt, Value(it.items[0]), Value(it.items[2]))
                     : Compare(ScalarOp::kGt, Value(it.items[2]), Int(0));
    case Is::kSeqIter: return Compare(ScalarOp::kLt, Value(it.items[0]), Length(it.items[1]));
    case Is::kBackIter: return Compare(ScalarOp::kBelow, Value(it.items[0]), Length(it.items[1]));
    case Is::kTupleIter: return Flag(!Ended(it));
    case Is::kEnumerate: return More(it.items[1]);
    case Is::kZip: {
      int more = More(it.items[0]);
      for (size_t i = 1; i < it.items.size(); ++i)
        more = Op(ScalarOp::kAnd, ScalarType::kBool, more, More(it.items[i]));
      return more;
    }
    default: throw Unsupported{"an iterator"};
  }
}

// Is it known how many there are, whatever the program does?
bool Translator::Counted(const Val& it) const {
  switch (it.is) {
    case Is::kRangeIter: return true;
    case Is::kSeqIter:
    case Is::kBackIter: return !IsSequence(it.items[1]) || out_.objects[it.items[1].object].letters();
    case Is::kEnumerate: return Counted(it.items[1]);
    case Is::kZip: return std::all_of(it.items.begin(), it.items.end(), [&](const Val& v) { return Counted(v); });
    default: return false;
  }
}

int Translator::Left(const Val& it) {
  const auto distance = [&](int from, int to) {
    const int left = Op(ScalarOp::kSub, ScalarType::kInt, to, from);
    return Op(ScalarOp::kSelect, ScalarType::kInt, Compare(ScalarOp::kLt, from, to), left, Int(0));
  };
  switch (it.is) {
    case Is::kRangeIter: return it.unit ? distance(Value(it.items[0]), Value(it.items[2])) : Value(it.items[2]);
    case Is::kSeqIter: return distance(Value(it.items[0]), Length(it.items[1]));
    case Is::kBackIter: return Op(ScalarOp::kAdd, ScalarType::kInt, Value(it.items[0]), Int(1));
    case Is::kEnumerate: return Left(it.items[1]);
    default: {
      int least = Left(it.items[0]);
      for (size_t i = 1; i < it.items.size(); ++i) least = Least(least, Left(it.items[i]));
      return least;
    }
  }
}

int Translator::Least(int a, int b) {
  return Op(ScalarOp::kSelect, ScalarType::kInt, Compare(ScalarOp::kLt, a, b), a, b);
}

// Known to have no more.
bool Translator::Ended(const Val& it) {
  if (it.is == Is::kTupleIter) return it.node >= static_cast<int>(it.items[0].items.size());
  return (it.is == Is::kEnumerate || it.is == Is::kZip) && std::any_of(it.items.begin(), it.items.end(), Ended);
}

// The next one, where there is one.
Val Translator::Take(Val& it) {
  const auto natural = [&](int v) {
    Emit({.op = ScalarOp::kAssume, .a = Compare(ScalarOp::kGe, v, Int(0))});
    return v;
  };
  const auto then = [&](ScalarOp op, int v, int by) { return New(Is::kInt, Op(op, ScalarType::kInt, v, by)); };
  switch (it.is) {
    case Is::kRangeIter: {
      const int next = Value(it.items[0]), step = Value(it.items[1]), last = Value(it.items[2]);
      const int now =
          it.natural ? Op(ScalarOp::kWithin, ScalarType::kInt, natural(next), Int(std::numeric_limits<int64_t>::max()))
                     : next;
      it.items[0] = it.unit ? then(ScalarOp::kNext, next, -1) : then(ScalarOp::kAdd, next, step);
      if (!it.unit) {
        it.items[1] = New(Is::kInt, step);
        it.items[2] = then(ScalarOp::kSub, last, Int(1));
      }
      return New(Is::kInt, now);
    }
    case Is::kSeqIter: {
      const int index = natural(Value(it.items[0]));
      it.items[0] = then(ScalarOp::kNext, index, -1);
      return ItemAt(it.items[1], index);
    }
    case Is::kBackIter: {
      const int index = Value(it.items[0]);
      it.items[0] = then(ScalarOp::kSub, index, Int(1));
      return ItemAt(it.items[1], index);
    }
    case Is::kTupleIter: return it.items[0].items[it.node++];
    case Is::kEnumerate: {
      const int count = Value(it.items[0]);
      if (it.natural) natural(count);
      Val item = Take(it.items[1]);
      it.items[0] =
          it.natural ? then(ScalarOp::kNext, count, -1) : New(Is::kInt, Over(ScalarOp::kAddOver, count, Int(1)));
      return Tuple({New(Is::kInt, count), std::move(item)});
    }
    case Is::kZip: {
      std::vector<Val> items;
      for (Val& one : it.items) items.push_back(Take(one));
      return Tuple(std::move(items));
    }
    default: throw Unsupported{"an iterator"};
  }
}

// Of an innermost loop inside another one, of which few rounds are expected: looking for others in it would cost more
// than its rounds do, and what stays the same in all runs of it would not be seen to.
bool Translator::Brief(const State& s) const {
  const Frame& f = s.frames.back();
  return hopes_.brief && s.frames.size() == 1 && f.pc != loop_.start && !hopes_.longs.contains(f.pc) &&
         Innermost(*f.code, f.pc);
}

// Takes the next of numbers one by one. So many are gone through at once, then others get their turn: a loop in a loop.
void Translator::NextNumber(State& s, const Instr& i, const State& done) {
  const Val& it = s.top().stack.back();
  const int next = Value(it.items[0]);
  if (it.items.size() == 4) {
    const int more = Compare(ScalarOp::kLt, next, Value(it.items[3]));
    const int yes = Way([&] {
      if (it.natural) {
        Emit({.op = ScalarOp::kAssume, .a = Compare(ScalarOp::kGe, next, Int(0))});
        Emit({.op = ScalarOp::kAssume, .a = Compare(ScalarOp::kBelow, next, Value(it.items[2]))});
      }
      State on = s;
      const int now = it.natural ? Op(ScalarOp::kWithin, ScalarType::kInt, next, Value(it.items[2])) : next;
      on.top().stack.back().items[0] = New(Is::kInt, Op(ScalarOp::kNext, ScalarType::kInt, now));
      Push(on, New(Is::kInt, now));
      on.top().pc += i.length;
      GoTo(on);
    });
    const int no = it.few || it.brief || hopes_.transaction ? Way(done) : Way([&] {
      State on = s;
      on.top().stack.back().items.pop_back();
      GoTo(on);
      chunks_[current_] = leads_to_[current_].back();
      leads_to_[current_].pop_back();  // this is no round
    });
    Emit({.op = ScalarOp::kBranch, .a = more, .other = no, .imm = yes});
    return;
  }
  const int stop = Value(it.items[2]);
  const bool brief = hopes_.transaction ? !Outermost(s) : Brief(s);
  const auto serve = [&] {
    const int left = Op(ScalarOp::kSub, ScalarType::kInt, stop, next);
    return ServeSometimes(s, left, stop, [&] {
      if (!brief) return Op(ScalarOp::kAdd, ScalarType::kInt, next, Least(left, Int(kServed)));
      const int exit = MakeExit(region_, region_stored_, "");
      out_.exits[exit].many = s.frames.back().pc;
      Emit({.op = ScalarOp::kExitIf, .a = Compare(ScalarOp::kGt, left, Int(kServed)), .exit = exit});
      return stop;
    });
  };
  // LLVM knows of a first round where nothing but that is asked right before the loop.
  const int before = brief ? serve() : -1;
  const int more = Compare(ScalarOp::kLt, next, stop);
  const int yes = Way([&] {
    const int limit = brief ? before : serve();
    State on = s;
    on.top().stack.back().brief = brief;
    if (!brief) Emit({.op = ScalarOp::kAssume, .a = Compare(ScalarOp::kLt, next, limit)});  // there is a first round
    on.top().stack.back().items.push_back(New(Is::kInt, limit));
    GoTo(on);
  });
  Emit({.op = ScalarOp::kBranch, .a = more, .other = Way(done), .imm = yes});
}

// The number that each item adds one to, if there is one: it tells by itself when a chunk has ended.
static const Val* Place(const Val& it) {
  switch (it.is) {
    case Is::kSeqIter: return &it.items[0];
    case Is::kRangeIter: return it.unit ? &it.items[0] : nullptr;
    case Is::kEnumerate: return Place(it.items[1]);
    case Is::kZip: return Place(it.items[0]);
    default: return nullptr;
  }
}

// The same for other iterators whose number of items is known.
void Translator::NextOfChunk(State& s, const Instr& i, const State& done) {
  const Val& it = s.top().stack.back();
  if (it.is == Is::kChunk) {
    const Val* place = Place(it.items[0]);
    const int left = Value(it.items[1]);
    const int more = place ? Compare(ScalarOp::kLt, Value(*place), left) : Compare(ScalarOp::kGt, left, Int(0));
    const int yes = Way([&] {
      State on = s;
      Val& chunk = on.top().stack.back();
      Val item = Take(chunk.items[0]);
      if (!place) chunk.items[1] = New(Is::kInt, Op(ScalarOp::kSub, ScalarType::kInt, left, Int(1)));
      Push(on, std::move(item));
      on.top().pc += i.length;
      GoTo(std::move(on));
    });
    const int no = Way([&] {
      State on = s;
      on.top().stack.back() = Val(it.items[0]);
      GoTo(std::move(on));
      chunks_[current_] = leads_to_[current_].back();
      leads_to_[current_].pop_back();  // this is no round
    });
    Emit({.op = ScalarOp::kBranch, .a = more, .other = no, .imm = yes});
    return;
  }
  const int left = Left(it);
  const int more = Compare(ScalarOp::kGt, left, Int(0));
  const int yes = Way([&] {
    const Val* place = Place(it);
    const int at = place ? Value(*place) : -1;
    const auto behind = [&](int count) { return place ? Op(ScalarOp::kAdd, ScalarType::kInt, at, count) : count; };
    const int until = ServeSometimes(s, left, behind(left), [&] { return behind(Least(left, Int(kServed))); });
    State on = s;
    Val chunk;
    chunk.is = Is::kChunk;
    chunk.items = {it, New(Is::kInt, until)};
    on.top().stack.back() = std::move(chunk);
    GoTo(std::move(on));
  });
  Emit({.op = ScalarOp::kBranch, .a = more, .other = Way(done), .imm = yes});
}

// Of which kind a float is that nobody asks for is no reason for code of its own: one of either kind. One that the code
// writes to no more is of one kind anyway.
void Translator::ForgetKinds(Frame& f, const std::vector<bool>& live) {
  for (int i = 0; i < f.nlocals(); ++i) {
    Val& v = f.locals[i];
    if (live[i] || changed_[i] < 0 || (v.is != Is::kFloat && (v.is != Is::kNumpy || v.dtype != DType::kFloat64)))
      continue;
    v = AsEither(*this, std::move(v));
  }
}

void Translator::ForIter(State& s, const Instr& i) {
  State done = s;
  Pop(done);
  done.top().pc = i.target;
  if (s.frames.size() == 1 && loop_.Holds(i.target)) {
    const auto [live, made] = live_.try_emplace(i.target);
    if (made) live->second = LiveAt(*s.top().code, i.target, s.top().nlocals());
    ForgetKinds(done.top(), live->second);
  }
  ended_ = true;
  const Val& it = s.top().stack.back();
  if (it.is == Is::kRangeIter && it.unit) return NextNumber(s, i, done);
  if (it.is == Is::kChunk || Counted(it)) return NextOfChunk(s, i, done);
  if (Ended(it)) return GoTo(std::move(done));
  const int more = More(it);
  const int yes = Way([&] {
    State on = s;
    Push(on, Take(on.top().stack.back()));
    on.top().pc += i.length;
    GoTo(std::move(on));
  });
  Emit({.op = ScalarOp::kBranch, .a = more, .other = Way(done), .imm = yes});
}

}  // namespace framejit::capture::scalar
