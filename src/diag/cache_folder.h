// The files in diag::CacheFolder(): how much they may take together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace framejit::diag {

// `bytes` are about to be written there. From time to time what was not used for longest goes, so that the folder stays
// below the option cache_limit. Other processes may do the same meanwhile: who misses a file makes it again.
void MakeRoom(const std::string& folder, int64_t bytes);
void NoteUse(const std::string& file);  // it was read: it is younger than others now

// For names of files that hold what was measured here.
uint64_t Hash(std::string_view text);  // FNV-1a: the same in every process
std::string Processor();               // model and instruction sets, as the system describes them

}  // namespace framejit::diag
