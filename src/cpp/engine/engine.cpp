// Opening an engine: file -> model -> plan -> reservations.
#include "engine/engine.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <iomanip>
#include <iterator>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/process_owned.h"
#include "base/system.h"
#include "dispatch/rank_group.h"
#include "engine/open_models.h"
#include "engine/plan.h"
#include "engine/plan_fit.h"
#include "gpu/experts/choose.h"
#include "speculation/planner.h"
#include "weights/kept_weights.h"

namespace lb {
namespace {

// The vision tower that the options name; null: none. Its rows are the model's residual stream. sizes: of its device.
std::unique_ptr<VisionTower> open_tower(const EngineOptions& options, const Model& model, const DeviceSizes& sizes) {
  if (options.mmproj.empty()) return nullptr;
  const ModelInfo& info = model.info();
  LB_CHECK(info.images != ImagePositions::kNone, kUnsupported, options.mmproj, ": images are not supported with ",
           info.architecture, " yet; supported: Qwen3.5, Gemma 4");
  auto tower = std::make_unique<VisionTower>(options.mmproj, info.hidden,
                                             CpuStreamOptions{.n_threads = options.threads, .isa = options.isa});
  LB_CHECK(tower->config().is_gemma() == (info.images == ImagePositions::kSequence), kUnsupported, options.mmproj,
           ": images: the vision tower is of another family than the model, ", info.architecture);
  if (!sizes.maps_weights()) tower->use_device_types();
  return tower;
}

// The plan of the model and its tower. vision_device: the tower's own; null: it is on the model's first device.
SplitPlan plan_of(const OpenModels& opened, std::span<const DeviceSizes* const> devices,
                  const DeviceSizes* draft_device, const DeviceSizes* vision_device, EngineOptions& options,
                  VisionTower* tower, bool has_own_chunk) {
  if (vision_device == nullptr) return make_split_plan(opened, devices, draft_device, options, tower, has_own_chunk);
  LB_CHECK(tower != nullptr, kInvalid, "vision_device = ", vision_device->name(), " is for a vision tower, and ",
           opened.file.path, " is loaded without one. Use mmproj, or no vision_device");
  SplitPlan split = make_split_plan(opened, devices, draft_device, options, nullptr, has_own_chunk);
  split.plan.vision.push_back(make_tower_plan(*tower, *vision_device, options));
  return split;
}

constexpr int kMaxKvTokens = std::numeric_limits<int>::max() / kPageTokens * kPageTokens;  // whole pages

// A hash of everything that a saved session depends on: metadata, all tensor bytes, rope frequencies and settings. Four
// independent chains of 8-byte words let the multiplications overlap. Not cryptographic.
class Fingerprint {
 public:
  void add(const void* data, size_t bytes) {
    const auto* p = static_cast<const std::byte*>(data);
    add_word(bytes);
    size_t at = 0;
    for (; at + sizeof(chains_) <= bytes; at += sizeof(chains_))
      for (size_t i = 0; i < std::size(chains_); ++i) chains_[i] = mixed(chains_[i], word(p + at + 8 * i, 8));
    for (; at < bytes; at += 8) add_word(word(p + at, std::min<size_t>(8, bytes - at)));
  }
  template <class T>
  void add_value(const T& value) {
    add(&value, sizeof(value));
  }
  void add_layout(const ModelFile& file) {
    if (const GgufFile* gguf = file.gguf())
      for (const GgufEntry& entry : gguf->metadata.all()) {
        add(entry.key.data(), entry.key.size());
        add_value(entry.value.type());
        add_value(entry.value.element_type());
        add(entry.value.bytes().data(), entry.value.bytes().size());
      }
    if (const SafetensorsModel* folder = file.safetensors())
      add(folder->config_text.data(), folder->config_text.size());
    for (const TensorView& tensor : file.tensors().all()) {
      add(tensor.name.data(), tensor.name.size());
      add_value(tensor.type);
      for (int64_t n : tensor.shape) add_value(n);
    }
  }
  void add_weights(const ModelFile& file) {
    for (const TensorView& tensor : file.tensors().all()) add(tensor.data, tensor.bytes);
  }
  std::string hex() const {
    std::ostringstream out;
    out << std::hex << std::setfill('0');
    for (const uint64_t chain : chains_) out << std::setw(16) << mixed(chain, 0);
    return out.str();
  }

