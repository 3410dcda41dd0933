// The list of all matrix-unit attention kernels. Kernel files instantiate it, and the host's kernel choice looks names
// up in it. An entry is one cache type, for K and V, and one head_dim. Kernels of packed pages take any two types
// except F32, so their entries are a name and a head_dim.
//   kernel   its name, also in a pack's manifest
//   Type     KvType::k<Type> of the pages
//   Stored   the dialect's type of a stored value
//   kDim     head_dim
#pragma once

// clang-format off: one row per line

// X(kernel, Type, Stored, kDim)
#define LB_ATTENTION_DECODE(X) \
  X(attention_decode_f16_64_kernel, F16, f16, 64) \
  X(attention_decode_f16_128_kernel, F16, f16, 128) \
  X(attention_decode_f16_256_kernel, F16, f16, 256) \
  X(attention_decode_bf16_64_kernel, BF16, bf16, 64) \
  X(attention_decode_bf16_128_kernel, BF16, bf16, 128) \
  X(attention_decode_bf16_256_kernel, BF16, bf16, 256)

#define LB_ATTENTION_PREFILL_16(X) \
  X(attention_prefill_16_f16_64_kernel, F16, f16, 64) \
  X(attention_prefill_16_f16_128_kernel, F16, f16, 128) \
  X(attention_prefill_16_f16_256_kernel, F16, f16, 256) \
  X(attention_prefill_16_bf16_64_kernel, BF16, bf16, 64) \
  X(attention_prefill_16_bf16_128_kernel, BF16, bf16, 128) \
  X(attention_prefill_16_bf16_256_kernel, BF16, bf16, 256)

#define LB_ATTENTION_PREFILL_32(X) \
  X(attention_prefill_32_f16_64_kernel, F16, f16, 64) \
  X(attention_prefill_32_f16_128_kernel, F16, f16, 128) \
  X(attention_prefill_32_bf16_64_kernel, BF16, bf16, 64) \
  X(attention_prefill_32_bf16_128_kernel, BF16, bf16, 128)

#define LB_ATTENTION_PREFILL_SM90(X) \
  X(attention_prefill_sm90_f16_64_kernel, F16, f16, 64) \
  X(attention_prefill_sm90_f16_128_kernel, F16, f16, 128) \
  X(attention_prefill_sm90_f16_256_kernel, F16, f16, 256) \
  X(attention_prefill_sm90_bf16_64_kernel, BF16, bf16, 64) \
  X(attention_prefill_sm90_bf16_128_kernel, BF16, bf16, 128) \
  X(attention_prefill_sm90_bf16_256_kernel, BF16, bf16, 256)

// Heads of 512: 16 and 32 queries per block.
#define LB_ATTENTION_WIDE_16(X) \
  X(attention_wide_16_f16_512_kernel, F16, f16, 512) \
  X(attention_wide_16_bf16_512_kernel, BF16, bf16, 512)

#define LB_ATTENTION_WIDE_32(X) \
  X(attention_wide_32_f16_512_kernel, F16, f16, 512) \
  X(attention_wide_32_bf16_512_kernel, BF16, bf16, 512)

// Heads of 512 whose values are parts of the keys: one type for both. BF16 pages take the packed kernels.
#define LB_ATTENTION_WIDE_TAIL_16(X) \
  X(attention_wide_tail_16_f16_512_kernel, F16, f16, 512)

#define LB_ATTENTION_WIDE_TAIL_32(X) \
  X(attention_wide_tail_32_f16_512_kernel, F16, f16, 512)

// Attention to selected key blocks.
#define LB_ATTENTION_SPARSE_16(X) \
  X(attention_sparse_16_f16_64_kernel, F16, f16, 64) \
  X(attention_sparse_16_f16_128_kernel, F16, f16, 128)

#define LB_ATTENTION_SPARSE_256(X) \
  X(attention_sparse_16_f16_256_kernel, F16, f16, 256)

#define LB_ATTENTION_SPARSE_32(X) \
  X(attention_sparse_32_f16_64_kernel, F16, f16, 64) \
  X(attention_sparse_32_f16_128_kernel, F16, f16, 128)

#define LB_ATTENTION_SPARSE_SM90(X) \
  X(attention_sparse_sm90_f16_64_kernel, F16, f16, 64) \
  X(attention_sparse_sm90_f16_128_kernel, F16, f16, 128) \
  X(attention_sparse_sm90_f16_256_kernel, F16, f16, 256)

// X(kernel, kDim)
#define LB_SELECT_BLOCKS(X) \
  X(select_blocks_64_kernel, 64) \
  X(select_blocks_128_kernel, 128) \
  X(select_blocks_256_kernel, 256)

#define LB_ATTENTION_WIDE_16_PACKED(X) \
  X(attention_wide_16_packed_512_kernel, 512)

#define LB_ATTENTION_WIDE_32_PACKED(X) \
  X(attention_wide_32_packed_512_kernel, 512)

#define LB_ATTENTION_WIDE_TAIL_16_PACKED(X) \
  X(attention_wide_tail_16_packed_512_kernel, 512)

#define LB_ATTENTION_WIDE_TAIL_32_PACKED(X) \
  X(attention_wide_tail_32_packed_512_kernel, 512)

#define LB_ATTENTION_DECODE_PACKED(X) \
  X(attention_decode_packed_64_kernel, 64) \
  X(attention_decode_packed_128_kernel, 128) \
  X(attention_decode_packed_256_kernel, 256)

#define LB_ATTENTION_DECODE_8_PACKED(X) \
  X(attention_decode_8_packed_64_kernel, 64) \
  X(attention_decode_8_packed_128_kernel, 128) \
  X(attention_decode_8_packed_256_kernel, 256)

#define LB_ATTENTION_PREFILL_16_PACKED(X) \
  X(attention_prefill_16_packed_64_kernel, 64) \
  X(attention_prefill_16_packed_128_kernel, 128) \
  X(attention_prefill_16_packed_256_kernel, 256)

#define LB_ATTENTION_PREFILL_32_PACKED(X) \
  X(attention_prefill_32_packed_64_kernel, 64) \
  X(attention_prefill_32_packed_128_kernel, 128)

#define LB_ATTENTION_PREFILL_SM90_PACKED(X) \
  X(attention_prefill_sm90_packed_64_kernel, 64) \
  X(attention_prefill_sm90_packed_128_kernel, 128) \
  X(attention_prefill_sm90_packed_256_kernel, 256)

// clang-format on
