// This file says what a frame holds, as scalar code sees it, and finds the loops of a function.
#include <algorithm>

#include "capture/proxy.h"
#include "capture/scalar/iterators.h"
#include "capture/scalar/objects.h"
#include "capture/scalar/translator.h"
#include "capture/session.h"
#include "tensor/numpy_api.h"

namespace framejit::capture::scalar {

Val Unknown() {
  Val v;
  v.is = Is::kFrame;
  return v;
}

namespace {

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
    if (!t || (!Numeric(*t) && t != DType::kComplex128) || !native || !(a->flags & tensor::kNpyAligned) || a->nd < 1 ||
        a->nd > 8)
      return Unknown();
    return DescribeArray(o, *t, a->nd, a->strides[a->nd - 1] == DTypeSize(*t), objects);
  }
  if (!PyType_IsSubtype(Py_TYPE(o), api->generic)) return {};
  const std::optional<DType> t = tensor::ScalarDType(*api, Py_TYPE(o));
  if (t == DType::kComplex128) return Complex(New(Is::kFloat, -1), New(Is::kFloat, -1), true);
  return t && Numeric(*t) ? NewNumpy(*t, -1) : Unknown();
}

// Of numbers of one kind, or tuples of them: what its first item is. An empty one may become a list of anything.
Val DescribeList(PyObject* o, std::vector<ObjectSpec>& objects) {
  for (size_t i = 0; i < objects.size(); ++i)
    if (objects[i].object.get() == o && objects[i].list) return Object(static_cast<int>(i));
  PyObject* first = PyList_GET_SIZE(o) ? PyList_GET_ITEM(o, 0) : nullptr;
  std::vector<ObjectSpec> none;
  const Val item = first ? Describe(first, none) : Val();
  if (first && !item.scalar() && item.is != Is::kTuple) return Unknown();
  for (const Val& v : item.items)
    if (!v.scalar()) return Unknown();
  ObjectSpec spec{.object = Borrow(o), .list = true, .item = item};
  objects.push_back(std::move(spec));
  return Object(static_cast<int>(objects.size()) - 1);
}

// Bytes and texts: a text of one letter is that letter.
Val DescribeLetters(PyObject* o, std::vector<ObjectSpec>& objects) {
  if (LetterOf(o) >= 0) return Letter(New(Is::kInt, -1));
  if (!HoldsLetters(o)) return {};
  for (size_t i = 0; i < objects.size(); ++i)
    if (objects[i].object.get() == o && objects[i].letters() && !objects[i].fixed) return Object(static_cast<int>(i));
  const bool bytes = PyBytes_CheckExact(o);
  objects.push_back({.object = Borrow(o), .bytes = bytes, .text = !bytes});
  return Object(static_cast<int>(objects.size()) - 1);
}

// `alone`: no other iterator goes on together with it.
Val DescribeIterator(PyObject* o, std::vector<ObjectSpec>& objects, bool alone) {
  long next, step, left;
  if (fj_range_state(o, &next, &step, &left)) {
    Val v = Numbers(Is::kRangeIter, 3);
    v.unit = step == 1;
    v.natural = alone && GivesNaturals(next, step, left);
    return v;
  }
  if (Py_TYPE(o) == &PyEnum_Type) {
    const auto* e = reinterpret_cast<EnumerateIter*>(o);
    Val v;
    v.is = Is::kEnumerate;
    v.items = {New(Is::kInt, -1), DescribeIterator(e->iterator, objects, false)};
    v.natural = e->index >= 0 && IsSmall(e->index);  // else each call of the code would be refused at its entry
    return v.items[1].iterator() ? v : Unknown();
  }
  if (Py_TYPE(o) == &PyZip_Type) {
    const auto* zip = reinterpret_cast<ZipIter*>(o);
    Val v;
    v.is = Is::kZip;
    for (Py_ssize_t i = 0; i < zip->size; ++i) {
      v.items.push_back(DescribeIterator(PyTuple_GET_ITEM(zip->iterators, i), objects, false));
      if (!v.items.back().iterator()) return Unknown();
    }
    return zip->size && zip->size <= 4 ? v : Unknown();
  }
  const bool back = Py_TYPE(o) == &PyReversed_Type || Py_TYPE(o) == ListReverseIterator();
  const bool tuple = Py_TYPE(o) == &PyTupleIter_Type;
  if (!back && !tuple && !IsSequenceIterator(o)) return {};
  const auto* s = reinterpret_cast<SeqIter*>(o);
  const Val over = s->seq ? Describe(s->seq, objects) : Unknown();
  Val v;
  if (tuple) {
    if (over.is != Is::kTuple) return Unknown();
    v.is = Is::kTupleIter;
    v.node = static_cast<int>(s->index);
    v.items = {over};
    return v;
  }
  if (over.is != Is::kObject || (!objects[over.object].sequence() && !objects[over.object].array)) return Unknown();
  v.is = back ? Is::kBackIter : Is::kSeqIter;
  v.items = {New(Is::kInt, -1), over};
  v.natural = !back;
  return v;
}

}  // namespace

