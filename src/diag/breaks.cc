#include <string>

#include "diag/diag.h"

namespace framejit::diag {
namespace {

constexpr BreakInfo kBreaks[] = {
#define X(e, id, msg, explanation, hint) {id, msg, explanation, hint},
#include "diag/breaks.def"
#undef X
};

}  // namespace

const BreakInfo& Info(BreakId id) {
  FRAMEJIT_CHECK(static_cast<size_t>(id) < std::size(kBreaks));
  return kBreaks[static_cast<size_t>(id)];
}

std::vector<BreakInfo> AllBreaks() {
  return {std::begin(kBreaks), std::end(kBreaks)};
}

void CheckFailed(const char* file, int line, const char* condition) {
  // From the source folder on: where the tree was built is nobody's business in a report.
  std::string_view path = file;
  for (std::string_view root : {"/src/", "/pymodule/", "/include/"})
    if (size_t at = path.rfind(root); at != std::string_view::npos) {
      path.remove_prefix(at + 1);
      break;
    }
  throw InternalError(std::string(path) + ":" + std::to_string(line) + ": " + condition);
}

}  // namespace framejit::diag
