// See the header.
#include "capture/scalar_loops.h"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <chrono>

#include "capture/policy.h"
#include "capture/scalar_translate.h"
#include "diag/diag.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"

namespace framejit::capture {

using scalar::ExitState;
using scalar::Is;
using scalar::NameGuard;
using scalar::ObjectSpec;
using scalar::Slot;
using scalar::Translation;
using scalar::Val;

namespace {

// A loop becomes code when it is come to again. One in another that does waits for that, but where it runs so many
// instructions before.
constexpr int kVisits = 2;
constexpr int64_t kInnerWork = 40'000;
// What is compiled for long wants so many instructions that the loop has run, or will, for each block; Python runs them
// in about a fourth of the time that the block takes. Otherwise it is asked again when it was come to more often.
constexpr int kSmallCode = 64;
constexpr int64_t kWorkForBlock = 750;
constexpr int kPatience = 8;
constexpr int64_t kWorkOfRound = 16;  // in code
constexpr int kVersions = 4;
// After so many runs it must have gone round so often in each.
constexpr int64_t kRuns = 64, kRounds = 3;
constexpr int kUnderflow = 4;  // of NumpyTraps

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct SeqIter {  // Objects/iterobject.c and listobject.c
  PyObject_HEAD Py_ssize_t index;
  PyObject* seq;
};

// Are the iterators' structs what we think?
bool IteratorsAreKnown() {
  static const bool known = [] {
    Ref range(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyRange_Type), "iii", 3, 20, 4));
    Ref it(range ? PyObject_GetIter(range.get()) : nullptr);
    Ref list(Py_BuildValue("[i,i,i]", 1, 2, 3));
    Ref items(list ? PyObject_GetIter(list.get()) : nullptr);
    Ref others(list ? PySeqIter_New(list.get()) : nullptr);
    for (int i = 0; i < 2; ++i)
      for (const Ref* r : {&it, &items, &others})
        if (!*r || !Ref(PyIter_Next(r->get()))) return PyErr_Clear(), false;
    long next, step, left;
    bool good = fj_range_state(it.get(), &next, &step, &left) && next == 11 && step == 4 && left == 3;
    for (const Ref* r : {&items, &others}) {
      const auto* s = reinterpret_cast<SeqIter*>(r->get());
      good &= s->index == 2 && s->seq == list.get();
    }
    return good;
  }();
  return known;
}

// Nothing of the program sees when it dies.
bool DiesUnseen(PyObject* o) {
  const tensor::NumpyApi* api = tensor::Numpy();
  return !o || o == Py_None || PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyBool_Check(o) ||
         PyUnicode_CheckExact(o) || (api && (Py_TYPE(o) == api->array || tensor::ScalarDType(*api, Py_TYPE(o))));
}

}  // namespace

struct CodeLoops::Version {
  Translation t;
  codegen::CompiledScalar code;
};

struct CodeLoops::Head {
  scalar::Loop loop;
  int unit = 0;            // of its first instruction
  bool candidate = false;  // a capture wants it, or it was translated
  bool declined = false;   // to a capture, which does not know all that the frame will hold
  bool off = false;
  int visits = 0;
  int again = 0;                          // if not 0, nothing is compiled before so many visits
  int64_t last = 0, work = 0, round = 0;  // when it was last come to; that frames ran in it; in one round
  int64_t runs = 0, rounds = 0;
  std::vector<std::unique_ptr<Version>> versions;
};

namespace {

// From the frame into cells.
class Reader {
 public:
  Reader(const Translation& t, int64_t* cells, PyObject** objects) : t_(t), cells_(cells), objects_(objects) {}

  bool Frame(FjFrame* frame) {
    PyObject** slots = fj_localsplus(frame);
    if (fj_stack_depth(frame) != static_cast<int>(t_.stack.size())) return false;
    for (const Slot& s : t_.locals) {
      PyObject* o = slots[s.slot];
      if (o && PyCell_Check(o)) o = PyCell_GET(o);
      if (!s.live ? !DiesUnseen(o) : !Read(s, o)) return false;
    }
    for (const Slot& s : t_.stack)
      if (!Read(s, slots[fj_nlocalsplus(frame) + s.slot])) return false;
    for (size_t k = 0; k < t_.objects.size(); ++k)
      if (!Object(static_cast<int>(k))) return false;
    return !t_.apart || Apart(t_, objects_);
  }

