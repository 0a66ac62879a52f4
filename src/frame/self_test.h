// Are CPython's private frame structs what this extension was compiled for? Runs one small function under a hook of its
// own.
#pragma once

extern "C" int fj_same_structs(
    void);  // Are they as large as those that this was compiled with, as far as CPython tells (from 3.13)?

namespace framejit::frame {

// It is null, or what differs. No hook is left installed.
const char* SelfTest();

}  // namespace framejit::frame
