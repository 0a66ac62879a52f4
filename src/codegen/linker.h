// Object files in memory -> machine code, by LLVM's ORC and JITLink.
#pragma once

#include <llvm/ADT/SmallVector.h>

#include <memory>
#include <string>

namespace framejit::codegen {

// While alive, this thread uses LLVM. fork() waits until nobody does: a child would find LLVM's own locks held for
// good.
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
