// Records ops: the ops of a forward pass become nodes, each in the earliest phase that its reads and writes allow.
#include <algorithm>
#include <bit>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/delta_net/shape.h"
#include "gpu/megakernel/schedule/geometry.h"
#include "gpu/megakernel/schedule/schedule.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

// Whether all readers multiply x rounded to 8 bits.
bool are_rounded(const LinearGroup& readers) {
  return std::ranges::none_of(std::span(readers.products, readers.n),
                              [](const Linear& reader) { return is_plain(reader.type); });
}

// K and V of one 16-bit or 32-bit type are copied; others are converted.
PackedKv packed_kv(const KvLayer& cache, const Target& target) {
  if (cache.k_type == cache.v_type && cache.k_type <= KvType::kBF16) return {};
  const int dim = cache.head_dim, rotated = rotated_group(dim);
  PackedKv kv = {.k = kv_row_bytes(cache.k_type, dim),
                 .v = kv_row_bytes(cache.v_type, dim),
                 .stages = 1,
                 .k_rotated = is_rotated(cache.k_type) ? rotated : 0,
                 .v_rotated = is_rotated(cache.v_type) ? rotated : 0};
  if (!target.capabilities.async_copy) return kv;
  const size_t two_of_q8_0 = size_t{2} * kSplitTile * 2 * kv_slot_bytes(KvType::kQ8_0, dim);
  kv.stages = 4 * packed_tile_bytes(kv) <= two_of_q8_0 ? 4 : 2;
  return kv;
}

// As many splits as a head's query tile has blocks, rounded down to a power of two, so that each block gets one unit.
// In the merge, a thread handles one split.
SplitTask split_task(const Attention& op, const AttentionPrepare& prepare, const Target& target) {
  const KvLayer& cache = op.cache;
  const int group = op.n_heads / cache.n_kv_heads, tiles = parts_of(group, kSplitQueries);
  const int n_splits = std::bit_floor(unsigned(std::clamp(target.n_sms / cache.n_kv_heads / tiles, 1, kSplitMaxCount)));
  const int quads = std::min<int>(kMegaThreads / n_splits, 32), head_units = parts_of(cache.head_dim, 4 * quads);
  const PackedKv packed = packed_kv(cache, target);
  return {.prepare = prepare,
          .op = op,
          .group = group,
          .query_tiles = tiles,
          .tile_queries = parts_of(group, tiles),
          .splits_shift = std::countr_zero(unsigned(n_splits)),
          .slot_mask = packed.stages > 0 ? kSplitTile - 1 : 0,
          .n_units = cache.n_kv_heads * tiles * n_splits,
          .n_merge_units = op.n_heads * head_units,
          .head_units = head_units,
          .quads_shift = std::countr_zero(unsigned(quads)),
          .query_tiles_step = division_step(tiles),
          .chunks_step = division_step(cache.head_dim / 64),
          .head_units_step = division_step(head_units),
          .u_mailbox = {},
          .k_mailbox = {},
          .v_mailbox = {},
          .gate_mailbox = {},
          .split_mailbox = {},
          .gate_at = 0,
          .y_mailbox = -1,
          .packed = packed};
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

std::unique_ptr<Memory> Schedule::reserve(size_t bytes) {
  auto* const at = reinterpret_cast<std::byte*>(next_address_);
  next_address_ += (bytes + 255) / 256 * 256;
  return std::make_unique<Memory>(at, bytes);
}

void Schedule::refuse(const char* what) { fail(ErrorCode::kUnsupported, "[megakernel] has no task for ", what); }

template <class Op>
std::vector<Schedule::Range> Schedule::ranges(const Op& op, Access access) {
  std::vector<Range> result;
  for_each_operand(op, [&](const Operand& operand) {
    if (operand.access == access) result.push_back({operand.data, operand.bytes});
  });
  return result;
}

bool Schedule::overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
  for (const Range& x : a)
    for (const Range& y : b) {
      const auto *first = static_cast<const std::byte*>(x.begin), *second = static_cast<const std::byte*>(y.begin);
      if (first < second + y.bytes && second < first + x.bytes) return true;
    }
  return false;
}

bool Schedule::conflict(const Node& before, const Node& after) {
  return overlap(after.reads, before.writes) || overlap(after.writes, before.reads) ||
         overlap(after.writes, before.writes);
}

