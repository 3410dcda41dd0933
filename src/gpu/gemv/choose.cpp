// Chooses a GEMV kernel, team size, blocks and shared memory from weight type and row length. The rules, in order:
//   1. sm_90, 8-bit x, one row: weights through a ring in shared memory (gemv_ring) if rows and launch are large; all
//      rows of a block in shared memory (gemv_whole) if no team has more than eight rows;
//   2. one piece of a row per thread (gemv), two blocks per SM;
//   3. longer rows: the wide kernel, with several passes over the row if needed. For several rows of x and small F32
//      matrices, such as routers, gemv_f32_rows, which reads the weights once and has the bits of the wide kernel.
#include "gpu/gemv/choose.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/gemv/instances.h"
#include "gpu/gemv/shape.h"
#include "gpu/linear_group.h"
#include "ops/operands.h"
#include "quant/planes.h"

namespace lb::gpu {
namespace {

// An entry of instances.h: the kernel for rows of up to one piece per thread, and the wide kernel for longer rows.
struct GemvKernel {
  DType type;
  int x_bits;       // bits of rounded x; 0: x is fp32
  int wide_pieces;  // pieces of a row that a thread of the wide kernel holds
  const char *kernel, *wide_kernel;
};
constexpr GemvKernel kGemvKernels[] = {
#define X(kernel, wide_kernel, Type, kXBits, kBatch, kWidePieces, kWideBatch, kWideThreads) \
  {DType::k##Type, kXBits, kWidePieces, #kernel, #wide_kernel},
    LB_GEMV_KERNELS_PLAIN(X) LB_GEMV_KERNELS_32(X) LB_GEMV_KERNELS_256(X)
#undef X
};

const GemvKernel& kernel_of(DType type, int x_bits) {
  const auto* found = std::ranges::find_if(
      kGemvKernels, [&](const GemvKernel& entry) { return entry.type == type && entry.x_bits == x_bits; });
  LB_ASSERT(found != std::end(kGemvKernels));
  return *found;
}

// sm_90 kernels for 8-bit x whose weights pass through shared memory.
struct SharedKernel {
  DType type;
  const char* name;
};
#define X(kernel, Type, Format) {DType::k##Type, #kernel},
constexpr SharedKernel kRingKernels[] = {LB_GEMV_RING_KERNELS(X)};
constexpr SharedKernel kWholeKernels[] = {LB_GEMV_WHOLE_KERNELS(X)};
#undef X

// The kernel for a weight type; null if the pack has none.
const char* shared_kernel(std::span<const SharedKernel> kernels, DType type, const Target& target) {
  const auto found = std::ranges::find(kernels, type, &SharedKernel::type);
  return found != kernels.end() && target.has(found->name) ? found->name : nullptr;
}

// Measured on an H100 (docs/kernels/gemv.md).
constexpr int kRingMinRow = 4096;                    // values per weight row
constexpr size_t kRingMinBytes = size_t(120) << 10;  // bytes of the launch's weights per SM
constexpr int kRingBytes = 210 << 10;                // shared memory; leaves the rest to concurrent kernels
constexpr int kRingBytesInFlight = 48 << 10;         // per SM
constexpr int kRingThreads = 384;              // consumer threads, unless a row needs more; leaves registers to others
constexpr int kWholeBytesInFlight = 36 << 10;  // per SM
// Blocks of rows shorter than this request more than half of an SM's shared memory. Otherwise an SM that becomes free
// first would get two blocks of the launch, and another SM none.
constexpr int kWholeMinRow = 4096;
constexpr int kWholeAloneBytes = 114 << 10;

constexpr const char* kRowsKernel = "gemv_f32_rows_kernel";

// Values per piece: 16 bytes of the first plane.
int piece_values(DType type) {
  const quant::PlaneFormat format = quant::plane_format(type);
  return 16 * format.block_values / format.part_bytes[0];
}

// The kernel of a launch and how its threads share rows.
struct GemvShape {
  const char* kernel;
  int row_pieces, row_threads, threads;
  int unit_rows = 0;      // rows per bulk copy; 0: weights go straight into registers
  bool is_whole = false;  // gemv_whole: all rows of a block in shared memory, no producer warp
  int n_teams() const { return threads / row_threads; }
  bool has_ring() const { return unit_rows > 0 && !is_whole; }
};

// Weights go straight into registers. The team is as small as the row allows, in whole warps.
GemvShape register_shape(const GemvKernel& kernel, int n_in, const Target& target) {
  const int n_pieces = std::max(1, ceil_div(n_in, piece_values(kernel.type)));
  // The kernel's launch bound. If the pack lacks the kernel, checked() reports it.
  const auto threads_of = [&](const char* name) {
    const auto found = target.kernels.find(std::string_view(name));
    return found == target.kernels.end() ? kGemvThreads : found->second;
  };
  const int threads = threads_of(kernel.kernel);
  if (n_pieces <= threads) {
    const int row_threads = round_up(n_pieces, 32);
    return {kernel.kernel, n_pieces, row_threads, threads / row_threads * row_threads};
  }
  const int wide_threads = threads_of(kernel.wide_kernel);
  const int passes = ceil_div(n_pieces, wide_threads * kernel.wide_pieces);
  const int row_threads = round_up(ceil_div(n_pieces, passes * kernel.wide_pieces), 32);
  return {kernel.wide_kernel, n_pieces, row_threads, wide_threads / row_threads * row_threads};
}

long rows_of(const LinearGroup& group) {
  long rows = 0;
  for (const Linear& op : ops_of(group)) rows += op.n_out;
  return rows;
}

int blocks_of(const LinearGroup& group, const GemvShape& shape, const Target& target) {
  const int per_sm = shape.unit_rows > 0 ? 1 : std::max(1, target.tune("matvec_threads_per_sm") / shape.threads);
  const long most = long(target.n_sms) * per_sm, needed = ceil_div(rows_of(group), shape.n_teams());
  return int(std::max<long>(group.n, std::min(most, needed)));
}

// One past the last block of each matrix. Each matrix gets blocks in proportion to its rows, at least one.
using BlockEnds = std::array<int, kMaxProducts>;
BlockEnds block_ends(const LinearGroup& group, int n_blocks) {
  const long rows = rows_of(group);
  long before = 0;
  BlockEnds ends = {};
  for (int i = 0; i < group.n; ++i) {
    before += group.products[i].n_out;
    ends[i] = i + 1 + int((n_blocks - group.n) * before / rows);
  }
  return ends;
}

// Rows per bulk copy, whose bytes in each plane must be multiples of 16: 1, 2, or 0 if neither works.
int copied_rows(const LinearGroup& group) {
  const Linear& first = group.products[0];
  const quant::PlaneLayout layout = quant::plane_layout(first.type, 1, first.n_in);
  const std::span planes(layout.row_bytes, size_t(layout.n_planes));
  const auto are_multiples = [&](size_t of) {
    return std::ranges::all_of(planes, [=](size_t bytes) { return bytes % of == 0; });
  };
  if (are_multiples(16)) return 1;
  const bool are_even = std::ranges::all_of(ops_of(group), [](const Linear& op) { return op.n_out % 2 == 0; });
  return are_multiples(8) && are_even ? 2 : 0;
}

// gemv_ring: for large launches of long rows, or for any launch if the pack has no other kernel.
std::optional<GemvShape> ring_shape(const LinearGroup& group, int n_pieces, int unit_rows, const Target& target) {
  const Linear& first = group.products[0];
  const char* kernel = shared_kernel(kRingKernels, first.type, target);
  const int row_threads = round_up(n_pieces, 32);
  if (kernel == nullptr || row_threads > kGemvRingThreads - 32) return {};
  size_t bytes = 0;
  for (const Linear& op : ops_of(group)) bytes += row_bytes(op.type, size_t(op.n_in)) * op.n_out;
  const bool is_large = first.n_in >= kRingMinRow && bytes >= kRingMinBytes * target.n_sms;
  if (!is_large && target.has(kernel_of(first.type, 8).kernel)) return {};
  return GemvShape{kernel, n_pieces, row_threads, std::max(1, kRingThreads / row_threads) * row_threads, unit_rows};
}

// gemv_whole: for launches in which no team has more than kGemvWholeRows rows.
std::optional<GemvShape> whole_shape(const LinearGroup& group, int n_pieces, int unit_rows, const Target& target) {
  const char* kernel = shared_kernel(kWholeKernels, group.products[0].type, target);
  const int row_threads = round_up(n_pieces, 32);
  if (kernel == nullptr || unit_rows != 1 || row_threads > kGemvWholeThreads) return {};
  const int n_teams = kGemvWholeThreads / row_threads;
  const GemvShape shape = {kernel, n_pieces, row_threads, n_teams * row_threads, unit_rows, true};
  const BlockEnds ends = block_ends(group, blocks_of(group, shape, target));
  for (int i = 0, begin = 0; i < group.n; begin = ends[i++])
    if (group.products[i].n_out > kGemvWholeRows * n_teams * (ends[i] - begin)) return {};
  return shape;
}

// Shape for a group of one type.
GemvShape shape_of(const LinearGroup& group, const Target& target) {
  const Linear& first = group.products[0];
  const int x_bits = rounded_bits(group);
  if (const int unit_rows = copied_rows(group); unit_rows > 0 && first.rows == 1 && x_bits == 8) {
    const int n_pieces = first.n_in / piece_values(first.type);
    if (const auto ring = ring_shape(group, n_pieces, unit_rows, target)) return *ring;
    if (const auto whole = whole_shape(group, n_pieces, unit_rows, target)) return *whole;
  }
  return register_shape(kernel_of(first.type, x_bits), first.n_in, target);
}

// Computes the ring after all other fields of `p` are set.
GemvRing ring_of(const Gemv& p, const GemvShape& shape, const Target& target) {
  GemvRing ring = {};
  ring.unit_rows = shape.unit_rows;
  for (int bytes : p.row_bytes) ring.slot_bytes += (shape.is_whole ? 1 : kGemvSlotRows) * p.n_teams * bytes;
  ring.barriers_offset = round_up(p.pass_rows * (p.row_threads / 32) * int(sizeof(float)), 128);
  ring.slots_offset = ring.barriers_offset + kGemvRingBarrierBytes;
  const int room = std::min(kRingBytes, int(target.shared_block_bytes)) - ring.slots_offset;
  ring.n_slots = shape.is_whole ? kGemvWholeRows : std::clamp(room / ring.slot_bytes, 2, kGemvMaxSlots);
  const int in_flight = shape.is_whole ? kWholeBytesInFlight : kRingBytesInFlight;
  ring.max_in_flight = std::clamp((in_flight + ring.slot_bytes / 2) / ring.slot_bytes, 2, ring.n_slots);
  return ring;
}

// One thread adds up one row of a pass; a step of the kernel is eight rows of each team.
int pass_rows_of(const GemvShape& shape) {
  if (shape.is_whole) return kGemvWholeRows * shape.n_teams();
  const int most = shape.has_ring() ? shape.threads : std::min(kGemvPassRows, shape.threads);
  return most / (8 * shape.n_teams()) * (8 * shape.n_teams());
}

Gemv params_of(const LinearGroup& group, const RoundedRows& x, const GemvShape& shape, int n_blocks,
               const Target& target) {
  Gemv p = {};
  p.group = group;
  p.x = x;
  p.row_threads = shape.row_threads;
  p.n_teams = shape.n_teams();
  p.team_factor = ceil_div(1 << kGemvTeamShift, shape.row_threads);
  p.row_pieces = shape.row_pieces;
  p.pass_rows = pass_rows_of(shape);
  std::ranges::fill(p.first_block, n_blocks);
  const BlockEnds ends = block_ends(group, n_blocks);
  for (int i = 0, begin = 0; i < group.n; begin = ends[i++]) {
    const Linear& op = group.products[i];
    const quant::PlaneLayout layout = quant::plane_layout(op.type, op.n_out, op.n_in);
    const int n_units = op.n_out / std::max(1, shape.unit_rows), matrix_blocks = ends[i] - begin;
    if (i > 0) p.first_block[i - 1] = begin;
    p.matrices[i] = {.w = static_cast<const uint8_t*>(op.w),
                     .offset = {},
                     .block_rows = n_units / matrix_blocks,
                     .n_longer = n_units % matrix_blocks};
    for (int plane = 0; plane < layout.n_planes; ++plane) {
      p.row_bytes[plane] = int(layout.row_bytes[plane]);
      if (plane > 0) p.matrices[i].offset[plane - 1] = uint32_t(layout.offset[plane] / quant::kPlaneAlignment);
    }
  }
  if (shape.unit_rows > 0) p.ring = ring_of(p, shape, target);
  return p;
}

size_t shared_bytes_of(const Gemv& p, const GemvShape& shape) {
  if (shape.unit_rows == 0) return size_t(p.pass_rows) * (p.row_threads / 32) * sizeof(float);
  const size_t bytes = size_t(p.ring.slots_offset) + size_t(p.ring.n_slots) * p.ring.slot_bytes;
  const bool is_alone = shape.is_whole && p.group.products[0].n_in < kWholeMinRow;
  return is_alone ? std::max(bytes, size_t(kWholeAloneBytes)) : bytes;
}

// Whether gemv_f32_rows computes all rows of x in a launch that has the geometry of the wide kernel.
bool keeps_weights(const LinearGroup& group, const GemvShape& shape, const Gemv& p, const Target& target) {
  const Linear& first = group.products[0];
  if (first.rows == 1 || first.type != DType::kF32 || shape.kernel != kernel_of(DType::kF32, 0).wide_kernel ||
      shape.row_pieces > kGemvRowsPieces * shape.row_threads || !target.has(kRowsKernel))
    return false;
  return std::ranges::all_of(std::span(p.matrices, size_t(group.n)), [&](const GemvMatrix& matrix) {
    return matrix.block_rows + (matrix.n_longer > 0) <= kGemvRowsOuts * p.n_teams;
  });
}

// Launch for a group of one type. `what` describes the whole group in error messages.
GemvLaunch gemv_launch(const LinearGroup& group, const RoundedRows& x, const std::string& what, const Target& target) {
  const GemvShape shape = shape_of(group, target);
  const int n_blocks = blocks_of(group, shape, target);
  const int threads = shape.threads + (shape.has_ring() ? 32 : 0);  // the producer warp
  GemvLaunch result = {.launch = {}, .params = params_of(group, x, shape, n_blocks, target)};
  const bool keeps = keeps_weights(group, shape, result.params, target);
  result.launch = checked({.kernel = keeps ? kRowsKernel : shape.kernel,
                           .grid = {uint32_t(n_blocks), keeps ? 1u : uint32_t(group.products[0].rows), 1},
                           .block = {uint32_t(threads), 1, 1},
                           .shared_bytes = shared_bytes_of(result.params, shape),
                           .overlap_previous = true},
                          target, what);
  return result;
}

}  // namespace

int rounded_bits(const LinearGroup& group) {
  for (const Linear& op : ops_of(group))
    if (is_quantised(op.type)) return op.activations == Activations::kF32 ? 16 : 8;
  return 0;
}

GemvLaunches choose(const LinearGroup& group, const RoundedRows& x, const Target& target) {
  const std::string what = checked_text(group, "linear");
  const TypeGroups types = split_types(group);
  GemvLaunches result = {};
  for (; result.n < types.n; ++result.n)
    result.launches[result.n] = gemv_launch(types.groups[result.n], x, what, target);
  return result;
}

bool sums_by_warp(const LinearGroup& group, const Target& target) {
  if (split_types(group).n != 1 || group.products[0].rows != 1) return false;
  const GemvShape shape = shape_of(group, target);
  return shape.row_pieces <= shape.row_threads;
}

Launch choose(const RoundRows& op, const Target& target) {
  const std::string what = cat("[round_rows] ", op.rows, " rows of ", op.n_in);
  LB_CHECK(op.rows >= 1 && op.n_in >= 1 && op.n_in % kRoundBlock == 0, kInvalid, what, ": rows are multiples of ",
           kRoundBlock, " values");
  LB_CHECK(reinterpret_cast<uintptr_t>(op.x) % 16 == 0, kInvalid, what, ": x must be 16-byte aligned");
  constexpr int kThreads = 256, kThreadValues = 4;
  return checked({.kernel = "round_rows_kernel",
                  .grid = {uint32_t(ceil_div(op.n_in, kThreads * kThreadValues)), uint32_t(op.rows), 1},
                  .block = {kThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

size_t bytes_of(const Linear& op) { return operand_bytes(op); }

size_t bytes_of(const LinearGroup& group) {
  size_t bytes = 0;
  for (const Linear& op : ops_of(group)) bytes += bytes_of(op);
  const size_t x_bytes = size_t(group.products[0].rows) * group.products[0].n_in * sizeof(float);
  return bytes - (group.n - 1) * x_bytes;  // x is read once
}

}  // namespace lb::gpu
