// What turns LLVM modules into machine code, whoever fills them.
#pragma once

#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/IR/Module.h>
#include <llvm/Target/TargetMachine.h>

#include <string>

#include "codegen/jit.h"

namespace framejit::codegen {

using FillModule = llvm::function_ref<void(llvm::Module&, llvm::TargetMachine&)>;

// What `fill` throws are our own errors: nothing of LLVM is half done then.
Code CompileModule(const Isa& isa, const std::string& symbol, FillModule fill);
std::string ModuleText(const Isa& isa, bool assembly, FillModule fill);

}  // namespace framejit::codegen
