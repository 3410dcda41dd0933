// Recording, phases from hazards, and each block's list of steps.
#include "gpu/megakernel/schedule/schedule.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <map>
#include <span>
#include <sstream>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/delta_net/shape.h"
#include "gpu/megakernel/schedule/weight_chunks.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

int up_to(int n, int unit) { return (n + unit - 1) / unit * unit; }
int parts_of(long values, int each) { return static_cast<int>(std::max<long>(1, (values + each - 1) / each)); }

void require(bool is_possible, const char* what) { LB_CHECK(is_possible, kUnsupported, "[megakernel] ", what); }

// Values of a thread's piece of a weight row: 16 bytes of codes.
int piece_values(DType type) {
  switch (type) {
    case DType::kF32: return 4;
    case DType::kF16:
    case DType::kBF16: return 8;
    case DType::kQ8_0: return 16;
    case DType::kQ2_K:
    case DType::kQ3_K: return 64;
    default: return 32;
  }
}
bool is_plain(DType type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }
bool are_rounded(const LinearGroup& readers) {
  return std::ranges::none_of(std::span(readers.products, readers.n),
                              [](const Linear& reader) { return is_plain(reader.type); });
}

// Of the weights on their way to shared memory: a row's of each team, and a chunk's, unless those are more.
constexpr size_t kTeamsBytes = 24576, kChunkBytes = 57344 + 64;
// Of a long part, which waits for its weights more than for anything else, chunks are smaller: the ring has more of the
// next one's meanwhile.
constexpr size_t kLongBytes = 131072, kLongChunkBytes = 40960 + 64;

constexpr double kFewBytes = 10e6;  // of a phase that is latency, however its rows are dealt

// How many threads share a row, and how many such teams there are.
struct Teams {
  int row_threads, n;
};

// Rows that a team has at once, in one chunk, where a block has part_rows.
int batch_rows_of(const Linear& op, int n_teams, int part_rows) {
  const size_t max_bytes = chunk_bytes(op.type, op.n_in, part_rows) > kLongBytes ? kLongChunkBytes : kChunkBytes;
  int rows = 1;
  while (2 * rows <= max_batch_rows(is_plain(op.type)) &&
         chunk_bytes(op.type, op.n_in, 2 * rows * n_teams) <= max_bytes)
    rows *= 2;
  return rows;
}

// Those with which a block is done soonest with `rows` rows, by the instructions of a warp: of each piece, where rows
// have several for a thread also of x, and of each batch. Plain x of several pieces is not worth its reads (32 bytes of
// a lane), so that rows of plain weights have as many threads as there are.
Teams teams_of(const Linear& op, int rows) {
  const int values = piece_values(op.type), n_pieces = parts_of(op.n_in, values);
  const int piece_cost = max_batch_rows(is_plain(op.type)) * values * 3 / 2, x_cost = values, gemm_cost = 230;
  const auto with = [&](int threads) {
    Teams teams = {threads, kMegaThreads / threads};
    // Halved, since rows of an odd number may end within 16 bytes.
    while (teams.n > 1 && chunk_bytes(op.type, op.n_in, teams.n) > kTeamsBytes) teams.n /= 2;
    return teams;
  };
  const int widest = up_to(parts_of(n_pieces, parts_of(n_pieces, kMegaThreads)), 32);
  Teams best = with(widest);
  if (is_plain(op.type)) return best;
  long least = LONG_MAX;
  for (int threads = widest; threads >= 32; threads -= 32) {
    const Teams teams = with(threads);
    const int passes = parts_of(n_pieces, threads),
              batches = parts_of(rows, teams.n * batch_rows_of(op, teams.n, rows));
    const long cost = long(batches) * (passes * piece_cost + (passes > 1 ? passes * x_cost : 0) + gemm_cost);
    if (cost >= least) continue;
    least = cost;
    best = teams;
  }
  return best;
}

// Each plane of a chunk is a multiple of 16 bytes.
void plan_batches(ProductTask& p, int rows_each) {
  const quant::PlaneLayout layout = quant::plane_layout(p.op.type, p.op.n_out, p.op.n_in);
  const auto is_whole = [&](int rows) {
    for (int i = 0; i < layout.n_planes; ++i)
      if (layout.row_bytes[i] * rows * p.n_teams % 16 != 0) return false;
    return true;
  };
  p.batch_rows = batch_rows_of(p.op, p.n_teams, rows_each);
  while (!is_whole(p.batch_rows) && 2 * p.batch_rows <= max_batch_rows(is_plain(p.op.type))) p.batch_rows *= 2;
  require(is_whole(p.batch_rows), "takes weights of which a few rows are a multiple of 16 bytes");
  const int each = p.batch_rows * p.n_teams;
  // Each pass of two matrices has steps of the stream to itself: few passes.
  const int pass_rows = p.up != nullptr         ? kPassSums / (2 * (p.row_threads / 32))
                        : rows_each < kManyRows ? kPassRows
                                                : 2 * kPassRows;
  p.pass_rows = std::max(pass_rows / each, 1) * each;
  p.n_pieces = parts_of(p.op.n_in, piece_values(p.op.type));
  for (int k = 0; k < layout.n_planes; ++k) {
    p.row_bytes[k] = int(layout.row_bytes[k]);
    p.plane_at[k + 1] = p.plane_at[k] + up_to(each * p.row_bytes[k], 16) + (may_skew(p.row_bytes[k]) ? 16 : 0);
  }
  for (int k = layout.n_planes; k < quant::kMaxPlanes; ++k) p.plane_at[k + 1] = p.plane_at[k];
}

