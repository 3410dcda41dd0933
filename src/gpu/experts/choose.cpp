#include "gpu/experts/choose.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "gpu/ceil_div.h"
#include "gpu/elementwise/choose.h"
#include "gpu/experts/instances.h"
#include "gpu/gemv/choose.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

struct ExpertKernel {
  DType type;
  int x_bits;
  const char *gate_up, *down;
};
constexpr ExpertKernel kExpertKernels[] = {
#define X(name, Type, kXBits, ...) \
  {DType::k##Type, kXBits, "expert_gate_up_" #name "_kernel", "expert_down_" #name "_kernel"},
    LB_EXPERT_KERNELS_PLAIN(X) LB_EXPERT_KERNELS_QUANTISED(X)
#undef X
};

// Bits to which a matrix needs its x rounded; 0 for plain weights, which read fp32.
int rounded_bits(const ExpertMatrix& matrix, Activations activations) {
  return gpu::rounded_bits(LinearGroup{{{.type = matrix.type, .activations = activations}}, 1});
}

const ExpertKernel& kernel_of(const ExpertMatrix& matrix, const MixExperts& op, const std::string& what) {
  check_expert_type(matrix.type, what);
  const auto* kernel = std::ranges::find_if(kExpertKernels, [&](const ExpertKernel& entry) {
    return entry.type == matrix.type && entry.x_bits == rounded_bits(matrix, op.activations);
  });
  LB_ASSERT(kernel != std::end(kExpertKernels));
  return *kernel;
}

// Sets matrix `i` of the parameters of a GEMV with this x.
void set_matrix(Gemv& p, int i, const ExpertMatrix& matrix, int n_experts, int n_in) {
  const quant::PlaneLayout layout = quant::checked_plane_layout(matrix.type, n_experts * matrix.expert_rows, n_in);
  const quant::PlaneFormat format = quant::plane_format(matrix.type);
  p.row_pieces = ceil_div(n_in, 16 * format.block_values / format.part_bytes[0]);
  p.matrices[i].w = static_cast<const uint8_t*>(matrix.w);
  for (int plane = 0; plane < layout.n_planes; ++plane) {
    p.row_bytes[plane] = int(layout.row_bytes[plane]);
    if (plane > 0) p.matrices[i].offset[plane - 1] = uint32_t(layout.offset[plane] / quant::kPlaneAlignment);
  }
}

// Adds the planes of n_out rows of a matrix, of which a block copies block_rows. All experts are at `host`, those in
// slots at matrix.w.
void add_planes(CopiedPlanes& planes, const MixExperts& op, const ExpertMatrix& matrix, const void* host, int n_out,
                int n_in, int block_rows) {
  const auto layout = [&](int experts) {
    return quant::checked_plane_layout(matrix.type, experts * matrix.expert_rows, n_in);
  };
  const quant::PlaneLayout from = layout(op.n_experts), to = layout(op.slots.n);
  for (int i = 0; i < from.n_planes; ++i) {
    const size_t row = from.row_bytes[i], first = matrix.first_row * row, bytes = n_out * row;
    const size_t stride = matrix.expert_rows * row, block = block_rows * row;
    const auto* const source = static_cast<const uint8_t*>(host);
    auto* const sink = static_cast<uint8_t*>(const_cast<void*>(matrix.w));
    planes.of[planes.n++] = {.from = source + from.offset[i] + first,
                             .to = sink + to.offset[i] + first,
                             .stride = int(stride),
                             .bytes = int(bytes),
                             .block_bytes = int(block)};
    if ((first | stride | bytes | block) % 16 != 0) planes.are_aligned = false;
  }
}
void set_x(Gemv& p, const float* x, const RoundedRows& rounded, int n_in) {
  p.x = rounded;
  p.group.products[0] = {.x = x, .n_in = n_in};
}

ExpertMatrix shared_matrix(const Linear& op) {
  return {.w = op.w, .type = op.type, .expert_rows = op.n_out, .first_row = 0, .bias = nullptr};
}

ExpertRows rows_of(const ExpertMatrix& matrix) { return {matrix.expert_rows, matrix.first_row, matrix.bias}; }

// Scratch: [x rounded | act() rounded or fp32 | sums of the gate | sums of down]
struct Scratch {
  size_t act_at, sums_at, down_at, bytes;
  Scratch(int rows, int k, int dim, int ffn) {
    const auto align = [](size_t n) { return (n + 255) / 256 * 256; };
    const size_t values = (size_t(rows) * k + 1) * ffn * sizeof(float);  // with the shared expert's row
    act_at = align(rounded_bytes(rows, dim, true));
    sums_at = act_at + align(values);
    down_at = sums_at + align(values);
    bytes = down_at + size_t(rows) * k * dim * sizeof(float);
  }
};

}  // namespace

void check_expert_type(DType type, const std::string& what) {
  LB_CHECK(std::ranges::any_of(kExpertKernels, [&](const ExpertKernel& entry) { return entry.type == type; }),
           kUnsupported, what, ": no kernel reads experts of ", name(type),
           " on a GPU. Use a file without experts of Q2_K, Q3_K and Q4_1, or device = \"cpu\"");
}

