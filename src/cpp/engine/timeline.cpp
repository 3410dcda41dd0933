#include "engine/timeline.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "engine/plan.h"

namespace lb {
namespace {

uint64_t next_number() {
  static std::atomic<uint64_t> n = 0;
  return n++;
}

// The image rows of an append, and the images that hold them.
struct AppendedImages {
  std::vector<int32_t> tokens;  // the append's ids, with an id of the vocabulary in place of an image's
  std::vector<GivenRows> rows;
  std::vector<std::shared_ptr<const EncodedImage>> images;

  AppendedImages(std::span<const int32_t> ids, const Engine& engine) : tokens(ids.begin(), ids.end()) {
    const int hidden = engine.model().info().hidden, n = static_cast<int>(ids.size());
    for (int i = 0; i < n;) {
      if (!is_image_id(ids[i])) {
        ++i;
        continue;
      }
      images.push_back(engine.images().rows_of(ids[i]));
      const ImageGrid& grid = images.back()->grid;
      const int index = ids[i] - grid.first_id, count = std::min(grid.n() - index, n - i);
      rows.push_back({i, count, images.back()->rows.data() + size_t(index) * hidden});
      std::fill_n(tokens.begin() + i, count, 0);
      i += count;
    }
  }
};

Timeline::RowInputs inputs_in(const PassBuffers& buffers) {
  return {buffers.tokens, buffers.positions, buffers.parents, buffers.ancestors, buffers.last_seen};
}

// Sets two flags for its lifetime.
class Hold {
 public:
  Hold(bool& first, bool& second, bool on) : first_(first), second_(second) { first_ = second_ = on; }
  ~Hold() { first_ = second_ = false; }
  Hold(const Hold&) = delete;

 private:
  bool &first_, &second_;
};

}  // namespace

// The inputs of an append's rows, on the host. ids, positions and tree must outlive it.
class Timeline::HostRows {
 public:
  // first: committed tokens before the rows.
  HostRows(const Timeline& timeline, int first, std::span<const int32_t> ids, std::span<const int32_t> positions,
           const Tree& tree)
      : ids_(ids), positions_(positions), tree_(tree) {
    if (!timeline.has_images() || std::ranges::none_of(ids, is_image_id)) return;
    images_.emplace(ids, *timeline.engine_);
    ids_ = images_->tokens;
    if (timeline.engine_->model().info().images_are_whole)
      seen_ = timeline.rows_seen(first, static_cast<int>(ids.size()));
  }
  HostRows(const HostRows&) = delete;
  HostRows& operator=(const HostRows&) = delete;

  Rows rows(Rows options) const {
    options.n = static_cast<int>(ids_.size());
    options.is_tree = tree_.parent != nullptr;
    if (images_) options.given = images_->rows;
    options.sees_images = !seen_.empty();
    return options;
  }
  void upload(Stream& stream, const RowInputs& to) const {
    stream.upload(to.tokens, ids_.data(), ids_.size_bytes());
    stream.upload(to.positions, positions_.data(), positions_.size_bytes());
    if (!seen_.empty()) stream.upload(to.last_seen, seen_.data(), seen_.size() * sizeof(int32_t));
    if (tree_.parent == nullptr) return;
    stream.upload(to.parents, tree_.parent, ids_.size() * sizeof *tree_.parent);
    stream.upload(to.ancestors, tree_.ancestors, ids_.size() * sizeof *tree_.ancestors);
  }

 private:
  std::span<const int32_t> ids_, positions_;
  Tree tree_;
  std::optional<AppendedImages> images_;
  std::vector<int32_t> seen_;
};

// A chunk of a prompt that one device after the other computes.
struct Timeline::StagedChunk {
  int first;
  std::vector<int32_t> positions;  // [3, rows]
  HostRows inputs;
  Rows rows;
  SequenceState::StagedAppend append;
  Segment segment{};
  std::unique_ptr<Model::PartPass> pass{};  // on the device that computes it

