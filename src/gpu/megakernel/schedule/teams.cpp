// Plans how a block's threads share the rows of a product: teams, batches, passes.
#include <climits>

#include "base/dtype.h"
#include "gpu/megakernel/schedule/geometry.h"
#include "gpu/megakernel/schedule/weight_chunks.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

// Max bytes of weights in flight to shared memory: one row of each team, and one chunk unless those rows are more.
constexpr size_t kTeamsBytes = 24576, kChunkBytes = 57344 + 64;
// Long parts use smaller chunks, so that the ring already holds more of the next chunk.
constexpr size_t kLongBytes = 131072, kLongChunkBytes = 40960 + 64;

// Rows that a team holds together; over all teams they form a chunk. A block computes part_rows.
int batch_rows_of(const Linear& op, int n_teams, int part_rows) {
  const size_t max_bytes = chunk_bytes(op.type, op.n_in, part_rows) > kLongBytes ? kLongChunkBytes : kChunkBytes;
  int rows = 1;
  while (2 * rows <= max_batch_rows(is_plain(op.type)) &&
         chunk_bytes(op.type, op.n_in, 2 * rows * n_teams) <= max_bytes)
    rows *= 2;
  return rows;
}

}  // namespace

bool is_plain(DType type) { return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16; }

int piece_values(DType type) {
  switch (type) {
    case DType::kF32: return 4;
    case DType::kF16:
    case DType::kBF16: return 8;
    case DType::kQ8_0:
    case DType::kF8_E4M3: return 16;
    case DType::kQ2_K:
    case DType::kQ3_K: return 64;
    default: return 32;
  }
}

// The cost model counts a warp's instructions: per piece, per batch and, if a thread has several pieces of a row, for
// rereading x. Rereading plain x (32 bytes per lane) does not pay, so plain rows get as many threads as they have
// pieces.
Teams teams_of(const Linear& op, int rows) {
  const int values = piece_values(op.type), n_pieces = parts_of(op.n_in, values);
  const int piece_cost = max_batch_rows(is_plain(op.type)) * values * 3 / 2, x_cost = values, batch_cost = 230;
  const auto with = [&](int threads) {
    Teams teams = {threads, kMegaThreads / threads};
    // Halved, because an odd number of rows may not end at a multiple of 16 bytes.
    while (teams.n > 1 && chunk_bytes(op.type, op.n_in, teams.n) > kTeamsBytes) teams.n /= 2;
    return teams;
  };
  const int widest = round_up(parts_of(n_pieces, parts_of(n_pieces, kMegaThreads)), 32);
  Teams best = with(widest);
  if (is_plain(op.type)) return best;
  long min_cost = LONG_MAX;
  for (int threads = widest; threads >= 32; threads -= 32) {
    const Teams teams = with(threads);
    const int passes = parts_of(n_pieces, threads),
              batches = parts_of(rows, teams.n * batch_rows_of(op, teams.n, rows));
    const long cost = long(batches) * (passes * piece_cost + (passes > 1 ? passes * x_cost : 0) + batch_cost);
    if (cost >= min_cost) continue;
    min_cost = cost;
    best = teams;
  }
  return best;
}

// Makes each plane of a chunk a multiple of 16 bytes.
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
  // A pass over two matrices consumes the stream in separate steps, so passes are few and large.
  const int pass_rows = p.up != nullptr         ? kPassSums / (2 * (p.row_threads / 32))
                        : rows_each < kManyRows ? kPassRows
                                                : 2 * kPassRows;
  p.pass_rows = std::max(pass_rows / each, 1) * each;
  p.n_pieces = parts_of(p.op.n_in, piece_values(p.op.type));
  for (int k = 0; k < layout.n_planes; ++k) {
    p.row_bytes[k] = int(layout.row_bytes[k]);
    p.plane_at[k + 1] = p.plane_at[k] + round_up(each * p.row_bytes[k], 16) + (may_skew(p.row_bytes[k]) ? 16 : 0);
  }
  for (int k = layout.n_planes; k < quant::kMaxPlanes; ++k) p.plane_at[k + 1] = p.plane_at[k];
}

// Returns false if whole scale blocks would leave too many blocks idle and loading the weights takes longer than
// rounding by each reader.
bool rounds_own_rows(const ProductTask& p, int n_blocks) {
  const int units = p.op.n_out / kRoundBlock, parts = std::min(units, n_blocks), max_units = parts_of(units, parts);
  const double bytes = double(row_bytes(p.op.type, size_t(p.op.n_in))) * p.op.n_out * 2;
  return p.op.n_out % (2 * kRoundBlock) == 0 && p.pass_rows % kRoundBlock == 0 &&
         (max_units * n_blocks <= units + units / 16 || bytes < kLatencyBytes);
}

}  // namespace lb::gpu
