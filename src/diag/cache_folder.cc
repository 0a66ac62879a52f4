#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "diag/diag.h"

namespace framejit::diag {

std::string CacheFolder() {
  std::string folder = GetOption("cache_dir");
  if (folder.empty()) {
    const char *caches = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
    if (caches && *caches == '/')
      folder = caches;
    else if (home && *home == '/')
      folder = std::string(home) + "/.cache";
    else
      return "";
    mkdir(folder.c_str(), 0700);
    folder += "/framejit";
  }
  mkdir(folder.c_str(), 0700);
  struct stat s;
  const bool ours = !stat(folder.c_str(), &s) && S_ISDIR(s.st_mode) && s.st_uid == geteuid() && !(s.st_mode & S_IWOTH);
  return ours ? folder : "";
}

}  // namespace framejit::diag