 private:
  static uint64_t word(const std::byte* p, size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, p, bytes);
    return value;
  }
  // The multiplier is 2^64 divided by the golden ratio. A product mixes its high bits best; the rotation moves them
  // down.
  static uint64_t mixed(uint64_t chain, uint64_t value) { return std::rotl((chain ^ value) * 0x9e3779b97f4a7c15u, 29); }
  void add_word(uint64_t value) { chains_[0] = mixed(chains_[0], value); }

  uint64_t chains_[4] = {1, 2, 3, 4};
};

// n_ranks: of a model that is split by tensors, whose sessions have a state per rank; else 1.
std::string fingerprint_of(const ModelFile& file, const std::optional<ModelFile>& draft_file, const Model& model,
                           const EngineOptions& options, int n_ranks) {
  Fingerprint f;
  for (const ModelFile* each : {&file, draft_file ? &*draft_file : nullptr}) {
    if (each == nullptr) continue;
    f.add_layout(*each);
    f.add_weights(*each);
  }
  if (const std::string& draft = options.draft_model; draft == "mtp") f.add(draft.data(), draft.size());
  f.add_value(options.activations);
  if (options.sparse_prefill > 0) f.add_value(options.sparse_prefill);
  if (n_ranks > 1) f.add_value(n_ranks);
  for (const int share : options.split.shares) f.add_value(share);
  const RopeAngles& rope = model.rope();
  f.add(rope.inv_freq.data(), rope.inv_freq.size() * sizeof(float));
  f.add_value(rope.scale);
  return cat(model.info().architecture, "-", f.hex());
}

// Engines with equal keys have equal bytes in the device memory of each WeightStore, but for the addresses there.
std::string weights_key(const OpenModels& opened, const SplitPlan& plan,
                        std::span<const std::shared_ptr<const Backend>> backends, const EngineOptions& options) {
  Fingerprint f;
  f.add_layout(opened.file);
  std::string key = opened.file.identity();
  if (opened.draft_file) {
    f.add_layout(*opened.draft_file);
    key += opened.draft_file->identity();
  }
  if (opened.draft == "mtp") key += "mtp ";
  for (size_t i = 0; i < plan.parts.size(); ++i)
    key +=
        cat(backends[i]->sizes().name(), " layers ", plan.parts[i].layers.first, " to ", plan.parts[i].layers.end, ' ');
  key += cat(plan.ranks.size(), " ranks");
  for (const int share : options.split.shares) key += cat(' ', share);
  return cat(key, ' ', opened.models.target->expert_slots(), " slots ", f.hex());
}

SparseWish sparse_wish(const EngineOptions& options) { return {options.sparse_prefill, "sparse_prefill"}; }

void check_device(const DeviceSizes& sizes, const EngineOptions& options, const Model& model) {
  if (options.activations == Activations::kFp4) sizes.check_fp4({&model});
  sizes.check(sparse_wish(options), model, options.kv);
  if (options.batch_invariant && options.drafts()) sizes.check_trees_by_row(model);
}

// Checks the options and resolves the defaults that depend on machine and device, except the context.
void resolve(EngineOptions& options, const DeviceSizes& sizes) {
  check_model_options(options);
  LB_CHECK(options.kv_tokens >= 0 && options.kv_tokens <= kMaxKvTokens, kInvalid, "kv_tokens must be between 1 and ",
           kMaxKvTokens, ", got ", options.kv_tokens);
  LB_CHECK(options.sessions >= 0, kInvalid, "sessions must be positive, got ", options.sessions);
  if (options.sessions > 0) options.max_window_sessions = options.sessions;
  options.sessions = std::max(options.sessions, 1);
  LB_CHECK(options.kv_tokens == 0 || options.context <= options.kv_tokens, kInvalid, "kv_tokens = ", options.kv_tokens,
           " is less than one context of ", options.context, " tokens");
  LB_CHECK(options.draft_budget >= 0 && options.draft_budget < kMaxTree, kInvalid,
           "draft_budget must be between 1 and ", kMaxTree - 1, ", got ", options.draft_budget);
  LB_CHECK(options.sparse_prefill >= 0 && options.sparse_prefill <= 1, kInvalid,
           "sparse_prefill must be between 0 and 1, got ", options.sparse_prefill);
  LB_CHECK(!options.batch_invariant || options.draft_budget < EngineOptions::kInvariantRows, kInvalid,
           "draft_budget must be at most ", EngineOptions::kInvariantRows - 1, " with batch_invariant, got ",
           options.draft_budget);
  LB_CHECK(options.decode_path == DecodePath::kAuto || !sizes.maps_weights(), kUnsupported,
           "decode_path = graph and megakernel need a GPU; the model is opened on ", sizes.name());
  resolve_model_options(options, sizes);
}

}  // namespace

