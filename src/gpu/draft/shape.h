// Sizes that the kernels of drafting and their host code must agree on.
#pragma once

#include <stddef.h>

#include "ops/select_candidates.h"

namespace lb::gpu {

// PreviousRow: a block has 32 columns, whose rows eight teams of 32 threads share.
inline constexpr int kPreviousColumns = 32;
inline constexpr int kPreviousThreads = 256;

inline constexpr int kSelectThreads = 256;

// Parameters of both kernels of SelectCandidates.
struct ScoredCandidates {
  SelectCandidates op;
  float* scores;  // [rows, k, k] scratch: of each candidate of a row after each candidate of the row before
};

// Shared memory of select_scores_kernel: k rows of each table.
constexpr size_t select_shared_bytes(int k, int rank) { return size_t(2) * k * rank * sizeof(float); }

}  // namespace lb::gpu
