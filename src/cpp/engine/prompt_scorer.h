// PromptScorer: how much the last rows of a prompt look at each of its tokens, by a small model's attention. Computes
// layer by layer over the whole prompt, so that the keys and values of one layer are in memory, not those of all. A
// scored layer runs twice: for keys without rotation, then as the model has it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "state/sequence_state.h"

namespace lb {

class PromptScorer {
 public:
  // engine: opened with score_rows > 0.
  explicit PromptScorer(std::shared_ptr<const Engine> engine);

  // One layer of each kind, in the order of the model.
  static std::vector<LayerShape> state_shapes(const Model& model);
  // Memory besides the state; 0 where the engine does not score.
  static size_t planned_bytes(const Model& model, const EngineOptions& options);

  // `layers`, or all layers with attention where it is empty. Throws kInvalid where they do not ascend or one has no
  // attention.
  std::vector<int> scored_layers(std::span<const int> layers) const;
  // score[j] = mean over the last score_rows rows of the largest softmax weight of token j, among all heads of
  // scored_layers(layers); a row sees the tokens up to itself. Layers behind the last of them are not computed. Throws
  // kCancelled when interrupted() returns true.
  std::vector<float> score(std::span<const int32_t> ids, std::span<const int> layers = {},
                           const Interrupted& interrupted = {}, const Progress& progress = {});

 private:
  struct Buffers {
    float* x;                            // [context, hidden] residual stream of the whole prompt
    int32_t* positions;                  // of each chunk [3, rows]
    float* scores;                       // [score_rows, tokens of the prompt]
    float* parts;                        // see KeyScores
    std::optional<SparseBlocks> sparse;  // none: dense attention
  };
  static Buffers carve(Carver& carver, const Model& model, const EngineOptions& options);
  void embed(std::span<const int32_t> ids, const Interrupted& interrupted);
  void score_layer(int layer, int n_tokens, const Interrupted& interrupted);
  void run_layer(int layer, int n_tokens, const Interrupted& interrupted);
  template <class Visit>
  void for_chunks(int n_tokens, const Interrupted& interrupted, Visit&& visit);
  template <class Send>
  void run_chunks(int layer, int n_tokens, const Interrupted& interrupted, Send&& send);
  int state_layer(int layer) const;
  void with_memory(const std::function<void()>& work) const;
  std::vector<float> computed_scores(std::span<const int32_t> ids, std::span<const int> layers,
                                     const Interrupted& interrupted, const Progress& progress);

  std::shared_ptr<const Engine> engine_;
  std::optional<SequenceState> state_;
  std::unique_ptr<Memory> memory_;
  Buffers buffers_;
};

}  // namespace lb