Engine::Engine(ModelFile file, std::optional<ModelFile> draft_file, Models models, const Backends& backends,
               EngineOptions options, SplitPlan plan, const KeptWeights* kept, const LoadProgress& progress)
    : file_(std::move(file)),
      draft_file_(std::move(draft_file)),
      models_(std::move(models)),
      rank_models_(std::move(plan.ranks)),
      drafter_(std::move(plan.drafter)),
      options_(std::move(options)),
      plan_(std::move(plan.plan)) {
  std::vector<DeviceTurn*> turns;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const StreamNeeds needs = stream_needs(models_on(int(i)), options_, plan.parts[i]);
    shards_.push_back(std::make_unique<Shard>(backends[i], needs, plan.parts[i]));
    turns.push_back(&shards_.back()->turn());
  }
  turn_ = std::make_unique<EngineTurn>(std::move(turns));
  const std::lock_guard lock(*turn_);
  for (int i = 0; i < n_shards(); ++i) shards_[i]->make_pass_buffers(models_on(i), options_, *turn_);
  const int pages = n_pages(options_.kv_tokens);
  pools_.all = make_pool(KvRows::kAll, pages);
  if (const Window window(layer_shapes()); window.exists())
    pools_.windows = make_pool(KvRows::kWindow,
                               window.pool_pages(state_options(), options_.window_sessions, plan.parts[0].n, pages));
  link_shards();
  if (models_.draft && is_split_by_layers()) models_.draft->set_shard(n_shards() - 1);
  load(kept, progress);
  if (options_.suffix) outputs_ = std::make_shared<EarlierOutputs>(kEarlierTokens);
  for (int i = 0; i < n_shards(); ++i) {
    const int planned = has_draft_shard() ? 1 - i : i;  // plans begin with the model's device
    const MemoryPlan& own = n_shards() > 1 ? plan_.parts[planned] : plan_;
    promises_.push_back(std::make_unique<Promise>(shards_[i]->device(), own.session_bytes(), options_.sessions));
  }
}

Engine::~Engine() = default;

std::shared_ptr<PagePool> Engine::make_pool(KvRows rows, int n_pages) const {
  std::vector<std::shared_ptr<const PageMemory>> memories;
  for (int i = 0; i < n_shards(); ++i)
    memories.push_back(shards_[i]->make_pages(models_on(i).layer_shapes(), rows, state_options(), n_pages));
  return std::make_shared<PagePool>(n_pages, std::move(memories));
}

