// The iteration space of a fused group: which value is needed at which index. A *domain* of variables is chosen (the
// dims of one member, split where reshapes cut them); every value then has index vectors, affine in the variables:
//
//   x f32[B, L, H*D] -> reshape [B, L, H, D] -> permute [B, H, L, D] stored        variables b, h, l, d
//   the store is at [b, h, l, d], the load of x at [b, l, h*D + d]
//
// Values are needed at several indices if several views read them. Takes and gathers put the value of an index tensor
// into an index (a *dynamic* term); so does, in a group of one node, a reshape that cuts no variable evenly.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "loop/kernel.h"

namespace framejit::loop {

struct Term {
  int id;  // >= 0: variable; < 0: dynamic ~id
  Int coef;
  friend bool operator==(const Term&, const Term&) = default;
};
struct Lin {  // The offset plus the sum of the terms, which are sorted by id.
  Int offset;
  std::vector<Term> terms;
  friend bool operator==(const Lin&, const Lin&) = default;
};
using Lins = std::vector<Lin>;

struct Dynamic {
  enum class Kind : uint8_t { kValue, kDiv, kMod } kind;
  ValueId value = kNoValue;  // kValue: this index tensor ...
  int index = 0, pred = 0;   // ... at this index, clamped to [0, size)
  Lin lin;                   // kDiv, kMod: lin // size, lin % size
  Int size;
  int check = 0;  // kValue: the Status to be noted where the index is out of range
  friend bool operator==(const Dynamic&, const Dynamic&) = default;
};
struct Predicate {  // Holds where the parent does and 0 <= lin < bound.
  int parent = 0;
  Lin lin;
  Int bound;
  friend bool operator==(const Predicate&, const Predicate&) = default;
};

struct Needed {  // A value that is needed at an index under a predicate.
  ValueId value;
  int index, pred;
  uint64_t vars = 0;  // The variables that it depends on.
  int level = 0;      // How many reductions one after the other it waits for.
  int cost = 0;       // rough instructions per element, with what it is made from
};

inline bool Computes(DType t) {
  return !IsComplex(t) && t != DType::kInt4x2 && t != DType::kFloat8E4M3 && t != DType::kFloat8E5M2;
}

// A kernel has at most so many variables, before reshapes cut them.
constexpr size_t kMostVars = 24;

class Space {
 public:
  // layouts (may be null): of operands outside of the group; a stride of zero means that the variable does not matter.
  Space(const Graph& g, const std::vector<ValueId>& group, const std::vector<ValueId>& stored,
        const std::vector<Layout>* layouts);

  // False (why() tells) if the group does not run as one kernel.
  bool Analyze();
  const std::string& why() const { return why_; }

  bool member(ValueId v) const {
    const int l = Local(v);
    return l >= 0 && l < num_members_;
  }
  const std::vector<Int>& extents() const { return extents_; }  // By variable.
  uint64_t all_vars() const { return extents_.size() == 64 ? ~uint64_t{0} : (uint64_t{1} << extents_.size()) - 1; }
  uint64_t reduced_vars() const { return reduced_; }
  int canonical(ValueId v) const {
    const int l = Local(v);
    return l < 0 ? -1 : canonical_[l];
  }  // The index at which it is stored or reduced.
  const Lins& index(int i) const { return indices_[i]; }
  const Dynamic& dynamic(int i) const { return dynamics_[i]; }
  const Predicate& predicate(int i) const { return predicates_[i]; }
  const std::vector<Needed>& needed() const { return needed_; }
  const Needed& Find(ValueId v, int index, int pred) const { return needed_[by_key_.at(Key(v, index, pred))]; }
  uint64_t Vars(const Lin& lin) const;
  uint64_t PredVars(int pred) const;
  int Level(const Lin& lin) const;

  // Where operand number k of member `n` is read when n is needed at (index, pred).
  struct At {
    int index = -1, pred = 0;
  };
  At OperandAt(ValueId n, int k, int index, int pred);
  // Linear position of an index vector in row-major order of `shape`, for takes of flat positions.
  static Lin Scale(const Lin& a, Int by);
  static void AddTo(Lin& a, const Lin& b, Int times);

 private:
  int Local(ValueId v) const {  // Is -1 where the value is not here.
    const auto at = std::lower_bound(local_.begin(), local_.end(), std::pair{v, -1});
    return at != local_.end() && at->first == v ? at->second : -1;
  }
  void Enter(ValueId v) {
    const std::pair entry{v, static_cast<int>(values_.size())};
    local_.insert(std::upper_bound(local_.begin(), local_.end(), entry), entry);
    values_.push_back(v);
  }
  static uint64_t Key(ValueId v, int index, int pred) {
    return (uint64_t{v} << 32) | (uint64_t(index) << 16) | uint64_t(pred);
  }
  bool Fail(std::string why) {
    if (why_.empty()) why_ = std::move(why);
    return false;
  }
  bool CheckNode(ValueId v);
  bool ChooseSeed();
  void MakeSeedIndex();
  bool Propagate();
  bool PropagateNode(ValueId v, bool* changed);
  void ReduceAlongside(bool* changed);
  bool CheckRoots();
  int Visit(ValueId v, int index, int pred);
  bool VisitRoots();
  void SetCanonical(ValueId v, Lins index, bool* changed);
  int Intern(Lins index);
  int InternPredicate(Predicate p);
  int AddDynamic(Dynamic d);
  bool Reshape(const Lins& index, const Ints& from, const Ints& to, Lins* out);
  bool Split(const Lin& lin, Int size, Lin* quotient, Lin* rest);
  bool Reduced(ValueId reduction, uint64_t* vars) const;

  const Graph& g_;
  const std::vector<ValueId>& group_;
  const std::vector<ValueId>& stored_;
  const std::vector<Layout>* layouts_;
  bool single_;
  int num_members_ = 0;
  std::vector<std::pair<ValueId, int>> local_;  // sorted; a graph may have thousands of nodes beside these
  std::vector<ValueId> values_;                 // By local number: the members first, then operands from outside.
  ValueId seed_ = kNoValue;
  uint64_t seed_reduced_ = 0;                // The seed's dimensions that are reduced.
  std::vector<std::vector<Int>> factors_;    // The factors of each of its dimensions, outermost first.
  std::vector<std::pair<int, int>> origin_;  // variable -> (seed dim, factor)
  std::vector<Int> extents_;
  uint64_t reduced_ = 0;
  bool has_reduction_ = false;  // A scan counts as one.
  std::vector<int> canonical_;  // By local number.
  std::vector<Lins> indices_;
  std::vector<Dynamic> dynamics_;
  std::vector<Predicate> predicates_;
  std::vector<Needed> needed_;
  std::unordered_map<uint64_t, int> by_key_;
  int split_var_ = -1;  // asked for by Split: this variable into (extent / split_by_, split_by_)
  Int split_by_;
  std::string why_;
};

// Is it a reduction or a scan? These give the loop its axes.
inline bool IsSequential(Op op) {
  return IsReduction(op) || op == Op::kCumSum;
}

}  // namespace framejit::loop
