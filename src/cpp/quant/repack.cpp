// Blocks to planes and back, one block at a time.
#include "quant/repack.h"

#include <cstring>

#include "base/dtype.h"
#include "base/error.h"

namespace lb::quant {
namespace {

// f(place in the blocks, place in the planes, bytes) for every part of every block.
template <class F>
void for_parts(DType type, int n_out, int n_in, F&& f) {
  const PlaneFormat format = plane_format(type);
  const PlaneLayout layout = checked_plane_layout(type, n_out, n_in);
  const int row_blocks = n_in / format.block_values;
  const size_t file_row_bytes = size_t(row_blocks) * format.block_bytes;
  for (int i = 0; i < layout.n_planes; ++i)
    for (int o = 0; o < n_out; ++o) {
      const size_t file_row = o * file_row_bytes;
      const size_t plane_row = layout.offset[i] + o * layout.row_bytes[i];
      const PlanePart part = format.parts[i];
      if (part.bytes == format.block_bytes) {
        f(file_row, plane_row, file_row_bytes);
      } else {
        for (int b = 0; b < row_blocks; ++b)
          f(file_row + size_t(b) * format.block_bytes + part.block_offset, plane_row + size_t(b) * part.bytes,
            size_t(part.bytes));
      }
    }
}

}  // namespace

PlaneLayout checked_plane_layout(DType type, int n_out, int n_in) {
  const PlaneFormat format = plane_format(type);
  LB_CHECK(format.n_planes > 0, kUnsupported, name(type), " weights have no device layout");
  LB_CHECK(n_out >= 0 && n_in >= 0 && n_in % format.block_values == 0, kInvalid, name(type), " rows are multiples of ",
           format.block_values, " values, got [", n_out, ", ", n_in, "]");
  return plane_layout(type, n_out, n_in);
}

void to_planes(DType type, int n_out, int n_in, const void* blocks, std::byte* planes) {
  std::memset(planes, 0, checked_plane_layout(type, n_out, n_in).bytes);
  for_parts(type, n_out, n_in, [&](size_t in_blocks, size_t in_planes, size_t bytes) {
    std::memcpy(planes + in_planes, static_cast<const std::byte*>(blocks) + in_blocks, bytes);
  });
}

void from_planes(DType type, int n_out, int n_in, const std::byte* planes, void* blocks) {
  for_parts(type, n_out, n_in, [&](size_t in_blocks, size_t in_planes, size_t bytes) {
    std::memcpy(static_cast<std::byte*>(blocks) + in_blocks, planes + in_planes, bytes);
  });
}

}  // namespace lb::quant
