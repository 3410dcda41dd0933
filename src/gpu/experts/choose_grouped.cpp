// Launches of a MixExperts whose choices are grouped by expert (grouped.h).
#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/experts/choose.h"
#include "gpu/experts/instances.h"
#include "gpu/gemm/choose_config.h"
#include "gpu/linear_group.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

struct GroupedKernel {
  DType type;
  int tile_rows;
  const char *gate_up, *down;
};
constexpr GroupedKernel kKernels[] = {
#define X(name, Type, kTileRows) \
  {DType::k##Type, kTileRows, "expert_gemm_gate_up_" #name "_kernel", "expert_gemm_down_" #name "_kernel"},
    LB_EXPERT_GEMMS_BYTES(X) LB_EXPERT_GEMMS_Q8_0_64(X) LB_EXPERT_GEMMS_PLAIN(X) LB_EXPERT_GEMMS_FP8(X)
        LB_EXPERT_GEMMS_FLOAT(X)
#undef X
};

constexpr int kTileOuts = 2 * kActTileOuts;

// How the kernels of a type read x.
enum class XForm { kBytes, kHalves, kFloats };
XForm x_form(DType type) {
  if (type == DType::kF32) return XForm::kFloats;
  const bool reads_halves = type == DType::kF16 || type == DType::kBF16 || type == DType::kF8_E4M3;
  return reads_halves ? XForm::kHalves : XForm::kBytes;
}
int chunk_values(DType type) {
  const XForm form = x_form(type);
  return form == XForm::kBytes ? kByteValues : form == XForm::kHalves ? kHalfValues : kFloatValues;
}

GemmStages stages_of(DType type, int tile_rows, const Target& target) {
  const XForm form = x_form(type);
  const int x = form == XForm::kBytes    ? gemm_byte_x(tile_rows, 8)
                : form == XForm::kHalves ? gemm_half_x(tile_rows)
                                         : gemm_float_x(tile_rows);
  return gemm_stages(size_t(kTileOuts) * gemm_code_row(type, chunk_values(type)) + x, target);
}

const GroupedKernel* kernel_of(DType type, int tile_rows, const Target& target) {
  const auto* kernel = std::ranges::find_if(kKernels, [&](const GroupedKernel& entry) {
    return entry.type == type && entry.tile_rows == tile_rows && target.has(entry.gate_up) && target.has(entry.down);
  });
  return kernel != std::end(kKernels) && stages_of(type, tile_rows, target).n > 0 ? kernel : nullptr;
}

// The largest tile that the mean number of an expert's rows fills to a third. Both kernels have it.
struct Kernels {
  const GroupedKernel *gate_up, *down;
};
std::optional<Kernels> kernels_of(const MixExperts& op, const Target& target) {
  const int expert_rows = int(long(op.rows) * op.k / op.n_experts);
  for (int tile_rows : {64, 16}) {
    if (tile_rows > 16 && expert_rows < tile_rows / 3) continue;
    const Kernels found = {kernel_of(op.gate.type, tile_rows, target), kernel_of(op.down.type, tile_rows, target)};
    if (found.gate_up != nullptr && found.down != nullptr) return found;
  }
  return {};
}

// Scratch: [x | act() | sums of down | choices | rows of x | tiles | number of tiles]
struct Scratch {
  size_t act_at, sums_at, choices_at, x_rows_at, tiles_at, n_tiles_at, bytes;
  Scratch(int rows, int k, int dim, int ffn) {
    const auto align = [](size_t n) { return (n + 255) / 256 * 256; };
    const auto values = [&](int n, int n_in) {
      const size_t halves = size_t(n) * x16_values(n_in) * sizeof(uint16_t), floats = size_t(n) * n_in * sizeof(float);
      return align(std::max({rounded_bytes(n, n_in, false), halves, floats}));
    };
    const int n_choices = rows * k;
    act_at = values(rows, dim);
    sums_at = act_at + values(n_choices, ffn);
    choices_at = sums_at + align(size_t(n_choices) * dim * sizeof(float));
    x_rows_at = choices_at + align(n_choices * sizeof(int32_t));
    tiles_at = x_rows_at + align(n_choices * sizeof(int32_t));
    n_tiles_at = tiles_at + align(max_expert_tiles(n_choices, kMaxExperts, 16) * sizeof(ExpertTile));
    bytes = n_tiles_at + sizeof(int32_t);
  }
};

ExpertRows rows_of(const ExpertMatrix& matrix) { return {matrix.expert_rows, matrix.first_row, matrix.bias}; }

}  // namespace

size_t grouped_scratch_bytes(int rows, int k, int dim, int ffn) { return Scratch(rows, k, dim, ffn).bytes; }

