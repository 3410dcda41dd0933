// Engine, Session and Sampler for Python. The engine polls for signals between layers, so Ctrl-C stops a long prefill.
// A thread that polls has the turn on the device and waits for the GIL, so all that takes the turn releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <limits>

#include "base/bandwidth.h"
#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/calls.h"
#include "bindings/gpu_call.h"
#include "bindings/memory_plan.h"
#include "bindings/options.h"
#include "engine/backend_gpu.h"
#include "engine/session.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;
using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::span<const int32_t> span(const Ids& ids) { return {ids.data(), ids.size()}; }
std::span<const std::byte> span(const ConstBytes& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

// A numpy array whose bytes `fill` writes, without the GIL.
template <class Fill>
Bytes filled(size_t size, Fill&& fill) {
  auto bytes = std::make_unique_for_overwrite<uint8_t[]>(size);
  {
    nb::gil_scoped_release release;
    fill(std::as_writable_bytes(std::span(bytes.get(), size)));
  }
  nb::capsule owner(bytes.get(), [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  return Bytes(bytes.release(), {size}, owner);
}

std::shared_ptr<Engine> open_engine(const std::string& path, const PythonPack* pack, const nb::object& progress,
                                    const nb::kwargs& named) {
  const EngineOptions options = engine_options_of(named);
  std::unique_ptr<Backend> backend;
  if (pack != nullptr) backend = gpu_backend(pack->shared(), pack->name());
  const LoadReport report(progress);
  return without_gil([&] { return Engine::open(path, options, std::move(backend), std::ref(report)); });
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

int sync(Session& session, const Ids& ids, const nb::object& progress, const nb::object& between_layers) {
  SignalPoll poll;
  BetweenLayers between;
  if (!between_layers.is_none())
    between = [&] {
      nb::gil_scoped_acquire gil;
      between_layers();
    };
  return without_gil([&] { return session.sync(span(ids), std::ref(poll), progress_of(progress), between); });
}

nb::tuple append(Session& session, const Ids& ids, const std::vector<int32_t>& parents, const nb::object& positions,
                 const std::vector<int>& taps) {
  SignalPoll poll;
  Session::AppendOptions options{.parents = parents, .taps = taps};
  Ids2 pos;
  if (!positions.is_none()) {
    pos = nb::cast<Ids2>(positions);
    options.positions = {pos.data(), pos.size()};
  }
  auto result = without_gil([&] { return session.append(span(ids), options, std::ref(poll)); });
  const ModelInfo& info = session.engine().model().info();
  return nb::make_tuple(
      to_numpy<2>(std::move(result.logits), {ids.size(), static_cast<size_t>(info.vocab)}),
      to_numpy<3>(std::move(result.taps), {taps.size(), ids.size(), static_cast<size_t>(info.hidden)}));
}

void suggest(Session& session, const Ids& ids, const std::vector<int32_t>& parents) {
  session.suggest(span(ids), parents);
}

nb::dict draft_counts_of(const Session& session) {
  const Session::DraftCounts& counts = session.draft_counts();
  nb::dict d;
  d["verified"] = counts.verified;
  d["drafted"] = counts.drafted;
  d["accepted"] = counts.accepted;
  return d;
}

nb::dict part_seconds_of(const Session& session) {
  const PartClock::Seconds& seconds = session.parts().seconds();
  nb::dict d;
  d["draft"] = seconds[int(StepPart::kDraft)];
  d["tree"] = seconds[int(StepPart::kTree)];
  d["verify"] = seconds[int(StepPart::kVerify)];
  d["walk"] = seconds[int(StepPart::kWalk)];
  return d;
}

double time_append(Session& session, const Ids& ids, int n_logits) {
  SignalPoll poll;
  return without_gil([&] { return session.time_append(span(ids), n_logits, std::ref(poll)); });
}

using KernelTimes = std::vector<std::tuple<std::string, int, double>>;

KernelTimes tuples_of(const std::vector<gpu::KernelTime>& times) {
  KernelTimes rows;
  for (const gpu::KernelTime& time : times) rows.emplace_back(time.kernel, time.launches, time.seconds);
  return rows;
}

KernelTimes profile_append(Session& session, const Ids& ids, int n_logits) {
  SignalPoll poll;
  return tuples_of(without_gil([&] { return session.profile_append(span(ids), n_logits, std::ref(poll)); }));
}

nb::dict time_draft_step(Session& session, const Ids& ids, int rows, int n) {
  const DraftStepTimes times = without_gil([&] { return session.time_draft_step(span(ids), rows, n); });
  nb::dict result;
  result["step_ms"] = times.step_ms;
  result["draft_ms"] = times.draft_ms;
  result["tree_ms"] = times.tree_ms;
  result["verify_ms"] = times.verify_ms;
  result["walk_ms"] = times.walk_ms;
  result["commit_ms"] = times.commit_ms;
  return result;
}

std::vector<Session::Turn> turns_of(const std::vector<Session*>& sessions, const std::vector<Ids>& ids) {
  LB_CHECK(sessions.size() == ids.size(), kInvalid, ids.size(), " token lists for ", sessions.size(), " sessions");
  std::vector<Session::Turn> turns;
  for (size_t i = 0; i < sessions.size(); ++i) turns.push_back({sessions[i], span(ids[i])});
  return turns;
}

int sync_together(const std::vector<Session*>& sessions, const std::vector<Ids>& ids) {
  const std::vector<Session::Turn> turns = turns_of(sessions, ids);
  SignalPoll poll;
  return without_gil([&] { return Session::sync_together(turns, std::ref(poll)); });
}

KernelTimes profile_together(const std::vector<Session*>& sessions, const std::vector<Ids>& ids) {
  const std::vector<Session::Turn> turns = turns_of(sessions, ids);
  SignalPoll poll;
  return tuples_of(without_gil([&] { return Session::profile_together(turns, std::ref(poll)); }));
}

void start_samples(const std::vector<Session*>& sessions, const std::vector<Sampler*>& samplers) {
  LB_CHECK(sessions.size() == samplers.size(), kInvalid, samplers.size(), " samplers for ", sessions.size(),
           " sessions");
  std::vector<Session::Choice> choices;
  for (size_t i = 0; i < sessions.size(); ++i) choices.push_back({sessions[i], samplers[i]});
  without_gil([&] { Session::start_samples(choices); });
}

using StepRow = std::tuple<int, int, int, uint64_t, uint64_t, uint64_t>;

std::tuple<std::vector<StepRow>, std::vector<std::string>> timeline(Session& session) {
  Timeline timeline = without_gil([&] { return session.timeline(); });
  std::vector<StepRow> rows;
  for (const StepTime& t : timeline.steps) rows.emplace_back(t.block, t.phase, t.task, t.began, t.waited, t.done);
  return {std::move(rows), std::move(timeline.tasks)};
}

Bytes pages_of(Session& session, int first, int count) {
  LB_CHECK(count >= 1, kInvalid, "at least one page can be read, not ", count);
  return filled(count * session.page_bytes(), [&](auto to) { session.read_pages(first, count, to); });
}

Bytes recurrent_of(Session& session) {
  return filled(session.recurrent_bytes(), [&](auto to) { session.read_recurrent(to); });
}

Bytes bytes_of_run(const Engine& engine, const PageRun& run) {
  LB_CHECK(&run.pool() == engine.pages().get(), kInvalid, "these pages are of another engine");
  return filled(run.pages().size() * run.pool().page_bytes(), [&](auto to) {
    const std::lock_guard lock(engine.executor().mutex);
    run.pool().read(run.pages(), to);
  });
}

using PagePiece = std::variant<ConstBytes, const PageRun*>;

void assemble(Session& session, const Ids& ids, const std::vector<int32_t>& ends, int first_page,
              const std::vector<PagePiece>& pages, const nb::object& recurrent) {
  Session::Pieces pieces{.first_page = first_page, .pages = {}, .recurrent = {}};
  for (const PagePiece& piece : pages) {
    if (const auto* run = std::get_if<const PageRun*>(&piece)) {
      LB_CHECK(*run != nullptr, kInvalid, "a piece is None");
      pieces.pages.emplace_back(*run);
    } else {
      pieces.pages.emplace_back(span(std::get<ConstBytes>(piece)));
    }
  }
  ConstBytes state;
  if (!recurrent.is_none()) {
    state = nb::cast<ConstBytes>(recurrent);
    pieces.recurrent = span(state);
  }
  without_gil([&] { session.assemble(span(ids), ends, pieces); });
}

nb::bytes save(Session& session) {
  const auto bytes = without_gil([&] { return session.save(); });
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace

void bind_engine(nb::module_& m) {
  m.def(
      "read_bandwidth",
      [](int threads, size_t bytes) { return without_gil([&] { return read_bandwidth(threads, bytes); }); },
      "threads"_a, "bytes"_a, "Best measured GB/s of reading `bytes` of memory with `threads` threads.");
  m.def(
      "check_sampling",
      [](const nb::kwargs& options) { validate(sampling_params_of(options), std::numeric_limits<int32_t>::max()); },
      "options"_a, "Checks the ranges of sampling options, without a vocabulary.");
  m.def("uniform_draw", &uniform_draw, "seed"_a, "draw"_a, "The uniform number in [0, 1) of one draw.");

  nb::class_<Engine>(m, "Engine", "One model's weights, immutable, with the plan of all memory it will use.")
      .def_prop_ro_static(
          "EARLIER_TOKENS", [](nb::handle) { return Engine::kEarlierTokens; },
          "Tokens of earlier outputs that an engine keeps for suffix drafts.")
      .def_static("open", &open_engine, "path"_a, "pack"_a = nb::none(), "progress"_a = nb::none(), "options"_a)
      .def_prop_ro(
          "options", [](const Engine& engine) { return dict_of(engine.options()); }, "What each option came to.")
      .def_prop_ro("info", &info_of)
      .def_prop_ro("plan", [](const Engine& engine) { return dict_of_plan(engine.plan()); })
      .def_prop_rw(
          "step_costs", &step_costs_of, &set_step_costs,
          "Milliseconds of a step, which the first session measures: {append: [(rows, ms)], plain_ms, draft_ms, "
          "draft_depth, first_ms, context_ms, is_fixed}; None before. Real times of steps replace them unless "
          "is_fixed.")
      .def_prop_ro("draft_may_pay", &Engine::draft_may_pay,
                   "Whether the draft model gains at these costs if its drafts are as good as those of trained "
                   "drafters mostly are. True without a draft model, without costs and with a fixed budget.")
      .def_prop_ro(
          "n_pages", [](const Engine& engine) { return engine.pages()->n_pages(); },
          "Pages of the KV cache, of 64 tokens each.")
      .def_prop_ro(
          "n_free_pages", [](const Engine& engine) { return engine.pages()->n_free(); },
          "Pages that no session holds and no PageRun refers to.")
      .def("read_pages", &bytes_of_run, "run"_a, "The bytes of the pages, as Session.read_pages() returns them.")
      .def_prop_ro("draft_kind", &draft_kind_of, "Draft model: \"dflash\", \"mtp\", or None without one.")
      .def_prop_ro("outputs", &Engine::outputs, "Earlier outputs, which the suffix drafter reads; None without it.")
      .def_prop_ro("fingerprint", &Engine::fingerprint,
                   "A hash of the files' metadata, all weights and the settings that a saved "
                   "session depends on. The first access reads all bytes of the files.")
      .def_prop_ro("layout", &Engine::layout,
                   "A hash of the files' metadata, and names, types and shapes of their tensors.");

  nb::class_<Sampler>(m, "Sampler", "Turns logits into tokens, one uniform draw per sampled token.")
      .def(
          "__init__",
          [](Sampler* self, int vocab, const nb::kwargs& options) {
            new (self) Sampler(sampling_params_of(options), vocab);
          },
          "vocab"_a, "options"_a)
      .def(
          "set_prompt", [](Sampler& s, const Ids& ids) { s.set_prompt(span(ids)); }, "ids"_a)
      .def(
          "set_mask",
          [](Sampler& s, std::optional<nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>> bits) {
            s.set_mask(bits ? std::span(bits->data(), bits->size()) : std::span<const uint32_t>());
          },
          "bits"_a.none(),
          "Allows only tokens whose bit (id % 32 of word id // 32) is set until the next call; None allows all.")
      .def(
          "sample",
          [](Sampler& s, nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> logits) {
            return s.sample({logits.data(), logits.size()});
          },
          "logits"_a);

  nb::class_<PageRun>(m, "PageRun", "References to pages of the KV cache, which keep them and their contents.")
      .def("__len__", [](const PageRun& run) { return run.pages().size(); })
      .def_prop_ro("is_shared", &PageRun::is_shared, "Whether somebody else holds some of the pages.");

  nb::class_<Session>(m, "Session", "One mutable token timeline on an engine.")
      .def(
          "__init__",
          [](Session* self, std::shared_ptr<Engine> engine) {
            without_gil([&] { new (self) Session(std::move(engine)); });
          },
          "engine"_a)
      .def_prop_ro("tokens",
                   [](const Session& s) { return std::vector<int32_t>(s.tokens().begin(), s.tokens().end()); })
      .def_prop_ro("n_tokens", [](const Session& s) { return s.tokens().size(); })
      .def_prop_ro("context", &Session::context)
      .def_prop_ro("rewind_floor", &Session::rewind_floor)
      .def_prop_ro("decode_path", &Session::decode_path)
      .def(
          "timeline", &timeline,
          "Time stamps of the last token's step: (block, phase, task, began, waited, done) in ns, and the name of each "
          "task. Empty unless the megakernel made it; the pack must be built with LUCEBOX_TIMELINE.")
      .def("sync", &sync, "ids"_a, "progress"_a = nb::none(), "between_layers"_a = nb::none(),
           "Makes the timeline equal to ids; returns how many leading tokens were reused. between_layers() is called "
           "within a chunk of more than step_rows rows. Other sessions of the engine may compute up to so many there.")
      .def("wait", &Session::wait, nb::call_guard<nb::gil_scoped_release>(),
           "Waits until the device has computed what was sent to it.")
      .def(
          "logits",
          [](Session& s) {
            const auto logits = without_gil([&] { return s.logits(); });
            return to_numpy<1>({logits.begin(), logits.end()}, {logits.size()});
          },
          "Logits of the last token, after sync().")
      .def(
          "sample", [](Session& s, Sampler& sampler) { return without_gil([&] { return s.sample(sampler); }); },
          "sampler"_a)
      .def(
          "logprobs",
          [](Session& s, int32_t token, int n_top) {
            const Logprobs result = s.logprobs(token, n_top);
            return nb::make_tuple(result.token, result.top);
          },
          "token"_a, "n_top"_a = 0, "Natural log probability of the token, and (id, logprob) of the n_top likeliest.")
      .def(
          "score",
          [](Session& s, const Ids& ids) {
            SignalPoll poll;
            return without_gil([&] { return s.score(span(ids), std::ref(poll)); });
          },
          "ids"_a, "Natural log probability of every token after the first. Replaces the timeline.")
      .def(
          "hidden",
          [](Session& s, const Ids& ids) {
            SignalPoll poll;
            auto rows = without_gil([&] { return s.hidden(span(ids), std::ref(poll)); });
            const size_t width = s.engine().model().info().hidden, n = rows.size() / width;
            return to_numpy<2>(std::move(rows), {n, width});
          },
          "ids"_a,
          "Makes the timeline equal to ids; returns the final hidden rows [n, hidden] of what it lacked. Keeps the "
          "timeline where ids continue it.")
      .def("suggest", &suggest, "ids"_a, "parents"_a,
           "Proposes a tree below the next token; the sync() that adds this token verifies it.")
      .def("set_drafting", &Session::set_drafting, "on"_a)
      .def(
          "expect", [](Session& s, const Ids& ids) { s.expect(span(ids)); }, "ids"_a,
          "A text that the next output is likely to repeat, as a whole or in parts; empty: none.")
      .def(
          "remember", [](Session& s, const Ids& ids) { s.remember(span(ids)); }, "ids"_a,
          "Keeps an output for the drafts of later ones.")
      .def("share_outputs", &Session::share_outputs, "outputs"_a.none(),
           "Drafts from these outputs, and keeps outputs there. None: those of all sessions.")
      .def_prop_ro("draft_counts", &draft_counts_of, "Trees verified, and tokens of them drafted and accepted.")
      .def_prop_ro(
          "accepted_lengths",
          [](const Session& s) {
            const auto& lengths = s.draft_counts().by_length;
            return std::vector<int64_t>(lengths.begin(), lengths.end());
          },
          "[64] verified trees by the number of their accepted tokens.")
      .def(
          "replay",
          [](Session& s, const std::vector<int64_t>& by_length, uint64_t seed) {
            without_gil([&] { s.replay(by_length, seed); });
          },
          "by_length"_a, "seed"_a = 0,
          "For benchmarks: by_length[n] trees accept n tokens, whatever is sampled, so the text means nothing. Empty: "
          "off.")
      .def("time_parts", &Session::time_parts, "on"_a,
           "Whether steps with drafts are timed part by part, which slows them down. Sets part_seconds to 0.")
      .def_prop_ro("part_seconds", &part_seconds_of, "Sums since time_parts(): {draft, tree, verify, walk}.")
      .def("append", &append, "ids"_a, "parents"_a = std::vector<int32_t>{}, "positions"_a = nb::none(),
           "taps"_a = std::vector<int>{},
           "Computes rows after the timeline without keeping them: (logits [rows, vocab], taps [n, rows, hidden]).")
      .def("time_append", &time_append, "ids"_a, "n_logits"_a,
           "Seconds to compute an append and the logits of its last n_logits rows, without copying them to the host.")
      .def("profile_append", &profile_append, "ids"_a, "n_logits"_a,
           "The work of time_append per kernel, longest first: (kernel, launches, seconds).")
      .def("time_draft_step", &time_draft_step, "ids"_a, "rows"_a, "n"_a = 20,
           "Milliseconds of a speculative step of the draft model that waits for no host, the mean of n, and of the "
           "kernels of its parts: step_ms, draft_ms, tree_ms, verify_ms, walk_ms, commit_ms.")
      .def(
          "commit", [](Session& s, const std::vector<int32_t>& path) { without_gil([&] { s.commit(path); }); },
          "path"_a)
      .def(
          "rewind", [](Session& s, int n_tokens) { without_gil([&] { s.rewind(n_tokens); }); }, "n_tokens"_a)
      .def("reset", [](Session& s) { without_gil([&] { s.reset(); }); })
      .def_prop_ro("page_bytes", &Session::page_bytes, "Bytes of one page of 64 tokens, over all attention layers.")
      .def_prop_ro("recurrent_bytes", &Session::recurrent_bytes,
                   "Bytes of the recurrent state; 0 without recurrent layers.")
      .def_prop_ro("step_rows", &Session::step_rows, "Rows of the longest append between the layers of a prompt's.")
      .def_prop_ro("prefill_chunk", &Session::prefill_chunk,
                   "Rows of a prefill chunk: sync() computes prompts in appends that end at its multiples.")
      .def(
          "held",
          [](const Session& s, const Ids& ids, const std::vector<int32_t>& ends) {
            return s.matched_prefix(span(ids), ends);
          },
          "ids"_a, "ends"_a,
          "Length of the longest prefix of ids that the timeline computed in appends with exactly these ends.")
      .def("read_pages", &pages_of, "first"_a, "count"_a)
      .def("read_recurrent", &recurrent_of, "The recurrent state after the newest token.")
      .def("assemble", &assemble, "ids"_a, "ends"_a, "first_page"_a = 0, "pages"_a = std::vector<PagePiece>{},
           "recurrent"_a = nb::none(),
           "Makes the timeline ids, as if computed in appends with these ends. Keeps the pages before first_page "
           "and takes the other pages, bytes or a PageRun each, and the recurrent state from the arguments.")
      .def_prop_ro("n_pages", &Session::n_pages, "Pages of the KV cache that the session holds.")
      .def(
          "reserve", [](Session& s, int n_tokens) { return without_gil([&] { return s.reserve(n_tokens); }); },
          "n_tokens"_a,
          "Takes pages for a timeline of n_tokens, after swapping in. False: too few are free, and nothing changed.")
      .def(
          "swap_out", [](Session& s) { without_gil([&] { s.swap_out(); }); },
          "Copies the pages to host memory and gives them back. The next call that needs them swaps in, or raises "
          "OutOfMemoryError.")
      .def_prop_ro("is_swapped_out", &Session::is_swapped_out)
      .def(
          "fork", [](Session& s, Session& from) { without_gil([&] { s.fork(from); }); }, "source"_a,
          "Makes the timeline that of another session of the engine, to the bit. They share its pages.")
      .def(
          "share_pages",
          [](Session& s, int first, int count) { return without_gil([&] { return s.share_pages(first, count); }); },
          "first"_a, "count"_a, "References to pages of the timeline, for assemble().")
      .def("save", &save, "A snapshot of the timeline and its state, as bytes.")
      .def(
          "load",
          [](Session& s, nb::bytes data, const std::string& where) {
            const std::span bytes(reinterpret_cast<const std::byte*>(data.c_str()), data.size());
            without_gil([&] { s.load(bytes, where); });
          },
          "data"_a, "where"_a = "snapshot");
  m.def("sync_together", &sync_together, "sessions"_a, "ids"_a,
        "Session.sync() of several sessions of an engine, each with its ids. Where they lack one token each, a pass "
        "over the weights computes it for all of them. Returns the rows of these passes.");
  m.def("profile_together", &profile_together, "sessions"_a, "ids"_a,
        "sync_together(), timed per kernel: (kernel, launches, seconds), which do not overlap.");
  m.def(
      "start_samples", &start_samples, "sessions"_a, "samplers"_a,
      "After sync_together(): starts the choices that the next sample() of each session and sampler returns, so that a "
      "device chooses for all sessions before the host waits for one.");
}

}  // namespace lb
