// See the header.
#include "capture/scalar/objects.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "capture/policy/compiled_function.h"
#include "capture/scalar/iterators.h"
#include "diag/diag.h"
#include "tensor/numpy_api.h"
#include "tensor/tensor.h"

namespace framejit::capture::scalar {

namespace {

constexpr int kUnderflow = 4;  // of NumpyTraps

// Copies the frame's objects into cells.
class Reader {
 public:
  Reader(const Translation& t, int64_t* cells, PyObject** objects) : t_(t), cells_(cells), objects_(objects) {}

  bool Slots(PyObject* const* locals, PyObject* const* stack, int depth) {
    if (depth != static_cast<int>(t_.stack.size())) return false;
    for (const Slot& s : t_.locals) {
      PyObject* o = locals[s.slot];
      if (o && PyCell_Check(o)) o = PyCell_GET(o);
      if (!s.live ? !DiesUnseen(o) : !Read(s, o)) return false;
    }
    for (const Slot& s : t_.stack)
      if (!Read(s, stack[s.slot])) return false;
    for (size_t k = 0; k < t_.objects.size(); ++k)
      if (!Object(static_cast<int>(k))) return false;
    return !t_.apart || LieApart(t_, objects_);
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
        const int64_t number = PyLong_AsLongLongAndOverflow(o, &overflow);
        Put<int64_t>(cells[(*leaf)++], number);
        return !overflow && (!v.small || IsSmall(number)) && (!v.natural || number >= 0);
      }
      case Is::kFloat:
        if (!o || !PyFloat_CheckExact(o)) return false;
        return Put(cells[(*leaf)++], PyFloat_AS_DOUBLE(o)), true;
      case Is::kNumpy: return Numpy(v.dtype, o, cells[(*leaf)++]);
      case Is::kEither: {
        const int number = cells[(*leaf)++], numpy = cells[(*leaf)++];
        const DType t = v.items[0].dtype;
        const bool python = o && (t == DType::kInt64 ? PyLong_CheckExact(o) : PyFloat_CheckExact(o));
        Put<int64_t>(numpy, !python);
        if (!python) return Numpy(t, o, number);
        int overflow = 0;
        if (t == DType::kInt64)
          Put<int64_t>(number, PyLong_AsLongLongAndOverflow(o, &overflow));
        else
          Put(number, PyFloat_AS_DOUBLE(o));
        return !overflow;
      }
      case Is::kTuple:
        if (!o || !PyTuple_CheckExact(o) || PyTuple_GET_SIZE(o) != static_cast<Py_ssize_t>(v.items.size()))
          return false;
        for (size_t i = 0; i < v.items.size(); ++i)
          if (!Value(v.items[i], PyTuple_GET_ITEM(o, i), cells, leaf)) return false;
        return true;
      case Is::kComplex: return Complex(v, o, cells, leaf);
      case Is::kLetter: {
        const int letter = o ? LetterOf(o) : -1;
        return Put<int64_t>(cells[(*leaf)++], letter), letter >= 0;
      }
      case Is::kAddress:
      case Is::kRange:
      case Is::kSlice:
      case Is::kView:
      case Is::kLiteral:
      case Is::kDeferred: return false;
      default: return Iterator(v, o, cells, leaf);
    }
    return false;
  }

