// Weights from a mapped file to a device, as planes (quant/planes.h). The matrices are cut into ranges of rows; workers
// take ranges apart into pinned memory of their own while the device copies what they have finished. That memory is
// bounded and goes when the load ends: nothing of the file is kept but in the page cache.
#pragma once

#include <memory>
#include <vector>

#include "dispatch/gpu_stream.h"
#include "engine/backend.h"

namespace lb {

struct LoadOptions {
  static constexpr int kMaxThreads = 16;

  int n_threads = 1;                         // of which at most kMaxThreads work
  size_t slot_bytes = size_t(2) << 20;       // of planes made at once; each worker has two slots
  size_t progress_bytes = size_t(32) << 20;  // between two reports
};

struct WeightCopy {
  std::byte* to;  // [plane_layout().bytes] of the device, zero: what is only alignment is not written
  Matrix from;    // in a mapped file
};

// Returns when everything is there. The caller's thread works too, and makes all reports, in bytes of the file; an
// exception of `progress` ends the load and is rethrown.
void load_weights(const gpu::Device& device, std::vector<WeightCopy> weights, const LoadOptions& options,
                  const LoadProgress& progress);

// All weights of a model, whose ops use them from now on; what it returns holds them.
std::unique_ptr<Memory> load_weights(Model& model, GpuStream& stream, const LoadOptions& options,
                                     const LoadProgress& progress);

}  // namespace lb
