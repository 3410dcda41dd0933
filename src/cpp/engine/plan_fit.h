// What the plans of engines and of scorers share: the weights, the memory of sequences by what it is for, and which
// context fits.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/memory_plan.h"
#include "engine/options.h"

namespace lb {

// The options that a plan settles, whoever it is for.
void check_model_options(const ModelOptions& options);
// Replaces the defaults that depend on machine and device, but for the context.
void resolve_model_options(ModelOptions& options, const DeviceSizes& sizes);

// Bytes of a model's weights, and of a draft model's.
struct WeightSizes {
  size_t target, draft;  // private copies
  size_t expanded;       // of them, BF16 made of types that no op reads, where the rest stays in the file's mapping
  size_t mapped;         // in the file's mapping
  bool is_copied_to_device;

  WeightSizes(const Models& models, const DeviceSizes& sizes, size_t file_bytes);
  size_t total() const { return mapped + target + draft; }
  std::vector<PlanEntry> device_entries() const;  // the first ones of a plan
  std::vector<PlanEntry> host_entries() const;    // the last ones
};

// The memory of sequences by what it is for: the KV cache, and what each sequence has of its own.
struct StateSizes {
  struct Kv {
    size_t bytes = 0, token_bytes = 0;
  };
  Kv target, draft;
  size_t rings = 0, recurrent = 0, pending = 0, table = 0;
  int n_rings = 0, ring_rows = 0;  // layers that keep a ring, and the rows of the longest

  // n_target: layers before those of a draft model. pages: of the KV cache.
  StateSizes(std::span<const LayerShape> shapes, const StateOptions& options, int n_target, int pages);
  std::vector<PlanEntry> entries(const KvTypes& kv, int kv_tokens) const;
};

// A model that is to be opened, as far as the search for a context looks at it.
struct ContextDemand {
  const Models& models;
  const DeviceSizes& sizes;
  const WeightSizes& weights;
  size_t fixed_bytes;  // besides the weights, at any context
  // Of a sequence, the KV cache and all buffers.
  std::function<size_t(int context, const KvTypes& kv)> needed_bytes;
  std::function<size_t(const KvTypes& kv)> token_bytes;  // of the layers that keep all rows
  int max_tokens = 0;                                    // of a context that is left open; 0: the most that fits
};

// A plan without entries, and the bytes that it leaves for what depends on the context.
struct FittedContext {
  MemoryPlan plan;
  size_t budget;
};
// Settles options.context and caps options.prefill_chunk. Throws kMemory with the numbers and the largest context that
// would fit.
FittedContext fit_context(const ContextDemand& demand, ModelOptions& options);

}  // namespace lb
