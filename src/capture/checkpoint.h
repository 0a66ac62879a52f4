// torch.utils.checkpoint, which makes the calls of a function again in the backward pass.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "capture/exit.h"
#include "capture/reach.h"
#include "tensor/autograd.h"

namespace framejit::capture {

bool InCheckpoint();  // Is the function of one being captured on this thread?

// What the functions of those that are being captured ask, and decide by. Eager asks once more in the pass.
void NoteBranch(TraceId tensor);         // what data says; where it was written since, the pass calls the function
void LeaveCheckpoints(const char* why);  // to torch: what was asked can be another then, and nobody would see it
// Whether gradients are recorded: of the mode (null), or of a tensor. Where the reentrant form runs first, they are
// not.
void NoteAskedOfGradients(const TraceId* tensor);

// The function of one was captured: where its calls lie, and what a pass would call, which finds something changed.
struct Checkpointed {
  explicit Checkpointed(Session& s) : recipe(s) {}
  size_t first = 0, last = 0;      // its calls in the trace
  ModeState mode;                  // in which it is entered
  std::vector<TraceId> reentrant;  // what is tracked by the reentrant form alone: its results; empty: the other form
  Ref parts;                       // function, arguments, keywords, options and the state of autocast, a tuple
  std::vector<PyObject*> roots;    // the function and the arguments, and what they led to behind the call
  Reach objects;
  Recipe recipe;                 // which makes `parts` again
  std::vector<TraceId> tensors;  // of which it does
  std::vector<TraceId> asked;    // what was made outside by whose data it branches
  int node = -1;
  bool selects = false;  // Is it said of some calls that what they make is kept?
};

// At the end of a capture, when all that goes out has its place in `exit`: what makes these functions and their
// arguments again. Else why it cannot be made.
std::string MakeRecipes(Session& s, const Exit& exit);

// What a run must have as its inputs, behind all others (`first`: their number), so that a pass can look whether what
// these functions read is still what it was. Before the guards are taken. never: set where passes find something
// changed time and again.
std::vector<const Source*> InputsOfCheckpoints(Session& s, size_t first, std::shared_ptr<bool> never);

// Of what their functions alone read (Training::read_again), versions count where it was given to one: the framework
// keeps that, or what is made of it, as it is. What was chosen inside of one is saved, and eager chooses again.
void NoteAsTheyAre(Session& s, const Trace& trace, const Graph& g, const std::vector<int>& region,
                   const std::vector<ValueId>& saved, tensor::Training* t);

// The program's calls, with marks around those of these functions.
void MarkCheckpoints(const Session& s, Trace* replay);

}  // namespace framejit::capture