  StagedChunk(Timeline& timeline, int first, std::span<const int32_t> ids, bool is_sparse)
      : first(first),
        positions(timeline.positions_.begin(), timeline.positions_.begin() + 3 * ids.size()),
        inputs(timeline, first, ids, positions, {}),
        rows(inputs.rows({.is_sparse = is_sparse})),
        append(timeline.state_.begin_staged(rows.n)) {}
};

Timeline::Timeline(std::shared_ptr<const Engine> engine)
    : engine_(std::move(engine)),
      number_(next_number()),
      state_(engine_->state_options(), engine_->state_parts(), engine_->pools()),
      positions_(3 * static_cast<size_t>(std::max(engine_->options().prefill_chunk, kMaxTree))),
      segments_(engine_->n_shards()),
      appends_(engine_->n_shards()),
      inputs_(engine_->n_shards()) {
  for (const auto& promise : engine_->promises()) kept_.emplace_back(*promise);
  const std::lock_guard lock(turn());
  if (step_row_bytes(engine_->draft_model(), engine_->backend().sizes(), engine_->model(), engine_->options()) > 0)
    step_rows_ = std::make_unique<StepRows>(*engine_, state_);
  tokens_.reserve(state_.capacity());
  append_ends_.reserve(state_.capacity());
}

void Timeline::wait() const {
  std::unique_lock lock(turn(), std::defer_lock);
  if (engine_->is_split_by_tensors()) lock.lock();  // Stream::wait() may start the ranks again
  if (engine_->has_draft_shard()) state_.stream_of(0).wait();
  stream().wait();
}

bool Timeline::extends_by_one(std::span<const int32_t> ids) const {
  return !tokens_.empty() && ids.size() == tokens_.size() + 1 && !is_image_id(ids.back()) &&
         std::equal(tokens_.begin(), tokens_.end(), ids.begin());
}

void Timeline::check_idle() const {
  LB_CHECK(!is_computing_, kInvalid,
           "this session is computing a prompt; between the layers, only other sessions may compute");
}

void Timeline::prefill(std::span<const int32_t> ids, const Interrupted& interrupted, const AfterChunk& after_chunk,
                       const BetweenLayers& between_layers) {
  place_images(ids);
  while (tokens_.size() < ids.size()) {
    const std::lock_guard lock(turn());
    const int first = static_cast<int>(tokens_.size()), rows = chunk_end(ids, first) - first;
    place_rows(ids, first, rows);
    const auto part = ids.subspan(first, rows);
    const bool is_sparse = is_sparse_chunk(first, first + rows);
    PassBuffers& buffers = engine_->buffers_for(rows, is_sparse);
    const bool has_own_buffers = &buffers != &engine_->buffers();  // buffers that other sessions' steps do not use
    LB_CHECK(!buffers.is_held, kInvalid, "an append between the layers of another has at most ",
             engine_->buffers().max_rows, " rows, got ", rows);
    const Interrupted between = [&] {
      // Limits the layers queued ahead, so that other sessions do not wait for them.
      for (const auto& shard : engine_->shards()) shard->stream().pace();
      if (is_computing_) between_layers();
      return interrupted && interrupted();
    };
    const Hold hold{is_computing_, buffers.is_held, has_own_buffers && between_layers};
    if (is_computing_ && engine_->is_split_by_layers()) {
      prefill_in_stages(ids, between, after_chunk);
      continue;
    }
    // Paces are also the marks of progress of LinkedStreams. Appends of a tree's rows are recorded.
    const bool is_paced = is_computing_ || (engine_->is_split_by_layers() && rows > kMaxTree);
    forward(part, {positions_.data(), 3 * static_cast<size_t>(rows)}, {}, {.is_sparse = is_sparse},
            is_paced ? between : interrupted);
    commit_rows(part);
    after_chunk(buffers, first, rows);
  }
}

void Timeline::forward(std::span<const int32_t> ids, std::span<const int32_t> positions, const Tree& tree, Rows rows,
                       const Interrupted& interrupted) {
  const HostRows inputs(*this, static_cast<int>(tokens_.size()), ids, positions, tree);
  const auto upload = [&](int shard, const RowInputs& to) { inputs.upload(state_.stream_of(shard), to); };
  run(inputs.rows(rows), upload, interrupted);
}

// While a device computes its layers of a chunk, the device before it computes its layers of the next chunk. The host
// sends a layer to each in turn, so that other sessions' steps, which come between them, wait for one layer per device.
void Timeline::prefill_in_stages(std::span<const int32_t> ids, const Interrupted& between,
                                 const AfterChunk& after_chunk) {
  const PassBuffers& buffers = engine_->prompt_buffers();
  std::vector<std::unique_ptr<StagedChunk>> stages(engine_->n_shards());
  const auto is_empty = [&] { return std::ranges::all_of(stages, [](const auto& chunk) { return !chunk; }); };
  int next = static_cast<int>(tokens_.size());
  // A chunk in the steps' buffers waits until all stages are empty.
  const auto next_chunk = [&]() -> std::unique_ptr<StagedChunk> {
    if (next == std::ssize(ids)) return nullptr;
    const int first = next, rows = chunk_end(ids, first) - first;
    const bool is_sparse = is_sparse_chunk(first, first + rows);
    if (&engine_->buffers_for(rows, is_sparse) != &buffers) return nullptr;
    place_rows(ids, first, rows);
    next += rows;
    return std::make_unique<StagedChunk>(*this, first, ids.subspan(first, rows), is_sparse);
  };
  settle_steps();
  forget_append();
  ++revision_;
  try {
    for (;;) {
      std::rotate(stages.begin(), stages.end() - 1, stages.end());
      stages.front() = next_chunk();
      if (is_empty()) return;
      run_stages(stages, between);
      const auto done = std::move(stages.back());
      if (!done) continue;
      state_.end_staged(done->append);
      add_tokens(ids.subspan(done->first, done->rows.n));
      after_chunk(buffers, done->first, done->rows.n);
    }
  } catch (...) {
    state_.abort_append();
    if (state_.n_tokens() > std::ssize(tokens_)) state_.rewind(static_cast<int>(tokens_.size()));
    truncate_tokens(state_.n_tokens());
    throw;
  }
}

// Sends the layers of each device for its chunk. A device with fewer layers than another has rounds without one.
void Timeline::run_stages(std::span<const std::unique_ptr<StagedChunk>> stages, const Interrupted& between) {
  const auto n_layers = [&](int stage) {
    const LayerRange& layers = engine_->shards()[stage]->part().layers;
    return stages[stage] ? std::min(layers.end, engine_->model().info().n_layers) - layers.first : 0;
  };
  const int n_stages = static_cast<int>(stages.size());
  int n_rounds = 0;
  for (int i = 0; i < n_stages; ++i) n_rounds = std::max(n_rounds, n_layers(i));
  for (int round = 0; round < n_rounds; ++round) {
    if (between()) fail(ErrorCode::kCancelled, "cancelled by the caller");
    // The last stage first: a stage takes the rows of its chunk before the stage before it overwrites them.
    for (int i = n_stages; i-- > 0;) {
      if (!stages[i]) continue;
      StagedChunk& chunk = *stages[i];
      if (round == 0) begin_stage(i, chunk);
      const int target = std::max(1, (round + 1) * n_layers(i) / n_rounds);
      while (chunk.pass->n_done() < target) chunk.pass->run_layer();
    }
  }
  if (stages.back()) {
    const PassBuffers& buffers = engine_->prompt_buffers();
    StagedChunk& chunk = *stages.back();
    engine_->send_draft_rows(n_stages - 1, buffers,
                             append_on(n_stages - 1, chunk.rows, inputs_in(buffers), chunk.segment));
  }
}

void Timeline::begin_stage(int stage, StagedChunk& chunk) {
  const PassBuffers& buffers = engine_->prompt_buffers();
  const RowInputs in = inputs_in(engine_->buffers_of(stage, buffers));
  state_.begin_on(stage, chunk.append);
  chunk.inputs.upload(state_.stream_of(stage), in);
  chunk.pass = engine_->begin_part(stage, buffers, append_on(stage, chunk.rows, in, chunk.segment));
}

// Chunks that end at a multiple of the chunk size are sparse. The end of a prompt, most likely the question, comes
// after them and attends to all tokens. The rule depends only on the ends of appends, so a reused prefix has the bits
// of a fresh one.
bool Timeline::is_sparse_chunk(int first, int end) const {
  return engine_->prompt_buffers().sparse && end - first > kMaxTree && end % engine_->options().prefill_chunk == 0;
}

Append Timeline::append_on(int shard, const Rows& rows, const RowInputs& in, Segment& segment) {
  const size_t n = rows.n;
  const PassBuffers& own = engine_->buffers_of(shard, engine_->buffers_for(rows.n, rows.is_sparse));
  segment = {0,
             rows.n,
             rows.is_tree ? Tree{in.parents, in.ancestors} : Tree{},
             state_.n_past(shard),
             &state_,
             shard,
             rows.sees_images ? in.last_seen : nullptr};
  return {.tokens = {in.tokens, n},
          .positions = {in.positions, 3 * n},
          .segments = {&segment, 1},
          .given = rows.given,
          .sparse = rows.is_sparse && own.sparse ? &*own.sparse : nullptr};
}

void Timeline::run(const Rows& rows, const Fill& fill, const Interrupted& interrupted) {
  const PassBuffers& buffers = engine_->buffers_for(rows.n, rows.is_sparse);
  const int n_shards = engine_->n_shards();
  LB_ASSERT(rows.inputs.empty() || std::ssize(rows.inputs) == n_shards);
  const size_t n = rows.n;
  settle_steps();
  state_.begin_append(rows.n, rows.is_tree);
  forget_append();
  ++revision_;
  for (int i = 0; i < n_shards; ++i) {
    inputs_[i] = rows.inputs.empty() ? inputs_in(engine_->buffers_of(i, buffers)) : rows.inputs[i];
    appends_[i] = append_on(i, rows, inputs_[i], segments_[i]);
    if (interrupted) appends_[i].interrupted = &interrupted;
  }
  const auto send = [&] { engine_->forward(buffers, appends_, rows.taps); };
  const auto send_rank = [&](int rank) { engine_->forward_rank(rank, buffers, appends_[rank]); };
  try {
    for (int i = 0; i < n_shards; ++i) fill(i, inputs_[i]);
    // A recording has no copies from or to the host.
    const bool has_taps = rows.taps != nullptr && !rows.taps->layers.empty();
    const bool is_recordable = rows.n <= kMaxTree && !has_taps && rows.given.empty();
    const std::array<uint64_t, 3> shape{n, rows.is_tree, !rows.inputs.empty()};
    if (!is_recordable) {
      send();
    } else if (engine_->is_split_by_tensors()) {
      recorded_.send(shape, engine_->rank_streams(), send, send_rank);
    } else if (engine_->is_split_by_layers()) {
      recorded_.send(shape, engine_->linked_streams(), send);
    } else {
      recorded_.send(shape, *buffers.stream, send);
    }
    engine_->forward_drafts(buffers, appends_[0]);
  } catch (...) {
    abort();
    throw;
  }
  state_.end_append();
}

void Timeline::head(const PassBuffers& buffers, int row, int rows, std::span<float* const> logits) const {
  for (int i = engine_->first_head_shard(); i < engine_->n_shards(); ++i)
    engine_->head_on(i, buffers, row, rows, logits.empty() ? nullptr : logits[i]);
  engine_->check_intact();
}

void Timeline::download_head(const PassBuffers& buffers, int row, int rows, float* logits) const {
  head(buffers, row, rows);
  buffers.stream->download(logits, buffers.logits, sizeof(float) * rows * engine_->model().info().vocab);
}

void Timeline::check_finite(std::span<const float> logits, size_t n_tokens) const {
  const bool finite = std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); });
  LB_CHECK(finite, kFormat, engine_->file().path, ": the logits after ", n_tokens,
           " tokens are not finite; the weights are damaged or overflow");
}

