// PromptScorer: scores each token of a prompt by how much the prompt's last rows attend to it in a small model. It runs
// layer by layer over the whole prompt, so only one layer's K and V are in memory. A scored layer runs twice: first
// with unrotated keys for the scores, then normally.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/callbacks.h"
#include "engine/memory_plan.h"
#include "engine/options.h"
#include "engine/shard.h"
#include "format/model_file.h"
#include "state/sequence_state.h"

namespace lb {

class PromptScorer {
 public:
  // Opens and checks the file, makes the plan, reserves memory and loads the weights. When the plan does not fit,
  // throws before reserving anything. backend: may have lent memory; null: the CPU.
  static std::shared_ptr<PromptScorer> open(const std::string& path, ScorerOptions options,
                                            std::unique_ptr<Backend> backend = nullptr,
                                            const LoadProgress& progress = {});
  // The plan that open() would make for a device with these sizes. Reads the file's metadata and small weights, and
  // reserves nothing. Resolves default options.
  static MemoryPlan plan(const std::string& path, ScorerOptions& options, const DeviceSizes& sizes);

  const ScorerOptions& options() const { return options_; }  // with every default resolved
  const MemoryPlan& memory_plan() const { return plan_; }
  // `layers`, or all attention layers if it is empty. Throws kInvalid if they do not ascend or one has no attention.
  std::vector<int> scored_layers(std::span<const int> layers) const;
  // score[j] = mean over the last options().rows rows of the largest softmax weight of token j, among all heads of
  // scored_layers(layers); attention is causal. Layers after the last scored one are not computed. Takes the turn on
  // the device and yields it between chunks, unless its memory is lent. Throws kCancelled when interrupted() returns
  // true.
  std::vector<float> score(std::span<const int32_t> ids, std::span<const int> layers = {},
                           const Interrupted& interrupted = {}, const Progress& progress = {});

 private:
  struct Buffers {
    int32_t* tokens;                     // [rows of a chunk]
    Workspace workspace;                 // of a chunk
    float* x;                            // [context, hidden] residual stream of the whole prompt
    int32_t* positions;                  // [3, rows] of each chunk
    float* scores;                       // [rows, tokens of the prompt]
    float* parts;                        // see KeyScores
    std::optional<SparseBlocks> sparse;  // none: dense attention
  };
  struct Sizes;
  PromptScorer(ModelFile file, Models models, std::shared_ptr<const Backend> backend, ScorerOptions options,
               MemoryPlan plan);
  static MemoryPlan make_plan(const Models& models, const DeviceSizes& sizes, size_t file_bytes,
                              ScorerOptions& options);
  static StreamNeeds stream_needs(const Models& models, const ScorerOptions& options);
  static std::vector<LayerShape> state_shapes(const Model& model);  // one of each kind, in model order
  static void carve_chunk(Carver& carver, const Model& model, const ScorerOptions& options, Buffers& buffers);
  static void carve_prompt(Carver& carver, const Model& model, const ScorerOptions& options, Buffers& buffers);

  const Model& model() const { return *models_.target; }
  void load(const LoadProgress& progress);
  // Runs `work`, during a loan if the backend uses lent memory. The caller has the turn on the device.
  void with_memory(const std::function<void()>& work) const;
  void embed(std::span<const int32_t> ids, const Interrupted& interrupted);
  void score_layer(int layer, int n_tokens, const Interrupted& interrupted);
  void run_layer(int layer, int n_tokens, const Interrupted& interrupted);
  int chunk_rows(int first) const;
  template <class Visit>
  void for_chunks(int n_tokens, const Interrupted& interrupted, Visit&& visit);
  template <class Send>
  void run_chunks(int layer, int n_tokens, const Interrupted& interrupted, Send&& send);
  int state_layer(int layer) const;
  std::vector<float> computed_scores(std::span<const int32_t> ids, std::span<const int> layers,
                                     const Interrupted& interrupted, const Progress& progress);

  ModelFile file_;  // the model points into it
  Models models_;
  ScorerOptions options_;
  MemoryPlan plan_;
  std::shared_ptr<const Backend> backend_;
  std::optional<Shard> shard_;  // this and the following members: set by load()
  std::mutex mutex_;            // serialises score()
  std::optional<SequenceState> state_;
  std::unique_ptr<Memory> memory_;
  Buffers buffers_;
};

}  // namespace lb
