// How a weight matrix lies in device memory: its blocks taken apart into planes, each a matrix of its own with one row
// per output, so that a warp reads every part in whole sectors, and 16 bytes of the first plane are one load.
//
//   F32 F16 BF16   values, rows padded with zeros to 16 bytes
//   Q8_0           bytes | d
//   Q4_0 IQ4_NL    nibbles | d
//   Q4_1           nibbles | d, m
//   MXFP4          nibbles | e
//   Q5_0           nibbles | bits 4 | d
//   Q5_1           nibbles | bits 4 | d, m
//   IQ4_XS         nibbles | six-bit scales
//   Q4_K           nibbles | scales and mins
//   Q5_K           nibbles | bits 4 | scales and mins
//   Q6_K           nibbles | bits 4 and 5 | scales of 16 values | d
//   Q3_K           bits 0 and 1 | bits 2 | six-bit scales
//   Q2_K           bits 0 and 1 | for each 16 values a scale (low nibble) and a min | d, dmin
//
//   nibbles            of a run of 32: byte j has value j (low) and value j + 16 (high)
//   two bits           of a run of 16: bits 2w of byte j are those of value 4w + j
//   one bit            of a run of 32: bit w of byte j is that of value 4w + j
//   six-bit scales     of eight runs (IQ4_XS: of 32, Q3_K: of 16): word h has scales 4h to 4h + 3 and byte h of d
//   scales and mins    of eight runs of 32: d, dmin, then for each run 6 bits of scale and 6 of min, without gaps
//
// Bytes are those of the file and alignment; Q3_K, whose d is there twice, has 112 for the file's 110.
//
// Read by host and device: offsets only, no standard library. Moving the bytes: quant/repack.h.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "quant/blocks.h"
#include "quant/half.h"

namespace lb::quant {

inline constexpr int kMaxPlanes = 4;
inline constexpr size_t kPlaneAlignment = 256;  // of each plane within the allocation, and of the allocation
inline constexpr size_t kRowAlignment = 16;     // of rows of plain numbers

struct PlaneFormat {
  int n_planes;
  int block_values;            // n_in is a multiple of this
  int block_bytes;             // in the file
  int part_bytes[kMaxPlanes];  // of a block in each plane
};

LB_FN constexpr PlaneFormat plane_format(DType type) {
  switch (type) {
    case DType::kF32: return {1, 1, 4, {4}};
    case DType::kF16:
    case DType::kBF16: return {1, 1, 2, {2}};
    case DType::kQ8_0: return {2, 32, 34, {32, 2}};
    case DType::kQ4_0:
    case DType::kIQ4_NL: return {2, 32, 18, {16, 2}};
    case DType::kQ4_1: return {2, 32, 20, {16, 4}};
    case DType::kMXFP4: return {2, 32, 17, {16, 1}};
    case DType::kQ5_0: return {3, 32, 22, {16, 4, 2}};
    case DType::kQ5_1: return {3, 32, 24, {16, 4, 4}};
    case DType::kIQ4_XS: return {2, 256, 136, {128, 8}};
    case DType::kQ4_K: return {2, 256, 144, {128, 16}};
    case DType::kQ5_K: return {3, 256, 176, {128, 32, 16}};
    case DType::kQ6_K: return {4, 256, 210, {128, 64, 16, 2}};
    case DType::kQ3_K: return {3, 256, 110, {64, 32, 16}};
    case DType::kQ2_K: return {3, 256, 84, {64, 16, 4}};
  }
  return {};
}

// The scale (low 6 bits) and the min (high 6 bits) of run `run` from the four words of a Q4_K scales entry.
LB_FN constexpr uint32_t k4_fields(const uint32_t* scales, int run) {
  const uint32_t a = scales[1], b = scales[2], c = scales[3];  // values, so that a device keeps them in registers
  const int bit = 12 * run;
  const uint32_t first = bit < 32 ? a : bit < 64 ? b : c;
  const uint32_t next = bit < 32 ? b : c;
  return uint32_t((uint64_t(next) << 32 | first) >> bit % 32) & 0xfff;
}

// From one word of six-bit scales: scale i of its four, and from both words d.
LB_FN constexpr int six_bit_scale(uint32_t word, int i) { return int(word >> 6 * i & 63) - 32; }
LB_FN constexpr uint16_t six_bit_d(uint32_t first, uint32_t second) {
  return uint16_t(first >> 24 | second >> 24 << 8);
}

struct PlaneLayout {
  int n_planes;
  size_t offset[kMaxPlanes];     // of a plane, from the start of the allocation
  size_t row_bytes[kMaxPlanes];  // of a plane: from one output to the next
  size_t bytes;                  // of the allocation
};

// Of a matrix [n_out, n_in], n_in a multiple of the type's block.
LB_FN constexpr PlaneLayout plane_layout(DType type, int n_out, int n_in) {
  const PlaneFormat format = plane_format(type);
  PlaneLayout layout = {};
  layout.n_planes = format.n_planes;
  for (int i = 0; i < kMaxPlanes; ++i) {  // a constant count: device compilers then keep the layout in registers
    if (i >= format.n_planes) break;
    size_t row_bytes = size_t(n_in / format.block_values) * size_t(format.part_bytes[i]);
    if (format.block_values == 1) row_bytes = (row_bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
    layout.offset[i] = layout.bytes;
    layout.row_bytes[i] = row_bytes;
    layout.bytes += (row_bytes * size_t(n_out) + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
  }
  return layout;
}

}  // namespace lb::quant
