// Model: a decoder-only language model of embedding, pre-norm layers (a mixer and a feed-forward network), final norm
// and head. A family (models/family_*.cpp) reads its configuration and binds its manifest. All families share this
// forward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "models/blocks.h"
#include "models/network.h"

namespace lb {

// Positions of an image's rows in the text.
enum class ImagePositions : uint8_t {
  kNone,      // the model takes no images
  kGrid,      // M-RoPE: a temporal one, the row and the column
  kSequence,  // one after another, as rows of text
};

struct ModelInfo {
  std::string architecture;  // GGUF's name: "qwen35", "qwen3moe"
  int n_layers = 0, hidden = 0, ffn = 0, vocab = 0;
  int n_heads = 0, n_kv_heads = 0, head_dim = 0, n_rot = 0;  // heads: of all ranks, in a slice its own
  int max_context = 0;                                       // tokens
  float eps = 0;
  float embedding_scale = 1;
  float logit_cap = 0;  // of SoftCap; 0: none
  bool tied = false;    // the head is the embedding table
  ExpertSizes experts{};
  ImagePositions images = ImagePositions::kNone;
  // Rows of an image see the whole image in layers with a window, so an append has all of them.
  bool images_are_whole = false;
};

inline ExpertProducts expert_products_of(const ModelInfo& info) {
  if (info.experts.n == 0) return {};
  return {info.experts.used, info.hidden, info.experts.ffn, info.experts.n};
}

// Rotation frequency and position axis of each pair, after the checkpoint's scaling rule.
struct RopeAngles {
  std::vector<float> inv_freq;  // [n_rot / 2]
  std::vector<uint8_t> axis;    // [n_rot / 2] 0 temporal, 1 height, 2 width
  float scale = 1;              // of cos and sin
  // LongRoPE has other frequencies for contexts of more tokens than long_from; empty: the same.
  std::vector<float> long_inv_freq;  // [n_rot / 2]
  int long_from = 0;
  std::vector<float> row_scales;  // further ones, of rows at positions from i * period on; empty: none
  int period = 0;
};
struct RopeTables {         // RopeAngles in the memory the ops read
  const float* inv_freq;    // [n_rot / 2]
  const uint8_t* axis;      // [n_rot / 2]
  const float* row_scales;  // [n_scales]; null: none
  int n_pairs, period, n_scales;
  float scale;

