// Code shared by all draft models, and detection of a file's kind of draft model.
#include "models/draft_model.h"

#include <algorithm>

#include "base/error.h"
#include "models/dflash.h"
#include "models/gemma4_assistant.h"

namespace lb {

DraftModel::DraftModel(std::string kind, const Model& target)
    : target_(target),
      kind_(std::move(kind)),
      n_candidates_(std::min(kMaxTopTokens, target.info().vocab)),
      shard_(target.rank()) {}

int DraftModel::tap_width() const { return static_cast<int>(taps_.size()) * target_.info().hidden; }

DraftWorkspace DraftModel::carve(Carver& carver, int max_rows) const {
  const size_t rows = std::max(max_rows, max_depth_ + 1), depth = max_depth_;
  const size_t hidden = target_.info().hidden;
  DraftWorkspace ws;
  ws.taps = carver.take<float>(static_cast<size_t>(max_rows) * tap_width());
  ws.ids = carver.take<int32_t>(depth * n_candidates_);
  ws.logprobs = carver.take<float>(depth * n_candidates_);
  ws.hidden = carver.take<float>(depth * hidden);
  ws.logits = carver.take<float>(depth * target_.info().vocab);
  ws.cos = carver.take<float>(rows * n_rot_ / 2);
  ws.sin = carver.take<float>(rows * n_rot_ / 2);
  ws.scratch = carver;
  return ws;
}

size_t DraftModel::workspace_bytes(int max_rows) const {
  Carver fixed;
  carve(fixed, max_rows);
  return fixed.used() + scratch_bytes(max_rows);
}

DraftWorkspace DraftModel::workspace(Carver carver, int max_rows) const { return carve(carver, max_rows); }

void DraftModel::check(int depth, const SequenceState& state) const {
  LB_ASSERT(depth >= 1 && depth <= max_depth_);
  LB_ASSERT(state.n_tokens() + max_depth_ + 1 <= state.capacity());
}

void DraftModel::top_tokens(const DraftWorkspace& ws, int row, int rows, float scale, float softcap,
                            Stream& stream) const {
  const size_t first = static_cast<size_t>(row) * n_candidates_;
  run(TopTokens{.logits = ws.logits,
                .ids = ws.ids + first,
                .logprobs = ws.logprobs + first,
                .rows = rows,
                .vocab = target_.info().vocab,
                .k = n_candidates_,
                .scale = scale,
                .softcap = softcap},
      stream);
}

std::unique_ptr<DraftModel> make_draft_model(const ModelFile& file, const Model& target) {
  if (is_dflash(file)) return make_dflash(file, target);
  if (is_gemma4_assistant(file)) return make_gemma4_assistant(file, target);
  if (std::unique_ptr<DraftModel> mtp = make_mtp(file, target)) return mtp;
  fail(ErrorCode::kUnsupported, file.path,
       ": this is no draft model; supported: DFlash (dflash, dflash-draft, qwen35-dflash-draft, gemma4-dflash-draft), "
       "the assistant of Gemma 4 (gemma4-assistant) and the prediction block (MTP) of Qwen3.5");
}

}  // namespace lb
