// What a call under torch.vmap becomes, by the rule of its function (vmap.h explains the rest).
#include <algorithm>
#include <string_view>

#include "capture/callees.h"
#include "capture/proxy.h"
#include "capture/session.h"
#include "capture/vmap/vmap.h"
#include "capture/vmap/vmap_call.h"
#include "surface/layout.h"
#include "surface/promote.h"

namespace framejit::capture {
namespace {

const Callee kMatMul{"torch.matmul"}, kSqueeze{"torch.Tensor.squeeze"}, kTranspose{"torch.Tensor.transpose"},
    kFlatten{"torch.Tensor.flatten"}, kUnflatten{"torch.Tensor.unflatten"}, kAdd{"torch.add"}, kSub{"torch.sub"},
    kMul{"torch.mul"}, kMean{"torch.mean"}, kSum{"torch.sum"};

// One call with tensors that are batched at one level.
class Peeled : public BatchedCall {
 public:
  using BatchedCall::BatchedCall;

  PyObject* Run();  // Goes by the rule in the function's row of the effects table.

 private:
  struct Rule {
    Batch rule;
    PyObject* (Peeled::*run)();
    bool of_first = false;  // The first argument is batched, and no other one is a tensor.
  };
  static const Rule kRules[];

  PyObject* Unary() {
    const Vmap::Batched b = *At(args_[0]);
    Ref self = Borrow(args_[0]);
    args_[0] = b.inner;
    Ref r(Call());
    if (r.get() == b.inner) return self.release();
    return r ? Wrap(r.get(), b.dim) : nullptr;
  }

  // Does each sample get numbers of its own? Then torch draws for the inner tensor.
  bool DrawsForEach() const { return s_.vmap.levels.size() == 1 && s_.vmap.levels[0].different; }

  PyObject* Draw(int dim) {
    s_.vmap.drawing = true;
    Ref r(Call());
    s_.vmap.drawing = false;
    return r ? Wrap(r.get(), dim) : nullptr;
  }

  // The result is as large as the first argument. Torch moves the hidden dimension to the front first and draws in the
  // order of rows, or draws in the order of memory.
  template <bool kAsItLies>
  PyObject* DrawnLike() {
    const Vmap::Batched* b = args_.empty() ? nullptr : At(args_[0]);
    if (!b || !DrawsForEach()) return Break();
    if (!kAsItLies && (b->dim || !surface::IsContiguous(s_.env(), Meta(b->inner)))) return Break();
    const int dim = b->dim;
    args_[0] = b->inner;
    return Draw(dim);
  }

  PyObject* Drawn() {  // The size is given as rand(2, 3) or as rand((2, 3)).
    if (!DrawsForEach() || (!args_.empty() && At(args_[0]))) return Break();
    const bool spread = positional_ != 1 || PyLong_CheckExact(args_[0]);
    if (!spread && !PyTuple_Check(args_[0]) && !PyList_CheckExact(args_[0])) return Break();
    Ref sizes(spread ? PyList_New(0) : PySequence_List(args_[0]));
    if (!sizes || PyList_Insert(sizes.get(), 0, s_.vmap.levels[0].size.get()) < 0) return nullptr;
    for (Py_ssize_t i = 0; spread && i < positional_; ++i)
      if (PyList_Append(sizes.get(), args_[i]) < 0) return nullptr;
    args_.erase(args_.begin(), args_.begin() + positional_);
    args_.insert(args_.begin(), s_.MarkFresh(sizes.get()));
    positional_ = 1;
    return Draw(0);
  }

