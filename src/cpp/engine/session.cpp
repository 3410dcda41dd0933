// The timeline: prefix reuse, chunked prefill, scoring, snapshots.
#include "engine/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "state/snapshot.h"

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

Session::Session(std::shared_ptr<const Engine> engine)
    : engine_(std::move(engine)),
      state_({engine_->model().layer_shapes().begin(), engine_->model().layer_shapes().end()}, engine_->state_options(),
             *engine_->executor().stream),
      logits_(engine_->model().info().vocab),
      positions_(3 * static_cast<size_t>(engine_->executor().max_rows)) {
  const std::lock_guard lock(engine_->executor().mutex);
  loop_ = engine_->place().make_loop(*engine_, state_);
  tokens_.reserve(state_.capacity());
  ends_.reserve(state_.capacity());
}

void Session::check_ids(std::span<const int32_t> ids) const {
  const int vocab = engine_->model().info().vocab;
  for (size_t i = 0; i < ids.size(); ++i)
    LB_CHECK(ids[i] >= 0 && ids[i] < vocab, kInvalid, "token ", i, " is ", ids[i], "; the vocabulary has ", vocab,
             " tokens");
  LB_CHECK(ids.size() <= static_cast<size_t>(context()), kInvalid, ids.size(), " tokens do not fit the context of ",
           context(), "; load the model with a larger context");
}

void Session::forward(std::span<const int32_t> ids, std::span<const int32_t> positions, const Tree& tree,
                      const Interrupted& interrupted, const Taps* taps) {
  Executor& executor = engine_->executor();
  const int rows = static_cast<int>(ids.size());
  Stream& stream = *executor.stream;
  state_.begin_append(rows, tree);
  stream.upload(executor.tokens, ids.data(), ids.size_bytes());
  stream.upload(executor.positions, positions.data(), positions.size_bytes());
  Tree placed{};
  if (tree.parent != nullptr) {
    stream.upload(executor.parents, tree.parent, rows * sizeof *tree.parent);
    stream.upload(executor.ancestors, tree.ancestors, rows * sizeof *tree.ancestors);
    placed = {executor.parents, executor.ancestors};
  }
  appended_.clear();
  const auto send = [&] {
    engine_->model().forward({.tokens = {executor.tokens, ids.size()},
                              .positions = {executor.positions, 3 * ids.size()},
                              .tree = placed,
                              .interrupted = interrupted ? &interrupted : nullptr},
                             state_, executor.workspace, engine_->options().activations, stream, taps);
  };
  try {
    const bool has_taps = taps != nullptr && !taps->layers.empty();  // which are copied on the way
    rows <= kMaxTree && !has_taps ? recorded_.send(rows, tree.parent != nullptr, stream, send) : send();
  } catch (...) {
    state_.abort_append();
    cut_tokens(state_.n_tokens());
    has_logits_ = false;
    throw;
  }
  state_.end_append();
}

void Session::head(int row, int rows) {
  Executor& executor = engine_->executor();
  const Model& model = engine_->model();
  model.head(executor.workspace.y + static_cast<size_t>(row) * model.info().hidden, rows, executor.logits,
             engine_->options().activations, *executor.stream);
}

void Session::head(int row, int rows, float* logits) {
  head(row, rows);
  const Executor& executor = engine_->executor();
  executor.stream->download(logits, executor.logits, sizeof(float) * rows * engine_->model().info().vocab);
}

void Session::extend(std::span<const int32_t> ids, const Interrupted& interrupted,
                     const std::function<void(int, int)>& after_chunk) {
  Executor& executor = engine_->executor();
  while (tokens_.size() < ids.size()) {
    const std::lock_guard lock(executor.mutex);
    // Chunks end at multiples of the chunk size, so a prefix is cut the same way whatever was already there.
    const int first = static_cast<int>(tokens_.size()), chunk = executor.max_rows;
    const int rows = std::min<int>((first / chunk + 1) * chunk, static_cast<int>(ids.size())) - first;
    for (int axis = 0; axis < 3; ++axis)
      for (int r = 0; r < rows; ++r) positions_[axis * rows + r] = first + r;
    const auto part = ids.subspan(first, rows);
    forward(part, {positions_.data(), 3 * static_cast<size_t>(rows)}, {}, interrupted, nullptr);
    state_.commit_chain(rows);
    add_tokens(part);
    after_chunk(first, rows);
  }
}

