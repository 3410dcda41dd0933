// The forward pass of all families.
#include "models/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include "base/error.h"
#include "ops/copy_rows.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace lb {
namespace {

AddNorm add_norm(const float* x, float* z, const float* w, float* y, int rows, const ModelInfo& info, float scale) {
  return {x, z, w, y, rows, info.hidden, info.eps, scale};
}

RmsNorm norm(const float* x, const float* w, float* y, int rows, const ModelInfo& info) {
  return {x, w, y, rows, 1, info.hidden, info.hidden, info.hidden, info.eps};
}

}  // namespace

Model::Model(ModelInfo info, Weights weights)
    : info_(std::move(info)),
      weights_(std::move(weights)),
      rope_{RopeTables(weights_.rope)},
      second_rope_{RopeTables(weights_.second_rope)} {
  std::vector<LayerShape> shapes;
  for (const Layer& layer : weights_.layers)
    std::visit([&](const auto& mixer) { shapes.emplace_back(mixer.shape()); }, layer.mixer);
  // The largest heads, shared by the most queries: scratch memory then suffices for every layer.
  AttentionSizes sizes{info_.n_heads, info_.n_kv_heads, info_.head_dim};
  for (const Layer& layer : weights_.layers)
    if (const auto* attention = std::get_if<AttentionBlock>(&layer.mixer)) {
      sizes.n_kv_heads = std::min(sizes.n_kv_heads, attention->n_kv_heads);
      sizes.head_dim = std::max(sizes.head_dim, attention->head_dim);
      sizes.key_tail = std::max(sizes.key_tail, attention->key_tail());
    }
  finish(std::move(shapes), sizes, std::move(weights_.copies), expert_products_of(info_));
}

bool Model::is_plain() const {
  return std::ranges::none_of(weights_.layers, [&](const Layer& layer) {
    const auto* attention = std::get_if<AttentionBlock>(&layer.mixer);
    return layer.mixer_post_norm != nullptr ||
           (attention != nullptr && (!attention->has_kv() || attention->n_kv_heads != info_.n_kv_heads ||
                                     attention->head_dim != info_.head_dim));
  });
}

bool Model::is_divisible() const {
  return weights_.token_inputs.dim == 0 && std::ranges::none_of(weights_.layers, [](const Layer& layer) {
           const auto* attention = std::get_if<AttentionBlock>(&layer.mixer);
           return attention != nullptr && !attention->has_kv();
         });
}

int Model::last_kv_layer(bool has_window) const {
  for (int i = info_.n_layers - 1; i >= 0; --i)
    if (const auto* attention = std::get_if<AttentionBlock>(&weights_.layers[i].mixer))
      if (attention->has_kv() && (attention->window > 0) == has_window) return i;
  return -1;
}

const AttentionBlock& Model::attention_block(int layer) const {
  return std::get<AttentionBlock>(weights_.layers[layer].mixer);
}

void Model::set_context(int tokens) {
  RopeAngles& rope = weights_.rope;
  if (!rope.long_inv_freq.empty() && tokens > rope.long_from)
    std::ranges::copy(rope.long_inv_freq, rope.inv_freq.begin());  // in place: tables point to them
}

size_t Model::bytes_per_token() const {
  size_t bytes = weight_bytes() - (info_.tied ? 0 : weights_.embedding.bytes()) - weights_.token_inputs.table.bytes();
  for (const Layer& layer : weights_.layers)
    if (const MoeBlock* moe = find_experts(layer.ffn)) bytes -= moe->unused_bytes();
  return bytes;
}

void Model::for_each_group(const GroupVisitor& group) const {
  for (const Layer& layer : weights_.layers) {
    std::visit([&](const auto& mixer) { mixer.groups(group); }, layer.mixer);
    std::visit([&](const auto& ffn) { ffn.groups(group); }, layer.ffn);
    if (layer.token_input) layer.token_input->groups(group);
  }
  if (weights_.token_inputs.dim > 0) group({&weights_.token_inputs.projection});
  group({&weights_.head});
}