void Schedule::add(Node node) {
  LB_ASSERT(!norm_ && !inputs_ && !prepare_);
  for (const Node& before : nodes_)
    if (conflict(before, node)) node.phase = std::max(node.phase, before.phase + 1);
  nodes_.push_back(std::move(node));
}

void Schedule::run(const Embed& op) {
  require(op.rows == 1, "takes one row at a time");
  add({.task = {.kind = TaskKind::kEmbed, .embed = {op, -1}},
       .reads = ranges(op, Access::kIn),
       .writes = ranges(op, Access::kOut),
       .bytes = op.dim * 8.0,
       .min_parts = 1,
       .max_parts = parts_of(op.dim, kMegaThreads)});
}

void Schedule::run(const RopeTable& op) {
  require(op.rows == 1, "takes one row at a time");
  add({.task = {.kind = TaskKind::kRopeTable, .rope = op},
       .reads = ranges(op, Access::kIn),
       .writes = ranges(op, Access::kOut),
       .bytes = 1,
       .min_parts = 1,
       .max_parts = parts_of(op.n_pairs, kMegaThreads),
       .phase = 1});  // runs concurrently with the first products, which do not need it
}

void Schedule::run(const RmsNorm& op) {
  LB_ASSERT(!norm_);
  norm_ = op;
}

void Schedule::run(const LinearGroup& group) {
  if (norm_) {
    const RmsNorm norm = *norm_;
    norm_.reset();
    require(norm.y == group.products[0].x, "has no task for a norm that no product reads");
    return run_fused(norm, group);
  }
  const Linear& first = group.products[0];
  products(group, {.a = first.x, .w = nullptr, .up = nullptr, .from = XFrom::kPlain},
           {{first.x, size_t(first.n_in) * 4}});
}

void Schedule::run_fused(const RmsNorm& op, const LinearGroup& readers) {
  require(op.rows == 1 && op.heads == 1, "takes norms of one whole row");
  products(readers,
           {.a = op.x, .w = op.w, .up = nullptr, .from = XFrom::kRms, .eps = op.eps, .mean_of = 1.0f / float(op.dim)},
           {{op.x, size_t(op.dim) * 4}});
}

// Fuses the norm into the recurrence's step, which gates its o. The step also quantises o if the readers want codes and
// a block computes whole scale blocks.
void Schedule::run_fused(const GatedRmsNorm& op, const LinearGroup& readers) {
  require(op.rows == 1 && op.dim % 32 == 0 && op.dim <= 128, "takes gated norms of one row of heads of 32 to 128");
  const int step = writer_of(op.o, static_cast<int>(nodes_.size()));
  require(step >= 0 && nodes_[step].task.kind == TaskKind::kDeltaStep, "takes gated norms of a recurrence");
  Node& node = nodes_[step];
  DeltaTask& delta = node.task.delta;
  LB_ASSERT(delta.step.o == op.o && delta.step.dv == op.dim && delta.step.n_v_heads == op.heads);
  const int gates = writer_of(op.z, step);
  require(gates >= 0 && nodes_[gates].phase < node.phase, "takes gates that were made before the recurrence");
  const size_t bytes = size_t(op.heads) * op.dim * 4;
  node.reads.push_back({op.z, bytes});
  delta.z = op.z;
  delta.norm_w = op.w;
  const bool is_in_codes = are_rounded(readers) && (kMegaThreads / 32 >> delta.team_shift) % 2 == 0;
  if (is_in_codes) {
    delta.unit_shift = 1;
    delta.n_units /= 2;
    node.max_parts = delta.n_units;
  }
  products(readers,
           {.a = op.o,
            .w = nullptr,
            .up = nullptr,
            .from = is_in_codes ? XFrom::kHeadsCodes : XFrom::kHeads,
            .heads = op.heads,
            .head_dim = op.dim,
            .head_squares = op.dim / (kStepColumns << delta.unit_shift),
            .head_scales_step = division_step(op.dim / kRoundBlock),
            .eps = op.eps,
            .mean_of = 1.0f / float(op.dim)},
           {{op.o, bytes}});
}