void Session::add_tokens(std::span<const int32_t> ids) {
  const bool is_whole = (ends_.empty() ? 0 : ends_.back()) == static_cast<int>(tokens_.size());
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  if (is_whole) ends_.push_back(static_cast<int32_t>(tokens_.size()));
}

void Session::cut_tokens(int n) {
  tokens_.resize(n);
  while (!ends_.empty() && ends_.back() > n) ends_.pop_back();
}

void Session::shorten_to(int n) {
  if (n == static_cast<int>(tokens_.size())) return;
  has_logits_ = false;
  if (n >= state_.rewind_floor()) {
    state_.rewind(n);
  } else {
    const std::lock_guard lock(engine_->executor().mutex);
    state_.reset();  // recurrent layers cannot step back further than their pending rows
  }
  cut_tokens(state_.n_tokens());
}

int Session::sync(std::span<const int32_t> ids, const Interrupted& interrupted, const Progress& progress) {
  LB_CHECK(!ids.empty(), kInvalid, "the prompt has no tokens; the model needs at least one");
  check_ids(ids);
  if (adopt_step(ids)) return static_cast<int>(ids.size());
  const auto mismatch = std::mismatch(tokens_.begin(), tokens_.end(), ids.begin(), ids.end());
  const int common = static_cast<int>(mismatch.first - tokens_.begin()), total = static_cast<int>(ids.size());
  if (common == total && tokens_.size() == ids.size() && has_logits_) return total;
  drop_step();  // a token may have been chosen, or a step with it begun, that ids do not go on with
  shorten_to(std::min(common, total - 1));  // the last token is computed again when its logits are not at hand
  const int cached = static_cast<int>(tokens_.size());
  has_logits_ = false;
  extend(ids, interrupted, [&](int first, int rows) {
    if (first + rows == total) {
      head(rows - 1, 1, logits_.data());
      has_logits_ = true;
      logits_in_loop_ = false;
    }
    if (progress) progress(first + rows - cached, total - cached);
  });
  return cached;
}

std::span<const float> Session::logits() {
  LB_CHECK(has_logits_, kInvalid, "there are no logits; they stand between sync() and sample()");
  if (logits_in_loop_) {
    in_loop([&] {
      const std::lock_guard lock(engine_->executor().mutex);
      loop_->download_logits(logits_);
    });
    logits_in_loop_ = false;
  }
  return logits_;
}

int32_t Session::sample(Sampler& sampler) {
  LB_CHECK(has_logits_, kInvalid, "there is nothing to sample from; call sync() first");
  if (loop_ != nullptr) return sample_in_loop(sampler);
  const bool finite = std::ranges::all_of(logits_, [](float logit) { return std::isfinite(logit); });
  LB_CHECK(finite, kFormat, engine_->file().path, ": the logits after ", tokens_.size(),
           " tokens are not finite; the weights are damaged or overflow");
  return sampler.sample(logits_);
}

// The step with the token is asked for before the token is known, so that the device need not wait for the host. Not
// with the first one, whose logits are kept until a token could be chosen from them, and not where the host has to
// find a mask.
int32_t Session::sample_in_loop(Sampler& sampler) {
  const bool is_first = chooser_ != sampler.version(), has_mask = !sampler.mask().empty();
  if (is_first) {
    const std::span<const float> from = logits();
    const std::lock_guard lock(engine_->executor().mutex);
    loop_->drop();
    loop_->sample(sampler, from);
    chooser_ = sampler.version();
  } else if (waits_for_mask_) {
    const std::lock_guard lock(engine_->executor().mutex);
    loop_->choose(sampler.mask());
  }
  waits_for_mask_ = false;
  const bool is_early = !is_first && !has_mask;
  if (is_early) step_ahead(NumbersFrom::kDevice, has_mask);
  try {
    in_loop([&] { ahead_ = loop_->take(); });
  } catch (...) {
    if (is_early) drop_failed_step();
    throw;
  }
  sampler.record(ahead_);
  if (!is_early) step_ahead(is_first ? NumbersFrom::kHost : NumbersFrom::kDevice, has_mask);
  return ahead_;
}

