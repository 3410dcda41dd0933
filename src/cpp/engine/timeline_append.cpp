// Manual appends: linear or a tree of rows, then committed or dropped.
#include <algorithm>

#include "base/error.h"
#include "engine/timeline.h"

namespace lb {
namespace {

// Parents and ancestor sets of a tree append; empty for a chain.
struct TreeRows {
  std::vector<int32_t> parent;
  std::vector<uint64_t> ancestors;
  std::vector<int> depth;

  explicit TreeRows(std::span<const int32_t> parents) : parent(parents.begin(), parents.end()) {
    LB_CHECK(parent.size() <= kMaxTree, kInvalid, "a tree has at most ", kMaxTree, " rows, got ", parent.size());
    for (int i = 0; i < static_cast<int>(parent.size()); ++i) {
      LB_CHECK(parent[i] >= -1 && parent[i] < i, kInvalid, "row ", i, " has parent ", parent[i],
               "; a parent must be an earlier row, or -1 for the committed sequence");
      const bool root = parent[i] < 0;
      ancestors.push_back((root ? 0 : ancestors[parent[i]]) | uint64_t{1} << i);
      depth.push_back(root ? 0 : depth[parent[i]] + 1);
    }
  }
  Tree view() const { return parent.empty() ? Tree{} : Tree{parent.data(), ancestors.data()}; }
};

}  // namespace

void Timeline::check_append(std::span<const int32_t> ids, const AppendOptions& options) const {
  const int rows = static_cast<int>(ids.size()), max_rows = engine_->options().prefill_chunk;
  const int n_layers = engine_->model().info().n_layers;
  engine_->check_text(ids);
  LB_CHECK(rows >= 1 && rows <= max_rows, kInvalid, "an append has 1 to ", max_rows, " rows, got ", rows);
  LB_CHECK(options.parents.empty() || options.parents.size() == ids.size(), kInvalid,
           "parents must have one entry per row, got ", options.parents.size(), " for ", rows, " rows");
  LB_CHECK(options.positions.empty() || options.positions.size() == 3 * ids.size(), kInvalid, "positions must be [3, ",
           rows, "]");
  for (size_t i = 0; i < options.taps.size(); ++i)
    LB_CHECK(options.taps[i] >= (i == 0 ? 0 : options.taps[i - 1] + 1) && options.taps[i] <= n_layers, kInvalid,
             "taps must ascend within 0 to ", n_layers);
}

void Timeline::compute(std::span<const int32_t> ids, const AppendOptions& options, const Interrupted& interrupted,
                       const Taps* taps) {
  const int rows = static_cast<int>(ids.size()), start = text_position(state_.n_tokens());
  const TreeRows tree(options.parents);
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < rows; ++r) positions_[axis * rows + r] = start + (tree.parent.empty() ? r : tree.depth[r]);
  const std::span<const int32_t> positions =
      options.positions.empty() ? std::span<const int32_t>(positions_).first(3 * ids.size()) : options.positions;
  forward(ids, positions, tree.view(), {.n = rows, .taps = taps}, interrupted);
  appended_ = {{ids.begin(), ids.end()}, tree.parent, options.parents.empty(), options.positions.empty()};
}

Timeline::AppendResult Timeline::append(std::span<const int32_t> ids, const AppendOptions& options,
                                        const Interrupted& interrupted) {
  check_append(ids, options);
  const std::lock_guard lock(turn());
  const size_t rows = ids.size(), vocab = engine_->model().info().vocab;
  AppendResult result;
  result.taps.resize(options.taps.size() * rows * engine_->model().info().hidden);
  const Taps taps{options.taps, result.taps.data()};
  compute(ids, options, interrupted, &taps);
  result.logits.resize(rows * vocab);
  for (size_t r = 0; r < rows; r += PassBuffers::kLogitRows)
    download_head(engine_->buffers_for(rows), r, std::min<int>(PassBuffers::kLogitRows, rows - r),
                  result.logits.data() + r * vocab);
  for (size_t r = 0; r < rows; ++r) check_finite({result.logits.data() + r * vocab, vocab}, tokens_.size() + r + 1);
  return result;
}

void Timeline::check_committed(const char* action) const {
  LB_CHECK(appended_.ids.empty(), kInvalid, "an append is not committed yet; commit it, then ", action);
}

void Timeline::commit(std::span<const int32_t> path) {
  const auto& [ids, parents, is_chain, is_text] = appended_;
  LB_CHECK(!ids.empty() || path.empty(), kInvalid, "there is no append to commit");
  for (int32_t row : path)
    LB_CHECK(row >= 0 && row < static_cast<int32_t>(ids.size()), kInvalid, "row ", row, " is not in the append of ",
             ids.size());
  for (size_t i = 0; i < path.size() && !parents.empty(); ++i)
    LB_CHECK(parents[path[i]] == (i == 0 ? -1 : path[i - 1]), kInvalid, "row ", path[i], " has parent ",
             parents[path[i]], "; the path to commit reaches it from row ", i == 0 ? -1 : path[i - 1]);
  const std::lock_guard lock(turn());
  state_.commit(path);
  const int n_text = n_text_;
  if (is_chain && is_text && path.size() == ids.size()) {
    add_tokens(ids);
  } else {
    for (int32_t row : path) add_path_token(ids[row]);
  }
  if (!is_text) n_text_ = n_text;
  forget_append();
}

int Timeline::rewind_floor() const {
  const std::lock_guard lock(turn());
  return state_.rewind_floor();
}

void Timeline::rewind(int n_tokens) {
  const std::lock_guard lock(turn());
  state_.rewind(n_tokens);
  truncate_tokens(n_tokens);
  forget_append();
}

}  // namespace lb
