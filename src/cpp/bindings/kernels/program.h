// Program: ops with their operands from fields, in the calls that the engine would send to a stream.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/kernels/op_fields.h"
#include "cpu/cpu_stream.h"
#include "ops/stream.h"
#include "pack/target.h"

namespace lb::kernels {

// The name of an op; the fields of the op for each sequence; the fields of the products that read its result, if the
// stream may fuse them. Several linears are a group: products of one x.
using OpCall = std::tuple<std::string, std::vector<nb::dict>, std::vector<nb::dict>>;
// Arrays written by the ops of a call, and by their readers.
using OpResults = std::pair<std::vector<nb::dict>, std::vector<nb::dict>>;

class Program {
 public:
  // target: of the device that `memory` is on; null: the CPU.
  Program(OpMemory& memory, const std::vector<OpCall>& calls, const gpu::Target* target);
  ~Program();

  void run(Stream& stream) const;
  std::vector<OpResults> results();

  size_t scratch_bytes() const { return scratch_bytes_; }  // of a device's stream
  int capacity() const { return capacity_; }               // tokens of the largest KV cache
  const CpuStreamOptions& cpu_scratch() const { return cpu_; }
  // Whether the first op counts in scratch memory and must leave the counters at zero, as replays need it.
  bool counts_in_scratch() const;
  const LinearGroup& group() const;       // of the first call, products
  void add_work(nb::dict& result) const;  // "bytes" and "flops" of the first op, where they are known

 private:
  struct Call;
  template <class Op>
  struct CallOf;

  std::byte* linked(const nb::tuple& link) const;
  template <class Op>
  void plan(CallOf<Op>& call, const gpu::Target* target);

  std::vector<std::unique_ptr<Call>> calls_;
  CpuStreamOptions cpu_;
  size_t scratch_bytes_ = 0;
  int capacity_ = 0;
};

}  // namespace lb::kernels
