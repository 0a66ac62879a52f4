#include "codegen/gpu_cache.h"

#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "codegen/gpu_jit.h"
#include "diag/cache_folder.h"
#include "diag/diag.h"

namespace framejit::codegen {
namespace {

constexpr std::string_view kMagic = "framejit gpu code 1\n";

uint64_t Hash(std::string_view text, uint64_t h) {  // FNV-1a, finished
  for (unsigned char c : text) h = (h ^ c) * 1099511628211ull;
  h ^= h >> 32;
  return h * 0x9E3779B97F4A7C15ull;
}

// The linker's hash of the library (or program) that this is a part of: other code, other schedules.
std::string BuildId() {
  struct Search {
    uintptr_t here;
    std::string id;
  } search{reinterpret_cast<uintptr_t>(&BuildId), ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& search = *static_cast<Search*>(data);
        bool ours = false;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& p = info->dlpi_phdr[i];
          const uintptr_t from = info->dlpi_addr + p.p_vaddr;
          ours = ours || (p.p_type == PT_LOAD && search.here >= from && search.here < from + p.p_memsz);
        }
        if (!ours) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& p = info->dlpi_phdr[i];
          if (p.p_type != PT_NOTE) continue;
          const char* at = reinterpret_cast<const char*>(info->dlpi_addr + p.p_vaddr);
          const char* end = at + p.p_memsz;
          while (end - at >= static_cast<ptrdiff_t>(sizeof(ElfW(Nhdr)))) {
            ElfW(Nhdr) note;
            std::memcpy(&note, at, sizeof note);
            const char* name = at + sizeof note;
            const char* text = name + (note.n_namesz + 3) / 4 * 4;
            at = text + (note.n_descsz + 3) / 4 * 4;
            if (at > end) break;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !std::memcmp(name, "GNU", 4))
              search.id.assign(text, note.n_descsz);
          }
        }
        return 1;
      },
      &search);
  return search.id;
}

std::string FileOf(const std::string& key) {
  const std::string folder = diag::CacheFolder();
  if (folder.empty()) return "";
  char name[64];
  std::snprintf(name, sizeof name, "/gpu-%016llx%016llx", static_cast<unsigned long long>(Hash(key, 1)),
                static_cast<unsigned long long>(Hash(key, 2)));
  return folder + name;
}

void Put(std::string* out, std::string_view part) {
  const uint64_t size = part.size();
  out->append(reinterpret_cast<const char*>(&size), sizeof size);
  out->append(part);
}
bool Take(std::string_view* in, std::string_view* part) {
  uint64_t size;
  if (in->size() < sizeof size) return false;
  std::memcpy(&size, in->data(), sizeof size);
  in->remove_prefix(sizeof size);
  if (in->size() < size) return false;
  *part = in->substr(0, size);
  in->remove_prefix(size);
  return true;
}

}  // namespace

std::string GpuCodeKey(const loop::Kernel& kernel, const GpuSchedule& s, const runtime::cuda::DeviceInfo& device) {
  static const std::string build = BuildId();
  int driver = 0;
  const runtime::cuda::Driver& d = *runtime::cuda::GetDriver();
  if (build.empty() || d.driver_version(&driver)) return "";
  std::string key = build;
  auto put = [&](auto... n) { ((key += " " + std::to_string(static_cast<int>(n))), ...); };
  put(device.major, device.minor, driver, s.mode, s.narrow, s.vector, s.threads, s.unroll, s.row_threads, s.blocks,
      s.first_blocks, s.slices, s.tile, s.group, s.cluster, s.held, s.dependent, s.mirrored, s.resident, s.ahead);
  return key + " " + LibdevicePath() + "\n" + kernel.SignatureText();
}

std::optional<GpuCode> ReadGpuCode(const std::string& key) {
  const std::string file = FileOf(key);
  if (key.empty() || file.empty()) return std::nullopt;
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  const std::string all((std::istreambuf_iterator<char>(in)), {});
  std::string_view rest = all, of, symbol, cubin;
  if (!rest.starts_with(kMagic)) return std::nullopt;
  rest.remove_prefix(kMagic.size());
  if (!Take(&rest, &of) || !Take(&rest, &symbol) || !Take(&rest, &cubin)) return std::nullopt;
  const uint64_t hash = Hash({all.data(), all.size() - rest.size()}, 3);
  if (of != key || rest.size() != sizeof hash || std::memcmp(rest.data(), &hash, sizeof hash)) return std::nullopt;
  diag::NoteUse(file);
  return GpuCode{std::string(symbol), std::string(cubin)};
}

void WriteGpuCode(const std::string& key, const GpuCode& code) {
  const std::string file = FileOf(key);
  if (key.empty() || file.empty()) return;
  std::string all(kMagic);
  Put(&all, key);
  Put(&all, code.symbol);
  Put(&all, code.code);
  const uint64_t hash = Hash(all, 3);
  all.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  diag::MakeRoom(file.substr(0, file.rfind('/')), static_cast<int64_t>(all.size()));
  std::string made = file + ".XXXXXX";  // others see the whole file or none
  const int fd = mkstemp(made.data());
  if (fd < 0) return;
  bool ok = true;
  for (size_t done = 0; ok && done < all.size();) {
    const ssize_t n = write(fd, all.data() + done, all.size() - done);
    ok = n > 0;
    done += ok ? n : 0;
  }
  ok = !close(fd) && ok;
  if (!ok || std::rename(made.c_str(), file.c_str())) unlink(made.c_str());
}

}  // namespace framejit::codegen