void Model::visit(const WeightVisitor& visitor) {
  const NetworkPart& part = visitor.part;
  if (part.is_first()) visitor.matrix(weights_.embedding);
  if (info_.tied && part.n == 1)
    weights_.head = weights_.embedding;
  else if (part.is_last())
    visitor.matrix(weights_.head);
  if (part.n == 1)
    draft_embedding_ = weights_.embedding;
  else if (part.is_last() && part.has_draft && info_.tied)
    draft_embedding_ = weights_.head;
  else if (part.is_last() && part.has_draft)
    visitor.matrix(draft_embedding_);
  if (part.is_last()) visitor(weights_.final_norm, info_.hidden);
  if (TokenInputs& inputs = weights_.token_inputs; inputs.dim > 0)
    visitor.matrix(inputs.table), visitor.matrix(inputs.projection), visitor(inputs.norm, inputs.dim);
  for (int i = 0; i < info_.n_layers; ++i) {
    if (!part.layers.has(i)) continue;
    Layer& layer = weights_.layers[i];
    visitor(layer.mixer_norm, info_.hidden), visitor(layer.ffn_norm, info_.hidden);
    std::visit([&](auto& mixer) { mixer.visit(visitor.matrix, visitor); }, layer.mixer);
    std::visit([&](auto& ffn) { ffn.visit(visitor.matrix, visitor); }, layer.ffn);
    if (layer.mixer_post_norm != nullptr)
      visitor(layer.mixer_post_norm, info_.hidden), visitor(layer.ffn_post_norm, info_.hidden);
    if (layer.token_input) layer.token_input->visit(visitor.matrix, visitor);
  }
  if (!part.is_last()) {
    const float* const norm = part.layers.end < info_.n_layers ? weights_.layers[part.layers.end].mixer_norm : nullptr;
    const float* moved = norm;
    visitor(moved, info_.hidden);
    next_norms_.resize(std::max<size_t>(next_norms_.size(), part.n));
    if (moved != norm) next_norms_[part.rank] = moved;
  }
  rope_.resize(std::max<size_t>(rope_.size(), part.n), RopeTables(weights_.rope));
  second_rope_.resize(rope_.size(), RopeTables(weights_.second_rope));
  rope_[part.rank].visit(visitor);
  if (second_rope_[part.rank].n_pairs > 0) second_rope_[part.rank].visit(visitor);
}

Workspace Model::carve(Carver& carver, int rows) const {
  Workspace ws;
  const size_t n = rows;
  ws.x = carver.take<float>(n * info_.hidden);
  ws.y = carver.take<float>(n * info_.hidden);
  ws.cos = carver.take<float>(n * info_.n_rot / 2);
  ws.sin = carver.take<float>(n * info_.n_rot / 2);
  ws.second_cos = carver.take<float>(n * weights_.second_rope.axis.size());
  ws.second_sin = carver.take<float>(n * weights_.second_rope.axis.size());
  const size_t inputs = n * info_.n_layers * weights_.token_inputs.dim;
  ws.token_inputs = carver.take<float>(inputs);
  ws.projected = carver.take<float>(inputs);
  ws.partial = is_slice() ? carver.take<float>(n * info_.hidden) : nullptr;
  ws.scratch = carver;
  return ws;
}

size_t Model::workspace_bytes(int rows) const {
  Carver fixed;
  carve(fixed, rows);
  size_t blocks = 0;
  for (const Layer& layer : weights_.layers) {
    Carver mixer_scratch, ffn_scratch, input_scratch;
    std::visit([&](const auto& mixer) { mixer.carve(mixer_scratch, rows); }, layer.mixer);
    std::visit([&](const auto& ffn) { ffn.carve(ffn_scratch, rows); }, layer.ffn);
    if (layer.token_input) layer.token_input->carve(input_scratch, rows);
    blocks = std::max({blocks, mixer_scratch.used(), ffn_scratch.used(), input_scratch.used()});
  }
  return fixed.used() + blocks;
}

