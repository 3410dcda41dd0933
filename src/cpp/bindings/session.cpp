// Session and passes of several sessions for Python. The engine polls for signals between layers, so Ctrl-C stops a
// long prefill. To avoid deadlock, every call that takes the pass buffers' lock releases the GIL: a polling thread
// waits for the GIL while it holds the lock.
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

#include <optional>

#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/byte_arrays.h"
#include "bindings/calls.h"
#include "bindings/ids.h"
#include "bindings/segment_requests.h"
#include "engine/pass.h"
#include "engine/session.h"
#include "engine/step_cost_meter.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb {
namespace {

using Ids2 = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Class = nb::class_<Session>;

// --- tokens

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
  Timeline::AppendOptions options{.parents = parents, .taps = taps};
  Ids2 pos;
  if (!positions.is_none()) {
    pos = nb::cast<Ids2>(positions);
    options.positions = {pos.data(), pos.size()};
  }
  auto result = without_gil([&] { return session.at_rest().append(span(ids), options, std::ref(poll)); });
  const ModelInfo& info = session.engine().model().info();
  return nb::make_tuple(
      to_numpy<2>(std::move(result.logits), {ids.size(), static_cast<size_t>(info.vocab)}),
      to_numpy<3>(std::move(result.taps), {taps.size(), ids.size(), static_cast<size_t>(info.hidden)}));
}

nb::bytes save(Session& session) {
  const auto bytes = without_gil([&] { return session.at_rest().save(); });
  return nb::bytes(bytes.data(), bytes.size());
}

void bind_timeline(Class& session) {
  session
      .def_prop_ro("tokens",
                   [](const Session& s) {
                     const auto tokens = s.timeline().tokens();
                     return std::vector<int32_t>(tokens.begin(), tokens.end());
                   })
      .def_prop_ro("n_tokens", [](const Session& s) { return s.timeline().tokens().size(); })
      .def_prop_ro("context", [](const Session& s) { return s.timeline().context(); })
      .def_prop_ro("rewind_floor",
                   [](const Session& s) { return without_gil([&] { return s.timeline().rewind_floor(); }); })
      .def(
          "sync", &sync, "ids"_a, "progress"_a = nb::none(), "between_layers"_a = nb::none(),
          "Makes the timeline equal to ids and returns the number of leading tokens that it reused. In a chunk of more "
          "than step_rows rows, calls between_layers() between layers: there, other sessions of the engine may compute "
          "appends of up to step_rows rows.")
      .def("append", &append, "ids"_a, "parents"_a = std::vector<int32_t>{}, "positions"_a = nb::none(),
           "taps"_a = std::vector<int>{},
           "Computes rows that follow the timeline, without committing them; returns (logits [rows, vocab], taps [n, "
           "rows, hidden]).")
      .def(
          "commit",
          [](Session& s, const std::vector<int32_t>& path) { without_gil([&] { s.at_rest().commit(path); }); },
          "path"_a)
      .def(
          "rewind", [](Session& s, int n_tokens) { without_gil([&] { s.at_rest().rewind(n_tokens); }); }, "n_tokens"_a)
      .def("reset", [](Session& s) { without_gil([&] { s.at_rest().reset(); }); })
      .def(
          "fork", [](Session& s, Session& from) { without_gil([&] { s.fork(from); }); }, "source"_a,
          "Makes the timeline a bit-exact copy of another session's on the same engine. The two share its pages.")
      .def("save", &save, "Serialises the timeline and its state.")
      .def(
          "load",
          [](Session& s, nb::bytes data, const std::string& where) {
            const std::span bytes(reinterpret_cast<const std::byte*>(data.c_str()), data.size());
            without_gil([&] { s.at_rest().load(bytes, where); });
          },
          "data"_a, "where"_a = "snapshot");
}

// --- the next token

void bind_decode(Class& session) {
  session.def_prop_ro("decode_path", &Session::decode_path)
      .def(
          "measure_plain_ms", [](Session& s) { return without_gil([&] { return StepCostMeter(s).measure_plain(); }); },
          "Milliseconds of a plain token, measured on this session, which is empty and does not draft.")
      .def("wait", &Session::wait, nb::call_guard<nb::gil_scoped_release>(),
           "Waits until the device has finished all work sent to it.")
      .def("wait_for_choice", &Session::wait_for_choice, nb::call_guard<nb::gil_scoped_release>(),
           "Waits until the device has chosen the token that sample() returns next, if it has begun to.")
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
          "token"_a, "n_top"_a = 0,
          "Natural log probability of the token, and (id, log probability) of the n_top likeliest tokens.")
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
          "Makes the timeline equal to ids and returns the final hidden rows [n, hidden] of the n tokens that it "
          "computed: the new ones if ids continue the timeline, else all.");
}

// --- speculation

nb::dict draft_counts_of(const Session& session) {
  const Speculator::Counts& counts = session.speculator().counts();
  nb::dict d;
  d["verified"] = counts.verified;
  d["drafted"] = counts.drafted;
  d["accepted"] = counts.accepted;
  return d;
}

