// Where NumPy's functions run: by NumPy, where it is as fast by itself, or on torch's default device.
#pragma once

#include <optional>

#include "capture/session.h"

namespace framejit::capture {

// Floating-point errors must be known before compiled code writes to an argument, so it reads a large array twice.
// NumPy writes first and warns then: one cheap operation, or two where there are no threads, it does faster.
bool LeftToNumpy(const Trace& trace, const Graph& g, int ieee);
// Calls that NumPy makes itself take a microsecond more in a graph: that pays where there is enough besides to fuse.
bool MostlyNumpys(const Session& s, const Trace& trace, const Graph& g);

// NumPy's functions under torch's default device run there, where code is made for all of them.
std::optional<Device> NumpyDevice(Session& s);

}  // namespace framejit::capture