void Timeline::commit_rows(std::span<const int32_t> ids) {
  state_.commit_chain(static_cast<int>(ids.size()));
  add_tokens(ids);
}

void Timeline::add_tokens(std::span<const int32_t> ids) {
  const bool all_kept = (append_ends_.empty() ? 0 : append_ends_.back()) == static_cast<int>(tokens_.size());
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  if (all_kept) append_ends_.push_back(static_cast<int32_t>(tokens_.size()));
  grow_text(static_cast<int>(ids.size()));
  ++revision_;
}

void Timeline::add_path_token(int32_t token) {
  tokens_.push_back(token);
  grow_text(1);
  ++revision_;
}

int32_t Timeline::text_position(int slot) const {
  int position = slot;
  for (const auto& [first, grid] : images_)
    if (first + grid.n() <= slot) position -= grid.n() - grid.extent();
  return position;
}

void Timeline::place_images(std::span<const int32_t> ids) {
  const int n = static_cast<int>(tokens_.size());
  while (!images_.empty() && images_.back().slot >= n) images_.pop_back();
  for (int i = n; i < static_cast<int>(ids.size()); ++i) {
    if (!is_image_id(ids[i])) continue;
    const ImageGrid grid = engine_->images().grid_of(ids[i]);
    if (ids[i] == grid.first_id) images_.push_back({i, grid});
    i += grid.first_id + grid.n() - 1 - ids[i];
  }
}

