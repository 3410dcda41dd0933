// The timeline: prefix reuse, chunked prefill, scoring.
#include "engine/session.h"

#include <algorithm>

#include "base/error.h"
#include "engine/plan.h"

namespace lb {
namespace {

uint64_t next_number() {
  static std::atomic<uint64_t> n = 0;
  return n++;
}

// Sets two flags as long as it lives.
class Hold {
 public:
  Hold(bool& first, bool& second, bool on) : first_(first), second_(second) { first_ = second_ = on; }
  ~Hold() { first_ = second_ = false; }
  Hold(const Hold&) = delete;

 private:
  bool &first_, &second_;
};

}  // namespace

Session::Session(std::shared_ptr<const Engine> engine, WithoutDrafts)
    : engine_(std::move(engine)),
      number_(next_number()),
      state_(engine_->layer_shapes(), engine_->state_options(), *engine_->executor().stream, engine_->pages()),
      positions_(3 * static_cast<size_t>(std::max(prefill_chunk(), kMaxTree))),
      logits_(engine_->model().info().vocab),
      parts_(state_.stream()) {
  const std::lock_guard lock(engine_->executor().mutex);
  if (step_row_bytes(engine_->draft_model(), engine_->backend().sizes(), engine_->model(), engine_->options()) > 0)
    step_rows_ = std::make_unique<StepRows>(*engine_, state_);
  loop_ = engine_->backend().make_loop(*engine_, state_, step_rows_ ? &step_rows_->ring() : nullptr);
  const auto carve_tree = [&](Carver carver) {
    tree_ = TreeMemory(carver, engine_->model(), engine_->draft_model(), engine_->options());
    return carver.used();
  };
  if (const size_t bytes = carve_tree({}); bytes > 0) {
    tree_memory_ = state_.stream().reserve(bytes);
    carve_tree(Carver(*tree_memory_));
  }
  tokens_.reserve(state_.capacity());
  append_ends_.reserve(state_.capacity());
}

Session::Session(std::shared_ptr<const Engine> shared) : Session(std::move(shared), kWithoutDrafts) {
  const EngineOptions& options = engine_->options();
  if (!options.drafts() || max_tree_rows() < 2 || context() < kMinDraftContext) return;
  if (options.drafts_suffixes()) {
    outputs_ = engine_->outputs();
    suffix_ = std::make_unique<SuffixDrafter>(context() + 1, Engine::kExpectedTokens, outputs_);
  }
  if (!engine_->step_costs()) engine_->set_step_costs(measure_step_costs());
  width_.emplace(*engine_->step_costs(), engine_->draft_model() != nullptr, options.draft_budget);
  drafting_ = true;
}

int Session::sync(std::span<const int32_t> ids, const Interrupted& interrupted, const Progress& progress,
                  const BetweenLayers& between_layers) {
  LB_CHECK(!ids.empty(), kInvalid, "the prompt has no tokens; the model needs at least one");
  check_idle();
  engine_->check_ids(ids);
  if (has_logits_ && ids.size() == tokens_.size() && std::ranges::equal(ids, tokens_))
    return static_cast<int>(ids.size());
  if (engine_->options().batch_invariant && extends_by_one(ids)) {
    const Turn turn{this, ids};
    sync_together({&turn, 1}, interrupted);
    return static_cast<int>(ids.size());
  }
  runs_ahead_ = !engine_->options().batch_invariant;
  if (adopt_step(ids) || adopt_tree(ids) || follow_tree(ids) || verify_draft(ids, interrupted))
    return static_cast<int>(ids.size());
  const auto mismatch = std::mismatch(tokens_.begin(), tokens_.end(), ids.begin(), ids.end());
  const int common = static_cast<int>(mismatch.first - tokens_.begin()), total = static_cast<int>(ids.size());
  drop_step();                            // ids do not continue with the token sampled last
  truncate(std::min(common, total - 1));  // without its logits the last token is computed again
  const int cached = static_cast<int>(tokens_.size());
  has_logits_ = false;
  const auto after_chunk = [&](const Executor& executor, int first, int rows) {
    if (first + rows == total) {
      download_head(executor, rows - 1, 1, logits_.data());
      has_logits_ = true;
      logits_in_ = LogitsIn::kHost;
    }
    if (progress) progress(first + rows - cached, total - cached);
  };
  time_prefill(total - cached, [&] { prefill(ids, interrupted, after_chunk, between_layers); });
  return cached;
}

void Session::prefill(std::span<const int32_t> ids, const Interrupted& interrupted, const AfterChunk& after_chunk,
                      const BetweenLayers& between_layers) {
  while (tokens_.size() < ids.size()) {
    const std::lock_guard lock(engine_->executor().mutex);
    // Chunks end at multiples of the chunk size, so the cuts do not depend on how much was reused.
    const int first = static_cast<int>(tokens_.size()), chunk = prefill_chunk();
    const int rows = std::min<int>((first / chunk + 1) * chunk, static_cast<int>(ids.size())) - first;
    for (int axis = 0; axis < 3; ++axis)
      for (int r = 0; r < rows; ++r) positions_[axis * rows + r] = first + r;
    const auto part = ids.subspan(first, rows);
    const SparseBlocks* sparse = sparse_blocks_of(first, first + rows);
    Executor& executor = engine_->executor_for(rows, sparse != nullptr);
    const bool has_own_buffers = &executor != &engine_->executor();  // that the steps of other sessions leave alone
    LB_CHECK(!executor.is_held, kInvalid, "an append of ", rows,
             " rows does not fit between the layers of another: up to ", step_rows(), " rows do");
    const Interrupted between = [&] {
      executor.stream->pace();  // others do not wait for layers that were sent ahead
      between_layers();
      return interrupted && interrupted();
    };
    const Hold hold{is_computing_, executor.is_held, has_own_buffers && between_layers};
    forward(part, {positions_.data(), 3 * static_cast<size_t>(rows)}, {}, is_computing_ ? between : interrupted,
            nullptr, sparse);
    state_.commit_chain(rows);
    add_tokens(part);
    after_chunk(executor, first, rows);
  }
}

void Session::forward(std::span<const int32_t> ids, std::span<const int32_t> positions, const Tree& tree,
                      const Interrupted& interrupted, const Taps* taps, const SparseBlocks* sparse) {
  const int rows = static_cast<int>(ids.size());
  const bool is_tree = tree.parent != nullptr;
  const auto upload_rows = [&](Stream& stream, const RowInputs& to) {
    stream.upload(to.tokens, ids.data(), ids.size_bytes());
    stream.upload(to.positions, positions.data(), positions.size_bytes());
    if (!is_tree) return;
    stream.upload(to.parents, tree.parent, rows * sizeof *tree.parent);
    stream.upload(to.ancestors, tree.ancestors, rows * sizeof *tree.ancestors);
  };
  run_rows(rows, is_tree, upload_rows, interrupted, taps, sparse);
}

// Chunks that end at a multiple of the chunk size are sparse. The end of a prompt, most likely the question, lies
// behind them and looks at everything. The rule knows of the ends of appends alone, so that a reused prefix has the
// bits of a fresh one.
const SparseBlocks* Session::sparse_blocks_of(int first, int end) const {
  const Executor& executor = engine_->prompts_executor();
  const bool is_sparse = executor.sparse && end - first > kMaxTree && end % prefill_chunk() == 0;
  return is_sparse ? &*executor.sparse : nullptr;
}

// Trees that a session drafts lie in its own memory, where a device grows them.
Session::RowInputs Session::inputs_of(const Executor& executor, bool is_tree) const {
  if (is_tree && tree_.tree != nullptr)
    return {tree_.tree->tokens, tree_.positions, tree_.tree->parents, tree_.tree->ancestors};
  return {executor.tokens, executor.positions, executor.parents, executor.ancestors};
}

void Session::run_rows(int rows, bool is_tree, const std::function<void(Stream&, const RowInputs&)>& fill,
                       const Interrupted& interrupted, const Taps* taps, const SparseBlocks* sparse) {
  const Executor& executor = engine_->executor_for(rows, sparse != nullptr);
  Stream& stream = *executor.stream;
  const RowInputs in = inputs_of(executor, is_tree);
  const Tree tree = is_tree ? Tree{in.parents, in.ancestors} : Tree{};
  const size_t n = rows;
  settle_step_rows();
  state_.begin_append(rows, tree);
  appended_.clear();
  const Segment segment{0, rows, tree, state_.n_past(), &state_};
  const auto send = [&] {
    engine_->forward(executor,
                     {.tokens = {in.tokens, n},
                      .positions = {in.positions, 3 * n},
                      .segments = {&segment, 1},
                      .sparse = sparse,
                      .interrupted = interrupted ? &interrupted : nullptr},
                     taps);
  };
  try {
    fill(stream, in);
    const bool has_taps = taps != nullptr && !taps->layers.empty();  // their copies cannot be recorded
    const std::array<uint64_t, 2> shape{static_cast<uint64_t>(rows), is_tree};
    rows <= kMaxTree && !has_taps ? recorded_.send(shape, stream, send) : send();
  } catch (...) {
    state_.abort_append();
    truncate_tokens(state_.n_tokens());
    has_logits_ = false;
    throw;
  }
  state_.end_append();
}

void Session::head(const Executor& executor, int row, int rows, float* logits) const {
  const Model& model = engine_->model();
  model.head(executor.workspace.y + static_cast<size_t>(row) * model.info().hidden, rows, logits,
             engine_->options().activations, *executor.stream);
}

void Session::download_head(const Executor& executor, int row, int rows, float* logits) {
  head(executor, row, rows, executor.logits);
  executor.stream->download(logits, executor.logits, sizeof(float) * rows * engine_->model().info().vocab);
}

void Session::check_idle() const {
  LB_CHECK(!is_computing_, kInvalid, "this session computes a prompt: between its layers others may be used, not it");
}

void Session::add_tokens(std::span<const int32_t> ids) {
  const bool all_kept = (append_ends_.empty() ? 0 : append_ends_.back()) == static_cast<int>(tokens_.size());
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  if (all_kept) append_ends_.push_back(static_cast<int32_t>(tokens_.size()));
}

void Session::truncate(int n) {
  if (n == static_cast<int>(tokens_.size())) return;
  has_logits_ = false;
  const std::lock_guard lock(engine_->executor().mutex);
  if (n >= state_.rewind_floor()) {
    state_.rewind(n);
  } else {
    state_.reset();  // recurrent layers cannot step back further than their pending rows
  }
  truncate_tokens(state_.n_tokens());
}

void Session::truncate_tokens(int n) {
  tokens_.resize(n);
  n_indexed_ = std::min(n_indexed_, n);
  while (!append_ends_.empty() && append_ends_.back() > n) append_ends_.pop_back();
}

void Session::reset() {
  drop_step();
  const std::lock_guard lock(engine_->executor().mutex);
  state_.reset();
  truncate_tokens(0);
  appended_.clear();
  has_logits_ = false;
}

std::vector<double> Session::score(std::span<const int32_t> ids, const Interrupted& interrupted) {
  LB_CHECK(ids.size() >= 2, kInvalid, "scoring needs at least two tokens, got ", ids.size());
  engine_->check_ids(ids);
  reset();
  const size_t vocab = engine_->model().info().vocab;
  std::vector<float> logits(Executor::kLogitRows * vocab);
  std::vector<double> scores;
  scores.reserve(ids.size() - 1);
  prefill(ids, interrupted, [&](const Executor& executor, int first, int rows) {
    for (int r = 0; r < rows; r += Executor::kLogitRows) {
      const int n = std::min(Executor::kLogitRows, rows - r);
      download_head(executor, r, n, logits.data());
      for (int i = 0; i < n; ++i) {
        const size_t next = static_cast<size_t>(first) + r + i + 1;
        if (next >= ids.size()) continue;
        const std::span<const float> row(logits.data() + i * vocab, vocab);
        check_finite(row, next);
        scores.push_back(lb::logprobs(row, ids[next], 0).token);
      }
    }
  });
  return scores;
}

std::vector<float> Session::hidden(std::span<const int32_t> ids, const Interrupted& interrupted) {
  engine_->check_ids(ids);
  drop_step();
  const size_t kept = tokens_.size();
  const bool continues = kept < ids.size() && std::equal(tokens_.begin(), tokens_.end(), ids.begin());
  if (!continues) reset();
  has_logits_ = false;
  const size_t first_row = continues ? kept : 0, width = engine_->model().info().hidden;
  std::vector<float> result((ids.size() - first_row) * width);
  prefill(ids, interrupted, [&](const Executor& executor, int first, int rows) {
    executor.stream->download(result.data() + (first - first_row) * width, executor.workspace.y,
                              sizeof(float) * rows * width);
  });
  return result;
}

}  // namespace lb