// Fuses the activation into the products of gate and up: one task computes a row of each and the activation of both.
void Schedule::run_fused(const SwiGlu& op, const LinearGroup& readers) {
  const int n = static_cast<int>(nodes_.size()), gate = writer_of(op.gate, n), up = writer_of(op.up, n);
  const auto product = [&](int i) { return i < 0 ? nullptr : &nodes_[i].task.product; };
  const auto share_x = [](const ProductTask& a, const ProductTask& b) {
    return a.op.type == b.op.type && a.op.n_out == b.op.n_out && a.a == b.a && a.w == b.w && a.from == b.from &&
           a.op.add == nullptr && b.op.add == nullptr;
  };
  require(gate >= 0 && up == gate + 1 && up + 1 == n && nodes_[gate].task.kind == TaskKind::kProduct &&
              nodes_[up].task.kind == TaskKind::kProduct && share_x(*product(gate), *product(up)),
          "takes a gated activation of two products of one x and type");
  Node& both = nodes_[gate];
  both.task.product.up = product(up)->op.w;
  plan_batches(both.task.product, parts_of(op.dim, target_.n_sms));
  both.task.product.op.y = product(up)->op.y;
  both.writes = {{op.up, size_t(op.dim) * 4}};
  both.bytes *= 2;
  nodes_.pop_back();
  const bool is_in_codes = are_rounded(readers) && rounds_own_rows(both.task.product, target_.n_sms);
  if (is_in_codes) {
    both.task.product.writes_codes = 1;
    both.task.product.row_unit = kRoundBlock;
    both.max_parts = op.dim / kRoundBlock;
  }
  products(readers, {.a = op.up, .w = nullptr, .up = nullptr, .from = is_in_codes ? XFrom::kCodes : XFrom::kPlain},
           {{op.up, size_t(op.dim) * 4}});
}

// Adds one node per product of the group; `from` says how the products derive their x.
void Schedule::products(const LinearGroup& group, const ProductTask& from, const std::vector<Range>& reads) {
  long n_out = 0;
  for (const Linear& op : std::span(group.products, group.n)) n_out += op.n_out;
  for (const Linear& op : std::span(group.products, group.n)) {
    require(op.rows == 1 && op.n_in % 4 == 0, "takes one row of a multiple of 4 values");
    require(!is_plain(op.type) || op.n_in % piece_values(op.type) == 0, "takes rows of whole pieces of 16 bytes");
    require(is_plain(op.type) || op.activations != Activations::kF32, "rounds x of quantised weights to 8 bits only");
    for (const void* p :
         {static_cast<const void*>(op.x), static_cast<const void*>(from.a), static_cast<const void*>(from.w)})
      require(is_aligned(p), "takes vectors at multiples of 16 bytes");
    quant::checked_plane_layout(op.type, op.n_out, op.n_in);
    ProductTask product = from;
    product.op = op;
    product.row_unit = 1;
    const int rows_each = parts_of(n_out, target_.n_sms);
    const Teams teams = teams_of(op, rows_each);
    product.row_threads = teams.row_threads;
    product.n_teams = teams.n;
    product.team_step = uint32_t((1 << 20) + product.row_threads - 1) / product.row_threads;
    plan_batches(product, rows_each);
    std::vector<Range> own_reads = reads;
    if (op.add != nullptr) own_reads.push_back({op.add, size_t(op.n_out) * 4});
    add({.task = {.kind = TaskKind::kProduct, .product = product},
         .reads = own_reads,
         .writes = {{op.y, size_t(op.n_out) * 4}},
         .bytes = double(row_bytes(op.type, size_t(op.n_in))) * op.n_out,
         .min_parts = 1,
         .max_parts = op.n_out});
  }
}

// Fuses the copy into the products that compute the row: they also store it in the ring.
void Schedule::run(const CopyRows& op) {
  require(op.rows == 1 && op.first != nullptr && std::has_single_bit(unsigned(op.y_rows)),
          "copies one row into a ring of 2^n rows only");
  int n_values = 0;
  for (Node& node : nodes_) {
    if (product_of(node.task) == nullptr) continue;
    ProductTask& p = *product_of(node.task);
    if (p.op.y < op.x || p.op.y >= op.x + op.dim) continue;
    node.kept = op.y + (p.op.y - op.x);
    p.kept_mask = uint32_t(op.y_rows - 1);
    p.kept_stride = uint32_t(op.y_stride);
    n_values += p.op.n_out;
  }
  require(n_values == op.dim, "copies rows that products make");
  n_kept_ = op.first;
}

void Schedule::run(const AttentionPrepare& op) {
  LB_ASSERT(!prepare_);
  prepare_ = op;
}

