#include "engine/device_tower.h"

#include <mutex>

#include "base/error.h"

namespace lb {
namespace {

StreamNeeds needs_of(const VisionTower& tower, const EngineOptions& options) {
  return {.networks = {&tower},
          .rows = VisionPass::kChunk,
          .context = tower.config().max_patches(),
          .n_threads = options.threads,
          .isa = options.isa,
          .activations = options.activations};
}

}  // namespace

std::vector<PlanEntry> DeviceTower::entries(VisionTower& tower, const DeviceSizes& sizes,
                                            const EngineOptions& options) {
  Carver counter;
  VisionPass(tower, options.activations, counter);
  return {{"vision tower", sizes.weight_bytes(tower, {}),
           cat(tower.config().n_layers, " layers of ", tower.config().width)},
          {"image buffers", counter.used() + sizes.scratch_bytes(needs_of(tower, options)),
           cat("while an image is encoded, up to ", tower.config().max_patches(), " patches")}};
}

DeviceTower::DeviceTower(std::shared_ptr<const Backend> backend, VisionTower& tower, const EngineOptions& options)
    : tower_(tower) {
  DeviceTurn turn(backend->device(), nullptr);
  const std::lock_guard lock(turn);
  shard_ = std::make_unique<Shard>(std::move(backend), needs_of(tower, options));
  Stream& stream = shard_->stream();
  shard_->load(tower, options.threads, nullptr, {});
  Carver counter;
  VisionPass(tower, options.activations, counter);
  memory_ = stream.reserve(counter.used());
  Carver carver(*memory_);
  pass_ = std::make_unique<VisionPass>(tower, options.activations, carver);
  pass_->upload_tables(stream);
  stream.wait();
}

std::vector<float> DeviceTower::encode(std::span<const uint8_t> rgb, int height, int width,
                                       const std::function<bool()>& interrupted) {
  tower_.check_image(rgb.size(), height, width);
  const std::lock_guard lock(shard_->turn());
  return pass_->encode(rgb, height, width, shard_->stream(), [&] {
    if (interrupted && interrupted()) fail(ErrorCode::kCancelled, "cancelled by the caller");
    shard_->stream().pace();  // the host is at most two layers ahead of a caller that cancels
    shard_->turn().let_others();
  });
}

}  // namespace lb
