// The second half of MixExperts: a warp has two outputs of a row and walks the row's experts, several at a time, so the
// weighted sums stay in registers and nothing is gathered. The order of a sum depends on the shape alone, so a row's
// bits do not depend on other rows.
//   Grid: x, outputs; y, rows. Bound: bandwidth, the bytes of the chosen experts.
#pragma once

#include "gpu/activation.h"
#include "gpu/experts/shape.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

// Choices whose weights a lane loads together, for both outputs: as many as registers allow.
template <int kXBits>
inline constexpr int kDownChoices = (kXBits < 16 ? 2 : 1) * (kHoldsEightPieces ? 2 : 1);

// Sums of the two outputs over a batch of choices of a row. n_lanes is 32, or 16 where each half of the warp has
// choices of its own. `choice` is the lane's first choice in the row, matrix_rows the rows of its choices' weights for
// the first output (below 0: no choice), and next_out the second output's offset, 0 without one. Returns in lane l of
// n_lanes the sum of choice l / (n_lanes / kSums), all choices of the first output before the second output's.
template <class Format, int kChoices>
LB_DEVICE float down_sums(const ExpertDown& p, int n_lanes, int row, int choice, const int (&matrix_rows)[kChoices],
                          int next_out) {
  constexpr int kSums = kExpertDownOuts * kChoices;
  float sums[kSums] = {};
  for (int first = 0; first < p.gemv.row_pieces; first += n_lanes) {
    const int own = first + lane() % n_lanes, piece = min(own, p.gemv.row_pieces - 1);
    typename Format::Piece pieces[kSums];  // all loads are in flight before the first product
    LB_UNROLL
    for (int i = 0; i < kSums; ++i)
      pieces[i] =
          typename Format::Rows(p.gemv, 0, max(matrix_rows[i % kChoices], 0) + (i < kChoices ? 0 : next_out), piece)
              .read(0);
    LB_UNROLL
    for (int i = 0; i < kChoices; ++i) {
      typename Format::X x;
      x.read(p.gemv, row * p.k + min(choice + i, p.k - 1), piece);
      const bool has_piece = own < p.gemv.row_pieces && matrix_rows[i] >= 0;
      LB_UNROLL
      for (int j = i; j < kSums; j += kChoices) {
        const float product = Format::dot(pieces[j], x, piece);
        sums[j] += has_piece ? product : 0;
      }
    }
  }
  return n_lanes == 32 ? warp_sums(sums) : warp_sums<16>(sums);
}

// The two outputs of the shared expert, whose act() is row k, in the order of a GEMV (sums_by_warp()).
template <class Format>
LB_DEVICE void shared_sums(const ExpertDown& p, int out, int next_out, float (&sums)[kExpertDownOuts]) {
  for (int first = 0; first < p.gemv.row_pieces; first += 32) {
    const int piece = first + lane();
    float parts[kExpertDownOuts] = {};
    if (piece < p.gemv.row_pieces) {
      typename Format::Piece pieces[kExpertDownOuts];
      LB_UNROLL
      for (int o = 0; o < kExpertDownOuts; ++o)
        pieces[o] = typename Format::Rows(p.gemv, 1, out + o * next_out, piece).read(0);
      typename Format::X x;
      x.read(p.gemv, p.k, piece);
      LB_UNROLL
      for (int o = 0; o < kExpertDownOuts; ++o) parts[o] = Format::dot(pieces[o], x, piece);
    }
    LB_UNROLL
    for (int o = 0; o < kExpertDownOuts; ++o) sums[o] += warp_sum(parts[o]);
  }
}

// A row's outputs `out` and, unless next_out is 0, out + 1.
template <class Format, int kChoices>
LB_DEVICE void down_outputs(const ExpertDown& p, int row, int out, int next_out) {
  const int own_choice = row * p.k + lane();  // lanes below k have one each
  const int own_expert = lane() < p.k ? p.experts[own_choice] : -1;
  const float own_weight = lane() < p.k ? p.weights[own_choice] : 0;
  constexpr int kSums = kExpertDownOuts * kChoices;
  float shared[kExpertDownOuts] = {}, sums[kExpertDownOuts] = {};
  if (p.has_shared) shared_sums<Format>(p, out, next_out, shared);
  int own_slot = own_expert < 0 || p.slots == nullptr ? own_expert : p.slots[own_expert];
  if (own_slot < -1) own_slot = slot_to_fill(own_slot);  // copied by the products of gate and up
  const int n_lanes = p.gemv.row_pieces <= 16 ? 16 : 32, batch_choices = kChoices * 32 / n_lanes;
  for (int batch = 0; batch < p.k; batch += batch_choices) {
    const int choice = batch + lane() / n_lanes * kChoices;
    int matrix_rows[kChoices];
    LB_UNROLL
    for (int i = 0; i < kChoices; ++i) {
      const int slot = shuffle(own_slot, choice + i);
      matrix_rows[i] = slot < 0 ? -1 : slot * p.rows.per_expert + p.rows.first + out;
    }
    const float own_sum = down_sums<Format, kChoices>(p, n_lanes, row, choice, matrix_rows, next_out);
    for (int i = 0; i < min(batch_choices, p.k - batch); ++i) {
      if (shuffle(own_slot, batch + i) < 0) continue;
      const int expert = shuffle(own_expert, batch + i);
      const float weight = shuffle(own_weight, batch + i);
      LB_UNROLL
      for (int o = 0; o < kExpertDownOuts; ++o) {
        const int from = o * kChoices + i % kChoices;
        float part = shuffle(own_sum, i / kChoices * n_lanes + from * (n_lanes / kSums));
        if (p.sums != nullptr) {
          if (lane() == 0) p.sums[long(row * p.k + batch + i) * p.dim + out + o * next_out] = part;
          continue;
        }
        if (p.rows.bias != nullptr) part += p.rows.bias[long(expert) * p.dim + out + o * next_out];
        sums[o] = batch + i == 0 ? weight * part : fma(weight, part, sums[o]);
      }
    }
  }
  if (p.sums != nullptr || lane() > next_out) return;
  const long at = long(row) * p.dim + out + lane();
  float sum = lane() == 0 ? sums[0] : sums[1];
  if (p.shared != nullptr) {
    const float value = !p.has_shared ? p.shared[at] : lane() == 0 ? shared[0] : shared[1];
    sum = fma(p.shared_gate == nullptr ? 1.0f : sigmoid(p.shared_gate[row]), value, sum);
  }
  p.y[at] = p.add == nullptr ? sum : sum + p.add[at];
}

template <class Format, int kChoices>
LB_DEVICE void expert_down(const ExpertDown& p) {
  dependents_may_launch();
  wait_for_previous();
  const int block_outs = n_warps() * kExpertDownOuts;
  for (int row = block_id_y(); row < p.n_rows; row += n_blocks_y()) {
    for (int out = block_id() * block_outs + warp() * kExpertDownOuts; out < p.dim; out += n_blocks() * block_outs)
      down_outputs<Format, kChoices>(p, row, out, out + 1 < p.dim);
  }
}

}  // namespace lb::gpu
