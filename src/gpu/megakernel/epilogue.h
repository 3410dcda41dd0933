// Epilogue of a product: adds the sums of a row's warps and writes y to mailboxes or plain memory.
#pragma once

#include "gpu/activation.h"
#include "gpu/megakernel/codes.h"
#include "gpu/megakernel/ranks.h"
#include "gpu/megakernel/shape.h"

namespace lb::gpu {

// The sums of a pass of rows, in shared memory.
struct alignas(16) RowSums {
  float v[kPassSums];                // [matrices, row_warps, pass_rows]
  float squares[kMegaThreads / 32];  // each warp's sum of squares of a norm's x; in a step's first pass
  float zero;                        // read in place of sums that a row does not have
};

// Where a lane's row is written. Null: nowhere.
struct RowDestination {
  Destination mailbox;
  float* plain = nullptr;
};

// The factor of a norm's x, from the warps' sums of squares.
LB_DEVICE float norm_factor(const float* squares, float mean_of, float eps) {
  float sum = 0;
  LB_UNROLL
  for (int i = 0; i < kMegaThreads / 32; i += 4) {
    const f32x4 v = load<f32x4>(squares + i);
    sum += v[0] + v[1] + (v[2] + v[3]);
  }
  return rsqrt_fast(sum * mean_of + eps);
}

// The fields of its task that a product's epilogue needs.
struct RowEpilogue {
  int n_out, begin, n_rows, row_warps, pass_rows;
  float mean_of, eps;
  bool is_norm, writes_codes;
  uint32_t tag, add_tag;
  Mailbox* to;           // first mailbox of y, or null
  const Mailbox* added;  // first mailbox of the addend, or null
  const float* add;      // [n_out] plain addend, or null
  float* y;              // [n_out] plain y, or null; if y is kept, in row 0 of the ring
  uint32_t kept_mask, kept_stride;
  RowsOf rows_of;
  int first_logit;  // of the block, among the logits of all ranks
  ShareWords shares;

  LB_DEVICE RowEpilogue(const ProductTask& p, int part, const PhaseWait& wait)
      : n_out(p.op.n_out),
        begin(part * p.rows_each + min(part, p.more) * p.row_unit),
        n_rows(p.rows_each + (part < p.more ? p.row_unit : 0)),
        row_warps(p.row_threads / 32),
        pass_rows(p.pass_rows),
        mean_of(p.mean_of),
        eps(p.eps),
        is_norm(p.from == XFrom::kRms),
        writes_codes(p.writes_codes != 0),
        tag(wait.tag),
        add_tag(wait.tag_of(p.add_mailbox)),
        kept_mask(p.kept_mask),
        kept_stride(p.kept_stride),
        rows_of(p.rows_of),
        first_logit(p.peers_at + begin) {
    if (has_shares()) shares = ShareWords(p);
    Mailbox* mailboxes = mega_state().mailboxes;
    to = p.y_mailbox < 0 ? nullptr : mailboxes + p.y_mailbox;
    added = p.add_mailbox.at < 0 ? nullptr : mailboxes + p.add_mailbox.at;
    add = p.op.add;
    y = p.writes_y == 0 ? nullptr : p.op.y;
  }

  // The destination of a row of the block. If it writes codes, whole warps must call it, with neighbouring rows in
  // neighbouring lanes.
  LB_DEVICE RowDestination destination_of(int row, bool is_there) const {
    if (!is_there) return {};
    RowDestination destination;
    if (to != nullptr) destination.mailbox = destination_in(to, n_out, begin + row, writes_codes);
    if (y != nullptr) destination.plain = y + (begin + row);
    return destination;
  }

  // The norm's factor, which staged x lacks.
  LB_DEVICE float factor(const float* squares) const { return is_norm ? norm_factor(squares, mean_of, eps) : 1.0f; }

