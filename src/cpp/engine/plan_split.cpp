#include "engine/plan_split.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "dispatch/device_link.h"
#include "engine/plan_experts.h"
#include "engine/shard.h"
#include "engine/tree_memory.h"

namespace lb {
namespace {

using Devices = std::span<const DeviceSizes* const>;

std::string names_of(Devices devices) {
  std::string names;
  for (const DeviceSizes* device : devices) names += cat(names.empty() ? "" : ",", device->name());
  return names;
}

// Layers that the last device needs at least: those whose keys and values the draft model reads.
int layers_of_last(const Models& models) {
  const Model& target = *models.target;
  const int n_layers = target.info().n_layers;
  int first = n_layers - 1;
  if (models.draft && models.draft->reads_target_cache())
    for (const bool has_window : {false, true})
      if (const int layer = target.last_kv_layer(has_window); layer >= 0) first = std::min(first, layer);
  return n_layers - first;
}

void check_supported(const Models& models, Devices devices, const EngineOptions& options) {
  const std::string names = names_of(devices);
  const int n = static_cast<int>(devices.size()), n_layers = models.target->info().n_layers;
  LB_CHECK(options.decode_path != DecodePath::kMegakernel, kUnsupported,
           "decode_path = megakernel: the megakernel runs on one device only, and the layers of this model are on ",
           names, ". Use auto or graph");
  LB_CHECK(n <= n_layers, kInvalid, "the model has ", n_layers, " layers, fewer than the ", n, " devices ", names,
           ". Name fewer devices");
  const int n_last = layers_of_last(models);
  LB_CHECK(n - 1 <= n_layers - n_last, kInvalid, "the last of the devices ", names, " needs ", n_last, " of the ",
           n_layers, " layers, whose keys and values the draft model reads, and a layer is left for each of ",
           n_layers - n_last, " other devices. Name fewer devices, or use draft = suffix or none");
}

// The part with these layers of the target. The last device has the draft model too.
NetworkPart part_of(const Models& models, int rank, int n, LayerRange layers) {
  const bool has_draft = models.draft && rank == n - 1;
  if (has_draft) layers.end = static_cast<int>(models.layer_shapes().size());
  return {rank, n, layers, true, has_draft};
}

// Bytes of one device: free for a plan, and taken by all but the target's layers.
struct DeviceBytes {
  size_t available, fixed;
};

// Divides layers among devices so that the largest share of available memory is smallest.
class LayerDivision {
 public:
  // options: with a context. scratch: [devices].
  LayerDivision(const Models& models, Devices devices, const EngineOptions& options, VisionTower* tower,
                std::span<const ScratchBytes> scratch)
      : n_last_(layers_of_last(models)) {
    const int n = static_cast<int>(devices.size());
    const std::vector<LayerShape> shapes = models.layer_shapes();
    const StateOptions state = state_options(options);
    const int pages = n_pages(std::max(options.kv_tokens, options.context));
    const int windows = Window(shapes).pool_pages(state, 1, n, pages);
    const auto state_bytes = [&](int layer) {
      return PageMemory::layer_bytes(shapes, layer, KvRows::kAll, state, pages) +
             PageMemory::layer_bytes(shapes, layer, KvRows::kWindow, state, windows) +
             options.sessions * ShardState::layer_bytes(shapes[layer]);
    };
    const int n_layers = models.target->info().n_layers;
    for (int i = 0; i < n_layers; ++i)
      layers_.push_back(devices[0]->weight_bytes(*models.target, {1, 3, {i, i + 1}}) + state_bytes(i));
    for (int rank = 0; rank < n; ++rank) {
      const DeviceSizes& device = *devices[rank];
      const NetworkPart no_layers = part_of(models, rank, n, {n_layers, n_layers});
      const NetworkPart most_layers = part_of(models, rank, n, {0, n_layers - (n - 1 - rank)});
      const size_t reserved = device.reserved_bytes();
      const size_t free =
          options.memory_limit > 0 ? std::min(options.memory_limit, device.free_bytes()) : device.free_bytes();
      size_t fixed =
          device.weight_bytes(*models.target, no_layers) + scratch[rank](options.prefill_chunk, options.context) +
          Shard::pass_buffers_bytes(models, options, most_layers) + hand_over_bytes(models, options, most_layers);
      if (no_layers.is_first())
        for (const PlanEntry& entry : tower_entries(tower, device, options)) fixed += entry.bytes;
      if (no_layers.is_last())
        fixed += options.sessions * (TreeMemory::planned_bytes(models.target.get(), models.draft.get(), options) +
                                     step_row_bytes(models.draft.get(), device, *models.target, options) +
                                     device.loop_bytes(*models.target, options));
      if (no_layers.has_draft) {
        fixed += device.weight_bytes(*models.draft, {});
        for (int i = n_layers; i < static_cast<int>(shapes.size()); ++i) fixed += state_bytes(i);
      }
      devices_.push_back({free > reserved ? free - reserved : 1, fixed});
    }
  }