Workspace Model::workspace(Carver carver, int rows) const { return carve(carver, rows); }

void Model::make_angles(int rank, const int32_t* positions, int rows, const Workspace& ws, Stream& stream) const {
  run(rope_[rank].table(positions, rows, ws.cos, ws.sin), stream);
  if (second_rope_[rank].n_pairs > 0)
    run(second_rope_[rank].table(positions, rows, ws.second_cos, ws.second_sin), stream);
}

// The passes of a forward pass over the layers, on one stream.
class Model::LayerLoop {
 public:
  LayerLoop(const Model& model, const NetworkPart& part, const Append& append, const Workspace& ws,
            Activations activations, Stream& stream, const Taps* taps)
      : model_(model),
        part_(part),
        append_(append),
        ws_(ws),
        taps_(taps),
        rows_(static_cast<int>(append.tokens.size())),
        n_tapped_(taps == nullptr ? 0
                                  : std::ranges::lower_bound(taps->layers, part.layers.first) - taps->layers.begin()),
        x_(ws.x),
        step_{rows_,
              append.segments,
              ws.cos,
              ws.sin,
              activations,
              ws.scratch,
              stream,
              append.sparse,
              {ws.second_cos, ws.second_sin},
              {model.is_slice() ? &model.ranks_ : nullptr, ws.partial}} {}

  void begin() {
    const ModelInfo& info = model_.info_;
    const int32_t* const tokens = append_.tokens.data();
    model_.make_angles(part_.rank, append_.positions.data(), rows_, ws_, step_.stream);
    if (!part_.is_first()) return;
    model_.embed(tokens, rows_, x_, step_.stream);
    for (const GivenRows& given : append_.given)
      step_.stream.upload(x_ + size_t(given.first) * info.hidden, given.from, sizeof(float) * given.n * info.hidden);
    if (model_.weights_.token_inputs.dim > 0) model_.embed_inputs(tokens, rows_, ws_, step_.activations, step_.stream);
  }

  void run_layer(int i) {
    tap(i, x_);
    const Layer& layer = model_.weights_.layers[i];
    const ModelInfo& info = model_.info_;
    const RmsNorm in = norm(x_, layer.mixer_norm, ws_.y, rows_, info);
    if (layer.mixer_post_norm == nullptr) {
      std::visit([&](const auto& mixer) { mixer.forward(i, in, x_, ws_.x, step_); }, layer.mixer);
    } else {
      std::visit([&](const auto& mixer) { mixer.forward(i, in, nullptr, ws_.y, step_); }, layer.mixer);
      run(add_norm(x_, ws_.y, layer.mixer_post_norm, ws_.x, rows_, info, 1), step_.stream);
    }
    x_ = ws_.x;
    run_ffn(i, norm(x_, layer.ffn_norm, ws_.y, rows_, info));
  }

  void end() {
    if (!part_.is_last()) return;
    run(norm(x_, model_.weights_.final_norm, ws_.y, rows_, model_.info_), step_.stream);
    tap(model_.info_.n_layers, ws_.y);
  }

 private:
  void tap(int i, const float* from) {
    if (taps_ == nullptr || n_tapped_ == taps_->layers.size() || taps_->layers[n_tapped_] != i) return;
    const size_t row_values = static_cast<size_t>(rows_) * model_.info_.hidden;
    step_.stream.download(taps_->out + n_tapped_++ * row_values, from, row_values * sizeof(float));
  }