void Engine::link_shards() {
  std::vector<GpuStream*> streams;
  for (const auto& shard : shards_)
    if (n_shards() > 1) streams.push_back(static_cast<GpuStream*>(&shard->stream()));
  const LinkPath wanted = options_.link;
  const size_t residual_bytes = sizeof(float) * model().info().hidden;
  if (has_draft_shard()) {
    DeviceLink& link =
        *tap_links_.emplace_back(std::in_place, *streams[1], *streams[0], tap_bytes(models_, options_), wanted);
    link_us_.push_back(link.time_us(sizeof(float) * models_.draft->tap_width()));
  }
  if (is_split_by_layers()) {
    for (size_t i = 0; i + 1 < streams.size(); ++i) {
      links_.emplace_back(*streams[i], *streams[i + 1], row_bytes(models_, options_), wanted);
      link_us_.push_back(links_.back().time_us(residual_bytes));
      std::optional<DeviceLink>& taps = tap_links_.emplace_back();
      if (models_.hands_over_taps(shards_[i]->part()))
        taps.emplace(*streams[i], *streams[i + 1], tap_bytes(models_, options_), wanted);
    }
    std::vector<std::vector<DeviceLink*>> links;
    for (size_t i = 0; i < links_.size(); ++i) {
      links.push_back({&links_[i]});
      if (tap_links_[i]) links.back().push_back(&*tap_links_[i]);
    }
    token_link_.emplace(*streams.back(), *streams.front(), step_token_bytes(), wanted);
    linked_streams_.emplace(streams, std::move(links), &*token_link_, longest_work_ns());
  }
  if (!is_split_by_tensors()) return;
  ranks_ = std::make_unique<RankGroup>(streams, exchange_values(rank_models_[0], options_), wanted);
  link_us_.push_back(ranks_->time_us(model().info().hidden));
  for (int i = 0; i < n_shards(); ++i) {
    Model& model = *rank_models_[i].target;
    gather_memory_.push_back(streams[i]->reserve(sizeof(float) * Model::kGatherRows * model.own_vocab()));
    model.join(ranks_->of(i), reinterpret_cast<float*>(gather_memory_.back()->data()));
  }
}

// The longest work between two marks of progress of a split by layers, on a slow GPU: of a layer with the rows of a
// chunk, or of a device's layers with the rows of a tree.
uint64_t Engine::longest_work_ns() const {
  const bool is_sim = static_cast<GpuStream&>(shard().stream()).pack().device().info().vendor == gpu::Vendor::kSim;
  const double flops_per_s = is_sim ? 1e9 : 1e12, least_ns = is_sim ? double(kSimTimeoutNs) : 2e9;
  const ModelInfo& info = model().info();
  double weight_bytes = 0, most_layers = 0;
  for (const PlanEntry& entry : plan_.entries)
    if (entry.name == "weights") weight_bytes += double(entry.bytes);
  for (const auto& shard : shards_)
    most_layers = std::max(most_layers, double(shard->part().layers.end - shard->part().layers.first));
  // A weight has at least 4 bits.
  const double row = 4 * weight_bytes / info.n_layers + 4.0 * options_.context * info.n_heads * info.head_dim;
  const double rows = std::max<double>(options_.prefill_chunk, most_layers * kMaxTree);
  return uint64_t(least_ns + 1e9 * row * rows / flops_per_s);
}

void Engine::load(const KeptWeights* kept, const LoadProgress& progress) {
  const auto load_on = [&](int i, Network& network) {
    Shard& shard = *shards_[i];
    shard.load(network, options_.threads, kept ? &kept->stores[i][shard.stores().size()] : nullptr, progress);
  };
  for (int i = first_target_shard(); i < n_shards(); ++i) load_on(i, *models_on(i).target);
  if (has_draft_shard()) {  // the target's host copies are free again
    for (Network* network :
         {static_cast<Network*>(drafter_->target.get()), static_cast<Network*>(drafter_->draft.get())})
      if (kept == nullptr) network->fill_copies(options_.threads, progress);
    load_on(0, *drafter_->target);
  }
  if (is_split_by_tensors()) models_.target->release_copies();
  if (models_.draft)
    for (const int i : drafting_shards()) load_on(i, *models_on(i).draft);
  plan_.experts.is_pinned = shard().experts_are_pinned();
}

bool Engine::has_weights_of(const KeptWeights& kept) const { return kept.key == weights_key_; }

std::shared_ptr<KeptWeights> Engine::keep_weights() const {
  LB_CHECK(!backend().sizes().maps_weights(), kUnsupported, "weights on the CPU stay in the mapped file");
  LB_CHECK(models_.target->expert_slots() == 0, kUnsupported, "experts in host memory are not kept");
  auto kept = std::make_shared<KeptWeights>();
  kept->key = weights_key_;
  for (const auto& shard : shards_) {
    std::vector<KeptWeights::Store>& copies = kept->stores.emplace_back();
    for (const WeightStore& store : shard->stores()) copies.emplace_back().size = store.memory->size();
  }
  return kept;
}

