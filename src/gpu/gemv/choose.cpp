// Which product kernel, and how many blocks.
#include "gpu/gemv/choose.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/gemv/instances.h"
#include "gpu/gemv/shape.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

std::string to_string(const LinearGroup& group) {
  const Linear& first = group.products[0];
  std::string text = cat("[linear] ", first.rows, " rows x ");
  for (int i = 0; i < group.n; ++i)
    text += cat(i ? " + " : "", name(group.products[i].type), " [", group.products[i].n_out, ", ", first.n_in, "]");
  return text + (first.activations == Activations::kInt8 ? " int8" : " f32");
}

bool is_quantised(const Linear& op) { return quant::plane_format(op.type).block_values > 1; }

// A kernel for rows of up to one piece a thread, and the one for longer rows.
struct GemvKernel {
  DType type;
  int x_bits;       // of rounded x; 0: x is fp32
  int wide_pieces;  // of a row that a thread of the wide kernel holds
  const char *kernel, *wide_kernel;
};
constexpr GemvKernel kGemvKernels[] = {
#define X(kernel, wide_kernel, Type, kXBits, kBatch, kWidePieces, kWideBatch, kWideThreads) \
  {DType::k##Type, kXBits, kWidePieces, #kernel, #wide_kernel},
    LB_GEMV_KERNELS_PLAIN(X) LB_GEMV_KERNELS_32(X) LB_GEMV_KERNELS_256(X)
#undef X
};

// Values in a piece: 16 bytes of the first plane.
int piece_values(DType type) {
  const quant::PlaneFormat format = quant::plane_format(type);
  return 16 * format.block_values / format.part_bytes[0];
}

const GemvKernel& vec_kernel(const Linear& op, int bits) {
  const auto* found = std::ranges::find_if(kGemvKernels, [&](const GemvKernel& entry) {
    return entry.type == op.type && entry.x_bits == (is_quantised(op) ? bits : 0);
  });
  LB_ASSERT(found != std::end(kGemvKernels));
  return *found;
}

int up_to(int n, int unit) { return (n + unit - 1) / unit * unit; }

// Threads of a row, and of a block, that leave the fewest idle.
struct GemvShape {
  const char* kernel;
  int row_pieces, row_threads, threads;
  int unit_rows = 0;      // that come into shared memory together; 0: rows come into registers
  bool is_whole = false;  // all rows of a block are there at once, and no warp of its own brings them
};
GemvShape vec_shape(const GemvKernel& kernel, int n_in, const Target& target) {
  const int values = piece_values(kernel.type), n_pieces = std::max(1, (n_in + values - 1) / values);
  const auto threads_of = [&](const char* name) {  // what the kernel was built for; checked() speaks of a missing one
    const auto found = target.kernels.find(std::string_view(name));
    return found == target.kernels.end() ? kGemvThreads : found->second;
  };
  const int threads = threads_of(kernel.kernel);
  if (n_pieces <= threads) {
    const int row_threads = up_to(n_pieces, 32);
    return {kernel.kernel, n_pieces, row_threads, threads / row_threads * row_threads};
  }
  const int wide_threads = threads_of(kernel.wide_kernel);
  const int row_pieces = wide_threads * kernel.wide_pieces;
  const int passes = (n_pieces + row_pieces - 1) / row_pieces;
  const int row_threads = up_to((n_pieces + passes * kernel.wide_pieces - 1) / (passes * kernel.wide_pieces), 32);
  return {kernel.wide_kernel, n_pieces, row_threads, wide_threads / row_threads * row_threads};
}

// Kernels for 8-bit x whose weights pass through shared memory: by a ring, or all rows of a block at once.
struct SharedKernel {
  DType type;
  const char* name;
};
#define X(kernel, Type, Format) {DType::k##Type, #kernel},
constexpr SharedKernel kRingKernels[] = {LB_GEMV_RING_KERNELS(X)};
constexpr SharedKernel kWholeKernels[] = {LB_GEMV_WHOLE_KERNELS(X)};
#undef X

// The kernel for a type; null where the pack has none.
const char* shared_kernel(std::span<const SharedKernel> kernels, DType type, const Target& target) {
  const auto found = std::ranges::find(kernels, type, &SharedKernel::type);
  return found != kernels.end() && target.has(found->name) ? found->name : nullptr;
}

// Measured on an H100 (docs/kernels/gemv.md).
constexpr int kRingMinRow = 4096;                    // values
constexpr size_t kRingMinBytes = size_t(120) << 10;  // of a launch's weights, for each multiprocessor
constexpr int kRingBytes = 210 << 10;                // of shared memory: some is left to kernels that run beside it
constexpr int kRingComing = 48 << 10;                // on their way to a multiprocessor
constexpr int kRingThreads = 384;  // that multiply, where a row needs fewer; registers are left to small blocks beside
constexpr int kWholeComing = 36 << 10;
// Shorter rows have a multiprocessor to themselves, with more than half of its shared memory: as soon as one is free,
// it would get two blocks of a launch, and another none.
constexpr int kWholeMinRow = 4096;
constexpr int kWholeAloneBytes = 114 << 10;

// Blocks of a launch.
int blocks_of(const LinearGroup& group, const GemvShape& shape, const Target& target) {
  long rows = 0;
  for (const Linear& op : std::span(group.products, group.n)) rows += op.n_out;
  const int n_teams = shape.threads / shape.row_threads;
  const int per_sm = shape.unit_rows > 0 ? 1 : std::max(1, target.tune("matvec_threads_per_sm") / shape.threads);
  return int(std::max<long>(group.n, std::min<long>(long(target.n_sms) * per_sm, (rows + n_teams - 1) / n_teams)));
}

// Behind the last block of each product. Its share of the blocks follows its share of the rows; each has at least one.
using BlockEnds = std::array<int, kMaxProducts>;
BlockEnds block_ends(const LinearGroup& group, int n_blocks) {
  long rows = 0, before = 0;
  for (const Linear& op : std::span(group.products, group.n)) rows += op.n_out;
  BlockEnds ends = {};
  for (int i = 0; i < group.n; ++i) {
    before += group.products[i].n_out;
    ends[i] = i + 1 + int((n_blocks - group.n) * before / rows);
  }
  return ends;
}

// Rows of a group that bulk copies can bring together, as multiples of 16 bytes of each plane: 1, 2, or 0 where they
// cannot.
int copied_rows(const LinearGroup& group) {
  const Linear& first = group.products[0];
  const quant::PlaneLayout layout = quant::plane_layout(first.type, 1, first.n_in);
  const std::span planes(layout.row_bytes, size_t(layout.n_planes));
  const auto are_multiples = [&](size_t of) {
    return std::ranges::all_of(planes, [=](size_t b) { return b % of == 0; });
  };
  if (are_multiples(16)) return 1;
  const bool are_even =
      std::ranges::all_of(std::span(group.products, group.n), [](const Linear& op) { return op.n_out % 2 == 0; });
  return are_multiples(8) && are_even ? 2 : 0;
}

// The launch through shared memory, where that is the faster one or the pack has no other.
std::optional<GemvShape> shared_shape(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  const char* ring = shared_kernel(kRingKernels, first.type, target);
  const char* whole = shared_kernel(kWholeKernels, first.type, target);
  const int unit = copied_rows(group);
  if (unit == 0 || first.rows > 1 || rounded_bits(group) != 8) return std::nullopt;
  const GemvKernel& kernel = vec_kernel(first, 8);
  const int n_pieces = first.n_in / piece_values(first.type), row_threads = up_to(n_pieces, 32);
  size_t bytes = 0;
  for (const Linear& op : std::span(group.products, group.n)) bytes += row_bytes(op.type, size_t(op.n_in)) * op.n_out;
  const bool is_large = first.n_in >= kRingMinRow && bytes >= kRingMinBytes * target.n_sms;
  if (ring != nullptr && (is_large || !target.has(kernel.kernel)) && row_threads <= kGemvRingThreads - 32)
    return GemvShape{ring, n_pieces, row_threads, std::max(1, kRingThreads / row_threads) * row_threads, unit};
  if (whole == nullptr || unit != 1 || row_threads > kGemvWholeThreads) return std::nullopt;
  const int n_teams = kGemvWholeThreads / row_threads;
  const GemvShape shape = {whole, n_pieces, row_threads, n_teams * row_threads, unit, true};
  const BlockEnds ends = block_ends(group, blocks_of(group, shape, target));
  for (int i = 0; i < group.n; ++i)
    if (group.products[i].n_out > kGemvWholeRows * n_teams * (ends[i] - (i > 0 ? ends[i - 1] : 0))) return std::nullopt;
  return shape;
}

// How the rows of a launch whose other parameters are there come into shared memory.
GemvRing ring_of(const Gemv& p, const GemvShape& shape, const Target& target) {
  GemvRing ring = {};
  ring.unit_rows = shape.unit_rows;
  for (int bytes : p.row_bytes) ring.slot_bytes += (shape.is_whole ? 1 : kGemvSlotRows) * p.n_teams * bytes;
  ring.barriers_at = up_to(p.pass_rows * (p.row_threads / 32) * int(sizeof(float)), 128);
  ring.slots_at = ring.barriers_at + kGemvRingBarrierBytes;
  const int room = std::min(kRingBytes, int(target.shared_block_bytes)) - ring.slots_at;
  ring.n_slots = shape.is_whole ? kGemvWholeRows : std::clamp(room / ring.slot_bytes, 2, kGemvMaxSlots);
  const int coming = shape.is_whole ? kWholeComing : kRingComing;
  ring.max_coming = std::clamp((coming + ring.slot_bytes / 2) / ring.slot_bytes, 2, ring.n_slots);
  return ring;
}

GemvLaunch vec_launch(const LinearGroup& group, const RoundedRows& x, const std::string& what, const Target& target) {
  const Linear& first = group.products[0];
  const GemvShape shape =
      shared_shape(group, target).value_or(vec_shape(vec_kernel(first, rounded_bits(group)), first.n_in, target));
  const bool is_shared = shape.unit_rows > 0, has_ring = is_shared && !shape.is_whole;
  const int unit_rows = std::max(1, shape.unit_rows);
  const int n_teams = shape.threads / shape.row_threads;
  const int n_blocks = blocks_of(group, shape, target);
  const BlockEnds ends = block_ends(group, n_blocks);
  // A thread adds up one row of a pass, and steps are eight rows of each team.
  const int max_pass = is_shared ? shape.threads : std::min(kGemvPassRows, shape.threads);
  const int pass_rows = shape.is_whole ? kGemvWholeRows * n_teams : max_pass / (8 * n_teams) * (8 * n_teams);

  GemvLaunch vec = {.launch = {}, .params = {}};
  Gemv& p = vec.params;
  p.group = group;
  p.x = x;
  p.row_threads = shape.row_threads;
  p.n_teams = n_teams;
  p.team_factor = ((1 << kGemvTeamShift) + shape.row_threads - 1) / shape.row_threads;
  p.row_pieces = shape.row_pieces;
  p.pass_rows = pass_rows;
  std::ranges::fill(p.first_block, n_blocks);
  for (int i = 0, block = 0; i < group.n; block = ends[i++]) {
    const Linear& op = group.products[i];
    const quant::PlaneLayout layout = quant::plane_layout(op.type, op.n_out, op.n_in);
    if (i > 0) p.first_block[i - 1] = block;
    p.products[i] = {.w = static_cast<const uint8_t*>(op.w),
                     .offset = {},
                     .rows = op.n_out / unit_rows / (ends[i] - block),
                     .longer = op.n_out / unit_rows % (ends[i] - block)};
    for (int plane = 0; plane < layout.n_planes; ++plane) {
      p.row_bytes[plane] = int(layout.row_bytes[plane]);
      if (plane > 0) p.products[i].offset[plane - 1] = uint32_t(layout.offset[plane] / quant::kPlaneAlignment);
    }
  }
  size_t shared_bytes = size_t(pass_rows) * (shape.row_threads / 32) * sizeof(float);
  if (is_shared) {
    p.ring = ring_of(p, shape, target);
    shared_bytes = size_t(p.ring.slots_at) + size_t(p.ring.n_slots) * p.ring.slot_bytes;
    if (shape.is_whole && first.n_in < kWholeMinRow) shared_bytes = std::max(shared_bytes, size_t(kWholeAloneBytes));
  }
  vec.launch = checked({.kernel = shape.kernel,
                        .grid = {static_cast<uint32_t>(n_blocks), static_cast<uint32_t>(first.rows), 1},
                        .block = {static_cast<uint32_t>(shape.threads + (has_ring ? 32 : 0)), 1, 1},
                        .shared_bytes = shared_bytes,
                        .overlap_previous = true},
                       target, what);
  return vec;
}

}  // namespace