size_t expert_scratch_bytes(int rows, int k, int dim, int ffn) {
  if (k == 0) return 0;
  const size_t each = Scratch(rows, k, dim, ffn).bytes;
  return rows < kMinGroupedRows ? each : std::max(each, grouped_scratch_bytes(rows, k, dim, ffn));
}

SumChoices sum_of(const MixExperts& op, const float* sums) {
  return {.sums = sums,
          .experts = op.experts,
          .weights = op.weights,
          .bias = op.down.bias,
          .shared = op.shared,
          .shared_gate = op.shared_gate,
          .add = op.add,
          .y = op.y,
          .n_rows = op.rows,
          .k = op.k,
          .dim = op.dim};
}

Launch sum_launch(const SumChoices& sum, const std::string& what, const Target& target) {
  return checked({.kernel = "sum_choices_kernel",
                  .grid = {uint32_t(ceil_div(sum.dim, kSumThreads)), uint32_t(std::min(sum.n_rows, kMaxGridY)), 1},
                  .block = {kSumThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

Launch choose(const RouteExperts& op, const Target& target) {
  const std::string what = cat("[route_experts] ", op.k, " of ", op.n_experts, " experts for ", op.rows, " rows");
  LB_CHECK(op.rows >= 1 && op.k >= 1 && op.k <= op.n_experts, kInvalid, what, ": nothing to choose");
  LB_CHECK(op.k <= kMaxChosen && op.n_experts <= kMaxExperts, kUnsupported, what, ": at most ", kMaxChosen, " of ",
           kMaxExperts);
  return checked({.kernel = "route_experts_kernel",
                  .grid = {uint32_t(ceil_div(op.rows, kRouteThreads / 32)), 1, 1},
                  .block = {kRouteThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

namespace {

struct SharedExpert {
  const Linear *gate, *up, *down;
};

std::string checked_text(const MixExperts& op) {
  const std::string what =
      cat("[mix_experts] ", op.rows, " rows of ", op.k, " of ", op.n_experts, " experts, ", name(op.gate.type), ", ",
          name(op.up.type), " and ", name(op.down.type), " [", op.dim, ", ", op.ffn, "]");
  LB_CHECK(op.rows >= 1 && op.k >= 1 && op.dim >= 1 && op.ffn >= 1, kInvalid, what, ": nothing to compute");
  for (const auto& [matrix, n_out] : {std::pair(op.gate, op.ffn), {op.up, op.ffn}, {op.down, op.dim}})
    LB_CHECK(matrix.first_row >= 0 && matrix.first_row + n_out <= matrix.expert_rows, kInvalid, what,
             ": rows outside an expert");
  return what;
}

ExpertLaunches choose_by_output(const MixExperts& op, const std::string& what, void* scratch, const Target& target,
                                const SharedExpert* shared = nullptr) {
  const Scratch layout(op.rows, op.k, op.dim, op.ffn);
  std::byte* base = static_cast<std::byte*>(scratch);
  const int n_choices = op.rows * op.k, n_acts = n_choices + (shared != nullptr);
  const int y_blocks = std::min(n_acts, kMaxGridY), n_held = held_experts(op);
  ExpertLaunches result = {};
  result.slots = choose_slots(op, target);
  const int32_t* const slots = result.slots.n_groups > 0 ? op.slots.cache->now : nullptr;

  const int x_bits = std::max(rounded_bits(op.gate, op.activations), rounded_bits(op.up, op.activations));
  const int act_bits = rounded_bits(op.down, op.activations);
  RoundedRows x = {}, act = {};
  if (x_bits > 0) {
    x = rounded_rows(base, op.rows, op.dim, x_bits == 16);
    result.round = {.x = op.x, .y = x, .rows = op.rows, .n_in = op.dim};
  }
  float* const act_values = reinterpret_cast<float*>(base + layout.act_at);
  if (act_bits > 0) act = rounded_rows(base + layout.act_at, n_acts, op.ffn, act_bits == 16);

  const int n_tiles = ceil_div(op.ffn, kExpertTile);
  const auto gate_up = [&](const ExpertMatrix& first, const ExpertMatrix* second, float* sums, bool activates) {
    ExpertGateUp p = {.rows = {rows_of(first), rows_of(second != nullptr ? *second : first)},
                      .experts = op.experts,
                      .slots = slots,
                      .gate_sums = activates ? sums : nullptr,
                      .y = activates ? act_values : sums,
                      .rounded = activates ? act : RoundedRows{},
                      .n_choices = n_choices,
                      .k = op.k,
                      .ffn = op.ffn,
                      .limit = op.limit,
                      .is_gelu = op.is_gelu != 0,
                      .has_both = second != nullptr,
                      .activates = activates,
                      .has_shared = shared != nullptr};
    set_x(p.gemv, op.x, x, op.dim);
    set_matrix(p.gemv, 0, first, n_held, op.dim);
    if (second != nullptr) set_matrix(p.gemv, 1, *second, n_held, op.dim);
    if (result.slots.products_copy) {
      const bool is_first = result.n_gate_up == 0;
      const void* const up = op.up.w == op.gate.w ? op.slots.gate : op.slots.up;
      p.copied = {.planes = {{.are_aligned = true}, {.are_aligned = true}},
                  .cache = op.slots.cache,
                  .counts = op.slots.counts,
                  .expert_bytes = result.slots.fill_params.pieces.bytes};
      add_planes(p.copied.planes[kOwnPlanes], op, first, is_first ? op.slots.gate : up, op.ffn, op.dim, kExpertTile);
      if (second != nullptr) add_planes(p.copied.planes[kOwnPlanes], op, *second, up, op.ffn, op.dim, kExpertTile);
      const int down_rows = ceil_div(ceil_div(op.dim, n_tiles), 16) * 16;  // whole 16 bytes of each plane
      if (is_first) add_planes(p.copied.planes[kDownPlanes], op, op.down, op.slots.down, op.dim, op.ffn, down_rows);
    }
    if (shared != nullptr) {
      set_matrix(p.gemv, 2, shared_matrix(*shared->gate), 1, op.dim);
      set_matrix(p.gemv, 3, shared_matrix(*shared->up), 1, op.dim);
    }
    result.gate_up[result.n_gate_up++] = {checked({.kernel = kernel_of(first, op, what).gate_up,
                                                   .grid = {uint32_t(n_tiles), uint32_t(y_blocks), 1},
                                                   .block = {kExpertThreads, 1, 1},
                                                   .overlap_previous = true},
                                                  target, what),
                                          p};
  };
  if (op.gate.type == op.up.type) {
    gate_up(op.gate, &op.up, nullptr, true);
  } else {
    float* const sums = reinterpret_cast<float*>(base + layout.sums_at);
    gate_up(op.gate, nullptr, sums, false);
    gate_up(op.up, nullptr, sums, true);
  }

  ExpertDown& down = result.down_params;
  down = {.rows = rows_of(op.down),
          .experts = op.experts,
          .slots = slots,
          .weights = op.weights,
          .shared = op.shared,
          .shared_gate = op.shared_gate,
          .add = op.add,
          .y = op.y,
          .n_rows = op.rows,
          .k = op.k,
          .dim = op.dim,
          .has_shared = shared != nullptr};
  if (shared != nullptr) set_matrix(down.gemv, 1, shared_matrix(*shared->down), 1, op.ffn);
  if (result.slots.n_groups > 1) {
    down.sums = reinterpret_cast<float*>(base + layout.down_at);
    result.sum_params = sum_of(op, down.sums);
    result.sum = sum_launch(result.sum_params, what, target);
  }
  set_x(down.gemv, act_values, act, op.ffn);
  set_matrix(down.gemv, 0, op.down, n_held, op.ffn);
  result.down = checked({.kernel = kernel_of(op.down, op, what).down,
                         .grid = {uint32_t(ceil_div(op.dim, kExpertDownThreads / 32 * kExpertDownOuts)),
                                  uint32_t(std::min(op.rows, kMaxGridY)), 1},
                         .block = {kExpertDownThreads, 1, 1},
                         .overlap_previous = true},
                        target, what);
  return result;
}

}  // namespace

MixLaunches choose(const MixExperts& op, void* scratch, const Target& target) {
  const std::string what = checked_text(op);
  if (const std::optional<GroupedLaunches> grouped = choose_grouped(op, scratch, what, target)) return *grouped;
  return choose_by_output(op, what, scratch, target);
}

std::optional<ExpertLaunches> choose_fused(const MixtureLayer& layer, void* scratch, const Target& target) {
  const MixExperts& op = layer.mix;
  if (op.rows != 1 || (op.slots.n > 0 && !op.slots.is_pinned)) return {};
  if (layer.routers.products[0].x != op.x) return {};  // their rounded x would replace the experts'
  const std::string what = checked_text(op);
  std::optional<ExpertLaunches> result;
  if (layer.shared_inputs.n == 0) {
    result = choose_by_output(op, what, scratch, target);
  } else {
    const SharedExpert shared = {&layer.shared_inputs.products[0], &layer.shared_inputs.products[1],
                                 &layer.shared_output.products[0]};
    const DType type = op.gate.type;
    const bool are_alike = op.up.type == type && shared.gate->type == type && shared.up->type == type &&
                           shared.down->type == op.down.type && shared.gate->n_out == op.ffn && op.limit == 0 &&
                           op.is_gelu == 0;
    if (!are_alike || !sums_by_warp(layer.shared_inputs, target) || !sums_by_warp(layer.shared_output, target))
      return {};
    result = choose_by_output(op, what, scratch, target, &shared);
  }
  if (result->round.rows == 0) return result;
  RmsNorm in = layer.in;
  in.rounded = result->round.y;
  if (!can_round(in)) return {};
  return result;
}

}  // namespace lb::gpu
