// MTP, a prediction block as a draft model. Row j belongs to token x_j: y_j = W [norm(embed(x_j)); norm(h_{j-1})], then
// one attention layer over the earlier rows, where h_{j-1} is the final normed row of the previous token. The block's
// normed result o_j predicts token j + 1 and replaces h_j while drafting. Row 0 has no previous token and is masked.
// The state keeps rows from before the target's final norm, because a megakernel never writes the normed rows.
// Source: llama.cpp's graph_mtp for Qwen3.5, and vLLM's qwen3_next_mtp.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "models/draft_model.h"
#include "models/family.h"
#include "models/kept_row.h"
#include "models/rope_angles.h"
#include "ops/copy_rows.h"

namespace lb {
namespace {

struct MtpWeights {
  Matrix combine;                         // [hidden, 2 * hidden]: columns of the embedding first
  const float* embedding_norm = nullptr;  // [hidden]
  const float* hidden_norm = nullptr;     // [hidden]
  const float* mixer_norm = nullptr;      // [hidden]
  AttentionBlock mixer;
  const float* ffn_norm = nullptr;  // [hidden]
  FeedForward ffn;
  const float* final_norm = nullptr;  // [hidden]; null: the target's
  Matrix embedding, head;             // [vocab, hidden]; without data: the target's
  RopeAngles rope;
  HostCopies copies;  // memory of the pointers above; the network takes it
};

class Mtp final : public DraftModel {
 public:
  Mtp(const ModelInfo& info, MtpWeights weights, const Model& target)
      : DraftModel("mtp", target), info_(info), w_(std::move(weights)), rope_(w_.rope) {
    taps_ = {info_.n_layers - 1};
    max_depth_ = kMaxChain;
    is_sequential_ = true;
    n_rot_ = info_.n_rot;
    finish({w_.mixer.shape(), RowShape{info_.hidden}}, {info_.n_heads, info_.n_kv_heads, info_.head_dim},
           std::move(w_.copies), expert_products_of(info_));
  }

  void for_each_group(const GroupVisitor& group) const override {
    group({&w_.combine});
    w_.mixer.groups(group);
    group({&w_.mixer.k, &w_.mixer.v});
    std::visit([&](const auto& ffn) { ffn.groups(group); }, w_.ffn);
    if (w_.head.data != nullptr) group({&w_.head});
  }

  void context(const DraftRows& rows, const DraftWorkspace& ws, Activations activations, Stream& stream) const override;
  void begin_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const override;
  void step_context(const StepRing& ring, int slot, const DraftRows& rows, const DraftWorkspace& ws,
                    Activations activations, Stream& stream) const override;
  void end_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const override;
  void propose(const DraftRoot& root, int depth, SequenceState& state, const DraftWorkspace& ws,
               Activations activations, Stream& stream) const override;

 private:
  struct Buffers {
    float* embedded;  // [rows, hidden]
    float* before;    // [rows, hidden] each row's predecessor, then its final norm
    float* both;      // [rows, 2 * hidden]
    float *x, *y;     // [rows, hidden]
    Buffers(Carver& scratch, int rows, int hidden) {
      const size_t n = static_cast<size_t>(rows) * hidden;
      embedded = scratch.take<float>(n);
      before = scratch.take<float>(n);
      both = scratch.take<float>(2 * n);
      x = scratch.take<float>(n);
      y = scratch.take<float>(n);
    }
  };

  size_t scratch_bytes(int max_rows) const override {
    Carver context, propose;
    Buffers(context, max_rows, info_.hidden);
    carve_keys_values(w_.mixer, context, max_rows);
    Buffers(propose, 1, info_.hidden);
    Carver ffn_scratch = propose;
    w_.mixer.carve(propose, 1);
    std::visit([&](const auto& ffn) { ffn.carve(ffn_scratch, 1); }, w_.ffn);
    return std::max({context.used(), propose.used(), ffn_scratch.used()});
  }

