// Arrays that a loop's code makes, and when: a local that becomes what was only written down, np.zeros and its like.
#include "capture/scalar/made.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <utility>

#include "capture/scalar/translator.h"
#include "runtime/arena.h"
#include "surface/promote.h"
#include "tensor/numpy_api.h"

namespace framejit::capture::scalar {

namespace {

constexpr int64_t kMostElements = 1 << 22;
constexpr size_t kMostIdle = 4;         // of a thread
constexpr int64_t kMostKept = 1 << 20;  // bytes of an array's memory, between runs

}  // namespace

void Made::Free::operator()(char* p) const {
  runtime::FreeBlock({reinterpret_cast<std::byte*>(p), HeadOf(p + sizeof(Head)).bytes + sizeof(Head)});
}

void Made::Keep(Made* made, char* a, char* b, char* c, char* d) {
  for (char* p : {a, b, c, d})
    if (p) HeadOf(p).kept = made->now_;
}

char* Made::New(Made* made, int64_t type, int64_t rank, int64_t size0, int64_t size1, int64_t size2) {
  const int64_t sizes[] = {size0, size1, size2};
  int64_t count = 1;
  for (int i = 0; i < rank; ++i)
    if (sizes[i] < 0 || __builtin_mul_overflow(count, sizes[i], &count) || count > kMostElements) return nullptr;
  const int64_t bytes = count * DTypeSize(static_cast<DType>(type));
  if (bytes > made->most_bytes_) return nullptr;
  std::vector<std::unique_ptr<char, Free>>& all = made->all_;
  char* found = nullptr;
  // What the program cannot reach goes at once then, and the new one ends where it ends: code that is wrong about
  // either touches pages that are not there.
  const bool exact = runtime::Poisons();
  if (exact) std::erase_if(all, [&](auto& whole) { return HeadOf(whole.get() + sizeof(Head)).kept != made->now_; });
  for (size_t n = 0; n < all.size() && !found && !exact; ++n) {
    if (++made->next_ >= all.size()) made->next_ = 0;
    char* memory = all[made->next_].get() + sizeof(Head);
    if (HeadOf(memory).kept != made->now_ && HeadOf(memory).bytes >= bytes) found = memory;
  }
  if (!found) {
    const int64_t wanted = ((exact ? bytes : bytes + bytes / 2 + 64) + 63) / 64 * 64;
    char* whole = nullptr;
    try {
      whole = reinterpret_cast<char*>(runtime::AllocateBlock(wanted + sizeof(Head)).data);
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
    // One that is too small gives way.
    size_t at = 0;
    while (at < all.size() && HeadOf(all[at].get() + sizeof(Head)).kept == made->now_) ++at;
    if (at == all.size()) all.emplace_back();
    all[at].reset(whole);
    found = whole + sizeof(Head);
    HeadOf(found) = Head{.bytes = wanted};
  }
  Head& head = HeadOf(found);
  memcpy(head.sizes, sizes, sizeof sizes);
  head.dtype = static_cast<int16_t>(type), head.rank = static_cast<int16_t>(rank);
  ++made->now_;
  return found;
}

PyObject* Made::ArrayAt(char* memory) {
  Head& head = HeadOf(memory);
  if (head.object) return head.object;
  const auto type = static_cast<DType>(head.dtype);
  PyObject* array = tensor::NewArray(*tensor::Numpy(), type, head.rank, head.sizes, nullptr);
  if (!array) return nullptr;
  int64_t count = 1;
  for (int i = 0; i < head.rank; ++i) count *= head.sizes[i];
  memcpy(tensor::AsArray(array)->data, memory, count * DTypeSize(type));
  return head.object = array;
}

void Made::Forget() {
  for (auto& whole : all_) Py_CLEAR(HeadOf(whole.get() + sizeof(Head)).object);
  std::erase_if(all_, [](auto& whole) { return HeadOf(whole.get() + sizeof(Head)).bytes > kMostKept; });
}

namespace {
thread_local std::vector<std::unique_ptr<Made>> free_of_thread;
}

MadeOfRun::MadeOfRun(int64_t most_bytes) {
  if (free_of_thread.empty()) {
    made_ = std::make_unique<Made>();
  } else {
    made_ = std::move(free_of_thread.back());
    free_of_thread.pop_back();
  }
  made_->Allow(most_bytes);
}

MadeOfRun::~MadeOfRun() {
  made_->Forget();
  if (free_of_thread.size() < kMostIdle) free_of_thread.push_back(std::move(made_));
}

// Are the strides of arrays without elements 0, as in newer NumPys?
static bool EmptyHasNoStrides() {
  static const bool none = [] {
    const int64_t sizes[] = {0, 2};
    const Ref array(tensor::NewArray(*tensor::Numpy(), DType::kFloat64, 2, sizes, nullptr));
    return array ? tensor::AsArray(array.get())->strides[1] == 0 : (PyErr_Clear(), false);
  }();
  return none;
}

// --- the translation
// ------------------------------------------------------------------------------------------------------------
int Translator::BaseOf(const Part& p) {
  return p.base >= 0 ? p.base : Data(p.object);
}

// What lies before the region, where an exit leads to, and what was made since then is kept.
int Translator::Memory(DType t, const std::vector<int>& sizes) {
  std::vector<int> kept = fresh_;
  const std::function<void(const Val&)> look = [&](const Val& v) {
    if (v.made()) kept.push_back(Value(v.items.back()));
    for (const Val& item : v.items) look(item);
  };
  for (const Frame& f : region_.frames) {
    for (const Val& v : f.locals) look(v);
    for (const Val& v : f.stack) look(v);
  }
  const int null = Emit({.op = ScalarOp::kConst, .type = ScalarType::kPtr, .imm = 0, .id = -2});
  const int made = Input(kMadeCell, ScalarType::kPtr);
  out_.makes = true;
  while (kept.size() % 4) kept.push_back(null);
  for (size_t i = 0; i < kept.size(); i += 4)
    Emit({.op = ScalarOp::kCall,
          .type = ScalarType::kInt,
          .imm = reinterpret_cast<int64_t>(Made::Keep),
          .id = -2,
          .args = {made, kept[i], kept[i + 1], kept[i + 2], kept[i + 3]}});
  std::vector<int> args{made, Int(static_cast<int64_t>(t)), Int(static_cast<int64_t>(sizes.size()))};
  args.insert(args.end(), sizes.begin(), sizes.end());
  while (args.size() < 3 + Made::kMostAxes) args.push_back(Int(1));
  const int memory = CallForMemory(reinterpret_cast<void*>(Made::New), args);
  ExitIf(Compare(ScalarOp::kEq, memory, null));
  fresh_.push_back(memory);
  return memory;
}

// Makes a new array, its elements in the order of the axes.
Part Translator::NewArray(DType t, const std::vector<int>& sizes, int frames) {
  if (sizes.empty() || sizes.size() > Made::kMostAxes) throw Unsupported{"a new array of these axes"};
  Part p;
  p.base = Memory(t, sizes);
  p.dtype = t;
  p.born = static_cast<uint8_t>(frames);
  p.sizes = sizes;
  p.strides.assign(sizes.size(), Int(DTypeSize(t)));
  for (int k = p.rank() - 2; k >= 0; --k) {
    const int size = p.sizes[k + 1], one = Int(1);
    const int least = Op(ScalarOp::kSelect, ScalarType::kInt, Compare(ScalarOp::kGt, size, one), size, one);
    p.strides[k] = Op(ScalarOp::kMul, ScalarType::kInt, p.strides[k + 1], least);
  }
  p.unit = true;
  if (!EmptyHasNoStrides()) return p;
  const int any = Compare(ScalarOp::kNe, Count(sizes), Int(0));
  for (int& stride : p.strides) stride = Op(ScalarOp::kSelect, ScalarType::kInt, any, stride, Int(0));
  return p;
}

// Gives the number of frames up to the outermost one that holds the node. A node that no frame holds belongs to the
// innermost one.
int Translator::HeldAt(const State& s, int node) {
  const std::function<bool(const Val&)> holds = [&](const Val& v) {
    return (v.is == Is::kDeferred && v.node == node) || std::any_of(v.items.begin(), v.items.end(), holds);
  };
  int depth = 1;
  for (const Frame& f : s.frames) {
    if (std::any_of(f.locals.begin(), f.locals.end(), holds) || std::any_of(f.stack.begin(), f.stack.end(), holds))
      return depth;
    ++depth;
  }
  return static_cast<int>(s.frames.size());
}

// What was written down becomes an array: one, however many hold it. That of before in this region is still what was
// written down, since ComputeAll leaves no other holder behind before anything is written.
Val Translator::Compute(const State& s, int node) {
  const int frames = HeldAt(s, node);
  for (auto& [known, v] : computed_)
    if (known == node) {
      v.born = std::min(v.born, static_cast<uint8_t>(frames));
      return v;
    }
  const Node& n = nodes_[node];
  if (n.kind == Node::kMagnitude) {
    Val z;
    z.is = Is::kDeferred, z.node = n.a;
    std::optional<Val> v = CallOfArray(s, "numpy.absolute", z);
    if (!v) throw Unsupported{"the magnitude of complex numbers"};
    computed_.emplace_back(node, *v);
  } else if (n.mask >= 0)
    computed_.emplace_back(node, Chosen(s, node));
  else
    ComputeTogether(s, {node});
  return computed_.back().second;
}

// Every node with a name becomes an array in the end.
void Translator::WantComputable(int node) const {
  const Node& n = nodes_[node];
  if (n.sizes.empty()) throw Unsupported{"an array without axes"};
  if (n.sizes.size() > Made::kMostAxes) throw Unsupported{"a new array of these axes"};
  if (n.sizes.size() > 1 && ReadsLarge(node)) throw Unsupported{"large arrays"};
}

// The same with several nodes of the same sizes, and what is to be stored.
void Translator::ComputeTogether(const State& s, const std::vector<int>& nodes, Filled* also, bool undo) {
  std::deque<Part> made;
  std::vector<Filled> targets;
  for (int node : nodes) {
    const Node& n = nodes_[node];
    WantComputable(node);
    if (n.sizes.size() > 1) WantOrdered(node);
    made.push_back(NewArray(n.dtype, n.sizes, HeldAt(s, node)));
    targets.push_back({node, n.dtype, &made.back()});
  }
  if (also) targets.push_back(*also);
  FillAll(targets, also ? also->to->sizes : nodes_[targets[0].node].sizes, undo);
  for (size_t k = 0; k < nodes.size(); ++k) {
    Val v = View(made[k]);
    v.whole = true;
    computed_.emplace_back(nodes[k], v);
  }
  if (also) *also = targets.back();
}

// Those that have a name become arrays, as what reads all of it reads an array that is there.
std::vector<Val> Translator::Named(const State& s, const std::vector<Val>& values) {
  std::vector<Val> all = values;
  for (Val& v : all) {
    if (v.is != Is::kDeferred) continue;
    const auto is = [&](const Val& x) { return x.is == Is::kDeferred && x.node == v.node; };
    if (std::ranges::any_of(s.frames[0].locals, is)) v = Compute(s, v.node);
  }
  return all;
}

// The type that an object stands for where NumPy asks for one.
std::optional<DType> Translator::TypeNamed(const Val& v) {
  if (v.is != Is::kObject) return std::nullopt;
  PyObject* o = Use(v.object).object.get();
  const tensor::NumpyApi* api = tensor::Numpy();
  if (o == reinterpret_cast<PyObject*>(&PyFloat_Type)) return DType::kFloat64;
  if (o == reinterpret_cast<PyObject*>(&PyLong_Type)) return DType::kInt64;
  if (o == reinterpret_cast<PyObject*>(&PyBool_Type)) return DType::kBool;
  if (o == reinterpret_cast<PyObject*>(&PyComplex_Type)) return DType::kComplex128;
  for (int t = 0; t < kNumDTypes; ++t) {
    const auto type = static_cast<DType>(t);
    const bool known = Float(type) || IsComplex(type) || (type < DType::kFloat16 && type != DType::kUInt64);
    if (known && (o == api->descr[t] || o == reinterpret_cast<PyObject*>(api->scalar[t]))) return type;
  }
  return std::nullopt;
}

// Answers np.zeros, np.ones, np.empty and np.full, and those like an array.
std::optional<Val> Translator::NewFilled(const State& s, const std::string& name, const std::vector<Val>& args,
                                         const Val* dtype) {
  static constexpr std::pair<const char*, int> kNew[] = {
      {"numpy.zeros", 0}, {"numpy.ones", 1}, {"numpy.empty", 0}, {"numpy.full", 0}};
  const bool like = name.ends_with("_like");
  const std::string made = like ? name.substr(0, name.size() - 5) : name;
  const auto* row = std::find_if(std::begin(kNew), std::end(kNew), [&](const auto& r) { return made == r.first; });
  const bool full = made == "numpy.full";
  const size_t before = full ? 2 : 1;  // arguments before the type
  if (row == std::end(kNew) || args.size() < before || args.size() + (dtype != nullptr) > before + 1)
    return std::nullopt;
  const Val number = full ? args[1] : IntConstant(*this, row->second);
  if (full && !number.scalar()) return std::nullopt;
  DType t = !full                     ? DType::kFloat64
            : number.is == Is::kNumpy ? number.dtype
            : number.is == Is::kBool  ? DType::kBool
            : number.is == Is::kInt   ? DType::kInt64
                                      : DType::kFloat64;
  std::vector<int> sizes;
  if (like) {
    if (!IsArray(args[0])) return std::nullopt;
    const int node = NodeOf(args[0]);
    if (nodes_[node].sizes.size() > 1) WantOrdered(node);
    t = nodes_[node].dtype;
    sizes = nodes_[node].sizes;
  } else {
    for (const Val& size : args[0].is == Is::kTuple ? args[0].items : std::vector<Val>{args[0]}) {
      sizes.push_back(AsIndex(*this, size));
      ExitIf(Compare(ScalarOp::kLt, sizes.back(), Int(0)));
    }
  }
  if (dtype || args.size() > before) {
    const std::optional<DType> named = TypeNamed(dtype ? *dtype : args[before]);
    if (!named) return std::nullopt;
    t = *named;
  }
  const Element value = IsComplex(t) ? NumberAs(number, t) : Element{Stored(*this, number, t)};
  return Compute(s, Deferred({.kind = Node::kNumber, .dtype = t, .sizes = sizes, .value = value}).node);
}

// np.arange of one int of Python.
Val Translator::CountedUp(const State& s, const Val& stop) {
  const int n = Value(stop), none = Int(0);
  const int size = Op(ScalarOp::kSelect, ScalarType::kInt, Compare(ScalarOp::kGt, n, none), n, none);
  const Part p = NewArray(DType::kInt64, {size}, static_cast<int>(s.frames.size()));
  ForAll({size}, [&](const std::vector<int>& at, int place) {
    const int offset = Op(ScalarOp::kMul, ScalarType::kInt, place, Int(DTypeSize(DType::kInt64)));
    StoreElement(p.base, offset, {at[0]}, DType::kInt64, kMadeArrays);
  });
  Val v = View(p);
  v.whole = true;
  return v;
}

// The numbers in lists of lists of one length, row by row.
static void Flatten(const Val& v, size_t axis, std::vector<int64_t>& sizes, std::vector<Val>& numbers) {
  const bool list = v.is == Is::kLiteral || v.is == Is::kTuple;
  if (numbers.empty() && list && sizes.size() == axis) sizes.push_back(static_cast<int64_t>(v.items.size()));
  if (list ? axis >= sizes.size() || sizes[axis] != static_cast<int64_t>(v.items.size()) : axis != sizes.size())
    throw Unsupported{"an array of lists"};
  if (!list) return numbers.push_back(v);
  for (const Val& item : v.items) Flatten(item, axis + 1, sizes, numbers);
}

// np.array of numbers that the program has written down.
Val Translator::NewOfNumbers(const State& s, const Val& of, const Val* dtype) {
  if (of.is != Is::kLiteral && of.is != Is::kTuple) throw Unsupported{"an array of something else than numbers"};
  std::vector<int64_t> lengths;
  std::vector<Val> numbers;
  Flatten(of, 0, lengths, numbers);
  const std::optional<DType> named = dtype ? TypeNamed(*dtype) : DType::kBool;
  if (!named) throw Unsupported{"a type of NumPy"};
  DType t = *named;
  for (const Val& v : numbers) {
    const bool complex = v.is == Is::kComplex;
    if (!complex && !v.scalar()) throw Unsupported{"an array of something else than numbers"};
    const DType own = complex              ? DType::kComplex128
                      : v.is == Is::kBool  ? DType::kBool
                      : v.is == Is::kInt   ? DType::kInt64
                      : v.is == Is::kFloat ? DType::kFloat64
                                           : v.dtype;
    if (!dtype) t = surface::NumpyPromoteTypes(t, own);
    if (dtype && complex && !IsComplex(t)) throw Unsupported{"a real number of a complex one"};
  }
  const bool known = t < DType::kFloat16 || Float(t) || t == DType::kComplex128;
  if (!known || t == DType::kUInt64) throw Unsupported{"a type of NumPy"};
  std::vector<Element> elements;  // whatever may be left for comes before there is an array
  for (const Val& v : numbers) elements.push_back(IsComplex(t) ? NumberAs(v, t) : Element{Stored(*this, v, t)});
  std::vector<int> sizes;
  for (int64_t n : lengths) sizes.push_back(Int(n));
  const Part p = NewArray(t, sizes, static_cast<int>(s.frames.size()));
  int64_t at = 0;
  for (const Element& e : elements) StoreElement(p.base, Int(DTypeSize(t) * at++), e, t, kMadeArrays);
  Val v = View(p);
  v.whole = true;
  return v;
}

// Computes all nodes, because something that they may read is about to be written, or because the program branches.
// `also` is a value that no frame holds at the moment. What is stored is computed with those of its sizes, if none of
// them reads what is written.
void Translator::ComputeAll(State& s, Val* also, Filled* store, bool undo) {
  std::vector<Val*> waiting;
  const std::function<void(Val&)> look = [&](Val& v) {
    if (v.is == Is::kLiteral) throw Unsupported{"a list"};
    if (v.is == Is::kDeferred) return waiting.push_back(&v);
    for (Val& item : v.items) look(item);
  };
  if (Waiting(s)) {
    if (also) look(*also);
    for (Frame& f : s.frames) {
      for (Val& v : f.locals) look(v);
      for (Val& v : f.stack) look(v);
    }
  }
  std::set<int> known;
  for (const auto& [node, v] : computed_) known.insert(node);
  std::vector<std::vector<int>> groups;
  for (const Val* v : waiting) {
    if (!known.insert(v->node).second || Pends(*v)) continue;
    const auto group = std::ranges::find_if(
        groups, [&](const auto& g) { return SameSizes(nodes_[g[0]].sizes, nodes_[v->node].sizes); });
    if (group == groups.end())
      groups.push_back({v->node});
    else
      group->push_back(v->node);
  }
  std::vector<int> with;  // what is stored
  const auto reads = [&](int node) { return !store->buffered && Reads(node, *store->to, false); };
  for (const std::vector<int>& group : groups) {
    if (store && SameSizes(nodes_[group[0]].sizes, store->to->sizes) && std::ranges::none_of(group, reads))
      with = group;
    else
      ComputeTogether(s, group);
  }
  if (store) ComputeTogether(s, with, store, undo);
  for (Val* v : waiting) *v = Compute(s, v->node);
}

bool Translator::Within(int node, int of) const {
  const Node& n = nodes_[of];
  return node == of || (n.a >= 0 && Within(node, n.a)) || (n.b >= 0 && Within(node, n.b));
}

// A name goes, and `left` is what stays. NumPy would tell of what is in an array, whoever reads it.
void Translator::Lose(const State& s, int node, const Val& left) {
  const auto within = [&](int of) { return Within(node, of); };
  if (!Special(node) || (left.is == Is::kDeferred && within(left.node)) || std::ranges::any_of(filled_, within)) return;
  Compute(s, node);
}

bool Translator::ReadsLarge(int node) const {
  const Node& n = nodes_[node];
  return Large(n.part.object) || (n.a >= 0 && ReadsLarge(n.a)) || (n.b >= 0 && ReadsLarge(n.b));
}

// How many elements it reads for each of its own.
int Translator::Weight(int node) const {
  const Node& n = nodes_[node];
  return 1 + (n.a >= 0 ? Weight(n.a) : 0) + (n.b >= 0 ? Weight(n.b) : 0);
}

bool Translator::Fresh(const Part& p) const {
  return p.base >= 0 && (p.born > 1 || std::find(fresh_.begin(), fresh_.end(), p.base) != fresh_.end());
}

// Behind a store: all that was done before it cannot be done again, but where the array itself would be made again.
void Translator::Wrote(State& s, const Part& to) {
  out_.floats = true;
  if (to.object >= 0) out_.objects[to.object].written = true;
  if (to.object >= 0 && hopes_.ahead) TellOfWrite(to);
  if (!Fresh(to)) Wrote(s);
}

void Translator::Wrote(State& s) {
  wrote_ = true;
  if (s.frames.size() > 1) s.effects = true;
}

// What a called function returns was not made by its caller's next call.
void Translator::Return(Val& v) {
  if (v.born > 1) v.born = 1;
  for (Val& item : v.items) Return(item);
}

}  // namespace framejit::capture::scalar
