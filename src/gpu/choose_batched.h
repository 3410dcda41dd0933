// Finds the batched form (several.h) of a kernel, which handles several sequences in one launch.
#pragma once

#include <optional>

#include "gpu/batched.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

// Scratch bytes of one sequence, rounded up so that the next sequence's scratch is aligned too.
inline size_t aligned_scratch(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Turns the launch for one sequence into a launch for n sequences of one shape; nullopt if the kernel has no batched
// form, or the target lacks it.
std::optional<Launch> batched_launch(const Launch& one, int n, const Target& target);

}  // namespace lb::gpu
