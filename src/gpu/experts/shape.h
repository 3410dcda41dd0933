// Parameters of the kernels for mixtures of experts: the contract of host and device.
#pragma once

#include "gpu/gemv/shape.h"
#include "ops/experts.h"

namespace lb::gpu {

inline constexpr int kRouteThreads = 128;  // a warp per row
// A block computes kExpertTile outputs of a choice, kExpertOutputs per warp: a block of RoundRows.
inline constexpr int kExpertThreads = 256, kExpertTile = kRoundBlock,
                     kExpertOutputs = kExpertTile * 32 / kExpertThreads;
inline constexpr int kExpertDownThreads = 256;  // a warp per output of a row

// Where the experts of one matrix are in its planes.
struct ExpertRows {
  int per_expert, first;
  const float* bias;  // [n_experts, n_out] or null
};

// act() of every choice. gemv: the planes of all experts as one matrix each, and x. Its group has x and n_in; the teams
// and blocks are unused. Gate and up of different types take two launches: the first writes gate_sums, the second reads
// them.
struct ExpertGateUp {
  Gemv gemv;  // matrices: 0 is gate, 1 is up; of the two launches, 0 is the launch's matrix
  ExpertRows rows[2];
  const int32_t* experts;  // [n_choices]
  const float* gate_sums;  // [n_choices, ffn] second launch; else null
  float* y;                // [n_choices, ffn]: act(), or the gate's sums
  RoundedRows rounded;     // act() rounded as by RoundRows, written instead of y; null: not written
  int n_choices, k, ffn;
  float limit;
  bool has_both;   // matrices 0 and 1
  bool activates;  // false: y gets the sums of matrix 0
};

// y[r] of MixExperts from act(), which gemv reads: a row per choice.
struct ExpertDown {
  Gemv gemv;
  ExpertRows rows;
  const int32_t* experts;  // [n_rows, k]
  const float* weights;    // [n_rows, k]
  const float *shared, *shared_gate, *add;
  float* y;  // [n_rows, dim]
  int n_rows, k, dim;
};

}  // namespace lb::gpu
