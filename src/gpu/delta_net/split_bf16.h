// fp32 products on bf16 matrix units: an operand is two bf16 parts, x = high + low to within 2^-17. A product takes
// three matrix products, high high + high low + low high, summed in fp32.
#pragma once

namespace lb::gpu {

// A matrix of operands in shared memory: high parts [kRows, kStride], then low parts.
template <int kRows, int kWidth>
struct Parts {
  static constexpr int kStride = kWidth + 8;  // padded against bank conflicts
  static constexpr int kLow = kRows * kStride, kBytes = 2 * kLow * int(sizeof(bf16));
  bf16* high;
  LB_DEVICE explicit Parts(void* at) : high(static_cast<bf16*>(at)) {}
  LB_DEVICE bf16* at(int row, int column) const { return high + row * kStride + column; }
};
template <class Fragment>
struct Both {
  Fragment high, low;
};
using OperandA = Both<FragmentA<bf16>>;
using OperandB = Both<FragmentB<bf16>>;

template <class Fragment, class Matrix>
LB_DEVICE void read(Both<Fragment>& both, const Matrix& m, int row, int k) {
  load_shared(both.high, m.at(row, k), Matrix::kStride);
  load_shared(both.low, m.at(row, k) + Matrix::kLow, Matrix::kStride);
}
template <class Matrix>
LB_DEVICE void read_transposed(OperandB& b, const Matrix& m, int k, int row) {
  load_shared_transposed(b.high, m.at(k, row), Matrix::kStride);
  load_shared_transposed(b.low, m.at(k, row) + Matrix::kLow, Matrix::kStride);
}
LB_DEVICE void add_product(FragmentC& c, const OperandA& a, const OperandB& b) {
  multiply(c, a.low, b.high);
  multiply(c, a.high, b.low);
  multiply(c, a.high, b.high);
}
LB_DEVICE void add(FragmentC& c, FragmentC& other) {
  float values[8];
  int n = 0;
  for_each(other, [&](int, int, float x) { values[n++] = x; });
  n = 0;
  for_each(c, [&](int, int, float& x) { x += values[n++]; });
}
template <class Matrix>
LB_DEVICE void write(const Matrix& m, int row, int column, FragmentC& c) {
  store_parts(c, m.at(row, column), m.at(row, column) + Matrix::kLow, Matrix::kStride);
}

// Splits four numbers.
LB_DEVICE void part(const f32x4& x, Vec<bf16, 4>& high, Vec<bf16, 4>& low) {
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    high[i] = to_bf16(x[i]);
    low[i] = to_bf16(x[i] - to_f32(high[i]));
  }
}
template <class Matrix>
LB_DEVICE void put_parts(const Matrix& m, int row, int column, const f32x4& x) {
  Vec<bf16, 4> high, low;
  part(x, high, low);
  store(m.at(row, column), high);
  store(m.at(row, column) + Matrix::kLow, low);
}

}  // namespace lb::gpu