  explicit RopeTables(const RopeAngles& angles)
      : inv_freq(angles.inv_freq.data()),
        axis(angles.axis.data()),
        row_scales(angles.row_scales.empty() ? nullptr : angles.row_scales.data()),
        n_pairs(static_cast<int>(angles.axis.size())),
        period(angles.period),
        n_scales(static_cast<int>(angles.row_scales.size())),
        scale(angles.scale) {}
  void visit(auto&& array) {
    array(inv_freq, n_pairs), array(axis, n_pairs);
    if (row_scales != nullptr) array(row_scales, n_scales);
  }
  // positions: [3, rows]; cos, sin: [rows, n_pairs]
  RopeTable table(const int32_t* positions, int rows, float* cos, float* sin) const {
    return {positions, axis, inv_freq, cos, sin, rows, n_pairs, scale, row_scales, period, n_scales};
  }
};

using Mixer = std::variant<AttentionBlock, DeltaNetBlock>;

// One pre-norm layer: x += mixer(norm(x)); x += ffn(norm(x)). With post norms the outputs of mixer and ffn are
// normalised before they are added. Then x += norm(token input), if the layer has one, and x *= scale. A new kind of
// block in either variant needs the same forward(), carve(), visit() and groups(); its family binds it.
struct Layer {
  const float* mixer_norm = nullptr;  // [hidden]
  Mixer mixer;
  const float* ffn_norm = nullptr;  // [hidden]
  FeedForward ffn;
  const float *mixer_post_norm = nullptr, *ffn_post_norm = nullptr;  // [hidden]; both or none
  std::optional<TokenInput> token_input;                             // only with post norms
  float scale = 1;                                                   // only with post norms
};

// Source of the layers' token inputs: (scale * table[token] + norm(projection embedding)) / sqrt(2), for all layers.
struct TokenInputs {
  Matrix table;                 // [vocab, n_layers * dim]
  Matrix projection;            // [n_layers * dim, hidden]
  const float* norm = nullptr;  // [dim]
  int dim = 0;                  // 0: the model has none
};

// Everything that a family's manifest binds.
struct Weights {
  Matrix embedding, head;  // [vocab, hidden]; the same matrix when tied
  const float* final_norm = nullptr;
  TokenInputs token_inputs;
  std::vector<Layer> layers;
  RopeAngles rope, second_rope;  // no pairs: there is no second one
  HostCopies copies;             // memory of the pointers above; moves to the network
};

// Copies of the residual stream after given layers, for draft models.
struct LayerOutputs {
  std::span<const int> layers{};  // in any order
  float* to = nullptr;            // [rows, layers.size(), hidden], in the stream's memory
};

// Rows of an append whose input is given, instead of the embedding of a token: rows of an image.
struct GivenRows {
  int first, n;
  const float* from;  // [n, hidden] on the host
};

struct Append {
  std::span<const int32_t> tokens;     // [rows]; any id of the vocabulary at given rows
  std::span<const int32_t> positions;  // [3, rows]
  std::span<const Segment> segments;   // segments of all rows, in order
  std::span<const GivenRows> given{};
  LayerOutputs outputs{};
  const SparseBlocks* sparse = nullptr;  // attention over selected key blocks, for a single chain; null: dense
  const std::function<bool()>* interrupted = nullptr;  // polled between layers; true stops the pass
};

// Copies of the residual stream to the host: the input of layer i, or the final norm's output for i == n_layers.
struct Taps {
  std::span<const int> layers;  // ascending
  float* out;                   // [layers.size(), rows, hidden]
};

// Rows of a prompt that one layer computes.
struct LayerRows {
  float* x;                  // [n, hidden] residual stream, in place
  const int32_t* positions;  // [3, n]
  int n;
  int state_layer;  // index of the state's layer to use; a scorer keeps one state layer per kind
};

// Buffers of a forward pass, carved once for the longest append.
struct Workspace {
  float *x, *y;  // [rows, hidden] residual stream, and a block's normed input; at the end y has the final hidden rows
  float *cos, *sin;                 // [rows, n_rot / 2]
  float *second_cos, *second_sin;   // of the second rope
  float *token_inputs, *projected;  // [rows, n_layers * dim]
  float* partial;                   // [rows, hidden] a rank's share of a block's result; null on one rank
  Carver scratch;                   // of the blocks
};

class Model final : public Network {
  class LayerLoop;

 public:
  Model(ModelInfo info, Weights weights);
  const ModelInfo& info() const { return info_; }
  // Bytes of weights read per decoded token. An untied embedding is not counted, because a token reads only one row of
  // it, nor are experts that a token does not choose.
  size_t bytes_per_token() const;
  const float* final_norm() const { return weights_.final_norm; }  // [hidden]
  const RopeAngles& rope() const { return weights_.rope; }
  // Takes the frequencies of a context of this many tokens. Call before the first pass, and before a device has them.
  void set_context(int tokens);

  void for_each_group(const GroupVisitor& group) const override;

  size_t workspace_bytes(int rows) const;
  Workspace workspace(Carver carver, int rows) const;

  // Runs all layers over the append and leaves the final normed rows in ws.y. The caller calls begin_append() of the
  // segments' states before and end_append() after. Throws kCancelled when append.interrupted returns true.
  void forward(const Append& append, const Workspace& ws, Activations activations, Stream& stream,
               const Taps* taps = nullptr) const {
    PartPass(*this, {}, append, ws, activations, stream, taps).finish();
  }
  // forward() of one part, on its shard, a layer at a time. Parts after the first take the residual stream in ws.x,
  // where receive() brings it before the first layer; parts before the last leave it there.
  class PartPass {
   public:
    PartPass(const Model& model, const NetworkPart& part, const Append& append, const Workspace& ws,
             Activations activations, Stream& stream, const Taps* taps, std::function<void()> receive = {});
    ~PartPass();
    PartPass(const PartPass&) = delete;
    PartPass& operator=(const PartPass&) = delete;

    int n_done() const { return next_ - first_; }
    void run_layer();  // the next one
    void finish() {
      while (next_ < end_) run_layer();
    }

