#include "gpu/choose_batched.h"

#include <string_view>

#include "base/error.h"
#include "gpu/attention/instances.h"
#include "gpu/delta_net/shape.h"

namespace lb::gpu {
namespace {

struct Names {
  std::string_view one;
  const char* batched;
  uint32_t n_slices = 1;  // x blocks of the single form that one block of the batched form replaces
};
#define NAMES(kernel, ...) {#kernel, #kernel "_batched" __VA_OPT__(, ) __VA_ARGS__},
#define X(kernel, ...) NAMES(kernel)
constexpr Names kKernels[] = {NAMES(attention_prepare_kernel) NAMES(attention_merge_kernel) NAMES(delta_inputs_kernel)
                                  NAMES(delta_inputs_small_kernel) NAMES(gated_delta_rows_kernel)
                                      NAMES(gated_delta_step_kernel, kWideSlices) NAMES(copy_rows_kernel)
                                          NAMES(sample_kernel) NAMES(next_token_kernel) LB_ATTENTION_DECODE(X)
                                              LB_ATTENTION_DECODE_PACKED(X) LB_ATTENTION_DECODE_8_PACKED(X)};
#undef X
#undef NAMES

}  // namespace

std::optional<Launch> batched_launch(const Launch& one, int n, const Target& target) {
  LB_ASSERT(n >= 1 && n <= kMaxBatched);
  for (const Names& names : kKernels) {
    if (names.one != one.kernel) continue;
    if (!target.has(names.batched)) return std::nullopt;
    LB_ASSERT(one.grid[2] == 1);  // the batched form counts sequences there
    Launch launch = one;
    launch.kernel = names.batched;
    launch.grid[0] = (one.grid[0] + names.n_slices - 1) / names.n_slices;
    launch.grid[2] = static_cast<uint32_t>(n);
    return launch;
  }
  return std::nullopt;
}

}  // namespace lb::gpu
