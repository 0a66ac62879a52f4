// See the header.
#include "capture/scalar_translate.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <set>

#include "capture/proxy.h"
#include "capture/session.h"
#include "tensor/numpy_api.h"

namespace framejit::capture::scalar {
namespace {

using bytecode::Instr;
using bytecode::Op;

constexpr int kMostBlocks = 600, kMostDepth = 3;

struct SeqIter {  // Objects/iterobject.c and listobject.c
  PyObject_HEAD Py_ssize_t index;
  PyObject* seq;
};

bool Numeric(DType t) {
  return t == DType::kFloat32 || t == DType::kFloat64 || (t < DType::kFloat16 && t != DType::kUInt64);
}

Val DescribeArray(PyObject* o, DType t, int rank, bool unit, std::vector<ObjectSpec>& objects) {
  for (size_t i = 0; i < objects.size(); ++i)
    if (objects[i].object.get() == o && objects[i].array && !objects[i].fixed) return Object(static_cast<int>(i));
  ObjectSpec spec{.object = Borrow(o), .array = true, .dtype = t, .rank = rank, .unit = unit};
  objects.push_back(std::move(spec));
  return Object(static_cast<int>(objects.size()) - 1);
}

Val Unknown() {
  Val v;
  v.is = Is::kFrame;
  return v;
}

// For each number in it.
template <typename F>
void Leaves(Val& v, F f) {
  if (v.scalar()) return f(v);
  for (Val& item : v.items) Leaves(item, f);
}

Val Numbers(Is is, int n) {
  Val v;
  v.is = is;
  v.items.resize(n, New(Is::kInt, -1));
  return v;
}

Val DescribeProxy(PyObject* o, std::vector<ObjectSpec>& objects) {
  const TensorMeta& m = AsTensor(o)->session->meta(AsTensor(o)->id);
  if (m.framework != Framework::kNumpy || !Numeric(m.dtype)) return Unknown();
  if (m.is_scalar) return NewNumpy(m.dtype, -1);
  return DescribeArray(o, m.dtype, static_cast<int>(m.sizes.size()), false, objects);
}

Val DescribeNumpy(PyObject* o, std::vector<ObjectSpec>& objects) {
  const tensor::NumpyApi* api = tensor::Numpy();
  if (!api) return {};
  if (Py_TYPE(o) == api->array) {
    const tensor::NumpyArray* a = tensor::AsArray(o);
    const auto* descr = reinterpret_cast<const tensor::NumpyDescr*>(a->descr);
    const std::optional<DType> t = tensor::FromTypeNum(descr->type_num);
    const bool native = descr->byteorder == '=' || descr->byteorder == '|';
    if (!t || !Numeric(*t) || !native || !(a->flags & tensor::kNpyAligned) || a->nd < 1 || a->nd > 8) return Unknown();
    return DescribeArray(o, *t, a->nd, a->strides[a->nd - 1] == DTypeSize(*t), objects);
  }
  if (!PyType_IsSubtype(Py_TYPE(o), api->generic)) return {};
  const std::optional<DType> t = tensor::ScalarDType(*api, Py_TYPE(o));
  return t && Numeric(*t) ? NewNumpy(*t, -1) : Unknown();
}

// Of numbers of one kind: what its first item is.
Val DescribeList(PyObject* o, std::vector<ObjectSpec>& objects) {
  for (size_t i = 0; i < objects.size(); ++i)
    if (objects[i].object.get() == o && objects[i].list) return Object(static_cast<int>(i));
  PyObject* first = PyList_GET_SIZE(o) ? PyList_GET_ITEM(o, 0) : nullptr;
  if (!first || (!PyLong_CheckExact(first) && !PyFloat_CheckExact(first))) return Unknown();
  ObjectSpec spec{.object = Borrow(o), .list = true, .dtype = PyFloat_CheckExact(first) ? DType::kFloat64 : DType::kInt64};
  objects.push_back(std::move(spec));
  return Object(static_cast<int>(objects.size()) - 1);
}

Val DescribeIterator(PyObject* o, std::vector<ObjectSpec>& objects) {
  long next, step, left;
  if (fj_range_state(o, &next, &step, &left)) {
    Val v = Numbers(Is::kRangeIter, 3);
    v.unit = step == 1;
    return v;
  }
  if (Py_TYPE(o) != &PySeqIter_Type && Py_TYPE(o) != &PyListIter_Type) return {};
  PyObject* seq = reinterpret_cast<SeqIter*>(o)->seq;
  const Val over = seq ? Describe(seq, objects) : Unknown();
  if (over.is != Is::kObject) return Unknown();
  const ObjectSpec& spec = objects[over.object];
  if (!spec.list && !(spec.array && spec.rank == 1)) return Unknown();
  Val v = Numbers(Is::kSeqIter, 1);
  v.object = over.object;
  return v;
}

}  // namespace

Val Describe(PyObject* o, std::vector<ObjectSpec>& objects) {
  if (!o) return {};
  if (IsLazy(o)) {
    auto* lazy = reinterpret_cast<Lazy*>(o);
    return Describe(lazy->resolved ? lazy->resolved : lazy->value, objects);
  }
  if (IsTensor(o)) return DescribeProxy(o, objects);
  if (PyBool_Check(o)) return New(Is::kBool, -1);
  if (PyLong_CheckExact(o)) {
    int overflow;
    PyLong_AsLongLongAndOverflow(o, &overflow);
    return overflow ? Unknown() : New(Is::kInt, -1);
  }
  if (IsSymInt(o)) return New(Is::kInt, -1);
  if (PyFloat_CheckExact(o) || IsSymFloat(o)) return New(Is::kFloat, -1);
  if (Val v = DescribeNumpy(o, objects); v.is != Is::kNull) return v;
  if (Val v = DescribeIterator(o, objects); v.is != Is::kNull) return v;
  if (PyList_CheckExact(o)) return DescribeList(o, objects);
  if (PyTuple_CheckExact(o) && PyTuple_GET_SIZE(o) >= 1 && PyTuple_GET_SIZE(o) <= 4) {
    std::vector<Val> items;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) items.push_back(Describe(PyTuple_GET_ITEM(o, i), objects));
    if (std::all_of(items.begin(), items.end(), [](const Val& v) { return v.scalar(); })) return Tuple(std::move(items));
  }
  for (size_t i = 0; i < objects.size(); ++i)
    if (objects[i].object.get() == o && !objects[i].array && !objects[i].list && !objects[i].fixed)
      return Object(static_cast<int>(i));
  objects.push_back({.object = Borrow(o)});
  return Object(static_cast<int>(objects.size()) - 1);
}