std::optional<GroupedLaunches> choose_grouped(const MixExperts& op, void* scratch, const std::string& what,
                                              const Target& target) {
  // With activations in fp32, quantised weights multiply x of 16 bits, which no grouped kernel reads.
  const auto is_read = [&](DType type) { return !is_quantised(type) || op.activations != Activations::kF32; };
  if (op.rows < kMinGroupedRows || op.gate.type != op.up.type || !is_read(op.gate.type) || !is_read(op.down.type))
    return {};
  const std::optional<Kernels> kernels = kernels_of(op, target);
  if (!kernels) return {};
  const Scratch layout(op.rows, op.k, op.dim, op.ffn);
  std::byte* const base = static_cast<std::byte*>(scratch);
  const int n_choices = op.rows * op.k, tile_rows = kernels->gate_up->tile_rows;
  GroupedLaunches result = {};

  GroupChoices& group = result.group_params;
  group = {.experts = op.experts,
           .slots = op.slots.n > 0 ? op.slots.cache->now : nullptr,
           .choices = reinterpret_cast<int32_t*>(base + layout.choices_at),
           .x_rows = reinterpret_cast<int32_t*>(base + layout.x_rows_at),
           .tiles = reinterpret_cast<ExpertTile*>(base + layout.tiles_at),
           .n_tiles = reinterpret_cast<int32_t*>(base + layout.n_tiles_at),
           .n_choices = n_choices,
           .k = op.k,
           .n_experts = op.n_experts,
           .tile_rows = tile_rows};
  result.group = checked(
      {.kernel = "group_choices_kernel", .grid = {1, 1, 1}, .block = {kGroupThreads, 1, 1}, .overlap_previous = true},
      target, what);

  const auto gemm = [&](const char* kernel, ExpertGemm& p, DType type, int n_in, int n_out, int tile_outs) {
    const GemmStages stages = stages_of(type, tile_rows, target);
    p.gemm.group = {.products = {{.type = type, .n_in = n_in}}, .n = 1};
    p.gemm.n_chunks = ceil_div(n_in, chunk_values(type));
    p.gemm.n_stages = stages.n;
    p.gemm.tile_rows = tile_rows;
    p.tiles = group.tiles;
    p.n_tiles = group.n_tiles;
    p.choices = group.choices;
    p.x_rows = group.x_rows;
    p.n_held = held_experts(op);
    p.n_out = n_out;
    p.n_out_tiles = ceil_div(n_out, tile_outs);
    const long most_tiles = long(max_expert_tiles(n_choices, op.n_experts, tile_rows)) * p.n_out_tiles;
    LB_CHECK(most_tiles * p.gemm.n_chunks <= 0x7fffffff, kUnsupported, what, ": too large");
    const long blocks = std::min(long(std::max(1, target.n_sms)) * stages.blocks_per_sm, most_tiles);
    return checked({.kernel = kernel,
                    .grid = {uint32_t(blocks), 1, 1},
                    .block = {kGemmThreads, 1, 1},
                    .shared_bytes = stages.bytes,
                    .overlap_previous = true},
                   target, what);
  };

  ExpertGemm& gate_up = result.gate_up_params;
  gate_up = {.w = {op.gate.w, op.up.w},
             .rows = {rows_of(op.gate), rows_of(op.up)},
             .limit = op.limit,
             .is_gelu = op.is_gelu != 0};
  result.gate_up = gemm(kernels->gate_up->gate_up, gate_up, op.gate.type, op.dim, op.ffn, kActTileOuts);
  switch (x_form(op.gate.type)) {
    case XForm::kFloats: gate_up.gemm.group.products[0].x = op.x; break;
    case XForm::kHalves:
      result.cast = choose_cast_rows({.type = op.gate.type, .x = op.x, .rows = op.rows, .n_in = op.dim}, base, target);
      gate_up.gemm.x16 = base;
      break;
    case XForm::kBytes:
      gate_up.gemm.x = rounded_rows(base, op.rows, op.dim, false);
      result.round = {.x = op.x, .y = gate_up.gemm.x, .rows = op.rows, .n_in = op.dim};
  }

  ExpertGemm& down = result.down_params;
  std::byte* const act = base + layout.act_at;
  down = {.w = {op.down.w}, .rows = {rows_of(op.down)}, .sums = reinterpret_cast<float*>(base + layout.sums_at)};
  result.down = gemm(kernels->down->down, down, op.down.type, op.ffn, op.dim, kTileOuts);
  switch (x_form(op.down.type)) {
    case XForm::kFloats: down.gemm.group.products[0].x = gate_up.values = reinterpret_cast<float*>(act); break;
    case XForm::kHalves:
      down.gemm.x16 = act;
      gate_up.halves = reinterpret_cast<uint16_t*>(act);
      gate_up.half_type = cast_type(op.down.type, target);
      gate_up.is_permuted = is_quantised(op.down.type);
      break;
    case XForm::kBytes: gate_up.rounded = down.gemm.x = rounded_rows(act, n_choices, op.ffn, false); break;
  }

  result.sum_params = sum_of(op, down.sums);
  result.sum = sum_launch(result.sum_params, what, target);
  result.slots = choose_slots(op, target);
  return result;
}

}  // namespace lb::gpu
