// Engine for Python. To avoid deadlock, every call that takes the device's turn releases the GIL: a thread that polls
// for signals waits for the GIL while it holds the turn.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "base/bandwidth.h"
#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/byte_arrays.h"
#include "bindings/calls.h"
#include "bindings/memory_plan.h"
#include "bindings/option_rows.h"
#include "bindings/options.h"
#include "bindings/python_pack.h"
#include "engine/backend_cpu.h"
#include "engine/backend_gpu.h"
#include "engine/engine.h"
#include "state/page_pool.h"
#include "weights/kept_weights.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

// others: packs of further devices. draft_pack, vision_pack: of a draft model's or vision tower's own device.
// vision_on_cpu: the tower is on the CPU, and the model is not.
std::shared_ptr<Engine> open_engine(const std::string& path, const PythonPack* pack, const nb::object& progress,
                                    const std::vector<const PythonPack*>& others, const PythonPack* draft_pack,
                                    const PythonPack* vision_pack, bool vision_on_cpu, const KeptWeights* kept,
                                    const nb::kwargs& named) {
  const EngineOptions options = engine_options_of(named);
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(pack == nullptr ? cpu_backend() : gpu_backend(pack->shared(), pack->name()));
  const auto further = [&](const PythonPack& other) {
    LB_CHECK(pack != nullptr, kUnsupported, "a model on several devices needs GPUs, got cpu and ", other.name());
    return gpu_backend(other.shared(), other.name());
  };
  for (const PythonPack* other : others) backends.push_back(further(*other));
  std::unique_ptr<Backend> draft = draft_pack == nullptr ? nullptr : further(*draft_pack);
  std::unique_ptr<Backend> vision = vision_on_cpu            ? cpu_backend()
                                    : vision_pack == nullptr ? nullptr
                                                             : gpu_backend(vision_pack->shared(), vision_pack->name());
  const LoadReport report(progress);
  return without_gil([&] {
    return Engine::open(path, options, std::move(backends), std::move(draft), std::move(vision), kept,
                        std::ref(report));
  });
}

nb::dict info_of(const Engine& engine) {
  const ModelInfo& info = engine.model().info();
  nb::dict d;
  d["architecture"] = info.architecture;
  d["n_layers"] = info.n_layers;
  d["hidden"] = info.hidden;
  d["ffn"] = info.ffn;
  d["vocab"] = info.vocab;
  d["n_heads"] = info.n_heads;
  d["n_kv_heads"] = info.n_kv_heads;
  d["head_dim"] = info.head_dim;
  d["tied"] = info.tied;
  d["max_context"] = info.max_context;
  d["bytes_per_token"] = engine.model().bytes_per_token();
  int n_recurrent = 0;
  for (const LayerShape& shape : engine.model().layer_shapes())
    n_recurrent += std::holds_alternative<RecurrentShape>(shape);
  d["n_recurrent_layers"] = n_recurrent;
  return d;
}

nb::tuple expert_counts_of(const Engine& engine) {
  const ExpertCounts counts = engine.shard().expert_counts();
  return nb::make_tuple(counts.hits, counts.misses, counts.bytes);
}

nb::object step_costs_of(const Engine& engine) {
  const std::optional<StepCosts> costs = engine.step_costs();
  if (!costs) return nb::none();
  nb::list append;
  for (const auto& [rows, ms] : costs->append) append.append(nb::make_tuple(rows, ms));
  nb::dict d;
  d["append"] = append;
  d["plain_ms"] = costs->plain_ms;
  d["draft_ms"] = costs->draft_ms;
  d["draft_depth"] = costs->draft_depth;
  d["first_ms"] = costs->first_ms;
  d["context_ms"] = costs->context_ms;
  d["is_fixed"] = costs->is_fixed;
  return d;
}

std::optional<std::string> draft_kind_of(const Engine& engine) {
  return engine.draft_model() == nullptr ? std::nullopt : std::optional(engine.draft_model()->kind());
}

