#include "gpu/ranks/choose.h"

#include <algorithm>

#include "base/error.h"
#include "gpu/ranks/shape.h"

namespace lb::gpu {
namespace {

void check_devices(const RankMailboxes& ranks, long count, const std::string& what) {
  LB_CHECK(ranks.n >= 2 && ranks.n <= kMaxRanks && ranks.rank >= 0 && ranks.rank < ranks.n, kInvalid, what, ": rank ",
           ranks.rank, " of ", ranks.n, "; 2 to ", kMaxRanks, " ranks");
  LB_CHECK(count >= 1 && count <= ranks.max_values, kInvalid, what, ": 1 to ", ranks.max_values, " values of a rank");
}

}  // namespace

Launch choose(const AllReduce& op, const Target& target) {
  const std::string what = cat("[all_reduce] ", op.count, " values");
  LB_CHECK(op.count % 4 == 0, kUnsupported, what, ": must be a multiple of 4");
  check_devices(op.ranks, op.count, what);
  const bool words = uses_words(op.count);
  return checked({.kernel = words ? "all_reduce_words_kernel" : "all_reduce_rows_kernel",
                  .grid = {uint32_t(words ? word_blocks(op.count) : row_blocks(op.count)), 1, 1},
                  .block = {uint32_t(words ? kWordThreads : kRowThreads), 1, 1},
                  .overlap_previous = true},
                 target, what);
}

Launch choose(const AllGather& op, const Target& target) {
  const int width = *std::max_element(op.widths, op.widths + std::clamp(op.ranks.n, 1, kMaxRanks));
  const std::string what = cat("[all_gather] [", op.rows, ", ", width, "]");
  check_devices(op.ranks, long(op.rows) * width, what);
  return checked({.kernel = "all_gather_kernel",
                  .grid = {uint32_t(row_blocks(long(op.rows) * width)), 1, 1},
                  .block = {kRowThreads, 1, 1},
                  .overlap_previous = true},
                 target, what);
}

}  // namespace lb::gpu