Logprobs Session::logprobs(int32_t token, int n_top) {
  LB_CHECK(token >= 0 && token < engine_->model().info().vocab, kInvalid, "token ", token, " is not in the vocabulary");
  if (has_logits_) return lb::logprobs(logits(), token, n_top);
  LB_CHECK(token == ahead_, kInvalid, "log probabilities are those of the token sampled last, ", ahead_, ", not of ",
           token);
  return loop_->logprobs(n_top);
}

Timeline Session::timeline() {
  if (loop_ == nullptr) return {};
  const std::lock_guard lock(engine_->executor().mutex);
  return loop_->timeline();
}

// The step is an append of one row that waits to be kept or not.
void Session::step_ahead(NumbersFrom from, bool waits_for_mask) {
  has_logits_ = false;
  if (state_.n_tokens() == state_.capacity()) return;  // outside of the context: nothing can follow
  in_loop([&] {
    const std::lock_guard lock(engine_->executor().mutex);
    from == NumbersFrom::kDevice ? state_.begin_next() : state_.begin_append(1, {});
    waits_for_mask ? loop_->step_only() : loop_->step();
    state_.end_append();
  });
  stepped_ = true;
  waits_for_mask_ = waits_for_mask;
}

bool Session::adopt_step(std::span<const int32_t> ids) {
  if (!stepped_ || ids.size() != tokens_.size() + 1 || ids.back() != ahead_ ||
      !std::equal(tokens_.begin(), tokens_.end(), ids.begin()))
    return false;
  state_.commit_chain(1);
  add_tokens({&ahead_, 1});
  ahead_ = -1;
  stepped_ = false;
  has_logits_ = logits_in_loop_ = true;
  return true;
}

void Session::drop_step() {
  if (loop_ != nullptr && chooser_ != 0)
    in_loop([&] {
      const std::lock_guard lock(engine_->executor().mutex);
      loop_->drop();
    });
  chooser_ = 0;
  waits_for_mask_ = false;
  if (stepped_ || ahead_ >= 0) has_logits_ = false;
  if (stepped_) state_.commit_chain(0);
  ahead_ = -1;
  stepped_ = false;
}

// A token could not be chosen, and the step with it has begun: nobody knows how far it came.
void Session::drop_failed_step() {
  if (!stepped_) return;
  drop_step();
  state_.abort_append();
  cut_tokens(state_.n_tokens());
}

// What looks at steps of the loop. Where one was lost, nobody knows how far it came, nor those behind it.
void Session::in_loop(const Work& work) {
  try {
    work();
  } catch (const StepLost&) {
    forget();
    throw;
  }
}

void Session::forget() {
  const std::lock_guard lock(engine_->executor().mutex);
  chooser_ = 0;
  ahead_ = -1;
  waits_for_mask_ = stepped_ = has_logits_ = logits_in_loop_ = false;
  appended_.clear();
  state_.abort_append();
  state_.rewind(0);
  cut_tokens(0);
}

std::vector<double> Session::score(std::span<const int32_t> ids, const Interrupted& interrupted) {
  LB_CHECK(ids.size() >= 2, kInvalid, "scoring needs at least two tokens, got ", ids.size());
  check_ids(ids);
  reset();
  const size_t vocab = engine_->model().info().vocab;
  std::vector<float> logits(Executor::kLogitRows * vocab);
  std::vector<double> scores;
  scores.reserve(ids.size() - 1);
  extend(ids, interrupted, [&](int first, int rows) {
    for (int r = 0; r < rows; r += Executor::kLogitRows) {
      const int n = std::min(Executor::kLogitRows, rows - r);
      head(r, n, logits.data());
      for (int i = 0; i < n; ++i) {
        const size_t next = static_cast<size_t>(first) + r + i + 1;
        if (next < ids.size()) scores.push_back(lb::logprobs({logits.data() + i * vocab, vocab}, ids[next], 0).token);
      }
    }
  });
  return scores;
}