void set_step_costs(Engine& engine, const nb::dict& d) {
  StepCosts costs;
  for (const auto& [rows, ms] : nb::cast<std::vector<std::pair<int, double>>>(d["append"]))
    costs.append.push_back({rows, ms});
  costs.plain_ms = nb::cast<double>(d["plain_ms"]);
  costs.draft_ms = nb::cast<double>(d["draft_ms"]);
  costs.draft_depth = nb::cast<int>(d["draft_depth"]);
  costs.first_ms = nb::cast<double>(d["first_ms"]);
  costs.context_ms = nb::cast<double>(d["context_ms"]);
  costs.is_fixed = nb::cast<bool>(d["is_fixed"]);
  engine.set_step_costs(costs);
}

constexpr std::pair<const char*, SamplingKind> kSamplingNames[] = {{"greedy", SamplingKind::kGreedy},
                                                                   {"sampled", SamplingKind::kSampled}};

nb::dict draft_experience_of(const Engine& engine) {
  nb::dict d;
  for (const auto& [name, kind] : kSamplingNames)
    if (const auto newest = engine.experiences().newest(kind)) d[name] = newest->numbers();
  return d;
}

void set_draft_experience(Engine& engine, const nb::dict& d) {
  std::optional<DraftExperience> experiences[kSamplingKinds];
  for (const auto& [name, kind] : kSamplingNames)
    if (d.contains(name)) experiences[int(kind)] = DraftExperience::from(nb::cast<std::vector<double>>(d[name]));
  for (const auto& [name, kind] : kSamplingNames) engine.experiences().keep(kind, experiences[int(kind)]);
}

ByteArray bytes_of_run(const Engine& engine, const PageRun& run) {
  LB_CHECK(&run.pool() == engine.pages().get() || &run.pool() == engine.pools().windows.get(), kInvalid,
           "the pages belong to another engine");
  return filled(run.pages().size() * run.pool().page_bytes(), [&](auto to) {
    const std::lock_guard lock(engine.buffers().turn);
    run.pool().read(run.pages(), to);
  });
}

using Pixels = nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

std::shared_ptr<const EncodedImage> encode_image(const Engine& engine, const std::string& key, const Pixels& rgb) {
  LB_CHECK(rgb.shape(2) == 3, kInvalid, "pixels must be [height, width, 3], got ", rgb.shape(2), " channels");
  SignalPoll poll;
  return without_gil([&] {
    return engine.encode(key, {rgb.data(), rgb.size()}, int(rgb.shape(0)), int(rgb.shape(1)), std::ref(poll));
  });
}

nb::object tower_of(const Engine& engine) {
  if (engine.tower() == nullptr) return nb::none();
  const VisionConfig& config = engine.tower()->config();
  nb::dict d;
  d["n_layers"] = config.n_layers;
  d["width"] = config.width;
  d["n_heads"] = config.n_heads;
  d["ffn"] = config.ffn;
  d["patch"] = config.patch;
  d["unit"] = config.unit();
  d["max_rows"] = config.max_rows();
  d["kind"] = config.is_gemma() ? "gemma4" : "qwen3_5";
  return d;
}

void bind_images(nb::module_& m) {
  nb::class_<EncodedImage>(m, "EncodedImage",
                           "An image as rows for the language model. While it exists, its rows stay in memory.")
      .def_prop_ro(
          "ids",
          [](const EncodedImage& image) {
            std::vector<int32_t> ids(size_t(image.grid.n()));
            for (size_t i = 0; i < ids.size(); ++i) ids[i] = image.grid.first_id + int32_t(i);
            return to_numpy<1, int32_t>(std::move(ids), {size_t(image.grid.n())});
          },
          nb::rv_policy::automatic, "[n] the ids that stand for its rows in a prompt, beyond the vocabulary.")
      .def_prop_ro(
          "rows",
          [](const EncodedImage& image) {
            const size_t n = size_t(image.grid.n());
            return to_numpy<2>(std::vector<float>(image.rows), {n, image.rows.size() / n});
          },
          nb::rv_policy::automatic, "[n, hidden], a copy.");
}

}  // namespace

