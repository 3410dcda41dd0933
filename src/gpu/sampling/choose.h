// Geometry of the sampler and of what ends a decode step. Nothing here depends on a request: greedy or not, the
// launches are the same, and a graph of them serves every request.
#pragma once

#include <cstddef>

#include "ops/next_token.h"
#include "ops/sample.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

struct SampleLaunches {
  Launch launch;  // cooperative
  SampleOnGrid params;
};

// `scratch`: sample_scratch_bytes(vocab) at an address of a multiple of 8, zero before the first use.
SampleLaunches choose(const Sample& op, void* scratch, const Target& target);
size_t sample_scratch_bytes(int vocab);

Launch choose(const CountWindow& op, const Target& target);
Launch choose(const NextToken& op, const Target& target);

}  // namespace lb::gpu