Val Numbers(Is is, int n) {
  Val v;
  v.is = is;
  v.items.resize(n, New(Is::kInt, -1));
  return v;
}

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
    const int64_t number = PyLong_AsLongLongAndOverflow(o, &overflow);
    Val v = New(Is::kInt, -1);
    v.small = IsSmall(number);
    return overflow ? Unknown() : v;
  }
  if (IsSymInt(o)) return New(Is::kInt, -1);
  if (PyFloat_CheckExact(o) || IsSymFloat(o)) return New(Is::kFloat, -1);
  if (PyComplex_CheckExact(o)) return Complex(New(Is::kFloat, -1), New(Is::kFloat, -1), false);
  if (Val v = DescribeNumpy(o, objects); v.is != Is::kNull) return v;
  if (Val v = DescribeIterator(o, objects, true); v.is != Is::kNull) return v;
  if (PyList_CheckExact(o)) return DescribeList(o, objects);
  if (Val v = DescribeLetters(o, objects); v.is != Is::kNull) return v;
  if (PyTuple_CheckExact(o) && PyTuple_GET_SIZE(o) >= 1 && PyTuple_GET_SIZE(o) <= 8) {
    std::vector<Val> items;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); ++i) items.push_back(Describe(PyTuple_GET_ITEM(o, i), objects));
    if (std::all_of(items.begin(), items.end(), [](const Val& v) {
          return v.scalar() || v.is == Is::kComplex || v.is == Is::kTuple || v.is == Is::kLetter;
        }))
      return Tuple(std::move(items));
  }
  for (size_t i = 0; i < objects.size(); ++i)
    if (objects[i].object.get() == o && !objects[i].array && !objects[i].list && !objects[i].fixed)
      return Object(static_cast<int>(i));
  objects.push_back({.object = Borrow(o)});
  return Object(static_cast<int>(objects.size()) - 1);
}

bool HasNoLoops(const std::vector<Loop>& loops, int start) {
  const auto it = std::ranges::find(loops, start, &Loop::start);
  return it != loops.end() &&
         std::ranges::none_of(loops, [&](const Loop& l) { return l.start > start && l.end <= it->end; });
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
  // `continue` in a while loop leads to its condition, which stands again at its end: one loop with two starts. What a
  // handler behind the function's end jumps back to is none.
  const auto handles = [&](int from, int to) {
    for (int at = from; at < to; ++at)
      if (code.At(at).length && code.At(at).op == Op::kPushExcInfo) return true;
    return false;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (Loop& a : loops)
      for (const Loop& b : loops)
        if (a.start < b.start && b.start < a.end && a.end < b.end && !handles(a.end, b.end))
          a.end = b.end, changed = true;
  }
  for (Loop& l : loops) {
    l.enter = l.start;
    l.iterates = code.At(l.start).op == Op::kForIter;
    for (int at = std::max(0, l.start - 4); at < l.start; ++at)
      if (code.At(at).length && at + code.At(at).length == l.start && code.At(at).op == Op::kGetIter) l.enter = at;
  }
  std::sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) { return a.end - a.start < b.end - b.start; });
  return loops;
}

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

}  // namespace framejit::capture::scalar