// Whether blocks make whole runs of what quantised products read, and round them once for all: not where that leaves
// too many idle, and the weights take longer than the rounding by each reader.
bool deals_in_runs(const ProductTask& p, int n_blocks) {
  const int units = p.op.n_out / kRoundRun, parts = std::min(units, n_blocks), most = parts_of(units, parts);
  const double bytes = double(row_bytes(p.op.type, size_t(p.op.n_in))) * p.op.n_out * 2;
  return p.op.n_out % (2 * kRoundRun) == 0 && p.pass_rows % kRoundRun == 0 &&
         (most * n_blocks <= units + units / 16 || bytes < kFewBytes);
}

bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// The kernels, of chips that bring weights by bulk copies and of others, and the weights that each pair takes, plain
// ones apart, which all take.
struct MegaKernels {
  const char *streamed, *direct;
  std::vector<DType> types;
};
const std::vector<MegaKernels>& mega_kernels() {
  static const std::vector<MegaKernels> kernels = {
      {"megakernel_plain_kernel", "megakernel_plain_direct_kernel", {}},
      {"megakernel_32_kernel",
       "megakernel_32_direct_kernel",
       {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kIQ4_NL, DType::kMXFP4}},
      {"megakernel_256_kernel",
       "megakernel_256_direct_kernel",
       {DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_XS}},
  };
  return kernels;
}

const char* name_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::kNothing: return "nothing";
    case TaskKind::kEmbed: return "embed";
    case TaskKind::kRopeTable: return "rope_table";
    case TaskKind::kProduct: return "product";
    case TaskKind::kAttentionRuns: return "attention_runs";
    case TaskKind::kAttentionMerge: return "attention_merge";
    case TaskKind::kDeltaStep: return "delta_step";
    case TaskKind::kDeltaCommit: return "delta_commit";
    case TaskKind::kAdjust: return "adjust";
    case TaskKind::kSample: return "sample";
  }
  return "?";
}

// A block arrives behind a step when its next one waits for all blocks, at every phase that is over then. At a token's
// last phase, the sampler's, its task does.
void say_arrivals(std::vector<TaskStep>& steps, int n_phases) {
  int n_arrived = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool is_last = i + 1 == steps.size();
    const int over = phase_of(steps[i]) + 1;
    if (is_last || !waits(steps[i + 1]) || phase_of(steps[i + 1]) < over) continue;
    steps[i].arrives = uint16_t(over - n_arrived);
    n_arrived = over;
  }
  LB_ASSERT(n_arrived == n_phases - 1);
}

// Of what other tasks read of a task, one for each value as a rule.
int n_words_of(const Task& task) {
  switch (task.kind) {
    case TaskKind::kEmbed: return words_length(task.embed.op.dim);
    case TaskKind::kProduct: return words_length(task.product.op.n_out);
    case TaskKind::kDeltaStep: return squares_at(task.delta) + task.delta.n_units;
    case TaskKind::kAttentionRuns: return split_sums_at(task.attention, task.attention.op.n_heads, 0);
    case TaskKind::kAttentionMerge: return words_length(task.attention.op.n_heads * task.attention.op.cache.head_dim);
    default: return 0;
  }
}

}  // namespace

std::string to_string(const Task& task) {
  if (task.kind != TaskKind::kProduct) return name_of(task.kind);
  const char* const from[] = {"", " of rms_norm", " of codes", " of gated_rms_norm", " of codes of gated_rms_norm"};
  const Linear& op = task.product.op;
  return cat(name(op.type), " [", op.n_out, ", ", op.n_in, "]", from[int(task.product.from)],
             task.product.up ? ", gated" : "", op.add ? " + y" : "");
}

std::unique_ptr<Memory> Schedule::reserve(size_t bytes) {
  auto* const at = reinterpret_cast<std::byte*>(on_paper_);
  on_paper_ += (bytes + 255) / 256 * 256;
  return std::make_unique<Memory>(at, bytes);
}

void Schedule::refuse(const char* what) { fail(ErrorCode::kUnsupported, "[megakernel] has no task for ", what); }

bool Schedule::overlap(const std::vector<Range>& a, const std::vector<Range>& b) {
  for (const Range& x : a)
    for (const Range& y : b) {
      const auto *first = static_cast<const std::byte*>(x.begin), *second = static_cast<const std::byte*>(y.begin);
      if (first < second + y.bytes && second < first + x.bytes) return true;
    }
  return false;
}

