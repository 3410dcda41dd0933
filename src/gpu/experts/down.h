// The second half of MixExperts: a warp has one output of a row and walks the row's experts, several at a time, so the
// weighted sum stays in a register and nothing is gathered. The order of a sum depends on the shape alone, so a row's
// bits do not depend on other rows.
//   Grid: x, outputs; y, rows. Bound: bandwidth, the bytes of the chosen experts.
#pragma once

#include "gpu/activation.h"
#include "gpu/experts/copied.h"
#include "gpu/experts/shape.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

// Copies outputs [first, first + n_warps()) of the row's missing experts. Blocks of rows that share one write the same
// bytes.
LB_DEVICE void copy_missing(const ExpertDown& p, int row, int first) {
  bool copies = false;
  for (int j = 0; j < p.k; ++j) {
    const int expert = p.experts[row * p.k + j], now = p.slots[expert];
    if (now >= -1) continue;
    copies = true;
    copy_rows(p.gemv, p.copied.host[0], long(expert) * p.rows.per_expert + p.rows.first + first, p.gemv.matrices[0],
              long(slot_to_fill(now)) * p.rows.per_expert + p.rows.first + first, min(n_warps(), p.dim - first));
  }
  if (copies) copies_are_done();
}

// Choices whose weights a warp loads together. Eight take too many registers, and four too many scalar ones.
inline constexpr int kDownBatch = kHasScalarRegisters ? 2 : 4;

// The warp's sums of one output over up to kBatch rows of act(), from `first_row` on; lane l gets the sum of row
// first_row + l / (32 / kBatch). matrix_rows: the row of the weights for each; below 0: none. kIsShared: the shared
// expert's weights, summed in the order of a GEMV (sums_by_warp()).
template <class Format, int kBatch, bool kIsShared = false>
LB_DEVICE float down_sums(const ExpertDown& p, int first_row, const int (&matrix_rows)[kBatch]) {
  float sums[kBatch] = {}, of_groups = 0;
  for (int first = 0; first < p.gemv.row_pieces; first += 32) {
    const int piece = first + lane();
    const bool has_piece = piece < p.gemv.row_pieces;
    typename Format::Piece pieces[kBatch];
    LB_UNROLL
    for (int i = 0; i < kBatch; ++i)
      if (has_piece && matrix_rows[i] >= 0)
        pieces[i] = typename Format::Rows(p.gemv, kIsShared ? 1 : 0, matrix_rows[i], piece).read(0);
    if constexpr (kIsShared) sums[0] = 0;
    LB_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      if (!has_piece || matrix_rows[i] < 0) continue;
      typename Format::X x;
      x.read(p.gemv, first_row + i, piece);
      sums[i] += Format::dot(pieces[i], x, piece);
    }
    if constexpr (kIsShared) of_groups += warp_sum(sums[0]);
  }
  return kIsShared ? of_groups : warp_sums(sums);
}

template <class Format>
LB_DEVICE void expert_down(const ExpertDown& p) {
  dependents_may_launch();
  wait_for_previous();
  const bool copies = kReadsHostMemory && p.copied.host[0].w != nullptr;
  if (copies && block_id() == 0 && block_id_y() == 0 && thread_id() == 0)
    p.copied.counts->bytes = p.copied.cache->counts.bytes +=
        (unsigned long long)p.copied.cache->fills.n * uint32_t(p.copied.expert_bytes);
  for (int row = block_id_y(); row < p.n_rows; row += n_blocks_y()) {
    for (int first = block_id() * n_warps(); first < p.dim; first += n_blocks() * n_warps()) {
      if (copies) copy_missing(p, row, first);
      const int out = first + warp();
      if (out >= p.dim) continue;
      float sum = 0;
      for (int batch = 0; batch < p.k; batch += kDownBatch) {
        const int first_choice = row * p.k + batch, n = min(kDownBatch, p.k - batch);
        int matrix_rows[kDownBatch];
        uint32_t has_choice = 0;
        LB_UNROLL
        for (int i = 0; i < kDownBatch; ++i) matrix_rows[i] = i < n ? p.experts[first_choice + i] : -1;
        LB_UNROLL
        for (int i = 0; i < kDownBatch; ++i) {
          int slot = matrix_rows[i];
          if (slot >= 0 && p.slots != nullptr) slot = p.slots[slot];
          if (slot < -1) slot = slot_to_fill(slot);
          has_choice |= uint32_t(slot >= 0) << i;
          matrix_rows[i] = slot < 0 ? -1 : slot * p.rows.per_expert + p.rows.first + out;
        }
        const float sums = down_sums<Format>(p, first_choice, matrix_rows);
        LB_UNROLL
        for (int i = 0; i < kDownBatch; ++i) {
          float part = shuffle(sums, 32 / kDownBatch * i);
          if ((has_choice >> i & 1) == 0) continue;
          const int choice = first_choice + i;
          if (p.sums != nullptr) {
            if (lane() == 0) p.sums[long(choice) * p.dim + out] = part;
            continue;
          }
          if (p.rows.bias != nullptr) part += p.rows.bias[long(p.experts[choice]) * p.dim + out];
          sum = batch + i == 0 ? p.weights[choice] * part : fma(p.weights[choice], part, sum);
        }
      }
      float shared = 0;
      if (p.has_shared) {
        const int matrix_row[1] = {out};
        shared = down_sums<Format, 1, true>(p, p.k, matrix_row);
      }
      if (lane() != 0 || p.sums != nullptr) continue;
      const long at = long(row) * p.dim + out;
      if (p.shared != nullptr)
        sum = fma(p.shared_gate == nullptr ? 1.0f : sigmoid(p.shared_gate[row]), p.has_shared ? shared : p.shared[at],
                  sum);
      p.y[at] = p.add == nullptr ? sum : sum + p.add[at];
    }
  }
}

}  // namespace lb::gpu