int Session::held(std::span<const int32_t> ids, std::span<const int32_t> ends) const {
  const auto same_ids = std::mismatch(tokens_.begin(), tokens_.end(), ids.begin(), ids.end());
  const auto same_ends = std::mismatch(ends_.begin(), ends_.end(), ends.begin(), ends.end());
  const auto n_ids = static_cast<int32_t>(same_ids.first - tokens_.begin());
  const auto past = std::upper_bound(ends_.begin(), same_ends.first, n_ids);
  return past == ends_.begin() ? 0 : *(past - 1);
}

void Session::read_pages(int first, int count, std::span<std::byte> to) {
  LB_CHECK(first >= 0 && count >= 1 && (first + count - 1) * kPageTokens < static_cast<int>(tokens_.size()), kInvalid,
           "pages ", first, " to ", first + count - 1, " are not all of the ", tokens_.size(), " tokens held");
  in_loop([&] {
    const std::lock_guard lock(engine_->executor().mutex);
    if (loop_ != nullptr) loop_->check();
    lb::read_pages(state_, first, count, to);
  });
}

void Session::read_recurrent(std::span<std::byte> to) {
  LB_CHECK(appended_.empty(), kInvalid, "an append waits to be committed; the recurrent state is read before or after");
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  lb::read_recurrent(state_, to);
}

void Session::assemble(std::span<const int32_t> ids, std::span<const int32_t> ends, const Pieces& pieces) {
  const int n = static_cast<int>(ids.size()), n_pages = (n + kPageTokens - 1) / kPageTokens;
  check_ids(ids);
  LB_CHECK(!ends.empty() && ends.front() > 0 && ends.back() == n &&
               std::ranges::adjacent_find(ends, std::ranges::greater_equal()) == ends.end(),
           kInvalid, "the ends of appends must ascend to ", n, ", the number of tokens");
  const int n_held = held(ids, ends), first = pieces.first_page;
  LB_CHECK(first >= 0 && first <= n_pages && std::min(first * kPageTokens, n) <= n_held, kInvalid,
           "the timeline holds ", n_held, " of these tokens; pages from page ", first, " on do not join them");
  const size_t page = page_bytes();
  size_t bytes = 0;
  for (const auto& piece : pieces.pages) {
    LB_CHECK(page > 0 && piece.size() % page == 0, kInvalid, "a piece of ", piece.size(),
             " bytes is not whole pages of ", page);
    bytes += piece.size();
  }
  LB_CHECK(bytes == (n_pages - first) * page && pieces.recurrent.size() == recurrent_bytes(), kInvalid, n,
           " tokens need ", n_pages - first, " pages of ", page, " bytes from page ", first, " on and ",
           recurrent_bytes(), " bytes of recurrent state; got ", bytes, " and ", pieces.recurrent.size());
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  int at = first;
  for (const auto& piece : pieces.pages) {
    const int count = static_cast<int>(piece.size() / page);
    write_pages(state_, at, count, piece);
    at += count;
  }
  write_recurrent(state_, pieces.recurrent);
  state_.restore_length(n);
  tokens_.assign(ids.begin(), ids.end());
  ends_.assign(ends.begin(), ends.end());
  appended_.clear();
  has_logits_ = false;
}

std::vector<std::byte> Session::save() {
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  return save_snapshot(state_, tokens_, engine_->fingerprint());
}

void Session::load(std::span<const std::byte> bytes, const std::string& where) {
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  tokens_ = load_snapshot(bytes, state_, engine_->model().info().vocab, engine_->fingerprint(), where);
  ends_.clear();
  appended_.clear();
  has_logits_ = false;
}

