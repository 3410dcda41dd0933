// A sim pack of three kernels written straight against its ABI, for tests of the device layer: what they need to know
// is whether a launch arrives as it was sent. Kernels in the dialect are tested elsewhere.
#include <cstdio>
#include <cstring>

#include "device/sim_abi.h"

namespace {

struct Scale {
  const float* x;  // [n]
  float* y;        // [n]
  int n;
  float by;
};

struct Report {
  uint64_t* out;  // [5]: grid x, block x, dynamic shared bytes, cooperative, times run
};

const lb_sim_kernel kKernels[] = {{"fault_kernel", 128, 1, sizeof(Report), 0},
                                  {"report_kernel", 256, 1, sizeof(Report), 1024},
                                  {"scale_kernel", 256, 1, sizeof(Scale), 0}};

}  // namespace

const lb_sim_kernel* lb_sim_kernels(int* count) {
  *count = 3;
  return kKernels;
}

int lb_sim_run(const lb_sim_launch* launch, char* error, size_t error_size) {
  if (std::strcmp(launch->kernel, "scale_kernel") == 0) {
    const auto& p = *static_cast<const Scale*>(launch->params);
    for (int i = 0; i < p.n; ++i) p.y[i] = p.x[i] * p.by;
    return 0;
  }
  if (std::strcmp(launch->kernel, "report_kernel") == 0) {
    uint64_t* out = static_cast<const Report*>(launch->params)->out;
    out[0] = launch->grid[0];
    out[1] = launch->block[0];
    out[2] = launch->dynamic_shared_bytes;
    out[3] = uint64_t(launch->cooperative);
    ++out[4];
    return 0;
  }
  std::snprintf(error, error_size, "%s: block 0, thread 3: read past the end", launch->kernel);
  return 1;
}
