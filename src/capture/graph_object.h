// A captured graph as a Python object: it prints, it can be called, and it can be taken apart.
#pragma once

#include <cstdint>
#include <vector>

#include "capture/ref.h"
#include "tensor/tensor.h"

namespace framejit::capture {

bool ReadyGraphObject();
Ref MakeGraphObject(const Trace& trace, const std::vector<PyObject*>& constants);  // Null with an exception set.
void SetGraphSymbols(PyObject* graph, int64_t* symbols);                           // For the next calls; borrowed.

}  // namespace framejit::capture
