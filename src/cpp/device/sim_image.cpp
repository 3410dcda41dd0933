// Writes the image to a memory file and opens it with dlopen. The file stays open as long as the library: the loader
// identifies a library by its path, so another file with the same descriptor number would pass for this library.
#include "device/sim_image.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "base/error.h"

namespace lb::gpu {

const SimImage* load_sim_image(std::string bytes, std::string& why) {
  static std::mutex mutex;
  static std::map<std::string, SimImage> images;
  const std::lock_guard lock(mutex);
  if (const auto known = images.find(bytes); known != images.end()) return &known->second;

  const int file = ::memfd_create("lucebox-sim", MFD_CLOEXEC);
  if (file < 0 || ::write(file, bytes.data(), bytes.size()) != ssize_t(bytes.size())) {
    why = "the system refused to create a memory file";
    return nullptr;
  }
  void* library = ::dlopen(cat("/proc/self/fd/", file).c_str(), RTLD_NOW | RTLD_LOCAL);
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
