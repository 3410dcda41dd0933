// The forward pass of all families.
#include "models/model.h"

#include <algorithm>
#include <cmath>

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

void Model::set_context(int tokens) {
  RopeAngles& rope = weights_.rope;
  if (!rope.long_inv_freq.empty() && tokens > rope.long_from)
    std::ranges::copy(rope.long_inv_freq, rope.inv_freq.begin());  // in place: tables point to them
}

size_t Model::bytes_per_token() const {
  size_t bytes = weight_bytes() - (info_.tied ? 0 : weights_.embedding.bytes()) - weights_.token_inputs.table.bytes();
  for (const Layer& layer : weights_.layers)
    if (const auto* moe = std::get_if<MoeBlock>(&layer.ffn)) bytes -= moe->unused_bytes();
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

void Model::forward(const NetworkPart& part, const Append& append, const Workspace& ws, Activations activations,
                    Stream& stream, const Taps* taps, const std::function<void()>& receive) const {
  const int rows = static_cast<int>(append.tokens.size());
  const size_t row_values = static_cast<size_t>(rows) * info_.hidden;
  const int first = part.layers.first, end = std::min(part.layers.end, info_.n_layers);
  size_t n_tapped = taps == nullptr ? 0 : std::ranges::lower_bound(taps->layers, first) - taps->layers.begin();
  const auto tap = [&](int i, const float* from) {
    if (taps == nullptr || n_tapped == taps->layers.size() || taps->layers[n_tapped] != i) return;
    stream.download(taps->out + n_tapped++ * row_values, from, row_values * sizeof(float));
  };
  float* x = ws.x;  // the residual stream
  // x += ffn(in.y), and copies of x where the layer is tapped. A single tapped row needs no copy: the layer computes it
  // directly at the destination, from which the next layer reads it and writes to ws.x again.
  const auto run_ffn = [&](int i, const RmsNorm& in, const Step& step) {
    const auto [layers, to] = append.outputs;
    const auto copy_of = [&](auto tapped) { return to + (tapped - layers.begin()) * info_.hidden; };
    const auto first_copy = std::ranges::find(layers, i);
    float* const result = rows == 1 && first_copy != layers.end() ? copy_of(first_copy) : x;
    const Layer& layer = weights_.layers[i];
    if (layer.ffn_post_norm == nullptr) {
      std::visit([&](const auto& ffn) { ffn.forward(in, x, result, step); }, layer.ffn);
    } else {
      std::visit([&](const auto& ffn) { ffn.forward(in, nullptr, ws.y, step); }, layer.ffn);
      run(add_norm(x, ws.y, layer.ffn_post_norm, result, rows, info_, layer.token_input ? 1 : layer.scale), stream);
    }
    if (layer.token_input) {
      const int dim = weights_.token_inputs.dim;
      layer.token_input->forward(result, ws.token_inputs + long(i) * dim, long(info_.n_layers) * dim, ws.y, step);
      run(add_norm(result, ws.y, layer.token_input->norm, result, rows, info_, layer.scale), stream);
    }
    x = result;
    for (auto tapped = first_copy; tapped != layers.end(); tapped = std::find(tapped + 1, layers.end(), i))
      if (copy_of(tapped) != x)
        run(CopyRows{.x = x,
                     .y = copy_of(tapped),
                     .rows = rows,
                     .dim = info_.hidden,
                     .y_rows = rows,
                     .y_stride = static_cast<long>(layers.size()) * info_.hidden},
            stream);
  };

  make_angles(part.rank, append.positions.data(), rows, ws, stream);
  if (part.is_first()) {
    embed(append.tokens.data(), rows, x, stream);
    for (const GivenRows& given : append.given)
      stream.upload(x + size_t(given.first) * info_.hidden, given.from, sizeof(float) * given.n * info_.hidden);
    if (weights_.token_inputs.dim > 0) embed_inputs(append.tokens.data(), rows, ws, activations, stream);
  }
  const Step step{rows,   append.segments, ws.cos,
                  ws.sin, activations,     ws.scratch,
                  stream, append.sparse,   {ws.second_cos, ws.second_sin}};
  for (int i = first; i < end; ++i) {
    if (append.interrupted != nullptr && (*append.interrupted)())
      fail(ErrorCode::kCancelled, "cancelled by the caller");
    if (i == first && receive) receive();
    tap(i, x);
    const Layer& layer = weights_.layers[i];
    const RmsNorm in = norm(x, layer.mixer_norm, ws.y, rows, info_);
    if (layer.mixer_post_norm == nullptr) {
      std::visit([&](const auto& mixer) { mixer.forward(i, in, x, ws.x, step); }, layer.mixer);
    } else {
      std::visit([&](const auto& mixer) { mixer.forward(i, in, nullptr, ws.y, step); }, layer.mixer);
      run(add_norm(x, ws.y, layer.mixer_post_norm, ws.x, rows, info_, 1), stream);
    }
    x = ws.x;
    run_ffn(i, norm(x, layer.ffn_norm, ws.y, rows, info_), step);
  }
  if (!part.is_last()) return;
  run(norm(x, weights_.final_norm, ws.y, rows, info_), stream);
  tap(info_.n_layers, ws.y);
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
  const Matrix& table = weights_.embedding;
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
  run(product(weights_.head, hidden, logits, rows, activations, stream), stream);
  if (info_.logit_cap > 0) run(SoftCap{logits, rows, info_.vocab, info_.logit_cap}, stream);
}

}  // namespace lb