  // An iterator that somebody else has, too, must stay what it is.
  bool Iterator(const Val& v, PyObject* o, const std::vector<int>& cells, size_t* leaf) {
    if (!o || Py_REFCNT(o) != 1) return false;
    switch (v.is) {
      case Is::kRangeIter: return Range(v, o, cells, leaf);
      case Is::kSeqIter:
      case Is::kBackIter: {
        const PyTypeObject* back = t_.objects[v.items[1].object].list ? ListReverseIterator() : &PyReversed_Type;
        if (v.is == Is::kBackIter ? Py_TYPE(o) != back : !IsSequenceIterator(o)) return false;
        const auto* s = reinterpret_cast<SeqIter*>(o);
        Put<int64_t>(cells[(*leaf)++], s->index);
        return s->index >= 0 && IsSmall(s->index) && s->seq && Known(v.items[1].object, s->seq);
      }
      case Is::kTupleIter: {
        const auto* s = reinterpret_cast<SeqIter*>(o);
        return Py_TYPE(o) == &PyTupleIter_Type && s->index == v.node && s->seq &&
               Value(v.items[0], s->seq, cells, leaf);
      }
      case Is::kEnumerate: {
        const auto* e = reinterpret_cast<EnumerateIter*>(o);
        if (Py_TYPE(o) != &PyEnum_Type || e->longindex || (v.natural && (e->index < 0 || !IsSmall(e->index))))
          return false;
        Put<int64_t>(cells[(*leaf)++], e->index);
        return Iterator(v.items[1], e->iterator, cells, leaf);
      }
      case Is::kZip: {
        const auto* z = reinterpret_cast<ZipIter*>(o);
        if (Py_TYPE(o) != &PyZip_Type || z->strict || z->size != static_cast<Py_ssize_t>(v.items.size())) return false;
        for (size_t i = 0; i < v.items.size(); ++i)
          if (!Iterator(v.items[i], PyTuple_GET_ITEM(z->iterators, i), cells, leaf)) return false;
        return true;
      }
      default: return false;
    }
  }

  bool Range(const Val& v, PyObject* o, const std::vector<int>& cells, size_t* leaf) {
    long next, step, left;
    if (!fj_range_state(o, &next, &step, &left) || (v.unit && step != 1) ||
        (v.natural && !GivesNaturals(next, step, left)))
      return false;
    int64_t last = left;
    if (v.unit && __builtin_add_overflow(static_cast<int64_t>(next), last, &last)) return false;
    for (int64_t part : {static_cast<int64_t>(next), static_cast<int64_t>(step), last}) Put(cells[(*leaf)++], part);
    return true;
  }

  bool Complex(const Val& v, PyObject* o, const std::vector<int>& cells, size_t* leaf) {
    double parts[2];
    if (v.dtype != DType::kComplex128) {
      if (!o || !PyComplex_CheckExact(o)) return false;
      const Py_complex c = PyComplex_AsCComplex(o);
      parts[0] = c.real, parts[1] = c.imag;
    } else {
      const tensor::NumpyApi* api = tensor::Numpy();
      if (!o || !api || Py_TYPE(o) != api->scalar[static_cast<int>(v.dtype)]) return false;
      memcpy(parts, reinterpret_cast<const char*>(o) + sizeof(PyObject), sizeof parts);
    }
    for (double part : parts) Put(cells[(*leaf)++], part);
    return true;
  }

  bool Numpy(DType t, PyObject* o, int cell) {
    const tensor::NumpyApi* api = tensor::Numpy();
    return o && api && Py_TYPE(o) == api->scalar[static_cast<int>(t)] && NumberOfScalar(t, o, &cells_[cell]);
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
    if (spec.letters()) {
      if (!o) return spec.cells < 0;
      if (!HoldsLetters(o) || PyBytes_CheckExact(o) != spec.bytes) return false;
      const Py_ssize_t size = PyObject_Size(o);
      if (spec.cells < 0) return true;
      Put(spec.cells, spec.bytes ? PyBytes_AS_STRING(o) : static_cast<const char*>(PyUnicode_DATA(o)));
      Put<int64_t>(spec.cells + 1, size);
      return IsSmall(size);
    }
    return spec.code ? SameFunction(spec, o) : o == spec.object.get();
  }

  // A function that was defined anew is the same to the code: it has no free variables, and no default is asked for.
  static bool SameFunction(const ObjectSpec& spec, PyObject* o) {
    if (!o || !PyFunction_Check(o = BehindCompiled(o))) return false;
    const auto *now = reinterpret_cast<PyFunctionObject*>(o),
               *then = reinterpret_cast<PyFunctionObject*>(BehindCompiled(spec.object.get()));
    return now->func_code == spec.code.get() && now->func_globals == then->func_globals &&
           now->func_builtins == then->func_builtins;
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
      if (!IsSmall(a->dims[i])) return false;
      Put<int64_t>(spec.cells + 1 + i, a->dims[i]);
      Put<int64_t>(spec.cells + 1 + spec.rank + i, a->strides[i]);
    }
    return true;
  }

  const Translation& t_;
  int64_t* cells_;
  PyObject** objects_;
};

