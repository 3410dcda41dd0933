// Parameters and launch bounds of the GEMV kernels: the contract of host and device.
//
// A team is row_threads threads of a thread block that share a weight row. A piece is 16 bytes of the row's first plane
// (quant/planes.h) and the matching parts of the other planes. A pass is the rows of a block whose sums are in shared
// memory together.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "ops/round_rows.h"
#include "quant/planes.h"

namespace lb::gpu {

// One matrix of the group: the fields that its blocks need to load weights.
struct GemvMatrix {
  const uint8_t* w;                        // [n_out, n_in] in planes; the first plane
  uint32_t offset[quant::kMaxPlanes - 1];  // offsets of planes 1, 2, ... from w, in units of quant::kPlaneAlignment
  int block_rows, n_longer;                // rows per block; the first n_longer blocks have one row more
};

// gemv_ring and gemv_whole: layout of a block's shared memory after the row sums. Offsets are in bytes from its start.
struct GemvRing {
  int n_slots, slot_bytes;
  int barriers_offset, slots_offset;
  int max_in_flight;  // max slots that bulk copies fill concurrently
  int unit_rows;      // unit of block_rows and n_longer: this many rows are whole 16 bytes in each plane
};

// Parameters of gemv. Plain weights read x of `group`, quantised weights read `x`. All fields that a block needs before
// x is ready are in two 64-byte lines, because a launch fetches each line that it reads. (On NVIDIA, parameters start
// at byte 16 of a line.)
struct Gemv {
  int first_block[kMaxProducts - 1];  // first block of matrices 1, 2, ...; n_blocks if the group lacks the matrix
  int row_threads, n_teams;           // threads per team, a multiple of 32; teams per block
  int team_factor;                    // team = thread * team_factor >> kGemvTeamShift
  int row_pieces;                     // pieces per row
  int pass_rows;                      // rows per pass
  int row_bytes[quant::kMaxPlanes];   // bytes per row in each plane
  RoundedRows x;                      // [rows, n_in]
  GemvMatrix matrices[kMaxProducts];
  LinearGroup group;
  GemvRing ring;  // gemv_ring and gemv_whole only
};
inline constexpr int kGemvTeamShift = 20;  // exact up to 1024 threads

// Launch bounds, in threads. Kernels with one piece of a row per thread run two blocks per SM. The wide kernels, for
// longer rows, run one block, of kGemvWideThreads for plain or kGemvWideQuantThreads for quantised weights.
inline constexpr int kGemvThreads = 256;
inline constexpr int kGemvWideThreads = 512;
inline constexpr int kGemvWideQuantThreads = 640;
inline constexpr int kGemvRingThreads = 576;  // with the producer warp
inline constexpr int kGemvWholeThreads = 512;

inline constexpr int kGemvRowsPieces = 2;          // pieces of a row per thread of gemv_f32_rows, as of gemv_f32_wide
inline constexpr int kGemvRowsOuts = 8;            // max rows per team of gemv_f32_rows
inline constexpr int kGemvPassRows = 256;          // max pass_rows of gemv
inline constexpr int kGemvWholeRows = 8;           // max rows per team in gemv_whole
inline constexpr int kGemvSlotRows = 2;            // rows of each team per slot of gemv_ring
inline constexpr int kGemvMaxSlots = 32;           // max slots of gemv_ring
inline constexpr int kGemvRingBarrierBytes = 512;  // two barriers per slot

}  // namespace lb::gpu