bool Engine::keep_slice(KeptWeights& kept, size_t slice_bytes) const {
  LB_CHECK(has_weights_of(kept), kInvalid, "the copy is of another engine's weights");
  LB_CHECK(slice_bytes > 0, kInvalid, "a slice has at least 1 byte");
  const size_t rest = kept.total_bytes() - kept.n_bytes(), available = available_memory();
  LB_CHECK(rest <= available / 2, kMemory, "kept weights take at most half of the ", available,
           " bytes of host memory that are available; these need ", rest, " more bytes");
  for (int i = 0; i < n_shards(); ++i)
    for (size_t network = 0; network < kept.stores[i].size(); ++network) {
      KeptWeights::Store& store = kept.stores[i][network];
      const size_t done = store.n_bytes();
      if (done == store.size) continue;
      GpuStream& stream = static_cast<GpuStream&>(shards_[i]->stream());
      gpu::Buffer slice(stream.pack().device(), std::min(slice_bytes, store.size - done), gpu::Buffer::Kind::kPinned);
      {
        const std::lock_guard lock(*turn_);
        std::byte* const weights = shards_[i]->stores()[network].memory->data();
        stream.queue().copy_to_host(slice.data(), weights + done, slice.size());
        stream.wait();
      }
      store.slices.push_back(std::move(slice));
      return !kept.is_complete();
    }
  return false;
}

std::vector<SequenceState::Part> Engine::state_parts() const {
  std::vector<SequenceState::Part> parts;
  for (int i = 0; i < n_shards(); ++i)
    parts.push_back({&shards_[i]->stream(), shards_[i]->part().layers, models_on(i).layer_shapes()});
  return parts;
}

StreamGroup* Engine::stream_group() const {
  if (ranks_ != nullptr) return ranks_.get();
  return linked_streams_ ? &*linked_streams_ : nullptr;
}

int Engine::n_device_failures() const {
  const StreamGroup* const group = stream_group();
  return group == nullptr ? 0 : group->n_failures();
}

std::vector<std::string> Engine::links() const {
  std::vector<std::string> texts;
  for (const DeviceLink& link : links_) texts.push_back(link.to_string());
  if (has_draft_shard()) texts.push_back(tap_links_[0]->to_string());
  if (ranks_ != nullptr) texts.push_back(ranks_->to_string());
  return texts;
}

std::vector<Stream*> Engine::rank_streams() const {
  std::vector<Stream*> streams;
  for (const auto& shard : shards_) streams.push_back(&shard->stream());
  return streams;
}

void Engine::check_ids(std::span<const int32_t> ids) const {
  const auto first = std::ranges::find_if(ids, is_image_id);
  if (first == ids.end()) return check_text(ids);
  check_text(ids.first(first - ids.begin()));
  for (size_t i = first - ids.begin(); i < ids.size();) {
    const size_t end = std::ranges::find_if(ids.subspan(i), is_image_id) - ids.begin();
    check_text(ids.subspan(i, end - i));
    if ((i = end) == ids.size()) break;
    const ImageGrid grid = images_.grid_of(ids[i]);
    const size_t n = std::min<size_t>(grid.n(), ids.size() - i);
    for (size_t k = 0; k < n; ++k, ++i)
      LB_CHECK(ids[i] == grid.first_id + int32_t(k), kInvalid, "token ", i, " is ", ids[i],
               "; an image's ids must be complete and in order");
    if (!model().info().images_are_whole) continue;
    LB_CHECK(n == size_t(grid.n()), kInvalid, "the prompt ends within an image, whose rows see each other");
    LB_CHECK(grid.n() <= options_.prefill_chunk, kInvalid, "an image has ", grid.n(),
             " rows, which see each other; load the model with a prefill_chunk of at least ", grid.n(), ", it is ",
             options_.prefill_chunk);
  }
  LB_CHECK(ids.size() <= static_cast<size_t>(options_.context), kInvalid, ids.size(),
           " tokens do not fit the context of ", options_.context, "; load the model with a larger context");
}

