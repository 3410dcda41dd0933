#include "engine/session.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "base/error.h"
#include "dispatch/stream_group.h"
#include "engine/pass.h"
#include "engine/step_cost_meter.h"

namespace lb {
namespace {

std::unique_ptr<TokenLoop> make_loop(Timeline& timeline) {
  const std::lock_guard lock(timeline.turn());
  const Engine& engine = timeline.engine();
  return engine.backend().make_loop(engine, timeline.state(), timeline.step_rings());
}

}  // namespace

Session::Session(std::shared_ptr<const Engine> engine)
    : timeline_(std::move(engine)),
      loop_(make_loop(timeline_)),
      speculator_(timeline_, loop_.get()),
      decode_(timeline_, speculator_, loop_.get()),
      n_failures_(timeline_.engine().n_device_failures()) {
  const Engine& shared = timeline_.engine();
  if (speculator_.max_tree_rows() < 2 || timeline_.context() < kMinDraftContext) return;
  if (!shared.step_costs()) shared.set_step_costs(StepCostMeter(*this).measure());
  speculator_.start(*shared.step_costs());
}

void Session::drop_lost() {
  if (StreamGroup* const group = engine().stream_group(); group != nullptr && group->is_stopped()) {
    const std::lock_guard lock(timeline_.turn());
    group->restart();
  }
  if (engine().n_device_failures() == n_failures_) return;
  n_failures_ = engine().n_device_failures();
  if (loop_ != nullptr) {
    const std::lock_guard lock(timeline_.turn());
    loop_->drop();
  }
  decode_.lose();
}

void Session::check_not_lost() const {
  LB_CHECK(engine().n_device_failures() == n_failures_, kDevice,
           "a device failed after this session computed its tokens; call sync() to compute them again");
}

Timeline& Session::at_rest() {
  drop_lost();
  decode_.rest();
  return timeline_;
}

int Session::sync(std::span<const int32_t> ids, const Interrupted& interrupted, const Progress& progress,
                  const BetweenLayers& between_layers) {
  using Clock = std::chrono::steady_clock;
  const int total = static_cast<int>(ids.size());
  LB_CHECK(total > 0, kInvalid, "the prompt has no tokens; the model needs at least one");
  timeline_.check_idle();
  engine().check_ids(ids);
  drop_lost();
  if (decode_.has_logits() && std::ranges::equal(ids, timeline_.tokens())) return total;
  const bool by_row = engine().decodes_by_row();
  const auto decode_last = [&] {
    if (decode_.decode_row(ids)) return;
    const SegmentRequest request{this, ids};
    Pass::sync({&request, 1}, interrupted);
  };
  decode_.set_runs_ahead(true);
  if (decode_.follow(ids) || decode_.verify_draft(ids, interrupted)) return total;
  if (by_row && timeline_.extends_by_one(ids)) {
    decode_last();
    return total;
  }
  const auto tokens = timeline_.tokens();
  const auto mismatch = std::mismatch(tokens.begin(), tokens.end(), ids.begin(), ids.end());
  const int common = static_cast<int>(mismatch.first - tokens.begin());
  decode_.rest();                                   // ids do not continue with the last sampled token
  timeline_.truncate(std::min(common, total - 1));  // recomputes at least the last token, for its logits
  const int cached = static_cast<int>(timeline_.tokens().size());
  const auto after_chunk = [&](const PassBuffers& buffers, int first, int rows) {
    if (first + rows == total) decode_.download_logits(buffers, rows - 1);
    if (progress) progress(first + rows - cached, total - cached);
  };
  // A last chunk of one row is a decoded row, with the same bits as after a sync() without that row.
  const int rows_before_last = total - 1 - cached, chunk = engine().options().prefill_chunk;
  const bool decodes_last =
      by_row && total > 1 && !is_image_id(ids.back()) && (rows_before_last == 0 || (total - 1) % chunk == 0);
  const Clock::time_point start = Clock::now();
  timeline_.prefill(decodes_last ? ids.first(total - 1) : ids, interrupted, after_chunk, between_layers);
  check_not_lost();  // another session may have met the failure between the layers
  if (decodes_last) {
    decode_last();
    if (progress) progress(total - cached, total - cached);
  }
  speculator_.add_prefill_time(total - cached, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  return cached;
}

bool Session::advance_to_last_row(std::span<const int32_t> ids, const Interrupted& interrupted) {
  const bool has_one_row = timeline_.extends_by_one(ids);
  if (!has_one_row) sync(ids, interrupted);
  decode_.set_runs_ahead(false);
  if (!has_one_row || decode_.follow(ids)) return false;
  decode_.leave_for_pass(ids.back());
  return true;
}

void Session::fork(Session& from) {
  LB_CHECK(&engine() == &from.engine(), kInvalid, "the sessions belong to different engines");
  from.timeline_.check_committed("fork");
  if (this == &from) return;
  drop_lost();
  from.drop_lost();
  from.decode_.rest();
  decode_.rest();
  timeline_.fork(from.timeline_);
  speculator_.start_sequence();
  if (from.decode_.has_logits()) decode_.copy_logits(from.decode_.logits());
}

void Session::with_pages(int first, int count, const std::function<void()>& work) {
  timeline_.check_pages(first, count);
  timeline_.check_idle();
  decode_.end_walk();
  decode_.guard([&] {
    const std::lock_guard lock(timeline_.turn());
    if (loop_ != nullptr) loop_->check();
    work();
  });
}

void Session::read_pages(int first, int count, std::span<std::byte> to) {
  with_pages(first, count, [&] { timeline_.read_pages(first, count, to); });
}

std::unique_ptr<PageRun> Session::share_pages(int first, int count) {
  std::unique_ptr<PageRun> run;
  with_pages(first, count, [&] { run = timeline_.share_pages(first, count); });
  return run;
}

std::vector<double> Session::score(std::span<const int32_t> ids, const Interrupted& interrupted) {
  LB_CHECK(ids.size() >= 2, kInvalid, "scoring needs at least two tokens, got ", ids.size());
  engine().check_text(ids);
  at_rest().reset();
  const size_t vocab = engine().model().info().vocab;
  std::vector<float> logits(PassBuffers::kLogitRows * vocab);
  std::vector<double> scores;
  scores.reserve(ids.size() - 1);
  timeline_.prefill(ids, interrupted, [&](const PassBuffers& buffers, int first, int rows) {
    for (int r = 0; r < rows; r += PassBuffers::kLogitRows) {
      const int n = std::min(PassBuffers::kLogitRows, rows - r);
      timeline_.download_head(buffers, r, n, logits.data());
      for (int i = 0; i < n; ++i) {
        const size_t next = static_cast<size_t>(first) + r + i + 1;
        if (next >= ids.size()) continue;
        const std::span<const float> row(logits.data() + i * vocab, vocab);
        timeline_.check_finite(row, next);
        scores.push_back(lb::logprobs(row, ids[next], 0).token);
      }
    }
  });
  return scores;
}

std::vector<float> Session::hidden(std::span<const int32_t> ids, const Interrupted& interrupted) {
  engine().check_ids(ids);
  drop_lost();
  decode_.rest();
  const auto tokens = timeline_.tokens();
  const bool continues = tokens.size() < ids.size() && std::equal(tokens.begin(), tokens.end(), ids.begin());
  const size_t first_row = continues ? tokens.size() : 0, width = engine().model().info().hidden;
  if (!continues) timeline_.reset();
  std::vector<float> result((ids.size() - first_row) * width);
  timeline_.prefill(ids, interrupted, [&](const PassBuffers& buffers, int first, int rows) {
    buffers.stream->download(result.data() + (first - first_row) * width, buffers.workspace.y,
                             sizeof(float) * rows * width);
  });
  return result;
}

}  // namespace lb
