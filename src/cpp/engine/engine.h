// Engine: one model's weights, with a shard on each of its devices, and the plan of all memory it will use. The weights
// are immutable once loaded.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "dispatch/device_link.h"
#include "dispatch/linked_streams.h"
#include "engine/device_tower.h"
#include "engine/image_store.h"
#include "engine/memory_plan.h"
#include "engine/options.h"
#include "engine/plan_split.h"
#include "engine/shard.h"
#include "format/model_file.h"
#include "models/model.h"
#include "models/vision_tower.h"
#include "speculation/experience.h"
#include "speculation/step_costs.h"
#include "speculation/suffix.h"
#include "state/sequence_state.h"
#include "state/state_copies.h"

namespace lb {

struct KeptWeights;
class RankGroup;

class Engine {
 public:
  static constexpr int kEarlierTokens = 1 << 16;   // capacity for other sequences' outputs
  static constexpr int kExpectedTokens = 1 << 14;  // capacity for a text that a request expects

  // Opens and checks the file, makes the plan, reserves memory and loads the weights. When the plan does not fit,
  // throws before reserving anything. backends: the CPU, or GPUs, of which the plan may use the first alone
  // (make_split_plan). draft_backend: another GPU, for the draft model; null: it is where the model is. vision_backend:
  // another device, for the vision tower; null: it is on the model's first. kept: used if it has the weights of this
  // engine, and ignored otherwise; null: none.
  static std::shared_ptr<Engine> open(const std::string& path, EngineOptions options,
                                      std::vector<std::unique_ptr<Backend>> backends,
                                      std::unique_ptr<Backend> draft_backend = nullptr,
                                      std::unique_ptr<Backend> vision_backend = nullptr,
                                      const KeptWeights* kept = nullptr, const LoadProgress& progress = {});
  ~Engine();
  // The plan that open() would make for devices with these sizes. Reads the files' metadata and small weights, and
  // reserves nothing. Resolves default options.
  static MemoryPlan plan(const std::string& path, EngineOptions& options, std::span<const DeviceSizes* const> devices,
                         const DeviceSizes* draft_device = nullptr, const DeviceSizes* vision_device = nullptr);

  const Model& model() const { return *models_.target; }
  const DraftModel* draft_model() const { return models_.draft.get(); }  // null: none. To run it: draft_on()
  std::vector<LayerShape> layer_shapes() const { return models_.layer_shapes(); }
  const ModelFile& file() const { return file_; }
  const EngineOptions& options() const { return options_; }  // with every default resolved
  const MemoryPlan& plan() const { return plan_; }
  StateOptions state_options() const;
  // The KV cache, which all sessions share; of the layers that keep all rows: pages().
  const KvPools& pools() const { return pools_; }
  const std::shared_ptr<PagePool>& pages() const { return pools_.all; }
  // Throws unless all ids are in the vocabulary, or whole images (the last may be cut), and fit the context.
  void check_ids(std::span<const int32_t> ids) const;
  // Throws unless all ids are in the vocabulary and fit the context.
  void check_text(std::span<const int32_t> ids) const;

