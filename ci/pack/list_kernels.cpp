// list_kernels KERNELS.SO FILE: writes the kernels of a sim pack as JSON, with the manifest's keys. A simulated thread
// has neither registers nor spills; shared memory is counted while kernels run.
#include <dlfcn.h>

#include <cstdio>

#include "device/sim_abi.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: list_kernels KERNELS.SO FILE\n");
    return 2;
  }
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  auto* list = library ? reinterpret_cast<lb_sim_kernels_function*>(dlsym(library, "lb_sim_kernels")) : nullptr;
  if (!list) {
    std::fprintf(stderr, "%s: no library with lb_sim_kernels: %s\n", argv[1], dlerror());
    return 1;
  }
  std::FILE* out = std::fopen(argv[2], "w");
  if (!out) {
    std::perror(argv[2]);
    return 1;
  }
  int count = 0;
  const lb_sim_kernel* kernels = list(&count);
  for (int i = 0; i < count; i++) {
    std::fprintf(out,
                 "%s{\"name\": \"%s\", \"max_threads\": %d, \"registers\": 0, \"shared_bytes\": 0, "
                 "\"spill_bytes\": 0, \"stack_bytes\": 0}",
                 i ? ",\n " : "[", kernels[i].name, kernels[i].max_threads);
  }
  std::fprintf(out, count ? "]\n" : "[]\n");
  return std::fclose(out) ? 1 : 0;
}
