// Layout of operands in shared memory for wgmma: the 128-byte swizzle. A tile of 16-bit values is
//   [blocks of 64 columns][tile_rows][8 pieces of 8 columns, 16 bytes]
// and of bytes the same with blocks of 128 columns and pieces of 16.
// Piece p of row r is stored at position p ^ (r % 8). Eight rows of one piece, or the eight pieces of one row, then
// fall into different banks. Tiles must start 1024-byte aligned.
#pragma once

namespace lb::gpu {

inline constexpr int kTileAlignment = 1024;

// Index of a value of kBytes bytes in the tile. The columns of a piece are contiguous.
template <int kBytes = 2>
LB_DEVICE int tile_index(int tile_rows, int row, int column) {
  constexpr int kPiece = 16 / kBytes, kBlock = 8 * kPiece;
  const int piece = column % kBlock / kPiece;
  return (column / kBlock * tile_rows + row) * kBlock + (piece ^ row % 8) * kPiece + column % kPiece;
}

}  // namespace lb::gpu
