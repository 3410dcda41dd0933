// Launches that bring missing experts to their slots (expert_slots.cpp).
#include <algorithm>

#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/experts/choose.h"
#include "ops/append.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

constexpr const char *kFindKernel = "find_experts_kernel", *kFillKernel = "fill_slots_kernel",
                     *kRouteFindKernel = "route_find_experts_kernel", *kFindStreamedKernel = "find_streamed_kernel",
                     *kStreamKernel = "stream_experts_kernel";
constexpr uint32_t kCopyShare = 16;  // of the multiprocessors: 8 of 132
constexpr int kMaxRingExperts = 16;  // of a part; more make no launch shorter than its copies

constexpr int kMaxRoutedRows = kFindThreads / 32;  // a warp per row

// Whether the router's launch also finds the experts, which take one group of launches.
bool routes_and_finds(int rows, int k, const ExpertSlots& slots) {
  return slots.n > 0 && rows <= kMaxRoutedRows && rows * k <= slots.n;
}

// Whether the products copy the missing experts, which find_experts then marks (CopiedExperts). Grouped products do
// not.
bool products_copy(int rows, int k, const ExpertSlots& slots) {
  return slots.is_pinned && rows < kMinGroupedRows && routes_and_finds(rows, k, slots);
}

FindExperts find_of(const ExpertSlots& slots, const int32_t* experts, int rows, int k, int n_experts) {
  return {.experts = experts,
          .cache = slots.cache,
          .n_choices = rows * k,
          .n_experts = n_experts,
          .n_slots = slots.n,
          .max_fills = slots.n,
          .products_copy = products_copy(rows, k, slots)};
}

// Adds the planes of a matrix: from all experts in host memory to `held` experts at `to`.
void add_pieces(ExpertPieces& pieces, const ExpertMatrix& matrix, int n_in, const void* host, int n_experts, void* to,
                int held) {
  const auto layout = [&](int experts) {
    return quant::checked_plane_layout(matrix.type, experts * matrix.expert_rows, n_in);
  };
  const quant::PlaneLayout from = layout(n_experts), at = layout(held);
  for (int plane = 0; plane < from.n_planes; ++plane) {
    const size_t bytes = matrix.expert_rows * from.row_bytes[plane];
    LB_CHECK(bytes <= 0x3fffffff, kUnsupported, "[mix_experts] an expert of ", bytes, " bytes is too large");
    const ExpertPiece piece = {static_cast<const uint8_t*>(host) + from.offset[plane],
                               static_cast<uint8_t*>(to) + at.offset[plane], int(bytes),
                               int(ceil_div(bytes, size_t(kFillUnit)))};
    pieces.of[pieces.n++] = piece;
    pieces.n_units += piece.n_units;
    pieces.bytes += piece.bytes;
  }
}

// The matrices of op in memory for `held` experts. base null: the matrices' own, which are the slots.
HeldExperts held_experts(const MixExperts& op, std::byte* base, int held) {
  HeldExperts result = {};
  size_t used = 0;
  const auto place = [&](const ExpertMatrix& matrix, int n_in) -> void* {
    if (base == nullptr) return const_cast<void*>(matrix.w);
    std::byte* at = base + used;
    used += quant::checked_plane_layout(matrix.type, held * matrix.expert_rows, n_in).bytes;
    return at;
  };
  const auto add = [&](const ExpertMatrix& matrix, int n_in, const void* host) {
    void* to = place(matrix, n_in);
    add_pieces(result.pieces, matrix, n_in, host, op.n_experts, to, held);
    return to;
  };
  result.gate = add(op.gate, op.dim, op.slots.gate);
  result.up = op.up.w == op.gate.w ? result.gate : add(op.up, op.dim, op.slots.up);
  result.down = add(op.down, op.ffn, op.slots.down);
  return result;
}