  // Does what the code writes lie in one array alone?
  static bool Apart(const Translation& t, PyObject* const* objects) {
    struct Extent {
      const char *begin, *end;
      bool written;
    };
    absl::InlinedVector<Extent, 16> all;
    for (size_t k = 0; k < t.objects.size(); ++k) {
      const ObjectSpec& spec = t.objects[k];
      if (!spec.array || spec.cells < 0 || !objects[k]) continue;
      const tensor::NumpyArray* a = tensor::AsArray(objects[k]);
      Extent e{a->data, a->data + DTypeSize(spec.dtype), spec.written};
      bool empty = false;
      for (int i = 0; i < a->nd; ++i) {
        const intptr_t reach = (a->dims[i] - 1) * a->strides[i];
        (reach < 0 ? e.begin : e.end) += reach;
        empty |= a->dims[i] == 0;
      }
      if (empty) continue;
      for (const Extent& other : all)
        if ((e.written || other.written) && e.begin < other.end && other.begin < e.end) return false;
      all.push_back(e);
    }
    return true;
  }

  static bool Guards(const Translation& t) {
    for (const NameGuard& g : t.guards) {
      PyObject* o = PyDict_GetItemWithError(g.dict.get(), g.name.get());
      if (!o && g.builtins) o = PyDict_GetItemWithError(g.builtins.get(), g.name.get());
      if (o != g.value.get()) return PyErr_Clear(), false;
    }
    return !t.floats || !(tensor::NumpyTraps() & kUnderflow);
  }

 private:
  bool Read(const Slot& s, PyObject* o) {
    size_t leaf = 0;
    return Value(s.val, o, s.cells, &leaf);
  }

  bool Known(int k, PyObject* o) {
    if (!o || (objects_[k] && objects_[k] != o)) return false;
    objects_[k] = o;
    return true;
  }

  template <typename T>
  void Put(int cell, T v) {
    cells_[cell] = 0;
    memcpy(&cells_[cell], &v, sizeof(T));
  }

  bool Value(const Val& v, PyObject* o, const std::vector<int>& cells, size_t* leaf) {
    switch (v.is) {
      case Is::kNull: return !o;
      case Is::kFrame: return true;
      case Is::kObject: return Known(v.object, o);
      case Is::kBool:
        if (!o || !PyBool_Check(o)) return false;
        return Put<int64_t>(cells[(*leaf)++], o == Py_True), true;
      case Is::kInt: {
        if (!o || !PyLong_CheckExact(o)) return false;
        int overflow;
        Put<int64_t>(cells[(*leaf)++], PyLong_AsLongLongAndOverflow(o, &overflow));
        return !overflow;
      }
      case Is::kFloat:
        if (!o || !PyFloat_CheckExact(o)) return false;
        return Put(cells[(*leaf)++], PyFloat_AS_DOUBLE(o)), true;
      case Is::kNumpy: return Numpy(v.dtype, o, cells[(*leaf)++]);
      case Is::kTuple:
        if (!o || !PyTuple_CheckExact(o) || PyTuple_GET_SIZE(o) != static_cast<Py_ssize_t>(v.items.size()))
          return false;
        for (size_t i = 0; i < v.items.size(); ++i)
          if (!Value(v.items[i], PyTuple_GET_ITEM(o, i), cells, leaf)) return false;
        return true;
      case Is::kRange:
      case Is::kSlice:
      case Is::kView:
      case Is::kDeferred: return false;
      case Is::kRangeIter: return Range(v, o, cells);
      case Is::kSeqIter: {
        if (!o || Py_REFCNT(o) != 1) return false;
        if (Py_TYPE(o) != (t_.objects[v.object].list ? &PyListIter_Type : &PySeqIter_Type)) return false;
        const auto* s = reinterpret_cast<SeqIter*>(o);
        Put<int64_t>(cells[0], s->index);
        return s->index >= 0 && Known(v.object, s->seq);
      }
    }
    return false;
  }

