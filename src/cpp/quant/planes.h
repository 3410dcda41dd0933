// The layout of a weight matrix in device memory. Its blocks are split into planes, each a matrix with one row per
// output, so that a warp reads every field of the blocks in whole sectors and each lane loads 16 bytes of the first
// plane per instruction.
//
//   F32 F16 BF16   values, rows padded with zeros to 16 bytes
//   IQ1 IQ2 IQ3 TQ1_0 TQ2_0   as BF16: the values, rounded
//   Q8_0           bytes | d
//   F8_E4M3        bytes | an fp32 scale per 128 values
//   Q4_0 IQ4_NL    nibbles | d
//   Q4_1           nibbles | d, m
//   MXFP4          nibbles | e
//   NVFP4          nibbles | e4m3 scales of 16 values | the tensor's scale, once per row: ScaledHeader (blocks.h)
//   Q5_0           nibbles | bits 4 | d
//   Q5_1           nibbles | bits 4 | d, m
//   IQ4_XS         nibbles | six-bit scales
//   Q4_K           nibbles | scales and mins
//   Q5_K           nibbles | bits 4 | scales and mins
//   Q6_K           nibbles | bits 4 and 5 | scales of 16 values | d
//   Q3_K           bits 0 and 1 | bits 2 | six-bit scales
//   Q2_K           bits 0 and 1 | a scale (low nibble) and a min (high nibble) per 16 values | d, dmin
//
//   nibbles            per 32 values: byte j has value j (low) and value j + 16 (high)
//   two bits           per 16 values: bits 2w of byte j belong to value 4w + j
//   one bit            per 32 values: bit w of byte j belongs to value 4w + j
//   e4m3 scales        without sign; NaN counts as 0, and 0x7f is 480
//   six-bit scales     per 8 sub-blocks (IQ4_XS: of 32 values, Q3_K: of 16): word h has scales 4h to 4h + 3 and byte h
//                      of d
//   scales and mins    per 8 sub-blocks of 32 values: d, dmin, then 6 bits of scale and 6 of min per sub-block, packed
//
// Planes have the file's bytes plus alignment. Q3_K stores d twice: 112 bytes per block, 110 in the file.
//
// Included by host and device: offsets only, no standard library. quant/repack.h moves the bytes.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "quant/blocks.h"
#include "quant/half.h"

namespace lb::quant {

inline constexpr int kMaxPlanes = 4;
inline constexpr size_t kPlaneAlignment = 256;  // alignment, in bytes, of the allocation and of each plane in it
inline constexpr size_t kRowAlignment = 16;     // alignment, in bytes, of rows of plain numbers

struct PlaneFormat {
  int n_planes;
  int block_values;            // n_in is a multiple of block_values
  int block_bytes;             // bytes of a block in the file
  int part_bytes[kMaxPlanes];  // bytes of a block's part in each plane
  int row_entry_bytes = 0;     // bytes of a row's only entry in the last plane, whose part_bytes are then 0
};

// The type in which a device holds weights of a type.
LB_FN constexpr DType device_type(DType type) {
  if (type == DType::kNVFP4_SCALED) return DType::kNVFP4;
  return type > DType::kF8_E4M3 ? DType::kBF16 : type;
}

// Whether a device holds the bits of a type, not BF16 in its place.
LB_FN constexpr bool has_planes(DType type) { return type == DType::kBF16 || device_type(type) != DType::kBF16; }

LB_FN constexpr PlaneFormat plane_format(DType type) {
  switch (device_type(type)) {
    case DType::kF32: return {1, 1, 4, {4}};
    case DType::kF16:
    case DType::kBF16: return {1, 1, 2, {2}};
    case DType::kQ8_0: return {2, 32, 34, {32, 2}};
    case DType::kF8_E4M3: return {2, 128, 132, {128, 4}};
    case DType::kQ4_0:
    case DType::kIQ4_NL: return {2, 32, 18, {16, 2}};
    case DType::kQ4_1: return {2, 32, 20, {16, 4}};
    case DType::kMXFP4: return {2, 32, 17, {16, 1}};
    case DType::kNVFP4: return {3, 64, 36, {32, 4, 0}, int(sizeof(ScaledHeader))};
    case DType::kQ5_0: return {3, 32, 22, {16, 4, 2}};
    case DType::kQ5_1: return {3, 32, 24, {16, 4, 4}};
    case DType::kIQ4_XS: return {2, 256, 136, {128, 8}};
    case DType::kQ4_K: return {2, 256, 144, {128, 16}};
    case DType::kQ5_K: return {3, 256, 176, {128, 32, 16}};
    case DType::kQ6_K: return {4, 256, 210, {128, 64, 16, 2}};
    case DType::kQ3_K: return {3, 256, 110, {64, 32, 16}};
    case DType::kQ2_K: return {3, 256, 84, {64, 16, 4}};
    default: break;
  }
  return {};
}

// The scale (low 6 bits) and the min (high 6 bits) of sub-block `sub` from the four words of a Q4_K scales entry.
LB_FN constexpr uint32_t k4_fields(const uint32_t* scales, int sub) {
  const uint32_t a = scales[1], b = scales[2], c = scales[3];  // values, so that a device keeps them in registers
  const int bit = 12 * sub;
  const uint32_t first = bit < 32 ? a : bit < 64 ? b : c;
  const uint32_t next = bit < 32 ? b : c;
  return uint32_t((uint64_t(next) << 32 | first) >> bit % 32) & 0xfff;
}

// Scale i of the four in a word of six-bit scales; d is split over the top bytes of the entry's two words.
LB_FN constexpr int six_bit_scale(uint32_t word, int i) { return int(word >> 6 * i & 63) - 32; }
LB_FN constexpr uint16_t six_bit_d(uint32_t first, uint32_t second) {
  return uint16_t(first >> 24 | second >> 24 << 8);
}

struct PlaneLayout {
  int n_planes;
  size_t offset[kMaxPlanes];     // bytes from the start of the allocation to the plane
  size_t row_bytes[kMaxPlanes];  // bytes from one output's row of the plane to the next
  size_t bytes;                  // of the allocation
};

// The layout of a matrix [n_out, n_in]; n_in must be a multiple of the type's block.
LB_FN constexpr PlaneLayout plane_layout(DType type, int n_out, int n_in) {
  const PlaneFormat format = plane_format(type);
  PlaneLayout layout = {};
  layout.n_planes = format.n_planes;
  for (int i = 0; i < kMaxPlanes; ++i) {  // a constant trip count lets device compilers keep the layout in registers
    if (i >= format.n_planes) break;
    size_t row_bytes = size_t(n_in / format.block_values) * size_t(format.part_bytes[i]);
    if (i == format.n_planes - 1) row_bytes += size_t(format.row_entry_bytes);
    if (format.block_values == 1) row_bytes = (row_bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
    layout.offset[i] = layout.bytes;
    layout.row_bytes[i] = row_bytes;
    layout.bytes += (row_bytes * size_t(n_out) + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
  }
  return layout;
}

}  // namespace lb::quant
