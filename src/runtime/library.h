// Contractions: those who may compute one. A target names its own, in the order in which they are asked
// (compiler::Target::libraries).
#pragma once

#include <span>
#include <type_traits>

#include "runtime/plan.h"

namespace framejit::runtime {

using TakesStep = std::remove_pointer_t<Library>;
// What the framework has for the device, its packing of weights, too.
TakesStep HostLibrary;
// The runtime's own, on the host's threads. Of nothing no library makes a product: sums of no products are zero, or
// what is added to them. Small products take less time than a library's call. Others are for where there is none.
TakesStep NothingToAdd, Depthwise, SmallProduct, OwnProduct;

// The first of step.libraries that takes it. False: none does. out.data may be null where the library lends its result.
TakesStep AskLibraries;
// Into memory that is there; by the reference semantics if no library takes it.
void RunLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                Buffer& out);

}  // namespace framejit::runtime