  // Products of matrices and vectors: the hidden dimension stands left of those that torch.matmul broadcasts. Their
  // dimensions are those, or any.
  template <int first = 0, int second = 0>
  PyObject* Product() {
    if (args_.size() != 2 || kwnames_ || !IsTensor(args_[0]) || !IsTensor(args_[1])) return Refuse();
    const int ranks[] = {Rank(args_[0]), Rank(args_[1])};
    if (first && (ranks[0] != first || ranks[1] != second)) return Refuse();
    if (!ranks[0] || !ranks[1]) return Refuse();
    if (ranks[0] == 2 && ranks[1] == 1 && !At(args_[0])) {  // one matrix: the vectors are columns of another
      Ref rows = Front(args_[1]), zero(PyLong_FromLong(0)), one(PyLong_FromLong(1));
      Ref columns = rows ? Call(kTranspose, {rows.get(), zero.get(), one.get()}) : Ref();
      Ref r = columns ? Call(kMatMul, {args_[0], columns.get()}) : Ref();
      return r ? Wrap(r.get(), 1) : nullptr;
    }
    const int rank = std::max({ranks[0], ranks[1], 2});
    Ref sides[2];
    for (int i : {0, 1}) {
      sides[i] = Borrow(args_[i]);
      if (ranks[i] == 1) sides[i] = Call(callees::kTensorUnsqueeze, {args_[i], Ref(PyLong_FromLong(i)).get()});
      if (sides[i] && At(sides[i].get())) sides[i] = Front(sides[i].get(), rank);
      if (!sides[i]) return nullptr;
    }
    Ref r = Call(kMatMul, {sides[0].get(), sides[1].get()});
    r = Ref(r ? Wrap(r.get(), 0) : nullptr);
    for (int i : {0, 1})
      if (r && ranks[i] == 1) r = Call(kSqueeze, {r.get(), Ref(PyLong_FromLong(i - 2)).get()});
    return r.release();
  }