   private:
    const Append append_;
    std::function<void()> receive_;
    std::unique_ptr<LayerLoop> loop_;
    int first_, next_, end_;
  };
  // forward() of all ranks of a model that is split by tensors, layer by layer, so that no rank waits long for another.
  // [ranks]: rank r's model, append, workspace and stream. taps: of the last rank.
  struct RankPass {
    const Model* model;
    const Append* append;
    const Workspace* workspace;
    Stream* stream;
  };
  static void forward(std::span<const RankPass> ranks, Activations activations, const Taps* taps);
  // The first norm of the next part, in the memory of a part's device. [hidden]
  const float* next_norm(const NetworkPart& part) const { return next_norms_[part.rank]; }
  // Whether the layers are plain pre-norm layers with one attention shape, which run_layer(), score_layer() and sparse
  // attention need.
  bool is_plain() const;
  // embed() from the embedding that is on the draft model's device.
  void embed_drafts(const int32_t* tokens, int rows, float* x, Stream& stream) const;
  // Whether the model can be on several devices: no layer reads another layer's cache, or token inputs.
  bool is_divisible() const;
  // The last attention layer with keys and values of its own, with or without a window; -1: there is none.
  int last_kv_layer(bool has_window) const;
  const AttentionBlock& attention_block(int layer) const;
  // Runs one layer over rows, like forward(). The caller calls state.begin_append() before and end_append() after.
  // sparse: its attention is block-sparse; null: dense.
  void run_layer(int i, const LayerRows& rows, const SparseBlocks* sparse, SequenceState& state, const Workspace& ws,
                 Activations activations, Stream& stream) const;
  // AttentionBlock::score() of one layer that has_attention(); x is unchanged.
  void score_layer(int i, const LayerRows& rows, const ScoredRows& scored, SequenceState& state, const Workspace& ws,
                   Activations activations, Stream& stream) const;
  bool has_attention(int layer) const { return std::holds_alternative<AttentionBlock>(weights_.layers[layer].mixer); }
  // x[r,:] = embedding[tokens[r],:]
  void embed(const int32_t* tokens, int rows, float* x, Stream& stream) const;
  // logits[r,:] = head(hidden[r,:])
  void head(const float* hidden, int rows, float* logits, Activations activations, Stream& stream) const;

  // --- a rank of a model that is split by tensors
  static constexpr int kGatherRows = 32;  // rows of logits that the ranks exchange together
  // The model that rank `rank` computes: its share of the heads, of the feed-forward network and of the head's rows. It
  // points into this model's file and copies. shares: [ranks]. Throws kUnsupported if the model cannot be divided so.
  std::unique_ptr<Model> slice(int rank, std::span<const int> shares) const;
  // Call before forward() and head() of a slice. logits: [kGatherRows, own_vocab()] in the rank's memory, for its
  // share.
  void join(const RankMailboxes& ranks, float* logits) {
    ranks_ = ranks;
    own_logits_ = logits;
  }
  bool is_slice() const { return !vocab_shares_.empty(); }
  int rank() const { return rank_; }  // 0: also of a whole model
  int n_ranks() const { return static_cast<int>(vocab_shares_.size()); }
  int own_vocab() const { return weights_.head.n_out; }
  int widest_vocab() const { return *std::ranges::max_element(vocab_shares_); }

 private:
  void visit(const WeightVisitor& visitor) override;
  Workspace carve(Carver& carver, int rows) const;
  void embed_from(const Matrix& table, const int32_t* tokens, int rows, float* x, Stream& stream) const;
  void embed_inputs(const int32_t* tokens, int rows, const Workspace& ws, Activations activations,
                    Stream& stream) const;
  void make_angles(int rank, const int32_t* positions, int rows, const Workspace& ws, Stream& stream) const;

  ModelInfo info_;
  Weights weights_;
  Matrix draft_embedding_;                      // the embedding; split by layers: another copy, on the last device
  std::vector<RopeTables> rope_, second_rope_;  // one per part
  std::vector<const float*> next_norms_;        // one per part on a device
  int rank_ = 0;
  RankMailboxes ranks_{};          // n == 0: the model is whole
  std::vector<int> vocab_shares_;  // [ranks] rows of the head on each rank; empty: the model is whole
  float* own_logits_ = nullptr;
};

// Finds the family that a file's architecture names and binds the weights. The file must outlive the model.
std::unique_ptr<Model> make_model(const ModelFile& file);

}  // namespace lb