void Engine::check_text(std::span<const int32_t> ids) const {
  check_token_ids(ids, model().info().vocab, options_.context);
}

std::shared_ptr<const EncodedImage> Engine::encode(const std::string& key, std::span<const uint8_t> rgb, int height,
                                                   int width, const std::function<bool()>& interrupted) const {
  LB_CHECK(tower_ != nullptr, kUnsupported, file_.path, ": the model was loaded without a vision tower");
  if (auto known = images_.find(key)) return known;
  const std::lock_guard lock(tower_mutex_);
  if (auto known = images_.find(key)) return known;
  const int unit = tower_->config().unit();
  std::vector<float> rows = device_tower_ ? device_tower_->encode(rgb, height, width, interrupted)
                                          : tower_->encode(rgb, height, width, interrupted);
  const bool is_sequence = model().info().images == ImagePositions::kSequence;
  return images_.add(key, {0, height / unit, width / unit, is_sequence}, std::move(rows));
}

const std::string& Engine::fingerprint() const {
  std::call_once(fingerprint_once_, [this] {
    const int n_ranks = is_split_by_tensors() ? n_shards() : 1;
    fingerprint_ = fingerprint_of(file_, draft_file_, *models_.target, options_, n_ranks);
  });
  check_intact();
  return fingerprint_;
}

bool Engine::rows_are_invariant() const {
  return options_.sparse_prefill == 0 && backend().sizes().rows_are_invariant();
}

std::string Engine::layout() const {
  Fingerprint f;
  f.add_layout(file_);
  if (draft_file_) f.add_layout(*draft_file_);
  return f.hex();
}

std::string Engine::layout_of(const std::string& path) {
  Fingerprint f;
  f.add_layout(open_model_file(path));
  return f.hex();
}

Engine::ExpertUses Engine::expert_uses() const {
  if (plan_.experts.host_bytes == 0) return {};
  const std::lock_guard lock(buffers().turn);
  ExpertUses uses = models_.target->expert_uses(shard().stream());
  if (models_.draft) std::ranges::move(models_.draft->expert_uses(shard().stream()), std::back_inserter(uses));
  return uses;
}

void Engine::set_expert_uses(const ExpertUses& uses) const {
  if (plan_.experts.host_bytes == 0) return;
  const std::lock_guard lock(buffers().turn);
  const size_t n = std::min<size_t>(uses.size(), plan_.experts.layers);
  models_.target->arrange_experts({uses.data(), n}, shard().stream());
  if (models_.draft) models_.draft->arrange_experts({uses.data() + n, uses.size() - n}, shard().stream());
}

std::optional<StepCosts> Engine::step_costs() const {
  const std::lock_guard lock(costs_mutex_);
  return step_costs_;
}

bool Engine::draft_may_pay() const {
  const std::optional<StepCosts> costs = step_costs();
  return models_.draft == nullptr || !costs || DraftPlanner(*costs, true, options_.draft_budget).model_may_pay();
}

void Engine::set_step_costs(const StepCosts& costs) const {
  DraftPlanner check(costs, false);  // throws if the costs are invalid
  const std::lock_guard lock(costs_mutex_);
  step_costs_ = costs;
}

void Engine::set_decode_path(DecodePath path) {
  options_.decode_path = path;
  const std::lock_guard lock(costs_mutex_);
  step_costs_.reset();
}

void Engine::check_intact() const {
  file_.check_intact();
  if (draft_file_) draft_file_->check_intact();
}

void Engine::forward(const PassBuffers& buffers, std::span<const Append> appends, const Taps* taps) const {
  check_intact();
  if (is_split_by_tensors()) {
    std::array<Append, kMaxRanks> tapped;
    std::array<Model::RankPass, kMaxRanks> ranks;
    for (int i = 0; i < n_shards(); ++i) {
      const PassBuffers& own = buffers_of(i, buffers);
      tapped[i] = appends[i];
      tapped[i].outputs = draft_taps(i, own);
      ranks[i] = {&model_on(i), &tapped[i], &own.workspace, own.stream};
    }
    Model::forward(std::span(ranks).first(n_shards()), options_.activations, taps);
    for (int i = 0; i < n_shards(); ++i) send_draft_rows(i, buffers_of(i, buffers), appends[i]);
    return check_intact();
  }
  forward_layers(buffers, appends, taps);
  if (!has_draft_shard()) send_draft_rows(n_shards() - 1, buffers, appends.back());
  check_intact();
}