void Schedule::add(Node node) {
  LB_ASSERT(!norm_ && !inputs_ && !prepare_);
  for (const Node& before : nodes_)
    if (overlap(node.reads, before.writes) || overlap(node.writes, before.reads) || overlap(node.writes, before.writes))
      node.phase = std::max(node.phase, before.phase + 1);
  nodes_.push_back(std::move(node));
}

void Schedule::run(const Embed& op) {
  require(op.rows == 1, "takes one row at a time");
  add({.task = {.kind = TaskKind::kEmbed, .embed = {op, -1}},
       .reads = {{op.ids, 4}},
       .writes = {{op.y, size_t(op.dim) * 4}},
       .bytes = op.dim * 8.0,
       .min_parts = 1,
       .max_parts = parts_of(op.dim, kMegaThreads)});
}

void Schedule::run(const RopeTable& op) {
  require(op.rows == 1, "takes one row at a time");
  add({.task = {.kind = TaskKind::kRopeTable, .rope = op},
       .reads = {{op.pos, 12}},
       .writes = {{op.cos, size_t(op.n_pairs) * 4}, {op.sin, size_t(op.n_pairs) * 4}},
       .bytes = 1,
       .min_parts = 1,
       .max_parts = parts_of(op.n_pairs, kMegaThreads),
       .phase = 1});  // beside the first products: nobody waits for it
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

// The step gates what it makes, and rounds it where its readers would and a block makes whole runs.
void Schedule::run_fused(const GatedRmsNorm& op, const LinearGroup& readers) {
  require(op.rows == 1 && op.dim % 32 == 0 && op.dim <= 128, "takes gated norms of one row of heads of 32 to 128");
  const int made_by = writer_of(op.o, static_cast<int>(nodes_.size()));
  require(made_by >= 0 && nodes_[made_by].task.kind == TaskKind::kDeltaStep, "takes gated norms of a recurrence");
  Node& node = nodes_[made_by];
  DeltaTask& delta = node.task.delta;
  LB_ASSERT(delta.step.o == op.o && delta.step.dv == op.dim && delta.step.n_v_heads == op.heads);
  const int gates_by = writer_of(op.z, made_by);
  require(gates_by >= 0 && nodes_[gates_by].phase < node.phase, "takes gates that were made before the recurrence");
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
            .head_runs_step = division_step(op.dim / kRoundRun),
            .eps = op.eps,
            .mean_of = 1.0f / float(op.dim)},
           {{op.o, bytes}});
}

// Whoever makes a row of gate makes that of up too, and what is left of both: one task.
void Schedule::run_fused(const SwiGlu& op, const LinearGroup& readers) {
  const int n = static_cast<int>(nodes_.size()), gate = writer_of(op.gate, n), up = writer_of(op.up, n);
  const auto product = [&](int i) { return i < 0 ? nullptr : &nodes_[i].task.product; };
  const auto is_of_one_x = [](const ProductTask& a, const ProductTask& b) {
    return a.op.type == b.op.type && a.op.n_out == b.op.n_out && a.a == b.a && a.w == b.w && a.from == b.from &&
           a.op.add == nullptr && b.op.add == nullptr;
  };
  require(gate >= 0 && up == gate + 1 && up + 1 == n && nodes_[gate].task.kind == TaskKind::kProduct &&
              nodes_[up].task.kind == TaskKind::kProduct && is_of_one_x(*product(gate), *product(up)),
          "takes a gated activation of two products of one x and type");
  Node& both = nodes_[gate];
  both.task.product.up = product(up)->op.w;
  plan_batches(both.task.product, parts_of(op.dim, target_.n_sms));
  both.task.product.op.y = product(up)->op.y;
  both.writes = {{op.up, size_t(op.dim) * 4}};
  both.bytes *= 2;
  nodes_.pop_back();
  const bool is_in_codes = are_rounded(readers) && deals_in_runs(both.task.product, target_.n_sms);
  if (is_in_codes) {
    both.task.product.writes_codes = 1;
    both.task.product.row_unit = kRoundRun;
    both.max_parts = op.dim / kRoundRun;
  }
  products(readers, {.a = op.up, .w = nullptr, .up = nullptr, .from = is_in_codes ? XFrom::kCodes : XFrom::kPlain},
           {{op.up, size_t(op.dim) * 4}});
}

void Schedule::products(const LinearGroup& group, const ProductTask& from, const std::vector<Range>& reads) {
  long n_out = 0;
  for (const Linear& op : std::span(group.products, group.n)) n_out += op.n_out;
  for (const Linear& op : std::span(group.products, group.n)) {
    require(op.rows == 1 && op.n_in % 4 == 0, "takes one row of a multiple of 4 values");
    require(!is_plain(op.type) || op.n_in % piece_values(op.type) == 0, "takes rows of whole pieces of 16 bytes");
    require(is_plain(op.type) || op.activations == Activations::kInt8, "rounds x of quantised weights to 8 bits only");
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
    std::vector<Range> all = reads;
    if (op.add != nullptr) all.push_back({op.add, size_t(op.n_out) * 4});
    add({.task = {.kind = TaskKind::kProduct, .product = product},
         .reads = all,
         .writes = {{op.y, size_t(op.n_out) * 4}},
         .bytes = double(row_bytes(op.type, size_t(op.n_in))) * op.n_out,
         .min_parts = 1,
         .max_parts = op.n_out});
  }
}

