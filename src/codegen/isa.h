// What the emitters need to know of the machine they emit for.
#pragma once

namespace framejit::codegen {

struct Isa {
  int vector_bytes = 32;      // of the widest register worth using
  bool avx512 = false;        // F, BW, DQ, VL: native masks, gathers, scatters
  bool lowered = false;       // AVX-512's code shapes in AVX2 instructions
  bool c_library = true;      // functions may be called that are not emitted; else they are linked (libdevice)
  bool libdevice = false;     // NVIDIA's functions are there to be linked
  bool rounds_to_16 = false;  // one instruction makes a 16-bit float of an f32
  bool pairs = false;         // one makes two of them at once
  // It has instructions for 2^x, tanh, quotients, roots, and for maxima that a nan wins, all of f32 (NVPTX).
  bool function_instructions = false;
  bool approximate = false;  // of these the quick ones: results are rounded to 16 bits, two units of f32 do not show
  bool arithmetic_fence = true;  // LLVM can keep a value from what is known of it
};

}  // namespace framejit::codegen
