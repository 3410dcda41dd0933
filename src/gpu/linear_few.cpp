// Products of few rows of x, 8 bits of each value, by type and rows (body: linear_few.h), and x as they read it.
#include "dialect.h"

#include "linear_few.h"

namespace lb::gpu {

// Values as they come in words, for each four the first pair is 0 and 2, the second 1 and 3.
LB_DEVICE void put_few_run(uint8_t* to, const u32x4 (&codes)[2], float scale) {
  LB_UNROLL
  for (int j = 0; j < 4; ++j) {
    u32x4 out;
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint32_t word = codes[half][j] ^ 0x80808080u;
      float v[4];  // 2^23 + 128 + code, as bits
      LB_UNROLL
      for (int k = 0; k < 4; ++k)
        v[k] = (quant::float_of(permute_bytes(word, 0x4b000000u, 0x7650 + k)) - 8388736.0f) * scale;
      out[2 * half] = pair_bits(to_f16x2(v[0], v[2]));
      out[2 * half + 1] = pair_bits(to_f16x2(v[1], v[3]));
    }
    store(to + j * 128, out);
  }
}

// Bound: latency; 1.25 bytes a value in, 2.25 out.
LB_KERNEL(few_rows_kernel, FewRows, kFewRowsThreads, 1) {
  LB_SHARED(float, scratch, 32);
  dependents_may_launch();
  wait_for_previous();
  const int row = block_id_y(), n_runs = p.n_in / kRoundRun, run = block_id() * n_threads() + thread_id();
  const long first = long(row) * n_runs;
  const bool is_row = row < p.rows;
  u32x4 codes[2] = {};
  float scale = 0, sum = 0, largest = 0;
  if (is_row && run < n_runs) {
    codes[0] = load<u32x4>(p.x.high + (first + run) * kRoundRun);
    codes[1] = load<u32x4>(p.x.high + (first + run) * kRoundRun + 16);
    scale = load<float>(p.x.scale + first + run);
    sum = load<float>(p.x.sum + first + run);
  }
  if (is_row)
    for (int i = thread_id(); i < n_runs; i += n_threads()) largest = max(largest, load<float>(p.x.scale + first + i));
  // 64 to 128 times the largest scale, whose codes are at most 127: no value is above 2.
  const int exponent = max(min(int(quant::bits_of(block_max(largest, scratch)) >> 23), 246), 8) + 7;
  if (run == 0) p.power[row] = quant::float_of(uint32_t(exponent) << 23);
  if (run >= n_runs) return;
  const float inverse = quant::float_of(uint32_t(254 - exponent) << 23);
  uint8_t* to = p.y + (long(run / 8) * n_blocks_y() + row) * kFewRowBytes;
  put_few_run(to + run % 8 * 16, codes, scale * inverse);
  uint8_t* to_sum = to + few_sums_at(row) + run % 4 * 8 + run % 8 / 4 * 2;
  const f16 high = to_f16(sum * inverse);
  store(to_sum, high.bits);
  store(to_sum + 4, to_f16(sum * inverse - to_f32(high)).bits);
}

LB_KERNEL(linear_few_q4_k_8_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ4_K, 8, 2>(p); }
LB_KERNEL(linear_few_q4_k_16_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ4_K, 16, 2>(p); }
LB_KERNEL(linear_few_q4_k_24_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ4_K, 24, 2>(p); }
LB_KERNEL(linear_few_q4_k_32_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ4_K, 32, 2>(p); }
LB_KERNEL(linear_few_q4_k_48_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ4_K, 48, 1>(p); }

LB_KERNEL(linear_few_q5_k_8_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ5_K, 8, 2>(p); }
LB_KERNEL(linear_few_q5_k_16_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ5_K, 16, 2>(p); }
LB_KERNEL(linear_few_q5_k_24_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ5_K, 24, 2>(p); }
LB_KERNEL(linear_few_q5_k_32_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ5_K, 32, 1>(p); }

LB_KERNEL(linear_few_q6_k_8_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ6_K, 8, 2>(p); }
LB_KERNEL(linear_few_q6_k_16_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ6_K, 16, 2>(p); }
LB_KERNEL(linear_few_q6_k_24_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ6_K, 24, 2>(p); }
LB_KERNEL(linear_few_q6_k_32_kernel, LinearFew, kFewThreads, 1) { linear_few<FewQ6_K, 32, 1>(p); }

}  // namespace lb::gpu
