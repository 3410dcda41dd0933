// The model of one rank: whole heads of the mixers, a part of every feed-forward network, rows of the head. Norms,
// routers and the embedding are on every rank. Matrices get pieces of the file's matrix, which the loader gathers;
// vectors that are divided are copied.
#include <algorithm>
#include <numeric>

#include "base/dtype.h"
#include "base/error.h"
#include "models/model.h"

namespace lb {
namespace {

using Ranges = std::vector<SplitRange>;

int count_of(const Ranges& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), 0,
                         [](int n, const SplitRange& range) { return n + range.count; });
}

Ranges whole(int n) { return {{0, n}}; }

class Slicer {
 public:
  Slicer(int rank, std::span<const int> shares) : rank_(rank), n_(int(shares.size())), shares_(shares) {}

  HostCopies take_copies() { return std::move(copies_); }

  Matrix pieces(const Matrix& m, Ranges rows, Ranges columns) const {
    const int block = static_cast<int>(info(m.block_type).block_values);
    for (const SplitRange& range : columns)
      LB_CHECK(range.first % block == 0 && range.count % block == 0, kUnsupported, m.name, " [", m.n_out, ", ", m.n_in,
               "]: ", n_, " ranks would get columns ", range.first, " to ", range.first + range.count,
               ", which are no whole blocks of ", block, " values (", info(m.block_type).name,
               "). Use fewer devices, or split = layer");
    Matrix own = m;
    own.n_out = count_of(rows);
    own.n_in = count_of(columns);
    own.pieces = std::make_shared<MatrixPieces>(MatrixPieces{m.n_in, std::move(rows), std::move(columns)});
    return own;
  }
  Ranges ranges(const Split& split, const Matrix& m) const {
    try {
      return shard_of(split, m.n_out, m.n_in, rank_, shares_);
    } catch (const Error& error) {
      fail(error.code(), m.name, ": ", error.what(), ". Use another number of devices, or split = layer");
    }
  }
  // As the matrix's manifest divides it.
  Matrix pieces(const Matrix& m) const {
    const bool by_rows = m.split.axis == Split::Axis::kRows;
    return pieces(m, by_rows ? ranges(m.split, m) : whole(m.n_out), by_rows ? whole(m.n_in) : ranges(m.split, m));
  }

  // Rows of an array [rows, width].
  const float* rows(const float* from, const Ranges& ranges, int width = 1) {
    if (from == nullptr) return nullptr;
    const size_t n = size_t(count_of(ranges)) * width;
    float* to = copies_.vectors.emplace_back(new float[n]).get();
    copies_.vector_bytes += n * sizeof(float);
    for (float* at = to; const SplitRange& range : ranges)
      at = std::copy_n(from + size_t(range.first) * width, size_t(range.count) * width, at);
    return to;
  }

  AttentionBlock slice(const AttentionBlock& block) {
    AttentionBlock own = block;
    own.q = pieces(block.q), own.k = pieces(block.k), own.v = pieces(block.v), own.o = pieces(block.o);
    own.n_heads = own.o.n_in / block.head_dim;
    own.n_kv_heads = own.k.n_out / block.head_dim;
    own.q_bias = rows(block.q_bias, own.q.pieces->rows);
    own.k_bias = rows(block.k_bias, own.k.pieces->rows);
    own.v_bias = rows(block.v_bias, own.v.pieces->rows);
    if (block.sinks != nullptr) {
      Ranges heads = own.o.pieces->columns;
      for (SplitRange& range : heads) range = {range.first / block.head_dim, range.count / block.head_dim};
      own.sinks = rows(block.sinks, heads);
    }
    return own;
  }

  DeltaNetBlock slice(const DeltaNetBlock& block) {
    DeltaNetBlock own = block;
    own.qkv = pieces(block.qkv), own.z = pieces(block.z), own.out = pieces(block.out);
    own.beta = pieces(block.beta), own.alpha = pieces(block.alpha);
    const Ranges& values = own.beta.pieces->rows;
    own.dims.n_v_heads = own.beta.n_out;
    own.dims.n_k_heads = own.beta.n_out / (block.dims.n_v_heads / block.dims.n_k_heads);
    LB_ASSERT(own.dims.channels() == own.qkv.n_out);
    own.conv = rows(block.conv, own.qkv.pieces->rows, block.dims.n_taps);
    own.a_neg = rows(block.a_neg, values);
    own.dt_bias = rows(block.dt_bias, values);
    return own;
  }

