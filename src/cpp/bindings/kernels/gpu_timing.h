// Device timing for the benchmarks in gpu_ops*.cpp.
#pragma once

#include "bindings/kernels/gpu_call.h"
#include "device/graph.h"

namespace lb::kernels {

// Seconds of one call of `work`, measured with device events on a replayed graph: the minimum of `tries`.
template <class Work>
double time_on_device(PythonPack& pack, int replays, int tries, Work&& work) {
  const gpu::Queue& stream = pack.stream();
  work();
  stream.synchronize();
  gpu::Capture capture(stream);
  work();
  const gpu::Graph graph(capture);
  graph.launch(stream);
  double best = 1e30;
  for (int i = 0; i < tries; ++i) {
    const gpu::Event begin(pack.device()), end(pack.device());
    stream.record(begin);
    for (int j = 0; j < replays; ++j) graph.launch(stream);
    stream.record(end);
    end.synchronize();
    best = std::min(best, double(begin.elapsed_ms(end)) * 1e-3 / replays);
  }
  return best;
}

// A buffer of random bytes, which memory compression cannot exploit.
inline gpu::Buffer random_buffer(PythonPack& pack, size_t bytes, uint64_t seed) {
  gpu::Buffer buffer(pack.device(), bytes);
  std::vector<uint64_t> values((std::min<size_t>(bytes, 64 << 20) + 7) / 8);
  for (uint64_t& value : values) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    value = seed ^= seed << 17;
  }
  const size_t piece = values.size() * 8;
  for (size_t at = 0; at < bytes; at += piece)
    pack.stream().copy_to_device(buffer.data() + at, values.data(), std::min(piece, bytes - at));
  pack.stream().synchronize();
  return buffer;
}

}  // namespace lb::kernels
