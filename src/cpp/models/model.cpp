// The forward pass of all families.
#include "models/model.h"

#include <algorithm>

#include "base/error.h"
#include "ops/copy_rows.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace lb {
namespace {

RmsNorm norm(const float* x, const float* w, float* y, int rows, const ModelInfo& info) {
  return {x, w, y, rows, 1, info.hidden, info.hidden, info.hidden, info.eps};
}

}  // namespace

Model::Model(ModelInfo info, Weights weights)
    : info_(std::move(info)), weights_(std::move(weights)), rope_{RopeTables(weights_.rope)} {
  std::vector<LayerShape> shapes;
  for (const Layer& layer : weights_.layers)
    std::visit([&](const auto& mixer) { shapes.emplace_back(mixer.shape()); }, layer.mixer);
  finish(std::move(shapes), {info_.n_heads, info_.n_kv_heads, info_.head_dim}, std::move(weights_.copies),
         expert_products_of(info_));
}

size_t Model::bytes_per_token() const {
  size_t bytes = weight_bytes() - (info_.tied ? 0 : weights_.embedding.bytes());
  for (const Layer& layer : weights_.layers)
    if (const auto* moe = std::get_if<MoeBlock>(&layer.ffn)) bytes -= moe->unused_bytes();
  return bytes;
}

void Model::for_each_group(const GroupVisitor& group) const {
  for (const Layer& layer : weights_.layers) {
    std::visit([&](const auto& mixer) { mixer.groups(group); }, layer.mixer);
    std::visit([&](const auto& ffn) { ffn.groups(group); }, layer.ffn);
  }
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
  for (int i = 0; i < info_.n_layers; ++i) {
    if (!part.layers.has(i)) continue;
    Layer& layer = weights_.layers[i];
    visitor(layer.mixer_norm, info_.hidden), visitor(layer.ffn_norm, info_.hidden);
    std::visit([&](auto& mixer) { mixer.visit(visitor.matrix, visitor); }, layer.mixer);
    std::visit([&](auto& ffn) { ffn.visit(visitor.matrix, visitor); }, layer.ffn);
  }
  if (!part.is_last()) {
    const float* const norm = part.layers.end < info_.n_layers ? weights_.layers[part.layers.end].mixer_norm : nullptr;
    const float* moved = norm;
    visitor(moved, info_.hidden);
    next_norms_.resize(std::max<size_t>(next_norms_.size(), part.n));
    if (moved != norm) next_norms_[part.rank] = moved;
  }
  rope_.resize(std::max<size_t>(rope_.size(), part.n), RopeTables(weights_.rope));
  rope_[part.rank].visit(visitor);
}

Workspace Model::carve(Carver& carver, int rows) const {
  Workspace ws;
  const size_t n = rows;
  ws.x = carver.take<float>(n * info_.hidden);
  ws.y = carver.take<float>(n * info_.hidden);
  ws.cos = carver.take<float>(n * info_.n_rot / 2);
  ws.sin = carver.take<float>(n * info_.n_rot / 2);
  ws.partial = is_slice() ? carver.take<float>(n * info_.hidden) : nullptr;
  ws.scratch = carver;
  return ws;
}

size_t Model::workspace_bytes(int rows) const {
  Carver fixed;
  carve(fixed, rows);
  size_t blocks = 0;
  for (const Layer& layer : weights_.layers) {
    Carver mixer_scratch, ffn_scratch;
    std::visit([&](const auto& mixer) { mixer.carve(mixer_scratch, rows); }, layer.mixer);
    std::visit([&](const auto& ffn) { ffn.carve(ffn_scratch, rows); }, layer.ffn);
    blocks = std::max({blocks, mixer_scratch.used(), ffn_scratch.used()});
  }
  return fixed.used() + blocks;
}

