// The body of RopeTable, for its kernel and for the megakernel: scale * cos and sin of pos * inv_freq. The angle, its
// reduction to [-pi/4, pi/4] and both Taylor series are fp64; results are rounded once.
#pragma once

#include "ops/rope.h"

namespace lb::gpu {

// Taylor series in r^2; the error at pi/4 is below 2e-14.
LB_DEVICE double sine(double r) {
  const double x = r * r;
  double sum = 1.0 / 6227020800;  // 1/13!
  sum = sum * x - 1.0 / 39916800;
  sum = sum * x + 1.0 / 362880;
  sum = sum * x - 1.0 / 5040;
  sum = sum * x + 1.0 / 120;
  sum = sum * x - 1.0 / 6;
  return r + r * x * sum;
}
LB_DEVICE double cosine(double r) {
  const double x = r * r;
  double sum = -1.0 / 87178291200;  // 1/14!
  sum = sum * x + 1.0 / 479001600;
  sum = sum * x - 1.0 / 3628800;
  sum = sum * x + 1.0 / 40320;
  sum = sum * x - 1.0 / 720;
  sum = sum * x + 1.0 / 24;
  sum = sum * x - 0.5;
  return 1.0 + x * sum;
}

LB_DEVICE double rope_row_scale(const RopeTable& p, long row) {
  if (p.row_scales == nullptr) return 1;
  const long i = p.pos[row] / p.period;
  return p.row_scales[i < p.n_scales ? i : p.n_scales - 1];
}

// Computes entries first, first + step, ... of [rows, n_pairs].
LB_DEVICE void rope_angles(const RopeTable& p, long first, long step) {
  const long count = long(p.rows) * p.n_pairs;
  for (long at = first; at < count; at += step) {
    const int pair = int(at % p.n_pairs);
    const double angle = double(p.pos[long(p.axis[pair]) * p.rows + at / p.n_pairs]) * double(p.inv_freq[pair]);
    // Reduction by quarter turns. pi/2 is split into two parts, the first with 33 bits, so that turns * pi/2 is exact
    // up to 2^20 turns.
    const double turns = (angle * 0.63661977236758134) + 6755399441055744.0 - 6755399441055744.0;
    const double r = (angle - turns * 1.57079632673412561417) - turns * 6.07710050650619224932e-11;
    const double scale = p.scale * rope_row_scale(p, at / p.n_pairs);
    const double s = scale * sine(r), c = scale * cosine(r);
    const int quarter = int(long(turns) & 3);
    p.cos[at] = float(quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s);
    p.sin[at] = float(quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c);
  }
}

}  // namespace lb::gpu
