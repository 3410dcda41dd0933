// Thread, block and grid indices; shuffles and votes of a warp.
#pragma once

#include <stdint.h>

namespace lb::gpu {

// The implicit arguments after the parameters (code object version 5): block counts, then block sizes.
struct LaunchShape {
  uint32_t blocks[3];
  uint16_t threads[3];
};
using ConstantLaunchShape = const __attribute__((address_space(4))) LaunchShape;
LB_DEVICE ConstantLaunchShape& launch_shape() { return *(ConstantLaunchShape*)__builtin_amdgcn_implicitarg_ptr(); }

LB_DEVICE int thread_id() { return int(__builtin_amdgcn_workitem_id_x()); }
LB_DEVICE int n_threads() { return launch_shape().threads[0]; }
LB_DEVICE int block_id() { return int(__builtin_amdgcn_workgroup_id_x()); }
LB_DEVICE int block_id_y() { return int(__builtin_amdgcn_workgroup_id_y()); }
LB_DEVICE int block_id_z() { return int(__builtin_amdgcn_workgroup_id_z()); }
LB_DEVICE int n_blocks() { return int(launch_shape().blocks[0]); }
LB_DEVICE int n_blocks_y() { return int(launch_shape().blocks[1]); }
LB_DEVICE int n_blocks_z() { return int(launch_shape().blocks[2]); }
LB_DEVICE int lane() { return thread_id() % 32; }
LB_DEVICE int warp() { return thread_id() / 32; }
LB_DEVICE int n_warps() { return (n_threads() + 31) / 32; }

// Reads v of lane `source`; ds_bpermute takes a byte index, four times the lane.
LB_DEVICE int from_lane(int v, int source) { return __builtin_amdgcn_ds_bpermute(source << 2, v); }

// Reads v of lane ^ kMask within a row of 16 lanes by DPP, without the LDS crossbar.
template <int kMask>
LB_DEVICE int row_xor(int v) {
  return __builtin_amdgcn_update_dpp(0, v, 0x160 + kMask, 0xf, 0xf, true);
}

LB_DEVICE int shuffle_xor_word(int v, int mask) {
  if (__builtin_constant_p(mask)) {
    switch (mask) {
      case 1: return row_xor<1>(v);
      case 2: return row_xor<2>(v);
      case 4: return row_xor<4>(v);
      case 8: return row_xor<8>(v);
      case 16: return __builtin_amdgcn_permlanex16(v, v, 0x76543210, int(0xfedcba98), true, false);
    }
  }
  return from_lane(v, lane() ^ mask);
}

// Applies a function of 4-byte words to each word of a value of 4 or 8 bytes.
template <class T, class Word>
LB_DEVICE T by_words(T v, Word&& word) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(T, word(__builtin_bit_cast(int, v)));
  } else {
    i32x2 words = __builtin_bit_cast(i32x2, v);
    words[0] = word(words[0]);
    words[1] = word(words[1]);
    return __builtin_bit_cast(T, words);
  }
}

template <class T>
LB_DEVICE T shuffle_xor(T v, int mask) {
  return by_words(v, [&](int w) __attribute__((always_inline)) { return shuffle_xor_word(w, mask); });
}
template <class T>
LB_DEVICE T shuffle(T v, int source) {
  return by_words(v, [&](int w) { return from_lane(w, source % 32); });
}
template <class T>
LB_DEVICE T shuffle_down(T v, int n) {
  const int source = lane() + n < 32 ? lane() + n : lane();
  return by_words(v, [&](int w) { return from_lane(w, source); });
}
template <class T>
LB_DEVICE T shuffle_up(T v, int n) {
  const int source = lane() >= n ? lane() - n : lane();
  return by_words(v, [&](int w) { return from_lane(w, source); });
}

LB_DEVICE uint32_t ballot(bool vote) { return __builtin_amdgcn_ballot_w32(vote); }
LB_DEVICE bool any(bool vote) { return ballot(vote) != 0; }
LB_DEVICE bool all(bool vote) { return ballot(!vote) == 0; }

// The compiler's scheduler moves no instruction across this barrier. Early loads therefore occupy fewer registers.
LB_DEVICE void sched_barrier() { __builtin_amdgcn_sched_barrier(0); }

// Hides v's origin from the optimiser, so a loop recomputes values derived from v instead of keeping them in registers.
LB_DEVICE int opaque(int v) {
  asm volatile("" : "+v"(v));
  return v;
}
template <class T>
LB_DEVICE T* opaque(T* p) {
  asm volatile("" : "+v"(p));
  return p;
}

}  // namespace lb::gpu
