// How a weight matrix lies in device memory: its blocks taken apart into planes, each a matrix of its own with one row
// per output, so that a warp reads every part in whole sectors and 16 bytes a lane. Codes keep the order of
// quant/blocks.h inside a row. Bytes are those of the file plus alignment.
//
//   F32 F16 BF16   values, rows padded with zeros to 16 bytes
//   Q8_0 Q4_0      qs | d
//   Q4_K           qs | d dmin scales[12]: 16 bytes for 256 values
//   Q6_K           ql | qh | scales | d
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

// A run of bytes of every block of the file that goes into one plane.
struct PlanePart {
  int block_offset, bytes;
};
struct PlaneFormat {
  int n_planes;      // 0: this type has no device layout
  int block_values;  // n_in is a multiple of this
  int block_bytes;
  PlanePart parts[kMaxPlanes];
};

LB_FN constexpr PlaneFormat plane_format(DType type) {
  switch (type) {
    case DType::kF32: return {1, 1, 4, {{0, 4}}};
    case DType::kF16:
    case DType::kBF16: return {1, 1, 2, {{0, 2}}};
    case DType::kQ8_0: return {2, 32, 34, {{2, 32}, {0, 2}}};
    case DType::kQ4_0: return {2, 32, 18, {{2, 16}, {0, 2}}};
    case DType::kQ4_K: return {2, 256, 144, {{16, 128}, {0, 16}}};
    case DType::kQ6_K: return {4, 256, 210, {{0, 128}, {128, 64}, {192, 16}, {208, 2}}};
    default: return {};
  }
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
    size_t row_bytes = size_t(n_in / format.block_values) * size_t(format.parts[i].bytes);
    if (format.block_values == 1) row_bytes = (row_bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
    layout.offset[i] = layout.bytes;
    layout.row_bytes[i] = row_bytes;
    layout.bytes += (row_bytes * size_t(n_out) + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
  }
  return layout;
}

}  // namespace lb::quant
