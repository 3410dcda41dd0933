// Grids of the sampler. sample_kernel has at most one block per SM, so that all blocks are co-resident (they meet at
// grid barriers), and at least four logits per thread if the vocabulary is large enough.
#include "gpu/sampling/choose.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "gpu/ceil_div.h"

namespace lb::gpu {
namespace {

constexpr int kMaxThreads = 512;

// n: samplers in the launch
int sample_blocks(int vocab, int n, const Target& target) {
  const int blocks = (vocab + 4 * kMaxThreads - 1) / (4 * kMaxThreads);
  return std::clamp(blocks, 1, std::max(1, std::min(target.n_sms / n, kMaxSampleBlocks)));
}

}  // namespace

size_t sample_scratch_bytes(int vocab) { return sizeof(SampleGrid) + size_t(vocab) * sizeof(float); }

SampleLaunches choose(const Sample& op, void* scratch, const Target& target, int n) {
  const std::string what = cat("[sample] vocabulary of ", op.vocab);
  LB_CHECK(op.vocab >= 1 && op.vocab < kMaxSampleVocab, kUnsupported, what, " on ", target.name, ": must be 1 to ",
           kMaxSampleVocab - 1);
  const int blocks = sample_blocks(op.vocab, n, target);
  const uint32_t threads =
      blocks > 1 ? kMaxThreads : std::clamp(std::bit_ceil(uint32_t(op.vocab + 3) / 4), 32u, uint32_t(kMaxThreads));
  auto* grid = static_cast<SampleGrid*>(scratch);
  return {
      .launch = checked(
          {.kernel = "sample_kernel", .grid = {uint32_t(blocks), 1, 1}, .block = {threads, 1, 1}, .cooperative = true},
          target, what),
      .params = {.op = op, .grid = grid, .x = reinterpret_cast<float*>(grid + 1)}};
}

// Uses the sampler's grid, because the same blocks sample and walk.
WalkLaunch choose(const WalkTree& op, void* scratch, const Target& target) {
  const std::string what = cat("[walk_tree] ", op.rows, " rows from ", op.first, ", ring of ", op.ring.capacity);
  LB_CHECK(op.rows >= 1 && op.rows <= kMaxTree && op.first >= 0 && op.first < op.rows, kInvalid, what,
           ": a tree has 1 to ", kMaxTree, " rows");
  LB_CHECK(op.ring.capacity >= op.rows && std::has_single_bit(uint32_t(op.ring.capacity)), kInvalid, what,
           ": the capacity must be a power of two, with a slot for every row");
  LB_CHECK(op.accept.n_past == nullptr || op.first == 0, kInvalid, what, ": an accepted path begins at the root");
  SampleLaunches sample = choose(op.choice, scratch, target);
  sample.launch.kernel = "walk_tree_kernel";
  return {.launch = checked(sample.launch, target, what), .params = {.sample = sample.params, .op = op}};
}

// About four blocks per SM, of 2048 to 32768 logits each.
TopTokensLaunches choose(const TopTokens& op, void* scratch, const Target& target) {
  const std::string what = cat("[top_tokens] ", op.k, " of [", op.rows, ", ", op.vocab, "]");
  LB_CHECK(op.rows >= 1 && op.vocab >= 1 && op.vocab < kMaxSampleVocab, kUnsupported, what, " on ", target.name,
           ": at least a row of 1 to ", kMaxSampleVocab - 1, " logits");
  LB_CHECK(op.k >= 1 && op.k <= std::min(op.vocab, kMaxTopTokens), kInvalid, what, ": 1 to ", kMaxTopTokens,
           " tokens of the vocabulary");
  constexpr int kMinSlice = 2048, kMaxSlice = kTopThreads * kTopThreadLogits;
  const int blocks = std::max(1, 4 * target.n_sms / op.rows);
  int slice = std::clamp(ceil_div(op.vocab, blocks), kMinSlice, kMaxSlice);
  slice = ceil_div(std::max(slice, ceil_div(op.vocab, kMaxTopSlices)), 4) * 4;
  const int n_slices = ceil_div(op.vocab, slice);
  auto* keys = static_cast<uint64_t*>(scratch);
  const auto rows = uint32_t(op.rows);
  return {.launches = {checked({.kernel = "top_tokens_slices_kernel",
                                .grid = {uint32_t(n_slices), rows, 1},
                                .block = {kTopThreads, 1, 1},
                                .overlap_previous = true},
                               target, what),
                       checked({.kernel = "top_tokens_kernel",
                                .grid = {rows, 1, 1},
                                .block = {kTopThreads, 1, 1},
                                .overlap_previous = true},
                               target, what)},
          .params = {.op = op,
                     .keys = keys,
                     .sums = reinterpret_cast<float*>(keys + size_t(op.rows) * n_slices * op.k),
                     .n_slices = n_slices,
                     .slice = slice}};
}

Launch choose(const CountWindow& op, const Target& target) {
  const std::string what = cat("[count_window] history of ", op.capacity);
  LB_CHECK(op.capacity >= 1, kInvalid, what, ": nothing to count");
  constexpr int kThreads = 256;
  const int blocks = std::clamp((op.capacity + kThreads - 1) / kThreads, 1, target.n_sms);
  return checked({.kernel = "count_window_kernel",
                  .grid = {uint32_t(blocks), 1, 1},
                  .block = {kThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

Launch choose(const NextToken& op, const Target& target) {
  const std::string what = cat("[next_token] ring of ", op.ring.capacity);
  LB_CHECK(op.ring.capacity >= 1 && std::has_single_bit(uint32_t(op.ring.capacity)), kInvalid, what,
           ": the capacity must be a power of two");
  return checked({.kernel = "next_token_kernel", .block = {32, 1, 1}, .overlap_previous = true}, target, what);
}

}  // namespace lb::gpu
