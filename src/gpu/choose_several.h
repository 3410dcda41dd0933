// Which kernels have a form for several sequences (several.h).
#pragma once

#include <optional>

#include "gpu/several.h"
#include "pack/launch.h"
#include "pack/target.h"

namespace lb::gpu {

// Scratch of one of several sequences, so that the next one's is aligned too.
inline size_t aligned_scratch(size_t bytes) { return (bytes + 255) / 256 * 256; }

// A launch for one sequence as one for n of the same shape; nothing where the target has no kernel for it.
std::optional<Launch> for_several(const Launch& one, int n, const Target& target);

}  // namespace lb::gpu
