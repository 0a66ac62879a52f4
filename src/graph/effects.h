// What is known of the framework's functions beside their meaning: what a call reads, keeps for its derivative, writes
// and draws, whether data decides its sizes, what autocast and vmap do with it, and why no graph holds it. The meaning
// is a row of surface/; a function without one becomes an `extern` node, and these rows are all that is known of it.
//
// To say something of a function: put its name into the row of effects.cc that says exactly that, or add a row. Its
// name is what stands behind the last dot ("softmax"); if only one of several functions of that name is meant, it is
// the whole name ("numpy.sort"). Of a name in torch.linalg, torch.fft and torch.special, "linalg_norm" comes before
// "norm". What is not there is looked up without what marks it as in-place, or as an operator: add_, __add__, __iadd__
// and __radd__ are "add". In-place forms have no autocast rule. Patterns (with a *) come last. A name stands in one row
// only.
#pragma once

#include "diag/diag.h"
#include "framejit/call.h"

namespace framejit {

enum EffectFlags : uint32_t {
  // --- what it reads
  kOutside = 1u << 0,         // data that decides the program's way, or state of the tensor or of the thread: no graph
  kReadsDType = 1u << 1,      // its result's element type is that of Python data
  kTakesSequences = 1u << 2,  // a range is to it what the list of its numbers is
  kTakesFloatSymbols = 1u << 3,  // the graph may hold it with numbers that are others in the next run
  kOnDefaultDevice = 1u << 4,    // torch's default device is for it (the function in torch, and in torch.fft)
  kSizesInArguments = 1u << 5,   // its arguments may be sizes, one by one
  // --- sizes of its results
  kSizedByData = 1u << 6,     // data decides one, which capture may name
  kSizedByShapes = 1u << 7,   // NumPy: they follow from the shapes of the operands
  kSizedByNumbers = 1u << 8,  // NumPy: likewise, if no array is among the arguments
  kLayoutFollows = 1u << 9,   // the result lies as its first operand does, and does not depend on how that lies
  kLikeFirst = 1u << 31,      // the result is of the first operand's type and size, and lies row by row
  // --- what it writes and draws
  kWritesFirst = 1u << 10,      // NumPy: into its first argument, and returns nothing
  kWritesInSilence = 1u << 11,  // operands (running statistics): nothing on a stand-in shows it
  kDraws = 1u << 12,            // may draw from the framework's generator
  kForeign = 1u << 13,          // an operator of another library, or of the user, for torch.ops: may do all of this
  // --- its derivative in the framework
  kKeepsNoOperand = 1u << 14,  // floats; indices and masks are always kept
  kKeepsNoResult = 1u << 15,
  kOneOfSeveral = 1u << 16,  // a view made at once with others (or not called a view): not to be written with gradients
  kOwnVersions = 1u << 30,   // results share memory with an operand, but not its version
  kFixedTangents = 1u << 29,  // tangents take its statistics as constants, which shows where they are differentiated
  // --- its name, which says it of any function
  kInPlace = 1u << 17,         // add_, __iadd__: returns its first argument, changed
  kReflected = 1u << 18,       // Is of the form __radd__.
  kBatchesInPlace = 1u << 19,  // torch.vmap goes through the in-place form as through the other
  // --- its kernel
  kTrustsIntegers = 1u << 20,    // places in memory that the caller gives, which no kernel of some version checks
  kTypeOfTensors = 1u << 22,     // torch.FloatTensor(2, 3), torch.FloatTensor([2.0]): makes one of its type
  kTrustsLastOffset = 1u << 25,  // with its eighth argument on: its kernel and the sizes of results beside the first
  kMayRenormalise = 1u << 26,  // writes the rows that it reads, in silence, if it is given max_norm (or a fourth float)
  kDenseWhenBare = 1u << 27,   // On a CPU, without gradients and modes of Python, another kernel's dense result comes.
  // --- numbers that tensors hold (x.item()), which may stay in the graph
  kTakesHeldNumber = 1u << 23,  // as its last operand, as it would take the tensor itself
  kTakesFactor = 1u << 24,      // by keyword (alpha, value): the framework reads it, and refuses what does not fit
  // --- its derivative again
  kShapesAlone = 1u << 21,   // does not depend on what the floats are
  kDerivedAgain = 1u << 28,  // It is part of a derivative, and the framework has a formula for its own.
  kLinear = kShapesAlone | kKeepsNoOperand | kKeepsNoResult,
};

// What torch.autocast does to the operands: torch's lists by the names of its operators, which
// tests/python/test_autocast.py compares with the dispatcher's. Operators that are not listed and call listed ones
// inside are refused, or stand with what comes of it.
enum class CastRule : uint8_t {
  kNone,
  kLower,    // Are cast to the region's type.
  kFloat32,  // Are cast to float32.
  kPromote,  // Are cast to the widest type among them.
  kRefused,  // It is an error, or the framework's kernel decides call by call.
};

// How torch.vmap goes through a function: the hidden dimension is that of the samples. Each rule has its code in
// capture/vmap/vmap_rules.cc, and its text names it in what the table prints.
// clang-format off: a table
#define FRAMEJIT_BATCH_RULES(X)                                                                                     \
  X(kNone, "")                 /* no rule of ours: one call of torch.vmap of that function alone */                 \
  /* --- one of one tensor, or of several, element by element */                                                    \
  X(kUnary, "unary")           /* of one tensor: the hidden dimension stays where it is */                          \
  X(kPointwise, "pointwise")   /* the hidden dimensions come first, the others are aligned from the right */        \
  X(kPointwiseOfOne, "pointwise_of_one")  /* with more tensors than one it has another rule there */                \
  X(kPointwiseOfTwo, "pointwise_of_two")                                                                            \
  /* --- along dimensions of one tensor */                                                                          \
  X(kReduce, "reduce")         /* over `dim`: one, several or all */                                                \
  X(kDim, "dim")               /* at `dim` */                                                                       \
  X(kDims, "dims")             /* likewise, and its dimensions may be arguments one by one */                       \
  X(kTwoDims, "two_dims")                                                                                           \
  X(kNewDim, "new_dim")        /* the result has one more */                                                        \
  X(kMoveDim, "move_dim")      /* from the dimensions of its second argument to those of its third */               \
  X(kSplit, "split")           /* at its third argument, or dimension 0 */                                          \
  X(kUnflatten, "unflatten")                                                                                        \
  X(kFlatten, "flatten")                                                                                            \
  X(kDiagonal, "diagonal")                                                                                          \
  X(kTransposed, "transposed") /* x.t() */                                                                          \
  /* --- of sizes */                                                                                                \
  X(kNew, "new")               /* x.new_zeros(size): the result is batched, too */                                  \
  X(kExpand, "expand")                                                                                              \
  X(kExpandAs, "expand_as")                                                                                         \
  X(kReshape, "reshape")                                                                                            \
  X(kAllAlike, "all_alike")    /* its operands, where they have one size */                                         \
  /* --- at indices, and what is written */                                                                         \
  X(kIndex, "index")                                                                                                \
  X(kStore, "store")           /* x[key] = value */                                                                 \
  X(kCopy, "copy")                                                                                                  \
  X(kFill, "fill")             /* all elements of all samples get one number */                                     \
  /* --- of several tensors */                                                                                      \
  X(kJoined, "joined")         /* at a dimension that they have */                                                  \
  X(kStacked, "stacked")       /* at a new one */                                                                   \
  X(kProduct, "product")       /* of matrices and vectors, as torch.matmul takes them */                            \
  X(kMatrices, "matrices")     /* likewise, of two matrices alone */                                                \
  X(kBatchesOfMatrices, "batches_of_matrices")                                                                      \
  X(kMatrixVector, "matrix_vector")                                                                                 \
  X(kVectors, "vectors")                                                                                            \
  X(kLinear, "linear")                                                                                              \
  X(kEinsum, "einsum")                                                                                              \
  X(kConvolution, "convolution")                                                                                    \
  X(kSquaredError, "squared_error")                                                                                 \
  X(kLeading, "leading")       /* the first argument may have any dimensions in front, the others are shared */     \
  X(kLeadingSecond, "leading_second")  /* likewise, the second */                                                   \
  /* --- what is drawn, other numbers for each sample */                                                            \
  X(kDrawn, "drawn")           /* of a size */                                                                      \
  X(kDrawnAsItLies, "drawn_as_it_lies")  /* for the elements of its first argument in the order of memory */        \
  X(kDrawnInRows, "drawn_in_rows")       /* in the order of rows, the hidden dimension first */                     \
  X(kDrawnIfAlone, "drawn_if_alone")     /* as it lies where that is its only argument, else in rows */
// clang-format on
#define FRAMEJIT_RULE(rule, text) rule,
enum class Batch : uint8_t { FRAMEJIT_BATCH_RULES(FRAMEJIT_RULE) };
#undef FRAMEJIT_RULE

// Element by element, also where its operands are tensors.
inline bool IsPointwise(Batch rule) {
  return rule >= Batch::kUnary && rule <= Batch::kPointwiseOfTwo;
}

enum class Answer : uint8_t { kNone, kYes, kNo, kNothing };  // what it answers while a program is captured

// What its derivative in the framework is made of, or keeps all the same, also where ours does without: tensors among
// the arguments by position, and results. Of several operands one may be kept for the sake of another: all but the
// first count where each of them wants a gradient.
enum Kept : uint8_t {
  kFirst = 1u << 0,
  kSecond = 1u << 1,
  kThird = 1u << 2,
  kResult = 1u << 3,
  kSecondResult = 1u << 4,
  kThirdResult = 1u << 5,
  kIfAlone = 1u << 6,  // only where it has one tensor and makes one: max() of all, not max(dim), not max(other)
  kResults = kResult | kSecondResult | kThirdResult,
};

struct Effects {
  uint32_t flags = 0;
  uint8_t keeps = 0;
  diag::BreakId ends = diag::BreakId::kInternal;  // no graph holds it, for that reason; kInternal: one may
  CastRule cpu = CastRule::kNone, cuda = CastRule::kNone;
  Batch batch = Batch::kNone;
  Answer answer = Answer::kNone;
  std::string str() const;  // "draws keeps_no_operand cpu=lower"
  bool refused() const { return ends != diag::BreakId::kInternal; }
};

inline bool Draws(Callee c) {
  return c.Has(kDraws | kForeign);
}
// Is what stands there of its operands (of: kFirst) or results (kResult) kept?
inline bool Keeps(Callee c, Kept of, size_t number) {
  return number < 3 && c.effects().keeps & of << number;
}
// Reads data, changes operands or state in ways that no graph sees.
inline bool NeverCaptured(Callee c) {
  return c.Has(kOutside) && !c.Has(kSizedByData);
}
// Changes its first argument, by its name.
inline bool ChangesFirst(Callee c) {
  return c.Has(kInPlace) || c.last() == "__setitem__";
}
// torch.Tensor.add of torch.Tensor.add_, torch.Tensor.__add__ of torch.Tensor.__iadd__; any other is its own.
Callee FunctionalForm(Callee c);

}  // namespace framejit