Workspace Model::workspace(Carver carver, int rows) const { return carve(carver, rows); }

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
        step_{rows_,  append.segments, ws.cos,
              ws.sin, activations,     ws.scratch,
              stream, append.sparse,   {model.is_slice() ? &model.ranks_ : nullptr, ws.partial}} {}

  void begin() {
    const ModelInfo& info = model_.info_;
    run(model_.rope_[part_.rank].table(append_.positions.data(), rows_, ws_.cos, ws_.sin), step_.stream);
    if (!part_.is_first()) return;
    model_.embed(append_.tokens.data(), rows_, x_, step_.stream);
    for (const GivenRows& given : append_.given)
      step_.stream.upload(x_ + size_t(given.first) * info.hidden, given.from, sizeof(float) * given.n * info.hidden);
  }

  void run_layer(int i) {
    tap(i, x_);
    const Layer& layer = model_.weights_.layers[i];
    const RmsNorm in = norm(x_, layer.mixer_norm, ws_.y, rows_, model_.info_);
    std::visit([&](const auto& mixer) { mixer.forward(i, in, x_, ws_.x, step_); }, layer.mixer);
    x_ = ws_.x;
    run_ffn(i, norm(x_, layer.ffn_norm, ws_.y, rows_, model_.info_));
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
  // directly at the destination, from which the next layer reads it and writes to ws.x again.
  void run_ffn(int i, const RmsNorm& in) {
    const auto [layers, to] = append_.outputs;
    const int hidden = model_.info_.hidden;
    const auto copy_of = [&](auto tapped) { return to + (tapped - layers.begin()) * hidden; };
    const auto first_copy = std::ranges::find(layers, i);
    float* const result = rows_ == 1 && first_copy != layers.end() ? copy_of(first_copy) : x_;
    std::visit([&](const auto& ffn) { ffn.forward(in, x_, result, step_); }, model_.weights_.layers[i].ffn);
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

void Model::forward(const NetworkPart& part, const Append& append, const Workspace& ws, Activations activations,
                    Stream& stream, const Taps* taps, const std::function<void()>& receive) const {
  LayerLoop loop(*this, part, append, ws, activations, stream, taps);
  loop.begin();
  for (int i = part.layers.first; i < std::min(part.layers.end, info_.n_layers); ++i) {
    check_interrupted(append);
    if (i == part.layers.first && receive) receive();
    loop.run_layer(i);
  }
  loop.end();
}

void Model::forward(std::span<const RankPass> ranks, Activations activations, const Taps* taps) {
  static constexpr NetworkPart kWhole{};
  std::vector<LayerLoop> loops;
  for (const RankPass& rank : ranks)
    loops.emplace_back(*rank.model, kWhole, *rank.append, *rank.workspace, activations, *rank.stream,
                       &rank == &ranks.back() ? taps : nullptr);
  for (LayerLoop& loop : loops) loop.begin();
  for (int i = 0; i < ranks[0].model->info_.n_layers; ++i) {
    check_interrupted(*ranks[0].append);
    for (LayerLoop& loop : loops) loop.run_layer(i);
  }
  for (LayerLoop& loop : loops) loop.end();
}

void Model::run_layer(int i, const LayerRows& rows, const SparseBlocks* sparse, SequenceState& state,
                      const Workspace& ws, Activations activations, Stream& stream) const {
  const Layer& layer = weights_.layers[i];
  const RmsNorm in = norm(rows.x, layer.mixer_norm, ws.y, rows.n, info_);
  const Segment segment{0, rows.n, {}, state.n_past(), &state};
  const Step step{rows.n, {&segment, 1}, ws.cos, ws.sin, activations, ws.scratch, stream, sparse};
  if (has_attention(i)) run(rope_[0].table(rows.positions, rows.n, ws.cos, ws.sin), stream);
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
  run(Embed{table.data, table.type, tokens, x, rows, info_.hidden, info_.vocab}, stream);
}

void Model::head(const float* hidden, int rows, float* logits, Activations activations, Stream& stream) const {
  if (!is_slice()) return run(product(weights_.head, hidden, logits, rows, activations, stream), stream);
  for (int first = 0; first < rows; first += kGatherRows) {
    const int n = std::min(rows - first, kGatherRows);
    run(product(weights_.head, hidden + size_t(first) * info_.hidden, own_logits_, n, activations, stream), stream);
    AllGather gather{
        .x = own_logits_, .y = logits + size_t(first) * info_.vocab, .rows = n, .widths = {}, .ranks = ranks_};
    std::ranges::copy(vocab_shares_, gather.widths);
    run(gather, stream);
  }
}

}  // namespace lb