  // An iterator that somebody else has, too, must stay what it is.
  bool Range(const Val& v, PyObject* o, const std::vector<int>& cells) {
    long next, step, left;
    if (!o || Py_REFCNT(o) != 1 || !fj_range_state(o, &next, &step, &left) || (v.unit && step != 1) ||
        (v.natural && next < 0))
      return false;
    Put<int64_t>(cells[0], next), Put<int64_t>(cells[1], step), Put<int64_t>(cells[2], left);
    int64_t stop;
    if (!v.unit) return true;
    if (__builtin_add_overflow(static_cast<int64_t>(next), static_cast<int64_t>(left), &stop)) return false;
    Put<int64_t>(cells[2], stop);
    return true;
  }

  bool Numpy(DType t, PyObject* o, int cell) {
    const tensor::NumpyApi* api = tensor::Numpy();
    if (!o || !api || Py_TYPE(o) != api->scalar[static_cast<int>(t)]) return false;
    const char* data = reinterpret_cast<const char*>(o) + sizeof(PyObject);  // PyDoubleScalarObject and its like
    switch (t) {
      case DType::kBool: Put<int64_t>(cell, *reinterpret_cast<const uint8_t*>(data) != 0); break;
      case DType::kUInt8: Put<int64_t>(cell, *reinterpret_cast<const uint8_t*>(data)); break;
      case DType::kInt8: Put<int64_t>(cell, *reinterpret_cast<const int8_t*>(data)); break;
      case DType::kUInt16: Put<int64_t>(cell, *reinterpret_cast<const uint16_t*>(data)); break;
      case DType::kInt16: Put<int64_t>(cell, *reinterpret_cast<const int16_t*>(data)); break;
      case DType::kUInt32: Put<int64_t>(cell, *reinterpret_cast<const uint32_t*>(data)); break;
      case DType::kInt32: Put<int64_t>(cell, *reinterpret_cast<const int32_t*>(data)); break;
      case DType::kInt64: Put<int64_t>(cell, *reinterpret_cast<const int64_t*>(data)); break;
      case DType::kFloat32: Put(cell, *reinterpret_cast<const float*>(data)); break;
      case DType::kFloat64: Put(cell, *reinterpret_cast<const double*>(data)); break;
      default: return false;
    }
    return true;
  }

  bool Object(int k) {
    const ObjectSpec& spec = t_.objects[k];
    if (spec.fixed) objects_[k] = spec.object.get();
    if (!spec.used) return true;
    PyObject* o = objects_[k];
    if (spec.array) return o ? Array(spec, o) : spec.cells < 0;
    if (spec.list) {
      if (!o) return spec.cells < 0;
      if (!PyList_CheckExact(o)) return false;
      if (spec.cells >= 0) Put(spec.cells, o), Put<int64_t>(spec.cells + 1, PyList_GET_SIZE(o));
      return true;
    }
    if (o != spec.object.get()) return false;
    return !spec.code || reinterpret_cast<PyFunctionObject*>(o)->func_code == spec.code.get();
  }

  bool Array(const ObjectSpec& spec, PyObject* o) {
    const tensor::NumpyApi* api = tensor::Numpy();
    if (!api || Py_TYPE(o) != api->array) return false;
    const tensor::NumpyArray* a = tensor::AsArray(o);
    const auto* descr = reinterpret_cast<const tensor::NumpyDescr*>(a->descr);
    const int wanted = tensor::kNpyAligned | (spec.written ? tensor::kNpyWriteable : 0);
    if (tensor::FromTypeNum(descr->type_num) != spec.dtype || a->nd != spec.rank || (a->flags & wanted) != wanted ||
        (descr->byteorder != '=' && descr->byteorder != '|') ||
        (spec.unit && a->strides[spec.rank - 1] != DTypeSize(spec.dtype)))
      return false;
    if (spec.cells < 0) return true;
    Put(spec.cells, a->data);
    for (int i = 0; i < spec.rank; ++i) {
      Put<int64_t>(spec.cells + 1 + i, a->dims[i]);
      Put<int64_t>(spec.cells + 1 + spec.rank + i, a->strides[i]);
    }
    return true;
  }

