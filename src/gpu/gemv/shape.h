// What the matrix products' kernels and their launch functions must agree on. Read by host and device.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ops/linear.h"
#include "ops/round_rows.h"
#include "quant/planes.h"

namespace lb::gpu {

// What the blocks of one product must know before they can ask for weights.
struct GemvProduct {
  const uint8_t* w;                        // its planes
  uint32_t offset[quant::kMaxPlanes - 1];  // of plane 1 and on, in units of quant::kPlaneAlignment
  int rows, longer;                        // blocks have `rows` rows each, the first `longer` one more
};

// gemv_ring and gemv_whole: what lies behind the sums in a block's shared memory, in bytes from its start.
struct GemvRing {
  int n_slots, slot_bytes;
  int barriers_at, slots_at;
  int max_coming;  // slots on their way at a time
  int unit_rows;    // products[].rows and longer count units of so many rows: bytes of each plane are multiples of 16
};

// gemv. Of x one form is read: p.group's fp32 rows by plain weights, the rounded ones by quantised weights.
// Two lines of 64 bytes (parameters start at byte 16 of one on NVIDIA) hold all that is needed until x is there: a
// launch has to fetch each line that it reads.
struct Gemv {
  int first_block[kMaxProducts - 1];  // of product 1 and on; those that the group does not have: behind the last block
  int row_threads, n_teams;           // threads that share a weight row: a multiple of 32; how often a block has them
  int team_factor;                    // thread * team_factor >> kGemvTeamShift is the thread's team
  int row_pieces;                     // of a row: 16 bytes of the first plane
  int pass_rows;                      // rows of a block whose sums wait in shared memory at a time
  int row_bytes[quant::kMaxPlanes];   // of the planes
  RoundedRows x;                      // [rows, n_in]
  GemvProduct products[kMaxProducts];
  LinearGroup group;
  GemvRing ring;  // of gemv_ring and gemv_whole alone
};
inline constexpr int kGemvTeamShift = 20;  // exact for up to 1024 threads
// Threads of a block at most: of the kernels with one piece of a row a thread (two blocks to a multiprocessor), and of
// the wide ones for longer rows of plain and of quantised weights.
inline constexpr int kGemvThreads = 256;
inline constexpr int kGemvWideThreads = 512;
inline constexpr int kGemvWideQuantThreads = 640;
inline constexpr int kGemvPassRows = 256;  // pass_rows at most

inline constexpr int kGemvRingThreads = 576;   // of gemv_ring at most, with the warp that brings
inline constexpr int kGemvWholeThreads = 512;  // of gemv_whole at most
inline constexpr int kGemvWholeRows = 8;       // of a team at most, there
inline constexpr int kGemvSlotRows = 2;        // of each team in a slot
inline constexpr int kGemvMaxSlots = 32;
inline constexpr int kGemvRingBarrierBytes = 512;  // two for each slot

}  // namespace lb::gpu