  // --- images
  static constexpr size_t kImageBytes = size_t{512} << 20;   // host memory for rows of images, at most
  const VisionTower* tower() const { return tower_.get(); }  // null: the model was opened without one
  ImageStore& images() const { return images_; }
  // The rows of an image, encoded unless the store has them. key: names its pixels; rgb: [height, width, 3].
  std::shared_ptr<const EncodedImage> encode(const std::string& key, std::span<const uint8_t> rgb, int height,
                                             int width, const std::function<bool()>& interrupted) const;
  // Host memory for copies of the sessions' recurrent states.
  StateCopies& state_copies() const { return *state_copies_; }
  // Outputs of all sessions, for the suffix drafter; null without it.
  const std::shared_ptr<EarlierOutputs>& outputs() const { return outputs_; }
  // Costs of a step on this device. None until the first session measures them or set_step_costs() sets them.
  std::optional<StepCosts> step_costs() const;
  void set_step_costs(const StepCosts& costs) const;
  // The way to decode of sessions that are opened from now on, whose step costs are not known.
  void set_decode_path(DecodePath path);
  // Learned acceptance of drafts, which all sessions share.
  Experiences& experiences() const { return experiences_; }
  // DraftPlanner::model_may_pay() at these costs. Also true without a draft model, without costs or with a fixed
  // budget.
  bool draft_may_pay() const;
  // How often the experts of each layer were chosen, the draft model's last; no layers if all experts are in device
  // memory. set_expert_uses() copies the experts used most to the slots.
  using ExpertUses = std::vector<std::vector<uint64_t>>;
  ExpertUses expert_uses() const;
  void set_expert_uses(const ExpertUses& uses) const;
  // An empty copy of all weights, for keep_slice(). Throws kUnsupported on the CPU and for experts in host memory.
  std::shared_ptr<KeptWeights> keep_weights() const;
  // Copies the next slice to new pinned memory. Returns false once the copy is complete, which a later open() in this
  // process can use. Takes the devices' turn for the copy alone, not while the system pins memory. Throws kMemory if
  // the rest takes more than half of the available memory, or the system pins no more; the copy then stays as it is.
  bool keep_slice(KeptWeights& kept, size_t slice_bytes) const;
  // Whether the copy, complete or not, is of these files, devices and split.
  bool has_weights_of(const KeptWeights& kept) const;
  // Hash of the files' metadata, all weights and the settings that a saved session depends on. The first call reads the
  // files completely.
  const std::string& fingerprint() const;
  // Hash of the files' metadata and of their tensors' names, types and shapes, on which the time of a step depends.
  std::string layout() const;
  // The same of a model file alone.
  static std::string layout_of(const std::string& path);
  // Whether a row of a sequence has the same bits whichever appends compute the sequence: on the CPU, unless the ends
  // of appends decide where attention is sparse.
  bool rows_are_invariant() const;
  // Whether a GPU computes decoded rows so that a row has the same bits in every append: batch_invariant.
  bool decodes_by_row() const { return options_.batch_invariant && !backend().sizes().rows_are_invariant(); }
  // Most rows of a pass: with batch_invariant, fewer for a mixture, whose larger appends sum in another order.
  int max_pass_rows() const;
  // In the order of their layers, or of their ranks. A draft model on a device of its own is on the first shard.
  std::span<const std::unique_ptr<Shard>> shards() const { return shards_; }
  int n_shards() const { return static_cast<int>(shards_.size()); }
  // Whether the first shard has the draft model alone, and the second the whole target.
  bool has_draft_shard() const { return drafter_.has_value(); }
  // The shards that have a draft model, if the engine has one: every rank, the last of shards with layers, or the draft
  // model's own.
  auto drafting_shards() const {
    return has_draft_shard() ? std::views::iota(0, 1) : std::views::iota(first_head_shard(), n_shards());
  }
  // Whether the devices that verify a draft model's tree can grow it, without the host.
  bool grows_trees() const { return !has_draft_shard() && !is_split_by_layers(); }
  int first_target_shard() const { return has_draft_shard() ? 1 : 0; }
  // Whether each shard has some of the layers.
  bool is_split_by_layers() const { return shards_.size() > 1 && rank_models_.empty() && !has_draft_shard(); }
  // Devices that compute one after the other, each its layers. They have work at the same time if there are as many
  // chunks of a prompt, or passes, in flight.
  int n_stages() const { return is_split_by_layers() ? n_shards() : 1; }
  // Whether each shard, a rank, has a part of every layer. All ranks run the same ops.
  bool is_split_by_tensors() const { return !rank_models_.empty(); }
  // The model whose weights are on this shard: a rank's slice, or the model.
  const Model& model_on(int shard) const { return *models_on(shard).target; }
  // The draft model of this shard, whose weights are there if the shard drafts. The engine has one.
  const DraftModel& draft_on(int shard) const { return *models_on(shard).draft; }
  // The first shard that computes logits; so do all later ones.
  int first_head_shard() const { return is_split_by_layers() ? n_shards() - 1 : first_target_shard(); }
  // How the ranks exchange values; null: the model is not split by tensors.
  RankGroup* ranks() const { return ranks_.get(); }
  // The streams of all devices; null: one device has the whole target.
  StreamGroup* stream_group() const;
  // Failures of stream_group() so far. Whatever a session computed before the last one may be wrong.
  int n_device_failures() const;
  // The last shard, which computes the logits; of ranks, the one whose logits the host reads.
  Shard& shard() const { return *shards_.back(); }
  const Backend& backend() const { return shard().backend(); }
  PassBuffers& buffers() const { return shard().steps(); }
  // PassBuffers of long prompt chunks; buffers() if no append is longer than a step's.
  PassBuffers& prompt_buffers() const { return shard().prompts(); }
  // The pass buffers of another shard for the same append.
  PassBuffers& buffers_of(int shard, const PassBuffers& buffers) const {
    return &buffers == &this->buffers() ? shards_[shard]->steps() : shards_[shard]->prompts();
  }
  std::vector<SequenceState::Part> state_parts() const;
  // "peer", or "host: ..." with the reason: how rows get from each shard to the next, or to the draft model's; or, of
  // ranks, how all exchange values.
  std::vector<std::string> links() const;
  // Microseconds of a row over each of links(), measured when the model was loaded: of the residual stream (or of
  // tapped rows, to a draft model's device) until the host sees that it arrived; of ranks, an all-reduce of a row in a
  // graph.
  std::span<const double> link_us() const { return link_us_; }
  // PassBuffers for an append of `rows` rows. Only the prompts' buffers have sparse-attention buffers.
  PassBuffers& buffers_for(int rows, bool is_sparse = false) const {
    return is_sparse || rows > buffers().max_rows ? prompt_buffers() : buffers();
  }
  // Runs the target's forward pass over an append, then computes the draft model's rows of that append, on every shard
  // that drafts. A draft model on a device of its own follows in forward_drafts(), which no recording has.
  // appends: the append as each shard sees it; the inputs are in that shard's pass buffers, or in a session's memory
  // there. While one device computes a chunk of a prompt, the previous device may compute the next chunk.
  void forward(const PassBuffers& buffers, std::span<const Append> appends, const Taps* taps = nullptr) const;
  // The target's part of forward(), if the model is not split by tensors.
  void forward_layers(const PassBuffers& buffers, std::span<const Append> appends, const Taps* taps = nullptr) const;
  // The part of forward_layers() on one shard of a model that is split by layers. Begin it after the previous shard's.
  // Tapped rows of earlier layers arrive with the residual stream.
  std::unique_ptr<Model::PartPass> begin_part(int shard, const PassBuffers& buffers, const Append& append,
                                              const Taps* taps = nullptr) const;
  // forward() on one rank, as part of a recording.
  void forward_rank(int rank, const PassBuffers& buffers, const Append& append) const;
  // Computes the draft model's rows of an append whose last layers have been sent, on a shard that drafts; no effect
  // without a draft model.
  void send_draft_rows(int shard, const PassBuffers& buffers, const Append& append) const;
  // Call after forward() and with its append on the first shard: computes the draft model's rows if it is alone there.
  void forward_drafts(const PassBuffers& buffers, const Append& append) const;
  // Copies tapped rows from the target's shard to the draft model's own.
  void hand_over_taps(float* to, const float* from, int rows) const;
  // Logits [rows, vocab] of rows [row, row + rows) of the last forward pass, in the memory of a shard that computes
  // logits. logits: null: its pass buffers'.
  void head_on(int shard, const PassBuffers& buffers, int row, int rows, float* logits) const;
  // The streams of all ranks.
  std::vector<Stream*> rank_streams() const;
  // The streams of all shards of a model that is split by layers.
  const LinkedStreams& linked_streams() const { return *linked_streams_; }
  // Hands the input of a step from the last shard of a model that is split by layers, which chose it, to the first.
  void hand_over_tokens(int32_t* to, const int32_t* from, int rows) const {
    token_link_->send(to, from, rows * sizeof(int32_t));
  }
  // Throws kIo if a file whose weights are used in place became shorter.
  void check_intact() const;
  // Memory promised to sessions, one per shard: each session keeps its share while it exists.
  std::span<const std::unique_ptr<Promise>> promises() const { return promises_; }

