// Records a layer's mixture of experts. The router, the shared expert's gate and its inputs are products of one phase;
// its output is a product of the phase in which the experts' act() is computed.
#include <algorithm>
#include <bit>

#include "gpu/megakernel/schedule/geometry.h"
#include "gpu/megakernel/schedule/schedule.h"
#include "quant/repack.h"

namespace lb::gpu {
namespace {

GemvMatrix all_experts(const ExpertMatrix& m, int n_experts, int n_in) {
  const quant::PlaneLayout layout = quant::checked_plane_layout(m.type, n_experts * m.expert_rows, n_in);
  GemvMatrix matrix = {.w = static_cast<const uint8_t*>(m.w)};
  for (int i = 1; i < layout.n_planes; ++i) matrix.offset[i - 1] = uint32_t(layout.offset[i] / quant::kPlaneAlignment);
  return matrix;
}

double bytes_of(const ExpertMatrix& m, int k, int n_out, int n_in) {
  return double(row_bytes(m.type, size_t(n_in))) * n_out * k;
}

// A product of experts: only what staging, epilogue and the shares of blocks need.
ProductTask expert_product(const ExpertMatrix& m, const Linear& op) {
  ProductTask p = {.op = op, .a = op.x, .up = nullptr, .row_unit = 1};
  p.op.type = m.type;
  return p;
}

void set_rows(ProductTask& p, int n_in) {
  const quant::PlaneLayout layout = quant::plane_layout(p.op.type, 1, n_in);
  for (int k = 0; k < layout.n_planes; ++k) p.row_bytes[k] = int(layout.row_bytes[k]);
  p.n_pieces = n_in / piece_values(p.op.type);
}

void check(const MixtureLayer& layer) {
  const MixExperts& mix = layer.mix;
  require(mix.rows == 1, "takes one row of experts");
  require(mix.slots.n == 0, "takes experts that are all in device memory");
  require(layer.routers.products[0].x == layer.in.y && mix.x == layer.in.y, "takes no router with a norm of its own");
  require(layer.route.bias == nullptr && layer.route.scale == nullptr && mix.gate.bias == nullptr &&
              mix.up.bias == nullptr && mix.down.bias == nullptr,
          "takes experts without biases and scales");
  require(mix.limit == 0 && mix.is_gelu == 0, "takes experts with silu(gate) up only");
  require(mix.gate.type == mix.up.type, "takes gate and up of experts of one type");
  require(mix.add != nullptr && (mix.shared == nullptr) == (mix.shared_gate == nullptr),
          "takes a mixture that is added to its input, and a shared expert with a gate");
  for (const DType type : {mix.gate.type, mix.down.type})
    require(is_plain(type) || mix.activations != Activations::kF32, "rounds x of quantised weights to 8 bits only");
  require(mix.dim % piece_values(mix.gate.type) == 0 && mix.ffn % piece_values(mix.down.type) == 0,
          "takes rows of experts of whole pieces of 16 bytes");
}

ExpertTask expert_task(const MixtureLayer& layer, const ProductTask& product) {
  return {.product = product,
          .matrices = {},
          .per_expert = {},
          .first_row = {},
          .logits = layer.route.logits,
          .shared = nullptr,
          .shared_gate = nullptr,
          .logits_mailbox = {},
          .shared_mailbox = {},
          .shared_gate_mailbox = {},
          .n_experts = layer.route.n_experts,
          .k = layer.route.k,
          .ffn = layer.mix.ffn,
          .is_normalized = layer.route.is_normalized,
          .row_lanes = 32};
}

}  // namespace

void Schedule::run_mixture(const MixtureLayer& layer) {
  require(target_.vendor != "amd", "takes no mixtures of experts on AMD");
  check(layer);
  const MixExperts& mix = layer.mix;
  const bool has_shared = layer.shared_inputs.n > 0;
  LinearGroup inputs = layer.routers;
  for (int i = 0; i < layer.shared_inputs.n; ++i) inputs.products[inputs.n++] = layer.shared_inputs.products[i];
  run_fused(layer.in, inputs);
  if (has_shared) run_fused(layer.shared_act, layer.shared_output);

  const int n_acts = mix.k * mix.ffn;
  float* const acts = reinterpret_cast<float*>(acts_->data());
  const Range row = {layer.in.x, size_t(mix.dim) * 4}, logits = {layer.route.logits, size_t(mix.n_experts) * 4};
  // stage_codes() reads codes and scales in pairs.
  const bool is_in_codes = !is_plain(mix.down.type) && n_acts % (2 * kRoundBlock) == 0;

  ProductTask of_acts =
      expert_product(mix.gate, {.x = layer.in.x, .y = acts, .rows = 1, .n_in = mix.dim, .n_out = n_acts});
  set_rows(of_acts, mix.dim);
  of_acts.w = layer.in.w;
  of_acts.from = XFrom::kRms;
  of_acts.eps = layer.in.eps;
  of_acts.mean_of = 1.0f / float(mix.dim);
  of_acts.up = mix.up.w;
  of_acts.row_unit = is_in_codes ? kRoundBlock : 4;
  of_acts.writes_codes = is_in_codes;
  ExpertTask act = expert_task(layer, of_acts);
  const ExpertMatrix* const both[] = {&mix.gate, &mix.up};
  for (int i = 0; i < 2; ++i) {
    act.matrices[i] = all_experts(*both[i], mix.n_experts, mix.dim);
    act.per_expert[i] = both[i]->expert_rows;
    act.first_row[i] = both[i]->first_row;
  }
  add({.task = {.kind = TaskKind::kExpertActs, .experts = act},
       .reads = {row, logits},
       .writes = {{acts, 1}},
       .bytes = 2 * bytes_of(mix.gate, mix.k, mix.ffn, mix.dim),
       .min_parts = 1,
       .max_parts = n_acts / of_acts.row_unit});

  ProductTask of_sums =
      expert_product(mix.down, {.x = acts, .add = mix.add, .y = mix.y, .rows = 1, .n_in = n_acts, .n_out = mix.dim});
  set_rows(of_sums, mix.ffn);
  of_sums.from = is_in_codes ? XFrom::kCodes : XFrom::kPlain;
  ExpertTask sum = expert_task(layer, of_sums);
  sum.matrices[0] = all_experts(mix.down, mix.n_experts, mix.ffn);
  sum.per_expert[0] = mix.down.expert_rows;
  sum.first_row[0] = mix.down.first_row;
  sum.shared = mix.shared;
  sum.shared_gate = mix.shared_gate;
  sum.row_lanes = std::min(32, int(std::bit_ceil(unsigned(of_sums.n_pieces))));
  std::vector<Range> reads = {{acts, 1}, logits, {mix.add, size_t(mix.dim) * 4}};
  if (has_shared) {
    reads.push_back({mix.shared, size_t(mix.dim) * 4});
    reads.push_back({mix.shared_gate, 4});
  }
  add({.task = {.kind = TaskKind::kExpertSums, .experts = sum},
       .reads = reads,
       .writes = {{mix.y, size_t(mix.dim) * 4}},
       .bytes = bytes_of(mix.down, mix.k, mix.dim, mix.ffn),
       .min_parts = 1,
       .max_parts = mix.dim});
}

}  // namespace lb::gpu