  // The first layer of each device, then the number of layers; none if a device would use more than `share`.
  std::optional<std::vector<int>> at(double share) const {
    const int n = static_cast<int>(devices_.size()), n_layers = static_cast<int>(layers_.size());
    std::vector<int> bounds = {0};
    int layer = 0;
    for (int rank = 0; rank < n; ++rank) {
      const double allowed = share * double(devices_[rank].available);
      double used = double(devices_[rank].fixed);
      // Leaves a layer to each later device, and to the last one those it needs.
      const int last = rank == n - 1 ? n_layers : n_layers - n_last_ - (n - 2 - rank);
      const int first = layer;
      while (layer < last && used + double(layers_[layer]) <= allowed) used += double(layers_[layer++]);
      if (layer == first) return std::nullopt;
      bounds.push_back(layer);
    }
    return layer == n_layers ? std::optional(std::move(bounds)) : std::nullopt;
  }
  bool fits() const { return at(1).has_value(); }
  // Also if the smallest share is more than all memory: the devices' plans then say what is missing.
  std::vector<int> best() const {
    double low = 0, high = 1;
    while (!at(high)) high *= 2;
    for (int i = 0; i < 40; ++i) (at((low + high) / 2) ? high : low) = (low + high) / 2;
    return *at(high);
  }

 private:
  int n_last_;                  // layers of the last device, at least
  std::vector<size_t> layers_;  // bytes
  std::vector<DeviceBytes> devices_;
};

// The division at the longest context that fits, up to the wanted one.
std::vector<int> divide(const Models& models, Devices devices, const EngineOptions& options, VisionTower* tower) {
  const int n = static_cast<int>(devices.size());
  std::vector<ScratchBytes> scratch;
  for (int rank = 0; rank < n; ++rank)
    scratch.push_back(devices[rank]->scratch_of(stream_needs(models, options, part_of(models, rank, n, {}))));
  const auto division = [&](int context) {
    EngineOptions at = options;
    at.context = context;
    at.prefill_chunk = std::min(options.prefill_chunk, context);
    return LayerDivision(models, devices, at, tower, scratch);
  };
  const int max_context = models.target->info().max_context;
  const int wanted = options.context > 0 ? std::min(options.context, max_context) : max_context;
  if (const LayerDivision whole = division(wanted); whole.fits() || options.context > 0) return whole.best();
  int low = 1, high = wanted / kPageTokens;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    division(middle * kPageTokens).fits() ? low = middle : high = middle - 1;
  }
  return division(std::min(low * kPageTokens, wanted)).best();
}

bool fits_alone(const Models& models, const DeviceSizes& device, size_t file_bytes, EngineOptions options,
                VisionTower* tower) {
  const int wanted = options.context > 0 ? options.context : models.target->info().max_context;
  try {
    return EnginePlanner(models, device, file_bytes, options, {}, tower).settle(options) >= wanted;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMemory) throw;
    return false;
  }
}

