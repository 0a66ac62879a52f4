// libframejit and the extension are linked apart, and half a build would leave one of them with other classes than the
// other. So the library defines a symbol whose name is made of every header that both include, and the extension refers
// to it: where the two do not belong together the loader refuses the extension before any code of it has run.
#include "interface_name.h"

namespace framejit {
extern const char FRAMEJIT_INTERFACE;
const char FRAMEJIT_INTERFACE = 0;
}  // namespace framejit
