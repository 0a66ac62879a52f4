// What the emitters need to know of the machine they emit for.
#pragma once

namespace framejit::codegen {

struct Isa {
  int vector_bytes = 32;     // of the widest register worth using
  bool avx512 = false;       // F, BW, DQ, VL: native masks, gathers, scatters
  bool lowered = false;      // AVX-512's code shapes in AVX2 instructions
  bool gpu = false;          // NVPTX: scalars only, no C library
  bool approximate = false;  // ... and results are rounded to 16 bits: two units of f32 do not show
  bool pairs = false;        // ... and converts two f32 to 16 bits at once
  bool libdevice = false;    // ... but NVIDIA's functions are there to be linked
};

}  // namespace framejit::codegen