 private:
  using Backends = std::vector<std::shared_ptr<const Backend>>;
  Engine(ModelFile file, std::optional<ModelFile> draft_file, Models models, const Backends& backends,
         EngineOptions options, SplitPlan plan, const KeptWeights* kept, const LoadProgress& progress);
  void load(const KeptWeights* kept, const LoadProgress& progress);
  std::shared_ptr<PagePool> make_pool(KvRows rows, int n_pages) const;
  void link_shards();
  uint64_t longest_work_ns() const;
  // Where the target's pass leaves the rows that the draft model reads; nowhere without one.
  LayerOutputs draft_taps(int shard, const PassBuffers& buffers) const;
  const Models& models_on(int shard) const {
    if (has_draft_shard() && shard == 0) return *drafter_;
    return rank_models_.empty() ? models_ : rank_models_[shard];
  }

  ModelFile file_;
  std::optional<ModelFile> draft_file_;
  Models models_;
  std::vector<Models> rank_models_;  // of each shard, if the model is split by tensors
  std::optional<Models> drafter_;    // of the first shard, if it has the draft model alone
  EngineOptions options_;
  MemoryPlan plan_;
  std::string weights_key_;
  mutable std::once_flag fingerprint_once_;
  mutable std::string fingerprint_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::unique_ptr<EngineTurn> turn_;
  mutable std::vector<DeviceLink> links_;  // from each shard to the next, if split by layers
  // Links of tapped rows: from each shard to the next, or to the draft model's own; none from a shard without tapped
  // rows.
  mutable std::vector<std::optional<DeviceLink>> tap_links_;
  std::vector<double> link_us_;
  mutable std::optional<DeviceLink> token_link_;         // from the last shard to the first, if split by layers
  mutable std::optional<LinkedStreams> linked_streams_;  // of all shards, if split by layers
  std::unique_ptr<RankGroup> ranks_;                     // of the shards; null: not split by tensors
  std::vector<std::unique_ptr<Memory>> gather_memory_;   // each rank's share of the logits
  std::vector<std::unique_ptr<Promise>> promises_;
  KvPools pools_;
  std::shared_ptr<EarlierOutputs> outputs_;
  std::shared_ptr<StateCopies> state_copies_ = std::make_shared<StateCopies>();
  std::unique_ptr<VisionTower> tower_;
  std::unique_ptr<DeviceTower> device_tower_;  // null on the CPU
  mutable std::mutex tower_mutex_;
  mutable ImageStore images_{kImageBytes};
  mutable std::mutex costs_mutex_;
  mutable std::optional<StepCosts> step_costs_;
  mutable Experiences experiences_;
};

}  // namespace lb
