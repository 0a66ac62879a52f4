#include "runtime/cuda/assemble.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

extern "C" char** environ;

namespace framejit::runtime::cuda {
namespace {

std::string FindAssembler(const std::string& site) {
  auto runs = [](const std::string& path) { return !path.empty() && access(path.c_str(), X_OK) == 0; };
  if (!site.empty() && runs(site + "/triton/backends/nvidia/bin/ptxas"))
    return site + "/triton/backends/nvidia/bin/ptxas";
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* home = std::getenv(variable);
    if (home && runs(std::string(home) + "/bin/ptxas")) return std::string(home) + "/bin/ptxas";
  }
  for (const char* path : {"/usr/local/cuda/bin/ptxas", "/opt/cuda/bin/ptxas"}) {
    if (runs(path)) return path;
  }
  return "";
}

bool Run(const char* const* arguments) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (int fd : {1, 2}) posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failed = posix_spawn(&child, arguments[0], &files, nullptr, const_cast<char* const*>(arguments), environ);
  posix_spawn_file_actions_destroy(&files);
  int status = 1;
  return !failed && waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace

std::string Assemble(const DeviceInfo& device, const std::string& ptx, const std::string& site) {
  static const std::string assembler = FindAssembler(site);
  char folder[] = "/tmp/framejit-XXXXXX";
  if (assembler.empty() || IsDriverForTesting() || !mkdtemp(folder)) return ptx;
  const std::string in = std::string(folder) + "/k.ptx", out = std::string(folder) + "/k.cubin";
  const std::string arch = "-arch=sm_" + std::to_string(device.major * 10 + device.minor);
  std::ofstream(in) << ptx;
  const char* arguments[] = {assembler.c_str(), arch.c_str(), in.c_str(), "-o", out.c_str(), nullptr};
  std::string code;
  if (Run(arguments)) {  // an older one does not know a newer chip
    std::ifstream file(out, std::ios::binary);
    code.assign(std::istreambuf_iterator<char>(file), {});
  }
  unlink(in.c_str());
  unlink(out.c_str());
  rmdir(folder);
  return code.empty() ? ptx : code;
}

}  // namespace framejit::runtime::cuda