  const Translation& t_;
  int64_t* cells_;
  PyObject** objects_;
};

// From cells to objects of Python.
class Writer {
 public:
  Writer(const Translation& t, const int64_t* cells, PyObject* const* objects)
      : t_(t), cells_(cells), objects_(objects) {}

  // False: an exception is set, and the frame is as it was.
  bool Frame(FjFrame* frame, const ExitState& e) {
    PyObject** slots = fj_localsplus(frame);
    PyObject** base = slots + fj_nlocalsplus(frame);
    std::vector<std::pair<int, Ref>> locals;
    std::vector<Ref> stack;
    for (const Slot& s : e.locals) {
      if (!cells_[s.changed]) continue;
      size_t leaf = 0;
      locals.emplace_back(s.slot, Ref(Make(s.val, s.cells, &leaf)));
      if (!locals.back().second && s.val.is != Is::kNull) return false;
    }
    for (const Slot& s : e.stack) {
      size_t leaf = 0;
      stack.push_back(s.val.is == Is::kFrame ? Borrow(base[s.slot]) : Ref(Make(s.val, s.cells, &leaf)));
      if (!stack.back() && s.val.is != Is::kNull && s.val.is != Is::kFrame) return false;
    }
    std::vector<Ref> old;  // dies when all is in its place
    for (auto& [slot, value] : locals) {
      old.emplace_back(slots[slot]);
      slots[slot] = value.release();
    }
    for (int i = fj_stack_depth(frame); i-- > 0;) old.emplace_back(base[i]);
    for (size_t i = 0; i < stack.size(); ++i) base[i] = stack[i].release();
    fj_set_stack_depth(frame, static_cast<int>(stack.size()));
    fj_set_next(frame, e.next);
    return true;
  }

 private:
  template <typename T>
  T Get(int cell) const {
    T v;
    memcpy(&v, &cells_[cell], sizeof v);
    return v;
  }