// Makes objects of Python from cells.
class Writer {
 public:
  Writer(const int64_t* cells, PyObject* const* objects, Made* made) : cells_(cells), objects_(objects), made_(made) {}

  std::optional<Left> Frame(PyObject* const* locals, PyObject* const* stack, int depth, const ExitState& e) {
    locals_ = locals;
    const bool results = e.returns && !fj_profiled(PyThreadState_Get());
    Left left;
    left.next = e.next;
    const auto made = [&](const Slot& s) {
      if (s.twin < 0) return Ref(Whole(s));
      for (const auto& [slot, value] : left.locals)
        if (slot == s.twin) return value;
      return Borrow(There(locals, s.twin));
    };
    for (const Slot& s : e.locals) {
      if (!cells_[s.changed] || (results && !s.result)) continue;
      left.locals.emplace_back(s.slot, made(s));
      if (!left.locals.back().second && s.val.is != Is::kNull) return {};
    }
    for (const Slot& s : e.stack) {
      if (s.slot < depth && GoesOn(s, stack[s.slot], &left)) continue;
      left.stack.push_back(s.val.is == Is::kFrame ? Borrow(stack[s.slot]) : made(s));
      if (!left.stack.back() && s.val.is != Is::kNull && s.val.is != Is::kFrame) return {};
    }
    return left;
  }

  // Is the iterator in that place one that can go on from here, so that no new one is made?
  bool GoesOn(const Slot& s, PyObject* there, Left* left) {
    if (!there || Py_REFCNT(there) != 1 || s.twin >= 0 || s.val.origin >= 0) return false;
    const Val& v = s.val.is == Is::kChunk ? s.val.items[0] : s.val;
    const auto number = [&](size_t leaf) { return cells_[s.cells[leaf]]; };
    if (v.is == Is::kRangeIter && Py_TYPE(there) == &PyRangeIter_Type) {
      const int64_t next = number(0), last = number(2), count = v.unit ? last - next : last;
      left->iterators.push_back({there, next, number(1), std::max<int64_t>(count, 0)});
    } else if (v.is == Is::kSeqIter && v.items[1].is == Is::kObject && IsSequenceIterator(there) &&
               reinterpret_cast<SeqIter*>(there)->seq == objects_[v.items[1].object]) {
      left->iterators.push_back({there, number(0), 0, 0});
    } else {
      return false;
    }
    left->stack.push_back(Borrow(there));
    return true;
  }

  PyObject* Result(PyObject* const* locals, const ExitState& e) {
    locals_ = locals;
    const Slot* s = &e.stack.back();
    while (s->twin >= 0) {  // the same object as a local, which may have been written to
      const auto local = std::find_if(e.locals.begin(), e.locals.end(),
                                      [&](const Slot& l) { return l.slot == s->twin && cells_[l.changed]; });
      if (local == e.locals.end()) return Py_XNewRef(There(locals, s->twin));
      s = &*local;
    }
    return Whole(*s);
  }

 private:
  template <typename T>
  T Get(int cell) const {
    T v;
    memcpy(&v, &cells_[cell], sizeof v);
    return v;
  }

  PyObject* Whole(const Slot& s) {
    size_t leaf = 0;
    return Make(s.val, s.cells, &leaf);
  }

  static PyObject* There(PyObject* const* locals, int slot) {
    PyObject* there = locals[slot];
    return there && PyCell_Check(there) ? PyCell_GET(there) : there;
  }

