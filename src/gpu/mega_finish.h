// Behind a product: sums of rows become y, as words or plain.
#pragma once

#include "activation.h"
#include "launch/megakernel_shape.h"
#include "mega_codes.h"

namespace lb::gpu {

// Of a pass of rows, in shared memory.
struct RowSums {
  float v[kPassSums];                // [matrices, row_warps, pass_rows]
  float squares[kMegaThreads / 32];  // of x, of each warp, where it is a norm's; in a step's first pass
};

// What becomes of a product's sums. All wait for who finishes them, and its code, which comes from memory as it is
// met: so whatever does not depend on sums is done before they are there, and behind them stands little.
struct RowMaker {
  int begin, n_rows, row_warps, pass_rows;
  float mean_of, eps;
  bool is_norm, writes_codes;
  uint32_t made_by, add_number;
  Word *to, *scales;  // words of y, or null; of codes the block's first, and of their scales
  const Word* added;  // words of what is added, or null
  const float* add;   // or what is added itself, of the block's first row, or null
  float* y;           // plain, likewise

  LB_DEVICE RowMaker(const ProductTask& p, int part, const PhaseWait& wait)
      : begin(part * p.rows_each + min(part, p.more) * p.row_unit),
        n_rows(p.rows_each + (part < p.more ? p.row_unit : 0)),
        row_warps(p.row_threads / 32),
        pass_rows(p.pass_rows),
        mean_of(p.mean_of),
        eps(p.eps),
        is_norm(p.from == XFrom::kRms),
        writes_codes(p.writes_codes != 0),
        made_by(wait.made_by),
        add_number(wait.number_of(p.add_words)) {
    Word* words = mega_state().words;
    to = p.y_words < 0 ? nullptr : words + (p.y_words + (writes_codes ? begin / 4 : 0));
    scales = words + (p.y_words + p.op.n_out / 4 + begin / kRoundRun);
    added = p.add_words.at < 0 ? nullptr : words + p.add_words.at;
    add = p.op.add == nullptr ? nullptr : p.op.add + begin;
    y = p.writes_y == 0 ? nullptr : p.op.y + begin;
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

  // The word of what is added to a row of the block's, there two phases ago as a rule.
  LB_DEVICE Word ask(int row) const { return added == nullptr ? 0 : load_relaxed(added + word_place(begin + row)); }

  // Of the warps that a row had, pass_rows apart.
  LB_DEVICE float sum_of(const float* sums) const {
    float sum = 0;
    LB_UNROLL_BY(1)
    for (int first = 0; first < row_warps; first += kAtOnce) {
      float of_warps[kAtOnce] = {};
      LB_UNROLL
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i < row_warps) of_warps[i] = load<float>(sums + (first + i) * pass_rows);
      LB_UNROLL
      for (int i = 0; i < kAtOnce; ++i) sum += of_warps[i];
    }
    return sum;
  }

  // A row of the block's. was_added: as asked for.
  LB_DEVICE void finish(int row, float sum, float factor, Word was_added, const PhaseWait& wait) const {
    float result[1] = {};
    if (added != nullptr) {
      result[0] = value_of_word(was_added);
      if (uint32_t(was_added >> 32) != add_number)
        read_words<1>(wait, {added + word_place(begin + row)}, {add_number}, result);
    } else if (add != nullptr) {
      result[0] = add[row];
    }
    write(row, result[0] + factor * sum);
  }
  // A row of silu(gate) up, by whole warps where codes are written.
  LB_DEVICE void finish_gated(int row, float gate, float up, float factor) const {
    const float result = silu(factor * gate) * (factor * up);
    if (!writes_codes) return write(row, result);
    const int run = row / kRoundRun;  // of the warp's lanes
    write_run(to + run * (kRoundRun / 4), scales + run, result, made_by);
  }

 private:
  static constexpr int kAtOnce = 4;

  LB_DEVICE void write(int row, float result) const {
    if (to != nullptr) store_relaxed(to + word_place(begin + row), word_of(result, made_by));
    if (y != nullptr) y[row] = result;
  }
};

}  // namespace lb::gpu
