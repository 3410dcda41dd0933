// y = x w^T (+ add) for many rows of x, on matrix units: w is F16 or BF16, x is rounded to the type of w, sums are
// fp32.
//
// A block makes 64 x 64 outputs with four warps of 32 x 32, 32 values of the inner dimension at a time. While one pair
// of tiles is multiplied the next one is under way: w by asynchronous copies, x through registers, where it is rounded.
// Chips without a matrix instruction for the type multiply the same tiles in fp32.
// Bound: arithmetic, 2 rows n_out n_in flops; each block reads its tiles of both matrices once.
#include "dialect.h"

#include "launch/linear_shape.h"
#include "ops/linear.h"
#include "quant/planes.h"

namespace lb::gpu {

inline constexpr int kTileDepth = 32;
inline constexpr int kTileStride = kTileDepth + 8;  // 80 bytes: rows start in different banks, 16-byte aligned

LB_DEVICE f16 rounded(float x, f16) { return to_f16(x); }
LB_DEVICE bf16 rounded(float x, bf16) { return to_bf16(x); }

// Outputs of a warp from fragments: rows 32 (warp / 2) on, columns 32 (warp % 2) on.
template <class T>
struct MatrixSums {
  FragmentC c[2][2];

  LB_DEVICE MatrixSums() {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      LB_UNROLL
      for (int j = 0; j < 2; ++j) fill(c[i][j], 0);
    }
  }
  LB_DEVICE void add(const T* x, const T* w) {
    const int row = warp() / 2 * 32, column = warp() % 2 * 32;
    LB_UNROLL
    for (int k = 0; k < kTileDepth; k += 16) {
      FragmentA<T> a[2];
      FragmentB<T> b[2];
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        load(a[i], x + (row + 16 * i) * kTileStride + k, kTileStride);
        load(b[i], w + (column + 16 * i) * kTileStride + k, kTileStride);
      }
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int j = 0; j < 2; ++j) multiply(c[i][j], a[i], b[j]);
      }
    }
  }
  template <class F>
  LB_DEVICE void visit(F&& f) {
    const int row = warp() / 2 * 32, column = warp() % 2 * 32;
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      LB_UNROLL
      for (int j = 0; j < 2; ++j)
        for_each(c[i][j], [&](int r, int o, float& value) { f(row + 16 * i + r, column + 16 * j + o, value); });
    }
  }
};

// The same outputs one by one: a thread has 8 rows and every 16th column.
template <class T>
struct PlainSums {
  float c[8][4] = {};

  LB_DEVICE void add(const T* x, const T* w) {
    const int row = thread_id() / 16 * 8, column = thread_id() % 16;
    for (int k = 0; k < kTileDepth; ++k) {
      float b[4];
      LB_UNROLL
      for (int j = 0; j < 4; ++j) b[j] = to_f32(w[(column + 16 * j) * kTileStride + k]);
      LB_UNROLL
      for (int i = 0; i < 8; ++i) {
        const float a = to_f32(x[(row + i) * kTileStride + k]);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) c[i][j] = fma(a, b[j], c[i][j]);
      }
    }
  }
  template <class F>
  LB_DEVICE void visit(F&& f) {
    LB_UNROLL
    for (int i = 0; i < 8; ++i) {
      LB_UNROLL
      for (int j = 0; j < 4; ++j) f(thread_id() / 16 * 8 + i, thread_id() % 16 + 16 * j, c[i][j]);
    }
  }
};

// 16 values of a row of x, on their way to shared memory: thread 2 r + h has half h of row r of the tile.
template <class T>
struct XOnTheWay {
  f32x4 v[4];

  LB_DEVICE void read(const Linear& p, int first_row, int k) {
    const int row = first_row + thread_id() / 2;
    k += thread_id() % 2 * 16;
    const float* x = p.x + long(row) * p.n_in + k;
    const bool is_wide = p.n_in % 4 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      v[i] = {};
      if (row >= p.rows) continue;
      if (is_wide) {
        if (k + 4 * i < p.n_in) v[i] = lb::gpu::load<f32x4>(x + 4 * i);
      } else {
        LB_UNROLL
        for (int j = 0; j < 4; ++j)
          if (k + 4 * i + j < p.n_in) v[i][j] = x[4 * i + j];
      }
    }
  }
  LB_DEVICE void write(T* tile) const {
    T* to = tile + thread_id() / 2 * kTileStride + thread_id() % 2 * 16;
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      Vec<T, 8> out;
      LB_UNROLL
      for (int j = 0; j < 8; ++j) out[j] = rounded(v[2 * half + j / 4][j % 4], T{});
      store(to + 8 * half, out);
    }
  }
};