void bind_drafts(Class& session) {
  session
      .def(
          "suggest",
          [](Session& s, const Ids& ids, const std::vector<int32_t>& parents) {
            s.speculator().suggest(span(ids), parents);
          },
          "ids"_a, "parents"_a,
          "Proposes a draft tree that follows the next token; the sync() that appends this token verifies the tree.")
      .def(
          "set_drafting", [](Session& s, bool on) { s.speculator().set_on(on); }, "on"_a)
      .def(
          "set_sampling",
          [](Session& s, const Sampler& sampler) {
            s.speculator().set_sampling(sampler.is_greedy() ? SamplingKind::kGreedy : SamplingKind::kSampled);
          },
          "sampler"_a,
          "Judges the next drafts by what greedy or by what sampled sequences of the engine showed, as this sampler "
          "is.")
      .def(
          "expect", [](Session& s, const Ids& ids) { s.speculator().expect(span(ids)); }, "ids"_a,
          "Sets a text that the next output is likely to repeat, as a whole or in parts; empty: none.")
      .def(
          "remember", [](Session& s, const Ids& ids) { s.speculator().remember(span(ids)); }, "ids"_a,
          "Keeps an output, from which later outputs are drafted.")
      .def(
          "share_outputs",
          [](Session& s, std::shared_ptr<EarlierOutputs> outputs) { s.speculator().share_outputs(std::move(outputs)); },
          "outputs"_a.none(),
          "Drafts from these outputs and keeps new outputs there. None: the outputs that all sessions of the engine "
          "share.")
      .def_prop_ro("draft_counts", &draft_counts_of, "Numbers of trees verified, tokens in them, and tokens accepted.")
      .def_prop_ro(
          "accepted_lengths",
          [](const Session& s) {
            const auto& lengths = s.speculator().counts().by_length;
            return std::vector<int64_t>(lengths.begin(), lengths.end());
          },
          "[64]: entry n is the number of verified trees of which n tokens were accepted.");
}

// --- pages and pieces

ByteArray pages_of(Session& session, int first, int count) {
  LB_CHECK(count >= 1, kInvalid, "read_pages() reads at least one page, got count = ", count);
  return filled(count * session.timeline().page_bytes(), [&](auto to) { session.read_pages(first, count, to); });
}

ByteArray recurrent_of(Session& session) {
  return shared(without_gil([&] { return session.at_rest().read_recurrent(); }));
}

ByteArray windows_of(Session& session) {
  Timeline* const timeline = without_gil([&] { return &session.at_rest(); });
  return filled(timeline->window_bytes(), [&](auto to) { timeline->read_windows(to); });
}

using PagePiece = std::variant<ConstBytes, const PageRun*>;

void assemble(Session& session, const Ids& ids, const std::vector<int32_t>& ends, int first_page,
              const std::vector<PagePiece>& pages, const nb::object& recurrent,
              const std::optional<PagePiece>& windows) {
  Timeline::Pieces pieces{.first_page = first_page, .pages = {}, .windows = {}, .recurrent = {}};
  const auto piece_of = [](const PagePiece& piece) -> Timeline::PagePiece {
    const auto* run = std::get_if<const PageRun*>(&piece);
    if (run == nullptr) return span(std::get<ConstBytes>(piece));
    LB_CHECK(*run != nullptr, kInvalid, "a piece is None; it must be bytes or a PageRun");
    return *run;
  };
  for (const PagePiece& piece : pages) pieces.pages.push_back(piece_of(piece));
  if (windows) pieces.windows = piece_of(*windows);
  ConstBytes state;
  if (!recurrent.is_none()) {
    state = nb::cast<ConstBytes>(recurrent);
    pieces.recurrent = span(state);
  }
  without_gil([&] { session.at_rest().assemble(span(ids), ends, pieces); });
}