  PyObject* Make(const Val& v, const std::vector<int>& cells, size_t* leaf) {
    switch (v.is) {
      case Is::kNull:
      case Is::kDeferred:
      case Is::kFrame: return nullptr;
      case Is::kObject: return Py_XNewRef(objects_[v.object]);
      case Is::kBool: return PyBool_FromLong(cells_[cells[(*leaf)++]] != 0);
      case Is::kInt: return PyLong_FromLongLong(cells_[cells[(*leaf)++]]);
      case Is::kFloat: return PyFloat_FromDouble(Get<double>(cells[(*leaf)++]));
      case Is::kNumpy: return Numpy(v.dtype, cells[(*leaf)++]);
      case Is::kTuple: {
        Ref tuple(PyTuple_New(v.items.size()));
        for (size_t i = 0; tuple && i < v.items.size(); ++i) {
          PyObject* item = Make(v.items[i], cells, leaf);
          if (!item) return nullptr;
          PyTuple_SET_ITEM(tuple.get(), i, item);
        }
        return tuple.release();
      }
      case Is::kRange:
        return PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyRange_Type), "LLL", (long long)cells_[cells[0]],
                                     (long long)cells_[cells[1]], (long long)cells_[cells[2]]);
      case Is::kRangeIter: {
        const int64_t next = cells_[cells[0]], last = cells_[cells[2]];
        const int64_t left = !v.unit ? last : last > next ? last - next : 0;
        return Range(next, cells_[cells[1]], left);
      }
      case Is::kSeqIter: return Sequence(v, cells_[cells[0]]);
      case Is::kSlice: {
        Ref parts[3];
        for (int i = 0; i < 3; ++i)
          if (!(parts[i] = Ref(Make(v.items[i], cells, leaf)))) return nullptr;
        return PySlice_New(parts[0].get(), parts[1].get(), parts[2].get());
      }
      case Is::kView: {
        std::vector<int64_t> numbers;
        for (size_t i = 0; i < v.items.size(); ++i) numbers.push_back(cells_[cells[(*leaf)++]]);
        return View(objects_[v.object], numbers);
      }
    }
    return nullptr;
  }

  PyObject* Range(long long next, long long step, long long left) {
    long long stop;
    if (left <= 0)
      next = stop = 0, step = 1;
    else if (__builtin_mul_overflow(step, left, &stop) || __builtin_add_overflow(stop, next, &stop))
      stop = next + step * (left - 1) + (step > 0 ? 1 : -1);
    Ref range(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyRange_Type), "LLL", next, stop, step));
    return range ? PyObject_GetIter(range.get()) : nullptr;
  }

  PyObject* Sequence(const Val& v, int64_t index) {
    PyObject* seq = objects_[v.object];
    PyObject* it = t_.objects[v.object].list ? PyObject_GetIter(seq) : PySeqIter_New(seq);
    if (it) reinterpret_cast<SeqIter*>(it)->index = index;
    return it;
  }

  // As NumPy's own indexing makes it.
  static PyObject* View(PyObject* of, const std::vector<int64_t>& numbers) {
    const tensor::NumpyApi* api = tensor::Numpy();
    const tensor::NumpyArray* a = tensor::AsArray(of);
    const int rank = static_cast<int>(numbers.size() / 2);
    const auto* sizes = reinterpret_cast<const intptr_t*>(numbers.data() + 1);
    PyObject* view = api->new_from_descr(api->array, Py_NewRef(a->descr), rank, sizes, sizes + rank,
                                         a->data + numbers[0], a->flags, nullptr);
    return !view || api->set_base(view, Py_NewRef(of)) < 0 ? Py_XDECREF(view), nullptr : view;
  }

  PyObject* Numpy(DType t, int cell) {
    const tensor::NumpyApi* api = tensor::Numpy();
    int64_t data = cells_[cell];  // little endian: the low bytes come first
    return api->make_scalar(&data, api->descr[static_cast<int>(t)], nullptr);
  }

  const Translation& t_;
  const int64_t* cells_;
  PyObject* const* objects_;
};

}  // namespace

CodeLoops::CodeLoops(PyCodeObject* code) {
  const bytecode::Code* decoded = bytecode::Code::Of(code);
  if (!decoded) {
    PyErr_Clear();
    return;
  }
  starts_.resize(decoded->size() + 1);
  for (const scalar::Loop& loop : scalar::LoopsOf(*decoded)) {
    heads_.push_back(std::make_unique<Head>());
    heads_.back()->loop = loop;
    heads_.back()->unit = decoded->At(loop.start).unit;
    starts_[loop.start] = true;
  }
}
CodeLoops::~CodeLoops() = default;

CodeLoops::Head* CodeLoops::Find(int index) {
  for (auto& p : heads_)
    if (p->loop.start == index) return p.get();
  return nullptr;
}

bool CodeLoops::any() const {
  return std::any_of(heads_.begin(), heads_.end(),
                     [](auto& p) { return !p->off && (p->candidate || !p->versions.empty()); });
}

bool CodeLoops::Promising(FjFrame* frame, int index) {
  Head* head = Find(index);
  return head && Try(*head, frame, index);
}

bool CodeLoops::Enters(FjFrame* frame, int index) {
  for (auto& p : heads_)
    if (p->loop.enter == index && index != p->loop.start) return Try(*p, frame, index);
  return false;
}

bool CodeLoops::Considered(FjFrame* frame) {
  const int at = fj_next(frame);
  for (auto& p : heads_)
    if (p->loop.Holds(at) && Try(*p, frame, at)) return true;
  return false;
}

bool CodeLoops::Try(Head& head, FjFrame* frame, int from) {
  if (head.off || head.declined) return false;
  if (head.candidate) return true;
  const Translation t = scalar::Translate(frame, head.loop, from, {});
  if (!t.loops) {
    (Capturing() || from != head.loop.start ? head.declined : head.off) = true;
    diag::Log(diag::Channel::loop_, "no scalar code: " + t.why);
    return false;
  }
  for (auto& p : heads_)  // and those around it
    if (p->loop.start <= head.loop.start && p->loop.end >= head.loop.end) p->candidate = true;
  return true;
}

