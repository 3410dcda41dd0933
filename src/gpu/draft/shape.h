// Sizes of the drafting kernels: the contract of host and device.
#pragma once

#include <stddef.h>

#include "ops/select_candidates.h"

namespace lb::gpu {

// PreviousRow: a block handles 32 columns; eight teams of 32 threads share its rows.
inline constexpr int kPreviousColumns = 32;
inline constexpr int kPreviousThreads = 256;

inline constexpr int kSelectThreads = 256;

// Parameters of both SelectCandidates kernels.
struct ScoredCandidates {
  SelectCandidates op;
  float* scores;  // [rows, k, k] scratch: score of each candidate of a row after each candidate of the previous row
};

// Shared memory of select_scores_kernel: k rows of each of the two tables.
constexpr size_t select_shared_bytes(int k, int rank) { return size_t(2) * k * rank * sizeof(float); }

}  // namespace lb::gpu
