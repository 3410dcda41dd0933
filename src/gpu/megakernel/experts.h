// The experts of a mixture. Their addresses depend on the router's choice, so their weights are read by plain loads,
// while the copying warp streams the weights of later products. The shared expert's products are ordinary ones, a phase
// ahead.
//
// A row's pieces are summed in the order of the kernels in gpu/experts, choices in order of rank, the shared expert
// last.
#pragma once

#include "gpu/experts/route.h"
#include "gpu/megakernel/epilogue.h"
#include "gpu/megakernel/stage_x.h"
#include "gpu/warp_sums.h"

namespace lb::gpu {

// In the pool, at expert_scratch_at().
struct alignas(16) ExpertScratch {
  float logits[kMaxExperts];
  int32_t experts[kMaxChosen];
  float weights[kMaxChosen];
  float tiles[2][kRoundBlock];  // act() of 32 outputs, before it is rounded
  float squares[kMegaThreads / 32];
};
static_assert(sizeof(ExpertScratch) == kExpertScratchBytes);

LB_DEVICE ExpertScratch& expert_scratch(const ExpertTask& p, unsigned char* pool, bool is_rounded) {
  return *reinterpret_cast<ExpertScratch*>(pool + expert_scratch_at(p.product.op.n_in, is_rounded));
}

// The router's choice. All threads call it; it ends with a barrier of the block.
LB_NOINLINE_NESTED void choose_experts(const ExpertTask& p, ExpertScratch& to, PhaseWait wait) {
  const uint32_t tag = wait.tag_of(p.logits_mailbox);
  const Mailbox* from = PhaseWait::mailboxes_of(p.logits_mailbox);
  LB_UNROLL_BY(1)
  for (int i = thread_id(); i < p.n_experts; i += n_threads()) {
    float logit[1];
    read_mailboxes<1>(wait, {from + mailbox_index(i)}, {tag}, logit);
    to.logits[i] = logit[0];
  }
  block_barrier();
  if (warp() == 0)
    route({.logits = to.logits,
           .bias = nullptr,
           .scale = nullptr,
           .experts = to.experts,
           .weights = to.weights,
           .rows = 1,
           .n_experts = p.n_experts,
           .k = p.k,
           .is_normalized = p.is_normalized},
          0);
  block_barrier();
}

// The fields of Gemv by which a format finds rows, of one of the task's matrices as matrix 0.
LB_DEVICE Gemv expert_rows(const ExpertTask& p, int matrix) {
  Gemv gemv;
  gemv.n_teams = 1;  // advance() goes to the next row
  LB_UNROLL
  for (int k = 0; k < quant::kMaxPlanes; ++k) gemv.row_bytes[k] = p.product.row_bytes[k];
  gemv.matrices[0] = p.matrices[matrix];
  return gemv;
}

// Outputs of a choice that a warp computes together, of gate and of up.
inline constexpr int kActRows = 4;

// silu(gate) up of outputs [row, row + kActRows) of all choices, which belong to one choice; lane l gets the value of
// output l * kMatrices * kActRows / 32. kMatrices: 2, or 1 to have fewer rows in registers.
template <class Format, int kMatrices, class X>
LB_DEVICE float act_of_rows(const ExpertTask& p, const ExpertScratch& scratch, const X& staged, int row, float factor) {
  const int choice = int(uint32_t(row) / uint32_t(p.ffn)), out = row - choice * p.ffn;
  const int expert = scratch.experts[choice], n_pieces = p.product.n_pieces;
  float sum = 0, up = 0;
  LB_UNROLL_BY(1)
  for (int first = 0; first < 2; first += kMatrices) {
    float sums[kMatrices * kActRows] = {};
    LB_UNROLL_BY(1)
    for (int piece = lane(); piece < n_pieces; piece += 32) {
      typename Format::Piece pieces[kMatrices * kActRows];
      LB_UNROLL
      for (int i = 0; i < kMatrices; ++i) {
        const int matrix = first + i;
        const Gemv gemv = expert_rows(p, matrix);
        typename Format::Rows rows(gemv, 0, expert * p.per_expert[matrix] + p.first_row[matrix] + out, piece);
        LB_UNROLL
        for (int j = 0; j < kActRows; ++j) {
          pieces[i * kActRows + j] = rows.read(0);
          rows.advance(gemv);
        }
      }
      typename Format::X x = {};
      read_x<Format>(x, staged, piece);
      LB_UNROLL
      for (int i = 0; i < kMatrices * kActRows; ++i) sums[i] += Format::dot(pieces[i], x, piece);
    }
    const float total = factor * warp_sums(sums);
    if (first == 0) sum = total;
    up = kMatrices == 2 ? shuffle_xor(total, 16) : total;
  }
  return silu(sum) * up;
}

// pool: expert_scratch_at() + kExpertScratchBytes.
template <class Format, int kMatrices>
LB_NOINLINE void expert_acts(const ExpertTask& p, int part, unsigned char* pool, PhaseWait wait) {
  assume_shared(&p);
  constexpr bool kIsRounded = quant::plane_format(Format::kType).block_values > 1;
  constexpr int kLanes = 32 / (kMatrices * kActRows);  // that have the same output
  ExpertScratch& scratch = expert_scratch(p, pool, kIsRounded);
  wait();
  const float squares = warp_sum(stage_x<kIsRounded>(p.product, pool, wait));  // known before the logits are
  if (lane() == 0) scratch.squares[warp()] = squares;
  choose_experts(p, scratch, wait);
  if (!wait.is_barrier) wait.mark_ready();

  const StagedX<kIsRounded> staged(pool, p.product.op.n_in);
  const float factor = norm_factor(scratch.squares, p.product.mean_of, p.product.eps);
  const int unit = p.product.row_unit, begin = part * p.product.rows_each + min(part, p.product.more) * unit;
  const int n_rows = p.product.rows_each + (part < p.product.more ? unit : 0);
  Mailbox* const to = mega_state().mailboxes + p.product.y_mailbox;
  const bool is_rounded = p.product.writes_codes != 0, is_writer = lane() / kLanes < kActRows && lane() % kLanes == 0;
  LB_UNROLL_BY(1)
  for (int first = 0, n_tile = 0; first < n_rows; first += n_warps() * kActRows, ++n_tile) {
    const int own = first + warp() * kActRows, row = begin + own;
    const bool has_rows = own < n_rows;
    const float act = has_rows ? act_of_rows<Format, kMatrices>(p, scratch, staged, row, factor) : 0.0f;
    if (!is_rounded) {
      if (has_rows && is_writer) store_relaxed(to + mailbox_index(row + lane() / kLanes), mailbox_of(act, wait.tag));
      continue;
    }
    float* tile = scratch.tiles[n_tile % 2];
    if (is_writer) tile[warp() * kActRows + lane() / kLanes] = act;
    block_barrier();  // the tile before the last is written
    if (warp() == n_tile % n_warps())
      write_codes(destination_in(to, p.product.op.n_out, begin + first + lane(), true), tile[lane()], wait.tag,
                  [](int) {});
  }
}
static_assert(kMegaThreads / 32 * kActRows == kRoundBlock);

// A warp's position in its outputs: one output, some choices of it, some pieces of their rows.
struct SumCursor {
  int out, choice, piece;
  LB_DEVICE bool is_row_end(const ExpertTask& p) const { return piece + p.row_lanes >= p.product.n_pieces; }
  LB_DEVICE bool is_end(const ExpertTask& p, int choices) const { return is_row_end(p) && choice + choices >= p.k; }
  LB_DEVICE SumCursor next(const ExpertTask& p, int choices) const {
    if (!is_row_end(p)) return {out, choice, piece + p.row_lanes};
    if (choice + choices < p.k) return {out, choice + choices, 0};
    return {out + n_warps(), 0, 0};
  }
};

// Lanes of a warp divide a row of down, and choices if a row has fewer pieces than a warp has lanes. kSumRows: rows of
// down that a lane has in flight.
template <class Format, int kSumRows>
LB_NOINLINE void expert_sums(const ExpertTask& p, int part, unsigned char* pool, PhaseWait wait) {
  assume_shared(&p);
  constexpr bool kIsRounded = quant::plane_format(Format::kType).block_values > 1;
  ExpertScratch& scratch = expert_scratch(p, pool, kIsRounded);
  wait();
  choose_experts(p, scratch, wait);
  const int begin = part * p.product.rows_each + min(part, p.product.more);
  const int end = begin + p.product.rows_each + (part < p.product.more ? 1 : 0);
  const int row_lanes = p.row_lanes, own_choice = lane() / row_lanes, column = lane() % row_lanes;
  const int at_once = 32 / row_lanes, choices = at_once * kSumRows, n_pieces = p.product.n_pieces;
  const auto choice_of = [&](const SumCursor& at, int i) { return at.choice + i * at_once + own_choice; };
  const auto has_piece = [&](const SumCursor& at, int i) {
    return choice_of(at, i) < p.k && at.piece + column < n_pieces;
  };
  const auto read = [&](const SumCursor& at, typename Format::Piece(&pieces)[kSumRows]) {
    if (at.out >= end) return;
    const Gemv gemv = expert_rows(p, 0);
    const int piece = min(at.piece + column, n_pieces - 1);  // pieces and choices that do not exist are read, not used
    LB_UNROLL
    for (int i = 0; i < kSumRows; ++i) {
      const int expert = scratch.experts[min(choice_of(at, i), p.k - 1)];
      pieces[i] = typename Format::Rows(gemv, 0, expert * p.per_expert[0] + p.first_row[0] + at.out, piece).read(0);
    }
  };
  SumCursor at = {begin + warp(), 0, 0};
  typename Format::Piece pieces[kSumRows] = {};
  read(at, pieces);  // on their way while act() is
  stage_x<kIsRounded>(p.product, pool, wait);
  if (!wait.is_barrier) wait.mark_ready();
  block_barrier();

  const StagedX<kIsRounded> staged(pool, p.product.op.n_in);
  const RowEpilogue epilogue(p.product, part, wait);
  const bool has_shared = p.shared != nullptr;
  const MailboxSource& add = p.product.add_mailbox;
  const MailboxSource &shared = has_shared ? p.shared_mailbox : add, &gate = has_shared ? p.shared_gate_mailbox : add;
  const uint32_t tags[3] = {wait.tag_of(add), wait.tag_of(shared), wait.tag_of(gate)};
  float sum = 0, sums[kSumRows] = {};
  LB_UNROLL_BY(1)
  while (at.out < end) {
    const SumCursor next = at.next(p, choices);
    typename Format::Piece later[kSumRows] = {};
    read(next, later);
    LB_UNROLL
    for (int i = 0; i < kSumRows; ++i) {
      if (!has_piece(at, i)) continue;
      typename Format::X x = {};
      read_x<Format>(x, staged, choice_of(at, i) * n_pieces + at.piece + column);
      sums[i] += Format::dot(pieces[i], x, at.piece + column);
    }
    if (at.is_row_end(p)) {
      LB_UNROLL_BY(1)
      for (int mask = row_lanes / 2; mask > 0; mask /= 2) {
        LB_UNROLL
        for (int i = 0; i < kSumRows; ++i) sums[i] += shuffle_xor(sums[i], mask);
      }
      LB_UNROLL
      for (int i = 0; i < kSumRows; ++i) {
        LB_UNROLL_BY(1)
        for (int other = 0; other < at_once; ++other) {
          const int choice = at.choice + i * at_once + other;
          const float of_choice = shuffle(sums[i], other * row_lanes);
          if (choice >= p.k) continue;
          const float weight = scratch.weights[choice];
          sum = choice == 0 ? weight * of_choice : fma(weight, of_choice, sum);
        }
        sums[i] = 0;
      }
    }
    if (at.is_end(p, choices)) {
      const Mailbox* const from[3] = {PhaseWait::mailboxes_of(add) + mailbox_index(at.out),
                                      PhaseWait::mailboxes_of(shared) + mailbox_index(at.out),
                                      PhaseWait::mailboxes_of(gate) + mailbox_index(has_shared ? 0 : at.out)};
      float values[3];
      read_mailboxes<3>(wait, from, tags, values);
      if (has_shared) sum = fma(sigmoid(values[2]), values[1], sum);
      epilogue.write(epilogue.destination_of(at.out - begin, lane() == 0), sum + values[0]);
    }
    LB_UNROLL
    for (int i = 0; i < kSumRows; ++i) pieces[i] = later[i];
    at = next;
  }
}

}  // namespace lb::gpu
