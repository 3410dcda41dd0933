// Backend: the CPU, or a GPU with a pack of kernels, on which one shard of an engine runs. It loads weights and makes
// the stream that runs the ops. DeviceSizes reports free memory and computes a model's memory needs; it can also plan
// for a card that is not installed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dispatch/kernel_timer.h"
#include "dispatch/lent_memory.h"
#include "engine/callbacks.h"
#include "engine/device.h"
#include "engine/options.h"
#include "engine/token_loop.h"
#include "models/draft_model.h"
#include "models/model.h"
#include "weights/kept_weights.h"
#include "weights/weight_store.h"

namespace lb {

class Engine;

// A model and its draft model, whose ops share a stream and its scratch.
using Networks = std::vector<const Network*>;

struct Models {
  std::unique_ptr<Model> target;
  std::unique_ptr<DraftModel> draft;  // null: none

  Networks networks() const { return draft ? Networks{target.get(), draft.get()} : Networks{target.get()}; }
  // Whether a part's device hands tapped rows to the next device, or to the draft model's.
  bool hands_over_taps(const NetworkPart& part) const {
    return draft && !part.has_draft && draft->taps_before(part.layers.end);
  }
  // Layers of a sequence's state: the target's, then the draft model's.
  std::vector<LayerShape> layer_shapes() const;
};

// Upper bounds on the ops of a stream; they size its scratch.
struct StreamNeeds {
  Networks networks;
  int rows = 0;     // of the longest append
  int context = 0;  // tokens of the longest sequence
  int n_threads = 1;
  Isa isa = Isa::kPortable;
  Activations activations = Activations::kInt8;
  bool one_order = false;      // products of few rows, on a GPU (GpuStream)
  bool is_sparse = false;      // block-sparse attention of prompts
  int score_rows = 0;          // of KeyScores; 0: none
  bool awaits_queues = false;  // the stream and other queues, of any device, wait for each other
};

// Bytes of a stream's scratch as a function of the rows of the longest append and the tokens of the longest sequence.
// The streams differ in nothing else, so what depends on neither is computed once.
using ScratchBytes = std::function<size_t(int rows, int context)>;

// A request for block-sparse attention, and the option that made it.
struct SparseWish {
  float alpha;  // 0: none
  const char* option;
};

// Throws kUnsupported if block-sparse attention is wanted and the model's layers differ in their attention.
void check_plain(const SparseWish& wish, const Model& model);

class DeviceSizes {
 public:
  virtual ~DeviceSizes() = default;

  virtual std::string name() const = 0;         // "cpu", "cuda:0", "GeForce RTX 3090"
  virtual std::string vendor() const = 0;       // "cpu", "nvidia", "amd", "sim"
  virtual size_t free_bytes() const = 0;        // now
  virtual size_t reserved_bytes() const = 0;    // part of free_bytes() that is left to the driver
  virtual std::string memory_name() const = 0;  // for messages: "memory", "memory of cuda:0"
  virtual int prefill_chunk() const = 0;        // default for EngineOptions
  // Throws kUnsupported if the device has no block-sparse attention kernels for this model.
  virtual void check(const SparseWish& wish, const Model& model, const KvTypes& kv) const = 0;
  // Throws kUnsupported if the device cannot verify trees of this model row by row (batch_invariant).
  virtual void check_trees_by_row(const Model& model) const = 0;
  // Throws kUnsupported if the device has no products of 4-bit activations, or no network has NVFP4 weights.
  virtual void check_fp4(const Networks& networks) const = 0;
  virtual bool maps_weights() const = 0;        // matrices stay in the file's mapping
  virtual bool rows_are_invariant() const = 0;  // a row has the same bits in every dense append
  virtual bool has_expert_slots() const = 0;    // copies experts from host memory when they are chosen
  // Private copies that load() makes of a part's weights.
  virtual size_t weight_bytes(Network& network, const NetworkPart& part) const = 0;
  // The function is valid as long as the device and the networks. Their shapes must stay; expert slots may change.
  virtual ScratchBytes scratch_of(const StreamNeeds& needs) const = 0;
  size_t scratch_bytes(const StreamNeeds& needs) const { return scratch_of(needs)(needs.rows, needs.context); }
  // Description of the scratch in the plan's table.
  virtual std::string scratch_detail(const StreamNeeds& needs) const = 0;
  virtual size_t loop_bytes(const Model& model, const EngineOptions& options) const = 0;  // of the token loop
  // Bytes of the decode-step tables; independent of the context length, which may not be settled yet.
  virtual size_t step_bytes(const Models& models, const EngineOptions& options) const = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const DeviceSizes& sizes() const = 0;
  virtual Device& device() const = 0;
  // Memory from which the backend's streams reserve; null: the device's free memory.
  virtual LentMemory* lent() const = 0;

  virtual std::unique_ptr<Stream> make_stream(const StreamNeeds& needs) const = 0;
  // The token loop, with the sampler on the device; null and 0 bytes if the host samples. rings: [shards] receive the
  // tapped rows of its steps; empty without a draft model.
  virtual std::unique_ptr<TokenLoop> make_loop(const Engine& engine, SequenceState& state,
                                               std::span<const StepRing> rings) const = 0;
  // Runs `work`, which sends ops to a stream of this backend, and returns each kernel's time. Throws kUnsupported on
  // the CPU, which launches no kernels.
  virtual std::vector<gpu::KernelTime> time_kernels(Stream& stream, const std::function<void()>& work) const = 0;
  // Copies the weights of a part to the device and points the network at the copies, which the result owns. The last
  // part comes last. kept: the store in complete KeptWeights; null: none. The CPU copies nothing.
  virtual WeightStore load(Network& network, const NetworkPart& part, int n_threads, Stream& stream,
                           const KeptWeights::Store* kept, const LoadProgress& progress) const = 0;
};

}  // namespace lb
