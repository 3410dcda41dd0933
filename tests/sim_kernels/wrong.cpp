// Kernels with one mistake each, which the simulator must find.
#include "io.h"

namespace lb::gpu {

LB_KERNEL(race_kernel, Io, 256, 1) {  // no barrier between write and read
  LB_SHARED(float, values, 256);
  values[thread_id()] = float(thread_id());
  static_cast<float*>(p.out)[thread_id()] = values[n_threads() - 1 - thread_id()];
}
LB_KERNEL(write_race_kernel, Io, 256, 1) {  // all write one element
  LB_SHARED(int, values, 4);
  values[2] = thread_id();
}
LB_KERNEL(read_then_write_race_kernel, Io, 256, 1) {  // no barrier before the second write
  auto values = dynamic_shared<int>();
  values[thread_id()] = 1;
  block_barrier();
  const int next = values[(thread_id() + 1) % n_threads()];
  values[thread_id()] = next;
}
LB_KERNEL(vector_race_kernel, Io, 256, 1) {  // through plain pointers
  LB_SHARED(float, values, 256);
  float* plain = values;
  store(plain + thread_id(), 1.0f);
  static_cast<float*>(p.out)[thread_id()] = load<f32x4>(plain + thread_id() / 4 * 4)[1];
}
LB_KERNEL(piece_race_kernel, Io, 256, 1) {  // thread n writes into 16 bytes that all threads read
  LB_SHARED(float, values, 4);
  float* plain = values;
  static_cast<float*>(p.out)[thread_id()] = load<f32x4>(plain)[0];
  if (thread_id() == p.n) values[1] = 0;
}
LB_KERNEL(piece_read_race_kernel, Io, 32, 1) {  // lane 0 writes after a collective, and the next lanes read
  LB_SHARED(float, values, 4);
  float* plain = values;
  float read = load<f32x4>(plain)[0];
  warp_barrier();  // lane 31 continues first
  if (lane() == 0) values[1] = 0;
  if (lane() > 0 && lane() < 31) read += load<f32x4>(plain)[1];
  static_cast<float*>(p.out)[thread_id()] = read;
}
LB_KERNEL(warp_race_kernel, Io, 256, 1) {  // a warp's collective orders only that warp
  LB_SHARED(int, values, 256);
  values[thread_id()] = 1;
  warp_barrier();
  static_cast<int*>(p.out)[thread_id()] = values[thread_id() ^ 32];
}
LB_KERNEL(copy_race_kernel, Io, 32, 1) {  // waits only for its own copies
  LB_SHARED(int, values, 32 * 4);
  copy_async<16>(&values[4 * lane()], static_cast<const int*>(p.in) + 4 * lane());
  copy_commit();
  copy_wait<0>();
  static_cast<int*>(p.out)[lane()] = values[4 * (lane() ^ 1)];
}
LB_KERNEL(global_race_kernel, Io, 256, 1) {  // the last writer wins: another order of threads shows the race
  static_cast<int*>(p.out)[0] = thread_id() + n_threads() * block_id();
}

LB_KERNEL(static_bounds_kernel, Io, 256, 1) {
  LB_SHARED(float, values, 100);
  values[thread_id()] = 0;
}
LB_KERNEL(dynamic_bounds_kernel, Io, 256, 1) { dynamic_shared<float>()[thread_id()] = 0; }
LB_KERNEL(below_bounds_kernel, Io, 256, 1) {
  LB_SHARED(float, values, 100);
  values[thread_id() - 1] = 0;
}
LB_KERNEL(pointer_bounds_kernel, Io, 32, 1) {
  LB_SHARED(float, values, 100);
  store(&values[0] + 100 + 4 * thread_id(), f32x4{});
}
LB_KERNEL(raw_shared_bounds_kernel, Io, 32, 1) {  // for address sanitizer
  float* values = dynamic_shared<float>();
  values[p.n + thread_id()] = 0;
}
LB_KERNEL(global_bounds_kernel, Io, 32, 1) {  // for address sanitizer
  static_cast<float*>(p.out)[p.n + thread_id()] = 0;
}
LB_KERNEL(too_much_shared_kernel, Io, 32, 1) {
  LB_SHARED(float, first, 8 * 1024);
  LB_SHARED(float, second, 8 * 1024);
  first[0] = 0;
  second[0] = 0;
}
LB_KERNEL(unset_kernel, Io, 32, 1) {
  LB_SHARED(float, values, 32);
  float x = values[thread_id()];
  static_cast<float*>(p.out)[thread_id()] = x + dynamic_shared<float>()[thread_id()];
}
LB_KERNEL(early_read_kernel, Io, 32, 1) {  // reads the destination of a pending copy
  LB_SHARED(float, values, 32 * 4);
  copy_async<16>(&values[4 * lane()], static_cast<const float*>(p.in) + 4 * lane());
  copy_commit();
  static_cast<float*>(p.out)[lane()] = values[4 * lane()];
  copy_wait<0>();
}
LB_KERNEL(misaligned_kernel, Io, 32, 1) {
  store(static_cast<float*>(p.out), load<f32x4>(static_cast<const float*>(p.in) + 1)[0]);
}
LB_KERNEL(stream_of_shared_kernel, Io, 32, 1) {
  LB_SHARED(float, values, 32);
  static_cast<float*>(p.out)[0] = load_stream<float>(&values[0]);
}

LB_KERNEL(half_barrier_kernel, Io, 256, 1) {
  if (thread_id() < p.n) block_barrier();
}
LB_KERNEL(two_barriers_kernel, Io, 256, 1) {
  if (thread_id() < p.n) {
    block_barrier();
  } else {
    block_barrier();
  }
}
LB_KERNEL(half_shuffle_kernel, Io, 256, 1) {
  if (lane() < p.n) static_cast<int*>(p.out)[thread_id()] = shuffle_xor(lane(), 1);
}
LB_KERNEL(two_collectives_kernel, Io, 256, 1) {
  if (lane() < p.n) {
    static_cast<int*>(p.out)[thread_id()] = shuffle_xor(lane(), 1);
  } else {
    ballot(true);
  }
}
LB_KERNEL(shuffle_and_barrier_kernel, Io, 256, 1) {
  if (lane() < p.n) {
    static_cast<int*>(p.out)[thread_id()] = shuffle_xor(lane(), 1);
    block_barrier();
  } else {
    block_barrier();
    shuffle_xor(lane(), 1);
  }
}
LB_KERNEL(missing_lane_kernel, Io, 256, 1) { static_cast<int*>(p.out)[thread_id()] = shuffle_xor(lane(), 16); }

LB_KERNEL(grid_exit_kernel, Io, 64, 1) {
  if (block_id() != 2) grid_barrier(p.counter);
}
LB_KERNEL(grid_barrier_kernel, Io, 64, 1) { grid_barrier(p.counter); }
LB_KERNEL(endless_kernel, Io, 64, 1) {
  while (load_acquire(p.counter) != 7) {
  }
}

}  // namespace lb::gpu
