// Behind a product: sums of rows become y, as words or plain.
#pragma once

#include "gpu/activation.h"
#include "gpu/megakernel/codes.h"
#include "gpu/megakernel/shape.h"

namespace lb::gpu {

// Of a pass of rows, in shared memory.
struct alignas(16) RowSums {
  float v[kPassSums];                // [matrices, row_warps, pass_rows]
  float squares[kMegaThreads / 32];  // of x, of each warp, where it is a norm's; in a step's first pass
  float zero;                        // instead of sums that a row does not have
};

// Where a lane's row goes: null where it is not there or nobody reads.
struct RowDestination {
  Destination mailbox;
  float* plain = nullptr;
};

// What becomes of a product's sums.
struct RowEpilogue {
  int n_out, begin, n_rows, row_warps, pass_rows;
  float mean_of, eps;
  bool is_norm, writes_codes;
  uint32_t tag, add_tag;
  Mailbox* to;           // words of y, or null
  const Mailbox* added;  // words of what is added, or null
  const float* add;      // or what is added itself, or null
  float* y;              // plain, or null

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
        add_tag(wait.tag_of(p.add_mailbox)) {
    Mailbox* mailboxes = mega_state().mailboxes;
    to = p.y_mailbox < 0 ? nullptr : mailboxes + p.y_mailbox;
    added = p.add_mailbox.at < 0 ? nullptr : mailboxes + p.add_mailbox.at;
    add = p.op.add;
    y = p.writes_y == 0 ? nullptr : p.op.y;
  }

  // Of the block's row, by whole warps where codes are written: neighbouring lanes have neighbouring rows.
  LB_DEVICE RowDestination place_of(int row, bool is_there) const {
    if (!is_there) return {};
    RowDestination place;
    if (to != nullptr) place.mailbox = place_in(to, n_out, begin + row, writes_codes);
    if (y != nullptr) place.plain = y + (begin + row);
    return place;
  }

  LB_DEVICE float factor(const float* squares) const {
    if (!is_norm) return 1;
    float sum = 0;
    LB_UNROLL
    for (int i = 0; i < kMegaThreads / 32; i += 4) {
      const f32x4 v = load<f32x4>(squares + i);
      sum += v[0] + v[1] + (v[2] + v[3]);
    }
    return rsqrt_fast(sum * mean_of + eps);
  }

  // What is added to a row of the block's. In words, there two phases ago as a rule, it is asked for and then taken;
  // plain, it is there when the row's sums are.
  LB_DEVICE Mailbox ask(int row) const {
    return added == nullptr ? 0 : load_relaxed(added + mailbox_index(begin + row));
  }
  // is_stopped(): it may never come.
  template <class IsOver>
  LB_DEVICE float take(int row, Mailbox asked, const PhaseWait& wait, IsOver&& is_stopped) const {
    if (added == nullptr) return 0;
    uint32_t polls = mega_state().max_polls;
    LB_UNROLL_BY(1)
    while (uint32_t(asked >> 32) != add_tag && !is_stopped()) {
      if (--polls == 0) {
        wait.time_out();
        break;
      }
      asked = ask(row);
    }
    return value_in(asked);
  }
  LB_DEVICE float plain(int row) const { return added == nullptr && add != nullptr ? add[begin + row] : 0.0f; }

  LB_DEVICE void write(const RowDestination& place, float result) const {
    write_value(place.mailbox, result, tag);
    if (place.plain != nullptr) *place.plain = result;
  }
  // silu(gate) up, by whole warps where codes are written.
  LB_DEVICE void write_gated(const RowDestination& place, float gate, float up, float factor) const {
    const float result = silu(factor * gate) * (factor * up);
    if (!writes_codes) return write(place, result);
    write_codes_of_warp(place.mailbox, result, tag, [](int) {});
  }
};

// The sums of a row's warps, pass_rows apart: kAtOnce of them at once, for a missing one a 0 that is there. Where they
// are is known before they are.
struct RowSumsReader {
  static constexpr int kAtOnce = 4;
  int at[kAtOnce], step, n;  // in dynamic shared memory

  // Of a pass's row in one of the matrices.
  LB_DEVICE RowSumsReader(const RowEpilogue& maker, const RowSums& sums, int matrix, int row)
      : step(4 * maker.pass_rows), n(maker.row_warps) {
    const auto offset = [](const float* p) {
      const unsigned char* shared = dynamic_shared<unsigned char>();
      return int(reinterpret_cast<const unsigned char*>(p) - shared);
    };
    const int first = offset(sums.v + matrix * n * maker.pass_rows + row), zero = offset(&sums.zero);
    LB_UNROLL
    for (int i = 0; i < kAtOnce; ++i) at[i] = opaque(i < n ? first + i * step : zero);
  }
  LB_DEVICE float total() const {
    const unsigned char* shared = dynamic_shared<unsigned char>();
    float of[kAtOnce];
    LB_UNROLL
    for (int i = 0; i < kAtOnce; ++i) of[i] = load<float>(shared + at[i]);
    float sum = of[0] + of[1] + (of[2] + of[3]);
    LB_UNROLL_BY(1)
    for (int i = kAtOnce; i < n; ++i) sum += load<float>(shared + at[0] + i * step);
    return sum;
  }
};

}  // namespace lb::gpu
