// A tile of 16-bit operands as the matrix unit of a warpgroup reads it from shared memory: columns in blocks of 64,
//   block b, row r, piece p (8 columns, 16 bytes)  at  [b][tile_rows][8 pieces], piece p at place p ^ r % 8
// so that neither eight rows of a piece nor a row's pieces share a bank. Tiles start 1024-byte aligned.
#pragma once

namespace lb::gpu {

inline constexpr int kTileAlignment = 1024;

// The index of a value; a row's 8 columns from a multiple of 8 on are neighbours.
LB_DEVICE int tile_index(int tile_rows, int row, int column) {
  const int piece = column % 64 / 8;
  return (column / 64 * tile_rows + row) * 64 + (piece ^ row % 8) * 8 + column % 8;
}

}  // namespace lb::gpu