void Schedule::run(const AttentionPrepare& op) {
  LB_ASSERT(!prepare_);
  prepare_ = op;
}

void Schedule::run(const Attention& op) {
  require(prepare_ && op.rows == 1 && op.q == prepare_->q, "takes one row of an attention");
  const AttentionPrepare prepare = *prepare_;
  prepare_.reset();
  const KvLayer& cache = op.cache;
  require(cache.head_dim <= kMaxRunDim && cache.head_dim % 64 == 0, "takes heads of 64, 128, 192 or 256");
  require(cache.k_type == cache.v_type, "takes K and V of one type");
  const size_t dim = cache.head_dim, row = op.n_heads * dim, kv = cache.n_kv_heads * dim * 4;
  const int group = op.n_heads / cache.n_kv_heads, tiles = parts_of(group, kRunQueries);
  // As many splits as there are blocks for each head, so that a block has one unit; merging, a thread has one of them.
  const int n_splits = std::bit_floor(unsigned(std::clamp(target_.n_sms / cache.n_kv_heads / tiles, 1, kMaxRunSplits)));
  const int quads = std::min<int>(kMegaThreads / n_splits, 32), head_units = parts_of(cache.head_dim, 4 * quads);
  RunsTask runs = {.prepare = prepare,
                   .op = op,
                   .group = group,
                   .query_tiles = tiles,
                   .tile_queries = parts_of(group, tiles),
                   .splits_shift = std::countr_zero(unsigned(n_splits)),
                   .n_units = cache.n_kv_heads * tiles * n_splits,
                   .n_merge_units = op.n_heads * head_units,
                   .head_units = head_units,
                   .quads_shift = std::countr_zero(unsigned(quads)),
                   .query_tiles_step = division_step(tiles),
                   .chunks_step = division_step(cache.head_dim / 64),
                   .head_units_step = division_step(head_units),
                   .u_words = {},
                   .k_words = {},
                   .v_words = {},
                   .gate_words = {},
                   .split_words = {},
                   .gate_at = 0,
                   .y_words = -1};
  const Range splits = {splits_->data(), 1};
  const size_t table = size_t(prepare.n_pairs) * 4;
  add({.task = {.kind = TaskKind::kAttentionRuns, .attention = runs},
       .reads = {{prepare.u, (size_t(op.n_heads - 1) * prepare.u_head_stride + dim) * 4},
                 {prepare.k, kv},
                 {prepare.v, kv},
                 {prepare.cos, table},
                 {prepare.sin, table}},
       .writes = {splits, {cache.k, 1}, {cache.v, 1}},
       .bytes = 1,
       .min_parts = 1,
       .max_parts = runs.n_units});
  std::vector<Range> reads = {splits};
  if (op.gate != nullptr) reads.push_back({op.gate, (size_t(op.n_heads - 1) * op.gate_head_stride + dim) * 4});
  add({.task = {.kind = TaskKind::kAttentionMerge, .attention = runs},
       .reads = reads,
       .writes = {{op.o, row * 4}},
       .bytes = 1,
       .min_parts = 1,
       .max_parts = runs.n_merge_units});
}

void Schedule::run(const DeltaInputs& op) {
  LB_ASSERT(!inputs_);
  inputs_ = op;
}

