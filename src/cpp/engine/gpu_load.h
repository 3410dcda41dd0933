// Copies weights from a mapped file to a device, as planes (quant/planes.h). Matrices are divided into ranges of rows.
// Double-buffered: each worker converts a range in pinned memory while the device copies the worker's previous range.
// The pinned memory is bounded and freed when the load ends; afterwards only the page cache holds the file in host
// memory.
#pragma once

#include <memory>
#include <vector>

#include "dispatch/gpu_stream.h"
#include "engine/backend.h"

namespace lb {

struct LoadOptions {
  static constexpr int kMaxThreads = 16;

  int n_threads = 1;                         // at most kMaxThreads are used
  size_t slot_bytes = size_t(2) << 20;       // planes of one range; each worker has two slots
  size_t progress_bytes = size_t(32) << 20;  // between two calls of `progress`
};

struct WeightCopy {
  std::byte* to;  // [plane_layout().bytes] zeroed device memory: padding is not written
  Matrix from;    // blocks in a mapped file
};

// Returns when all copies are complete. The caller's thread also converts and is the only one to call `progress`, in
// bytes of the file. An exception thrown by `progress` ends the load and is rethrown.
void load_weights(const gpu::Device& device, std::vector<WeightCopy> weights, const LoadOptions& options,
                  const LoadProgress& progress);

// Device memory of the ring for a network's experts in slots (StagedExperts); 0: all experts are in device memory.
size_t expert_ring_bytes(Network& network);

// Loads the weights of a part and points the network at them. The last part also frees the network's host copies.
// kept: a complete copy of the same store of an earlier load, read in place of the file; null: the file is read.
WeightStore load_weights(Network& network, const NetworkPart& part, GpuStream& stream, const LoadOptions& options,
                         const KeptWeights::Store* kept, const LoadProgress& progress);

}  // namespace lb
