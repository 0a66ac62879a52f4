// The libraries that may compute a contraction. A target names those that are asked on its device, in order
// (compiler::Target::libraries).
#pragma once

#include <span>
#include <type_traits>

#include "runtime/plan.h"

namespace framejit::runtime {

using TakesStep = std::remove_pointer_t<Library>;
// What the framework has for the device, with weights packed by it.
TakesStep HostLibrary;
// The runtime's own, on the host's threads. NothingToAdd does what no library does: sums of no products, which are zero
// or what is added to them. Depthwise and SmallProduct take less time than a library's call. OwnProduct is for hosts
// that have no library.
TakesStep NothingToAdd, Depthwise, SmallProduct, OwnProduct;

// Asks the libraries of the step one after the other until one has computed it. False: none takes it. out.data may be
// null, where the library lends a tensor of its own as the result.
TakesStep AskLibraries;
// Computes the step into memory that `out` has; by the reference semantics if no library takes it.
void RunLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                Buffer& out);

}  // namespace framejit::runtime