void Schedule::run(const GatedDelta& op) {
  require(inputs_ && op.rows == 1 && inputs_->conv.rows == 1 && op.q == inputs_->conv.y,
          "takes one row of a recurrence");
  const CausalConv& conv = inputs_->conv;
  const int head_slices = op.dv / kStepColumns, team_warps = op.dk / 32;
  const DeltaTask delta = {
      .conv = conv,
      .prepare = inputs_->prepare,
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
  inputs_.reset();
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

// The first that takes all weights: a target may leave out one that is slower there than the graph.
Schedule::Kernel Schedule::kernel() const {
  for (const MegaKernels& kernels : mega_kernels()) {
    const auto takes = [&](const Node& node) {
      if (node.task.kind != TaskKind::kProduct) return true;
      const DType type = node.task.product.op.type;
      return is_plain(type) || std::ranges::find(kernels.types, type) != kernels.types.end();
    };
    if (!std::ranges::all_of(nodes_, takes)) continue;
    if (target_.has(kernels.streamed)) return {kernels.streamed, true};
    LB_CHECK(target_.has(kernels.direct), kUnsupported, "[megakernel] the pack of ", target_.name, " has no ",
             kernels.streamed, " or ", kernels.direct);
    return {kernels.direct, false};
  }
  fail(ErrorCode::kUnsupported, "[megakernel] no kernel takes these weight types together");
}

size_t Schedule::pool_bytes() const {
  size_t bytes = kSamplePoolBytes;
  for (const Node& node : nodes_) {
    if (node.task.kind == TaskKind::kProduct)
      bytes = std::max(bytes, product_pool_bytes(node.task.product.op.n_in, !is_plain(node.task.product.op.type)));
    if (node.task.kind == TaskKind::kDeltaStep) bytes = std::max(bytes, kDeltaPoolBytes);
    if (node.task.kind == TaskKind::kAttentionRuns) {
      const KvLayer& cache = node.task.attention.op.cache;
      bytes = std::max(bytes, runs_pool_bytes(cache.head_dim, cache.k_type == DType::kF32 ? 4 : 2));
    }
    if (node.task.kind == TaskKind::kAttentionMerge) bytes = std::max(bytes, kMergePoolBytes);
  }
  return bytes;
}

// The last node before `before` that writes there; -1: none.
int Schedule::writer_of(const void* at, int before) const {
  for (int i = before - 1; i >= 0; --i)
    if (overlap({{at, 1}}, nodes_[i].writes)) return i;
  return -1;
}

// What travels in words, by where it would be; null: the node makes nothing of the kind.
const void* Schedule::made_at(const Node& node) const {
  switch (node.task.kind) {
    case TaskKind::kEmbed: return node.task.embed.op.y;
    case TaskKind::kProduct: return node.task.product.op.y;
    case TaskKind::kDeltaStep: return node.task.delta.step.o;
    case TaskKind::kAttentionRuns: return splits_->data();
    case TaskKind::kAttentionMerge: return node.task.attention.op.o;
    default: return nullptr;
  }
}

// What embedding, products, recurrences and attentions make for one another travels in words, and is no longer among
// what nodes read and write. The number of words: two sets for each vector, by turns, so that one is overwritten two
// products later at the earliest, each of which needs all that was made by who read it.
int Schedule::plan_words() {
  int n_words = 0;
  const int n = static_cast<int>(nodes_.size());
  std::map<std::pair<const void*, int>, std::pair<int, int>> sets;  // of where a vector was, and turn: place, length
  std::map<const void*, int> turns;
  std::vector<int> at(n, -1), is_plain_too(n, 0), is_read(n, 0);
  const auto is_wordy = [&](int i) { return i >= 0 && made_at(nodes_[i]) != nullptr; };
  // In the order of writing, so that turns alternate.
  for (int i = 0; i < n; ++i) {
    const Node& node = nodes_[i];
    if (!is_wordy(i)) continue;
    const void* to = made_at(node);
    const int length = n_words_of(node.task);
    auto& [place, size] = sets[{to, turns[to]++ % 2}];
    if (size < length) {
      place = n_words;
      size = length;
      n_words += up_to(length, 16);
    }
    at[i] = place;
  }
  const auto squares_words = [&](int writer) {
    return WordsFrom{at[writer] + squares_at(nodes_[writer].task.delta), nodes_[writer].phase};
  };
  const auto drop = [](std::vector<Range>& ranges, const void* begin) {
    std::erase_if(ranges, [&](const Range& r) { return r.begin == begin; });
  };
  std::vector<Node> planned = nodes_;
  for (int i = 0; i < n; ++i) {
    Node& node = planned[i];
    const auto take = [&](WordsFrom& from, const void* plain, int* place = nullptr) {
      const int writer = plain == nullptr ? -1 : writer_of(plain, i);
      if (!is_wordy(writer)) return;
      is_read[writer] = 1;
      drop(node.reads, plain);
      from = {int32_t(at[writer]), nodes_[writer].phase};
      const void* made = made_at(nodes_[writer]);
      const long offset = static_cast<const float*>(plain) - static_cast<const float*>(made);
      require(offset == 0 || place != nullptr, "takes vectors from their begin");
      if (place != nullptr) *place = static_cast<int>(offset);
    };
    if (node.task.kind == TaskKind::kProduct) {
      ProductTask& p = node.task.product;
      take(p.a_words, p.a);
      take(p.add_words, p.op.add);
      if (p.from == XFrom::kHeads || p.from == XFrom::kHeadsCodes) p.squares = squares_words(writer_of(p.a, i));
    } else if (node.task.kind == TaskKind::kDeltaStep || node.task.kind == TaskKind::kDeltaCommit) {
      DeltaTask& d = node.task.delta;
      take(d.x_words, d.conv.x);
      take(d.g_words, d.prepare.g);
      take(d.beta_words, d.prepare.beta);
      require(d.x_words.at >= 0 && d.g_words.at >= 0 && d.beta_words.at >= 0, "takes a recurrence of products");
      const int made_by = node.task.kind == TaskKind::kDeltaStep ? i : writer_of(d.step.o, i);
      d.squares = squares_words(made_by);
      d.n_units = nodes_[made_by].task.delta.n_units;
      if (made_by == i) {
        take(d.z_words, d.z);
        require(d.z_words.at >= 0, "takes a recurrence that is gated by a product");
        d.y_words = {at[i], node.phase};
      } else {
        node.writes.clear();  // it waits for who reads them
      }
    } else if (node.task.kind == TaskKind::kAttentionRuns) {
      RunsTask& a = node.task.attention;
      take(a.u_words, a.prepare.u);
      take(a.k_words, a.prepare.k);
      take(a.v_words, a.prepare.v);
      require(a.u_words.at >= 0 && a.k_words.at >= 0 && a.v_words.at >= 0, "takes an attention of products");
      a.split_words = {at[i], node.phase};
    } else if (node.task.kind == TaskKind::kEmbed) {
      node.task.embed.y_words = at[i];
    } else if (node.task.kind == TaskKind::kAttentionMerge) {
      RunsTask& a = node.task.attention;
      take(a.gate_words, a.op.gate, &a.gate_at);
      require(a.op.gate == nullptr || a.gate_words.at >= 0, "takes an attention that is gated by a product");
      take(a.split_words, splits_->data());
      a.y_words = at[i];
    }
    for (const Range& read : node.reads) {
      const int writer = writer_of(read.begin, i);
      if (is_wordy(writer)) is_plain_too[writer] = 1;
    }
  }
  for (int i = 0; i < n; ++i) {
    Node& node = planned[i];
    if (node.task.kind != TaskKind::kProduct) {
      if (made_at(node) == nullptr) continue;
      require(!is_plain_too[i], "takes an embedding, a recurrence or an attention that products read");
      drop(node.writes, made_at(node));
      continue;
    }
    ProductTask& p = node.task.product;
    p.y_words = is_read[i] ? at[i] : -1;
    p.writes_y = i + 1 == n || is_plain_too[i];  // the last is the head
    if (!p.writes_y) drop(node.writes, p.op.y);
  }
  nodes_ = std::move(planned);
  return n_words;
}

// The phases before which all blocks have to arrive: as few as keep apart what reads and writes plain values. Before a
// token's first the kernel sees to it.
std::vector<bool> Schedule::barriers() const {
  int last = 0;
  for (const Node& node : nodes_) last = std::max(last, node.phase);
  std::vector<bool> waits(last + 1, false);
  for (int phase = 1; phase <= last; ++phase) {
    const auto is_apart = [&](const Node& before) {
      return std::find(waits.begin() + before.phase + 1, waits.begin() + phase + 1, true) != waits.begin() + phase + 1;
    };
    for (const Node& node : nodes_)
      for (const Node& before : nodes_)
        if (node.phase == phase && before.phase < phase && !is_apart(before) &&
            (overlap(node.reads, before.writes) || overlap(node.writes, before.reads) ||
             overlap(node.writes, before.writes)))
          waits[phase] = true;
  }
  return waits;
}

// Each phase's tasks get blocks by their bytes, or products by their values where a phase is latency; at least
// min_parts where there are so many. Where there are more tasks than blocks, whole tasks go round.
std::vector<std::vector<TaskStep>> Schedule::assign(int n_blocks) const {
  std::vector<std::vector<TaskStep>> lists(n_blocks);
  int n_phases = 0;
  for (const Node& node : nodes_) n_phases = std::max(n_phases, node.phase + 1);
  for (int phase = 0; phase < n_phases; ++phase) {
    std::vector<int> ids;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (nodes_[i].phase == phase) ids.push_back(static_cast<int>(i));
    const auto step = [&](int id, int part, int n_parts) {
      return TaskStep{uint16_t(id + 1), uint16_t(part), uint16_t(n_parts), uint16_t(phase)};
    };
    if (int(ids.size()) > n_blocks) {
      for (size_t i = 0; i < ids.size(); ++i) lists[i % n_blocks].push_back(step(ids[i], 0, 1));
      continue;
    }
    double bytes = 0;
    for (const int id : ids) bytes += nodes_[id].bytes;
    const auto load_of = [&](size_t i, int n_parts) {
      const Node& node = nodes_[ids[i]];
      const Linear& op = node.task.product.op;
      const bool is_by_values = node.task.kind == TaskKind::kProduct && bytes < kFewBytes;
      return (is_by_values ? double(op.n_out) * op.n_in : node.bytes) / n_parts;
    };
    std::vector<int> parts(ids.size(), 1);
    int left = n_blocks - int(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      const int more = std::min({nodes_[ids[i]].min_parts, nodes_[ids[i]].max_parts}) - 1;
      const int given = std::clamp(more, 0, left / 4);
      parts[i] += given;
      left -= given;
    }
    while (left > 0) {  // to whom a block has the most to do
      int most = -1;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (parts[i] >= nodes_[ids[i]].max_parts) continue;
        if (most < 0 || load_of(i, parts[i]) > load_of(most, parts[most])) most = int(i);
      }
      if (most < 0) break;
      ++parts[most];
      --left;
    }
    int block = 0;
    for (size_t i = 0; i < ids.size(); ++i)
      for (int part = 0; part < parts[i]; ++part) lists[block++].push_back(step(ids[i], part, parts[i]));
    while (block < n_blocks) lists[block++].push_back({0, 0, 1, uint16_t(phase)});
  }
  return lists;
}

// What lies in shared memory behind what tasks need.
void Schedule::plan_memory(MegaPlan& plan) const {
  MegaMemory& memory = plan.memory;
  memory.steps_at = up_to(kMegaPoolAt + int(pool_bytes()), 16);
  memory.ring_at = up_to(memory.steps_at + plan.n_steps * int(sizeof(TaskStep)), 128);
  require(size_t(memory.ring_at + kMegaStaticBytes) <= target_.shared_block_bytes,
          "needs more shared memory for a row than a block has");
}

// What each block's products read of the weights.
void Schedule::plan_streams(MegaPlan& plan) const {
  std::vector<std::vector<WeightChunk>> lists(plan.n_blocks());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    TaskStep& step = plan.steps[i];
    const Task& task = plan.tasks[step.task];
    if (task.kind != TaskKind::kProduct) continue;
    const ProductTask& p = task.product;
    auto& list = lists[i / plan.n_steps];
    const size_t n_before = list.size();
    const int begin = step.part * p.rows_each + std::min<int>(step.part, p.more) * p.row_unit;
    const int rows = p.rows_each + (step.part < p.more ? p.row_unit : 0), pass = p.up != nullptr ? p.pass_rows : rows;
    step.n_passes = uint16_t(parts_of(rows, p.pass_rows));
    for (int first = 0; first < rows; first += pass)
      for (const void* w : {static_cast<const void*>(p.op.w), p.up}) {
        if (w == nullptr) continue;
        const auto chunks = cut_in_chunks(p, w, begin + first, std::min(pass, rows - first));
        list.insert(list.end(), chunks.begin(), chunks.end());
        step.skews = skews_of(p, w, begin + first);
      }
    LB_ASSERT(list.size() - n_before <= UINT16_MAX);
    limit_under_way(std::span(list).subspan(n_before), plan.memory.ring_bytes);
    step.n_chunks = uint16_t(list.size() - n_before);
  }
  plan.is_in_parts = come_in_parts(lists, plan.n_phases, plan.memory.ring_bytes);
  size_t longest = 0;
  for (auto& list : lists) {
    if (plan.is_in_parts) cut_in_parts(list);
    place_in_ring(list, plan.memory.ring_bytes);
    longest = std::max(longest, list.size());
  }
  plan.n_streams = up_to(int(longest), kStreamChunks);
  plan.streams.reserve(lists.size() * plan.n_streams * quant::kMaxPlanes);
  for (auto& list : lists) {
    plan.stream_counts.push_back(static_cast<int32_t>(list.size()));
    list.resize(plan.n_streams);
    for (const WeightChunk& chunk : list) {
      const auto copies = copies_of(chunk, plan.memory.ring_at);
      plan.streams.insert(plan.streams.end(), copies.begin(), copies.end());
    }
  }
}

