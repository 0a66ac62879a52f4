// torch.func.grad, vjp and what is made of them, torch.autograd.grad, x.requires_grad_() of what was made here. As with
// torch.vmap, torch's own Python code is captured and the functions of C that it calls are answered here: a derivative
// becomes nodes of the graph (surface/lowering_gradients.cc).
//
// A tensor that a function is differentiated by is a leaf of its own, in every sample of the torch.vmaps around it
// (what does not depend on a batch is expanded first, so that each sample has its own gradient).
#pragma once

#include <span>

#include "capture/session.h"

namespace framejit::capture {

std::span<const StateFunction> GradientFunctions();  // The functions of C that torch's code calls.
// x.requires_grad_(): a new reference to x, or null without an error where it is not done here.
PyObject* MakeLeaf(Session& s, PyObject* proxy);
// The same, or x.requires_grad_(False) of such a leaf, where the graph holds no derivatives by it.
PyObject* TrackLeaf(Session& s, PyObject* proxy, bool on);
// Are the tangents of the open forward-mode levels differentiated again?
bool DifferentiatesTangents(Session& s);
bool WantsGradient(Session& s, PyObject* proxy);  // The answer to x.requires_grad.
PyObject* GradientsOf(Session& s, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

}  // namespace framejit::capture