  // x += ffn(in.y), and copies of x where the layer is tapped. A single tapped row needs no copy: the layer computes it
  // directly at the destination, from which the next layer reads it and writes to ws.x again. Another device takes it
  // from ws.x.
  void run_ffn(int i, const RmsNorm& in) {
    const auto [layers, to] = append_.outputs;
    const int hidden = model_.info_.hidden;
    const auto copy_of = [&](auto tapped) { return to + (tapped - layers.begin()) * hidden; };
    const auto first_copy = std::ranges::find(layers, i);
    const bool leaves_device = i + 1 == part_.layers.end && !part_.is_last();
    float* const result = rows_ == 1 && first_copy != layers.end() && !leaves_device ? copy_of(first_copy) : x_;
    compute_ffn(i, in, result);
    x_ = result;
    for (auto tapped = first_copy; tapped != layers.end(); tapped = std::find(tapped + 1, layers.end(), i))
      if (copy_of(tapped) != x_)
        run(CopyRows{.x = x_,
                     .y = copy_of(tapped),
                     .rows = rows_,
                     .dim = hidden,
                     .y_rows = rows_,
                     .y_stride = static_cast<long>(layers.size()) * hidden},
            step_.stream);
  }

  // result = x + ffn(in.y), and the layer's own input
  void compute_ffn(int i, const RmsNorm& in, float* result) {
    const Layer& layer = model_.weights_.layers[i];
    const ModelInfo& info = model_.info_;
    if (layer.ffn_post_norm == nullptr) {
      std::visit([&](const auto& ffn) { ffn.forward(in, x_, result, step_); }, layer.ffn);
    } else {
      std::visit([&](const auto& ffn) { ffn.forward(in, nullptr, ws_.y, step_); }, layer.ffn);
      run(add_norm(x_, ws_.y, layer.ffn_post_norm, result, rows_, info, layer.token_input ? 1 : layer.scale),
          step_.stream);
    }
    if (!layer.token_input) return;
    const int dim = model_.weights_.token_inputs.dim;
    layer.token_input->forward(result, ws_.token_inputs + long(i) * dim, long(info.n_layers) * dim, ws_.y, step_);
    run(add_norm(result, ws_.y, layer.token_input->norm, result, rows_, info, layer.scale), step_.stream);
  }

  const Model& model_;
  const NetworkPart& part_;
  const Append& append_;
  const Workspace& ws_;
  const Taps* taps_;
  int rows_;
  size_t n_tapped_;
  float* x_;  // the residual stream
  Step step_;
};

namespace {

void check_interrupted(const Append& append) {
  if (append.interrupted != nullptr && (*append.interrupted)()) fail(ErrorCode::kCancelled, "cancelled by the caller");
}

}  // namespace

Model::PartPass::PartPass(const Model& model, const NetworkPart& part, const Append& append, const Workspace& ws,
                          Activations activations, Stream& stream, const Taps* taps, std::function<void()> receive)
    : append_(append),
      receive_(std::move(receive)),
      loop_(std::make_unique<LayerLoop>(model, part, append_, ws, activations, stream, taps)),
      first_(part.layers.first),
      next_(first_),
      end_(std::min(part.layers.end, model.info_.n_layers)) {
  loop_->begin();
}

Model::PartPass::~PartPass() = default;

void Model::PartPass::run_layer() {
  check_interrupted(append_);
  if (next_ == first_ && receive_) receive_();
  loop_->run_layer(next_++);
  if (next_ == end_) loop_->end();
}

void Model::forward(std::span<const RankPass> ranks, Activations activations, const Taps* taps) {
  static constexpr NetworkPart kWhole{};
  std::array<std::optional<LayerLoop>, kMaxRanks> slots;
  const auto loops = std::span(slots).first(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RankPass& rank = ranks[i];
    loops[i].emplace(*rank.model, kWhole, *rank.append, *rank.workspace, activations, *rank.stream,
                     &rank == &ranks.back() ? taps : nullptr);
  }
  for (auto& loop : loops) loop->begin();
  for (int i = 0; i < ranks[0].model->info_.n_layers; ++i) {
    check_interrupted(*ranks[0].append);
    for (auto& loop : loops) loop->run_layer(i);
  }
  for (auto& loop : loops) loop->end();
}