  PyObject* Make(const Val& v, const std::vector<int>& cells, size_t* leaf) {
    if (v.origin >= 0 && cells_[v.origin]) {
      *leaf += v.scalar() ? 1 : v.items.size();
      return Py_XNewRef(There(locals_, static_cast<int>(cells_[v.origin]) - 1));
    }
    switch (v.is) {
      case Is::kNull:
      case Is::kLiteral:
      case Is::kDeferred:
      case Is::kFrame: return nullptr;
      case Is::kObject: return Py_XNewRef(objects_[v.object]);
      case Is::kBool: return PyBool_FromLong(cells_[cells[(*leaf)++]] != 0);
      case Is::kInt: return PyLong_FromLongLong(cells_[cells[(*leaf)++]]);
      case Is::kFloat: return PyFloat_FromDouble(Get<double>(cells[(*leaf)++]));
      case Is::kNumpy: return Numpy(v.dtype, cells[(*leaf)++]);
      case Is::kEither: {
        const int number = cells[*leaf];
        const bool numpy = cells_[cells[*leaf + 1]] != 0;
        *leaf += 2;
        const DType t = v.items[0].dtype;
        if (numpy) return Numpy(t, number);
        return t == DType::kInt64 ? PyLong_FromLongLong(cells_[number]) : PyFloat_FromDouble(Get<double>(number));
      }
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
      case Is::kComplex: return Complex(v, cells, leaf);
      case Is::kLetter: return PyUnicode_FromOrdinal(static_cast<int>(cells_[cells[(*leaf)++]]));
      case Is::kAddress: return nullptr;
      case Is::kSlice: {
        Ref parts[3];
        for (int i = 0; i < 3; ++i)
          if (!(parts[i] = Ref(Make(v.items[i], cells, leaf)))) return nullptr;
        return PySlice_New(parts[0].get(), parts[1].get(), parts[2].get());
      }
      case Is::kView: {
        std::vector<int64_t> numbers;
        for (size_t i = 0; i < v.items.size(); ++i) numbers.push_back(cells_[cells[(*leaf)++]]);
        PyObject* of = v.made() ? made_->ArrayAt(reinterpret_cast<char*>(numbers.back())) : objects_[v.object];
        if (v.made()) numbers.pop_back();
        if (!of || v.whole) return Py_XNewRef(of);
        Ref& view = views_[v.same];
        if (!view) view = Ref(View(of, numbers));
        return Py_XNewRef(view.get());
      }
      default: return Iterator(v, cells, leaf);
    }
  }

  PyObject* Iterator(const Val& v, const std::vector<int>& cells, size_t* leaf) {
    switch (v.is) {
      case Is::kRangeIter: {
        const int64_t next = cells_[cells[*leaf]], step = cells_[cells[*leaf + 1]], last = cells_[cells[*leaf + 2]];
        *leaf += v.items.size();
        return Range(next, step, !v.unit ? last : last > next ? last - next : 0);
      }
      case Is::kSeqIter:
      case Is::kBackIter: {
        const int64_t index = cells_[cells[(*leaf)++]];
        const Ref seq(Make(v.items[1], cells, leaf));
        return seq ? Sequence(v, seq.get(), index) : nullptr;
      }
      case Is::kTupleIter: {
        if (v.few) {  // a range
          const size_t n = v.items[0].items.size(), first = *leaf;
          *leaf += n;
          const auto number = [&](size_t k) { return cells_[cells[first + k]]; };
          const int64_t step = n > 1 ? number(1) - number(0) : 1;
          return Range(number(0) + v.node * step, step, static_cast<int64_t>(n) - v.node);
        }
        const Ref tuple(Make(v.items[0], cells, leaf));
        PyObject* it = tuple ? PyObject_GetIter(tuple.get()) : nullptr;
        if (it) reinterpret_cast<SeqIter*>(it)->index = v.node;
        return it;
      }
      case Is::kEnumerate: {
        const int64_t count = cells_[cells[(*leaf)++]];
        const Ref it(Iterator(v.items[1], cells, leaf));
        return it ? PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyEnum_Type), "OL", it.get(),
                                          static_cast<long long>(count))
                  : nullptr;
      }
      case Is::kChunk: {
        PyObject* it = Iterator(v.items[0], cells, leaf);
        ++*leaf;
        return it;
      }
      case Is::kZip: {
        const Ref all(PyTuple_New(v.items.size()));
        for (size_t i = 0; all && i < v.items.size(); ++i) {
          PyObject* it = Iterator(v.items[i], cells, leaf);
          if (!it) return nullptr;
          PyTuple_SET_ITEM(all.get(), i, it);
        }
        return all ? PyObject_CallObject(reinterpret_cast<PyObject*>(&PyZip_Type), all.get()) : nullptr;
      }
      default: return nullptr;
    }
  }

  PyObject* Complex(const Val& v, const std::vector<int>& cells, size_t* leaf) {
    double parts[] = {Get<double>(cells[*leaf]), Get<double>(cells[*leaf + 1])};
    *leaf += 2;
    if (v.dtype != DType::kComplex128) return PyComplex_FromDoubles(parts[0], parts[1]);
    const tensor::NumpyApi* api = tensor::Numpy();
    return api->make_scalar(parts, api->descr[static_cast<int>(v.dtype)], nullptr);
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

  static PyObject* Sequence(const Val& v, PyObject* seq, int64_t index) {
    PyObject* it = v.is == Is::kBackIter ? PyObject_CallOneArg(reinterpret_cast<PyObject*>(&PyReversed_Type), seq)
                                         : PyObject_GetIter(seq);
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

  const int64_t* cells_;
  PyObject* const* objects_;
  PyObject* const* locals_ = nullptr;  // as they were at the entry
  Made* made_;
  std::map<int, Ref> views_;  // by Val::same
};

}  // namespace