  void visit(const WeightVisitor& visitor) override {
    const int h = info_.hidden;
    visitor.matrix(w_.combine);
    for (const float** norm : {&w_.embedding_norm, &w_.hidden_norm, &w_.mixer_norm, &w_.ffn_norm}) visitor(*norm, h);
    if (w_.final_norm != nullptr) visitor(w_.final_norm, h);
    w_.mixer.visit(visitor.matrix, visitor);
    std::visit([&](auto& ffn) { ffn.visit(visitor.matrix, visitor); }, w_.ffn);
    for (Matrix* m : {&w_.embedding, &w_.head})
      if (m->data != nullptr) visitor.matrix(*m);
    rope_.visit(visitor);
  }

  RmsNorm norm(const float* x, const float* w, float* y, int rows) const {
    return {x, w, y, rows, 1, info_.hidden, info_.hidden, info_.hidden, info_.eps};
  }
  RmsNorm target_norm(const float* x, float* y, int rows) const {
    RmsNorm op = norm(x, target_.final_norm(), y, rows);
    op.eps = target_.info().eps;
    return op;
  }
  KeptRow kept_row() const { return {state_layer(1), shard(), info_.hidden}; }
  CopyRows copy(const float* x, float* y, int rows = 1) const {
    return {.x = x, .y = y, .rows = rows, .dim = info_.hidden, .y_rows = rows, .y_stride = info_.hidden};
  }
  void embed(const int32_t* tokens, int rows, float* x, Stream& stream) const;
  void head(const float* hidden, float* logits, Activations activations, Stream& stream) const;
  // b.x = combine [norm(embed(tokens)); norm(hidden)]
  void combine(const int32_t* tokens, const float* hidden, int rows, const Buffers& b, Activations activations,
               Stream& stream) const;
  // Keys and values of rows, from b.before.
  void keys_values(const DraftRows& rows, const Buffers& b, const DraftWorkspace& ws, Activations activations,
                   Carver scratch, Stream& stream) const;