// The plan of all devices, as a sum.
MemoryPlan sum_of(std::vector<MemoryPlan> parts, const std::string& names) {
  MemoryPlan sum = parts.front();
  sum.device = names;
  for (const MemoryPlan& part : std::span(parts).subspan(1)) {
    sum.entries.insert(sum.entries.end(), part.entries.begin(), part.entries.end());
    sum.available_bytes += part.available_bytes;
    sum.largest_context = std::min(sum.largest_context, part.largest_context);
    sum.window_sessions = std::min(sum.window_sessions, part.window_sessions);
    for (KvFit& fit : sum.kv_fits)
      for (const KvFit& other : part.kv_fits) {
        if (to_string(other.kv) != to_string(fit.kv)) continue;
        fit.token_bytes += other.token_bytes;
        fit.largest_context = std::min(fit.largest_context, other.largest_context);
      }
  }
  std::ranges::stable_sort(sum.kv_fits, std::greater(), &KvFit::token_bytes);
  sum.parts = std::move(parts);
  return sum;
}

// Every device settles the context, then the tokens of the KV cache; the engine has the smallest of each. models,
// parts: [devices]. tower: on the first device.
MemoryPlan settle(std::span<const Models* const> models, std::span<const NetworkPart> parts, Devices devices,
                  size_t file_bytes, EngineOptions& options, VisionTower* tower) {
  std::vector<EnginePlanner> planners;
  for (size_t rank = 0; rank < devices.size(); ++rank)
    planners.emplace_back(*models[rank], *devices[rank], file_bytes, options, parts[rank], rank == 0 ? tower : nullptr);
  const auto settle_all = [&] {
    EngineOptions smallest = options;
    for (const EnginePlanner& planner : planners) {
      EngineOptions own = options;
      planner.settle(own);
      const bool is_first = &planner == &planners.front();
      const auto keep_least = [&](int& value, int other) { value = is_first ? other : std::min(value, other); };
      keep_least(smallest.context, own.context);
      keep_least(smallest.kv_tokens, own.kv_tokens);
      keep_least(smallest.prefill_chunk, own.prefill_chunk);
      keep_least(smallest.window_sessions, own.window_sessions);
    }
    return smallest;
  };
  const EngineOptions first = settle_all();
  options.context = first.context;
  options.prefill_chunk = first.prefill_chunk;
  const EngineOptions second = settle_all();
  options.window_sessions = second.window_sessions;
  options.kv_tokens = second.kv_tokens;
  std::vector<MemoryPlan> plans;
  for (const EnginePlanner& planner : planners) {
    EngineOptions own = options;
    plans.push_back(planner.plan(own));
  }
  return sum_of(std::move(plans), names_of(devices));
}

SplitPlan split_layers(const Models& models, Devices devices, size_t file_bytes, EngineOptions& options,
                       VisionTower* tower) {
  check_supported(models, devices, options);
  options.decode_path = DecodePath::kGraph;
  const std::vector<int> bounds = divide(models, devices, options, tower);
  const int n = static_cast<int>(devices.size());
  SplitPlan split;
  for (int rank = 0; rank < n; ++rank)
    split.parts.push_back(part_of(models, rank, n, {bounds[rank], bounds[rank + 1]}));
  const std::vector<const Models*> all(n, &models);
  split.plan = settle(all, split.parts, devices, file_bytes, options, tower);
  return split;
}

SplitPlan split_tensors(const OpenModels& opened, Devices devices, EngineOptions& options, VisionTower* tower) {
  const std::string names = names_of(devices);
  const int n = static_cast<int>(devices.size());
  LB_CHECK(n <= kMaxRanks, kUnsupported, "split = tensor: at most ", kMaxRanks, " devices, got ", names);
  for (const DeviceSizes* device : devices)
    LB_CHECK(device->vendor() == devices[0]->vendor(), kUnsupported, "split = tensor: ", names,
             " are GPUs of two vendors, which cannot exchange values inside a step. Use split = layer");
  SplitPlan split;
  split.parts.resize(n);
  std::vector<const Models*> all;
  const std::vector<int> shares = options.split.shares.empty() ? std::vector<int>(n, 1) : options.split.shares;
  for (int rank = 0; rank < n; ++rank) {
    Models own{opened.models.target->slice(rank, shares), nullptr};
    own.draft = opened.make_draft(*own.target);
    if (own.draft) own.draft->use_device_types();
    split.ranks.push_back(std::move(own));
  }
  for (const Models& rank : split.ranks) all.push_back(&rank);
  split.plan = settle(all, split.parts, devices, opened.file_bytes(), options, tower);
  split.plan.bytes_per_token = 0;
  for (const MemoryPlan& part : split.plan.parts) split.plan.bytes_per_token += part.bytes_per_token;
  return split;
}