// The weights pass through what is left of shared memory.
void Schedule::plan_ring(MegaPlan& plan) const {
  size_t largest = 0;  // chunk
  for (const Node& node : nodes_) {
    if (node.task.kind != TaskKind::kProduct) continue;
    const ProductTask& p = node.task.product;
    largest = std::max(largest, chunk_bytes(p.op.type, p.op.n_in, p.n_teams * p.batch_rows));
  }
  MegaMemory& memory = plan.memory;
  memory.ring_bytes = (target_.shared_block_bytes - kMegaStaticBytes - memory.ring_at) / 16 * 16;
  require(memory.ring_bytes >= int(2 * largest), "needs room for two batches of weight rows in shared memory");
}

MegaPlan Schedule::compile(const SampleOnGrid& on_grid, const NextToken& next, const TokenBudget& leave) {
  const Sample& sample = on_grid.op;
  const int n_blocks = target_.n_sms;
  require(n_blocks <= kMaxSampleBlocks, "has a sampler for at most 256 multiprocessors");
  int last = 0;
  for (const Node& node : nodes_) last = std::max(last, node.phase);
  MegaPlan plan = {};
  plan.n_phases = last + 2;
  plan.n_words = plan_words();
  plan.has_timeline = target_.has_timeline;
  std::vector<std::vector<TaskStep>> lists = assign(n_blocks);
  // The sampler is every block's: first of the logits that it has made, then of all.
  const auto makes_logits = [&](const TaskStep& step) {
    if (step.task == 0) return false;
    const Task& task = nodes_[step.task - 1].task;
    return task.kind == TaskKind::kProduct && task.product.op.y == sample.logits;
  };
  const auto head = std::ranges::find_if(lists[0], makes_logits);
  LB_ASSERT(head != lists[0].end() && phase_of(*head) == last);
  const uint16_t n_parts = head->n_parts, adjust = uint16_t(nodes_.size() + 1);
  for (const TaskKind kind : {TaskKind::kAdjust, TaskKind::kSample})
    nodes_.push_back({.task = {.kind = kind,
                               .sample = {.sample = on_grid,
                                          .next = next,
                                          .leave = leave,
                                          .rows_each = sample.vocab / n_parts,
                                          .more = sample.vocab % n_parts,
                                          .best_words = {plan.n_words, last}}},
                      .reads = {},
                      .writes = {},
                      .bytes = 1,
                      .min_parts = n_blocks,
                      .max_parts = n_blocks,
                      .phase = last});
  plan.n_words += 2 * n_blocks;
  for (int b = 0; b < n_blocks; ++b) {
    const auto own = std::ranges::find_if(lists[b], makes_logits);
    const uint16_t part = own == lists[b].end() ? n_parts : own->part;  // beyond the last: nothing
    LB_ASSERT(part == n_parts || own + 1 == lists[b].end());            // who finishes logits leaves the likeliest
    lists[b].push_back({adjust, part, n_parts, uint16_t(last)});
    lists[b].push_back({uint16_t(adjust + 1), uint16_t(b), uint16_t(n_blocks), uint16_t(last + 1)});
  }
  size_t n_steps = 0;
  for (const auto& list : lists) n_steps = std::max(n_steps, list.size());
  require(n_steps <= kMegaMaxSteps, "has room for 1024 steps of a block");
  // Lists are of one length: what is missing is nothing to do, in the last phase but one.
  for (auto& list : lists) list.insert(list.end() - 1, n_steps - list.size(), TaskStep{0, 0, 1, uint16_t(last)});
  std::vector<bool> is_barrier = barriers();
  is_barrier.push_back(true);  // of the sampler
  const auto is_a = [&](const TaskStep& step, TaskKind kind) {
    return step.task != 0 && nodes_[step.task - 1].task.kind == kind;
  };
  for (auto& list : lists)
    for (size_t i = 0; i < list.size(); ++i) {
      const auto is_before_a = [&](TaskKind kind) { return i + 1 < list.size() && is_a(list[i + 1], kind); };
      list[i].phase_bits |= (is_barrier[list[i].phase_bits] ? TaskStep::kWaits : 0) |
                            (is_a(list[i], TaskKind::kProduct) ? TaskStep::kMakesRows : 0) |
                            (is_before_a(TaskKind::kDeltaStep) ? TaskStep::kBeforeState : 0) |
                            (is_before_a(TaskKind::kAdjust) ? TaskStep::kBeforeAdjust : 0);
    }
  for (auto& list : lists) {
    say_arrivals(list, plan.n_phases);
    plan.steps.insert(plan.steps.end(), list.begin(), list.end());
  }
  plan.n_steps = static_cast<int>(n_steps);
  plan.tasks.push_back({.kind = TaskKind::kNothing, .embed = {}});
  for (const Node& node : nodes_) plan.tasks.push_back(node.task);
  for (const TaskStep& step : plan.steps) {
    if (plan.tasks[step.task].kind == TaskKind::kDeltaStep) {
      DeltaTask& delta = plan.tasks[step.task].delta;
      delta.slices_each = delta.n_units / step.n_parts << delta.unit_shift;
      delta.more = delta.n_units % step.n_parts;
      const int most = delta.slices_each + (delta.more > 0 ? 1 << delta.unit_shift : 0);
      delta.team_slices = most > kMegaThreads / 32 >> delta.team_shift ? 1 << delta.unit_shift : 1;
    }
    if (plan.tasks[step.task].kind != TaskKind::kProduct) continue;
    ProductTask& product = plan.tasks[step.task].product;
    const int units = product.op.n_out / product.row_unit;
    product.rows_each = units / step.n_parts * product.row_unit;
    product.more = units % step.n_parts;
  }
  const Kernel chosen = kernel();
  plan_memory(plan);
  if (chosen.has_stream) plan_ring(plan);
  plan.launch = checked({.kernel = chosen.name,
                         .grid = {uint32_t(n_blocks), 1, 1},
                         .block = {uint32_t(kMegaThreads + (chosen.has_stream ? kMegaHelpers : 0)), 1, 1},
                         .shared_bytes = size_t(plan.memory.ring_at) + plan.memory.ring_bytes,
                         .cooperative = true},
                        target_, "[megakernel]");
  if (chosen.has_stream) plan_streams(plan);
  return plan;
}

std::string to_string(const MegaPlan& plan) {
  std::ostringstream out;
  out << plan.launch << ", " << plan.n_phases << " phases";
  if (plan.memory.ring_bytes > 0) out << ", a ring of " << plan.memory.ring_bytes / 1024 << " KB";
  if (plan.is_in_parts) out << ", in parts of " << kPartUnits * 16 / 1024 << " KB";
  out << "\n";
  for (int phase = 0; phase < plan.n_phases; ++phase) {
    std::vector<std::pair<int, int>> tasks;  // task, parts
    for (const TaskStep& step : plan.steps)
      if (phase_of(step) == phase && step.task != 0 &&
          std::ranges::find(tasks, std::pair(int(step.task), int(step.n_parts))) == tasks.end())
        tasks.emplace_back(step.task, step.n_parts);
    std::ranges::sort(tasks);
    out << phase << ":";
    for (const auto& [task, parts] : tasks)
      out << (task == tasks[0].first ? " " : ", ") << to_string(plan.tasks[task]) << " x" << parts;
    out << "\n";
  }
  return out.str();
}

}  // namespace lb::gpu