  // The function computes with the last dimensions of one argument. The other arguments are the same for all samples.
  template <size_t which = 0>
  PyObject* Leading() {
    if (args_.size() <= which) return Refuse();
    for (size_t i = 0; i < args_.size(); ++i)
      if ((At(args_[i]) != nullptr) != (i == which)) return Refuse();
    Ref front = Front(args_[which]);
    if (!front) return nullptr;
    args_[which] = front.get();
    Ref r(Call());
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  // The samples are pictures of one larger batch.
  PyObject* Convolution() {
    if (args_.size() < 2 || !IsTensor(args_[0]) || !IsTensor(args_[1])) return Refuse();
    const int whole = Rank(args_[1]);  // the weight has as many dimensions as a batch of pictures
    if (!At(args_[0]) || Rank(args_[0]) != whole) return Rank(args_[0]) == whole - 1 ? Leading() : Refuse();
    for (size_t i = 1; i < args_.size(); ++i)
      if (At(args_[i])) return Refuse();
    Ref front = Front(args_[0]), zero(PyLong_FromLong(0)), one(PyLong_FromLong(1));
    Ref all = front ? Call(kFlatten, {front.get(), zero.get(), one.get()}) : Ref();
    if (!all) return nullptr;
    const shape::Ints sizes = Meta(front.get()).sizes;
    Ref parts(PyTuple_New(2));
    for (int i : {0, 1}) PyTuple_SET_ITEM(parts.get(), i, s_.SymIntObject(sizes[i]));
    args_[0] = all.get();
    Ref r(Call());
    if (r) r = Call(kUnflatten, {r.get(), zero.get(), s_.MarkFresh(parts.get())});
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  // Does a tensor of that rank have it? From the back the hidden one would be next.
  static bool HasDim(long d, int rank) { return d >= -rank && d < rank; }

  // Dimensions that count from the front are one further there.
  Ref Next(PyObject* dims, int rank) {
    if (PyLong_CheckExact(dims)) {
      const long d = PyLong_AsLong(dims);
      return HasDim(d, rank) ? Ref(PyLong_FromLong(d + (d >= 0))) : Ref();
    }
    if (!PyTuple_CheckExact(dims)) return {};
    Ref all(PyTuple_New(PyTuple_GET_SIZE(dims)));
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(dims); ++i) {
      Ref one = PyLong_CheckExact(PyTuple_GET_ITEM(dims, i)) ? Next(PyTuple_GET_ITEM(dims, i), rank) : Ref();
      if (!one) return {};
      PyTuple_SET_ITEM(all.get(), i, one.release());
    }
    return Borrow(s_.MarkFresh(all.get()));
  }

  // The dimensions are `count` arguments from `from` on, or given by name. One that is missing is the first dimension.
  template <size_t from, size_t count, bool optional>
  PyObject* Shifted() {
    size_t found = 0;
    std::vector<Ref> kept;
    if (args_.size() < 2 || !At(args_[0])) return Refuse();
    for (size_t i = 1; i < args_.size(); ++i) {
      const std::string_view name = Name(i);
      if (IsTensor(args_[i])) return Refuse();
      const bool dim =
          name.empty() ? i >= from && i < from + count : name == "dim" || name == "source" || name == "destination";
      if (!dim) continue;
      kept.push_back(Next(args_[i], Rank(args_[0])));
      if (!kept.back()) return s_.broken() || PyErr_Occurred() ? nullptr : Refuse();
      args_[i] = kept.back().get();
      ++found;
    }
    if (optional && !found && args_.size() == from && positional_ == static_cast<Py_ssize_t>(from)) {
      kept.emplace_back(PyLong_FromLong(1));
      args_.push_back(kept.back().get());
      ++positional_;
    } else if (found != count) {
      return Refuse();
    }
    Ref front = Front(args_[0]);
    if (!front) return nullptr;
    args_[0] = front.get();
    Ref r(Call());
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  PyObject* AsLargeAs() {
    if (args_.size() != 2 || kwnames_ || !IsTensor(args_[0]) || !IsTensor(args_[1])) return Refuse();
    const shape::Ints all = Meta(args_[1]).sizes;
    Ref sizes = Sizes({}, all);
    return sizes ? Call(callees::kTensorExpand, {args_[0], sizes.get()}).release() : nullptr;
  }

  // All elements of all samples get one number.
  PyObject* Filled() {
    const Vmap::Batched* b = At(args_[0]);
    for (size_t i = 1; i < args_.size(); ++i)
      if (IsTensor(args_[i])) return Break();
    if (!b) return Break();
    Ref self = Borrow(args_[0]);
    args_[0] = b->inner;
    return Ref(Call()) ? self.release() : nullptr;
  }

  PyObject* Copied() {
    if (args_.size() != 2 || kwnames_ || !At(args_[0]) || !IsTensor(args_[1]) || Rank(args_[1]) > Rank(args_[0]))
      return Break();
    Ref self = Borrow(args_[0]), to = Front(args_[0]);
    Ref from = At(args_[1]) ? Front(args_[1], Rank(args_[0])) : Borrow(args_[1]);
    return to && from && Call(callee_, {to.get(), from.get()}) ? self.release() : nullptr;
  }

  // A view, that the program may write to.
  PyObject* Diagonal() {
    long numbers[] = {0, 0, 1};  // offset, dim1, dim2
    if (args_.size() > 4 || !At(args_[0])) return Refuse();
    for (size_t i = 1; i < args_.size(); ++i) {
      const std::string_view name = Name(i);
      if (!PyLong_CheckExact(args_[i])) return Refuse();
      numbers[name.empty() ? i - 1 : name == "dim1" ? 1 : name == "dim2" ? 2 : 0] = PyLong_AsLong(args_[i]);
    }
    if (!HasDim(numbers[1], Rank(args_[0])) || !HasDim(numbers[2], Rank(args_[0]))) return Refuse();
    Ref front = Front(args_[0]), all[3];
    for (int i : {0, 1, 2}) all[i] = Ref(PyLong_FromLong(numbers[i] + (i && numbers[i] >= 0)));
    Ref r = front ? Call(callee_, {front.get(), all[0].get(), all[1].get(), all[2].get()}) : Ref();
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  // What x[key] = value makes of x is computed as a new tensor, and copied into x.
  PyObject* Stored() {
    static const Callee put("framejit._functions.put"), copy("torch.Tensor.copy_");
    if (args_.size() != 3 || kwnames_ || !At(args_[0])) return Break();
    Ref made(CallBatched(s_, level_, put, args_.data(), 3, nullptr));
    const Vmap::Batched b = *At(args_[0]);
    const Vmap::Batched* of = made ? At(made.get()) : nullptr;
    if (!of) return made ? Break() : nullptr;
    Ref from(PyLong_FromLong(of->dim)), to(PyLong_FromLong(b.dim));
    Ref all = Call(callees::kTensorMoveDim, {of->inner, from.get(), to.get()});
    return all && Call(copy, {b.inner, all.get()}) ? Py_NewRef(Py_None) : nullptr;
  }

  PyObject* Shaped() {
    const bool sizes = args_.size() > 1 && (PyTuple_Check(args_[1]) || PyList_CheckExact(args_[1]) ||
                                            PyLong_CheckExact(args_[1]) || IsSymInt(args_[1]));
    return sizes && !kwnames_ && At(args_[0]) ? Sized() : Refuse();
  }

  PyObject* Flattened() {
    if (!At(args_[0]) || !Rank(args_[0]) || args_.size() > 3) return Refuse();
    long ends[] = {0, -1};
    for (size_t i = 1; i < args_.size(); ++i) {
      const std::string_view name = Name(i);
      if (!PyLong_CheckExact(args_[i])) return Refuse();
      ends[name.empty() ? i - 1 : name == "end_dim"] = PyLong_AsLong(args_[i]);
    }
    if (!HasDim(ends[0], Rank(args_[0])) || !HasDim(ends[1], Rank(args_[0]))) return Refuse();
    Ref front = Front(args_[0]);
    Ref from(PyLong_FromLong(ends[0] + (ends[0] >= 0))), to(PyLong_FromLong(ends[1] + (ends[1] >= 0)));
    Ref r = front ? Call(kFlatten, {front.get(), from.get(), to.get()}) : Ref();
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  PyObject* Turned() {
    if (args_.size() != 1 || Rank(args_[0]) > 2) return Refuse();
    if (Rank(args_[0]) < 2) {  // The result is another object with the same memory.
      const Vmap::Batched b = *At(args_[0]);
      Ref r = Call(callees::kTensorViewAs, {b.inner, b.inner});
      return r ? Wrap(r.get(), b.dim) : nullptr;
    }
    return Call(kTranspose, {args_[0], Ref(PyLong_FromLong(0)).get(), Ref(PyLong_FromLong(1)).get()}).release();
  }

  // torch.broadcast_tensors of tensors that all have one size.
  PyObject* AsTheyAre() {
    Ref all(PyTuple_New(static_cast<Py_ssize_t>(args_.size())));
    for (size_t i = 0; all && i < args_.size(); ++i) {
      if (!IsTensor(args_[i]) || Rank(args_[i]) != Rank(args_[0])) return Refuse();
      for (int d = 0; d < Rank(args_[0]); ++d)
        if (!s_.env().Eq(Meta(args_[i]).sizes[d], Meta(args_[0]).sizes[d])) return Refuse();
      PyTuple_SET_ITEM(all.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args_[i]));
    }
    return s_.MarkFresh(all.release());
  }

  // Answers torch._C._nn.mse_loss(input, target, reduction).
  PyObject* SquaredError() {
    if (kwnames_ || args_.size() != 3 || !IsTensor(args_[0]) || !IsTensor(args_[1]) || !PyLong_CheckExact(args_[2]))
      return Refuse();
    const long reduction = PyLong_AsLong(args_[2]);
    Ref apart = Call(kSub, {args_[0], args_[1]});
    Ref r = apart ? Call(kMul, {apart.get(), apart.get()}) : Ref();
    return r && reduction ? Call(reduction == 1 ? kMean : kSum, {r.get()}).release() : r.release();
  }

  PyObject* Linear() {
    if (args_.size() < 2 || args_.size() > 3 || (kwnames_ && Name(args_.size() - 1) != "bias")) return Refuse();
    PyObject *x = args_[0], *w = args_[1], *bias = args_.size() > 2 ? args_[2] : Py_None;
    if (!At(w) && !At(bias)) return Leading();
    if (positional_ < 2 || !IsTensor(x) || !IsTensor(w) || Rank(w) != 2 || !Rank(x)) return Refuse();
    Ref zero(PyLong_FromLong(0)), one(PyLong_FromLong(1));
    Ref turned = Call(kTranspose, {w, zero.get(), one.get()});
    Ref r = turned ? Call(kMatMul, {x, turned.get()}) : Ref();
    if (r && bias != Py_None) r = Call(kAdd, {r.get(), bias});
    return r.release();
  }

  // torch.cat joins at a dimension that the parts have, torch.stack at one more.
  template <int more>
  PyObject* Joined() {
    const bool named = kwnames_ && PyTuple_GET_SIZE(kwnames_);
    if (args_.empty() || args_.size() > 2 || (named && Name(args_.size() - 1) != "dim")) return Refuse();
    PyObject* parts = args_[0];
    if (!(PyTuple_CheckExact(parts) || PyList_CheckExact(parts)) || positional_ < 1) return Refuse();
    PyObject* dim = args_.size() > 1 ? args_[1] : nullptr;
    if (dim && !PyLong_CheckExact(dim)) return Refuse();
    const long d = dim ? PyLong_AsLong(dim) : 0;
    Ref list(PyList_New(0)), to(PyLong_FromLong(d < 0 ? d : d + 1)), size;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(parts); ++i) {
      PyObject* o = PySequence_Fast_GET_ITEM(parts, i);
      if (!IsTensor(o) || Rank(o) != Rank(PySequence_Fast_GET_ITEM(parts, 0)) || !HasDim(d, Rank(o) + more))
        return Refuse();
      if (const Vmap::Batched* b = At(o); b && !size) size = Ref(s_.SymIntObject(Meta(b->inner).sizes[b->dim]));
    }
    for (Py_ssize_t i = 0; size && i < PySequence_Fast_GET_SIZE(parts); ++i) {
      PyObject* o = PySequence_Fast_GET_ITEM(parts, i);
      Ref part = At(o) ? Front(o) : ForAll(o, size.get());
      if (!part || PyList_Append(list.get(), part.get()) < 0) return nullptr;
    }
    if (!size || !list || !to) return nullptr;
    PyObject* call[] = {s_.MarkFresh(list.get()), to.get()};
    Ref r(s_.CallFramework(callee_, call, 2, nullptr));
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  // What does not depend on the batch is repeated, once for each sample.
  Ref ForAll(PyObject* o, PyObject* size) {
    const shape::Ints all = Meta(o).sizes;
    Ref sizes = Sizes({size}, all);
    return sizes ? Call(callees::kTensorExpand, {o, sizes.get()}) : Ref();
  }

  // The hidden dimension is what "..." stands for.
  PyObject* Einsum() {
    const char* text = !args_.empty() && PyUnicode_Check(args_[0]) ? PyUnicode_AsUTF8(args_[0]) : nullptr;
    const std::string equation = text ? text : "";
    const size_t arrow = equation.find("->");
    if (kwnames_ || arrow == equation.npos || equation.find('.') != equation.npos) return Refuse();
    std::string now;
    std::vector<Ref> kept;
    size_t begin = 0;
    for (size_t i = 1; i < args_.size(); ++i) {
      const size_t end = std::min(equation.find(',', begin), arrow);
      if (!IsTensor(args_[i]) || begin > arrow) return Refuse();
      if (At(args_[i])) {
        kept.push_back(Front(args_[i]));
        if (!kept.back()) return nullptr;
        args_[i] = kept.back().get();
        now += "...";
      }
      now += equation.substr(begin, end - begin) + (i + 1 < args_.size() ? "," : "->...");
      begin = end + 1;
    }
    if (begin != arrow + 1) return Refuse();
    kept.emplace_back(PyUnicode_FromString((now + equation.substr(arrow + 2)).c_str()));
    args_[0] = kept.back().get();
    Ref r(args_[0] ? Call() : nullptr);
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  // Computes element by element with at most that many tensors.
  template <int most>
  PyObject* PointwiseOf() {
    return tensors_ > most ? Refuse() : Pointwise();
  }

  PyObject* Pointwise() {
    const bool in_place = callee_.Has(kInPlace);
    if (in_place && (args_.empty() || !At(args_[0]))) return Refuse();
    int rank = 0;
    for (PyObject* o : args_)
      if (IsTensor(o)) rank = std::max(rank, Rank(o));
    // An operand without dimensions has less to say about the type of the result than one that has some, and the inner
    // tensor has one more than the program sees.
    std::vector<Ref> kept;
    std::vector<surface::TypeOperand> types;
    bool scalar = false, other = false, mixed = false;
    for (size_t i = callee_ == callees::kWhere ? 1 : 0; i < args_.size(); ++i) {
      if (!IsTensor(args_[i])) continue;
      (At(args_[i]) && !Rank(args_[i]) ? scalar : other) = true;
      types.push_back({&Meta(args_[i])});
      mixed |= types.back().tensor->dtype != types.front().tensor->dtype;
    }
    if (scalar && other && mixed) {
      if (args_.size() != 2 || in_place) return Refuse();
      Ref type(tensor::DTypeObject(Framework::kTorch, surface::TorchResultType(types, DType::kFloat32)));
      for (PyObject*& a : args_) {
        kept.push_back(Call(callees::kTensorTo, {a, type.get()}));
        if (!kept.back()) return nullptr;
        a = kept.back().get();
      }
    }
    PyObject* self = args_[0];
    if (in_place && Rank(self) < rank) return Refuse();
    for (PyObject*& o : args_) {
      if (!At(o)) continue;
      kept.push_back(Front(o, rank));
      if (!kept.back()) return nullptr;
      o = kept.back().get();
    }
    Ref r(Call());
    if (!r) return nullptr;
    return in_place ? Py_NewRef(self) : Wrap(r.get(), 0);
  }

  // Behind the tensor or by name there are `dims` numbers of dimensions, of a result with `more` of them. None: all.
  template <int dims, int more>
  PyObject* AtDims() {
    PyObject* self = args_[0];
    const int rank = Rank(self) + more;
    // Gives the dimension of the inner tensor that the program's dimension is.
    auto inner = [&](PyObject* dim) -> PyObject* {
      if (!PyLong_CheckExact(dim)) return Refuse();
      const long d = PyLong_AsLong(dim);
      if (PyErr_Occurred()) return nullptr;
      if (d < -rank || d >= rank) return s_.Break(BreakId::kFrameworkError, "dimension out of range");
      return PyLong_FromLong(d + 1 + (d < 0 ? rank : 0));
    };
    std::vector<Ref> kept;
    std::vector<size_t> at;
    for (size_t i = 1; i < args_.size(); ++i) {
      const std::string_view name = Name(i);
      if (name.empty() ? i <= static_cast<size_t>(std::max(dims, 1))
                       : name == "dim" || name == "dim0" || name == "dim1")
        at.push_back(i);
    }
    if (at.size() == 1 && !dims && args_[at[0]] == Py_None) return Refuse();
    if (at.size() != static_cast<size_t>(dims) && (dims || at.size() > 1)) return Refuse();
    kept.push_back(Front(self));
    if (!kept.back()) return nullptr;
    args_[0] = kept.back().get();
    for (size_t i : at) {
      PyObject* dim = args_[i];
      if (PyTuple_CheckExact(dim) || PyList_CheckExact(dim)) {
        const Py_ssize_t n = PySequence_Size(dim);
        if (!n) return Refuse();
        Ref tuple(PyTuple_New(n));
        for (Py_ssize_t k = 0; k < n; ++k) {
          PyObject* item = PySequence_Fast_GET_ITEM(dim, k);
          PyObject* moved = inner(item);
          if (!moved) return nullptr;
          PyTuple_SET_ITEM(tuple.get(), k, moved);
        }
        kept.emplace_back(s_.MarkFresh(tuple.release()));
      } else {
        kept.emplace_back(inner(dim));
      }
      if (!kept.back()) return nullptr;
      args_[i] = kept.back().get();
    }
    if (at.empty()) {
      if (!rank || args_.size() > 1) return Refuse();
      Ref all(PyTuple_New(rank));
      for (int d = 0; d < rank; ++d) PyTuple_SET_ITEM(all.get(), d, PyLong_FromLong(d + 1));
      kept.emplace_back(s_.MarkFresh(all.release()));
      args_.push_back(kept.back().get());
      ++positional_;
    }
    Ref r(Call());
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  PyObject* AtSpreadDims() { return positional_ > 2 ? Refuse() : AtDims<1, 0>(); }  // not x.flip(0, 1)

  PyObject* Sized() {
    const Batch rule = callee_.effects().batch;
    if (positional_ < 2 || (rule == Batch::kExpand && kwnames_)) return Refuse();
    const Vmap::Batched b = *At(args_[0]);
    const bool sequence = PyTuple_Check(args_[1]) || PyList_CheckExact(args_[1]);
    if (!sequence && !callee_.Has(kSizesInArguments)) return Refuse();
    Ref sizes(sequence ? PySequence_List(args_[1]) : PyList_New(0));
    if (!sequence) {  // The sizes are arguments one by one: x.new_zeros(2, 3).
      for (Py_ssize_t i = 1; i < positional_; ++i)
        if (PyList_Append(sizes.get(), args_[i]) < 0) return nullptr;
      args_.erase(args_.begin() + 2, args_.begin() + positional_);
      positional_ = 2;
    }
    if (!sizes) return nullptr;
    Ref self = rule == Batch::kReshape  ? Front(args_[0])
               : rule == Batch::kExpand ? Front(args_[0], static_cast<int>(PyList_GET_SIZE(sizes.get())), true)
                                        : Borrow(b.inner);
    Ref size(s_.SymIntObject(Meta(b.inner).sizes[b.dim]));
    if (!self || !size || PyList_Insert(sizes.get(), 0, size.get()) < 0) return nullptr;
    s_.MarkFresh(sizes.get());
    args_[0] = self.get();
    args_[1] = sizes.get();
    Ref r(Call());
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  PyObject* Index() {
    if (positional_ != 2 || args_.size() != 2) return Refuse();
    PyObject *self = args_[0], *key = args_[1];
    std::vector<PyObject*> items;
    if (PyTuple_CheckExact(key))
      items.assign(&PyTuple_GET_ITEM(key, 0), &PyTuple_GET_ITEM(key, 0) + PyTuple_GET_SIZE(key));
    else
      items.push_back(key);
    size_t tensors = 0;
    int rank = 0;
    bool batched = false;
    for (PyObject* o : items) {
      if (!IsTensor(o)) {
        if (!PyLong_CheckExact(o) && !PySlice_Check(o) && o != Py_None && o != Py_Ellipsis) return Refuse();
        continue;
      }
      ++tensors;
      rank = std::max(rank, Rank(o));
      batched |= At(o) != nullptr;
      const DType t = Meta(o).dtype;
      if (IsBool(t) || IsFloat(t) || IsComplex(t) || t == DType::kUInt8) return Refuse();
    }
    if (tensors && tensors != items.size()) return Refuse();
    if (tensors && !batched && !rank) return Refuse();
    if (NeedsVmap(s_, callee_, args_.data(), 2) && !batched) return Refuse();
    std::vector<Ref> kept;
    std::vector<PyObject*> inner;
    if (At(self)) {
      kept.push_back(Front(self));
      if (!kept.back()) return nullptr;
      self = kept.back().get();
      if (batched) {  // Each row has indices of its own.
        const shape::Int size = Meta(self).sizes[0];
        static PyObject *const device = PyUnicode_InternFromString("device"), *const names = PyTuple_Pack(1, device);
        Ref n(s_.SymIntObject(size)), where(TensorAttr(s_, self, device));
        PyObject* arange[] = {n.get(), where.get()};
        Ref rows(where ? s_.CallFramework(callees::kArange, arange, 1, names) : nullptr);
        if (!rows) return nullptr;
        Ref one(PyLong_FromLong(1));
        for (int i = 0; rows && i < rank; ++i) rows = Call(callees::kTensorUnsqueeze, {rows.get(), one.get()});
        if (!rows) return nullptr;
        inner.push_back(rows.get());
        kept.push_back(std::move(rows));
      } else {
        kept.emplace_back(s_.MarkFresh(PySlice_New(nullptr, nullptr, nullptr)));
        inner.push_back(kept.back().get());
      }
    }
    for (PyObject* o : items) {
      if (At(o)) {
        kept.push_back(Front(o, rank));
        if (!kept.back()) return nullptr;
        o = kept.back().get();
      }
      inner.push_back(o);
    }
    Ref tuple(PyTuple_New(inner.size()));
    if (!tuple) return nullptr;
    for (size_t i = 0; i < inner.size(); ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(inner[i]));
    s_.MarkFresh(tuple.get());
    Ref r = Call(callees::kTensorGetItem, {self, tuple.get()});
    return r ? Wrap(r.get(), 0) : nullptr;
  }

  int tensors_ = 0;
};

const Peeled::Rule Peeled::kRules[] = {
    {Batch::kUnary, &Peeled::Unary, true},
    {Batch::kPointwise, &Peeled::Pointwise},
    {Batch::kPointwiseOfOne, &Peeled::PointwiseOf<1>},
    {Batch::kPointwiseOfTwo, &Peeled::PointwiseOf<2>},
    {Batch::kReduce, &Peeled::AtDims<0, 0>, true},
    {Batch::kDim, &Peeled::AtDims<1, 0>, true},
    {Batch::kDims, &Peeled::AtSpreadDims, true},
    {Batch::kTwoDims, &Peeled::AtDims<2, 0>, true},
    {Batch::kNewDim, &Peeled::AtDims<1, 1>, true},
    {Batch::kMoveDim, &Peeled::Shifted<1, 2, false>},
    {Batch::kSplit, &Peeled::Shifted<2, 1, true>},
    {Batch::kUnflatten, &Peeled::Shifted<1, 1, false>},
    {Batch::kFlatten, &Peeled::Flattened},
    {Batch::kDiagonal, &Peeled::Diagonal},
    {Batch::kTransposed, &Peeled::Turned},
    {Batch::kNew, &Peeled::Sized, true},
    {Batch::kExpand, &Peeled::Sized, true},
    {Batch::kExpandAs, &Peeled::AsLargeAs},
    {Batch::kReshape, &Peeled::Shaped},
    {Batch::kAllAlike, &Peeled::AsTheyAre},
    {Batch::kIndex, &Peeled::Index},
    {Batch::kStore, &Peeled::Stored},
    {Batch::kCopy, &Peeled::Copied},
    {Batch::kFill, &Peeled::Filled},
    {Batch::kJoined, &Peeled::Joined<0>},
    {Batch::kStacked, &Peeled::Joined<1>},
    {Batch::kProduct, &Peeled::Product<>},
    {Batch::kMatrices, &Peeled::Product<2, 2>},
    {Batch::kBatchesOfMatrices, &Peeled::Product<3, 3>},
    {Batch::kMatrixVector, &Peeled::Product<2, 1>},
    {Batch::kVectors, &Peeled::Product<1, 1>},
    {Batch::kLinear, &Peeled::Linear},
    {Batch::kEinsum, &Peeled::Einsum},
    {Batch::kConvolution, &Peeled::Convolution},
    {Batch::kSquaredError, &Peeled::SquaredError},
    {Batch::kLeading, &Peeled::Leading<0>},
    {Batch::kLeadingSecond, &Peeled::Leading<1>},
    {Batch::kDrawn, &Peeled::Drawn},
    {Batch::kDrawnAsItLies, &Peeled::DrawnLike<true>},
    {Batch::kDrawnInRows, &Peeled::DrawnLike<false>},
};

PyObject* Peeled::Run() {
  for (size_t i = 0; i < args_.size(); ++i) {
    if (!IsTensor(args_[i])) continue;
    ++tensors_;
    if (Name(i) == "out") return Refuse();
  }
  for (const Rule& r : kRules) {
    if (r.rule != callee_.effects().batch) continue;
    if (r.of_first && (tensors_ != 1 || args_.empty() || !At(args_[0]))) return Refuse();
    return (this->*r.run)();
  }
  return Refuse();
}

}  // namespace

PyObject* CallBatched(Session& s, int level, Callee callee, PyObject* const* args, Py_ssize_t nargs,
                      PyObject* kwnames) {
  return Peeled(s, level, callee, args, nargs, kwnames).Run();
}

}  // namespace framejit::capture