Launch copy_launch(const char* kernel, int experts, const ExpertPieces& pieces, const Target& target,
                   const std::string& what) {
  const long units = long(experts) * pieces.n_units;
  LB_CHECK(units <= 0x7fffffff, kUnsupported, what, ": too large");
  return checked({.kernel = kernel,
                  .grid = {uint32_t(std::min(units, long(kFillBlocks))), 1, 1},
                  .block = {kFillThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

}  // namespace

bool has_expert_slots(const Target& target) { return target.has(kFindKernel) && target.has(kFillKernel); }

std::optional<RouteFindLaunch> choose_route_find(const RouteExperts& op, const Target& target) {
  if (!routes_and_finds(op.rows, op.k, op.slots)) return {};
  choose(op, target);  // checks it
  return RouteFindLaunch{
      checked({.kernel = kRouteFindKernel, .grid = {1, 1, 1}, .block = {kFindThreads, 1, 1}, .overlap_previous = true},
              target, "[route_experts]"),
      {op, find_of(op.slots, op.experts, op.rows, op.k, op.n_experts)}};
}

SlotLaunches choose_slots(const MixExperts& op, const Target& target) {
  if (op.slots.n == 0) return {};
  const std::string what = cat("[mix_experts] ", op.slots.n, " slots for ", op.n_experts, " experts, of which ",
                               op.rows, " rows choose ", op.k);
  LB_CHECK(op.slots.n >= op.k && op.slots.n <= op.n_experts && op.n_experts <= kMaxExperts, kInvalid, what,
           ": a row's experts need a slot each");
  SlotLaunches result = {};
  // Experts of a pass, and how many of them a group copies. Passes of many rows keep half of the slots: the experts
  // used most. All missing experts fit the groups after the first; a pass that fits the slots needs one group.
  const int chosen = int(std::min(long(op.rows) * op.k, long(op.n_experts)));
  const int max_fills = op.rows > kMaxTree ? ceil_div(op.slots.n, 2) : op.slots.n;
  result.n_groups = chosen <= op.slots.n ? 1 : 1 + ceil_div(std::min(chosen, op.n_experts - op.slots.n), max_fills);
  result.is_found = routes_and_finds(op.rows, op.k, op.slots);
  result.products_copy = products_copy(op.rows, op.k, op.slots);
  result.find_params = find_of(op.slots, op.experts, op.rows, op.k, op.n_experts);
  if (chosen > op.slots.n) result.find_params.max_fills = max_fills;
  result.find =
      checked({.kernel = kFindKernel, .grid = {1, 1, 1}, .block = {kFindThreads, 1, 1}, .overlap_previous = true},
              target, what);

  result.fill_params = {op.slots.cache, op.slots.counts, held_experts(op, nullptr, op.slots.n).pieces};
  result.fill = copy_launch(kFillKernel, op.slots.n, result.fill_params.pieces, target, what);
  return result;
}

int ring_experts(size_t largest_expert_bytes, int n_experts) {
  constexpr size_t kPartBytes = size_t(32) << 20;  // 0.6 to 1.3 ms of copies
  const size_t fits = kPartBytes / std::max<size_t>(1, largest_expert_bytes);
  return int(std::clamp<size_t>(fits, 1, std::min(n_experts, kMaxRingExperts)));
}

size_t ring_table_bytes(int n_experts, int group_experts) {
  return size_t(1 + ceil_div(n_experts, group_experts)) * n_experts * sizeof(int32_t);
}

std::optional<StreamedLaunches> choose_streamed(const MixExperts& op, void* scratch, const ExpertRing& ring,
                                                int first_part, const Target& target) {
  if (op.slots.n == 0 || op.rows <= kMaxTree) return {};
  MixExperts grouped = op;
  grouped.slots = {};
  const MixLaunches launches = choose(grouped, scratch, target);
  if (!std::holds_alternative<GroupedLaunches>(launches)) return {};
  const std::string what = cat("[mix_experts] ", op.n_experts, " experts in groups of ", ring.group_experts);
  StreamedLaunches result = {.products = std::get<GroupedLaunches>(launches), .first_part = first_part};
  // Products fill the multiprocessors that they run on, so they leave some to the copies beside them.
  for (Launch* products : {&result.products.gate_up, &result.products.down})
    products->grid[0] -= products->grid[0] / kCopyShare;
  for (int i = 0; i < kRingParts; ++i) result.parts[i] = held_experts(op, ring.parts[i], ring.group_experts);
  result.n_groups = 1 + ceil_div(op.n_experts - op.slots.n, ring.group_experts);
  result.find_params = {.experts = op.experts,
                        .cache = op.slots.cache,
                        .counts = op.slots.counts,
                        .tables = ring.tables,
                        .n_choices = op.rows * op.k,
                        .n_experts = op.n_experts,
                        .n_groups = result.n_groups,
                        .group_experts = ring.group_experts,
                        .expert_bytes = result.parts[0].pieces.bytes};
  result.find = checked(
      {.kernel = kFindStreamedKernel, .grid = {1, 1, 1}, .block = {kFindThreads, 1, 1}, .overlap_previous = true},
      target, what);
  result.copy_params = {op.slots.cache, {}, op.n_experts, 0, ring.group_experts};
  result.copy = copy_launch(kStreamKernel, ring.group_experts, result.parts[0].pieces, target, what);
  result.copy.overlap_previous = false;
  result.slots_held = op.slots.n;
  return result;
}

GroupedLaunches StreamedLaunches::group(int number) const {
  GroupedLaunches own = products;
  own.group_params.slots = find_params.tables + size_t(number) * find_params.n_experts;
  own.gate_up_params.n_held = own.down_params.n_held = number == 0 ? slots_held : find_params.group_experts;
  if (number == 0) return own;
  const HeldExperts& part = part_of(number);
  own.gate_up_params.w[0] = part.gate, own.gate_up_params.w[1] = part.up, own.down_params.w[0] = part.down;
  own.group.overlap_previous = false;  // the copies are another queue's
  return own;
}

StreamExperts StreamedLaunches::copy_of(int number) const {
  StreamExperts own = copy_params;
  own.pieces = part_of(number).pieces;
  own.first = (number - 1) * own.group_experts;
  return own;
}

}  // namespace lb::gpu
