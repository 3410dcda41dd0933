// Chooses the kernels of a Gated DeltaNet append, and their grids.
#include "gpu/delta_net/choose.h"

#include <algorithm>

#include "base/error.h"

namespace lb::gpu {
namespace {

uint32_t up_to_warp(int threads) { return uint32_t(threads + 31) / 32 * 32; }
int n_chunks(int rows) { return (rows + kMaxTree - 1) / kMaxTree; }
bool is_aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

std::string to_string(const GatedDelta& op) {
  return cat("[gated_delta] ", op.rows, " rows of ", op.n_k_heads, " x ", op.dk, " keys, ", op.n_v_heads, " x ", op.dv,
             " values");
}

Launch slices(const char* kernel, const GatedDelta& op, int columns, uint32_t threads, size_t shared_bytes,
              const Target& target, const std::string& what) {
  return checked({.kernel = kernel,
                  .grid = {uint32_t((op.dv + columns - 1) / columns), uint32_t(op.n_v_heads), 1},
                  .block = {threads, 1, 1},
                  .shared_bytes = shared_bytes,
                  .overlap_previous = true},
                 target, what);
}

Launch pairs(const GatedDelta& op, const Target& target, const std::string& what) {
  return checked({.kernel = "gated_delta_pairs_kernel",
                  .grid = {uint32_t(op.n_v_heads), uint32_t(n_chunks(op.rows)), 1},
                  .block = {kPairThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

size_t chunk_shared_bytes(const GatedDelta& op, int columns) {
  const int depth = (op.dk + kPanelDepth - 1) / kPanelDepth * kPanelDepth;
  return (size_t(depth) * columns + kRingFloats + kMaxTree * columns) * sizeof(float);
}

// Wide slices of S (32 columns) read keys and queries half as often. Narrow slices (16 columns) occupy more SMs and fit
// the shared memory of every target. With up to half a chunk of rows there is little to read: 22 rows of 48 heads take
// 16.9 us with narrow slices, 18.1 us with wide ones (H100).
Launch chunks(const GatedDelta& op, const Target& target, const std::string& what) {
  constexpr size_t kStaticBytes = 1024;
  const bool has_work = 2L * op.n_v_heads * ((op.dv + 31) / 32) > target.n_sms;
  const bool is_wide =
      has_work && op.rows > kMaxTree / 2 && chunk_shared_bytes(op, 32) + kStaticBytes <= target.shared_block_bytes;
  const int columns = is_wide ? 32 : 16;
  return slices(is_wide ? "gated_delta_chunks32_kernel" : "gated_delta_chunks16_kernel", op, columns, kChunkThreads,
                chunk_shared_bytes(op, columns), target, what);
}

Launch chain_pairs(const GatedDelta& op, const Target& target, const std::string& what) {
  return checked({.kernel = "gated_delta_chain_pairs_kernel",
                  .grid = {uint32_t(op.n_k_heads), uint32_t(n_chunks(op.rows)), 1},
                  .block = {kChainPairThreads, 1, 1},
                  .shared_bytes = kChainPairsBytes,
                  .overlap_previous = true},
                 target, what);
}

bool is_step(const DeltaInputs& op) { return !op.by_row && op.conv.rows == 1 && op.prepare.dk <= kInputThreads; }
// Whether delta_inputs_small or delta_inputs_chain supports the op.
bool has_rows_kernel(const DeltaInputs& op) {
  const CausalConv& conv = op.conv;
  return conv.rows > (op.by_row ? 0 : 1) && op.prepare.dk == kChainDk && conv.channels % kChainDk == 0 &&
         conv.n_taps == kChainTaps && op.prepare.row_stride == conv.channels && is_aligned(conv.x) &&
         is_aligned(conv.w) && is_aligned(conv.y) && is_aligned(conv.history) && is_aligned(conv.pending);
}

bool is_small(const GatedDelta& op, const Target& target) {
  return !op.by_row && op.rows > 1 && op.rows <= kSmallDeltaRows && op.dk == kChainDk &&
         op.dv % kSmallDeltaColumns == 0 && target.has("gated_delta_small_kernel");
}

void check_shape(const GatedDelta& op, const std::string& what) {
  LB_CHECK(op.rows >= 0 && op.n_k_heads >= 1 && op.n_v_heads >= 1 && op.n_v_heads % op.n_k_heads == 0, kInvalid, what,
           ": value heads must be a multiple of key heads");
  LB_CHECK(op.dk >= 8 && op.dk % 8 == 0 && op.dk <= kMaxHeadDim && op.dv >= 8 && op.dv % 8 == 0 && op.dv <= kMaxHeadDim,
           kUnsupported, what, ": head dims are multiples of 8 up to ", kMaxHeadDim);
  LB_CHECK(op.rows <= kMaxTree || (!op.tree.parent && !op.tree.ancestors), kInvalid, what, ": a tree has at most ",
           kMaxTree, " rows");
  LB_CHECK(op.rows == 0 || (is_aligned(op.q) && is_aligned(op.k) && is_aligned(op.v) && op.row_stride % 4 == 0),
           kInvalid, what, ": rows of q, k and v must be 16-byte aligned");
}

}  // namespace

Launch choose(const CausalConv& op, const Target& target) {
  const std::string what = cat("[causal_conv] [", op.rows, ", ", op.channels, "], ", op.n_taps, " taps");
  LB_CHECK(op.rows >= 0 && op.channels >= 1, kInvalid, what, ": nothing to compute");
  LB_CHECK(op.n_taps >= 2 && op.n_taps <= kMaxTaps, kUnsupported, what, ": 2 to ", kMaxTaps, " taps");
  LB_CHECK(op.rows <= kMaxTree || !op.tree.parent, kInvalid, what, ": a tree has at most ", kMaxTree, " rows");
  return checked({.kernel = "causal_conv_kernel",
                  .grid = {uint32_t((op.channels + kConvChannels - 1) / kConvChannels),
                           uint32_t(std::max(1, n_chunks(op.rows))), 1},
                  .block = {kConvThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

Launch choose(const DeltaPrepare& op, const Target& target) {
  const std::string what = cat("[delta_prepare] [", op.rows, ", ", op.n_k_heads, ", ", op.dk, "]");
  LB_CHECK(op.rows >= 1 && op.n_k_heads >= 1 && op.n_v_heads >= 1 && op.dk >= 1, kInvalid, what,
           ": nothing to compute");
  constexpr int kWarps = 8;
  const long items = long(op.rows) * (2 * op.n_k_heads + (op.n_v_heads + 31) / 32);
  return checked({.kernel = "delta_prepare_kernel",
                  .grid = {uint32_t((items + kWarps - 1) / kWarps), 1, 1},
                  .block = {kWarps * 32, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

bool is_fused(const DeltaInputs& op) { return is_step(op) || has_rows_kernel(op); }

Launch choose(const DeltaInputs& op, const Target& target) {
  const CausalConv& conv = op.conv;
  const DeltaPrepare& prepare = op.prepare;
  const long keys = long(prepare.n_k_heads) * prepare.dk;
  const std::string what = cat("[delta_inputs] [", conv.rows, ", ", conv.channels, "], ", conv.n_taps, " taps, ",
                               prepare.n_k_heads, " heads of ", prepare.dk);
  LB_CHECK(is_fused(op) && prepare.rows == conv.rows, kUnsupported, what, ": one row, heads of up to ", kInputThreads,
           "; or more, heads of ", kChainDk, ", ", kChainTaps, " taps");
  LB_CHECK(conv.rows <= kMaxTree || !conv.tree.parent, kInvalid, what, ": a tree has at most ", kMaxTree, " rows");
  LB_CHECK(conv.n_taps >= 2 && conv.n_taps <= kMaxTaps, kUnsupported, what, ": 2 to ", kMaxTaps, " taps");
  LB_CHECK(prepare.n_k_heads >= 1 && prepare.n_v_heads >= 1 && prepare.dk >= 1 && 2 * keys <= conv.channels, kInvalid,
           what, ": q and k must be heads of the first channels");
  LB_CHECK(prepare.q == conv.y && prepare.k == conv.y + keys, kInvalid, what, ": q and k must be the convolution's y");
  const uint32_t n_heads = uint32_t((conv.channels + prepare.dk - 1) / prepare.dk);
  const bool is_long = conv.rows > kMaxTree;
  const bool is_small = !is_step(op) && !is_long;
  const int n_gates = conv.rows * prepare.n_v_heads;
  const uint32_t n_gate_blocks = is_small ? uint32_t((n_gates + kSmallInputThreads - 1) / kSmallInputThreads) : 1;
  const uint32_t n_row_tiles = is_long ? uint32_t((conv.rows + kChainInputRows - 1) / kChainInputRows) : 1;
  return checked({.kernel = is_step(op) ? "delta_inputs_kernel"
                            : is_long   ? "delta_inputs_chain_kernel"
                                        : "delta_inputs_small_kernel",
                  .grid = {n_heads + n_gate_blocks, n_row_tiles, 1},
                  .block = {is_step(op) ? up_to_warp(prepare.dk)
                            : is_long   ? uint32_t(kChainInputThreads)
                                        : uint32_t(kSmallInputThreads),
                            1, 1},
                  .shared_bytes = is_small ? size_t(small_input_bytes(conv.rows)) : 0,
                  .overlap_previous = true},
                 target, what);
}

DeltaLaunches choose(const GatedDelta& op, float* work, const Target& target) {
  const std::string what = to_string(op);
  check_shape(op, what);
  DeltaLaunches result = {.launches = {}, .n = 0, .params = {op, work, {}}};
  const auto add = [&](const Launch& launch) { result.launches[result.n++] = launch; };
  constexpr int kLanesOfRow = kStepColumns / 4;
  const uint32_t slice_threads = up_to_warp((op.dk + kSliceRows - 1) / kSliceRows * kLanesOfRow);
  if (op.by_row) {
    LB_CHECK(op.rows <= kByRowRows, kInvalid, what, ", row by row: at most ", kByRowRows, " rows");
    add(slices("gated_delta_rows_kernel", op, kStepColumns, slice_threads, 0, target, what));
    return result;
  }
  if (op.rows == 1) add(slices("gated_delta_step_kernel", op, kStepColumns, slice_threads, 0, target, what));
  if (op.rows == 0 || op.rows > kMaxTree)
    add(slices("gated_delta_fold_kernel", op, kStepColumns, slice_threads, 0, target, what));
  if (is_chain(op, target)) {
    add(chain_pairs(op, target, what));
    add(slices("gated_delta_chain_kernel", op, kChainColumns, kChainThreads, kChainBytes, target, what));
  } else if (is_small(op, target)) {
    add(slices("gated_delta_small_kernel", op, kSmallDeltaColumns, kSmallDeltaThreads, small_delta_bytes(op.rows),
               target, what));
  } else if (op.rows > 1) {
    add(pairs(op, target, what));
    add(chunks(op, target, what));
  }
  return result;
}

std::optional<DeltaLaunches> choose(const GatedDelta& op, const GatedRmsNorm& norm, const Target& target) {
  if (!is_small(op, target) || norm.o != op.o || norm.rows != op.rows || norm.dim != op.dv || !is_aligned(norm.z) ||
      !is_aligned(norm.w))
    return {};
  DeltaLaunches small = choose(op, nullptr, target);
  small.params.norm = norm;
  return small;
}

bool is_chain(const GatedDelta& op, const Target& target) {
  return op.rows > kMaxTree && op.dk == kChainDk && op.dv % kChainColumns == 0 &&
         target.has("gated_delta_chain_kernel") && kChainBytes <= target.shared_block_bytes;
}

size_t gated_delta_scratch_bytes(const GatedDelta& op, const Target& target) {
  if (op.rows < 2 || op.by_row || is_small(op, target)) return 0;
  const size_t floats = is_chain(op, target) ? op.n_k_heads * kChainRowFloats + op.n_v_heads * kChainPairFloats
                                             : op.n_v_heads * kPairFloats;
  return n_chunks(op.rows) * floats * sizeof(float);
}

}  // namespace lb::gpu