void bind_engine(nb::module_& m) {
  bind_images(m);
  m.attr("FIRST_IMAGE_ID") = kFirstImageId;
  m.def(
      "read_bandwidth",
      [](int threads, size_t bytes) { return without_gil([&] { return read_bandwidth(threads, bytes); }); },
      "threads"_a, "bytes"_a, "Reads `bytes` of memory with `threads` threads and returns the best GB/s it measured.");

  nb::class_<KeptWeights>(m, "KeptWeights",
                          "Weights of an engine in pinned host memory, for a later load of its files.")
      .def_prop_ro("n_bytes", &KeptWeights::n_bytes, "Bytes copied so far.")
      .def_prop_ro("is_complete", &KeptWeights::is_complete, "Whether a load can use the copy.")
      .def(
          "free_slice", [](KeptWeights& kept) { return without_gil([&] { return kept.free_slice(); }); },
          "Frees the last slice. Returns whether others remain.");

  nb::class_<Engine>(m, "Engine", "One model's weights, immutable, with the plan of all memory it will use.")
      .def_prop_ro_static(
          "EARLIER_TOKENS", [](nb::handle) { return Engine::kEarlierTokens; },
          "Number of output tokens that an engine keeps for suffix drafts.")
      .def_static("open", &open_engine, "path"_a, "pack"_a = nb::none(), "progress"_a = nb::none(),
                  "others"_a = std::vector<const PythonPack*>{}, "draft_pack"_a = nb::none(),
                  "vision_pack"_a = nb::none(), "vision_on_cpu"_a = false, "kept"_a = nb::none(), "options"_a)
      .def(
          "keep_weights", [](const Engine& engine) { return without_gil([&] { return engine.keep_weights(); }); },
          "An empty copy of all weights, for keep_slice(). Throws UnsupportedError on the CPU and for experts in host "
          "memory.")
      .def(
          "keep_slice",
          [](const Engine& engine, KeptWeights& kept, size_t slice_bytes) {
            return without_gil([&] { return engine.keep_slice(kept, slice_bytes); });
          },
          "kept"_a, "slice_bytes"_a,
          "Copies the next slice to new pinned memory. Returns whether others follow; without, the copy is complete: "
          "a later open(kept=...) in this process copies it to the devices if files, devices and split are the same, "
          "and reads the files otherwise. Throws OutOfMemoryError if the rest takes more than half of the available "
          "memory, or the system pins no more.")
      .def("has_weights_of", &Engine::has_weights_of, "kept"_a,
           "Whether the copy, complete or not, is of the engine's files, devices and split.")
      .def_prop_ro(
          "options", [](const Engine& engine) { return dict_of(engine.options()); },
          "The options, with every default resolved.")
      .def_prop_ro("info", &info_of)
      .def_prop_ro(
          "n_stages", &Engine::n_stages,
          "Devices that compute one after the other, each its layers; 1: a device, or devices that compute together.")
      .def_prop_ro(
          "links", &Engine::links,
          "How rows get from each device of a split model to the next: \"peer\", or \"host: ...\" with the reason.")
      .def_prop_ro(
          "link_us", [](const Engine& engine) { return std::vector(engine.link_us().begin(), engine.link_us().end()); },
          "Microseconds of one row over each link, measured when the model was loaded.")
      .def_prop_ro("plan", [](const Engine& engine) { return dict_of_plan(engine.plan()); })
      .def_prop_ro(
          "expert_counts", &expert_counts_of,
          "(hits, misses, bytes): the experts that all passes so far found in device memory, those copied from "
          "host memory, and their bytes; 0 if all experts are in device memory.")
      .def(
          "set_decode_path",
          [](Engine& engine, const std::string& path) {
            engine.set_decode_path(value_of<DecodePath>("decode_path", path));
          },
          "path"_a, "The way to decode of sessions that are opened from now on. Their step costs are not known.")
      .def_prop_rw(
          "expert_uses", [](const Engine& engine) { return without_gil([&] { return engine.expert_uses(); }); },
          [](const Engine& engine, const Engine::ExpertUses& uses) {
            without_gil([&] { engine.set_expert_uses(uses); });
          },
          "How often the experts of each layer were chosen: [layer][expert], a prediction block's last. Empty if all "
          "experts are in device memory. Setting it, for the first layers or all, copies the experts used most to the "
          "device; no bit of a result changes.")
      .def_prop_rw(
          "step_costs", &step_costs_of, &set_step_costs,
          "Times of a step in milliseconds: {append: [(rows, ms)], plain_ms, draft_ms, draft_depth, first_ms, "
          "context_ms, is_fixed}. None until the first session has measured them. Unless is_fixed, times of real steps "
          "replace them.")
      .def_prop_rw(
          "draft_experience", &draft_experience_of, &set_draft_experience,
          "Learned acceptance of drafts in all sessions, by kind of sampling: {greedy: [numbers], sampled: [numbers]}, "
          "for a file. A kind that is missing is not known. Setting it throws InvalidRequestError for other numbers.")
      .def_prop_ro("draft_may_pay", &Engine::draft_may_pay,
                   "Whether drafting pays at these costs if the drafts are as good as a typical trained drafter's. "
                   "True without a draft model, without costs and with a fixed budget.")
      .def_prop_ro(
          "n_pages", [](const Engine& engine) { return engine.pages()->n_pages(); },
          "Number of pages in the KV cache; a page holds 64 tokens.")
      .def_prop_ro(
          "n_free_pages", [](const Engine& engine) { return engine.pages()->n_free(); },
          "Number of pages that neither a session nor a PageRun holds.")
      .def_prop_ro(
          "n_free_window_pages",
          [](const Engine& engine) { return engine.pools().windows ? engine.pools().windows->n_free() : 0; },
          "The same for the pages of the layers with a window, which are not among n_pages.")
      .def_prop_ro(
          "lacks_window_pages",
          [](const Engine& engine) { return engine.pools().windows && engine.pools().windows->is_short(); },
          "Whether a session lacked pages of the layers with a window, and none has become free since.")
      .def("read_pages", &bytes_of_run, "run"_a,
           "Copies the pages, in the format of Session.read_pages() or Session.read_windows().")
      .def_prop_ro("tower", &tower_of, "The vision tower's shape; None: the model was opened without one.")
      .def(
          "find_image", [](const Engine& engine, const std::string& key) { return engine.images().find(key); }, "key"_a,
          "The encoded image of this key, if its rows are still in memory.")
      .def("encode_image", &encode_image, "key"_a, "rgb"_a,
           "Encodes the pixels [height, width, 3], whose sides are multiples of the tower's unit, or returns the image "
           "already encoded under this key.")
      .def_prop_ro("draft_kind", &draft_kind_of,
                   "Kind of the draft model: \"dflash\", \"mtp\" or \"assistant\"; None without one.")
      .def_prop_ro("outputs", &Engine::outputs,
                   "Earlier outputs that the suffix drafter searches; None without a suffix drafter.")
      .def_prop_ro(
          "fingerprint", &Engine::fingerprint,
          "Hash of the files' metadata, all weights and the settings that a saved session depends on. The first "
          "access reads the whole files.")
      .def_prop_ro("layout", &Engine::layout,
                   "Hash of the files' metadata and of their tensors' names, types and shapes.")
      .def_static("layout_of", &Engine::layout_of, "path"_a, "The layout of a model file, without a draft model.");
}

}  // namespace lb