// Instructions that the frame will run until this loop ends; where that is not known, as many as it has run in it.
int64_t CodeLoops::Expected(const Head& head, FjFrame* frame) {
  const int depth = fj_stack_depth(frame);
  PyObject* it = head.loop.iterates && depth ? fj_localsplus(frame)[fj_nlocalsplus(frame) + depth - 1] : nullptr;
  const tensor::NumpyApi* api = tensor::Numpy();
  long next, step, left;
  if (!it) return head.work;
  if (!fj_range_state(it, &next, &step, &left)) {
    if (Py_TYPE(it) != &PySeqIter_Type && Py_TYPE(it) != &PyListIter_Type) return head.work;
    const auto* s = reinterpret_cast<SeqIter*>(it);
    const bool list = s->seq && PyList_CheckExact(s->seq), array = s->seq && api && Py_TYPE(s->seq) == api->array;
    if (!list && !(array && tensor::AsArray(s->seq)->nd == 1)) return head.work;
    left = (list ? PyList_GET_SIZE(s->seq) : tensor::AsArray(s->seq)->dims[0]) - s->index;
  }
  return std::clamp<int64_t>(left, 0, int64_t{1} << 32) * std::min(head.round, int64_t{1} << 24);
}

// Is it time to make code for it?
bool CodeLoops::Wanted(const Head& head, FjFrame* frame) const {
  if (head.versions.size() >= kVersions || head.visits < std::max(kVisits, head.again)) return false;
  const bool inner = std::any_of(heads_.begin(), heads_.end(), [&](auto& p) {
    return p.get() != &head && !p->off && p->candidate && p->loop.start <= head.loop.start &&
           p->loop.end >= head.loop.end && (p->versions.empty() || p->versions.back()->t.why.empty());
  });
  return !inner || head.work > kInnerWork || Expected(head, frame) > kInnerWork;
}

void CodeLoops::Compile(Compiled& compiled, Head& head, FjFrame* frame) {
  const double start = Now();
  auto made = std::make_unique<Version>();
  scalar::Hopes hopes{.natural = head.versions.empty()};
  made->t = scalar::Translate(frame, head.loop, head.loop.start, hopes);
  std::vector<PyObject*> objects;
  for (const ObjectSpec& spec : made->t.objects) objects.push_back(spec.object.get());
  if (made->t.apart && !Reader::Apart(made->t, objects.data())) {
    hopes.apart = false;
    made->t = scalar::Translate(frame, head.loop, head.loop.start, hopes);
  }
  const std::string name = PyUnicode_AsUTF8(fj_code(frame)->co_qualname);
  if (!made->t.loops) {
    if (head.versions.empty())
      head.off = true;
    else
      head.visits = 0;
    diag::Log(diag::Channel::loop_, "no scalar code: " + made->t.why + "  [" + name + "]");
    return;
  }
  const int blocks = made->t.blocks;
  if (blocks > kSmallCode && head.work + Expected(head, frame) < kWorkForBlock * blocks) {
    head.off = head.versions.empty();
    head.again = kPatience * head.visits;
    diag::Log(diag::Channel::loop_, "no scalar code yet: " + std::to_string(blocks) + " blocks  [" + name + "]");
    return;
  }
  try {
    made->code = codegen::CompileScalar(made->t.code);
    if (diag::Enabled(diag::Channel::llvm_)) diag::Log(diag::Channel::llvm_, codegen::ScalarText(made->t.code, false));
    if (diag::Enabled(diag::Channel::asm_)) diag::Log(diag::Channel::asm_, codegen::ScalarText(made->t.code, true));
  } catch (const std::exception& e) {
    head.off = true;
    diag::Warn(std::string("framejit: a loop has no code: ") + e.what());
    return;
  }
  compiled.seconds += Now() - start;
  ++compiled.scalar_loops;
  const std::string note = "the loop at line " + std::to_string(PyCode_Addr2Line(fj_code(frame), 2 * head.unit)) +
                           " of " + name + " is machine code";
  if (std::find(compiled.notes.begin(), compiled.notes.end(), note) == compiled.notes.end())
    compiled.notes.push_back(note);
  if (diag::Enabled(diag::Channel::loop_))
    diag::Log(diag::Channel::loop_,
              "scalar code for instructions " + std::to_string(head.loop.start) + " to " +
                  std::to_string(head.loop.end) + ": " + std::to_string(made->t.code.blocks.size()) + " blocks, " +
                  std::to_string(made->t.exits.size()) + " exits, " + std::to_string((Now() - start) * 1e3) + " ms" +
                  (made->t.why.empty() ? "" : ", but for " + made->t.why) + "  [" + name + "]");
  made->t.code = {};
  for (ObjectSpec& spec : made->t.objects)  // what is found in the frame again is not kept alive
    if (!spec.fixed && (spec.array || spec.list || !spec.used)) spec.object = Ref();
  head.versions.push_back(std::move(made));
}

