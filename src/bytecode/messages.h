// What differs between versions in the texts of errors.
#pragma once

namespace framejit::bytecode {

extern const bool kTellsHowMany;  // from 3.14: that of too many values to unpack

}  // namespace framejit::bytecode
