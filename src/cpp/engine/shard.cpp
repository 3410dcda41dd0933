#include "engine/shard.h"

#include <algorithm>

namespace lb {

Shard::Shard(std::shared_ptr<const Backend> backend, const StreamNeeds& needs, const NetworkPart& part)
    : backend_(std::move(backend)),
      stream_(backend_->make_stream(needs)),
      part_(part),
      turn_(backend_->device(), stream_) {}

void Shard::load(Network& network, int n_threads, const KeptWeights::Store* kept, const LoadProgress& progress) {
  weights_.push_back(backend_->load(network, part_, n_threads, *stream_, kept, progress));
}

std::span<std::byte> Shard::weights() const {
  const Memory* first = weights_.empty() ? nullptr : weights_.front().memory.get();
  return first == nullptr ? std::span<std::byte>() : std::span(first->data(), first->size());
}

ExpertCounts Shard::expert_counts() const {
  ExpertCounts sum = {};
  for (const WeightStore& store : weights_)
    for (const volatile ExpertCounts* layer : store.expert_counts) {
      sum.hits += layer->hits;
      sum.misses += layer->misses;
      sum.bytes += layer->bytes;
    }
  return sum;
}

bool Shard::experts_are_pinned() const {
  return std::ranges::all_of(weights_, [](const WeightStore& store) { return store.pageable_experts.empty(); });
}

void Shard::make_pass_buffers(const Models& models, const EngineOptions& options, EngineTurn& turn) {
  steps_ = std::make_unique<PassBuffers>(models, options, part_, PassBuffers::step_rows(options), *stream_, turn);
  if (options.prefill_chunk <= steps_->max_rows) return;
  prompts_ = std::make_unique<PassBuffers>(models, options, part_, options.prefill_chunk, *stream_, turn);
  prompts_->logits = steps_->logits;  // safe to share: no step runs between writing and reading them
}

std::shared_ptr<const PageMemory> Shard::make_pages(std::span<const LayerShape> layers, KvRows rows,
                                                    const StateOptions& options, int n_pages) const {
  return std::make_shared<PageMemory>(layers, rows, options, n_pages, *stream_, part_.layers);
}

size_t Shard::pass_buffers_bytes(const Models& models, const EngineOptions& options, const NetworkPart& part) {
  const int steps = PassBuffers::step_rows(options);
  return PassBuffers::planned_bytes(models, options, part, steps) +
         (options.prefill_chunk > steps ? PassBuffers::planned_bytes(models, options, part, options.prefill_chunk) : 0);
}

}  // namespace lb
