// A run of rounded values in words, for readers that would all round it themselves.
#pragma once

#include "mega_wait.h"
#include "round_run.h"

namespace lb::gpu {

// By a warp, y of a lane each: words of four codes from codes_at on, one of the scale.
LB_DEVICE void write_run(int codes_at, int scale_at, float y, const PhaseWait& wait) {
  int largest = magnitude(y);
  LB_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
  const RunScale run(largest);
  uint32_t codes = run.code(y) << 8 * (lane() % 4);
  codes |= shuffle_xor(codes, 1);
  codes |= shuffle_xor(codes, 2);
  if (lane() % 4 == 0) wait.write(codes_at + lane() / 4, quant::float_of(codes));
  if (lane() == 0) wait.write(scale_at, run.scale());
}

}  // namespace lb::gpu
