// Ops of vision towers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "cpu/kernels.h"
#include "cpu/tasks.h"
#include "ops/vision.h"

namespace lb {

using cpu::for_ranges;

namespace {

// The position of a patch in the table: the entries before and after it, and its distance from the first.
struct TableAt {
  int before, after;
  float part;

  TableAt(int at, int n, int side) {
    const float exact = n == 1 ? 0.0f : float(double(side - 1) * at / (n - 1));
    before = std::min(int(exact), side - 1), after = std::min(before + 1, side - 1);
    part = exact - float(before);
  }
};

float gelu_tanh(float x) { return 0.5f * x * (1 + std::tanh(kGelu * (x + kGeluCube * x * x * x))); }
float gelu_erf(float x) { return 0.5f * x * (1 + std::erf(x * float(std::numbers::sqrt2 / 2))); }

}  // namespace

void CpuStream::run(const ReadPatches& op) {
  const int p = op.patch;
  for_ranges(pool(), op.rows, 3L * p * p, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const PatchPlace place = patch_place(op.first + i, op.columns, op.merge);
      for (int channel = 0; channel < 3; ++channel)
        for (int r = 0; r < p; ++r) {
          const uint8_t* from = op.rgb + ((size_t(place.row) * p + r) * op.columns + place.column) * size_t(p) * 3;
          float* to = op.y + size_t(i) * 3 * p * p + (size_t(channel) * p + r) * p;
          for (int c = 0; c < p; ++c) to[c] = op.level[256 * channel + from[3 * c + channel]];
        }
    }
  });
}

void CpuStream::run(const AddPositions& op) {
  for_ranges(pool(), op.rows, 4L * op.dim, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const PatchPlace place = patch_place(op.first + i, op.columns, op.merge);
      const TableAt y(place.row, op.height, op.side), x(place.column, op.columns, op.side);
      const auto add = [&](int r, int c, float share) {
        const float* from = op.table + (size_t(r) * op.side + c) * op.dim;
        for (int k = 0; k < op.dim; ++k) op.y[size_t(i) * op.dim + k] += share * from[k];
      };
      add(y.before, x.before, (1 - y.part) * (1 - x.part)), add(y.before, x.after, (1 - y.part) * x.part);
      add(y.after, x.before, y.part * (1 - x.part)), add(y.after, x.after, y.part * x.part);
    }
  });
}

void CpuStream::run(const AddAxisPositions& op) {
  for_ranges(pool(), op.rows, 2L * op.dim, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const PatchPlace place = patch_place(op.first + i, op.columns, op.merge);
      const float* x = op.table + size_t(place.column) * op.dim;
      const float* y = op.table + (size_t(op.side) + place.row) * op.dim;
      for (int k = 0; k < op.dim; ++k) op.y[size_t(i) * op.dim + k] += x[k] + y[k];
    }
  });
}

void CpuStream::run(const PoolPatches& op) {
  for_ranges(pool(), op.rows, long(op.block) * op.dim, [&](int begin, int end) {
    for (int i = begin; i < end; ++i)
      for (int k = 0; k < op.dim; ++k) {
        float sum = 0;
        for (int j = 0; j < op.block; ++j) sum += op.x[(size_t(i) * op.block + j) * op.dim + k];
        float y = sum / float(op.block) * op.factor;
        if (op.bias != nullptr) y = (y - op.bias[k]) * op.scale[k];
        op.y[size_t(i) * op.dim + k] = y;
      }
  });
}

void CpuStream::run(const Clamp& op) {
  for_ranges(pool(), op.rows, op.dim, [&](int begin, int end) {
    for (size_t i = size_t(begin) * op.dim; i < size_t(end) * op.dim; ++i)
      op.y[i] = std::min(std::max(op.x[i], op.lowest), op.highest);
  });
}

void CpuStream::run(const LayerNorm& op) {
  for_ranges(pool(), op.rows, 3L * op.dim, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      const float* from = op.x + size_t(r) * op.dim;
      float* to = op.y + size_t(r) * op.dim;
      double sum = 0, squares = 0;
      for (int i = 0; i < op.dim; ++i) sum += from[i];
      const double mean = sum / op.dim;
      for (int i = 0; i < op.dim; ++i) squares += (from[i] - mean) * (from[i] - mean);
      const double scale = 1 / std::sqrt(squares / op.dim + op.eps);
      for (int i = 0; i < op.dim; ++i) to[i] = float((from[i] - mean) * scale) * op.w[i] + op.b[i];
    }
  });
}

void CpuStream::run(const BiasGelu& op) {
  for_ranges(pool(), op.rows, 16L * op.dim, [&](int begin, int end) {
    for (int r = begin; r < end; ++r)
      for (int i = 0; i < op.dim; ++i) {
        float& y = op.y[size_t(r) * op.dim + i];
        y = op.is_exact ? gelu_erf(y + op.bias[i]) : gelu_tanh(y + op.bias[i]);
      }
  });
}

void CpuStream::run(const SplitHeads& op) {
  const int half = op.dim / 2;
  for_ranges(pool(), op.rows, 3L * op.heads * op.dim, [&](int begin, int end) {
    for (int r = begin; r < end; ++r)
      for (int i = 0; i < 3 * op.heads; ++i) {
        const int part = i / op.heads, head = i % op.heads;
        if (part == 0 && op.q == nullptr) continue;
        const float* x = op.x + size_t(r) * op.row_stride + size_t(part) * op.part_stride + size_t(head) * op.dim;
        const float* bias = op.bias == nullptr ? nullptr : op.bias + size_t(i) * op.dim;
        const size_t slot = size_t(op.first) + r;
        const size_t to = part == 0
                              ? (size_t(head) * op.rows + r) * op.padded
                              : ((slot / kPageSlots * op.heads + head) * kPageSlots + slot % kPageSlots) * op.padded;
        const auto put = [&](int column, float value) {
          if (part == 0)
            op.q[to + column] = value;
          else if (op.type == KvType::kF32)
            static_cast<float*>(part == 1 ? op.k : op.v)[to + column] = value;
          else
            static_cast<uint16_t*>(part == 1 ? op.k : op.v)[to + column] = quant::f32_to_f16(value);
        };
        for (int k = 0; k < half; ++k) {
          const auto [at, distance] = pair_columns(k, op.dim, op.is_by_axis);
          float a = x[at], b = x[at + distance];
          if (bias != nullptr) a += bias[at], b += bias[at + distance];
          const float c = part < 2 ? op.cos[size_t(r) * half + k] : 1, s = part < 2 ? op.sin[size_t(r) * half + k] : 0;
          put(at, a * c - b * s), put(at + distance, b * c + a * s);
        }
        for (int k = op.dim; k < op.padded; ++k) put(k, 0);
      }
  });
}

void CpuStream::run(const MergeHeads& op) {
  for_ranges(pool(), op.rows, long(op.heads) * op.dim, [&](int begin, int end) {
    for (int r = begin; r < end; ++r)
      for (int head = 0; head < op.heads; ++head)
        std::memcpy(op.y + (size_t(r) * op.heads + head) * op.dim, op.x + (size_t(head) * op.rows + r) * op.padded,
                    sizeof(float) * op.dim);
  });
}

}  // namespace lb