// Rows of w beyond the matrix, and what lies behind a row's end, become zero.
template <class T>
LB_DEVICE void read_w(const Linear& p, size_t row_bytes, int first_out, int k, T* tile) {
  LB_UNROLL
  for (int i = 0; i < kTileOuts * kTileDepth / 8 / kTileThreads; ++i) {
    const int piece = thread_id() + i * kTileThreads;  // of 16 bytes
    const int row = piece / 4, column = piece % 4 * 8;
    const size_t at = size_t(k + column) * sizeof(T);
    T* to = tile + row * kTileStride + column;
    if (first_out + row < p.n_out && at < row_bytes)
      copy_async<16>(to, static_cast<const unsigned char*>(p.w) + size_t(first_out + row) * row_bytes + at);
    else
      store(to, u32x4{});
  }
  copy_commit();
}

template <class T, class Sums>
LB_DEVICE void linear_tile(const Linear& p, DType type, T* x_tiles, T* w_tiles) {
  constexpr int kTile = kTileRows * kTileStride;
  static_assert(kTileRows == kTileOuts && kTileThreads == 128);
  const int first_row = block_id_y() * kTileRows, first_out = block_id() * kTileOuts;
  const size_t row_bytes = quant::plane_layout(type, p.n_out, p.n_in).row_bytes[0];
  dependents_may_launch();
  read_w(p, row_bytes, first_out, 0, w_tiles);
  wait_for_previous();
  XOnTheWay<T> x;
  x.read(p, first_row, 0);
  x.write(x_tiles);
  Sums sums;
  for (int k = 0, now = 0; k < p.n_in; k += kTileDepth, now = kTile - now) {
    copy_wait<0>();
    block_barrier();
    const bool has_next = k + kTileDepth < p.n_in;
    if (has_next) {
      read_w(p, row_bytes, first_out, k + kTileDepth, w_tiles + kTile - now);
      x.read(p, first_row, k + kTileDepth);
    }
    sums.add(x_tiles + now, w_tiles + now);
    if (has_next) x.write(x_tiles + kTile - now);
  }
  sums.visit([&](int r, int o, float value) {
    const int row = first_row + r, out = first_out + o;
    if (row >= p.rows || out >= p.n_out) return;
    const long at = long(row) * p.n_out + out;
    p.y[at] = p.add ? value + p.add[at] : value;
  });
}

template <bool kHasMatrix, class T>
struct SumsOf {
  using Type = MatrixSums<T>;
};
template <class T>
struct SumsOf<false, T> {
  using Type = PlainSums<T>;
};

LB_KERNEL(linear_tile_f16_kernel, Linear, kTileThreads, 2) {
  LB_SHARED(u32x4, x_tiles, 2 * kTileRows * kTileStride / 8);
  LB_SHARED(u32x4, w_tiles, 2 * kTileOuts * kTileStride / 8);
  linear_tile<f16, MatrixSums<f16>>(p, DType::kF16, reinterpret_cast<f16*>(&x_tiles[0]),
                                    reinterpret_cast<f16*>(&w_tiles[0]));
}

LB_KERNEL(linear_tile_bf16_kernel, Linear, kTileThreads, 2) {
  LB_SHARED(u32x4, x_tiles, 2 * kTileRows * kTileStride / 8);
  LB_SHARED(u32x4, w_tiles, 2 * kTileOuts * kTileStride / 8);
  linear_tile<bf16, SumsOf<kHasBf16Matrix, bf16>::Type>(p, DType::kBF16, reinterpret_cast<bf16*>(&x_tiles[0]),
                                                        reinterpret_cast<bf16*>(&w_tiles[0]));
}

}  // namespace lb::gpu
