// Writes the image to a file without a name and opens it with dlopen. The file stays open as long as the library: the
// loader identifies a library by its path or inode, so a later file with the same one would pass for this library.
#include "device/sim_image.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#if !defined(__linux__)
#include <stdlib.h>

#include <filesystem>
#endif

#include "base/error.h"

namespace lb::gpu {
namespace {

#if defined(__linux__)
int create_file(std::string& path) {
  const int file = ::memfd_create("lucebox-sim", MFD_CLOEXEC);
  path = cat("/proc/self/fd/", file);
  return file;
}
void remove_name(const std::string&) {}
#else
int create_file(std::string& path) {
  path = std::filesystem::temp_directory_path() / "lucebox-sim-XXXXXX";
  return ::mkstemp(path.data());
}
void remove_name(const std::string& path) { ::unlink(path.c_str()); }
#endif

}  // namespace

const SimImage* load_sim_image(std::string bytes, std::string& why) {
  static std::mutex mutex;
  static std::map<std::string, SimImage> images;
  const std::lock_guard lock(mutex);
  if (const auto known = images.find(bytes); known != images.end()) return &known->second;

  std::string path;
  const int file = create_file(path);
  const bool is_written = file >= 0 && ::write(file, bytes.data(), bytes.size()) == ssize_t(bytes.size());
  void* library = is_written ? ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (file >= 0) remove_name(path);
  if (!is_written) {
    why = "the system refused to create a file for the simulator";
    if (file >= 0) ::close(file);
    return nullptr;
  }
  if (library == nullptr) {
    why = ::dlerror();
    ::close(file);
    return nullptr;
  }
  const auto kernels = reinterpret_cast<lb_sim_kernels_function*>(::dlsym(library, "lb_sim_kernels"));
  const auto run = reinterpret_cast<lb_sim_run_function*>(::dlsym(library, "lb_sim_run"));
  const auto run_with_fault =
      reinterpret_cast<lb_sim_run_with_fault_function*>(::dlsym(library, "lb_sim_run_with_fault"));
  if (kernels == nullptr || run == nullptr) {
    why = "a library without lb_sim_kernels and lb_sim_run";
    return nullptr;
  }
  int count = 0;
  const lb_sim_kernel* first = kernels(&count);
  return &images.emplace(std::move(bytes), SimImage{{first, size_t(count)}, run, run_with_fault}).first->second;
}

}  // namespace lb::gpu
