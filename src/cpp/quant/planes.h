// How a weight matrix lies in device memory: its blocks taken apart into planes, each a matrix of its own with one row
// per output, so that a warp reads every part in whole sectors, and the codes of 32 values (Q8_0: 16) are one 16-byte
// load. Bytes are those of the file plus alignment.
//
//   F32 F16 BF16   values, rows padded with zeros to 16 bytes
//   Q8_0           codes | d
//   Q4_0           nibbles | d
//   Q4_K           nibbles | scales: d, dmin, then for each of 8 runs 6 bits of scale and 6 of min, without gaps
//   Q6_K           nibbles | upper bits | scales | d
//   nibbles        of a run of 32: byte j has value j (low) and value j + 16 (high)
//   upper bits     of a run of 32: bits 2w of byte 4h + j are those of value 16h + 4w + j
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
  int n_planes;                // 0: this type has no device layout
  int block_values;            // n_in is a multiple of this
  int block_bytes;             // in the file
  int part_bytes[kMaxPlanes];  // of a block in each plane; their sum is block_bytes
};

LB_FN constexpr PlaneFormat plane_format(DType type) {
  switch (type) {
    case DType::kF32: return {1, 1, 4, {4}};
    case DType::kF16:
    case DType::kBF16: return {1, 1, 2, {2}};
    case DType::kQ8_0: return {2, 32, 34, {32, 2}};
    case DType::kQ4_0: return {2, 32, 18, {16, 2}};
    case DType::kQ4_K: return {2, 256, 144, {128, 16}};
    case DType::kQ6_K: return {4, 256, 210, {128, 64, 16, 2}};
    default: return {};
  }
}

// The scale (low 6 bits) and the min (high 6 bits) of run `run` from the four words of a Q4_K scales entry.
LB_FN constexpr uint32_t k4_fields(const uint32_t* scales, int run) {
  const uint32_t a = scales[1], b = scales[2], c = scales[3];  // values, so that a device keeps them in registers
  const int bit = 12 * run;
  const uint32_t first = bit < 32 ? a : bit < 64 ? b : c;
  const uint32_t next = bit < 32 ? b : c;
  return uint32_t((uint64_t(next) << 32 | first) >> bit % 32) & 0xfff;
}

struct PlaneLayout {
  int n_planes;
  size_t offset[kMaxPlanes];     // of a plane, from the start of the allocation
  size_t row_bytes[kMaxPlanes];  // of a plane: from one output to the next
  size_t bytes;                  // of the allocation
};

// Of a matrix [n_out, n_in], n_in a multiple of the type's block; n_planes is 0 for a type without a device layout.
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
