// Correct kernels, one per group of dialect words: indices, shuffles, reductions, memory, atomics, barriers.
#include "io.h"

#include "cluster.h"

namespace lb::gpu {

// out: int [blocks, threads, 12]
LB_KERNEL(indices_kernel, Io, 1024, 1) {
  const int block = (block_id_z() * n_blocks_y() + block_id_y()) * n_blocks() + block_id();
  int* out = static_cast<int*>(p.out) + (block * n_threads() + thread_id()) * 12;
  const int values[12] = {thread_id(),  n_threads(),  block_id(), block_id_y(), block_id_z(), n_blocks(),
                          n_blocks_y(), n_blocks_z(), lane(),     warp(),       n_warps(),    p.n};
  LB_UNROLL
  for (int i = 0; i < 12; ++i) out[i] = values[i];
}

// One lane writes a word of shared memory, then two lanes write its halves. out: uint32_t [32]
LB_KERNEL(halves_of_words_kernel, Io, 32, 1) {
  auto bytes = dynamic_shared<uint8_t>();
  if (lane() < 16) store(bytes + lane() * 4, 0x10000u * uint32_t(lane()));
  warp_barrier();
  const uint32_t first = load<uint32_t>(bytes + lane() / 2 * 4);
  warp_barrier();
  store(bytes + lane() * 2, uint16_t(lane() + (first >> 16)));
  block_barrier();
  static_cast<uint32_t*>(p.out)[lane()] = load<uint16_t>(bytes + lane() * 2);
}

// in: T [threads]; out: T [4, threads]; n is the mask, the source and the distance
template <class T>
LB_DEVICE void shuffles(const Io& p) {
  const T v = static_cast<const T*>(p.in)[thread_id()];
  T* out = static_cast<T*>(p.out) + thread_id();
  out[0] = shuffle_xor(v, p.n);
  out[n_threads()] = shuffle(v, p.n);
  out[2 * n_threads()] = shuffle_down(v, p.n);
  out[3 * n_threads()] = shuffle_up(v, p.n);
}
LB_KERNEL(shuffle4_kernel, Io, 1024, 1) { shuffles<float>(p); }
LB_KERNEL(shuffle8_kernel, Io, 1024, 1) { shuffles<f32x2>(p); }

// in: int [threads]; out: uint32 [3, threads]
LB_KERNEL(votes_kernel, Io, 1024, 1) {
  const bool vote = static_cast<const int*>(p.in)[thread_id()] > p.n;
  uint32_t* out = static_cast<uint32_t*>(p.out) + thread_id();
  out[0] = ballot(vote);
  out[n_threads()] = any(vote);
  out[2 * n_threads()] = all(vote);
}

// in: float [threads]; out: float [6, threads]
LB_KERNEL(reductions_kernel, Io, 1024, 1) {
  LB_SHARED(float, scratch, 32);
  const float v = static_cast<const float*>(p.in)[thread_id()];
  float* out = static_cast<float*>(p.out) + thread_id();
  const int n = n_threads();
  out[0] = warp_sum(v);
  out[n] = warp_max(v);
  out[2 * n] = warp_min(v);
  out[3 * n] = block_sum(v, scratch);
  out[4 * n] = block_max(v, scratch);
  out[5 * n] = float(warp_sum(int(v)) + warp_max(int(v)) + warp_min(int(v)));
}

// Copies n values of 2, 4, 8 or 16 bytes with every load and store word.
template <class V>
LB_DEVICE void copy(const Io& p) {
  const V* in = static_cast<const V*>(p.in);
  V* out = static_cast<V*>(p.out);
  for (int i = block_id() * n_threads() + thread_id(); i < p.n; i += n_blocks() * n_threads()) {
    if (i % 3 == 0) store(out + i, load<V>(in + i));
    if (i % 3 == 1) store(out + i, load_cached<V>(in + i));
    if (i % 3 == 2) store_stream(out + i, load_stream<V>(in + i));
  }
}
LB_KERNEL(copy2_kernel, Io, 256, 1) { copy<uint16_t>(p); }
LB_KERNEL(copy4_kernel, Io, 256, 1) { copy<float>(p); }
LB_KERNEL(copy8_kernel, Io, 256, 1) { copy<u32x2>(p); }
LB_KERNEL(copy16_kernel, Io, 256, 1) { copy<f32x4>(p); }

// Reverses each block's values through static and dynamic shared memory. in, out: float [blocks, threads]
LB_KERNEL(reverse_kernel, Io, 256, 1) {
  LB_SHARED(float, first, 256);
  auto second = dynamic_shared<float>();
  const int i = thread_id(), n = n_threads();
  first[i] = static_cast<const float*>(p.in)[block_id() * n + i];
  block_barrier();
  second[i] = first[n - 1 - i];
  first[n - 1 - i] = 0;
  block_barrier();
  second[i] += first[i] * 2;
  static_cast<float*>(p.out)[block_id() * n + i] = second[i];
}

// Sums n stages of 4 x 32 floats with two asynchronous copies pending. One warp; in: float [n, 128]; out: float [128]
LB_KERNEL(stages_kernel, Io, 32, 1) {
  LB_SHARED(float, stage, 3 * 128);
  const float* in = static_cast<const float*>(p.in);
  const auto fetch = [&](int i) {
    if (i < p.n) copy_async<16>(&stage[i % 3 * 128 + 4 * lane()], in + i * 128 + 4 * lane());
    copy_commit();
  };
  fetch(0);
  fetch(1);
  f32x4 sum = {};
  for (int i = 0; i < p.n; ++i) {
    copy_wait<1>();
    warp_barrier();
    // reads the neighbour's copies, not this lane's own
    const f32x4 v = load<f32x4>(&stage[i % 3 * 128 + 4 * (lane() ^ 1)]);
    for (int j = 0; j < 4; ++j) sum[j] += v[j];
    fetch(i + 2);
  }
  store(static_cast<float*>(p.out) + 4 * (lane() ^ 1), sum);
}

// in: int [blocks, threads]; out: int, uint32, float sums; int, uint32 maxima; u64 maximum with the index and sum;
// shared sum
struct Sums {
  int sum;
  uint32_t unsigned_sum;
  float float_sum;
  int max;
  uint32_t unsigned_max, shared_sum;
  unsigned long long packed_max, long_sum;
};
LB_KERNEL(atomics_kernel, Io, 256, 1) {
  LB_SHARED(uint32_t, total, 1);
  Sums* out = static_cast<Sums*>(p.out);
  const int i = block_id() * n_threads() + thread_id();
  const int v = static_cast<const int*>(p.in)[i];
  if (thread_id() == 0) total[0] = 0;
  block_barrier();
  atomic_add(&total[0], uint32_t(v));
  atomic_add(&out->sum, v);
  atomic_add(&out->unsigned_sum, uint32_t(v));
  atomic_add(&out->float_sum, float(v));
  atomic_add(&out->long_sum, (unsigned long long)(v) << 30);
  atomic_max(&out->max, v);
  atomic_max(&out->unsigned_max, uint32_t(v));
  atomic_max(&out->packed_max, (unsigned long long)(uint32_t(v)) << 32 | uint32_t(i));
  block_barrier();
  if (thread_id() == 0) atomic_add(&out->shared_sum, uint32_t(total[0]));
}

// n rounds: each block adds its neighbour's last value to its own. in, out: uint32 [2, blocks], double-buffered
LB_KERNEL(grid_kernel, Io, 256, 1) {
  uint32_t* values = static_cast<uint32_t*>(p.out);
  const int blocks = n_blocks() * n_blocks_y();
  const int block = block_id_y() * n_blocks() + block_id();
  for (int round = 0; round < p.n; ++round) {
    const uint32_t* last = values + round % 2 * blocks;
    uint32_t* next = values + (round + 1) % 2 * blocks;
    if (thread_id() == n_threads() - 1) next[block] = last[block] + last[(block + 1) % blocks];
    grid_barrier(p.counter);
  }
}

// Each block sums the values of its cluster of n blocks. out: uint32 [2, blocks], values and sums
LB_KERNEL(cluster_kernel, Io, 256, 1) {
  uint32_t* values = static_cast<uint32_t*>(p.out);
  if (thread_id() == n_threads() - 1) values[block_id()] = uint32_t(block_id() + 1);
  cluster_barrier();
  if (thread_id() > 0) return;
  const int first = block_id() / p.n * p.n;
  for (int i = first; i < first + p.n; ++i) values[n_blocks() + block_id()] += values[i];
}

// Blocks take turns, the block with the highest id first. out: int [blocks]
LB_KERNEL(turns_kernel, Io, 64, 1) {
  if (thread_id() == 0) {
    const uint32_t turn = uint32_t(n_blocks() - 1 - block_id());
    while (load_acquire(p.counter) != turn) {
    }
    static_cast<int*>(p.out)[block_id()] = int(turn);
    store_release(p.counter, turn + 1);
  }
  wait_for_previous();
  dependents_may_launch();
}

// in: f16 A, B and M [16, 16], M stored [k, n]. out: float, C = f16(A B^T) M of the first eight rows of A, with zeros
// for the others [16, 16], and C split into high and low [2, 16, 16]
LB_KERNEL(sums_as_operands_kernel, Io, 32, 1) {
  LB_SHARED(f16, tiles, 3 * 16 * 24);
  for (int i = lane(); i < 3 * 16 * 2; i += 32)
    store(&tiles[i / 2 * 24 + i % 2 * 8], load_stream<u32x4>(static_cast<const f16*>(p.in) + i * 8));
  warp_barrier();
  float* out = static_cast<float*>(p.out);
  FragmentA<f16> a;
  FragmentB<f16> b;
  FragmentC first, second;
  fill(first, 0);
  fill(second, 0);
  load_shared_8_rows(a, tiles + 0, 24);
  load_shared(b, tiles + 16 * 24, 24);
  multiply(first, a, b);
  sum_as_operand(a, first);
  load_shared_transposed(b, tiles + 2 * 16 * 24, 24);
  multiply(second, a, b);
  for_each(second, [&](int row, int col, float& v) { out[16 * row + col] = v; });
  f16* parts = tiles;
  warp_barrier();
  store_parts(second, parts, parts + 16 * 24, 24);
  warp_barrier();
  for (int i = lane(); i < 2 * 256; i += 32) out[256 + i] = to_f32(load<f16>(parts + i / 16 * 24 + i % 16));
}

// Each warp reads only its own shared values; a vote orders its writes and reads.
LB_KERNEL(warp_order_kernel, Io, 256, 1) {
  LB_SHARED(int, values, 256);
  values[thread_id()] = thread_id();
  any(true);
  static_cast<int*>(p.out)[thread_id()] = values[thread_id() ^ 31];
}

}  // namespace lb::gpu