// Chunks end at multiples of the chunk size, so the boundaries do not depend on how much was reused. If images are
// whole, a multiple within an image gives way to the image's start, or to its end if the append begins there.
int Timeline::chunk_end(std::span<const int32_t> ids, int first) const {
  const int chunk = engine_->options().prefill_chunk;
  const int end = std::min<int>((first / chunk + 1) * chunk, static_cast<int>(ids.size()));
  if (!engine_->model().info().images_are_whole) return end;
  for (const auto& [slot, grid] : images_)
    if (slot < end && end < slot + grid.n()) return slot > first ? slot : slot + grid.n();
  return end;
}

std::vector<int32_t> Timeline::rows_seen(int first, int rows) const {
  std::vector<int32_t> seen(rows);
  std::iota(seen.begin(), seen.end(), 0);
  for (const auto& [slot, grid] : images_) {
    const int end = slot + grid.n() - first;
    for (int r = std::max(slot - first, 0); r < std::min(end, rows); ++r) seen[r] = end - 1;
  }
  return seen;
}

void Timeline::place_rows(std::span<const int32_t> ids, int first, int rows) {
  for (int r = 0; r < rows; ++r) {
    const int slot = first + r;
    int32_t at[3];  // temporal, height, width
    const auto image = std::ranges::find_if(images_, [&](const PlacedImage& placed) {
      return placed.slot <= slot && slot < placed.slot + placed.grid.n();
    });
    if (image == images_.end() || !is_image_id(ids[slot])) {
      at[0] = at[1] = at[2] = text_position(slot);
    } else {
      const int index = slot - image->slot, start = text_position(image->slot);
      if (image->grid.is_sequence)
        at[0] = at[1] = at[2] = start + index;
      else
        at[0] = start, at[1] = start + index / image->grid.width, at[2] = start + index % image->grid.width;
    }
    for (int axis = 0; axis < 3; ++axis) positions_[axis * rows + r] = at[axis];
  }
}

