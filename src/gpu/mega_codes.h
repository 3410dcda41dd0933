// A run of rounded values in words, for readers that would all round it themselves.
#pragma once

#include "mega_wait.h"
#include "round_run.h"

namespace lb::gpu {

// By a warp, y of a lane each: words of four codes, and one of the scale. Each lane's place; null where it has none.
LB_DEVICE void write_run(Word* code, Word* scale, float y, uint32_t made_by) {
  const RunScale run(warp_max(magnitude(y)));
  uint32_t four = run.code(y) << 8 * (lane() % 4);
  four |= shuffle_xor(four, 1);
  four |= shuffle_xor(four, 2);
  if (code != nullptr) store_relaxed(code, word_of(four, made_by));
  if (scale != nullptr) store_relaxed(scale, word_of(run.scale(), made_by));
}

}  // namespace lb::gpu
