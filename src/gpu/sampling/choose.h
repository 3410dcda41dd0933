// Grids and parameters of the sampler and of the end of a decode step. Nothing here depends on a request: greedy and
// random sampling use the same launches, so one recorded graph serves every request.
#pragma once

#include <cstddef>

#include "gpu/sampling/top_tokens.h"
#include "ops/next_token.h"
#include "ops/sample.h"
#include "ops/walk_tree.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

struct SampleLaunches {
  Launch launch;  // cooperative
  SampleOnGrid params;
};

// `scratch`: sample_scratch_bytes(vocab), 8-byte aligned, zero before the first use. n: max samplers per launch; the
// grid is limited so that the blocks of all are co-resident.
SampleLaunches choose(const Sample& op, void* scratch, const Target& target, int n = 1);
size_t sample_scratch_bytes(int vocab);

struct WalkLaunch {
  Launch launch;  // cooperative
  WalkOnGrid params;
};

// `scratch`: as for Sample
WalkLaunch choose(const WalkTree& op, void* scratch, const Target& target);

struct TopTokensLaunches {
  Launch launches[2];
  TopTokensInSlices params;  // of both launches
};

// `scratch`: top_tokens_scratch_bytes(op.rows), 8-byte aligned
TopTokensLaunches choose(const TopTokens& op, void* scratch, const Target& target);
constexpr size_t top_tokens_scratch_bytes(int rows) {
  return size_t(rows) * kMaxTopSlices * (kMaxTopTokens * sizeof(uint64_t) + sizeof(float));
}

Launch choose(const CountWindow& op, const Target& target);
Launch choose(const NextToken& op, const Target& target);

}  // namespace lb::gpu