int rounded_bits(const LinearGroup& group) {
  for (int i = 0; i < group.n; ++i)
    if (is_quantised(group.products[i])) return group.products[i].activations == Activations::kInt8 ? 8 : 16;
  return 0;
}

GemvLaunches choose(const LinearGroup& group, const RoundedRows& x, const Target& target) {
  LB_CHECK(group.n >= 1 && group.n <= kMaxProducts, kInvalid, "[linear] a group has 1 to ", kMaxProducts,
           " products, got ", group.n);
  const std::string what = to_string(group);
  const Linear& first = group.products[0];
  LB_CHECK(first.rows >= 1 && first.n_in >= 1, kInvalid, what, ": nothing to compute");
  LinearGroup types[kMaxProducts] = {};
  GemvLaunches result = {};
  for (const Linear& op : std::span(group.products, group.n)) {
    LB_CHECK(op.n_out >= 1, kInvalid, what, ": nothing to compute");
    LB_CHECK(op.x == first.x && op.rows == first.rows && op.n_in == first.n_in && op.activations == first.activations,
             kInvalid, what, ": the products of a group share x, rows, n_in and activations");
    quant::checked_plane_layout(op.type, op.n_out, op.n_in);
    int i = 0;
    while (i < result.n && types[i].products[0].type != op.type) ++i;
    result.n = std::max(result.n, i + 1);
    types[i].products[types[i].n++] = op;
  }
  for (int i = 0; i < result.n; ++i) result.launches[i] = vec_launch(types[i], x, what, target);
  return result;
}

