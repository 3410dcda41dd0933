// Layout of 16-bit operands in shared memory for wgmma: the 128-byte swizzle. A tile is
//   [blocks of 64 columns][tile_rows][8 pieces of 8 columns, 16 bytes]
// Piece p of row r is stored at position p ^ (r % 8). Eight rows of one piece, or the eight pieces of one row, then
// fall into different banks. Tiles must start 1024-byte aligned.
#pragma once

namespace lb::gpu {

inline constexpr int kTileAlignment = 1024;

// Index of a value in the tile. Columns 8 n to 8 n + 7 of a row are contiguous.
LB_DEVICE int tile_index(int tile_rows, int row, int column) {
  const int piece = column % 64 / 8;
  return (column / 64 * tile_rows + row) * 64 + (piece ^ row % 8) * 8 + column % 8;
}

}  // namespace lb::gpu
