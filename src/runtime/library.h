// Contractions: those who may compute one. A target names its own, in the order in which they are asked
// (compiler::Target::libraries).
#pragma once

#include <span>

#include "runtime/plan.h"

namespace framejit::runtime {

// What the framework has for the device, its packing of weights, too.
bool HostLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                 Buffer& out);
// The runtime's own, on the host's threads. Of nothing no library makes a product: sums of no products are zero, or
// what is added to them. Small products take less time than a library's call. Others are for where there is none.
bool NothingToAdd(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                  Buffer& out);
bool Depthwise(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
               Buffer& out);
bool SmallProduct(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                  Buffer& out);
bool OwnProduct(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                Buffer& out);

// The first of step.libraries that takes it. False: none does. out.data may be null where the library lends its result.
bool AskLibraries(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                  Buffer& out);
// Into memory that is there; by the reference semantics if no library takes it.
void RunLibrary(Host& host, const Step& step, std::span<const int64_t> symbols, std::span<const Buffer> operands,
                Buffer& out);

}  // namespace framejit::runtime
