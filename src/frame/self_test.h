// Are CPython's private frame structs what this extension was compiled for? Runs one small function under a hook of its
// own.
#pragma once

namespace framejit::frame {

// It is null, or what differs. No hook is left installed.
const char* SelfTest();

}  // namespace framejit::frame