void bind_pages(Class& session) {
  session
      .def_prop_ro(
          "page_bytes", [](const Session& s) { return s.timeline().page_bytes(); },
          "Bytes of one page of 64 tokens, over all attention layers.")
      .def_prop_ro(
          "recurrent_bytes", [](const Session& s) { return s.timeline().recurrent_bytes(); },
          "Bytes of the recurrent layers' state; 0 if the model has none.")
      .def_prop_ro(
          "window_bytes", [](const Session& s) { return s.timeline().max_window_bytes(); },
          "Maximum bytes of the pages that hold the windows at one length; 0 if no layer has a window.")
      .def_prop_ro(
          "own_floor", [](const Session& s) { return without_gil([&] { return s.timeline().own_floor(); }); },
          "The shortest prefix of the tokens to which assemble() can return without pieces.")
      .def_prop_ro(
          "step_rows", [](const Session& s) { return s.engine().buffers().max_rows; },
          "Maximum rows of an append between the layers of a prompt's chunk.")
      .def_prop_ro(
          "n_stages", [](const Session& s) { return s.engine().n_stages(); }, "Engine.n_stages")
      .def_prop_ro(
          "prefill_chunk", [](const Session& s) { return s.engine().options().prefill_chunk; },
          "Rows of a prefill chunk: sync() cuts a prompt into appends at its multiples.")
      .def(
          "matched_prefix",
          [](const Session& s, const Ids& ids, const std::vector<int32_t>& ends) {
            return s.timeline().matched_prefix(span(ids), ends);
          },
          "ids"_a, "ends"_a,
          "Length of the longest prefix of ids whose state has the bits of a fresh run: computed in appends with "
          "exactly these ends, or in any appends where rows are invariant.")
      .def_prop_ro(
          "images_are_whole", [](const Session& s) { return s.engine().model().info().images_are_whole; },
          "Whether an append has all rows of an image, because they see each other.")
      .def_prop_ro(
          "rows_are_invariant", [](const Session& s) { return s.engine().rows_are_invariant(); },
          "Whether a row has the same bits whichever appends compute the sequence.")
      .def("read_pages", &pages_of, "first"_a, "count"_a)
      .def("read_recurrent", &recurrent_of, "Copies the recurrent state after the newest token.")
      .def("read_windows", &windows_of, "Copies the pages that hold the windows after the newest token.")
      .def("assemble", &assemble, "ids"_a, "ends"_a, "first_page"_a = 0, "pages"_a = std::vector<PagePiece>{},
           "recurrent"_a = nb::none(), "windows"_a = nb::none(),
           "Makes the timeline equal to ids, as if it had computed them in appends with these ends. Keeps its pages "
           "before first_page; takes the other pages (each piece is bytes or a PageRun), the recurrent state and "
           "the windows (bytes or a PageRun) from the arguments.")
      .def_prop_ro(
          "n_pages", [](const Session& s) { return s.timeline().n_pages(); },
          "Number of pages of the KV cache that the session holds.")
      .def(
          "reserve", [](Session& s, int n_tokens) { return without_gil([&] { return s.reserve(n_tokens); }); },
          "n_tokens"_a,
          "Allocates pages for a timeline of n_tokens; swaps the session in first. Returns False and changes nothing "
          "if too few pages are free.")
      .def(
          "swap_out", [](Session& s) { without_gil([&] { s.at_rest().swap_out(); }); },
          "Copies the pages to host memory and frees them. The next call that needs them swaps them in, or raises "
          "OutOfMemoryError.")
      .def_prop_ro("is_swapped_out", [](const Session& s) { return s.timeline().is_swapped_out(); })
      .def(
          "share_pages",
          [](Session& s, int first, int count) { return without_gil([&] { return s.share_pages(first, count); }); },
          "first"_a, "count"_a, "Returns references to pages of the timeline, for assemble().")
      .def(
          "share_windows", [](Session& s) { return without_gil([&] { return s.at_rest().share_windows(); }); },
          "Returns references to the pages that hold the windows after the newest token; None if no layer has a "
          "window.");
}

// --- several sessions

int sync_together(const std::vector<Session*>& sessions, const std::vector<Ids>& ids) {
  const std::vector<SegmentRequest> requests = segment_requests(sessions, ids);
  SignalPoll poll;
  return without_gil([&] { return Pass::sync(requests, std::ref(poll)); });
}

void start_samples(const std::vector<Session*>& sessions, const std::vector<Sampler*>& samplers) {
  LB_CHECK(sessions.size() == samplers.size(), kInvalid, samplers.size(), " samplers for ", sessions.size(),
           " sessions");
  std::vector<Pass::Choice> choices;
  for (size_t i = 0; i < sessions.size(); ++i) choices.push_back({sessions[i], samplers[i]});
  without_gil([&] { Pass::start_samples(choices); });
}

}  // namespace

void bind_session(nb::module_& m) {
  nb::class_<PageRun>(m, "PageRun",
                      "References to pages of the KV cache, which keep the pages allocated and unchanged.")
      .def("__len__", [](const PageRun& run) { return run.pages().size(); })
      .def_prop_ro("n_bytes", [](const PageRun& run) { return run.pages().size() * run.pool().page_bytes(); })
      .def_prop_ro("is_in_use", &PageRun::is_in_use,
                   "Whether sessions hold all of the pages, so that they stay allocated without any PageRun.");

  Class session(m, "Session", "One mutable token timeline on an engine.");
  session.def(
      "__init__",
      [](Session* self, std::shared_ptr<Engine> engine) {
        without_gil([&] { new (self) Session(std::move(engine)); });
      },
      "engine"_a);
  bind_timeline(session);
  bind_decode(session);
  bind_drafts(session);
  bind_pages(session);

  m.def(
      "sync_together", &sync_together, "sessions"_a, "ids"_a,
      "Calls Session.sync() on several sessions of an engine, each with its ids. Sessions that lack exactly one token "
      "share passes over the weights. Returns the number of rows in these passes.");
  m.def(
      "start_samples", &start_samples, "sessions"_a, "samplers"_a,
      "After sync_together(): starts the choice that each session's next sample() with its sampler returns, so that a "
      "device chooses for all sessions before the host waits for any.");
}

}  // namespace lb