std::optional<frame::Action> CodeLoops::At(Compiled& compiled, FjFrame* frame, bool* ran) {
  const int at = fj_next(frame);
  ++work_;
  Head* head = at < static_cast<int>(starts_.size()) && starts_[at] ? Find(at) : nullptr;
  // No segments are made in such loops, but where something in them is not understood.
  const auto waits = [&]() -> std::optional<frame::Action> {
    for (auto& p : heads_)
      if (p->candidate && !p->off && p->loop.Holds(at) && (p->versions.empty() || p->versions.back()->t.why.empty()))
        return frame::Action::kStep;
    return {};
  };
  if (!head) return waits();
  if (head->visits++) {
    head->round = work_ - head->last;
    head->work += head->round;
  }
  head->last = work_;
  if (head->again && head->visits >= head->again) head->off &= !head->versions.empty(), head->again = 0;
  if (head->off) return waits();
  if (head->versions.empty() && !head->candidate && head->visits == kVisits) {
    head->declined = false;
    Promising(frame, at);
  }
  if (head->off) return {};
  bool tried = false;
  for (size_t i = 0;; ++i) {
    if (i == head->versions.size()) {
      if (tried || !head->candidate || !Wanted(*head, frame)) return waits();
      Compile(compiled, *head, frame);
      tried = true;
      if (i == head->versions.size()) return waits();
    }
    const Translation& t = head->versions[i]->t;
    if (!Reader::Guards(t)) continue;
    std::vector<int64_t> cells(t.cells);
    std::vector<PyObject*> objects(t.objects.size());
    if (!Reader(t, cells.data(), objects.data()).Frame(frame)) continue;
    uint32_t bits;
    cells[scalar::kBreakerCell] = reinterpret_cast<int64_t>(fj_breaker(PyThreadState_Get(), &bits));
    const int64_t exit = head->versions[i]->code.fn(cells.data(), 0);
    ++compiled.scalar_runs;
    *ran = true;
    head->rounds += cells[0];
    work_ += kWorkOfRound * cells[0];
    ++head->runs;
    if (head->runs >= kRuns && head->rounds < kRounds * head->runs) head->off = true;
    const ExitState& e = t.exits[exit];
    if (!Writer(t, cells.data(), objects.data()).Frame(frame, e)) return frame::Action::kRaise;
    if (e.breaker && !ServeBreaker(frame)) return frame::Action::kRaise;
    return e.usual || e.breaker ? frame::Action::kAgain : frame::Action::kStep;
  }
}

bool ServeBreaker(FjFrame* frame) {
  PyThreadState* ts = PyThreadState_Get();
  return !(fj_interrupts(ts, frame) & FJ_BREAKER) || fj_poll(ts) >= 0;
}

CodeLoops* LoopsOf(Compiled& compiled, CodeState& state, PyCodeObject* code) {
  if (!diag::OptionOn("scalar_loops")) return nullptr;
  if (!state.loops) {
    if (state.skip || compiled.fullgraph || compiled.backend != "llvm" || !IteratorsAreKnown()) return nullptr;
    state.loops = std::make_shared<CodeLoops>(code);
  }
  return state.loops->none() ? nullptr : state.loops.get();
}

}  // namespace framejit::capture
