// Engine: one model's weights, with a shard on each of its devices, and the plan of all memory it will use. The weights
// are immutable once loaded.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/memory_plan.h"
#include "engine/options.h"
#include "engine/shard.h"
#include "format/model_file.h"
#include "models/model.h"
#include "speculation/experience.h"
#include "speculation/step_costs.h"
#include "speculation/suffix.h"
#include "state/sequence_state.h"

namespace lb {

class Engine {
 public:
  static constexpr int kEarlierTokens = 1 << 16;   // capacity for other sequences' outputs
  static constexpr int kExpectedTokens = 1 << 14;  // capacity for a text that a request expects

  // Opens and checks the file, makes the plan, reserves memory and loads the weights. When the plan does not fit,
  // throws before reserving anything.
  static std::shared_ptr<Engine> open(const std::string& path, EngineOptions options,
                                      std::unique_ptr<Backend> backend = nullptr,  // null: the CPU
                                      const LoadProgress& progress = {});
  // The plan that open() would make for a device with these sizes. Reads the files' metadata and small weights, and
  // reserves nothing. Resolves default options.
  static MemoryPlan plan(const std::string& path, EngineOptions& options, const DeviceSizes& sizes);

  const Model& model() const { return *models_.target; }
  const DraftModel* draft_model() const { return models_.draft.get(); }  // null: none
  std::vector<LayerShape> layer_shapes() const { return models_.layer_shapes(); }
  const ModelFile& file() const { return file_; }
  const EngineOptions& options() const { return options_; }  // with every default resolved
  const MemoryPlan& plan() const { return plan_; }
  StateOptions state_options() const;
  // The KV cache, which all sessions share.
  const std::shared_ptr<PagePool>& pages() const { return pages_; }
  // Throws unless all ids are in the vocabulary and fit the context.
  void check_ids(std::span<const int32_t> ids) const;
  // Outputs of all sessions, for the suffix drafter; null without it.
  const std::shared_ptr<EarlierOutputs>& outputs() const { return outputs_; }
  // Costs of a step on this device. None until the first session measures them or set_step_costs() sets them.
  std::optional<StepCosts> step_costs() const;
  void set_step_costs(const StepCosts& costs) const;
  // What the drafts of all sessions showed.
  Experiences& experiences() const { return experiences_; }
  // DraftPlanner::model_may_pay() at these costs. Also true without a draft model, without costs or with a fixed
  // budget.
  bool draft_may_pay() const;
  // Hash of the files' metadata, all weights and the settings that a saved session depends on. The first call reads the
  // files completely.
  const std::string& fingerprint() const;
  // Hash of the files' metadata and of their tensors' names, types and shapes, on which the time of a step depends.
  std::string layout() const;
  // Whether a row of a sequence has the same bits whichever appends compute the sequence: on the CPU, unless the ends
  // of appends decide where attention is sparse.
  bool rows_are_invariant() const;
  // One shard so far.
  std::span<const std::unique_ptr<Shard>> shards() const { return shards_; }
  Shard& shard() const { return *shards_.front(); }
  const Backend& backend() const { return shard().backend(); }
  PassBuffers& buffers() const { return shard().steps(); }
  // PassBuffers of long prompt chunks; buffers() if no append is longer than a step's.
  PassBuffers& prompt_buffers() const { return shard().prompts(); }
  // PassBuffers for an append of `rows` rows. Only the prompts' buffers have sparse-attention buffers.
  PassBuffers& buffers_for(int rows, bool is_sparse = false) const {
    return is_sparse || rows > buffers().max_rows ? prompt_buffers() : buffers();
  }
  // Runs the target's forward pass over an append, then computes the draft model's rows of that append. The inputs are
  // in the pass buffers' or a session's memory.
  void forward(const PassBuffers& buffers, Append append, const Taps* taps = nullptr) const;
  // Throws kIo if a file whose weights are used in place became shorter.
  void check_intact() const;
  // Memory promised to sessions: each session keeps its share while it exists.
  Promise& promise() const { return *promise_; }

 private:
  Engine(ModelFile file, std::optional<ModelFile> draft_file, Models models, std::shared_ptr<const Backend> backend,
         EngineOptions options, MemoryPlan plan, const LoadProgress& progress);

  ModelFile file_;
  std::optional<ModelFile> draft_file_;
  Models models_;
  EngineOptions options_;
  MemoryPlan plan_;
  mutable std::once_flag fingerprint_once_;
  mutable std::string fingerprint_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<Promise> promise_;
  std::shared_ptr<PagePool> pages_;
  std::shared_ptr<EarlierOutputs> outputs_;
  mutable std::mutex costs_mutex_;
  mutable std::optional<StepCosts> step_costs_;
  mutable Experiences experiences_;
};

}  // namespace lb
