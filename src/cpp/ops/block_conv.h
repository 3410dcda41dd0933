// DFlash 2's convolution over the rows of a draft's block: each row has separate kernels, one per group of channels.
#pragma once

namespace lb {

inline constexpr int kMaxBlockTaps = 8;

// y[r,c] = sum_{t <= r} (base[t,c] + kernels[r, t, c / group]) x[r - t, c] (+ add[r,c]); zeros before row 0.
struct BlockConv {
  const float* x;                // [rows, dim]
  const float* base;             // [n_taps, dim]; tap 0 is the row itself
  const float* kernels;          // [rows, n_taps, dim / group], row stride below
  const float* add;              // [rows, dim] or null; may be y
  float* y;                      // [rows, dim]; must not overlap x
  int rows, dim, n_taps, group;  // n_taps <= kMaxBlockTaps
  long kernel_stride;            // values between rows of kernels
};

}  // namespace lb
