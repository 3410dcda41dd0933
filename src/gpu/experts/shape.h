// Parameters of the kernels for mixtures of experts: the contract of host and device.
#pragma once

#include "gpu/gemm/shape.h"
#include "gpu/gemv/shape.h"
#include "ops/experts.h"

namespace lb::gpu {

inline constexpr int kRouteThreads = 128;  // a warp per row
// A block computes kExpertTile outputs of a choice, kExpertOutputs per warp: a block of RoundRows.
inline constexpr int kExpertThreads = 256, kExpertTile = kRoundBlock,
                     kExpertOutputs = kExpertTile * 32 / kExpertThreads;
inline constexpr int kExpertDownThreads = 256, kExpertDownOuts = 2;  // a warp per two outputs of a row

// Where the experts of one matrix are in its planes.
struct ExpertRows {
  int per_expert, first;
  const float* bias;  // [n_experts, n_out] or null
};

// Experts that a pass's products of gate and up copy from host memory to their slots: the blocks of other experts do
// not wait. The blocks of a missing expert divide the bytes of its planes.
struct CopiedPlane {
  const uint8_t* from;     // the part to copy of the first expert in host memory
  uint8_t* to;             // of the first slot
  int stride;              // bytes from an expert to the next
  int bytes, block_bytes;  // to copy, and by a block
};
struct CopiedPlanes {
  CopiedPlane of[2 * quant::kMaxPlanes];
  int n;
  bool are_aligned;  // all parts of 16 bytes
};
// The launch's own matrices, of which a block copies the rows that it multiplies, and down.
enum CopiedPart { kOwnPlanes, kDownPlanes };
struct CopiedExperts {
  CopiedPlanes planes[2];  // n == 0: nothing is copied, or another launch copies down
  ExpertCache* cache;
  ExpertCounts* counts;  // in host memory
  int expert_bytes;
};

// act() of every choice. gemv: the planes of all experts as one matrix each, and x. Its group has x and n_in; the teams
// and blocks are unused. Gate and up of different types take two launches: the first writes gate_sums, the second reads
// them.
struct ExpertGateUp {
  Gemv gemv;  // matrices: 0 is gate, 1 is up; of the two launches, 0 is the launch's matrix
  ExpertRows rows[2];
  const int32_t* experts;  // [n_choices]
  const int32_t* slots;    // [n_experts] ExpertCache::now. null: expert e is at e
  const float* gate_sums;  // [n_choices, ffn] second launch; else null
  float* y;                // [n_choices, ffn]: act(), or the gate's sums
  RoundedRows rounded;     // act() rounded as by RoundRows, written instead of y; null: not written
  int n_choices, k, ffn;
  float limit;
  bool is_gelu;
  bool has_both;   // matrices 0 and 1
  bool activates;  // false: y gets the sums of matrix 0
  // The shared expert follows the choices of the only row as row n_choices of act(). Matrices 2 and 3; its sums have
  // the order of a GEMV.
  bool has_shared;
  CopiedExperts copied;
};

// y[r] of MixExperts from act(), which gemv reads: a row per choice.
struct ExpertDown {
  Gemv gemv;  // matrix 1: the shared expert
  ExpertRows rows;
  const int32_t* experts;  // [n_rows, k]
  const int32_t* slots;    // as of ExpertGateUp
  const float* weights;    // [n_rows, k]
  const float *shared, *shared_gate, *add;
  float* y;     // [n_rows, dim]
  float* sums;  // [n_rows, k, dim] sums of each choice, written instead of y; null: not written
  int n_rows, k, dim;
  bool has_shared;  // row k of act() is the shared expert's, which replaces `shared`; summed in the order of a GEMV
};

// Grouped products, for many rows. Choices are sorted by expert; the position of a choice is its place in that order.
// Each expert's positions are divided into tiles, which the loop of gemm.h multiplies by the expert's matrices.
inline constexpr int kGroupThreads = 1024, kSumThreads = 256;
inline constexpr int kActTileOuts = 64;  // of gate and of up each, in a tile of gate and up

struct ExpertTile {
  int32_t expert, slot, first, n;  // positions [first, first + n)
};
struct GroupChoices {
  const int32_t* experts;  // [n_choices]
  const int32_t* slots;    // as of ExpertGateUp; an expert at -1 gets no tiles
  int32_t* choices;        // [n_choices] choice of each position
  int32_t* x_rows;         // [n_choices] choice / k of each position
  ExpertTile* tiles;       // [max_expert_tiles()]; one empty tile follows the last
  int32_t* n_tiles;
  int n_choices, k, n_experts, tile_rows;
};
LB_FN constexpr int max_expert_tiles(int n_choices, int n_experts, int tile_rows) {
  return n_choices / tile_rows + (n_experts < n_choices ? n_experts : n_choices) + 1;
}

// Products of the tiles: act() of gate and up, or the sums of down.
struct ExpertGemm {
  Gemm gemm;         // n_in and x, whose row count is unused; chunks, stages and tile_rows
  const void* w[2];  // gate and up; or down
  ExpertRows rows[2];
  const ExpertTile* tiles;
  const int32_t *n_tiles, *choices, *x_rows;
  int n_held;  // experts in w
  int n_out, n_out_tiles;
  float limit;
  bool is_gelu;
  RoundedRows rounded;  // act() rounded, [position, n_out]; or
  uint16_t* halves;     // act() as 16-bit numbers of half_type, [position, x16_values(n_out)]; or
  float* values;        // act(), [position, n_out]
  DType half_type;
  bool is_permuted;  // halves: in the order that expanding weights from codes produces
  float* sums;       // [n_choices, n_out] of down
};

// y[r] of MixExperts from the sums of down.
struct SumChoices {
  const float* sums;  // [n_rows, k, dim]
  const int32_t* experts;
  const float *weights, *bias, *shared, *shared_gate, *add;
  float* y;
  int n_rows, k, dim;
};

// Slots: find_experts decides which missing experts of a pass take which slots, and fill_slots copies them. A pass
// whose experts exceed the slots takes several groups of launches; group 0 has the experts that are already there.
inline constexpr int kFindThreads = kMaxExperts, kFillThreads = 256, kFillBlocks = 64;
inline constexpr int kFillLoads = 4;                              // 16-byte loads in flight per thread
inline constexpr int kFillUnit = kFillThreads * kFillLoads * 16;  // bytes that a block copies at a time
inline constexpr int kAgingPasses = 16;

struct FindExperts {
  const int32_t* experts;  // [n_choices]
  ExpertCache* cache;
  ExpertFills* host_fills;  // in host memory: the experts to copy, for the host; null: the device copies them itself
  int n_choices, n_experts, n_slots;
  int group, max_fills;  // experts that a group copies at most
  bool products_copy;    // CopiedExperts: no fill_slots follows
};

struct RouteFindExperts {
  RouteExperts route;
  FindExperts find;
};

// A plane of a matrix: the bytes of an expert are consecutive there.
struct ExpertPiece {
  const uint8_t* from;  // [n_experts, bytes] host memory
  uint8_t* to;          // [slots, bytes]
  int bytes, n_units;   // of an expert
};
struct ExpertPieces {
  ExpertPiece of[3 * quant::kMaxPlanes];
  int n, n_units, bytes;  // pieces; units and bytes of an expert
};
struct FillSlots {
  ExpertCache* cache;
  ExpertCounts* counts;  // in host memory
  ExpertPieces pieces;
  bool is_staged;  // the pieces are those of the experts to copy, in order
};

// Long prompts leave the slots as they are. All experts that no slot has are streamed, in ascending order, through a
// ring of kRingParts parts: copies fill the next ones while products read one. A part is laid out like matrices of
// group_experts experts; layouts differ between layers, so parts share no bytes. Group 0 has the experts in slots,
// group g the g-th share of the others.
struct FindStreamed {
  const int32_t* experts;  // [n_choices]
  ExpertCache* cache;
  ExpertCounts* counts;  // in host memory
  int32_t* tables;       // [n_groups, n_experts] where each expert is in a group's matrices; -1: not in this group
  int n_choices, n_experts, n_groups, group_experts;
  int expert_bytes;
};
struct StreamExperts {
  const ExpertCache* cache;
  ExpertPieces pieces;
  int n_experts, first, group_experts;
};

}  // namespace lb::gpu