SplitPlan split_drafts(const OpenModels& opened, Devices devices, const DeviceSizes& draft_device,
                       EngineOptions& options, VisionTower* tower) {
  const Models& models = opened.models;
  const std::string wanted = cat("draft_device = ", draft_device.name());
  LB_CHECK(models.draft != nullptr, kInvalid, wanted, " is for a draft model, and there is none. Use draft = mtp or ",
           "a drafter, or no draft_device");
  LB_CHECK(devices.size() == 1 && !devices[0]->maps_weights() && !draft_device.maps_weights(), kUnsupported, wanted,
           ": a draft model on a device of its own needs the whole model on one other GPU, and the model is on ",
           names_of(devices),
           ". Name one GPU for each, or no draft_device: a model on several GPUs has its draft model there too");
  LB_CHECK(!models.draft->reads_target_cache(), kUnsupported, wanted,
           ": the draft model reads the target's keys and values, which are on ", devices[0]->name(),
           ". Use no draft_device");
  LB_CHECK(!asks_for_slots(options), kUnsupported, wanted, ": expert_slots and expert_memory need the draft model on ",
           devices[0]->name(), " too. Use no draft_device");
  if (options.activations == Activations::kFp4) draft_device.check_fp4({models.target.get()});
  SplitPlan split;
  split.drafter.emplace(Models{make_model(opened.file), nullptr});
  split.drafter->draft = opened.make_draft(*split.drafter->target);
  for (Network* network :
       {static_cast<Network*>(split.drafter->target.get()), static_cast<Network*>(split.drafter->draft.get())})
    network->use_device_types();
  const int n_target = models.target->info().n_layers, n_layers = static_cast<int>(models.layer_shapes().size());
  const NetworkPart target{.layers = {0, n_target}, .has_draft = false};
  const NetworkPart drafter{.layers = {n_target, n_layers}, .has_target = false};
  split.parts = {drafter, target};
  const Models* const both[] = {&models, &*split.drafter};
  const NetworkPart parts[] = {target, drafter};
  const DeviceSizes* const all[] = {devices[0], &draft_device};
  split.plan = settle(both, parts, all, opened.file_bytes(), options, tower);
  return split;
}

}  // namespace

SplitPlan make_split_plan(const OpenModels& opened, Devices devices, const DeviceSizes* draft_device,
                          EngineOptions& options, VisionTower* tower, bool has_own_chunk) {
  const Models& models = opened.models;
  const size_t file_bytes = opened.file_bytes();
  const std::vector<int>& shares = options.split.shares;
  LB_CHECK(shares.empty() || shares.size() == devices.size(), kInvalid, "split = ", to_string(options.split), " has ",
           shares.size(), " shares for ", devices.size(), devices.size() == 1 ? " device" : " devices", " (",
           names_of(devices), "). Give one share for each device");
  if (draft_device != nullptr) return split_drafts(opened, devices, *draft_device, options, tower);
  if (devices.size() == 1)
    return {{NetworkPart{}}, make_expert_plan(models, *devices[0], file_bytes, options, tower, has_own_chunk)};
  LB_CHECK(!asks_for_slots(options), kUnsupported,
           "expert_slots and expert_memory are for a model on one device, and the devices are ", names_of(devices));
  if (options.split.mode == SplitChoice::Mode::kAuto && fits_alone(models, *devices[0], file_bytes, options, tower))
    return {{NetworkPart{}}, EnginePlanner(models, *devices[0], file_bytes, options, {}, tower).plan(options)};
  LB_CHECK(models.target->is_divisible(), kUnsupported, "the layers of ", models.target->info().architecture,
           " read keys and values of other layers, or inputs of their own, which models on several devices (",
           names_of(devices), ") do not support. Name one device");
  if (options.split.mode == SplitChoice::Mode::kTensor) return split_tensors(opened, devices, options, tower);
  if (has_own_chunk) options.prefill_chunk = std::min(options.prefill_chunk, kStagedChunk);
  return split_layers(models, devices, file_bytes, options, tower);
}

}  // namespace lb