// Counts the n newest tokens, which are at the positions that the tokens imply.
void Timeline::grow_text(int n) {
  if (n_text_ + n == static_cast<int>(tokens_.size())) n_text_ += n;
}

void Timeline::abort() {
  state_.abort_append();
  truncate_tokens(state_.n_tokens());
}

void Timeline::truncate(int n) {
  if (n == static_cast<int>(tokens_.size())) return;
  const std::lock_guard lock(turn());
  if (n >= state_.rewind_floor()) {
    state_.rewind(n);
  } else {
    state_.reset();  // recurrent layers cannot rewind beyond their pending rows
  }
  truncate_tokens(state_.n_tokens());
}

void Timeline::truncate_tokens(int n) {
  tokens_.resize(n);
  n_unchanged_ = std::min(n_unchanged_, n);
  n_text_ = std::min(n_text_, n);
  while (!images_.empty() && images_.back().slot >= n) images_.pop_back();
  while (!append_ends_.empty() && append_ends_.back() > n) append_ends_.pop_back();
  ++revision_;
}

void Timeline::reset() {
  const std::lock_guard lock(turn());
  state_.reset();
  truncate_tokens(0);
  forget_append();
}

void Timeline::lose() {
  const std::lock_guard lock(turn());
  forget_append();
  state_.abort_append();
  state_.reset();
  if (step_rows_) step_rows_->reset();
  truncate_tokens(0);
}

void Timeline::begin_step(NumbersFrom from) {
  if (step_rows_ && step_rows_->is_full()) step_rows_->compute(tokens_);
  state_.reach_ahead();
  if (from == NumbersFrom::kDevice) {
    state_.begin_next();
    // Only the shards that choose tokens count up.
    for (int i = engine_->first_target_shard(); i < engine_->first_head_shard(); ++i) state_.send_numbers(i);
  } else {
    state_.begin_append(1, false);
  }
  if (step_rows_) step_rows_->begin_step();
}

void Timeline::settle_steps() {
  if (!step_rows_ || !step_rows_->is_behind()) return;
  const std::lock_guard lock(turn());
  step_rows_->settle(tokens_);
}

}  // namespace lb
