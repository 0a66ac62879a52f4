#include "diag/cache_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <mutex>
#include <string_view>
#include <tuple>
#include <vector>

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

void NoteUse(const std::string& file) {
  constexpr time_t kRecent = 3600;  // nobody is older for an hour: files are seldom touched
  struct stat s;
  if (!stat(file.c_str(), &s) && std::time(nullptr) - s.st_mtime > kRecent)
    utimensat(AT_FDCWD, file.c_str(), nullptr, 0);
}

uint64_t Hash(std::string_view text) {
  uint64_t h = 14695981039346656037ull;
  for (unsigned char c : text) h = (h ^ c) * 1099511628211ull;
  return h;
}

std::string Processor() {
  std::string about;
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line) && !line.empty();) {  // the first processor
    if (line.starts_with("model name") || line.starts_with("flags")) about += line;
  }
  return about;
}

void MakeRoom(const std::string& folder, int64_t bytes) {
  static std::mutex mu;
  static std::string looked_at;
  static int64_t unseen = 0;  // written since then
  const int64_t limit = std::atoll(GetOption("cache_limit").c_str()) * 1048576;
  if (limit <= 0) return;
  std::lock_guard lock(mu);
  unseen += bytes;
  if (folder == looked_at && unseen < limit / 16) return;
  looked_at = folder;
  unseen = bytes;
  DIR* dir = opendir(folder.c_str());
  if (!dir) return;
  struct File {
    timespec used;
    int64_t size;
    std::string name;
  };
  std::vector<File> files;
  int64_t total = bytes;
  while (const dirent* entry = readdir(dir)) {
    const std::string_view name = entry->d_name;
    struct stat s;
    if (!name.starts_with("gpu-") && !name.starts_with("products-") && !name.starts_with("forms-")) continue;
    if (fstatat(dirfd(dir), entry->d_name, &s, AT_SYMLINK_NOFOLLOW) || !S_ISREG(s.st_mode)) continue;
    files.push_back({s.st_mtim, int64_t{s.st_blocks} * 512, entry->d_name});
    total += files.back().size;
  }
  if (total > limit) {
    std::sort(files.begin(), files.end(), [](const File& a, const File& b) {
      return std::tie(a.used.tv_sec, a.used.tv_nsec) < std::tie(b.used.tv_sec, b.used.tv_nsec);
    });
    for (const File& f : files) {
      if (total <= limit - limit / 8) break;
      if (!unlinkat(dirfd(dir), f.name.c_str(), 0) || errno == ENOENT) total -= f.size;
    }
  }
  closedir(dir);
}

}  // namespace framejit::diag