void Engine::forward_layers(const PassBuffers& buffers, std::span<const Append> appends, const Taps* taps) const {
  for (int i = first_target_shard(); i < n_shards(); ++i) begin_part(i, buffers, appends[i], taps)->finish();
}

std::unique_ptr<Model::PartPass> Engine::begin_part(int shard, const PassBuffers& buffers, const Append& append,
                                                    const Taps* taps) const {
  const PassBuffers& own = buffers_of(shard, buffers);
  Append tapped = append;
  tapped.outputs = draft_taps(shard, own);
  std::function<void()> receive;
  if (shard > first_target_shard())
    receive = [&own, &from = buffers_of(shard - 1, buffers), shard, rows = append.tokens.size(), this] {
      LinkCopy tapped_rows;
      if (auto& link = tap_links_[shard - 1])
        tapped_rows = {&*link, own.draft.taps, from.draft.taps, sizeof(float) * rows * models_.draft->tap_width()};
      links_[shard - 1].hand_over(own.workspace.x, from.workspace.x, sizeof(float) * rows * model().info().hidden,
                                  model().next_norm(shards_[shard - 1]->part()), tapped_rows);
    };
  return std::make_unique<Model::PartPass>(*models_.target, shards_[shard]->part(), tapped, own.workspace,
                                           options_.activations, *own.stream, taps, std::move(receive));
}

LayerOutputs Engine::draft_taps(int shard, const PassBuffers& buffers) const {
  if (buffers.draft.taps == nullptr) return {};
  return {draft_on(shard).taps(), buffers.draft.taps};
}

void Engine::send_draft_rows(int shard, const PassBuffers& buffers, const Append& append) const {
  if (!models_.draft) return;
  const int rows = static_cast<int>(append.tokens.size());
  draft_on(shard).context({buffers.draft.taps, append.tokens.data(), append.positions.data(), rows, append.segments},
                          buffers.draft, options_.activations, *buffers.stream);
}

void Engine::forward_drafts(const PassBuffers& buffers, const Append& append) const {
  if (!has_draft_shard()) return;
  const PassBuffers &own = buffers_of(0, buffers), &target = buffers_of(1, buffers);
  hand_over_taps(own.draft.taps, target.draft.taps, static_cast<int>(append.tokens.size()));
  send_draft_rows(0, own, append);
}

void Engine::hand_over_taps(float* to, const float* from, int rows) const {
  tap_links_[0]->send(to, from, sizeof(float) * rows * models_.draft->tap_width());
}

void Engine::forward_rank(int rank, const PassBuffers& buffers, const Append& append) const {
  const PassBuffers& own = buffers_of(rank, buffers);
  Append tapped = append;
  tapped.outputs = draft_taps(rank, own);
  model_on(rank).forward(tapped, own.workspace, options_.activations, *own.stream);
  send_draft_rows(rank, own, append);
}

void Engine::head_on(int shard, const PassBuffers& buffers, int row, int rows, float* logits) const {
  const PassBuffers& own = buffers_of(shard, buffers);
  const Model& model = model_on(shard);
  model.head(own.workspace.y + static_cast<size_t>(row) * model.info().hidden, rows,
             logits == nullptr ? own.logits : logits, options_.activations, *own.stream);
}

StateOptions Engine::state_options() const {
  StateOptions state = lb::state_options(options_);
  state.by_row = decodes_by_row();
  return state;
}

int Engine::max_pass_rows() const {
  const int rows = std::min(buffers().max_rows, PassInputs::kRows);
  const bool is_mixture = model().info().experts.n > 0;
  return decodes_by_row() && is_mixture ? std::min(rows, gpu::kMinGroupedRows - 1) : rows;
}

