// A block of rows [newest token, mask, mask, ...] attends to keys and values of the committed tokens and, through the
// masks below, to itself. Row i predicts the token at its own position. Committed rows contribute only keys and values:
//   g = norm(fc [the target's tapped rows]), k = rope(norm_head(Wk g)), v = Wv g, the same g for every layer.
// DFlash 2 adds a convolution over the block before and after each mixer and MLP. It also adds a selector, which
// chooses each depth's candidate given the previous one.
#include "models/dflash.h"

#include <algorithm>

#include "base/error.h"
#include "models/family.h"
#include "models/rope_angles.h"
#include "ops/block_conv.h"
#include "ops/select_candidates.h"

namespace lb {
namespace {

struct DraftConv {
  const float* base = nullptr;  // [2, n_taps, hidden]: of the input and of the result
  Matrix kernel;                // [2 * n_taps * hidden / group, hidden]
};

struct DraftLayer {
  const float* mixer_norm = nullptr;  // [hidden]
  AttentionBlock mixer;
  const float* mlp_norm = nullptr;  // [hidden]
  SwiGluMlp mlp;
  DraftConv mixer_conv, mlp_conv;  // DFlash 2
};

struct DflashWeights {
  Matrix fc;                            // [hidden, n_taps * hidden]
  const float* context_norm = nullptr;  // [hidden]
  const float* final_norm = nullptr;    // [hidden]
  std::vector<DraftLayer> layers;
  Matrix predecessors, successors;  // [vocab, rank]; DFlash 2
  Matrix selector;                  // [rank, hidden]
  RopeAngles rope;
  HostCopies copies;  // memory of the pointers above; the network takes it
};

// Attention mask inside the block: for each row, the rows that it sees.
std::vector<uint64_t> block_mask(int block, bool causal, int window) {
  std::vector<uint64_t> words(block);
  for (int r = 0; r < block; ++r)
    for (int j = 0; j < block; ++j) {
      const bool is_near = window == 0 || (r - j < window && (causal || j - r < window));
      if (is_near && (!causal || j <= r)) words[r] |= uint64_t{1} << j;
    }
  return words;
}

class Dflash final : public DraftModel {
 public:
  Dflash(DflashConfig config, std::optional<Dflash2Config> second, DflashWeights weights, const Model& target);

  void for_each_group(const GroupVisitor& group) const override;
  void context(const DraftRows& rows, const DraftWorkspace& ws, Activations activations, Stream& stream) const override;
  void step_context(const StepRing& ring, int slot, const DraftRows& rows, const DraftWorkspace& ws,
                    Activations activations, Stream& stream) const override;
  void propose(const DraftRoot& root, int depth, SequenceState& state, const DraftWorkspace& ws,
               Activations activations, Stream& stream) const override;

 private:
  // Buffers of a block's rows. The kernels buffer is reused by each mixer and MLP.
  struct Block {
    float *x, *y;            // [block, hidden] residual stream, a normed input
    float *mixed, *kernels;  // [block, hidden], [block, kernel.n_out or rank]; DFlash 2
    Block(const Dflash& draft, Carver& scratch) {
      const size_t rows = draft.config_.block, n = rows * draft.config_.info.hidden;
      x = scratch.take<float>(n);
      y = scratch.take<float>(n);
      mixed = draft.second_ ? scratch.take<float>(n) : nullptr;
      kernels =
          draft.second_
              ? scratch.take<float>(rows * std::max(draft.w_.layers[0].mixer_conv.kernel.n_out, draft.second_->rank))
              : nullptr;
    }
  };

  size_t scratch_bytes(int max_rows) const override;
  void visit(const WeightVisitor& visitor) override;
  RmsNorm norm(const float* x, const float* w, float* y, int rows) const {
    const ModelInfo& info = config_.info;
    return {x, w, y, rows, 1, info.hidden, info.hidden, info.hidden, info.eps};
  }
  // b.x += part(norm(b.x)), convolved at both ends
  template <class Part>
  void convolved(const DraftConv& conv, const float* norm_weight, const Block& b, const Step& step, Part&& part) const;
  void layer(int i, const Block& b, const Step& step) const;

