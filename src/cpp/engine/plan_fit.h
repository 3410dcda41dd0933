// Shared by the plans of engines and scorers: weight sizes, sequence memory by purpose, and the search for the largest
// context that fits.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/memory_plan.h"
#include "engine/options.h"

namespace lb {

std::string mib(size_t bytes);  // "24.0 MiB", for messages
// Checks the options that both kinds of plan settle.
void check_model_options(const ModelOptions& options);
// Resolves the defaults that depend on machine and device, except the context.
void resolve_model_options(ModelOptions& options, const DeviceSizes& sizes);

// Bytes of a model's weights, and of a draft model's.
struct WeightSizes {
  size_t target, draft;  // private copies
  size_t copied;         // part of these: FP8, NVFP4 and separate experts, when all else stays in the file's mapping
  size_t mapped;         // in the file's mapping
  bool is_copied_to_device;
  bool is_slice;       // of a model that is split by tensors
  ExpertPlan experts;  // their slots are part of the copies
  NetworkPart part;
  int n_layers;  // of the target

  WeightSizes(const Models& models, const DeviceSizes& sizes, size_t file_bytes, const NetworkPart& part = {});
  size_t total() const { return mapped + target + draft; }
  std::vector<PlanEntry> device_entries() const;  // the first entries of a plan
  std::vector<PlanEntry> host_entries() const;    // the last entries
};

// Memory of sequences by purpose: the shared KV cache, and per-sequence state.
struct StateSizes {
  struct Kv {
    size_t bytes = 0, token_bytes = 0;
  };
  Kv target, draft;
  size_t windows = 0, recurrent = 0, pending = 0, table = 0;
  int n_windows = 0, window_tokens = 0;  // layers with a window, and the tokens of their pages

  // n_target: the target's layers, which precede a draft model's. pages, window_pages: of the KV cache. range: the
  // layers of a shard.
  StateSizes(std::span<const LayerShape> shapes, const StateOptions& options, int n_target, int pages, int window_pages,
             LayerRange range = {});
  std::vector<PlanEntry> entries(const KvTypes& kv, int kv_tokens) const;
};

// Memory demand of a model as a function of the context: the input of fit_context().
struct ContextDemand {
  const Models& models;
  const DeviceSizes& sizes;
  WeightSizes weights;
  size_t fixed_bytes;  // independent of the context, excluding the weights
  // Bytes of a sequence, the KV cache and all buffers.
  std::function<size_t(int context, const KvTypes& kv)> needed_bytes;
  std::function<size_t(const KvTypes& kv)> token_bytes;  // bytes per token in the layers that keep all rows
  int max_tokens = 0;                                    // upper bound of a default context; 0: the largest that fits
};

// Device memory of a plan, and its longest context.
struct FittedContext {
  size_t available;     // free memory, without the driver's part
  size_t budget;        // part of it that is left for memory that depends on the context
  int largest_context;  // that fits; 0: none
};
// Settles options.context and caps options.prefill_chunk. Throws kMemory, whose message has the sizes and the largest
// context that would fit.
FittedContext fit_context(const ContextDemand& demand, ModelOptions& options);
// Whether memory suffices for the context of the options.
bool context_fits(const ContextDemand& demand, const ModelOptions& options);
// The plan of settled options, without entries.
MemoryPlan start_plan(const ContextDemand& demand, const FittedContext& fitted, const ModelOptions& options);

}  // namespace lb
