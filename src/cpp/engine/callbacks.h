// Callbacks of long-running calls: progress, cancellation, work between layers.
#pragma once

#include <cstddef>
#include <functional>

namespace lb {

// Called while weights are copied to a device, with bytes done and bytes in total.
using LoadProgress = std::function<void(size_t done, size_t total)>;
// Polled between layers and between chunks. Returning true stops the work with kCancelled; the caller's object stays
// usable.
using Interrupted = std::function<bool()>;
// Called between the layers of a prompt's chunk.
using BetweenLayers = std::function<void()>;
// Called as a prompt is computed, with tokens done and tokens to do.
using Progress = std::function<void(int done, int total)>;

}  // namespace lb