Launch choose(const RoundRows& op, const Target& target) {
  const std::string what = cat("[round_rows] ", op.rows, " rows of ", op.n_in);
  LB_CHECK(op.rows >= 1 && op.n_in >= 1 && op.n_in % kRoundRun == 0, kInvalid, what, ": rows are multiples of ",
           kRoundRun, " values");
  LB_CHECK(reinterpret_cast<uintptr_t>(op.x) % 16 == 0, kInvalid, what, ": x must be 16-byte aligned");
  constexpr int kThreads = 256;
  return checked({.kernel = "round_rows_kernel",
                  .grid = {static_cast<uint32_t>((op.n_in + 4 * kThreads - 1) / (4 * kThreads)),
                           static_cast<uint32_t>(op.rows), 1},
                  .block = {kThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

size_t bytes_of(const Linear& op) {
  const size_t row_values = size_t(op.n_out) * (op.add ? 2 : 1) + size_t(op.n_in);
  return row_bytes(op.type, size_t(op.n_in)) * op.n_out + size_t(op.rows) * row_values * sizeof(float);
}

size_t bytes_of(const LinearGroup& group) {
  size_t bytes = 0;
  for (int i = 0; i < group.n; ++i) bytes += bytes_of(group.products[i]);
  return bytes - (group.n - 1) * size_t(group.products[0].rows) * group.products[0].n_in * sizeof(float);
}

}  // namespace lb::gpu
