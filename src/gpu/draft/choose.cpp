#include "gpu/draft/choose.h"

#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/append.h"
#include "quant/repack.h"

namespace lb::gpu {

Launch choose(const PreviousRow& op, const Target& target) {
  const std::string what = cat("[previous_row] [", op.rows, ", ", op.dim, "]");
  LB_CHECK(op.rows >= 0 && op.dim >= 1, kInvalid, what, ": nothing to compute");
  LB_CHECK(op.rows <= kMaxTree || !op.tree.parent, kInvalid, what, ": a tree has at most ", kMaxTree, " rows");
  const int n_chunks = (op.rows + kMaxTree - 1) / kMaxTree;
  return checked(
      {.kernel = "previous_row_kernel",
       .grid = {uint32_t((op.dim + kPreviousColumns - 1) / kPreviousColumns), uint32_t(std::max(1, n_chunks)), 1},
       .block = {kPreviousThreads, 1, 1},
       .overlap_previous = true},
      target, what);
}

Launch choose(const BlockConv& op, const Target& target) {
  const std::string what =
      cat("[block_conv] [", op.rows, ", ", op.dim, "], ", op.n_taps, " taps, groups of ", op.group);
  LB_CHECK(op.rows >= 1 && op.dim >= 1 && op.group >= 1 && op.dim % op.group == 0, kInvalid, what,
           ": nothing to compute, or channels that are no whole groups");
  LB_CHECK(op.n_taps >= 1 && op.n_taps <= kMaxBlockTaps, kUnsupported, what, ": 1 to ", kMaxBlockTaps, " taps");
  constexpr int kThreads = 128;  // 16 rows of 5120 channels: 160 blocks
  const long parts = (long(op.rows) * op.dim + 3) / 4;
  LB_CHECK(parts * 4 < 1L << 31, kUnsupported, what, ": too many values");
  return checked({.kernel = "block_conv_kernel",
                  .grid = {uint32_t(std::min<long>((parts + kThreads - 1) / kThreads, 8L * target.n_sms)), 1, 1},
                  .block = {kThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

Launch choose(const GrowTree& op, const Target& target) {
  const std::string what = cat("[grow_tree] ", op.max_rows, " rows of ", op.depth, " x ", op.k, " candidates");
  LB_CHECK(op.sequences >= 1 && op.depth >= 1 && op.k >= 1 && op.rows >= 1 && op.rows <= op.max_rows, kInvalid, what,
           ", ", op.rows, " to verify, for ", op.sequences, " sequences: nothing to grow");
  LB_CHECK(op.max_rows <= kMaxTree && op.depth < kMaxTree && op.k <= kMaxTopTokens, kUnsupported, what, ": up to ",
           kMaxTree, " rows of ", kMaxTree - 1, " x ", kMaxTopTokens);
  return checked({.kernel = "grow_tree_kernel",
                  .grid = {uint32_t(op.sequences), 1, 1},
                  .block = {32, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

SelectLaunches choose(const SelectCandidates& op, float* scratch, const Target& target) {
  const std::string what = cat("[select_candidates] ", op.rows, " rows of ", op.k, " beside ", name(op.type), " [",
                               op.vocab, ", ", op.rank, "]");
  quant::checked_plane_layout(op.type, op.vocab, op.rank);
  LB_CHECK(op.rows >= 1 && op.rows < kMaxTree && op.k >= 1 && op.k <= kMaxTopTokens, kUnsupported, what, ": 1 to ",
           kMaxTree - 1, " rows of 1 to ", kMaxTopTokens, " candidates");
  LB_CHECK(op.rank >= 1 && op.rank <= kMaxSelectorRank, kUnsupported, what, ": a rank of 1 to ", kMaxSelectorRank);
  return {.launches = {checked({.kernel = "select_scores_kernel",
                                .grid = {uint32_t(op.rows), 1, 1},
                                .block = {kSelectThreads, 1, 1},
                                .shared_bytes = select_shared_bytes(op.k, op.rank),
                                .overlap_previous = true},
                               target, what),
                       checked({.kernel = "select_candidates_kernel",
                                .block = {kSelectThreads, 1, 1},
                                .overlap_previous = true},
                               target, what)},
          .params = {op, scratch}};
}

}  // namespace lb::gpu