  DflashConfig config_;
  std::optional<Dflash2Config> second_;
  DflashWeights w_;
  RopeTables rope_;
  // Constant operands of a block.
  std::vector<int32_t> host_masked_;
  std::vector<uint64_t> host_masks_;
  const int32_t* masked_;  // [block - 1] the mask token
  const uint64_t* masks_;  // [n_layers, block]
};

Dflash::Dflash(DflashConfig config, std::optional<Dflash2Config> second, DflashWeights weights, const Model& target)
    : DraftModel("dflash", target),
      config_(std::move(config)),
      second_(second),
      w_(std::move(weights)),
      rope_(w_.rope),
      host_masked_(config_.block - 1, config_.mask_token) {
  taps_ = config_.taps;
  max_depth_ = config_.block - 1;
  if (second_) n_candidates_ = second_->top_k;
  n_rot_ = config_.info.n_rot;
  std::vector<LayerShape> shapes;
  for (size_t i = 0; i < w_.layers.size(); ++i) {
    DraftLayer& layer = w_.layers[i];
    layer.mixer.window = config_.sliding[i] ? config_.window : 0;
    for (uint64_t word : block_mask(config_.block, config_.causal[i], layer.mixer.window)) host_masks_.push_back(word);
    shapes.emplace_back(layer.mixer.shape());
  }
  masked_ = host_masked_.data();
  masks_ = host_masks_.data();
  const ModelInfo& info = config_.info;
  finish(std::move(shapes), {info.n_heads, info.n_kv_heads, info.head_dim}, std::move(w_.copies));
}

void Dflash::for_each_group(const GroupVisitor& group) const {
  group({&w_.fc});
  for (size_t i = 0; i < w_.layers.size(); ++i) {
    const DraftLayer& layer = w_.layers[i];
    layer.mixer.groups(group);
    layer.mlp.groups(group);
    if (i + 1 < w_.layers.size()) {
      const AttentionBlock& next = w_.layers[i + 1].mixer;
      group({&layer.mixer.k, &layer.mixer.v, &next.k, &next.v});
    } else {
      group({&layer.mixer.k, &layer.mixer.v});
    }
    if (second_) group({&layer.mixer_conv.kernel}), group({&layer.mlp_conv.kernel});
  }
  if (second_) group({&w_.selector});
}

void Dflash::visit(const WeightVisitor& visitor) {
  const int h = config_.info.hidden;
  visitor.matrix(w_.fc);
  visitor(w_.context_norm, h), visitor(w_.final_norm, h);
  for (DraftLayer& layer : w_.layers) {
    visitor(layer.mixer_norm, h), visitor(layer.mlp_norm, h);
    layer.mixer.visit(visitor.matrix, visitor);
    layer.mlp.visit(visitor.matrix, visitor);
    if (!second_) continue;
    for (DraftConv* conv : {&layer.mixer_conv, &layer.mlp_conv})
      visitor(conv->base, size_t{2} * second_->conv_taps * h), visitor.matrix(conv->kernel);
  }
  if (second_)
    for (Matrix* m : {&w_.predecessors, &w_.successors, &w_.selector}) visitor.matrix(*m);
  rope_.visit(visitor);
  visitor(masked_, host_masked_.size()), visitor(masks_, host_masks_.size());
}

size_t Dflash::scratch_bytes(int max_rows) const {
  const DraftLayer& layer = w_.layers.front();
  Carver context, mixer;
  context.take<float>(static_cast<size_t>(max_rows) * config_.info.hidden);
  carve_keys_values(layer.mixer, context, max_rows);
  Block(*this, mixer);
  Carver mlp = mixer;
  layer.mixer.carve(mixer, config_.block);
  layer.mlp.carve(mlp, config_.block);
  return std::max({context.used(), mixer.used(), mlp.used()});
}

void Dflash::context(const DraftRows& in, const DraftWorkspace& ws, Activations activations, Stream& stream) const {
  Carver scratch = ws.scratch;
  float* g = scratch.take<float>(static_cast<size_t>(in.rows) * config_.info.hidden);
  run(rope_.table(in.positions, in.rows, ws.cos, ws.sin), stream);
  run(product(w_.fc, in.taps, g, in.rows, activations, stream), stream);
  run(norm(g, w_.context_norm, g, in.rows), stream);
  const Step step{in.rows, in.segments, ws.cos, ws.sin, activations, scratch, stream};
  const int n = static_cast<int>(w_.layers.size());
  for (int i = 0; i < n; i += 2) {
    const AttentionBlock* const blocks[] = {&w_.layers[i].mixer, &w_.layers[std::min(i + 1, n - 1)].mixer};
    append_keys_values(std::span(blocks).first(std::min(2, n - i)), state_layer(i), g, step);
  }
}

void Dflash::step_context(const StepRing& ring, int slot, const DraftRows& rows, const DraftWorkspace& ws,
                          Activations activations, Stream& stream) const {
  DraftRows in = rows;
  in.taps = ring.rows + static_cast<size_t>(slot % StepRing::kRows) * tap_width();
  context(in, ws, activations, stream);
}

template <class Part>
void Dflash::convolved(const DraftConv& conv, const float* norm_weight, const Block& b, const Step& step,
                       Part&& part) const {
  const int rows = step.rows, h = config_.info.hidden;
  run(norm(b.x, norm_weight, b.y, rows), step.stream);
  run(product(conv.kernel, b.y, b.kernels, rows, step.activations, step.stream), step.stream);
  const BlockConv input{.x = b.y,
                        .base = conv.base,
                        .kernels = b.kernels,
                        .add = nullptr,
                        .y = b.mixed,
                        .rows = rows,
                        .dim = h,
                        .n_taps = second_->conv_taps,
                        .group = second_->conv_group,
                        .kernel_stride = conv.kernel.n_out};
  BlockConv result = input;
  result.base += static_cast<size_t>(second_->conv_taps) * h;
  result.kernels += conv.kernel.n_out / 2;
  result.add = result.y = b.x;
  run(input, step.stream);
  part(b.mixed, b.y);
  run(result, step.stream);
}

void Dflash::layer(int i, const Block& b, const Step& step) const {
  const DraftLayer& layer = w_.layers[i];
  if (!second_) {
    layer.mixer.forward(state_layer(i), norm(b.x, layer.mixer_norm, b.y, step.rows), b.x, b.x, step);
    layer.mlp.forward(norm(b.x, layer.mlp_norm, b.y, step.rows), b.x, b.x, step);
    return;
  }
  convolved(layer.mixer_conv, layer.mixer_norm, b, step,
            [&](const float* y, float* result) { layer.mixer.forward(state_layer(i), y, result, step); });
  convolved(layer.mlp_conv, layer.mlp_norm, b, step,
            [&](const float* y, float* result) { layer.mlp.forward(y, result, step); });
}

void Dflash::propose(const DraftRoot& root, int depth, SequenceState& state, const DraftWorkspace& ws,
                     Activations activations, Stream& stream) const {
  check(depth, state);
  const int rows = config_.block, h = config_.info.hidden;
  Carver scratch = ws.scratch;
  const Block b(*this, scratch);
  run(rope_.table(root.positions, rows, ws.cos, ws.sin), stream);
  target_.embed_drafts(root.token, 1, b.x, stream);
  target_.embed_drafts(masked_, rows - 1, b.x + h, stream);
  for (int i = 0; i < static_cast<int>(w_.layers.size()); ++i) {
    const Tree tree{nullptr, masks_ + static_cast<size_t>(i) * rows};
    const Segment block{0, rows, tree, state.n_past(shard()), &state, shard()};
    layer(i, b, {rows, {&block, 1}, ws.cos, ws.sin, activations, scratch, stream});
  }
  run(norm(b.x + h, w_.final_norm, ws.hidden, depth), stream);  // row 0 is the newest token
  target_.head(ws.hidden, depth, ws.logits, activations, stream);
  top_tokens(ws, 0, depth, config_.logit_scale, config_.logit_softcap, stream);
  if (!second_) return;
  LB_ASSERT(stream.reads(w_.successors.layout));
  float* projected = b.kernels;  // [depth, rank]; reused: all convolutions are done
  run(product(w_.selector, ws.hidden, projected, depth, activations, stream), stream);
  run(SelectCandidates{.hidden = projected,
                       .predecessors = w_.predecessors.data,
                       .successors = w_.successors.data,
                       .type = w_.successors.type,
                       .root = root.token,
                       .ids = ws.ids,
                       .logprobs = ws.logprobs,
                       .rows = depth,
                       .vocab = config_.info.vocab,
                       .rank = second_->rank,
                       .k = n_candidates_},
      stream);
}

// --- binding

TensorName first_of(const Binder& binder, std::initializer_list<TensorName> names) {
  for (const TensorName& name : names)
    if (binder.has(name)) return name;
  return *names.begin();
}

// Refuses unsupported kinds of drafts, recognised by a part of a tensor's name.
void refuse_unsupported(const ModelFile& file) {
  constexpr std::pair<const char*, const char*> kParts[] = {
      {"domino", "the Domino head"},
      {"dspark", "the DSpark head"},
      {"markov", "the DSpark head"},
      {"confidence", "the DSpark head"},
      {"d2t", "a vocabulary of the draft's own (DSpark)"},
      {"aux_hidden_norm", "a norm per captured layer"},
      {"attn_gate", "the softplus gate"},
      {"_exps", "a mixture of experts"},
      {"ffn_gate_inp", "a mixture of experts"},
      {"experts", "a mixture of experts"},
  };
  for (const TensorView& tensor : file.tensors().all())
    for (const auto& [part, what] : kParts)
      LB_CHECK(tensor.name.find(part) == std::string::npos, kUnsupported, to_string(tensor), ": ", what,
               " is not supported; supported: DFlash 1 and 2 of Qwen3's layers");
}

DraftLayer bind_layer(Binder& binder, const DflashConfig& config, int i) {
  const int h = config.info.hidden;
  const char* hf_norm = "post_attention_layernorm.weight";
  DraftLayer layer;
  layer.mixer_norm = binder.vector(layer_tensor(i, "attn_norm.weight", "input_layernorm.weight"), h);
  layer.mlp_norm = binder.vector(first_of(binder, {layer_tensor(i, "ffn_norm.weight", hf_norm),
                                                   layer_tensor(i, "post_attention_norm.weight", hf_norm)}),
                                 h);
  layer.mixer = bind_attention(binder, config.info, i, {.qk_norms = true, .pairs = config.pairs});
  layer.mlp = bind_mlp(binder, config.info, i);
  return layer;
}

DraftConv bind_conv(Binder& binder, const TensorName& base, const TensorName& kernel, const Dflash2Config& config,
                    int hidden) {
  return {.base = binder.array(base, {2, config.conv_taps, hidden}),
          .kernel = binder.matrix(kernel, 2 * config.conv_taps * (hidden / config.conv_group), hidden, Split::none())};
}

void bind_second(Binder& binder, const Dflash2Config& config, const ModelInfo& info, DflashWeights& w) {
  const int h = info.hidden;
  for (int i = 0; i < info.n_layers; ++i) {
    DraftLayer& layer = w.layers[i];
    layer.mixer_conv =
        bind_conv(binder, layer_tensor(i, "attn_conv_base", "attention_conv.base_kernel"),
                  layer_tensor(i, "attn_conv_proj.weight", "attention_conv.kernel_projection.weight"), config, h);
    layer.mlp_conv = bind_conv(binder, layer_tensor(i, "ffn_conv_base", "mlp_conv.base_kernel"),
                               layer_tensor(i, "ffn_conv_proj.weight", "mlp_conv.kernel_projection.weight"), config, h);
  }
  const auto codebook = [&](const char* gguf, const std::string& hf) {
    return binder.matrix(first_of(binder, {{gguf, hf + ".weight"}, {gguf, hf}}), info.vocab, config.rank,
                         Split::none());
  };
  w.predecessors = codebook("selector_predecessor.weight", "candidate_selector.predecessor_codebook");
  w.successors = codebook("selector_successor.weight", "candidate_selector.successor_codebook");
  LB_CHECK(w.predecessors.type == w.successors.type, kUnsupported, binder.path(),
           ": the selector's codebooks are of two types, ", name(w.predecessors.type), " and ", name(w.successors.type),
           "; one type is supported");
  w.selector = binder.matrix({"selector_hidden.weight", "candidate_selector.hidden_projection.weight"}, config.rank, h,
                             Split::none());
}

}  // namespace

std::unique_ptr<DraftModel> make_dflash(const ModelFile& file, const Model& target) {
  refuse_unsupported(file);
  const Fields fields(file, dflash_architecture(file));
  Binder binder(file, "");
  const TensorName fc =
      first_of(binder, {{"fc.weight", "fc.weight"}, {"dflash.fc.weight", ""}, {"dflash_fc.weight", ""}});
  const int hidden = target.info().hidden, width = binder.width(fc);
  DflashConfig config = read_dflash(fields, target.info(), width / hidden);
  std::optional<Dflash2Config> second;
  if (binder.has(layer_tensor(0, "attn_conv_base", "attention_conv.base_kernel")))
    second = read_dflash2(fields, hidden);
  LB_CHECK(!second || second->top_k <= target.info().vocab, kUnsupported, file.path, ": the draft has ", second->top_k,
           " candidates per depth, and the target's vocabulary ", target.info().vocab, " tokens");

  DflashWeights w;
  w.fc = binder.matrix(fc, hidden, static_cast<int>(config.taps.size()) * hidden, Split::none());
  w.context_norm = binder.vector(first_of(binder, {{"enc.output_norm.weight", "hidden_norm.weight"},
                                                   {"dflash.hidden_norm.weight", ""},
                                                   {"dflash_hidden_norm.weight", ""}}),
                                 hidden);
  w.final_norm = binder.vector({"output_norm.weight", "norm.weight"}, hidden);
  w.rope = rope_angles(fields, binder, config.info.n_rot);
  for (int i = 0; i < config.info.n_layers; ++i) w.layers.push_back(bind_layer(binder, config, i));
  if (second) bind_second(binder, *second, config.info, w);
  binder.finish();
  w.copies = binder.take_copies();
  return std::make_unique<Dflash>(std::move(config), second, std::move(w), target);
}

}  // namespace lb