MemoryPlan Engine::plan(const std::string& path, EngineOptions& options, std::span<const DeviceSizes* const> devices,
                        const DeviceSizes* draft_device, const DeviceSizes* vision_device) {
  const bool has_own_chunk = options.prefill_chunk == 0;
  resolve(options, *devices[0]);
  const OpenModels opened(path, options.draft_model, *devices[0]);
  for (const DeviceSizes* sizes : devices) check_device(*sizes, options, *opened.models.target);
  const auto tower = open_tower(options, *opened.models.target, vision_device ? *vision_device : *devices[0]);
  return plan_of(opened, devices, draft_device, vision_device, options, tower.get(), has_own_chunk).plan;
}

std::shared_ptr<Engine> Engine::open(const std::string& path, EngineOptions options,
                                     std::vector<std::unique_ptr<Backend>> given,
                                     std::unique_ptr<Backend> draft_backend, std::unique_ptr<Backend> vision_backend,
                                     const KeptWeights* kept, const LoadProgress& progress) {
  Backends backends;
  std::vector<const DeviceSizes*> devices;
  std::vector<std::mutex*> opening;
  const DeviceSizes* const draft_device = draft_backend ? &draft_backend->sizes() : nullptr;
  const DeviceSizes* const vision_device = vision_backend ? &vision_backend->sizes() : nullptr;
  for (const Backend* one : {draft_backend.get(), vision_backend.get()})
    if (one != nullptr) opening.push_back(&one->device().opening());
  for (std::unique_ptr<Backend>& one : given) {
    LB_ASSERT(one->lent() == nullptr && (given.size() == 1 || !one->sizes().maps_weights()));
    backends.push_back(std::move(one));
    devices.push_back(&backends.back()->sizes());
    opening.push_back(&backends.back()->device().opening());
  }
  std::ranges::sort(opening, std::less<>{});
  LB_CHECK(std::ranges::adjacent_find(opening) == opening.end(), kInvalid,
           "a device is named twice among the devices of ", path, ". Name each device once");
  const bool has_own_chunk = options.prefill_chunk == 0;
  resolve(options, *devices[0]);
  OpenModels opened(path, options.draft_model, *devices[0]);
  for (const DeviceSizes* sizes : devices) check_device(*sizes, options, *opened.models.target);
  std::vector<std::unique_lock<std::mutex>> locks;
  for (std::mutex* one : opening) locks.emplace_back(*one);
  const std::shared_ptr<const Backend> tower_backend = vision_backend ? std::move(vision_backend) : backends[0];
  auto tower = open_tower(options, *opened.models.target, tower_backend->sizes());
  SplitPlan plan = plan_of(opened, devices, draft_device, vision_device, options, tower.get(), has_own_chunk);
  if (plan.drafter) backends.insert(backends.begin(), std::move(draft_backend));
  opened.models.target->set_context(options.context);
  for (const Models& rank : plan.ranks) rank.target->set_context(options.context);
  std::string key = weights_key(opened, plan, backends, options);
  if (kept != nullptr && (kept->key != key || !kept->is_complete())) kept = nullptr;
  if (kept == nullptr) {
    opened.models.target->fill_copies(options.threads, progress);
    const bool drafts_beside = opened.models.draft && plan.ranks.empty() && !plan.drafter;
    if (drafts_beside) opened.models.draft->fill_copies(options.threads, progress);
    for (const Models& rank : plan.ranks)
      if (rank.draft) rank.draft->fill_copies(options.threads, progress);
  }
  std::shared_ptr<Engine> engine =
      process_owned(new Engine(std::move(opened.file), std::move(opened.draft_file), std::move(opened.models), backends,
                               std::move(options), std::move(plan), kept, progress));
  engine->weights_key_ = std::move(key);
  engine->tower_ = std::move(tower);
  if (engine->tower_ && !tower_backend->sizes().maps_weights())
    engine->device_tower_ = std::make_unique<DeviceTower>(tower_backend, *engine->tower_, engine->options_);
  for (const auto& shard : engine->shards()) shard->stream().wait();
  engine->check_intact();
  return engine;
}

}  // namespace lb