std::vector<Loop> LoopsOf(const bytecode::Code& code) {
  std::vector<Loop> loops;
  for (int at = 0; at < code.size(); ++at) {
    const Instr& i = code.At(at);
    if (!i.length || i.target < 0 || i.target > at || i.op == Op::kCallConstNames || i.op == Op::kLoadFastPair ||
        i.op == Op::kStoreFastPair || i.op == Op::kStoreFastLoadFast)
      continue;
    auto known = std::find_if(loops.begin(), loops.end(), [&](const Loop& l) { return l.start == i.target; });
    if (known == loops.end()) known = loops.insert(loops.end(), {i.target, 0, 0});
    known->end = std::max(known->end, at + i.length);
  }
  for (Loop& l : loops) {
    l.enter = l.start;
    for (int at = std::max(0, l.start - 4); at < l.start; ++at)
      if (code.At(at).length && at + code.At(at).length == l.start && code.At(at).op == Op::kGetIter) l.enter = at;
  }
  std::sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) { return a.end - a.start < b.end - b.start; });
  return loops;
}

namespace {

bool IsJump(Op op) {
  switch (op) {
    case Op::kJump:
    case Op::kPopJumpIfFalse:
    case Op::kPopJumpIfTrue:
    case Op::kPopJumpIfNone:
    case Op::kPopJumpIfNotNone:
    case Op::kJumpIfFalseOrPop:
    case Op::kJumpIfTrueOrPop:
    case Op::kForIter: return true;
    default: return false;
  }
}

// Locals that are read before they are written from `start` on; whatever may raise may go to its handler.
std::vector<bool> LiveAt(const bytecode::Code& code, int start, int num_locals) {
  std::vector<std::vector<bool>> live(code.size() + 1, std::vector<bool>(num_locals));
  const auto join = [](std::vector<bool>& to, const std::vector<bool>& from) {
    for (size_t i = 0; i < to.size(); ++i)
      if (from[i]) to[i] = true;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (int at = code.size() - 1; at >= 0; --at) {
      const Instr& i = code.At(at);
      if (!i.length) continue;
      std::vector<bool> now(num_locals);
      if (i.op != Op::kJump && i.op != Op::kReturnValue && i.op != Op::kReturnConst && i.op != Op::kReraise &&
          i.op != Op::kRaise)
        join(now, live[std::min(at + i.length, code.size())]);
      if (IsJump(i.op) || i.op == Op::kSend) join(now, live[i.target]);
      if (i.op == Op::kStoreFast || i.op == Op::kStoreFastLoadFast || i.op == Op::kStoreFastPair) now[i.arg] = false;
      if (i.op == Op::kStoreFastPair) now[i.target] = false;
      if (i.op == Op::kStoreFastLoadFast && i.target != i.arg) now[i.target] = true;
      if (i.op == Op::kLoadFast || i.op == Op::kLoadFastAndClear || i.op == Op::kLoadFastPair ||
          i.op == Op::kDeleteFast || i.op == Op::kLoadClosure || i.op == Op::kLoadDeref || i.op == Op::kMakeCell)
        now[i.arg] = true;
      if (i.op == Op::kLoadFastPair) now[i.target] = true;
      if (const bytecode::Handler* h = code.FindHandler(i.unit)) join(now, live[h->target]);
      if (now != live[at]) live[at] = now, changed = true;
    }
  }
  return live[start];
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

struct NotInline {  // what was called must be left to Python as a whole
  int pc;
};

std::string FunctionName(PyObject* f) {  // "module.name" of a function of C
  if (!PyCFunction_CheckExact(f)) return "";
  PyObject* self = PyCFunction_GET_SELF(f);
  if (!self || !PyModule_CheckExact(self)) return "";
  const char* module = PyModule_GetName(self);
  if (!module) return PyErr_Clear(), "";
  return std::string(module) + "." + reinterpret_cast<PyCFunctionObject*>(f)->m_ml->ml_name;
}

int64_t ListInt(PyObject* list, int64_t index, int64_t* out) {
  PyObject* o = PyList_GET_ITEM(list, index);
  if (!PyLong_CheckExact(o)) return 0;
  int overflow;
  *out = PyLong_AsLongLongAndOverflow(o, &overflow);
  return !overflow;
}
int64_t ListFloat(PyObject* list, int64_t index, double* out) {
  PyObject* o = PyList_GET_ITEM(list, index);
  if (!PyFloat_CheckExact(o)) return 0;
  *out = PyFloat_AS_DOUBLE(o);
  return 1;
}

class Translator final : Builder {
 public:
  Translator(FjFrame* frame, const Loop& loop, int from, const std::set<int>& not_inline)
      : frame_(frame), loop_(loop), from_(from), not_inline_(not_inline) {}

  Translation Run() {
    out_.cells = 2;  // of rounds, and what helpers write to
    scratch = 1;
    rounds_ = Variable(ScalarType::kInt);
    code.blocks.emplace_back();
    code.entries.push_back(0);
    State s = Entry();
    block = 0;
    GoTo(s);
    while (!work_.empty()) {
      auto [at, state] = std::move(work_.front());
      work_.pop_front();
      block = current_ = at;
      stored_.assign(stored_.size(), false);
      Block(std::move(state));
    }
    std::map<int, int> seen;
    out_.loops = Cycle(code.entries[0], seen);
    out_.code = std::move(code);
    out_.code.name = PyUnicode_AsUTF8(fj_code(frame_)->co_qualname);
    return std::move(out_);
  }

 private:
  // --- the entry -------------------------------------------------------------------------------------------------------
  State Entry() {
    Frame f;
    f.co = fj_code(frame_);
    f.code = bytecode::Code::Of(f.co);
    f.globals = fj_globals(frame_), f.builtins = fj_builtins(frame_);
    f.pc = from_;
    const int n = fj_nlocalsplus(frame_);
    f.locals.resize(n, Unknown());
    stored_.resize(n), changed_.resize(n, -1), touched_.resize(n);
    Scan(*f.code);
    const std::vector<bool> live = LiveAt(*f.code, loop_.start, n);
    PyObject** slots = fj_localsplus(frame_);
    for (int i = 0; i < n; ++i) {
      if (!touched_[i]) continue;
      PyObject* o = slots[i];
      if (o && IsLazy(o)) o = reinterpret_cast<Lazy*>(o)->value;
      if (o && PyCell_Check(o)) o = PyCell_GET(o);
      Val v = Describe(slots[i] && IsLazy(slots[i]) && !PyCell_Check(o ? o : Py_None) ? slots[i] : o, out_.objects);
      f.locals[i] = Receive(v, out_.locals, i, i);
      out_.locals.back().live = live[i];
    }
    for (int i = 0; i < fj_stack_depth(frame_); ++i)
      f.stack.push_back(Receive(Describe(slots[n + i], out_.objects), out_.stack, i, n + i));
    State s;
    s.frames.push_back(std::move(f));
    return s;
  }

  void Scan(const bytecode::Code& c) {
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

  // A value of the frame: its numbers come in cells.
  Val Receive(Val v, std::vector<Slot>& slots, int slot, int position) {
    Slot s{.slot = slot, .val = v};
    int leaf = 0;
    Leaves(v, [&](Val& x) {
      const int cell = CellOf(position, leaf++);
      s.cells.push_back(cell);
      x.value = Emit({.op = ScalarOp::kCell, .type = x.type(), .imm = cell, .id = -2});
    });
    if (v.is == Is::kRangeIter && v.unit) v.items[1] = IntConstant(*this, 1);
    slots.push_back(std::move(s));
    return v;
  }

  int Variable(ScalarType t) {
    code.variables.push_back(t);
    return static_cast<int>(code.variables.size()) - 1;
  }
  int CellOf(int position, int leaf) {
    auto [it, made] = cells_.try_emplace({position, leaf}, out_.cells);
    out_.cells += made;
    return it->second;
  }

  // --- objects ---------------------------------------------------------------------------------------------------------
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
    return Input(o.cells + 1 + axis, ScalarType::kInt);
  }
  int Stride(int k, int axis) {
    const ObjectSpec& o = UseArray(k);
    if (o.unit && axis == o.rank - 1) return Int(DTypeSize(o.dtype));
    return Input(o.cells + 1 + o.rank + axis, ScalarType::kInt);
  }
  Val Fixed(PyObject* o) {
    if (!o) return {};
    Val known = Constant(o);
    if (known.is != Is::kNull) return known;
    for (size_t i = 0; i < out_.objects.size(); ++i)
      if (out_.objects[i].fixed && out_.objects[i].object.get() == o) return Object(static_cast<int>(i));
    ObjectSpec spec{.object = Borrow(o), .fixed = true};
    std::vector<ObjectSpec> one;
    if (Val v = Describe(o, one); v.is == Is::kObject && one[v.object].array) {
      spec = one[v.object];
      spec.fixed = true;
    }
    out_.objects.push_back(std::move(spec));
    return Object(static_cast<int>(out_.objects.size()) - 1);
  }
  Val Constant(PyObject* o) {  // numbers and tuples of them; else nothing
    if (PyBool_Check(o)) return New(Is::kBool, Flag(o == Py_True));
    if (PyFloat_CheckExact(o)) return New(Is::kFloat, Number(PyFloat_AS_DOUBLE(o)));
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

  // --- exits -----------------------------------------------------------------------------------------------------------
  int Exit() override {
    if (exit_ < 0) exit_ = MakeExit(*before_, "");
    return exit_;
  }

  int MakeExit(const State& s, const std::string& why, bool usual = false) {
    if (s.frames.size() > 1 && s.effects) throw NotInline{s.frames[0].pc};
    const Frame& f = s.frames[0];
    ExitState e{.next = f.pc, .usual = usual, .why = why};
    codegen::ScalarExit cells;
    const auto give = [&](Val v, std::vector<Slot>& slots, int slot, int position) {
      Slot to{.slot = slot};
      int leaf = 0;
      Leaves(v, [&](Val& x) {
        const int cell = CellOf(position, leaf++);
        to.cells.push_back(cell);
        cells.cells.emplace_back(cell, Value(x));
      });
      to.val = std::move(v);
      slots.push_back(std::move(to));
    };
    for (int i = 0; i < f.nlocals(); ++i) {
      if (changed_[i] < 0) continue;
      give(f.locals[i], e.locals, i, i);
      e.locals.back().changed = CellOf(i, -1);
      cells.cells.emplace_back(e.locals.back().changed,
                               stored_[i] ? Flag(true)
                                          : Emit({.op = ScalarOp::kGet, .type = ScalarType::kBool, .imm = changed_[i], .id = -2}));
    }
    for (size_t i = 0; i < f.stack.size(); ++i)
      give(f.stack[i], e.stack, static_cast<int>(i), f.nlocals() + static_cast<int>(i));
    cells.cells.emplace_back(0, Emit({.op = ScalarOp::kGet, .type = ScalarType::kInt, .imm = rounds_, .id = -2}));
    code.exits.push_back(std::move(cells));
    out_.exits.push_back(std::move(e));
    return static_cast<int>(out_.exits.size()) - 1;
  }

  void Leave(const State& s, const std::string& why, bool usual) {
    if (out_.why.empty() && !usual) out_.why = why;
    Emit({.op = ScalarOp::kExit, .exit = MakeExit(s, why, usual)});
  }

  // --- flow ------------------------------------------------------------------------------------------------------------
  int Home(int depth, int position, int leaf, ScalarType t) {
    auto [it, made] = homes_.try_emplace({depth, position, leaf, t}, 0);
    if (made) it->second = Variable(t);
    return it->second;
  }

  // Ends the block: everything into its variable, and on to the state's own block.
  void GoTo(State s) {
    Frame& outer = s.frames[0];
    if (s.frames.size() == 1 && !loop_.Holds(outer.pc)) return Leave(s, "", true);
    std::vector<std::pair<int, int>> sets;  // variable, value
    for (size_t depth = 0; depth < s.frames.size(); ++depth) {
      Frame& f = s.frames[depth];
      const auto settle = [&](Val& v, int position) {
        int leaf = 0;
        Leaves(v, [&](Val& x) {
          const int home = Home(static_cast<int>(depth), position, leaf++, x.type());
          if (x.home != home || x.value >= 0) sets.emplace_back(home, Value(x));
          x.home = home, x.value = -1;
          x.constant.reset();
        });
      };
      for (int i = 0; i < f.nlocals(); ++i) settle(f.locals[i], i);
      for (size_t i = 0; i < f.stack.size(); ++i) settle(f.stack[i], f.nlocals() + static_cast<int>(i));
    }
    for (size_t i = 0; i < stored_.size(); ++i)
      if (stored_[i]) sets.emplace_back(changed_[i], Flag(true));
    for (auto [variable, value] : sets) Emit({.op = ScalarOp::kSet, .a = value, .imm = variable});
    auto [it, made] = versions_.try_emplace(s.key(), static_cast<int>(code.blocks.size()));
    Emit({.op = ScalarOp::kJump, .imm = it->second});
    if (s.frames.size() == 1) leads_to_[current_].push_back(it->second);
    if (!made) return;
    if (code.blocks.size() > kMostBlocks) throw Unsupported{"too much code"};
    code.blocks.emplace_back();
    work_.emplace_back(it->second, std::move(s));
  }

  // A block of its own that goes on with this state: where a branch leads to.
  int Way(const State& s) {
    return Way([&] { GoTo(s); });
  }
  template <typename F>
    requires std::is_invocable_v<F>
  int Way(F f) {
    const int made = static_cast<int>(code.blocks.size()), here = block, exit = exit_;
    code.blocks.emplace_back();
    block = made;
    f();
    block = here;
    exit_ = exit;  // what was made there is not known here
    return made;
  }
  void Branch(int condition, const State& yes, const State& no) {
    const int a = Way(yes), b = Way(no);
    Emit({.op = ScalarOp::kBranch, .a = condition, .other = b, .imm = a});
  }

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

  // Is something jumped to here?
  bool Target(const Frame& f, int pc) {
    auto [it, made] = targets_.try_emplace(f.co);
    if (made)
      for (int at = 0; at < f.code->size(); ++at)
        if (f.code->At(at).length && IsJump(f.code->At(at).op)) it->second.insert(f.code->At(at).target);
    return it->second.contains(pc);
  }

  void Block(State s) {
    for (bool first = true;; first = false) {
      Frame& f = s.top();
      if (!first && (Target(f, f.pc) || (s.frames.size() == 1 && !loop_.Holds(f.pc))))
        return GoTo(std::move(s));
      State before = s;
      before_ = &before;
      exit_ = -1;
      ended_ = false;
      try {
        Step(s, f.code->At(f.pc));
      } catch (const Unsupported& u) {
        return Leave(before, u.why + Line(before), false);
      }
      if (ended_) return;
    }
  }

  static std::string Line(const State& s) {
    const Frame& f = s.frames.back();
    return ", line " + std::to_string(PyCode_Addr2Line(f.co, 2 * f.code->At(f.pc).unit));
  }

  void Jump(State& s, const Instr& i, int target) {
    if (target <= s.top().pc) {
      uint32_t bits;
      const void* word = fj_breaker(PyThreadState_Get(), &bits);
      Emit({.op = ScalarOp::kExitAtBreak, .exit = Exit(), .imm = reinterpret_cast<int64_t>(word),
            .number = static_cast<double>(bits)});
      const int count = Emit({.op = ScalarOp::kGet, .type = ScalarType::kInt, .imm = rounds_, .id = -2});
      Emit({.op = ScalarOp::kSet, .a = Op(ScalarOp::kAdd, ScalarType::kInt, count, Int(1)), .imm = rounds_});
    }
    s.top().pc = target;
    GoTo(s);
    ended_ = true;
  }

  void ConditionalJump(State& s, const Instr& i, int condition, bool if_true) {
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
    return v;
  }

  void Store(State& s, int i, Val v) {
    Val& old = s.top().locals[i];
    if (old.is == Is::kFrame) throw Unsupported{"a local of an unknown kind is dropped"};
    if (old.is == Is::kObject && !out_.objects[old.object].array && !out_.objects[old.object].fixed &&
        out_.objects[old.object].object.get() != Py_None)
      throw Unsupported{"an object is dropped"};
    if (v.is == Is::kRangeIter || v.is == Is::kSeqIter || v.is == Is::kFrame) throw Unsupported{"an iterator is kept"};
    old = std::move(v);
    if (s.frames.size() == 1) stored_[i] = true;
  }

  // A value that is there twice: iterators and what is unknown may not.
  const Val& Twice(const Val& v) {
    if (v.is == Is::kRangeIter || v.is == Is::kSeqIter || v.is == Is::kFrame) throw Unsupported{"a copy"};
    return v;
  }

  // None if it is that object, nothing if that is not known.
  std::optional<bool> IsNone(const Val& v) {
    if (v.is != Is::kObject) return v.is == Is::kFrame ? std::nullopt : std::optional(false);
    return Use(v.object).array || Use(v.object).list ? false : Use(v.object).object.get() == Py_None;
  }

  void Decided(State& s, const Instr& i, bool jumps) {
    if (jumps) return Jump(s, i, i.target);
    Next(s, i);
  }

  void Step(State& s, const Instr& i);
  void StepFlow(State& s, const Instr& i);
  void StepValue(State& s, const Instr& i);
  void ForIter(State& s, const Instr& i);
  void GetIter(State& s, const Instr& i);
  Val Element(int object, int index);
  int Offset(int object, const Val& index);
  Val GetItem(State& s, const Val& container, const Val& index);
  void SetItem(State& s, const Val& container, const Val& index, const Val& value);
  Val Attribute(const Val& v, PyObject* name);
  Val Global(State& s, PyObject* name);
  void Call(State& s, const Instr& i);
  std::optional<Val> CallBuiltin(const std::string& name, PyObject* callee, std::vector<Val>& args);
  Val CallType(PyObject* callee, std::vector<Val>& args, bool* known);
  void Inline(State& s, int object, std::vector<Val> args);
  void Extreme(State s, const std::vector<Val>& args, size_t at, Val best, int py_op);
  Val Range(const std::vector<Val>& args);
  using Builder::Call;

  FjFrame* frame_;
  Loop loop_;
  int from_;
  const std::set<int>& not_inline_;
  Translation out_;
  std::map<std::pair<int, int>, int> cells_;  // (position, part): the flag that it was written is part -1
  std::map<std::tuple<int, int, int, ScalarType>, int> homes_;
  std::map<std::string, int> versions_;
  std::map<PyCodeObject*, std::set<int>> targets_;
  std::deque<std::pair<int, State>> work_;
  int current_ = 0;                            // the block that a version begins with
  std::map<int, std::vector<int>> leads_to_;   // of versions that are not of called functions
  std::vector<bool> touched_;   // locals that the loop names
  std::vector<int> changed_;    // those that it writes: the variable that tells whether it did
  std::vector<bool> stored_;    // in this block
  int rounds_ = -1;
  const State* before_ = nullptr;
  int exit_ = -1;
  bool ended_ = false;
};

void Translator::Step(State& s, const Instr& i) {
  switch (i.op) {
    case Op::kNop:
    case Op::kResume: return Next(s, i);
    case Op::kLoadConst: {
      PyObject* c = PyTuple_GET_ITEM(s.top().co->co_consts, i.arg);
      Push(s, Fixed(c));
      return Next(s, i);
    }
    case Op::kLoadFast:
    case Op::kLoadDeref: Push(s, Twice(Local(s, i.arg))); return Next(s, i);
    case Op::kLoadFastPair:
      Push(s, Twice(Local(s, i.arg)));
      Push(s, Twice(Local(s, i.target)));
      return Next(s, i);
    case Op::kStoreFast: Store(s, i.arg, Pop(s)); return Next(s, i);
    case Op::kStoreFastPair:
      Store(s, i.arg, Pop(s));
      Store(s, i.target, Pop(s));
      return Next(s, i);
    case Op::kStoreFastLoadFast:
      Store(s, i.arg, Pop(s));
      Push(s, Twice(Local(s, i.target)));
      return Next(s, i);
    case Op::kPushNull: Push(s, {}); return Next(s, i);
    case Op::kPopTop:
      if (s.top().stack.back().is == Is::kFrame) throw Unsupported{"an unknown value is dropped"};
      Pop(s);
      return Next(s, i);
    case Op::kCopy: Push(s, Twice(s.top().stack[s.top().stack.size() - i.arg])); return Next(s, i);
    case Op::kSwap: {
      std::vector<Val>& stack = s.top().stack;
      Twice(stack[stack.size() - i.arg]), Twice(stack.back());
      std::swap(stack.back(), stack[stack.size() - i.arg]);
      return Next(s, i);
    }
    case Op::kLoadGlobal: {
      Val v = Global(s, PyTuple_GET_ITEM(s.top().co->co_names, i.arg));
      if (i.flag && !bytecode::kNullAfterCallable) Push(s, {});
      Push(s, std::move(v));
      if (i.flag && bytecode::kNullAfterCallable) Push(s, {});
      return Next(s, i);
    }
    case Op::kLoadAttr: Push(s, Attribute(Pop(s), PyTuple_GET_ITEM(s.top().co->co_names, i.arg))); return Next(s, i);
    case Op::kLoadMethod: {
      const Val owner = Pop(s);
      if (owner.is != Is::kObject || !PyModule_CheckExact(Use(owner.object).object.get()))
        throw Unsupported{"a method"};
      Val v = Attribute(owner, PyTuple_GET_ITEM(s.top().co->co_names, i.arg));
      if (!bytecode::kNullAfterCallable) Push(s, {});
      Push(s, std::move(v));
      if (bytecode::kNullAfterCallable) Push(s, {});
      return Next(s, i);
    }
    case Op::kBuildTuple: {
      std::vector<Val>& stack = s.top().stack;
      std::vector<Val> items(stack.end() - i.arg, stack.end());
      for (const Val& v : items) Twice(v);
      if (items.empty()) throw Unsupported{"an empty tuple"};
      stack.resize(stack.size() - i.arg);
      Push(s, Tuple(std::move(items)));
      return Next(s, i);
    }
    case Op::kUnpackSequence: {
      Val v = Pop(s);
      if (v.is != Is::kTuple || static_cast<int>(v.items.size()) != i.arg) throw Unsupported{"unpacking"};
      for (int k = i.arg; k-- > 0;) Push(s, v.items[k]);
      return Next(s, i);
    }
    default: return StepValue(s, i);
  }
}

void Translator::StepValue(State& s, const Instr& i) {
  switch (i.op) {
    case Op::kBinary: {
      const Val y = Pop(s), x = Pop(s);
      out_.floats |= !x.python() || !y.python();
      Push(s, Binary(*this, i.arg, x, y));
      return Next(s, i);
    }
    case Op::kCompare: {
      const Val y = Pop(s), x = Pop(s);
      Val r = scalar::Compare(*this, i.arg, x, y);
      Push(s, i.flag ? New(Is::kBool, Value(r)) : r);
      return Next(s, i);
    }
    case Op::kNegative: Push(s, Negative(*this, Pop(s))); return Next(s, i);
    case Op::kInvert: Push(s, Invert(*this, Pop(s))); return Next(s, i);
    case Op::kNot: Push(s, New(Is::kBool, Op(ScalarOp::kNot, ScalarType::kBool, Truth(*this, Pop(s))))); return Next(s, i);
    case Op::kToBool: Push(s, New(Is::kBool, Truth(*this, Pop(s)))); return Next(s, i);
    case Op::kIs: {
      const Val y = Pop(s), x = Pop(s);
      const std::optional<bool> a = IsNone(x), b = IsNone(y);
      if (!a || !b || (!*a && !*b)) throw Unsupported{"is"};
      Push(s, New(Is::kBool, Flag((*a == *b) != (i.arg != 0))));
      return Next(s, i);
    }
    case Op::kGetItem: {
      const Val index = Pop(s), container = Pop(s);
      Push(s, GetItem(s, container, index));
      return Next(s, i);
    }
    case Op::kSetItem: {
      const Val index = Pop(s), container = Pop(s), value = Pop(s);
      SetItem(s, container, index, value);
      return Next(s, i);
    }
    case Op::kCall: return Call(s, i);
    default: return StepFlow(s, i);
  }
}

void Translator::StepFlow(State& s, const Instr& i) {
  switch (i.op) {
    case Op::kJump: return Jump(s, i, i.target);
    case Op::kPopJumpIfFalse: {
      const int truth = Truth(*this, Pop(s));
      return ConditionalJump(s, i, truth, false);
    }
    case Op::kPopJumpIfTrue: {
      const int truth = Truth(*this, Pop(s));
      return ConditionalJump(s, i, truth, true);
    }
    case Op::kPopJumpIfNone:
    case Op::kPopJumpIfNotNone: {
      const std::optional<bool> none = IsNone(Pop(s));
      if (!none) throw Unsupported{"is None"};
      return Decided(s, i, *none == (i.op == Op::kPopJumpIfNone));
    }
    case Op::kJumpIfFalseOrPop:
    case Op::kJumpIfTrueOrPop: {
      const int truth = Truth(*this, s.top().stack.back());
      State jumps = s, goes_on = s;
      jumps.top().pc = i.target;
      Pop(goes_on);
      goes_on.top().pc += i.length;
      ended_ = true;
      return i.op == Op::kJumpIfTrueOrPop ? Branch(truth, jumps, goes_on) : Branch(truth, goes_on, jumps);
    }
    case Op::kGetIter: return GetIter(s, i);
    case Op::kForIter: return ForIter(s, i);
    case Op::kReturnValue:
    case Op::kReturnConst: {
      if (s.frames.size() == 1) {
        Leave(s, "", true);
        ended_ = true;
        return;
      }
      Val v = i.op == Op::kReturnConst ? Fixed(PyTuple_GET_ITEM(s.top().co->co_consts, i.arg)) : Pop(s);
      s.frames.pop_back();
      if (s.frames.size() == 1) s.effects = false;
      const Instr& call = s.top().code->At(s.top().pc);
      s.top().stack.resize(s.top().stack.size() - call.arg - 2);
      Push(s, std::move(v));
      return Next(s, call);
    }
    default: throw Unsupported{std::string(bytecode::Name(i.op))};
  }
}

void Translator::GetIter(State& s, const Instr& i) {
  Val v = Pop(s);
  Val it;
  if (v.is == Is::kObject) {
    const ObjectSpec& o = UseArray(v.object);
    if (!o.list && !(o.array && o.rank == 1)) throw Unsupported{"an iteration"};
    it = Numbers(Is::kSeqIter, 1);
    it.object = v.object;
    it.items[0] = IntConstant(*this, 0);
  } else if (v.is == Is::kRange) {
    it = Numbers(Is::kRangeIter, 3);
    it.unit = v.unit;
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
    it.items[2] = New(Is::kInt, Op(ScalarOp::kSelect, ScalarType::kInt, any, distance, Int(0)));
  } else {
    throw Unsupported{"an iteration"};
  }
  Push(s, std::move(it));
  Next(s, i);
}

void Translator::ForIter(State& s, const Instr& i) {
  Val& it = s.top().stack.back();
  State done = s;
  Pop(done);
  done.top().pc = i.target;
  ended_ = true;
  if (it.is == Is::kRangeIter) {
    const int next = Value(it.items[0]), left = Value(it.items[2]);
    const int step = it.unit ? Int(1) : Value(it.items[1]);
    const int more = Compare(ScalarOp::kGt, left, Int(0));
    it.items[0] = New(Is::kInt, Op(ScalarOp::kAdd, ScalarType::kInt, next, step));
    it.items[1] = New(Is::kInt, step);
    it.items[2] = New(Is::kInt, Op(ScalarOp::kSub, ScalarType::kInt, left, Int(1)));
    Push(s, New(Is::kInt, next));
    s.top().pc += i.length;
    return Branch(more, s, done);
  }
  if (it.is != Is::kSeqIter) throw Unsupported{"an iterator"};
  const int object = it.object, index = Value(it.items[0]);
  const int more = Compare(ScalarOp::kLt, index, Size(object, 0));
  const int yes = Way([&] {
    it.items[0] = New(Is::kInt, Op(ScalarOp::kAdd, ScalarType::kInt, index, Int(1)));
    Val item = Element(object, index);
    Push(s, std::move(item));
    s.top().pc += i.length;
    GoTo(s);
  });
  const int no = Way(done);
  Emit({.op = ScalarOp::kBranch, .a = more, .other = no, .imm = yes});
}

// Of a list or an array of one axis.
Val Translator::Element(int object, int index) {
  const ObjectSpec& o = UseArray(object);
  if (o.array) {
    const int offset = Op(ScalarOp::kMul, ScalarType::kInt, index, Stride(object, 0));
    Val v = NewNumpy(o.dtype, -1);
    v.value = Emit({.op = ScalarOp::kLoad, .type = v.type(), .a = Data(object), .b = offset, .dtype = o.dtype, .id = -2});
    return v;
  }
  const bool floats = o.dtype == DType::kFloat64;
  const int to = Emit({.op = ScalarOp::kAddress, .type = ScalarType::kPtr, .imm = scratch, .id = -2});
  const void* f = floats ? reinterpret_cast<void*>(ListFloat) : reinterpret_cast<void*>(ListInt);
  ExitIf(Op(ScalarOp::kNot, ScalarType::kBool, Call(f, ScalarType::kBool, Data(object), index, to)));
  const ScalarType t = floats ? ScalarType::kF64 : ScalarType::kInt;
  return New(floats ? Is::kFloat : Is::kInt, Emit({.op = ScalarOp::kCell, .type = t, .imm = scratch, .id = -2}));
}

// An index within [0, size), or an exit.
int Checked(Builder& b, const Val& index, int size) {
  int v = AsIndex(b, index);
  if (!index.constant || *index.constant < 0)
    v = b.Op(ScalarOp::kSelect, ScalarType::kInt, b.Compare(ScalarOp::kLt, v, b.Int(0)),
             b.Op(ScalarOp::kAdd, ScalarType::kInt, v, size), v);
  const int outside = b.Op(ScalarOp::kOr, ScalarType::kBool, b.Compare(ScalarOp::kLt, v, b.Int(0)),
                           b.Compare(ScalarOp::kGe, v, size));
  b.ExitIf(outside);
  return v;
}

int Translator::Offset(int object, const Val& index) {
  const std::vector<Val> one{index};
  const std::vector<Val>& all = index.is == Is::kTuple ? index.items : one;
  const int rank = UseArray(object).rank;
  if (static_cast<int>(all.size()) != rank) throw Unsupported{"an index for a part of an array"};
  int offset = -1;
  for (int axis = 0; axis < rank; ++axis) {
    const int v = Checked(*this, all[axis], Size(object, axis));
    const int part = Op(ScalarOp::kMul, ScalarType::kInt, v, Stride(object, axis));
    offset = axis ? Op(ScalarOp::kAdd, ScalarType::kInt, offset, part) : part;
  }
  return offset;
}

Val Translator::GetItem(State&, const Val& container, const Val& index) {
  if (container.is == Is::kTuple) {
    if (index.is != Is::kInt || !index.constant) throw Unsupported{"an item of a tuple"};
    const int64_t n = static_cast<int64_t>(container.items.size());
    const int64_t k = *index.constant < 0 ? *index.constant + n : *index.constant;
    if (k < 0 || k >= n) throw Unsupported{"an index"};
    return container.items[k];
  }
  if (container.is != Is::kObject) throw Unsupported{"an item"};
  const ObjectSpec& o = out_.objects[container.object];
  if (o.list) {
    if (index.is == Is::kTuple) throw Unsupported{"an index"};
    return Element(container.object, Checked(*this, index, Size(container.object, 0)));
  }
  if (!o.array) throw Unsupported{"an item of something else than an array"};
  const DType t = o.dtype;
  const int offset = Offset(container.object, index);
  Val v = NewNumpy(t, -1);
  v.value = Emit({.op = ScalarOp::kLoad, .type = v.type(), .a = Data(container.object), .b = offset, .dtype = t, .id = -2});
  return v;
}

void Translator::SetItem(State& s, const Val& container, const Val& index, const Val& value) {
  if (container.is != Is::kObject || !out_.objects[container.object].array) throw Unsupported{"a store"};
  const DType t = out_.objects[container.object].dtype;
  const int offset = Offset(container.object, index);
  const int v = Stored(*this, value, t);
  out_.objects[container.object].written = true;
  out_.floats = true;
  Emit({.op = ScalarOp::kStore, .a = Data(container.object), .b = offset, .c = v, .dtype = t});
  if (s.frames.size() > 1) s.effects = true;
}

Val Translator::Attribute(const Val& v, PyObject* name) {
  if (v.is != Is::kObject) throw Unsupported{"an attribute"};
  const char* text = PyUnicode_AsUTF8(name);
  if (out_.objects[v.object].array) {
    const int rank = out_.objects[v.object].rank;
    if (!strcmp(text, "ndim")) return IntConstant(*this, rank);
    std::vector<Val> sizes;
    for (int i = 0; i < rank; ++i) sizes.push_back(New(Is::kInt, Size(v.object, i)));
    if (!strcmp(text, "shape")) return Tuple(std::move(sizes));
    if (strcmp(text, "size") != 0) throw Unsupported{"an attribute of an array"};
    int n = Value(sizes[0]);
    for (int i = 1; i < rank; ++i) n = Op(ScalarOp::kMul, ScalarType::kInt, n, Value(sizes[i]));
    return New(Is::kInt, n);
  }
  PyObject* module = Use(v.object).object.get();
  if (!PyModule_CheckExact(module)) throw Unsupported{std::string("the attribute ") + text};
  PyObject* dict = PyModule_GetDict(module);
  PyObject* value = PyDict_GetItemWithError(dict, name);
  if (!value) throw Unsupported{std::string("the attribute ") + text};
  out_.guards.push_back({Borrow(dict), Ref(), Borrow(name), Borrow(value)});
  return Fixed(value);
}

Val Translator::Global(State& s, PyObject* name) {
  Frame& f = s.top();
  if (!PyDict_CheckExact(f.globals) || !PyDict_CheckExact(f.builtins)) throw Unsupported{"unusual globals"};
  PyObject* value = PyDict_GetItemWithError(f.globals, name);
  if (!value) value = PyDict_GetItemWithError(f.builtins, name);
  if (!value) throw Unsupported{"a name that is not known"};
  for (const NameGuard& g : out_.guards)
    if (g.dict.get() == f.globals && g.name.get() == name) return Fixed(value);
  out_.guards.push_back({Borrow(f.globals), Borrow(f.builtins), Borrow(name), Borrow(value)});
  return Fixed(value);
}

Val Translator::Range(const std::vector<Val>& args) {
  if (args.empty() || args.size() > 3) throw Unsupported{"range"};
  Val v = Numbers(Is::kRange, 3);
  for (const Val& a : args)
    if (!a.integral() || (a.truth() && !a.python())) throw Unsupported{"range"};
  v.items[0] = args.size() == 1 ? IntConstant(*this, 0) : ToInt(*this, args[0]);
  v.items[1] = ToInt(*this, args[args.size() == 1 ? 0 : 1]);
  v.items[2] = args.size() == 3 ? ToInt(*this, args[2]) : IntConstant(*this, 1);
  v.unit = args.size() < 3 || args[2].constant == 1;
  if (!v.unit) ExitIf(Compare(ScalarOp::kEq, Value(v.items[2]), Int(0)));
  return v;
}

// max and min: the first of those that compare so.
void Translator::Extreme(State s, const std::vector<Val>& args, size_t at, Val best, int py_op) {
  for (; at < args.size(); ++at) {
    const int better = Value(scalar::Compare(*this, py_op, args[at], best));
    if (args[at].key() == best.key()) {
      Val chosen = best;
      chosen.value = Op(ScalarOp::kSelect, best.type(), better, Value(args[at]), Value(best));
      chosen.home = -1;
      chosen.constant.reset();
      best = chosen;
      continue;
    }
    const int yes = Way([&] { Extreme(s, args, at + 1, args[at], py_op); });
    const int no = Way([&] { Extreme(s, args, at + 1, best, py_op); });
    Emit({.op = ScalarOp::kBranch, .a = better, .other = no, .imm = yes});
    return;
  }
  Push(s, best);
  GoTo(s);
}

std::optional<Val> Translator::CallBuiltin(const std::string& name, PyObject*, std::vector<Val>& args) {
  if (name == "builtins.abs" && args.size() == 1) return Absolute(*this, args[0]);
  if (name == "builtins.len" && args.size() == 1) {
    if (args[0].is == Is::kTuple) return IntConstant(*this, static_cast<int64_t>(args[0].items.size()));
    if (args[0].is == Is::kObject && (out_.objects[args[0].object].array || out_.objects[args[0].object].list))
      return New(Is::kInt, Size(args[0].object, 0));
  }
  if (name.starts_with("math.")) return MathCall(*this, name.substr(5), args);
  return std::nullopt;
}

Val Translator::CallType(PyObject* callee, std::vector<Val>& args, bool* known) {
  *known = true;
  auto* type = reinterpret_cast<PyTypeObject*>(callee);
  if (type == &PyRange_Type) return Range(args);
  if (args.size() == 1) {
    if (type == &PyLong_Type) return ToInt(*this, args[0]);
    if (type == &PyFloat_Type) return ToFloat(*this, args[0]);
    if (type == &PyBool_Type) return New(Is::kBool, Truth(*this, args[0]));
    const tensor::NumpyApi* api = tensor::Numpy();
    if (api && callee == reinterpret_cast<PyObject*>(api->scalar[static_cast<int>(DType::kFloat64)]))
      return ToNumpy(*this, args[0], DType::kFloat64);
    if (api && callee == reinterpret_cast<PyObject*>(api->scalar[static_cast<int>(DType::kInt64)]))
      return ToNumpy(*this, args[0], DType::kInt64);
    static PyObject* root = nullptr;
    if (api && !root) root = tensor::Attr(api->module, "sqrt");
    if (callee == root) {
      out_.floats = true;
      return SquareRoot(*this, args[0]);
    }
  }
  *known = false;
  return {};
}

void Translator::Inline(State& s, int object, std::vector<Val> args) {
  const ObjectSpec& o = Use(object);
  auto* function = reinterpret_cast<PyFunctionObject*>(o.object.get());
  auto* co = reinterpret_cast<PyCodeObject*>(function->func_code);
  const bytecode::Code* c = bytecode::Code::Of(co);
  if (!c) PyErr_Clear();
  constexpr int kNo = CO_VARARGS | CO_VARKEYWORDS | CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
  if (!c || (co->co_flags & kNo) || co->co_ncellvars || co->co_nfreevars || co->co_kwonlyargcount ||
      co->co_argcount != static_cast<int>(args.size()) || s.frames.size() > kMostDepth || c->first_resume() < 0 ||
      not_inline_.contains(s.frames[0].pc))
    throw Unsupported{"a call of " + std::string(PyUnicode_AsUTF8(co->co_qualname))};
  out_.objects[object].code = Borrow(function->func_code);
  Frame f;
  f.co = co;
  f.code = c;
  f.globals = function->func_globals, f.builtins = function->func_builtins;
  f.pc = c->first_resume();
  f.locals = std::move(args);
  f.locals.resize(co->co_nlocalsplus);
  s.frames.push_back(std::move(f));
}

void Translator::Call(State& s, const Instr& i) {
  std::vector<Val>& stack = s.top().stack;
  const size_t base = stack.size() - i.arg - 2;
  const Val& callee = bytecode::kNullAfterCallable || stack[base].is != Is::kNull ? stack[base] : stack[base + 1];
  const Val& self = bytecode::kNullAfterCallable ? stack[base + 1] : stack[base];
  if (callee.is != Is::kObject || self.is != Is::kNull) throw Unsupported{"a call"};
  const int object = callee.object;
  PyObject* o = Use(object).object.get();
  if (out_.objects[object].array || out_.objects[object].list) throw Unsupported{"a call"};
  std::vector<Val> args(stack.end() - i.arg, stack.end());
  for (const Val& a : args) Twice(a);
  if (PyFunction_Check(o)) return Inline(s, object, std::move(args));
  const std::string name = FunctionName(o);
  if ((name == "builtins.max" || name == "builtins.min") && args.size() >= 2 && args.size() <= 4) {
    stack.resize(base);
    s.top().pc += i.length;
    ended_ = true;
    return Extreme(s, args, 1, args[0], name == "builtins.max" ? Py_GT : Py_LT);
  }
  std::optional<Val> result = CallBuiltin(name, o, args);
  if (!result) {
    bool known;
    result = CallType(o, args, &known);
    if (!known) throw Unsupported{"a call of " + (name.empty() ? std::string(Py_TYPE(o)->tp_name) : name)};
  }
  stack.resize(base);
  Push(s, std::move(*result));
  Next(s, i);
}

}  // namespace

Translation Translate(FjFrame* frame, const Loop& loop, int from) {
  std::set<int> not_inline;
  for (;;) {
    try {
      return Translator(frame, loop, from, not_inline).Run();
    } catch (const NotInline& call) {
      if (!not_inline.insert(call.pc).second) throw std::runtime_error("scalar code: a call cannot be left to Python");
    } catch (const Unsupported& u) {
      Translation failed;
      failed.why = u.why;
      return failed;
    }
  }
}

}  // namespace framejit::capture::scalar