bool DiesUnseen(PyObject* o) {
  const tensor::NumpyApi* api = tensor::Numpy();
  return !o || o == Py_None || PyLong_CheckExact(o) || PyFloat_CheckExact(o) || PyBool_Check(o) ||
         PyComplex_CheckExact(o) || PyUnicode_CheckExact(o) ||
         (api && (Py_TYPE(o) == api->array || tensor::ScalarDType(*api, Py_TYPE(o))));
}

bool NumberOfScalar(DType t, PyObject* o, int64_t* cell) {
  const char* data = reinterpret_cast<const char*>(o) + sizeof(PyObject);  // PyDoubleScalarObject and its like
  const auto whole = [&]<typename T>(T) { *cell = static_cast<int64_t>(*reinterpret_cast<const T*>(data)); };
  *cell = 0;
  switch (t) {
    case DType::kBool: *cell = *data != 0; break;
    case DType::kUInt8: whole(uint8_t()); break;
    case DType::kInt8: whole(int8_t()); break;
    case DType::kUInt16: whole(uint16_t()); break;
    case DType::kInt16: whole(int16_t()); break;
    case DType::kUInt32: whole(uint32_t()); break;
    case DType::kInt32: whole(int32_t()); break;
    case DType::kInt64: whole(int64_t()); break;
    case DType::kFloat32: memcpy(cell, data, sizeof(float)); break;
    case DType::kFloat64: memcpy(cell, data, sizeof(double)); break;
    default: return false;
  }
  return true;
}

int LetterOf(PyObject* o) {
  if (!PyUnicode_CheckExact(o) || PyUnicode_GET_LENGTH(o) != 1) return -1;
  const Py_UCS4 letter = PyUnicode_READ_CHAR(o, 0);
  if (letter > 255) return -1;
  const Ref only(PyUnicode_FromOrdinal(static_cast<int>(letter)));
  return only.get() == o ? static_cast<int>(letter) : (PyErr_Clear(), -1);
}

bool HoldsLetters(PyObject* o) {
  return PyBytes_CheckExact(o) || (PyUnicode_CheckExact(o) && PyUnicode_IS_COMPACT_ASCII(o));
}

