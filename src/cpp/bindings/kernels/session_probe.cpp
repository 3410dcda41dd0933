// SessionProbe for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/arrays.h"
#include "bindings/calls.h"
#include "bindings/ids.h"
#include "bindings/kernels/bindings.h"
#include "bindings/segment_requests.h"
#include "engine/session_probe.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lb::kernels {
namespace {

nb::dict part_seconds_of(const SessionProbe& probe) {
  const PartClock::Seconds& seconds = probe.part_seconds();
  nb::dict d;
  d["draft"] = seconds[int(StepPart::kDraft)];
  d["tree"] = seconds[int(StepPart::kTree)];
  d["verify"] = seconds[int(StepPart::kVerify)];
  d["walk"] = seconds[int(StepPart::kWalk)];
  return d;
}

double time_append(SessionProbe& probe, const Ids& ids, int n_logits) {
  SignalPoll poll;
  return without_gil([&] { return probe.time_append(span(ids), n_logits, std::ref(poll)); });
}

using KernelTimes = std::vector<std::tuple<std::string, int, double>>;

KernelTimes tuples_of(const std::vector<gpu::KernelTime>& times) {
  KernelTimes rows;
  for (const gpu::KernelTime& time : times) rows.emplace_back(time.kernel, time.launches, time.seconds);
  return rows;
}

KernelTimes profile_append(SessionProbe& probe, const Ids& ids, int n_logits) {
  SignalPoll poll;
  return tuples_of(without_gil([&] { return probe.profile_append(span(ids), n_logits, std::ref(poll)); }));
}

KernelTimes profile_together(const std::vector<Session*>& sessions, const std::vector<Ids>& ids) {
  const std::vector<SegmentRequest> requests = segment_requests(sessions, ids);
  SignalPoll poll;
  return tuples_of(without_gil([&] { return SessionProbe::profile_together(requests, std::ref(poll)); }));
}

nb::dict time_draft_step(SessionProbe& probe, const Ids& ids, int rows, int n) {
  const DraftStepTimes times = without_gil([&] { return probe.time_draft_step(span(ids), rows, n); });
  nb::dict result;
  result["step_ms"] = times.step_ms;
  result["draft_ms"] = times.draft_ms;
  result["tree_ms"] = times.tree_ms;
  result["verify_ms"] = times.verify_ms;
  result["walk_ms"] = times.walk_ms;
  result["commit_ms"] = times.commit_ms;
  return result;
}

using StepRow = std::tuple<int, int, int, uint64_t, uint64_t, uint64_t>;

std::vector<Array<float, 1>> rank_logits(SessionProbe& probe) {
  std::vector<Array<float, 1>> arrays;
  for (std::vector<float>& row : without_gil([&] { return probe.rank_logits(); })) {
    const size_t n = row.size();
    arrays.push_back(to_numpy<1>(std::move(row), {n}));
  }
  return arrays;
}

std::tuple<std::vector<StepRow>, std::vector<std::string>> step_timeline(SessionProbe& probe) {
  StepTimeline timeline = without_gil([&] { return probe.step_timeline(); });
  std::vector<StepRow> rows;
  for (const StepTime& t : timeline.steps) rows.emplace_back(t.block, t.phase, t.task, t.began, t.waited, t.done);
  return {std::move(rows), std::move(timeline.tasks)};
}

}  // namespace

void bind_session_probe(nb::module_& m) {
  nb::class_<SessionProbe>(m, "SessionProbe", "A session as benchmarks and tests look at it.")
      .def(nb::init<Session&>(), "session"_a, nb::keep_alive<1, 2>())
      .def(
          "replay",
          [](SessionProbe& p, const std::vector<int64_t>& by_length, uint64_t seed) {
            without_gil([&] { p.replay(by_length, seed); });
          },
          "by_length"_a, "seed"_a = 0,
          "For benchmarks: by_length[n] trees accept n tokens, whatever is sampled, so the text means nothing. Empty: "
          "off.")
      .def("time_parts", &SessionProbe::time_parts, "on"_a,
           "Whether steps with drafts are timed part by part, which slows them down. Sets part_seconds to 0.")
      .def_prop_ro("part_seconds", &part_seconds_of, "Sums since time_parts(): {draft, tree, verify, walk}.")
      .def("time_append", &time_append, "ids"_a, "n_logits"_a,
           "Seconds to compute an append and the logits of its last n_logits rows, without copying them to the host.")
      .def("profile_append", &profile_append, "ids"_a, "n_logits"_a,
           "The work of time_append per kernel, longest first: (kernel, launches, seconds).")
      .def("time_draft_step", &time_draft_step, "ids"_a, "rows"_a, "n"_a = 20,
           "Milliseconds of a speculative step of the draft model that waits for no host, the mean of n, and of the "
           "kernels of its parts: step_ms, draft_ms, tree_ms, verify_ms, walk_ms, commit_ms.")
      .def_static("profile_together", &profile_together, "sessions"_a, "ids"_a,
                  "sync_together(), timed per kernel: (kernel, launches, seconds), which do not overlap.")
      .def("rank_logits", &rank_logits, "The newest token's logits as each rank of a tensor split has them.")
      .def(
          "step_timeline", &step_timeline,
          "Time stamps of the last token's step: (block, phase, task, began, waited, done) in ns, and the name of each "
          "task. Empty unless the megakernel made it; the pack must be built with LUCEBOX_TIMELINE.");
}

}  // namespace lb::kernels