  // This rank's part of the inner dimension of a feed-forward network, in whole blocks of the down matrix.
  SplitRange inner(const Matrix& down) const {
    const int unit = std::max<int>(Split::kBlock, static_cast<int>(info(down.block_type).block_values));
    const int n_units = down.n_in / unit;
    LB_CHECK(n_units >= n_ && down.n_in % unit == 0, kUnsupported, down.name, " [", down.n_out, ", ", down.n_in,
             "]: ", n_, " ranks cannot divide ", down.n_in, " columns in blocks of ", unit, " values (",
             info(down.block_type).name, "). Use fewer devices, or split = layer");
    const Split split{Split::Axis::kColumns, {{n_units, 1, unit}}};
    return shard_of(split, down.n_out, down.n_in, rank_, shares_).front();
  }

  SwiGluMlp slice(const SwiGluMlp& mlp) {
    const SplitRange own = inner(mlp.down);
    return {.gate = pieces(mlp.gate, {own}, whole(mlp.gate.n_in)),
            .up = pieces(mlp.up, {own}, whole(mlp.up.n_in)),
            .down = pieces(mlp.down, whole(mlp.down.n_out), {own}),
            .is_gelu = mlp.is_gelu};
  }

  // A part of every expert.
  MoeBlock slice(const MoeBlock& block) {
    MoeBlock own = block;
    const SplitRange inner_range = inner(block.down);
    const int n = block.sizes.n, ffn = block.sizes.ffn;
    const auto of_experts = [&](const Matrix& m) {
      Ranges all;
      for (int first = 0; first < m.n_out; first += ffn) all.push_back({first + inner_range.first, inner_range.count});
      return pieces(m, std::move(all), whole(m.n_in));
    };
    own.gate = of_experts(block.gate);  // joined with up: ffn rows of each by turns
    if (block.up.data != nullptr) own.up = of_experts(block.up);
    own.down = pieces(block.down, whole(block.down.n_out), {inner_range});
    own.sizes.ffn = inner_range.count;
    if (block.has_shared()) {
      own.shared = slice(block.shared);
      own.sizes.shared = own.shared.gate.n_out;
    }
    Ranges biases;
    for (int e = 0; e < n; ++e) biases.push_back({e * ffn + inner_range.first, inner_range.count});
    own.biases.gate = rows(block.biases.gate, biases);
    own.biases.up = rows(block.biases.up, biases);
    if (rank_ > 0) own.biases.down = nullptr;  // one rank adds it to the sum
    return own;
  }

  DenseAndExperts slice(const DenseAndExperts& block) {
    DenseAndExperts own = block;
    own.dense = slice(block.dense), own.experts = slice(block.experts);
    return own;
  }

 private:
  int rank_, n_;
  std::span<const int> shares_;  // [ranks]
  HostCopies copies_;
};

}  // namespace

std::unique_ptr<Model> Model::slice(int rank, std::span<const int> shares) const {
  LB_ASSERT(is_divisible());
  const int n = static_cast<int>(shares.size());
  Slicer slicer(rank, shares);
  Weights own;
  own.embedding = weights_.embedding;
  const Matrix& head = info_.tied ? weights_.embedding : weights_.head;
  const Split vocab = Split::rows(head.n_out);
  LB_CHECK(vocab.sections[0].groups >= n, kUnsupported, head.name, ": ", n, " ranks cannot divide ", head.n_out,
           " rows in blocks of ", Split::kBlock, ". Use fewer devices, or split = layer");
  own.head = slicer.pieces(head, slicer.ranges(vocab, head), whole(head.n_in));
  own.final_norm = weights_.final_norm;
  own.rope = weights_.rope, own.second_rope = weights_.second_rope;
  ModelInfo info = info_;
  info.tied = false;  // the head has some of the embedding's rows
  for (const Layer& layer : weights_.layers) {
    Layer& mine = own.layers.emplace_back();
    mine.mixer_norm = layer.mixer_norm, mine.ffn_norm = layer.ffn_norm;
    mine.mixer_post_norm = layer.mixer_post_norm, mine.ffn_post_norm = layer.ffn_post_norm;
    mine.scale = layer.scale;
    std::visit([&](const auto& mixer) { mine.mixer = slicer.slice(mixer); }, layer.mixer);
    std::visit([&](const auto& ffn) { mine.ffn = slicer.slice(ffn); }, layer.ffn);
    if (const auto* attention = std::get_if<AttentionBlock>(&mine.mixer))
      info.n_heads = attention->n_heads, info.n_kv_heads = attention->n_kv_heads;
    if (const SwiGluMlp* mlp = find_mlp(mine.ffn)) info.ffn = mlp->gate.n_out;
    if (const MoeBlock* moe = find_experts(mine.ffn)) info.experts = moe->sizes;
  }
  own.copies = slicer.take_copies();
  auto model = std::make_unique<Model>(std::move(info), std::move(own));
  model->rank_ = model->ranks_.rank = rank;
  model->ranks_.n = n;
  for (int each = 0; each < n; ++each)
    model->vocab_shares_.push_back(count_of(shard_of(vocab, head.n_out, head.n_in, each, shares)));
  return model;
}

}  // namespace lb