bool LieApart(const Translation& t, PyObject* const* objects) {
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

bool Names::Hold(const Translation& t) {
  if (t.floats && tensor::NumpyTraps() & kUnderflow) return false;
  if (dicts_.empty())
    for (const NameGuard& g : t.guards)
      for (PyObject* dict : {g.dict.get(), g.builtins.get()})
        if (dict && std::ranges::none_of(dicts_, [&](const auto& known) { return known.first == dict; }))
          dicts_.emplace_back(dict, guard::DictTag());
  if (std::ranges::all_of(dicts_, [](auto& d) { return d.second.Fresh(d.first); })) return true;
  for (auto& [dict, tag] : dicts_) tag.Stamp(dict);
  for (const NameGuard& g : t.guards) {
    PyObject* o = PyDict_GetItemWithError(g.dict.get(), g.name.get());
    if (!o && g.builtins) o = PyDict_GetItemWithError(g.builtins.get(), g.name.get());
    if (o == g.value.get()) continue;
    for (auto& [dict, tag] : dicts_) tag.Invalidate();
    return PyErr_Clear(), false;
  }
  return true;
}

bool ReadSlots(const Translation& t, PyObject* const* locals, PyObject* const* stack, int depth, int64_t* cells,
               PyObject** objects) {
  return Reader(t, cells, objects).Slots(locals, stack, depth);
}

void MakeAlike(Translation& t, const int64_t* cells) {
  std::map<int64_t, int> sizes;  // of each number the first cell
  std::vector<int> all;
  for (const ObjectSpec& o : t.objects)
    for (int i = 0; o.array && o.cells >= 0 && i < o.rank; ++i) {
      all.push_back(o.cells + 1 + i);
      sizes.try_emplace(cells[all.back()], all.back());
    }
  for (const std::vector<Slot>* slots : {&t.locals, &t.stack})
    for (const Slot& s : *slots) {
      if (s.val.is == Is::kInt && s.val.natural) all.push_back(s.cells[0]);
      if (s.val.is == Is::kRangeIter && s.val.unit && s.val.natural) all.push_back(s.cells[2]);
    }
  std::map<int, AlikeNumber> alike;
  for (int cell : all) {
    const auto size = sizes.find(cells[cell]);
    const bool constant = cells[cell] > 0 && cells[cell] <= kSmallSize;
    if (size == sizes.end() || cells[cell] == 0 || (size->second == cell && !constant)) continue;
    alike[cell] = {cell, constant ? -1 : size->second, cells[cell]};
  }
  for (auto& block : t.code.blocks)
    for (codegen::ScalarInst& i : block) {
      const auto it = (i.op == ScalarOp::kInput || i.op == ScalarOp::kCell) && i.type == ScalarType::kInt
                          ? alike.find(static_cast<int>(i.imm))
                          : alike.end();
      if (it == alike.end()) continue;
      i.op = it->second.as < 0 ? ScalarOp::kConst : ScalarOp::kInput;
      i.imm = it->second.as < 0 ? it->second.constant : it->second.as;
      i.natural = i.small = true;
    }
  for (const auto& [cell, number] : alike) t.alike.push_back(number);
}

bool IsAlike(const Translation& t, const int64_t* cells) {
  return std::all_of(t.alike.begin(), t.alike.end(),
                     [&](const AlikeNumber& a) { return cells[a.cell] == (a.as < 0 ? a.constant : cells[a.as]); });
}

std::optional<Left> MakeLeft(PyObject* const* locals, PyObject* const* stack, int depth, const ExitState& e,
                             const int64_t* cells, PyObject* const* objects, Made* made) {
  return Writer(cells, objects, made).Frame(locals, stack, depth, e);
}

PyObject* MakeResult(PyObject* const* locals, const ExitState& e, const int64_t* cells, PyObject* const* objects,
                     Made* made) {
  return Writer(cells, objects, made).Result(locals, e);
}

void Left::Into(FjFrame* frame) {
  frame::Slot* slots = fj_localsplus(frame);
  frame::Slot* base = slots + fj_nlocalsplus(frame);
  absl::InlinedVector<Ref, 12> old;  // dies when all is in its place
  for (const GoesOn& g : iterators) {
    if (Py_TYPE(g.iterator) == &PyRangeIter_Type)
      SetRange(g.iterator, g.next, g.step, g.left);
    else
      reinterpret_cast<SeqIter*>(g.iterator)->index = g.next;
  }
  for (auto& [slot, value] : locals) {
    old.emplace_back(slots[slot].Take());
    slots[slot] = frame::Slot::Of(value.release());
  }
  for (int i = fj_stack_depth(frame); i-- > 0;) old.emplace_back(base[i].Take());
  for (size_t i = 0; i < stack.size(); ++i) base[i] = frame::Slot::Of(stack[i].release());
  fj_set_stack_depth(frame, static_cast<int>(stack.size()));
  fj_set_next(frame, next);
}

}  // namespace framejit::capture::scalar
