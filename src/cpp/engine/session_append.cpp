// Appends by hand: a chain or a tree of rows, measured, committed or dropped.
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "engine/session.h"

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
               "; a parent comes before its children, -1 is the committed sequence");
      const bool root = parent[i] < 0;
      ancestors.push_back((root ? 0 : ancestors[parent[i]]) | uint64_t{1} << i);
      depth.push_back(root ? 0 : depth[parent[i]] + 1);
    }
  }
  Tree view() const { return parent.empty() ? Tree{} : Tree{parent.data(), ancestors.data()}; }
};

}  // namespace

void Session::check_append(std::span<const int32_t> ids, const AppendOptions& options) const {
  const int rows = static_cast<int>(ids.size()), max_rows = prefill_chunk();
  const int n_layers = engine_->model().info().n_layers;
  engine_->check_ids(ids);
  LB_CHECK(rows >= 1 && rows <= max_rows, kInvalid, "an append has 1 to ", max_rows, " rows, got ", rows);
  LB_CHECK(options.parents.empty() || options.parents.size() == ids.size(), kInvalid,
           "parents must name one row each: ", rows, " rows, ", options.parents.size(), " parents");
  LB_CHECK(options.positions.empty() || options.positions.size() == 3 * ids.size(), kInvalid, "positions must be [3, ",
           rows, "]");
  for (size_t i = 0; i < options.taps.size(); ++i)
    LB_CHECK(options.taps[i] >= (i == 0 ? 0 : options.taps[i - 1] + 1) && options.taps[i] <= n_layers, kInvalid,
             "taps must ascend within 0 to ", n_layers);
}

void Session::run_append(std::span<const int32_t> ids, const AppendOptions& options, const Interrupted& interrupted,
                         const Taps* taps) {
  const int rows = static_cast<int>(ids.size()), n_past = state_.n_tokens();
  const TreeRows tree(options.parents);
  for (int axis = 0; axis < 3; ++axis)
    for (int r = 0; r < rows; ++r) positions_[axis * rows + r] = n_past + (tree.parent.empty() ? r : tree.depth[r]);
  const std::span<const int32_t> positions =
      options.positions.empty() ? std::span<const int32_t>(positions_).first(3 * ids.size()) : options.positions;
  forward(ids, positions, tree.view(), interrupted, taps);
  has_logits_ = false;
  appended_.assign(ids.begin(), ids.end());
  appended_parents_ = tree.parent;
  appended_is_text_ = options.parents.empty() && options.positions.empty();
}

Session::AppendResult Session::append(std::span<const int32_t> ids, const AppendOptions& options,
                                      const Interrupted& interrupted) {
  check_append(ids, options);
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  const size_t rows = ids.size(), vocab = engine_->model().info().vocab;
  AppendResult result;
  result.taps.resize(options.taps.size() * rows * engine_->model().info().hidden);
  const Taps taps{options.taps, result.taps.data()};
  run_append(ids, options, interrupted, &taps);
  result.logits.resize(rows * vocab);
  for (size_t r = 0; r < rows; r += Executor::kLogitRows)
    download_head(engine_->executor_for(rows), r, std::min<int>(Executor::kLogitRows, rows - r),
                  result.logits.data() + r * vocab);
  for (size_t r = 0; r < rows; ++r) check_finite({result.logits.data() + r * vocab, vocab}, tokens_.size() + r + 1);
  return result;
}

void Session::measure_append(std::span<const int32_t> ids, int n_logits,
                             const std::function<void(const Work&)>& measure, const Interrupted& interrupted) {
  const int rows = static_cast<int>(ids.size());
  check_append(ids, {});
  LB_CHECK(n_logits >= 0 && n_logits <= rows, kInvalid, n_logits, " rows of logits are not in an append of ", rows);
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  engine_->executor().stream->wait();
  measure([&] {
    run_append(ids, {}, interrupted, nullptr);
    for (int r = rows - n_logits; r < rows; r += Executor::kLogitRows)
      head(engine_->executor_for(rows), r, std::min(Executor::kLogitRows, rows - r), engine_->executor().logits);
  });
}

double Session::time_append(std::span<const int32_t> ids, int n_logits, const Interrupted& interrupted) {
  using Clock = std::chrono::steady_clock;
  Clock::duration time{};
  const auto measure = [&](const Work& work) {
    const Clock::time_point start = Clock::now();
    work();
    engine_->executor().stream->wait();
    time = Clock::now() - start;
  };
  measure_append(ids, n_logits, measure, interrupted);
  return std::chrono::duration<double>(time).count();
}

std::vector<gpu::KernelTime> Session::profile_append(std::span<const int32_t> ids, int n_logits,
                                                     const Interrupted& interrupted) {
  std::vector<gpu::KernelTime> times;
  const auto measure = [&](const Work& work) {
    times = engine_->backend().time_kernels(*engine_->executor().stream, work);
  };
  measure_append(ids, n_logits, measure, interrupted);
  return times;
}

void Session::commit(std::span<const int32_t> path) {
  LB_CHECK(!appended_.empty() || path.empty(), kInvalid, "there is no append to commit");
  for (int32_t row : path)
    LB_CHECK(row >= 0 && row < static_cast<int32_t>(appended_.size()), kInvalid, "row ", row,
             " is not in the append of ", appended_.size());
  for (size_t i = 0; i < path.size() && !appended_parents_.empty(); ++i)
    LB_CHECK(appended_parents_[path[i]] == (i == 0 ? -1 : path[i - 1]), kInvalid, "row ", path[i], " has parent ",
             appended_parents_[path[i]], "; the path to commit comes from row ", i == 0 ? -1 : path[i - 1]);
  const std::lock_guard lock(engine_->executor().mutex);
  state_.commit(path);
  if (appended_is_text_ && path.size() == appended_.size()) {
    add_tokens(appended_);
  } else {
    for (int32_t row : path) tokens_.push_back(appended_[row]);
  }
  appended_.clear();
}

void Session::rewind(int n_tokens) {
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  state_.rewind(n_tokens);
  truncate_tokens(n_tokens);
  appended_.clear();
  has_logits_ = false;
}

}  // namespace lb