void Model::run_layer(int i, const LayerRows& rows, const SparseBlocks* sparse, SequenceState& state,
                      const Workspace& ws, Activations activations, Stream& stream) const {
  const Layer& layer = weights_.layers[i];
  const RmsNorm in = norm(rows.x, layer.mixer_norm, ws.y, rows.n, info_);
  const Segment segment{0, rows.n, {}, state.n_past(), &state};
  const Step step{
      rows.n, {&segment, 1}, ws.cos, ws.sin, activations, ws.scratch, stream, sparse, {ws.second_cos, ws.second_sin}};
  if (has_attention(i)) make_angles(0, rows.positions, rows.n, ws, stream);
  std::visit([&](const auto& mixer) { mixer.forward(rows.state_layer, in, rows.x, rows.x, step); }, layer.mixer);
  const RmsNorm ffn_in = norm(rows.x, layer.ffn_norm, ws.y, rows.n, info_);
  std::visit([&](const auto& ffn) { ffn.forward(ffn_in, rows.x, rows.x, step); }, layer.ffn);
}

void Model::score_layer(int i, const LayerRows& rows, const ScoredRows& scored, SequenceState& state,
                        const Workspace& ws, Activations activations, Stream& stream) const {
  const Layer& layer = weights_.layers[i];
  const Segment segment{0, rows.n, {}, state.n_past(), &state};
  const Step step{rows.n, {&segment, 1}, ws.cos, ws.sin, activations, ws.scratch, stream};
  std::get<AttentionBlock>(layer.mixer)
      .score(rows.state_layer, norm(rows.x, layer.mixer_norm, ws.y, rows.n, info_), scored, step);
}

void Model::embed(const int32_t* tokens, int rows, float* x, Stream& stream) const {
  embed_from(weights_.embedding, tokens, rows, x, stream);
}

void Model::embed_drafts(const int32_t* tokens, int rows, float* x, Stream& stream) const {
  embed_from(draft_embedding_, tokens, rows, x, stream);
}

void Model::embed_from(const Matrix& table, const int32_t* tokens, int rows, float* x, Stream& stream) const {
  LB_ASSERT(stream.reads(table.layout));
  run(Embed{table.data, table.type, tokens, x, rows, info_.hidden, info_.vocab, info_.embedding_scale}, stream);
}

// (scale table[token] + norm(projection x)) / sqrt(2). The projection's factor 1 / sqrt(hidden) only changes the eps.
void Model::embed_inputs(const int32_t* tokens, int rows, const Workspace& ws, Activations activations,
                         Stream& stream) const {
  const TokenInputs& inputs = weights_.token_inputs;
  const int n = info_.n_layers * inputs.dim;
  run(Embed{inputs.table.data, inputs.table.type, tokens, ws.token_inputs, rows, n, inputs.table.n_out,
            std::sqrt(float(inputs.dim))},
      stream);
  run(LinearGroup{{product(inputs.projection, ws.x, ws.projected, rows, activations, stream)}, 1}, stream);
  run(AddNorm{ws.token_inputs, ws.projected, inputs.norm, ws.token_inputs, rows * info_.n_layers, inputs.dim,
              info_.eps * info_.hidden, std::sqrt(0.5f)},
      stream);
}

void Model::head(const float* hidden, int rows, float* logits, Activations activations, Stream& stream) const {
  if (!is_slice()) {
    run(product(weights_.head, hidden, logits, rows, activations, stream), stream);
  } else {
    for (int first = 0; first < rows; first += kGatherRows) {
      const int n = std::min(rows - first, kGatherRows);
      run(product(weights_.head, hidden + size_t(first) * info_.hidden, own_logits_, n, activations, stream), stream);
      AllGather gather{
          .x = own_logits_, .y = logits + size_t(first) * info_.vocab, .rows = n, .widths = {}, .ranks = ranks_};
      std::ranges::copy(vocab_shares_, gather.widths);
      run(gather, stream);
    }
  }
  if (info_.logit_cap > 0) run(SoftCap{logits, rows, info_.vocab, info_.logit_cap}, stream);
}

}  // namespace lb