void Session::reset() {
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  state_.reset();
  cut_tokens(0);
  appended_.clear();
  has_logits_ = false;
}

void Session::check_append(std::span<const int32_t> ids, const AppendOptions& options) const {
  const int rows = static_cast<int>(ids.size()), max_rows = engine_->executor().max_rows;
  const int n_layers = engine_->model().info().n_layers;
  check_ids(ids);
  LB_CHECK(rows >= 1 && rows <= max_rows, kInvalid, "an append has 1 to ", max_rows, " rows, got ", rows);
  LB_CHECK(options.parents.empty() || options.parents.size() == ids.size(), kInvalid,
           "parents must name one row each: ", rows, " rows, ", options.parents.size(), " parents");
  LB_CHECK(options.positions.empty() || options.positions.size() == 3 * ids.size(), kInvalid, "positions must be [3, ",
           rows, "]");
  for (size_t i = 0; i < options.taps.size(); ++i)
    LB_CHECK(options.taps[i] >= (i == 0 ? 0 : options.taps[i - 1] + 1) && options.taps[i] <= n_layers, kInvalid,
             "taps must ascend within 0 to ", n_layers);
}

void Session::compute(std::span<const int32_t> ids, const AppendOptions& options, const Interrupted& interrupted,
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
  parents_ = tree.parent;
  is_text_ = options.parents.empty() && options.positions.empty();
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
  compute(ids, options, interrupted, &taps);
  result.logits.resize(rows * vocab);
  for (size_t r = 0; r < rows; r += Executor::kLogitRows)
    head(r, std::min<int>(Executor::kLogitRows, rows - r), result.logits.data() + r * vocab);
  return result;
}

void Session::measured(std::span<const int32_t> ids, int n_logits, const std::function<void(const Work&)>& measure,
                       const Interrupted& interrupted) {
  const int rows = static_cast<int>(ids.size());
  check_append(ids, {});
  LB_CHECK(n_logits >= 0 && n_logits <= rows, kInvalid, n_logits, " rows of logits are not in an append of ", rows);
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  engine_->executor().stream->wait();
  measure([&] {
    compute(ids, {}, interrupted, nullptr);
    for (int r = rows - n_logits; r < rows; r += Executor::kLogitRows)
      head(r, std::min(Executor::kLogitRows, rows - r));
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
  measured(ids, n_logits, measure, interrupted);
  return std::chrono::duration<double>(time).count();
}

std::vector<gpu::KernelTime> Session::profile_append(std::span<const int32_t> ids, int n_logits,
                                                     const Interrupted& interrupted) {
  std::vector<gpu::KernelTime> times;
  const auto measure = [&](const Work& work) {
    times = engine_->place().time_kernels(*engine_->executor().stream, work);
  };
  measured(ids, n_logits, measure, interrupted);
  return times;
}

void Session::commit(std::span<const int32_t> path) {
  LB_CHECK(!appended_.empty() || path.empty(), kInvalid, "there is no append to commit");
  for (int32_t row : path)
    LB_CHECK(row >= 0 && row < static_cast<int32_t>(appended_.size()), kInvalid, "row ", row,
             " is not in the append of ", appended_.size());
  for (size_t i = 0; i < path.size() && !parents_.empty(); ++i)
    LB_CHECK(parents_[path[i]] == (i == 0 ? -1 : path[i - 1]), kInvalid, "row ", path[i], " has parent ",
             parents_[path[i]], "; the path to commit comes from row ", i == 0 ? -1 : path[i - 1]);
  const std::lock_guard lock(engine_->executor().mutex);
  state_.commit(path);
  if (is_text_ && path.size() == appended_.size()) {
    add_tokens(appended_);
  } else {
    for (int32_t row : path) tokens_.push_back(appended_[row]);
  }
  appended_.clear();
}

void Session::rewind(int n_tokens) {
  drop_step();
  state_.rewind(n_tokens);
  cut_tokens(n_tokens);
  appended_.clear();
  has_logits_ = false;
}

}  // namespace lb
