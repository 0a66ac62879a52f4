// Sparse and quantised tensors of torch. What is known of one beside its sizes (layout, element type, how many sparse
// dimensions, ...) is its form, which is a text; forms are numbered, and the number stands in its device
// (graph/opaque.h).
#pragma once

#include <Python.h>

#include <optional>
#include <string>

#include "framejit/call.h"
#include "graph/opaque.h"
#include "tensor/tensor.h"

namespace framejit::tensor {

// What is known of such a tensor: its device says which form it has, and it has no memory. False: it is none of them,
// or of a kind that is not followed. Runs no Python code. result: of a call with stand-ins; its scale is part of the
// form, and one with hardly any elements does not tell whether the next one is coalesced.
bool ReadOpaque(PyObject* o, Meta* out, const char** why = nullptr, bool result = false);
// What two results of a call, with stand-ins that differ, tell together: numbers in which their forms differ are not
// known. counted: how many elements it has is decided by sizes alone. Nothing: they differ in more.
std::optional<Device> WhatBothTell(Device a, Device b, bool counted);
Device RealDevice(Device d);  // where its memory is: those on other devices than the CPU are not followed
std::string FormText(Device d);
// A tensor of this form that holds as good as nothing: how much, and which unknown scales it has, `number` (0 or 1)
// decides. New reference; null with an exception.
PyObject* OpaqueStandIn(const TensorMeta& m, int number);
bool ShareMemory(PyObject* a, PyObject* b);  // of tensors of any layout; true also where that cannot be known
// What every tensor of this form and these sizes answers to the attribute `name`, or, where `method`, to a call of it.
// New reference; null without an exception: that is not known.
PyObject* OpaqueFact(const TensorMeta& m, std::string_view name, bool method);

}  // namespace framejit::tensor