  ModelInfo info_;
  MtpWeights w_;
  RopeTables rope_;
};

void Mtp::embed(const int32_t* tokens, int rows, float* x, Stream& stream) const {
  if (w_.embedding.data == nullptr) return target_.embed_drafts(tokens, rows, x, stream);
  LB_ASSERT(stream.reads(w_.embedding.layout));
  run(Embed{w_.embedding.data, w_.embedding.type, tokens, x, rows, info_.hidden, w_.embedding.n_out}, stream);
}

void Mtp::head(const float* hidden, float* logits, Activations activations, Stream& stream) const {
  if (w_.head.data == nullptr) return target_.head(hidden, 1, logits, activations, stream);
  run(product(w_.head, hidden, logits, 1, activations, stream), stream);
}

void Mtp::combine(const int32_t* tokens, const float* hidden, int rows, const Buffers& b, Activations activations,
                  Stream& stream) const {
  const int h = info_.hidden;
  embed(tokens, rows, b.embedded, stream);
  const bool is_one = rows == 1;  // its halves are contiguous, so no copy is needed
  float *e = is_one ? b.both : b.embedded, *n = is_one ? b.both + h : b.before;
  run(norm(b.embedded, w_.embedding_norm, e, rows), stream);
  run(norm(hidden, w_.hidden_norm, n, rows), stream);
  if (!is_one) {
    run(CopyRows{.x = e, .y = b.both, .rows = rows, .dim = h, .y_rows = rows, .y_stride = 2 * h}, stream);
    run(CopyRows{.x = n, .y = b.both + h, .rows = rows, .dim = h, .y_rows = rows, .y_stride = 2 * h}, stream);
  }
  run(product(w_.combine, b.both, b.x, rows, activations, stream), stream);
}

void Mtp::context(const DraftRows& in, const DraftWorkspace& ws, Activations activations, Stream& stream) const {
  Carver scratch = ws.scratch;
  const Buffers b(scratch, in.rows, info_.hidden);
  kept_row().append(in, b.before, stream);
  keys_values(in, b, ws, activations, scratch, stream);
}

void Mtp::keys_values(const DraftRows& in, const Buffers& b, const DraftWorkspace& ws, Activations activations,
                      Carver scratch, Stream& stream) const {
  run(rope_.table(in.positions, in.rows, ws.cos, ws.sin), stream);
  run(target_norm(b.before, b.before, in.rows), stream);
  combine(in.tokens, b.before, in.rows, b, activations, stream);
  run(norm(b.x, w_.mixer_norm, b.y, in.rows), stream);
  const Step step{in.rows, in.segments, ws.cos, ws.sin, activations, scratch, stream};
  const AttentionBlock* const blocks[] = {&w_.mixer};
  append_keys_values(blocks, state_layer(0), b.y, step);
}

void Mtp::begin_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const {
  kept_row().begin_steps(ring, slot, state, stream);
}

void Mtp::step_context(const StepRing& ring, int slot, const DraftRows& in, const DraftWorkspace& ws,
                       Activations activations, Stream& stream) const {
  Carver scratch = ws.scratch;
  const Buffers b(scratch, in.rows, info_.hidden);
  run(copy(ring.row(slot - 1, info_.hidden), b.before), stream);
  if (in.rows > 1) run(copy(ring.row(slot, info_.hidden), b.before + info_.hidden, in.rows - 1), stream);
  keys_values(in, b, ws, activations, scratch, stream);
}

void Mtp::end_steps(const StepRing& ring, int slot, SequenceState& state, Stream& stream) const {
  kept_row().end_steps(ring, slot, state, stream);
}

void Mtp::propose(const DraftRoot& root, int depth, SequenceState& state, const DraftWorkspace& ws,
                  Activations activations, Stream& stream) const {
  check(depth, state);
  LB_ASSERT(state.n_tokens() > 0);
  const int h = info_.hidden;
  Carver scratch = ws.scratch;
  const Buffers b(scratch, 1, h);
  run(rope_.table(root.positions, max_depth_ + 1, ws.cos, ws.sin), stream);
  kept_row().read(state, b.before, stream);
  run(target_norm(b.before, b.before, 1), stream);
  const float* final_norm = w_.final_norm != nullptr ? w_.final_norm : target_.final_norm();
  for (int d = 0; d < depth; ++d) {
    const float* before = d == 0 ? b.before : ws.hidden + (d - 1) * h;
    combine(d == 0 ? root.token : ws.ids + (d - 1) * n_candidates_, before, 1, b, activations, stream);
    const size_t angles = static_cast<size_t>(d) * rope_.n_pairs;
    // Draft rows have text positions: a row's position is the number of tokens before it.
    const Segment row{0, 1, {}, root.positions + d, &state, shard()};
    const Step step{1, {&row, 1}, ws.cos + angles, ws.sin + angles, activations, scratch, stream};
    w_.mixer.forward(state_layer(0), norm(b.x, w_.mixer_norm, b.y, 1), b.x, b.x, step);
    const RmsNorm ffn_in = norm(b.x, w_.ffn_norm, b.y, 1);
    std::visit([&](const auto& ffn) { ffn.forward(ffn_in, b.x, b.x, step); }, w_.ffn);
    run(norm(b.x, final_norm, ws.hidden + d * h, 1), stream);
    head(ws.hidden + d * h, ws.logits, activations, stream);
    top_tokens(ws, d, 1, 1, 0, stream);
  }
}

// Location of the block in a file: its layer, and in safetensors its name prefix.
struct BlockPlace {
  LayerNumber layer;
  std::string hf_prefix;
};

std::optional<BlockPlace> find_block(const ModelFile& file) {
  if (file.gguf() == nullptr) {
    for (const char* prefix : {"mtp.", "model.mtp."})
      if (file.tensors().find(cat(prefix, "fc.weight")) != nullptr) return BlockPlace{0, prefix};
    return std::nullopt;
  }
  const GgufMetadata& metadata = file.gguf()->metadata;
  const std::string_view architecture = metadata.find_string("general.architecture").value_or("");
  if (architecture != kQwen35.gguf && architecture != kQwen35Moe.gguf) return std::nullopt;
  const uint64_t n = metadata.find_uint(cat(architecture, ".block_count")).value_or(0);
  const uint64_t n_blocks = metadata.find_uint(cat(architecture, ".nextn_predict_layers")).value_or(0);
  if (n_blocks == 0 || n_blocks >= n || n > 1024) return std::nullopt;
  const int layer = static_cast<int>(n - n_blocks);  // the first block: only this one drafts the next token
  if (file.tensors().find(cat("blk.", layer, ".nextn.eh_proj.weight")) == nullptr) return std::nullopt;
  return BlockPlace{{layer, 0}, ""};
}

void check_target(const std::string& path, const ModelInfo& block, int vocab, const ModelInfo& target) {
  const auto check = [&](const char* what, int of_block, int of_target) {
    LB_CHECK(of_block == of_target, kUnsupported, path, ": the prediction block is for a target with ", what, " ",
             of_block, "; the target has ", of_target);
  };
  check("hidden size", block.hidden, target.hidden);
  check("vocabulary", vocab, target.vocab);
  check("layers", block.n_layers, target.n_layers);
}

}  // namespace

std::unique_ptr<DraftModel> make_mtp(const ModelFile& file, const Model& target) {
  const std::optional<BlockPlace> place = find_block(file);
  if (!place) return nullptr;
  const Family& family = *find_family(target.info().architecture);
  const Fields fields(file, family.gguf, family.defaults);
  const FamilyConfig config = read_config(family, fields);
  const ModelInfo& info = config.info;
  Binder binder(file, place->hf_prefix);
  const TensorName table{"token_embd.weight", ""};
  check_target(
      file.path, info,
      binder.has(table) ? binder.height(table) : fields.count({"vocab_size", {"vocab_size"}}, target.info().vocab),
      target.info());

  const LayerNumber at = place->layer;
  const auto nextn = [&](const char* gguf, const char* hf) {
    return TensorName{cat("blk.", at.gguf, ".nextn.", gguf, ".weight"), hf};
  };
  const auto norm = [&](const TensorName& name) { return binder.vector(name, info.hidden, HfFix::kAddOne); };
  const auto own = [&](const TensorName& name) {
    return binder.has(name) ? binder.matrix(name, target.info().vocab, info.hidden, Split::none()) : Matrix{};
  };
  MtpWeights w;
  w.combine = binder.matrix(nextn("eh_proj", "fc.weight"), info.hidden, 2 * info.hidden, Split::none());
  w.embedding_norm = norm(nextn("enorm", "pre_fc_norm_embedding.weight"));
  w.hidden_norm = norm(nextn("hnorm", "pre_fc_norm_hidden.weight"));
  w.mixer_norm = norm(layer_tensor(at, "attn_norm.weight", "input_layernorm.weight"));
  w.ffn_norm = norm(layer_tensor(at, "post_attention_norm.weight", "post_attention_layernorm.weight"));
  w.mixer = bind_attention(binder, info, at, family.attention);
  w.mixer.first_slot = 1;
  w.ffn = bind_ffn(binder, info, at);
  const TensorName own_norm = nextn("shared_head_norm", "norm.weight"), file_norm{"output_norm.weight", ""};
  if (binder.has(own_norm) || binder.has(file_norm)) w.final_norm = norm(binder.has(own_norm) ? own_norm : file_norm);
  w.embedding = own(nextn("embed_tokens", ""));
  w.head = own(nextn("shared_head_head", ""));
  w.rope = rope_angles(fields, binder, info.n_rot, config.mrope_sections);
  const std::string block = binder.is_gguf() ? cat("blk.", at.gguf, ".") : place->hf_prefix;
  binder.skip([&](std::string_view name) { return !name.starts_with(block); });
  binder.finish();
  w.copies = binder.take_copies();
  return std::make_unique<Mtp>(info, std::move(w), target);
}

}  // namespace lb
