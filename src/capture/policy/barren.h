// Libraries in whose code captures find next to nothing for graphs: tables, settings, progress bars, files. A call of
// such a library ends the graph as before; what runs inside of it is not captured piece by piece, which would cost far
// more than it can save. Judged by what captures found, library by library, not by names.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>

#include "capture/ref.h"
#include "frame/driver.h"

namespace framejit::capture {

struct CodeState;
struct Compiled;
struct Segment;

// A package or module that was installed: captures that began in its code, and the framework's calls in them.
struct InstalledLibrary {
  std::string name;
  int64_t captures = 0, calls = 0;
  // After so many captures with less than one call each.
  static constexpr int64_t kCaptures = 8;
  bool barren() const { return captures >= kCaptures && calls < captures; }
};

class InstalledLibraries {  // Those that one compiled function has met.
 public:
  // Whose code is this? Null: the program's own, a framework's, or of the library that was compiled itself.
  std::shared_ptr<InstalledLibrary> Of(PyCodeObject* code, PyCodeObject* root);

 private:
  std::unordered_map<std::string, std::shared_ptr<InstalledLibrary>> known_;
};

// A capture that began in this code of a library made that segment, or none. Once the library is found barren, the
// function's notes say so.
void NoteCapture(Compiled& compiled, CodeState& code, const Segment* made);
// Is this frame of such code left to Python? A call that gets a tensor or a module of torch's may be worth a graph in
// any library, until some captures of the code have found none.
bool IsBarren(const CodeState& code, FjFrame* frame);

}  // namespace framejit::capture