void Schedule::run(const Attention& op) {
  require(prepare_ && op.rows == 1 && op.q == prepare_->q, "takes one row of an attention");
  require(op.first_slot == 0 && op.window == 0, "takes no window of an attention");
  require(op.blocks == nullptr, "takes no blocks of an attention");
  require(op.sinks == nullptr, "takes no sinks of an attention");
  require(prepare_->k_bias == nullptr, "takes no biases of queries and keys");
  require(prepare_->k != nullptr && prepare_->v_norm == nullptr, "takes keys, and values without norm");
  require(prepare_->q_cos == nullptr, "takes no angles of queries alone");
  const AttentionPrepare prepare = *prepare_;
  prepare_.reset();
  const KvLayer& cache = op.cache;
  require(cache.head_dim <= kSplitMaxDim && cache.head_dim % 64 == 0, "takes heads of 64, 128, 192 or 256");
  const size_t dim = cache.head_dim, row = op.n_heads * dim, kv = cache.n_kv_heads * dim * 4;
  const SplitTask task = split_task(op, prepare, target_);
  const Range splits = {splits_->data(), 1};
  const size_t table = size_t(prepare.n_pairs) * 4;
  add({.task = {.kind = TaskKind::kAttentionSplits, .attention = task},
       .reads = {{prepare.u, (size_t(op.n_heads - 1) * prepare.u_head_stride + dim) * 4},
                 {prepare.k, kv},
                 {prepare.v, kv},
                 {prepare.cos, table},
                 {prepare.sin, table}},
       .writes = {splits, {cache.k, 1}, {cache.v, 1}},
       .bytes = 1,
       .min_parts = 1,
       .max_parts = task.n_units});
  std::vector<Range> reads = {splits};
  if (op.gate != nullptr) reads.push_back({op.gate, (size_t(op.n_heads - 1) * op.gate_head_stride + dim) * 4});
  add({.task = {.kind = TaskKind::kAttentionMerge, .attention = task},
       .reads = reads,
       .writes = {{op.o, row * 4}},
       .bytes = 1,
       .min_parts = 1,
       .max_parts = task.n_merge_units});
}

void Schedule::run(const DeltaInputs& op) {
  LB_ASSERT(!inputs_);
  inputs_ = op;
}

void Schedule::run(const GatedDelta& op) {
  require(inputs_ && op.rows == 1 && inputs_->conv.rows == 1 && op.q == inputs_->conv.y,
          "takes one row of a recurrence");
  const DeltaInputs inputs = *inputs_;
  inputs_.reset();
  const CausalConv& conv = inputs.conv;
  const int head_slices = op.dv / kStepColumns, team_warps = op.dk / 32;
  const DeltaTask delta = {
      .conv = conv,
      .prepare = inputs.prepare,
      .step = op,
      .z = nullptr,
      .norm_w = nullptr,
      .unit_shift = 0,
      .n_units = op.n_v_heads * head_slices,
      .slices_each = 0,
      .more = 0,
      .team_slices = 1,
      .team_shift = std::countr_zero(unsigned(std::max(team_warps, 1))),
      .head_slices_step = division_step(std::max(head_slices, 1)),
      .key_heads_step = division_step(op.order == HeadOrder::kGrouped ? op.n_v_heads / op.n_k_heads : op.n_k_heads)};
  require(conv.n_taps == kMegaTaps && conv.channels % 4 == 0 && conv.accepted.n != nullptr,
          "takes convolutions of 4 taps");
  require(std::has_single_bit(unsigned(team_warps)) && op.dk % 32 == 0 && op.dk <= 256 && op.dv % kStepColumns == 0,
          "takes keys of 32, 64, 128 or 256 and values of a multiple of 16");
  const size_t channels = size_t(conv.channels) * 4, heads = size_t(op.n_v_heads) * 4;
  const Range raw = {conv.x, channels}, history = {conv.history, channels * (conv.n_taps - 1)};
  const Range pending = {conv.pending, channels};
  add({.task = {.kind = TaskKind::kDeltaStep, .delta = delta},
       .reads = {raw, history, pending, {delta.prepare.g, heads}, {delta.prepare.beta, heads}},
       .writes = {{op.S, 1}, {op.delta, 1}, {op.o, size_t(op.n_v_heads) * op.dv * 4}},
       .bytes = 1,
       .min_parts = 1,
       .max_parts = op.n_v_heads * head_slices});
  const int parts = parts_of(conv.channels, 4 * kMegaThreads);
  add({.task = {.kind = TaskKind::kDeltaCommit, .delta = delta},
       .reads = {raw},
       .writes = {history, pending},
       .bytes = 1,
       .min_parts = parts,
       .max_parts = parts});
}

}  // namespace lb::gpu
