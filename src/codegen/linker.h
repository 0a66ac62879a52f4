// Turns object files in memory into machine code, with LLVM's ORC and JITLink.
#pragma once

#include <llvm/ADT/SmallVector.h>

#include <memory>
#include <string>

namespace framejit::codegen {

// While it is alive, this thread uses LLVM. fork() waits until no thread does, since a child would find LLVM's own
// locks held for ever.
class UsesLlvm {
 public:
  UsesLlvm();
  ~UsesLlvm();
  UsesLlvm(const UsesLlvm&) = delete;
};

struct Linked {
  void* address = nullptr;
  std::shared_ptr<const void> memory;  // the last owner unmaps the code and forgets its symbol
};
// Thread safe. `symbol` need not be unique in the process. Throws std::runtime_error.
Linked LinkObject(llvm::SmallVector<char, 0> object, const std::string& symbol);

}  // namespace framejit::codegen