  // Loads the addend of a row. A mailbox is loaded here and checked later; usually it was filled two phases ago. A
  // plain addend becomes valid together with the row's sums.
  LB_DEVICE Mailbox load_added(int row) const {
    return added == nullptr ? 0 : load_relaxed(added + mailbox_index(begin + row));
  }
  // is_stopped(): the launch is ending, so the value may never arrive.
  template <class IsStopped>
  LB_DEVICE float await_added(int row, Mailbox loaded, const PhaseWait& wait, IsStopped&& is_stopped) const {
    if (added == nullptr) return 0;
    uint32_t polls = mega_state().max_polls;
    LB_UNROLL_BY(1)
    while (uint32_t(loaded >> 32) != add_tag && !is_stopped()) {
      if (--polls == 0) {
        wait.time_out();
        break;
      }
      loaded = load_added(row);
    }
    return value_in(loaded);
  }
  // Valid only after the row's sums: the epilogue warp runs ahead of the token's numbers.
  LB_DEVICE uint32_t kept_offset() const { return (uint32_t(mega_state().numbers.n_past) & kept_mask) * kept_stride; }
  LB_DEVICE float plain_added(int row) const { return added == nullptr && add != nullptr ? add[begin + row] : 0.0f; }

  LB_DEVICE bool has_shares() const { return kTakesRanks && rows_of == RowsOf::kShares; }
  LB_DEVICE bool has_logits_of_ranks() const { return kTakesRanks && rows_of == RowsOf::kLogits; }
  // A thread sends the shares of its rows before it waits for any.
  LB_DEVICE void send(int row, float share) const { shares.send(begin + row, share, tag); }
  // The sums over the ranks. rows: of the block
  template <int kRows>
  LB_DEVICE void await_sums(const int (&rows)[kRows], const PhaseWait& wait, float (&sums)[kRows]) const {
    int at[kRows];
    LB_UNROLL
    for (int k = 0; k < kRows; ++k) at[k] = begin + rows[k];
    shares.await_sums(at, tag, wait, sums);
  }

  LB_DEVICE void write(const RowDestination& to, float result) const {
    write_value(to.mailbox, result, tag);
    if (to.plain != nullptr) to.plain[kept_offset()] = result;
  }
  // silu(gate) * up. If it writes codes, every lane of the warp must call it.
  LB_DEVICE void write_gated(const RowDestination& to, float gate, float up, float factor) const {
    const float result = silu(factor * gate) * (factor * up);
    if (!writes_codes) return write(to, result);
    write_codes(to.mailbox, result, tag, [](int) {});
  }
};

// Adds the sums of a row's warps, pass_rows apart, kAtOnce at a time. A missing sum reads RowSums::zero. Addresses are
// computed before the sums arrive.
struct RowSumsReader {
  static constexpr int kAtOnce = 4;
  int at[kAtOnce], step, n;  // byte offsets in dynamic shared memory; n: warps per row

  // row: index in the pass; matrix: 0 or, for a gated product, 1.
  LB_DEVICE RowSumsReader(const RowEpilogue& epilogue, const RowSums& sums, int matrix, int row)
      : step(4 * epilogue.pass_rows), n(epilogue.row_warps) {
    const auto offset = [](const float* p) {
      const unsigned char* shared = dynamic_shared<unsigned char>();
      return int(reinterpret_cast<const unsigned char*>(p) - shared);
    };
    const int first = offset(sums.v + matrix * n * epilogue.pass_rows + row), zero = offset(&sums.zero);
    LB_UNROLL
    for (int i = 0; i < kAtOnce; ++i) at[i] = opaque(i < n ? first + i * step : zero);
  }
  LB_DEVICE float total() const {
    const unsigned char* shared = dynamic_shared<unsigned char>();
    float v[kAtOnce];
    LB_UNROLL
    for (int i = 0; i < kAtOnce; ++i) v[i] = load<float>(shared + at[i]);
    float sum = v[0] + v[1] + (v[2] + v[3]);
    LB_UNROLL_BY(1)
    for (int i = kAtOnce; i < n; ++i) sum += load<float>(shared + at[0] + i * step);
    return sum;
  }
};

}  // namespace lb::gpu
